"""The run of an experiment: it reserves the folder, and writes numbers first, then figures, then the model."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

import gpzoo
from gpzoo._extras import needs
from gpzoo.inference.programs.files import alone_in, replacing
from gpzoo.reproductions.experiment import (
    FIELDS,
    SCHEMA,
    Experiment,
    Outcome,
    ReproductionError,
    Run,
    data_record,
    identity_of,
)
from gpzoo.reproductions.kept import as_json, read_json, recorded, write_json


def execute(experiment: Experiment, run: Run) -> dict[str, Any]:
    """Run an experiment and write ``result.json``, figures, the learning curve, ``posterior.nc`` and ``model.gpzoo``.

    The output folder is checked before training starts. After the training, numbers are written first. Every file has a
    temporary name until it is complete. Therefore a failed figure or a full disk loses nothing that is already written.

    Args:
        experiment: the experiment.
        run: the variant, preset, seed and output folder.

    Returns:
        The content of ``result.json``.

    Raises:
        ReproductionError: if the folder cannot be written, or belongs to another run or to a run whose commit was not
            recorded; if the commit of a checkout cannot be read; if the experiment reports no settings; if a metric is
            not finite, or a metric of the paper is missing; or if a figure or the posterior cannot be written.
    """
    with needs("reproductions", "Drawing the figures of an experiment"):
        import matplotlib  # noqa: F401
    with needs(None, "Writing a posterior as netCDF"):
        import h5netcdf  # noqa: F401
    run = replace(run, source=experiment.source)
    with ExitStack() as claims:
        starts = _claim(run, claims)
        try:
            outcome = experiment.run(run)
        except BaseException:
            _release(run)
            raise
        result = make_result(outcome, run, experiment.variants[run.variant], starts)
        try:
            write_json(path := run.output / "result.json", result)
        except OSError as error:
            raise ReproductionError(
                f"Cannot write {path}: {error.strerror}. The metrics were {json.dumps(result['metrics'])}; "
                "make room and run the same command again: it resumes from its last checkpoint."
            ) from error
        _write_pictures(outcome, run, result)
        _mark(run, starts, complete=True)
        return result


def make_result(
    outcome: Outcome, run: Run, paper_metrics: Mapping[str, float | None], starts: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """The content of ``result.json``, with the fields of :data:`~gpzoo.reproductions.experiment.FIELDS`.

    Args:
        outcome: outcome of the experiment.
        run: the run.
        paper_metrics: the numbers of the paper.
        starts: the starts that took part, in order of time; only this start unless given.

    Raises:
        ReproductionError: if a metric is missing or not finite, if there are no settings, or if a setting cannot be
            written as JSON.
    """
    starts, compared = starts or [_start(run, 0)], {} if outcome.stands_in or run.changes else paper_metrics
    metrics = {name: float(value) for name, value in outcome.metrics.items()}
    if bad := [f"{name} = {value}" for name, value in metrics.items() if not math.isfinite(value)]:
        raise ReproductionError(
            f"The evaluation gave {', '.join(bad)}, which is not a result. Nothing was recorded; the checkpoint in "
            f"{run.checkpoint} is kept. Check the learning curve, lower the learning rate or train in float64."
        )
    named = f"{run.paper} {run.experiment} did not report"
    known = {*metrics, "hours"}  # of a training, which every result has
    if missing := [name for name, value in compared.items() if value is not None and name not in known]:
        raise ReproductionError(f"{named} {', '.join(missing)}, for which the paper has a number.")
    if not outcome.settings:
        raise ReproductionError(f"{named} its settings; nothing was recorded.")
    trees = [start["clean"] for start in starts]
    found: dict[str, Any] = {name: getattr(outcome, name, None) for name in FIELDS} | run.identity
    found |= {"schema": SCHEMA, "command": run.command, "metrics": metrics, "data": data_record(outcome.data)}
    # The commit in which training began. Later starts only continue the training, or evaluate again.
    found |= {"commit": starts[0]["commit"], "commits": list(dict.fromkeys(start["commit"] for start in starts))}
    found |= {"clean": False if False in trees else None if None in trees else True}
    found |= {"resumed_from": [start["steps"] for start in starts[1:]]}
    found |= {"paper_metrics": {name: compared.get(name) for name in metrics}}
    found |= {"curve": outcome.curve if len(outcome.curve) > 1 else []}
    found["folds"] = outcome.folds and {"of": outcome.folds["count"], **outcome.folds}
    found |= {"seconds_per_step": float(outcome.seconds_training) / outcome.steps if outcome.steps else None}
    found |= {"peak_memory_bytes": peak_memory_bytes(), "device": device(), "finished": _now()}
    found["versions"] = versions()
    if run.source is not None and run.source.module is not None:
        hashes = dict.fromkeys(start["paper"] for start in starts if start.get("paper"))
        found["versions"][run.source.module.name] = f"sha256 {', '.join(hashes)}"
    try:
        return as_json(found)
    except (TypeError, ValueError) as error:
        raise ReproductionError(f"The settings or data record of this run has no JSON form: {error}.") from error


def peak_memory_bytes() -> int:
    """The largest memory of this process in RAM until now, in bytes."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def device() -> str:
    """JAX's device, and the number of CPU cores of the machine, or the number that this process may use."""
    first = jax.devices()[0]
    kind = platform.machine() if first.platform == "cpu" else first.device_kind
    cores = os.cpu_count()
    # A process may be limited to some cores of the machine, as by taskset. Not all systems can tell.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    return f"{first.platform} ({kind}), {cores if usable == cores else f'{usable} of {cores}'} CPU cores"


