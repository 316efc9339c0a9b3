"""Noise that changes, against quadrature over both functions in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from gpzoo.likelihoods import HeteroscedasticGaussian
from gpzoo.processes.marginals import GaussianMarginals

RNG = np.random.default_rng(0)
MEAN, VARIANCE = RNG.standard_normal((5, 2)), RNG.uniform(0.05, 0.6, (5, 2))
Y = RNG.standard_normal(5)
NODES, WEIGHTS = np.polynomial.hermite.hermgauss(50)
LIKELIHOOD = HeteroscedasticGaussian(GaussianMarginals(jnp.asarray(MEAN), jnp.asarray(VARIANCE), jax.random.key(0)))


def averaged(function):
    """``E[function(f, g)]``, ``[N]``."""
    f, g = (MEAN[:, k] + np.sqrt(2 * VARIANCE[:, k]) * NODES[:, None] for k in range(2))
    return np.einsum("i,j,ijn->n", WEIGHTS, WEIGHTS, function(f[:, None], g[None])) / np.pi


@pytest.mark.slow
def test_expectations_are_those_of_quadrature():
    expected = averaged(lambda f, g: norm(f, np.exp(g / 2)).logpdf(Y))
    np.testing.assert_allclose(LIKELIHOOD.log_prob(Y), expected, rtol=1e-8)
    density = averaged(lambda f, g: norm(f, np.exp(g / 2)).pdf(Y))
    np.testing.assert_allclose(LIKELIHOOD.predictive_log_prob(Y), np.log(density), rtol=1e-6)
    first = averaged(lambda f, g: f + 0 * g)
    second = averaged(lambda f, g: f**2 + np.exp(g))
    np.testing.assert_allclose(LIKELIHOOD.mean, first, rtol=1e-10)
    np.testing.assert_allclose(LIKELIHOOD.variance, second - first**2, rtol=1e-8)


def test_given_functions_it_is_normal():
    given = HeteroscedasticGaussian(MEAN)
    np.testing.assert_allclose(given.log_prob(Y), norm(MEAN[:, 0], np.exp(MEAN[:, 1] / 2)).logpdf(Y), rtol=1e-10)
    draws = np.asarray(given.sample(jax.random.key(1), (4000,)))
    assert draws.shape == (4000, 5)
    np.testing.assert_allclose(draws.std(0), np.exp(MEAN[:, 1] / 2), rtol=0.06)


def test_refusals():
    with pytest.raises(ValueError, match=r"takes f of shape \[N, 2\]"):
        HeteroscedasticGaussian(MEAN[:, :1])
    with pytest.raises(ValueError, match="are mixtures of the same sources"):
        HeteroscedasticGaussian(LIKELIHOOD.f @ jnp.ones((2, 2)))
