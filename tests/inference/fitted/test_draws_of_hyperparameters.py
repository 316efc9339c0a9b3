"""Predictions of draws of hyperparameters are mixtures of conditional moments, as NumPy computes them."""

import warnings
from functools import partial

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

from gpzoo import GaussianProcess, InducingPoints
from gpzoo.errors import PrecisionWarning
from gpzoo.inference import Trained, load, marginal, nuts
from gpzoo.kernels import RBF, Matern52
from gpzoo.likelihoods import Expected, Gaussian
from tests.programs import KEY
from tests.reference import matern52, pairs, rbf

RNG = np.random.default_rng(0)
X = np.sort(RNG.uniform(0, 4, (14, 1)), axis=0)
NEW = np.linspace(-0.5, 5, 7)[:, None]
Y = np.sin(2 * X[:, 0]) + 0.1 * RNG.standard_normal(14)
COUNTS = RNG.poisson(np.exp(Y))
Z = np.linspace(0, 4, 5)[:, None]
DRAWS = {"lengthscale": RNG.uniform(0.6, 1.2, (2, 3)), "noise": RNG.uniform(0.05, 0.2, (2, 3))}
EACH = [dict(zip(DRAWS, both, strict=True)) for both in zip(*(x.ravel() for x in DRAWS.values()), strict=True)]


def hyperparameters():
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
    return lengthscale, numpyro.sample("noise", dist.LogNormal(-2.0, 1.0))


def summed(X, y=None):
    """Three sites, one of them a sum of kernels and one with weights by row, and a mean."""
    lengthscale, noise = hyperparameters()
    trend = numpyro.sample("trend", GaussianProcess(RBF(4.0, 3.0) + Matern52(0.5, lengthscale), X, mean=0.3))
    season = numpyro.sample("season", GaussianProcess(RBF(1.0, lengthscale), X))
    level = numpyro.sample("level", GaussianProcess(Matern52(0.2, 5.0), X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(trend - season * X[:, 0] + level + 1.0, noise), obs=y)


def by_row(x):
    return np.ones(len(x)), -x[:, 0], np.ones(len(x))


def kernels_of(s):
    trend = lambda a, b: rbf(*pairs(a, b), 4.0, 3.0) + matern52(*pairs(a, b), 0.5, s)  # noqa: E731
    return trend, lambda a, b: rbf(*pairs(a, b), 1.0, s), lambda a, b: matern52(*pairs(a, b), 0.2, 5.0)


def joint(lengthscale, noise):
    """Means and covariances of the three sites at each new row, ``[3, N]`` and ``[3, 3, N]``, and both of a part."""
    kernels, w, own = kernels_of(lengthscale), by_row(X), by_row(NEW)
    K = sum(np.outer(a, a) * k(X, X) for a, k in zip(w, kernels, strict=True)) + noise * np.eye(14)
    cross = [a[:, None] * k(X, NEW) for a, k in zip(w, kernels, strict=True)]
    residual = np.linalg.solve(K, Y - 1.3)
    means = np.array([c.T @ residual for c in cross]) + np.array([[0.3], [0.0], [0.0]])
    solved = [np.linalg.solve(K, c) for c in cross]
    covariance = -np.array([[np.sum(a * b, axis=0) for b in solved] for a in cross])
    for i, k in enumerate(kernels):
        covariance[i, i] += np.diagonal(k(NEW, NEW))
    part = matern52(*pairs(X, NEW), 0.5, lengthscale)
    of_part = part.T @ residual, 0.5 - np.sum(part * np.linalg.solve(K, part), axis=0)
    own = np.array(own)
    of_sum = np.sum(own * means, axis=0) + 1.0, np.einsum("in,ijn,jn->n", own, covariance, own)
    return means, covariance, of_part, of_sum


def mixed(means, variances):
    return np.mean(means, axis=0), np.mean(variances, axis=0) + np.var(means, axis=0)


@pytest.mark.slow
def test_predictions_are_the_mixture_of_conditional_moments(tmp_path):
    posterior = Trained.of_draws(KEY, DRAWS, X, Y, program=marginal(summed))
    y_new = np.cos(NEW[:, 0])
    ask = {"test_data": {"y": y_new}, "quantiles": (0.05, 0.5), "parts": {"trend": ("slow", "fast")}}
    found = posterior.predict(KEY, NEW, **ask)
    each = [joint(**values) for values in EACH]
    for i, name in enumerate(("trend", "season", "level")):
        mean, variance = mixed([m[i] for m, *_ in each], [V[i, i] for _, V, *_ in each])
        np.testing.assert_allclose(found[name].mean, mean, atol=1e-9)
        np.testing.assert_allclose(found[name].variance, variance, atol=1e-9)
    mean, variance = mixed(*zip(*(part for *_, part, _ in each), strict=True))
    np.testing.assert_allclose(found["fast"].mean, mean, atol=1e-9)
    np.testing.assert_allclose(found["fast"].variance, variance, atol=1e-9)
    means, variances = (np.array(x) for x in zip(*(of_sum for *_, of_sum in each), strict=True))
    variances = variances + np.array([values["noise"] for values in EACH])[:, None]
    mean, variance = mixed(means, variances)
    np.testing.assert_allclose(found["y"].mean, mean, atol=1e-9)
    np.testing.assert_allclose(found["y"].variance, variance, atol=1e-9)
    density = np.log(np.mean(norm.pdf(y_new, means, np.sqrt(variances)), axis=0))
    np.testing.assert_allclose(found["y"].log_density, density, atol=1e-9)
    levels = norm.cdf(found["y"].quantiles[:, None], means, np.sqrt(variances)).mean(axis=1)
    np.testing.assert_allclose(levels, np.array([[0.05], [0.5]]) + np.zeros(7), atol=1e-9)
    batches = posterior.predict(KEY, NEW, batch_size=3, **ask)
    np.testing.assert_allclose(batches["y"].variance, found["y"].variance, atol=1e-10)
    np.testing.assert_allclose(posterior.predict(KEY, NEW, mean_only=True)["y"].mean, mean, atol=1e-9)
    posterior.save(tmp_path / "draws")
    np.testing.assert_array_equal(load(tmp_path / "draws", summed).predict(KEY, NEW, **ask)["y"].mean, found["y"].mean)
    one = posterior.predict(KEY, NEW, num_draws=1)["season"]
    assert np.abs(one.mean - joint(**EACH[0])[0][1]).max() < 1e-9


def regression(X, y=None, *, noise=None, outputs=None, missing=None):
    lengthscale, variance = hyperparameters()
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, lengthscale), X, num_outputs=outputs))
    fn = Gaussian(f, variance, missing=missing) if noise is None else noise(f)
    numpyro.sample("y", fn, obs=y)


