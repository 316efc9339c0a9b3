"""Functions drawn from priors by random features: their frequencies and covariances against the kernels'."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from gpzoo.kernels import (
    RBF,
    Constant,
    Cosine,
    Flattened,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    SpectralMixture,
    White,
)
from gpzoo.kernels.fourier_features import function_values
from tests.statistics import assert_moments, off

KEY = random.key(0)
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.standard_normal((20, 2)))
NEW = jnp.asarray(RNG.standard_normal((6, 2)))
SCALES = jnp.array([0.6, 1.3])

SPECTRAL = {
    "RBF": RBF(1.3, SCALES),
    "Matern12": Matern12(0.5, SCALES),
    "Matern32": Matern32(1.0, SCALES),
    "Matern52": Matern52(2.0, SCALES),
    "RationalQuadratic": RationalQuadratic(1.0, SCALES, 0.7),
    "Periodic": Periodic(1.0, jnp.array([0.4, 1.0]), jnp.array([2.0, 3.0])),
    "one column": Periodic(1.0, 0.3, 1.5, active_dims=(1,)),
    "columns": Matern32(1.0, SCALES, active_dims=(1, 0)),
    "cosine": Cosine(1.3, 0.2, active_dims=(1,)),
    "spectral mixture": SpectralMixture([1.5], [[0.2, -0.1]], [[0.05, 0.1]]),
    "product": RBF(1.0, 2.0) * (0.5 * Matern12(2.0, 1.0, active_dims=(1,))) * Constant(0.5),
}


@pytest.mark.slow_but(name=["Matern32"])
@pytest.mark.parametrize("name", SPECTRAL)
def test_frequencies_are_drawn_from_the_spectral_density(name):
    kernel, num = SPECTRAL[name], 40_000
    omega = jax.jit(lambda key: kernel.frequencies(key, num, 2, X.dtype))(KEY)
    assert omega.shape == (num, 2) and omega.dtype == X.dtype
    waves = np.cos((np.asarray(NEW)[:, None] - np.asarray(X)[None, :5]) @ np.asarray(omega).T)
    wanted = np.asarray(kernel(NEW, X[:5]) / kernel.diag(NEW)[:, None])
    assert off(np.moveaxis(waves, -1, 0), wanted, 1e-9).max() < 5


SUM = RBF(1.0, 1.0) + 2.0 * Matern12(1.0, 0.5) + Linear(0.3, SCALES) + Constant(0.7)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [SUM, SUM + White(3.0)], ids=["sum", "without its white noise"])
def test_functions_have_the_kernels_covariance(kernel):
    S = 4000
    draw = jax.jit(lambda keys, X: jax.lax.map(lambda key: function_values(kernel, X, key, 2, 16), keys))
    keys = random.split(KEY, S)
    values = np.asarray(draw(keys, NEW))
    assert values.shape == (S, 6, 2)
    assert_moments(values[..., 0], 0.0, SUM(NEW, NEW))
    one, two = np.moveaxis(values - values.mean(0), -1, 0)
    assert np.abs(one.T @ two / S).max() < 5 * float(SUM.diag(NEW).max()) / np.sqrt(S)
    # The same key is the same function at other inputs.
    np.testing.assert_allclose(draw(keys[:5], NEW[2:4]), values[:5, 2:4], rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_one_kernel_per_output():
    kernel = RBF(jnp.array([1.0, 4.0]), jnp.array([[0.5, 0.5], [2.0, 2.0]]))
    keys = random.split(KEY, 3000)
    draw = jax.jit(jax.vmap(lambda key: function_values(kernel, NEW, key, 2, 16, separate=True)))
    values = draw(keys)
    for d, wanted in enumerate(kernel(NEW)):
        assert_moments(values[..., d], 0.0, wanted)
    twice = jax.jit(jax.vmap(lambda key: function_values(kernel, jnp.stack([NEW, NEW]), key, 2, 16, separate=True)))
    np.testing.assert_allclose(twice(keys[:5]), values[:5], rtol=1e-10, atol=1e-12)


def test_flattened_images():
    images = NEW.reshape(3, 2, 2, 1)
    kernel = Flattened(RBF(1.0, 1.0))
    np.testing.assert_array_equal(
        function_values(kernel, images, KEY, 1, 8), function_values(RBF(1.0, 1.0), NEW.reshape(3, 4), KEY, 1, 8)
    )
