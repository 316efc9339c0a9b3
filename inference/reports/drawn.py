"""What does a picture show, in numbers and in words? Its series, its images and its labels, read from its axes."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpzoo.inference.diagnosis.findings import Section, shown
from gpzoo.inference.reports.document import Picture

#: Points of a series that its table has, evenly spaced along it.
_POINTS = 9

#: Images up to so many rows and columns have all their numbers in a table.
_WHOLE = 16

#: Points beyond which a series is drawn in pixels: as curves it would fill megabytes.
_DENSE = 3000

#: Pixels per inch where there are pixels.
_DPI = 150


def picture(title: str, words: str, axes: Any) -> Picture:
    """A picture for a report: its drawing as SVG, its numbers in tables, and a description.

    Args:
        title: heading of the picture.
        words: what it shows, a sentence.
        axes: what a function of :mod:`gpzoo.inference.plots` returns, one axes or several of one figure.
    """
    panels: list[Any] = list(np.ravel(np.asarray(axes, object)))
    tables = [_table(title, ax) for ax in panels]
    tables = [table for table in tables if table.rows]
    said = "; ".join(filter(None, (_described(ax) for ax in panels)))
    alt = f"{title}. {words} {said}. " + ("The numbers are in the table below." if tables else "")
    return Picture(title, words, _svg(panels), alt.strip(), tuple(tables))


def _svg(panels: list[Any]) -> str:
    figure: Any = panels[0].figure
    for ax in figure.axes:
        for series in [*ax.lines, *ax.collections]:
            if sum(len(path.vertices) for path in _paths(series)) > _DENSE:
                series.set_rasterized(True)
    from matplotlib import rc_context

    out = io.BytesIO()
    # Letters as curves look the same on every machine; a fixed salt makes equal pictures equal files.
    with rc_context({"svg.fonttype": "path", "svg.hashsalt": "gpzoo"}):
        figure.savefig(out, format="svg", dpi=_DPI, metadata={"Date": None, "Creator": None})
    return address(out.getvalue(), "image/svg+xml")


def address(content: bytes, kind: str) -> str:
    """The content itself as an address that a page can show, ``data:...``.

    Args:
        content: of a file.
        kind: its media type, such as ``"image/png"``.
    """
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _paths(series: Any) -> list[Any]:
    return series.get_paths() if hasattr(series, "get_paths") else [series.get_path()]


def _described(ax: Any) -> str:
    """The axes and what lies between them."""
    names = [name for name in ax.get_legend_handles_labels()[1]]
    x, y = (" ".join(text.split()) for text in (ax.get_xlabel(), ax.get_ylabel()))
    parts = [f"{y} against {x}" if x and y else x or y]
    parts += [f"shown: {', '.join(names)}"] if names else []
    images = len(ax.images)
    parts += [f"{images} images" if images > 1 else "an image in colours"] if images else []
    return ", ".join(filter(None, parts))


def _table(title: str, ax: Any) -> Section:
    """The numbers in axes: an image of few pixels whole, several images a row each, else points of every series."""
    x, y = (" ".join(text.split()) for text in (ax.get_xlabel() or "x", ax.get_ylabel() or "y"))
    name = ax.get_title() or y if title != y and y != "y" else title
    if len(ax.images) > 1:
        return _of_images(name, ax)
    if ax.images and max(np.shape(ax.images[0].get_array())[:2]) <= _WHOLE:
        return _of_matrix(name, ax, x, y)
    rows = [row for series in _series(ax, x) for row in series]
    note = ""
    if ax.images:
        rows += _of_field(ax)
        note = "Of the colours, numbers at evenly spaced places."
    texts = [" ".join(text.get_text().split()) for text in ax.texts if ax.get_xlim() and text.get_text().strip()]
    note = " ".join(filter(None, [note, *(texts if len(texts) <= 3 else [])]))
    return Section(name, ("shown", x, y), tuple(rows), note)


def _series(ax: Any, x: str) -> Iterator[list[tuple[Any, ...]]]:
    """Rows of each series that the legend names, or of all where it names none."""
    ticks = {axis: _named_ticks(axis) for axis in (ax.xaxis, ax.yaxis)}

    def at(axis: Any, value: float) -> Any:
        return ticks[axis].get(round(float(value), 6), float(value))

    unnamed = not ax.get_legend_handles_labels()[1]

    def named(artist: Any) -> str | None:
        label = str(artist.get_label())
        return label if not label.startswith("_") else "line" if unnamed else None

    for line in ax.lines:
        if (name := named(line)) is None:
            continue
        X, Y = (np.ma.filled(np.ma.asarray(v, float), np.nan) for v in (line.get_xdata(), line.get_ydata()))
        if len(X) and not (line.get_transform() is not ax.transData and len(set(Y.tolist())) > 1):
            straight = line.get_transform() is not ax.transData
            yield [
                (name, at(ax.xaxis, X[i]), None if straight and len(X) > 1 else at(ax.yaxis, Y[i]))
                for i in _some(len(X))
            ]
    for group in ax.collections:
        if (name := named(group)) is None:
            continue
        offsets = np.ma.filled(np.ma.asarray(group.get_offsets(), float), np.nan)
        if len(offsets) > 1 or (len(offsets) == 1 and np.any(offsets)):
            yield [(name, at(ax.xaxis, offsets[i, 0]), at(ax.yaxis, offsets[i, 1])) for i in _some(len(offsets))]
            continue
        yield [(name, at(ax.xaxis, X), f"{shown(float(low))} to {shown(float(high))}") for X, low, high in _band(group)]
    for bars in ax.containers:
        if not hasattr(bars, "patches"):
            continue
        name = named(bars) or "bars"
        sides = [(bar.get_x(), bar.get_x() + bar.get_width(), bar.get_height()) for bar in bars.patches]
        yield [(name, f"{shown(float(a))} to {shown(float(b))}", float(height)) for a, b, height in sides]


def _named_ticks(axis: Any) -> dict[float, str]:
    """Names of positions on an axis, where they are words."""
    found = {round(float(at), 6): text.get_text() for at, text in zip(axis.get_ticklocs(), axis.get_ticklabels())}  # noqa: B905
    words = {at: text for at, text in found.items() if text and not _is_number(text)}
    return words


def _is_number(text: str) -> bool:
    return text.replace("\N{MINUS SIGN}", "-").replace("$", "").lstrip("-")[:1].isdigit() or text.startswith("$")


def _band(group: Any) -> list[tuple[float, float, float]]:
    """Positions of a band with its ends there, from the outline of an area between two curves or of vertical lines."""
    rows = []
    for path in group.get_paths():
        vertices = np.asarray(path.vertices, float)
        for X in np.unique(vertices[:, 0]):
            own = vertices[vertices[:, 0] == X, 1]
            rows.append((float(X), float(own.min()), float(own.max())))
    rows = sorted(rows)
    return [rows[i] for i in _some(len(rows))]


def _some(n: int) -> list[int]:
    """Evenly spaced indices, the first and the last among them."""
    return sorted({int(i) for i in np.linspace(0, n - 1, min(n, _POINTS)).round()})


def _of_matrix(name: str, ax: Any, x: str, y: str) -> Section:
    values = np.asarray(ax.images[0].get_array(), float)
    written = {
        (round(text.get_position()[1]), round(text.get_position()[0])): text.get_text()
        for text in ax.texts
        if text.get_text().isdigit()
    }
    columns = [f"{x} {j}" for j in range(values.shape[1])]
    rows = tuple(
        (str(i), *(int(written.get((i, j), 0)) if written else float(values[i, j]) for j in range(values.shape[1])))
        for i in range(values.shape[0])
    )
    return Section(name, (y, *columns), rows)


def _of_field(ax: Any) -> list[tuple[Any, ...]]:
    """Numbers of an image at nine places."""
    image = ax.images[0]
    values = np.asarray(image.get_array(), float)
    if values.ndim != 2:
        return []
    left, right, bottom, top = image.get_extent()
    H, W = values.shape
    if image.origin == "upper":
        bottom, top = top, bottom
    places = [
        (i, j) for i in np.linspace(0, H - 1, 3).round().astype(int) for j in np.linspace(0, W - 1, 3).astype(int)
    ]
    return [
        (
            f"colour: {shown(float(values[i, j]))}",
            float(left + (j + 0.5) / W * (right - left)),
            float(bottom + (i + 0.5) / H * (top - bottom)),
        )
        for i, j in places
    ]


def _of_images(name: str, ax: Any) -> Section:
    captions = [text.get_text() for text in ax.texts]
    rows = []
    for i, image in enumerate(ax.images):
        values = np.asarray(image.get_array(), float)
        caption = captions[i] if len(captions) == len(ax.images) else f"{i + 1}"
        low, middle, high = (float(f(values)) for f in (np.min, np.mean, np.max))
        rows.append((str(i + 1), caption, low, middle, high))
    return Section(name, ("image", "caption", "least", "mean", "greatest"), tuple(rows))
