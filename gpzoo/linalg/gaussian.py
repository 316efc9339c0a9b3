"""The log density of a normal distribution, with a derivative that repeats no solve."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from gpzoo.linalg.factorise import guarded_cholesky, inverse_of_lower, solve_lower, transposed_square
from gpzoo.linalg.operators import diagonal, matmul


@jax.custom_jvp
def log_normal(residual: Float[Array, "B N K"], covariance: Float[Array, "B N N"]) -> Float[Array, "B K"]:
    """``log N(residual_bk | 0, covariance_b)`` without the terms of ``log 2 pi``.

    The derivative with respect to a covariance is ``(a a^T - C^-1) / 2`` with ``a = C^-1 residual``.

    Args:
        residual: ``K`` columns for each covariance.
        covariance: symmetric covariances.

    Returns:
        Log densities in nats; minus infinity if a covariance has no Cholesky factor.
    """
    L, factorised = guarded_cholesky(covariance)
    return _of_white(L, factorised, solve_lower(L, residual))


def _of_white(
    L: Float[Array, "B N N"], factorised: Float[Array, " B"], white: Float[Array, "B N K"]
) -> Float[Array, "B K"]:
    log_det = jnp.sum(jnp.log(diagonal(L)), axis=-1)
    density = -jnp.sum(white * white, axis=-2) / 2 - log_det[:, None]
    return jnp.where(factorised[:, None] == 1, density, -jnp.inf)


@log_normal.defjvp
def _log_normal_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Float[Array, "B K"], Float[Array, "B K"]]:
    (residual, covariance), (d_residual, d_covariance) = primals, tangents
    L, factorised = guarded_cholesky(covariance)
    inverse = inverse_of_lower(L)
    white = matmul(inverse, residual)
    solved = matmul(inverse.mT, white)
    of_trace = jnp.sum(transposed_square(inverse) * d_covariance, axis=(-2, -1))
    of_square = jnp.sum(solved * matmul(d_covariance, solved), axis=-2)
    slope = (of_square - of_trace[:, None]) / 2 - jnp.sum(solved * d_residual, axis=-2)
    return _of_white(L, factorised, white), slope
