"""Which data sets are there, and where is each? A decorator adds a loader to the list."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from gpzoo.reproductions.datasets.files import find, find_folder
from gpzoo.reproductions.datasets.in_memory import Dataset

Loader = Callable[..., Dataset]


@dataclass(frozen=True)
class Entry:
    """One line of the list of data sets.

    Attributes:
        name: its name for :func:`load`.
        description: one line.
        present: whether it can be loaded without a download.
        location: ``"generated"``, ``"scikit-learn"``, the folder of its files, ``"download"``, or ``"your own
            folder"`` for a missing one.
    """

    name: str
    description: str
    present: bool
    location: str


_OWN = "your own folder"


@dataclass(frozen=True)
class _Known:
    description: str
    loader: Loader
    files: Collection[Collection[str]]
    folder: str
    location: str


_KNOWN: dict[str, _Known] = {}


def dataset(
    name: str,
    description: str,
    *,
    files: Collection[Collection[str]] = (),
    folder: str = "",
    location: str = "generated",
) -> Callable[[Loader], Loader]:
    """Add the function that loads a data set to the list of data sets, from any package.

    Its arguments are the data set's options, and need defaults.

    Args:
        name: its name for :func:`load` and on the command line.
        description: one line.
        files: sets of files in the data folder, any one of which suffices; empty for generated data.
        folder: folder in the data folder, for the user's own data, which cannot be downloaded.
        location: the source of data without files.

    Raises:
        ValueError: if another data set has this name.
    """

    def enter(loader: Loader) -> Loader:
        if name in _KNOWN:
            raise ValueError(f"there is a data set {name!r} already: choose another name.")
        _KNOWN[name] = _Known(description, loader, files, folder, location)
        return loader

    return enter


def available() -> list[Entry]:
    """Every data set in order of name, and whether it is on this machine; files are searched, not checked.

    Raises:
        DatasetError: if ``GPZOO_DATA`` does not name a folder.
    """
    entries = []
    for name, known in sorted(_KNOWN.items()):
        location = known.location
        if known.files:
            found = ([find(file) for file in files] for files in known.files)
            complete: Any = next(
                (paths for paths in found if all(path and os.path.isfile(path) for path in paths)), None
            )
            location = str(complete[0].parent) if complete else "download"
        if known.folder:
            folder = find_folder(known.folder)
            location = str(folder.parent) if folder else _OWN
        entries.append(Entry(name, known.description, location not in ("download", _OWN), location))
    return entries


def load(name: str, **options: Any) -> Dataset:
    """Load a data set by name: generate it, read its files, or download them first.

    Args:
        name: a name from :func:`available`, such as ``"mnist"`` or ``"uci/boston"``.
        options: options of its loader, which are named in its description: ``split`` for ``"uci/..."``, ``seed`` for
            random draws and splits, ``rows`` for ``"...-generated"`` and ``months`` for ``"taxi"``.

    Raises:
        ValueError: if there is no data set of that name, or an option has no such value.
        TypeError: if the data set has no such option.
        DatasetError: if a file is damaged, cannot be downloaded or cannot be written.
        MissingExtraError: if a library that reads or downloads it is not installed.
    """
    if name not in _KNOWN:
        close = difflib.get_close_matches(str(name), _KNOWN, n=1, cutoff=0.5)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"there is no data set {name!r}.{hint} Choose from: {', '.join(sorted(_KNOWN))}.")
    loader = _KNOWN[name].loader
    known = list(inspect.signature(loader).parameters)
    for option in options:
        if option not in known:
            takes = f"its options are: {', '.join(known)}" if known else "it has no options"
            raise TypeError(f"data set {name!r} has no option {option!r}; {takes}.")
    return loader(**options)
