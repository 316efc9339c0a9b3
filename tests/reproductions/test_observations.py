"""The experiments with data of other kinds run from data to result, on few rows and for few steps."""

from functools import partial

import numpy as np
import pytest

from gpzoo.reproductions import datasets, toys, training
from gpzoo.reproductions import observations as paper
from gpzoo.reproductions.execute import execute
from gpzoo.reproductions.experiment import Run
from tests.programs import nothing_exported

EXPERIMENTS = {experiment.name: experiment for experiment in paper.EXPERIMENTS}


def grades(name, split):
    rng = np.random.default_rng(split)
    X, y = rng.standard_normal((40, 3)), 3.0 + np.arange(40) % 4
    return datasets.Dataset("grades", X[:30], y[:30], X[30:], y[30:], "generated", {})


@pytest.fixture
def short(monkeypatch, shortened):
    shortened(steps=4, num_inducing=5)
    monkeypatch.setattr(paper, "noisy_sine", partial(paper.noisy_sine, rows=40))
    monkeypatch.setattr(paper, "bursts", partial(paper.bursts, cells=40))
    monkeypatch.setattr(datasets, "load", grades)
    for module in (toys, training):
        monkeypatch.setattr(module, "exported", nothing_exported)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "variant"), [("wine-red", "linear"), ("noisy-sine", "changing"), ("bursts", "gp")])
def test_they_run_from_data_to_result(name, variant, short, tmp_path):
    result = execute(EXPERIMENTS[name], Run("observations", name, variant, "quick", 0, tmp_path))
    assert np.isfinite(list(result["metrics"].values())).all()
    if name == "wine-red":
        # Labels start at 0, and no label is the best guess of all: four of them, nearly at random after four steps.
        assert 1.2 < result["metrics"]["nlpp"] < 2.5 and len(result["settings"]["nlpp_by_fold"]) == 3
    if name == "bursts":
        assert result["metrics"]["true_nlpp"] < result["metrics"]["constant_nlpp"] and "rates.png" in {
            path.name for path in tmp_path.iterdir()
        }
