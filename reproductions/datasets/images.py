"""Images with classes: digits of scikit-learn, MNIST, CIFAR-10, SVHN, and photographs from the user's own folder."""

from __future__ import annotations

import lzma
import tarfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpzoo._checks import positive_int
from gpzoo._digests import fingerprint
from gpzoo._extras import needs
from gpzoo.errors import DatasetError
from gpzoo.reproductions.datasets.files import VARIABLE, Files, find, folders, idx, npz
from gpzoo.reproductions.datasets.in_memory import Dataset, divided, first_rows
from gpzoo.reproductions.datasets.registry import dataset, published
from gpzoo.tables.files import opened, reason, unreadable

_CIFAR10_TRAIN = 50_000

#: Folder of the photographs in the data folder, with ``train/<class>/`` and ``val/<class>/``.
IMAGENET20 = "imagenet20"
_IMAGENET_HOME = "https://www.image-net.org/download.php"
_SUFFIXES = [".jpeg", ".jpg", ".png", ".JPEG", ".JPG", ".PNG"]
#: Largest numbers of bytes and pixels of a photograph.
_MOST_BYTES, _MOST_PIXELS = 2**26, 2**26


@dataset("digits", "handwritten digits, 8x8, 10 classes, 1,437 / 360, part of scikit-learn", location="scikit-learn")
def digits() -> Dataset:
    """Read the 8x8 digits that come with scikit-learn, scaled to [0, 1]: float32 ``[N, 8, 8, 1]``, int32 labels.

    Images are sorted by class and shuffled within each class. Every fifth image is then for testing. This gives 1,437
    and 360 images. The shares of the classes in the two parts agree to within one image.
    """
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    X = (bunch.images[..., None] / 16).astype(np.float32)
    y = bunch.target.astype(np.int32)
    shuffled = np.random.RandomState(0).permutation(len(y))
    test = np.sort(shuffled[np.argsort(y[shuffled], kind="stable")][::5])
    train = np.setdiff1d(np.arange(len(y)), test)
    arrays = divided(X, y, train, test)
    return Dataset("digits", **arrays, source="scikit-learn", sha256={"digits": fingerprint(arrays)})


@published("mnist")
def mnist(files: Files) -> dict[str, Any]:
    """Read MNIST from four IDX files: 60,000 and 10,000 images, float32 ``[N, 28, 28, 1]`` in [0, 1]; int32 labels."""
    with files.paths() as paths:
        images, labels, test_images, test_labels = (idx(path) for path in paths)
    (X, y), (X_test, y_test) = _scaled(images[..., None], labels), _scaled(test_images[..., None], test_labels)
    return {"X_train": X, "y_train": y, "X_test": X_test, "y_test": y_test}


@published("cifar10")
def cifar10(files: Files) -> dict[str, Any]:
    """Read CIFAR-10: 50,000 and 10,000 images, float32 ``[N, 32, 32, 3]``, red, green, blue in [0, 1]; int32 labels.

    The files are ``cifar10_images.xz`` and ``cifar10_labels.npz``, or the published ``cifar-10-binary.tar.gz``.
    Unpacking takes several seconds, so the result is kept in the user's cache folder (184 MB).
    """
    records = files.table(_records)
    X, y = _scaled(records[:, 1:].reshape(-1, 32, 32, 3), records[:, 0])
    return first_rows(X, y, _CIFAR10_TRAIN)


def _records(paths: list[Path]) -> np.ndarray:
    """Records ``[60000, 3073]`` of CIFAR-10: label, then the pixels of ``[32, 32, 3]``."""
    if len(paths) == 1:
        # The published records: label, then the red, green and blue planes of an image.
        with tarfile.open(paths[0]) as archive:
            # data_batch_1 to data_batch_5, and test_batch.
            members = sorted((each for each in archive if each.name.endswith(".bin")), key=lambda each: each.name)
            content = b"".join(file.read() for each in members if (file := archive.extractfile(each)))
        records = np.frombuffer(content, np.uint8).reshape(-1, 3073)
        y, pixels = records[:, 0], np.moveaxis(records[:, 1:].reshape(-1, 3, 32, 32), 1, -1)
    else:
        # The planes are green, red minus green, and blue minus green. Each has differences along rows and columns.
        with lzma.open(paths[0]) as stream:
            planes = np.frombuffer(stream.read(), np.uint8).reshape(3, -1, 32, 32)
        green, red, blue = np.cumsum(np.cumsum(planes, axis=-1, dtype=np.uint8), axis=-2, dtype=np.uint8)
        pixels = np.stack([red + green, green, blue + green], axis=-1)
        labels = npz(paths[1])
        y = np.concatenate([labels["y_train"], labels["y_test"]]).astype(np.uint8)
    return np.concatenate([y[:, None], pixels.reshape(len(pixels), -1)], axis=1)


