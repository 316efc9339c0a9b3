"""The importance-weighted bound: sums in NumPy of the same draws, the limit of many draws, and derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from jax.test_util import check_grads
from numpyro import handlers
from numpyro.infer import SVI
from scipy.linalg import solve_triangular
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

from gpzoo import GaussianProcess, InducingPoints, kmeans
from gpzoo.inference import Amortised, GaussianProcessELBO, ImportanceWeightedELBO, InducingGuide, PerRow, fit
from gpzoo.inference.bounds.importance import WEIGHTS, draw_together
from gpzoo.inference.programs.rows import Layout
from gpzoo.kernels import RBF, White
from gpzoo.likelihoods import Gaussian, Softmax
from gpzoo.models import inner_scales, latent_variable_deep_gp
from gpzoo.posteriors import InducingPosterior, Projection, forms
from tests.programs import KEY, adam, bound, randomised, sine
from tests.reference import pairs, rbf
from tests.statistics import assert_gaussian_moments, standard_error

X, y = sine(8)
Z, JITTER, NOISE = jnp.linspace(-2.0, 2.0, 3)[:, None], 1e-8, 0.3
ROWS = jnp.arange(8)
START = {"w": jnp.linspace(-0.5, 1.0, 8)}


def program(rows, y=None, *, num_data=None, noise=NOISE):
    """A GP of a latent input for each row."""
    with numpyro.plate("data", num_data or len(rows), subsample_size=len(rows)):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), w[:, None], jitter=JITTER))
    with numpyro.plate("data", num_data or len(rows), subsample_size=len(rows)):
        numpyro.sample("y", Gaussian(f, noise), obs=y)


def guide_of(program, make=None, **options):
    return InducingGuide(program, InducingPoints(Z), hyperparameters=make or PerRow(START, scale=0.4), **options)


def mean_of(objective, model, guide, params, *args, num=400, **kwargs):
    """Bounds of many keys."""
    value = lambda key: -objective.loss(key, params, model, guide, *args, **kwargs)  # noqa: E731
    return np.asarray(jax.jit(jax.vmap(value))(random.split(KEY, num)))


class Seen(dist.Normal):
    """A normal that keeps what it draws."""

    draws = []  # noqa: RUF012 (emptied by the test)

    def sample(self, key, sample_shape=()):
        value = super().sample(key, sample_shape)
        jax.debug.callback(lambda draw: self.draws.append(np.asarray(draw)), value)
        return value


def kept_draws(program):
    def guide(rows, y=None, **kwargs):
        numpyro.sample("w", Seen(START["w"][rows], 0.4))

    return guide


@pytest.mark.slow
def test_it_is_the_sum_of_the_same_draws():
    """Marginals, divergence and weights by textbook formulas; in a batch, times the rows for which it stands."""
    guide, part, K = guide_of(program, kept_draws), np.array([6, 1, 3]), 5
    params = randomised(guide.init_params(KEY, ROWS, y))
    Seen.draws.clear()
    found = (
        -ImportanceWeightedELBO(K, sum_sites=False)
        .by_site()
        .loss(KEY, params, program, guide, ROWS[part], y[part], num_data=24)["y"],
        -ImportanceWeightedELBO(K, sum_sites=False).loss(KEY, params, program, guide, ROWS, y)["f"],
    )
    jax.effects_barrier()
    w = np.stack([draw for draw in Seen.draws if len(draw) == 3])
    assert w.shape == (K, 3) and len(np.unique(w)) == 3 * K
    m, S, loc = np.asarray(params["f_mean"]), np.asarray(params["f_scale"]), np.asarray(START["w"])[part]
    L = np.linalg.cholesky(rbf(*pairs(Z, Z)) + JITTER * np.eye(3))
    A = solve_triangular(L, rbf(*pairs(Z, w.reshape(-1, 1))), lower=True)
    mean, variance = (m @ A).reshape(w.shape), (1 - (A**2).sum(0) + ((S.T @ A) ** 2).sum(0)).reshape(w.shape)
    terms = norm(mean, np.sqrt(NOISE)).logpdf(y[part]) - variance / (2 * NOISE)
    terms += norm(0, 1).logpdf(w) - norm(loc, 0.4).logpdf(w)
    np.testing.assert_allclose(found[0], 8 * (logsumexp(terms, axis=0) - np.log(K)).sum(), rtol=1e-8)
    divergence = (np.sum(S**2) + m @ m - 3 - 2 * np.log(np.abs(np.diagonal(S))).sum()) / 2
    np.testing.assert_allclose(found[1], -divergence, rtol=1e-8)


def shifted(X, y=None):
    """``y = f(x) + w + noise``: without ``w``, which is normal, a GP with more noise."""
    with numpyro.plate("data", len(X)):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X, jitter=JITTER))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f + w, NOISE), obs=y)


def far_away(program):
    return lambda X, y=None: numpyro.sample("w", dist.Normal(jnp.full(len(X), 0.8), 0.7))


@pytest.mark.slow
def test_it_grows_with_the_draws_towards_its_limit_below_the_evidence():
    guide = guide_of(shifted, far_away)
    params = guide.init_params(KEY, X, y)
    params |= {"f_scale": 0.1 * params["f_scale"], "f_mean": jnp.asarray([0.3, 0.0, 0.5])}
    evidence = multivariate_normal(np.zeros(8), rbf(*pairs(X, X)) + (1 + NOISE) * np.eye(8)).logpdf(y)
    q = InducingPosterior(
        Projection(GaussianProcess(RBF(1.0, 1.0), X, jitter=JITTER), InducingPoints(Z)),
        params["f_mean"],
        forms.Full(params["f_scale"]),
    )
    mean, variance = q.marginals()
    plain = bound(shifted, guide, params, X, y, loss=GaussianProcessELBO(sum_sites=False))
    limit = np.sum(norm(mean, np.sqrt(1 + NOISE)).logpdf(y) - variance / (2 * NOISE)) + float(plain["f"])
    assert limit < evidence
    found = [mean_of(ImportanceWeightedELBO(K), shifted, guide, params, X, y) for K in (1, 4, 32)]
    errors = [standard_error(x) for x in found]
    for less, more, error in zip(found, [*found[1:], np.full(1, limit)], errors, strict=True):
        assert less.mean() + 5 * error < more.mean()
    assert limit - found[-1].mean() < 0.1 * (limit - found[0].mean())
    # One draw is the plain bound, its divergence by draws.
    exact = mean_of(GaussianProcessELBO(), shifted, guide, params, X, y)
    assert abs(found[0].mean() - exact.mean()) < 5 * (errors[0] + standard_error(exact))


@pytest.mark.slow
def test_batches_that_part_the_rows_give_the_bound_of_all_rows():
    guide = guide_of(program)
    params = guide.init_params(KEY, ROWS, y)
    loss = ImportanceWeightedELBO(3, num_particles=2)
    parts = [mean_of(loss, program, guide, params, part, y[part], num_data=8) for part in (ROWS[:4], ROWS[4:])]
    whole = mean_of(loss, program, guide, params, ROWS, y)
    error = standard_error(whole)
    assert abs(np.mean(parts) - whole.mean()) < 5 * error < 0.05 * abs(whole.mean())


# -- inner layers ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True], ids=["one set of inputs", "one for each output"])
def test_inner_layers_are_one_function_within_a_row(own):
    """Three inputs for each of two rows: covariances of the posterior within rows, none between them."""
    rng = np.random.default_rng(0)
    inputs = jnp.asarray(rng.standard_normal((3, 2, 2, 1) if own else (3, 2, 1)))
    m, S = jnp.asarray(rng.standard_normal((3, 2))), jnp.tril(jnp.asarray(rng.standard_normal((2, 3, 3))))
    kernel = RBF(jnp.asarray([1.0, 0.7]), 1.0) + White(0.05)

    def posterior(X, mean=0.5):
        prior = GaussianProcess(kernel, X, jnp.full((X.shape[-2], 2), mean), num_outputs=2)
        return InducingPosterior(Projection(prior, InducingPoints(Z)), m, forms.Full(S))

    def draws(key):
        return jax.vmap(lambda X: draw_together(Layout(), posterior(X), key), axis_name=WEIGHTS)(inputs)

    found = np.asarray(jax.jit(jax.vmap(draws))(random.split(KEY, 4000)))
    assert found.shape == (4000, 3, 2, 2)
    flat = jnp.moveaxis(inputs, 0, -2).reshape(*((2,) if own else ()), 6, 1)
    mean, covariance = posterior(flat).moments()
    for d in range(2):
        of_rows = np.kron(np.eye(2), np.ones((3, 3)))
        values = found[..., d].transpose(0, 2, 1).reshape(-1, 6)
        assert_gaussian_moments(values, np.asarray(mean)[:, d], of_rows * np.asarray(covariance)[d])


def network(X, y=None, **kwargs):
    """Means and scales from a layer of 20 units; the prior where there is no datum."""
    if y is None:
        return None
    seen, rng = jnp.concatenate([X, y[:, None]], axis=1), np.random.default_rng(0)
    first = numpyro.param("first", jnp.asarray(rng.standard_normal((2, 20)), X.dtype))
    second = numpyro.param("second", jnp.asarray(0.1 * rng.standard_normal((20, 2)), X.dtype))
    return jnp.tanh(seen @ first) @ second


LAYERS = (np.eye(2),)
AMORTISED = Amortised("w", network)


@pytest.mark.slow
def test_derivatives_are_those_of_the_bound():
    """Of a program with an inner layer, by differences under one key."""
    guide = InducingGuide(latent_variable_deep_gp, kmeans(3), hyperparameters=AMORTISED)
    options = {"layers": LAYERS, "layer_noise": 0.1}
    params = randomised(guide.init_params(KEY, X, y, model_kwargs=options))
    loss = ImportanceWeightedELBO(3)
    value = lambda params: loss.loss(KEY, params, latent_variable_deep_gp, guide, X, y, **options)  # noqa: E731
    check_grads(jax.jit(value), (params,), order=1, modes=["rev"], rtol=1e-4)


def two_branches(n, seed, dtype=np.float64):
    """Data around two curves, either of which a row may belong to."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 1))
    y = rng.choice([-1, 1], n) * (1 + 0.3 * X[:, 0]) + 0.1 * rng.standard_normal(n)
    return jnp.asarray(X, dtype), jnp.asarray(y, dtype)


