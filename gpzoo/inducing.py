"""Inducing variables, their covariances by multiple dispatch, and where they start."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from multipledispatch import Dispatcher

from gpzoo import checks
from gpzoo.kernels.base import Kernel, Scaled, Sum
from gpzoo.kernels.double_sum import DoubleSum
from gpzoo.kernels.nonstationary import Constant

#: Number of inputs beyond which :class:`kmeans` runs on minibatches.
LARGE = 10_000


class InducingVariable:
    """What ``u`` is; a pytree whose leaves are trained. Subclasses list their array fields in ``data_fields``.

    ``u`` and ``f`` are jointly Gaussian, and that is all a posterior needs to know: a new (inter-domain) inducing
    variable is a subclass and two functions, :data:`Kuu` and :data:`Kuf`, registered for it and a kernel type::

        @Kuu.register(MyVariable, RBF)
        def _(inducing, kernel): ...             # [M, M]

        @Kuf.register(MyVariable, RBF, object)
        def _(inducing, kernel, X): ...          # [M, N]
    """

    data_fields: ClassVar[tuple[str, ...]] = ("Z",)
    static_fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        jax.tree_util.register_pytree_with_keys(cls, cls._flatten_with_keys, cls._unflatten)

    def _flatten_with_keys(self) -> tuple[tuple, tuple]:
        keys = tuple((jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in self.data_fields)
        return keys, tuple(getattr(self, name) for name in self.static_fields)

    @classmethod
    def _unflatten(cls, static: tuple, data: tuple) -> InducingVariable:
        # __init__ is bypassed: JAX rebuilds inducing variables around placeholders that no check would let pass.
        self = object.__new__(cls)
        for name, value in zip(cls.static_fields + cls.data_fields, tuple(static) + tuple(data), strict=True):
            object.__setattr__(self, name, value)
        return self

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.data_fields + self.static_fields)
        return f"{type(self).__name__}({fields})"


class InducingPoints(InducingVariable):
    """``u_m = f(z_m)`` at inducing inputs ``Z`` in the space of the inputs.

    Args:
        Z: ``[M, ...]``, rows like those of ``X``; ``[D, M, ...]`` for one set per output.

    Raises:
        ValueError: if ``Z`` is empty, holds NaN or infinity, or has fewer than two axes.
    """

    def __init__(self, Z: Array) -> None:
        self.Z = _inducing_inputs(Z, "[M, ...], one inducing input per row")


class InducingPatches(InducingVariable):
    """``u_m = g(z_m)``: the base process of a :class:`~gpzoo.kernels.DoubleSum` at patches (convolutional GPs, 4.1).

    In a sum of kernels ``u`` is the sum of the parts' inducing variables at the same ``Z``, a part of white or constant
    covariance contributing itself.

    Args:
        Z: ``[M, h w]``, flattened patches (any views); ``[D, M, h w]`` for one set per output.

    Raises:
        ValueError: if ``Z`` is empty, holds NaN or infinity, or has another rank.
    """

    def __init__(self, Z: Array) -> None:
        self.Z = _inducing_inputs(Z, "[M, h * w] or [D, M, h * w], one flattened patch per row", max_ndim=3)


def _inducing_inputs(Z: Array, wanted: str, max_ndim: int | None = None) -> Array:
    Z = checks.floating("Z", Z)
    if Z.ndim < 2 or (max_ndim is not None and Z.ndim > max_ndim):
        raise ValueError(f"Z must be {wanted}; got shape {tuple(Z.shape)}.")
    checks.not_empty("Z", Z)
    checks.finite("Z", Z)
    return Z


# -- covariances -------------------------------------------------------------------------------------------------------

Kuu = Dispatcher(
    "Kuu",
    doc="""Prior covariance of inducing variables: ``Kuu(inducing, kernel) -> [M, M]``.

    Without jitter; white noise in the kernel adds to the diagonal. With one kernel or one ``Z`` per output the result
    is ``[D, M, M]``. Chosen by the types of both arguments; ``Kuu.register(InducingType, KernelType)`` adds a pair.

    Raises:
        TypeError: if nothing is registered for the two types.
    """,
)

Kuf = Dispatcher(
    "Kuf",
    doc="""Covariance of inducing variables and function values: ``Kuf(inducing, kernel, X) -> [M, N]``.

    Never white. ``[D, M, N]`` with one kernel, ``Z`` or ``X`` per output. Chosen by the types of the first two
    arguments; ``Kuf.register(InducingType, KernelType, object)`` adds a pair.

    Raises:
        TypeError: if nothing is registered for the two types.
    """,
)


@Kuu.register(object, object)
def _no_Kuu(inducing: Any, kernel: Any) -> Array:
    raise _unregistered("Kuu", "", inducing, kernel)


@Kuf.register(object, object, object)
def _no_Kuf(inducing: Any, kernel: Any, X: Array) -> Array:
    raise _unregistered("Kuf", ", X", inducing, kernel)


def _unregistered(name: str, more: str, inducing: Any, kernel: Any) -> TypeError:
    pair, third = f"{type(inducing).__name__}, {type(kernel).__name__}", ", object" if more else ""
    return TypeError(
        f"{name} is not defined for the pair ({pair}). Choose inducing variables that go with this kernel "
        f"(InducingPoints go with every one), or register the pair: decorate a function of (inducing, kernel{more}) "
        f"with @gpzoo.inducing.{name}.register({pair}{third}), and one for {'Kuu' if third else 'Kuf'} likewise."
    )


@Kuu.register(InducingPoints, Kernel)
def _points_Kuu(inducing: InducingPoints, kernel: Kernel) -> Array:
    return kernel(inducing.Z)


@Kuf.register(InducingPoints, Kernel, object)
def _points_Kuf(inducing: InducingPoints, kernel: Kernel, X: Array) -> Array:
    return kernel(inducing.Z, X)


@Kuu.register(InducingPatches, DoubleSum)
def _patches_Kuu(inducing: InducingPatches, kernel: DoubleSum) -> Array:
    return kernel.base(inducing.Z)


@Kuf.register(InducingPatches, DoubleSum, object)
def _patches_Kuf(inducing: InducingPatches, kernel: DoubleSum, X: Array) -> Array:
    return jnp.swapaxes(kernel.cross_view(X, inducing.Z), -1, -2)


@Kuu.register(InducingPatches, Scaled)
def _patches_Kuu_scaled(inducing: InducingPatches, kernel: Scaled) -> Array:
    return _scale(kernel, Kuu(inducing, kernel.kernel))


@Kuf.register(InducingPatches, Scaled, object)
def _patches_Kuf_scaled(inducing: InducingPatches, kernel: Scaled, X: Array) -> Array:
    return _scale(kernel, Kuf(inducing, kernel.kernel, X))


def _scale(kernel: Scaled, K: Array) -> Array:
    return jnp.asarray(kernel.scale, K.dtype)[..., None, None] * K


@Kuu.register(InducingPatches, Sum)
def _patches_Kuu_sum(inducing: InducingPatches, kernel: Sum) -> Array:
    return sum(Kuu(inducing, part) for part in kernel.parts)


@Kuf.register(InducingPatches, Sum, object)
def _patches_Kuf_sum(inducing: InducingPatches, kernel: Sum, X: Array) -> Array:
    return sum(Kuf(inducing, part, X) for part in kernel.parts)


@Kuu.register(InducingPatches, Constant)
def _patches_Kuu_of_index(inducing: InducingPatches, kernel: Kernel) -> Array:
    return kernel(_rows(inducing.Z, 1))


@Kuf.register(InducingPatches, Constant, object)
def _patches_Kuf_of_index(inducing: InducingPatches, kernel: Kernel, X: Array) -> Array:
    return kernel(_rows(inducing.Z, 1), _rows(X, 3))


def _rows(X: Array, ndim: int) -> Array:
    # A kernel that only counts inputs need not see one set of them per output.
    return X[0] if jnp.ndim(X) == ndim + 2 else X


# -- where they start --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Initialiser:
    num_inducing: int

    #: What it makes.
    variable: ClassVar[type[InducingVariable]]

    def __post_init__(self) -> None:
        if int(self.num_inducing) != self.num_inducing or self.num_inducing < 1:
            raise ValueError(
                f"{type(self).__name__} needs a whole number of inducing variables >= 1, got {self.num_inducing}."
            )

    def __call__(self, key: Array, X: Array, kernel: Kernel) -> InducingVariable:
        """An inducing variable for a site with this kernel at these inputs, ``[N, ...]`` or ``[D, N, ...]``.

        Raises:
            TypeError: under a transformation such as ``jax.jit``.
            ValueError: if the inputs do not have enough distinct rows.
        """
        if not checks.is_concrete(key) or not checks.is_concrete(X):
            raise TypeError(
                f"{type(self).__name__} looks at the inputs' numbers, so it cannot run under jax.jit, vmap or grad: "
                "initialisers run outside jit. Create the parameters first with guide.init_params, then jit."
            )
        X = np.asarray(checks.floating("X", X))
        checks.finite("X", X)
        if kernel.input_ndim is not None and X.ndim == kernel.input_ndim + 2:
            keys = random.split(key, X.shape[0])
            made = [self._initialise(k, x, kernel) for k, x in zip(keys, X, strict=True)]
            return jax.tree.map(lambda *leaves: jnp.stack(leaves), *made)
        return self._initialise(key, X, kernel)

    def _initialise(self, key: Array, X: np.ndarray, kernel: Kernel) -> InducingVariable:
        raise NotImplementedError

    def _first_distinct(self, rows: np.ndarray) -> np.ndarray:
        first = _distinct(rows, self.num_inducing)
        if len(first) < self.num_inducing:
            raise self._too_many(len(first), "distinct rows")
        return first

    def _too_many(self, available: int, what: str) -> ValueError:
        return ValueError(
            f"{type(self).__name__}({self.num_inducing}) asks for {self.num_inducing} inducing variables, but X has "
            f"only {available} {what}. Ask for at most {available}."
        )


class kmeans(_Initialiser):
    """Inducing points at the centres of ``num_inducing`` k-means clusters; images are clustered as vectors."""

    variable = InducingPoints

    def _initialise(self, key: Array, X: np.ndarray, kernel: Kernel) -> InducingPoints:
        from sklearn.cluster import KMeans, MiniBatchKMeans
        from sklearn.exceptions import ConvergenceWarning

        M, rows = self.num_inducing, X.reshape(len(X), -1)
        self._first_distinct(rows)
        options = {"n_init": 1, "random_state": int(random.bits(key, dtype=jnp.uint32))}
        large = len(rows) > LARGE
        method = MiniBatchKMeans(M, batch_size=max(1024, 4 * M), **options) if large else KMeans(M, **options)
        with warnings.catch_warnings():
            # Centres that coincide are replaced by rows.
            warnings.simplefilter("ignore", ConvergenceWarning)
            centres = method.fit(rows).cluster_centers_.astype(X.dtype)
        pool = np.concatenate([centres, rows])
        return InducingPoints(pool[self._first_distinct(pool)].reshape(M, *X.shape[1:]))


class random_subset(_Initialiser):
    """Inducing points at ``num_inducing`` distinct rows of the inputs, drawn at random."""

    variable = InducingPoints

    def _initialise(self, key: Array, X: np.ndarray, kernel: Kernel) -> InducingPoints:
        order = np.asarray(random.permutation(key, len(X)))
        return InducingPoints(X[order[self._first_distinct(X[order].reshape(len(X), -1))]])


class unique_patches(_Initialiser):
    """Inducing patches at distinct patches of random inputs, for kernels that are or contain a double sum.

    The distinct patches of ``M = num_inducing`` random inputs (of more, should those have too few) are pooled, and
    ``M`` of them drawn.
    """

    variable = InducingPatches

    def _initialise(self, key: Array, X: np.ndarray, kernel: Kernel) -> InducingPatches:
        M, N, view = self.num_inducing, X.shape[0], _view(self, kernel)
        key_inputs, key_patches = random.split(key)
        order = np.asarray(random.permutation(key_inputs, N))
        count = M
        while True:
            pool = np.asarray(view.view(jnp.asarray(X[order[:count]]))).reshape(-1, view.view_size)
            pool = pool[_distinct(pool)]
            if len(pool) >= M:
                return InducingPatches(pool[np.asarray(random.permutation(key_patches, len(pool)))[:M]])
            if count >= N:
                raise self._too_many(len(pool), "distinct patches")
            count *= 2


class uniform_patches(_Initialiser):
    """``num_inducing`` inducing patches of uniform noise in [0, 1], for kernels that are or contain a double sum.

    The start of the rectangles experiment (convolutional GPs, section 4.1), for images with pixels in [0, 1].
    """

    variable = InducingPatches

    def _initialise(self, key: Array, X: np.ndarray, kernel: Kernel) -> InducingPatches:
        return InducingPatches(random.uniform(key, (self.num_inducing, _view(self, kernel).view_size), X.dtype))


def _view(initialiser: _Initialiser, kernel: Kernel) -> Any:
    views = list(_views(kernel))
    if not views:
        raise TypeError(
            f"{type(initialiser).__name__} needs a kernel with a DoubleSum (or Convolutional) in it, got "
            f"{type(kernel).__name__}. Use kmeans or random_subset."
        )
    sizes = sorted({view.view_size for view in views})
    if len(sizes) > 1:
        raise ValueError(
            f"The kernel's double sums have views of different sizes ({sizes}), and inducing patches only one. "
            "Sample one GaussianProcess site for each and add their values."
        )
    return views[0]


def _views(kernel: Kernel) -> Any:
    if isinstance(kernel, DoubleSum):
        yield kernel.view
    elif isinstance(kernel, Scaled):
        yield from _views(kernel.kernel)
    elif isinstance(kernel, Sum):
        for part in kernel.parts:
            yield from _views(part)


def _distinct(rows: np.ndarray, limit: int | None = None) -> np.ndarray:
    """Indices of the first occurrences of distinct rows, in order; of the first ``limit`` of them."""
    # Rows are compared as bytes, which sorts many times faster than by columns; adding zero makes -0 and 0 the same.
    rows = np.ascontiguousarray(rows + np.zeros((), rows.dtype))
    as_bytes = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))[:, 0]
    end = len(rows) if limit is None else limit
    while True:
        first = np.sort(np.unique(as_bytes[:end], return_index=True)[1])
        if end >= len(rows) or (limit is not None and len(first) >= limit):
            return first[:limit]
        end *= 2
