"""Training on several devices and in several processes: the numbers of one device, what is exchanged, what is refused.

What needs several devices runs in processes of its own, since a process counts its devices once.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from jax import random
from numpyro.infer import SVI

from gpzoo.inference import CollapsedELBO, GaussianProcessELBO, all_devices, fit
from gpzoo.tables.arrays import ArrayTable
from gpzoo.tables.minibatches import Minibatches
from tests.conftest import ROOT
from tests.inference.training import on_devices
from tests.inference.training.on_devices import PROGRAMS, differences, flat
from tests.programs import adam, around_constant, constant, sine

KEY = random.key(0)
X, Y = sine(16)
SCRIPT = str(Path(on_devices.__file__))
STRESS = os.environ.get("GPZOO_STRESS") == "1"
#: Largest differences of the bound, relative, and of parameters after 100 steps.
CLOSE = {"float64": (1e-8, 1e-8), "float32": (1e-5, 1e-3)}
#: One device differs from itself by 2e-5 where the same program is compiled with other optimisations.
ROUNDING = {("deep kernel", "float32"): 10}

stress = pytest.mark.skipif(not STRESS, reason="GPZOO_STRESS=1 runs it")


def running(out, *options, devices=1, processes=1, **environment):
    """The script ``on_devices`` in processes with so many devices each; ``out`` takes its results."""
    out.mkdir(exist_ok=True)
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    launcher = ["-m", "gpzoo.inference.launch", "--processes", str(processes)] if processes > 1 else []
    command = [sys.executable, *launcher, SCRIPT, str(out), *map(str, options)]
    kept = {
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    environment = os.environ | kept | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)} | environment
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def ended(process, seconds=300):
    """What a process wrote to stderr and its status."""
    _, said = process.communicate(timeout=seconds)
    return said, process.returncode


def trained(out, *options, **how):
    said, status = ended(running(out, *options, **how))
    assert status == 0, said
    return {path.stem: dict(np.load(path)) for path in sorted(out.glob("*.npz"))}


def assert_close(one, two, precision="float64"):
    assert one.keys() == two.keys()
    for name in one:
        bound, params = differences(one[name], two[name])
        factor = ROUNDING.get((name.rpartition(" ")[0], precision), 1)
        assert bound < factor * CLOSE[precision][0] and params < CLOSE[precision][1], (name, bound, params)
        print(f"{name}, {precision}: bound {bound:.1e}, parameters {params:.1e}")


# -- several devices -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_eight(tmp_path_factory):
    """Sparse regression on eight devices, resident and from a table, with checkpoints and what a step exchanges."""
    out = tmp_path_factory.mktemp("eight")
    options = "--programs", "sparse", "--ways", "resident", "table", "--steps", 100
    return out, trained(out, *options, "--checkpoint", out / "runs", "--bytes", devices=8)


@pytest.mark.slow
def test_devices_exchange_gradients_and_the_bound_once_a_step(on_eight):
    found = json.loads((on_eight[0] / "bytes.json").read_text())
    assert found["exchanged"] == {"all-reduce": {"times": 1, "bytes": found["formula"]}}
    M, d = 10, 3
    numbers = (M * d + d + M + M * M + 1 + 1) + M * M + 1 + (M + 1)
    assert found["formula"] == 8 * numbers


@pytest.mark.slow
@pytest.mark.parametrize("way", ["resident", "table"])
def test_eight_devices_give_the_numbers_of_one_which_goes_on_from_their_checkpoint(on_eight, way):
    out, found = on_eight
    more = on_devices.train("sparse", None, way=way, steps=110, checkpoint=out / "runs" / f"sparse {way}")
    np.testing.assert_array_equal(more.losses[:100], found[f"sparse {way}"]["losses"])
    alone = on_devices.train("sparse", None, way=way, steps=110)
    assert_close({way: flat(alone)}, {way: flat(more)})


# -- one device, and what is refused -------------------------------------------------------------------------------


def short(mesh, *data, steps=3, **options):
    svi = SVI(constant, around_constant, adam(0.1), GaussianProcessELBO())
    return fit(KEY, svi, steps, *(data or (X, Y)), mesh=mesh, progress=False, **options)


@pytest.mark.slow
def test_a_mesh_of_one_device_changes_nothing(tmp_path):
    mesh = all_devices()
    one, two = short(mesh, batch_size=4), short(None, batch_size=4)
    np.testing.assert_array_equal(one.losses, two.losses)
    short(jax.make_mesh((1,), ("anything",)), batch_size=4, checkpoint=tmp_path)
    short(None, batch_size=4, checkpoint=tmp_path, steps=5)


def test_what_no_mesh_can_do_is_refused():
    mesh = all_devices()
    with pytest.raises(TypeError, match=re.escape("must be a jax.sharding.Mesh")):
        short(8)
    with pytest.raises(ValueError, match=r"must have one axis, .*'b': 1"):
        short(jax.make_mesh((1, 1), ("a", "b")))
    with pytest.raises(ValueError, match="with 2 keys call fit for each"):
        svi = SVI(constant, around_constant, adam(0.1), GaussianProcessELBO())
        fit(random.split(KEY), svi, 3, X, Y, in_axes=None, mesh=mesh, progress=False)
    with pytest.raises(ValueError, match="with CollapsedELBO leave it out"):
        fit(KEY, SVI(constant, around_constant, adam(0.1), CollapsedELBO()), 3, X, Y, mesh=mesh, progress=False)


def test_parts_of_minibatches_are_those_of_the_whole():
    table = ArrayTable(np.arange(97), block_size=8)
    with Minibatches(table, 10, 3, window=24) as whole:
        expected = whole.take(5, 20)[0]
    assert all(len(np.unique(epoch)) == 90 for epoch in (expected[4:13].ravel(), whole_epoch(table)))
    for part in (slice(0, 3), slice(3, 10)):
        with Minibatches(table, 10, 3, window=24, part=part) as own:
            np.testing.assert_array_equal(own.take(5, 20)[0], expected[:, part])
            assert own.take(0, 2)[0].shape == (2, part.stop - part.start)
    with pytest.raises(ValueError, match="one or more of the 10 rows"):
        Minibatches(table, 10, 3, part=slice(4, 4))


def whole_epoch(table):
    # Minibatches larger than a window, whose places several windows share.
    with Minibatches(table, 45, 3, window=8) as drawn:
        return drawn.take(2, 2)[0].ravel()


def test_a_part_reads_the_blocks_in_which_its_rows_are():
    class Counted(ArrayTable):
        def stored(self, block):
            read.append(block)
            return super().stored(block)

    table, read = Counted(np.arange(20_000), block_size=100), []
    for part, most in ((slice(None), 200), (slice(0, 500), 112), (slice(750, 1000), 62)):
        read.clear()
        with Minibatches(table, 1000, 0, window=5000, read_ahead=0, part=part) as drawn:
            drawn.take(0, 20)
        assert len(read) <= most, part


# -- every program, processes, and deaths --------------------------------------------------------------------------


@pytest.mark.stress
@stress
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_devices_and_processes_give_the_numbers_of_one_device(precision, tmp_path):
    options = "--ways", "resident", "table", "--precision", precision
    alone = trained(tmp_path / "alone", *options, "--alone")
    assert len(alone) == 2 * len(PROGRAMS)
    for devices in (1, 2, 4, 8):
        print(f"{devices} devices")
        assert_close(alone, trained(tmp_path / str(devices), *options, devices=devices), precision)
    print("2 processes")
    assert_close(alone, trained(tmp_path / "processes", *options, processes=2), precision)


@pytest.mark.stress
@stress
def test_a_batch_of_all_rows_is_split_though_devices_do_not_divide_it(tmp_path):
    options = "--ways", "all"
    alone = trained(tmp_path / "alone", *options, "--alone")
    assert_close(alone, trained(tmp_path / "devices", *options, devices=8))


@pytest.mark.stress
@stress
def test_programs_kept_by_other_devices_and_processes_are_not_taken(tmp_path):
    options, kept = ("--programs", "sparse", "deep"), {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "kept")}
    alone = trained(tmp_path / "alone", *options, "--alone")
    for _ in range(2):
        for devices, processes in ((1, 1), (8, 1), (4, 2), (1, 2)):
            out = tmp_path / f"{devices} {processes}"
            assert_close(alone, trained(out, *options, devices=devices, processes=processes, **kept))


@pytest.mark.stress
@stress
@pytest.mark.parametrize("way", ["killed", "raising"])
def test_a_process_that_dies_ends_the_others_and_the_job_goes_on_elsewhere(way, tmp_path):
    options = "--programs", "sparse", "--ways", "table", "--checkpoint", tmp_path / "run"
    process = running(tmp_path / "out", *options, "--die", 1, 50, "--how", way, devices=2, processes=2)
    said, status = ended(process)
    died = float((tmp_path / "out" / "died").read_text())
    seconds = time.time() - died
    print(f"{way}: ended {seconds:.1f} s after the death of a process")
    assert status == 1 and seconds < 60
    how = "was killed by SIGKILL" if way == "killed" else "ended with status 1"
    assert said.count(f"Process 1 of 2 {how}, so the others are ended") == 1
    alone = trained(tmp_path / "alone", *options[:4], "--alone")
    for devices, processes in ((8, 1),):
        assert_close(alone, trained(tmp_path / "out", *options, devices=devices, processes=processes))


@pytest.mark.stress
@stress
def test_a_signal_to_the_launcher_leaves_a_checkpoint(tmp_path):
    run = tmp_path / "run"
    options = "--programs", "sparse", "--ways", "resident", "--checkpoint", run
    process = running(tmp_path / "out", *options, "--steps", 10**6, processes=2)
    until = time.monotonic() + 120
    while not list(run.glob("*/*.checkpoint")) and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    said, status = ended(process)
    assert status == 128 + signal.SIGTERM, said
    steps = max(int(path.stem) for path in run.glob("*/*.checkpoint"))
    print(f"stopped after {steps} steps")
    found = trained(tmp_path / "out", *options, "--steps", steps + 10, devices=4)
    assert len(found["sparse resident"]["losses"]) == steps + 10


@pytest.mark.stress
@stress
def test_processes_with_other_data_are_refused(tmp_path):
    process = running(tmp_path / "out", "--programs", "sparse", "--differ", processes=2)
    said, status = ended(process)
    assert status == 1 and "The processes have different data, keys or initial values" in said
