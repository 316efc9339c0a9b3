"""Figures that experiments share, and the drawing of all; ``figure_...`` in a paper's own module draws that paper's."""

from __future__ import annotations

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
    metrics: Sequence[str] = tuple(name for name, facts in METRICS.items() if "drawn" in facts),
) -> Figure:
    """Test metrics against training time, one line per variant (convolutional GPs, figures 2 and 3).

    Trainings of less than two minutes are drawn against steps, because most of their time is compilation.

    Args:
        curves: variant to its points, each with ``seconds`` and metrics. Known metrics are drawn for the variants that
            have them.
        printed: variant to the paper's numbers by metric, which are drawn as dashed lines in the variant's colour.
        metrics: the metrics to draw, one panel each.

    Returns:
        A figure without a window.
    """
    points = [point for each in curves.values() for point in each]
    longest = max(point["seconds"] for point in points)
    unit, name = (3600, "hours") if longest >= 3 * 3600 else (60, "minutes") if longest >= 180 else (1, "seconds")
    passed, unit, words = ("step", 1, "steps") if longest < 120 else ("seconds", unit, f"time in training ({name})")
    metrics = [metric for metric in metrics if any(metric in point for point in points)]
    columns = min(2, len(metrics))
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
        for variant, (colour, each) in own.items():
            time = [point[passed] / unit for point in each]
            curve(axes, time, [scale * point[metric] for point in each], variant, ".-", color=colour)
            if variant in levels:
                style = {"color": colour, "linestyle": "--", "linewidth": 1}
                axes.axhline(levels[variant], label=f"{variant}, the paper's", **style)
        # The axes fit the later evaluations, because the first ones are far off.
        later = [scale * point[metric] for _, each in own.values() for point in each[len(each) // 5 :]]
        low, high = min([*later, *levels.values()]), max([*later, *levels.values()])
        margin = max(0.08 * (high - low), 0.05 * abs(high) * ("from_zero" in METRICS[metric])) or 0.01
        axes.set_ylim(low - margin, high + margin)
        axes.set_xlim(left=0)
        axes.set(xlabel=words, ylabel=label)
    lines = {line.get_label(): line for axes in figure.axes for line in axes.lines}
    named = [name for variant in curves for name in (variant, f"{variant}, the paper's") if name in lines]
    beside = {"loc": "outside upper center", "ncols": 2 * columns, "fontsize": 8, "frameon": False}
    figure.legend([lines[name] for name in named], named, **beside)
    return figure


def band(ax: Any, x: np.ndarray, mean: np.ndarray, scale: np.ndarray, name: str, colour: str = "C0") -> None:
    """A function, with two standard deviations on either side."""
    ax.plot(x, mean, color=colour, label=f"{name}, with two standard deviations")
    ax.fill_between(x, mean - 2 * scale, mean + 2 * scale, color=colour, alpha=0.3)


def figure_name(experiment: Experiment, preset: str) -> str:
    """The name of the figure of all variants of an experiment, with its folder."""
    return f"{experiment.paper}/{experiment.name}-{preset}"


def drawable(
    records: Records, experiments: Sequence[Experiment], papers: Sequence[Paper]
) -> dict[str, Callable[[], Figure]]:
    """The figures for which there are results, by name: of experiments, else of their curves, and of whole papers.

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
                if key.preset == preset and (result["curve"] or not needed):
                    shown.setdefault(key.variant, result)
            if shown and experiment.figure is not None:
                found[figure_name(experiment, preset)] = partial(experiment.figure, shown)
            elif shown:
                curves = {variant: result["curve"] for variant, result in shown.items()}
                printed = {} if preset == "quick" else experiment.variants
                found[figure_name(experiment, preset)] = partial(test_curves, curves, printed)
    for paper in papers:
        module = module_of(paper)
        for name, draw in (module.pictures(records) if hasattr(module, "pictures") else {}).items():
            found[f"{paper.key}/{name}"] = draw
    return found


def draw_figures(folder: Path, experiments: Sequence[Experiment], papers: Sequence[Paper]) -> list[Path]:
    """Draw all figures of the pages into the folder of the result files.

    Returns:
        The figures written.
    """
    written = []
    for name, draw in drawable(Records(folder, experiments), experiments, papers).items():
        path = folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            draw().savefig(temporary, format="png", dpi=130, metadata={"Software": None})
        written.append(path)
    return written
