"""Ordered labels against SciPy's logistic distribution, and far from their cutpoints against the asymptote."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import logistic

from gpzoo.likelihoods import Expected, Ordinal
from gpzoo.processes.marginals import GaussianMarginals

CUTS = np.array([-1.0, 0.5, 2.0])
EDGES = np.concatenate([[-np.inf], CUTS, [np.inf]])
F = np.linspace(-4, 4, 12)
Y = np.arange(12) % 4


def probability(f, y):
    return logistic.cdf(EDGES[y + 1] - f) - logistic.cdf(EDGES[y] - f)


def test_densities_and_their_expectations():
    np.testing.assert_allclose(Ordinal(F, CUTS).log_prob(Y), np.log(probability(F, Y)), rtol=1e-10)
    variance = np.linspace(0.1, 2, 12)
    nodes, weights = np.polynomial.hermite.hermgauss(60)
    points = F + np.sqrt(2 * variance) * nodes[:, None]
    p = np.stack([probability(points, y) for y in range(4)], axis=-1)
    mean = np.tensordot(weights, p, 1) / np.sqrt(np.pi)
    marginals = GaussianMarginals(jnp.asarray(F), jnp.asarray(variance), jax.random.key(0))
    found = Ordinal(marginals, CUTS)
    expected = np.tensordot(weights, np.log(p), 1)[np.arange(12), Y] / np.sqrt(np.pi)
    np.testing.assert_allclose(found.log_prob(Y), expected, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(found.predictive_log_prob)(Y), np.log(mean[np.arange(12), Y]), rtol=1e-4)
    np.testing.assert_allclose(jax.jit(lambda: found.probs)(), mean, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_far_from_the_cutpoints_densities_are_those_of_an_exponential(dtype):
    far, cuts, y = jnp.asarray([200.0, -200.0], dtype), jnp.asarray(CUTS, dtype), np.array([1, 2])

    def total(f, cuts):
        return Ordinal(f, cuts).log_prob(y).sum()

    found = Ordinal(far, cuts).log_prob(y)
    expected = [0.5 - 200 + np.log1p(-np.exp(-1.5)), -0.5 - 200 + np.log1p(-np.exp(-1.5))]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    slope, of_cuts = jax.grad(total, (0, 1))(far, cuts)
    np.testing.assert_allclose(slope, [-1, 1], rtol=1e-6)
    assert np.isfinite(of_cuts).all()


@pytest.mark.slow
def test_gradients_are_those_of_finite_differences():
    def total(f, cuts):
        return Ordinal(f, cuts).log_prob(Y).sum()

    found = jax.grad(total, (0, 1))(jnp.asarray(F), jnp.asarray(CUTS))
    h = 1e-6
    for i, (x, at) in enumerate([(F, 3), (CUTS, 1)]):
        step = h * np.eye(len(x))[at]
        up, down = ((F + s, CUTS) if i == 0 else (F, CUTS + s) for s in (step, -step))
        np.testing.assert_allclose(found[i][at], (total(*up) - total(*down)) / (2 * h), rtol=1e-6)


@pytest.mark.parametrize(
    ("cuts", "y", "message"),
    [
        ([1.0, 0.0], Y, "must be ascending"),
        ([[1.0]], Y, r"must be \[K - 1\]"),
        (CUTS, np.full(12, 4), "labels of 4 classes"),
    ],
)
def test_refusals(cuts, y, message):
    with pytest.raises(ValueError, match=message):
        Ordinal(F, cuts).log_prob(y)


@pytest.mark.slow_but(wrong=[0.5])
@pytest.mark.parametrize("wrong", [-1.0, 0.5, 4.0])
@pytest.mark.parametrize("rows", [False, True])
def test_traced_labels_that_are_none_give_nan(wrong, rows):
    """Once a label between two was scored as the lower one."""
    likelihood = Expected(lambda f: dist.Categorical(logits=f), jnp.zeros((12, 4))) if rows else Ordinal(F, CUTS)
    value = jax.jit(lambda y: likelihood.log_prob(y))(np.asarray(Y, float))
    assert np.isfinite(value).all()
    spoilt = np.where(np.arange(12) == 3, wrong, Y)
    value = jax.jit(lambda y: jnp.stack([likelihood.log_prob(y), likelihood.predictive_log_prob(y)]))(spoilt)
    np.testing.assert_array_equal(np.isnan(value), np.tile(np.arange(12) == 3, (2, 1)))
