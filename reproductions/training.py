"""Training, evaluation and export of the program of an experiment: one setting and one trainer for every paper."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, random
from numpyro.infer import SVI

import gpzoo.inference as inference
from gpzoo.inference import InducingGuide, SitePrediction, Trained, fit, load
from gpzoo.reproductions.datasets import Dataset
from gpzoo.reproductions.experiment import Inspected, Outcome, ReproductionError, Run
from gpzoo.reproductions.kept import keep_content, kept_content, read_json
from gpzoo.reproductions.metrics import Score, means, score_of
from gpzoo.tables import Table

#: Number of training rows in an exported posterior. The size of the joint covariance grows with its square.
EXPORTED = 50

#: Number of test rows in a report.
_INSPECTED = 1000

#: Largest number of steps over which the last bound is averaged.
_LAST_STEPS = 1000


#: Adam's default decay of the mean of squared gradients.
ADAM = 0.999


class Rate(NamedTuple):
    """A learning rate for Adam: its name in a result, and the function from step to rate."""

    name: str
    schedule: optax.Schedule


def rate_of(given: Any, steps: int) -> Rate:
    """The learning rate of a training with this many steps.

    Args:
        given: a number for a rate that decays along half a cosine to a hundredth of it; ``{"constant": 0.01}``;
            ``{"warmed": 0.01}`` for a rate that first rises from a fifth of it, in a tenth of the steps; or
            ``{"staircase": 0.001, "every": 30000}`` for a rate that falls by the factor ``10^(-1/3)`` after every so
            many steps.
        steps: number of steps.
    """
    match given:
        case {"constant": rate}:
            return Rate(f"Adam, {rate}", optax.constant_schedule(rate))
        case {"warmed": rate}:
            schedule = optax.warmup_cosine_decay_schedule(rate / 5, rate, steps // 10, steps, rate / 100)
            return Rate(f"Adam, in {steps // 10} steps up to {rate}, cosine to a hundredth of it", schedule)
        case {"staircase": rate, "every": every}:
            schedule = optax.exponential_decay(rate, every, 10 ** (-1 / 3), staircase=True)
            return Rate(f"Adam, {rate} * 10^-(step // {every} / 3)", schedule)
        case rate:
            schedule = optax.cosine_decay_schedule(rate, steps, alpha=0.01)
            return Rate(f"Adam, cosine from {rate} to a hundredth of it", schedule)


@dataclass(frozen=True)
class Setting:
    """The training of a program by Adam, with or without natural gradients, or by L-BFGS.

    Attributes:
        steps: number of steps.
        batch_size: rows per minibatch, ``None`` for all.
        num_inducing: number of inducing variables (per block, if there are several); 0 if the variant sets it.
        rate: learning rate, as in :func:`rate_of`.
        start: initial hyperparameters, if they are not the program's defaults.
        evaluations: number of evaluations on the test set during training.
        collapsed: whether to train by L-BFGS, on all rows, with the optimal ``q(u)`` of Gaussian noise.
        line_search: whether to train by L-BFGS, on all rows, ``q(u)`` included.
        natural: length of natural-gradient steps of ``q(u)`` at the last GP sites; ``None`` for no such steps.
        weighted: number of draws of the importance-weighted bound; ``None`` for the plain bound.
        decay: share of the mean of squared gradients that Adam keeps at every step.
        test_rows: number of rows that are predicted at a time.
        test_draws: number of draws for a prediction of the test set.
        num_draws: number of draws of the exported posterior.
        factors: factors of Adam's rate, by parameter, if they are not 1.
        early: number of further evaluations in the first interval. Each comes after half of the steps of the next one.
    """

    steps: int
    batch_size: int | None
    num_inducing: int = 0
    rate: Any = 0.01
    start: Mapping[str, float] = field(default_factory=dict)
    evaluations: int = 1
    collapsed: bool = False
    line_search: bool = False
    natural: float | None = None
    weighted: int | None = None
    decay: float = ADAM
    test_rows: int = 1000
    test_draws: int = 100
    num_draws: int = 200
    factors: Mapping[str, float] = field(default_factory=dict)
    early: int = 0

    @classmethod
    def of(cls, options: Mapping[str, Any], **changes: Any) -> Setting:
        """The settings from the options of a run.

        Args:
            options: values by names of attributes, with ``batch_size`` ``"all"`` for all rows. Other names are ignored.
            **changes: attributes that replace these values.
        """
        own: dict[str, Any] = {each.name: options[each.name] for each in fields(cls) if each.name in options} | changes
        own["batch_size"] = None if own["batch_size"] == "all" else own["batch_size"]
        return cls(**own)

    def check(self, changes: Mapping[str, Any], unused: Collection[str] = ()) -> None:
        """Refuse changes from the command line without effect: an experiment overrides them, or does not use them.

        Args:
            changes: the changes.
            unused: names of settings that the experiment does not use.

        Raises:
            ReproductionError: naming the setting.
        """
        unused = {*unused, *(() if self.by_adam else ("rate", "decay", "factors"))}
        unused |= {"weighted"} if self.collapsed else set()
        for name, value in changes.items():
            if name in unused:
                raise ReproductionError(f"--set {name}={value} has no effect: this run does not use it.")
            own = getattr(self, name, value)
            if own != (None if value == "all" else value):
                raise ReproductionError(
                    f"--set {name}={value} has no effect: this experiment sets it to {own}, such as by its variant."
                )

    @property
    def learning_rate(self) -> Rate:
        """The rate with its name."""
        return rate_of(self.rate, self.steps)

    @property
    def by_adam(self) -> bool:
        """Whether Adam trains the parameters that natural gradients do not."""
        return not (self.collapsed or self.line_search)

    def evaluated(self) -> tuple[int, Callable[[int], bool]]:
        """The number of steps between stops of the training, and whether the test set is predicted at such a step.

        Raises:
            ValueError: if the first interval cannot be halved ``early`` times.
        """
        every = -(-self.steps // self.evaluations)
        first, rest = divmod(every, 2**self.early)
        if rest:
            raise ValueError(f"{every} steps between evaluations cannot be halved {self.early} times.")
        early = {first * 2**k for k in range(self.early)}
        return first, lambda step: step % every == 0 or step >= self.steps or step in early

    def rows(self, of: int) -> int:
        """Rows per minibatch, for data of ``of`` rows."""
        return of if self.batch_size is None else min(self.batch_size, of)

    def described(self, of: int) -> dict[str, Any]:
        """The settings of a training on ``of`` rows, for the result."""
        return {
            "num_inducing": self.num_inducing,
            "batch_size": self.rows(of),
            "learning_rate": self.learning_rate.name if self.by_adam else "L-BFGS with a line search",
            "start": dict(self.start),
        } | self.added()

    def added(self) -> dict[str, Any]:
        """The settings that are unusual, for the result."""
        found = {name: x for name in ("natural", "weighted") if (x := getattr(self, name)) is not None}
        found |= {"draws_prediction": self.test_draws} if self.test_draws != 100 else {}
        if self.factors:
            found["factors"] = dict(self.factors)
        return found | ({"decay": self.decay} if self.decay != ADAM else {})

    def svi(self, model: Callable, guide: InducingGuide) -> SVI:
        """NumPyro's object for a program."""
        if self.collapsed:
            return SVI(model, guide, inference.lbfgs(), inference.CollapsedELBO())
        bound = (
            inference.GaussianProcessELBO()
            if self.weighted is None
            else inference.ImportanceWeightedELBO(self.weighted)
        )
        adam = optax.adam(self.learning_rate.schedule, b2=self.decay)
        if self.factors:
            adam = optax.chain(adam, optax.stateless(self._scaled))
        return SVI(model, guide, adam if self.by_adam else inference.lbfgs(), bound)

    def _scaled(self, updates: Any, params: Any) -> Any:
        """Adam's updates by parameter, multiplied by their factors."""
        if unknown := self.factors.keys() - updates.keys():
            raise ValueError(f"factors are of {sorted(unknown)}; Adam's parameters are {sorted(updates)}.")
        factors = {name: self.factors.get(name, 1.0) for name in updates}
        return {name: jax.tree.map(partial(jnp.multiply, factors[name]), own) for name, own in updates.items()}


