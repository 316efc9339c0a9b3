"""What every experiment is and what every run of one writes: numbers first, then figures, then the posterior."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np
from jax.typing import ArrayLike

import gpzoo
from gpzoo.reproductions import provenance

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Every preset: minutes on two CPU cores; an hour there; the paper's sizes with settings of ours; the settings of the
#: paper and its authors' code, and the programs' defaults where these say nothing.
PRESETS = ("quick", "cpu", "tuned", "paper")

#: Version of the form of ``result.json``. Files without one were recorded before commits were kept.
SCHEMA = 1

#: Every field of ``result.json``, in the order in which they are written.
FIELDS = (
    "schema", "paper", "experiment", "variant", "preset", "seed", "commit", "clean", "commits", "command",
    "resumed_from", "metrics", "paper_metrics", "stands_in", "subset", "folds", "selection", "curve", "settings",
    "steps", "seconds_training", "seconds_per_step", "peak_memory_bytes", "device", "dtype", "versions", "data",
    "finished",
)  # fmt: skip


class ReproductionError(RuntimeError):
    """A reproduction that cannot be run, finished or written; the message is one line and says what to do."""


class DataRecord(Protocol):
    """What a result keeps of the data it was trained on; :class:`gpzoo.reproductions.datasets.Dataset` is one."""

    name: str
    sha256: Any
    sizes: Any


class Posterior(Protocol):
    """An ArviZ posterior: ``InferenceData`` before ArviZ 1.0, an xarray ``DataTree`` since."""

    def to_netcdf(self, path: str, *, engine: str) -> Any:
        """Write every group to one netCDF file."""


@dataclass(frozen=True)
class Run:
    """One run of one variant of an experiment: what to do, and where to write.

    Attributes:
        paper: the paper's name, as its model file is called.
        experiment: name within the paper.
        variant: name within the experiment.
        preset: one of the experiment's, such as ``"quick"`` (minutes on two CPU cores) or ``"paper"`` (the paper's
            sizes).
        seed: of every random key of the run.
        output: folder that everything is written to.
    """

    paper: str
    experiment: str
    variant: str
    preset: str
    seed: int
    output: Path

    @property
    def checkpoint(self) -> Path:
        """Folder for checkpoints; a later run with the same output resumes from the last of them."""
        return self.output / "checkpoint"

    @property
    def identity(self) -> dict[str, str | int]:
        """The fields that say what is computed, not where it goes."""
        return {
            "paper": self.paper,
            "experiment": self.experiment,
            "variant": self.variant,
            "preset": self.preset,
            "seed": self.seed,
        }

    @property
    def command(self) -> str:
        """What to type to get the same numbers; where they are written to is left out."""
        return (
            f"gpzoo reproduce {self.paper} {self.experiment} --variant {self.variant} --preset {self.preset} "
            f"--seed {self.seed}"
        )

    def made_by(self, settings: Mapping[str, Any], data: DataRecord) -> dict[str, Any]:
        """What an intermediate result of this run depends on, beside the program."""
        return {"run": self.identity, "settings": settings, "data": data_record(data)}


@dataclass(frozen=True)
class Outcome:
    """What an experiment hands back after training and evaluation.

    Attributes:
        metrics: name to number. ``error`` and ``accuracy`` are fractions of the test set; ``nlpp`` is the mean per
            test point; ``rmse`` and ``test_log_likelihood`` are in the data's original units; ``auc``, ``elbo``, and
            what an experiment adds.
        settings: everything chosen for this run (inducing points, minibatch, learning rates, ...), ready for JSON.
        steps: optimisation steps taken, over all resumptions.
        seconds_training: wall time of those steps, without compilation of the evaluation.
        data: what was trained on.
        dtype: floating type of training, such as ``"float32"``.
        elbo: the learning curve: the bound at every step ``[steps]``, or a pair of step numbers and values.
        curve: metrics on the test set in the course of training, each with its ``step`` and ``seconds`` of training.
        figures: file name without suffix to a figure, or to a function that makes one.
        posterior: the posterior for ArviZ, if the experiment exports one.
        stands_in: whether ``data`` only stand in for the paper's, whose numbers then are not compared with.
        subset: which part of the data was used, as :func:`subset` says it; ``None`` for all.
        folds: how many folds or splits the numbers are means over, ``count`` and their ``seeds``, and ``of`` how many
            there are in the paper; ``None`` for the one split of the data.
        selection: how settings were chosen by results: ``what`` was, by which ``rule``, on which ``data``, among which
            ``candidates``; ``None`` where all were fixed beforehand.
    """

    metrics: Mapping[str, float]
    settings: Mapping[str, Any]
    steps: int
    seconds_training: float
    data: DataRecord
    dtype: str
    elbo: ArrayLike | tuple[ArrayLike, ArrayLike]
    curve: Sequence[Mapping[str, float]] = ()
    figures: Mapping[str, Figure | Callable[[], Figure]] = field(default_factory=dict)
    posterior: Posterior | None = None
    stands_in: bool = False
    subset: Mapping[str, Any] | None = None
    folds: Mapping[str, Any] | None = None
    selection: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Experiment:
    """An experiment of a paper.

    Attributes:
        paper: the paper's name, as its model file is called.
        name: the experiment's name on the command line.
        description: one line for ``gpzoo list``.
        variants: variant to the paper's numbers (metric to number, ``None`` where the paper prints none).
        run: trains and evaluates one variant.
        default_variant: the variant that runs when none is named.
        data: names of the data sets it loads.
        presets: those of :data:`PRESETS` that it has.
        figure: draws the recorded results of several variants, by name, in one figure.

    Raises:
        ValueError: if the default is not one of the variants, or a preset is unknown.
    """

    paper: str
    name: str
    description: str
    variants: Mapping[str, Mapping[str, float | None]]
    run: Callable[[Run], Outcome]
    default_variant: str
    data: Sequence[str] = ()
    presets: Sequence[str] = ("quick", "paper")
    figure: Callable[[Mapping[str, Mapping[str, Any]]], Figure] | None = None

    def __post_init__(self) -> None:
        if unknown := set(self.presets) - set(PRESETS):
            raise ValueError(f"Presets are {', '.join(PRESETS)}; {self.paper} {self.name} has {sorted(unknown)}.")
        if self.default_variant not in self.variants:
            raise ValueError(
                f"default_variant {self.default_variant!r} of {self.paper} {self.name} is not among its variants: "
                f"{', '.join(self.variants)}."
            )


def execute(experiment: Experiment, run: Run) -> dict[str, Any]:
    """Run an experiment and write ``result.json``, the figures, the learning curve and ``posterior.nc``.

    The output folder is tried before training starts. Afterwards the numbers are written first, and every file under
    another name that is renamed when complete: a figure that fails, or a full disk, costs nothing already written.

    Args:
        experiment: what to run.
        run: the variant, preset, seed and output folder.

    Returns:
        The content of ``result.json``.

    Raises:
        ReproductionError: if the folder cannot be written or belongs to another run, a metric is not finite, the
            experiment leaves out a metric that the paper has, or a figure or the posterior could not be written.
    """
    starts = _claim(run)
    try:
        outcome = experiment.run(run)
    except BaseException:
        _release(run)
        raise
    result = make_result(outcome, run, experiment.variants[run.variant], starts)
    path = run.output / "result.json"
    try:
        write_json(path, result)
    except OSError as error:
        raise ReproductionError(
            f"Cannot write {path}: {error.strerror}. The metrics were {json.dumps(result['metrics'])}; "
            "make room and run the same command again: it resumes from its last checkpoint."
        ) from error
    _write_pictures(outcome, run)
    return result


def make_result(
    outcome: Outcome,
    run: Run,
    paper_metrics: Mapping[str, float | None],
    starts: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """The content of ``result.json``, with the fields of :data:`FIELDS`.

    Args:
        outcome: what the experiment found.
        run: what was run.
        paper_metrics: the paper's numbers.
        starts: the starts that took part, the one in which training began first; this one alone unless given.

    Raises:
        ReproductionError: if a metric is missing or not finite, or a setting cannot be written as JSON.
    """
    starts = starts or [_start(run, 0)]
    metrics = {name: float(value) for name, value in outcome.metrics.items()}
    bad = [f"{name} = {value}" for name, value in metrics.items() if not math.isfinite(value)]
    if bad:
        raise ReproductionError(
            f"The evaluation gave {', '.join(bad)}, which is not a result. Nothing was recorded; the checkpoint in "
            f"{run.checkpoint} is kept. Check the learning curve, lower the learning rate or train in float64."
        )
    missing = [name for name, value in paper_metrics.items() if value is not None and name not in metrics]
    if missing:
        raise ReproductionError(
            f"{run.paper} {run.experiment} did not report {', '.join(missing)}, for which the paper has a number."
        )
    trees = [start["clean"] for start in starts]
    found = {
        "schema": SCHEMA,
        **run.identity,
        # Of the start in which training began: later ones only go on, or evaluate again.
        "commit": starts[0]["commit"],
        "clean": False if False in trees else None if None in trees else True,
        "commits": list(dict.fromkeys(start["commit"] for start in starts)),
        "command": run.command,
        "resumed_from": [start["steps"] for start in starts[1:]],
        "metrics": metrics,
        "paper_metrics": {name: None if outcome.stands_in else paper_metrics.get(name) for name in metrics},
        "stands_in": outcome.stands_in,
        "subset": outcome.subset,
        "folds": outcome.folds,
        "selection": outcome.selection,
        "curve": [dict(point) for point in outcome.curve],
        "settings": dict(outcome.settings),
        "steps": int(outcome.steps),
        "seconds_training": float(outcome.seconds_training),
        "seconds_per_step": float(outcome.seconds_training) / outcome.steps if outcome.steps else None,
        "peak_memory_bytes": peak_memory_bytes(),
        "device": device(),
        "dtype": str(outcome.dtype),
        "versions": versions(),
        "data": data_record(outcome.data),
        "finished": _now(),
    }
    try:
        return as_json({name: found[name] for name in FIELDS})
    except (TypeError, ValueError) as error:
        raise ReproductionError(f"The settings or data record of this run has no JSON form: {error}.") from error


def data_record(data: DataRecord) -> dict[str, Any]:
    """What a result keeps of data."""
    return {"name": data.name, "sha256": data.sha256, "sizes": data.sizes}


def subset(whole: DataRecord, used: DataRecord, rule: str) -> dict[str, Any] | None:
    """How many training and test rows of how many were used, and by which rule; ``None`` if all were.

    Args:
        whole: the data set.
        used: what training and evaluation saw of it.
        rule: how the rows were chosen, such as ``"random, seed 0"``.
    """
    of, own = whole.sizes, used.sizes
    if (of["train"], of["test"]) == (own["train"], own["test"]):
        return None
    return {"train": own["train"], "of": of["train"], "test": own["test"], "of_test": of["test"], "rule": rule}


def peak_memory_bytes() -> int:
    """The most memory this process has held in RAM so far, in bytes."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def device() -> str:
    """What JAX computes on, and how many CPU cores the machine has."""
    first = jax.devices()[0]
    kind = platform.machine() if first.platform == "cpu" else first.device_kind
    return f"{first.platform} ({kind}), {os.cpu_count()} CPU cores"


