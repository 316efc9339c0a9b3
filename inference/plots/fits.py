"""What does a trained model say along one input? Bands, draws, data and inducing points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import Array

from gpzoo import _checks as checks
from gpzoo._types import Argument, ArrayLike
from gpzoo.inference.asking.predict import predict
from gpzoo.inference.asking.summaries import SitePrediction
from gpzoo.inference.asking.trained import Trained
from gpzoo.inference.plots._axes import (
    BLUE,
    CENTRAL,
    CYCLE,
    ENDS,
    OUTPUTS,
    VERMILION,
    WORDS,
    label,
    legend_above,
    one,
)
from gpzoo.inference.plots._looks import (
    BAND_DRAWS,
    Draws,
    Observed,
    beyond,
    columns,
    joint_draws,
    points_among,
    seen,
    seen_by_mcmc,
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
    draws: int = 8,
    posterior_samples: Mapping[str, ArrayLike] | None = None,
    params: Mapping[str, Any] | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A fit to one input: bands of ``y`` and of what the GP says of it, draws, data and inducing points.

    The inner band and the draws are those of ``f``; where the likelihood has a link, they are those of the mean of
    ``y`` given ``f``, and for classes of their probabilities, so that all are on the scale of the data.

    Of MCMC, and of exact regression (an observed GP site), give the program in place of a trained model, with draws or
    parameters and all data, on which predictions are conditioned. It has the bands, without draws of functions.

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
        trained: the model, whose program has one input ``[N, 1]``; or such a program.
        *args: the program's positional arguments, data included, as far as they are to be shown.
        site: the GP site whose inducing points are marked; not needed where one is no inner layer.
        draws: number of functions to show.
        posterior_samples: of a program, its MCMC draws, see :func:`~gpzoo.inference.predict`.
        params: of a program, values of its ``numpyro.param`` sites.
        model_kwargs: the program's keyword arguments, by name.
        ax: axes to draw into; those of a new figure if ``None``.

    Raises:
        ValueError: for other inputs, an unknown site, or a program without data sites; for draws or parameters of a
            trained model, which has its own.
    """
    if not isinstance(trained, Trained):
        return _conditioned(rng_key, trained, args, site, posterior_samples or {}, params or {}, model_kwargs, ax)
    if posterior_samples is not None or params is not None:
        raise ValueError("A trained model has its own parameters: give its program, trained.model, with those of MCMC.")
    ax, draws = one(ax), draws if draws == 0 else checks.positive_int("draws", draws)
    looked = seen(trained, args, model_kwargs)
    X, name = looked.inputs_of(1, "fit_1d"), looked.site(site)
    observed = looked.observed
    grid = beyond(X[:, 0], 0.1)[:, None].astype(X.dtype)
    found = trained.predict(rng_key, grid, quantiles=ENDS, num_draws=BAND_DRAWS, model_kwargs=model_kwargs)
    drawn = joint_draws(rng_key, trained, (grid,), model_kwargs, BAND_DRAWS)
    if found[observed.name].probs is not None or observed.binary:
        _probabilities(ax, grid[:, 0], found[observed.name], drawn, observed, draws)
        _labels_as_marks(ax, X[:, 0], observed.values)
    else:
        _bands(ax, grid[:, 0], found, drawn, name, observed.name, draws)
        _data(ax, X[:, 0], observed.values)
        label(ax, looked.names[0], observed.name)
    at = points_among(trained.posterior(rng_key, *args, model_kwargs=model_kwargs)[name], X)
    if at is not None:
        ax.plot(
            at[:, 0],
            np.full(len(at), 0.025),
            "|",
            color=VERMILION,
            markersize=9,
            markeredgewidth=1.2,
            transform=ax.get_xaxis_transform(),
            label="inducing points",
            zorder=4,
            clip_on=True,
        )
    ax.set_xlabel(looked.names[0], fontsize=WORDS)
    ax.set_xlim(grid[0, 0], grid[-1, 0])
    legend_above(ax)
    return ax


def _conditioned(
    rng_key: Array,
    model: Callable,
    args: tuple,
    site: str | None,
    samples: Mapping[str, ArrayLike],
    params: Mapping[str, Any],
    model_kwargs: Mapping[str, Any] | None,
    ax: Axes | None,
) -> Axes:
    """The fit of a program whose GP sites are conditioned on data."""
    first = {name: np.asarray(value)[0] for name, value in checks.named("posterior_samples", samples).items()}
    looked, args, kwargs = seen_by_mcmc(model, args, dict(model_kwargs or {}), first | dict(params))
    X, observed = looked.inputs_of(1, "fit_1d"), looked.observed
    name = looked.site(site) if looked.processes else observed.name
    grid = beyond(X[:, 0], 0.1)[:, None].astype(X.dtype)
    found = predict(
        rng_key,
        model,
        grid,
        posterior_samples=samples,
        params=params,
        train_args=args,
        train_kwargs=kwargs,
        quantiles=ENDS,
        model_kwargs=kwargs,
    )
    ax = one(ax)
    if found[observed.name].probs is not None or observed.binary:
        _probabilities(ax, grid[:, 0], found[observed.name], Draws({}, {}), observed, 0)
        _labels_as_marks(ax, X[:, 0], observed.values)
    else:
        _bands(ax, grid[:, 0], found, Draws({}, {}), name, observed.name, 0)
        _data(ax, X[:, 0], observed.values)
        label(ax, looked.names[0], observed.name)
    ax.set_xlabel(looked.names[0], fontsize=WORDS)
    ax.set_xlim(grid[0, 0], grid[-1, 0])
    legend_above(ax)
    return ax


