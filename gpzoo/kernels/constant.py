"""Kernels that do not depend on the values of the inputs: constants and white noise."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, random
from jaxtyping import Float, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo.kernels.base import Kernel
from gpzoo.kernels.elementary import Elementary
from gpzoo.linalg.state_space import States


class Constant(Elementary):
    """``k(x, x') = variance``: one unknown number added to the whole function.

    The kernel depends only on the number of inputs. So it can be added to kernels on vectors and to kernels on images,
    and multiplied with them. If the kernel is evaluated alone, the leading axis of the inputs is ``N``.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import RBF, Constant
        >>> (RBF() + Constant(4.0))(np.zeros((1, 2), np.float32), np.full((1, 2), 9.0, np.float32))
        Array([[4.]], dtype=float32)

    Args:
        variance: scalar, or ``[D]`` for one kernel per output.

    Raises:
        ValueError: if ``variance`` is not positive (checked only outside ``jit``), or has more than one axis.
    """

    variance: Float[Array, "*D"]

    def __init__(self, variance: float | Array = 1.0) -> None:
        self.variance = checks.positive("variance", variance)
        self.check_fields()

    @property
    def input_ndim(self) -> None:
        """``None``: inputs may have any rank, because only their number matters."""
        return None

    def cross(self, X: Float[Array, "N ..."], Z: Float[Array, "M ..."]) -> Float[Array, "N M"]:
        """``variance`` everywhere."""
        return jnp.broadcast_to(jnp.asarray(self.variance, X.dtype), (X.shape[0], Z.shape[0]))

    def variances(self, X: Float[Array, "N ..."]) -> Float[Array, " N"]:
        """``variance``, ``[N]``."""
        return jnp.broadcast_to(jnp.asarray(self.variance, X.dtype), X.shape[:1])

    def states(self, X: Float[Array, "N 1"]) -> States:
        """One state: the unknown number, which does not change from row to row."""
        one = jnp.ones((1, 1), X.dtype)
        return States.of(one[0], one, self.variance * one, len(X))

    def frequencies(
        self, key: PRNGKeyArray, num: int, num_columns: int, dtype: Any
    ) -> Float[Array, "{num} {num_columns}"]:
        """Zero."""
        return jnp.zeros((num, num_columns), dtype)

    def prior_functions(
        self, X: Float[Array, "N ..."], key: PRNGKeyArray, num_functions: int, num_features: int
    ) -> Float[Array, "N {num_functions}"]:
        """One number for each function."""
        level = jnp.sqrt(self.variance) * random.normal(key, (1, num_functions), X.dtype)
        return jnp.broadcast_to(level, (X.shape[0], num_functions))


Kernel.of_number = Constant


class White(Constant):
    """White noise: ``variance`` on the diagonal of ``kernel(X)`` and in ``kernel.diag(X)``, 0 in ``kernel(X, Z)``.

    Each row of ``X`` has its own noise, even if two rows are equal. A cross-covariance has no noise, even if ``Z`` is
    ``X``, because inducing variables and predictions at new inputs do not share the noise of the data. Only the number
    of inputs matters, as for :class:`Constant`.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import RBF, White
        >>> (RBF() + White(0.1))(np.zeros((2, 1), np.float32)).round(2)
        Array([[1.1, 1. ],
               [1. , 1.1]], dtype=float32)

    Args:
        variance: scalar, or ``[D]`` for one kernel per output.

    Raises:
        ValueError: if ``variance`` is not positive (checked only outside ``jit``), or has more than one axis.
    """

    variances = Constant.variances

    def cross(self, X: Float[Array, "N ..."], Z: Float[Array, "M ..."]) -> Float[Array, "N M"]:
        """Zero."""
        return jnp.zeros((X.shape[0], Z.shape[0]), X.dtype)

    def states(self, X: Float[Array, "N 1"]) -> States:
        """One state, which is independent between rows."""
        form = super().states(X)
        return form._replace(A=jnp.zeros_like(form.A))

    def gram(self, X: Float[Array, "N ..."]) -> Float[Array, "N N"]:
        """``variance`` on the diagonal."""
        return self.variance * jnp.eye(X.shape[0], dtype=X.dtype)

    def split_noise(self) -> tuple[None, Kernel]:
        """No function, only noise."""
        return None, self
