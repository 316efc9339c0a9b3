"""NumPyro's own calls on programs of 50 rows, beside the same with one BLAS thread set by hand.

    python benchmarks/blas_threads.py [--rows 50] [--rounds 5] [--output benchmarks/results/blas_threads.json]

Each round starts two processes, one with OPENBLAS_NUM_THREADS=1 and one as it is, and swaps their order. Each runs
every call, compiled whole, twenty times: the quickest counts, which other load changes least.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recorded import keep


def calls(rows: int) -> dict[str, Callable[[], Any]]:
    """Each ends when its numbers are there."""
    import jax
    import numpy as np
    import numpyro
    import numpyro.distributions as dist
    import optax
    from numpyro.infer import MCMC, NUTS, SVI, Predictive

    from gpzoo import GaussianProcess, InducingPoints, kernels
    from gpzoo.inference import GaussianProcessELBO, InducingGuide, whitened
    from gpzoo.models import gp_regression

    key = jax.random.key(0)
    X = np.linspace(0, 6, rows, dtype=np.float32)[:, None]
    y = np.sin(X[:, 0])

    def exact(X: Any, y: Any = None) -> None:
        scale = numpyro.sample("lengthscale", dist.LogNormal())
        numpyro.sample("y", GaussianProcess(kernels.RBF(1.0, scale) + kernels.White(0.1), X), obs=y)

    def latent(X: Any, y: Any = None) -> None:
        scale = numpyro.sample("lengthscale", dist.LogNormal())
        f = numpyro.sample("f", GaussianProcess(kernels.RBF(1.0, scale), X))
        numpyro.sample("y", dist.StudentT(4.0, f, 0.1).to_event(1), obs=y)

    guide = InducingGuide(gp_regression, InducingPoints(X[:: max(1, rows // 20)]))
    svi = SVI(gp_regression, guide, optax.adam(0.01), GaussianProcessELBO())
    params = svi.run(key, 2, X, y, progress_bar=False).params
    chains = {
        name: MCMC(NUTS(program, max_tree_depth=4), num_warmup=50, num_samples=50, progress_bar=False)
        for name, program in (("exact", exact), ("whitened", whitened(latent)))
    }
    value = jax.jit(
        jax.value_and_grad(lambda s: numpyro.infer.util.log_density(exact, (X, y), {}, {"lengthscale": s})[0])
    )

    def sampled(mcmc: MCMC) -> Any:
        def run(key: Any) -> Any:
            mcmc.run(key, X, y)
            return mcmc.get_samples()

        return jax.jit(run)

    chains = {name: sampled(mcmc) for name, mcmc in chains.items()}
    steps = jax.jit(lambda key: svi.run(key, 300, X, y, progress_bar=False).losses)
    draws = jax.jit(Predictive(gp_regression, guide=guide, params=params, num_samples=200))
    return {
        "exact: 100 values and gradients": lambda: [value(1.0 + i / 100) for i in range(100)],
        "exact: MCMC": lambda: chains["exact"](key),
        "whitened: MCMC": lambda: chains["whitened"](key),
        "sparse: svi.run, 300 steps": lambda: steps(key),
        "sparse: Predictive, 200 draws": lambda: draws(key, X),
    }


def measured(rows: int) -> dict[str, float]:
    """Seconds of every call in this process."""
    import jax

    found = {}
    for name, call in calls(rows).items():
        seconds = []
        for _ in range(20):
            start = time.perf_counter()
            jax.block_until_ready(call())
            seconds.append(time.perf_counter() - start)
        found[name] = min(seconds)
    return found


def in_a_process(rows: int, by_hand: bool) -> dict[str, float]:
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    environment |= {"OPENBLAS_NUM_THREADS": "1"} if by_hand else {}
    command = [sys.executable, __file__, "--rows", str(rows), "--measure"]
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", action="store_true", help="in this process, and print")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measured(given.rows)))
        return
    rounds = []
    for i in range(given.rounds):
        order = (True, False) if i % 2 else (False, True)
        rounds.append({by_hand: in_a_process(given.rows, by_hand) for by_hand in order})
    cases = {
        name: {
            "seconds": statistics.median(each[False][name] for each in rounds),
            "seconds_by_hand": statistics.median(each[True][name] for each in rounds),
            "ratio": statistics.median(each[False][name] / each[True][name] for each in rounds),
        }
        for name in rounds[0][False]
    }
    print(json.dumps(cases, indent=2))
    if given.output:
        keep(given.output, __file__, ["--rows", given.rows, "--rounds", given.rounds], cases=cases)


if __name__ == "__main__":
    main()
