"""NUTS on hyperparameters with functions integrated out: ours beside the same model written by hand in NumPyro.

    python benchmarks/marginal.py [--cases exact collapsed laplace] [--pairs 1] [--draws 500] [--dtype float32]
        [--output benchmarks/results/marginal.json]

Four chains of 500 + 500 draws: 200 rows exactly, 2,000 rows with 100 inducing inputs, and 1,000 counts by Laplace's
approximation with 100. By hand is the program that NumPyro's own documentation teaches, a multivariate normal density,
with NumPyro's own starting values and four chains in sequence. It has no collapsed or Laplace form, so that it takes
part in the first case alone. Each run is a process of its own, compilation and start included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CASES = {"exact": ("gpzoo", "numpyro"), "collapsed": ("gpzoo",), "laplace": ("gpzoo",)}
ROWS = {"exact": 200, "collapsed": 2000, "laplace": 1000}


def run(case: str, library: str, draws: int, dtype: str) -> dict[str, Any]:
    """One run of four chains: seconds, and what the chains are worth."""
    began = time.perf_counter()
    import jax
    import jax.numpy as jnp
    import numpy as np
    import numpyro
    import numpyro.distributions as dist
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
    from numpyro.infer import MCMC, NUTS

    from gpzoo import GaussianProcess, kernels, kmeans
    from gpzoo.inference import marginal, nuts
    from gpzoo.likelihoods import Expected, Gaussian

    numpyro.enable_x64(dtype == "float64")
    numpyro.set_host_device_count(1)
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(0, 12, (ROWS[case], 1)), axis=0)
    truth = np.sin(X[:, 0])
    y = truth + 0.3 * rng.standard_normal(len(X)) if case != "laplace" else rng.poisson(np.exp(truth))
    X, y = X.astype(dtype), y.astype(dtype) if case != "laplace" else y

    def priors() -> tuple[Any, Any]:
        variance = numpyro.sample("variance", dist.LogNormal(0.0, 1.0))
        return variance, numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))

    def ours(X: Any, y: Any) -> None:
        f = numpyro.sample("f", GaussianProcess(kernels.RBF(*priors()), X))
        if case == "laplace":
            numpyro.sample("y", Expected(lambda f: dist.Poisson(jnp.exp(f)), f), obs=y)
        else:
            numpyro.sample("y", Gaussian(f, numpyro.sample("noise", dist.LogNormal(-2.0, 1.0))), obs=y)

    def by_hand(X: Any, y: Any) -> None:
        (variance, lengthscale), noise = priors(), numpyro.sample("noise", dist.LogNormal(-2.0, 1.0))
        square = jnp.square((X - X.T) / lengthscale)
        K = variance * jnp.exp(-square / 2) + noise * jnp.eye(len(X))
        numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(X)), K), obs=y)

    if library == "gpzoo":
        program = marginal(ours, None if case == "exact" else kmeans(100))
        mcmc = nuts(jax.random.key(0), program, X, y, num_warmup=draws, num_samples=draws, progress=False)
    else:
        counts = {"num_warmup": draws, "num_samples": draws, "num_chains": 4}
        mcmc = MCMC(NUTS(by_hand), **counts, chain_method="sequential", progress_bar=False)
        mcmc.run(jax.random.key(0), jnp.asarray(X), jnp.asarray(y))
    samples = {name: np.asarray(x) for name, x in mcmc.get_samples(group_by_chain=True).items()}
    seconds = time.perf_counter() - began
    ess = min(float(effective_sample_size(np.log(x))) for x in samples.values())
    return {
        "case": case,
        "dtype": dtype,
        "library": library,
        "seconds": seconds,
        "smallest_ess": ess,
        "ess_a_second": ess / seconds,
        "largest_r_hat": max(float(split_gelman_rubin(np.log(x))) for x in samples.values()),
        "divergences": int(np.sum(mcmc.get_extra_fields()["diverging"])),
        "means_of_logs": {name: float(np.log(x).mean()) for name, x in samples.items()},
    }


def main() -> None:
    """Read the command line, and start a process for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    options = ["--draws", str(arguments.draws), "--dtype", arguments.dtype]
    if arguments.one:
        print(json.dumps(run(*arguments.one, arguments.draws, arguments.dtype)))
        return
    runs = []
    for _ in range(arguments.pairs):
        for case, library in [(one, library) for one in arguments.cases for library in CASES[one]]:
            command = [sys.executable, __file__, *options, "--one", case, library]
            ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            runs.append(json.loads(ended.stdout.splitlines()[-1]))
            print(json.dumps(runs[-1]), flush=True)
    if arguments.output:
        from recorded import keep

        given = [*options, "--cases", *arguments.cases, "--pairs", str(arguments.pairs)]
        keep(arguments.output, __file__, given, runs=runs)


if __name__ == "__main__":
    main()
