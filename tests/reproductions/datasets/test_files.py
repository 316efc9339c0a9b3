"""Files of data sets: found, checked, downloaded, listed, and the ways in which that fails; and the files at hand."""

import errno
import hashlib
import itertools
import json
import os
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pooch
import pytest
import requests
from PIL import Image

from gpzoo.reproductions import datasets
from gpzoo.reproductions.datasets import registry
from tests.reproductions.datasets import made
from tests.reproductions.datasets.made import refused

MNIST = registry.FACTS["mnist"]["files"]
NAMES = [file["path"] for file in MNIST]


def present():
    return {entry.name: entry.location for entry in datasets.available() if entry.present}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def digits(put):
    """Tiny files of MNIST, whose digests are known, in the data folder."""
    contents = made.mnist()[0]
    put("mnist", contents)
    return contents


# -- downloads ---------------------------------------------------------------------------------------------------------


def test_a_download_comes_from_the_first_mirror_that_works_and_once(digits, folder, cache, serve, monkeypatch):
    def removed():
        for name in NAMES:
            (folder / name).unlink()

    removed()
    good = {file["urls"][1]: digits[file["path"]] for file in MNIST}
    asked = serve(good | {MNIST[0]["urls"][0]: b"an error page"})
    data = datasets.load("mnist")
    assert data.source == "downloaded from https://storage.googleapis.com/cvdf-datasets/mnist"
    assert names(folder) == sorted(NAMES) and len(asked) == 8
    again = datasets.load("mnist")
    assert again.source == f"file in {folder}" and again.sha256 == data.sha256 and len(asked) == 8
    # It goes to the cache if the data folder is read-only.
    removed()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    datasets.load("mnist")
    assert not names(folder) and names(cache) == sorted(NAMES)


FAILED = [
    ("mnist", requests.HTTPError("404"), "HTTPError: 404"),
    ("mnist", TimeoutError(), "TimeoutError"),
    ("mnist", OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
    ("mnist", b"not it", MNIST[0]["hash"].partition(":")[2]),
    *((name, requests.ConnectionError(), "ConnectionError") for name in ("mnist", "uci/yacht", "airline", "taxi")),
]


@pytest.mark.parametrize("name, found, said", FAILED)
def test_a_download_that_fails_says_what_was_tried_and_what_to_put_where(folder, cache, serve, name, found, said):
    first = registry.FACTS[name]["files"][0]
    serve(dict.fromkeys(first["urls"], found))
    tried = [] if "No space" in said else first["urls"]
    refused(name, first["path"], said, *tried, str(folder / first["path"]), "GPZOO_DATA")
    assert not cache.exists() and not any(path.is_file() for path in folder.rglob("*")) and name not in present()


def test_a_cache_that_cannot_be_written_is_named(folder, put, monkeypatch):
    put("rectangles-images", *made.images("rectangles_images.zip"))
    (folder / "blocker").touch()
    monkeypatch.setattr(pooch, "os_cache", lambda project: folder / "blocker" / project)
    with pytest.warns(RuntimeWarning, match=r"cannot keep .*rectangles_images.npy \(Not a directory\)"):
        datasets.load("rectangles-images")
    monkeypatch.delenv("GPZOO_DATA")
    refused("mnist", f"cannot write {folder / 'blocker' / 'gpzoo' / NAMES[0]}", "Not a directory", "GPZOO_DATA")


# -- files that are refused --------------------------------------------------------------------------------------------


def huge(path):
    with path.open("wb") as stream:
        stream.truncate(40 * 10**9)


NO_FILES = [
    ("mnist", os.mkfifo, ("it is a pipe, socket or device, not a file", "Replace or remove it")),
    ("mnist", os.mkdir, ("it is a folder, not a file", "Replace or remove it")),
    ("mnist", lambda path: path.symlink_to("gone"), ("No such file or directory", "Replace or remove it")),
    ("mnist", huge, ("expected at most", "found 40,000,000,000 bytes")),
]


@pytest.mark.parametrize("name, make, said", NO_FILES)
def test_what_is_no_file_or_too_large_is_named_and_not_read(folder, name, make, said):
    path = folder / registry.FACTS[name]["files"][0]["path"]
    make(path)
    refused(name, str(path), *said)


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b""])
def test_a_damaged_file_is_named_with_both_sums_and_left_alone(digits, folder, damage):
    bad, content = folder / NAMES[2], damage(digits[NAMES[2]])
    bad.write_bytes(content)
    known = registry.FACTS["mnist"]["files"][2]["hash"]
    refused("mnist", str(bad), hashlib.sha256(content).hexdigest(), known.partition(":")[2], "Delete it")
    assert bad.read_bytes() == content


def test_nothing_is_unpickled(put, folder, cache):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(folder / "done"),)

    bomb = np.array([Bomb()], object)
    put("uci/yacht", {"uci_yacht.npz": made.npz(X=bomb)})
    refused("uci/yacht", "uci_yacht.npz is damaged", "Object arrays cannot be loaded")
    cache.mkdir()
    np.save(cache / "higgs.npy", bomb, allow_pickle=True)
    (cache / "higgs.npy.json").write_text(json.dumps({"sha256": "0", "origin": {}}))
    refused("higgs", "cannot download")
    assert not (folder / "done").exists()


