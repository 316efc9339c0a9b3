"""Global inducing points: exact where one layer has its data there, better than independent layers, and refusals."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import SVI
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from gpzoo import GaussianProcess, InducingPoints, draws, kmeans, likelihoods, unique_patches
from gpzoo.inference import (
    CollapsedELBO,
    GaussianProcessELBO,
    GlobalInducingGuide,
    InducingGuide,
    Trained,
    fit,
    lbfgs,
    load,
)
from gpzoo.kernels import RBF
from gpzoo.models import deep_gp, gaussian, gp_regression, inner_scales
from tests.programs import KEY, adam
from tests.reference import conditional, pairs, rbf

RNG = np.random.default_rng(0)
X = np.sort(RNG.uniform(-2, 2, (12, 1)), axis=0)
y = np.sin(3 * X[:, 0]) + 0.1 * RNG.standard_normal(12)
NEW = np.linspace(-3, 3, 7)[:, None]
#: Two layers, the first with the identity as its mean.
DEEP = partial(deep_gp, layers=[np.eye(1)], layer_noise=None)


def bound_of(guide, params, *data, num=1):
    keys = random.split(KEY, num)
    values = jax.jit(jax.vmap(lambda key: -GaussianProcessELBO().loss(key, params, guide.model, guide, *data)))(keys)
    return float(values.mean()), float(values.std() / np.sqrt(num))


def test_one_layer_with_the_data_as_pseudo_data_is_exact_regression():
    program = partial(gp_regression, jitter=1e-10)
    guide = GlobalInducingGuide(program, X)
    params = guide.init_params(KEY, X, y)
    params |= {"f_variance": 1.3, "f_lengthscale": np.array([0.7]), "noise_variance": 0.04, "f_mean": y}
    params["f_noise"] = np.full(12, 0.2)
    K = rbf(*pairs(X, X), variance=1.3, lengthscale=0.7)
    evidence = multivariate_normal(np.zeros(12), K + 0.04 * np.eye(12)).logpdf(y)
    np.testing.assert_allclose(bound_of(guide, params, X, y)[0], evidence, rtol=1e-7)
    mean, variance = Trained(program, guide, params).posterior(KEY, NEW)["f"].marginals()
    across, Kss = (
        rbf(*pairs(X, NEW), variance=1.3, lengthscale=0.7),
        rbf(*pairs(NEW, NEW), variance=1.3, lengthscale=0.7),
    )
    wanted, covariance = conditional(K + 0.04 * np.eye(12), across, Kss, y)
    np.testing.assert_allclose(mean, wanted, atol=1e-6)
    np.testing.assert_allclose(variance, np.diag(covariance), atol=1e-6)


@pytest.mark.parametrize("num_outputs", [None, 2])
def test_pseudo_data_condition_the_prior_at_the_inducing_inputs(num_outputs):
    """By Bayes's rule in NumPy, with a noise of its own for each point and output."""
    program = partial(gp_regression, num_outputs=num_outputs, jitter=1e-10)
    Z, shape = NEW[:4], (4,) if num_outputs is None else (4, 2)
    guide, targets = GlobalInducingGuide(program, Z), y if num_outputs is None else np.column_stack([y, -y])
    params = guide.init_params(KEY, X, targets)
    v, noise = RNG.standard_normal(shape), RNG.uniform(0.1, 1, shape)
    params |= {"f_mean": v, "f_noise": noise, "f_lengthscale": np.array([0.7])}
    mean, covariance = Trained(program, guide, params).posterior(KEY, X)["f"].inducing_moments()
    K = rbf(*pairs(Z, Z), lengthscale=0.7)
    for d in range(num_outputs or 1):
        own = (lambda x: x) if num_outputs is None else (lambda x, d=d: x[..., d])
        wanted, expected = conditional(K + np.diag(own(noise) ** 2), K, K, own(v))
        np.testing.assert_allclose(own(np.asarray(mean)), wanted, atol=1e-8)
        np.testing.assert_allclose(covariance if num_outputs is None else covariance[d], expected, atol=1e-8)


