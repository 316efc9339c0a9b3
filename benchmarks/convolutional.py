"""Seconds and memory of one training step of the convolutional paper's models, ours beside GPflow's.

    python benchmarks/convolutional.py [--sizes rectangles mnist-100 ...] [--dtypes float32 float64] [--pairs 15]
    python benchmarks/convolutional.py --gpflow-python PATH   # GPflow in an environment of its own, or GPFLOW_PYTHON
    python benchmarks/convolutional.py --costs                # ours alone, against patches, inducing patches, minibatch

Both libraries take the same model and data through forward pass, backward pass and Adam, in turns, each in a compiled
loop of steps: a training is one, and buffers are found once in it. The bounds at the start are compared, which shows
that the models are the same.

A step is also held against the arithmetic it cannot do without at the rates this machine has: the kernel's inner
products and exponentials once (the diagonal's once per pair of patches), the products of the derivatives, and the
products with the inducing covariances. The rest of that time is overhead.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from peer import Timed, add_options, import_library, looped, measure, pythons, table, work

NUM_DATA = 60_000


@dataclass(frozen=True)
class Size:
    """A model and a minibatch: ``patch`` 0 is the RBF kernel of whole images."""

    batch: int
    inducing: int
    patch: int
    classes: int
    side: int = 28

    @property
    def views(self) -> int:
        """Patches per image."""
        return (self.side - self.patch + 1) ** 2

    def limit(self, flops: float, exps: float) -> float:
        """Seconds of the step's arithmetic at these rates per second (double-sum models)."""
        B, M, P, E, D = self.batch, self.inducing, self.views, self.patch**2, self.classes if self.classes > 2 else 1
        cross, square = B * P * M, B * P * P / 2
        products = 2 * E * (2 * cross + square) + 3 * 2 * B * M * M * (D + 1) + M**3
        return products / flops + (cross + square) / exps


SIZES = {
    "rectangles": Size(100, 16, 3, 2),
    "mnist-32": Size(32, 750, 5, 10),
    "mnist-100": Size(100, 750, 5, 10),
    "mnist-200": Size(200, 750, 5, 10),
    "mnist-rbf": Size(200, 750, 0, 10),
}


def data(size: Size) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images of strokes, labels, inducing inputs that are distinct patches or images, and a mean of ``q(u)``."""
    rng = np.random.default_rng(0)
    grid = (np.arange(size.side) + 0.5) / size.side
    count = max(size.batch, 100 if size.patch else size.inducing)
    ends = rng.uniform(0.15, 0.85, size=(count, 2, 2))
    X = np.zeros((count, size.side, size.side))
    for t in np.linspace(0, 1, 15):
        across, down = ((1 - t) * ends[:, 0] + t * ends[:, 1]).T[:, :, None]
        blob = np.exp(-((grid - across) ** 2)[:, None, :] / 0.004 - ((grid - down) ** 2)[:, :, None] / 0.004)
        X = np.maximum(X, blob)
    X[X < 0.05] = 0
    y = rng.integers(size.classes, size=count)
    if size.patch:
        windows = np.lib.stride_tricks.sliding_window_view(X, (size.patch, size.patch), axis=(1, 2))
        windows = np.unique(windows.reshape(-1, size.patch**2), axis=0)
        Z = windows[rng.choice(len(windows), size.inducing, replace=False)]
    else:
        Z = X[: size.inducing].reshape(size.inducing, -1)
    D = size.classes if size.classes > 2 else 1
    q_mu = 0.5 * np.sin(0.37 * np.arange(size.inducing)[:, None] + 1.3 * np.arange(D))
    return X[: size.batch], y[: size.batch], Z, q_mu


def gpzoo_steps(size: Size, dtype: str) -> Timed:
    """Training steps of gpzoo."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import optax
    from numpyro.infer import SVI

    from gpzoo import InducingPatches, InducingPoints
    from gpzoo.inference import GaussianProcessELBO, InducingGuide
    from gpzoo.inference.programs.gp_sites import Marginals, representing
    from gpzoo.models import convolutional_gp, gp_classification

    numpyro.enable_x64(dtype == "float64")
    X, y, Z, q_mu = data(size)
    settings: dict[str, Any] = {"num_classes": size.classes, "num_data": NUM_DATA}
    if size.patch:
        model, inducing = convolutional_gp, InducingPatches(jnp.asarray(Z, dtype))
        settings |= {"patch_shape": (size.patch, size.patch), "lengthscale": 1.5, "white": 1e-12}
    else:
        X, model, inducing = X.reshape(len(X), -1), gp_classification, InducingPoints(jnp.asarray(Z, dtype))
    X, y = jnp.asarray(X[..., None] if size.patch else X, dtype), jnp.asarray(y)
    guide = InducingGuide(model, inducing, initial_scale=0.5)
    svi = SVI(model, guide, optax.adam(1e-3), GaussianProcessELBO())
    params = guide.init_params(jax.random.key(0), X, y, model_kwargs=settings)
    params["f_mean"] = jnp.asarray(q_mu[:, 0] if size.classes == 2 else q_mu, dtype)

    @jax.jit
    def init(params: dict, X: jax.Array, y: jax.Array) -> Any:
        with representing(Marginals()):
            return svi.init(jax.random.key(0), X, y, init_params=params, **settings)

    state = init(params, X, y)
    del params
    steps = looped(lambda state: svi.update(state, X, y, **settings), state)
    return Timed.loop(steps, f"jax {jax.__version__} on {jax.devices()[0].device_kind}")


