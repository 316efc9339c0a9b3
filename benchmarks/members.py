"""Five trainings in one program beside the same five one after another: seconds of whole runs, set-up included.

Sparse regression and a deep GP of two layers on 800 rows each, all rows in a step, 500 steps, keys and data the same.
On a CPU trainings of one program take turns, so that what is saved is set-up and compilation.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from data import regression
from peer import main, work

FOLDS, ROWS, COLUMNS, M, STEPS_TAKEN = 5, 1000, 4, 50, 500
CASES = {f"{L} layers": {"whole": True, "L": L, "peers": ["apart"], "pairs": 2} for L in (1, 2)}


def train(way: str, case: Mapping[str, Any]) -> dict[str, Any]:
    """All trainings."""
    import jax
    import optax
    from numpyro.infer import SVI

    from gpzoo import kmeans
    from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
    from gpzoo.models import deep_gp, gp_regression, inner_scales, linear_layers

    X, y = regression(ROWS, "float32", COLUMNS)
    folds = np.array_split(np.random.default_rng(0).permutation(ROWS), FOLDS)
    rows = np.stack([np.setdiff1d(np.arange(ROWS), fold) for fold in folds])
    keys = jax.random.split(jax.random.key(0), FOLDS)
    model, options, scales = gp_regression, {}, 1.0
    if case["L"] > 1:
        layers = linear_layers(X, [COLUMNS] * (case["L"] - 1))
        model, options, scales = deep_gp, {"layers": layers}, inner_scales(layers)

    def losses(key: Any, X: np.ndarray, y: np.ndarray) -> Any:
        guide = InducingGuide(model, kmeans(M), initial_scale=scales)
        svi = SVI(model, guide, optax.adam(0.01), GaussianProcessELBO())
        return fit(key, svi, STEPS_TAKEN, X, y, model_kwargs=options, progress=False).losses

    found = (
        losses(keys, X[rows], y[rows])
        if way == "together"
        else [losses(key, X[own], y[own]) for key, own in zip(keys, rows, strict=True)]
    )
    return {"losses": np.asarray(found)[:, -20:].mean(1).tolist()}


if __name__ == "__main__":
    ways = {"gpzoo": partial(train, "together"), "apart": partial(train, "apart")}
    work(ways) or main(__doc__, {"members": CASES}, __file__)
