"""Entry points, the functions that users call: they refuse calls that make no sense, and prepare JAX for the others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import wraps
from threading import RLock
from typing import Any, ParamSpec, TypeVar

import jax
from jax import tree

from gpzoo import _checks as checks
from gpzoo._compiled import keep_compiled
from gpzoo._platform import is_traced, refuse_fork

P = ParamSpec("P")
R = TypeVar("R")

#: NumPyro has one stack of handlers for all threads, so one thread at a time runs programs.
RUNNING = RLock()

#: Text at the end of the docstring of each entry point.
_NOTE = """Note:
    The first such call of a process lets JAX keep compiled programs in the user's cache. For this, gpzoo sets
    ``jax_compilation_cache_dir``, and JAX's smallest time and size of an entry, for the whole process. gpzoo does not
    change them if a cache is set already, or if the environment variable ``GPZOO_COMPILED`` is ``off``."""


@contextmanager
def others_may_run() -> Iterator[None]:
    """Let other threads run programs during the steps of a training, after the training's own program is traced."""
    try:
        RUNNING.release()
        held = True
    except RuntimeError:
        held = False  # no entry point made this call
    try:
        yield
    finally:
        if held:
            RUNNING.acquire()


def entry_point(function: Callable[P, R]) -> Callable[P, R]:
    """A function of the library as users call it.

    Calls from several threads take turns. In a call, vectors broadcast against matrices, even if
    ``jax_numpy_rank_promotion`` forbids it outside. The first call of a process sets up JAX's cache of compiled
    programs for the whole process. A note about this cache is added to the docstring of each entry point.

    Args:
        function: a function or a method, which takes the program's keywords in ``model_kwargs`` if it has any.

    Raises:
        TypeError: if the function is called with unknown keywords, or without a key as its first argument. Also
            under ``jax.jit`` and other transformations, because the function needs the values of its arguments.
        RuntimeError: in a process that was forked after JAX had run.
    """
    return _called(function)


def traceable_entry_point(function: Callable[P, R]) -> Callable[P, R]:
    """An :func:`entry_point` that may also be called under ``jax.jit`` and other transformations of JAX."""
    return _called(function, traceable=True)


def _called(function: Callable[P, R], traceable: bool = False) -> Callable[P, R]:
    parameters, name = inspect.signature(function).parameters, function.__name__

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        refuse_fork(name)
        if not traceable and (is_traced() or not all(map(checks.is_concrete, tree.leaves((args, kwargs))))):
            raise TypeError(
                f"{name} looks at numbers, and under jax.jit, vmap or grad there are only tracers: call it outside. "
                "Inside, use trained.function(key) or trained.posterior."
            )
        _refuse_call(name, parameters, args, kwargs)
        keep_compiled()
        # The library and NumPyro broadcast vectors against matrices.
        with RUNNING, jax.numpy_rank_promotion("allow"):
            return function(*args, **kwargs)

    called.__doc__ = f"{inspect.getdoc(function)}\n\n{_NOTE}"
    return called


def _refuse_call(name: str, parameters: Mapping[str, Any], args: tuple, kwargs: Mapping[str, Any]) -> None:
    """Refuse keywords that the function does not have, and a first argument that is not the key it should be."""
    words = [word for word in parameters if word not in ("self", "cls")]
    given = args[len(parameters) - len(words) :]
    if words[0] == "rng_key" and given:
        try:
            checks.rng_key(given[0], several=True)
        except TypeError as error:
            raise TypeError(f"{name} takes the key first, {name}(jax.random.key(0), ...): {error}") from None
    own = {word for word, p in parameters.items() if p.kind is not p.VAR_POSITIONAL}
    if unknown := [word for word in kwargs if word not in own]:
        shown = ", ".join(f"{word!r}: ..." for word in unknown)
        way = f"; the program's inputs and data go by position, all else into model_kwargs={{{shown}}}"
        way = way if "model_kwargs" in own else ""
        near = [other for word in unknown for other in get_close_matches(word, own, 1, 0.75)]
        but = f", but {' and '.join(map(repr, near))}" if near else ""
        raise TypeError(f"{name} has no argument {' and '.join(map(repr, unknown))}{but}{way}.")
