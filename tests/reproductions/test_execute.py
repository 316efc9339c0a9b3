"""What a run writes, that nothing written is lost, and how ours is shown beside the paper's."""

import dataclasses
import io
import json
import os
import subprocess
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from gpzoo.reproductions import figures, kept
from gpzoo.reproductions import terminal as report
from gpzoo.reproductions.execute import execute, make_result
from gpzoo.reproductions.experiment import (
    FIELDS,
    SCHEMA,
    Experiment,
    Inspected,
    Outcome,
    ReproductionError,
    Run,
    subset,
)
from gpzoo.reproductions.records import result_path
from gpzoo.reproductions.training import Curve, over_splits


@dataclass
class Data:
    name: str = "squares"
    sha256: str = "0" * 64
    sizes: dict = dataclasses.field(default_factory=lambda: {"train": 12, "test": 5})


def outcome(**changes):
    values = {
        "metrics": {"error": 0.03, "nlpp": jnp.float32(0.1), "angle_degrees": 90.0},
        "settings": {"inducing": 16, "learning_rate": np.float32(0.01), "weights": np.ones(2)},
        "steps": 200,
        "seconds_training": 4.0,
        "data": Data(),
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


def text(result, paper):
    console = Console(file=io.StringIO(), width=100)
    console.print(report.table(result, paper))
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"presets": ("quick", "huge")}, r"Presets are quick, cpu, tuned, paper; toy squares has \['huge'\]"),
        ({"default_variant": "best"}, "'best'.*plain, fancy"),
    ],
)
def test_experiments_that_make_no_sense_are_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        experiment(**changes)


def test_result_file_has_the_fields_and_nothing_else(run):
    returned = execute(experiment(), run)
    result = json.loads((run.output / "result.json").read_text())
    assert result == returned
    assert list(result) == list(FIELDS) and result["schema"] == SCHEMA
    assert result["metrics"] == {"error": 0.03, "nlpp": pytest.approx(0.1), "angle_degrees": 90.0}
    assert result["paper_metrics"] == {"error": 0.02, "nlpp": 0.2, "angle_degrees": None}
    assert result["settings"] == {"inducing": 16, "learning_rate": pytest.approx(0.01), "weights": [1.0, 1.0]}
    assert result["seconds_per_step"] == 0.02
    assert result["data"] == {"name": "squares", "sha256": "0" * 64, "sizes": {"train": 12, "test": 5}}
    assert set(result["versions"]) == {"python", "gpzoo", "numpyro", "jax", "jaxlib", "numpy", "optax", "arviz"}
    # A process that has loaded JAX holds more than 50 MiB and, in these tests, less than 64 GiB.
    assert 50 * 2**20 < result["peak_memory_bytes"] < 2**36
    assert result["device"].startswith(("cpu", "gpu", "tpu"))
    assert result["finished"].endswith("+00:00")


def test_files_of_a_run(run):
    from matplotlib.figure import Figure

    result = execute(experiment(outcome(figures={"one": Figure(), "two": Figure}, curve=POINTS)), run)
    written = {path.name for path in run.output.iterdir()}
    assert written == {"run.json", "result.json", "learning_curve.png", "test_curves.png", "one.png", "two.png"}
    assert (run.output / "one.png").read_bytes().startswith(b"\x89PNG") and result["curve"] == POINTS


POINTS = [{"step": 100 * i, "seconds": 60.0 * i, "error": 0.1 / i, "nlpp": 0.3 / i} for i in range(1, 6)]


def test_all_variants_are_drawn_in_one_figure_beside_the_papers_numbers(tmp_path):
    for variant in ("plain", "fancy"):
        run = Run("toy", "squares", variant, "paper", 0, tmp_path / variant)
        record(tmp_path / "results", run, curve=POINTS)
    drawn = figures.draw_figures(tmp_path / "results", [experiment()], ())
    assert drawn == [tmp_path / "results/toy/squares-paper.png"]
    figure = figures.test_curves({"plain": POINTS, "fancy": POINTS})
    error, nlpp = figure.axes
    assert error.get_xlabel() == "time in training (minutes)" and len(error.lines) == len(nlpp.lines) == 2
    np.testing.assert_allclose(error.lines[0].get_ydata(), [10, 5, 10 / 3, 2.5, 2])
    paper = {"plain": {"error": 0.001, "nlpp": None}}
    ours, theirs = figures.test_curves({"plain": POINTS}, paper).axes[0].lines
    assert theirs.get_linestyle() == "--" and list(theirs.get_ydata()) == [0.1, 0.1]
    assert theirs.get_color() == ours.get_color()
    drawn, _ = figures.learning_curve((np.array([10, 20, 30]), np.array([-3.0, np.nan, -1.0]))).axes[0].get_lines()
    np.testing.assert_array_equal(drawn.get_xdata(), [10, 30])


