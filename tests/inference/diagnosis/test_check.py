"""What is said of data before a training: nothing of good ones, and one thing of each that hurts."""

import re
from functools import partial

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from gpzoo import draws
from gpzoo.inference.diagnosis.check import check
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Expected, Gaussian
from gpzoo.models import (
    convolutional_gp,
    deep_gp,
    gp_classification,
    gp_regression,
    log_gaussian_cox,
    ordinal_gp,
)
from gpzoo.models.deep import linear_layers
from gpzoo.processes.process import GaussianProcess
from gpzoo.tables import ArrayTable, standardised
from tests.programs import program_of, regression

RNG = np.random.default_rng(0)
X = RNG.standard_normal((200, 3))
Y = np.sin(X[:, 0]) + 0.1 * RNG.standard_normal(200)


def exact(X, y=None):
    numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), X, jitter=0.1), obs=y)


def names(*given, **kwargs):
    return [finding.name for finding in check(*given, **kwargs)]


def with_entry(x, value):
    x = np.array(x)
    x.flat[5] = value
    return x


@pytest.mark.parametrize("of", [np.asarray, jnp.asarray])
def test_good_data_raise_nothing(of):
    assert names(gp_regression, of(X), of(Y)) == []


def test_other_programs_take_good_data_too():
    labels = RNG.integers(0, 3, 200)
    images = RNG.uniform(size=(20, 6, 6, 1))
    assert names(gp_classification, X, labels, model_kwargs={"num_classes": 3}) == []
    assert names(deep_gp, X, Y, model_kwargs={"layers": linear_layers(X, [2])}) == ["drawn"]
    assert names(partial(convolutional_gp, patch_shape=(3, 3)), images, RNG.integers(0, 2, 20)) == []
    assert names(exact, X, Y) == []
    assert names(gp_regression, RNG.uniform(size=(100, 2)), np.sin(RNG.uniform(size=100) * 6)) == []


student = program_of(lambda f: Expected(lambda f, scale: dist.StudentT(3.0, f, scale), f, 0.3))


def test_data_of_any_distribution_are_looked_at():
    """Their supports and classes depend on values that an abstract run leaves behind."""
    counts = RNG.poisson(3, 200)
    assert names(log_gaussian_cox, X, counts) == []
    assert names(ordinal_gp, X, np.minimum(counts, 4), model_kwargs={"num_classes": 5}) == []
    assert names(student, X, Y) == []
    assert names(log_gaussian_cox, X, 0 * counts) == ["constant targets"]


def test_a_gaussian_likelihood_is_told_of_far_targets_and_a_heavy_tail_is_not():
    far = np.where(np.arange(200) % 20, Y, 20.0)
    (found,) = check(regression, X, far)
    assert (found.name, found.site) == ("outliers", "y")
    assert "10 of 200 entries" in found.text and "Student-t" in found.text
    assert names(student, X, far) == []


