"""How is a number printed in a paper, and how is ours printed beside it? With its unit, its digits and its error."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

#: What is known of each metric.
METRICS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("metrics.toml").read_text("utf-8"))


def kind(metric: str) -> str | None:
    """The kind of a metric, if one direction is better: ``"accuracy"`` for a model's ``"dnn_accuracy"``."""
    if metric.endswith("_standard_error"):  # as old files have it
        return None
    ends = [name for name, facts in METRICS.items() if "better" in facts and f"_{metric}".endswith(f"_{name}")]
    return ends[0] if ends else None


def toward(metric: str) -> int:
    """1 if higher values of a metric are better, -1 if lower ones are, 0 if neither."""
    return {"higher": 1, "lower": -1}.get(METRICS.get(kind(metric) or "", {}).get("better", ""), 0)


class Printed(float):
    """A number of a paper, which knows its last digit: ``Printed("1.22 %")`` is 0.0122, rounded by at most 0.00005.

    Attributes:
        text: the number as it is printed, with its standard deviation where one is: ``"0.781±0.001"``.
        scale: 100 for a percentage, else 1.
        decimals: number of printed digits after the point.
        rounding: the most by which the number was rounded, half a unit of its last digit.
    """

    text: str
    scale: int
    decimals: int
    rounding: float

    def __new__(cls, text: str) -> Printed:
        """The number of a text, in per cent if it ends so."""
        digits = text.removesuffix("%").strip().partition("±")[0]
        scale = 100 if text.endswith("%") else 1
        decimals = len(digits.partition(".")[2])
        self = super().__new__(cls, round(float(digits) / scale, decimals + 2))
        self.text, self.scale, self.decimals = text, scale, decimals
        self.rounding = 0.5 * 10.0**-decimals / scale
        return self

    def __getnewargs__(self) -> tuple[str]:
        """What a copy is made of."""
        return (self.text,)


def as_printed(value: float) -> Printed:
    """A number with its last digit: a plain number has those that Python shows."""
    return value if isinstance(value, Printed) else Printed(f"{float(value):.15g}")


def beside(ours: float, error: float | None, printed: Printed) -> str:
    """Our number in the paper's unit, with its standard error: a digit more than is printed, or two of the error."""
    value, unit = ours * printed.scale, " %" if printed.scale == 100 else ""
    decimals = printed.decimals + 1
    if error:
        scaled = error * printed.scale
        decimals = max(printed.decimals, min(8, 1 - math.floor(math.log10(scaled))))
        return f"{value:.{decimals}f} ± {scaled:.{decimals}f}{unit}"
    return f"{value:.{decimals}f}{unit}"


def amount(difference: float, printed: Printed) -> str:
    """The size of a difference from a printed number, in its unit and with a digit more."""
    unit = " points" if printed.scale == 100 else ""
    decimals = min(printed.decimals + 1, 2 if unit else 4)
    return f"{abs(difference) * printed.scale:.{decimals}f}{unit}"


def number(value: float | None) -> str:
    """A number to four digits, or a dash for ``None``."""
    return "-" if value is None else f"{value:.4g}"
