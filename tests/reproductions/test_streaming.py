"""The experiment with data in two halves runs from data to result, on few rows and for few steps, and is drawn."""

import numpy as np
import pytest

from gpzoo.reproductions import datasets, toys, training
from gpzoo.reproductions import streaming as paper
from gpzoo.reproductions.execute import execute
from gpzoo.reproductions.experiment import Run
from tests.programs import nothing_exported


def few(name, split):
    rng = np.random.default_rng(split)
    X = rng.standard_normal((80, 3))
    y = X[:, 0] + 0.1 * rng.standard_normal(80)
    y = (y > 0).astype(np.int32)
    return datasets.Dataset("few", X[:60], y[:60], X[60:], y[60:], "generated", {})


@pytest.mark.slow
def test_it_runs_from_data_to_result_and_picture(monkeypatch, shortened, tmp_path):
    shortened(splits=2, steps=8, batch_size=20, num_inducing=10)
    monkeypatch.setattr(datasets, "load", few)
    for module in (toys, training):
        monkeypatch.setattr(module, "exported", nothing_exported)
    (experiment,) = paper.EXPERIMENTS
    result = execute(experiment, Run("streaming", "halves", "adult", "quick", 0, tmp_path))
    metrics = result["metrics"]
    assert np.isfinite(list(metrics.values())).all()
    by_fold = [result["settings"][f"{name}_by_fold"] for name in ("nlpp", "all_nlpp")]
    np.testing.assert_allclose(metrics["difference"], np.subtract(*by_fold).mean())
    # After a few steps on half of few rows the others have much to say.
    assert metrics["nlpp"] < metrics["first_half_nlpp"]
    assert len(paper.figure_of_halves({"adult": result}).axes[0].lines) == 6
