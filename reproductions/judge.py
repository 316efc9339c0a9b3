"""Verdicts on our numbers compared with the paper, and on statements: one rule for numbers, a few kinds of statements.

The rule compares two numbers that both have an error. There is no difference if two one-sided tests say that the
difference is less than a margin, which the TOML states. There is a difference if its 95 % interval does not
include zero. Otherwise the two numbers are not told apart.

A statement in the TOML of a paper gives its kind as ``judge``, and its ``arguments``. The kind is a function of this
module or of the paper's module. It is called with the runs that the claim ``needs``, and returns a :class:`Judged`.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any, NamedTuple

from gpzoo.reproductions.claims import METRICS, Answer, Claim, Paper, Printed, amount, as_printed, kind, toward
from gpzoo.reproductions.experiment import Experiment, ReproductionError, module_of_file
from gpzoo.reproductions.records import Key, Ours, Recorded, Records, error_of, is_share, lead, overlap_of

MATCHED, EXCEEDED, SHORT, NOT_APART, UNDECIDED = "matched", "exceeded", "short", "not told apart", "undecided"
STAND_IN, SUBSET, FEWER_FOLDS = "stand-in", "subset", "fewer folds"
READING, NOT_SCORED, NOT_RUN, NO_EXPERIMENT = "reading", "not scored", "not run", "no experiment"
BASELINE = "baseline"

#: Limits. The limit that is nearest to the data of the paper comes first.
LIMITS = (None, READING, FEWER_FOLDS, SUBSET, STAND_IN)


#: All words under which claims are counted, in the order of the pages.
WORDS = (
    MATCHED, EXCEEDED, SHORT, NOT_APART, UNDECIDED, BASELINE, FEWER_FOLDS, SUBSET, STAND_IN, READING, NOT_SCORED,
    NOT_RUN, NO_EXPERIMENT,
)  # fmt: skip


#: The level of each of two one-sided tests: the probability of "less than the margin" if the difference is the margin.
EITHER_SIDE = 0.05


class Verdict(NamedTuple):
    """The verdict on a claim.

    Attributes:
        word: one of matched, exceeded, short, not told apart and undecided; empty if the two cannot be compared.
        interval: interval of our lead over the paper, in words; empty for statements.
        limit: the reason why the claim is not scored.
        blunt: whether the errors are too large for the margin: equal numbers would not be told apart, too.
    """

    word: str = ""
    interval: str = ""
    limit: str | None = None
    blunt: bool = False

    def __str__(self) -> str:
        """``"short (-0.76…-0.26 points)"``, or ``"subset, not told apart* (-0.76…+0.36 points)"`` if it is blunt."""
        word = f"{self.word}*" if self.blunt else self.word
        said = f"{word} ({self.interval})" if self.interval else word
        return ", ".join(filter(None, (self.limit, said)))


def margin_of(metric: str, paper: float) -> float:
    """The largest difference from a number of the paper that counts as none: from the claim, or from the metric."""
    printed = as_printed(paper)
    if printed.margin is not None:
        return printed.margin / printed.scale
    facts = METRICS.get(kind(metric) or "", {})
    share = facts["margin_share"] * abs(printed) if "margin_share" in facts else math.inf
    found = min(facts.get("margin", math.inf), share)
    return found if math.isfinite(found) else 0.0


def error_of_paper(metric: str, ours: Ours, printed: Printed, result: Mapping[str, Any]) -> float | None:
    """The standard error of a number of the paper on the paper's own data, as far as it is known.

    It is computed from the standard deviation over splits, or the standard error, if the paper prints one. For a share
    on one split, it is binomial. Otherwise the error of our number, or of the first of our seeds, is used. The number
    of test rows is ours, unless ``printed`` has one. The paper's number is of one training, so it varies as our seeds
    do, too.
    """
    rows = result["data"]["sizes"]["test"]
    if printed.deviation is not None:
        splits = (result["folds"] or {"of": 1})["of"]
        of_mean = printed.deviation / (1 if printed.of_mean else math.sqrt(splits))
        return of_mean * math.sqrt(1 + splits * overlap_of(result))
    if 0 <= printed <= 1 and is_share(result, metric):
        return math.hypot(ours.between, math.sqrt(printed * (1 - printed) / (printed.test_rows or rows)))
    if ours.error is None:
        return None
    alone = error_of(result, metric).error or 0.0 if ours.between else ours.error
    return math.hypot(ours.between, alone * math.sqrt(rows / (printed.test_rows or rows)))


def verdict(
    metric: str,
    ours: Ours,
    paper: float,
    limit: str | None = None,
    *,
    paper_error: float | None = None,
) -> Verdict:
    """The verdict on one of our numbers.

    Args:
        metric: name of the number.
        ours: our number.
        paper: the number of the paper. The rounding of a :class:`gpzoo.reproductions.claims.Printed` is allowed for.
        limit: the reason why it is not scored, a word such as :data:`SUBSET`.
        paper_error: the standard error of the number of the paper; ``None`` for the error of our number.
    """
    if limit in (STAND_IN, READING) or not toward(metric):
        return Verdict(limit=limit or NOT_SCORED)
    printed = as_printed(paper)
    if ours.error is None:
        return Verdict(UNDECIDED, limit=limit)
    error = math.hypot(ours.error, ours.error if paper_error is None else paper_error)
    better = ours._replace(value=toward(metric) * (ours.value - paper), error=error)
    rounding, wide = printed.rounding, better.wide() or 0.0
    unit = " points" if printed.scale == 100 else ""
    ends = (amount(better.value + sign * (wide + rounding), printed) for sign in (-1, 1))
    limits = margin_of(metric, printed) - rounding
    if within(better, limits):
        word = MATCHED
    elif abs(better.value) > rounding + wide:
        word = EXCEEDED if better.value > 0 else SHORT
    else:
        word = NOT_APART
    blunt = word == NOT_APART and not within(better._replace(value=0.0), limits)
    return Verdict(word, f"{'…'.join(ends)}{unit}", limit, blunt)


def within(difference: Ours, margin: float) -> bool:
    """Whether a difference is surely less than the margin on both sides, by two one-sided tests; false if unknown."""
    wide = difference.wide(beyond=EITHER_SIDE)
    return wide is not None and abs(difference.value) + wide <= margin


def limit_of(result: Mapping[str, Any]) -> str | None:
    """The reason why a result is not compared with the paper, the first one that holds; ``None`` for no reason."""
    if result["stands_in"] or result["preset"] == "quick":
        return STAND_IN
    if result["subset"]:
        return SUBSET
    return FEWER_FOLDS if result["folds"] and result["folds"]["count"] < result["folds"]["of"] else None


# -- statements --------------------------------------------------------------------------------------------------------


class Value(NamedTuple):
    """A number by which a statement was judged. Its metric decides how it is written, such as in per cent."""

    name: str
    ours: Ours
    metric: str = ""


class Judged(NamedTuple):
    """The judgement of a statement from the result files.

    Attributes:
        holds: whether the statement holds; ``None`` if this is undecided.
        values: the numbers that show it. Of many comparisons, only those that contradict it or decide nothing.
        pairs: the number of comparisons, if ``values`` are differences between pairs.
        runs: the runs that were used; empty for all runs that the claim needs.
    """

    holds: bool | None
    values: Sequence[Value] = ()
    pairs: int = 0
    runs: Sequence[Key] = ()


class Found(dict[str, Recorded]):
    """The runs that a claim needs, by variant (or experiment); ``records`` are all recorded results."""

    def __init__(self, runs: Mapping[str, Recorded], records: Records) -> None:
        super().__init__(runs)
        self.records = records

    def all(self, metric: str, names: Iterable[str] | None = None) -> list[Value]:
        """A metric of every run, or of some of them.

        Raises:
            ReproductionError: if no run has this metric.
        """
        found = [(name, self[name].ours(metric)) for name in names or self]
        if not any(ours for _, ours in found):
            raise ReproductionError(f"No run of {', '.join(name for name, _ in found)} has the metric {metric!r}.")
        return [Value(name, ours or Ours(float("nan")), metric) for name, ours in found]


def holding(leads: Iterable[Ours], *, tie: float | None = None, allow: str = "", margin: float = 0.0) -> bool | None:
    """Whether all leads are positive by more than two standard errors; ``None`` if this is undecided.

    It is false if one lead is clearly negative. Among more leads, a lead must be more negative to be clear.

    Args:
        leads: differences by which one number is better than another.
        tie: size above which a lead without a known error is clear.
        allow: ``"level"`` asks that no lead is negative by more than the margin. ``"equal"`` asks that no lead differs
            from zero by more than the margin. A test at 5 % must show this for every lead, because a difference that
            is not significant may still be larger than the margin.
        margin: margin of these tests, which the claim states.
    """
    if not (leads := list(leads)):
        return None

    def clear(value: Ours, among: int = 1) -> int:
        wide = tie if (known := value.wide(among)) is None else max(known, tie or 0.0)
        # A missing number, NaN, is not clear.
        return 0 if wide is None or not abs(value.value) > wide else 1 if value.value > 0 else -1

    def no_worse(value: Ours) -> bool:
        if math.isnan(value.value):
            return False
        wide = value.wide(beyond=EITHER_SIDE)
        return clear(value) >= 0 and tie is not None if wide is None else value.value - wide >= -margin

    signs = [0 if allow and within(each, margin) else clear(each, len(leads)) for each in leads]
    if allow == "equal":
        return True if all(within(each, margin) for each in leads) else False if any(signs) else None
    if any(sign < 0 for sign in signs):
        return False
    if allow:
        return True if all(map(no_worse, leads)) else None
    return True if all(clear(each) > 0 for each in leads) else None


def better(
    found: Found,
    metric: str,
    than: str,
    share: float = 0.0,
    tie: float | None = None,
    allow: str = "",
    margin: float = 0.0,
) -> Judged:
    """Every other variant is better than ``than``, by at least a share of its number if ``share`` is given."""
    base = found.all(metric, [than])[0].ours
    leads = [lead(value.ours, base, metric, share) for value in found.all(metric) if value.name != than]
    return Judged(holding(leads, tie=tie, allow=allow, margin=margin), found.all(metric))


def best(found: Found, metric: str, name: str, tie: float | None = None) -> Judged:
    """One variant is better than every other."""
    own = found.all(metric, [name])[0].ours
    leads = [lead(own, value.ours, metric) for value in found.all(metric) if value.name != name]
    return Judged(holding(leads, tie=tie), found.all(metric))


def order(
    found: Found,
    metric: str,
    variants: Sequence[str],
    tie: float | None = None,
    allow: str = "",
    margin: float = 0.0,
) -> Judged:
    """Each variant is better than the next one."""
    values = found.all(metric, variants)
    leads = [lead(a.ours, b.ours, metric) for a, b in pairwise(values)]
    return Judged(holding(leads, tie=tie, allow=allow, margin=margin), values)


def pairs(
    found: Found,
    metric: str,
    models: Sequence[str],
    than: str = "",
    allow: str = "",
    tie: float | None = None,
    margin: float = 0.0,
) -> Judged:
    """In every run, each of its models is better than the model ``than``; without ``than``, than the model before.

    A pair of which no run has both models leaves the statement undecided.
    """
    asked = [(each, than) for each in models] if than else [(b, a) for a, b in pairwise(models)]
    leads, seen = [], set()
    for name, run in found.items():
        for model, other in asked:
            if f"{model}_{metric}" in run.result["metrics"] and f"{other}_{metric}" in run.result["metrics"]:
                said = f"{model} on {name}" if len(found) > 1 else model
                leads.append(Value(said, run.lead(metric, model, other), "lead"))
                seen.add((model, other))
    by: dict[str, Any] = {"allow": allow, "tie": tie, "margin": margin}
    holds = holding([each.ours for each in leads], **by)
    one = [each for each in leads if holding([each.ours], **by) is not True]
    holds = None if holds and len(seen) < len(asked) else holds
    return Judged(holds, one if len(leads) > 4 else leads, len(leads))


def same_order(found: Found, by: str, metric: str, tie: float = 0.0, margin: float = 0.0) -> Judged:
    """Two metrics order the variants in the same way.

    Values of the first metric that differ by less than ``tie`` have no order. If the second metric may order such a
    pair, this is undecided.
    """
    by_first = sorted(found, key=lambda name: -toward(by) * found.all(by, [name])[0].ours.value)
    first, second = found.all(by, by_first), found.all(metric, by_first)
    leads: dict[bool, list[Ours]] = {True: [], False: []}
    for i, j in combinations(range(len(by_first)), 2):
        close = abs(first[i].ours.value - first[j].ours.value) < tie
        leads[close].append(lead(second[i].ours, second[j].ours, metric))
    holds = holding(leads[False], allow="level", margin=margin)
    level = all(within(each, margin) for each in leads[True])
    return Judged(None if holds and not level else holds, [*first, *second])


def at_most(found: Found, limit: float, metrics: Sequence[str]) -> Judged:
    """Metrics of every run are at most ``limit``. A metric that no run has leaves the statement undecided."""
    values = [
        Value(f"{_model(metric)} on {name}" if len(metrics) * len(found) > 1 else "", ours, metric)
        for name, run in found.items()
        for metric in metrics
        if (ours := run.ours(metric)) is not None
    ]
    if not values:
        raise ReproductionError(f"No run of {', '.join(found)} has one of the metrics {', '.join(metrics)}.")
    largest = max(values, key=lambda each: each.ours.value)
    named = largest._replace(name=f"the largest number, of {largest.name}, is" if largest.name else "")
    absent = {each.metric for each in values} < set(metrics)
    holds = None if absent and largest.ours.value <= limit else largest.ours.value <= limit
    return Judged(holds, [named], len(values) if len(values) > 1 else 0)


def few_wrong(found: Found, name: str, limit: int, test_rows: int) -> Judged:
    """At most ``limit`` of ``test_rows`` images are wrong, where our run has a larger number of test images.

    This holds if no more of all images are wrong, or if every run lists its wrong images, and at most ``limit`` of its
    first ``test_rows`` are wrong. It does not hold if at most ``limit`` of ``test_rows`` wrong images have a
    probability below 5 %.
    """
    from scipy.special import pdtr

    ours, rows = found.all("wrong_images", [name])[0].ours, found[name].result["data"]["sizes"]["test"]
    expected = ours.value * test_rows / rows
    listed = [each["settings"].get("wrong_rows", {}).get("error") for each in found[name].results]
    first = [f"{int(bits, 16):0{4 * len(bits)}b}"[:test_rows].count("1") for bits in listed if bits]
    beside = Value(f"expected among {test_rows:,}:", Ours(expected))
    if first:
        beside = Value(f"of the first {test_rows:,} ({len(first)} of {len(listed)} runs):", Ours(max(first)))
    few = max(first) <= limit if len(first) == len(listed) else ours.value <= limit
    holds = True if few else False if pdtr(limit, expected) < 0.05 else None
    return Judged(holds, [Value(f"wrong images among {rows:,}:", ours), beside])


def _model(metric: str) -> str:
    """The model of a metric, ``DGP 2`` for ``dgp2_rmse``. For a metric without a model, the whole name."""
    if kind(metric) in (None, metric):
        return metric
    return metric.removesuffix(f"_{kind(metric)}").upper().replace("DGP", "DGP ").replace("-", " ")


def above(found: Found, metric: str, numbers: Mapping[str, float | str], tie: float | None = None) -> Judged:
    """A metric of each run is better than a given number for it, which may have a deviation, as in ``0.849±0.001``."""
    values, leads = found.all(metric, numbers), []
    for name, ours, _ in values:
        printed = as_printed(numbers[name])
        theirs = error_of_paper(metric, ours, printed, found[name].result)
        error = None if ours.error is None or theirs is None else math.hypot(ours.error, theirs)
        leads.append(ours._replace(value=toward(metric) * (ours.value - printed), error=error))
    return Judged(holding(leads, tie=tie), values)


def near(found: Found, metric: str, value: float, within: float) -> Judged:
    """A metric of every run is near a value."""
    values = found.all(metric)
    return Judged(all(abs(each.ours.value - value) <= within for each in values), values)


def judged(claim: Claim, paper: Paper, records: Records, presets: Mapping[str, Sequence[str]]) -> Judged | None:
    """The judgement of a statement from the result files; ``None`` without the runs that it needs.

    Args:
        claim: the statement.
        paper: paper of the statement.
        records: all recorded results.
        presets: presets of every experiment.
    """
    by = [list(records.compared(paper.key, *run, presets.get(run[0], ()))) for run in claim.runs]
    if "experiment" in claim.needs:
        there = [of for of in by if of or not claim.needs.get("some")]
        if not there:
            return None
        shared = [each.keys[0].preset for each in there[0] if all(each.keys[0].preset in _presets(of) for of in there)]
        by = [[each for each in of if each.keys[0].preset in shared[:1]] for of in by]
    names = [variant if variant != "all" else name for name, variant in claim.runs]
    runs = {name: of[0] for name, of in zip(names, by, strict=True) if of}
    if (len(runs) < len(by) and not claim.needs.get("some")) or (by and not runs):
        return None
    try:
        found = judge_of(claim, paper)(Found(runs, records), **claim.arguments)
        if not isinstance(found, Judged):
            raise TypeError(f"the function must return a Judged, not {found!r}")
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        said = f"{claim.what!r} cannot be judged by {claim.judge}: {type(error).__name__}: {error}"
        raise ReproductionError(said) from error
    if len(runs) < len(by) and found.holds:
        # A statement that holds on all recorded runs may fail on the others.
        found = found._replace(holds=None)
    return found._replace(runs=found.runs or [key for run in runs.values() for key in run.keys])


def _presets(runs: Iterable[Recorded]) -> set[str]:
    return {each.keys[0].preset for each in runs}


def module_of(paper: Paper) -> Any:
    """The module with the statements and figures of one paper only; ``None`` if the paper has no such module."""
    if paper.module is not None:
        return module_of_file(paper.module) if paper.module.is_file() else None
    name = f"gpzoo.reproductions.{paper.key}"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


def judge_of(claim: Claim, paper: Paper) -> Any:
    """The function that judges a statement; ``None`` if no function has this name."""
    return getattr(module_of(paper), claim.judge, None) or globals().get(claim.judge)


#: The verdicts on results that can be scored, with the best first.
SCORED = (MATCHED, EXCEEDED, NOT_APART, UNDECIDED, SHORT)


class Trained(NamedTuple):
    """Whether a training had converged: a word. If the training has a curve, also the best value and its step.

    Of several seeds, it is the first one that had not converged, else the first one that was past its best.
    """

    word: str
    best: Ours | None = None
    step: int = 0
    steps: int = 0
    seed: int | None = None


class Answered(NamedTuple):
    """A claim with our answer: the verdict, our number or the judgement, the runs, their size, and their training.

    ``instead_of`` is the verdict on runs with the paper's settings, if runs with our settings on the same data have a
    better verdict.
    """

    claim: Claim
    verdict: Verdict
    ours: Ours | None = None
    judged: Judged | None = None
    runs: Sequence[Key] = ()
    size: str = ""
    trained: Trained | None = None
    instead_of: Verdict | None = None

    @property
    def counted(self) -> str:
        """The word under which the claim is counted."""
        word = self.verdict.limit or self.verdict.word
        return BASELINE if self.claim.baseline and word in SCORED else word


class Answers:
    """The answers to the claims of a paper, from the recorded results of all experiments."""

    def __init__(self, paper: Paper, records: Records, experiments: Sequence[Experiment]) -> None:
        self.paper, self.records = paper, records
        self.presets = {each.name: each.presets for each in experiments if each.paper == paper.key}
        self.all = [self._of(claim) for claim in paper.claims]
        self._by_answer = {each.claim.answer: each for each in self.all if each.claim.answer is not None}

    @property
    def counts(self) -> Counter[str]:
        """The number of claims with each verdict. Baselines with a score are counted as baselines."""
        return Counter(each.counted for each in self.all)

    def to(self, answer: Answer) -> Answered | None:
        """The answer for a metric, even if the paper has no number for it."""
        return self._by_answer.get(answer) or self._number(Claim("", "", None, answer))

    def limit(self, key: Key) -> str | None:
        """The reason why a run is not scored."""
        return limit_of(self.records.found[key])

    def _of(self, claim: Claim) -> Answered:
        found = self._statement(claim) if claim.judge else self._number(claim) if claim.answer else None
        answerable = claim.judge or claim.answer
        return found or Answered(claim, Verdict(limit=NOT_RUN if answerable else NO_EXPERIMENT))

    def _statement(self, claim: Claim) -> Answered | None:
        found = judged(claim, self.paper, self.records, self.presets)
        if found is None:
            return None
        limits = {self.limit(key) for key in found.runs}
        word = {True: MATCHED, False: SHORT, None: UNDECIDED}[found.holds]
        limit = next((each for each in reversed(LIMITS) if each in limits), None)
        return Answered(claim, Verdict(word, limit=limit), None, found, tuple(found.runs), self.size(found.runs))

    def _number(self, claim: Claim) -> Answered | None:
        answer, found = claim.answer, []
        if answer is None:
            return None
        for run in self.records.compared(self.paper.key, *answer[:2], self.presets.get(answer.experiment, ())):
            ours = run.ours(answer.metric)
            if ours is None:
                continue
            limit, said, trained = self.limit(run.keys[0]), Verdict(), None
            if claim.printed is not None:
                of = {"paper_error": error_of_paper(answer.metric, ours, claim.printed, run.result)}
                limited = READING if claim.reading else limit
                said = verdict(answer.metric, ours, claim.printed, limited, **of)
                trained = training(run, answer.metric, claim.printed) if said.word in SCORED else None
            found.append(Answered(claim, said, ours, None, run.keys, self.size(run.keys), trained))
        best = min(found, key=self._rank, default=None)
        first = min(found, key=lambda each: self._rank(each)[0], default=None)
        if best is None or first is None or first.verdict.word == best.verdict.word or first.runs[0].preset != "paper":
            return best
        return best._replace(instead_of=first.verdict)

    def _rank(self, each: Answered) -> tuple[int, int]:
        """Results nearer to the data of the paper come first. Among these, results that match the number come first."""
        word = each.verdict.word
        return LIMITS.index(self.limit(each.runs[0])), SCORED.index(word) if word in SCORED else len(SCORED)

    def size(self, runs: Sequence[Key]) -> str:
        """The size of the data of runs, and a note if the settings are the paper's settings."""
        if not runs:
            return ""
        result = self.records.found[runs[0]]
        rows = {rows_of(self.records.found[each]) for each in runs}
        parts = [*rows] if len(rows) == 1 else [f"{len({each[1:3] for each in runs})} data sets"]
        folds = [self.records.found[each]["folds"] for each in runs]
        splits = {of and "{count} of {of} splits".format(**of) for of in folds}
        parts += filter(None, splits) if len(splits) == 1 else []
        every = [self.records.found[each]["settings"].get("num_inducing") for each in runs]
        if isinstance(M := every[0], int) and M and all(each == M for each in every):
            parts += [f"M {M:,}"]
        return ", ".join([*parts, *([PAPERS] if settings_of(result) == PAPERS else [])])


