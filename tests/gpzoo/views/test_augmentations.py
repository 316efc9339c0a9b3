"""Views that are sampled: what they draw, what they refuse, and what a kernel over them can do."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpzoo import (
    Affine,
    Deformation,
    GaussianProcess,
    InducingPatches,
    Orbit,
    Patches,
    Rotation,
    SampledView,
    Subsampled,
)
from gpzoo.inducing.initialisers import kmeans, unique_patches
from gpzoo.inducing.kuu_kuf import Kuu
from gpzoo.kernels import RBF, Convolutional, DoubleSum, Invariant, White, with_fixed_views
from gpzoo.posteriors.sampled_views import PairWeights
from gpzoo.views._warp import affine_matrix, affine_positions, bilinear
from gpzoo.views.base import Composed

KEY = jax.random.key(0)
X = jnp.asarray(np.random.default_rng(0).uniform(size=(3, 6, 6, 1)))
VIEWS = {
    "rotation": lambda: Rotation((6, 6), 40.0, num_views=4, num_fixed=7),
    "affine": lambda: Affine((6, 6), jnp.full(6, 0.8), jnp.full(6, 1.2), num_views=4, num_fixed=7),
    "raw": lambda: Affine(
        (6, 6, 1), [0.9, -0.1, 0.0, -0.1, 0.9, 0.0], [1, 0.1, 0, 0.1, 1, 0.1], raw=True, num_views=4, num_fixed=7
    ),
    "deformation": lambda: Deformation((6, 6), 0.5, 2.0, num_views=4, num_fixed=7),
    "subsampled": lambda: Subsampled(Orbit.of_images((6, 6), rotations=True, flips=True), 4, num_fixed=7),
}


@jax.jit
def looked_at(view, X):
    """One compilation for all that is looked at."""

    def score(view):
        sampled = view.sample(KEY, X)
        return jnp.sum(jnp.sin(sampled)), sampled

    (value, sampled), gradient = jax.value_and_grad(score, has_aux=True)(view)
    fixed = view.fixed(KEY)
    return {
        "score": value,
        "sampled": sampled,
        "gradient": gradient,
        "same input": view.sample(KEY, jnp.stack([X[0]] * 3)),
        "fixed": fixed.view(X),
        "fixed of some": fixed.view(X[1:]),
        "three fixed": view.fixed(KEY, 3).view(X),
    }


@lru_cache
def seen(name, dtype):
    return looked_at(VIEWS[name](), X.astype(dtype))


@pytest.mark.slow_but(name=["rotation", "affine"], dtype=[jnp.float64])
@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_every_view_samples_and_can_be_fixed(name, dtype):
    found = seen(name, dtype)
    sampled, views = found["sampled"], found["fixed"]
    assert sampled.shape == (3, 4, 36) and sampled.dtype == dtype and np.isfinite(sampled).all()
    # Every input has transformations of its own; fixed ones are the same for all, and do not depend on the batch.
    same = np.asarray(found["same input"])
    assert not np.allclose(same[0], same[1])
    assert VIEWS[name]().fixed(KEY).num_views == 7
    assert views.shape == (3, 7, 36) and views.dtype == dtype
    np.testing.assert_allclose(found["fixed of some"], np.asarray(views)[1:], atol=1e-6)
    assert found["three fixed"].shape == (3, 3, 36)


@pytest.mark.slow_but(name=["rotation", "affine"])
@pytest.mark.parametrize("name", VIEWS)
def test_views_are_pytrees_that_compile_and_differentiate(name):
    found = seen(name, jnp.float64)
    np.testing.assert_allclose(found["score"], np.sin(found["sampled"]).sum(), rtol=1e-8)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(found["gradient"])]
    assert all(np.isfinite(leaf).all() for leaf in leaves)
    if name != "subsampled":
        assert any(np.abs(leaf).max() > 0 for leaf in leaves)


@pytest.mark.slow
def test_samples_are_the_same_without_jit():
    sampled = VIEWS["rotation"]().sample(KEY, X)
    np.testing.assert_allclose(sampled, seen("rotation", jnp.float64)["sampled"], rtol=1e-8, atol=1e-12)


def test_rotations_are_uniform_up_to_the_angle():
    view = Rotation((6, 6), 40.0)
    uniform = view.noise(KEY, 4000)
    angles = np.asarray(view.low[0] + (view.high[0] - view.low[0]) * uniform[:, 0])
    assert -40 <= angles.min() < -39 and 39 < angles.max() <= 40
    assert abs(angles.mean()) < 1.5


def test_the_angle_gets_the_gradient_of_finite_differences():
    step = 1e-5

    @jax.jit
    def scores(angle):
        score = lambda angle: jnp.sum(jnp.square(Rotation((6, 6), angle, num_views=4).sample(KEY, X)))  # noqa: E731
        return jax.grad(score)(angle), jax.vmap(score)(angle + jnp.asarray([step, -step]))

    gradient, (up, down) = scores(20.0)
    np.testing.assert_allclose(gradient, (up - down) / (2 * step), rtol=1e-5)


def test_a_subsample_has_no_view_twice():
    orbit = Orbit([(i, (i + 1) % 5, (i + 2) % 5, (i + 3) % 5, (i + 4) % 5) for i in range(5)])
    x = np.random.default_rng(1).normal(size=(50, 5))
    whole, some = jax.jit(lambda x: (orbit.view(x), Subsampled(orbit, 3).sample(KEY, x)))(x)
    matches = np.all(np.asarray(some)[:, :, None] == np.asarray(whole)[:, None], -1)
    assert (matches.sum(-1) == 1).all() and matches.any(1).sum(-1).tolist() == [3] * 50
    assert matches.any(1).any(0).all()  # and none is left out for ever


REFUSED = {
    "one view": (lambda: Rotation((6, 6), 40.0, num_views=1), ValueError, "at least 2"),
    "no views": (lambda: Rotation((6, 6), 40.0, num_views=0), ValueError, "num_views"),
    "no fixed views": (lambda: Rotation((6, 6), 40.0, num_fixed=0), ValueError, "num_fixed"),
    "many angles": (lambda: Rotation((6, 6), jnp.ones(2)), ValueError, "one number"),
    "rough": (lambda: Deformation((6, 6), 1.0, 0.0), ValueError, "smoothness must be positive"),
    "infinite amplitude": (lambda: Deformation((6, 6), jnp.inf, 1.0), ValueError, "amplitude must be finite"),
    "no views when fixed": (lambda: Rotation((6, 6), 40.0).fixed(KEY, 0), ValueError, "num_views"),
    "more fixed views than there are": (
        lambda: Subsampled(Orbit([(0, 1), (1, 0)]), 2).fixed(KEY, 3),
        ValueError,
        "there are 2",
    ),
    "inputs per output": (lambda: Rotation((6, 6), 40.0).sample(KEY, X[None]), ValueError, "same X for all"),
    "white noise on views": (
        lambda: Invariant(RBF(1.0, 1.0) + White(0.1), Rotation((6, 6), 40.0)),
        ValueError,
        "add White to the kernel",
    ),
    "a scaled convolution": (
        lambda: Invariant(2.0 * Convolutional(RBF(1.0, 1.0), (6, 6), (3, 3)), Rotation((6, 6), 40.0)),
        ValueError,
        "scale and add outside",
    ),
    "a word": (lambda: Rotation((6, 6), "forty"), TypeError, "angle"),
    "nan": (lambda: Rotation((6, 6), jnp.nan), ValueError, "angle must be finite"),
    "thin image": (lambda: Rotation((1, 6), 40.0), ValueError, "two pixels"),
    "five bounds": (lambda: Affine((6, 6), jnp.ones(5), jnp.ones(5)), ValueError, "six parameters"),
    "one bound": (lambda: Deformation((6, 6), 1.0, 2.0, low=jnp.ones(6)), ValueError, "both bounds"),
    "amplitudes": (lambda: Deformation((6, 6), jnp.ones(2), 2.0), ValueError, "one number"),
    "no orbit": (lambda: Subsampled(Patches((6, 6), (3, 3)), 3), TypeError, "Orbit"),
    "more than there are": (lambda: Subsampled(Orbit([(0, 1), (1, 0)]), 3), ValueError, "the orbit has 2"),
    "other inputs": (lambda: Rotation((6, 6), 40.0).sample(KEY, X[:, :5]), ValueError, r"shape \(6, 6, 1\)"),
    "flat inputs": (lambda: Rotation((6, 6), 40.0).fixed(KEY).view(X[..., 0]), ValueError, r"X\[\.\.\., None\]"),
    "weights": (
        lambda: DoubleSum(RBF(1.0, 1.0), Rotation((6, 6), 40.0, num_views=4), jnp.ones(4), mean=True),
        ValueError,
        "without weights",
    ),
    "a sum": (lambda: DoubleSum(RBF(1.0, 1.0), Rotation((6, 6), 40.0)), ValueError, "mean=True"),
    "a kernel per output": (
        lambda: Invariant(RBF(jnp.ones(2), 1.0), Rotation((6, 6), 40.0)),
        ValueError,
        "one base kernel",
    ),
    "no view": (lambda: Invariant(RBF(1.0, 1.0), 40.0), TypeError, "view"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_nonsense_is_refused(case):
    make, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        make()


class Wide(SampledView):
    def __init__(self, num_views=3):
        super().__init__((3,), num_views)

    def noise(self, key, num_views):
        return jnp.zeros(num_views)

    def transform(self, x, noise):
        return jnp.concatenate([x, x])


def test_a_users_view_must_keep_the_shape_and_have_two_views():
    with pytest.raises(ValueError, match=r"Wide.transform must return one view of the input's shape \(3,\)"):
        Wide().sample(KEY, jnp.ones((2, 3)))
    with pytest.raises(ValueError, match="at least 2"):
        Wide(1)
    single = Wide()
    single.num_views = 1
    with pytest.raises(ValueError, match="Wide has num_views 1"):
        PairWeights.of(single)


def test_parameters_that_are_no_numbers_show():
    nan = jax.jit(lambda angle: Rotation((6, 6), angle).sample(KEY, X))(jnp.nan)
    assert np.isnan(nan).all()


def test_rotations_of_oblong_images_are_rotations():
    bar = np.zeros((9, 17, 1))
    bar[4, 4:13] = 1
    view = Rotation((9, 17), 90.0)

    @jax.jit
    def everything(bar):
        matrix = affine_matrix(jnp.asarray([90.0, 1, 1, 0, 0, 0]), 8 / 16)
        turned = bilinear(bar, *affine_positions(matrix, 9, 17))
        return matrix, turned, view._matrix(jnp.ones(6)), view._matrix(jnp.zeros(6))

    matrix, turned, *ends = (np.asarray(found) for found in everything(bar))
    np.testing.assert_allclose(turned[:, 8], 1, atol=1e-6)
    assert abs(turned.sum() - 9) < 1e-6
    np.testing.assert_allclose(ends[0], matrix, atol=1e-12)
    np.testing.assert_allclose(ends[0][:, :2] @ ends[1][:, :2], np.eye(2), atol=1e-12)


# -- kernels over them -------------------------------------------------------------------------------------------------


def kernel():
    return Invariant(RBF(1.3, 0.9), Rotation((6, 6), 40.0, num_views=4, num_fixed=5))


@pytest.mark.parametrize(
    "use",
    [
        lambda k: k(X),
        lambda k: k(X, X),
        lambda k: k.diag(X),
        lambda k: k.cross_view(X, jnp.ones((2, 36))),
        lambda k: GaussianProcess(k, X).log_prob(jnp.zeros(3)),
        lambda k: GaussianProcess(k + White(0.1), X).moments(),
    ],
)
def test_no_closed_form_is_pretended(use):
    with pytest.raises(TypeError, match="with_fixed_views"):
        use(kernel())


def test_fixed_views_make_a_kernel_like_any_other():
    @jax.jit
    def everything(X):
        fixed = with_fixed_views(2.0 * kernel() + White(0.1), KEY)
        part = fixed.parts[0].kernel
        views = part.view.view(X)
        brute = jnp.mean(jax.vmap(lambda v: jax.vmap(lambda w: part.base(v, w))(views))(views), (2, 3))
        other = with_fixed_views(RBF(1.0, 1.0), KEY)
        return fixed(X), fixed.diag(X), brute, other(X.reshape(3, -1))

    gram, variances, brute, other = (np.asarray(found) for found in everything(X))
    assert np.linalg.eigvalsh(gram).min() > 0
    np.testing.assert_allclose(np.diagonal(gram), variances, rtol=1e-10)
    np.testing.assert_allclose(gram - 0.1 * np.eye(3), 2 * brute, rtol=1e-8)
    assert other.shape == (3, 3)


@pytest.mark.slow
def test_the_prior_can_be_drawn():
    @jax.jit
    def everything(X):
        prior = GaussianProcess(kernel(), X, num_outputs=2)
        gram = with_fixed_views(kernel(), jax.random.split(KEY)[1])(X)
        return prior.sample(KEY, (4000,)), gram, prior.sample(KEY), prior.sample(KEY)

    draws, gram, *twice = (np.asarray(found) for found in everything(X))
    assert draws.shape == (4000, 3, 2)
    np.testing.assert_allclose(np.cov(draws[..., 0].T), gram, atol=0.1)
    np.testing.assert_array_equal(*twice)


@pytest.mark.slow
def test_inducing_variables_start_at_views():
    u = unique_patches(5)(KEY, X, kernel() + White(1e-3))
    assert isinstance(u, InducingPatches) and u.Z.shape == (5, 36)
    assert len(np.unique(u.Z, axis=0)) == 5
    np.testing.assert_allclose(*jax.jit(lambda u: (Kuu(u, kernel()), RBF(1.3, 0.9)(u.Z)))(u))
    with pytest.raises(TypeError, match="unique_patches"):
        Kuu(kmeans(2)(KEY, X, kernel()), kernel())


@pytest.mark.slow_but(weights=["trained"], mean=[True])
@pytest.mark.parametrize("weights", [None, "trained"])
@pytest.mark.parametrize("mean", [True, False])
def test_views_of_views_are_one_sum(weights, mean):
    weights = None if weights is None else np.linspace(-1, 1, 16)
    conv = Convolutional(RBF(1.3, 0.9), (6, 6), (3, 3), weights, mean=mean)
    orbit = Orbit.of_images((6, 6), rotations=True)
    whole, sampled = Invariant(conv, orbit), Invariant(conv, Subsampled(orbit, 4))
    assert isinstance(whole.view, Composed) and whole.view.num_views == 64
    images = np.asarray(X)
    turned = np.concatenate([np.rot90(images, k, axes=(1, 2)) for k in range(4)])
    Z = images[:2, :3, :3, 0].reshape(2, 9)

    @jax.jit
    def everything(conv, X, turned, Z):
        whole, sampled = Invariant(conv, orbit), Invariant(conv, Subsampled(orbit, 4))
        of_views = conv(turned), conv.cross_view(turned, Z)
        return *of_views, whole(X), whole.diag(X), whole.cross_view(X, Z), with_fixed_views(sampled, KEY)(X)

    of_views, cross_of_views, gram, variances, cross, of_sampled = everything(conv, X, turned, Z)
    brute = np.asarray(of_views).reshape(4, 3, 4, 3).mean((0, 2))
    np.testing.assert_allclose(gram, brute, rtol=1e-9)
    np.testing.assert_allclose(variances, np.diagonal(brute), rtol=1e-9)
    np.testing.assert_allclose(cross, np.asarray(cross_of_views).reshape(4, 3, 2).mean(0), rtol=1e-9)
    # A sampled view that has all of the orbit is the same sum, once it is fixed.
    np.testing.assert_allclose(of_sampled, brute, rtol=1e-9)
    with pytest.raises(ValueError, match="Sampled views must be outermost"):
        Invariant(sampled, orbit)
