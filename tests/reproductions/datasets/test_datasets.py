"""Data sets in memory: those that are generated, and the changes of a data set before training."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import threadpoolctl

from gpzoo.reproductions import datasets
from gpzoo.reproductions.datasets.in_memory import Dataset

# Generated data sets, and the digits


def test_rectangles_are_the_same_on_every_machine():
    data = datasets.load("rectangles")
    # Of names, types, shapes and values.
    assert data.sha256 == {"rectangles": "8f7c03b5afe7933e6a105a56deaeed3f5a3535cc03b0f12cb97948ba7837c4ee"}
    assert data.source == "generated" and datasets.load("rectangles", seed=1).sha256 != data.sha256


#: Of each stand-in: the shape of a row, the type of the targets, and between which score and 0.99 it can be learnt.
STAND_INS = {
    "rectangles-images": ((28, 28, 1), np.int32, 0.7),
    "year": ((90,), np.float32, 0.32),
    "airline": ((8,), np.float32, 0.43),
    "airline-delayed": ((8,), np.int32, None),
    "taxi": ((9,), np.float32, 0.84),
    "higgs": ((28,), np.int32, 0.65),
    "susy": ((18,), np.int32, 0.6),
    "svhn": ((32, 32, 3), np.int32, None),
    "imagenet20": ((64, 64, 3), np.int32, None),
}


@pytest.mark.parametrize("name", STAND_INS)
def test_stand_ins_have_the_schema_and_follow_their_seed(name):
    one, same, other = (datasets.load(f"{name}-generated", rows=50, seed=seed) for seed in (3, 3, 4))
    shape, kind, _ = STAND_INS[name]
    assert one.X_train.shape == (45, *shape) and one.X_test.shape == (5, *shape)
    assert one.X_train.dtype == np.float32 and one.y_train.dtype == one.y_test.dtype == kind
    assert one.name == f"{name}-generated" and one.source == "generated" and list(one.sha256) == [one.name]
    assert one.sha256 == same.sha256 != other.sha256
    with pytest.raises(ValueError, match=r"rows must be at least 20.*got 19"):
        datasets.load(f"{name}-generated", rows=19)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, (*_, score) in STAND_INS.items() if score])
def test_stand_ins_can_be_learnt(name):
    """By the share of the variance that is explained, or of the classes that are right."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.svm import SVC

    _, kind, score = STAND_INS[name]
    data = datasets.load(f"{name}-generated", rows=5000 if kind == np.float32 else 2500).standardised()
    model = HistGradientBoostingRegressor(max_iter=50, random_state=0) if kind == np.float32 else SVC()
    X, X_test = (part.reshape(len(part), -1) for part in (data.X_train, data.X_test))
    with threadpoolctl.threadpool_limits(1):  # threads that wait for a core would take longer than the trees
        assert score < model.fit(X, data.y_train).score(X_test, data.y_test) < 0.99


# Changes of a data set


def regression(X=None, y=None) -> Dataset:
    rng = np.random.RandomState(0)
    X = rng.standard_normal((20, 3)) * [1.0, 10.0, 0.1] + [5.0, 0.0, 1.0] if X is None else X
    y = 3.0 + 2.0 * rng.standard_normal(20) if y is None else y
    return Dataset("toy", X[:15], y[:15], X[15:], y[15:], "generated", {})


def test_standardising_uses_the_training_set_and_can_be_undone():
    raw = regression()
    data = raw.standardised()
    for part in ("X_train", "X_test"):
        expected = (getattr(raw, part) - raw.X_train.mean(axis=0)) / raw.X_train.std(axis=0)
        np.testing.assert_allclose(getattr(data, part), expected)
    np.testing.assert_allclose(data.y_mean + data.y_std * data.y_test, raw.y_test)
    np.testing.assert_allclose(data.y_std, raw.y_train.std())
    twice = replace(data, y_train=2.0 * data.y_train + 1.0, y_test=2.0 * data.y_test + 1.0).standardised()
    expected = data.y_mean + data.y_std * (2.0 * data.y_test + 1.0)
    np.testing.assert_allclose(twice.y_mean + twice.y_std * twice.y_test, expected)


def test_standardising_leaves_classes_alone_and_makes_no_float64_copy_of_everything():
    X = np.random.RandomState(0).standard_normal((500_000, 10)).astype(np.float32)
    y = np.arange(len(X), dtype=np.int32) % 3
    data = Dataset("toy", X, y, X[:10], y[:10], "generated", {})
    tracemalloc.start()
    try:
        found = data.standardised()
        assert tracemalloc.get_traced_memory()[1] < 2 * X.nbytes and found.X_train.dtype == np.float32
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose(found.X_train.std(axis=0, dtype=np.float64), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(found.y_train, y)
    assert (found.y_mean, found.y_std) == (0.0, 1.0)


def test_subsets_are_nested_and_keep_the_order():
    raw = regression(X=np.arange(60.0).reshape(20, 3))
    small, large = raw.subset(4, 2), raw.subset(9)
    assert small.sizes["train"] == 4 and small.sizes["test"] == 2 and large.sizes["test"] == 5
    assert set(small.X_train[:, 0]) < set(large.X_train[:, 0]) < set(raw.X_train[:, 0])
    assert np.all(np.diff(large.X_train[:, 0]) > 0)
    np.testing.assert_array_equal(small.y_train, raw.y_train[small.X_train[:, 0].astype(int) // 3])
    assert np.any(raw.subset(9, seed=1).X_train != large.X_train)


def test_classes_are_picked_and_relabelled_in_the_order_given():
    raw = datasets.load("digits")
    data = raw.classes(7, 2)
    assert set(data.y_train) == set(data.y_test) == {0, 1} and data.sizes["classes"] == 2
    assert data.y_train.dtype == raw.y_train.dtype
    np.testing.assert_array_equal(data.X_train[data.y_train == 0], raw.X_train[raw.y_train == 7])
    np.testing.assert_array_equal(data.X_test[data.y_test == 1], raw.X_test[raw.y_test == 2])


SENSELESS = [
    (lambda: regression().subset(num_train=16), "num_train .* 15 .* got 16"),
    (lambda: regression().subset(num_test=0), "num_test"),
    (lambda: regression().classes(0, 1), "toy has real targets"),
    (lambda: datasets.load("digits").classes(1, 1), "at least two"),
    (lambda: datasets.load("digits").classes(0, 11), r"\[11\] do not occur"),
    (lambda: replace(regression(), y_test=np.zeros(2)), "X_test has 5 rows but y_test has 2"),
    (lambda: replace(regression(), X_test=np.zeros((5, 2))), "rows of X_train have shape"),
    (lambda: datasets.load("boston"), "Did you mean 'uci/boston'.*airline-delayed"),
    (lambda: datasets.load("uci/boston", split=20), "split must be between 0 and 19 for uci/boston, got 20"),
    (lambda: datasets.load("uci/protein", split=-1), "split must be between 0 and 4 for uci/protein, got -1"),
    (lambda: datasets.load("adult", split=-1), "split must be 0 or more"),
    (lambda: datasets.load("year", split="first"), "split must be 'random' or 'published', got 'first'"),
    (lambda: datasets.load("imagenet20", size=0), "size must be an integer of at least 1, got 0"),
    (lambda: datasets.load("mnist", split=1), "'mnist' has no option 'split'; it has no options"),
]


@pytest.mark.parametrize("call, said", SENSELESS)
def test_requests_that_make_no_sense_are_refused(call, said):
    with pytest.raises((ValueError, TypeError), match=said):
        call()
