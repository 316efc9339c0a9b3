"""Censored numbers against SciPy and quadrature, far into the tails in float32; a training beats naive ones."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.infer import SVI
from scipy.special import log_ndtr, logsumexp
from scipy.stats import norm

from gpzoo import InducingPoints
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Censored, Gaussian
from gpzoo.likelihoods.censored import _log_between
from gpzoo.processes.marginals import GaussianMarginals
from gpzoo.processes.process import GaussianProcess
from tests.programs import KEY, adam, positive

NOISE = 0.3
CENSORED = np.array([0, 1, -1, 2, 2, 1, -1, 0])
Y = np.array([0.3, 0.1, -0.4, -0.5, 1.0, -1.0, 2.0, -3.0])
UPPER = np.array([0, 0, 0, 0.5, 1.02, 0, 0, -9.0])
F = np.linspace(-1, 1, 8)


def log_density(f, variance=NOISE):
    s = np.sqrt(variance)
    ends = of_interval((Y - f) / s, (np.where(CENSORED == 2, UPPER, Y + 1) - f) / s)
    each = {0: norm.logpdf(Y, f, s), 1: norm.logsf(Y, f, s), -1: norm.logcdf(Y, f, s), 2: ends}
    return np.select([CENSORED == k for k in each], list(each.values()))


@pytest.mark.slow
def test_densities_their_expectations_and_predictions():
    np.testing.assert_allclose(Censored(F, NOISE, CENSORED, UPPER).log_prob(Y), log_density(F), rtol=1e-6)
    variance = np.linspace(0.05, 0.4, 8)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    each = np.array([log_density(F + np.sqrt(variance) * node) for node in nodes])
    weights = weights / np.sqrt(2 * np.pi)
    found = Censored(GaussianMarginals(jnp.asarray(F), jnp.asarray(variance)), NOISE, CENSORED, UPPER)
    np.testing.assert_allclose(found.log_prob(Y), weights @ each, rtol=1e-5)
    np.testing.assert_allclose(found.predictive_log_prob(Y), logsumexp(each, axis=0, b=weights[:, None]), rtol=1e-5)
    np.testing.assert_allclose(found.predictive_log_prob(Y), log_density(F, NOISE + variance), rtol=1e-5)
    plain = Gaussian(found.f, NOISE)
    np.testing.assert_allclose(found.variance, plain.variance)
    np.testing.assert_array_equal(found.sample(KEY, (3,)), plain.sample(KEY, (3,)))
    np.testing.assert_allclose(Censored(found.f, NOISE).log_prob(Y), plain.log_prob(Y))


def of_interval(a, b):
    """Quadrature of narrow intervals, and differences of cdfs in the lower tail for others."""
    a, b = np.where(a + b > 0, -b, a), np.where(a + b > 0, -a, b)
    nodes, weights = np.polynomial.legendre.leggauss(60)
    t = (a + b)[:, None] / 2 + (b - a)[:, None] / 2 * nodes
    thin = logsumexp(norm.logpdf(t), axis=1, b=weights) + np.log((b - a) / 2)
    wide = log_ndtr(b) + np.log(-np.expm1(log_ndtr(a) - log_ndtr(b)))
    return np.where(b - a < 0.5, thin, wide)


@pytest.mark.slow
@pytest.mark.parametrize("dtype, rtol", [(np.float32, 2e-5), (np.float64, 2e-6)])
def test_intervals_are_accurate_in_tails_and_where_they_are_narrow(dtype, rtol):
    starts = np.array([-300, -30, -8, -1, -0.02, 0.5, 7, 40, 200]).repeat(5)
    widths = np.tile([2.0**-14, 2.0**-6, 0.125, 1.0, 20.0], 9)  # sums that float32 holds
    a, b = (jnp.asarray(np.asarray(x, np.float32), dtype) for x in (starts, starts + widths))
    wanted = of_interval(np.asarray(a, np.float64), np.asarray(b, np.float64))
    np.testing.assert_allclose(_log_between(a, b), wanted, rtol=rtol, atol=rtol)
    slope = jax.grad(lambda a, b: _log_between(a, b).sum(), (0, 1))(a, b)
    exact = -np.exp(norm.logpdf(np.asarray(a, np.float64)) - wanted)
    wide = widths >= 0.125
    np.testing.assert_allclose(slope[0][wide], exact[wide], rtol=300 * rtol, atol=1e-6)
    assert all(np.isfinite(x).all() for x in slope)


@pytest.mark.slow
@pytest.mark.parametrize("kind, f", [(1, -1e4), (-1, 1e4), (0, 1e4), (2, -1e3)])
def test_far_from_their_limits_densities_and_gradients_are_finite_in_float32(kind, f):
    def density(f):
        return Censored(f, jnp.float32(1.0), np.array([kind]), np.ones(1, np.float32)).log_prob(
            np.zeros(1, np.float32)
        )[0]

    value, slope = jax.value_and_grad(density)(jnp.asarray([f], jnp.float32))
    np.testing.assert_allclose(value, -(f**2) / 2, rtol=1e-3)
    np.testing.assert_allclose(slope, -f, rtol=1e-3)


@pytest.mark.parametrize("unused", [np.inf, -np.inf, np.nan, 0.0])
def test_ends_of_rows_without_an_interval_are_not_used(unused):
    """Nor in derivatives, by the noise and by f."""

    def density(upper, noise, f):
        return jnp.sum(Censored(f, noise, CENSORED, upper).log_prob(Y))

    by = jax.value_and_grad(density, (1, 2))
    (found, slopes), (expected, wanted) = (
        by(jnp.asarray(np.where(CENSORED == 2, UPPER, end)), NOISE, jnp.asarray(F)) for end in (unused, Y + 1)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    for one, other in zip(slopes, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("upper", [-3.0, 0.0, -1e30, 5.0, np.nan])
@pytest.mark.parametrize("how", ["mask", "missing"])
def test_rows_that_are_left_out_may_have_any_interval(how, upper):
    """Masked rows, and rows without a datum; their ends neither refuse the data nor spoil a derivative."""
    f = GaussianMarginals(jnp.zeros(3), jnp.ones(3))
    y, ends = np.array([-2.0, np.nan, -1.0]), np.array([-1.0, upper, 0.0])

    def density(noise, method="log_prob", rows=slice(None)):
        own = f if rows == slice(None) else GaussianMarginals(f.mean[rows], f.variance[rows])
        fn = Censored(own, noise, np.full(3, 2)[rows], ends[rows], missing="mask" if how == "missing" else None)
        fn = fn.mask(np.array([True, False, True])[rows]) if how == "mask" else fn
        return jnp.sum(getattr(fn, method)(y[rows]))

    for method in ("log_prob", "predictive_log_prob")[: 1 + (how == "missing")]:
        wanted = [jax.value_and_grad(density)(1.0, method, np.array([i])) for i in (0, 2)]
        found = jax.value_and_grad(density)(1.0, method)
        np.testing.assert_allclose(found, np.sum(wanted, axis=0), rtol=1e-12)
    assert np.isnan(Censored(f, 1.0, np.full(3, 2), ends * np.nan).log_prob(np.zeros(3))).all()


def test_what_cannot_be_is_refused():
    for kinds, upper, message in [
        ([3], None, "censored must hold 0 .* got 3"),
        ([2], None, "give upper, the ends of the intervals"),
        ([0, 1], None, r"censored must have one entry per datum, \(1,\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            Censored(np.zeros(1), 1.0, np.array(kinds), upper)
    with pytest.raises(
        ValueError, match=r"the interval at index \(0,\) from y to upper is empty: upper is -1.0, y 0.0"
    ):
        Censored(np.zeros(1), 1.0, np.array([2]), np.array([-1.0])).log_prob(np.zeros(1))
    with pytest.raises(ValueError, match=r"takes f of shape \[N\]"):
        Censored(np.zeros((1, 2)), 1.0)


@pytest.mark.slow
def test_a_training_finds_what_limits_hide():
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(-3, 3, (150, 1)), axis=0).astype(np.float32)
    truth = np.sin(2 * X[:, 0])
    value = (truth + 0.2 * rng.standard_normal(150)).astype(np.float32)
    limit = np.quantile(value, 0.6).astype(np.float32)
    above = value > limit
    y = np.where(above, limit, value)

    def program(X, y=None, censored=None):
        noise = positive("noise", np.float32(0.1))
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, positive("lengthscale", np.float32(1.0))), X))
        numpyro.sample("y", Censored(f, noise, censored), obs=y)

    def error(*data):
        guide = InducingGuide(program, InducingPoints(np.linspace(-3, 3, 15, dtype=np.float32)[:, None]))
        trained = fit(KEY, SVI(program, guide, adam(0.03), GaussianProcessELBO()), 400, *data, progress=False)
        return np.sqrt(np.mean((trained.predict(KEY, X)["f"].mean - truth) ** 2)), trained

    ours, trained = error(X, y, above.astype(np.int32))
    dropped, _ = error(X[~above], y[~above])
    ignored, _ = error(X, y)
    print(f"rmse {ours:.3f}, dropped {dropped:.3f}, ignored {ignored:.3f}, noise {trained.params['noise']:.3f}")
    assert trained.expectations == {"y": "quadrature"} and above.mean() > 0.35
    assert ours < 0.6 * min(dropped, ignored)
