"""Densities of data on a grid, and laws of functions given these data, by the Kronecker structure of covariances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jaxtyping import Bool, Float, Integer, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo._checks import is_concrete
from gpzoo.inference.bounds.evidence import Site, Term, residual_of
from gpzoo.inference.bounds.laws import SitesGivenData
from gpzoo.inference.bounds.left_out import one_by_one
from gpzoo.kernels.by_axis import along, axes_of
from gpzoo.linalg.on_grid import OnGrid, log_density, outer
from gpzoo.processes.process import GaussianProcess

_ASKED = "marginal(program, kronecker=True)"
_INSTEAD = "leave kronecker out."


class Cells(NamedTuple):
    """The cells of a grid, one for each row of a data site.

    Attributes:
        axes: the columns of each axis.
        points: for each axis, an array with one entry for each point of the axis: the index of a row there.
        of_rows: for each axis, an array with one entry for each row: the index of its point on the axis.
        seen: for each row, whether it has data.
    """

    axes: tuple[tuple[int, ...], ...]
    points: tuple[Integer[np.ndarray, " _"], ...]
    of_rows: tuple[Integer[np.ndarray, " N"], ...]
    seen: Bool[np.ndarray, " N"]

    @classmethod
    def of(cls, axes: tuple[tuple[int, ...], ...], X: Float[np.ndarray, "N d"], seen: np.ndarray, name: str) -> Cells:
        """The cells of rows; no two rows may have the same cell.

        Raises:
            ValueError: naming the data site, if two rows have the same cell, or most cells are empty.
        """
        points, of_rows = [], []
        for columns in axes:
            _, first, own = np.unique(X[:, list(columns)] + 0.0, axis=0, return_index=True, return_inverse=True)
            points.append(first)
            of_rows.append(own.ravel())
        cells = cls(axes, tuple(points), tuple(of_rows), seen)
        numbers, counts = np.unique(cells.numbers, return_counts=True)
        checks.refuse(
            len(numbers) < len(X),
            f"{_ASKED} takes one row for each cell of the grid, and data site {name!r} has {counts.max()} rows in one "
            f"cell: average them, or {_INSTEAD}",
        )
        sizes = " x ".join(map(str, cells.sizes))
        checks.refuse(
            len(cells.missing) > len(X),
            f"{_ASKED} takes rows on a grid, and the observed rows of data site {name!r} fill "
            f"{int(seen.sum())} of {sizes} cells: with so many empty cells, the Kronecker form costs more than one "
            f"covariance of all rows; {_INSTEAD}",
        )
        return cells

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of points of each axis."""
        return tuple(map(len, self.points))

    @property
    def numbers(self) -> Integer[np.ndarray, " N"]:
        """The number of each row's cell; cells are counted with the last axis fastest."""
        return np.ravel_multi_index(self.of_rows, self.sizes)

    @property
    def missing(self) -> Integer[np.ndarray, " m"]:
        """The numbers of cells without data."""
        return np.setdiff1d(np.arange(np.prod(self.sizes)), self.numbers[self.seen])

    def hold(self, X: Float[Array, "N d"], seen: Array | None) -> Bool[Array, ""]:
        """Whether the rows ``X`` are in these cells, and the same rows have data."""
        good = jnp.asarray(True) if seen is None else jnp.all(seen == self.seen)
        for columns, points, own in zip(self.axes, self.points, self.of_rows, strict=True):
            at = np.asarray(columns)
            good &= jnp.all(X[:, at] == X[points[own]][:, at])
        return good

    def refuse_noise(self, noise: Any, name: str) -> None:
        """Refuse noise that differs along more than one axis of the grid; checked only outside ``jit``.

        Raises:
            ValueError: naming the data site.
        """
        with jax.ensure_compile_time_eval():
            noise = jnp.asarray(noise)
            if not is_concrete(noise) or noise.ndim != 1:
                return
            known = jnp.where(self.seen, noise, 1)
            good = bool(_along_one_axis(known, self)[-1])
        checks.refuse(
            not good,
            f"{_ASKED} takes noise that is the same for all rows, or differs along one axis of the grid, and that of "
            f"data site {name!r} differs along several: {_INSTEAD}",
        )

    def put(self, values: Float[Array, " N"]) -> Float[Array, "..."]:
        """The values of rows as an array with the axes of the grid, 0 in cells without data."""
        whole = jnp.zeros(np.prod(self.sizes), values.dtype)
        return whole.at[self.numbers].set(jnp.where(self.seen, values, 0)).reshape(self.sizes)

    def take(self, whole: Float[Array, "..."]) -> Float[Array, " N"]:
        """The values of rows, from an array with the axes of the grid."""
        return whole.reshape(-1)[self.numbers]


