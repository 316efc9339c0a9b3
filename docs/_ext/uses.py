"""Which executed pages use a public name? The reference links to them, and a test holds that there are any."""

import ast
import importlib
import inspect
import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

DOCS = Path(__file__).resolve().parents[1]
#: In the order in which the reference lists pages: one that answers a question comes before a lesson.
FOLDERS = ("how_to", "tutorials", "explanations")


def cells(page: Path) -> list[str]:
    """The code of a page's cells, less what is IPython's and MyST-NB's own, and files in other languages."""
    code = re.findall(r"^```\{code-cell\}[^\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    without_options = [re.sub(r"\A---\n.*?^---\n", "", cell, flags=re.DOTALL | re.MULTILINE) for cell in code]
    in_python = ["" if re.match(r"%%writefile \S+(?<!\.py)\n", cell) else cell for cell in without_options]
    return [re.sub(r"^[%:].*$", "", cell, flags=re.MULTILINE) for cell in in_python]


def pages() -> list[Path]:
    """The pages that have code to run."""
    return [page for folder in FOLDERS for page in sorted((DOCS / folder).glob("*.md")) if cells(page)]


def title(page: Path) -> str:
    """A page's first heading."""
    return next(line[2:] for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("# "))


def seen_on(pages: list[Path]) -> list[str]:
    """A line of reStructuredText with links to at most six pages, how-to pages first."""
    links = [f":doc:`{title(page)} </{page.relative_to(DOCS).with_suffix('').as_posix()}>`" for page in pages[:6]]
    return [f"Used on: {', '.join(links)}."] if links else []


def objects_on(page: Path) -> list[Any]:
    """What a page's code imports from gpzoo, and takes as an attribute of modules that it imports from there.

    Words do not count: ``nnx.Linear`` is no kernel, and ``posterior.moments()`` no function of tables.
    """
    nodes = [node for cell in cells(page) for node in ast.walk(ast.parse(cell))]
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and str(node.module).startswith("gpzoo")]
    bound = {alias.asname or alias.name: _member(node.module, alias.name) for node in imports for alias in node.names}
    if any(isinstance(node, ast.Import) and any(alias.name == "gpzoo" for alias in node.names) for node in nodes):
        bound["gpzoo"] = importlib.import_module("gpzoo")

    def named(node: ast.AST) -> Any:
        if isinstance(node, ast.Name):
            return bound.get(node.id)
        of = named(node.value) if isinstance(node, ast.Attribute) else None
        return getattr(of, node.attr, None) if inspect.ismodule(of) else None

    return [*bound.values(), *(named(node) for node in nodes if isinstance(node, ast.Attribute))]


def _member(module: str | None, name: str) -> Any:
    """What ``from module import name`` gives: not the submodule, where a function has its name."""
    return getattr(resolve_name(str(module)), name, None) or resolve_name(f"{module}.{name}")


def used_on(wanted: set[str]) -> dict[str, list[Path]]:
    """The executed pages that use each of the names, such as ``gpzoo.kernels.RBF``."""
    of_pages = {page: {id(found) for found in objects_on(page)} for page in pages()}
    values = {name: _member(*name.rsplit(".", 1)) for name in sorted(wanted)}
    return {name: [page for page, found in of_pages.items() if id(value) in found] for name, value in values.items()}
