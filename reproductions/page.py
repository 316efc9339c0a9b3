"""The pages of results, written from the recorded files: one for each paper, one for the rest, and their summary."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from gpzoo.reproductions.answers import Answered, Answers, rows_of, settings_of
from gpzoo.reproductions.claims import Paper, Table
from gpzoo.reproductions.experiment import Experiment
from gpzoo.reproductions.figures import drawable, figure_name
from gpzoo.reproductions.printed import number
from gpzoo.reproductions.records import Records
from gpzoo.reproductions.terminal import duration
from gpzoo.reproductions.verdicts import (
    FEWER_FOLDS,
    NO_EXPERIMENT,
    NOT_RUN,
    REACHED,
    SHORT,
    STAND_IN,
    SUBSET,
    WORDS,
)

#: The folder of the pages in a checkout, and the page of experiments without a paper's numbers.
FOLDER, MORE = PurePosixPath("docs/results"), "more"

_MARKS = {FEWER_FOLDS: "†", SUBSET: "‡", STAND_IN: "§"}
_OPEN = (NOT_RUN, NO_EXPERIMENT)
_WRITTEN = "Written by `gpzoo results` from the files in `reproductions/results/`: do not edit."


def pages(folder: Path, experiments: Sequence[Experiment], papers: Sequence[Paper]) -> dict[str, str]:
    """All pages: ``RESULTS.md``, and those of ``docs/results/``, by path in the checkout.

    Args:
        folder: holds ``PAPER/EXPERIMENT-VARIANT-PRESET.json``.
        experiments: all experiments.
        papers: the papers whose claims are known.

    Raises:
        ReproductionError: if a file is damaged, describes another run than its name says, or belongs to no experiment.
    """
    records = Records(folder, experiments)
    answers = [Answers(paper, records, experiments) for paper in papers]
    known, figures = {paper.key for paper in papers}, drawable(records, experiments, papers).keys()
    found = {f"{FOLDER}/{each.paper.key}.md": _page(each, experiments, figures) for each in answers}
    rest = [experiment for experiment in experiments if experiment.paper not in known]
    found[f"{FOLDER}/{MORE}.md"] = _more(records, rest, figures)
    found[f"{FOLDER}/index.md"] = _index(answers)
    return {"RESULTS.md": _summary(answers, figures), **found}


# -- one paper ---------------------------------------------------------------------------------------------------------


def _page(answers: Answers, experiments: Sequence[Experiment], figures: Collection[str]) -> str:
    paper, records = answers.paper, answers.records
    own = [experiment for experiment in experiments if experiment.paper == paper.key]
    lines = [f"# {paper.title}", "", f"{paper.source}. {paper.about}", "", _counted(answers), "", *_told(answers), ""]
    led = [f"{paper.key}/{name}" for name, _ in paper.telling]
    pictures = [line for experiment in own for line in _pictures(experiment, [f for f in figures if f not in led])]
    pictures += [line for experiment in own for line in _of_runs(records, experiment)]
    lines += [line for name, words in paper.telling for line in _picture(f"{paper.key}/{name}", words, figures)]
    lines += ["## Claims", "", *_claims(answers)]
    if paper.beyond is not None:
        lines += ["", *paper.beyond(records)]
    if paper.tables:
        lines += ["", "## The paper's tables", "", *_legend(), *_tables(answers)]
    if pictures:
        lines += ["", "## Figures", "", *pictures]
    lines += ["", "## Not run, and why", "", *_not_run(answers)]
    besides = [
        line for experiment in own if not _has_claims(answers, experiment) for line in _numbers(records, experiment)
    ]
    if besides:
        lines += ["", "## Not in the paper", *besides]
    checks = [line for experiment in own for line in _numbers(records, experiment, checks=True)]
    if checks:
        said = "Small runs (`quick`) check the program, and are not compared with the paper."
        lines += ["", *_folded("Checks of the program", [said, *checks])]
    lines += ["", *_folded("Provenance: every run", _provenance(records, paper.key))]
    return _joined(lines)


def _counted(answers: Answers) -> str:
    counts = answers.counts
    said = ", ".join(f"{counts[word]} {word}" for word in WORDS if counts[word])
    return f"**Of {len(answers.all)} claims: {said}.**"


def _told(answers: Answers) -> list[str]:
    """The claims that are reached and those that are short, in a sentence each."""
    reached = [each.claim.what for each in answers.all if each.verdict.word == REACHED]
    short = [f"{each.claim.what} ({each.verdict.distance})" for each in answers.all if each.verdict.word == SHORT]
    return [
        *([f"Reached: {'; '.join(reached)}."] if reached else []),
        *([""] if reached and short else []),
        *([f"Short: {'; '.join(short)}."] if short else []),
    ]


def _claims(answers: Answers) -> list[str]:
    rows = [_claim(each) for each in answers.all if each.verdict.word not in _OPEN]
    if not rows:
        return ["None of them can be answered with the recorded results."]
    return _markdown(("claim", "where", "paper", "ours", "size used", "verdict"), rows)


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
        yield from (*_markdown(headings, rows), "")


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
        wheres: dict[str, list[str]] = {}
        for each in found:
            printed = "" if each.claim.printed is None else f" {each.claim.printed.text}"
            wheres.setdefault(each.claim.where, []).append(each.claim.what + printed)
        what = ". ".join(f"*{where}:* {'; '.join(claims)}" for where, claims in wheres.items())
        command = f"`gpzoo compare {paper.key} {name} --variants {','.join(variants)} --preset paper`" if name else "–"
        rows.append((f"{len(found)} {found[0].verdict.word}", what, why, command))
    return _markdown(("", "claims", "why", "the command that would run it"), rows)


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


def _picture(name: str, words: str, figures: Collection[str], up: str = "../../") -> list[str]:
    """A figure with its words below it, if it is drawn."""
    return [f"![{words}]({up}reproductions/results/{name}.png)", "", f"*{words}*", ""] if name in figures else []


def _pictures(experiment: Experiment, figures: Collection[str]) -> Iterator[str]:
    """The figures of an experiment's comparable runs, with their words."""
    for preset in experiment.presets:
        if preset != "quick" or set(experiment.presets) == {"quick"}:
            words = experiment.caption or f"{experiment.description} Test metrics against time in training."
            yield from _picture(figure_name(experiment, preset), words, figures)


