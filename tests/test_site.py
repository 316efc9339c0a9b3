"""The pages of the site, which ``make docs`` runs: their code parses, and what they import from gpzoo is there."""

import ast
import importlib
import inspect
import json
import os
import re
import sys
import time
import tomllib
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import pytest

from gpzoo import kernels, tables
from gpzoo.inference import load
from gpzoo.reproductions import datasets

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*/*.md"))
sys.path.append(str(ROOT / "docs" / "_ext"))
uses = importlib.import_module("uses")
cells = uses.cells


@pytest.mark.parametrize("page", [page for page in PAGES if cells(page)], ids=lambda page: page.stem)
def test_what_a_page_imports_is_there(page):
    nodes = [node for cell in cells(page) for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.ImportFrom)]
    ours = [ast.unparse(node) for node in nodes if node.module.startswith("gpzoo")]
    exec("\n".join(ours), {})


def test_every_page_is_listed():
    """Sphinx warns of the others, but tests do not build the site."""
    for page in PAGES:
        index = (page.parent / "index.md").read_text(encoding="utf-8")
        listed = re.findall(r"^(\w+)$", index, re.MULTILINE)
        assert page.stem == "index" or page.stem in listed, page
        if page.parent.name != "results" and page.stem != "index":
            card = f":link: {page.stem}\n"
            assert f"({page.name})" in index or card in index, f"{page} has no line and no card"


def test_every_finding_is_explained():
    page = (ROOT / "docs" / "how_to" / "findings.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"(?:^\| |\*\*)([a-z0-9 ]+)(?: \||\*\*)", page, re.MULTILINE))
    folder = Path(importlib.import_module("gpzoo.inference.diagnosis").__path__[0])
    names = tomllib.loads((folder / "words.toml").read_text(encoding="utf-8"))["findings"]
    assert len(names) >= 25 and not [name for name in names if name not in explained]
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in folder.glob("*.py")]
    said = {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert not [name for name in names if name not in said]


def test_pages_have_what_readers_look_for():
    """Every tutorial ends with an exercise and shows a picture; every picture in a page has an alternative text."""
    for page in (ROOT / "docs" / "tutorials").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert page.stem == "index" or "**Exercise.**" in text.split("\n\n")[-1], page
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for cell in re.findall(r"^```\{code-cell\}\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            if re.search(r"plt\.subplots|\.figure\b|plots\.blank", cell):
                assert re.search(r'^    alt: ".{20,}"$', cell, re.MULTILINE), (page, cell)
    for page in [*PAGES, *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]:
        for alternative, target in re.findall(r"!\[(.*?)\]\((.*?)\)", page.read_text(encoding="utf-8")):
            assert len(alternative) > 20 and (page.parent / target).exists(), (page, target)


#: Modules of public names, and names that no page has a use for: bases of the library's own classes, what functions
#: return, and errors that pages do not provoke. This list only grows shorter.
MODULES = (
    *("", ".kernels", ".likelihoods", ".inference", ".inference.plots", ".posteriors.forms", ".models", ".tables"),
    ".reproductions.datasets",
    ".adapters.sklearn",
)
UNUSED = set[str]()


@cache
def pages_by_name():
    """The executed pages that use each public name, by its full name."""
    modules = {f"gpzoo{name}": resolve_name(f"gpzoo{name}") for name in MODULES}
    names = {(at, name) for at, module in modules.items() for name in module.__all__}
    return uses.used_on({f"{at}.{name}" for at, name in names if not inspect.ismodule(getattr(modules[at], name))})


def test_every_public_name_is_used_on_a_page_that_runs():
    unused = {name for name, pages in pages_by_name().items() if not pages}
    assert unused == UNUSED, sorted(unused)


def test_the_reference_has_every_module_and_links_to_pages_that_are_there():
    texts = [page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md")]
    modules = [name for text in texts for name in re.findall(r"^```\{public\} gpzoo(.*)$", text, re.MULTILINE)]
    assert sorted(modules) == sorted(MODULES)
    for name, pages in pages_by_name().items():
        (line,) = uses.seen_on(pages)
        linked = re.findall(r":doc:`(.+?) </(\S+)>`", line)
        assert 1 <= len(linked) <= 6, name
        for text, target in linked:
            assert uses.title(ROOT / "docs" / f"{target}.md") == text
    assert uses.seen_on([]) == []


def test_only_what_comes_from_gpzoo_counts_as_its_names(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```{code-cell}\nimport json\nfrom flax import nnx\nfrom gpzoo import kernels, tables\n"
        "from gpzoo.reproductions import datasets\n"
        "kernels.RBF(), nnx.Linear(1, 1), posterior.moments(), tables.hold_out, datasets.load, json.load\n```\n"
    )
    found = {id(each) for each in uses.objects_on(page)}
    assert {id(kernels.RBF), id(tables.hold_out), id(datasets.load)} <= found
    assert not {id(kernels.Linear), id(tables.moments), id(load)} & found


def test_the_gallery_has_every_program_and_numbers_that_are_recorded():
    gallery = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("## The zoo")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    programs = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(programs) >= 19 and not [name for name in programs if f"gpzoo.models.{name}\n" not in gallery]
    for runs, metrics in re.findall(r"\{recorded\} (.*)\n:metrics: (.*)\n", gallery):
        found = [
            json.loads((ROOT / f"reproductions/results/{run}.json").read_text())["metrics"] for run in runs.split()
        ]
        assert all(any(metric in each for each in found) for metric in metrics.split()), runs


def test_a_page_without_its_data_shows_what_was_recorded_and_says_so(monkeypatch, capsys):
    page = ROOT / "docs" / "tutorials" / "deep.md"
    monkeypatch.chdir(page.parent)
    monkeypatch.setattr("gpzoo.reproductions.datasets.available", list)
    imports, with_data = cells(page)[0].split("rng =")[0], [cell for cell in cells(page) if "uci/power" in cell]
    names = {}
    exec(imports + "".join(with_data), names)
    said = capsys.readouterr().out
    assert re.match(r"RECORDED, not run here, .* commit [0-9a-f]{40}, gpzoo", said), said
    kept = json.loads((ROOT / "docs" / "_static" / "deep.json").read_text(encoding="utf-8"))
    assert names["found"] == kept["found"] and kept["page"] == "tutorials/deep.md"
    for each in kept["found"].values():
        assert len(each["cdf"]) == 957 and all(0 <= value <= 1 for value in each["cdf"])


def test_pages_load_data_that_not_everyone_has_only_where_they_are():
    everywhere = {"digits", "rectangles"}
    for page in PAGES:
        code = "\n".join(cells(page))
        own = set(re.findall(r'@datasets\.dataset\("([^"]+)"', code))
        if set(re.findall(r'datasets\.load\("([^"]+)"', code)) - everywhere - own:
            assert "entry.present" in code and "../_static/" in code, page


# -- in a browser: make browser, after make docs -----------------------------------------------------------------------

SITE = Path(os.environ.get("GPZOO_SITE", ROOT / "build" / "docs"))
in_browser = pytest.mark.skipif(
    "GPZOO_BROWSER" not in os.environ or not (SITE / "index.html").exists(),
    reason="needs Chromium and the built site; make docs, make browser",
)


@pytest.fixture
def browser():
    from tests.inference.diagnosis.browser import Browser

    browser = Browser()
    yield browser
    browser.close()


@in_browser
def test_pages_are_legible_at_any_width_light_and_dark(browser):
    shots = Path(os.environ["GPZOO_BROWSER"])
    shots.mkdir(parents=True, exist_ok=True)
    names = ["index", "tutorials/deep", "how_to/which_kernel", "how_to/pictures", "explanations/idea", "gallery"]
    for name in [*names, "how_to/simulated_data", "reference/kernels", "glossary"]:
        for width, dark in ((1400, False), (1400, True), (400, False), (400, True)):
            page, said, asked = browser.open(SITE / f"{name}.html", width, dark)
            assert not said and all(url.startswith("file:") for url in asked), (name, said, asked)
            assert page["width"] <= page["inner"] and not page["broken"], (name, width, page)
            shot = shots / f"{name.replace('/', '-')}-{width}-{'dark' if dark else 'light'}.png"
            browser.screenshot(shot, min(page["height"], 2500))


@in_browser
def test_no_code_is_cut_off(browser):
    """At 1,400 pixels, of any page."""
    cut = "[...document.querySelectorAll('.cell_input pre, .highlight-python pre')]"
    cut += ".filter(pre => pre.scrollWidth > pre.clientWidth + 1).map(pre => pre.textContent.slice(0, 60))"
    found = {}
    for path in sorted(SITE.rglob("*.html")):
        if "_static" not in path.parts and "_modules" not in path.parts:
            browser.open(path, 1400, False)
            lines = browser("Runtime.evaluate", expression=cut, returnByValue=True)["result"]["value"]
            if lines:
                found[path.name] = lines
    assert not found


@in_browser
def test_search_finds_without_a_network(browser):
    browser.open(SITE / "search.html", 1400, False)
    browser("Page.navigate", url=f"{(SITE / 'search.html').absolute().as_uri()}?q=lengthscale")
    ask = "document.querySelectorAll('ul.search li a').length"
    for _ in range(100):
        found = browser("Runtime.evaluate", expression=ask, returnByValue=True)["result"]["value"]
        if found >= 5:
            break
        time.sleep(0.1)
    assert found >= 5


def test_tutorials_are_notebooks_that_hold_their_data(tmp_path, monkeypatch):
    """Downloaded alone, a notebook has no folder of the site beside it; its links lead to pages that there are."""
    monkeypatch.setitem(sys.modules, "sphinx.application", type("Stub", (), {"Sphinx": None}))
    notebooks = importlib.import_module("notebooks")
    monkeypatch.chdir(tmp_path)
    for page in sorted((ROOT / "docs" / "tutorials").glob("*.md")):
        if page.stem == "index":
            continue
        made = notebooks.notebook(page)
        code = [cell["source"] for cell in made["cells"] if cell["cell_type"] == "code"]
        prose = "".join(cell["source"] for cell in made["cells"] if cell["cell_type"] == "markdown")
        assert "%pip install" in code[0] and len([c for c in code if "b64decode" not in c]) == len(cells(page)) + 1
        assert "code-cell" not in prose and not re.search(r"\]\([^)#]*\.md", prose)
        assert "_static" not in "".join(code)
        for name in re.findall(notebooks.SITE + r"/([\w/]+)\.html", prose) if notebooks.SITE else ():
            assert (ROOT / "docs" / f"{name}.md").exists(), name
        for source in code:
            ast.parse(re.sub(r"^%.*$", "", source, flags=re.MULTILINE))
            if "b64decode" in source:
                exec(source, {})
    for name in ("births.csv", "deep.json"):
        assert (tmp_path / name).read_bytes() == (ROOT / "docs" / "_static" / name).read_bytes()
