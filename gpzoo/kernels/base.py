"""What every kernel is: a pytree of arrays that gives Gram matrices, cross-covariances and variances."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gpzoo import _checks as checks
from gpzoo._pytree import Fields


class Kernel(Fields):
    """A covariance function; a pytree whose leaves are its hyperparameters.

    ``kernel(X)`` is the Gram matrix ``[N, N]`` (white noise adds to its diagonal), ``kernel(X, Z)`` a cross-covariance
    ``[N, M]`` (never white), ``kernel.diag(X)`` the variances ``[N]``. Kernels add and multiply, and a positive number
    times a kernel scales it.

    Hyperparameters are plain arrays: whether one is a ``numpyro.param``, a ``numpyro.sample`` or a constant is the
    program's business. They may carry a leading axis ``D`` (then every array leaf that is not a scalar carries it), and
    inputs may be ``[D, N, ...]``: output ``d`` uses kernel ``d`` on ``X[d]`` and results are ``[D, N, N]``,
    ``[D, N, M]`` and ``[D, N]``. Results have the dtype of the inputs: hyperparameters are cast to it.

    A subclass lists its array fields in ``data_fields`` and its static ones in ``static_fields``, and implements
    :meth:`_cross` and :meth:`_diag` for one kernel on inputs ``[N, ...]`` (and :meth:`_gram` where the Gram matrix is
    more than the cross-covariance with itself). :class:`Elementary` does the rest for kernels made of arrays alone.
    """

    #: Rank of a single input: 1 for vectors, 3 for images, ``None`` where only the number of inputs matters.
    input_ndim: ClassVar[int | None] = 1

    # NumPy arrays would otherwise multiply a kernel entry by entry instead of leaving ``array * kernel`` to it.
    __array_ufunc__ = None

    # -- what a subclass writes --------------------------------------------------------------------------------------

    @property
    def batched(self) -> bool:
        """Whether the hyperparameters carry a leading axis, one kernel per output."""
        return False

    def _cross(self, X: Array, Z: Array) -> Array:
        raise NotImplementedError(f"{type(self).__name__} does not define a covariance between inputs.")

    def _gram(self, X: Array) -> Array:
        return self._cross(X, X)

    def _diag(self, X: Array) -> Array:
        raise NotImplementedError(f"{type(self).__name__} does not define variances.")

    # -- what everyone calls -----------------------------------------------------------------------------------------

    def __call__(self, X: Array, Z: Array | None = None) -> Array:
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
            return self._over_outputs(lambda k, X: k._gram(X), X)
        return self._over_outputs(lambda k, X, Z: k._cross(X, Z), X, Z)

    def diag(self, X: Array) -> Array:
        """Variances ``k(x, x)`` of the rows of ``X``: ``[N]``, or ``[D, N]`` where kernel or inputs carry a ``D``."""
        return self._over_outputs(lambda k, X: k._diag(X), X)

    def _over_outputs(self, evaluate: Callable[..., Array], *arrays: Array) -> Array:
        self._check_fields()
        inputs = {name: self._check(x, name) for name, x in zip(("X", "Z"), arrays, strict=False)}
        if self.input_ndim == 1 and len({x.shape[-1] for x in inputs.values()}) > 1:
            shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in inputs.items())
            raise ValueError(f"{type(self).__name__} got inputs with different numbers of columns: {shapes}.")
        dtype = jnp.result_type(*inputs.values())
        arrays = tuple(x.astype(dtype) for x in inputs.values())
        kernel = jax.tree.map(lambda leaf: cast(leaf, dtype), self)
        axes = tuple(0 if self._has_outputs(x) else None for x in arrays)
        if not self.batched and all(axis is None for axis in axes):
            return self._in_shape(evaluate, kernel, *arrays)
        kernel_axes = self._batch_axes() if self.batched else None
        outputs = {name: x.shape[0] for name, x in inputs.items() if self._has_outputs(x)}
        outputs |= _leading(self, kernel_axes)
        if len(set(outputs.values())) > 1:
            raise ValueError(
                f"{type(self).__name__} got different numbers of outputs D along the leading axes: "
                + ", ".join(f"{name}: {size}" for name, size in outputs.items())
                + ". One kernel per output takes inputs [N, ...], shared by all, or [D, N, ...]."
            )
        return jax.vmap(evaluate, in_axes=(kernel_axes, *axes))(kernel, *arrays)

    def _in_shape(self, evaluate: Callable[..., Array], kernel: Kernel, *arrays: Array) -> Array:
        """The result for one kernel, if it has one entry per row of each input.

        A kernel of the user's own that forgets an axis of outputs on its fields would broadcast, or fail in JAX.
        """
        values = {f: getattr(self, f) for f in self.data_fields}
        vectors = [f"{f} {jnp.shape(x)}" for f, x in values.items() if isinstance(x, np.ndarray | Array) and x.ndim]
        hint = (
            f" It has fields that are arrays ({', '.join(vectors)}): where those are one value per output [D], derive "
            "it from gpzoo.kernels.Elementary, or let its property `batched` say so."
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

    def _batch_axes(self) -> Kernel:
        """The kernel with its leaves replaced by their vmap axes."""
        return jax.tree.map(lambda leaf: 0 if self.batched and jnp.ndim(leaf) else None, self)

    def _check_fields(self) -> None:
        """Refuse hyperparameters whose shapes do not go together."""

    def _has_outputs(self, X: Array) -> bool:
        return self.input_ndim is not None and X.ndim == self.input_ndim + 2

    def _check(self, X: Array, name: str = "X") -> Array:
        X = checks.floating(name, X)
        if self.input_ndim is None:
            wrong, wanted = X.ndim == 0, "[N, ...]"
        else:
            wrong = X.ndim != self.input_ndim + 1 and not self._has_outputs(X)
            named = {1: "[N, features]", 3: "[N, height, width, channels]"}
            wanted = named.get(self.input_ndim, f"of {self.input_ndim + 1} axes, [N, ...]")
        if wrong:
            hint = f" A single feature is {name}[:, None]." if self.input_ndim == 1 and X.ndim == 1 else ""
            raise ValueError(
                f"{type(self).__name__} takes inputs {wanted} (or with one leading axis, one set per output), "
                f"got {name} of shape {tuple(X.shape)}.{hint}"
            )
        return X

    # -- algebra -----------------------------------------------------------------------------------------------------

    def __add__(self, other: Kernel) -> Kernel:
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: Kernel | float | Array) -> Kernel:
        return Product(self, other) if isinstance(other, Kernel) else Scaled(self, other)

    def __rmul__(self, other: float | Array) -> Kernel:
        return Scaled(self, other)


class Elementary(Kernel):
    """A kernel whose fields are all arrays: a scalar each, or one number per output ``[D]``.

    Fields listed in ``per_column`` may also hold one number per input column, ``[d]``, or ``[D, d]`` with outputs. A
    kernel is batched as soon as one field has the axis ``D``; then each field that is not a scalar begins with it.
    """

    per_column: ClassVar[tuple[str, ...]] = ()

    @property
    def batched(self) -> bool:
        """Whether the hyperparameters carry a leading axis, one kernel per output."""
        return any(jnp.ndim(getattr(self, f)) > (f in self.per_column) for f in self.data_fields)

    def _check_fields(self) -> None:
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

    def _columns(self, X: Array) -> Array:
        """The columns of ``X [N, features]`` that the kernel sees, checked against the fields per column."""
        active: tuple[int, ...] | None = getattr(self, "active_dims", None)
        if active is not None:
            if max(active) >= X.shape[-1]:
                raise ValueError(
                    f"{type(self).__name__}: active_dims {active} is out of range for inputs with {X.shape[-1]} "
                    f"columns (shape {tuple(X.shape)}); columns count from 0."
                )
            X = X[:, np.asarray(active)]
        for f in self.per_column:
            shape = jnp.shape(getattr(self, f))
            if shape and shape[0] not in (1, X.shape[-1]):
                seen = "columns" if active is None else f"active columns {active}"
                raise ValueError(
                    f"{type(self).__name__}: {f} has shape {shape} but the inputs have {X.shape[-1]} {seen} "
                    f"(shape {tuple(X.shape)}); give a scalar or one value per column."
                )
        return X


class _Combination(Kernel):
    """Kernels combined elementwise."""

    data_fields = ("parts",)

    def __init__(self, *parts: Kernel) -> None:
        if not parts or not all(isinstance(part, Kernel) for part in parts):
            raise TypeError(f"{type(self).__name__} takes kernels, got {[type(part).__name__ for part in parts]}.")
        ranks = {part.input_ndim for part in parts} - {None}
        if len(ranks) > 1:
            raise ValueError(
                f"{type(self).__name__} got kernels on inputs of different rank "
                f"({', '.join(f'{type(part).__name__}: {part.input_ndim}' for part in parts)}). "
                "Put those on vectors into Flattened(...), or sample one GaussianProcess site for each and add them."
            )
        self.parts = tuple(parts)

    @property
    def input_ndim(self) -> int | None:  # type: ignore[override]
        return next((part.input_ndim for part in self.parts if part.input_ndim is not None), None)

    @property
    def batched(self) -> bool:
        return any(part.batched for part in self.parts)

    def _batch_axes(self) -> Kernel:
        return self._unflatten((), (tuple(part._batch_axes() for part in self.parts),))

    def _check_fields(self) -> None:
        for part in self.parts:
            part._check_fields()


class Sum(_Combination):
    """``k(x, x') = sum_i k_i(x, x')``: the prior of a sum of independent processes."""

    def __init__(self, *parts: Kernel) -> None:
        flat = (p for part in parts for p in (part.parts if isinstance(part, Sum) else (part,)))
        super().__init__(*flat)

    def _cross(self, X: Array, Z: Array) -> Array:
        return sum(part._cross(X, Z) for part in self.parts)

    def _gram(self, X: Array) -> Array:
        return sum(part._gram(X) for part in self.parts)

    def _diag(self, X: Array) -> Array:
        return sum(part._diag(X) for part in self.parts)


class Product(_Combination):
    """``k(x, x') = prod_i k_i(x, x')``."""

    def __init__(self, *parts: Kernel) -> None:
        flat = (p for part in parts for p in (part.parts if isinstance(part, Product) else (part,)))
        super().__init__(*flat)

    def _cross(self, X: Array, Z: Array) -> Array:
        return math.prod(part._cross(X, Z) for part in self.parts)

    def _gram(self, X: Array) -> Array:
        return math.prod(part._gram(X) for part in self.parts)

    def _diag(self, X: Array) -> Array:
        return math.prod(part._diag(X) for part in self.parts)


class Scaled(Kernel):
    """``k(x, x') = scale k_0(x, x')``; ``scale`` is positive, a scalar or one per output ``[D]``.

    Raises:
        TypeError: if ``kernel`` is not a kernel or ``scale`` is not numeric.
        ValueError: if ``scale`` is known and not positive, or has more than one axis.
    """

    data_fields = ("kernel", "scale")

    def __init__(self, kernel: Kernel, scale: float | Array) -> None:
        if not isinstance(kernel, Kernel):
            raise TypeError(f"Scaled takes a kernel and a scale, got {type(kernel).__name__} for the kernel.")
        self.kernel = kernel
        self.scale = positive("scale", scale)
        self._check_fields()

    @property
    def input_ndim(self) -> int | None:  # type: ignore[override]
        """Rank of a single input: that of the scaled kernel."""
        return self.kernel.input_ndim

    @property
    def batched(self) -> bool:
        """Whether the scale or the scaled kernel carry a leading axis."""
        return self.kernel.batched or jnp.ndim(self.scale) == 1

    def _batch_axes(self) -> Kernel:
        return self._unflatten((), (self.kernel._batch_axes(), 0 if jnp.ndim(self.scale) else None))

    def _check_fields(self) -> None:
        if jnp.ndim(self.scale) > 1:
            raise ValueError(f"scale must be a scalar or one per output [D], got shape {jnp.shape(self.scale)}.")
        self.kernel._check_fields()

    def _cross(self, X: Array, Z: Array) -> Array:
        return self.scale * self.kernel._cross(X, Z)

    def _gram(self, X: Array) -> Array:
        return self.scale * self.kernel._gram(X)

    def _diag(self, X: Array) -> Array:
        return self.scale * self.kernel._diag(X)


def addends(kernel: Kernel) -> list[tuple[Any, Kernel]]:
    """A kernel as a sum: its parts, each with the product of the factors that stand before it (``None`` for none)."""
    if isinstance(kernel, Sum):
        return [addend for part in kernel.parts for addend in addends(part)]
    if isinstance(kernel, Scaled):
        inner = addends(kernel.kernel)
        return [(kernel.scale if factor is None else kernel.scale * factor, part) for factor, part in inner]
    return [(None, kernel)]


class Flattened(Kernel):
    """A kernel on vectors, for inputs of another rank: ``k(x, x') = k_0(vec x, vec x')``.

    Brings a kernel on whole images into a sum with kernels on patches (convolutional GPs, section 4.3); inducing
    points are then images.

    Args:
        kernel: kernel on vectors.
        input_ndim: rank of a single input, 3 for images ``[H, W, C]``.

    Raises:
        TypeError: if ``kernel`` is not a kernel.
        ValueError: if ``kernel`` does not take vectors, or the rank is not 2 or more.
    """

    data_fields = ("kernel",)
    static_fields = ("input_ndim",)

    def __init__(self, kernel: Kernel, input_ndim: int = 3) -> None:
        if not isinstance(kernel, Kernel):
            raise TypeError(f"Flattened takes a kernel, got {type(kernel).__name__}.")
        if kernel.input_ndim not in (1, None):
            raise ValueError(f"Flattened takes a kernel on vectors; {type(kernel).__name__} is on other inputs.")
        if operator.index(input_ndim) < 2:
            raise ValueError(f"input_ndim must be the rank of an input that is no vector, 2 or more; got {input_ndim}.")
        self.kernel, self.input_ndim = kernel, operator.index(input_ndim)

    @property
    def batched(self) -> bool:
        """Whether the kernel carries a leading axis, one per output."""
        return self.kernel.batched

    def _batch_axes(self) -> Kernel:
        return self._unflatten((self.input_ndim,), (self.kernel._batch_axes(),))

    def _check_fields(self) -> None:
        self.kernel._check_fields()

    def _cross(self, X: Array, Z: Array) -> Array:
        if X.shape[1:] != Z.shape[1:]:
            raise ValueError(f"Flattened got inputs of different shapes: X {X.shape}, Z {Z.shape}.")
        return self.kernel._cross(_vectors(X), _vectors(Z))

    def _gram(self, X: Array) -> Array:
        return self.kernel._gram(_vectors(X))

    def _diag(self, X: Array) -> Array:
        return self.kernel._diag(_vectors(X))


def _vectors(X: Array) -> Array:
    return X.reshape(X.shape[0], -1)


def positive(name: str, value: float | Array, *, or_zero: bool = False) -> Array:
    """``value`` as a floating array, refused if it is known and not positive and finite.

    Args:
        name: what it is, for the message.
        value: the number or numbers, of any shape.
        or_zero: whether zero passes.

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
    """A floating leaf in the dtype of the inputs; anything else as it is."""
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
