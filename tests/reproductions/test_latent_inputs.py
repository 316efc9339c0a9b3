"""The experiments with latent variables of rows run from data to result, on few rows and for few steps."""

from functools import partial

import numpy as np
import pytest

from gpzoo.reproductions import datasets, toys, training
from gpzoo.reproductions import latent_inputs as paper
from gpzoo.reproductions.execute import execute
from gpzoo.reproductions.experiment import Run
from tests.programs import nothing_exported

EXPERIMENTS = {experiment.name: experiment for experiment in paper.EXPERIMENTS}


@pytest.fixture
def short(monkeypatch, shortened):
    shortened(steps=4, num_inducing=6)
    monkeypatch.setattr(paper, "infer_rows", partial(paper.infer_rows, num_steps=3))
    monkeypatch.setattr(paper, "two_branches", partial(paper.two_branches, rows=60))
    for module in (toys, training):
        monkeypatch.setattr(module, "exported", nothing_exported)
    whole = datasets.load("digits")
    few = datasets.Dataset(
        "few", whole.X_train[::20], whole.y_train[::20], whole.X_test[::20], whole.y_test[::20], "scikit-learn", {}
    )
    monkeypatch.setattr(datasets, "load", lambda name: few)


def ran(name, variant, tmp_path):
    run = Run("latent_inputs", name, variant, "quick", 0, tmp_path)
    return execute(EXPERIMENTS[name], run)["metrics"], {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["gplvm", "gplvm-amortised"])
def test_digits_are_embedded_and_held_against_principal_components(variant, short, tmp_path):
    metrics, files = ran("digits", variant, tmp_path)
    assert {"embedding.png", "model.gpzoo"} <= files
    # Four steps from the principal components cannot beat them, and a bound is below the density of any image.
    assert -1e4 < metrics["held_out_bound"] < metrics["best_ppca_log_likelihood"] < 200
    assert metrics["ppca_log_likelihood"] < metrics["best_ppca_log_likelihood"] and 0 <= metrics["error"] < 0.9


@pytest.mark.slow
def test_two_branches_have_latents_of_their_rows(short, tmp_path):
    metrics, files = ran("two-branches", "latent-variable-weighted", tmp_path)
    assert "predictions.png" in files and np.isfinite(list(metrics.values())).all()
