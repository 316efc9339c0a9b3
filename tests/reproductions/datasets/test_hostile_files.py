"""Files that may hold anything: refused in one line, before they are read where that can be, and within bounds."""

import ast
import bz2
import errno
import gzip
import hashlib
import io
import lzma
import os
import subprocess
import sys
import tarfile
import textwrap
import time
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pooch
import pytest
import requests
from click.testing import CliRunner
from PIL import Image

import gpzoo.reproductions.datasets
from gpzoo.errors import DatasetError
from gpzoo.reproductions import datasets
from gpzoo.reproductions.cli import main
from gpzoo.reproductions.datasets import (
    cifar10,
    classes,
    files,
    icml2007,
    large,
    mnist,
    photographs,
    rectangles,
    taxi,
    uci,
    unpacking,
)
from gpzoo.tables import files as table_files
from tests.conftest import ROOT

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty data folder and an empty cache folder, and a network that is down."""

    def down(self, url, output_file, pooch_, check_only=False):
        raise requests.ConnectionError(f"no route to {url}")

    path = tmp_path / "my data"
    path.mkdir()
    monkeypatch.setenv("GPZOO_DATA", str(path))
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache")
    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", down)
    return path


def refused(name: str, *said: str, **options) -> str:
    """The message with which a data set is refused, from Python and from the command line: one line."""
    with pytest.raises(DatasetError) as caught:
        datasets.load(name, **options)
    message = str(caught.value)
    assert all(part in message for part in said) and message.isprintable(), message
    if not options:
        done = CliRunner().invoke(main, ["data", name])
        assert done.exit_code == 1 and done.stdout == "" and done.stderr.count("\n") == 1 and said[0] in done.stderr
    return message


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def changed(archive: bytes, offset: int, value: int) -> bytes:
    """The archive with two bytes of every member's headers changed: 6 holds the flags, 8 the method."""
    content = bytearray(archive)
    for signature, more in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        place = content.find(signature)
        while place >= 0:
            content[place + offset + more : place + offset + more + 2] = value.to_bytes(2, "little")
            place = content.find(signature, place + 4)
    return bytes(content)


# -- what is not read --------------------------------------------------------------------------------------------------


def sparse(path: Path, size: int) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as stream:
        stream.truncate(size)


LARGE = {
    "uci/yacht": "uci_yacht.npz",
    "uci/boston": "uci_boston/data.txt",
    "rectangles-original": "rectangles.zip",
    "mnist": "train-images-idx3-ubyte.gz",
    "cifar10": "cifar-10-binary.tar.gz",
    "adult": "adult.npz",
    "covtype": "covtype.data.gz",
    "diabetes": "diabetes130.zip",
    "year": "YearPredictionMSD.txt.zip",
    "higgs": "HIGGS.csv.gz",
    "airline": "airline/plane-data.csv",
    "svhn": "train_32x32.mat",
    "mnist-rot": "mnist_rotation_new.zip",
    "taxi": "yellow_tripdata_2009-01.parquet",
}


@pytest.mark.parametrize("name", LARGE)
def test_a_file_larger_than_its_source_states_is_not_read(folder, monkeypatch, name):
    sparse(folder / LARGE[name], 40 * 10**9)
    monkeypatch.setattr(files.hashlib, "file_digest", None)
    monkeypatch.setattr(files.hashlib, "new", None)
    begin = time.process_time()
    refused(name, str(folder / LARGE[name]), "expected at most", "found 40,000,000,000 bytes")
    assert time.process_time() - begin < 1


def test_a_cache_of_40_gigabytes_is_not_read(folder, tmp_path):
    (tmp_path / "cache").mkdir()
    for file in ("cifar10.npy", "higgs.npy", "higgs.npy.json"):
        sparse(tmp_path / "cache" / file, 40 * 10**9)
    assert files.kept("cifar10.npy", 60_000 * 3073, "0") is None
    assert files.kept_with_origin("higgs.npy", 1_276_000_000) is None


def make_pipe(path):
    os.mkfifo(path)


def make_loop(path):
    path.symlink_to(path)


@pytest.mark.parametrize("name", ["mnist", "uci/yacht", "adult", "airline", "taxi", "rectangles-original"])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (make_pipe, "it is a pipe, socket or device, not a file"),
        (lambda path: path.mkdir(), "it is a folder, not a file"),
        (lambda path: path.symlink_to("/dev/zero"), "it is a pipe, socket or device, not a file"),
        (make_loop, "Too many levels of symbolic links"),
        (lambda path: path.symlink_to("gone"), "No such file or directory"),
    ],
)
def test_what_is_no_file_is_named_and_not_waited_for(folder, name, make, said):
    path = folder / LARGE[name]
    path.parent.mkdir(exist_ok=True)
    make(path)
    refused(name, str(path), said, "Replace or remove it")
    assert name not in {entry.name for entry in datasets.available() if entry.present}


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"1")
    before = os.stat(path)
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(files.os, "stat", lambda path, **options: before)
    with pytest.raises(DatasetError, match="it is a pipe"):
        files.read(path, 10)


