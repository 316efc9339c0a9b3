"""Photographs: house numbers from their Matlab files, classes of images from a folder, and their generated twins."""

import hashlib
import io

import numpy as np
import pooch
import pytest
import requests
from PIL import Image

from gpzoo.errors import DatasetError
from gpzoo.reproductions import datasets
from gpzoo.reproductions.datasets import photographs


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty data folder, an empty cache folder, and a network that is down."""

    def down(self, url, output_file, pooch_, check_only=False):
        raise requests.ConnectionError(f"no route to {url}")

    path = tmp_path / "data"
    path.mkdir()
    monkeypatch.setenv("GPZOO_DATA", str(path))
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache")
    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", down)
    return path


# -- house numbers -----------------------------------------------------------------------------------------------------


@pytest.fixture
def house_numbers(folder, monkeypatch):
    """The two files, of a few images; their pixels by part."""
    from scipy.io import savemat

    rng = np.random.default_rng(0)
    pixels, known = {}, {}
    for part, count in (("train", 12), ("test", 5)):
        pixels[part] = rng.integers(0, 256, (count, 32, 32, 3), np.uint8)
        stream = io.BytesIO()
        labels = 1 + np.arange(count, dtype=np.uint8)[:, None] % 10
        savemat(stream, {"X": np.moveaxis(pixels[part], 0, -1), "y": labels}, do_compression=True)
        (folder / f"{part}_32x32.mat").write_bytes(stream.getvalue())
        known[f"{part}_32x32.mat"] = hashlib.sha256(stream.getvalue()).hexdigest()
    monkeypatch.setattr(photographs, "SVHN_SHA256", known)
    return pixels


def test_house_numbers_are_images_with_digits(folder, house_numbers):
    data = datasets.load("svhn")
    np.testing.assert_array_equal(data.X_train, house_numbers["train"] / np.float32(255))
    np.testing.assert_array_equal(data.X_test, house_numbers["test"] / np.float32(255))
    assert data.X_train.dtype == np.float32 and data.y_train.dtype == np.int32
    assert data.y_train.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]  # class 10 is the digit 0
    assert data.sha256 == photographs.SVHN_SHA256 and data.source == f"file in {folder}"


def test_damaged_house_numbers_are_refused(folder, house_numbers):
    path = folder / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DatasetError, match=r"test_32x32\.mat is damaged.*sha256.*Delete it"):
        datasets.load("svhn")


def test_without_network_house_numbers_have_a_home(folder):
    with pytest.raises(DatasetError, match=r"train_32x32\.mat; tried http://ufldl\.stanford\.edu/housenumbers"):
        datasets.load("svhn")


# -- a folder of images ------------------------------------------------------------------------------------------------


@pytest.fixture
def images(folder):
    """``images[part, class]``: paths of photographs, red left and blue right, wider than high."""
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[:, :30, 0] = pixels[:, 30:, 2] = 200
    made = {}
    for part, count in (("train", 3), ("val", 2)):
        for name in ("n2", "n1"):
            inside = folder / "imagenet20" / part / name
            inside.mkdir(parents=True)
            for i, suffix in enumerate(("JPEG", "png", "jpg")[:count]):
                Image.fromarray(pixels if name == "n2" else pixels[:, ::-1]).save(inside / f"{i}.{suffix}")
            made[part, name] = sorted(inside.iterdir())
    (folder / "imagenet20" / "train" / "readme.txt").write_text("not a class")
    (folder / "imagenet20" / "train" / "n1" / "notes.txt").write_text("not an image")
    return made


def test_a_folder_of_images_is_a_data_set(folder, images):
    assert "imagenet20" in {entry.name for entry in datasets.available() if entry.present}
    data = datasets.load("imagenet20", size=20)
    assert data.sizes == {"train": 6, "test": 4, "input_shape": [20, 20, 3], "classes": 2}
    assert data.y_train.tolist() == [0, 0, 0, 1, 1, 1] and data.X_train.dtype == np.float32
    # The middle 40 of 60 columns, scaled: the colours meet in the middle.
    for X, y in ((data.X_train, data.y_train), (data.X_test, data.y_test)):
        left = np.where(y == 1, X[:, :, :8, 0].mean((1, 2)), X[:, :, :8, 2].mean((1, 2)))
        right = np.where(y == 1, X[:, :, 12:, 2].mean((1, 2)), X[:, :, 12:, 0].mean((1, 2)))
        np.testing.assert_allclose([left, right], 200 / 255, atol=0.02)
    assert datasets.load("imagenet20").X_train.shape[1:] == (64, 64, 3)


def test_grey_images_get_three_colours(images):
    Image.new("L", (30, 30), 100).save(images["train", "n1"][0])
    first = datasets.load("imagenet20", size=8).X_train[0]
    np.testing.assert_allclose(first, 100 / 255, atol=0.01)


@pytest.mark.slow
def test_folders_that_are_no_data_set_are_refused(folder, images):
    broken = images["val", "n2"][1]
    content = broken.read_bytes()
    broken.write_bytes(content[: len(content) // 2])
    with pytest.raises(DatasetError, match=rf"cannot read the image .*{broken.name}.*Replace or remove it"):
        datasets.load("imagenet20")
    Image.new("1", (20_000, 20_000)).save(broken)
    with pytest.raises(DatasetError, match=rf"cannot read the image .*{broken.name}"):
        datasets.load("imagenet20")
    for path in images["val", "n2"]:
        path.unlink()
    with pytest.raises(DatasetError, match=r"val/n2 holds no images \(\.jpeg, \.jpg, \.png\)"):
        datasets.load("imagenet20")
    images["val", "n2"][0].parent.rmdir()
    with pytest.raises(DatasetError, match=r"the same two or more.*\['n1', 'n2'\] and \['n1'\]"):
        datasets.load("imagenet20")
    with pytest.raises(ValueError, match="size must be an integer of at least 1, got 0"):
        datasets.load("imagenet20", size=0)


def test_without_the_folder_the_message_says_where_images_are_had(folder):
    entry = {entry.name: entry for entry in datasets.available()}["imagenet20"]
    assert not entry.present and entry.location == "your own folder"
    with pytest.raises(DatasetError, match=r"Register at https://www\.image-net\.org.*imagenet20/train/<class>/"):
        datasets.load("imagenet20")


# -- twins -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow_but(name=["svhn"])
@pytest.mark.parametrize(("name", "shape", "classes"), [("svhn", (32, 32, 3), 10), ("imagenet20", (64, 64, 3), 20)])
def test_twins_have_the_schema_and_follow_their_seed(folder, name, shape, classes):
    twin, same, other = (datasets.load(f"{name}-generated", rows=400, seed=seed) for seed in (0, 0, 1))
    assert twin.X_train.shape == (360, *shape) and twin.X_train.dtype == np.float32 and twin.y_train.dtype == np.int32
    assert twin.X_train.min() >= 0 and twin.X_train.max() <= 1 and twin.sizes["classes"] == classes
    assert twin.sha256 == same.sha256 != other.sha256 and twin.name == f"{name}-generated"
    with pytest.raises(ValueError, match="at least 20"):
        datasets.load(f"{name}-generated", rows=19)


@pytest.mark.slow
def test_classes_of_twins_can_be_learnt(folder):
    from sklearn.neighbors import KNeighborsClassifier

    data = datasets.load("svhn-generated", rows=3000)
    # Bright on dark or the other way round: the distance of a pixel from the middle of its image is what counts.
    X, X_test = (
        abs(X.mean(-1) - np.median(X.mean(-1), axis=(1, 2), keepdims=True)) for X in (data.X_train, data.X_test)
    )
    score = KNeighborsClassifier(3).fit(X.reshape(len(X), -1), data.y_train).score(X_test.reshape(300, -1), data.y_test)
    assert 0.3 < score < 0.98
    data = datasets.load("imagenet20-generated")
    spectra = [abs(np.fft.rfft2(X.mean(-1) - X.mean((1, 2, 3))[:, None, None])) for X in (data.X_train, data.X_test)]
    X, X_test = ((s / s.sum((1, 2), keepdims=True)).reshape(len(s), -1) for s in spectra)
    assert KNeighborsClassifier(3).fit(X, data.y_train).score(X_test, data.y_test) > 0.4
