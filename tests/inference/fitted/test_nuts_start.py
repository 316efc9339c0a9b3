"""Where NUTS starts: at the mode of hyperparameters, of a density that is not finite everywhere, too."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers

from gpzoo import GaussianProcess, NonFiniteError, kernels, likelihoods
from gpzoo.inference import marginal, nuts, whitened
from gpzoo.inference.fitted.nuts import _mode
from tests.programs import KEY


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e12])
@pytest.mark.parametrize("size", [1, 7, 40])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_search_turns_back_where_a_density_is_not_finite(dtype, size, scale):
    """The potential is nearly linear down to a wall at 1, so that steps lead beyond it."""
    beyond = 0

    @jax.jit
    @jax.value_and_grad
    def potential(x):
        return scale * (jnp.sum(-x) - 0.05 * jnp.sum(jnp.log(1 - x)))

    def counted(x):
        nonlocal beyond
        found = potential(x)
        beyond += not np.isfinite(found[0])
        return found

    found = _mode(counted, jnp.linspace(-3, -1, size).astype(dtype))
    assert beyond and found.dtype == dtype
    np.testing.assert_allclose(found, 0.95, atol=3e-3)


def wave(X, y=None):
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
    variance = numpyro.sample("variance", dist.LogNormal(0.0, 1.0))
    f = numpyro.sample("f", GaussianProcess(kernels.RBF(variance, lengthscale), X))
    numpyro.sample("y", likelihoods.Gaussian(f, numpyro.sample("noise", dist.LogNormal(-2.0, 1.0))), obs=y)


def rows(size, dtype):
    X = np.linspace(0, 10, size, dtype=dtype)[:, None]
    return X, np.sin(X[:, 0]) + dtype(0.3) * np.random.default_rng(0).standard_normal(size).astype(dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    "size, dtype, num_chains, progress",
    [(14, np.float32, 1, False), (25, np.float64, 2, True), (45, np.float32, 1, False)],
)
def test_drawn_functions_take_trajectories_of_usual_length(size, dtype, num_chains, progress, standard_promotion):
    """From the joint mode, with a dense matrix, many have the largest length that there is, of 1,023 leaps."""
    options = {"num_warmup": 150, "num_samples": 30, "num_chains": num_chains, "progress": progress}
    mcmc = nuts(KEY, whitened(wave), *rows(size, dtype), **options)
    assert np.mean(mcmc.get_extra_fields()["num_steps"]) < 300
    assert mcmc.get_samples()["noise"].shape == (30 * num_chains,)


@pytest.mark.slow
@pytest.mark.parametrize("size", [14, 70])
def test_integrated_functions_start_at_the_mode_whatever_is_around_them(size, standard_promotion):
    known = {"noise": np.float32(0.1)}
    program, options = marginal(wave), {"num_warmup": 1, "num_samples": 1, "num_chains": 1, "progress": False}
    around = {"none": program, "handler": handlers.condition(program, known), "partial": partial(program)}
    for name, each in around.items():
        state = nuts(KEY, each, *rows(size, np.float32), **options).last_state
        (matrix,) = jax.tree.leaves(state.adapt_state.inverse_mass_matrix)
        assert np.shape(matrix) == (3 - (name == "handler"),) * 2


@pytest.mark.slow
@pytest.mark.parametrize("num_chains", [1, 3])
@pytest.mark.parametrize("of", [marginal, whitened])
def test_a_density_that_is_nowhere_finite_is_told(of, num_chains, standard_promotion):
    def nowhere(X, y=None):
        lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
        f = numpyro.sample("f", GaussianProcess(kernels.RBF(1.0, lengthscale), X))
        numpyro.factor("none", jnp.where(lengthscale > 0, -jnp.inf, 0.0))
        numpyro.sample("y", likelihoods.Gaussian(f, 0.1), obs=y)

    with pytest.raises(NonFiniteError, match="No start with a finite density"):
        nuts(KEY, of(nowhere), *rows(6, np.float32), num_chains=num_chains, num_warmup=2, num_samples=2)


def test_a_program_without_data_is_refused():
    """It would draw from the prior."""

    def regression(X, y=None):
        lengthscale = numpyro.sample("lengthscale", dist.LogNormal())
        f = numpyro.sample("f", GaussianProcess(kernels.RBF(1.0, lengthscale), X))
        numpyro.sample("y", likelihoods.Gaussian(f, 0.1), obs=y)

    with pytest.raises(ValueError, match="has no data"):
        nuts(KEY, marginal(regression), np.ones((3, 1), np.float32), None, num_warmup=1, num_samples=1, progress=False)
