"""Likelihoods with every kind of ``f``: extreme marginals, predictive distributions, samples."""

from functools import lru_cache
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.special
from scipy import integrate, stats

from gpzoo.likelihoods import Bernoulli, Expected, Gaussian, Ordinal, RobustMax, StickBreaking
from gpzoo.likelihoods.classes import ClassLikelihood
from gpzoo.likelihoods.quadrature import log_normal_cdf
from gpzoo.processes.marginals import GaussianMarginals
from tests.gpzoo.likelihoods.cases import (
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
    scaled_normal,
)
from tests.statistics import off

# -- extremes -------------------------------------------------------------------------------------------


EXTREMES = [(m, v) for m in (0.0, 1.0, -1e4, 1e4) for v in (0.0, 1e-12, 1.0, 1e6)]


@pytest.mark.slow_but(case=["gaussian", "logit", "softmax"])
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
    def check(mean, variance, y):
        def loss(mean, variance):
            loadings = (None,) if columns is None else (None, jnp.asarray(A, dtype))
            several = [make(GaussianMarginals(mean, variance, FAST_KEY, loading)) for loading in loadings]
            values = jnp.stack([value for d in several for value in (d.log_prob(y), d.predictive_log_prob(y))])
            return values.sum(), values

        return jax.grad(loss, (0, 1), has_aux=True)(mean, variance)

    for label in (y, y + 1):
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(check(mean, variance, label)))


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


S = 8_000
GRID = np.linspace(-60, 60, 6_001)


def possible(case, likelihood, y):
    """All values of ``y``, or a grid of them, ``[values, *y.shape]``; ``None`` for a density over several outputs."""
    if case in ("probit", "logit", "logit outputs", "polya-gamma", "polya-gamma outputs"):
        D = likelihood.event_shape or (1,)
        values = np.stack(np.meshgrid(*[[0, 1]] * D[0], indexing="ij"), -1).reshape(-1, 1, D[0])
        return np.broadcast_to(values, (len(values), N, D[0])).reshape(len(values), *y.shape)
    if isinstance(likelihood, ClassLikelihood) or case == "categorical":
        return np.broadcast_to(np.arange(K)[:, None], (K, N))
    if case == "poisson":
        return np.broadcast_to(np.arange(400)[:, None], (400, N))
    return None if likelihood.event_shape else np.broadcast_to(GRID[:, None], (len(GRID), N))