@pytest.mark.slow
def test_a_layer_follows_the_draw_of_the_one_below():
    """The second layer's inducing inputs are the first one's draw, and so are its values at these inputs."""
    guide = GlobalInducingGuide(DEEP, X, initial_noise=1.0)
    params = guide.init_params(KEY, X, y)
    seen = set()
    for number in range(3):
        trace = handlers.trace(handlers.seed(handlers.substitute(guide, params), number)).get_trace(X, y)
        below, above = (trace[site] for site in ("layer_0", "f"))
        np.testing.assert_allclose(below["value"], above["fn"].inducing.Z, atol=0.02)
        seen.add(float(above["fn"].inducing.Z[0, 0]))
    assert len(seen) == 3


@pytest.mark.slow
def test_the_bound_of_two_layers_is_below_the_evidence_of_one_it_contains():
    """With a first layer that hardly departs from the identity, two layers are one, whose exact evidence is known."""
    guide = GlobalInducingGuide(DEEP, X)
    params = guide.init_params(KEY, X, y)
    params |= {"layer_0_variance": 1e-6, "f_lengthscale": np.array([0.7]), "noise_variance": 0.04, "f_mean": y}
    params |= {"f_noise": np.full(12, 0.2), "layer_0_noise": np.full((12, 1), 1.0)}
    K = rbf(*pairs(X, X), lengthscale=0.7)
    evidence = multivariate_normal(np.zeros(12), K + 0.04 * np.eye(12)).logpdf(y)
    bound, error = bound_of(guide, params, X, y, num=50)
    assert abs(bound - evidence) < 0.05 + 3 * error


@pytest.mark.slow
def test_the_bound_of_layers_that_depend_on_each_other_is_nearer_to_the_evidence():
    """The evidence of six data by draws of the lower layer; hyperparameters are fixed."""
    rng, inputs, noise_variance = np.random.default_rng(0), np.linspace(-1, 1, 6)[:, None], 0.09
    prior = rbf(*pairs(inputs, inputs), lengthscale=0.5) + 1e-8 * np.eye(6)
    below = inputs[:, 0] + rng.standard_normal((100_000, 6)) @ np.linalg.cholesky(prior).T
    L = np.linalg.cholesky(np.exp(-((below[:, :, None] - below[:, None]) ** 2) / 2) + noise_variance * np.eye(6))
    targets = L[0] @ rng.standard_normal(6)
    residuals = np.linalg.solve(L, targets[:, None])[..., 0]
    each = -(residuals**2 / 2 + np.log(np.diagonal(L, axis1=1, axis2=2)) + np.log(2 * np.pi) / 2).sum(-1)
    evidence = logsumexp(each) - np.log(len(each))

    def program(X, y=None):
        below = numpyro.sample("layer_0", GaussianProcess(RBF(1.0, 0.5), X, mean=X[:, 0]))
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), draws(below)[:, None]))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", likelihoods.Gaussian(f, noise_variance), obs=y)

    missing = []
    for guide in (
        GlobalInducingGuide(program, inputs),
        InducingGuide(program, InducingPoints(inputs), initial_scale=inner_scales([1])),
    ):
        svi = SVI(program, guide, adam(0.01), GaussianProcessELBO())
        trained = fit(KEY, svi, 4000, inputs, targets, progress=False)
        missing.append(evidence + np.mean(trained.losses[-1000:]))
    together, independent = missing
    assert 0 < together < 1 < 3 < independent


