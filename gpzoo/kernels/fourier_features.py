"""Draws of functions from GP priors: random Fourier features of stationary kernels, exact features of linear ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, random
from jaxtyping import Float, PRNGKeyArray

from gpzoo.kernels.base import Kernel, cast


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
        return function.prior_functions(X, key, num_functions, num_features)
    own_kernel = function.batched
    kernel_axes = function.batch_axes() if own_kernel else None
    one = jax.vmap(
        lambda k, x, key: k.prior_functions(x, key, 1, num_features)[:, 0],
        in_axes=(kernel_axes, 0 if own_inputs else None, 0),
        out_axes=1,
    )
    return one(function, X, random.split(key, num_functions))
