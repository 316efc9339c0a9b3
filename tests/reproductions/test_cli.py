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
    """``gpzoo_command(*args, run=None)`` with one toy experiment, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*args, run=None):
        changes = {} if run is None else {"run": run}
        monkeypatch.setattr(cli, "all_experiments", lambda: (experiment(**changes),))
        return CliRunner().invoke(cli.main, args)

    return call


def one_line(result, status):
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("gpzoo: ")
    assert "Traceback" not in result.stderr
    return result.stderr


def test_reproduce_writes_to_the_default_folder_and_prints_the_table(gpzoo_command, tmp_path):
    result = gpzoo_command("reproduce", "toy", "squares", "--seed", "7")
    assert result.exit_code == 0, result.output
    assert "this run" not in result.stdout and "0.02" in result.stdout and "learning_curve.png" in result.stdout
    written = json.loads((tmp_path / "runs" / "toy-squares-plain-quick-seed7" / "result.json").read_text())
    assert (written["variant"], written["preset"], written["seed"]) == ("plain", "quick", 7)
    args = ("reproduce", "toy", "squares", "--variant", "fancy", "--preset", "paper", "--output", "here")
    assert gpzoo_command(*args).exit_code == 0
    written = json.loads((tmp_path / "here" / "result.json").read_text())
    assert (written["variant"], written["preset"], written["seed"]) == ("fancy", "paper", 0)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("reproduce", "toys", "squares"), "unknown paper 'toys', choose from: toy."),
        (("reproduce", "toy", "circles"), "unknown experiment of toy 'circles', choose from: squares."),
        (("reproduce", "toy", "squares", "--variant", "x"), "unknown variant of toy squares 'x'"),
        (("reproduce", "toy", "squares", "--preset", "cpu"), "unknown preset of toy squares 'cpu', choose from: quick"),
        (("reproduce", "toy", "squares", "--seed", "-1"), "--seed"),
        (("results", "--folder", "nowhere"), "nowhere"),
        (("reproduce", "toy", "squares", "--output", ""), "'--output': the name is empty"),
        (("list", "toys"), "unknown paper 'toys', choose from: toy."),
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_line_and_status_2(gpzoo_command, args, told):
    assert told in one_line(gpzoo_command(*args), 2)


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (FactorisationError("The Cholesky factorisation of f failed"), 1, "The Cholesky factorisation of f failed"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (RuntimeError("Unable to initialize backend 'bogus'"), 1, "JAX cannot start: Unable"),
        (KeyboardInterrupt(), 130, "same command"),
    ],
)
def test_known_failures_are_one_line(gpzoo_command, error, status, told):
    def run(run):
        raise error

    assert told in one_line(gpzoo_command("reproduce", "toy", "squares", run=run), status)
    if status == 1:
        assert gpzoo_command("reproduce", "toy", "squares", "--debug", run=run).exception is error


def test_an_unknown_failure_keeps_its_traceback(gpzoo_command):
    def run(run):
        raise ZeroDivisionError

    assert isinstance(gpzoo_command("reproduce", "toy", "squares", run=run).exception, ZeroDivisionError)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "told"), [("closed", ""), ("full", "No space left on device.\n")])
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


def test_list_has_a_line_per_experiment(gpzoo_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    lines = gpzoo_command("list").stdout.splitlines()
    assert lines[:2] == ["toy", "  squares  Squares and other rectangles."] and "gpzoo list PAPER" in " ".join(lines)
    monkeypatch.setenv("COLUMNS", "36")
    assert gpzoo_command("list").stdout.splitlines()[1] == "  squares  Squares and other ..."


@pytest.mark.parametrize("args", [("--all",), ("toy",)])
def test_list_prints_every_variant_with_the_papers_numbers(gpzoo_command, monkeypatch, args):
    monkeypatch.setenv("COLUMNS", "40")
    lines = gpzoo_command("list", *args).stdout.splitlines()
    assert lines[:4] == ["toy", "  squares", "    Squares and other rectangles.", "    Presets: quick, paper."]
    assert lines[4:] == ["    plain  error 0.02, nlpp 0.2", "           (default)", "    fancy  error 0.01"]


@pytest.mark.parametrize("args", [("list",), ("list", "--all"), ("data",)])
def test_every_line_fits_the_terminal(monkeypatch, args):
    monkeypatch.setenv("COLUMNS", "60")
    lines = CliRunner().invoke(cli.main, args).stdout.splitlines()
    assert len(lines) > 10 and max(map(len, lines)) <= 60


def test_results_writes_the_pages_and_checks_them(gpzoo_command, tmp_path, monkeypatch):
    monkeypatch.setattr(papers, "PAPERS", ())
    (tmp_path / "reproductions" / "results").mkdir(parents=True)
    assert "RESULTS.md is missing" in one_line(gpzoo_command("results", "--check"), 1)
    assert gpzoo_command("results").exit_code == 0
    assert "say what the files say" in gpzoo_command("results", "--check").stdout
    page = tmp_path / "RESULTS.md"
    page.write_text(page.read_text().replace("# Results", "# Result"))
    assert "'# Result' instead of '# Results'" in one_line(gpzoo_command("results", "--check"), 1)


def test_data_lists_every_set_and_loads_one(gpzoo_command, monkeypatch, tmp_path):
    listed = gpzoo_command("data")
    assert any(line.startswith("rectangles") for line in listed.stdout.splitlines()), listed.output
    assert "1,200 training and 50,000 test points" in gpzoo_command("data", "rectangles").stdout
    assert "rectangles" in one_line(gpzoo_command("data", "circles"), 2)
    monkeypatch.setenv("GPZOO_DATA", str(tmp_path / "absent"))
    assert "is not a folder" in one_line(gpzoo_command("data"), 1)


def test_a_papers_script_runs_its_own_experiments(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.script_main([experiment()], ["squares", "--variant", "fancy", "--output", "out"])
    assert ended.value.code == 0
    assert (tmp_path / "out" / "result.json").exists()
    with pytest.raises(SystemExit) as ended:
        cli.script_main([experiment()], ["circles"])
    assert ended.value.code == 2
    assert "choose from: squares" in capsys.readouterr().err
