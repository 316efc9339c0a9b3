"""What do the recorded results say of the papers' claims? Of every claim our number, the data's size and a verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpzoo.reproductions import judge
from gpzoo.reproductions.claims import Answer, Claim, Paper
from gpzoo.reproductions.experiment import Experiment
from gpzoo.reproductions.judge import MATCHED, SHORT, UNDECIDED, Judged, Verdict
from gpzoo.reproductions.printed import Printed, toward
from gpzoo.reproductions.records import Key, Ours, Recorded, Records, error_of, splits_of

#: The verdicts on results that can be scored, the best first.
SCORED = (MATCHED, judge.EXCEEDED, UNDECIDED, SHORT)


class Trained(NamedTuple):
    """Whether a training had converged: a word, and the best of its curve at which of its steps, if it has one."""

    word: str
    best: Ours | None = None
    step: int = 0
    steps: int = 0


class Answered(NamedTuple):
    """A claim beside ours: the verdict, our number or what was judged, the runs, their size, and their training.

    ``instead_of`` is the verdict on runs by the paper's settings, if runs by ours of the same data have a better one.
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
        """The word under which it is counted."""
        word = self.verdict.limit or self.verdict.word
        return judge.BASELINE if self.claim.baseline and word in SCORED else word


class Answers:
    """The answers to a paper's claims, from the recorded results of all experiments."""

    def __init__(self, paper: Paper, records: Records, experiments: Sequence[Experiment]) -> None:
        self.paper, self.records = paper, records
        self.presets = {each.name: each.presets for each in experiments if each.paper == paper.key}
        self.all = [self._of(claim) for claim in paper.claims]
        self._by_answer = {each.claim.answer: each for each in self.all if each.claim.answer is not None}

    @property
    def counts(self) -> Counter[str]:
        """The number of claims with each verdict; baselines that are scored are counted as such."""
        return Counter(each.counted for each in self.all)

    def to(self, answer: Answer) -> Answered | None:
        """What there is of a metric, whether or not the paper has a number for it."""
        return self._by_answer.get(answer) or self._number(Claim("", "", None, answer))

    def limit(self, key: Key) -> str | None:
        """What keeps a run from being scored."""
        return judge.limit_of(self.records.found[key], self.paper.experiments.get(key.experiment))

    def _of(self, claim: Claim) -> Answered:
        found = self._statement(claim) if claim.judge else self._number(claim) if claim.answer else None
        answerable = claim.judge or claim.answer
        return found or Answered(claim, Verdict(limit=judge.NOT_RUN if answerable else judge.NO_EXPERIMENT))

    def _statement(self, claim: Claim) -> Answered | None:
        found = judge.judged(claim, self.paper, self.records, self.presets)
        if found is None:
            return None
        limits = {self.limit(key) for key in found.runs}
        word = {True: MATCHED, False: SHORT, None: UNDECIDED}[found.holds]
        limit = next((each for each in reversed(judge.LIMITS) if each in limits), None)
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
                said = judge.verdict(answer.metric, ours, claim.printed, judge.READING if claim.reading else limit)
                trained = training(run, answer.metric, claim.printed) if said.word in (SHORT, UNDECIDED) else None
            found.append(Answered(claim, said, ours, None, run.keys, self.size(run.keys), trained))
        best = min(found, key=self._rank, default=None)
        first = min(found, key=lambda each: self._rank(each)[0], default=None)
        if best is None or first is None or first.verdict.word == best.verdict.word:
            return best
        return best._replace(instead_of=first.verdict)

    def _rank(self, each: Answered) -> tuple[int, int]:
        """Results that are nearer to the paper's data come first, and of those the ones that match it."""
        word = each.verdict.word
        return judge.LIMITS.index(self.limit(each.runs[0])), SCORED.index(word) if word in SCORED else len(SCORED)

    def size(self, runs: Sequence[Key]) -> str:
        """The size of the data of runs, and whose settings they have if those are the paper's."""
        if not runs:
            return ""
        key, result = runs[0], self.records.found[runs[0]]
        facts = self.paper.experiments
        rows = {rows_of(self.records.found[each], facts.get(each.experiment, {}).get("rows")) for each in runs}
        parts = [*rows] if len(rows) == 1 else [f"{len({each[1:3] for each in runs})} data sets"]
        folds = (result.get("folds") or {}).get("of") or facts.get(key.experiment, {}).get("folds")
        if folds and len({splits_of(self.records.found[each]) for each in runs}) == 1:
            parts.append(f"{splits_of(result)} of {folds} splits")
        if M := (result.get("settings") or {}).get("num_inducing"):
            parts.append(f"M {M:,}")
        return ", ".join([*parts, *([PAPERS] if settings_of(result) == PAPERS else [])])


def training(run: Recorded, metric: str, printed: Printed) -> Trained | None:
    """Whether a training had converged, by its curve or by the same network for more steps; ``None`` if unknown.

    It had not if the best of the metric's last quarter is better than the best before by more than the rounding and
    two standard errors of such a difference; past its best it was if the end is worse than the best by as much.
    """
    result, sign = run.result, toward(metric)
    model, _, name = metric.rpartition("_")
    if f"{model}-long_{name}" in result["metrics"]:
        change = run.lead(name, f"{model}-long", model)
        least = printed.rounding + (change.wide() or 0.0)
        return Trained("not converged" if change.value > least else "level")
    curve = [point for point in result.get("curve") or () if metric in point]
    early = [point for point in curve if point["step"] <= 0.75 * result["steps"]]
    if not early:
        return None
    wide = error_of(result, metric).wide()
    least = printed.rounding + math.sqrt(2) * (wide or 0.0)
    before, best = (max(points, key=lambda point: sign * point[metric]) for points in (early, curve))
    gained = sign * (best[metric] - before[metric])
    fallen = sign * (best[metric] - curve[-1][metric])
    word = "past its best" if fallen > least else "not converged" if gained > least else "level"
    return Trained(word, Ours(best[metric]), best["step"], result["steps"])


#: The settings of a run of the preset ``paper``.
PAPERS = "the paper's settings"


def settings_of(result: Mapping[str, Any]) -> str:
    """Whose settings a run has. Files without a schema are named ``paper`` for the paper's sizes only."""
    return PAPERS if result["preset"] == "paper" and "schema" in result else "settings of ours"


def rows_of(result: Mapping[str, Any], of: int | None = None) -> str:
    """The numbers of training and test rows, used and available."""
    part, sizes = result.get("subset") or {}, result["data"]["sizes"]
    if part:
        return f"{part['train']:,} of {part['of']:,} + {part['test']:,} of {part['of_test']:,} rows"
    text = f"{sizes['train']:,} + {sizes['test']:,}"
    return f"{text} of {of:,} rows" if of and sizes["train"] + sizes["test"] < of else f"{text} rows"
