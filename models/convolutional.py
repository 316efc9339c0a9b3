"""Convolutional Gaussian processes (van der Wilk, Rasmussen, Hensman 2017): every model of the paper, and a later one.

Sums over patches are divided by the number of patches, as in the authors' code. This only rescales variances. Kernels
have a little white noise, also as in that code. Images are ``[N, H, W, C]`` with pixels in [0, 1]. Two classes use the
probit Bernoulli likelihood, and more classes use the robust-max likelihood.
"""

from __future__ import annotations

from typing import Unpack

import jax.numpy as jnp
import numpyro
from jax import Array

from gpzoo import _checks as checks
from gpzoo.kernels import RBF, Convolutional, Flattened, Kernel, MultiChannel, Sum, White
from gpzoo.models.parameters import positive, precision, rbf
from gpzoo.models.sparse import Options, classify
from gpzoo.views.patches import Patches


def convolutional_gp(
    X: Array,
    y: Array | None = None,
    *,
    patch_shape: tuple[int, int],
    weighted: bool = True,
    num_classes: int = 2,
    variance: float = 1.0,
    lengthscale: float = 1.0,
    white: float = 1e-3,
    num_data: int | None = None,
    **options: Unpack[Options],
) -> None:
    """The convolutional GP for images, with one function per class: ``f(x) = (1 / P) sum_p w_p g(x[p])``.

    See van der Wilk, Rasmussen and Hensman 2017, *Convolutional Gaussian processes*. ``g ~ GP(0, RBF)`` acts on the
    ``P`` patches. The formula is eq. 13 and 17 of the paper, divided by ``P`` as in the authors' code: ``f`` is the
    mean of the patch responses ``w_p g(x[p])``, not their sum. With ``weighted=False``, all weights are one, and the
    model is translation invariant (section 4.1). Every channel has its own patches, as in the baseline of section 4.4.
    Inducing variables are patches (eq. 15, 16 and 19): ``InducingGuide(convolutional_gp, unique_patches(750))``.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from gpzoo import unique_patches
        >>> from gpzoo.inference import InducingGuide
        >>> from gpzoo.models import convolutional_gp
        >>> images = np.random.default_rng(0).uniform(size=(10, 6, 6, 1)).astype(np.float32)
        >>> guide = InducingGuide(partial(convolutional_gp, patch_shape=(3, 3)), unique_patches(5))
        >>> params = guide.init_params(jax.random.key(0), images, np.zeros(10, np.float32))
        >>> params["f_inducing"].shape, params["weights"].shape
        ((5, 9), (16,))

    Args:
        X: images ``[N, H, W, C]``.
        y: labels ``0 .. num_classes - 1``, ``[N]``.
        patch_shape: height and width of a patch, in pixels.
        weighted: whether each patch has a trained weight (section 4.2).
        num_classes: number of classes.
        variance: initial variance of ``g``.
        lengthscale: initial lengthscale of ``g``, in units of pixel values.
        white: variance of the white noise, fixed; 0 for none.
        num_data: number of rows of the whole data, if ``X`` is a minibatch.
        **options: ``likelihood``, a distribution of ``y`` given ``f`` that replaces the probit Bernoulli or robust-max,
            and ``jitter``, an absolute jitter on covariance diagonals that replaces the relative default.
    """
    base = RBF(positive("variance", variance, X), positive("lengthscale", lengthscale, X))
    weights = _weights(X, patch_shape) if weighted else None
    kernel = _with_white(Convolutional(base, X.shape[1:], patch_shape, weights, mean=True), white, X)
    classify(kernel, X, y, num_classes=num_classes, num_data=num_data, **options)


