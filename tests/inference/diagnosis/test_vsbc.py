"""A right guide passes; a shift is a bias; a wrong width, which tests of bias do not see, is not uniform."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.infer import SVI, Trace_ELBO

from gpzoo import GaussianProcess, NonFiniteError, kmeans
from gpzoo.inference import CollapsedELBO, GaussianProcessELBO, InducingGuide
from gpzoo.inference.diagnosis.vsbc import vsbc
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Gaussian
from tests.programs import adam, program_of

X = np.linspace(-1, 1, 10)[:, None]
Y = np.zeros(10)


def level(X, y=None, shift=0.0, scale=1.0):
    mean = numpyro.sample("level", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def around_level(X, y=None, shift=0.0, scale=1.0):
    """The posterior of ``level``, shifted by some of its standard deviations, and its standard deviation scaled."""
    # Trained to nothing: the posterior is known.
    free, spread = numpyro.param("free", jnp.zeros(())), 1 / np.sqrt(11)
    location = jnp.sum(y) / 11 + shift * spread + 0 * free
    numpyro.sample("level", dist.Normal(location, scale * spread))


@pytest.mark.slow_but(scale=[0.5])
@pytest.mark.parametrize(
    "shift, scale, expected",
    [(0.0, 1.0, None), (0.5, 1.0, "biased"), (0.0, 0.5, "guide too narrow"), (0.0, 2.0, "guide too wide")],
)
def test_the_faults_of_a_guide_are_told_apart(shift, scale, expected):
    svi = SVI(level, around_level, adam(0.01), Trace_ELBO())
    options = {"shift": jnp.asarray(shift), "scale": jnp.asarray(scale)}
    found = vsbc(random.key(0), svi, 1, X, Y, num_simulations=200, model_kwargs=options)
    ((_, simulations, bias, uniform, mean, inside),) = found.sections[0].rows
    assert simulations == 200 and found.arrays["level_ranks"].shape == (200, 1)
    assert [finding.name for finding in found.findings] == ([] if expected is None else [expected])
    if expected is None:
        assert bias > 0.01 and uniform > 0.01
    elif expected != "biased":
        assert bias > 0.01 > uniform
        assert (inside < 0.5) == (scale < 1)
    else:
        assert mean < 0.5


def test_draws_that_are_not_finite_are_refused():
    svi = SVI(level, around_level, adam(0.01), Trace_ELBO())
    options = {"shift": jnp.asarray(1e308), "scale": jnp.asarray(1e308)}
    with pytest.raises(NonFiniteError, match="some of the 2 simulations, first at site 'level'"):
        vsbc(random.key(0), svi, 1, X, Y, num_simulations=2, model_kwargs=options)


@pytest.mark.slow
def test_functions_have_ranks_too():
    program = program_of(lambda f: Gaussian(f, 0.1))

    svi = SVI(program, InducingGuide(program, kmeans(4)), adam(0.1), GaussianProcessELBO())
    found = vsbc(random.key(1), svi, 100, X, Y, num_simulations=40)
    assert found.arrays["f_ranks"].shape == (40, 5)
    assert not found.findings
    # Too sure of the prior's mean.
    svi = SVI(program, InducingGuide(program, kmeans(4), initial_scale=0.3), adam(1e-6), GaussianProcessELBO())
    untrained = vsbc(random.key(1), svi, 1, X, Y, num_simulations=40)
    assert {finding.name for finding in untrained.findings} == {"guide too narrow"}


def test_programs_without_data_are_refused():
    svi = SVI(level, around_level, adam(0.01), Trace_ELBO())
    with pytest.raises(ValueError, match="None of the 1 arguments is data"):
        vsbc(random.key(0), svi, 1, X)


def test_the_collapsed_bound_is_refused():
    def program(X, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X))
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    svi = SVI(program, InducingGuide(program, kmeans(4)), adam(0.1), CollapsedELBO())
    with pytest.raises(ValueError, match="CollapsedELBO does not train"):
        vsbc(random.key(0), svi, 1, X, Y)