class Grids:
    """The grids of a program's data sites, found in runs in which ``jit`` does not trace the inputs."""

    def __init__(self) -> None:
        self._known: dict[str, Cells] = {}

    def refuse_site(self, prior: GaussianProcess, name: str) -> None:
        """Refuse a GP site whose kernel is not a product over groups of columns.

        Raises:
            ValueError: naming the site.
        """
        kernel, shape = prior.kernel, jnp.shape(prior.X)
        checks.refuse(
            len(shape) != 2 or prior.num_outputs is not None or kernel.batched,
            f"{_ASKED} takes GP sites of one output, and site {name!r} has inputs {shape} and outputs "
            f"{prior.num_outputs}: write a row for each number, with its output in a column that categories(...) sees, "
            f"or {_INSTEAD}",
        )
        checks.refuse(kernel.split_noise()[1] is not None, f"{_ASKED}: site {name!r} has a kernel with white noise.")
        axes = axes_of(kernel, shape[1])
        checks.refuse(
            len(axes) < 2,
            f"{_ASKED} takes kernels that are products over columns, such as RBF() or Matern52(active_dims=[0, 1]) * "
            f"Matern52(active_dims=[2]), and {type(kernel).__name__} of site {name!r} is not known to be one over "
            f"{shape[1]} column(s): {_INSTEAD} A sum within the columns of one factor is allowed, as in space * "
            "(Constant(1.0) + Periodic(active_dims=[2])).",
        )

    def of_data(self, sites: Sequence[Site], earlier: Sequence[Term], term: Term) -> OnCells:
        """The data on their grid. If ``jit`` traces the inputs, the cells come from an earlier run outside ``jit``.

        Raises:
            ValueError: naming the data site, in these cases:

                * its noise is not Gaussian, or differs along several axes of the grid;
                * an earlier data site depends on the same GP site;
                * it has several columns, or depends on several GP sites;
                * it does not depend on every row of its GP site, with one weight for all rows;
                * two rows have the same cell, or most cells are empty.
        """
        name, f = term.name, term.marginals
        kind = f"{_ASKED} is for Gaussian noise, and data site {name!r} is {type(term.likelihood).__name__}: {_INSTEAD}"
        checks.refuse(not term.gaussian, kind)
        one = len(sites) == 1 and len(f.parts) == 1 and not earlier and term.columns == 1
        whole = one and f.parts[0].all_rows and f.parts[0].weights.shape == (1, 1)
        checks.refuse(
            not whole,
            f"{_ASKED} takes one data site, of one column, that sees every row of one GP site, with one weight, and "
            f"{name!r} is of another kind: {_INSTEAD}",
        )
        prior = sites[0].prior
        with jax.ensure_compile_time_eval():
            seen = term.seen()
        if is_concrete(prior.X) and is_concrete(seen):
            rows = np.ones(prior.num_inputs, bool) if seen is None else np.asarray(seen)[:, 0]
            axes = axes_of(prior.kernel, prior.X.shape[1])
            checks.refuse(
                len(rows) != prior.num_inputs,
                f"The data of site {name!r} have {len(rows)} rows, and its inputs {prior.num_inputs}: a row of "
                "the data is a cell of the grid, y.ravel().",
            )
            self._known[name] = Cells.of(axes, np.asarray(prior.X), rows, name)
            self._known[name].refuse_noise(term.likelihood.noise, name)
        return OnCells(self._known.get(name), name)


