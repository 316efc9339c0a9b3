"""NumPyro's own objectives on a program with GP sites: finite, differentiable, and of the value of the bound."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import RenyiELBO, Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO

from gpzoo import InducingPoints
from gpzoo.inference import GaussianProcessELBO, InducingGuide
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Gaussian
from gpzoo.processes.process import GaussianProcess
from tests.programs import KEY

pytestmark = pytest.mark.usefixtures("standard_promotion")  # NumPyro mixes dtypes


def program(X, y=None):
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(jnp.zeros((), X.dtype), 1.0))
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, lengthscale), X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)


def data(dtype, n=24):
    X = np.linspace(0, 3, n)[:, None]
    return jnp.asarray(X, dtype), jnp.asarray(np.sin(2 * X[:, 0]), dtype)


def posterior(X, y, of_scale, hyperparameters="normal"):
    """A guide, and parameters at which inducing variables are known as well as the data make them."""
    guide = InducingGuide(program, InducingPoints(X[::6]), hyperparameters=hyperparameters)
    params = guide.init_params(KEY, X, y)
    return guide, params | {"f_scale": of_scale * params["f_scale"]}


OBJECTIVES = {
    "Trace_ELBO": Trace_ELBO(),
    "Trace_ELBO of several": Trace_ELBO(num_particles=2),
    "TraceMeanField_ELBO of several": TraceMeanField_ELBO(num_particles=2),
    "RenyiELBO": RenyiELBO(alpha=0.5, num_particles=2),
    "TraceGraph_ELBO of several": TraceGraph_ELBO(num_particles=2),
}


@pytest.mark.slow_but(name=["TraceMeanField_ELBO of several"], dtype=[jnp.float64])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_objectives_and_their_gradients_are_finite(name, dtype):
    X, y = data(dtype)
    guide, start = posterior(X, y, 1.0)
    transformed = {"lengthscale_scale": jnp.log, "f_scale": lambda x: x}

    def loss(params, key):
        given = {n: jnp.exp(x) if n == "lengthscale_scale" else x for n, x in params.items()}
        return OBJECTIVES[name].loss(key, given, program, guide, X, y)

    compiled = jax.jit(jax.value_and_grad(loss))
    for scale in (1.0, 1e-2, 1e-4):
        params = {
            n: transformed.get(n, lambda x: x)(x) for n, x in (start | {"f_scale": scale * start["f_scale"]}).items()
        }
        value, gradient = compiled(params, KEY)
        assert np.isfinite(value), scale
        assert all(np.isfinite(x).all() for x in gradient.values()), scale


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_densities_of_draws_give_the_divergence(scale):
    X, y = data(jnp.float64, 12)
    guide, params = posterior(X, y, scale, "point")
    exact = GaussianProcessELBO().loss(KEY, params, program, guide, X, y)
    loss = jax.jit(jax.vmap(lambda key: Trace_ELBO().loss(key, params, program, guide, X, y)))
    draws = loss(jax.random.split(KEY, 4000))
    error = float(draws.std() / np.sqrt(len(draws)))
    # Of what a draw has left given u, where that is less than the jitter, this bound has up to half a nat less.
    assert -4 * error < float(draws.mean() - exact) < 4 * error + 0.5 * (len(X) - len(X[::6]))
