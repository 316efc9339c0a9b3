"""Examples in the docstrings of public names are run, and show what they print."""

import doctest
import importlib
import inspect

import jax
import numpyro
import pytest

MODULES = ("", ".kernels", ".likelihoods", ".inference", ".models", ".tables")
PUBLIC = {
    f"gpzoo{module}.{name}": value
    for module in MODULES
    for name in importlib.import_module(f"gpzoo{module}").__all__
    if not inspect.ismodule(value := getattr(importlib.import_module(f"gpzoo{module}"), name))
}
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


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_show_what_they_print(name, as_readers_have_it):
    report: list[str] = []
    doctest.DocTestRunner().run(EXAMPLES[name], out=report.append)
    assert not report, "".join(report)


def test_the_names_that_are_used_most_have_examples():
    assert len(EXAMPLES) >= 23