def _of_runs(records: Records, experiment: Experiment) -> Iterator[str]:
    """Pictures that runs drew of their trained models, which lie beside their files: ``STEM_NAME.png``."""
    for key, _ in records.of(experiment.paper, experiment.name):
        path = records.paths[key]
        for picture in sorted(path.parent.glob(f"{path.stem}_*.png")):
            what = picture.stem.removeprefix(f"{path.stem}_").replace("_", " ")
            words = f"{what[:1].upper()}{what[1:]}: {experiment.name}, variant {key.variant}, preset {key.preset}."
            yield from _picture(f"{experiment.paper}/{picture.stem}", words, (f"{experiment.paper}/{picture.stem}",))


def _numbers(records: Records, experiment: Experiment, *, checks: bool = False) -> list[str]:
    """Tables of an experiment's numbers, variants by metrics; of its small runs, or of the others."""
    lines: list[str] = []
    presets = experiment.presets
    small = [preset for preset in presets if preset == "quick" and set(presets) != {"quick"}]
    for preset in small if checks else [preset for preset in presets if preset not in small]:
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
        lines += ["", f"**{experiment.name}, {preset}.** {experiment.description}", "", *_markdown(headings, rows)]
    return lines


def _provenance(records: Records, paper: str) -> list[str]:
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
                settings_of(result),
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
        *_markdown(headings, rows),
        "",
        " ".join(of)
        + " A commit with a `+` had changes that were not committed; *not kept*: recorded before commits were.",
    ]


def _commit(result: Mapping[str, Any]) -> str:
    """The commits of a run's starts, in order of time."""
    if "schema" not in result:
        return "not kept"
    mark = "" if result["clean"] else "+"
    return ", ".join("unknown" if commit is None else f"{commit[:7]}{mark}" for commit in result["commits"])