def test_a_file_that_may_not_be_read_is_named(folder, monkeypatch):
    path = folder / "uci_yacht.npz"
    path.touch()

    def forbidden(path, flags, *mode):
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "open", forbidden)
        refused("uci/yacht", str(path), "Permission denied")


def test_a_link_to_a_file_is_a_file(folder, tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"content")
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    assert files.read(files.find("link"), 7, hashlib.sha256(b"content").hexdigest()) == b"content"
    with table_files.opened(folder / "link", 7, hashlib.sha256(b"content").hexdigest()) as stream:
        assert stream.read() == b"content"
    for call in (files.read, lambda *arguments: table_files.opened(*arguments).__enter__()):
        with pytest.raises(DatasetError, match=r"link is damaged.*expected sha1 0{40}, found [0-9a-f]{40}"):
            call(folder / "link", 7, "0" * 40, "sha1")


# -- the folder --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("~nobody-of-that-name", "the folder of a user who has none here"),
        ("~nobody", ""),
        ("gone", "which is not a folder"),
        ("x" * 5000, "which is not a folder"),
        ("a\nb\x1b[31m", "which is not a folder"),
    ],
)
def test_a_variable_that_names_no_folder_is_explained(folder, monkeypatch, named, said):
    monkeypatch.setenv("GPZOO_DATA", named)
    refused("mnist", "GPZOO_DATA", said, "unset it to use")
    listed = CliRunner().invoke(main, ["data"])
    assert listed.exit_code == 1 and listed.stderr.count("\n") == 1 and "GPZOO_DATA" in listed.stderr


def test_a_variable_that_names_a_file_or_a_closed_folder_is_explained(folder, monkeypatch):
    (folder / "file").touch()
    monkeypatch.setenv("GPZOO_DATA", str(folder / "file"))
    refused("mnist", "GPZOO_DATA", "which is not a folder")
    monkeypatch.setenv("GPZOO_DATA", str(folder))
    monkeypatch.setattr(files.os, "access", lambda path, mode: False)
    refused("mnist", "GPZOO_DATA", "may not be read", "change its permissions")


def test_a_relative_folder_is_named_in_full(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("GPZOO_DATA", "my data")
    assert files.folders()[0] == folder
    (folder / "uci_yacht.npz").touch()
    refused("uci/yacht", str(folder / "uci_yacht.npz"))


def test_messages_are_one_printable_line():
    error = DatasetError("cannot read a\nb\x1b[2J\udcff of ~/my  data: \u2028it is missing")
    assert str(error) == "cannot read a b\\x1b[2J\\udcff of ~/my  data:  it is missing"
    assert (
        len(table_files.reason(ValueError("x" * 10_000 + "\nmore"))) < 300
        and table_files.reason(KeyError()) == "KeyError"
    )


# -- archives ----------------------------------------------------------------------------------------------------------

ROW = b"0 " * 784 + b"1\n"
IMAGES = {"rectangles_train.amat": ROW * 3, "rectangles_test.amat": ROW * 5}
SOURCES = {
    "rectangles-original": ("rectangles.zip", IMAGES),
    "diabetes": ("diabetes130.zip", {"x/diabetic_data.csv": b"a,readmitted\n1,NO\n"}),
    "adult": ("adult.zip", {"adult.data": b"1\n", "adult.test": b"1\n"}),
    "year": ("YearPredictionMSD.txt.zip", {"YearPredictionMSD.txt": b"1,2\n"}),
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda members: changed(zipped(members), 6, 1), "is encrypted"),
        (lambda members: changed(zipped(members), 8, 99), "is compressed by method 99"),
        (lambda members: zipped(members, zipfile.ZIP_LZMA), "is compressed by method 14"),
        (lambda members: zipped({"../../readme": b""}), "it has no "),
        (lambda members: zipped({}), "it has no "),
        (lambda members: b"", "it is not a zip archive"),
        (lambda members: zipped(members)[:-30], "it is not a zip archive"),
        (lambda members: zipped({f"{i:0200}": b"" for i in range(4600)}), "its list of members is longer than"),
        (lambda members: b"PK\x06\x07" + bytes(16) + zipped({})[:22], "its list of members is longer than"),
    ],
)
def test_archives_that_cannot_be_unpacked_are_refused(folder, name, change, said):
    file, members = SOURCES[name]
    (folder / file).write_bytes(change(members))
    refused(name, str(folder / file), "is damaged or is another version", said, "Delete it")


