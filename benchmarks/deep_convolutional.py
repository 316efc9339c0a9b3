"""Training steps of a deep convolutional GP, ours beside TensorFlow code on GPflow.

MNIST's sizes: a layer of ten GPs on 5 x 5 patches at stride 2, whose draws are images of 12 x 12, below a weighted
convolution of 5 x 5 patches of all maps (Blomqvist, Kaski and Heinonen 2018). Both have full whitened posteriors, one
draw, the robust-max likelihood and Adam. Ours visits the host about once in a second, as ``fit`` does by itself. It
draws the pixels of a map together, as the posterior has them. Theirs does so in one case, by GPflow's joint
conditional; in the other it draws them apart, as the authors' code does, which
is less work and no bound. The inner layer starts with so little variance that draws hardly move the bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from data import JITTER, images, patches, wave
from peer import Timed, main, work
from steps import by_fit, by_tensorflow, set_up_tensorflow, versions_of

M, BATCH, MAPS, PATCH, SIDE, DTYPE = 128, 64, 10, 5, 12, "float32"
#: The inner kernel's variance, and the scale of its ``q(u)``.
INNER_VARIANCE, INNER_SCALE, LENGTHSCALE = 1e-6, 1e-5, 2.0
CASES = {
    "M 128, theirs draws pixels together": {"joint": True, "peers": ["gpflow"]},
    # Not the same model: pixels that are drawn apart.
    "M 128, theirs draws pixels apart": {"joint": False, "peers": ["gpflow"], "other": True},
}


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images, classes, and inducing patches of both layers."""
    X, y = images(2000, DTYPE)
    below = patches(X, M, PATCH)
    return X[..., None], y, below, np.repeat(below, MAPS, axis=1)


def gpzoo_steps(case: Mapping[str, Any]) -> Timed:
    """Ours."""
    import jax
    import optax
    from numpyro.infer import SVI

    from gpzoo import InducingPatches, InducingPoints
    from gpzoo.inference import GaussianProcessELBO, InducingGuide
    from gpzoo.models import colour_patch_gp, convolutional_layer, deep_convolutional_gp, inner_scales, rbf

    X, y, below, above = data()
    kernel = partial(rbf, ard=False, variance=INNER_VARIANCE, lengthscale=LENGTHSCALE)
    layers = [partial(convolutional_layer, patch_shape=(PATCH, PATCH), maps=MAPS, stride=2, kernel=kernel)]
    last = partial(
        colour_patch_gp, patch_shape=(PATCH, PATCH), num_classes=10, lengthscale=LENGTHSCALE * MAPS**0.5, white=0.0
    )
    model = partial(deep_convolutional_gp, layers=layers, last=last)
    # Patches of all maps have one map after the other here, and one pixel after the other there.
    above = above.reshape(M, PATCH**2, MAPS).swapaxes(1, 2).reshape(M, -1)
    start = {"layer_0": InducingPoints(below), "f": InducingPatches(above)}
    guide = InducingGuide(model, start, initial_scale=inner_scales(layers, INNER_SCALE) | {"f": 0.5})
    svi = SVI(model, guide, optax.adam(1e-3), GaussianProcessELBO())
    params = guide.init_params(jax.random.key(0), X[:BATCH], y[:BATCH]) | {"f_mean": wave(M, DTYPE, 10)}
    return by_fit(svi, params, X, y, batch=BATCH, block=9)


def gpflow_steps(case: Mapping[str, Any]) -> Timed:
    """The same steps in TensorFlow, by GPflow's conditionals."""
    import gpflow
    import tensorflow as tf

    set_up_tensorflow(DTYPE, JITTER[DTYPE])
    X, y, below_Z, above_Z = data()
    rows = len(X)
    size = [1, PATCH, PATCH, 1]

    class OfAllMaps(gpflow.kernels.Convolutional):
        def get_patches(self, X: Any) -> Any:
            images = tf.reshape(X, [-1, SIDE, SIDE, MAPS])
            patches = tf.image.extract_patches(images, size, [1] * 4, [1] * 4, "VALID")
            return tf.reshape(patches, [tf.shape(X)[0], self.num_patches, PATCH**2 * MAPS])

        @property
        def num_patches(self) -> int:
            return (SIDE - PATCH + 1) ** 2

    squared = gpflow.kernels.SquaredExponential
    below = squared(INNER_VARIANCE, LENGTHSCALE), gpflow.inducing_variables.InducingPoints(below_Z)
    kernel = OfAllMaps(squared(1.0, LENGTHSCALE * MAPS**0.5), [SIDE, SIDE], [PATCH, PATCH])
    above = kernel, gpflow.inducing_variables.InducingPatches(above_Z)
    scales = (np.tile(scale * np.eye(M, dtype=DTYPE), (10, 1, 1)) for scale in (INNER_SCALE, 0.5))
    roots = [gpflow.Parameter(scale, transform=gpflow.utilities.triangular()) for scale in scales]
    means = [gpflow.Parameter(np.zeros((M, MAPS), DTYPE)), gpflow.Parameter(wave(M, DTYPE, 10))]
    likelihood = gpflow.likelihoods.MultiClass(10)
    module = gpflow.base.Module()
    module.parts = [*below, *above, *roots, *means]

    def at(X: Any, layer: tuple, mean: Any, root: Any, **options: Any) -> Any:
        return gpflow.conditionals.conditional(X, layer[1], layer[0], mean, q_sqrt=root, white=True, **options)

    def drawn(patches: Any) -> Any:
        if not case["joint"]:
            mean, variance = at(tf.reshape(patches, [-1, PATCH**2]), below, means[0], roots[0])
            return mean + tf.sqrt(variance) * tf.random.normal(tf.shape(mean), dtype=DTYPE)
        mean, covariance = at(patches, below, means[0], roots[0], full_cov=True)  # [B, P, D] and [B, D, P, P]
        root = tf.linalg.cholesky(covariance + JITTER[DTYPE] * INNER_VARIANCE * tf.eye(SIDE**2, dtype=DTYPE))
        noise = tf.random.normal([BATCH, MAPS, SIDE**2, 1], dtype=DTYPE)
        return mean + tf.linalg.matrix_transpose((root @ noise)[..., 0])

    def loss(batch: tuple) -> Any:
        X, y = batch
        patches = tf.image.extract_patches(X, size, [1, 2, 2, 1], [1] * 4, "VALID")
        patches = tf.reshape(patches, [BATCH, SIDE**2, PATCH**2])
        h = tf.reshape(drawn(patches), [BATCH, SIDE**2, MAPS]) + patches[..., PATCH**2 // 2, None]
        f = at(tf.reshape(h, [BATCH, -1]), above, means[1], roots[1])
        expected = tf.reduce_sum(likelihood.variational_expectations(tf.zeros([BATCH, 1], DTYPE), *f, y))
        divergences = [gpflow.kullback_leiblers.gauss_kl(m, S) for m, S in zip(means, roots, strict=True)]
        return sum(divergences) - rows / BATCH * expected

    settings = {"batch": BATCH, "rate": 1e-3, "versions": versions_of("gpflow", "tensorflow")}
    return by_tensorflow(loss, lambda: module.trainable_variables, X, y[:, None], **settings)


STEPS = {"gpzoo": gpzoo_steps, "gpflow": gpflow_steps}

if __name__ == "__main__":
    work(STEPS) or main(__doc__, {"deep_convolutional": CASES}, __file__)
