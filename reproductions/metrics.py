"""Metrics of a prediction of ``N`` test rows, for all papers.

Metrics that are means over test rows have their standard error beside them, with the same name and ``_se``. It is an
error over test rows, or over splits if there are several (:func:`means`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from gpzoo.inference import SitePrediction
from gpzoo.reproductions.datasets import Dataset

#: A function from a prediction and the targets ``[N]`` to metrics by name, and for classes also to :func:`wrong_rows`.
Score = Callable[[SitePrediction, np.ndarray], Mapping[str, Any]]


def score_of(data: Dataset) -> Score:
    """The metrics of a data set: ``error`` and ``nlpp`` for classes, otherwise ``rmse`` and ``test_log_likelihood``."""
    if data.is_classification:
        return of_classes
    return lambda test, y: of_numbers(test, y, data.y_std)


def of_classes(test: SitePrediction, y: np.ndarray) -> dict[str, Any]:
    """The metrics :func:`error` and :func:`nlpp`, and the :func:`wrong_rows`."""
    found = {"error": error(test, y), "nlpp": nlpp(test), "nlpp_se": standard_error(test)}
    return found | {"wrong_rows": wrong_rows(test, y)}


def of_numbers(test: SitePrediction, y: np.ndarray, y_std: float = 1.0) -> dict[str, float]:
    """The metrics :func:`rmse` and :func:`test_log_likelihood`."""
    found = {"rmse": rmse(test, y, y_std), "test_log_likelihood": test_log_likelihood(test, y_std)}
    return found | {"test_log_likelihood_se": standard_error(test)}


def standard_error(test: SitePrediction) -> float:
    """The standard error over test rows of :func:`nlpp` and :func:`test_log_likelihood`."""
    return float(np.std(test.log_density, ddof=1, dtype=np.float64) / np.sqrt(len(test.log_density)))


def means(values: Mapping[str, Sequence[float]], errors: Collection[str] | None = None) -> dict[str, float]:
    """Means over splits, by metric. If there are several splits, each is followed by its standard error (``..._se``).

    Args:
        values: values on the splits, for every metric.
        errors: the metrics with a standard error; all unless given.
    """
    found = {}
    for name, each in values.items():
        found[name] = float(np.mean(each))
        if len(each) > 1 and (errors is None or name in errors):
            found[f"{name}_se"] = float(np.std(each, ddof=1) / np.sqrt(len(each)))
    return found


def labels(test: SitePrediction) -> np.ndarray:
    """The most probable class of every row, ``[N]``."""
    return test.mean > 0.5 if test.probs is None else test.probs.argmax(axis=-1)


def error(test: SitePrediction, y: np.ndarray) -> float:
    """Share of the rows whose most probable class is wrong."""
    return float(np.mean(labels(test) != y))


def accuracy(test: SitePrediction, y: np.ndarray) -> float:
    """Share of the rows whose most probable class is right."""
    return float(np.mean(labels(test) == y))


def wrong_rows(test: SitePrediction, y: np.ndarray) -> str:
    """One bit for each row, which is 1 if its most probable class is wrong, in hexadecimal digits."""
    return np.packbits(labels(test) != y).tobytes().hex()


def nlpp(test: SitePrediction, dtype: Any = np.float64) -> float:
    """Mean negative log predictive probability of the rows, in nats; ``dtype`` is the type of the sum."""
    return float(-test.log_density.mean(dtype=dtype))


def test_log_likelihood(test: SitePrediction, y_std: float = 1.0) -> float:
    """Mean log density of a row in nats, in the original units of targets that were divided by ``y_std``."""
    return float(test.log_density.mean(dtype=np.float64)) - float(np.log(y_std))


def rmse(test: SitePrediction, y: np.ndarray, y_std: float = 1.0) -> float:
    """Root mean square error, in the original units of targets that were divided by ``y_std``."""
    return y_std * float(np.sqrt(np.mean((test.mean - y) ** 2, dtype=np.float64)))


def auc(test: SitePrediction, y: np.ndarray) -> float:
    """Area under the curve of true against false positives, for two classes."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(y, test.mean))


def softmax(log_odds: np.ndarray, y: np.ndarray) -> SitePrediction:
    """The prediction of classes ``y`` ``[N]`` from ``log_odds`` ``[N, K]``: probabilities are their softmax."""
    log_odds = np.asarray(log_odds, np.float64)
    log_probs = log_odds - np.logaddexp.reduce(log_odds, axis=1, keepdims=True)
    own = np.take_along_axis(log_probs, y[:, None], axis=1)[:, 0]
    return SitePrediction(None, None, log_density=own, probs=np.exp(log_probs))
