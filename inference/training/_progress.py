"""The progress bar of a training."""

from __future__ import annotations

import time
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


class Bar:
    """A line with the training's name, and a bar with the mean ELBO of the last hundred steps and steps per second.

    Args:
        wanted: whether to show them; a string is the training's name.
        total: total number of steps.
        done: number of earlier steps.
    """

    def __init__(self, wanted: bool | str, total: int, done: int) -> None:
        self.bar = None
        self.started, self.first = time.perf_counter(), done
        if not wanted or not total:
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console, name = Console(), "" if wanted is True else f" {wanted!r}"
        if done >= total:
            self._say(console, f"Training{name} is already finished at step {done:,}; nothing to train.")
            return
        resumed = f", resumed at step {done:,}" if done else ""
        self._say(console, f"Training{name} on {on_device()}{resumed}; its evidence lower bound (ELBO) should rise.")
        columns = (
            TextColumn("{task.completed}/{task.total}"),
            BarColumn(bar_width=None),
            TextColumn("mean ELBO {task.fields[elbo]}"),
            TextColumn("{task.fields[rate]} steps/s"),
            TimeRemainingColumn(),
        )
        self.bar = Progress(*columns, console=console)
        self.task = self.bar.add_task("", total=total, completed=done, elbo="", rate="")

    @staticmethod
    def _say(console: Any, text: str) -> None:
        console.print(text, markup=False, highlight=False)

    def __enter__(self) -> Bar:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self.bar is not None:
            self.bar.stop()

    def update(self, done: int, recent: Float[np.ndarray, "K _"], failed: int = 0) -> None:
        """Show the number of steps taken, the mean of the recent losses, and how many of several trainings failed."""
        if self.bar is not None and recent.size:
            rate = (done - self.first) / (time.perf_counter() - self.started)
            elbo = f"{-np.nanmean(recent):,.1f}" + (f" ({failed} failed)" if failed else "")
            self.bar.update(self.task, completed=done, elbo=elbo, rate=f"{rate:.1f}")
