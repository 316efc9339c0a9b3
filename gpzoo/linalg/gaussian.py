"""What is the log density of a normal distribution, with a derivative that solves nothing twice?"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from gpzoo.linalg.factorise import guarded_cholesky, inverse_of_lower, solve_lower
from gpzoo.linalg.operators import diagonal, matmul


@jax.custom_jvp
def log_normal(residual: Float[Array, "B N K"], covariance: Float[Array, "B N N"]) -> Float[Array, ""]:
    """``sum_bk log N(residual_bk | 0, covariance_b)`` without the terms of ``log 2 pi``.

    The derivative with respect to a covariance is ``(sum_k a_k a_k^T - K C^-1) / 2`` with ``a = C^-1 residual``.

    Args:
        residual: columns ``K`` with one covariance.
        covariance: symmetric.

    Returns:
        A number of nats, minus infinity where a covariance has no Cholesky factor.
    """
    L, factorised = guarded_cholesky(covariance)
    white = solve_lower(L, residual)
    log_det = residual.shape[-1] * jnp.sum(jnp.log(diagonal(L)))
    return jnp.where(jnp.all(factorised == 1), -jnp.sum(white * white) / 2 - log_det, -jnp.inf)


@log_normal.defjvp
def _log_normal_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    (residual, covariance), (d_residual, d_covariance) = primals, tangents
    L, factorised = guarded_cholesky(covariance)
    inverse = inverse_of_lower(L)
    white = matmul(inverse, residual)
    log_det = residual.shape[-1] * jnp.sum(jnp.log(diagonal(L)))
    value = jnp.where(jnp.all(factorised == 1), -jnp.sum(white * white) / 2 - log_det, -jnp.inf)
    solved = matmul(inverse.mT, white)
    slope = matmul(solved, solved.mT) - residual.shape[-1] * matmul(inverse.mT, inverse)
    return value, jnp.sum(slope * d_covariance) / 2 - jnp.sum(solved * d_residual)
