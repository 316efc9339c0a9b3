"""Resampling of images against SciPy and the authors' spatial transformer."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from jax.test_util import check_grads
from scipy import ndimage

from gpzoo.views._warp import affine_matrix, affine_positions, bilinear, smooth_displacements

IDENTITY = np.array([0.0, 1, 1, 0, 0, 0])


def image(height=6, width=9, channels=2, seed=0):
    return np.random.default_rng(seed).uniform(size=(height, width, channels))


def warped(x, matrix):
    return np.asarray(bilinear(jnp.asarray(x), *affine_positions(jnp.asarray(matrix), *x.shape[:2])))


@pytest.mark.slow
@given(seed=st.integers(0, 1000), height=st.integers(2, 8), width=st.integers(2, 8))
def test_bilinear_is_that_of_scipy(seed, height, width):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.5, 1, size=(height, width, 2))
    rows, columns = rng.uniform(-1.5, height + 0.5, 40), rng.uniform(-1.5, width + 0.5, 40)
    # Corners and borders belong to the image.
    rows[:4], columns[:4] = [0, 0, height - 1, height - 1], [0, width - 1, 0, width - 1]
    ours = bilinear(jnp.asarray(x), jnp.asarray(rows), jnp.asarray(columns))
    for c in range(2):
        theirs = ndimage.map_coordinates(x[..., c], [rows, columns], order=1, mode="constant")
        np.testing.assert_allclose(ours[:, c], theirs, rtol=1e-10, atol=1e-12)


def test_golden_affine(golden):
    arrays, _ = golden("invgp_05_stn_affine")
    X = arrays["in_X"].reshape(-1, 8, 8, 1)
    matrices = arrays["out_theta6"].reshape(-1, 2, 3)
    angle, sx, sy, shear, other_shear, right, down = arrays["in_theta7"].T
    ours = np.asarray(affine_matrix(jnp.stack([angle, sx, sy, shear, right, down], -1)))
    same = other_shear == 0
    assert same.sum() == 3
    np.testing.assert_allclose(ours[same], matrices[same], atol=1e-7)
    images = arrays["out_images"].reshape(4, 4, 8, 8)
    for i, x in enumerate(X):
        for j, matrix in enumerate(matrices):
            # Their last row and column are zero whatever the map; images are made in float32.
            ours = warped(x, matrix)[..., 0]
            np.testing.assert_allclose(ours[:7, :7], images[i, j][:7, :7], atol=2e-6)


@pytest.mark.slow
def test_the_identity_keeps_every_pixel_in_either_precision():
    x = image()
    np.testing.assert_allclose(warped(x, affine_matrix(jnp.asarray(IDENTITY))), x, atol=1e-12)
    x, matrix = x.astype(np.float32), affine_matrix(jnp.asarray(IDENTITY, jnp.float32))
    np.testing.assert_allclose(warped(x, matrix), x, atol=1e-6)


@pytest.mark.slow_but(dtype=[np.float32])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_right_angles_turn_counter_clockwise_and_lose_nothing(turns, dtype):
    x = image(7, 7, 1).astype(dtype)
    matrix = affine_matrix(jnp.asarray([90.0 * turns, 1, 1, 0, 0, 0], dtype))
    np.testing.assert_allclose(warped(x, matrix), np.rot90(x, turns), atol=1e-5 if dtype == np.float32 else 1e-12)


def test_what_the_parameters_mean():
    dot = np.zeros((9, 9, 1))
    dot[4, 6] = 1  # two pixels right of the centre, half of the half width
    moved = lambda *parameters: np.argwhere(warped(dot, affine_matrix(jnp.asarray(parameters)))[..., 0] > 0.99)  # noqa: E731
    assert moved(0.0, 2, 1, 0, 0, 0).tolist() == [[4, 5]]  # half the size
    assert moved(0.0, 1, 1, 0, 0.25, 0).tolist() == [[4, 7]]
    assert moved(0.0, 1, 1, 0, 0, 0.5).tolist() == [[6, 6]]
    # A shear moves what lies below the centre, and leaves the rest of the row where it is.
    assert moved(0.0, 1, 1, 0.5, 0, 0).tolist() == [[4, 6]]
    below = np.roll(dot, 2, axis=0)
    assert np.argwhere(warped(below, affine_matrix(jnp.asarray([0.0, 1, 1, 0.5, 0, 0])))[..., 0] > 0.99).tolist() == [
        [6, 5]
    ]


@pytest.mark.slow
def test_gradients_reach_parameters_and_image():
    x, weights = jnp.asarray(image(5, 5, 1)), jnp.asarray(image(5, 5, 1, seed=1))
    parameters = jnp.asarray([13.0, 1.1, 0.9, 0.2, 0.03, -0.02])

    def score(x, parameters, amplitude, smoothness):
        noise = jnp.asarray(np.random.default_rng(3).standard_normal((2, 5, 5)))
        rows, columns = affine_positions(affine_matrix(parameters), 5, 5)
        down, right = smooth_displacements(noise, amplitude, smoothness)
        return jnp.sum(weights * bilinear(x, rows + down, columns + right))

    check_grads(jax.jit(score), (x, parameters, jnp.asarray(0.1), jnp.asarray(1.5)), order=1, modes=["rev"], eps=1e-6)


@pytest.mark.slow
def test_displacements_have_the_amplitude_everywhere_and_are_smooth():
    noise = jax.random.normal(jax.random.key(0), (4000, 2, 8, 8))
    fields = jax.vmap(lambda z: smooth_displacements(z, jnp.asarray(0.7), jnp.asarray(2.0)))(noise)
    np.testing.assert_allclose(fields.std(0), 0.7, rtol=0.06)
    neighbours = jnp.mean(fields[:, 0, :, :-1] * fields[:, 0, :, 1:], 0) / 0.49
    assert neighbours.min() > 0.85
    far = jnp.mean(fields[:, 0, 0, 0] * fields[:, 0, 7, 7]) / 0.49
    assert abs(far) < 0.1
    # The two axes have nothing to do with each other.
    assert abs(jnp.mean(fields[:, 0] * fields[:, 1])) < 0.02


@pytest.mark.parametrize("shape", [(6, 9), (1, 9, 1), (6, 1, 2)])
def test_images_of_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match="H, W >= 2"):
        bilinear(jnp.zeros(shape), jnp.zeros(3), jnp.zeros(3))


@pytest.mark.slow
def test_images_of_numpy_are_warped_under_vmap():
    """Where the image is a constant of NumPy and the positions are traced."""
    image, positions = np.arange(16.0).reshape(4, 4, 1), np.linspace(0.5, 2.5, 3)
    found = jax.vmap(lambda x: bilinear(image, x[None, None], x[None, None]))(positions)
    np.testing.assert_allclose(found[:, 0, 0, 0], 5 * positions)
