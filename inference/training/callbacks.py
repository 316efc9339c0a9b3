"""Callbacks of ``fit``: the arguments they get, early stopping, and a log in lines."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpzoo import _checks as checks

#: Called as ``callback(step, seconds, params)``, or ``callback(step, seconds, params, loss=loss)`` if it has a
#: parameter ``loss``.
Callback = Callable[..., Any]

#: Function from the parameters so far to numbers by name, such as an error on validation data.
Metrics = Callable[[Mapping[str, Any]], Mapping[str, float]]


class StopTraining(Exception):
    """Raised by a callback to end the training: ``fit`` then returns the model so far.

    Example:
        >>> from gpzoo.inference import StopTraining
        >>> def until_ten_seconds(step, seconds, params):
        ...     if seconds > 10:
        ...         raise StopTraining
        >>> until_ten_seconds(100, 2.5, {})
    """


def joined(callback: Callback | Sequence[Callback] | None) -> Callable[..., None] | None:
    """One function of ``(step, seconds, params, loss)`` that calls every callback with the arguments it takes.

    Raises:
        TypeError: for a callback that cannot be called.
    """
    if callback is None:
        return None
    each: list[Any] = list(callback) if isinstance(callback, list | tuple) else [callback]
    for one in each:
        if not callable(one):
            raise TypeError(f"callback must be a function, or a list of functions, got {one!r}.")
    for one in each:
        if isinstance(one, EarlyStopping):
            one.restart()
    with_loss = [_takes_loss(one) for one in each]

    def call(step: int, seconds: float, params: dict[str, Any], loss: Any) -> None:
        stop = None
        for one, takes in zip(each, with_loss, strict=True):
            try:
                one(step, seconds, params, **({"loss": loss} if takes else {}))
            except StopTraining as asked:  # the callbacks after it see this step too
                stop = asked
        if stop is not None:
            raise stop

    return call if each else None


def _takes_loss(callback: Callback) -> bool:
    try:
        return "loss" in inspect.signature(callback).parameters
    except ValueError:  # some functions in C have no signature
        return False


class EarlyStopping:
    """Ends a training when a number has not fallen for several calls in a row, and keeps the best parameters.

    ``stopping = EarlyStopping(nlpp_of_params); trained = fit(..., callback=stopping)``, then
    ``trained.with_params(stopping.params)``. In a resumed training, the count begins anew.

    Example:
        >>> from gpzoo.inference import EarlyStopping, StopTraining
        >>> stopping = EarlyStopping(patience=2)
        >>> for look, loss in enumerate([3.0, 1.0, 1.5, 1.2], start=1):
        ...     try:
        ...         stopping(100 * look, 0.0, {}, loss=loss)
        ...     except StopTraining:
        ...         print(f"stopped at {100 * look}, best at {stopping.step}")
        stopped at 400, best at 200

    Args:
        metric: function from the parameters to the number, such as the nlpp of held-out rows; ``None`` for the loss,
            which does not show overfitting.
        patience: number of calls in a row without a gain after which the training ends. ``fit`` calls every
            ``callback_steps`` steps.
        min_gain: the smallest fall that counts as a gain.

    Attributes:
        best: the smallest number.
        step: the step of the smallest number.
        params: the parameters at that step.

    Raises:
        ValueError: for a patience below one, or a negative gain.
    """

    def __init__(
        self, metric: Callable[[dict[str, Any]], float] | None = None, patience: int = 5, min_gain: float = 0.0
    ) -> None:
        self.metric, self.patience = metric, checks.positive_int("patience", patience)
        self.min_gain = checks.positive_number("min_gain", min_gain, or_zero=True)
        self.restart()

    def restart(self) -> None:
        """Forget what was seen; ``fit`` does so when it begins."""
        self.best, self.step, self.params, self._last = np.inf, 0, {}, 0
        self._mark, self._without_gain = np.inf, 0

    def __call__(self, step: int, seconds: float, params: dict[str, Any], loss: Any = None) -> None:
        """Evaluate the training after ``step`` steps.

        Raises:
            StopTraining: when the training should end.
            ValueError: for several trainings at once, or a metric that is not a number.
        """
        if step <= self._last:  # another training has begun
            self.restart()
        value = loss if self.metric is None else self.metric(params)
        if np.ndim(value) or not np.isfinite(value):
            raise ValueError(f"EarlyStopping watches one finite number of one training, got {value} at step {step}.")
        self._last, self._without_gain = step, self._without_gain + 1
        if value < self.best:
            self.best, self.step, self.params = float(value), step, dict(params)
        if value < self._mark - self.min_gain:
            self._mark, self._without_gain = float(value), 0
        if self._without_gain >= self.patience:
            raise StopTraining


class Log:
    """Prints a line at every call during a training, and keeps its numbers.

    Example:
        >>> from gpzoo.inference import Log
        >>> log = Log(lambda params: {"noise": params["noise"]})
        >>> log(1000, 12.5, {"noise": 0.25}, loss=103.2)
        step 1,000, 12.5 s: loss 103.2, noise 0.25
        >>> log.rows
        [{'step': 1000, 'seconds': 12.5, 'loss': 103.2, 'noise': 0.25}]

    Args:
        metrics: function from the parameters to numbers by name.
        show: whether to print the lines.

    Attributes:
        rows: the numbers of each call, for example for ``pandas.DataFrame(log.rows)``.
    """

    def __init__(self, metrics: Metrics | None = None, show: bool = True) -> None:
        self.metrics, self.show = metrics, show
        self.rows: list[dict[str, Any]] = []

    def __call__(self, step: int, seconds: float, params: Mapping[str, Any], loss: Any = None) -> None:
        """Print and keep the state of the training after ``step`` steps."""
        numbers = {"loss": loss} | dict({} if self.metrics is None else self.metrics(params))
        numbers = {name: np.asarray(x).tolist() for name, x in numbers.items()}
        self.rows.append({"step": int(step), "seconds": float(seconds)} | numbers)
        if self.show:
            told = ", ".join(f"{name} {_shown(x)}" for name, x in numbers.items())
            print(f"step {step:,}, {seconds:.1f} s: {told}", file=sys.stdout, flush=True)


def _shown(value: Any) -> str:
    return " ".join(map(_shown, value)) if isinstance(value, list) else f"{value:.5g}"
