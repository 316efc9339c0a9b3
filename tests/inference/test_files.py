"""Files that are written in one step replace regular files and what links lead to, and nothing else."""

import os
import socket
import stat
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from gpzoo.errors import CheckpointError
from gpzoo.inference import Trained, report
from gpzoo.inference.programs import files as _files
from gpzoo.inference.training.checkpoints import Checkpoints
from gpzoo.reproductions.kept import write_json
from tests.programs import KEY


def model(X, y=None):
    pass


def saved(path):
    Trained(model, None, {"a": jnp.ones(2)}).save(path)


def kept(path):
    write_json(path, {"a": 1})


def as_checkpoint(path):
    assert Checkpoints(path.parent, {}).save(int(path.stem), 0.0, np.zeros((1, 3)), {})


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
            assert not Checkpoints(folder, {}).save(3, 0.0, np.zeros((1, 3)), {})
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


def test_a_pipe_in_place_of_the_unfinished_file_is_not_waited_for(folder):
    pipe(folder / "a-unfinished")
    saved(folder / "a")
    assert (folder / "a").is_file() and not (folder / "a-unfinished").exists()


def test_a_report_is_refused_before_it_is_made(folder):
    pipe(folder / "report.html")
    with pytest.raises(OSError, match="a pipe, and only a regular file"):
        report(KEY, Trained(model, None, {}), np.ones((3, 1)), path=folder / "report.html")
    assert stat.S_ISFIFO((folder / "report.html").lstat().st_mode)
