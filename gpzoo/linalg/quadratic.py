"""Variances at many inputs: quadratic forms of the columns of a projection, laid out as each backend is fast at."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from gpzoo import _platform
from gpzoo.linalg.operators import BlockDiagonal, concatenate, matmul


def spread(B: Array, S: Any, diagonal: bool) -> Array:
    """``S^(1/2)T B``, ``[D, M, N]``, for ``S`` ``[D, M, M]`` or its blocks, or ``[M, D]`` if diagonal."""
    if diagonal:
        return S.T[:, :, None] * B
    if isinstance(S, BlockDiagonal):
        parts = [spread(rows, block, False) for rows, block in zip(S.split(B), S.blocks, strict=True)]
        return concatenate(parts, -2)
    return _stacked(jnp.swapaxes(S, -1, -2), B)


def spread_squared(B: Array, S: Any, diagonal: bool) -> Array:
    """``diag(B^T S B)``, ``[D, N]``: the squares of :func:`spread`, summed over inducing variables."""
    M, N = B.shape[-2:]
    if diagonal:
        return jnp.einsum("md,mn->dn" if B.ndim == 2 else "md,dmn->dn", jnp.square(S), jnp.square(B))
    if isinstance(S, BlockDiagonal):
        return sum(spread_squared(rows, S_i, False) for rows, S_i in zip(S.split(B), S.blocks, strict=True))
    if N > 2 * M:
        # With many inputs the covariance itself is cheaper: its quadratic form has one product less in its derivative.
        return quadratic(matmul(S, jnp.swapaxes(S, -1, -2)), B)
    return jnp.sum(jnp.square(spread(B, S, False)), axis=-2)


def quadratic(Q: Array, B: Array) -> Array:
    """``b_n^T Q_d b_n`` for symmetric ``Q [D, M, M]`` and the columns of ``B [M, N]`` or ``[D, M, N]``: ``[D, N]``."""
    if _platform.batches_products():
        return jax.vmap(_quadratic_form, in_axes=(0, None if B.ndim == 2 else 0))(Q, B)
    return jnp.stack([_quadratic_form(Q[d], B if B.ndim == 2 else B[d]) for d in range(len(Q))])


@jax.custom_jvp
def _quadratic_form(Q: Array, B: Array) -> Array:
    return jnp.sum(B * matmul(Q, B), axis=0)


@_quadratic_form.defjvp
def _quadratic_form_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    # Q is symmetric, so that its product with B serves the derivative with respect to B as well.
    (Q, B), (dQ, dB) = primals, tangents
    QB = matmul(Q, B)
    return jnp.sum(B * QB, axis=0), jnp.sum(B * matmul(dQ, B), axis=0) + 2 * jnp.sum(dB * QB, axis=0)


def _stacked(Q: Array, B: Array) -> Array:
    """``Q @ B``, ``[D, M, N]``."""
    if B.ndim == 3:
        return matmul(Q, B)
    # One product with all matrices above each other; XLA is slow at many small ones.
    D, M, _ = Q.shape
    return matmul(Q.reshape(D * M, M), B).reshape(D, M, -1)
