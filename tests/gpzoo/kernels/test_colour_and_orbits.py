"""Double sums over colour patches and orbits, kernels on whole images, and what appendix B says of them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpzoo.inducing.kuu_kuf import Kuf, Kuu
from gpzoo.inducing.variables import InducingBlocks, InducingPatches
from gpzoo.kernels import RBF, Constant, Convolutional, DoubleSum, Flattened, Linear, Matern32, MultiChannel, White
from gpzoo.views.orbits import Orbit
from gpzoo.views.patches import Patches
from tests.reference import assert_close, matern32, rbf

SHAPE = (5, 4, 3)


def toy(dtype="float64", N=3, M=4, size=12):
    rng = np.random.default_rng(1)
    X = rng.uniform(size=(N, *SHAPE)).astype(dtype)
    return X, rng.uniform(size=(M, size)).astype(dtype), rng.normal(size=12).astype(dtype)


def naive(base, V, w, Z):
    """Both sums by loops over all pairs of views."""
    N, P, _ = V.shape
    diag, cross = np.zeros(N), np.zeros((N, len(Z)))
    for n, p in itertools.product(range(N), range(P)):
        diag[n] += sum(w[p] * w[q] * base(V[n, p], V[n, q]) for q in range(P))
        cross[n] += [w[p] * base(V[n, p], z) for z in Z]
    return diag, cross


def rbf_of(variance, lengthscale, columns=slice(None)):
    return lambda a, b: rbf(a[columns], b[columns], variance, lengthscale)


def close(ours, wanted, tolerance=1e-12):
    assert_close(ours, wanted, tolerance)


@jax.jit
def evaluate(kernel, X, Z):
    """The Gram matrix, variances, and covariances with views ``Z``."""
    return kernel(X), kernel.diag(X), kernel.cross_view(X, Z)


def additive(variances=(1.3, 0.4, 0.8), lengthscales=(0.7, 0.5, 0.9)):
    """Eq. 25: one kernel per channel of a colour patch, added."""
    parts = [
        RBF(v, s, active_dims=range(4 * c, 4 * c + 4))
        for c, (v, s) in enumerate(zip(variances, lengthscales, strict=True))
    ]
    return parts[0] + parts[1] + parts[2]


# -- colour ------------------------------------------------------------------------------------------------------------


def test_colour_patches_hold_one_channel_after_the_other():
    X, _, _ = toy()
    V = Patches(SHAPE, (2, 2), channels="joint").view(X)
    assert V.shape == (3, 12, 12)
    patch = X[1, 2:4, 1:3]  # position (2, 1) of 4 x 3
    np.testing.assert_array_equal(V[1, 2 * 3 + 1], np.moveaxis(patch, 2, 0).ravel())


def test_patches_of_one_channel():
    X, _, _ = toy()
    separate, one = Patches(SHAPE, (2, 2)), Patches(SHAPE, (2, 2), channels=1)
    assert (one.num_views, one.view_size) == (12, 4)
    np.testing.assert_array_equal(one.view(X), separate.view(X)[:, 12:24])
    gray = Patches(SHAPE[:2], (2, 2), channels="joint")
    np.testing.assert_array_equal(gray.view(X[..., :1]), Patches(SHAPE[:2], (2, 2)).view(X[..., :1]))


@pytest.mark.parametrize("channels", [3, -1, "all", True, 1.0])
def test_channels_are_refused(channels):
    with pytest.raises(ValueError, match="channels must be 'separate', 'joint' or the number of one of the 3 channels"):
        Patches(SHAPE, (2, 2), channels=channels)


BASES = {
    "colour patch": (RBF(1.3, 0.7), rbf_of(1.3, 0.7)),
    "additive": (
        additive(),
        lambda a, b: sum(
            rbf_of(v, s, slice(4 * c, 4 * c + 4))(a, b)
            for c, (v, s) in enumerate(zip((1.3, 0.4, 0.8), (0.7, 0.5, 0.9), strict=True))
        ),
    ),
    "columns apart": (RBF(1.3, 0.7, active_dims=(7, 0)), rbf_of(1.3, 0.7, [7, 0])),
    "scaled, with others": (
        0.5 * (RBF(1.3, 0.7) + 2.0 * Linear(0.3)) + Constant(0.1),
        lambda a, b: 0.5 * rbf(a, b, 1.3, 0.7) + 0.3 * np.dot(a, b) + 0.1,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_base_kernels_on_colour_patches_against_loops(name):
    base, scalar = BASES[name]
    X, Z, w = toy()
    kernel = Convolutional(base, SHAPE, (2, 2), w, channels="joint")
    wanted = naive(scalar, np.asarray(kernel.view.view(X)), np.asarray(w), np.asarray(Z))
    ours = jax.jit(lambda k: (k.diag(X), Kuf(InducingPatches(Z), k, X).T, k(X), Kuu(InducingPatches(Z), k)))(kernel)
    close(ours[0], wanted[0])
    close(ours[1], wanted[1])
    close(np.diagonal(ours[2]), wanted[0])
    close(ours[3], [[scalar(np.asarray(a), np.asarray(b)) for b in Z] for a in Z])


@pytest.mark.slow
def test_noise_in_a_base_with_other_parts():
    X, Z, w = toy()
    clean = Convolutional(additive(), SHAPE, (2, 2), w, channels="joint")
    noisy = Convolutional(additive() + 2.0 * White(0.3), SHAPE, (2, 2), w, channels="joint")
    (gram, variances, cross), (_, clean_variances, clean_cross) = (evaluate(kernel, X, Z) for kernel in (noisy, clean))
    close(variances, np.asarray(clean_variances) + 0.6 * np.sum(w**2))
    close(np.diagonal(gram), variances)
    close(cross, clean_cross)


def test_weights_per_channel_against_loops():
    rng = np.random.default_rng(2)
    X, Z, _ = toy(size=4)
    w = rng.normal(size=(3, 12))
    kernel = MultiChannel([RBF(1.3, 0.7), RBF(0.4, 0.5), RBF(0.8, 0.9)], SHAPE, (2, 2), jnp.asarray(w))
    diag, cross = np.zeros(3), []
    for c, (v, s) in enumerate([(1.3, 0.7), (0.4, 0.5), (0.8, 0.9)]):
        V = np.asarray(Patches(SHAPE, (2, 2), channels=c).view(X))
        part = naive(rbf_of(v, s), V, w[c], np.asarray(Z))
        diag += part[0]
        cross.append(part[1].T)
    ours = jax.jit(lambda k, X, Z: (k.diag(X), Kuf(InducingBlocks(InducingPatches(Z)), k, X)))(kernel, X, Z)
    close(ours[0], diag)
    close(ours[1], np.concatenate(cross))


def test_multi_channel_with_weights_alike_is_the_additive_colour_patch():
    """Eq. 24: with weights that do not depend on the channel the models are the same."""
    X, _, w = toy()
    many = MultiChannel(
        [RBF(v, s) for v, s in zip((1.3, 0.4, 0.8), (0.7, 0.5, 0.9), strict=True)], SHAPE, (2, 2), np.tile(w, (3, 1))
    )
    joint = Convolutional(additive(), SHAPE, (2, 2), w, channels="joint")
    close(*jax.jit(lambda *kernels: [kernel(X) for kernel in kernels])(many, joint))


def test_multi_channel_mean_is_over_all_patches():
    X, _, _ = toy()
    kernels = MultiChannel(RBF(), SHAPE, (2, 2)), MultiChannel(RBF(), SHAPE, (2, 2), mean=True)
    one, mean = jax.jit(lambda *kernels: [kernel.diag(X) for kernel in kernels])(*kernels)
    close(mean, np.asarray(one) / 36**2)


def test_numbers_of_any_integer_type():
    assert Patches(SHAPE, (2, 2), channels=np.int64(1)) == Patches(SHAPE, (2, 2), channels=1)
    assert Orbit.of_images((3, 3), shifts=1.0) == Orbit.of_images((3, 3), shifts=1)


def test_multi_channel_errors():
    with pytest.raises(TypeError, match="base must be a kernel, got float"):
        MultiChannel(3.0, (5, 4, 1), (2, 2))
    with pytest.raises(ValueError, match=r"image_shape must be \(H, W, C\), got \(5, 4\)"):
        MultiChannel(RBF(), (5, 4), (2, 2))
    with pytest.raises(ValueError, match="one for each of 3 channels, got 2"):
        MultiChannel([RBF(), RBF()], SHAPE, (2, 2))
    with pytest.raises(ValueError, match=r"weights must be \[C, P\] = \(3, 12\), got shape \(36,\)"):
        MultiChannel(RBF(), SHAPE, (2, 2), jnp.ones(36))


@pytest.mark.slow
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-8), ("float32", 1e-4)])
def test_gradients_of_an_additive_base(dtype, tolerance):
    X, Z, w = toy(dtype)
    rng = np.random.default_rng(3)
    factors = rng.normal(size=3).astype(dtype), rng.normal(size=(3, 4)).astype(dtype)
    arguments = (np.asarray([1.3, 0.4, 0.8], dtype), np.asarray([0.7, 0.5, 0.9], dtype), w, Z, X)
    view = Patches(SHAPE, (2, 2), channels="joint")

    def ours(arguments, factors):
        variances, lengthscales, w, Z, X = arguments
        kernel = DoubleSum(additive(variances, lengthscales), view, w)
        return jnp.vdot(factors[0], kernel.diag(X)) + jnp.vdot(factors[1], kernel.cross_view(X, Z))

    def wanted(arguments, factors):
        variances, lengthscales, w, Z, X = arguments
        V = view.view(X)

        def base(A, B):
            square = (
                jnp.square(A[:, :, None, :] - B[:, None, :, :]).reshape(len(A), A.shape[1], B.shape[1], 3, 4).sum(-1)
            )
            return jnp.sum(variances * jnp.exp(-square / (2 * lengthscales**2)), -1)

        diag = jnp.einsum("p,npq,q->n", w, base(V, V), w)
        return jnp.vdot(factors[0], diag) + jnp.vdot(
            factors[1], jnp.einsum("p,npm->nm", w, base(V, jnp.stack([Z] * 3)))
        )

    gradients = jax.jit(jax.grad(ours))(arguments, factors)
    exact = jax.tree.map(lambda a: a.astype("float64"), (arguments, factors))
    for gradient, reference in zip(gradients, jax.jit(jax.grad(wanted))(*exact), strict=True):
        assert gradient.dtype == dtype
        close(gradient, reference, tolerance)


def test_active_columns_out_of_range():
    X, Z, _ = toy()
    with pytest.raises(ValueError, match=r"active_dims \(12,\) is out of range for views of size 12"):
        Convolutional(RBF(active_dims=(12,)), SHAPE, (2, 2), channels="joint").cross_view(X, Z)


# -- whole images ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [RBF(1.3, 0.7), Matern32(1.3, 0.7) + White(0.2)])
def test_flattened_kernels(base):
    X, _, _ = toy()

    @jax.jit
    def everything(base, X):
        kernel, flat, other = Flattened(base), X.reshape(3, -1), Convolutional(RBF(), SHAPE, (2, 2))
        ours = kernel(X), kernel(X, X[:2]), kernel.diag(X)
        return ours, (base(flat), base(flat, flat[:2]), base.diag(flat)), ((kernel + other)(X), base(flat) + other(X))

    ours, wanted, total = everything(base, X)
    jax.tree.map(np.testing.assert_array_equal, ours, wanted)
    close(*total)


def test_flattened_kernels_with_outputs():
    X, _, _ = toy()
    many = Flattened(RBF(jnp.asarray([1.3, 0.5]), 0.7))
    ours, wanted = jax.jit(lambda k, one, X: (k(X), one(X.reshape(3, -1))))(many, RBF(0.5, 0.7), X)
    assert many.batched and ours.shape == (2, 3, 3)
    close(np.asarray(ours)[1], wanted)


def test_flattened_errors():
    with pytest.raises(TypeError, match="Flattened takes a kernel, got float"):
        Flattened(1.0)
    with pytest.raises(ValueError, match="DoubleSum is on other inputs"):
        Flattened(Convolutional(RBF(), SHAPE, (2, 2)))
    with pytest.raises(ValueError, match="2 or more; got 1"):
        Flattened(RBF(), 1)
    with pytest.raises(ValueError, match=r"takes inputs of 3 axes, \[N, ...\]"):
        Flattened(RBF(), 2)(jnp.zeros((3, 4)))
    with pytest.raises(ValueError, match="different shapes"):
        Flattened(RBF())(jnp.zeros((2, 3, 2, 1)), jnp.zeros((2, 2, 3, 1)))


# -- orbits ------------------------------------------------------------------------------------------------------------


def test_orbit_of_one_element_is_the_base_kernel():
    X, _, _ = toy()
    flat = X.reshape(3, -1)
    kernel, base = DoubleSum(RBF(1.3, 0.7), Orbit.of_images(SHAPE)), RBF(1.3, 0.7)

    @jax.jit
    def everything(kernel, base, X, flat):
        ours = kernel(X), kernel.diag(X), Kuf(InducingPatches(flat[:2]), kernel, X)
        return ours, (base(flat), base.diag(flat), base(flat[:2], flat))

    jax.tree.map(close, *everything(kernel, base, X, flat))


def test_orbits_of_images():
    image = np.arange(9.0).reshape(1, 3, 3, 1)
    turned = Orbit.of_images((3, 3), rotations=True).view(image)[0].reshape(4, 3, 3)
    np.testing.assert_array_equal(turned, [np.rot90(image[0, :, :, 0], k) for k in range(4)])
    assert Orbit.of_images((3, 3), flips=True).num_views == 4
    assert Orbit.of_images((3, 3), flips=True, rotations=True).num_views == 8  # the symmetries of the square
    shifted = Orbit.of_images((3, 3), shifts=1)
    views = {tuple(view) for view in np.asarray(shifted.view(image + 1)[0]).tolist()}
    assert shifted.num_views == 9 and (0, 0, 0, 1, 2, 3, 4, 5, 6) in views and (5, 6, 0, 8, 9, 0, 0, 0, 0) in views
    np.testing.assert_array_equal(shifted.view(image)[0, 0], image.ravel())


def test_colour_moves_with_its_pixel():
    X, _, _ = toy()
    flipped = np.asarray(Orbit.of_images(SHAPE, flips=True).view(X)).reshape(3, 4, *SHAPE)
    np.testing.assert_array_equal(flipped[:, 1], X[:, :, ::-1])
    np.testing.assert_array_equal(flipped[:, 2], X[:, ::-1])


SCALARS = {RBF: rbf_of(1.3, 2.0), Matern32: lambda a, b: matern32(a, b, 1.3, 2.0)}


@pytest.mark.parametrize("base", [RBF(1.3, 2.0), Matern32(1.3, 2.0)])
def test_kernels_over_an_orbit_are_invariant(base):
    rng = np.random.default_rng(4)
    X = rng.uniform(size=(3, 4, 4, 2))
    kernel = DoubleSum(base, Orbit.of_images((4, 4, 2), rotations=True, flips=True))
    evaluate = jax.jit(lambda X, Z: (kernel(X, Z), kernel.cross_view(X, Z.reshape(3, -1)), kernel.diag(X)))
    for moved in (np.rot90(X, axes=(1, 2)), X[:, :, ::-1]):
        for ours, wanted in zip(evaluate(moved, X), evaluate(X, X), strict=True):
            close(ours, wanted, 1e-12)
    V = np.asarray(kernel.view.view(X))
    diag, cross = naive(SCALARS[type(base)], V, np.ones(8), V[:, 0])
    ours = evaluate(X, V[:, 0].reshape(X.shape))
    close(ours[2], diag)
    close(ours[1], cross)


def test_orbits_of_vectors():
    """f(x, y) = f(y, x)."""
    orbit = Orbit([(0, 1), (1, 0), (0, 1)])
    assert (orbit.num_views, orbit.view_size, orbit.input_ndim) == (2, 2, 1)
    X = np.random.default_rng(5).normal(size=(4, 2))
    kernel = DoubleSum(RBF(), orbit)
    close(*jax.jit(lambda X: (kernel(X, X[:, ::-1]), kernel(X)))(X), 1e-12)
    assert (
        orbit == Orbit([(0, 1), (1, 0)]) and hash(orbit) == hash(Orbit([(0, 1), (1, 0)])) and orbit != Orbit([(0, 1)])
    )


def test_gradients_reach_inputs_through_an_orbit():
    X = np.random.default_rng(5).normal(size=(2, 3))
    kernel = DoubleSum(RBF(), Orbit([(0, 1, 2), (2, -1, 0)]))

    @jax.jit
    def scores(X, moved):
        score = lambda X: jnp.sum(jnp.sin(kernel.diag(X)))  # noqa: E731
        return jax.grad(score)(X), jax.vmap(score)(moved)

    steps = 1e-6 * np.eye(6).reshape(6, 2, 3)
    gradient, values = scores(X, np.concatenate([X + steps, X - steps]))
    numeric = (np.asarray(values)[:6] - np.asarray(values)[6:]) / 2e-6
    np.testing.assert_allclose(np.ravel(gradient), numeric, atol=1e-7)


def test_orbit_errors():
    with pytest.raises(ValueError, match=r"square images, got image_shape \(3, 4, 1\)"):
        Orbit.of_images((3, 4), rotations=True)
    with pytest.raises(ValueError, match="shifts must be between 0 and 2 pixels, got 3"):
        Orbit.of_images((3, 4), shifts=3)
    with pytest.raises(ValueError, match="entries from -1 to 1; got shape"):
        Orbit([(0, 2)])
    with pytest.raises(ValueError, match=r"table must be integers \[views, size\]"):
        Orbit([0.5, 1.0])
    with pytest.raises(ValueError, match=r"of shape \(2,\), got shape \(4, 3\)"):
        Orbit([(0, 1)]).view(jnp.zeros((4, 3)))


# -- appendix B: neither degenerate nor universal ----------------------------------------------------------------------


def single_pixels(size, positions):
    X = np.zeros((len(positions), size, size, 1))
    for n, (i, j) in enumerate(positions):
        X[n, i, j] = 1
    return X


def rank(K):
    eigenvalues = np.linalg.eigvalsh(K)
    return int(np.sum(eigenvalues > 1e-9 * eigenvalues.max()))


@pytest.mark.slow
@pytest.mark.parametrize("patch", [(2, 2), (2, 3)])
def test_images_of_one_pixel_have_a_kernel_matrix_of_low_rank(patch):
    """B.2: images of a single pixel share their w h patches with a pixel in them, so w h + 1 of them are dependent.

    The proof counts only those patches (B.8). A blank patch has a response too: where it counts, images at the edge,
    or weights, make it one more.
    """
    (h, w), rng = patch, np.random.default_rng(6)
    everywhere = list(itertools.product(range(8), range(8)))
    inside = [(i, j) for i, j in everywhere if h <= i + 1 <= 9 - h and w <= j + 1 <= 9 - w]
    weights = rng.normal(size=(9 - h) * (9 - w))
    rbf = RBF(1.0, 0.5)

    def found(base, weights, positions):
        X = single_pixels(8, [positions[k] for k in rng.permutation(len(positions))])
        return rank(jax.jit(lambda X: Convolutional(base, (8, 8), patch, weights)(X))(X)), X

    assert found(rbf, None, inside[: h * w + 1])[0] <= h * w
    assert found(rbf * Linear(), weights, everywhere)[0] == h * w  # no response to blank patches: g(0) = 0
    most, X = found(rbf, weights, everywhere)
    assert most == h * w + 1
    assert rank(jax.jit(lambda X: Flattened(rbf)(X))(X)) == 64  # the RBF kernel on whole images tells them apart


def test_images_with_distinct_corner_patches_have_a_kernel_matrix_of_full_rank():
    """B.2: one free patch each, and the kernel is not degenerate however many images there are."""
    X = np.zeros((40, 8, 8, 1))
    X[:, :2, :2, 0] = np.random.default_rng(6).uniform(-3, 3, size=(40, 2, 2))
    kernel = Convolutional(RBF(1.0, 0.5), (8, 8), (2, 2))
    eigenvalues = np.linalg.eigvalsh(jax.jit(lambda X: kernel(X))(jnp.asarray(X)))
    assert eigenvalues.min() > 1e-3
