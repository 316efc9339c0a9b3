"""What has been recorded? The result files, checked as they are read, and our number for a metric with its error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpzoo.reproductions.experiment import FIELDS, SCHEMA, Experiment, ReproductionError
from gpzoo.reproductions.kept import read_json
from gpzoo.reproductions.verdicts import kind

#: Presets whose results are compared with the paper's, the paper's own settings first. ``quick`` runs are checks of the
#: program.
COMPARED = ("paper", "tuned", "cpu")

#: Fields of files that were recorded before commits were.
_OLD_FIELDS = frozenset(FIELDS) - {
    "schema", "commit", "clean", "commits", "command", "resumed_from", "stands_in", "subset", "folds", "selection",
    "curve",
}  # fmt: skip

#: Generated data; older files have no field that says so.
_GENERATED = ("rectangles",)


class Key(NamedTuple):
    """Which run a file holds."""

    paper: str
    experiment: str
    variant: str
    preset: str
    seed: int = 0


class Ours(NamedTuple):
    """Our number for a metric.

    Attributes:
        value: the number, a mean where there are several seeds.
        error: its standard error, if it is known.
        source: where the error is from, such as ``"5 splits"``.
        runs: the runs, of one preset.
    """

    value: float
    error: float | None
    source: str
    runs: tuple[Key, ...]


def result_path(folder: Path, paper: str, experiment: str, variant: str, preset: str, seed: int = 0) -> Path:
    """The path of the result file of a printed number; further seeds have names of their own."""
    end = f"-seed{seed}" if seed else ""
    return folder / paper / f"{experiment}-{variant}-{preset}{end}.json"


class Records:
    """All recorded results of some experiments.

    Args:
        folder: holds ``PAPER/EXPERIMENT-VARIANT-PRESET.json``, and ``...-seedK.json`` of further seeds.
        experiments: the experiments.

    Raises:
        ReproductionError: if a file is damaged, describes another run than its name says, or belongs to no experiment.
    """

    def __init__(self, folder: Path, experiments: Sequence[Experiment]) -> None:
        self.folder = folder
        self.found: dict[Key, dict[str, Any]] = {}
        self.paths: dict[Key, Path] = {}
        for experiment in experiments:
            for variant in experiment.variants:
                for preset in experiment.presets:
                    first = result_path(folder, experiment.paper, experiment.name, variant, preset)
                    for path in (first, *sorted(first.parent.glob(f"{first.stem}-seed*.json"))):
                        if path.is_file():
                            key, result = _read(path, experiment.paper, experiment.name, variant, preset)
                            if key in self.paths:
                                raise ReproductionError(f"{path} and {self.paths[key]} are both of seed {key.seed}.")
                            self.found[key], self.paths[key] = result, path
        stray = sorted({str(path) for path in folder.rglob("*.json")} - set(map(str, self.paths.values())))
        if stray:
            raise ReproductionError(f"No experiment, variant and preset matches {', '.join(stray)}.")

    def of(self, paper: str, experiment: str | None = None) -> Iterator[tuple[Key, dict[str, Any]]]:
        """The runs of a paper, or of one of its experiments."""
        for key, result in self.found.items():
            if key.paper == paper and experiment in (None, key.experiment):
                yield key, result

    def compared(self, paper: str, experiment: str, variant: str, presets: Sequence[str]) -> Iterator[tuple[Key, ...]]:
        """The runs of a variant that can be compared with the paper's, by preset, the seeds of one together.

        Args:
            paper: the paper.
            experiment: its experiment.
            variant: the variant.
            presets: the experiment's; if ``quick`` is the only one, it is compared.
        """
        for preset in COMPARED if set(presets) != {"quick"} else presets:
            if runs := tuple(key for key in self.found if key[:4] == (paper, experiment, variant, preset)):
                yield runs

    def together(
        self, paper: str, experiment: str, variants: Sequence[str], presets: Sequence[str]
    ) -> dict[str, Key] | None:
        """A run of each of several variants, all of one preset and thus of the same data; ``None`` without them."""
        found = [{runs[0].preset: runs[0] for runs in self.compared(paper, experiment, v, presets)} for v in variants]
        for preset in found[0]:
            if all(preset in of for of in found):
                return {variant: of[preset] for variant, of in zip(variants, found, strict=True)}
        return None

    def ours(self, runs: tuple[Key, ...], metric: str) -> Ours | None:
        """Our number for a metric from the seeds of one preset; ``None`` if they do not have it."""
        found = [self.found[key]["metrics"].get(metric) for key in runs]
        values = [value for value in found if value is not None]
        if not values:
            return None
        mean, count = math.fsum(values) / len(values), len(values)
        if count > 1:
            spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
            return Ours(mean, spread / math.sqrt(count), f"{count} seeds", runs)
        return Ours(mean, *error_of(self.found[runs[0]], metric), runs)


def error_of(result: Mapping[str, Any], metric: str) -> tuple[float | None, str]:
    """The standard error of a metric of one run, and where it is from: its splits, or test rows of its one split."""
    metrics, sizes = result["metrics"], result["data"]["sizes"]
    if (error := metrics.get(f"{metric}_se")) is not None:
        return error, f"{splits_of(result)} splits"
    tests = sizes.get("test") if isinstance(sizes, Mapping) else None
    value = metrics[metric]
    if kind(metric) in ("error", "accuracy") and tests and 0 <= value <= 1 and splits_of(result) == 1:
        return math.sqrt(value * (1 - value) / tests), "binomial"
    return None, ""


def splits_of(result: Mapping[str, Any]) -> int:
    """Number of random splits that a result's numbers average."""
    folds, settings = result.get("folds") or {}, result.get("settings") or {}
    return folds.get("count") or settings.get("splits") or settings.get("folds") or 1


