"""Numbers, steps and a paper's run on a GPU or TPU: one command of at most nine minutes.

    python benchmarks/accelerator.py --output FOLDER [--minutes 9]
    python benchmarks/accelerator.py --output FOLDER --dry-run   # a few of each, tiny, on a CPU

In FOLDER, ``golden.json`` has the distances of golden cases from their numbers in float32 and float64, ``steps.json``
seconds and memory of a training step of every program of the zoo, and ``runs.json`` how far the runs of papers are.
Cases that are there already are not computed again. The rest of the time goes to the first of :data:`RUNS` that has no
result: it is stopped in time, and kept with its checkpoints in one file, ``NAME.tar``, from which the same command goes
on. Copy FOLDER to where a machine is fresh. Data sets are read from ``GPZOO_DATA``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax
import numpy as np
from recorded import keep

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the tables of programs and cases are those of the tests

#: Runs at the sizes of the papers that are not recorded: paper, experiment, variant, preset.
RUNS = [
    ("convolutional", "mnist", "weighted-rbf", "paper"),
    ("convolutional", "mnist", "invariant", "paper"),
    ("invariant", "mnist", "affine", "paper"),
    ("convolutional", "cifar10", "multi-channel", "paper"),
    ("deep_kernel", "cifar10", "all", "paper"),
]
#: The run of a dry run.
TINY = [("convolutional", "rectangles", "weighted", "quick")]

#: Seconds that a run has to write its checkpoint once it is told to stop, and those that it needs to get anywhere: the
#: first programs of a paper's size compile for half a minute.
TO_STOP, TO_BEGIN = 40, 75


def distance(ours: Any, theirs: Any) -> float:
    """The largest difference, relative to the largest of their numbers, unless these are all zero."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs)
    return float(np.abs(ours.reshape(theirs.shape) - theirs).max() / (np.abs(theirs).max() or 1.0))


def set_up(dry: bool) -> None:
    """What holds in every process of a call."""
    from gpzoo._compiled import keep_compiled

    keep_compiled()
    if dry:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_disable_most_optimizations", True)


def side_by_side(function: Callable[[Any], Any], cases: list[Any], dry: bool) -> Iterator[Any]:
    """A map in processes: most of the time goes to compiling, which takes one core."""
    if not cases:
        return
    # A fork of a process in which JAX has run would never end.
    count = min(len(cases), os.cpu_count() or 1)
    with ProcessPoolExecutor(count, get_context("spawn"), set_up, (dry,)) as pool:
        yield from pool.map(function, cases)


def golden(dry: bool, known: set[tuple]) -> Iterator[dict[str, Any]]:
    """Distances from the bound, and from means and variances, of every case in both precisions."""
    from tests import test_golden, test_golden_deep

    names = [name for each in (test_golden, test_golden_deep) for name in each.CASES[: 1 if dry else None]]
    cases = [(name, dtype) for name in names for dtype in ("float32", "float64")]
    yield from side_by_side(golden_of, [case for case in cases if case not in known], dry)


def golden_of(chosen: tuple[str, str]) -> dict[str, Any]:
    """Distances from the numbers of a case."""
    import numpyro

    from tests import test_golden, test_golden_deep
    from tests.programs import golden_case

    numpyro.enable_x64()
    name, dtype = chosen
    module = test_golden if name in test_golden.CASES else test_golden_deep
    case = module.Case(*golden_case(name), np.dtype(dtype).type)
    found = plain(case) if module is test_golden else deep(case)
    distances = {what: distance(ours, case.wanted[theirs]) for what, (ours, theirs) in found.items()}
    return {"name": name, "dtype": dtype, "distance": distances}


def plain(case: Any) -> dict[str, tuple[Any, str]]:
    """Our numbers of a golden case of one GP, each with the name of theirs."""
    from tests.test_golden import evaluate

    terms, _, found = evaluate(case)
    moments = {"mean": (found["fmean"], "fmean"), "variance": (found["fvar"], "fvar")}
    return {"bound": (-(terms["f"] + terms["y"]), "elbo")} | moments


def deep(case: Any) -> dict[str, tuple[Any, str]]:
    """The same of a deep GP."""
    from tests.test_golden_deep import evaluate, with_its_noise

    with with_its_noise(case):
        bound, *_, layers = evaluate(case)
    last = case.depth - 1
    means, variances, _ = layers["f"]
    return {"bound": (bound, "elbo"), "mean": (means, f"L{last}_mean"), "variance": (variances, f"L{last}_var")}


