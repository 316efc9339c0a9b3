"""Doubly stochastic deep Gaussian processes (Salimbeni and Deisenroth 2017): GPs whose inputs are other GPs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array
from numpyro.distributions import Distribution

from gpzoo import _checks as checks
from gpzoo._types import ArrayLike
from gpzoo.kernels import Kernel, White
from gpzoo.models.parameters import gaussian, positive, precision, rbf
from gpzoo.processes.marginals import draws
from gpzoo.processes.process import GaussianProcess


def deep_gp(
    X: Array,
    y: Array | None = None,
    *,
    layers: Sequence[ArrayLike] = (),
    propagate_inputs: bool = False,
    likelihood: Callable[[Any], Distribution] = gaussian,
    num_outputs: int | None = None,
    kernel: Callable[[str, Array], Kernel] = rbf,
    layer_noise: float | None = 1e-5,
    jitter: float | None = None,
    num_data: int | None = None,
) -> None:
    """A deep GP: ``h_l = GP_l(h_(l-1)) + h_(l-1) W_l``, ``h_0 = x``, and ``f = GP(h_L)`` under a likelihood.

    See Salimbeni and Deisenroth 2017, *Doubly stochastic variational inference for deep Gaussian processes*, eq. 1 and
    11. Inner layers are the sites ``layer_0``, ``layer_1``, ..., and the last layer is ``f``. For the posterior of the
    paper (eq. 12), use ``InducingGuide(deep_gp, kmeans(100), initial_scale=inner_scales(layers))``.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide
        >>> from gpzoo.models import deep_gp, inner_scales, linear_layers
        >>> X = np.random.default_rng(0).standard_normal((30, 3)).astype(np.float32)
        >>> layers = linear_layers(X, [2])
        >>> guide = InducingGuide(partial(deep_gp, layers=layers), kmeans(5), initial_scale=inner_scales(layers))
        >>> params = guide.init_params(jax.random.key(0), X, X[:, 0])
        >>> params["layer_0_inducing"].shape, params["f_inducing"].shape
        ((5, 3), (5, 2))

    Args:
        X: inputs ``[N, d]``, best standardised.
        y: observations ``[N, ...]``.
        layers: the inner layers, from the input upwards. A matrix ``W``, ``[width below, width]``, is a layer with the
            mean ``h W`` (see :func:`linear_layers`). A number is a layer of this width with mean zero. A layer with
            mean zero starts at zero everywhere, so initialisers find no distinct inputs for the next layer. Give the
            next layer ``InducingPoints``, unless ``propagate_inputs`` is true. Without inner layers, this is a single
            GP.
        propagate_inputs: whether every layer except the first also has ``x`` as an input (Duvenaud et al. 2014), as an
            alternative to linear means. The ``width below`` of these layers is then larger by ``d``.
        likelihood: distribution of ``y`` given ``f``, such as :class:`~gpzoo.likelihoods.Bernoulli` or
            :class:`~gpzoo.likelihoods.RobustMax`, or a function that declares its own parameters.
        num_outputs: number of functions in the last layer, if the likelihood needs ``[N, K]``; ``None`` for ``[N]``.
            By default each function has its own noise, see :func:`~gpzoo.models.gaussian`.
        kernel: a function that makes the kernel of a layer from the name of its site and its inputs.
        layer_noise: initial noise variance of inner layers, which is in their kernels (eq. 11); ``None`` for no noise.
        jitter: absolute jitter on covariance diagonals of every layer; ``None`` for the relative default.
        num_data: number of rows of the whole data, if ``X`` is a minibatch.

    Raises:
        ValueError: if a matrix among ``layers`` does not fit the layer below, or a width is not a positive integer.
    """
    h = X
    for i, layer in enumerate(layers):
        name = f"layer_{i}"
        covariance = kernel(name, h)
        if layer_noise is not None:
            covariance = covariance + White(positive(f"{name}_noise_variance", layer_noise, h))
        if np.ndim(layer) == 0:
            prior = GaussianProcess(
                covariance, h, num_outputs=checks.positive_int(f"layers[{i}]", layer), jitter=jitter
            )
        else:
            W = _checked_map(i, layer, h)
            prior = GaussianProcess(covariance, h, h @ W, num_outputs=W.shape[1], jitter=jitter)
        h = numpyro.sample(name, prior)
        if propagate_inputs:
            h = jnp.concatenate([X, draws(h)], axis=-1)
    f = numpyro.sample("f", GaussianProcess(kernel("f", h), h, num_outputs=num_outputs, jitter=jitter))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", likelihood(f), obs=y)


def linear_layers(X: ArrayLike, widths: Sequence[int]) -> tuple[Array, ...]:
    """Linear mean functions for inner layers of given widths, as in Salimbeni and Deisenroth 2017.

    The paper describes them under "Further Model Details". If a layer has the width of the layer below, its mean is the
    identity. A narrower layer projects its inputs onto their principal directions (right singular vectors, not
    centred). A wider layer pads its inputs with zeros.

    Example:
        >>> import numpy as np
        >>> from gpzoo.models import linear_layers
        >>> [maps.shape for maps in linear_layers(np.random.default_rng(0).standard_normal((20, 3)), [2, 2])]
        [(3, 2), (2, 2)]

    Args:
        X: training inputs ``[N, d]``; only their second moments are used.
        widths: widths of the inner layers, from the input upwards.

    Returns:
        One matrix ``[width below, width]`` per layer, in the precision of ``X``.

    Raises:
        ValueError: if ``X`` is not ``[N, d]``, is empty or not finite, or a width is not a positive integer.
    """
    X = checks.floating("X", X)
    checks.must(X.ndim == 2, "X", "be [N, d]", f"shape {X.shape}")
    checks.not_empty("X", X)
    checks.finite("X", X)
    parts = np.array_split(np.asarray(X), -(-len(X) // 2**16))
    moments = sum((np.asarray(part, np.float64).T @ part for part in parts), np.zeros((X.shape[1], X.shape[1])))
    maps = []
    for i, width in enumerate(widths):
        width, below = checks.positive_int(f"widths[{i}]", width), len(moments)
        if width >= below:
            W = np.eye(below, width)
        else:
            W = np.linalg.eigh(moments)[1][:, ::-1][:, :width]
            # The sign of an eigenvector is arbitrary, so its largest entry is made positive.
            W = W * np.sign(np.take_along_axis(W, np.abs(W).argmax(0)[None], 0))
        maps.append(jnp.asarray(W, precision(X)))
        moments = W.T @ moments @ W
    return tuple(maps)


def inner_scales(layers: Sequence[Any], scale: float = 1e-5) -> dict[str, float]:
    """Initial standard deviations of ``q(u)``, for ``InducingGuide(initial_scale=...)``: near zero in inner layers.

    Inner layers then start near their mean functions, as in Salimbeni and Deisenroth 2017 (supplement). The first steps
    of a training therefore change mainly the last layer.

    Example:
        >>> import numpy as np
        >>> from gpzoo.models import inner_scales, linear_layers
        >>> inner_scales(linear_layers(np.ones((5, 3), np.float32), [2, 2]))
        {'layer_0': 1e-05, 'layer_1': 1e-05}
    """
    return {f"layer_{i}": scale for i in range(len(layers))}


def _checked_map(i: int, W: ArrayLike, h: Array) -> Array:
    shape = np.shape(W)
    checks.refuse(
        len(shape) != 2 or shape[0] != h.shape[-1],
        f"layers[{i}] has shape {shape}, but the layer below it has width {h.shape[-1]}: a mean map is a "
        f"matrix [{h.shape[-1]}, width]. linear_layers(X, widths) makes them.",
    )
    return jnp.asarray(W).astype(precision(h))
