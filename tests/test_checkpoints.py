"""Checkpoints: a training that was stopped, by whatever, ends with the bits of one that was not."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import orbax.checkpoint as ocp
import pytest
from helpers import adam, regression, sine
from jax import random
from numpyro.infer import SVI

from gpzoo.distributions import GaussianProcess
from gpzoo.inference import CheckpointError, GaussianProcessELBO, InducingGuide, fit
from gpzoo.initialisers import kmeans
from gpzoo.kernels import RBF

KEY = random.key(0)
X, y = sine(12)


def drawn(X, y=None, *, num_data=None, df=4.0):
    """A program whose bound is estimated from draws, so that keys matter too."""
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, numpyro.param("lengthscale", jnp.array(1.0))), X))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", dist.StudentT(df, f, 0.1), obs=y)


def train(steps, directory=None, *, key=KEY, data=(X, y), batch_size=5, num_data=12, inducing=3, **kwargs):
    svi = SVI(drawn, InducingGuide(drawn, kmeans(inducing)), adam(0.02), GaussianProcessELBO())
    extra = {} if num_data is None else {"num_data": num_data}
    return fit(svi, key, steps, *data, batch_size=batch_size, checkpoint=directory, progress=False, **extra, **kwargs)


def assert_same(one, two):
    np.testing.assert_array_equal(one.losses, two.losses)
    assert set(one.params) == set(two.params)
    for name, value in one.params.items():
        np.testing.assert_array_equal(value, two.params[name], err_msg=name)


@pytest.fixture(scope="module")
def whole():
    return train(30)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A directory with the checkpoint of twelve steps."""
    directory = tmp_path_factory.mktemp("checkpoints") / "run"
    assert train(12, directory).losses.shape == (12,)
    return directory


def copy(directory, target):
    import shutil

    return Path(shutil.copytree(directory, target / "copy"))


def test_stopped_and_resumed_is_uninterrupted_bit_for_bit(whole, stopped, tmp_path):
    directory = copy(stopped, tmp_path)
    resumed = train(30, directory)
    assert_same(resumed, whole)
    # The end is kept too: nothing is left to do, whatever fewer steps are asked for.
    again = train(30, directory)
    assert_same(again, whole)
    assert again.seconds >= resumed.seconds > 0
    assert len(train(5, directory).losses) == 30


def test_checkpoints_are_written_on_the_way(whole, tmp_path, monkeypatch):
    steps = []
    save = ocp.CheckpointManager.save
    monkeypatch.setattr(
        ocp.CheckpointManager, "save", lambda self, step, **kw: (steps.append(step), save(self, step, **kw))[1]
    )
    result = train(30, tmp_path, checkpoint_seconds=0.0)
    assert_same(result, whole)
    assert len(steps) > 2 and steps[-1] == 30
    assert [path.name for path in tmp_path.iterdir() if path.name.isdigit()] == ["30"]


OTHERS = {
    "key": ({"key": random.key(1)}, r"rng_key is \[0, 1\] here and \[0, 0\] there"),
    "rows": ({"batch_size": 4}, "batch_size is 4 here and 5 there"),
    "shape": ({"data": (X[:11], y[:11]), "num_data": 11}, r"data is .*float64\[11, 1\].* here and .*float64\[12, 1\]"),
    "numbers": ({"data": (X + 1, y)}, "data sums is"),
    "keyword": ({"df": 5.0}, "argument df is 5.0 here and 'not given' there"),
    "parameters": ({"inducing": 4}, r"state is .*float64\[4, 4\].* here and .*float64\[3, 3\]"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_checkpoint_of_another_training_is_refused(name, stopped):
    changes, message = OTHERS[name]
    with pytest.raises(CheckpointError, match=message) as caught:
        train(30, stopped, **changes)
    assert str(stopped) in str(caught.value)


def test_damaged_files_are_refused(stopped, tmp_path):
    directory = copy(stopped, tmp_path)
    for path in (directory / "12").rglob("*"):
        if path.is_file():
            path.write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match=r"step 12 in .* cannot be read: .*Delete the directory") as caught:
        train(30, directory)
    assert str(directory) in str(caught.value)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"Cannot use .*file/run for checkpoints"):
        train(3, tmp_path / "file" / "run")


def test_a_full_disk_warns_and_training_goes_on(whole, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ocp.CheckpointManager, "save", full)
    with pytest.warns(RuntimeWarning, match=r"No checkpoint was written .* at step 30: .*No space left on device"):
        result = train(30, tmp_path)
    assert_same(result, whole)


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import conftest
from test_checkpoints import train
train(int(sys.argv[1]), sys.argv[2], checkpoint_seconds=0.0)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_writes_a_checkpoint_and_ends_the_process(number, tmp_path):
    script = SCRIPT.format(tests=str(Path(__file__).parent))
    command = [sys.executable, "-W", "ignore", "-c", script, "10000000", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        written, deadline = [], time.monotonic() + 120
        while not written and process.poll() is None and time.monotonic() < deadline:
            written = [path for path in (tmp_path / "run").glob("*") if path.name.isdigit()]
            time.sleep(0.05)
        assert written, process.communicate(timeout=5)[1] if process.poll() is not None else "no checkpoint in time"
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    if number == signal.SIGTERM:
        assert process.returncode == 143, errors
    else:
        assert process.returncode in (130, 1, -signal.SIGINT) and "its checkpoint is written" in errors
    (path,) = [path for path in (tmp_path / "run").iterdir() if path.name.isdigit()]
    steps = int(path.name)
    # What was written is where a training that nobody stopped would be.
    resumed = train(steps + 3, tmp_path / "run")
    first = min(steps, 30)
    assert len(resumed.losses) == steps + 3
    np.testing.assert_array_equal(resumed.losses[:first], train(first).losses)


def test_keys_of_both_kinds_are_kept(tmp_path):
    old = jax.random.PRNGKey(3)
    train(2, tmp_path, key=old)
    resumed = train(4, tmp_path, key=old)
    assert resumed.state.rng_key.dtype == jnp.uint32
    assert_same(resumed, train(4, key=old))


def test_another_optimiser_or_guide_is_refused(tmp_path):
    X, y = sine(12)

    def run(rate, whiten):
        svi = SVI(regression, InducingGuide(regression, kmeans(3), whiten=whiten), adam(rate), GaussianProcessELBO())
        return fit(svi, random.key(0), 2, X, y, checkpoint=tmp_path, progress=False)

    run(0.01, True)
    for rate, whiten in [(0.1, True), (0.01, False)]:
        with pytest.raises(CheckpointError, match=r"program \(model, guide, optimiser, versions\) is"):
            run(rate, whiten)
