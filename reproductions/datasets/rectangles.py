"""Outlines of rectangles, generated like those of Larochelle et al. (2007), and their original files."""

from __future__ import annotations

import hashlib
import operator
from pathlib import Path
from typing import Any

import numpy as np

from gpzoo.reproductions.datasets.files import find, obtain, parsing, read
from gpzoo.reproductions.datasets.icml2007 import images_and_labels, unzip_amat
from gpzoo.reproductions.datasets.in_memory import Dataset
from gpzoo.reproductions.datasets.registry import dataset
from gpzoo.reproductions.datasets.unpacking import npz
from gpzoo.tables.files import damaged, fingerprint

RECTANGLES_NPZ = "rectangles.npz"
RECTANGLES_ZIP = "rectangles.zip"
RECTANGLES_ROWS = {"train": 1_200, "test": 50_000}
# Largest sizes of the files in bytes: exact if the sha256 is known, else round numbers.
_MOST_RECTANGLES_NPZ, _MOST_RECTANGLES_ZIP = 339_478, 2**24
_RECTANGLES_NPZ_SHA256 = "869cb50a63a43773371bc48c743dd196bd35eb688f1377379fbddb33935b6fa1"
_RECTANGLES_CONTENT = "4e2534474dde216bf0f51ed9155cd6f93b42b7e220f5b4c502282ba96344e53d"
_RECTANGLES_URLS = (
    f"http://www.iro.umontreal.ca/~lisa/icml2007data/{RECTANGLES_ZIP}",
    f"https://raw.githubusercontent.com/markvdw/convgp/543d1fb4f6149f3d18c2eb738df041bafd0d0146/datasets/{RECTANGLES_ZIP}",
)

# The pairs (height, width) of the original images: sides of 4 to 28 pixels that differ by at least 3.
_SIDES = np.array([(h, w) for h in range(4, 29) for w in range(4, 29) if abs(h - w) >= 3])


@dataset("rectangles", "outlines of rectangles, 28x28, tall against wide, 1,200 / 50,000, generated (option seed)")
def rectangles(seed: int = 0) -> Dataset:
    """Generate outlines of rectangles, distributed as those of Larochelle et al. (2007): 1 if taller than wide, else 0.

    Each image is black (0) with the white (1) outline of one rectangle, one pixel thick. Its height and width are drawn
    uniformly from the 506 pairs of lengths from 4 to 28 that differ by at least 3, and its top left corner uniformly
    from the possible positions. Training and test images are drawn independently.

    This rule was inferred from the 51,200 original images, and agrees with them in

    * the support of heights and widths (4 to 28) and of their difference (3 to 24);
    * the frequencies of the 506 pairs: chi-squared p = 0.59 on the test images, 0.18 on the training images;
    * the positions given the lengths: p = 0.68 down and 0.89 across, test images;
    * the share of tall ones (0.50 of the test, 0.51 of the training images) and of white pixels (0.077, 0.075);
    * the number of distinct images: 30,649 of 50,000 and 1,172 of 1,200; this rule expects 30,703 and 1,174;
    * the number of those that occur in both parts: 672; this rule expects 684.

    Args:
        seed: seed of the draw; the same seed gives the same images on every machine and NumPy version.

    Returns:
        1,200 training and 50,000 test images, float32 ``[N, 28, 28, 1]``, with int32 labels ``[N]``.
    """
    # RandomState, because its streams are the same in all NumPy versions; those of default_rng are not.
    rng = np.random.RandomState(operator.index(seed))
    X_train, y_train = _draw_rectangles(rng, 1200)
    X_test, y_test = _draw_rectangles(rng, 50_000)
    arrays: dict[str, Any] = {"X_train": X_train, "y_train": y_train, "X_test": X_test, "y_test": y_test}
    return Dataset("rectangles", **arrays, source="generated", sha256={"rectangles": fingerprint(arrays)})


def _draw_rectangles(rng: np.random.RandomState, count: int) -> tuple[np.ndarray, np.ndarray]:
    pair, down, across = rng.random_sample((3, count))
    height, width = _SIDES[(pair * len(_SIDES)).astype(int)].T
    rows_inside, rows_edge = _interval((down * (29 - height)).astype(int), height)
    columns_inside, columns_edge = _interval((across * (29 - width)).astype(int), width)
    images = rows_edge[:, :, None] & columns_inside[:, None, :]
    images |= rows_inside[:, :, None] & columns_edge[:, None, :]
    return images[..., None].astype(np.float32), (height > width).astype(np.int32)


def _interval(start: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pixels of 28 inside each interval, and those at its two ends: boolean ``[N, 28]`` each."""
    pixel, first = np.arange(28), start[:, None]
    last = first + length[:, None] - 1
    return (first <= pixel) & (pixel <= last), (pixel == first) | (pixel == last)


@dataset(
    "rectangles-original",
    "the files of 2007 that rectangles imitates, 1,200 / 50,000",
    files=[(RECTANGLES_NPZ,), (RECTANGLES_ZIP,)],
)
def rectangles_original() -> Dataset:
    """Read the images that :func:`rectangles` imitates, from ``rectangles.npz`` or the published ``rectangles.zip``."""
    path = find(RECTANGLES_NPZ)
    if path is not None:
        packed = npz(path, _MOST_RECTANGLES_NPZ, _RECTANGLES_NPZ_SHA256)
        arrays = {}
        for part in ("train", "test"):
            arrays |= images_and_labels(part, np.unpackbits(packed[f"X_{part}_bits"], axis=1), packed[f"y_{part}"])
        source, sha256 = f"file in {path.parent}", _RECTANGLES_NPZ_SHA256
    else:
        path, source = obtain(RECTANGLES_ZIP, _RECTANGLES_URLS, _MOST_RECTANGLES_ZIP)
        content = read(path, _MOST_RECTANGLES_ZIP)
        arrays, sha256 = _unzip_rectangles(path, content), hashlib.sha256(content).hexdigest()
    parts = (arrays[name] for name in ("X_train", "y_train", "X_test", "y_test"))
    return Dataset("rectangles-original", *parts, source=source, sha256={path.name: sha256})


def _unzip_rectangles(path: Path, content: bytes) -> dict[str, np.ndarray]:
    arrays = {}
    with parsing(path, f"sha256 {_RECTANGLES_CONTENT} of the arrays"):
        for part, rows in RECTANGLES_ROWS.items():
            table = unzip_amat(content, f"rectangles_{part}.amat", rows)
            arrays |= images_and_labels(part, table[:, :-1], table[:, -1])
    found = fingerprint(arrays)
    if found != _RECTANGLES_CONTENT:
        raise damaged(path, f"{_RECTANGLES_CONTENT} of the arrays", found)
    return arrays
