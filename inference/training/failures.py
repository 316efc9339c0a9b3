"""What becomes of a member that fails? It goes back to its last good state, and an error says what failed and why."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Integer
from numpyro.infer.svi import SVIState

from gpzoo.errors import FactorisationError, PrecisionWarning
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.training.explain import Failed, explain_failure
from gpzoo.inference.training.state import Training


class Chunk(NamedTuple):
    """Steps that the members have begun together.

    Attributes:
        start: state before them.
        feed: their rows.
        counts: how many steps each member was to take.
        values: their losses.
        begun: how many steps each member has begun; one whose loss is not finite is its last.
    """

    start: SVIState
    feed: Any
    counts: Integer[np.ndarray, " K"]
    values: Float[np.ndarray, "K chunk"]
    begun: Integer[np.ndarray, " K"]


def step_back(training: Training, chunk: Chunk, bad: Bool[np.ndarray, " K"]) -> Integer[np.ndarray, " K"]:
    """Put members that failed back to their last good state; returns how many steps of the chunk they keep.

    A state is good if it is finite, and the bound there is. So the update before a bound that is not finite is taken
    back too; at the beginning of a chunk that is the last one of the chunk before, -1. No step is selected or copied
    for this: chunks that run again give the same numbers.

    Args:
        training: after the chunk.
        chunk: its last steps.
        bad: which members failed.
    """
    steps, where, start, feed = training.steps, training.members.where, chunk.start, chunk.feed

    def after(state: SVIState, feed: Any, counts: Integer[np.ndarray, " K"]) -> SVIState:
        return steps.take(steps.copy(state), feed, counts)[0]

    low, high, width = np.where(bad, 0, chunk.begun), chunk.begun, 1
    training.state = where(bad, start, training.state)
    while (open_ := bad & (high - low > 1)).any():
        # As a rule only the last step or two are bad.
        middle = np.maximum(high - width, (low + high) // 2)
        state = after(start, feed, np.where(open_, middle, 0))
        good = open_ & steps.finite(state)
        training.state = where(good, state, training.state)
        low, high = np.where(good, middle, low), np.where(open_ & ~good, middle, high)
        width *= 2
    losses = chunk.values[np.arange(len(low)), np.minimum(low, chunk.values.shape[1] - 1)]
    worse = bad & ~np.isfinite(losses)
    if (again := worse & (low > 0)).any():
        training.state = where(again, after(start, feed, np.where(again, low - 1, 0)), training.state)
    if (before := worse & (low == 0)).any() and training.earlier is not None:
        state, step = training.earlier
        count = training.done - step
        state = after(state, training.source.feed(step, count), np.where(before, count - 1, 0))
        training.state = where(before, state, training.state)
        again |= before
    return low - again


def _failing(training: Training, k: int) -> tuple[int, SVIState, SVIState, float]:
    """The step of a failed member that is not finite, the states before and after it, and its loss."""
    state, only, steps = training.state, (np.arange(training.members.count) == k).astype(int), training.steps
    for step in (training.failed[k], training.failed[k] + 1):
        before = state
        state, values, _ = steps.take(steps.copy(before), training.source.feed(step, 1), only)
        loss = float(np.asarray(values).reshape(len(only), -1)[k, 0])
        if not np.isfinite(loss) or not steps.finite(state)[k]:
            break
    return step, before, state, loss


def raise_failure(training: Training, num_steps: int) -> None:
    """Raise the error of the first member that failed."""
    members, found = training.members, {k: _failing(training, k) for k in sorted(training.failed)}
    k = min(found)
    step, before, after, loss = found[k]
    where, kept = "Training", training.failed[k]
    which = "The initial parameters" if kept == 0 else f"The last good parameters, after step {kept},"
    if kept > 0 and step == kept and not np.isfinite(loss):
        which = f"The parameters after step {kept}, from which this training was resumed,"
    if members.several:
        failed = ", ".join(f"{member} at step {at + 1}" for member, (at, *_) in found.items())
        rest = f"; the others are at step {training.done} of {num_steps}" if len(found) < members.count else ""
        where = f"{len(found)} of {members.count} trainings failed, {failed}{rest}. Member {k}"
    before, after = members.of(k, training.placement.here((before, after)))
    batch, arrays = training.source.batch(k, step), training.arrays_of(k)
    explain_failure(
        Failed(training.svi, before, after, loss, batch, arrays, training.static),
        training.result,
        where=f"{where} stopped at step {step + 1}",
        kept=f"{which} are in this error's .result{_of_all(training)}.",
        initial=step == 0,
    )


def refuse_coinciding(training: Training) -> None:
    """Refuse sites that are not whitened and have more inducing variables that coincide than others.

    Raises:
        FactorisationError: naming the first, with the initial parameters.
    """
    guide, members = training.svi.guide, training.members
    if not isinstance(guide, InducingGuide) or guide.whitens_all:
        return
    params = training.params
    for k, key in enumerate(members.keys):
        kwargs = training.arrays_of(k) | training.static
        found = guide.coinciding(key, members.of(k, params), training.source.batch(k, 0), kwargs)
        for site, (count, size) in found.items():
            # A few do little harm: of 300 in 4 dimensions, when 100 coincide, 150 steps take the loss from 4263 to
            # 1320 (distinct ones to 355), when 297 do, to 4963 by way of 3e6.
            if 2 * count > size:
                raise FactorisationError(
                    f"Training{f' {k} of {members.count}' if members.several else ''} cannot begin: {count} of the "
                    f"{size} inducing variables of site {site!r} coincide with an earlier one up to the jitter, so "
                    "that Kuu is singular but for it, and with whiten=False small steps along their differences cost "
                    "the bound much. Use whiten=True, fewer or distinct inducing inputs, a shorter initial "
                    "lengthscale, or a larger GaussianProcess(jitter=...). The initial parameters are in this error's "
                    f".result{_of_all(training)}.",
                    training.result,
                )


def _of_all(training: Training) -> str:
    return ", of all members" if training.members.several else ""


def warn_if_fallen(losses: Float[np.ndarray, "*K steps"], num_rows: int) -> None:
    """Warn of a collapsed bound that ended a nat a row below its best: rounding errors or long steps misled the search.

    Args:
        losses: negative bounds of each step.
        num_rows: of the data.
    """
    fallen = np.max(losses[..., -1:] - np.min(losses, axis=-1, keepdims=True, initial=np.inf), initial=0.0)
    if fallen > num_rows:
        warnings.warn(
            f"The collapsed bound ended {fallen:,.0f} nats below the best that it had. Rounding errors lift it where "
            "noise is small: train in float64 (numpyro.enable_x64()), or give the noise variance a prior that keeps it "
            "from zero. With an optimiser that has a learning rate this may be too high.",
            PrecisionWarning,
            stacklevel=3,
        )
