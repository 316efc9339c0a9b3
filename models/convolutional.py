"""Convolutional Gaussian processes (van der Wilk, Rasmussen, Hensman 2017)."""

from __future__ import annotations

import jax.numpy as jnp
import numpyro
from jax import Array

from gpzoo.distributions import GaussianProcess
from gpzoo.kernels import RBF, Convolutional, White
from gpzoo.likelihoods import Bernoulli, RobustMax
from gpzoo.models.hyperparameters import positive
from gpzoo.views import Patches


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
) -> None:
    """``f(x) = sum_p w_p g(x[p])`` (eq. 13 and 17), ``g ~ GP(0, RBF)`` on patches, one function per class.

    With ``weighted=False`` all weights are one and the model is translation invariant (section 4.1). As in the authors'
    code the sum is divided by the number of patches, which only rescales the variance, and a little white noise is
    added to the kernel. Inducing variables are patches (eq. 15, 16 and 19):
    ``InducingGuide(convolutional_gp, unique_patches(750))``.

    Args:
        X: images ``[N, H, W, C]`` in [0, 1].
        y: labels ``0 .. num_classes - 1``, ``[N]``.
        patch_shape: height and width of a patch, in pixels.
        weighted: one weight per patch position, trained (section 4.2), or none.
        num_classes: two use the probit Bernoulli likelihood, more the robust-max.
        variance: where the variance of ``g`` starts.
        lengthscale: where its lengthscale starts, in units of pixel values.
        white: variance of the white noise, fixed.
        num_data: rows of the whole data, if ``X`` is a minibatch.
    """
    base = RBF(positive("variance", variance, X), positive("lengthscale", lengthscale, X))
    weights = None
    if weighted:
        weights = numpyro.param("weights", jnp.ones(Patches(X.shape[1:], patch_shape).num_views, X.dtype))
    kernel = Convolutional(base, X.shape[1:], patch_shape, weights, mean=True) + White(jnp.asarray(white, X.dtype))

    binary = num_classes == 2
    f = numpyro.sample("f", GaussianProcess(kernel, X, num_outputs=None if binary else num_classes))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Bernoulli(f) if binary else RobustMax(f), obs=y)
