"""Recorded results: their files, which are checked when they are read, and our metrics with their errors."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gpzoo.reproductions.claims import kind, toward
from gpzoo.reproductions.experiment import REQUIRED, SCHEMA, Experiment, ReproductionError, changes_of
from gpzoo.reproductions.kept import read_json

#: Presets whose results are compared with the paper. The paper's own settings come first. ``quick`` runs only check the
#: program.
COMPARED = ("paper", "tuned", "cpu")

#: The probability that a normal variable exceeds its mean by more than two standard deviations.
BEYOND_TWO = 0.022750131948179195


class Key(NamedTuple):
    """The identity of the run in a file."""

    paper: str
    experiment: str
    variant: str
    preset: str
    seed: int = 0


class Wrong(NamedTuple):
    """The test rows that one run classifies wrongly.

    Attributes:
        bits: one bit for each row, in hexadecimal digits, see :func:`gpzoo.reproductions.metrics.wrong_rows`.
        count: number of test rows.
        rows: a description of these rows.
    """

    bits: str
    count: int
    rows: str


class Ours(NamedTuple):
    """One of our numbers.

    Attributes:
        value: the number. If there are several seeds or splits, it is a mean.
        error: its standard error, if it is known.
        source: the origin of the error, such as ``"5 splits"``.
        degrees: degrees of freedom of the error.
        wrong: the wrong test rows of each seed, if the number is a share; empty if they were not all recorded.
        between: the standard deviation between seeds.
    """

    value: float
    error: float | None = None
    source: str = ""
    degrees: float = math.inf
    wrong: tuple[Wrong, ...] = ()
    between: float = 0.0

    def wide(self, among: int = 1, beyond: float = BEYOND_TWO) -> float | None:
        """Two standard errors, by Student's t and for one of ``among`` numbers; ``None`` if the error is not known.

        With another ``beyond``, a number of standard errors that is exceeded on one side with this probability.
        """
        from scipy.special import ndtri, stdtrit

        if self.error is None:
            return None
        share = 1 - beyond / among
        return self.error * float(ndtri(share) if math.isinf(self.degrees) else stdtrit(self.degrees, share))


def mean_of(each: Sequence[float], source: str = "splits", overlap: float = 0.0) -> Ours:
    """A mean and its standard error; for random splits, see :func:`overlap_of`. A single number has no known error."""
    if len(each) < 2:
        return Ours(each[0])
    error = statistics.stdev(each) * math.sqrt(1 / len(each) + overlap)
    return Ours(statistics.fmean(each), error, f"{len(each)} {source}", len(each) - 1)


def over_seeds(each: Sequence[Ours]) -> Ours:
    """A mean over seeds, whose error combines the variation between trainings with the largest error of one of them.

    Seeds usually share their test rows or splits, so more of them do not make an error over these smaller. The degrees
    of freedom are those of one training (Welch and Satterthwaite), which are not more than those of the mean.
    """
    if len(each) == 1:
        return each[0]
    mean, between = (of([ours.value for ours in each]) for of in (statistics.fmean, statistics.stdev))
    worst = max(each, key=lambda ours: ours.error or 0.0)
    known, within = any(ours.error is not None for ours in each) or between > 0, worst.error or 0.0
    error = math.hypot(within, between / math.sqrt(len(each))) if known else None
    degrees = worst.degrees
    if between:
        share = within**2 / (within**2 + between**2)
        degrees = 1 / ((1 - share) ** 2 / (len(each) - 1) + share**2 / worst.degrees)
    wrong = tuple(of for ours in each for of in ours.wrong)
    return Ours(mean, error, f"{len(each)} seeds", degrees, wrong if len(wrong) == len(each) else (), between)


@dataclass(frozen=True)
class Recorded:
    """The runs of a variant with one preset, one run for each seed."""

    keys: tuple[Key, ...]
    results: tuple[Mapping[str, Any], ...]

    @property
    def result(self) -> Mapping[str, Any]:
        """The content of the first seed's file."""
        return self.results[0]

    def ours(self, metric: str) -> Ours | None:
        """Our number for a metric; ``None`` if the files do not have it. ``hours`` is the time of the training."""
        if metric == "hours":
            return Ours(self.result["seconds_training"] / 3600)
        each = [error_of(result, metric) for result in self.results if metric in result["metrics"]]
        return over_seeds(each) if each else None

    def lead(self, metric: str, model: str, other: str) -> Ours:
        """The lead of one model of the run over another, over the same splits if there are several."""
        return over_seeds([_lead_of(result, metric, model, other) for result in self.results])


