"""Generated stand-ins: their schema, their seeds, their ranges, and that they can be learnt."""

import tracemalloc

import numpy as np
import pytest
import threadpoolctl

from gpzoo.reproductions import datasets
from gpzoo.reproductions.datasets import in_memory, taxi

SCHEMA = {
    "rectangles-images": ((28, 28, 1), np.int32),
    "year": ((90,), np.float32),
    "airline": ((8,), np.float32),
    "airline-delayed": ((8,), np.int32),
    "taxi": ((9,), np.float32),
    "higgs": ((28,), np.int32),
    "susy": ((18,), np.int32),
    "svhn": ((32, 32, 3), np.int32),
    "imagenet20": ((64, 64, 3), np.int32),
}


@pytest.mark.parametrize("name", SCHEMA)
def test_twins_have_the_schema_and_follow_their_seed(name):
    one, same, other = (datasets.load(f"{name}-generated", rows=50, seed=seed) for seed in (3, 3, 4))
    shape, kind = SCHEMA[name]
    assert one.X_train.shape == (45, *shape) and one.X_test.shape == (5, *shape)
    assert one.X_train.dtype == np.float32 and one.y_train.dtype == one.y_test.dtype == kind
    assert one.name == f"{name}-generated" and one.source == "generated" and list(one.sha256) == [one.name]
    np.testing.assert_array_equal(one.X_train, same.X_train)
    assert one.sha256 == same.sha256 != other.sha256
    with pytest.raises(ValueError, match=r"rows must be at least 20.*got 19"):
        datasets.load(f"{name}-generated", rows=19)


def relative_rmse(data) -> tuple[float, float]:
    """Of a linear model and of boosted trees; that of the mean is 1."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import LinearRegression

    data = data.standardised()
    models = LinearRegression(), HistGradientBoostingRegressor(max_iter=50, random_state=0)
    with threadpoolctl.threadpool_limits(1):  # threads that wait for a core would take longer than the trees
        errors = [model.fit(data.X_train, data.y_train).predict(data.X_test) - data.y_test for model in models]
    return tuple(np.sqrt(np.mean(error**2) / np.mean(data.y_test**2)) for error in errors)


@pytest.mark.slow_but(name=["airline", "taxi"])
@pytest.mark.parametrize("name, linear, nonlinear", [("year", 0.92, 0.82), ("airline", 0.9, 0.75), ("taxi", 0.6, 0.4)])
def test_targets_of_twins_can_be_learnt(name, linear, nonlinear):
    data = datasets.load(f"{name}-generated")
    found = relative_rmse(data)
    assert found[0] < linear and found[1] < nonlinear and min(found) > 0.1
    assert np.all(data.y_train == np.rint(data.y_train)) and len(np.unique(data.y_train)) > 30


@pytest.mark.slow_but(name=["higgs", "susy", "airline-delayed"])
@pytest.mark.parametrize(
    "name, accuracy", [("higgs", 0.65), ("susy", 0.6), ("rectangles-images", 0.7), ("airline-delayed", 0.7)]
)
def test_classes_of_twins_can_be_learnt(name, accuracy):
    from sklearn.svm import SVC

    data = datasets.load(f"{name}-generated", rows=2500).standardised()
    X, X_test = (part.reshape(len(part), -1) for part in (data.X_train, data.X_test))
    assert accuracy < SVC().fit(X, data.y_train).score(X_test, data.y_test) < 0.98
    assert 0.4 < data.y_train.mean() < 0.7


def test_twins_are_in_plausible_ranges():
    X = datasets.load("airline-generated").X_train
    low, high = [1, 1, 1, 0, 0, 15, 60, 0], [12, 31, 7, 1440, 1440, 700, 4900, 50]
    assert np.all(X.min(axis=0) >= low) and np.all(X.max(axis=0) <= high)
    y = datasets.load("year-generated").y_train
    assert y.min() >= 1922 and y.max() == 2011
    journeys = datasets.load("taxi-generated")
    X, y = journeys.X_train, journeys.y_train
    assert np.all(X[:, :4].min(axis=0) == [X[:, 0].min(), 1, 1, 1]) and np.all(X[:, 1:4].max(axis=0) == [7, 31, 12])
    assert X[:, 0].min() >= 0 and X[:, 0].max() < 24 and y.min() >= taxi.SHORTEST and y.max() <= taxi.LONGEST
    for place in (X[:, 4:6], X[:, 6:8]):
        assert np.all(((place - taxi.CENTRE) ** 2).sum(axis=1) < taxi.SQUARED_RADIUS)
    images = datasets.load("rectangles-images-generated", rows=200).X_train
    assert images.min() >= 0 and images.max() <= 1 and 0.2 < images.mean() < 0.8


# What large data sets need of the rest


def test_standardising_in_blocks_changes_nothing_but_rounding(monkeypatch):
    data = datasets.load("airline-generated", rows=200)
    whole = data.standardised()
    monkeypatch.setattr(in_memory, "_BLOCK", 7)
    blocks = data.standardised()
    for name in ("X_train", "y_train", "X_test", "y_test"):
        np.testing.assert_allclose(getattr(blocks, name), getattr(whole, name), rtol=1e-5, atol=1e-6)
        assert getattr(blocks, name).dtype == np.float32


def test_standardising_makes_no_float64_copy_of_everything():
    X = np.random.RandomState(0).standard_normal((500_000, 10)).astype(np.float32)
    data = datasets.Dataset("toy", X, np.zeros(len(X), np.int32), X[:10], np.zeros(10, np.int32), "generated", {})
    tracemalloc.start()
    try:
        data.standardised()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * X.nbytes


@pytest.mark.slow
def test_classes_of_photographs_can_be_learnt():
    from sklearn.neighbors import KNeighborsClassifier

    data = datasets.load("svhn-generated", rows=3000)
    # Bright on dark or the other way round: the distance of a pixel from the middle of its image is what counts.
    X, X_test = (
        abs(X.mean(-1) - np.median(X.mean(-1), axis=(1, 2), keepdims=True)) for X in (data.X_train, data.X_test)
    )
    score = KNeighborsClassifier(3).fit(X.reshape(len(X), -1), data.y_train).score(X_test.reshape(300, -1), data.y_test)
    assert 0.3 < score < 0.98
    data = datasets.load("imagenet20-generated")
    spectra = [abs(np.fft.rfft2(X.mean(-1) - X.mean((1, 2, 3))[:, None, None])) for X in (data.X_train, data.X_test)]
    X, X_test = ((s / s.sum((1, 2), keepdims=True)).reshape(len(s), -1) for s in spectra)
    assert KNeighborsClassifier(3).fit(X, data.y_train).score(X_test, data.y_test) > 0.4
