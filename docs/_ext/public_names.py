"""The directive ``public``: every name in a module's ``__all__``, with its docstring and the pages that use it."""

import importlib
import inspect

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from uses import seen_on, used_on

import gpzoo


class Public(SphinxDirective):
    """``{public} gpzoo.kernels`` documents what the module exports and ``gpzoo`` does not, modules left out."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The entries, in the order of ``__all__``."""
        module = importlib.import_module(self.arguments[0])
        uses = used_on(set(module.__all__))
        lines = ["```{eval-rst}"]
        for name in module.__all__:
            value = getattr(module, name)
            elsewhere = self.arguments[0] != "gpzoo" and getattr(gpzoo, name, None) is value
            if inspect.ismodule(value) or elsewhere:
                continue
            kind = "class" if inspect.isclass(value) else "function" if callable(value) else "data"
            lines += [f".. auto{kind}:: {self.arguments[0]}.{name}"]
            lines += ["   :members:", "   :show-inheritance:"] if kind == "class" else []
            lines += ["", *seen_on(uses[name]), ""]
        lines += ["```"]
        node = nodes.section()
        node.document = self.state.document
        self.state.nested_parse(StringList(lines, source=self.arguments[0]), self.content_offset, node)
        return node.children


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.add_directive("public", Public)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