def _lead_of(result: Mapping[str, Any], metric: str, model: str, other: str) -> Ours:
    """The lead of one model of a result over another."""
    by = result["settings"]
    if splits_of(result) == 1:
        return lead(error_of(result, f"{model}_{metric}"), error_of(result, f"{other}_{metric}"), metric)
    if "by_fold" not in by:
        ours, theirs = ([split[f"{each}_{metric}"] for split in by["by_split"]] for each in (model, other))
    else:
        ours, theirs = (by["by_fold"][each][metric] for each in (model, other))
    leads = [lead(Ours(a), Ours(b), metric).value for a, b in zip(ours, theirs, strict=True)]
    return mean_of(leads, overlap=overlap_of(result))


def lead(ours: Ours, other: Ours, metric: str, share: float = 0.0) -> Ours:
    """The lead of one number over another, minus a share of the other number.

    Its error is that of :func:`combined`.

    Raises:
        ReproductionError: if neither higher nor lower values of the metric are better.
    """
    if not toward(metric):
        raise ReproductionError(
            f"No number leads by {metric!r}: neither higher nor lower values are known to be better."
        )
    weight = 1 + toward(metric) * share * math.copysign(1, other.value)
    found = combined([(1, ours), (-weight, other)])
    return found._replace(value=toward(metric) * found.value)


def combined(parts: Sequence[tuple[float, Ours]]) -> Ours:
    """A weighted sum of numbers.

    If all numbers have the same seeds and test rows, and their wrong rows are known, the rows of each seed are paired.
    Otherwise the error is that of numbers without common test rows, which for a difference is too large if there are
    common ones.
    """
    weights, numbers = zip(*parts, strict=True)
    value, degrees = sum(weight * ours.value for weight, ours in parts), min(ours.degrees for ours in numbers)
    errors = [weight * ours.error for weight, ours in parts if ours.error is not None]
    error = math.hypot(*errors) if len(errors) == len(parts) else None
    rows = [[each[1:] for each in ours.wrong] for ours in numbers]
    if rows[0] and all(each == rows[0] for each in rows):
        by_seed = zip(*(ours.wrong for ours in numbers), strict=True)
        paired = over_seeds([_paired(weights, each) for each in by_seed])
        error, degrees = paired.error, paired.degrees
    return Ours(value, error, numbers[0].source, degrees)


def _paired(weights: Sequence[float], wrong: Sequence[Wrong]) -> Ours:
    """A weighted sum of the shares of wrong rows of several models, with an error of paired rows."""
    import numpy as np

    rows = [np.unpackbits(np.frombuffer(bytes.fromhex(each.bits), np.uint8))[: each.count] for each in wrong]
    by_row = np.dot(weights, rows)
    return Ours(float(by_row.mean()), float(by_row.std(ddof=1)) / math.sqrt(len(by_row)))


def result_path(folder: Path, paper: str, experiment: str, variant: str, preset: str, seed: int = 0) -> Path:
    """The path of the result file of a printed number. Files of further seeds have their own names."""
    return folder / paper / f"{experiment}-{variant}-{preset}{f'-seed{seed}' if seed else ''}.json"


