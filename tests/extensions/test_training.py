"""An objective and an optimiser from outside the package: trained with, resumed, and refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.infer import SVI, Trace_ELBO

from gpzoo import InducingPoints
from gpzoo.errors import NonFiniteError
from gpzoo.inference import CollapsedELBO, GaussianProcessELBO, InducingGuide, all_devices, fit, vsbc
from tests.extensions.objective import LeastSquares
from tests.extensions.optimiser import Halving, HalvingOfSites
from tests.programs import KEY, adam, positive, regression, sine

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 1))
Y = 1.7 * X[:, 0] + 0.3 * RNG.normal(size=12)
SLOPE = X[:, 0] @ Y / (X[:, 0] @ X[:, 0])
NOISE = np.sqrt(np.mean((Y - SLOPE * X[:, 0]) ** 2))


def line(X, y=None, *, num_data=None):
    slope = numpyro.param("slope", jnp.array(1.0))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", dist.Normal(slope * X[:, 0], positive("noise", 1.0)), obs=y)


def nothing(X, y=None, *, num_data=None):
    """The guide of a program without latent sites."""


def made(optimiser=None, objective=None, model=line):
    return SVI(model, nothing, optimiser or Halving(0.02), objective or LeastSquares())


def test_objective_and_optimiser_find_the_optimum(tmp_path):
    whole = fit(KEY, made(), 40, X, Y, progress=False)
    np.testing.assert_allclose([whole.params["slope"], whole.params["noise"]], [SLOPE, NOISE], rtol=1e-6)
    assert np.all(np.diff(whole.losses) <= 1e-9)
    np.testing.assert_allclose(whole.losses[-1], -np.sum(dist.Normal(0, NOISE).log_prob(Y - SLOPE * X[:, 0])))
    # A training that stops and goes on, and several trainings in one, are those of any other.
    fit(KEY, made(), 15, X, Y, progress=False, checkpoint=tmp_path)
    resumed = fit(KEY, made(), 40, X, Y, progress=False, checkpoint=tmp_path)
    np.testing.assert_array_equal(resumed.losses, whole.losses)
    several = fit(random.split(KEY, 2), made(), 40, np.stack([X, X]), np.stack([Y, 2 * Y]), progress=False)
    np.testing.assert_allclose(several.params["noise"], [NOISE, 2 * NOISE], rtol=1e-6)
    reported = []
    fit(KEY, made(), 2, X, Y, progress=False, callback=lambda *found: reported.append(found[2]))
    np.testing.assert_allclose(reported[-1]["noise"], np.sqrt(np.mean((Y - reported[-1]["slope"] * X[:, 0]) ** 2)))


@pytest.mark.slow
def test_each_goes_with_the_packages_own():
    ours = fit(KEY, made(objective=GaussianProcessELBO()), 40, X, Y, progress=False)
    np.testing.assert_allclose([ours.params["slope"], ours.params["noise"]], [SLOPE, NOISE], rtol=1e-3)
    with pytest.warns(UserWarning, match="3 of 3 natural steps of site 'f' were shortened"):
        found = fit(KEY, made(HalvingOfSites(0.5), Trace_ELBO()), 3, X, Y, progress=False)
    assert set(found.backed_off) == {"f"} and int(found.backed_off["f"]) == 3
    X_small, y = sine(12)
    guide = InducingGuide(regression, InducingPoints(X_small[::3]))
    collapsed = fit(KEY, SVI(regression, guide, Halving(1e-3), CollapsedELBO()), 5, X_small, y, progress=False)
    assert collapsed.losses[-1] < collapsed.losses[0] and collapsed.params["f_scale"].shape == (4, 4)


def test_they_are_refused_by_name_where_they_do_not_fit():
    same = "needs the same bound at every step, of all rows"
    for svi, options, message in (
        (made(adam(0.1)), {"batch_size": 4}, f"LeastSquares {same}"),
        (made(objective=Trace_ELBO()), {"batch_size": 4}, f"Halving {same}.*optax.adam"),
        (made(adam(0.1)), {"mesh": all_devices()}, "with LeastSquares leave it out"),
        (made(HalvingOfSites(0.1)), {}, "LeastSquares has no natural gradients"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(KEY, svi, 3, X, Y, progress=False, **options)
    with pytest.raises(TypeError, match=r"object is no objective: it must have loss\(key, params"):
        fit(KEY, made(objective=object()), 3, X, Y, progress=False)
    with pytest.raises(ValueError, match="for programs with a slope and a noise"):
        fit(KEY, made(adam(0.1), model=lambda X, y=None: None), 3, X, Y, progress=False)
    with pytest.raises(ValueError, match="which LeastSquares does not train"):
        vsbc(KEY, made(), 3, X, Y)


def test_a_failure_is_explained_with_the_optimisers_own_advice():
    class Edge(LeastSquares):
        def loss(self, rng_key, params, *args, **kwargs):
            return super().loss(rng_key, params, *args) + jnp.where(params["slope"] > 1.2, jnp.nan, 0.0)

    class Blind(Halving):
        def eval_and_update(self, fn, state, forward_mode_differentiation=False):
            i, (params, halved) = state
            (value, aux), gradient = jax.value_and_grad(fn, has_aux=True)(params)
            return (value, aux), (i + 1, (jax.tree.map(lambda x, g: x - 0.002 * g, params, gradient), halved))

    with pytest.raises(NonFiniteError, match=r"the ELBO is nan\. Begin closer to the optimum") as caught:
        fit(KEY, made(Blind(0.1), Edge()), 40, X, Y, progress=False)
    assert 1.0 < caught.value.result.params["slope"] <= 1.2
