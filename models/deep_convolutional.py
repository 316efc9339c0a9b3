"""Deep convolutional Gaussian processes (Blomqvist, Kaski, Heinonen 2018): GPs on patches of images from other GPs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array

from gpzoo import _checks as checks
from gpzoo._types import ArrayLike
from gpzoo.kernels import Kernel
from gpzoo.linalg import matmul
from gpzoo.models.parameters import precision, rbf
from gpzoo.processes.process import GaussianProcess
from gpzoo.views.patches import Patches


def deep_convolutional_gp(
    X: Array,
    y: Array | None = None,
    *,
    layers: Sequence[Callable[[str, Array], Array]],
    last: Callable[..., None],
    num_data: int | None = None,
) -> None:
    """A deep convolutional GP: inner layers map images to images, and the last layer is any program for images.

    ``h_l = layer_l(h_(l-1))`` with ``h_0 = x``. Inner layers are the sites ``layer_0``, ``layer_1``, ..., and the last
    layer is the site of ``last``. Draws are joint within an image, so equal patches of an image give equal pixels. In
    the guide, each site has its own inducing variables. Inducing variables of an inner layer are flattened patches.
    With :func:`inner_scales`, inner layers start near their means.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from gpzoo import kmeans, unique_patches
        >>> from gpzoo.inference import InducingGuide
        >>> from gpzoo.models import colour_patch_gp, convolutional_layer, deep_convolutional_gp, inner_scales
        >>> images = np.random.default_rng(0).uniform(size=(10, 8, 8, 1)).astype(np.float32)
        >>> layers = [partial(convolutional_layer, patch_shape=(3, 3), maps=2, stride=2)]
        >>> last = partial(colour_patch_gp, patch_shape=(2, 2))
        >>> program = partial(deep_convolutional_gp, layers=layers, last=last)
        >>> start = {"layer_0": kmeans(6), "f": unique_patches(5)}
        >>> guide = InducingGuide(program, start, initial_scale=inner_scales(layers))
        >>> params = guide.init_params(jax.random.key(0), images, np.zeros(10, np.float32))
        >>> params["layer_0_inducing"].shape, params["f_inducing"].shape
        ((6, 9), (5, 8))

    Args:
        X: images ``[N, H, W, C]``.
        y: labels, for ``last``.
        layers: the inner layers, from the image upwards. A layer is a function of a site name and images that returns
            images: ``partial(convolutional_layer, patch_shape=(5, 5), maps=10, stride=2)``.
        last: the program of the last layer. Its arguments are images, ``y`` and ``num_data``. Blomqvist et al. use
            weighted patches of all maps, ``partial(colour_patch_gp, patch_shape=(5, 5), num_classes=10)``. Dutordoir et
            al. 2020 use patches with positions (:func:`translation_insensitive_gp`).
        num_data: number of rows of the whole data, if ``X`` is a minibatch.
    """
    h = X
    for i, layer in enumerate(layers):
        h = layer(f"layer_{i}", h)
    last(h, y, num_data=num_data)


def _one_lengthscale(name: str, patches: Array) -> Kernel:
    return rbf(name, patches, ard=False)


def convolutional_layer(
    name: str,
    X: Array,
    *,
    patch_shape: tuple[int, int],
    maps: int,
    stride: int = 1,
    mean: ArrayLike | None = None,
    kernel: Callable[[str, Array], Kernel] = _one_lengthscale,
    jitter: float | None = None,
) -> Array:
    """A convolutional layer: a GP is drawn at every patch of an image, and its values are the pixels of a new image.

    ``h(x)[p] = g(x[p]) + x[p] W`` with ``g ~ GP(0, k)``. ``g`` has an output for each map (channel) of the new image.
    Each patch contains all channels.

    Example:
        >>> import jax, numpy as np
        >>> from numpyro import handlers
        >>> from gpzoo.models import convolutional_layer
        >>> images = np.zeros((5, 28, 28, 1), np.float32)
        >>> layer = handlers.seed(convolutional_layer, 0)
        >>> layer("layer_0", images, patch_shape=(5, 5), maps=3, stride=2).shape
        (5, 12, 12, 3)

    Args:
        name: name of the site. Its values are ``[N, A B, maps]`` for ``A`` times ``B`` patches in an image.
        X: images ``[N, H, W, C]``.
        patch_shape: height and width of a patch, ``h`` and ``w``, in pixels.
        maps: number of maps of the result.
        stride: pixels from one patch to the next, in both directions. The result is smaller by this factor.
        mean: ``W``, ``[C h w, maps]``. Its rows have the order of the columns of :class:`~gpzoo.Patches` with joint
            channels. With ``None``, the mean of map ``d`` is the pixel in the middle of the patch, from channel ``d``
            modulo ``C``. This is the image itself without its border, at every ``stride``-th pixel.
        kernel: a function that makes the kernel from the name of the site and the patches ``[N A B, C h w]``; by
            default an RBF with one lengthscale.
        jitter: absolute jitter on covariance diagonals; ``None`` for the relative default.

    Returns:
        Images ``[N, A, B, maps]``.

    Raises:
        ValueError: if ``X`` is not images, if a patch does not fit into an image, or if the mean does not fit patches.
    """
    hint = ". Images of one channel need their last axis too: X[..., None]"
    checks.must(jnp.ndim(X) == 4, f"X of {name}", "be images [N, H, W, C]", f"shape {jnp.shape(X)}", hint)
    maps = checks.positive_int("maps", maps)
    view = Patches(X.shape[1:], patch_shape, channels="joint", stride=stride)
    if mean is None:
        (h, w), C = view.patch_shape, X.shape[3]
        mean = np.zeros((C, h, w, maps))
        mean[np.arange(maps) % C, h // 2, w // 2, np.arange(maps)] = 1
        mean = mean.reshape(-1, maps)
    W = jnp.asarray(mean).astype(precision(X))
    checks.must(W.shape == (view.view_size, maps), "mean", f"be [{view.view_size}, {maps}]", f"shape {W.shape}")
    patches = view.view(X)
    of_patch = kernel(name, patches.reshape(-1, view.view_size))
    prior = GaussianProcess(of_patch, patches, matmul(patches, W), num_outputs=maps, jitter=jitter, per_row=True)
    return numpyro.sample(name, prior).reshape(len(X), *view.positions, maps)