def translation_insensitive_gp(
    X: Array,
    y: Array | None = None,
    *,
    patch_shape: tuple[int, int],
    weighted: bool = False,
    num_classes: int = 2,
    variance: float = 1.0,
    lengthscale: float = 1.0,
    place_lengthscale: float = 0.3,
    white: float = 1e-3,
    num_data: int | None = None,
    **options: Unpack[Options],
) -> None:
    """The translation-insensitive convolutional GP (TICK): responses depend on patches and on their positions.

    ``f(x) = (1 / P) sum_p w_p g(x[p], p)`` (Dutordoir, van der Wilk, Artemev and Hensman 2020, *Bayesian image
    classification with deep convolutional Gaussian processes*). The kernel of ``g`` is the product of a kernel of
    patches and a kernel of positions, so that the response to a patch changes slowly over the image. If
    ``place_lengthscale`` is far above 1, the model is close to :func:`convolutional_gp` without weights. If it is far
    below 1, every position has its own response. Patches have all channels. Inducing variables are patches with
    positions: ``InducingGuide(translation_insensitive_gp, unique_patches(750))``.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from gpzoo import unique_patches
        >>> from gpzoo.inference import InducingGuide
        >>> from gpzoo.models import translation_insensitive_gp
        >>> images = np.random.default_rng(0).uniform(size=(10, 6, 6, 1)).astype(np.float32)
        >>> guide = InducingGuide(partial(translation_insensitive_gp, patch_shape=(3, 3)), unique_patches(5))
        >>> guide.init_params(jax.random.key(0), images, np.zeros(10, np.float32))["f_inducing"].shape
        (5, 11)

    Args:
        X: images ``[N, H, W, C]``.
        y: labels ``0 .. num_classes - 1``, ``[N]``.
        patch_shape: height and width of a patch, in pixels.
        weighted: whether each patch also has a trained weight, in addition to the kernel of positions.
        num_classes: number of classes.
        variance: initial variance of ``g``.
        lengthscale: initial lengthscale of patches, in units of pixel values.
        place_lengthscale: initial lengthscale of positions; 1 is the distance between the first and the last patch of
            the image.
        white: variance of the white noise, fixed; 0 for none.
        num_data: number of rows of the whole data, if ``X`` is a minibatch.
        **options: ``likelihood``, a distribution of ``y`` given ``f`` that replaces the probit Bernoulli or robust-max,
            and ``jitter``, an absolute jitter on covariance diagonals that replaces the relative default.
    """
    size = X.shape[3] * patch_shape[0] * patch_shape[1]
    of_patch = RBF(positive("variance", variance, X), positive("lengthscale", lengthscale, X), active_dims=range(size))
    of_place = RBF(1.0, positive("place_lengthscale", place_lengthscale, X), active_dims=(size, size + 1))
    weights = _weights(X, patch_shape, channels="joint") if weighted else None
    base, shape = of_patch * of_place, X.shape[1:]
    kernel = Convolutional(base, shape, patch_shape, weights, mean=True, channels="joint", places=True)
    classify(_with_white(kernel, white, X), X, y, num_classes=num_classes, num_data=num_data, **options)


