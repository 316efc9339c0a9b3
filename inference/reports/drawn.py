"""Pictures for a report, with their contents in numbers and in words."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from gpzoo.inference.diagnosis.findings import Section, shown
from gpzoo.inference.plots._axes import Image, Series, drawn_in
from gpzoo.inference.reports.document import Picture

#: Numbers in a table: points of a series, evenly spaced along it, and places of an image in each direction.
_POINTS, _PLACES = 9, 3

#: For images with at most this many rows and columns, a table has all numbers.
_WHOLE = 16

#: A series with more points is drawn in pixels, because as curves it would take megabytes.
_DENSE = 3000

#: Pixels per inch, for drawings in pixels.
_DPI = 150


def picture(title: str, words: str, axes: Any) -> Picture:
    """A picture for a report: a drawing as SVG, its numbers in tables, and a description.

    Args:
        title: heading of the picture.
        words: a sentence that describes the content.
        axes: the result of a function of :mod:`gpzoo.inference.plots`: one axes, or several axes of one figure.
    """
    panels: list[Any] = list(np.ravel(np.asarray(axes, object)))
    tables, descriptions = [], []
    for ax in panels:
        table = _table(title, ax)
        tables += [table] if table.rows else []
        descriptions.append(_described(ax))
    alt = f"{title}. {words} {'; '.join(filter(None, descriptions))}. "
    alt += "The numbers are in the table below." if tables else ""
    return Picture(title, words, _svg(panels), alt.strip(), tuple(tables))


def _svg(panels: list[Any]) -> str:
    figure: Any = panels[0].figure
    for ax in figure.axes:
        for series in [*ax.lines, *ax.collections]:
            paths = series.get_paths() if hasattr(series, "get_paths") else [series.get_path()]
            if sum(len(path.vertices) for path in paths) > _DENSE:
                series.set_rasterized(True)
    from matplotlib import rc_context

    out = io.BytesIO()
    # Letters drawn as curves look the same on every machine. With a fixed salt, equal pictures are equal files.
    with rc_context({"svg.fonttype": "path", "svg.hashsalt": "gpzoo"}):
        figure.savefig(out, format="svg", dpi=_DPI, metadata={"Date": None, "Creator": None})
    return address(out.getvalue(), "image/svg+xml")


def address(content: bytes, kind: str) -> str:
    """An address that contains the content itself, ``data:...``, and that a page can show.

    Args:
        content: content of a file.
        kind: media type of the content, such as ``"image/png"``.
    """
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _described(ax: Any) -> str:
    """A description of the axes and of the things that are drawn in them."""
    names, images = ax.get_legend_handles_labels()[1], len(ax.images)
    parts = [" against ".join(filter(None, _labels(ax)[::-1]))]
    parts += [f"shown: {', '.join(names)}"] if names else []
    parts += [f"{images} images" if images > 1 else "an image in colours"] if images else []
    return ", ".join(filter(None, parts))


def _labels(ax: Any) -> tuple[str, str]:
    return " ".join(ax.get_xlabel().split()), " ".join(ax.get_ylabel().split())


def _table(title: str, ax: Any) -> Section:
    """The numbers in axes: all of a small image, one row for each of several images, or points of every series."""
    x, y = _labels(ax)
    x, y = x or "x", y or "y"
    name = title if y in (title, "y") else ax.get_title() or y
    images = [each for each in drawn_in(ax) if isinstance(each, Image)]
    rows: list[tuple[Any, ...]] = []
    if len(images) > 1:
        for i, each in enumerate(images, 1):
            pixels = each.values
            rows.append(
                (str(i), each.caption or str(i), float(pixels.min()), float(pixels.mean()), float(pixels.max()))
            )
        return Section(name, ("image", "caption", "least", "mean", "greatest"), tuple(rows))
    if images and max(images[0].values.shape[:2]) <= _WHOLE:
        values = images[0].values if images[0].written is None else images[0].written
        rows = [(str(i), *row) for i, row in enumerate(values.tolist())]
        return Section(name, (y, *(f"{x} {j}" for j in range(values.shape[1]))), tuple(rows))
    for each in drawn_in(ax):
        if isinstance(each, Series):
            rows += _of_series(each)
    for each in images:
        rows += _of_field(each)
    note = "Of the colours, numbers at evenly spaced places." if images else ""
    return Section(name, ("shown", x, y), tuple(rows), note)


def _of_series(series: Series) -> Iterator[tuple[Any, ...]]:
    """Points of a series: a few if they are positions on an axis, but all if they are names."""
    named = len(series.x) and isinstance(series.x[0], str)
    for i in range(len(series.x)) if named else _some(len(series.x), _POINTS):
        if series.y is None or np.ndim(series.y) == 1:
            y = None if series.y is None else _plain(series.y[i])
        else:
            y = " to ".join(shown(float(end[i])) for end in series.y)
        yield series.name, _plain(series.x[i]), y


def _plain(entry: Any) -> str | float:
    return entry if isinstance(entry, str) else float(entry)


def _some(n: int, most: int) -> list[int]:
    """Evenly spaced indices that include the first and the last one."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int)).tolist()


def _of_field(image: Image) -> Iterator[tuple[Any, ...]]:
    """Numbers of an image at nine places. Colours of classes have no numbers."""
    if image.values.ndim != 2:
        return
    (H, W), (left, right, *ends) = image.values.shape, image.extent
    low, high = ends if image.from_below else reversed(ends)
    for i, j in product(_some(H, _PLACES), _some(W, _PLACES)):
        at = float(left + (j + 0.5) / W * (right - left)), float(low + (i + 0.5) / H * (high - low))
        yield (f"colour: {shown(float(image.values[i, j]))}", *at)
