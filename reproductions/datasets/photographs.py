"""Photographs of the deep-kernel experiments: classes of images in the user's own folder."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpzoo._checks import positive_int
from gpzoo._extras import needs
from gpzoo.errors import DatasetError
from gpzoo.reproductions.datasets.files import VARIABLE, find, folders
from gpzoo.reproductions.datasets.in_memory import Dataset
from gpzoo.reproductions.datasets.registry import dataset
from gpzoo.tables.files import fingerprint, opened, reason, unreadable

#: Its folder in the data folder, with ``train/<class>/`` and ``val/<class>/``.
IMAGENET20 = "imagenet20"
_IMAGENET_HOME = "https://www.image-net.org/download.php"
_SUFFIXES = {".jpeg", ".jpg", ".png"}
#: Largest numbers of bytes and pixels of a photograph.
_MOST_BYTES, _MOST_PIXELS = 2**26, 2**26


@dataset(IMAGENET20, "photographs of 20 classes from your own folder, 64x64 (option size)", folder=IMAGENET20)
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
    folder = find(IMAGENET20)
    if folder is None or not folder.is_dir():
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
    arrays: dict[str, Any] = {}
    for part, key in (("train", "train"), ("val", "test")):
        paths = [path for name in names for path in files[part][name]]
        images = np.empty((len(paths), size, size, 3), np.float32)
        with ThreadPoolExecutor() as pool:
            for place, image in enumerate(pool.map(partial(_photograph, size), paths)):
                images[place] = image
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
        # Hostile images cause errors of many kinds in Pillow.
        except Exception as error:
            raise DatasetError(f"cannot read the image {path}: {reason(error)}. Replace or remove it.") from error
    return np.asarray(fitted, np.float32) / np.float32(255)
