"""Functions over draws and batches: compiled once, joined, refused by name if not finite."""

import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from jax import random

from gpzoo import InducingPoints, draws, kmeans
from gpzoo.errors import FactorisationError, NonFiniteError
from gpzoo.inference import InducingGuide, Trained
from gpzoo.inference.fitted.map_batches import BatchFunction, Static, map_batches
from gpzoo.inference.programs.gp_sites import Marginals
from gpzoo.inference.programs.runs import run
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Gaussian
from gpzoo.processes.process import GaussianProcess

KEY = random.key(0)
X = np.linspace(-2, 2, 7)[:, None]
Y = np.sin(X[:, 0])


def regression(X, y=None, *, scale=1.0, of_others=None):
    f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
    if of_others is not None:
        numpyro.sample("g", GaussianProcess(RBF(1.0, 1.0), of_others))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, 0.1 * scale), obs=y)


def deep(X, y=None):
    f1 = numpyro.sample("f1", GaussianProcess(RBF(1.0, 1.0), X, mean=X[:, 0]))
    f2 = numpyro.sample("f2", GaussianProcess(RBF(1.0, 1.0), draws(f1)[:, None]))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f2, 0.1), obs=y)


def moments(guide, sign=1.0, traced=None):
    """The means of GP sites and a random number for each draw; notes when it is traced."""

    def of_draw(key, batch):
        if traced is not None:
            traced.append(len(batch.rows))
        mode = Marginals(batch.site_rows, batch.views)
        found = run(key, batch.args, batch.kwargs, guide=guide, values=batch.params, mode=mode).guide
        values = {name: sign * found[name]["fn"].marginals()[0] for name in guide.sites.processes}
        notes = Static({"names": sorted(values)})
        return {"means": values, "numbers": {"f": jnp.full(len(batch.rows), random.normal(key))}, "notes": notes}

    return of_draw


@pytest.fixture(scope="module")
def trained():
    guide = InducingGuide(regression, InducingPoints(X[::3]))
    return Trained(regression, guide, guide.init_params(KEY, X, Y, model_kwargs={"of_others": X[:3]}))


def mapped(model, keys, size, sign=1.0, traced=None, draws_together=1):
    fn = BatchFunction("moments", moments(model.guide, sign, traced), sign, draws_together)
    return map_batches(fn, model, keys, size).arrays


@pytest.mark.slow
def test_batches_are_the_whole_where_a_site_is_drawn():
    layers = {"f1": kmeans(4), "f2": kmeans(4)}
    guide = InducingGuide(deep, layers)
    model = Trained(deep, guide, guide.init_params(KEY, X, Y))._bind((X,), None)
    whole, parts = (mapped(model, random.split(KEY, 2), size) for size in (7, 3))
    for name in layers:
        assert whole["means"][name].shape[:2] == (2, 7)
        np.testing.assert_allclose(parts["means"][name], whole["means"][name], rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_draws_and_batches_are_joined(trained):
    model = trained._bind((X,), {"of_others": X[:3]})
    keys = random.split(KEY, 3)
    whole, parts = (mapped(model, keys, size) for size in (7, 3))
    posterior = trained.posterior(KEY, X, model_kwargs={"of_others": X[:3]})
    assert {name: x.shape for name, x in whole["means"].items()} == {"f": (3, 7), "g": (3, 3)}
    assert whole["notes"].value == parts["notes"].value == {"names": ["f", "g"]}
    for group in ("means", "numbers"):
        for name, values in whole[group].items():
            np.testing.assert_allclose(parts[group][name], values, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(whole["means"]["f"][1], posterior["f"].mean, atol=1e-10)
    np.testing.assert_array_equal(whole["numbers"]["f"][:, 0], [random.normal(key) for key in keys])


@pytest.mark.parametrize("draws_together", [1, 2, None])
def test_draws_do_not_depend_on_how_many_are_made_at_once(trained, draws_together):
    model = trained._bind((X,), {"of_others": X[:3]})
    found = mapped(model, random.split(KEY, 5), 7, draws_together=draws_together)["numbers"]["f"]
    np.testing.assert_array_equal(found[:, 0], [random.normal(key) for key in random.split(KEY, 5)])


def test_a_function_is_compiled_once_for_shapes_static_arguments_and_options(trained):
    keys, traced = random.split(KEY, 2), []
    first = mapped(trained._bind((X,), {"of_others": X[:3]}), keys, 7, -1.0, traced)
    again = trained.with_params(trained.params)._bind((X + 1,), {"of_others": X[1:4]})
    mapped(again, random.split(random.key(1), 2), 7, -1.0, traced)
    count = len(traced)
    other = mapped(trained._bind((X,), {"of_others": X[:3]}), keys, 7, 1.0)
    np.testing.assert_array_equal(other["means"]["f"], -first["means"]["f"])
    mapped(trained._bind((X,), {"of_others": X[:3], "scale": 2.0}), keys, 7, -1.0, traced)
    assert (count, len(traced)) == (1, 2)


def test_static_values_are_equal_by_type_and_value():
    made = [Static({"a": x}) for x in (1, 1.0, True, "1", np.ones(2), np.zeros(2), None)]
    assert len(set(made)) == len(made)
    assert Static({"a": [1, np.ones(2)]}) == Static({"a": [1, np.ones(2)]})


def test_what_is_not_finite_is_refused_by_the_name_of_its_site(trained):
    def of_draw(key, batch):
        bad = jnp.where(batch.rows == 5, -jnp.inf, 0.0)
        return {"means": {"y": bad}, "densities": {"y": bad}}

    model = trained._bind((X,), {"of_others": X[:3]})
    result = map_batches(BatchFunction("bad", of_draw), model, random.split(KEY, 2), 3)
    with pytest.raises(NonFiniteError, match=r"2 of 14 means of site 'y' are not finite"):
        result.refuse_not_finite({"means": "means"}, {"f"})
    with pytest.raises(FactorisationError, match=r"of site 'y' are not finite"):
        result.refuse_not_finite({"means": "means"}, {"y"})
    result.refuse_not_finite({"densities": "log densities"}, {"f"})  # of impossible data
