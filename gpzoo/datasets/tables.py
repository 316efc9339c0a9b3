"""Tables that need fit neither device nor memory: rows in arrays, mapped files or Parquet, read in blocks."""

from __future__ import annotations

import hashlib
import math
import mmap
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpzoo.datasets.files import DatasetError, opened, reason, unreadable
from gpzoo.datasets.files import fingerprint as sha256_of

#: Values that arithmetic in float64 converts at a time: they stay in the processor's cache, and memory stays flat.
_PIECE = 65_536

#: Bytes of rows, from either end of a table, that tell it from others: they are read and hashed in a second or two.
_SEEN_BYTES = 2**27


class ColumnGroup(NamedTuple):
    """The columns that are one argument of a model: ``n`` rows of them are an array ``[n, *shape]``.

    Attributes:
        shape: of one row: ``(d,)`` for ``d`` inputs, ``()`` for a target.
        dtype: of the minibatches and of :meth:`Table.read`.
        names: of the columns, where they have any.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    names: tuple[str, ...] = ()


class Table(ABC):
    """Rows in memory or on disk, read in blocks of contiguous rows.

    A table of another kind sets ``groups`` and ``block_rows`` and defines :meth:`stored`.

    Attributes:
        groups: one :class:`ColumnGroup` per argument of the model, inputs first, the target (if there is one) last.
        block_rows: rows of each block, ``[num_blocks]``, none of them 0.
    """

    groups: tuple[ColumnGroup, ...]
    block_rows: np.ndarray

    @property
    def num_rows(self) -> int:
        """Rows of all blocks."""
        return int(self.block_rows.sum())

    @abstractmethod
    def stored(self, block: int) -> tuple[np.ndarray, ...]:
        """The rows of a block, one array ``[n, *shape]`` per group, in the precision in which they are stored.

        Moments are computed and subtracted in it: a column with mean 1e8 and deviation 1 is lost in float32.

        Raises:
            DatasetError: if the block cannot be read.
            ValueError: for null values, NaN and infinity, naming the block and the column.
        """

    def read(self, block: int) -> tuple[np.ndarray, ...]:
        """The rows of a block, one array ``[n, *shape]`` per group, in the dtype of the group.

        Raises:
            DatasetError: if the block cannot be read.
            ValueError: for null values, NaN and infinity, naming the block and the column.
        """
        arrays = self.stored(block)
        with np.errstate(over="ignore"):
            cast = tuple(array.astype(g.dtype, copy=False) for array, g in zip(arrays, self.groups, strict=True))
        for position, (before, after) in enumerate(zip(arrays, cast, strict=True)):
            if before.dtype.kind == "f" and after.dtype.itemsize < before.dtype.itemsize:
                self._finite(block, position, after, f"which {after.dtype} cannot hold")
        return cast

    def head(self, rows: int) -> tuple[np.ndarray, ...]:
        """The first rows, one array ``[rows, *shape]`` per group; in a sorted table they are not like the others.

        Raises:
            DatasetError: if a block cannot be read.
            ValueError: if there are fewer rows, or none is asked for, or as :meth:`read`.
        """
        rows = operator.index(rows)
        if not 1 <= rows <= self.num_rows:
            raise ValueError(f"rows must be between 1 and the {self.num_rows} of the table, got {rows}.")
        out = empty(self.groups, rows)
        filled = 0
        for block in range(len(self.block_rows)):
            for target, array in zip(out, self.read(block), strict=True):
                target[filled : filled + len(array)] = array[: rows - filled]
            filled += int(self.block_rows[block])
            if filled >= rows:
                break
        return out

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """Plain values that tell this table from others; its first and last rows are read for it, 128 MB of each.

        Rows between them are not looked at, as ``"seen"`` says: tables that differ there alone have one fingerprint,
        unless the difference shows in what the kind of table knows of all blocks, such as their compressed sizes.
        """
        digest = hashlib.sha256(np.ascontiguousarray(self._layout(), "<i8"))
        row = sum(math.prod(group.shape) * group.dtype.itemsize for group in self.groups)
        ends = np.cumsum(self.block_rows)
        # Whole blocks, at least one from either end.
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
        """What is known of every block without reading it."""
        return self.block_rows

    def _where(self, block: int) -> str:
        """How errors name a block."""
        return f"block {block}"

    def _column(self, position: int, index: Sequence[int]) -> str:
        """How errors name a column of a group."""
        names = self.groups[position].names
        if names:
            return f"Column {names[index[0] if len(index) else 0]!r}"
        return f"Array {position}" + (f", column {', '.join(map(str, index))}," if len(index) else "")

    def _finite(self, block: int, position: int, array: np.ndarray, what: str = "which is not finite") -> np.ndarray:
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            row, *index = np.argwhere(~np.isfinite(array))[0].tolist()
            raise ValueError(
                f"{self._column(position, index)} has a value {what}, in row {row} of {self._where(block)}. "
                "Remove or impute such rows."
            )
        return array


# -- arrays ----------------------------------------------------------------------------------------------------------


class ArrayTable(Table):
    """NumPy arrays with one row per datum, in memory or mapped from files with :class:`numpy.memmap`.

    Mapped arrays (and views of them, as ``data[:, :8]``) are never copied whole. Their rows are read from the file
    instead of through the mapping, whose pages would stay in the process's memory; only where rows do not follow one
    another in the file (Fortran order) is the mapping used.

    Args:
        *arrays: ``[N, ...]``, one per argument of the model, inputs first, the target last.
        block_size: rows of a block.
        dtype: to which floating-point arrays are converted; ``None`` leaves them theirs. Integers (classes) stay.

    Raises:
        TypeError: for arrays that are not of real numbers, or a ``dtype`` that is not floating.
        ValueError: for no arrays, masked arrays, arrays of different numbers of rows, no rows, or a ``block_size``
            below 1.
    """

    def __init__(self, *arrays: np.ndarray, block_size: int = 65_536, dtype: Any = None) -> None:
        for position, array in enumerate(arrays):
            if isinstance(array, np.ma.MaskedArray):
                raise ValueError(
                    f"Array {position} is a masked array, whose mask would be lost: pass array.filled(0) and, as an "
                    "array of its own, the mask, for numpyro.handlers.mask."
                )
        self._arrays = tuple(a if isinstance(a, np.ndarray) else np.asarray(a) for a in arrays)
        shapes = [a.shape for a in self._arrays]
        for position, array in enumerate(self._arrays):
            if array.dtype.kind not in "fiub":
                raise TypeError(f"Array {position} must be of real numbers, got dtype {array.dtype}.")
            if dtype is None and array.dtype.kind == "f" and array.dtype.itemsize not in (4, 8):
                raise TypeError(
                    f"Array {position} has dtype {array.dtype}, in which nothing is computed: pass dtype=numpy.float32."
                )
        if not shapes or any(len(shape) == 0 for shape in shapes):
            raise ValueError(f"A table takes arrays with one row per datum, got shapes {shapes}.")
        if len({shape[0] for shape in shapes}) > 1:
            raise ValueError(f"The arrays of a table must have one number of rows, got shapes {shapes}.")
        if any(0 in shape for shape in shapes):
            raise ValueError(f"The table is empty: its arrays have shapes {shapes}, at least one row is needed.")
        if operator.index(block_size) < 1:
            raise ValueError(f"block_size must be 1 or more, got {block_size}.")
        self._starts = np.arange(0, shapes[0][0], block_size)
        self.block_rows = np.diff(self._starts, append=shapes[0][0])
        self.groups = tuple(
            ColumnGroup(
                a.shape[1:], a.dtype.newbyteorder("=") if dtype is None or a.dtype.kind != "f" else _floating(dtype)
            )
            for a in self._arrays
        )
        self._places = tuple(_place(a) for a in self._arrays)

    def stored(self, block: int) -> tuple[np.ndarray, ...]:
        """As :meth:`Table.stored`; views of arrays in memory, not to be written to."""
        start = int(self._starts[block])
        stop = start + int(self.block_rows[block])
        rows = (
            array[start:stop] if place is None else place.rows(array, start, stop)
            for array, place in zip(self._arrays, self._places, strict=True)
        )
        return tuple(self._finite(block, position, array) for position, array in enumerate(rows))

    def _where(self, block: int) -> str:
        start = int(self._starts[block])
        files = sorted({place.path for place in self._places if place is not None})
        of = f" of {', '.join(files)}" if files else ""
        return f"block {block} (rows {start} to {start + int(self.block_rows[block])}{of})"


def _floating(dtype: Any) -> np.dtype:
    if np.dtype(dtype).kind != "f":
        raise TypeError(f"dtype must be floating, got {dtype}.")
    return np.dtype(dtype)


class _Place(NamedTuple):
    """Where the rows of a mapped array lie: in which file, from which byte on, and how many bytes hold one."""

    path: str
    offset: int
    row_bytes: int

    def rows(self, array: np.ndarray, start: int, stop: int) -> np.ndarray:
        stride = array.strides[0]
        count = (stop - start - 1) * stride + self.row_bytes
        try:
            with opened(Path(self.path), None) as stream:
                content = np.fromfile(stream, np.uint8, count, offset=self.offset + start * stride)
        except OSError as error:
            raise DatasetError(
                f"cannot read rows {start} to {stop} of {self.path}: {error.strerror or error}."
            ) from error
        if content.size < count:
            raise DatasetError(f"cannot read rows {start} to {stop} of {self.path}: the file has become shorter.")
        return np.ndarray((stop - start, *array.shape[1:]), array.dtype, content, 0, array.strides)


def _place(array: np.ndarray) -> _Place | None:
    """The place of a mapped array or a view of one; ``None`` for what is in memory or not in the order of rows."""
    owner, mapped = array, None
    while isinstance(owner, np.ndarray):
        if isinstance(owner, np.memmap) and owner.filename is not None:
            mapped = owner
        owner = owner.base
    row_bytes = array.itemsize + sum((n - 1) * step for n, step in zip(array.shape[1:], array.strides[1:], strict=True))
    # Where pages lie between two rows, as in every thousandth row, the mapping reads less.
    ordered = min(array.strides) >= 0 and row_bytes <= array.strides[0] <= row_bytes + mmap.PAGESIZE
    # Changes to a copy-on-write mapping are not in its file.
    if mapped is None or mapped.mode == "c" or not isinstance(owner, mmap.mmap) or not ordered:
        return None
    # A view keeps its parent's ``offset``: where its own rows start is told by its address.
    begin = mapped.offset - mapped.offset % mmap.ALLOCATIONGRANULARITY
    inside = array.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
    return _Place(str(mapped.filename), begin + inside, row_bytes)


# -- Parquet ---------------------------------------------------------------------------------------------------------


class ParquetTable(Table):
    """Columns of Parquet files; a block is a row group, so that files are best written with up to a million rows each.

    Args:
        paths: a file, a folder (all its ``*.parquet``, by name), or a sequence of these.
        columns: names of the inputs, ``[N, len(columns)]``.
        target: name of the target, ``[N]``; ``None`` for a table of inputs alone.
        classes: the target is integer classes, given as int32, rather than real.
        dtype: of inputs and of a real target. Moments are computed in the precision of the files.

    Raises:
        ImportError: if pyarrow is not installed.
        DatasetError: for files that are missing or cannot be read.
        ValueError: for missing or repeated columns, or no rows.
        TypeError: for columns that are not numbers, or a ``dtype`` that is not floating.
    """

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        columns: Sequence[str],
        target: str | None = None,
        classes: bool = False,
        dtype: Any = np.float32,
    ) -> None:
        _, pq = _pyarrow()
        columns = (columns,) if isinstance(columns, str) else tuple(columns)
        self._names = columns + (() if target is None else (target,))
        if not columns or len(set(self._names)) < len(self._names):
            raise ValueError(f"columns and target must be one or more different names, got {columns} and {target!r}.")
        self._blocks, rows, types = [], [], {name: np.dtype(np.float32) for name in self._names}
        for path in _files(paths):
            with _reading(f"{path} as Parquet"), opened(path, None) as stream:
                metadata = pq.read_metadata(stream)
                schema = metadata.schema.to_arrow_schema()
            for name in self._names:
                types[name] = np.result_type(types[name], _number_type(path, schema, name, classes and name == target))
            for group in range(metadata.num_row_groups):
                if metadata.row_group(group).num_rows > 0:
                    self._blocks.append((path, group, metadata))
                    rows.append(metadata.row_group(group).num_rows)
        if not rows:
            raise ValueError(f"The table is empty: {paths} has no rows.")
        self.block_rows = np.asarray(rows)
        dtype = _floating(dtype)
        self.groups = (ColumnGroup((len(columns),), dtype, columns),)
        if target is not None:
            self.groups += (ColumnGroup((), np.dtype(np.int32) if classes else dtype, (target,)),)
        # The smallest floating type that holds what is stored.
        self._types = tuple(np.result_type(*(types[name] for name in group.names)) for group in self.groups)

    def stored(self, block: int) -> tuple[np.ndarray, ...]:
        """As :meth:`Table.stored`."""
        _, pq = _pyarrow()
        path, group, metadata = self._blocks[block]
        with (
            _reading(self._where(block)),
            opened(path, None) as stream,
            pq.ParquetFile(stream, metadata=metadata) as file,
        ):
            content = file.read_row_group(group, columns=list(self._names))
            if content.num_rows != self.block_rows[block]:
                raise ValueError(f"it has {content.num_rows} rows, {self.block_rows[block]} were announced")
        values = {}
        for name in self._names:
            column = content.column(name)
            if column.null_count:
                raise ValueError(
                    f"Column {name!r} has {column.null_count} null values in {self._where(block)}. "
                    "Remove or impute such rows."
                )
            values[name] = column.to_numpy()
        out = []
        for position, (g, dtype) in enumerate(zip(self.groups, self._types, strict=True)):
            if not g.shape:
                array = values[g.names[0]]
                array = array.astype(dtype if g.dtype.kind == "f" else array.dtype, copy=False)
            else:
                array = np.empty((content.num_rows, len(g.names)), dtype)
                for piece in pieces(array):
                    for j, name in enumerate(g.names):
                        array[piece, j] = values[name][piece]
            out.append(self._finite(block, position, array))
        return tuple(out)

    def _layout(self) -> np.ndarray:
        sizes = [metadata.row_group(group).total_byte_size for _, group, metadata in self._blocks]
        return np.stack([self.block_rows, sizes])

    def _where(self, block: int) -> str:
        path, group, _ = self._blocks[block]
        return f"row group {group} of {path}"


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Turn whatever goes wrong while Parquet is read into the error that names it."""
    try:
        yield
    except DatasetError:
        raise
    # Damaged files are met with errors of many kinds.
    except Exception as error:
        raise unreadable(what, reason(error)) from error


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("Parquet files are read with pyarrow: pip install 'gpzoo[parquet]'.") from error
    return pyarrow, pyarrow.parquet


