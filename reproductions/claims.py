"""Claims of the papers: printed numbers and statements, each with the metric or function that answers it."""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """The metric of an experiment's variant that answers a claim."""

    experiment: str
    variant: str
    metric: str


@dataclass(frozen=True)
class Claim:
    """A number or a statement of a paper.

    Attributes:
        where: the table, figure or section.
        what: the claim in words.
        printed: the number, ``None`` for a statement.
        answer: the metric of ours that answers a number; ``None`` if nothing does.
        judge: the name of the function of :mod:`gpzoo.reproductions.judge`, or of the paper's module, that says whether
            a statement holds.
        arguments: its keyword arguments.
        needs: the runs that it uses: ``experiment`` and ``variants``, or ``experiments`` with the variant ``all``. With
            ``some``, the recorded ones are enough.
        by: our reading of a statement's words, such as what "far" means.
        baseline: whether it is about a method that the paper compares with, and not its own method.
        reading: whether the number is read off a figure or an axis; it is then never scored.
        why: the reason why nothing answers it.
        margin: the largest difference from the number that counts as none, in its unit; ``None`` for the margin of the
            metric.
    """

    where: str
    what: str
    printed: Printed | None = None
    answer: Answer | None = None
    judge: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    needs: Mapping[str, Any] = field(default_factory=dict)
    by: str = ""
    baseline: bool = False
    reading: bool = False
    why: str = ""
    margin: float | None = None

    @property
    def runs(self) -> list[tuple[str, str]]:
        """Experiment and variant of every run that answers it."""
        if self.answer is not None:
            return [self.answer[:2]]
        if "experiments" in self.needs:
            return [(name, "all") for name in self.needs["experiments"]]
        return [(self.needs["experiment"], variant) for variant in self.needs["variants"]] if self.needs else []


@dataclass(frozen=True)
class Column:
    """A column of a paper's table.

    Attributes:
        title: its heading.
        key: its key in :attr:`Table.answer`; ``None`` for numbers of others, or numbers that nothing answers.
        percent: whether its numbers are per cent.
        why: the reason why nothing answers a number of the paper itself.
        metric: the metric of its numbers, in words, if its heading is a metric.
        baseline: whether its numbers are of a method that the paper compares with.
    """

    title: str
    key: str | None = None
    percent: bool = False
    why: str = ""
    metric: str = ""
    baseline: bool = False


@dataclass(frozen=True)
class Row:
    """A row of a paper's table: its heading, its key, and its numbers as they are printed, ``-`` for none."""

    title: str
    key: str
    numbers: str
    baseline: bool = False


@dataclass(frozen=True)
class Table:
    """A table of a paper, or numbers of its text in the form of one.

    Attributes:
        where: its number, or the section.
        columns: its columns.
        rows: its rows.
        title: what it is about.
        answer: experiment, variant and metric of a number, in which ``{row}`` and ``{column}`` stand for their keys.
        metric: the metric of all numbers, in words, unless columns have their own.
        note: what a reader must know about its numbers, such as a misprint.
        margin: see :attr:`Claim.margin`.
    """

    where: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    title: str = ""
    answer: str = ""
    metric: str = ""
    note: str = ""
    margin: float | None = None

    def cells(self, row: Row) -> Iterator[tuple[Column, Printed | None, Answer | None]]:
        """The cells of a row: the column, the number, and what answers it."""
        for column, text in zip(self.columns, row.numbers.split(), strict=True):
            printed = None if text == "-" else Printed(f"{text} %" if column.percent else text)
            answer = None
            if column.key is not None:
                answer = Answer(*self.answer.format(row=row.key, column=column.key).split())
            yield column, printed, answer

    def claims(self) -> Iterator[Claim]:
        """The claims in it, without numbers from other papers."""
        for row in self.rows:
            for column, printed, answer in self.cells(row):
                if printed is not None and (answer is not None or column.why):
                    parts = (self.title, row.title, "" if column.metric else column.title)
                    said = f"{', '.join(filter(None, parts))}: {column.metric or self.metric}"
                    baseline = row.baseline or column.baseline
                    of = {"baseline": baseline, "why": column.why, "margin": self.margin}
                    yield Claim(self.where, said, printed, answer, **of)


@dataclass(frozen=True)
class Paper:
    """A paper, its claims, and the facts of its experiments.

    Attributes:
        key: its name on the command line.
        title: its title.
        source: authors and year.
        about: its subject, in a sentence or two.
        tables: its tables.
        others: its claims that are not in a table.
        experiments: the facts of its experiments by name: description, presets, settings, why it was ``not_run``.
        telling: the most telling figure: ``figures``, of which the first drawn one is shown, and its ``words``.
        by_hand: how its settings were chosen by hand, and in which ``presets``, see
            :func:`~gpzoo.reproductions.experiment.by_hand`.
        drawn_by_runs: words for pictures that runs draw of their trained models, by name.
        differs: differences between this reproduction and the paper, and misprints of the paper, in a sentence or two
            each.
        module: the file with the experiments of a user's own paper; ``None`` for a paper of ``gpzoo``.
    """

    key: str
    title: str
    source: str = ""
    about: str = ""
    tables: Sequence[Table] = ()
    others: Sequence[Claim] = ()
    experiments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    telling: Mapping[str, Any] = field(default_factory=dict)
    by_hand: Mapping[str, Any] = field(default_factory=dict)
    drawn_by_runs: Mapping[str, str] = field(default_factory=dict)
    differs: Sequence[str] = ()
    module: Path | None = None

    @property
    def claims(self) -> tuple[Claim, ...]:
        """All of its claims, those of its tables first."""
        return (*(claim for table in self.tables for claim in table.claims()), *self.others)

    def numbers(self, experiment: str, variants: Iterable[str]) -> dict[str, dict[str, float | None]]:
        """The printed numbers of an experiment's variants, by metric, without numbers read off or from other machines.

        Raises:
            ValueError: if another variant answers a claim.
        """
        found: dict[str, dict[str, float | None]] = {variant: {} for variant in variants}
        facts = self.experiments.get(experiment, {})
        for claim in self.claims:
            if claim.answer is not None and claim.answer.experiment == experiment and not (claim.reading or claim.why):
                if claim.answer.variant not in found:
                    raise ValueError(
                        f"{claim.what!r} is answered by {' '.join(claim.answer)}: there is no such variant."
                    )
                found[claim.answer.variant][claim.answer.metric] = claim.printed
        for variant, other in facts.get("alike", {}).items():
            found[variant] = found[other]
        return found

    def sha256(self) -> str:
        """The hash of the two files of a user's own paper."""
        assert self.module is not None
        return hashlib.sha256(self.module.read_bytes() + self.module.with_suffix(".toml").read_bytes()).hexdigest()


