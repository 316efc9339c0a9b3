"""Where inducing variables start."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from gpzoo.inducing import initialisers
from gpzoo.inducing.initialisers import blocks, kmeans, random_subset, uniform_patches, unique_patches
from gpzoo.inducing.variables import InducingBlocks, InducingPatches, InducingPoints
from gpzoo.kernels import RBF, Constant, Convolutional, Flattened, MultiChannel, White
from tests.gpzoo.inducing.test_inducing import convolutional, images, vectors

KEY = jax.random.key(0)


def test_kmeans_finds_clusters():
    rng = np.random.default_rng(2)
    centres = np.asarray([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    X = np.concatenate([c + 0.1 * rng.normal(size=(20, 2)) for c in centres])
    found = kmeans(3)(KEY, X, RBF())
    assert isinstance(found, InducingPoints)
    assert np.abs(found.Z[:, None] - centres).sum(-1).min(0).max() < 0.2


def test_kmeans_does_not_depend_on_the_number_of_cores():
    X = np.random.default_rng(0).uniform(-2, 2, (600, 8)).astype(np.float32)
    kmeans(25)(KEY, X, RBF())  # its threads are loaded, so that they can be limited
    found = []
    for cores in (1, 2, 4):
        with threadpool_limits(cores):
            found.append(np.asarray(kmeans(25)(KEY, X, RBF()).Z))
    np.testing.assert_array_equal(found[1:], found[:1] * 2)


def test_kmeans_of_many_inputs(monkeypatch):
    monkeypatch.setattr(initialisers, "LARGE", 50)
    rng = np.random.default_rng(2)
    X = np.concatenate([[[0.0, 0.0]], [[10.0, 0.0]]])[rng.integers(2, size=200)] + 0.1 * rng.normal(size=(200, 2))
    found = np.asarray(kmeans(2)(KEY, X, RBF()).Z)
    np.testing.assert_allclose(found[np.argsort(found[:, 0])], [[0, 0], [10, 0]], atol=0.3)


def test_kmeans_replaces_centres_that_coincide(monkeypatch):
    monkeypatch.setattr(initialisers, "_far_apart", lambda rng, rows, M: np.zeros((M, 2), rows.dtype))
    X = np.repeat(vectors(10), 2, axis=0)
    Z = np.asarray(kmeans(4)(KEY, X, RBF()).Z)
    # All rows are nearest to the first of the equal centres, which becomes their mean, where the others lie.
    np.testing.assert_allclose(Z, np.concatenate([X.mean(axis=0)[None], X[:6:2]]), atol=1e-12)


def test_kmeans_is_nearly_the_best_of_many():
    """Clusters that lie apart, where centres that start at random rows miss some of them."""
    rng = np.random.default_rng(3)
    middles = 5 * rng.normal(size=(30, 3))
    X = middles[rng.integers(30, size=3000)] + 0.1 * rng.normal(size=(3000, 3))

    def spread(Z):
        return np.square(X[:, None] - np.asarray(Z)).sum(-1).min(1).mean()

    found = [spread(kmeans(30)(jax.random.key(seed), X, RBF()).Z) for seed in range(3)]
    assert max(found) < 3 * spread(middles)
    assert spread(random_subset(30)(KEY, X, RBF()).Z) > 30 * spread(middles)


def test_clusters_of_far_inputs_are_those_of_near_ones():
    X = np.random.default_rng(0).uniform(0, 1, (300, 6)).astype(np.float32)
    near, far = (np.asarray(kmeans(5)(KEY, X + np.float32(shift), RBF()).Z) - shift for shift in (0, 4096))
    np.testing.assert_allclose(far, near, atol=2e-3)


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


@pytest.mark.slow
def test_unique_patches_looks_at_more_images_where_the_first_have_too_few():
    X = np.zeros((40, 5, 4, 1))
    X[7] = images(1)[0]
    for seed in range(3):
        found = unique_patches(3)(jax.random.key(seed), X, 2.0 * convolutional())
        assert len(np.unique(found.Z, axis=0)) == 3


def test_zero_and_minus_zero_are_the_same_patch():
    X = np.zeros((2, 5, 4, 1))
    X[1] = -X[1]
    with pytest.raises(ValueError, match="only 1 distinct patch"):
        unique_patches(2)(KEY, X, convolutional())


def test_clusters_are_the_same_in_any_unit():
    X = np.random.default_rng(0).standard_normal((30, 2)).astype(np.float32)
    near, far = (kmeans(5)(KEY, unit * X, RBF()).Z for unit in np.float32([1, 1e30]))
    np.testing.assert_allclose(far / np.float32(1e30), near, rtol=1e-4, atol=1e-5)


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


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_blocks_start_each_part_in_its_own_space():
    kernel = convolutional() + Flattened(RBF()) + White(0.1)
    made = blocks(unique_patches(3), kmeans(4))(KEY, images(), kernel)
    assert isinstance(made, InducingBlocks)
    assert [type(part) for part in made.parts] == [InducingPatches, InducingPoints]
    assert [part.Z.shape for part in made.parts] == [(3, 6), (4, 5, 4, 1)]


def test_one_initialiser_is_shared_by_all_parts():
    kernel = MultiChannel(RBF(), (5, 4, 2), (2, 3))
    made = blocks(unique_patches(3))(KEY, images(channels=2), kernel)
    assert [part.Z.shape for part in made.parts] == [(3, 6)]


def test_blocks_take_inducing_variables_as_they_are():
    Z = np.random.default_rng(3).uniform(size=(2, 6))
    made = blocks(InducingPatches(Z), kmeans(4))(KEY, images(), convolutional() + Flattened(RBF()))
    np.testing.assert_array_equal(made.parts[0].Z, Z)
    assert made.parts[1].Z.shape == (4, 5, 4, 1)


def test_patches_of_the_start_come_from_all_channels_of_a_shared_block():
    kernel = MultiChannel(RBF(), (5, 4, 2), (2, 3))
    X = images(channels=2)
    X[..., 1] += 1
    Z = np.asarray(blocks(unique_patches(50))(KEY, X, kernel).parts[0].Z)
    assert 0 < np.mean(Z > 1) < 1


def test_blocks_refuse_kernels_that_do_not_match():
    with pytest.raises(ValueError, match="blocks has 2 parts, but the kernel is a sum of 1 besides"):
        blocks(kmeans(3), kmeans(3))(KEY, vectors(), RBF())
    with pytest.raises(ValueError, match="blocks has 2 parts, but the kernel is a sum of 3 besides white noise"):
        blocks(kmeans(3), kmeans(3))(KEY, vectors(), RBF() + RBF() + Constant() + White())
    with pytest.raises(TypeError, match="blocks takes initialisers such as"):
        blocks(3)
