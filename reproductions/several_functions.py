"""Experiments with several functions: one of two functions made each row of the data, and outputs are correlated."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array, random

from gpzoo import GaussianProcess, kmeans, random_subset
from gpzoo.inference import InducingGuide, Trained, load, plots
from gpzoo.kernels import Pointwise
from gpzoo.likelihoods import Gaussian
from gpzoo.models import coregionalised_gp, gp_regression, mixture_of_gps, positive
from gpzoo.reproductions import training
from gpzoo.reproductions.claims import load as paper_of
from gpzoo.reproductions.datasets import Dataset
from gpzoo.reproductions.datasets.in_memory import halved
from gpzoo.reproductions.experiment import Figure, Outcome, Run, experiment
from gpzoo.reproductions.figures import band
from gpzoo.reproductions.metrics import nlpp, rmse
from gpzoo.reproductions.training import Setting, inspected, keys_of, predicted, train

PAPER = paper_of("several_functions")

# -- a mixture ---------------------------------------------------------------------------------------------------------

#: Weights of the functions in the mixture.
_WEIGHTS = (0.7, 0.3)


def _functions(x: np.ndarray) -> np.ndarray:
    """Two functions that cross, ``[N, 2]``."""
    return np.stack([np.sin(2 * x), 1 - x], axis=1)


def two_functions(rows: int = 600, seed: int = 0) -> Dataset:
    """Data from one of two functions that cross. Half of the rows are for testing."""
    rng = np.random.RandomState(seed)
    x = rng.uniform(-2, 2, (rows, 1))
    which = rng.choice(2, rows, p=_WEIGHTS)
    y = _functions(x[:, 0])[np.arange(rows), which] + 0.15 * rng.standard_normal(rows)
    return halved("two-functions", x, y)


@experiment(PAPER, "two-functions", ("mixture", "single"))
def mixture(run: Run) -> Outcome:
    """A mixture of two GPs, from several random starts the one with the highest bound; or a single GP.

    ``function_distance`` is the mean distance of the mixture's functions from those that made the data, and
    ``weight_distance`` the distance of their weights.
    """
    data = two_functions(seed=run.seed)
    setting, restarts = Setting.of({"num_draws": 100} | dict(run.options)), run.options["restarts"]
    setting.check(run.changes, ("evaluations", "early"))
    model = mixture_of_gps if run.variant == "mixture" else gp_regression
    guide = InducingGuide(model, kmeans(setting.num_inducing))
    if run.finished:
        return training.left(run, data, inspected(load(run.model, model, guide), data))
    keys = keys_of(run)
    start = {"f_mean": random.normal(keys.test, (restarts, setting.num_inducing, 2))}
    options = {"in_axes": None, "init_params": start if run.variant == "mixture" else None}
    options |= {"checkpoint": run.checkpoint, "progress": run.variant}
    split, rows = random.split(keys.train, restarts), (data.X_train, data.y_train)
    every = training.optimise(split, model, guide, setting, *rows, num_data=len(data.y_train), **options)
    bounds = training.last_bound(every.losses, len(data.y_train), setting)
    trained = every.member(int(np.argmax(bounds)))
    test = predicted(keys.test, trained, data.X_test, data.y_test, setting.test_rows, None, setting.test_draws)
    metrics = {"nlpp": nlpp(test), "rmse": rmse(test, data.y_test), "elbo": float(bounds.max())}
    f = np.asarray(trained.posterior(keys.test, data.X_test)["f"].mean)
    if run.variant == "mixture":
        metrics |= _of_truth(f, np.asarray(trained.params["weights"]), data.X_test[:, 0])
    own = {"data": data, "metrics": metrics, "seconds_training": every.seconds}
    own |= {"settings": setting.described(len(data.y_train)) | {"restarts": restarts}}
    own |= {"figures": {"functions": partial(_figure_of_functions, data, trained)}}
    return training.outcome_of(run, setting, rows, inspected(trained, data), trained, **own)


def _of_truth(f: np.ndarray, weights: np.ndarray, x: np.ndarray) -> dict[str, float]:
    truth = _functions(x)
    order = min(([0, 1], [1, 0]), key=lambda order: np.abs(f[:, order] - truth).mean())
    distances = {"function": f[:, order] - truth, "weight": weights[order] - _WEIGHTS}
    return {f"{name}_distance": float(np.abs(each).mean()) for name, each in distances.items()}


def _figure_of_functions(data: Dataset, trained: Trained) -> Figure:
    grid = np.linspace(-2, 2, 200, dtype=np.float32)[:, None]
    q = trained.posterior(jax.random.key(0), grid)["f"]
    mean, scale = (np.asarray(x).reshape(len(grid), -1) for x in (q.mean, np.sqrt(q.variance)))
    figure = plots.blank(5, 3.5)
    axes = figure.subplots()
    axes.plot(data.X_train[:, 0], data.y_train, ".", color="0.6", ms=3, label="data")
    axes.plot(grid, _functions(grid[:, 0]), "k--", lw=1, label=["true functions", None])
    for k in range(mean.shape[1]):
        band(axes, grid[:, 0], mean[:, k], scale[:, k], f"function {k + 1}", f"C{k}")
    axes.set(xlabel="x", ylabel="y")
    axes.legend(fontsize="small")
    return figure


# -- several outputs ---------------------------------------------------------------------------------------------------

_OUTPUTS = 3


def three_outputs(places: int = 100, missing: float = 0.4, seed: int = 0) -> Dataset:
    """Three correlated outputs at the same places. A part of the data is missing, and is the test set.

    A row has the place and the number of the output. Two intervals of each output are missing. They differ from output
    to output.
    """
    rng = np.random.RandomState(seed)
    x = np.sort(rng.uniform(0, 10, places))
    K = np.exp(-((x[:, None] - x) ** 2) / 2) + 1e-8 * np.eye(places)
    sources = np.linalg.cholesky(K) @ rng.standard_normal((places, 2))
    y = sources @ np.array([[1.0, 0.8, -0.9], [0.2, -0.4, 0.3]]) + 0.1 * rng.standard_normal((places, _OUTPUTS))
    wide = round(missing * places / 2)
    first = np.round(places * np.arange(_OUTPUTS) / 6).astype(int)
    held = ((np.arange(places) - first[:, None]) % (places // 2) < wide).ravel()
    rows = np.stack([np.tile(x, _OUTPUTS), np.repeat(np.arange(_OUTPUTS), places)], axis=1).astype(np.float32)
    values = y.T.ravel().astype(np.float32)
    return Dataset("three-outputs", rows[~held], values[~held], rows[held], values[held], source="generated", sha256={})


def apart(X: Array, y: Array | None = None, *, num_outputs: int, num_data: int | None = None) -> None:
    """A GP with its own hyperparameters for each output. Rows are as for ``coregionalised_gp``."""
    start = jnp.ones(num_outputs)
    variance, lengthscale = (positive(f"f_{name}", start, X) for name in ("variance", "lengthscale"))
    axes = {"variance": 1, "lengthscale": 1}
    kernel = Pointwise(_within_an_output, axes=axes, variance=variance, lengthscale=lengthscale)
    f = numpyro.sample("f", GaussianProcess(kernel, X))
    noise = positive("noise_variance", 0.1 * start, X)
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Gaussian(f, noise[_number(X[:, 1])]), obs=y)


def _within_an_output(x: Array, z: Array, variance: Array, lengthscale: Array) -> Array:
    k, same = _number(x[1]), _number(x[1]) == _number(z[1])
    return jnp.where(same, variance[k] * jnp.exp(-(((x[0] - z[0]) / lengthscale[k]) ** 2) / 2), 0)


def _number(x: Array) -> Array:
    return jnp.round(x).astype(jnp.int32)


@experiment(PAPER, "three-outputs", ("together", "apart"))
def outputs(run: Run) -> Outcome:
    """Prediction of missing entries of three outputs, from all outputs, or from each output by itself."""
    data = three_outputs(seed=run.seed)
    setting = Setting.of(run.options)
    model: Any = coregionalised_gp if run.variant == "together" else apart
    keywords = {"num_outputs": _OUTPUTS} | ({"rank": 2} if run.variant == "together" else {})
    guide = InducingGuide(model, random_subset(setting.num_inducing))
    found = train(run, data, model, guide, setting, keywords=keywords)
    figure = partial(_figure_of_outputs, data, found.trained, keywords)
    return replace(found, figures={"outputs": figure})


def _figure_of_outputs(data: Dataset, trained: Trained, keywords: dict[str, Any]) -> Figure:
    figure = plots.blank(6, 6)
    for k, axes in enumerate(figure.subplots(_OUTPUTS, 1, sharex=True)):
        grid = np.stack([np.linspace(0, 10, 200), np.full(200, k)], axis=1).astype(np.float32)
        q = trained.posterior(jax.random.key(0), grid, model_kwargs=keywords)["f"]
        band(axes, grid[:, 0], np.asarray(q.mean), np.sqrt(np.asarray(q.variance)), "function")
        for part, look, label in (("train", "k.", "data"), ("test", "C3x", "missing, the test set")):
            X, y = getattr(data, f"X_{part}"), getattr(data, f"y_{part}")
            axes.plot(X[X[:, 1] == k, 0], y[X[:, 1] == k], look, ms=4, label=label)
        axes.set_ylabel(f"output {k + 1}")
        if k == 0:
            figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", fontsize="small", ncols=3)
    axes.set_xlabel("x")
    return figure


EXPERIMENTS = (mixture, outputs)


if __name__ == "__main__":
    from gpzoo.reproductions.cli import script_main

    script_main(EXPERIMENTS)
