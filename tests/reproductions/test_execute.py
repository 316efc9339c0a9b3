"""What a run writes, that nothing written is lost, and how ours is shown beside the paper's."""

import dataclasses
import io
import json
import os
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from gpzoo.reproductions import figures, kept, provenance
from gpzoo.reproductions import terminal as report
from gpzoo.reproductions.execute import device, execute, make_result
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


def test_presets_are_known():
    with pytest.raises(ValueError, match=r"Presets are quick, cpu, tuned, paper; toy squares has \['huge'\]"):
        experiment(presets=("quick", "huge"))


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


def test_the_device_says_which_part_of_its_cores_a_bound_process_has(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 2}, raising=False)
    assert device().endswith(", 2 of 4 CPU cores")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(4)), raising=False)
    assert device().endswith(", 4 CPU cores")


def test_files_of_a_run(run):
    from matplotlib.figure import Figure

    execute(experiment(outcome(figures={"one": Figure(), "two": Figure})), run)
    written = {path.name for path in run.output.iterdir()}
    assert written == {"run.json", "result.json", "learning_curve.png", "one.png", "two.png"}
    assert (run.output / "one.png").read_bytes().startswith(b"\x89PNG")


POINTS = [{"step": 100 * i, "seconds": 60.0 * i, "error": 0.1 / i, "nlpp": 0.3 / i} for i in range(1, 6)]


def test_test_metrics_over_time_are_recorded_and_drawn(run):
    result = execute(experiment(outcome(curve=POINTS)), run)
    assert result["curve"] == POINTS and (run.output / "test_curves.png").is_file()


def test_all_variants_are_drawn_in_one_figure(tmp_path):
    for variant in ("plain", "fancy"):
        run = Run("toy", "squares", variant, "paper", 0, tmp_path / variant)
        record(tmp_path / "results", run, curve=POINTS)
    drawn = figures.draw_figures(tmp_path / "results", [experiment()], ())
    assert drawn == [tmp_path / "results/toy/squares-paper.png"]
    figure = figures.test_curves({"plain": POINTS, "fancy": POINTS})
    error, nlpp = figure.axes
    assert error.get_xlabel() == "time in training (minutes)" and len(error.lines) == len(nlpp.lines) == 2
    np.testing.assert_allclose(error.lines[0].get_ydata(), [10, 5, 10 / 3, 2.5, 2])
    more = [point | {"learned_angle_degrees": 9.0} for point in POINTS]
    error, _, angle = figures.test_curves({"plain": POINTS, "fancy": more}).axes
    assert len(error.lines) == 2 and len(angle.lines) == 1
    assert angle.lines[0].get_color() == error.lines[1].get_color()


def test_the_papers_numbers_are_dashed_lines_within_the_axes():
    (error, nlpp) = figures.test_curves({"plain": POINTS}, {"plain": {"error": 0.001, "nlpp": None}}).axes
    ours, paper = error.lines
    assert paper.get_linestyle() == "--" and list(paper.get_ydata()) == [0.1, 0.1] and len(nlpp.lines) == 1
    assert paper.get_color() == ours.get_color() and error.get_ylim()[0] < 0.1
    (alone,) = figures.test_curves({"plain": POINTS}, metrics=("nlpp",)).axes
    assert alone.get_ylabel() == "test nlpp (nats)"


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


def test_a_curve_that_cannot_be_written_does_not_end_the_training(tmp_path):
    curve = Curve(tmp_path / "gone" / "curve.json", MADE_BY, lambda params: {"error": 0.5})
    with pytest.warns(RuntimeWarning, match=r"cannot write .*curve.json: No such file"):
        curve(10, 1.0, {})
    assert curve.until(10) == [{"step": 10, "seconds": 1.0, "error": 0.5}]


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


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_metrics_that_are_not_finite_are_refused(run, value):
    with pytest.raises(ReproductionError, match=r"nlpp = .*not a result"):
        execute(experiment(outcome(metrics={"error": 0.1, "nlpp": value})), run)
    assert not (run.output / "result.json").exists()


def test_a_metric_of_the_paper_must_be_reported(run):
    with pytest.raises(ReproductionError, match="did not report nlpp"):
        execute(experiment(outcome(metrics={"error": 0.1})), run)


@pytest.mark.parametrize("settings", [{"lr": np.nan}, {"optimiser": object()}])
def test_settings_that_json_cannot_hold_are_refused(run, settings):
    with pytest.raises(ReproductionError, match="no JSON form"):
        execute(experiment(outcome(settings=settings)), run)