class Keys(NamedTuple):
    """The random keys of a run: for training, evaluations and export."""

    train: Array
    test: Array
    export: Array


def keys_of(run: Run) -> Keys:
    """The keys from the seed of a run, or from the sum of its seed and its split."""
    return Keys(*random.split(random.key(run.seed + (run.split or 0)), 3))


def train(
    run: Run,
    data: Dataset,
    model: Callable,
    guide: InducingGuide,
    setting: Setting,
    *,
    score: Score | None = None,
    keywords: Mapping[str, Any] | None = None,
    table: Table | None = None,
    watched: Mapping[str, str] | None = None,
    init_params: Mapping[str, Any] | None = None,
    **outcome: Any,
) -> Outcome:
    """Train a program of ``(X, y)`` that observes ``"y"``, evaluate it on the test set, and export its posterior.

    If a run is finished, all of this is read from its files.

    Args:
        run: the run.
        data: the data of the program, with a sample of the training rows if there is a ``table``.
        model: the program.
        guide: guide of the program.
        setting: the settings of the training.
        score: a function that computes the metrics; :func:`~gpzoo.reproductions.metrics.score_of` unless given.
        keywords: the program's keyword arguments.
        table: all training rows, if they are streamed.
        watched: names of scalar parameters that are recorded as metrics, by metric. Parameters that the variant does
            not have are left out.
        init_params: initial values by name. Other initial values come from the guide.
        **outcome: further fields of the outcome, such as ``stands_in``. Entries of ``settings`` are added to the
            entries from ``setting``, or override them.

    Returns:
        The outcome. An experiment replaces its particular fields, such as ``figures``. The ``curve`` has a point for
        every evaluation.

    Raises:
        ReproductionError: if the command line changed a setting that has another value in ``setting``.
    """
    setting.check(run.changes)
    X, y = jnp.asarray(data.X_train), jnp.asarray(data.y_train)
    num_data = len(y) if table is None else table.num_rows
    keys, score, keywords = keys_of(run), score or score_of(data), keywords or {}
    if run.finished:
        return left(run, data, inspected(load(run.model, model, guide), data, keywords))
    settings = setting.described(num_data) | dict(outcome.pop("settings", {}))
    begun = Trained(model, guide, {})

    def evaluate(params: dict[str, Any]) -> dict[str, Any]:
        now = begun.with_params(params)
        test = predicted(keys.test, now, data.X_test, data.y_test, setting.test_rows, keywords, setting.test_draws)
        also = {name: float(params[site]) for name, site in (watched or {}).items() if site in params}
        return {**score(test, data.y_test), **also}

    every, evaluated = setting.evaluated()
    curve = Curve(run.curve, run.made_by(settings | {"steps": setting.steps}, data), evaluate, evaluated)
    # A finished training need not be evaluated again.
    options = {"callback": None if setting.steps in curve.points else curve, "callback_steps": every}
    options |= {"checkpoint": run.checkpoint, "init_params": init_params, "progress": run.title}
    rows = (X, y) if table is None else (table,)
    result = optimise(keys.train, model, guide, setting, *rows, num_data=num_data, model_kwargs=keywords, **options)
    points, at_end = curve.until(setting.steps), max(step for step in curve.points if step <= setting.steps)
    last = {name: x for name, x in curve.points[at_end].items() if name not in ("step", "seconds")}
    if wrong := last.pop("wrong_rows", None):
        settings |= {"wrong_rows": {name: wrong for name in ("error", "accuracy") if name in last}}
        points = [{name: x for name, x in point.items() if name != "wrong_rows"} for point in points]
    own = {"data": data, "curve": points, "settings": settings}
    own |= {"metrics": last | {"elbo": float(last_bound(result.losses, num_data, setting))}}
    return outcome_of(run, setting, (X, y), inspected(result, data, keywords), result, **(own | outcome))


