"""The end of a training: whether the bound was still rising, or would rise with a higher learning rate at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.infer import SVI
from numpyro.optim import Adam

from gpzoo.errors import GPZooError
from gpzoo.inference.bounds.elbo import GaussianProcessELBO
from gpzoo.inference.programs.rows import number_of_rows
from gpzoo.inference.training.fit import fit
from gpzoo.inference.training.protocol import of_objective

#: Nats per row that the last tenth of a training, or more steps, may still gain. Less hardly changes predictions.
GAINED = 0.01

#: Standard errors of a gain below which it is noise.
_ERRORS = 3

#: Steps of Adam after the end of a training, and the rates from which they fall to zero. The first rate moves
#: parameters by half of the scale of a softplus or a logarithm. If the bound falls with this rate, the rate is too high
#: to judge the training.
MORE_STEPS, RATES = 100, (0.01, 0.001)

#: Steps at which the bound is measured before and after, with the same minibatches and draws.
_LOOKS = 20

#: A training with fewer steps is not judged. With more rows per step, no steps after its end are taken.
_FEWEST, _MOST_ROWS = 20, 10_000


class Gain(NamedTuple):
    """Nats that a bound gained, with their standard error."""

    nats: float
    error: float

    def is_more_than_noise(self, rows: int) -> bool:
        """Whether a training that gains this much is not finished.

        Args:
            rows: number of training rows.
        """
        return self.nats > max(GAINED * rows, _ERRORS * self.error)


class End(NamedTuple):
    """The end of a training.

    Attributes:
        last: gain of the last tenth of the steps over the tenth before; ``None`` if the training is too short to judge.
        more: gain of :data:`MORE_STEPS` more steps; ``None`` if none were taken.
        unfinished: ``"rising"`` if the gain ``last`` is more than noise. ``"stopped"`` if only the gain ``more`` is
            more than noise. Empty for a finished training, and for a training that cannot be judged.
    """

    last: Gain | None
    more: Gain | None = None
    unfinished: str = ""

    @property
    def gain(self) -> Gain:
        """The gain that shows that the training is not finished."""
        return (self.last if self.unfinished == "rising" else self.more) or Gain(0.0, 0.0)


def end_of(losses: np.ndarray, rows: int, more: Callable[[], Gain | None] = lambda: None) -> End:
    """How a training ended: judged by its losses, and if the losses no longer fall, by more steps.

    Args:
        losses: negative bounds, ``[num_steps]``.
        rows: number of training rows.
        more: see :func:`gain_of_more_steps`.
    """
    if len(losses) < _FEWEST:
        return End(None)
    tenth, bounds = len(losses) // 10, -np.asarray(losses, np.float64)
    after, before = bounds[-tenth:], bounds[-2 * tenth : -tenth]
    error = np.hypot(_scatter(after), _scatter(before)) / np.sqrt(tenth)
    last = Gain(float(after.mean() - before.mean()), float(error))
    if last.is_more_than_noise(rows):
        return End(last, None, "rising")
    further = more()
    stopped = further is not None and further.is_more_than_noise(rows)
    return End(last, further, "stopped" if stopped else "")


def _scatter(values: np.ndarray) -> float:
    """Standard deviation around a straight line, because a slope is not noise."""
    steps = np.arange(len(values))
    return float(np.std(values - np.polyval(np.polyfit(steps, values, 1), steps)))


def gain_of_more_steps(
    rng_key: Array,
    svi: SVI,
    params: Mapping[str, Any],
    data: tuple,
    batch_size: int | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
) -> Gain | None:
    """The gain of more steps of Adam, measured before and after with the same minibatches and draws.

    Args:
        rng_key: key of minibatches and draws.
        svi: the training; if its objective finds parameters by itself, ``GaussianProcessELBO`` replaces the objective.
        params: parameters at the end of the training.
        data: the program's positional arguments.
        batch_size: rows of a step, ``None`` for all.
        model_kwargs: the program's keyword arguments, by name.

    Returns:
        The gain; ``None`` if such steps fail, or have too many rows to be quick.
    """
    rows = number_of_rows(data)
    batch_size = None if batch_size is None or batch_size >= rows else batch_size
    if (batch_size or rows) > _MOST_ROWS:
        return None
    loss = svi.loss if of_objective(svi.loss).finisher is None else GaussianProcessELBO()
    options: dict[str, Any] = {"batch_size": batch_size, "model_kwargs": model_kwargs, "progress": False}
    gain = None
    for rate in RATES:
        probe = SVI(svi.model, svi.guide, Adam(_schedule(rate)), loss, **svi.static_kwargs)
        try:
            moved = fit(rng_key, probe, MORE_STEPS + _LOOKS, *data, init_params=params, **options)
            after = fit(rng_key, probe, _LOOKS, *data, init_params=moved.params, **options)
        except GPZooError:  # steps that are too long cannot judge the parameters at which they began
            continue
        gained = np.asarray(moved.losses[:_LOOKS] - after.losses, np.float64)
        gain = Gain(float(gained.mean()), float(gained.std() / np.sqrt(_LOOKS)))
        if gain.nats >= 0:
            return gain
    return gain


def _schedule(rate: float) -> Callable[[Any], Array]:
    """A rate of zero, while Adam learns the scales of the gradients, and then a falling rate."""

    def at(step: Any) -> Array:
        part = jnp.clip((step - _LOOKS) / MORE_STEPS, 0.0, 1.0)
        return jnp.where(step < _LOOKS, 0.0, rate * (1 + jnp.cos(np.pi * part)) / 2)

    return at
