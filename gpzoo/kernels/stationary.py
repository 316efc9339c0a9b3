"""Stationary kernels: functions of the scaled distance between two inputs."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array, random
from jaxtyping import Float, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo._pytree import static
from gpzoo.kernels.elementary import Elementary, columns
from gpzoo.linalg.operators import matmul, total
from gpzoo.linalg.state_space import States, differences

#: Up to this many columns, squared distances are summed difference by difference instead of by a matrix product.
DIRECT_COLUMNS = 8

#: The same limit for cross-covariances of kernels that are smooth at distance zero. Rounding errors do not harm these.
DIRECT_COLUMNS_SMOOTH = 2


def inner(X: Float[Array, "N d"], Z: Float[Array, "M d"] | None = None) -> Float[Array, "N M"]:
    """``x . z`` for all pairs of rows; with ``Z = None``, for all pairs of rows of ``X``, and exactly symmetric."""
    if Z is not None:
        return matmul(X, Z.T)
    product = matmul(X, X.T)
    return (product + product.T) / 2


def squared_distance(
    X: Float[Array, "N d"], Z: Float[Array, "M d"] | None = None, *, direct_columns: int = DIRECT_COLUMNS
) -> Float[Array, "N M"]:
    """``|x - z|^2`` for all pairs of rows, never negative.

    With up to ``direct_columns`` columns, the function computes differences and squares them. The result is then
    accurate to rounding at every distance. With more columns, the function centres inputs on the mean of ``X`` and
    forms one matrix product. This is several times faster, but the absolute error is the dtype's rounding times the
    squared spread of the inputs. The derivatives of all orders are correct, even if two rows coincide.

    Args:
        X: rows.
        Z: a second set of rows; or ``None`` for the distances between the rows of ``X``. With ``None``, the result is
            exactly symmetric, and its diagonal is exactly zero.
        direct_columns: largest number of columns for which the function squares differences.
    """
    direct = X.shape[-1] <= direct_columns
    if Z is not None:
        return _squared_distance(*_centred(X, Z), direct)
    return _squared_distance_within(_centred(X, X)[0], direct)


# The following functions take centred inputs.
@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _squared_distance(X: Float[Array, "N d"], Z: Float[Array, "M d"], direct: bool) -> Float[Array, "N M"]:
    if direct:
        # Larger minus smaller, not a plain difference: the compiler may contract a plain difference with the scaling of
        # one of the two inputs. Equal inputs would then not be at distance 0, and distances would not be symmetric.
        pairs = ((X[:, i, None], Z[None, :, i]) for i in range(X.shape[-1]))
        return sum((jnp.square(jnp.maximum(x, z) - jnp.minimum(x, z)) for x, z in pairs), jnp.zeros((), X.dtype))
    # Half the norms, because XLA on CPU writes out a matrix for every constant that a product is combined with. XLA
    # merges only the last of these operations with the kernel's function of the square. Doubling and halving are exact.
    norms = jnp.sum(X * X, -1)[:, None] / 2 + jnp.sum(Z * Z, -1)[None, :] / 2
    return 2 * jnp.maximum(norms - matmul(X, Z.T), 0)


def _squared_distance_jvp(
    direct: bool, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    # Both cases use matrix products: the derivative of the sum of differences would recompute the kernel for every
    # column. Separate sums over rows and columns would recompute it too, so these sums are one more column of the
    # factors. There is no clipping at zero, because clipping would stop derivatives at coincident rows.
    (X, Z), (dX, dZ) = primals, tangents
    tangent = jnp.zeros((X.shape[0], Z.shape[0]), X.dtype)
    if not isinstance(dX, jax.custom_derivatives.SymbolicZero):
        tangent += matmul(2 * _beside(jnp.sum(X * dX, -1), dX), _beside(jnp.ones_like(Z[:, 0]), -Z).T)
    if not isinstance(dZ, jax.custom_derivatives.SymbolicZero):
        tangent += matmul(_beside(jnp.ones_like(X[:, 0]), -X), 2 * _beside(jnp.sum(Z * dZ, -1), dZ).T)
    return _squared_distance(*primals, direct), tangent


_squared_distance.defjvp(_squared_distance_jvp, symbolic_zeros=True)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _squared_distance_within(X: Float[Array, "N d"], direct: bool) -> Float[Array, "N N"]:
    square = _squared_distance(X, X, direct)
    if not direct:
        square = (square + square.T) / 2
    return jnp.where(jnp.eye(X.shape[0], dtype=bool), 0, square)


@_squared_distance_within.defjvp
def _squared_distance_within_jvp(direct: bool, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # The derivative by rows is the transposed derivative by columns: one product gives both.
    (X,), (dX,) = primals, tangents
    half = 2 * matmul(_beside(jnp.sum(X * dX, -1), dX), _beside(jnp.ones_like(X[:, 0]), -X).T)
    return _squared_distance_within(*primals, direct), half + half.T


def _centred(X: Float[Array, "N d"], Z: Float[Array, "M d"]) -> tuple[Float[Array, "N d"], Float[Array, "M d"]]:
    # The mean loses its last bit, because the compiler may contract a plain mean with only one of the two subtractions.
    # Equal rows would then not be at distance 0. Rows are divided first, because their sum may overflow.
    rows, kind = jax.lax.stop_gradient(X), jnp.finfo(X.dtype)
    centre = jax.lax.reduce_precision(jnp.sum(rows / len(X), axis=0), kind.nexp, kind.nmant - 1)
    return X - centre, Z - centre


def _beside(column: Float[Array, " N"], X: Float[Array, "N d"]) -> Float[Array, "N d+1"]:
    return jnp.concatenate([column[:, None], X], axis=1)


@jax.custom_jvp
def root(square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``sqrt(square)``; if ``square`` is 0, or negative by rounding, the value and its derivatives are 0."""
    return jnp.sqrt(jnp.maximum(square, 0))


