"""The experiments with several functions run from data to result, on few rows and for few steps."""

from functools import partial

import numpy as np
import pytest

from gpzoo.reproductions import several_functions as paper
from gpzoo.reproductions import toys, training
from gpzoo.reproductions.execute import execute
from gpzoo.reproductions.experiment import Run
from tests.programs import nothing_exported

EXPERIMENTS = {experiment.name: experiment for experiment in paper.EXPERIMENTS}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "variant", "figure"),
    [
        ("two-functions", "mixture", "functions"),
        ("two-functions", "single", "functions"),
        ("three-outputs", "together", "outputs"),
        ("three-outputs", "apart", "outputs"),
    ],
)
def test_they_run_from_data_to_result(name, variant, figure, monkeypatch, shortened, tmp_path):
    shortened(steps=4, num_inducing=6)
    monkeypatch.setattr(paper, "two_functions", partial(paper.two_functions, rows=40))
    monkeypatch.setattr(paper, "three_outputs", partial(paper.three_outputs, places=12))
    for module in (toys, training):
        monkeypatch.setattr(module, "exported", nothing_exported)
    metrics = execute(EXPERIMENTS[name], Run("several_functions", name, variant, "quick", 0, tmp_path))["metrics"]
    assert np.isfinite(list(metrics.values())).all()
    assert {f"{figure}.png", "model.gpzoo"} <= {path.name for path in tmp_path.iterdir()}
    assert ("function_distance" in metrics) == (variant == "mixture")


def test_functions_are_compared_in_their_best_order():
    x = np.linspace(-2, 2, 5)
    found = paper._of_truth(paper._functions(x)[:, ::-1] + 0.1, np.array([0.35, 0.65]), x)
    np.testing.assert_allclose([found["function_distance"], found["weight_distance"]], [0.1, 0.05])


def test_entries_are_missing_in_another_place_of_each_output():
    data = paper.three_outputs()
    assert len(data.y_test) == 120 and len(data.y_train) == 180
    seen = [set(data.X_test[data.X_test[:, 1] == k, 0]) for k in range(3)]
    assert all(seen[a] != seen[b] for a, b in ((0, 1), (1, 2), (0, 2)))
