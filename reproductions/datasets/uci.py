"""Tables of the UCI collection: regression in the fixed splits of Gal and Ghahramani (2016), and classes."""

from __future__ import annotations

import csv
import gzip
import operator
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpzoo._digests import fingerprint
from gpzoo.reproductions.datasets.files import Files, member, npz, numbers
from gpzoo.reproductions.datasets.in_memory import divided
from gpzoo.reproductions.datasets.registry import FACTS, published

UCI = [name for name in FACTS if name.startswith("uci/")]

for _name in UCI:
    # A table was published as 8 or 23 texts: its numbers, its columns of features and target, and rows of each split.
    _facts = FACTS[_name]
    _stems = ["data", "index_features", "index_target", *(f"index_test_{k}" for k in range(_facts["splits"]))]
    _facts["files"] = [
        {"path": f"{_name.replace('/', '_')}/{stem}.txt", "bytes": 2**25, "urls": [f"{_facts['home']}/{stem}.txt"]}
        for stem in _stems
    ]


@published(*UCI)
def uci(files: Files, split: int = 0) -> dict[str, Any]:
    """Read a UCI regression set in one of its fixed 90/10 splits: float64, raw values, ``[N, D]`` and ``[N]``.

    Training rows are in the order of the original table.

    Args:
        files: files of the data set.
        split: number of the split.

    Raises:
        ValueError: if there is no such split.
        DatasetError: if a file is damaged or cannot be downloaded.
    """
    split, last = operator.index(split), files.facts["splits"] - 1
    if not 0 <= split <= last:
        raise ValueError(f"split must be between 0 and {last} for {files.name}, got {split}.")
    with files.paths() as paths:
        arrays = _from_text(paths) if len(paths) > 1 else npz(paths[0])
        files.check(fingerprint(arrays))
    X, y, test = arrays["X"], arrays["y"], arrays[f"test_{split}"].astype(int)
    train = np.setdiff1d(np.arange(len(y)), test)
    return divided(X, y, train, test)


def _from_text(paths: list[Path]) -> dict[str, np.ndarray]:
    """The table, the indices of its feature columns and of its target column, and the test rows of every split."""
    data = np.loadtxt(paths[0], ndmin=2)
    # Indices are written as integers in some texts, and as floating-point numbers in others.
    features, target, *tests = (np.loadtxt(path, ndmin=1).astype(np.uint16) for path in paths[1:])
    return {"X": data[:, features], "y": data[:, target.item()]} | {f"test_{k}": test for k, test in enumerate(tests)}


# -- tables with classes ----------------------------------------------------------------------------------------------

#: The text of a missing value.
_MISSING = "?"

#: Numbers and codes ``X``, classes ``y`` and names ``columns``; then the names of columns with categories.
Table = tuple[dict[str, np.ndarray], Collection[str]]


@published("adult", "connect4", "diabetes", "covtype", "covtype-subset")
def table(files: Files, split: int = 0) -> dict[str, Any]:
    """Read a table with classes. Categories become columns of zeros and ones; a missing value is a category too.

    Three facts say how columns are used. ``dropped`` are columns that are not features, and ``codes`` are integer
    columns with codes of categories. ``by`` is a column: rows with the same value in it stay together when rows are
    held out. Categories of a column with fewer rows than ``rare`` are merged.

    Args:
        files: files of the data set; ``covtype-subset`` has 16 % of the rows of ``covtype``.
        split: seed of the draw of the 10 % of rows for testing.

    Returns:
        float32 features ``[N, D]``, which should be standardised, and int32 labels.

    Raises:
        ValueError: if ``split`` is negative.
        DatasetError: if a file is damaged or cannot be downloaded.
    """
    split = operator.index(split)
    if split < 0:
        raise ValueError(f"split must be 0 or more, it seeds the draw of the test rows; got {split}.")
    with files.paths() as (path,):
        if path.suffix == ".npz":
            arrays = npz(path)
            categories = {key.removeprefix("cat_") for key in arrays if key.startswith("cat_")}
        else:
            arrays, categories = (_of_texts if "members" in files.facts else _of_numbers)(path, files.facts)
        if "content" in files.facts:
            files.check(content_of(arrays, categories))
    columns = [str(column) for column in arrays["columns"]]
    X, y = _features(arrays["X"], columns, files.facts, categories), arrays["y"].astype(np.int32)
    by = files.facts.get("by")
    groups = np.arange(len(y)) if by is None else np.unique(arrays["X"][:, columns.index(by)], return_inverse=True)[1]
    number = groups.max() + 1
    held = np.zeros(number, bool)
    held[np.random.RandomState(split).permutation(number)[: round(0.1 * number)]] = True
    test = held[groups]
    parts = divided(X, y, ~test, test)
    return parts if by is None else parts | {"groups": groups[~test]}


