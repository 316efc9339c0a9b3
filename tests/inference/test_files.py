"""Files that are written in one step replace regular files and what links lead to, and nothing else."""

import os
import re
import socket
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import optax
import pytest
from numpyro.infer import SVI

from gpzoo import kmeans
from gpzoo.errors import CheckpointError
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, fit, load, report
from gpzoo.inference.programs import files as _files
from gpzoo.inference.training.checkpoints import Checkpoints
from gpzoo.inference.training.state import TrainState
from gpzoo.models import gp_regression
from gpzoo.reproductions.kept import write_json
from tests.programs import KEY


def model(X, y=None):
    pass


TRAINED = Trained(model, None, {"a": np.ones(2)})


def saved(path):
    TRAINED.save(path)


def kept(path):
    write_json(path, {"a": 1})


def as_checkpoint(path):
    assert Checkpoints(path.parent, {}).save(TrainState({}, int(path.stem), np.zeros((1, 3))))


def text(path):
    with _files.replacing(path) as temporary:
        temporary.write_text("page")


FOLLOWING = {"a": saved, "b": kept, "3.checkpoint": as_checkpoint, "e": text}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    # Names of sockets are short, those of temporary folders need not be.
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pipe(path):
    os.mkfifo(path)


def listener(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


NODES = {"a pipe": pipe, "a socket": listener, "a folder": Path.mkdir}


@pytest.mark.parametrize("kind", NODES)
@pytest.mark.parametrize(("name", "linked"), [(n, linked) for n in FOLLOWING for linked in (False, True)])
def test_what_is_no_regular_file_is_refused_and_stays(name, kind, linked, folder):
    path = folder / name
    node = folder / "node" if linked else path
    NODES[kind](node)
    if linked:
        path.symlink_to(node.name)
    before = node.lstat()
    refused = pytest.warns(RuntimeWarning) if name == "3.checkpoint" else pytest.raises((OSError, CheckpointError))
    with refused as said:
        if name == "3.checkpoint":
            assert not Checkpoints(folder, {}).save(TrainState({}, 3, np.zeros((1, 3))))
        else:
            FOLLOWING[name](path)
    message = str(said[0].message if name == "3.checkpoint" else said.value)
    assert kind in message and str(path) in message and "only a regular file" in message
    after = node.lstat()
    assert (after.st_ino, stat.S_IFMT(after.st_mode)) == (before.st_ino, stat.S_IFMT(before.st_mode))
    assert path.is_symlink() == linked
    assert sorted(p.name for p in folder.iterdir()) == sorted({path.name, node.name})


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("name", FOLLOWING)
def test_a_link_to_a_file_is_followed_and_stays(name, exists, folder):
    path, other = folder / name, folder / "other"
    other.mkdir()
    file = other / "file"
    if exists:
        file.write_bytes(b"before")
    path.symlink_to("other/file")
    FOLLOWING[name](path)
    assert path.is_symlink() and file.is_file() and file.read_bytes() != b"before"
    assert path.read_bytes() == file.read_bytes()
    assert [p.name for p in other.iterdir()] == ["file"]


@pytest.mark.parametrize("name", FOLLOWING)
def test_files_of_others_beside_it_stay(name, folder):
    others = [folder / f"{name}{end}" for end in ("-unfinished", ".part", "~", ".tmp")]
    others += [folder / f".{name}.{os.getpid()}.part", folder / "4.checkpoint-unfinished"]
    for other in others:
        other.write_text("mine")
    FOLLOWING[name](folder / name)
    with Checkpoints(folder, {}).alone():
        assert {other.read_text() for other in others} == {"mine"}
    assert sorted(folder.iterdir()) == sorted([*others, folder / name])


@pytest.mark.parametrize("length", [1, 100, 240, 245, 254, 255])
@pytest.mark.parametrize("write", [saved, kept, text])
def test_a_name_may_be_as_long_as_names_can_be(write, length, folder):
    write(folder / ("a" * length))
    assert [len(path.name) for path in folder.iterdir()] == [length]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_permissions_that_the_umask_leaves(mask, folder):
    before = os.umask(mask)
    try:
        saved(folder / "a")
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "a").stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize("path", ["a\0b", "\0", "folder\0/a", "\ud800", "a/\udfff.gpzoo"])
def test_a_path_that_cannot_be_is_refused_by_name(path, folder):
    svi = SVI(gp_regression, InducingGuide(gp_regression, kmeans(2)), optax.adam(0.1), GaussianProcessELBO())
    calls = {
        "path": [saved, lambda path: load(path, model), lambda path: report(KEY, TRAINED, np.ones((3, 1)), path=path)],
        "checkpoint": [lambda path: fit(KEY, svi, 1, np.ones((3, 1)), np.ones(3), checkpoint=path)],
    }
    for name, entry_points in calls.items():
        for call in entry_points:
            with pytest.raises(ValueError, match=f"^{name} must be the path of .*{re.escape(repr(path))}"):
                call(path)


@pytest.mark.parametrize("threads", [2, 7, 40])
def test_threads_may_save_one_path(threads, folder):
    saving_one_path(folder / "model", range(threads), 5)


@pytest.mark.slow
def test_processes_and_threads_may_save_one_path(folder):
    path = folder / "model"
    script = "import sys; from tests.inference.test_files import Path, saving_one_path;"
    script += "saving_one_path(Path(sys.argv[1]), range(int(sys.argv[2]), int(sys.argv[2]) + 5), 50)"
    commands = [[sys.executable, "-c", script, str(path), str(5 * k)] for k in range(8)]
    running = [subprocess.Popen(command, cwd=Path(__file__).parents[2]) for command in commands]
    assert [process.wait() for process in running] == [0] * 8
    assert [file.name for file in folder.iterdir()] == ["model"]


def saving_one_path(path, values, times):
    """Let each thread save a model of its own value, and load what is there, which is always whole."""

    def save_and_load(value):
        for _ in range(times):
            Trained(model, None, {"a": np.full(1000, value, np.float32)}).save(path)
            found = load(path, model, guide=InducingGuide(model, kmeans(2))).params["a"]
            assert len(set(np.asarray(found).tolist())) == 1

    with ThreadPoolExecutor(len(values)) as threads:
        list(threads.map(save_and_load, values))


def test_a_report_is_refused_before_it_is_made(folder):
    pipe(folder / "report.html")
    with pytest.raises(OSError, match="a pipe, and only a regular file"):
        report(KEY, TRAINED, np.ones((3, 1)), path=folder / "report.html")
    assert stat.S_ISFIFO((folder / "report.html").lstat().st_mode)
