"""Readers of formats that data sets share: members of zip archives, npz and IDX files, and numbers in text."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

#: Largest size of the text of an archive, in bytes: that of 50,000 images, rounded up.
_MOST_TEXT = 2**30


def npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file."""
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


@contextmanager
def member(path: Path, name: str) -> Iterator[IO[bytes]]:
    """Open a text in a zip archive, by its whole name or the last part of it; nothing is written.

    Raises:
        ValueError: if there is no such member, or it unpacks to too many bytes.
    """
    with zipfile.ZipFile(path) as archive:
        info = next((info for info in archive.infolist() if info.filename.rpartition("/")[2] == name), None)
        if info is None:
            raise ValueError(f"it has no {name}")
        # The module reads no more than this size.
        if info.file_size > _MOST_TEXT:
            raise ValueError(f"{name} unpacks to {info.file_size:,} bytes, more than {_MOST_TEXT:,}")
        with archive.open(info) as content:
            yield content


def numbers(text: Any, rows: int, columns: int, delimiter: str | None = ",") -> np.ndarray:
    """A table of finite numbers in text, one row a line: float32 ``[rows, columns]``.

    Args:
        text: the lines, or an open file of them.
        rows: number of rows.
        columns: number of columns.
        delimiter: separator of numbers; ``None`` for blanks.

    Raises:
        ValueError: if the text is not such a table.
    """
    table = np.loadtxt(text, np.float32, comments=None, delimiter=delimiter, ndmin=2, max_rows=rows + 1)
    if table.shape != (rows, columns):
        more = "or more " if len(table) > rows else ""
        raise ValueError(f"it has {len(table):,} {more}rows of {table.shape[1]} numbers, not {rows:,} of {columns}")
    if not np.isfinite(table).all():
        raise ValueError("a number is not finite")
    return table


def idx(path: Path) -> np.ndarray:
    """Unsigned bytes in the IDX format: the fourth byte counts the axes, then come their lengths, big-endian int32."""
    with gzip.open(path) as stream:
        content = stream.read()
    axes = content[3]
    shape = np.frombuffer(content, ">i4", count=axes, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)
