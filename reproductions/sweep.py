"""Trainings over folds as one program, and what is learnt of a model from its folds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import optax
from jax import random
from numpyro.infer import SVI

from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, fit
from gpzoo.reproductions.datasets.dataset import Dataset

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Folds:
    """Training and test parts of the folds of a regression set, each standardised on its own training part.

    Attributes:
        parts: the folds.
        X: training inputs ``[K, N, d]``, float32.
        y: training targets ``[K, N]``, float32.
    """

    parts: Sequence[Dataset]
    X: np.ndarray
    y: np.ndarray

    @classmethod
    def of(cls, raw: Sequence[Dataset]) -> Folds:
        """Standardise and stack; every fold has the same number of rows."""
        parts = [part.standardised() for part in raw]
        X = np.stack([part.X_train for part in parts]).astype(np.float32)
        return cls(parts, X, np.stack([part.y_train for part in parts]).astype(np.float32))


@dataclass(frozen=True)
class Scores:
    """Test metrics of every fold, in the target's original units, and what the training took."""

    test_log_likelihood: list[float]
    rmse: list[float]
    elbo: list[float]
    seconds: float

    def summary(self) -> dict[str, float]:
        """Means over folds, and the standard errors of the means where there are several folds."""
        found = {}
        for name in ("test_log_likelihood", "rmse"):
            values = np.asarray(getattr(self, name))
            found[name] = float(values.mean())
            if len(values) > 1:
                found[f"{name}_se"] = float(values.std(ddof=1) / np.sqrt(len(values)))
        return found


def train_folds(
    model: Callable,
    guide: InducingGuide,
    folds: Folds,
    *,
    steps: int,
    rate: optax.Schedule,
    batch_size: int | None,
    seed: int,
    checkpoint: Path,
    progress: bool | str = True,
    model_kwargs: Mapping[str, Any] | None = None,
) -> tuple[Scores, Trained]:
    """Train a program on every fold, all folds in one compiled program, and evaluate it on their test parts.

    Args:
        model: the program.
        guide: its guide.
        folds: the data.
        steps: updates of each training.
        rate: learning rates for Adam.
        batch_size: rows per minibatch, ``None`` for all.
        seed: of every random key.
        checkpoint: folder for checkpoints.
        progress: as for :func:`gpzoo.inference.fit`.
        model_kwargs: the program's keyword arguments.

    Returns:
        The metrics, and the trained model with a leading axis of folds.
    """
    K, N = folds.y.shape
    train_key, test_key = random.split(random.key(seed))
    svi = SVI(model, guide, optax.adam(rate), GaussianProcessELBO())
    keys = random.split(train_key, K)
    batch_size = None if batch_size is None or batch_size >= N else batch_size
    program = {"num_data": N, **(model_kwargs or {})}
    options = {"batch_size": batch_size, "checkpoint": checkpoint, "progress": progress}
    result = fit(keys, svi, steps, folds.X, folds.y, model_kwargs=program, **options)
    densities, errors = [], []
    for k, part in enumerate(folds.parts):
        X, y = part.X_test.astype(np.float32), part.y_test.astype(np.float32)
        test = result.member(k).predict(test_key, X, test_data={"y": y}, model_kwargs=model_kwargs)["y"]
        densities.append(float(test.log_density.mean(dtype=np.float64) - np.log(part.y_std)))
        errors.append(float(part.y_std * np.sqrt(np.mean((test.mean - y) ** 2, dtype=np.float64))))
    last = result.losses[:, -max(1, N // (batch_size or N)) :]
    return Scores(densities, errors, (-last.mean(axis=1)).tolist(), result.seconds), result


def figure_1(results: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Test log likelihood of every model and data set, means and standard errors over folds (figure 1).

    Args:
        results: the content of the result files, by data set.

    Returns:
        A figure that belongs to no window.
    """
    from matplotlib.figure import Figure

    size = max(5.5, 2.1 * min(4, len(results)) + 1), 2.2 * -(-len(results) // 4)
    figure = Figure(figsize=size, layout="constrained")
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
        axes.set_yticks([-row for row in range(len(models))], [_title(model) for model in models])
        axes.tick_params(labelsize=7)
        axes.locator_params(axis="x", nbins=4)
        sizes = result["data"]["sizes"]
        axes.set_title(f"{name} (N {sizes['train'] + sizes['test']:,}, D {sizes['input_shape'][0]})", fontsize=8)
    figure.supxlabel("test log likelihood per point (nats, original units), mean and standard error", fontsize=8)
    return figure


def _title(model: str) -> str:
    """``"dgp2"`` and ``"sgp-500"`` as the paper writes them."""
    return re.sub(r"(GP)-?(\d)", r"\1 \2", model.upper())
