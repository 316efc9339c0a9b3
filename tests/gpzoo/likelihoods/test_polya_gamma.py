"""Pólya-Gamma bounds against Jaakkola and Jordan's, quadrature, and the density of a Pólya-Gamma variable itself."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from jax.test_util import check_grads
from scipy import integrate, special

from gpzoo.likelihoods import Bernoulli, PolyaGamma, Softmax, StickBreaking
from gpzoo.likelihoods.polya_gamma import _bound, _tanh_ratio
from gpzoo.processes.marginals import GaussianMarginals

KEY = jax.random.key(0)
moments = st.tuples(st.floats(-8, 8), st.floats(1e-3, 20))


def marginals(mean, variance):
    return GaussianMarginals(jnp.asarray(mean, float), jnp.asarray(variance, float), KEY, sites=frozenset({"f"}))


def sigmoid(x):
    return special.expit(x)


def exact_expectation(sign, mean, variance):
    density = lambda z: np.exp(-z * z / 2) / np.sqrt(2 * np.pi)  # noqa: E731
    value = lambda z: density(z) * special.log_expit(sign * (mean + np.sqrt(variance) * z))  # noqa: E731
    return integrate.quad(value, -12, 12, limit=200)[0]


@pytest.mark.slow_but(mean=[0.0, 0.2], variance=[0.0, 2.0])
@pytest.mark.parametrize("mean", [-3.0, -0.05, 0.0, 0.2, 8.0])
@pytest.mark.parametrize("variance", [0.0, 1e-3, 0.04, 2.0, 50.0])
def test_the_bound_at_the_best_c_has_all_its_derivatives(mean, variance):
    """Laplace's approximation takes second ones: with c held fixed, curvatures are those of another function."""

    def best(mean, variance):
        square = mean**2 + variance
        return mean / 2 - np.log(2) - np.log(np.cosh(np.sqrt(square) / 2))

    def ours(mean, variance):
        return _bound(jnp.ones(1), GaussianMarginals(mean[None], variance[None]), None)[0]

    at = jnp.asarray(mean), jnp.asarray(variance)
    np.testing.assert_allclose(ours(*at), best(mean, variance), rtol=1e-12, atol=1e-15)
    first, second = jax.grad(ours, (0, 1))(*at), jax.hessian(ours, (0, 1))(*at)
    assert np.isfinite(np.asarray([first, *second])).all()
    if variance:
        h = 1e-4 * variance
        slopes = [jax.grad(ours, (0, 1))(*at) for at in ((mean + h, variance), (mean - h, variance))]
        by_mean = [(a - b) / (2 * h) for a, b in zip(*slopes, strict=True)]
        np.testing.assert_allclose([second[0][0], second[1][0]], by_mean, rtol=1e-5, atol=1e-7)
        by_variance = (best(mean, variance + h) - best(mean, variance - h)) / (2 * h)
        np.testing.assert_allclose(first[1], by_variance, rtol=1e-6, atol=1e-8)


@jax.jit
def binary(mean, variance, y, c=None):
    return PolyaGamma(marginals(mean, variance), c).log_prob(y)


@given(moments, st.sampled_from([0, 1]))
def test_at_the_optimum_it_is_the_bound_of_jaakkola_and_jordan(moments, y):
    mean, variance = moments
    ours = binary(np.array([mean]), np.array([variance]), np.array([y]))[0]
    xi = np.sqrt(mean**2 + variance)
    weight = (sigmoid(xi) - 0.5) / (2 * xi)
    theirs = special.log_expit(xi) + ((2 * y - 1) * mean - xi) / 2 - weight * (mean**2 + variance - xi**2)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@given(moments, st.sampled_from([0, 1]), st.floats(-10, 10))
def test_it_is_below_the_expectation_and_best_at_the_optimum(moments, y, c):
    mean, variance = moments
    given = np.array([mean]), np.array([variance]), np.array([y])
    exact = exact_expectation(2 * y - 1, mean, variance)
    best, other, mirrored = (np.asarray(binary(*given, c))[0] for c in (None, np.array([c]), np.array([-c])))
    assert other <= best + 1e-12
    assert best <= exact + 1e-9
    np.testing.assert_allclose(mirrored, other)