@pytest.mark.slow
def test_global_inducing_points_are_trained_predicted_exported_and_saved(tmp_path):
    rng = np.random.default_rng(1)
    inputs = rng.uniform(-1, 1, (60, 1))
    targets = np.where(inputs[:, 0] > 0, 1.0, -1.0) + 0.05 * rng.standard_normal(60)
    program = partial(deep_gp, layers=[np.eye(1)])
    svi = SVI(program, GlobalInducingGuide(program, kmeans(15)), adam(0.01), GaussianProcessELBO())
    trained = fit(KEY, svi, 3000, inputs, targets, progress=False)
    covariances = [rbf(*pairs(inputs, inputs), variance=0.5, lengthscale=each) for each in (0.02, 0.05, 0.1, 0.3, 1.0)]
    one_gp = [multivariate_normal(np.zeros(60), K + 0.0025 * np.eye(60)).logpdf(targets) for K in covariances]
    assert -np.mean(trained.losses[-300:]) > max(one_gp)
    whole = trained.predict(random.key(1), NEW, num_draws=30)["y"]
    parts = trained.predict(random.key(1), NEW, num_draws=30, batch_size=3)["y"]
    np.testing.assert_allclose(parts.mean, whole.mean, rtol=1e-8)
    assert np.abs(np.asarray(whole.mean)[[2, 4]] - [-1, 1]).max() < 0.2
    assert trained.to_arviz(KEY, inputs, targets, num_draws=5)["posterior"]["layer_0_u"].shape == (1, 5, 15, 1)
    trained.save(tmp_path / "model")
    again = load(tmp_path / "model", program, GlobalInducingGuide(program, kmeans(15)))
    np.testing.assert_array_equal(again.predict(random.key(1), NEW, num_draws=30)["y"].mean, whole.mean)


def with_lengthscale(X, y=None):
    """A hyperparameter with a posterior, the same at the inducing inputs and at the data."""
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, lengthscale), X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", gaussian(f), obs=y)


@pytest.mark.slow
def test_hyperparameters_have_one_value_in_a_run():
    guide = GlobalInducingGuide(with_lengthscale, NEW, hyperparameters="normal")
    params = guide.init_params(KEY, X, y)
    trace = handlers.trace(handlers.seed(handlers.substitute(guide, params), 0)).get_trace(X, y)
    q = trace["f"]["fn"].conditional
    K = rbf(*pairs(NEW, NEW), lengthscale=float(trace["lengthscale"]["value"]))
    np.testing.assert_allclose(q.L @ q.L.T, K, atol=1e-5)


def with_latent_rows(X, y=None):
    with numpyro.plate("data", len(X)):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    f = numpyro.sample("f", GaussianProcess(RBF(), jnp.column_stack([X, draws(w)])))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", gaussian(f), obs=y)


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ValueError, match=r"'w' has a value for each row \(plate 'data'\)"):
        GlobalInducingGuide(with_latent_rows, NEW).init_params(KEY, X, y)
    with pytest.raises(ValueError, match="inputs"):
        GlobalInducingGuide(gp_regression, np.full((3, 1), np.nan))
    with pytest.raises(ValueError, match=r"inputs must be inputs, or .* got unique_patches"):
        GlobalInducingGuide(gp_regression, unique_patches(3))


@pytest.mark.slow_but(asked=["natural", "condition"])
@pytest.mark.parametrize("asked", ["natural", "collapsed", "condition", "hyperparameters", "add_inducing"])
def test_what_needs_inducing_variables_of_a_site_is_refused(asked):
    program = with_lengthscale if asked == "hyperparameters" else gp_regression
    guide = GlobalInducingGuide(program, NEW)
    if asked in ("natural", "collapsed"):
        objective, optimiser = (
            (CollapsedELBO(), lbfgs()) if asked == "collapsed" else (GaussianProcessELBO(), adam(0.01))
        )
        options = {"natural": 0.1} if asked == "natural" else {}
        with pytest.raises(ValueError, match="GlobalInducingGuide has no q"):
            fit(KEY, SVI(program, guide, optimiser, objective), 5, X, y, progress=False, **options)
        return
    trained = Trained(program, guide, guide.init_params(KEY, X, y))
    with pytest.raises(ValueError, match="GlobalInducingGuide has no q"):
        if asked == "condition":
            trained.condition(KEY, X, y)
        elif asked == "hyperparameters":
            trained.hyperparameters(KEY, X, y, num_warmup=2, num_samples=2, progress=False)
        else:
            trained.add_inducing(KEY, kmeans(3), X, y)
