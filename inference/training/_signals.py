"""Signals SIGINT and SIGTERM, which stop a training after the current chunk."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any


class Signals:
    """Turns SIGINT and SIGTERM into a request to stop, for example after the current chunk of steps.

    Args:
        wanted: whether it does so; only in the main thread.

    Attributes:
        received: number of the last signal.
    """

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

    def propagate(self, kept: Path | None) -> None:
        """Raise the signal's exception, which names the folder in which a checkpoint keeps the state.

        Raises:
            KeyboardInterrupt: after SIGINT.
            SystemExit: after SIGTERM.
        """
        what = "its last steps could not be written to a checkpoint"
        if kept is not None:
            what = f"its checkpoint is written to {kept}, and the same call resumes from it"
        said = f"Training was interrupted; {what}."
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt(said)
        if self.received == signal.SIGTERM:
            end = SystemExit(said)
            end.code = 128 + signal.SIGTERM
            raise end
