"""NUTS on whitened GP sites: seconds of a gradient by number of inputs, of four chains, and how far SVI is from them.

    python benchmarks/whitened.py [--inputs 50 100 200 400] [--inducing 40] [--dtypes float32 float64]
        [--output benchmarks/results/whitened.json]

A classifier that adds two GPs with a lengthscale and a scale each. Chains are at 50 inputs, 500 + 500 draws, all four
in one compiled program. SVI has every input as inducing point and normal hyperparameters.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

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
from numpyro.infer.util import initialize_model
from recorded import keep

from gpzoo import GaussianProcess, InducingPoints, kmeans, likelihoods
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit, whitened
from gpzoo.kernels import RBF

SITES = ("f", "g")


def program(X: Any, y: Any = None, *, num_data: int | None = None) -> None:
    """Two latent GPs, one for each input, under a logistic likelihood."""
    found = []
    for i, name in enumerate(SITES):
        scale = numpyro.sample(f"{name}_sd", dist.LogNormal(0.0, 0.5))
        lengthscale = numpyro.sample(f"{name}_lengthscale", dist.LogNormal(0.0, 0.5))
        found.append(numpyro.sample(name, GaussianProcess(RBF(scale**2, lengthscale, active_dims=[i]), X)))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", likelihoods.Bernoulli(found[0] + found[1], "logit"), obs=y)


def data(rows: int, dtype: str) -> tuple[jax.Array, jax.Array]:
    """Inputs ``[N, 2]`` and labels ``[N]``."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (rows, 2))
    truth = 2 * np.sin(2 * X[:, 0]) + X[:, 1] ** 2 - 1
    y = rng.uniform(size=rows) < 1 / (1 + np.exp(-truth))
    return jnp.asarray(X, dtype), jnp.asarray(y, dtype)


def gradient(rows: int, inducing: int | None, dtype: str, rounds: int = 5) -> float:
    """Median seconds of the potential and its gradient, many of them in one program."""
    X, y = data(rows, dtype)
    model = whitened(program, None if inducing is None else kmeans(inducing))
    start = initialize_model(jax.random.key(0), model, model_args=(X, y), init_strategy=init_to_median)
    slope = jax.value_and_grad(start.potential_fn)

    @partial(jax.jit, static_argnums=1)
    def many(z: Any, count: int) -> Any:
        def step(_: int, z: Any) -> Any:
            return jax.tree.map(lambda x, g: x - 1e-9 * g, z, slope(z)[1])

        return jax.lax.fori_loop(0, count, step, z)

    def seconds(count: int) -> float:
        began = time.perf_counter()
        jax.block_until_ready(many(start.param_info.z, count))
        return time.perf_counter() - began

    seconds(3)
    count = max(3, round(0.5 / (seconds(3) / 3)))
    seconds(count)
    return statistics.median(seconds(count) / count for _ in range(rounds))


def chains(inducing: int | None, dtype: str, rows: int = 50) -> dict[str, Any]:
    """Four chains of 500 + 500 draws, and SVI's marginal means against theirs."""
    X, y = data(rows, dtype)
    model = whitened(program, None if inducing is None else kmeans(inducing))
    together = lambda chain: partial(jax.lax.map, chain)  # noqa: E731
    nuts = NUTS(model)
    mcmc = MCMC(nuts, num_warmup=500, num_samples=500, num_chains=4, chain_method=together, progress_bar=False)
    began, cpu = time.perf_counter(), time.process_time()
    mcmc.run(jax.random.key(1), X, y, extra_fields=("diverging", "num_steps"))
    draws = jax.tree.map(np.asarray, mcmc.get_samples(group_by_chain=True))
    found = {"inputs": rows, "inducing": inducing, "dtype": dtype, "seconds": time.perf_counter() - began}
    found["cpu_seconds"] = time.process_time() - cpu
    draws = {name: x for name, x in draws.items() if not name.endswith("_base")}
    extra = mcmc.get_extra_fields()
    found["divergences"] = int(np.sum(extra["diverging"]))
    found["gradients_a_draw"] = float(np.mean(extra["num_steps"]))
    found["largest_r_hat"] = max(float(np.max(split_gelman_rubin(x))) for x in draws.values())
    found["smallest_ess"] = min(float(np.min(effective_sample_size(x))) for x in draws.values())
    if inducing is None:
        guide = InducingGuide(program, InducingPoints(X), hyperparameters="normal")
        svi = SVI(program, guide, optax.adam(0.02), GaussianProcessELBO())
        posterior = fit(jax.random.key(0), svi, 4000, X, y, progress=False).predict(jax.random.key(2), X, num_draws=400)
        own = {name: draws[name].reshape(-1, rows) for name in SITES}
        far = {n: np.abs(posterior[n].mean - own[n].mean(0)) / own[n].std(0) for n in SITES}
        found["svi_means_apart_in_sd"] = {name: float(np.max(each)) for name, each in far.items()}
    return found


def main() -> None:
    """Read the command line; every precision has a process of its own, since it is chosen once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, nargs="*", default=[50, 100, 200, 400])
    parser.add_argument("--inducing", type=int, default=40)
    parser.add_argument("--dtypes", nargs="*", default=["float32", "float64"])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    options = ["--inputs", *map(str, arguments.inputs), "--inducing", str(arguments.inducing)]
    if arguments.case:
        numpyro.enable_x64(arguments.case == "float64")
        with threadpoolctl.threadpool_limits(1, user_api="blas"):
            found: dict[str, Any] = {"chains": [chains(None, arguments.case), chains(20, arguments.case)]}
            found["gradients"] = [
                {"inputs": rows, "inducing": M, "dtype": arguments.case, "seconds": gradient(rows, M, arguments.case)}
                for M in (None, arguments.inducing)
                for rows in arguments.inputs
            ]
        print(json.dumps(found))
        return
    found = {"gradients": [], "chains": []}
    for dtype in arguments.dtypes:
        command = [sys.executable, __file__, *options, "--case", dtype]
        ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        for kind, cases in json.loads(ended.stdout.splitlines()[-1]).items():
            found[kind] += cases
            print(*map(json.dumps, cases), sep="\n", flush=True)
    if arguments.output:
        keep(arguments.output, __file__, [*options, "--dtypes", *arguments.dtypes], **found)


if __name__ == "__main__":
    main()
