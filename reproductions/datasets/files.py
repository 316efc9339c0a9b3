"""The one door to the files of data sets: finding, bounding, hashing, opening, downloading and keeping them.

A file may hold anything. Its kind and size are looked at before it is read, and its digest, where that is known, before
it is parsed; every loader opens files through :func:`opened` or :func:`read`, and unpacks them with
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
from gpzoo.tables.files import opened, reason, unlike, unreadable

VARIABLE = "GPZOO_DATA"

#: Seconds for which what a writer left unfinished must have been untouched to count as left behind.
_ABANDONED = 3600.0
_UNFINISHED = ".gpzoo-unfinished-"
#: Bytes that the note beside a kept array may have, and the header of the array.
_MOST_NOTE = 65_536


def folders() -> list[Path]:
    """Folders in which files are looked for: the one ``GPZOO_DATA`` names, if set, and the user's cache folder.

    Raises:
        DatasetError: if ``GPZOO_DATA`` names something that is not a folder, or one that cannot be read.
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
    """The first that has this name in :func:`folders`, whatever it is; ``None`` where nothing has it.

    Something in a file's place that is none, such as a folder, is found too: :func:`opened` names it.
    """
    return next((path for folder in folders() if os.path.lexists(path := folder / file)), None)


def find_folder(name: str) -> Path | None:
    """The first folder of that name in :func:`folders`; ``None`` where there is none."""
    return next((path for folder in folders() if os.path.isdir(path := folder / name)), None)


@contextlib.contextmanager
def parsing(path: Path, expected: str) -> Iterator[None]:
    """Turn whatever goes wrong while a file is parsed into the error that names the file.

    Args:
        path: the file.
        expected: in words, what it must hold.

    Raises:
        DatasetError: in place of every other error.
    """
    try:
        yield
    except DatasetError:
        raise
    except MemoryError as error:
        raise unreadable(path, "it takes more memory than there is", "Free some, or replace the file") from error
    # Parsers meet what they were not made for with errors of every kind: struct.error, NotImplementedError, ...
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise unreadable(path, reason(error)) from error
        raise unlike(path, expected, f"a file that cannot be read ({reason(error)})") from error


def read(path: Path, most: int, digest: str | None = None, method: str = "sha256") -> bytes:
    """The bytes of a file, which are themselves what was hashed.

    Args:
        path: the file.
        most: bytes that it may have.
        digest: what it must hash to; ``None`` where that is not known.
        method: of the digest, a name that ``hashlib`` has.

    Raises:
        DatasetError: as :func:`opened`.
    """
    with opened(path, most) as stream:
        size = os.fstat(stream.fileno()).st_size
        try:
            # One byte more than it has: it may be growing.
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
    """Find a file or else download it; it appears under its name only when complete.

    Args:
        file: its name, or path relative to the data folder.
        urls: tried in this order.
        most: bytes that a download may have.
        digest: that a download must have; ``None`` leaves the check to the caller.
        method: of the digest, a name that ``hashlib`` has.
        advice: added to the message when no address could serve the file.

    Returns:
        Where the file is, not checked if it was there already, and in words where it came from.

    Raises:
        DatasetError: if no address could serve it, or it cannot be written.
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
            # What the other errors say of a connection that failed is long and adds little: it is left to the cause.
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
    """Ends a download that is larger than it may be; it stands where pooch has a progress bar."""

    _PIECES = 1024  # of at most 1,024 bytes each between two looks at the folder

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._most, self._pieces = folder, most, 0

    @property
    def total(self) -> int:
        """Bytes that the download may have."""
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
            raise ValueError(f"it has {size:,} bytes or more, {self._most:,} are expected at most")


# -- writing -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def written(folder: Path, file: str) -> Iterator[Path]:
    """Give a place to write a file, which takes its own place in ``folder`` at the end; after an error nothing is left.

    What writers that were killed have left there is removed.

    Args:
        folder: made if it does not exist.
        file: its name, or path relative to the folder.

    Raises:
        OSError: if it cannot be written.
        DatasetError: if a link leads from the folder to another place, where nothing of ours belongs.
    """
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.parent.resolve().is_relative_to(folder.resolve()):
        raise DatasetError(
            f"cannot write {path}: a link leads out of {folder}. Put a folder in its place, or {path.name} into it."
        )
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
    """Keep an array that took long to make in the user's cache folder, for :func:`kept`; it appears when complete.

    A cache that cannot be written costs time at the next start, not data: it is told of by a warning.

    Args:
        file: its name there.
        array: what to keep.
        origin: sha256 of the files that it was made from, by name. If given, it is noted beside the array together
            with the array's own sha256, for :func:`kept_with_origin`.
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
    """The array of :func:`keep`, mapped from its file; ``None`` if there is none or its bytes are not as expected.

    Args:
        file: its name in the cache folder.
        most: bytes that the array may have.
        sha256: of these.
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
    """As :func:`kept`, by the sha256 that :func:`keep` noted beside the array; also the ``origin`` it noted."""
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
    """Pooch tells of every file, and advises to pin hashes that are checked elsewhere."""
    import pooch

    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
