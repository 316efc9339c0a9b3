"""The density of noisy data on a grid, and the law of a function given such data, for Kronecker covariances.

Let ``K = K_1 x ... x K_G = U diag(l) U^T``. The covariance of data at all cells is ``K + I``, in units of the noise.
Its inverse ``P`` follows from the eigenvalues of the factors (Saatçi 2011, chapter 5). Let ``o`` be the cells with data
and ``m`` the cells without data. The cells ``m`` are left out exactly: ``(K + I)_oo^-1 = P_oo - P_om P_mm^-1 P_mo``,
and ``|(K + I)_oo| = |K + I| |P_mm|``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Integer

from gpzoo import linalg
from gpzoo.linalg.operators import LOG_2PI, matmul


class OnGrid(NamedTuple):
    """The covariance ``(K + I)_oo`` of the cells that have data.

    Attributes:
        vectors: ``U`` of each axis.
        values: ``l`` of each axis.
        missing: indices of the cells without data.
        factor: the lower factor of ``P_mm``.
    """

    vectors: tuple[Float[Array, "_ _"], ...]
    values: tuple[Float[Array, " _"], ...]
    missing: Integer[Array, " m"]
    factor: Float[Array, "m m"]

    @classmethod
    def of(cls, factors: Sequence[Float[Array, "_ _"]], missing: Integer[Array, " m"]) -> OnGrid:
        """The covariance, from the factors of ``K``."""
        values, vectors = zip(*map(jnp.linalg.eigh, factors), strict=True)
        values = tuple(jnp.maximum(l, 0) for l in values)  # below 0 by rounding errors only
        whole = cls(vectors, values, missing, jnp.zeros((0, 0), values[0].dtype))
        at_missing = whole._at_missing()
        P = matmul(at_missing * whole.inverse.reshape(-1), at_missing.T)
        return whole._replace(factor=jnp.linalg.cholesky(P, symmetrize_input=False))

    @property
    def spectrum(self) -> Float[Array, "..."]:
        """``l`` of the whole grid, with the axes of the grid."""
        return outer(self.values)

    @property
    def inverse(self) -> Float[Array, "..."]:
        """The eigenvalues of ``P``."""
        return 1 / (1 + self.spectrum)

    @property
    def log_det(self) -> Float[Array, ""]:
        """``log |(K + I)_oo|``."""
        return jnp.sum(jnp.log1p(self.spectrum)) + 2 * jnp.sum(jnp.log(linalg.diagonal(self.factor)))

    def turned(self, cells: Float[Array, "..."]) -> Float[Array, "..."]:
        """``U^T`` times columns. The last axes of ``cells`` are the axes of the grid."""
        return _along(tuple(U.T for U in self.vectors), cells)

    def back(self, turned: Float[Array, "..."]) -> Float[Array, "..."]:
        """``U`` times columns."""
        return _along(self.vectors, turned)

    def solved(self, y: Float[Array, "..."]) -> Float[Array, "..."]:
        """``U^T (K + I)_oo^-1 y``; ``y`` and the inverse are 0 at cells without data."""
        whole = self.inverse * self.turned(y)
        taken = linalg.solve_lower(self.factor, self._whitened(whole)[:, None], transpose=True)[:, 0]
        return whole - self.inverse * matmul(taken, self._at_missing()).reshape(y.shape)

    def squares(self, columns: Float[Array, "N ..."]) -> Float[Array, " N"]:
        """``k^T (K + I)_oo^-1 k`` for each row ``k`` of ``columns``, the covariances of one value with all cells."""
        turned = self.turned(columns)
        whole = self.inverse * turned
        white = jax.vmap(self._whitened)(whole)
        axes = tuple(range(1, turned.ndim))
        return jnp.sum(turned * whole, axis=axes) - jnp.sum(jnp.square(white), axis=-1)

    def precisions(self) -> Float[Array, "..."]:
        """The diagonal of ``(K + I)_oo^-1``, where ``o`` are the cells with data; 0 at the other cells."""
        whole = _along(tuple(jnp.square(U) for U in self.vectors), self.inverse)
        return whole - jnp.sum(jnp.square(self.back(self.of_missing())), axis=0)

    def of_missing(self) -> Float[Array, "m ..."]:
        """``W`` with ``U^T (K + I)_oo^-1 U = diag(inverse) - W^T W``."""
        W = linalg.solve_lower(self.factor, self._at_missing() * self.inverse.reshape(-1))
        return W.reshape(len(W), *self.spectrum.shape)

    def _whitened(self, turned: Float[Array, "..."]) -> Float[Array, " m"]:
        cells = self.back(turned).reshape(-1)[self.missing]
        return linalg.solve_lower(self.factor, cells[:, None])[:, 0]

    def _at_missing(self) -> Float[Array, "m N"]:
        """The rows of ``U`` at cells without data."""
        numbers = jnp.unravel_index(self.missing, self.spectrum.shape)
        rows: Any = jnp.ones((len(self.missing), 1), self.values[0].dtype)
        for U, i in zip(self.vectors, numbers, strict=True):
            rows = (rows[:, :, None] * U[i][:, None, :]).reshape(len(rows), rows.shape[1] * len(U))
        return rows


@jax.custom_jvp
def log_density(
    factors: tuple[Float[Array, "_ _"], ...], y: Float[Array, "..."], missing: Integer[Array, " m"]
) -> Float[Array, ""]:
    """``log N(y_o; 0, (K + I)_oo)`` in nats.

    Args:
        factors: ``K_1``, ``K_2``, ..., in units of the noise.
        y: data, with an axis for each factor; 0 at cells without data.
        missing: indices of the cells without data.

    Raises:
        TypeError: for second derivatives, which eigenvectors do not give if eigenvalues are close.
    """
    found = OnGrid.of(factors, missing)
    return _log_density(found, found.turned(y), found.solved(y))


def _log_density(found: OnGrid, turned: Float[Array, "..."], weights: Float[Array, "..."]) -> Float[Array, ""]:
    count = turned.size - len(found.missing)
    return -(jnp.sum(turned * weights) + found.log_det + count * LOG_2PI) / 2


@log_density.defjvp
def _slope(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (factors, y, missing), (of_factors, of_y, _) = primals, tangents
    found = OnGrid.of(*_first_order((factors, missing)))
    weights, W, total = found.solved(_first_order(y)), found.of_missing(), jnp.zeros((), y.dtype)
    for i, (U, moved) in enumerate(zip(found.vectors, of_factors, strict=True)):
        others = [np.ones(1) if j == i else l for j, l in enumerate(found.values)]
        scale = outer([jnp.asarray(l, y.dtype) for l in others])
        own = jnp.sum(found.inverse * scale, axis=[j for j in range(y.ndim) if j != i])
        M = _gram(weights[None], scale, i) + _gram(W, scale, i) - jnp.diag(own)
        total += jnp.sum(matmul(U, matmul(M, U.T)) * moved) / 2
    slope = -found.back(weights)
    return _log_density(found, found.turned(y), weights), total + jnp.sum(slope * of_y)


def _gram(rows: Float[Array, "m ..."], scale: Float[Array, "..."], axis: int) -> Float[Array, "_ _"]:
    """``sum_m R_m diag(scale) R_m^T``; ``R_m`` is row ``m`` as a matrix, unfolded along an axis of the grid."""
    first = jnp.moveaxis(rows, axis + 1, 0)
    both = [x.reshape(len(first), first.size // len(first)) for x in (jnp.moveaxis(rows * scale, axis + 1, 0), first)]
    return matmul(both[0], both[1].T)


@jax.custom_jvp
def _first_order(x: Any) -> Any:
    return x


@_first_order.defjvp
def _refuse(primals: tuple, tangents: tuple) -> Any:
    raise TypeError(
        "The density of data on a grid, marginal(program, kronecker=True), has first derivatives only: leave kronecker "
        "out for Hessians, such as AutoLaplaceApproximation's."
    )


def outer(vectors: Sequence[Float[Array, " _"]]) -> Float[Array, "..."]:
    """Products of the entries of vectors, one vector for each axis of a grid."""
    whole = vectors[0]
    for x in vectors[1:]:
        whole = whole[..., None] * x
    return whole


def _along(matrices: tuple[Float[Array, "_ _"], ...], cells: Float[Array, "..."]) -> Float[Array, "..."]:
    """Each matrix times the columns along its axis of the grid. The axes of the grid are the last axes of ``cells``."""
    first = cells.ndim - len(matrices)
    for i, A in enumerate(matrices, start=first):
        cells = jnp.moveaxis(jnp.tensordot(A, cells, (1, i), precision=lax.Precision.HIGHEST), 0, i)
    return cells
