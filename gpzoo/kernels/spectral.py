"""Draws of whole functions from GP priors: random Fourier features of stationary kernels, exact features of linear."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, random

from gpzoo.kernels.base import Flattened, Kernel, Product, Scaled, Sum, cast
from gpzoo.kernels.constant import Constant, White
from gpzoo.kernels.dot_product import Linear
from gpzoo.kernels.stationary import (
    RBF,
    Lengthscaled,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    Stationary,
)
from gpzoo.linalg.operators import matmul


def function_values(
    kernel: Kernel, X: Array, key: Array, num_functions: int, num_features: int, *, separate: bool = False
) -> Array:
    """Values at ``X`` of functions drawn from the prior; equal keys give the same functions, whatever ``X`` is.

    ``f(x) = sqrt(2 v / F) sum_i w_i cos(omega_i x) + w'_i sin(omega_i x)`` with standard normal weights and frequencies
    from the kernel's spectral density (Rahimi and Recht 2007): over draws of all of these the covariance is the
    kernel's, exactly; given the frequencies it differs from it by ``O(F^-1/2)``. White noise is left out.

    Args:
        kernel: a sum of kernels with :func:`frequencies`, linear kernels and constants.
        X: ``[N, ...]``, or ``[D, N, ...]`` for one set of inputs per function.
        key: what fixes the functions.
        num_functions: ``D``.
        num_features: number ``F`` of features of each addend, sines and cosines together.
        separate: whether each function has a kernel, inputs or frequencies of its own. To be set for all ``X`` alike;
            kernels and inputs with a leading axis need it.

    Returns:
        ``[N, D]``.

    Raises:
        TypeError: naming the kernel, for any other.
    """
    X = kernel._check(X)
    kernel = jax.tree.map(lambda leaf: cast(leaf, X.dtype), kernel)
    if not separate:
        return _values(kernel, X, key, num_functions, num_features)
    own_kernel, own_inputs = kernel.batched, kernel._has_outputs(X)
    kernel_axes = kernel._batch_axes() if own_kernel else None
    one = jax.vmap(
        lambda k, x, key: _values(k, x, key, 1, num_features)[:, 0],
        in_axes=(kernel_axes, 0 if own_inputs else None, 0),
        out_axes=1,
    )
    return one(kernel, X, random.split(key, num_functions))


@singledispatch
def frequencies(kernel: Any, key: Array, num: int, num_columns: int, dtype: Any) -> Array:
    """Draws from a kernel's spectral density: ``k(x, x') = k(0) E[cos(omega . (x - x'))]``.

    ``frequencies.register(MyKernel)`` adds a stationary kernel. Hyperparameters have no leading axis here.

    Args:
        kernel: a stationary kernel on vectors.
        key: random key.
        num: number of draws.
        num_columns: columns of the inputs; those that the kernel does not see have frequency 0.
        dtype: of the result.

    Returns:
        ``[num, num_columns]``, in radians per unit of the inputs.

    Raises:
        TypeError: for kernels without a spectral density, or whose density is not known here.
    """
    raise TypeError(
        f"{type(kernel).__name__} has no known spectral density, so its functions cannot be drawn by random features: "
        "draw them with numpyro.infer.Predictive(guide, ...) at fewer inputs (a few thousand), whose exact joint "
        "covariance it forms."
    )


def _on_columns(kernel: Lengthscaled, omega: Array, num_columns: int) -> Array:
    """Frequencies of the columns that the kernel sees, in their place among all."""
    if kernel.active_dims is None:
        return omega
    return jnp.zeros((len(omega), num_columns), omega.dtype).at[:, jnp.asarray(kernel.active_dims)].set(omega)


def _normal(kernel: Lengthscaled, key: Array, num: int, num_columns: int, dtype: Any) -> Array:
    """Standard normals over the lengthscale, ``[num, active columns]``: the spectral density of an RBF."""
    active = num_columns if kernel.active_dims is None else len(kernel.active_dims)
    return random.normal(key, (num, active), dtype) / kernel.lengthscale


@frequencies.register
def _rbf(kernel: RBF, key: Array, num: int, num_columns: int, dtype: Any) -> Array:
    return _on_columns(kernel, _normal(kernel, key, num, num_columns, dtype), num_columns)


def _student(kernel: Stationary, degrees: int, key: Array, num: int, num_columns: int, dtype: Any) -> Array:
    # Rasmussen and Williams 2006, eq. 4.15: a multivariate t, its 2 nu degrees of freedom being a whole number.
    key_normal, key_chi = random.split(key)
    chi = jnp.sum(jnp.square(random.normal(key_chi, (num, degrees), dtype)), -1, keepdims=True)
    # The bound keeps the phases of one degree of freedom finite; it is met about once in 1 / eps draws.
    chi = jnp.maximum(chi / degrees, float(jnp.finfo(dtype).eps) ** 2)
    return _on_columns(kernel, _normal(kernel, key_normal, num, num_columns, dtype) / jnp.sqrt(chi), num_columns)


@frequencies.register
def _matern12(kernel: Matern12, key: Array, num: int, num_columns: int, dtype: Any) -> Array:
    return _student(kernel, 1, key, num, num_columns, dtype)


@frequencies.register
def _matern32(kernel: Matern32, key: Array, num: int, num_columns: int, dtype: Any) -> Array:
    return _student(kernel, 3, key, num, num_columns, dtype)


@frequencies.register
def _matern52(kernel: Matern52, key: Array, num: int, num_columns: int, dtype: Any) -> Array:
    return _student(kernel, 5, key, num, num_columns, dtype)


@frequencies.register
def _rational_quadratic(kernel: RationalQuadratic, key: Array, num: int, num_columns: int, dtype: Any) -> Array:
    # A mixture of RBFs whose inverse squared lengthscales are gamma distributed (Rasmussen and Williams, eq. 4.20).
    key_normal, key_gamma = random.split(key)
    precision = random.gamma(key_gamma, kernel.alpha, (num, 1), dtype) / kernel.alpha
    omega = _normal(kernel, key_normal, num, num_columns, dtype) * jnp.sqrt(precision)
    return _on_columns(kernel, omega, num_columns)


@frequencies.register
def _periodic(kernel: Periodic, key: Array, num: int, num_columns: int, dtype: Any) -> Array:
    # exp(kappa cos t - kappa) has the Fourier coefficients exp(-kappa) I_n(kappa), which are the probabilities of the
    # difference of two Poisson variables of mean kappa / 2: the harmonic of each column.
    active = num_columns if kernel.active_dims is None else len(kernel.active_dims)
    kappa = 1 / (2 * kernel.lengthscale) ** 2
    mean = jnp.broadcast_to(kappa / 2, (num, active))
    first, second = (random.poisson(k, mean).astype(dtype) for k in random.split(key))
    return _on_columns(kernel, 2 * jnp.pi * (first - second) / kernel.period, num_columns)


@frequencies.register
def _scaled(kernel: Scaled, key: Array, num: int, num_columns: int, dtype: Any) -> Array:
    return frequencies(kernel.kernel, key, num, num_columns, dtype)


@frequencies.register
def _constant(kernel: Constant, key: Array, num: int, num_columns: int, dtype: Any) -> Array:
    if isinstance(kernel, White):
        return frequencies.dispatch(object)(kernel, key, num, num_columns, dtype)
    return jnp.zeros((num, num_columns), dtype)


@frequencies.register
def _product(kernel: Product, key: Array, num: int, num_columns: int, dtype: Any) -> Array:
    # The density of a product is the convolution of its factors' densities.
    keys = random.split(key, len(kernel.parts))
    return sum(frequencies(p, k, num, num_columns, dtype) for p, k in zip(kernel.parts, keys, strict=True))


# -- functions of one kernel -------------------------------------------------------------------------------------------


@singledispatch
def _values(kernel: Kernel, X: Array, key: Array, num_functions: int, num_features: int) -> Array:
    key_frequencies, key_weights = random.split(key)
    half = max(num_features // 2, 1)
    omega = frequencies(kernel, key_frequencies, half, X.shape[-1], X.dtype)
    weights = random.normal(key_weights, (2 * half, num_functions), X.dtype)
    phase = matmul(X, omega.T)
    waves = jnp.concatenate([jnp.cos(phase), jnp.sin(phase)], axis=1)
    sums = matmul(waves, weights)
    return jnp.sqrt(kernel._diag(X) / half)[:, None] * sums


@_values.register
def _sum_values(kernel: Sum, X: Array, key: Array, num_functions: int, num_features: int) -> Array:
    keys = random.split(key, len(kernel.parts))
    return sum(_values(p, X, k, num_functions, num_features) for p, k in zip(kernel.parts, keys, strict=True))


@_values.register
def _scaled_values(kernel: Scaled, X: Array, key: Array, num_functions: int, num_features: int) -> Array:
    return jnp.sqrt(kernel.scale) * _values(kernel.kernel, X, key, num_functions, num_features)


@_values.register
def _white_values(kernel: White, X: Array, key: Array, num_functions: int, num_features: int) -> Array:
    return jnp.zeros((X.shape[0], num_functions), X.dtype)


@_values.register
def _constant_values(kernel: Constant, X: Array, key: Array, num_functions: int, num_features: int) -> Array:
    level = jnp.sqrt(kernel.variance) * random.normal(key, (1, num_functions), X.dtype)
    return jnp.broadcast_to(level, (X.shape[0], num_functions))


@_values.register
def _linear_values(kernel: Linear, X: Array, key: Array, num_functions: int, num_features: int) -> Array:
    scaled = kernel._scaled(X)
    slopes = random.normal(key, (scaled.shape[1], num_functions), X.dtype)
    return jnp.sqrt(kernel.variance) * matmul(scaled, slopes)


@_values.register
def _flattened_values(kernel: Flattened, X: Array, key: Array, num_functions: int, num_features: int) -> Array:
    return _values(kernel.kernel, X.reshape(X.shape[0], -1), key, num_functions, num_features)
