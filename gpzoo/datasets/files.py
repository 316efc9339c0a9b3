"""Finding, checking and downloading the files of data sets."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

VARIABLE = "GPZOO_DATA"


class DatasetError(RuntimeError):
    """A data set that cannot be had; the message is one line and says what to do."""


def folders() -> list[Path]:
    """Folders in which files are looked for: the one ``GPZOO_DATA`` names, if set, and the user's cache folder.

    Raises:
        DatasetError: if ``GPZOO_DATA`` names something that is not a folder.
    """
    import pooch

    cache = Path(pooch.os_cache("gpzoo"))
    named = os.environ.get(VARIABLE)
    if not named:
        return [cache]
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise DatasetError(
            f"the environment variable {VARIABLE} is {named!r}, which is not a folder: create it, correct the "
            f"variable, or unset it to use {cache}."
        )
    return [folder, cache]


def find(file: str) -> Path | None:
    """The first file of that name in :func:`folders`, not checked yet; ``None`` where there is none."""
    return next((path for folder in folders() if (path := folder / file).is_file()), None)


def find_folder(name: str) -> Path | None:
    """The first folder of that name in :func:`folders`; ``None`` where there is none."""
    return next((path for folder in folders() if (path := folder / name).is_dir()), None)


def fingerprint(arrays: Mapping[str, np.ndarray]) -> str:
    """The sha256 of named arrays: names, dtypes, shapes and values, alike on every machine."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array)
    return digest.hexdigest()


def damaged(what: Path, expected: str, found: str) -> DatasetError:
    """The error for a file or folder whose sha256 is not what it must be."""
    return unlike(what, f"sha256 {expected}", found)


def unlike(what: Path, expected: str, found: str) -> DatasetError:
    """The error for a file or folder that differs from what was published in some other way; both in words."""
    return DatasetError(
        f"{what} is damaged or is another version: expected {expected}, found {found}. "
        "Delete it and load the data set again to download it anew, or put an intact copy in its place."
    )


def read(path: Path, sha256: str | None = None) -> bytes:
    """The bytes of a file.

    Raises:
        DatasetError: if it cannot be read, or ``sha256`` is given and is not that of the file.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror or error}.") from error
    if sha256 is not None and (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise damaged(path, sha256, found)
    return content


def checksum(path: Path, expected: str | None = None) -> str:
    """The sha256 of a file, read in pieces.

    Raises:
        DatasetError: if it cannot be read, or ``expected`` is given and is not it.
    """
    try:
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror or error}.") from error
    if expected is not None and found != expected:
        raise damaged(path, expected, found)
    return found


def obtain(file: str, urls: Sequence[str], sha256: str | None = None, advice: str = "") -> tuple[Path, str]:
    """Find a file or else download it; it appears under its name only when complete.

    Args:
        file: its name, or path relative to the data folder.
        urls: tried in this order.
        sha256: that a download must have; ``None`` leaves the check to the caller.
        advice: added to the message when no address could serve the file.

    Returns:
        Where the file is, and in words where it came from.

    Raises:
        DatasetError: if no address could serve it, or it cannot be written.
    """
    path = find(file)
    if path is not None:
        return path, f"file in {path.parent}"

    import pooch
    import requests

    path = _writable_folder() / file
    failures, cause = [], None
    for url in urls:
        try:
            with _quiet_pooch():
                known = f"sha256:{sha256}" if sha256 else None
                pooch.retrieve(url, known_hash=known, fname=path.name, path=path.parent)
        except (requests.RequestException, ConnectionError, TimeoutError, ValueError) as error:
            # What the other errors say of a connection that failed is long and adds little: it is left to the cause.
            detail = f": {error}" if isinstance(error, (requests.HTTPError, ValueError)) else ""
            failures.append(f"{url} ({type(error).__name__}{detail})")
            cause = error
        except OSError as error:
            raise _not_written(path, error) from error
        else:
            return path, f"downloaded from {url.rsplit('/', 1)[0]}"
    wanted = f" with sha256 {sha256}" if sha256 else ""
    raise DatasetError(
        f"cannot download {file}; tried {'; '.join(failures)}. Without a network, get the file{wanted} elsewhere "
        f"and put it at {path}, or set the environment variable {VARIABLE} to the folder that holds {file}.{advice}"
    ) from cause


def keep(file: str, array: np.ndarray, origin: Mapping[str, str] | None = None) -> None:
    """Keep an array that took long to make in the user's cache folder, for :func:`kept`; it appears when complete.

    A cache that cannot be written costs time at the next start, not data: it is told of by a warning.

    Args:
        file: its name there.
        array: what to keep.
        origin: sha256 of the files that it was made from, by name. If given, it is noted beside the array together
            with the array's own sha256, for :func:`kept_with_origin`.
    """
    path = folders()[-1] / file
    temporary = path.with_name(f".{file}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as out:
            np.save(out, array)
        os.replace(temporary, path)
        if origin is not None:
            note = {"sha256": hashlib.sha256(np.ascontiguousarray(array)).hexdigest(), "origin": dict(origin)}
            temporary.write_text(json.dumps(note), encoding="utf-8")
            os.replace(temporary, _note(path))
    except OSError as error:
        message = f"cannot keep {path} ({error.strerror or error}): it will be made again at the next start."
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def kept(file: str, sha256: str) -> np.ndarray | None:
    """The array of :func:`keep`, mapped from its file; ``None`` if there is none or its bytes are not as expected."""
    path = folders()[-1] / file
    try:
        array = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return None
    return array if hashlib.sha256(array).hexdigest() == sha256 else None


def kept_with_origin(file: str) -> tuple[np.ndarray, dict[str, str]] | None:
    """As :func:`kept`, by the sha256 that :func:`keep` noted beside the array; also the ``origin`` it noted."""
    try:
        note = json.loads(_note(folders()[-1] / file).read_text(encoding="utf-8"))
        sha256, origin = note["sha256"], note["origin"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    array = kept(file, sha256)
    return None if array is None else (array, origin)


def _note(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _writable_folder() -> Path:
    failure = None
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
