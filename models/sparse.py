"""Sparse GP regression and classification (Hensman et al. 2013, 2015), which every paper in the zoo has as baseline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

import numpyro
from jax import Array
from numpyro.distributions import Distribution

from gpzoo._types import ArrayLike
from gpzoo.kernels import Kernel
from gpzoo.likelihoods import Bernoulli, RobustMax
from gpzoo.models.parameters import gaussian, rbf
from gpzoo.processes.process import GaussianProcess


class Options(TypedDict, total=False):
    """Options of every classifier; see :func:`classify`.

    Attributes:
        likelihood: distribution of ``y`` given ``f``.
        jitter: absolute jitter on covariance diagonals.
    """

    likelihood: Callable[[Any], Distribution] | None
    jitter: float | None


def gp_regression(
    X: Array,
    y: Array | None = None,
    *,
    kernel: Callable[[str, Array], Kernel] = rbf,
    noise_variance: ArrayLike = 0.1,
    num_outputs: int | None = None,
    shared_noise: bool = False,
    jitter: float | None = None,
    num_data: int | None = None,
) -> None:
    """GP regression: ``f ~ GP(0, k)``, ``y_n ~ N(f(x_n), noise_variance)``. Each column of ``y`` has its own noise.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide
        >>> from gpzoo.models import gp_regression
        >>> X = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
        >>> params = InducingGuide(gp_regression, kmeans(5)).init_params(jax.random.key(0), X, X[:, 0])
        >>> params["f_lengthscale"].shape, float(params["noise_variance"])
        ((3,), 0.10000000149011612)

    Args:
        X: inputs ``[N, d]``, best standardised.
        y: targets ``[N]``, or ``[N, D]`` for ``D`` functions with the same kernel.
        kernel: a function that makes the kernel from a site name and the inputs.
        noise_variance: initial noise variance, in squared units of ``y``: one number, or one for each column.
        num_outputs: ``D``, for targets ``[N, D]``.
        shared_noise: whether all columns share one noise variance, see :func:`~gpzoo.models.gaussian`.
        jitter: absolute jitter on covariance diagonals; ``None`` for the relative default.
        num_data: number of rows of the whole data, if ``X`` is a minibatch.
    """
    f = numpyro.sample("f", GaussianProcess(kernel("f", X), X, num_outputs=num_outputs, jitter=jitter))
    likelihood = gaussian(f, noise_variance, shared_noise=shared_noise)
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", likelihood, obs=y)


def gp_classification(
    X: Array,
    y: Array | None = None,
    *,
    num_classes: int = 2,
    kernel: Callable[[str, Array], Kernel] = rbf,
    likelihood: Callable[[Any], Distribution] | None = None,
    jitter: float | None = None,
    num_data: int | None = None,
) -> None:
    """GP classification, with a probit Bernoulli likelihood for two classes and a robust-max likelihood for more.

    Two classes have one function, ``y_n ~ Bernoulli(Phi(f(x_n)))``. More classes have one function per class.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from numpyro.infer import Predictive
        >>> from gpzoo.models import gp_classification
        >>> X = np.linspace(0, 1, 6, dtype=np.float32)[:, None]
        >>> draws = Predictive(partial(gp_classification, num_classes=3), num_samples=4)(jax.random.key(0), X)
        >>> draws["f"].shape, draws["y"].shape
        ((4, 6, 3), (4, 6))

    Args:
        X: inputs ``[N, d]``.
        y: labels ``0 .. num_classes - 1``, ``[N]``.
        num_classes: number of classes ``K``.
        kernel: a function that makes the kernel from a site name and the inputs.
        likelihood: distribution of ``y`` given ``f``; ``None`` for the likelihoods above.
        jitter: absolute jitter on covariance diagonals; ``None`` for the relative default.
        num_data: number of rows of the whole data, if ``X`` is a minibatch.
    """
    classify(kernel("f", X), X, y, num_classes=num_classes, likelihood=likelihood, jitter=jitter, num_data=num_data)


def classify(
    kernel: Kernel,
    X: Array,
    y: Array | None,
    *,
    num_classes: int,
    likelihood: Callable[[Any], Distribution] | None = None,
    jitter: float | None = None,
    num_data: int | None = None,
) -> None:
    """The last part of every classifier in the zoo: ``f ~ GP(0, kernel)``, and labels given ``f``.

    Two classes have one function and the probit Bernoulli likelihood. More classes have one function per class, with
    the same kernel, and the robust-max likelihood.

    Args:
        kernel: covariance function on the inputs.
        X: inputs ``[N, ...]``.
        y: labels ``0 .. num_classes - 1``, ``[N]``.
        num_classes: number of classes ``K``.
        likelihood: distribution of ``y`` given ``f``; ``None`` for the likelihoods above.
        jitter: absolute jitter on covariance diagonals; ``None`` for the relative default.
        num_data: number of rows of the whole data, if ``X`` is a minibatch.
    """
    binary = num_classes == 2
    outputs = None if binary else num_classes
    f = numpyro.sample("f", GaussianProcess(kernel, X, num_outputs=outputs, jitter=jitter))
    likelihood = likelihood or (Bernoulli if binary else RobustMax)
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", likelihood(f), obs=y)
