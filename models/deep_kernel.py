"""Stochastic variational deep kernel learning (Wilson et al. 2016): GPs on the features of a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array
from numpyro.distributions import Distribution, constraints

from gpzoo import _checks as checks
from gpzoo._types import ArrayLike
from gpzoo.kernels import RBF, Kernel
from gpzoo.likelihoods import Softmax
from gpzoo.models.modules import Network
from gpzoo.models.parameters import positive
from gpzoo.processes.process import GaussianProcess


def deep_kernel_gp(
    X: Array,
    y: Array | None = None,
    *,
    network: Network,
    subsets: Sequence[Sequence[int]] | None = None,
    likelihood: Callable[[Any], Distribution] = Softmax,
    num_outputs: int | None = None,
    kernel: Callable[[str, Array], Kernel] | None = None,
    jitter: float | None = None,
    num_data: int | None = None,
    training: bool = False,
) -> None:
    """Deep kernel learning, ``p(y | A g(h(x)))``: weighted sums of GPs ``g_k`` on the features ``h`` of a network.

    Each GP uses a subset of the features. Each row of the trained matrix ``A`` has the weights of one sum. See Wilson,
    Hu, Salakhutdinov and Xing 2016, *Stochastic variational deep kernel learning*, section 3, eq. 1. With
    ``InducingGuide(program, InducingGrid(64))``, every GP is interpolated from a grid (eq. 2). With
    ``InducingGuide(program, kmeans(100))``, the kernel is exact. Features are shifted, scaled and squashed to (-1, 1)
    with ``tanh``, so that their bounds do not depend on the batch. Shifts and scales are trained. They start at the
    values of :func:`feature_range`, or at 0 and 1.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from flax import nnx
        >>> from gpzoo import InducingGrid
        >>> from gpzoo.inference import InducingGuide
        >>> from gpzoo.models import deep_kernel_gp, network_of
        >>> network = network_of(nnx.Linear(4, 2, rngs=nnx.Rngs(0)))
        >>> guide = InducingGuide(partial(deep_kernel_gp, network=network), InducingGrid(16))
        >>> X, y = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32), np.zeros(10, np.int32)
        >>> guide.init_params(jax.random.key(0), X, y)["f_mean"].shape
        (16, 2)

    Args:
        X: inputs ``[N, ...]``.
        y: observations, such as class labels ``[N]``.
        network: network of the inputs, see :func:`~gpzoo.models.network_of`.
        subsets: columns of the features for each GP, the same number for all GPs; ``None`` for one GP per feature.
        likelihood: distribution of ``y`` given the values of ``A g``, ``[N, num_outputs]``.
        num_outputs: number of weighted sums; ``None`` for the number of GPs.
        kernel: a function that makes the kernels from the name of the site and the inputs ``[D, N, G]``; ``None`` for
            one RBF per GP.
        jitter: absolute jitter on covariance diagonals; ``None`` for the relative default.
        num_data: number of rows of the whole data, if ``X`` is a minibatch.
        training: whether the network is in training mode (batch normalisation, dropout). For ``fit``, pass
            ``model_kwargs={"training": True}``.

    Raises:
        ValueError: if the features are not ``[N, q]``, if subsets do not fit them, or if subsets differ in length.
    """
    checks.finite("X", X)
    h = network(X, training)
    good, wanted = jnp.ndim(h) == 2 and h.shape[0] == X.shape[0], f"return features [N, q] = [{X.shape[0]}, q]"
    checks.must(good, "The network", wanted, f"shape {jnp.shape(h)}")
    q = h.shape[1]
    columns = feature_columns(subsets, q)
    shift = numpyro.param("feature_shift", jnp.zeros(q, h.dtype))
    scale = numpyro.param("feature_scale", jnp.ones(q, h.dtype), constraint=constraints.softplus_positive)
    squashed = jnp.tanh((h - shift) / scale)
    inputs = jnp.moveaxis(squashed[:, columns], 1, 0)
    D = len(columns)
    f = numpyro.sample("f", GaussianProcess((kernel or rbf_each)("f", inputs), inputs, num_outputs=D, jitter=jitter))
    width = D if num_outputs is None else checks.positive_int("num_outputs", num_outputs)
    A = numpyro.param("mixing", jnp.eye(D, width, dtype=h.dtype))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", likelihood(f @ A), obs=y)


def network_classifier(
    X: Array,
    y: Array | None = None,
    *,
    network: Network,
    likelihood: Callable[[Any], Distribution] = Softmax,
    num_data: int | None = None,
    training: bool = False,
) -> None:
    """A network as classifier, without GPs. Its features are the logits of a softmax.

    This program is the first phase of training in Wilson, Hu, Salakhutdinov and Xing 2016, section 5, "Model Training".

    Example:
        >>> import numpy as np
        >>> from flax import nnx
        >>> from numpyro import handlers
        >>> from gpzoo.models import network_classifier, network_of
        >>> network = network_of(nnx.Linear(4, 3, rngs=nnx.Rngs(0)))
        >>> X = np.zeros((5, 4), np.float32)
        >>> with handlers.seed(rng_seed=0), handlers.trace() as sites:
        ...     network_classifier(X, network=network)
        >>> sites["y"]["fn"].probs.shape
        (5, 3)

    Args:
        X: inputs ``[N, ...]``.
        y: class labels ``[N]``.
        network: as for :func:`deep_kernel_gp`; one feature per class.
        likelihood: distribution of ``y`` given the features ``[N, q]``.
        num_data: number of rows of the whole data, if ``X`` is a minibatch.
        training: as for :func:`deep_kernel_gp`.
    """
    checks.finite("X", X)
    h = network(X, training)
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", likelihood(h), obs=y)


def rbf_each(name: str, X: Array, *, variance: float = 1.0, lengthscale: float = 0.5) -> RBF:
    """An RBF with parameters ``<name>_variance`` and ``<name>_lengthscale``, for each GP on inputs ``[D, N, G]``.

    Args:
        name: prefix of the parameters.
        X: the inputs, for their shape and precision.
        variance: initial variances.
        lengthscale: initial lengthscales.
    """
    D, _, G = X.shape
    return RBF(
        positive(f"{name}_variance", jnp.full(D, variance, X.dtype), X),
        positive(f"{name}_lengthscale", jnp.full((D, G), lengthscale, X.dtype), X),
    )


def feature_range(features: ArrayLike, spread: float = 2.0) -> dict[str, Array]:
    """Initial shifts and scales that put features inside the bounds -1 and 1, away from these bounds.

    Args:
        features: features of training inputs, ``[N, q]``.
        spread: number of standard deviations of a feature that become one unit before ``tanh``.

    Returns:
        ``feature_shift`` and ``feature_scale``, ``[q]`` each, for ``fit(..., init_params=...)``.
    """
    features = np.asarray(features)
    deviation = np.maximum(features.std(axis=0), np.asarray(1e-3, features.dtype))
    return {
        "feature_shift": jnp.asarray(features.mean(axis=0)),
        "feature_scale": jnp.asarray(spread * deviation).astype(features.dtype),
    }


def feature_columns(subsets: Sequence[Sequence[int]] | None, q: int) -> np.ndarray:
    """The feature columns of each GP, ``[D, G]``."""
    if subsets is None:
        return np.arange(q)[:, None]
    lengths = {len(subset) for subset in subsets}
    good = len(lengths) == 1 and 0 not in lengths
    checks.must(good, "subsets", "be sequences of feature columns of one length", str(subsets))
    columns = np.asarray(subsets)
    known = columns.dtype.kind in "iu" and columns.min() >= 0 and columns.max() < q
    checks.must(known, "subsets", f"name columns 0..{q - 1} of the network's {q} features", str(subsets))
    return columns