def outcome_of(
    run: Run, setting: Setting, args: tuple, looked_at: Inspected, trained: Trained, **others: Any
) -> Outcome:
    """The outcome of a training by :func:`optimise`.

    Args:
        run: the run.
        setting: the settings of the training.
        args: inputs and targets; the exported posterior is at the first of them.
        looked_at: the model to keep, with the program's keyword arguments.
        trained: the model with the learning curve, and with the posterior to export.
        **others: further fields of the outcome, which override the fields from here.
    """
    X, y = (jnp.asarray(x) for x in args)
    common = {
        "settings": setting.described(len(y)),
        "steps": setting.steps,
        "seconds_training": trained.seconds,
        "dtype": str(X.dtype),
        "elbo": -trained.losses,
        "posterior": partial(exported, keys_of(run).export, trained, X, y, setting.num_draws, looked_at.keywords),
        "inspected": looked_at,
        "selection": run.selection,
    }
    return Outcome(**(common | others))


def over_splits(
    run: Run,
    count: int,
    one: Callable[[Run], Outcome],
    *,
    of: int | None = None,
    shown: int = 0,
    settings: Callable[[Sequence[Outcome]], Mapping[str, Any]] | None = None,
    errors: Collection[str] | None = None,
) -> Outcome:
    """The outcome over several random splits of the data: means of metrics; model, data and figures of one split.

    If a run is finished, ``one`` is called only for the split that is shown, and reads the files of the run.

    Args:
        run: the run.
        count: number of splits.
        one: a function that makes the experiment on ``run.split``, which has its own ``run.checkpoint``, and keys by
            :func:`keys_of`.
        of: number of splits in the paper, for the record; the same number unless given.
        shown: the split whose model is kept, and whose data, bounds and settings are recorded; negative from the end.
        settings: a function that makes further settings from the outcomes of all splits in order. These outcomes have
            neither data nor models.
        errors: the metrics whose standard error over splits is recorded too; all unless given.
    """
    shown, every, kept = range(count)[shown], [], None
    for split in [shown] if run.finished else range(count):
        found = one(replace(run, split=split))
        if split == shown:
            kept = found
        # Only the arrays of one split are in memory at a time.
        every.append(replace(found, data=None, elbo=(), figures={}, posterior=None, inspected=None))
    assert kept is not None
    if (seen := kept.inspected) is not None:
        which = ", ".join(filter(None, (seen.which, f"split {shown + 1} of {count}")))
        kept = replace(kept, inspected=seen._replace(which=which))
    if run.finished:
        return kept
    # One split has only errors over test rows.
    names = [name for name in kept.metrics if count == 1 or not name.endswith("_se")]
    if (selection := kept.selection) and selection.get("candidates"):
        selection = {**selection, "candidates": [each for found in every for each in found.selection["candidates"]]}
    own = dict(kept.settings)
    if count > 1:
        own.pop("wrong_rows", None)  # they are of one split
    return replace(
        kept,
        metrics=means({name: [found.metrics[name] for found in every] for name in names}, errors),
        settings=_by_split(every, count) | own | dict(settings(every) if settings else {}),
        steps=sum(found.steps for found in every),
        seconds_training=sum(found.seconds_training for found in every),
        curve=(),
        folds=None if (of or count) == 1 else {"count": count, "of": of or count, "seeds": list(range(count))},
        selection=selection,
    )


