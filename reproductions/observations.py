"""Experiments with data that do not have constant normal noise: grades of wine, noise that changes, and counts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, random
from scipy.stats import poisson

from gpzoo import kmeans
from gpzoo.inference import InducingGuide, SitePrediction, Trained, plots
from gpzoo.kernels import Kernel, Linear
from gpzoo.models import gp_regression, heteroscedastic_gp, log_gaussian_cox, ordinal_gp, positive
from gpzoo.reproductions import datasets
from gpzoo.reproductions.claims import load
from gpzoo.reproductions.datasets import Dataset
from gpzoo.reproductions.datasets.in_memory import halved
from gpzoo.reproductions.experiment import Figure, Outcome, Run, experiment
from gpzoo.reproductions.metrics import nlpp, standard_error
from gpzoo.reproductions.training import Setting, nlpp_by_fold, over_splits, train

PAPER = load("observations")


def _linear(name: str, X: Array) -> Kernel:
    return Linear(1.0, positive(f"{name}_lengthscale", jnp.ones(X.shape[1]), X))


#: Largest true rate: number of events in a cell of size one.
_PEAK = 12.0


def _rate(x: np.ndarray) -> np.ndarray:
    """Events per unit of time: a low level with two bursts."""
    return 0.5 + _PEAK * (np.exp(-((x + 1) ** 2) / 0.08) + 0.5 * np.exp(-((x - 0.8) ** 2) / 0.3))


def bursts(cells: int = 400, seed: int = 0) -> Dataset:
    """Counts of events in time cells of different sizes. A row has middle and size of a cell. Half are for testing."""
    rng = np.random.RandomState(seed)
    x, size = rng.uniform(-2, 2, cells), rng.uniform(0.2, 1.5, cells)
    return halved("bursts", np.stack([x, size], axis=1), rng.poisson(size * _rate(x)))


def _counts(X: Array, y: Array | None = None, *, num_data: int | None = None, **options: Any) -> None:
    log_gaussian_cox(X[:, :1], y, X[:, 1], num_data=num_data, **options)


@experiment(PAPER, "bursts", ("gp", "linear"))
def counts(run: Run) -> Outcome:
    """A log Gaussian Cox process, or Poisson regression on a line.

    ``constant_nlpp`` is the ``nlpp`` of one rate for all cells, events by time; ``true_nlpp`` is that of the true rate.
    ``log_rate_distance`` is the mean distance of the logarithmic rate at the cells from the true one.
    """
    data, setting = bursts(seed=run.seed), Setting.of(run.options)
    model = _counts if run.variant == "gp" else partial(_counts, kernel=_linear)
    guide = InducingGuide(model, kmeans(setting.num_inducing))
    found = train(run, data, model, guide, setting, score=_score)
    if run.finished:
        return found
    x, size = data.X_test.T.astype(np.float64)
    constant = data.y_train.sum() / data.X_train[:, 1].sum()
    level, _ = _log_rate(found.trained, data.X_test)
    also = {
        "constant_nlpp": float(-poisson.logpmf(data.y_test, constant * size).mean()),
        "true_nlpp": float(-poisson.logpmf(data.y_test, _rate(x) * size).mean()),
        "log_rate_distance": float(np.abs(level - np.log(_rate(x))).mean()),
    }
    figure = partial(_figure_of_rates, data, found.trained)
    return replace(found, metrics={**found.metrics, **also}, figures={"rates": figure})


def _score(test: SitePrediction, y: np.ndarray) -> dict[str, float]:
    return {"nlpp": nlpp(test), "nlpp_se": standard_error(test)}


def _log_rate(trained: Trained, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the logarithmic rate."""
    q = trained.posterior(random.key(0), X)["f"]
    return np.log(float(trained.params["rate"])) + np.asarray(q.mean), np.sqrt(np.asarray(q.variance))


def _figure_of_rates(data: Dataset, trained: Trained) -> Figure:
    x = np.linspace(-2, 2, 200, dtype=np.float32)
    level, scale = _log_rate(trained, np.stack([x, np.ones_like(x)], axis=1))
    figure = plots.blank(5, 3.5)
    axes = figure.subplots()
    axes.plot(data.X_train[:, 0], data.y_train / data.X_train[:, 1], ".", color="0.6", ms=3, label="counts by size")
    axes.plot(x, _rate(x), "k--", lw=1, label="true rate")
    axes.plot(x, np.exp(level), "C0", label="rate, with two standard deviations")
    axes.fill_between(x, np.exp(level - 2 * scale), np.exp(level + 2 * scale), color="C0", alpha=0.3)
    axes.set(xlabel="time", ylabel="events per unit of time", ylim=(0, 1.6 * _PEAK))
    axes.legend(fontsize="small")
    return figure


@experiment(PAPER, "wine-red", ("gp", "linear"))
def wine(run: Run) -> Outcome:
    """Ordered logit of the grades of red wines over random splits: a GP, or a linear function with a normal prior."""
    setting = Setting.of({"num_draws": 100} | dict(run.options))
    model = partial(ordinal_gp, **({} if run.variant == "gp" else {"kernel": _linear}))
    guide = InducingGuide(model, kmeans(setting.num_inducing))

    def one(run: Run) -> Outcome:
        raw = datasets.load("uci/wine_red", split=run.split)
        lowest = float(min(raw.y_train.min(), raw.y_test.min()))
        y, y_new = (np.rint(y - lowest).astype(np.int32) for y in (raw.y_train, raw.y_test))
        data = replace(raw, y_train=y, y_test=y_new).standardised().flat()
        keywords = {"num_classes": 1 + int(max(y.max(), y_new.max()))}
        return replace(train(run, data, model, guide, setting, keywords=keywords), data=raw)

    count, of = run.options["splits"], run.options["all_splits"]
    return over_splits(run, count, one, of=of, settings=nlpp_by_fold, errors=("nlpp",))


def noisy_sine(rows: int = 600, seed: int = 0) -> Dataset:
    """A sine with noise that grows twentyfold from left to right. Half of the rows are for testing."""
    rng = np.random.RandomState(seed)
    x = rng.uniform(-2, 2, (rows, 1))
    y = np.sin(2 * x[:, 0]) + np.exp(0.8 * x[:, 0] - 1.5) * rng.standard_normal(rows)
    return halved("noisy-sine", x, y)


@experiment(PAPER, "noisy-sine", ("changing", "one-size"))
def noise(run: Run) -> Outcome:
    """A GP whose noise is another GP, or has one variance."""
    setting = Setting.of(run.options)
    model = heteroscedastic_gp if run.variant == "changing" else gp_regression
    guide = InducingGuide(model, kmeans(setting.num_inducing))
    return train(run, noisy_sine(seed=run.seed), model, guide, setting)


EXPERIMENTS = (counts, wine, noise)


if __name__ == "__main__":
    from gpzoo.reproductions.cli import script_main

    script_main(EXPERIMENTS)
