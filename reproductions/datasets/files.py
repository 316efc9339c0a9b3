"""All access to the files of data sets: finding, bounding, hashing, opening, downloading and keeping them.

Files are not trusted. Their kind and size are checked before they are read, and their digest, if it is known, before
they are parsed. Every loader opens files with :func:`opened` or :func:`read`, and unpacks them with
:mod:`gpzoo.reproductions.datasets.unpacking`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gpzoo._extras import needs
from gpzoo.errors import DatasetError, plain
from gpzoo.inference.programs.files import target
from gpzoo.tables.files import opened, reason, unlike, unreadable

VARIABLE = "GPZOO_DATA"

#: Unfinished files count as abandoned if they have not changed for this many seconds.
_ABANDONED = 3600.0
_UNFINISHED = ".gpzoo-unfinished-"
#: Largest size of the note beside a kept array, and of the array's header, in bytes.
_MOST_NOTE = 65_536


def folders() -> list[Path]:
    """Folders that are searched for files: the one that ``GPZOO_DATA`` names, if set, and the user's cache folder.

    Raises:
        DatasetError: if ``GPZOO_DATA`` does not name a folder, or names one that cannot be read.
    """
    with needs("reproductions", "Looking for data sets"):
        import pooch

    cache = Path(os.path.abspath(pooch.os_cache("gpzoo")))
    named = os.environ.get(VARIABLE)
    if not named:
        return [cache]
    advice = f"create it, correct the variable, or unset it to use {cache}."
    try:
        folder = Path(os.path.abspath(Path(named).expanduser()))
    except RuntimeError as error:
        raise DatasetError(
            f"the environment variable {VARIABLE} is {named!r}, the folder of a user who has none here: name another "
            f"folder, or unset it to use {cache}."
        ) from error
    if not os.path.isdir(folder):
        raise DatasetError(f"the environment variable {VARIABLE} is {named!r}, which is not a folder: {advice}")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise DatasetError(
            f"the environment variable {VARIABLE} is {named!r}, a folder that may not be read: change its permissions, "
            f"or unset the variable to use {cache}."
        )
    return [folder, cache]


def find(file: str) -> Path | None:
    """The first path with this name in :func:`folders`, or ``None``.

    A path that is not a file, such as a folder, is found too; :func:`opened` refuses it with an error.
    """
    return next((path for folder in folders() if os.path.lexists(path := folder / file)), None)


def find_folder(name: str) -> Path | None:
    """The first folder with this name in :func:`folders`, or ``None``."""
    return next((path for folder in folders() if os.path.isdir(path := folder / name)), None)


@contextlib.contextmanager
def parsing(path: Path, expected: str) -> Iterator[None]:
    """Turn every error of parsing a file into one that names the file.

    Args:
        path: the file.
        expected: its expected content, in words.

    Raises:
        DatasetError: in place of every other error.
    """
    try:
        yield
    except DatasetError:
        raise
    except MemoryError as error:
        raise unreadable(path, "it takes more memory than is free", "Free some, or replace the file") from error
    # Parsers raise errors of every kind for unexpected content: struct.error, NotImplementedError, ...
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise unreadable(path, reason(error)) from error
        raise unlike(path, expected, f"a file that cannot be read ({reason(error)})") from error


def read(path: Path, most: int, digest: str | None = None, method: str = "sha256") -> bytes:
    """The bytes of a file; the check of the digest is of these very bytes.

    Args:
        path: the file.
        most: its largest size in bytes.
        digest: its expected digest; ``None`` if that is not known.
        method: the digest's method, a name in ``hashlib``.

    Raises:
        DatasetError: as :func:`opened`.
    """
    with opened(path, most) as stream:
        size = os.fstat(stream.fileno()).st_size
        try:
            # One byte more than its size, to notice a growing file.
            content = stream.read(size + 1)
        except (OSError, MemoryError) as error:
            raise unreadable(path, reason(error)) from error
    if len(content) != size:
        raise unreadable(path, "it is being written to", "Wait until it is complete, then try again")
    if digest is not None:
        found = hashlib.new(method, content, usedforsecurity=False).hexdigest()
        if found != digest:
            raise unlike(path, f"{method} {digest}", found)
    return content


# -- downloading -------------------------------------------------------------------------------------------------------


def obtain(
    file: str,
    urls: Sequence[str],
    most: int,
    digest: str | None = None,
    method: str = "sha256",
    advice: str = "",
) -> tuple[Path, str]:
    """Find a file or download it; a download gets its name only when it is complete.

    Args:
        file: its name, or path relative to the data folder.
        urls: addresses, tried in this order.
        most: largest size of a download, in bytes.
        digest: expected digest of a download; ``None`` leaves the check to the caller.
        method: the digest's method, a name in ``hashlib``.
        advice: added to the message if no address serves the file.

    Returns:
        The path of the file, which is not checked unless it was downloaded, and its source in words.

    Raises:
        DatasetError: if no address serves it, or it cannot be written.
    """
    path = find(file)
    if path is not None:
        return path, f"file in {path.parent}"

    with needs("reproductions", "Downloading data sets"):
        import pooch
        import requests

    folder = _writable_folder()
    path = folder / file
    failures, cause = [], None
    for url in urls:
        try:
            with written(folder, file) as unfinished, _quiet_pooch():
                known = f"{method}:{digest}" if digest else None
                limit: Any = _Limit(unfinished.parent, most)
                pooch.retrieve(url, known, unfinished.name, unfinished.parent, progressbar=limit)
        except (requests.RequestException, ConnectionError, TimeoutError, ValueError) as error:
            # Other errors describe a failed connection at length; they are left to the cause of the exception.
            detail = f": {error}" if isinstance(error, (requests.HTTPError, ValueError)) else ""
            failures.append(f"{url} ({type(error).__name__}{detail})")
            cause = error
        except OSError as error:
            raise _not_written(path, error) from error
        else:
            return path, f"downloaded from {url.rsplit('/', 1)[0]}"
    wanted = f" with {method} {digest}" if digest else ""
    raise DatasetError(
        f"cannot download {file}; tried {'; '.join(failures)}. Without a network, get the file{wanted} elsewhere "
        f"and put it at {path}, or set the environment variable {VARIABLE} to the folder that holds {file}.{advice}"
    ) from cause


class _Limit:
    """Ends a download that is too large; pooch takes it as a progress bar."""

    _PIECES = 1024  # of at most 1,024 bytes each between two looks at the folder

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._most, self._pieces = folder, most, 0

    @property
    def total(self) -> int:
        """Largest size of the download, in bytes."""
        return self._most

    @total.setter
    def total(self, announced: int) -> None:
        self._refuse(announced)

    def update(self, size: int) -> None:
        """Count a piece."""
        self._pieces += 1
        if self._pieces % self._PIECES == 0:
            self._refuse(sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(self._folder)))

    def reset(self) -> None:
        """Part of a progress bar."""

    def close(self) -> None:
        """Part of a progress bar."""

    def _refuse(self, size: int) -> None:
        if size > self._most:
            raise ValueError(f"it has {size:,} bytes or more, but at most {self._most:,} are expected")


# -- writing -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def written(folder: Path, file: str) -> Iterator[Path]:
    """A temporary path for a file, which is moved into ``folder`` at the end; after an error nothing is left.

    Remains of killed writers in the folder are removed.

    Args:
        folder: made if it does not exist.
        file: its name, or path relative to the folder.

    Raises:
        OSError: if it cannot be written, or is no regular file.
        DatasetError: if a link leads out of the folder, where nothing may be written.
    """
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.parent.resolve().is_relative_to(folder.resolve()):
        raise DatasetError(
            f"cannot write {path}: a link leads out of {folder}. Put a folder in its place, or {path.name} into it."
        )
    if not path.is_symlink():  # a link itself is replaced: it could lead anywhere
        target(path)
    _sweep(path.parent)
    unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=path.parent))
    try:
        yield unfinished / path.name
        os.replace(unfinished / path.name, path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _sweep(folder: Path) -> None:
    for entry in os.scandir(folder):
        if entry.name.startswith(_UNFINISHED) and entry.is_dir(follow_symlinks=False):
            with contextlib.suppress(OSError):
                touched = [item.stat(follow_symlinks=False).st_mtime for item in (entry, *os.scandir(entry.path))]
                if time.time() - max(touched) > _ABANDONED:
                    shutil.rmtree(entry.path, ignore_errors=True)


def keep(file: str, array: np.ndarray, origin: Mapping[str, str] | None = None) -> None:
    """Keep an array in the user's cache folder, for :func:`kept`; the file gets its name only when it is complete.

    If the cache cannot be written, there is only a warning: the array will be made again at the next start.

    Args:
        file: its name in the cache folder.
        array: the array.
        origin: sha256 of its source files, by name. If given, a note beside the array holds it and the array's sha256,
            for :func:`kept_with_origin`.
    """
    folder = folders()[-1]
    array = np.ascontiguousarray(array)
    try:
        with written(folder, file) as unfinished, unfinished.open("wb") as out:
            np.save(out, array)
        if origin is not None:
            note = {"sha256": hashlib.sha256(array).hexdigest(), "origin": dict(origin)}
            with written(folder, _note(file)) as unfinished:
                unfinished.write_text(json.dumps(note), encoding="utf-8")
    except OSError as error:
        message = plain(f"cannot keep {folder / file} ({reason(error)}): it will be made again at the next start.")
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def kept(file: str, most: int, sha256: str) -> np.ndarray | None:
    """The array of :func:`keep`, mapped from its file; ``None`` if it is missing or has other bytes.

    Args:
        file: its name in the cache folder.
        most: largest size of the array, in bytes.
        sha256: expected sha256 of the array.
    """
    path = folders()[-1] / file
    try:
        with opened(path, most + _MOST_NOTE) as stream:
            array = _mapped(stream)
            return array if hashlib.sha256(array).hexdigest() == sha256 else None
    # Whatever is wrong with it, it can be made again.
    except Exception:
        return None


def _mapped(stream: BinaryIO) -> np.ndarray:
    """The array of a file that :func:`keep` wrote; its header is bounded by NumPy, and nothing is unpickled."""
    np.lib.format.read_magic(stream)
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream)
    if fortran_order or dtype.kind not in "fiu":
        raise ValueError("no array of numbers in the order of rows")
    return np.memmap(stream, dtype, "r", stream.tell(), shape)


def kept_with_origin(file: str, most: int) -> tuple[np.ndarray, dict[str, str]] | None:
    """As :func:`kept`, with the sha256 from the note beside the array; also the note's ``origin``."""
    try:
        note = json.loads(read(folders()[-1] / _note(file), _MOST_NOTE))
        sha256, origin = note["sha256"], dict(note["origin"])
    # Whatever is wrong with it, it can be made again.
    except Exception:
        return None
    if not all(isinstance(value, str) for value in (sha256, *origin, *origin.values())):
        return None
    array = kept(file, most, sha256)
    return None if array is None else (array, origin)


def _note(file: str) -> str:
    return f"{file}.json"


def _writable_folder() -> Path:
    failure: Any = None
    for folder in folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError as error:
            failure = _not_written(folder, error)
    raise failure


def _not_written(path: Path, error: OSError) -> DatasetError:
    return DatasetError(
        f"cannot write {path}: {error.strerror or error}. Free some space there, or set the environment variable "
        f"{VARIABLE} to a folder that can be written."
    )


@contextlib.contextmanager
def _quiet_pooch() -> Iterator[None]:
    """Silence pooch, which reports every file and advises to pin hashes; they are checked elsewhere."""
    import pooch

    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
