"""Kernels of processes in time: Brownian motion, and an oscillator driven by noise."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from gpzoo import _checks as checks
from gpzoo._pytree import static
from gpzoo.kernels.elementary import Elementary
from gpzoo.linalg.state_space import States, differences, rotation

#: Below this square of an angle, a series replaces functions of the angle.
_SMALL = 0.01


class BrownianMotion(Elementary):
    """The kernel of Brownian motion, ``variance * min(x - origin, x' - origin)``: a random walk that starts at 0.

    The process is also called the Wiener process. Before the origin, the function is 0.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import BrownianMotion
        >>> BrownianMotion(2.0)(np.array([[0.0], [1.0], [3.0]], np.float32))
        Array([[0., 0., 0.],
               [0., 2., 2.],
               [0., 2., 6.]], dtype=float32)

    Args:
        variance: growth of the variance per unit of the column; scalar, or ``[D]`` for one kernel per output.
        origin: start of the walk; scalar or ``[D]``, in the units of the column.
        active_dim: number of the column.

    Raises:
        TypeError: if a hyperparameter is not numeric, or ``active_dim`` is not an integer.
        ValueError: if ``variance`` is not positive (checked only outside ``jit``).
    """

    variance: Float[Array, "*D"]
    origin: Float[Array, "*D"]
    active_dims: tuple[int, ...] | None = static()

    def __init__(self, variance: float | Array = 1.0, origin: float | Array = 0.0, active_dim: int = 0) -> None:
        self.variance, self.origin = checks.positive("variance", variance), checks.floating("origin", origin)
        self.active_dims = (checks.whole("active_dim", active_dim, 0),)
        self.check_fields()

    def cross(self, X: Float[Array, "N d"], Z: Float[Array, "M d"]) -> Float[Array, "N M"]:
        """``variance`` times the shorter of the two distances from the origin, for all pairs of rows."""
        return self.variance * jnp.minimum(self._since(X)[:, None], self._since(Z))

    def variances(self, X: Float[Array, "N d"]) -> Float[Array, " N"]:
        """``variance`` times the distance from the origin."""
        return self.variance * self._since(X)

    def least_variances(self, X: Float[Array, "N d"]) -> Float[Array, " N"]:
        """The largest variance, so that rows before or near the origin do not count as lost in rounding."""
        return jnp.broadcast_to(jnp.max(self.variances(X)), len(X))

    def states(self, X: Float[Array, "N 1"]) -> States:
        """One state: the value, whose variance grows from row to row."""
        return States.of(jnp.ones(1, X.dtype), jnp.ones((1, 1), X.dtype), self.variances(X)[:, None, None], len(X))

    def _since(self, X: Float[Array, "N d"]) -> Float[Array, " N"]:
        return jnp.maximum(self.active_columns(X)[:, 0] - self.origin, 0)


class SHO(Elementary):
    """The kernel of a damped harmonic oscillator driven by white noise (Foreman-Mackey et al. 2017, eq. 23).

    With ``a = pi frequency |x - x'| / quality`` and ``b^2 = 4 quality^2 - 1``, the covariance is ``variance * exp(-a)
    (cos(b a) + sin(b a) / b)``. A quality of 1/2 is critical damping. With a lower quality, the cosine and sine become
    hyperbolic functions. The process is differentiable once.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import SHO
        >>> kernel = SHO(frequency=1.0, quality=10.0)  # dies down in some three turns
        >>> np.asarray(kernel(np.zeros((1, 1), np.float32), np.array([[0.0], [0.5], [1.0]], np.float32))).round(2)
        array([[ 1.  , -0.85,  0.73]], dtype=float32)

    Args:
        variance: scalar, or ``[D]`` for one kernel per output.
        frequency: frequency of the oscillator without damping, scalar or ``[D]``, in turns per unit of the column.
        quality: scalar or ``[D]``; about 3 times the number of turns in which the oscillation decays by a factor of e.
        active_dim: number of the column.

    Raises:
        TypeError: if a hyperparameter is not numeric, or ``active_dim`` is not an integer.
        ValueError: if a hyperparameter is not positive (checked only outside ``jit``).
    """

    variance: Float[Array, "*D"]
    frequency: Float[Array, "*D"]
    quality: Float[Array, "*D"]
    active_dims: tuple[int, ...] | None = static()

    def __init__(
        self,
        variance: float | Array = 1.0,
        frequency: float | Array = 1.0,
        quality: float | Array = 1.0,
        active_dim: int = 0,
    ) -> None:
        self.variance, self.frequency = checks.positive("variance", variance), checks.positive("frequency", frequency)
        self.quality = checks.positive("quality", quality)
        self.active_dims = (checks.whole("active_dim", active_dim, 0),)
        self.check_fields()

    def cross(self, X: Float[Array, "N d"], Z: Float[Array, "M d"]) -> Float[Array, "N M"]:
        """The covariance for all pairs of rows."""
        X, Z = self.active_columns(X)[:, 0], self.active_columns(Z)[:, 0]
        cosine, sine = self._waves(jnp.abs(X[:, None] - Z))
        return self.variance * (cosine + sine)

    def variances(self, X: Float[Array, "N d"]) -> Float[Array, " N"]:
        """``variance``, ``[N]``."""
        return jnp.broadcast_to(jnp.asarray(self.variance, X.dtype), len(self.active_columns(X)))

    def states(self, X: Float[Array, "N 1"]) -> States:
        """Two states: the value, and its derivative divided by the frequency in radians."""
        cosine, sine = self._waves(differences(self.active_columns(X)[:, 0]))
        unequal = sine[:, None, None] * jnp.array([[1.0, 0.0], [0.0, -1.0]], X.dtype)
        A = rotation(cosine, 2 * self.quality * sine) + unequal
        return States.of(jnp.array([1.0, 0.0], X.dtype), A, self.variance * jnp.eye(2, dtype=X.dtype), len(X))

    def _waves(self, steps: Float[Array, "*shape"]) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
        """``exp(-a) cos(b a)`` and ``exp(-a) sin(b a) / b``, for ``b`` real, zero or imaginary."""
        a, square = jnp.pi * self.frequency * steps / self.quality, 4 * jnp.square(self.quality) - 1
        w = square * a * a
        small, real = jnp.abs(w) < _SMALL, square > 0
        # The values and derivatives of branches that are not taken must not be NaN either.
        angle, w = jnp.sqrt(jnp.where(small, 1, jnp.abs(w))), jnp.where(small, w, 0)
        series = 1 - w / 2 * (1 - w / 12 * (1 - w / 30)), 1 - w / 6 * (1 - w / 20 * (1 - w / 42))
        # The slow exponent is (r - 1) a for r = sqrt(1 - 4 quality^2): a difference would lose its digits.
        r = jnp.sqrt(jnp.where(small | real, 1, -square))
        slow, fast = jnp.exp(-4 * jnp.square(self.quality) / (1 + r) * a), jnp.exp(-(1 + r) * a)
        waves = jnp.exp(-a) * jnp.cos(angle), jnp.exp(-a) * a * jnp.sin(angle) / angle
        growths = (slow + fast) / 2, a * (slow - fast) / (2 * angle)
        near = jnp.exp(-a) * series[0], jnp.exp(-a) * a * series[1]
        cosine, sine = (jnp.where(small, near[i], jnp.where(real, waves[i], growths[i])) for i in range(2))
        return cosine, sine
