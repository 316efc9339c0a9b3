"""Do the data look like what was predicted of them? Coverage, transforms, classes, and a constant predictor beside."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from gpzoo.inference.asking.summaries import SitePrediction
from gpzoo.inference.diagnosis.calibration import coverage, pit, pit_band, reliability, share_bounds
from gpzoo.inference.diagnosis.findings import Diagnosis, Finding, Section
from gpzoo.inference.diagnosis.measure import Outcomes

#: Fewer rows than this say too little of a distribution: intervals at 90 % leave two of them outside.
FEWEST_ROWS = 20

#: How sure a departure must be before it is a finding. Rows share the errors of one posterior, so that they are fewer
#: than they seem; and one diagnosis asks several questions.
LEVEL = 0.999

#: Least departure of a share from what was predicted that is worth a finding. Intervals at 90 % that hold 85 % are what
#: a noise variance gives that is a quarter too small.
MARGIN = 0.05

#: Least distance of the distribution of the transforms from the uniform one: as far as a noise variance that is a third
#: too small, or a shift of an eighth of the standard deviation, puts it.
DISTANCE = 0.05

#: Bins of the histogram of transforms.
BINS = 10

#: Standard errors by which a mean log density must exceed a constant predictor's. A weak signal in a few hundred rows
#: does by one and not by two; a fit to nothing falls below, because it is fitted.
ERRORS = 1.0


def judge(site: str, outcomes: Outcomes, predicted: SitePrediction, reached: np.ndarray) -> Diagnosis:
    """What the outcomes at a data site say of their predictions.

    Args:
        site: its name.
        outcomes: the data.
        predicted: with log densities, and with draws where outcomes are ordered and not Gaussian.
        reached: rows of which the model claims to know something, ``[N]``; findings are about these alone.
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
    return Diagnosis.joined([_densities(site, outcomes, predicted, rows, judged), part])


# -- beside a constant -------------------------------------------------------------------------------------------------


def _densities(
    site: str, outcomes: Outcomes, predicted: SitePrediction, rows: np.ndarray, judged: np.ndarray
) -> Diagnosis:
    log_density = np.asarray(predicted.log_density, np.float64)[rows]
    log_density = log_density.reshape(len(log_density), -1).sum(axis=1)  # a plate of outputs has a term for each
    constant, who = _constant(outcomes, rows)
    gain = log_density - constant
    error = float(np.std(gain) / np.sqrt(len(gain)))
    section = Section(
        "Log densities",
        ("site", "rows", "NLPD", "of a constant", "gain", "standard error"),
        ((site, len(gain), -float(log_density.mean()), -float(constant.mean()), float(gain.mean()), error),),
        "Nats per row. NLPD: mean negative log predictive density. The constant predictor knows the mean and the "
        "spread of these very rows, and nothing of inputs.",
    )
    findings: tuple[Finding, ...] = ()
    gain = gain[judged]
    if len(gain) >= FEWEST_ROWS:
        mean, error = float(gain.mean()), float(np.std(gain) / np.sqrt(len(gain)))
        if mean < ERRORS * error:
            findings = (
                Finding(
                    "no better than a constant",
                    site,
                    f"log densities are {mean:.2g} nats per row (standard error {error:.2g}) above those of {who} "
                    "that knows no inputs: look whether inputs and outcomes still belong to the same rows, whether "
                    "the inputs say anything about the outcomes, and start with other lengthscales.",
                ),
            )
    return Diagnosis(findings, (section,), {f"{site}_log_density": log_density})


