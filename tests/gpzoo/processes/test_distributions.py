"""GP sites as distributions: priors, inducing posteriors, their KL and the bound, against dense linear algebra."""

import os
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import pytest
import scipy.linalg
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from jax import random
from jax.tree_util import Partial
from numpyro import handlers
from numpyro.distributions import kl_divergence
from numpyro.infer import SVI

from gpzoo.errors import FactorisationError
from gpzoo.inducing.initialisers import random_subset
from gpzoo.inducing.variables import InducingPoints
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
from gpzoo.inference.programs.gp_sites import draw_per_input
from gpzoo.kernels import RBF, White
from gpzoo.likelihoods import Gaussian
from gpzoo.posteriors import InducingPosterior, Projection, forms
from gpzoo.processes.process import GaussianProcess
from tests.programs import adam
from tests.reference import collapsed_bound, conditional, divergence, optimal_whitened, pairs, rbf
from tests.statistics import assert_gaussian_moments

KEY = random.key(0)
N, M, D = 5, 3, 2
TINY = 1e-10


def numbers(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


X = numbers(N, 2)
Z = numbers(M, 2, seed=1)
SHARED = RBF(1.3, 0.8)
EACH = RBF(jnp.array([1.3, 0.4]), jnp.array([0.8, 2.0]))


def gram(kernel, x, z):
    """The squared-exponential covariance, per output where the kernel or the inputs have an axis for that."""
    variance, lengthscale = np.asarray(kernel.variance), np.asarray(kernel.lengthscale)
    return rbf(*pairs(x, z), variance[..., None, None], lengthscale[..., None, None, None])


def dense(kernel, x):
    """Gram matrices ``[D, N, N]`` with the jitter that a site was given, one kernel or one input at a time."""
    return gram(kernel, x, x).reshape(-1, N, N) + TINY * np.eye(N)


# name -> kernel, X, num_outputs
SITES = {
    "one function": (SHARED, X, None),
    "one kernel": (SHARED, X, D),
    "one kernel per output": (EACH, X, None),
    "one input per output": (SHARED, numbers(D, N, 2, seed=2), None),
}


@cache
def described(name):
    """A site with a mean, values, and by one program: their densities, the site's moments and 20,000 draws."""
    kernel, x, num_outputs = SITES[name]
    shape = (N,) if name == "one function" else (N, D)
    process = GaussianProcess(kernel, x, numbers(*shape, seed=3), num_outputs=num_outputs, jitter=TINY)
    assert process.event_shape == shape and process.batch_shape == ()

    @jax.jit
    def describe(p, v):
        return p.log_prob(v), p.log_prob(v[0]), p.mean, p.variance, p.sample(KEY, (100, 200))

    value = numbers(3, *shape, seed=4)
    return (
        np.broadcast_to(dense(kernel, x), (len(value[0].T) if len(shape) == 2 else 1, N, N)),
        value,
        *(np.asarray(x) for x in describe(process, value)),
    )


@pytest.mark.parametrize("name", SITES)
def test_log_prob_and_moments_against_scipy(name):
    covariance, value, scored, first, mean, variance, _ = described(name)
    columns = len(covariance)
    means, values = mean.reshape(N, columns), np.asarray(value).reshape(3, N, columns)
    expected = sum(
        scipy.stats.multivariate_normal(means[:, d], covariance[d]).logpdf(values[..., d]) for d in range(columns)
    )
    np.testing.assert_array_equal(mean, numbers(*mean.shape, seed=3))
    np.testing.assert_allclose(scored, expected, rtol=1e-8)
    np.testing.assert_allclose(variance, np.diagonal(covariance, axis1=1, axis2=2).T.reshape(variance.shape), rtol=1e-8)
    np.testing.assert_allclose(first, expected[0], rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", SITES)
def test_the_derivative_of_a_density_is_that_of_its_formula(name):
    """By hyperparameters, mean and values, of several values at once; from one factorisation and one solve."""
    kernel, x, num_outputs = SITES[name]
    shape = (N,) if name == "one function" else (N, D)
    values, weights = numbers(3, *shape, seed=6), jnp.array([1.0, -0.5, 2.0])

    def total(scale, mean, values):
        own = RBF(scale * kernel.variance, scale * kernel.lengthscale)
        return weights @ GaussianProcess(own, x, mean, num_outputs=num_outputs, jitter=TINY).log_prob(values)

    def by_formula(scale, mean, values):
        K = jnp.atleast_3d(RBF(scale * kernel.variance, scale * kernel.lengthscale)(x).T).T + TINY * jnp.eye(N)
        rest = (values - mean).reshape(3, N, -1)
        K = jnp.broadcast_to(K, (rest.shape[-1], N, N))
        square = jnp.einsum("snd,dnm,smd->s", rest, jnp.linalg.inv(K), rest)
        return -weights @ (square + jnp.linalg.slogdet(2 * jnp.pi * K)[1].sum()) / 2

    given = jnp.array(1.1), numbers(*shape, seed=3), values
    slopes = jax.jit(jax.grad(total, (0, 1, 2)))
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-7), slopes(*given), jax.grad(by_formula, (0, 1, 2))(*given)
    )
    calls = slopes.lower(*given).as_text()
    assert calls.count("@lapack_dpotrf") == 1 and calls.count("@lapack_dtrsm") == 1


