"""Outputs that depend on each other, with inputs of their own, against a dense GP in NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import handlers
from numpyro.infer import SVI
from scipy.stats import multivariate_normal

from gpzoo import InducingPoints, random_subset
from gpzoo.inference import CollapsedELBO, GaussianProcessELBO, InducingGuide, Trained, fit
from gpzoo.models import categories, coregionalised_gp
from tests.programs import KEY, adam, bound
from tests.reference import pairs, rbf

PROGRAM = partial(coregionalised_gp, num_outputs=3, jitter=1e-8)
RNG = np.random.default_rng(0)
B = np.array([[1.0, 0.8, -0.3], [0.8, 1.2, 0.0], [-0.3, 0.0, 0.7]])
NOISE = np.array([0.05, 0.1, 0.02])


def outputs(n):
    """Three outputs at ``n`` inputs each, no two of which are the same, and then 40 % of the numbers missing."""
    X = np.column_stack([RNG.uniform(-3, 3, 3 * n), np.repeat(np.arange(3), n)])
    level = X[:, 1].astype(int)
    K = B[np.ix_(level, level)] * rbf(*pairs(X[:, :1], X[:, :1])) + np.diag(NOISE[level])
    y = np.linalg.cholesky(K) @ RNG.standard_normal(3 * n)
    kept = np.sort(RNG.permutation(3 * n)[: int(1.8 * n)])
    return jnp.asarray(X[kept]), jnp.asarray(y[kept])


X, y = outputs(25)


def evidence_and_means(params, new):
    """The exact evidence at these parameters, and the means at new rows."""
    W, kappa = np.asarray(params["f_W"]), np.asarray(params["f_kappa"])
    of, at = (np.asarray(rows[:, 1]).astype(int) for rows in (X, new))
    S = W @ W.T + np.diag(kappa)
    k = lambda A, C: rbf(*pairs(A[:, :1], C[:, :1]), 1.0, float(params["f_lengthscale"][0]))  # noqa: E731
    K = S[np.ix_(of, of)] * k(X, X) + np.diag(np.asarray(params["noise_variance"])[of])
    means = S[np.ix_(at, of)] * k(new, X) @ np.linalg.solve(K, y)
    return multivariate_normal(np.zeros(len(y)), K).logpdf(y), means


@pytest.mark.slow
def test_inducing_points_at_the_rows_give_a_dense_gp():
    guide = InducingGuide(PROGRAM, InducingPoints(X))
    svi = SVI(PROGRAM, guide, adam(0.02), CollapsedELBO())
    trained = fit(KEY, svi, 2, X, y, progress=False)
    new = jnp.asarray([[0.3, 0.0], [0.3, 1.0], [-2.0, 2.0]])
    evidence, means = evidence_and_means(trained.params, new)
    found = bound(PROGRAM, guide, trained.params, X, y, loss=GaussianProcessELBO())
    np.testing.assert_allclose(found, evidence, atol=1e-4)
    np.testing.assert_allclose(trained.predict(KEY, new)["y"].mean, means, atol=1e-4)


@pytest.mark.slow
def test_fewer_inducing_points_come_near_with_entries_missing():
    guide = InducingGuide(PROGRAM, random_subset(30))
    svi = SVI(PROGRAM, guide, adam(0.02), CollapsedELBO())
    trained = fit(KEY, svi, 150, X, y, progress=False)
    assert set(np.unique(trained.params["f_inducing"][:, 1])) == {0.0, 1.0, 2.0}
    evidence, _ = evidence_and_means(trained.params, X)
    assert evidence - 2 < bound(PROGRAM, guide, trained.params, X, y, loss=GaussianProcessELBO()) < evidence + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("number", [3.0, -1.0])
def test_numbers_that_are_no_output_are_refused(number):
    """At set-up, and by a compiled prediction, which does not take them for the nearest output."""
    wrong, guide = X.at[0, 1].set(number), InducingGuide(PROGRAM, InducingPoints(X[:6]))
    with pytest.raises(ValueError, match=rf"whole numbers from 0 to 2, got {number}"):
        guide.setup(wrong, y)
    params = guide.init_params(KEY, X, y)
    with pytest.raises(ValueError, match=rf"whole numbers from 0 to 2, got {number}"):
        Trained(PROGRAM, guide, params).predict(KEY, wrong[:4])


@pytest.mark.parametrize("num, column", [(1, 0), (3, -1), (12, 1)])
def test_without_columns_of_w_categories_are_independent(num, column):
    """As mgcv's by=: the other kernel says all, and no variance of a single category can be fitted to 0."""
    rows = RNG.standard_normal((9, 3))
    rows[:, column] = group = RNG.integers(0, num, 9)
    with handlers.trace() as trace, handlers.seed(rng_seed=0):
        kernel = categories("own", jnp.asarray(rows), num, rank=0, column=column)
    assert not trace
    np.testing.assert_array_equal(kernel(jnp.asarray(rows)), group[:, None] == group)
    with pytest.raises(ValueError, match="rank must be an integer of at least 0, got -1"):
        categories("own", jnp.asarray(rows), num, rank=-1)
    wrong = jnp.asarray(rows).at[3, column].set(num)
    assert jnp.isnan(jax.jit(lambda X: categories("own", X, num, rank=0, column=column)(X))(wrong)).any()
