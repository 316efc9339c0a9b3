"""The experiments of the deep GP paper: settings of the paper, and small runs from end to end."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from gpzoo.reproductions import datasets, training
from gpzoo.reproductions import deep as paper
from gpzoo.reproductions.execute import execute
from gpzoo.reproductions.experiment import Run
from gpzoo.reproductions.training import Setting
from tests.programs import nothing_exported

EXPERIMENTS = {experiment.name: experiment for experiment in paper.EXPERIMENTS}


def tiny(name, split=0, rows=40):
    """A regression or classification set of a few rows, in units of its own."""
    rng = np.random.default_rng(split)
    X = rng.standard_normal((rows, 3)) * [1, 10, 100] + 5
    f = np.sin(X[:, 0]) + X[:, 1] / 10
    y = (f > np.median(f)).astype(np.int32) if name.startswith("higgs") else 50 + 20 * f
    return datasets.Dataset(name, X[:30], y[:30], X[30:], y[30:], "generated", {name: "0" * 64})


@pytest.fixture
def short(monkeypatch, standard_promotion):
    """Three steps, five inducing points, at most two layers; nothing is exported."""
    for name, (depth, _) in list(paper.MODELS.items()):
        monkeypatch.setitem(paper.MODELS, name, (min(depth, 2), 5))
    of = Setting.of

    def three_steps(options, **changes):
        found = of(options, **changes)
        size = None if found.batch_size is None else min(found.batch_size, 20)
        return replace(found, steps=3, batch_size=size, num_inducing=None)

    monkeypatch.setattr(Setting, "of", three_steps)
    monkeypatch.setattr(datasets, "load", tiny)
    monkeypatch.setattr(training, "exported", nothing_exported)


def run_of(name, variant, tmp_path, preset="quick"):
    return Run("deep", name, variant, preset, 0, tmp_path / "run")


@pytest.mark.parametrize("name", ["rectangles-images", "mnist", "year", "airline", "higgs", "susy"])
def test_the_preset_paper_has_the_settings_of_the_authors(name, tmp_path):
    for variant in EXPERIMENTS[name].variants:
        setting = Setting.of(run_of(name, variant, tmp_path, "paper").options)
        assert (setting.steps, setting.batch_size) == (20_000, 1_000 if name == "mnist" else 10_000)
        rate = setting.learning_rate
        assert rate.name == "Adam, 0.01" and float(rate.schedule(19_999)) == 0.01
        starts = {"lengthscale": 2.0, "variance": 2.0} if name == "mnist" else {"lengthscale": 1.0, "variance": 1.0}
        assert paper.described(setting)["start"] == starts


def test_models_are_those_of_the_paper():
    assert paper.MODELS["sgp-500"] == (1, 500)
    assert [paper.MODELS[f"dgp{n}"] for n in (2, 3, 4, 5)] == [(n, 100) for n in (2, 3, 4, 5)]


@pytest.mark.slow
def test_a_fold_run_has_every_metric_and_resumes(short, monkeypatch, tmp_path):
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
    assert {"figure_1.png", "learning_curve.png"} <= {path.name for path in run.output.iterdir()}
    # Started again, what is done is not done again.
    again = execute(EXPERIMENTS["uci"], run)
    assert again["metrics"] == metrics and again["resumed_from"] == [6]
    assert again["folds"] == {"count": 3, "of": 20, "seeds": [0, 1, 2]}
    # A report reads the model of one split.
    monkeypatch.setattr(training, "optimise", None)
    found = EXPERIMENTS["uci"].run(replace(run, finished=True)).inspected
    assert found.which == "DGP 3, split 1 of 3" and len(found.args[1]) == 10
    assert found.trained.losses.shape == (3,) and found.trained.params["f_mean"].shape == (5,)


@pytest.mark.slow
def test_natural_gradients_are_compared_along_the_training(short, monkeypatch, tmp_path):
    options = Run.options.fget
    monkeypatch.setattr(Run, "options", property(lambda run: {**options(run), "watched": [2, 3, 500]}))
    result = execute(EXPERIMENTS["uci-natural"], run_of("uci-natural", "energy", tmp_path))
    by_fold, said = result["settings"]["by_fold"], result["settings"]["models"]
    assert list(by_fold) == ["sgpr", "dgp2", "dgp2-natural"] and said["dgp2-natural"]["natural"] == 0.1
    for name in ("dgp2", "dgp2-natural"):
        first, last = by_fold[name]["curve"]
        assert (first["step"], last["step"]) == (2, 3) and first["rmse"] != last["rmse"]
        assert last["test_log_likelihood"] == pytest.approx(result["metrics"][f"{name}_test_log_likelihood"])
    assert by_fold["dgp2"]["elbo"] != by_fold["dgp2-natural"]["elbo"]


@pytest.mark.slow
def test_few_steps_are_by_settings_with_the_highest_training_bound(short, tmp_path):
    result = execute(EXPERIMENTS["uci-few-steps"], run_of("uci-few-steps", "energy", tmp_path))
    candidates, said = result["selection"]["candidates"], result["settings"]["models"]
    assert [each["decay"] for each in candidates] == [0.999, 0.9]
    for name, natural in {"dgp2": None, "dgp2-natural": 0.5}.items():
        best = max(candidates, key=lambda each: each[name])
        assert said[name].get("decay", 0.999) == best["decay"] and said[name].get("natural") == natural


@pytest.mark.slow
@pytest.mark.parametrize("name", ["year", "higgs"])
def test_one_training_in_original_units(name, short, monkeypatch, tmp_path):
    run = run_of(name, "dgp2", tmp_path)
    result = execute(EXPERIMENTS[name], run)
    metrics, spread = result["metrics"], tiny(name).y_test.std()
    # The paper's numbers are of other data than those that stand in for them.
    assert result["data"]["name"] == f"{name}-generated" and set(result["paper_metrics"].values()) == {None}
    if name == "higgs":
        assert 0 <= metrics["auc"] <= 1 and metrics["test_log_likelihood"] < 0
    else:
        assert 0.2 * spread < metrics["rmse"] < 3 * spread
        # A density of y: near that of a normal with the spread of the data, not of standardised ones.
        assert -10 < metrics["test_log_likelihood"] < -np.log(spread) + 1
    # A run that is finished is read from its files.
    monkeypatch.setattr(training, "optimise", None)
    again = EXPERIMENTS[name].run(replace(run, finished=True))
    assert again.metrics == metrics and again.inspected.trained.params["f_mean"].shape == (5,)


@pytest.mark.slow
def test_journeys_are_streamed(short, monkeypatch, tmp_path):
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
    assert 10 < result["metrics"]["rmse"] < 2000 and result["curve"]
