"""Experiments with data that are not normal numbers of one size: grades of wine, noise that changes, and counts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import Array, random
from scipy.stats import poisson

from gpzoo import kmeans
from gpzoo.inference import InducingGuide, Trained, load
from gpzoo.kernels import Kernel, Linear
from gpzoo.models import gp_regression, heteroscedastic_gp, log_gaussian_cox, ordinal_gp, positive
from gpzoo.reproductions import datasets
from gpzoo.reproductions.datasets import Dataset
from gpzoo.reproductions.experiment import Experiment, Inspected, Outcome, Run, by_hand
from gpzoo.reproductions.metrics import error, nlpp
from gpzoo.reproductions.training import Setting, exported, keys_of, last_bound, left, optimise, predicted, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Random splits of a complete run.
_SPLITS = 10

_BY_HAND = by_hand("steps, learning rate, inducing points")


def _linear(name: str, X: Array) -> Kernel:
    return Linear(1.0, positive(f"{name}_lengthscale", jnp.ones(X.shape[1]), X))


def wine(run: Run) -> Outcome:
    """Ordered logit of the grades of red wines: a GP, or a linear function with a normal prior, over random splits."""
    setting = Setting(1500, 500, 100 if run.variant == "gp" else 12, 0.02)
    options: dict[str, Any] = {} if run.variant == "gp" else {"kernel": _linear}
    folds = 3 if run.preset == "quick" else _SPLITS
    found, seconds, first = [], 0.0, None
    for fold in range(folds):
        data = datasets.load("uci/wine_red", split=fold)
        low = float(min(data.y_train.min(), data.y_test.min()))
        labels = [np.rint(y - low).astype(np.int32) for y in (data.y_train, data.y_test)]
        keywords = {"num_classes": 1 + int(max(y.max() for y in labels))}
        scaled = data.standardised()
        X, new = (x.astype(np.float32) for x in (scaled.X_train, scaled.X_test))
        model = partial(ordinal_gp, **options)
        guide = InducingGuide(model, kmeans(setting.inducing))
        keys = keys_of(replace(run, seed=run.seed + fold))
        if run.finished:
            kept = load(run.model, model, guide)
            return left(run, data, Inspected(kept, (new, labels[1]), keywords, f"split 1 of {folds}"))
        trained = optimise(
            keys.train,
            model,
            guide,
            setting,
            X,
            labels[0],
            num_data=len(X),
            checkpoint=run.checkpoint / str(fold),
            progress=f"{run.variant}, split {fold + 1}",
            model_kwargs=keywords,
        )
        test = predicted(keys.test, trained, new, labels[1], model_kwargs=keywords)
        bound = float(last_bound(trained.losses, len(X), setting))
        found.append({"nlpp": nlpp(test), "error": error(test, labels[1]), "elbo": bound})
        seconds += trained.seconds
        first = first or (trained, X, labels[0], new, labels[1], keywords, data)
    assert first is not None
    trained, X, y, new, y_new, keywords, data = first
    metrics = {name: float(np.mean([one[name] for one in found])) for name in found[0]}
    spread = float(np.std([one["nlpp"] for one in found], ddof=1) / np.sqrt(folds))
    return Outcome(
        metrics=metrics | {"nlpp_standard_error": spread},
        settings=setting.described(len(X)) | {"nlpp_by_fold": [one["nlpp"] for one in found]},
        steps=setting.steps * folds,
        seconds_training=seconds,
        data=data,
        dtype=str(X.dtype),
        elbo=-trained.losses,
        posterior=partial(exported, random.key(run.seed), trained, jnp.asarray(X), jnp.asarray(y), 100, keywords),
        inspected=Inspected(trained, (new, y_new), keywords, f"split 1 of {folds}"),
        folds={"count": folds, "of": _SPLITS, "seeds": list(range(folds))},
        selection=_BY_HAND,
    )


def noisy_sine(rows: int = 600, seed: int = 0) -> Dataset:
    """A sine with noise that grows twentyfold from left to right, half of the rows for testing."""
    rng = np.random.RandomState(seed)
    x = rng.uniform(-2, 2, (rows, 1))
    y = np.sin(2 * x[:, 0]) + np.exp(0.8 * x[:, 0] - 1.5) * rng.standard_normal(rows)
    X, y, half = x.astype(np.float32), y.astype(np.float32), rows // 2
    return Dataset("noisy-sine", X[half:], y[half:], X[:half], y[:half], source="generated", sha256={})


def noise(run: Run) -> Outcome:
    """A GP whose noise is another GP, or one of one size."""
    data = noisy_sine(seed=run.seed)
    setting = Setting(1000 if run.preset == "quick" else 5000, None, 25, 0.03, evaluations=4)
    model = heteroscedastic_gp if run.variant == "changing" else gp_regression
    guide = InducingGuide(model, kmeans(setting.inducing))
    return train(run, data, model, guide, setting, selection=_BY_HAND).outcome


#: Most events of a cell, of a size of one, of the true rate.
_PEAK = 12.0


def _rate(x: np.ndarray) -> np.ndarray:
    """Events per unit of time: two bursts on a low level."""
    return 0.5 + _PEAK * (np.exp(-((x + 1) ** 2) / 0.08) + 0.5 * np.exp(-((x - 0.8) ** 2) / 0.3))


def bursts(cells: int = 400, seed: int = 0) -> Dataset:
    """Counts of events in cells of time of different sizes, half of them for testing: a row has its middle and size."""
    rng = np.random.RandomState(seed)
    x, size = rng.uniform(-2, 2, cells), rng.uniform(0.2, 1.5, cells)
    X, y = np.stack([x, size], axis=1).astype(np.float32), rng.poisson(size * _rate(x)).astype(np.float32)
    half = cells // 2
    return Dataset("bursts", X[half:], y[half:], X[:half], y[:half], source="generated", sha256={})


def _counts(X: Array, y: Array | None = None, *, num_data: int | None = None, **options: Any) -> None:
    log_gaussian_cox(X[:, :1], y, X[:, 1], num_data=num_data, **options)


def counts(run: Run) -> Outcome:
    """A log Gaussian Cox process, or Poisson regression on a line.

    ``constant_nlpp`` is the ``nlpp`` of one rate for all cells, events by time; ``true_nlpp`` that of the true rate;
    ``log_rate_distance`` the mean distance of the logarithmic rate at the cells from the true one.
    """
    data = bursts(seed=run.seed)
    setting = Setting(1000 if run.preset == "quick" else 5000, None, 25 if run.variant == "gp" else 2, 0.03)
    model = _counts if run.variant == "gp" else partial(_counts, kernel=_linear)
    guide = InducingGuide(model, kmeans(setting.inducing))
    found = train(run, data, model, guide, setting, score=lambda test, y: {"nlpp": nlpp(test)}, selection=_BY_HAND)
    if run.finished:
        return found.outcome
    x, size = data.X_test.T.astype(np.float64)
    constant = data.y_train.sum() / data.X_train[:, 1].sum()
    f = np.asarray(found.trained.posterior(random.key(0), data.X_test)["f"].mean)
    level = np.log(float(found.trained.params["rate"])) + f
    also = {
        "constant_nlpp": float(-poisson.logpmf(data.y_test, constant * size).mean()),
        "true_nlpp": float(-poisson.logpmf(data.y_test, _rate(x) * size).mean()),
        "log_rate_distance": float(np.abs(level - np.log(_rate(x))).mean()),
    }
    figure = partial(_figure_of_rates, data, found.trained)
    return replace(found.outcome, metrics={**found.outcome.metrics, **also}, figures={"rates": figure})


def _figure_of_rates(data: Dataset, trained: Trained) -> Figure:
    from matplotlib.figure import Figure

    x = np.linspace(-2, 2, 200, dtype=np.float32)
    q = trained.posterior(random.key(0), np.stack([x, np.ones_like(x)], axis=1))["f"]
    level, scale = np.log(float(trained.params["rate"])) + np.asarray(q.mean), np.sqrt(np.asarray(q.variance))
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(data.X_train[:, 0], data.y_train / data.X_train[:, 1], ".", color="0.6", ms=3, label="counts by size")
    axes.plot(x, _rate(x), "k--", lw=1, label="true rate")
    axes.plot(x, np.exp(level), "C0", label="rate, with two standard deviations")
    axes.fill_between(x, np.exp(level - 2 * scale), np.exp(level + 2 * scale), color="C0", alpha=0.3)
    axes.set(xlabel="time", ylabel="events per unit of time", ylim=(0, 1.6 * _PEAK))
    axes.legend(fontsize="small")
    return figure


EXPERIMENTS = (
    Experiment(
        paper="observations",
        name="bursts",
        description="Counts of events whose rate has two bursts, by a log Gaussian Cox process or Poisson "
        "regression; beside them one constant rate and the true one, and the mean distance of the log rate from the "
        "true one.",
        variants={"gp": {}, "linear": {}},
        run=counts,
        default_variant="gp",
        presets=("quick", "cpu"),
    ),
    Experiment(
        paper="observations",
        name="wine-red",
        description="Grades of red wine as labels in order, by a GP or a linear function under an ordered logit.",
        variants={"gp": {}, "linear": {}},
        run=wine,
        default_variant="gp",
        data=("uci/wine_red",),
        presets=("quick", "cpu"),
    ),
    Experiment(
        paper="observations",
        name="noisy-sine",
        description="A sine with noise that grows, by a GP with noise that changes or of one size.",
        variants={"changing": {}, "one-size": {}},
        run=noise,
        default_variant="changing",
        presets=("quick", "cpu"),
    ),
)


if __name__ == "__main__":
    from gpzoo.reproductions.cli import script_main

    script_main(EXPERIMENTS)
