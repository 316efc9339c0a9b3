"""The progress bar of a training."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import numpy as np
from jaxtyping import Float
from tqdm import tqdm


def on_device() -> str:
    """The device of JAX, in words: ``"the CPU"``, ``"a GPU (NVIDIA A100)"``."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return "the CPU"
    return f"a {device.platform.upper()} ({device.device_kind})"


@contextmanager
def progress_bar(wanted: bool | str, total: int, done: int) -> Iterator[Callable[..., None]]:
    """A line with the training's name, and a bar with the mean ELBO of the last hundred steps and steps per second.

    Args:
        wanted: whether to show the bar; a string is the training's name.
        total: total number of steps.
        done: number of earlier steps.

    Yields:
        ``update(done, recent, failed)``: shows the number of steps taken, the mean of the recent losses ``[K, ...]``,
        and how many of several trainings failed.
    """
    name = "" if wanted is True else f" {wanted!r}"
    if wanted and 0 < total <= done:
        print(f"Training{name} is already finished at step {done:,}; nothing to train.")
    if not wanted or done >= total:
        yield lambda *_: None
        return
    resumed = f", resumed at step {done:,}" if done else ""
    print(f"Training{name} on {on_device()}{resumed}; its evidence lower bound (ELBO) should rise.")
    # A log file of a long training is not filled with bars.
    seconds = 0.1 if sys.stdout.isatty() or "ipykernel" in sys.modules else 10
    with tqdm(total=total, initial=done, unit=" steps", file=sys.stdout, mininterval=seconds) as shown:

        def update(now: int, recent: Float[np.ndarray, "K _"], failed: int) -> None:
            if recent.size:
                elbo = f"{-np.nanmean(recent):,.1f}" + (f" ({failed} failed)" if failed else "")
                shown.set_postfix_str(f"mean ELBO {elbo}", refresh=False)
                shown.update(now - shown.n)

        yield update
