"""How good is a model on the folds of a data set? All folds are trained as one program."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax import Array, random

from gpzoo.inference import InducingGuide, Trained, plots
from gpzoo.reproductions.datasets.in_memory import Dataset
from gpzoo.reproductions.metrics import means, of_numbers
from gpzoo.reproductions.training import Curve, Setting, last_bound, optimise, predicted

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Folds:
    """Training and test parts of the folds of a regression set, each standardised on its own training part.

    Attributes:
        parts: the folds.
        X: training inputs ``[K, N, d]``.
        y: training targets ``[K, N]``.
    """

    parts: Sequence[Dataset]
    X: np.ndarray
    y: np.ndarray

    @classmethod
    def of(cls, raw: Sequence[Dataset]) -> Folds:
        """Standardise and stack in float32; every fold has the same number of rows."""
        return cls._stacked([part.standardised() for part in raw], np.float32)

    @classmethod
    def _stacked(cls, parts: Sequence[Dataset], dtype: Any) -> Folds:
        X = np.stack([part.X_train for part in parts]).astype(dtype)
        return cls(parts, X, np.stack([part.y_train for part in parts]).astype(dtype))

    def astype(self, dtype: Any) -> Folds:
        """The same in another precision."""
        return self._stacked(self.parts, dtype)


@dataclass(frozen=True)
class Scores:
    """Test metrics of every fold, in the target's original units, and the cost of the training.

    ``curve`` has their means over folds during training.
    """

    test_log_likelihood: list[float]
    rmse: list[float]
    elbo: list[float]
    seconds: float
    curve: Sequence[Mapping[str, float]] = ()

    def summary(self) -> dict[str, float]:
        """Means over folds, and their standard errors; see :func:`means`."""
        return means({name: getattr(self, name) for name in ("test_log_likelihood", "rmse")})


class Watch(NamedTuple):
    """When test metrics are evaluated during training, and where they are kept.

    Attributes:
        steps: numbers of steps.
        curve: makes the callback from the evaluation.
    """

    steps: Sequence[int]
    curve: Callable[[Callable[[dict[str, Any]], Mapping[str, float]]], Curve]


def train_folds(
    key: Array,
    model: Callable,
    guide: InducingGuide,
    folds: Folds,
    setting: Setting,
    *,
    checkpoint: Path,
    progress: bool | str = True,
    model_kwargs: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
) -> tuple[Scores, Trained]:
    """Train a program on every fold, all folds in one compiled program, and evaluate it on their test parts.

    Args:
        key: random key.
        model: the program.
        guide: its guide.
        folds: the data.
        setting: the settings of the training.
        checkpoint: folder for checkpoints.
        progress: as for :func:`gpzoo.inference.fit`.
        model_kwargs: the program's keyword arguments.
        watch: which metrics of the training are kept, besides those at its end.

    Returns:
        The metrics, and the trained model with a leading axis of folds.
    """
    K, N = folds.y.shape
    train_key, test_key = random.split(key)
    begun = Trained(model, guide, {})

    def scored(params: Mapping[str, Any]) -> dict[str, list[float]]:
        found = []
        for k, part in enumerate(folds.parts):
            X, y = part.X_test.astype(folds.X.dtype), part.y_test.astype(folds.X.dtype)
            one = begun.with_params(jax.tree.map(lambda x, k=k: x[k], params))
            found.append(of_numbers(predicted(test_key, one, X, y, model_kwargs=model_kwargs), y, part.y_std))
        return {name: [each[name] for each in found] for name in ("test_log_likelihood", "rmse")}

    options: dict[str, Any] = {
        "num_data": N,
        "checkpoint": checkpoint,
        "progress": progress,
        "model_kwargs": model_kwargs,
    }
    curve = None if watch is None else watch.curve(lambda params: means(scored(params)))
    if watch is not None and curve is not None:
        at = {step for step in watch.steps if step <= setting.steps}

        def callback(step: int, seconds: float, params: dict[str, Any]) -> None:
            if step in at:
                curve(step, seconds, params)

        options |= {"callback": callback, "callback_steps": math.gcd(*at)}
    result = optimise(random.split(train_key, K), model, guide, setting, folds.X, folds.y, **options)
    points = () if curve is None else curve.until(setting.steps)
    bounds = last_bound(result.losses, N, setting).tolist()
    return Scores(**scored(result.params), elbo=bounds, seconds=result.seconds, curve=points), result


def figure_1(results: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Test log likelihood of every model and data set, means and standard errors over folds (figure 1).

    Args:
        results: the content of the result files, by data set.

    Returns:
        A figure without a window.
    """
    figure = plots.blank(max(5.5, 1.75 * min(4, len(results)) + 1), 2.2 * -(-len(results) // 4))
    panels = figure.subplots(-(-len(results) // 4), min(4, len(results)), squeeze=False).ravel()
    for axes in panels[len(results) :]:
        axes.set_axis_off()
    for axes, (name, result) in zip(panels, results.items(), strict=False):
        metrics = result["metrics"]
        models = [key.removesuffix("_test_log_likelihood") for key in metrics if key.endswith("_test_log_likelihood")]
        for row, model in enumerate(models):
            value, error = (metrics.get(f"{model}_test_log_likelihood{end}", 0.0) for end in ("", "_se"))
            colour = "C1" if model == "sgp" else "C0"
            axes.errorbar(value, -row, xerr=error, fmt="o", color=colour, markersize=4, capsize=2)
            if model == "sgp":
                axes.axvline(value, color="0.85", zorder=0)
        axes.set_yticks([-row for row in range(len(models))], [title_of(model) for model in models])
        axes.tick_params(labelsize=8)
        axes.locator_params(axis="x", nbins=3)
        sizes = result["data"]["sizes"]
        axes.set_title(f"{name} (N {sizes['train'] + sizes['test']:,}, D {sizes['input_shape'][0]})", fontsize=8)
    words = "test log likelihood per point (nats, original units), mean and standard error; grey: SGP"
    figure.supxlabel(words, fontsize=9)
    return figure


def title_of(model: str) -> str:
    """The name of a model in figures, such as ``"dgp2"``, ``"sgp-500"`` or ``"dgp2-natural"``."""
    shape, *training = model.split("-natural")
    return re.sub(r"(GP)-?(\d)", r"\1 \2", shape.upper()) + (", natural gradients" if training else "")
