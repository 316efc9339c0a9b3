"""What a GP site's value is in the current run: a joint draw, marginals, estimates, or something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from jax import Array

#: How GP sites are represented in the current call; the numbers of the inputs' rows, and the key of views, or None.
_REPRESENTATION: ContextVar[tuple[str | Callable, Array | None, Array | None]] = ContextVar(
    "representation", default=("joint", None, None)
)


@contextmanager
def representing(how: str | Callable, rows: Array | None = None, views: Array | None = None) -> Iterator[None]:
    """Choose how guides represent GP sites in this context.

    Args:
        how: ``"joint"``: draws over all inputs together; ``"marginals"``: marginals where the program allows and a
            draw per input elsewhere; ``"bound"``: the same, and estimated moments where a kernel samples views;
            ``"mean"``: the posterior mean, for starting values; ``"conditional"``: a draw of ``u``, recorded as
            ``<site>_u``, and a joint draw given it. Or a function of the site's
            :class:`~gpzoo.InducingPosterior` and a random key that returns the value, an array.
        rows: numbers that identify the inputs' rows, see :class:`~gpzoo.GaussianMarginals`.
        views: the key by which sampled views are drawn, once and for all inputs; the site's own if ``None``.
    """
    token = _REPRESENTATION.set((how, rows, views))
    try:
        yield
    finally:
        _REPRESENTATION.reset(token)
