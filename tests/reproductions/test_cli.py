"""The command line: arguments, exit statuses, one-line errors."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import optax
import pytest
from click.testing import CliRunner
from numpyro.infer import SVI

from gpzoo import kmeans
from gpzoo.errors import FactorisationError
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
from gpzoo.models import gp_regression
from gpzoo.reproductions import cli, papers
from tests.conftest import ROOT
from tests.programs import KEY, sine
from tests.reproductions.test_execute import experiment


@pytest.fixture
def gpzoo_command(monkeypatch, tmp_path):
    """``gpzoo_command("reproduce toy squares", run=None)`` with one toy experiment, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "40")

    def call(command, run=None):
        changes = {} if run is None else {"run": run}
        monkeypatch.setattr(cli, "all_experiments", lambda own: (experiment(**changes),))
        return CliRunner().invoke(cli.main, command.split(" "))

    return call


def one_line(result, status):
    assert result.exit_code == status, result.output
    assert result.stdout == "" and result.stderr.count("\n") == 1 and result.stderr.startswith("gpzoo: ")
    return result.stderr


def test_reproduce_writes_to_the_default_folder_and_prints_the_table(gpzoo_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for options, said in (
        ("--seed 7", ("plain", "quick", 7)),
        ("--variant fancy --preset paper", ("fancy", "paper", 0)),
    ):
        result = gpzoo_command(f"reproduce toy squares {options}")
        assert result.exit_code == 0, result.output
        assert "0.03" in result.stdout and "paper" in result.stdout and "learning_curve.png" in result.stdout
        written = json.loads(Path("runs/toy-squares-{}-{}-seed{}/result.json".format(*said)).read_text())
        assert (written["variant"], written["preset"], written["seed"]) == said


WRONG = {
    "reproduce toys squares": "unknown paper 'toys', choose from: toy; --paper FILE.py adds one",
    "reproduce toy circles": "unknown experiment of toy 'circles', choose from: squares.",
    "reproduce toy squares --variant x": "unknown variant of toy squares 'x'",
    "reproduce toy squares --preset cpu": "unknown preset of toy squares 'cpu', choose from: quick",
    "reproduce toy squares --output ": "'--output': the name is empty",
    "compare toy squares --variants x": "unknown variant of toy squares 'x'",
    "compare toy squares --preset cpu": "unknown preset of toy squares 'cpu'",
    "sweep toy --seeds 1-0": "'1-0' is no seed",
    "sweep toy --variants plane": "unknown variant of toy 'plane', choose from: plain, fancy.",
    "sweep toy --preset cpu": "none of these experiments has the preset cpu",
    "results --folder nowhere": "nowhere",
    "results": "no folder reproductions/results, name another one",
    "compare toy squares --paper nowhere.py": "'nowhere.py' does not exist",
    "sweep toy --set steps": "'steps' is not NAME=VALUE",
    "sweep toy squares --preset cpu": "unknown preset of toy squares 'cpu'",
    "compare toy squares --set steps=5 --set rate=1 --set steps=50": "steps has two values",
    "list toys": "unknown paper 'toys', choose from: toy; ",
    "data circles": "rectangles",
}


@pytest.mark.parametrize("command", WRONG)
def test_wrong_arguments_are_one_line_and_status_2(gpzoo_command, command):
    assert WRONG[command] in one_line(gpzoo_command(command), 2)


FAILURES = [
    (FactorisationError("The Cholesky factorisation of f failed"), 1, "The Cholesky factorisation of f failed"),
    (OSError(28, "No space left on device"), 1, "No space left on device"),
    (RuntimeError("Unable to initialize backend 'bogus'"), 1, "JAX cannot start: Unable"),
    (KeyboardInterrupt(), 130, "same command"),
    (ZeroDivisionError(), None, ""),  # not a known one
]


@pytest.mark.parametrize("error, status, told", FAILURES)
def test_known_failures_are_one_line_and_others_keep_their_traceback(gpzoo_command, error, status, told):
    def run(run):
        raise error

    if status is not None:
        assert told in one_line(gpzoo_command("reproduce toy squares", run=run), status)
    if status != 130:
        debug = " --debug" if status else ""
        assert gpzoo_command(f"reproduce toy squares{debug}", run=run).exception is error


STOPS = {signal.SIGINT: (130, "gpzoo: interrupted: "), signal.SIGTERM: (143, "gpzoo: terminated: ")}


@pytest.fixture(params=STOPS)
def stop(request):
    # Tests may run where an interrupt is ignored, as a shell has it in the background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield request.param
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("where", ["run", "weak reference", "collector", "finaliser"])
def test_a_signal_stops_a_run_wherever_it_comes(gpzoo_command, stop, where):
    """Python ignores what callbacks raise, and the signal is not lost with it."""

    class Held:
        if where == "finaliser":
            __del__ = lambda self: signal.raise_signal(stop)  # noqa: E731

    def collected(phase, info):
        gc.callbacks.remove(collected)
        signal.raise_signal(stop)

    def run(run):
        held = Held()
        kept = weakref.ref(held, lambda ref: where == "weak reference" and signal.raise_signal(stop))
        del held
        if where == "run":
            signal.raise_signal(stop)
        if where == "collector":
            gc.callbacks.append(collected)
            gc.collect()
        threading.Event().wait(60)
        raise AssertionError(kept)

    hook, handler = sys.unraisablehook, signal.getsignal(signal.SIGTERM)
    status, said = STOPS[stop]
    assert one_line(gpzoo_command("reproduce toy squares", run=run), status).startswith(
        f"{said}resume by running the same"
    )
    assert (sys.unraisablehook, signal.getsignal(signal.SIGTERM)) == (hook, handler)


def test_a_stopped_training_says_that_its_checkpoint_is_there(gpzoo_command, stop, standard_promotion):
    X, y = sine(8)
    svi = SVI(gp_regression, InducingGuide(gp_regression, kmeans(2)), optax.adam(0.1), GaussianProcessELBO())

    def run(run):
        options = {"callback": lambda *now: signal.raise_signal(stop), "callback_steps": 3, "progress": False}
        fit(KEY, svi, 30, X, y, checkpoint=run.checkpoint, **options)

    status, said = STOPS[stop]
    told = one_line(gpzoo_command("reproduce toy squares", run=run), status)
    assert told.startswith(f"{said}resume by running the same command") and "its checkpoint is written" in told
    assert list(Path().rglob("*.checkpoint"))


#: A command that is stopped while XLA compiles.
COMPILING = """
import os, signal, sys, threading
import click, jax, jax.numpy as jnp
from gpzoo.reproductions.cli import DEBUG, Command
signal.signal(signal.SIGINT, signal.default_int_handler)

def large(x):
    for k in range(400):
        x = jnp.sort(jnp.sin(x * k)) @ jnp.ones((9, 9))
    return x

@click.command(cls=Command)
@DEBUG
def command():
    lowered = jax.jit(large).lower(jnp.ones((9, 9)))
    threading.Timer(0.2, os.kill, (os.getpid(), int(sys.argv[1]))).start()
    lowered.compile()

jnp.ones((9, 9)).block_until_ready()
command([])
"""


def test_a_signal_while_xla_compiles_ends_the_process_in_order(stop):
    command = [sys.executable, "-W", "ignore", "-c", COMPILING, str(int(stop))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    status, said = STOPS[stop]
    assert done.returncode == status and done.stderr.startswith(said) and done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind, told", [("closed", ""), ("full", "No space left on device.\n")])
def test_output_that_cannot_be_written_is_one_line_and_that_of_a_closed_pipe_none(kind, told):
    """As of ``gpzoo list | head -1``; buffers are written when the interpreter ends."""
    if kind == "full" and not Path("/dev/full").exists():
        pytest.skip("this system has no full device")
    read, closed = os.pipe()
    os.close(read)
    with open("/dev/full", "w") if kind == "full" else open(closed, "w") as output:
        command = [sys.executable, "-W", "ignore", "-m", "gpzoo.reproductions", "list", "--all"]
        done = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and done.stderr == (told and f"gpzoo: cannot write to standard output: {told}")


def test_list_has_a_line_per_experiment_or_every_variant_with_the_papers_numbers(gpzoo_command, monkeypatch):
    lines = gpzoo_command("list").stdout.splitlines()
    assert lines[:2] == ["toy", "  squares  Squares and other rectangles."] and "gpzoo list PAPER" in " ".join(lines)
    for command in ("list --all", "list toy"):
        lines = gpzoo_command(command).stdout.splitlines()
        assert lines[:4] == ["toy", "  squares", "    Squares and other rectangles.", "    Presets: quick, paper."]
        assert lines[4:] == ["    plain  error 0.02, nlpp 0.2", "           (default)", "    fancy  error 0.01"]
    monkeypatch.setenv("COLUMNS", "36")
    assert gpzoo_command("list").stdout.splitlines()[1] == "  squares  Squares and other ..."


def test_results_writes_the_pages_and_checks_them(gpzoo_command, monkeypatch):
    monkeypatch.setattr(papers, "PAPERS", ())
    Path("reproductions/results").mkdir(parents=True)
    assert "RESULTS.md is missing" in one_line(gpzoo_command("results --check"), 1)
    assert gpzoo_command("results").exit_code == 0
    assert "say what the files say" in gpzoo_command("results --check").stdout
    Path("RESULTS.md").write_text("# Result")
    assert "'# Result' instead of '# Results'" in one_line(gpzoo_command("results --check"), 1)


def test_data_lists_every_set_and_loads_one(gpzoo_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    lines = gpzoo_command("data").stdout.splitlines()
    assert any(line.startswith("rectangles") for line in lines) and max(map(len, lines)) <= 60
    assert "1,200 training and 50,000 test points" in gpzoo_command("data rectangles").stdout
    monkeypatch.setenv("GPZOO_DATA", "absent")
    assert "is not a folder" in one_line(gpzoo_command("data"), 1)