MADE_BY = {"settings": {"rate": np.float32(0.5)}}


def test_a_curve_is_kept_for_the_run_that_resumes(tmp_path):
    first = Curve(tmp_path / "curve.json", MADE_BY, lambda params: {"error": params["x"]})
    for step in (10, 20, 30):
        first(step, 1.5 * step, {"x": np.float32(step)})
        assert first.points[step] == {"step": step, "seconds": 1.5 * step, "error": step}
    second = Curve(tmp_path / "curve.json", MADE_BY, lambda params: {"error": -1.0})
    second(20, 31.0, {})
    assert [point["error"] for point in second.until(30)] == [10.0, -1.0, 30.0]
    assert [point["step"] for point in second.until(20)] == [10, 20]
    # What other settings or other data made, or nobody says what made, is not taken for this run's.
    for other in ({"settings": {"rate": 0.02}}, {"settings": {"rate": 0.01}, "data": "1" * 64}):
        assert not Curve(tmp_path / "curve.json", other, dict).points
    kept.write_json(tmp_path / "curve.json", second.until(30))
    assert not Curve(tmp_path / "curve.json", MADE_BY, dict).points


@pytest.mark.filterwarnings("default")
def test_posterior_of_the_installed_arviz_is_written_and_read_back(run):
    import arviz as az

    draws = {"lengthscale": np.linspace(0.5, 2.0, 40).reshape(2, 20)}
    versioned = int(az.__version__.split(".")[0]) >= 1
    posterior = az.from_dict({"posterior": draws}) if versioned else az.from_dict(posterior=draws)
    execute(experiment(outcome(posterior=lambda: posterior)), run)
    back = az.from_netcdf(str(run.output / "posterior.nc"))
    np.testing.assert_array_equal(np.asarray(back["posterior"]["lengthscale"]), draws["lengthscale"])


def test_failing_figure_and_posterior_leave_the_numbers_and_the_other_figures(run):
    class Broken:
        def to_netcdf(self, path, *, engine):
            with open(path, "w") as file:
                file.write("half")
            raise OSError("No space left on device")

    def broken():
        raise KeyError("patches")

    result = outcome(figures={"bad": broken}, posterior=Broken)
    with pytest.raises(ReproductionError, match=r"result\.json.*bad\.png \(KeyError.*posterior\.nc .*No space left"):
        execute(experiment(result), run)
    assert {path.name for path in run.output.iterdir()} == {"run.json", "result.json", "learning_curve.png"}
    assert json.loads((run.output / "result.json").read_text())["metrics"]["error"] == 0.03


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metrics": {"error": 0.1, "nlpp": np.nan}}, "nlpp = .*not a result"),
        ({"metrics": {"error": 0.1, "nlpp": -np.inf}}, "nlpp = .*not a result"),
        ({"metrics": {"error": 0.1}}, "did not report nlpp"),
        ({"settings": {}}, "did not report its settings"),
        ({"settings": {"lr": np.nan}}, "no JSON form"),
        ({"settings": {"optimiser": object()}}, "no JSON form"),
    ],
)
def test_outcomes_that_are_no_result_are_refused(run, changes, said):
    with pytest.raises(ReproductionError, match=said):
        execute(experiment(outcome(**changes)), run)
    assert not (run.output / "result.json").exists()


