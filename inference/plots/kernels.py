"""Pictures of kernels: lengthscales by column, and the covariance matrix by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

from gpzoo import _checks as checks
from gpzoo._types import Argument, ArrayLike
from gpzoo.inference.fitted.map_batches import BoundModel
from gpzoo.inference.fitted.trained import Trained
from gpzoo.inference.plots import _axes as draw
from gpzoo.inference.plots._model import of_runs, posterior_at
from gpzoo.inference.programs.calls import entry_point
from gpzoo.inference.programs.labelled import columns_of_inputs, in_order_of_rows
from gpzoo.inference.programs.runs import Runs, unmasked
from gpzoo.processes.process import GaussianProcess

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Number of draws of lengthscales that have a posterior.
_DRAWS = 100


@entry_point
def lengthscales(
    trained: Trained,
    *args: Argument,
    names: Sequence[str] | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The lengthscale of every column of the inputs, for every GP site and every kernel that has lengthscales.

    A grey mark shows the spread (standard deviation) of each column. A column has almost no effect on a kernel if the
    lengthscale of the column is much larger than this spread. Lengthscales with a posterior are shown with a central
    90 % interval. If there are several outputs, all lengthscales of a column are in one row.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide, Trained, plots
        >>> from gpzoo.models import gp_regression
        >>> X = np.random.default_rng(0).standard_normal((30, 2)).astype(np.float32)
        >>> guide = InducingGuide(gp_regression, kmeans(5))
        >>> start = Trained(gp_regression, guide, guide.init_params(jax.random.key(0), X, X[:, 0]))
        >>> ax = plots.lengthscales(start, X, X[:, 0], names=["age", "dose"])
        >>> [text.get_text() for text in ax.get_yticklabels()]
        ['age', 'dose']

    Args:
        trained: the model.
        *args: the program's positional arguments; their rows give the spread of the columns.
        names: names of the columns; ``None`` means the column names of the training data, if the data had names.
        model_kwargs: the program's keyword arguments, by name.
        ax: axes to draw into; ``None`` for a new figure.

    Raises:
        ValueError: if no kernel has lengthscales, or if the number of names is wrong.
    """
    series, spread = _lengthscales_of(trained._bind(args, model_kwargs, seen=False))
    if not series:
        raise ValueError("No kernel of the program has lengthscales.")
    columns = sorted(set().union(*(each.columns for each in series)))
    numbered = columns[1:] if columns[0] == _ALL else columns
    if names is not None and len(names) != len(numbered):
        raise ValueError(f"names must be one for each of {len(numbered)} columns, got {len(names)}.")
    known = columns_of_inputs(trained.model, trained.data)[1] if names is None else names
    all_known = len(known) == len(numbered)
    words = {_ALL: "every column"}
    for i, column in enumerate(numbered):
        words[column] = str(known[i]) if all_known and (names is not None or i == column) else f"column {column}"
    ax = draw.one(ax, height=1.0 + max(0.22, 0.09 * len(series)) * max(4, len(columns)))
    for i, each in enumerate(series):
        offset = (i - (len(series) - 1) / 2) * min(0.18, 0.7 / len(series))
        _dots(ax, each, {c: (words[c], columns.index(c) + offset) for c in each.columns}, i)
    if spread is not None:
        shown = [c for c in numbered if c < len(spread[0]) and spread[0][c] > 0]
        beside = {"named": list(map(words.get, shown)), "color": "0.55", "markersize": 11}
        places = list(map(columns.index, shown))
        if shown:
            draw.curve(ax, spread[0][shown], places, "spread of the column (s.d.)", "|", **beside)
    ax.set_yticks(range(len(columns)), [words[c] for c in columns])
    ax.set_ylim(len(columns) - 0.5, -0.5)
    _plain_logarithm(ax)
    ax.grid(axis="y", color="0.92", linewidth=0.6)
    ax.set_axisbelow(True)
    return draw.finished(ax, "lengthscale (units of the inputs)", "")


def _lengthscales_of(subject: BoundModel) -> tuple[list[_Lengthscales], Array | None]:
    """Draws of the lengthscales of all kernels, and the spread of the columns of the first inputs that are vectors."""
    guide, processes = subject.guide, subject.guide.sites_for(subject.args, subject.kwargs).processes
    sampled = guide.hyperparameters != "point" and guide.sites.latents > processes

    def of_run(runs: Runs) -> tuple[list[_Lengthscales], Array | None]:
        series, spread = [], None
        for name, site in runs.guide.items():
            if name not in processes:
                continue
            prior = unmasked(site["fn"]).prior
            kernels = _lengthscaled(prior.kernel)
            series += [_Lengthscales.of(name, prior.X, kernel) for kernel in kernels]
            # The inputs of other sites may be draws, which need not be computed.
            if spread is None and kernels and prior.X.ndim == 2:
                spread = jnp.std(prior.X, axis=0)
        return series, spread

    series, spread = of_runs("lengthscales", random.key(0), subject, _DRAWS if sampled else 1, of_run)
    names = [each.name for each in series]
    for i, name in enumerate(names):
        if names.count(name) > 1:
            series[i] = replace(series[i], name=f"{name}, part {names[:i].count(name)}")
    return series, spread