def convolutional_plus_rbf_gp(
    X: Array,
    y: Array | None = None,
    *,
    patch_shape: tuple[int, int],
    num_classes: int = 2,
    variance: float = 1.0,
    lengthscale: float = 1.0,
    rbf_variance: float = 1.0,
    rbf_lengthscale: float = 5.0,
    white: float = 1e-3,
    num_data: int | None = None,
    **options: Unpack[Options],
) -> None:
    """A weighted convolution plus an RBF of the whole image: ``f(x) = f_conv(x) + f_rbf(x)``.

    See van der Wilk, Rasmussen and Hensman 2017, *Convolutional Gaussian processes*, section 4.3, eq. 20-21.
    ``f_conv`` is the weighted convolution of :func:`convolutional_gp`, also divided by the number of patches.

    Inducing variables are patches for the convolution and images for the RBF:
    ``InducingGuide(convolutional_plus_rbf_gp, blocks(unique_patches(750), kmeans(750)))``. Inducing patches and
    inducing images are correlated in ``q(u)``. With ``covariance="block_diagonal"`` they are independent (mean field).

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from gpzoo import blocks, kmeans, unique_patches
        >>> from gpzoo.inference import InducingGuide
        >>> from gpzoo.models import convolutional_plus_rbf_gp
        >>> images = np.random.default_rng(0).uniform(size=(10, 6, 6, 1)).astype(np.float32)
        >>> program = partial(convolutional_plus_rbf_gp, patch_shape=(3, 3))
        >>> guide = InducingGuide(program, blocks(unique_patches(5), kmeans(4)))
        >>> params = guide.init_params(jax.random.key(0), images, np.zeros(10, np.float32))
        >>> [part.shape for part in jax.tree.leaves(params["f_inducing"])]
        [(5, 9), (4, 6, 6, 1)]

    Args:
        X: images ``[N, H, W, C]``.
        y: labels ``0 .. num_classes - 1``, ``[N]``.
        patch_shape: height and width of a patch, in pixels.
        num_classes: number of classes.
        variance: initial variance of the patch response.
        lengthscale: initial lengthscale of the patch response, in units of pixel values.
        rbf_variance: initial variance of the RBF of the image.
        rbf_lengthscale: initial lengthscale of the RBF of the image.
        white: variance of the white noise, fixed; 0 for none. It is a part of the RBF, as in the authors' code.
        num_data: number of rows of the whole data, if ``X`` is a minibatch.
        **options: ``likelihood``, a distribution of ``y`` given ``f`` that replaces the probit Bernoulli or robust-max,
            and ``jitter``, an absolute jitter on covariance diagonals that replaces the relative default.
    """
    base = RBF(positive("variance", variance, X), positive("lengthscale", lengthscale, X))
    conv = Convolutional(base, X.shape[1:], patch_shape, _weights(X, patch_shape), mean=True)
    whole = rbf("rbf", X, variance=rbf_variance, lengthscale=rbf_lengthscale, ard=False)
    kernel = conv + Flattened(_with_white(whole, white, X))
    classify(kernel, X, y, num_classes=num_classes, num_data=num_data, **options)


def colour_patch_gp(
    X: Array,
    y: Array | None = None,
    *,
    patch_shape: tuple[int, int],
    additive: bool = False,
    num_classes: int = 2,
    variance: float = 1.0,
    lengthscale: float = 1.0,
    white: float = 1e-3,
    num_data: int | None = None,
    **options: Unpack[Options],
) -> None:
    """The convolutional GP on colour patches: each patch contains all channels.

    ``f(x) = (1 / P) sum_p w_p g(x[p])`` (van der Wilk, Rasmussen and Hensman 2017, *Convolutional Gaussian processes*,
    section 4.4). With ``additive=True``, the covariance of ``g`` is a sum over channels (eq. 24-25), and each channel
    has its own variance and lengthscale. Inducing variables are colour patches:
    ``InducingGuide(colour_patch_gp, unique_patches(1000))``.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from gpzoo import unique_patches
        >>> from gpzoo.inference import InducingGuide
        >>> from gpzoo.models import colour_patch_gp
        >>> images = np.random.default_rng(0).uniform(size=(10, 6, 6, 3)).astype(np.float32)
        >>> guide = InducingGuide(partial(colour_patch_gp, patch_shape=(3, 3)), unique_patches(5))
        >>> params = guide.init_params(jax.random.key(0), images, np.zeros(10, np.float32))
        >>> params["f_inducing"].shape, params["weights"].shape
        ((5, 27), (16,))

    Args:
        X: images ``[N, H, W, C]``.
        y: labels ``0 .. num_classes - 1``, ``[N]``.
        patch_shape: height and width of a patch, in pixels.
        additive: whether the covariance of ``g`` is a sum over channels; otherwise channels interact.
        num_classes: number of classes.
        variance: initial variance of ``g``, or of the part of each channel if additive.
        lengthscale: initial lengthscale of ``g`` or of each part, in units of pixel values.
        white: variance of the white noise, fixed; 0 for none.
        num_data: number of rows of the whole data, if ``X`` is a minibatch.
        **options: ``likelihood``, a distribution of ``y`` given ``f`` that replaces the probit Bernoulli or robust-max,
            and ``jitter``, an absolute jitter on covariance diagonals that replaces the relative default.
    """
    base: Kernel
    if additive:
        C, size = X.shape[3], patch_shape[0] * patch_shape[1]
        variances = positive("variance", jnp.full(C, variance), X)
        lengthscales = positive("lengthscale", jnp.full(C, lengthscale), X)
        columns = [range(c * size, (c + 1) * size) for c in range(C)]
        base = Sum(*(RBF(variances[c], lengthscales[c], active_dims=columns[c]) for c in range(C)))
    else:
        base = RBF(positive("variance", variance, X), positive("lengthscale", lengthscale, X))
    weights = _weights(X, patch_shape, channels="joint")
    kernel = Convolutional(base, X.shape[1:], patch_shape, weights, mean=True, channels="joint")
    classify(_with_white(kernel, white, X), X, y, num_classes=num_classes, num_data=num_data, **options)


