"""Data sets in memory, and changes before training: standardise, take a subset of rows, choose classes."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpzoo.tables import ArrayTable, standardised


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test data as NumPy arrays.

    Attributes:
        name: name of the data set in :func:`gpzoo.reproductions.datasets.load`.
        X_train: ``[N, D]`` features or ``[N, H, W, C]`` images.
        y_train: ``[N]`` targets: floating-point for regression, integer classes ``0 .. K-1`` for classification.
        X_test: as ``X_train``, with ``N_test`` rows.
        y_test: as ``y_train``, with ``N_test`` rows.
        source: ``"generated"``, ``"file in ..."``, ``"downloaded from ..."`` or ``"scikit-learn"``.
        sha256: sha256 of each file that was read, by file name; without files, of the arrays, by name of the data set.
        y_mean: mean that :meth:`standardised` subtracted from the targets, in their original units.
        y_std: standard deviation by which :meth:`standardised` divided the targets, in their original units.
        groups: ``[N]`` groups of training rows that belong together, such as all rows of a patient; ``None`` if every
            row is its own group.

    Raises:
        ValueError: if inputs, targets and groups have different lengths, or if a training row and a test row have
            different shapes.
    """

    name: str
    X_train: np.ndarray
    y_train: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    source: str
    sha256: Mapping[str, str]
    y_mean: float = 0.0
    y_std: float = 1.0
    groups: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name, of in (("X_train", "y_train"), ("X_test", "y_test"), ("groups", "y_train")):
            rows, wanted = getattr(self, name), getattr(self, of)
            if rows is not None and len(rows) != len(wanted):
                raise ValueError(f"{name} has {len(rows)} rows but {of} has {len(wanted)}; they must match.")
        if self.X_train.shape[1:] != self.X_test.shape[1:]:
            raise ValueError(
                f"rows of X_train have shape {self.X_train.shape[1:]} but rows of X_test {self.X_test.shape[1:]}; "
                "they must match."
            )

    @property
    def is_classification(self) -> bool:
        """Whether the targets are integer classes."""
        return np.issubdtype(self.y_train.dtype, np.integer)

    @property
    def sizes(self) -> dict[str, Any]:
        """Number of rows of each part, shape of one input, and number of classes, in JSON types."""
        sizes: dict[str, Any] = {
            "train": len(self.X_train),
            "test": len(self.X_test),
            "input_shape": list(self.X_train.shape[1:]),
        }
        if self.is_classification:
            sizes["classes"] = len(np.union1d(self.y_train, self.y_test))
        return sizes

    def standardised(self) -> Dataset:
        """Shift and scale inputs and real targets to mean 0 and standard deviation 1 on the training set.

        An input column that is constant over the training set contains no information and has no scale. It becomes 0 in
        both parts. Constant targets are only shifted. Integer classes are unchanged.

        ``y = y_mean + y_std * y_standardised``. In original units, an RMSE is therefore ``y_std`` times the
        standardised RMSE, and a log density is the standardised log density minus ``log(y_std)``.
        """
        table = standardised(ArrayTable(self.X_train, self.y_train))
        arrays = (*table.apply(self.X_train, self.y_train), *table.apply(self.X_test, self.y_test))
        own = dict(zip(("X_train", "y_train", "X_test", "y_test"), arrays, strict=True))
        if self.is_classification:
            return replace(self, **own)
        return replace(self, **own, y_mean=self.y_mean + self.y_std * table.mean[1], y_std=self.y_std * table.std[1])

    def flat(self) -> Dataset:
        """Inputs as rows ``[N, D]``. Inputs and real targets are in single precision."""
        X_train, X_test = (X.reshape(len(X), -1).astype(np.float32) for X in (self.X_train, self.X_test))
        kind = self.y_train.dtype if self.is_classification else np.float32
        y_train, y_test = (y.astype(kind, copy=False) for y in (self.y_train, self.y_test))
        return replace(self, X_train=X_train, y_train=y_train, X_test=X_test, y_test=y_test)

    def subset(self, num_train: int | None = None, num_test: int | None = None, seed: int = 0) -> Dataset:
        """Keep random rows of each part, drawn without replacement, in their original order.

        Args:
            num_train: number of training rows to keep; ``None`` keeps all.
            num_test: number of test rows to keep; ``None`` keeps all.
            seed: seed of the draw. The same seed keeps the same rows, and a larger subset contains a smaller one.

        Raises:
            ValueError: if a number is below 1, or above the number of rows.
        """
        train = _draw("num_train", num_train, len(self.X_train), seed)
        test = _draw("num_test", num_test, len(self.X_test), seed)
        return self._rows(train, test)

    def classes(self, *labels: int) -> Dataset:
        """Keep the rows of some classes, relabelled ``0 .. k-1`` in the given order: ``classes(0, 1)`` of MNIST.

        Raises:
            ValueError: if the targets are not classes, or if there are fewer than two labels, repeated or unknown ones.
        """
        if not self.is_classification:
            raise ValueError(
                f"{self.name} has real targets ({self.y_train.dtype}), so it has no classes to choose from."
            )
        if len(labels) < 2 or len(set(labels)) != len(labels):
            raise ValueError(f"labels must be at least two different classes, got {labels}.")
        present = np.unique(self.y_train).tolist()
        absent = [label for label in labels if label not in present]
        if absent:
            raise ValueError(f"labels {absent} do not occur in {self.name}; its classes are {present}.")
        kept = self._rows(np.isin(self.y_train, labels), np.isin(self.y_test, labels))
        matches = (y[:, None] == np.asarray(labels) for y in (kept.y_train, kept.y_test))
        y_train, y_test = (match.argmax(axis=1).astype(kept.y_train.dtype) for match in matches)
        return replace(kept, y_train=y_train, y_test=y_test)

    def _rows(self, train: np.ndarray | slice, test: np.ndarray | slice) -> Dataset:
        rows = {"train": train, "test": test}
        parts: dict[str, Any] = {f"{n}_{part}": getattr(self, f"{n}_{part}")[rows[part]] for part in rows for n in "Xy"}
        return replace(self, **parts, groups=None if self.groups is None else self.groups[train])


