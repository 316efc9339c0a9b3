"""Figures that experiments share; ``figure_...`` of a paper's own module draws those of that paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jax.typing import ArrayLike

from gpzoo.inference.inspection import plots

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


def learning_curve(elbo: ArrayLike | tuple[ArrayLike, ArrayLike]) -> Figure:
    """The evidence lower bound against optimisation steps, see :func:`gpzoo.inference.inspection.plots.learning_curve`.

    Args:
        elbo: the bound at every step ``[steps]``, or a pair of step numbers and values, both ``[n]``.

    Returns:
        A figure without a window.

    Raises:
        ValueError: if the curve is empty or steps and values differ in length.
    """
    steps, values = elbo if isinstance(elbo, tuple) else (None, elbo)
    figure = plots.blank(6, 4)
    plots.learning_curve(values, steps, ax=figure.subplots())
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
    figure = plots.blank(4.5 * len(metrics), 3.6)
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
