"""Files of data sets: found, checked, downloaded, listed, and the ways in which that fails; and the files at hand."""

import errno
import hashlib
import itertools
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pooch
import pytest
import requests
from PIL import Image

from gpzoo.reproductions import datasets
from gpzoo.reproductions.datasets import images, registry
from tests.reproductions.datasets import made
from tests.reproductions.datasets.made import refused

MNIST = registry.FACTS["mnist"]["files"]
NAMES = [file["path"] for file in MNIST]


# -- downloads ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def digits(put):
    """Tiny files of MNIST, whose digests are known, in the data folder."""
    contents = made.mnist()[0]
    put("mnist", contents)
    return contents


def test_a_download_comes_from_the_first_mirror_that_works_and_once(digits, folder, serve):
    for name in NAMES:
        (folder / name).unlink()
    good = {file["urls"][1]: digits[file["path"]] for file in MNIST}
    asked = serve(good | {MNIST[0]["urls"][0]: b"an error page"})
    data = datasets.load("mnist")
    assert data.source == "downloaded from https://storage.googleapis.com/cvdf-datasets/mnist"
    assert sorted(path.name for path in folder.iterdir()) == sorted(NAMES) and len(asked) == 8
    asked.clear()
    again = datasets.load("mnist")
    np.testing.assert_array_equal(again.X_train, data.X_train)
    assert again.source == f"file in {folder}" and again.sha256 == data.sha256 and not asked


def test_downloads_go_to_the_cache_if_the_data_folder_is_read_only(digits, folder, cache, serve, monkeypatch):
    for name in NAMES:
        (folder / name).unlink()
    serve({file["urls"][0]: digits[file["path"]] for file in MNIST})
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    datasets.load("mnist")
    assert not list(folder.iterdir()) and sorted(path.name for path in cache.iterdir()) == sorted(NAMES)


@pytest.mark.parametrize("name", ["mnist", "uci/yacht", "airline", "taxi"])
def test_without_network_the_message_says_what_was_tried_and_what_to_put_where(folder, cache, name):
    first = registry.FACTS[name]["files"][0]
    refused(name, first["path"], *first["urls"], "ConnectionError", str(folder / first["path"]), "GPZOO_DATA")
    assert not cache.exists() and not any(path.is_file() for path in folder.rglob("*"))
    assert name not in {entry.name for entry in datasets.available() if entry.present}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (requests.HTTPError("404"), "HTTPError: 404"),
        (TimeoutError(), "TimeoutError"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (None, MNIST[0]["hash"].partition(":")[2]),
    ],
)
def test_a_download_that_fails_is_explained_and_not_kept(folder, monkeypatch, error, said):
    def fail(self, url, output_file, pooch_, check_only=False):
        if error is not None:
            raise error
        Path(output_file).write_bytes(b"not it")

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", fail)
    refused("mnist", NAMES[0], said, str(folder / NAMES[0]), "GPZOO_DATA")
    assert not list(folder.iterdir())


def test_a_cache_that_cannot_be_written_is_named(folder, put, monkeypatch):
    contents, facts, _ = made.images("rectangles_images.zip")
    put("rectangles-images", contents, **facts)
    (folder / "blocker").touch()
    monkeypatch.setattr(pooch, "os_cache", lambda project: folder / "blocker" / project)
    with pytest.warns(RuntimeWarning, match=r"cannot keep .*rectangles_images.npy \(Not a directory\)"):
        datasets.load("rectangles-images")
    monkeypatch.delenv("GPZOO_DATA")
    refused("mnist", f"cannot write {folder / 'blocker' / 'gpzoo' / NAMES[0]}", "Not a directory", "GPZOO_DATA")


# -- files that are refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "it is a pipe, socket or device, not a file"),
        (os.mkdir, "it is a folder, not a file"),
        (lambda path: path.symlink_to("gone"), "No such file or directory"),
    ],
)
def test_what_is_no_file_is_named_and_not_waited_for(folder, make, said):
    make(folder / NAMES[0])
    refused("mnist", str(folder / NAMES[0]), said, "Replace or remove it")
    assert "mnist" not in {entry.name for entry in datasets.available() if entry.present}


@pytest.mark.parametrize("name", ["mnist", "taxi"])
def test_a_file_larger_than_its_source_states_is_not_read(folder, name):
    path = folder / registry.FACTS[name]["files"][0]["path"]
    with path.open("wb") as stream:
        stream.truncate(40 * 10**9)
    for file in registry.FACTS[name]["files"][1:]:
        (folder / file["path"]).touch()
    refused(name, str(path), "expected at most", "found 40,000,000,000 bytes")


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

    content = made.npz(X=np.array([Bomb()], object))
    put("uci/yacht", {"uci_yacht.npz": content})
    refused("uci/yacht", "uci_yacht.npz is damaged", "Object arrays cannot be loaded")
    cache.mkdir()
    np.save(cache / "higgs.npy", np.array([Bomb()], object), allow_pickle=True)
    (cache / "higgs.npy.json").write_text(json.dumps({"sha256": "0", "origin": {}}))
    refused("higgs", "cannot download")
    assert not (folder / "done").exists()


