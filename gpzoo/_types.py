"""What may an argument be that holds data?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import jax.typing


class SupportsArray(Protocol):
    """What NumPy makes an array of: arrays of pandas, PyTorch and others, and marginals, whose array is a draw."""

    def __array__(self) -> Any:
        """The array."""


#: Arrays of NumPy and JAX, single numbers, what supports ``__array__``, and nested lists. Entry points make one array
#: of it, or refuse it (:func:`gpzoo._checks.data`, :func:`gpzoo._checks.floating`); everything behind them has that.
ArrayLike: TypeAlias = jax.typing.ArrayLike | SupportsArray | Sequence[Any]

#: Positional arguments of a program: arrays, lists, tuples and mappings of them, and ``None`` where the program allows.
Argument: TypeAlias = ArrayLike | Mapping[str, Any] | None