def versions() -> dict[str, str]:
    """Versions of Python, gpzoo and the libraries that the numbers depend on."""
    libraries = ("numpyro", "jax", "jaxlib", "numpy", "optax", "arviz")
    return {
        "python": platform.python_version(),
        "gpzoo": gpzoo.__version__,
        **{name: version(name) for name in libraries},
    }


def write_json(path: Path, content: Any) -> None:
    """Write JSON under ``path`` in one step: a reader sees the old file or the whole new one.

    Raises:
        OSError: if the folder cannot be written to or the disk is full; ``path`` is then as it was.
    """
    with _replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=2, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _replacing(path: Path):
    """A temporary path beside ``path`` which takes its place if the block succeeds and is removed if it does not."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        ReproductionError: if it is not one.
        OSError: if it cannot be read.
    """
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ReproductionError(f"{path} is damaged ({error}).") from error


def kept(path: Path, made_by: Mapping[str, Any], make: Callable[[], Any]) -> Any:
    """What ``make`` gave in an earlier start, if the same program, settings and data made it; else what it gives now.

    Args:
        path: the file that keeps it, with what made it.
        made_by: as :meth:`Run.made_by` gives it.
        make: gives something that has a JSON form.
    """
    made_by = {"program": provenance.program(), **made_by}
    content = kept_content(path, made_by)
    if content is None:
        content = as_json(make())
        keep_content(path, made_by, content)
    return content


