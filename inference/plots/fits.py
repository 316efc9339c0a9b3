"""Pictures along one input: bands, draws, data and inducing points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax import Array

from gpzoo import _checks as checks
from gpzoo._types import Argument, ArrayLike
from gpzoo.inference.fitted.summaries import SitePrediction
from gpzoo.inference.fitted.trained import Trained
from gpzoo.inference.plots import _axes as draw
from gpzoo.inference.plots._model import (
    Draws,
    Observed,
    beyond,
    columns,
    floats_like,
    joint_draws,
    model_at,
    model_of_mcmc,
)
from gpzoo.inference.programs.calls import entry_point

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@entry_point
def fit_1d(
    rng_key: Array,
    trained: Trained | Callable,
    *args: Argument,
    site: str | None = None,
    data: str | None = None,
    draws: int = 8,
    posterior_samples: Mapping[str, ArrayLike] | None = None,
    params: Mapping[str, Any] | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A fit to one input: bands of ``y`` and of the GP, draws, data and inducing points.

    The inner band and the draws show ``f``. If the likelihood has a link, they show the mean of ``y`` given ``f``. For
    classes, they show probabilities of the classes. Everything is therefore on the scale of the data.

    For MCMC and for exact regression (an observed GP site), give the program in place of a trained model. Also give
    the MCMC draws or the parameters, and all data on which predictions are conditioned. The picture then has bands, but
    no draws of functions.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide, Trained, plots
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 6, 50, dtype=np.float32)[:, None]
        >>> y, guide = np.sin(X[:, 0]), InducingGuide(gp_regression, kmeans(8))
        >>> start = Trained(gp_regression, guide, guide.init_params(jax.random.key(0), X, y))
        >>> ax = plots.fit_1d(jax.random.key(1), start, X, y, draws=3)
        >>> ax.get_ylabel()
        'y'

    Args:
        rng_key: key of the draws.
        trained: the trained model, or a program. The program has one input ``[N, 1]``.
        *args: the program's positional arguments; data among them are shown.
        site: the GP site whose inducing points are marked. ``None`` means the only GP site that is not an inner layer.
        data: the data site to show; the first one if ``None``.
        draws: number of functions to show.
        posterior_samples: for a program, its MCMC draws, see :func:`~gpzoo.inference.predict`.
        params: for a program, values of its ``numpyro.param`` sites.
        model_kwargs: the program's keyword arguments, by name.
        ax: axes to draw into; ``None`` for a new figure.

    Raises:
        ValueError: if the program does not have one input ``[N, 1]``, for an unknown site, or for a program without
            data sites; if ``posterior_samples`` or ``params`` are given together with a trained model.
    """
    draws = draws if draws == 0 else checks.positive_int("draws", draws)
    if not isinstance(trained, Trained):
        model = model_of_mcmc(trained, args, model_kwargs, posterior_samples or {}, params or {})
    elif posterior_samples is None and params is None:
        model = model_at(trained, args, model_kwargs)
    else:
        raise ValueError("A trained model has its own parameters: give its program, trained.model, with those of MCMC.")
    X, name, observed = model.inputs_of(1, "fit_1d"), model.site(site), model.observed(data)
    x = beyond(X[:, 0], 0.1)
    grid = x[:, None].astype(floats_like(X))
    predictions = model.predict(rng_key, grid, quantiles=draw.ENDS)
    drawn, at = Draws({}, {}), model.points(rng_key, name, X)
    if isinstance(trained, Trained):
        drawn = joint_draws(rng_key, trained._bind((grid,), model_kwargs))
    of_data = predictions[observed.name]
    classes = of_data.probs is not None or observed.binary
    ax = draw.one(ax)
    shown = _of_classes(of_data, drawn, observed) if classes else _of_numbers(predictions, drawn, name, observed)
    _draw(ax, grid[:, 0], shown, draws if model.subject else 0)
    if observed.values is not None:
        (_labels_as_marks if classes else _data)(ax, X[:, 0], observed.values)
    if at is not None:
        style = {"color": draw.VERMILION, "markersize": 9, "markeredgewidth": 1.2, "zorder": 4}
        draw.ticks_below(ax, at[:, 0], "inducing points", **style)
    limits = {"yticks": [0, 0.25, 0.5, 0.75, 1], "ylim": (-0.17, 1.12)} if classes else {}
    limits["xlim"] = (grid[0, 0], grid[-1, 0])
    return draw.finished(ax, model.names[0], "probability" if classes else observed.name, **limits)