def _constant(outcomes: Outcomes, rows: np.ndarray) -> tuple[np.ndarray, str]:
    """Log densities of a predictor that knows the distribution of the outcomes alone, and its name."""
    y = np.asarray(outcomes.value, np.float64)[rows]
    columns = y.reshape(len(y), -1)
    if outcomes.kind == "numbers":
        total = np.zeros(len(y))
        for column in columns.T:
            seen = ~np.isnan(column)
            if seen.any():
                some = column[seen]
                variance = np.maximum(some.var(), np.finfo(np.float64).tiny)
                total[seen] -= 0.5 * (np.log(2 * np.pi * variance) + np.square(some - some.mean()) / variance)
        return total, "a normal distribution"
    total = np.zeros(len(y))
    for column in columns.T:
        seen = ~np.isnan(column)
        some = column[seen]
        values, index, count = np.unique(some, return_inverse=True, return_counts=True)
        if len(values) <= max(10, len(some) // 20):
            total[seen] += np.log(count / max(1, len(some)))[index]
        else:
            total[seen] += _negative_binomial(some)
    return total, "a distribution"


def _negative_binomial(y: np.ndarray) -> np.ndarray:
    """Log probabilities of counts, with their own mean and variance."""
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
    # Ranks among draws where the probability has no closed form.
    exact = predicted.cdf is not None
    values = np.asarray(predicted.cdf)[rows] if exact else pit(np.asarray(predicted.draws)[:, rows], y)
    values = np.where(np.isnan(y), np.nan, values) if y.dtype.kind == "f" else values
    first = _observed(values.reshape(len(values), -1)[:, 0])
    n = len(first) or len(values)
    low, high = pit_band(n, BINS)
    histogram = np.histogram(first, BINS, (0, 1))[0]
    table: list[tuple[Any, ...]] = []
    for level, share in zip((0.5, 0.9), coverage(_observed(values)), strict=True):
        bounds = share_bounds(n, level)
        table.append((site, f"in central {level:.0%}", float(share), f"{bounds[0]:.3f} to {bounds[1]:.3f}"))
    table.append(
        (site, "mean transform", float(np.nanmean(values)), f"{0.5 - _of_mean(n):.3f} to {0.5 + _of_mean(n):.3f}")
    )
    table.append((site, f"counts in {BINS} bins", f"{histogram.min()} to {histogram.max()}", f"{low} to {high}"))
    notes = Section(
        "Outcomes among their predictions",
        ("site", "what", "found", "expected"),
        tuple(table),
        "Expected: 95 % limits if the predictions are right, simultaneous for the bins of the probability integral "
        "transform (PIT). On the rows of training the transforms are those of a posterior predictive check.",
    )
    found = _residuals(site, outcomes, predicted, rows)
    finding = _misfit(site, outcomes, y[judged], values[judged], found) if judged.sum() >= FEWEST_ROWS else None
    sections = (notes,) if found is None else (notes, found)
    return Diagnosis(() if finding is None else (finding,), sections, {f"{site}_pit": values})


def _observed(values: np.ndarray) -> np.ndarray:
    """The numbers of outcomes that were observed, of all outputs."""
    return values[~np.isnan(values)]


def _of_mean(n: int) -> float:
    """Half the 95 % interval of the mean of ``n`` uniform values."""
    return float(1.96 / np.sqrt(12 * n))


def _residuals(site: str, outcomes: Outcomes, predicted: SitePrediction, rows: np.ndarray) -> Section | None:
    """Mean squared residuals beside what was predicted of them."""
    if predicted.mean is None or predicted.variance is None:
        return None
    y = np.asarray(outcomes.value, np.float64)[rows]
    square = float(np.nanmean(np.square(y - predicted.mean[rows])))
    variance = float(np.nanmean(np.where(np.isnan(y), np.nan, predicted.variance[rows]), dtype=np.float64))
    if not np.isfinite(square + variance):
        return None
    return Section(
        "Residuals",
        ("site", "mean square", "predicted", "noise", "variance of the data"),
        ((site, square, variance, outcomes.noise, float(np.nanmean(np.nanvar(y, axis=0)))),),
        "Squared units of the data. Predicted: mean predictive variance, of which noise is the part of the likelihood.",
    )


def _misfit(
    site: str, outcomes: Outcomes, y: np.ndarray, values: np.ndarray, residuals: Section | None
) -> Finding | None:
    """The finding about the distribution of the transforms, if there is one."""
    found = _coverage_words(site, outcomes, values, residuals) or _shape_words(site, outcomes, values)
    if found is None or outcomes.kind != "numbers" or not np.all(_observed(y) == np.round(_observed(y))):
        return found
    return Finding(
        "whole numbers as real ones",
        site,
        f"the data are whole numbers, the likelihood, {outcomes.likelihood}, is of real ones, and {found.text} First "
        "use a likelihood of counts, such as likelihoods.Expected of a Poisson or negative binomial distribution.",
    )


def _coverage_words(site: str, outcomes: Outcomes, values: np.ndarray, residuals: Section | None) -> Finding | None:
    n = len(values)
    half, most = coverage(_observed(values))
    low, high = share_bounds(n, 0.9, LEVEL)
    of = f"intervals at 90 % hold {most:.0%} of the data"
    discrete = outcomes.kind == "integers"
    if most < low and most < 0.9 - MARGIN:
        if discrete:
            why = (
                f"{of}: the data vary more than {outcomes.likelihood} allows. Use a likelihood with a dispersion of "
                "its own, such as a negative binomial, or train longer."
            )
        elif _noise_explains(residuals):
            why = (
                f"{of}: the noise is too small for these residuals. Train its variance, or start it higher and train "
                "longer."
            )
        else:
            why = (
                f"{of}: the predictions are too sure. Give the noise variance a prior or hold out data to stop by, use "
                "more inducing variables, or a likelihood with heavier tails."
            )
        return Finding("intervals too narrow", site, why)
    wide_half, wide = share_bounds(n, 0.5, LEVEL)[1], min(high, 1 - 1e-12)
    if outcomes.noise is not None and half > max(wide_half, 0.5 + MARGIN) and 1 - most > _beyond(half, n):
        return Finding(
            "tails too light",
            site,
            f"{of} and those at 50 % {half:.0%}: most data lie close to their predictions and a few far off, and the "
            "noise variance is spent on these. Look whether they are mistakes; else use heavier tails, such as "
            "likelihoods.Expected of a Student-t distribution, or noise that changes with the inputs.",
        )
    if most > max(wide, 0.9 + MARGIN) and half > max(wide_half, 0.5 + MARGIN):
        return Finding(
            "intervals too wide",
            site,
            f"{of} and those at 50 % {half:.0%}: the noise is too large for this fit. Train longer, train the noise "
            "variance, or start it lower.",
        )
    return None


def _beyond(half: float, n: int) -> float:
    """The largest share of ``n`` outcomes that leaves intervals at 90 %, if a Gaussian noise is too large alone.

    How much too large it is follows from the share ``half`` in intervals at 50 %.
    """
    larger = special.ndtri((1 + min(half, 1 - 0.5 / n)) / 2) / special.ndtri(0.75)
    return share_bounds(n, max(2 * special.ndtr(-larger * special.ndtri(0.95)), 1e-12), LEVEL)[1]


def _noise_explains(residuals: Section | None) -> bool:
    """Whether residuals are larger than predicted, and noise most of what was predicted."""
    if residuals is None:
        return False
    _, square, predicted, noise, _ = residuals.rows[0]
    return noise is not None and square > predicted and noise > predicted / 2


def _shape_words(site: str, outcomes: Outcomes, values: np.ndarray) -> Finding | None:
    n = len(values)
    for column in map(_observed, values.reshape(n, -1).T):
        if (n := len(column)) < FEWEST_ROWS:
            continue
        few, many = pit_band(n, BINS, LEVEL)
        at = np.arange(1, n + 1) / n
        counts, ranks = np.histogram(column, BINS, (0, 1))[0], np.sort(column)
        distance = max(np.max(at - ranks), np.max(ranks - at + 1 / n))
        if distance <= DISTANCE or (few <= counts.min() and counts.max() <= many):
            continue
        text = f"the transforms of the data are up to {distance:.0%} off those of right predictions: "
        off = abs(column.mean() - 0.5)
        if off > 2 * _of_mean(n) and off > DISTANCE:
            side = "high" if column.mean() < 0.5 else "low"
            return Finding(
                "outcomes off to one side",
                site,
                f"{text}the predictions are too {side}. Give the GP a mean, or train longer; look whether these data "
                "are like those of training.",
            )
        return Finding(
            "outcomes of another shape",
            site,
            f"{text}the likelihood, {outcomes.likelihood}, has another shape than the data. Use one with heavier tails "
            "(Student's t), transform the data (their logarithm), or let the noise depend on the inputs.",
        )
    return None


# -- classes -----------------------------------------------------------------------------------------------------------


def _classes(
    site: str, outcomes: Outcomes, predicted: SitePrediction, rows: np.ndarray, judged: np.ndarray
) -> Diagnosis:
    labels = np.asarray(outcomes.value)[rows]
    if predicted.probs is not None:
        probs = np.asarray(predicted.probs, np.float64)[rows]
    else:
        # Several labels of one row count as rows of their own.
        one = np.asarray(predicted.mean, np.float64)[rows].reshape(-1)
        probs = np.stack([1 - one, one], axis=1)
        judged, labels = np.repeat(judged, labels[0].size), labels.reshape(-1)
        seen = ~np.isnan(labels) if labels.dtype.kind == "f" else np.ones(len(labels), bool)
        probs, judged, labels = probs[seen], judged[seen], labels[seen]
    labels = labels.astype(int)
    found = reliability(probs, labels)
    top, right = probs.max(axis=1), probs.argmax(axis=1) == labels
    often = float(np.bincount(labels).max() / len(labels))
    section = Section(
        "Classes",
        ("site", "accuracy", "confidence", "most frequent", "ECE", "Brier"),
        ((site, float(right.mean()), float(top.mean()), often, found.ece, found.brier),),
        "Confidence: mean probability of the most probable class. ECE: mean distance of confidence and accuracy over "
        "15 bins. Brier: mean squared distance of probabilities from outcomes, from 0 to 2.",
    )
    findings: tuple[Finding, ...] = ()
    if judged.sum() >= FEWEST_ROWS:
        confidence, accuracy = top[judged], right[judged]
        gap = float(confidence.mean() - accuracy.mean())
        # Of the sum of independent outcomes that have these very probabilities.
        error = float(np.sqrt(np.sum(confidence * (1 - confidence))) / len(confidence))
        if abs(gap) > MARGIN and abs(gap) > -special.ndtri((1 - LEVEL) / 2) * error:
            name = "probabilities too sure" if gap > 0 else "probabilities not sure enough"
            way = (
                "Train less long or with more inducing variables, or scale the log odds on held-out data; look whether "
                "these data are like those of training."
                if gap > 0
                else "Train longer, or with less noise in the likelihood."
            )
            text = f"the most probable class is right in {accuracy.mean():.0%}, of which {confidence.mean():.0%} were "
            findings = (Finding(name, site, f"{text}expected. {way}"),)
    return Diagnosis(findings, (section,), {f"{site}_probs": probs, f"{site}_labels": labels})
