"""What is an experiment, a run of it, and its result? And which experiments are there?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jax.typing import ArrayLike

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

    @property
    def name(self) -> str:
        """See there."""
        ...

    @property
    def sha256(self) -> Any:
        """See there."""
        ...

    @property
    def sizes(self) -> Any:
        """See there."""
        ...


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


def by_hand(what: str, data: str = "not recorded", rule: str = "by hand") -> dict[str, Any]:
    """How settings were chosen by results, without a search.

    Args:
        what: which settings.
        data: on which data.
        rule: how.
    """
    return {"what": what, "rule": rule, "data": data, "candidates": None}


def all_experiments() -> tuple[Experiment, ...]:
    """Every experiment of every paper, in the order in which they are listed."""
    from gpzoo.reproductions import convolutional, deep, deep_kernel, invariant

    papers = (convolutional, deep, invariant, deep_kernel)
    return tuple(experiment for paper in papers for experiment in paper.EXPERIMENTS)
