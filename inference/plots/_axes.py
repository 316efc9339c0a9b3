"""Figures without a window, as wide as a journal column, and the numbers that are drawn in them.

The functions here draw curves, bands, images and bars. They keep the drawn numbers, and :func:`drawn_in` returns them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from gpzoo._extras import needs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Inches. At 400 pixels, a letter of 9 points is then 10 pixels high.
WIDTH = 4.8

#: Colours that colour-blind readers can distinguish (Okabe and Ito 2008, *Color universal design*).
BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7"

#: Colours of similar things, in the order of use, and their markers.
CYCLE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, "0.35")
MARKERS = "os^DvPX"

#: Colour maps of amounts, and of amounts on two sides of a middle.
SEQUENTIAL, DIVERGING = "viridis", "RdBu_r"

#: Probabilities at the ends of the central intervals, and the name of these intervals.
ENDS, CENTRAL = (0.05, 0.95), "central 90 %"

#: Largest number of outputs that readers can distinguish in one panel.
OUTPUTS = 4

#: Options of an image over two inputs.
FIELD: dict[str, Any] = {"origin": "lower", "aspect": "auto", "interpolation": "bilinear"}

#: Size of words, and of numbers inside a picture, in points.
WORDS, NUMBERS = 9, 8


def colour(k: int) -> str:
    """The colour of the ``k``-th of several similar things."""
    return CYCLE[int(k) % len(CYCLE)]


def marker(k: int) -> str:
    """The marker of the ``k``-th of several similar things."""
    return MARKERS[k % len(MARKERS)]


def central(draws: np.ndarray) -> np.ndarray:
    """The ends of central intervals over draws. Draws are the first axis."""
    return np.quantile(draws, ENDS, axis=0)


def blank(width: float, height: float) -> Figure:
    """An empty figure without a window, with a size in inches.

    Example:
        >>> from gpzoo.inference import plots
        >>> plots.blank(4.0, 3.0).get_size_inches()
        array([4., 3.])

    Raises:
        MissingExtraError: without matplotlib.
    """
    with needs("plots", "Drawing"):
        from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def one(ax: Axes | None, height: float = 3.2, width: float = WIDTH) -> Axes:
    """The given axes, or the axes of a new figure."""
    return blank(width, height).subplots() if ax is None else ax


def several(ax: Sequence[Axes] | None, count: int, height: float, columns: int = 1, share: bool = False) -> list[Axes]:
    """The given axes, or axes in rows of a new figure; ``height`` is the height of a row.

    Raises:
        ValueError: if the number of given axes is not the number of panels.
    """
    if ax is not None:
        panels = [] if count == 0 else list(np.ravel(np.asarray(ax, object)))
        if len(panels) != count:
            raise ValueError(
                f"This picture has {count} panels: ax must be a sequence of as many axes, got {len(panels)}."
            )
        return panels
    columns = min(columns, count)
    rows = -(-count // columns)
    panels = blank(WIDTH, 0.5 + height * rows).subplots(rows, columns, squeeze=False, sharex=share).ravel()
    for axes in panels[count:]:
        axes.set_axis_off()
    return list(panels[:count])


# -- what is drawn -----------------------------------------------------------------------------------------------------


class Series(NamedTuple):
    """Numbers that are drawn under one name.

    Attributes:
        name: name in the legend.
        x: positions, numbers or names, ``[n]``.
        y: numbers or names, ``[n]``; the two ends of a band, ``[2, n]``; ``None`` for marks along the axis.
    """

    name: str
    x: Sequence[Any] | np.ndarray
    y: Sequence[Any] | np.ndarray | None


class Image(NamedTuple):
    """Numbers that are drawn as colours.

    Attributes:
        values: ``[rows, columns]``, or with a last axis of colours; with ``from_below``, the first row is lowest.
        extent: left, right, lower and upper end.
        caption: caption of the image.
        from_below: whether rows are counted from below.
        written: numbers that are written in the pixels, if they differ from the numbers of the colours.
    """

    values: np.ndarray
    extent: tuple[float, float, float, float]
    caption: str
    from_below: bool
    written: np.ndarray | None


#: Drawn numbers by axes, in the order of drawing.
_DRAWN: WeakKeyDictionary[Any, list[Series | Image]] = WeakKeyDictionary()


def drawn_in(ax: Axes) -> list[Series | Image]:
    """The numbers that were drawn in axes."""
    return _DRAWN.get(ax, [])


def keep(ax: Axes, numbers: Series | Image) -> None:
    """Keep numbers that another function has drawn."""
    _DRAWN.setdefault(ax, []).append(numbers)


def curve(
    ax: Axes,
    x: Any,
    y: Any,
    name: str | None = None,
    marks: str = "-",
    *,
    named: Any = None,
    legend: bool = True,
    **style: Any,
) -> None:
    """A curve, or marks. Without a name, it is not in the legend and not in the tables of a report.

    Args:
        ax: axes.
        x: positions, ``[n]``.
        y: values, ``[n]``.
        name: name in the legend.
        marks: format string of Matplotlib's ``plot``, such as ``"+"``.
        named: names of the values; the tables of a report have these names in place of the values.
        legend: whether the curve is in the legend.
        **style: options of Matplotlib's ``plot``.
    """
    ax.plot(x, y, marks, label=name if legend else None, **style)
    if name is not None:
        keep(ax, Series(name, np.asarray(x), np.asarray(y) if named is None else named))


def ticks_below(ax: Axes, x: np.ndarray, name: str, **style: Any) -> None:
    """Marks along the horizontal axis, independent of the limits of the vertical axis."""
    at = np.full(len(x), 0.025)
    ax.plot(x, at, "|", label=name, transform=ax.get_xaxis_transform(), clip_on=True, **style)
    keep(ax, Series(name, x, None))


def band(ax: Axes, x: np.ndarray, ends: Any, name: str | None, colour: str, alpha: float) -> None:
    """An area between two curves ``[2, n]``."""
    ax.fill_between(x, *ends, color=colour, alpha=alpha, linewidth=0, label=name)
    if name is not None:
        keep(ax, Series(name, x, np.asarray(ends)))


def bars(ax: Axes, values: Any, name: str, *, legend: bool = True, **style: Any) -> None:
    """A histogram."""
    heights, edges, _ = ax.hist(values, label=name if legend else None, **style)
    between = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges)]
    keep(ax, Series(name, between, np.asarray(heights)))


def image(ax: Axes, values: Any, *, caption: str = "", written: np.ndarray | None = None, **style: Any) -> Any:
    """Numbers drawn as colours. Returns Matplotlib's image, to which a colour bar can be added."""
    drawn = ax.imshow(values, **style)
    left, right, low, high = drawn.get_extent()
    keep(ax, Image(np.asarray(values), (left, right, low, high), caption, drawn.origin == "lower", written))
    return drawn


