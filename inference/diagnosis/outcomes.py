"""Comparison of data with their predictions: coverage, transforms, classes, and a comparison with a constant."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import special

from gpzoo.inference.diagnosis.calibration import coverage, pit, pit_band, reliability, share_bounds
from gpzoo.inference.diagnosis.findings import Diagnosis, Finding, finding, table
from gpzoo.inference.diagnosis.measure import Outcomes
from gpzoo.inference.fitted.summaries import SitePrediction

#: Fewer rows say too little about a distribution: of so many rows, two lie outside intervals at 90 %.
FEWEST_ROWS = 20

#: Confidence in a departure from which on it is a finding. It is high for two reasons. Rows share the errors of one
#: posterior, so there are effectively fewer rows. And one diagnosis makes several tests.
LEVEL = 0.999

#: Smallest departure of a share from its prediction that is a finding. Intervals at 90 % hold 85 % of the data if a
#: noise variance is a quarter too small.
MARGIN = 0.05

#: Smallest distance of the distribution of the transforms from the uniform one that is a finding. A noise variance that
#: is a third too small has this effect, or a shift by an eighth of the standard deviation.
DISTANCE = 0.05

#: Bins of the histogram of transforms.
BINS = 10

#: Standard errors by which a mean log density must exceed the log density of a constant predictor. A weak signal in a
#: few hundred rows exceeds it by one standard error, but not by two. A fit without signal stays below, because the
#: constant predictor is fitted to the same data.
ERRORS = 1.0

#: Ratio of squared residuals to the predicted ones above which the predictions are too narrow to compare their log
#: density with that of a constant. Intervals at 90 % then hold 82 % of normal data.
DISPERSED = 1.5

#: Smallest divisor.
_TINY = np.finfo(np.float64).tiny


def judge(site: str, outcomes: Outcomes, predicted: SitePrediction, reached: np.ndarray) -> Diagnosis:
    """Findings about the predictions at a data site, compared with its outcomes.

    Args:
        site: name of the site.
        outcomes: the data.
        predicted: the prediction. It has log densities, and also draws if outcomes are ordered and not Gaussian.
        reached: a mask of the rows that the inducing variables reach, ``[N]``. Findings are only about these rows.
    """
    rows = outcomes.observed
    part = Diagnosis()
    if not rows.any():
        return part
    judged = reached[rows]
    if outcomes.kind in ("binary", "classes"):
        part = _classes(site, outcomes, predicted, rows, judged)
    elif predicted.cdf is not None or predicted.draws is not None:
        part = _ordered(site, outcomes, predicted, rows, judged)
    densities = _densities(site, outcomes, predicted, rows, judged)
    both = Diagnosis.joined([densities, part])
    if not densities.findings or outcomes.kind in ("binary", "classes") or predicted.mean is None:
        return both
    lead, times = _residuals_beside_constant(outcomes, predicted, rows & reached)
    law, narrow = part.findings, times > DISPERSED
    if narrow and not law:
        of = f"squared residuals are {times:.2g} times as large as predicted"
        which = "counts" if outcomes.kind == "integers" else "sure"
        law = (finding("intervals too narrow", site, which, of=of, likelihood=outcomes.likelihood),)
    if law and lead > ERRORS:  # the inputs predict means, so the distribution around the means is wrong
        return replace(both, findings=law)
    return replace(both, findings=law + densities.findings) if narrow else both


# -- beside a constant -------------------------------------------------------------------------------------------------


def _densities(
    site: str, outcomes: Outcomes, predicted: SitePrediction, rows: np.ndarray, judged: np.ndarray
) -> Diagnosis:
    log_density = np.asarray(predicted.log_density, np.float64)[rows]
    log_density = log_density.reshape(len(log_density), -1).sum(axis=1)  # a plate of outputs has a term for each output
    constant, who = _constant(outcomes, rows)
    gain = log_density - constant
    error = float(np.std(gain) / np.sqrt(len(gain)))
    row = site, len(gain), -float(log_density.mean()), -float(constant.mean()), float(gain.mean()), error
    findings: tuple[Finding, ...] = ()
    gain = gain[judged]
    if len(gain) >= FEWEST_ROWS:
        mean, error = float(gain.mean()), float(np.std(gain) / np.sqrt(len(gain)))
        if mean < ERRORS * error:
            side = "below" if mean < 0 else "above"
            findings = (finding("no better than a constant", site, mean=abs(mean), side=side, error=error, who=who),)
    return Diagnosis(findings, table("Log densities", [row]), {f"{site}_log_density": log_density})


def _residuals_beside_constant(outcomes: Outcomes, predicted: SitePrediction, rows: np.ndarray) -> tuple[float, float]:
    """How much smaller squared residuals are than those of a constant mean, in standard errors, and how much too large.

    The second number is their ratio to the predicted ones. If the predictive means are no better than a constant, the
    inputs may belong to other rows. The ratio is then that of all rows together, which does not depend on their order.
    """
    given = outcomes.value, predicted.mean, np.inf if predicted.variance is None else predicted.variance
    y, mean, variance = (np.broadcast_to(x, predicted.mean.shape)[rows].reshape(rows.sum(), -1) for x in given)
    # For rows without a mean, and for outputs that were not observed at these rows.
    with np.errstate(invalid="ignore", over="ignore"), warnings.catch_warnings(action="ignore"):
        square, of_constant = np.square(y - mean), np.square(y - np.nanmean(y, axis=0))
        gain = np.nanmean((of_constant - square) / np.maximum(np.nanmean(of_constant, axis=0), _TINY), axis=1)
        lead = float(gain.mean() / np.maximum(gain.std() / np.sqrt(len(gain)), _TINY))
        if lead <= ERRORS:
            square = np.nanmean(of_constant, axis=0)
            variance = np.mean(variance + np.square(mean - mean.mean(axis=0)), axis=0)
        return lead, float(np.nanmean(square / np.maximum(variance, _TINY)))


def _constant(outcomes: Outcomes, rows: np.ndarray) -> tuple[np.ndarray, str]:
    """Log densities of a predictor that only knows the distribution of the outcomes, and the name of the predictor."""
    y = np.asarray(outcomes.value, np.float64)[rows]
    total, numbers = np.zeros(len(y)), outcomes.kind == "numbers"
    for column in y.reshape(len(y), -1).T:
        seen = ~np.isnan(column)
        if seen.any():
            total[seen] += _normal(column[seen]) if numbers else _frequencies(column[seen], outcomes.kind)
    return total, "a normal distribution" if numbers else "a distribution"


def _normal(y: np.ndarray) -> np.ndarray:
    """Log densities of numbers under a normal distribution with the mean and the variance of these numbers."""
    variance = np.maximum(y.var(), _TINY)
    return -0.5 * (np.log(2 * np.pi * variance) + np.square(y - y.mean()) / variance)


def _frequencies(y: np.ndarray, kind: str) -> np.ndarray:
    """Log probabilities of values by their own frequencies; of integers with many values, as of counts."""
    values, index, count = np.unique(y, return_inverse=True, return_counts=True)
    if kind == "integers" and len(values) > max(10, len(y) // 20):
        return _negative_binomial(y)
    return np.log(count / len(y))[index]


def _negative_binomial(y: np.ndarray) -> np.ndarray:
    """Log probabilities of counts under a negative binomial distribution with their own mean and variance."""
    mean, variance = y.mean(), y.var()
    if variance <= mean:
        return y * np.log(mean) - mean - special.gammaln(y + 1)
    size = mean**2 / (variance - mean)
    ways = special.gammaln(y + size) - special.gammaln(size) - special.gammaln(y + 1)
    return ways + size * np.log(size / (size + mean)) + y * np.log(mean / (size + mean))


# -- ordered outcomes --------------------------------------------------------------------------------------------------


def _ordered(
    site: str, outcomes: Outcomes, predicted: SitePrediction, rows: np.ndarray, judged: np.ndarray
) -> Diagnosis:
    y = np.asarray(outcomes.value)[rows]
    # If the probability has no closed form, the transforms are ranks among draws.
    exact = predicted.cdf is not None
    values = np.asarray(predicted.cdf)[rows] if exact else pit(np.asarray(predicted.draws)[:, rows], y)
    values = np.where(np.isnan(y), np.nan, values) if y.dtype.kind == "f" else values
    first = _observed(values.reshape(len(values), -1)[:, 0])
    n = len(first) or len(values)
    low, high = pit_band(n, BINS)
    histogram = np.histogram(first, BINS, (0, 1))[0]
    shown: list[tuple[Any, ...]] = []
    for level, share in zip((0.5, 0.9), coverage(_observed(values)), strict=True):
        shown.append((site, f"in central {level:.0%}", float(share), _between(*share_bounds(n, level))))
    shown.append((site, "mean transform", float(np.nanmean(values)), _between(0.5 - _of_mean(n), 0.5 + _of_mean(n))))
    shown.append((site, f"counts in {BINS} bins", f"{histogram.min()} to {histogram.max()}", f"{low} to {high}"))
    residuals = _residuals(site, outcomes, predicted, rows)
    findings = _misfit(site, outcomes, y[judged], values[judged], residuals) if judged.sum() >= FEWEST_ROWS else ()
    sections = table("Outcomes among their predictions", shown) + table("Residuals", residuals)
    return Diagnosis(findings, sections, {f"{site}_pit": values})


def _between(low: float, high: float) -> str:
    return f"{low:.3f} to {high:.3f}"


def _observed(values: np.ndarray) -> np.ndarray:
    """The values of observed outcomes, of all outputs."""
    return values[~np.isnan(values)]


def _of_mean(n: int) -> float:
    """Half the 95 % interval of the mean of ``n`` uniform values."""
    return float(1.96 / np.sqrt(12 * n))


def _residuals(site: str, outcomes: Outcomes, predicted: SitePrediction, rows: np.ndarray) -> list[tuple[Any, ...]]:
    """The row of a table with mean squared residuals and their predictions, if there are both numbers."""
    if predicted.mean is None or predicted.variance is None:
        return []
    y = np.asarray(outcomes.value, np.float64)[rows]
    square = float(np.nanmean(np.square(y - predicted.mean[rows])))
    variance = float(np.nanmean(np.where(np.isnan(y), np.nan, predicted.variance[rows]), dtype=np.float64))
    if not np.isfinite(square + variance):
        return []
    return [(site, square, variance, outcomes.noise, float(np.nanmean(np.nanvar(y, axis=0))))]


def _misfit(
    site: str, outcomes: Outcomes, y: np.ndarray, values: np.ndarray, residuals: list[tuple[Any, ...]]
) -> tuple[Finding, ...]:
    """The finding about the distribution of the transforms, if there is one."""
    coverage_first = not _off_to_one_side(_observed(values))
    misfit = _by_coverage(site, outcomes, values, residuals) if coverage_first else None
    misfit = misfit or _by_shape(site, outcomes, values)
    if misfit is None:
        return ()
    if outcomes.kind != "numbers" or not np.all(_observed(y) == np.round(_observed(y))):
        return (misfit,)
    return (finding("whole numbers as real ones", site, likelihood=outcomes.likelihood, text=misfit.text),)


def _off_to_one_side(values: np.ndarray) -> bool:
    """Whether outcomes leave their intervals at one end only. The noise is not the cause of this."""
    n = len(values)
    fewer, more = sorted((float(np.mean(values < 0.05)), float(np.mean(values > 0.95))))
    few = share_bounds(n, 0.05, LEVEL)[1]
    return fewer <= 0.05 < few < more and abs(values.mean() - 0.5) > max(2 * _of_mean(n), DISTANCE)


def _by_coverage(site: str, outcomes: Outcomes, values: np.ndarray, residuals: list[tuple[Any, ...]]) -> Finding | None:
    n = len(values)
    half, most = coverage(_observed(values))
    low, high = share_bounds(n, 0.9, LEVEL)
    words = {"of": f"intervals at 90 % hold {most:.0%} of the data", "half": half, "likelihood": outcomes.likelihood}
    if most < low and most < 0.9 - MARGIN:
        which = "counts" if outcomes.kind == "integers" else "noise" if _noise_explains(residuals) else "sure"
        return finding("intervals too narrow", site, which, **words)
    most_half = max(share_bounds(n, 0.5, LEVEL)[1], 0.5 + MARGIN)
    if half > most_half and outcomes.noise is not None and 1 - most > _beyond(half, n):
        return finding("tails too light", site, **words)
    if half > most_half and most > max(min(high, 1 - 1e-12), 0.9 + MARGIN):
        return finding("intervals too wide", site, **words)
    return None


def _beyond(half: float, n: int) -> float:
    """The largest share of ``n`` outcomes outside intervals at 90 % if the only error is too large Gaussian noise.

    The size of this error follows from ``half``, the share of outcomes in intervals at 50 %.
    """
    larger = special.ndtri((1 + min(half, 1 - 0.5 / n)) / 2) / special.ndtri(0.75)
    return share_bounds(n, max(2 * special.ndtr(-larger * special.ndtri(0.95)), 1e-12), LEVEL)[1]


def _noise_explains(residuals: list[tuple[Any, ...]]) -> bool:
    """Whether residuals are larger than predicted, and noise is more than half of the prediction."""
    for _, square, predicted, noise, _ in residuals:
        return noise is not None and square > predicted and noise > predicted / 2
    return False


def _by_shape(site: str, outcomes: Outcomes, values: np.ndarray) -> Finding | None:
    for column in map(_observed, values.reshape(len(values), -1).T):
        if (n := len(column)) < FEWEST_ROWS:
            continue
        few, many = pit_band(n, BINS, LEVEL)
        at = np.arange(1, n + 1) / n
        counts, ranks = np.histogram(column, BINS, (0, 1))[0], np.sort(column)
        distance = max(np.max(at - ranks), np.max(ranks - at + 1 / n))
        if distance <= DISTANCE or (few <= counts.min() and counts.max() <= many):
            continue
        if abs(column.mean() - 0.5) > max(2 * _of_mean(n), DISTANCE):
            side = "high" if column.mean() < 0.5 else "low"
            return finding("outcomes off to one side", site, distance=distance, side=side)
        return finding("outcomes of another shape", site, distance=distance, likelihood=outcomes.likelihood)
    return None


# -- classes -----------------------------------------------------------------------------------------------------------


def _classes(
    site: str, outcomes: Outcomes, predicted: SitePrediction, rows: np.ndarray, judged: np.ndarray
) -> Diagnosis:
    labels = np.asarray(outcomes.value)[rows]
    if predicted.probs is not None:
        probs = np.asarray(predicted.probs, np.float64)[rows]
    else:
        # Several labels of one row count as separate rows.
        one = np.asarray(predicted.mean, np.float64)[rows].reshape(-1)
        probs = np.stack([1 - one, one], axis=1)
        judged, labels = np.repeat(judged, labels[0].size), labels.reshape(-1)
        seen = ~np.isnan(labels) if labels.dtype.kind == "f" else np.ones(len(labels), bool)
        probs, judged, labels = probs[seen], judged[seen], labels[seen]
    labels = labels.astype(int)
    scores = reliability(probs, labels)
    top, right = probs.max(axis=1), probs.argmax(axis=1) == labels
    often = float(np.bincount(labels).max() / len(labels))
    row = site, float(right.mean()), float(top.mean()), often, scores.ece, scores.brier
    findings: tuple[Finding, ...] = ()
    if judged.sum() >= FEWEST_ROWS:
        confidence, accuracy = top[judged], right[judged]
        gap = float(confidence.mean() - accuracy.mean())
        # The standard error if outcomes are independent and have exactly these probabilities.
        error = float(np.sqrt(np.sum(confidence * (1 - confidence))) / len(confidence))
        if abs(gap) > MARGIN and abs(gap) > -special.ndtri((1 - LEVEL) / 2) * error:
            name = "probabilities too sure" if gap > 0 else "probabilities not sure enough"
            findings = (finding(name, site, accuracy=accuracy.mean(), confidence=confidence.mean()),)
    return Diagnosis(findings, table("Classes", [row]), {f"{site}_probs": probs, f"{site}_labels": labels})
