"""NUTS on hyperparameters with functions integrated out: ours beside the same model elsewhere and by hand.

    python benchmarks/marginal.py [--cases exact collapsed laplace] [--pairs 1] [--draws 500] [--dtype float32]
        [--limit 300] [--gpjax-python PATH] [--pymc-python PATH] [--output benchmarks/results/marginal.json]

Four chains of 500 + 500 draws: 200 rows exactly, 2,000 rows with 100 inducing inputs, and 1,000 counts by Laplace's
approximation with 100. Beside it: by hand, the program that NumPyro's own documentation teaches, a multivariate normal
density, with NumPyro's own starting values and four chains in sequence; GPJax's marginal likelihood under BlackJAX with
its window adaptation; PyMC's ``gp.Marginal`` and ``gp.MarginalApprox`` (VFE), which is in float64 and runs chains in
two processes. A side without such a case takes no part in it. Each run is a process of its own, compilation and start
included; all have one BLAS thread. One that takes longer than the limit is stopped, and recorded as stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recorded import keep

CASES = {"exact": ("gpzoo", "numpyro", "gpjax", "pymc"), "collapsed": ("gpzoo", "gpjax", "pymc"), "laplace": ("gpzoo",)}
ROWS = {"exact": 200, "collapsed": 2000, "laplace": 1000}
INDUCING, CHAINS = 100, 4

#: Means of the logarithms of the hyperparameters under their priors, whose standard deviations are 1.
PRIORS = {"variance": 0.0, "lengthscale": 0.0, "noise": -2.0}


def run(case: str, library: str, draws: int, dtype: str) -> dict[str, Any]:
    """One run of four chains: seconds, and what the chains are worth."""
    began = time.perf_counter()
    import numpy as np

    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(0, 12, (ROWS[case], 1)), axis=0)
    truth = np.sin(X[:, 0])
    y = truth + 0.3 * rng.standard_normal(len(X)) if case != "laplace" else rng.poisson(np.exp(truth))
    X, y = X.astype(dtype), y.astype(dtype) if case != "laplace" else y
    samples, diverging = SIDES[library](case, X, y, draws, dtype)
    logs = {name: np.log(np.asarray(x, float)).tolist() for name, x in samples.items()}
    return {"seconds": time.perf_counter() - began, "logs": logs, "divergences": int(np.sum(np.asarray(diverging)))}


def judged(case: str, library: str, dtype: str, found: dict[str, Any]) -> dict[str, Any]:
    """What the chains of a run are worth."""
    import numpy as np
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    logs, seconds = {name: np.array(x) for name, x in found["logs"].items()}, found["seconds"]
    ess = min(float(effective_sample_size(x)) for x in logs.values())
    return {
        "case": case,
        "dtype": "float64" if library == "pymc" else dtype,
        "library": library,
        "seconds": seconds,
        "smallest_ess": ess,
        "ess_a_second": ess / seconds,
        "largest_r_hat": max(float(split_gelman_rubin(x)) for x in logs.values()),
        "divergences": found["divergences"],
        "means_of_logs": {name: float(x.mean()) for name, x in logs.items()},
    }


def with_gpzoo(case: str, X: Any, y: Any, draws: int, dtype: str) -> tuple[dict[str, Any], Any]:
    """Ours."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    from gpzoo import GaussianProcess, kernels, kmeans
    from gpzoo.inference import marginal, nuts
    from gpzoo.likelihoods import Expected, Gaussian

    numpyro.enable_x64(dtype == "float64")

    def program(X: Any, y: Any) -> None:
        h = {name: numpyro.sample(name, dist.LogNormal(m, 1.0)) for name, m in list(PRIORS.items())[:2]}
        f = numpyro.sample("f", GaussianProcess(kernels.RBF(**h), X))
        if case == "laplace":
            numpyro.sample("y", Expected(lambda f: dist.Poisson(jnp.exp(f)), f), obs=y)
        else:
            numpyro.sample("y", Gaussian(f, numpyro.sample("noise", dist.LogNormal(PRIORS["noise"], 1.0))), obs=y)

    counts = {"num_warmup": draws, "num_samples": draws, "num_chains": CHAINS}
    mcmc = nuts(jax.random.key(0), marginal(program, None if case == "exact" else kmeans(INDUCING)), X, y, **counts)
    return mcmc.get_samples(group_by_chain=True), mcmc.get_extra_fields()["diverging"]