def versions() -> dict[str, str]:
    """Versions of Python, gpzoo and the libraries on which the numbers depend."""
    libraries = ("numpyro", "jax", "jaxlib", "numpy", "optax", "arviz")
    return {"python": platform.python_version(), "gpzoo": gpzoo.__version__} | {x: version(x) for x in libraries}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _start(run: Run, steps: int) -> dict[str, Any]:
    """The record of a start of a run, with ``steps``, the number of steps before this start."""
    # It is read when a run starts, because files may be changed during the training.
    own = {"paper": run.source.program} if run.source is not None and run.source.module is not None else {}
    return {**recorded(), **own, "command": run.command, "steps": steps, "time": _now()}


def _steps_taken(folder: Path) -> int:
    """The steps of the newest checkpoints below a folder, summed over all trainings in it."""
    newest: dict[Path, int] = {}
    for path in folder.rglob("*.checkpoint"):
        if path.stem.isdecimal():
            newest[path.parent] = max(newest.get(path.parent, 0), int(path.stem))
    return sum(newest.values())


def _claim(run: Run, claims: ExitStack) -> list[dict[str, Any]]:
    """Mark the output folder as the folder of this run, so that no other run resumes from its checkpoint.

    Args:
        run: the run.
        claims: an exit stack. Until it closes, no other process can use the folder.

    Returns:
        The starts of this run: earlier starts, if they left a checkpoint, and this start.
    """
    path = run.mark
    waiting = f"Another process runs in {run.output}; waiting until it ends."
    try:
        run.output.mkdir(parents=True, exist_ok=True)
        claims.enter_context(alone_in(run.output, partial(print, waiting, file=sys.stderr, flush=True)))
        steps = _steps_taken(run.checkpoint)
        earlier = _earlier(run, path, steps) if path.exists() else []
        start = _start(run, steps)
        if steps and earlier and (name := _other_program(earlier[-1], start, run)):
            said = f"{run.output} continues {steps:,} steps of a training with another {name}. If its program or its "
            warnings.warn(f"{said}data changed, delete the folder.", RuntimeWarning, stacklevel=2)
        if start["steps"] and start["commit"] and not (earlier and earlier[0]["commit"]):
            raise ReproductionError(
                f"{run.checkpoint} is of a training whose commit was not recorded: choose another --output, or delete "
                "the folder."
            )
        starts = [*(earlier if start["steps"] else ()), start]
        _mark(run, starts, complete=False)
    except OSError as error:
        raise ReproductionError(
            f"Cannot write to {run.output}: {error.strerror}. Choose another --output or make room."
        ) from error
    return starts


