"""The base classes of kernels: pytrees of arrays that give Gram matrices, cross-covariances and variances."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo._pytree import Fields
from gpzoo._types import ArrayLike


class Kernel(Fields):
    """A covariance function; a pytree whose leaves are its hyperparameters.

    ``kernel(X)`` is the Gram matrix ``[N, N]`` (white noise adds to its diagonal), ``kernel(X, Z)`` a cross-covariance
    ``[N, M]`` (never white), ``kernel.diag(X)`` the variances ``[N]``. Kernels add and multiply, and a positive number
    times a kernel scales it.

    Hyperparameters are plain arrays; the program decides whether one is a ``numpyro.param``, a ``numpyro.sample`` or a
    constant. They may carry a leading axis ``D`` (then every array leaf that is not a scalar carries it), and inputs
    may be ``[D, N, ...]``: output ``d`` uses kernel ``d`` on ``X[d]`` and results are ``[D, N, N]``, ``[D, N, M]`` and
    ``[D, N]``. Results have the dtype of the inputs: hyperparameters are cast to it.

    **A kernel of your own** is a function of two points (:class:`~gpzoo.kernels.Pointwise`), or a class with annotated
    fields and one method, the covariance of two points::

        class Cosine(Elementary):
            variance: Array
            period: Array

            def evaluate(self, x, z):
                return self.variance * jnp.cos(2 * jnp.pi * jnp.sum(x - z) / self.period)

        kernel = Cosine(1.0, period=jnp.asarray([1.0, 2.0])) + White(0.1)    # one kernel for each of two outputs

    Everything else follows from :meth:`evaluate`, and may be written instead or as well:

    =====================  ============================================================  =============================
    method                 meaning                                                       default
    =====================  ============================================================  =============================
    :meth:`evaluate`       covariance of two points, a scalar                            refused
    :meth:`cross`          covariances ``[N, M]``: for speed                             :meth:`evaluate` of all pairs
    :meth:`gram`           covariance matrix ``[N, N]``: where symmetry is cheaper       ``cross(X, X)``
    :meth:`variances`      its diagonal ``[N]``: for speed                               :meth:`cross`, row by row
    :meth:`split_noise`    the function's and the noise's part of the kernel             no noise
    :meth:`frequencies`    draws from the spectral density, for draws of functions       refused
    :attr:`batched`        whether there is one kernel per output                        no; see :class:`Elementary`
    :attr:`input_ndim`     rank of an input                                              1, a vector
    =====================  ============================================================  =============================

    ``kernel(X)``, ``kernel(X, Z)``, ``kernel.diag(X)`` and composite kernels call these methods, which may assume this:

    * The hyperparameters are those of one kernel: calls are vectorised over the axis of outputs.
    * Inputs are floating arrays ``[N, ...]`` of rank ``input_ndim + 1``; vectors ``X`` and ``Z`` have as many columns.
    * Inputs and hyperparameters have one dtype. Their values may be traced.

    The calls check this, and that results have one entry per row. A kernel itself checks its other requirements, such
    as a number of columns.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import RBF, Kernel, Linear, White
        >>> kernel = 2.0 * RBF() * Linear() + White(0.1)
        >>> X = np.array([[1.0], [2.0]], np.float32)
        >>> np.asarray(kernel(X)).round(1), np.asarray(kernel(X, X)).round(1)
        (array([[2.1, 2.4],
               [2.4, 8.1]], dtype=float32), array([[2. , 2.4],
               [2.4, 8. ]], dtype=float32))
        >>> isinstance(kernel, Kernel)
        True
    """

    # Otherwise NumPy would evaluate ``array * kernel`` entry by entry, and never call ``kernel.__rmul__``.
    __array_ufunc__ = None

    # -- methods of a subclass ---------------------------------------------------------------------------------------

    @property
    def input_ndim(self) -> int | None:
        """Rank of a single input: 1 for vectors, 3 for images, ``None`` where only the number of inputs matters."""
        return 1

    @property
    def batched(self) -> bool:
        """Whether the hyperparameters carry a leading axis, one kernel per output."""
        return False

    def evaluate(self, x: Float[Array, "..."], z: Float[Array, "..."]) -> Array:
        """The covariance of the function's values at two inputs, a scalar, without noise."""
        raise NotImplementedError(
            f"{type(self).__name__} does not define a covariance between inputs: write evaluate(x, z), of two inputs, "
            "or cross(X, Z), of all pairs of rows."
        )

    def cross(self, X: Float[Array, "N ..."], Z: Float[Array, "M ..."]) -> Float[Array, "N M"]:
        """Covariances of the function's values at the rows of ``X`` and of ``Z``, without noise."""
        return jax.vmap(lambda x: jax.vmap(lambda z: self._at_pair(x, z))(Z))(X)

    def gram(self, X: Float[Array, "N ..."]) -> Float[Array, "N N"]:
        """Covariance matrix of the values at the rows of ``X``, with noise."""
        return self.cross(X, X)

    def variances(self, X: Float[Array, "N ..."]) -> Float[Array, " N"]:
        """The diagonal of :meth:`gram`."""
        return jax.vmap(lambda x: self.cross(x[None], x[None])[0, 0])(X)

    def split_noise(self) -> tuple[Kernel | None, Kernel | None]:
        """This kernel as a sum: the covariance of a function, and of noise that is independent between rows.

        The noise enters :meth:`gram` and :meth:`variances`, but not :meth:`cross`. ``None`` stands for no function, or
        no noise.
        """
        return self, None

    def frequencies(
        self, key: PRNGKeyArray, num: int, num_columns: int, dtype: Any
    ) -> Float[Array, "{num} {num_columns}"]:
        """Draws from the spectral density: ``k(x, x') = k(0) E[cos(omega . (x - x'))]``, for stationary kernels.

        Args:
            key: random key.
            num: number of draws.
            num_columns: number of input columns; inactive ones have frequency 0.
            dtype: of the result.

        Returns:
            Frequencies in radians per unit of the inputs.

        Raises:
            TypeError: for kernels without a known spectral density.
        """
        raise TypeError(
            f"{type(self).__name__} has no known spectral density, so its functions cannot be drawn by random "
            "features: draw them with numpyro.infer.Predictive(guide, ...) at fewer inputs (a few thousand), whose "
            "exact joint covariance it forms. The class of a stationary kernel may define a method `frequencies`."
        )

    def check_fields(self) -> None:
        """Refuse hyperparameters whose shapes do not go together; called before every evaluation.

        Raises:
            ValueError: naming them.
        """

    # -- calls -------------------------------------------------------------------------------------------------------

    def __call__(self, X: ArrayLike, Z: ArrayLike | None = None) -> Float[Array, "*D N M"]:
        """Gram matrix of ``X``, or the cross-covariance of ``X`` and ``Z``.

        Args:
            X: inputs ``[N, ...]`` or ``[D, N, ...]``.
            Z: inputs ``[M, ...]`` or ``[D, M, ...]``.

        Returns:
            ``[N, N]`` or ``[N, M]``, with a leading ``D`` where kernel or inputs carry one.

        Raises:
            TypeError: if an input is not numeric.
            ValueError: if an input has the wrong rank for this kernel, or columns or outputs do not match.
        """
        if Z is None:
            return self._over_outputs(lambda k, X: k.gram(X), X)
        return self._over_outputs(lambda k, X, Z: k.cross(X, Z), X, Z)

    def diag(self, X: ArrayLike) -> Float[Array, "*D N"]:
        """Variances ``k(x, x)`` of the rows of ``X``: ``[N]``, or ``[D, N]`` where kernel or inputs carry a ``D``."""
        return self._over_outputs(lambda k, X: k.variances(X), X)

    def has_outputs(self, X: Array | np.ndarray) -> bool:
        """Whether inputs of a valid rank (:meth:`check_inputs`) are one set per output, ``[D, N, ...]``."""
        return self.input_ndim is not None and X.ndim == self.input_ndim + 2

    def check_inputs(self, X: ArrayLike, name: str = "X") -> Float[Array, "..."]:
        """Inputs as a floating array ``[N, ...]`` or ``[D, N, ...]``.

        Args:
            X: the user's inputs.
            name: their name in messages.

        Raises:
            TypeError: if they are not numeric.
            ValueError: if they have the wrong rank for this kernel.
        """
        X = checks.floating(name, X)
        if self.input_ndim is None:
            wrong, wanted = X.ndim == 0, "[N, ...]"
        else:
            wrong = X.ndim != self.input_ndim + 1 and not self.has_outputs(X)
            named = {1: "[N, features]", 3: "[N, height, width, channels]"}
            wanted = named.get(self.input_ndim, f"of {self.input_ndim + 1} axes, [N, ...]")
        if wrong:
            hint = f" A single feature is {name}[:, None]." if self.input_ndim == 1 and X.ndim == 1 else ""
            raise ValueError(
                f"{type(self).__name__} takes inputs {wanted} (or with one leading axis, one set per output), "
                f"got {name} of shape {tuple(X.shape)}.{hint}"
            )
        return X

    def batch_axes(self) -> Kernel:
        """The kernel with each leaf replaced by its output axis, or ``None`` without one: ``in_axes`` for ``vmap``."""
        return jax.tree.map(lambda leaf: 0 if self.batched and jnp.ndim(leaf) else None, self)

    def _over_outputs(self, evaluate: Callable[..., Array], *given: ArrayLike) -> Float[Array, "..."]:
        self.check_fields()
        inputs = {name: self.check_inputs(x, name) for name, x in zip(("X", "Z"), given, strict=False)}
        if self.input_ndim == 1 and len({x.shape[-1] for x in inputs.values()}) > 1:
            shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in inputs.items())
            raise ValueError(f"{type(self).__name__} got inputs with different numbers of columns: {shapes}.")
        dtype = jnp.result_type(*inputs.values())
        arrays = tuple(x.astype(dtype) for x in inputs.values())
        kernel = jax.tree.map(lambda leaf: cast(leaf, dtype), self)
        axes = tuple(0 if self.has_outputs(x) else None for x in arrays)
        if not self.batched and all(axis is None for axis in axes):
            return self._in_shape(evaluate, kernel, *arrays)
        kernel_axes = self.batch_axes() if self.batched else None
        outputs = {name: x.shape[0] for name, x in inputs.items() if self.has_outputs(x)}
        outputs |= _leading(self, kernel_axes)
        if len(set(outputs.values())) > 1:
            raise ValueError(
                f"{type(self).__name__} got different numbers of outputs D along the leading axes: "
                + ", ".join(f"{name}: {size}" for name, size in outputs.items())
                + ". One kernel per output takes inputs [N, ...], shared by all, or [D, N, ...]."
            )
        return jax.vmap(evaluate, in_axes=(kernel_axes, *axes))(kernel, *arrays)

    def _in_shape(
        self, evaluate: Callable[..., Array], kernel: Kernel, *arrays: Float[Array, "..."]
    ) -> Float[Array, "..."]:
        """The result for one kernel, refused unless it has one entry per row of each input.

        A user's kernel that ignores an output axis of its fields would otherwise broadcast, or fail inside JAX.
        """
        values = {f: getattr(self, f) for f in self.data_fields}
        vectors = [f"{f} {jnp.shape(x)}" for f, x in values.items() if isinstance(x, np.ndarray | Array) and x.ndim]
        hint = (
            f" It has fields that are arrays ({', '.join(vectors)}): if those hold one value per output [D], derive "
            "it from gpzoo.kernels.Elementary, or define its property `batched`."
            if vectors
            else ""
        )
        name, rows = type(self).__name__, tuple(x.shape[0] for x in arrays)
        try:
            found = evaluate(kernel, *arrays)
        except (TypeError, ValueError) as error:
            if not hint or type(self).__module__.startswith("gpzoo."):
                raise
            raise ValueError(f"{name} cannot be evaluated at inputs of {rows} rows: {error}.{hint}") from error
        shape = tuple(jnp.shape(found))
        if shape != rows and shape != rows * 2:
            raise ValueError(f"{name} gave an array of shape {shape} at inputs of {rows} rows.{hint}")
        return found

    def _at_pair(self, x: Float[Array, "..."], z: Float[Array, "..."]) -> Float[Array, ""]:
        value = self.evaluate(x, z)
        if jnp.ndim(value):
            raise ValueError(
                f"{self._said} gave an array of shape {tuple(jnp.shape(value))} for two inputs of shape {x.shape}: it "
                "must give one number."
            )
        return jnp.asarray(value, x.dtype)

    @property
    def _said(self) -> str:
        return f"{type(self).__name__}.evaluate"

    # -- algebra -----------------------------------------------------------------------------------------------------

    # Imported late, because the module of sums and products imports this one.

    def __add__(self, other: Kernel) -> Kernel:
        from gpzoo.kernels.combine import Sum

        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: Kernel | float | Array) -> Kernel:
        from gpzoo.kernels.combine import Product, Scaled

        return Product(self, other) if isinstance(other, Kernel) else Scaled(self, other)

    def __rmul__(self, other: float | Array) -> Kernel:
        return self * other


