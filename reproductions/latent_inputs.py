"""Experiments with latent variables of rows: GPs of inputs that nobody has seen, and noise of two branches."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array

from gpzoo import kmeans
from gpzoo.inference import Amortised, GaussianProcessELBO, InducingGuide, PerRow, Trained, infer_rows, load, plots
from gpzoo.models import deep_gp, gplvm, inner_scales, latent_variable_deep_gp, linear_layers, principal_components
from gpzoo.reproductions import datasets
from gpzoo.reproductions.claims import load as paper_of
from gpzoo.reproductions.datasets import Dataset
from gpzoo.reproductions.experiment import Inspected, Outcome, Run, by_hand, experiment
from gpzoo.reproductions.toys import halved, outcome_of
from gpzoo.reproductions.training import Setting, keys_of, last_bound, left, optimise, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = paper_of("latent_inputs")

_BY_HAND = by_hand("steps, learning rate, inducing points, sizes of networks", data="training bounds")


def _network(name: str, x: Array, outputs: int, hidden: int) -> Array:
    """One hidden layer, ``[N, outputs]``."""
    rng, dtype = np.random.default_rng(0), x.dtype
    first = rng.standard_normal((x.shape[1], hidden)) / np.sqrt(x.shape[1])
    last = 0.1 * rng.standard_normal((hidden, outputs)) / np.sqrt(hidden)
    units = jnp.tanh(x @ numpyro.param(f"{name}_first", jnp.asarray(first, dtype)))
    return units @ numpyro.param(f"{name}_last", jnp.asarray(last, dtype))


# -- two branches ------------------------------------------------------------------------------------------------------


def two_branches(rows: int = 600, seed: int = 0) -> Dataset:
    """Data around either of two curves, half of them for testing."""
    rng = np.random.RandomState(seed)
    x = rng.uniform(-2, 2, (rows, 1))
    y = rng.choice([-1, 1], rows) * (0.3 + np.abs(np.sin(2 * x[:, 0]))) + 0.1 * rng.standard_normal(rows)
    return halved("two-branches", x, y)


@experiment(PAPER, "two-branches", ("deep", "latent-variable", "latent-variable-weighted"))
def branches(run: Run) -> Outcome:
    """A deep GP, with a latent variable for each row or without; its bound plain or of 10 draws of the latents."""
    data = two_branches(seed=run.seed)
    setting = Setting.of(run.options)
    model: Any = deep_gp
    options: dict[str, Any] = {}
    layers: tuple = linear_layers(data.X_train, [1])
    if run.variant.startswith("latent-variable"):
        model, layers = latent_variable_deep_gp, (np.eye(2, dtype=np.float32),)
        options = {"hyperparameters": Amortised("w", _seen_with_its_datum)}
    guide = InducingGuide(model, kmeans(setting.inducing), initial_scale=inner_scales(layers), **options)
    found = train(run, data, model, guide, setting, keywords={"layers": layers}, selection=_BY_HAND)
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
    """Embed handwritten digits, and bound the density of digits that were never seen.

    ``held_out_bound`` is ``E_q[log p(y | x)] - KL(q(x) || p(x))`` of a test image, a lower bound of its log density.
    ``ppca_log_likelihood`` is exact, of probabilistic PCA with as many latent inputs, ``best_ppca_log_likelihood`` of
    the number of them, up to 32, that does best for a fifth of the training images.
    """
    whole = datasets.load("digits")
    flat = [x.reshape(len(x), -1) for x in (whole.X_train, whole.X_test)]
    Y, new = ((x - flat[0].mean(0)).astype(np.float32) for x in flat)
    size, setting = run.options["num_latents"], Setting.of(run.options)
    keywords = {"num_outputs": Y.shape[1], "num_latents": size}
    per_row = run.variant == "gplvm"
    how: Any = PerRow({"x": principal_components(Y, size)})
    if not per_row:
        how = Amortised("x", partial(_seen_alone, 2 * size))
    guide = InducingGuide(
        gplvm, kmeans(setting.inducing), hyperparameters=how, covariance="diagonal", initial_scale=0.1
    )
    few = slice(0, 50)
    if run.finished:
        new_args = (np.arange(len(new)) if per_row else new), new
        of_new = PerRow({"x": np.zeros((len(new), size), np.float32)}) if per_row else how
        guide = InducingGuide(gplvm, kmeans(setting.inducing), hyperparameters=of_new, covariance="diagonal")
        found = load(run.model, gplvm, guide=guide)
        return left(run, whole, Inspected(found, tuple(x[few] for x in new_args), keywords))
    keys, args = keys_of(run), (np.arange(len(Y)) if per_row else Y, Y)
    trained = optimise(
        keys.train,
        gplvm,
        guide,
        setting,
        *args,
        num_data=len(Y),
        checkpoint=run.checkpoint,
        progress=run.variant,
        model_kwargs=keywords,
    )
    at_new, new_args = trained, (new, new)
    if per_row:
        near = np.argmin(((new[:, None] - Y[None]) ** 2).sum(-1), axis=1)
        new_args = np.arange(len(new)), new
        start = {"x": trained.params["x_loc"][near]}
        at_new = infer_rows(keys.test, trained, start, *new_args, model_kwargs=keywords)
    bound: Any = GaussianProcessELBO(num_particles=20, sum_sites=False)
    sites = bound.loss(keys.test, at_new.params, gplvm, at_new.guide, *new_args, **keywords)
    embedded = at_new.posterior(keys.test, *new_args, model_kwargs=keywords)["x"].mean
    metrics = {
        "held_out_bound": -float(sites["y"] + sites["x"]) / len(new),
        "elbo": float(last_bound(trained.losses, len(Y), setting)),
        **_of_neighbours(trained, keys.test, args, keywords, whole, np.asarray(embedded)),
        **_of_ppca(Y, new, size),
    }
    return outcome_of(
        run,
        setting,
        trained,
        (args[0], Y),
        Inspected(at_new, tuple(x[few] for x in new_args), keywords),
        key=keys.export,
        keywords=keywords,
        num_draws=50,
        metrics=metrics,
        settings={"num_latents": size},
        data=whole,
        dtype=str(Y.dtype),
        figures={"embedding": partial(_figure_of_digits, np.asarray(embedded), whole.y_test, _relevance(trained))},
        selection=_BY_HAND,
    )


def _seen_alone(outputs: int, Y: Array, y: Array | None = None, **program: Any) -> Array:
    return _network("encoder", Y, outputs, 100)


def _of_neighbours(
    trained: Trained, key: Array, args: tuple, keywords: dict, data: Dataset, embedded: np.ndarray
) -> dict[str, float]:
    """Error of the class of the nearest training image, by latent inputs."""
    known = np.asarray(trained.posterior(key, *args, model_kwargs=keywords)["x"].mean) * _relevance(trained)
    nearest = np.argmin(((embedded[:, None] * _relevance(trained) - known[None]) ** 2).sum(-1), axis=1)
    return {"error": float(np.mean(data.y_train[nearest] != data.y_test))}


def _relevance(trained: Trained) -> np.ndarray:
    """How fast functions vary with every latent input."""
    return 1 / np.asarray(trained.params["f_lengthscale"])


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
