"""Figures that experiments share, and a function that draws all figures. Papers draw their own in their modules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpzoo.inference import plots
from gpzoo.inference.plots._axes import curve
from gpzoo.inference.programs.files import replacing
from gpzoo.reproductions.claims import METRICS, Paper
from gpzoo.reproductions.experiment import Experiment, Figure
from gpzoo.reproductions.judge import module_of
from gpzoo.reproductions.records import Records


def test_curves(
    curves: Mapping[str, Sequence[Mapping[str, float]]],
    printed: Mapping[str, Mapping[str, float | None]] | None = None,
    metrics: Sequence[str] | None = None,
    *,
    titles: Mapping[str, str] | None = None,
    test_rows: int | None = None,
) -> Figure:
    """Test metrics against training time, one line per variant (convolutional GPs, figures 2 and 3).

    If trainings take less than two minutes, steps replace time, because most of the time is compilation.

    Args:
        curves: points of each variant, with ``seconds`` and metrics. Known metrics are drawn for the variants that have
            them.
        printed: numbers of the paper by variant and metric. They are dashed lines in the colour of the variant.
        metrics: the metrics to draw, one panel each; all known ones if ``None``.
        titles: names of variants in the legend. Other variants keep their names.
        test_rows: number of test rows, for the binomial error of a share. Bands are one standard error wide on either
            side, if the error is known.

    Returns:
        A figure without a window.
    """
    points = [point for each in curves.values() for point in each]
    longest = max(point["seconds"] for point in points)
    unit, name = (3600, "hours") if longest >= 3 * 3600 else (60, "minutes") if longest >= 180 else (1, "seconds")
    passed, unit, words = ("step", 1, "steps") if longest < 120 else ("seconds", unit, f"time in training ({name})")
    drawn = [name for name, facts in METRICS.items() if "drawn" in facts] if metrics is None else metrics
    metrics = [metric for metric in drawn if any(metric in point for point in points)]
    named, banded = {variant: (titles or {}).get(variant, variant) for variant in curves}, False
    columns = len(metrics) if len(metrics) <= 3 else 2
    figure = plots.blank(4.2 * columns, 3.4 * -(-len(metrics) // columns))
    panels = figure.subplots(-(-len(metrics) // columns), columns, squeeze=False).ravel()
    for axes in panels[len(metrics) :]:
        axes.remove()
    for axes, metric in zip(panels, metrics, strict=False):
        label = METRICS[metric]["drawn"]
        scale = 100 if "%" in label else 1
        papers = {variant: (printed or {}).get(variant, {}).get(metric) for variant in curves}
        levels = {variant: scale * value for variant, value in papers.items() if value is not None}
        # A variant keeps its colour even if others lack a metric.
        own = {v: (f"C{i}", each) for i, (v, each) in enumerate(curves.items()) if all(metric in p for p in each)}
        later: list[float] = []
        for variant, (colour, each) in own.items():
            time, values = [point[passed] / unit for point in each], [scale * point[metric] for point in each]
            curve(axes, time, values, named[variant], ".-", color=colour)
            errors = [scale * _error(point, metric, test_rows) for point in each]
            bounds = np.subtract(values, errors), np.add(values, errors)
            if any(errors):
                axes.fill_between(time, *bounds, color=colour, alpha=0.2, linewidth=0)
                banded = True
            # The axes fit the later evaluations, because the first ones are far off.
            later += [number for bound in bounds for number in bound[len(each) // 5 :]]
            if variant in levels:
                style = {"color": colour, "linestyle": "--", "linewidth": 1}
                axes.axhline(levels[variant], label=f"{named[variant]}, the paper's", **style)
        low, high = min([*later, *levels.values()]), max([*later, *levels.values()])
        margin = max(0.08 * (high - low), 0.05 * abs(high) * ("roomy" in METRICS[metric])) or 0.01
        axes.set_ylim(low - margin, high + margin)
        axes.set_xlim(left=0)
        axes.set(xlabel=words, ylabel=label)
    lines = {line.get_label(): line for axes in figure.axes for line in axes.lines}
    shown = [name for title in named.values() for name in (title, f"{title}, the paper's") if name in lines]
    beside = {"loc": "outside upper center", "ncols": 2 * columns, "fontsize": 8, "frameon": False}
    note = "bands: one standard error, where it is known\nearly points may be outside the panels"
    beside |= {"title": note, "title_fontsize": 8} if banded else {}
    figure.legend([lines[name] for name in shown], shown, **beside)
    return figure


def _error(point: Mapping[str, float], metric: str, test_rows: int | None) -> float:
    """The standard error of a metric in a point of a curve; zero if it is not known."""
    share = point[metric]
    if metric in ("error", "accuracy") and test_rows:
        return math.sqrt(share * (1 - share) / test_rows)
    return point.get(f"{metric}_se", 0.0)


def test_rows_of(results: Mapping[str, Mapping[str, Any]]) -> int | None:
    """The number of test rows, if all results have the same; ``None`` otherwise, or if a result has several splits."""
    found = {None if result["folds"] else result["data"]["sizes"]["test"] for result in results.values()}
    return found.pop() if len(found) == 1 else None


def band(ax: Any, x: np.ndarray, mean: np.ndarray, scale: np.ndarray, name: str, colour: str = "C0") -> None:
    """A function, with a band of two standard deviations on either side."""
    ax.plot(x, mean, color=colour, label=f"{name}, with two standard deviations")
    ax.fill_between(x, mean - 2 * scale, mean + 2 * scale, color=colour, alpha=0.3)


def has_curves(points: Sequence[Mapping[str, Any]]) -> bool:
    """Whether :func:`test_curves` can draw the points of a run: several points, with a metric that is drawn."""
    return len(points) > 1 and any("drawn" in METRICS.get(metric, {}) for metric in points[-1])


def figure_name(experiment: Experiment, preset: str) -> str:
    """The name of the figure of all variants of an experiment, with its folder."""
    return f"{experiment.paper}/{experiment.name}-{preset}"


def drawable(
    records: Records, experiments: Sequence[Experiment], papers: Sequence[Paper]
) -> dict[str, Callable[[], Figure]]:
    """The figures for which there are results, by name: of experiments, or of their curves, and of whole papers.

    Args:
        records: the recorded results.
        experiments: all experiments.
        papers: the papers whose claims are known.
    """
    found: dict[str, Callable[[], Figure]] = {}
    for experiment in experiments:
        for preset in experiment.presets:
            shown, needed = {}, experiment.figure is None or experiment.curves
            for key, result in records.of(experiment.paper, experiment.name):
                if key.preset == preset and (has_curves(result["curve"]) or not needed):
                    shown.setdefault(key.variant, result)
            if shown and experiment.figure is not None:
                found[figure_name(experiment, preset)] = partial(experiment.figure, shown)
            elif shown:
                curves = {variant: result["curve"] for variant, result in shown.items()}
                printed = {} if preset == "quick" else experiment.variants
                titles = experiment.source.titles if experiment.source is not None else {}
                said = {"titles": titles, "test_rows": test_rows_of(shown)}
                found[figure_name(experiment, preset)] = partial(test_curves, curves, printed, **said)
    for paper in papers:
        module = module_of(paper)
        for name, draw in (module.pictures(records) if hasattr(module, "pictures") else {}).items():
            found[f"{paper.key}/{name}"] = draw
    return found


def draw_figures(folder: Path, experiments: Sequence[Experiment], papers: Sequence[Paper]) -> list[Path]:
    """Draw all figures of the pages into the folder of the result files.

    Returns:
        The paths of the figures.
    """
    written = []
    for name, draw in drawable(Records(folder, experiments), experiments, papers).items():
        path = folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            draw().savefig(temporary, format="png", dpi=130, metadata={"Software": None})
        written.append(path)
    return written
