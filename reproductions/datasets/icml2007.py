"""Sets of images from the benchmark of Larochelle et al. (2007): rectangles filled with images, rotated digits.

Each is a zip archive of text. Parsing takes half a minute, so the result is kept in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpzoo.reproductions.datasets.files import keep, kept_with_origin, obtain, parsing, read
from gpzoo.reproductions.datasets.in_memory import Dataset
from gpzoo.reproductions.datasets.mnist import MNIST_SHA256, mnist
from gpzoo.reproductions.datasets.registry import dataset
from gpzoo.reproductions.datasets.unpacking import member, numbers
from gpzoo.tables.files import fingerprint

#: Numbers of training and test images of mnist-rot, and of its stand-in.
ROTATED_ROWS = (12_000, 50_000)

#: Largest size of the text of 50,000 images, in bytes.
_MOST_AMAT = 2**30

_HOME = "http://www.iro.umontreal.ca/~lisa/icml2007data"


@dataclass(frozen=True)
class Archive:
    """A published archive: its file, its known digest, and the text of each part with its number of rows."""

    file: str
    most: int
    method: str
    digest: str
    members: dict[str, str]
    rows: dict[str, int]

    @property
    def url(self) -> str:
        """Its address."""
        return f"{_HOME}/{self.file}"

    @property
    def kept(self) -> str:
        """The name of its numbers in the cache folder."""
        return self.file.replace(".zip", ".npy")

    @property
    def files(self) -> tuple[tuple[str, ...], ...]:
        """Its possible files, any of which suffices."""
        return (self.file,), (self.kept,)


ARCHIVES = {
    "rectangles-images": Archive(
        "rectangles_images.zip",
        2**27,
        "sha1",
        "2700ba92129ae195e93070d8b27f830323573a57",
        {"train": "rectangles_im_train.amat", "test": "rectangles_im_test.amat"},
        {"train": 12_000, "test": 50_000},
    ),
    "mnist-rot": Archive(
        "mnist_rotation_new.zip",
        2**27,
        "md5",
        "0f9a947ff3d30e95cd685462cbf3b847",
        {
            "train": "mnist_all_rotation_normalized_float_train_valid.amat",
            "test": "mnist_all_rotation_normalized_float_test.amat",
        },
        dict(zip(("train", "test"), ROTATED_ROWS, strict=True)),
    ),
}


@dataset(
    "rectangles-images",
    "rectangles filled with one image, on another, 28x28, tall against wide, 12,000 / 50,000",
    files=ARCHIVES["rectangles-images"].files,
)
def rectangles_images() -> Dataset:
    """Read the rectangles of Larochelle et al. (2007), filled with one image on another; 1 if tall, else 0.

    Returns:
        12,000 / 50,000 images, float32 ``[N, 28, 28, 1]`` in [0, 1]; int32 labels ``[N]``.

    Raises:
        DatasetError: if the file is damaged or cannot be downloaded.
    """
    return _images("rectangles-images")


@dataset(
    "mnist-rot",
    "handwritten digits turned by any angle, 28x28, 10 classes, 12,000 / 50,000",
    files=ARCHIVES["mnist-rot"].files,
)
def mnist_rot() -> Dataset:
    """Read the digits of Larochelle et al. (2007) that are rotated by angles between 0 and 360 degrees.

    Returns:
        12,000 / 50,000 images, float32 ``[N, 28, 28, 1]`` in [0, 1]; int32 labels ``[N]``.

    Raises:
        DatasetError: if the file is damaged or cannot be downloaded.
    """
    return _images("mnist-rot")


@dataset(
    "mnist-rot-generated",
    "MNIST turned in the manner of mnist-rot, 12,000 / 50,000 (option seed)",
    files=[tuple(MNIST_SHA256)],
)
def mnist_rot_generated(seed: int = 0) -> Dataset:
    """Rotate digits of MNIST as Larochelle et al. (2007) did, as a stand-in for their file.

    Args:
        seed: seed of the angles, uniform between 0 and 360 degrees, and of the draw of 12,000 digits for training;
            50,000 of the others are for testing.

    Returns:
        12,000 / 50,000 images, float32 ``[N, 28, 28, 1]`` in [0, 1]; int32 labels ``[N]``.

    Raises:
        DatasetError: if a file of MNIST is damaged or cannot be downloaded.
    """
    data = mnist()
    X, y = np.concatenate([data.X_train, data.X_test]), np.concatenate([data.y_train, data.y_test])
    rng = np.random.RandomState(seed)
    chosen = rng.permutation(len(X))[: sum(ROTATED_ROWS)]
    turned, labels = rotated(X[chosen], rng.uniform(0, 360, len(chosen))), y[chosen]
    parts = [np.split(array, [ROTATED_ROWS[0]]) for array in (turned, labels)]
    arrays: dict[str, Any] = {
        "X_train": parts[0][0],
        "y_train": parts[1][0],
        "X_test": parts[0][1],
        "y_test": parts[1][1],
    }
    name = "mnist-rot-generated"
    return Dataset(name, **arrays, source=f"rotated MNIST, {data.source}", sha256={name: fingerprint(arrays)})


def rotated(X: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """Images ``[N, H, W, C]``, each rotated by its angle ``[N]``; bilinear, with zeros outside the image."""
    from scipy.ndimage import rotate

    turned = [rotate(x, a, reshape=False, order=1) for x, a in zip(X, degrees, strict=True)]
    return np.stack(turned).astype(X.dtype)


def _images(name: str) -> Dataset:
    archive = ARCHIVES[name]
    rows = sum(archive.rows.values())
    found = kept_with_origin(archive.kept, 4 * 785 * rows)
    if found is not None:
        table, sha256 = found
        source = "kept in the cache folder"
    else:
        path, source = obtain(archive.file, [archive.url], archive.most, archive.digest, archive.method)
        content = read(path, archive.most, archive.digest, archive.method)
        parts = []
        for part, rows in archive.rows.items():
            with parsing(path, f"{rows:,} rows of 785 numbers in {archive.members[part]}"):
                parts.append(unzip_amat(content, archive.members[part], rows))
                if len(parts[-1]) != rows:
                    raise ValueError(f"there are {len(parts[-1]):,} rows")
        table = np.concatenate(parts)
        sha256 = {archive.file: hashlib.sha256(content).hexdigest()}
        keep(archive.kept, table, sha256)
    arrays = {}
    for part, rows in zip(("train", "test"), np.split(table, [archive.rows["train"]]), strict=True):
        arrays |= images_and_labels(part, rows[:, :-1], rows[:, -1])
    return Dataset(name, **arrays, source=source, sha256=sha256)


def unzip_amat(content: bytes, name: str, rows: int) -> np.ndarray:
    """A text file in a zip archive of 2007, one image a line: 784 pixels, then the label; float32 ``[n, 785]``.

    Args:
        content: content of the archive.
        name: name of the text in it.
        rows: largest number of images.

    Raises:
        ValueError: if the archive has another content.
    """
    with member(io.BytesIO(content), name, _MOST_AMAT) as text:
        return numbers(text, rows, 785, delimiter=None)


def images_and_labels(part: str, pixels: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of 784 pixels as ``X_<part>``, float32 ``[N, 28, 28, 1]``, and labels as ``y_<part>``, int32 ``[N]``."""
    return {f"X_{part}": pixels.reshape(-1, 28, 28, 1).astype(np.float32), f"y_{part}": labels.astype(np.int32)}
