"""Which data sets are there, and where is each? A loader enters its own name, by a decorator."""

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
        name: to give to :func:`load`.
        description: one line.
        present: whether it can be loaded without a download.
        location: ``"generated"``, ``"scikit-learn"``, the folder of its files, ``"download"``, or ``"a folder of one's
            own"`` that is not there.
    """

    name: str
    description: str
    present: bool
    location: str


_OWN = "a folder of one's own"


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
    """Enter the function that loads a data set into the list of them, from any package.

    Its arguments, which need defaults, are the data set's options.

    Args:
        name: to give to :func:`load` and on the command line.
        description: one line.
        files: sets of files in the data folder, of which any one, complete, is enough; none where it is generated.
        folder: in the data folder, where the data are the user's own and cannot be downloaded.
        location: where data without files come from.

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
    """Every data set by name, with whether it is on this machine; files are looked for, not checked.

    Raises:
        DatasetError: if ``GPZOO_DATA`` names something that is not a folder.
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
        name: one of those that :func:`available` lists, such as ``"mnist"`` or ``"uci/boston"``.
        options: those of its loader, which its line in the list names, such as ``split`` for ``"uci/..."``, ``seed``
            for those drawn or split at random, ``rows`` for ``"...-generated"`` and ``months`` for ``"taxi"``.

    Raises:
        ValueError: if there is no data set of that name, or an option has no such value.
        TypeError: if the data set has no such option.
        DatasetError: if a file is damaged, cannot be downloaded or cannot be written.
        MissingExtraError: if what reads or downloads it is not installed.
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
