"""The experiments of the deep GP paper: every variant has its settings, and small ones are run from end to end."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from gpzoo.errors import CheckpointError
from gpzoo.reproductions import datasets, training
from gpzoo.reproductions import deep as paper
from gpzoo.reproductions import deep_few_steps as few
from gpzoo.reproductions import deep_models as models
from gpzoo.reproductions import deep_uci as benchmarks
from gpzoo.reproductions.execute import execute
from gpzoo.reproductions.experiment import Run
from gpzoo.reproductions.figures import draw_figures
from gpzoo.reproductions.records import _OLD_FIELDS, result_path
from gpzoo.reproductions.sweep import Folds, Scores, figure_1
from gpzoo.reproductions.training import Setting
from tests.programs import nothing_exported

EXPERIMENTS = {experiment.name: experiment for experiment in paper.EXPERIMENTS}


def tiny(name, split=0, rows=40):
    """A regression or classification set of a few rows, in units of its own."""
    rng = np.random.default_rng(split)
    X = rng.standard_normal((rows, 3)) * [1, 10, 100] + 5
    f = np.sin(X[:, 0]) + X[:, 1] / 10
    y = (f > np.median(f)).astype(np.int32) if name == "classes" else 50 + 20 * f
    return datasets.Dataset(name, X[:30], y[:30], X[30:], y[30:], "generated", {name: "0" * 64})


@pytest.fixture
def short(monkeypatch, standard_promotion):
    """Three steps, five inducing points, at most two layers."""
    for name, (depth, _) in list(models.MODELS.items()):
        monkeypatch.setitem(models.MODELS, name, (min(depth, 2), 5))
    for module in (paper, benchmarks):
        monkeypatch.setattr(module, "Setting", lambda steps, size, **options: Setting(3, min(size, 20), **options))
        for name in ("PAPER", "TUNED"):
            monkeypatch.setattr(module, name, replace(getattr(module, name), steps=3, batch_size=20))
    monkeypatch.setattr(benchmarks, "_COLLAPSED", replace(benchmarks._COLLAPSED, steps=2))
    monkeypatch.setattr(benchmarks, "_WATCHED", (2, 3, 500))


@pytest.fixture
def not_exported(monkeypatch):
    """No posterior is exported: that is the same call in every run, and seen in that of one training."""
    monkeypatch.setattr(training, "exported", nothing_exported)


def run_of(name, variant, tmp_path, preset="quick"):
    return Run("deep", name, variant, preset, 0, tmp_path / "run")


CASES = [
    (name, variant, preset)
    for name, experiment in EXPERIMENTS.items()
    for variant, preset in itertools.product(experiment.variants, experiment.presets)
    if name in ("rectangles-images", "mnist", "year", "airline", "higgs", "susy")
    or (name == "taxi" and preset == "quick")  # under "paper" its files are made first: test_journeys_are_streamed
]


@pytest.mark.parametrize("name, variant, preset", CASES)
def test_every_variant_and_preset_has_settings(name, variant, preset, monkeypatch, tmp_path):
    loaded, trained = [], []
    monkeypatch.setattr(datasets, "load", lambda name: loaded.append(name) or tiny(name))
    monkeypatch.setattr(datasets.Dataset, "subset", lambda self, *counts: self)
    monkeypatch.setattr(paper, "_train", lambda *given, **options: trained.append((given, options)))
    EXPERIMENTS[name].run(run_of(name, variant, tmp_path, preset))
    (_, data, setting), options = trained[0]
    described = models.described(setting)
    generated = preset == "quick" and name != "mnist"
    assert loaded == [f"{name}-generated" if generated else name]
    assert setting.steps >= 200
    if preset == "paper":
        # Those of the authors' code: a constant rate, kernels that start as theirs.
        assert (setting.steps, setting.batch_size) == (20_000, 1_000 if name == "mnist" else 10_000)
        rate = setting.learning_rate
        assert rate.name == "Adam, 0.01" and float(rate.schedule(19_999)) == 0.01
        starts = {"lengthscale": 2.0, "variance": 2.0} if name == "mnist" else {"lengthscale": 1.0, "variance": 1.0}
        assert described["start"] == starts and "lengthscale" not in options
    if name != "mnist" and not data.is_classification:
        assert data.y_std > 1  # standardised, and back in the metrics


def test_models_are_those_of_the_paper():
    assert models.MODELS["sgp-500"] == (1, 500)
    assert [models.MODELS[f"dgp{n}"] for n in (2, 3, 4, 5)] == [(n, 100) for n in (2, 3, 4, 5)]
    X = np.random.default_rng(0).standard_normal((50, 40))
    assert [W.shape for W in models.layers_of("dgp4", X)] == [(40, 30), (30, 30), (30, 30)]
    assert [W.shape for W in models.layers_of("dgp2", X[:, :4])] == [(4, 4)]


@pytest.mark.slow
def test_a_fold_run_has_every_metric_and_resumes(short, monkeypatch, tmp_path):
    monkeypatch.setattr(datasets, "load", tiny)
    run = run_of("uci", "boston", tmp_path)
    result = execute(EXPERIMENTS["uci"], run)
    metrics = result["metrics"]
    assert set(metrics) == {
        f"{model}_{metric}{end}"
        for model, metric, end in itertools.product(("sgp", "dgp3"), ("test_log_likelihood", "rmse"), ("", "_se"))
    }
    folds = result["settings"]["by_fold"]["dgp3"]
    assert metrics["dgp3_rmse"] == pytest.approx(np.mean(folds["rmse"])) and len(folds["rmse"]) == 3
    assert metrics["dgp3_rmse_se"] == pytest.approx(np.std(folds["rmse"], ddof=1) / np.sqrt(3))
    assert 1 < metrics["sgp_rmse"] < 100  # in the units of the target
    assert {"figure_1.png", "learning_curve.png", "posterior.nc"} <= {path.name for path in run.output.iterdir()}
    # Started again, what is done is not done again.
    monkeypatch.setattr(benchmarks, "exported", nothing_exported)
    kept, trained = benchmarks.kept, []
    monkeypatch.setattr(
        benchmarks, "kept", lambda path, by, make: kept(path, by, lambda: trained.append(path) or make())
    )
    again = execute(EXPERIMENTS["uci"], run)
    assert again["metrics"] == metrics and not trained and again["resumed_from"] == [6]
    assert again["folds"] == {"count": 3, "of": 20, "seeds": [0, 1, 2]}
    # A report reads the model of one split.
    with monkeypatch.context() as changed:
        changed.setattr(benchmarks, "train_folds", None)
        found = EXPERIMENTS["uci"].run(replace(run, finished=True)).inspected
        assert found.which == "DGP 3, split 1 of 3" and len(found.args[1]) == 10
        assert found.trained.losses.shape == (3,) and found.trained.params["f_mean"].shape == (5,)
    # Other settings have not made what is kept.
    monkeypatch.setattr(benchmarks, "Setting", lambda steps, size: replace(paper.TUNED, rate=0.02))
    with pytest.raises(CheckpointError, match="another training"):
        execute(EXPERIMENTS["uci"], run)


@pytest.mark.slow
def test_natural_gradients_are_compared_along_the_training(short, monkeypatch, tmp_path):
    monkeypatch.setattr(datasets, "load", tiny)
    monkeypatch.setattr(benchmarks, "exported", nothing_exported)
    run = run_of("uci-natural", "energy", tmp_path)
    result = execute(EXPERIMENTS["uci-natural"], run)
    by_fold, said = result["settings"]["by_fold"], result["settings"]["models"]
    assert list(by_fold) == ["sgpr", "dgp2", "dgp2-natural"] and said["dgp2-natural"]["natural"] == 0.1
    for name in ("dgp2", "dgp2-natural"):
        first, last = by_fold[name]["curve"]
        assert (first["step"], last["step"]) == (2, 3) and first["rmse"] != last["rmse"]
        assert last["test_log_likelihood"] == pytest.approx(result["metrics"][f"{name}_test_log_likelihood"])
    assert by_fold["dgp2"]["elbo"] != by_fold["dgp2-natural"]["elbo"]
    figure = benchmarks.figure_curves({"energy": result, "boston": result})
    assert [axes.get_title() for axes in figure.axes] == ["energy", "boston"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["SGPR", "DGP 2", "DGP 2, natural gradients"]


@pytest.mark.slow
def test_few_steps_are_by_settings_with_the_highest_training_bound(short, monkeypatch, tmp_path):
    monkeypatch.setattr(datasets, "load", tiny)
    monkeypatch.setattr(benchmarks, "exported", nothing_exported)
    run = run_of("uci-few-steps", "energy", tmp_path)
    result = execute(EXPERIMENTS["uci-few-steps"], run)
    candidates, models_said = result["selection"]["candidates"], result["settings"]["models"]
    assert [each["decay"] for each in candidates] == [0.999, 0.9]
    for name, natural in {"dgp2": None, "dgp2-natural": 0.5}.items():
        best = max(candidates, key=lambda each: each[name])
        assert models_said[name].get("decay", 0.999) == best["decay"] and models_said[name].get("natural") == natural
    # What is done is not done again.
    monkeypatch.setattr(few, "optimise", None)
    assert execute(EXPERIMENTS["uci-few-steps"], run)["selection"] == result["selection"]


@pytest.mark.slow
def test_one_training_in_original_units(short, monkeypatch, tmp_path):
    monkeypatch.setattr(datasets, "load", lambda name: tiny(name))
    result = execute(EXPERIMENTS["year"], run_of("year", "dgp2", tmp_path))
    assert (tmp_path / "run" / "posterior.nc").is_file()
    # The paper's numbers are of other data than those that stand in for them.
    assert result["data"]["name"] == "year-generated" and set(result["paper_metrics"].values()) == {None}
    spread = tiny("year").y_test.std()
    assert 0.2 * spread < result["metrics"]["rmse"] < 3 * spread
    # A density of y: near that of a normal with the spread of the data, not of standardised ones.
    assert -10 < result["metrics"]["test_log_likelihood"] < -np.log(spread) + 1
    # A run that is finished is read from its files.
    monkeypatch.setattr(training, "optimise", None)
    again = EXPERIMENTS["year"].run(replace(run_of("year", "dgp2", tmp_path), finished=True))
    assert again.metrics == result["metrics"] and again.inspected.trained.params["f_mean"].shape == (5,)


@pytest.mark.slow
def test_classes_are_scored_by_area_under_the_curve(short, not_exported, monkeypatch, tmp_path):
    monkeypatch.setattr(datasets, "load", lambda name: tiny("classes"))
    metrics = execute(EXPERIMENTS["higgs"], run_of("higgs", "dgp2", tmp_path))["metrics"]
    assert {"accuracy", "auc", "test_log_likelihood", "elbo"} == set(metrics)
    assert 0 <= metrics["auc"] <= 1 and metrics["test_log_likelihood"] < 0


@pytest.mark.slow
def test_journeys_are_streamed(short, not_exported, monkeypatch, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    def months(wanted, folder):
        folder.mkdir(parents=True)
        rng, paths = np.random.default_rng(0), []
        assert len(wanted) == 24
        for month in wanted[:2]:
            columns = {name: rng.standard_normal(60).astype(np.float32) for name in paper.FEATURES}
            columns[paper.TARGET] = (600 + 300 * np.tanh(columns["distance"])).astype(np.float32)
            paths.append(folder / f"{month}.parquet")
            pq.write_table(pa.table(columns), paths[-1])
        return paths

    monkeypatch.setattr(paper, "taxi_parquet", months)
    monkeypatch.setattr(paper, "_NUM_TEST", 20)
    result = execute(EXPERIMENTS["taxi"], run_of("taxi", "dgp2", tmp_path, "paper"))
    assert result["subset"]["train"] == 100 and result["subset"]["of"] == 10**9
    assert result["settings"]["training_rows"] == 100 and result["data"]["sizes"]["test"] == 20
    assert 10 < result["metrics"]["rmse"] < 2000
    assert result["curve"]


@pytest.mark.slow
def test_platform_are_timed_without_compilation(monkeypatch, standard_promotion, tmp_path):
    monkeypatch.setitem(models.MODELS, "sgp", (1, 10))
    run = run_of("timing", "sgp", tmp_path)
    result = execute(EXPERIMENTS["timing"], run)
    assert 0 < result["metrics"]["seconds_per_step"] < result["seconds_training"] / result["steps"]
    assert result["settings"]["columns"] == 8


@pytest.mark.slow
def test_a_step_is_drawn(short, not_exported, tmp_path):
    run = run_of("step-function", "dgp3", tmp_path)
    execute(EXPERIMENTS["step-function"], run)
    assert (run.output / "functions.png").stat().st_size > 10_000


def test_folds_are_standardised_each_on_its_own_training_rows():
    folds = Folds.of([tiny("boston", split=k) for k in range(2)])
    assert folds.X.shape == (2, 30, 3) and folds.X.dtype == folds.y.dtype == np.float32
    np.testing.assert_allclose(folds.X.mean(1), 0, atol=1e-6)
    np.testing.assert_allclose(folds.y.std(1), 1, rtol=1e-6)
    assert folds.parts[0].y_mean != folds.parts[1].y_mean


def test_figure_1_has_a_panel_for_every_set_and_joins_the_page(tmp_path):
    scores = {"sgp": Scores([0.1, 0.2], [1.0, 1.1], [0.0, 0.0], 1.0), "dgp2": Scores([0.3, 0.5], [0.9, 1.0], [0, 0], 1)}
    metrics = {f"{name}_{key}": value for name, s in scores.items() for key, value in s.summary().items()}
    sizes = {"train": 30, "test": 10, "input_shape": [3]}
    results = {
        name: {"metrics": metrics, "data": {"name": name, "sizes": sizes}} for name in ("boston", "naval", "power")
    }
    figure = figure_1(results)
    assert [axes.get_title().split()[0] for axes in figure.axes] == ["boston", "naval", "power"]
    assert figure.axes[0].get_yticklabels()[1].get_text() == "DGP 2"
    experiment = EXPERIMENTS["uci"]
    path = result_path(tmp_path, "deep", "uci", "power", "cpu")
    path.parent.mkdir()
    named = {"paper": "deep", "experiment": "uci", "variant": "power", "preset": "cpu"}
    path.write_text(json.dumps(dict.fromkeys(_OLD_FIELDS) | {"seed": 0} | named | results["power"]))
    assert draw_figures(tmp_path, [experiment], ()) == [tmp_path / "deep/uci-cpu.png"]