@pytest.mark.parametrize("name", SITES)
def test_draws_have_the_kernels_covariance(name):
    covariance, *_, mean, _, draws = described(name)
    assert draws.shape == (100, 200, *mean.shape)
    columns = len(covariance)
    expected = np.zeros((N, columns, N, columns))  # outputs are independent of each other
    for d in range(columns):
        expected[:, d, :, d] = covariance[d]
    expected = expected.reshape(N * columns, N * columns)
    assert_gaussian_moments(draws.reshape(20_000, -1), mean.ravel(), expected)


def test_a_mean_may_broadcast_and_precision_follows_X():
    process = GaussianProcess(RBF(1.0, 1.0), np.asarray(X, np.float32), np.float32(2.0), num_outputs=D)
    value = jax.eval_shape(process.sample, KEY)
    mean, none = jax.jit(lambda a, b: (a.mean, b.mean))(process, GaussianProcess(SHARED, X))
    assert value.dtype == mean.dtype == jax.eval_shape(process.log_prob, value).dtype == jnp.float32
    np.testing.assert_array_equal(mean, np.full((N, D), 2.0))
    np.testing.assert_array_equal(none, np.zeros(N))


def prior(**kwargs):
    return GaussianProcess(SHARED, X, numbers(N, D, seed=6), num_outputs=D, jitter=0.1, **kwargs)


@cache
def keys_of_draws(number):
    return random.split(KEY, number)


def posterior(
    kernel=SHARED, outputs=D, *, diagonal=False, seed=7, x=X, z=Z, jitter=1e-8, mean=None, whiten=True, **options
):
    """An inducing posterior with random numbers in it."""
    shape = () if outputs is None else (outputs,)
    num = None if kernel.batched or x.ndim == 3 else outputs
    if diagonal:
        form = forms.Diagonal(np.exp(numbers(M, *shape, seed=seed + 1)))
    else:
        form = forms.Full(numbers(*shape, M, M, seed=seed + 1))
    process = GaussianProcess(kernel, x, mean, num_outputs=num, jitter=jitter)
    return q_of(process, z, numbers(M, *shape, seed=seed), form, whiten=whiten, **options)


def eager_q_of(process, z, mean, form, *, whiten=True, site="f", value=None):
    return InducingPosterior(Projection(process, InducingPoints(z), whiten=whiten, site=site), mean, form, value=value)


@partial(jax.jit, static_argnames=("whiten", "site", "of"))
def q_of(*args, of=None, at=None, **options):
    """An inducing posterior, and what the same program shall compute from it."""
    q = eager_q_of(*args, **options)
    return q if of is None else (q, of(q, at))


