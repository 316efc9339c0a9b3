"""Had a training converged? What its result file tells, by its curve or by the same network for more steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gpzoo.reproductions.printed import Printed, amount
from gpzoo.reproductions.records import paired, splits_of
from gpzoo.reproductions.verdicts import behind

#: The last part of a training, in which a metric that still improves shows that it had not converged.
_LAST = 0.25


def convergence(result: Mapping[str, Any], metric: str, printed: Printed, error: float | None) -> str:
    """Whether a training had converged, in words; empty if the file does not tell.

    It had not if the metric improved by more than the rounding and one standard error of the difference: in the last
    quarter of the steps, or from a network to the same one for more steps (``dnn-long`` of ``dnn``).

    Args:
        result: the content of a result file.
        metric: the metric's name.
        printed: the paper's number.
        error: standard error of ours, if it is known.
    """
    model, _, name = metric.rpartition("_")
    if model == "dnn+gp":
        network = convergence(result, f"dnn_{name}", printed, error)
        return f"built on a network which is {network}" if network.startswith("not converged") else ""
    if f"{model}-long_{name}" in result["metrics"]:
        change, spread = with_more_steps(result, model, name, error)
        before, after, during = 0.0, change, "with more steps"
    else:
        curve = [point for point in result.get("curve") or () if metric in point]
        steps = result["steps"]
        early = [point for point in curve if point["step"] <= (1 - _LAST) * steps]
        if not early:
            return ""
        before, after, spread = early[-1][metric], curve[-1][metric], _of_difference(error)
        during = f"in the last {curve[-1]['step'] - early[-1]['step']:,} of {steps:,} steps"
    gained = behind(metric, before, after)
    if gained is None:
        return ""
    # A rate that falls brings some of a gain, and stills what a constant one would still change.
    falls = "cosine" in str((result.get("settings") or {}).get("learning_rate"))
    if abs(gained) <= printed.rounding + (spread or 0.0):
        return f"level{', within the error,' if spread else ''} {during}" + ", where the rate is small" * falls
    said = f"{'better' if gained > 0 else 'worse'} by {amount(gained, printed)} {during}"
    if spread is None:
        return f"{said}, error not known"
    if falls:
        return f"{said}, as the rate fell"
    return f"not converged: {said}" if gained > 0 else said


def with_more_steps(
    result: Mapping[str, Any], model: str, metric: str, error: float | None
) -> tuple[float, float | None]:
    """A metric of the same network for more steps less the network's, and the standard error of that if it is known.

    Args:
        result: the content of a result file.
        model: the network, such as ``"dnn"``.
        metric: the metric.
        error: standard error of the network's metric, if it is known; over splits the difference has its own.
    """
    if splits_of(result) > 1:
        return paired(result, metric, f"{model}-long", model)
    metrics = result["metrics"]
    return metrics[f"{model}-long_{metric}"] - metrics[f"{model}_{metric}"], _of_difference(error)


def _of_difference(error: float | None) -> float | None:
    """The error of a difference of two such numbers, as if they did not share their test rows."""
    return None if error is None else math.sqrt(2) * error
