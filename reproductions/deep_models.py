"""Which models does the deep GP paper compare, how do they start, and how are their scores on the benchmarks drawn?"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax import Array

from gpzoo.inducing.initialisers import kmeans
from gpzoo.inference import InducingGuide, plots
from gpzoo.models import deep_gp, inner_scales, linear_layers
from gpzoo.models.parameters import rbf
from gpzoo.reproductions.metrics import means
from gpzoo.reproductions.training import Setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Layers and inducing points of each model.
MODELS = {"sgp": (1, 100), "sgp-500": (1, 500), "dgp2": (2, 100), "dgp3": (3, 100), "dgp4": (4, 100), "dgp5": (5, 100)}

#: One layer with its optimal q(u), which L-BFGS trains on all rows in float64; not in the paper.
SGPR = "sgpr"

#: Jitter where training is in float64, which allows less than the default of 1e-6: naval's noise is as small as that,
#: and after 1,000 steps its bound is 52,917 with this one and 48,633 with the default (split 0).
JITTER = 1e-8


class Program(NamedTuple):
    """A model, its guide, and the keyword arguments of its program."""

    model: Callable
    guide: InducingGuide
    keywords: dict[str, Any]


def program_of(name: str, X: Array, setting: Setting, **options: Any) -> Program:
    """The program of a model: inducing points by k-means, inner layers that start at their means.

    Args:
        name: a key of :data:`MODELS`, ``"sgpr"`` or ``"dgp2-natural"``.
        X: training inputs.
        setting: the settings of the training.
        **options: further arguments of :func:`~gpzoo.models.deep_gp`.
    """
    depth, num_inducing = shape_of(name, len(X), setting)
    # Mean maps of the inner layers, whose width is 30, or that of the inputs if smaller.
    layers = linear_layers(X, [min(30, X.shape[-1])] * (depth - 1))
    kernel = partial(ard, first="layer_0" if depth > 1 else "f", **setting.start)
    exact = {"jitter": JITTER} if setting.collapsed else {}
    model = partial(deep_gp, kernel=kernel, **exact, **options)
    guide = InducingGuide(model, kmeans(num_inducing), initial_scale=inner_scales(layers))
    return Program(model, guide, {"layers": layers})


def shape_of(name: str, num_data: int, setting: Setting) -> tuple[int, int]:
    """Layers and inducing points of a model: the paper's, unless the setting has a number of inducing points."""
    depth, num_inducing = MODELS["sgp" if name == SGPR else name.removesuffix("-natural")]
    return depth, min(setting.num_inducing or num_inducing, num_data)


def ard(
    name: str,
    h: Array,
    *,
    first: str = "",
    lengthscale: float | None = None,
    lengthscale_inputs: float | None = None,
    variance: float = 1.0,
) -> Any:
    """An RBF with a lengthscale per column.

    Args:
        name: the layer.
        h: its inputs.
        first: the layer that sees the inputs of the model.
        lengthscale: where lengthscales start; the root of the number of columns unless given.
        lengthscale_inputs: where those of the first layer start, if elsewhere.
        variance: where the variance starts.
    """
    start = lengthscale if name != first or lengthscale_inputs is None else lengthscale_inputs
    return rbf(name, h, variance=variance, lengthscale=float(h.shape[-1]) ** 0.5 if start is None else start)


def described(setting: Setting) -> dict[str, Any]:
    """Further settings of a deep GP's training, for the result."""
    return {"draws_training": 1, "draws_prediction": 100, "start": started(setting)}


def started(setting: Setting) -> dict[str, float | str]:
    """Initial hyperparameters of kernels, in words if they depend on the inputs."""
    return {"lengthscale": "square root of the number of columns", "variance": 1.0} | dict(setting.start)


def title_of(model: str) -> str:
    """The name of a model in figures, such as ``"dgp2"``, ``"sgp-500"`` or ``"dgp2-natural"``."""
    shape, *training = model.split("-natural")
    return re.sub(r"(GP)-?(\d)", r"\1 \2", shape.upper()) + (", natural gradients" if training else "")


