"""Tables of benchmarks: what slipped between two of them, and slopes of curves."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="a checkout alone has the benchmarks")


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", ["benchmark"])
    return import_module("compare"), import_module("exponents")


def row(seconds=1.0, **ratios):
    return {"seconds": {"gpzoo": seconds}, "beside": {peer: {"seconds": ratio} for peer, ratio in ratios.items()}}


def test_a_row_that_slips_and_one_that_is_missing_are_told(scripts):
    compare, _ = scripts
    old = {"sparse": row(gpflow=2.0, gpjax=3.0), "alone": row(1.0), "gone": row(gpflow=1.0)}
    new = {"sparse": row(9.0, gpflow=1.8, gpjax=3.3), "alone": row(1.25)}
    found = {change.row: change.gain for change in compare.changes(old, new)}
    expected = {"alone, seconds alone": -0.2, "sparse, GPflow": -0.1, "sparse, GPJax": 0.1}
    assert list(found) == list(expected)
    np.testing.assert_allclose(list(found.values()), list(expected.values()))
    wanted = {"sparse": {"peers": ["gpflow", "gpytorch"]}, "never": {"peers": []}}
    assert compare.missing(new, wanted) == ["sparse, beside GPyTorch", "never"]


@pytest.mark.parametrize(("slope", "growth", "ratio"), [(1.0, 2.0, 10), (3.0, 1.0, 2), (2.0, 2.0, 1.5)])
def test_the_slope_of_a_curve_is_fitted(scripts, slope, growth, ratio):
    _, exponents = scripts
    sizes = 40 * float(ratio) ** np.arange(4)
    points = [{"size": n, "seconds": n**slope, "megabytes": 300 + 5 * n**growth} for n in sizes]
    found = exponents.exponents(points, growth)
    np.testing.assert_allclose([found["seconds"], found["megabytes"]], [slope, growth], rtol=1e-9)
    flat = [point | {"megabytes": 300.0} for point in points]
    assert exponents.exponents(flat, growth)["megabytes"] is None
