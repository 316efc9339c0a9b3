"""Which call was meant? A call with keywords of the program, or as in gpzoo 0.1, is told the one that is right."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
from jax import tree
from numpyro.infer import SVI

from gpzoo import _checks as checks

P = ParamSpec("P")
R = TypeVar("R")

_OF = "trained.{0}, on what fit returns or on trained = Trained(model, guide, params)"

#: What does the work of names that gpzoo 0.1 had; to be deleted in 0.3.
REMOVED = {
    "FitResult": "fit returns a Trained, with the same attributes",
    "Predictor": "a Trained keeps its compiled programs, trained.with_params(params).predict(key, X)",
    "draw_functions": "call " + _OF.format("functions(key, X)"),
    "posterior": "call " + _OF.format("posterior(key, X)"),
    "to_arviz": "call " + _OF.format("to_arviz(key, X, y)"),
}


def removed(owner: str, name: str) -> str:
    """What to say of a name that ``owner`` does not have."""
    if name in REMOVED:
        return f"{owner} has no {name} since gpzoo 0.2: {REMOVED[name]}."
    return f"{owner} has no attribute {name!r}"


def entry_point(function: Callable[P, R]) -> Callable[P, R]:
    """Have a call that the signature does not allow, as far as it can be told what was meant, print the right one.

    Args:
        function: whose keywords are all the library's; the program's go into its ``model_kwargs``.

    Raises:
        TypeError: when called with keywords that are not its own, or as in gpzoo 0.1, with the call in its words.
    """
    parameters = inspect.signature(function).parameters
    own = {name for name, p in parameters.items() if p.kind is not p.VAR_POSITIONAL}

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        known, name = dict(kwargs), function.__name__
        unknown = {key: known.pop(key) for key in kwargs if key not in own}
        if name == "fit" and args and isinstance(args[0], SVI):
            rng_key, svi = args[1] if len(args) > 1 else known.pop("rng_key", None), args[0]
            said, shown = "fit takes the key first", _shown(name, parameters, (rng_key, svi, *args[2:]), known)
        elif name == "predict" and "guide" in unknown:
            said, shown = "predict takes no guide", _of_trained(args, known, unknown)
        elif not unknown:
            return function(*args, **kwargs)
        else:
            names = " and ".join(map(repr, unknown))
            said, shown = f"{name} has no argument {names}", _shown(name, parameters, args, known)
        program = _program_kwargs(unknown, known)
        shown = shown.replace(_HERE, f", model_kwargs={program}" if program else "")
        raise TypeError(f"{said}; arguments of the program go into model_kwargs. Call {shown}.")

    return called


#: Where a call's ``model_kwargs`` come.
_HERE = "\0"


def _shown(name: str, parameters: Mapping[str, Any], args: tuple, kwargs: Mapping[str, Any]) -> str:
    """A call in words: numbers and texts as they are, the rest by the names of arguments."""
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
    """The call of a method for one of ``predict`` with a guide, which is taken out of ``unknown``."""
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
    """What stands for a value in a call: the value where it is short, else the name."""
    plain = x is None or isinstance(x, bool | int | float | str | np.generic)
    few = isinstance(x, tuple | list) and len(x) <= 4 and all(isinstance(i, bool | int | float) for i in tree.leaves(x))
    return f"{x!r:.60}" if plain or few else name
