"""Seconds and memory of one training step of doubly stochastic deep GPs, ours beside GPflux's and GPyTorch's.

    python benchmarks/deep.py [--layers 2 3 5] [--batches 1000 10000] [--dtypes float32 float64] [--pairs 15]
    python benchmarks/deep.py --gpflux-python PATH --gpytorch-python PATH   # peers in environments of their own
    python benchmarks/deep.py --costs                                       # ours alone, against L, M, B and draws

All take the same model and data through forward pass, backward pass and Adam: RBF kernels with a lengthscale per
dimension, one kernel and one set of inducing inputs for all outputs of a layer, identity means and no noise in the
inner layers, a full whitened posterior, a Gaussian likelihood, one draw. Ours and GPflux's steps are those of a
compiled loop. GPyTorch runs as its users run it, eagerly, and shares a layer's kernel in its parameters only, not in
its arithmetic.

The bounds at the start are compared, which shows that the models are the same: inner layers start with so little
variance that draws hardly move them.
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from peer import MIN_SECONDS, PEERS, Timed, add_options, import_library, looped, measure, pythons, table, work

NUM_DATA = 100_000
#: Where training starts: inner kernels as GPflux's own architecture has them, and the scale of their ``q(u)``.
INNER_VARIANCE, INNER_SCALE, LENGTHSCALE, NOISE_VARIANCE = 1e-6, 1e-5, 2.0, 0.05
#: Ours for kernels of variance 1. The peers' is absolute, which for the inner kernels is more.
JITTER = {"float32": 1e-5, "float64": 1e-6}


@dataclass(frozen=True)
class Size:
    """A model and a minibatch: ``layers`` GPs on top of each other, inner ones as wide as the inputs."""

    layers: int
    batch: int
    inducing: int = 100
    width: int = 8
    draws: int = 1


def data(size: Size, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, outputs, inducing inputs of every layer, and a mean of the last layer's ``q(u)``."""
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(size.batch, size.width)), rng.normal(size=(size.inducing, size.width))
    h = X @ rng.normal(size=(size.width, 2)) / math.sqrt(size.width)
    y = np.tanh(2 * h[:, 0]) * np.cos(h[:, 1]) + 0.2 * rng.normal(size=size.batch)
    q_mu = 0.5 * np.sin(0.37 * np.arange(size.inducing))
    return X.astype(dtype), ((y - y.mean()) / y.std()).astype(dtype), Z.astype(dtype), q_mu.astype(dtype)