@pytest.mark.parametrize("row", [b"0 " * 783 + b"1\n", b"0 " * 785 + b"1\n", b"0 " * 784 + b"nan\n"])
def test_rectangles_of_other_columns_are_refused(folder, row):
    (folder / "rectangles.zip").write_bytes(zipped({name: row * 3 for name in IMAGES}))
    refused("rectangles-original", "rectangles.zip is damaged", "lines 1 to 3 hold something else")


def bombs() -> dict[str, tuple[str, dict[str, bytes], str]]:
    """Small files that unpack to a great deal: 4 MB here, where the loaders may unpack 256 kB."""
    text = {"zeros": bytes(4_000_000), "lines": b"\n" * 4_000_000, "numbers": b"1," * 2_000_000}
    found = {}
    for kind, content in text.items():
        found |= {
            f"rectangles of {kind}": (
                "rectangles-original",
                {"rectangles.zip": zipped(dict.fromkeys(IMAGES, content))},
            ),
            f"year of {kind}": ("year", {large.TEXTS["year"].file: zipped({"YearPredictionMSD.txt": content})}),
            f"connect4 of {kind}": ("connect4", {"connect_4.tsv.gz": gzip.compress(content, 1)}),
            f"diabetes of {kind}": ("diabetes", {"diabetes130.zip": zipped({"diabetic_data.csv": content})}),
            f"adult of {kind}": ("adult", {"adult.zip": zipped({"adult.data": content, "adult.test": content})}),
            f"airline of {kind}": (
                "airline",
                {large.PLANES: b"tailnum,year\nN1,1990\n", large.FLIGHTS: bz2.compress(content)},
            ),
        }
    return found


@pytest.mark.slow
def test_bombs_are_refused_within_bounds(folder, monkeypatch):
    monkeypatch.setattr(icml2007, "_MOST_AMAT", 2**18)
    monkeypatch.setattr(classes, "_MOST_TEXT", 2**18)
    monkeypatch.setattr(large, "_MOST_FLIGHTS_TEXT", 2**18)
    monkeypatch.setattr(rectangles, "RECTANGLES_ROWS", {"train": 20, "test": 20})
    monkeypatch.setitem(large.TEXTS, "year", replace(large.TEXTS["year"], rows=20, most_text=2**18))
    for name in ("connect4", "diabetes", "adult"):
        monkeypatch.setitem(classes.TABLES, name, replace(classes.TABLES[name], rows=20))
    for kind, (name, contents) in bombs().items():
        for file, content in contents.items():
            assert len(content) < 100_000
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_bytes(content)
        tracemalloc.start()
        with pytest.raises(DatasetError, match="is damaged or is another version"):
            datasets.load(name)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2e6, (kind, peak)


def test_parquet_that_repeats_a_long_text_is_refused_before_it_is_repeated(folder):
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), ["x" * 100_000])
    path = folder / "yellow_tripdata_2009-01.parquet"
    names = ("trip_pickup_datetime", "trip_dropoff_datetime", "start_lat", "start_lon", "end_lat", "end_lon")
    numbers = dict.fromkeys((*names[2:], "trip_distance"), pa.array([40.75] * 100_000))
    before = pa.total_allocated_bytes()
    pq.write_table(pa.table(dict.fromkeys(names[:2], text) | numbers), path, store_schema=False)
    assert path.stat().st_size < 100_000
    refused("taxi", str(path), "a time has more than 64 letters")
    pq.write_table(pa.table(dict.fromkeys((*names, "trip_distance"), text)), path, store_schema=False)
    refused("taxi", str(path), "column 'start_lat' is of type string")
    assert pa.total_allocated_bytes() - before < 1e8


def test_tables_are_bounded_in_empty_lines_and_long_words():
    rows = b"1,2\n" * 3
    np.testing.assert_array_equal(unpacking.numbers(io.BytesIO(rows + b"\n" * 8), 3, 2), [[1, 2]] * 3)
    with pytest.raises(ValueError, match="there are more rows"):
        unpacking.numbers(io.BytesIO(rows + b"\n" * 9), 3, 2)
    with pytest.raises(ValueError, match="line 2 is longer than 128 bytes"):
        unpacking.numbers(io.BytesIO(b"1,2\n1," + b"2" * 200), 3, 2)
    assert classes._rows([["a", "b" * 64]], 2, 1) == [["a", "b" * 64]]
    for text, said in (
        ([["a", "b" * 65]], "words of up to 64"),
        ([["a"]], "not have 2"),
        ([["a", "b"]] * 2, "more than 1"),
    ):
        with pytest.raises(ValueError, match=said):
            classes._rows(text, 2, 1)


