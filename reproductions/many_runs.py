"""Many independent runs, each in its own process and folder, on this machine or on a Dask cluster."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gpzoo._extras import needs
from gpzoo.reproductions.experiment import ReproductionError, Run, changes_of
from gpzoo.reproductions.kept import read_json

#: File in the folder of a run with the output of the run.
LOG = "log.txt"

#: The command of one process, before the arguments of the run.
ALONE = (sys.executable, "-m", "gpzoo.reproductions.many_runs")


class Ended(NamedTuple):
    """The end of a run in a sweep.

    Attributes:
        run: the run.
        status: exit status of its process; ``None`` if an earlier sweep had finished the run.
        said: the last line of its log if the run failed; empty otherwise.
    """

    run: Run
    status: int | None
    said: str = ""

    @property
    def failed(self) -> bool:
        """Whether the run has no result."""
        return bool(self.status)


def sweep(
    runs: Sequence[Run], *, workers: int = 1, cluster: str | None = None, command: Sequence[str] = ALONE
) -> Iterator[Ended]:
    """Run many independent runs. Each is returned when it ends.

    A run does the same as ``gpzoo reproduce``, in its own process. Runs with a result are not run again, and stopped
    runs resume from their checkpoints. A failure does not stop other runs. The output of a run is in ``log.txt`` in its
    folder. If the sweep stops for any reason, its processes write a checkpoint and stop.

    Args:
        runs: the runs, each with its own folder.
        workers: number of processes at a time on this machine.
        cluster: address of a Dask scheduler. Its workers, which must see the same folders, replace local processes.
        command: command of one process, before the arguments of the run.

    Raises:
        ReproductionError: if two runs have the same folder, or if no scheduler answers.
    """
    if len({run.output for run in runs}) < len(runs):
        raise ReproductionError("Two runs of a sweep have the same folder.")
    done = [run for run in runs if has_result(run)]
    yield from (Ended(run, None) for run in done)
    with _dask(cluster) if cluster else _local(workers) as submit:
        waited = {
            submit(_in_process, [*command, *arguments(run)], str(run.output.absolute()), os.getcwd()): run
            for run in runs
            if run not in done
        }
        for future in as_completed(waited):
            yield Ended(waited[future], *future.result())


def has_result(run: Run) -> bool:
    """Whether the folder of a run contains its result, by the same settings, and all its other files."""
    try:
        found, mark = read_json(run.output / "result.json"), read_json(run.mark) if run.mark.exists() else {}
    except (ReproductionError, OSError):
        return False
    if not (isinstance(found, dict) and isinstance(mark, dict)) or run.other_settings(mark):
        return False
    if run.source is not None and run.source.module is not None:
        # Of several hashes, the last is that of the program that wrote the result.
        if not str(found.get("versions", {}).get(run.source.module.name)).endswith(run.source.program):
            return False
    same = run.identity.items() <= (found | {"changes": changes_of(found)}).items()
    return same and mark.get("complete", True)


def arguments(run: Run) -> list[str]:
    """The arguments with which ``gpzoo`` makes a run."""
    return [*shlex.split(run.command)[1:], "--output", str(run.output)]


@contextmanager
def _local(workers: int) -> Iterator[Any]:
    # When this process closes the pipe or is killed, all its processes read the end of the pipe and stop.
    end, held = os.pipe()
    with open(end, "rb"), ThreadPoolExecutor(workers) as executor:
        try:
            yield partial(executor.submit, stdin=end)
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
            os.close(held)


@contextmanager
def _dask(address: str) -> Iterator[Any]:
    with needs("cluster", "A sweep on a cluster"):
        from distributed import Client
    try:
        client = Client(address, timeout=30)
    except (OSError, ValueError) as error:
        raise ReproductionError(f"No Dask scheduler answers at {address}: {error}.") from error
    with client:
        # A failed run is reported, and not tried on another worker. If a worker is lost, results are not.
        yield client.get_executor(pure=False).submit


def _in_process(command: list[str], folder: str, where: str, stdin: int = subprocess.PIPE) -> tuple[int, str]:
    """Run one command. Returns its exit status, and the last line that it printed if the status is not 0."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with open(Path(folder) / LOG, "w+", encoding="utf-8") as log:
            process = subprocess.Popen(command, cwd=where, stdin=stdin, stdout=log, stderr=subprocess.STDOUT)
            status = process.wait()
            log.seek(0)
            lines = [line.strip() for line in log if line.strip()]
    except OSError as error:
        return 1, f"{folder}: {error.strerror or error}"
    return status, lines[-1] if status and lines else ""


def _stops_with_the_sweep() -> None:
    """Ask this process to stop when the other end of its standard input closes, for example if its sweep is killed."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main(args: Sequence[str] | None = None) -> None:
    """Run ``gpzoo`` with these arguments, as one run of a sweep, while the sweep lives."""
    from gpzoo.reproductions.cli import main as command

    threading.Thread(target=_stops_with_the_sweep, daemon=True).start()
    command(args)


if __name__ == "__main__":
    main()