def _plain_logarithm(ax: Axes) -> None:
    """A logarithmic axis with numbers such as 0.5. If there are few decades, it has 1, 2 and 5 of every decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_locator(NullLocator())


#: The row of kernels with one lengthscale for all columns. It comes first.
_ALL = -1


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Lengthscales:
    """The lengthscales of one kernel: ``[D, columns]``, or with leading draws.

    Attributes:
        values: the lengthscales.
        name: name of the kernel and its site.
        columns: columns of the inputs, or the row of kernels with one lengthscale for all columns.
    """

    values: Any
    name: str = field(metadata={"static": True})
    columns: tuple[int, ...] = field(metadata={"static": True})

    @classmethod
    def of(cls, site: str, X: Array, kernel: Any) -> _Lengthscales:
        """The lengthscales of a kernel at the inputs of a site."""
        values, batched = jnp.asarray(kernel.lengthscale), bool(kernel.batched)
        values = values.reshape(values.shape[0] if batched and values.ndim else 1, -1)
        active = getattr(kernel, "active_dims", None)
        # Columns of views of an image have no meaning.
        of_vectors = X.ndim - batched <= 2
        single = values.shape[1] == 1 and not active and not (of_vectors and X.shape[-1] == 1)
        columns = (_ALL,) if single or not of_vectors else tuple(active or range(values.shape[1]))
        values = jnp.broadcast_to(values, (len(values), len(columns)))
        return cls(values, f"{type(kernel).__name__} of {site}", columns)


def _lengthscaled(kernel: Any) -> list[Any]:
    """The kernels inside a kernel that have lengthscales."""
    has = lambda node: "lengthscale" in getattr(node, "data_fields", ())  # noqa: E731
    return [node for node in jax.tree.leaves(kernel, is_leaf=has) if has(node)]


def _dots(ax: Axes, series: _Lengthscales, rows: Mapping[int, tuple[str, float]], k: int) -> None:
    """The lengthscales of each column in the row of this column, with their intervals if there are several draws."""
    for i, (words, row) in enumerate(rows.values()):
        low, middle, high = np.quantile(series.values[:, :, i], (draw.ENDS[0], 0.5, draw.ENDS[1]), axis=0)
        at, alpha = np.full(len(middle), row), 1 if len(middle) == 1 else 0.5
        style = {"color": draw.colour(k), "markersize": 5, "label": series.name if i == 0 else None, "alpha": alpha}
        if len(series.values) == 1:
            ax.plot(middle, at, draw.marker(k), **style)
        else:
            ax.errorbar(middle, at, xerr=(middle - low, high - middle), fmt=draw.marker(k), elinewidth=1.2, **style)
        draw.keep(ax, draw.Series(series.name, middle, [words] * len(middle)))


@entry_point
def kernel_by_class(
    trained: Trained,
    *args: Argument,
    labels: ArrayLike,
    site: str | None = None,
    output: int = 0,
    count: int = 200,
    model_kwargs: Mapping[str, Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The prior covariance of a GP site between rows sorted by class. Blocks appear if the prior separates the classes.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide, Trained, plots
        >>> from gpzoo.models import gp_classification
        >>> X = np.random.default_rng(0).standard_normal((30, 2)).astype(np.float32)
        >>> labels, guide = (X[:, 0] > 0).astype(np.float32), InducingGuide(gp_classification, kmeans(5))
        >>> start = Trained(gp_classification, guide, guide.init_params(jax.random.key(0), X, labels))
        >>> ax = plots.kernel_by_class(start, X, labels, labels=labels.astype(int))
        >>> ax.images[0].get_array().shape
        (30, 30)

    Args:
        trained: the model.
        *args: the program's positional arguments.
        labels: the class of every row, ``[N]``.
        site: name of the GP site. ``None`` means the only GP site that is not an inner layer.
        output: the output whose kernel is shown, if outputs have different kernels.
        count: the largest number of rows. If there are more rows, random rows are shown.
        model_kwargs: the program's keyword arguments, by name.
        ax: axes to draw into; ``None`` for a new figure.

    Raises:
        ValueError: if there is not one label for each row, if the output does not exist, or if the site is unknown.
    """
    (labels,) = map(np.asarray, in_order_of_rows(trained.model, args, {"labels": labels}))
    args = trained._bind(args, model_kwargs).args
    rows = {len(x) for x in jax.tree.leaves(args)}
    if labels.ndim != 1 or rows != {len(labels)}:
        raise ValueError(f"labels must be [N] with one for each row, got shape {labels.shape} for rows {sorted(rows)}.")
    kept = np.arange(len(labels))
    if len(kept) > checks.positive_int("count", count):
        kept = np.sort(np.random.default_rng(0).permutation(len(kept))[:count])
    kept = kept[np.argsort(labels[kept], kind="stable")]
    args = jax.tree.map(lambda x: np.asarray(x)[kept], args)
    posterior = posterior_at(random.key(0), trained, args, model_kwargs, site)
    matrix = np.asarray(_matrix(posterior.prior))
    if matrix.ndim == 3:
        if not 0 <= output < len(matrix):
            raise ValueError(f"output must be below {len(matrix)}, the number of kernels, got {output}.")
        matrix = matrix[output]
    elif output:
        raise ValueError(f"All outputs of site {posterior.site!r} have one kernel: output must be 0, got {output}.")
    style = {"cmap": draw.SEQUENTIAL, "interpolation": "nearest"}
    ax = draw.matrix(ax, matrix, f"prior covariance of {posterior.site}", "class", "class", **style)
    classes, starts = np.unique(labels[kept], return_index=True)
    for edge in starts[1:] - 0.5:
        ax.axhline(edge, color="w", linewidth=0.6)
        ax.axvline(edge, color="w", linewidth=0.6)
    middles = (starts + np.append(starts[1:], len(kept)) - 1) / 2
    names = list(map(str, classes))
    ax.set_xticks(middles, names)
    ax.set_yticks(middles, names)
    ax.tick_params(length=0)
    return ax


@jax.jit
def _matrix(prior: GaussianProcess) -> Array:
    return prior.kernel(prior.X)
