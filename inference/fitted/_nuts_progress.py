"""Progress of NUTS in words: an estimate of the run time, a bar, and a sentence at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS

#: Leapfrog steps of a NUTS step in the time estimate: trajectories have eight points, as for a normal density.
_LEAPS = 7

#: R-hat above which chains have not mixed, as in :func:`~gpzoo.inference.diagnose`.
_MIXED = 1.01

#: Seconds between two looks at the state. The device waits during a look.
_LOOK = 0.2


def wanted(progress: bool | None) -> bool:
    """Whether to show progress. The default is to show it in terminals and notebooks."""
    return (sys.stderr.isatty() or "ipykernel" in sys.modules) if progress is None else progress


class WatchedNUTS(NUTS):
    """NUTS for NumPyro's bar over vectorised chains, with the draws of :class:`numpyro.infer.NUTS` up to rounding.

    Each step is a compiled program of its own. Such a program is kept, but a program with a callback inside is not.

    Args:
        *args: arguments of :class:`numpyro.infer.NUTS`.
        in_turn: whether chains step one after another. Side by side, all chains wait for the longest trajectory.
        **kwargs: keyword arguments of :class:`numpyro.infer.NUTS`.
    """

    def __init__(self, *args: Any, in_turn: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.in_turn, self.watched = in_turn, False
        self._steps: list[tuple[Array, Array]] = []

    @property
    def is_ensemble_kernel(self) -> bool:
        """Whether NumPyro's bar shows :meth:`get_diagnostics_str` for several chains."""
        return self.watched

    def init(
        self,
        rng_key: Array,
        num_warmup: int,
        init_params: Any = None,
        model_args: tuple = (),
        model_kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """The initial state; with several keys, the initial state of each chain."""
        self._num_warmup, kwargs = num_warmup, model_kwargs or {}
        if not (self.in_turn and jax.random.key_data(rng_key).ndim == 2):
            return super().init(rng_key, num_warmup, init_params, model_args, kwargs)
        of_one = super().init
        return lax.map(lambda x: of_one(x[0], num_warmup, x[1], model_args, kwargs), (rng_key, init_params))

    def sample(self, state: Any, model_args: tuple, model_kwargs: dict[str, Any]) -> Any:
        """A step of one chain, or of all chains."""
        of_one = super().sample
        if not (self.in_turn and state.i.ndim):
            return of_one(state, model_args, model_kwargs)
        return lax.map(lambda one: of_one(one, model_args, model_kwargs), state)

    def get_diagnostics_str(self, state: Any) -> str:
        """Divergences after warmup and the step size, updated a few times a second."""
        self._steps.append((state.i, state.diverging))
        if time.perf_counter() > self._due:
            for step, diverging in self._steps:
                self._divergences += int(np.sum(diverging)) if np.max(step) > self._num_warmup else 0
            self._steps = []
            size = float(np.mean(state.adapt_state.step_size))
            self._words = f"{self._divergences} divergences, step size {size:.2g}"
            self._due = time.perf_counter() + _LOOK
        return self._words

    @contextmanager
    def spoken(self, mcmc: MCMC, gradient: float) -> Iterator[None]:
        """Report how long the run in this context may take, and afterwards how it went.

        Args:
            mcmc: the run.
            gradient: seconds that a gradient takes.
        """
        chains = "1 chain" if mcmc.num_chains == 1 else f"{mcmc.num_chains} chains"
        steps = (mcmc.num_warmup + mcmc.num_samples) * (mcmc.num_chains if self.in_turn else 1)
        about = _in_words(steps * _LEAPS * gradient)
        print(
            f"NUTS: {chains} of {mcmc.num_warmup} + {mcmc.num_samples} steps, about {about} after compiling, "
            f"at {_LEAPS} gradients of {1000 * gradient:.2g} ms a step.",
            file=sys.stderr,
        )
        self._divergences, self._words, self._due, began = 0, "", 0.0, time.perf_counter()
        self.watched = True
        try:
            yield
        finally:
            self.watched, self._steps = False, []
        print(f"NUTS took {_in_words(time.perf_counter() - began)}: {told(mcmc)}.", file=sys.stderr)


def told(mcmc: MCMC) -> str:
    """Divergences, the largest R-hat and the smallest effective sample size of a run, in words."""
    words = f"{int(np.sum(mcmc.get_extra_fields()['diverging']))} divergences"
    rhat, ess = [], []
    for value in mcmc.get_samples(group_by_chain=True).values():
        draws = np.asarray(value, np.float64)
        if draws.shape[1] >= 4:
            rhat.append(np.max(split_gelman_rubin(draws), initial=1.0))
            ess.append(np.min(effective_sample_size(draws), initial=np.inf))
    if rhat:
        words += f", largest r_hat {np.max(rhat):.3f}, smallest effective sample size {np.min(ess):,.0f}"
        if np.max(rhat) > _MIXED:
            words += f"; above {_MIXED} chains have not mixed: run longer"
    return words


def _in_words(seconds: float) -> str:
    return f"{seconds / 60:.1f} minutes" if seconds >= 90 else f"{seconds:.2g} s"