def poisson(f):
    return Expected(lambda f: dist.Poisson(jnp.exp(f)), f)


def by_inducing(lengthscale, noise):
    Kuu, Kuf, cross = (rbf(*pairs(Z, x), 1.0, lengthscale) for x in (Z, X, NEW))
    precision = Kuu + Kuf @ Kuf.T / noise
    mean = cross.T @ np.linalg.solve(precision, Kuf @ Y) / noise
    return mean, 1 - np.sum(cross * (np.linalg.solve(Kuu, cross) - np.linalg.solve(precision, cross)), axis=0)


def by_laplace(lengthscale, noise):
    K, cross, f = rbf(*pairs(X, X), 1.0, lengthscale), rbf(*pairs(X, NEW), 1.0, lengthscale), np.zeros(14)
    for _ in range(50):
        W = np.exp(f)
        f = K @ np.linalg.solve(np.diag(1 / W) + K, f + (COUNTS - W) / W)
    return cross.T @ (COUNTS - np.exp(f)), 1 - np.sum(cross * np.linalg.solve(K + np.diag(np.exp(-f)), cross), axis=0)


def by_output(lengthscale, noise):
    """Two outputs, of which the second lacks some rows."""
    found = []
    for y in (Y, MISSING):
        kept = ~np.isnan(y)
        K, cross = rbf(*pairs(X[kept], X[kept]), 1.0, lengthscale), rbf(*pairs(X[kept], NEW), 1.0, lengthscale)
        solved = np.linalg.solve(K + noise * np.eye(len(K)), cross)
        found.append((solved.T @ y[kept], 1 - np.sum(cross * solved, axis=0)))
    return tuple(np.stack(x, axis=1) for x in zip(*found, strict=True))


MISSING = np.where(np.arange(14) % 3 == 1, np.nan, Y)
CASES = {
    "inducing points": (regression, InducingPoints(Z), Y, by_inducing),
    "Laplace": (partial(regression, noise=poisson), None, COUNTS, by_laplace),
    "Laplace with inducing points": (partial(regression, noise=poisson), InducingPoints(X), COUNTS, by_laplace),
    "outputs": (partial(regression, outputs=2, missing="mask"), None, np.stack([Y, MISSING], axis=1), by_output),
}


@pytest.mark.slow_but(case=["outputs"])
@pytest.mark.parametrize("case", CASES)
def test_moments_are_those_of_other_laws(case):
    program, inducing, y, law = CASES[case]
    found = Trained.of_draws(KEY, DRAWS, X, y, program=marginal(program, inducing)).predict(KEY, NEW)["f"]
    mean, variance = mixed(*zip(*(law(**values) for values in EACH), strict=True))
    np.testing.assert_allclose(found.mean, mean, atol=1e-4 if "with inducing" in case else 2e-5)
    np.testing.assert_allclose(found.variance, variance, atol=1e-4 if "with inducing" in case else 2e-5)


@pytest.mark.slow
def test_more_functions_than_draws_are_told():
    posterior = Trained.of_draws(KEY, DRAWS, X, Y, program=marginal(summed))
    assert len(posterior.functions(KEY, NEW, num_features=8)["level"]) == 6
    with pytest.warns(UserWarning, match=r"num_draws=7.*6 draws of hyperparameters"):
        posterior.functions(KEY, NEW, num_draws=7, num_features=8)