def test_writing_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    kept.write_json(path, {"a": 1})

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        kept.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_full_disk_after_training_tells_the_metrics(run, monkeypatch):
    def train(run):
        monkeypatch.setattr(os, "fsync", full)
        return outcome()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with pytest.raises(ReproductionError, match=r'No space left.*"error": 0\.03.*same command'):
        execute(experiment(run=train), run)


def test_unwritable_output_is_reported_before_training(tmp_path):
    (tmp_path / "file").write_text("in the way")
    run = Run("toy", "squares", "plain", "quick", 0, tmp_path / "file" / "out")
    trained = []
    with pytest.raises(ReproductionError, match="Cannot write to"):
        execute(experiment(run=trained.append), run)
    assert not trained


def test_output_of_another_run_is_refused_and_of_the_same_run_reused(run):
    execute(experiment(), run)
    execute(experiment(), run)
    with pytest.raises(ReproductionError, match=r"seed=3.*another --output"):
        execute(experiment(), dataclasses.replace(run, seed=4))


@pytest.mark.parametrize(
    "content", [b"[1]", b"null", b"3", b"\xff\xfe", b"{", b"{}", b"[" * 100_000, b'{"paper": "toy"}', "starts"]
)  # fmt: skip
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
    monkeypatch.setattr(provenance, "commit", lambda: commit)
    monkeypatch.setattr(provenance, "clean", lambda: clean)


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
    assert (found["commit"], found["clean"], found["commits"], found["resumed_from"]) == (
        "b" * 40,
        True,
        ["b" * 40],
        [],
    )
    # A folder may be named after its split, which is no number of steps.
    found = step("c" * 40, False, (70, "sgp"), (20, "7/plain"), (10, "7/long"))
    assert (found["commit"], found["clean"], found["resumed_from"]) == ("b" * 40, False, [40])
    # Written again from what was kept: the commit is still that of the training.
    found = step("d" * 40, True)
    assert (found["commit"], found["resumed_from"]) == ("b" * 40, [40, 100])
    assert found["commits"] == [letter * 40 for letter in "bcd"]
    assert found["command"] == "gpzoo reproduce toy squares --variant plain --preset quick --seed 3"


def test_a_training_whose_commit_was_not_recorded_is_refused(run, monkeypatch):
    checkpointed(run, 40)
    kept.write_json(run.output / "run.json", run.identity)
    at_commit(monkeypatch, "c" * 40)
    with pytest.raises(ReproductionError, match="whose commit was not recorded: choose another --output"):
        execute(experiment(), run)


def test_a_result_has_the_commit_of_its_checkout_or_the_version_of_its_package(run, monkeypatch, tmp_path):
    at_commit(monkeypatch, None, None)
    monkeypatch.setattr(provenance, "_ROOT", tmp_path)
    found = execute(experiment(), run)
    assert (found["commit"], found["clean"]) == (None, None) and found["versions"]["gpzoo"]
    (tmp_path / ".git").mkdir()
    trained = []
    with pytest.raises(ReproductionError, match="cannot be read, and no result is recorded without it"):
        execute(experiment(run=trained.append), dataclasses.replace(run, output=tmp_path / "other"))
    assert not trained
    with pytest.raises(ReproductionError, match="did not report its settings"):
        make_result(outcome(settings={}), run, {}, [{"commit": "a" * 40, "clean": True, "steps": 0}])


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

    def rates(every):
        return {"by_split": [each.metrics["nlpp"] for each in every]}

    found = over_splits(run, 3, one, of=20, shown=-1, settings=rates)
    assert seen == [(k, run.output / "checkpoint" / str(k)) for k in range(3)]
    assert found.metrics == {"nlpp": 1.0, "nlpp_se": pytest.approx(1 / np.sqrt(3))}
    assert found.settings == {"split": 2, "by_split": [0, 1, 2]} and found.selection["candidates"] == [0, 1, 2]
    assert (found.steps, found.seconds_training) == (600, 12.0)
    assert found.folds == {"count": 3, "of": 20, "seeds": [0, 1, 2]} and found.inspected.which == "svdkl, split 3 of 3"
    # Of a finished run, only the split that it kept is looked at.
    found = over_splits(dataclasses.replace(run, finished=True), 3, one, shown=-1)
    assert found.metrics["nlpp"] == 2.0 and found.inspected.which == "svdkl, split 3 of 3" and len(seen) == 4


