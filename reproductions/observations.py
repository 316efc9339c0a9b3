"""Experiments with data that are not normal numbers of one size: grades of wine, and noise that changes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, random

from gpzoo import kmeans
from gpzoo.inference import InducingGuide, load
from gpzoo.kernels import Kernel, Linear
from gpzoo.models import gp_regression, heteroscedastic_gp, ordinal_gp, positive
from gpzoo.reproductions import datasets
from gpzoo.reproductions.datasets import Dataset
from gpzoo.reproductions.experiment import Experiment, Inspected, Outcome, Run, by_hand
from gpzoo.reproductions.metrics import error, nlpp
from gpzoo.reproductions.training import Setting, exported, keys_of, last_bound, left, optimise, predicted, train

#: Random splits of a complete run.
_SPLITS = 10

_BY_HAND = by_hand("steps, learning rate, inducing points")


def _linear(name: str, X: Array) -> Kernel:
    return Linear(1.0, positive(f"{name}_lengthscale", jnp.ones(X.shape[1]), X))


def wine(run: Run) -> Outcome:
    """Ordered logit of the grades of red wines: a GP, or a linear function with a normal prior, over random splits."""
    setting = Setting(1500, 500, 100 if run.variant == "gp" else 12, 0.02)
    options: dict[str, Any] = {} if run.variant == "gp" else {"kernel": _linear}
    folds = 3 if run.preset == "quick" else _SPLITS
    found, seconds, first = [], 0.0, None
    for fold in range(folds):
        data = datasets.load("uci/wine_red", split=fold)
        low = float(min(data.y_train.min(), data.y_test.min()))
        labels = [np.rint(y - low).astype(np.int32) for y in (data.y_train, data.y_test)]
        keywords = {"num_classes": 1 + int(max(y.max() for y in labels))}
        scaled = data.standardised()
        X, new = (x.astype(np.float32) for x in (scaled.X_train, scaled.X_test))
        model = partial(ordinal_gp, **options)
        guide = InducingGuide(model, kmeans(setting.inducing))
        keys = keys_of(replace(run, seed=run.seed + fold))
        if run.finished:
            kept = load(run.model, model, guide)
            return left(run, data, Inspected(kept, (new, labels[1]), keywords, f"split 1 of {folds}"))
        trained = optimise(
            keys.train,
            model,
            guide,
            setting,
            X,
            labels[0],
            num_data=len(X),
            checkpoint=run.checkpoint / str(fold),
            progress=f"{run.variant}, split {fold + 1}",
            model_kwargs=keywords,
        )
        test = predicted(keys.test, trained, new, labels[1], model_kwargs=keywords)
        bound = float(last_bound(trained.losses, len(X), setting))
        found.append({"nlpp": nlpp(test), "error": error(test, labels[1]), "elbo": bound})
        seconds += trained.seconds
        first = first or (trained, X, labels[0], new, labels[1], keywords, data)
    assert first is not None
    trained, X, y, new, y_new, keywords, data = first
    metrics = {name: float(np.mean([one[name] for one in found])) for name in found[0]}
    spread = float(np.std([one["nlpp"] for one in found], ddof=1) / np.sqrt(folds))
    return Outcome(
        metrics=metrics | {"nlpp_standard_error": spread},
        settings=setting.described(len(X)) | {"nlpp_by_fold": [one["nlpp"] for one in found]},
        steps=setting.steps * folds,
        seconds_training=seconds,
        data=data,
        dtype=str(X.dtype),
        elbo=-trained.losses,
        posterior=partial(exported, random.key(run.seed), trained, jnp.asarray(X), jnp.asarray(y), 100, keywords),
        inspected=Inspected(trained, (new, y_new), keywords, f"split 1 of {folds}"),
        folds={"count": folds, "of": _SPLITS, "seeds": list(range(folds))},
        selection=_BY_HAND,
    )


def noisy_sine(rows: int = 600, seed: int = 0) -> Dataset:
    """A sine with noise that grows twentyfold from left to right, half of the rows for testing."""
    rng = np.random.RandomState(seed)
    x = rng.uniform(-2, 2, (rows, 1))
    y = np.sin(2 * x[:, 0]) + np.exp(0.8 * x[:, 0] - 1.5) * rng.standard_normal(rows)
    X, y, half = x.astype(np.float32), y.astype(np.float32), rows // 2
    return Dataset("noisy-sine", X[half:], y[half:], X[:half], y[:half], source="generated", sha256={})


def noise(run: Run) -> Outcome:
    """A GP whose noise is another GP, or one of one size."""
    data = noisy_sine(seed=run.seed)
    setting = Setting(1000 if run.preset == "quick" else 5000, None, 25, 0.03, evaluations=4)
    model = heteroscedastic_gp if run.variant == "changing" else gp_regression
    guide = InducingGuide(model, kmeans(setting.inducing))
    return train(run, data, model, guide, setting, selection=_BY_HAND).outcome


EXPERIMENTS = (
    Experiment(
        paper="observations",
        name="wine-red",
        description="Grades of red wine as labels in order, by a GP or a linear function under an ordered logit.",
        variants={"gp": {}, "linear": {}},
        run=wine,
        default_variant="gp",
        data=("uci/wine_red",),
        presets=("quick", "cpu"),
    ),
    Experiment(
        paper="observations",
        name="noisy-sine",
        description="A sine with noise that grows, by a GP with noise that changes or of one size.",
        variants={"changing": {}, "one-size": {}},
        run=noise,
        default_variant="changing",
        presets=("quick", "cpu"),
    ),
)


if __name__ == "__main__":
    from gpzoo.reproductions.cli import script_main

    script_main(EXPERIMENTS)
