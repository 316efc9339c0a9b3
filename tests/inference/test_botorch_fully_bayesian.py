"""BoTorch's fully Bayesian models as programs: the same density, and the same posterior means by NUTS."""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.diagnostics import gelman_rubin
from numpyro.infer.util import log_density

from gpzoo import GaussianProcess
from gpzoo.inference import marginal, nuts
from gpzoo.kernels import Matern52
from gpzoo.likelihoods import Gaussian
from tests.programs import KEY
from tests.statistics import errors_apart

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "botorch_fully_bayesian.json").read_text(encoding="utf-8"))
X, y = np.array(GOLDEN["X"]), np.array(GOLDEN["y"])


def saas(dim):
    """Sparse axis-aligned subspaces (Eriksson and Jankowiak 2021)."""
    outputscale = numpyro.sample("outputscale", dist.Gamma(2.0, 0.15))
    tausq = numpyro.sample("kernel_tausq", dist.HalfCauchy(0.1))
    of_column = numpyro.sample("_kernel_inv_length_sq", dist.HalfCauchy(1.0).expand([dim]).to_event(1))
    return Matern52(outputscale, 1 / jnp.sqrt(tausq * of_column))


def matern(dim):
    """A prior of lengthscales that grows with the number of columns (Hvarfner, Hellsten and Nardi 2024)."""
    prior = dist.LogNormal(np.sqrt(2) + np.log(dim) / 2, np.sqrt(3)).expand([dim]).to_event(1)
    return Matern52(1.0, numpyro.sample("lengthscale", prior))


KERNELS = {"saas": saas, "matern": matern}


def fully_bayesian(X, y=None, *, kernel):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    noise = 1e-4 + numpyro.sample("noise", dist.Gamma(0.9, 10.0))
    f = numpyro.sample("f", GaussianProcess(kernel(X.shape[1]), X))
    numpyro.sample("Y", Gaussian(f + mean, noise), obs=y)


@pytest.mark.parametrize("name", KERNELS)
def test_the_density_is_theirs(name):
    program = marginal(partial(fully_bayesian, kernel=KERNELS[name]))

    @jax.jit
    def both(values):
        total, trace = log_density(program, (X, y), {}, values)
        return total, trace["Y"]["fn"].log_prob(y)

    for point in GOLDEN["models"][name]["points"]:
        total, data = both(jax.tree.map(jnp.asarray, point["values"], is_leaf=lambda x: isinstance(x, list)))
        assert float(total) == pytest.approx(point["log_density"], abs=1e-8)
        assert float(data) == pytest.approx(point["gpytorch_data_log_density"], abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_the_posterior_is_theirs(name):
    program = marginal(partial(fully_bayesian, kernel=KERNELS[name]))
    mcmc = nuts(KEY, program, X, y, num_warmup=500, num_samples=1000, progress=False)
    draws = {key: np.asarray(value) for key, value in mcmc.get_samples(group_by_chain=True).items()}
    if name == "saas":
        draws["log_outputscale"] = np.log(draws["outputscale"])
        draws["log_kernel_tausq"] = np.log(draws["kernel_tausq"])
        draws["log_inv_length_sq"] = np.log(draws["kernel_tausq"][..., None] * draws["_kernel_inv_length_sq"])
    else:
        draws["log_lengthscale"] = np.log(draws["lengthscale"])
    draws["log_noise"] = np.log(draws["noise"])
    for what, theirs in GOLDEN["models"][name]["posterior"].items():
        for column, (mean, error) in enumerate(zip(theirs["mean"], theirs["mcse"], strict=True)):
            values = draws[what] if draws[what].ndim == 2 else draws[what][..., column]
            assert gelman_rubin(values) < 1.02, (what, column)
            assert errors_apart(values, mean, error) < 4, (what, column)
