"""Shapes in annotations, checked at every call: what the import hook of the tests wraps functions of gpzoo with."""

from typing import Any, get_args

import jax
import jaxtyping
import numpy as np
from beartype import beartype


def checked(function: Any) -> Any:
    """``function`` with its shapes checked, and nothing else.

    What an argument may be beyond its shape is for the gate to say, whose refusals name the argument and the way out.
    """
    function.__annotations__ = {name: hint for name, hint in function.__annotations__.items() if _has_shape(hint)}
    return beartype(function) if function.__annotations__ else function


def _has_shape(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        # Parameters that somebody substitutes may be NumPy's.
        hint.array_type = jax.Array | np.ndarray
        return True
    return any([_has_shape(part) for part in get_args(hint)])