def label(ax: Axes, x: str, y: str, *, frame: bool = False) -> None:
    """Name both axes, and remove the upper and right sides of the frame."""
    ax.set_xlabel(x, fontsize=WORDS)
    ax.set_ylabel(y, fontsize=WORDS)
    ax.tick_params(labelsize=NUMBERS)
    if not frame:
        ax.spines[["top", "right"]].set_visible(False)


def finished(ax: Axes, x: str, y: str, **limits: Any) -> Axes:
    """Axes with names, limits and a legend."""
    label(ax, x, y)
    ax.set(**limits)
    legend_above(ax)
    return ax


def matrix(ax: Axes | None, values: Any, name: str, x: str, y: str, **style: Any) -> Axes:
    """Numbers drawn as colours, with a colour scale and the names of rows and columns."""
    ax = one(ax, height=3.9)
    drawn = image(ax, values, **style)
    label(ax, x, y, frame=True)
    colour_bar(ax, drawn, name)
    return ax


def legend_above(ax: Axes) -> None:
    """A legend between the top of the axes and their title, so that it covers no data."""
    handles, names = ax.get_legend_handles_labels()
    if not handles:
        return
    ax.legend(
        handles,
        names,
        ncols=_columns(ax, names),
        loc="lower center",
        bbox_to_anchor=(0.5, 1.01),
        fontsize=NUMBERS,
        frameon=False,
        borderaxespad=0,
        handlelength=1.6,
        columnspacing=1.4,
    )


def legend_of_all(panels: Sequence[Axes], *, above: bool) -> None:
    """One legend for panels with the same entries, in place of the legends of the panels.

    Args:
        panels: the axes.
        above: whether the legend is above all panels of a figure with a layout; otherwise it is above the first panel.
    """
    entries: dict[str, Any] = {}
    for ax in panels:
        handles, names = ax.get_legend_handles_labels()
        entries = dict(zip(names, handles, strict=True)) | entries
        if (own := ax.get_legend()) is not None:
            own.remove()
    if not above:
        return legend_above(panels[0])
    figure: Any = panels[0].figure
    options = {"fontsize": NUMBERS, "frameon": False, "handlelength": 1.6, "columnspacing": 1.4}
    figure.legend(entries.values(), entries.keys(), ncols=min(len(entries), 4), loc="outside upper center", **options)


def _columns(ax: Axes, names: Sequence[str]) -> int:
    """The number of legend columns that fit above the axes, at most three."""
    figure: Any = ax.figure
    # The layout has not changed the default margins yet. It will make them narrower.
    points = 1.2 * 72 * ax.get_position().width * figure.get_figure(root=True).get_size_inches()[0]
    for columns in (3, 2):
        rows = -(-len(names) // columns)
        # A letter is about half as wide as it is high. A handle takes the space of six letters.
        letters = sum(6 + max(map(len, names[i : i + rows])) for i in range(0, len(names), rows))
        if 0.54 * NUMBERS * letters <= points:
            return min(columns, len(names))
    return 1


def colour_bar(ax: Axes, drawn: Any, name: str) -> None:
    """The scale of the colours of a picture, with the meaning of the colours."""
    figure: Any = ax.figure
    # The bar is as tall as the picture, whatever the aspect of the picture is.
    bar = figure.colorbar(drawn, cax=ax.inset_axes((1.03, 0, 0.05, 1)))
    bar.set_label(name, fontsize=WORDS)
    bar.ax.tick_params(labelsize=NUMBERS)
    bar.outline.set_visible(False)
