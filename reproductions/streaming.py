"""Experiments with data that come in parts: a model is updated with the second half without the first half."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import Array
from numpyro.infer import SVI

from gpzoo import GaussianProcess, kmeans, likelihoods
from gpzoo.inference import InducingGuide, OnlineELBO, Trained, fit, load, plots
from gpzoo.models import gp_classification, gp_regression, positive, rbf
from gpzoo.reproductions import datasets, training
from gpzoo.reproductions.claims import load as paper_of
from gpzoo.reproductions.experiment import Figure, Outcome, Results, Run, experiment
from gpzoo.reproductions.metrics import nlpp
from gpzoo.reproductions.training import Setting, inspected, keys_of, optimise, predicted

PAPER = paper_of("streaming")

#: Number of rows of one update.
_ROWS = 4000


def _student(f: Array, scale: Array) -> dist.Distribution:
    return dist.StudentT(4.0, f, scale)


def student_regression(X: Array, y: Array | None = None, *, num_data: int | None = None) -> None:
    """``f ~ GP(0, k)``, and ``y_n`` is Student-t around ``f(x_n)`` with four degrees of freedom.

    Args:
        X: inputs ``[N, d]``.
        y: targets ``[N]``.
        num_data: number of rows of the whole data, if ``X`` is a minibatch.
    """
    f = numpyro.sample("f", GaussianProcess(rbf("f", X), X))
    scale = positive("noise_scale", 0.3, X)
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", likelihoods.Expected(_student, f, scale), obs=y)


#: Data and program of a variant.
KINDS: dict[str, tuple[str, Callable[..., None]]] = {
    "kin8nm": ("uci/kin8nm", gp_regression),
    "power-student": ("uci/power", student_regression),
    "adult": ("adult", gp_classification),
}


def figure_of_halves(results: Results) -> Figure:
    """Distance from a training on all data, for each split: the first half alone, and after an update with the second.

    Args:
        results: recorded results by variant.
    """
    figure = plots.blank(6, 1.4 + 0.7 * len(results))
    axes = figure.subplots()
    drawn = {
        "first_half_nlpp": ("C1", "first half only"),
        "nlpp": ("C0", "second half taken in"),
        "moved_nlpp": ("C2", "then hyperparameters moved"),
    }
    for row, result in enumerate(results.values()):
        splits = result["settings"]
        for place, (name, (colour, label)) in enumerate(drawn.items()):
            away = np.subtract(splits[f"{name}_by_fold"], splits["all_nlpp_by_fold"])
            axes.plot(away, np.full(len(away), row + 0.2 * (place - 1)), "o", color=colour, label="" if row else label)
    for limit in (-0.05, 0.05):
        axes.axvline(limit, color="grey", linestyle=":", linewidth=1)
    axes.axvline(0, color="grey", linewidth=1)
    axes.set(xlabel="test nlpp less that of a training on all (nats)", ylim=(len(results) - 0.5, -0.5))
    axes.set_yticks(range(len(results)), list(results))
    axes.legend(fontsize=8)
    return figure


@experiment(PAPER, "halves", KINDS, figure=figure_of_halves)
def halves(run: Run) -> Outcome:
    """Train a model on half of the rows, take the other half in by its ``q(u)``, and train another model on all rows.

    Hyperparameters and nine tenths of the inducing points come from the first half, the other points from k-means on
    the second. From there, hyperparameters and the new inducing points are trained too (``moved_nlpp``), still without
    the first half.
    """

    count, of = run.options["splits"], run.options["all_splits"]
    settings = training.nlpp_by_fold
    return training.over_splits(run, count, _taken_in, of=of, settings=settings, errors=("difference",))


def _taken_in(run: Run) -> Outcome:
    (name, model), setting = KINDS[run.variant], Setting.of({"num_draws": 100} | dict(run.options))
    setting.check(run.changes, ("evaluations", "early"))
    raw = datasets.load(name, split=run.split)
    data, keys, new, online = raw.standardised().flat(), keys_of(run), setting.num_inducing // 10, setting.steps // 4
    if run.finished:
        guide = InducingGuide(model, kmeans(setting.num_inducing))
        return training.left(run, raw, inspected(load(run.model, model, guide), data))
    X, y = data.X_train, data.y_train
    order = np.random.RandomState(run.split).permutation(len(X))
    old, late = np.array_split(order, 2)

    def trained(which: str, rows: np.ndarray, inducing: int) -> Trained:
        said = {"checkpoint": run.checkpoint / which, "progress": f"{run.title}, {which}"}
        guide = InducingGuide(model, kmeans(inducing))
        return optimise(keys.train, model, guide, setting, X[rows], y[rows], num_data=len(rows), **said)

    half = trained("half", old, setting.num_inducing - new)
    room = half.add_inducing(keys.export, kmeans(new), X[late])
    both = room.condition(keys.export, X[late], y[late], batch_size=_ROWS)
    svi = SVI(model, half.guide, optax.adam(training.rate_of(0.01, online).schedule), OnlineELBO(half))
    said = {"batch_size": min(500, len(late)), "natural": setting.natural, "init_params": both.params}
    moved = fit(keys.export, svi, online, X[late], y[late], progress=False, **said)
    whole = trained("all", order, setting.num_inducing)
    models = {"first_half_nlpp": half, "nlpp": both, "moved_nlpp": moved, "all_nlpp": whole}
    test = partial(predicted, keys.test, test_rows=setting.test_rows, num_draws=setting.test_draws)
    found = {name: nlpp(test(one, data.X_test, data.y_test)) for name, one in models.items()}
    found["elbo"] = float(training.last_bound(half.losses, len(old), setting)) - float(both.losses[-1])
    found["all_elbo"] = float(training.last_bound(whole.losses, len(X), setting))
    found["difference"] = found["nlpp"] - found["all_nlpp"]
    own = {"data": raw, "metrics": found, "elbo": -half.losses, "steps": 2 * setting.steps + online}
    own |= {"settings": setting.described(len(late)) | {"rows_at_a_time": _ROWS, "steps_moving": online}}
    own |= {"seconds_training": sum(one.seconds for one in models.values())}
    return training.outcome_of(run, setting, (X[late], y[late]), inspected(both, data), both, **own)


EXPERIMENTS = (halves,)


if __name__ == "__main__":
    from gpzoo.reproductions.cli import script_main

    script_main(EXPERIMENTS)
