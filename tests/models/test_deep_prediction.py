"""Prediction with deep GPs, a mixture over paths: quantiles and draws against paths taken one by one, any batching."""

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
from gpzoo.inference import InducingGuide, Trained
from gpzoo.inference.programs.gp_sites import BatchRows, Marginals, in_mode
from gpzoo.inference.programs.keys import named_key
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Expected, Gaussian, Softmax
from gpzoo.models import deep_gp, linear_layers
from gpzoo.processes.process import GaussianProcess
from tests.inference.fitted.checks import QUANTILES, assert_same, check_quantiles
from tests.programs import positive, program_of, randomised
from tests.statistics import off

KEY = random.key(0)
RNG = np.random.default_rng(0)
X = RNG.standard_normal((20, 2))
NEW = RNG.standard_normal((7, 2))
TARGETS = RNG.standard_normal(7)
THREE = partial(deep_gp, layers=linear_layers(X, [2, 1]))
#: Of the mixture.
S = 2000


def prepared(model, *args, inducing=X[::4], **kwargs):
    guide = InducingGuide(model, inducing if isinstance(inducing, dict) else InducingPoints(inducing), **kwargs)
    return guide, randomised(jax.jit(lambda: guide.init_params(KEY, *args))())


@pytest.fixture(scope="module")
def three():
    inducing = {"layer_0": X[::4], "layer_1": X[::4], "f": X[::4, :1]}
    inducing = {name: InducingPoints(Z) for name, Z in inducing.items()}
    guide, params = prepared(THREE, X, X[:, 0], inducing=inducing, initial_scale=0.4)
    arguments = {"num_draws": S, "test_data": {"y": TARGETS}, "quantiles": QUANTILES, "keep_draws": True}
    predict = partial(Trained(THREE, guide, params).predict, KEY, NEW, **arguments)
    return guide, params, predict, predict()


# -- the mixture of eq. 18, path by path -------------------------------------------------------------------------------


@pytest.mark.slow
def test_three_layers_are_the_mixture_of_their_paths(three):
    guide, params, predict, found = three
    assert_same(found, predict(batch_size=3))

    def one(key):
        with handlers.block(), in_mode(Marginals(BatchRows(jnp.arange(7), 7, {}))):
            run = handlers.substitute(handlers.seed(guide, random.split(key)[1]), data=params)
            trace = handlers.trace(run).get_trace(NEW)
        return {
            name: (*trace[name]["fn"].marginals(), jnp.asarray(trace[name]["value"])) for name in guide.sites.drawn
        }, (trace["f"]["fn"].marginals())

    paths = jax.jit(lambda: jax.vmap(one)(random.split(named_key(KEY, "draws"), S)))()
    inner, (means, variances) = jax.tree.map(np.asarray, paths)
    assert means.std(0).min() > 0.01
    noisy = variances + float(params["noise_variance"])
    by_hand = np.log(np.mean(np.exp(norm.logpdf(TARGETS, means, np.sqrt(noisy))), axis=0))
    np.testing.assert_allclose(found["y"].log_density, by_hand, rtol=1e-9)
    assert set(inner) == {"layer_0", "layer_1"}
    for name, (mean, variance, own) in inner.items():
        np.testing.assert_allclose(found[name].draws, own, rtol=1e-9, atol=1e-11)
        check_quantiles(found[name].quantiles, mean, variance)
    check_quantiles(found["f"].quantiles, means, variances)
    check_quantiles(found["y"].quantiles, means, noisy)


@pytest.mark.slow
def test_draws_have_the_moments_that_are_reported(three):
    _, params, _, found = three
    for name, shape in {"layer_0": (S, 7, 2), "layer_1": (S, 7, 1), "f": (S, 7), "y": (S, 7)}.items():
        site = found[name]
        assert site.draws.shape == shape
        deviation = site.draws - site.mean
        error = np.sqrt(site.variance / S)
        assert (np.abs(deviation.mean(0)) < 5 * error).all(), name
        assert off(deviation**2, site.variance).max() < 5, name
    # y is drawn from the draw of f on the same path.
    noise, residual = float(params["noise_variance"]), found["y"].draws - found["f"].draws
    assert abs(np.mean(residual**2) / noise - 1) < 5 * np.sqrt(2 / residual.size)
    assert np.abs(np.corrcoef(residual.T) - np.eye(7)).max() < 5 / np.sqrt(S)


