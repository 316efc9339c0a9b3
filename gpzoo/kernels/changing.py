"""Kernels of functions whose behaviour depends on the input: change points, and lengthscales that vary."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from gpzoo import _checks as checks
from gpzoo._pytree import static
from gpzoo.kernels.base import Kernel
from gpzoo.kernels.elementary import Elementary, select_columns
from gpzoo.kernels.pointwise import Pointwise
from gpzoo.linalg.state_space import States


class Gate(Elementary):
    """A factor that switches a function on or off at a location.

    The kernel is ``s(x) s(x')`` with ``s(x) = sigmoid((x - location) / width)`` of one column. Multiply the kernel
    of a function by the gate to switch this function on. With ``closing=True``, the gate switches it off.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import RBF, Gate
        >>> late = RBF() * Gate(location=2.0, width=0.1)
        >>> late.diag(np.array([[0.0], [2.0], [4.0]], np.float32)).round(2)
        Array([0.  , 0.25, 1.  ], dtype=float32)

    Args:
        location: the point at which ``s`` is 1/2; scalar, or ``[D]`` for one per output, in the units of the inputs.
        width: width of the transition, in the same units; positive.
        active_dim: number of the column.
        closing: whether the gate switches the function off instead of on.

    Raises:
        TypeError: if ``location`` or ``width`` is not numeric, or ``active_dim`` is not an integer.
        ValueError: if ``width`` is not positive (checked only outside ``jit``).
    """

    location: Float[Array, "*D"]
    width: Float[Array, "*D"]
    active_dims: tuple[int, ...] | None = static()
    closing: bool = static()

    def __init__(
        self, location: float | Array, width: float | Array = 1.0, active_dim: int = 0, *, closing: bool = False
    ) -> None:
        self.location, self.width = checks.floating("location", location), checks.positive("width", width)
        self.active_dims = (checks.whole("active_dim", active_dim, 0),)
        self.closing = checks.instance("closing", closing, bool, "True or False")
        self.check_fields()

    def cross(self, X: Float[Array, "N d"], Z: Float[Array, "M d"]) -> Float[Array, "N M"]:
        """The product of the factors ``s`` of two rows, for all pairs of rows."""
        return self._factor(X)[:, None] * self._factor(Z)

    def variances(self, X: Float[Array, "N d"]) -> Float[Array, " N"]:
        """The squares of the factors."""
        return jnp.square(self._factor(X))

    def least_variances(self, X: Float[Array, "N d"]) -> Float[Array, " N"]:
        """One, so that a function that is switched off at some or all rows does not count as lost in rounding."""
        return jnp.ones(len(X), X.dtype)

    def states(self, X: Float[Array, "N 1"]) -> States:
        """One state, the same at all rows. The function at a row is this state times the factor ``s(x)`` of the row."""
        one = jnp.ones((1, 1), X.dtype)
        return States.of(self._factor(X)[:, None], one, one, len(X))

    def _factor(self, X: Float[Array, "N d"]) -> Float[Array, " N"]:
        steps = (self.active_columns(X)[:, 0] - self.location) / self.width
        return jax.nn.sigmoid(-steps if self.closing else steps)


def ChangePoint(
    before: Kernel, after: Kernel, location: float | Array, width: float | Array = 1.0, active_dim: int = 0
) -> Kernel:
    """The kernel of a process that changes at one point from one function to a second one (Lloyd et al. 2014).

    The process is ``f(x) = (1 - s(x)) f_1(x) + s(x) f_2(x)`` with independent ``f_1`` and ``f_2``. The kernel is a sum
    of two products with a :class:`Gate`. ``blocks`` can give each of the two terms its own inducing variables.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import RBF, ChangePoint, Matern12
        >>> kernel = ChangePoint(RBF(lengthscale=2.0), 4.0 * Matern12(), location=1.0, width=0.1)
        >>> kernel.diag(np.array([[0.0], [3.0]], np.float32)).round(2)
        Array([1., 4.], dtype=float32)

    Args:
        before: kernel of the function at inputs whose column is below ``location``.
        after: kernel of the function at inputs whose column is above ``location``.
        location: the change point. For this argument and the next two, see :class:`Gate`.
        width: width of the transition from one function to the other.
        active_dim: number of the column.

    Raises:
        TypeError: if ``before`` or ``after`` is not a kernel.
        ValueError: see :class:`Gate`.
    """
    checks.instance("before", before, Kernel, "a kernel")
    checks.instance("after", after, Kernel, "a kernel")
    closes, opens = Gate(location, width, active_dim, closing=True), Gate(location, width, active_dim)
    return before * closes + after * opens


class Gibbs(Pointwise):
    """An RBF whose lengthscale depends on the input (Gibbs 1997; Rasmussen and Williams 2006, eq. 4.32).

    The kernel is
    ``variance * prod_i sqrt(2 l_i l'_i / (l_i^2 + l'_i^2)) * exp(-sum_i (x_i - x'_i)^2 / (l_i^2 + l'_i^2))`` with
    ``l = lengthscale(x)`` and ``l' = lengthscale(x')``.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from gpzoo.kernels import Gibbs
        >>> def rougher(x, near, far):  # from one lengthscale to another on the way from 0 to 1
        ...     return near + (far - near) * jnp.clip(x, 0.0, 1.0)
        >>> kernel, X = Gibbs(rougher, near=1.0, far=0.1), np.array([[0.0], [0.1], [0.9], [1.0]], np.float32)
        >>> np.asarray(kernel(X)).round(2)[[0, 2], [1, 3]]
        array([0.99, 0.73], dtype=float32)

    Args:
        lengthscale: function ``lengthscale(x, **hyperparameters)`` of one input ``[d]`` (the active columns). It
            returns a positive number, or one for each column. Define it once, as for :class:`Pointwise`.
        variance: see :class:`RBF`.
        active_dims: the input columns that the kernel uses, as numbers or as a bool for each column; all if ``None``.
        **hyperparameters: arguments of ``lengthscale``, as numbers; each may have an axis for one kernel per output.

    Raises:
        TypeError: as for :class:`Pointwise`.
        ValueError: as for :class:`Pointwise`, and if ``variance`` or the lengthscale at an input is not positive
            (checked only outside ``jit``). Under a transformation such as ``jit``, negative values become NaN.
    """

    def __init__(
        self,
        lengthscale: Callable[..., Array],
        /,
        variance: float | Array = 1.0,
        *,
        active_dims: Iterable[int] | None = None,
        **hyperparameters: float | Array,
    ) -> None:
        numbers: Any = {"variance": checks.positive("variance", variance), **hyperparameters}
        super().__init__(lengthscale, active_dims=active_dims, **numbers)

    def evaluate(self, x: Float[Array, " d"], z: Float[Array, " d"]) -> Array:
        """The covariance of two points."""
        a, b = (checks.positive("lengthscale", self._lengthscale(each)) for each in (x, z))
        squares = jnp.square(a) + jnp.square(b)
        exponent = jnp.sum(jnp.square(x - z) / squares)
        return self.hyperparameters["variance"] * jnp.prod(jnp.sqrt(2 * a * b / squares)) * jnp.exp(-exponent)

    def cross(self, X: Float[Array, "N d"], Z: Float[Array, "M d"]) -> Float[Array, "N M"]:
        """The covariance of all pairs of rows."""
        self._check_rows(X)
        self._check_rows(Z)
        return super().cross(X, Z)

    def variances(self, X: Float[Array, "N d"]) -> Float[Array, " N"]:
        """See :meth:`Kernel.variances`."""
        self._check_rows(X)
        return super().variances(X)

    def _lengthscale(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        own = {name: value for name, value in self.hyperparameters.items() if name != "variance"}
        return jnp.broadcast_to(self.function(x, **own), x.shape)

    def _check_rows(self, X: Float[Array, "N d"]) -> None:
        """Check the lengthscales at all rows now: inside ``vmap`` over pairs, their values are not known."""
        X = X if self.active_dims is None else select_columns("Gibbs", X, self.active_dims)
        checks.positive("lengthscale", jax.vmap(self._lengthscale)(X))
