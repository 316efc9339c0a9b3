"""Which call was meant? The error of a call with the program's keywords, or as in gpzoo 0.1, shows the right one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from threading import RLock
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
from jax import tree
from numpyro.infer import SVI

from gpzoo import _checks as checks
from gpzoo._compiled import keep_compiled
from gpzoo._platform import is_traced, refuse_fork

P = ParamSpec("P")
R = TypeVar("R")

#: NumPyro has one stack of handlers for all threads: programs are run by one thread at a time.
RUNNING = RLock()


@contextmanager
def others_may_run() -> Iterator[None]:
    """For the steps of a training, which is compiled by then: other threads need not wait for its end."""
    try:
        RUNNING.release()
        held = True
    except RuntimeError:
        held = False  # no entry point called
    try:
        yield
    finally:
        if held:
            RUNNING.acquire()


_OF = "trained.{0}, on what fit returns or on trained = Trained(model, guide, params)"

#: Replacements of names of gpzoo 0.1; to be deleted in 0.3.
REMOVED = {
    "FitResult": "fit returns a Trained, with the same attributes",
    "Predictor": "a Trained keeps its compiled programs, trained.with_params(params).predict(key, X)",
    "draw_functions": "call " + _OF.format("functions(key, X)"),
    "posterior": "call " + _OF.format("posterior(key, X)"),
    "to_arviz": "call " + _OF.format("to_arviz(key, X, y)"),
}


#: What runs under a transformation too; everything else looks at numbers.
_TRACEABLE = {"setup", "init_params", "optimal", "function", "posterior"}


def removed(owner: str, name: str) -> str:
    """The message for a name that ``owner`` does not have."""
    if name in REMOVED:
        return f"{owner} has no {name} since gpzoo 0.2: {REMOVED[name]}."
    return f"{owner} has no attribute {name!r}"


def entry_point(function: Callable[P, R]) -> Callable[P, R]:
    """Make the error of a call that the signature does not allow show the right call, as far as that can be guessed.

    What the call compiles is kept for other processes. Calls of several threads take turns.

    Args:
        function: a function of the library, which takes the program's keywords in ``model_kwargs``.

    Raises:
        TypeError: with the right call, if the function is called with unknown keywords or as in gpzoo 0.1; under
            ``jax.jit`` and other transformations, where it looks at numbers.
        RuntimeError: in a process that was forked after JAX had run.
    """
    parameters = inspect.signature(function).parameters
    own = {name for name, p in parameters.items() if p.kind is not p.VAR_POSITIONAL}

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        known, name = dict(kwargs), function.__name__
        refuse_fork(name)
        if name not in _TRACEABLE and (is_traced() or not all(map(checks.is_concrete, tree.leaves((args, kwargs))))):
            raise TypeError(
                f"{name} looks at numbers, which there are none of under jax.jit, vmap or grad: call it outside. "
                "trained.function(key) and trained.posterior run inside."
            )
        keep_compiled()
        unknown = {key: known.pop(key) for key in kwargs if key not in own}
        if name == "fit" and args and isinstance(args[0], SVI):
            rng_key, svi = args[1] if len(args) > 1 else known.pop("rng_key", None), args[0]
            said, shown = "fit takes the key first", _shown(name, parameters, (rng_key, svi, *args[2:]), known)
        elif name == "predict" and "guide" in unknown:
            said, shown = "predict takes no guide", _of_trained(args, known, unknown)
        elif not unknown:
            # The library and NumPyro broadcast vectors against matrices.
            with RUNNING, jax.numpy_rank_promotion("allow"):
                return function(*args, **kwargs)
        else:
            names = " and ".join(map(repr, unknown))
            said, shown = f"{name} has no argument {names}", _shown(name, parameters, args, known)
        program = _program_kwargs(unknown, known)
        shown = shown.replace(_HERE, f", model_kwargs={program}" if program else "")
        raise TypeError(f"{said}; arguments of the program go into model_kwargs. Call {shown}.")

    return called


#: Placeholder of ``model_kwargs`` in a call.
_HERE = "\0"


def _shown(name: str, parameters: Mapping[str, Any], args: tuple, kwargs: Mapping[str, Any]) -> str:
    """The text of a call, with the values of numbers and strings, and names for all other arguments."""
    positional = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    fixed, data = args[: len(positional)], args[len(positional) :]
    words = [key if key == "rng_key" else _literal(x, key) for x, key in zip(fixed, positional, strict=False)]
    owner = words.pop(0) if positional[:1] == ["self"] else ""
    if owner:
        owner, program = type(fixed[0]).__name__, getattr(fixed[0], "model", None)
        name = f"{'guide' if owner == 'InducingGuide' else owner.lower()}.{name}"
    else:
        program = next((getattr(x, "model", x) for x in fixed if isinstance(x, SVI) or callable(x)), None)
    words += checks.positional(program, len(data))[0] if data else []
    return f"{name}({', '.join([*words, *_by_name(kwargs)])}{_HERE})"


def _of_trained(args: tuple, kwargs: Mapping[str, Any], unknown: dict[str, Any]) -> str:
    """The method call that replaces a call of ``predict`` with a guide, which is removed from ``unknown``."""
    unknown.pop("guide")
    data = checks.positional(args[1] if len(args) > 1 else None, max(len(args) - 2, 1))[0]
    words = ["key", *data, *_by_name({name: x for name, x in kwargs.items() if name != "params"})]
    return f"Trained(model, guide, params).predict({', '.join(words)}{_HERE})"


def _by_name(kwargs: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_literal(x, '...')}" for name, x in kwargs.items() if name != "model_kwargs"]


def _program_kwargs(unknown: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    given = known.get("model_kwargs")
    given = (dict(given) if isinstance(given, Mapping) else {}) | dict(unknown)
    words = [f"{name!r}: {_literal(x, '...')}" for name, x in given.items()]
    return f"{{{', '.join(words)}}}" if given else ""


def _literal(x: Any, name: str) -> str:
    """The text of an argument: its value if that is short, else ``name``."""
    plain = x is None or isinstance(x, bool | int | float | str | np.generic)
    few = isinstance(x, tuple | list) and len(x) <= 4 and all(isinstance(i, bool | int | float) for i in tree.leaves(x))
    return f"{x!r:.60}" if plain or few else name
