"""Slopes of factors with default jitter: ``s K`` has the factor ``sqrt(s) L``, however nearly singular ``K`` is."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.infer.util import log_density

from gpzoo import GaussianProcess, InducingGrid, InducingPatches, InducingPoints, Kuu, linalg
from gpzoo.inference import whitened
from gpzoo.kernels import RBF, DoubleSum, Linear, Matern32
from gpzoo.likelihoods import Gaussian
from gpzoo.posteriors import forms
from gpzoo.posteriors.conditional import conditional_of
from gpzoo.views import Patches

Z = {1: lambda M: np.linspace(0, 5, M)[:, None], 9: lambda M: np.random.default_rng(0).normal(size=(M, 9))}


def smooth(s):
    return RBF(s, 1.5)


def added(s):
    return RBF(s, 1.5) + Matern32(0.1 * s, 0.7) + Linear(10 * s)


def patches(s):
    return DoubleSum(RBF(s, 3.0), Patches((5, 5), (3, 3)))


def assert_half(factor, dtype, rtol):
    """The slope of ``sqrt(s) L`` at 1 is ``L / 2``."""
    L, slope = jax.jvp(lambda s: factor(s.astype(dtype)), (jnp.ones((), dtype),), (jnp.ones((), dtype),))
    np.testing.assert_allclose(slope, L / 2, atol=rtol * float(jnp.max(jnp.abs(L))))


@pytest.mark.slow_but(size=[17], dtype=[np.float32])
@pytest.mark.parametrize("size", [3, 17, 40, 90])
@pytest.mark.parametrize("dtype, rtol", [(np.float64, 1e-6), (np.float32, 2e-2)])
@pytest.mark.parametrize("kernel", [smooth, added, patches])
def test_factors_follow_the_scale_of_a_covariance(kernel, dtype, rtol, size):
    of_patches = kernel is patches
    points = (InducingPatches if of_patches else InducingPoints)(Z[9 if of_patches else 1](size).astype(dtype))
    prior = lambda s: GaussianProcess(kernel(s), np.zeros((2, 5, 5, 1) if of_patches else (2, 1), dtype))  # noqa: E731
    assert_half(lambda s: linalg.cholesky(Kuu(points, kernel(s))), dtype, rtol)
    assert_half(lambda s: linalg.root(Kuu(points, kernel(s))), dtype, rtol)
    assert_half(lambda s: conditional_of(prior(s), points, forms.Full(), whiten=True, site="f").L, dtype, rtol)


@pytest.mark.parametrize("size", [10, 100])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_grid_follows_the_scale_of_its_covariance(dtype, size):
    points = InducingGrid(size, [(0.0, 5.0)])
    column = lambda s: conditional_of(  # noqa: E731
        GaussianProcess(smooth(s), np.ones((2, 1), dtype)), points, forms.Diagonal(), whiten=False, site="f"
    ).prior_column()
    value, slope = jax.jvp(column, (jnp.ones((), dtype),), (jnp.ones((), dtype),))
    np.testing.assert_allclose(slope, value, rtol=1e-5)


@pytest.mark.slow_but(rows=[7, 30])
@pytest.mark.parametrize("rows", [7, 30, 120])
def test_slopes_of_drawn_functions_are_differences(rows, standard_promotion):
    """NUTS leaps by them: wrong ones cost it its step size."""

    def program(X, y, variance):
        f = numpyro.sample("f", GaussianProcess(RBF(variance, 1.7), X))
        numpyro.sample("y", Gaussian(f, 0.09), obs=y)

    rng, X = np.random.default_rng(0), np.linspace(0, 12, rows)[:, None]
    given = {"f_base": rng.standard_normal(rows)}
    density = jax.jit(lambda v: log_density(whitened(program), (X, np.sin(X[:, 0]), v), {}, given)[0])
    h = 1e-2  # rounding errors of the factor are of the size of its jitter
    # Of sqrt(v) L the density is smooth, so that five points see its slope.
    differences = (8 * (density(1 + h) - density(1 - h)) - density(1 + 2 * h) + density(1 - 2 * h)) / (12 * h)
    np.testing.assert_allclose(jax.grad(density)(1.0), differences, rtol=1e-3, atol=1e-2)