class Elementary(Kernel):
    """A kernel whose array fields are scalars, or one number per output ``[D]``.

    Fields listed in ``per_column`` may also hold one number per input column, ``[d]``, or ``[D, d]`` with outputs. A
    kernel is batched as soon as one field has the axis ``D``; then each field that is not a scalar begins with it.
    If a subclass has a static field ``active_dims`` (see :func:`columns`), its :meth:`evaluate` sees those columns.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np
        >>> from gpzoo.kernels import Elementary
        >>> class Cosine(Elementary):
        ...     variance: jax.Array
        ...     period: jax.Array
        ...
        ...     def evaluate(self, x, z):
        ...         return self.variance * jnp.cos(2 * jnp.pi * jnp.sum(x - z) / self.period)
        >>> two = Cosine(1.0, period=jnp.array([1.0, 2.0]))  # a kernel for each of two outputs
        >>> two.batched, two(np.array([[0.0], [1.0]], np.float32)).shape
        (True, (2, 2, 2))
    """

    per_column: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        # Runs only in classes whose __init__ is generated from their fields.
        for f in self.data_fields:
            setattr(self, f, checks.floating(f, getattr(self, f)))
        if "active_dims" in self.static_fields:
            self.active_dims = columns(self.active_dims)
        self.check_fields()

    @property
    def batched(self) -> bool:
        """Whether the hyperparameters carry a leading axis, one kernel per output."""
        return any(jnp.ndim(getattr(self, f)) > (f in self.per_column) for f in self.data_fields)

    def check_fields(self) -> None:
        """Refuse fields with too many axes, or with leading axes that differ."""
        shapes = {f: jnp.shape(getattr(self, f)) for f in self.data_fields}
        name = type(self).__name__
        for f, shape in shapes.items():
            if len(shape) > 1 + (f in self.per_column):
                forms = "a scalar, one per column [d], or one row per output [D, d]"
                forms = forms if f in self.per_column else "a scalar or one per output [D]"
                raise ValueError(f"{name}: {f} must be {forms}, got shape {shape}.")
        if self.batched and len({shape[0] for shape in shapes.values() if shape}) > 1:
            raise ValueError(
                f"{name} has one kernel per output, so every hyperparameter that is not a scalar starts with the axis "
                "of outputs, but the shapes are "
                + ", ".join(f"{f} {shape}" for f, shape in shapes.items())
                + ". Write one value per column as [D, d]."
            )

    def cross(self, X: Float[Array, "N ..."], Z: Float[Array, "M ..."]) -> Float[Array, "N M"]:
        """:meth:`evaluate` at the active columns of all pairs of rows."""
        return super().cross(self.active_columns(X), self.active_columns(Z))

    def active_columns(self, X: Float[Array, "N ..."]) -> Float[Array, "N ..."]:
        """The columns ``active_dims`` of the inputs, or all columns.

        Raises:
            ValueError: if there is no such column, or a ``per_column`` field does not have one entry for each.
        """
        active: tuple[int, ...] | None = getattr(self, "active_dims", None)
        if active is not None:
            X = select_columns(type(self).__name__, X, active)
        for f in self.per_column:
            shape = jnp.shape(getattr(self, f))
            if shape and shape[0] not in (1, X.shape[-1]):
                seen = "columns" if active is None else f"active columns {active}"
                raise ValueError(
                    f"{type(self).__name__}: {f} has shape {shape} but the inputs have {X.shape[-1]} {seen} "
                    f"(shape {tuple(X.shape)}); give a scalar or one value per column."
                )
        return X


