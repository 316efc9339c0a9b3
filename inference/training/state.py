"""The state of a training: everything that changes from one visit of the host to the next."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Integer
from numpyro.infer.svi import SVIState


class TrainState(NamedTuple):
    """Everything that changes in a training.

    Attributes:
        numpyro_state: state of NumPyro's SVI, for all replicates: parameters with the optimiser's state, mutable state,
            and the key.
        step: number of steps taken.
        losses: losses of every step, ``[K, step]``; NaN from the first step that a failed replicate has not kept.
        seconds: time that the steps took.
        failed: for each failed replicate, the number of its steps that are kept.
        before: NumPyro's state before the last chunk of steps, and the number of steps taken until then.
    """

    numpyro_state: SVIState
    step: int
    losses: Float[np.ndarray, "K step"]
    seconds: float = 0.0
    failed: Mapping[int, int] = MappingProxyType({})
    before: tuple[SVIState, int] | None = None

    @property
    def all_failed(self) -> bool:
        """Whether no replicate goes on."""
        return len(self.failed) == len(self.losses)

    def ends(self, count: int) -> Integer[np.ndarray, " K"]:
        """How many of the next ``count`` steps each replicate is to take."""
        return np.array([0 if k in self.failed else count for k in range(len(self.losses))])

    def after(
        self, after: SVIState, losses: Float[np.ndarray, "K chunk"], kept: Integer[np.ndarray, " K"], count: int
    ) -> TrainState:
        """The state after the next steps.

        Args:
            after: NumPyro's state after these steps.
            losses: losses of these steps.
            kept: how many of these steps each replicate keeps. A failed replicate keeps only some of its steps. The
                number is -1 if even the step before these steps is undone.
            count: how many steps were to be taken.
        """
        ends = self.ends(count)
        failed = dict(self.failed)
        more = np.full((len(ends), count), np.nan)
        known = np.concatenate([self.losses, more], axis=1)
        for k, steps in enumerate(kept.tolist()):
            known[k, self.step : self.step + max(steps, 0)] = losses[k, : max(steps, 0)]
            if steps < ends[k]:
                failed[k] = self.step + steps
                known[k, failed[k] :] = np.nan
        step = self.step + int(kept[ends > 0].max())
        before = self.numpyro_state, self.step
        return TrainState(after, step, known[:, :step], self.seconds, failed, before)


def restored(numpyro_state: SVIState, step: int, losses: Float[np.ndarray, "K step"], seconds: float) -> TrainState:
    """The state of a training that goes on from a checkpoint; losses that are NaN tell which replicates failed."""
    kept = np.isfinite(losses).sum(axis=1)
    failed = {k: int(kept[k]) for k in np.flatnonzero(kept < step).tolist()}
    return TrainState(numpyro_state, step, losses, seconds, failed)
