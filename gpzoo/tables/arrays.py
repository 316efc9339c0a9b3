"""Tables of arrays, in memory or in mapped files."""

from __future__ import annotations

import mmap
import operator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpzoo import _checks as checks
from gpzoo._labels import aligned, columns_in
from gpzoo._types import ArrayLike
from gpzoo.errors import DatasetError
from gpzoo.tables.files import opened
from gpzoo.tables.table import ColumnGroup, Table

# -- arrays ----------------------------------------------------------------------------------------------------------


class ArrayTable(Table):
    """A table of NumPy arrays with the same number of rows, in memory or mapped from files by :class:`numpy.memmap`.

    The table never copies a whole mapped array, or a view of it such as ``data[:, :8]``. The table reads the rows of
    mapped arrays directly from the file, because pages of a mapping would stay in the memory of the process. It uses
    the mapping only if rows are not contiguous in the file (Fortran order).

    Example:
        >>> import numpy as np
        >>> from gpzoo.tables import ArrayTable
        >>> table = ArrayTable(np.zeros((1000, 3), np.float32), np.zeros(1000, np.float32))
        >>> table.num_rows, [group.shape for group in table.groups]
        (1000, [(3,), ()])

    Args:
        *arrays: arrays ``[N, ...]``, one for each argument of the model. The inputs come first, and the target last.
            Rows of frames and Series go by their labels.
        block_size: number of rows of a block; the rows of a block are read at once.
        dtype: dtype for floating-point arrays; ``None`` keeps the dtype of each array. Integers (classes) are not
            converted.

    Raises:
        TypeError: if an array does not hold real numbers, or ``dtype`` is not floating.
        ValueError: if there are no arrays or no rows, an array is masked, the numbers of rows differ, or ``block_size``
            is below 1.
    """

    def __init__(self, *arrays: ArrayLike, block_size: int = 65_536, dtype: Any = None) -> None:
        arrays = aligned([f"Array {i}" for i in range(len(arrays))], arrays)
        self._arrays = tuple(_checked(i, array, dtype) for i, array in enumerate(arrays))
        shapes = [array.shape for array in self._arrays]
        if not shapes or () in shapes:
            raise ValueError(f"A table takes arrays with one row per datum, got shapes {shapes}.")
        if len({shape[0] for shape in shapes}) > 1:
            raise ValueError(f"The arrays of a table must have the same number of rows, got shapes {shapes}.")
        if any(0 in shape for shape in shapes):
            raise ValueError(f"The table is empty: its arrays have shapes {shapes}, at least one row is needed.")
        checks.must(operator.index(block_size) >= 1, "block_size", "be 1 or more", str(block_size))
        self._starts = np.arange(0, shapes[0][0], block_size)
        self.block_rows = np.diff(self._starts, append=shapes[0][0])
        groups = []
        for array, given in zip(self._arrays, arrays, strict=True):
            own = dtype is None or array.dtype.kind != "f"
            names = tuple(map(str, columns_in(given)))
            groups.append(
                ColumnGroup(array.shape[1:], array.dtype.newbyteorder("=") if own else floating(dtype), names)
            )
        self.groups, self._places = tuple(groups), tuple(map(_place, self._arrays))

    def stored(self, block: int) -> tuple[np.ndarray, ...]:
        """As :meth:`Table.stored`. For arrays in memory, the results are views, which must not be changed."""
        start = int(self._starts[block])
        stop = start + int(self.block_rows[block])
        out = []
        for position, (array, place) in enumerate(zip(self._arrays, self._places, strict=True)):
            rows = array[start:stop] if place is None else place.rows(array, start, stop)
            out.append(self._finite(block, position, rows))
        return tuple(out)

    def _where(self, block: int) -> str:
        start = int(self._starts[block])
        files = sorted({place.path for place in self._places if place is not None})
        of = f" of {', '.join(files)}" if files else ""
        return f"block {block} (rows {start} to {start + int(self.block_rows[block])}{of})"


def _checked(position: int, array: ArrayLike, dtype: Any) -> np.ndarray:
    """An argument as an array of real numbers."""
    if isinstance(array, np.ma.MaskedArray):
        raise ValueError(
            f"Array {position} is a masked array, whose mask would be lost: pass array.filled(0), and the mask "
            "as a separate array for numpyro.handlers.mask."
        )
    array = array if isinstance(array, np.ndarray) else np.asarray(array)
    kind, name = array.dtype.kind, f"dtype {array.dtype}"
    if kind not in "fiub":
        raise TypeError(f"Array {position} must be of real numbers, got {name}.")
    if dtype is None and kind == "f" and array.dtype.itemsize not in (4, 8):
        raise TypeError(f"Array {position} has {name}, which is not supported: pass dtype=numpy.float32.")
    return array


def floating(dtype: Any) -> np.dtype:
    """The dtype, if it is floating.

    Raises:
        TypeError: if the dtype is not floating.
    """
    checks.refuse(np.dtype(dtype).kind != "f", f"dtype must be floating, got {dtype}.", TypeError)
    return np.dtype(dtype)


class _Place(NamedTuple):
    """The rows of a mapped array in its file: the path, the first byte, and the bytes of one row."""

    path: str
    offset: int
    row_bytes: int

    def rows(self, array: np.ndarray, start: int, stop: int) -> np.ndarray:
        stride = array.strides[0]
        count = (stop - start - 1) * stride + self.row_bytes
        failed = f"cannot read rows {start} to {stop} of {self.path}:"
        try:
            with opened(Path(self.path), None) as stream:
                content = np.fromfile(stream, np.uint8, count, offset=self.offset + start * stride)
        except OSError as error:
            raise DatasetError(f"{failed} {error.strerror or error}.") from error
        checks.refuse(content.size < count, f"{failed} the file has become shorter.", DatasetError)
        return np.ndarray((stop - start, *array.shape[1:]), array.dtype, content, 0, array.strides)


def _place(array: np.ndarray) -> _Place | None:
    """The place of a mapped array or of its view; ``None`` if it is in memory or not in the order of rows."""
    owner, mapped = array, None
    while isinstance(owner, np.ndarray):
        if isinstance(owner, np.memmap) and owner.filename is not None:
            mapped = owner
        owner = owner.base
    row_bytes = array.itemsize + sum((n - 1) * step for n, step in zip(array.shape[1:], array.strides[1:], strict=True))
    # If whole pages lie between two rows, as in a view of every thousandth row, the mapping reads fewer bytes.
    ordered = min(array.strides) >= 0 and row_bytes <= array.strides[0] <= row_bytes + mmap.PAGESIZE
    # A copy-on-write mapping may differ from its file.
    if mapped is None or mapped.mode == "c" or not isinstance(owner, mmap.mmap) or not ordered:
        return None
    # A view has the ``offset`` of its parent, so only the view's address tells the start of its rows.
    begin = mapped.offset - mapped.offset % mmap.ALLOCATIONGRANULARITY
    inside = array.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
    return _Place(str(mapped.filename), begin + inside, row_bytes)
