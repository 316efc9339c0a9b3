"""Tables in Parquet files, read one block at a time.

The module does not use ``pyarrow.dataset``, which also finds files and row groups. ``pyarrow.dataset`` reads every file
with the schema of the first file, so integers of a second file became doubles. It also does not replace the checks of
this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from gpzoo import _checks as checks
from gpzoo._extras import needs
from gpzoo.errors import DatasetError
from gpzoo.tables.arrays import floating
from gpzoo.tables.files import opened, reason, unreadable
from gpzoo.tables.table import ColumnGroup, Table, pieces

# -- Parquet ---------------------------------------------------------------------------------------------------------


class ParquetTable(Table):
    """A table of columns of Parquet files.

    A row group of a file is a block, which the table reads at once. If possible, write the files with a million rows or
    fewer in each row group.

    Example:
        >>> import pathlib, tempfile, pyarrow as pa, pyarrow.parquet as pq
        >>> from gpzoo.tables import ParquetTable
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.parquet"
        >>> pq.write_table(pa.table({"x": [0.0, 1.0], "y": [2.0, 3.0]}), path)
        >>> ParquetTable(path, columns=["x"], target="y").read(0)
        (array([[0.],
               [1.]], dtype=float32), array([2., 3.], dtype=float32))

    Args:
        paths: a file, a folder (all its ``*.parquet`` files, sorted by name), or a sequence of files and folders.
        columns: names of the inputs, ``[N, len(columns)]``.
        target: name of the target, ``[N]``; ``None`` if the table has no target.
        classes: whether the target is integer classes and not real numbers. Classes are returned as int32.
        dtype: dtype of the inputs and of a real target. Moments are computed in the precision of the files.

    Raises:
        ImportError: if pyarrow is not installed.
        DatasetError: if a file is missing or cannot be read.
        ValueError: if a column is missing or repeated, or there are no rows.
        TypeError: if a column does not hold numbers, or ``dtype`` is not floating.
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
        good = bool(columns) and len(set(self._names)) == len(self._names)
        wanted = "be one or more different names"
        checks.must(good, "columns and target", wanted, f"{columns} and {target!r}")
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
        checks.refuse(not rows, f"The table is empty: {paths} has no rows.")
        self.block_rows = np.asarray(rows)
        dtype = floating(dtype)
        self.groups = (ColumnGroup((len(columns),), dtype, columns),)
        if target is not None:
            self.groups += (ColumnGroup((), np.dtype(np.int32) if classes else dtype, (target,)),)
        # The smallest floating type that holds the stored values.
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
                raise ValueError(f"it has {content.num_rows} rows instead of {self.block_rows[block]}")
        values = {}
        for name in self._names:
            column = content.column(name)
            if column.null_count:
                nulls = f"{column.null_count} null values in {self._where(block)}"
                raise ValueError(f"Column {name!r} has {nulls}. Remove or impute such rows.")
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
    """Turn every error of reading Parquet into a :class:`DatasetError` that names ``what``."""
    try:
        yield
    except DatasetError:
        raise
    # Damaged files cause errors of many kinds.
    except Exception as error:
        raise unreadable(what, reason(error)) from error


def _pyarrow() -> tuple[Any, Any]:
    with needs("parquet", "Reading Parquet files"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow, pyarrow.parquet


def _files(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    files: list[Path] = []
    for path in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        inside = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
        inside = [file for file in inside if file.is_file()]
        if not inside:
            why = "holds no *.parquet files" if path.is_dir() else "does not exist"
            raise DatasetError(f"cannot read {path}: it {why}.")
        files += inside
    checks.must(files, "paths", "name at least one Parquet file or folder", "none")
    return files


def _number_type(path: Path, schema: Any, name: str, integer: bool) -> np.dtype:
    """The NumPy type of a column.

    Raises:
        ValueError: if there is not exactly one column of this name.
        TypeError: if the column does not hold numbers; with ``integer``, if it does not hold integers.
    """
    import pyarrow as pa

    index = schema.get_field_index(name)
    checks.refuse(index < 0, f"{path} must have one column {name!r}; its columns are {schema.names}.")
    kind = schema.field(index).type
    good = pa.types.is_integer(kind) or (not integer and (pa.types.is_floating(kind) or pa.types.is_boolean(kind)))
    if not good:
        wanted = "integer classes" if integer else "numbers"
        raise TypeError(f"Column {name!r} of {path} must hold {wanted}, its type is {kind}. Convert it first.")
    return np.dtype(kind.to_pandas_dtype())
