"""Sums of GP sites are told of, by name, wherever they enter the data; and nothing else is called a sum."""

import re
from functools import partial

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from gpzoo import draws, kmeans
from gpzoo.inference import InducingGuide, check, diagnose, marginal
from gpzoo.kernels import RBF, Constant, Linear, Matern12
from gpzoo.likelihoods import Expected, Gaussian, HeteroscedasticGaussian
from gpzoo.models import coregionalised_gp, deep_gp
from gpzoo.models.deep import linear_layers
from gpzoo.processes.process import GaussianProcess
from tests.programs import KEY, at_start, poisson, sine

X, Y = map(np.asarray, sine(12))
GROUP = np.arange(12) % 3
PLACES = np.arange(3.0)[:, None]


def site(name, at=X, **options):
    return numpyro.sample(name, GaussianProcess(RBF(1.0, 1.0), at, **options))


def of(law, X, y=None):
    law(y)


def data(f):
    """A program whose data are around a function of marginals."""
    return lambda y: numpyro.sample("y", Gaussian(f(), 0.1), obs=y)


def of_draws(f):
    return lambda y: numpyro.sample("y", dist.Normal(f(), 0.1), obs=y)


#: Those that a guide gives one q.
COUPLED = ("two", "three", "scaled", "by index", "quadrature", "mixed")

SUMS = {
    "two": (data(lambda: site("a") + site("b")), "a + b"),
    "three": (data(lambda: site("a") - site("c") + site("b")), "a + b + c"),
    "scaled": (data(lambda: 2.0 * site("a") + X[:, 0] * site("b") + 1.0), "a + b"),
    "by index": (data(lambda: site("a") + site("b", PLACES)[GROUP]), "a + b"),
    "mixed": (data(lambda: site("a") + site("b", num_outputs=2) @ jnp.array([1.0, 2.0])), "a + b"),
    "of many": (data(lambda: site("a") + site("b", num_outputs=10).sum(-1)), "a + b"),
    "quadrature": (lambda y: numpyro.sample("y", Expected(poisson, site("a") + site("b")), obs=y), "a + b"),
    "drawn": (of_draws(lambda: jnp.tanh(draws(site("a")) + 3 * draws(site("b")))), "a + b"),
    "drawn together": (of_draws(lambda: draws(site("a") + site("b"))), "a + b"),
}


def stack(y):
    h = draws(site("h"))
    numpyro.sample("y", Gaussian(site("f", h[:, None]), 0.1), obs=y)


def stack_of_a_sum(y):
    h = draws(site("a") + site("b"))
    numpyro.sample("y", Gaussian(site("f", h[:, None]), 0.1), obs=y)


def noises(y):
    numpyro.sample("y", dist.Normal(draws(site("a")), jnp.exp(draws(site("b")))), obs=y)


OTHERS = {
    "one site": data(lambda: 2.0 * site("a") + X[:, 0]),
    "a sum of kernels": data(lambda: numpyro.sample("a", GaussianProcess(RBF() + Matern12(), X))),
    "pieces of one": data(lambda: site("a", num_outputs=2).sum(-1)),
    "an intercept": data(lambda: site("a") + numpyro.sample("level", dist.Normal(0.0, 1.0))),
    "independent outputs": lambda y: numpyro.sample("y", HeteroscedasticGaussian(site("a", num_outputs=2)), obs=y),
    "data of their own": lambda y: [numpyro.sample(f"y{n}", Gaussian(site(n), 0.1), obs=y) for n in "ab"],
    "a stack": stack,
    "a sum inside of a stack": stack_of_a_sum,
    "a choice": of_draws(lambda: jnp.where(GROUP == 0, draws(site("a")), draws(site("b")))),
    "a mean and a noise": noises,
}


def added(program, *args):
    return [finding for finding in check(program, *args) if finding.name == "added sites"]


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_sites_are_told_of(name):
    (law, said), y = SUMS[name], np.abs(np.round(Y))
    if name in COUPLED:
        assert not added(partial(of, law), X, y)
        sites = InducingGuide(partial(of, law), kmeans(3)).setup(X, y)
        assert " + ".join(sorted(sites.coupled[0])) == said
        return
    (found,) = added(partial(of, law), X, y)
    assert found.site == said
    assert f"a sum of {said.replace(' + ', ', ')}," in found.text and "draws_of_sites" in found.text


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_sum_is_not_called_one(name):
    assert added(partial(of, OTHERS[name]), X, Y) == []


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("level", [Constant(2.0), Linear(1.0), 3.0 * Constant(1.0)])
def test_levels_that_two_sites_share_are_told_of(level, place):
    def program(X, y=None):
        kernels = [RBF() + level if i != place else RBF() for i in range(3)]
        sites = [numpyro.sample(f"f{i}", GaussianProcess(kernel, X)) for i, kernel in enumerate(kernels)]
        numpyro.sample("y", Gaussian(sites[0] - 2.0 * sites[1] + sites[2], 0.1), obs=y)
        numpyro.sample("z", Gaussian(numpyro.sample("g", GaussianProcess(RBF() + level, X)), 0.1), obs=y)

    (found,) = [finding for finding in check(program, X, Y) if finding.name == "shared level"]
    assert found.site == " + ".join(f"f{i}" for i in range(3) if i != place)


def test_layers_and_mixed_outputs_of_the_zoo_are_no_sums():
    assert added(partial(deep_gp, layers=linear_layers(X, [2, 2])), X, Y) == []
    assert added(partial(coregionalised_gp, num_outputs=2), X, np.stack([Y, -Y], axis=1)) == []
    two = partial(of, SUMS["two"][0])
    assert added(marginal(two), X, Y) == []  # has their exact posterior


@pytest.mark.slow_but(coupled=[True])
@pytest.mark.parametrize("law, coupled, count", [(SUMS["two"][0], False, 1), (SUMS["two"][0], True, 0)])
def test_a_diagnosis_compares_the_mean_field_with_the_joint(law, coupled, count):
    start = at_start(partial(of, law), kmeans(4), X, Y, coupled=coupled)
    found = [finding for finding in diagnose(KEY, start, X, Y).findings if finding.name == "mean field"]
    assert len(found) == count
    for finding in found:  # two equal sites share what the data say
        assert finding.site == "a + b" and float(re.search(r"([\d.]+) nats", finding.text)[1]) > 1
        assert all(float(ratio) > 1.5 for ratio in re.findall(r"([\d.]+) \([ab]\)", finding.text))
