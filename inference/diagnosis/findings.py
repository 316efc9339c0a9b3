"""Results of a diagnosis: findings in words, tables of numbers, and the arrays for pictures."""

from __future__ import annotations

import io
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from gpzoo._extras import needs

#: Columns of a printed diagnosis.
_WIDTH = 80


@dataclass(frozen=True)
class Finding:
    """A problem that ``check`` or ``diagnose`` found, with advice.

    Example:
        >>> import numpy as np
        >>> from gpzoo.inference import check
        >>> from gpzoo.models import gp_regression
        >>> X = np.ones((20, 1), np.float32)
        >>> finding = check(gp_regression, X, np.arange(20, dtype=np.float32))[0]
        >>> type(finding).__name__, finding.name, finding.site
        ('Finding', 'constant columns', 'X')
        >>> print(finding.text)
        column 0 is the same at all rows. Such columns say nothing, and no lengthscale fits them: leave them out.

    Attributes:
        name: name of this kind of finding, the same for every program.
        site: the site that the finding is about, or ``None``.
        text: sentences; the last one gives advice.
    """

    name: str
    site: str | None
    text: str


class Findings(tuple[Finding, ...]):
    """A tuple of findings, which prints as a list."""

    __slots__ = ()

    def __repr__(self) -> str:
        lines = ["Findings" if self else "Findings: none"]
        for finding in self:
            about = f" ({finding.site})" if finding.site else ""
            lines.append(f"- {finding.name}{about}: {finding.text}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Section:
    """A table.

    Attributes:
        title: title of the table.
        columns: headings of the columns.
        rows: rows of the table; entries are strings, numbers, or ``None`` for no entry.
        note: how to read the table.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""

    def by_column(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Headings with the entries below them."""
        for i, heading in enumerate(self.columns):
            yield heading, tuple(row[i] for row in self.rows)


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """The result of :func:`~gpzoo.inference.diagnosis.diagnose.diagnose`; it prints as tables of 80 columns.

    Example:
        >>> from gpzoo.inference import Diagnosis, Finding
        >>> print(Diagnosis((Finding("few rows", "X", "There are only 3 rows. Add some."),)))
        Findings
        - few rows (X): There are only 3 rows. Add some.

    Attributes:
        findings: problems, with advice.
        sections: tables of the measured numbers.
        arrays: numbers per row of the data, by name: ``<site>_pit`` for ordered outcomes, ``<site>_probs`` and
            ``<site>_labels`` for classes, and further arrays that the notes of the sections explain.
    """

    findings: tuple[Finding, ...] = ()
    sections: tuple[Section, ...] = ()
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def joined(cls, parts: Iterable[Diagnosis]) -> Diagnosis:
        """One diagnosis from several; tables with the same title become one table."""
        findings: tuple[Finding, ...] = ()
        sections: dict[str, Section] = {}
        arrays: dict[str, np.ndarray] = {}
        for part in parts:
            findings += part.findings
            arrays |= part.arrays
            for new in part.sections:
                old = sections.get(new.title)
                rows = new.rows if old is None else old.rows + new.rows
                sections[new.title] = Section(new.title, new.columns, rows, new.note)
        return cls(findings, tuple(sections.values()), arrays)

    def __str__(self) -> str:
        with needs(None, "Printing a diagnosis"):
            from rich.console import Console
            from rich.table import Table

        out = io.StringIO()
        console = Console(file=out, width=_WIDTH, highlight=False, markup=False)
        console.print(repr(Findings(self.findings)))
        for section in self.sections:
            table = Table()
            for heading, entries in section.by_column():
                table.add_column(heading, justify="left" if _has_words(entries) else "right", overflow="fold")
            for row in section.rows:
                table.add_row(*map(shown, row))
            console.print(f"\n{section.title}")
            console.print(table)
            if section.note:
                console.print(section.note)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

    __repr__ = __str__

    def to_xarray(self) -> Any:
        """The diagnosis as ``xarray.Dataset``, which netCDF can store.

        Arrays keep their names. A column of a table becomes the variable ``<title>: <column>``; its dimension has the
        title of the table. The texts of findings become the variable ``findings``, indexed by the names of findings.
        """
        with needs(None, "A diagnosis as a dataset"):
            import xarray

        variables: dict[str, Any] = {}
        for name, values in self.arrays.items():
            variables[name] = ([f"{name}_dim_{i}" for i in range(values.ndim)], values)
        for section in self.sections:
            for heading, entries in section.by_column():
                variables[f"{section.title}: {heading}"] = ([section.title], _array(entries))
        fields = [(finding.name, finding.site or "", finding.text) for finding in self.findings]
        names, sites, texts = np.array(fields, dtype=str).reshape(-1, 3).T
        variables["findings"] = (["finding"], texts)
        return xarray.Dataset(variables, coords={"finding": names, "site": (["finding"], sites)})


@cache
def _words() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("words.toml").read_text(encoding="utf-8"))


def finding(name: str, site: str | None, which: str | None = None, /, **words: Any) -> Finding:
    """A finding with its text from ``words.toml``.

    Args:
        name: name of this kind of finding.
        site: the site that the finding is about.
        which: key of the text, if there are several.
        **words: numbers and words in the text, by name.
    """
    text = _words()["findings"][name]
    return Finding(name, site, (text if which is None else text[which]).format(**words))


def table(
    title: str, rows: Sequence[tuple[Any, ...]], which: str | None = None, /, **words: Any
) -> tuple[Section, ...]:
    """A table with its columns and its note from ``words.toml``; no table if there are no rows.

    Args:
        title: title of the table.
        rows: rows of the table.
        which: key of the note, if there are several.
        **words: numbers and words in the note, by name.
    """
    own = _words()["tables"][title]
    note = own["note"] if which is None else own["note"][which]
    return (Section(title, tuple(own["columns"]), tuple(rows), note.format(**words)),) if rows else ()


def unavailable(title: str, reason: str) -> Diagnosis:
    """A table that says why a diagnostic is not available."""
    return Diagnosis(sections=(Section(title, ("k-hat",), (("not available",),), f"Not available: {reason}."),))


def shown(entry: Any) -> str:
    """An entry of a table as text: four digits of a number, a dash for no entry."""
    if entry is None:
        return "-"
    if isinstance(entry, str | bool | int | np.integer):
        return str(entry)
    return f"{entry:.4g}"


def _has_words(entries: tuple[Any, ...]) -> bool:
    return any(isinstance(entry, str) for entry in entries)


def _array(entries: tuple[Any, ...]) -> np.ndarray:
    if _has_words(entries):
        return np.array(["" if entry is None else str(entry) for entry in entries], dtype=str)
    return np.array([np.nan if entry is None else float(entry) for entry in entries])