def _files(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    found: list[Path] = []
    for path in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        inside = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
        inside = [file for file in inside if file.is_file()]
        if not inside:
            what = "holds no *.parquet files" if path.is_dir() else "does not exist"
            raise DatasetError(f"cannot read {path}: it {what}.")
        found += inside
    if not found:
        raise ValueError("paths must name at least one Parquet file or folder, got none.")
    return found


def _number_type(path: Path, schema: Any, name: str, integer: bool) -> np.dtype:
    """The NumPy type of a column.

    Raises:
        ValueError: if there is not exactly one column of that name.
        TypeError: if it does not hold numbers, or ``integer`` and not integers.
    """
    import pyarrow as pa

    index = schema.get_field_index(name)
    if index < 0:
        raise ValueError(f"{path} must have one column {name!r}; its columns are {schema.names}.")
    kind = schema.field(index).type
    if not (pa.types.is_integer(kind) or (not integer and (pa.types.is_floating(kind) or pa.types.is_boolean(kind)))):
        wanted = "integer classes" if integer else "numbers"
        raise TypeError(f"Column {name!r} of {path} must hold {wanted}, its type is {kind}. Convert it before.")
    return np.dtype(kind.to_pandas_dtype())


def empty(groups: Sequence[ColumnGroup], rows: int) -> tuple[np.ndarray, ...]:
    """Arrays for so many rows, one per group."""
    return tuple(np.empty((rows, *group.shape), group.dtype) for group in groups)


def pieces(array: np.ndarray) -> Iterator[slice]:
    """Slices of rows that cover an array, each small enough for the processor's cache."""
    rows = max(1, _PIECE // max(1, math.prod(array.shape[1:])))
    return (slice(start, start + rows) for start in range(0, len(array), rows))