def test_the_divergence_is_that_of_polya_gamma_variables():
    # PG(1, c) has the density exp(-c^2 w / 2) cosh(c / 2) p(w); so KL = log cosh(c / 2) - c^2 E[w] / 2, and the mean
    # follows from the Laplace transform of p(w), 1 / cosh(sqrt(t / 2)).
    for c in (0.3, 1.0, 4.0):
        log_laplace = lambda t: -np.log(np.cosh(np.sqrt(t / 2)))  # noqa: E731
        step = 1e-5
        mean = -(log_laplace(c * c / 2 + step) - log_laplace(c * c / 2 - step)) / (2 * step)
        divergence = np.log(np.cosh(c / 2)) - c * c * mean / 2
        f = marginals([0.7], [0.4])
        wanted = -np.log(2) + 0.7 / 2 - mean * (0.49 + 0.4) / 2 - divergence
        np.testing.assert_allclose(_bound(jnp.ones(1), f, jnp.asarray([c]))[0], wanted, rtol=1e-7)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_the_ratio_and_its_gradient_hold_at_zero(dtype):
    x = jnp.asarray([0, 1e-20, 1e-4, 0.0499, 0.0501, 1, 30, 1e4], dtype)
    wide = np.asarray(x, np.longdouble)
    with np.errstate(invalid="ignore"):
        exact = np.where(wide == 0, 1, np.tanh(wide) / np.where(wide == 0, 1, wide))
    ratio, gradient = (np.asarray(v) for v in jax.jit(jax.vmap(jax.value_and_grad(_tanh_ratio)))(x))
    np.testing.assert_allclose(ratio, exact.astype(float), rtol=8 * jnp.finfo(dtype).eps)
    series = -2 * wide / 3 + 8 * wide**3 / 15
    np.testing.assert_allclose(gradient[:3], series[:3].astype(float), rtol=1e-5, atol=1e-30)
    assert np.isfinite(gradient).all()
    if dtype == jnp.float64:
        np.testing.assert_allclose(gradient[3], gradient[4], rtol=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("c", [None, "given"])
def test_gradients_are_those_of_finite_differences(c):
    y, rng = np.array([0, 2, 1]), np.random.default_rng(0)
    c = None if c is None else jnp.asarray(rng.normal(size=(3, 2)))

    @jax.jit
    def score(mean, variance):
        sticks = StickBreaking(marginals(mean, variance), c).log_prob(y)
        return jnp.sum(sticks) + jnp.sum(PolyaGamma(marginals(mean, variance), c).log_prob(y[:, None] > [0, 1]))

    mean, variance = jnp.asarray(rng.normal(size=(3, 2))), jnp.asarray(rng.gamma(1.0, size=(3, 2)))
    check_grads(score, (mean, variance), order=1, modes=["rev"], eps=1e-5)


def test_arrays_and_predictions_are_logistic():
    f, y = jnp.asarray([-2.0, 0.3, 1.5]), np.array([0, 1, 1])
    np.testing.assert_allclose(PolyaGamma(f).log_prob(y), Bernoulli(f, "logit").log_prob(y))
    q = marginals([-2.0, 0.3, 1.5], [0.5, 2.0, 0.1])
    np.testing.assert_allclose(PolyaGamma(q, 1.0).probs, Bernoulli(q, "logit").probs)
    np.testing.assert_allclose(PolyaGamma(q).predictive_log_prob(y), Bernoulli(q, "logit").predictive_log_prob(y))
    assert (
        PolyaGamma(q).expectation
        == StickBreaking(q[:, None] if q.ndim == 2 else marginals(np.ones((3, 2)), np.ones((3, 2)))).expectation
        == "closed form"
    )


# -- several classes ---------------------------------------------------------------------------------------------------


@jax.jit
def predicted(f):
    """Probabilities of the classes, and the predictive densities of all labels."""
    site = StickBreaking(f)
    assert site.num_classes == f.shape[1] + 1
    labels = [np.full(len(f), k) for k in range(site.num_classes)]
    return site.probs, jnp.stack([site.predictive_log_prob(y) for y in labels], axis=1)


@pytest.mark.parametrize("columns", [1, 3])
def test_probabilities_of_classes_sum_to_one(columns):
    rng = np.random.default_rng(columns)
    mean, variance = rng.normal(size=(7, columns)) * 3, rng.gamma(1.0, size=(7, columns))
    f = marginals(mean, variance)
    for site in (jnp.asarray(mean), f, f @ rng.normal(size=(columns, columns))):
        probs, every = (np.asarray(x) for x in predicted(site))
        assert probs.shape == (7, columns + 1)
        np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-9)
        np.testing.assert_allclose(np.exp(every), probs, rtol=1e-9)


