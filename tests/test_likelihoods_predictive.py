"""Likelihoods with every kind of ``f``: gradients, extreme marginals, predictive distributions, samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from jax.test_util import check_grads
from likelihood_cases import (
    CASES,
    FAST_KEY,
    KEY,
    SCALES,
    A,
    K,
    N,
    both,
    build,
    every_kind_of_case,
    latent,
    predictive_log_prob,
    scaled_normal,
)

from gpzoo.likelihoods import Expected, Gaussian, RobustMax
from gpzoo.likelihoods.classes import ClassLikelihood
from gpzoo.likelihoods.quadrature import log_normal_cdf
from gpzoo.processes.marginals import GaussianMarginals

# -- gradients and extremes -------------------------------------------------------------------------------------------


@every_kind_of_case
def test_gradients_against_finite_differences(case, kind):
    likelihood, y = build(case, kind, key=FAST_KEY)
    make = CASES[case][0]
    if isinstance(likelihood, RobustMax) and kind == "array":
        assert not np.any(jax.grad(lambda f: make(f).log_prob(y).sum())(likelihood.f))
        return

    @jax.jit
    def values(mean, variance):
        f = likelihood.f
        f = mean if kind == "array" else GaussianMarginals(mean, variance, f.key, f.loading)
        return jnp.stack([make(f).log_prob(y), make(f).predictive_log_prob(y)])

    if isinstance(likelihood, RobustMax) and kind == "correlated":
        return  # unbiased for the gradient of the expectation, which is tested elsewhere; not that of one estimate
    f = likelihood.f
    arguments = (f, jnp.zeros(())) if kind == "array" else (f.mean, f.source_variance)
    check_grads(values, arguments, order=1, modes=["rev"], rtol=1e-5, atol=1e-5)


EXTREMES = [(m, v) for m in (0.0, 1.0, -1e4, 1e4) for v in (0.0, 1e-12, 1.0, 1e6)]


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("poisson", "normal", "categorical")])
def test_extreme_marginals_have_finite_values_and_gradients(case):
    make, columns, _ = CASES[case]
    dtype = jnp.float32
    n = len(EXTREMES)
    mean, variance = (jnp.asarray(column, dtype) for column in zip(*EXTREMES, strict=True))
    if columns is not None:  # the first output is extreme among ordinary ones, or all are
        mean = jnp.concatenate([jnp.stack([mean] + [jnp.zeros(n, dtype)] * (K - 1), -1), jnp.stack([mean] * K, -1)])
        variance = jnp.concatenate(
            [jnp.stack([variance] + [jnp.ones(n, dtype)] * (K - 1), -1), jnp.stack([variance] * K, -1)]
        )
    y = np.zeros(mean.shape if case.endswith("outputs") else mean.shape[:1], int)

    @jax.jit
    def check(mean, variance, loading, y):
        def loss(mean, variance):
            likelihood = make(GaussianMarginals(mean, variance, FAST_KEY, loading))
            values = jnp.stack([likelihood.log_prob(y), likelihood.predictive_log_prob(y)])
            return values.sum(), values

        return jax.grad(loss, (0, 1), has_aux=True)(mean, variance)

    for loading in (None, jnp.asarray(A, dtype)):
        if loading is None or columns is not None:
            for label in (y, y + 1):
                assert all(np.isfinite(x).all() for x in jax.tree.leaves(check(mean, variance, loading, label)))


@both
def test_log_normal_cdf_and_its_gradient_into_the_tail(dtype):
    x = np.array([-1e6, -1.5e4, -100.0, -15.01, -14.99, -9.0, -1.0, 0.0, 3.0, 12.0, 1e10])
    value, gradient = jax.jit(jax.vmap(jax.value_and_grad(log_normal_cdf)))(jnp.asarray(x, dtype))
    x = np.asarray(jnp.asarray(x, dtype), np.float64)
    tolerance = {jnp.float32: 3e-5, jnp.float64: 1e-10}[dtype]
    np.testing.assert_allclose(value, scipy.special.log_ndtr(x), rtol=tolerance, atol=1e-30)
    mills = np.sqrt(2 / np.pi) / scipy.special.erfcx(-x / np.sqrt(2))
    np.testing.assert_allclose(gradient, np.where(x < 30, mills, 0), rtol=tolerance, atol=1e-30)


# -- predictive distributions -----------------------------------------------------------------------------------------


@every_kind_of_case
def test_predictive_distributions_sum_to_one(case, kind):
    likelihood, y = build(case, kind, key=FAST_KEY)
    if case in ("probit", "logit", "logit outputs", "polya-gamma", "polya-gamma outputs"):
        D = likelihood.event_shape or (1,)
        values = np.stack(np.meshgrid(*[[0, 1]] * D[0], indexing="ij"), -1).reshape(-1, 1, D[0])
        support = np.broadcast_to(values, (len(values), N, D[0])).reshape(len(values), *y.shape)
    elif case in ("softmax", "robustmax", "sticks", "categorical"):
        support = np.broadcast_to(np.arange(K)[:, None], (K, N))
    elif case == "poisson":
        support = np.broadcast_to(np.arange(400)[:, None], (400, N))
    elif likelihood.event_shape == ():
        grid = np.linspace(-60, 60, 24_001)
        density = jax.jit(jax.vmap(lambda y: jnp.exp(likelihood.predictive_log_prob(jnp.full(N, y)))))(grid)
        np.testing.assert_allclose(np.trapezoid(density, grid, axis=0), 1, rtol=1e-3)
        return
    else:
        return  # a density over three outputs: compared with SciPy's elsewhere
    total = np.exp(np.asarray(predictive_log_prob(likelihood, support))).sum(0)
    loose = isinstance(likelihood, RobustMax) and kind != "array"
    np.testing.assert_allclose(total, 1, rtol=0.15 if loose else 1e-5)
    if isinstance(likelihood, ClassLikelihood):
        np.testing.assert_allclose(np.exp(predictive_log_prob(likelihood, support)).T, likelihood.probs, rtol=1e-9)


@every_kind_of_case
def test_samples_have_the_predictive_moments(case, kind):
    likelihood, y = build(case, kind)
    S = 8_000
    sample = likelihood.sample(KEY, (S // 2, 2))
    assert sample.shape == (S // 2, 2, *y.shape) and likelihood.sample(KEY).shape == y.shape
    assert np.all(likelihood.support(sample))
    sample = np.asarray(sample, float).reshape(S, *y.shape)
    if isinstance(likelihood, ClassLikelihood) or case == "categorical":
        labels = np.broadcast_to(np.arange(K)[:, None], (K, N))
        probs = np.exp(np.asarray(predictive_log_prob(likelihood, labels))).T
        frequency = (sample[..., None] == np.arange(K)).mean(0)
        # The predictive distribution is itself from 100 draws, or by quadrature.
        np.testing.assert_allclose(frequency, probs, atol=0.03 if kind == "array" else 0.15)
        return
    drawn = case == "normal" and kind != "array"
    make = CASES[case][0]
    if drawn:
        likelihood = Expected(scaled_normal, likelihood.f, SCALES, num_predictive_draws=20_000)
    elif kind != "array" and case == "poisson":
        likelihood = make(likelihood.f)
    error = sample.std(0) / np.sqrt(S)
    assert np.abs((sample.mean(0) - likelihood.mean) / error).max() < (8 if drawn else 5)
    fourth = np.mean((sample - sample.mean(0)) ** 4, 0)
    error = np.sqrt(np.maximum(fourth - sample.var(0) ** 2, 1e-6) / S)
    assert np.abs((sample.var(0) - likelihood.variance) / error).max() < (10 if drawn else 6)


def test_draws_of_y_given_marginals_draw_the_correlated_latents_jointly():
    f = latent("correlated", K)
    sample = np.asarray(Gaussian(f, 1e-4).sample(KEY, (20_000,)))
    covariance = np.einsum("jk,nj,jl->nkl", f.loading, f.source_variance, f.loading) + 1e-4 * np.eye(K)
    centred = sample - np.asarray(f.mean)
    estimate = np.einsum("snk,snl->nkl", centred, centred) / len(sample)
    np.testing.assert_allclose(estimate, covariance, atol=0.06 * covariance.max())