def select_columns(name: str, X: Float[Array, "N d"], active_dims: tuple[int, ...]) -> Float[Array, "N _"]:
    """The columns ``active_dims`` of ``X``.

    Raises:
        ValueError: naming the kernel, if there is no such column.
    """
    if max(active_dims) >= X.shape[-1]:
        raise ValueError(
            f"{name}: active_dims {active_dims} is out of range for inputs with {X.shape[-1]} columns (shape "
            f"{tuple(X.shape)}); columns count from 0."
        )
    return X[:, np.asarray(active_dims)]


def positive(name: str, value: float | Array, *, or_zero: bool = False) -> Float[Array, "..."]:
    """``value`` as a floating array, refused if it is concrete but not positive and finite.

    Args:
        name: its name in the message.
        value: the number or numbers, of any shape.
        or_zero: whether zero is allowed.

    Raises:
        TypeError: if it is not numeric.
        ValueError: naming ``name`` and the value.
    """
    value = checks.floating(name, value)
    if checks.is_concrete(value):
        with jax.ensure_compile_time_eval():
            good = bool(jnp.all(value >= 0 if or_zero else value > 0))
            finite = bool(jnp.all(jnp.isfinite(value)))
        if not good or not finite:
            wanted = f"{'zero or ' if or_zero else ''}positive{'' if not good else ' and finite'}"
            raise ValueError(f"{name} must be {wanted}, got {value}.")
    return value


