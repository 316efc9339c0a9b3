"""What a run writes, that nothing written is lost, and how ours is shown beside the paper's."""

import io
import json
import os
import subprocess
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from gpzoo.inference import plots
from gpzoo.reproductions import figures, kept
from gpzoo.reproductions import terminal as report
from gpzoo.reproductions.execute import execute, make_result
from gpzoo.reproductions.experiment import FIELDS, SCHEMA, Experiment, Outcome, ReproductionError, Run, subset
from gpzoo.reproductions.many_runs import has_result
from gpzoo.reproductions.records import result_path
from gpzoo.reproductions.training import Curve

POINTS = [{"step": 100 * i, "seconds": 60.0 * i, "error": 0.1 / i, "nlpp": 0.3 / i} for i in range(1, 6)]
PAPER = {"error": 0.02, "nlpp": 0.2, "angle_degrees": 80.0}


def data(train=12, test=5, **changes):
    return SimpleNamespace(**{"name": "squares", "sha256": "0" * 64, "sizes": {"train": train, "test": test}} | changes)


def outcome(**changes):
    values = {
        "metrics": {"error": 0.03, "nlpp": jnp.float32(0.1), "angle_degrees": 90.0},
        "settings": {"inducing": 16, "learning_rate": np.float32(0.01), "weights": np.ones(2)},
        "steps": 200,
        "seconds_training": 4.0,
        "data": data(),
        "dtype": "float32",
        "elbo": -1000.0 / np.arange(1, 201),
    }
    return Outcome(**{**values, **changes})


def experiment(result=None, **changes):
    values = {
        "paper": "toy",
        "name": "squares",
        "description": "Squares and other rectangles.",
        "variants": {"plain": {"error": 0.02, "nlpp": 0.2}, "fancy": {"error": 0.01, "nlpp": None}},
        "run": lambda run: outcome() if result is None else result,
        "default_variant": "plain",
    }
    return Experiment(**{**values, **changes})


@pytest.fixture
def run(tmp_path):
    return Run("toy", "squares", "plain", "quick", 3, tmp_path / "out")


