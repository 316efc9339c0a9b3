"""Kernels that do not look at their inputs' values: constants and white noise."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from gpzoo.kernels.base import Elementary, positive


class Constant(Elementary):
    """``k(x, x') = variance``: one unknown number added to the whole function.

    It looks at the number of inputs only, so it adds to and multiplies kernels on vectors and on images alike. On its
    own, the leading axis of the inputs is ``N``.

    Args:
        variance: scalar, or ``[D]`` for one kernel per output.

    Raises:
        ValueError: if ``variance`` is known and not positive, or has more than one axis.
    """

    input_ndim = None
    data_fields = ("variance",)

    def __init__(self, variance: float | Array = 1.0) -> None:
        self.variance = positive("variance", variance)
        self._check_fields()

    def _cross(self, X: Array, Z: Array) -> Array:
        return jnp.broadcast_to(jnp.asarray(self.variance, X.dtype), (X.shape[0], Z.shape[0]))

    def _diag(self, X: Array) -> Array:
        return jnp.broadcast_to(jnp.asarray(self.variance, X.dtype), X.shape[:1])


class White(Constant):
    """White noise: ``variance`` on the diagonal of ``kernel(X)`` and in ``kernel.diag(X)``, 0 in ``kernel(X, Z)``.

    Each row of ``X`` has its own noise, also where two rows are equal, and a cross-covariance never holds any, also
    where ``Z`` is ``X``: inducing variables and predictions at new inputs do not share noise. As for :class:`Constant`,
    only the number of inputs matters.

    Args:
        variance: scalar, or ``[D]`` for one kernel per output.

    Raises:
        ValueError: if ``variance`` is known and not positive, or has more than one axis.
    """

    def _cross(self, X: Array, Z: Array) -> Array:
        return jnp.zeros((X.shape[0], Z.shape[0]), X.dtype)

    def _gram(self, X: Array) -> Array:
        return self.variance * jnp.eye(X.shape[0], dtype=X.dtype)
