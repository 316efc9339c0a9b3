"""A question of one's own: checked, compiled once, over draws and batches, joined, refused by name if not finite."""

import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from jax import random

from gpzoo import InducingPoints, draws, kmeans
from gpzoo.errors import FactorisationError, NonFiniteError
from gpzoo.inference import InducingGuide, Trained
from gpzoo.inference.asking.ask import Question, ask, count_rows
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


@pytest.fixture(scope="module")
def trained():
    guide = InducingGuide(regression, InducingPoints(X[::3]))
    return Trained(regression, guide, guide.init_params(KEY, X, Y, model_kwargs={"of_others": X[:3]}))


def means(subject, sign=1.0):
    """The means of GP sites and a random number for each draw, as a question that notes when it is traced."""
    guide, static, layouts, traced = subject.guide, subject.static, subject.site_rows.layouts, []

    def of_draw(key, at):
        traced.append(len(at.rows))
        shown = Marginals(at.rows_of(layouts), at.views)
        found = run(key, at.args, at.arrays | static, guide=guide, values=at.params, mode=shown).guide
        values = {name: sign * found[name]["value"].mean for name in guide.sites.processes}
        return {"means": values, "numbers": {"f": jnp.full(len(at.rows), random.normal(key))}}

    return Question("means", of_draw, options=sign, notes=traced)


def test_the_recipe_is_right_where_a_site_is_drawn():
    layers = {"f1": kmeans(4), "f2": kmeans(4)}
    guide = InducingGuide(deep, layers)
    trained = Trained(deep, guide, guide.init_params(KEY, X, Y))

    def moments(key, at):
        shown = Marginals(at.rows_of(layouts), at.views)
        found = run(key, at.args, at.arrays | static, guide=guide, values=at.params, mode=shown).guide
        return {"means": {name: found[name]["fn"].marginals()[0] for name in guide.sites.processes}}

    subject = trained._subject((X,), None)
    static, layouts = subject.static, subject.site_rows.layouts
    count_rows(subject, 3)
    whole, parts = (
        ask(Question("moments", moments), subject, random.split(KEY, 2), batch_size=n).found for n in (7, 3)
    )
    for name in layers:
        assert whole["means"][name].shape[:2] == (2, 7)
        np.testing.assert_allclose(parts["means"][name], whole["means"][name], rtol=1e-10, atol=1e-12)


def test_draws_and_batches_are_joined(trained):
    subject = trained._subject((X,), {"of_others": X[:3]})
    keys = random.split(KEY, 3)
    whole, parts = (ask(means(subject), subject, keys, batch_size=size).found for size in (7, 3))
    posterior = trained.posterior(KEY, X, model_kwargs={"of_others": X[:3]})
    assert {name: x.shape for name, x in whole["means"].items()} == {"f": (3, 7), "g": (3, 3)}
    for group, sites in whole.items():
        for name, values in sites.items():
            np.testing.assert_allclose(parts[group][name], values, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(whole["means"]["f"][1], posterior["f"].mean, atol=1e-10)
    np.testing.assert_array_equal(whole["numbers"]["f"][:, 0], [random.normal(key) for key in keys])


@pytest.mark.parametrize("at_once", [1, 2, None])
def test_draws_do_not_depend_on_how_many_are_made_at_once(trained, at_once):
    subject = trained._subject((X,), {"of_others": X[:3]})
    question = means(subject)
    question = Question("means", question.of_draw, at_once)
    found = ask(question, subject, random.split(KEY, 5), batch_size=7).found["numbers"]["f"]
    np.testing.assert_array_equal(found[:, 0], [random.normal(key) for key in random.split(KEY, 5)])


def test_a_question_is_compiled_once_for_shapes_static_arguments_and_options(trained):
    subject = trained._subject((X,), {"of_others": X[:3]})
    first = ask(means(subject, sign=-1.0), subject, random.split(KEY, 2), batch_size=7)
    count = len(first.question.notes)
    again = trained.with_params(trained.params)._subject((X + 1,), {"of_others": X[1:4]})
    second = ask(means(again, sign=-1.0), again, random.split(random.key(1), 2), batch_size=7)
    assert second.question is first.question and len(second.question.notes) == count
    other = ask(means(subject, sign=1.0), subject, random.split(KEY, 2), batch_size=7)
    assert other.question is not first.question
    np.testing.assert_array_equal(other.found["means"]["f"], -first.found["means"]["f"])
    louder = trained._subject((X,), {"of_others": X[:3], "scale": 2.0})
    assert ask(means(louder, sign=-1.0), louder, random.split(KEY, 2), batch_size=7).question is not first.question


def test_what_is_not_finite_is_refused_by_the_name_of_its_site(trained):
    subject = trained._subject((X,), {"of_others": X[:3]})

    def of_draw(key, at):
        bad = jnp.where(at.rows == 5, -jnp.inf, 0.0)
        return {"means": {"y": bad}, "densities": {"y": bad}}

    answer = ask(Question("bad", of_draw), subject, random.split(KEY, 2), batch_size=3)
    with pytest.raises(NonFiniteError, match=r"2 of 14 means of site 'y' are not finite"):
        answer.refuse_not_finite({"means": "means"}, {"f"})
    with pytest.raises(FactorisationError, match=r"of site 'y' are not finite"):
        answer.refuse_not_finite({"means": "means"}, {"y"})
    answer.refuse_not_finite({"densities": "log densities"}, {"f"})  # of impossible data