class Records:
    """All recorded results of some experiments.

    Args:
        folder: folder with ``PAPER/EXPERIMENT-VARIANT-PRESET.json``, and ``...-seedK.json`` for further seeds; or with
            folders of runs as ``gpzoo reproduce`` writes them. In the second case, runs with changed settings or of
            other papers are left out.
        experiments: the experiments.

    Raises:
        ReproductionError: if a file is damaged, has changed settings, describes another run than its name says, or
            belongs to no experiment; if two folders have the same run; or if seeds differ in more than their seed.
    """

    def __init__(self, folder: Path, experiments: Sequence[Experiment]) -> None:
        self.folder = folder
        self.found: dict[Key, dict[str, Any]] = {}
        self.paths: dict[Key, Path] = {}
        runs = [
            (e.paper, e.name, variant, preset) for e in experiments for variant in e.variants for preset in e.presets
        ]
        in_runs = sorted(folder.glob("*/result.json"))
        of_runs = in_runs or any(folder.glob("*/run.json"))
        for path in in_runs if of_runs else sorted(each for each in folder.rglob("*.json") if each.name != "run.json"):
            key, result = _read(path)
            if in_runs and (changes_of(result) or key.paper not in {run[0] for run in runs}):
                continue
            of = f"{path} holds the result of {' '.join(map(str, key[:4]))}, seed {key.seed}"
            if changes := changes_of(result):
                raise ReproductionError(f"{of}, with changed settings ({', '.join(changes)}): it is no paper's.")
            if key[:4] not in runs or not (in_runs or path == result_path(folder, *key)):
                raise ReproductionError(f"{of}: no such run, or another name.")
            if key in self.found:
                raise ReproductionError(f"{of}, and so does {self.paths[key]}: leave one of them.")
            self.found[key], self.paths[key] = result, path
            first = next(each for each in self.found if each[:4] == key[:4])
            for other in _unlike(self.found[first], result, *(self.paths[each].parent for each in (first, key))):
                raise ReproductionError(
                    f"{of}, whose {other} is not that of seed {first.seed}: seeds cannot be averaged."
                )
        self.found = dict(sorted(self.found.items(), key=lambda each: (runs.index(each[0][:4]), each[0].seed)))

    def of(self, paper: str, experiment: str | None = None) -> Iterator[tuple[Key, dict[str, Any]]]:
        """The runs of a paper, or of one of its experiments."""
        for key, result in self.found.items():
            if key.paper == paper and experiment in (None, key.experiment):
                yield key, result

    def compared(self, paper: str, experiment: str, variant: str, presets: Sequence[str]) -> Iterator[Recorded]:
        """The runs of a variant that can be compared with the paper, by preset. The seeds of a preset are together.

        Args:
            paper: the paper.
            experiment: experiment of the paper.
            variant: the variant.
            presets: presets of the experiment. If ``quick`` is the only one, it is compared.
        """
        for preset in COMPARED if set(presets) != {"quick"} else presets:
            if keys := tuple(key for key in self.found if key[:4] == (paper, experiment, variant, preset)):
                yield Recorded(keys, tuple(self.found[key] for key in keys))


def _unlike(one: Mapping[str, Any], other: Mapping[str, Any], *folders: Path) -> Iterator[str]:
    """What differs between the results of two seeds, apart from numbers. Settings are compared in folders of runs."""
    for name in ("stands_in", "folds"):
        if one[name] != other[name]:
            yield name
    if _part_of(one) != _part_of(other):
        yield "subset"
    if any(one["data"][name] != other["data"][name] for name in ("name", "sizes")):
        yield "data"
    if _program_of(one) != _program_of(other):
        yield "program"
    marks = [folder / "run.json" for folder in folders]
    if all(mark.is_file() for mark in marks):
        settings = [read_json(mark).get("settings") for mark in marks]
        if None not in settings and settings[0] != settings[1]:
            yield "settings"


def _program_of(result: Mapping[str, Any]) -> dict[str, str]:
    """The last hash of the module of a user's own paper, which wrote the result."""
    hashes = {name: x.split(", ")[-1] for name, x in result["versions"].items() if x.startswith("sha256 ")}
    return {name: x.removeprefix("sha256 ") for name, x in hashes.items()}