def test_a_round_trip_under_jit_and_vmap_keeps_every_array():
    before = prior()
    value = Partial(draw_per_input, rows=np.arange(N))
    u_mean, form = numbers(M, D), forms.Full(numbers(D, M, M))
    q = q_of(before, Z, u_mean, form, site="g", whiten=False, value=value)

    def check(after, pick):
        process = after.prior
        for a, b in [
            (process.kernel, before.kernel),
            (process.X, before.X),
            (process.loc, before.loc),
            (process.jitter, before.jitter),
            (after.inducing, InducingPoints(Z)),
            (after.u_mean, u_mean),
            (after.form, form),
            (after.conditional.L, q.conditional.L),
            (after.value, value),
        ]:
            assert jax.tree.structure(a) == jax.tree.structure(b) and jax.tree.leaves(b)
            jax.tree.map(lambda x, y: np.testing.assert_array_equal(pick(x), y), a, b)
        assert (after.site, after.whiten, after.num_outputs) == ("g", False, D)

    stacked = jax.tree.map(lambda x: np.stack([x, x]), q)
    at = numbers(N, D, seed=9)

    @jax.jit
    def passed(q, stacked):
        def scored(q):
            return q.prior.log_prob(at), q.as_joint().log_prob(at)

        return q, jax.vmap(lambda q: q)(stacked), jax.vmap(scored)(stacked), scored(q)

    one, two, many, alone = passed(q, stacked)
    check(one, lambda x: x)
    check(two, lambda x: x[1])
    # Under vmap they compute what each alone computes.
    for a, b in zip(many, alone, strict=True):
        np.testing.assert_allclose(a, [b, b], rtol=1e-10)


# -- what is refused -----------------------------------------------------------------------------------------------


def test_a_site_stands_outside_plates_and_masks():
    for site in (prior(), posterior()):
        assert site.expand(()) is site and site.mask(True) is site
        with pytest.raises(ValueError, match=r"cannot be inside a plate or be expanded to \(3,\).*num_outputs"):
            site.expand((3,))
        with pytest.raises(ValueError, match=r"cannot be masked.*likelihood site only"):
            site.mask(jnp.ones(N, bool))
    with pytest.raises(ValueError, match="cannot be inside a plate"), handlers.seed(rng_seed=0), numpyro.plate("n", 3):
        numpyro.sample("f", prior())


def with_entries(index, value):
    x = np.array(X)
    x[index] = value
    return x


