"""What do the recorded results say of the papers' claims? Of every claim our number, the data's size and a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpzoo.reproductions.claims import Answer, Claim, Paper
from gpzoo.reproductions.convergence import convergence
from gpzoo.reproductions.experiment import Experiment
from gpzoo.reproductions.printed import Printed, beside
from gpzoo.reproductions.records import Key, Ours, Records, splits_of
from gpzoo.reproductions.verdicts import (
    FEWER_FOLDS,
    HOLDS,
    NO_EXPERIMENT,
    NOT_RUN,
    REACHED,
    READING,
    SHORT,
    STAND_IN,
    SUBSET,
    UNDECIDED,
    Verdict,
    limit_of,
    verdict,
)

#: Results that are nearer to the paper's data come first, and of those the ones that reach it.
_LIMITS = (None, READING, FEWER_FOLDS, SUBSET, STAND_IN)
_WORDS = (REACHED, UNDECIDED, SHORT)


class Answered(NamedTuple):
    """A claim beside ours.

    Attributes:
        claim: the claim.
        ours: ours in words, with its error and where that is from; empty if there is none.
        size: the data's size, the number of splits, and the settings; empty if there is none.
        verdict: the verdict.
        number: our number, if the claim is one and there is one.
        runs: the runs that ours is from.
        trained: whether the training had converged, if ours is worse and the file tells.
    """

    claim: Claim
    ours: str
    size: str
    verdict: Verdict
    number: Ours | None = None
    runs: Sequence[Key] = ()
    trained: str = ""


class Answers:
    """The answers to a paper's claims.

    Args:
        paper: the paper.
        records: the recorded results.
        experiments: all experiments.
    """

    def __init__(self, paper: Paper, records: Records, experiments: Sequence[Experiment]) -> None:
        self.paper, self.records = paper, records
        self._experiments = {each.name: each for each in experiments if each.paper == paper.key}
        self.all = [self._of(claim) for claim in paper.claims]
        self._by_answer = {each.claim.answer: each for each in self.all if each.claim.answer is not None}

    @property
    def counts(self) -> Counter[str]:
        """The number of claims with each verdict."""
        return Counter(each.verdict.word for each in self.all)

    def to(self, answer: Answer) -> Answered | None:
        """What there is of a metric, whether or not the paper has a number for it."""
        if answer in self._by_answer:
            return self._by_answer[answer]
        return self._number(Claim("", "", None, answer))

    def _of(self, claim: Claim) -> Answered:
        found = None
        if claim.judge is not None:
            found = self._statement(claim)
        elif claim.answer is not None:
            found = self._number(claim)
        if found is not None:
            return found
        none = claim.answer is None and claim.needs is None
        return Answered(claim, "", "", Verdict(NO_EXPERIMENT if none else NOT_RUN))

    def limit(self, key: Key) -> str | None:
        """What keeps a run from being scored."""
        if key.experiment in self.paper.stands_in or key.preset == "quick":
            return STAND_IN
        rows, folds = (sizes.get(key.experiment) for sizes in (self.paper.rows, self.paper.folds))
        return limit_of(self.records.found[key], rows=rows, folds=folds)

    def _statement(self, claim: Claim) -> Answered | None:
        judged = claim.judge(self.records) if claim.judge is not None else None
        if judged is None:
            return None
        limits = {self.limit(key) for key in judged.runs}
        limit = next((word for word in reversed(_LIMITS) if word in limits), None)
        said = {True: HOLDS, False: "it does not hold", None: "undecided"}[judged.holds]
        word = {True: REACHED, False: SHORT, None: UNDECIDED}[judged.holds]
        found = Verdict(limit, said) if limit else Verdict(word, said if word == SHORT else "")
        return Answered(claim, judged.ours, self.size(judged.runs), found, runs=tuple(judged.runs))

    def _number(self, claim: Claim) -> Answered | None:
        answer, found = claim.answer, []
        if answer is None:
            return None
        experiment = self._experiments[answer.experiment]
        for runs in self.records.compared(self.paper.key, answer.experiment, answer.variant, experiment.presets):
            ours = self.records.ours(runs, answer.metric)
            if ours is None:
                continue
            limit = READING if claim.reading else self.limit(runs[0])
            printed = claim.printed
            said, trained = Verdict(""), ""
            if printed is not None:
                said = verdict(answer.metric, ours.value, printed, ours.error, limit)
                if said.word in (SHORT, UNDECIDED) or said.distance.startswith(SHORT):
                    trained = convergence(self.records.found[runs[0]], answer.metric, printed, ours.error)
            text = beside(ours.value, ours.error, printed if printed is not None else Printed("0.000"))
            if ours.source:
                text += f" ({ours.source})"
            found.append(Answered(claim, text, self.size(runs), said, ours, runs, trained))
        found.sort(key=lambda each: (_LIMITS.index(self.limit(each.runs[0])), *_rank(each.verdict)))
        return found[0] if found else None

    def size(self, runs: Sequence[Key]) -> str:
        """The size of the data of runs, and whose settings they have if those are the paper's."""
        key = runs[0]
        result = self.records.found[key]
        rows = {rows_of(self.records.found[each], self.paper.rows.get(each.experiment)) for each in runs}
        parts = [*rows] if len(rows) == 1 else [f"{len(rows)} data sets"]
        folds = (result.get("folds") or {}).get("of") or self.paper.folds.get(key.experiment)
        if folds:
            parts.append(f"{splits_of(result)} of {folds} splits")
        if M := (result.get("settings") or {}).get("num_inducing"):
            parts.append(f"M {M:,}")
        if len(rows) == 1 and len({each.variant for each in runs}) > 1:
            parts.append(f"{len(runs)} runs")
        return ", ".join([*parts, *([PAPERS] if settings_of(result) == PAPERS else [])])


def _rank(found: Verdict) -> tuple[int]:
    return (_WORDS.index(found.word) if found.word in _WORDS else len(_WORDS),)


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
