"""Types of arguments that hold data, and the letters of shapes.

Behind the entry points annotations say shapes, ``Float[Array, "N M"]``, which the tests check at every call:

======  ================================================================================
letter  axis
======  ================================================================================
``N``   rows: data, inputs
``M``   inducing variables, or the rows of a second set of inputs
``D``   outputs: one function, and where they differ one kernel or one set of inputs each
``K``   columns of a right-hand side, classes, or outputs that are mixed from sources
``d``   columns of an input
``P``   views of an input, such as patches
``e``   numbers of a view
``S``   draws, or sampled views
======  ================================================================================

``*D`` is an axis that may be missing, ``*batch`` and ``*shape`` are any number of axes, ``...`` are those of one input
or of no concern, and ``_`` is an axis of no concern. A letter has one length in one call; axes under ``#`` broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import jax.typing


class SupportsArray(Protocol):
    """Objects that NumPy makes arrays of: arrays of pandas, PyTorch and others."""

    def __array__(self) -> Any:
        """The array."""


#: Arrays of NumPy and JAX, single numbers, what supports ``__array__``, and nested lists. Entry points make one array
#: of it, or refuse it (:func:`gpzoo._checks.data`, :func:`gpzoo._checks.floating`); everything behind them has that.
ArrayLike: TypeAlias = jax.typing.ArrayLike | SupportsArray | Sequence[Any]

#: Positional arguments of a program: arrays, lists, tuples and mappings of them, and ``None`` where the program allows.
Argument: TypeAlias = ArrayLike | Mapping[str, Any] | None