@pytest.mark.slow
def test_files_without_laws_of_sites_predict_by_their_draws(tmp_path):
    posterior = Trained.of_draws(KEY, DRAWS, X, Y, program=marginal(summed))
    posterior.save(tmp_path / "whole")
    kept = {name: x for name, x in posterior.params.items() if not name.startswith("_")}
    Trained(posterior.model, posterior.guide, kept, data=posterior.data).save(tmp_path / "earlier")
    found, expected = (load(tmp_path / name, summed).predict(KEY, NEW)["level"] for name in ("earlier", "whole"))
    assert np.isfinite(found.mean).all() and np.all(found.variance > 0)
    assert np.max(np.abs(found.mean - expected.mean)) < 4 * np.sqrt(expected.variance.max() / 6)
    assert (
        load(tmp_path / "earlier", summed)
        .to_arviz(KEY, X, Y)["log_likelihood"]
        .attrs["y"]
        .startswith("log p(y_n | f_n)")
    )


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [RBF, Matern52])
@pytest.mark.parametrize("size, noise", [(60, 1e-5), (300, 1e-4), (300, 1e-3), (60, 1e-3)])
@pytest.mark.parametrize("inducing", [None, "all"])
def test_float32_keeps_the_law_or_says_that_it_cannot(kernel, size, noise, inducing):
    rng = np.random.default_rng(size)
    x = np.float32(np.sort(rng.uniform(0, 3, (size, 1)), axis=0))
    y = np.float32(np.sin(3 * x[:, 0]) + np.sqrt(noise) * rng.standard_normal(size))

    def program(x, y=None):
        f = numpyro.sample("f", GaussianProcess(kernel(1.0, 0.5), x))
        numpyro.sample("y", Gaussian(f, noise), obs=y)

    def given(dtype):
        points = None if inducing is None else InducingPoints(x.astype(dtype))
        of = marginal(program, points)
        posterior = Trained.of_draws(KEY, {}, x.astype(dtype), y.astype(dtype), program=of, num_draws=1)
        found = posterior.predict(KEY, np.linspace(0, 3, 20, dtype=dtype)[:, None])["f"]
        return np.asarray(posterior.params["_left_out"]["y"]["density"]), found.mean, np.sqrt(found.variance)

    density, mean, sd = given(np.float64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found, other, _ = given(np.float32)
    told = any("lost in the rounding errors of float32" in str(warning.message) for warning in caught)
    assert told or (np.max(np.abs(found - density)) < 0.1 and np.max(np.abs(other - mean) / sd) < 0.2)
    assert not told or noise < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("rows, outputs", [(30, None), (120, 2)])
def test_a_prior_without_a_factor_loses_no_draws(rows, outputs):
    """Noise makes the data's covariance well-conditioned: NUTS accepts draws where the prior alone has no factor."""
    inputs, shape = np.linspace(0, 1, rows)[:, None], () if outputs is None else (outputs,)
    y = np.stack([np.sin(3 * inputs[:, 0])] * (outputs or 1), axis=1).reshape(rows, *shape)

    def program(X, y=None):
        lengthscale, noise = hyperparameters()
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, lengthscale), X, num_outputs=outputs, jitter=0.0))
        numpyro.sample("y", Gaussian(f, noise), obs=y)

    own = np.random.default_rng(rows)
    draws = {"lengthscale": own.uniform(0.6, 1.2, 40), "noise": own.uniform(0.05, 0.2, 40)}
    in_float32 = [x.astype(np.float32) for x in (inputs, y, NEW)]
    of = {name: x.astype(np.float32) for name, x in draws.items()}
    with pytest.warns(PrecisionWarning, match="GP site.s. f has no Cholesky factor at .* draws"):
        posterior = Trained.of_draws(KEY, of, *in_float32[:2], program=marginal(program))
    at_new, at_data = [], []
    for lengthscale, noise in zip(*draws.values(), strict=True):
        K = rbf(*pairs(inputs, inputs), 1.0, lengthscale)
        solved = np.linalg.solve(K + noise * np.eye(rows), y)
        at_new.append(rbf(*pairs(NEW, inputs), 1.0, lengthscale) @ solved)
        at_data.append(K @ solved)
    np.testing.assert_allclose(posterior.predict(KEY, in_float32[2])["f"].mean, np.mean(at_new, axis=0), atol=2e-3)
    drawn = np.reshape(posterior.params["f_mean"], (40, *y.shape))
    np.testing.assert_allclose(drawn.mean(axis=0), np.mean(at_data, axis=0), atol=0.15)


@pytest.mark.slow
def test_a_program_of_its_own_replaces_that_of_the_chains():
    model = marginal(regression)
    chains = nuts(KEY, model, X, Y, num_warmup=5, num_samples=5, num_chains=1, progress=False)
    other = marginal(partial(regression, outputs=1))
    assert Trained.of_draws(KEY, chains, X, Y).model is model.fn
    assert Trained.of_draws(KEY, chains, X, Y[:, None], program=other).model is other.fn