def record(folder, run, **changes):
    result = make_result(outcome(), run, {"error": 0.02})
    path = result_path(folder, run.paper, run.experiment, run.variant, run.preset, run.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    kept.write_json(path, {**result, **changes})
    return path


def files(run):
    return {path.name for path in run.output.iterdir()}


def refused(where, said, result=None, **changes):
    with pytest.raises(ReproductionError, match=said):
        execute(experiment(result, **changes), where)


# -- what a run leaves -------------------------------------------------------------------------------------------------


def test_a_run_leaves_its_result_and_pictures_and_nothing_else(run):
    from matplotlib.figure import Figure

    returned = execute(experiment(outcome(figures={"one": Figure(), "two": Figure}, curve=POINTS)), run)
    result = json.loads((run.output / "result.json").read_text())
    assert result == returned and list(result) == list(FIELDS) and result["schema"] == SCHEMA
    assert result["metrics"] == {"error": 0.03, "nlpp": pytest.approx(0.1), "angle_degrees": 90.0}
    assert result["paper_metrics"] == {"error": 0.02, "nlpp": 0.2, "angle_degrees": None}
    assert result["settings"] == {"inducing": 16, "learning_rate": pytest.approx(0.01), "weights": [1.0, 1.0]}
    assert result["seconds_per_step"] == 0.02 and result["curve"] == POINTS
    assert result["data"] == {"name": "squares", "sha256": "0" * 64, "sizes": {"train": 12, "test": 5}}
    assert set(result["versions"]) == {"python", "gpzoo", "numpyro", "jax", "jaxlib", "numpy", "optax", "arviz"}
    # A process that has loaded JAX holds more than 50 MiB and, in these tests, less than 64 GiB.
    assert 50 * 2**20 < result["peak_memory_bytes"] < 2**36
    assert result["device"].startswith(("cpu", "gpu", "tpu")) and result["finished"].endswith("+00:00")
    assert files(run) == {"run.json", "result.json", "learning_curve.png", "test_curves.png", "one.png", "two.png"}
    assert (run.output / "one.png").read_bytes().startswith(b"\x89PNG")


def test_all_variants_are_drawn_in_one_figure_beside_the_papers_numbers(tmp_path):
    for variant in ("plain", "fancy"):
        record(tmp_path / "results", Run("toy", "squares", variant, "paper", 0, tmp_path / variant), curve=POINTS)
    drawn = figures.draw_figures(tmp_path / "results", [experiment()], ())
    assert drawn == [tmp_path / "results/toy/squares-paper.png"]
    paper = {"plain": {"error": 0.001, "nlpp": None}}
    error, nlpp = figures.test_curves({"plain": POINTS, "fancy": POINTS}, paper).axes
    assert error.get_xlabel() == "time in training (minutes)" and len(error.lines) == 3 and len(nlpp.lines) == 2
    ours, theirs, _ = error.lines
    np.testing.assert_allclose(ours.get_ydata(), [10, 5, 10 / 3, 2.5, 2])
    assert theirs.get_linestyle() == "--" and list(theirs.get_ydata()) == [0.1, 0.1]
    assert theirs.get_color() == ours.get_color()
    # Bands have the errors that are known: of a share by its rows, of others where the curve has them.
    known = [{**point, "nlpp_se": 0.5} for point in POINTS]
    said = {"titles": {"plain": "no frills"}, "test_rows": 100}
    error, nlpp = figures.test_curves({"plain": known, "fancy": POINTS}, **said).axes
    assert [len(error.collections), len(nlpp.collections)] == [2, 1]
    assert [line.get_label() for line in nlpp.lines] == ["no frills", "fancy"]
    (band,) = nlpp.collections[0].get_paths()
    np.testing.assert_allclose(np.ptp(band.vertices[band.vertices[:, 0] == band.vertices[1, 0], 1]), 1.0)
    (band,) = error.collections[0].get_paths()
    share = POINTS[0]["error"]
    width = np.ptp(band.vertices[band.vertices[:, 0] == band.vertices[1, 0], 1])
    np.testing.assert_allclose(width, 200 * (share * (1 - share) / 100) ** 0.5)
    # Three panels are in one row.
    three = [{**point, "learned_angle_degrees": 3.0} for point in POINTS]
    heights = {round(axes.get_position().y0, 3) for axes in figures.test_curves({"plain": three}).axes}
    assert len(heights) == 1
    drawn, _ = plots.learning_curve(np.array([-3.0, np.nan, -1.0]), np.array([10, 20, 30])).get_lines()
    np.testing.assert_array_equal(drawn.get_xdata(), [10, 30])


def test_a_curve_is_kept_for_the_run_that_resumes(tmp_path):
    path, made_by = tmp_path / "curve.json", {"settings": {"rate": np.float32(0.5)}}
    first = Curve(path, made_by, lambda params: {"error": params["x"]})
    for step in (10, 20, 30):
        first(step, 1.5 * step, {"x": np.float32(step)})
    second = Curve(path, made_by, lambda params: {"error": -1.0})
    second(20, 31.0, {})
    expected = [{"step": step, "seconds": at, "error": x} for step, at, x in ((10, 15, 10), (20, 31, -1), (30, 45, 30))]
    assert second.until(30) == expected and second.until(20) == expected[:2]
    # What other data made is not taken for this run's, and the files of the paper do not matter.
    assert not Curve(path, made_by | {"data": "1" * 64}, dict).points
    assert Curve(path, made_by | {"paper": "1" * 64}, dict).points == {at: second.points[at] for at in (10, 20)}


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [10, 20, 30])
def test_an_evaluation_that_is_not_finite_does_not_stop_the_training(tmp_path, wrong, at):
    path = tmp_path / "curve.json"
    curve = Curve(path, {}, lambda params: {"error": params["x"], "nlpp": wrong if params["x"] == at else 1.0})
    for step in (10, 20, 30):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            curve(step, 1.0, {"x": step})
        assert [str(each.message) for each in said] == (
            [f"after {at} steps, nlpp = {wrong}: the learning curve has no such point."] if step == at else []
        )
    others = [step for step in (10, 20, 30) if step != at]
    assert [point["step"] for point in curve.until(30)] == others and sorted(Curve(path, {}, dict).points) == others
    assert sorted(curve.points) == [10, 20, 30]


def test_failing_figure_and_posterior_leave_the_numbers_and_the_other_figures(run):
    def half_written(path, *, engine):
        Path(path).write_text("half")
        raise OSError("No space left on device")

    def broken():
        raise KeyError("patches")

    posterior = SimpleNamespace(to_netcdf=half_written)
    result = outcome(figures={"bad": broken}, posterior=lambda: posterior)
    refused(run, r"result\.json.*bad\.png \(KeyError.*posterior\.nc .*No space left", result)
    assert files(run) == {"run.json", "result.json", "learning_curve.png"}
    assert json.loads((run.output / "result.json").read_text())["metrics"]["error"] == 0.03
    # The same run is made again, and is then complete.
    assert not has_result(run)
    execute(experiment(), run)
    assert has_result(run)


def test_what_a_result_lacks_is_filled_in_and_curves_that_nobody_draws_are_no_failure(run):
    points = [{"step": step, "seconds": 1.0 * step, "mae": 0.1} for step in (1, 2)]
    result = outcome(curve=points, folds={"count": 2})
    found = execute(experiment(result, variants={"plain": {"error": 0.02, "hours": 3.0}}), run)
    assert found["folds"] == {"count": 2, "of": 2} and found["curve"] == points
    assert "test_curves.png" not in files(run) and has_result(run)


