"""How do libraries take turns in a benchmark? Each in a process of its own, which takes steps when it is asked to.

A shared machine drifts by more than libraries differ, so that they alternate, and a ratio is the median over pairs. A
benchmark has ``CASES`` by name, which JSON can hold, and for each library a function of a case. It makes
:class:`Timed` steps, or, of a ``whole`` case, does all of it and returns what is to be said of it.

BLAS has one thread under JAX in all libraries, as importing gpzoo sets for ours: it is NumPy's and SciPy's, which XLA's
own threads fight. So it has under PyMC. TensorFlow and PyTorch have as many threads as they choose.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from limit import least
from recorded import keep, made_by

#: Libraries by the name of their package, and the package whose environment they are in.
PEERS = {"gpflow": "gpflow", "gpflux": "gpflow", "gpytorch": "gpytorch", "gpjax": "gpjax", "tinygp": "gpjax"}
PEERS |= {"blackjax": "gpjax", "pymc": "pymc", "numpyro": "gpzoo", "apart": "gpzoo"}
#: In words.
NAMES = {"gpflow": "GPflow", "gpflux": "GPflux", "gpytorch": "GPyTorch", "gpjax": "GPJax", "tinygp": "tinygp"}
NAMES |= {"blackjax": "GPJax and BlackJAX", "pymc": "PyMC", "numpyro": "NumPyro by hand", "apart": "one after another"}
#: Those under JAX, which borrows SciPy's BLAS.
UNDER_JAX = ("gpjax", "tinygp", "blackjax", "numpyro")

#: A timing is as many steps as fill this, the same number for all sides.
MIN_SECONDS = 0.5


class Timed(NamedTuple):
    """The steps of one library.

    Attributes:
        seconds: takes a number of steps and returns the seconds of one, by the clock and of all processors together.
        versions: of the library and what is below it.
        bound: at the start, which tells whether models are the same; ``None`` where they are not.
    """

    seconds: Callable[[int], tuple[float, float]]
    versions: str
    bound: float | None

    @classmethod
    def of(cls, step: Callable[[], float], versions: str, bound: float | None) -> Timed:
        """Steps that each return a number, which must be finite."""
        step(), step()
        return cls(lambda count: _seconds(step, count), versions, bound)

    @classmethod
    def loop(cls, steps: Callable[[int], float], versions: str, bound: float | None) -> Timed:
        """As many steps in one call as it is asked for."""
        steps(1), steps(2)

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


# -- the process of one library ----------------------------------------------------------------------------------------


def environment(library: str, compiled: str, kept: bool = False) -> dict[str, str]:
    """Of its process; compiled programs are kept by ours in this folder, and by others under JAX if that is asked."""
    # GPflow and GPflux are written for Keras 2, and TensorFlow logs a page.
    found = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "GPZOO_COMPILED": compiled}
    found |= {"PYTHONDONTWRITEBYTECODE": ""}  # byte code is kept, as where a library has been installed
    if library in (*UNDER_JAX, "pymc"):  # which has a process for each core
        found |= {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL")}
    if kept and library in UNDER_JAX:
        found |= {"JAX_COMPILATION_CACHE_DIR": compiled, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return found


def work(makers: Mapping[str, Callable[[dict[str, Any]], Any]]) -> bool:
    """Answer for one library, if this process is to: for a number of steps the seconds of one, for 0 the memory in MB.

    Args:
        makers: by library, from a case to its steps, or to what a whole run says; with ``per``, its seconds are divided
            by that, such as a number of draws.
    """
    if sys.argv[1:2] != ["--work"]:
        return False
    library, case = sys.argv[2], json.loads(sys.argv[3])
    if case.get("whole"):
        print(json.dumps(makers[library](case) | {"most": resident()}), flush=True)
        return True
    import_module("gpzoo.models" if library == "gpzoo" else library)
    imported = resident()
    made = makers[library](case)
    first = {"versions": made.versions, "bound": made.bound, "seconds": made.seconds(3), "imported": imported}
    print(json.dumps(first), flush=True)
    for line in sys.stdin:
        count = json.loads(line)
        print(json.dumps(made.seconds(count) if count else resident()), flush=True)
    sys.stdout.flush()
    os._exit(0)  # a training in a thread may have millions of steps left


def resident() -> float:
    """The most memory this process has held so far, in MB."""
    # A process inherits ru_maxrss from the one that started it, which has held more.
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


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


def pythons(arguments: argparse.Namespace) -> dict[str, str]:
    """The interpreters of ours and of the peers that are there."""
    found = {"gpzoo": sys.executable}
    for library, package in PEERS.items():
        given = sys.executable if package == "gpzoo" else getattr(arguments, f"{package}_python")
        if python := given or (sys.executable if find_spec(library) else None):
            found[library] = python
    return found


def measure(script: str, case: Mapping[str, Any], pythons: Mapping[str, str], pairs: int) -> dict[str, Any]:
    """Times and memory of one case, in turns.

    Returns:
        ``seconds``, ``processors`` (seconds of all of them) and ``megabytes`` by library (medians, and peaks of whole
        processes), ``versions`` or what runs said; and ``beside``, for each peer the ratios ``seconds`` (theirs over
        ours, median over pairs, ``low`` and ``high`` the least and the largest), ``processors`` (which other work on
        the machine changes less), ``memory`` (ours over theirs), and ``apart``, the relative difference of the bounds
        at the start. Of steps also ``imported``, the megabytes after imports, and ``limit``, where the arithmetic is
        known: the least seconds of a step on this machine (:mod:`limit`).
    """
    sides = [library for library in ("gpzoo", *case["peers"]) if library in pythons]
    with tempfile.TemporaryDirectory() as compiled:
        if case.get("whole"):
            found, more = _whole(script, case, {each: pythons[each] for each in sides}, pairs, compiled)
        else:
            found, more = _steps(script, case, {each: pythons[each] for each in sides}, pairs, compiled)
    beside = {}
    for each in sides[1:]:
        ratios, busy = ([b[k] / a[k] for a, b in zip(found["gpzoo"], found[each], strict=True)] for k in (0, 1))
        own = {"seconds": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
        own |= {"processors": statistics.median(busy), "memory": more["megabytes"]["gpzoo"] / more["megabytes"][each]}
        bounds = more.get("bounds", {})
        if bounds.get("gpzoo") and bounds.get(each):
            own["apart"] = abs(bounds[each] / bounds["gpzoo"] - 1)
        beside[each] = own
    medians = {k: {each: statistics.median(x[i] for x in found[each]) for each in sides} for i, k in _KINDS}
    return medians | more | {"beside": beside, "load": os.getloadavg()[0]}


_KINDS = ((0, "seconds"), (1, "processors"))


def _steps(
    script: str, case: Mapping[str, Any], pythons: Mapping[str, str], pairs: int, compiled: str
) -> tuple[dict[str, list], dict[str, Any]]:
    with ExitStack() as open_processes:
        sides = []
        for library, python in pythons.items():
            command = [python, script, "--work", library, json.dumps(case)]
            sides.append(open_processes.enter_context(_process(library, command, environment(library, compiled))))
        steps = math.ceil(MIN_SECONDS / min(each.first["seconds"][0] for each in sides))
        times: dict[str, list] = {each.name: [] for each in sides}
        for i in range(pairs):
            # Who goes first alternates too.
            for each in sides[:: -1 if i % 2 else 1]:
                times[each.name].append(each(steps))
        more: dict[str, Any] = {"megabytes": {each.name: each(0) for each in sides}, "steps": steps}
        for name in ("imported", "versions", "bound"):
            more[name if name != "bound" else "bounds"] = {each.name: each.first[name] for each in sides}
    if "layers" in case:
        more["limit"] = least(case["layers"], case["dtype"])
    return times, more


@contextmanager
def _process(library: str, command: Sequence[str], more: Mapping[str, str]) -> Iterator[Peer]:
    peer = Peer(library, command, more)
    try:
        yield peer
    finally:
        peer.close()


def _whole(
    script: str, case: Mapping[str, Any], pythons: Mapping[str, str], pairs: int, compiled: str
) -> tuple[dict[str, list], dict[str, Any]]:
    times: dict[str, list] = {each: [] for each in pythons}
    megabytes, said = dict.fromkeys(pythons, 0.0), {}
    kept = bool(case.get("kept"))
    for i in range(-1 if kept else 0, pairs):  # the run that fills the folder does not count
        for library, python in list(pythons.items())[:: -1 if i % 2 else 1]:
            command = [python, script, "--work", library, json.dumps(case)]
            folder = compiled if kept else tempfile.mkdtemp(dir=compiled)
            began = time.perf_counter()
            more = os.environ | environment(library, folder, kept)
            process = subprocess.Popen(command, env=more, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            found = process.stdout.readline() if process.stdout else ""
            passed = time.perf_counter() - began  # without the end of the process
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise RuntimeError(f"{library} stopped; run: {' '.join(command)}")
            busy, said[library] = usage.ru_utime + usage.ru_stime, json.loads(found)
            if i >= 0:
                per = said[library].get("per", 1.0)
                times[library].append((passed / per, busy / per))
                megabytes[library] = max(megabytes[library], said[library].pop("most"))
    return times, {"megabytes": megabytes, "said": said}


# -- the command line --------------------------------------------------------------------------------------------------


def line(name: str, found: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """What is printed of a case, beside an earlier measurement."""
    text = [f"{name}: {_time(found['seconds']['gpzoo'])}"]
    if limit := found.get("limit"):
        text.append(f"{found['seconds']['gpzoo'] / limit['seconds']:.1f} times the limit {_time(limit['seconds'])}")
    for library, own in found["beside"].items():
        old = before.get("beside", {}).get(library)
        was = f", was {old['seconds']:.2f}" if old else ""
        apart = f", bounds apart by {own['apart']:.1g}" if "apart" in own else ""
        spread = f"{own['low']:.2f} to {own['high']:.2f}; of processors {own['processors']:.2f}"
        memory = f"memory {1 / own['memory']:.2f} times"
        seconds = f"{NAMES[library]} {_time(found['seconds'][library])}, {own['seconds']:.2f} times ours ({spread})"
        text.append(f"{seconds}, {memory}{apart}{was}")
    return "\n  ".join(text)


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds > 1 else f"{1e3 * seconds:.1f} ms"


def main(about: str | None, scripts: Mapping[str, Mapping[str, Mapping[str, Any]]], file: str) -> None:
    """Read the command line, run cases and print them.

    Args:
        about: what the command line says of itself.
        scripts: cases by name, of each benchmark.
        file: the script that was called.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="cases whose names contain one of these")
    parser.add_argument("--pairs", type=int, default=5, help="timings of each library")
    parser.add_argument("--output", type=Path)
    for package in sorted(set(PEERS.values()) - {"gpzoo"}):
        default = os.environ.get(f"{package.upper()}_PYTHON")
        parser.add_argument(f"--{package}-python", default=default, help=f"interpreter that has {package}")
    arguments = parser.parse_args()
    interpreters, cases = pythons(arguments), {}
    if arguments.output and arguments.output.exists():
        old = json.loads(arguments.output.read_text(encoding="utf-8"))
        cases = {each["name"]: each for each in old["cases"]}
    options = ["--only", *arguments.only, "--pairs", arguments.pairs] if arguments.only != [""] else []
    options = options or ["--pairs", arguments.pairs]
    for script, own in scripts.items():
        for case_name, case in own.items():
            name = f"{script}, {case_name}"
            if not any(part in name for part in arguments.only):
                continue
            path = str(Path(file).with_name(f"{script}.py"))
            found = {"name": name, "case": case} | made_by(file, options)
            found |= measure(path, case, interpreters, case.get("pairs", arguments.pairs))
            print(line(name, found, cases.get(name, {})), flush=True)
            cases[name] = found
            if arguments.output:
                keep(arguments.output, file, options, **summary(list(cases.values())))


def summary(cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The cases, and of the ratios of those whose models are the same the geometric mean and the least."""
    ratios = {
        f"{each['name']}, {NAMES[library]}": own["seconds"]
        for each in cases
        for library, own in each["beside"].items()
        if not each["case"].get("other")
    }
    if not ratios:
        return {"cases": cases}
    least_name = min(ratios, key=lambda name: ratios[name])
    mean = statistics.geometric_mean(ratios.values())
    return {"geometric_mean": mean, "least": {least_name: ratios[least_name]}, "ratios": len(ratios), "cases": cases}
