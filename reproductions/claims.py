"""Claims of the papers: printed numbers and statements, each with the metric or the function that answers it."""

from __future__ import annotations

import hashlib
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, cast


class Answer(NamedTuple):
    """The metric, of a variant of an experiment, that answers a claim."""

    experiment: str
    variant: str
    metric: str


@dataclass(frozen=True)
class Claim:
    """A number or a statement of a paper.

    Attributes:
        where: the table, figure or section.
        what: the claim in words.
        printed: the number; ``None`` for a statement.
        answer: our metric that answers a number; ``None`` if no metric does.
        judge: the name of a function that says whether a statement holds. The function is in
            :mod:`gpzoo.reproductions.judge`, or in the module of the paper.
        arguments: keyword arguments of this function.
        needs: the runs that the function uses: ``experiment`` and ``variants``, or ``experiments`` with the variant
            ``all``. With ``some``, the recorded runs among these are enough.
        by: our interpretation of the words of a statement, such as the meaning of "far".
        baseline: whether the claim is about a method that the paper compares with its own method.
        reading: whether the number is read off a figure or an axis. It is then never scored.
        why: the reason why nothing answers the claim.
        margin: the largest difference that counts as no difference, in the unit of the number; ``None`` for the margin
            of the metric.

    Raises:
        ValueError: if a share is printed as more than 1, or ``needs`` names no runs.
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

    def __post_init__(self) -> None:
        metric = "" if self.answer is None else self.answer.metric
        share = kind(metric) in ("error", "accuracy", "auc")
        if share and self.printed is not None and not 0 <= self.printed <= 1:
            raise ValueError(
                f"{self.what!r}: {self.printed.text} is no share. Write '%' after a percentage, or percent = true for "
                f"a column of a table. If {metric!r} is no share, give the metric another name."
            )
        if self.needs and not ("experiments" in self.needs or {"experiment", "variants"} <= self.needs.keys()):
            raise ValueError(f"{self.what!r}: needs names experiment and variants, or experiments.")

    @property
    def runs(self) -> list[tuple[str, str]]:
        """Experiment and variant of every run that answers the claim."""
        if self.answer is not None:
            return [self.answer[:2]]
        if "experiments" in self.needs:
            return [(name, "all") for name in self.needs["experiments"]]
        return [(self.needs["experiment"], variant) for variant in self.needs["variants"]] if self.needs else []


@dataclass(frozen=True)
class Column:
    """A column of a table in a paper.

    Attributes:
        title: heading of the column.
        key: key of the column in :attr:`Table.answer`; ``None`` for numbers from other papers, or numbers that nothing
            answers.
        percent: whether the numbers are per cent.
        why: the reason why nothing answers a number of the paper itself.
        metric: the metric of the numbers, in words, if the heading is a metric.
        baseline: whether the numbers belong to a method that the paper compares with its own method.
    """

    title: str
    key: str | None = None
    percent: bool = False
    why: str = ""
    metric: str = ""
    baseline: bool = False


@dataclass(frozen=True)
class Row:
    """A row of a table in a paper: its heading, its key, and its numbers as they are printed, ``-`` for none."""

    title: str
    key: str
    numbers: str
    baseline: bool = False


@dataclass(frozen=True)
class Table:
    """A table of a paper, or numbers from the text of the paper in the form of a table.

    Attributes:
        where: number of the table, or the section.
        columns: columns of the table.
        rows: rows of the table.
        title: subject of the table.
        answer: experiment, variant and metric of a number. ``{row}`` and ``{column}`` stand for the keys of its row and
            its column.
        metric: the metric of all numbers, in words, unless columns have their own metrics.
        note: a fact about the numbers that readers must know, such as a misprint.
        margin: see :attr:`Claim.margin`.
        test_rows: see :class:`Printed`.
        of_mean: see :class:`Printed`.
    """

    where: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    title: str = ""
    answer: str = ""
    metric: str = ""
    note: str = ""
    margin: float | None = None
    test_rows: int | None = None
    of_mean: bool = False

    def cells(self, row: Row) -> Iterator[tuple[Column, Printed | None, Answer | None]]:
        """The cells of a row: the column, the number, and what answers it."""
        for column, text in zip(self.columns, _numbers(row.numbers), strict=True):
            written = f"{text} %" if column.percent else text
            printed = None if text == "-" else Printed(written, self.test_rows, self.margin, self.of_mean)
            answer = None
            if column.key is not None:
                answer = Answer(*self.answer.format(row=row.key, column=column.key).split())
            yield column, printed, answer

    def claims(self) -> Iterator[Claim]:
        """The claims in the table, without numbers from other papers.

        Raises:
            ValueError: if one margin is for numbers of several metrics.
        """
        kinds = {kind(answer.metric) for row in self.rows for _, number, answer in self.cells(row) if number and answer}
        if self.margin is not None and len(kinds) > 1:
            raise ValueError(f"{self.where}: one margin cannot be for {', '.join(sorted(map(str, kinds)))}.")
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
        key: name of the paper on the command line.
        title: title of the paper.
        source: authors and year.
        about: subject of the paper, in a sentence or two.
        tables: tables of the paper.
        others: claims of the paper that are not in a table.
        experiments: facts about each experiment by name: description, presets, settings, reason for ``not_run``.
        telling: the most telling figure: ``figures``, of which the first drawn one is shown, and its ``words``.
        by_hand: how settings were chosen by hand, and in which ``presets``, see
            :func:`~gpzoo.reproductions.experiment.by_hand`.
        drawn_by_runs: words for pictures that runs draw of their trained models, by name.
        differs: differences between this reproduction and the paper, and misprints of the paper, in a sentence or two
            each.
        titles: names of variants in words, for legends of figures. Other variants keep their names.
        module: the file with the experiments of a user's own paper; ``None`` for a paper of ``gpzoo``.
        sha256: one hash of both files of a user's own paper, as they were when they were read; else empty.
        program: the hash of ``module`` alone.
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
    titles: Mapping[str, str] = field(default_factory=dict)
    module: Path | None = None
    sha256: str = ""
    program: str = ""

    @property
    def claims(self) -> tuple[Claim, ...]:
        """All claims of the paper. Claims from tables come first."""
        return (*(claim for table in self.tables for claim in table.claims()), *self.others)

    def numbers(self, experiment: str, variants: Iterable[str]) -> dict[str, dict[str, float | None]]:
        """The printed numbers of variants, by metric, without numbers that are read off or from other machines.

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


