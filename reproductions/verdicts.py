"""Does a number of ours reach the paper's? One rule for all of them, and a word for the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gpzoo.reproductions.printed import amount, as_printed

LOWER_IS_BETTER = frozenset({"error", "nlpp", "rmse"})
HIGHER_IS_BETTER = frozenset({"accuracy", "test_log_likelihood", "auc", "elbo"})

#: The largest standard error with which a number that is not better can have reached the paper's: 0.15 points of a
#: share, 0.02 nats.
_LARGEST_ERROR = {"error": 0.0015, "accuracy": 0.0015, "auc": 0.0015, "nlpp": 0.02, "test_log_likelihood": 0.02}

REACHED, SHORT, UNDECIDED = "reached", "short", "undecided"
STAND_IN, SUBSET, FEWER_FOLDS = "stand-in", "subset", "fewer folds"
READING, NOT_SCORED, NOT_RUN, NO_EXPERIMENT = "reading", "not scored", "not run", "no experiment"

#: What is said of a result that is not scored.
AS_GOOD, HOLDS = "as good or better", "it holds"
IN_ROUNDING, IN_ERROR = "within the rounding", "within one standard error"
GOOD = (AS_GOOD, IN_ROUNDING, IN_ERROR, HOLDS)

#: What the words mean, for the pages.
WORDS = {
    REACHED: "ours is better, or no worse than the rounding of the printed number; or worse by no more than the "
    "rounding plus one standard error of ours, if that error is known and at most 0.15 points (0.0015) or 0.02 nats",
    SHORT: "ours is worse by more than the rounding and one standard error; where the error is not known, as that of "
    "an nlpp of one run, by more than the rounding and 0.02 nats",
    UNDECIDED: "ours is worse than the rounding explains, though not by more than one standard error, and that error "
    "is too large to decide it: larger than 0.15 points or 0.02 nats, or not known and perhaps as large as that",
    FEWER_FOLDS: "on fewer random splits than the paper's; never counts as reached",
    SUBSET: "on a part of the paper's data; never counts as reached",
    STAND_IN: "on other data, or another problem, than the paper's, or by a `quick` run, which checks the program; "
    "never counts as reached",
    READING: "the paper's value is read off a figure or an axis; never counts as reached",
    NOT_SCORED: "neither direction is better, or it depends on the machine",
    NOT_RUN: "an experiment is there, and no result of it is recorded",
    NO_EXPERIMENT: "nothing here answers it",
}


class Verdict(NamedTuple):
    """A word of :data:`WORDS`, and how far ours is from the paper's."""

    word: str
    distance: str = ""

    def __str__(self) -> str:
        """The word and the distance: ``"short by 0.51 points"``, or ``"subset, short by 0.51 points"``."""
        separator = " " if self.distance.startswith("by ") else ", "
        return self.word + separator * bool(self.distance) + self.distance


def kind(metric: str) -> str | None:
    """The kind of a metric, if one direction is better: ``"accuracy"`` for a model's ``"dnn_accuracy"``."""
    known = LOWER_IS_BETTER | HIGHER_IS_BETTER
    if metric.endswith("_standard_error"):
        return None
    return next((kind for kind in known if metric == kind or metric.endswith(f"_{kind}")), None)


def behind(metric: str, ours: float, paper: float) -> float | None:
    """By how much ours is worse, which is negative where it is better; ``None`` if neither direction is better."""
    found = kind(metric)
    if found is None:
        return None
    return ours - paper if found in LOWER_IS_BETTER else paper - ours


def verdict(metric: str, ours: float, paper: float, error: float | None = None, limit: str | None = None) -> Verdict:
    """The verdict on a number of ours.

    Args:
        metric: its name.
        ours: our number.
        paper: the paper's; the rounding of a :class:`gpzoo.reproductions.printed.Printed` is allowed for.
        error: standard error of ours, if it is known.
        limit: what keeps it from being scored, a word such as :data:`SUBSET`.
    """
    if limit in (STAND_IN, READING):
        return Verdict(limit)
    worse, printed = behind(metric, ours, paper), as_printed(paper)
    if worse is None:
        return Verdict(limit or NOT_SCORED)
    most = _LARGEST_ERROR.get(kind(metric) or "")
    # Of an unknown error, the largest with which the number could count.
    allowed = error if error is not None else most or 0.0
    if worse <= printed.rounding:
        word = REACHED
    elif worse > printed.rounding + allowed:
        word = SHORT
    else:
        word = REACHED if error is not None and (most is None or error <= most) else UNDECIDED
    distance = amount(worse, printed)
    if limit is None:
        return Verdict(word, f"by {distance}" if word == SHORT else "")
    good = AS_GOOD if worse <= 0 else IN_ROUNDING if worse <= printed.rounding else IN_ERROR
    return Verdict(limit, {REACHED: good, SHORT: f"short by {distance}", UNDECIDED: UNDECIDED}[word])


def limit_of(result: Mapping[str, Any], *, rows: int | None = None, folds: int | None = None) -> str | None:
    """What keeps a result from being scored against the paper's: the first that holds, ``None`` if nothing does.

    Args:
        result: the content of a result file.
        rows: number of rows of the paper's data, for training and testing, where files without ``subset`` are judged.
        folds: number of the paper's splits, where files without ``folds`` are judged.
    """
    sizes, settings = result["data"]["sizes"], result.get("settings") or {}
    used = sizes.get("train", 0) + sizes.get("test", 0) if isinstance(sizes, Mapping) else 0
    own = result.get("folds") or {}
    count, of = own.get("count") or settings.get("splits") or settings.get("folds"), own.get("of") or folds
    if result.get("stands_in"):
        return STAND_IN
    if result.get("subset") or (rows and used and used < rows):
        return SUBSET
    if count and of and count < of:
        return FEWER_FOLDS
    return None