def steps(dry: bool, known: set[tuple]) -> Iterator[dict[str, Any]]:
    """A training step of every program in float32, on twelve rows or these repeated."""
    from tests.zoo import OTHERS, PROGRAMS

    names = [name for name in list(PROGRAMS | OTHERS)[:: 7 if dry else 1] if (name, "float32") not in known]
    # Each is compiled beside others, and kept; then it is timed alone.
    compiling = [] if dry else list(side_by_side(seconds_compiling, names, dry))
    for name in names:
        step, state, data, seconds = compiled(name, dry)
        state, loss = step(state, *data)
        taken = []
        # What a step took from the host, or gave to it, would be an error.
        with jax.transfer_guard("disallow"):
            for _ in range(3 if dry else 100):
                begin = time.perf_counter()
                state, loss = jax.block_until_ready(step(state, *data))
                taken.append(time.perf_counter() - begin)
        yield {
            "name": name,
            "dtype": "float32",
            "rows": len(data[0]),
            "seconds": statistics.median(taken),
            "seconds_compiling": compiling.pop(0) if compiling else seconds,
            "temporary_bytes": getattr(step.memory_analysis(), "temp_size_in_bytes", None),
            "peak_bytes_so_far": (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use"),
            "finite": bool(np.isfinite(loss)),
        }


def compiled(name: str, dry: bool = False) -> tuple[Any, Any, tuple, float]:
    """A program's training step, its first state, its data, and the seconds that compiling the step took."""
    from numpyro.infer import SVI

    from gpzoo.inference import GaussianProcessELBO, InducingGuide
    from tests.programs import KEY, adam
    from tests.zoo import OTHERS, PROGRAMS

    jax.config.update("jax_enable_x64", False)
    program, X, y, inducing, *options = (PROGRAMS | OTHERS)[name]()
    guide = InducingGuide(program, inducing, **(options[0] if options else {}))
    params = guide.init_params(KEY, X, y)
    rows = np.arange(12 if dry else 1200) % len(X)
    data = jax.device_put((X[rows], y[rows]))
    svi = SVI(program, guide, adam(1e-3), GaussianProcessELBO())
    state = jax.jit(lambda params, X, y: svi.init(KEY, X, y, init_params=params))(params, *data)
    begin = time.perf_counter()
    step = jax.jit(svi.update).lower(state, *data).compile()
    return step, state, data, time.perf_counter() - begin


def seconds_compiling(name: str) -> float:
    """What compiling a program's step takes beside others, or reading it where this machine has compiled it before."""
    return compiled(name)[-1]


def run(folder: Path, chosen: tuple[str, ...], seconds: float) -> dict[str, Any]:
    """A slice of a run, which goes on from its checkpoint: the same command does."""
    from gpzoo.reproductions.execute import _steps_taken

    paper, experiment, variant, preset = chosen
    name = "-".join(chosen)
    output, archive = folder / name, folder / f"{name}.tar"
    if archive.exists() and not output.exists():
        shutil.unpack_archive(archive, output, filter="data")
    before = _steps_taken(output)
    command = [sys.executable, "-m", "gpzoo.reproductions", "reproduce", paper, experiment]
    command += ["--variant", variant, "--preset", preset, "--output", str(output)]
    begin = time.perf_counter()
    process = subprocess.Popen(command)
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(seconds, 15))
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(TO_STOP)
        process.kill()
    status, taken = process.wait(), time.perf_counter() - begin
    done = (output / "result.json").exists()
    if output.exists():
        shutil.make_archive(str(archive.with_suffix("")), "tar", output)
    return {"name": name, "done": done, "status": status, "seconds": taken, "steps": [before, _steps_taken(output)]}


def known_in(path: Path) -> list[dict[str, Any]]:
    """What an earlier call has computed."""
    return json.loads(path.read_text(encoding="utf-8"))["cases"] if path.exists() else []


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, help="all in all; 9 unless given, and 1 of a dry run")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    dry, folder = arguments.dry_run, arguments.output
    minutes = arguments.minutes or (1 if dry else 9)
    end = time.perf_counter() + 60 * minutes
    # The run is a process of its own, which needs memory too.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    set_up(dry)

    from gpzoo.reproductions.kept import program

    options = ["--output", "FOLDER", "--minutes", minutes] + ["--dry-run"] * dry
    about = {"accelerator": jax.devices()[0].device_kind, "program": program()}
    for part in (steps, golden):
        path = folder / f"{part.__name__}.json"
        cases = known_in(path)
        for case in part(dry, {(case["name"], case["dtype"]) for case in cases}):
            print(case, flush=True)
            cases.append(case)
            keep(path, __file__, options, **about, cases=cases)
            if time.perf_counter() > end - TO_STOP and not dry:
                return
    path = folder / "runs.json"
    slices = known_in(path)
    ended = {each["name"] for each in slices if each["done"]}
    for chosen in TINY if dry else RUNS:
        left = end - time.perf_counter() - TO_STOP
        if "-".join(chosen) not in ended and (left > TO_BEGIN or dry):
            slices.append(run(folder, chosen, left))
            print(slices[-1], flush=True)
            keep(path, __file__, options, **about, cases=slices)


if __name__ == "__main__":
    main()
