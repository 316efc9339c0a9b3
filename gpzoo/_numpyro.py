"""Names of NumPyro that gpzoo uses although they are not public, all in one file, so that a change shows here.

Two functions read NumPyro's stack of handlers; no function changes it. :func:`handlers_around_mcmc` finds out whether
MCMC runs a program. :func:`given_outside` finds out whether a handler around a program has a value for a site.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
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
    "OwnSites",
    "enumerated_axes",
    "given_outside",
    "handlers_around_mcmc",
    "in_chain",
    "markov_factors",
    "mask_of",
    "value_and_grad",
]


#: Prefix of the names of the first steps of a chain that :func:`numpyro.contrib.control_flow.scan` runs.
PREVIOUS = "_PREV_"

#: Prefix of the name of the axis of the other steps of such a chain.
TIME = "_time"


class Handler(Messenger):
    """A handler for ``with Handler() as handler``, which does not wrap a program."""

    def __init__(self) -> None:
        super().__init__(None)

    def __enter__(self) -> Self:
        super().__enter__()
        return self


class OwnSites(Handler):
    """Sites that a handler adds while it answers another site; handlers outside it get the added sites unchanged.

    Handlers of the program, such as a plate or a ``scope``, may stand between the added sites and the handler. They
    change names, scales and values of messages. This class undoes these changes. The handler uses this class as a
    context around the code with the added sites, and calls :meth:`restored` and :meth:`answered` for every message.
    """

    def __init__(self) -> None:
        super().__init__()
        self._on_the_way: list[_OnTheWay] = []
        self._copied: dict[str, tuple[Any, ...]] = {}

    def process_message(self, msg: dict[str, Any]) -> None:
        """Keep the original form of a message, before any other handler changes it."""
        written = dict(msg)
        for part in _CHANGED_IN_PLACE:
            if part in msg:
                written[part] = copy(msg[part])
        self._on_the_way.append(_OnTheWay(msg, written))

    def restored(self, msg: dict[str, Any]) -> bool:
        """Whether a message belongs to an added site; if so, the message is restored to its original form."""
        if not self._on_the_way or self._on_the_way[-1].message is not msg:
            return False
        msg.clear()
        msg.update(self._on_the_way[-1].written)
        return True

    def answered(self, msg: dict[str, Any]) -> None:
        """Keep the value from the outer handlers, before handlers of the program change it."""
        if self._on_the_way and self._on_the_way[-1].message is msg:
            self._on_the_way[-1].answer = (msg["value"],)

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        """Put the kept value into the message.

        Raises:
            ValueError: if a handler of the program has hidden the site.
        """
        back = self._on_the_way.pop()
        name = back.written.get("name")
        # Handlers such as ``do`` send a copy of the message on, and keep the message itself.
        answer = back.answer or self._copied.pop(str(name), ())
        if name and any(each.written.get("name") == name for each in self._on_the_way):
            self._copied[name] = answer
        if not answer:
            raise ValueError(
                f"Site {msg.get('name')!r} does not get out of the program, where handlers.block hides it: have "
                "handlers.block name what it hides, hide=[...], or take it out of the program."
            )
        (msg["value"],) = answer


#: Parts of a message that handlers change in place.
_CHANGED_IN_PLACE = "kwargs", "infer", "cond_indep_stack"


@dataclass
class _OnTheWay:
    """A message on its way through the handlers, its original form, and the value that it got, if there is one."""

    message: dict[str, Any]
    written: dict[str, Any]
    answer: tuple[Any, ...] = ()


def given_outside(handler: Messenger, name: str) -> bool:
    """Whether a handler outside this one has a value for a site, as ``condition`` and ``substitute`` do."""
    outer = _PYRO_STACK[: _PYRO_STACK.index(handler)]
    return any(name in data for data in (getattr(each, "data", None) for each in outer) if isinstance(data, Mapping))


def handlers_around_mcmc() -> tuple[list[Messenger], list[Messenger]] | None:
    """The handlers outside and inside the handler with which MCMC runs a program; ``None`` if MCMC does not run it."""
    for depth, handler in enumerate(_PYRO_STACK):
        if isinstance(handler, _unconstrain_params):
            return _PYRO_STACK[:depth], _PYRO_STACK[depth + 1 :]
    return None


def in_chain(site: Mapping[str, Any]) -> bool:
    """Whether ``numpyro.contrib.control_flow.scan`` ran a site."""
    return bool(site.get("_control_flow_done"))


def mask_of(fn: Any) -> Any:
    """The mask of a ``MaskedDistribution``: an array, or one bool for all rows."""
    return fn._mask


def enumerated_axes(shape: tuple[int, ...]) -> dict[int, str]:
    """The names of a batch shape's axes, from the right, while ``numpyro.contrib.funsor.enum`` runs the program."""
    from numpyro.contrib.funsor.enum_messenger import NamedMessenger

    return dict(NamedMessenger._get_dim_to_name(shape))


def markov_factors(
    time: Any, factors: list[Any], previous: frozenset[str], kept: frozenset[str], summed: frozenset, plates: frozenset
) -> list[Any]:
    """The factors of a chain that ``numpyro.contrib.control_flow.scan`` ran, summed over the states of the chain.

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
