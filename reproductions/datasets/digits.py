"""The handwritten digits that come with scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpzoo.reproductions.datasets.in_memory import Dataset
from gpzoo.reproductions.datasets.registry import dataset
from gpzoo.tables.files import fingerprint


@dataset(
    "digits",
    "handwritten digits, 8x8, 10 classes, 1,437 / 360, part of scikit-learn",
    location="scikit-learn",
)
def digits() -> Dataset:
    """Read the 8x8 digits that come with scikit-learn, scaled to [0, 1]: float32 ``[N, 8, 8, 1]``, int32 labels.

    Images are sorted by class and shuffled within each class; then every fifth is for testing. This gives 1,437 and 360
    images, with the same share of every class to within one image.
    """
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    X = (bunch.images[..., None] / 16).astype(np.float32)
    y = bunch.target.astype(np.int32)
    shuffled = np.random.RandomState(0).permutation(len(y))
    test = np.sort(shuffled[np.argsort(y[shuffled], kind="stable")][::5])
    train = np.setdiff1d(np.arange(len(y)), test)
    arrays = {"X_train": X[train], "y_train": y[train], "X_test": X[test], "y_test": y[test]}
    return Dataset("digits", **arrays, source="scikit-learn", sha256={"digits": fingerprint(arrays)})