NAN = with_entries((3, 1), np.nan)
BAD = {
    "NaN": ((SHARED, NAN), {}, r"^X has 1 entries that are not finite, the first at index \(3, 1\)"),
    "infinity": ((SHARED, with_entries(0, np.inf)), {}, r"^X has 2 entries .* index \(0, 0\)"),
    "empty": ((SHARED, X[:0]), {}, r"^X is empty: its shape is \(0, 2\)"),
    "empty rows per output": ((SHARED, jnp.zeros((2, 0, 2))), {}, "^X is empty"),
    "rank": ((SHARED, X[:, 0]), {}, r"\[N, features\].*got X of shape \(5,\).*X\[:, None\]"),
    "mean": ((SHARED, X, jnp.zeros(4)), {}, r"mean has shape \(4,\), which does not broadcast .*\(5,\)"),
    "wide mean": ((SHARED, X, jnp.zeros((N, 1))), {}, r"mean has shape \(5, 1\), which does not broadcast"),
    "NaN mean": ((SHARED, X, jnp.full(N, jnp.nan)), {}, "mean has 5 entries that are not finite"),
    "outputs": ((EACH, X), {"num_outputs": 3}, "num_outputs is 3, but the kernel or X carries 2"),
    "outputs of X": ((SHARED, jnp.zeros((2, N, 2))), {"num_outputs": 3}, "num_outputs is 3, .* 2 outputs"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name):
    args, kwargs, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        GaussianProcess(*args, **kwargs)


@pytest.mark.parametrize("num_outputs", [0, -1, 1.5, True])
def test_a_number_of_outputs_is_a_count(num_outputs):
    with pytest.raises(ValueError, match="num_outputs must be"):
        GaussianProcess(SHARED, X, num_outputs=num_outputs)


def test_a_kernel_is_a_kernel():
    with pytest.raises(TypeError, match="kernel must be a gpzoo kernel, got ndarray"):
        GaussianProcess(np.eye(N), X)


def test_q_of_the_wrong_shape_is_refused():
    process = GaussianProcess(SHARED, X, num_outputs=D)
    with pytest.raises(ValueError, match=r"mean of q\(u\) of site 'g' has shape \(3,\), expected \(3, 2\)"):
        q_of(process, Z, jnp.zeros(M), forms.Full(jnp.zeros((D, M, M))), site="g")
    with pytest.raises(ValueError, match=r"scale of q\(u\) of site 'g' has shape \(3, 3\), expected \(2, 3, 3\)"):
        q_of(process, Z, jnp.zeros((M, D)), forms.Full(jnp.eye(M)), site="g")


def test_a_factorisation_that_fails_names_the_site():
    process = GaussianProcess(SHARED, X, jitter=0.0)
    twice = np.concatenate([Z, Z])
    with pytest.raises(FactorisationError, match=r"Kuu of site 'g' failed \(6 x 6.*distinct inducing inputs"):
        eager_q_of(process, twice, jnp.zeros(2 * M), forms.Full(jnp.eye(2 * M)), site="g")


# -- the inducing posterior ----------------------------------------------------------------------------------------


def by_hand(q):
    """Mean and covariance of ``f``, the same of ``u``, and ``Kuu``, in the textbook's form; ``D`` last in means."""
    kernel, x, z = q.prior.kernel, q.prior.X, q.inducing.Z
    outputs = q.num_outputs or 1

    grams = gram(kernel, z, z), gram(kernel, z, x), gram(kernel, x, x)
    Kuu, Kuf, Kff = (np.broadcast_to(K, (outputs, *K.shape[-2:])) for K in grams)
    Kuu = Kuu + q.jitter * np.eye(M)
    m = np.asarray(q.u_mean).reshape(M, outputs)
    scale = np.asarray(q.form.scale)
    if isinstance(q.form, forms.Diagonal):
        S = np.stack([np.diag(column**2) for column in scale.reshape(M, outputs).T])
    else:
        S = np.tril(scale.reshape(outputs, M, M))
        S = S @ S.transpose(0, 2, 1)
    if q.whiten:
        L = np.linalg.cholesky(Kuu)
        m, S = np.einsum("dij,jd->id", L, m), L @ S @ L.transpose(0, 2, 1)
    mean, covariance = conditional(Kuu, Kuf, Kff, m.T, S)
    return mean.T + (0 if q.prior.loc is None else np.asarray(q.prior.loc).reshape(N, -1)), covariance, m, S, Kuu


POSTERIORS = {
    "one function": {"outputs": None},
    "one kernel": {"mean": numbers(N, D, seed=8)},
    "one kernel per output": {"kernel": EACH},
    "one input and Z per output": {"x": numbers(D, N, 2, seed=2), "z": numbers(D, M, 2, seed=3)},
}


def everything(q, at):
    density = () if at is None else (q.log_prob(at),)
    return q.moments(), q.marginals(), q.inducing_moments(), kl_divergence(q, q.prior), q.mean, q.variance, *density


# Every pair of a kind of posterior, a parametrisation and a form.
PAIRS = [
    (name, whiten, whiten == (name in ("one function", "one input and Z per output")))
    for name in POSTERIORS
    for whiten in (False, True)
]


@pytest.mark.parametrize("name, whiten, diagonal", PAIRS)
def test_moments_and_kl_against_dense_algebra(name, whiten, diagonal):
    q, found = posterior(**POSTERIORS[name], whiten=whiten, diagonal=diagonal, of=everything)
    assert isinstance(q.form, forms.Diagonal) == diagonal
    (mean, covariance), (m1, v1), (u_mean, u_covariance), kl, m2, v2 = found
    f, cov, u, S, Kuu = by_hand(q)
    tolerance = {"rtol": 1e-6, "atol": 1e-8}
    np.testing.assert_allclose(mean, f.reshape(mean.shape), **tolerance)
    np.testing.assert_allclose(covariance, cov.reshape(covariance.shape), **tolerance)
    np.testing.assert_allclose(v1, np.diagonal(cov, axis1=1, axis2=2).T.reshape(v1.shape), **tolerance)
    np.testing.assert_allclose(m1, mean, rtol=1e-12)
    np.testing.assert_allclose((m2, v2), (m1, v1), rtol=1e-12)
    np.testing.assert_allclose(u_mean, u.reshape(u_mean.shape), **tolerance)
    np.testing.assert_allclose(u_covariance, S.reshape(u_covariance.shape), **tolerance)
    np.testing.assert_allclose(kl, divergence(u.T, S, Kuu), rtol=1e-6)


@pytest.mark.parametrize("name", ["one kernel", "one kernel per output"])
def test_whitened_is_u_equal_to_L_v(name):
    v, one = posterior(**POSTERIORS[name], of=everything)
    L = np.broadcast_to(v.conditional.L, (D, M, M))
    u_mean = np.einsum("dij,jd->id", L, v.u_mean)
    form = forms.Full(jnp.asarray(L @ np.tril(v.form.scale)))
    _, two = q_of(v.prior, v.inducing.Z, jnp.asarray(u_mean), form, whiten=False, of=everything)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10), one, two)