def kept_content(path: Path, made_by: Mapping[str, Any]) -> Any:
    """What :func:`keep_content` wrote; ``None`` if there is nothing, it is damaged, or something else made it."""
    try:
        found = read_json(path)
    except (ReproductionError, OSError):
        return None
    return found.get("content") if isinstance(found, dict) and found.get("made_by") == as_json(made_by) else None


def keep_content(path: Path, made_by: Mapping[str, Any], content: Any) -> None:
    """Write an intermediate result with what made it, and the commit for whoever reads the file.

    Raises:
        OSError: as :func:`write_json`.
    """
    write_json(path, {"made_by": as_json(made_by), "commit": provenance.commit(), "content": content})


def as_json(content: Any) -> Any:
    """What comes back when this is written as JSON and read again."""
    return json.loads(json.dumps(content, allow_nan=False, default=_plain))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _start(run: Run, steps: int) -> dict[str, Any]:
    """What is kept of a start of a run that had taken ``steps`` steps before."""
    # Looked at when a run starts: files may be changed while it trains.
    made_by = {"commit": provenance.commit(), "clean": provenance.clean(), "program": provenance.program()}
    return {**made_by, "command": run.command, "steps": steps, "time": _now()}


def _steps_taken(folder: Path) -> int:
    """Steps of the newest checkpoints below a folder, over all trainings that keep theirs there."""
    taken = 0
    for _, folders, files in os.walk(folder):
        steps = [int(found[1]) for name in folders + files if (found := re.fullmatch(r"(\d+)(\.checkpoint)?", name))]
        if steps:
            taken += max(steps)
            folders.clear()
    return taken


