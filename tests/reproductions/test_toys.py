"""The experiments of our own run from data to result, on few rows and for few steps."""

from functools import partial

import numpy as np
import pytest

from gpzoo.reproductions import datasets, latent_inputs, observations, several_functions, streaming, training
from gpzoo.reproductions.execute import execute
from gpzoo.reproductions.experiment import Run
from tests.programs import nothing_exported

EXPERIMENTS = {
    (experiment.paper, experiment.name): experiment
    for module in (latent_inputs, observations, several_functions, streaming)
    for experiment in module.EXPERIMENTS
}


def few(name, split=0):
    """Some digits, grades from 3 to 6, or rows of two classes."""
    rng = np.random.default_rng(split)
    X = rng.standard_normal((80, 3))
    y = 3.0 + np.arange(80) % 4 if "wine" in name else (X[:, 0] + 0.1 * rng.standard_normal(80) > 0).astype(np.int32)
    if name == "digits":
        X, y = rng.uniform(size=(80, 8, 8, 1)).astype(np.float32), (np.arange(80) % 10).astype(np.int32)
    return datasets.Dataset("few", X[:60], y[:60], X[60:], y[60:], "generated", {})


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(datasets, "load", few)
    monkeypatch.setattr(latent_inputs, "infer_rows", partial(latent_inputs.infer_rows, num_steps=3))
    for module, made, size in (
        (latent_inputs, "two_branches", {"rows": 60}),
        (observations, "noisy_sine", {"rows": 40}),
        (observations, "bursts", {"cells": 40}),
        (several_functions, "two_functions", {"rows": 40}),
        (several_functions, "three_outputs", {"places": 12}),
    ):
        monkeypatch.setattr(module, made, partial(getattr(module, made), **size))
    monkeypatch.setattr(training, "exported", nothing_exported)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("paper", "name", "variant", "file"),
    [
        ("latent_inputs", "digits", "gplvm", "embedding.png"),
        ("latent_inputs", "digits", "gplvm-amortised", "embedding.png"),
        ("latent_inputs", "two-branches", "latent-variable-weighted", "predictions.png"),
        ("observations", "wine-red", "linear", "result.json"),
        ("observations", "noisy-sine", "changing", "result.json"),
        ("observations", "bursts", "gp", "rates.png"),
        ("several_functions", "two-functions", "mixture", "functions.png"),
        ("several_functions", "two-functions", "single", "functions.png"),
        ("several_functions", "three-outputs", "together", "outputs.png"),
        ("several_functions", "three-outputs", "apart", "outputs.png"),
        ("streaming", "halves", "adult", "result.json"),
    ],
)
def test_they_run_from_data_to_result(paper, name, variant, file, small, shortened, tmp_path):
    streams = paper == "streaming"
    shortened(steps=8 if streams else 4, num_inducing=10 if streams else 6, splits=2, batch_size=20)
    result = execute(EXPERIMENTS[paper, name], Run(paper, name, variant, "quick", 0, tmp_path))
    metrics = result["metrics"]
    assert np.isfinite(list(metrics.values())).all() and (tmp_path / file).is_file()
    assert ("function_distance" in metrics) == (variant == "mixture")
    if name == "digits":
        # Four steps from the principal components cannot beat them.
        assert metrics["held_out_bound"] < metrics["best_ppca_log_likelihood"]
        assert metrics["ppca_log_likelihood"] < metrics["best_ppca_log_likelihood"]
    if name == "wine-red":
        # Labels start at 0, and no label is the best guess of all: four of them, nearly at random after four steps.
        assert 1.2 < metrics["nlpp"] < 2.5
    if name == "bursts":
        assert metrics["true_nlpp"] < metrics["constant_nlpp"]
    if name == "halves":
        by_fold = [result["settings"][f"{kind}_by_fold"] for kind in ("nlpp", "all_nlpp")]
        np.testing.assert_allclose(metrics["difference"], np.subtract(*by_fold).mean())
        assert len(streaming.figure_of_halves({"adult": result}).axes[0].lines) == 6


def test_entries_are_missing_in_another_place_of_each_output():
    data = several_functions.three_outputs()
    assert len(data.y_test) == 120 and len(data.y_train) == 180
    seen = [set(data.X_test[data.X_test[:, 1] == k, 0]) for k in range(3)]
    assert all(seen[a] != seen[b] for a, b in ((0, 1), (1, 2), (0, 2)))
