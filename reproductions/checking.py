"""Do the pages say what the files say, and is every claim answered by what there is?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from gpzoo.reproductions.answers import Answers
from gpzoo.reproductions.claims import Paper
from gpzoo.reproductions.experiment import Experiment, ReproductionError
from gpzoo.reproductions.judge import NO_EXPERIMENT, NOT_RUN, judge_of
from gpzoo.reproductions.pages import pages
from gpzoo.reproductions.records import Records


def check(folder: Path, output: Path, experiments: Sequence[Experiment], papers: Sequence[Paper]) -> str:
    """Compare pages with files, files with their schema, and claims with experiments; a sentence on what was compared.

    Args:
        folder: folder of the result files.
        output: folder of the pages.
        experiments: all experiments.
        papers: the papers whose claims are known.

    Raises:
        ReproductionError: if a page differs from its files, a file from its schema, or a claim cannot be answered.
    """
    wrong = [*_stale(pages(folder, experiments, papers), output)]
    records, answered = Records(folder, experiments), 0
    wrong += [*_other_numbers(records, experiments)]
    for paper in papers:
        answers = Answers(paper, records, experiments)
        wrong += [f"{paper.key}: {told}" for told in _unanswerable(answers, experiments)]
        answered += sum(each.counted not in (NOT_RUN, NO_EXPERIMENT) for each in answers.all)
    if wrong:
        raise ReproductionError(f"{len(wrong)} of the results are wrong: {' | '.join(wrong[:5])}")
    claims = sum(len(paper.claims) for paper in papers)
    counted = f"{len(records.found)} files, {claims} claims, {answered} of them with a result"
    return f"{counted}: the pages say what the files say."


def _stale(written: dict[str, str], output: Path) -> Iterator[str]:
    """The first line of every page that is not that of the files."""
    for name, text in written.items():
        path = output / name
        if not path.is_file():
            yield f"{path} is missing: run gpzoo results"
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        for i, (ours, theirs) in enumerate(zip_longest(lines, text.splitlines()), 1):
            if ours != theirs:
                yield f"{path}, line {i}: {str(ours)[:80]!r} instead of {str(theirs)[:80]!r}; run gpzoo results"
                break


def _other_numbers(records: Records, experiments: Sequence[Experiment]) -> Iterator[str]:
    """Numbers of a paper in a file that are not those of the claims, except what was read off a figure."""
    variants = {(each.paper, each.name): each.variants for each in experiments}
    for key, result in records.found.items():
        printed = variants[key.paper, key.experiment][key.variant]
        for metric, paper in result["paper_metrics"].items():
            if paper is not None and printed.get(metric) not in (None, paper):
                yield f"{records.paths[key]}: the paper's {metric} is {printed.get(metric)}, not {paper}"


def _unanswerable(answers: Answers, experiments: Sequence[Experiment]) -> Iterator[str]:
    """Claims that name an experiment or a variant which is not there, or that are twice there."""
    variants = {each.name: each.variants for each in experiments if each.paper == answers.paper.key}
    seen = set()
    for claim in answers.paper.claims:
        if (claim.where, claim.what) in seen:
            yield f"'{claim.what}' is there twice"
        seen.add((claim.where, claim.what))
        for experiment, variant in claim.runs:
            if variant not in variants.get(experiment, {}):
                yield f"'{claim.what}' is answered by {experiment} {variant}, which is not there"
        if claim.judge and judge_of(claim, answers.paper) is None:
            yield f"'{claim.what}' is judged by {claim.judge}, which is not there"
