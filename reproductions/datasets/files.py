"""Files of data sets: they are found or downloaded by pooch, checked before they are read, and parsed once.

This module adds four things to pooch. It searches two folders, and each of them may be read-only. It refuses everything
except a regular file of the stated size. It refuses a damaged file, which pooch would replace although it may be the
user's own file. It keeps the parsed table in the cache folder. The standard library reads archives in place, so that no
path inside an archive can leave a folder. Pooch's processors would unpack beside the archive, and before Python 3.12
they would do so without a filter.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from gpzoo._extras import needs
from gpzoo.errors import DatasetError, plain
from gpzoo.inference.programs.files import replacing
from gpzoo.tables.files import checksum, damaged, opened, reason, unlike

VARIABLE = "GPZOO_DATA"
#: Largest size of a text in an archive, in bytes: the size for 50,000 images, rounded up.
_MOST_TEXT = 2**30


def folders() -> list[Path]:
    """Folders that are searched for files: the folder in ``GPZOO_DATA``, if set, and the user's cache folder.

    Raises:
        DatasetError: if ``GPZOO_DATA`` does not name a folder that can be read.
    """
    with needs("reproductions", "Looking for data sets"):
        import pooch

    cache = Path(os.path.abspath(pooch.os_cache("gpzoo")))
    named = os.environ.get(VARIABLE)
    if not named:
        return [cache]
    folder = Path(os.path.abspath(os.path.expanduser(named)))
    if not (os.path.isdir(folder) and os.access(folder, os.R_OK | os.X_OK)):
        raise DatasetError(
            f"the environment variable {VARIABLE} is {named!r}, which is not a folder that may be read: create it, "
            f"correct the variable or the folder's permissions, or unset it to use {cache}."
        )
    return [folder, cache]


def find(name: str) -> Path | None:
    """The first path with this name in :func:`folders`, or ``None``. The path may also be a folder or a broken link."""
    return next((path for folder in folders() if os.path.lexists(path := folder / name)), None)


def choices(facts: Mapping[str, Any]) -> list[list[str]]:
    """Sets of files of a data set. Any one of these sets is enough."""
    published = [[file["path"] for file in facts[key]] for key in ("at_hand", "files") if key in facts]
    return [*published, *([facts[key]] for key in ("kept",) if key in facts)]


class Files:
    """The published files of a data set: their places, and facts about the files that were read.

    Attributes:
        name: name of the data set.
        facts: the entry in ``datasets.toml``.
        source: the origin of the arrays, in words, after they were read.
        sha256: sha256 of each file that was read, by its path in the data folder.
    """

    def __init__(self, name: str, facts: dict[str, Any]) -> None:
        self.name, self.facts = name, facts
        self.source, self.sha256 = "", {}
        self._place = Path()

    @contextlib.contextmanager
    def paths(self) -> Iterator[list[Path]]:
        """The paths of the files, for a ``with`` block. Files are found or downloaded, and checked.

        An error that the block raises names the files.

        Raises:
            DatasetError: if a file is missing or damaged, or if the block cannot parse it.
        """
        files = self.facts.get("at_hand") or self.facts["files"]
        if not all(find(file["path"]) for file in files):
            files = self.facts["files"]
        paths, origins, self.sha256 = [], {}, {}
        for file in files:
            path, origin = _obtained(file, self.facts.get("advice", ""))
            self.sha256[file["path"]], origins[origin] = _sha256(file, path), None
            paths.append(path)
        self.source = ", ".join(origins)
        self._place = paths[0] if len(paths) == 1 else paths[0].parent
        try:
            yield paths
        except (DatasetError, ImportError):
            raise
        # For unexpected content, parsers raise errors of every kind: struct.error, NotImplementedError, ...
        except Exception as error:
            found = f"a file that cannot be read ({reason(error)})"
            raise unlike(self._place, f"the published {self.name}", found) from error

    def check(self, sha256: str) -> None:
        """Refuse files whose arrays do not have the published sha256."""
        if sha256 != self.facts["content"]:
            raise damaged(self._place, f"{self.facts['content']} of the arrays", sha256)

    def table(self, parse: Callable[[list[Path]], np.ndarray]) -> np.ndarray:
        """The table that ``parse`` makes from the files. It is kept in the cache folder, and mapped from there."""
        kept = folders()[-1] / self.facts["kept"]
        with contextlib.suppress(Exception):  # A kept table with any fault can be made again.
            note = json.loads(_note(kept).read_text(encoding="utf-8"))
            table, sha256 = np.load(kept, mmap_mode="r", allow_pickle=False), dict(note["origin"])
            if hashlib.sha256(table).hexdigest() == note["sha256"]:
                self.source, self.sha256 = "kept in the cache folder", sha256
                return table
        with self.paths() as paths:
            table = np.ascontiguousarray(parse(paths))
        self._keep(kept, table)
        return table

    def _keep(self, kept: Path, table: np.ndarray) -> None:
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            with replacing(kept) as unfinished, unfinished.open("wb") as out:
                np.save(out, table)
            note = {"sha256": hashlib.sha256(table).hexdigest(), "origin": self.sha256}
            with replacing(_note(kept)) as unfinished:
                unfinished.write_text(json.dumps(note), encoding="utf-8")
        except OSError as error:
            message = f"cannot keep {kept} ({reason(error)}): it will be made again at the next start."
            warnings.warn(plain(message), RuntimeWarning, stacklevel=3)


def _note(kept: Path) -> Path:
    """The file beside a kept table. It has the sha256 of the table and of the files from which it was made."""
    return kept.with_name(f"{kept.name}.json")


def _sha256(file: Mapping[str, Any], path: Path) -> str:
    """The sha256 of a file, after checks of its kind, size and digest."""
    method, _, digest = file.get("hash", "sha256:").partition(":")
    with opened(path, file["bytes"], digest or None, method) as stream:
        return digest if digest and method == "sha256" else checksum(path, stream)


def _obtained(file: Mapping[str, Any], advice: str) -> tuple[Path, str]:
    """The path of a file, and its source in words. The file is downloaded if it is not found."""
    name, known = file["path"], file.get("hash")
    path = find(name)
    if path is not None:
        return path, f"file in {path.parent}"
    if not file.get("urls"):
        raise DatasetError(f"{name} has no public home: put it into the folder that {VARIABLE} names{advice}.")

    with needs("reproductions", "Downloading data sets"):
        import pooch
        import requests

    # Pooch reports every file and recommends to pin hashes, but hashes are checked here.
    pooch.get_logger().setLevel("WARNING")
    folder = next((folder for folder in folders() if os.access(folder, os.W_OK)), folders()[-1])
    path = folder / name
    failures, cause = [], None
    for url in file["urls"]:
        try:
            pooch.retrieve(url, known, path.name, path.parent)
        except (requests.RequestException, ConnectionError, TimeoutError, ValueError) as error:
            # Other errors describe a failed connection at length, so they are only the cause of the exception.
            detail = f": {error}" if isinstance(error, (requests.HTTPError, ValueError)) else ""
            failures.append(f"{url} ({type(error).__name__}{detail})")
            cause = error
        except OSError as error:
            raise DatasetError(
                f"cannot write {path}: {error.strerror or error}. Free some space there, or set the environment "
                f"variable {VARIABLE} to a folder that can be written."
            ) from error
        else:
            return path, f"downloaded from {url.rsplit('/', 1)[0]}"
    wanted = f" with {known.replace(':', ' ')}" if known else ""
    raise DatasetError(
        f"cannot download {name}; tried {'; '.join(failures)}. Without a network, get the file{wanted} elsewhere "
        f"and put it at {path}, or set the environment variable {VARIABLE} to the folder that holds {name}.{advice}"
    ) from cause


# -- readers of formats that data sets share -------------------------------------------------------------------------


def npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file."""
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


@contextlib.contextmanager
def member(path: Path, name: str) -> Iterator[IO[bytes]]:
    """Open a text in a zip archive, by its whole name or the last part of its name. Nothing is written.

    Raises:
        ValueError: if there is no such text, or if it unpacks to too many bytes.
    """
    with zipfile.ZipFile(path) as archive:
        info = next((info for info in archive.infolist() if info.filename.rpartition("/")[2] == name), None)
        if info is None:
            raise ValueError(f"it has no {name}")
        # The module reads no more bytes than this size.
        if info.file_size > _MOST_TEXT:
            raise ValueError(f"{name} unpacks to {info.file_size:,} bytes, more than {_MOST_TEXT:,}")
        with archive.open(info) as content:
            yield content


def numbers(text: Any, rows: int, columns: int, delimiter: str | None = ",") -> np.ndarray:
    """A table of finite numbers from text with one row per line: float32 ``[rows, columns]``.

    Args:
        text: the lines, or an open file with the lines.
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
    """Unsigned bytes in the IDX format. The fourth byte counts the axes; their lengths follow, as big-endian int32."""
    with gzip.open(path) as stream:
        content = stream.read()
    axes = content[3]
    shape = np.frombuffer(content, ">i4", count=axes, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)
