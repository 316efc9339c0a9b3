"""What MCMC exports of the zoo is finite, and ArviZ takes it; so are exports of exact regression."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import MCMC, NUTS

from gpzoo import GaussianProcess
from gpzoo.inference import draws_to_arviz, plots, whitened
from gpzoo.kernels import RBF, White
from tests.inference.test_whitened import ZOO, priors
from tests.models.test_zoo_exports import only_of_arviz
from tests.programs import KEY, sine

pytestmark = pytest.mark.slow


def sampled(program, *args):
    """Draws ``[2, 20, ...]`` of two short chains, and what NUTS says of them."""

    @jax.jit
    def run(key):
        kernel = NUTS(program, max_tree_depth=3)
        mcmc = MCMC(kernel, num_warmup=20, num_samples=20, num_chains=2, chain_method="vectorized", progress_bar=False)
        mcmc.run(key, *args, extra_fields=("diverging", "energy"))
        return mcmc.get_samples(group_by_chain=True), mcmc.get_extra_fields(group_by_chain=True)

    return jax.tree.map(np.asarray, run(KEY))


def exported(program, *args):
    draws, stats = sampled(program, *args)
    found = draws_to_arviz(KEY, program, *args, posterior_samples=draws, sample_stats=stats, new_args=(args[0][:2],))
    for group in ("posterior", "posterior_predictive", "predictions", "prior", "log_likelihood", "sample_stats"):
        for name, values in found[group].data_vars.items():
            assert np.isfinite(values).all(), (group, name)
    return found


CASES = [(name, "exact") for name in ZOO] + [(name, "sparse") for name in ("regression", "classes", "deep")]
#: Of all of these, in every run of the tests; the others with ``make stress``.
ONE = ("classes", "sparse")


@pytest.mark.parametrize(
    ("name", "form"), [case if case == ONE else pytest.param(*case, marks=pytest.mark.stress) for case in CASES]
)
def test_an_export_of_chains_is_finite_and_complete(name, form, standard_promotion):
    if (name, form) != ONE and not os.environ.get("GPZOO_STRESS"):
        pytest.skip("make stress runs it")
    program, inputs, data, inducing = ZOO[name]
    lifted = handlers.lift(program, prior=priors(program, inputs, data))
    found = exported(whitened(lifted, inducing if form == "sparse" else None), inputs, data)
    assert "approximation" not in found["posterior"].attrs and found["posterior"].sizes["chain"] == 2
    only_of_arviz(found, ordered=data.dtype.kind == "f", names=("f",) if form == "exact" else ("f_u",))


def exact(X, y=None):
    noise = numpyro.sample("noise", dist.LogNormal(-2.0, 1.0))
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 0.5))
    numpyro.sample("y", GaussianProcess(RBF(jnp.ones(()), lengthscale) + White(noise), X), obs=y)


def test_an_export_of_exact_regression_is_finite_and_complete(standard_promotion):
    found = exported(exact, *sine(12))
    assert set(found["posterior"].data_vars) == {"noise", "lengthscale"}
    only_of_arviz(found, ordered=True, names=("noise", "lengthscale"))
    assert {ax.get_xlabel() for ax in plots.prior_posterior(found)} == {"noise", "lengthscale"}