@lru_cache
def seen(case, kind):
    """One compilation for all that is looked at: log probabilities, draws, and moments or probabilities."""
    likelihood, y = build(case, kind, key=FAST_KEY)
    support = possible(case, likelihood, y)
    # JAX draws Poisson numbers from keys of one kind only.
    key = KEY if case == "poisson" else FAST_KEY

    @jax.jit
    def everything(likelihood, support):
        sample = likelihood.sample(key, (S // 2, 2))
        found = {"sample": sample, "supported": likelihood.support(sample)}
        if support is not None:
            found["log_prob"] = likelihood.predictive_log_prob(support)
        if isinstance(likelihood, ClassLikelihood):
            found["probs"] = likelihood.probs
        elif case != "categorical":
            if case == "normal" and kind != "array":
                likelihood = Expected(scaled_normal, likelihood.f, SCALES, num_predictive_draws=20_000)
            found |= {"mean": likelihood.mean, "variance": likelihood.variance}
        return found

    return likelihood, y, jax.tree.map(np.asarray, everything(likelihood, support))


@pytest.mark.slow_but(case=["gaussian", "probit", "logit outputs", "softmax", "polya-gamma", "sticks"], kind=["array"])
@every_kind_of_case
def test_predictive_distributions_sum_to_one(case, kind):
    likelihood, _, found = seen(case, kind)
    if "log_prob" not in found:
        return  # a density over three outputs: compared with SciPy's elsewhere
    probs = np.exp(found["log_prob"])
    if case in ("gaussian", "normal"):
        np.testing.assert_allclose(np.trapezoid(probs, GRID, axis=0), 1, rtol=1e-3)
        return
    loose = isinstance(likelihood, RobustMax) and kind != "array"
    np.testing.assert_allclose(probs.sum(0), 1, rtol=0.15 if loose else 1e-5)
    if isinstance(likelihood, ClassLikelihood):
        np.testing.assert_allclose(probs.T, found["probs"], rtol=1e-9)


@pytest.mark.slow_but(case=["gaussian", "probit", "softmax", "sticks"], kind=["array", "correlated"])
@every_kind_of_case
def test_samples_have_the_predictive_moments(case, kind):
    likelihood, y, found = seen(case, kind)
    sample = found["sample"]
    assert sample.shape == (S // 2, 2, *y.shape) and jax.eval_shape(likelihood.sample, KEY).shape == y.shape
    assert np.all(found["supported"])
    sample = np.asarray(sample, float).reshape(S, *y.shape)
    if "mean" not in found:
        frequency = (sample[..., None] == np.arange(K)).mean(0)
        # The predictive distribution is itself from 100 draws, or by quadrature.
        np.testing.assert_allclose(frequency, np.exp(found["log_prob"]).T, atol=0.03 if kind == "array" else 0.15)
        return
    drawn = case == "normal" and kind != "array"
    assert off(sample, found["mean"]).max() < (8 if drawn else 5)
    fourth = np.mean((sample - sample.mean(0)) ** 4, 0)
    error = np.sqrt(np.maximum(fourth - sample.var(0) ** 2, 1e-6) / S)
    assert np.abs((sample.var(0) - found["variance"]) / error).max() < (10 if drawn else 6)


def test_draws_of_y_given_marginals_draw_the_correlated_latents_jointly():
    f = latent("correlated", K)
    sample = np.asarray(jax.jit(lambda d: d.sample(KEY, (20_000,)))(Gaussian(f, 1e-4)))
    covariance = np.einsum("jk,nj,jl->nkl", A, np.asarray(f.source_variance), A) + 1e-4 * np.eye(K)
    centred = sample - np.asarray(f.mean)
    estimate = np.einsum("snk,snl->nkl", centred, centred) / len(sample)
    np.testing.assert_allclose(estimate, covariance, atol=0.06 * covariance.max())


LAWS = {
    "student": (lambda f, s: dist.StudentT(jnp.full_like(f, 4), f, s), lambda y, f, s: stats.t.logpdf(y, 4, f, s)),
    "laplace": (lambda f, s: dist.Laplace(f, s), lambda y, f, s: stats.laplace.logpdf(y, f, s)),
    "normal": (lambda f, s: dist.Normal(f, s), lambda y, f, s: stats.norm.logpdf(y, f, s)),
    "counts": (
        lambda f, s: dist.Poisson(jnp.exp(f / s)),
        lambda y, f, s: stats.poisson.logpmf(np.round(y), np.exp(f / s)),
    ),
}


@pytest.mark.slow_but(dtype=[np.float64], scale=[0.003], law=["student"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("scale", [3.0, 0.3, 0.05, 0.003])
@pytest.mark.parametrize("law", LAWS)
def test_predictive_densities_are_integrals_however_narrow_the_likelihood(law, scale, dtype):
    """Between the nodes of a Gauss-Hermite rule, a narrow density is not seen; at a node, it counts too much."""
    if law == "counts" and scale < 0.3:
        pytest.skip("rates overflow")
    fn, logpdf = LAWS[law]
    means, variances, y = (
        np.array([0.0, 1.0, -2.0, 0.5]),
        np.array([1.0, 4.0, 0.25, 1.0]),
        np.array([0.35, 1.0, 1.0, 4.0]),
    )

    def exact(mean, variance, y):
        sd = np.sqrt(variance)
        peaks = np.clip([y, mean], mean - 11 * sd, mean + 11 * sd)
        near = [p + scale * k for p in peaks for k in (-5, 0, 5)]
        at = np.unique(np.clip([mean - 12 * sd, *near, mean + 12 * sd], mean - 12 * sd, mean + 12 * sd))
        density = lambda f: np.exp(logpdf(y, f, scale) + stats.norm.logpdf(f, mean, sd))  # noqa: E731
        return np.log(sum(integrate.quad(density, a, b, limit=200, epsabs=0)[0] for a, b in pairwise(at)))

    def ours(scale, y=y):
        f = GaussianMarginals(jnp.asarray(means, dtype), jnp.asarray(variances, dtype))
        data = jnp.round(y).astype(int) if law == "counts" else jnp.asarray(y, dtype)
        return Expected(fn, f, scale).predictive_log_prob(data)

    ours = jax.jit(ours)
    wanted = [exact(*each) for each in zip(means, variances, y, strict=True)]
    np.testing.assert_allclose(ours(scale), wanted, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(ours(scale, np.stack([y, y]))[1], wanted, rtol=2e-4, atol=2e-4)
    if dtype == np.float64:
        h = 1e-4 * scale
        slope, around = (
            jax.grad(lambda s: ours(s).sum())(scale),
            (ours(scale + h).sum() - ours(scale - h).sum()) / (2 * h),
        )
        np.testing.assert_allclose(slope, around, rtol=1e-2, atol=1e-2)


@pytest.mark.slow_but(dtype=[np.float32], scale=[0.3])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("scale", [2.0, 0.3, 0.02])
@pytest.mark.parametrize("law", LAWS)
def test_predictive_densities_of_data_far_away_are_integrals(law, scale, dtype):
    """With nodes of likely values alone, the density of an outlier is that of the nearest one: far too low."""
    if law == "counts" and scale < 0.3:
        pytest.skip("rates overflow")
    fn, logpdf = LAWS[law]
    mean, sd = 1.0, 0.5
    if law == "counts":
        y = np.round(np.exp(min(9, 15 / scale) * np.array([0.3, 0.7, 1.0])))
    else:
        y = mean + sd * np.array([-80.0, -25, -11, -8.5, 8.5, 11, 25, 80])
    f = mean + sd * np.linspace(-96, 96, 400_001)
    if law == "laplace":
        given = -np.abs(y[:, None] - f) / scale - np.log(2 * scale)  # the densities of SciPy underflow
    else:
        given = logpdf(y[:, None], f, scale)
    given += stats.norm.logpdf(f, mean, sd)
    wanted = scipy.special.logsumexp(given, axis=1) + np.log(f[1] - f[0])
    marginals = GaussianMarginals(jnp.full(len(y), mean, dtype), jnp.full(len(y), sd**2, dtype))
    data = jnp.asarray(y, int if law == "counts" else dtype)
    ours = lambda s: Expected(fn, marginals, s).predictive_log_prob(data)  # noqa: E731
    np.testing.assert_allclose(jax.jit(ours)(scale), wanted, rtol=1e-4, atol=2e-3)
    assert jnp.isfinite(jax.jit(jax.grad(lambda s: ours(s).sum()))(jnp.asarray(scale, dtype)))


SEVERAL_PEAKS = {
    "angles": (lambda f: dist.VonMises(f, 50.0), lambda y, f: stats.vonmises.logpdf(y, 50.0, f), 2.5),
    "squares": (lambda f: dist.Normal(f**2, 0.3), lambda y, f: stats.norm.logpdf(y, f**2, 0.3), 4.0),
    "waves": (lambda f: dist.Normal(jnp.sin(f), 0.15), lambda y, f: stats.norm.logpdf(y, np.sin(f), 0.15), 0.2),
}


@pytest.mark.slow_but(variance=[4.0])
@pytest.mark.parametrize("variance", [0.2, 4.0, 9.0])
@pytest.mark.parametrize("law", SEVERAL_PEAKS)
def test_predictive_densities_with_several_peaks_are_integrals(law, variance):
    """Nodes around the highest peak alone miss the others, or count them several times."""
    fn, logpdf, y = SEVERAL_PEAKS[law]
    z, means = np.linspace(-12, 12, 400_001)[:, None], np.array([0.0, 1.0, -2.0])
    given = logpdf(y, means + np.sqrt(variance) * z) + stats.norm.logpdf(z)
    wanted = scipy.special.logsumexp(given, axis=0) + np.log(z[1, 0] - z[0, 0])
    f = GaussianMarginals(jnp.asarray(means), jnp.full(3, variance))
    np.testing.assert_allclose(Expected(fn, f).predictive_log_prob(jnp.full(3, y)), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.slow_but(scale=[0.3, 30.0])
@pytest.mark.parametrize("scale", [0.01, 0.3, 1.0, 2.9, 3.1, 30.0, 1000.0])
def test_predictive_probabilities_are_integrals_however_steep_the_link(scale):
    """20 nodes of a Gauss-Hermite rule are too far apart for a link that is nearly a step."""
    means = scale * np.array([0.0, 0.2, -0.25, 1.0, -3.0])
    z = np.linspace(-12, 12, 1_000_001)[:, None]
    step, density = z[1, 0] - z[0, 0], stats.norm.pdf(z)
    yes = (scipy.special.expit(means + scale * z) * density).sum(0) * step
    f = GaussianMarginals(jnp.asarray(means), jnp.full(5, scale**2))
    binary = Bernoulli(f, "logit")
    np.testing.assert_allclose(binary.probs, yes, rtol=2e-3)
    np.testing.assert_allclose(np.exp(binary.predictive_log_prob(jnp.zeros(5))), 1 - yes, rtol=2e-3)
    of_labels = Expected(lambda f: dist.Bernoulli(logits=f), f)
    np.testing.assert_allclose(of_labels.mean, yes, atol=5e-3)
    sticks = StickBreaking(GaussianMarginals(jnp.asarray(means)[:, None], jnp.full((5, 1), scale**2)))
    np.testing.assert_allclose(sticks.probs[:, 0], yes, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("variance", [0.01, 1.0, 100.0, 1e4])
def test_probabilities_of_ordered_classes_are_integrals(variance):
    f = GaussianMarginals(jnp.asarray([0.0, 2.0]), jnp.full(2, variance))
    below = []
    for mean in (0.0, 2.0):
        density = lambda f, c, mean=mean: scipy.special.expit(c - f) * stats.norm.pdf(f, mean, np.sqrt(variance))  # noqa: E731
        ends = mean - 12 * np.sqrt(variance), mean + 12 * np.sqrt(variance)
        below.append([integrate.quad(density, *ends, (c,), points=[c], limit=400)[0] for c in (-1.0, 1.0)])
    found = Ordinal(f, jnp.array([-1.0, 1.0])).probs
    np.testing.assert_allclose(found, np.diff(below, axis=1, prepend=0, append=1), rtol=1e-3)