def test_a_full_disk_tells_the_metrics_and_leaves_what_was_written(run, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    def train(run):
        monkeypatch.setattr(os, "fsync", full)
        return outcome(metrics={"error": 0.5, "nlpp": 0.1})

    execute(experiment(), run)
    before = {path.name for path in run.output.iterdir()}
    with pytest.raises(ReproductionError, match=r'No space left.*"error": 0\.5.*same command'):
        execute(experiment(run=train), run)
    assert json.loads((run.output / "result.json").read_text())["metrics"]["error"] == 0.03
    assert {path.name for path in run.output.iterdir()} == before


def test_output_that_cannot_be_written_or_is_of_another_run_is_refused_before_training(run):
    execute(experiment(), run)
    execute(experiment(), run)
    trained = []
    with pytest.raises(ReproductionError, match=r"seed=3.*another --output"):
        execute(experiment(run=trained.append), dataclasses.replace(run, seed=4))
    with pytest.raises(ReproductionError, match="Cannot write to"):
        execute(experiment(run=trained.append), dataclasses.replace(run, output=run.output / "run.json" / "out"))
    assert not trained


@pytest.mark.parametrize("content", [b"[1]", b"{", b"\xff\xfe", b'{"paper": "toy"}', "starts"])
def test_a_damaged_claim_is_refused_by_name(run, content):
    run.output.mkdir()
    if content == "starts":
        content = json.dumps(run.identity | {"starts": [{"commit": None}]}).encode()
    (run.output / "run.json").write_bytes(content)
    with pytest.raises(ReproductionError, match=r"run\.json is damaged: choose another --output"):
        execute(experiment(), run)


def test_a_run_that_fails_before_it_keeps_anything_claims_nothing(run):
    def absent(run):
        raise OSError("the data are absent")

    with pytest.raises(OSError, match="absent"):
        execute(experiment(run=absent), run)
    assert not list(run.output.iterdir())
    execute(experiment(), dataclasses.replace(run, seed=4))

    def stopped(run):
        checkpointed(run, 40)
        raise KeyboardInterrupt

    other = dataclasses.replace(run, output=run.output.with_name("other"))
    with pytest.raises(KeyboardInterrupt):
        execute(experiment(run=stopped), other)
    with pytest.raises(ReproductionError, match="holds another run"):
        execute(experiment(), dataclasses.replace(other, seed=4))


def checkpointed(run, step, name=""):
    folder = run.checkpoint / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{step}.checkpoint").touch()


def at_commit(monkeypatch, commit, clean=True):
    monkeypatch.setattr(kept, "commit", lambda: commit)
    monkeypatch.setattr(kept, "clean", lambda: clean)


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
    with pytest.raises(ReproductionError, match="whose commit was not recorded: choose another --output"):
        execute(experiment(), run)


def test_a_checkout_with_changed_settings_is_not_clean(tmp_path, monkeypatch):
    """Settings stand in TOML files: a run by others than those of the commit must not say that it is clean."""
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b")
    (tmp_path / "paper.toml").write_text("steps = 1", encoding="utf-8")
    for command in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "settings")):
        subprocess.run([*git, *command], check=True)
    monkeypatch.setattr(kept, "_ROOT", tmp_path.resolve())
    for cached in (kept.commit, kept.clean):
        cached.cache_clear()
    try:
        assert kept.clean() is True
        (tmp_path / "paper.toml").write_text("steps = 2", encoding="utf-8")
        kept.clean.cache_clear()
        assert kept.clean() is False
    finally:
        for cached in (kept.commit, kept.clean):
            cached.cache_clear()


def test_one_outcome_is_made_of_several_splits(run):
    """Of means and sums; the model, the data and the settings of one of them."""
    seen = []

    def one(own):
        seen.append((own.split, own.checkpoint))
        metrics = {"nlpp": float(own.split), "nlpp_se": 9.0}
        chosen = {"rule": "by hand", "candidates": [own.split]}
        settings = {"split": own.split}
        inspected = Inspected(None, (), {}, "svdkl")
        return outcome(metrics=metrics, settings=settings, selection=chosen, inspected=inspected)

    found = over_splits(run, 3, one, of=20, shown=-1, settings=lambda every: {"count": len(every)})
    assert seen == [(k, run.output / "checkpoint" / str(k)) for k in range(3)]
    assert found.metrics == {"nlpp": 1.0, "nlpp_se": pytest.approx(1 / np.sqrt(3))}
    assert found.settings == {"split": 2, "count": 3} and found.selection["candidates"] == [0, 1, 2]
    assert (found.steps, found.seconds_training) == (600, 12.0)
    assert found.folds == {"count": 3, "of": 20, "seeds": [0, 1, 2]} and found.inspected.which == "svdkl, split 3 of 3"


