"""Pictures of predictions along a column: a forecast, groups in panels, and models side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax import Array

from gpzoo import _checks as checks
from gpzoo._types import Argument, ArrayLike
from gpzoo.inference.fitted.trained import Trained
from gpzoo.inference.plots import _axes as draw
from gpzoo.inference.plots._model import columns, model_at
from gpzoo.inference.plots.fits import fit_1d
from gpzoo.inference.programs.calls import entry_point
from gpzoo.inference.programs.labelled import in_order_of_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Quantiles at the ends of the two bands, from the lowest to the highest.
_QUANTILES = (0.05, 0.25, 0.75, 0.95)


@entry_point
def forecast(
    rng_key: Array,
    trained: Trained,
    *args: Argument,
    new: tuple[Argument, ...],
    column: int = 0,
    data: str | None = None,
    last: int | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The data, followed by predictions of new rows: the mean, with bands of 50 % and 90 % probability.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide, Trained, plots
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 6, 50, dtype=np.float32)[:, None]
        >>> y, guide = np.sin(X[:, 0]), InducingGuide(gp_regression, kmeans(8))
        >>> start = Trained(gp_regression, guide, guide.init_params(jax.random.key(0), X, y))
        >>> ax = plots.forecast(jax.random.key(1), start, X, y, new=(X + 6,))
        >>> ax.get_ylabel()
        'y'

    Args:
        rng_key: key of the draws.
        trained: the model.
        *args: the program's positional arguments at the rows of the past, data included.
        new: the arguments at the rows to forecast; data among them are shown too.
        column: column of the first argument along which values are shown.
        data: the data site to show; the first one if ``None``.
        last: number of rows of the past to show; ``None`` for all.
        model_kwargs: the program's keyword arguments, by name.
        ax: axes to draw into; ``None`` for a new figure.

    Raises:
        TypeError: if ``new`` is not a tuple of arguments.
        ValueError: if the first argument is not ``[N]`` or ``[N, features]``, for a column or a site that does not
            exist, or for data without quantiles.
    """
    if not isinstance(new, tuple):
        raise TypeError(f"new must be a tuple of the program's arguments at new rows, (X_new,), got {type(new)}.")
    count = None if last is None else checks.positive_int("last", last)
    past = _Series.of(rng_key, trained, args, model_kwargs, column, data)
    ahead = _Series.of(rng_key, trained, new, model_kwargs, column, past.name)
    ax = draw.one(ax)
    shown = past.rows(slice(-count if count else None, None))
    shown.draw_mean(ax, None)
    ahead.draw(ax)
    shown.draw_data(ax, "data")
    ahead.draw_data(ax, "data to come", fillstyle="none", markeredgewidth=0.8)
    ax.axvline(ahead.x[0], color="0.6", linewidth=0.8, linestyle=":")
    return draw.finished(ax, past.along, past.name)


