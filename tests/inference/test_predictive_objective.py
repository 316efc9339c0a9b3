"""The predictive objective: densities of predictions and divergences, computed apart, and what it is for."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import SVI

from gpzoo import GaussianProcess, InducingPoints, kmeans
from gpzoo.inference import GaussianProcessELBO, InducingGuide, NaturalGradients, PredictiveLogLikelihood, Trained, fit
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Bernoulli, Expected, Gaussian
from gpzoo.models import gp_regression
from tests.programs import KEY

rng = np.random.default_rng(0)
X = np.sort(rng.uniform(0, 6, (30, 1)), axis=0)
Z = np.linspace(0.5, 5.5, 5)[:, None]
SEEN = rng.uniform(size=30) > 0.3
ENTRIES = rng.uniform(size=(30, 2)) > 0.3
Y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(30)


def program(likelihood, outputs=None):
    def fn(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.3, 0.8), X, num_outputs=outputs))
        with numpyro.plate("data", len(X)):
            likelihood(f, y)

    return fn


def rows(f, y):
    with numpyro.handlers.mask(mask=jnp.asarray(SEEN)):
        numpyro.sample("y", Gaussian(f, 0.2), obs=y)


PROGRAMS = {
    "regression": (program(lambda f, y: numpyro.sample("y", Gaussian(f, 0.2), obs=y)), Y, slice(None)),
    "classes": (program(lambda f, y: numpyro.sample("y", Bernoulli(f), obs=y)), (Y > 0).astype(int), slice(None)),
    "counts": (
        program(lambda f, y: numpyro.sample("y", Expected(lambda f: dist.Poisson(jnp.exp(f)), f), obs=y)),
        rng.poisson(np.exp(Y)),
        slice(None),
    ),
    "masked": (program(rows), Y, SEEN),
    "missing entries": (
        program(lambda f, y: numpyro.sample("y", Gaussian(f, 0.2, missing="mask"), obs=y), outputs=2),
        np.where(ENTRIES, np.stack([Y, -Y], axis=1), np.nan),
        slice(None),
    ),
}


def at_start(name):
    model, y, counted = PROGRAMS[name]
    guide = InducingGuide(model, InducingPoints(jnp.asarray(Z)))
    params = guide.init_params(KEY, X, y)
    params["f_mean"] = jnp.asarray(np.random.default_rng(1).standard_normal(params["f_mean"].shape))
    params["f_scale"] = params["f_scale"] * 0.4
    return model, guide, params, y, counted


@pytest.mark.slow_but(name=["masked"], weight=[0.2])
@pytest.mark.parametrize("weight", [1.0, 0.2])
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_the_density_of_predictions_less_divergences(name, weight):
    model, guide, params, y, counted = at_start(name)
    density = Trained(model, guide, params).predict(KEY, X, test_data={"y": y})["y"].log_density
    divergence = GaussianProcessELBO(sum_sites=False).loss(KEY, params, model, guide, X, y)["f"]
    found = PredictiveLogLikelihood(kl_weight=weight).loss(KEY, params, model, guide, X, y)
    np.testing.assert_allclose(found, weight * divergence - np.sum(density[counted]), rtol=1e-9)
    slope = jax.grad(lambda m: PredictiveLogLikelihood().loss(KEY, params | {"f_mean": m}, model, guide, X, y))
    at, h = params["f_mean"], 1e-5
    one = jnp.zeros_like(at).at[2].set(h)
    ends = [PredictiveLogLikelihood().loss(KEY, params | {"f_mean": at + s * one}, model, guide, X, y) for s in (1, -1)]
    np.testing.assert_allclose(jnp.sum(slope(at)[2]), (ends[0] - ends[1]) / (2 * h), rtol=1e-5)


@pytest.mark.slow
def test_intervals_follow_noise_that_changes(standard_promotion):
    """Noise grows with the input, and the program has one: the bound gives all inputs the same."""
    X = rng.uniform(0, 4, (600, 1)).astype(np.float32)
    y = (np.sin(2 * X[:, 0]) + (0.02 + 0.2 * X[:, 0]) * rng.standard_normal(600)).astype(np.float32)
    nlpp = {}
    for objective in (GaussianProcessELBO(), PredictiveLogLikelihood()):
        svi = SVI(gp_regression, InducingGuide(gp_regression, kmeans(20)), optax.adam(0.03), objective)
        trained = fit(KEY, svi, 600, X[:400], y[:400], batch_size=100, progress=False)
        test = trained.predict(KEY, X[400:], test_data={"y": y[400:]})["y"]
        nlpp[type(objective)] = -float(np.mean(test.log_density))
    assert nlpp[PredictiveLogLikelihood] < nlpp[GaussianProcessELBO] - 0.1


def test_natural_gradients_and_odd_weights_are_refused():
    model, guide, _, y, _ = at_start("regression")
    svi = SVI(model, guide, NaturalGradients(optax.adam(0.01), guide, 0.1), PredictiveLogLikelihood())
    with pytest.raises(ValueError, match=r"[Nn]atural"):
        fit(KEY, svi, 2, X, y, progress=False)
    for weight in (0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="kl_weight"):
            PredictiveLogLikelihood(kl_weight=weight)
