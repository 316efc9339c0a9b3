"""Twenty trainings as one compiled program beside the same twenty one after another: seconds, and the numbers.

    python benchmarks/folds.py [--name energy] [--folds 20] [--layers 2] [--steps 500] [--rounds 3] [--dtype float32]

A deep GP on every split of a UCI set, full batch. Both ways take the same keys and data; rounds alternate. Seconds in
all contain set-up and compilation, which one after another is paid for every training; seconds of steps do not.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import jax
import numpy as np
import numpyro
import optax
from numpyro.infer import SVI

from gpzoo import kmeans
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, fit
from gpzoo.models import deep_gp, inner_scales, linear_layers
from gpzoo.reproductions import datasets


def one(X: np.ndarray, y: np.ndarray, key: Any, layers: int, steps: int) -> tuple[Trained, float]:
    """Train, on one fold or on several, and time the second half of the steps."""
    maps = linear_layers(X.reshape(-1, X.shape[-1]), [X.shape[-1]] * (layers - 1))
    guide = InducingGuide(deep_gp, kmeans(50), initial_scale=inner_scales(maps))
    svi = SVI(deep_gp, guide, optax.adam(0.01), GaussianProcessELBO())
    at: dict[int, float] = {}
    mark = lambda step, seconds, params: at.update({step: seconds})  # noqa: E731
    result = fit(
        key, svi, steps, X, y, callback=mark, callback_steps=steps // 2, progress=False, model_kwargs={"layers": maps}
    )
    return result, 2 * (at[2 * (steps // 2)] - at[steps // 2])


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="energy")
    parser.add_argument("--folds", type=int, default=20)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    arguments = parser.parse_args()
    numpyro.enable_x64(arguments.dtype == "float64")
    parts = [datasets.load(f"uci/{arguments.name}", split=k).standardised() for k in range(arguments.folds)]
    X, y = (
        np.stack([getattr(part, name) for part in parts]).astype(arguments.dtype) for name in ("X_train", "y_train")
    )
    keys = jax.random.split(jax.random.key(0), arguments.folds)
    totals, steps = [], []
    for _ in range(arguments.rounds):
        began = time.perf_counter()
        together, together_steps = one(X, y, keys, arguments.layers, arguments.steps)
        middle = time.perf_counter()
        alone = [one(X[k], y[k], keys[k], arguments.layers, arguments.steps) for k in range(arguments.folds)]
        totals.append((middle - began, time.perf_counter() - middle))
        steps.append((together_steps, sum(seconds for _, seconds in alone)))
        print(f"together {totals[-1][0]:.1f} s (steps {steps[-1][0]:.1f} s), ", end="")
        print(f"one after another {totals[-1][1]:.1f} s (steps {steps[-1][1]:.1f} s)", flush=True)
    for what, times in (("in all", totals), ("steps", steps)):
        print(f"{what}: one after another takes {statistics.median(b / a for a, b in times):.2f} times as long")
    losses = np.stack([result.losses for result, _ in alone])
    print(f"largest relative difference of a loss: {np.max(np.abs(together.losses / losses - 1)):.1e}")


if __name__ == "__main__":
    main()
