"""Images of the benchmark of Larochelle et al. (2007): rectangles, filled or not, and rotated digits.

The published files are zip archives of text. Parsing the large ones takes half a minute, so the result is kept in the
user's cache folder.
"""

from __future__ import annotations

import operator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpzoo._digests import fingerprint
from gpzoo.reproductions.datasets.files import Files, choices, member, npz, numbers
from gpzoo.reproductions.datasets.in_memory import Dataset, first_rows
from gpzoo.reproductions.datasets.registry import FACTS, dataset, load, published

# The pairs (height, width) of the original images: sides of 4 to 28 pixels that differ by at least 3.
_SIDES = np.array([(h, w) for h in range(4, 29) for w in range(4, 29) if abs(h - w) >= 3])


@dataset("rectangles", "outlines of rectangles, 28x28, tall against wide, 1,200 / 50,000, generated (option seed)")
def rectangles(seed: int = 0) -> Dataset:
    """Generate outlines of rectangles with the distribution in Larochelle et al. (2007): 1 if taller than wide, else 0.

    Each image is black (0) with the white (1) outline of one rectangle, one pixel thick. Its height and width are drawn
    uniformly from the 506 pairs of lengths from 4 to 28 that differ by at least 3. Its top left corner is drawn
    uniformly from the possible positions. Training and test images are drawn independently.

    This rule was inferred from the 51,200 original images, and agrees with them in

    * the support of heights and widths (4 to 28) and of their difference (3 to 24);
    * the frequencies of the 506 pairs: chi-squared p = 0.59 on the test images, 0.18 on the training images;
    * the positions given the lengths: p = 0.68 down and 0.89 across, test images;
    * the share of tall rectangles (0.50 of the test, 0.51 of the training images) and of white pixels (0.077, 0.075);
    * the number of distinct images: 30,649 of 50,000 and 1,172 of 1,200; this rule expects 30,703 and 1,174;
    * the number of images that occur in both parts: 672; this rule expects 684.

    Args:
        seed: seed of the draw. The same seed gives the same images on every machine and NumPy version.

    Returns:
        1,200 training and 50,000 test images, float32 ``[N, 28, 28, 1]``, with int32 labels ``[N]``.
    """
    # RandomState, because its streams are the same in all NumPy versions. Streams of default_rng are not.
    rng = np.random.RandomState(operator.index(seed))
    X_train, y_train = draw_rectangles(rng, 1200)
    X_test, y_test = draw_rectangles(rng, 50_000)
    arrays: dict[str, Any] = {"X_train": X_train, "y_train": y_train, "X_test": X_test, "y_test": y_test}
    return Dataset("rectangles", **arrays, source="generated", sha256={"rectangles": fingerprint(arrays)})


def draw_rectangles(rng: np.random.RandomState, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Outlines of rectangles, float32 ``[count, 28, 28, 1]``, and int32 labels; see :func:`rectangles`."""
    pair, down, across = rng.random_sample((3, count))
    height, width = _SIDES[(pair * len(_SIDES)).astype(int)].T
    rows_inside, rows_edge = _interval((down * (29 - height)).astype(int), height)
    columns_inside, columns_edge = _interval((across * (29 - width)).astype(int), width)
    images = rows_edge[:, :, None] & columns_inside[:, None, :]
    images |= rows_inside[:, :, None] & columns_edge[:, None, :]
    return images[..., None].astype(np.float32), (height > width).astype(np.int32)


def _interval(start: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pixels of 28 that are inside each interval, and the pixels at its two ends: boolean ``[N, 28]`` each."""
    pixel, first = np.arange(28), start[:, None]
    last = first + length[:, None] - 1
    return (first <= pixel) & (pixel <= last), (pixel == first) | (pixel == last)


@published("rectangles-original")
def rectangles_original(files: Files) -> dict[str, Any]:
    """Read the images that :func:`rectangles` imitates, from ``rectangles.npz`` or the published ``rectangles.zip``."""
    with files.paths() as paths:
        table = _unpacked(paths[0]) if paths[0].suffix == ".npz" else _text(files.facts, paths)
        arrays = _split(table, files.facts)
        files.check(fingerprint(arrays))
    return arrays


def _unpacked(path: Path) -> np.ndarray:
    """The rows of an npz file, in the same form as from :func:`_text`."""
    packed = npz(path)
    bits, labels = (
        np.concatenate([packed[name.format(part)] for part in ("train", "test")]) for name in ("X_{}_bits", "y_{}")
    )
    return np.column_stack([np.unpackbits(bits, axis=1), labels])


@published("rectangles-images", "mnist-rot")
def images(files: Files) -> dict[str, Any]:
    """Read rectangles that are filled with one image and lie on another, or digits that are rotated by any angle.

    Returns:
        12,000 / 50,000 images, float32 ``[N, 28, 28, 1]`` in [0, 1], and int32 labels ``[N]``: the digits, or
        1 if a rectangle is tall, else 0.

    Raises:
        DatasetError: if the file is damaged or cannot be downloaded.
    """
    return _split(files.table(partial(_text, files.facts)), files.facts)


def _text(facts: dict[str, Any], paths: list[Path]) -> np.ndarray:
    """The rows of an archive, training rows first: 784 pixels of an image, then its label, float32 ``[N, 785]``."""
    parts = []
    for name, rows in zip(facts["members"], facts["rows"], strict=True):
        with member(paths[0], name) as text:
            parts.append(numbers(text, rows, 785, delimiter=None))
    return np.concatenate(parts)


def _split(table: np.ndarray, facts: dict[str, Any]) -> dict[str, Any]:
    """Images, float32 ``[N, 28, 28, 1]``, and int32 labels ``[N]``."""
    X, y = table[:, :-1].reshape(-1, 28, 28, 1).astype(np.float32), table[:, -1].astype(np.int32)
    return first_rows(X, y, facts["rows"][0])


@dataset(
    "mnist-rot-generated",
    "MNIST turned in the manner of mnist-rot, 12,000 / 50,000 (option seed)",
    files=choices(FACTS["mnist"]),
)
def mnist_rot_generated(seed: int = 0) -> Dataset:
    """Rotate digits of MNIST as Larochelle et al. (2007) did, as a stand-in for their file.

    Args:
        seed: seed of the angles, which are uniform between 0 and 360 degrees, and of the choice of rows: 12,000 digits
            are drawn for training, and 50,000 of the others are for testing.

    Returns:
        12,000 / 50,000 images, float32 ``[N, 28, 28, 1]`` in [0, 1], and int32 labels ``[N]``.

    Raises:
        DatasetError: if a file of MNIST is damaged or cannot be downloaded.
    """
    name, data, (train, test) = "mnist-rot-generated", load("mnist"), FACTS["mnist-rot"]["rows"]
    X, y = np.concatenate([data.X_train, data.X_test]), np.concatenate([data.y_train, data.y_test])
    rng = np.random.RandomState(seed)
    chosen = rng.permutation(len(X))[: train + test]
    arrays = first_rows(rotated(X[chosen], rng.uniform(0, 360, len(chosen))), y[chosen], train)
    return Dataset(name, **arrays, source=f"rotated MNIST, {data.source}", sha256={name: fingerprint(arrays)})


def rotated(X: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """Images ``[N, H, W, C]``, each rotated by its angle ``[N]``: bilinear interpolation, zeros outside the image."""
    from scipy.ndimage import rotate

    turned = [rotate(x, a, reshape=False, order=1) for x, a in zip(X, degrees, strict=True)]
    return np.stack(turned).astype(X.dtype)
