"""The page of results of a paper, written from the recorded files, and the parts that pages share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpzoo.reproductions.answers import Answered, Answers, rows_of, settings_of
from gpzoo.reproductions.claims import Claim, Paper, Table
from gpzoo.reproductions.experiment import Experiment
from gpzoo.reproductions.figures import figure_name
from gpzoo.reproductions.printed import number
from gpzoo.reproductions.records import Records
from gpzoo.reproductions.terminal import duration
from gpzoo.reproductions.verdicts import (
    AS_GOOD,
    FEWER_FOLDS,
    HOLDS,
    NO_EXPERIMENT,
    NOT_RUN,
    REACHED,
    SHORT,
    STAND_IN,
    SUBSET,
    WORDS,
)

_MARKS = {FEWER_FOLDS: "†", SUBSET: "‡", STAND_IN: "§"}
_OPEN = (NOT_RUN, NO_EXPERIMENT)


# -- one paper ---------------------------------------------------------------------------------------------------------


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
        for line in pictures_of(experiment, [f for f in figures if f != led], _large(experiment))
    ]
    pictures += [line for experiment in own for line in _pictures_of_runs(records, experiment, paper)]
    lines += picture(led, paper.telling[1], figures)
    lines += ["## Claims", "", *_claims(answers)]
    if paper.beyond is not None:
        lines += ["", *paper.beyond(records)]
    if paper.tables:
        lines += ["", "## The paper's tables", "", *_legend(), *_tables(answers)]
    if pictures:
        lines += ["", "## Figures", "", *pictures]
    lines += ["", "## Not run, and why", "", *_not_run(answers)]
    besides = [
        line
        for experiment in own
        if not _has_claims(answers, experiment)
        for line in numbers_of(records, experiment, _large(experiment))
    ]
    if besides:
        lines += ["", "## Not in the paper", *besides]
    checks = [line for experiment in own for line in numbers_of(records, experiment, small_presets(experiment))]
    if checks:
        said = "Small runs (`quick`) check the program, and are not compared with the paper."
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
    limited = [each.verdict for each in answers.all if each.verdict.word in _MARKS]
    if limited:
        good = sum(each.distance in (AS_GOOD, HOLDS) for each in limited)
        alone = sum(not each.distance for each in limited)
        counts = {"as good or holding": good, "short or not holding": len(limited) - good - alone, "other data": alone}
        counted = ", ".join(f"{count} {words}" for words, count in counts.items() if count)
        said.append(f"Not counted, because of fewer splits, a part of the data or other data: {counted}.")
    return said


def _claims(answers: Answers) -> list[str]:
    rows = [_claim(each) for each in answers.all if each.verdict.word not in _OPEN]
    if not rows:
        return ["None of them can be answered with the recorded results."]
    table = markdown(("claim", "where", "paper", "ours", "size used", "verdict"), rows)
    said = "Rows are for training + testing, M is the number of inducing points; settings are ours unless said."
    return [said, "", *table]


def _claim(each: Answered) -> tuple[str, ...]:
    printed = "" if each.claim.printed is None else each.claim.printed.text.replace("±", " ± ")
    said = f"**{each.verdict}**" if each.verdict.word == REACHED else str(each.verdict)
    return each.claim.what, each.claim.where, printed, each.ours, each.size, said


def _legend() -> list[str]:
    marks = ", ".join(f"{mark} {word}" for word, mark in _MARKS.items())
    return [
        f"In a cell: ours, and the paper's in brackets. **Bold** is reached; {marks}. Numbers alone are of others.",
        "",
    ]


def _tables(answers: Answers) -> Iterator[str]:
    for table in answers.paper.tables:
        heading = f"{table.where}: {table.title or table.metric}"
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
        yield f"{ours} ({paper})" if paper else ours


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
        return ["Everything was run."]
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


def _has_claims(answers: Answers, experiment: Experiment) -> bool:
    return any(
        (each.claim.answer and each.claim.answer.experiment == experiment.name)
        or (each.claim.needs and each.claim.needs[0] == experiment.name)
        for each in answers.all
    )


# -- parts of all pages ------------------------------------------------------------------------------------------------


def telling_of(paper: Paper, figures: Collection[str]) -> str:
    """The name of a paper's most telling figure; empty if there is none."""
    return next((name for name in (f"{paper.key}/{each}" for each in paper.telling[0]) if name in figures), "")


def picture(name: str, words: str, figures: Collection[str], up: str = "../../") -> list[str]:
    """A figure with its words below it, if it is drawn."""
    return [f"![{words}]({up}reproductions/results/{name}.png)", "", f"*{words}*", ""] if name in figures else []


def small_presets(experiment: Experiment) -> tuple[str, ...]:
    """The presets whose runs only check the program: the quick one, unless there is no other."""
    return tuple(preset for preset in experiment.presets if preset == "quick" and set(experiment.presets) != {"quick"})