def gpflow_steps(size: Size, dtype: str) -> Timed:
    """The same steps of GPflow."""
    import gpflow
    import tensorflow as tf

    gpflow.config.set_default_float(np.dtype(dtype).type)
    gpflow.config.set_default_jitter(1e-6 if dtype == "float64" else 1e-4)
    X, y, Z, q_mu = data(size)
    X, Z = X.reshape(len(X), -1).astype(dtype), Z.astype(dtype)
    likelihood = gpflow.likelihoods.MultiClass(size.classes) if size.classes > 2 else gpflow.likelihoods.Bernoulli()
    if size.patch:
        base = gpflow.kernels.SquaredExponential(lengthscales=1.5)
        kernel = gpflow.kernels.Convolutional(base, [size.side] * 2, [size.patch] * 2)
        inducing = gpflow.inducing_variables.InducingPatches(Z)
    else:
        kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(X.shape[1], dtype))
        inducing = gpflow.inducing_variables.InducingPoints(Z)
    settings = {"num_latent_gps": q_mu.shape[1], "whiten": True, "num_data": NUM_DATA}
    model = gpflow.models.SVGP(kernel, likelihood, inducing, **settings)
    model.q_mu.assign(q_mu.astype(dtype))
    model.q_sqrt.assign(0.5 * model.q_sqrt)
    batch = tf.constant(X), tf.constant(y[:, None].astype(dtype))
    optimiser = tf.keras.optimizers.Adam(1e-3)

    @tf.function
    def updates(count: Any) -> Any:
        loss = tf.zeros((), dtype)
        for _ in tf.range(count):
            with tf.GradientTape() as tape:
                loss = model.training_loss(batch)
            variables = model.trainable_variables
            optimiser.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    versions = f"gpflow {gpflow.__version__}, tensorflow {tf.__version__}"
    return Timed.loop(lambda count: -float(updates(tf.constant(count))), versions)


def rates(dtype: str) -> tuple[float, float]:
    """Floating-point operations of a large matrix product and exponentials, both per second."""
    import jax
    import jax.numpy as jnp
    import numpyro

    numpyro.enable_x64(dtype == "float64")
    A, v = jnp.ones((2048, 2048), dtype), jnp.linspace(-1, 0, 2**22, dtype=dtype)
    product, exponential = jax.jit(lambda A: A @ A), jax.jit(lambda v: jnp.exp(v).reshape(-1, 64).sum(1))

    def best(function: Callable, argument: Any) -> float:
        function(argument).block_until_ready()
        times = []
        for _ in range(10):
            start = time.perf_counter()
            function(argument).block_until_ready()
            times.append(time.perf_counter() - start)
        return min(times)

    return 2 * 2048**3 / best(product, A), v.size / best(exponential, v)


def compare(names: list[str], dtypes: list[str], pairs: int, interpreters: dict[str, str]) -> None:
    """Print lines per size and precision."""
    for dtype in dtypes:
        flops, exps = rates(dtype)
        print(f"{dtype}: {flops / 1e9:.0f} GFLOP/s in a large product, {exps / 1e9:.2f} billion exponentials a second")
        for name in names:
            found = measure(__file__, {"size": name, "dtype": dtype}, interpreters, pairs)
            print(table(f"{name}, {dtype}", found), flush=True)
            if SIZES[name].patch:
                limit = SIZES[name].limit(flops, exps)
                print(f"  {found['seconds']['gpzoo'] / limit:.1f} times the seconds of the arithmetic", flush=True)
    print("; ".join(found["versions"].values()))


def costs(dtype: str, steps: int) -> None:
    """Print our seconds per step against patches, inducing patches and minibatch."""
    import_library("gpzoo")
    base = {"batch": 100, "inducing": 250, "patch": 5, "classes": 10, "side": 28}
    sweeps = {"side": (12, 20, 28, 36), "inducing": (100, 250, 500, 750), "batch": (32, 100, 200)}
    for name, values in sweeps.items():
        for value in values:
            size = Size(**{**base, name: value})
            made = gpzoo_steps(size, dtype)
            median = statistics.median(made.seconds(1)[0] for _ in range(steps))
            shape = f"P {size.views}, M {size.inducing}, B {size.batch}"
            print(f"{shape}, {dtype}: {median:.4f} s", flush=True)


STEPS = {
    "gpzoo": lambda case: gpzoo_steps(SIZES[case["size"]], case["dtype"]),
    "gpflow": lambda case: gpflow_steps(SIZES[case["size"]], case["dtype"]),
}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "float64"], default=["float32", "float64"])
    parser.add_argument("--pairs", type=int, default=15, help="timings of each library")
    parser.add_argument("--costs", action="store_true")
    add_options(parser, ["gpflow"])
    arguments = parser.parse_args()
    if arguments.costs:
        for dtype in arguments.dtypes:
            costs(dtype, arguments.pairs)
        return
    compare(arguments.sizes, arguments.dtypes, arguments.pairs, pythons(arguments, ["gpflow"]))


if __name__ == "__main__":
    work(STEPS) or main()