@entry_point
def groups(
    rng_key: Array,
    trained: Trained,
    *args: Argument,
    by: ArrayLike,
    at: tuple[Argument, ...] | None = None,
    at_by: ArrayLike | None = None,
    column: int = 0,
    data: str | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    ax: Sequence[Axes] | None = None,
) -> list[Axes]:
    """A panel for each group of rows, with its data and their predictions, all on the same scale.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide, Trained, plots
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 6, 50, dtype=np.float32)[:, None]
        >>> y, guide = np.sin(X[:, 0]), InducingGuide(gp_regression, kmeans(8))
        >>> start = Trained(gp_regression, guide, guide.init_params(jax.random.key(0), X, y))
        >>> panels = plots.groups(jax.random.key(1), start, X, y, by=np.where(X[:, 0] < 3, "early", "late"))
        >>> [panel.get_title() for panel in panels]
        ['early', 'late']

    Args:
        rng_key: key of the draws.
        trained: the model.
        *args: the program's positional arguments, data included.
        by: the group of each row, ``[N]``, numbers or names; panels are in sorted order.
        at: arguments at which to predict, such as a grid for each group. ``None`` means predictions at the rows of the
            data.
        at_by: the groups of the rows of ``at``.
        column: column of the first argument along which values are shown.
        data: the data site to show; the first one if ``None``.
        model_kwargs: the program's keyword arguments, by name.
        ax: one axes for each group; ``None`` for a new figure.

    Returns:
        The axes, in the order of the groups.

    Raises:
        ValueError: if there is not one group for each row, for ``at`` without ``at_by``, or if there is not one axes
            for each group; see also :func:`forecast`.
    """
    checks.refuse((at is None) != (at_by is None), "Give groups both at and at_by, the groups of its rows, or neither.")
    (by,) = in_order_of_rows(trained.model, args, {"by": by})
    if at is not None:
        (at_by,) = in_order_of_rows(trained.model, at, {"at_by": at_by})
    seen = _Series.of(rng_key, trained, args, model_kwargs, column, data)
    shown = seen if at is None else _Series.of(rng_key, trained, at, model_kwargs, column, seen.name)
    of_seen = _labels("by", by, seen)
    of_shown = of_seen if at is None else _labels("at_by", at_by, shown)
    names = np.unique(of_seen)
    panels = draw.several(ax, len(names), 1.7, columns=3)
    for panel, name in zip(panels, names, strict=True):
        shown.rows(of_shown == name).draw(panel)
        seen.rows(of_seen == name).draw_data(panel, "data")
        draw.label(panel, seen.along, seen.name)
        panel.set_title(str(name), fontsize=draw.WORDS)
    _same_scale(panels)
    draw.legend_of_all(panels, above=ax is None)
    return panels


def beside(
    rng_key: Array,
    models: Mapping[str, Any],
    *args: Argument,
    picture: Callable[..., Axes] = fit_1d,
    ax: Sequence[Axes] | None = None,
    **options: Any,
) -> list[Axes]:
    """A panel for each of several models, such as models with different kernels, all on the same scale.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from gpzoo import kernels, kmeans
        >>> from gpzoo.inference import InducingGuide, Trained, plots
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 6, 50, dtype=np.float32)[:, None]
        >>> y, guide = np.sin(X[:, 0]), InducingGuide(gp_regression, kmeans(8))
        >>> start = Trained(gp_regression, guide, guide.init_params(jax.random.key(0), X, y))
        >>> panels = plots.beside(jax.random.key(1), {"one": start, "same": start}, X, y, draws=0)
        >>> [panel.get_title() for panel in panels]
        ['one', 'same']

    Args:
        rng_key: key of the draws, the same for all models.
        models: trained models by name, or the result of :func:`~gpzoo.inference.compare`.
        *args: the programs' positional arguments, data included.
        picture: the function that draws a panel, such as :func:`fit_1d`, :func:`forecast` or :func:`field_2d`. It is
            called as ``picture(rng_key, trained, *args, ax=..., **options)``.
        ax: one axes for each model; ``None`` for a new figure.
        **options: options of the picture.

    Returns:
        The axes, in the order of the models.

    Raises:
        TypeError: for models without names.
        ValueError: if there are no models, or if there is not one axes for each model; see also the picture.
    """
    if not isinstance(models, Mapping):
        raise TypeError(f"models must be trained models by name, {{'RBF': trained}}, got {type(models)}.")
    checks.refuse(not models, "models must name at least one trained model.")
    panels = draw.several(ax, len(models), 2.6, columns=2)
    for panel, (name, model) in zip(panels, models.items(), strict=True):
        picture(rng_key, getattr(model, "trained", model), *args, ax=panel, **options)
        panel.set_title(str(name), fontsize=draw.WORDS)
    _same_scale(panels)
    draw.legend_of_all(panels, above=ax is None)
    return panels


def _same_scale(panels: list[Axes]) -> None:
    left, right = zip(*(panel.get_xlim() for panel in panels), strict=True)
    low, high = zip(*(panel.get_ylim() for panel in panels), strict=True)
    for panel in panels:
        panel.set(xlim=(min(left), max(right)), ylim=(min(low), max(high)))