@root.defjvp
def _root_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (square,), (tangent,) = primals, tangents
    r = root(square)
    positive = r > float(jnp.finfo(r.dtype).tiny)
    # A maximum in place of the inner choice would not do: its own derivative would be divided by zero twice.
    return r, jnp.where(positive, tangent / (2 * jnp.where(positive, r, 1)), 0)


class Lengthscaled(Elementary):
    """A kernel with a variance, and with lengthscales of its active columns."""

    variance: Float[Array, "*D"]
    lengthscale: Float[Array, "..."]
    active_dims: tuple[int, ...] | None = static()
    per_column: ClassVar[tuple[str, ...]] = ("lengthscale",)

    def __init__(
        self,
        variance: float | Array = 1.0,
        lengthscale: float | Array = 1.0,
        active_dims: Iterable[int] | None = None,
    ) -> None:
        self.variance = checks.positive("variance", variance)
        self.lengthscale = checks.positive("lengthscale", lengthscale)
        self.active_dims = columns(active_dims)
        self.check_fields()

    def scaled(self, X: Float[Array, "N d"]) -> Float[Array, "N _"]:
        """The active columns divided by their lengthscales."""
        return self.active_columns(X) / self.lengthscale

    def _normals(self, key: PRNGKeyArray, num: int, num_columns: int, dtype: Any) -> Float[Array, "{num} _"]:
        """Standard normals divided by the lengthscale, in the active columns: the spectral density of an RBF."""
        active = num_columns if self.active_dims is None else len(self.active_dims)
        return random.normal(key, (num, active), dtype) / self.lengthscale

    def _on_columns(self, omega: Float[Array, "F _"], num_columns: int) -> Float[Array, "F {num_columns}"]:
        """Frequencies of all columns, from the frequencies of the active columns; other columns have frequency 0."""
        if self.active_dims is None:
            return omega
        return jnp.zeros((len(omega), num_columns), omega.dtype).at[:, jnp.asarray(self.active_dims)].set(omega)

    def _of_frequencies(self, omega: Float[Array, "F d"]) -> tuple[Float[Array, " F"], Float[Array, ""]]:
        """``sum_i (lengthscale_i omega_i)^2``, and the product of the lengthscales."""
        some = f"{type(self).__name__} of some columns has no spectral density in all of them: leave active_dims out."
        checks.refuse(self.active_dims not in (None, tuple(range(omega.shape[-1]))), some, TypeError)
        self.active_columns(omega)  # for its refusals
        scales = jnp.broadcast_to(jnp.asarray(self.lengthscale, omega.dtype), omega.shape[-1:])
        return jnp.sum(jnp.square(scales * omega), axis=-1), jnp.prod(scales)


