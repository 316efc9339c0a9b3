"""Had a training converged? What its result file tells, by its curve or by the same network for more steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gpzoo.reproductions.printed import Printed, amount
from gpzoo.reproductions.verdicts import behind

#: The last part of a training, in which a metric that still improves shows that it had not converged.
_LAST = 0.25


def convergence(result: Mapping[str, Any], metric: str, printed: Printed, error: float | None) -> str:
    """Whether a training had converged, in words; empty if the file does not tell.

    It had not if the metric improved by more than the rounding and one standard error of the difference: in the
    last quarter of the steps, or from a network to the same one for more steps (``dnn-long`` of ``dnn``).

    Args:
        result: the content of a result file.
        metric: the metric's name.
        printed: the paper's number.
        error: standard error of ours, if it is known.
    """
    model, _, name = metric.rpartition("_")
    longer = result["metrics"].get(f"{model}-long_{name}")
    if longer is not None:
        before, after, during = result["metrics"][metric], longer, "with more steps"
    else:
        curve = [point for point in result.get("curve") or () if metric in point]
        steps = result["steps"]
        early = [point for point in curve if point["step"] <= (1 - _LAST) * steps]
        if not early:
            return ""
        before, after = early[-1][metric], curve[-1][metric]
        during = f"in the last {curve[-1]['step'] - early[-1]['step']:,} of {steps:,} steps"
    gained = behind(metric, before, after)
    if gained is None:
        return ""
    # The error of a difference of two such numbers, as if they did not share their test rows.
    if gained > printed.rounding + math.sqrt(2) * (error or 0.0):
        return f"not converged: better by {amount(gained, printed)} {during}"
    return f"level, within the error, {during}"