@published("svhn")
def svhn(files: Files) -> dict[str, Any]:
    """Read the house numbers of Netzer et al. (2011), with one image for each digit: 73,257 and 26,032 images.

    Returns:
        float32 ``[N, 32, 32, 3]``, red, green, blue in [0, 1]; int32 labels, which are the digits.

    Raises:
        DatasetError: if a file is damaged or cannot be downloaded.
    """
    from scipy.io import loadmat

    arrays = {}
    with files.paths() as paths:
        for part, path in zip(("train", "test"), paths, strict=True):
            found = loadmat(path, variable_names=("X", "y"))
            # In the files, the digit 0 is class 10.
            X, y = _scaled(np.moveaxis(found["X"], -1, 0), found["y"].ravel() % 10)
            arrays |= {f"X_{part}": X, f"y_{part}": y}
    return arrays


def _scaled(pixels: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes as float32 in [0, 1], and int32 labels."""
    X = np.empty(pixels.shape, np.float32)
    return np.divide(pixels, np.float32(255), out=X), labels.astype(np.int32)


# -- photographs in the user's own folder -----------------------------------------------------------------------------


@dataset(IMAGENET20, "photographs of 20 classes from your own folder, 64x64 (option size)", folder=IMAGENET20)
def imagenet20(size: int = 64) -> Dataset:
    """Read photographs, such as 20 classes of ImageNet, from the folder ``imagenet20`` of the data folder.

    ``imagenet20/train/<class>/*.jpeg`` are for training, and ``imagenet20/val/<class>/*.jpeg`` are for testing (also
    ``.jpg`` and ``.png``). The shorter side of an image is scaled to ``size``, and its central square is used. Classes
    are numbered in the order of their names.

    Args:
        size: side of an image, in pixels.

    Returns:
        float32 ``[N, size, size, 3]``, red, green, blue in [0, 1]; int32 labels.

    Raises:
        ValueError: if ``size`` is not positive.
        DatasetError: if there is no such folder, if its two parts have different classes, or if an image cannot be
            read.
    """
    size = positive_int("size", size)
    folder = find(IMAGENET20)
    if folder is None or not folder.is_dir():
        raise DatasetError(
            f"there is no folder {folders()[0] / IMAGENET20}: these images may not be redistributed. Register at "
            f"{_IMAGENET_HOME}, put the photographs of 20 classes into {IMAGENET20}/train/<class>/ and "
            f"{IMAGENET20}/val/<class>/ there, or set the environment variable {VARIABLE} to the folder that holds "
            f"{IMAGENET20}; load '{IMAGENET20}-generated' for a small stand-in."
        )
    from sklearn.datasets import load_files

    options: dict[str, Any] = {"load_content": False, "shuffle": False, "allowed_extensions": _SUFFIXES}
    try:
        train, test = (load_files(str(folder / part), **options) for part in ("train", "val"))
    except OSError as error:
        raise unreadable(error.filename or folder, reason(error), "It must hold the folders of the classes") from error
    names = train.target_names
    if len(names) < 2 or names != test.target_names:
        raise DatasetError(
            f"{folder} must hold the same two or more folders of classes in train and in val: there are {names} and "
            f"{test.target_names}."
        )
    arrays: dict[str, Any] = {}
    for part, key, found in (("train", "train", train), ("val", "test", test)):
        if empty := [name for k, name in enumerate(names) if k not in found.target]:
            inside = folder / part / empty[0]
            raise DatasetError(f"{inside} holds no images (.jpeg, .jpg, .png): add some, or remove it.")
        images = np.empty((len(found.filenames), size, size, 3), np.float32)
        with ThreadPoolExecutor() as pool:
            for place, image in enumerate(pool.map(partial(_photograph, size), map(Path, found.filenames))):
                images[place] = image
        arrays |= {f"X_{key}": images, f"y_{key}": found.target.astype(np.int32)}
    return Dataset(IMAGENET20, **arrays, source=f"files in {folder.parent}", sha256={IMAGENET20: fingerprint(arrays)})


def _photograph(size: int, path: Path) -> np.ndarray:
    """The central square of an image, scaled."""
    with needs("reproductions", "Reading photographs"):
        from PIL import Image, ImageOps

    with opened(path, _MOST_BYTES) as stream:
        try:
            # Pillow's other formats may start programs or unpack without bounds.
            with Image.open(stream, formats=("JPEG", "PNG")) as image:
                if image.width * image.height > _MOST_PIXELS:
                    raise ValueError(f"it has more than {_MOST_PIXELS:,} pixels")
                image.draft("RGB", (2 * size, 2 * size))
                fitted = ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BICUBIC)
        # Malicious images cause errors of many kinds in Pillow.
        except Exception as error:
            raise DatasetError(f"cannot read the image {path}: {reason(error)}. Replace or remove it.") from error
    return np.asarray(fitted, np.float32) / np.float32(255)
