"""Inducing variables: covariances by dispatch, how users add their own, and where they start."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from multipledispatch.conflict import AmbiguityWarning

from gpzoo import inducing
from gpzoo.inducing import (
    InducingPatches,
    InducingPoints,
    InducingVariable,
    Kuf,
    Kuu,
    kmeans,
    random_subset,
    uniform_patches,
    unique_patches,
)
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

        data_fields = ("where",)
        static_fields = ("name",)

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


# -- where they start --------------------------------------------------------------------------------------------------


def test_kmeans_finds_clusters():
    rng = np.random.default_rng(2)
    centres = np.asarray([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    X = np.concatenate([c + 0.1 * rng.normal(size=(20, 2)) for c in centres])
    found = kmeans(3)(KEY, X, RBF())
    assert isinstance(found, InducingPoints)
    assert np.abs(found.Z[:, None] - centres).sum(-1).min(0).max() < 0.2


def test_kmeans_of_many_inputs(monkeypatch):
    monkeypatch.setattr(inducing, "LARGE", 50)
    rng = np.random.default_rng(2)
    X = np.concatenate([[[0.0, 0.0]], [[10.0, 0.0]]])[rng.integers(2, size=200)] + 0.1 * rng.normal(size=(200, 2))
    found = np.asarray(kmeans(2)(KEY, X, RBF()).Z)
    np.testing.assert_allclose(found[np.argsort(found[:, 0])], [[0, 0], [10, 0]], atol=0.3)


def test_kmeans_replaces_centres_that_coincide(monkeypatch):
    import sklearn.cluster

    class Coincident(sklearn.cluster.KMeans):
        def fit(self, rows):
            self.cluster_centers_ = np.repeat(rows[:1], self.n_clusters, axis=0)
            return self

    monkeypatch.setattr(sklearn.cluster, "KMeans", Coincident)
    X = vectors(10)
    Z = np.asarray(kmeans(4)(KEY, X, RBF()).Z)
    np.testing.assert_array_equal(Z, X[:4])


def test_random_subset_takes_rows():
    X = vectors(30)
    Z = np.asarray(random_subset(30)(KEY, X, RBF()).Z)
    np.testing.assert_array_equal(np.sort(Z, 0), np.sort(X, 0))
    assert not np.array_equal(Z, X)


def test_random_subset_takes_distinct_rows():
    X = np.repeat(vectors(5), 40, axis=0)
    Z = np.asarray(random_subset(5)(KEY, X, RBF()).Z)
    np.testing.assert_array_equal(np.unique(Z, axis=0), np.unique(X, axis=0))


@pytest.mark.parametrize("channels", [1, 2])
def test_unique_patches_are_distinct_patches_of_the_images(channels):
    X = images(8, channels)
    X[:, :, :3] = 0
    kernel = Convolutional(RBF(), (5, 4, channels), (2, 3))
    found = unique_patches(20)(KEY, X, kernel + White(0.1))
    assert isinstance(found, InducingPatches) and found.Z.shape == (20, 6)
    assert len(np.unique(found.Z, axis=0)) == 20
    patches = np.asarray(kernel.view.view(X)).reshape(-1, 6)
    assert np.abs(found.Z[:, None] - patches).max(-1).min(1).max() == 0


def test_unique_patches_looks_at_more_images_where_the_first_have_too_few():
    X = np.zeros((40, 5, 4, 1))
    X[7] = images(1)[0]
    for seed in range(3):
        found = unique_patches(3)(jax.random.key(seed), X, 2.0 * convolutional())
        assert len(np.unique(found.Z, axis=0)) == 3


def test_zero_and_minus_zero_are_the_same_patch():
    X = np.zeros((2, 5, 4, 1))
    X[1] = -X[1]
    with pytest.raises(ValueError, match="only 1 distinct patches"):
        unique_patches(2)(KEY, X, convolutional())


def test_uniform_patches():
    found = uniform_patches(500)(KEY, images(3).astype("float32"), convolutional())
    assert isinstance(found, InducingPatches) and found.Z.shape == (500, 6) and found.Z.dtype == jnp.float32
    assert found.Z.min() >= 0 and found.Z.max() <= 1
    assert abs(found.Z.mean() - 0.5) < 0.03


@pytest.mark.parametrize("make", [kmeans, random_subset])
def test_initialisers_of_points_give_images_for_images(make):
    X = images(8)
    assert make(3)(KEY, X, convolutional()).Z.shape == (3, 5, 4, 1)


@pytest.mark.parametrize("make", [kmeans, random_subset, unique_patches, uniform_patches])
def test_initialisers_follow_key_and_dtype(make):
    X, kernel = images(8).astype("float32"), convolutional()
    one, same, other = (make(4)(jax.random.key(seed), X, kernel).Z for seed in (0, 0, 1))
    assert one.dtype == jnp.float32
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("make", [kmeans, random_subset, unique_patches, uniform_patches])
def test_initialisers_serve_each_set_of_inputs(make):
    X = np.stack([images(8), 1 + images(8)])
    Z = make(3)(KEY, X, convolutional()).Z
    assert Z.shape[:2] == (2, 3)
    if make is not uniform_patches:
        assert Z[0].max() <= 1 <= Z[1].min()


@pytest.mark.parametrize("make", [kmeans, random_subset])
def test_more_points_than_rows(make):
    name = make.__name__
    with pytest.raises(
        ValueError, match=rf"{name}\(31\) asks for 31 inducing variables, but X has only 30 distinct rows"
    ):
        make(31)(KEY, vectors(30), RBF())
    with pytest.raises(ValueError, match=rf"{name}\(6\) asks for 6.* only 5 distinct rows. Ask for at most 5"):
        make(6)(KEY, np.repeat(vectors(5), 4, axis=0), RBF())


@pytest.mark.parametrize("make", [kmeans, random_subset, unique_patches, uniform_patches])
@pytest.mark.parametrize("M", [0, -1, 1.5])
def test_number_of_inducing_variables_is_checked(make, M):
    with pytest.raises(ValueError, match=rf"{make.__name__} needs a whole number of inducing variables >= 1, got {M}"):
        make(M)


@pytest.mark.parametrize("make", [kmeans, random_subset, unique_patches, uniform_patches])
def test_initialisers_refuse_to_run_under_jit(make):
    with pytest.raises(TypeError, match=r"initialisers run outside jit.*guide.init_params"):
        jax.jit(lambda X: make(2)(KEY, X, convolutional()))(images())
    with pytest.raises(TypeError, match=r"initialisers run outside jit"):
        jax.jit(lambda key: make(2)(key, images(), convolutional()))(KEY)


@pytest.mark.parametrize("make", [unique_patches, uniform_patches])
def test_patches_need_a_double_sum(make):
    with pytest.raises(TypeError, match=r"needs a kernel with a DoubleSum.*got RBF"):
        make(2)(KEY, vectors(), RBF())
    mixed = convolutional() + Convolutional(RBF(), (5, 4), (2, 2))
    with pytest.raises(ValueError, match=r"views of different sizes \(\[4, 6\]\)"):
        make(2)(KEY, images(), mixed)


def test_initialisers_name_inputs_that_are_not_finite():
    X = vectors()
    X[3, 1] = np.nan
    with pytest.raises(ValueError, match=r"X has 1 entries that are not finite, the first at index \(3, 1\)"):
        kmeans(2)(KEY, X, RBF())
