"""Training of deep kernels: first the network alone, then GPs on its features, then both (Wilson et al. 2016)."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, random
from numpyro import handlers
from numpyro.infer import SVI, Trace_ELBO

from gpzoo import _checks as checks
from gpzoo._types import ArrayLike
from gpzoo.errors import keeping_finished
from gpzoo.inducing.grid import InducingGrid
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, fit
from gpzoo.inference.guides.options import Inducing
from gpzoo.inference.programs.calls import entry_point
from gpzoo.linalg.operators import KroneckerProduct, kronecker_matmul
from gpzoo.models.deep_kernel import deep_kernel_gp, feature_columns, feature_range, network_classifier
from gpzoo.models.modules import Network

#: Number of rows whose features give initial values.
_START_ROWS = 5000

#: Range of the squashed features, for ``InducingGrid(64, BOUNDS)``.
BOUNDS = (-1.0, 1.0)


#: Checked data, on the host or on a device.
Rows: TypeAlias = np.ndarray | Array


class DeepKernelFit(NamedTuple):
    """The three trained models of :func:`fit_deep_kernel`.

    Attributes:
        network: the network, trained without GPs. It has no losses if its parameters were given.
        features: GPs trained on the features of this network (the baseline DNN+GP of Wilson et al. 2016).
        joint: network and GPs trained together: ``joint.predict(key, X)``. The program of ``joint`` and of ``features``
            is :func:`deep_kernel_gp` with its arguments.
    """

    network: Trained
    features: Trained
    joint: Trained


@entry_point
def fit_deep_kernel(
    rng_key: Array,
    X: ArrayLike,
    y: ArrayLike,
    *,
    network: Network,
    inducing: Inducing | None = None,
    num_steps: tuple[int, int, int] = (1000, 500, 1000),
    learning_rates: tuple[float, float, float] = (1e-3, 1e-2, 1e-3),
    weight_decay: float = 0.0,
    pretrained: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    one_draw: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | str = True,
    model_kwargs: Mapping[str, Any] | None = None,
) -> DeepKernelFit:
    """Train a network, then GPs on its features, then both together.

    See Wilson, Hu, Salakhutdinov and Xing 2016, *Stochastic variational deep kernel learning*, section 5, "Model
    Training". The optimiser is Adam. Each learning rate decays along a cosine to a hundredth of its start, and the
    network has weight decay. Every GP starts as a function that returns the first of its features. The second phase
    therefore starts with the predictions of the network. (On an axis of over 256 points, GPs start at zero.)

    Example:
        >>> import jax, numpy as np
        >>> from flax import nnx
        >>> from gpzoo.models import fit_deep_kernel, network_of
        >>> X = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)
        >>> y = (X[:, 0] > 0).astype(np.int32)
        >>> network = network_of(nnx.Linear(4, 2, rngs=nnx.Rngs(0)))
        >>> found = fit_deep_kernel(jax.random.key(0), X, y, network=network, num_steps=(3, 3, 3), progress=False)
        >>> found._fields
        ('network', 'features', 'joint')

    Args:
        rng_key: random key, which determines all random numbers.
        X: inputs ``[N, ...]``.
        y: class labels ``[N]``.
        network: network of the inputs, with one feature per class, see :func:`~gpzoo.models.network_of`.
        inducing: inducing variables, or their initialiser, which receives the features of 5,000 rows; ``None`` for a
            grid of 64 points for every GP.
        num_steps: number of steps for the network alone, for GPs on its features, and for both together.
        learning_rates: learning rates of the network alone, of the GPs, and of the network when both are trained
            together.
        weight_decay: in every step, the parameters of the network shrink by this factor times the learning rate
            (AdamW).
        pretrained: parameters of a trained network, ``.network.params`` of another call. The first phase is then left
            out.
        batch_size: rows per minibatch; ``None`` for all rows.
        one_draw: whether a step takes one draw of ``u``, from which all rows of the minibatch are interpolated, as in
            the paper (section 4). Otherwise each row has its own draws from its marginal, which have less noise.
            Predictions use marginals in both cases.
        checkpoint: folder for the checkpoints of all phases. A stopped call continues from them.
        progress: whether to show progress bars; a string is also shown, as the name of the training.
        model_kwargs: further arguments of :func:`deep_kernel_gp`, such as ``subsets`` and ``num_outputs``.

    Raises:
        ValueError: if inputs are empty or not finite, or if ``weight_decay`` is negative; see also
            :func:`~gpzoo.inference.fit` and the programs.

    If a later phase fails, the attribute ``finished`` of the error has the results of the finished phases,
    ``"network"`` and ``"features"``.
    """
    (X, y), rng_key, batch_size, arguments = _checked(rng_key, X, y, batch_size, weight_decay, model_kwargs)
    for name, each in (("num_steps", num_steps), ("learning_rates", learning_rates)):
        three = "be three numbers, for the network, for GPs on its features and for both;"
        checks.must(isinstance(each, Sequence) and len(each) == 3, name, three, repr(each))
    for steps, rate in zip(num_steps, learning_rates, strict=True):
        checks.count("num_steps", steps)
        checks.positive_number("learning_rates", rate)
    num_data = len(X)
    keys: dict[str, Array] = dict(zip(("network", "features", "joint"), random.split(rng_key, 3), strict=True))
    lengths = dict(zip(keys, num_steps, strict=True))
    of_network, of_gps, together = learning_rates

    def named(phase: str) -> bool | str:
        phase = {"network": "network alone", "features": "GPs on its features", "joint": "network and GPs"}[phase]
        return f"{progress}: {phase}" if isinstance(progress, str) else progress and phase

    def folder(phase: str) -> Path | None:
        return None if checkpoint is None else Path(checkpoint) / phase

    finished: dict[str, Trained] = {}
    if pretrained is None:
        common = {"num_steps": lengths["network"], "learning_rate": of_network, "checkpoint": folder("network")}
        common |= {"batch_size": batch_size, "weight_decay": weight_decay, "progress": named("network")}
        alone = finished["network"] = fit_network(keys["network"], X, y, network=network, **common)
    else:
        alone = Trained(partial(network_classifier, network=network), _no_guide, dict(pretrained))
    model = partial(deep_kernel_gp, network=network, **arguments)
    by_row = InducingGuide(model, InducingGrid(64, BOUNDS) if inducing is None else inducing)
    guide = InducingGuide(model, by_row.inducing, joint=("f",)) if one_draw else by_row

    def phase(
        name: str, start: Mapping[str, Any], network_rule: optax.GradientTransformation, training: bool
    ) -> Trained:
        rules: dict[Hashable, optax.GradientTransformation]
        rules = {"network": network_rule, "others": _adam(of_gps, lengths[name])}
        kinds = lambda params: {key: "network" if key in alone.params else "others" for key in params}  # noqa: E731
        svi = SVI(model, guide, optax.multi_transform(rules, kinds), GaussianProcessELBO())
        program = {"num_data": num_data, "training": training}
        own = {"init_params": dict(start), "checkpoint": folder(name), "progress": named(name)}
        trained = fit(keys[name], svi, lengths[name], X, y, batch_size=batch_size, model_kwargs=program, **own)
        return replace(trained, guide=by_row) if one_draw else trained

    with keeping_finished(finished, "Training ended in a later phase."):
        some = np.random.RandomState(0).permutation(num_data)[:_START_ROWS]
        few, labels = X[some], y[some]
        given = {**alone.params, **feature_range(features_of(network, alone.params, few))}
        start = guide.init_params(keys["features"], few, labels, given=given, model_kwargs={"num_data": num_data})
        start = _as_the_network(guide, start, X)
        by_row.setup(few, labels, model_kwargs={"num_data": num_data})
        # The network is not in training mode, so that its running statistics also stay fixed.
        features = finished["features"] = phase("features", start, optax.set_to_zero(), False)
        joint = phase("joint", features.params, _adam(together, lengths["joint"], weight_decay), True)
    return DeepKernelFit(alone, features, joint)


@entry_point
def fit_network(
    rng_key: Array,
    X: ArrayLike,
    y: ArrayLike,
    *,
    network: Network,
    num_steps: int = 1000,
    learning_rate: float = 1e-3,
    weight_decay: float = 0.0,
    batch_size: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | str = True,
) -> Trained:
    """Train :func:`network_classifier`, which is the network alone. Arguments are as for :func:`fit_deep_kernel`.

    Example:
        >>> import jax, numpy as np
        >>> from flax import nnx
        >>> from gpzoo.models import fit_network, network_of
        >>> X = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)
        >>> y = (X[:, 0] > 0).astype(np.int32)
        >>> network = network_of(nnx.Linear(4, 2, rngs=nnx.Rngs(0)))
        >>> alone = fit_network(jax.random.key(0), X, y, network=network, num_steps=3, progress=False)
        >>> alone.losses.shape, list(alone.params)
        ((3,), ['network$params'])
    """
    (X, y), rng_key, batch_size, _ = _checked(rng_key, X, y, batch_size, weight_decay)
    checks.count("num_steps", num_steps)
    checks.positive_number("learning_rate", learning_rate)
    model = partial(network_classifier, network=network)
    X, y = jnp.asarray(X), jnp.asarray(y)

    def look() -> Array:
        site = handlers.trace(handlers.seed(model, 0)).get_trace(X, y)["y"]
        return site["fn"].log_prob(site["value"])

    # The likelihood checks all labels, whose values are known here. Nothing is computed.
    jax.eval_shape(look)
    svi = SVI(model, _no_guide, _adam(learning_rate, num_steps, weight_decay), Trace_ELBO())
    options = {"batch_size": batch_size, "checkpoint": checkpoint, "progress": progress}
    program = {"num_data": len(X), "training": True}
    return fit(rng_key, svi, num_steps, X, y, model_kwargs=program, **options)


def _checked(
    rng_key: Array,
    X: Any,
    y: Any,
    batch_size: int | None,
    weight_decay: float,
    model_kwargs: Mapping[str, Any] | None = None,
) -> tuple[tuple[Rows, Rows], Array, int | None, dict[str, Any]]:
    """The checked data, key, rows per minibatch and arguments of the program."""
    (X, y), kwargs = checks.arguments(("X", "y"), (X, y), model_kwargs)
    checks.positive_number("weight_decay", weight_decay, or_zero=True)
    batch_size = None if batch_size is None else checks.positive_int("batch_size", batch_size)
    return (X, y), checks.rng_key(rng_key), batch_size, kwargs


def _adam(rate: float, steps: int, weight_decay: float = 0.0) -> optax.GradientTransformation:
    return optax.adamw(optax.cosine_decay_schedule(rate, max(1, steps), alpha=0.01), weight_decay=weight_decay)


def _as_the_network(guide: InducingGuide, params: dict[str, Any], X: Rows) -> dict[str, Any]:
    """Parameters with which every GP is the first feature that it sees, so that the program predicts like the network.

    Training then improves on the network. From zero, training would first have to find these predictions again.
    """
    return params | jax.jit(partial(_changed, guide))(params, X[:2])


def _changed(guide: InducingGuide, params: dict[str, Any], X: Array) -> dict[str, Array]:
    """The parameters that :func:`_as_the_network` changes; none if the prior is not factorised."""
    q = Trained(guide.model, guide, params).posterior(random.key(0), X)["f"]
    if q.conditional.L is None:
        return {}
    Z = q.inducing.points(q.prior.X.dtype) if isinstance(q.inducing, InducingGrid) else q.inducing.Z
    columns = feature_columns(guide.model.keywords.get("subsets"), params["feature_shift"].shape[0])[:, 0]
    inner = jnp.arctanh(jnp.clip(jnp.atleast_2d(Z[..., 0]), -0.98, 0.98))
    u = (params["feature_shift"][columns] + params["feature_scale"][columns] * inner.T).astype(inner.dtype)
    scale, changed = jnp.mean(jnp.square(u), axis=0), {}
    if "f_variance" in params:  # another kernel keeps its start
        changed["f_variance"] = jnp.broadcast_to(scale, params["f_variance"].shape)
    q = Trained(guide.model, guide, params | changed).posterior(random.key(0), X)["f"]
    L = q.conditional.L
    # The GP's smooth fit to noisy values, L^T (L L^T + noise)^-1 u, from the factors of a product of axes: under this
    # prior, the corner of the values at the bounds has a large norm.
    factors = L.factors if isinstance(L, KroneckerProduct) else (L,)
    left, deviations, right = zip(*map(jnp.linalg.svd, factors), strict=True)
    s = deviations[0]
    for each in deviations[1:]:
        s = (s[..., :, None] * each[..., None, :]).reshape(*s.shape[:-1], -1)
    turned = kronecker_matmul(tuple(U.mT for U in left), u.T[..., None])[..., 0]
    shrunk = turned * s / (jnp.square(s) + 1e-2 * scale[:, None])
    v = kronecker_matmul(tuple(V.mT for V in right), shrunk[..., None])[..., 0].T
    first, *rest = params["f_scale"] if isinstance(params["f_scale"], tuple) else (params["f_scale"],)
    return changed | {"f_mean": v, "f_scale": (0.1 * first, *rest) if rest else 0.1 * first}


def _no_guide(*args: Any, **kwargs: Any) -> None:
    """A guide that samples nothing, because the network alone has no latent variables."""


def features_of(network: Network, params: Mapping[str, Any], X: Rows, *, batch_size: int = 5000) -> np.ndarray:
    """Features of inputs from a trained network, outside training mode.

    Args:
        network: see :func:`~gpzoo.models.network_of`.
        params: parameters and state of the network. Other parameters are ignored, such as the GP parameters of a
            trained model.
        X: inputs ``[N, ...]``.
        batch_size: number of rows at a time.

    Returns:
        ``[N, q]``.
    """

    @jax.jit
    def of_batch(X: Array, params: dict) -> Array:
        with handlers.block(), handlers.seed(rng_seed=0), handlers.substitute(data=params):
            return network(X, False)

    starts = range(0, len(X), batch_size)
    return np.concatenate([np.asarray(of_batch(X[start : start + batch_size], dict(params))) for start in starts])
