"""Checkpoints: a training that was stopped, by whatever, ends with the bits of one that was not."""

import errno
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.infer import SVI

from gpzoo import draws
from gpzoo._checks import positional
from gpzoo.inducing.variables import InducingPoints
from gpzoo.inference import CheckpointError, GaussianProcessELBO, InducingGuide, fit
from gpzoo.inference.programs import files as _files
from gpzoo.inference.training import fit as training
from gpzoo.inference.training.checkpoints import Checkpoints
from gpzoo.inference.training.state import TrainState
from gpzoo.kernels import RBF
from gpzoo.processes.process import GaussianProcess
from tests.conftest import ROOT
from tests.programs import adam, bayesian_regression, positive, sine, with_model_kwargs

KEY = random.key(0)
X, y = map(np.asarray, sine(12))


def drawn(X, y=None, *, num_data=None, df=4.0):
    """A program whose bound is estimated from draws, so that keys matter too."""
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, numpyro.param("lengthscale", jnp.array(1.0))), X))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", dist.StudentT(df, draws(f), 0.1), obs=y)


def constant(X, y=None, *, num_data=None, df=4.0):
    """The same of a constant function, which is compiled in a fraction of the time."""
    f = numpyro.sample("f", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", dist.StudentT(df, f + jnp.zeros(len(X)), 0.1), obs=y)


def around(X, y=None, **kwargs):
    numpyro.sample("f", dist.Normal(numpyro.param("f_mean", jnp.array(0.0)), positive("f_scale", 1.0)))


def train(steps, directory=None, *, key=KEY, data=(X, y), batch_size=5, svi=None, **kwargs):
    svi = svi or SVI(constant, around, adam(0.02), GaussianProcessELBO())
    kwargs |= {"checkpoint": directory}
    return fit(key, svi, steps, *data, batch_size=batch_size, progress=False, **with_model_kwargs(kwargs))


def assert_same(one, two):
    np.testing.assert_array_equal(one.losses, two.losses)
    assert set(one.params) == set(two.params)
    for name, value in one.params.items():
        np.testing.assert_array_equal(value, two.params[name], err_msg=name)


@pytest.fixture(scope="module")
def whole():
    return train(30)


def sparse(inducing=3, **options):
    guide = InducingGuide(drawn, InducingPoints(X[:inducing]), **options)
    return SVI(drawn, guide, adam(0.02), GaussianProcessELBO())


#: With GPZOO_STRESS=1 every case that is generated is run, a tenth of them otherwise.
STRESS = os.environ.get("GPZOO_STRESS") == "1"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A folder with the checkpoints of seven and twelve steps, and the state after twelve."""
    directory = tmp_path_factory.mktemp("checkpoints") / "run"
    train(7, directory)
    return directory, train(12, directory).state


def copy(directory, target):
    return Path(shutil.copytree(directory, target / "copy"))


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def restored(directory, template):
    """What the files give by themselves, and the warnings."""
    settings = json.loads((directory / "settings").read_text())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = Checkpoints(directory, settings).restore(template)
    leaves = jax.tree.leaves((found.step, found.seconds, found.losses, found.numpyro_state._replace(rng_key=None)))
    key = random.key_data(found.numpyro_state.rng_key)
    return [np.asarray(x).tobytes() for x in [*leaves, key]], [str(warning.message) for warning in said]


@pytest.fixture(scope="module")
def plain(stopped, tmp_path_factory):
    """The same folder with the settings beside, to be restored without a training; and what its steps hold."""
    directory, template = stopped
    directory = copy(directory, tmp_path_factory.mktemp("plain"))
    description = json.loads((directory / "12.checkpoint").read_bytes().splitlines()[1])
    (directory / "settings").write_text(json.dumps(description["settings"]))
    newest, _ = restored(directory, template)
    older = copy(directory, tmp_path_factory.mktemp("older"))
    (older / "12.checkpoint").unlink()
    return directory, template, newest, restored(older, template)[0]


# -- what is kept --------------------------------------------------------------------------------------------------


def test_stopped_and_resumed_is_uninterrupted_bit_for_bit(whole, stopped, tmp_path):
    directory = copy(stopped[0], tmp_path)
    resumed = train(30, directory)
    assert_same(resumed, whole)
    # The end is kept too: nothing is left to do.
    again = train(30, directory)
    assert_same(again, whole)
    assert again.seconds >= resumed.seconds > 0
    with pytest.raises(
        ValueError, match=r"num_steps is 29, but the checkpoint in .*copy is already at step 30. Ask for"
    ):
        train(29, directory)


@pytest.mark.slow
def test_a_sparse_gp_that_was_stopped_is_the_uninterrupted_one(tmp_path):
    train(7, tmp_path, svi=sparse())
    assert_same(train(20, tmp_path, svi=sparse()), train(20, svi=sparse()))
    with pytest.raises(CheckpointError, match=r"\['f_scale'\] is .*4, 4.*3, 3"):
        train(20, tmp_path, svi=sparse(inducing=4))


def test_checkpoints_are_written_on_the_way_and_two_are_kept(whole, tmp_path, monkeypatch):
    steps = []
    save = Checkpoints.save
    monkeypatch.setattr(Checkpoints, "save", lambda self, state: (steps.append(state.step), save(self, state))[1])
    result = train(30, tmp_path, checkpoint_seconds=0.0)
    assert_same(result, whole)
    assert len(steps) > 2 and steps[-1] == 30
    assert names(tmp_path) == sorted(f"{step}.checkpoint" for step in sorted(set(steps))[-2:])


@pytest.mark.slow
def test_the_first_checkpoint_comes_within_thirty_seconds(tmp_path, monkeypatch):
    now, saved = [0.0], []

    def clock():
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr(Checkpoints, "save", lambda self, *x: saved.append(now[0]) or True)
    train(100, tmp_path)
    first, second, *_ = saved
    assert 10 < first < 30 and 180 <= second - first < 190


@pytest.mark.slow
def test_keys_of_both_kinds_are_kept(tmp_path):
    old = jax.random.PRNGKey(3)
    train(2, tmp_path, key=old)
    resumed = train(4, tmp_path, key=old)
    assert resumed.state.rng_key.dtype == jnp.uint32
    assert_same(resumed, train(4, key=old))


def test_every_type_and_shape_comes_back(tmp_path):
    state = {
        "half": jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3),
        "empty": jnp.zeros((0, 3)),
        "flag": jnp.array(True),
        "turned": np.arange(6, dtype=np.int32).reshape(2, 3).T,
        "keys": random.split(random.key(1), 2),
        "quick": random.key(0, impl="rbg"),
        'a "name"\n': jnp.float32(np.nan),
    }
    settings = {"nan": float("nan"), "text": "ä"}
    assert Checkpoints(tmp_path, settings).save(TrainState(state, 3, np.full((1, 3), np.nan), 1.5))
    found = Checkpoints(tmp_path, settings).restore(state)
    assert (found.step, found.seconds, found.losses.shape, found.failed) == (3, 1.5, (1, 3), {0: 0})
    for name, x in state.items():
        assert found.numpyro_state[name].dtype == x.dtype and found.numpyro_state[name].shape == x.shape, name
        plain = random.key_data if name in ("keys", "quick") else np.asarray
        assert np.asarray(plain(found.numpyro_state[name])).tobytes() == np.asarray(plain(x)).tobytes(), name
    with pytest.raises(CheckpointError, match=r"state\['flag'\] is not given"):
        Checkpoints(tmp_path, settings).restore({k: x for k, x in state.items() if k != "flag"})


# -- another training ----------------------------------------------------------------------------------------------


def swapped(x):
    return np.asarray(x)[[1, 0, *range(2, len(x))]]


OTHERS = {
    "key": ({"key": random.key(1)}, "rng_key"),
    "rows": ({"batch_size": 4}, "batch_size"),
    "shape": ({"data": (X[:11], y[:11])}, "argument X"),
    "swapped rows": ({"data": (swapped(X), y)}, "argument X sha256"),
    "swapped labels": ({"data": (X, swapped(y))}, "argument y sha256"),
    "one more, one less": ({"data": (X, y + 0.5 * np.eye(12)[0] - 0.5 * np.eye(12)[1])}, "argument y sha256"),
    "keyword": ({"df": 5.0}, "argument df"),
    "array": ({"df": jnp.array(5.0)}, "argument df"),
}


@pytest.mark.slow_but(name=["key", "swapped rows", "one more, one less", "array"])
@pytest.mark.parametrize("name", OTHERS)
def test_a_checkpoint_of_another_training_is_refused(name, stopped):
    changes, message = OTHERS[name]
    with pytest.raises(CheckpointError, match=message) as caught:
        train(30, stopped[0], **changes)
    assert str(stopped[0]) in str(caught.value)


def test_other_values_of_a_keyword_array_are_refused(tmp_path):
    train(1, tmp_path, df=jnp.asarray([4.0, 5.0] * 6), batch_size=None)
    with pytest.raises(CheckpointError, match="training: argument df sha256 is"):
        train(2, tmp_path, df=jnp.asarray([5.0, 4.0] * 6), batch_size=None)


def test_other_initial_values_are_refused(tmp_path):
    """A training that went on from the old ones would look like one from the new ones."""
    guide = InducingGuide(bayesian_regression, InducingPoints(X[:3]))
    svi = SVI(bayesian_regression, guide, adam(0.01), GaussianProcessELBO())
    start = {"f_mean": np.zeros(3)}

    def of(steps, init_params):
        return fit(random.key(0), svi, steps, X, y, checkpoint=tmp_path, init_params=init_params, progress=False)

    of(1, start)
    assert len(of(2, {"f_mean": jnp.zeros(3)}).losses) == 2
    for other in ({"f_mean": np.array([0, 0, 1e-9])}, None, start | {"lengthscale": 0.5}):
        with pytest.raises(CheckpointError, match=r"init_params\['(f_mean|lengthscale)'\]"):
            of(3, other)


CHOICES = {
    "tuple": ((0, 1), (1, 0)),
    "tuples": ((0, (1, "a")), (0, (1, "b"))),
    "number": (np.float32(4.0), np.float32(5.0)),
    "function of JAX": (jnp.exp, jnp.tanh),
    "function": (swapped, sparse),
    "class": (dict, list),
    "options": ({"noise": 0.3, "of": ["a"]}, {"noise": 0.3, "of": ["b"]}),
    "partial": (partial(swapped, a=1), partial(swapped, a=2)),
    "partial of numbers": (partial(max, 1.0), partial(max, 2.0)),
}


@pytest.mark.slow_but(kind=["options", "partial"])
@pytest.mark.parametrize("kind", CHOICES)
def test_keyword_arguments_that_are_no_arrays_belong_to_a_training(kind, tmp_path):
    """Tuples, NumPy's numbers, functions and classes."""

    def program(X, y=None, *, num_data=None, choice=None):
        constant(X, y, num_data=num_data)

    def go(steps, choice):
        svi = SVI(program, lambda X, y=None, **kwargs: around(X), adam(0.02), GaussianProcessELBO())
        options = {"checkpoint": tmp_path, "progress": False, "model_kwargs": {"choice": choice}}
        return fit(KEY, svi, steps, X, y, **options)

    one, other = CHOICES[kind]
    go(1, one)
    with pytest.raises(CheckpointError, match="argument choice"):
        go(2, other)
    assert len(go(2, one).losses) == 2


def test_arguments_without_names_have_numbers():
    assert positional(lambda a, *rest, b=1: None, 3)[0] == ["a", "args[1]", "args[2]"]
    assert positional(print, 1)[0] == ["args[0]"]
    assert positional(dict, 1)[0] == ["args[0]"]


# -- damage --------------------------------------------------------------------------------------------------------


def flips(directory, number):
    """So many bits, spread over every file."""
    paths, rng = sorted(directory.glob("*.checkpoint")), np.random.default_rng(0)
    sizes = [8 * path.stat().st_size for path in paths]
    spread = np.linspace(0, sum(sizes), number, endpoint=False) + rng.uniform(0, sum(sizes) / number, number)
    for bit in spread.astype(int).tolist():
        which = int(np.searchsorted(np.cumsum(sizes), bit, side="right"))
        yield paths[which].name, bit - sum(sizes[:which])


def test_no_flipped_bit_is_silent(plain, tmp_path):
    directory, template, newest, older = plain
    counts = {"harmless": 0, "named": 0}
    work = copy(directory, tmp_path)
    for name, bit in flips(directory, 300 if STRESS else 30):
        flip(work / name, bit)
        content, said = restored(work, template)
        if said:
            assert name == "12.checkpoint" and len(said) == 1 and f"Damaged in {work}: {name}: " in said[0]
            assert said[0].endswith("damaged. Training goes on from step 7 instead.")
        # The older file is not needed while the newest is whole.
        assert content == (older if said else newest)
        assert bool(said) == (name == "12.checkpoint")
        counts["named" if said else "harmless"] += 1
        # The same flip where there is no other checkpoint.
        other = ({"7.checkpoint", "12.checkpoint"} - {name}).pop()
        (work / other).unlink()
        with pytest.raises(CheckpointError, match=rf"can be used: {name}: .* damaged\. Put back a copy, or delete"):
            restored(work, template)
        for path in directory.iterdir():
            shutil.copy(path, work)
    print(counts)
    assert min(counts.values()) > 10


DAMAGE = {
    "emptied": lambda path: path.write_bytes(b""),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "other bytes": lambda path: path.write_bytes(b"not a checkpoint\n[]\n"),
    "cut": lambda path: os.truncate(path, path.stat().st_size - 1),
    "cut in the middle": lambda path: os.truncate(path, path.read_bytes().index(b"\n", 65) + 1),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "renamed": lambda path: path.rename(path.with_name("20.checkpoint")),
    "unnamed": lambda path: path.rename(path.with_name("best.checkpoint")),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_files_that_were_tampered_with_are_named(name, plain, tmp_path):
    directory, template, _, older = plain
    work = copy(directory, tmp_path)
    DAMAGE[name](work / "12.checkpoint")
    content, said = restored(work, template)
    assert content == older
    # A file that is not named after a step stands behind all that are.
    assert not said if name == "unnamed" else len(said) == 1
    (work / "7.checkpoint").unlink()
    with pytest.raises(CheckpointError, match=r"(12|20|best)\.checkpoint"):
        restored(work, template)


def test_training_goes_on_from_the_older_checkpoint_and_replaces_the_damaged(whole, stopped, tmp_path):
    directory = copy(stopped[0], tmp_path)
    os.truncate(directory / "12.checkpoint", 100)
    with pytest.warns(RuntimeWarning, match=r"Damaged in .*copy: 12.checkpoint: .*goes on from step 7 instead"):
        resumed = train(11, directory)
    assert names(directory) == ["11.checkpoint", "7.checkpoint"]
    np.testing.assert_array_equal(resumed.losses, whole.losses[:11])
    assert_same(train(30, directory), whole)


# -- folders and disks that cannot be used -------------------------------------------------------------------------


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"Cannot use .*file/run for checkpoints"):
        train(3, tmp_path / "file" / "run")


def test_what_names_no_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for checkpoint in ("", "  "):
        with pytest.raises(
            ValueError, match=r"checkpoint must be the path of a folder, got '.*'; the current one is '\.'"
        ):
            train(3, checkpoint)
    with pytest.raises(TypeError, match="checkpoint must be the path of a folder, or None for none; got 3"):
        train(3, 3)
    assert names(tmp_path) == []


@contextmanager
def files_up_to(size):
    """A disk that is full once a file has so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.slow
def test_a_disk_filled_during_a_write_costs_nothing_but_the_checkpoint(whole, stopped, tmp_path, monkeypatch):
    directory, save = copy(stopped[0], tmp_path), Checkpoints.save

    def full(self, *args):
        with files_up_to(1000):
            return save(self, *args)

    monkeypatch.setattr(Checkpoints, "save", full)
    with pytest.warns(
        RuntimeWarning, match=r"No checkpoint was written .* at step 30: .*File too large.* goes on"
    ) as said:
        result = train(30, directory)
    assert len(said) == 1
    assert_same(result, whole)
    assert names(directory) == ["12.checkpoint", "7.checkpoint"]
    monkeypatch.undo()
    assert_same(train(30, directory), whole)


@pytest.mark.parametrize("stage", ["open", "fsync", "replace"])
def test_a_write_that_fails_at_any_stage_leaves_what_was_there(stage, plain, tmp_path, monkeypatch):
    directory, template, newest, _ = plain
    work = copy(directory, tmp_path)
    keeper = Checkpoints(work, json.loads((work / "settings").read_text()))
    found = keeper.restore(template)

    def fail(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(*((_files, "open", fail, False) if stage == "open" else (os, stage, fail)))
        with pytest.warns(RuntimeWarning, match="No checkpoint was written .* at step 13: .*No space left on device"):
            assert not keeper.save(found._replace(step=13))
    assert names(work) == names(directory) and restored(work, template) == (newest, [])
    assert keeper.save(found._replace(step=13))
    assert names(work) == ["12.checkpoint", "13.checkpoint", "settings"]


def test_what_a_killed_write_left_is_swept(plain, tmp_path, monkeypatch):
    directory, template, newest, _ = plain
    work = copy(directory, tmp_path)
    with monkeypatch.context() as killed, pytest.warns(RuntimeWarning, match="No checkpoint was written"):
        killed.setattr(os, "replace", Mock(side_effect=OSError))
        killed.setattr(Path, "unlink", lambda *args, **kwargs: None)
        assert not Checkpoints(work, {}).save(TrainState({}, 13, np.zeros((1, 13))))
    assert len(names(work)) == len(names(directory)) + 1
    with Checkpoints(work, {}).alone():
        assert restored(work, template) == (newest, [])
    assert names(work) == names(directory)


def test_a_training_that_went_back_has_no_later_checkpoint(tmp_path):
    keeper = Checkpoints(tmp_path, {})
    for step in (5, 10, 15, 12):
        assert keeper.save(TrainState({}, step, np.zeros((1, step))))
    assert names(tmp_path) == ["10.checkpoint", "12.checkpoint"]
    assert Checkpoints(tmp_path, {}).restore({}).step == 12


def test_a_folder_that_is_gone_is_made_again(tmp_path):
    keeper = Checkpoints(tmp_path / "run", {})
    shutil.rmtree(tmp_path / "run")
    assert keeper.save(TrainState({}, 1, np.zeros((1, 1))))


@pytest.mark.slow
def test_an_interrupt_says_when_no_checkpoint_could_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(Checkpoints, "save", lambda self, *args: False)
    with pytest.raises(KeyboardInterrupt, match="its last steps could not be written to a checkpoint"):
        train(30, tmp_path, callback=lambda *now: os.kill(os.getpid(), signal.SIGINT), callback_steps=5)


# -- signals and kills ---------------------------------------------------------------------------------------------


HERE_TOO = """
import sys
sys.path.insert(0, {root!r})
import jax, tests.conftest
# What is compiled for the other tests is not compiled again.
jax.config.update("jax_compilation_cache_dir", {cache!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
"""
SCRIPT = f"""{HERE_TOO}
from tests.inference.training.test_checkpoints import train, training
# Most of the time goes to writing.
training._CHUNK_SECONDS = 0.001
train(int(sys.argv[1]), sys.argv[2], checkpoint_seconds=0.0)
"""


def filled(script):
    return script.format(root=str(ROOT), cache=jax.config.jax_compilation_cache_dir)


@contextmanager
def running(directory):
    """A process that trains and writes checkpoints all the time, once it has written a new one."""
    command = [sys.executable, "-W", "ignore", "-c", filled(SCRIPT), "10000000", str(directory)]
    before = set(directory.glob("*.checkpoint"))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            written, deadline = set(), time.monotonic() + 120
            while not written and process.poll() is None and time.monotonic() < deadline:
                written = set(directory.glob("*.checkpoint")) - before
                time.sleep(0.02)
            assert written, process.stderr.read() if process.poll() is not None else "no checkpoint in time"
            yield process
        finally:
            process.kill()


def newest(directory):
    return max(int(path.stem) for path in directory.glob("*.checkpoint"))


@pytest.mark.slow
def test_a_signal_writes_a_checkpoint_and_ends_the_process(whole, tmp_path):
    with running(tmp_path / "run") as process:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 143, errors
    steps = newest(tmp_path / "run")
    # What was written is where a training that nobody stopped would be.
    resumed = train(steps + 3, tmp_path / "run")
    first = min(steps, 30)
    assert len(resumed.losses) == steps + 3
    np.testing.assert_array_equal(resumed.losses[:first], whole.losses[:first])


def test_an_interrupt_writes_a_checkpoint_and_ends_the_training(whole, tmp_path):
    with pytest.raises(KeyboardInterrupt, match=f"its checkpoint is written to {re.escape(str(tmp_path))},"):
        train(10**7, tmp_path, callback=lambda *now: os.kill(os.getpid(), signal.SIGINT), callback_steps=5)
    steps = newest(tmp_path)
    assert steps < 30
    assert_same(train(30, tmp_path), whole)


@pytest.mark.stress
@pytest.mark.skipif(not STRESS, reason="GPZOO_STRESS=1 runs it")
def test_kills_at_random_moments_change_nothing(tmp_path):
    rng, directory, unfinished = np.random.default_rng(0), tmp_path / "run", 0
    for _ in range(30):
        with running(directory) as process:
            time.sleep(rng.uniform(0, 0.5))
            process.kill()
            process.wait()
        unfinished += any(path.suffix == ".checkpoint-unfinished" for path in directory.iterdir())
    steps = newest(directory) + 10
    resumed = train(steps, directory)
    assert len(names(directory)) == 2 and all(name.endswith(".checkpoint") for name in names(directory))
    assert_same(resumed, train(steps))
    print(f"{steps} steps; {unfinished} of 30 kills came during a write")
    assert unfinished


# -- two trainings, one folder -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_second_training_into_the_folder_of_a_running_one_is_refused_and_takes_nothing(tmp_path):
    whole, refusals = train(12), []

    def at_the_same_time(step, seconds, params):
        for other in ({"data": (X, y + 1.0)}, {}):
            with pytest.raises(CheckpointError, match=f"Another training runs with its checkpoints in {tmp_path}"):
                train(3, tmp_path, **other)
            refusals.append(names(tmp_path))

    options = {"callback": at_the_same_time, "callback_steps": 5, "checkpoint_seconds": 0.0}
    assert_same(train(12, tmp_path, **options), whole)
    assert len(refusals) == 6 and refusals[-1]  # the first come before any checkpoint
    assert names(tmp_path) == ["10.checkpoint", "12.checkpoint"]
    assert_same(train(12, tmp_path), whole)


@pytest.mark.slow
def test_a_killed_process_holds_no_folder(tmp_path):
    hold = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX); print(); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", hold, str(tmp_path)], **pipes) as other:
        other.stdout.readline()
        with pytest.raises(CheckpointError, match=f"Another training runs .* in {tmp_path}"):
            train(3, tmp_path)
        other.kill()
        other.wait()
    assert_same(train(3, tmp_path), train(3))


def test_of_several_processes_only_the_one_that_writes_holds_the_folder(tmp_path):
    other = SimpleNamespace(first=False, agreed=lambda *numbers: numbers)  # process
    with Checkpoints(tmp_path, {}).alone(), Checkpoints(tmp_path, {}, other).alone():
        with pytest.raises(CheckpointError, match="use another folder"), Checkpoints(tmp_path, {}).alone():
            pass


@pytest.mark.slow
def test_folders_that_cannot_be_locked_are_used_all_the_same(tmp_path, monkeypatch):
    import fcntl

    def unsupported(*args):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    assert_same(train(3, tmp_path), train(3))
