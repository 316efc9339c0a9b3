"""Functions on a box and waves of an interval: against NumPyro's, the exact evidence, and inputs outside."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.contrib.hsgp.laplacian import eigenfunctions
from numpyro.contrib.hsgp.spectral_densities import (
    diag_spectral_density_matern,
    diag_spectral_density_squared_exponential,
)
from numpyro.infer import SVI

from gpzoo import GaussianProcess, InducingBasis, InducingFourier, Kuf, Kuu, blocks
from gpzoo.errors import FactorisationError, NonFiniteError
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
from gpzoo.kernels import RBF, HilbertSpace, Linear, Matern12, Matern32, Matern52, White
from gpzoo.likelihoods import Gaussian
from gpzoo.posteriors.conditional import Projection
from tests.programs import KEY, adam

BOX = {"sizes": (6, 5), "bounds": ((-1.5, 1.5), (-2.0, 2.0))}
X = np.random.default_rng(0).uniform(-1, 1, (7, 2))
SCALES = np.array([0.7, 0.5])
with jax.numpy_dtype_promotion("standard"):
    PHI = np.asarray(eigenfunctions(X, [1.5, 2.0], [6, 5]))


@jax.numpy_dtype_promotion("standard")
def of_numpyro(kernel):
    if isinstance(kernel, RBF):
        return diag_spectral_density_squared_exponential(1.3, SCALES, [1.5, 2.0], [6, 5], 2)
    nu = {Matern12: 0.5, Matern32: 1.5, Matern52: 2.5}[type(kernel)]
    return diag_spectral_density_matern(nu, 1.3, 0.7, [1.5, 2.0], [6, 5], 2)


KERNELS = [RBF(1.3, SCALES), Matern12(1.3, 0.7), Matern32(1.3, 0.7), Matern52(1.3, 0.7)]


@pytest.mark.slow_but(kernel=KERNELS[:2])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
def test_it_is_numpyros(kernel):
    wanted = (PHI * np.asarray(of_numpyro(kernel))) @ PHI.T
    found = HilbertSpace(kernel, **BOX)
    np.testing.assert_allclose(jax.jit(found)(X), wanted, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.diag(X), np.diag(wanted), rtol=1e-10)
    assert found(X[:0], X).shape == (0, len(X))
    both = HilbertSpace(kernel + 2.0 * KERNELS[0], **BOX)
    np.testing.assert_allclose(both(X), wanted + 2 * (PHI * np.asarray(of_numpyro(KERNELS[0]))) @ PHI.T, rtol=1e-10)


@pytest.mark.slow
def test_its_basis_says_all_of_it():
    """Given the weights nothing is left, of one kernel or of one per output; those of a function of the box are its."""
    basis = InducingBasis(**BOX)
    for kernel in (HilbertSpace(RBF(1.3, 0.7), **BOX), HilbertSpace(RBF(jnp.array([1.3, 0.4]), 0.7), **BOX)):
        A = Kuf(basis, kernel, X)
        Q = jnp.swapaxes(A, -1, -2) @ jnp.linalg.solve(Kuu(basis, kernel), A)
        np.testing.assert_allclose(Q, kernel(X), atol=1e-10)
    weights = np.random.default_rng(1).normal(size=(30, 2))
    np.testing.assert_allclose(basis.of(lambda x: basis.box.functions(x) @ weights), weights, atol=1e-12)


@pytest.mark.parametrize("sizes", [7, 1000])
def test_small_densities_are_not_lost_in_float32(sizes):
    """Given the weights of all functions, nothing of the process is left, however many and small their variances."""
    with jax.enable_x64(False):
        kernel, rows = HilbertSpace(Matern32(2.0, 0.3), sizes, (-3.0, 3.0)), jnp.linspace(-2, 2, 5)[:, None]
        of = Projection(GaussianProcess(kernel, rows), InducingBasis(sizes, (-3.0, 3.0)))
        left, _ = of.residual(rows, of.solved(of.covariances(rows)))
    assert left.dtype == jnp.float32 and jnp.max(jnp.abs(left)) < 5e-5


LINE = np.linspace(0, 6, 40)[:, None]
DATA = np.sin(2 * LINE[:, 0]) + 0.2 * np.random.default_rng(2).normal(size=40)


def regression(X, y=None, *, sizes):
    f = numpyro.sample("f", GaussianProcess(HilbertSpace(RBF(1.0, 0.8), sizes, (-2.0, 8.0)), X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, 0.04), obs=y)


def trained(sizes):
    program = partial(regression, sizes=sizes)
    svi = SVI(program, InducingGuide(program, InducingBasis(sizes, (-2.0, 8.0))), adam(0.01), GaussianProcessELBO())
    return fit(KEY, svi, 2, LINE, DATA, natural=1.0, progress=False)


@pytest.fixture(scope="module")
def of_thirty():
    return trained(30)


@pytest.mark.slow
def test_the_bound_rises_to_the_evidence(of_thirty):
    K = np.asarray(RBF(1.0, 0.8)(LINE)) + 0.04 * np.eye(40)
    evidence = -(DATA @ np.linalg.solve(K, DATA) + np.linalg.slogdet(2 * np.pi * K)[1]) / 2
    few, some = (-trained(sizes).losses[-1] for sizes in (5, 12))
    assert few < some < evidence + 0.5
    assert -of_thirty.losses[-1] == pytest.approx(evidence, abs=1e-3)


@pytest.mark.slow
def test_functions_and_predictions_agree(of_thirty):
    found = of_thirty.predict(KEY, LINE[::4])["f"]
    functions = of_thirty.functions(KEY, LINE[::4], num_draws=2000)["f"]
    spread = np.sqrt(np.asarray(found.variance))
    assert np.abs(functions.mean(0) - found.mean).max() < 5 * spread.max() / np.sqrt(2000)
    np.testing.assert_allclose(functions.std(0), spread, rtol=0.1)


@pytest.mark.slow
def test_inputs_outside_are_refused(of_thirty):
    outside = r"outside the box \[\(-2\.0, 8\.0\)\].*farthest 9 \(row 39, column 0\)"
    with pytest.raises(ValueError, match=outside):
        fit(KEY, SVI(of_thirty.model, of_thirty.guide, adam(0.01), GaussianProcessELBO()), 1, LINE + 3, DATA)
    new = np.array([[9.0]])
    for ask in (of_thirty.predict, of_thirty.functions):
        with pytest.raises(FactorisationError, match=r"'f' are not finite.*the box of a HilbertSpace kernel"):
            ask(KEY, new)


def test_what_it_cannot_be_is_refused():
    for make, error, words in (
        (lambda: HilbertSpace(RBF() + White(0.1), 5, (0, 1)), ValueError, "add White to the result"),
        (lambda: HilbertSpace(RBF(), 0, (0, 1)), ValueError, "sizes"),
        (lambda: HilbertSpace(RBF(), 5, (1, 0)), ValueError, "the lower below the upper"),
        (lambda: HilbertSpace(Linear(), 5, (0, 1))(np.ones((1, 1))), TypeError, "Linear has no spectral density"),
        (lambda: HilbertSpace(RBF(active_dims=(0,)), **BOX)(X), TypeError, "of some columns"),
        (lambda: HilbertSpace(RBF(), 5, (0, 1))(X), ValueError, "have 1 columns"),
        (lambda: (HilbertSpace(RBF(), 5, (0, 1)) + White(0.1))(X), ValueError, "have 1 columns"),
        (lambda: (2.0 * HilbertSpace(RBF(), 5, (0, 1)) + RBF())(X[:, :1] + 5), ValueError, "outside the box"),
        (lambda: Kuu(InducingBasis(5, (0, 1)), HilbertSpace(RBF(), 6, (0, 1))), ValueError, "is of the box"),
    ):
        with pytest.raises(error, match=words):
            make()


# -- waves of an interval ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Matern12, Matern32, Matern52])
def test_covariances_of_waves_are_inner_products(kind):
    """Those of functions known on a grid tend to them as it becomes finer; by halves, their differences too."""
    waves, found = InducingFourier(4, (-1.0, 2.0)), []
    kernel = kind(jnp.array([1.7, 0.8]), jnp.array([[0.6], [0.9]]))
    for count in (201, 401):
        grid = np.linspace(-1, 2, count)[:, None]
        F = np.asarray(Kuf(waves, kernel, grid))
        found.append(F @ np.linalg.solve(np.asarray(kernel(grid)), np.swapaxes(F, -1, -2)))
    order = 2 if kind is Matern12 else 1
    limit = found[1] + (found[1] - found[0]) / (2**order - 1)
    np.testing.assert_allclose(limit, Kuu(waves, kernel), atol=5e-4)


def by_waves(X, y=None):
    kernel = Matern32(1.0, 0.8) + Matern52(0.5, 1.5)
    f = numpyro.sample("f", GaussianProcess(kernel, X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("y", Gaussian(f, 0.04), obs=y)


@pytest.mark.slow
def test_the_bound_by_waves_rises_to_the_evidence():
    """Of the kernel itself, from below."""
    K = np.asarray(Matern32(1.0, 0.8)(LINE) + Matern52(0.5, 1.5)(LINE)) + 0.04 * np.eye(40)
    evidence = -(DATA @ np.linalg.solve(K, DATA) + np.linalg.slogdet(2 * np.pi * K)[1]) / 2

    def trained(count, whiten=True):
        waves = InducingFourier(count, (-6.0, 12.0))
        guide = InducingGuide(by_waves, blocks(waves, waves), whiten=whiten, covariance="full")
        return fit(
            KEY, SVI(by_waves, guide, adam(0.01), GaussianProcessELBO()), 2, LINE, DATA, natural=1.0, progress=False
        )

    few, some, many = (trained(count) for count in (10, 30, 120))
    bounds = [-each.losses[-1] for each in (few, some, many)]
    assert bounds[0] < bounds[1] < bounds[2] < evidence and bounds[2] == pytest.approx(evidence, abs=0.05)
    assert -trained(30, whiten=False).losses[-1] == pytest.approx(bounds[1], rel=1e-8)
    outside = r"outside the box \[\(-6\.0, 12\.0\)\].*farthest 14 \(row 39, column 0\)"
    with pytest.raises(NonFiniteError, match=outside):
        fit(KEY, SVI(by_waves, few.guide, adam(0.01), GaussianProcessELBO()), 1, LINE + 8, DATA)
    with pytest.raises(FactorisationError, match=r"'f' are not finite.*interval of InducingFourier"):
        few.predict(KEY, np.array([[13.0]]))
    with pytest.raises(TypeError, match="values of InducingFourier for functions"):
        few.functions(KEY, LINE, num_draws=2)
    for kernel, error, words in (
        (RBF(), TypeError, "Kuu is not defined for the pair"),
        (Matern32() + 2.0 * Matern52(), TypeError, "one Matérn kernel, and this is a sum"),
        (Matern32(active_dims=[1]), TypeError, "of some columns"),
        (Matern32(lengthscale=[1.0, 2.0]), ValueError, "lengthscale"),
    ):
        with pytest.raises(error, match=words):
            Kuu(InducingFourier(5, (0.0, 1.0)), kernel)
    waves, kernel = InducingFourier(5, (0.0, 6.0)), 2.0 * Matern32() + White(0.1)
    np.testing.assert_allclose(Kuf(waves, kernel, LINE), 2 * Kuf(waves, Matern32(), LINE))
