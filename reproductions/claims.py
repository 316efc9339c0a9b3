"""What do the papers claim? Their numbers as they are printed, and their statements, each with what answers it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpzoo.reproductions.printed import Printed

#: Why something was not run whose data ``gpzoo`` could download.
NO_DATA = "its data are not at hand, and the machine of these runs had no network to download them"

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gpzoo.reproductions.records import Key, Records


class Answer(NamedTuple):
    """The metric of an experiment's variant that answers a claim."""

    experiment: str
    variant: str
    metric: str


class Judged(NamedTuple):
    """What the files say of a statement.

    Attributes:
        ours: it in numbers.
        holds: whether it holds; ``None`` if that is undecided.
        runs: the runs that were looked at.
    """

    ours: str
    holds: bool | None
    runs: Sequence[Key]


@dataclass(frozen=True)
class Claim:
    """A number or a statement of a paper.

    Attributes:
        where: the table, figure or section.
        what: the claim in words.
        printed: the number, ``None`` for a statement.
        answer: what of ours answers a number; ``None`` if nothing does.
        judge: what says whether a statement holds, ``None`` without the runs for it.
        needs: the experiment and the variants that answer a statement.
        reading: whether the number is read off a figure or an axis; it is then never scored.
        why: the reason why nothing answers it.
    """

    where: str
    what: str
    printed: Printed | None = None
    answer: Answer | None = None
    judge: Callable[[Records], Judged | None] | None = None
    needs: tuple[str, tuple[str, ...]] | None = None
    reading: bool = False
    why: str = ""


@dataclass(frozen=True)
class Column:
    """A column of a paper's table.

    Attributes:
        title: its heading.
        key: what stands for it in :attr:`Table.answer`; ``None`` for numbers of others, or that nothing answers.
        percent: whether its numbers are per cent.
        why: the reason why nothing answers a number of the paper itself.
        metric: the metric of its numbers, in words, if its heading is one.
    """

    title: str
    key: str | None = None
    percent: bool = False
    why: str = ""
    metric: str = ""


@dataclass(frozen=True)
class Table:
    """A table of a paper, or numbers of its text in the form of one.

    Attributes:
        where: its number, or the section.
        title: what it is about.
        answer: experiment, variant and metric of a number, in which ``{row}`` and ``{column}`` stand for their keys.
        columns: its columns.
        rows: of every row the heading, the key, and the numbers as they are printed, ``-`` for none.
        metric: the metric of all numbers, in words, unless columns have their own.
    """

    where: str
    title: str
    answer: str
    columns: Sequence[Column]
    rows: Sequence[tuple[str, str, str]]
    metric: str = ""

    def cells(self, numbers: str, key: str) -> Iterator[tuple[Column, Printed | None, Answer | None]]:
        """The cells of a row: the column, the number, and what answers it."""
        for column, text in zip(self.columns, numbers.split(), strict=True):
            printed = None if text == "-" else Printed(f"{text} %" if column.percent else text)
            found = None
            if column.key is not None:
                found = Answer(*self.answer.format(row=key, column=column.key).split())
            yield column, printed, found

    def claims(self) -> Iterator[Claim]:
        """The claims in it, without numbers of others."""
        for title, key, numbers in self.rows:
            for column, printed, answer in self.cells(numbers, key):
                if printed is not None and (answer is not None or column.why):
                    parts = (self.title, title, "" if column.metric else column.title)
                    said = f"{', '.join(filter(None, parts))}: {column.metric or self.metric}"
                    yield Claim(self.where, said, printed, answer, why=column.why)


@dataclass(frozen=True)
class Paper:
    """A paper, and what it claims.

    Attributes:
        key: its name on the command line.
        title: its title.
        source: authors and year.
        about: what it is about, in a sentence or two.
        tables: its tables.
        others: its claims that are in no table.
        rows: numbers of rows of its data sets, training and test, by experiment.
        folds: numbers of its random splits, by experiment.
        stands_in: experiments whose data are not the paper's, wherever they are from; ``about`` says why.
        reasons: why an experiment was not run.
        beyond: writes further sections of its page.
        pictures: what draws figures of several experiments, by name; without their runs it is ``None``.
        drawn_by_runs: words for pictures that runs draw of their trained models, by name.
        finding: says in a sentence what the page found besides its verdicts; empty without the runs for it.
        telling: names of the most telling figure, of which the first that is drawn is shown, and its words.
        experiments: the facts of its experiments by name: description, presets, settings, and so on.
    """

    key: str
    title: str
    source: str
    about: str
    tables: Sequence[Table]
    others: Sequence[Claim] = ()
    rows: Mapping[str, int] = field(default_factory=dict)
    folds: Mapping[str, int] = field(default_factory=dict)
    stands_in: Collection[str] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    beyond: Callable[[Records], list[str]] | None = None
    pictures: Mapping[str, Callable[[Records], Callable[[], Figure] | None]] = field(default_factory=dict)
    drawn_by_runs: Mapping[str, str] = field(default_factory=dict)
    finding: Callable[[Records], str] | None = None
    telling: tuple[Sequence[str], str] = ((), "")
    experiments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def claims(self) -> tuple[Claim, ...]:
        """All of its claims, those of its tables first."""
        return (*(claim for table in self.tables for claim in table.claims()), *self.others)

    def numbers(self, experiment: str, variants: Iterable[str]) -> dict[str, dict[str, float | None]]:
        """The printed numbers of an experiment's variants, by metric: no readings, and none for other data."""
        found: dict[str, dict[str, float | None]] = {variant: {} for variant in variants}
        for claim in () if experiment in self.stands_in else self.claims:
            if claim.answer is not None and claim.answer.experiment == experiment and not claim.reading:
                found[claim.answer.variant][claim.answer.metric] = claim.printed
        for variant, other in self.experiments.get(experiment, {}).get("alike", {}).items():
            found[variant] = found[other]
        return found


def load(paper: str | Path) -> Paper:
    """What a paper prints, and the facts of its experiments.

    Args:
        paper: the name of a paper of ``gpzoo``, or the path of a TOML file of one's own.
    """
    path = paper if isinstance(paper, Path) else Path(__file__).parent / "papers" / f"{paper}.toml"
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    tables = [
        Table(
            **(
                table
                | {
                    "title": table.get("title", ""),
                    "answer": table.get("answer", ""),
                    "columns": [Column(**column) for column in table["columns"]],
                }
            )
        )
        for table in found.pop("tables", ())
    ]
    claims = []
    for claim in found.pop("claims", ()):
        known = {name: claim[name] for name in ("where", "what", "reading", "why") if name in claim}
        if "printed" in claim:
            known["printed"] = Printed(claim["printed"])
        if "answer" in claim:
            known["answer"] = Answer(*claim["answer"].split())
        claims.append(Claim(**known))
    telling = found.pop("telling", {"figures": (), "words": ""})
    experiments = found.get("experiments", {})
    stands_in = [name for name, each in experiments.items() if each.get("stands_in")]
    words = {name: found.pop(name, "") for name in ("title", "source", "about")}
    return Paper(
        path.stem,
        **words,
        tables=tables,
        others=claims,
        stands_in=stands_in,
        experiments=experiments,
        telling=(telling["figures"], telling["words"]),
    )
