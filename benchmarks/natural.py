"""A step of natural gradients for ``q(u)`` and Adam for the rest, beside GPJax's: seconds, and ratios of pairs.

    python benchmarks/natural.py [--peer PYTHON] [--inducing 100 500] [--dtypes float32 float64] [--rounds 5]
        [--output benchmarks/results/natural.json]

Sparse regression with a lengthscale for each of 8 inputs, 10,000 rows in minibatches of 1,000. The peer runs in its own
process and environment (a Python with gpjax); rounds alternate. Its training compiles at every call, so that a step is
the difference of a long and a short call over that of their steps; ours is timed in the same way of calls that are
compiled. Without a peer ours is timed alone.
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

from peer import Peer
from recorded import keep

ROWS, COLUMNS, BATCH, SHORT, LONG = 10_000, 8, 1_000, 20, 220

_PEER = """
import json, sys, time
case = json.loads(sys.argv[1])
import jax
jax.config.update("jax_enable_x64", case["dtype"] == "float64")
import gpjax as gpx, jax.numpy as jnp, numpy as np, optax
rng = np.random.default_rng(0)
X = rng.standard_normal((case["rows"], case["columns"]))
y = np.sin(X @ rng.standard_normal(case["columns"]) / case["columns"] ** 0.5) + 0.1 * rng.standard_normal(case["rows"])
dtype = jnp.dtype(case["dtype"])
data = gpx.Dataset(X=jnp.asarray(X, dtype), y=jnp.asarray(y[:, None], dtype))
kernel = gpx.kernels.RBF(lengthscale=jnp.ones(case["columns"], dtype), variance=jnp.asarray(1.0, dtype))
prior = gpx.gps.Prior(mean_function=gpx.mean_functions.Zero(), kernel=kernel)
posterior = prior * gpx.likelihoods.Gaussian(obs_stddev=jnp.asarray(0.3, dtype))
q = gpx.variational_families.VariationalGaussian(model=posterior, inducing_inputs=jnp.asarray(X[: case["M"]], dtype))
def seconds(steps):
    began = time.perf_counter()
    _, losses = gpx.fit_natgrads(
        model=q, objective=lambda m, d: -gpx.objectives.elbo(m, d), train_data=data, optim=optax.adam(0.01),
        num_iters=steps, batch_size=case["batch"], natgrad_lr=0.1, verbose=False, key=jax.random.key(1))
    jax.block_until_ready(losses)
    return time.perf_counter() - began
seconds(2)
print(json.dumps({"gpjax": gpx.__version__, "jax": jax.__version__}), flush=True)
for line in sys.stdin:
    short, long = json.loads(line)
    first = seconds(short)
    print((seconds(long) - first) / (long - short), flush=True)
"""


def ours(case: dict[str, Any], natural: bool = True) -> Callable[[], float]:
    """The same for our step, by natural gradients or by Adam alone."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import numpyro
    import optax
    from numpyro.infer import SVI

    numpyro.enable_x64(case["dtype"] == "float64")
    from gpzoo.inducing.variables import InducingPoints
    from gpzoo.inference import GaussianProcessELBO, InducingGuide, NaturalGradients
    from gpzoo.models import gp_regression

    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, COLUMNS))
    y = np.sin(X @ rng.standard_normal(COLUMNS) / COLUMNS**0.5) + 0.1 * rng.standard_normal(ROWS)
    X, y = jnp.asarray(X, case["dtype"]), jnp.asarray(y, case["dtype"])
    guide = InducingGuide(gp_regression, InducingPoints(X[: case["M"]]))
    optimizer = NaturalGradients(optax.adam(0.01), guide, 0.1) if natural else optax.adam(0.01)
    svi = SVI(gp_regression, guide, optimizer, GaussianProcessELBO(), num_data=ROWS)
    first = svi.init(jax.random.key(1), X[:BATCH], y[:BATCH])

    def step(state: Any, key: Any, data: tuple) -> tuple[Any, Any]:
        rows = jax.random.choice(key, ROWS, (BATCH,), replace=False)
        return svi.update(state, *(x[rows] for x in data))

    @jax.jit
    def steps(state: Any, keys: Any, data: tuple) -> Any:
        return jax.lax.scan(lambda state, key: step(state, key, data), state, keys)

    def seconds(count: int) -> float:
        keys = jax.random.split(jax.random.key(2), count)
        began = time.perf_counter()
        _, losses = jax.block_until_ready(steps(first, keys, (X, y)))
        assert jnp.isfinite(losses).all()
        return time.perf_counter() - began

    for count in (SHORT, LONG):
        seconds(count)
    return lambda: (seconds(LONG) - seconds(SHORT)) / (LONG - SHORT)


def measure(case: dict[str, Any], rounds: int, peer: str | None) -> dict[str, Any]:
    """Times of one case, in turns."""
    sides: dict[str, Any] = {"natural": ours(case), "adam": ours(case, natural=False)}
    if peer:
        sizes = {"rows": ROWS, "columns": COLUMNS, "batch": BATCH}
        gpjax = Peer.of_code("GPJax", peer, _PEER, case | sizes)
        sides["gpjax"] = lambda: gpjax([SHORT, LONG])
    times = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            times[name].append(side())
    found = case | {
        "seconds": {name: statistics.median(own) for name, own in times.items()},
        "load": os.getloadavg()[0],
    }
    pairs = {name: [a / b for a, b in zip(times["natural"], own, strict=True)] for name, own in times.items()}
    found["ratios"] = {name: statistics.median(own) for name, own in pairs.items() if name != "natural"}
    if peer:
        found["peer"] = gpjax.first
        gpjax.close()
    return found


def main() -> None:
    """Read the command line; every case has a process of its own, since precision is chosen once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inducing", type=int, nargs="*", default=[100, 500])
    parser.add_argument("--dtypes", nargs="*", default=["float32", "float64"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", help="a Python with gpjax")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(json.loads(arguments.case), arguments.rounds, arguments.peer)))
        return
    found = []
    for dtype in arguments.dtypes:
        for inducing in arguments.inducing:
            case = ["--case", json.dumps({"M": inducing, "dtype": dtype}), "--rounds", str(arguments.rounds)]
            case += ["--peer", arguments.peer] if arguments.peer else []
            ended = subprocess.run([sys.executable, __file__, *case], check=True, stdout=subprocess.PIPE, text=True)
            found.append(json.loads(ended.stdout))
            seconds = ", ".join(f"{name} {1e3 * t:.1f} ms" for name, t in found[-1]["seconds"].items())
            ratios = ", ".join(f"{ratio:.2f} times {name}'s" for name, ratio in found[-1]["ratios"].items())
            print(f"M {inducing}, {dtype}: {seconds}; natural takes {ratios}", flush=True)
            if arguments.output:
                options = ["--inducing", *arguments.inducing, "--dtypes", *arguments.dtypes]
                options += ["--rounds", arguments.rounds, *(["--peer", "PYTHON"] if arguments.peer else [])]
                keep(arguments.output, __file__, options, cases=found)


if __name__ == "__main__":
    main()
