"""All pages of results: one for each paper, one for the other models, their list, and the summary of a screen."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from gpzoo.reproductions.answers import Answered, Answers
from gpzoo.reproductions.claims import Paper
from gpzoo.reproductions.experiment import Experiment
from gpzoo.reproductions.figures import drawable
from gpzoo.reproductions.markdown import folded, joined, markdown, together
from gpzoo.reproductions.page import listed, page_of, uncounted, without_counting
from gpzoo.reproductions.page_parts import (
    numbers_of,
    picture,
    pictures_of,
    provenance_of,
    telling_of,
)
from gpzoo.reproductions.printed import number
from gpzoo.reproductions.records import Records, splits_of
from gpzoo.reproductions.verdicts import (
    FEWER_FOLDS,
    NO_EXPERIMENT,
    NOT_RUN,
    NOT_SCORED,
    REACHED,
    READING,
    SHORT,
    STAND_IN,
    SUBSET,
    UNDECIDED,
    WORDS,
)

#: The folder of the pages in a checkout, and the page of experiments without a paper's numbers.
FOLDER, MORE = PurePosixPath("docs/results"), "more"

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
    found = {f"{FOLDER}/{each.paper.key}.md": page_of(each, experiments, figures) for each in answers}
    rest = [experiment for experiment in experiments if experiment.paper not in known]
    found[f"{FOLDER}/{MORE}.md"] = _more(records, rest, figures)
    found[f"{FOLDER}/index.md"] = _index(answers)
    return {"RESULTS.md": _summary(answers, figures), **found}


def _more(records: Records, experiments: Sequence[Experiment], figures: Collection[str]) -> str:
    lines = [
        "# More models",
        "",
        "Experiments of models that no paper here has numbers for. Most are small runs of one seed, which show that a "
        "program works and not which model is better in general. All settings were chosen by hand, and where the "
        "tables of all runs at the end do not say on which data, perhaps with the test set in sight.",
        "",
    ]
    for experiment in experiments:
        # Without a paper's sizes, small runs are results too; the largest recorded is shown.
        recorded = {key.preset for key, _ in records.of(experiment.paper, experiment.name)}
        presets = [preset for preset in experiment.presets if preset in recorded][-1:]
        if presets:
            found = {
                key.variant: result
                for key, result in records.of(experiment.paper, experiment.name)
                if key.preset == presets[0]
            }
            lines += [f"## {experiment.name}", *numbers_of(records, experiment, presets), "", *outcome(found), ""]
            lines += pictures_of(experiment, figures, presets)
    keys = dict.fromkeys(experiment.paper for experiment in experiments)
    for paper in keys:
        lines += ["", *folded(f"Provenance: {paper}", provenance_of(records, paper))]
    return joined(lines)


#: Metrics by which variants are compared, the first that all have, and what makes lower ones better.
_JUDGES = {"test_log_likelihood": -1, "nlpp": 1, "error": 1}


def outcome(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence on which variant is the best, or on the difference that an experiment is about."""
    metrics = {variant: result["metrics"] for variant, result in found.items()}
    if all("difference" in own for own in metrics.values()):
        parts = [f"{own['difference']:+.3f} ± {own['difference_se']:.3f} on {name}" for name, own in metrics.items()]
        return [f"In nats of nlpp, one pass less all at once, with the standard error over splits: {together(parts)}."]
    name = next((name for name in _JUDGES if all(name in own for own in metrics.values())), "")
    if not name or len(found) < 2:
        return []
    ranked = sorted(metrics, key=lambda variant: _JUDGES[name] * metrics[variant][name])
    scale = 100 if name == "error" else 1

    def said(variant: str) -> str:
        value, spread = metrics[variant][name], metrics[variant].get(f"{name}_standard_error")
        return number(scale * value) + ("" if spread is None else f" ± {number(scale * spread)}")

    splits = {splits_of(result) for result in found.values()}
    runs = "One run of each." if splits == {1} else f"Means over {together([str(n) for n in sorted(splits)])} splits."
    title, (best, *others) = name.replace("_", " ") + " (%)" * (name == "error"), ranked
    if all(said(variant) == said(best) for variant in others):
        return [f"All have the same {title}, {said(best)}. {runs}"]
    own, next_ = metrics[best], metrics[others[0]]
    unsure = abs(own[name] - next_[name]) <= sum(each.get(f"{name}_standard_error", 0.0) for each in (own, next_))
    rest = "; ".join(f"{variant} {said(variant)}" for variant in others)
    return [f"Best {title}: {best} {said(best)}{', within the errors of the next' * unsure}; {rest}. {runs}"]


