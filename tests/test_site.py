"""The pages of the site, which ``make docs`` runs: their code parses, and what they import from gpzoo is there."""

import ast
import re
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[1] / "docs").glob("*/*.md"))


def cells(page):
    code = re.findall(r"^```\{code-cell\}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [re.sub(r"^[%:].*$", "", cell, flags=re.MULTILINE) for cell in code]


@pytest.mark.parametrize("page", [page for page in PAGES if cells(page)], ids=lambda page: page.stem)
def test_what_a_page_imports_is_there(page):
    nodes = [node for cell in cells(page) for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.ImportFrom)]
    ours = [ast.unparse(node) for node in nodes if node.module.startswith("gpzoo")]
    assert ours
    exec("\n".join(ours), {})


def test_every_page_is_listed():
    """Sphinx warns of the others, but tests do not build the site."""
    for page in PAGES:
        listed = re.findall(r"^(\w+)$", (page.parent / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
        assert page.stem == "index" or page.stem in listed, page