@pytest.mark.slow
def test_it_trains_in_float32_and_batches():
    guide = InducingGuide(
        latent_variable_deep_gp, kmeans(6), hyperparameters=AMORTISED, initial_scale=inner_scales(LAYERS)
    )
    options = {"batch_size": 20, "model_kwargs": {"layers": (np.eye(2, dtype=np.float32),)}, "progress": False}
    with jax.enable_x64(False):
        svi = SVI(latent_variable_deep_gp, guide, adam(0.02), ImportanceWeightedELBO(5))
        found = fit(random.key(0), svi, 60, *two_branches(60, 0, np.float32), **options)
    assert found.losses[-20:].mean() < found.losses[:20].mean() - 20
    assert all(x.dtype == np.float32 for x in jax.tree.leaves(found.params))
    assert found.expectations["y"] == "closed form given draws of w, layer_0"


@pytest.mark.slow
def test_held_out_densities_of_two_branches_are_no_worse():
    new = two_branches(200, 1)
    found = {}
    for objective in (GaussianProcessELBO(), ImportanceWeightedELBO(10)):
        guide = InducingGuide(latent_variable_deep_gp, kmeans(12), hyperparameters=AMORTISED, initial_scale=0.1)
        svi = SVI(latent_variable_deep_gp, guide, adam(0.03), objective)
        trained = fit(KEY, svi, 300, *two_branches(120, 0), progress=False)
        test = trained.predict(KEY, new[0], test_data={"y": new[1]}, num_draws=200)["y"]
        found[type(objective)] = test.log_density.mean()
    assert found[ImportanceWeightedELBO] > found[GaussianProcessELBO] - 0.02


