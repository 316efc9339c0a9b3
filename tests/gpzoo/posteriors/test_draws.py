"""Joint draws: finite, with the right moments, where covariances are singular, as they are for smooth kernels."""

import itertools
import os
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro.infer import SVI, Predictive

from gpzoo import GaussianProcess, InducingPoints, InducingPosterior, draws
from gpzoo.errors import FactorisationError
from gpzoo.inference import GaussianProcessELBO, InducingGuide, NonFiniteError, Trained, fit
from gpzoo.inference.programs.finite import is_finite
from gpzoo.kernels import RBF, Matern32, Matern52, Periodic, Pointwise
from gpzoo.likelihoods import Expected, Gaussian
from gpzoo.linalg.factorise import root
from gpzoo.posteriors import Projection, forms
from tests.programs import KEY, positive, program_of, sine
from tests.reference import optimal_whitened
from tests.statistics import gaussian_p_value

KERNELS = {
    "rbf": lambda: RBF(0.7, 1.0),
    "matern32": lambda: Matern32(0.7, 1.0),
    "matern52": lambda: Matern52(0.7, 1.0),
    "periodic": lambda: Periodic(0.7, 1.0, period=2.0),
    "sum": lambda: RBF(0.7, 1.0) + 0.3 * Periodic(1.0, 1.0, period=1.0),
}
S = 4000
KEYS = random.split(KEY, S)


@jax.jit
def grams(kernel, Z, X):
    return kernel(Z), kernel(Z, X)


def fitted(kernel, num_inputs, num_inducing, dtype, *, whiten, diagonal):
    """The best ``q(u)`` for a sine under noise, at inputs among and between the data."""
    data = np.linspace(0, 3, 100)[:, None]
    Z, X = np.linspace(0, 3, num_inducing)[:, None], np.linspace(0, 3, num_inputs)[:, None]
    Kuu, Kuf = (np.asarray(K) for K in grams(kernel, Z, data))
    Kuu = Kuu + 1e-5 * np.eye(num_inducing)
    mean, covariance = optimal_whitened(Kuu, Kuf, np.sin(2 * data[:, 0]), 0.1)
    if not whiten:
        L = np.linalg.cholesky(Kuu)
        mean, covariance = L @ mean, L @ covariance @ L.T
    scale = np.sqrt(np.diagonal(covariance)) if diagonal else np.linalg.cholesky(covariance)
    Z, X, mean, scale = (jnp.asarray(x, dtype) for x in (Z, X, mean, scale))
    process = GaussianProcess(jax.tree.map(lambda x: jnp.asarray(x, dtype), kernel), X, jitter=1e-5)
    form = forms.Diagonal(scale) if diagonal else forms.Full(scale)
    return process, InducingPoints(Z), mean, form


@partial(jax.jit, static_argnames="whiten")
def given_u(process, inducing, mean, form, keys, *, whiten):
    """Joint draws of ``f``, each given its own draw of ``u``, what was left out of their covariance, and moments."""
    q = InducingPosterior(Projection(process, inducing, whiten=whiten), mean, form)

    def one(key):
        key_u, key_f = random.split(key)
        return q.given(q.draw_inducing(key_u)).sample(key_f)

    covariance = q.given(q.u_mean).moments()[1]
    values = jnp.linalg.eigvalsh(covariance)
    left_out = -jnp.sum(jnp.minimum(values, 0)) / jnp.sum(q.prior.variance)
    return jax.vmap(one)(keys), left_out, *q.moments()


def check(name, rows, M, dtype, whiten, diagonal, level):
    q = fitted(KERNELS[name](), rows, M, dtype, whiten=whiten, diagonal=diagonal)
    draws, left_out, mean, covariance = given_u(*q, KEYS, whiten=whiten)
    case = (name, rows, M, dtype, whiten, diagonal)
    assert draws.dtype == dtype and np.isfinite(draws).all(), case
    assert left_out < 1e-4, (case, float(left_out))
    assert gaussian_p_value(draws, mean, covariance) > level, case
    return float(left_out)


