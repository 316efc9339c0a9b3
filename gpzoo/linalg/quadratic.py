"""Variances at many inputs: quadratic forms of a projection's columns, in the fastest layout for each backend."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular
from jaxtyping import Float

from gpzoo import _platform
from gpzoo.linalg.operators import (
    BlockDiagonalMatrix,
    KroneckerProduct,
    concatenate,
    diagonal,
    kronecker_matmul,
    lower_groups,
    matmul,
    total,
)


def spread(
    B: Float[Array, "M N"] | Float[Array, "D M N"], R: Float[Array, "D M K"] | BlockDiagonalMatrix
) -> Float[Array, "D K N"]:
    """``R^T B``."""
    if isinstance(R, BlockDiagonalMatrix):
        return concatenate([spread(rows, block) for rows, block in zip(R.split(B), R.blocks, strict=True)], -2)
    if B.ndim == 3:
        return matmul(jnp.swapaxes(R, -1, -2), B)
    return jnp.transpose(_products(B, R), (1, 2, 0))


def squares(
    B: Float[Array, "M N"] | Float[Array, "D M N"], R: Float[Array, "D M K"] | BlockDiagonalMatrix
) -> Float[Array, "D N"]:
    """``diag(B^T R R^T B)``: the squares of :func:`spread`, summed over its rows."""
    if isinstance(R, BlockDiagonalMatrix):
        return total(squares(rows, block) for rows, block in zip(R.split(B), R.blocks, strict=True))
    if B.shape[-1] > 2 * B.shape[-2]:
        # With many inputs, the covariance is cheaper: the derivative of its quadratic form has one product less.
        return quadratic(matmul(R, jnp.swapaxes(R, -1, -2)), B)
    if B.ndim == 3:
        return jnp.sum(jnp.square(spread(B, R)), axis=-2)
    return jnp.sum(jnp.square(_products(B, R)), axis=-1).T


def lower_squares(B: Float[Array, "M N"] | Float[Array, "D M N"], L: Float[Array, "D M M"]) -> Float[Array, "D N"]:
    """:func:`squares` for lower-triangular ``L``, without most products with the zeros above the diagonal."""
    if B.ndim == 3 or B.shape[-1] > 2 * B.shape[-2]:
        return squares(B, L)
    groups = _lower_columns(L)
    return total(jnp.sum(jnp.square(_side_by_side(B[-len(part) :], part)), axis=-1).T for part in groups)


def distance(root: Any, residual: Float[Array, "D M"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """``r^T S^-1 r`` and ``log |S|``, summed over outputs, for ``S = R R^T`` with any root ``R``."""
    if isinstance(root, BlockDiagonalMatrix):
        parts = zip(root.blocks, root.split(residual[..., None]), strict=True)
        squares, log_dets = zip(*(distance(block, rows[..., 0]) for block, rows in parts), strict=True)
        return total(squares), total(log_dets)
    # A lower-triangular root of S by QR. The product R R^T itself would lose half the digits.
    lower = [
        jnp.linalg.qr(F.mT, mode="r").mT for F in (root.factors if isinstance(root, KroneckerProduct) else (root,))
    ]
    if len(lower) == 1:
        white = solve_triangular(lower[0], residual[..., None], lower=True)
    else:
        identities = (jnp.broadcast_to(jnp.eye(L.shape[-1], dtype=L.dtype), L.shape) for L in lower)
        inverses = tuple(solve_triangular(L, eye, lower=True) for L, eye in zip(lower, identities, strict=True))
        white = kronecker_matmul(inverses, residual[..., None])
    M = residual.shape[-1]
    log_dets = (M / L.shape[-1] * jnp.sum(jnp.log(jnp.square(diagonal(L)))) for L in lower)
    return jnp.sum(jnp.square(white)), total(log_dets)


def weighted_product(
    A: Float[Array, "*D M N"], weights: Float[Array, "D N"], C: Float[Array, "*E K N"]
) -> Float[Array, "D M K"]:
    """``A diag(weights) C^T``."""
    weighted = A * weights[:, None, :]
    if C.ndim == 3:
        return matmul(weighted, C.mT)
    # One product over all outputs, because XLA is slow at many small products.
    D, M, N = weighted.shape
    return matmul(weighted.reshape(D * M, N), C.T).reshape(D, M, -1)


@jax.custom_jvp
def lower_trace(L: Float[Array, "D M M"]) -> Float[Array, ""]:
    """The trace of ``L L^T`` for lower-triangular ``L``, summed over outputs.

    Like :func:`lower_squares`, the function copies ``L`` in groups of columns. A compiled program that calls both
    functions with the same ``L`` can make these copies once.
    """
    return total(jnp.sum(part * part) for part in _lower_columns(L))


@lower_trace.defjvp
def _lower_trace_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # Not by groups of columns, because joining their derivatives takes longer than this whole computation.
    (L,), (dL,) = primals, tangents
    return lower_trace(L), 2 * jnp.sum(L * dL)


def _lower_columns(L: Float[Array, "D M M"]) -> list[Float[Array, "_ D _"]]:
    """Groups of columns of lower-triangular matrices, rows first, each without the rows of zeros above it."""
    starts = [start for start, _ in lower_groups(L.shape[-1])]
    # A split, because JAX concatenates the derivatives of its parts. The derivatives of slices would be added up.
    parts = jnp.split(L, starts[1:], axis=-1)
    return [jnp.swapaxes(part[:, start:], 0, 1) for start, part in zip(starts, parts, strict=True)]


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
    # Q is symmetric, so the derivative with respect to B can reuse the product Q B.
    (Q, B), (dQ, dB) = primals, tangents
    QB = matmul(Q, B)
    return jnp.sum(B * QB, axis=0), jnp.sum(B * matmul(dQ, B), axis=0) + 2 * jnp.sum(dB * QB, axis=0)


def _products(B: Float[Array, "M N"], R: Float[Array, "D M K"]) -> Float[Array, "N D K"]:
    """``B^T R``."""
    return _side_by_side(B, jnp.swapaxes(R, 0, 1))


def _side_by_side(B: Float[Array, "M N"], R: Float[Array, "M D K"]) -> Float[Array, "N D K"]:
    """``B^T R`` as one product, because XLA is slow at many small products.

    The rows of ``R`` stay rows. With another layout, the copies for the derivative would take longer than the product.
    """
    M, D, K = R.shape
    return matmul(B.T, R.reshape(M, D * K)).reshape(-1, D, K)
