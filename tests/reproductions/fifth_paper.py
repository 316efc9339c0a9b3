"""Variational learning of inducing variables (Titsias 2009): a paper's experiment with a data set of its own.

It stands for a file of somebody else's, which ``gpzoo`` knows nothing of: ``python fifth_paper.py waves``.
"""

from functools import partial
from pathlib import Path

import numpy as np

from gpzoo import kmeans
from gpzoo.inference import InducingGuide
from gpzoo.models import gp_regression
from gpzoo.reproductions import datasets
from gpzoo.reproductions.claims import load
from gpzoo.reproductions.datasets import Dataset, dataset
from gpzoo.reproductions.experiment import Outcome, Run, by_hand, experiment
from gpzoo.reproductions.training import Setting, train

PAPER = load(Path(__file__).with_suffix(".toml"))


@dataset("waves", "two waves with noise, 1 feature, regression (options rows, seed)")
def waves(rows: int = 200, seed: int = 0) -> Dataset:
    """Generate ``sin(3 x) + cos(5 x) / 2`` with noise 0.2; a fifth of the rows is for testing."""
    rng = np.random.RandomState(seed)
    X = rng.uniform(-3, 3, (rows, 1)).astype(np.float32)
    y = np.sin(3 * X[:, 0]) + np.cos(5 * X[:, 0]) / 2 + 0.2 * rng.standard_normal(rows)
    y, test = y.astype(np.float32), rows // 5
    return Dataset("waves", X[test:], y[test:], X[:test], y[:test], "generated", {})


@experiment(PAPER, "waves", ("5", "25"))
def run(run: Run) -> Outcome:
    """One sparse GP regression, by number of inducing points."""
    data = datasets.load("waves").standardised()
    setting = Setting.of(run.options, num_inducing=int(run.variant))
    model = partial(gp_regression, **setting.start)
    guide = InducingGuide(model, kmeans(setting.num_inducing))
    return train(run, data, model, guide, setting, selection=by_hand("steps, learning rate"))


EXPERIMENTS = (run,)


if __name__ == "__main__":
    from gpzoo.reproductions.cli import script_main

    script_main(EXPERIMENTS)