class OnCells:
    """Data on a grid. Two ``OnCells`` are equal if their cells are the same object.

    Args:
        cells: the cells of the data's rows; ``None`` if the program has not run outside ``jit``.
        name: name of the data site.
    """

    def __init__(self, cells: Cells | None, name: str) -> None:
        self._cells, self.name = cells, name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OnCells) and self._cells is other._cells

    def __hash__(self) -> int:
        return id(self._cells)

    @property
    def cells(self) -> Cells:
        """The cells of the data's rows.

        Raises:
            TypeError: naming the data site, if the program has not run outside ``jit``.
        """
        checks.refuse(
            self._cells is None,
            f"{_ASKED} cannot look at the inputs of data site {self.name!r} under a transformation such as jax.jit: "
            "run the program once outside it.",
            TypeError,
        )
        return cast(Cells, self._cells)

    def log_evidence(self, sites: Sequence[Site], term: Term) -> Float[Array, ""]:
        """``log p(y)``, exact; NaN if the values of the inputs or of the noise do not fit the grid."""
        cells = self.cells
        data = _Data.of(sites, term, cells)
        value = log_density(data.factors, data.y, jnp.asarray(cells.missing))
        value -= jnp.sum(jnp.where(cells.seen, jnp.log(data.noise), 0))
        return jnp.where(data.good, value, jnp.nan)

    def given(self, sites: Sequence[Site], terms: Sequence[Term], key: PRNGKeyArray) -> SitesGivenData:
        """A draw and the law of the site given the data, and the density of each row given all other rows.

        The draw is by Matheron's rule, as for other data with Gaussian noise.
        """
        ((site,), (term,)), cells = (sites, terms), self.cells
        key_f, key_noise, key_left = random.split(key, 3)
        data = _Data.of(sites, term, cells)
        found = OnGrid.of(data.factors, jnp.asarray(cells.missing))
        weights, spectrum = found.solved(data.y), found.spectrum
        white = random.normal(key_f, data.y.shape, data.y.dtype)
        prior = found.back(jnp.sqrt(spectrum) * white)
        noise = random.normal(key_noise, data.y.shape, data.y.dtype)
        drawn = cells.put(cells.take(data.y - prior - noise))
        f = prior + found.back(spectrum * found.solved(drawn))
        scales = cells.take(outer(data.scales))
        rows = jnp.where(cells.seen, cells.take(found.back(weights)) / data.noise, 0)
        precisions = jnp.where(cells.seen, cells.take(found.precisions()) / jnp.square(data.noise), 1)
        left = one_by_one(term, data.noise * cells.take(data.y), rows, precisions, key_left)
        empty = np.setdiff1d(np.arange(data.y.size), cells.numbers)
        grid: dict[str, Any] = {"missing": found.missing, "of_missing": found.factor, "weights": weights}
        grid |= {"numbers": jnp.asarray(cells.numbers), "empty": jnp.asarray(empty)}
        each = zip(found.vectors, found.values, data.points, data.scales, strict=True)
        for i, (vectors, values, points, scale) in enumerate(each):
            grid[f"axis_{i}"] = {"vectors": vectors, "values": values, "points": points, "scale": scale}
        values = {f"{site.name}_mean": cells.take(f) * scales, f"{site.name}_inducing": site.prior.X}
        # A variance given other rows is a difference from the prior's variance, and has the prior's rounding errors.
        largest = [jnp.max(jnp.diagonal(K)) for K in data.factors]
        lost = jnp.finfo(data.y.dtype).eps * jnp.prod(jnp.stack(largest))
        good = data.good & jnp.all(jnp.isfinite(found.factor)) & jnp.all(jnp.isfinite(scales))
        return SitesGivenData(
            values, {site.name: {"sites": {site.name: {"mean": rows, "grid": grid}}}}, good, left, lost
        )


class _Data(NamedTuple):
    """Data on a grid, in units of their noise.

    Attributes:
        factors: factors of the covariance of the function that the data see, by axis.
        y: data minus their mean, with the axes of the grid; 0 in cells without data.
        noise: standard deviations of the noise of each row.
        points: inputs at the points of each axis.
        scales: units of the site's values at the points of each axis.
        good: whether the rows are in the cells, and their noise differs along one axis at most.
    """

    factors: tuple[Float[Array, "_ _"], ...]
    y: Float[Array, "..."]
    noise: Float[Array, " N"]
    points: tuple[Float[Array, "_ d"], ...]
    scales: tuple[Float[Array, " _"], ...]
    good: Bool[Array, ""]

    @classmethod
    def of(cls, sites: Sequence[Site], term: Term, cells: Cells) -> _Data:
        """The data of a site."""
        ((site,), (part,)) = sites, term.marginals.parts
        residual, variance, seen = residual_of(term)
        X, kernel = site.prior.X, site.prior.kernel
        noise = jnp.sqrt(variance[:, 0])
        scales, same = _along_one_axis(noise, cells)
        scales[0] = scales[0] / part.weights[0, 0]
        points, factors = [X[first] for first in cells.points], []
        for i, (Z, scale) in enumerate(zip(points, scales, strict=True)):
            factors.append(along(kernel, cells.axes, i, Z, Z) / (scale[:, None] * scale))
        good = cells.hold(X, None if seen is None else seen[:, 0]) & same
        y = cells.put(residual[:, 0] / noise)
        return cls(tuple(factors), y, noise, tuple(points), tuple(scales), good)


def _along_one_axis(noise: Float[Array, " N"], cells: Cells) -> tuple[list[Float[Array, " _"]], Bool[Array, ""]]:
    """The noise at the points of the axis along which it differs, 1 for other axes, and whether it fits one axis."""
    found, errors = zip(*(_by_point(noise, cells, i) for i in range(len(cells.sizes))), strict=True)
    least = jnp.argmin(jnp.stack(errors))
    same = jnp.min(jnp.stack(errors)) <= 1e2 * jnp.finfo(noise.dtype).eps * jnp.max(noise)
    return [jnp.where(least == i, each, jnp.ones_like(each)) for i, each in enumerate(found)], same


def _by_point(noise: Float[Array, " N"], cells: Cells, axis: int) -> tuple[Float[Array, " _"], Float[Array, ""]]:
    """Noise of a row at each point of an axis, 1 without rows, and the largest difference of other rows from it.

    A mean over rows would have rounding errors that grow with their number.
    """
    own = cells.of_rows[axis]
    known, rows = np.unique(own[cells.seen], return_index=True)
    of_points = jnp.ones(cells.sizes[axis], noise.dtype).at[known].set(noise[np.flatnonzero(cells.seen)[rows]])
    difference = jnp.where(cells.seen, jnp.abs(noise - of_points[own]), 0)
    return of_points, lax.stop_gradient(jnp.max(difference))