def test_sizes_that_headers_state_are_checked_and_not_trusted():
    content = bytes(1000)
    archive = zipped({"a": content})
    with pytest.raises(ValueError, match="a unpacks to 1,000 bytes, more than 999"):
        unpacking.member(io.BytesIO(archive), "a", 999).__enter__()
    lying = archive.replace((1000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    with pytest.raises(zipfile.BadZipFile), unpacking.member(io.BytesIO(lying), "a", 999) as stream:
        stream.read()
    for unpack, packed in ((unpacking.gunzip, gzip.compress(content)), (unpacking.bunzip2, bz2.compress(content))):
        assert unpack(io.BytesIO(packed), 1000).read() == content
        with pytest.raises(ValueError, match="it unpacks to more than 999 bytes"):
            unpack(io.BytesIO(packed), 999).read()
    assert unpacking.unxz(lzma.compress(content), 1000) == content
    with pytest.raises(ValueError, match="it unpacks to more than 999 bytes"):
        unpacking.unxz(lzma.compress(content), 999)
    greedy = lzma.compress(content, filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2**29}])
    with pytest.raises(lzma.LZMAError):
        unpacking.unxz(greedy, 1000)


def tar_of(*infos: tuple[str, bytes, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, kind, content in infos:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(content), "/etc/passwd"
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def test_members_of_a_tar_archive_are_files_and_written_nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = [("a/b", tarfile.REGTYPE, b"12"), ("../../c", tarfile.REGTYPE, b""), ("a/a", tarfile.REGTYPE, b"345")]
    assert unpacking.members(io.BytesIO(tar_of(*good)), ["a/a", "a/b"], 3000) == [b"345", b"12"]
    for infos, said in (
        (good[:2], "each of its files once"),
        ([*good, good[0]], "each of its files once"),
        ([good[0], ("a/a", tarfile.SYMTYPE, b"")], "a/a is not a file"),
        ([good[0], ("a/a", tarfile.LNKTYPE, b"")], "a/a is not a file"),
        ([good[0], ("a/a", tarfile.REGTYPE, bytes(3001))], "a/a is not a file of at most 3,000 bytes"),
        ([good[0], ("else", tarfile.REGTYPE, bytes(90_000))], "unpacks to more than 74,536 bytes"),
    ):
        with pytest.raises(ValueError, match=said):
            unpacking.members(io.BytesIO(tar_of(*infos)), ["a/a", "a/b"], 3000)
    assert not list(tmp_path.iterdir())


def test_nothing_is_unpickled(folder, tmp_path, monkeypatch):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "done"),)

    stream = io.BytesIO()
    np.savez(stream, X=np.array([Bomb()], object))
    path = folder / "uci_yacht.npz"
    path.write_bytes(stream.getvalue())
    with pytest.raises(DatasetError, match=r"Object arrays cannot be loaded"):
        unpacking.npz(path, 10_000, hashlib.sha256(stream.getvalue()).hexdigest())
    cache = tmp_path / "cache"
    cache.mkdir()
    np.save(cache / "a.npy", np.array([Bomb()], object), allow_pickle=True)
    assert files.kept("a.npy", 10_000, "0") is None
    (cache / "a.npy").write_bytes(stream.getvalue())
    assert files.kept("a.npy", 10_000, "0") is None
    assert not (tmp_path / "done").exists()


# -- photographs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def photograph(folder):
    """The first photograph of a folder of four."""
    for part in ("train", "val"):
        for name in ("one", "two"):
            (folder / "imagenet20" / part / name).mkdir(parents=True)
            Image.new("RGB", (20, 20)).save(folder / "imagenet20" / part / name / "a.png")
    return folder / "imagenet20" / "train" / "one" / "a.png"


def test_photographs_that_are_none_are_refused(folder, photograph, monkeypatch):
    good = photograph.read_bytes()
    assert datasets.load("imagenet20").X_train.shape == (2, 64, 64, 3)
    # Pillow knows many formats by their contents: for EPS it would start Ghostscript.
    others = [io.BytesIO() for _ in range(3)]
    for stream, form in zip(others, ("EPS", "GIF", "TIFF"), strict=True):
        Image.new("RGB", (20, 20)).save(stream, form)
    for content in (*(stream.getvalue() for stream in others), b"", good[:40], good.replace(b"IDAT", b"IDAX")):
        photograph.write_bytes(content)
        refused("imagenet20", f"cannot read the image {photograph}", "Replace or remove it")
    photograph.write_bytes(good)
    monkeypatch.setattr(photographs, "_MOST_PIXELS", 399)
    refused("imagenet20", "cannot read the image", "it has 400 pixels, more than 399")
    monkeypatch.setattr(photographs, "_MOST_PIXELS", 400)
    monkeypatch.setattr(photographs, "_MANY_PIXELS", 1)
    assert datasets.load("imagenet20").X_train.shape == (2, 64, 64, 3)
    sparse(photograph, 40 * 10**9)
    refused("imagenet20", str(photograph), "expected at most 67,108,864 bytes")
    photograph.unlink()
    os.mkfifo(photograph)
    refused("imagenet20", str(photograph), "it is a pipe")


