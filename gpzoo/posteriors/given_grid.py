"""The distribution of a GP site given data on a grid; it uses the Kronecker structure of the data's covariance."""

from __future__ import annotations

from functools import reduce
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Integer

from gpzoo.kernels.by_axis import along, axes_of
from gpzoo.linalg.on_grid import OnGrid, log_density
from gpzoo.posteriors.row_by_row import RowByRow
from gpzoo.processes.process import GaussianProcess


class GivenGrid(RowByRow):
    """The conditional of a site, for single values, given data with Gaussian noise at cells of a grid.

    Args:
        prior: prior of the site, at new inputs.
        inducing: :class:`~gpzoo.InducingPoints` at the inputs of the data.
        data: the covariance of the data, in units of the noise.
        weights: ``U^T`` times the inverse of this covariance times the data, with the axes of the grid.
        points: inputs at the points of each axis, with all columns.
        scales: numbers by which the site's covariances are divided, at the points of each axis.
        numbers: index of the cell of each row.
        empty: indices of the cells without a row.
        site: name of the site.
    """

    option: ClassVar[str] = "kronecker"

    data: OnGrid
    weights: Float[Array, "..."]
    points: tuple[Float[Array, "_ d"], ...]
    scales: tuple[Float[Array, " _"], ...]
    numbers: Integer[Array, " N"]
    empty: Integer[Array, " e"]

    def __init__(
        self,
        prior: GaussianProcess,
        inducing: Any,
        data: OnGrid,
        weights: Array,
        points: Any,
        scales: Any,
        numbers: Array,
        empty: Array,
        site: str,
    ) -> None:
        super().__init__(prior, inducing, site)
        self.data, self.weights, self.points, self.scales = data, weights, tuple(points), tuple(scales)
        self.numbers, self.empty = numbers, empty

    @classmethod
    def of(cls, prior: GaussianProcess, inducing: Any, grid: dict[str, Any], site: str) -> GivenGrid:
        """The conditional, from arrays by name."""
        axes = [grid[name] for name in sorted(grid) if name.startswith("axis_")]
        vectors, values, points, scales = (
            tuple(axis[name] for axis in axes) for name in ("vectors", "values", "points", "scale")
        )
        data = OnGrid(vectors, values, grid["missing"], grid["of_missing"])
        of_rows = grid["weights"], points, scales, grid["numbers"], grid["empty"]
        return cls(prior, inducing, data, *of_rows, site)

    def at(self, m: Float[Array, "M 1"]) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """See :meth:`RowByRow.at`."""
        each = [self._along(i, self.prior.X) / scale for i, scale in enumerate(self.scales)]
        k = reduce(lambda a, b: a[..., None] * b.reshape(len(b), *(1,) * (a.ndim - 1), -1), each)
        mean = jnp.sum(self.data.turned(k) * self.weights, axis=tuple(range(1, k.ndim)))
        return mean, self.data.squares(k)

    def log_prior(self, draw: Float[Array, "1 M"]) -> Float[Array, ""]:
        """See :meth:`RowByRow.log_prior`."""
        jitter = jnp.asarray(self.prior.covariance_jitter, draw.dtype)
        first, *others = (self._along(i, Z) for i, Z in enumerate(self.points))
        values = jnp.zeros(self.weights.size, draw.dtype).at[self.numbers].set(draw[0] / jnp.sqrt(jitter))
        value = log_density((first / jitter, *others), values.reshape(self.weights.shape), self.empty)
        return value - draw.size * jnp.log(jitter) / 2

    def _along(self, axis: int, X: Float[Array, "N d"]) -> Float[Array, "N _"]:
        kernel = self.prior.kernel
        return along(kernel, axes_of(kernel, X.shape[1]), axis, X, self.points[axis])