def _large(experiment: Experiment) -> tuple[str, ...]:
    return tuple(preset for preset in experiment.presets if preset not in small_presets(experiment))


def pictures_of(experiment: Experiment, figures: Collection[str], presets: Collection[str]) -> Iterator[str]:
    """The figures of an experiment's runs of these presets, with their words."""
    for preset in presets:
        curves = " Test metrics against time in training." if experiment.figure is None else ""
        words = experiment.caption or experiment.description + curves
        yield from picture(figure_name(experiment, preset), words, figures)


def _pictures_of_runs(records: Records, experiment: Experiment, paper: Paper) -> Iterator[str]:
    """Pictures that runs drew of their trained models, which lie beside their files: ``STEM_NAME.png``."""
    for key, _ in records.of(experiment.paper, experiment.name):
        path = records.paths[key]
        for found in sorted(path.parent.glob(f"{path.stem}_*.png")):
            words = paper.drawn_by_runs.get(found.stem.removeprefix(f"{path.stem}_"), "A trained model")
            words += f": {experiment.name}, variant {key.variant}, preset {key.preset}."
            yield from picture(f"{experiment.paper}/{found.stem}", words, (f"{experiment.paper}/{found.stem}",))


def numbers_of(records: Records, experiment: Experiment, presets: Collection[str]) -> list[str]:
    """Tables of an experiment's numbers by runs of these presets, variants by metrics."""
    lines: list[str] = []
    for preset in presets:
        found = {
            key.variant: records.found[key]
            for key, _ in records.of(experiment.paper, experiment.name)
            if key.preset == preset
        }
        if not found:
            continue
        metrics = list(dict.fromkeys(name for result in found.values() for name in result["metrics"]))
        if len(metrics) > 8:
            rows = [(name, *(number(result["metrics"].get(name)) for result in found.values())) for name in metrics]
            headings = ("metric", *found)
        else:
            rows = [
                (name, *(number(result["metrics"].get(metric)) for metric in metrics)) for name, result in found.items()
            ]
            headings = ("variant", *(metric.replace("_", " ") for metric in metrics))
        lines += ["", f"**{experiment.name}, {preset}.** {experiment.description}", "", *markdown(headings, rows)]
    return lines


def provenance_of(records: Records, paper: str) -> list[str]:
    """The table of all runs of a paper: data, cost, machine, versions and commit."""
    rows, versions = [], {}
    for key, result in records.of(paper):
        label = versions.setdefault(tuple(result["versions"].items()), f"v{len(versions) + 1}")
        per_step = result["seconds_per_step"]
        rows.append(
            (
                f"`{records.paths[key].relative_to(records.folder).as_posix()}`",
                str(key.seed),
                f"{result['data']['name']}, {rows_of(result)}" + (", stands in" if result.get("stands_in") else ""),
                f"{result['steps']:,}",
                duration(result["seconds_training"]),
                "–" if per_step is None else f"{1000 * per_step:.3g} ms",
                f"{result['peak_memory_bytes'] / 2**30:.1f} GiB",
                f"{result['device']}, {result['dtype']}",
                settings_of(result) + _chosen(result),
                label,
                _commit(result),
            )
        )
    if not rows:
        return ["Nothing is recorded."]
    headings = (
        "file",
        "seed",
        "data",
        "steps",
        "time",
        "per step",
        "memory",
        "device",
        "settings",
        "versions",
        "commit",
    )
    of = [f"{label}: {', '.join(f'{name} {value}' for name, value in found)}." for found, label in versions.items()]
    return [
        "A file is `EXPERIMENT-VARIANT-PRESET.json`, and its command "
        f"`gpzoo reproduce {paper} EXPERIMENT --variant VARIANT --preset PRESET`.",
        "",
        *markdown(headings, rows),
        "",
        " ".join(of)
        + " A commit with a `+` had changes that were not committed; *not kept*: recorded before commits were.",
    ]


def _chosen(result: Mapping[str, Any]) -> str:
    """How settings were chosen by results."""
    selection = result.get("selection")
    return f", chosen {selection['rule']} (data: {selection['data']})" if selection else ""


def _commit(result: Mapping[str, Any]) -> str:
    """The commits of a run's starts, in order of time."""
    if "schema" not in result:
        return "not kept"
    mark = "" if result["clean"] else "+"
    return ", ".join("unknown" if commit is None else f"{commit[:7]}{mark}" for commit in result["commits"])


def folded(title: str, lines: Iterable[str]) -> list[str]:
    """Lines that a reader opens."""
    return ["<details>", f"<summary>{title}</summary>", "", *lines, "", "</details>"]


def markdown(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a table."""
    headings = tuple(headings)
    return [
        f"| {' | '.join(headings)} |",
        "|" + "---|" * len(headings),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def joined(lines: Iterable[str]) -> str:
    """The text of a page, with one empty line where there are several."""
    found: list[str] = []
    for line in lines:
        if line or (found and found[-1]):
            found.append(line)
    return "\n".join(found).rstrip() + "\n"
