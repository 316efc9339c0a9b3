"""What gpzoo raises when a computation cannot go on: one base class, which keeps what was already computed."""

from __future__ import annotations

from typing import Any


class GPZooError(Exception):
    """A computation that could not go on, though its arguments were accepted.

    :class:`FactorisationError`, :class:`~gpzoo.inference.NonFiniteError` and
    :class:`~gpzoo.inference.CheckpointError` are its kinds. Arguments that are refused raise ``ValueError`` or
    ``TypeError`` instead, before anything is computed.

    Args:
        message: what failed, where, and the way out.
        result: what was computed before.

    Attributes:
        result: of a training that failed, the :class:`~gpzoo.inference.FitResult` with the last good parameters;
            ``None`` where nothing had been computed.
    """

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class FactorisationError(GPZooError, ValueError):
    """A covariance matrix that is not numerically positive definite; the message says which and what to try."""