def training(run: Recorded, metric: str, printed: Printed) -> Trained | None:
    """Whether trainings had converged, by a curve or by the same network with more steps; ``None`` if unknown.

    A training had not converged if the best value of the metric in the last quarter is better than the best value
    before, by more than the rounding and two standard errors of such a difference. It was past its best if the value at
    the end is worse than the best value by as much.
    """
    if len(run.keys) == 1:
        return _training(run, metric, printed)
    each = [(key.seed, Recorded((key,), (result,))) for key, result in zip(run.keys, run.results, strict=True)]
    found = [of._replace(seed=seed) for seed, one in each if (of := _training(one, metric, printed)) is not None]
    words = ("not converged", "past its best", "no gain told")
    return min(found, key=lambda of: words.index(of.word), default=None)


def _training(run: Recorded, metric: str, printed: Printed) -> Trained | None:
    result, sign = run.result, toward(metric)
    model, _, name = metric.rpartition("_")
    if f"{model}-long_{name}" in result["metrics"]:
        change = run.lead(name, f"{model}-long", model)
        least = printed.rounding + (change.wide() or 0.0)
        return Trained("not converged" if change.value > least else "no gain told")
    curve = [point for point in result["curve"] if metric in point]
    early = [point for point in curve if point["step"] <= 0.75 * result["steps"]]
    if not early:
        return None
    wide = error_of(result, metric).wide()
    least = printed.rounding + math.sqrt(2) * (wide or 0.0)
    before, best = (max(points, key=lambda point: sign * point[metric]) for points in (early, curve))
    gained = sign * (best[metric] - before[metric])
    fallen = sign * (best[metric] - curve[-1][metric])
    word = "past its best" if fallen > least else "not converged" if gained > least else "no gain told"
    return Trained(word, Ours(best[metric]), best["step"], result["steps"])


#: The settings of a run of the preset ``paper``.
PAPERS = "the paper's settings"


def settings_of(result: Mapping[str, Any]) -> str:
    """The origin of the settings of a run: our settings or the paper's settings."""
    return PAPERS if result["preset"] == "paper" else "our settings"


def rows_of(result: Mapping[str, Any]) -> str:
    """The numbers of training and test rows that were used, each with the number of all rows if some are left out."""
    part = result["data"]["sizes"] | (result["subset"] or {})
    numbers = ((part["train"], part.get("of")), (part["test"], part.get("of_test")))
    return " + ".join(f"{n:,}" if of in (n, None) else f"{n:,} of {of:,}" for n, of in numbers)
