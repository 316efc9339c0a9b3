"""The pages of the site, which ``make docs`` runs: their code parses, and what they import from gpzoo is there."""

import ast
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*/*.md"))


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


def test_the_gallery_has_every_program_and_numbers_that_are_recorded():
    gallery = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("## The zoo")[1].split("\n\n[1]")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    programs = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(programs) >= 19 and not [name for name in programs if f"gpzoo.models.{name}\n" not in gallery]
    for runs, metrics in re.findall(r"\{recorded\} (.*)\n:metrics: (.*)\n", gallery):
        found = [
            json.loads((ROOT / f"reproductions/results/{run}.json").read_text())["metrics"] for run in runs.split()
        ]
        assert all(any(metric in each for each in found) for metric in metrics.split()), runs
