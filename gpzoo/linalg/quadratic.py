"""Variances at many inputs: quadratic forms of a projection's columns, in the layout that is fast on each backend."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from gpzoo import _platform
from gpzoo.linalg.operators import BlockDiagonal, concatenate, matmul, total


def spread(
    B: Float[Array, "M N"] | Float[Array, "D M N"], R: Float[Array, "D M K"] | BlockDiagonal
) -> Float[Array, "D K N"]:
    """``R^T B``."""
    if isinstance(R, BlockDiagonal):
        return concatenate([spread(rows, block) for rows, block in zip(R.split(B), R.blocks, strict=True)], -2)
    return _stacked(jnp.swapaxes(R, -1, -2), B)


def squares(
    B: Float[Array, "M N"] | Float[Array, "D M N"], R: Float[Array, "D M K"] | BlockDiagonal
) -> Float[Array, "D N"]:
    """``diag(B^T R R^T B)``: the squares of :func:`spread`, summed over its rows."""
    if isinstance(R, BlockDiagonal):
        return total(squares(rows, block) for rows, block in zip(R.split(B), R.blocks, strict=True))
    if B.shape[-1] > 2 * B.shape[-2]:
        # With many inputs the covariance is cheaper: the derivative of its quadratic form has one product less.
        return quadratic(matmul(R, jnp.swapaxes(R, -1, -2)), B)
    return jnp.sum(jnp.square(spread(B, R)), axis=-2)


def quadratic(Q: Float[Array, "D M M"], B: Float[Array, "M N"] | Float[Array, "D M N"]) -> Float[Array, "D N"]:
    """``b_n^T Q_d b_n`` for symmetric ``Q`` and the columns of ``B``."""
    if _platform.batches_products():
        return jax.vmap(_quadratic_form, in_axes=(0, None if B.ndim == 2 else 0))(Q, B)
    return jnp.stack([_quadratic_form(Q[d], B if B.ndim == 2 else B[d]) for d in range(len(Q))])


@jax.custom_jvp
def _quadratic_form(Q: Float[Array, "M M"], B: Float[Array, "M N"]) -> Float[Array, " N"]:
    return jnp.sum(B * matmul(Q, B), axis=0)


@_quadratic_form.defjvp
def _quadratic_form_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    # Q is symmetric, so that the derivative with respect to B can reuse the product Q B.
    (Q, B), (dQ, dB) = primals, tangents
    QB = matmul(Q, B)
    return jnp.sum(B * QB, axis=0), jnp.sum(B * matmul(dQ, B), axis=0) + 2 * jnp.sum(dB * QB, axis=0)


def _stacked(Q: Float[Array, "D K M"], B: Float[Array, "M N"] | Float[Array, "D M N"]) -> Float[Array, "D K N"]:
    """``Q @ B``."""
    if B.ndim == 3:
        return matmul(Q, B)
    # One product with all matrices stacked, because XLA is slow at many small products.
    D, K, M = Q.shape
    return matmul(Q.reshape(D * K, M), B).reshape(D, K, -1)
