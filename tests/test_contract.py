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

from gpzoo.reproductions import contract, figures, report
from gpzoo.reproductions.contract import Experiment, Outcome, ReproductionError, Run


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


def text(result):
    console = Console(file=io.StringIO(), width=100)
    console.print(report.table(result))
    return console.file.getvalue()


FIELDS = [
    "paper", "experiment", "variant", "preset", "seed", "metrics", "paper_metrics", "stands_in", "curve", "settings",
    "steps", "seconds_training", "seconds_per_step", "peak_memory_bytes", "device", "dtype", "versions", "data",
    "finished",
]  # fmt: skip


def test_presets_are_known():
    with pytest.raises(ValueError, match=r"Presets are quick, cpu, paper; toy squares has \['huge'\]"):
        experiment(presets=("quick", "huge"))


def test_result_file_has_the_fields_and_nothing_else(run):
    returned = contract.execute(experiment(), run)
    result = json.loads((run.output / "result.json").read_text())
    assert result == returned
    assert list(result) == FIELDS
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

    contract.execute(experiment(outcome(figures={"one": Figure(), "two": Figure})), run)
    written = {path.name for path in run.output.iterdir()}
    assert written == {"run.json", "result.json", "learning_curve.png", "one.png", "two.png"}
    assert (run.output / "one.png").read_bytes().startswith(b"\x89PNG")


POINTS = [{"step": 100 * i, "seconds": 60.0 * i, "error": 0.1 / i, "nlpp": 0.3 / i} for i in range(1, 6)]


def test_test_metrics_over_time_are_recorded_and_drawn(run):
    result = contract.execute(experiment(outcome(curve=POINTS)), run)
    assert result["curve"] == POINTS and (run.output / "test_curves.png").is_file()


def test_all_variants_are_drawn_in_one_figure(tmp_path):
    for variant in ("plain", "fancy"):
        run = Run("toy", "squares", variant, "paper", 0, tmp_path / variant)
        result = contract.execute(experiment(outcome(curve=POINTS)), run)
        path = report.result_path(tmp_path / "results", "toy", "squares", variant, "paper")
        path.parent.mkdir(parents=True, exist_ok=True)
        contract.write_json(path, result)
    assert report.draw_figures(tmp_path / "results", [experiment()]) == [tmp_path / "results/toy/squares-paper.png"]
    page = report.results_page(tmp_path / "results", [experiment()])
    assert "squares, paper](reproductions/results/toy/squares-paper.png)" in page and "squares-quick.png" not in page
    figure = figures.test_curves({"plain": POINTS, "fancy": POINTS})
    error, nlpp = figure.axes
    assert error.get_xlabel() == "time in training (minutes)" and len(error.lines) == len(nlpp.lines) == 2
    np.testing.assert_allclose(error.lines[0].get_ydata(), [10, 5, 10 / 3, 2.5, 2])
    more = [point | {"learned_angle_degrees": 9.0} for point in POINTS]
    error, _, angle = figures.test_curves({"plain": POINTS, "fancy": more}).axes
    assert len(error.lines) == 2 and len(angle.lines) == 1
    assert angle.lines[0].get_color() == error.lines[1].get_color()


def test_a_curve_is_kept_for_the_run_that_resumes(tmp_path):
    first = figures.Curve(tmp_path / "curve.json", lambda params: {"error": params["x"]})
    for step in (10, 20, 30):
        first(step, 1.5 * step, {"x": np.float32(step)})
        assert first.points[step] == {"step": step, "seconds": 1.5 * step, "error": step}
    second = figures.Curve(tmp_path / "curve.json", lambda params: {"error": -1.0})
    second(20, 31.0, {})
    assert [point["error"] for point in second.until(30)] == [10.0, -1.0, 30.0]
    assert [point["step"] for point in second.until(20)] == [10, 20]


def test_a_curve_that_cannot_be_written_does_not_end_the_training(tmp_path):
    curve = figures.Curve(tmp_path / "gone" / "curve.json", lambda params: {"error": 0.5})
    with pytest.warns(RuntimeWarning, match=r"cannot write .*curve.json: No such file"):
        curve(10, 1.0, {})
    assert curve.until(10) == [{"step": 10, "seconds": 1.0, "error": 0.5}]


@pytest.mark.filterwarnings("default")
def test_posterior_of_the_installed_arviz_is_written_and_read_back(run):
    import arviz as az

    draws = {"lengthscale": np.linspace(0.5, 2.0, 40).reshape(2, 20)}
    versioned = int(az.__version__.split(".")[0]) >= 1
    posterior = az.from_dict({"posterior": draws}) if versioned else az.from_dict(posterior=draws)
    contract.execute(experiment(outcome(posterior=posterior)), run)
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

    result = outcome(figures={"bad": broken}, posterior=Broken())
    with pytest.raises(ReproductionError, match=r"result\.json.*bad\.png \(KeyError.*posterior\.nc .*No space left"):
        contract.execute(experiment(result), run)
    assert {path.name for path in run.output.iterdir()} == {"run.json", "result.json", "learning_curve.png"}
    assert json.loads((run.output / "result.json").read_text())["metrics"]["error"] == 0.03


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_metrics_that_are_not_finite_are_refused(run, value):
    with pytest.raises(ReproductionError, match=r"nlpp = .*not a result"):
        contract.execute(experiment(outcome(metrics={"error": 0.1, "nlpp": value})), run)
    assert not (run.output / "result.json").exists()


def test_a_metric_of_the_paper_must_be_reported(run):
    with pytest.raises(ReproductionError, match="did not report nlpp"):
        contract.execute(experiment(outcome(metrics={"error": 0.1})), run)