class Stationary(Lengthscaled):
    """The base class of stationary kernels: ``k(x, x') = variance * profile(sum_i (x_i - x'_i)^2 / lengthscale_i^2)``.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import Stationary
        >>> class Cauchy(Stationary):
        ...     def profile(self, squared_distance):
        ...         return 1 / (1 + squared_distance)
        >>> Cauchy(variance=2.0)(np.array([[0.0], [1.0]], np.float32))
        Array([[2., 1.],
               [1., 2.]], dtype=float32)

    Args:
        variance: scalar, or ``[D]`` for one kernel per output; in squared units of the function.
        lengthscale: scalar or one per (active) column ``[d]``, in the units of the inputs; with a leading ``D`` for one
            kernel per output.
        active_dims: the input columns that the kernel uses, as numbers or as a bool for each column; all if ``None``.

    Raises:
        TypeError: if a hyperparameter is not numeric or ``active_dims`` is not a sequence of integers.
        ValueError: if ``variance`` or ``lengthscale`` is not positive (checked only outside ``jit``), or their shapes
            do not fit each other; on evaluation, if ``active_dims`` or ``lengthscale`` do not fit the columns of the
            inputs.
    """

    #: Up to this many columns, cross-covariances square the differences themselves.
    direct_columns: ClassVar[int] = DIRECT_COLUMNS

    def _placed(
        self, X: Float[Array, "N d"], Z: Float[Array, "M d"]
    ) -> tuple[Float[Array, "N _"], Float[Array, "M _"]]:
        """The points between which :meth:`profile` takes distances."""
        if type(self).scaled is not Lengthscaled.scaled:
            return _centred(self.scaled(X), self.scaled(Z))
        # Centred before they are scaled: large inputs, such as time stamps in seconds, lose digits in the division.
        X, Z = _centred(X, Z)
        return self.scaled(X), self.scaled(Z)

    @abstractmethod
    def profile(self, square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The correlation at scaled squared distances ``square``; it is 1 at distance 0."""
        checks.unwritten(self, "profile(square)")

    def cross(self, X: Float[Array, "N d"], Z: Float[Array, "M d"]) -> Float[Array, "N M"]:
        """``variance`` times the profile of the distances between all pairs of rows."""
        X, Z = self._placed(X, Z)
        return self.variance * self.profile(_squared_distance(X, Z, X.shape[-1] <= self.direct_columns))

    def gram(self, X: Float[Array, "N d"]) -> Float[Array, "N N"]:
        """The Gram matrix, exactly symmetric, with ``variance`` on the diagonal."""
        X, _ = self._placed(X, X)
        return self.variance * self.profile(_squared_distance_within(X, X.shape[-1] <= DIRECT_COLUMNS))

    def variances(self, X: Float[Array, "N d"]) -> Float[Array, " N"]:
        """``variance``, ``[N]``."""
        self.active_columns(X)
        return jnp.broadcast_to(jnp.asarray(self.variance, X.dtype), X.shape[:1])


class RBF(Stationary):
    """``variance * exp(-r^2 / 2)``, the squared exponential (Rasmussen and Williams 2006, eq. 4.9).

    ``r`` is the scaled distance, ``r^2 = sum_i (x_i - x'_i)^2 / lengthscale_i^2``. The arguments are the same as for
    :class:`Stationary`.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import RBF
        >>> np.asarray(RBF(variance=2.0, lengthscale=0.5)(np.array([[0.0], [0.5]], np.float32))).round(2)
        array([[2.  , 1.21],
               [1.21, 2.  ]], dtype=float32)
    """

    direct_columns = DIRECT_COLUMNS_SMOOTH

    def profile(self, square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """``exp(-square / 2)``."""
        return jnp.exp(-0.5 * square)

    def frequencies(
        self, key: PRNGKeyArray, num: int, num_columns: int, dtype: Any
    ) -> Float[Array, "{num} {num_columns}"]:
        """Normal frequencies."""
        return self._on_columns(self._normals(key, num, num_columns, dtype), num_columns)

    def density(self, omega: Float[Array, "F d"]) -> Float[Array, " F"]:
        """``variance * prod_i sqrt(2 pi) lengthscale_i * exp(-|lengthscale omega|^2 / 2)``."""
        square, volume = self._of_frequencies(omega)
        return self.variance * (2 * jnp.pi) ** (omega.shape[-1] / 2) * volume * jnp.exp(-square / 2)


class Matern(Stationary):
    """A Matérn kernel, whose spectral density is a Student's t density."""

    #: Twice the smoothness of the kernel.
    degrees: ClassVar[int]

    def frequencies(
        self, key: PRNGKeyArray, num: int, num_columns: int, dtype: Any
    ) -> Float[Array, "{num} {num_columns}"]:
        """Frequencies from a Student's t distribution with :attr:`degrees` degrees of freedom."""
        key_normal, key_chi = random.split(key)
        chi = jnp.sum(jnp.square(random.normal(key_chi, (num, self.degrees), dtype)), -1, keepdims=True)
        # The bound keeps phases finite with one degree of freedom; it is active about once in 1 / eps draws.
        chi = jnp.maximum(chi / self.degrees, float(jnp.finfo(dtype).eps) ** 2)
        return self._on_columns(self._normals(key_normal, num, num_columns, dtype) / jnp.sqrt(chi), num_columns)

    def _decaying(self, X: Float[Array, "N 1"], P: Any, powers: Sequence[Any]) -> States:
        """``A = exp(-s) sum_i s^i A_i``, ``s = sqrt(degrees) (x_n - x_(n-1)) / lengthscale``, and ``variance P``."""
        step = math.sqrt(self.degrees) * self.scaled(differences(X))[:, :1, None]
        A = jnp.exp(-step) * total(step**i * jnp.asarray(power, X.dtype) for i, power in enumerate(powers))
        P = self.variance * jnp.asarray(P, X.dtype)
        return States.of(jnp.eye(len(P), dtype=X.dtype)[0], A, P, len(X))

    def density(self, omega: Float[Array, "F d"]) -> Float[Array, " F"]:
        """Student's t density with :attr:`degrees` degrees of freedom (Rasmussen and Williams 2006, eq. 4.15)."""
        p, d = self.degrees, omega.shape[-1]
        square, volume = self._of_frequencies(omega)
        constant = (4 * math.pi) ** (d / 2) * math.gamma((p + d) / 2) / math.gamma(p / 2) * p ** (p / 2)
        return self.variance * constant * volume * (p + square) ** (-(p + d) / 2)


class Matern12(Matern):
    """``variance * exp(-r)``, the exponential kernel (Rasmussen and Williams 2006, eq. 4.18).

    The arguments are the same as for :class:`Stationary`. ``r`` is the scaled distance, as for :class:`RBF`. The kernel
    has a kink at coincident inputs. There, gpzoo sets its derivatives of all orders with respect to inputs to 0.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import Matern12
        >>> np.asarray(Matern12()(np.zeros((1, 1), np.float32), np.array([[0.0], [0.5], [1.0]], np.float32))).round(3)
        array([[1.   , 0.607, 0.368]], dtype=float32)
    """

    degrees = 1

    def states(self, X: Float[Array, "N 1"]) -> States:
        """One state: the value, whose correlation with later values decays exponentially."""
        return self._decaying(X, [[1.0]], [[[1.0]]])

    def profile(self, square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """``exp(-sqrt(square))``."""
        return jnp.exp(-root(square))


class Matern32(Matern):
    """``variance * (1 + sqrt(3) r) exp(-sqrt(3) r)`` (Rasmussen and Williams 2006, eq. 4.17).

    The arguments are the same as for :class:`Stationary`. ``r`` is the scaled distance, as for :class:`RBF`.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import Matern32
        >>> kernel = Matern32(lengthscale=[1.0, 10.0])
        >>> np.asarray(kernel(np.zeros((1, 2), np.float32), np.eye(2, dtype=np.float32))).round(3)
        array([[0.483, 0.987]], dtype=float32)
    """

    degrees = 3

    def states(self, X: Float[Array, "N 1"]) -> States:
        """Two states: the value, and its derivative divided by the rate ``sqrt(3) / lengthscale`` of the decay."""
        return self._decaying(X, jnp.eye(2), [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [-1.0, -1.0]]])

    def profile(self, square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """``(1 + sqrt(3 square)) exp(-sqrt(3 square))``."""
        return _matern32(square)


class Matern52(Matern):
    """``variance * (1 + sqrt(5) r + 5 r^2 / 3) exp(-sqrt(5) r)`` (Rasmussen and Williams 2006, eq. 4.17).

    The arguments are the same as for :class:`Stationary`. ``r`` is the scaled distance, as for :class:`RBF`.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import Matern52
        >>> kernel = Matern52(active_dims=(1,))
        >>> np.asarray(kernel(np.zeros((1, 2), np.float32), np.eye(2, dtype=np.float32))).round(3)
        array([[1.   , 0.524]], dtype=float32)
    """

    degrees = 5

    def states(self, X: Float[Array, "N 1"]) -> States:
        """Three states: the value and two derivatives, divided by powers of the rate ``sqrt(5) / lengthscale``."""
        P = [[1.0, 0.0, -1 / 3], [0.0, 1 / 3, 0.0], [-1 / 3, 0.0, 1.0]]
        linear = [[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [-1.0, -3.0, -2.0]]
        square = [[0.5, 1.0, 0.5], [-0.5, -1.0, -0.5], [0.5, 1.0, 0.5]]
        return self._decaying(X, P, [jnp.eye(3), linear, square])

    def profile(self, square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """``(1 + sqrt(5 square) + 5 square / 3) exp(-sqrt(5 square))``."""
        return _matern52(square)


#: A distance at which ``exp(-r)`` is 0 in every precision. In single precision, squares reach infinity at 1e20, and
#: infinity times 0 is NaN.
_FAR = 1e3


# Derivatives are written by hand, because the chain rule through the square root divides rounding errors by r and loses
# the curvature at 0.
@jax.custom_jvp
def _matern32(square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r = jnp.minimum(root(3 * square), _FAR)
    return (1 + r) * jnp.exp(-r)


@_matern32.defjvp
def _matern32_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (square,), (tangent,) = primals, tangents
    return _matern32(square), -1.5 * jnp.exp(-root(3 * square)) * tangent


@jax.custom_jvp
def _matern52(square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r = jnp.minimum(root(5 * square), _FAR)
    return (1 + r + r * r / 3) * jnp.exp(-r)


@_matern52.defjvp
def _matern52_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (square,), (tangent,) = primals, tangents
    return _matern52(square), -(5 / 6) * _matern32((5 / 3) * square) * tangent


class RationalQuadratic(Stationary):
    """``variance * (1 + r^2 / (2 alpha))^-alpha``, a scale mixture of RBFs (Rasmussen and Williams 2006, eq. 4.19).

    ``r`` is the scaled distance, as for :class:`RBF`.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import RationalQuadratic
        >>> at, far = np.zeros((1, 1), np.float32), np.array([[1.0], [5.0]], np.float32)
        >>> [np.asarray(RationalQuadratic(alpha=alpha)(at, far)).round(2) for alpha in (0.5, 1e4)]
        [array([[0.71, 0.2 ]], dtype=float32), array([[0.61, 0.  ]], dtype=float32)]

    Args:
        variance: see :class:`Stationary`.
        lengthscale: see :class:`Stationary`.
        alpha: scalar or ``[D]``; as ``alpha`` grows, the kernel tends to an RBF.
        active_dims: see :class:`Stationary`.

    Raises:
        TypeError: as for :class:`Stationary`.
        ValueError: as for :class:`Stationary`, and if ``alpha`` is not positive (checked only outside ``jit``).
    """

    direct_columns = DIRECT_COLUMNS_SMOOTH

    alpha: Float[Array, "*D"]

    def __init__(
        self,
        variance: float | Array = 1.0,
        lengthscale: float | Array = 1.0,
        alpha: float | Array = 1.0,
        active_dims: Iterable[int] | None = None,
    ) -> None:
        self.alpha = checks.positive("alpha", alpha)
        super().__init__(variance, lengthscale, active_dims)

    def profile(self, square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """``(1 + square / (2 alpha))^-alpha``."""
        return jnp.exp(-self.alpha * jnp.log1p(square / (2 * self.alpha)))

    def frequencies(
        self, key: PRNGKeyArray, num: int, num_columns: int, dtype: Any
    ) -> Float[Array, "{num} {num_columns}"]:
        """Frequencies of RBFs whose ``lengthscale^-2`` is a gamma variable (Rasmussen and Williams 2006, eq. 4.20)."""
        key_normal, key_gamma = random.split(key)
        precision = random.gamma(key_gamma, self.alpha, (num, 1), dtype) / self.alpha
        omega = self._normals(key_normal, num, num_columns, dtype) * jnp.sqrt(precision)
        return self._on_columns(omega, num_columns)


class Periodic(Stationary):
    """The kernel of periodic functions.

    The kernel is ``variance * exp(-1/2 sum_i (sin(pi (x_i - x'_i) / period_i) / lengthscale_i)^2)``, which is eq. 47 of
    MacKay (1998, *Introduction to Gaussian processes*). It is an RBF after each column is wound onto a circle of
    diameter 1. Some texts write ``exp(-2 sin^2(...) / lengthscale^2)`` and so wind each column onto a circle of radius
    1. The lengthscale in these texts is twice the lengthscale here.

    The kernel subtracts whole periods from inputs without rounding, for any number of periods. But the inputs and the
    period are already rounded. In single precision, this shifts an input by up to 1.2e-7 times the number of periods:
    0.001 of a period after 10,000 periods, and 0.1 after a million. To avoid this error, choose an origin near the
    inputs, or use units in which inputs and period are whole numbers.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import Periodic
        >>> Periodic(period=2.0)(np.zeros((1, 1), np.float32), np.array([[1.0], [2.0]], np.float32)).round(2)
        Array([[0.61, 1.  ]], dtype=float32)

    Args:
        variance: see :class:`Stationary`.
        lengthscale: scalar or one per (active) column, with a leading ``D`` for one kernel per output. It has no unit,
            because it refers to distances on the circle.
        period: scalar or one per (active) column, in the units of the inputs, with a leading ``D`` as for
            ``lengthscale``.
        active_dims: see :class:`Stationary`.

    Raises:
        TypeError: as for :class:`Stationary`.
        ValueError: as for :class:`Stationary`, and if ``period`` does not fit the inputs or is not positive (checked
            only outside ``jit``).
    """

    direct_columns = DIRECT_COLUMNS_SMOOTH

    period: Float[Array, "..."]
    per_column = ("lengthscale", "period")

    def __init__(
        self,
        variance: float | Array = 1.0,
        lengthscale: float | Array = 1.0,
        period: float | Array = 1.0,
        active_dims: Iterable[int] | None = None,
    ) -> None:
        self.period = checks.positive("period", period)
        super().__init__(variance, lengthscale, active_dims)

    def profile(self, square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """``exp(-square / 2)``."""
        return jnp.exp(-0.5 * square)

    def _placed(
        self, X: Float[Array, "N d"], Z: Float[Array, "M d"]
    ) -> tuple[Float[Array, "N _"], Float[Array, "M _"]]:
        # Not centred, because centring would round the inputs.
        return self.scaled(X), self.scaled(Z)

    def scaled(self, X: Float[Array, "N d"]) -> Float[Array, "N _"]:
        """The active columns, each wound onto a circle of diameter ``1 / lengthscale``: two numbers per column."""
        angle = 2 * jnp.pi * _turns(self.active_columns(X), self.period)
        twice = 2 * self.lengthscale
        return jnp.concatenate([jnp.cos(angle) / twice, jnp.sin(angle) / twice], axis=-1)

    def frequencies(
        self, key: PRNGKeyArray, num: int, num_columns: int, dtype: Any
    ) -> Float[Array, "{num} {num_columns}"]:
        """Harmonics of each column's period.

        With ``kappa = 1 / (2 lengthscale)^2``, the correlation along one column is ``exp(kappa cos t - kappa)`` at the
        angle ``t``. Its Fourier coefficients are ``exp(-kappa) I_n(kappa)``. These are the probabilities that two
        Poisson variables of mean ``kappa / 2`` have the difference ``n``.
        """
        active = num_columns if self.active_dims is None else len(self.active_dims)
        kappa = 1 / (2 * self.lengthscale) ** 2
        mean = jnp.broadcast_to(kappa / 2, (num, active))
        first, second = (random.poisson(k, mean).astype(dtype) for k in random.split(key))
        return self._on_columns(2 * jnp.pi * (first - second) / self.period, num_columns)


@jax.custom_jvp
def _turns(x: Float[Array, "*shape"], period: Float[Array, "..."]) -> Float[Array, "*shape"]:
    """``x / period`` less a whole number; the remainder is exact, but the rounding of a quotient grows with it."""
    return jnp.fmod(x, period) / period


@_turns.defjvp
def _turns_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return _turns(*primals), jax.jvp(jnp.divide, primals, tangents)[1]
