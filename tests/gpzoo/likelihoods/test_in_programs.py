"""Likelihoods as NumPyro distributions: shapes, precision, gradients, plates, masks, pytrees, and what they refuse."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import handlers
from numpyro.infer.util import log_density

from gpzoo.likelihoods import Bernoulli, Expected, Gaussian, Likelihood, RobustMax, Softmax
from gpzoo.likelihoods.classes import ClassLikelihood
from gpzoo.processes.marginals import DrawLog, GaussianMarginals
from tests.gpzoo.likelihoods.cases import (
    CASES,
    FAST_KEY,
    KEY,
    LABELS,
    REAL,
    SCALES,
    A,
    K,
    N,
    build,
    every_kind_of_case,
    latent,
    log_probs,
    poisson,
    scaled_normal,
)

KEPT = np.array([True, False, True, True, False])
STEP = 1e-5


def in_a_plate(likelihood, y, mask):
    """Some of the data, of which some are masked."""
    with numpyro.plate("data", 4 * N, subsample_size=N), handlers.mask(mask=mask):
        return numpyro.sample("y", likelihood, obs=jnp.asarray(y))


def log_density_in_a_plate(likelihood, y, mask):
    model = handlers.substitute(in_a_plate, {"data": jnp.arange(N)})
    return log_density(model, (likelihood, y, mask), {}, {})


def has_mask(case, kind):
    """Correlated outputs are masked as independent ones are."""
    return kind != "independent" or CASES[case][1] is None


@lru_cache
def seen(case, kind):
    """One compilation for all that is looked at: values, gradients, values under vmap, and what is masked."""
    likelihood, y = build(case, kind, key=FAST_KEY)
    make, rng = CASES[case][0], np.random.default_rng(3)
    several = np.stack([y, y]).astype(np.float32)
    spoilt = y.astype(float)
    spoilt[~KEPT] = np.nan if np.issubdtype(y.dtype, np.floating) else 9
    direction, weights = rng.normal(size=(2, *likelihood.f.shape)), rng.normal(size=(2, N))

    @jax.jit
    def everything(likelihood):
        f = likelihood.f
        start = (f,) if kind == "array" else (f.mean, f.source_variance)

        def at(*moments):
            return make(*moments if kind == "array" else [GaussianMarginals(*moments, f.key, f.loading, sites=f.sites)])

        def values(d, y):
            return jnp.stack([d.log_prob(y), d.predictive_log_prob(y)])

        value, pull = jax.vjp(lambda *moments: values(at(*moments), y), *start)
        slope = sum((g * v).sum() for g, v in zip(pull(jnp.asarray(weights)), direction, strict=False))
        # All have the same key, whose draws are then the same.
        axes = jax.tree.map(lambda x: None if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else 0, likelihood)
        moved = jax.vmap(lambda s: at(*(x + s * v for x, v in zip(start, direction, strict=False))), out_axes=axes)(
            jnp.asarray([0.0, STEP, -STEP])
        )
        under_vmap = jax.vmap(values, (axes, None))(moved, several)
        masked = None
        if has_mask(case, kind):
            total = lambda d: log_density_in_a_plate(d, spoilt, KEPT)[0]  # noqa: E731
            masked = jax.value_and_grad(total, allow_int=True)(likelihood)
        return {
            "likelihood": likelihood,
            "values": value,
            "slope": slope,
            "moved": moved,
            "under vmap": under_vmap,
            "masked": masked,
        }

    return likelihood, y, weights, everything(likelihood)


# -- shapes, precision, gradients, pytrees ----------------------------------------------------------------------------


@pytest.mark.slow_but(
    kind=["array"], case=["gaussian outputs", "logit", "robustmax", "categorical", "sticks", "poisson"]
)
@every_kind_of_case
def test_shapes_and_precision(case, kind):
    dtype = jnp.float32  # float64, the default here, is seen everywhere else
    likelihood, y = build(case, kind, dtype, FAST_KEY)
    assert likelihood.batch_shape == (N,) and likelihood.event_shape == y.shape[1:]
    assert not likelihood.has_rsample
    assert likelihood.expectation in ("closed form", "quadrature", "draw")
    assert (likelihood.expectation == "draw") or kind != "array"
    several = np.stack([y, y]).astype(np.float32)
    for value in jax.eval_shape(log_probs, likelihood, several):
        assert value.shape == (2, N) and value.dtype == dtype
    values = seen(case, kind)[-1]["values"]
    assert np.isfinite(values).all()
    if kind == "array":
        np.testing.assert_allclose(*values, rtol=1e-9)
    if isinstance(likelihood, ClassLikelihood):
        probs = jax.eval_shape(lambda d: d.probs, likelihood)
        assert probs.shape == (N, K) and probs.dtype == dtype
        with pytest.raises(NotImplementedError, match="use probs"):
            _ = likelihood.mean
        with pytest.raises(NotImplementedError, match="use probs"):
            _ = likelihood.variance
    elif case != "categorical":
        mean, variance = jax.eval_shape(lambda d: (d.mean, d.variance), likelihood)
        assert mean.shape == variance.shape == y.shape and mean.dtype == variance.dtype == dtype


@pytest.mark.parametrize("case", ["poisson", "normal", "categorical"])
def test_values_are_finite_in_single_precision(case):
    # Those of the other likelihoods are at extreme marginals, elsewhere.
    likelihood, y = build(case, "independent", jnp.float32, FAST_KEY)
    assert np.isfinite(log_probs(likelihood, y)).all()


@pytest.mark.slow_but(case=["gaussian", "probit", "softmax", "polya-gamma"], kind=["array"])
@every_kind_of_case
def test_jit_and_vmap_round_trips(case, kind):
    likelihood, _, _, found = seen(case, kind)
    again, moved = found["likelihood"], found["moved"]
    assert type(again) is type(likelihood) and again.batch_shape == (N,) and again.event_shape == likelihood.event_shape
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(moved))
    # [steps, methods, sample axes of y, N]
    assert found["under vmap"].shape == (3, 2, 2, N)
    for sample in range(2):
        np.testing.assert_allclose(found["under vmap"][0, :, sample], found["values"], rtol=1e-10)


@pytest.mark.slow_but(kind=["independent"], case=["normal", "probit", "sticks", "polya-gamma", "poisson", "softmax"])
@every_kind_of_case
def test_gradients_against_finite_differences(case, kind):
    likelihood, _, weights, found = seen(case, kind)
    if isinstance(likelihood, RobustMax) and kind == "array":
        assert found["slope"] == 0
        return
    if isinstance(likelihood, RobustMax) and kind == "correlated":
        return  # unbiased for the gradient of the expectation, which is tested elsewhere; not that of one estimate
    _, up, down = np.asarray(found["under vmap"])[:, :, 0]
    np.testing.assert_allclose(found["slope"], (weights * (up - down)).sum() / (2 * STEP), rtol=1e-5, atol=1e-5)


def test_params_are_leaves_and_differentiable():
    f, y = latent("independent", 2), REAL

    @jax.jit
    def looked_at(f, one, scales, direction):
        value, pull = jax.vjp(lambda scale: Expected(scaled_normal, f, scale).log_prob(y), scales)
        moved = jax.vmap(lambda s: Expected(scaled_normal, f, scales + s * direction).log_prob(y))(
            jnp.asarray([STEP, -STEP])
        )
        by_likelihood = jax.grad(lambda d: d.log_prob(y).sum(), allow_int=True)(Expected(scaled_normal, f, scales))
        noise = jax.grad(lambda s: Gaussian(one, s).log_prob(y).sum())(0.3)
        return pull(jnp.ones_like(value))[0], moved, by_likelihood.params[0], noise

    direction = np.random.default_rng(0).normal(size=N)
    gradient, moved, same, noise = looked_at(f, latent("independent", None), SCALES, direction)
    np.testing.assert_allclose(gradient * direction, (moved[0] - moved[1]) / (2 * STEP), rtol=1e-6)
    np.testing.assert_allclose(same, gradient, rtol=1e-10)
    assert same.shape == (N,) and np.abs(same).min() > 0
    assert np.isfinite(noise)


@pytest.mark.parametrize(
    "classes, dtype", [(256, np.uint8), (128, np.int8), (200, np.int16), (2, bool), (300, np.uint16)]
)
@pytest.mark.parametrize("jitted", [False, True])
def test_labels_of_a_narrow_type_may_use_all_of_it(classes, dtype, jitted):
    y = np.array([0, 1, classes - 1, classes // 2]).astype(dtype)
    f = jnp.asarray(np.random.default_rng(0).standard_normal((4, classes)))
    density = lambda y: Softmax(f).log_prob(y)  # noqa: E731
    found = (jax.jit(density) if jitted else density)(y)
    np.testing.assert_allclose(found, jax.nn.log_softmax(f)[np.arange(4), y.astype(int)], rtol=1e-12)


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
        ("gaussian", [0.0, np.nan, 0.0, 0.0, 0.0], r"y holds nan at index \(1,\) .*handlers.mask"),
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
        (lambda: Gaussian(jnp.zeros(3), -1.0), "noise_variance must be positive and finite, got -1.0"),
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
        jax.eval_shape(lambda f: Softmax(f).log_prob(LABELS), f)
    with pytest.raises(ValueError, match="no random key"):
        jax.eval_shape(lambda f: RobustMax(f @ jnp.asarray(A)).log_prob(LABELS), f)
    assert jax.eval_shape(lambda f: RobustMax(f).sample(KEY, (2,)), f).shape == (2, N)


# -- plates and masks -------------------------------------------------------------------------------------------------


@pytest.mark.slow_but(kind=["array", "independent"])
@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (c, k)
        for c in CASES
        for k in ("array", "independent", "correlated")
        if has_mask(c, k) and (CASES[c][1] or k != "correlated")
    ],
)
def test_in_a_plate_with_a_mask(case, kind):
    _, _, _, found = seen(case, kind)
    total, gradient = found["masked"]
    np.testing.assert_allclose(total, 4 * found["values"][0][KEPT].sum(), rtol=1e-10)
    leaves = [g for g in jax.tree.leaves(gradient) if jnp.issubdtype(g.dtype, jnp.floating)]
    assert leaves and all(np.isfinite(g).all() for g in leaves)


@pytest.mark.parametrize("case", CASES)
def test_in_a_plate_without_a_mask(case):
    likelihood, y = build(case, "independent")

    def unmasked(likelihood):
        total, trace = log_density_in_a_plate(likelihood, y, True)
        assert trace["y"]["fn"] is likelihood
        return total

    assert jax.eval_shape(unmasked, likelihood).shape == ()


def test_mask_outside_the_plate_and_wrong_shapes():
    likelihood, y = build("probit", "independent")
    kept = jnp.array([True, False, True, True, False])
    masked = likelihood.mask(kept)
    ours, nothing, again = jax.jit(lambda d, masked: (masked.log_prob(y), d.mask(False).log_prob(y), masked))(
        likelihood, masked
    )
    np.testing.assert_array_equal(ours != 0, kept)
    np.testing.assert_array_equal(nothing, np.zeros(N))
    assert again.batch_shape == (N,) and jax.eval_shape(lambda d: d.log_prob(y), again).shape == (N,)
    assert masked.expand((N,)) is masked and likelihood.mask(True) is likelihood
    with pytest.raises(ValueError, match=r"y has shape \(5, 1\)"):
        masked.log_prob(y[:, None])
    with pytest.raises(ValueError, match="y holds 5"):
        masked.log_prob(np.array([5, 0, 1, 0, 1]))
    with pytest.raises(ValueError, match=r"mask of shape \(2, 5\) does not go with 5 data.*a site of its own"):
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
    for make, columns, y in CASES.values():
        f = latent("independent", columns)
        f = GaussianMarginals(f.mean, f.source_variance, KEY, sites=f.sites, log=DrawLog(refuse=True))
        jax.eval_shape(lambda d, y: (d.log_prob(y), d.predictive_log_prob(y), d.sample(KEY)), make(f), y)


# -- how they integrate ------------------------------------------------------------------------------------------------


def test_every_likelihood_says_how_it_integrates():
    table = {case: build(case, "independent")[0].expectation for case in CASES}
    assert table == {
        "gaussian": "closed form",
        "gaussian outputs": "closed form",
        "probit": "quadrature",
        "logit": "quadrature",
        "logit outputs": "quadrature",
        "softmax": "draw",
        "robustmax": "quadrature",
        "polya-gamma": "closed form",
        "polya-gamma outputs": "closed form",
        "sticks": "closed form",
        "poisson": "quadrature",
        "normal": "draw",
        "categorical": "draw",
    }
    assert RobustMax(latent("correlated", K)).expectation == "draw"
    assert issubclass(RobustMax, Likelihood)


def test_a_likelihood_that_lacks_methods_names_them_all_before_training():
    class Half(Likelihood):
        def log_prob(self, value, intermediates=None):
            return -jnp.square(self.checked(value) - self.f)

    lacking = "predictive_log_prob, sample_given, marginal_expectation, support, mean, variance"
    with pytest.raises(TypeError, match=f"Half does not define {lacking}"):
        Half(jnp.zeros(3))
