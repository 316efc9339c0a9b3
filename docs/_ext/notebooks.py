"""Every tutorial is a notebook too, which the site offers for download: nothing but ``pip`` is needed to run it."""

import base64
import gzip
import json
import re
import tomllib
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parents[1]
_URLS = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"].get("urls", {})
#: Where the site is, if anywhere yet.
SITE = _URLS.get("Documentation", "").rstrip("/")
_INSTALL = '%pip install -q "gpzoo[reproductions]" pandas'  # where gpzoo is installed: its extras


def notebook(page: Path) -> dict[str, Any]:
    """The notebook of a page: what it needs, its files included, then its text and its cells."""
    text = re.sub(r"\A---\n.*?^---\n", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    needed, files = [_INSTALL], sorted(set(re.findall(r'"\.\./_static/([\w.]+)"', text)))
    for name in files:
        held = base64.b64encode(gzip.compress((DOCS / "_static" / name).read_bytes(), mtime=0)).decode()
        needed.append(
            f'import base64, gzip, pathlib\nheld = "{held}"\n'
            f'pathlib.Path("{name}").write_bytes(gzip.decompress(base64.b64decode(held)))'
        )
    text = re.sub(r'"\.\./_static/([\w.]+)"', r'"\1"', text)
    if SITE:
        text = re.sub(r"\]\(([\w./]+)\.md", lambda link: f"]({_address(page, link[1])}.html", text)
    else:
        text = re.sub(r"\[([^\]]+)\]\([\w./]+\.md[^)]*\)", r"\1", text)
    cells = [_cell("code", source) for source in needed]
    for part in re.split(r"(^```\{code-cell\}\n.*?^```\n)", text, flags=re.DOTALL | re.MULTILINE):
        if part.startswith("```{code-cell}"):
            code = part.removeprefix("```{code-cell}\n").removesuffix("```\n")
            cells.append(_cell("code", re.sub(r"\A---\n.*?^---\n", "", code, flags=re.DOTALL | re.MULTILINE)))
        elif part.strip():
            cells.append(_cell("markdown", part))
    python = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": python}, "nbformat": 4, "nbformat_minor": 4}


def _address(page: Path, link: str) -> str:
    return f"{SITE}/{(page.parent / link).resolve().relative_to(DOCS).as_posix()}"


def _cell(kind: str, source: str) -> dict[str, Any]:
    code = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": source.strip(), **code}


def _offer(app: Sphinx, name: str, source: list[str]) -> None:
    if name.startswith("tutorials/") and not name.endswith("/index"):
        link = f'<a href="{name.removeprefix("tutorials/")}.ipynb" download>This page as a notebook</a>'
        source[0] = re.sub(r"^(# .*)$", rf"\1\n\n{link}", source[0], count=1, flags=re.MULTILINE)


def _write(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        for page in sorted((DOCS / "tutorials").glob("*.md")):
            if page.stem != "index":
                held = json.dumps(notebook(page), indent=1, ensure_ascii=False)
                (Path(app.outdir) / "tutorials" / f"{page.stem}.ipynb").write_text(held, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.connect("source-read", _offer)
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
