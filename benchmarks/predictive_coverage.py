"""How often do 90 % bands of predictions hold? Of draws of hyperparameters, exactly and by Laplace's approximation.

    python benchmarks/predictive_coverage.py [--cases exact counts] [--sets 100] [--warmup 200] [--draws 100]
        [--dry-run] [--output benchmarks/results/predictive_coverage.json]

Every data set is simulated from hyperparameters that are drawn from their priors, functions at new inputs, one unit
beyond the data on both sides, with it. NUTS runs on the marginal program, and ``Trained.of_draws`` mixes the moments of
``f`` given each draw: exactly for Gaussian noise, by Laplace's approximation for counts. The bands are those of ``f``,
and of ``y`` for Gaussian noise. All is in float32.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from hyperparameter_coverage import CASES, sampled
from recorded import keep

from gpzoo.inference import Trained, marginal

#: Shares within which the 90 % bands are taken to be right.
LEAST, MOST = 0.85, 0.95

ROWS, NEW, WIDTH = {"exact": 40, "counts": 60}, 25, 8.0


def simulated(name: str, X: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A function and data of it, whose hyperparameters are drawn from the priors of the program."""
    rng = np.random.default_rng(seed)
    variance, lengthscale = np.exp(0.7 * rng.standard_normal()), np.exp(0.4 * rng.standard_normal())
    X = X.astype(float)
    K = variance * np.exp(-np.square((X - X.T) / lengthscale) / 2)
    f = np.linalg.cholesky(K + 1e-8 * np.eye(len(X))) @ rng.standard_normal(len(X))
    if name == "exact":
        deviation = np.exp((-2 + 0.7 * rng.standard_normal()) / 2)
        return f, (f + deviation * rng.standard_normal(len(X))).astype(np.float32)
    return f, rng.poisson(np.exp(f + 1 + rng.standard_normal())).astype(np.int32)


def covered(name: str, seed: int, draws: dict[str, Any], X: np.ndarray, y: np.ndarray, truth: dict) -> dict[str, float]:
    """Shares of the new inputs whose values lie in their bands."""
    new = X[-NEW:]
    model = marginal(CASES[name].program)
    posterior = Trained.of_draws(jax.random.key(seed), draws, X[:-NEW], y, program=model)
    found = posterior.predict(jax.random.key(seed), new, quantiles=(0.05, 0.95))
    inside = {}
    for site in ("f", "y") if name == "exact" else ("f",):
        low, high = found[site].quantiles
        inside[site] = float(np.mean((low <= truth[site]) & (truth[site] <= high)))
    return inside


def case(name: str, sets: int, warmup: int, draws: int) -> dict[str, Any]:
    """The shares of all data sets of a case."""
    started, rows, own = time.time(), ROWS[name], CASES[name]
    rng = np.random.default_rng(0)
    new = np.linspace(-1.0, WIDTH + 1.0, NEW)
    X = np.concatenate([np.sort(rng.uniform(0, WIDTH, rows)), new])[:, None].astype(np.float32)
    each = [simulated(name, X, seed) for seed in range(sets)]
    found = sampled(own, X[:-NEW], None, warmup, draws)(
        jax.random.split(jax.random.key(1), sets), np.stack([y[:rows] for _, y in each])
    )[0]
    shares: dict[str, list[float]] = {}
    for seed, (f, y) in enumerate(each):
        own_draws = jax.tree.map(lambda x, seed=seed: np.asarray(x[seed]), found)
        values = {"f": f[-NEW:], "y": y[-NEW:]}
        for site, share in covered(name, seed, own_draws, X, y[:rows], values).items():
            shares.setdefault(site, []).append(share)
    by_site = {}
    for site, of_sets in shares.items():
        share = float(np.mean(of_sets))
        error = float(np.std(of_sets, ddof=1) / np.sqrt(sets))
        by_site[site] = {"share": share, "error": error, "within_bars": LEAST <= share <= MOST}
    return {"rows": rows, "new": NEW, "sets": sets, "bands": by_site, "seconds": time.time() - started}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", choices=tuple(ROWS), default=list(ROWS))
    for name, value in {"sets": 100, "warmup": 200, "draws": 100}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    counts = (3, 30, 20) if options.dry_run else (options.sets, options.warmup, options.draws)
    found = {}
    for name in options.cases:
        found[name] = case(name, *counts)
        print(json.dumps(found[name]), flush=True)
        if options.output:
            given = ["--cases", *options.cases, "--sets", counts[0], "--warmup", counts[1], "--draws", counts[2]]
            keep(options.output, __file__, given, interval=0.9, bars=[LEAST, MOST], cases=found)


if __name__ == "__main__":
    main()
