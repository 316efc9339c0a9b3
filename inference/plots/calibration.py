"""Pictures of calibration, from arrays: confusion, reliability, and probability integral transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpzoo._types import ArrayLike
from gpzoo.inference.diagnosis.calibration import checked_classes, pit_band, share_bounds
from gpzoo.inference.diagnosis.calibration import reliability as scores_of
from gpzoo.inference.plots import _axes as draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Largest number of classes for which the numbers of a confusion matrix can be read.
_NUMBERED = 12


def confusion(probs: ArrayLike, labels: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Confusion matrix: the number of rows for each pair of a true class and a predicted class.

    The colour of a pair shows the fraction of the rows of the true class that have this predicted class.

    Example:
        >>> import numpy as np
        >>> from gpzoo.inference import plots
        >>> ax = plots.confusion(np.array([[0.9, 0.1], [0.3, 0.7], [0.6, 0.4]]), np.array([0, 1, 1]))
        >>> [text.get_text() for text in ax.texts]
        ['1', '1', '1']

    Args:
        probs: predicted probabilities of ``K`` classes, ``[N, K]``. The class with the largest probability is the
            prediction.
        labels: true classes ``0 .. K - 1``, ``[N]``.
        ax: axes to draw into; ``None`` for a new figure.

    Raises:
        ValueError: for shapes that do not agree, or labels that are not classes.
    """
    probs, labels = checked_classes(np.asarray(probs), np.asarray(labels))
    K = probs.shape[1]
    counts = np.bincount(labels * K + probs.argmax(axis=1), minlength=K * K).reshape(K, K)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    style = {"cmap": "Blues", "vmin": 0, "vmax": 1, "written": counts if K <= _NUMBERED else None}
    ax = draw.matrix(ax, share, "share of the true class", "predicted class", "true class", **style)
    if K <= _NUMBERED:
        for (i, j), number in np.ndenumerate(counts):
            if number:
                colour = "w" if share[i, j] > 0.5 else "k"
                ax.text(j, i, str(number), ha="center", va="center", fontsize=draw.NUMBERS, color=colour)
        ax.set_xticks(range(K))
        ax.set_yticks(range(K))
    ax.tick_params(length=0)
    return ax


def reliability(probs: ArrayLike, labels: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Reliability diagram: the accuracy of the likeliest class, against its predicted probability.

    With probability 95 %, the accuracy of a calibrated prediction lies in the bar around the diagonal. The area of a
    dot grows with the number of rows in its bin.

    Example:
        >>> import numpy as np
        >>> from gpzoo.inference import plots
        >>> rng = np.random.default_rng(0)
        >>> sure = rng.uniform(0.5, 1.0, 300)
        >>> ax = plots.reliability(np.stack([sure, 1 - sure], axis=1), (rng.uniform(size=300) > sure).astype(int))
        >>> ax.get_ylabel()
        'share of data where it is right'

    Args:
        probs: predicted probabilities of ``K`` classes, ``[N, K]``. For two classes, it may also be the probability of
            class 1, ``[N]``, such as ``mean`` of a ``Bernoulli``.
        labels: true classes ``0 .. K - 1``, ``[N]``.
        ax: axes to draw into; ``None`` for a new figure.

    Raises:
        ValueError: for shapes that do not agree, or labels that are not classes.
    """
    probs = np.asarray(probs)
    probs = np.stack([1 - probs, probs], axis=1) if probs.ndim == 1 else probs
    scores = scores_of(probs, np.asarray(labels))
    ax = draw.one(ax, height=3.9, width=4.2)
    draw.curve(ax, [0, 1], [0, 1], "calibrated", "--", color="0.5", linewidth=1)
    pairs = zip(scores.count, scores.confidence, strict=True)
    bounds = np.array([share_bounds(int(n), float(np.clip(p, 1e-9, 1 - 1e-9))) for n, p in pairs])
    ax.vlines(scores.confidence, *bounds.T, color="0.8", linewidth=6, label="95 %, if calibrated", zorder=1)
    draw.keep(ax, draw.Series("95 %, if calibrated", scores.confidence, bounds.T))
    area = 12 + 130 * scores.count / scores.count.max()
    dots = {"color": draw.BLUE, "edgecolor": "w", "linewidth": 0.6, "zorder": 3, "clip_on": False}
    name = f"{scores.count.sum()} data in bins"
    ax.scatter(scores.confidence, scores.accuracy, s=area, label=name, **dots)
    draw.keep(ax, draw.Series(name, scores.confidence, scores.accuracy))
    for words in (f"expected calibration error {scores.ece:.3f}", f"Brier score {scores.brier:.3f}"):
        ax.plot([], [], " ", label=words)
    limits = {"xlim": (float(scores.confidence.min()) - 0.05, 1.0), "ylim": (0, 1.0)}
    return draw.finished(ax, "probability of the likeliest class", "share of data where it is right", **limits)


def pit(values: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Histogram of probability integral transforms, which are uniform if predictions are right.

    If predictions are right, all counts lie in the band with probability 95 %. A hump means that predictive intervals
    are too wide, a bowl means that they are too narrow, and a slope means that predictions are shifted.

    Example:
        >>> import numpy as np
        >>> from gpzoo.inference import plots
        >>> ax = plots.pit(np.random.default_rng(0).uniform(size=500))
        >>> ax.get_xlabel()
        'probability integral transform'

    Args:
        values: transforms of outcomes, in [0, 1], in an array of any shape.
        ax: axes to draw into; ``None`` for a new figure.

    Raises:
        ValueError: if there are no values, or if values are outside [0, 1].
    """
    values = np.ravel(np.asarray(values, np.float64))
    if values.size == 0 or not np.all((values >= 0) & (values <= 1)):
        raise ValueError("values must be probability integral transforms, numbers between 0 and 1, at least one.")
    n = len(values)
    number = int(np.clip(n // 10, 4, 20))
    low, high = pit_band(n, number)
    ax = draw.one(ax, height=2.9)
    draw.bars(ax, values, f"{n} data", bins=number, range=(0, 1), color=draw.BLUE, edgecolor="w", linewidth=0.8)
    ax.axhspan(low, high, color="0.3", alpha=0.22, linewidth=0, label="95 % band, all bins")
    ax.axhline(n / number, color="0.2", linewidth=1, linestyle="--", label="uniform")
    return draw.finished(ax, "probability integral transform", f"data per bin, 1/{number} wide", xlim=(0, 1))
