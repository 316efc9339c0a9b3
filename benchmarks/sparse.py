"""Seconds and memory of one training step of sparse regression, beside GPJax, GPflow and GPyTorch.

    python benchmarks/sparse.py [--inducing 20 100 500] [--ways adam natural] [--dtypes float32 float64] [--pairs 7]
    python benchmarks/sparse.py --gpjax-python PATH --gpflow-python PATH --gpytorch-python PATH

An RBF with a lengthscale for each of 8 inputs, Adam for everything or natural gradients for ``q(u)`` and Adam for the
rest. With 20 inducing inputs there are 200 rows, all in each step: what is left there is dispatch. Elsewhere there are
10,000 rows in minibatches of 1,000.

GPJax trains in a loop on the device, which is compiled at every call: a step is the difference of a long and a short
call over that of their steps, with minibatches drawn with replacement. Ours is such a loop beside it (``loop``). Beside
the others, which are called once a step, ours is too, and all take the same rows again and again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from peer import Timed, add_options, measure, pythons, table, work

COLUMNS = 8
#: Steps of the short call and of the long one, by inducing inputs: the difference takes seconds, as compilation does.
SHORT, LONG = 20, {20: 10_020, 100: 1_020, 500: 220}
WAYS = ("adam", "natural")


def data(case: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, int]:
    """Inputs, outputs, and rows of a minibatch."""
    rows, batch = (200, 200) if case["inducing"] <= 20 else (10_000, 1_000)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, COLUMNS))
    y = np.sin(X @ rng.standard_normal(COLUMNS) / COLUMNS**0.5) + 0.1 * rng.standard_normal(rows)
    return X.astype(case["dtype"]), y.astype(case["dtype"]), batch


def looped(run: Callable[[int], Any], inducing: int, versions: str) -> Timed:
    """Steps of a loop whose call also has other work: only whole calls are timed, whatever number is asked for."""
    long = LONG[inducing]

    def seconds(count: int) -> np.ndarray:
        began = np.array([time.perf_counter(), time.process_time()])
        losses = np.asarray(run(count))
        passed = np.array([time.perf_counter(), time.process_time()]) - began
        if not np.isfinite(losses).all():
            raise FloatingPointError("The bound is not finite: what was timed is no training.")
        return passed

    for count in (SHORT, long):
        seconds(count)
    return Timed(lambda _: tuple(((seconds(long) - seconds(SHORT)) / (long - SHORT)).tolist()), versions)


def gpzoo_steps(case: Mapping[str, Any]) -> Timed:
    """Training steps of gpzoo."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import optax
    from numpyro.infer import SVI

    from gpzoo import InducingPoints
    from gpzoo.inference import GaussianProcessELBO, InducingGuide, NaturalGradients
    from gpzoo.models import gp_regression

    numpyro.enable_x64(case["dtype"] == "float64")
    X, y, batch = data(case)
    X, y, rows = jnp.asarray(X), jnp.asarray(y), len(X)
    guide = InducingGuide(gp_regression, InducingPoints(X[: case["inducing"]]))
    adam = optax.adam(0.01)
    optimizer = NaturalGradients(adam, guide, 0.1) if case["way"] == "natural" else adam
    svi = SVI(gp_regression, guide, optimizer, GaussianProcessELBO(), num_data=rows)
    state = svi.init(jax.random.key(1), X[:batch], y[:batch])
    versions = f"jax {jax.__version__} on {jax.devices()[0].device_kind}"

    if case["loop"]:

        def step(state: Any, key: Any, data: tuple) -> tuple[Any, Any]:
            if batch < rows:
                chosen = jax.random.randint(key, (batch,), 0, rows)
                data = tuple(x[chosen] for x in data)
            return svi.update(state, *data)

        @jax.jit
        def steps(state: Any, keys: Any, data: tuple) -> Any:
            return jax.lax.scan(lambda state, key: step(state, key, data), state, keys)

        return looped(
            lambda count: steps(state, jax.random.split(jax.random.key(2), count), (X, y))[1],
            case["inducing"],
            versions,
        )

    update = jax.jit(svi.update, donate_argnums=0)
    X, y = X[:batch], y[:batch]

    def once() -> float:
        nonlocal state
        state, loss = update(state, X, y)
        return -float(loss)

    return Timed.of(once, versions)


