"""Experiments with latent variables of rows: GPs with unobserved inputs, and noise with two branches."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array
from jax.typing import ArrayLike

from gpzoo import kmeans
from gpzoo.inference import Amortised, GaussianProcessELBO, InducingGuide, PerRow, Trained, infer_rows, load, plots
from gpzoo.models import deep_gp, gplvm, inner_scales, latent_variable_deep_gp, linear_layers, principal_components
from gpzoo.reproductions import datasets
from gpzoo.reproductions.claims import load as paper_of
from gpzoo.reproductions.datasets import Dataset
from gpzoo.reproductions.datasets.in_memory import halved
from gpzoo.reproductions.experiment import Figure, Inspected, Outcome, Run, experiment
from gpzoo.reproductions.training import Setting, keys_of, last_bound, left, optimise, outcome_of, train

PAPER = paper_of("latent_inputs")


def _network(name: str, x: Array, outputs: int, hidden: int) -> Array:
    """A network with one hidden layer, ``[N, outputs]``."""
    rng, dtype = np.random.default_rng(0), x.dtype
    first = rng.standard_normal((x.shape[1], hidden)) / np.sqrt(x.shape[1])
    last = 0.1 * rng.standard_normal((hidden, outputs)) / np.sqrt(hidden)
    units = jnp.tanh(x @ numpyro.param(f"{name}_first", jnp.asarray(first, dtype)))
    return units @ numpyro.param(f"{name}_last", jnp.asarray(last, dtype))


# -- two branches ------------------------------------------------------------------------------------------------------


def two_branches(rows: int = 600, seed: int = 0) -> Dataset:
    """Data around one of two curves. Half of the rows are for testing."""
    rng = np.random.RandomState(seed)
    x = rng.uniform(-2, 2, (rows, 1))
    y = rng.choice([-1, 1], rows) * (0.3 + np.abs(np.sin(2 * x[:, 0]))) + 0.1 * rng.standard_normal(rows)
    return halved("two-branches", x, y)


@experiment(PAPER, "two-branches", ("deep", "latent-variable", "latent-variable-weighted"))
def branches(run: Run) -> Outcome:
    """A deep GP, with or without a latent variable for each row; its bound is plain, or of 10 draws of the latents."""
    data = two_branches(seed=run.seed)
    setting = Setting.of(run.options)
    options: dict[str, Any] = {}
    model, layers = deep_gp, linear_layers(data.X_train, [1])
    if run.variant != "deep":
        model, layers = latent_variable_deep_gp, (np.eye(2, dtype=np.float32),)
        options = {"hyperparameters": Amortised("w", _seen_with_its_datum)}
    guide = InducingGuide(model, kmeans(setting.num_inducing), initial_scale=inner_scales(layers), **options)
    found = train(run, data, model, guide, setting, keywords={"layers": layers})
    figure = partial(_figure_of_branches, data, run.seed, found.trained, layers)
    return replace(found, figures={"predictions": figure})


def _seen_with_its_datum(X: Array, y: Array | None = None, **program: Any) -> Array | None:
    return None if y is None else _network("encoder", jnp.concatenate([X, y[:, None]], axis=1), 2, 40)


def _figure_of_branches(data: Dataset, seed: int, trained: Trained, layers: tuple) -> Figure:
    grid = np.linspace(-2, 2, 150, dtype=np.float32)[:, None]
    found = trained.predict(jax.random.key(seed), grid, keep_draws=True, model_kwargs={"layers": layers})["y"]
    figure = plots.blank(5, 3.5)
    axes = figure.subplots()
    draws = np.asarray(found.draws)[:60]
    axes.plot(np.tile(grid[:, 0], len(draws)), draws.ravel(), ".", ms=1.5, alpha=0.4, label="predictive draws")
    axes.plot(data.X_test[:, 0], data.y_test, "k+", ms=4, label="test data")
    axes.set(xlabel="x", ylabel="y")
    axes.legend(loc="upper right")
    return figure


# -- digits ------------------------------------------------------------------------------------------------------------


@experiment(PAPER, "digits", ("gplvm", "gplvm-amortised"))
def digits(run: Run) -> Outcome:
    """Embed handwritten digits, and bound the density of unseen digits.

    ``held_out_bound`` is ``E_q[log p(y | x)] - KL(q(x) || p(x))`` of a test image, a lower bound of its log density.
    ``ppca_log_likelihood`` is exact, for probabilistic PCA with as many latent inputs. ``best_ppca_log_likelihood`` has
    the number of latent inputs, up to 32, that does best on a fifth of the training images.
    """
    whole = datasets.load("digits")
    flat = [x.reshape(len(x), -1) for x in (whole.X_train, whole.X_test)]
    Y, new = ((x - flat[0].mean(0)).astype(np.float32) for x in flat)
    size, setting = run.options["num_latents"], Setting.of({"num_draws": 50} | dict(run.options))
    setting.check(run.changes, ("evaluations", "early", "test_rows", "test_draws"))
    keywords = {"num_outputs": Y.shape[1], "num_latents": size}
    per_row, keys = run.variant == "gplvm", keys_of(run)
    # The inputs of the program are row numbers, or the images themselves.
    args, new_args = (((np.arange(len(y)) if per_row else y), y) for y in (Y, new))

    guide = partial(_guide, setting.num_inducing, size, per_row)
    few = tuple(x[:50] for x in new_args)
    if run.finished:
        found = load(run.model, gplvm, guide=guide(np.zeros((len(new), size), np.float32)))
        return left(run, whole, Inspected(found, few, keywords))
    options = {"checkpoint": run.checkpoint, "progress": run.title, "model_kwargs": keywords}
    first = guide(principal_components(Y, size))
    trained = at_new = optimise(keys.train, gplvm, first, setting, *args, num_data=len(Y), **options)
    if per_row:
        near = np.argmin(((new[:, None] - Y[None]) ** 2).sum(-1), axis=1)
        start = {"x": trained.params["x_loc"][near]}
        at_new = infer_rows(keys.test, trained, start, *new_args, model_kwargs=keywords)
    known, embedded = (
        np.asarray(one.posterior(keys.test, *rows, model_kwargs=keywords)["x"].mean)
        for one, rows in ((trained, args), (at_new, new_args))
    )
    # The speed with which functions change along every latent input.
    relevance = 1 / np.asarray(trained.params["f_lengthscale"])
    metrics = {
        "held_out_bound": _held_out_bound(keys.test, at_new, new_args, keywords),
        "elbo": float(last_bound(trained.losses, len(Y), setting)),
        "error": _of_neighbours(known * relevance, embedded * relevance, whole),
        **_of_ppca(Y, new, size),
    }
    own = {"data": whole, "metrics": metrics, "dtype": str(Y.dtype)}
    own |= {"settings": setting.described(len(Y)) | {"num_latents": size}}
    own |= {"figures": {"embedding": partial(_figure_of_digits, embedded, whole.y_test, relevance)}}
    return outcome_of(run, setting, args, Inspected(at_new, few, keywords), trained, **own)


def _guide(inducing: int, size: int, per_row: bool, x: ArrayLike) -> InducingGuide:
    """A guide with q(x) from parameters for every row, which start at ``x``, or from a network."""
    how: Any = PerRow({"x": x}) if per_row else Amortised("x", partial(_seen_alone, 2 * size))
    return InducingGuide(gplvm, kmeans(inducing), hyperparameters=how, covariance="diagonal", initial_scale=0.1)


def _seen_alone(outputs: int, Y: Array, y: Array | None = None, **program: Any) -> Array:
    return _network("encoder", Y, outputs, 100)


def _held_out_bound(key: Array, at_new: Trained, args: tuple, keywords: dict[str, Any]) -> float:
    bound: Any = GaussianProcessELBO(num_particles=20, sum_sites=False)
    sites = bound.loss(key, at_new.params, gplvm, at_new.guide, *args, **keywords)
    return -float(sites["y"] + sites["x"]) / len(args[1])


def _of_neighbours(known: np.ndarray, new: np.ndarray, data: Dataset) -> float:
    """Classification error of the nearest training image, by distance of latent inputs."""
    nearest = np.argmin(((new[:, None] - known[None]) ** 2).sum(-1), axis=1)
    return float(np.mean(data.y_train[nearest] != data.y_test))


def _of_ppca(Y: np.ndarray, new: np.ndarray, size: int) -> dict[str, float]:
    from sklearn.decomposition import PCA

    cut = len(Y) - len(Y) // 5
    order = np.random.RandomState(0).permutation(len(Y))
    train, held = Y[order[:cut]], Y[order[cut:]]
    best = max(range(1, 33), key=lambda q: PCA(q).fit(train).score(held))
    return {
        "ppca_log_likelihood": float(PCA(size).fit(Y).score(new)),
        "best_ppca_log_likelihood": float(PCA(best).fit(Y).score(new)),
        "best_ppca_num_latents": float(best),
    }


def _figure_of_digits(embedded: np.ndarray, classes: np.ndarray, relevance: np.ndarray) -> Figure:
    first, second = np.argsort(-relevance)[:2]
    figure = plots.blank(5, 4.5)
    axes = figure.subplots()
    for k in range(10):
        of = classes == k
        axes.plot(embedded[of, first], embedded[of, second], marker=f"${k}$", ms=6, ls="", color=f"C{k}")
    axes.set(xlabel=f"latent input {first + 1}", ylabel=f"latent input {second + 1}")
    return figure


EXPERIMENTS = (digits, branches)


if __name__ == "__main__":
    from gpzoo.reproductions.cli import script_main

    script_main(EXPERIMENTS)