def with_numpyro(case: str, X: Any, y: Any, draws: int, dtype: str) -> tuple[dict[str, Any], Any]:
    """By hand, exactly."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    numpyro.enable_x64(dtype == "float64")

    def program(X: Any, y: Any) -> None:
        variance, lengthscale, noise = (numpyro.sample(n, dist.LogNormal(m, 1.0)) for n, m in PRIORS.items())
        square = jnp.square((X - X.T) / lengthscale)
        K = variance * jnp.exp(-square / 2) + noise * jnp.eye(len(X))
        numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(X)), K), obs=y)

    counts = {"num_warmup": draws, "num_samples": draws, "num_chains": CHAINS}
    mcmc = MCMC(NUTS(program), **counts, chain_method="sequential", progress_bar=False)
    mcmc.run(jax.random.key(0), jnp.asarray(X), jnp.asarray(y))
    return mcmc.get_samples(group_by_chain=True), mcmc.get_extra_fields()["diverging"]


def with_gpjax(case: str, X: Any, y: Any, draws: int, dtype: str) -> tuple[dict[str, Any], Any]:
    """GPJax and BlackJAX: chains after each other in one program."""
    import jax

    jax.config.update("jax_enable_x64", dtype == "float64")
    import blackjax
    import gpjax
    import jax.numpy as jnp

    rows, Z = gpjax.Dataset(X=jnp.asarray(X), y=jnp.asarray(y)[:, None]), jnp.asarray(inducing(X))

    def log_density(logs: dict[str, Any]) -> Any:
        kernel = gpjax.kernels.RBF(lengthscale=jnp.exp(logs["lengthscale"]), variance=jnp.exp(logs["variance"]))
        prior = gpjax.gps.Prior(mean_function=gpjax.mean_functions.Zero(), kernel=kernel, jitter=1e-6)
        posterior = prior * gpjax.likelihoods.Gaussian(obs_stddev=jnp.exp(logs["noise"] / 2))
        if case == "exact":
            density = gpjax.objectives.conjugate_mll(posterior, rows)
        else:
            q = gpjax.variational_families.CollapsedVariationalGaussian(model=posterior, inducing_inputs=Z)
            density = gpjax.objectives.collapsed_elbo(q, rows)
        return density - sum((logs[name] - m) ** 2 / 2 for name, m in PRIORS.items())

    start = {name: jnp.asarray(m, dtype) for name, m in PRIORS.items()}
    adapt = blackjax.window_adaptation(blackjax.nuts, log_density)

    def chain(key: Any) -> Any:
        first, second = jax.random.split(key)
        (state, parameters), _ = adapt.run(first, start, num_steps=draws)
        step = blackjax.nuts(log_density, **parameters).step

        def one(state: Any, key: Any) -> Any:
            state, info = step(key, state)
            return state, (state.position, info.is_divergent)

        return jax.lax.scan(one, state, jax.random.split(second, draws))[1]

    keys = jax.random.split(jax.random.key(0), CHAINS)
    position, diverging = jax.device_get(jax.jit(lambda keys: jax.lax.map(chain, keys))(keys))
    return {name: jnp.exp(x) for name, x in position.items()}, diverging


def with_pymc(case: str, X: Any, y: Any, draws: int, dtype: str) -> tuple[dict[str, Any], Any]:
    """PyMC, with its own sampler."""
    import numpy as np
    import pymc as pm

    with pm.Model():
        variance, lengthscale, noise = (pm.LogNormal(name, m, 1.0) for name, m in PRIORS.items())
        kernel = variance * pm.gp.cov.ExpQuad(1, ls=lengthscale)
        if case == "exact":
            pm.gp.Marginal(cov_func=kernel).marginal_likelihood("y", X=X, y=y, sigma=pm.math.sqrt(noise))
        else:
            gp = pm.gp.MarginalApprox(cov_func=kernel, approx="VFE")
            gp.marginal_likelihood("y", X=X, Xu=inducing(X), y=y, sigma=pm.math.sqrt(noise))
        counts = {"draws": draws, "tune": draws, "chains": CHAINS, "cores": os.cpu_count()}
        found = pm.sample(**counts, random_seed=0, progressbar=False, compute_convergence_checks=False)
    return {name: np.asarray(found["posterior"][name]) for name in PRIORS}, found["sample_stats"]["diverging"]


SIDES: dict[str, Callable] = {"gpzoo": with_gpzoo, "numpyro": with_numpyro, "gpjax": with_gpjax, "pymc": with_pymc}


def inducing(X: Any) -> Any:
    """Evenly spaced inducing inputs, where k-means++ of one column of rows would put them nearly."""
    import numpy as np

    return np.linspace(X.min(), X.max(), INDUCING, dtype=X.dtype)[:, None]


def main() -> None:
    """Read the command line, and start a process for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--limit", type=int, default=300, help="seconds of a run")
    parser.add_argument("--gpjax-python", help="interpreter that has GPJax and BlackJAX")
    parser.add_argument("--pymc-python", help="interpreter that has PyMC")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    options = ["--draws", str(arguments.draws), "--dtype", arguments.dtype]
    if arguments.one:
        print(json.dumps(run(*arguments.one, arguments.draws, arguments.dtype)))
        return
    pythons = dict.fromkeys(("gpzoo", "numpyro"), sys.executable)
    pythons |= {"gpjax": arguments.gpjax_python, "pymc": arguments.pymc_python}
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL")}
    runs = []
    for _ in range(arguments.pairs):
        for case, library in [(one, library) for one in arguments.cases for library in CASES[one] if pythons[library]]:
            command = [str(pythons[library]), __file__, *options, "--one", case, library]
            given: dict[str, Any] = {
                "check": True,
                "stdout": subprocess.PIPE,
                "text": True,
                "env": os.environ | threads,
            }
            try:
                ended = subprocess.run(command, timeout=arguments.limit, **given)
                runs.append(judged(case, library, arguments.dtype, json.loads(ended.stdout.splitlines()[-1])))
            except subprocess.TimeoutExpired:
                runs.append({"case": case, "library": library, "stopped_after": arguments.limit})
            print(json.dumps(runs[-1]), flush=True)
            if arguments.output:
                said = [
                    *options,
                    "--cases",
                    *arguments.cases,
                    "--pairs",
                    str(arguments.pairs),
                    "--limit",
                    arguments.limit,
                ]
                keep(arguments.output, __file__, said, runs=runs)


if __name__ == "__main__":
    main()
