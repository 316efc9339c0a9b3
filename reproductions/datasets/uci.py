"""Regression benchmarks of the UCI collection, in the fixed splits of Gal and Ghahramani (2016)."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import numpy as np

from gpzoo.reproductions.datasets.files import Files
from gpzoo.reproductions.datasets.readers import npz
from gpzoo.reproductions.datasets.registry import FACTS, published
from gpzoo.tables.files import fingerprint

UCI = [name for name in FACTS if name.startswith("uci/")]

for _name in UCI:
    # A table was published as 8 or 23 texts: its numbers, which columns are features and target, the rows of each split.
    _facts = FACTS[_name]
    _stems = ["data", "index_features", "index_target", *(f"index_test_{k}" for k in range(_facts["splits"]))]
    _facts["files"] = [
        {"path": f"{_name.replace('/', '_')}/{stem}.txt", "bytes": 2**25, "urls": [f"{_facts['home']}/{stem}.txt"]}
        for stem in _stems
    ]
    _facts["advice"] = (
        " All of data.txt, index_features.txt, index_target.txt and "
        f"index_test_0.txt to {_stems[-1]}.txt are needed there."
    )


@published(*UCI)
def uci(files: Files, split: int = 0) -> dict[str, Any]:
    """Read a UCI regression set in one of its fixed 90/10 splits: float64, raw values, ``[N, D]`` and ``[N]``.

    Training rows are in the order of the original table.

    Args:
        files: its files.
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
    return {"X_train": X[train], "y_train": y[train], "X_test": X[test], "y_test": y[test]}


def _from_text(paths: list[Path]) -> dict[str, np.ndarray]:
    """The table, the numbers of its feature columns and of its target column, and the test rows of every split."""
    data = np.loadtxt(paths[0], ndmin=2)
    # Indices are written as integers in some texts, as floating numbers in others.
    features, target, *tests = (np.loadtxt(path, ndmin=1).astype(np.uint16) for path in paths[1:])
    return {"X": data[:, features], "y": data[:, target.item()]} | {f"test_{k}": test for k, test in enumerate(tests)}
