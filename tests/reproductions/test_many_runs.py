"""Sweeps: every run in a process of its own, failures kept apart, and nothing left running or run again."""

import json
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from gpzoo.reproductions import cli
from gpzoo.reproductions.execute import execute
from gpzoo.reproductions.experiment import ReproductionError, Run
from gpzoo.reproductions.many_runs import sweep
from tests.conftest import ROOT
from tests.reproductions.test_execute import experiment, outcome

#: Stands for a run: seed 1 fails, the others write a result, and each start adds a line to a file.
CHILD = """
import json, sys
from pathlib import Path
given = dict(zip(sys.argv[4::2], sys.argv[5::2]))
folder = Path(given["--output"])
with open(folder.parent / "starts", "a") as starts:
    starts.write(given["--seed"])
print("Training")
if given["--seed"] == "1":
    sys.exit("no data")
identity = {"paper": sys.argv[2], "experiment": sys.argv[3], "seed": int(given["--seed"])}
identity |= {"metrics": {"error": 0.1 + identity["seed"]}, "seconds_training": 2.0, "stands_in": False, "subset": None}
(folder / "result.json").write_text(json.dumps(identity | {n: given["--" + n] for n in ("variant", "preset")}))
"""


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_failure_stops_no_other_run_and_what_has_a_result_is_not_run_again(workers, monkeypatch, tmp_path):
    monkeypatch.setattr(cli, "sweep", partial(sweep, command=[sys.executable, "-c", CHILD]))
    monkeypatch.setattr(
        cli, "all_experiments", lambda own=(): (experiment(), experiment(name="rounds", presets=("paper",)))
    )
    given = ["sweep", "toy", "--seeds", "7,0-1", "--workers", workers, "--output", str(tmp_path)]
    runs = [(variant, seed) for variant in ("plain", "fancy") for seed in (7, 0, 1)]
    for how in ("done", "has a result"):
        done = CliRunner().invoke(cli.main, given)
        assert done.exit_code == 1 and done.stderr.startswith("gpzoo: 2 of 6 runs failed; log.txt")
        lines = done.stdout.splitlines()
        counts, said = zip(*(line.split("  ") for line in lines[:6]), strict=True)
        assert counts == tuple(f"{i} of 6" for i in range(1, 7))
        assert set(said) == {f"squares {v}, seed {s}: {'failed: no data' if s == 1 else how}" for v, s in runs}
        # Of seeds 0 and 7, whose runs have a result: the mean, and half of what they differ by.
        assert [line.split() for line in lines if "±" in line] == [
            [variant, "2", "3.6", "±", "3.5", "2"] for variant in ("plain", "fancy")
        ]
    log = tmp_path / "toy-squares-plain-quick-seed1" / "log.txt"
    assert log.read_text().split("\n") == ["Training", "no data", ""]
    assert sorted((tmp_path / "starts").read_text()) == sorted("770011" + "11")


def test_a_result_of_another_run_is_none_and_no_folder_is_shared(tmp_path):
    run = Run("toy", "squares", "plain", "quick", 5, tmp_path / "5")
    run.output.mkdir()
    for content in ("[1]", json.dumps(run.identity | {"seed": 6})):
        (run.output / "result.json").write_text(content)
        assert [ended.status for ended in sweep([run], command=[sys.executable, "-c", CHILD])] == [0]
    with pytest.raises(ReproductionError, match="same folder"):
        list(sweep([run, run]))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_folder_that_cannot_be_made_stops_no_other_run(tmp_path, workers):
    runs = [Run("toy", "squares", "plain", "quick", seed, tmp_path / str(seed)) for seed in (5, 6, 7)]
    runs[0].output.touch()
    ended = {each.run.seed: each for each in sweep(runs, workers=workers, command=[sys.executable, "-c", CHILD])}
    assert ended[5].failed and ended[5].said == f"{runs[0].output}: File exists"
    assert [ended[seed].status for seed in (6, 7)] == [0, 0]


#: A sweep of one run, which waits until it is asked to stop, and says so in a pipe that the test reads.
KILLED = """
import signal, sys
from pathlib import Path
from gpzoo.reproductions.experiment import Run
from gpzoo.reproductions.many_runs import sweep
child = '''
import signal, sys, threading
from gpzoo.reproductions.many_runs import _stops_with_the_sweep
# Blocked, so that a signal that comes before the wait is not lost.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
threading.Thread(target=_stops_with_the_sweep, daemon=True).start()
open(sys.argv[1], "w").write("started")
signal.sigwait([signal.SIGTERM])
open(sys.argv[1], "w").write("stopped")
'''
# Tests may run where an interrupt is ignored, as a shell has it in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
runs = [Run("toy", "squares", "plain", "quick", 0, Path(sys.argv[1]))]
list(sweep(runs, command=[sys.executable, "-c", child, sys.argv[2]]))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_processes_stop_when_their_sweep_does(tmp_path, how):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "run"), str(pipe)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    assert pipe.read_text() == "started"
    process.send_signal(how)
    assert pipe.read_text() == "stopped"
    assert process.wait()


def test_the_second_process_in_a_folder_waits(tmp_path, monkeypatch):
    entered, may_end, order = threading.Event(), threading.Event(), []
    run = Run("toy", "squares", "plain", "quick", 0, tmp_path / "0")

    def first(run):
        entered.set()
        assert may_end.wait(60)
        order.append("first")
        return outcome()

    thread = threading.Thread(target=execute, args=(experiment(run=first), run))
    thread.start()
    assert entered.wait(60)
    # The second says on standard error that it waits.
    told = SimpleNamespace(write=lambda text: "waiting until it ends" in text and may_end.set(), flush=lambda: None)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", told)
        execute(experiment(run=lambda run: order.append("second") or outcome()), run)
    thread.join()
    assert order == ["first", "second"]


#: What differs between two runs of the same command.
OF_ITS_OWN = "finished seconds_training seconds_per_step peak_memory_bytes resumed_from commits curve".split()


def numbers(folder: Path) -> dict:
    found = {path.parent.name: json.loads(path.read_text()) for path in sorted(folder.glob("*/result.json"))}
    return {run: {name: x for name, x in result.items() if name not in OF_ITS_OWN} for run, result in found.items()}


@pytest.mark.stress
def test_forty_runs_killed_twice_are_the_forty_runs_of_a_cluster(tmp_path):
    if not os.environ.get("GPZOO_STRESS"):
        pytest.skip("make stress runs it")
    gpzoo = [sys.executable, "-m", "gpzoo.reproductions"]

    def swept(name, *options, lines=None):
        """The sweep's exit status; with ``lines``, it is killed when so many runs have ended."""
        given = ["sweep", "observations", "noisy-sine", "--seeds", "0-19", "--output", str(tmp_path / name)]
        with subprocess.Popen([*gpzoo, *given, *options], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            for count, _ in enumerate(process.stdout, 1):
                if count == lines:
                    process.kill()
        return process.returncode

    assert swept("parts", "--workers", "2", lines=9) and swept("parts", "--workers", "2", lines=25)
    assert 9 <= len(numbers(tmp_path / "parts")) < 40
    assert swept("parts", "--workers", "2") == 0
    whole = numbers(tmp_path / "parts")
    assert len(whole) == 40
    # In other processes, and never stopped.
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        assert swept("dask", "--cluster", cluster.scheduler_address) == 0
    assert numbers(tmp_path / "dask") == whole