NO_RESULTS = [
    ({"metrics": {"error": 0.1, "nlpp": np.nan}}, "nlpp = .*not a result"),
    ({"metrics": {"error": 0.1}}, "did not report nlpp"),
    ({"settings": {}}, "did not report its settings"),
    ({"settings": {"lr": np.nan}}, "no JSON form"),
    ({"settings": {"optimiser": object()}}, "no JSON form"),
]


@pytest.mark.parametrize("changes, said", NO_RESULTS)
def test_outcomes_that_are_no_result_are_refused(run, changes, said):
    refused(run, said, outcome(**changes))
    assert not (run.output / "result.json").exists()


def test_experiments_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match=r"Presets are quick, .*huge"):
        experiment(presets=("quick", "huge"))
    with pytest.raises(ValueError, match=r"'best'.*plain, fancy"):
        experiment(default_variant="best")


def test_a_full_disk_tells_the_metrics_and_leaves_what_was_written(run, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    def train(run):
        monkeypatch.setattr(os, "fsync", full)
        return outcome(metrics={"error": 0.5, "nlpp": 0.1})

    execute(experiment(), run)
    before = files(run)
    refused(run, r'No space left.*"error": 0\.5.*same command', run=train)
    assert json.loads((run.output / "result.json").read_text())["metrics"]["error"] == 0.03 and files(run) == before


# -- whose folder it is, and which program made what is in it ----------------------------------------------------------


def checkpointed(run, step, name=""):
    folder = run.checkpoint / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{step}.checkpoint").touch()


def at_commit(monkeypatch, commit, clean=True):
    monkeypatch.setattr(kept, "commit", lambda: commit)
    monkeypatch.setattr(kept, "clean", lambda: clean)


def test_a_folder_that_is_another_runs_or_damaged_is_refused_before_training(run):
    execute(experiment(), run)
    execute(experiment(), run)
    trained, mark = [], run.output / "run.json"
    refused(replace(run, seed=4), r"seed=3.*another --output", run=trained.append)
    refused(replace(run, output=mark / "out"), "Cannot write to", run=trained.append)
    without = json.dumps(run.identity | {"starts": [{"commit": None}]}).encode()
    for content in (b"[1]", b"{", b"\xff\xfe", b'{"paper": "toy"}', without):
        mark.write_bytes(content)
        refused(run, r"run\.json is damaged: choose another --output", run=trained.append)
    assert not trained


def test_a_run_that_fails_before_it_keeps_anything_claims_nothing(run):
    def stopped(run):
        if run.seed == 4:
            checkpointed(run, 40)
        raise KeyboardInterrupt

    for seed in (3, 4):
        with pytest.raises(KeyboardInterrupt):
            execute(experiment(run=stopped), replace(run, seed=seed))
    refused(run, "holds another run")


def test_a_result_names_the_commit_of_its_training_and_where_it_was_taken_up(run, monkeypatch):
    def step(commit, clean, *checkpoints):
        at_commit(monkeypatch, commit, clean)

        def train(run):
            for at in checkpoints:
                checkpointed(run, *at)
            return outcome()

        return execute(experiment(run=train), run)

    # The first start leaves no checkpoint, and so no part in the result.
    assert step("a" * 40, True)["commits"] == ["a" * 40]
    found = step("b" * 40, True, (40, "sgp"))
    assert (found["clean"], found["commits"], found["resumed_from"]) == (True, ["b" * 40], [])
    # A folder may be named after its split, which is no number of steps.
    found = step("c" * 40, False, (70, "sgp"), (20, "7/plain"), (10, "7/long"))
    assert (found["commit"], found["clean"], found["resumed_from"]) == ("b" * 40, False, [40])
    # Written again from what was kept: the commit is still that of the training.
    found = step("d" * 40, True)
    assert (found["commit"], found["resumed_from"]) == ("b" * 40, [40, 100])
    assert found["commits"] == [letter * 40 for letter in "bcd"]
    assert found["command"] == "gpzoo reproduce toy squares --variant plain --preset quick --seed 3"


def test_a_training_whose_commit_was_not_recorded_is_refused_in_a_checkout(run, monkeypatch):
    """Outside of one, the version of the package stands for it."""
    at_commit(monkeypatch, None, None)
    monkeypatch.setattr(kept, "_ROOT", run.output)
    found = execute(experiment(), run)
    assert (found["commit"], found["clean"]) == (None, None) and found["versions"]["gpzoo"]
    checkpointed(run, 40)
    kept.write_json(run.output / "run.json", run.identity)
    at_commit(monkeypatch, "c" * 40)
    refused(run, "whose commit was not recorded: choose another --output")


def test_settings_belong_to_the_program_and_a_checkout_where_they_changed_is_not_clean(tmp_path, monkeypatch):
    """Settings stand in TOML files: a run by others than those of the commit must not say that it is clean."""
    settings, git = tmp_path / "zoo_of_tests" / "paper.toml", ("git", "-C", str(tmp_path), "-c", "user.name=a")
    settings.parent.mkdir()
    settings.with_name("__init__.py").touch()
    settings.write_text("steps = 1", encoding="utf-8")
    for command in ("init -q", "add .", "-c user.email=a@b commit -q -m settings"):
        subprocess.run([*git, *command.split()], check=True)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(kept, "_ROOT", tmp_path.resolve())
    monkeypatch.setattr(kept, "_PACKAGES", ("zoo_of_tests",))
    for name in ("commit", "clean", "program"):  # what they found before is not of this checkout
        monkeypatch.setattr(kept, name, getattr(kept, name).__wrapped__)
    program = kept.program()
    assert kept.clean() is True and kept.program() == program
    settings.write_text("steps = 2", encoding="utf-8")
    assert kept.clean() is False and kept.program() != program


def test_an_intermediate_result_is_used_again_only_where_the_same_things_made_it(tmp_path, run, monkeypatch):
    path, made = tmp_path / "scores.json", []

    def make():
        made.append(1)
        return {"error": np.float32(len(made))}

    def again(settings, of=None, **changes):
        return kept.kept(path, replace(run, **changes).made_by(settings, of or data()), make)["error"]

    assert again({"rate": 0.1}) == again({"rate": np.float64(0.1)}) == 1
    assert again({"rate": 0.2}) == 2
    assert again({"rate": 0.2}, data(sha256="1" * 64)) == 3
    assert again({"rate": 0.2}, seed=4) == 4
    monkeypatch.setattr(kept, "program", lambda: "another program")
    assert again({"rate": 0.2}, seed=4) == again({"rate": 0.2}, seed=4) == 5
    for damage in (b"{", b"[1]", b"null", b"\xff", b'{"error": 5.0}'):
        path.write_bytes(damage)
        assert again({"rate": 0.2}, seed=4) == len(made)


# -- in the terminal ---------------------------------------------------------------------------------------------------


def printed(table, width=100):
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def test_what_a_run_says_of_its_data_is_recorded_and_shown(run):
    whole, used = data(train=60_000, test=100), data(test=100)
    part = subset(whole, used, "random, seed 0")
    assert part == {"train": 12, "of": 60_000, "test": 100, "of_test": 100, "rule": "random, seed 0"}
    assert subset(whole, whole, "all") is None
    said = {"subset": part, "folds": {"count": 3, "of": 20, "seeds": [0, 1, 2]}, "selection": {"rule": "by hand"}}
    result = make_result(outcome(data=used, **said, stands_in=True), run, {"error": 0.02})
    assert said == {key: result[key] for key in said}
    shown = printed(report.table(result, {"error": 0.02}))
    assert "Trained on 12 of 60,000 rows" in shown and "stand in for" in shown and "verdict" not in shown
    small = printed(report.table(make_result(outcome(), run, PAPER), PAPER))
    assert "0.02" in small and "verdict" not in small and "checks the program" in small
    result = make_result(outcome(data=data(test=50_000)), replace(run, preset="paper"), PAPER)
    assert [result[key] for key in said] == [None, None, None]
    lines = printed(report.table(result, PAPER)).splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.strip()}
    assert rows["metric"] == ["ours", "paper", "verdict"]
    assert rows["error"] == ["0.03", "0.02", "short", "(-0.017…-0.003)"]
    assert rows["nlpp"] == ["0.1", "0.2", "undecided"]
    assert rows["angle_degrees"] == ["90", "80"]


WIDE = {f"{model}_{kind}": 0.8123 for model in ("dnn-long", "svdkl") for kind in ("accuracy", "nlpp", "nlpp_se")}
WIDE |= {"sgp-500_test_log_likelihood_se": 0.01234, "learned_angle_degrees": 123.4, "elbo": -123456.7}


def test_tables_fit_the_terminal_and_no_word_is_cut(run):
    paper = dict.fromkeys(WIDE, 0.7)
    runs = [replace(run, variant=variant) for variant in ("weighted-rbf-full", "plain")]
    results = [make_result(outcome(metrics=WIDE), own, paper) for own in runs]
    for shown, words in (
        (report.table(results[1], paper), {"metric", "ours", "paper", "accuracy:", "elbo:", "se:", "angle"}),
        (report.comparison(results, 60), {"variant", "learned", "angle", "degrees", "seconds", "weighted-rbf-full"}),
    ):
        lines = printed(shown, 60).splitlines()
        assert max(map(len, lines)) <= 60 and not any("…" in line for line in lines)
        assert words <= set(" ".join(lines).replace("learned_angle_degrees", "angle").split())