def gpzoo_steps(size: Size, dtype: str) -> Timed:
    """Training steps of gpzoo."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import optax
    from numpyro.infer import SVI

    from gpzoo import InducingPoints
    from gpzoo.inference import GaussianProcessELBO, InducingGuide
    from gpzoo.inference.programs.gp_sites import Marginals, representing
    from gpzoo.models import deep_gp, inner_scales, linear_layers
    from gpzoo.models.parameters import gaussian, rbf

    numpyro.enable_x64(dtype == "float64")
    X, y, Z, q_mu = map(jnp.asarray, data(size, dtype))
    layers = linear_layers(X, [size.width] * (size.layers - 1))

    def kernel(name: str, h: Any) -> Any:
        return rbf(name, h, variance=1.0 if name == "f" else INNER_VARIANCE, lengthscale=LENGTHSCALE)

    def model(X: jax.Array, y: jax.Array, layers: tuple[jax.Array, ...]) -> None:
        likelihood = partial(gaussian, noise_variance=NOISE_VARIANCE)
        deep_gp(X, y, layers=layers, likelihood=likelihood, kernel=kernel, layer_noise=None, num_data=NUM_DATA)

    scales = inner_scales(layers, INNER_SCALE)
    guide = InducingGuide(model, InducingPoints(Z), whiten=True, initial_scale=scales)
    svi = SVI(model, guide, optax.adam(1e-3), GaussianProcessELBO(num_particles=size.draws))
    params = guide.init_params(jax.random.key(0), X, y, layers) | {"f_mean": q_mu}

    @jax.jit
    def init(params: dict, X: jax.Array, y: jax.Array, layers: tuple[jax.Array, ...]) -> Any:
        with representing(Marginals()):
            return svi.init(jax.random.key(0), X, y, layers, init_params=params)

    state = init(params, X, y, layers)
    del params
    steps = looped(lambda state: svi.update(state, X, y, layers), state)
    return Timed.loop(steps, f"jax {jax.__version__} on {jax.devices()[0].device_kind}")


def gpflux_steps(size: Size, dtype: str) -> Timed:
    """The same steps of GPflux."""
    import gpflow
    import gpflux
    import tensorflow as tf

    gpflow.config.set_default_float(np.dtype(dtype).type)
    gpflow.config.set_default_jitter(JITTER[dtype])
    tf.keras.backend.set_floatx(dtype)
    X, y, Z, q_mu = data(size, dtype)
    layers = []
    for i in range(size.layers):
        last = i == size.layers - 1
        lengthscales = np.full(size.width, LENGTHSCALE, dtype)
        base = gpflow.kernels.SquaredExponential(1.0 if last else INNER_VARIANCE, lengthscales)
        kernel = gpflow.kernels.SharedIndependent(base, 1 if last else size.width)
        inducing = gpflow.inducing_variables.SharedIndependentInducingVariables(
            gpflow.inducing_variables.InducingPoints(Z)
        )
        mean = gpflow.mean_functions.Zero() if last else gpflow.mean_functions.Identity()
        layers.append(gpflux.layers.GPLayer(kernel, inducing, NUM_DATA, mean, name=f"layer_{i}"))
    for layer in layers[:-1]:
        layer.q_sqrt.assign(INNER_SCALE * layer.q_sqrt)
    layers[-1].q_mu.assign(q_mu[:, None])
    model = gpflux.models.DeepGP(layers, gpflow.likelihoods.Gaussian(NOISE_VARIANCE))
    X, y = tf.constant(X), tf.constant(y[:, None])
    optimiser = tf.keras.optimizers.Adam(1e-3)

    @tf.function
    def updates(count: Any) -> Any:
        loss = tf.zeros((), dtype)
        for _ in tf.range(count):
            with tf.GradientTape() as tape:
                loss = -model.elbo((X, y))
            variables = model.trainable_variables
            optimiser.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    versions = f"gpflux {gpflux.__version__}, gpflow {gpflow.__version__}, tensorflow {tf.__version__}"
    return Timed.loop(lambda count: -float(updates(tf.constant(count))), versions)


def gpytorch_steps(size: Size, dtype: str) -> Timed:
    """The same steps of GPyTorch."""
    import gpytorch
    import torch
    from gpytorch.models.deep_gps import DeepGP, DeepGPLayer
    from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, dtype))
    X, y, Z, q_mu = map(torch.tensor, data(size, dtype))

    class Layer(DeepGPLayer):
        def __init__(self, last: bool) -> None:
            outputs = torch.Size([] if last else [size.width])
            posterior = CholeskyVariationalDistribution(size.inducing, outputs)
            super().__init__(
                VariationalStrategy(self, Z.clone(), posterior, jitter_val=JITTER[dtype]),
                input_dims=size.width,
                output_dims=None if last else size.width,
            )
            # Otherwise the first call puts the prior in place of what is set here.
            self.variational_strategy.variational_params_initialized.fill_(1)
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=size.width))
            self.covar_module.outputscale = 1.0 if last else INNER_VARIANCE
            self.covar_module.base_kernel.lengthscale = LENGTHSCALE
            with torch.no_grad():
                if last:
                    posterior.variational_mean.copy_(q_mu)
                else:
                    posterior.chol_variational_covar.mul_(INNER_SCALE)

        def forward(self, h: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            if self.output_dims is None:
                mean = h.new_zeros(h.shape[:-1])
            elif h.ndim > 2:
                # The inputs are repeated for every output, and output d of the identity reads dimension d.
                mean = torch.diagonal(h, dim1=-3, dim2=-1).mT
            else:
                mean = h.mT
            return gpytorch.distributions.MultivariateNormal(mean, self.covar_module(h))

    class Deep(DeepGP):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(*(Layer(i == size.layers - 1) for i in range(size.layers)))
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
            self.likelihood.noise = NOISE_VARIANCE

        def forward(self, X: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return self.layers(X)

    model = Deep()
    bound = gpytorch.mlls.VariationalELBO(model.likelihood, model, num_data=NUM_DATA)
    objective = gpytorch.mlls.DeepApproximateMLL(bound)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()

    def step() -> float:
        with gpytorch.settings.num_likelihood_samples(size.draws):
            optimiser.zero_grad()
            loss = -objective(model(X), y)
            loss.backward()
            optimiser.step()
        return -NUM_DATA * loss.item()

    return Timed.of(step, f"gpytorch {gpytorch.__version__}, torch {torch.__version__}")


def compare(sizes: list[Size], dtypes: list[str], pairs: int, interpreters: dict[str, str]) -> None:
    """Print lines per size and precision, and for each peer the geometric mean of the ratios and the smallest."""
    ratios: dict[str, dict[str, float]] = {library: {} for library in interpreters if library in PEERS}
    for dtype in dtypes:
        for size in sizes:
            name = f"L {size.layers}, B {size.batch}, {dtype}"
            case = {"layers": size.layers, "batch": size.batch, "dtype": dtype}
            found = measure(__file__, case, interpreters, pairs)
            print(table(name, found), flush=True)
            for library, own in found["beside"].items():
                ratios[library][name] = own["seconds"]
    for library, own in ratios.items():
        mean, worst = statistics.geometric_mean(own.values()), min(own, key=own.get)
        print(f"{PEERS[library]}: {mean:.2f} times ours (geometric mean), at least {own[worst]:.2f} times ({worst})")
    print("; ".join(found["versions"].values()))


def costs(dtype: str, timings: int) -> None:
    """Print our seconds per step against layers, inducing inputs, minibatch and draws."""
    import_library("gpzoo")
    sweeps = {
        "layers": (1, 2, 3, 5),
        "inducing": (50, 100, 200, 500),
        "batch": (500, 1000, 2000, 5000, 10_000, 20_000),
        "draws": (1, 2, 5, 10),
    }
    for name, values in sweeps.items():
        for value in values:
            size = replace(Size(3, 1000), **{name: value})
            seconds = gpzoo_steps(size, dtype).seconds
            steps = math.ceil(MIN_SECONDS / seconds(3)[0])
            shape = f"L {size.layers}, M {size.inducing}, B {size.batch}, S {size.draws}"
            median = statistics.median(seconds(steps)[0] for _ in range(timings))
            print(f"{shape}, {dtype}: {median:.4f} s", flush=True)


STEPS = {
    "gpzoo": lambda case: gpzoo_steps(Size(case["layers"], case["batch"]), case["dtype"]),
    "gpflux": lambda case: gpflux_steps(Size(case["layers"], case["batch"]), case["dtype"]),
    "gpytorch": lambda case: gpytorch_steps(Size(case["layers"], case["batch"]), case["dtype"]),
}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", nargs="+", type=int, default=[2, 3, 5], help="in total, the last one included")
    parser.add_argument("--batches", nargs="+", type=int, default=[1000, 10_000])
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "float64"], default=["float32", "float64"])
    parser.add_argument("--pairs", type=int, default=15, help="timings of each library")
    parser.add_argument("--costs", action="store_true")
    add_options(parser, ["gpflux", "gpytorch"])
    arguments = parser.parse_args()
    if arguments.costs:
        for dtype in arguments.dtypes:
            costs(dtype, arguments.pairs)
        return
    sizes = [Size(layers, batch) for batch in arguments.batches for layers in arguments.layers]
    compare(sizes, arguments.dtypes, arguments.pairs, pythons(arguments, ["gpflux", "gpytorch"]))


if __name__ == "__main__":
    work(STEPS) or main()
