"""Standardised tables; one pass over the blocks computes their means and standard deviations."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gpzoo import _checks as checks
from gpzoo._labels import aligned, columns_in_order
from gpzoo.tables.table import Table, pieces


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean and standard deviation of every column of a table.

    Example:
        >>> import numpy as np
        >>> from gpzoo.tables import ArrayTable, Moments, moments
        >>> found = moments(ArrayTable(np.array([1.0, 3.0])))
        >>> isinstance(found, Moments), found.num_rows, found.mean, found.std
        (True, 2, (2.0,), (1.0,))

    Attributes:
        num_rows: number of rows from which the moments were computed.
        mean: for each group of columns (:class:`ColumnGroup`), a float64 array with the shape of a row (a float for the
            shape ``()``), or ``None`` for a group that was left out.
        std: standard deviations of the rows (divisor ``N``), in the same shapes; exactly 0 for a constant column.
    """

    num_rows: int
    mean: tuple[Any, ...]
    std: tuple[Any, ...]


def moments(table: Table, groups: Sequence[int] | None = None) -> Moments:
    """Means and standard deviations of a table's columns, in one pass and in float64.

    The rows are divided into pieces, and each piece is centred on its own mean. The update of Chan, Golub and LeVeque
    (1979) merges the pieces. So no digits are lost, even if means are much larger than standard deviations.

    Example:
        >>> import numpy as np
        >>> from gpzoo.tables import ArrayTable, moments
        >>> found = moments(ArrayTable(np.array([[0.0, 5.0], [2.0, 5.0]]), np.array([1.0, 2.0])))
        >>> found.mean, found.std
        ((array([1., 5.]), 1.5), (array([1., 0.]), 0.5))

    Args:
        table: the table, which is read once, block by block.
        groups: positions of the groups of columns (:class:`ColumnGroup`); ``None`` means all groups.

    Raises:
        DatasetError: if a block cannot be read.
        ValueError: for groups that the table does not have, and as for :meth:`Table.read`.
    """
    wanted = range(len(table.groups)) if groups is None else [operator.index(g) for g in groups]
    known = set(wanted) <= set(range(len(table.groups)))
    checks.must(known, "groups", f"be among 0 to {len(table.groups) - 1}", str(list(wanted)))
    running = {g: _Running(table.groups[g].shape) for g in wanted}
    for block in range(len(table.block_rows)):
        arrays = table.stored(block)
        for g, total in running.items():
            for piece in pieces(arrays[g]):
                total.add(arrays[g][piece])
    results = [running[g].result() if g in running else (None, None) for g in range(len(table.groups))]
    return Moments(table.num_rows, *zip(*results, strict=True))


class _Running:
    """Count, means (less the first row) and sums of squared deviations of the rows so far."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.count, width = shape, 0, math.prod(shape)
        self.mean, self.squares = np.zeros(width), np.zeros(width)
        self.first: Any = None
        self.varies = np.zeros(width, bool)

    def add(self, rows: np.ndarray) -> None:
        # Transposed, so that sums run along contiguous memory, which is many times faster.
        columns = rows.reshape(len(rows), -1).T.astype(np.float64, order="C")
        if self.first is None:
            self.first = columns[:, 0].copy()
        # Distances from the first row, because merged results would lose digits if means are far from 0.
        columns -= self.first[:, None]
        if not self.varies.all():
            self.varies |= columns.any(axis=1)
        mean = columns.mean(axis=1)
        columns -= mean[:, None]
        total = self.count + len(rows)
        step = mean - self.mean
        self.squares += np.einsum("ij,ij->i", columns, columns) + step**2 * (self.count * len(rows) / total)
        self.mean += step * (len(rows) / total)
        self.count = total

    def result(self) -> tuple[Any, Any]:
        mean = (self.first + self.mean).reshape(self.shape)
        std = np.where(self.varies, np.sqrt(self.squares / self.count), 0.0).reshape(self.shape)
        return (mean, std) if self.shape else (float(mean), float(std))


class Standardised(Table):
    """A table that shifts and scales its columns while they are read: ``(x - mean) / std``, computed in float64.

    Example:
        >>> import numpy as np
        >>> from gpzoo.tables import ArrayTable, Standardised
        >>> table = Standardised(ArrayTable(np.array([[1.0], [3.0]])), mean=[np.array([2.0])], std=[np.array([0.5])])
        >>> table.read(0), table.apply(np.array([[2.5]]))
        ((array([[-2.],
               [ 2.]]),), (array([[1.]]),))

    Args:
        table: the original table.
        mean: for each group of columns (:class:`ColumnGroup`), an array with the shape of a row; ``None`` leaves a
            group unchanged.
        std: standard deviations, in the same form as ``mean``. A column with standard deviation 0 becomes 0.

    Attributes:
        mean: as given. A standardised target ``y`` (the last group) is ``mean[-1] + std[-1] * y`` in the original
            units. To convert scores, multiply an RMSE by ``std[-1]``, and subtract ``log(std[-1])`` from a log density.
        std: as given.

    Raises:
        ValueError: if moments are not finite or do not have the shapes of the table's rows, or if a deviation is
            negative.
    """

    def __init__(self, table: Table, mean: Sequence[Any], std: Sequence[Any]) -> None:
        self.table, self.mean, self.std = table, tuple(mean), tuple(std)
        self.block_rows = table.block_rows
        sizes = len(self.mean), len(self.std)
        wanted = f"have one entry per group, {len(table.groups)};"
        checks.must(sizes == (len(table.groups),) * 2, "mean and std", wanted, f"{sizes[0]} and {sizes[1]}")
        groups = []
        for position, (group, m, s) in enumerate(zip(table.groups, self.mean, self.std, strict=True)):
            both = f"mean and std of group {position}"
            checks.refuse((m is None) != (s is None), f"{both} must both be given or both None.")
            if m is not None:
                good = np.shape(m) == np.shape(s) == group.shape and np.isfinite(m).all() and np.isfinite(s).all()
                wanted = f"be finite, of shape {group.shape}, and std not negative;"
                checks.must(good and np.min(s) >= 0, both, wanted, f"{m} and {s}")
                group = group._replace(dtype=np.result_type(group.dtype, np.float32))
            groups.append(group)
        self.groups = tuple(groups)

    def apply(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Shift and scale rows that are not in this table, such as test inputs, in the same way as its rows.

        Args:
            *arrays: one array per group, in order; arrays for the last groups may be left out. Rows and columns of
                frames go by their labels.

        Raises:
            ValueError: if there are more arrays than groups, rows do not have the shape of the group's rows, or labels
                of columns are not those of the table.
        """
        more = f"The table has {len(self.groups)} groups, got {len(arrays)} arrays."
        checks.refuse(len(arrays) > len(self.groups), more)
        names = [f"Array {i}" for i in range(len(arrays))]
        given = zip(aligned(names, arrays), self.groups, names, strict=False)
        arrays = tuple(columns_in_order(x, group.names, name, "the table") for x, group, name in given)
        for position, (array, group) in enumerate(zip(arrays, self.groups, strict=False)):
            shape, wanted = np.shape(array), f"have shape {group.shape}"
            checks.must(shape[1:] == group.shape, f"Rows of array {position}", wanted, str(shape))
        return self._apply(arrays)

    def stored(self, block: int) -> tuple[np.ndarray, ...]:
        """As :meth:`Table.stored`."""
        return self._apply(self.table.stored(block), exact=True)

    def read(self, block: int) -> tuple[np.ndarray, ...]:
        """As :meth:`Table.read`."""
        return self._apply(self.table.stored(block))

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """Plain values that identify this table: the inner table's fingerprint, and a checksum of the moments."""
        digest = hashlib.sha256()
        for values in (*self.mean, *self.std):
            digest.update(b"None" if values is None else np.asarray(values, "<f8").tobytes())
        return self.table.fingerprint | {"standardised": digest.hexdigest()[:16]}

    def _apply(self, arrays: Sequence[np.ndarray], exact: bool = False) -> tuple[np.ndarray, ...]:
        out = []
        for array, group, mean, std in zip(map(np.asarray, arrays), self.groups, self.mean, self.std, strict=False):
            if mean is None:
                out.append(array if exact else array.astype(group.dtype, copy=False))
            else:
                out.append(_scaled(array, mean, std, np.float64 if exact else group.dtype))
        return tuple(out)