def _claim(run: Run) -> list[dict[str, Any]]:
    """Make the output folder this run's, so that no run resumes from another one's checkpoint.

    Returns:
        The starts that take part in this run: those that left a checkpoint, and this one.
    """
    path, started = run.output / "run.json", []
    try:
        run.output.mkdir(parents=True, exist_ok=True)
        if path.exists():
            try:
                found = read_json(path)
                held = {key: found[key] for key in run.identity}
                started = [dict(start) for start in found.get("starts", ())]
                if any({"commit", "clean", "steps"} - start.keys() for start in started):
                    raise ValueError("a start lacks its commit")
            except (ReproductionError, AttributeError, KeyError, TypeError, ValueError) as error:
                raise ReproductionError(f"{path} is damaged: choose another --output, or delete the folder.") from error
            if held != run.identity:
                described = " ".join(f"{key}={value}" for key, value in held.items())
                raise ReproductionError(f"{run.output} holds another run ({described}): choose another --output.")
        steps = _steps_taken(run.checkpoint)
        if not steps:
            started = []
        elif not started:
            # It was begun before starts were kept.
            started = [{"commit": None, "clean": None, "command": run.command, "steps": 0, "time": None}]
        started.append(_start(run, steps))
        write_json(path, {**run.identity, "starts": started})
    except OSError as error:
        raise ReproductionError(
            f"Cannot write to {run.output}: {error.strerror}. Choose another --output or make room."
        ) from error
    return started


def _release(run: Run) -> None:
    """Give up a folder in which a run that failed left nothing but its claim."""
    with suppress(OSError):
        if [path.name for path in run.output.iterdir()] == ["run.json"]:
            (run.output / "run.json").unlink()


def _write_pictures(outcome: Outcome, run: Run) -> None:
    """Write the learning curve, the figures and the posterior: every one is tried, then the failures are reported."""
    from gpzoo.reproductions.figures import learning_curve, test_curves

    def save(figure: Figure | Callable[[], Figure], path: Path) -> None:
        figure = figure() if callable(figure) else figure
        with _replacing(path) as temporary:
            figure.savefig(temporary, format="png", dpi=150, bbox_inches="tight")

    def export(posterior: Posterior, path: Path) -> None:
        with _replacing(path) as temporary:
            posterior.to_netcdf(str(temporary), engine="h5netcdf")

    figures = {**outcome.figures, "learning_curve": lambda: learning_curve(outcome.elbo)}
    if outcome.curve:
        figures["test_curves"] = lambda: test_curves({run.variant: outcome.curve})
    jobs = [(run.output / f"{name}.png", save, figure) for name, figure in figures.items()]
    if outcome.posterior is not None:
        jobs.append((run.output / "posterior.nc", export, outcome.posterior))

    failures = []
    for path, write, content in jobs:
        try:
            write(content, path)
        except Exception as error:
            error.add_note(f"while writing {path}")
            failures.append((path, error))
    if failures:
        what = "; ".join(f"{path.name} ({type(error).__name__}: {error})" for path, error in failures)
        raise ReproductionError(
            f"The numbers are in {run.output / 'result.json'}, but these were not written: {what}."
        ) from ExceptionGroup("pictures", [error for _, error in failures])


def _plain(value: Any) -> Any:
    """NumPy and JAX numbers and arrays, and paths, as JSON."""
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        return np.asarray(value).tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} {value!r} has no JSON form")
