"""Draws of functions from GP priors: random Fourier features of stationary kernels, exact features of linear ones."""

from __future__ import annotations

from functools import singledispatch

import jax
import jax.numpy as jnp
from jax import Array, random
from jaxtyping import Float, PRNGKeyArray

from gpzoo.kernels.base import Kernel, Scaled, Sum, cast
from gpzoo.kernels.constant import Constant
from gpzoo.kernels.dot_product import Linear
from gpzoo.kernels.flattened import Flattened
from gpzoo.kernels.hilbert import HilbertSpace
from gpzoo.linalg.operators import matmul, total


def function_values(
    kernel: Kernel, X: Array, key: PRNGKeyArray, num_functions: int, num_features: int, *, separate: bool = False
) -> Float[Array, "N {num_functions}"]:
    """Values at ``X`` of functions drawn from the prior; equal keys give the same functions for every ``X``.

    A function is ``f(x) = sqrt(2 v / F) sum_i w_i cos(omega_i x) + w'_i sin(omega_i x)`` (Rahimi and Recht 2007). ``v``
    is the variance of the kernel, and ``F`` the number of features. The weights ``w_i`` and ``w'_i`` are standard
    normal, and the frequencies ``omega_i`` come from the kernel's spectral density. Over draws of weights and
    frequencies, the covariance is exactly the kernel. For given frequencies, the covariance differs from the kernel by
    ``O(F^-1/2)``. The functions have no white noise.

    Args:
        kernel: a sum of linear kernels, constants and kernels with :meth:`~gpzoo.kernels.Kernel.frequencies`.
        X: ``[N, ...]``, or ``[D, N, ...]`` for one set of inputs per function.
        key: random key, which fixes the functions.
        num_functions: ``D``.
        num_features: number ``F`` of features of each term of the sum, sines and cosines together.
        separate: whether each function has its own kernel, inputs or frequencies. Kernels and inputs with a leading
            axis require ``True``. Set it to the same value for every ``X``.

    Raises:
        TypeError: for a kernel that is not such a sum; the message names the kernel.
    """
    X = kernel.check_inputs(X)
    kernel = jax.tree.map(lambda leaf: cast(leaf, X.dtype), kernel)
    own_inputs = kernel.has_outputs(X)
    function, _ = kernel.split_noise()
    if function is None:
        return jnp.zeros((X.shape[own_inputs], num_functions), X.dtype)
    if not separate:
        return _values(function, X, key, num_functions, num_features)
    own_kernel = function.batched
    kernel_axes = function.batch_axes() if own_kernel else None
    one = jax.vmap(
        lambda k, x, key: _values(k, x, key, 1, num_features)[:, 0],
        in_axes=(kernel_axes, 0 if own_inputs else None, 0),
        out_axes=1,
    )
    return one(function, X, random.split(key, num_functions))


# -- functions of one kernel -------------------------------------------------------------------------------------------


@singledispatch
def _values(
    kernel: Kernel, X: Float[Array, "N ..."], key: PRNGKeyArray, num_functions: int, num_features: int
) -> Float[Array, "N {num_functions}"]:
    key_frequencies, key_weights = random.split(key)
    half = max(num_features // 2, 1)
    omega = kernel.frequencies(key_frequencies, half, X.shape[-1], X.dtype)
    weights = random.normal(key_weights, (2 * half, num_functions), X.dtype)
    phase = matmul(X, omega.T)
    waves = jnp.concatenate([jnp.cos(phase), jnp.sin(phase)], axis=1)
    sums = matmul(waves, weights)
    return jnp.sqrt(kernel.variances(X) / half)[:, None] * sums


@_values.register
def _sum_values(
    kernel: Sum, X: Float[Array, "N ..."], key: PRNGKeyArray, num_functions: int, num_features: int
) -> Float[Array, "N {num_functions}"]:
    keys = random.split(key, len(kernel.parts))
    return total(_values(p, X, k, num_functions, num_features) for p, k in zip(kernel.parts, keys, strict=True))


@_values.register
def _scaled_values(
    kernel: Scaled, X: Float[Array, "N ..."], key: PRNGKeyArray, num_functions: int, num_features: int
) -> Float[Array, "N {num_functions}"]:
    return jnp.sqrt(kernel.scale) * _values(kernel.kernel, X, key, num_functions, num_features)


@_values.register
def _constant_values(
    kernel: Constant, X: Float[Array, "N ..."], key: PRNGKeyArray, num_functions: int, num_features: int
) -> Float[Array, "N {num_functions}"]:
    level = jnp.sqrt(kernel.variance) * random.normal(key, (1, num_functions), X.dtype)
    return jnp.broadcast_to(level, (X.shape[0], num_functions))


@_values.register
def _linear_values(
    kernel: Linear, X: Float[Array, "N d"], key: PRNGKeyArray, num_functions: int, num_features: int
) -> Float[Array, "N {num_functions}"]:
    scaled = kernel.scaled(X)
    slopes = random.normal(key, (scaled.shape[1], num_functions), X.dtype)
    return jnp.sqrt(kernel.variance) * matmul(scaled, slopes)


@_values.register
def _flattened_values(
    kernel: Flattened, X: Float[Array, "N ..."], key: PRNGKeyArray, num_functions: int, num_features: int
) -> Float[Array, "N {num_functions}"]:
    return _values(kernel.kernel, kernel.vectors(X), key, num_functions, num_features)


@_values.register
def _hilbert_values(
    kernel: HilbertSpace, X: Float[Array, "N d"], key: PRNGKeyArray, num_functions: int, num_features: int
) -> Float[Array, "N {num_functions}"]:
    spread = jnp.sqrt(kernel.densities(X.dtype))[:, None]
    return matmul(kernel.box.functions(X), spread * random.normal(key, (len(spread), num_functions), X.dtype))