def test_outside_a_checkout_there_is_no_commit(monkeypatch, tmp_path):
    for where in ("commit", "clean"):
        monkeypatch.setattr(provenance, where, getattr(provenance, where).__wrapped__)
    monkeypatch.setattr(provenance, "_ROOT", tmp_path)
    assert provenance.commit() is None and provenance.clean() is None
    monkeypatch.setenv("PATH", "")
    assert provenance._git("--version") is None


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
    monkeypatch.setattr(provenance, "program", lambda: "another program")
    assert again({"rate": 0.2}, seed=4) == again({"rate": 0.2}, seed=4) == 5
    for damage in (b"{", b"[1]", b"null", b"\xff", b'{"error": 5.0}'):
        path.write_bytes(damage)
        count = len(made)
        assert again({"rate": 0.2}, seed=4) == count + 1


def test_the_source_of_every_package_makes_the_program(monkeypatch):
    program = provenance.program.__wrapped__
    assert program() == program() == provenance.program()
    monkeypatch.setattr(provenance, "_PACKAGES", provenance._PACKAGES[:3])
    assert program() != provenance.program()


def test_default_variant_must_exist():
    with pytest.raises(ValueError, match=r"'best'.*plain, fancy"):
        experiment(default_variant="best")


PAPER = {"error": 0.02, "nlpp": 0.2, "angle_degrees": 80.0}


def test_table_shows_shortfalls(run):
    run = dataclasses.replace(run, preset="paper")
    result = make_result(outcome(data=Data(sizes={"train": 12, "test": 50_000})), run, PAPER)
    rows = {line.split()[0]: line.split()[1:] for line in text(result, PAPER).splitlines() if line.strip()}
    assert rows["metric"] == ["ours", "paper", "verdict"]
    assert rows["error"] == ["0.03", "0.02", "short", "by", "0.010"]
    assert rows["nlpp"] == ["0.1", "0.2", "reached"]
    assert rows["angle_degrees"] == ["90", "80"]


def test_a_small_run_is_not_judged(run):
    shown = text(make_result(outcome(), run, PAPER), PAPER)
    assert "0.02" in shown and "verdict" not in shown and "checks the program" in shown


def record(folder, run, **changes):
    result = make_result(outcome(), run, {"error": 0.02})
    path = result_path(folder, run.paper, run.experiment, run.variant, run.preset)
    path.parent.mkdir(parents=True, exist_ok=True)
    kept.write_json(path, {**result, **changes})
    return path


WIDE = {f"{model}_{kind}": 0.8123 for model in ("dnn-long", "svdkl") for kind in ("accuracy", "nlpp", "nlpp_se")}
WIDE |= {"sgp-500_test_log_likelihood_se": 0.01234, "learned_angle_degrees": 123.4, "elbo": -123456.7}


@pytest.mark.parametrize("width", [60, 80])
def test_tables_fit_the_terminal_and_no_word_is_cut(run, width):
    results = []
    for variant in ("weighted-rbf-full", "plain"):
        paper = dict.fromkeys(WIDE, 0.7)
        own = dataclasses.replace(run, variant=variant)
        results.append(make_result(outcome(metrics=WIDE), own, paper))
    results.append(make_result(outcome(metrics=WIDE), dataclasses.replace(run, preset="paper"), paper))
    tables = [report.table(result, paper) for result in results[1:]]
    for shown in (*tables, report.comparison(results[:2], width)):
        console = Console(file=io.StringIO(), width=width)
        console.print(shown)
        lines = console.file.getvalue().splitlines()
        assert max(map(len, lines)) <= width and not any("…" in line for line in lines)
        words = " ".join(lines).split()
        if "metric" in words:
            assert {"metric", "ours", "paper"} <= set(words)
        else:
            assert {"variant", "learned", "angle", "degrees", "seconds", "weighted-rbf-full"} <= set(words)
            assert sum(word == "plain" for word in words) == sum(word == "variant" for word in words) >= 2


def test_the_words_of_a_table_are_explained(run):
    shown = " ".join(text(make_result(outcome(metrics=WIDE | {"error": 0.1}), run, {}), {}).split())
    for word in ("accuracy:", "nlpp: negative log", "elbo: evidence lower bound", "se: standard error", "error: share"):
        assert word in shown


@pytest.mark.parametrize(("seconds", "shown"), [(42.4, "42 s"), (738, "12.3 min"), (36360, "10.1 h")])
def test_duration(seconds, shown):
    assert report.duration(seconds) == shown


def test_learning_curve_takes_steps_and_leaves_out_what_is_not_finite():
    figure = figures.learning_curve((np.array([10, 20, 30]), np.array([-3.0, np.nan, -1.0])))
    drawn, _ = figure.axes[0].get_lines()
    np.testing.assert_array_equal(drawn.get_xdata(), [10, 30])
    with pytest.raises(ValueError, match="matching steps"):
        figures.learning_curve((np.arange(3), np.zeros(2)))
    with pytest.raises(ValueError, match="matching steps"):
        figures.learning_curve(np.zeros(0))
