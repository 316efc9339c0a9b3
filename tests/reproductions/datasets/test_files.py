"""Files of data sets: read, checked and downloaded, and every way that can fail. No test uses the network."""

import errno
import gzip
import hashlib
import io
import lzma
import os
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pooch
import pytest
import requests

from gpzoo.errors import DatasetError
from gpzoo.reproductions import datasets
from gpzoo.reproductions.datasets import cifar10, files, mnist, rectangles, uci
from gpzoo.tables.files import fingerprint

MNIST_NAMES = tuple(mnist.MNIST_SHA256)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder, no data folder, and a network that is down."""
    folder = tmp_path / "cache"
    monkeypatch.delenv("GPZOO_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: folder)
    serve(monkeypatch, {})
    return folder


def serve(monkeypatch, contents: dict[str, bytes]) -> list[str]:
    """Let the network hold these addresses only; returns the list that collects the addresses asked for."""
    asked = []

    def get(self, url, output_file, pooch_, check_only=False):
        asked.append(url)
        if url not in contents:
            raise requests.ConnectionError(f"no route to {url.split('/')[2]}")
        Path(output_file).write_bytes(contents[url])

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", get)
    return asked


def real(*names: str) -> Path:
    """The folder that holds these real files, or skip."""
    folder = Path(os.environ.get("GPZOO_DATA") or pooch.os_cache("gpzoo"))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        pytest.skip(f"{', '.join(missing)} not in {folder}; set GPZOO_DATA to run this on real data")
    return folder


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return gzip.compress(header + array.astype(np.uint8).tobytes(), mtime=0)


@pytest.fixture
def small_mnist(monkeypatch):
    """Four small IDX files whose sums the loader expects, and their arrays."""
    rng = np.random.RandomState(0)
    arrays = [rng.randint(256, size=(7, 28, 28)), rng.randint(10, size=7)]
    arrays += [rng.randint(256, size=(4, 28, 28)), rng.randint(10, size=4)]
    contents = {name: idx(array) for name, array in zip(MNIST_NAMES, arrays, strict=True)}
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(mnist, "MNIST_SHA256", sums)
    return contents, arrays


@pytest.fixture
def small_uci(monkeypatch):
    """A table of 10 rows and 3 splits in place of yacht: its arrays, and its text files by address."""
    rng = np.random.RandomState(1)
    data = rng.standard_normal((10, 4))
    tests = [np.array([2 * k + 1, k]) for k in range(3)]
    arrays = {"X": data[:, [0, 1, 3]], "y": data[:, 2]}
    arrays |= {f"test_{k}": test.astype(np.uint16) for k, test in enumerate(tests)}
    table = replace(uci.UCI["yacht"], rows=10, features=3, splits=3, content=fingerprint(arrays))
    monkeypatch.setitem(uci.UCI, "yacht", table)

    def text(values, fmt):
        stream = io.StringIO()
        np.savetxt(stream, values, fmt=fmt)
        return stream.getvalue().encode()

    texts = {"data": text(data, "%.17g") + b"\n", "index_features": text([0, 1, 3], "%d")}
    # Indices are written both ways in the published files.
    texts |= {"index_target": b"2\n", **{f"index_test_{k}": text(test, "%.18e") for k, test in enumerate(tests)}}
    return arrays, {url: texts[Path(file).stem] for file, url in table.texts.items()}


@pytest.fixture
def small_cifar10(monkeypatch):
    """Twelve images: their packed files and their published archive, whose sums the loader expects, and the arrays."""
    rng = np.random.RandomState(2)
    images, labels = rng.randint(256, size=(12, 32, 32, 3)).astype(np.uint8), rng.randint(10, size=12).astype(np.uint8)
    red, green, blue = (images[..., c].astype(np.int16) for c in range(3))
    planes = np.stack([green, red - green, blue - green])
    for axis in (2, 3):
        planes = np.diff(planes, axis=axis, prepend=0)
    stream = io.BytesIO()
    np.savez(stream, y_train=labels[:8], y_test=labels[8:])
    packed = {
        "cifar10_images.xz": lzma.compress(planes.astype(np.uint8).tobytes()),
        "cifar10_labels.npz": stream.getvalue(),
    }
    published = np.concatenate([labels[:, None], np.moveaxis(images, -1, 1).reshape(12, -1)], axis=1)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            content = published[2 * i : 2 * i + 2].tobytes()
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    tar = stream.getvalue()
    records = np.concatenate([labels[:, None], images.reshape(12, -1)], axis=1)
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in packed.items()}
    monkeypatch.setattr(cifar10, "CIFAR10_SHA256", sums)
    monkeypatch.setattr(cifar10, "CIFAR10_TAR_SHA256", hashlib.sha256(tar).hexdigest())
    monkeypatch.setattr(cifar10, "_CIFAR10_RECORDS", hashlib.sha256(records).hexdigest())
    monkeypatch.setattr(cifar10, "_CIFAR10_TRAIN", 8)
    return packed, tar, (images, labels)


# Files: read, verified, downloaded


def check_small_mnist(dataset, arrays):
    images, labels, test_images, test_labels = arrays
    np.testing.assert_array_equal(np.rint(dataset.X_train[..., 0] * 255), images)
    np.testing.assert_array_equal(np.rint(dataset.X_test[..., 0] * 255), test_images)
    np.testing.assert_array_equal(dataset.y_train, labels)
    np.testing.assert_array_equal(dataset.y_test, test_labels)
    assert dataset.X_train.dtype == np.float32 and dataset.y_train.dtype == np.int32
    assert dataset.sha256 == mnist.MNIST_SHA256


def test_mnist_is_read_from_the_data_folder_without_network(cache, small_mnist, tmp_path, monkeypatch):
    contents, arrays = small_mnist
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.setenv("GPZOO_DATA", str(tmp_path))
    dataset = datasets.load("mnist")
    check_small_mnist(dataset, arrays)
    assert dataset.source == f"file in {tmp_path}"
    assert not cache.exists()


def test_mnist_is_downloaded_once_from_the_first_mirror_that_works(cache, small_mnist, monkeypatch):
    contents, arrays = small_mnist
    broken, good = mnist._MNIST_MIRRORS
    served = {f"{good}/{name}": content for name, content in contents.items()}
    served[f"{broken}/{MNIST_NAMES[0]}"] = b"an error page"
    asked = serve(monkeypatch, served)
    dataset = datasets.load("mnist")
    check_small_mnist(dataset, arrays)
    assert dataset.source == f"downloaded from {good}"
    assert sorted(path.name for path in cache.iterdir()) == sorted(MNIST_NAMES)
    asked.clear()
    again = datasets.load("mnist")
    check_small_mnist(again, arrays)
    assert again.source == f"file in {cache}" and not asked


def test_downloads_go_to_the_data_folder_if_it_can_be_written(cache, small_mnist, tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("GPZOO_DATA", str(folder))
    serve(monkeypatch, {f"{mnist._MNIST_MIRRORS[0]}/{name}": content for name, content in small_mnist[0].items()})
    datasets.load("mnist")
    assert sorted(path.name for path in folder.iterdir()) == sorted(MNIST_NAMES)
    assert not cache.exists()


def test_downloads_go_to_the_cache_if_the_data_folder_is_read_only(cache, small_mnist, tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("GPZOO_DATA", str(folder))
    serve(monkeypatch, {f"{mnist._MNIST_MIRRORS[0]}/{name}": content for name, content in small_mnist[0].items()})
    temporary = files.tempfile.TemporaryFile

    def read_only(*args, dir=None, **options):
        if Path(dir) == folder:
            raise OSError(errno.EROFS, "Read-only file system")
        return temporary(*args, dir=dir, **options)

    monkeypatch.setattr(files.tempfile, "TemporaryFile", read_only)
    datasets.load("mnist")
    assert not list(folder.iterdir())
    assert sorted(path.name for path in cache.iterdir()) == sorted(MNIST_NAMES)


def check_small_cifar10(dataset, arrays):
    images, labels = arrays
    assert dataset.X_train.shape == (8, 32, 32, 3) and dataset.X_test.shape == (4, 32, 32, 3)
    np.testing.assert_array_equal(np.concatenate([dataset.X_train, dataset.X_test]), images / np.float32(255))
    np.testing.assert_array_equal(np.concatenate([dataset.y_train, dataset.y_test]), labels)
    assert dataset.X_train.dtype == np.float32 and dataset.y_train.dtype == np.int32


def unpack(packed, tmp_path, monkeypatch):
    for name, content in packed.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.setenv("GPZOO_DATA", str(tmp_path))


def test_cifar10_is_unpacked_once(cache, small_cifar10, tmp_path, monkeypatch):
    packed, _, arrays = small_cifar10
    unpack(packed, tmp_path, monkeypatch)
    first = datasets.load("cifar10")
    check_small_cifar10(first, arrays)
    assert first.source == f"file in {tmp_path}" and [path.name for path in cache.iterdir()] == ["cifar10.npy"]
    monkeypatch.setattr(lzma, "decompress", None)
    second = datasets.load("cifar10")
    check_small_cifar10(second, arrays)
    assert first.sha256 == cifar10.CIFAR10_SHA256 and second.source == "kept in the cache folder"
    assert "cifar10" in {entry.name for entry in datasets.available() if entry.present}


def test_cifar10_is_downloaded_where_there_is_no_file(cache, small_cifar10, monkeypatch):
    _, tar, arrays = small_cifar10
    asked = serve(monkeypatch, {cifar10._CIFAR10_URL: tar})
    dataset = datasets.load("cifar10")
    check_small_cifar10(dataset, arrays)
    assert dataset.sha256 == {cifar10.CIFAR10_TAR: cifar10.CIFAR10_TAR_SHA256} and asked == [cifar10._CIFAR10_URL]
    check_small_cifar10(datasets.load("cifar10"), arrays)
    assert len(asked) == 1


@pytest.mark.parametrize("damage", [lambda b: b[:200], lambda b: b[:-1] + b"?", lambda b: b""])
def test_a_damaged_cache_is_made_again(cache, small_cifar10, tmp_path, monkeypatch, damage):
    packed, _, arrays = small_cifar10
    unpack(packed, tmp_path, monkeypatch)
    datasets.load("cifar10")
    kept = cache / "cifar10.npy"
    good = kept.read_bytes()
    kept.write_bytes(damage(good))
    check_small_cifar10(datasets.load("cifar10"), arrays)
    assert kept.read_bytes() == good


def test_a_cache_that_cannot_be_written_costs_no_data(small_cifar10, tmp_path, monkeypatch):
    packed, _, arrays = small_cifar10
    unpack(packed, tmp_path, monkeypatch)
    (tmp_path / "blocker").touch()
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "blocker" / project)
    with pytest.warns(RuntimeWarning, match=r"cannot keep .*cifar10.npy \(Not a directory\): it will be made again"):
        dataset = datasets.load("cifar10")
    check_small_cifar10(dataset, arrays)


def test_damaged_cifar10_is_refused(cache, small_cifar10, tmp_path, monkeypatch):
    packed, _, _ = small_cifar10
    unpack({**packed, "cifar10_images.xz": packed["cifar10_images.xz"][:-20]}, tmp_path, monkeypatch)
    with pytest.raises(DatasetError, match=r"cifar10_images.xz is damaged or is another version"):
        datasets.load("cifar10")


@pytest.mark.parametrize("split", [0, 2])
def test_uci_is_rebuilt_from_the_published_text(cache, small_uci, monkeypatch, split):
    arrays, texts = small_uci
    asked = serve(monkeypatch, texts)
    dataset = datasets.load("uci/yacht", split=split)
    test = arrays[f"test_{split}"]
    train = [i for i in range(10) if i not in test]
    np.testing.assert_array_equal(dataset.X_train, arrays["X"][train])
    np.testing.assert_array_equal(dataset.y_train, arrays["y"][train])
    np.testing.assert_array_equal(dataset.X_test, arrays["X"][test])
    np.testing.assert_array_equal(dataset.y_test, arrays["y"][test])
    assert dataset.X_train.dtype == dataset.y_train.dtype == np.float64
    assert dataset.source.startswith("downloaded from https://") and len(dataset.sha256) == 6
    assert dataset.sizes == {"train": 8, "test": 2, "input_shape": [3]}
    asked.clear()
    np.testing.assert_array_equal(datasets.load("uci/yacht", split=split).X_test, dataset.X_test)
    assert not asked


@pytest.mark.parametrize("content", [b"", b"1 2 3\n4 5\n", b"<html>moved</html>"])
def test_other_text_than_the_published_is_refused(cache, small_uci, monkeypatch, content):
    texts = {url: content if url.endswith("/data.txt") else text for url, text in small_uci[1].items()}
    serve(monkeypatch, texts)
    with pytest.raises(DatasetError, match=r"uci_yacht is damaged.*expected sha256 .*Delete it"):
        datasets.load("uci/yacht")


def test_a_changed_split_is_refused(cache, small_uci, monkeypatch):
    texts = {url: b"0\n1\n" if url.endswith("/index_test_1.txt") else text for url, text in small_uci[1].items()}
    serve(monkeypatch, texts)
    with pytest.raises(DatasetError, match=r"uci_yacht is damaged.*found [0-9a-f]{64}"):
        datasets.load("uci/yacht")


def amat(images: np.ndarray, labels: np.ndarray) -> bytes:
    stream = io.StringIO()
    np.savetxt(stream, np.column_stack([images.reshape(len(images), -1), labels]), fmt="%.7e", delimiter="   ")
    return stream.getvalue().encode()


@pytest.fixture
def small_rectangles(monkeypatch):
    """A rectangles.zip of a few images whose arrays the loader expects, and the arrays."""
    rng = np.random.RandomState(0)
    arrays = {}
    for part, count in (("train", 3), ("test", 5)):
        arrays[f"X_{part}"], arrays[f"y_{part}"] = rectangles._draw_rectangles(rng, count)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for part in ("train", "test"):
            archive.writestr(f"rectangles_{part}.amat", amat(arrays[f"X_{part}"], arrays[f"y_{part}"]))
    monkeypatch.setattr(rectangles, "_RECTANGLES_CONTENT", fingerprint(arrays))
    return arrays, stream.getvalue()


@pytest.mark.parametrize("mirror", [0, 1])
def test_the_original_rectangles_are_converted_from_the_published_archive(cache, small_rectangles, monkeypatch, mirror):
    arrays, archive = small_rectangles
    serve(monkeypatch, {rectangles._RECTANGLES_URLS[mirror]: archive})
    dataset = datasets.load("rectangles-original")
    for name, array in arrays.items():
        assert getattr(dataset, name).dtype == array.dtype
        np.testing.assert_array_equal(getattr(dataset, name), array)
    assert dataset.sha256 == {"rectangles.zip": hashlib.sha256(archive).hexdigest()}


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b"<html>", lambda b: b[:200] + b"!!!" + b[203:]]
)
def test_a_damaged_archive_is_refused(cache, small_rectangles, monkeypatch, damage):
    serve(monkeypatch, {rectangles._RECTANGLES_URLS[0]: damage(small_rectangles[1])})
    with pytest.raises(DatasetError, match=r"rectangles\.zip is damaged.*cannot be read.*Delete it"):
        datasets.load("rectangles-original")


def test_an_archive_of_other_images_is_refused(cache, small_rectangles, monkeypatch):
    monkeypatch.setattr(rectangles, "_RECTANGLES_CONTENT", "0" * 64)
    serve(monkeypatch, {rectangles._RECTANGLES_URLS[0]: small_rectangles[1]})
    with pytest.raises(DatasetError, match=r"rectangles\.zip is damaged.*expected sha256 0{64}.*found [0-9a-f]{64}"):
        datasets.load("rectangles-original")


# Failures


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b""])
def test_a_damaged_file_is_named_with_both_sums(cache, small_mnist, tmp_path, monkeypatch, damage):
    for name, content in small_mnist[0].items():
        (tmp_path / name).write_bytes(content)
    bad = tmp_path / MNIST_NAMES[2]
    bad.write_bytes(damage(bad.read_bytes()))
    monkeypatch.setenv("GPZOO_DATA", str(tmp_path))
    with pytest.raises(DatasetError, match="Delete it") as caught:
        datasets.load("mnist")
    found = hashlib.sha256(bad.read_bytes()).hexdigest()
    assert all(part in str(caught.value) for part in (str(bad), found, mnist.MNIST_SHA256[bad.name]))


def test_a_damaged_table_is_refused_before_it_is_parsed(cache, tmp_path, monkeypatch):
    (tmp_path / "uci_yacht.npz").write_bytes(b"PK")
    (tmp_path / "rectangles.npz").write_bytes(b"PK")
    monkeypatch.setenv("GPZOO_DATA", str(tmp_path))
    for name, file in (("uci/yacht", "uci_yacht.npz"), ("rectangles-original", "rectangles.npz")):
        with pytest.raises(DatasetError, match=f"{file} is damaged"):
            datasets.load(name)


@pytest.mark.parametrize(
    "name, urls, place",
    [
        ("mnist", [f"{mirror}/{MNIST_NAMES[0]}" for mirror in mnist._MNIST_MIRRORS], MNIST_NAMES[0]),
        ("rectangles-original", rectangles._RECTANGLES_URLS, "rectangles.zip"),
        ("uci/naval", [f"{uci._UCI_HOME}/naval-propulsion-plant/data/data.txt"], "uci_naval/data.txt"),
    ],
)
def test_without_network_the_message_says_what_was_tried_and_what_to_put_where(cache, name, urls, place):
    with pytest.raises(DatasetError, match="ConnectionError") as caught:
        datasets.load(name)
    message = str(caught.value)
    assert all(part in message for part in (*urls, str(cache / place), "GPZOO_DATA")) and "\n" not in message
    assert not any(path.is_file() for path in cache.rglob("*"))


@pytest.mark.parametrize(
    "error", [requests.HTTPError("404"), requests.Timeout("slow"), TimeoutError(), ConnectionResetError()]
)
def test_every_failure_of_the_network_is_one_of_downloading(cache, monkeypatch, error):
    def fail(self, url, output_file, pooch_, check_only=False):
        raise error

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", fail)
    with pytest.raises(DatasetError, match=rf"cannot download {MNIST_NAMES[0]}.*{type(error).__name__}"):
        datasets.load("mnist")


def test_a_download_with_another_sum_is_refused_and_not_kept(cache, monkeypatch):
    serve(monkeypatch, {f"{mirror}/{MNIST_NAMES[0]}": b"not it" for mirror in mnist._MNIST_MIRRORS})
    with pytest.raises(DatasetError, match=mnist.MNIST_SHA256[MNIST_NAMES[0]]):
        datasets.load("mnist")
    assert not list(cache.iterdir())


def test_a_full_disk_is_named(cache, monkeypatch):
    def full(self, url, output_file, pooch_, check_only=False):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", full)
    with pytest.raises(DatasetError, match=r"No space left on device.*GPZOO_DATA") as caught:
        datasets.load("mnist")
    assert str(cache / MNIST_NAMES[0]) in str(caught.value)
    assert not list(cache.iterdir())


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    blocker = tmp_path / "file"
    blocker.touch()
    monkeypatch.delenv("GPZOO_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: blocker / project)
    with pytest.raises(DatasetError, match=r"cannot write .*Not a directory.*GPZOO_DATA") as caught:
        datasets.load("mnist")
    assert str(blocker / "gpzoo") in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(DatasetError, match=r"cannot read .*gone: No such file"):
        files.read(tmp_path / "gone", 10)


def test_a_data_folder_that_is_missing_is_named(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("GPZOO_DATA", str(tmp_path / "gone"))
    for call in (datasets.available, lambda: datasets.load("mnist")):
        with pytest.raises(DatasetError, match=r"GPZOO_DATA is '.*gone', which is not a folder"):
            call()
    assert datasets.load("digits").name == "digits"


def test_an_empty_variable_counts_as_unset(cache, monkeypatch):
    monkeypatch.setenv("GPZOO_DATA", "")
    assert files.folders() == [cache]


# The list


def test_the_list_says_what_is_present(cache, small_mnist, small_uci, monkeypatch):
    entries = {entry.name: entry for entry in datasets.available()}
    # Rotated digits are made of MNIST's files.
    twins = {name for name in entries if name.endswith("-generated")} - {"mnist-rot-generated"}
    assert len(twins) == 9
    assert {name for name, entry in entries.items() if entry.present} == {"rectangles", "digits"} | twins
    assert len([name for name in entries if name.startswith("uci/")]) == 9
    assert entries["mnist"].location == "download" and entries["digits"].location == "scikit-learn"
    assert all(entry.description and "\n" not in entry.description for entry in entries.values())
    cache.mkdir()
    for name, content in list(small_mnist[0].items())[:3]:
        (cache / name).write_bytes(content)
    (cache / "uci_boston.npz").touch()
    present = {entry.name: entry.location for entry in datasets.available() if entry.present}
    assert present == {
        "rectangles": "generated",
        "digits": "scikit-learn",
        "uci/boston": str(cache),
        **dict.fromkeys(twins, "generated"),
    }
    (cache / MNIST_NAMES[3]).write_bytes(small_mnist[0][MNIST_NAMES[3]])
    assert "mnist" in {entry.name for entry in datasets.available() if entry.present}


# The real files, where they are


@pytest.mark.parametrize("name", list(uci.UCI))
def test_real_tables_hold_what_text_must_rebuild(name):
    table = uci.UCI[name]
    folder = real(table.npz)
    with np.load(folder / table.npz) as archive:
        assert fingerprint({key: archive[key] for key in archive.files}) == table.content
    dataset = datasets.load(f"uci/{name}", split=table.splits - 1)
    assert len(dataset.X_train) + len(dataset.X_test) == table.rows
    assert dataset.X_train.shape[1] == table.features
    assert np.all(np.isfinite(dataset.standardised().X_train))


def test_real_rectangles_hold_what_the_archive_must_give():
    real("rectangles.npz")
    dataset = datasets.load("rectangles-original")
    arrays = {key: getattr(dataset, key) for key in ("X_train", "y_train", "X_test", "y_test")}
    assert fingerprint(arrays) == rectangles._RECTANGLES_CONTENT
    white = dataset.X_test[..., 0] > 0
    height, width = white.any(axis=2).sum(axis=1), white.any(axis=1).sum(axis=1)
    np.testing.assert_array_equal(dataset.y_test, (height > width).astype(int))


def test_real_mnist_has_its_known_statistics():
    real(*MNIST_NAMES)
    dataset = datasets.load("mnist")
    assert dataset.X_train.shape == (60_000, 28, 28, 1) and dataset.X_test.shape == (10_000, 28, 28, 1)
    assert abs(dataset.X_train.mean(dtype=np.float64) - 0.1307) < 1e-4
    assert dataset.y_train[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert len(dataset.classes(0, 1).X_train) == 5923 + 6742


@pytest.mark.slow
def test_real_cifar10_has_its_known_statistics():
    real(*cifar10.CIFAR10_SHA256)
    dataset = datasets.load("cifar10")
    assert dataset.X_train.shape == (50_000, 32, 32, 3) and dataset.X_test.shape == (10_000, 32, 32, 3)
    means = dataset.X_train.mean(axis=(0, 1, 2), dtype=np.float64)
    np.testing.assert_allclose(means, [0.4914, 0.4822, 0.4465], atol=1e-4)
    assert dataset.y_train[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert np.bincount(dataset.y_test).tolist() == [1000] * 10
