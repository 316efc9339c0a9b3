"""Factorisations of covariance matrices: one place for the jitter, one error when a matrix will not factorise."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import solve_triangular

from gpzoo.checks import is_concrete

#: Jitter relative to the mean diagonal of a covariance matrix, by dtype.
RELATIVE_JITTER = {"float64": 1e-6, "float32": 1e-5, "bfloat16": 1e-2, "float16": 1e-2}


class FactorisationError(ValueError):
    """A covariance matrix that is not numerically positive definite; the message says which and what to try."""


def add_jitter(K: Array, jitter: float | Array | None = None) -> Array:
    """Add jitter to the diagonal of a covariance matrix.

    Args:
        K: covariance matrices ``[..., M, M]``.
        jitter: the absolute amount, one for all matrices or one for each (it broadcasts over the leading axes), or
            ``None`` for :data:`RELATIVE_JITTER` times the mean diagonal of each.

    Returns:
        ``K`` with the jitter added, ``[..., M, M]``.
    """
    if jitter is None:
        mean = jnp.mean(jnp.diagonal(K, axis1=-2, axis2=-1), axis=-1)
        jitter = RELATIVE_JITTER[K.dtype.name] * jax.lax.stop_gradient(mean)
    amount = jnp.broadcast_to(jnp.asarray(jitter, K.dtype), K.shape[:-2])
    return K + amount[..., None, None] * jnp.eye(K.shape[-1], dtype=K.dtype)


def cholesky(K: Array, name: str = "covariance", jitter: float | Array | None = None) -> Array:
    """Lower Cholesky factor of ``K`` plus jitter.

    Args:
        K: covariance matrices ``[..., M, M]``.
        name: what the matrix is, for the error message.
        jitter: see :func:`add_jitter`.

    Returns:
        Lower-triangular factors ``[..., M, M]``.

    Raises:
        FactorisationError: outside ``jit``, when the factor is not finite. Inside ``jit`` the factor is NaN, which
            :func:`gpzoo.inference.fit` detects and reports through :func:`explain`.
    """
    L = jnp.linalg.cholesky(add_jitter(K, jitter), symmetrize_input=False)
    if is_concrete(L) and not bool(jnp.all(jnp.isfinite(L))):
        raise FactorisationError(explain(np.asarray(K), name, jitter))
    return L


def explain(K: np.ndarray, name: str, jitter: float | Array | None = None) -> str:
    """Why a covariance matrix does not factorise, and what to try, as one message."""
    K = np.asarray(K)
    K = K.reshape(-1, *K.shape[-2:])
    finite = np.isfinite(K).all(axis=(1, 2))
    text = f"The Cholesky factorisation of {name} failed ({K.shape[-1]} x {K.shape[-1]}, {K.dtype}"
    if not finite.all():
        return text + (
            "): the matrix itself holds NaN or infinity. A hyperparameter or an inducing input has left its range: "
            "lower the learning rate, or check the data for extreme values."
        )
    diagonal = np.diagonal(K, axis1=-2, axis2=-1).astype(np.float64)
    relative = RELATIVE_JITTER[K.dtype.name]
    used = f"{relative:g} of the mean diagonal" if jitter is None else f"{float(np.max(np.asarray(jitter))):g}"
    distance = diagonal[:, :, None] + diagonal[:, None, :] - 2 * K.astype(np.float64)
    index = np.arange(K.shape[-1])
    distance[:, index, index] = np.inf
    nearest = float(distance.min()) if K.shape[-1] > 1 else float("nan")
    return text + (
        f", jitter {used}, diagonal from {diagonal.min():.3g} to {diagonal.max():.3g}, smallest variance of a "
        f"difference of two of its variables {nearest:.3g}). Two inducing inputs may coincide or the lengthscale may "
        "be too long: use fewer or distinct inducing inputs, a larger jitter, a lower learning rate, or float64 "
        "(numpyro.enable_x64())."
    )


def solve_lower(L: Array, B: Array, *, transpose: bool = False) -> Array:
    """``L^-1 B``, or ``L^-T B`` with ``transpose``, for lower-triangular ``L``.

    ``L`` is ``[..., M, M]`` and ``B`` ``[..., M, K]``; leading axes broadcast.
    """
    batch = jnp.broadcast_shapes(L.shape[:-2], B.shape[:-2])
    L = jnp.broadcast_to(L, batch + L.shape[-2:])
    B = jnp.broadcast_to(B, batch + B.shape[-2:])
    return solve_triangular(L, B, lower=True, trans=1 if transpose else 0)
