"""CIFAR-10: small colour photographs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gpzoo.reproductions.datasets.files import find, keep, kept, obtain, parsing, read
from gpzoo.reproductions.datasets.in_memory import Dataset
from gpzoo.reproductions.datasets.registry import dataset
from gpzoo.reproductions.datasets.unpacking import members, npz, unxz
from gpzoo.tables.files import opened

CIFAR10_SHA256 = {
    "cifar10_images.xz": "8bdb15bdff4117394dedc0ddb4a489a6a2079f4de8bdd5f3c2e85feb82b835a2",
    "cifar10_labels.npz": "5f356ab68c6bbe75090fc17447a5492bfcb6ce2a3a780f9d4daf3de29b949c6b",
}
_CIFAR10_BYTES = {"cifar10_images.xz": 101_445_748, "cifar10_labels.npz": 30_572}
CIFAR10_TAR = "cifar-10-binary.tar.gz"
CIFAR10_TAR_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
_CIFAR10_TAR_BYTES = 170_052_171
_CIFAR10_URL = f"https://www.cs.toronto.edu/~kriz/{CIFAR10_TAR}"
_CIFAR10_TRAIN, _CIFAR10_IMAGES = 50_000, 60_000
CIFAR10_KEPT = "cifar10.npy"
_CIFAR10_RECORDS = "6c26dc22248c27188ea71613ba27ba80e119551206d074f556c3fa2df5594a42"


@dataset(
    "cifar10",
    "colour photographs, 32x32, 10 classes, 50,000 / 10,000",
    files=[tuple(CIFAR10_SHA256), (CIFAR10_TAR,), (CIFAR10_KEPT,)],
)
def cifar10() -> Dataset:
    """Read CIFAR-10: 50,000 and 10,000 images, float32 ``[N, 32, 32, 3]``, red, green, blue in [0, 1]; int32 labels.

    The files are ``cifar10_images.xz`` and ``cifar10_labels.npz``, or the published ``cifar-10-binary.tar.gz``.
    Unpacking takes several seconds, so its result is kept in the user's cache folder (184 MB).
    """
    records, sha256 = kept(CIFAR10_KEPT, _CIFAR10_IMAGES * 3073, _CIFAR10_RECORDS), {CIFAR10_KEPT: _CIFAR10_RECORDS}
    source = "kept in the cache folder"
    if records is None:
        paths = [path for file in CIFAR10_SHA256 if (path := find(file))]
        if len(paths) == len(CIFAR10_SHA256):
            records, source, sha256 = _cifar10_from_xz(*paths), f"file in {paths[0].parent}", dict(CIFAR10_SHA256)
        else:
            path, source = obtain(CIFAR10_TAR, [_CIFAR10_URL], _CIFAR10_TAR_BYTES, CIFAR10_TAR_SHA256)
            records, sha256 = _cifar10_from_tar(path), {CIFAR10_TAR: CIFAR10_TAR_SHA256}
        keep(CIFAR10_KEPT, records)
    pixels = np.divide(records[:, 1:], np.float32(255), dtype=np.float32).reshape(-1, 32, 32, 3)
    labels = records[:, 0].astype(np.int32)
    train, test = slice(None, _CIFAR10_TRAIN), slice(_CIFAR10_TRAIN, None)
    return Dataset("cifar10", pixels[train], labels[train], pixels[test], labels[test], source, sha256)


def _cifar10_from_xz(images: Path, labels: Path) -> np.ndarray:
    """Records ``[60000, 3073]``: label, then the pixels of ``[32, 32, 3]``.

    The planes are green, red minus green and blue minus green, each as differences along rows and columns.
    """
    classes = npz(labels, _CIFAR10_BYTES[labels.name], CIFAR10_SHA256[labels.name])
    packed = read(images, _CIFAR10_BYTES[images.name], CIFAR10_SHA256[images.name])
    with parsing(images, "the planes of images"):
        planes = np.frombuffer(unxz(packed, _CIFAR10_IMAGES * 3072), np.uint8).reshape(3, -1, 32, 32)
    green, red, blue = np.cumsum(np.cumsum(planes, axis=-1, dtype=np.uint8), axis=-2, dtype=np.uint8)
    pixels = np.stack([red + green, green, blue + green], axis=-1).reshape(len(green), -1)
    y = np.concatenate([classes["y_train"], classes["y_test"]]).astype(np.uint8)
    return np.concatenate([y[:, None], pixels], axis=1)


def _cifar10_from_tar(path: Path) -> np.ndarray:
    """The same records from the published ones: label, then the red, green and blue planes of an image."""
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    with (
        opened(path, _CIFAR10_TAR_BYTES, CIFAR10_TAR_SHA256) as stream,
        parsing(path, "batches of images"),
    ):
        batches = members(stream, [f"cifar-10-batches-bin/{name}.bin" for name in names], 10_000 * 3073)
        records = np.concatenate([np.frombuffer(batch, np.uint8) for batch in batches]).reshape(-1, 3073)
    pixels = np.moveaxis(records[:, 1:].reshape(-1, 3, 32, 32), 1, -1).reshape(len(records), -1)
    return np.concatenate([records[:, :1], pixels], axis=1)
