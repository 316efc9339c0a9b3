"""Overlapping mixtures of GPs recover who belongs to which function; so does a program with outliers."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import SVI
from scipy.special import logsumexp
from scipy.stats import norm

from gpzoo import GaussianProcess, draws, kmeans
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
from gpzoo.kernels import RBF
from gpzoo.models import mixture_of_gps
from tests.programs import KEY, adam

RNG = np.random.default_rng(0)
X = np.sort(RNG.uniform(-2, 2, 60))[:, None]
OF = RNG.integers(0, 2, 60)
Y = np.where(OF, X[:, 0], -X[:, 0]) + 0.1 * RNG.standard_normal(60)
APART = np.abs(X[:, 0]) > 0.3  # elsewhere the lines are closer than six standard deviations of the noise


@partial(jax.jit, static_argnums=(0, 1))
def most_probable(program, site, params, f, y):
    """The most probable values of a discrete site given ``f``, which NumPyro finds."""
    from numpyro.contrib.funsor import infer_discrete

    known = handlers.substitute(program, data=params | {"f": f})
    inferred = infer_discrete(known, first_available_dim=-2, temperature=0)
    return handlers.trace(handlers.seed(inferred, KEY)).get_trace(X, y)[site]["value"]


@pytest.fixture(scope="module")
def trained():
    svi = SVI(mixture_of_gps, InducingGuide(mixture_of_gps, kmeans(6)), adam(0.05), GaussianProcessELBO())
    # From some starts the functions do not cross: one is |x|, the other -|x|.
    start = {"f_mean": np.random.default_rng(1).standard_normal((6, 2))}
    return fit(KEY, svi, 200, X, Y, init_params=start, progress=False)


@pytest.mark.slow
def test_two_crossing_lines_are_told_apart(trained):
    f = np.asarray(trained.posterior(KEY, X)["f"].mean)
    z = np.asarray(most_probable(mixture_of_gps, "z", trained.params, f, Y))
    same = np.mean((z == OF)[APART])
    assert max(same, 1 - same) > 0.97
    np.testing.assert_allclose(np.sort(f, axis=1), np.abs(X) * [-1, 1], atol=0.2)


@pytest.mark.slow
def test_predictions_average_over_the_functions(trained):
    new = np.array([[-1.5], [0.0], [1.5]])
    options = {"test_data": {"y": np.abs(new[:, 0])}, "num_draws": 200, "quantiles": (0.05, 0.95)}
    found = trained.predict(KEY, new, **options)
    np.testing.assert_allclose(found["z"].probs, np.broadcast_to(trained.params["weights"], (3, 2)), rtol=1e-6)
    q, weights = trained.posterior(KEY, new)["f"], np.asarray(trained.params["weights"])
    scale = np.sqrt(q.variance + trained.params["noise_variance"])
    density = logsumexp(norm.logpdf(np.abs(new), q.mean, scale), b=weights, axis=1)
    np.testing.assert_allclose(found["y"].log_density, density, atol=0.1)
    np.testing.assert_allclose(found["y"].mean, q.mean @ weights, atol=4 * 1.5 / np.sqrt(200))
    assert found["y"].variance[0] > 1 and found["y"].quantiles[0, 0] < -1 and found["y"].quantiles[1, 0] > 1


@pytest.mark.slow
def test_exports_have_densities_summed_over_the_functions(trained):
    exported = trained.to_arviz(KEY, X, Y, num_draws=3)
    assert set(exported.posterior.data_vars) == {"f", "f_u"}
    f, (a, b) = exported.posterior["f"].values[0], np.log(trained.params["weights"])
    parts = dist.Normal(f, np.sqrt(trained.params["noise_variance"])).log_prob(Y[:, None])
    wanted = np.logaddexp(a + parts[..., 0], b + parts[..., 1])
    np.testing.assert_allclose(exported.log_likelihood["y"].values[0], wanted, rtol=1e-6)


def with_outliers(X, y=None):
    f = draws(numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X)))
    with numpyro.plate("data", len(X)):
        wrong = numpyro.sample("wrong", dist.Bernoulli(0.1), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(jnp.where(wrong, 0.0, f), jnp.where(wrong, 5.0, 0.1)), obs=y)


@pytest.mark.slow
def test_outliers_are_found_and_leave_the_function_alone():
    wrong = RNG.uniform(size=60) < 0.15
    y = np.where(wrong, RNG.uniform(-8, 8, 60), np.sin(2 * X[:, 0]) + 0.1 * RNG.standard_normal(60))
    svi = SVI(with_outliers, InducingGuide(with_outliers, kmeans(8)), adam(0.05), GaussianProcessELBO())
    trained = fit(KEY, svi, 200, X, y, progress=False)
    f = np.asarray(trained.posterior(KEY, X)["f"].mean)
    np.testing.assert_allclose(f, np.sin(2 * X[:, 0]), atol=0.3)
    found = np.asarray(most_probable(with_outliers, "wrong", trained.params, f, y))
    far = np.abs(y - np.sin(2 * X[:, 0])) > 1
    assert (found[far] == 1).all() and found[~wrong].mean() < 0.05
