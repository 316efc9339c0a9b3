"""Pictures over two inputs: a mean, a probability, or the likeliest class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import Array

from gpzoo._types import Argument
from gpzoo.inference.fitted.trained import Trained
from gpzoo.inference.plots import _axes as draw
from gpzoo.inference.plots._model import beyond, floats_like, model_at
from gpzoo.inference.programs.calls import entry_point

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@entry_point
def field_2d(
    rng_key: Array,
    trained: Trained,
    *args: Argument,
    site: str | None = None,
    data: str | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A field over two inputs, with data and inducing points: the mean of ``y``, a probability, or the likeliest class.

    Lines show the standard deviation of the GP. For classes, lines are the borders between the likeliest classes.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide, Trained, plots
        >>> from gpzoo.models import gp_regression
        >>> X = np.random.default_rng(0).uniform(-1, 1, (30, 2)).astype(np.float32)
        >>> y, guide = X[:, 0], InducingGuide(gp_regression, kmeans(5))
        >>> start = Trained(gp_regression, guide, guide.init_params(jax.random.key(0), X, y))
        >>> ax = plots.field_2d(jax.random.key(1), start, X, y)
        >>> ax.get_xlabel(), ax.get_ylabel()
        ('X, column 0', 'X, column 1')

    Args:
        rng_key: key of the draws.
        trained: the model. Its program has one input ``[N, 2]``.
        *args: the program's positional arguments; data among them are shown.
        site: a GP site to show in place of ``y``. If it has several outputs, the first one is shown.
        data: the data site to show; the first one if ``None``.
        model_kwargs: the program's keyword arguments, by name.
        ax: axes to draw into; ``None`` for a new figure.

    Raises:
        ValueError: if the program does not have one input ``[N, 2]``, for an unknown site, or for a program without
            data sites.
    """
    model = model_at(trained, args, model_kwargs)
    X = model.inputs_of(2, "field_2d")
    observed = model.observed(data)
    name = model.site(site) if site is not None or len(model.processes) == 1 else None
    ax = draw.one(ax, height=3.9)
    lines = [beyond(column, 0.1, 60) for column in X.T]
    sides = [(line[0], line[-1]) for line in lines]
    across = np.stack(np.meshgrid(*lines), axis=-1)
    predictions = model.predict(rng_key, across.reshape(-1, 2).astype(floats_like(X)))
    extent = (*sides[0], *sides[1])

    def over_grid(values: np.ndarray) -> np.ndarray:
        return np.reshape(values, (*across.shape[:2], -1))

    shown = predictions[observed.name if site is None else site]
    if site is None and (shown.probs is not None or observed.binary):
        if shown.probs is not None:
            _classes(ax, over_grid(shown.probs), extent)
        else:
            _probability(ax, over_grid(shown.mean)[..., 0], extent, observed.name)
        _class_marks(ax, X, observed.values)
    else:
        y = None if site is not None or observed.values is None else observed.values.reshape(len(X), -1)[:, 0]
        surface(over_grid(shown.mean)[..., 0], extent, f"mean of {site or observed.name}", X, y, ax=ax)
        if name is not None:
            _deviation(ax, np.sqrt(over_grid(predictions[name].variance)[..., 0]), sides, name)
    if (at := model.points(rng_key, name, X)) is not None:
        draw.curve(ax, at[:, 0], at[:, 1], "inducing points", "+", color="k", markersize=5, markeredgewidth=0.9)
    first = model.names[0]
    return draw.finished(ax, f"{first}, column 0", f"{first}, column 1", xlim=sides[0], ylim=sides[1])


def _deviation(ax: Axes, deviation: np.ndarray, sides: list[tuple[float, float]], name: str) -> None:
    """Contour lines of the standard deviation, each at one value, unless there is only one value."""
    if np.ptp(deviation) <= 1e-3 * deviation.max():
        return
    lines = ax.contour(deviation, extent=(*sides[0], *sides[1]), colors="k", linewidths=0.6, levels=4)
    # One number for each level, at the point of its line that is nearest to the middle.
    middle, width = np.mean(sides, axis=1), np.ptp(sides, axis=1)
    places = []
    for segments in lines.allsegs:
        if sum(map(len, segments)):
            points = np.concatenate(segments)
            places.append(tuple(points[np.argmin(np.sum(((points - middle) / width) ** 2, axis=1))]))
    ax.clabel(lines, fontsize=draw.NUMBERS - 1, fmt="%.2g", manual=places)
    ax.plot([], [], color="k", linewidth=0.6, label=f"standard deviation of {name}")


