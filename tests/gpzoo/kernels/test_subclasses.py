"""Classes of the user's own below kernels of gpzoo: what belongs to another covariance is not inherited."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpzoo import InducingGrid, InducingHarmonics, Kuu, kernels
from gpzoo.inducing.grid import axis_column, stationary
from gpzoo.kernels import RBF, Constant, Gibbs, Linear, Matern32, Matern52, Periodic, Pointwise, White
from gpzoo.kernels.by_axis import separable
from gpzoo.kernels.fourier_features import function_values

X, Z = (np.random.default_rng(i).uniform(0.5, 3.0, (n, 2)) for i, n in enumerate((6, 4)))


def warped(of):
    """A class whose covariance is that of another at other inputs, by :meth:`cross` alone."""

    class Warped(of):
        def cross(self, X, Z):
            return super().cross(jnp.log(X), jnp.log(Z))

    return Warped


class Growing(RBF):
    """An RBF times a standard deviation that grows with the input; all methods agree."""

    def cross(self, X, Z):
        return X[:, :1] * super().cross(X, Z) * Z[:, 0]

    def gram(self, X):
        return X[:, :1] * super().gram(X) * X[:, 0]

    def variances(self, X):
        return X[:, 0] ** 2 * super().variances(X)


class Quadratic(Linear):
    def cross(self, X, Z):
        return super().cross(X, Z) ** 2


class Tanh(RBF):
    def scaled(self, X):
        return jnp.tanh(self.active_columns(X)) / self.lengthscale


OWN = {
    **{of.__name__: (warped(of)(), lambda X, of=of: of()(jnp.log(X))) for of in (RBF, Matern32, Linear, Periodic)},
    "growing": (Growing(), lambda X: X[:, :1] * RBF()(X) * X[:, 0]),
    "quadratic": (Quadratic(), lambda X: Linear()(X) ** 2),
    "scaled": (Tanh(), lambda X: RBF()(np.tanh(X))),
    "scaled by columns": (Tanh(1.0, [0.5, 2.0]), lambda X: RBF(1.0, [0.5, 2.0])(np.tanh(X))),
    "sum": (warped(RBF)() + Quadratic(), lambda X: RBF()(jnp.log(X)) + Linear()(X) ** 2),
}


@pytest.mark.parametrize("name", OWN)
def test_matrices_cross_covariances_and_variances_are_of_one_kernel(name):
    """Otherwise Kuu and Kuf would belong to two models, and a covariance would depend on the other rows."""
    kernel, of = OWN[name]
    both = of(np.concatenate([X, Z]))
    np.testing.assert_allclose(kernel(X), both[:6, :6], rtol=1e-10)
    np.testing.assert_allclose(kernel(X, Z), both[:6, 6:], rtol=1e-10)
    np.testing.assert_allclose(kernel.diag(X), jnp.diagonal(both)[:6], rtol=1e-10)
    np.testing.assert_allclose(kernel(X[:2]), both[:2, :2], rtol=1e-10)


@pytest.mark.parametrize("of", [RBF, Matern52, Periodic, Linear, Gibbs, kernels.ArcCosine, kernels.Cosine])
def test_an_evaluate_that_nothing_calls_is_refused(of):
    with pytest.raises(
        TypeError, match=r"Own defines evaluate, and the covariance of .* does not call it: define cross"
    ):
        type("Own", (of,), {"evaluate": lambda self, x, z: 1.0})

    class Written(of):
        def evaluate(self, x, z):
            return jnp.sum(x * z)

        cross = kernels.Kernel.cross

    written = Written(lambda x: 1.0) if of is Gibbs else Written()
    np.testing.assert_allclose(written(X, Z), X @ Z.T)


def test_columns_go_to_evaluate_of_a_class_below_a_function_of_two_points():
    class Twice(Pointwise):
        def evaluate(self, x, z):
            assert x.shape == (1,)
            return 2 * super().evaluate(x, z)

    wanted = X[:, 1:] @ Z[:, 1:].T
    np.testing.assert_allclose(Twice(lambda x, z: jnp.sum(x * z), active_dims=[1])(X, Z), 2 * wanted)


def test_structure_belongs_to_the_covariance():
    """Toeplitz and Kronecker structure, random features and harmonics: known for a class that changes nothing else."""
    same = type("Same", (RBF,), {})
    cauchy = type("Cauchy", (RBF,), {"profile": lambda self, square: 1 / (1 + square)})
    for kernel in (same(), cauchy(), Periodic(), White() + Constant(), 2.0 * same(active_dims=[0])):
        assert stationary(kernel)
    for kernel in (Growing(), Tanh(), warped(Matern32)(), same() + Growing(), warped(White)()):
        assert not stationary(kernel)
    assert separable(same()) and separable(cauchy(active_dims=[1])) and separable(Constant() * same())
    for kernel in (Growing(), Growing(active_dims=[0]), warped(Constant)(), cauchy(), warped(RBF)(active_dims=[0])):
        assert not separable(kernel)
    with pytest.raises(ValueError, match="needs one axis and a stationary kernel"):
        axis_column(InducingGrid(300, (0.0, 1.0)), Growing(), np.float64)
    for kernel in (Quadratic(), Growing(), warped(Linear)(), warped(Constant)()):
        with pytest.raises(TypeError, match="no known spectral density"):
            function_values(kernel, X, jax.random.key(0), 2, 16)
    with pytest.raises(TypeError, match="Growing has another covariance"):
        Kuu(InducingHarmonics(3), Growing())
    with pytest.raises(ValueError, match="active_dims must be all three columns"):
        Kuu(InducingHarmonics(3), RBF(active_dims=[0, 1]))
    assert Kuu(InducingHarmonics(3), RBF(active_dims=[0, 1, 2])).shape == Kuu(InducingHarmonics(3), cauchy()).shape


def test_functions_of_a_class_with_other_columns_are_its_own():
    class Tail(Linear):
        def scaled(self, X):
            return super().scaled(X)[:, 1:]

    found = function_values(Tail(), X, jax.random.key(0), 20_000, 2)
    np.testing.assert_allclose(found @ found.T / 20_000, Tail()(X), rtol=0.1)