# -- scores ------------------------------------------------------------------------------------------------------------

#: The metrics of every fold.
METRICS = ("test_log_likelihood", "rmse")


def summary(scores: Mapping[str, Any]) -> dict[str, float]:
    """Means of a model's metrics over folds, with standard errors."""
    return means({metric: scores[metric] for metric in METRICS})


# -- figures -----------------------------------------------------------------------------------------------------------


def figure_1(results: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Test log likelihood of every model and data set, means and standard errors over folds (figure 1).

    Args:
        results: the content of the result files, by data set.

    Returns:
        A figure without a window.
    """
    figure, panels = _panels(len(results), 4, 5.5, (1.75, 2.2))
    for axes, (name, result) in zip(panels, results.items(), strict=False):
        metrics, end = result["metrics"], "_test_log_likelihood"
        models = [key.removesuffix(end) for key in metrics if key.endswith(end)]
        for row, model in enumerate(models):
            value, error = metrics[model + end], metrics.get(f"{model}{end}_se", 0.0)
            colour = {"sgp": "C1", SGPR: "C2"}.get(model, "C0")
            axes.errorbar(value, -row, xerr=error, fmt="o", color=colour, markersize=4, capsize=2)
            if model == "sgp":
                axes.axvline(value, color="0.85", zorder=0)
        axes.set_yticks([-row for row in range(len(models))], [title_of(model) for model in models])
        axes.tick_params(labelsize=8)
        axes.locator_params(axis="x", nbins=3)
        sizes = result["data"]["sizes"]
        axes.set_title(f"{name} (N {sizes['train'] + sizes['test']:,}, D {sizes['input_shape'][0]})", fontsize=8)
    words = "test log likelihood per point (nats, original units), mean and standard error; grey: SGP"
    figure.supxlabel(words, fontsize=9)
    return figure


def figure_curves(results: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Test log likelihood against steps, means and standard errors over folds; models without a curve as lines.

    Args:
        results: the content of the result files, by data set.

    Returns:
        A figure without a window.
    """
    figure, panels = _panels(len(results), math.ceil(len(results) ** 0.5), 5, (3.4, 3.4))
    for axes, (title, result) in zip(panels, results.items(), strict=False):
        _draw_curves(axes, result["settings"]["by_fold"])
        axes.set_title(title)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=9, loc="outside upper center", ncols=len(labels), frameon=False)
    figure.supxlabel("optimisation step (logarithmic)", fontsize=10)
    figure.supylabel("test log likelihood per point (nats)", fontsize=10)
    return figure


def _panels(number: int, most: int, narrowest: float, each: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels, at most ``most`` in a row, and at least so wide."""
    columns, rows = min(most, number), -(-number // most)
    figure = plots.blank(max(narrowest, each[0] * columns + (most == 4)), each[1] * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[number:]:
        axes.set_axis_off()
    return figure, list(panels)


def _draw_curves(axes: Axes, by_fold: Mapping[str, Mapping[str, Any]]) -> None:
    metric, steps = "test_log_likelihood", set()
    for name, scores in by_fold.items():
        style: dict[str, Any] = {"color": {SGPR: "C0", "dgp2": "C1"}.get(name, "C2"), "label": title_of(name)}
        if curve := scores.get("curve"):
            at, values, errors = ([point.get(k, 0.0) for point in curve] for k in ("step", metric, f"{metric}_se"))
            axes.errorbar(at, values, yerr=errors, marker=".", capsize=2, **style)
            steps |= {int(step) for step in at}
        else:
            axes.axhline(np.mean(scores[metric]), linestyle="--", **style)
    axes.set_xscale("log")
    axes.set_xticks(sorted(steps), [f"{step:,}" for step in sorted(steps)], fontsize=7)
    axes.set_xticks([], minor=True)