# -- what it refuses ---------------------------------------------------------------------------------------------------


def with_kernel(kernel):
    def program(rows, y=None):
        with numpyro.plate("data", len(rows)):
            w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        f = numpyro.sample("f", GaussianProcess(kernel(w), w[:, None]))
        with numpyro.plate("data", len(rows)):
            numpyro.sample("y", Gaussian(f, NOISE), obs=y)

    return program


def without_rows(rows, y=None):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(8), 1.0).to_event(1))
    numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), w[:, None]))
    with numpyro.plate("data", len(rows)):
        numpyro.sample("y", dist.Normal(w, 1.0), obs=y)


def summed(rows, y=None):
    program(rows, y)
    with numpyro.plate("data", len(rows)):
        z = numpyro.sample("z", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        numpyro.sample("more", dist.Normal(z.astype(float), 1.0), obs=y)


def scaled(rows, y=None):
    with numpyro.plate("data", len(rows)), handlers.scale(scale=0.5):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), w[:, None]))
    with numpyro.plate("data", len(rows)):
        numpyro.sample("y", Gaussian(f, NOISE), obs=y)


def classes(rows, y=None):
    with numpyro.plate("data", len(rows)):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), w[:, None], num_outputs=3))
    with numpyro.plate("data", len(rows)):
        numpyro.sample("y", Softmax(f), obs=jnp.zeros(len(rows), int) if y is None else jnp.zeros(len(y), int))