def paired(result: Mapping[str, Any], metric: str, model: str, other: str) -> tuple[float, float | None]:
    """The mean over splits of a metric of one model less that of another on the same split, and its standard error."""
    settings = result["settings"]
    if "by_split" in settings:
        ours, theirs = ([split[f"{name}_{metric}"] for split in settings["by_split"]] for name in (model, other))
    else:
        ours, theirs = (settings["by_fold"][name][metric] for name in (model, other))
    return mean_of([a - b for a, b in zip(ours, theirs, strict=True)])


def mean_of(each: Sequence[float]) -> tuple[float, float | None]:
    """A mean and its standard error, ``None`` of a single number."""
    mean = math.fsum(each) / len(each)
    if len(each) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((x - mean) ** 2 for x in each) / (len(each) - 1) / len(each))


def _read(path: Path, paper: str, experiment: str, variant: str, preset: str) -> tuple[Key, dict[str, Any]]:
    """The content of a result file, after a check of its schema.

    Raises:
        ReproductionError: if it is damaged, lacks a field, has another schema, or belongs to another run.
    """
    result = read_json(path)
    if not isinstance(result, dict):
        raise ReproductionError(f"{path} is not a result file: it holds no fields.")
    absent = sorted((frozenset(FIELDS) if "schema" in result else _OLD_FIELDS) - result.keys())
    if absent:
        raise ReproductionError(f"{path} is not a result file: it lacks {', '.join(absent)}.")
    if (schema := result.get("schema", SCHEMA)) != SCHEMA:
        raise ReproductionError(f"{path} has schema {schema!r}, and this version of gpzoo reads {SCHEMA}.")
    named = tuple(result[key] for key in ("paper", "experiment", "variant", "preset"))
    if named != (paper, experiment, variant, preset):
        raise ReproductionError(f"{path} holds the result of {' '.join(map(str, named))}: move it to that name.")
    data, metrics = result["data"], result["metrics"]
    if not (isinstance(data, dict) and {"name", "sizes"} <= data.keys()) or not isinstance(metrics, dict):
        raise ReproductionError(f"{path} is not a result file: data and metrics must have names.")
    odd = [name for name, v in metrics.items() if not isinstance(v, int | float) or not math.isfinite(v)]
    if odd:
        raise ReproductionError(f"{path} is not a result file: {', '.join(odd)} must be finite numbers.")
    if "stands_in" not in result:
        result["stands_in"] = result["data"]["name"] in _GENERATED
    return Key(*named, seed=result["seed"]), result