def surface(
    values: np.ndarray,
    extent: tuple[float, float, float, float],
    name: str,
    X: np.ndarray | None = None,
    y: np.ndarray | None = None,
    *,
    limit: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A field of numbers over two inputs in a diverging colour map, whose middle is zero; data have the same colours.

    Example:
        >>> import numpy as np
        >>> from gpzoo.inference import plots
        >>> ax = plots.surface(np.outer([-1.0, 0.0, 1.0], [1.0, 2.0]), (0.0, 2.0, -1.5, 1.5), "residual")
        >>> float(ax.get_xlim()[1]), float(ax.get_ylim()[1])
        (2.0, 1.5)

    Args:
        values: the field, ``[rows, columns]``, the lowest row first.
        extent: left, right, lower and upper end of the field.
        name: name of the numbers, which is the label of the colour bar.
        X: inputs ``[N, 2]`` of the data.
        y: values of the data, ``[N]``.
        limit: upper end of the colour bar; the lower end is ``-limit``. ``None`` means the largest absolute value of
            the field and the data.
        ax: axes to draw into; ``None`` for a new figure.
    """
    ax = draw.one(ax, height=3.9)
    if limit is None:
        limit = float(max(np.abs(values).max(), 0 if y is None else np.abs(y).max())) or 1.0
    scale = {"cmap": draw.DIVERGING, "vmin": -limit, "vmax": limit}
    drawn = draw.image(ax, values, extent=extent, **draw.FIELD, **scale)
    if X is not None and y is not None:
        ax.scatter(*X.T, c=y, s=16, edgecolor="k", linewidth=0.5, label="data", zorder=3, **scale)
        draw.keep(ax, draw.Series("data", *X.T))
    draw.colour_bar(ax, drawn, name)
    return ax


def _probability(ax: Axes, probs: np.ndarray, extent: tuple, name: str) -> None:
    # Paler than the marks of the data, whose colours are the ends of the scale.
    drawn = draw.image(ax, probs, cmap=draw.DIVERGING, vmin=0, vmax=1, alpha=0.7, extent=extent, **draw.FIELD)
    _line(ax, probs - 0.5, extent, "probability 1/2" if probs.min() < 0.5 < probs.max() else None, 1)
    draw.colour_bar(ax, drawn, f"P({name} = 1)")


def _line(ax: Axes, values: np.ndarray, extent: tuple, name: str | None, width: float) -> None:
    """The line along which numbers are zero, if it exists, and its name in the legend."""
    if values.min() < 0 < values.max():
        ax.contour(values, extent=extent, colors="k", levels=[0.0], linewidths=width)
    if name is not None:
        ax.plot([], [], color="k", linewidth=width, label=name)


def _classes(ax: Axes, probs: np.ndarray, extent: tuple) -> None:
    """The likeliest class as a colour, which is paler if the class is less sure."""
    from matplotlib.colors import to_rgb
    from scipy.ndimage import uniform_filter

    # Means of nine neighbours, because likelihoods without a formula make new draws of probabilities at every input.
    probs, K = uniform_filter(probs, 3, mode="nearest", axes=(0, 1)), probs.shape[-1]
    colours = np.array([to_rgb(draw.colour(k)) for k in range(K)])
    strength = 0.75 * np.clip((probs.max(axis=-1)[..., None] - 1 / K) / (1 - 1 / K), 0, 1)
    shown = 1 - strength * (1 - colours[probs.argmax(axis=-1)])
    draw.image(ax, shown, extent=extent, **draw.FIELD)
    for k in range(K):
        ahead = probs[..., k] - np.delete(probs, k, axis=-1).max(axis=-1)
        _line(ax, ahead, extent, "border of the likeliest class" if k == 0 else None, 0.8)


def _class_marks(ax: Axes, X: np.ndarray, values: np.ndarray | None) -> None:
    if values is None:
        return
    values = values.reshape(len(values), -1)[:, 0]
    classes = np.unique(values)
    for i, k in enumerate(classes):
        colour = (draw.BLUE, draw.VERMILION)[i] if len(classes) <= 2 else draw.colour(k)
        own, name = X[values == k], f"data of class {k:g}"
        style = {"markersize": 4, "markeredgecolor": "w", "markeredgewidth": 0.5, "color": colour}
        draw.curve(ax, own[:, 0], own[:, 1], name, draw.marker(i), **style)