@pytest.mark.slow_but(name=["rbf"], dtype=[jnp.float32])
@pytest.mark.parametrize(
    "name, dtype", [(name, jnp.float32) for name in KERNELS] + [("rbf", jnp.float64), ("periodic", jnp.float64)]
)
def test_draws_given_u_are_finite_and_have_the_posteriors_moments(name, dtype):
    rows, M, whiten, diagonal = {"rbf": (100, 10, True, False), "periodic": (20, 20, True, True)}.get(
        name, (20, 20, name == "sum", name == "matern52")
    )
    check(name, rows, M, dtype, whiten, diagonal, 1e-4)


@pytest.mark.stress
@pytest.mark.skipif(not os.environ.get("GPZOO_STRESS"), reason="400 combinations; make stress runs them")
@pytest.mark.parametrize("name", KERNELS)
def test_draws_are_right_in_every_combination(name):
    cases = list(itertools.product((5, 10, 20, 100, 1000), (8, 40), (jnp.float32, jnp.float64), *[(True, False)] * 2))
    worst = max(check(name, *case, 1e-3 / (len(cases) * len(KERNELS))) for case in cases)
    print(f"{name}: {len(cases)} combinations, at most {worst:.1e} of the prior variance left out")


# -- the root that draws are made with -----------------------------------------------------------------------------


def low_rank(n=6, rank=2):
    B = np.random.default_rng(0).standard_normal((n, rank))
    return B @ B.T


COVARIANCES = {
    "zero": np.zeros((6, 6)),
    "repeated": 2.0 * np.eye(6),
    "singular": low_rank(),
    "not quite definite": low_rank() - 1e-12 * np.eye(6),
    "positive definite": low_rank() + np.eye(6),
}


@jax.jit
def roots(K):
    return root(K, jitter=0.0), root(jnp.stack([K, K]), jitter=0.0)


@pytest.mark.parametrize("name", COVARIANCES)
def test_root_of_a_covariance(name):
    K = jnp.asarray(COVARIANCES[name])
    R, stacked = (np.asarray(x) for x in roots(K))
    np.testing.assert_allclose(R @ R.T, K, atol=1e-10)
    np.testing.assert_allclose(stacked[1], R, atol=1e-10)


C = np.arange(1.0, 7.0)


@jax.jit
def slopes(scale, K):
    """The derivative of ``(c . f)^2`` for ``f = R e``, alone and mapped over matrices."""
    slope = jax.grad(lambda scale, K: jnp.sum(jnp.square(jnp.asarray(C) @ root(scale * K, jitter=0.0))))
    return slope(scale, K), jax.vmap(slope)(jnp.stack([scale, scale]), jnp.stack([K, K]))[1]


@pytest.mark.parametrize("name", COVARIANCES)
def test_gradients_through_a_draw_are_those_of_its_covariance(name):
    # E[(c . f)^2] = c' K c for f = R e, whatever R is, so its derivative does not depend on which root was taken.
    K = COVARIANCES[name]
    np.testing.assert_allclose(slopes(1.5, jnp.asarray(K)), np.full(2, C @ K @ C), atol=1e-8)


def test_gradients_of_a_singular_root_are_finite_in_every_direction():
    entries = jax.jit(jax.jacrev(lambda K: root(K, jitter=0.0)))
    for K in COVARIANCES.values():
        assert np.isfinite(entries(jnp.asarray(K))).all()
        assert np.isfinite(entries(K.astype(np.float32))).all()


def test_gradients_of_a_symmetric_root_are_those_of_finite_differences():
    direction = np.outer(COVARIANCES["singular"][0], COVARIANCES["singular"][0])  # within the range of K
    along = lambda t: root(jnp.asarray(COVARIANCES["singular"]) + t * jnp.asarray(direction), jitter=0.0)  # noqa: E731
    found, more, less = jax.jit(lambda t: (jax.jacfwd(along)(0.0), along(t), along(-t)))(1e-3)
    np.testing.assert_allclose(found, (np.asarray(more) - np.asarray(less)) / 2e-3, atol=1e-4)


