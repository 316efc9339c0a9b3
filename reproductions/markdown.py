"""The form of pages: tables, parts that a reader opens, and empty lines."""

from __future__ import annotations

from collections.abc import Iterable


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
