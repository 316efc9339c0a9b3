"""Orthogonal inducing variables: the equations of SOLVE-GP in NumPy, its place between two bounds, and training."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import SVI

from gpzoo import GaussianProcess, InducingPoints, kernels, kmeans
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
from gpzoo.models import gp_regression
from gpzoo.posteriors import InducingPosterior, Projection, forms
from tests.programs import KEY, adam
from tests.reference import collapsed_bound, pairs, rbf

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (15, 1))
ELBO = GaussianProcessELBO()
U, V = RNG.uniform(-2, 2, (3, 1)), RNG.uniform(-2, 2, (2, 1))


@pytest.mark.slow
def test_moments_are_those_of_the_paper():
    """Shi et al. (2020): the projection onto ``u``, and the rest of ``f`` given variables ``v`` of the rest."""
    m, L = RNG.standard_normal((5, 2)), [np.tril(RNG.standard_normal((2, M, M))) for M in (3, 2)]
    prior = GaussianProcess(kernels.RBF(1.3, 0.9), X, num_outputs=2, jitter=1e-10)
    conditional = Projection(prior, InducingPoints(np.concatenate([U, V])))
    q = InducingPosterior(conditional, jnp.asarray(m), forms.Orthogonal(tuple(map(jnp.asarray, L))))
    mean, covariance = q.moments()
    _, variance = q.marginals()

    k = partial(rbf, variance=1.3, lengthscale=0.9)
    Kuu, Kux, Kuv = k(*pairs(U, U)) + 1e-10 * np.eye(3), k(*pairs(U, X)), k(*pairs(U, V))
    rest = lambda A, B: k(*pairs(A, B)) - k(*pairs(A, U)) @ np.linalg.solve(Kuu, k(*pairs(U, B)))  # noqa: E731
    Cvv = k(*pairs(V, V)) + 1e-10 * np.eye(2) - Kuv.T @ np.linalg.solve(Kuu, Kuv)
    roots = np.linalg.cholesky(Kuu), np.linalg.cholesky(Cvv)
    onto_u, onto_v = np.linalg.solve(Kuu, Kux).T, np.linalg.solve(Cvv, rest(V, X)).T
    for d in range(2):
        of_u, of_v = (root @ part for root, part in zip(roots, np.split(m[:, d], [3]), strict=True))
        S_u, S_v = (root @ own[d] @ own[d].T @ root.T for root, own in zip(roots, L, strict=True))
        wanted = rest(X, X) - onto_v @ Cvv @ onto_v.T + onto_u @ S_u @ onto_u.T + onto_v @ S_v @ onto_v.T
        np.testing.assert_allclose(mean[:, d], onto_u @ of_u + onto_v @ of_v, atol=1e-7)
        np.testing.assert_allclose(covariance[d], wanted, atol=1e-7)
        np.testing.assert_allclose(variance[:, d], np.diag(wanted), atol=1e-7)


def test_the_best_bound_is_between_those_of_one_set_and_of_all():
    """On 200 random problems, with the best ``q`` of a mean-field family in closed form."""
    program = partial(gp_regression, jitter=1e-6)
    guide = InducingGuide(program, InducingPoints(np.zeros((8, 1))), covariance=forms.Orthogonal(first=4))
    params = guide.init_params(KEY, X, X[:, 0])

    @jax.jit
    def bound(values, X, y):
        return -ELBO.loss(KEY, values, program, guide, X, y)

    above = 0
    for number in range(200):
        rng = np.random.default_rng(number)
        inputs, Z = rng.uniform(-2, 2, (15, 1)), rng.uniform(-2, 2, (8, 1))
        lengthscale, noise = rng.uniform(0.3, 2), rng.uniform(0.05, 0.5)
        K = rbf(*pairs(inputs, inputs), lengthscale=lengthscale) + noise * np.eye(15)
        y = rng.multivariate_normal(np.zeros(15), K)
        Kuu = rbf(*pairs(Z, Z), lengthscale=lengthscale) + 1e-6 * np.eye(8)
        Kuf = rbf(*pairs(Z, inputs), lengthscale=lengthscale)
        A = np.linalg.solve(np.linalg.cholesky(Kuu), Kuf)
        precision = np.eye(8) + A @ A.T / noise
        blocks = [np.linalg.inv(precision[part, part]) for part in (slice(4), slice(4, 8))]
        best = {"f_mean": np.linalg.solve(precision, A @ y / noise), "f_inducing": Z, "noise_variance": noise}
        best |= {"f_scale": tuple(map(np.linalg.cholesky, blocks)), "f_lengthscale": np.array([lengthscale])}
        found = float(bound(params | best, inputs, y))
        least, most = (collapsed_bound(Kuu[:M, :M], Kuf[:M], 1.0, y, noise) for M in (4, 8))
        assert least - 1e-6 < found < most + 1e-6
        above += found > least + 0.1
    assert above > 150


@pytest.mark.slow
@pytest.mark.parametrize("natural", [None, 0.5])
def test_two_sets_are_trained_and_do_better_than_one(natural):
    y = np.sin(3 * X[:, 0])
    reached = {}
    for name, inducing, covariance in (("one", kmeans(3), "full"), ("two", kmeans(8), forms.Orthogonal(first=3))):
        svi = SVI(gp_regression, InducingGuide(gp_regression, inducing, covariance=covariance), adam(0.02), ELBO)
        reached[name] = -float(np.mean(fit(KEY, svi, 400, X, y, natural=natural, progress=False).losses[-50:]))
    assert reached["two"] > reached["one"] + 1


@pytest.mark.parametrize("options", [{"covariance": forms.Orthogonal(first=5)}, {"whiten": False}])
def test_one_set_or_variables_that_are_not_whitened_are_refused(options):
    options = {"covariance": forms.Orthogonal(first=2)} | options
    guide = InducingGuide(gp_regression, InducingPoints(np.linspace(0, 1, 5)[:, None]), **options)
    with pytest.raises(ValueError, match=r"covariance=Orthogonal\(first=.\) needs more than .* whiten=True"):
        guide.init_params(KEY, X, X[:, 0])
