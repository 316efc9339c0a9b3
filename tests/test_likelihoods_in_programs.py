"""Likelihoods as NumPyro distributions: plates, masks, pytrees, labels, gradients, extremes, samples, predictions."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.special
from jax.test_util import check_grads
from numpyro import handlers
from numpyro.infer.util import log_density

from gpzoo.likelihoods import Bernoulli, Expected, Gaussian, Likelihood, RobustMax, Softmax
from gpzoo.likelihoods.quadrature import log_normal_cdf
from gpzoo.marginals import DrawLog, GaussianMarginals

N, K = 5, 3
KEY = jax.random.key(11)
A = np.random.default_rng(5).normal(size=(K, K))


def poisson(f):
    return dist.Poisson(jnp.exp(f))


def scaled_normal(f, scale):
    return dist.Normal(f[..., 0], scale * jnp.exp(0.3 * f[..., 1]))


def categorical(f):
    return dist.Categorical(logits=f)


def latent(kind, columns, dtype=jnp.float64, seed=0):
    """An array, marginals with independent outputs, or marginals with correlated ones."""
    rng = np.random.default_rng(seed)
    shape = (N,) if columns is None else (N, columns)
    mean = jnp.asarray(rng.normal(size=shape), dtype)
    if kind == "array":
        return mean
    f = GaussianMarginals(mean, jnp.asarray(rng.gamma(2.0, 0.5, size=shape), dtype), KEY, sites=frozenset({"f"}))
    return f @ jnp.asarray(A[:columns, :columns], dtype) if kind == "correlated" else f


LABELS, BINARY, COUNTS = np.array([0, 2, 1, 1, 2]), np.array([0, 1, 1, 0, 1]), np.array([0, 3, 1, 2, 0])
REAL = np.linspace(-1, 1, N)
REALS, BINARIES = np.random.default_rng(1).normal(size=(N, K)), np.random.default_rng(2).integers(0, 2, (N, K))
NOISES, SCALES = np.array([0.1, 0.2, 0.3]), np.linspace(0.5, 2, N)

# name: (make from f, columns of f, y)
CASES = {
    "gaussian": (lambda f: Gaussian(f, 0.3), None, REAL),
    "gaussian outputs": (lambda f: Gaussian(f, NOISES), K, REALS),
    "probit": (lambda f: Bernoulli(f), None, BINARY),
    "squashed probit": (lambda f: Bernoulli(f, squash=1e-3), None, BINARY),
    "logit": (lambda f: Bernoulli(f, "logit"), None, BINARY),
    "logit outputs": (lambda f: Bernoulli(f, "logit"), K, BINARIES),
    "softmax": (lambda f: Softmax(f, num_draws=4), K, LABELS),
    "robustmax": (lambda f: RobustMax(f), K, LABELS),
    "squashed robustmax": (lambda f: RobustMax(f, squash=1e-6), K, LABELS),
    "poisson": (lambda f: Expected(poisson, f), None, COUNTS),
    "normal": (lambda f: Expected(scaled_normal, f, SCALES, num_draws=4), 2, REAL),
    "categorical": (lambda f: Expected(categorical, f, num_draws=4), K, LABELS),
}
every_case = pytest.mark.parametrize("case", CASES)
every_kind = pytest.mark.parametrize("kind", ["array", "independent", "correlated"])
both = pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])


def build(case, kind, dtype=jnp.float64):
    make, columns, y = CASES[case]
    if kind == "correlated" and columns is None:
        pytest.skip("one output has nothing to be correlated with")
    return make(latent(kind, columns, dtype)), y


# -- shapes, precision, pytrees ---------------------------------------------------------------------------------------


@both
@every_kind
@every_case
def test_shapes_and_precision(case, kind, dtype):
    likelihood, y = build(case, kind, dtype)
    assert likelihood.batch_shape == (N,) and likelihood.event_shape == y.shape[1:]
    assert not likelihood.has_rsample
    assert likelihood.expectation in ("closed form", "quadrature", "draw")
    assert (likelihood.expectation == "draw") or kind != "array"
    for labels in (y, y.astype(np.float32)):
        values = likelihood.log_prob(labels), likelihood.predictive_log_prob(labels)
        for value in values:
            assert value.shape == (N,) and value.dtype == dtype and np.isfinite(value).all()
        if kind == "array":
            np.testing.assert_allclose(*values, rtol=5e-5)
    several = np.stack([y, y])
    np.testing.assert_allclose(likelihood.log_prob(several)[1], likelihood.log_prob(y), rtol=1e-5)
    np.testing.assert_allclose(likelihood.predictive_log_prob(several)[1], likelihood.predictive_log_prob(y), rtol=1e-4)
    if isinstance(likelihood, Softmax | RobustMax):
        assert likelihood.probs.shape == (N, K) and likelihood.probs.dtype == dtype
        with pytest.raises(NotImplementedError, match="use probs"):
            _ = likelihood.mean
        with pytest.raises(NotImplementedError, match="use probs"):
            _ = likelihood.variance
    elif case != "categorical":
        assert likelihood.mean.shape == likelihood.variance.shape == y.shape
        assert likelihood.mean.dtype == likelihood.variance.dtype == dtype


@every_kind
@every_case
def test_jit_and_vmap_round_trips(case, kind):
    likelihood, y = build(case, kind)
    expected = likelihood.log_prob(y)
    again = jax.jit(lambda d: d)(likelihood)
    assert type(again) is type(likelihood) and again.batch_shape == (N,) and again.event_shape == likelihood.event_shape
    np.testing.assert_allclose(again.log_prob(y), expected, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(lambda d, y: d.log_prob(y))(likelihood, y), expected, rtol=1e-10)
    stacked = jax.vmap(lambda shift: CASES[case][0](likelihood.f + shift))(jnp.arange(3.0))
    values = jax.vmap(lambda d: d.log_prob(jnp.asarray(y)))(stacked)
    assert values.shape == (3, N)
    np.testing.assert_allclose(values[0], expected, rtol=1e-10)
    np.testing.assert_allclose(values[2], CASES[case][0](likelihood.f + 2.0).log_prob(y), rtol=1e-10)
    leaves = jax.tree.leaves(likelihood)
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)


def test_params_are_leaves_and_differentiable():
    f, y = latent("independent", 2), REAL
    value = lambda scale: Expected(scaled_normal, f, scale).log_prob(y)  # noqa: E731
    check_grads(value, (jnp.asarray(SCALES),), order=1, modes=["rev"], rtol=1e-6)
    gradient = jax.grad(lambda d: d.log_prob(y).sum(), allow_int=True)(Expected(scaled_normal, f, SCALES)).params[0]
    assert gradient.shape == (N,) and np.abs(gradient).min() > 0
    noise = jax.grad(lambda s: Gaussian(latent("independent", None), s).log_prob(y).sum())(0.3)
    assert np.isfinite(noise)


def test_labels_are_checked_while_f_is_traced():
    """The data are constants of a program that is traced to find its shapes."""
    bad = jnp.array([0, 1, 7, 0, 1])
    with pytest.raises(ValueError, match=r"y holds 7 at index \(2,\)"):
        jax.eval_shape(lambda f: RobustMax(f).log_prob(bad), latent("independent", K))
    missing = jnp.full(N, jnp.nan)
    with pytest.raises(ValueError, match="y holds nan"):
        jax.eval_shape(lambda f: Gaussian(f, 1.0).log_prob(missing), latent("independent", None))


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["array", "independent"])
@pytest.mark.parametrize(
    ("case", "y", "message"),
    [
        ("softmax", [0, 1, 2, 3, 0], r"y holds 3 at index \(3,\) .*3 classes must be whole numbers from 0 to 2"),
        ("robustmax", [0, -1, 2, 0, 0], r"y holds -1 at index \(1,\) .*3 classes"),
        ("robustmax", [0, 0.5, 2, 0, 0], r"y holds 0.5 at index \(1,\)"),
        ("probit", [0, 1, 2, 0, 1], r"y holds 2 at index \(2,\) .*2 classes"),
        ("logit", [-1, 1, 1, -1, 1], r"y holds -1 .*pass \(y \+ 1\) / 2"),
        ("gaussian", [0.0, np.nan, 0.0, 0.0, 0.0], r"y holds nan at index \(1,\) .*drop or mask"),
        ("softmax", [0.0, np.nan, 0.0, 0.0, 0.0], "y holds nan"),
        ("poisson", [0, -2, 1, 1, 1], "y holds -2 .*the support of Poisson"),
        ("poisson", [[0], [1], [1], [1], [1]], r"y has shape \(5, 1\), but f of shape \(5,\) .*y\[:, 0\]"),
        ("gaussian", np.zeros((N, 1)), r"y has shape \(5, 1\), but f of shape \(5,\) needs y of shape \(5,\)"),
        ("gaussian", np.zeros(4), r"y has shape \(4,\), .* one row per row of f"),
        ("gaussian outputs", np.zeros(N), r"y has shape \(5,\), but f of shape \(5, 3\)"),
        ("softmax", np.eye(K)[LABELS], r"y has shape \(5, 3\), .*one-hot labels, pass y.argmax\(-1\)"),
        ("probit", np.zeros((N, 1)), "drop y's last axis"),
    ],
)
def test_wrong_y_is_refused(case, kind, y, message):
    likelihood, _ = build(case, kind)
    for method in (likelihood.log_prob, likelihood.predictive_log_prob):
        with pytest.raises(ValueError, match=message):
            method(np.asarray(y))
        with pytest.raises(ValueError, match=message):
            method(jnp.asarray(np.asarray(y)))


def test_column_of_f_against_a_vector_y_is_refused():
    with pytest.raises(ValueError, match=r"drop the last axis of f \(f\[:, 0\]\)"):
        Gaussian(latent("independent", 1), 1.0).log_prob(REAL)


@pytest.mark.parametrize("case", ["softmax", "robustmax", "probit", "logit"])
def test_traced_labels_out_of_range_give_nan(case):
    likelihood, y = build(case, "independent")
    y = y.copy()
    y[3] = 9
    value = jax.jit(lambda d, y: jnp.stack([d.log_prob(y), d.predictive_log_prob(y)]))(likelihood, y)
    np.testing.assert_array_equal(np.isnan(value), np.tile(np.arange(N) == 3, (2, 1)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(jnp.zeros((2, 3, 4)), 1.0), r"takes f of shape \[N\] or \[N, K\]"),
        (lambda: Gaussian(jnp.zeros(()), 1.0), r"takes f of shape"),
        (lambda: Gaussian(jnp.zeros((0,)), 1.0), "f is empty"),
        (lambda: Gaussian(jnp.zeros(3), -1.0), "noise_variance must be positive, got -1.0"),
        (lambda: Gaussian(jnp.zeros((3, 2)), jnp.ones(3)), "noise_variance has shape"),
        (lambda: Bernoulli(jnp.zeros(3), "cloglog"), "link must be one of 'probit', 'logit', got 'cloglog'"),
        (lambda: Bernoulli(jnp.zeros(3), squash=0.5), r"squash must be in \[0, 0.5\), got 0.5"),
        (lambda: Bernoulli(jnp.zeros(3), num_points=0), "num_points must be an integer of at least 1, got 0"),
        (lambda: Softmax(jnp.zeros(3)), r"takes f of shape \[N, K\]"),
        (lambda: Softmax(jnp.zeros((3, 1))), r"at least two; f has shape \(3, 1\)"),
        (lambda: Softmax(jnp.zeros((3, 2)), num_draws=2.5), "num_draws must be an integer"),
        (lambda: RobustMax(jnp.zeros((3, 2)), 1.0), "epsilon must be between 0 and 1, got 1.0"),
        (lambda: RobustMax(jnp.zeros((3, 2)), jnp.ones(2)), "epsilon must be one number"),
        (lambda: Expected(poisson, jnp.zeros((3, 2))), r"batch shape \(3, 2\) .*consume the last axis"),
        (lambda: Expected(poisson, jnp.zeros((3, 2, 2))), r"Expected takes f of shape"),
    ],
)
def test_wrong_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_expected_needs_a_distribution():
    with pytest.raises(TypeError, match="fn must return a NumPyro distribution, got ShapeDtypeStruct"):
        Expected(jnp.exp, jnp.zeros(3))


def test_draws_need_a_key():
    f = GaussianMarginals(jnp.zeros((N, K)), jnp.ones((N, K)))
    with pytest.raises(ValueError, match="no random key"):
        Softmax(f).log_prob(LABELS)
    with pytest.raises(ValueError, match="no random key"):
        RobustMax(f @ jnp.asarray(A)).log_prob(LABELS)
    assert RobustMax(f).sample(KEY, (2,)).shape == (2, N)


# -- plates and masks -------------------------------------------------------------------------------------------------


@every_kind
@every_case
def test_in_a_plate_with_a_mask(case, kind):
    likelihood, y = build(case, kind)
    kept = np.array([True, False, True, True, False])
    spoilt = y.astype(float)
    spoilt[~kept] = np.nan if np.issubdtype(y.dtype, np.floating) else 9

    def model(mask=None, y=y):
        with numpyro.plate("data", 4 * N, subsample_size=N), handlers.mask(mask=True if mask is None else mask):
            return numpyro.sample("y", likelihood, obs=jnp.asarray(y))

    model = handlers.substitute(model, {"data": jnp.arange(N)})
    expected = likelihood.log_prob(y)
    total, trace = log_density(handlers.seed(model, KEY), (), {}, {})
    np.testing.assert_allclose(total, 4 * expected.sum(), rtol=1e-10)
    assert trace["y"]["fn"] is likelihood
    for values in (y, spoilt):
        total, _ = log_density(handlers.seed(model, KEY), (), {"mask": jnp.asarray(kept), "y": values}, {})
        np.testing.assert_allclose(total, 4 * expected[kept].sum(), rtol=1e-10)
    gradient = jax.grad(lambda d: d.mask(jnp.asarray(kept)).log_prob(spoilt).sum(), allow_int=True)(likelihood)
    leaves = [g for g in jax.tree.leaves(gradient) if jnp.issubdtype(g.dtype, jnp.floating)]
    assert leaves and all(np.isfinite(g).all() for g in leaves)


def test_mask_outside_the_plate_and_wrong_shapes():
    likelihood, y = build("probit", "independent")
    kept = jnp.array([True, False, True, True, False])
    masked = likelihood.mask(kept)
    np.testing.assert_array_equal(masked.log_prob(y) != 0, kept)
    assert masked.expand((N,)) is masked and likelihood.mask(True) is likelihood
    np.testing.assert_array_equal(likelihood.mask(False).log_prob(y), np.zeros(N))
    with pytest.raises(ValueError, match=r"y has shape \(5, 1\)"):
        masked.log_prob(y[:, None])
    with pytest.raises(ValueError, match="y holds 5"):
        masked.log_prob(np.array([5, 0, 1, 0, 1]))
    assert jax.jit(lambda d: d)(masked).log_prob(y).shape == (N,)
    with pytest.raises(ValueError, match=r"batch shape \(5,\)"):
        likelihood.mask(jnp.ones((2, N), bool))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["array", "independent"])
def test_a_plate_of_another_size_is_refused(kind, masked):
    def model(f):
        with numpyro.plate("data", 7):
            likelihood = Gaussian(f, 0.1)
            numpyro.sample("y", likelihood.mask(jnp.ones(1, bool)) if masked else likelihood, obs=jnp.zeros(7))

    with pytest.raises(ValueError, match=r"batch shape \(1,\) .*the plate asks for \(7,\): f must have one row"):
        handlers.trace(model).get_trace(latent(kind, None)[:1])
    likelihood = Gaussian(latent(kind, None), 0.1)
    assert likelihood.expand((N,)) is likelihood and likelihood.expand([N]) is likelihood
    with pytest.raises(ValueError, match=r"the plate asks for \(3, 5\)"):
        likelihood.expand_by((3,))


def test_marginals_are_never_drawn_by_a_likelihood_that_knows_better():
    for case, (make, columns, y) in CASES.items():
        f = latent("independent", columns)
        f = GaussianMarginals(f.mean, f.source_variance, KEY, sites=f.sites, log=DrawLog(refuse=True))
        likelihood = make(f)
        assert np.isfinite(likelihood.log_prob(y)).all(), case
        assert np.isfinite(likelihood.predictive_log_prob(y)).all(), case
        likelihood.sample(KEY)


# -- gradients and extremes -------------------------------------------------------------------------------------------


@every_kind
@every_case
def test_gradients_against_finite_differences(case, kind):
    likelihood, y = build(case, kind)
    make = CASES[case][0]
    if isinstance(likelihood, RobustMax) and kind == "array":
        assert not np.any(jax.grad(lambda f: make(f).log_prob(y).sum())(likelihood.f))
        return

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
            likelihood = make(GaussianMarginals(mean, variance, KEY, loading))
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
    value, gradient = jax.vmap(jax.value_and_grad(log_normal_cdf))(jnp.asarray(x, dtype))
    x = np.asarray(jnp.asarray(x, dtype), np.float64)
    tolerance = {jnp.float32: 3e-5, jnp.float64: 1e-10}[dtype]
    np.testing.assert_allclose(value, scipy.special.log_ndtr(x), rtol=tolerance, atol=1e-30)
    mills = np.sqrt(2 / np.pi) / scipy.special.erfcx(-x / np.sqrt(2))
    np.testing.assert_allclose(gradient, np.where(x < 30, mills, 0), rtol=tolerance, atol=1e-30)


# -- predictive distributions -----------------------------------------------------------------------------------------


@every_kind
@every_case
def test_predictive_distributions_sum_to_one(case, kind):
    likelihood, y = build(case, kind)
    if case in ("probit", "squashed probit", "logit", "logit outputs"):
        D = likelihood.event_shape or (1,)
        values = np.stack(np.meshgrid(*[[0, 1]] * D[0], indexing="ij"), -1).reshape(-1, 1, D[0])
        support = np.broadcast_to(values, (len(values), N, D[0])).reshape(len(values), *y.shape)
    elif case in ("softmax", "robustmax", "squashed robustmax", "categorical"):
        support = np.broadcast_to(np.arange(K)[:, None], (K, N))
    elif case == "poisson":
        support = np.broadcast_to(np.arange(400)[:, None], (400, N))
    elif likelihood.event_shape == ():
        grid = np.linspace(-60, 60, 24_001)
        density = jax.vmap(lambda y: jnp.exp(likelihood.predictive_log_prob(jnp.full(N, y))))(grid)
        np.testing.assert_allclose(np.trapezoid(density, grid, axis=0), 1, rtol=1e-3)
        return
    else:
        return  # a density over three outputs: compared with SciPy's elsewhere
    total = np.exp(np.asarray(likelihood.predictive_log_prob(support))).sum(0)
    loose = isinstance(likelihood, RobustMax) and kind != "array"
    np.testing.assert_allclose(total, 1, rtol=0.05 if loose else 1e-5)
    if isinstance(likelihood, Softmax | RobustMax):
        np.testing.assert_allclose(np.exp(likelihood.predictive_log_prob(support)).T, likelihood.probs, rtol=1e-9)


@every_kind
@every_case
def test_samples_have_the_predictive_moments(case, kind):
    likelihood, y = build(case, kind)
    S = 8_000
    sample = likelihood.sample(KEY, (S // 2, 2))
    assert sample.shape == (S // 2, 2, *y.shape) and likelihood.sample(KEY).shape == y.shape
    np.testing.assert_array_equal(likelihood.sample(KEY, (3,)), likelihood.sample(KEY, (3,)))
    assert np.all(likelihood.support(sample))
    sample = np.asarray(sample, float).reshape(S, *y.shape)
    if isinstance(likelihood, Softmax | RobustMax) or case == "categorical":
        labels = np.broadcast_to(np.arange(K)[:, None], (K, N))
        probs = np.exp(np.asarray(likelihood.predictive_log_prob(labels))).T
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


def test_every_likelihood_says_how_it_integrates():
    table = {case: build(case, "independent")[0].expectation for case in CASES}
    assert table == {
        "gaussian": "closed form",
        "gaussian outputs": "closed form",
        "probit": "quadrature",
        "squashed probit": "quadrature",
        "logit": "quadrature",
        "logit outputs": "quadrature",
        "softmax": "draw",
        "robustmax": "quadrature",
        "squashed robustmax": "quadrature",
        "poisson": "quadrature",
        "normal": "draw",
        "categorical": "draw",
    }
    assert RobustMax(latent("correlated", K)).expectation == "draw"
    assert issubclass(RobustMax, Likelihood)