def test_of_rounding_errors_the_variances_are_kept():
    """Correlations that are rounding errors of the minuend have no eigenvalues worth the time."""
    noise = 1e-6 * np.random.default_rng(0).standard_normal((5, 5)).astype(np.float32)
    K = jnp.asarray(1e-6 * np.eye(5, dtype=np.float32) + noise + noise.T)
    of = lambda K: root(K, jitter=0.0, out_of=jnp.ones(5, jnp.float32))  # noqa: E731
    R, slopes = jax.jit(of)(K), jax.jit(jax.jacfwd(of))(K)
    np.testing.assert_allclose(R, np.diag(np.sqrt(np.maximum(np.diag(K), 0))))
    kept = int(np.argmax(np.diag(K)))
    np.testing.assert_allclose(slopes[kept, kept, kept, kept], 1 / (2 * R[kept, kept]), rtol=1e-5)
    assert np.isfinite(slopes).all() and np.abs(np.asarray(jax.jit(of)(1e3 * K))[0, 1:]).max() > 1e-6


def test_draws_of_zero_variance_are_the_mean():
    process = GaussianProcess(RBF(1e-12, 1.0), np.linspace(0, 1, 5)[:, None], mean=np.arange(5.0), jitter=0.0)
    np.testing.assert_allclose(jax.jit(process.sample)(KEY), np.arange(5.0), atol=1e-5)


class Indefinite(RBF):
    """No kernel at all: twice the covariance between different inputs."""

    def gram(self, X):
        K = super().gram(X)
        return 2 * K - jnp.diag(jnp.diagonal(K))


def test_a_kernel_that_is_none_is_refused():
    process = GaussianProcess(Indefinite(1.0, 1.0), np.linspace(0, 1, 5)[:, None])
    with pytest.raises(
        FactorisationError, match=r"GaussianProcess at 5 inputs \(5 x 5, float64\) has negative.*kernel"
    ):
        process.sample(KEY)
    distance = Pointwise(lambda x, z: jnp.sum(jnp.abs(x - z)))
    with pytest.raises(FactorisationError, match=r"negative eigenvalues.*: 0\.5 where its variance is 0\. Check"):
        GaussianProcess(distance, np.array([[0.0], [1.0]])).sample(KEY)


def test_densities_of_singular_covariances_are_minus_infinity_under_jit():
    X = jnp.ones((4, 1))

    def density(lengthscale, value):
        return GaussianProcess(RBF(1.0, lengthscale), X, jitter=0.0).log_prob(value)

    value, slopes = jax.jit(jax.value_and_grad(density, argnums=(0, 1)))(1.0, jnp.arange(4.0))
    assert value == -np.inf and all(np.isfinite(slope).all() for slope in slopes)
    with pytest.raises(FactorisationError, match="GaussianProcess at 4 inputs"):
        density(1.0, jnp.arange(4.0))


def test_gradients_of_densities_are_those_of_finite_differences():
    X, value = np.linspace(0, 1, 4)[:, None], jnp.array([0.3, -1.0, 0.5, 0.1])
    density = jax.jit(jax.value_and_grad(lambda s: GaussianProcess(RBF(s, 0.3), X, jitter=1e-3).log_prob(value)))
    (_, found), (more, _), (less, _) = (density(s) for s in (1.3, 1.3 + 1e-5, 1.3 - 1e-5))
    np.testing.assert_allclose(found, (float(more) - float(less)) / 2e-5, rtol=1e-6)


# -- draws of a program, in float32 ------------------------------------------------------------------------------------


def smooth(X, y=None):
    f = numpyro.sample("f", GaussianProcess(RBF(positive("variance", jnp.float32(1.0)), jnp.float32(1.0)), X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, jnp.float32(0.1)), obs=y)


@pytest.mark.slow
def test_numpyros_predictive_gives_finite_draws(standard_promotion):
    X, y = sine(30, dtype=np.float32)
    guide = InducingGuide(smooth, InducingPoints(X[::3]))
    params = guide.init_params(KEY, X, y)

    @jax.jit
    def drawn(params):
        of_guide = Predictive(guide, params=params, num_samples=20, parallel=True)(KEY, X)
        return of_guide["f"], Predictive(smooth, guide=guide, params=params, num_samples=20, parallel=True)(KEY, X)["y"]

    f, y = drawn(params)
    assert f.dtype == jnp.float32 and np.isfinite(f).all() and np.isfinite(y).all()


@pytest.mark.slow
def test_joint_draws_train_in_float32(standard_promotion):
    X, y = sine(30, dtype=np.float32)
    guide = InducingGuide(smooth, InducingPoints(X[::3]), joint={"f"})
    result = fit(KEY, SVI(smooth, guide, optax.adam(0.05), GaussianProcessELBO()), 60, X, y, progress=False)
    assert result.losses.shape == (60,) and result.losses[-10:].mean() < 0.5 * result.losses[:10].mean()


