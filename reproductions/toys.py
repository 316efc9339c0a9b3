"""What do experiments of no paper share? Generated data, bands of functions, and outcomes of trainings of their own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from gpzoo.inference import Trained
from gpzoo.reproductions.datasets import Dataset
from gpzoo.reproductions.experiment import Inspected, Outcome, Run
from gpzoo.reproductions.training import Setting, exported, keys_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def halved(name: str, X: np.ndarray, y: np.ndarray) -> Dataset:
    """Generated data, of which the first half is for testing."""
    X, y, half = X.astype(np.float32), y.astype(np.float32), len(y) // 2
    return Dataset(name, X[half:], y[half:], X[:half], y[:half], source="generated", sha256={})


def scaled(data: Dataset) -> Dataset:
    """Standardised data in single precision; integer classes stay as they are."""
    found = data.standardised()
    arrays = {name: getattr(found, name) for name in ("X_train", "y_train", "X_test", "y_test")}
    return replace(found, **{name: x.astype(np.float32) for name, x in arrays.items() if x.dtype.kind == "f"})


def band(ax: Axes, x: np.ndarray, mean: np.ndarray, scale: np.ndarray, name: str, colour: str = "C0") -> None:
    """A function, with two standard deviations on either side."""
    ax.plot(x, mean, color=colour, label=f"{name}, with two standard deviations")
    ax.fill_between(x, mean - 2 * scale, mean + 2 * scale, color=colour, alpha=0.3)


def outcome_of(
    run: Run, setting: Setting, args: tuple, looked_at: Inspected, trained: Trained, **others: Any
) -> Outcome:
    """The outcome of a training by :func:`~gpzoo.reproductions.training.optimise`.

    Args:
        run: the run.
        setting: the settings of the training.
        args: inputs and targets, of which the first have the exported posterior.
        looked_at: the model that is kept, with the program's keyword arguments.
        trained: the model with the learning curve, and the posterior that is exported.
        **others: fields of the outcome that have no value here, or another one; ``settings`` are added.
    """
    X, y = (jnp.asarray(x) for x in args)
    common = {
        "settings": setting.described(len(y)) | others.pop("settings", {}),
        "steps": setting.steps,
        "seconds_training": trained.seconds,
        "dtype": str(X.dtype),
        "elbo": -trained.losses,
        "posterior": partial(exported, keys_of(run).export, trained, X, y, setting.num_draws, looked_at.keywords),
        "inspected": looked_at,
    }
    return Outcome(**(common | others))
