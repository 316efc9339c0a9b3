"""Missing entries of ``y``: every likelihood leaves out their terms, and no others, in value and derivative."""

from copy import copy

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import multivariate_normal

from gpzoo.likelihoods import Bernoulli, Expected, Gaussian, PolyaGamma
from gpzoo.processes.marginals import GaussianMarginals
from tests.gpzoo.likelihoods.cases import REALS, A, K, N, build, every_kind_of_case, log_probs

SEEN = np.ones((N, K), bool)
SEEN[[0, 3], [1, 2]] = SEEN[2] = False


def missing(likelihood):
    found = copy(likelihood)
    found.missing = "mask"
    return found


@pytest.mark.slow_but(case=["gaussian outputs", "logit", "polya-gamma"], kind=["array"])
@every_kind_of_case
def test_rows_without_data_have_no_term(case, kind):
    likelihood, y = build(case, kind)
    rows = np.arange(N) != 2
    holed = np.where(rows.reshape(-1, *(1,) * (np.ndim(y) - 1)), y, np.nan)
    for ours, all_of_them in zip(log_probs(missing(likelihood), holed), log_probs(likelihood, y), strict=True):
        np.testing.assert_allclose(ours, np.where(rows, all_of_them, 0), rtol=1e-10)
    slope = jax.grad(lambda d: d.log_prob(holed).sum(), allow_int=True)(missing(likelihood)).f
    leaves = [x for x in jax.tree.leaves(slope) if jnp.issubdtype(x.dtype, jnp.floating)]
    assert leaves and all(np.isfinite(x).all() for x in leaves)


@pytest.mark.slow_but(case=["polya-gamma outputs"])
@pytest.mark.parametrize("case", ["gaussian outputs", "logit outputs", "polya-gamma outputs"])
def test_entries_count_one_by_one(case):
    likelihood, y = build(case, "independent")
    holed = np.where(SEEN, y, np.nan)
    terms = np.zeros((N, K))
    for d in range(K):
        f = likelihood.f[:, d : d + 1]
        own = {
            "gaussian outputs": lambda f: Gaussian(f, likelihood.noise_variance[d]),  # noqa: B023
            "logit outputs": lambda f: Bernoulli(f, "logit"),
            "polya-gamma outputs": PolyaGamma,
        }[case](f)
        terms[:, d] = own.log_prob(y[:, d : d + 1])
    np.testing.assert_allclose(missing(likelihood).log_prob(holed), np.where(SEEN, terms, 0).sum(1), rtol=1e-10)
    masked = likelihood.mask(jnp.asarray(SEEN))
    np.testing.assert_allclose(masked.log_prob(np.where(SEEN, y, 7.0)), np.where(SEEN, terms, 0).sum(1), rtol=1e-10)
    twice = masked.mask(jnp.arange(N) > 0).mask(jnp.arange(K) > 0)
    kept = SEEN & (np.arange(N) > 0)[:, None] & (np.arange(K) > 0)
    np.testing.assert_allclose(twice.log_prob(y), np.where(kept, terms, 0).sum(1), rtol=1e-10)
    again = jax.jit(lambda masked, y: masked.log_prob(y))(masked, y)
    np.testing.assert_allclose(again, masked.log_prob(y), rtol=1e-10)


def test_correlated_outputs_are_scored_by_what_was_observed():
    likelihood, y = build("gaussian outputs", "correlated")
    f, found = likelihood.f, missing(likelihood).predictive_log_prob(np.where(SEEN, y, np.nan))
    for n in range(N):
        seen = SEEN[n]
        covariance = A.T @ np.diag(f.source_variance[n]) @ A + np.diag(likelihood.noise_variance)
        own = (
            multivariate_normal(f.mean[n][seen], covariance[np.ix_(seen, seen)]).logpdf(y[n][seen]) if seen.any() else 0
        )
        np.testing.assert_allclose(found[n], own, rtol=1e-9, atol=1e-12)


def test_what_cannot_be_left_out_is_refused():
    f = GaussianMarginals(jnp.zeros((N, K)), jnp.ones((N, K)), jax.random.key(0))
    correlated = lambda f: dist.MultivariateNormal(f, jnp.eye(K))  # noqa: E731
    with pytest.raises(ValueError, match=r"missing='mask' leaves out entries .* outputs, \(3,\), have one density"):
        Expected(correlated, f, missing="mask")
    with pytest.raises(ValueError, match=r"a mask of shape \(5, 3\) does not go with 5 data, whose outputs have one"):
        Expected(correlated, f).mask(jnp.asarray(SEEN))
    with pytest.raises(ValueError, match="missing must be one of None, 'mask', got 'drop'"):
        Gaussian(f, 0.1, missing="drop")
    with pytest.raises(ValueError, match=r"y holds nan at index \(0, 1\).*missing='mask' or"):
        Gaussian(f, 0.1).log_prob(np.where(SEEN, REALS, np.nan))
    with pytest.raises(ValueError, match=r"y holds inf"):
        Gaussian(f, 0.1, missing="mask").log_prob(np.where(SEEN, REALS, np.inf))
    with pytest.raises(ValueError, match=r"y holds 7"):
        Bernoulli(f, missing="mask").log_prob(np.where(SEEN, 7.0, np.nan))
