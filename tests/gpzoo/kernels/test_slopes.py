"""Values and slopes in several columns against finite differences and against draws of functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpzoo.kernels import RBF, Linear, Matern32, Matern52, Polynomial, RationalQuadratic, White, WithSlopes

STEP = 1e-3
KERNELS = {
    "RBF": lambda: RBF(1.3, jnp.array([0.7, 1.5])),
    "Matern32": lambda: Matern32(0.8, jnp.array([0.7, 1.5])),
    "Matern52": lambda: Matern52(1.3, 0.9),
    "RationalQuadratic": lambda: RationalQuadratic(1.3, 0.9, 2.0),
    "Polynomial": lambda: Polynomial(3),
    "sum": lambda: RBF(1.0, 0.5, active_dims=(0,)) + 0.5 * Linear(1.0, active_dims=(1,)),
    "product": lambda: RBF(1.0, 2.0) * Matern52(1.0, 1.0),
}


def rows(rng, num):
    """Points, some of them the same, with what each row is: the value or one of two slopes."""
    X = rng.uniform(-2, 2, (num, 2))
    X[1] = X[0]
    return X, np.arange(num) % 3


def differences(kernel, X, i, Z, j):
    """The covariance of values and slopes, by symmetric differences of each side."""

    def of(points, parts):
        shifts = np.where(parts[:, None] == np.arange(1, 3), STEP, 0.0)
        return [(points + s * shifts, np.where(parts == 0, 0.5, s / (2 * STEP))) for s in (1, -1)]

    return sum(a[:, None] * np.asarray(kernel(x, z)) * b for x, a in of(X, i) for z, b in of(Z, j))


@pytest.mark.slow_but(name=["Polynomial"])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("seed", [0, 1])
def test_equals_finite_differences(name, seed):
    rng = np.random.default_rng(seed)
    (X, i), (Z, j) = rows(rng, 9), rows(rng, 7)
    Z[:3] = X[:3]
    kernel = KERNELS[name]()
    found = WithSlopes(kernel)(np.column_stack([X, i]), np.column_stack([Z, j]))
    # A Matern-3/2 has a kink in its second derivative where points coincide, of which differences see a step's length.
    tolerance = 5e-2 if name == "Matern32" else 2e-5
    np.testing.assert_allclose(found, differences(kernel, X, i, Z, j), atol=tolerance)


@pytest.mark.slow
def test_variances_where_points_coincide():
    """``k''(0)`` in closed form: a kernel with a square root could lose it."""
    lengthscales = np.array([0.5, 2.0])
    X = np.array([[0.3, -0.2, 0], [0.3, -0.2, 1], [0.3, -0.2, 2]])
    for kernel, factor in ((RBF, 1), (Matern32, 3), (Matern52, 5 / 3)):
        of_both = WithSlopes(kernel(1.7, jnp.asarray(lengthscales)))
        expected = 1.7 * np.array([1, *(factor / lengthscales**2)])
        np.testing.assert_allclose(of_both.diag(X), expected, rtol=1e-9)
        np.testing.assert_allclose(np.diagonal(of_both(X)), expected, rtol=1e-9)


@pytest.mark.slow
def test_a_regression_on_slopes_finds_the_function():
    """Of ``x^2 y`` known by its value at one point and its slopes at others, in float64."""
    rng = np.random.default_rng(0)
    X, f = rng.uniform(-1, 1, (60, 2)), lambda x: x[:, 0] ** 2 * x[:, 1]
    i = np.where(np.arange(60) == 0, 0, 1 + np.arange(60) % 2)
    y = np.choose(i, [f(X), 2 * X[:, 0] * X[:, 1], X[:, 0] ** 2])
    kernel, seen = WithSlopes(RBF(1.0, 1.0)), np.column_stack([X, i])
    at = rng.uniform(-0.9, 0.9, (20, 2))
    K = np.asarray(kernel(seen)) + 1e-8 * np.eye(60)
    found = np.asarray(kernel(np.column_stack([at, np.zeros(20)]), seen)) @ np.linalg.solve(K, y)
    np.testing.assert_allclose(found, f(at), atol=2e-3)


@pytest.mark.slow
def test_one_kernel_for_each_output_and_float32():
    X = np.array([[0.0, 0], [0.5, 1]], np.float32)
    both = WithSlopes(RBF(1.0, jnp.array([[1.0], [2.0]], jnp.float32)))(X)
    assert both.shape == (2, 2, 2) and both.dtype == jnp.float32
    for k, lengthscale in enumerate((1.0, 2.0)):
        np.testing.assert_allclose(both[k], WithSlopes(RBF(1.0, lengthscale))(X), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: WithSlopes(1.0), TypeError, "kernel must be a kernel"),
        (lambda: WithSlopes(RBF() + White()), ValueError, "noise has no slopes"),
        (lambda: WithSlopes(RBF())(np.zeros((3, 1))), ValueError, "two columns or more"),
        (lambda: WithSlopes(RBF())(np.array([[0.0, 2.0]])), ValueError, "it has others"),
        (lambda: WithSlopes(RBF())(np.array([[0.0, 0.5]])), ValueError, "it has others"),
    ],
)
def test_refusals(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.slow
def test_derivatives_by_hyperparameters():
    X = np.array([[0.0, 0.1, 0], [0.5, 0.2, 1], [0.5, 0.2, 2], [1.0, -0.3, 1]])
    of = jax.jit(lambda s: jnp.sum(jnp.sin(WithSlopes(Matern52(1.0, s))(X))))
    np.testing.assert_allclose(jax.grad(of)(0.8), (of(0.8 + 1e-5) - of(0.8 - 1e-5)) / 2e-5, rtol=1e-6)