REFUSED = {
    "no latents of rows": (without_rows, {}, "latent variables of rows"),
    "summed out": (summed, {}, "'z'"),
    "scales": (scaled, {}, r"'w'.*'y'.*scales"),
    "a kernel of latents": (with_kernel(lambda w: RBF(1.0, 1.0 + w[0] ** 2)), {}, r"kernel.*'w'"),
    "joint draws": (program, {"joint": {"f"}}, "joint="),
    "draws": (classes, {}, r"Softmax.*'y'"),
    "points": (program, {"hyperparameters": "point"}, "PerRow"),
}


@pytest.mark.slow_but(model=[without_rows, summed])
@pytest.mark.parametrize(("model", "options", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_it_refuses(model, options, message):
    guide = InducingGuide(model, InducingPoints(Z), **({"hyperparameters": PerRow(START)} | options))
    params = guide.init_params(KEY, ROWS, y)
    with pytest.raises(ValueError, match=message):
        ImportanceWeightedELBO(2).loss(KEY, params, model, guide, ROWS, y)


def in_pairs(rows, y=None):
    """The difference of one function at two inputs of a row, which are the same input."""
    with numpyro.plate("data", len(rows)):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    inputs = jnp.stack([w, w], axis=1)[:, :, None]
    h = numpyro.sample("h", GaussianProcess(RBF(), inputs, jitter=JITTER, per_row=True))
    with numpyro.plate("data", len(rows)):
        numpyro.sample("y", dist.Normal(h[:, 0] - h[:, 1], 0.1), obs=y)


def test_inputs_of_one_row_are_one_function():
    guide = guide_of(in_pairs)
    params = guide.init_params(KEY, ROWS, y)
    for num_draws in (1, 3):
        bounds = mean_of(ImportanceWeightedELBO(num_draws), in_pairs, guide, params, ROWS, 0 * y, num=20)
        assert bounds.min() > -60  # independent functions would differ by far more than the noise


def test_numbers_of_draws_are_positive():
    with pytest.raises(ValueError, match="num_draws"):
        ImportanceWeightedELBO(0)
