"""The page of results of a paper, written from the recorded files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from gpzoo.reproductions.answers import Answered, Answers
from gpzoo.reproductions.claims import Claim, Table
from gpzoo.reproductions.experiment import Experiment
from gpzoo.reproductions.markdown import folded, joined, markdown
from gpzoo.reproductions.page_parts import (
    large_presets,
    numbers_of,
    picture,
    pictures_of,
    pictures_of_runs,
    provenance_of,
    small_presets,
    telling_of,
)
from gpzoo.reproductions.verdicts import (
    FEWER_FOLDS,
    GOOD,
    NO_EXPERIMENT,
    NOT_RUN,
    REACHED,
    READING,
    SHORT,
    STAND_IN,
    SUBSET,
    UNDECIDED,
    WORDS,
    Verdict,
)

_MARKS = {FEWER_FOLDS: "†", SUBSET: "‡", STAND_IN: "§"}
_OPEN = (NOT_RUN, NO_EXPERIMENT)


def page_of(answers: Answers, experiments: Sequence[Experiment], figures: Collection[str]) -> str:
    """The page of a paper.

    Args:
        answers: the answers to its claims.
        experiments: all experiments.
        figures: names of the figures that are drawn.
    """
    paper, records = answers.paper, answers.records
    own = [experiment for experiment in experiments if experiment.paper == paper.key]
    lines = [f"# {paper.title}", "", f"{paper.source}. {paper.about}", "", _counted(answers), "", *_told(answers), ""]
    led = telling_of(paper, figures)
    pictures = [
        line
        for experiment in own
        for line in pictures_of(experiment, [f for f in figures if f != led], large_presets(experiment))
    ]
    pictures += [line for experiment in own for line in pictures_of_runs(records, experiment, paper)]
    lines += picture(led, paper.telling[1], figures)
    lines += ["## Claims", "", *_claims(answers)]
    if paper.beyond is not None:
        lines += ["", *paper.beyond(records)]
    if paper.tables:
        filled = [table for table in paper.tables if _filled(answers, table)]
        empty = [table for table in paper.tables if table not in filled]
        lines += ["", "## The paper's tables", "", *_legend(), *_tables(answers, filled)]
        if empty:
            lines += ["", *folded("The paper's tables without a number of ours", _tables(answers, empty))]
    if pictures:
        lines += ["", "## Figures", "", *pictures]
    lines += ["", "## Not run, and why", "", *_not_run(answers)]
    besides = _besides(answers, own)
    if besides:
        said = "Recorded runs of models or settings that answer no claim, beside the others of their experiment."
        lines += ["", "## Numbers without a claim", "", said, *besides]
    checks = [line for experiment in own for line in numbers_of(records, experiment, small_presets(experiment))]
    if checks:
        said = "Small runs (`quick`) check the program, and never count as reached."
        lines += ["", *folded("Checks of the program", [said, *checks])]
    lines += ["", *folded("Provenance: every run", provenance_of(records, paper.key))]
    return joined(lines)


def _counted(answers: Answers) -> str:
    counts = answers.counts
    said = ", ".join(f"{counts[word]} {word}" for word in WORDS if counts[word])
    return f"**Of {len(answers.all)} claims: {said}.**"


def listed(found: Iterable[tuple[Claim, str]]) -> str:
    """Claims with a note on each; numbers of one metric in one table row are taken together."""
    groups: dict[str, list[str]] = {}
    for claim, note in found:
        name, _, metric = claim.what.rpartition(": ")
        head, _, tail = name.rpartition(", ")
        if claim.printed is None or not head:
            groups[claim.what] = [note] if note else []
        else:
            groups.setdefault(f"{head}, {metric}", []).append(f"{tail} {note}".strip())
    return "; ".join(": ".join([name, ", ".join(notes)]) if notes else name for name, notes in groups.items())


def _told(answers: Answers) -> list[str]:
    """The claims that are reached and those that are short, in a sentence each."""
    reached = [(each.claim, "") for each in answers.all if each.verdict.word == REACHED]
    short = [(each.claim, f"({each.verdict.distance})") for each in answers.all if each.verdict.word == SHORT]
    said = []
    if reached:
        said += [f"Reached: {listed(reached)}.", ""]
    if short:
        said += [f"Short: {listed(short)}.", ""]
    if counted := without_counting([each.verdict for each in answers.all]):
        said += [f"Not counted, because of fewer splits, a part of the data, other data or quick runs: {counted}.", ""]
    return [*said, *uncounted(answers)]


def uncounted(answers: Answers) -> list[str]:
    """What verdicts that count leave out, in a sentence each.

    Results that never count and yet are short or do not hold, what the page found besides, and those beside readings.
    """
    worse = [
        each
        for each in answers.all
        if each.verdict.word in _MARKS and each.verdict.distance not in (*GOOD, UNDECIDED, "")
    ]
    numbers = [each for each in worse if each.claim.printed is not None]
    short = [(each.claim, f"({each.verdict.distance.removeprefix('short ')})") for each in numbers]
    false = [f"{each.claim.what} ({each.ours.partition(';')[0]})" for each in worse if each.claim.printed is None]
    read: dict[str, list[tuple[Claim, str]]] = {}
    for each in answers.all:
        if each.verdict.word == READING and each.claim.printed is not None:
            read.setdefault(each.size, []).append((each.claim, f"{each.ours}, there about {each.claim.printed.text}"))
    said = [f"Short, but not counted: {listed(short)}.", ""] if short else []
    said += [f"Does not hold, but is not counted: {'; '.join(false)}.", ""] if false else []
    if answers.paper.finding is not None and (found_besides := answers.paper.finding(answers.records)):
        said += [found_besides, ""]
    for size, found in read.items():
        said += [f"Beside the paper's figures, with {size}: {listed(found)}.", ""]
    return said


def without_counting(verdicts: Iterable[Verdict]) -> str:
    """How good those results are that never count as reached; empty if there are none."""
    limited = [each for each in verdicts if each.word in _MARKS]
    counts = {
        "as good, within the error or holding": sum(each.distance in GOOD for each in limited),
        "undecided": sum(each.distance == UNDECIDED for each in limited),
        "on other data without a verdict": sum(not each.distance for each in limited),
    }
    counts["short or not holding"] = len(limited) - sum(counts.values())
    return ", ".join(f"{count} {words}" for words, count in counts.items() if count)


def _claims(answers: Answers) -> list[str]:
    rows = [_claim(each) for each in answers.all if each.verdict.word not in _OPEN]
    if not rows:
        return ["None of them can be answered with the recorded results."]
    table = markdown(("claim", "where", "paper", "ours", "size used", "verdict"), rows)
    said = "Rows are for training + testing, M is the number of inducing points. Settings are ours unless said, and "
    said += "were chosen by hand, perhaps with test results in sight, unless the table of all runs says how."
    if any(each.verdict.word in (SHORT, UNDECIDED) for each in answers.all):
        said += (
            " A row that is short or undecided says so where its training had not converged. Without a remark its file "
            "does not tell."
        )
    return [said, "", *table]


def _claim(each: Answered) -> tuple[str, ...]:
    printed = "" if each.claim.printed is None else each.claim.printed.text.replace("±", " ± ")
    said = f"**{each.verdict}**" if each.verdict.word == REACHED else str(each.verdict)
    said += f"; {each.trained}" if each.trained else ""
    return each.claim.what, each.claim.where, printed, each.ours, each.size, said


def _legend() -> list[str]:
    marks = ", ".join(f"{mark} {word}" for word, mark in _MARKS.items())
    return [
        f"In a cell: ours, and the paper's in brackets. **Bold** is reached; {marks}. *(–)*: ours, of which the "
        "paper has none. Numbers without brackets are those of others, which the paper quotes.",
        "",
    ]


def _filled(answers: Answers, table: Table) -> bool:
    """Whether a number of ours is in a table."""
    found = [answer for _, key, numbers in table.rows for _, _, answer in table.cells(numbers, key) if answer]
    return any(each is not None and each.number is not None for each in map(answers.to, found))


def _tables(answers: Answers, tables: Sequence[Table]) -> Iterator[str]:
    for table in tables:
        heading = f"{table.where}: {', '.join(filter(None, (table.title, table.metric)))}"
        yield from (f"**{heading[:1].upper()}{heading[1:]}**", "")
        rows = [(title, *_cells(answers, table, numbers, key)) for title, key, numbers in table.rows]
        headings = ["", *(column.title for column in table.columns)]
        if not any(title for title, *_ in table.rows):
            headings, rows = headings[1:], [row[1:] for row in rows]
        yield from (*markdown(headings, rows), "")


def _cells(answers: Answers, table: Table, numbers: str, key: str) -> Iterator[str]:
    for column, printed, answer in table.cells(numbers, key):
        paper = "" if printed is None else printed.text.removesuffix("%").strip().replace("±", " ± ")
        if answer is None:
            yield f"– ({paper})" if column.why else paper
            continue
        each = answers.to(answer)
        if each is None or each.number is None:
            yield f"– ({paper})" if paper else "–"
            continue
        scale, most = (100, 2) if column.percent else (1, 4)
        decimals = most if printed is None else min(printed.decimals + 1, most)
        ours = f"{each.number.value * scale:.{decimals}f}"
        mark = _MARKS.get(answers.limit(each.runs[0]) or "", "")
        ours = f"**{ours}**" if each.verdict.word == REACHED else f"{ours}{mark}"
        yield f"{ours} ({paper or '–'})"


def _not_run(answers: Answers) -> list[str]:
    """The claims without an answer, a row for each experiment and reason."""
    paper, groups = answers.paper, {}
    for each in answers.all:
        if each.verdict.word in _OPEN:
            claim = each.claim
            name = claim.answer.experiment if claim.answer else claim.needs[0] if claim.needs else ""
            why = claim.why or paper.reasons.get(name, "no hours were left for it")
            groups.setdefault((name, why), []).append(each)
    if not groups:
        return ["Every claim has a run, if not at the paper's size: the table above says which."]
    rows = []
    for (name, why), found in groups.items():
        variants = dict.fromkeys(variant for each in found for variant in _variants(each))
        wheres: dict[str, list[tuple[Claim, str]]] = {}
        for each in found:
            printed = "" if each.claim.printed is None else each.claim.printed.text
            wheres.setdefault(each.claim.where, []).append((each.claim, printed))
        what = ". ".join(f"*{where}:* {listed(claims)}" for where, claims in wheres.items())
        command = f"`gpzoo compare {paper.key} {name} --variants {','.join(variants)} --preset paper`" if name else "–"
        rows.append((f"{len(found)} {found[0].verdict.word}", what, why, command))
    return markdown(("", "claims", "why", "the command that would run it"), rows)


def _variants(each: Answered) -> Sequence[str]:
    """The variants that answer a claim."""
    if each.claim.answer:
        return (each.claim.answer.variant,)
    return each.claim.needs[1] if each.claim.needs else ()


def _besides(answers: Answers, experiments: Sequence[Experiment]) -> list[str]:
    """Tables of those experiments and presets of which a run answers no claim."""
    claimed = {key for each in answers.all for key in each.runs}
    lines = []
    for experiment in experiments:
        recorded = {key for key, _ in answers.records.of(experiment.paper, experiment.name)}
        presets = {key.preset for key in recorded - claimed}
        left = [preset for preset in large_presets(experiment) if preset in presets]
        lines += numbers_of(answers.records, experiment, left)
    return lines
