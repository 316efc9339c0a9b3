"""Unpacking within stated bounds: compressed text, members of archives, lines, and numbers in lines.

Headers may be wrong, so bytes are counted while they are unpacked. Nothing is unpacked to disk, nothing is unpickled.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import operator
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gpzoo.reproductions.datasets.files import parsing, read

#: Number of lines parsed at a time.
LINES = 16_384
#: Largest total size of the arrays of an npz file, in bytes.
_MOST_ARRAYS = 2**28
#: Largest number of empty lines in a table, such as the last one.
_MOST_EMPTY = 8
#: Largest size of a zip archive's list of members, in bytes.
_MOST_LISTED = 2**20
_END = b"PK\x05\x06"
_END_64 = b"PK\x06\x07"


class _Bounded(io.RawIOBase):
    """A stream that raises an error if it is longer than allowed."""

    def __init__(self, stream: BinaryIO, most: int) -> None:
        self._stream, self._most, self._left = stream, most, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        content = self._stream.read(min(len(buffer), self._left + 1))
        if len(content) > self._left:
            raise ValueError(f"it unpacks to more than {self._most:,} bytes")
        self._left -= len(content)
        buffer[: len(content)] = content
        return len(content)


def _bounded(stream: Any, most: int) -> Any:
    return io.BufferedReader(_Bounded(stream, most), 2**16)


def gunzip(stream: BinaryIO, most: int) -> BinaryIO:
    """The content of a gzip stream, at most ``most`` bytes; reading more is a ``ValueError``."""
    return _bounded(gzip.GzipFile(fileobj=stream), most)


def bunzip2(stream: BinaryIO, most: int) -> BinaryIO:
    """The content of a bzip2 stream, at most ``most`` bytes; reading more is a ``ValueError``."""
    return _bounded(bz2.BZ2File(stream), most)


def unxz(packed: bytes, most: int) -> bytes:
    """The content of an xz file.

    Raises:
        ValueError: if that is more than ``most`` bytes.
        lzma.LZMAError: if it is not an xz file, or unpacking needs more than 256 MiB of further memory.
    """
    unpacker = lzma.LZMADecompressor(memlimit=2**28)
    content = unpacker.decompress(packed, most + 1)
    if len(content) > most:
        raise ValueError(f"it unpacks to more than {most:,} bytes")
    if not unpacker.eof:
        raise EOFError("it was cut off")
    return content


@contextmanager
def member(stream: BinaryIO, name: str, most: int) -> Iterator[BinaryIO]:
    """Open a member of a zip archive, by its whole name or the last part of it.

    Raises:
        ValueError: if there is no such member; if it unpacks to more than ``most`` bytes, is encrypted, or is packed
            by another method than the published ones; if the archive lists a great many members.
    """
    _listed(stream)
    with zipfile.ZipFile(stream) as archive:
        info = next((info for info in archive.infolist() if info.filename.rpartition("/")[2] == name), None)
        if info is None:
            raise ValueError(f"it has no {name}")
        if info.flag_bits & 1:
            raise ValueError(f"{name} is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name} is compressed by method {info.compress_type}, not deflated")
        if info.file_size > most:
            raise ValueError(f"{name} unpacks to {info.file_size:,} bytes, more than {most:,}")
        with archive.open(info) as content:
            yield _bounded(content, most)


def _listed(stream: BinaryIO) -> None:
    """Refuse a list of members that is too long, because :mod:`zipfile` reads it whole."""
    size = stream.seek(0, io.SEEK_END)
    # An archive ends in 22 bytes and a comment of up to 65,535; a large archive has 20 more bytes before them.
    stream.seek(max(0, size - 22 - 65_535 - 20))
    tail = stream.read()
    stream.seek(0)
    ends = [end for end in (len(tail) - 22, tail.rfind(_END)) if end >= 0 and tail.startswith(_END, end)]
    if not ends:
        raise ValueError("it is not a zip archive, or was cut off")
    for end in ends:
        listed = int.from_bytes(tail[end + 12 : end + 16], "little")
        if listed > _MOST_LISTED or tail.startswith(_END_64, max(0, end - 20)):
            raise ValueError(f"its list of members is longer than {_MOST_LISTED:,} bytes")


def members(stream: BinaryIO, names: list[str], most: int) -> list[bytes]:
    """The contents of members of a gzipped tar archive, each of at most ``most`` bytes.

    Raises:
        ValueError: if one is missing, repeated, not a file, or larger.
    """
    contents = []
    # One more member's size leaves room for headers and padding.
    with tarfile.open(fileobj=gunzip(stream, most * (len(names) + 1) + 2**16), mode="r|") as archive:
        for info in archive:
            if info.name in names:
                file = archive.extractfile(info) if info.isreg() else None
                if file is None or info.size > most:
                    raise ValueError(f"{info.name} is not a file of at most {most:,} bytes")
                contents.append((names.index(info.name), file.read()))
    contents.sort(key=operator.itemgetter(0))
    if [place for place, _ in contents] != list(range(len(names))):
        raise ValueError("it does not hold each of its files once")
    return [content for _, content in contents]


def npz(path: Path, most: int, sha256: str) -> dict[str, np.ndarray]:
    """The arrays of an npz file, of at most ``most`` bytes, whose sha256 is known.

    Raises:
        DatasetError: if it has another sha256.
    """
    content = read(path, most, sha256)
    with parsing(path, "arrays of numbers"):
        stream = io.BytesIO(content)
        _listed(stream)
        with np.load(stream, allow_pickle=False) as archive:
            size = sum(info.file_size for info in archive.zip.infolist())
            if size > _MOST_ARRAYS:
                raise ValueError(f"it unpacks to {size:,} bytes, more than {_MOST_ARRAYS:,}")
            return {key: archive[key] for key in archive.files}


def lines(stream: BinaryIO, longest: int) -> Iterator[bytes]:
    """The lines of a stream.

    Raises:
        ValueError: if a line has more than ``longest`` bytes.
    """
    number = 0
    while line := stream.readline(longest + 1):
        number += 1
        if len(line) > longest:
            raise ValueError(f"line {number:,} is longer than {longest:,} bytes")
        yield line


def numbers(stream: BinaryIO, rows: int, columns: int, delimiter: str | None = ",") -> np.ndarray:
    """A table of numbers in text, one row a line, parsed in pieces: float32 ``[n, columns]`` with ``n`` up to ``rows``.

    Args:
        stream: the text.
        rows: largest number of rows.
        columns: number of columns of every row.
        delimiter: separator of numbers; ``None`` for blanks.

    Raises:
        ValueError: if the text is not such a table, a number is not finite, or there are more rows.
    """
    table = np.empty((rows, columns), np.float32)
    filled = empty = 0
    text = lines(stream, 64 + 32 * columns)
    while read := list(islice(text, min(LINES, rows - filled + 1))):
        piece = [line for line in read if not line.isspace()]
        empty += len(read) - len(piece)
        if filled + len(piece) > rows or empty > _MOST_EMPTY:
            raise ValueError("there are more rows")
        if not piece:
            continue
        values = np.loadtxt(piece, np.float32, comments=None, delimiter=delimiter, ndmin=2)
        if values.shape != (len(piece), columns) or not np.isfinite(values).all():
            raise ValueError(f"lines {filled + 1:,} to {filled + len(piece):,} hold something else")
        table[filled : filled + len(piece)] = values
        filled += len(piece)
    return table[:filled]
