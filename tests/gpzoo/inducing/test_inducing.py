"""Inducing variables: covariances by dispatch, and how users add their own."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from multipledispatch.conflict import AmbiguityWarning

from gpzoo._pytree import static
from gpzoo.inducing.kuu_kuf import Kuf, Kuu
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
    @jax.jit
    def both(kernel, Z, X):
        return (Kuu(InducingPoints(Z), kernel), Kuf(InducingPoints(Z), kernel, X)), (kernel(Z), kernel(Z, X))

    for found, wanted in zip(*both(kernel, vectors(5), vectors(7) + 1), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_points_are_images_for_kernels_on_images():
    Z, X = images(2), images(3)
    found, wanted = jax.jit(lambda kernel: (Kuf(InducingPoints(Z), kernel, X), kernel(Z, X)))(convolutional())
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_points_for_each_output():
    Z, X = np.stack([vectors(5), vectors(5) + 1]), vectors(7)
    kernel = RBF(jnp.asarray([1.0, 2.0]), jnp.asarray([0.5, 0.7])[:, None])

    @jax.jit
    def together_and_alone(kernel):
        alone = jnp.stack([RBF(kernel.variance[d], kernel.lengthscale[d, 0])(Z[d], X) for d in range(2)])
        return Kuu(InducingPoints(Z), kernel), Kuf(InducingPoints(Z), kernel, X), alone

    own, cross, alone = together_and_alone(kernel)
    assert own.shape == (2, 5, 5)
    np.testing.assert_allclose(cross, alone, rtol=1e-12)


def test_patches_in_sums_and_multiples():
    Z, X = InducingPatches(vectors(4, 6)), images(3)

    @jax.jit
    def parts_and_sums():
        kernel, other = convolutional(weights=jnp.linspace(-1, 1, 8)), Convolutional(Matern32(), (5, 4), (2, 3))
        total = kernel + 2.0 * other + White(0.1) + Constant(3.0)
        parts = [(Kuu(Z, k), Kuf(Z, k, X)) for k in (kernel, other)]
        return parts, Kuu(Z, total), Kuf(Z, total, X), Kuf(Z, 2.0 * kernel, X), Kuf(Z, White(0.1), X)

    (a, b), own, cross, twice, white = jax.tree.map(np.asarray, parts_and_sums())
    assert a[1].shape == (4, 3)
    np.testing.assert_allclose(own, a[0] + 2 * b[0] + 0.1 * np.eye(4) + 3, rtol=1e-12)
    np.testing.assert_allclose(cross, a[1] + 2 * b[1] + 3, rtol=1e-12)
    np.testing.assert_allclose(twice, 2 * a[1], rtol=1e-12)
    np.testing.assert_array_equal(white, np.zeros((4, 3)))


def test_joint_covariance_of_patches_and_function_is_positive_definite():
    Z, X = InducingPatches(vectors(4, 6)), images(3)

    @jax.jit
    def covariances():
        kernel = (2.0 * convolutional(weights=jnp.linspace(-1, 1, 8))) + Constant(3.0) + White(1e-6)
        return Kuu(Z, kernel), Kuf(Z, kernel, X), kernel(X)

    own, cross, whole = (np.asarray(K) for K in covariances())
    assert np.linalg.eigvalsh(np.block([[own, cross], [cross.T, whole]])).min() > 0


def test_patches_for_each_output():
    many_Z, many_X = np.stack([vectors(4, 6), vectors(4, 6) + 1]), np.stack([images(3), 1 - images(3)])

    @jax.jit
    def together_and_alone():
        weights = jnp.stack([jnp.linspace(-1, 1, 8), jnp.linspace(1, 2, 8)])
        scale, white = jnp.asarray([2.0, 3.0]), jnp.asarray([0.1, 0.2])
        kernel = Constant(1.0) + scale * convolutional(weights=weights) + White(white)
        together = Kuu(InducingPatches(many_Z), kernel), Kuf(InducingPatches(many_Z), kernel, many_X)
        shared = Kuu(InducingPatches(many_Z[0]), kernel), Kuf(InducingPatches(many_Z[0]), kernel, many_X[0])

        def alone(weights, scale, white, Z, X):
            single = scale * convolutional(weights=weights) + White(white) + Constant(1.0)
            return Kuu(InducingPatches(Z), single), Kuf(InducingPatches(Z), single, X)

        each = [
            (alone(*of, many_Z[d], many_X[d]), alone(*of, many_Z[0], many_X[0]))
            for d, of in enumerate(zip(weights, scale, white, strict=True))
        ]
        return together, shared, each

    together, shared, alone = jax.tree.map(np.asarray, together_and_alone())
    for d in range(2):
        for found, wanted in zip((together, shared), alone[d], strict=True):
            np.testing.assert_allclose(found[0][d], wanted[0], rtol=1e-12)
            np.testing.assert_allclose(found[1][d], wanted[1], rtol=1e-12)


def test_gradients_and_vmap_pass_through_dispatch():
    X, Z = images(3), jnp.asarray(vectors(4, 6))

    def loss(variable):
        return jnp.sum(Kuf(variable, convolutional(), X)) + jnp.sum(Kuu(variable, convolutional()))

    many = InducingPatches(np.stack([Z, np.asarray(Z) + 1]))
    gradient, values = jax.jit(lambda: (jax.grad(loss)(InducingPatches(Z)), jax.vmap(loss)(many)))()
    assert isinstance(gradient, InducingPatches) and gradient.Z.shape == Z.shape
    assert values.shape == (2,) and np.isfinite(gradient.Z).all()


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

        slopes = Slopes(jnp.asarray(np.linspace(-1, 1, 3)), name="a")
        kernel = RBF(1.3, 0.7)
        own, cross = jax.jit(lambda slopes, kernel, X: (Kuu(slopes, kernel), Kuf(slopes, kernel, X)))(
            slopes, kernel, vectors(5, 1)
        )
        assert own.shape == (3, 3)

    def k(z, x):
        return RBF(1.3, 0.7)(z[None, None], x[None, None])[0, 0]

    exact = jax.jit(jax.vmap(jax.vmap(jax.grad(k), (None, 0)), (0, None)))(slopes.where, vectors(5, 1)[:, 0])
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
