"""Quantiles of mixtures against SciPy, and of predictions that are one Gaussian or one draw per sample."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro import handlers
from scipy.stats import norm

from gpzoo import draws
from gpzoo.inducing.variables import InducingPoints
from gpzoo.inference import InducingGuide, Trained, predict
from gpzoo.inference.fitted.quantiles import empirical_quantiles, mixture_quantiles
from gpzoo.kernels import RBF, White
from gpzoo.processes.process import GaussianProcess
from tests.inference.fitted.checks import QUANTILES, assert_same, check_quantiles
from tests.programs import randomised, regression
from tests.reference import conditional, mixture_quantile, pairs, rbf

KEY = random.key(0)
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.standard_normal((20, 2)))
NEW = jnp.asarray(RNG.standard_normal((7, 2)))


def prepared(model, *args):
    guide = InducingGuide(model, InducingPoints(X[::4]))
    return guide, randomised(guide.init_params(KEY, *args))


# -- one component, and samples ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_component_has_exact_quantiles_and_its_own_draws():
    guide, params = prepared(regression, X, X[:, 0])
    trained = Trained(regression, guide, params)
    found = trained.predict(KEY, NEW, num_draws=9, quantiles=QUANTILES, keep_draws=True)
    for name in ("f", "y"):
        site = found[name]
        assert site.draws.shape == (9, 7) and (np.ptp(site.draws, axis=0) > 0).all()
        wanted = site.mean + norm.ppf(QUANTILES)[:, None] * np.sqrt(site.variance)
        np.testing.assert_allclose(site.quantiles, wanted, rtol=1e-12, atol=1e-12)

    assert_same(found, trained.predict(KEY, NEW, num_draws=9, quantiles=QUANTILES, keep_draws=True))
    plain = trained.predict(KEY, NEW)
    assert_same(plain, {name: site._replace(quantiles=None, draws=None) for name, site in found.items()})

    def exact(X, y=None):
        numpyro.sample("y", GaussianProcess(RBF(1.0, 1.0) + White(0.1), X), obs=y)

    go = partial(predict, KEY, exact, NEW, params={}, train_args=(X, X[:, 0]), num_draws=500, keep_draws=True)
    site = go()["y"]
    assert site.draws.shape == (500, 7)
    assert (np.abs(site.draws.mean(0) - site.mean) < 5 * np.sqrt(site.variance / 500)).all()
    np.testing.assert_allclose(site.draws, go(batch_size=2)["y"].draws, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_samples_give_one_draw_each():
    model = handlers.lift(
        regression, prior={name: dist.LogNormal(0.0, 1.0) for name in ("variance", "lengthscale", "noise")}
    )
    rows = np.concatenate([X, NEW])
    samples = {name: np.array([0.5, 1.0, 2.0]) for name in ("variance", "lengthscale")}
    samples |= {"noise": np.full(3, 0.1), "f": rows[:20].T[[0, 1, 0]] * [[1], [1], [-1]]}
    found = predict(
        KEY, model, NEW, posterior_samples=samples, train_args=(X, X[:, 0]), quantiles=QUANTILES, keep_draws=True
    )
    assert found["f"].draws.shape == found["y"].draws.shape == (3, 7)
    moments = []
    for v, f in zip((0.5, 1.0, 2.0), np.asarray(samples["f"]), strict=True):
        K = rbf(*pairs(rows, rows), v, v)
        mean, covariance = conditional(K[:20, :20] + 1e-9 * v * np.eye(20), K[:20, 20:], K[20:, 20:], f)
        moments.append((mean, np.diag(covariance) + 0.1))
    mean, variance = np.moveaxis(np.array(moments), 1, 0)
    check_quantiles(found["y"].quantiles, mean, variance, rtol=1e-4)


@pytest.mark.slow
def test_samples_of_programs_that_take_arrays_and_record_deterministic_sites():
    def rates(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 0.1), X))
        rate = numpyro.deterministic("rate", jnp.exp(draws(f)))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", dist.Poisson(rate), obs=y)

    f = jnp.asarray(RNG.standard_normal((4, 20)))
    samples = {"f": f, "rate": jnp.exp(f)}
    go = partial(predict, KEY, rates, X[:9], train_args=(X, jnp.ones(20, int)), keep_draws=True, quantiles=(0.5,))
    found = go(posterior_samples=samples)
    np.testing.assert_allclose(found["f"].draws, f[:, :9], atol=0.01)  # f at the training inputs, up to the jitter
    np.testing.assert_allclose(found["y"].mean, jnp.exp(f[:, :9]).mean(0), rtol=0.02)
    assert_same(found, go(posterior_samples=samples, batch_size=4), rtol=1e-6, atol=1e-6)


# -- quantiles on their own --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_mixture_quantiles_are_scipys(dtype):
    rng = np.random.default_rng(1)
    quantiles = (1e-6, 0.025, 0.31, 0.5, 0.77, 0.975, 1 - 1e-6)
    # Smooth, narrow beside their distances, of very different widths, all the same, far from 0.
    mean = rng.standard_normal((25, 5)) * [1, 10, 1, 0, 1] + [0, 0, 0, 3, 1e3]
    scale = np.exp(rng.standard_normal((25, 5)) * [0.3, 0.3, 3, 0, 0.3] + [0, -4, 0, 0, 0])
    mean, variance = mean.astype(dtype), np.square(scale).astype(dtype)
    found = jax.jit(lambda m, v: mixture_quantiles(m, v, quantiles))(mean, variance)
    assert found.dtype == dtype and found.shape == (7, 5)
    mean, scale, eps = mean.astype(np.float64), np.sqrt(variance.astype(np.float64)), float(np.finfo(dtype).eps)
    for q, row in zip(quantiles, np.asarray(found, np.float64), strict=True):
        for i, value in enumerate(row):
            wanted = mixture_quantile(q, mean[:, i], scale[:, i])
            # What rounding allows: that of the value itself, and that of the distribution function over its slope.
            slope = norm.pdf(wanted, mean[:, i], scale[:, i]).mean()
            assert abs(value - wanted) <= 4 * eps * (abs(wanted) + scale[:, i].max()) + 20 * eps * min(q, 1 - q) / slope


def test_quantiles_where_the_distribution_function_is_level():
    # Beside it a component that is not a number.
    mean = np.array([[-100.0, 0.0], [-90.0, 0.0], [90.0, np.nan], [100.0, 0.0]])
    found = np.asarray(jax.jit(lambda m: mixture_quantiles(m, jnp.ones((4, 2)), (0.25, 0.5, 0.75)))(mean))
    assert -100 < found[0, 0] < -90 and -90 <= found[1, 0] < -75 and 90 < found[2, 0] < 100
    assert np.isnan(found[:, 1]).all()


def test_empirical_quantiles_are_values_that_were_drawn():
    draws = np.random.default_rng(0).permutation(100)[:, None]
    levels = (0.001, 0.07, 0.5, 0.505, 0.999)
    found = np.asarray(jax.jit(lambda d: empirical_quantiles(d, levels))(draws))[:, 0]
    np.testing.assert_array_equal(found, [0, 6, 49, 50, 99])
    assert np.issubdtype(found.dtype, np.integer)


def test_quantiles_that_are_none_are_refused():
    guide, params = prepared(regression, X, X[:, 0])
    for wrong in ((), (0.0, 0.5), (1.0,), (-0.1,), (float("nan"),), 0.5, "half", [[0.5]], (None,)):
        with pytest.raises(ValueError, match=r"quantiles must be probabilities between 0 and 1 such as \(0.05, 0.5"):
            Trained(regression, guide, params).predict(KEY, NEW, quantiles=wrong)
