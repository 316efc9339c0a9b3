"""The progress bar of a training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jaxtyping import Float


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
        wanted: whether to show them; a string is the training's name.
        total: total number of steps.
        done: number of earlier steps.

    Yields:
        ``update(done, recent, failed)``: shows the number of steps taken, the mean of the recent losses ``[K, ...]``,
        and how many of several trainings failed.
    """
    if not wanted or not total:
        yield _nothing
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console, name = Console(), "" if wanted is True else f" {wanted!r}"
    said = f"Training{name} is already finished at step {done:,}; nothing to train."
    if done < total:
        resumed = f", resumed at step {done:,}" if done else ""
        said = f"Training{name} on {on_device()}{resumed}; its evidence lower bound (ELBO) should rise."
    console.print(said, markup=False, highlight=False)
    if done >= total:
        yield _nothing
        return
    started, columns = time.perf_counter(), ("mean ELBO {task.fields[elbo]}", "{task.fields[rate]} steps/s")
    texts = TextColumn("{task.completed}/{task.total}"), BarColumn(bar_width=None), *map(TextColumn, columns)
    with Progress(*texts, TimeRemainingColumn(), console=console) as shown:
        task = shown.add_task("", total=total, completed=done, elbo="", rate="")

        def update(now: int, recent: Float[np.ndarray, "K _"], failed: int) -> None:
            if recent.size:
                rate = (now - done) / (time.perf_counter() - started)
                elbo = f"{-np.nanmean(recent):,.1f}" + (f" ({failed} failed)" if failed else "")
                shown.update(task, completed=now, elbo=elbo, rate=f"{rate:.1f}")

        yield update


def _nothing(*_: Any) -> None:
    """Shows nothing."""
