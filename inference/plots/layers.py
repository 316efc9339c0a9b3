"""Pictures of the layers of a deep GP: every GP site along one line through the inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import Array

from gpzoo._types import Argument
from gpzoo.inference.fitted.trained import Trained
from gpzoo.inference.plots import _axes as draw
from gpzoo.inference.plots._model import ALONG, beyond, columns, draws_at_each, floats_like, model_at
from gpzoo.inference.programs.calls import entry_point

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Number of draws behind the bands.
_DRAWS = 200


@entry_point
def layers(
    rng_key: Array,
    trained: Trained,
    *args: Argument,
    model_kwargs: Mapping[str, Any] | None = None,
    ax: Sequence[Axes] | None = None,
) -> list[Axes]:
    """Every GP site along one line through the inputs, from the first layer to the last.

    Each panel shows a layer as a function of the program's input, not as a function of the layer below.
    If the input has one column, the line is the input itself. Otherwise the line goes through the mean of the data, in
    the first principal direction, and its unit is the standard deviation of the data in this direction. Dashed lines
    show prior means. A layer that collapsed to its prior mean lies on the dashed lines.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide, Trained, plots
        >>> from gpzoo.models import deep_gp, linear_layers
        >>> X = np.linspace(-1, 1, 30, dtype=np.float32)[:, None]
        >>> program = partial(deep_gp, layers=linear_layers(X, [1]))
        >>> guide = InducingGuide(program, kmeans(5))
        >>> start = Trained(program, guide, guide.init_params(jax.random.key(0), X, X[:, 0]))
        >>> len(plots.layers(jax.random.key(1), start, X, X[:, 0]))
        2

    Args:
        rng_key: key of the draws.
        trained: the model. Its program has one input ``[N, ...]``.
        *args: the program's positional arguments.
        model_kwargs: the program's keyword arguments, by name.
        ax: one axes for each GP site; ``None`` for a new figure.

    Raises:
        ValueError: if the program has several inputs, or if there is not one axes for each GP site.
    """
    model = model_at(trained, args, model_kwargs)
    if len(model.inputs) != 1:
        raise ValueError(f"layers needs a program with one input; its inputs are {list(model.names)}.")
    panels = draw.several(ax, len(model.processes), height=1.75, share=True)
    at, line, name = _line_through(np.asarray(model.inputs[0]), model.names[0])
    drawn = draws_at_each(rng_key, trained._bind((line,), model_kwargs), _DRAWS)
    for axes, site in zip(panels, model.processes, strict=True):
        values, prior = (columns(each, 1) for each in drawn[site])
        # The outputs that vary most along the line come first.
        order = np.argsort(-np.ptp(values.mean(axis=0), axis=0), kind="stable")[: draw.OUTPUTS]
        for i, k in enumerate(sorted(order)):
            of = f"output {k}" if values.shape[-1] > 1 else "mean"
            draw.band(
                axes,
                at,
                draw.central(values[..., k]),
                draw.CENTRAL if i == 0 else None,
                draw.colour(i),
                0.25,
            )
            draw.curve(axes, at, values[..., k].mean(axis=0), of, color=draw.colour(i), linewidth=1.5)
            # With several outputs, each has its own colour.
            style = {"color": "0.3" if len(order) == 1 else draw.colour(i), "linewidth": 0.9}
            draw.curve(axes, at, prior[..., k].mean(axis=0), "prior mean" if i == 0 else None, "--", **style)
        more = f"\n({len(order)} of {values.shape[-1]} outputs)" if values.shape[-1] > len(order) else ""
        draw.label(axes, "", f"{site}{more}")
        axes.margins(x=0)
        if axes is panels[0] or len(order) > 1:
            draw.legend_above(axes)
    panels[-1].set_xlabel(name, fontsize=draw.WORDS)
    return panels


def _line_through(X: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray, str]:
    """Positions on a line, the inputs at these positions, and a name for the positions."""
    rows = X.reshape(len(X), -1)
    if rows.shape[1] == 1:
        at = beyond(rows[:, 0], 0.1)
        return at, at.reshape(-1, *(1,) * (X.ndim - 1)).astype(floats_like(X)), name
    rows = rows[:: -(-len(rows) // 2000)]
    centre = rows.mean(axis=0, dtype=np.float64)
    _, sizes, directions = np.linalg.svd(rows - centre, full_matrices=False)
    spread = sizes[0] / np.sqrt(len(rows))
    at = np.linspace(-2.5, 2.5, ALONG)
    line = centre + at[:, None] * spread * directions[0]
    line = line.reshape(-1, *X.shape[1:]).astype(floats_like(X))
    return at, line, f"{name} along its first principal direction (s.d.)"
