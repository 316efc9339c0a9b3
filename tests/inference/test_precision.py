"""One model has one number by every route, and float32 keeps the posterior or says that it cannot."""

import warnings
from contextlib import suppress
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro.infer import SVI, Trace_ELBO, init_to_median
from numpyro.infer.autoguide import AutoDelta
from numpyro.infer.util import log_density

from gpzoo.errors import FactorisationError, NonFiniteError, PrecisionWarning
from gpzoo.inducing.variables import InducingBlocks, InducingPatches, InducingPoints
from gpzoo.inference import (
    CollapsedELBO,
    GaussianProcessELBO,
    InducingGuide,
    NaturalGradients,
    fit,
    marginal,
    predict,
)
from gpzoo.kernels import RBF, ChangePoint, Constant, Convolutional, Kernel, Linear, Matern12, Matern32, Matern52, White
from gpzoo.likelihoods import Gaussian
from gpzoo.linalg.factorise import RELATIVE_JITTER, ROUNDING
from gpzoo.posteriors.conditional import Projection
from gpzoo.processes.process import GaussianProcess

KEY = random.key(0)
RELATIVE, EPS = RELATIVE_JITTER["float64"], np.finfo("float64").eps
YEARS = np.arange(1960.0, 2020.0)[:, None]


def observed(X, y=None, *, kernel, noise):
    numpyro.sample("y", GaussianProcess(kernel + White(noise), X), obs=y)


def latent(X, y=None, *, kernel, noise):
    f = numpyro.sample("f", GaussianProcess(kernel, X))
    with numpyro.plate("rows", len(X)):
        numpyro.sample("y", Gaussian(f, noise), obs=y)


def evidences(X, y, **model):
    """By every route, with inducing points at all inputs where it has any."""
    exact, program = partial(observed, **model), partial(latent, **model)
    density = lambda program: log_density(program, (X, y), {}, {})[0]  # noqa: E731
    found = {"exact": density(exact), "marginal": density(marginal(program))}
    found["marginal, sparse"] = density(marginal(program, InducingPoints(X)))
    guide = InducingGuide(program, InducingPoints(X))
    collapsed = SVI(program, guide, optax.sgd(0.0), CollapsedELBO())
    found["collapsed"] = -collapsed.evaluate(collapsed.init(KEY, X, y), X, y)
    natural = SVI(program, guide, NaturalGradients(optax.sgd(0.0), guide, 1.0), GaussianProcessELBO())
    state, _ = jax.jit(natural.update)(natural.init(KEY, X, y), X, y)
    found["natural"] = -natural.evaluate(state, X, y)
    return {name: float(x) for name, x in found.items()}


