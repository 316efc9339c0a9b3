"""Pictures of the functions that a program or a kernel adds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import Array

from gpzoo import _checks as checks
from gpzoo._types import Argument
from gpzoo.inference.fitted.functions import values_of_functions
from gpzoo.inference.fitted.map_batches import BoundModel
from gpzoo.inference.fitted.predict import Predicting, predictions
from gpzoo.inference.fitted.trained import Trained
from gpzoo.inference.guides.draws import DrawsGuide
from gpzoo.inference.plots import _axes as draw
from gpzoo.inference.programs.calls import entry_point

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Number of functions behind the quantiles of centred bands, number of their random features, and rows at a time.
_FUNCTIONS, _FEATURES, _ROWS = 400, 2048, 1000


@entry_point
def components(
    rng_key: Array,
    trained: Trained,
    *args: Argument,
    parts: Mapping[str, Sequence[str]] | None = None,
    centred: bool = False,
    column: int = 0,
    model_kwargs: Mapping[str, Any] | None = None,
    ax: Sequence[Axes] | None = None,
) -> list[Axes]:
    """A panel for each GP site, or each addend of a site, with its mean and band over the inputs.

    If the program adds several sites, the data determine their sum better than each site. If these sites have one joint
    posterior (``coupled`` of :class:`~gpzoo.inference.InducingGuide`), the band of each site includes this uncertainty.
    For example, if the kernels of two sites each contain a constant, the data do not determine the level of each site.
    The band of each of these sites is then as wide as the prior of its level. With ``centred``, each function is shown
    without its mean over the inputs.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide, Trained, plots
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 6, 50, dtype=np.float32)[:, None]
        >>> guide = InducingGuide(gp_regression, kmeans(8))
        >>> start = Trained(gp_regression, guide, guide.init_params(jax.random.key(0), X, np.sin(X[:, 0])))
        >>> [panel] = plots.components(jax.random.key(1), start, X)
        >>> panel.get_ylabel()
        'f'

    Args:
        rng_key: key of the draws.
        trained: the model.
        *args: the program's positional arguments at the inputs to show.
        parts: names of the addends of a GP site whose kernel is a sum, see :meth:`gpzoo.inference.Trained.predict`.
            The panels of the addends come after the panel of the site.
        centred: whether each function is shown without its mean over the inputs.
        column: column of the first argument along which values are shown.
        model_kwargs: the program's keyword arguments, by name.
        ax: one axes for each panel; ``None`` for a new figure.

    Returns:
        The axes, in the order of the program.

    Raises:
        ValueError: if the first argument is not ``[N]`` or ``[N, features]``, if the column does not exist, if there is
            not one axes for each panel, or if no GP site has a value for each row of the first argument. See also
            :meth:`gpzoo.inference.Trained.predict`.
        TypeError: with ``centred``, for a kernel without a spectral density in gpzoo; the message names the kernel.
    """
    model = trained._bind(args, model_kwargs)
    inputs = np.asarray(jax.tree.leaves(model.args)[0])
    checks.refuse(inputs.ndim > 2, f"components is of inputs [N] or [N, features], got shape {inputs.shape}.")
    width = 1 if inputs.ndim == 1 else inputs.shape[1]
    checks.refuse(not 0 <= column < width, f"column must be one of the {width} columns of the inputs, got {column}.")
    along = inputs if inputs.ndim == 1 else inputs[:, column]
    bands = _centred(rng_key, model, parts) if centred else _of_rows(rng_key, model, parts)
    order = np.argsort(along)
    shown = [each for site in model.look.trace for each in (site, *(parts or {}).get(site, ())) if each in bands]
    rows = {name: bands[name] for name in shown if bands[name].shape[1] == len(along)}
    checks.refuse(not rows, "No GP site of the program has a value for each row of the inputs.")
    names, _ = checks.positional(trained.model, len(args))
    panels = draw.several(ax, len(rows), 1.9)
    for panel, (name, found) in zip(panels, rows.items(), strict=True):
        values = found[:, order].reshape(3, len(along), -1)
        for k in range(min(values.shape[-1], draw.OUTPUTS)):
            named = "" if values.shape[-1] == 1 else f" {k}"
            low, mean, high = values[..., k]
            draw.band(panel, along[order], (low, high), f"{draw.CENTRAL}{named}", draw.colour(k), 0.25)
            draw.curve(panel, along[order], mean, f"mean{named}", color=draw.colour(k))
        last = panel is panels[-1]
        draw.label(panel, names[0] if last else "", f"{name}, centred" if centred else name)
    draw.legend_above(panels[0])
    return panels


def _of_rows(rng_key: Array, model: BoundModel, parts: Mapping[str, Sequence[str]] | None) -> dict[str, np.ndarray]:
    """The mean of each function between the ends of its band, ``[3, N, ...]``, row by row."""
    found = predictions(model, rng_key, Predicting(quantiles=draw.ENDS, num_draws=100, parts=parts))
    bands = {}
    for name, own in found.items():
        if name in model.guide.sites.processes or any(name in names for names in (parts or {}).values()):
            low, high = np.asarray(own.quantiles)
            bands[name] = np.stack([low, np.asarray(own.mean), high])
    return bands


def _centred(rng_key: Array, model: BoundModel, parts: Mapping[str, Sequence[str]] | None) -> dict[str, np.ndarray]:
    """:func:`_of_rows` for functions without their mean over the inputs. The mean depends on all rows together."""
    counts: Any = {"num_draws": _FUNCTIONS, "num_features": _FEATURES, "batch_size": _ROWS}
    if isinstance(model.guide, DrawsGuide):
        counts["num_draws"] = min(_FUNCTIONS, math.prod(model.guide.shape(model.params)))
    bands = {}
    for name, values in values_of_functions(model, rng_key, parts=parts, **counts).items():
        values = values - values.mean(1, keepdims=True)
        low, high = draw.central(values)
        bands[name] = np.stack([low, values.mean(0), high])
    return bands