def _part_of(result: Mapping[str, Any]) -> str:
    """The part of the rows that a run used, without the seed that chose them, as seeds choose minibatches, too."""
    return re.sub(r"seed \d+", "its seed", str(result["subset"]))


def is_share(result: Mapping[str, Any], metric: str) -> bool:
    """Whether a metric is a share of test rows: an error or an accuracy, on one split, of a whole number of rows."""
    if kind(metric) not in ("error", "accuracy") or splits_of(result) > 1:
        return False
    number = result["metrics"][metric] * result["data"]["sizes"]["test"]
    return 0 <= result["metrics"][metric] <= 1 and abs(number - round(number)) < 0.01


def error_of(result: Mapping[str, Any], metric: str) -> Ours:
    """A metric of one run with its standard error, over its splits, or over the test rows if it has only one split."""
    metrics, sizes, splits = result["metrics"], result["data"]["sizes"], splits_of(result)
    value, error = metrics[metric], metrics.get(f"{metric}_se")
    if error is not None and splits > 1:
        return Ours(value, error * enlarged(result), f"{splits} splits", splits - 1)
    if error is not None:
        return Ours(value, error, "test rows")
    if is_share(result, metric):
        bits = result["settings"].get("wrong_rows", {}).get(metric)
        of_rows = () if bits is None else (Wrong(bits, sizes["test"], str((result["data"], result["seed"]))),)
        return Ours(value, math.sqrt(value * (1 - value) / sizes["test"]), "binomial", wrong=of_rows)
    if metric == "wrong_images" and splits == 1:
        return Ours(value, math.sqrt(value * (1 - value / sizes["test"])), "binomial")
    return Ours(value)


def overlap_of(result: Mapping[str, Any]) -> float:
    """The number of test rows for each training row, or 0 if there is one split.

    Random splits share training rows, so their numbers are correlated. The variance of a mean over ``n`` splits is not
    ``1 / n`` of their variance, but about ``1 / n + overlap`` (Nadeau and Bengio 2003, section 3).
    """
    sizes = result["data"]["sizes"]
    return sizes["test"] / sizes["train"] if splits_of(result) > 1 else 0.0


def enlarged(result: Mapping[str, Any]) -> float:
    """The factor by which :func:`overlap_of` enlarges standard errors over splits, which files record without it."""
    return math.sqrt(1 + splits_of(result) * overlap_of(result))


def splits_of(result: Mapping[str, Any]) -> int:
    """Number of random splits over which the numbers of a result are averages."""
    return (result["folds"] or {"count": 1})["count"]


def _read(path: Path) -> tuple[Key, dict[str, Any]]:
    """The content of a result file, after a check of its schema.

    Raises:
        ReproductionError: if the file is damaged, lacks a field, or has another schema.
    """
    result = read_json(path)
    if not isinstance(result, dict):
        raise ReproductionError(f"{path} is not a result file: it holds no fields.")
    absent = sorted(frozenset(REQUIRED) - result.keys())
    if absent:
        raise ReproductionError(f"{path} is not a result file: it lacks {', '.join(absent)}.")
    if (schema := result["schema"]) != SCHEMA:
        raise ReproductionError(f"{path} has schema {schema!r}, and this version of gpzoo reads {SCHEMA}.")
    data, metrics = result["data"], result["metrics"]
    if not (isinstance(data, dict) and {"name", "sizes"} <= data.keys()) or not isinstance(metrics, dict):
        raise ReproductionError(f"{path} is not a result file: data and metrics must have names.")
    odd = [name for name, v in metrics.items() if not isinstance(v, int | float) or not math.isfinite(v)]
    if odd:
        raise ReproductionError(f"{path} is not a result file: {', '.join(odd)} must be finite numbers.")
    return Key(*(result[name] for name in Key._fields)), result
