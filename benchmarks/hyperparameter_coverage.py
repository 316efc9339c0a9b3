"""How often do 90 % intervals of hyperparameters hold the truth? Of marginal programs by NUTS, and of a guide beside.

    python benchmarks/hyperparameter_coverage.py [--cases exact counts collapsed collapsed-line] [--sets 200]
        [--warmup 250] [--draws 400] [--steps 1500] [--dry-run]
        [--output benchmarks/results/hyperparameter_coverage.json]

Every data set is simulated from hyperparameters that are drawn from their priors, so that 90 % of right intervals hold
the truth. NUTS runs on the program without its GP site: exactly, collapsed, or by Laplace's approximation with inducing
variables. ``InducingGuide(hyperparameters="normal")`` is trained by ``fit`` on the same data, with the same inducing
inputs where there are any. In the square of ``collapsed`` 50 inducing inputs are few for the shortest lengthscales of
the prior, on the line of ``collapsed-line`` they are enough. A program is compiled once for all data sets of a case.
Counts have no noise of their own: in place of it is the level of their logarithm. All is in float32. ``--dry-run``
takes few draws of a few data sets.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import scipy.linalg  # noqa: F401  its BLAS is JAX's: loaded before its threads can be limited
import threadpoolctl
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS, SVI, init_to_median
from recorded import keep

from gpzoo import GaussianProcess, kernels
from gpzoo.inducing.initialisers import kmeans
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit, marginal
from gpzoo.likelihoods import Expected, Gaussian

#: Shares within which the 90 % intervals of 200 data sets are taken to be right.
LEAST, MOST = 0.82, 0.97

#: Data sets that run in one call of the compiled program.
TOGETHER = 20


def regression(X: jax.Array, y: jax.Array | None = None) -> None:
    """A function with noise."""
    variance = numpyro.sample("variance", dist.LogNormal(0.0, 0.7))
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 0.4))
    noise = numpyro.sample("noise", dist.LogNormal(-2.0, 0.7))
    f = numpyro.sample("f", GaussianProcess(kernels.RBF(variance, lengthscale), X))
    numpyro.sample("y", Gaussian(f, noise), obs=y)


def rates(X: jax.Array, y: jax.Array | None = None) -> None:
    """Counts, whose logarithm has a level."""
    variance = numpyro.sample("variance", dist.LogNormal(0.0, 0.7))
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 0.4))
    level = numpyro.sample("level", dist.Normal(1.0, 1.0))
    f = numpyro.sample("f", GaussianProcess(kernels.RBF(variance, lengthscale), X))
    numpyro.sample("y", Expected(lambda f: dist.Poisson(jnp.exp(f)), f + level), obs=y)


class Case(NamedTuple):
    """Rows in a square of so many units and columns, and how many inducing inputs NUTS and the guide have."""

    program: Callable
    rows: int
    columns: int
    width: float
    inducing: int | None
    of_guide: int
    third: str


CASES = {
    "exact": Case(regression, 50, 1, 8.0, None, 25, "noise"),
    "counts": Case(rates, 100, 1, 8.0, 25, 25, "level"),
    "collapsed": Case(regression, 300, 2, 4.0, 50, 50, "noise"),
    "collapsed-line": Case(regression, 300, 1, 8.0, 50, 50, "noise"),
}


def simulated(case: Case, X: np.ndarray, seed: int) -> tuple[dict[str, float], np.ndarray]:
    """Hyperparameters from their priors, and data from these, in NumPy."""
    rng = np.random.default_rng(seed)
    truth = {"variance": np.exp(0.7 * rng.standard_normal()), "lengthscale": np.exp(0.4 * rng.standard_normal())}
    square = np.sum((X[:, None].astype(float) - X) ** 2, axis=-1)
    K = truth["variance"] * np.exp(-square / truth["lengthscale"] ** 2 / 2)
    f = np.linalg.cholesky(K + 1e-9 * np.eye(len(X))) @ rng.standard_normal(len(X))
    if case.third == "noise":
        truth["noise"] = np.exp(-2 + 0.7 * rng.standard_normal())
        return truth, (f + np.sqrt(truth["noise"]) * rng.standard_normal(len(X))).astype(np.float32)
    truth["level"] = 1 + rng.standard_normal()
    return truth, rng.poisson(np.exp(f + truth["level"])).astype(np.int32)


def sampled(case: Case, X: np.ndarray, inducing: Any, warmup: int, draws: int) -> Callable:
    """Draws of the hyperparameters for each of several data sets, one after the other in one program."""
    program = marginal(case.program, inducing)

    def one(given: tuple) -> tuple:
        key, y = given
        kernel = NUTS(program, dense_mass=True, max_tree_depth=6, init_strategy=init_to_median(num_samples=15))
        mcmc = MCMC(kernel, num_warmup=warmup, num_samples=draws, progress_bar=False)
        mcmc.run(key, X, y)
        return mcmc.get_samples(), mcmc.get_extra_fields()["diverging"]

    return jax.jit(lambda keys, Y: jax.lax.map(one, (keys, Y)))


def judged(truth: np.ndarray, low: np.ndarray, high: np.ndarray) -> dict[str, Any]:
    """The share of intervals that hold the truth, and how many it lies below and above."""
    below, above = int(np.sum(truth < low)), int(np.sum(truth > high))
    share = 1 - (below + above) / len(truth)
    return {"share": share, "truth_below": below, "truth_above": above, "within_bars": bool(LEAST <= share <= MOST)}


def measure(name: str, sets: int, warmup: int, draws: int, steps: int) -> dict[str, Any]:
    """Shares of one case, by NUTS and by the guide."""
    case, rng = CASES[name], np.random.default_rng(7)
    X = rng.uniform(0, case.width, (case.rows, case.columns)).astype(np.float32)
    data = [simulated(case, X, seed) for seed in range(sets)]
    truth, Y = {key: np.array([each[key] for each, _ in data]) for key in data[0][0]}, np.stack([y for _, y in data])
    inducing = None if case.inducing is None else kmeans(case.inducing)
    run = sampled(case, X, inducing, warmup, draws)
    found, diverging, began = [], [], time.perf_counter()
    keys = jax.random.split(jax.random.key(0), sets)
    together = min(TOGETHER, sets)
    for first in range(0, sets, together):
        at = np.arange(first, first + together) % sets  # the last call repeats some, or it would be compiled again
        samples, diverged = jax.device_get(run(keys[at], Y[at]))
        fresh = min(together, sets - first)
        found.append({key: value[:fresh] for key, value in samples.items()})
        diverging.append(diverged[:fresh])
        print(name, first + fresh, f"{time.perf_counter() - began:.0f} s", flush=True)
    seconds = time.perf_counter() - began
    chains = {key: np.concatenate([each[key] for each in found]).astype(float) for key in truth}
    by_nuts, by_guide, widths = {}, {}, {}
    began = time.perf_counter()
    guide = InducingGuide(case.program, kmeans(case.of_guide), hyperparameters="normal")
    svi = SVI(case.program, guide, optax.adam(optax.exponential_decay(0.03, steps, 0.1)), GaussianProcessELBO())
    keys = jax.random.split(jax.random.key(1), sets)
    params = fit(keys, svi, steps, X, Y, in_axes=(None, 0), progress=False).params
    seconds_guide = time.perf_counter() - began
    for key, values in truth.items():
        low, high = np.quantile(chains[key], [0.05, 0.95], axis=1)
        by_nuts[key] = judged(values, low, high)
        loc, scale = np.asarray(params[f"{key}_loc"]), np.asarray(params[f"{key}_scale"])
        on = (lambda x: x) if key == "level" else np.log
        by_guide[key] = judged(on(values), loc - 1.6449 * scale, loc + 1.6449 * scale)
        widths[key] = float(np.median(2 * 1.6449 * scale / (on(high) - on(low))))
    ess = np.array([[effective_sample_size(x[None]) for x in chains[key]] for key in truth])
    rhat = np.array([[split_gelman_rubin(x[None]) for x in chains[key]] for key in truth])
    of_case = {"rows": case.rows, "columns": case.columns, "inducing": case.inducing, "guide_inducing": case.of_guide}
    return {
        "case": name,
        **of_case,
        "sets": sets,
        "nuts": by_nuts,
        "guide": by_guide,
        "guide_width_over_nuts": widths,
        "divergences": int(np.sum(np.concatenate(diverging))),
        "sets_with_divergences": int(np.sum(np.concatenate(diverging).any(axis=1))),
        "sets_that_never_moved": int(np.sum(np.isnan(ess).any(axis=0))),
        "effective_draws": {"least": float(np.nanmin(ess)), "median": float(np.nanmedian(ess))},
        "split_r_hat": {"most": float(np.nanmax(rhat)), "share_below_1.02": float(np.mean(rhat < 1.02))},
        "seconds": {"nuts": seconds, "guide": seconds_guide},
    }


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=250)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    if given.dry_run:
        given.sets, given.warmup, given.draws, given.steps = 3, 20, 20, 20
    numbers, found = (given.sets, given.warmup, given.draws, given.steps), []
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        for name in given.cases:
            found.append(measure(name, *numbers))
            print(json.dumps(found[-1]), flush=True)
            if given.output:
                options = ["--cases", *given.cases, "--sets", given.sets, "--warmup", given.warmup]
                options += ["--draws", given.draws, "--steps", given.steps]
                keep(given.output, __file__, options, interval=0.9, bars=[LEAST, MOST], cases=found)


if __name__ == "__main__":
    main()
