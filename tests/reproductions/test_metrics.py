"""The metrics of the papers, against their definitions."""

import numpy as np
import pytest
from scipy.stats import norm

from gpzoo.inference import SitePrediction
from gpzoo.reproductions import metrics
from gpzoo.reproductions.datasets import Dataset

RNG = np.random.default_rng(0)


def scores(test, y, **units):
    X = np.zeros((len(y), 1))
    return metrics.score_of(Dataset("some", X, y, X, y, "generated", {}, **units))(test, y)


def test_numbers_are_scored_in_their_own_units():
    y, mean, scale = RNG.normal(size=20), RNG.normal(size=20), RNG.gamma(2.0, size=20)
    own = norm.logpdf(100 + 7 * y, 100 + 7 * mean, 7 * scale)
    expected = {"rmse": 7 * np.sqrt(np.mean((y - mean) ** 2)), "test_log_likelihood": own.mean()}
    expected["test_log_likelihood_se"] = own.std(ddof=1) / np.sqrt(20)
    test = SitePrediction(mean, scale**2, norm.logpdf(y, mean, scale))
    assert scores(test, y, y_mean=100.0, y_std=7.0) == pytest.approx(expected)


def test_classes_are_scored_by_their_probabilities():
    log_odds, y = RNG.normal(size=(30, 4)), RNG.integers(0, 4, 30)
    probs = np.exp(log_odds) / np.exp(log_odds).sum(axis=1, keepdims=True)
    wrong, own = np.mean(probs.argmax(axis=1) != y), np.log(probs[np.arange(30), y])
    expected = {"error": wrong, "nlpp": -np.mean(own), "nlpp_se": np.std(own, ddof=1) / np.sqrt(30)}
    found = scores(metrics.softmax(log_odds, y), y)
    bits = f"{int(found.pop('wrong_rows'), 16):032b}"
    assert found == pytest.approx(expected)
    assert [bit == "1" for bit in bits[:30]] == list(probs.argmax(axis=1) != y) and bits[30:] == "00"
    assert metrics.accuracy(metrics.softmax(log_odds, y), y) == pytest.approx(1 - wrong)
    # Two classes are told apart at a half; of four pairs of a one and a zero, one is in the wrong order.
    y, p = np.array([0, 1, 1, 0]), np.array([0.2, 0.9, 0.4, 0.6])
    test = SitePrediction(p, p * (1 - p), np.log(np.where(y == 1, p, 1 - p)))
    assert metrics.error(test, y) == metrics.accuracy(test, y) == 0.5 and metrics.auc(test, y) == 0.75
    assert metrics.nlpp(test) == pytest.approx(-np.log([0.8, 0.9, 0.4, 0.4]).mean())


def test_means_over_splits_have_standard_errors():
    assert metrics.means({"rmse": [1.0, 3.0], "elbo": [4.0, 4.0]}, ["rmse"]) == {"rmse": 2, "rmse_se": 1, "elbo": 4}
    assert metrics.means({"rmse": [1.0]}) == {"rmse": 1}
