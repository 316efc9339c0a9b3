"""One-dimensional Gaussian expectations, and the log normal cdf with gradients that are accurate in its tail."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
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
