"""The base class of tables, which may be larger than memory: groups of columns, read in blocks of rows."""

from __future__ import annotations

import hashlib
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gpzoo import _checks as checks
from gpzoo._digests import fingerprint as sha256_of

#: Number of values converted to float64 at a time: they fit into the processor's cache, and memory use stays constant.
_PIECE = 65_536

#: Bytes of rows at each end of a table that a fingerprint hashes. This takes a second or two.
_SEEN_BYTES = 2**27


class ColumnGroup(NamedTuple):
    """The columns for one argument of a model; ``n`` rows of these columns are an array ``[n, *shape]``.

    Example:
        >>> import numpy as np
        >>> from gpzoo.tables import ArrayTable
        >>> ArrayTable(np.zeros((10, 3), np.float32), np.zeros(10, np.int32)).groups[1]
        ColumnGroup(shape=(), dtype=dtype('int32'), names=())

    Attributes:
        shape: shape of one row: ``(d,)`` for ``d`` inputs, ``()`` for a target.
        dtype: dtype of the minibatches and of :meth:`Table.read`.
        names: names of the columns, if they have any.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    names: tuple[str, ...] = ()


class Table(ABC):
    """The base class of tables: rows in memory or on disk, read in blocks of contiguous rows.

    A subclass sets ``groups`` and ``block_rows`` and defines :meth:`stored`.

    Example:
        >>> import numpy as np
        >>> from gpzoo.tables import ColumnGroup, Table
        >>> class Squares(Table):
        ...     groups = (ColumnGroup((1,), np.dtype("float32")), ColumnGroup((), np.dtype("float32")))
        ...     block_rows = np.array([100, 100])
        ...
        ...     def stored(self, block):
        ...         x = np.arange(100 * block, 100 * block + 100, dtype=np.float32)
        ...         return x[:, None], x**2
        >>> table = Squares()
        >>> table.num_rows, table.read(1)[1][:2]
        (200, array([10000., 10201.], dtype=float32))

    Attributes:
        groups: one :class:`ColumnGroup` per argument of the model. The inputs come first, and the target (if there is
            one) last.
        block_rows: number of rows of each block, ``[num_blocks]``. No block is empty.
    """

    groups: tuple[ColumnGroup, ...]
    block_rows: np.ndarray

    @property
    def num_rows(self) -> int:
        """Number of rows of all blocks."""
        return int(self.block_rows.sum())

    @abstractmethod
    def stored(self, block: int) -> tuple[np.ndarray, ...]:
        """The rows of a block, one array ``[n, *shape]`` per group, in the stored precision.

        Moments are computed and subtracted in this precision, because float32 would lose the differences in a column
        with mean 1e8 and deviation 1.

        Raises:
            DatasetError: if the block cannot be read.
            ValueError: for null values, NaN and infinity; the message names the block and the column.
        """

    def read(self, block: int) -> tuple[np.ndarray, ...]:
        """The rows of a block, one array ``[n, *shape]`` per group, in the dtype of the group.

        Raises:
            DatasetError: if the block cannot be read.
            ValueError: for null values, NaN and infinity; the message names the block and the column.
        """
        arrays = self.stored(block)
        with np.errstate(over="ignore"):
            cast = tuple(array.astype(g.dtype, copy=False) for array, g in zip(arrays, self.groups, strict=True))
        for position, (before, after) in enumerate(zip(arrays, cast, strict=True)):
            what = f"which {after.dtype} cannot hold"
            if before.dtype.kind == "f" and after.dtype.itemsize < before.dtype.itemsize:
                self._finite(block, position, after, what)
            if before.dtype.kind in "iu" and after.dtype.kind in "iu" and before.dtype != after.dtype:
                self._refuse(block, position, before != after, what)
        return cast

    def head(self, rows: int) -> tuple[np.ndarray, ...]:
        """The first rows, one array ``[rows, *shape]`` per group. If the table is sorted, they are not representative.

        Raises:
            DatasetError: if a block cannot be read.
            ValueError: if ``rows`` is below 1 or more than the table has, and as for :meth:`read`.
        """
        rows = operator.index(rows)
        checks.must(1 <= rows <= self.num_rows, "rows", f"be between 1 and the {self.num_rows} of the table", str(rows))
        return self.rows(self.in_blocks(np.arange(rows)))

    def in_blocks(self, rows: np.ndarray) -> list[np.ndarray]:
        """Row numbers of the table, in ascending order, converted to row numbers within each block."""
        ends = np.cumsum(self.block_rows)
        parts = np.split(rows, np.searchsorted(rows, ends[:-1]))
        return [part - (end - size) for part, end, size in zip(parts, ends, self.block_rows, strict=True)]

    def rows(self, parts: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Rows ``parts[b]`` of each block ``b``, one array per group of columns. Blocks without them are not read."""
        out, filled = empty(self.groups, sum(map(len, parts))), 0
        for block, part in enumerate(parts):
            for target, array in zip(out, self.read(block) if len(part) else (), strict=False):
                target[filled : filled + len(part)] = array[part]
            filled += len(part)
        return out

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """Plain values that identify this table, from 128 MB of its first rows and 128 MB of its last rows.

        Rows between the first and the last rows are not read. Two tables that differ only in these rows have the same
        fingerprint, if the sizes of their blocks are the same. The entry ``"seen"`` says which rows were read.
        """
        digest = hashlib.sha256(np.ascontiguousarray(self._layout(), "<i8"))
        row = sum(math.prod(group.shape) * group.dtype.itemsize for group in self.groups)
        ends = np.cumsum(self.block_rows)
        # Only whole blocks are read, at least one from each end.
        first = int(np.searchsorted(ends * row, _SEEN_BYTES)) + 1
        last = max(first, int(np.searchsorted(ends * row, ends[-1] * row - _SEEN_BYTES, side="right")))
        for block in (*range(min(first, len(ends))), *range(last, len(ends))):
            digest.update(sha256_of({str(i): array for i, array in enumerate(self.read(block))}).encode())
        seen = "all rows"
        if last > first:
            counts = f"first {ends[first - 1]} and last {ends[-1] - ends[last - 1]}"
            seen = f"{counts} rows; those between are not looked at"
        return {
            "kind": type(self).__name__,
            "rows": self.num_rows,
            "blocks": len(self.block_rows),
            "columns": [f"{g.dtype}{list(g.shape)} {', '.join(g.names)}".strip() for g in self.groups],
            "seen": seen,
            "checksum": digest.hexdigest()[:16],
        }

    def _layout(self) -> np.ndarray:
        """The layout of every block, known without reading it."""
        return self.block_rows

    def _where(self, block: int) -> str:
        """The name of a block in errors."""
        return f"block {block}"

    def _column(self, position: int, index: Sequence[int]) -> str:
        """The name of a group's column in errors."""
        names = self.groups[position].names
        if names:
            return f"Column {names[index[0] if len(index) else 0]!r}"
        return f"Array {position}" + (f", column {', '.join(map(str, index))}," if len(index) else "")

    def _finite(self, block: int, position: int, array: np.ndarray, what: str = "which is not finite") -> np.ndarray:
        if array.dtype.kind == "f":
            self._refuse(block, position, ~np.isfinite(array), what)
        return array

    def _refuse(self, block: int, position: int, bad: np.ndarray, what: str) -> None:
        if bad.any():
            row, *index = checks.first_of(bad)
            told = f"{self._column(position, index)} has a value {what}, in row {row} of {self._where(block)}."
            raise ValueError(f"{told} Remove or impute such rows.")


def empty(groups: Sequence[ColumnGroup], rows: int) -> tuple[np.ndarray, ...]:
    """Uninitialised arrays for ``rows`` rows, one per group."""
    return tuple(np.empty((rows, *group.shape), group.dtype) for group in groups)


def pieces(array: np.ndarray) -> Iterator[slice]:
    """Slices of rows that cover an array, each small enough for the processor's cache."""
    rows = max(1, _PIECE // max(1, math.prod(array.shape[1:])))
    return (slice(start, start + rows) for start in range(0, len(array), rows))