BAD = {
    "unscaled inputs": (X * [1, 1e4, 1], Y, "column 1 is far from a spread of 1"),
    "constant columns": (X * [1, 0, 1] + [0, 2, 0], Y, "column 1 is the same at all rows"),
    "repeated rows": (np.repeat(X[:100], 2, axis=0), Y, "100 of 200 rows"),
    "unscaled targets": (X, 2000 + 7 * Y, "their mean is 2e\\+03 and"),
    "constant targets": (X, 0 * Y + 3, "all 200 targets are 3"),
    "outliers": (X, with_entry(Y, 1e7), "the first 1e\\+07 in row 5"),
    "refused": (X, with_entry(Y, np.nan), "nan"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_data_are_called_what_they_are(name):
    inputs, targets, text = BAD[name]
    (found,) = check(regression, inputs, targets)
    assert found.name == name
    assert found.site == (None if name == "refused" else "y" if "targets" in name or name == "outliers" else "X")
    assert re.search(text, found.text)


@pytest.mark.parametrize("share", [0.01, 0.45, 0.9])
def test_missing_targets_are_no_outliers_and_hide_none(share):
    """A column is judged by its observed entries, beside columns of other sizes, and if it has none."""
    masked = program_of(lambda f: Gaussian(f, 0.1, missing="mask"), num_outputs=3)
    both = np.stack([Y, 100 + Y, Y], axis=1)
    both[RNG.uniform(size=both.shape) < share] = np.nan
    (found,) = check(masked, X, both)
    assert found.name == "unscaled targets" and "column 1" in found.text
    assert names(masked, X, both - [0, 100, 0]) == names(masked, X, np.full_like(both, np.nan)) == []
    both[np.flatnonzero(~np.isnan(both[:, 2]))[0], 2] = 1e7
    (found,) = check(masked, X, both)
    assert found.name == "outliers" and "1e+07" in found.text
    assert names(masked, X, np.where(np.isnan(both), np.nan, [3.0, 4.0, 5.0])) == ["constant targets"]


def test_of_a_table_both_ends_and_the_middle_are_looked_at():
    by_column = X[np.argsort(X[:, 1])]
    by_column[:, 1] = np.repeat([-1.0, 1.0], 100)  # the same within a block
    assert names(gp_regression, ArrayTable(by_column, Y, block_size=40)) == []
    assert names(gp_regression, ArrayTable(1e4 * X, Y)) == names(gp_regression, 1e4 * X, Y) == ["unscaled inputs"]
    assert names(gp_regression, standardised(ArrayTable(1e4 * X, Y, block_size=40))) == []
    assert names(gp_regression, ArrayTable(X, with_entry(Y, np.nan))) == ["refused"]


def test_arrays_in_files_are_looked_at_as_others_are(tmp_path):
    def mapped(array, name):
        rows = np.memmap(tmp_path / name, array.dtype, "w+", shape=array.shape)
        rows[:] = array
        rows.flush()
        return np.memmap(tmp_path / name, array.dtype, "r", shape=array.shape)

    assert names(gp_regression, mapped(X, "good"), mapped(Y, "targets")) == []
    for name, (inputs, targets, _) in BAD.items():
        of_files = check(regression, mapped(inputs, f"{name} X"), mapped(targets, f"{name} y"))
        assert list(of_files) == list(check(regression, inputs, targets)) and of_files


def test_an_outlier_of_the_inputs_is_found_once():
    (found,) = check(regression, with_entry(X, -1e9), Y)
    assert (found.name, found.site) == ("outliers", "X")


def test_labels_that_are_no_classes_are_refused():
    (found,) = check(gp_classification, X, RNG.integers(1, 4, 200), model_kwargs={"num_classes": 3})
    assert found.name == "refused" and "0 to 2" in found.text
    (found,) = check(gp_classification, X, np.zeros(200, int))
    assert found.name == "constant targets"


def test_years_are_lost_in_float32():
    years = np.linspace(2000, 2001, 50, dtype=np.float32)[:, None]
    found = names(regression, years, np.sin(years[:, 0]))
    assert "lost in float32" in found


@pytest.mark.parametrize("images", [RNG.integers(0, 256, (20, 6, 6, 1)).astype(np.float32), np.zeros((20, 6, 6, 1))])
def test_images_that_are_not_scaled_are_found(images):
    images[0, 0, 0, 0], images[0, 0, 1, 0] = 0, 255 if images.any() else 1e-3
    program = partial(convolutional_gp, patch_shape=(3, 3))
    found = {finding.name: finding for finding in check(program, images, RNG.integers(0, 2, 20))}
    assert found["unscaled inputs"].site == "X"
    assert f"values from 0 to {images.max():.3g}" in found["unscaled inputs"].text


@pytest.mark.slow_but(lag=[12])
@pytest.mark.parametrize("lag, size", [(1, 5), (12, 40), (3, 31)])
def test_rows_that_depend_on_each_other_are_told_before_fit_refuses_them(lag, size):
    def program(lag, X, y=None):
        h = draws(numpyro.sample("h", GaussianProcess(RBF(1.0, 1.0), X)))
        h = jnp.concatenate([h[:lag], h[lag:] - h[:-lag]]) if lag else jnp.exp(h)
        numpyro.sample("y", Gaussian(h, 0.1), obs=y)

    X = np.linspace(-2, 2, size)[:, None]
    found = {each.name: each for each in check(partial(program, lag), X, X[:, 0])}
    assert found["rows together"].site == "h" and "joint={'h'}" in found["rows together"].text
    assert "rows together" not in {each.name for each in check(partial(program, 0), X, X[:, 0])}


def test_rows_repeat_only_if_they_do_in_all_inputs_together():
    def program(x, group, y=None):
        f = numpyro.sample("f", GaussianProcess(RBF(1.0, 1.0), jnp.hstack([x, group[:, None]])))
        numpyro.sample("y", Gaussian(f, 0.1), obs=y)

    x, group = RNG.standard_normal((60, 1)), np.repeat(np.arange(3.0), 20)
    assert "repeated rows" not in names(program, x, group, Y[:60])
    twice = np.tile(np.arange(30), 2)
    assert "repeated rows" in names(program, x[twice], group[twice], Y[:60])
    exposure = RNG.uniform(1.0, 2.0, 60)
    assert "repeated rows" in names(log_gaussian_cox, x[twice], np.ones(60), exposure)
    assert "repeated rows" not in names(log_gaussian_cox, x, np.ones(60), exposure)
