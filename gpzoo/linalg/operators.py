"""Structured matrices, stored as their parts: block-diagonal matrices and Kronecker products."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from functools import reduce
from itertools import pairwise
from typing import Any, ClassVar, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float

from gpzoo import _checks as checks
from gpzoo._pytree import Fields

#: The constant of a normal log density.
LOG_2PI = math.log(2 * math.pi)

#: Number of rows or columns of a triangular matrix that are multiplied at once. Smaller products skip more zeros, but
#: they are slower.
GROUP = 150


class _OfSquares(Fields):
    """A matrix stored as square matrices ``[..., M_i, M_i]``, in its only field; leading axes broadcast."""

    #: The number of rows of the whole matrix, from the numbers of rows of the parts.
    rows: ClassVar[Callable[[Iterable[int]], int]]

    def __init__(self, *parts: Array) -> None:
        (name,) = self.data_fields
        square = all(jnp.ndim(part) > 1 and part.shape[-1] == part.shape[-2] for part in parts)
        wanted = "be square matrices, at least one;"
        checks.must(parts and square, name.capitalize(), wanted, str([jnp.shape(part) for part in parts]))
        setattr(self, name, tuple(parts))

    @property
    def _parts(self) -> tuple[Array, ...]:
        return getattr(self, self.data_fields[0])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each part."""
        return tuple(part.shape[-1] for part in self._parts)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the matrix as a whole."""
        size = type(self).rows(self.sizes)
        return (*jnp.broadcast_shapes(*(part.shape[:-2] for part in self._parts)), size, size)

    @property
    def ndim(self) -> int:
        """Number of axes, leading ones included."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """Precision of the entries."""
        return jnp.result_type(*self._parts)

    @property
    def mT(self) -> Self:
        """The transposed matrix."""
        return type(self)(*(jnp.swapaxes(part, -1, -2) for part in self._parts))


class BlockDiagonalMatrix(_OfSquares):
    """A block-diagonal matrix, stored as its blocks, such as the covariance of independent groups of variables.

    :func:`cholesky` and :func:`solve_lower` accept it in place of an array, and work block by block. Blocks that are
    the same object are factorised once.

    Args:
        *blocks: square matrices ``[..., M_i, M_i]``; leading axes broadcast.

    Raises:
        ValueError: if there is no block, or one is not square.
    """

    blocks: tuple[Float[Array, "... M_i M_i"], ...]
    rows = sum

    def split(self, B: Float[Array, "*batch M K"]) -> list[Float[Array, "*batch M_i K"]]:
        """The rows of ``B``, split into the rows for each block."""
        return jnp.split(B, np.cumsum(self.sizes)[:-1].tolist(), axis=-2)

    def map(self, function: Callable[..., Array], *others: BlockDiagonalMatrix) -> BlockDiagonalMatrix:
        """``function`` applied to each block together with the corresponding blocks of ``others``."""
        return BlockDiagonalMatrix(*map(function, self.blocks, *(other.blocks for other in others)))

    def dense(self) -> Float[Array, "*batch M M"]:
        """The dense matrix."""
        out, start = jnp.zeros(self.shape, self.dtype), 0
        for block in self.blocks:
            end = start + block.shape[-1]
            out, start = out.at[..., start:end, start:end].set(block), end
        return out

    def __matmul__(
        self, B: Float[Array, "... M K"] | BlockDiagonalMatrix
    ) -> Float[Array, "... M K"] | BlockDiagonalMatrix:
        """The product with ``B``, which is dense or has blocks of the same sizes."""
        if not isinstance(B, BlockDiagonalMatrix):
            return concatenate(
                [matmul(block, rows) for block, rows in zip(self.blocks, self.split(B), strict=True)], -2
            )
        return self.map(matmul, B)


def concatenate(parts: list[Float[Array, "... _ _"]], axis: int) -> Float[Array, "... _ _"]:
    """``jnp.concatenate`` along an axis counted from the end; leading axes broadcast."""
    batch = jnp.broadcast_shapes(*(part.shape[:-2] for part in parts))
    return jnp.concatenate([jnp.broadcast_to(part, batch + part.shape[-2:]) for part in parts], axis=axis)


def total(terms: Iterable[Array]) -> Float[Array, "..."]:
    """The sum of one array or more."""
    return reduce(operator.add, terms)


def diagonal(K: Float[Array, "*batch M M"] | BlockDiagonalMatrix) -> Float[Array, "*batch M"]:
    """The diagonals of matrices."""
    if not isinstance(K, BlockDiagonalMatrix):
        return _diagonal(K)
    batch = K.shape[:-2]
    return jnp.concatenate([jnp.broadcast_to(part, batch + part.shape[-1:]) for part in map(_diagonal, K.blocks)], -1)


def log_det(L: Any) -> Float[Array, "*batch"]:
    """``log |det L|`` of triangular matrices: arrays, block-diagonal or Kronecker products."""
    if isinstance(L, KroneckerProduct):
        pairs = zip(L.sizes, L.factors, strict=True)
        return total(L.shape[-1] / size * jnp.sum(jnp.log(jnp.abs(diagonal(F))), axis=-1) for size, F in pairs)
    return jnp.sum(jnp.log(jnp.abs(diagonal(L))), axis=-1)


@jax.custom_jvp
def _diagonal(K: Float[Array, "*batch M M"]) -> Float[Array, "*batch M"]:
    return jnp.diagonal(K, axis1=-2, axis2=-1)


@_diagonal.defjvp
def _diagonal_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # A mask becomes part of the next operation. Scattered entries would need another pass over the matrix.
    (dK,) = tangents
    return _diagonal(*primals), jnp.sum(jnp.where(jnp.eye(dK.shape[-1], dtype=bool), dK, 0), axis=-1)


def matmul(A: Float[Array, "..."] | BlockDiagonalMatrix, B: Float[Array, "..."] | BlockDiagonalMatrix) -> Any:
    """``A @ B`` in the full precision of its arguments; by default, accelerators round float32 factors to ten bits."""
    return (
        A @ B if isinstance(A, BlockDiagonalMatrix) else jnp.matmul(A, cast(Array, B), precision=lax.Precision.HIGHEST)
    )


def einsum(subscripts: str, *arrays: Float[Array, "..."]) -> Float[Array, "..."]:
    """``jnp.einsum`` in the full precision of its arguments, as :func:`matmul`."""
    return jnp.einsum(subscripts, *arrays, precision=lax.Precision.HIGHEST)


def lower_groups(size: int) -> list[tuple[int, int]]:
    """Start and end of each group of rows or columns in products with a lower-triangular matrix."""
    count = max(1, size // GROUP)
    return list(pairwise(size * i // count for i in range(count + 1)))


def lower_product(
    A: Float[Array, "*#batch M M"], B: Float[Array, "*#batch M K"], *, lower: bool = False
) -> Float[Array, "*#batch M K"]:
    """``A B`` for lower-triangular ``A``; it skips most products with the zeros above the diagonal.

    Args:
        A: the matrices on the left.
        B: the matrices on the right.
        lower: whether ``B`` is lower-triangular too.
    """
    rows = []
    for start, end in lower_groups(A.shape[-1]):
        part = matmul(A[..., start:end, :end], B[..., :end, :end] if lower else B[..., :end, :])
        rows.append(_with_zeros(part, B.shape[-1]))
    return concatenate(rows, -2)


def lower_congruence(A: Float[Array, "*batch M M"], K: Float[Array, "*batch M M"]) -> Float[Array, "*batch M M"]:
    """``A K A^T`` on and below the diagonal, for lower-triangular ``A``.

    The function skips most products with zeros, and most products for entries above the diagonal. Entries of the result
    above the diagonal have no meaning, and they are not zero.
    """
    groups, M = lower_groups(A.shape[-1]), A.shape[-1]
    rows = [_with_zeros(matmul(A[..., start:end, :end], K[..., :end, :end]), M) for start, end in groups]
    left, columns = concatenate(rows, -2), []
    for start, end in groups:
        part = matmul(A[..., start:end, :end], left[..., start:, :end].mT)
        columns.append(_with_zeros(part, M, before=True).mT)
    return concatenate(columns, -1)


def lower_gram(A: Float[Array, "*batch M M"], B: Float[Array, "*batch M M"]) -> Float[Array, "*batch M M"]:
    """``A^T B`` on and below the diagonal, for lower-triangular ``A`` and ``B``; zero above the diagonal.

    The function skips most products with the zeros of ``A`` and ``B``.
    """
    rows = []
    for start, end in lower_groups(A.shape[-1]):
        part = matmul(A[..., start:, start:end].mT, B[..., start:, :end])
        rows.append(_with_zeros(part, A.shape[-1]))
    return jnp.tril(concatenate(rows, -2))


def _with_zeros(part: Float[Array, "*batch K _"], size: int, before: bool = False) -> Float[Array, "*batch K {size}"]:
    """``part`` with columns of zeros behind it, or before it."""
    if part.shape[-1] == size:
        return part
    zeros = jnp.zeros((*part.shape[:-1], size - part.shape[-1]), part.dtype)
    return jnp.concatenate([zeros, part] if before else [part, zeros], axis=-1)


class KroneckerProduct(_OfSquares):
    """``K_1 x ... x K_G``, stored as its factors: a covariance on a grid whose last axis runs fastest.

    Args:
        *factors: square matrices ``[..., M_d, M_d]``; leading axes broadcast.

    Raises:
        ValueError: if there is no factor, or one is not square.
    """

    factors: tuple[Float[Array, "... M_i M_i"], ...]
    rows = math.prod

    def __matmul__(self, B: Float[Array, "... M K"]) -> Float[Array, "... M K"]:
        """The product with the columns of ``B``, one axis at a time."""
        return kronecker_matmul(self.factors, B)

    def dense(self) -> Float[Array, "*batch M M"]:
        """The dense matrix; use it only if the matrix is small."""
        whole = self.factors[0]
        for K in self.factors[1:]:
            whole = einsum("...ab,...cd->...acbd", whole, K)
            size = whole.shape[-4] * whole.shape[-3]
            whole = whole.reshape(*whole.shape[:-4], size, size)
        return whole


def kronecker_matmul(
    factors: tuple[Float[Array, "... _ _"], ...], B: Float[Array, "... R K"]
) -> Float[Array, "... M K"]:
    """``(F_1 x ... x F_G) B``, one axis at a time."""
    batch = jnp.broadcast_shapes(B.shape[:-2], *(F.shape[:-2] for F in factors))
    columns, rest = B.shape[-1], 1
    B = jnp.broadcast_to(B, batch + B.shape[-2:])
    for F in reversed(factors):
        # Finished axes (`rest` rows) and the columns come after the current axis.
        own = jnp.broadcast_to(F, batch + F.shape[-2:])[..., None, :, :]
        B = matmul(own, B.reshape(*batch, -1, F.shape[-1], rest * columns))
        rest *= F.shape[-2]
    return B.reshape(*batch, -1, columns)