def multi_channel_gp(
    X: Array,
    y: Array | None = None,
    *,
    patch_shape: tuple[int, int],
    num_classes: int = 2,
    variance: float = 1.0,
    lengthscale: float = 1.0,
    white: float = 1e-3,
    num_data: int | None = None,
    **options: Unpack[Options],
) -> None:
    """The multi-channel convolutional GP, with one patch response per channel.

    ``f(x) = (1 / CP) sum_c sum_p w_pc g_c(x[pc])`` (van der Wilk, Rasmussen and Hensman 2017, *Convolutional Gaussian
    processes*, section 4.4, eq. 22). All responses ``g_c`` have the same kernel and the same inducing patches (eq. 23).
    The paper's mean-field approximation is
    ``InducingGuide(multi_channel_gp, blocks(unique_patches(1000)), covariance="block_diagonal")``. With
    ``covariance="full"``, all channels are correlated in ``q(u)``.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from gpzoo import blocks, unique_patches
        >>> from gpzoo.inference import InducingGuide
        >>> from gpzoo.models import multi_channel_gp
        >>> images = np.random.default_rng(0).uniform(size=(10, 6, 6, 3)).astype(np.float32)
        >>> program = partial(multi_channel_gp, patch_shape=(3, 3))
        >>> guide = InducingGuide(program, blocks(unique_patches(5)), covariance="block_diagonal")
        >>> params = guide.init_params(jax.random.key(0), images, np.zeros(10, np.float32))
        >>> params["f_mean"].shape, params["weights"].shape
        ((15,), (48,))

    Args:
        X: images ``[N, H, W, C]``.
        y: labels ``0 .. num_classes - 1``, ``[N]``.
        patch_shape: height and width of a patch, in pixels.
        num_classes: number of classes.
        variance: initial variance of the responses.
        lengthscale: initial lengthscale of the responses, in units of pixel values.
        white: variance of the white noise on every patch response, fixed; 0 for none.
        num_data: number of rows of the whole data, if ``X`` is a minibatch.
        **options: ``likelihood``, a distribution of ``y`` given ``f`` that replaces the probit Bernoulli or robust-max,
            and ``jitter``, an absolute jitter on covariance diagonals that replaces the relative default.
    """
    base = RBF(positive("variance", variance, X), positive("lengthscale", lengthscale, X))
    weights = _weights(X, patch_shape).reshape(X.shape[3], -1)
    kernel = MultiChannel(_with_white(base, white, X), X.shape[1:], patch_shape, weights, mean=True)
    classify(kernel, X, y, num_classes=num_classes, num_data=num_data, **options)


def _weights(X: Array, patch_shape: tuple[int, int], channels: str = "separate") -> Array:
    """The trained weights of all patches, initially one."""
    view = Patches(X.shape[1:], patch_shape, channels=channels)
    return numpyro.param("weights", jnp.ones(view.num_views, precision(X)))


def _with_white(kernel: Kernel, white: float, X: Array) -> Kernel:
    if checks.is_concrete(checks.positive_number("white", white, or_zero=True)) and white == 0:
        return kernel
    return kernel + White(jnp.asarray(white, precision(X)))
