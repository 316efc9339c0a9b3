"""Pictures of a training: the bound at every step, and its running mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpzoo._types import ArrayLike
from gpzoo.inference.fitted.trained import Trained
from gpzoo.inference.plots import _axes as draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def elbo(trained: Trained, *, ax: Axes | None = None) -> Axes:
    """The evidence lower bound of a training, or of each of several trainings; see :func:`learning_curve`.

    Example:
        >>> import numpy as np
        >>> from gpzoo.inference import Trained, plots
        >>> from gpzoo.models import gp_regression
        >>> trained = Trained(gp_regression, None, {}, losses=np.exp(-np.linspace(0, 5, 200)))
        >>> plots.elbo(trained).get_xlabel()
        'optimisation step'

    Args:
        trained: a model that :func:`~gpzoo.inference.fit` trained.
        ax: axes to draw into; ``None`` for a new figure.

    Raises:
        ValueError: if the model has no losses.
    """
    losses = np.asarray(trained.losses)
    if losses.size == 0:
        raise ValueError("This model has no losses: gpzoo.inference.fit, which keeps them, did not train it.")
    if losses.ndim == 1:
        return learning_curve(-losses, ax=ax)
    ax = draw.one(ax)
    window = max(1, losses.shape[1] // 50)
    smooth, count = [], len(losses)
    for k, each in enumerate(losses):
        finite = np.isfinite(each)
        smooth.append(running_mean(-each[finite], window))
        name = f"training {k}" if count <= len(draw.CYCLE) else f"{count} trainings" if k == 0 else None
        draw.curve(ax, np.flatnonzero(finite) + 1, smooth[k], name, color=draw.colour(k), linewidth=1.2)
    _fit_to(ax, smooth)
    return draw.finished(ax, "optimisation step", f"evidence lower bound (nats),\nmean of {window} steps")


def learning_curve(values: ArrayLike | Trained, steps: ArrayLike | None = None, *, ax: Axes | None = None) -> Axes:
    """The evidence lower bound against optimisation steps: the bound of each step in grey, and the running mean.

    The limits of the axes fit the running mean without its first steps, which are far below the rest.

    Example:
        >>> import numpy as np
        >>> from gpzoo.inference import plots
        >>> ax = plots.learning_curve(np.log(np.arange(1, 300)))
        >>> ax.get_xlabel()
        'optimisation step'

    Args:
        values: the bound ``[n]``, in nats, or a model that :func:`~gpzoo.inference.fit` trained; values that are not
            finite are left out.
        steps: step numbers of the values, ``[n]``; ``1, ..., n`` if ``None``.
        ax: axes to draw into; ``None`` for a new figure.

    Raises:
        ValueError: if the curve is empty, or if steps and values have different lengths.
    """
    if isinstance(values, Trained):
        return elbo(values, ax=ax)
    values = np.asarray(values, dtype=np.float64)
    steps = np.arange(1, len(values) + 1) if steps is None else np.asarray(steps)
    if values.ndim != 1 or values.size == 0 or steps.shape != values.shape:
        raise ValueError(f"A learning curve needs matching steps and values [n], got {steps.shape} and {values.shape}.")
    finite = np.isfinite(values)
    steps, values = steps[finite], values[finite]
    ax = draw.one(ax)
    window = max(1, len(values) // 50)
    smooth = running_mean(values, window)
    draw.curve(ax, steps, values, "bound of each step", color="0.8", linewidth=0.8)
    draw.curve(ax, steps, smooth, f"mean of the last {window} values", color=draw.BLUE, linewidth=1.4)
    _fit_to(ax, [smooth])
    ax.margins(x=0.01)
    return draw.finished(ax, "optimisation step", "evidence lower bound (nats)")


def _fit_to(ax: Axes, curves: list[np.ndarray]) -> None:
    """Limits around curves without their first steps."""
    shown = np.concatenate([each[len(each) // 20 :] for each in curves])
    if shown.size and shown.max() > shown.min():
        margin = 0.1 * (shown.max() - shown.min())
        ax.set_ylim(shown.min() - margin, shown.max() + margin)


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean of the last ``window`` values, or fewer at the start: ``[n]`` to ``[n]``."""
    total = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    end = np.arange(1, len(values) + 1)
    start = np.maximum(end - window, 0)
    return (total[end] - total[start]) / (end - start)
