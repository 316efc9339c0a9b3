"""Seconds per training step of deep kernels, beside the bare network and beside GPyTorch's SVDKL layer.

    python benchmarks/deep_kernel.py [--columns 8 784] [--rows 1000 5000] [--gpytorch-python PATH] [--pairs 15]
    python benchmarks/deep_kernel.py --grids 16 64 256 1024

The network is d-1000-1000-500-50-c with c = 2 for 8 columns and 10 for 784, one GP on a grid of 64 points for each of
its features, softmax. Lines are on the whole, on the GPs alone, whose inputs are features, and on the network alone,
which is ours only. ``--grids`` shows the cost against grid points.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any

from peer import Timed, add_options, import_library, measure, pythons, table, work

#: What every case has unless it says otherwise: draws are of the functions, for the softmax.
CASE = {"rows": 1000, "columns": 8, "grid": 64, "draws": 10, "part": "whole", "dtype": "float32"}


def gpytorch_steps(case: Mapping[str, Any]) -> Timed:
    """Training steps of GPyTorch, eager as its users run it."""
    import gpytorch
    import numpy as np
    import torch

    case = CASE | case
    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, case["dtype"]))
    B, d, c = case["rows"], case["columns"], classes(case)
    grid, gp_only = case["grid"], case["part"] == "gp"
    widths = [d, 1000, 1000, 500, 50, c]
    layers = []
    for n, m in pairwise(widths):
        layers += [torch.nn.Linear(n, m), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers[:-1])
    rng = np.random.RandomState(0)
    X = torch.tensor(rng.standard_normal((B, c if gp_only else d)), dtype=torch.get_default_dtype())
    y = torch.tensor(rng.randint(0, c, B))

    class Layer(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            q = gpytorch.variational.CholeskyVariationalDistribution(grid, batch_shape=torch.Size([c]))
            inner = gpytorch.variational.GridInterpolationVariationalStrategy(
                self, grid_size=grid, grid_bounds=[(-1.0, 1.0)], variational_distribution=q
            )
            super().__init__(gpytorch.variational.IndependentMultitaskVariationalStrategy(inner, num_tasks=c))
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
            self.mean_module = gpytorch.means.ConstantMean()

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    class Model(gpytorch.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.gp = net, Layer()
            self.scale = gpytorch.utils.grid.ScaleToBounds(-1.0, 1.0)

        def forward(self, x: torch.Tensor) -> Any:
            h = x if gp_only else self.net(x)
            return self.gp(self.scale(h).transpose(-1, -2).unsqueeze(-1))

    model = Model()
    likelihood = gpytorch.likelihoods.SoftmaxLikelihood(num_features=c, num_classes=c)
    objective = gpytorch.mlls.VariationalELBO(likelihood, model.gp, num_data=60000)
    optimiser = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=1e-3)
    model.train(), likelihood.train()

    def step() -> float:
        with gpytorch.settings.num_likelihood_samples(case["draws"]):
            optimiser.zero_grad()
            loss = -objective(model(X), y)
            loss.backward()
            optimiser.step()
        return -float(loss)

    return Timed.of(step, f"gpytorch {gpytorch.__version__}, torch {torch.__version__}")._replace(bound=None)


def gpzoo_steps(case: Mapping[str, Any]) -> Timed:
    """Our compiled steps."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import numpyro
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

    case = CASE | case
    numpyro.enable_x64(case["dtype"] == "float64")
    B, d, c = case["rows"], case["columns"], classes(case)
    rng = np.random.RandomState(0)
    only_gps = case["part"] == "gp"
    X = jnp.asarray(rng.standard_normal((B, c if only_gps else d)), case["dtype"])
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
    update = jax.jit(lambda state, X, y: svi.update(state, X, y, **options), donate_argnums=0)

    def step() -> float:
        nonlocal state
        state, loss = update(state, X, y)
        return -float(loss)

    return Timed.of(step, f"jax {jax.__version__} on {jax.devices()[0].device_kind}")


def classes(case: Mapping[str, Any]) -> int:
    """Features of the network, and GPs."""
    return 2 if case["columns"] < 100 else 10


def compare(arguments: argparse.Namespace, interpreters: dict[str, str]) -> None:
    """The whole, and its parts."""
    for columns in arguments.columns:
        for rows in arguments.rows:
            for part in ("whole", "gp", "network"):
                case = {"rows": rows, "columns": columns, "draws": arguments.draws, "part": part}
                sides = {"gpzoo": interpreters["gpzoo"]} if part == "network" else interpreters
                found = measure(__file__, case, sides, arguments.pairs)
                print(table(f"d {columns}, c {classes(case)}, B {rows}, {part}", found), flush=True)


def against_grids(arguments: argparse.Namespace) -> None:
    """The whole step against grid points."""
    import_library("gpzoo")
    case = {"rows": max(arguments.rows), "columns": max(arguments.columns), "draws": arguments.draws}
    made = [gpzoo_steps(case | {"grid": size}) for size in arguments.grids]
    times = [[each.seconds(3)[0] for each in made] for _ in range(arguments.pairs)]
    for size, own in zip(arguments.grids, zip(*times, strict=True), strict=True):
        print(f"{size:5} points: {1e3 * statistics.median(own):.1f} ms", flush=True)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", type=int, nargs="*", default=[8, 784])
    parser.add_argument("--rows", type=int, nargs="*", default=[1000, 5000])
    parser.add_argument("--grids", type=int, nargs="*")
    parser.add_argument("--draws", type=int, default=CASE["draws"])
    parser.add_argument("--pairs", type=int, default=15)
    add_options(parser, ["gpytorch"])
    arguments = parser.parse_args()
    if arguments.grids:
        against_grids(arguments)
    else:
        compare(arguments, pythons(arguments, ["gpytorch"]))


STEPS = {"gpzoo": gpzoo_steps, "gpytorch": gpytorch_steps}

if __name__ == "__main__":
    work(STEPS) or main()
