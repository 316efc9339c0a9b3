"""Experiments with data that come in parts: the second half is taken in without the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import Array, random
from numpyro.infer import SVI

from gpzoo import GaussianProcess, kmeans, likelihoods
from gpzoo.inference import InducingGuide, OnlineELBO, Trained, fit, load, plots
from gpzoo.models import gp_classification, gp_regression, positive, rbf
from gpzoo.reproductions import datasets
from gpzoo.reproductions.experiment import Experiment, Inspected, Outcome, Run, by_hand
from gpzoo.reproductions.metrics import nlpp
from gpzoo.reproductions.training import Setting, cosine, exported, keys_of, last_bound, left, optimise, predicted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Random splits of a complete run, and of a quick one.
_SPLITS, _FEW = 10, 3

#: Rows that are taken in at a time.
_ROWS = 4000

_BY_HAND = by_hand("steps, learning rate, inducing points, rows at a time")


def _student(f: Array, scale: Array) -> dist.Distribution:
    return dist.StudentT(4.0, f, scale)


def student_regression(X: Array, y: Array | None = None, *, num_data: int | None = None) -> None:
    """``f ~ GP(0, k)``, ``y_n`` Student-t around ``f(x_n)`` with four degrees of freedom.

    Args:
        X: inputs ``[N, d]``.
        y: targets ``[N]``.
        num_data: rows of the whole data, if ``X`` is a minibatch.
    """
    f = numpyro.sample("f", GaussianProcess(rbf("f", X), X))
    scale = positive("noise_scale", 0.3, X)
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", likelihoods.Expected(_student, f, scale), obs=y)


@dataclass(frozen=True)
class _Kind:
    """A data set and its program."""

    data: str
    model: Callable[..., None]


KINDS = {
    "kin8nm": _Kind("uci/kin8nm", gp_regression),
    "power-student": _Kind("uci/power", student_regression),
    "adult": _Kind("adult", gp_classification),
}


def halves(run: Run) -> Outcome:
    """Half of the rows trains a model, and the other half is taken in by its ``q(u)``; another one trains on all.

    Hyperparameters and nine tenths of the inducing points are from the first half, the others k-means of the second.
    From there, hyperparameters and the new inducing points move too (``moved_nlpp``), still without the first half.
    """
    kind, quick = KINDS[run.variant], run.preset == "quick"
    setting = Setting(1000 if quick else 5000, 500, 200, 0.02, natural=0.1)
    online, folds = setting.steps // 4, _FEW if quick else _SPLITS
    found, seconds, first = [], 0.0, None
    for fold in range(folds):
        data = datasets.load(kind.data, split=fold)
        scaled = data.standardised()
        X, new = (x.astype(np.float32) for x in (scaled.X_train, scaled.X_test))
        y, y_new = (t if data.is_classification else t.astype(np.float32) for t in (scaled.y_train, scaled.y_test))
        order = np.random.RandomState(fold).permutation(len(X))
        old, late = np.array_split(order, 2)
        guide = InducingGuide(kind.model, kmeans(setting.inducing))
        if run.finished:
            return left(
                run, data, Inspected(load(run.model, kind.model, guide), (new, y_new), {}, f"split 1 of {folds}")
            )
        keys = keys_of(replace(run, seed=run.seed + fold))

        def trained(which: str, rows: np.ndarray, inducing: int) -> Trained:
            return optimise(
                keys.train,  # noqa: B023
                kind.model,
                InducingGuide(kind.model, kmeans(inducing)),
                setting,
                X[rows],  # noqa: B023
                y[rows],  # noqa: B023
                num_data=len(rows),
                checkpoint=run.checkpoint / f"{fold}-{which}",  # noqa: B023
                progress=f"{run.variant}, split {fold + 1}, {which}",  # noqa: B023
            )

        added = setting.inducing // 10
        half = trained("half", old, setting.inducing - added)
        room = half.add_inducing(keys.export, kmeans(added), X[late])
        both = room.condition(keys.export, X[late], y[late], batch_size=_ROWS)
        moved = fit(
            keys.export,
            SVI(kind.model, half.guide, optax.adam(cosine(0.01, online).schedule), OnlineELBO(half)),
            online,
            X[late],
            y[late],
            batch_size=min(500, len(late)),
            natural=setting.natural,
            init_params=both.params,
            progress=False,
        )
        whole = trained("all", order, setting.inducing)
        score = partial(_nlpp, keys.test, new, y_new)
        bound = float(last_bound(half.losses, len(old), setting)) - float(both.losses[-1])
        found.append(
            {
                "first_half_nlpp": score(half),
                "nlpp": score(both),
                "moved_nlpp": score(moved),
                "all_nlpp": score(whole),
                "elbo": bound,
                "all_elbo": float(last_bound(whole.losses, len(X), setting)),
            }
        )
        seconds += half.seconds + both.seconds + moved.seconds + whole.seconds
        first = first or (both, half, X[late], y[late], new, y_new, data)
    assert first is not None
    both, half, X, y, new, y_new, data = first
    metrics = {name: float(np.mean([one[name] for one in found])) for name in found[0]}
    away = np.array([one["nlpp"] - one["all_nlpp"] for one in found])
    metrics |= {"difference": float(away.mean()), "difference_se": float(away.std(ddof=1) / np.sqrt(folds))}
    by_fold = {f"{name}_by_fold": [one[name] for one in found] for name in found[0] if name.endswith("nlpp")}
    return Outcome(
        metrics=metrics,
        settings=setting.described(len(order)) | {"rows_at_a_time": _ROWS, "steps_moving": online} | by_fold,
        steps=(2 * setting.steps + online) * folds,
        seconds_training=seconds,
        data=data,
        dtype=str(X.dtype),
        elbo=-half.losses,
        posterior=partial(exported, random.key(run.seed), both, jnp.asarray(X), jnp.asarray(y), 100),
        inspected=Inspected(both, (new, y_new), {}, f"split 1 of {folds}"),
        folds={"count": folds, "of": _SPLITS, "seeds": list(range(folds))},
        selection=_BY_HAND,
    )


def _nlpp(key: Array, X: np.ndarray, y: np.ndarray, trained: Trained) -> float:
    return nlpp(predicted(key, trained, X, y))


def figure_of_halves(results: Mapping[str, Mapping[str, Any]]) -> Figure:
    """How far from a training on all data: the first half alone, and with the second half taken in, for each split.

    Args:
        results: recorded results by variant.
    """
    figure = plots.blank(6, 1.4 + 0.7 * len(results))
    axes = figure.subplots()
    for row, result in enumerate(results.values()):
        splits = result["settings"]
        for place, (name, colour, label) in enumerate(
            (
                ("first_half_nlpp", "C1", "first half only"),
                ("nlpp", "C0", "second half taken in"),
                ("moved_nlpp", "C2", "then hyperparameters moved"),
            )
        ):
            away = np.subtract(splits[f"{name}_by_fold"], splits["all_nlpp_by_fold"])
            axes.plot(away, np.full(len(away), row + 0.2 * (place - 1)), "o", color=colour, label="" if row else label)
    for limit in (-0.05, 0.05):
        axes.axvline(limit, color="grey", linestyle=":", linewidth=1)
    axes.axvline(0, color="grey", linewidth=1)
    axes.set(xlabel="test nlpp less that of a training on all (nats)", ylim=(len(results) - 0.5, -0.5))
    axes.set_yticks(range(len(results)), list(results))
    axes.legend(fontsize=8)
    return figure


EXPERIMENTS = (
    Experiment(
        paper="streaming",
        name="halves",
        description="A model of the first half of the data takes in the second half in one pass (nlpp); then "
        "hyperparameters move (moved); against a training on all at once, for as many steps, which need not have "
        "converged (all). The figure's dotted lines are differences of 0.05 nats.",
        variants={variant: {} for variant in KINDS},
        run=halves,
        default_variant="kin8nm",
        data=tuple(kind.data for kind in KINDS.values()),
        presets=("quick", "cpu"),
        figure=figure_of_halves,
    ),
)


if __name__ == "__main__":
    from gpzoo.reproductions.cli import script_main

    script_main(EXPERIMENTS)