def test_what_a_run_says_of_its_data_is_recorded(run):
    whole, used = Data(sizes={"train": 60_000, "test": 100}), Data(sizes={"train": 12, "test": 100})
    part = subset(whole, used, "random, seed 0")
    assert part == {"train": 12, "of": 60_000, "test": 100, "of_test": 100, "rule": "random, seed 0"}
    assert subset(whole, whole, "all") is None
    said = {"subset": part, "folds": {"count": 3, "of": 20, "seeds": [0, 1, 2]}, "selection": {"rule": "by hand"}}
    result = make_result(outcome(data=used, **said, stands_in=True), run, {"error": 0.02})
    assert said == {key: result[key] for key in said}
    shown = text(result, {"error": 0.02})
    assert "Trained on 12 of 60,000 rows" in shown and "stand in for" in shown
    assert "verdict" not in shown
    small = text(make_result(outcome(), run, PAPER), PAPER)
    assert "0.02" in small and "verdict" not in small and "checks the program" in small
    plain = make_result(outcome(), run, {})
    assert [plain[key] for key in said] == [None, None, None]


def test_an_intermediate_result_is_used_again_only_where_the_same_things_made_it(tmp_path, run, monkeypatch):
    path, made = tmp_path / "scores.json", []

    def make():
        made.append(1)
        return {"error": np.float32(len(made))}

    def again(settings, data=None, **changes):
        own = dataclasses.replace(run, **changes)
        return kept.kept(path, own.made_by(settings, data or Data()), make)["error"]

    assert again({"rate": 0.1}) == again({"rate": np.float64(0.1)}) == 1
    assert again({"rate": 0.2}) == 2
    assert again({"rate": 0.2}, Data(sha256="1" * 64)) == 3
    assert again({"rate": 0.2}, seed=4) == 4
    monkeypatch.setattr(kept, "program", lambda: "another program")
    assert again({"rate": 0.2}, seed=4) == again({"rate": 0.2}, seed=4) == 5
    for damage in (b"{", b"[1]", b"null", b"\xff", b'{"error": 5.0}'):
        path.write_bytes(damage)
        count = len(made)
        assert again({"rate": 0.2}, seed=4) == count + 1


PAPER = {"error": 0.02, "nlpp": 0.2, "angle_degrees": 80.0}


def test_table_shows_shortfalls(run):
    run = dataclasses.replace(run, preset="paper")
    result = make_result(outcome(data=Data(sizes={"train": 12, "test": 50_000})), run, PAPER)
    rows = {line.split()[0]: line.split()[1:] for line in text(result, PAPER).splitlines() if line.strip()}
    assert rows["metric"] == ["ours", "paper", "verdict"]
    assert rows["error"] == ["0.03", "0.02", "short", "by", "0.010"]
    assert rows["nlpp"] == ["0.1", "0.2", "undecided"]
    assert rows["angle_degrees"] == ["90", "80"]


def record(folder, run, **changes):
    result = make_result(outcome(), run, {"error": 0.02})
    path = result_path(folder, run.paper, run.experiment, run.variant, run.preset)
    path.parent.mkdir(parents=True, exist_ok=True)
    kept.write_json(path, {**result, **changes})
    return path


WIDE = {f"{model}_{kind}": 0.8123 for model in ("dnn-long", "svdkl") for kind in ("accuracy", "nlpp", "nlpp_se")}
WIDE |= {"sgp-500_test_log_likelihood_se": 0.01234, "learned_angle_degrees": 123.4, "elbo": -123456.7}


def test_tables_fit_the_terminal_and_no_word_is_cut(run):
    paper = dict.fromkeys(WIDE, 0.7)
    runs = [dataclasses.replace(run, variant=variant) for variant in ("weighted-rbf-full", "plain")]
    results = [make_result(outcome(metrics=WIDE), own, paper) for own in runs]
    for shown, words in (
        (report.table(results[1], paper), {"metric", "ours", "paper", "accuracy:", "elbo:", "se:", "angle"}),
        (report.comparison(results, 60), {"variant", "learned", "angle", "degrees", "seconds", "weighted-rbf-full"}),
    ):
        console = Console(file=io.StringIO(), width=60)
        console.print(shown)
        lines = console.file.getvalue().splitlines()
        assert max(map(len, lines)) <= 60 and not any("…" in line for line in lines)
        assert words <= set(" ".join(lines).replace("learned_angle_degrees", "angle").split())
