"""Every program of the zoo at twelve rows in float32, for tests and benchmarks of all of them."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import numpyro

from gpzoo import InducingGrid, InducingPoints, blocks, kmeans, random_subset, unique_patches
from gpzoo.inference import Amortised, PerRow
from gpzoo.models import (
    affine,
    colour_patch_gp,
    convolutional_gp,
    convolutional_layer,
    convolutional_plus_rbf_gp,
    coregionalised_gp,
    deep_convolutional_gp,
    deep_gp,
    deep_kernel_gp,
    gp_classification,
    gp_regression,
    gplvm,
    heteroscedastic_gp,
    inner_scales,
    invariant_classifier,
    invariant_convolutional_gp,
    invariant_deep_gp,
    invariant_gp,
    latent_variable_deep_gp,
    linear_layers,
    log_gaussian_cox,
    mixture_of_gps,
    multi_channel_gp,
    network_of,
    ordinal_gp,
    principal_components,
    rotation,
    translation_insensitive_gp,
)
from gpzoo.views import Orbit

RNG = np.random.default_rng(0)
X = np.repeat(RNG.standard_normal((6, 2)), 2, axis=0).astype(np.float32)
IMAGES = np.repeat(RNG.uniform(size=(6, 5, 5, 1)), 2, axis=0).astype(np.float32)
COLOUR = np.repeat(RNG.uniform(size=(6, 5, 5, 3)), 2, axis=0).astype(np.float32)
NUMBERS = RNG.standard_normal(12).astype(np.float32)
LABELS = np.arange(12) % 2
LAYERS = linear_layers(X, [2])
LAYERS_OF_IMAGES = (partial(convolutional_layer, patch_shape=(3, 3), maps=2),)
LAYERS_OF_THREE = (np.eye(3, dtype=np.float32),)


def network():
    from flax import nnx

    class Tanh(nnx.Module):
        def __init__(self, *, rngs):
            self.linear = nnx.Linear(2, 2, rngs=rngs)

        def __call__(self, x):
            return jnp.tanh(self.linear(x))

    return network_of(Tanh(rngs=nnx.Rngs(0)))


#: By name: a program, its inputs, data, inducing variables and, if it has any, options of its guide.
PROGRAMS = {
    "sparse": lambda: (gp_regression, X, NUMBERS, kmeans(6)),
    "not whitened": lambda: (gp_regression, X, NUMBERS, kmeans(6), {"whiten": False}),
    "convolution plus rbf": lambda: (
        partial(convolutional_plus_rbf_gp, patch_shape=(3, 3)),
        IMAGES,
        LABELS,
        blocks(unique_patches(6), kmeans(6)),
    ),
    "channels": lambda: (
        partial(multi_channel_gp, patch_shape=(3, 3)),
        COLOUR,
        LABELS,
        blocks(unique_patches(4)),
        {"covariance": "block_diagonal"},
    ),
    "deep": lambda: (partial(deep_gp, layers=LAYERS), X, NUMBERS, kmeans(6), {"initial_scale": inner_scales(LAYERS)}),
    "invariant": lambda: (
        partial(invariant_classifier, view=rotation(num_views=3, num_fixed=4)),
        IMAGES,
        LABELS,
        unique_patches(6),
    ),
    "invariant convolution": lambda: (
        partial(invariant_convolutional_gp, view=rotation(num_views=3, num_fixed=4), patch_shape=(3, 3)),
        IMAGES,
        NUMBERS,
        unique_patches(6),
    ),
    "classes": lambda: (partial(gp_classification, num_classes=3), X, np.arange(12) % 3, kmeans(6)),
    "convolution": lambda: (partial(convolutional_gp, patch_shape=(3, 3)), IMAGES, LABELS, unique_patches(6)),
    "patches and places": lambda: (
        partial(translation_insensitive_gp, patch_shape=(3, 3), weighted=True),
        COLOUR,
        LABELS,
        unique_patches(6),
    ),
    "colours": lambda: (
        partial(colour_patch_gp, patch_shape=(3, 3), additive=True),
        COLOUR,
        LABELS,
        unique_patches(6),
    ),
    "invariant regression": lambda: (
        partial(invariant_gp, view=affine(num_views=3, num_fixed=4)),
        IMAGES,
        NUMBERS,
        unique_patches(6),
    ),
    "deep kernel": lambda: (
        partial(deep_kernel_gp, network=network()),
        X,
        LABELS,
        InducingGrid(16, bounds=(-1.0, 1.0)),
    ),
    "changing noise": lambda: (heteroscedastic_gp, X, NUMBERS, kmeans(6)),
    "ordered labels": lambda: (partial(ordinal_gp, num_classes=3), X, np.arange(12) % 3, kmeans(6)),
    "counts": lambda: (log_gaussian_cox, X, np.arange(12, dtype=np.float32) % 4, kmeans(6)),
    "outputs": lambda: (
        partial(coregionalised_gp, num_outputs=2),
        np.column_stack([X[:, :1], np.arange(12) // 6]).astype(np.float32),
        NUMBERS,
        random_subset(6),
    ),
}


def of_row_and_datum(X, y=None, **kwargs):
    """Means and scales of the latent variable of a row; the prior where there is no datum."""
    if y is None:
        return None
    return jnp.concatenate([X, y[:, None]], axis=1) @ numpyro.param("to_w", jnp.full((3, 2), 0.1, X.dtype))


def quarter_turns(X):
    return Orbit.of_images(X.shape[1:], rotations=True)


#: Programs with latent variables of rows, with discrete ones, and with several sites of images and vectors.
OTHERS = {
    "latent inputs": lambda: (
        partial(gplvm, num_outputs=2),
        np.arange(12),
        X,
        InducingPoints(X[::2, ::-1]),
        {"hyperparameters": PerRow({"x": principal_components(X, 2)})},
    ),
    "deep with a latent of each row": lambda: (
        partial(latent_variable_deep_gp, layers=LAYERS_OF_THREE),
        X,
        NUMBERS,
        kmeans(6),
        {"hyperparameters": Amortised("w", of_row_and_datum), "initial_scale": inner_scales(LAYERS_OF_THREE)},
    ),
    "mixture": lambda: (mixture_of_gps, X, NUMBERS, kmeans(6)),
    "deep invariant": lambda: (
        partial(invariant_deep_gp, view=quarter_turns, width=2),
        IMAGES,
        NUMBERS,
        {"features": unique_patches(4), "f": InducingPoints(X[::3])},
    ),
    "deep convolution": lambda: (
        partial(
            deep_convolutional_gp, layers=LAYERS_OF_IMAGES, last=partial(translation_insensitive_gp, patch_shape=(2, 2))
        ),
        IMAGES,
        LABELS,
        {"layer_0": kmeans(4), "f": unique_patches(4)},
        {"initial_scale": inner_scales(LAYERS_OF_IMAGES)},
    ),
}
