"""The gallery's directives: ``zoo-program``, the code of a program, and ``recorded``, the numbers of result files."""

import ast
import importlib
import inspect
import json
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from gpzoo.reproductions.pages import worded

RESULTS = Path(__file__).resolve().parents[2] / "reproductions" / "results"
PAGES = Path(__file__).resolve().parents[1] / "results"


def without_docstring(function: object) -> str:
    """The source of a function as it stands, less its docstring."""
    source = inspect.getsource(function)
    lines = source.splitlines()
    first = ast.parse(source).body[0].body[0]
    return "\n".join(lines[: first.lineno - 1] + lines[first.end_lineno :])


class Program(SphinxDirective):
    """``{zoo-program} gpzoo.models.gplvm``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """A block of code."""
        module, name = self.arguments[0].rsplit(".", 1)
        code = without_docstring(getattr(importlib.import_module(module), name))
        return [nodes.literal_block(code, code, language="python")]


class Recorded(SphinxDirective):
    """``{recorded} convolutional/mnist-weighted-cpu ...``: a row for each metric that the paper or the page names."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec = {"metrics": str}  # noqa: RUF012  docutils' own way

    def run(self) -> list[nodes.Node]:
        """A table, whose numbers come from the files."""
        wanted = self.options.get("metrics", "").split()
        lines = ["| run | " + " | ".join(map(worded, wanted)) + " |", "|---" * (len(wanted) + 1) + "|"]
        for name in self.arguments[0].split():
            path = RESULTS / f"{name}.json"
            self.env.note_dependency(str(path))
            result = json.loads(path.read_text(encoding="utf-8"))
            # Small runs are checks of the program, and are not set against the paper.
            papers = {} if result["preset"] == "quick" else result["paper_metrics"]
            cells = [shown(metric, result["metrics"].get(metric), papers.get(metric)) for metric in wanted]
            page = result["paper"] if (PAGES / f"{result['paper']}.md").exists() else "more"
            command = result["command"].replace(" --seed 0", "")
            lines.append(f"| [`{command}`](results/{page}.md) | " + " | ".join(cells) + " |")
        node = nodes.section()
        node.document = self.state.document
        self.state.nested_parse(StringList(lines, source=self.arguments[0]), self.content_offset, node)
        return node.children


def shown(metric: str, ours: float | None, paper: float | None) -> str:
    """Our number, and the paper's in brackets where it has one; errors in per cent."""
    scale = 100 if metric == "error" else 1
    text = "-" if ours is None else f"{scale * ours:.4g}"
    return text if paper is None else f"{text} (paper {scale * paper:.4g})"


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.add_directive("zoo-program", Program)
    app.add_directive("recorded", Recorded)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
