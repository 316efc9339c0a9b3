"""What do experiments of no paper share? Generated data, bands of functions, and means over random splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, random

from gpzoo import kmeans
from gpzoo.inference import InducingGuide, Trained, load
from gpzoo.reproductions import datasets
from gpzoo.reproductions.datasets import Dataset
from gpzoo.reproductions.experiment import Inspected, Outcome, Run
from gpzoo.reproductions.training import Setting, exported, left

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def halved(name: str, X: np.ndarray, y: np.ndarray) -> Dataset:
    """Generated data, of which the first half is for testing."""
    X, y, half = X.astype(np.float32), y.astype(np.float32), len(y) // 2
    return Dataset(name, X[half:], y[half:], X[:half], y[:half], source="generated", sha256={})


def band(ax: Axes, x: np.ndarray, mean: np.ndarray, scale: np.ndarray, name: str, colour: str = "C0") -> None:
    """A function, with two standard deviations on either side."""
    ax.plot(x, mean, color=colour, label=f"{name}, with two standard deviations")
    ax.fill_between(x, mean - 2 * scale, mean + 2 * scale, color=colour, alpha=0.3)


def outcome_of(
    run: Run,
    setting: Setting,
    trained: Trained,
    args: tuple[Any, Any],
    looked_at: Inspected,
    *,
    key: Array,
    keywords: Mapping[str, Any] | None = None,
    num_draws: int = 100,
    **others: Any,
) -> Outcome:
    """The outcome of a model of :func:`~gpzoo.reproductions.training.optimise`.

    Args:
        run: the run.
        setting: the settings of its training.
        trained: the model.
        args: the inputs and targets that it was trained on.
        looked_at: the model, and what a report looks at.
        key: random key of the exported posterior.
        keywords: keyword arguments of the program.
        num_draws: number of draws of the exported posterior.
        **others: fields of the outcome that have no value here, or another one; ``settings`` are added.
    """
    X, y = (jnp.asarray(x) for x in args)
    settings = setting.described(len(y)) | others.pop("settings", {})
    common = {
        "settings": settings,
        "steps": setting.steps,
        "seconds_training": trained.seconds,
        "dtype": str(X.dtype),
        "elbo": -trained.losses,
        "posterior": partial(exported, key, trained, X, y, num_draws, keywords),
        "inspected": looked_at,
    }
    return Outcome(**(common | others))


class Split(NamedTuple):
    """Data of a split as a program takes them, and what a training on it has come to.

    Attributes:
        args: inputs and targets for training.
        test: inputs and targets for testing.
        keywords: keyword arguments of the program.
    """

    args: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    keywords: Mapping[str, Any]


class Result(NamedTuple):
    """The result of a split: its metrics, seconds of training, the model that is kept, and that with the curve.

    Attributes:
        metrics: by name.
        seconds: of training.
        kept: the model that is kept.
        curve: the model with the learning curve.
        args: the rows whose posterior is exported.
    """

    metrics: dict[str, float]
    seconds: float
    kept: Trained
    curve: Trained
    args: tuple[np.ndarray, np.ndarray]


def on_every_split(
    run: Run,
    name: str,
    model: Callable,
    setting: Setting,
    split_of: Callable[[Dataset], Split],
    trained_on: Callable[[Run, int, Split], Result],
    **others: Any,
) -> tuple[Outcome, list[dict[str, float]]]:
    """Means of metrics over random splits, as many as the options' ``splits``, and the metrics of each.

    Args:
        run: the run.
        name: name of the data.
        model: the program, whose inducing points start as k-means.
        setting: the settings of a training.
        split_of: data as the program takes them.
        trained_on: trains and evaluates, given the run with the seed of a split, its number, and its data.
        **others: further fields of the outcome.
    """
    count, of = run.options["splits"], run.options["all_splits"]
    which, first, found = f"split 1 of {count}", None, []
    for fold in range(count):
        data = datasets.load(name, split=fold)
        split = split_of(data)
        if run.finished:
            kept = load(run.model, model, InducingGuide(model, kmeans(setting.inducing)))
            return left(run, data, Inspected(kept, split.test, split.keywords, which)), []
        found.append(trained_on(replace(run, seed=run.seed + fold), fold, split))
        first = first or (data, split)
    assert first is not None
    (data, split), result, every = first, found[0], [one.metrics for one in found]
    others = {
        "metrics": {metric: float(np.mean([one[metric] for one in every])) for metric in every[0]},
        "steps": setting.steps * count,
        "seconds_training": sum(one.seconds for one in found),
        "elbo": -result.curve.losses,
        "data": data,
        "folds": {"count": count, "of": of, "seeds": list(range(count))},
    } | others
    outcome = outcome_of(
        run,
        setting,
        result.kept,
        result.args,
        Inspected(result.kept, split.test, split.keywords, which),
        key=random.key(run.seed),
        keywords=split.keywords,
        **others,
    )
    return outcome, every


def standard_error(values: Any) -> float:
    """Of the mean of values over splits."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))
