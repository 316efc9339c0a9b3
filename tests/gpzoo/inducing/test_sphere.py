"""Spherical harmonics: against SciPy's Legendre polynomials, the kernel itself, the exact evidence, and bad inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.infer import SVI
from scipy.special import eval_legendre

from gpzoo import GaussianProcess, InducingHarmonics, Kuf, Kuu
from gpzoo.errors import FactorisationError, NonFiniteError
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
from gpzoo.kernels import RBF, Linear, Matern52, Periodic, White
from gpzoo.likelihoods import Gaussian
from tests.programs import KEY, adam


def on_sphere(count, seed=0):
    X = np.random.default_rng(seed).normal(size=(count, 3))
    return X / np.linalg.norm(X, axis=1, keepdims=True)


X = on_sphere(40)
Y = X[:, 0] * X[:, 2] + np.sin(3 * X[:, 1]) + 0.2 * np.random.default_rng(1).normal(size=40)


def test_sums_over_a_degree_are_legendre_polynomials():
    """The addition theorem, of every degree: harmonics of another scale or order would break it."""
    phi, first = np.asarray(jax.jit(InducingHarmonics(12).functions)(X)), 0
    for degree in range(13):
        own = phi[:, first : first + 2 * degree + 1]
        wanted = (2 * degree + 1) / (4 * np.pi) * eval_legendre(degree, X @ X.T)
        np.testing.assert_allclose(own @ own.T, wanted, atol=1e-12)
        first += 2 * degree + 1
    assert first == phi.shape[1]


@pytest.mark.slow
def test_all_of_them_are_the_kernel():
    """Of one kernel, of one per output, of a sum; and the weights of a function of the harmonics are its own."""
    harmonics = InducingHarmonics(10)
    for kernel in (
        RBF(1.3, 1.2),
        RBF(jnp.array([1.3, 0.4]), jnp.array([[1.2], [1.5]])),
        2.0 * RBF(1.0, 1.3) + RBF(0.5, 2.0),
    ):
        A = Kuf(harmonics, kernel, X)
        variances = jnp.diagonal(Kuu(harmonics, kernel), axis1=-2, axis2=-1)[..., None]
        Q = jnp.swapaxes(A, -1, -2) @ (A / jnp.where(variances > 0, variances, 1))
        np.testing.assert_allclose(Q, kernel(X), atol=1e-10)
    few = InducingHarmonics(4)
    weights = np.random.default_rng(1).normal(size=(25, 2))
    np.testing.assert_allclose(few.of(lambda x: few.functions(x) @ weights), weights, atol=1e-12)


def program(X, y=None):
    f = numpyro.sample("f", GaussianProcess(Matern52(1.0, 0.9) + White(1e-4), X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, 0.04), obs=y)


def trained(degree):
    svi = SVI(program, InducingGuide(program, InducingHarmonics(degree)), adam(0.01), GaussianProcessELBO())
    return fit(KEY, svi, 2, X, Y, natural=1.0, progress=False)


@pytest.mark.slow
def test_the_bound_rises_to_the_evidence():
    """Of a rough kernel from below, with functions that agree with predictions, and inputs elsewhere refused."""
    K = np.asarray(Matern52(1.0, 0.9)(X)) + (0.04 + 1e-4) * np.eye(40)
    evidence = -(Y @ np.linalg.solve(K, Y) + np.linalg.slogdet(2 * np.pi * K)[1]) / 2
    few, some, many = (trained(degree) for degree in (2, 5, 20))
    bounds = [-each.losses[-1] for each in (few, some, many)]
    assert bounds[0] < bounds[1] < bounds[2] < evidence and bounds[2] == pytest.approx(evidence, abs=0.1)
    new = on_sphere(6, seed=3)
    found, functions = some.predict(KEY, new)["f"], some.functions(KEY, new, num_draws=500, num_features=256)["f"]
    spread = np.sqrt(np.asarray(found.variance))
    assert np.abs(functions.mean(0) - found.mean).max() < 5 * spread.max() / np.sqrt(500)
    np.testing.assert_allclose(functions.std(0), spread, rtol=0.2)
    with pytest.raises(FactorisationError, match="off the sphere of InducingHarmonics"):
        many.predict(KEY, 2 * new)
    with pytest.raises(NonFiniteError, match=r"row 0 has length 1\.1: divide each"):
        fit(KEY, SVI(program, many.guide, adam(0.01), GaussianProcessELBO()), 1, 1.1 * X[:1], Y[:1], progress=False)


def test_what_they_do_not_go_with_is_refused():
    for call, error, words in (
        (lambda: InducingHarmonics(0), ValueError, "degree"),
        (lambda: Kuu(InducingHarmonics(3), RBF(1.0, [1.0, 2.0, 1.0])), ValueError, "one for all directions"),
        (lambda: Kuu(InducingHarmonics(3), Linear()), TypeError, "Kuu is not defined for the pair"),
        (lambda: Kuu(InducingHarmonics(3), Periodic()), TypeError, "Kuu is not defined for the pair"),
        (lambda: Kuf(InducingHarmonics(3), RBF(), X[:, :2]), ValueError, "have 3 columns"),
    ):
        with pytest.raises(error, match=words):
            call()
