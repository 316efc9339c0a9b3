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


@functools.cache
def _rule(num_points: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.hermite.hermgauss(num_points)
    return nodes * np.sqrt(2.0), weights / np.sqrt(np.pi)


def gauss_hermite(num_points: int, dtype: Any) -> tuple[Float[Array, "{num_points}"], Float[Array, "{num_points}"]]:
    """Nodes and weights of the Gauss-Hermite rule for a standard normal: ``E[g(x)] = sum_h weights_h g(nodes_h)``.

    Args:
        num_points: number of nodes.
        dtype: dtype of the result.
    """
    nodes, weights = _rule(num_points)
    return jnp.asarray(nodes, dtype), jnp.asarray(weights, dtype)


def normal_points(
    num_points: int, mean: Float[Array, "*#shape"], variance: Float[Array, "*#shape"]
) -> tuple[Float[Array, "{num_points} *shape"], Float[Array, "{num_points}"]]:
    """Nodes and weights of the Gauss-Hermite rule for ``N(mean, variance)``; see :func:`gauss_hermite`."""
    nodes, weights = gauss_hermite(num_points, jnp.result_type(mean))
    return spread(nodes, mean, variance), weights


def normal_log_density(square: Float[Array, "*#shape"], variance: Float[Array, "*#shape"]) -> Float[Array, "*shape"]:
    """The log density of a normal distribution, given the square of the distance from its mean."""
    return -0.5 * (LOG_2PI + jnp.log(variance) + square / variance)


def spread(
    nodes: Float[Array, " H"], mean: Float[Array, "*#shape"], variance: Float[Array, "*#shape"]
) -> Float[Array, "H *shape"]:
    """Nodes for ``N(mean, variance)`` from nodes for a standard normal distribution."""
    nodes = jnp.reshape(nodes, (-1,) + (1,) * mean.ndim)
    return mean + standard_deviation(variance) * nodes


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


#: A standard normal's values ``_BEND sinh(t)`` on a grid of ``t``, as far as 96, and how often the grid is refined.
_BEND, _COARSE, _REFINED = 4.0, np.arange(-31, 32) / 8, 6

#: Standard deviations that hold all of a normal distribution that counts.
_ALL = 8.0

#: Distances from the largest density: fine at 0, and beyond ``2 _ALL``.
_FINEST, _STEP = 2e-4, 0.15
_DISTANCES = _FINEST * np.sinh(_STEP * np.arange(-81, 82))


def log_expectation(log_density: Callable[[Float[Array, " N"]], Float[Array, " N"]], num_rows: int, dtype: Any) -> Any:
    """``log E[exp(log_density(z))]`` of a standard normal ``z``, for densities that may be much narrower than it.

    A Gauss-Hermite rule would need a node in every peak. Here, the nodes grow denser towards the largest density, with
    distances from it proportional to ``sinh(t)`` (a trapezoidal rule in ``t``). So each width down to a thousandth is
    resolved, and so are densities of data that are many standard deviations away (up to 96).

    Args:
        log_density: a function of one number for each row.
        num_rows: number of rows ``N``.
        dtype: dtype of the numbers.
    """

    def log_densities(z: Float[Array, "H N"]) -> Float[Array, "H N"]:
        return jax.vmap(log_density)(z)

    def best(t: Float[Array, "H N"]) -> Float[Array, " N"]:
        z = _BEND * jnp.sinh(t)
        # Up to 8, a narrow density must be found although a wide tail elsewhere has a larger product. Farther outside,
        # the largest product counts.
        found = log_densities(z) - jnp.where(jnp.abs(z) <= _ALL, jnp.square(z) / 8, jnp.square(z) / 2 - _ALL**2 * 3 / 8)
        at = jnp.argmax(jnp.where(jnp.isnan(found), -jnp.inf, found), axis=0)
        return jnp.take_along_axis(t, at[None], axis=0)[0]

    def columns(x: np.ndarray) -> Float[Array, "H N"]:
        return jnp.broadcast_to(jnp.asarray(x, dtype)[:, None], (len(x), num_rows))

    centre, width = best(columns(_COARSE)), _COARSE[1] - _COARSE[0]
    for _ in range(_REFINED):
        centre, width = best(centre + columns(width * np.linspace(-1, 1, 9))), width / 4
    centre = lax.stop_gradient(_BEND * jnp.sinh(centre))
    z = centre + columns(_DISTANCES)
    last = jnp.abs(centre) + _ALL  # beyond it, where nothing counts, densities may overflow
    values = jnp.where(jnp.abs(z) <= last, log_densities(jnp.clip(z, -last, last)), -jnp.inf)
    weights = np.log(_STEP * np.hypot(_DISTANCES, _FINEST)) - LOG_2PI / 2
    return logsumexp(values - jnp.square(z) / 2 + columns(weights), axis=0)


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
