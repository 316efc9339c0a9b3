"""Pictures of latent variables: comparisons of prior and posterior, and of two methods of inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpzoo.inference.plots import _axes as draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Variables with more entries count as functions, which have their own pictures.
_ENTRIES = 12

#: If a variable has more entries, this number of evenly spaced entries is shown.
_SHOWN = 8


def prior_posterior(
    container: Any, *, names: Sequence[str] | None = None, ax: Sequence[Axes] | None = None
) -> list[Axes]:
    """Prior and posterior densities of hyperparameters, with a panel for every number.

    Example:
        >>> import numpy as np, xarray
        >>> from gpzoo.inference import plots
        >>> def draws(shape):
        ...     gamma = np.random.default_rng(0).gamma(shape, 2 / shape, (1, 500))
        ...     return xarray.Dataset({"noise": (("chain", "draw"), gamma)})
        >>> axes = plots.prior_posterior({"prior": draws(2.0), "posterior": draws(200.0)})
        >>> [ax.get_xlabel() for ax in axes]
        ['noise']

    Args:
        container: an export with the groups ``prior`` and ``posterior``, from ArviZ 0.x or 1.x.
        names: variables to show. By default, the variables in both groups that have at most 12 entries.
        ax: one axes for each number; ``None`` for a new figure.

    Raises:
        ValueError: if a group or a variable is missing, if there is nothing to show, or if there is not one axes for
            each number.
    """
    prior, posterior, panels = _group(container, "prior"), _group(container, "posterior"), []
    for variable in _names(prior, posterior, names, "the prior and the posterior"):
        panels += _entries(variable, prior[variable], posterior[variable], None)
    if not panels:
        raise ValueError(f"prior and posterior share no variable of at most {_ENTRIES} entries: pass names=.")
    axes = draw.several(ax, len(panels), height=1.8, columns=2)
    for i, (own, (name, before, after)) in enumerate(zip(axes, panels, strict=True)):
        # With the tails of a wide prior, the posterior would be a thin line.
        low, high = np.quantile(before, (0.005, 0.95))
        low, high = min(low, after.min()), max(high, after.max())
        high = high if high > low else low + 1
        density = {"density": True, "legend": i == 0}
        draw.bars(
            own, before, "prior", bins=40, range=(low, high), histtype="step", color="0.4", linewidth=1.2, **density
        )
        if np.ptp(after) > 0:
            draw.bars(own, after, "posterior", bins=25, color=draw.BLUE, alpha=0.6, **density)
        else:
            own.axvline(after[0], color=draw.BLUE, linewidth=1.8, label="posterior" if i == 0 else None)
        own.set_yticks([])
        own.locator_params(axis="x", nbins=5)
        draw.label(own, name, "density")
        own.set_xlim(low, high)
    draw.legend_above(axes[0])
    return axes


def against_nuts(svi: Any, nuts: Any, *, names: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
    """Central 90 % intervals from SVI and from NUTS for one program, in units of the posterior that NUTS found.

    Each row is one number, minus its mean under NUTS, divided by its standard deviation under NUTS. The right interval
    is therefore about 0 +- 1.64. A dot away from 0 means a bias. A short bar means a posterior that is too narrow.

    Example:
        >>> import numpy as np, xarray
        >>> from gpzoo.inference import plots
        >>> def posterior(sd):
        ...     draws = np.random.default_rng(0).normal(1.0, sd, (4, 100))
        ...     return {"posterior": xarray.Dataset({"noise": (("chain", "draw"), draws)})}
        >>> ax = plots.against_nuts(posterior(0.1), posterior(0.2))
        >>> [text.get_text() for text in ax.get_yticklabels()]
        ['noise']

    Args:
        svi: the export of an SVI training, from ArviZ 0.x or 1.x.
        nuts: the export of NUTS.
        names: variables to show. By default, all variables in both exports are shown, numbers before functions.
            Inducing variables are left out, because their inputs may differ between SVI and NUTS. If a variable has
            more than 8 entries, 8 of them are shown.
        ax: axes to draw into; ``None`` for a new figure.

    Raises:
        ValueError: if a variable is missing in one export, if its shapes in the two exports differ, or if there is no
            variable.
    """
    first, second, rows = _group(svi, "posterior"), _group(nuts, "posterior"), []
    for variable in _names(first, second, names, "the two posteriors", limit=None):
        rows += [row for row in _entries(variable, first[variable], second[variable], _SHOWN) if np.std(row[2]) > 0]
    if not rows:
        raise ValueError("The two posteriors share no variable that NUTS has draws of.")
    ax = draw.one(ax, height=1.1 + 0.26 * len(rows))
    for i, (name, by_svi, by_nuts) in enumerate(rows):
        centre, scale = np.mean(by_nuts), np.std(by_nuts)
        of_nuts, of_svi = (by_nuts - centre) / scale, (by_svi - centre) / scale
        first = i == 0
        for draws, which, style in (
            (of_nuts, "NUTS", {"color": "0.75", "linewidth": 7, "solid_capstyle": "butt"}),
            (of_svi, "SVI", {"color": draw.BLUE, "linewidth": 1.8}),
        ):
            ends = draw.central(draws)
            draw.curve(ax, ends, [i, i], f"{which}, central 90 %", legend=first, named=[name, name], **style)
        mean = [np.mean(of_svi)]
        draw.curve(ax, mean, [i], "SVI, mean", "o", legend=first, named=[name], color=draw.BLUE, markersize=5)
    ax.axvline(0, color="0.3", linewidth=0.8, linestyle="--", zorder=0)
    ax.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    return draw.finished(ax, "difference from the mean by NUTS (its standard deviations)", "")


def _group(container: Any, name: str) -> Any:
    """The variables of a group, which is a dataset in ArviZ 0.x and a node of a tree in ArviZ 1.x."""
    try:
        return container[name]
    except KeyError:
        raise ValueError(
            f"The container has no group {name!r}: export one with it, trained.to_arviz(key, X, y)."
        ) from None


def _names(first: Any, second: Any, names: Sequence[str] | None, where: str, limit: int | None = _ENTRIES) -> list[str]:
    """The variables to show: the variables of these names, or the small variables that are in both groups."""
    common = [str(name) for name in first.data_vars if name in second.data_vars]
    for name in names or ():
        if name not in common:
            raise ValueError(f"names has {name!r}, which is not in {where}; in both are {sorted(common)}.")
    if names is not None:
        return list(names)
    if limit is not None:
        return [name for name in common if max(_per_draw(first[name]), _per_draw(second[name])) <= limit]
    at_inputs = [name for name in common if "_inducing_row" not in " ".join(map(str, first[name].dims))]
    return sorted(at_inputs, key=lambda name: _per_draw(first[name]) > _ENTRIES)


def _per_draw(variable: Any) -> int:
    return int(np.prod([n for dim, n in variable.sizes.items() if dim not in ("chain", "draw")], dtype=int))


def _entries(name: str, first: Any, second: Any, limit: int | None) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Every number of a variable, with its draws in each group; evenly spaced numbers if there are more than ``limit``.

    Raises:
        ValueError: if the variable has different shapes in the two groups.
    """
    (draws, shape), (others, other_shape) = _flat(first), _flat(second)
    if shape != other_shape:
        raise ValueError(f"Variable {name!r} has shape {shape} in one group and {other_shape} in the other.")
    size, entries = draws.shape[1], []
    for i in np.linspace(0, size - 1, size if limit is None else min(size, limit)).round().astype(int):
        place = ", ".join(map(str, np.unravel_index(i, shape)))
        entries.append((f"{name}[{place}]" if shape else name, draws[:, i], others[:, i]))
    return entries


def _flat(variable: Any) -> tuple[np.ndarray, tuple[int, ...]]:
    """Draws of a variable ``[S, entries]``, and its shape."""
    values = np.asarray(variable.transpose("chain", "draw", ...).values, np.float64)
    return values.reshape(values.shape[0] * values.shape[1], -1), values.shape[2:]
