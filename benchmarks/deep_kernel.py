"""Seconds per training step of deep kernels, beside the bare network and beside GPyTorch's SVDKL layer.

    python benchmarks/deep_kernel.py [--columns 8 784] [--rows 1000 5000] [--peer PYTHON] [--rounds 15]
    python benchmarks/deep_kernel.py --grids 16 64 256 1024

The network is d-1000-1000-500-50-c with c = 2 for 8 columns and 10 for 784, one GP on a grid of 64 points for each of
its features, softmax. ``--peer`` names a Python that has gpytorch: the same model is timed there, in pairs of steps
that alternate with ours, and the ratios are medians over pairs. ``--grids`` shows the cost against grid points.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from peer import Peer

#: Steps between two readings of the clock.
_STEPS = 3

_PEER = """
import json, sys, time
import numpy as np, torch, gpytorch
a = json.loads(sys.argv[1])
torch.manual_seed(0)
B, d, c, grid, gp_only = a["rows"], a["columns"], a["classes"], a["grid"], a["part"] == "gp"
widths = [d, 1000, 1000, 500, 50, c]
layers = []
for n, m in zip(widths[:-1], widths[1:]):
    layers += [torch.nn.Linear(n, m), torch.nn.ReLU()]
net = torch.nn.Sequential(*layers[:-1])
rng = np.random.RandomState(0)
X = torch.tensor(rng.standard_normal((B, c if gp_only else d)), dtype=torch.float32)
y = torch.tensor(rng.randint(0, c, B))

class Layer(gpytorch.models.ApproximateGP):
    def __init__(self):
        q = gpytorch.variational.CholeskyVariationalDistribution(grid, batch_shape=torch.Size([c]))
        inner = gpytorch.variational.GridInterpolationVariationalStrategy(
            self, grid_size=grid, grid_bounds=[(-1.0, 1.0)], variational_distribution=q)
        super().__init__(gpytorch.variational.IndependentMultitaskVariationalStrategy(inner, num_tasks=c))
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
        self.mean_module = gpytorch.means.ConstantMean()
    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

class Model(gpytorch.Module):
    def __init__(self):
        super().__init__()
        self.net, self.gp = net, Layer()
        self.scale = gpytorch.utils.grid.ScaleToBounds(-1.0, 1.0)
    def forward(self, x):
        h = x if gp_only else self.net(x)
        return self.gp(self.scale(h).transpose(-1, -2).unsqueeze(-1))

model = Model()
likelihood = gpytorch.likelihoods.SoftmaxLikelihood(num_features=c, num_classes=c)
objective = gpytorch.mlls.VariationalELBO(likelihood, model.gp, num_data=60000)
optimiser = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=1e-3)
model.train(), likelihood.train()

def step():
    with gpytorch.settings.num_likelihood_samples(a["draws"]):
        optimiser.zero_grad()
        loss = -objective(model(X), y)
        loss.backward()
        optimiser.step()

step()
print(json.dumps({"gpytorch": gpytorch.__version__, "torch": torch.__version__}), flush=True)
for line in sys.stdin:
    began = time.perf_counter()
    for _ in range(int(line)):
        step()
    print((time.perf_counter() - began) / int(line), flush=True)
