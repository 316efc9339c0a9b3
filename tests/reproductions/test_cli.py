"""The command line: arguments, exit statuses, one-line errors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpzoo.errors import FactorisationError
from gpzoo.reproductions import cli, papers
from tests.conftest import ROOT
from tests.reproductions.test_execute import experiment


@pytest.fixture
def gpzoo_command(monkeypatch, tmp_path):
    """``gpzoo_command("reproduce toy squares", run=None)`` with one toy experiment, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "40")

    def call(command, run=None):
        changes = {} if run is None else {"run": run}
        monkeypatch.setattr(cli, "all_experiments", lambda: (experiment(**changes),))
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
    "reproduce toys squares": "unknown paper 'toys', choose from: toy.",
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
    "list toys": "unknown paper 'toys', choose from: toy.",
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
