"""What are pictures drawn on, and in which colours? Figures without a window, for the column of a journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpzoo._extras import needs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Inches. At 400 pixels a letter of 9 points is then 10 pixels high.
WIDTH = 4.8

#: Colours that the colour-blind can tell apart (Okabe and Ito 2008, *Color universal design*).
BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7"

#: Of things that are alike, in this order, and their markers.
CYCLE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, "0.35")
MARKERS = "os^DvPX"

#: Of amounts, and of amounts with a middle.
SEQUENTIAL, DIVERGING = "viridis", "RdBu_r"

#: Ends of the central intervals that are drawn, and what they are called.
ENDS, CENTRAL = (0.05, 0.95), "central 90 %"

#: Outputs that can still be told apart in one panel.
OUTPUTS = 4

#: Points: of words, and of numbers inside a picture.
WORDS, NUMBERS = 9, 8


def blank(width: float, height: float) -> Figure:
    """An empty figure of a size in inches, without a window.

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
    """The given axes, or those of a new figure."""
    return blank(width, height).subplots() if ax is None else ax


def several(ax: Sequence[Axes] | None, count: int, height: float, columns: int = 1, share: bool = False) -> list[Axes]:
    """The given axes, or those of a new figure, row by row; ``height`` is that of a row.

    Raises:
        ValueError: if not as many axes are given as there are panels.
    """
    if ax is not None:
        given = [] if count == 0 else list(np.ravel(np.asarray(ax, object)))
        if len(given) != count:
            raise ValueError(
                f"This picture has {count} panels: ax must be a sequence of as many axes, got {len(given)}."
            )
        return given
    columns = min(columns, count)
    rows = -(-count // columns)
    panels = blank(WIDTH, 0.5 + height * rows).subplots(rows, columns, squeeze=False, sharex=share).ravel()
    for axes in panels[count:]:
        axes.set_axis_off()
    return list(panels[:count])


def label(ax: Axes, x: str, y: str) -> None:
    """Name both axes, and leave out the frame's upper and right sides."""
    ax.set_xlabel(x, fontsize=WORDS)
    ax.set_ylabel(y, fontsize=WORDS)
    ax.tick_params(labelsize=NUMBERS)
    ax.spines[["top", "right"]].set_visible(False)


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


def _columns(ax: Axes, names: Sequence[str]) -> int:
    """How many columns of a legend fit above the axes, at most three."""
    figure: Any = ax.figure
    # Margins are narrower than the default, which the layout has not changed yet.
    points = 1.2 * 72 * ax.get_position().width * figure.get_figure(root=True).get_size_inches()[0]
    for columns in (3, 2):
        rows = -(-len(names) // columns)
        # A letter is about half as wide as high; a handle takes the room of six.
        letters = sum(6 + max(map(len, names[i : i + rows])) for i in range(0, len(names), rows))
        if 0.54 * NUMBERS * letters <= points:
            return min(columns, len(names))
    return 1


def colour_bar(ax: Axes, drawn: Any, name: str) -> None:
    """The scale of the colours of a picture, with what they mean."""
    figure: Any = ax.figure
    # As tall as the picture, whatever its aspect.
    bar = figure.colorbar(drawn, cax=ax.inset_axes((1.03, 0, 0.05, 1)))
    bar.set_label(name, fontsize=WORDS)
    bar.ax.tick_params(labelsize=NUMBERS)
    bar.outline.set_visible(False)
