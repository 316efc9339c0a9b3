"""Inducing variables: covariances by dispatch, and how users add their own."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from multipledispatch.conflict import AmbiguityWarning

from gpzoo._pytree import static
from gpzoo.inducing.covariances import Kuf, Kuu
from gpzoo.inducing.variables import InducingPatches, InducingPoints, InducingVariable
from gpzoo.kernels import RBF, Constant, Convolutional, Matern32, White

KEY = jax.random.key(0)


def vectors(N=30, d=2, dtype="float64"):
    return np.random.default_rng(0).normal(size=(N, d)).astype(dtype)


def images(N=8, channels=1):
    return np.random.default_rng(1).uniform(size=(N, 5, 4, channels))


def convolutional(**kwargs):
    return Convolutional(RBF(1.3, 0.7), (5, 4), (2, 3), **kwargs)


# -- covariances -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kernel",
    [RBF(1.3, 0.7), RBF() + White(0.2) + Constant(2.0), 0.5 * Matern32(), White(0.2), RBF() * Constant(3.0)],
    ids=["rbf", "sum", "scaled", "white", "product"],
)
def test_points_go_with_every_kernel(kernel):
    Z, X = vectors(5), vectors(7) + 1
    np.testing.assert_allclose(Kuu(InducingPoints(Z), kernel), kernel(Z), rtol=1e-12)
    np.testing.assert_allclose(Kuf(InducingPoints(Z), kernel, X), kernel(Z, X), rtol=1e-12)


def test_points_are_images_for_kernels_on_images():
    kernel, Z, X = convolutional(), images(2), images(3)
    np.testing.assert_allclose(Kuf(InducingPoints(Z), kernel, X), kernel(Z, X), rtol=1e-12)


def test_points_for_each_output():
    Z, X = np.stack([vectors(5), vectors(5) + 1]), vectors(7)
    kernel = RBF(jnp.asarray([1.0, 2.0]), jnp.asarray([0.5, 0.7])[:, None])
    assert Kuu(InducingPoints(Z), kernel).shape == (2, 5, 5)
    for d in range(2):
        single = RBF(kernel.variance[d], kernel.lengthscale[d, 0])
        np.testing.assert_allclose(Kuf(InducingPoints(Z), kernel, X)[d], single(Z[d], X), rtol=1e-12)


def test_patches_in_sums_and_multiples():
    kernel, other = convolutional(weights=jnp.linspace(-1, 1, 8)), Convolutional(Matern32(), (5, 4), (2, 3))
    Z, X = InducingPatches(vectors(4, 6)), images(3)
    a, b = (Kuu(Z, kernel), Kuf(Z, kernel, X)), (Kuu(Z, other), Kuf(Z, other, X))
    assert a[1].shape == (4, 3)
    total = kernel + 2.0 * other + White(0.1) + Constant(3.0)
    np.testing.assert_allclose(Kuu(Z, total), a[0] + 2 * b[0] + 0.1 * np.eye(4) + 3, rtol=1e-12)
    np.testing.assert_allclose(Kuf(Z, total, X), a[1] + 2 * b[1] + 3, rtol=1e-12)
    np.testing.assert_allclose(Kuf(Z, 2.0 * kernel, X), 2 * a[1], rtol=1e-12)
    np.testing.assert_array_equal(Kuf(Z, White(0.1), X), np.zeros((4, 3)))


def test_joint_covariance_of_patches_and_function_is_positive_definite():
    kernel = (2.0 * convolutional(weights=jnp.linspace(-1, 1, 8))) + Constant(3.0) + White(1e-6)
    Z, X = InducingPatches(vectors(4, 6)), images(3)
    cross = Kuf(Z, kernel, X)
    joint = np.block([[Kuu(Z, kernel), cross], [cross.T, kernel(X)]])
    assert np.linalg.eigvalsh(joint).min() > 0


def test_patches_for_each_output():
    many_Z, many_X = np.stack([vectors(4, 6), vectors(4, 6) + 1]), np.stack([images(3), 1 - images(3)])
    weights = jnp.stack([jnp.linspace(-1, 1, 8), jnp.linspace(1, 2, 8)])
    scale, white = jnp.asarray([2.0, 3.0]), jnp.asarray([0.1, 0.2])
    kernel = Constant(1.0) + scale * convolutional(weights=weights) + White(white)
    together = Kuu(InducingPatches(many_Z), kernel), Kuf(InducingPatches(many_Z), kernel, many_X)
    shared = Kuu(InducingPatches(many_Z[0]), kernel), Kuf(InducingPatches(many_Z[0]), kernel, many_X[0])
    for d in range(2):
        single = scale[d] * convolutional(weights=weights[d]) + White(white[d]) + Constant(1.0)
        Z = InducingPatches(many_Z[d])
        np.testing.assert_allclose(together[0][d], Kuu(Z, single), rtol=1e-12)
        np.testing.assert_allclose(together[1][d], Kuf(Z, single, many_X[d]), rtol=1e-12)
        Z = InducingPatches(many_Z[0])
        np.testing.assert_allclose(shared[0][d], Kuu(Z, single), rtol=1e-12)
        np.testing.assert_allclose(shared[1][d], Kuf(Z, single, many_X[0]), rtol=1e-12)


def test_gradients_and_vmap_pass_through_dispatch():
    X, Z = images(3), jnp.asarray(vectors(4, 6))

    def loss(variable):
        return jnp.sum(Kuf(variable, convolutional(), X)) + jnp.sum(Kuu(variable, convolutional()))

    gradient = jax.jit(jax.grad(loss))(InducingPatches(Z))
    assert isinstance(gradient, InducingPatches) and gradient.Z.shape == Z.shape
    assert jax.vmap(loss)(InducingPatches(jnp.stack([Z, Z + 1]))).shape == (2,)


@pytest.mark.parametrize("kernel", [RBF(), convolutional() * Constant(2.0)], ids=["rbf", "product"])
def test_pairs_without_a_rule_are_named_with_the_way_out(kernel):
    Z, name = InducingPatches(vectors(4, 6)), type(kernel).__name__
    recipe = rf"Kuu.register\(InducingPatches, {name}\), and one for Kuf likewise"
    with pytest.raises(TypeError, match=rf"Kuu is not defined for the pair \(InducingPatches, {name}\).*{recipe}"):
        Kuu(Z, kernel)
    with pytest.raises(TypeError, match=rf"Kuf is not defined.*Kuf.register\(InducingPatches, {name}, object\)"):
        Kuf(Z, kernel, images(3))


def test_users_register_their_own_inducing_variables():
    class Slopes(InducingVariable):
        """``u_m = df/dx`` at scalar inputs."""

        where: jax.Array
        name: str = static()

        def __init__(self, where, name):
            self.where, self.name = where, name

    with warnings.catch_warnings():
        warnings.simplefilter("error", AmbiguityWarning)

        @Kuu.register(Slopes, RBF)
        def _(variable, kernel):
            r = (variable.where[:, None] - variable.where[None]) / kernel.lengthscale
            return kernel.variance / kernel.lengthscale**2 * (1 - r**2) * jnp.exp(-(r**2) / 2)

        @Kuf.register(Slopes, RBF, object)
        def _(variable, kernel, X):
            r = (X[None, :, 0] - variable.where[:, None]) / kernel.lengthscale
            return kernel.variance / kernel.lengthscale * r * jnp.exp(-(r**2) / 2)

        slopes = Slopes(jnp.linspace(-1, 1, 3), name="a")
        cross = jax.jit(lambda *arguments: Kuf(*arguments))(slopes, RBF(1.3, 0.7), vectors(5, 1))
        assert Kuu(slopes, RBF(1.3, 0.7)).shape == (3, 3)

    def k(z, x):
        return RBF(1.3, 0.7)(z[None, None], x[None, None])[0, 0]

    exact = jax.vmap(jax.vmap(jax.grad(k), (None, 0)), (0, None))(slopes.where, vectors(5, 1)[:, 0])
    np.testing.assert_allclose(cross, exact, rtol=1e-10)
    assert jax.tree.map(lambda a: a, slopes).name == "a"
    with pytest.raises(TypeError, match=r"the pair \(Slopes, Matern32\)"):
        Kuu(slopes, Matern32())


def test_no_ambiguities():
    from multipledispatch.conflict import ambiguities

    assert not ambiguities(Kuu.funcs) and not ambiguities(Kuf.funcs)


@pytest.mark.parametrize(
    "make, Z, message",
    [
        (InducingPoints, np.zeros(3), r"Z must be \[M, ...\].*got shape \(3,\)"),
        (InducingPoints, np.zeros((0, 3)), "Z is empty"),
        (InducingPoints, np.full((2, 3), np.nan), "Z has 6 entries that are not finite"),
        (InducingPatches, np.zeros((3, 2, 2, 1)), r"one flattened patch per row; got shape \(3, 2, 2, 1\)"),
    ],
)
def test_inducing_inputs_are_checked(make, Z, message):
    with pytest.raises(ValueError, match=message):
        make(Z)