def test_folders_of_photographs_that_cannot_be_listed_are_named(folder, photograph, monkeypatch):
    refused("imagenet20", "do not fit into memory: choose a smaller size", size=10**7)
    (folder / "imagenet20" / "train" / "loop").symlink_to("loop")
    assert datasets.load("imagenet20", size=2).sizes["classes"] == 2
    listed = Path.iterdir

    def forbidden(path):
        if path == photograph.parent:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", forbidden)
    refused("imagenet20", str(photograph.parent), "Permission denied", "Correct its permissions")


# -- downloads and what is written -------------------------------------------------------------------------------------


def test_a_download_that_does_not_end_is_ended(folder, monkeypatch):
    sent = []

    class Response:
        headers = MappingProxyType({})

        def raise_for_status(self):
            pass

        def iter_content(self, chunk_size):
            while True:
                sent.append(chunk_size)
                yield bytes(chunk_size)

        def close(self):
            pass

        __enter__, __exit__ = (lambda self: self), (lambda self, *error: None)

    monkeypatch.undo()
    monkeypatch.setenv("GPZOO_DATA", str(folder))
    monkeypatch.setattr(requests, "get", lambda url, **options: Response())
    message = refused("uci/yacht", "cannot download uci_yacht/data.txt", "at most 98,560 are expected", split=0)
    assert "ValueError" in message and sum(sent) < 3e6 and not list((folder / "uci_yacht").iterdir())
    monkeypatch.setattr(Response, "headers", {"content-length": "40000000000"})
    sent.clear()
    refused("uci/yacht", "it has 40,000,000,000 bytes or more", split=0)
    assert not sent


def test_what_killed_writers_left_is_removed(folder, tmp_path):
    cache = tmp_path / "cache"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    for name in ("left", "writing"):
        inside = cache / f"{files._UNFINISHED}{name}"
        inside.mkdir(parents=True)
        (inside / "a.npy").write_bytes(b"half")
        (inside / "link").symlink_to(elsewhere)
        if name == "left":
            for path in (inside / "a.npy", inside / "link", inside):
                os.utime(path, (0, 0), follow_symlinks=False)
    old = cache / f"{files._UNFINISHED}linked"
    old.symlink_to(elsewhere)
    os.utime(old, (0, 0), follow_symlinks=False)
    os.utime(elsewhere, (0, 0))
    os.utime(elsewhere / "precious", (0, 0))
    files.keep("a.npy", np.arange(3))
    left = {path.name.removeprefix(files._UNFINISHED) for path in cache.iterdir()}
    assert left == {"a.npy", "writing", "linked"} and (elsewhere / "precious").exists()


def test_what_is_written_replaces_a_link_and_leaves_its_target(folder, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "cache" / "a.npy").symlink_to(tmp_path / "target")
    files.keep("a.npy", np.arange(3))
    assert (tmp_path / "target").read_bytes() == b"precious" and not (tmp_path / "cache" / "a.npy").is_symlink()
    digest = hashlib.sha256(np.arange(3)).hexdigest()
    np.testing.assert_array_equal(files.kept("a.npy", 24, digest), np.arange(3))


def test_nothing_is_written_through_a_link_to_another_folder(folder, tmp_path):
    (tmp_path / "target").mkdir()
    (folder / "airline").symlink_to(tmp_path / "target")
    refused("airline", f"cannot write {folder / 'airline'}", "a link leads out of")
    assert not list((tmp_path / "target").iterdir())


def test_an_error_while_writing_leaves_what_was_there(folder, tmp_path):
    cache = tmp_path / "cache"
    files.keep("a.npy", np.arange(3))
    with pytest.raises(KeyboardInterrupt), files.written(cache, "a.npy") as unfinished:
        unfinished.write_bytes(b"half")
        raise KeyboardInterrupt
    assert [path.name for path in cache.iterdir()] == ["a.npy"]
    np.testing.assert_array_equal(np.load(cache / "a.npy"), np.arange(3))


# -- one door ----------------------------------------------------------------------------------------------------------