@pytest.mark.parametrize(("file", "content"), [("", b""), (".json", b"[]"), ("", None), (".json", None)])
def test_a_damaged_cache_is_made_again(put, folder, cache, file, content):
    contents, facts, _ = made.images("rectangles_images.zip")
    put("rectangles-images", contents, **facts)
    data = datasets.load("rectangles-images")
    kept = {path.name: path.read_bytes() for path in cache.iterdir()}
    damaged = cache / f"rectangles_images.npy{file}"
    # Without a content: one other byte at the end.
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!" if content is None else content)
    again = datasets.load("rectangles-images")
    np.testing.assert_array_equal(again.X_train, data.X_train)
    assert again.source == f"file in {folder}" and {path.name: path.read_bytes() for path in cache.iterdir()} == kept


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
    assert {name: entry.location for name, entry in entries.items() if entry.present} == here and len(entries) == 39
    assert entries["mnist"].location == "download" and entries["imagenet20"].location == "your own folder"
    assert all(entry.description and "\n" not in entry.description for entry in entries.values())
    for name in [*NAMES[:3], "uci_boston.npz", "higgs.npy", "yellow_tripdata_2009-01.csv"]:
        (folder / name).touch()
    here |= dict.fromkeys(["uci/boston", "higgs", "taxi"], str(folder))
    assert {entry.name: entry.location for entry in datasets.available() if entry.present} == here


# -- photographs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def photographs(folder):
    """``photographs[part, class]``: paths of wide images, half red and half blue."""
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[:, :30, 0] = pixels[:, 30:, 2] = 200
    found = {}
    for part, name in itertools.product(("train", "val"), ("n2", "n1")):
        inside = folder / "imagenet20" / part / name
        inside.mkdir(parents=True)
        (inside / "notes.txt").write_text("not an image")
        for suffix in ("JPEG", "png"):
            Image.fromarray(pixels if name == "n2" else pixels[:, ::-1]).save(inside / f"0.{suffix}")
        found[part, name] = sorted(inside.glob("0.*"))
    return found


def test_a_folder_of_images_is_a_data_set(photographs):
    assert "imagenet20" in {entry.name for entry in datasets.available() if entry.present}
    data = datasets.load("imagenet20", size=20)
    assert data.sizes == {"train": 4, "test": 4, "input_shape": [20, 20, 3], "classes": 2}
    assert data.y_train.tolist() == [0, 0, 1, 1] and data.X_train.dtype == np.float32
    # The middle 40 of 60 columns, scaled: the colours meet in the middle.
    left = np.where(data.y_test == 1, data.X_test[:, :, :8, 0].mean((1, 2)), data.X_test[:, :, :8, 2].mean((1, 2)))
    np.testing.assert_allclose(left, 200 / 255, atol=0.02)


def test_folders_and_files_that_are_no_photographs_are_refused(folder, photographs, monkeypatch):
    broken = photographs["val", "n2"][0]
    content = broken.read_bytes()
    # Pillow knows many formats by their contents: for EPS it would start Ghostscript.
    Image.new("RGB", (20, 20)).save(broken, "EPS")
    refused("imagenet20", f"cannot read the image {broken}", "Replace or remove it")
    broken.write_bytes(content[: len(content) // 2])
    refused("imagenet20", f"cannot read the image {broken}")
    with monkeypatch.context() as patch:
        patch.setattr(images, "_MOST_PIXELS", 399)
        refused("imagenet20", "cannot read the image", "it has more than 399 pixels")
    for path in photographs["val", "n2"]:
        path.unlink()
    refused("imagenet20", "n2 holds no images (.jpeg, .jpg, .png)")
    shutil.rmtree(broken.parent)
    refused("imagenet20", "the same two or more", "['n1', 'n2'] and ['n1']")
    (folder / "imagenet20").rename(folder / "elsewhere")
    refused("imagenet20", "Register at https://www.image-net.org", "imagenet20/train/<class>/")


# -- the files at hand -------------------------------------------------------------------------------------------------

#: The beginnings of hashes of types, shapes and values.
AT_HAND = {
    "adult": "c1b3e2b68f5bc3a3",
    "cifar10": "0d9a28a02f489b81",
    "connect4": "4f7966fbab649f03",
    "covtype-subset": "a362d814432cf779",
    "diabetes": "48ad797d47cd3c5b",
    "mnist": "831b37c17fd05734",
    "mnist-rot-generated": "7e827ba42c0b23e6",
    "rectangles-original": "7c2f977c7e72d253",
    "uci/boston": "68b906f00f4ed93b",
    "uci/concrete": "f48f1b90d7e4acc7",
    "uci/energy": "bbbe5ca85685bb09",
    "uci/kin8nm": "547a789f4d66be73",
    "uci/naval": "181697ca83ee9379",
    "uci/power": "35e3a7f30656ac51",
    "uci/protein": "2ad5789e4e8d0792",
    "uci/wine_red": "be9c3b90c9e2e61a",
    "uci/yacht": "4034e258fff4deb7",
}


@pytest.mark.slow_but(name=["uci/boston", "uci/yacht", "mnist", "covtype-subset"])
@pytest.mark.parametrize("name", AT_HAND)
def test_files_at_hand_give_the_arrays_of_recorded_results(name):
    if not any(entry.name == name and entry.present for entry in datasets.available()):
        pytest.skip(f"{name} is not here; set GPZOO_DATA to run this on its files")
    data = datasets.load(name)
    parts = [data.X_train, data.y_train, data.X_test, data.y_test]
    told = [[str(a.dtype), list(a.shape), hashlib.sha256(np.ascontiguousarray(a)).hexdigest()] for a in parts]
    assert hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16] == AT_HAND[name]
