"""Examples in the docstrings of public names are run, and show what they print."""

import ast
import doctest
import importlib
import inspect
import itertools
import re

import jax
import numpyro
import pytest

from tests.conftest import ROOT

MODULES = ("", ".kernels", ".likelihoods", ".inference", ".inference.plots", ".models", ".tables", ".adapters.sklearn")
PUBLIC = {
    f"gpzoo{module}.{name}": value
    for module in MODULES
    for name in importlib.import_module(f"gpzoo{module}").__all__
    if not inspect.ismodule(value := getattr(importlib.import_module(f"gpzoo{module}"), name))
}

#: Names and modules whose examples are quick tests.
QUICK = ("gpzoo.kernels.RBF", "gpzoo.kernels.SHO", "gpzoo.kernels.Convolutional", "gpzoo.tables.")

#: Public names without an example, and why. This list only grows shorter.
WITHOUT = dict[str, str]()

EXAMPLES = {
    name: test
    for name, value in PUBLIC.items()
    if (test := doctest.DocTestParser().get_doctest(inspect.getdoc(value) or "", {}, name, None, 0)).examples
}


@pytest.fixture
def as_readers_have_it():
    """No float64, and the usual promotion."""
    numpyro.enable_x64(False)
    with jax.numpy_dtype_promotion("standard"):
        yield
    numpyro.enable_x64()


@pytest.mark.slow_but(name=[name for name in EXAMPLES if name.startswith(QUICK)])
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_show_what_they_print(name, as_readers_have_it):
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(EXAMPLES[name], out=report.append)
    assert not report, "".join(report)


def test_every_public_name_has_an_example():
    assert set(PUBLIC) - set(EXAMPLES) == set(WITHOUT)


def test_examples_are_whole():
    """Each is about its name, takes from places that readers have, and is short."""
    for name, test in EXAMPLES.items():
        source = "".join(example.source + example.want for example in test.examples)
        assert "tests" not in source and "gpzoo._" not in source, name
        assert name.rsplit(".", 1)[1] in source, f"{name} is not in its own example"
        assert len(test.examples) <= 14, name


def test_tables_keep_their_columns():
    """A word in the margin between columns ends the build of the site, which no other test runs."""
    for name, value in PUBLIC.items():
        lines = (inspect.getdoc(value) or "").splitlines()
        rulings = [i for i, line in enumerate(lines) if re.fullmatch(r"=+( +=+)+", line.strip())]
        for start, end in itertools.pairwise(rulings):
            ruling = lines[start]
            margins = [i for i, sign in enumerate(ruling) if sign == " " and ruling[:i].strip()]
            words = [line for line in lines[start:end] if any(line[i : i + 1].strip() for i in margins)]
            assert not words, f"{name}: {words}"


QUESTIONS = {"How", "What", "Which", "Where", "When", "Who", "Why", "Is", "Are", "Do", "Does", "Should", "Have"}


def test_a_module_is_said_to_be_something():
    """A docstring of a module begins with a noun: a reader looks for things, and has no questions yet."""
    for folder in ("gpzoo", "inference", "models", "reproductions"):
        for path in (ROOT / folder).rglob("*.py"):
            said = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]
            assert "?" not in said and said.split(" ")[0] not in QUESTIONS, path
