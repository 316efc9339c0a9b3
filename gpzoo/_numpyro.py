"""Every name of NumPyro that we lean on without a promise of its authors, gathered so that a change shows here.

NumPyro's stack of handlers is read in four places: a guide answers a site outside the handlers that the program itself
has set, and so does a whitened site; a program asks whether MCMC runs it; our handlers are told from the user's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import numpyro

try:
    from numpyro.infer.util import _unconstrain_params
    from numpyro.optim import _NumPyroOptim as Optimizer
    from numpyro.optim import _value_and_grad as value_and_grad
    from numpyro.primitives import _PYRO_STACK, Messenger
except ImportError as error:
    raise ImportError(
        f"gpzoo needs names that NumPyro {numpyro.__version__} does not have ({error}). It is known to work with "
        "NumPyro 0.22: install that, or a newer gpzoo."
    ) from error

__all__ = [
    "PREVIOUS",
    "TIME",
    "Handler",
    "Messenger",
    "Optimizer",
    "enumerated_axes",
    "given_outside",
    "handlers_around_mcmc",
    "in_chain",
    "markov_factors",
    "mask_of",
    "outside",
    "value_and_grad",
]


#: Before the names of the first steps of a chain that :func:`numpyro.contrib.control_flow.scan` runs.
PREVIOUS = "_PREV_"

#: Before the name of the axis of its other steps.
TIME = "_time"


class Handler(Messenger):
    """A handler that is entered by itself, ``with Handler() as handler``, and wraps no program."""

    def __init__(self) -> None:
        super().__init__(None)

    def __enter__(self) -> Self:
        super().__enter__()
        return self


@contextmanager
def outside(handler: Messenger) -> Iterator[None]:
    """Only the handlers outside this one see what happens here, neither it nor those inside."""
    depth = _PYRO_STACK.index(handler)
    inner = _PYRO_STACK[depth:]
    del _PYRO_STACK[depth:]
    try:
        yield
    finally:
        _PYRO_STACK.extend(inner)


def given_outside(handler: Messenger, name: str) -> bool:
    """Whether a handler outside this one has a value for a site, as ``condition`` and ``substitute`` do."""
    outer = _PYRO_STACK[: _PYRO_STACK.index(handler)]
    return any(name in data for data in (getattr(each, "data", None) for each in outer) if isinstance(data, Mapping))


def handlers_around_mcmc() -> tuple[list[Messenger], list[Messenger]] | None:
    """The handlers outside and inside those by which MCMC runs a program; ``None`` where it does not run one."""
    depth = next((i for i, handler in enumerate(_PYRO_STACK) if isinstance(handler, _unconstrain_params)), None)
    return None if depth is None else (_PYRO_STACK[:depth], _PYRO_STACK[depth + 1 :])


def in_chain(site: Mapping[str, Any]) -> bool:
    """Whether ``numpyro.contrib.control_flow.scan`` ran a site."""
    return bool(site.get("_control_flow_done"))


def mask_of(fn: Any) -> Any:
    """The mask of a ``MaskedDistribution``: an array, or a bool for all data at once."""
    return fn._mask


def enumerated_axes(shape: tuple[int, ...]) -> dict[int, str]:
    """The names of a batch shape's axes, from the right, where ``numpyro.contrib.funsor.enum`` runs the program."""
    from numpyro.contrib.funsor.enum_messenger import NamedMessenger

    return dict(NamedMessenger._get_dim_to_name(shape))


def markov_factors(
    time: Any, factors: list[Any], previous: frozenset[str], kept: frozenset[str], summed: frozenset, plates: frozenset
) -> list[Any]:
    """The factors, summed over its states, of a chain that ``numpyro.contrib.control_flow.scan`` ran.

    Args:
        time: funsor's variable of the steps.
        factors: funsors, each with ``time``.
        previous: names of the states of earlier steps.
        kept: names of all axes of the states.
        summed: names of all enumerated sites.
        plates: names of all plates.
    """
    import funsor
    from numpyro.contrib.funsor.infer_util import compute_markov_factors

    history = max(name.count(PREVIOUS) for name in previous)
    ops = funsor.ops.logaddexp, funsor.ops.add
    return compute_markov_factors({time: factors}, {time: previous}, {time: kept}, summed, plates, history, *ops)