def test_the_sticks_are_what_the_paper_breaks():
    f, s = np.array([[0.4, -1.0]]), sigmoid
    wanted = [s(0.4), s(-0.4) * s(-1.0), s(-0.4) * s(1.0)]
    probs, every = predicted(jnp.asarray(f))
    np.testing.assert_allclose(probs[0], wanted, rtol=1e-12)
    np.testing.assert_allclose(every[0], np.log(wanted), rtol=1e-12)

    # One function and two classes: class 0 is the label 1 of the binary likelihood.
    @jax.jit
    def two_ways(q):
        scored = StickBreaking(jnp.asarray(f)).log_prob(np.array([2]))
        return scored, StickBreaking(q).log_prob(np.array([0])), PolyaGamma(q[:, 0]).log_prob(np.array([1]))

    scored, of_classes, of_labels = two_ways(marginals([[0.4]], [[0.8]]))
    np.testing.assert_allclose(scored, np.log(wanted[2]), rtol=1e-12)
    np.testing.assert_allclose(of_classes, of_labels, rtol=1e-12)


@jax.jit
def sticks(mean, variance, y):
    return StickBreaking(marginals(mean, variance)).log_prob(y)


@given(st.integers(0, 1000), st.integers(0, 3))
def test_the_bound_is_below_the_expectation_for_classes(seed, y):
    rng = np.random.default_rng(seed)
    mean, variance = rng.normal(size=(1, 3)) * 2, rng.gamma(1.0, size=(1, 3))
    exact = sum(exact_expectation(1 if j == y else -1, mean[0, j], variance[0, j]) for j in range(3) if j <= y)
    assert sticks(mean, variance, np.array([y]))[0] <= exact + 1e-9


@pytest.mark.slow
def test_draws_have_the_probabilities():
    q = marginals([[0.4, -1.0]] * 2, [[0.5, 1.0]] * 2)
    draws = StickBreaking(q).sample(KEY, (20_000,))
    np.testing.assert_allclose(np.bincount(draws[:, 0], minlength=3) / 20_000, StickBreaking(q).probs[0], atol=0.015)
    assert draws.shape == (20_000, 2)


REFUSED = {
    "c of another shape": (lambda: PolyaGamma(jnp.ones(3), jnp.ones(2)), "c has shape"),
    "c with an axis too many": (lambda: PolyaGamma(jnp.ones(3), jnp.ones((3, 1))), "c has shape"),
    "c of classes": (lambda: StickBreaking(jnp.ones((3, 2)), jnp.ones(3)), "c has shape"),
    "labels -1": (lambda: PolyaGamma(jnp.ones(2)).log_prob(np.array([-1, 1])), r"\(y \+ 1\) / 2"),
    "a class too many": (lambda: StickBreaking(jnp.ones((2, 2))).log_prob(np.array([0, 3])), "3 classes"),
    "one-hot": (lambda: StickBreaking(jnp.ones((2, 2))).log_prob(np.eye(3)[:2]), "argmax"),
    "a vector": (lambda: StickBreaking(jnp.ones(3)), r"\[N, K\]"),
    "no points": (lambda: StickBreaking(jnp.ones((3, 2)), num_predictive_draws=0), "num_predictive_draws"),
    "nan": (lambda: PolyaGamma(jnp.ones(2)).log_prob(np.array([np.nan, 1])), "mask"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_nonsense_is_refused(case):
    make, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_class_labels_have_no_mean():
    assert isinstance(StickBreaking(jnp.ones((3, 2))), type(Softmax(jnp.ones((3, 2)))).__mro__[1])
    with pytest.raises(NotImplementedError, match="probs"):
        StickBreaking(jnp.ones((3, 2))).mean  # noqa: B018