def load(paper: str | Path) -> Paper:
    """The claims of a paper, and the facts about its experiments.

    Args:
        paper: the name of a paper of ``gpzoo``, or the path of a user's own TOML file, ``NAME.toml``. The experiments
            of the user's file are in ``NAME.py`` beside it.
    """
    path = paper if isinstance(paper, Path) else Path(__file__).parent / "papers" / f"{paper}.toml"
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    tables, claims = found.pop("tables", ()), found.pop("claims", ())
    for name, facts in found.pop("metrics", {}).items():
        if "means" not in facts or METRICS.setdefault(name, facts) != facts:
            raise ValueError(f"[metrics.{name}] must say what it means, and be no metric of gpzoo or of another paper.")
        if facts.get("better", "lower") not in ("lower", "higher"):
            raise ValueError(f"[metrics.{name}]: better must be 'lower' or 'higher', not {facts['better']!r}.")
    others = [_claim(**each) for each in claims]
    if isinstance(paper, Path):
        module = path.resolve().with_suffix(".py")
        code = module.read_bytes() if module.is_file() else b""
        found |= {"module": module, "program": hashlib.sha256(code).hexdigest()}
        found["sha256"] = hashlib.sha256(code + path.read_bytes()).hexdigest()
    return Paper(path.stem, tables=[_table(**each) for each in tables], others=others, **found)


def _numbers(text: str) -> list[str]:
    """The numbers of a row, each with its sign for a percentage and its deviation: ``"5.0 % 0.77 ± 0.01"`` has two."""
    return re.sub(r"\s+(?=%)|\s*(±)\s*", r"\1", text).split()


def _table(columns: Iterable[dict[str, Any]], rows: Iterable[Any], **facts: Any) -> Table:
    """A table of a TOML file. A row is an array of heading, key and numbers, or it has these names.

    Raises:
        ValueError: for a row that is not as the columns say, naming the table and the row.
    """
    of_rows = [Row(**row) if isinstance(row, dict) else Row(*row) for row in rows]
    of_columns = [Column(**column) for column in columns]
    for row in of_rows:
        at = f"{facts.get('where')}, row {row.title!r}"
        if not isinstance(row.numbers, str):
            raise ValueError(f"{at}: write numbers as the paper prints them, in quotes, not {row.numbers!r}.")
        if (count := len(_numbers(row.numbers))) != len(of_columns):
            raise ValueError(f"{at}: {len(of_columns)} columns, but {count} numbers in {row.numbers!r}.")
        if len(row.key.split()) > 1:
            raise ValueError(f"{at}: the key {row.key!r} must be one word, as in the table's answer.")
    return Table(columns=of_columns, rows=of_rows, **facts)


