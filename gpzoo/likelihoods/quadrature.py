"""One-dimensional Gaussian expectations, and the log normal cdf with gradients that are accurate in its tail."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import log_ndtr, logsumexp
from jaxtyping import Float

from gpzoo.linalg.operators import LOG_2PI
from gpzoo.processes.marginals import standard_deviation

# Below this value, eight terms of the normal cdf's asymptotic series are accurate to 1e-12.
_TAIL = -15.0


#: Nodes for a standard normal distribution and for functions such as ``exp``, which move its mass away from 0.
_EVEN = np.linspace(-10, 10, 641)


@functools.cache
def _rule(num_points: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.hermite.hermgauss(num_points)
    return nodes * np.sqrt(2.0), weights / np.sqrt(np.pi)


def normal_points(
    num_points: int, mean: Float[Array, "*#shape"], variance: Float[Array, "*#shape"]
) -> tuple[Float[Array, "{num_points} *shape"], Float[Array, "{num_points}"]]:
    """Nodes and weights of the Gauss-Hermite rule for ``N(mean, variance)``."""
    nodes, weights = _rule(num_points)
    return _spread(nodes, mean, variance), jnp.asarray(weights, jnp.result_type(mean))


def even_points(
    mean: Float[Array, "*#shape"], variance: Float[Array, "*#shape"]
) -> tuple[Float[Array, "_ *shape"], Float[Array, " _"]]:
    """Nodes and weights of a trapezoidal rule for ``N(mean, variance)``, for functions that may have steep steps."""
    weights = np.exp(-np.square(_EVEN) / 2)
    return _spread(_EVEN, mean, variance), jnp.asarray(weights / weights.sum(), jnp.result_type(mean))


def _spread(
    nodes: np.ndarray, mean: Float[Array, "*#shape"], variance: Float[Array, "*#shape"]
) -> Float[Array, "_ *shape"]:
    """Nodes for ``N(mean, variance)`` from nodes for a standard normal distribution."""
    columns = jnp.asarray(nodes, jnp.result_type(mean)).reshape(-1, *(1 for _ in mean.shape))
    return mean + standard_deviation(variance) * columns


def normal_log_density(square: Float[Array, "*#shape"], variance: Float[Array, "*#shape"]) -> Float[Array, "*shape"]:
    """The log density of a normal distribution, given the square of the distance from its mean."""
    return -0.5 * (LOG_2PI + jnp.log(variance) + square / variance)


def weighted_sum(weights: Float[Array, " H"], values: Float[Array, "H *shape"]) -> Float[Array, "*shape"]:
    """``sum_h weights_h values_h`` over the leading axis, in full precision on every device."""
    return jnp.sum(jnp.reshape(weights, (-1,) + (1,) * (values.ndim - 1)) * values, axis=0)


def log_weighted_mean(weights: Float[Array, " H"], log_values: Float[Array, "H *shape"]) -> Float[Array, "*shape"]:
    """``log sum_h weights_h exp(log_values_h)`` over the leading axis."""
    log_weights = jnp.log(weights)
    return logsumexp(jnp.reshape(log_weights, (-1,) + (1,) * (log_values.ndim - 1)) + log_values, axis=0)


def log_mean_exp(log_values: Float[Array, "H *shape"]) -> Float[Array, "*shape"]:
    """Logarithm of the mean of ``exp(log_values)`` over the leading axis."""
    return logsumexp(log_values, axis=0) - float(np.log(log_values.shape[0]))


#: Standard deviations that hold all of a normal distribution that counts.
_ALL = 8.0

#: A standard normal's values ``_BEND sinh(t)`` on a grid of ``t``, as far as 96, and how often the grid is refined.
_BEND, _COARSE, _REFINED = 4.0, np.arange(-31, 32) / 8, 6

#: Distances from the largest density, and how far they count: their weight falls as ``exp(-(distance / _NEAR)^4)``.
_FINEST, _STEP, _NEAR = 2e-4, 0.15, 0.25
_DISTANCES = _FINEST * np.sinh(_STEP * np.arange(-58, 59))

#: All other values, as shares of their range: a thirty-second apart, or more if the largest density is far outside.
_SHARES = np.linspace(0, 1, 513)


def log_expectation(log_density: Callable[[Array], Array], shape: tuple[int, ...], dtype: Any) -> Any:
    """``log E[exp(log_density(z))]`` of a standard normal ``z``, for densities that may be much narrower than it.

    A Gauss-Hermite rule would need a node in every peak. Here, the nodes grow denser towards the largest density, with
    distances from it proportional to ``sinh(t)`` (a trapezoidal rule in ``t``). So this peak is resolved down to a
    width of a thousandth, also at data that are up to 96 standard deviations away. Farther from it, nodes are a
    thirty-second apart, for other peaks of that width.

    Args:
        log_density: a function of an array, entry by entry.
        shape: shape of the array, one entry for each expectation.
        dtype: dtype of the numbers.
    """

    def log_densities(z: Float[Array, "H *shape"]) -> Float[Array, "H *shape"]:
        return jax.vmap(log_density)(z)

    def best(t: Float[Array, "H *shape"]) -> Float[Array, "*shape"]:
        z = _BEND * jnp.sinh(t)
        # Up to 8, a narrow density must be found although a wide tail elsewhere has a larger product. Farther outside,
        # the largest product counts.
        found = log_densities(z) - jnp.where(jnp.abs(z) <= _ALL, jnp.square(z) / 8, jnp.square(z) / 2 - _ALL**2 * 3 / 8)
        at = jnp.argmax(jnp.where(jnp.isnan(found), -jnp.inf, found), axis=0)
        return jnp.take_along_axis(t, at[None], axis=0)[0]

    def entries(x: np.ndarray) -> Float[Array, "H *shape"]:
        return jnp.broadcast_to(jnp.asarray(x, dtype).reshape(-1, *(1 for _ in shape)), (len(x), *shape))

    centre, width = best(entries(_COARSE)), _COARSE[1] - _COARSE[0]
    for _ in range(_REFINED):
        centre, width = best(centre + entries(width * np.linspace(-1, 1, 9))), width / 4
    centre = lax.stop_gradient(_BEND * jnp.sinh(centre))
    outside = jnp.where(jnp.abs(centre) <= _ALL, 0, centre)
    low, high = jnp.minimum(outside, 0) - _ALL, jnp.maximum(outside, 0) + _ALL
    grid = low + (high - low) * entries(_SHARES)
    far = (1 - jnp.exp(-jnp.square(jnp.square((grid - centre) / _NEAR)))) * (high - low) / (len(_SHARES) - 1)
    near = _STEP * np.hypot(_DISTANCES, _FINEST) * np.exp(-((_DISTANCES / _NEAR) ** 4))
    z = jnp.concatenate([centre + entries(_DISTANCES), grid])
    weights = jnp.concatenate([entries(near), far])
    return logsumexp(log_densities(z) - jnp.square(z) / 2 - LOG_2PI / 2, axis=0, b=weights)


def log_mean_of_link(
    log_link: Callable[[Array], Array], mean: Float[Array, "*#shape"], variance: Float[Array, "*#shape"]
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """``log E[link(f)]`` and ``log(1 - E[link(f)])`` of ``f ~ N(mean, variance)``, for ``link(-f) = 1 - link(f)``."""
    mean, scale = jnp.broadcast_arrays(mean, standard_deviation(variance))
    below = jnp.where(mean > 0, -mean, mean)  # the smaller of the two: its largest density is at the step of the link
    small = log_expectation(lambda z: log_link(below + scale * z), mean.shape, mean.dtype)
    large = jnp.log1p(-jnp.exp(small))
    return jnp.where(mean > 0, large, small), jnp.where(mean > 0, small, large)


def log_normal_cdf(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``log Phi(x)``; value and gradient are accurate far into the lower tail, in float32 too.

    The derivative of JAX computes ``x^2 / 2 + log Phi(x)``. In float32, this sum loses all digits near ``x = -1e4``.
    """
    tail = jnp.minimum(x, _TAIL)
    inverse_square = 1 / jnp.square(tail)
    series = jnp.zeros_like(x)
    for k in range(8, 0, -1):
        series = -(2 * k - 1) * inverse_square * (1 + series)
    lower = -0.5 * jnp.square(tail) - jnp.log(-tail) - 0.5 * LOG_2PI + jnp.log1p(series)
    return jnp.where(x < _TAIL, lower, log_ndtr(jnp.maximum(x, _TAIL)))
