"""Which executed pages use a public name? The reference links to them, and a test holds that there are any."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
FOLDERS = ("tutorials", "how_to", "explanations")


def cells(page: Path) -> list[str]:
    """The code of a page's cells, less what is IPython's and MyST-NB's own."""
    code = re.findall(r"^```\{code-cell\}[^\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    without_options = [re.sub(r"\A---\n.*?^---\n", "", cell, flags=re.DOTALL | re.MULTILINE) for cell in code]
    return [re.sub(r"^[%:].*$", "", cell, flags=re.MULTILINE) for cell in without_options]


def pages() -> list[Path]:
    """The pages that have code to run."""
    return [page for folder in FOLDERS for page in sorted((DOCS / folder).glob("*.md")) if cells(page)]


def title(page: Path) -> str:
    """A page's first heading."""
    return next(line[2:] for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("# "))


def seen_on(pages: list[Path]) -> list[str]:
    """A line of reStructuredText with links to at most six pages, tutorials first."""
    links = [f":doc:`{title(page)} </{page.relative_to(DOCS).with_suffix('').as_posix()}>`" for page in pages[:6]]
    return [f"Used on: {', '.join(links)}."] if links else []


def names_on(page: Path) -> set[str]:
    """Names and attributes in a page's code: ``kernels.RBF`` counts as ``RBF``, as do ``x.functions`` and imports."""
    return {name for cell in cells(page) for node in ast.walk(ast.parse(cell)) for name in _names(node)}


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.ImportFrom):
        yield from (alias.name for alias in node.names)


def used_on(wanted: set[str]) -> dict[str, list[Path]]:
    """The executed pages that use each of the names."""
    of_pages = {page: names_on(page) for page in pages()}
    return {name: [page for page, names in of_pages.items() if name in names] for name in sorted(wanted)}
