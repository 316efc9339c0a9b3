"""Ours beside the paper's: the table after a run, and the page of results made from the recorded files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpzoo.reproductions.contract import Experiment, ReproductionError

if TYPE_CHECKING:
    from rich.table import Table

LOWER_IS_BETTER = frozenset({"error", "nlpp", "rmse"})
HIGHER_IS_BETTER = frozenset({"accuracy", "test_log_likelihood", "auc", "elbo"})


def number(value: float | None) -> str:
    """A number to four digits, or a dash where there is none."""
    return "-" if value is None else f"{value:.4g}"


def shortfall(metric: str, ours: float, paper: float | None) -> float | None:
    """How far ours is behind the paper's (positive), or ``None``: reached, no paper number, or no better direction."""
    kind = _kind(metric)
    if paper is None or kind is None:
        return None
    behind = ours - paper if kind in LOWER_IS_BETTER else paper - ours
    return behind if behind > 0 else None


def verdict(metric: str, ours: float, paper: float | None) -> str:
    """``"short by 0.003"``, ``"reached"``, or nothing where there is nothing to compare."""
    behind = shortfall(metric, ours, paper)
    if behind is not None:
        return f"short by {number(behind)}"
    return "reached" if paper is not None and _kind(metric) is not None else ""


def _kind(metric: str) -> str | None:
    """What a metric is, if one way is better: ``"accuracy"`` for ``"dnn_accuracy"``, a model's."""
    known = LOWER_IS_BETTER | HIGHER_IS_BETTER
    return next((kind for kind in known if metric == kind or metric.endswith(f"_{kind}")), None)


def difference(ours: float, paper: float | None) -> str:
    """Ours minus the paper's, with its sign."""
    return "-" if paper is None else f"{ours - paper:+.4g}"


def table(result: Mapping[str, Any]) -> Table:
    """The table printed after a run: every metric, ours, the paper's, their difference, and any shortfall.

    Args:
        result: the content of a ``result.json``.
    """
    from rich.table import Table
    from rich.text import Text

    view = Table(title=" ".join(str(result[key]) for key in ("paper", "experiment", "variant", "preset")))
    for heading, justify in (("metric", "left"), ("ours", "right"), ("paper", "right"), ("difference", "right")):
        view.add_column(heading, justify=justify, no_wrap=True)
    view.add_column("", no_wrap=True)
    for metric, ours in result["metrics"].items():
        paper = result["paper_metrics"][metric]
        behind = shortfall(metric, ours, paper) is not None
        view.add_row(
            metric,
            number(ours),
            number(paper),
            difference(ours, paper),
            Text(verdict(metric, ours, paper), style="bold red" if behind else "green"),
        )
    return view


def comparison(results: Sequence[Mapping[str, Any]]) -> Table:
    """Variants side by side, one row each, the highest bound first.

    Args:
        results: the contents of their ``result.json``, all of one experiment.
    """
    from rich.table import Table

    first = results[0]
    view = Table(title=" ".join(str(first[key]) for key in ("paper", "experiment", "preset")))
    metrics = list(dict.fromkeys(metric for result in results for metric in result["metrics"]))
    for heading in ("variant", *metrics, "seconds"):
        view.add_column(heading, justify="left" if heading == "variant" else "right")
    for result in sorted(results, key=lambda result: -result["metrics"].get("elbo", -math.inf)):
        found = [number(result["metrics"].get(metric)) for metric in metrics]
        view.add_row(result["variant"], *found, number(result["seconds_training"]))
    return view


def result_path(folder: Path, paper: str, experiment: str, variant: str, preset: str) -> Path:
    """Where the result file of a printed number is kept."""
    return folder / paper / f"{experiment}-{variant}-{preset}.json"


def results_page(folder: Path, experiments: Sequence[Experiment], links: str = "reproductions/results") -> str:
    """The text of ``RESULTS.md``: every number in it comes from a file in ``folder``.

    Args:
        folder: holds ``PAPER/EXPERIMENT-VARIANT-PRESET.json``.
        experiments: all there are; a variant whose paper preset has no file is listed as not run.
        links: ``folder`` as seen from the page, for its figures.

    Raises:
        ReproductionError: if a file is damaged, describes another run than its name says, or belongs to no experiment.
    """
    results = {}
    for experiment in experiments:
        for variant in experiment.variants:
            for preset in experiment.presets:
                path = result_path(folder, experiment.paper, experiment.name, variant, preset)
                if path.is_file():
                    results[path] = _read(path, experiment.paper, experiment.name, variant, preset)
    stray = sorted(str(path) for path in folder.rglob("*.json") if path not in results)
    if stray:
        raise ReproductionError(f"No experiment, variant and preset is called like {', '.join(stray)}.")

    lines = [
        "# Results",
        "",
        "Written by `gpzoo results` from the files in `reproductions/results/`: do not edit. `quick` runs are small",
        "and not meant to reach the paper's numbers, `cpu` runs take up to an hour on two CPU cores, `paper` runs have",
        "the paper's sizes. Differences are ours minus the paper's.",
    ]
    for paper in dict.fromkeys(experiment.paper for experiment in experiments):
        lines += ["", f"## {paper}"]
        for experiment in experiments:
            if experiment.paper == paper:
                lines += _section(folder, experiment, results, links)
    return "\n".join(lines) + "\n"


