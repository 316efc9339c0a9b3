"""MNIST, handwritten digits: where they are downloaded from, their hashes, and how they are read."""

from __future__ import annotations

import io

import numpy as np

from gpzoo.reproductions.datasets.files import obtain, parsing, read
from gpzoo.reproductions.datasets.in_memory import Dataset
from gpzoo.reproductions.datasets.registry import dataset
from gpzoo.reproductions.datasets.unpacking import gunzip

MNIST_SHA256 = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
_MNIST_BYTES = {
    "train-images-idx3-ubyte.gz": 9_912_422,
    "train-labels-idx1-ubyte.gz": 28_881,
    "t10k-images-idx3-ubyte.gz": 1_648_877,
    "t10k-labels-idx1-ubyte.gz": 4_542,
}
_MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)


@dataset("mnist", "handwritten digits, 28x28, 10 classes, 60,000 / 10,000", files=[tuple(MNIST_SHA256)])
def mnist() -> Dataset:
    """Read MNIST from four IDX files: 60,000 and 10,000 images, float32 ``[N, 28, 28, 1]`` in [0, 1]; int32 labels."""
    arrays, origins = {}, []
    for (file, sha256), name in zip(MNIST_SHA256.items(), ("X_train", "y_train", "X_test", "y_test"), strict=True):
        most = _MNIST_BYTES[file]
        path, origin = obtain(file, [f"{mirror}/{file}" for mirror in _MNIST_MIRRORS], most, sha256)
        origins.append(origin)
        packed = read(path, most, sha256)
        with parsing(path, "an IDX file of bytes"):
            array = _idx(gunzip(io.BytesIO(packed), 2**26).read())
        arrays[name] = array[..., None] / np.float32(255) if name.startswith("X") else array.astype(np.int32)
    return Dataset("mnist", **arrays, source=", ".join(dict.fromkeys(origins)), sha256=dict(MNIST_SHA256))


def _idx(content: bytes) -> np.ndarray:
    """Unsigned bytes in the IDX format: the fourth byte counts the axes, then come their lengths, big-endian int32."""
    axes = content[3]
    shape = np.frombuffer(content, ">i4", count=axes, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)
