"""Trackers of trainings in MLflow or TensorBoard, as callbacks of :func:`gpzoo.inference.fit`."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Self

import jax.numpy as jnp
import numpy as np

from gpzoo._extras import needs
from gpzoo.inference.fitted.trained import Trained
from gpzoo.inference.training.callbacks import Metrics

#: Parameters with more entries are not tracked, such as parameters of ``q(u)``, inducing inputs and networks.
_MOST_ENTRIES = 16

#: Largest number of points of a tracked bound, and of metrics that MLflow takes at once.
_MOST_POINTS = 1000


class TensorBoard:
    """Writes events for TensorBoard: ``parameters/...``, ``metrics/...``, ``loss``, ``seconds`` and ``bound``.

    ``with TensorBoard("runs/board") as board: board.bound(fit(key, svi, 5000, X, y, callback=board))``

    Args:
        folder: folder of the events of one training, such as ``runs/board``. To compare all trainings in ``runs``, use
            ``tensorboard --logdir runs``.
        metrics: a function of the parameters that returns numbers by name.

    Raises:
        MissingExtraError: without tensorboardX.
    """

    def __init__(self, folder: str | os.PathLike[str], metrics: Metrics | None = None) -> None:
        with needs("trackers", "Writing for TensorBoard"):
            from tensorboardX import SummaryWriter
        self.writer, self.metrics = SummaryWriter(os.fspath(folder)), metrics

    def __call__(self, step: int, seconds: float, params: Mapping[str, Any], loss: Any = None) -> None:
        """Write the metrics after ``step`` steps."""
        for name, value in _tracked(seconds, params, self.metrics, loss).items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def bound(self, trained: Trained) -> None:
        """Write the evidence lower bound, in nats, at every step; more than 1,000 steps are averaged to 1,000 means."""
        for step, value in _bound(trained):
            self.writer.add_scalar("bound", value, step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.writer.close()


class MLflow:
    """Logs metrics into MLflow's active run: ``parameters/...``, ``metrics/...``, ``loss``, ``seconds`` and ``bound``.

    ``with mlflow.start_run(): flow = MLflow(); flow.bound(fit(key, svi, 5000, X, y, callback=flow))``

    Args:
        metrics: a function of the parameters that returns numbers by name.

    Raises:
        MissingExtraError: without MLflow.
    """

    def __init__(self, metrics: Metrics | None = None) -> None:
        with needs("trackers", "Logging to MLflow"):
            import mlflow
        self.mlflow, self.metrics = mlflow, metrics

    def __call__(self, step: int, seconds: float, params: Mapping[str, Any], loss: Any = None) -> None:
        """Log the metrics after ``step`` steps."""
        numbers = _tracked(seconds, params, self.metrics, loss)
        # MLflow refuses names with other characters.
        self.mlflow.log_metrics({re.sub(r"[^\w\-. :/]", "_", name): x for name, x in numbers.items()}, step=step)

    def bound(self, trained: Trained) -> None:
        """Log the evidence lower bound, in nats, at every step; more than 1,000 steps are averaged to 1,000 means."""
        run, now, Metric = self.mlflow.active_run(), int(1000 * time.time()), self.mlflow.entities.Metric
        batch = [Metric("bound", value, now, step) for step, value in _bound(trained)]
        self.mlflow.MlflowClient().log_batch(run.info.run_id, batch)


def _tracked(seconds: float, params: Mapping[str, Any], metrics: Metrics | None, loss: Any) -> dict[str, float]:
    numbers = {"seconds": float(seconds)} | ({} if loss is None or np.ndim(loss) else {"loss": float(loss)})
    for name, value in params.items():
        if isinstance(value, Mapping | list | tuple) or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
            continue
        entries = np.ravel(np.asarray(value, np.float64))
        for i, entry in enumerate(entries if entries.size <= _MOST_ENTRIES else ()):
            numbers[f"parameters/{name}{f'/{i}' if np.ndim(value) else ''}"] = float(entry)
    for name, value in ({} if metrics is None else metrics(params)).items():
        numbers[f"metrics/{name}"] = float(value)
    return numbers


def _bound(trained: Trained) -> Iterator[tuple[int, float]]:
    """Step numbers, and the mean bound over the steps since the previous number."""
    if trained.losses.ndim != 1:
        raise ValueError(f"These are {len(trained.losses)} trainings: track one of them, such as trained.member(0).")
    ends = np.unique(np.linspace(0, trained.losses.size, min(trained.losses.size, _MOST_POINTS) + 1).astype(int))
    for start, end in pairwise(ends):
        yield int(end), -float(np.mean(trained.losses[start:end], dtype=np.float64))