def _labels(name: str, labels: Any, series: _Series) -> np.ndarray:
    """The groups of rows, in the order of the series.

    Raises:
        ValueError: if there is not one group for each row.
    """
    found = np.asarray(labels)
    checks.must(found.shape == series.x.shape, name, f"be one for each of {len(series.x)} rows", f"shape {found.shape}")
    return found[series.order]


class _Series(NamedTuple):
    """Predictions of a data site along a column, sorted by the values of the column.

    Attributes:
        name: name of the data site.
        along: name of the first argument.
        x: the column, ``[N]``.
        order: order of the given rows, ``[N]``.
        mean: ``[N, K]``.
        quantiles: ``[4, N, K]``.
        values: the data, ``[N, K]``, or ``None``.
    """

    name: str
    along: str
    x: np.ndarray
    order: np.ndarray
    mean: np.ndarray
    quantiles: np.ndarray
    values: np.ndarray | None

    @classmethod
    def of(cls, key: Array, trained: Trained, args: tuple, kwargs: Any, column: int, data: str | None) -> _Series:
        """The predictions of a model at given arguments.

        Raises:
            ValueError: for inputs that are not columns, a column or a site that does not exist, or no quantiles.
        """
        model = model_at(trained, args, kwargs)
        inputs = np.asarray(jax.tree.leaves(model.inputs)[0])
        checks.refuse(inputs.ndim > 2, f"Values are shown along inputs [N] or [N, features], got shape {inputs.shape}.")
        table = columns(inputs)
        width = table.shape[1]
        checks.refuse(not 0 <= column < width, f"column must be one of the {width} columns of X, got {column}.")
        x, observed = table[:, column], model.observed(data)
        found = model.predict(key, *model.given, quantiles=_QUANTILES)[observed.name]
        checks.refuse(
            found.quantiles is None or found.mean is None or found.probs is not None,
            f"The data {observed.name!r} have no quantiles: they are classes, or have no mean.",
        )
        order = np.argsort(x, kind="stable")
        values = None if observed.values is None else columns(np.asarray(observed.values))[order]
        mean, quantiles = columns(np.asarray(found.mean))[order], columns(np.asarray(found.quantiles), 1)[:, order]
        return cls(observed.name, model.names[0], x[order], order, mean, quantiles, values)

    def rows(self, which: Any) -> _Series:
        """The given rows."""
        values = None if self.values is None else self.values[which]
        own = {"x": self.x[which], "order": self.order[which], "mean": self.mean[which], "values": values}
        return self._replace(quantiles=self.quantiles[:, which], **own)

    def draw(self, ax: Axes) -> None:
        """Both bands and the mean."""
        for k in range(min(self.mean.shape[1], draw.OUTPUTS)):
            low, lower, upper, high = self.quantiles[..., k]
            draw.band(ax, self.x, (low, high), draw.CENTRAL if k == 0 else None, draw.colour(k), 0.18)
            draw.band(ax, self.x, (lower, upper), "central 50 %" if k == 0 else None, draw.colour(k), 0.35)
        self.draw_mean(ax, "mean")

    def draw_mean(self, ax: Axes, name: str | None) -> None:
        """The mean. If there are several outputs, each has its number as a name."""
        several = self.mean.shape[1] > 1
        for k in range(min(self.mean.shape[1], draw.OUTPUTS)):
            named = f"{name} {k}" if name and several else name
            draw.curve(ax, self.x, self.mean[:, k], named, color=draw.colour(k), linewidth=1.4)

    def draw_data(self, ax: Axes, name: str, **style: Any) -> None:
        """The data, if they are known."""
        if self.values is None:
            return
        for k in range(min(self.values.shape[1], draw.OUTPUTS)):
            colour = "k" if self.values.shape[1] == 1 else draw.colour(k)
            size = 4 if len(self.x) <= 300 else 2
            how = {"color": colour, "markersize": size, "markeredgewidth": 0, "zorder": 3.5} | style
            marks = "o" if "fillstyle" in style else "."
            draw.curve(ax, self.x, self.values[:, k], name if k == 0 else None, marks, **how)