# -- nothing leaves an entry point as NaN --------------------------------------------------------------------------


unjittered = program_of(lambda f: Gaussian(f, 0.1), jitter=0.0)


@pytest.fixture(scope="module")
def coincident():
    """A guide whose inducing inputs have come to coincide: Kuu has no factor."""
    X, y = sine(6)
    guide = InducingGuide(unjittered, InducingPoints(X[:2]))
    params = guide.init_params(KEY, X, y)
    return guide, params | {"f_inducing": jnp.asarray(np.repeat(X[:1], 2, axis=0))}, X, y


ENTRY_POINTS = {
    "predict": lambda guide, params, X, y: Trained(unjittered, guide, params).predict(KEY, X),
    "draw_functions": lambda guide, params, X, y: Trained(guide.model, guide, params).functions(
        KEY, X, num_draws=2, num_features=8
    ),
    "to_arviz": lambda guide, params, X, y: Trained(unjittered, guide, params).to_arviz(KEY, X, y, num_draws=2),
    "posterior": lambda guide, params, X, y: Trained(guide.model, guide, params).posterior(KEY, X, y),
}


@pytest.mark.slow_but(name=["predict", "posterior"])
@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_a_covariance_that_does_not_factorise_is_named(name, coincident):
    with pytest.raises(FactorisationError, match=r"Kuu of site 'f' failed \(2 x 2, float64.*distinct inducing inputs"):
        ENTRY_POINTS[name](*coincident)


overflowing = program_of(lambda f: Expected(lambda f: dist.Normal(jnp.exp(1e3 * f), 1.0), f))


@pytest.mark.slow
def test_a_likelihood_that_overflows_is_named():
    X, y = sine(6)
    guide = InducingGuide(overflowing, InducingPoints(X[:2]))
    params = guide.init_params(KEY, X, y)
    params["f_mean"] = jnp.array([5.0, -9.0])
    with pytest.raises(NonFiniteError, match=r"entries of mean of site 'y' are not finite \(float64.*overflows there"):
        Trained(overflowing, guide, params).predict(KEY, X)
    with pytest.raises(NonFiniteError, match="posterior_predictive draws of site 'y' are not finite"):
        Trained(overflowing, guide, params).to_arviz(KEY, X, y, num_draws=2)


ROWS = np.array([4.0, 1.0, 4.0, 1.5, 0.5, 4.0])


@pytest.mark.slow
@pytest.mark.parametrize("asked", [{}, {"keep_draws": True}])
@pytest.mark.parametrize(
    "law, means, variances",
    [
        (lambda f: dist.Cauchy(f, 0.1), 0, 0),
        (lambda f: dist.StudentT(1.0, f, 0.1), 0, 0),
        (lambda f: dist.StudentT(0.6, f, 0.1), 0, 0),
        (lambda f: dist.StudentT(1.5, f, 0.1), 6, 0),
        (lambda f: dist.StudentT(ROWS, f, 0.1), 4, 3),
    ],
)
@pytest.mark.parametrize("drawn", [False, True])
def test_moments_that_a_distribution_does_not_have_are_left_out(law, means, variances, drawn, asked):
    def heavy(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", law(draws(f)) if drawn else Expected(law, f), obs=y)

    X, y = sine(6)
    guide = InducingGuide(heavy, InducingPoints(X[:2]))
    start = Trained(heavy, guide, guide.init_params(KEY, X, y))
    found = start.predict(KEY, X, test_data={"y": y}, quantiles=(0.3, 0.5), num_draws=30, **asked)
    for moment, finite in ((found["y"].mean, means), (found["y"].variance, variances)):
        assert moment is None if not finite else np.isfinite(moment).sum() == finite
    assert np.isfinite(found["y"].log_density).all() and np.isfinite(found["f"].mean).all()
    assert (found["y"].draws is None) == (not asked)
    assert moment is None or np.isfinite(found["y"].quantiles).all()


@pytest.mark.slow
def test_numbers_whose_sum_overflows_are_finite():
    assert is_finite(np.full(4, 3e38, np.float32)) and is_finite(np.array([1, 2]))
    assert not is_finite(np.array([1.0, np.nan])) and not is_finite(np.array([np.inf, -np.inf]))
