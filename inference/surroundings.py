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


class Bar:
    """A progress bar with the ELBO (mean of the last steps) and steps per second; silent if not wanted."""

    def __init__(self, wanted: bool, total: int, done: int, expectations: dict[str, str]) -> None:
        self.bar = None
        if wanted:
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.completed}/{task.total}"),
                BarColumn(),
                TextColumn("ELBO {task.fields[elbo]}"),
                TextColumn("{task.fields[rate]} steps/s"),
                TimeRemainingColumn(),
            )
            self.bar = Progress(*columns)
            device = jax.devices()[0]
            ways = "; ".join(f"{name}: {how}" for name, how in expectations.items())
            self.bar.console.print(f"Training on {device.platform} ({device.device_kind}). Expectations: {ways}.")
            self.task = self.bar.add_task("", total=total, completed=done, elbo="", rate="")
        self.started, self.first = time.perf_counter(), done

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

    def propagate(self) -> None:
        """Raise what the signal asked for.

        Raises:
            KeyboardInterrupt: after SIGINT.
            SystemExit: after SIGTERM.
        """
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt("Training was interrupted; its checkpoint is written.")
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
