"""Checks of files before they are read: their kind, their size and, if it is known, their digest."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from gpzoo.errors import DatasetError


def unreadable(what: Path | str, reason: str, advice: str = "Replace or remove it") -> DatasetError:
    """The error for a file, a folder or a part of a file that cannot be read at all."""
    return DatasetError(f"cannot read {what}: {reason}. {advice}.")


def reason(error: BaseException) -> str:
    """The reason of a failure: the first line of the error's message, shortened."""
    lines = str(getattr(error, "strerror", None) or error).strip().splitlines()
    text = lines[0].rstrip(".") if lines else type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}..."


# -- reading -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def opened(path: Path, most: int | None, digest: str | None = None, method: str = "sha256") -> Iterator[BufferedReader]:
    """Open a file for reading, after checks of its kind, its size and its digest.

    Args:
        path: the file, or a link to it.
        most: largest number of bytes. ``None`` only for the user's own table, which is read block by block.
        digest: the file's expected digest; ``None`` if it is not known.
        method: the digest's method, a name in ``hashlib``.

    Raises:
        DatasetError: if the file is not a regular file (pipes and devices are refused before they are opened), is too
            large, does not have this digest or cannot be read.
    """
    try:
        # Checked before opening, because opening can affect a device. Checked again after opening, because the file may
        # have been replaced in between.
        _regular(path, os.stat(path), most, digest, method)
        stream = open(os.fspath(path), "rb", opener=_open_without_waiting)
    except (OSError, ValueError) as error:
        raise unreadable(path, reason(error)) from error
    with stream:
        _regular(path, os.fstat(stream.fileno()), most, digest, method)
        if digest is not None:
            found = checksum(path, stream, method)
            if found != digest:
                raise unlike(path, f"{method} {digest}", found)
        yield stream


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _regular(path: Path, status: os.stat_result, most: int | None, digest: str | None, method: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe, socket or device"
        raise unreadable(path, f"it is {kind}, not a file")
    if most is not None and status.st_size > most:
        known = "" if digest is None else f" and {method} {digest}"
        raise unlike(path, f"at most {most:,} bytes{known}", f"{status.st_size:,} bytes")


# -- errors ------------------------------------------------------------------------------------------------------------


def damaged(what: Path, expected: str, found: str) -> DatasetError:
    """The error for a file or folder with an unexpected sha256."""
    return unlike(what, f"sha256 {expected}", found)


def unlike(what: Path, expected: str, found: str) -> DatasetError:
    """The error for a file or folder that differs from its published version; ``expected`` and ``found`` are words."""
    return DatasetError(
        f"{what} is damaged or is another version: expected {expected}, found {found}. "
        "Delete it and load the data set again to download it anew, or put an intact copy in its place."
    )


def checksum(path: Path, stream: BufferedReader, method: str = "sha256") -> str:
    """The digest of an open file, read in pieces; the file is rewound afterwards.

    Raises:
        DatasetError: if the file cannot be read.
    """
    try:
        stream.seek(0)
        found = hashlib.file_digest(stream, lambda: hashlib.new(method, usedforsecurity=False)).hexdigest()
        stream.seek(0)
    except OSError as error:
        raise unreadable(path, reason(error)) from error
    return found
