"""Kernels of dot products: linear kernels, polynomial kernels, and networks of infinite width."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array, random
from jaxtyping import Float, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo._pytree import static
from gpzoo.kernels.elementary import Elementary, columns
from gpzoo.kernels.stationary import Lengthscaled, inner, root, squared_distance
from gpzoo.linalg.operators import matmul
from gpzoo.linalg.state_space import States


class Linear(Lengthscaled):
    """``variance * sum_i x_i x'_i / lengthscale_i^2``: linear functions through the origin with independent slopes.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import Linear
        >>> Linear(variance=2.0)(np.array([[1.0, 0.0], [1.0, 3.0]], np.float32))
        Array([[ 2.,  2.],
               [ 2., 20.]], dtype=float32)

    Args:
        variance: scalar, or ``[D]`` for one kernel per output; in squared units of the function.
        lengthscale: scalar or one per (active) column ``[d]``, in the units of the inputs, with a leading ``D`` for one
            kernel per output. Slope ``i`` has prior variance ``variance / lengthscale_i^2``. Data cannot identify
            ``variance`` and a scalar lengthscale separately, so learn only one of them.
        active_dims: the input columns that the kernel uses, as numbers or as a bool for each column; all if ``None``.

    Raises:
        TypeError: if a hyperparameter is not numeric or ``active_dims`` is not a sequence of integers.
        ValueError: if ``variance`` or ``lengthscale`` is not positive (checked only outside ``jit``), or their shapes
            do not fit each other; on evaluation, if ``active_dims`` or ``lengthscale`` do not fit the columns of the
            inputs.
    """

    def cross(self, X: Float[Array, "N d"], Z: Float[Array, "M d"]) -> Float[Array, "N M"]:
        """Covariances of all pairs of rows, by one matrix product."""
        return self.variance * inner(self.scaled(X), self.scaled(Z))

    def states(self, X: Float[Array, "N 1"]) -> States:
        """One state: the slope, which does not change from row to row."""
        one = jnp.ones((1, 1), X.dtype)
        return States.of(self.scaled(X), one, self.variance * one, len(X))

    def gram(self, X: Float[Array, "N d"]) -> Float[Array, "N N"]:
        """The Gram matrix, exactly symmetric."""
        return self.variance * inner(self.scaled(X))

    def variances(self, X: Float[Array, "N d"]) -> Float[Array, " N"]:
        """Variances from the norms of the rows."""
        return self.variance * jnp.sum(jnp.square(self.scaled(X)), -1)

    def prior_functions(
        self, X: Float[Array, "N d"], key: PRNGKeyArray, num_functions: int, num_features: int
    ) -> Float[Array, "N {num_functions}"]:
        """Linear functions with random slopes."""
        scaled = self.scaled(X)
        slopes = random.normal(key, (scaled.shape[1], num_functions), X.dtype)
        return jnp.sqrt(self.variance) * matmul(scaled, slopes)


class Polynomial(Elementary):
    """The polynomial kernel, ``(variance * x . x' + offset)^degree`` (Rasmussen and Williams 2006, section 4.2.2).

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import Polynomial
        >>> Polynomial(degree=2)(np.array([[1.0], [2.0]], np.float32))
        Array([[ 4.,  9.],
               [ 9., 25.]], dtype=float32)

    Args:
        degree: a positive integer, static.
        variance: scalar or ``[D]``. With ``degree=1``, it is the prior variance of the slopes.
        offset: scalar or ``[D]``. With ``degree=1``, it is the prior variance of the constant. Use 0 for a homogeneous
            polynomial.
        active_dims: the input columns that the kernel uses, as numbers or as a bool for each column; all if ``None``.

    Raises:
        TypeError: if ``degree`` is not an integer, and as for :class:`Linear`.
        ValueError: if ``degree`` is less than 1; outside ``jit``, if ``variance`` is not positive or ``offset`` is
            negative; and as for :class:`Linear`.
    """

    variance: Float[Array, "*D"]
    offset: Float[Array, "*D"]
    degree: int = static()
    active_dims: tuple[int, ...] | None = static()

    def __init__(
        self,
        degree: int = 2,
        variance: float | Array = 1.0,
        offset: float | Array = 1.0,
        active_dims: Iterable[int] | None = None,
    ) -> None:
        self.degree = _integer("degree", degree)
        hint = "; Constant is the kernel of degree 0"
        checks.must(self.degree >= 1, "degree", "be at least 1", str(self.degree), hint)
        self.variance = checks.positive("variance", variance)
        self.offset = checks.positive("offset", offset, or_zero=True)
        self.active_dims = columns(active_dims)
        self.check_fields()

    def _power(self, product: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return (self.variance * product + self.offset) ** self.degree

    def cross(self, X: Float[Array, "N d"], Z: Float[Array, "M d"]) -> Float[Array, "N M"]:
        """Covariances of all pairs of rows, by one matrix product."""
        return self._power(inner(self.active_columns(X), self.active_columns(Z)))

    def gram(self, X: Float[Array, "N d"]) -> Float[Array, "N N"]:
        """The Gram matrix, exactly symmetric."""
        return self._power(inner(self.active_columns(X)))

    def variances(self, X: Float[Array, "N d"]) -> Float[Array, " N"]:
        """Variances from the norms of the rows."""
        return self._power(jnp.sum(jnp.square(self.active_columns(X)), -1))


class ArcCosine(Elementary):
    """The kernel of a network with one infinitely wide layer (Cho and Saul 2009, eq. 3).

    The kernel is ``variance / pi * |a|^n |a'|^n J_n(theta)``. The input to the layer is
    ``a = (sqrt(weight_variance) * x, sqrt(bias_variance))``, and ``theta`` is the angle between ``a`` and ``a'``. The
    order ``n`` sets the activation of the units: step (0), rectifier (1) or squared rectifier (2). The ``J_n`` are

    * ``J_0 = pi - theta``
    * ``J_1 = sin(theta) + (pi - theta) cos(theta)``
    * ``J_2 = 3 sin(theta) cos(theta) + (pi - theta) (1 + 2 cos(theta)^2)``

    Order 0 has a kink at coincident inputs. There, gpzoo sets its derivatives with respect to inputs to 0.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import ArcCosine
        >>> np.asarray(ArcCosine(order=1)(np.array([[-1.0], [0.0], [1.0]], np.float32))).round(2)
        array([[2.  , 1.07, 0.64],
               [1.07, 1.  , 1.07],
               [0.64, 1.07, 2.  ]], dtype=float32)

    Args:
        order: the activation, 0, 1 or 2; static.
        variance: scalar, or ``[D]`` for one kernel per output.
        weight_variance: prior variance of the first layer's weights: scalar or one per (active) column ``[d]``, with a
            leading ``D`` for one kernel per output.
        bias_variance: prior variance of the first layer's biases, scalar or ``[D]``.
        active_dims: the input columns that the kernel uses, as numbers or as a bool for each column; all if ``None``.

    Raises:
        TypeError: if ``order`` is not an integer, and as for :class:`Linear`.
        ValueError: if ``order`` is not 0, 1 or 2, a variance is not positive (checked only outside ``jit``), or the
            shapes of the variances do not fit each other; on evaluation, if ``active_dims`` or ``weight_variance`` do
            not fit the columns of the inputs.
    """

    variance: Float[Array, "*D"]
    weight_variance: Float[Array, "..."]
    bias_variance: Float[Array, "*D"]
    order: int = static()
    active_dims: tuple[int, ...] | None = static()
    per_column: ClassVar[tuple[str, ...]] = ("weight_variance",)

    def __init__(
        self,
        order: int = 1,
        variance: float | Array = 1.0,
        weight_variance: float | Array = 1.0,
        bias_variance: float | Array = 1.0,
        active_dims: Iterable[int] | None = None,
    ) -> None:
        self.order = _integer("order", order)
        wanted = "be 0 (step), 1 (rectifier) or 2 (squared rectifier)"
        checks.must(self.order in (0, 1, 2), "order", wanted, str(self.order))
        self.variance = checks.positive("variance", variance)
        self.weight_variance = checks.positive("weight_variance", weight_variance)
        self.bias_variance = checks.positive("bias_variance", bias_variance)
        self.active_dims = columns(active_dims)
        self.check_fields()

    def _layer(self, X: Float[Array, "N d"]) -> tuple[Float[Array, "N _"], Float[Array, " N"]]:
        """Directions ``a / |a|`` and norms ``|a|``."""
        weighted = jnp.sqrt(self.weight_variance) * self.active_columns(X)
        bias = jnp.broadcast_to(jnp.sqrt(jnp.asarray(self.bias_variance, X.dtype)), (X.shape[0], 1))
        a = jnp.concatenate([weighted, bias], axis=-1)
        norm = jnp.sqrt(jnp.sum(jnp.square(a), -1))
        return a / norm[:, None], norm

    def _combine(self, square: Float[Array, "*shape"], norms: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        # The angle comes from the chord between directions. The arc cosine of their dot product would lose half of the
        # digits of small angles, and its derivative is infinite at angle 0.
        return self.variance / jnp.pi * norms**self.order * (_J0, _J1, _J2)[self.order](square / 4)

    def cross(self, X: Float[Array, "N d"], Z: Float[Array, "M d"]) -> Float[Array, "N M"]:
        """Covariances of all pairs of rows, by one matrix product."""
        (a, n), (b, m) = self._layer(X), self._layer(Z)
        return self._combine(squared_distance(a, b), n[:, None] * m[None, :])

    def gram(self, X: Float[Array, "N d"]) -> Float[Array, "N N"]:
        """The Gram matrix, exactly symmetric."""
        a, n = self._layer(X)
        return self._combine(squared_distance(a), n[:, None] * n[None, :])

    def variances(self, X: Float[Array, "N d"]) -> Float[Array, " N"]:
        """Variances from the norms of the rows."""
        _, n = self._layer(X)
        return self._combine(jnp.zeros_like(n), n * n)


# The angular functions in terms of q = sin(theta / 2)^2 = chord^2 / 4, so that cos(theta) = 1 - 2 q.
def _J0(q: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    # If the compiler contracts only one of two operations, the directions of equal inputs may differ by rounding. Their
    # angle must still be 0.
    q = jnp.where(q > (4 * float(jnp.finfo(q.dtype).eps)) ** 2, q, 0)
    return 2 * jnp.arctan2(root(1 - q), root(q))


@jax.custom_jvp
def _J1(q: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return 2 * root(q) * root(1 - q) + _J0(q) * (1 - 2 * q)


@_J1.defjvp
def _J1_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (q,), (tangent,) = primals, tangents
    return _J1(q), -2 * _J0(q) * tangent


@jax.custom_jvp
def _J2(q: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    cosine = 1 - 2 * q
    return 6 * root(q) * root(1 - q) * cosine + _J0(q) * (1 + 2 * cosine * cosine)


@_J2.defjvp
def _J2_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (q,), (tangent,) = primals, tangents
    return _J2(q), -8 * _J1(q) * tangent


def _integer(name: str, value: int) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer known before compilation, got {value!r}.") from None