def _other_program(before: Mapping[str, Any], now: Mapping[str, Any], run: Run) -> str:
    """The file of a user's own paper, if it changed between two starts; else empty."""
    module = run.source.module if run.source is not None else None
    return "" if module is None or before.get("paper") == now.get("paper") else module.name


def _mark(run: Run, starts: Sequence[Mapping[str, Any]], *, complete: bool) -> None:
    """Write ``run.json``: whose folder it is, and whether all files of the run are there."""
    write_json(run.mark, {**run.identity, "settings": run.settings, "starts": starts, "complete": complete})


def _earlier(run: Run, path: Path, steps: int) -> list[dict[str, Any]]:
    """The starts in the mark of a folder. The mark must belong to this run, and its checkpoints to these settings."""
    try:
        found = read_json(path)
        held, starts = identity_of(found), list(found.get("starts", ()))
        if any({"commit", "clean", "steps"} - dict(start).keys() for start in starts):
            raise ValueError("a start lacks its commit")
    except (ReproductionError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ReproductionError(f"{path} is damaged: choose another --output, or delete the folder.") from error
    if held != run.identity:
        described = " ".join(f"{key}={value}" for key, value in held.items())
        raise ReproductionError(f"{run.output} holds another run ({described}): choose another --output.")
    other = run.other_settings(found)
    if steps and other:
        raise ReproductionError(
            f"{run.output} holds {steps:,} steps of a training with other settings ({', '.join(other)}): choose "
            "another --output, or delete the folder."
        )
    if other and (result := run.output / "result.json").exists():
        # The mark will have the new settings: if this run is stopped, the old result must not be taken for its result.
        result.replace(run.output / "earlier_result.json")
    return starts


def _release(run: Run) -> None:
    """Remove the mark of a failed run from a folder that contains nothing else."""
    with suppress(OSError):
        if [path.name for path in run.output.iterdir()] == ["run.json"]:
            (run.output / "run.json").unlink()


def _write_pictures(outcome: Outcome, run: Run, result: Mapping[str, Any]) -> None:
    """Write the learning curve, figures, posterior and model. All are tried before failures are reported."""
    from gpzoo.inference import plots
    from gpzoo.reproductions.figures import has_curves, test_curves

    curve = partial(plots.learning_curve, outcome.elbo)
    figures: dict[str, Any] = {name: partial(draw, {run.variant: result}) for name, draw in outcome.drawn.items()}
    figures |= outcome.figures
    if np.size(outcome.elbo):
        figures["learning_curve"] = lambda: curve(ax=plots.blank(6, 4).subplots())
    if has_curves(outcome.curve):
        words: dict[str, Any] = {"titles": run.source.titles if run.source is not None else {}}
        words |= {"test_rows": None if outcome.folds else outcome.data.sizes["test"]}
        figures["test_curves"] = lambda: test_curves({run.variant: outcome.curve}, **words)
    jobs: dict[str, Callable[[Path], Any]] = {f"{name}.png": partial(_draw, each) for name, each in figures.items()}
    if (posterior := outcome.posterior) is not None:
        jobs["posterior.nc"] = lambda path: posterior().to_netcdf(str(path), engine="h5netcdf")
    if outcome.inspected is not None:
        jobs[run.model.name] = outcome.inspected.trained.save
    failures = {}
    for name, write in jobs.items():
        try:
            with replacing(run.output / name) as temporary:
                write(temporary)
        except Exception as error:
            error.add_note(f"while writing {run.output / name}")
            failures[name] = error
    if failures:
        what = "; ".join(f"{name} ({type(error).__name__}: {error})" for name, error in failures.items())
        said = f"The numbers are in {run.output / 'result.json'}, but these were not written: {what}."
        raise ReproductionError(said) from ExceptionGroup("pictures", list(failures.values()))


def _draw(figure: Any, path: Path) -> None:
    made: Any = figure() if callable(figure) else figure
    # This works for axes and for a figure.
    made.figure.savefig(path, format="png", dpi=150, bbox_inches="tight")