def standardised(table: Table, groups: Sequence[int] | None = None, *, keep: Sequence[int] = ()) -> Standardised:
    """Shift and scale the columns of a table to mean 0 and standard deviation 1, with one pass over the table.

    A constant input column becomes 0. A constant target is only shifted. A target of integer classes does not change.
    The method ``standardised`` of a data set in ``gpzoo.reproductions`` has the same rules.

    Example:
        >>> import numpy as np
        >>> from gpzoo.tables import ArrayTable, standardised
        >>> table = standardised(ArrayTable(np.arange(6.0).reshape(3, 2), np.arange(3.0)))
        >>> table.mean[0], table.read(0)[1].round(2)
        (array([2., 3.]), array([-1.22,  0.  ,  1.22]))

    Args:
        table: the table, with inputs first and the target last. A table of one group has inputs only.
        groups: positions of the groups to standardise; ``None`` means all groups except integer classes.
        keep: columns of the inputs (the first group) that do not change, such as codes of categories. Their recorded
            mean is 0, and their recorded standard deviation is 1.

    Raises:
        DatasetError: if a block cannot be read.
        ValueError: for groups that the table does not have, for columns that the inputs do not have, and as for
            :meth:`Table.read`.
    """
    last = len(table.groups) - 1
    kept, shape = [operator.index(column) for column in keep], table.groups[0].shape
    there = f"{shape[0]}, from 0" if len(shape) == 1 else f"none in rows of shape {shape}"
    known = not kept or (len(shape) == 1 and set(kept) <= set(range(shape[0])))
    checks.must(known, "keep", f"name columns of the inputs by number, of which there are {there};", str(kept))
    if groups is None:
        groups = [i for i, g in enumerate(table.groups) if not (i == last > 0 and g.dtype.kind in "iub")]
    own = moments(table, groups)
    mean, std = list(own.mean), list(own.std)
    if kept and mean[0] is not None:
        mean[0][kept], std[0][kept] = 0.0, 1.0
    if last > 0 and std[last] is not None:
        std[last] = np.where(np.equal(std[last], 0.0), 1.0, std[last])
        std[last] = std[last] if table.groups[last].shape else float(std[last])
    return Standardised(table, mean, std)


def _scaled(array: np.ndarray, mean: Any, std: Any, dtype: Any) -> np.ndarray:
    out = np.empty(array.shape, dtype)
    parts = list(pieces(array))
    std = np.asarray(std, np.float64)
    scale = np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)
    # Moments are repeated for every row of a piece: flat arithmetic is faster than broadcasting over short rows.
    rows = len(array[parts[0]]) if parts else 0
    shift, scale = (np.broadcast_to(v, (rows, *array.shape[1:])).ravel() for v in (np.float64(mean), scale))
    for piece in parts:
        values = array[piece].astype(np.float64, order="C")
        flat = values.reshape(-1)
        flat -= shift[: flat.size]
        flat *= scale[: flat.size]
        out[piece] = values
    return out