class _Lines(NamedTuple):
    """Lines for each output or class.

    Attributes:
        middles: ``[N, K]``.
        names: names of the middles, ``[K]``.
        bands: ends ``[2, N, K]``, each with a name and the strength of the colour.
        functions: draws ``[S, N, K]``, shown if there is one output; ``None`` if there are no draws.
        named: name of the draws.
    """

    middles: np.ndarray
    names: list[str]
    bands: list[tuple[np.ndarray, str, float]]
    functions: np.ndarray | None
    named: str


def _draw(ax: Axes, x: np.ndarray, shown: _Lines, draws: int) -> None:
    for k, name in enumerate(shown.names):
        colour = draw.colour(k)
        for ends, of, strength in shown.bands:
            draw.band(ax, x, ends[..., k], of if k == 0 else None, colour, strength)
        draw.curve(ax, x, shown.middles[:, k], name, color=colour, linewidth=1.6, zorder=3)
    functions = () if shown.functions is None or len(shown.names) > 1 else shown.functions[:draws, :, 0]
    for s, values in enumerate(functions):
        draw.curve(ax, x, values, shown.named if s == 0 else None, color="0.25", linewidth=0.5, alpha=0.7)


def _of_numbers(predictions: Mapping[str, SitePrediction], drawn: Draws, site: str, observed: Observed) -> _Lines:
    """Bands of ``y`` and of its mean given ``f``. Without draws, the inner band is the band of the site."""
    data = observed.name
    y, inner, what = predictions[data], predictions[site].quantiles, site
    functions = drawn.functions.get(site, np.asarray(predictions[site].mean)[None])
    expected = drawn.expected.get(data, functions)
    if not np.isfinite(expected).all():  # a Cauchy has no mean
        expected = functions
    # Quantiles of f have a formula, but quantiles of a function of f need draws.
    if expected.shape != functions.shape or not np.allclose(expected, functions, rtol=1e-4, atol=1e-6):
        inner, what = draw.central(expected), f"E[{data} | {site}]"
    middle, of_mean = (np.mean(functions, axis=0), site) if y.mean is None else (y.mean, data)
    middle = columns(middle)
    several = middle.shape[1] > 1
    names = [f"mean of {of_mean}{f' {k}' if several else ''}" for k in range(min(middle.shape[1], draw.OUTPUTS))]
    bands = [(columns(y.quantiles, 1), f"{draw.CENTRAL} of {data}", 0.16)]
    if what != data:
        bands.append((columns(inner, 1), f"{draw.CENTRAL} of {what}", 0.35))
    return _Lines(middle, names, bands, columns(expected, 1), f"draws of {what}")


def _of_classes(prediction: SitePrediction, drawn: Draws, observed: Observed) -> _Lines:
    """Probabilities, with their bands."""
    probs = columns(prediction.mean) if prediction.probs is None else prediction.probs
    name, K = observed.name, probs.shape[1]
    event = "{name} = {k}"
    if observed.binary:
        event = "{name}[{k}] = 1" if K > 1 else "{name} = 1"
    names = [f"P({event.format(name=name, k=k)})" for k in range(K)]
    draws = drawn.expected.get(name)
    if draws is None:
        return _Lines(probs, names, [], None, "")
    draws = draws.reshape(len(draws), *probs.shape)
    return _Lines(probs, names, [(draw.central(draws), f"{draw.CENTRAL} given f", 0.2)], draws, "draws")


def _data(ax: Axes, x: np.ndarray, values: np.ndarray) -> None:
    outputs = columns(values)
    many = len(x) > 2000
    style = {"markersize": 4 if len(x) <= 300 else 2, "zorder": 3.5, "rasterized": many, "markeredgewidth": 0}
    for k in range(min(outputs.shape[1], draw.OUTPUTS)):
        colour = "k" if outputs.shape[1] == 1 else draw.colour(k)
        draw.curve(ax, x, outputs[:, k], "data" if k == 0 else None, ".", color=colour, **style)


def _labels_as_marks(ax: Axes, x: np.ndarray, values: np.ndarray) -> None:
    """Class labels as ticks beside the probabilities: two classes at 0 and 1, more classes in a row."""
    if values.ndim > 1:
        return
    classes = np.unique(values)
    for i, k in enumerate(classes):
        binary = len(classes) <= 2
        height = (-0.05 if k == 0 else 1.05) if binary else 1.04 + 0.05 * (i % 2)
        colour, own = "k" if binary else draw.colour(k), x[values == k]
        style = {"markersize": 6, "markeredgewidth": 0.8, "color": colour}
        draw.curve(ax, own, np.full(len(own), height), "data" if i == 0 else None, "|", **style)