# -- data sites that are not Gaussian ----------------------------------------------------------------------------------


def poisson(f, exposure):
    return dist.Poisson(exposure * jnp.exp(f))


def counts(X, y=None, w=None, z=None):
    """Counts with an exposure per datum, from marginals of one site and from a draw of another; a masked site."""
    f = numpyro.sample("f", GaussianProcess(RBF(positive("variance", 0.3), 1.0), X))
    g = numpyro.sample("g", GaussianProcess(RBF(0.3, 1.0), X))
    exposure = 10 * jnp.square(X[:, 1])
    with numpyro.plate("data", 500, subsample_size=len(X)):
        numpyro.sample("y", Expected(poisson, f, exposure), obs=y)
        numpyro.sample("w", dist.Poisson(exposure * jnp.exp(draws(g))), obs=w)
        with handlers.mask(mask=X[:, 0] > 0):
            numpyro.sample("z", Gaussian(f, 0.1), obs=z)


@pytest.mark.slow
def test_counts_stay_whole_and_do_not_depend_on_the_batch():
    guide, params = prepared(counts, X, np.ones(20, int), np.ones(20, int), np.zeros(20))
    S = 1000
    go = partial(Trained(counts, guide, params).predict, KEY, NEW, num_draws=S, quantiles=QUANTILES)
    found, again = go(keep_draws=True), go(batch_size=3)
    assert_same({name: site._replace(draws=None) for name, site in found.items()}, again)
    for name in ("y", "w"):
        site = found[name]
        assert site.draws.shape == (S, 7) and np.issubdtype(site.draws.dtype, np.integer)
        wanted = np.quantile(site.draws, QUANTILES, axis=0, method="inverted_cdf")
        np.testing.assert_array_equal(site.quantiles, wanted)
        assert site.quantiles.dtype == site.draws.dtype
        assert (np.abs(site.draws.mean(0) - site.mean) < 5 * np.sqrt(site.variance / S)).all()
        assert np.ptp(site.mean) > 5  # the exposures differ
        assert np.abs(np.corrcoef(site.draws.T) - np.eye(7)).max() < 6 / np.sqrt(S)
    # The masked Gaussian site, of a process that is not drawn, is one Gaussian.
    wanted = found["f"].mean + norm.ppf(QUANTILES)[:, None] * np.sqrt(found["f"].variance + 0.1)
    np.testing.assert_allclose(found["z"].quantiles, wanted, rtol=1e-10)


@pytest.mark.slow
def test_labels_are_drawn_and_have_no_quantiles():
    labels = program_of(Softmax, RBF(2.0, 1.0), num_outputs=3)

    guide, params = prepared(labels, X, np.arange(20) % 3)
    go = partial(Trained(labels, guide, params).predict, KEY, NEW, num_draws=2000, quantiles=[0.5])
    found = go(keep_draws=True)
    assert found["y"].quantiles is None and found["f"].quantiles.shape == (1, 7, 3)
    shares = (found["y"].draws[..., None] == np.arange(3)).mean(0)
    # probs are an estimate of their own, from 100 draws of f.
    assert np.abs(shares - found["y"].probs).max() < 5 * 0.5 * np.sqrt(1 / 2000 + 1 / 100)
    assert_same(found, go(keep_draws=True, batch_size=2))


@pytest.mark.slow
def test_sites_drawn_jointly():
    centred = program_of(lambda f: dist.Normal(draws(f) - jnp.mean(draws(f)), 1e-3))

    guide, params = prepared(centred, X, X[:, 0], joint={"f"})
    found = Trained(centred, guide, params).predict(KEY, NEW, num_draws=3, keep_draws=True)
    f = found["f"].draws
    np.testing.assert_allclose(found["y"].draws, f - f.mean(1, keepdims=True), atol=0.01)
