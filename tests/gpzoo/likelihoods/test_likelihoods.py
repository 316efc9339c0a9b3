"""Likelihoods as numbers: golden values, quadrature, draws, gradients, predictive distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

from gpzoo.likelihoods import Bernoulli, Expected, Gaussian, RobustMax, Softmax
from gpzoo.likelihoods.negative import refuse_negative
from gpzoo.processes.marginals import GaussianMarginals
from tests.programs import poisson
from tests.reference import normal_quadrature
from tests.statistics import assert_unbiased

KEY = jax.random.key(3)
TOLERANCE = {"float64": 1e-8, "float32": 1e-4}
both = pytest.mark.parametrize("dtype", ["float64", "float32"])
# Precision and the number of classes have nothing to do with each other.
several_classes = pytest.mark.parametrize(
    ("K", "dtype"), [(2, "float64"), (3, "float64"), (3, "float32"), (4, "float64")]
)


def marginals(mean, variance, dtype="float64", loading=None, key=KEY):
    mean, variance = jnp.asarray(mean, dtype), jnp.asarray(variance, dtype)
    f = GaussianMarginals(mean, variance, key, sites=frozenset({"f"}))
    return f if loading is None else f @ jnp.asarray(loading, dtype)


def log_probs(likelihood, y):
    return likelihood.log_prob(y), likelihood.predictive_log_prob(y)


def evaluated(*functions):
    """``evaluated(*functions)(*likelihoods)`` is each function of its likelihood, all by one compilation."""
    return jax.jit(lambda *likelihoods: [f(d) for f, d in zip(functions, likelihoods, strict=True)])


def column(values):
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def assert_golden(ours, golden, dtype):
    golden = column(golden)
    assert ours.dtype == dtype and ours.shape == golden.shape
    np.testing.assert_allclose(ours, golden, rtol=0, atol=TOLERANCE[dtype] * np.abs(golden).max())


def student(f, df, scale):
    return dist.StudentT(df, f, scale)


def heteroscedastic(f):
    return dist.Normal(f[..., 0], jnp.exp(f[..., 1]))


# -- golden numbers ---------------------------------------------------------------------------------------------------


@both
def test_golden_one_latent(golden, dtype):
    values, _ = golden("lik_01_expectations")
    f = marginals(column(values["in_mu"]), column(values["in_var"]), dtype)
    y, y_real = column(values["in_y01"]), column(values["in_y_real"])
    likelihoods = (
        Gaussian(f, values["in_gaussian_noise_variance"]),
        Bernoulli(f, squash=1e-3),
        Bernoulli(f, "logit"),
        Bernoulli(f, "logit", num_points=300),
    )
    gaussian, probit, logit, exact = evaluated(
        lambda d: log_probs(d, y_real), *[lambda d: log_probs(d, y)] * 2, lambda d: d.log_prob(y)
    )(*likelihoods)
    assert_golden(gaussian[0], values["out_gaussian_var_exp"], dtype)
    assert_golden(gaussian[1], values["out_gaussian_log_density"], dtype)
    assert_golden(probit[0], values["out_bernoulli_probit_var_exp_gh20"], dtype)
    assert_golden(probit[1], values["out_bernoulli_probit_log_density"], dtype)
    assert_golden(logit[0], values["out_bernoulli_logit_var_exp_gh20"], dtype)
    assert_golden(logit[1], values["out_bernoulli_logit_log_density_gh20"], dtype)
    assert_golden(exact, values["out_bernoulli_logit_var_exp_exact"], dtype)


@several_classes
def test_golden_robustmax(golden, dtype, K):
    values, description = golden("lik_01_expectations")
    f = marginals(values[f"in_mu_K{K}"], values[f"in_var_K{K}"], dtype)
    y = column(values[f"in_y_K{K}"])
    robustmax = RobustMax(f, squash=description["robustmax_cdf_squash"])
    assert robustmax.expectation == "quadrature"
    expectation, density, probs = evaluated(lambda d: (*log_probs(d, y), d.probs))(robustmax)[0]
    assert_golden(expectation, values[f"out_robustmax_var_exp_gh20_K{K}"], dtype)
    assert_golden(density, values[f"out_robustmax_log_density_gh20_K{K}"], dtype)
    assert_golden(probs, values[f"out_robustmax_predict_gh20_K{K}"], dtype)


@several_classes
def test_golden_softmax_within_the_error_of_its_draws(golden, dtype, K):
    values, _ = golden("lik_01_expectations")
    mean, variance = values[f"in_mu_K{K}"], values[f"in_var_K{K}"]
    y = column(values[f"in_y_K{K}"])

    def estimates(key):
        softmax = Softmax(marginals(mean, variance, dtype, key=key), num_draws=20, num_predictive_draws=20)
        return softmax.log_prob(y), softmax.probs

    log_prob, probs = jax.jit(jax.vmap(estimates))(jax.random.split(KEY, 1000))
    assert log_prob.dtype == probs.dtype == dtype
    assert_unbiased(log_prob, column(values[f"out_softmax_var_exp_K{K}"]))
    assert_unbiased(probs, values[f"out_softmax_predict_K{K}"])


ONE_OF_EACH = ("svgp_01_ard_whitened_gaussian", "svgp_03_bernoulli_qdiag", "convgp_03_weighted_digits_robustmax")
OTHERS = ("convgp_01_ti_rect_bernoulli", "convgp_05_weighted_unwhitened_gaussian", "convgp_12_weighted_plus_white")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, "float64") for name in ONE_OF_EACH + OTHERS] + [(name, "float32") for name in ONE_OF_EACH],
)
def test_golden_expectations_and_predictions_of_whole_models(golden, dtype, name):
    values, description = golden(name)

    def likelihood(mean, variance):
        f = marginals(column(mean), column(variance), dtype)
        if description["likelihood"] == "gaussian":
            return Gaussian(f, values["in_noise_variance"])
        if description["likelihood"] == "bernoulli-probit":
            return Bernoulli(f, squash=1e-3)
        return RobustMax(f, squash=description["robustmax_cdf_squash"])

    def total(stored):  # Gaussian terms are stored per output in some cases
        return stored.sum(-1) if stored.ndim == 2 else stored

    train = likelihood(values["out_fmean"], values["out_fvar"])
    test = likelihood(values["out_fmean_test"], values["out_fvar_test"])
    classes = description["likelihood"] == "robustmax"
    expectation, (density, mean, variance) = evaluated(
        lambda d: d.log_prob(column(values["in_Y"])),
        lambda d: (
            d.predictive_log_prob(column(values["in_Y_test"])),
            *((d.probs, None) if classes else (d.mean, d.variance)),
        ),
    )(train, test)
    assert_golden(expectation, total(values["out_var_exp"]), dtype)
    assert_golden(density, total(values["out_log_density_test"]), dtype)
    assert_golden(mean, values["out_ymean_test"], dtype)
    if "out_yvar_test" in values:
        mean = np.asarray(mean)
        assert_golden(mean * (1 - mean) if classes else variance, values["out_yvar_test"], dtype)


# -- expectations against other rules ---------------------------------------------------------------------------------

MEAN, VARIANCE = np.array([-1.2, 0.3, 2.0]), np.array([0.4, 1.5, 0.05])
CORRELATED = {
    "mean": np.array([[0.3, -0.5], [1.0, 0.2], [-0.4, 0.8]]),
    "variance": np.array([[2.0, 0.3], [0.5, 1.5], [1.0, 1.0]]),
    "loading": np.array([[1.0, 0.9, -0.4], [0.2, -0.3, 1.1]]),
}


def integral(log_density, mean, variance, transform=lambda x: x):
    """``E[transform(log_density(f))]`` of one datum by adaptive quadrature."""
    sd = np.sqrt(variance)

    def integrand(f):
        return transform(log_density(f)) * scipy.stats.norm.pdf(f, mean, sd)

    return scipy.integrate.quad(integrand, mean - 12 * sd, mean + 12 * sd, epsabs=1e-12, epsrel=1e-12, limit=200)[0]


ONE_LATENT = {
    "probit": (
        lambda f, H: Bernoulli(f, num_points=H),
        [1, 0, 1],
        lambda f, y, n: scipy.stats.norm.logcdf((2 * y - 1) * f),
    ),
    "logit": (
        lambda f, H: Bernoulli(f, "logit", num_points=H),
        [0, 0, 1],
        lambda f, y, n: scipy.special.log_expit((2 * y - 1) * f),
    ),
    "poisson": (
        lambda f, H: Expected(poisson, f, num_points=H),
        [0, 3, 6],
        lambda f, y, n: scipy.stats.poisson.logpmf(y, np.exp(f)),
    ),
    "student": (
        lambda f, H: Expected(student, f, 4.0, jnp.array([0.5, 1.0, 2.0]), num_points=H),
        [0.1, -2.0, 9.0],
        lambda f, y, n: scipy.stats.t.logpdf(y, 4.0, f, [0.5, 1.0, 2.0][n]),
    ),
    "gaussian": (
        lambda f, H: Gaussian(f, 0.3),
        [0.1, -2.0, 3.0],
        lambda f, y, n: scipy.stats.norm.logpdf(y, f, np.sqrt(0.3)),
    ),
}


@pytest.mark.slow_but(case=["student", "probit", "poisson"])
@pytest.mark.parametrize("case", ONE_LATENT)
def test_one_latent_expectations_against_adaptive_quadrature(case):
    make, y, log_density = ONE_LATENT[case]
    y = np.asarray(y)
    expectations, densities = (
        [integral(lambda f, n=n: log_density(f, y[n], n), MEAN[n], VARIANCE[n], *of) for n in range(3)]
        for of in ((), (np.exp,))
    )
    f = marginals(MEAN, VARIANCE)
    coarse, fine, array = evaluated(*[lambda d: log_probs(d, y)] * 3)(make(f, 20), make(f, 100), make(MEAN, 20))
    for (expectation, density), tolerance in ((coarse, 2e-3), (fine, 1e-6)):
        np.testing.assert_allclose(expectation, expectations, rtol=tolerance)
        np.testing.assert_allclose(np.exp(density), densities, rtol=tolerance)
    np.testing.assert_allclose(array[0], [log_density(MEAN[n], y[n], n) for n in range(3)], rtol=1e-9)
    np.testing.assert_allclose(array[1], array[0])


@pytest.mark.parametrize("shape", ["[N]", "[N, 1]"])
def test_poisson_moments_are_those_of_the_log_normal_mixture(shape):
    f = marginals(MEAN, VARIANCE) if shape == "[N]" else marginals(MEAN[:, None], VARIANCE[:, None])
    fn = poisson if shape == "[N]" else lambda f: poisson(f[..., 0])
    likelihood = Expected(fn, f)
    assert likelihood.expectation == "quadrature"
    rate = np.exp(MEAN + VARIANCE / 2)
    y = np.array([0, 2, 7])
    log_prob, mean, variance = evaluated(lambda d: (d.log_prob(y), d.mean, d.variance))(likelihood)[0]
    np.testing.assert_allclose(log_prob, y * MEAN - rate - scipy.special.gammaln(y + 1.0), rtol=1e-9)
    np.testing.assert_allclose(mean, rate, rtol=1e-9)
    np.testing.assert_allclose(variance, rate + rate**2 * np.expm1(VARIANCE), rtol=1e-6)


def correlated(key=KEY):
    return marginals(CORRELATED["mean"], CORRELATED["variance"], loading=CORRELATED["loading"], key=key)


def over_sources(function, points=60):
    """``E[function(f)]`` of every datum of :func:`correlated`, by a product rule over the two independent sources."""
    nodes, weights = normal_quadrature(points)
    grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), -1).reshape(-1, 1, 2)
    sources = CORRELATED["mean"] + np.sqrt(CORRELATED["variance"]) * grid
    values = function(sources @ CORRELATED["loading"])
    return np.tensordot(np.outer(weights, weights).ravel(), values, axes=1)


def test_softmax_of_a_map_over_outputs_uses_its_covariance():
    y = np.array([0, 1, 2])
    log_softmax = over_sources(lambda f: scipy.special.log_softmax(f, -1))[np.arange(3), y]
    probs = over_sources(lambda f: scipy.special.softmax(f, -1))

    def estimates(key):
        softmax = Softmax(correlated(key), num_draws=20, num_predictive_draws=20)
        return softmax.log_prob(y), softmax.probs

    f = correlated()
    alone = Softmax(GaussianMarginals(f.mean, f.variance, KEY), num_draws=20_000)

    @jax.jit
    def both_laws(alone):
        return *jax.vmap(estimates)(jax.random.split(KEY, 2000)), alone.log_prob(y)

    log_prob, estimated_probs, wrong = both_laws(alone)
    assert_unbiased(log_prob, log_softmax)
    assert_unbiased(estimated_probs, probs)
    # Output variances alone are another law: what they give is far outside the error.
    assert np.abs(wrong - log_softmax).max() > 0.08


def test_gaussian_with_correlated_outputs():
    f, noise, y = (
        correlated(),
        np.array([0.1, 0.2, 0.3]),
        np.array([[0.3, -1.0, 0.5], [2.0, 0.1, 0.0], [0.0, 0.0, 1.0]]),
    )
    log_prob, predictive, twice, variance, own, mean = evaluated(
        lambda d: (
            *log_probs(d, y),
            d.predictive_log_prob(np.stack([y, y + 1]))[0],
            d.variance,
            d.f.variance,
            d.f.mean,
        )
    )(Gaussian(f, noise))[0]
    truth = over_sources(lambda f: scipy.stats.norm.logpdf(y, f, np.sqrt(noise)).sum(-1))
    np.testing.assert_allclose(log_prob, truth, rtol=1e-9)
    A = CORRELATED["loading"]
    joint = [
        scipy.stats.multivariate_normal.logpdf(
            y[n], mean[n], A.T @ np.diag(CORRELATED["variance"][n]) @ A + np.diag(noise)
        )
        for n in range(3)
    ]
    np.testing.assert_allclose(predictive, joint, rtol=1e-9)
    np.testing.assert_allclose(twice, joint, rtol=1e-9)
    np.testing.assert_allclose(variance, np.asarray(own) + noise)


def test_bernoulli_with_correlated_labels():
    y, signs = np.array([[0, 1, 1], [1, 1, 0], [0, 0, 0]]), np.array([[-1, 1, 1], [1, 1, -1], [-1, -1, -1]])
    bernoulli = Bernoulli(correlated(), "logit", num_points=60, num_predictive_draws=30_000)
    # The first value of y is given alone too, and draws the same.
    log_prob, predictive, twice, mean = evaluated(
        lambda d: (*log_probs(d, y), d.predictive_log_prob(np.stack([y, 1 - y])), d.mean)
    )(bernoulli)[0]
    mean = np.asarray(mean)
    truth = over_sources(lambda f: scipy.special.log_expit(signs * f).sum(-1))
    np.testing.assert_allclose(log_prob, truth, rtol=1e-6)
    joint = over_sources(lambda f: scipy.special.expit(signs * f).prod(-1))
    np.testing.assert_allclose(np.exp(predictive), joint, rtol=0.02)
    product = np.prod(np.where(y == 1, mean, 1 - mean), -1)
    assert np.abs(product / joint - 1).max() > 0.1
    np.testing.assert_allclose(twice[0], predictive)


def largest(mean, covariance, y):
    """Probability that entry ``y`` of three jointly Gaussian numbers is the largest, by adaptive quadrature."""
    D = np.array([[1.0 if j == y else -1.0 if j == k else 0.0 for j in range(3)] for k in range(3) if k != y])
    m, C = D @ mean, D @ covariance @ D.T

    def integrand(d):
        conditional = m[1] + C[1, 0] / C[0, 0] * (d - m[0])
        rest = np.sqrt(C[1, 1] - C[1, 0] ** 2 / C[0, 0])
        return scipy.stats.norm.pdf(d, m[0], np.sqrt(C[0, 0])) * scipy.stats.norm.cdf(conditional / rest)

    upper = max(m[0], 0) + 12 * np.sqrt(C[0, 0])
    return scipy.integrate.quad(integrand, 0, upper, epsabs=1e-12, epsrel=1e-10, limit=200)[0]


def robustmax_of_sources(mean, variance, y, epsilon=1e-3):
    """Exact ``E_q[log p(y | f)]`` of each datum of :func:`correlated`, with other sources."""
    A = CORRELATED["loading"]
    p = np.array([largest(m @ A, A.T @ np.diag(v) @ A, k) for m, v, k in zip(mean, variance, y, strict=True)])
    return p * np.log1p(-epsilon) + (1 - p) * np.log(epsilon / 2)


@pytest.mark.slow
def test_robustmax_of_a_map_over_outputs_and_its_gradient_are_unbiased():
    y = np.array([0, 1, 2])
    truth = robustmax_of_sources(CORRELATED["mean"], CORRELATED["variance"], y)

    def estimate(mean, variance, key):
        f = GaussianMarginals(mean, variance, key) @ jnp.asarray(CORRELATED["loading"])
        return RobustMax(f, num_draws=1).log_prob(y)

    mean, variance = jnp.asarray(CORRELATED["mean"]), jnp.asarray(CORRELATED["variance"])
    keys = jax.random.split(KEY, 8_000)
    assert RobustMax(correlated()).expectation == "draw"

    def estimate_and_gradient(mean, variance, key):
        def total(mean, variance):
            value = estimate(mean, variance, key)
            return value.sum(), value

        return jax.grad(total, (0, 1), has_aux=True)(mean, variance)

    (by_mean, by_variance), values = jax.jit(jax.vmap(estimate_and_gradient, (None, None, 0)))(mean, variance, keys)
    assert_unbiased(values, truth)
    step = 1e-4
    for estimates, name in ((by_mean, "mean"), (by_variance, "variance")):
        differences = np.zeros((3, 2))
        for j in range(2):
            sources = [{k: np.array(CORRELATED[k]) for k in ("mean", "variance")} for _ in range(2)]
            for sign, source in zip((1, -1), sources, strict=True):
                source[name][:, j] += sign * step
            up, down = (robustmax_of_sources(s["mean"], s["variance"], y) for s in sources)
            differences[:, j] = (up - down) / (2 * step)
        assert_unbiased(estimates, differences, floor=1e-6)


@pytest.mark.slow
def test_robustmax_draws_agree_with_quadrature_where_outputs_are_independent():
    rng = np.random.default_rng(0)
    mean, variance, y = rng.normal(size=(5, 4)), rng.gamma(2.0, size=(5, 4)), np.array([0, 3, 2, 1, 1])
    quadrature = RobustMax(marginals(mean, variance), num_points=200)
    drawn = RobustMax(marginals(mean, variance, loading=np.eye(4)), num_draws=1, num_predictive_draws=20_000)

    def drawn_log_prob(key):
        return RobustMax(marginals(mean, variance, loading=np.eye(4), key=key), num_draws=1).log_prob(y)

    (probs, density), (exact, expectation, exact_density), estimates = evaluated(
        lambda d: (d.probs, d.predictive_log_prob(y)),
        lambda d: (d.probs, *log_probs(d, y)),
        jax.vmap(drawn_log_prob),
    )(drawn, quadrature, jax.random.split(KEY, 5_000))
    assert_unbiased(estimates, expectation)
    np.testing.assert_allclose(probs, exact, atol=0.01)
    np.testing.assert_allclose(probs.sum(-1), 1.0, atol=0.01)
    np.testing.assert_allclose(density, exact_density, atol=0.05)


def test_two_classes_need_no_quadrature_by_draws():
    f = marginals(np.array([[0.3, -0.2]]), np.array([[1.0, 0.5]]), loading=np.eye(2))
    p = scipy.stats.norm.cdf(0.5 / np.sqrt(1.5))
    probs = evaluated(lambda d: d.probs)(RobustMax(f, num_predictive_draws=1))[0]
    np.testing.assert_allclose(probs[0], [p * 0.999 + (1 - p) * 0.001, p * 0.001 + (1 - p) * 0.999])


@pytest.mark.slow
def test_several_latents_are_drawn_without_bias():
    mean, variance = np.array([[0.5, -0.3], [1.0, 0.2]]), np.array([[0.4, 0.2], [1.0, 0.3]])
    y = np.array([0.1, 2.0])
    # E[log N(y | f0, exp(f1)^2)] = -log(2 pi) / 2 - m1 - ((y - m0)^2 + v0) exp(-2 m1 + 2 v1) / 2
    square = np.square(y - mean[:, 0]) + variance[:, 0]
    scale = np.exp(-2 * mean[:, 1] + 2 * variance[:, 1])
    truth = -0.5 * np.log(2 * np.pi) - mean[:, 1] - 0.5 * square * scale

    def estimate(key):
        likelihood = Expected(heteroscedastic, marginals(mean, variance, key=key), num_draws=5, num_predictive_draws=5)
        return likelihood.log_prob(y), likelihood.mean, jnp.exp(likelihood.predictive_log_prob(y))

    log_prob, means, densities = jax.jit(jax.vmap(estimate))(jax.random.split(KEY, 2000))
    assert Expected(heteroscedastic, marginals(mean, variance)).expectation == "draw"
    assert_unbiased(log_prob, truth)
    assert_unbiased(means, mean[:, 0])
    density = [
        scipy.integrate.quad(
            lambda s, n=n: (
                scipy.stats.norm.pdf(s, mean[n, 1], np.sqrt(variance[n, 1]))
                * scipy.stats.norm.pdf(y[n], mean[n, 0], np.sqrt(variance[n, 0] + np.exp(2 * s)))
            ),
            -8,
            8,
        )[0]
        for n in range(2)
    ]
    assert_unbiased(densities, density)


COUNTS = {
    "Poisson": lambda x: dist.Poisson(x),
    "of trials": lambda x: dist.BinomialProbs(jnp.full(3, 0.5), x.astype(int)),
    "in a mixture": lambda x: dist.MixtureSameFamily(
        dist.Categorical(jnp.ones((3, 2)) / 2), dist.Poisson(jnp.stack([x, x], 1))
    ),
    "of events": lambda x: dist.Poisson(x[:, None]).to_event(1),
    "by other parameters": lambda x: dist.NegativeBinomial2(x, 3.0),
    "zero-inflated": lambda x: dist.ZeroInflatedNegativeBinomial2(x, 3.0, gate=jnp.full(3, 0.2)),
    "behind a transform": lambda x: dist.Pareto(x, jnp.full(3, 4.0)),
    "of a class with a property": lambda x: Told(x),
}


class Told(dist.Poisson):
    @property
    def arg_constraints(self):
        return {"rate": dist.constraints.positive}


@pytest.mark.parametrize("of", COUNTS.values(), ids=COUNTS)
def test_negative_parameters_are_refused_or_give_no_number_while_they_are_traced(of, standard_promotion):
    with numpyro.validation_enabled(False):
        bad, good = jnp.array([1.0, -2.0, 0.0]), jnp.array([1.0, 2.0, 3.0])
        mean = lambda x: jnp.ravel(refuse_negative(of(x)).mean)  # noqa: E731
        assert np.isnan(jax.jit(mean)(bad)).tolist() == [False, True, False]
        if of is COUNTS["behind a transform"]:
            drawn = jax.jit(lambda x: refuse_negative(of(x)).sample(jax.random.key(0), (50,)))(bad)
            assert np.isnan(drawn).all(0).tolist() == [False, True, False]
        np.testing.assert_allclose(jax.jit(mean)(good), jnp.ravel(of(good).mean))
        assert refuse_negative(fn := of(good)) is fn
        with pytest.raises(ValueError, match=r"must not be negative, got -[12]\.?\d* at index \(1"):
            mean(bad)