TREND = {
    "raw years": (RBF(1.0, 2.0) + Linear() + Constant(1.0), YEARS, 0.01),
    "both": (RBF(1.0, 2.0) + Linear() + Constant(1e5), YEARS, 0.01),
    "a level": (Constant(1e5) + RBF(1.0, 2.0), YEARS - 1990, 0.002),
    "a product": (
        3.0 * (Matern52(0.5, 3.0) * (Linear() + Constant(30.0)) + Constant(400.0)),
        YEARS[::2] - 1990,
        1.0,
    ),
    "none": (2.0 * Matern32(1.0, 5.0), YEARS[:40] - 1980, 0.05),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", TREND)
def test_one_model_has_one_evidence(case):
    kernel, X, noise = TREND[case]
    level = 0.0 if case == "none" else 300.0
    t = X[:, 0] - X.mean()
    y = level + np.sin(t / 3) + 0.02 * t + np.sqrt(noise) * np.random.default_rng(0).standard_normal(len(X))
    L = np.linalg.cholesky(np.asarray(kernel(X)) + noise * np.eye(len(X)))
    expected = -np.sum(np.square(np.linalg.solve(L, y))) / 2 - np.sum(np.log(np.diag(L) * np.sqrt(2 * np.pi)))
    for route, found in evidences(X, y, kernel=kernel, noise=noise).items():
        assert found == pytest.approx(expected, rel=1e-6), route


def test_jitter_is_of_the_least_addend():
    X = np.linspace(-1.0, 2.0, 25)[:, None]
    for kernel in (RBF(0.3) + Constant(1e3), 1e3 * Constant() + (Linear(50.0) + 0.3 * RBF()), RBF(0.3)):
        np.testing.assert_allclose(kernel.jitter(X), RELATIVE * 0.3, rtol=0.05)
    np.testing.assert_allclose(((RBF(0.3) + Constant(9.0)) * Constant(2.0)).jitter(X), RELATIVE * 0.6)
    np.testing.assert_allclose((RBF(jnp.array([0.3, 5.0])) + Constant(1e3)).jitter(X), RELATIVE * np.array([0.3, 5.0]))


def test_jitter_is_no_less_than_rounding_and_no_more_than_noise_leaves():
    for size, variance in ((5, 1e8), (70, 1e7)):
        X = np.linspace(-1.0, 2.0, size)[:, None]
        rounding = ROUNDING * EPS * size * (variance + 1)
        np.testing.assert_allclose((Constant(variance) + RBF()).jitter(X), max(rounding, RELATIVE))
        assert (Constant(variance) + RBF() + White(0.01)).jitter(X) == 0
    np.testing.assert_allclose((RBF() + White(0.4 * RELATIVE)).jitter(X), 0.6 * RELATIVE)
    # Of the least addend, and of rounding; noise that is below the jitter keeps its slope.
    assert jax.grad(lambda v: (RBF(v) + Constant(3 * v)).jitter(X))(2.0) == pytest.approx(RELATIVE)
    of_rounding = jax.grad(lambda v: (RBF() + Constant(v)).jitter(X))(1e7)
    np.testing.assert_allclose(of_rounding, ROUNDING * EPS * len(X))
    assert jax.grad(lambda v: (RBF() + White(v)).jitter(X))(0.4 * RELATIVE) == 0


def test_jitter_of_a_kernel_of_ones_own_and_of_blocks():
    class Slope(Kernel):
        def evaluate(self, x, z):
            return 4.0 * jnp.sum(x * z)

    ones = np.ones((3, 1))
    np.testing.assert_allclose((Slope() + Constant(1e3)).jitter(ones), RELATIVE * 4.0)
    kernel = Convolutional(RBF(0.5) + Constant(1e4), (3, 3), (2, 2)) + Convolutional(RBF(70.0), (3, 3), (2, 2))
    patches = InducingPatches(np.random.default_rng(0).standard_normal((4, 4)))
    site = GaussianProcess(kernel, np.zeros((2, 3, 3, 1)))
    L = Projection(site, InducingBlocks(patches, patches)).L
    for block, variances, least in zip(L.blocks, (10000.5, 70.0), (0.5, 70.0), strict=True):
        added = np.sum(np.square(block), axis=-1) - variances
        np.testing.assert_allclose(added, RELATIVE * least, atol=4 * EPS * variances)


def signal(kernel, N, noise, seed):
    """Float32 data of a kernel, and the float64 posterior of the function at 50 inputs."""
    rng = np.random.default_rng(seed)
    X, new = (np.float64(np.float32(x))[:, None] for x in (np.sort(rng.uniform(0, 3, N)), np.linspace(0, 3, 50)))
    K, across = np.asarray(kernel(X)), np.asarray(kernel(X, new))
    y = np.linalg.cholesky(K + 1e-9 * np.eye(N)) @ rng.standard_normal(N) + np.sqrt(noise) * rng.standard_normal(N)
    y = np.float64(np.float32(y))
    solved = np.linalg.solve(K + noise * np.eye(N), np.column_stack([across, y]))
    variance = 1 - np.sum(across * solved[:, :-1], axis=0)
    return [np.float32(x) for x in (X, y, new)], across.T @ solved[:, -1], variance


@pytest.mark.slow_but(kind=[RBF], N=[300])
@pytest.mark.parametrize(
    "kind, N, noise", [(RBF, 300, 1e-4), (RBF, 700, 1e-3), (Matern52, 600, 1e-4), (Matern32, 1000, 1e-4)]
)
def test_exact_regression_in_float32(kind, N, noise):
    kernel = kind(1.0, 0.5)
    for seed in range(2):
        (X, y, new), mean, variance = signal(kernel, N, noise, seed)
        found = predict(KEY, partial(observed, kernel=kernel, noise=noise), new, train_args=(X, y))["y"]
        assert np.max(np.abs(found.mean - mean) / np.sqrt(variance)) < 0.2
        assert found.variance.min() >= np.float32(noise)
        np.testing.assert_allclose(found.variance, variance + noise, rtol=0.02)


@pytest.mark.parametrize(
    "kernel, N, noise", [(RBF(1.0, 0.5), 200, 3e-6), (Matern52(1.0, 0.5) + Constant(1e5), 50, 0.01)]
)
def test_float32_says_what_it_cannot(kernel, N, noise):
    (X, y, new), _, _ = signal(kernel, N, noise, 0)
    program = partial(observed, kernel=kernel, noise=noise)
    for dtype, warned in ((np.float32, True), (np.float64, False)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", PrecisionWarning)
            found = predict(KEY, program, new.astype(dtype), train_args=(X.astype(dtype), y.astype(dtype)))["y"]
        said = [str(w.message) for w in caught if "float32" not in str(w.message)[:12]]
        assert any("posterior of GP site 'y' is lost" in text and "enable_x64" in text for text in said) == warned
        assert found.variance.min() >= dtype(noise)


@pytest.mark.slow_but(level=[7e4])
@pytest.mark.parametrize("level", [3e4, 7e4, 1e5])
def test_a_density_whose_noise_is_lost_says_so(level):
    """Whether such a covariance has a factor is a matter of the processor; the warning is not."""
    X = np.linspace(0, 1, 50, dtype=np.float32)[:, None]
    process = GaussianProcess(RBF() + Constant(level) + White(0.01), X)
    with (
        pytest.warns(PrecisionWarning, match=r"rounding errors of .* in float32.*enable_x64"),
        suppress(FactorisationError),
    ):
        process.log_prob(np.zeros(50, np.float32))
    GaussianProcess(RBF() + Constant(1e5) + White(0.01), np.float64(X)).log_prob(np.zeros(50))


def exact_mean(X, y=None, *, level):
    v = numpyro.param("v", jnp.float32(1.0))
    numpyro.sample("y", GaussianProcess(RBF(v) + Constant(level) + White(0.01), X), obs=y)


def exact_prior(X, y=None, *, level):
    v = numpyro.sample("v", dist.LogNormal())
    numpyro.sample("y", GaussianProcess(RBF(v) + Constant(level) + White(0.01), X), obs=y)


TRAINED = {
    "exact": (exact_mean, lambda program: InducingGuide(program, InducingPoints(np.zeros((1, 1), np.float32)))),
    "another guide": (exact_prior, AutoDelta),
    "a posterior": (
        exact_prior,
        lambda program: InducingGuide(
            program, InducingPoints(np.zeros((1, 1), np.float32)), hyperparameters="normal", init_loc_fn=init_to_median
        ),
    ),
    "sparse": (
        partial(latent, noise=0.01),
        lambda program: InducingGuide(program, InducingPoints(np.linspace(0, 3, 10, dtype=np.float32)[:, None])),
    ),
}


@pytest.mark.slow_but(case=["exact"])
@pytest.mark.parametrize("case", TRAINED)
@pytest.mark.parametrize("size, level", [(40, 1e5), (25, 1e5), (40, 1.0)])
def test_a_training_in_float32_says_what_it_loses(case, size, level, standard_promotion):
    """Compiled steps have no warnings: of a level beside which rounding exceeds the noise the start tells."""
    program, guide = TRAINED[case]
    X = np.linspace(0, 3, size, dtype=np.float32)[:, None]
    y, bound = np.sin(X[:, 0]), GaussianProcessELBO() if guide is not AutoDelta else Trace_ELBO()
    kept = {"kernel": RBF() + Constant(np.float32(level))} if case == "sparse" else {"level": np.float32(level)}
    program = partial(program, **kept)
    failed: Any = (FactorisationError, NonFiniteError) if level > 1 else ()  # on some processors
    with warnings.catch_warnings(record=True) as caught, suppress(*failed):
        warnings.simplefilter("always")
        fit(KEY, SVI(program, guide(program), optax.adam(0.01), bound), 1, X, y, progress=False)
    told = [each for each in caught if issubclass(each.category, PrecisionWarning) and "rounding" in str(each.message)]
    assert bool(told) == (level > 1)


@pytest.mark.slow_but(rows=[300], ends=[(0.0, 9.0)])
@pytest.mark.parametrize("places", [(3.0,), (3.0, 6.0), (6.0, 3.0), (1.0, 4.0, 8.5)])
@pytest.mark.parametrize("ends", [(0.0, 9.0), (7.0, 9.0), (-30.0, -20.0)])
@pytest.mark.parametrize(("rows", "dtype"), [(30, np.float64), (300, np.float64), (40, np.float32)])
def test_addends_that_are_shut_are_not_lost(places, ends, rows, dtype):
    """At some rows or at all, such as those of a forecast after the change."""
    kernel = RBF(0.5, 1.0)
    for place in places:
        kernel = ChangePoint(kernel, Matern12(2.0, 0.5), place, width=0.05)
    X = np.linspace(*ends, rows)[:, None].astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrecisionWarning)
        GaussianProcess(kernel, X).sample(jax.random.key(0))
