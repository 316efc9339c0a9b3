"""Data sets in memory: the generated rectangles, the digits, and what is done to a data set before training."""

from dataclasses import replace

import numpy as np
import pytest

from gpzoo.reproductions import datasets
from gpzoo.reproductions.datasets.in_memory import Dataset


def regression(X=None, y=None) -> Dataset:
    rng = np.random.RandomState(0)
    X = rng.standard_normal((20, 3)) * [1.0, 10.0, 0.1] + [5.0, 0.0, 1.0] if X is None else X
    y = 3.0 + 2.0 * rng.standard_normal(20) if y is None else y
    return Dataset("toy", X[:15], y[:15], X[15:], y[15:], "generated", {})


# Generated rectangles


@pytest.fixture(scope="module")
def rectangles():
    return datasets.load("rectangles")


def boxes(images: np.ndarray) -> tuple[np.ndarray, ...]:
    """Height, width, top and left of the bounding box of what is white."""
    rows, columns = images[..., 0].any(axis=2), images[..., 0].any(axis=1)
    return rows.sum(axis=1), columns.sum(axis=1), rows.argmax(axis=1), columns.argmax(axis=1)


def chi_squared_sigmas(observed: np.ndarray) -> float:
    """How many standard deviations Pearson's statistic lies from its mean if every cell is equally likely."""
    expected, freedom = observed.mean(), observed.size - 1
    return (((observed - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


def test_rectangles_have_the_published_sizes(rectangles):
    assert rectangles.X_train.shape == (1200, 28, 28, 1) and rectangles.X_test.shape == (50_000, 28, 28, 1)
    assert rectangles.X_train.dtype == np.float32 and rectangles.y_test.dtype == np.int32
    assert rectangles.sizes == {"train": 1200, "test": 50_000, "input_shape": [28, 28, 1], "classes": 2}
    assert rectangles.source == "generated"


@pytest.mark.slow_but(part=["train"])
@pytest.mark.parametrize("part", ["train", "test"])
def test_every_image_is_the_outline_of_one_rectangle_and_its_label_says_if_it_is_tall(rectangles, part):
    images, labels = getattr(rectangles, f"X_{part}"), getattr(rectangles, f"y_{part}")
    assert set(np.unique(images)) == {0.0, 1.0}
    height, width, top, left = boxes(images)
    expected = np.zeros((len(images), 28, 28, 1), np.float32)
    for i, (h, w, t, s) in enumerate(zip(height, width, top, left, strict=True)):
        expected[i, t : t + h, s : s + w] = 1
        expected[i, t + 1 : t + h - 1, s + 1 : s + w - 1] = 0
    np.testing.assert_array_equal(images, expected)
    np.testing.assert_array_equal(labels, (height > width).astype(int))


def test_rectangles_follow_the_documented_distribution(rectangles):
    height, width, top, left = boxes(rectangles.X_test)
    assert set(np.abs(height - width)) == set(range(3, 25))
    assert set(height) == set(width) == set(range(4, 29))
    pairs = np.zeros((29, 29))
    np.add.at(pairs, (height, width), 1)
    assert np.count_nonzero(pairs) == 506
    assert abs(chi_squared_sigmas(pairs[pairs > 0])) < 4
    for start, length in ((top, height), (left, width)):
        for size in (4, 10, 20, 26):
            places = np.bincount(start[length == size], minlength=29 - size)
            assert places.size == 29 - size and abs(chi_squared_sigmas(places)) < 4
    for labels in (rectangles.y_train, rectangles.y_test):
        assert abs(labels.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(labels))


def test_rectangles_repeat_as_often_as_the_original_ones(rectangles):
    train, test = (
        {image.tobytes() for image in np.packbits(X.reshape(len(X), -1) > 0, axis=1)}
        for X in (rectangles.X_train, rectangles.X_test)
    )
    assert abs(len(test) - 30_703) < 400 and abs(len(train) - 1174) < 20 and abs(len(train & test) - 684) < 70


def test_rectangles_are_the_same_on_every_machine(rectangles):
    assert rectangles.sha256 == {"rectangles": "8f7c03b5afe7933e6a105a56deaeed3f5a3535cc03b0f12cb97948ba7837c4ee"}
    other = datasets.load("rectangles", seed=1)
    assert other.sha256 != rectangles.sha256
    assert np.any(other.X_train != rectangles.X_train)


def test_a_missing_seed_is_refused():
    with pytest.raises(TypeError):
        datasets.load("rectangles", seed=None)


# Digits


def test_digits_are_split_alike_in_every_class():
    digits = datasets.load("digits")
    assert digits.X_train.shape == (1437, 8, 8, 1) and digits.X_test.shape == (360, 8, 8, 1)
    assert digits.X_train.dtype == np.float32 and digits.y_train.dtype == np.int32
    assert digits.X_train.min() == 0.0 and digits.X_train.max() == 1.0
    train, test = np.bincount(digits.y_train), np.bincount(digits.y_test)
    assert np.all(np.abs(test - (train + test) / 5) <= 1)
    assert digits.sha256 == datasets.load("digits").sha256


# What is done to a data set


def test_standardising_uses_the_training_set_and_can_be_undone():
    raw = regression()
    dataset = raw.standardised()
    np.testing.assert_allclose(dataset.X_train.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(dataset.X_train.std(axis=0), 1.0)
    np.testing.assert_allclose(dataset.y_mean + dataset.y_std * dataset.y_test, raw.y_test)
    np.testing.assert_allclose(dataset.y_std, raw.y_train.std())
    shifted = (raw.X_test - raw.X_train.mean(axis=0)) / raw.X_train.std(axis=0)
    np.testing.assert_allclose(dataset.X_test, shifted)


def test_constant_columns_become_zero_whatever_the_rounding():
    raw = regression()
    X = np.concatenate([raw.X_train, raw.X_test])
    X[:, 1] = 0.1
    X[17, 1] = 7.0
    dataset = regression(X).standardised()
    assert np.all(dataset.X_train[:, 1] == 0.0) and np.all(dataset.X_test[:, 1] == 0.0)
    assert np.all(dataset.X_train[:, 0] != 0.0)
    constant = regression(y=np.full(20, 0.1)).standardised()
    np.testing.assert_allclose(constant.y_train, 0.0, atol=1e-15)
    assert constant.y_std == 1.0


def test_standardising_twice_still_leads_back_to_original_units():
    raw = regression()
    once = raw.standardised()
    dataset = replace(once, y_train=2.0 * once.y_train + 1.0, y_test=2.0 * once.y_test + 1.0).standardised()
    expected = once.y_mean + once.y_std * (2.0 * once.y_test + 1.0)
    np.testing.assert_allclose(dataset.y_mean + dataset.y_std * dataset.y_test, expected)


def test_standardising_keeps_the_dtype_and_leaves_classes_alone():
    raw = datasets.load("digits")
    dataset = raw.standardised()
    assert dataset.X_train.dtype == np.float32
    np.testing.assert_array_equal(dataset.y_train, raw.y_train)
    assert (dataset.y_mean, dataset.y_std) == (0.0, 1.0)
    deviations = dataset.X_train.std(axis=0, dtype=np.float64)
    assert np.all((np.abs(deviations - 1) < 1e-5) | (deviations == 0)) and np.any(deviations == 0)


def test_subsets_are_nested_and_keep_the_order():
    raw = regression(X=np.arange(60.0).reshape(20, 3))
    small, large = raw.subset(4, 2), raw.subset(9)
    assert small.sizes["train"] == 4 and small.sizes["test"] == 2 and large.sizes["test"] == 5
    assert set(small.X_train[:, 0]) < set(large.X_train[:, 0]) < set(raw.X_train[:, 0])
    assert np.all(np.diff(large.X_train[:, 0]) > 0)
    np.testing.assert_array_equal(raw.subset(9, seed=0).X_train, large.X_train)
    assert np.any(raw.subset(9, seed=1).X_train != large.X_train)
    row = int(small.X_train[0, 0]) // 3
    assert small.y_train[0] == raw.y_train[row]


@pytest.mark.parametrize(
    "options, message", [({"num_train": 16}, "num_train .* 15 .* got 16"), ({"num_test": 0}, "num_test")]
)
def test_a_subset_that_cannot_be_drawn_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        regression().subset(**options)


def test_classes_are_picked_and_relabelled_in_the_order_given():
    raw = datasets.load("digits")
    dataset = raw.classes(7, 2)
    assert set(dataset.y_train) == set(dataset.y_test) == {0, 1} and dataset.sizes["classes"] == 2
    assert dataset.y_train.dtype == raw.y_train.dtype
    np.testing.assert_array_equal(dataset.X_train[dataset.y_train == 0], raw.X_train[raw.y_train == 7])
    np.testing.assert_array_equal(dataset.X_test[dataset.y_test == 1], raw.X_test[raw.y_test == 2])


@pytest.mark.parametrize(
    "labels, message", [((3,), "at least two"), ((1, 1), "at least two"), ((0, 11), r"\[11\] do not occur")]
)
def test_classes_that_make_no_sense_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        datasets.load("digits").classes(*labels)


def test_real_targets_have_no_classes():
    with pytest.raises(ValueError, match="toy has real targets"):
        regression().classes(0, 1)


def test_parts_that_do_not_fit_are_refused():
    X, y = np.zeros((3, 2)), np.zeros(3)
    with pytest.raises(ValueError, match="X_test has 3 rows but y_test has 2"):
        Dataset("toy", X, y, X, y[:2], "generated", {})
    with pytest.raises(ValueError, match="rows of X_train have shape"):
        Dataset("toy", X, y, X[:, :1], y, "generated", {})


# What is asked of load


def test_an_unknown_name_is_met_with_the_closest_and_all_others():
    with pytest.raises(ValueError, match="Did you mean 'uci/boston'") as caught:
        datasets.load("boston")
    assert all(entry.name in str(caught.value) for entry in datasets.available())


@pytest.mark.parametrize("name, last", [("uci/boston", 19), ("uci/protein", 4)])
@pytest.mark.parametrize("beyond", [True, False])
def test_a_split_that_does_not_exist_is_refused(name, last, beyond):
    split = last + 1 if beyond else -1
    with pytest.raises(ValueError, match=f"split must be between 0 and {last} for {name}, got {split}"):
        datasets.load(name, split=split)


@pytest.mark.parametrize("name, takes", [("mnist", "it has no options"), ("rectangles", "its options are: seed")])
def test_an_unknown_option_is_refused(name, takes):
    with pytest.raises(TypeError, match=f"'{name}' has no option 'split'; {takes}"):
        datasets.load(name, split=1)