def figure_path(folder: Path, experiment: Experiment, preset: str) -> Path:
    """Where the figure of all variants of an experiment is kept."""
    return folder / experiment.paper / f"{experiment.name}-{preset}.png"


def draw_figures(folder: Path, experiments: Sequence[Experiment]) -> list[Path]:
    """Draw all recorded variants of an experiment and preset in one figure.

    It is the experiment's own, or test error and nlpp against time where the results have curves.

    Args:
        folder: holds the result files, and gets the figures.
        experiments: all there are.

    Returns:
        The figures written.
    """
    from gpzoo.reproductions.figures import test_curves

    written = []
    for experiment in experiments:
        for preset in experiment.presets:
            if shown := _shown(folder, experiment, preset):
                if experiment.figure is None:
                    figure = test_curves({variant: result["curve"] for variant, result in shown.items()})
                else:
                    figure = experiment.figure(shown)
                path = figure_path(folder, experiment, preset)
                figure.savefig(path, format="png", dpi=130, metadata={"Software": None})
                written.append(path)
    return written


def _shown(folder: Path, experiment: Experiment, preset: str) -> dict[str, dict[str, Any]]:
    """The recorded results that the figure of an experiment shows, by variant."""
    found = {}
    for variant in experiment.variants:
        path = result_path(folder, experiment.paper, experiment.name, variant, preset)
        if path.is_file():
            result = _read(path, experiment.paper, experiment.name, variant, preset)
            if experiment.figure is not None or result.get("curve"):
                found[variant] = result
    return found


def _section(folder: Path, experiment: Experiment, results: Mapping[Path, Mapping[str, Any]], links: str) -> list[str]:
    numbers, runs = [], []
    for variant, paper_metrics in experiment.variants.items():
        for preset in experiment.presets:
            result = results.get(result_path(folder, experiment.paper, experiment.name, variant, preset))
            if result is not None:
                for metric, ours in result["metrics"].items():
                    paper = None if result.get("stands_in") else paper_metrics.get(metric)
                    compared = difference(ours, paper), verdict(metric, ours, paper)
                    numbers.append((variant, preset, metric, number(ours), number(paper), *compared))
                runs.append(_run_row(variant, preset, result))
            elif preset == "paper":
                for metric, paper in paper_metrics.items() or [("-", None)]:
                    numbers.append((variant, preset, metric, "not run", number(paper), "-", ""))
    headings = ("variant", "preset", "metric", "ours", "paper", "difference", "")
    lines = ["", f"### {experiment.name}", "", experiment.description, "", *_markdown(headings, numbers)]
    for preset in experiment.presets:
        if _shown(folder, experiment, preset):
            path = figure_path(Path(links), experiment, preset).as_posix()
            what = "Test error and nlpp against time in training" if experiment.figure is None else "All variants"
            lines += ["", f"![{what}, {experiment.name}, {preset}]({path})"]
    if runs:
        headings = (
            "variant",
            "preset",
            "seed",
            "steps",
            "time",
            "per step",
            "peak memory",
            "device",
            "dtype",
            "versions",
        )
        lines += ["", *_markdown(headings, runs)]
    return lines


def _run_row(variant: str, preset: str, result: Mapping[str, Any]) -> tuple[str, ...]:
    per_step = result["seconds_per_step"]
    return (
        variant,
        preset,
        str(result["seed"]),
        f"{result['steps']:,}",
        duration(result["seconds_training"]),
        "-" if per_step is None else f"{1000 * per_step:.3g} ms",
        f"{result['peak_memory_bytes'] / 2**30:.1f} GiB",
        result["device"],
        result["dtype"],
        ", ".join(f"{name} {value}" for name, value in result["versions"].items()),
    )


def duration(seconds: float) -> str:
    """Seconds as ``42 s``, ``12.3 min`` or ``10.1 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _markdown(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    headings = tuple(headings)
    return [
        f"| {' | '.join(headings)} |",
        "|" + "---|" * len(headings),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _read(path: Path, paper: str, experiment: str, variant: str, preset: str) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        named = tuple(result[key] for key in ("paper", "experiment", "variant", "preset"))
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ReproductionError(f"{path} is not a result file: {type(error).__name__} {error}.") from error
    if named != (paper, experiment, variant, preset):
        raise ReproductionError(f"{path} holds the result of {' '.join(map(str, named))}: move it to that name.")
    return result
