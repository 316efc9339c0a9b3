"""Figures that every experiment shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jax.typing import ArrayLike

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean over the last ``window`` values, over fewer at the start: ``[n]`` to ``[n]``."""
    total = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    end = np.arange(1, len(values) + 1)
    start = np.maximum(end - window, 0)
    return (total[end] - total[start]) / (end - start)


def learning_curve(elbo: ArrayLike | tuple[ArrayLike, ArrayLike]) -> Figure:
    """The evidence lower bound against optimisation steps, minibatch noise in grey under its running mean.

    The frame follows the running mean without its first steps, which start far below.

    Args:
        elbo: the bound at every step ``[steps]``, or a pair of step numbers and values, both ``[n]``.

    Returns:
        A figure that belongs to no window.

    Raises:
        ValueError: if the curve is empty or steps and values differ in length.
    """
    from matplotlib.figure import Figure

    steps, values = elbo if isinstance(elbo, tuple) else (None, elbo)
    values = np.asarray(values, dtype=np.float64)
    steps = np.arange(1, len(values) + 1) if steps is None else np.asarray(steps)
    if values.ndim != 1 or values.size == 0 or steps.shape != values.shape:
        raise ValueError(f"A learning curve needs matching steps and values [n], got {steps.shape} and {values.shape}.")
    finite = np.isfinite(values)
    steps, values = steps[finite], values[finite]

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    smooth = running_mean(values, max(1, len(values) // 50))
    axes.plot(steps, values, color="0.8", linewidth=0.8, label="minibatch estimate")
    axes.plot(steps, smooth, color="C0", label="running mean")
    shown = smooth[len(smooth) // 20 :]
    if shown.size and shown.max() > shown.min():
        margin = 0.1 * (shown.max() - shown.min())
        axes.set_ylim(shown.min() - margin, shown.max() + margin)
    axes.set(xlabel="optimisation step", ylabel="evidence lower bound (nats)")
    axes.legend(loc="lower right")
    return figure
