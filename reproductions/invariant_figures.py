"""Learning invariances (van der Wilk et al. 2018): figures 3 to 5, of the recorded results of several variants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gpzoo.reproductions.claims import load
from gpzoo.reproductions.figures import test_curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure_3(results: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Figure 3: the learned angle from its start, test error and bound over time; dashed, the true angles."""
    figure = test_curves(_curves(results), metrics=("learned_angle_degrees", "error", "bound_per_point"))
    angle, drawn = figure.axes[0], {line.get_label(): line for line in figure.axes[0].lines}
    for variant, line in drawn.items():
        truth, _, start = str(variant).partition("-from-")
        angle.axhline(float(truth), color="0.4", linestyle="--", linewidth=1)
        times, values = (np.asarray(each, float) for each in line.get_data())
        angle.plot([0, times[0]], [float(start), values[0]], color=line.get_color(), linestyle=":", marker=".")
        angle.text(0, float(truth), f" truth {truth}", color="0.4", fontsize=8, va="bottom")
    angle.set_ylim(0, 200 if any(variant.startswith("180") for variant in results) else 105)
    angle.set_yticks(range(0, 181 if angle.get_ylim()[1] > 180 else 91, 45 if angle.get_ylim()[1] > 180 else 15))
    return figure


def figure_4(results: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Figure 4: test error and bound over time; the bounds of the Gaussian likelihood only, which has other targets."""
    figure = test_curves(_curves(results), metrics=("error", "bound_per_point"))
    error, bound = figure.axes
    for claim in load("invariant").claims:
        if claim.reading and claim.printed is not None and claim.answer is not None and claim.answer.variant in results:
            error.axhline(100 * claim.printed, color="0.5", linestyle="--", linewidth=1)
    error.set_ylim(bottom=0)
    error.text(
        0.02,
        0.02,
        "dashed: read off the paper's figure, RBF 2, affine and local 1",
        fontsize=8,
        transform=error.transAxes,
    )
    gaussian = [line for line in bound.lines if not str(line.get_label()).endswith("-sticks")]
    for line in set(bound.lines) - set(gaussian):
        line.remove()
    if gaussian:
        late = np.concatenate([np.asarray(line.get_ydata())[1:] for line in gaussian])
        bound.set_ylim(late.min() - 0.3, late.max() + 0.3)
    bound.set_title("Gaussian likelihood", fontsize=9)
    bound.legend(*error.get_legend_handles_labels(), loc="lower right", fontsize=8)
    if (legend := error.get_legend()) is not None:
        legend.remove()
    return figure


def figure_5(results: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Figure 5: test error and bound over time."""
    return test_curves(_curves(results), metrics=("error", "bound_per_point"))


def _curves(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {variant: result["curve"] for variant, result in results.items()}
