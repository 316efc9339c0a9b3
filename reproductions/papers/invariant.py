"""Statements that only the paper on learned invariances makes."""

from __future__ import annotations

from typing import Any

from gpzoo.reproductions.judge import Found, Judged, Value, holding
from gpzoo.reproductions.records import Key, Ours, Recorded, Records, lead


def angle(found: Found, least: float | None = None, below: float | None = None) -> Judged:
    """The learned angles are at least, or below, the truth by more than they moved at the end of the training."""
    values = found.all("learned_angle_degrees")
    moved = max(map(_moved, found.values()))
    margins = [each.ours.value - least if least is not None else (below or 0.0) - each.ours.value for each in values]
    holds = None if min(map(abs, margins)) <= moved else min(margins) > 0
    return Judged(holds, [*values, Value("moved in the last quarter of the steps by", Ours(moved))])


def _moved(run: Recorded) -> float:
    """By how many degrees the angle differs at the end from that after three quarters of the steps."""
    late = [each["learned_angle_degrees"] for each in run.result["curve"] if each["step"] >= 0.75 * run.result["steps"]]
    return abs(late[-1] - late[0])


def slightly(found: Found) -> Judged:
    """Rotation is better than the RBF, by less than affine or local views are better than rotation."""
    values = {each.name: each.ours for each in found.all("error")}
    best = min(("affine", "local"), key=lambda name: values[name].value)
    gain, further = (lead(values[a], values[b], "error") for a, b in (("rotation", "rbf"), (best, "rotation")))
    # Both gains have rotation's error in them.
    apart = lead(gain, further._replace(value=gain.value + further.value - gain.value), "error")._replace(
        value=further.value - gain.value
    )
    return Judged(holding([gain, apart]), found.all("error"))


def best_bound(found: Found) -> Judged:
    """Fixed rotation has the highest bound and the lowest error."""
    bound, error = ({each.name: each.ours for each in found.all(metric)} for metric in ("bound_per_point", "error"))
    best = max(bound, key=lambda name: bound[name].value)
    leads = [lead(error[best], other, "error") for name, other in error.items() if name != best]
    holds = False if best != "rotation-fixed" else holding(leads)
    return Judged(holds, [*found.all("bound_per_point"), *found.all("error")])


def facts(records: Records) -> dict[str, Any]:
    """Numbers for ``pages/invariant.md.jinja``, where the truth is 90 degrees.

    ``few`` are the angles with few rows; with all rows they pass the truth by the step ``passed`` and end ``over`` it,
    in per cent of the truth.
    """
    few, passed, over = [], [], []
    for variant in ("90-from-5", "90-from-45"):
        small, large = (records.found.get(Key("invariant", "rotated-binary", variant, of)) for of in ("cpu", "tuned"))
        if small is not None:
            few.append(Ours(small["metrics"]["learned_angle_degrees"]))
        curve = [(each["step"], each["learned_angle_degrees"]) for each in large["curve"]] if large is not None else []
        passed += [step for step, angle in curve if angle > 90][:1]
        over += [100 * (angle / 90 - 1) for _, angle in curve[-1:]]
    return {"few": few, "passed": max(passed, default=None), "over": max(over, default=None)}
