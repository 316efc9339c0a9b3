"""Experiments, their runs and their results, and the list of all experiments."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from gpzoo.reproductions.changes import changed, written
from gpzoo.reproductions.claims import Paper, load

if TYPE_CHECKING:
    from jax.typing import ArrayLike
    from matplotlib.figure import Figure

    from gpzoo.inference import Trained
    from gpzoo.reproductions.datasets import Dataset
else:
    # Only for annotations: matplotlib is imported where figures are drawn.
    Figure = Any

#: The presets: minutes on two CPU cores; an hour on two CPU cores; the paper's sizes with our settings; the settings of
#: the paper and of its authors' code, otherwise the defaults of the programs.
PRESETS = ("quick", "cpu", "tuned", "paper")

#: Version of the format of ``result.json``.
SCHEMA = 1

#: The fields of a run that determine its computation.
IDENTITY = ("paper", "experiment", "variant", "preset", "seed")

#: Every field of ``result.json``, in the order of writing.
FIELDS = (
    "schema", *IDENTITY, "changes", "commit", "clean", "commits", "command",
    "resumed_from", "metrics", "paper_metrics", "stands_in", "subset", "folds", "selection", "curve", "settings",
    "steps", "seconds_training", "seconds_per_step", "peak_memory_bytes", "device", "dtype", "versions", "data",
    "finished",
)  # fmt: skip

#: The fields that every file has. Earlier files do not have ``changes``.
REQUIRED = tuple(name for name in FIELDS if name != "changes")


class ReproductionError(RuntimeError):
    """A reproduction that cannot be run, finished or written. The message is one line and gives advice."""


class Inspected(NamedTuple):
    """A trained model, and the rows of a report.

    Attributes:
        trained: the model.
        args: the program's positional arguments, rows of the test set.
        keywords: the program's keyword arguments.
        which: a name for the model among several models and splits of the run, such as ``"DGP 3, split 1 of 5"``; empty
            if the run has only one.
        differs: a sentence about the difference between these rows and the rows of the run's metrics; empty if they are
            the same.
    """

    trained: Trained
    args: tuple
    keywords: Mapping[str, Any]
    which: str = ""
    differs: str = ""


@dataclass(frozen=True)
class Run:
    """One run of one variant of an experiment, and its output folder.

    Attributes:
        paper: name of the paper, such as ``"deep"``.
        experiment: name within the paper.
        variant: name within the experiment.
        preset: one of the presets of the experiment, such as ``"quick"`` (minutes on two CPU cores) or ``"paper"`` (the
            paper's sizes).
        seed: seed of all random keys of the run.
        output: folder of all files of the run.
        finished: whether the run has ended and is only read. Its trained model is then read from a file, and
            nothing is trained.
        split: number of the random split, if this object is the part of a run that uses one of several splits.
        source: the paper, if it is not a paper of ``gpzoo``; :func:`experiment` sets it.
        changes: settings, by name, with values that differ from the experiment, see
            :func:`gpzoo.reproductions.changes.changed`. The result is then never compared with the paper.
    """

    paper: str
    experiment: str
    variant: str
    preset: str
    seed: int
    output: Path
    finished: bool = False
    split: int | None = None
    source: Paper | None = field(default=None, compare=False, repr=False)
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> Path:
        """File of the trained model of a run."""
        return self.output / "model.gpzoo"

    @property
    def mark(self) -> Path:
        """File that says whose folder it is, by the identity and the settings of the run."""
        return self.output / "run.json"

    @property
    def checkpoint(self) -> Path:
        """Folder for checkpoints. A later run with the same output folder resumes from the last one."""
        whole = self.output / "checkpoint"
        return whole if self.split is None else whole / str(self.split)

    @property
    def curve(self) -> Path:
        """File of the test metrics during training."""
        return (self.output if self.split is None else self.checkpoint) / "curve.json"

    @property
    def title(self) -> str:
        """The variant, and the split if there are several, for progress bars."""
        return self.variant if self.split is None else f"{self.variant}, split {self.split + 1}"

    @property
    def identity(self) -> dict[str, Any]:
        """The fields that determine the computation, without the output folder."""
        return identity_of(vars(self))

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of the experiment in the paper's TOML, overridden by the settings of its preset and its variant.

        They are ``[experiments.NAME.options]``, ``[experiments.NAME.settings.PRESET]``, and ``variants.VARIANT`` in
        each of the two. The run's ``changes`` override all of them.
        """
        facts = (self.source or load(self.paper)).experiments[self.experiment]
        both, found = (facts.get("options", {}), facts["settings"][self.preset]), {}
        for given in both:
            found |= {name: value for name, value in given.items() if name != "variants"}
        for given in both:
            found |= given.get("variants", {}).get(self.variant, {})
        return changed(found, self.changes)

    @property
    def settings(self) -> dict[str, Any]:
        """The options in the form of JSON; empty for an experiment without a paper's TOML."""
        return {} if self.source is None else json.loads(json.dumps(self.options, default=str))

    def other_settings(self, mark: Mapping[str, Any]) -> list[str]:
        """The names of settings that are not as in the mark of a folder. Earlier marks have no settings."""
        now, then = self.settings, mark.get("settings")
        return [] if then is None else sorted(name for name in {*now, *then} if now.get(name) != then.get(name))

    @property
    def selection(self) -> dict[str, Any] | None:
        """The record of the choice of settings by results: ``selection`` in the options, else in the paper."""
        said = dict(self.options.get("selection") or (self.source or load(self.paper)).by_hand)
        presets = said.pop("presets", PRESETS)
        return by_hand(**said) if said and self.preset in presets else None

    @property
    def command(self) -> str:
        """The command that gives the same numbers, without the output folder."""
        words = ["gpzoo", "reproduce", self.paper, self.experiment, "--variant", self.variant]
        words += ["--preset", self.preset, "--seed", str(self.seed)]
        for name, value in self.changes.items():
            words += ["--set", f"{name}={written(value)}"]
        if self.source is not None and self.source.module is not None:
            path, here = self.source.module, Path.cwd()
            words += ["--paper", str(path.relative_to(here) if path.is_relative_to(here) else path)]
        return shlex.join(words)

    def made_by(self, settings: Mapping[str, Any], data: Dataset) -> dict[str, Any]:
        """Everything that determines an intermediate result of this run, in addition to the program."""
        of = self.source
        own = {"paper": of.sha256, "program": of.program} if of is not None and of.module is not None else {}
        return {"run": self.identity, "settings": settings, "data": data_record(data)} | own


@dataclass(frozen=True)
class Outcome:
    """The result of an experiment's training and evaluation.

    Attributes:
        metrics: numbers by name. ``error`` and ``accuracy`` are shares of the test set. ``nlpp`` is the mean per test
            row. ``rmse`` and ``test_log_likelihood`` are in the original units of the data. There are also ``auc``,
            ``elbo``, and further metrics of the experiment.
        settings: everything chosen for this run (inducing points, minibatch, learning rates, ...), ready for JSON.
        steps: number of optimisation steps, over all resumptions.
        seconds_training: wall time of these steps, without compilation of the evaluation.
        data: the training data.
        dtype: floating-point type of training, such as ``"float32"``.
        elbo: the learning curve: the bound at every step ``[steps]``; empty if there is no bound.
        curve: metrics on the test set during training, each with its ``step`` and ``seconds`` of training. A single
            point at the end is not recorded in addition to the metrics.
        figures: figures by file name without suffix; each is a figure, or a function that makes one.
        drawn: functions that draw the recorded result, as on the pages of results, by file name without suffix.
        posterior: a function that makes the posterior for ArviZ, if the experiment exports one.
        inspected: the trained model, kept as ``model.gpzoo``, and the rows of a report; ``None`` without a report.
        stands_in: whether ``data`` stand in for the paper's data. The numbers of the paper are then left out.
        subset: the part of the data that was used, a result of :func:`subset`; ``None`` for all.
        folds: the folds or splits over which the numbers are averages: their ``count`` and ``seeds``, and their number
            in the paper, ``of``; ``None`` for the only split of the data.
        selection: the choice of settings by results: ``what`` was chosen, the ``rule``, the ``data`` and the
            ``candidates``; ``None`` if all settings were fixed beforehand.
    """

    metrics: Mapping[str, float]
    settings: Mapping[str, Any]
    steps: int
    seconds_training: float
    data: Dataset
    dtype: str
    elbo: ArrayLike | Sequence[float] = ()
    curve: Sequence[Mapping[str, float]] = ()
    figures: Mapping[str, Figure | Callable[[], Figure]] = field(default_factory=dict)
    drawn: Mapping[str, Draw] = field(default_factory=dict)
    posterior: Callable[[], Any] | None = None
    inspected: Inspected | None = None
    stands_in: bool = False
    subset: Mapping[str, Any] | None = None
    folds: Mapping[str, Any] | None = None
    selection: Mapping[str, Any] | None = None

    @property
    def trained(self) -> Trained:
        """The trained model. The field ``inspected`` must not be ``None``."""
        return cast("Inspected", self.inspected).trained


#: Numbers of the paper by metric; ``None`` if the paper prints none.
Numbers = Mapping[str, float | None]

#: Recorded results by variant, and a function that draws these results in one figure.
Results = Mapping[str, Mapping[str, Any]]
Draw = Callable[[Results], Figure]


@dataclass(frozen=True)
class Experiment:
    """An experiment of a paper.

    Attributes:
        paper: name of the paper, such as ``"deep"``.
        name: name of the experiment on the command line.
        description: one line for ``gpzoo list``.
        variants: numbers of the paper, by variant.
        run: a function that trains and evaluates one variant.
        default_variant: the variant that runs if none is named.
        presets: presets of the experiment, from :data:`PRESETS`.
        figure: a function that draws the recorded results of several variants, by name, in one figure.
        curves: whether this figure needs the curves of the results, which small runs may lack.
        caption: the words below this figure.
        source: the paper of an experiment that :func:`experiment` made.

    Raises:
        ValueError: if the default is not one of the variants, or a preset is unknown.
    """

    paper: str
    name: str
    description: str
    variants: Mapping[str, Numbers]
    run: Callable[[Run], Outcome]
    default_variant: str
    presets: Sequence[str] = ("quick", "paper")
    figure: Draw | None = None
    curves: bool = False
    caption: str = ""
    source: Paper | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if unknown := set(self.presets) - set(PRESETS):
            raise ValueError(f"Presets are {', '.join(PRESETS)}; {self.paper} {self.name} has {sorted(unknown)}.")
        if self.default_variant not in self.variants:
            raise ValueError(
                f"default_variant {self.default_variant!r} of {self.paper} {self.name} is not among its variants: "
                f"{', '.join(self.variants)}."
            )


def experiment(
    paper: Paper, name: str, variants: Iterable[str], *, figure: Draw | None = None, curves: bool = False
) -> Callable[[Callable[[Run], Outcome]], Experiment]:
    """Make an experiment from a function that trains and evaluates one variant. Facts about it are in the paper's TOML.

    Args:
        paper: the paper, from :func:`gpzoo.reproductions.claims.load`.
        name: name of the experiment.
        variants: variants of the experiment.
        figure: a function that draws the recorded results of several variants, by name, in one figure.
        curves: whether this figure needs the curves of the results.

    Raises:
        ValueError: if the TOML lacks a fact, or the settings of a preset, or if it claims a number of another variant,
            or has settings of one.
        TypeError: if the record of a choice of settings has other fields than :func:`by_hand`.
    """
    variants = tuple(variants)
    facts = paper.experiments.get(name, {})
    needed = ["description", "default", *(f"settings.{preset}" for preset in facts.get("presets", ("quick", "paper")))]
    there = {*facts, *(f"settings.{preset}" for preset in facts.get("settings", {}))}
    if absent := [part for part in needed if part not in there]:
        raise ValueError(f"{paper.key}.toml has no {absent[0]} in [experiments.{name}].")
    given: dict[str, Any] = {name: facts[name] for name in ("description", "presets", "caption") if name in facts}
    given |= {"default_variant": facts["default"], "variants": paper.numbers(name, variants)}
    for preset in given.get("presets", ("quick", "paper")):
        for of in (facts.get("options", {}), facts["settings"][preset]):
            if unknown := [each for each in of.get("variants", {}) if each not in variants]:
                raise ValueError(f"{paper.key}.toml has settings of {unknown[0]!r}, which is no variant of {name}.")
        for variant in variants:
            _ = Run(paper.key, name, variant, preset, 0, Path(), source=paper).selection

    def made(run: Callable[[Run], Outcome]) -> Experiment:
        own = {"run": lambda own: run(replace(own, source=paper)), "figure": figure, "curves": curves, "source": paper}
        return Experiment(paper.key, name, **given, **own)

    return made


def identity_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that determine what a run computes. ``found`` is a run, its result, or its ``run.json``.

    Raises:
        KeyError: if a field is missing.
    """
    return {name: found[name] for name in IDENTITY} | {"changes": changes_of(found)}


def changes_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a run changed, also from an older file, which does not have this field."""
    return dict(found.get("changes") or {})


def data_record(data: Dataset) -> dict[str, Any]:
    """The record of data in a result."""
    return {"name": data.name, "sha256": data.sha256, "sizes": data.sizes}


def subset(whole: Dataset, used: Dataset, rule: str) -> dict[str, Any] | None:
    """The numbers of used and available rows for training and testing, and the rule; ``None`` if all rows were used.

    Args:
        whole: the data set.
        used: the part of the data set that is used in training and evaluation.
        rule: the way in which the rows were chosen, such as ``"random, seed 0"``.
    """
    of, own = whole.sizes, used.sizes
    if (of["train"], of["test"]) == (own["train"], own["test"]):
        return None
    return {"train": own["train"], "of": of["train"], "test": own["test"], "of_test": of["test"], "rule": rule}


def some(run: Run, whole: Dataset, seed: int, rule: str = "") -> tuple[Dataset, dict[str, Any] | None]:
    """Random rows and their record. The options ``train`` and ``test`` give their numbers; all rows without these.

    Args:
        run: the run.
        whole: the data set.
        seed: seed of the choice.
        rule: description of the choice; ``"seed 0"`` for seed 0 unless given.
    """
    sizes = zip(("train", "test"), (whole.y_train, whole.y_test), strict=True)
    counts = [min(run.options[part], len(y)) if part in run.options else None for part, y in sizes]
    data = whole.subset(*counts, seed=seed)
    return data, subset(whole, data, f"random, {rule or f'seed {seed}'}")


#: The record of the data of a choice if nobody wrote it down.
NOT_RECORDED = "not recorded"


def by_hand(what: str, data: str = NOT_RECORDED, rule: str = "by hand") -> dict[str, Any]:
    """The record of a choice of settings by results, without a search.

    Args:
        what: the settings.
        data: the data of the choice.
        rule: the rule of the choice.
    """
    return {"what": what, "rule": rule, "data": data, "candidates": None}


#: Modules with the experiments of a paper, in the order of the list.
_MODULES = (
    *("convolutional", "deep", "invariant", "deep_kernel"),
    *("latent_inputs", "observations", "several_functions", "streaming", "inducing"),
)


def all_experiments(papers: Iterable[Path] = ()) -> tuple[Experiment, ...]:
    """Every experiment of every paper, in the order of the list.

    Args:
        papers: files with the user's own papers, which come last.
    """
    modules = [import_module(f"gpzoo.reproductions.{name}") for name in _MODULES]
    modules += [module_of_file(path) for path in papers]
    return tuple(experiment for module in modules for experiment in module.EXPERIMENTS)


def module_of_file(path: Path) -> ModuleType:
    """The module of a user's own paper, ``NAME.py`` with ``EXPERIMENTS``, beside ``NAME.toml``. It is imported once.

    Raises:
        ReproductionError: if there is no such file, or if its name is taken.
    """
    return _imported(path.resolve())


@cache
def _imported(path: Path) -> ModuleType:
    name, facts = path.stem, path.with_suffix(".toml")
    if path.suffix != ".py" or not facts.is_file():
        raise ReproductionError(f"{path} is no paper: it must be a file NAME.py, with NAME.toml beside it.")
    if name in (*_MODULES, "index", "more") or name in sys.modules:
        raise ReproductionError(f"{path}: there is another module or paper {name!r}, give the file another name.")
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    # Files beside it are found as for a script, but do not hide other modules.
    sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
        experiments = getattr(module, "EXPERIMENTS", ())
        if not experiments or any(each.source is None or each.source.module != path for each in experiments):
            raise ReproductionError(
                "EXPERIMENTS must name experiments made by experiment(PAPER, ...), with "
                'PAPER = load(Path(__file__).with_suffix(".toml")).'
            )
    except Exception as error:
        del sys.modules[name]
        raise ReproductionError(f"{path} is no paper: {type(error).__name__}: {error}") from error
    return module