def test_one_output_is_a_column_of_one():
    value = numbers(N, seed=3)
    single, one = posterior(outputs=None, of=everything, at=value)
    process = GaussianProcess(SHARED, X, num_outputs=1, jitter=1e-8)
    form = forms.Full(np.asarray(single.form.scale)[None])
    _, two = q_of(process, Z, np.asarray(single.u_mean)[:, None], form, of=everything, at=np.asarray(value)[:, None])
    (m1, c1), (a1, v1), _, kl1, *_, score1 = one
    (m2, c2), (a2, v2), _, kl2, *_, score2 = jax.tree.map(np.asarray, two)
    for one, two in ((m1, m2[:, 0]), (c1, c2[0]), (a1, a2[:, 0]), (v1, v2[:, 0]), (kl1, kl2), (score1, score2)):
        np.testing.assert_allclose(one, two, rtol=1e-12)


def test_one_kernel_per_output_is_so_many_separate_processes():
    value = np.asarray(numbers(N, D, seed=3))
    q, found = posterior(EACH, of=everything, at=value)
    (means, covariances), (_, variances), _, kl, *_, score = jax.tree.map(np.asarray, found)
    variance, lengthscale, u_mean, scale = (
        np.asarray(a) for a in (EACH.variance, EACH.lengthscale, q.u_mean, q.form.scale)
    )
    kls, scores = [], []
    for d in range(D):
        process = GaussianProcess(RBF(float(variance[d]), float(lengthscale[d])), X, jitter=1e-8)
        _, alone = q_of(process, Z, u_mean[:, d], forms.Full(scale[d]), of=everything, at=value[:, d])
        (m, c), (_, v), _, k, *_, s = alone
        kls.append(k)
        scores.append(s)
        for a, b in ((means[:, d], m), (covariances[d], c), (variances[:, d], v)):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose((kl, score), (sum(map(float, kls)), sum(map(float, scores))), rtol=1e-10)


@pytest.mark.slow_but(whiten=[True])
@pytest.mark.parametrize("diagonal", [False, True], ids=["full", "diagonal"])
@pytest.mark.parametrize("whiten", [False, True], ids=["u", "v"])
def test_draws_of_u_and_of_f_given_u_make_up_q(whiten, diagonal):
    # f = E[f | u] + (a draw of zero mean): the law of total covariance over draws of u.
    S = 20_000

    def in_two_steps(q, keys):
        def conditional(key):
            given = q.given(q.draw_inducing(key))
            return given.inducing_moments(), given.moments()

        return jax.vmap(conditional)(keys), q.inducing_moments(), q.moments()

    _, found = posterior(whiten=whiten, diagonal=diagonal, of=in_two_steps, at=keys_of_draws(S))
    ((u, spread), (mean, covariance)), (u_mean, u_covariance), (f_mean, f_covariance) = jax.tree.map(np.asarray, found)
    np.testing.assert_array_equal(spread, 0)  # given u, u is known
    for d in range(D):
        for draws, centre, expected, rest in (
            (u, u_mean, u_covariance, 0.0),
            (mean, f_mean, f_covariance, np.asarray(covariance[0, d])),
        ):
            estimate = np.cov(np.asarray(draws)[..., d].T) + rest
            scale = np.sqrt(np.outer(np.diagonal(expected[d]), np.diagonal(expected[d])))
            assert np.abs((estimate - expected[d]) / scale).max() < 5 * np.sqrt(2 / S)
            error = np.asarray(draws)[..., d].mean(0) - centre[:, d]
            assert np.abs(error / np.sqrt(np.diagonal(expected[d]))).max() < 5 / np.sqrt(S)


