"""The names of the data sets, what each is, and how to load it."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpzoo.reproductions.datasets import classes, icml2007, large, photographs, sources
from gpzoo.reproductions.datasets import standins as twins
from gpzoo.reproductions.datasets.dataset import Dataset
from gpzoo.reproductions.datasets.files import find, find_folder
from gpzoo.reproductions.datasets.taxi import DEFAULT_MONTHS, kept_file, raw_files, taxi


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
class _Recipe:
    """``files``: the sets of files of which any one, complete, is enough; ``folder``: one that cannot be downloaded."""

    description: str
    loader: Callable[..., Dataset]
    files: tuple[tuple[str, ...], ...] = ()
    folder: str = ""
    location: str = "generated"


def _archived(name: str) -> tuple[tuple[str, ...], ...]:
    archive = icml2007.ARCHIVES[name]
    return (archive.file,), (archive.kept,)


_RECIPES: dict[str, _Recipe] = {
    "rectangles": _Recipe(
        "outlines of rectangles, 28x28, tall against wide, 1,200 / 50,000, generated (option seed)", sources.rectangles
    ),
    "rectangles-original": _Recipe(
        "the files of 2007 that rectangles imitates, 1,200 / 50,000",
        sources.rectangles_original,
        ((sources.RECTANGLES_NPZ,), (sources.RECTANGLES_ZIP,)),
    ),
    "digits": _Recipe(
        "handwritten digits, 8x8, 10 classes, 1,437 / 360, part of scikit-learn",
        sources.digits,
        location="scikit-learn",
    ),
    "mnist": _Recipe(
        "handwritten digits, 28x28, 10 classes, 60,000 / 10,000", sources.mnist, (tuple(sources.MNIST_SHA256),)
    ),
    "cifar10": _Recipe(
        "colour photographs, 32x32, 10 classes, 50,000 / 10,000",
        sources.cifar10,
        (tuple(sources.CIFAR10_SHA256), (sources.CIFAR10_TAR,), (sources.CIFAR10_KEPT,)),
    ),
}
_RECIPES |= {
    "rectangles-images": _Recipe(
        "rectangles filled with one image, on another, 28x28, tall against wide, 12,000 / 50,000",
        icml2007.rectangles_images,
        _archived("rectangles-images"),
    ),
    "mnist-rot": _Recipe(
        "handwritten digits turned by any angle, 28x28, 10 classes, 12,000 / 50,000",
        icml2007.mnist_rot,
        _archived("mnist-rot"),
    ),
    "mnist-rot-generated": _Recipe(
        "MNIST turned in the manner of mnist-rot, 12,000 / 50,000 (option seed)",
        icml2007.mnist_rot_generated,
        (tuple(sources.MNIST_SHA256),),
    ),
    "svhn": _Recipe(
        "digits of house numbers in colour, 32x32, 10 classes, 73,257 / 26,032",
        photographs.svhn,
        (tuple(photographs.SVHN_SHA256),),
    ),
    "imagenet20": _Recipe(
        "photographs of 20 classes from a folder of one's own, 64x64 (option size)",
        photographs.imagenet20,
        folder=photographs.IMAGENET20,
    ),
    "year": _Recipe(
        "the year of a song from its timbre, 515,345 rows, 90 features, regression "
        "(options split='random' or 'published', seed)",
        large.year,
        ((large.TEXTS["year"].file,), (large.TEXTS["year"].kept,)),
    ),
    "airline": _Recipe(
        "delays of US flights of 2008, 700,000 / 100,000, 8 features, regression (option seed)",
        large.airline,
        ((large.FLIGHTS, large.PLANES), (large.AIRLINE_KEPT,)),
    ),
    "airline-delayed": _Recipe(
        "whether a US flight of 2008 was delayed, all flights, 8 features, 2 classes (option seed)",
        large.airline_delayed,
        ((large.FLIGHTS, large.PLANES), (large.AIRLINE_KEPT,)),
    ),
    "taxi": _Recipe(
        "durations of taxi journeys in New York, 14 million rows a month, 9 features, regression "
        "(options months=['2009-01', ..., '2016-06'], seed; needs pyarrow)",
        taxi,
        tuple((file,) for month in DEFAULT_MONTHS for file in (*raw_files(month), kept_file(month))),
    ),
    "higgs": _Recipe(
        "collisions with and without a Higgs boson, 11,000,000 rows, 28 features, 2 classes (option seed)",
        large.higgs,
        ((large.TEXTS["higgs"].file,), (large.TEXTS["higgs"].kept,)),
    ),
    "susy": _Recipe(
        "collisions with and without supersymmetric particles, 5,000,000 rows, 18 features, 2 classes (option seed)",
        large.susy,
        ((large.TEXTS["susy"].file,), (large.TEXTS["susy"].kept,)),
    ),
}
_RECIPES |= {
    name: _Recipe(
        f"{description} (option split, a seed)",
        partial(classes.table, name),
        tuple((file,) for file in (classes.TABLES[name].npz, classes.TABLES[name].file) if file),
    )
    for name, description in {
        "adult": "whether an income exceeds 50,000 dollars, 48,842 rows, 82 features, 2 classes",
        "connect4": "who wins at Connect-4 from a position after 8 moves, 67,557 rows, 126 features, 3 classes",
        "diabetes": "readmission to a hospital, 101,766 rows, 210 features, 3 classes",
        "covtype": "kinds of forest, 581,012 rows, 54 features, 7 classes",
        "covtype-subset": "a sample of covtype, 92,962 rows, 54 features, 7 classes",
    }.items()
}
_RECIPES |= {
    f"{name}-generated": _Recipe(f"a small generated stand-in for {name} (options rows, seed)", loader)
    for name, loader in {
        "rectangles-images": twins.rectangles_images,
        "year": twins.year,
        "airline": twins.airline,
        "airline-delayed": twins.airline_delayed,
        "taxi": twins.taxi,
        "higgs": twins.higgs,
        "susy": twins.susy,
        "svhn": twins.svhn,
        "imagenet20": twins.imagenet20,
    }.items()
}
_RECIPES |= {
    f"uci/{name}": _Recipe(
        f"{table.description}, {table.rows:,} rows, {table.features} features, regression "
        f"(option split=0 .. {table.splits - 1})",
        partial(sources.uci, name),
        ((table.npz,), tuple(table.texts)),
    )
    for name, table in sources.UCI.items()
}


def available() -> list[Entry]:
    """Every data set, with whether it is on this machine; files are looked for, not checked.

    Raises:
        DatasetError: if ``GPZOO_DATA`` names something that is not a folder.
    """
    entries = []
    for name, recipe in _RECIPES.items():
        location = recipe.location
        if recipe.files:
            found = ([find(file) for file in files] for files in recipe.files)
            complete = next((paths for paths in found if all(path and os.path.isfile(path) for path in paths)), None)
            location = str(complete[0].parent) if complete else "download"
        if recipe.folder:
            folder = find_folder(recipe.folder)
            location = str(folder.parent) if folder else _OWN
        entries.append(Entry(name, recipe.description, location not in ("download", _OWN), location))
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
        DatasetError: if a file is damaged, cannot be downloaded or cannot be written, or a package is missing.
    """
    if name not in _RECIPES:
        close = difflib.get_close_matches(str(name), _RECIPES, n=1, cutoff=0.5)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"there is no data set {name!r}.{hint} Choose from: {', '.join(_RECIPES)}.")
    loader = _RECIPES[name].loader
    known = list(inspect.signature(loader).parameters)
    for option in options:
        if option not in known:
            takes = f"its options are: {', '.join(known)}" if known else "it has no options"
            raise TypeError(f"data set {name!r} has no option {option!r}; {takes}.")
    return loader(**options)
