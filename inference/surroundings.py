"""Around a training: its progress bar, the signals that stop it, and the threads that would slow it down."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np


def on_device() -> str:
    """Where JAX computes, in words: ``"the CPU"``, ``"a GPU (NVIDIA A100)"``."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return "the CPU"
    return f"a {device.platform.upper()} ({device.device_kind})"


class Bar:
    """A line that says what is trained, and a bar with the mean ELBO of the last hundred steps and steps per second.

    Args:
        wanted: whether there are any; a string is the training's name.
        total: steps in all.
        done: steps that were taken before.
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

    def update(self, done: int, recent: np.ndarray, failed: int = 0) -> None:
        """Show that ``done`` steps are taken, with these last losses, and how many of several trainings failed."""
        if self.bar is not None and recent.size:
            rate = (done - self.first) / (time.perf_counter() - self.started)
            elbo = f"{-np.nanmean(recent):,.1f}" + (f" ({failed} failed)" if failed else "")
            self.bar.update(self.task, completed=done, elbo=elbo, rate=f"{rate:.1f}")


class Signals:
    """Turns SIGINT and SIGTERM into a request to stop after the current chunk."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted and threading.current_thread() is threading.main_thread()
        self.received: int | None = None

    def __enter__(self) -> Signals:
        if self.wanted:
            self.previous = {s: signal.signal(s, self._note) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exception: Any) -> None:
        if self.wanted:
            for number, handler in self.previous.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: Any) -> None:
        self.received = number

    def propagate(self, kept: bool) -> None:
        """Raise what the signal asked for, saying whether the state is ``kept`` in a checkpoint.

        Raises:
            KeyboardInterrupt: after SIGINT.
            SystemExit: after SIGTERM.
        """
        if self.received == signal.SIGINT:
            what = "its last steps could not be written to a checkpoint"
            if kept:
                what = "its checkpoint is written, from which the same call goes on"
            raise KeyboardInterrupt(f"Training was interrupted; {what}.")
        if self.received == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """On CPU, LAPACK's own threads fight XLA's: with them small factorisations take 50 times as long."""
    if jax.default_backend() != "cpu":
        yield
        return
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        yield
