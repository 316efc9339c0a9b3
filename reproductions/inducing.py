"""Comparison of kinds of inducing variables: the information in the same number of them, and their cost."""

from __future__ import annotations

from functools import partial

import numpy as np
from jax import Array

from gpzoo import InducingBasis, InducingFourier, kmeans
from gpzoo.inference import InducingGuide
from gpzoo.kernels import HilbertSpace, Kernel, Matern52
from gpzoo.models import gp_regression, positive
from gpzoo.posteriors.forms import Orthogonal
from gpzoo.reproductions.claims import load
from gpzoo.reproductions.datasets import Dataset
from gpzoo.reproductions.datasets.in_memory import halved
from gpzoo.reproductions.experiment import Outcome, Run, experiment
from gpzoo.reproductions.training import Setting, train

PAPER = load("inducing")

#: The interval of the waves, and the size of the box, for inputs between -2 and 2.
_BOUNDS = (-3.0, 3.0)


def matern(name: str, X: Array) -> Kernel:
    """A Matérn kernel of one column."""
    return Matern52(positive(f"{name}_variance", 1.0, X), positive(f"{name}_lengthscale", 0.2, X))


def on_box(name: str, X: Array, *, size: int) -> Kernel:
    """A Matérn kernel from basis functions on a box."""
    return HilbertSpace(matern(name, X), size, _BOUNDS)


def chirp(rows: int = 2000, seed: int = 0) -> Dataset:
    """A wave with noise. Its period becomes shorter from the middle to both ends. Half of the rows are for testing."""
    rng = np.random.RandomState(seed)
    x = rng.uniform(-2, 2, (rows, 1))
    return halved("chirp", x, np.sin(7 * x[:, 0] ** 2) + 0.2 * rng.standard_normal(rows))


@experiment(PAPER, "chirp", ("points", "twice-as-many", "orthogonal", "waves", "box"))
def kinds(run: Run) -> Outcome:
    """Regression with inducing points; with as many orthogonal ones in addition or instead; with waves; or on a box."""
    setting = Setting.of(run.options)
    M, model = setting.num_inducing, partial(gp_regression, kernel=matern)
    inducing, form = {
        "points": (kmeans(M), "full"),
        "twice-as-many": (kmeans(2 * M), "full"),
        "orthogonal": (kmeans(2 * M), Orthogonal(first=M)),
        "waves": (InducingFourier(M // 2, _BOUNDS), "full"),
        "box": (InducingBasis(M, _BOUNDS), "full"),
    }[run.variant]
    if run.variant == "box":
        model = partial(gp_regression, kernel=partial(on_box, size=M))
    return train(run, chirp(seed=run.seed), model, InducingGuide(model, inducing, covariance=form), setting)


EXPERIMENTS = (kinds,)


if __name__ == "__main__":
    from gpzoo.reproductions.cli import script_main

    script_main(EXPERIMENTS)
