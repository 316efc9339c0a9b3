"""Kernels of a function's values and slopes together."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from gpzoo import _checks as checks
from gpzoo.kernels.base import Kernel, Wrapper


class WithSlopes(Wrapper):
    """The joint kernel of a function's values and slopes; the last column of the inputs says whether a row is a slope.

    A row ``(x, 0)`` is the value ``f(x)``, and a row ``(x, i)`` is the slope ``df/dx_i`` with ``i`` from 1. The
    covariances are derivatives of the kernel, ``cov(df/dx_i, f(z)) = dk/dx_i`` and
    ``cov(df/dx_i, df/dz_j) = d^2k/dx_i dz_j`` (Rasmussen and Williams 2006, eq. 9.1). JAX computes these derivatives.
    The kernel must therefore have two derivatives: RBF, Matern-3/2 and smoother kernels.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import RBF, WithSlopes
        >>> rows = np.array([[0.0, 0], [0.0, 1], [1.0, 0]], np.float32)  # f(0), f'(0), f(1)
        >>> WithSlopes(RBF())(rows).round(2)
        Array([[1.  , 0.  , 0.61],
               [0.  , 1.  , 0.61],
               [0.61, 0.61, 1.  ]], dtype=float32)

    Args:
        kernel: kernel of the function, on all columns but the last.

    Raises:
        TypeError: if ``kernel`` is not a kernel.
        ValueError: if ``kernel`` does not take vectors, or has noise (noise has no slopes); on evaluation, if inputs
            have only one column, or the last column has a number that is neither 0 nor the number of a column before it
            (checked only outside ``jit``).
    """

    kernel: Kernel

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = checks.instance("kernel", kernel, Kernel, "a kernel")
        other = f"WithSlopes takes a kernel on vectors; {type(kernel).__name__} is on other inputs."
        checks.refuse(kernel.input_ndim not in (1, None), other)
        noisy = "WithSlopes takes a kernel without White: noise has no slopes. Add it outside."
        checks.refuse(kernel.split_noise()[1] is not None, noisy)

    def cross(self, X: Float[Array, "N d"], Z: Float[Array, "M d"]) -> Float[Array, "N M"]:
        """Covariances of values and slopes for all pairs of rows."""
        (X, i), (Z, j) = self._split(X), self._split(Z)
        blocks = self._blocks(X, Z)
        return blocks[jnp.arange(len(X))[:, None], jnp.arange(len(Z)), i[:, None], j]

    def gram(self, X: Float[Array, "N d"]) -> Float[Array, "N N"]:
        """The Gram matrix, exactly symmetric."""
        K = self.cross(X, X)
        return (K + K.T) / 2

    def variances(self, X: Float[Array, "N d"]) -> Float[Array, " N"]:
        """Variances of values and slopes."""
        X, i = self._split(X)
        blocks = jax.vmap(lambda x: self._blocks(x[None], x[None])[0, 0])(X)
        return blocks[jnp.arange(len(X)), i, i]

    def _split(self, X: Float[Array, "N d"]) -> tuple[Float[Array, "N _"], Array]:
        """The points, and the number that tells whether each row is a value or a slope."""
        columns = X.shape[-1] - 1
        one = f"WithSlopes takes inputs of two columns or more, whose last says 0 or a column; got shape {X.shape}."
        checks.refuse(columns < 1, one)
        if checks.is_concrete(X):
            last = np.asarray(X)[:, -1]
            checks.refuse(
                not np.isin(last, np.arange(columns + 1)).all(),
                "The last column of inputs of WithSlopes is 0 for a value, or the number of a column from 1 to "
                f"{columns} for the slope along it; it has others.",
            )
        return X[:, :-1], X[:, -1].astype(int)

    def _blocks(self, X: Float[Array, "N _"], Z: Float[Array, "M _"]) -> Float[Array, "N M _ _"]:
        """``[[k, dk/dz], [dk/dx, d^2k/dx dz]]`` for all pairs of points."""

        def at(x: Array, z: Array) -> Array:
            return self.kernel.cross(x[None], z[None])[0, 0]

        def row(x: Array, z: Array) -> Array:
            value, slope = jax.value_and_grad(at, 1)(x, z)
            return jnp.concatenate([value[None], slope])

        def block(x: Array, z: Array) -> Array:
            return jnp.concatenate([row(x, z)[None], jax.jacfwd(row)(x, z).T])

        return jax.vmap(lambda x: jax.vmap(lambda z: block(x, z))(Z))(X)
