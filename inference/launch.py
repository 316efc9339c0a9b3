"""Launcher of a script in several processes on one machine: it starts, watches and ends them as one.

    python -m gpzoo.inference.launch --processes 2 script.py --its-own options

In a cluster, ``srun``, ``mpirun`` or Kubernetes does this, and :func:`~gpzoo.inference.all_devices` knows them. A
single machine usually does not have these tools. A launcher of another library, such as ``torchrun``, would need that
library. It also does not set the environment variables by which JAX finds the processes.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from gpzoo.inference.training._signals import Signals
from gpzoo.inference.training.devices import PROCESS

#: Seconds that processes have to end: if they must write a checkpoint, and if they wait for a dead process.
_CHECKPOINT, _DEAD = 60.0, 5.0


def launch(processes: int, command: Sequence[str]) -> int:
    """Run a script in several processes, which :func:`~gpzoo.inference.all_devices` joins.

    If one process dies, the launcher ends the remaining processes by SIGTERM, then by SIGKILL. If the launcher gets
    SIGINT or SIGTERM, it sends the signal to all processes, so that a training writes its checkpoint.

    Args:
        processes: number of processes.
        command: the script, ``.py``, and its arguments.

    Returns:
        An exit status: 0 if all processes ended well, 1 if one died, 128 plus the signal's number after a signal.

    Raises:
        ValueError: if ``processes`` is below 1 or there is no script.
    """
    if processes < 1 or not command:
        raise ValueError(f"launch takes at least one process and a script, got {processes} and {list(command)}.")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    running: list[subprocess.Popen] = []
    with Signals(wanted=True) as signals:
        try:
            for number in range(processes):
                environment = os.environ | {"JAX_COORDINATOR_ADDRESS": address, PROCESS: f"{number}/{processes}"}
                # In its own session, because a terminal would otherwise interrupt it a second time.
                running.append(subprocess.Popen([sys.executable, *command], env=environment, start_new_session=True))
            dead = _wait(running, signals)
            if signals.received:
                _end(running, signals.received, _CHECKPOINT)
                return 128 + signals.received
            if dead is None:
                return 0
            status = running[dead].returncode
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            print(
                f"Process {dead} of {processes} {how}, so the others are ended; the same command, with any number of "
                "processes, goes on from the last checkpoint.",
                file=sys.stderr,
                flush=True,
            )
            _end(running, signal.SIGTERM, _DEAD)
            return 1
        finally:
            _end(running, signal.SIGKILL, _DEAD)


def _wait(running: Sequence[subprocess.Popen], signals: Signals) -> int | None:
    """Wait until all end, one dies (its number is returned), or a signal comes."""
    while not signals.received:
        for number, process in enumerate(running):
            if process.poll():
                return number
        if all(process.returncode == 0 for process in running):
            return None
        time.sleep(0.1)
    return None


def _end(running: Sequence[subprocess.Popen], number: int, seconds: float) -> None:
    """Send a signal to all running processes, and kill those that do not end in time."""
    for process in running:
        if process.poll() is None:
            process.send_signal(number)
    until = time.monotonic() + seconds
    for process in running:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m gpzoo.inference.launch", description="Run a script in several processes."
    )
    parser.add_argument("--processes", type=int, required=True, help="how many")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="script ...", help="the script, its arguments")
    options = parser.parse_args(arguments)
    if options.processes < 1 or not options.command:
        parser.error("at least one process and a script are needed")
    sys.exit(launch(options.processes, options.command))


if __name__ == "__main__":
    main()
