"""Every name of NumPyro that we lean on without a promise of its authors, gathered so that a change shows here.

NumPyro's stack of handlers is read in four places: a guide answers a site outside the handlers that the program itself
has set, and so does a whitened site; a program asks whether MCMC runs it; our handlers are told from the user's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpyro

try:
    from numpyro.infer.util import _unconstrain_params
    from numpyro.optim import _NumPyroOptim as Optimizer
    from numpyro.primitives import _PYRO_STACK, Messenger
except ImportError as error:
    raise ImportError(
        f"gpzoo needs names that NumPyro {numpyro.__version__} does not have ({error}). It is known to work with "
        "NumPyro 0.22: install that, or a newer gpzoo."
    ) from error

__all__ = ["Messenger", "Optimizer", "handlers_around_mcmc", "outside"]


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


def handlers_around_mcmc() -> tuple[list[Messenger], list[Messenger]] | None:
    """The handlers outside and inside those by which MCMC runs a program; ``None`` where it does not run one."""
    depth = next((i for i, handler in enumerate(_PYRO_STACK) if isinstance(handler, _unconstrain_params)), None)
    return None if depth is None else (_PYRO_STACK[:depth], _PYRO_STACK[depth + 1 :])
