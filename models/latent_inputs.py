"""GPs of latent inputs: the Bayesian GPLVM, and deep GPs with a latent variable for each row.

Every row has a latent variable, and the guide must have a way to infer it:
``InducingGuide(gplvm, kmeans(50), hyperparameters=PerRow({"x": principal_components(y, 2)}))``, or ``Amortised``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from numpyro.distributions import Distribution

from gpzoo import _checks as checks
from gpzoo._types import ArrayLike
from gpzoo.kernels import Kernel
from gpzoo.models.deep import deep_gp
from gpzoo.models.parameters import gaussian, precision, rbf
from gpzoo.processes.process import GaussianProcess


def _one_noise(f: Any) -> Distribution:
    return gaussian(f, shared_noise=True)


def gplvm(
    rows: Array,
    y: Array | None = None,
    *,
    num_outputs: int,
    num_latents: int = 2,
    kernel: Callable[[str, Array], Kernel] = rbf,
    likelihood: Callable[[Any], Distribution] = _one_noise,
    jitter: float | None = None,
    num_data: int | None = None,
) -> None:
    """The Bayesian GPLVM: ``y_n ~ N(f(x_n), noise_variance)`` with latent inputs ``x_n ~ N(0, I)``.

    There is one function for each column of ``y``. As in Titsias and Lawrence 2010, *Bayesian GPLVM*, all functions
    have one kernel and one noise variance. Moments of ``f`` are exact given a draw of ``x``, so that training can use
    minibatches (Lalchand, Ravuri and Lawrence 2022, *Generalised GPLVM with stochastic variational inference*).

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide, PerRow
        >>> from gpzoo.models import gplvm, principal_components
        >>> y = np.random.default_rng(0).standard_normal((20, 5)).astype(np.float32)
        >>> rows, start = np.arange(20), principal_components(y, 2)
        >>> guide = InducingGuide(partial(gplvm, num_outputs=5), kmeans(6), hyperparameters=PerRow({"x": start}))
        >>> params = guide.init_params(jax.random.key(0), rows, y)
        >>> params["x_loc"].shape, params["f_mean"].shape
        ((20, 2), (6, 5))

    Args:
        rows: ``[N, ...]``, from which the guide finds the latent inputs: row numbers for
            :class:`~gpzoo.inference.PerRow`, or ``y`` itself for :class:`~gpzoo.inference.Amortised`.
        y: data ``[N, D]``.
        num_outputs: ``D``.
        num_latents: ``Q``, the number of latent inputs.
        kernel: a function that makes the kernel from a site name and the latent inputs.
        likelihood: distribution of ``y`` given ``f``; ``gaussian`` for one noise variance per column.
        jitter: absolute jitter on covariance diagonals; ``None`` for the relative default.
        num_data: number of rows of the whole data, if ``rows`` are a minibatch.
    """
    x = _latent("x", num_latents, rows, num_data)
    f = numpyro.sample("f", GaussianProcess(kernel("f", x), x, num_outputs=num_outputs, jitter=jitter))
    with numpyro.plate("data", num_data or len(rows), subsample_size=len(rows)):
        numpyro.sample("y", likelihood(f), obs=y)


def latent_variable_deep_gp(
    X: Array, y: Array | None = None, *, num_latents: int = 1, num_data: int | None = None, **deep: Any
) -> None:
    """A deep GP of ``(x_n, w_n)`` with latent ``w_n ~ N(0, I)``, for noise that is neither normal nor constant.

    See Salimbeni, Dutordoir, Hensman and Deisenroth 2019, *Deep Gaussian processes with importance-weighted variational
    inference*, section 3. The density of a prediction is an average over ``w``, and may have several modes. The bound
    in the paper is :class:`~gpzoo.inference.ImportanceWeightedELBO`.

    Example:
        >>> import jax, numpy as np
        >>> from numpyro.infer import Predictive
        >>> from gpzoo.models import latent_variable_deep_gp
        >>> X = np.linspace(0, 1, 6, dtype=np.float32)[:, None]
        >>> draws = Predictive(latent_variable_deep_gp, num_samples=4)(jax.random.key(0), X)
        >>> draws["w"].shape, draws["y"].shape
        ((4, 6, 1), (4, 6))

    Args:
        X: inputs ``[N, d]``, best standardised.
        y: observations ``[N, ...]``.
        num_latents: number of latent variables of each row.
        num_data: number of rows of the whole data, if ``X`` is a minibatch.
        **deep: other arguments of :func:`~gpzoo.models.deep_gp`.
    """
    w = _latent("w", num_latents, X, num_data)
    deep_gp(jnp.concatenate([X, w], axis=-1), y, num_data=num_data, **deep)


def _latent(name: str, size: int, like: Array, num_data: int | None) -> Array:
    size, dtype = checks.positive_int("num_latents", size), precision(like)
    with numpyro.plate("data", num_data or len(like), subsample_size=len(like)):
        return numpyro.sample(name, dist.Normal(jnp.zeros(size, dtype), jnp.ones(size, dtype)).to_event(1))


def principal_components(y: ArrayLike, num_latents: int = 2) -> Array:
    """Standardised scores of the first principal components, as initial latent inputs of :func:`gplvm`.

    Example:
        >>> import numpy as np
        >>> from gpzoo.models import principal_components
        >>> principal_components(np.random.default_rng(0).standard_normal((20, 5)).astype(np.float32), 2).shape
        (20, 2)

    Args:
        y: data ``[N, D]``.
        num_latents: ``Q``.

    Returns:
        ``[N, Q]``. Each column has mean 0 and variance 1.

    Raises:
        ValueError: if ``y`` is not ``[N, D]`` with at least ``Q`` columns and rows, or not finite.
    """
    y = checks.floating("y", y)
    checks.finite("y", y)
    good = y.ndim == 2 and min(y.shape) >= checks.positive_int("num_latents", num_latents)
    checks.must(good, "y", f"be [N, D] with at least {num_latents} rows and columns", f"shape {y.shape}")
    U = np.linalg.svd(np.asarray(y - y.mean(0), np.float64), full_matrices=False)[0][:, :num_latents]
    return jnp.asarray(U * np.sqrt(len(U)), precision(y))
