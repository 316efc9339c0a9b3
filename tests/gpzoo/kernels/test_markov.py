"""State-space forms of kernels against their matrices, and the density that takes one pass over the rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from gpzoo.kernels import (
    RBF,
    SHO,
    BrownianMotion,
    ChangePoint,
    Constant,
    Cosine,
    Gate,
    Gibbs,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    White,
)
from gpzoo.kernels.by_axis import separable
from gpzoo.linalg.state_space import log_density

KERNELS = {
    "Matern12": lambda a, b: Matern12(a, b),
    "Matern32": lambda a, b: Matern32(a, b),
    "Matern52": lambda a, b: Matern52(a, b),
    "Cosine": lambda a, b: Cosine(a, b),
    "SHO that rings": lambda a, b: SHO(a, b, 3.0),
    "SHO, critical": lambda a, b: SHO(a, b, 0.5),
    "SHO, almost critical": lambda a, b: SHO(a, b, 0.5001),
    "SHO, overdamped": lambda a, b: SHO(a, b, 0.2),
    "Brownian": lambda a, b: BrownianMotion(a, -b),
    "Constant": lambda a, b: Constant(a),
    "Linear": lambda a, b: Linear(a, b),
    "White": lambda a, b: White(a),
    "Gate": lambda a, b: Gate(a, b),
    "scaled": lambda a, b: a * Matern32(1.0, b),
    "sum": lambda a, b: Matern12(a, b) + Matern52(b, a) + White(0.3),
    "product": lambda a, b: Matern32(a, b) * Cosine(b, a),
    "product of three": lambda a, b: Matern32(a, b) * Linear(b) * Gate(b, a),
    "change point": lambda a, b: ChangePoint(Matern32(a, b), BrownianMotion(b), location=a, width=b),
    "product of sums": lambda a, b: (Matern12(a, b) + Constant(b)) * (Cosine(b, a) + Linear(a)),
}


def times(rng, num):
    """Times in order, some of them twice, at very different distances."""
    x = np.sort(rng.uniform(0, 3, num) ** 3)
    x[num // 3] = x[num // 3 - 1]
    return x[:, None]


@pytest.mark.slow_but(
    seed=[0],
    name=["Matern12", "SHO that rings", "sum", "change point"],
)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_states_are_the_matrix(name, seed):
    """Densities and their gradients follow from it, by hyperparameters and times."""
    rng = np.random.default_rng(seed)
    X, y, noise = times(rng, 12), rng.standard_normal(12), rng.uniform(0.1, 0.5, 12)
    numbers = jnp.asarray(rng.uniform(0.3, 2.0, 2))

    def by_states(numbers, X, noise):
        return log_density(KERNELS[name](*numbers).states(X), y, noise)

    def dense(numbers, X, noise):
        L = jnp.linalg.cholesky(KERNELS[name](*numbers)(X) + jnp.diag(noise))
        white = jax.scipy.linalg.solve_triangular(L, y, lower=True)
        return -jnp.sum(white**2) / 2 - jnp.sum(jnp.log(jnp.diagonal(L))) - 6 * jnp.log(2 * jnp.pi)

    (found, slopes), (expected, wanted) = (
        jax.jit(jax.value_and_grad(f, (0, 2)))(numbers, jnp.asarray(X), jnp.asarray(noise)) for f in (by_states, dense)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    for one, other in zip(slopes, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)
    assert np.isclose(found, multivariate_normal.logpdf(y, cov=KERNELS[name](*numbers)(X) + np.diag(noise)))


@pytest.mark.parametrize("kernel", [RBF(), Periodic(), RationalQuadratic(), Matern12() + RBF(), 2.0 * RBF() * Cosine()])
def test_kernels_without_such_a_form_are_refused_by_name(kernel):
    with pytest.raises(TypeError, match="has no state-space form"):
        kernel.states(jnp.zeros((3, 1)))


def test_a_kernel_of_places_is_refused():
    with pytest.raises(TypeError, match="Gibbs has no state-space form"):
        Gibbs(lambda x, a: a, a=1.0).states(jnp.zeros((3, 1)))


def test_a_covariance_of_your_own_has_no_form_that_it_inherits():
    class Other(Matern32):
        def profile(self, square):
            return 1 / (1 + square)

    class Below(Other):
        """Changes nothing, and has none either."""

    class Same(Matern32):
        """Changes nothing, and has that of its parent."""

    class Written(Matern32):
        def cross(self, X, Z):
            return 2 * super().cross(X, Z)

        def states(self, X):
            return super().states(X)

    X = jnp.zeros((3, 1))
    for kernel in (Other(), Below(), Other() + Matern12(), 2.0 * Below()):
        with pytest.raises(TypeError, match="has no state-space form"):
            kernel.states(X)
    assert Same().states(X).h.shape == Written().states(X).h.shape == (3, 2)


def test_a_covariance_of_your_own_has_no_spectrum_that_it_inherits():
    class Cauchy(RBF):
        def profile(self, square):
            return 1 / (1 + square)

    class Rough(Matern52):
        def profile(self, square):
            return jnp.exp(-square)

    class Same(RBF):
        """Changes nothing."""

    X, key = np.array([[0.0, 0.0], [1.0, 1.0]]), jax.random.key(0)
    for kernel in (Cauchy(), Rough(), 2.0 * Cauchy()):
        for spectrum in (
            lambda kernel: kernel.density(jnp.ones((3, 1))),
            lambda kernel: kernel.frequencies(key, 3, 1, float),
        ):
            with pytest.raises(TypeError, match=r"Cauchy|Rough"):
                spectrum(kernel)
    assert not separable(Cauchy()) and separable(Same()) and separable(RBF()) and separable(Periodic())
    np.testing.assert_array_equal(Same().density(jnp.ones((3, 1))), RBF().density(jnp.ones((3, 1))))
    assert Matern52().density(jnp.ones((3, 1))).shape == (3,) and np.isclose(Cauchy()(X)[0, 1], 1 / 3)


@pytest.mark.parametrize("quality", [1e-4, 1e-3, 0.01, 0.1, 0.3, 0.49, 0.5, 0.7, 5.0])
def test_an_oscillator_is_accurate_in_float32(quality):
    """However it is damped, from short times to many decays; derivatives are finite everywhere."""
    t = np.concatenate([[0.0], np.geomspace(1e-3, 1e4, 60)])

    def of(dtype, quality):
        return SHO(*(jnp.asarray(x, dtype) for x in (1.0, 0.7, quality)))(
            jnp.zeros((1, 1), dtype), jnp.asarray(t[:, None], dtype)
        )[0]

    # A wave keeps its phase as well as its time does.
    waves = quality > 0.5
    near = t < 10 if waves else t >= 0
    np.testing.assert_allclose(
        of(jnp.float32, quality)[near], of(jnp.float64, quality)[near], atol=1e-4 if waves else 2e-6
    )
    slopes = jax.jacobian(lambda quality: of(jnp.float32, quality))(jnp.float32(quality))
    assert np.isfinite(slopes).all()


@pytest.mark.parametrize("quality", [0.2, 0.49, 0.5, 0.51, 3.0])
def test_an_oscillator_solves_its_equation(quality):
    """``k'' + (w / Q) k' + w^2 k = 0`` behind 0, by finite differences; ``k(0)`` is the variance."""
    kernel, w, h = SHO(1.7, 0.3, quality), 2 * np.pi * 0.3, 1e-4
    t = np.array([0.3, 1.0, 2.5])
    at = [np.asarray(kernel(np.zeros((1, 1)), (t + shift)[:, None]))[0] for shift in (-h, 0, h)]
    second, first = (at[2] - 2 * at[1] + at[0]) / h**2, (at[2] - at[0]) / (2 * h)
    np.testing.assert_allclose(second + w / quality * first + w * w * at[1], 0, atol=1e-6)
    np.testing.assert_allclose(kernel(np.zeros((1, 1))), [[1.7]])


def test_a_walk_starts_at_its_origin():
    x = np.array([[-1.0], [0.5], [2.0], [3.0]])
    expected = 2 * np.minimum(np.maximum(x - 0.5, 0), np.maximum(x.T - 0.5, 0))
    np.testing.assert_allclose(BrownianMotion(2.0, 0.5)(x), expected)


def test_a_density_that_is_none_is_minus_infinity():
    states = Matern12().states(jnp.zeros((3, 1)))
    value, slope = jax.value_and_grad(lambda r: log_density(states, jnp.ones(3), jnp.full(3, r)))(-2.0)
    assert value == -jnp.inf and np.isfinite(slope)
