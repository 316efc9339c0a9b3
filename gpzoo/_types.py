"""Types of arguments that hold data, and the letters of shapes.

Behind the entry points, annotations have shapes, ``Float[Array, "N M"]``. The tests check these shapes at every call:

======  ================================================================================
letter  axis
======  ================================================================================
``N``   rows: data, inputs
``M``   inducing variables, or the rows of a second set of inputs
``D``   outputs: each has its own function, and possibly its own kernel or inputs
``K``   columns of a right-hand side, classes, or outputs that are sums of several functions
``d``   columns of an input
``P``   views of an input, such as patches
``e``   numbers of a view
``S``   draws, or sampled views
======  ================================================================================

``*D`` is an axis that may be missing. ``*batch`` and ``*shape`` are any number of axes. ``...`` are the axes of one
input, or axes whose lengths do not matter. ``_`` is one axis whose length does not matter. A letter has one length in
one call. Axes under ``#`` broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import jax.typing


class SupportsArray(Protocol):
    """Objects that NumPy can convert to arrays: arrays of pandas, PyTorch and others."""

    def __array__(self) -> Any:
        """The array."""


#: Arrays of NumPy and JAX, single numbers, objects with ``__array__``, and nested lists. Entry points convert such an
#: argument to one array, or refuse it (:func:`gpzoo._checks.data`, :func:`gpzoo._checks.floating`). All code behind the
#: entry points gets this array.
ArrayLike: TypeAlias = jax.typing.ArrayLike | SupportsArray | Sequence[Any]

#: Positional arguments of a program: arrays; lists, tuples and mappings of arrays; ``None`` if the program allows it.
Argument: TypeAlias = ArrayLike | Mapping[str, Any] | None