def test_variance_stays_positive_where_u_fixes_f():
    process, u = GaussianProcess(SHARED, X), numbers(N)

    @jax.jit
    def conditioned(u):
        q = eager_q_of(process, X, jnp.zeros(N), forms.Diagonal(jnp.zeros(N)), whiten=False)
        deviations = jax.grad(lambda u: jnp.sum(jnp.sqrt(q.given(u).marginals()[1])))
        return q.given(u).marginals(), q.given(u).sample(KEY), deviations(u)

    (mean, variance), draw, slope = (jax.tree.map(np.asarray, x) for x in conditioned(u))
    np.testing.assert_allclose(mean, u, atol=1e-4)
    assert (variance > 0).all() and (variance < 1e-5).all()
    assert np.isfinite(draw).all()
    assert np.isfinite(slope).all()


@pytest.mark.slow
def test_rounding_takes_no_variance_below_zero():
    """In float32 with little jitter, between inducing points that lie close."""
    at = jnp.linspace(0, 1, 60, dtype=jnp.float32)[:, None]
    prior, u = GaussianProcess(RBF(1.0, 0.3), at, jitter=1e-6), InducingPoints(at[::6])
    conditional = Projection(prior, u)
    A, _ = conditional._projections(at)
    assert (1 - jnp.sum(A * A, axis=0)).min() < 0
    q = InducingPosterior(conditional, jnp.zeros(10, jnp.float32), forms.Diagonal(jnp.full(10, 1e-6, jnp.float32)))
    assert (q.variance > 0).all() and (q.marginal_parts()[2] > 0).all()


def test_a_kl_needs_the_same_shape():
    with pytest.raises(ValueError, match=r"'f' has shape \(5, 2\) in the guide and \(5,\) in the model"):
        kl_divergence(posterior(), GaussianProcess(SHARED, X))


def test_values_are_what_was_asked_for():
    q = posterior()
    draw = InducingPosterior(q.conditional, q.u_mean, q.form, value=Partial(draw_per_input))
    with pytest.raises(ValueError, match="vmap over keys"):
        draw.sample(KEY, (3,))
    with pytest.raises(TypeError, match="no joint log_prob"):
        draw.log_prob(jnp.zeros((N, D)))
    joint = draw.as_joint()

    @jax.jit
    def drawn(draw, keys):
        return jax.vmap(draw.sample)(keys), draw.marginals()

    draws, (_, variance) = (jax.tree.map(np.asarray, x) for x in drawn(draw, keys_of_draws(20_000)))
    covariance = np.cov(draws[:, :, 0].T)
    scale = np.sqrt(np.outer(variance[:, 0], variance[:, 0]))
    expected = np.diag(variance[:, 0])  # independent over inputs
    assert np.abs((covariance - expected) / scale).max() < 5 * np.sqrt(2 / 20_000)
    assert joint.value is None and jax.eval_shape(joint.log_prob, jnp.zeros((N, D))).shape == ()


# -- the bound -----------------------------------------------------------------------------------------------------

NOISE = 0.1


def program(x, y):
    kernel = RBF(numpyro.param("variance", jnp.array(1.3)), numpyro.param("lengthscale", jnp.array(0.8)))
    f = numpyro.sample("f", GaussianProcess(kernel, x, jitter=TINY))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", Gaussian(f, numpyro.param("noise", jnp.array(NOISE))), obs=y)


def make_bound(x, y, z):
    """The bound as a compiled function of the parameters, and the parameters at the start."""
    guide = InducingGuide(program, InducingPoints(z))
    objective = GaussianProcessELBO()
    params = guide.init_params(KEY, x, y)
    return jax.jit(lambda params: -objective.loss(KEY, params, program, guide, x, y)), params


def optimal_q(x, y, z, kernel=SHARED, noise=NOISE, jitter=TINY):
    """Titsias' optimal ``q(v)`` as mean and Cholesky factor, and his collapsed bound."""
    Kuu, Kuf, y = gram(kernel, z, z) + jitter * np.eye(len(z)), gram(kernel, z, x), np.asarray(y)
    mean, covariance = optimal_whitened(Kuu, Kuf, y, noise)
    return mean, np.linalg.cholesky(covariance), collapsed_bound(Kuu, Kuf, float(kernel.variance), y, noise)


@pytest.fixture(scope="module")
def sparse():
    y = numbers(N, seed=11)
    return *make_bound(X, y, Z), optimal_q(X, y, Z)


