"""How is a report written? As one HTML file that needs no network and no script, whatever the words in it are."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import count
from xml.etree.ElementTree import Element, tostring

from gpzoo.errors import plain
from gpzoo.inference.diagnosis.findings import Finding, Section, shown

#: Characters of a table's entry that are not broken into lines.
_FEW = 28


@dataclass(frozen=True)
class Picture:
    """A picture with its numbers.

    Attributes:
        title: heading of the picture.
        words: what it shows, a sentence.
        data: address of the picture, ``data:...``.
        alt: what someone reads who does not see it.
        tables: the numbers in it.
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


#: What a part consists of; a text is a paragraph.
Block = str | Section | Picture | Code | Folded | tuple[Finding, ...]


@dataclass(frozen=True)
class Part:
    """A part of a report under a heading of its own."""

    title: str
    blocks: Sequence[Block]


def page(title: str, subtitle: str, parts: Iterable[Part]) -> str:
    """A report as HTML, with a list of its parts; texts may hold any characters, which are shown and never obeyed.

    Args:
        title: of the report.
        subtitle: a line below the title.
        parts: its parts, in order.
    """
    parts = [part for part in parts if part.blocks]
    numbers = (f"table-{i}" for i in count(1))
    sections = [
        _tag("section", _tag("h2", part.title, id=f"part-{i}-title"), *_blocks(part.blocks, numbers), id=f"part-{i}",
             aria_labelledby=f"part-{i}-title")
        for i, part in enumerate(parts, 1)
    ]  # fmt: skip
    links = [_tag("li", _tag("a", part.title, href=f"#part-{i}")) for i, part in enumerate(parts, 1)]
    body = [
        _tag("a", "Skip to the report", class_="skip", href="#report"),
        _tag("header", _tag("h1", title), _tag("p", subtitle, class_="subtitle")),
        _tag("nav", _tag("ul", *links), aria_label="Parts of this report"),
        _tag("main", *sections, id="report"),
    ]
    template = string.Template(files(__package__).joinpath("report.html").read_text(encoding="utf-8"))
    return template.substitute(title=escape(_printable(title)), body="\n".join(map(_written, body)))


def _blocks(blocks: Sequence[Block], numbers: Iterator[str]) -> Iterator[Element]:
    """Elements of a part; pictures that follow each other stand side by side."""
    beside: list[Element] = []
    for block in blocks:
        if isinstance(block, Picture):
            beside.append(_figure(block, numbers))
            continue
        if beside:
            yield _tag("div", *beside, class_="pictures")
            beside = []
        if isinstance(block, str):
            yield _tag("p", block)
        elif isinstance(block, Code):
            yield _tag("pre", _tag("code", block.text), tabindex="0", role="region", aria_label="code")
        elif isinstance(block, Section):
            yield from _table(block, numbers)
        elif isinstance(block, Folded):
            yield _folded(block, numbers)
        else:
            yield _tag("ul", *map(_finding, block), class_="findings")
    if beside:
        yield _tag("div", *beside, class_="pictures")


def _finding(finding: Finding) -> Element:
    about = f" ({finding.site})" if finding.site else ""
    text = finding.text[:1].upper() + finding.text[1:]
    return _tag("li", _tag("strong", finding.name[:1].upper() + finding.name[1:] + about), ". " + text)


def _figure(picture: Picture, numbers: Iterator[str]) -> Element:
    words = [_tag("h3", picture.title), _tag("p", picture.words)]
    image = _tag("img", src=picture.data, alt=picture.alt)
    return _tag(
        "figure",
        _tag("figcaption", *words),
        image,
        *([_folded(Folded(f"Numbers of: {picture.title}", picture.tables), numbers)] if picture.tables else []),
    )


def _folded(block: Folded, numbers: Iterator[str]) -> Element:
    tables = (element for table in block.tables for element in _table(table, numbers))
    return _tag("details", _tag("summary", block.summary), *tables)


def _table(section: Section, numbers: Iterator[str]) -> Iterator[Element]:
    """A table that scrolls by itself where it is wider than the page, by touch and by keyboard."""
    number = next(numbers)
    right = [
        all(not isinstance(row[i], str) for row in section.rows) and any(row[i] is not None for row in section.rows)
        for i in range(len(section.columns))
    ]
    named = [{"class_": "number"} if each else {} for each in right]
    head = [_tag("th", name, scope="col", **own) for name, own in zip(section.columns, named, strict=True)]
    rows = []
    for row in section.rows:
        first, *rest = map(shown, row)
        cells = [_tag("td", text, **(own or _width(text))) for text, own in zip(rest, named[1:], strict=True)]
        rows.append(_tag("tr", _tag("th", first, scope="row", **named[0]), *cells))
    table = _tag(
        "table",
        _tag("caption", section.title, id=number),
        _tag("thead", _tag("tr", *head)),
        _tag("tbody", *rows),
    )
    yield _tag("div", table, class_="scroll", tabindex="0", role="region", aria_labelledby=number)
    if section.note:
        yield _tag("p", section.note, class_="note")


def _width(text: str) -> dict[str, str]:
    """Few words stay on one line, in which a table of many columns would break them."""
    return {"class_": "few"} if len(text) <= _FEW else {}


def _tag(name: str, *children: str | Element, **attributes: str) -> Element:
    """An element; ``class_`` is the attribute ``class``, and other underscores are hyphens."""
    # The address of a picture is made of letters and digits, hundreds of thousands of them.
    named = {
        key.rstrip("_").replace("_", "-"): value if key == "src" else _printable(value)
        for key, value in attributes.items()
    }
    element = Element(name, named)
    last = None
    for child in children:
        if isinstance(child, Element):
            element.append(child)
            last = child
        elif last is None:
            element.text = (element.text or "") + _printable(child)
        else:
            last.tail = (last.tail or "") + _printable(child)
    return element


def _printable(text: str) -> str:
    """Text without characters that control how it is shown, such as those that reverse its direction."""
    return "\n".join(map(plain, text.split("\n")))


def _written(element: Element) -> str:
    # Elements that are empty, such as a cell without text, still need their end.
    return tostring(element, encoding="unicode", method="html")