def _by_split(every: Sequence[Outcome], count: int) -> dict[str, Any]:
    """The setting by which models of one run are compared split by split, if there are several splits."""
    return {"by_split": [dict(found.metrics) for found in every]} if count > 1 else {}


def nlpp_by_fold(every: Sequence[Outcome]) -> dict[str, list[float]]:
    """Settings that :func:`over_splits` adds to a result: ``nlpp`` of every split, for each model."""
    names = [name for name in every[0].metrics if name.endswith("nlpp")]
    return {f"{name}_by_fold": [found.metrics[name] for found in every] for name in names}


def optimise(
    key: Array,
    model: Callable,
    guide: InducingGuide,
    setting: Setting,
    *data: Any,
    num_data: int,
    model_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Trained:
    """Maximise the bound, with one training per key.

    Args:
        key: random key of the training, or of each training.
        model: the program.
        guide: guide of the program.
        setting: the settings of the training.
        *data: inputs and targets, or a table.
        num_data: number of rows of a training.
        model_kwargs: keyword arguments of the program, without ``num_data``.
        **options: further arguments of :func:`gpzoo.inference.fit`.
    """
    svi, rows = setting.svi(model, guide), setting.rows(num_data)
    options |= {"batch_size": None if rows == num_data else rows, "natural": setting.natural}
    return fit(key, svi, setting.steps, *data, model_kwargs={"num_data": num_data, **(model_kwargs or {})}, **options)


def predicted(
    key: Array,
    trained: Trained,
    X: Any,
    y: Any,
    test_rows: int = 1000,
    model_kwargs: Mapping[str, Any] | None = None,
    num_draws: int = 100,
) -> SitePrediction:
    """The prediction of ``"y"``, with the density of the given targets.

    Args:
        key: random key of the draws.
        trained: the model.
        X: inputs.
        y: targets.
        test_rows: number of rows at a time.
        model_kwargs: keyword arguments of the program.
        num_draws: number of draws, if the program draws anything.
    """
    options = {"num_draws": num_draws, "batch_size": test_rows, "model_kwargs": model_kwargs}
    return trained.predict(key, X, test_data={"y": y}, **options)["y"]


def exported(
    key: Array, trained: Trained, X: Any, y: Any, num_draws: int = 200, model_kwargs: Mapping[str, Any] | None = None
) -> Any:
    """The posterior at the first training rows, for ArviZ.

    Args:
        key: random key of the draws.
        trained: the model.
        X: training inputs.
        y: training targets.
        num_draws: number of draws.
        model_kwargs: keyword arguments of the program.
    """
    few = slice(0, EXPORTED)
    return trained.to_arviz(key, X[few], y[few], num_draws=num_draws, model_kwargs=model_kwargs)


def left(run: Run, data: Dataset, found: Inspected) -> Outcome:
    """The outcome of a finished run, as it was written. Figures and posterior are beside it.

    Args:
        run: the run.
        data: data of the run.
        found: the trained model of the run, and the rows of a report.
    """
    result = read_json(run.output / "result.json")
    own = {name: result[name] for name in ("metrics", "settings", "steps", "seconds_training", "dtype", "curve")}
    own["curve"] = own["curve"] or [{"step": own["steps"], "seconds": own["seconds_training"], **own["metrics"]}]
    return Outcome(**own, data=data, elbo=-np.asarray(found.trained.losses), inspected=found)


def inspected(trained: Trained, data: Dataset, keywords: Mapping[str, Any] | None = None, which: str = "") -> Inspected:
    """The model and the rows of a report: the first rows of the test set, in the form that the program takes.

    Args:
        trained: the model.
        data: the data of the program.
        keywords: keyword arguments of the program.
        which: see :class:`~gpzoo.reproductions.experiment.Inspected`.
    """
    rows = data.X_test[:_INSPECTED], data.y_test[:_INSPECTED]
    return Inspected(trained, rows, dict(keywords or {}), which, units_of(data))


def units_of(data: Dataset) -> str:
    """A sentence about the units of a report, if targets are standardised and the metrics of the run are not."""
    if data.y_std == 1:
        return ""
    return (
        f"Its targets are in standard deviations of the training set, {data.y_std:.4g} each; the run's metrics are in "
        "the units of the data."
    )


def last_bound(losses: np.ndarray, num_data: int, setting: Setting) -> np.ndarray:
    """The mean bound over the last epoch, or over the last 1,000 steps if it has more: ``[..., steps]`` to ``[...]``.

    Args:
        losses: negative bounds.
        num_data: number of rows of a training.
        setting: the settings of the training.
    """
    window = max(1, min(_LAST_STEPS, num_data // setting.rows(num_data)))
    return -losses[..., -window:].mean(axis=-1)


def seconds_of_a_step(key: Array, svi: SVI, steps: int, *data: Any, **options: Any) -> tuple[float, Trained]:
    """Seconds of a step on all of these rows, so that only the step is timed. Compilation is left out.

    Args:
        key: random key of the training.
        svi: NumPyro's object.
        steps: number of timed steps, after the same number of untimed ones.
        *data: the program's positional arguments.
        **options: further arguments of :func:`gpzoo.inference.fit`.
    """
    at: dict[int, float] = {}
    timed = {"callback": lambda step, seconds, params: at.update({step: seconds}), "callback_steps": steps}
    result = fit(key, svi, 2 * steps, *data, **timed, **options)
    return (at[2 * steps] - at[steps]) / steps, result


class Curve:
    """Test metrics during training, as a callback for :func:`gpzoo.inference.fit`.

    Points are kept on disk, because a resumed run no longer has the parameters of earlier points. Points are used again
    if settings, data and, for a user's own paper, its module are the same. Otherwise the last step is evaluated again.
    A point with a number that is not finite is in ``points`` alone.

    Args:
        path: file of the points.
        made_by: origin of the points, from :meth:`~gpzoo.reproductions.experiment.Run.made_by`.
        evaluate: a function from parameters to metrics by name.
        at: a function that says whether there is a point after a number of steps.
    """

    def __init__(
        self,
        path: Path,
        made_by: Mapping[str, Any],
        evaluate: Callable[[dict[str, Any]], Mapping[str, Any]],
        at: Callable[[int], bool] = lambda step: True,
    ) -> None:
        self.path, self.evaluate, self.at = path, evaluate, at
        self.made_by = {name: value for name, value in made_by.items() if name != "paper"}
        points = kept_content(path, self.made_by) or ()
        self.points: dict[int, dict[str, Any]] = {int(point["step"]): point for point in points}

    def __call__(self, step: int, seconds: float, params: dict[str, Any]) -> None:
        """Evaluate the metrics after ``step`` steps, if there is a point, and keep them."""
        if not self.at(step):
            return
        found = self.evaluate(params)
        metrics = {name: value if isinstance(value, str) else float(value) for name, value in found.items()}
        self.points[step] = {"step": step, "seconds": round(seconds, 3), **metrics}
        if wrong := _not_finite(self.points[step]):
            said = f"after {step:,} steps, {wrong}: the learning curve has no such point."
            warnings.warn(said, RuntimeWarning, stacklevel=2)
        try:
            keep_content(self.path, self.made_by, self.until(step))
        except OSError as error:
            # A full disk must not stop the training because of one point of its curve.
            warnings.warn(f"cannot write {self.path}: {error.strerror or error}.", RuntimeWarning, stacklevel=2)

    def until(self, step: int) -> list[dict[str, Any]]:
        """The finite points up to ``step``, in order."""
        return [self.points[at] for at in sorted(self.points) if at <= step and not _not_finite(self.points[at])]


def _not_finite(point: Mapping[str, Any]) -> str:
    """The metrics of a point that are not finite, in words."""
    numbers = {name: value for name, value in point.items() if not isinstance(value, str)}
    return ", ".join(f"{name} = {value}" for name, value in numbers.items() if not math.isfinite(value))
