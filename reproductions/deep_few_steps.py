"""How far does a two-layer deep GP come in 200 iterations on all rows? By natural gradients, and by Adam alone."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import random

from gpzoo import NonFiniteError
from gpzoo.models import deep_gp
from gpzoo.reproductions import datasets
from gpzoo.reproductions.deep_models import MODELS, ard, guide_of, layers_of
from gpzoo.reproductions.deep_uci import DGP, DGP_NATURAL, compared
from gpzoo.reproductions.experiment import Outcome, Run
from gpzoo.reproductions.kept import kept
from gpzoo.reproductions.sweep import Folds
from gpzoo.reproductions.training import ADAM, Setting, optimise, warmed

#: Largest rates, and decays of Adam's mean of squares, among which each way of training has its best.
_RATES, _DECAYS = (0.1, 0.2, 0.3), (ADAM, 0.95, 0.9)

#: Length of natural steps for the last layer, by way of training.
_NATURAL = {DGP: None, DGP_NATURAL: 0.5}

#: Last steps over which the bound of a choice is a mean, because it is noisy.
_LAST = 10


def few_steps(run: Run) -> Outcome:
    """Two layers in as few iterations as natural gradients of the last one allow, beside Adam alone.

    Every candidate is trained on the first split; the one whose bound on its training rows ends highest trains on all.
    """
    steps, num_folds, rates, decays = {
        "quick": (20, 2, (0.1,), (ADAM, 0.9)),
        "cpu": (200, 10, _RATES, _DECAYS),
    }[run.preset]
    candidates = [{"rate": rate, "decay": decay} for rate, decay in itertools.product(rates, decays)]
    chosen, bounds = {}, {}
    first = datasets.load(f"uci/{run.variant}", split=0)
    for name in _NATURAL:
        settings = [_setting(name, steps, **each) for each in candidates]
        bounds[name] = [_bound(run, first, name, i, setting) for i, setting in enumerate(settings)]
        chosen[name] = max(zip(settings, bounds[name], strict=True), key=_bound_of)[0]
    return compared(
        run,
        chosen,
        num_folds,
        watched=[count for count in (20, 50, 100, 200) if count <= steps],
        selection={
            "what": "learning rate and decay of Adam's mean of squares, of each model",
            "rule": "by code, the highest bound after as many iterations, among candidates of trials by hand",
            "data": "training rows of the first split; in the trials its test rows too",
            "candidates": [each | {name: bounds[name][i] for name in bounds} for i, each in enumerate(candidates)],
        },
    )


def _setting(name: str, steps: int, rate: float, decay: float) -> Setting:
    return Setting(steps, None, rate=warmed(rate, steps), natural=_NATURAL[name], decay=decay)


def _bound_of(found: tuple[Setting, float | None]) -> float:
    return -math.inf if found[1] is None else found[1]


def _bound(run: Run, raw: datasets.Dataset, name: str, number: int, setting: Setting) -> float | None:
    """The bound at the end of a training on a split; ``None`` if it failed."""
    data = Folds.of([raw])
    X, y = jnp.asarray(data.X[0]), jnp.asarray(data.y[0])
    depth, inducing = MODELS[DGP]
    model = partial(deep_gp, kernel=ard)

    def make() -> float | None:
        options: dict[str, Any] = {"num_data": len(y), "model_kwargs": {"layers": layers_of(DGP, X)}}
        guide = guide_of(model, depth, min(inducing, len(y)))
        title = f"{name}, {setting.learning_rate.name}, {setting.decay}"
        try:
            found = optimise(random.key(run.seed), model, guide, setting, X, y, progress=title, **options)
        except NonFiniteError:
            return None
        return float(-found.losses[-_LAST:].mean())

    described = setting.described(len(y)) | {"model": name, "steps": setting.steps, "decay": setting.decay}
    return kept(run.output / f"choice-{name}-{number}.json", run.made_by(described, raw), make)