def _claim(printed: str = "", answer: str = "", of_mean: bool = False, **facts: Any) -> Claim:
    """A claim of a TOML file."""
    if not isinstance(printed, str):
        raise ValueError(f"{facts.get('what')!r}: write the number as the paper prints it, in quotes, not {printed!r}.")
    number = Printed(printed, margin=facts.get("margin"), of_mean=of_mean) if printed else None
    return Claim(printed=number, answer=Answer(*answer.split()) if answer else None, **facts)


#: Facts about each metric.
METRICS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("metrics.toml").read_text("utf-8"))


def kind(metric: str) -> str | None:
    """The kind of a metric, if one direction is better: ``"accuracy"`` for the metric ``"dnn_accuracy"`` of a model."""
    ends = [name for name, facts in METRICS.items() if "better" in facts and f"_{metric}".endswith(f"_{name}")]
    return ends[0] if ends else None


def toward(metric: str) -> int:
    """1 if higher values of a metric are better, -1 if lower values are better, 0 if neither is better."""
    return {"higher": 1, "lower": -1}.get(METRICS.get(kind(metric) or "", {}).get("better", ""), 0)


class Printed(float):
    """A number of a paper with the place of its last digit: ``Printed("1.22 %")`` is 0.0122, rounded by up to 0.00005.

    Attributes:
        text: the printed number, with its standard deviation if there is one: ``"0.781±0.001"``.
        scale: 100 for a percentage, else 1.
        decimals: number of printed digits after the point.
        rounding: the largest rounding error of the number, half a unit of its last digit.
        deviation: the standard deviation that is printed with the number, or ``None``.
        test_rows: number of test rows behind the number, if it differs from ours; otherwise ``None``.
        margin: see :attr:`Claim.margin`.
        of_mean: whether ``deviation`` is the standard error of the number, which is a mean. Otherwise it is the
            standard deviation over splits, or of trainings.
    """

    text: str
    scale: int
    decimals: int
    rounding: float
    deviation: float | None
    test_rows: int | None
    margin: float | None
    of_mean: bool

    def __new__(
        cls, text: str, test_rows: int | None = None, margin: float | None = None, of_mean: bool = False
    ) -> Printed:
        """The number in a text. It is a percentage if the text ends in the sign for it."""
        digits, _, deviation = (part.strip() for part in text.removesuffix("%").partition("±"))
        scale, value = 100 if text.endswith("%") else 1, float(digits)
        last = cast(int, Decimal(digits).as_tuple().exponent)
        decimals = max(0, -last)
        self = super().__new__(cls, round(value / scale, decimals + 2))
        self.text, self.scale, self.decimals = text, scale, decimals
        self.rounding, self.margin = 0.5 * 10.0**last / scale, margin
        self.deviation, self.test_rows = float(deviation) / scale if deviation else None, test_rows
        self.of_mean = of_mean
        return self


def as_printed(value: float | str) -> Printed:
    """A number with its number of decimals. A number that is no :class:`Printed` gets the digits that Python shows."""
    if isinstance(value, str):
        return Printed(value)
    return value if isinstance(value, Printed) else Printed(f"{float(value):.15g}")


def beside(ours: float, error: float | None, printed: Printed) -> str:
    """Our number in the paper's unit, with its standard error, to one digit more than printed or two of the error."""
    value, unit = ours * printed.scale, " %" if printed.scale == 100 else ""
    decimals = printed.decimals + 1
    if error:
        scaled = error * printed.scale
        decimals = max(printed.decimals, min(8, 1 - math.floor(math.log10(scaled))))
        return f"{value:.{decimals}f} ± {scaled:.{decimals}f}{unit}"
    return f"{value:.{decimals}f}{unit}"


def amount(difference: float, printed: Printed) -> str:
    """A difference from a printed number, in the unit of that number, with a sign and one digit more."""
    decimals = max(printed.decimals, min(printed.decimals + 1, 2 if printed.scale == 100 else 4))
    return f"{difference * printed.scale:+.{decimals}f}"


def number(value: float | None) -> str:
    """A number to four digits, or a dash for ``None``."""
    return "-" if value is None else f"{value:.4g}"
