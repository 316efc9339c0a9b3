"""Sweeps: every run in a process of its own, failures kept apart, and nothing left running or run again."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpzoo.reproductions import cli
from gpzoo.reproductions.execute import execute
from gpzoo.reproductions.experiment import ReproductionError, Run
from gpzoo.reproductions.many_runs import Ended, arguments, sweep
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
(folder / "result.json").write_text(json.dumps(identity | {n: given["--" + n] for n in ("variant", "preset")}))
"""


def runs(folder, seeds):
    return [Run("toy", "squares", "plain", "quick", seed, folder / str(seed)) for seed in seeds]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_stops_no_other_run_and_what_has_a_result_is_not_run_again(tmp_path, workers):
    command = [sys.executable, "-c", CHILD]
    wanted = runs(tmp_path, range(4))
    found = {ended.run.seed: ended for ended in sweep(wanted, workers=workers, command=command)}
    assert {seed: ended.status for seed, ended in found.items()} == {0: 0, 1: 1, 2: 0, 3: 0}
    assert found[1].failed and found[1].said == "no data" and not found[0].said
    assert (tmp_path / "1" / "log.txt").read_text().split("\n") == ["Training", "no data", ""]
    again = {ended.run.seed: ended.status for ended in sweep(wanted, workers=workers, command=command)}
    assert again == {0: None, 1: 1, 2: None, 3: None}
    assert sorted((tmp_path / "starts").read_text()) == sorted("0123" + "1")


def test_a_result_of_another_run_is_none_and_no_folder_is_shared(tmp_path):
    (run,) = runs(tmp_path, [5])
    run.output.mkdir()
    for content in ("[1]", json.dumps(run.identity | {"seed": 6})):
        (run.output / "result.json").write_text(content)
        assert [ended.status for ended in sweep([run], command=[sys.executable, "-c", CHILD])] == [0]
    with pytest.raises(ReproductionError, match="same folder"):
        list(sweep([run, run]))


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
    (run,) = runs(tmp_path, [0])

    def first(run):
        entered.set()
        assert may_end.wait(60)
        order.append("first")
        return outcome()

    class Told(io.StringIO):
        """Standard error, by which the second says that it waits."""

        def write(self, text):
            if "waiting until it ends" in text:
                may_end.set()
            return len(text)

    thread = threading.Thread(target=execute, args=(experiment(run=first), run))
    thread.start()
    assert entered.wait(60)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", Told())
        execute(experiment(run=lambda run: order.append("second") or outcome()), run)
    thread.join()
    assert order == ["first", "second"]


def test_the_command_makes_a_run_of_every_variant_and_seed(monkeypatch, tmp_path):
    seen = []

    def swept(given, **options):
        seen.append((given, options))
        return [Ended(given[0], None), Ended(given[1], 1, "no data"), *(Ended(run, 0) for run in given[2:])]

    monkeypatch.setattr(cli, "sweep", swept)
    others = experiment(name="rounds", presets=("paper",))
    monkeypatch.setattr(cli, "all_experiments", lambda: (experiment(), others))
    result = CliRunner().invoke(
        cli.main, ["sweep", "toy", "--seeds", "7,0-1", "--workers", "2", "--output", str(tmp_path)]
    )
    assert result.exit_code == 1 and result.stdout.splitlines() == [
        "1 of 6  squares plain, seed 7: has a result",
        "2 of 6  squares plain, seed 0: failed: no data",
        "3 of 6  squares plain, seed 1: done",
        *(f"{4 + i} of 6  squares fancy, seed {seed}: done" for i, seed in enumerate((7, 0, 1))),
    ]
    assert result.stderr.startswith("gpzoo: 1 of 6 runs failed; log.txt")
    ((given, options),) = seen
    assert options == {"workers": 2, "cluster": None}
    assert given[0].output == tmp_path / "toy-squares-plain-quick-seed7"
    assert arguments(given[0]) == [
        *("reproduce", "toy", "squares", "--variant", "plain", "--preset", "quick", "--seed", "7"),
        *("--output", str(given[0].output)),
    ]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--seeds", "1-0"), "'1-0' is no seed"),
        (("--variants", "plane"), "unknown variant of toy 'plane', choose from: plain, fancy."),
        (("--preset", "cpu"), "none of these experiments has the preset cpu"),
        (("--workers", "0"), "workers"),
    ],
)
def test_odd_options_are_refused_in_a_line(args, said, monkeypatch):
    monkeypatch.setattr(cli, "all_experiments", lambda: (experiment(presets=("quick",)),))
    result = CliRunner().invoke(cli.main, ["sweep", "toy", *args])
    assert result.exit_code == 2 and said in result.stderr and result.stderr.count("\n") == 1


#: What differs between two runs of the same command.
OF_ITS_OWN = "finished seconds_training seconds_per_step peak_memory_bytes resumed_from commits curve".split()


def numbers(folder: Path) -> dict:
    found = {}
    for path in sorted(folder.glob("*/result.json")):
        content = json.loads(path.read_text())
        found[path.parent.name] = {name: value for name, value in content.items() if name not in OF_ITS_OWN}
    return found


@pytest.mark.stress
def test_forty_runs_killed_twice_are_the_forty_runs_alone(tmp_path):
    if not os.environ.get("GPZOO_STRESS"):
        pytest.skip("make stress runs it")
    gpzoo = [sys.executable, "-m", "gpzoo.reproductions"]
    given = ["sweep", "observations", "noisy-sine", "--seeds", "0-19"]

    def swept(folder, *options, lines=None):
        """The sweep's exit status; with ``lines``, it is killed when so many runs have ended."""
        command = [*gpzoo, *given, "--output", str(folder), *options]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            for count, _ in enumerate(process.stdout, 1):
                if count == lines:
                    process.kill()
        return process.returncode

    parts = tmp_path / "parts"
    assert swept(parts, "--workers", "2", lines=9) and swept(parts, "--workers", "2", lines=25)
    assert 9 <= len(numbers(parts)) < 40
    assert swept(parts, "--workers", "2") == 0
    whole = numbers(parts)
    assert len(whole) == 40
    for name in list(whole)[::13]:  # alone
        variant, seed = name.removeprefix("observations-noisy-sine-").split("-quick-seed")
        command = [*("reproduce", "observations", "noisy-sine", "--variant", variant, "--seed", seed)]
        subprocess.run([*gpzoo, *command, "--output", str(tmp_path / "alone" / name)], cwd=ROOT, check=True)
    alone = numbers(tmp_path / "alone")
    assert len(alone) == 4 and alone == {name: whole[name] for name in alone}
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        assert swept(tmp_path / "dask", "--cluster", cluster.scheduler_address) == 0
    assert numbers(tmp_path / "dask") == whole