def _index(answers: Sequence[Answers]) -> str:
    words = markdown(("verdict", "means that"), WORDS.items())
    lines = [
        "# Results",
        "",
        totals(answers),
        "",
        *_table_of_counts(answers, ""),
        "",
        "## Verdicts",
        "",
        *words,
        "",
        _RULES,
        "",
    ]
    names = [each.paper.key for each in answers] + [MORE]
    return joined([*lines, "```{toctree}", ":maxdepth: 1", "", *names, "```"])


_RULES = (
    "*Reached* is one-sided: a number that is better by much is reached too, though it is then no reproduction of the "
    "paper's, whose network, training or data must differ from ours in something. "
    "The nlpp is the mean negative log predictive probability of a test point, in nats: lower is better. 0.02 nats are "
    "much where the nlpp is as small itself, so that *undecided* says little there. 0.15 points "
    "are about the binomial error of one run on 10,000 test images at an accuracy of 98 %; with a larger error much "
    "would be reached by chance. The same rule says *within* or *short by* of a number on fewer splits or a part of "
    "the data. Standard errors are over seeds or splits where there are several, and binomial for the error of one "
    "run, which leaves out how trainings differ: most runs have one seed, and the tables of all runs say which. Where "
    "runs by the paper's settings and by ours answer a claim, it counts as reached if one of them reaches it; the "
    "other is among the numbers without a claim. Statements are judged on differences over the same splits where "
    "models share them; a claim about many pairs fails only by more than chance explains in so many."
    " `gpzoo results --check` compares all of this with the files."
)


def totals(answers: Sequence[Answers]) -> str:
    """All verdicts in two sentences."""
    count = {word: sum(each.counts[word] for each in answers) for word in WORDS}
    uncounted = {
        FEWER_FOLDS: "on fewer splits",
        SUBSET: "on a part of the data",
        STAND_IN: "on other data, another problem or by quick runs",
        READING: "beside a value that is read off a figure",
        NOT_SCORED: "of seconds, which depend on the machine",
    }
    parts = ", ".join(f"{count[word]} {said}" for word, said in uncounted.items() if count[word])
    return (
        f"**Of the {sum(len(each.all) for each in answers)} numbers and statements in {len(answers)} papers, "
        f"{count[REACHED]} are reached, {count[SHORT]} fall short, {count[UNDECIDED]} are undecided, and "
        f"{count[NOT_RUN]} were not run; {count[NO_EXPERIMENT]} have no experiment.** The other "
        f"{sum(count[word] for word in uncounted)} have results that never count as reached: {parts or 'none'}. Of "
        "those on fewer splits, a part of the data or other data: "
        f"{without_counting([each.verdict for answer in answers for each in answer.all])}."
    )


def _summary(answers: Sequence[Answers], figures: Collection[str]) -> str:
    lines = ["# Results", "", f"{_WRITTEN}", ""]
    lines += [
        f"What the verdicts mean: [docs/results/index.md]({FOLDER}/index.md). Each paper's page says why something "
        "was not run: data that are not at hand, hours, or an accelerator.",
        "",
    ]
    lines += [totals(answers), "", *_table_of_counts(answers, f"{FOLDER}/"), ""]
    for each in answers:
        paper = each.paper
        lines += [f"## [{paper.title}]({FOLDER}/{paper.key}.md)", "", paper.source + ". " + _shortest(each), ""]
        lines += picture(telling_of(paper, figures), paper.telling[1], figures, up="")
    return joined([*lines, f"Other models, which no paper here has numbers for: [{MORE}]({FOLDER}/{MORE}.md)."])


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
    return markdown(("paper", "claims", *words), [*rows, ("all", *total)])


def _distance(each: Answered) -> str:
    """How far a number is off, and whether its training had converged."""
    more = ", not converged" if each.trained.startswith("not converged") else ""
    return f"({each.verdict.distance}{more})" if each.verdict.distance else ""


def _shortest(answers: Answers) -> str:
    """The first few claims that hold, and all that fall short."""
    told = []
    for word in (REACHED, SHORT):
        found = [each for each in answers.all if each.verdict.word == word]
        said = [(each.claim, _distance(each)) for each in found]
        if word == REACHED and not said:
            told.append("Reached: none.")
        if said:
            shown = said[:6] if word == REACHED else said
            more = f"; {len(said) - len(shown)} more" if len(said) > len(shown) else ""
            told.append(f"{word[:1].upper()}{word[1:]}: {listed(shown)}{more}.")
    return " ".join([*told, *filter(None, uncounted(answers))])
