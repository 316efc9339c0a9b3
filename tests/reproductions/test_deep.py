"""The experiments of the deep GP paper: settings of the paper, folds, choices of settings, and streamed journeys."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from gpzoo.reproductions import deep as paper
from gpzoo.reproductions import training
from gpzoo.reproductions.execute import execute
from gpzoo.reproductions.experiment import Run
from gpzoo.reproductions.training import Setting

EXPERIMENTS = {experiment.name: experiment for experiment in paper.EXPERIMENTS}


@pytest.fixture
def short(monkeypatch, small, shortened):
    """Three steps, five inducing points, at most two layers."""
    for name, (depth, _) in list(paper.MODELS.items()):
        monkeypatch.setitem(paper.MODELS, name, (min(depth, 2), 5))
    shortened(steps=3, batch_size=20, watched=[2, 3, 500])


def run_of(name, variant, tmp_path, preset="quick"):
    return Run("deep", name, variant, preset, 0, tmp_path / "run")


def test_models_and_the_settings_of_the_preset_paper_are_those_of_the_authors(tmp_path):
    assert paper.MODELS["sgp-500"] == (1, 500)
    assert [paper.MODELS[f"dgp{n}"] for n in (2, 3, 4, 5)] == [(n, 100) for n in (2, 3, 4, 5)]
    for name in ("rectangles-images", "mnist", "year", "airline", "higgs", "susy"):
        for variant in EXPERIMENTS[name].variants:
            setting = Setting.of(run_of(name, variant, tmp_path, "paper").options)
            assert (setting.steps, setting.batch_size) == (20_000, 1_000 if name == "mnist" else 10_000)
            rate = setting.learning_rate
            assert rate.name == "Adam, 0.01" and float(rate.schedule(19_999)) == 0.01
            at = 2.0 if name == "mnist" else 1.0
            assert paper.described(setting)["start"] == {"lengthscale": at, "variance": at}


@pytest.mark.slow
def test_a_fold_run_has_every_metric_and_resumes(short, monkeypatch, tmp_path):
    run = run_of("uci", "boston", tmp_path)
    result = execute(EXPERIMENTS["uci"], run)
    metrics, folds = result["metrics"], result["settings"]["by_fold"]["dgp3"]
    names = itertools.product(("sgp", "dgp3"), ("test_log_likelihood", "rmse"), ("", "_se"))
    assert set(metrics) == {f"{model}_{metric}{end}" for model, metric, end in names}
    assert metrics["dgp3_rmse"] == pytest.approx(np.mean(folds["rmse"])) and len(folds["rmse"]) == 3
    assert metrics["dgp3_rmse_se"] == pytest.approx(np.std(folds["rmse"], ddof=1) / np.sqrt(3))
    assert 1 < metrics["sgp_rmse"] < 100  # in the units of the target
    assert {"figure_1.png", "learning_curve.png"} <= {path.name for path in run.output.iterdir()}
    # Started again, what is done is not done again.
    again = execute(EXPERIMENTS["uci"], run)
    assert again["metrics"] == metrics and again["resumed_from"] == [6]
    assert again["folds"] == {"count": 3, "of": 20, "seeds": [0, 1, 2]}
    # A report reads the model of one split.
    monkeypatch.setattr(training, "fit", None)
    found = EXPERIMENTS["uci"].run(replace(run, finished=True)).inspected
    assert found.which == "DGP 3, split 1 of 3" and len(found.args[1]) == 20
    assert found.trained.losses.shape == (3,) and found.trained.params["f_mean"].shape == (5,)


@pytest.mark.slow
def test_natural_gradients_are_compared_along_the_training(short, tmp_path):
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
def test_journeys_are_streamed(short, monkeypatch, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    def months(wanted, folder):
        folder.mkdir(parents=True)
        rng, paths = np.random.default_rng(0), [folder / f"{month}.parquet" for month in wanted[:2]]
        assert len(wanted) == 24
        for path in paths:
            columns = {name: rng.standard_normal(60).astype(np.float32) for name in paper.FEATURES}
            columns[paper.TARGET] = (600 + 300 * np.tanh(columns["distance"])).astype(np.float32)
            pq.write_table(pa.table(columns), path)
        return paths

    monkeypatch.setattr(paper, "taxi_parquet", months)
    monkeypatch.setattr(paper, "_NUM_TEST", 20)
    result = execute(EXPERIMENTS["taxi"], run_of("taxi", "dgp2", tmp_path, "paper"))
    assert result["subset"]["train"] == 100 and result["subset"]["of"] == 10**9
    assert result["settings"]["training_rows"] == 100 and result["data"]["sizes"]["test"] == 20
    assert 10 < result["metrics"]["rmse"] < 2000 and result["curve"]