def _folded(title: str, lines: Iterable[str]) -> list[str]:
    return ["<details>", f"<summary>{title}</summary>", "", *lines, "", "</details>"]


def _markdown(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    headings = tuple(headings)
    return [
        f"| {' | '.join(headings)} |",
        "|" + "---|" * len(headings),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _joined(lines: Iterable[str]) -> str:
    found: list[str] = []
    for line in lines:
        if line or (found and found[-1]):
            found.append(line)
    return "\n".join(found).rstrip() + "\n"


# -- the other pages ---------------------------------------------------------------------------------------------------


def _more(records: Records, experiments: Sequence[Experiment], figures: Collection[str]) -> str:
    lines = ["# More models", "", "Experiments of models that no paper here has numbers for.", ""]
    for experiment in experiments:
        found = _numbers(records, experiment)
        if found:
            lines += [f"## {experiment.name}", *found, "", *_pictures(experiment, figures)]
    keys = dict.fromkeys(experiment.paper for experiment in experiments)
    checks = [line for experiment in experiments for line in _numbers(records, experiment, checks=True)]
    if checks:
        lines += ["", *_folded("Checks of the program", checks)]
    for paper in keys:
        lines += ["", *_folded(f"Provenance: {paper}", _provenance(records, paper))]
    return _joined(lines)


def _index(answers: Sequence[Answers]) -> str:
    words = _markdown(("verdict", "means that"), WORDS.items())
    lines = ["# Results", "", *_table_of_counts(answers, ""), "", "## Verdicts", "", *words, "", _RULES, ""]
    names = [each.paper.key for each in answers] + [MORE]
    return _joined([*lines, "```{toctree}", ":maxdepth: 1", "", *names, "```"])


_RULES = (
    "Standard errors are over seeds or splits where there are several, and binomial for the error of one run. The "
    "error of an nlpp of one run is not known: such a number is undecided where it is behind by no more than 0.02 nats. "
    "Where runs by the paper's settings and by ours answer a claim, it counts as reached if one of them reaches it; "
    "both are in the table of runs. Statements are judged by the rule in the name of the claim, on differences over the "
    "same splits where models share them."
)


def _summary(answers: Sequence[Answers], figures: Collection[str]) -> str:
    lines = ["# Results", "", f"{_WRITTEN} Words: [docs/results/index.md]({FOLDER}/index.md).", ""]
    lines += [*_table_of_counts(answers, f"{FOLDER}/"), ""]
    for each in answers:
        paper = each.paper
        lines += [f"## [{paper.title}]({FOLDER}/{paper.key}.md)", "", paper.source + ". " + _shortest(each), ""]
        for name, words in paper.telling[:1]:
            lines += _picture(f"{paper.key}/{name}", words, figures, up="")
    return _joined([*lines, f"Other models, which no paper here has numbers for: [{MORE}]({FOLDER}/{MORE}.md)."])


def _table_of_counts(answers: Sequence[Answers], links: str) -> list[str]:
    words = [word for word in WORDS if any(each.counts[word] for each in answers)]
    rows = [
        (
            f"[{each.paper.source}]({links}{each.paper.key}.md)",
            str(len(each.all)),
            *(str(each.counts[word]) for word in words),
        )
        for each in answers
    ]
    total = [
        str(sum(len(each.all) for each in answers)),
        *(str(sum(each.counts[word] for each in answers)) for word in words),
    ]
    return _markdown(("paper", "claims", *words), [*rows, ("all", *total)])


def _shortest(answers: Answers) -> str:
    """What holds and what falls short, the first few of each."""
    told = []
    for word in (REACHED, SHORT):
        found = [each for each in answers.all if each.verdict.word == word]
        said = [each.claim.what + (f" ({each.verdict.distance})" if each.verdict.distance else "") for each in found]
        if said:
            more = f"; {len(said) - 4} more" if len(said) > 4 else ""
            told.append(f"{word[:1].upper()}{word[1:]}: {'; '.join(said[:4])}{more}.")
    return " ".join(told)