def gpjax_steps(case: Mapping[str, Any]) -> Timed:
    """The same steps of GPJax, whose natural gradients are those of variables that are not whitened."""
    import gpjax
    import jax
    import jax.numpy as jnp
    import optax

    jax.config.update("jax_enable_x64", case["dtype"] == "float64")
    X, y, batch = data(case)
    rows = gpjax.Dataset(X=jnp.asarray(X), y=jnp.asarray(y[:, None]))
    one = jnp.asarray(1.0, case["dtype"])
    kernel = gpjax.kernels.RBF(lengthscale=jnp.ones(COLUMNS, case["dtype"]), variance=one)
    prior = gpjax.gps.Prior(mean_function=gpjax.mean_functions.Zero(), kernel=kernel)
    posterior = prior * gpjax.likelihoods.Gaussian(obs_stddev=0.3 * one)
    natural, families = case["way"] == "natural", gpjax.variational_families
    family = families.VariationalGaussian if natural else families.WhitenedVariationalGaussian
    q = family(model=posterior, inducing_inputs=jnp.asarray(X[: case["inducing"]]))
    settings: dict[str, Any] = {"natgrad_lr": 0.1} if natural else {}
    settings |= {"batch_size": batch if batch < len(X) else -1, "verbose": False, "key": jax.random.key(1)}
    train = gpjax.fit_natgrads if natural else gpjax.fit

    def run(count: int) -> Any:
        bound = lambda model, rows: -gpjax.objectives.elbo(model, rows)  # noqa: E731
        return train(model=q, objective=bound, train_data=rows, optim=optax.adam(0.01), num_iters=count, **settings)[1]

    return looped(run, case["inducing"], f"gpjax {gpjax.__version__}, jax {jax.__version__}")


def gpflow_steps(case: Mapping[str, Any]) -> Timed:
    """The same steps of GPflow."""
    import gpflow
    import tensorflow as tf

    gpflow.config.set_default_float(np.dtype(case["dtype"]).type)
    gpflow.config.set_default_jitter(1e-6 if case["dtype"] == "float64" else 1e-4)
    X, y, batch = data(case)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(COLUMNS, case["dtype"]))
    model = gpflow.models.SVGP(kernel, gpflow.likelihoods.Gaussian(0.1), X[: case["inducing"]], num_data=len(X))
    X, y = tf.constant(X[:batch]), tf.constant(y[:batch, None])
    optimiser, own = tf.keras.optimizers.Adam(0.01), gpflow.optimizers.NaturalGradient(0.1)
    natural = case["way"] == "natural"
    if natural:
        gpflow.set_trainable(model.q_mu, False)
        gpflow.set_trainable(model.q_sqrt, False)
    loss = model.training_loss_closure((X, y), compile=False)

    @tf.function
    def update() -> Any:
        with tf.GradientTape() as tape:
            value = loss()
        variables = model.trainable_variables
        optimiser.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
        if natural:
            own.minimize(loss, [(model.q_mu, model.q_sqrt)])
        return value

    return Timed.of(lambda: -float(update()), f"gpflow {gpflow.__version__}, tensorflow {tf.__version__}")


def gpytorch_steps(case: Mapping[str, Any]) -> Timed:
    """The same steps of GPyTorch, by Adam."""
    import gpytorch
    import torch

    torch.set_default_dtype(getattr(torch, case["dtype"]))
    X, y, batch = data(case)
    Z, rows = torch.tensor(X[: case["inducing"]]), len(X)
    X, y = torch.tensor(X[:batch]), torch.tensor(y[:batch])

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            q = gpytorch.variational.CholeskyVariationalDistribution(len(Z))
            super().__init__(gpytorch.variational.VariationalStrategy(self, Z, q))
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=COLUMNS))

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model, likelihood = Model(), gpytorch.likelihoods.GaussianLikelihood()
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=rows)
    optimiser = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)

    def step() -> float:
        optimiser.zero_grad()
        loss = -objective(model(X), y)
        loss.backward()
        optimiser.step()
        return -rows * loss.item()

    return Timed.of(step, f"gpytorch {gpytorch.__version__}, torch {torch.__version__}")


def peers_of(case: Mapping[str, Any]) -> list[str]:
    """The peers that take such steps."""
    if case["loop"]:
        return ["gpjax"]
    return ["gpflow"] if case["way"] == "natural" else ["gpflow", "gpytorch"]


STEPS = {"gpzoo": gpzoo_steps, "gpjax": gpjax_steps, "gpflow": gpflow_steps, "gpytorch": gpytorch_steps}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inducing", type=int, nargs="*", choices=LONG, default=list(LONG))
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=WAYS)
    parser.add_argument("--dtypes", nargs="*", choices=["float32", "float64"], default=["float32", "float64"])
    parser.add_argument("--pairs", type=int, default=7)
    add_options(parser, ["gpjax", "gpflow", "gpytorch"])
    arguments = parser.parse_args()
    found = pythons(arguments, ["gpjax", "gpflow", "gpytorch"])
    for dtype in arguments.dtypes:
        for inducing in arguments.inducing:
            for way in arguments.ways:
                for loop in (True, False):
                    case = {"inducing": inducing, "dtype": dtype, "way": way, "loop": loop}
                    sides = {name: python for name, python in found.items() if name in ("gpzoo", *peers_of(case))}
                    name = f"M {inducing}, {way}, {'in a loop' if loop else 'step by step'}, {dtype}"
                    print(table(name, measure(__file__, case, sides, arguments.pairs)), flush=True)


if __name__ == "__main__":
    work(STEPS) or main()
