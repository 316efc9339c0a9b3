"""GPs of several correlated outputs. Each output has its own inputs, and may have missing entries."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array

from gpzoo import _checks as checks
from gpzoo.kernels import RBF, Kernel, Pointwise
from gpzoo.likelihoods import Gaussian
from gpzoo.linalg import matmul
from gpzoo.models.parameters import positive, precision
from gpzoo.processes.process import GaussianProcess


def coregionalised_gp(
    X: Array,
    y: Array | None = None,
    *,
    num_outputs: int,
    rank: int = 1,
    kernel: Callable[..., Kernel] = RBF,
    noise_variance: float = 0.1,
    jitter: float | None = None,
    num_data: int | None = None,
) -> None:
    """The intrinsic model of coregionalisation, for several correlated outputs. Each output has its own noise.

    ``Cov[f_d(x), f_e(x')] = B_de k(x, x')`` with ``B = W W^T + diag(kappa)`` (Álvarez, Rosasco and Lawrence 2012,
    *Kernels for vector-valued functions*, section 4.2). A row is one value of one output. Missing values therefore have
    no row, and each output may have its own inputs. Each inducing point belongs to one output, so it should start at a
    row: ``random_subset(100)``.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from numpyro.infer import Predictive
        >>> from gpzoo.models import coregionalised_gp
        >>> x, output = np.linspace(0, 1, 6), np.array([0, 1, 0, 1, 0, 1])
        >>> X = np.stack([x, output], axis=1).astype(np.float32)
        >>> Predictive(partial(coregionalised_gp, num_outputs=2), num_samples=3)(jax.random.key(0), X)["y"].shape
        (3, 6)

    Args:
        X: ``[N, d + 1]``: the inputs. The last column is the number of the output, ``0 .. num_outputs - 1``.
        y: targets ``[N]``, best standardised for each output.
        num_outputs: number of outputs.
        rank: number of columns of ``W``.
        kernel: class of ``k``, a stationary kernel. Its variance is fixed at 1, because ``B`` sets the variances.
        noise_variance: initial noise variance of every output, in squared units of ``y``.
        jitter: absolute jitter on covariance diagonals; ``None`` for the relative default.
        num_data: number of rows of the whole data, if ``X`` is a minibatch.
    """
    inputs = range(X.shape[-1] - 1)
    k = kernel(1.0, positive("f_lengthscale", jnp.ones(len(inputs)), X), active_dims=inputs)
    # With rank 0, nothing would scale the outputs.
    B = categories("f", X, num_outputs, checks.positive_int("rank", rank))
    f = numpyro.sample("f", GaussianProcess(k * B, X, jitter=jitter))
    noise = positive("noise_variance", jnp.full(num_outputs, noise_variance), X)
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Gaussian(f, _of(noise, X[:, -1])), obs=y)


def categories(name: str, X: Array, num: int, rank: int = 1, *, column: int = -1) -> Kernel:
    """A kernel of categories: rows of categories ``i`` and ``j`` have covariance ``B_ij``; ``B = W W^T + diag(kappa)``.

    Example:
        >>> import jax, numpy as np
        >>> from numpyro import handlers
        >>> from gpzoo.models import categories
        >>> shops = np.array([[0.0], [1.0], [1.0]], np.float32)
        >>> start = {"shop_W": np.array([[1.0], [2.0]], np.float32), "shop_kappa": np.ones(2, np.float32)}
        >>> handlers.substitute(lambda: categories("shop", shops, 2)(shops), start)()
        Array([[2., 2., 2.],
               [2., 5., 5.],
               [2., 5., 5.]], dtype=float32)

    Args:
        name: prefix of the parameters ``<name>_W``, ``[num, rank]``, and ``<name>_kappa``, ``[num]``, which are
            positive.
        X: the inputs ``[N, d]``. One column has the category of each row, as a whole number from 0 to ``num - 1``.
        num: number of categories.
        rank: number of columns of ``W``. With 0, there are no parameters, and ``B`` is the identity: multiplied by
            another kernel, each category has its own independent function.
        column: index of the column with the categories.

    Raises:
        ValueError: outside ``jit``, if a number in the column is not a category; if ``num`` is below one, or ``rank``
            below zero. Inside ``jit``, an unknown category makes the kernel NaN, and predictions and trainings refuse
            NaN.
    """
    num, rank = checks.positive_int("num", num), checks.whole("rank", rank, 0)
    concrete = checks.is_concrete(X)
    seen = (np.asarray(X) if concrete else X)[:, column]
    known = (seen == seen.round()) & (seen >= 0) & (seen < num)
    bad = seen[~known].tolist() if concrete else ()
    wanted = f"have whole numbers from 0 to {num - 1}"
    checks.must(not bad, f"Column {column} of X", wanted, str(bad[0] if bad else ""))
    active = (column % X.shape[-1],)
    kappa = positive(f"{name}_kappa", jnp.full(num, 0.5), X) if rank else jnp.ones(num, precision(X))
    kappa = kappa if concrete else checks.nan_unless(kappa, known)
    if not rank:
        return Pointwise(_within, active_dims=active, axes={"kappa": 1}, kappa=kappa)
    start = 0.7 + 0.1 * np.random.default_rng(0).standard_normal((num, rank))
    W = numpyro.param(f"{name}_W", jnp.asarray(start / np.sqrt(rank), precision(X)))
    W = W if concrete else checks.nan_unless(W, known)
    return Pointwise(_between, active_dims=active, axes={"W": 2, "kappa": 1}, W=W, kappa=kappa)


def _between(x: Array, z: Array, W: Array, kappa: Array) -> Array:
    return matmul(_of(W, x[0]), _of(W, z[0])) + _within(x, z, kappa)


def _within(x: Array, z: Array, kappa: Array) -> Array:
    return jnp.where(jnp.round(x[0]) == jnp.round(z[0]), _of(kappa, x[0]), 0)


def _of(values: Array, number: Array) -> Array:
    """The entry of a category. Its number is rounded, because inducing points may start at means of rows.

    Inside ``jit``, an unknown number gives NaN, not the entry of a neighbour. Predictions and trainings refuse NaN.
    """
    i = jnp.round(number).astype(jnp.int32)
    known = ((i >= 0) & (i < len(values))).reshape(i.shape + (1,) * (values.ndim - 1))
    return jnp.where(known, values[i], jnp.nan)
