"""The check that a guide belongs to a model: both are the same function, or partials of it with equal arguments."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from types import MethodType
from typing import Any

import jax
import numpy as np

from gpzoo._checks import is_concrete
from gpzoo._numpyro import Messenger
from gpzoo.inference.guides.guide import InducingGuide


def refuse_other_program(model: Callable, guide: Any) -> None:
    """Refuse a model that is not the program of its guide.

    Args:
        model: the program.
        guide: an :class:`~gpzoo.inference.InducingGuide`, inside handlers such as ``scope`` or not; other guides are
            not checked.

    Raises:
        ValueError: if the guide was made from another program.
    """
    around = []
    while isinstance(guide, Messenger):
        around.append(guide)
        guide = guide.fn
    if not isinstance(guide, InducingGuide):
        return
    own = guide.model
    for handler in reversed(around):
        outer = copy(handler)
        outer.fn = own
        own = outer
    if not same_program(model, own):
        raise ValueError(
            "The guide was made of another program than the model: a guide runs its own program, and their bound would "
            "be that of neither. Pass the same program to both, svi = SVI(program, InducingGuide(program, ...), ...), "
            "and make the guide anew when the program is defined anew."
        )


def same_program(first: Any, second: Any) -> bool:
    """Whether two programs are the same function, or partials, methods or handlers of it with equal arguments."""
    if first is second:
        return True
    if type(first) is not type(second):
        return False
    if isinstance(first, MethodType):
        return first.__self__ is second.__self__ and first.__func__ is second.__func__
    if isinstance(first, partial):
        same = _equal((first.args, first.keywords), (second.args, second.keywords))
        return same and same_program(first.func, second.func)
    if isinstance(first, Messenger):
        return _equal(_options(first), _options(second)) and same_program(first.fn, second.fn)
    return False


def _options(handler: Messenger) -> dict[str, Any]:
    """The fields of a handler, without its program and without the name and docstring of this program."""
    return {name: value for name, value in vars(handler).items() if name != "fn" and not name.startswith("__")}


def _equal(first: Any, second: Any) -> bool:
    """Whether two trees of arguments are equal: arrays number by number, functions by :func:`same_program`."""
    if jax.tree.structure(first) != jax.tree.structure(second):
        return False
    return all(map(_equal_leaves, jax.tree.leaves(first), jax.tree.leaves(second)))


def _equal_leaves(first: Any, second: Any) -> bool:
    if first is second:
        return True
    if isinstance(first, np.ndarray | jax.Array) and isinstance(second, np.ndarray | jax.Array):
        return _equal_arrays(first, second)
    if callable(first):
        return same_program(first, second)
    return type(first) is type(second) and bool(first == second)


def _equal_arrays(first: Any, second: Any) -> bool:
    if not (is_concrete(first) and is_concrete(second)):
        return False
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    with jax.ensure_compile_time_eval():  # numbers inside jit, too
        return bool(np.all(first == second))