def columns(active_dims: Iterable[int] | None) -> tuple[int, ...] | None:
    """``active_dims`` as a tuple of column numbers, ``None`` for all columns.

    Raises:
        TypeError: if it is not a sequence of integers.
        ValueError: if it is empty, negative or names a column twice.
    """
    if active_dims is None:
        return None
    try:
        dims = tuple(operator.index(i) for i in active_dims)
    except TypeError:
        raise TypeError(f"active_dims must be column numbers such as (0, 2), got {active_dims!r}.") from None
    if not dims or min(dims) < 0 or len(set(dims)) < len(dims):
        raise ValueError(f"active_dims must be distinct column numbers counted from 0, at least one, got {dims}.")
    return dims


def cast(leaf: Any, dtype: Any) -> Any:
    """A floating leaf in the dtype of the inputs; any other leaf unchanged."""
    floating = isinstance(leaf, float | np.ndarray | np.generic | Array) and jnp.issubdtype(
        jnp.result_type(leaf), jnp.floating
    )
    return jnp.asarray(leaf, dtype) if floating else leaf


def _leading(kernel: Kernel, axes: Kernel | None) -> dict[str, int]:
    """The length of the leading axis of each leaf of ``kernel`` that ``axes`` marks, by the leaf's name."""
    found: dict[str, int] = {}

    def note(path: Any, axis: int | None, part: Any) -> None:
        if axis is not None:
            found["kernel" + jax.tree_util.keystr(path)] = jax.tree.leaves(part)[0].shape[0]

    if axes is not None:
        jax.tree_util.tree_map_with_path(note, axes, kernel, is_leaf=lambda leaf: leaf is None)
    return found