@pytest.mark.parametrize("end, content", [("", b""), (".json", b"[]"), ("", None), (".json", None)])
def test_a_damaged_cache_is_made_again(put, folder, cache, end, content):
    put("rectangles-images", *made.images("rectangles_images.zip"))
    data = datasets.load("rectangles-images")
    kept, damaged = {path: path.read_bytes() for path in cache.iterdir()}, cache / f"rectangles_images.npy{end}"
    # Without a content: one other byte at the end.
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!" if content is None else content)
    again = datasets.load("rectangles-images")
    np.testing.assert_array_equal(again.X_train, data.X_train)
    assert again.source == f"file in {folder}" and {path: path.read_bytes() for path in cache.iterdir()} == kept


# -- the folder and the list -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["~nobody-of-that-name", "a\nb\x1b[31m", __file__])
def test_a_variable_that_names_no_folder_is_explained(folder, monkeypatch, named):
    monkeypatch.setenv("GPZOO_DATA", named)
    refused("mnist", "GPZOO_DATA", "which is not a folder that may be read", "unset it to use")
    assert datasets.load("digits").name == "digits"


def test_the_list_says_what_is_present(folder):
    entries = {entry.name: entry for entry in datasets.available()}
    twins = {name for name in entries if name.endswith("-generated")} - {"mnist-rot-generated"}
    here = {"rectangles": "generated", "digits": "scikit-learn", **dict.fromkeys(twins, "generated")}
    assert present() == here and len(entries) == 39
    assert entries["mnist"].location == "download" and entries["imagenet20"].location == "your own folder"
    assert all(entry.description and "\n" not in entry.description for entry in entries.values())
    for name in [*NAMES[:3], "uci_boston.npz", "higgs.npy", "yellow_tripdata_2009-01.csv"]:
        (folder / name).touch()
    assert present() == here | dict.fromkeys(["uci/boston", "higgs", "taxi"], str(folder))


# -- photographs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def photographs(folder):
    """The folder with wide images, half red and half blue, two in each of two classes."""
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[:, :30, 0] = pixels[:, 30:, 2] = 200
    for part, name in itertools.product(("train", "val"), ("n2", "n1")):
        inside = folder / "imagenet20" / part / name
        inside.mkdir(parents=True)
        (inside / "notes.txt").write_text("not an image")
        for suffix in ("JPEG", "png"):
            Image.fromarray(pixels if name == "n2" else pixels[:, ::-1]).save(inside / f"0.{suffix}")
    return folder / "imagenet20"


def test_a_folder_of_images_is_a_data_set(photographs):
    assert "imagenet20" in present()
    data = datasets.load("imagenet20", size=20)
    assert data.sizes == {"train": 4, "test": 4, "input_shape": [20, 20, 3], "classes": 2}
    assert data.y_train.tolist() == [0, 0, 1, 1] and data.X_train.dtype == np.float32
    # The middle 40 of 60 columns, scaled: the colours meet in the middle.
    left = np.where(data.y_test == 1, data.X_test[:, :, :8, 0].mean((1, 2)), data.X_test[:, :, :8, 2].mean((1, 2)))
    np.testing.assert_allclose(left, 200 / 255, atol=0.02)


SPOILT = [
    # Pillow knows many formats by their contents: for EPS it would start Ghostscript.
    (lambda path: Image.new("RGB", (20, 20)).save(path, "EPS"), "cannot identify image file"),
    (lambda path: Image.new("1", (9000, 9000)).save(path, "PNG"), "it has more than 67,108,864 pixels"),
    (lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), "cannot read the image"),
    (lambda path: [each.unlink() for each in path.parent.glob("0.*")], "n2 holds no images (.jpeg, .jpg, .png)"),
    (lambda path: shutil.rmtree(path.parent), "the same two or more folders"),
    (lambda path: shutil.rmtree(path.parents[2]), "Register at https://www.image-net.org"),
]


@pytest.mark.parametrize("spoil, said", SPOILT)
def test_folders_and_files_that_are_no_photographs_are_refused(photographs, spoil, said):
    spoil(photographs / "val" / "n2" / "0.JPEG")
    refused("imagenet20", said)


# -- the files at hand -------------------------------------------------------------------------------------------------

#: The arrays of recorded results.
AT_HAND = tomllib.loads(Path(__file__).with_name("at_hand.toml").read_text(encoding="utf-8"))


@pytest.mark.slow_but(name=["uci/boston", "uci/yacht", "mnist", "covtype-subset"])
@pytest.mark.parametrize("name", AT_HAND)
def test_files_at_hand_give_the_arrays_of_recorded_results(name):
    if name not in present():
        pytest.skip(f"{name} is not here; set GPZOO_DATA to run this on its files")
    data = datasets.load(name)
    parts = [data.X_train, data.y_train, data.X_test, data.y_test]
    told = [[str(a.dtype), list(a.shape), hashlib.sha256(np.ascontiguousarray(a)).hexdigest()] for a in parts]
    assert hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16] == AT_HAND[name]
