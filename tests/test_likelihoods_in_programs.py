"""Likelihoods as NumPyro distributions: shapes, precision, plates, masks, pytrees, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from jax.test_util import check_grads
from likelihood_cases import (
    CASES,
    FAST_KEY,
    KEY,
    LABELS,
    REAL,
    SCALES,
    A,
    K,
    N,
    both_log_probs,
    build,
    every_kind_of_case,
    latent,
    log_prob,
    poisson,
    scaled_normal,
)
from numpyro import handlers
from numpyro.infer.util import log_density

from gpzoo.likelihoods import Bernoulli, Expected, Gaussian, Likelihood, RobustMax, Softmax
from gpzoo.likelihoods.classes import ClassLikelihood
from gpzoo.processes.marginals import DrawLog, GaussianMarginals

# -- shapes, precision, pytrees ---------------------------------------------------------------------------------------


@every_kind_of_case
def test_shapes_and_precision(case, kind):
    dtype = jnp.float32  # float64, the default here, is seen everywhere else
    likelihood, y = build(case, kind, dtype, FAST_KEY)
    assert likelihood.batch_shape == (N,) and likelihood.event_shape == y.shape[1:]
    assert not likelihood.has_rsample
    assert likelihood.expectation in ("closed form", "quadrature", "draw")
    assert (likelihood.expectation == "draw") or kind != "array"
    values = []
    for labels in (y, np.stack([y, y]).astype(np.float32)):
        pair = both_log_probs(likelihood, labels)
        for value in pair:
            assert value.shape == (*labels.shape[: labels.ndim - y.ndim], N) and value.dtype == dtype
        values.append(np.asarray(pair).reshape(2, -1, N)[:, -1])
    assert np.isfinite(values[0]).all()
    np.testing.assert_allclose(values[1], values[0], rtol=1e-4)
    if kind == "array":
        np.testing.assert_allclose(*values[0], rtol=5e-5)
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


@every_kind_of_case
def test_jit_and_vmap_round_trips(case, kind):
    likelihood, y = build(case, kind)
    again = jax.jit(lambda d: d)(likelihood)
    assert type(again) is type(likelihood) and again.batch_shape == (N,) and again.event_shape == likelihood.event_shape
    expected = log_prob(likelihood, y)
    np.testing.assert_allclose(log_prob(again, y), expected, rtol=1e-10)
    stacked = jax.vmap(lambda shift: CASES[case][0](likelihood.f + shift))(jnp.arange(3.0))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(stacked))
    values = jax.jit(jax.vmap(log_prob, (0, None)))(stacked, y)
    assert values.shape == (3, N)
    np.testing.assert_allclose(values[0], expected, rtol=1e-10)
    np.testing.assert_allclose(values[2], log_prob(CASES[case][0](likelihood.f + 2.0), y), rtol=1e-10)


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
        Softmax(f).log_prob(LABELS)
    with pytest.raises(ValueError, match="no random key"):
        RobustMax(f @ jnp.asarray(A)).log_prob(LABELS)
    assert RobustMax(f).sample(KEY, (2,)).shape == (2, N)


# -- plates and masks -------------------------------------------------------------------------------------------------


@every_kind_of_case
def test_in_a_plate_with_a_mask(case, kind):
    likelihood, y = build(case, kind, key=FAST_KEY)
    kept = np.array([True, False, True, True, False])
    spoilt = y.astype(float)
    spoilt[~kept] = np.nan if np.issubdtype(y.dtype, np.floating) else 9

    def model(mask=None, y=y):
        with numpyro.plate("data", 4 * N, subsample_size=N), handlers.mask(mask=True if mask is None else mask):
            return numpyro.sample("y", likelihood, obs=jnp.asarray(y))

    model = handlers.substitute(model, {"data": jnp.arange(N)})
    expected = log_prob(likelihood, y)
    total, trace = log_density(handlers.seed(model, KEY), (), {}, {})
    np.testing.assert_allclose(total, 4 * expected.sum(), rtol=1e-10)
    assert trace["y"]["fn"] is likelihood
    total, _ = log_density(handlers.seed(model, KEY), (), {"mask": jnp.asarray(kept), "y": spoilt}, {})
    np.testing.assert_allclose(total, 4 * expected[kept].sum(), rtol=1e-10)

    @jax.jit
    def gradient(likelihood, y):
        return jax.grad(lambda d: d.mask(jnp.asarray(kept)).log_prob(y).sum(), allow_int=True)(likelihood)

    gradient = gradient(likelihood, spoilt)
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