def content_of(arrays: Mapping[str, np.ndarray], categories: Collection[str]) -> str:
    """The hash of a table's values, column names and columns of categories. It is the same for both files."""
    names = [f"{column}{' (category)' if column in categories else ''}\n" for column in arrays["columns"]]
    columns = np.frombuffer("".join(names).encode(), np.uint8)
    return fingerprint({"X": arrays["X"].astype(np.int32), "y": arrays["y"].astype(np.uint8), "columns": columns})


def _features(X: np.ndarray, columns: list[str], facts: Mapping[str, Any], categories: Collection[str]) -> np.ndarray:
    from sklearn.preprocessing import OneHotEncoder

    coded, parts = {*categories, *facts.get("codes", ())}, []
    # The last column stands for all rare categories.
    options: dict[str, Any] = {"sparse_output": False, "dtype": np.float32}
    encoder: Any = OneHotEncoder(min_frequency=facts.get("rare"), **options)
    for column, values in zip(columns, X.T[:, :, None], strict=True):
        if column not in facts.get("dropped", ()):
            parts.append(encoder.fit_transform(values) if column in coded else values.astype(np.float32))
    return np.concatenate(parts, axis=1)


# -- the published files -----------------------------------------------------------------------------------------------


def _of_texts(path: Path, facts: Mapping[str, Any]) -> Table:
    """The texts in a zip archive. Integer columns are unchanged; others become indices into their sorted values.

    A missing value is -1. The last column has the classes, as words from ``labels``.
    """
    lines: list[str] = []
    for name in facts["members"]:
        with member(path, name) as stream:
            lines += stream.read().decode("ascii").splitlines()
    text = csv.reader(lines, skipinitialspace=True)
    columns = facts.get("columns") or next(text)[:-1]
    # A few lines are not rows of the table: the first line of the second text of adult, and empty lines.
    cells = np.array([row for row in text if len(row) == len(columns) + 1])
    X, categories = np.empty((len(cells), len(columns)), np.int32), set()
    for i, (column, values) in enumerate(zip(columns, cells[:, :-1].T, strict=True)):
        try:
            X[:, i] = values.astype(np.int64)
        except ValueError:
            categories.add(column)
            kinds, place = np.unique(values, return_inverse=True)
            present = kinds != _MISSING
            X[:, i] = np.where(present, np.cumsum(present) - 1, -1)[place]
    y = np.array([facts["labels"].index(word.rstrip(".")) for word in cells[:, -1]], np.uint8)
    return {"X": X, "y": y, "columns": np.array(columns)}, categories


def _of_numbers(path: Path, facts: Mapping[str, Any]) -> Table:
    """The numbers of a packed text. The last column has the classes, or a column that a heading names."""
    with gzip.open(path) as stream:
        target = stream.readline().decode().split().index("target") if "codes" in facts else facts["width"] - 1
        values = numbers(stream, facts["rows"], facts["width"], "\t" if "codes" in facts else ",").astype(np.int32)
    y = (values[:, target] - facts.get("first", 0)).astype(np.uint8)
    columns = facts.get("codes") or [f"column {i}" for i in range(facts["width"] - 1)]
    return {"X": np.delete(values, target, axis=1), "y": y, "columns": np.array(columns)}, ()