def _bands(
    ax: Axes,
    x: np.ndarray,
    found: Mapping[str, SitePrediction],
    drawn: Draws,
    site: str,
    data: str,
    draws: int,
) -> None:
    """The bands of numbers, a colour per output; without draws the inner one is that of the site."""
    y, inner, what = found[data], found[site].quantiles, site
    functions = drawn.functions.get(site, np.asarray(found[site].mean)[None])
    expected = drawn.expected.get(data, functions)
    if not np.isfinite(expected).all():  # a Cauchy has no mean
        expected = functions
    # Quantiles of f have a formula, those of a function of it only draws.
    if expected.shape != functions.shape or not np.allclose(expected, functions, rtol=1e-4, atol=1e-6):
        inner, what = np.quantile(expected, ENDS, axis=0), f"E[{data} | {site}]"
    middle, of_mean = (np.mean(functions, axis=0), site) if y.mean is None else (y.mean, data)
    middle, outer, inner, expected = (columns(middle), columns(y.quantiles, 1), columns(inner, 1), columns(expected, 1))
    several_outputs = middle.shape[1] > 1
    for k in range(min(middle.shape[1], OUTPUTS)):
        colour, of = CYCLE[k], f" {k}" if several_outputs else ""
        ax.fill_between(
            x, *outer[..., k], color=colour, alpha=0.16, linewidth=0, label=f"{CENTRAL} of {data}" if k == 0 else None
        )
        if what != data:
            name = f"{CENTRAL} of {what}" if k == 0 else None
            ax.fill_between(x, *inner[..., k], color=colour, alpha=0.35, linewidth=0, label=name)
        ax.plot(x, middle[:, k], color=colour, linewidth=1.6, label=f"mean of {of_mean}{of}", zorder=3)
        if draws and not several_outputs:
            lines = ax.plot(x, expected[:draws, :, k].T, color="0.25", linewidth=0.5, alpha=0.7)
            lines[0].set_label(f"draws of {what}")


def _data(ax: Axes, x: np.ndarray, values: np.ndarray | None) -> None:
    if values is None:
        return
    outputs = values[:, None] if values.ndim == 1 else values
    for k in range(min(outputs.shape[1], OUTPUTS)):
        colour = "k" if outputs.shape[1] == 1 else CYCLE[k]
        ax.plot(
            x,
            outputs[:, k],
            ".",
            color=colour,
            markersize=4 if len(x) <= 300 else 2,
            zorder=3.5,
            label="data" if k == 0 else None,
            rasterized=len(x) > 2000,
            markeredgewidth=0,
        )


def _probabilities(
    ax: Axes, x: np.ndarray, found: SitePrediction, drawn: Draws, observed: Observed, draws: int
) -> None:
    """Probabilities of classes along the line, with their bands."""
    probs = columns(found.mean) if found.probs is None else found.probs
    given = drawn.expected.get(observed.name)
    given = None if given is None else given.reshape(len(given), *probs.shape)
    name, K = observed.name, probs.shape[1]
    for k in range(K):
        colour = CYCLE[k % len(CYCLE)] if K > 1 else BLUE
        of = f"P({name} = {k})" if not observed.binary else f"P({name} = 1)" if K == 1 else f"P({name}[{k}] = 1)"
        if given is not None:
            band = f"{CENTRAL} given f" if k == 0 else None
            ax.fill_between(
                x, *np.quantile(given[..., k], ENDS, axis=0), color=colour, alpha=0.2, linewidth=0, label=band
            )
            if draws and K == 1:
                lines = ax.plot(x, given[:draws, :, k].T, color="0.25", linewidth=0.5, alpha=0.7)
                lines[0].set_label("draws")
        ax.plot(x, probs[:, k], color=colour, linewidth=1.6, label=of)
    label(ax, "", "probability")
    ax.set_ylim(-0.17, 1.12)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1])


def _labels_as_marks(ax: Axes, x: np.ndarray, values: np.ndarray | None) -> None:
    """Class labels as ticks above the probabilities: two classes at 0 and 1, more in a row."""
    if values is None or values.ndim > 1:
        return
    classes = np.unique(values)
    for i, k in enumerate(classes):
        binary = len(classes) <= 2
        height = (-0.05 if k == 0 else 1.05) if binary else 1.04 + 0.05 * (i % 2)
        ax.plot(
            x[values == k],
            np.full(np.sum(values == k), height),
            "|",
            markersize=6,
            markeredgewidth=0.8,
            color="k" if binary else CYCLE[int(k) % len(CYCLE)],
            label="data" if i == 0 else None,
        )
