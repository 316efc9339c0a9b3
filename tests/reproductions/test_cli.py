"""The command line: arguments, exit statuses, one-line errors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import gpzoo
from gpzoo.errors import FactorisationError
from gpzoo.reproductions import cli, papers
from tests.conftest import ROOT
from tests.reproductions.test_execute import experiment, outcome


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


def test_reproduce_passes_every_option_on(gpzoo_command, tmp_path):
    seen = []

    def run(run):
        seen.append(run)
        return outcome()

    args = ("reproduce", "toy", "squares", "--variant", "fancy", "--preset", "paper", "--output", "here")
    assert gpzoo_command(*args, run=run).exit_code == 0
    assert seen[0].identity == {
        "paper": "toy",
        "experiment": "squares",
        "variant": "fancy",
        "preset": "paper",
        "seed": 0,
    }
    assert (tmp_path / "here" / "result.json").exists()


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("reproduce", "toys", "squares"), "unknown paper 'toys', choose from: toy."),
        (("reproduce", "toy", "circles"), "unknown experiment of toy 'circles', choose from: squares."),
        (("reproduce", "toy", "squares", "--variant", "x"), "unknown variant of toy squares 'x'"),
        (("reproduce", "toy", "squares", "--preset", "huge"), "'huge' is not one of 'quick', 'cpu', 'tuned', 'paper'"),
        (("reproduce", "toy", "squares", "--preset", "cpu"), "unknown preset of toy squares 'cpu', choose from: quick"),
        (("reproduce", "toy", "squares", "--seed", "-1"), "--seed"),
        (("reproduce", "toy", "squares", "--seed", "one"), "--seed"),
        (("reproduce", "toy"), "EXPERIMENT"),
        (("reproduce", "toy", "squares", "--sed", "1"), "--sed"),
        (("reproduc",), "reproduc"),
        (("results", "--folder", "nowhere"), "nowhere"),
        (("reproduce", "toy", "squares", "--output", ""), "'--output': the name is empty"),
        (("compare", "toy", "squares", "--output", ""), "'--output': the name is empty"),
        (("results", "--output", ""), "'--output': the name is empty"),
        (("list", "toys"), "unknown paper 'toys', choose from: toy."),
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_line_and_status_2(gpzoo_command, args, told):
    assert told in one_line(gpzoo_command(*args), 2)


@pytest.mark.parametrize(
    "error", [FactorisationError("The Cholesky factorisation of f failed"), OSError(28, "No space left on device")]
)
def test_known_failures_are_one_line_and_status_1(gpzoo_command, error):
    def run(run):
        raise error

    assert str(error) in one_line(gpzoo_command("reproduce", "toy", "squares", run=run), 1)
    debugged = gpzoo_command("reproduce", "toy", "squares", "--debug", run=run)
    assert debugged.exception is error


def test_an_unknown_failure_keeps_its_traceback(gpzoo_command):
    def run(run):
        raise ZeroDivisionError

    assert isinstance(gpzoo_command("reproduce", "toy", "squares", run=run).exception, ZeroDivisionError)


def test_interruption_is_status_130_and_says_how_to_resume(gpzoo_command):
    def run(run):
        raise KeyboardInterrupt

    assert "same command" in one_line(gpzoo_command("reproduce", "toy", "squares", run=run), 130)


@pytest.mark.parametrize("content", [b"[1]", b"null", b"3", b"\xff\xfe"])
def test_a_damaged_claim_is_one_line(gpzoo_command, tmp_path, content):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "run.json").write_bytes(content)
    assert "run.json is damaged" in one_line(gpzoo_command("reproduce", "toy", "squares", "--output", "here"), 1)


def test_a_platform_that_is_not_there_is_one_line(gpzoo_command):
    def run(run):
        raise RuntimeError("Unable to initialize backend 'bogus': it is not in the list of known backends: ['cpu'].")

    assert "JAX cannot start: Unable" in one_line(gpzoo_command("reproduce", "toy", "squares", run=run), 1)
    assert isinstance(gpzoo_command("reproduce", "toy", "squares", "--debug", run=run).exception, RuntimeError)


#: Imports once, and then is a process of its own for each way to write: to a full disk, to a closed pipe, and well.
PROCESSES = """
import io, os, runpy, sys
from tests.reproductions.test_execute import experiment
from gpzoo.reproductions import cli, papers
cli.all_experiments = lambda: (experiment(),)
read, closed = os.pipe()
os.close(read)
for name in sys.argv[2:]:
    kind, buffered = name.split("-")
    if (child := os.fork()) == 0:
        os.dup2(os.open(f"{sys.argv[1]}/{name}.err", os.O_WRONLY | os.O_CREAT), 2)
        os.dup2({"full": lambda: os.open("/dev/full", os.O_WRONLY), "closed": lambda: closed}.get(kind, lambda: 1)(), 1)
        # As Python opens it with and without PYTHONUNBUFFERED.
        sys.stdout = sys.__stdout__ = io.TextIOWrapper(
            open(1, "wb", -1 if buffered == "1" else 0, closefd=False), write_through=buffered == "0"
        )
        if kind == "version":
            sys.argv = ["gpzoo", "--version"]
            runpy.run_module("gpzoo.reproductions", run_name="__main__", alter_sys=True)
        cli.main(["list", "--all"])
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(status, file=open(f"{sys.argv[1]}/{name}.status", "w"))
"""


@pytest.mark.slow
def test_output_in_processes_of_their_own(tmp_path):
    """What is left in buffers is written when the interpreter ends: one line if it cannot be, of a closed pipe none."""
    kinds = ["closed", *(["full"] if Path("/dev/full").exists() else [])]
    names = [f"{kind}-{buffered}" for kind in kinds for buffered in "01"] + ["version-1"]
    command = [sys.executable, "-W", "ignore", "-c", PROCESSES, str(tmp_path), *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    told = "gpzoo: cannot write to standard output: No space left on device.\n"
    expected = {name: ["1\n", told if "full" in name else ""] for name in names[:-1]} | {"version-1": ["0\n", ""]}
    assert done.stdout == f"gpzoo {gpzoo.__version__}\n"
    found = {name: [(tmp_path / f"{name}.{part}").read_text() for part in ("status", "err")] for name in names}
    assert found == expected


def test_list_has_a_line_per_experiment(gpzoo_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    lines = gpzoo_command("list").stdout.splitlines()
    assert lines[:2] == ["toy", "  squares  Squares and other rectangles."] and "gpzoo list PAPER" in " ".join(lines)
    monkeypatch.setenv("COLUMNS", "36")
    assert gpzoo_command("list").stdout.splitlines()[1] == "  squares  Squares and other ..."


@pytest.mark.parametrize("args", [("--all",), ("toy",), ("toy", "--all")])
def test_list_prints_every_variant_with_the_papers_numbers(gpzoo_command, monkeypatch, args):
    monkeypatch.setenv("COLUMNS", "40")
    assert gpzoo_command("list", *args).stdout.splitlines() == [
        "toy",
        "  squares",
        "    Squares and other rectangles.",
        "    Presets: quick, paper.",
        "    plain  error 0.02, nlpp 0.2",
        "           (default)",
        "    fancy  error 0.01",
    ]


@pytest.mark.parametrize("args", [("list",), ("list", "--all"), ("data",)])
def test_every_line_fits_the_terminal(monkeypatch, args):
    for width in (60, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = CliRunner().invoke(cli.main, args).stdout.splitlines()
        assert len(lines) > 10 and max(map(len, lines)) <= width


def test_results_writes_the_pages_and_checks_them(gpzoo_command, tmp_path, monkeypatch):
    monkeypatch.setattr(papers, "PAPERS", ())
    (tmp_path / "reproductions" / "results").mkdir(parents=True)
    assert "RESULTS.md is missing" in one_line(gpzoo_command("results", "--check"), 1)
    assert gpzoo_command("results").exit_code == 0
    assert "say what the files say" in gpzoo_command("results", "--check").stdout
    page = tmp_path / "RESULTS.md"
    page.write_text(page.read_text().replace("# Results", "# Result"))
    assert "'# Result' instead of '# Results'" in one_line(gpzoo_command("results", "--check"), 1)


@pytest.mark.slow
def test_data_lists_every_set_and_loads_one(gpzoo_command):
    listed = gpzoo_command("data")
    assert listed.exit_code == 0, listed.output
    assert any(line.startswith("rectangles") for line in listed.stdout.splitlines())
    loaded = gpzoo_command("data", "rectangles")
    assert "1,200 training and 50,000 test points" in loaded.stdout
    assert "rectangles" in one_line(gpzoo_command("data", "circles"), 2)


def test_a_data_folder_that_is_not_there_is_one_line(gpzoo_command, monkeypatch, tmp_path):
    monkeypatch.setenv("GPZOO_DATA", str(tmp_path / "absent"))
    assert "is not a folder" in one_line(gpzoo_command("data"), 1)


def test_without_a_command_the_help_is_printed(gpzoo_command):
    result = gpzoo_command()
    assert result.exit_code == 0 and "reproduce" in result.stdout


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
