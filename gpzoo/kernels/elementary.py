"""Kernels on columns of the inputs; a hyperparameter is one number for all outputs, or one number for each output."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from gpzoo import _checks as checks
from gpzoo.kernels.base import Kernel


class Elementary(Kernel):
    """A kernel whose array fields are scalars, or one number per output ``[D]``.

    Fields listed in ``per_column`` may also hold one number per input column, ``[d]``, or ``[D, d]`` with outputs. A
    kernel is batched if one field has the axis ``D``. Then every field that is not a scalar begins with this axis.
    If a subclass has a static field ``active_dims`` (see :func:`columns`), its :meth:`evaluate` gets only the columns
    that this field names.

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
        """Whether the hyperparameters have a leading axis, with one kernel per output."""
        return any(jnp.ndim(getattr(self, f)) > (f in self.per_column) for f in self.data_fields)

    def check_fields(self) -> None:
        """Refuse fields with too many axes, or with leading axes that differ."""
        shapes = {f: jnp.shape(getattr(self, f)) for f in self.data_fields}
        name = type(self).__name__
        for f, shape in shapes.items():
            forms = "a scalar, one per column [d], or one row per output [D, d]"
            forms = forms if f in self.per_column else "a scalar or one per output [D]"
            good = len(shape) <= 1 + (f in self.per_column)
            checks.must(good, f"{name}: {f}", f"be {forms}", f"shape {shape}")
        checks.refuse(
            self.batched and len({shape[0] for shape in shapes.values() if shape}) > 1,
            f"{name} has one kernel per output, so every hyperparameter that is not a scalar starts with the axis "
            "of outputs, but the shapes are "
            + ", ".join(f"{f} {shape}" for f, shape in shapes.items())
            + ". Write one value per column as [D, d].",
        )

    def active_columns(self, X: Float[Array, "N ..."]) -> Float[Array, "N ..."]:
        """The columns ``active_dims`` of the inputs, or all columns.

        Raises:
            ValueError: if there is no such column, or a ``per_column`` field does not have one entry for each column.
        """
        active: tuple[int, ...] | None = getattr(self, "active_dims", None)
        if active is not None:
            X = select_columns(type(self).__name__, X, active)
        for f in self.per_column:
            shape = jnp.shape(getattr(self, f))
            seen = "columns" if active is None else f"active columns {active}"
            checks.refuse(
                shape and shape[0] not in (1, X.shape[-1]),
                f"{type(self).__name__}: {f} has shape {shape} but the inputs have {X.shape[-1]} {seen} "
                f"(shape {tuple(X.shape)}); give a scalar or one value per column.",
            )
        return X


class Mask(tuple):
    """The numbers of the columns that a mask of ``total`` columns selects."""

    total: int


def columns(active_dims: Iterable[int] | Iterable[bool] | None) -> tuple[int, ...] | None:
    """``active_dims`` as a tuple of column numbers (a :class:`Mask` if given as bools); ``None`` means all columns.

    Raises:
        TypeError: if ``active_dims`` is not a sequence of integers, or of bools.
        ValueError: if it is empty, has a negative number or names a column twice.
    """
    if active_dims is None or isinstance(active_dims, Mask):
        return active_dims
    try:
        given = tuple(active_dims)
        kinds = {np.asarray(i).dtype == bool for i in given}
        if kinds == {True}:
            dims = Mask(i for i, seen in enumerate(given) if seen)
            dims.total = len(given)
        else:
            if True in kinds:
                raise TypeError
            dims = tuple(operator.index(i) for i in given)
    except TypeError:
        wanted = "column numbers such as (0, 2), or a bool for each column"
        raise TypeError(f"active_dims must be {wanted}, got {active_dims!r}.") from None
    good = bool(dims) and min(dims) >= 0 and len(set(dims)) == len(dims)
    checks.must(good, "active_dims", "be distinct column numbers counted from 0, at least one", str(dims))
    return dims


def select_columns(name: str, X: Float[Array, "N d"], active_dims: tuple[int, ...]) -> Float[Array, "N _"]:
    """The columns ``active_dims`` of ``X``.

    Raises:
        ValueError: if ``X`` lacks one of these columns, or if ``active_dims`` was given as a mask whose length is not
            the number of columns of ``X``. The message names the kernel.
    """
    total = getattr(active_dims, "total", X.shape[-1])
    other = f"{name}: active_dims is a mask of {total} columns, and the inputs have {X.shape[-1]} (shape {X.shape})."
    checks.refuse(total != X.shape[-1], other)
    checks.refuse(
        max(active_dims) >= X.shape[-1],
        f"{name}: active_dims {active_dims} is out of range for inputs with {X.shape[-1]} columns (shape "
        f"{tuple(X.shape)}); columns count from 0.",
    )
    return X[:, np.asarray(active_dims)]