def test_bound_is_the_evidence_at_its_optimum(sparse):
    bound, params, (m, S, collapsed) = sparse
    y = numbers(N, seed=11)
    evidence = scipy.stats.multivariate_normal(np.zeros(N), dense(SHARED, X)[0] + NOISE * np.eye(N)).logpdf(y)
    # Away from the data it is the collapsed bound, and less than the evidence.
    np.testing.assert_allclose(bound(params | {"f_mean": m, "f_scale": S}), collapsed, rtol=1e-8)
    assert collapsed < evidence - 1e-3
    m, S, collapsed = optimal_q(X, y, X)
    best = params | {"f_inducing": X, "f_mean": m, "f_scale": S}
    np.testing.assert_allclose((bound(best), collapsed), evidence, rtol=1e-6)


@given(st.integers(0, 2**31), st.floats(1e-3, 3.0))
def test_bound_is_never_above_its_optimum(sparse, seed, size):
    bound, params, (m, S, collapsed) = sparse
    rng = np.random.default_rng(seed)
    q = {"f_mean": m + size * rng.standard_normal(M), "f_scale": S + size * np.tril(rng.standard_normal((M, M)))}
    assert bound(params | {k: jnp.asarray(v) for k, v in q.items()}) < collapsed


def test_gradient_of_the_bound_against_differences(sparse):
    bound, params, _ = sparse
    assert set(params) == {"variance", "lengthscale", "noise", "f_inducing", "f_mean", "f_scale"}
    rng = np.random.default_rng(0)
    params = {name: np.asarray(value) for name, value in params.items()}
    params |= {"f_mean": numbers(M, seed=12), "f_scale": np.eye(M) + 0.3 * np.tril(numbers(M, M, seed=13))}
    params = {name: np.asarray(value) for name, value in params.items()}
    gradients = jax.jit(jax.grad(bound))(params)
    for name, value in params.items():
        assert np.abs(gradients[name]).max() > 1e-3
        direction, step = rng.standard_normal(value.shape), 1e-5
        plus, minus = (bound(params | {name: value + sign * step * direction}) for sign in (1, -1))
        np.testing.assert_allclose(
            np.sum(gradients[name] * direction), (plus - minus) / (2 * step), rtol=1e-5, atol=1e-6
        )


@pytest.mark.slow
def test_training_q_reaches_the_collapsed_bound_on_boston():
    from gpzoo.reproductions import datasets
    from gpzoo.reproductions.datasets.files import find

    if find("uci_boston.npz") is None:
        pytest.skip(f"the boston data are not in GPZOO_DATA={os.environ.get('GPZOO_DATA')}")
    data = datasets.load("uci/boston").standardised()
    x, y = jnp.asarray(data.X_train, jnp.float64), jnp.asarray(data.y_train, jnp.float64)
    assert len(x) > 400
    kernel, noise = RBF(1.0, 4.0), 0.2

    def fixed(x, y):
        f = numpyro.sample("f", GaussianProcess(kernel, x))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", Gaussian(f, noise), obs=y)

    z = random_subset(20)(KEY, x, kernel).Z
    *_, collapsed = optimal_q(x, y, z, kernel, noise, jitter=1e-9)
    # Adam on q alone: its optimum is known in closed form for these inducing inputs only.
    still = optax.masked(optax.set_to_zero(), lambda params: {name: name == "f_inducing" for name in params})
    optimiser = optax.chain(adam(optax.cosine_decay_schedule(0.05, 1500)), still)
    svi = SVI(fixed, InducingGuide(fixed, InducingPoints(z)), optimiser, GaussianProcessELBO())
    result = fit(KEY, svi, 1500, x, y, progress=False)
    np.testing.assert_array_equal(result.params["f_inducing"], z)
    assert collapsed - 0.5 < -result.losses[-1] < collapsed + 1e-3
    assert -result.losses[0] < collapsed - 10


def test_an_observed_site_is_exact_regression():
    y = numbers(4, N, seed=14)
    process = GaussianProcess(SHARED + White(NOISE), X, jitter=TINY)
    expected = scipy.stats.multivariate_normal(np.zeros(N), dense(SHARED, X)[0] + NOISE * np.eye(N)).logpdf(y)
    np.testing.assert_allclose(jax.jit(process.log_prob)(y), expected, rtol=1e-8)
