"""The form of pages: tables, parts that a reader opens, and empty lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


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


def together(parts: Sequence[str]) -> str:
    """``a``, ``a and b``, or ``a, b and c``."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
