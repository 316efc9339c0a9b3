"""The list of data sets and their places. Decorators add loaders to the list."""

from __future__ import annotations

import difflib
import inspect
import tomllib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gpzoo.reproductions.datasets.files import Files, choices, find
from gpzoo.reproductions.datasets.in_memory import Dataset

Loader = TypeVar("Loader", bound=Callable[..., Any])

#: Facts about published data sets, by name.
FACTS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("datasets.toml").read_text("utf-8"))
for _facts in FACTS.values():
    _facts.update({**FACTS.get(_facts.pop("like", ""), {}), **_facts})


@dataclass(frozen=True)
class Entry:
    """One line of the list of data sets.

    Attributes:
        name: name of the data set for :func:`load`.
        description: a description in one line.
        present: whether the data set can be loaded without a download.
        location: ``"generated"``, ``"scikit-learn"``, the folder of the files, ``"download"``, or ``"your own folder"``
            if that folder is missing.
    """

    name: str
    description: str
    present: bool
    location: str


@dataclass(frozen=True)
class _Known:
    description: str
    loader: Callable[..., Any]
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

    The arguments of the function are the options of the data set, and need defaults.

    Args:
        name: name of the data set for :func:`load` and on the command line.
        description: a description in one line.
        files: sets of files in the data folder. Any one set is enough. Empty for generated data.
        folder: folder in the data folder for the user's own data, which cannot be downloaded.
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


def published(*names: str) -> Callable[[Loader], Loader]:
    """Add data sets that one function reads from published files. Facts about them are in ``datasets.toml``.

    The arguments of the function are :class:`~gpzoo.reproductions.datasets.files.Files`, then the options as in
    :func:`dataset`. It returns the arrays of a :class:`Dataset`, by field.
    """

    def enter(read: Loader) -> Loader:
        for name in names:
            dataset(name, FACTS[name]["description"], files=choices(FACTS[name]))(read)
        return read

    return enter


def available() -> list[Entry]:
    """Every data set in order of name, and whether it is on this machine. Its files are searched for, not checked.

    Raises:
        DatasetError: if ``GPZOO_DATA`` does not name a folder.
    """
    return [Entry(name, known.description, *_located(known)) for name, known in sorted(_KNOWN.items())]


def _located(known: _Known) -> tuple[bool, str]:
    """Whether a data set is present, and its location."""
    if known.folder:
        folder = find(known.folder)
        return (True, str(folder.parent)) if folder and folder.is_dir() else (False, "your own folder")
    for files in known.files:
        found = [path for file in files if (path := find(file)) and path.is_file()]
        if len(found) == len(files):
            return True, str(found[0].parent)
    return (False, "download") if known.files else (True, known.location)


def load(name: str, **options: Any) -> Dataset:
    """Load a data set by name: generate it, or read its files, which are downloaded if they are missing.

    Args:
        name: a name from :func:`available`, such as ``"mnist"`` or ``"uci/boston"``.
        options: options of the loader, which the description of the data set names: ``split`` for ``"uci/..."``,
            ``seed`` for random draws and splits, ``rows`` for ``"...-generated"`` and ``months`` for ``"taxi"``.

    Raises:
        ValueError: if there is no data set of this name, or if an option cannot have this value.
        TypeError: if the data set has no such option.
        DatasetError: if a file is damaged, cannot be downloaded or cannot be written.
        MissingExtraError: if a library that reads or downloads the data set is not installed.
    """
    if name not in _KNOWN:
        close = difflib.get_close_matches(str(name), _KNOWN, n=1, cutoff=0.5)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"there is no data set {name!r}.{hint} Choose from: {', '.join(sorted(_KNOWN))}.")
    loader, facts = _KNOWN[name].loader, FACTS.get(name)
    known = list(inspect.signature(loader).parameters)[facts is not None :]
    for option in options:
        if option not in known:
            takes = f"its options are: {', '.join(known)}" if known else "it has no options"
            raise TypeError(f"data set {name!r} has no option {option!r}; {takes}.")
    if facts is None:
        return loader(**options)
    files = Files(name, facts)
    arrays = loader(files, **options)
    return Dataset(name, **arrays, source=files.source, sha256=files.sha256)
