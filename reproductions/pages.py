"""All pages of results, from the templates in ``pages/``: papers, other models, a list of these, and a summary."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Any

from gpzoo.reproductions import judge
from gpzoo.reproductions.claims import Answer, Paper, Printed, beside, kind, number
from gpzoo.reproductions.experiment import NOT_RECORDED, PRESETS, Experiment, ReproductionError
from gpzoo.reproductions.figures import drawable, figure_name
from gpzoo.reproductions.judge import EXCEEDED, MATCHED, NO_EXPERIMENT, NOT_RUN, Answered, Answers
from gpzoo.reproductions.records import Key, Ours, Recorded, Records, splits_of
from gpzoo.reproductions.terminal import duration

#: The folder of the pages in a checkout.
FOLDER = PurePosixPath("docs/results")


def pages(
    folder: Path, experiments: Sequence[Experiment], papers: Sequence[Any], output: Path | None = None
) -> dict[str, str]:
    """All pages: ``RESULTS.md`` and the pages of ``docs/results/``, by path in the checkout.

    Args:
        folder: folder with ``PAPER/EXPERIMENT-VARIANT-PRESET.json``.
        experiments: all experiments.
        papers: the papers whose claims are known.
        output: folder of the pages, where links to the figures in ``folder`` start. The folder of a checkout unless
            given.

    Raises:
        ReproductionError: if a file is damaged, describes another run than its name says, or belongs to no experiment;
            or if a claim cannot be answered.
    """
    records = Records(folder, experiments)
    at = "reproductions/results" if output is None else Path(os.path.relpath(folder, output)).as_posix()
    if wrong := [f"{paper.key}: {told}" for paper in papers for told in _unanswerable(paper, experiments)]:
        raise ReproductionError(f"{len(wrong)} of the claims cannot be answered: {' | '.join(wrong[:5])}")
    answers = [Answers(paper, records, experiments) for paper in papers]
    known, figures = {paper.key for paper in papers}, drawable(records, experiments, papers).keys()
    rest = [each for each in experiments if each.paper not in known]
    env, findings = _environment(records), {}

    def written(template: str, **context: Any) -> str:
        return env.get_template(f"{template}.md.jinja").render(
            figures=figures, answers=answers, rest=rest, folder=at, **context
        )

    found = {f"{FOLDER}/index.md": written("index")}
    for each in answers:
        own = [experiment for experiment in experiments if experiment.paper == each.paper.key]
        own_page = each.paper.module is None and f"{each.paper.key}.md.jinja" in env.list_templates()
        name = each.paper.key if own_page else "paper"
        drawn = [path for of in each.paper.telling.get("figures", ()) if (path := f"{each.paper.key}/{of}") in figures]
        context = _context(each, own) | {"telling": next(iter(drawn), "")}
        found[f"{FOLDER}/{each.paper.key}.md"] = written(name, **context)
        findings[each.paper.key] = _finding(env.get_template(f"{name}.md.jinja"), context)
    if not papers or any(paper.module is None for paper in papers):
        found["RESULTS.md"] = written("summary", findings=findings)
    if rest:
        keys = dict.fromkeys(each.paper for each in rest)
        found[f"{FOLDER}/more.md"] = written("more", experiments=rest, keys=keys, last=_last(records))
    return {name: re.sub(r"\n{3,}", "\n\n", text).strip() + "\n" for name, text in found.items()}


def _environment(records: Records) -> Any:
    """The templates, and functions for them that write numbers as text and make tables of runs."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = FileSystemLoader(Path(__file__).parent / "pages")
    env = Environment(loader=folder, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    env.filters |= {"together": together, "num": num, "number": number, "duration": duration}
    env.filters["places"] = lambda text: ", ".join(dict.fromkeys(text.split(", ")))
    env.globals |= vars(judge) | {"NOT_RECORDED": NOT_RECORDED, "figure_name": figure_name}
    env.globals |= {"num": num, "lead": _lead, "good": good, "errors_of": _wide, "splits_of": splits_of}
    env.globals |= {
        "numbers_of": lambda experiment, presets: list(_numbers_of(records, experiment, presets)),
        "runs_of": records.of,
        "path_of": lambda key: records.paths[key].relative_to(records.folder).as_posix(),
        "pictures_of_runs": lambda experiment: _pictures_of_runs(records, experiment),
        "wrong": lambda each: _wrong(records, each),
        "reached_by": lambda own, each: _as_well(records, own, each),
    }
    env.tests["good"] = good
    return env


def _finding(template: Any, context: Mapping[str, Any]) -> str:
    """The main finding on the page of a paper, which the summary repeats."""
    block = template.blocks.get("finding")
    return "".join(block(template.new_context(context))).strip() if block else ""


def _wide(splits: int) -> float:
    """The number of standard errors on either side that replaces two for a mean over this number of splits."""
    return Ours(0.0, 1.0, degrees=splits - 1).wide() or 0.0


def _wrong(records: Records, each: Answered) -> str:
    """The number of test images that are wrong, if it is small: ``"6 of 2,115"``."""
    sizes = records.found[each.runs[0]]["data"]["sizes"] if each.runs else {}
    ours, metric = each.ours, each.claim.answer.metric if each.claim.answer else ""
    if ours is None or metric != "error" or "test" not in sizes or ours.value * sizes["test"] > 20:
        return ""
    return f"{ours.value * sizes['test']:.3g} of {sizes['test']:,}"


def good(each: Answered) -> bool:
    """Whether our number matches or exceeds the number of the paper, even if it is not scored."""
    return each.verdict.word in (MATCHED, EXCEEDED)


def together(parts: Iterable[str]) -> str:
    """``a``, ``a and b``, or ``a, b and c``."""
    parts = list(parts)
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def num(ours: Ours, metric: str = "", printed: Printed | None = None) -> str:
    """A number with its standard error. Errors and accuracies without a printed number are in per cent."""
    if metric == "lead":
        return _lead(ours)
    if printed is None:
        printed = Printed("0.00 %" if kind(metric) in ("error", "accuracy") else "0.000")
        if ours.error is None and printed.scale == 1:
            return number(ours.value)
    return beside(ours.value, ours.error, printed)


def _lead(ours: Ours) -> str:
    return f"{'+' if ours.value >= 0 else ''}{beside(ours.value, ours.error, Printed('0.000'))}"


def _of(answers: Answers, answer: Answer) -> str:
    """Our number for a metric; a dash if there is none."""
    found = answers.to(answer)
    return "–" if found is None or found.ours is None else num(found.ours, answer.metric)


def _context(answers: Answers, experiments: Sequence[Experiment]) -> dict[str, Any]:
    """The facts on the page of a paper."""
    paper, records, module = answers.paper, answers.records, judge.module_of(answers.paper)
    claimed = {key for each in answers.all if each.ours for key in each.runs}
    left = {key[1:4:2] for key, _ in records.of(paper.key) if key not in claimed}
    groups: dict[str, dict[str, list[Answered]]] = {}
    for each in answers.all:
        if each.counted in (NOT_RUN, NO_EXPERIMENT):
            name = each.claim.runs[0][0] if each.claim.answer or each.claim.needs else ""
            why = each.claim.why or paper.experiments.get(name, {}).get("not_run", "not done")
            groups.setdefault(why, {}).setdefault(name, []).append(each)
    return {
        "paper": paper,
        "own": answers,
        "experiments": experiments,
        "largest": lambda name: max(*[each.presets for each in experiments if each.name == name], key=PRESETS.index),
        "of": lambda text: _of(answers, Answer(*text.split())),
        "facts": module.facts(records) if hasattr(module, "facts") else {},
        "as_well": lambda each: _as_well(records, answers, each),
        "remarks": lambda each: _remarks(answers, module, each),
        "answered": [each for each in answers.all if each.counted not in (NOT_RUN, NO_EXPERIMENT)],
        "not_run": groups,
        "besides": [
            (each, [p for p in each.presets if (each.name, p) in left and p != "quick"]) for each in experiments
        ],
    }


def _as_well(records: Records, answers: Answers, each: Answered) -> Sequence[judge.Value]:
    """Other models with the verdict of a row, or a better one, by the module of the paper."""
    module = judge.module_of(answers.paper)
    return module.as_well(records, each) if hasattr(module, "as_well") else ()


def _remarks(answers: Answers, module: Any, each: Answered) -> list[str]:
    """Remarks on a row, about the variants that answer it, from the TOML and from the module of the paper."""
    runs = list(dict.fromkeys(key[1:3] for key in each.runs))
    found: dict[str, list[str]] = {}
    for experiment, variant in runs:
        remarks = answers.paper.experiments.get(experiment, {}).get("remarks", {})
        if variant in remarks:
            found.setdefault(remarks[variant], []).append(experiment if variant == "all" else variant)
    of_rows = [f"{said} ({', '.join(names)})" if len(names) < len(runs) else said for said, names in found.items()]
    return [*of_rows, *(module.remarks(answers.records, each) if hasattr(module, "remarks") else ())]


def _last(records: Records) -> Mapping[tuple[str, str], str]:
    """For every experiment, the preset of its largest recorded runs."""
    return {key[:2]: key.preset for key in sorted(records.found, key=lambda key: PRESETS.index(key.preset))}


def _numbers_of(records: Records, experiment: Experiment, presets: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Tables of numbers from runs with these presets: variants by metrics. Different seeds are one variant."""
    for preset in presets:
        seeds: dict[str, list[Key]] = {}
        for key, _ in records.of(experiment.paper, experiment.name):
            if key.preset == preset:
                seeds.setdefault(key.variant, []).append(key)
        runs = {name: Recorded(tuple(keys), tuple(records.found[k] for k in keys)) for name, keys in seeds.items()}
        every = dict.fromkeys(name for run in runs.values() for name in run.result["metrics"])
        metrics = [name for name in every if name.removesuffix("_se") == name or name.removesuffix("_se") not in every]
        cells = {name: [_cell(run.ours(name), name) for run in runs.values()] for name in metrics}
        rows = list(zip(runs, *cells.values(), strict=True))
        headings = ["variant", *map(worded, metrics)]
        if len(metrics) > 8:
            headings, *rows = zip(headings, *rows, strict=True)
        classes = {name: run.result["data"]["sizes"].get("classes") or math.inf for name, run in runs.items()}
        worse = [name for name in runs if runs[name].result["metrics"].get("nlpp", 0.0) > math.log(classes[name])]
        if runs:
            yield {"preset": preset, "headings": headings, "rows": rows, "worse": worse, "experiment": experiment}


def worded(metric: str) -> str:
    """The name of a metric in words, after the name of its model if a run has several. Errors are in per cent."""
    known = kind(metric) or metric
    model = metric.removesuffix(known).removesuffix("_")
    return f"{model}: ".replace("_", " ") * bool(model) + known.replace("_", " ") + " (%)" * (metric == "error")


def _cell(ours: Ours | None, metric: str) -> str:
    if ours is None:
        return number(None)
    scale = 100 if metric == "error" else 1
    if not ours.error:
        return number(scale * ours.value)
    return beside(scale * ours.value, scale * ours.error, Printed("0"))


def _pictures_of_runs(records: Records, experiment: Experiment) -> Iterator[tuple[str, str, Key]]:
    """Pictures that runs drew of their trained models. They are beside the files of the runs: ``STEM_NAME.png``."""
    for key, _ in records.of(experiment.paper, experiment.name):
        path = records.paths[key]
        for found in sorted(path.parent.glob(f"{path.stem}_*.png")):
            yield found.stem.removeprefix(f"{path.stem}_"), f"{experiment.paper}/{found.stem}", key


def check(folder: Path, output: Path, experiments: Sequence[Experiment], papers: Sequence[Paper]) -> str:
    """Compare pages with files, files with their schema, and claims with experiments. Returns a sentence about it.

    Args:
        folder: folder of the result files.
        output: folder of the pages.
        experiments: all experiments.
        papers: the papers whose claims are known.

    Raises:
        ReproductionError: if a page differs from its files, a file from its schema, or a claim cannot be answered.
    """
    wrong = [*_stale(pages(folder, experiments, papers, output), output)]
    records, answered = Records(folder, experiments), 0
    wrong += [*_other_numbers(records, experiments)]
    for paper in papers:
        answers = Answers(paper, records, experiments)
        answered += sum(each.counted not in (NOT_RUN, NO_EXPERIMENT) for each in answers.all)
    if wrong:
        raise ReproductionError(f"{len(wrong)} of the results are wrong: {' | '.join(wrong[:5])}")
    claims = sum(len(paper.claims) for paper in papers)
    counted = f"{len(records.found)} files, {claims} claims, {answered} of them with a result"
    return f"{counted}: the pages say what the files say."


def _stale(written: dict[str, str], output: Path) -> Iterator[str]:
    """The first line that differs from the files, from the place where it differs, for every page with such a line."""
    for name, text in written.items():
        path = output / name
        if not path.is_file():
            yield f"{path} is missing: run gpzoo results"
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        for i, (ours, theirs) in enumerate(zip_longest(lines, text.splitlines()), 1):
            if ours != theirs:
                begin = _first_difference(ours or "", theirs or "") - 20
                yield f"{path}, line {i}: {_cut(ours, begin)} instead of {_cut(theirs, begin)}; run gpzoo results"
                break


def _first_difference(text: str, other: str) -> int:
    """The number of characters at the beginning that two texts have in common."""
    for i, (a, b) in enumerate(zip_longest(text, other)):
        if a != b:
            return i
    return len(text)


def _cut(line: str | None, begin: int) -> str:
    """Eighty characters of a line."""
    if line is None:
        return "no line"
    return repr(line[:80] if begin <= 0 else f"... {line[begin : begin + 80]}")


def _other_numbers(records: Records, experiments: Sequence[Experiment]) -> Iterator[str]:
    """Numbers of a paper in a file that differ from the numbers of its claims, except numbers read off a figure."""
    variants = {(each.paper, each.name): each.variants for each in experiments}
    for key, result in records.found.items():
        printed = variants[key.paper, key.experiment][key.variant]
        for metric, paper in result["paper_metrics"].items():
            if paper is not None and printed.get(metric) not in (None, paper):
                yield f"{records.paths[key]}: the paper's {metric} is {printed.get(metric)}, not {paper}"


def _unanswerable(paper: Paper, experiments: Sequence[Experiment]) -> Iterator[str]:
    """Claims that occur twice, or that name an experiment or a variant that does not exist."""
    variants = {each.name: each.variants for each in experiments if each.paper == paper.key}
    seen = set()
    for claim in paper.claims:
        if (claim.where, claim.what) in seen:
            yield f"'{claim.what}' is there twice"
        seen.add((claim.where, claim.what))
        for experiment, variant in claim.runs:
            if variant not in variants.get(experiment, {}):
                yield f"'{claim.what}' is answered by {experiment} {variant}, which is not there"
        if claim.judge and judge.judge_of(claim, paper) is None:
            yield f"'{claim.what}' is judged by {claim.judge}, which is not there"
