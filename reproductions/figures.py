"""Figures that experiments share; ``figure_...`` of a paper's own module draws those of that paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jax.typing import ArrayLike

from gpzoo._extras import needs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: Metrics that are drawn against time, with their display factor and their name.
_SCALES = {
    "error": (100, "test error (%)"),
    "accuracy": (100, "test accuracy (%)"),
    "auc": (1, "test AUC"),
    "rmse": (1, "test RMSE (original units)"),
    "nlpp": (1, "test nlpp (nats)"),
    "test_log_likelihood": (1, "test log likelihood (nats)"),
    "learned_angle_degrees": (1, "learned angle (degrees)"),
    "bound_per_point": (1, "bound per training point (nats)"),
}


def blank(width: float, height: float) -> Figure:
    """An empty figure of a size in inches, without a window.

    Raises:
        MissingExtraError: without matplotlib.
    """
    with needs("plots", "Drawing"):
        from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean of the last ``window`` values, or fewer at the start: ``[n]`` to ``[n]``."""
    total = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    end = np.arange(1, len(values) + 1)
    start = np.maximum(end - window, 0)
    return (total[end] - total[start]) / (end - start)


def learning_curve(elbo: ArrayLike | tuple[ArrayLike, ArrayLike]) -> Figure:
    """The evidence lower bound against optimisation steps, minibatch noise in grey under its running mean.

    The axes fit the running mean without its first steps, which are far below.

    Args:
        elbo: the bound at every step ``[steps]``, or a pair of step numbers and values, both ``[n]``.

    Returns:
        A figure without a window.

    Raises:
        ValueError: if the curve is empty or steps and values differ in length.
    """
    steps, values = elbo if isinstance(elbo, tuple) else (None, elbo)
    values = np.asarray(values, dtype=np.float64)
    steps = np.arange(1, len(values) + 1) if steps is None else np.asarray(steps)
    if values.ndim != 1 or values.size == 0 or steps.shape != values.shape:
        raise ValueError(f"A learning curve needs matching steps and values [n], got {steps.shape} and {values.shape}.")
    finite = np.isfinite(values)
    steps, values = steps[finite], values[finite]

    figure = blank(6, 4)
    axes = figure.subplots()
    smooth = running_mean(values, max(1, len(values) // 50))
    axes.plot(steps, values, color="0.8", linewidth=0.8, label="minibatch estimate")
    axes.plot(steps, smooth, color="C0", label="running mean")
    shown = smooth[len(smooth) // 20 :]
    if shown.size and shown.max() > shown.min():
        margin = 0.1 * (shown.max() - shown.min())
        axes.set_ylim(shown.min() - margin, shown.max() + margin)
    axes.set(xlabel="optimisation step", ylabel="evidence lower bound (nats)")
    axes.legend(loc="lower right")
    return figure


def test_curves(curves: Mapping[str, Sequence[Mapping[str, float]]]) -> Figure:
    """Test metrics against training time, a line per variant (convolutional GPs, figures 2 and 3).

    Args:
        curves: variant to its points, each with ``seconds`` and metrics. Known metrics are drawn for the variants that
            have them.

    Returns:
        A figure without a window.
    """
    points = [point for each in curves.values() for point in each]
    longest = max(point["seconds"] for point in points)
    unit, name = next(
        (u, n) for u, n in ((3600, "hours"), (60, "minutes"), (1, "seconds")) if longest >= 3 * u or u == 1
    )
    metrics = [metric for metric in _SCALES if any(metric in point for point in points)]
    figure = blank(4.5 * len(metrics), 3.6)
    for axes, metric in zip(figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
        scale, label = _SCALES[metric]
        # A variant keeps its colour even if others lack a metric.
        own = {v: (f"C{i}", each) for i, (v, each) in enumerate(curves.items()) if all(metric in p for p in each)}
        for variant, (colour, each) in own.items():
            time = [point["seconds"] / unit for point in each]
            axes.plot(time, [scale * point[metric] for point in each], marker=".", color=colour, label=variant)
        # The axes fit the later evaluations, because the first ones are far off.
        later = [scale * point[metric] for _, each in own.values() for point in each[len(each) // 5 :]]
        margin = 0.08 * (max(later) - min(later)) or 0.08 * abs(max(later)) or 0.01
        axes.set_ylim(min(later) - margin, max(later) + margin)
        axes.set(xlabel=f"time in training ({name})", ylabel=label)
    figure.axes[0].legend(fontsize=8)
    return figure