def load(paper: str | Path) -> Paper:
    """The claims of a paper, and the facts of its experiments.

    Args:
        paper: the name of a paper of ``gpzoo``; or the path of a user's own TOML file, ``NAME.toml``, with the
            experiments in ``NAME.py`` beside it.
    """
    path = paper if isinstance(paper, Path) else Path(__file__).parent / "papers" / f"{paper}.toml"
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    tables, claims = found.pop("tables", ()), found.pop("claims", ())
    others = [_claim(**each) for each in claims]
    found["module"] = path.resolve().with_suffix(".py") if isinstance(paper, Path) else None
    return Paper(path.stem, tables=[_table(**each) for each in tables], others=others, **found)


def _table(columns: Iterable[dict[str, Any]], rows: Iterable[Any], **facts: Any) -> Table:
    """A table of a TOML file; a row is an array of heading, key and numbers, or has these names."""
    rows = [Row(**row) if isinstance(row, dict) else Row(*row) for row in rows]
    return Table(columns=[Column(**column) for column in columns], rows=rows, **facts)


def _claim(printed: str = "", answer: str = "", **facts: Any) -> Claim:
    """A claim of a TOML file."""
    number = Printed(printed) if printed else None
    return Claim(printed=number, answer=Answer(*answer.split()) if answer else None, **facts)


#: Facts about each metric.
METRICS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("metrics.toml").read_text("utf-8"))


def kind(metric: str) -> str | None:
    """The kind of a metric, if one direction is better: ``"accuracy"`` for a model's ``"dnn_accuracy"``."""
    ends = [name for name, facts in METRICS.items() if "better" in facts and f"_{metric}".endswith(f"_{name}")]
    return ends[0] if ends else None


def toward(metric: str) -> int:
    """1 if higher values of a metric are better, -1 if lower ones are, 0 if neither."""
    return {"higher": 1, "lower": -1}.get(METRICS.get(kind(metric) or "", {}).get("better", ""), 0)


class Printed(float):
    """A number of a paper, which knows its last digit: ``Printed("1.22 %")`` is 0.0122, rounded by at most 0.00005.

    Attributes:
        text: the number as it is printed, with its standard deviation if there is one: ``"0.781±0.001"``.
        scale: 100 for a percentage, else 1.
        decimals: number of printed digits after the point.
        rounding: the largest rounding error of the number, half a unit of its last digit.
        deviation: the standard deviation that is printed with it; ``None`` for none.
    """

    text: str
    scale: int
    decimals: int
    rounding: float
    deviation: float | None

    def __new__(cls, text: str) -> Printed:
        """The number of a text; in per cent if the text ends so."""
        digits, _, deviation = text.removesuffix("%").strip().partition("±")
        scale = 100 if text.endswith("%") else 1
        decimals = len(digits.partition(".")[2])
        self = super().__new__(cls, round(float(digits) / scale, decimals + 2))
        self.text, self.scale, self.decimals = text, scale, decimals
        self.rounding = 0.5 * 10.0**-decimals / scale
        self.deviation = float(deviation) / scale if deviation else None
        return self


def as_printed(value: float) -> Printed:
    """A number with its last digit: a plain number has the digits that Python shows."""
    return value if isinstance(value, Printed) else Printed(f"{float(value):.15g}")


def beside(ours: float, error: float | None, printed: Printed) -> str:
    """Our number in the paper's unit, with its standard error: one digit more than printed, or two of the error."""
    value, unit = ours * printed.scale, " %" if printed.scale == 100 else ""
    decimals = printed.decimals + 1
    if error:
        scaled = error * printed.scale
        decimals = max(printed.decimals, min(8, 1 - math.floor(math.log10(scaled))))
        return f"{value:.{decimals}f} ± {scaled:.{decimals}f}{unit}"
    return f"{value:.{decimals}f}{unit}"


def amount(difference: float, printed: Printed) -> str:
    """A difference from a printed number, in its unit, with its sign and one digit more."""
    decimals = min(printed.decimals + 1, 2 if printed.scale == 100 else 4)
    return f"{difference * printed.scale:+.{decimals}f}"


def number(value: float | None) -> str:
    """A number to four digits, or a dash for ``None``."""
    return "-" if value is None else f"{value:.4g}"