@pytest.mark.parametrize("settings", [{"lr": np.nan}, {"optimiser": object()}])
def test_settings_that_json_cannot_hold_are_refused(run, settings):
    with pytest.raises(ReproductionError, match="no JSON form"):
        contract.execute(experiment(outcome(settings=settings)), run)


def test_writing_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    contract.write_json(path, {"a": 1})

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        contract.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_full_disk_after_training_tells_the_metrics(run, monkeypatch):
    def train(run):
        monkeypatch.setattr(os, "fsync", full)
        return outcome()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with pytest.raises(ReproductionError, match=r'No space left.*"error": 0\.03.*same command'):
        contract.execute(experiment(run=train), run)


def test_unwritable_output_is_reported_before_training(tmp_path):
    (tmp_path / "file").write_text("in the way")
    run = Run("toy", "squares", "plain", "quick", 0, tmp_path / "file" / "out")
    trained = []
    with pytest.raises(ReproductionError, match="Cannot write to"):
        contract.execute(experiment(run=trained.append), run)
    assert not trained


def test_output_of_another_run_is_refused_and_of_the_same_run_reused(run):
    contract.execute(experiment(), run)
    contract.execute(experiment(), run)
    with pytest.raises(ReproductionError, match=r"seed=3.*another --output"):
        contract.execute(experiment(), dataclasses.replace(run, seed=4))


def test_default_variant_must_exist():
    with pytest.raises(ValueError, match=r"'best'.*plain, fancy"):
        experiment(default_variant="best")


def test_table_shows_shortfalls(run):
    shown = text(contract.make_result(outcome(), run, {"error": 0.02, "nlpp": 0.2, "angle_degrees": 80.0}))
    error, nlpp, angle = (line for line in shown.splitlines() if line.startswith("│"))
    assert "+0.01" in error and "short by 0.01" in error
    assert "-0.1" in nlpp and "reached" in nlpp
    assert "+10" in angle and "short" not in angle and "reached" not in angle


@pytest.mark.parametrize(
    ("metric", "ours", "paper", "behind"),
    [
        ("error", 0.03, 0.02, 0.01),
        ("rmse", 1.0, 2.0, None),
        ("nlpp", 0.1, None, None),
        ("accuracy", 0.9, 0.95, 0.05),
        ("test_log_likelihood", -1.0, -2.0, None),
        ("auc", 0.8, 0.8, None),
        ("angle_degrees", 10.0, 90.0, None),
    ],
)
def test_shortfall_follows_the_better_direction(metric, ours, paper, behind):
    assert report.shortfall(metric, ours, paper) == (behind if behind is None else pytest.approx(behind))


def record(folder, run, **changes):
    result = contract.make_result(outcome(), run, {"error": 0.02})
    path = report.result_path(folder, run.paper, run.experiment, run.variant, run.preset)
    path.parent.mkdir(parents=True, exist_ok=True)
    contract.write_json(path, {**result, **changes})
    return path


def test_results_page_has_recorded_numbers_and_says_what_was_not_run(tmp_path, run):
    record(tmp_path, run)
    page = report.results_page(tmp_path, [experiment()])
    lines = page.splitlines()
    assert "## toy" in lines and "### squares" in lines
    assert "| plain | quick | error | 0.03 | 0.02 | +0.01 | short by 0.01 |" in lines
    assert "| plain | quick | nlpp | 0.1 | 0.2 | -0.1 | reached |" in lines
    assert "| plain | paper | error | not run | 0.02 | - |  |" in lines
    assert "| fancy | paper | error | not run | 0.01 | - |  |" in lines
    assert any(line.startswith("| plain | quick | 3 | 200 | 4 s | 20 ms |") and "numpyro" in line for line in lines)


def test_results_page_without_any_result(tmp_path):
    page = report.results_page(tmp_path, [experiment()])
    assert page.count("not run") == 4
    assert "seed" not in page


def test_results_page_refuses_files_it_cannot_place(tmp_path, run):
    path = record(tmp_path, run, variant="fancy")
    with pytest.raises(ReproductionError, match="holds the result of toy squares fancy quick"):
        report.results_page(tmp_path, [experiment()])
    path.write_text("{")
    with pytest.raises(ReproductionError, match="not a result file"):
        report.results_page(tmp_path, [experiment()])
    path.rename(path.with_name("squares-plane-quick.json"))
    with pytest.raises(ReproductionError, match=r"squares-plane-quick\.json"):
        report.results_page(tmp_path, [experiment()])


@pytest.mark.parametrize(("seconds", "shown"), [(42.4, "42 s"), (738, "12.3 min"), (36360, "10.1 h")])
def test_duration(seconds, shown):
    assert report.duration(seconds) == shown


def test_running_mean():
    np.testing.assert_allclose(figures.running_mean(np.array([1.0, 3.0, 5.0, 7.0]), 2), [1.0, 2.0, 4.0, 6.0])


def test_learning_curve_takes_steps_and_leaves_out_what_is_not_finite():
    figure = figures.learning_curve((np.array([10, 20, 30]), np.array([-3.0, np.nan, -1.0])))
    drawn, _ = figure.axes[0].get_lines()
    np.testing.assert_array_equal(drawn.get_xdata(), [10, 30])
    with pytest.raises(ValueError, match="matching steps"):
        figures.learning_curve((np.arange(3), np.zeros(2)))
    with pytest.raises(ValueError, match="matching steps"):
        figures.learning_curve(np.zeros(0))