"""


def ours(case: dict[str, Any]) -> Callable[[], float]:
    """Our compiled step as a function that takes some and returns the seconds for one."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from flax import nnx
    from numpyro.infer import SVI, Trace_ELBO

    from gpzoo.inducing.grid import InducingGrid
    from gpzoo.inference import GaussianProcessELBO, InducingGuide
    from gpzoo.likelihoods import Softmax
    from gpzoo.models.deep_kernel import deep_kernel_gp, network_classifier
    from gpzoo.models.modules import network_of
    from gpzoo.models.networks import FullyConnected
    from gpzoo.models.train_deep_kernel import BOUNDS

    B, d, c = case["rows"], case["columns"], case["classes"]
    rng = np.random.RandomState(0)
    only_gps = case["part"] == "gp"
    X = jnp.asarray(rng.standard_normal((B, c if only_gps else d)), jnp.float32)
    y = jnp.asarray(rng.randint(0, c, B), jnp.int32)
    network = (lambda X, training: X) if only_gps else network_of(FullyConnected(d, c, rngs=nnx.Rngs(0)))
    if case["part"] == "network":
        svi = SVI(partial(network_classifier, network=network), lambda *a, **k: None, optax.adam(1e-3), Trace_ELBO())
        params = None
    else:
        model = partial(deep_kernel_gp, network=network, likelihood=partial(Softmax, num_draws=case["draws"]))
        guide = InducingGuide(model, InducingGrid(case["grid"], BOUNDS))
        svi = SVI(model, guide, optax.adam(1e-3), GaussianProcessELBO())
        params = guide.init_params(jax.random.key(0), X, y)
    options = {"num_data": 60_000, "training": True}
    state = svi.init(jax.random.key(1), X, y, init_params=params, **options)
    update = jax.jit(lambda state, X, y: svi.update(state, X, y, **options)[0], donate_argnums=0)
    state = jax.block_until_ready(update(state, X, y))

    def steps() -> float:
        nonlocal state
        began = time.perf_counter()
        for _ in range(_STEPS):
            state = update(state, X, y)
        jax.block_until_ready(state)
        return (time.perf_counter() - began) / _STEPS

    return steps


def alternating(sides: list[Callable[[], float]], rounds: int) -> list[list[float]]:
    """Seconds of every side, one after another in every round, the first round left out."""
    found = [[side() for side in sides] for _ in range(rounds + 1)][1:]
    return [list(column) for column in zip(*found, strict=True)]


def ratio(a: list[float], b: list[float]) -> float:
    """Median over pairs."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def compare(arguments: argparse.Namespace) -> None:
    """The table of whole steps and of the GP part."""
    for columns in arguments.columns:
        classes = 2 if columns < 100 else 10
        for rows in arguments.rows:
            case = {"rows": rows, "columns": columns, "classes": classes, "grid": 64, "draws": arguments.draws}
            parts = ("whole", "network", "gp")
            sides = [ours(case | {"part": part}) for part in parts]
            named = [case | {"part": part} for part in ("whole", "gp")] if arguments.peer else []
            peers = [Peer.of_code("GPyTorch", arguments.peer, _PEER, each) for each in named]
            times = alternating(sides + [partial(peer, _STEPS) for peer in peers], arguments.rounds)
            medians = [statistics.median(t) for t in times]
            text = ", ".join(f"{part} {m * 1e3:.1f} ms" for part, m in zip(parts, medians, strict=False))
            text += f"; overhead of the GPs {100 * (ratio(times[0], times[1]) - 1):.0f} %"
            if peers:
                text += (
                    f"; GPyTorch {medians[3] * 1e3:.1f} and {medians[4] * 1e3:.1f} ms: "
                    f"whole {ratio(times[3], times[0]):.2f}, GPs {ratio(times[4], times[2]):.2f} times ours"
                )
            print(f"d {columns}, c {classes}, B {rows}: {text}", flush=True)
            for peer in peers:
                peer.close()


def against_grids(arguments: argparse.Namespace) -> None:
    """The whole step against grid points."""
    case = {"rows": max(arguments.rows), "columns": max(arguments.columns), "classes": 10, "draws": arguments.draws}
    sides = [ours(case | {"part": "whole", "grid": size}) for size in arguments.grids]
    times = alternating(sides, arguments.rounds)
    for size, own in zip(arguments.grids, times, strict=True):
        print(
            f"{size:5} points: {statistics.median(own) * 1e3:.1f} ms, {ratio(own, times[0]):.2f} of the first",
            flush=True,
        )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", type=int, nargs="*", default=[8, 784])
    parser.add_argument("--rows", type=int, nargs="*", default=[1000, 5000])
    parser.add_argument("--grids", type=int, nargs="*")
    parser.add_argument("--draws", type=int, default=10, help="of the functions, for the softmax")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--peer", help="a Python with gpytorch")
    arguments = parser.parse_args()
    import jax
    import scipy.linalg  # noqa: F401  its BLAS is JAX's: loaded before its threads can be limited
    import threadpoolctl

    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        against_grids(arguments) if arguments.grids else compare(arguments)
    print(f"jax {jax.__version__} on {jax.default_backend()}, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
