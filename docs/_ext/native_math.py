"""Formulae as MathML, which browsers show without a script."""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxTranslator


def _inline(self: SphinxTranslator, node: nodes.math) -> None:
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block(self: SphinxTranslator, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
