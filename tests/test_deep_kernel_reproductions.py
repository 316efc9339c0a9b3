"""The deep-kernel experiments: what a run trains, records and takes up again."""

import json

import numpy as np
import pytest

from gpzoo import datasets
from gpzoo.reproductions import deep_kernel_learning as paper
from gpzoo.reproductions.contract import Run, execute
from gpzoo.reproductions.report import shortfall, verdict

pytest.importorskip("flax")

EXPERIMENTS = {experiment.name: experiment for experiment in paper.EXPERIMENTS}
IMAGES = {"digits": (8, 8, 1), "mnist": (28, 28, 1), "mnist-binary": (28, 28, 1), "cifar10": (32, 32, 3)}


def run_of(name, folder, preset="quick"):
    return Run("deep_kernel", name, "all", preset, 0, folder / name)


@pytest.fixture
def few(monkeypatch, standard_promotion):
    """Some rows in the place of every data set, and a step or two."""
    asked = []

    def load(name, split=0):
        asked.append((name, split))
        rng = np.random.default_rng(split)
        X = rng.standard_normal((60, *IMAGES.get(name, (5,)))).astype(np.float32)
        y = (np.arange(60) % 3).astype(np.int32)
        return datasets.Dataset(name, X[:40], y[:40], X[40:], y[40:], "generated", {name: "0" * 64})

    real = paper._Setting
    monkeypatch.setattr(datasets, "load", load)
    monkeypatch.setattr(datasets.Dataset, "subset", lambda self, *counts, seed: self)
    monkeypatch.setattr(paper, "_Setting", lambda *a, splits=1, **k: real((0.5, 0.5, 0.5), 10, splits=splits))
    return asked


@pytest.mark.parametrize("name", ["adult", "digits", "mnist-binary"])
def test_all_models_are_trained_and_recorded(name, few, tmp_path):
    result = execute(EXPERIMENTS[name], run_of(name, tmp_path))
    assert {f"{model}_{metric}" for model in paper.MODELS for metric in ("accuracy", "nlpp")} <= set(result["metrics"])
    assert result["steps"] == 2 + 2 + 2 + 2 and result["settings"]["steps_network_features_joint"] == [2, 2, 2]
    files = {path.name for path in (tmp_path / name).iterdir()}
    assert {"figure_3.png", "learning_curve.png", "posterior.nc", "split-0.json"} <= files
    # Once more: everything is taken up, nothing is trained or evaluated again.
    again = execute(EXPERIMENTS[name], run_of(name, tmp_path))
    assert again["metrics"] == result["metrics"]


def test_splits_have_means_and_standard_errors(few, tmp_path):
    result = execute(EXPERIMENTS["connect4"], run_of("connect4", tmp_path, "cpu"))
    assert [split for _, split in few] == [0, 1, 2]
    values = [json.loads((tmp_path / "connect4" / f"split-{k}.json").read_text())["svdkl_nlpp"] for k in range(3)]
    assert result["metrics"]["svdkl_nlpp"] == pytest.approx(np.mean(values))
    assert result["metrics"]["svdkl_nlpp_se"] == pytest.approx(np.std(values, ddof=1) / np.sqrt(3))
    assert result["paper_metrics"]["svdkl_accuracy"] == 0.841 and result["paper_metrics"]["dnn+_nlpp"] is None


def test_covtype_is_its_subset_where_only_that_is_at_hand(few, monkeypatch, tmp_path):
    entry = datasets.Entry("covtype-subset", "", True, "here")
    monkeypatch.setattr(datasets, "available", lambda: [entry])
    trained = []
    monkeypatch.setattr(paper, "_run", lambda run, load, make, setting: trained.append(load(0)))
    paper.table(run_of("covtype", tmp_path))
    monkeypatch.setattr(datasets, "available", list)
    paper.table(run_of("covtype", tmp_path))
    assert [data.name for data in trained] == ["covtype-subset", "covtype"]


def test_colours_are_centred(few, monkeypatch, tmp_path):
    trained = []
    monkeypatch.setattr(paper, "_run", lambda run, load, make, setting: trained.append(load(0)))
    paper.cifar10(run_of("cifar10", tmp_path))
    np.testing.assert_allclose(trained[0].X_train.mean(0), 0, atol=1e-5)


@pytest.mark.parametrize(("metric", "ours", "behind"), [("svdkl_accuracy", 0.8, 0.1), ("dnn_nlpp", 0.8, None)])
def test_metrics_of_models_are_compared(metric, ours, behind):
    assert shortfall(metric, ours, 0.9) == (None if behind is None else pytest.approx(behind))
    assert verdict(metric, ours, 0.9) == ("short by 0.1" if behind else "reached")
    assert verdict("dnn_seconds", 1.0, 2.0) == ""