def test_no_loader_opens_a_file_itself():
    unpackers = {"bz2", "gzip", "lzma", "tarfile", "zipfile", "zlib", "mmap", "tempfile", "shutil"}
    may_import = {"files.py": {"tempfile", "shutil"}, "unpacking.py": unpackers, "arrays.py": {"mmap"}}
    never = {"pickle", "marshal", "shelve", "extractall", "extract", "eval", "exec"}
    opening = {"open", "read_bytes", "read_text", "write_bytes", "write_text", "load", "genfromtxt", "memmap", "fdopen"}
    may_call = {"files.py": opening, "unpacking.py": {"open", "load"}}
    # What is opened here was opened before: streams, and arrays in memory.
    known = {"Image.open(stream", "datasets.load("}
    folders = (Path(module.__file__).parent for module in (gpzoo.reproductions.datasets, gpzoo.tables))
    for path in sorted(path for folder in folders for path in folder.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {node.module} if isinstance(node, ast.ImportFrom) else {alias.name for alias in node.names}
                assert not names & (unpackers - may_import.get(path.name, set()) | never), (path.name, names)
            if isinstance(node, ast.Call):
                text = ast.unparse(node)
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                assert name not in never, (path.name, text)
                assert "allow_pickle=True" not in text
                if name in opening - may_call.get(path.name, set()):
                    assert any(text.startswith(start) for start in known), (path.name, text)


# -- files that were changed -------------------------------------------------------------------------------------------


class AnyDigest(str):
    """Equal to every digest: so that parsers meet what the digest keeps from them."""

    __hash__ = str.__hash__

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False


def npz_of(**arrays) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def every_format(folder: Path, monkeypatch) -> dict[str, tuple[str, dict[str, bytes], dict]]:
    """Small files of every format: data set, its files, and its options."""
    from scipy.io import savemat

    any_digest, rng = AnyDigest("0" * 64), np.random.RandomState(0)
    monkeypatch.setattr(cifar10, "_CIFAR10_TRAIN", 2)
    monkeypatch.setattr(rectangles, "_RECTANGLES_CONTENT", any_digest)
    monkeypatch.setattr(rectangles, "RECTANGLES_ROWS", {"train": 3, "test": 5})
    yacht = replace(uci.UCI["yacht"], rows=10, features=2, splits=1)
    monkeypatch.setitem(uci.UCI, "yacht", yacht)
    for name, text in large.TEXTS.items():
        monkeypatch.setitem(large.TEXTS, name, replace(text, rows=12, sha256=any_digest))
    for name, archive in icml2007.ARCHIVES.items():
        small = replace(archive, digest=any_digest, rows={"train": 3, "test": 5})
        monkeypatch.setitem(icml2007.ARCHIVES, name, small)
    for name, value in {"AIRLINE_ROWS": (12,), "AIRLINE_TRAIN": 8, "AIRLINE_TEST": 2}.items():
        monkeypatch.setattr(large, name, value)
    monkeypatch.setattr(files, "keep", None)
    for module in (cifar10, icml2007, large, taxi):
        monkeypatch.setattr(module, "keep", lambda *arguments: None)

    def idx(array):
        return gzip.compress(bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes())

    def text(array, delimiter=",", fmt="%.5g", header=""):
        stream = io.StringIO()
        np.savetxt(stream, array, fmt=fmt, delimiter=delimiter, header=header, comments="")
        return stream.getvalue().encode()

    def pixels(*shape):
        return rng.randint(256, size=shape).astype(np.uint8)

    rows, data, mats = pixels(3, 98), rng.rand(10, 3), {}
    for file in photographs.SVHN_SHA256:
        stream = io.BytesIO()
        savemat(stream, {"X": pixels(32, 32, 3, 4), "y": pixels(4, 1)}, do_compression=True)
        mats[file] = stream.getvalue()
    months = "Trip_Pickup_DateTime,Trip_Dropoff_DateTime,Start_Lat,Start_Lon,End_Lat,End_Lon,Trip_Distance"
    journey = ("2009-01-04 02:52:00", "2009-01-04 03:02:00", 40.75, -73.98, 40.75, -73.98, 2.0)
    stream = io.BytesIO()
    pq.write_table(
        pa.table({name: [value] * 12 for name, value in zip(months.split(","), journey, strict=True)}), stream
    )
    trips = "\n".join([months, *[",".join(map(str, journey))] * 12, ""]).encode()
    batches = [
        (f"cifar-10-batches-bin/{n}.bin", tarfile.REGTYPE, pixels(3073).tobytes())
        for n in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
    ]
    adult = "\n".join([", ".join(["1"] * 14 + ["<=50K"])] * 6 + [""]).encode()
    flight = ",".join([*large._AIRLINE_COLUMNS, "TailNum", "ArrDelay"]) + "\n" + "1,2,3,4,5,6,7,N1,8\n" * 12
    index = {
        f"uci_yacht/{n}.txt": v
        for n, v in {"index_features": b"0\n1\n", "index_target": b"2\n", "index_test_0": b"3\n"}.items()
    }
    image = {
        f"rectangles_im_{part}.amat": text(rng.rand(rows, 785), "   ") for part, rows in (("train", 3), ("test", 5))
    }
    images = {}
    for suffix, form in ((".png", "PNG"), (".jpg", "JPEG")):
        stream2 = io.BytesIO()
        Image.fromarray(pixels(20, 20, 3)).save(stream2, form)
        images |= {f"imagenet20/{part}/{n}/a{suffix}": stream2.getvalue() for n in "ab" for part in ("train", "val")}
    # What is parsed once its sha256 was right cannot be changed; the rest is parsed whatever it holds.
    known = {
        "idx": (
            "mnist",
            dict(zip(mnist.MNIST_SHA256, [idx(pixels(3, 28, 28)), idx(pixels(3))] * 2, strict=True)),
            {},
        ),
        "xz": (
            "cifar10",
            {
                "cifar10_images.xz": lzma.compress(pixels(4, 3072).tobytes()),
                "cifar10_labels.npz": npz_of(y_train=pixels(2), y_test=pixels(2)),
            },
            {},
        ),
        "tar": ("cifar10", {"cifar-10-binary.tar.gz": tar_of(*batches)}, {}),
        "npz": ("uci/yacht", {"uci_yacht.npz": npz_of(X=rng.rand(10, 2), y=rng.rand(10), test_0=np.array([3]))}, {}),
        "bits": (
            "rectangles-original",
            {"rectangles.npz": npz_of(X_train_bits=rows, X_test_bits=rows, y_train=rows[:, 0], y_test=rows[:, 0])},
            {},
        ),
        "mat": ("svhn", mats, {}),
    }
    sums = {
        file: hashlib.sha256(content).hexdigest()
        for _, contents, _ in known.values()
        for file, content in contents.items()
    }
    for module, name in ((mnist, "MNIST_SHA256"), (cifar10, "CIFAR10_SHA256"), (photographs, "SVHN_SHA256")):
        monkeypatch.setattr(module, name, {file: sums[file] for file in getattr(module, name)})
    monkeypatch.setattr(cifar10, "CIFAR10_TAR_SHA256", sums["cifar-10-binary.tar.gz"])
    monkeypatch.setattr(rectangles, "_RECTANGLES_NPZ_SHA256", sums["rectangles.npz"])
    monkeypatch.setitem(uci.UCI, "yacht", replace(yacht, npz_sha256=sums["uci_yacht.npz"]))
    parsed = {
        "uci": ("uci/yacht", {"uci_yacht/data.txt": text(data, " ", "%.17g"), **index}, {}),
        "amat": ("rectangles-original", {"rectangles.zip": zipped(IMAGES)}, {}),
        "images": ("rectangles-images", {"rectangles_images.zip": zipped(image)}, {}),
        "adult": ("adult", {"adult.zip": zipped({"adult.data": adult, "adult.test": adult})}, {}),
        "connect4": (
            "connect4",
            {"connect_4.tsv.gz": gzip.compress(b"a\t" * 42 + b"target\n" + (b"1\t" * 42 + b"2\n") * 12)},
            {},
        ),
        "diabetes": (
            "diabetes",
            {
                "diabetes130.zip": zipped(
                    {"d/diabetic_data.csv": b"patient_nbr,b,readmitted\n" + b"1,x,NO\n2,?,>30\n" * 6}
                )
            },
            {},
        ),
        "covtype": ("covtype", {"covtype.data.gz": gzip.compress(text(rng.randint(1, 5, (12, 55)), fmt="%d"))}, {}),
        "year": ("year", {large.TEXTS["year"].file: zipped({"YearPredictionMSD.txt": text(rng.rand(12, 91))})}, {}),
        "susy": ("susy", {large.TEXTS["susy"].file: gzip.compress(text(rng.rand(12, 19)))}, {}),
        "airline": (
            "airline",
            {large.PLANES: b"tailnum,year\nN1,1990\n", large.FLIGHTS: bz2.compress(flight.encode())},
            {},
        ),
        "parquet": ("taxi", {"yellow_tripdata_2009-01.parquet": stream.getvalue()}, {}),
        "csv": ("taxi", {"yellow_tripdata_2009-01.csv": trips}, {}),
        "photographs": ("imagenet20", images, {"size": 4}),
    }
    X, y = data[:, :2], data[:, 2]
    content = table_files.fingerprint({"X": X, "y": y, "test_0": np.array([3], np.uint16)})
    monkeypatch.setitem(uci.UCI, "yacht", replace(uci.UCI["yacht"], content=content))
    for name in ("adult", "connect4", "diabetes", "covtype"):
        packed = io.BytesIO(parsed[name][1][classes.TABLES[name].file])
        found = classes.content_of(*classes._READERS[name](packed, 12))
        monkeypatch.setitem(classes.TABLES, name, replace(classes.TABLES[name], rows=12, content=found, sha256=None))
    return known | parsed


def changes(rng: np.random.RandomState, content: bytes) -> bytes:
    """Another file: bits flipped, bytes set, a piece cut, doubled, replaced or put in, or the end cut off."""
    out = bytearray(content)
    for _ in range(1 + rng.randint(3)):
        place, length = rng.randint(len(out) + 1), 1 + rng.randint(1 + min(len(out), [4, 64, 4096][rng.randint(3)]))
        word = [b"\xff\xff\xff\xff", b"\x00", b"\x80", b"nan", b"1e999", b"\n", b'"', b",", b"9" * 30, b"\xc3"][
            rng.randint(10)
        ]
        kind = rng.randint(6)
        if kind == 0 and out:
            out[place % len(out)] ^= 1 << rng.randint(8)
        elif kind == 1:
            out[place : place + len(word)] = word
        elif kind == 2:
            del out[place : place + length]
        elif kind == 3:
            out[place:place] = out[place : place + length] * (1 + rng.randint(50))
        elif kind == 4:
            out[place:place] = word * (1 + rng.randint(2000))
        else:
            del out[len(out) - length :]
    return bytes(out)


def inner(rng: np.random.RandomState, content: bytes) -> bytes:
    """The same, of what is packed in it, packed again."""
    if content.startswith(b"\x1f\x8b"):
        return gzip.compress(changes(rng, gzip.decompress(content)), 1)
    if content.startswith(b"BZh"):
        return bz2.compress(changes(rng, bz2.decompress(content)))
    if content.startswith(b"\xfd7z"):
        return lzma.compress(changes(rng, lzma.decompress(content)), preset=0)
    if content.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        victim = list(members)[rng.randint(len(members))]
        return zipped({**members, victim: changes(rng, members[victim])})
    return changes(rng, content)


def attack(folder: Path, monkeypatch, rounds: int, seed: int) -> dict[str, int]:
    """How often each outcome came of loading changed files of every format; anything but these is raised."""
    import shutil

    counts = {"loaded": 0, "refused": 0}
    for kind, (name, contents, options) in every_format(folder, monkeypatch).items():
        rng = np.random.RandomState(seed)
        for n in range(-1, rounds):
            shutil.rmtree(folder)
            for file, content in contents.items():
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                (folder / file).write_bytes(content)
            if n >= 0:
                file = list(contents)[rng.randint(len(contents))]
                content = (changes if rng.randint(2) else inner)(rng, contents[file])
                (folder / file).write_bytes(content)
            try:
                datasets.load(name, **options)
                counts["loaded"] += 1
            except DatasetError as error:
                assert n >= 0, (kind, error)
                assert str(folder) in str(error) and str(error).isprintable() and len(str(error)) < 2000, error
                counts["refused"] += 1
            except Exception as error:
                raise AssertionError(f"{kind}, seed {seed}, round {n}: {error!r}") from error
    return counts


def test_files_that_were_changed_are_loaded_or_refused(folder, monkeypatch):
    counts = attack(folder, monkeypatch, 4, seed=1)
    assert counts["refused"] > 25 and counts["loaded"] > 19


_LIMITED = """
    import resource, sys
    sys.path.insert(0, {root!r})
    from pathlib import Path
    import pytest
    from tests.reproductions.datasets import test_hostile_files as hostile
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    limit = used + 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with pytest.MonkeyPatch.context() as patch:
        folder = Path({folder!r})
        patch.setenv("GPZOO_DATA", str(folder))
        print(hostile.attack(folder, patch, {rounds}, {seed}))
"""


if __name__ == "__main__":  # python -m tests.reproductions.datasets.test_hostile_files ROUNDS SEED
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        os.environ["XDG_CACHE_HOME"] = f"{temporary}/cache"
        inside = Path(temporary, "data")
        inside.mkdir()
        code = textwrap.dedent(_LIMITED).format(
            root=str(ROOT), folder=str(inside), rounds=int(sys.argv[1]), seed=int(sys.argv[2])
        )
        sys.exit(subprocess.run([sys.executable, "-c", code]).returncode)
