"""Bands of uniform values hold as often as they say; transforms of right predictions are uniform, also of counts."""

import itertools

import numpy as np
import pytest
from scipy import stats

from gpzoo.inference.diagnosis.calibration import (
    coverage,
    pit,
    pit_band,
    reliability,
    share_bounds,
    uniformity,
)


def test_the_band_of_a_histogram_is_exact():
    n, bins = 7, 3
    low, high = pit_band(n, bins, level=0.8)

    def probability(low, high):
        cells = [c for c in itertools.product(range(n + 1), repeat=bins) if sum(c) == n]
        return sum(stats.multinomial.pmf(c, n, [1 / bins] * bins) for c in cells if low <= min(c) <= max(c) <= high)

    assert probability(low, high) >= 0.8
    # It cannot be narrower on the side that it leaves the more probability outside of.
    assert min(probability(low + 1, high), probability(low, high - 1)) < 0.8


@pytest.mark.parametrize("n, bins, level", [(50, 10, 0.95), (1000, 20, 0.95), (300, 5, 0.5)])
def test_all_counts_lie_in_their_band_as_often_as_it_says(n, bins, level):
    low, high = pit_band(n, bins, level)
    counts = np.random.default_rng(0).multinomial(n, np.full(bins, 1 / bins), 10_000)
    share = np.mean(np.all((low <= counts) & (counts <= high), axis=1))
    # Counts are whole, so that a band can only hold more often; not by more than a count on each side would make it.
    assert share >= level - 4 * np.sqrt(level * (1 - level) / 10_000)
    assert np.mean(np.all((low < counts) & (counts < high), axis=1)) < level


def test_bands_of_many_values_are_found():
    low, high = pit_band(20_000, 20)
    assert 850 < low < 1000 < high < 1150
    assert pit_band(5, 1) == (5, 5)


def test_uniform_values_and_others_are_told_apart():
    rng = np.random.default_rng(4)
    values = np.array([uniformity(rng.uniform(size=200)) for _ in range(300)])
    for level in (0.1, 0.5):
        low, high = share_bounds(300, level, 0.999)
        assert np.mean(values < level) <= high
        assert np.mean(values < 1.3 * level) >= low
    assert uniformity(rng.beta(2, 2, 200)) < 0.01 and uniformity(rng.beta(0.5, 0.5, 200)) < 1e-6
    assert uniformity(rng.uniform(0, 0.9, 200)) < 1e-6
    assert uniformity((np.arange(200) + 0.5) / 200) == 1.0


def test_counts_that_are_predicted_rightly_have_uniform_transforms():
    rng = np.random.default_rng(2)
    rate = rng.gamma(2.0, size=1000)
    values = pit(rng.poisson(rate, (60, 1000)), rng.poisson(rate))
    low, high = pit_band(1000, 20)
    counts = np.histogram(values, 20, (0, 1))[0]
    assert low <= counts.min() and counts.max() <= high
    inside = coverage(values)
    for level, share in zip((0.5, 0.9), inside, strict=True):
        least, most = share_bounds(1000, level, 0.99)
        assert least <= share <= most
    # Without noise of their own the same predictions are too sure.
    narrow = coverage(pit(np.broadcast_to(rate, (60, 1000)) + 0.1 * rng.standard_normal((60, 1000)), rng.poisson(rate)))
    assert np.all(narrow < share_bounds(1000, 0.5, 0.999)[0])


def test_transforms_are_ranks():
    draws = np.arange(9.0)[:, None] * np.ones(2)
    found = pit(draws, np.array([-1.0, 3.5]))
    assert 0 < found[0] < 0.1 and 0.4 < found[1] < 0.5


def test_classes_are_reliable_where_they_are_drawn_from_their_probabilities():
    rng = np.random.default_rng(3)
    probs = rng.dirichlet(np.ones(3), 4000)
    labels = np.array([rng.choice(3, p=p) for p in probs])
    found = reliability(probs, labels)
    error = 4 * np.sqrt(found.confidence * (1 - found.confidence) / found.count)
    assert np.all(np.abs(found.accuracy - found.confidence) < error + 1e-3)
    assert found.count.sum() == 4000 and found.ece < 0.03
    onehot = np.eye(3)[labels]
    assert found.brier == pytest.approx(np.mean(np.sum((probs - onehot) ** 2, axis=1)))
    sure = np.eye(3)[probs.argmax(axis=1)]
    wrong = np.mean(probs.argmax(axis=1) != labels)
    assert reliability(sure, labels)[:] == (
        pytest.approx([1.0]),
        pytest.approx([1 - wrong]),
        pytest.approx([4000]),
        pytest.approx(wrong),
        pytest.approx(2 * wrong),
    )


@pytest.mark.parametrize(
    "probs, labels, argument",
    [
        (np.ones(3), np.zeros(3, int), "probs"),
        (np.full((2, 2), 0.5), np.array([0, 2]), "labels"),
        (np.full((2, 2), 0.5), np.array([0.5, 1]), "labels"),
    ],
)
def test_labels_that_are_no_classes_are_refused(probs, labels, argument):
    with pytest.raises(ValueError, match=argument):
        reliability(probs, labels)
