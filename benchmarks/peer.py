"""How do two libraries take turns in a benchmark? Each in a process of its own, which takes steps when it is asked to.

A shared machine drifts by more than libraries differ, so that they alternate, and a ratio is the median over pairs.
A benchmark of training steps has a function for each library that makes :class:`Timed` steps of a case, which is what
JSON can hold.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

#: Libraries by the name of their package; ours is the first side of every comparison.
PEERS = {"gpflow": "GPflow", "gpflux": "GPflux", "gpytorch": "GPyTorch", "gpjax": "GPJax"}
#: The environment variable whose value is XLA_FLAGS of our process alone.
FLAGS = "GPZOO_XLA_FLAGS"

#: A timing is as many steps as fill this, the same number for all sides.
MIN_SECONDS = 0.5


class Timed(NamedTuple):
    """The steps of one library.

    Attributes:
        seconds: takes a number of steps and returns the seconds of one, by the clock and of all processors together.
        versions: of the library and what is below it.
        bound: at the start, where it is known.
    """

    seconds: Callable[[int], tuple[float, float]]
    versions: str
    bound: float | None = None

    @classmethod
    def of(cls, step: Callable[[], float], versions: str) -> Timed:
        """Steps that each return the bound before them."""
        bound = step()
        step()
        return cls(lambda count: _seconds(step, count), versions, bound)

    @classmethod
    def loop(cls, steps: Callable[[int], float], versions: str) -> Timed:
        """As many steps in one call as it is asked for, which returns the bound before the last of them."""
        bound = steps(1)
        steps(2)

        def seconds(count: int) -> tuple[float, float]:
            passed, busy = _seconds(lambda: steps(count), 1)
            return passed / count, busy / count

        return cls(seconds, versions, bound)


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


def looped(update: Callable[[Any], tuple[Any, Any]], state: Any) -> Callable[[int], float]:
    """``steps(count)`` of our ``update(state)``, whose second result is the loss, in one compiled loop."""
    import jax
    import jax.numpy as jnp

    loss = jax.eval_shape(update, state)[1]

    def run(state: Any, count: int) -> tuple[Any, Any]:
        start = state, jnp.zeros(loss.shape, loss.dtype)
        return jax.lax.fori_loop(0, count, lambda _, now: update(now[0]), start)

    compiled = jax.jit(run, donate_argnums=0)

    def steps(count: int) -> float:
        nonlocal state
        state, last = compiled(state, count)
        return -float(last)

    return steps


# -- the process of one library ----------------------------------------------------------------------------------------


def worker(script: str, library: str, python: str, case: Mapping[str, Any], compiled: str) -> Peer:
    """A process of ``script`` that answers for one library, see :func:`work`; ours keeps programs in ``compiled``."""
    # GPflow and GPflux are written for Keras 2, and TensorFlow logs a page.
    environment = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "GPZOO_COMPILED": compiled}
    if library == "gpzoo" and FLAGS in os.environ:
        environment["XLA_FLAGS"] = os.environ[FLAGS]
    return Peer(library, [python, script, "--work", library, json.dumps(case)], environment)


def work(makers: Mapping[str, Callable[[dict[str, Any]], Timed]]) -> bool:
    """Answer for one library, if this process is to: for a number of steps the seconds of one, for 0 the memory.

    Memory is the process's peak above what it held after its imports, in MB.

    Args:
        makers: by library, from a case to its steps.
    """
    if sys.argv[1:2] != ["--work"]:
        return False
    library, case = sys.argv[2], json.loads(sys.argv[3])
    import_library(library)
    imported = resident()
    made = makers[library](case)
    first = {"versions": made.versions, "bound": made.bound, "seconds": made.seconds(3)}
    print(json.dumps(first), flush=True)
    for line in sys.stdin:
        count = json.loads(line)
        print(json.dumps(made.seconds(count) if count else resident() - imported), flush=True)
    return True


def import_library(library: str) -> None:
    """Import it; ours leaves the processor to XLA: limits hold for the BLAS libraries that are loaded already."""
    if library != "gpzoo":
        import_module(library)
        return
    import jax
    import numpyro  # noqa: F401
    import optax  # noqa: F401
    import threadpoolctl

    import gpzoo.models  # noqa: F401

    if jax.default_backend() == "cpu":
        threadpoolctl.threadpool_limits(1, user_api="blas")


def resident() -> float:
    """The most memory this process has held so far, in MB."""
    status = Path("/proc/self/status")
    if status.exists():
        # A process inherits ru_maxrss from the one that started it, which has held more.
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _seconds(step: Callable[[], float], steps: int) -> tuple[float, float]:
    """Seconds per step, of which the last must have a finite bound."""
    start, busy = time.perf_counter(), time.process_time()
    for _ in range(steps):
        bound = step()
    passed, busy = time.perf_counter() - start, time.process_time() - busy
    if not math.isfinite(bound):
        raise FloatingPointError(f"The bound is {bound}: what was timed is no training.")
    return passed / steps, busy / steps


# -- what compares them ------------------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser, libraries: Sequence[str] = tuple(PEERS)) -> None:
    """The options ``--<library>-python``, also variables such as ``GPFLOW_PYTHON``."""
    for library in libraries:
        default = os.environ.get(f"{library.upper()}_PYTHON")
        parser.add_argument(
            f"--{library}-python", default=default, help=f"interpreter that has {PEERS[library]}; this one if it has it"
        )


def pythons(arguments: argparse.Namespace, libraries: Sequence[str] = tuple(PEERS)) -> dict[str, str]:
    """The interpreters of ours and of the peers that are there."""
    found = {"gpzoo": sys.executable}
    for library in libraries:
        if python := getattr(arguments, f"{library}_python") or (sys.executable if find_spec(library) else None):
            found[library] = python
        else:
            print(f"{PEERS[library]} is not installed here and not run: see --{library}-python.", flush=True)
    return found


def measure(script: str, case: Mapping[str, Any], pythons: Mapping[str, str], pairs: int) -> dict[str, Any]:
    """Times and memory of one case, in turns.

    Returns:
        ``seconds``, ``processors`` (seconds of all of them) and ``megabytes`` by library (medians, and peaks above
        imports), ``versions``; and ``beside``, for each peer the ratios ``seconds`` (theirs over ours, median over
        pairs), ``low`` and ``high`` (which hold the middle 80 %), ``processors`` (which other work on the machine
        changes less), ``memory`` (ours over theirs), ``memory_again`` (the same of a second process, which reads the
        programs that the first one compiled), and ``apart``, the relative difference of the bounds at the start.
    """
    with tempfile.TemporaryDirectory() as compiled:
        return _measure(script, case, pythons, pairs, compiled)


def _measure(
    script: str, case: Mapping[str, Any], pythons: Mapping[str, str], pairs: int, compiled: str
) -> dict[str, Any]:
    sides = [worker(script, library, python, case, compiled) for library, python in pythons.items()]
    steps = math.ceil(MIN_SECONDS / min(each.first["seconds"][0] for each in sides))
    times: dict[str, list[float]] = {library: [] for library in pythons}
    busy: dict[str, list[float]] = {library: [] for library in pythons}
    for i in range(pairs):
        # Who goes first alternates too.
        for each in sides[:: -1 if i % 2 else 1]:
            for kept, found in zip((times, busy), each(steps), strict=True):
                kept[each.name].append(found)
    memory = {each.name: each(0) for each in sides}
    for each in sides:
        each.close()
    ours, *others = sides
    second = worker(script, ours.name, pythons[ours.name], case, compiled)
    again = second(0)
    second.close()
    beside = {}
    for each in others:
        ratios = sorted(b / a for a, b in zip(times[ours.name], times[each.name], strict=True))
        found = {"seconds": statistics.median(ratios), "low": ratios[len(ratios) // 10]}
        found |= {"high": ratios[-1 - len(ratios) // 10], "memory": memory[ours.name] / memory[each.name]}
        found["processors"] = statistics.median(b / a for a, b in zip(busy[ours.name], busy[each.name], strict=True))
        found["memory_again"] = again / memory[each.name]
        if ours.first["bound"] and each.first["bound"]:
            found["apart"] = abs(each.first["bound"] / ours.first["bound"] - 1)
        beside[each.name] = found
    return {
        "seconds": {library: statistics.median(own) for library, own in times.items()},
        "processors": {library: statistics.median(own) for library, own in busy.items()},
        "megabytes": memory | {f"{ours.name} again": again},
        "beside": beside,
        "steps": steps,
        "load": os.getloadavg()[0],
        "versions": {each.name: each.first["versions"] for each in sides},
    }


def table(name: str, found: Mapping[str, Any]) -> str:
    """Lines on one case of :func:`measure`."""
    text = [f"{name}: {_milliseconds(found['seconds']['gpzoo'])}, {found['megabytes']['gpzoo']:.0f} MB"]
    for library, own in found["beside"].items():
        seconds, peak = found["seconds"][library], found["megabytes"][library]
        apart = f"; bounds apart by {own['apart']:.1g}" if "apart" in own else ""
        text.append(
            f"  {PEERS[library]}: {_milliseconds(seconds)}, {own['seconds']:.2f} times ours ({own['low']:.2f} to "
            f"{own['high']:.2f}; of processors {own['processors']:.2f}); {peak:.0f} MB, ours {own['memory']:.2f} of "
            f"it, compiled before {own['memory_again']:.2f}{apart}"
        )
    return "\n".join(text)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"
