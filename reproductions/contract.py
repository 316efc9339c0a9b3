"""What every experiment is and what every run of one writes: numbers first, then figures, then the posterior."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np
from jax.typing import ArrayLike

import gpzoo

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Every preset: minutes on two CPU cores; an hour there, for experiments that have it; the paper's sizes.
PRESETS = ("quick", "cpu", "paper")


class ReproductionError(RuntimeError):
    """A reproduction that cannot be run, finished or written; the message is one line and says what to do."""


class DataRecord(Protocol):
    """What a result keeps of the data it was trained on; :class:`gpzoo.datasets.Dataset` is one."""

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
    _claim(run)
    outcome = experiment.run(run)
    result = make_result(outcome, run, experiment.variants[run.variant])
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


def make_result(outcome: Outcome, run: Run, paper_metrics: Mapping[str, float | None]) -> dict[str, Any]:
    """The content of ``result.json``.

    Raises:
        ReproductionError: if a metric is missing or not finite, or a setting cannot be written as JSON.
    """
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
    result = {
        **run.identity,
        "metrics": metrics,
        "paper_metrics": {name: None if outcome.stands_in else paper_metrics.get(name) for name in metrics},
        "stands_in": outcome.stands_in,
        "curve": [dict(point) for point in outcome.curve],
        "settings": dict(outcome.settings),
        "steps": int(outcome.steps),
        "seconds_training": float(outcome.seconds_training),
        "seconds_per_step": float(outcome.seconds_training) / outcome.steps if outcome.steps else None,
        "peak_memory_bytes": peak_memory_bytes(),
        "device": device(),
        "dtype": str(outcome.dtype),
        "versions": versions(),
        "data": {"name": outcome.data.name, "sha256": outcome.data.sha256, "sizes": outcome.data.sizes},
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    try:
        return json.loads(json.dumps(result, allow_nan=False, default=_plain))
    except (TypeError, ValueError) as error:
        raise ReproductionError(f"The settings or data record of this run has no JSON form: {error}.") from error


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


def _claim(run: Run) -> None:
    """Make the output folder this run's, so that no run resumes from another one's checkpoint."""
    path = run.output / "run.json"
    try:
        run.output.mkdir(parents=True, exist_ok=True)
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            if found != run.identity:
                held = " ".join(f"{key}={value}" for key, value in found.items())
                raise ReproductionError(f"{run.output} holds another run ({held}): choose another --output.")
        write_json(path, run.identity)
    except OSError as error:
        raise ReproductionError(
            f"Cannot write to {run.output}: {error.strerror}. Choose another --output or make room."
        ) from error
    except json.JSONDecodeError as error:
        raise ReproductionError(f"{path} is damaged ({error}): choose another --output.") from error


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
