"""How does another library take its turn in a benchmark? In a process of its own, which waits for ours."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any


class Peer:
    """A process that prints a line of JSON when it is ready, and one for every line that it reads.

    Args:
        name: for messages.
        command: starts it.
        environment: further variables.

    Attributes:
        first: what it printed first, such as its versions.

    Raises:
        RuntimeError: if it stops; the message has the command, which prints why.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.name, self.command = name, list(command)
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(self.command, env=os.environ | dict(environment or {}), text=True, **pipes)
        self.first = self._read()

    @classmethod
    def of_code(cls, name: str, python: str, code: str, case: Mapping[str, Any]) -> Peer:
        """Python code that finds ``case`` in its first argument, apart from this folder and ``PYTHONPATH``."""
        return cls(name, [python, "-I", "-W", "ignore", "-c", code, json.dumps(case)])

    def __call__(self, line: Any = None) -> Any:
        """Its answer to a line."""
        self.process.stdin.write(f"{json.dumps(line)}\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} stopped; run: {' '.join(self.command)}")
        return json.loads(line)

    def close(self) -> None:
        """End it."""
        self.process.stdin.close()
        self.process.wait()