def divided(X: np.ndarray, y: np.ndarray, train: Any, test: Any) -> dict[str, Any]:
    """The arrays of a :class:`Dataset` with these training and test rows, given as slices, masks or numbers."""
    return {"X_train": X[train], "y_train": y[train], "X_test": X[test], "y_test": y[test]}


def first_rows(X: np.ndarray, y: np.ndarray, train: int) -> dict[str, Any]:
    """The first rows are for training, and the others are for testing."""
    return divided(X, y, slice(train), slice(train, None))


def halved(name: str, X: np.ndarray, y: np.ndarray) -> Dataset:
    """Generated data in single precision. The first half is for testing."""
    X, y, half = X.astype(np.float32), y.astype(np.float32), len(y) // 2
    return Dataset(name, X[half:], y[half:], X[:half], y[:half], source="generated", sha256={})


def random_split(X: np.ndarray, y: np.ndarray, seed: int, most_test: int | None = None) -> dict[str, Any]:
    """Draw a tenth of the rows for testing, rounded up, at most ``most_test``. Both parts keep the order of rows."""
    test = min(len(y) - len(y) * 9 // 10, most_test or len(y))
    drawn = np.zeros(len(y), bool)
    drawn[np.random.RandomState(operator.index(seed)).permutation(len(y))[:test]] = True
    return divided(X, y, ~drawn, drawn)


def _draw(name: str, count: int | None, total: int, seed: int) -> np.ndarray | slice:
    if count is None:
        return slice(None)
    count = operator.index(count)
    if not 1 <= count <= total:
        raise ValueError(f"{name} must be between 1 and the {total} rows there are, got {count}.")
    # RandomState, because its streams are the same in all NumPy versions. Streams of default_rng are not.
    order = np.random.RandomState(operator.index(seed)).permutation(total)
    return np.sort(order[:count])
