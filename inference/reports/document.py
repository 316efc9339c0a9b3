"""Report documents: one HTML file that needs no network and no script, and is safe for any text in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import count, groupby
from typing import Any

from gpzoo._extras import needs
from gpzoo.errors import plain
from gpzoo.inference.diagnosis.findings import Finding, Section, shown


@dataclass(frozen=True)
class Picture:
    """A picture with its numbers.

    Attributes:
        title: heading of the picture.
        words: a sentence that describes the content.
        data: address of the picture, ``data:...``.
        alt: text for readers who cannot see the picture.
        tables: the numbers in the picture.
    """

    title: str
    words: str
    data: str
    alt: str
    tables: tuple[Section, ...] = ()


@dataclass(frozen=True)
class Code:
    """Lines of a program or of a command line."""

    text: str


@dataclass(frozen=True)
class Folded:
    """Tables that are shown on demand."""

    summary: str
    tables: tuple[Section, ...]


#: Contents of a part. A text is a paragraph.
Block = str | Section | Picture | Code | Folded | tuple[Finding, ...]


@dataclass(frozen=True)
class Part:
    """A part of a report under its own heading."""

    title: str
    blocks: Sequence[Block]


def page(title: str, subtitle: str, parts: Iterable[Part]) -> str:
    """A report as HTML, with a list of its parts. Texts may contain any characters; they are shown and never executed.

    Args:
        title: title of the report.
        subtitle: a line below the title.
        parts: parts of the report, in order.

    Raises:
        MissingExtraError: without jinja2.
    """
    with needs("plots", "A report"):
        from jinja2 import Environment, StrictUndefined

    options = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True, "undefined": StrictUndefined}
    environment = Environment(finalize=_printable, **options)
    environment.filters["shown"] = shown
    environment.globals |= {"numbers": count(1), "next": next}
    shown_parts = [(part.title, _in_groups(part.blocks)) for part in parts if part.blocks]
    text = files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    return environment.from_string(text).render(title=title, subtitle=subtitle, parts=shown_parts)


def _in_groups(blocks: Sequence[Block]) -> list[tuple[str, list[Block]]]:
    """Neighbouring blocks of one kind as a group, with their kind. Pictures in a group are shown side by side."""
    return [(kind, list(group)) for kind, group in groupby(blocks, lambda block: type(block).__name__)]


def _printable(value: Any) -> Any:
    """Text without characters that control its display, such as characters that reverse its direction."""
    safe = not isinstance(value, str) or hasattr(value, "__html__")
    return value if safe else "\n".join(map(plain, value.split("\n")))
