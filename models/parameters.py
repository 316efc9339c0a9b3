"""Parts of models with ``numpyro.param`` sites as parameters, so that the file of a model can say ``rbf("f", X)``."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array
from numpyro.distributions import constraints

from gpzoo import _checks as checks
from gpzoo._types import ArrayLike
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Gaussian
from gpzoo.processes.marginals import GaussianMarginals


def positive(name: str, value: ArrayLike, like: Array | GaussianMarginals, *, one_for_all: bool = False) -> Array:
    """A positive ``numpyro.param`` named ``name`` that starts at ``value``, in the precision of ``like``.

    Example:
        >>> import numpy as np
        >>> from numpyro import handlers
        >>> from gpzoo.models import positive
        >>> with handlers.trace() as sites:
        ...     value = positive("noise_variance", 0.1, np.zeros(3, np.float32))
        >>> value, sites["noise_variance"]["type"]
        (Array(0.1, dtype=float32), 'param')

    Args:
        name: name of the parameter.
        value: initial value.
        like: an array, for its precision.
        one_for_all: whether a handler may give one number in place of several values.

    Raises:
        ValueError: if a handler gives the parameter more or fewer numbers than ``value`` has, such as one number from
            ``lift`` for several values. With ``one_for_all=True``, one number is allowed. If ``value`` has the shape
            ``[1]``, one number is always allowed.
    """
    start = jnp.asarray(value, precision(like))
    found = numpyro.param(name, start, constraint=constraints.softplus_positive)
    if found is None:
        return found
    shape = () if one_for_all and jnp.size(found) == 1 else start.shape
    message = (
        f"{name!r} is {list(start.shape)} in the program, and has shape {list(jnp.shape(found))} here: give it one of "
        f"that shape, such as the prior dist.LogNormal(0.0, 1.0).expand({list(start.shape)}).to_event({start.ndim})."
    )
    checks.refuse(jnp.size(found) != math.prod(shape), message)
    return jnp.reshape(found, shape)


def precision(like: Array | GaussianMarginals) -> Any:
    """The floating-point dtype of computations on ``like``: its dtype, or the default dtype if it has integers."""
    return jax.dtypes.canonicalize_dtype(like.dtype if jnp.issubdtype(like.dtype, jnp.floating) else float)


def rbf(name: str, X: Array, *, variance: float = 1.0, lengthscale: float = 1.0, ard: bool = True) -> RBF:
    """An RBF kernel with parameters ``<name>_variance`` and ``<name>_lengthscale``.

    Example:
        >>> import numpy as np
        >>> from numpyro import handlers
        >>> from gpzoo.models import rbf
        >>> with handlers.trace() as sites:
        ...     kernel = rbf("f", np.zeros((5, 3), np.float32), lengthscale=2.0)
        >>> list(sites), kernel.lengthscale
        (['f_variance', 'f_lengthscale'], Array([2., 2., 2.], dtype=float32))

    Args:
        name: prefix of the parameters, usually the name of the GP site.
        X: the inputs ``[N, ...]``, for their precision. With ``ard``, also for their number of dimensions.
        variance: initial variance.
        lengthscale: initial lengthscales, in the units of ``X``.
        ard: whether each dimension has its own lengthscale (automatic relevance determination).
    """
    start = jnp.full(X.shape[-1:] if ard else (), lengthscale, precision(X))
    return RBF(positive(f"{name}_variance", variance, X), positive(f"{name}_lengthscale", start, X))


def gaussian(
    f: Array | GaussianMarginals,
    noise_variance: ArrayLike = 0.05,
    missing: str | None = None,
    *,
    shared_noise: bool = False,
) -> Gaussian:
    """A Gaussian likelihood with the parameter ``noise_variance``, which has a value for each column of ``f``.

    Example:
        >>> import numpy as np
        >>> from numpyro import handlers
        >>> from gpzoo.models import gaussian
        >>> y = handlers.seed(gaussian, 0)(np.zeros(3, np.float32))
        >>> type(y).__name__, y.batch_shape
        ('Gaussian', (3,))

    Args:
        f: ``[N]`` or ``[N, D]``, array or marginals.
        noise_variance: initial noise variances, in squared units of ``y``: one number, or one for each column.
        missing: as for :class:`~gpzoo.likelihoods.Gaussian`.
        shared_noise: whether all columns share one noise variance, if the given ``noise_variance`` is one number. By
            default, each column has its own noise variance, which starts at this number. All columns also share one
            noise variance if a handler replaces the parameter by one number, such as ``lift`` with a prior of one
            number.
    """
    if np.ndim(noise_variance) == 0 and not shared_noise:
        noise_variance = jnp.full(f.shape[1:], jnp.asarray(noise_variance))
    # Models from earlier versions have one noise variance.
    noise = positive("noise_variance", noise_variance, f, one_for_all=True)
    return Gaussian(f, noise, missing=missing)
