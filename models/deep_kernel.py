"""Stochastic variational deep kernel learning (Wilson et al. 2016): GPs on the features of a network."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from jax import Array, random
from numpyro import handlers
from numpyro.distributions import Distribution, constraints
from numpyro.infer import SVI, Trace_ELBO

from gpzoo import _checks as checks
from gpzoo import linalg
from gpzoo.distributions import GaussianProcess
from gpzoo.errors import keeping_finished
from gpzoo.grids import InducingGrid
from gpzoo.inference import FitResult, GaussianProcessELBO, InducingGuide, fit
from gpzoo.kernels import RBF, Kernel
from gpzoo.likelihoods import Softmax
from gpzoo.models.hyperparameters import positive
from gpzoo.models.modules import Network
from gpzoo.structured import Kronecker

#: Rows on whose features initial values are found.
_START_ROWS = 5000

#: Where squashed features lie, for ``InducingGrid(64, BOUNDS)``.
BOUNDS = (-1.0, 1.0)


def deep_kernel_gp(
    X: Array,
    y: Array | None = None,
    *,
    network: Network,
    subsets: Sequence[Sequence[int]] | None = None,
    likelihood: Callable[[Any], Distribution] = Softmax,
    num_outputs: int | None = None,
    kernel: Callable[[str, Array], Kernel] | None = None,
    num_data: int | None = None,
    training: bool = False,
) -> None:
    """``p(y | A g(h(x)))``: GPs ``g_k`` on subsets of a network's features ``h``, linearly mixed (section 3, eq. 1).

    With ``InducingGuide(program, InducingGrid(64))`` every GP is interpolated from a grid (eq. 2), with
    ``InducingGuide(program, kmeans(100))`` the kernel is exact. Features are shifted, scaled and squashed to (-1, 1)
    with ``tanh``, bounds that do not depend on the batch. Shifts and scales are trained, from
    :func:`feature_range` or 0 and 1.

    Args:
        X: inputs ``[N, ...]``.
        y: what the likelihood is of, such as class labels ``[N]``.
        network: of the inputs, see :func:`~gpzoo.models.network_of`.
        subsets: columns of the features that each GP sees, all of one length; ``None`` for a GP on every feature.
        likelihood: distribution of ``y`` given the mixed functions ``[N, num_outputs]``.
        num_outputs: functions after mixing; ``None`` for as many as there are GPs.
        kernel: makes the kernels from the site's name and the inputs ``[D, N, G]``; ``None`` for an RBF of its own for
            every GP.
        num_data: rows of the whole data, if ``X`` is a minibatch.
        training: whether the network is in training (batch normalisation, dropout): pass ``training=True`` to ``fit``.

    Raises:
        ValueError: if the features are not ``[N, q]``, or subsets do not fit them or differ in length.
    """
    checks.finite("X", X)
    h = network(X, training)
    if jnp.ndim(h) != 2 or h.shape[0] != X.shape[0]:
        raise ValueError(f"The network must return features [N, q] = [{X.shape[0]}, q], got shape {jnp.shape(h)}.")
    q = h.shape[1]
    columns = _columns(subsets, q)
    shift = numpyro.param("feature_shift", jnp.zeros(q, h.dtype))
    scale = numpyro.param("feature_scale", jnp.ones(q, h.dtype), constraint=constraints.softplus_positive)
    squashed = jnp.tanh((h - shift) / scale)
    inputs = jnp.moveaxis(squashed[:, columns], 1, 0)
    D = len(columns)
    f = numpyro.sample("f", GaussianProcess((kernel or rbf_each)("f", inputs), inputs, num_outputs=D))
    width = D if num_outputs is None else checks.positive_int("num_outputs", num_outputs)
    A = numpyro.param("mixing", jnp.eye(D, width, dtype=h.dtype))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", likelihood(f @ A), obs=y)


def network_classifier(
    X: Array, y: Array | None = None, *, network: Network, num_data: int | None = None, training: bool = False
) -> None:
    """The network alone: its features are the logits of a softmax (section 5, "Model Training").

    Args:
        X: inputs ``[N, ...]``.
        y: class labels ``[N]``.
        network: as for :func:`deep_kernel_gp`; one feature per class.
        num_data: rows of the whole data, if ``X`` is a minibatch.
        training: as for :func:`deep_kernel_gp`.
    """
    checks.finite("X", X)
    h = network(X, training)
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Softmax(h), obs=y)


def rbf_each(name: str, X: Array, *, variance: float = 1.0, lengthscale: float = 0.5) -> RBF:
    """An RBF for every output of inputs ``[D, N, G]``, with parameters ``<name>_variance`` and ``<name>_lengthscale``.

    Args:
        name: prefix of the parameters.
        X: the inputs, for their shape and precision.
        variance: where the variances start.
        lengthscale: where the lengthscales start.
    """
    D, _, G = X.shape
    return RBF(
        positive(f"{name}_variance", jnp.full(D, variance, X.dtype), X),
        positive(f"{name}_lengthscale", jnp.full((D, G), lengthscale, X.dtype), X),
    )


def feature_range(features: Any, spread: float = 2.0) -> dict[str, Array]:
    """Initial values of shift and scale that put features well inside the bounds.

    Args:
        features: of training inputs, ``[N, q]``.
        spread: standard deviations of a feature that become one unit before ``tanh``.

    Returns:
        ``feature_shift`` and ``feature_scale``, ``[q]`` each, for ``fit(..., init_params=...)``.
    """
    features = np.asarray(features)
    deviation = np.maximum(features.std(axis=0), np.asarray(1e-3, features.dtype))
    return {
        "feature_shift": jnp.asarray(features.mean(axis=0)),
        "feature_scale": jnp.asarray(spread * deviation).astype(features.dtype),
    }


class DeepKernelFit(NamedTuple):
    """What :func:`fit_deep_kernel` returns.

    Attributes:
        network: result of training the network alone; ``None`` where its parameters were given.
        features: result of training GPs on the features of that network (the baseline DNN+GP).
        joint: result of training everything.
        model: the program, :func:`deep_kernel_gp` with its arguments.
        guide: its guide; ``predict(key, model, X, guide=guide, params=joint.params)``.
    """

    network: FitResult | None
    features: FitResult
    joint: FitResult
    model: Callable
    guide: InducingGuide


def fit_deep_kernel(
    rng_key: Array,
    X: Array,
    y: Array,
    *,
    network: Network,
    inducing: Any = None,
    num_steps: tuple[int, int, int] = (1000, 500, 1000),
    learning_rates: tuple[float, float, float] = (1e-3, 1e-2, 1e-3),
    weight_decay: float = 0.0,
    pretrained: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | str = True,
    **arguments: Any,
) -> DeepKernelFit:
    """Train a network, then GPs on its features, then both together (section 5, "Model Training").

    Adam, with a cosine from each rate to a hundredth of it, and weight decay for the network. Every GP starts as the
    feature that it sees first, so that the program begins where the network ended (on a grid of more than 256 points it
    starts at zero).

    Args:
        rng_key: fixes everything random.
        X: inputs ``[N, ...]``.
        y: class labels ``[N]``.
        network: of the inputs, one feature per class, see :func:`~gpzoo.models.network_of`.
        inducing: inducing variables or what initialises them, which sees the features of 5,000 rows; ``None`` for a
            grid of 64 points for every GP.
        num_steps: of the network alone, of GPs on its features, of both together.
        learning_rates: of the network alone; of the GPs; of the network together with them.
        weight_decay: by which all parameters of the network shrink in every step, times its rate (AdamW).
        pretrained: parameters of a network trained before, ``.network.params`` of another call; the first phase is left
            out.
        batch_size: rows per minibatch; ``None`` for all.
        checkpoint: folder for the checkpoints of all phases; a call that was stopped goes on from there.
        progress: show progress bars; a string is shown as the training's name.
        **arguments: further ones of :func:`deep_kernel_gp`, such as ``subsets`` and ``num_outputs``.

    Raises:
        ValueError: for no inputs, inputs that are not finite, a negative ``weight_decay``, and as
            :func:`~gpzoo.inference.fit` and the programs.

    Whatever error it ends in has the phases before, ``"network"`` and ``"features"``, as ``.finished``.
    """
    X, y, rng_key, batch_size = _checked(rng_key, X, y, batch_size, weight_decay)
    if len(num_steps) != 3 or len(learning_rates) != 3:
        raise ValueError(
            "num_steps and learning_rates must be three, of the network, of GPs on its features and of both; got "
            f"{num_steps} and {learning_rates}."
        )
    for steps, rate in zip(num_steps, learning_rates, strict=True):
        checks.count("num_steps", steps)
        checks.positive_number("learning_rates", rate)
    keys = dict(zip(("network", "features", "joint"), random.split(rng_key, 3), strict=True))
    lengths = dict(zip(keys, num_steps, strict=True))
    of_network, of_gps, together = learning_rates
    options = {"batch_size": batch_size, "num_data": len(X)}

    def named(phase: str) -> bool | str:
        phase = {"network": "network alone", "features": "GPs on its features", "joint": "network and GPs"}[phase]
        return f"{progress}: {phase}" if isinstance(progress, str) else progress and phase

    def folder(phase: str) -> Path | None:
        return None if checkpoint is None else Path(checkpoint) / phase

    alone, finished = None, {}
    if pretrained is None:
        common = {"num_steps": lengths["network"], "learning_rate": of_network, "checkpoint": folder("network")}
        common |= {"batch_size": batch_size, "weight_decay": weight_decay, "progress": named("network")}
        alone = finished["network"] = fit_network(keys["network"], X, y, network=network, **common)
        pretrained = alone.params
    model = partial(deep_kernel_gp, network=network, **arguments)
    guide = InducingGuide(model, InducingGrid(64, BOUNDS) if inducing is None else inducing)

    def phase(name: str, start: Mapping[str, Any], network_rule: optax.GradientTransformation, training: bool) -> Any:
        rules = {"network": network_rule, "others": _adam(of_gps, lengths[name])}
        kinds = lambda params: {key: "network" if key in pretrained else "others" for key in params}  # noqa: E731
        svi = SVI(model, guide, optax.multi_transform(rules, kinds), GaussianProcessELBO())
        own = {"init_params": dict(start), "training": training, "checkpoint": folder(name), "progress": named(name)}
        return fit(svi, keys[name], lengths[name], X, y, **own, **options)

    with keeping_finished(finished, "Training ended in a later phase."):
        some = np.random.RandomState(0).permutation(len(X))[:_START_ROWS]
        few, labels = X[some], y[some]
        given = {**pretrained, **feature_range(features_of(network, pretrained, few))}
        start = guide.init_params(keys["features"], few, labels, given=given, num_data=len(X))
        start = _as_the_network(guide, start, X)
        # The network is out of training here: its running statistics stay as well.
        features = finished["features"] = phase("features", start, optax.set_to_zero(), False)
        joint = phase("joint", features.params, _adam(together, lengths["joint"], weight_decay), True)
    return DeepKernelFit(alone, features, joint, model, guide)


def fit_network(
    rng_key: Array,
    X: Array,
    y: Array,
    *,
    network: Network,
    num_steps: int = 1000,
    learning_rate: float = 1e-3,
    weight_decay: float = 0.0,
    batch_size: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | str = True,
) -> FitResult:
    """Train :func:`network_classifier`, the network alone; arguments as for :func:`fit_deep_kernel`."""
    X, y, rng_key, batch_size = _checked(rng_key, X, y, batch_size, weight_decay)
    checks.count("num_steps", num_steps)
    checks.positive_number("learning_rate", learning_rate)
    model = partial(network_classifier, network=network)
    X, y = jnp.asarray(X), jnp.asarray(y)

    def look() -> Array:
        site = handlers.trace(handlers.seed(model, 0)).get_trace(X, y)["y"]
        return site["fn"].log_prob(site["value"])

    # The likelihood looks at all labels, which are numbers here; nothing is computed.
    jax.eval_shape(look)
    svi = SVI(model, _no_guide, _adam(learning_rate, num_steps, weight_decay), Trace_ELBO())
    options = {"batch_size": batch_size, "num_data": len(X), "checkpoint": checkpoint, "progress": progress}
    return fit(svi, rng_key, num_steps, X, y, training=True, **options)


def _checked(rng_key: Array, X: Any, y: Any, batch_size: int | None, weight_decay: float) -> tuple:
    """Data, key and rows per minibatch, when they have been checked."""
    (X, y), _ = checks.arguments(("X", "y"), (X, y), {})
    checks.positive_number("weight_decay", weight_decay, or_zero=True)
    return X, y, checks.rng_key(rng_key), None if batch_size is None else checks.positive_int("batch_size", batch_size)


def _adam(rate: float, steps: int, weight_decay: float = 0.0) -> optax.GradientTransformation:
    return optax.adamw(optax.cosine_decay_schedule(rate, max(1, steps), alpha=0.01), weight_decay=weight_decay)


def _as_the_network(guide: InducingGuide, params: dict[str, Any], X: Array) -> dict[str, Any]:
    """Parameters with which every GP is the feature that it sees first, so that the program predicts as the network.

    From there training improves on the network; from zero it would have to learn again what the network knows.
    """
    q = guide.posterior(params, X[:2], rng_key=random.key(0))["f"]
    if q.L is None:
        return params
    Z = q.inducing.points(q.prior.X.dtype) if isinstance(q.inducing, InducingGrid) else q.inducing.Z
    columns = _columns(guide.model.keywords.get("subsets"), params["feature_shift"].shape[0])[:, 0]
    inner = jnp.arctanh(jnp.clip(jnp.atleast_2d(Z[..., 0]), -0.98, 0.98))
    u = (params["feature_shift"][columns] + params["feature_scale"][columns] * inner.T).astype(inner.dtype)
    scale, params = jnp.mean(jnp.square(u), axis=0), dict(params)
    if "f_variance" in params:  # a kernel of one's own starts as it is
        params["f_variance"] = jnp.broadcast_to(scale, params["f_variance"].shape)
    q = guide.posterior(params, X[:2], rng_key=random.key(0))["f"]
    L = q.L.factors[0] if isinstance(q.L, Kronecker) else q.L
    # What a GP with this prior makes of noisy values: their corner at the bounds itself would be dear.
    K = linalg.matmul(L, L.mT) + (1e-2 * scale)[:, None, None] * jnp.eye(L.shape[-1], dtype=L.dtype)
    v = linalg.matmul(L.mT, jnp.linalg.solve(K, u.T[..., None]))[..., 0].T
    return params | {"f_mean": v, "f_scale": 0.1 * params["f_scale"]}


def _no_guide(*args: Any, **kwargs: Any) -> None:
    """The network alone has nothing latent."""


def features_of(network: Network, params: Mapping[str, Any], X: Array, *, batch_size: int = 5000) -> np.ndarray:
    """Features of inputs by a trained network, which is not in training now.

    Args:
        network: see :func:`~gpzoo.models.network_of`.
        params: with the network's parameters and state, such as a :class:`~gpzoo.inference.FitResult`'s.
        X: inputs ``[N, ...]``.
        batch_size: rows at a time.

    Returns:
        ``[N, q]``.
    """

    @jax.jit
    def of_batch(X: Array, params: dict) -> Array:
        with handlers.block(), handlers.seed(rng_seed=0), handlers.substitute(data=params):
            return network(X, False)

    starts = range(0, len(X), batch_size)
    return np.concatenate([np.asarray(of_batch(X[start : start + batch_size], dict(params))) for start in starts])


def _columns(subsets: Sequence[Sequence[int]] | None, q: int) -> np.ndarray:
    """Columns of each GP, ``[D, G]``."""
    if subsets is None:
        return np.arange(q)[:, None]
    lengths = {len(subset) for subset in subsets}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"subsets must be sequences of feature columns of one length, got {subsets}.")
    columns = np.asarray(subsets)
    if columns.dtype.kind not in "iu" or columns.min() < 0 or columns.max() >= q:
        raise ValueError(f"subsets must name columns 0..{q - 1} of the network's {q} features, got {subsets}.")
    return columns
