"""Deep convolutional GPs: a layer against the equations of DeepCGP in NumPy, its images, and what two layers learn."""

import itertools
from functools import partial

import numpy as np
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import SVI

from gpzoo import kmeans, unique_patches
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, diagnose, fit
from gpzoo.inference.programs.gp_sites import DrawnWithin
from gpzoo.inference.programs.rows import Layout
from gpzoo.kernels import Convolutional
from gpzoo.models import convolutional_gp, convolutional_layer, deep_convolutional_gp, inner_scales, ordinal_gp
from gpzoo.models import rbf as rbf_of
from tests.programs import KEY, adam
from tests.reference import conditional, pairs, rbf

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((3, 7, 6, 2))
LABELS = np.arange(3) % 2
STARTS = {"layer_0": kmeans(4), "f": unique_patches(3)}
SIZES = {"patch_shape": (3, 2), "maps": 3, "stride": 2}


def program_of(**options):
    layer = partial(convolutional_layer, **SIZES, **options)
    return partial(deep_convolutional_gp, layers=[layer], last=partial(convolutional_gp, patch_shape=(2, 2)))


def patches_of(images):
    """All channels of a patch, one after the other; places row by row."""
    places = list(itertools.product(range(0, 5, 2), range(0, 5, 2)))
    return np.array([[x[i : i + 3, j : j + 2].transpose(2, 0, 1).ravel() for i, j in places] for x in images])


def middles(images):
    return np.array([[x[i + 1, j + 1] for i in range(0, 5, 2) for j in range(0, 5, 2)] for x in images])


# -- one layer ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("whiten", [True, False])
def test_moments_of_a_layer_are_those_of_the_paper(whiten):
    """Blomqvist et al. (2018): each patch is an input of ``g``; the mean is a convolution with a delta, summed over
    the channels below as in the authors' code."""
    delta = np.zeros((2, 3, 2, 3))
    delta[:, 1, 1] = 1
    program = program_of(mean=delta.reshape(12, 3), jitter=1e-10)
    guide = InducingGuide(program, STARTS, whiten=whiten)
    params = guide.init_params(KEY, IMAGES, LABELS)
    m, L = RNG.standard_normal((4, 3)), np.tril(RNG.standard_normal((3, 4, 4)))
    params = params | {"layer_0_mean": m, "layer_0_scale": L, "layer_0_variance": 1.7, "layer_0_lengthscale": 2.3}
    mean, variance = Trained(program, guide, params).posterior(KEY, IMAGES)["layer_0"].marginals()

    Z, patches = np.asarray(params["layer_0_inducing"]), patches_of(IMAGES).reshape(27, 12)
    k = partial(rbf, variance=1.7, lengthscale=2.3)
    Kuu, Kuf = k(*pairs(Z, Z)) + 1e-10 * np.eye(4), k(*pairs(Z, patches))
    root = np.linalg.cholesky(Kuu) if whiten else np.eye(4)
    S = root @ L @ np.swapaxes(L, 1, 2) @ root.T
    centre, covariance = conditional(Kuu, Kuf, k(*pairs(patches, patches)), (root @ m).T, S)
    expected = centre.T + middles(IMAGES).reshape(27, 2).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(mean.reshape(27, 3), expected, rtol=1e-9, atol=1e-10)
    expected = np.diagonal(covariance, axis1=1, axis2=2).T
    np.testing.assert_allclose(variance.reshape(27, 3), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.slow
def test_values_of_a_layer_are_the_images_of_the_next():
    values = RNG.standard_normal((3, 9, 3))
    program = handlers.seed(handlers.substitute(program_of(), {"layer_0": values}), 0)
    trace = handlers.trace(program).get_trace(IMAGES)
    first, last = (trace[site]["fn"] for site in ("layer_0", "f"))
    np.testing.assert_array_equal(first.X, patches_of(IMAGES).reshape(27, 12))
    np.testing.assert_array_equal(first.mean, middles(IMAGES).reshape(3, 9, 2)[..., [0, 1, 0]])
    np.testing.assert_array_equal(last.X, values.reshape(3, 3, 3, 3))


@pytest.mark.slow
def test_equal_patches_of_an_image_have_equal_pixels():
    guide = InducingGuide(program_of(), STARTS)
    images = np.array(IMAGES)
    images[:, :, 4:] = images[:, :, 2:4]  # patches in the last column of places are those in the one before it
    trained = Trained(program_of(), guide, guide.init_params(KEY, images, LABELS))
    posterior = trained.posterior(KEY, images)["layer_0"]
    draw = np.asarray(DrawnWithin(Layout(9))(posterior, KEY)).reshape(3, 3, 3, 3)
    np.testing.assert_allclose(draw[:, :, 2], draw[:, :, 1], atol=0.02)
    assert np.abs(draw[:, :, 1] - draw[:, :, 0]).max() > 0.5


@pytest.mark.parametrize(
    "images, options, message",
    [
        (IMAGES[..., 0], {}, r"X of h must be images \[N, H, W, C\], got shape \(3, 7, 6\)"),
        (IMAGES, {"mean": np.eye(4)}, r"mean must be \[12, 3\], got shape \(4, 4\)"),
        (IMAGES, {"maps": 0}, "maps must be an integer of at least 1, got 0"),
        (IMAGES, {"patch_shape": (9, 2)}, "does not fit into image_shape"),
    ],
)
def test_a_layer_refuses(images, options, message):
    with pytest.raises(ValueError, match=message):
        handlers.seed(convolutional_layer, 0)("h", images, **SIZES | options)


# -- two layers --------------------------------------------------------------------------------------------------------


def bars(number, size=9):
    """Images of noise with a bar somewhere: level, upright, or both, which cross; in this order."""
    rng = np.random.default_rng(number)
    images, kinds = 0.2 * rng.uniform(size=(number, size, size, 1)), rng.integers(0, 3, number)
    for image, kind in zip(images, kinds, strict=True):
        i, j = rng.integers(2, size - 2, 2)
        if kind != 1:
            image[i, j - 2 : j + 3] += 1
        if kind != 0:
            image[i - 2 : i + 3, j] += 1
    return images, kinds


def convolution(name, images):
    return Convolutional(rbf_of(name, images, ard=False), images.shape[1:], (2, 2), mean=True)


@pytest.mark.slow
def test_two_layers_of_ordered_classes_are_trained_predicted_exported_and_diagnosed():
    (images, kinds), (others, wanted) = bars(300), bars(200)
    layers = [partial(convolutional_layer, patch_shape=(3, 3), maps=2, stride=2)]
    last = partial(ordinal_gp, num_classes=3, kernel=convolution)
    program = partial(deep_convolutional_gp, layers=layers, last=last)
    start = {"layer_0": kmeans(30), "f": unique_patches(20)}
    guide = InducingGuide(program, start, initial_scale=inner_scales(layers))
    svi = SVI(program, guide, adam(0.01), GaussianProcessELBO())
    trained = fit(KEY, svi, 600, images, kinds, batch_size=50, progress=False)

    whole = trained.predict(random.key(1), others, num_draws=20)["y"]
    right = np.mean(np.argmax(np.asarray(whole.probs), axis=1) == wanted)
    assert right > 0.9 > 2 * np.mean(wanted == np.bincount(kinds).argmax())

    exported = trained.to_arviz(KEY, images[:60], kinds[:60], num_draws=4, batch_size=25)
    assert exported["posterior"]["layer_0"].shape == (1, 4, 60, 16, 2)
    assert "worse than a constant" not in str(diagnose(random.key(2), trained, images, kinds))
