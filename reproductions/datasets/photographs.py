"""Photographs of the deep-kernel experiments: house numbers, and classes of images in the user's own folder."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from gpzoo._checks import positive_int
from gpzoo._extras import needs
from gpzoo.errors import DatasetError
from gpzoo.reproductions.datasets.files import VARIABLE, find_folder, folders, obtain, parsing, read
from gpzoo.reproductions.datasets.in_memory import Dataset
from gpzoo.reproductions.datasets.registry import dataset
from gpzoo.tables.files import fingerprint, opened, reason, unreadable

SVHN_SHA256 = {
    "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
}
_SVHN_BYTES = {"train_32x32.mat": 182_040_794, "test_32x32.mat": 64_275_384}
SVHN_HOME = "http://ufldl.stanford.edu/housenumbers"

#: Its folder in the data folder, with ``train/<class>/`` and ``val/<class>/``.
IMAGENET20 = "imagenet20"
_IMAGENET_HOME = "https://www.image-net.org/download.php"
_SUFFIXES = {".jpeg", ".jpg", ".png"}
#: Largest numbers of bytes and pixels of a photograph; those with more than the third number are decoded one at a time.
_MOST_BYTES, _MOST_PIXELS, _MANY_PIXELS = 2**26, 2**26, 2**23


@dataset(
    "svhn",
    "digits of house numbers in colour, 32x32, 10 classes, 73,257 / 26,032",
    files=[tuple(SVHN_SHA256)],
)
def svhn() -> Dataset:
    """Read the house numbers of Netzer et al. (2011), each digit cut out: 73,257 and 26,032 images.

    Returns:
        float32 ``[N, 32, 32, 3]``, red, green, blue in [0, 1]; int32 labels, the digits.

    Raises:
        DatasetError: if a file is damaged or cannot be downloaded.
    """
    from scipy.io import loadmat

    arrays, origins = {}, []
    for part, (file, sha256) in zip(("train", "test"), SVHN_SHA256.items(), strict=True):
        most = _SVHN_BYTES[file]
        path, origin = obtain(file, [f"{SVHN_HOME}/{file}"], most, sha256)
        origins.append(origin)
        content = read(path, most, sha256)
        with parsing(path, "images and their digits"):
            found = loadmat(io.BytesIO(content), variable_names=("X", "y"))
        pixels, labels = found["X"], found["y"].ravel()
        images = np.empty((pixels.shape[-1], *pixels.shape[:-1]), np.float32)
        np.divide(np.moveaxis(pixels, -1, 0), np.float32(255), out=images)
        # In the files the digit 0 is class 10.
        arrays |= {f"X_{part}": images, f"y_{part}": (labels % 10).astype(np.int32)}
    return Dataset("svhn", **arrays, source=", ".join(dict.fromkeys(origins)), sha256=dict(SVHN_SHA256))


@dataset("imagenet20", "photographs of 20 classes from your own folder, 64x64 (option size)", folder=IMAGENET20)
def imagenet20(size: int = 64) -> Dataset:
    """Read photographs from the folder ``imagenet20`` of the data folder, one folder per class, such as 20 of ImageNet.

    ``imagenet20/train/<class>/*.jpeg`` are for training, ``imagenet20/val/<class>/*.jpeg`` for testing (also ``.jpg``
    and ``.png``). The shorter side of an image is scaled to ``size``, and the central square is taken. Classes are
    numbered in the order of their names.

    Args:
        size: side of an image, in pixels.

    Returns:
        float32 ``[N, size, size, 3]``, red, green, blue in [0, 1]; int32 labels.

    Raises:
        ValueError: if ``size`` is not positive.
        DatasetError: if there is no such folder, its two parts differ in their classes, or an image cannot be read.
    """
    size = positive_int("size", size)
    folder = find_folder(IMAGENET20)
    if folder is None:
        raise DatasetError(
            f"there is no folder {folders()[0] / IMAGENET20}: these images may not be redistributed. Register at "
            f"{_IMAGENET_HOME}, put the photographs of 20 classes into {IMAGENET20}/train/<class>/ and "
            f"{IMAGENET20}/val/<class>/ there, or set the environment variable {VARIABLE} to the folder that holds "
            f"{IMAGENET20}; load '{IMAGENET20}-generated' for a small stand-in."
        )
    files = {part: _files(folder / part) for part in ("train", "val")}
    names = list(files["train"])
    if len(names) < 2 or names != list(files["val"]):
        raise DatasetError(
            f"{folder} must hold the same two or more folders of classes in train and in val: there are {names} and "
            f"{list(files['val'])}."
        )
    arrays = {}
    for part, key in (("train", "train"), ("val", "test")):
        paths = [path for name in names for path in files[part][name]]
        try:
            images = np.empty((len(paths), size, size, 3), np.float32)
        except (MemoryError, ValueError) as error:
            raise DatasetError(
                f"{len(paths):,} photographs of {size} x {size} pixels do not fit into memory: choose a smaller size."
            ) from error
        many = threading.Lock()

        def store(place: int, path: Path, images: np.ndarray = images, many: threading.Lock = many) -> None:
            images[place] = _photograph(path, size, many)

        with ThreadPoolExecutor() as pool:
            list(pool.map(store, range(len(paths)), paths))
        labels = np.repeat(np.arange(len(names)), [len(files[part][name]) for name in names])
        arrays |= {f"X_{key}": images, f"y_{key}": labels.astype(np.int32)}
    return Dataset(IMAGENET20, **arrays, source=f"files in {folder.parent}", sha256={IMAGENET20: fingerprint(arrays)})


def _files(folder: Path) -> dict[str, list[Path]]:
    """The images of every class; a class without images is an error."""
    try:
        found = {}
        for inside in sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []:
            found[inside.name] = sorted(path for path in inside.iterdir() if path.suffix.lower() in _SUFFIXES)
            if not found[inside.name]:
                raise DatasetError(
                    f"{inside} holds no images ({', '.join(sorted(_SUFFIXES))}): add some, or remove it."
                )
    except OSError as error:
        raise unreadable(error.filename or folder, reason(error), "Correct its permissions, or remove it") from error
    return found


def _photograph(path: Path, size: int, many: threading.Lock) -> np.ndarray:
    """The central square of an image, scaled; large images are decoded one at a time, under a lock."""
    with needs("reproductions", "Reading photographs"):
        from PIL import Image, ImageOps

    with opened(path, _MOST_BYTES) as stream:
        try:
            # Pillow's other formats may start programs or unpack without bounds.
            with Image.open(stream, formats=("JPEG", "PNG")) as image:
                pixels = image.width * image.height
                if pixels > _MOST_PIXELS:
                    raise ValueError(f"it has {pixels:,} pixels, more than {_MOST_PIXELS:,}")
                with many if pixels > _MANY_PIXELS else nullcontext():
                    image.draft("RGB", (2 * size, 2 * size))
                    fitted = ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BICUBIC)
        # Hostile images cause errors of many kinds in Pillow.
        except Exception as error:
            raise DatasetError(f"cannot read the image {path}: {reason(error)}. Replace or remove it.") from error
    return np.asarray(fitted, np.float32) / np.float32(255)
