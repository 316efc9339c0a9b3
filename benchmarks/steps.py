"""Seconds per training step, ours beside GPflow's where GPflow is installed, as ratios from one run.

    python benchmarks/steps.py [--dtype float32|float64] [--repeats 20]

Both libraries run the same model on the same random data: forward, backward and an Adam update, compiled, one BLAS
thread for ours. They are timed in alternation, because a shared machine drifts by more than they differ; the ratio is
the median over pairs. Sizes: a sparse GP classifier of images (RBF with a lengthscale per pixel, robust-max), and the
weighted convolutional GP of the rectangles experiment.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import threadpoolctl
from numpyro.infer import SVI

from gpzoo import InducingPatches, InducingPoints
from gpzoo.inference import GaussianProcessELBO, InducingGuide
from gpzoo.inference.guides import representing
from gpzoo.models import convolutional_gp, gp_classification

SIZES = {
    "sparse, B 200, D 784, M 750, 10 outputs": {"batch": 200, "inducing": 750, "classes": 10, "patch": None},
    "convolutional, rectangles, B 100, 3x3, M 16": {"batch": 100, "inducing": 16, "classes": 2, "patch": (3, 3)},
}
NUM_DATA = 60_000


def data(size: dict, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random images, labels and inducing inputs."""
    rng = np.random.default_rng(0)
    X = (rng.uniform(size=(size["batch"], 28, 28, 1)) > 0.8).astype(dtype)
    y = rng.integers(0, size["classes"], size["batch"])
    width = 784 if size["patch"] is None else int(np.prod(size["patch"]))
    return X, y, rng.uniform(size=(size["inducing"], width)).astype(dtype)


def ours(size: dict, dtype: str) -> Callable[[], float]:
    """One training step of gpzoo."""
    X, y, Z = data(size, dtype)
    if size["patch"] is None:
        X = X.reshape(len(X), -1)
        inducing, settings = InducingPoints(Z), {"num_classes": size["classes"]}
        model = gp_classification
    else:
        inducing, settings = InducingPatches(Z), {"patch_shape": size["patch"]}
        model = convolutional_gp
    settings["num_data"] = NUM_DATA
    guide = InducingGuide(model, inducing)
    svi = SVI(model, guide, optax.adam(1e-3), GaussianProcessELBO())
    X, y = jnp.asarray(X), jnp.asarray(y)
    params = guide.init_params(jax.random.key(0), X, y, **settings)
    with representing("marginals"):
        state = svi.init(jax.random.key(0), X, y, init_params=params, **settings)
    update = jax.jit(lambda state, X, y: svi.update(state, X, y, **settings), donate_argnums=0)

    def step() -> float:
        nonlocal state
        state, loss = update(state, X, y)
        return float(loss)

    return step


def gpflow_step(size: dict, dtype: str) -> Callable[[], float]:
    """The same step of GPflow."""
    import gpflow
    import tensorflow as tf

    gpflow.config.set_default_float(np.dtype(dtype).type)
    gpflow.config.set_default_jitter(1e-6 if dtype == "float64" else 1e-4)
    X, y, Z = data(size, dtype)
    X = X.reshape(len(X), -1)
    if size["patch"] is None:
        kernel = gpflow.kernels.RBF(lengthscales=np.ones(784, dtype))
        inducing = gpflow.inducing_variables.InducingPoints(Z)
        likelihood = gpflow.likelihoods.MultiClass(size["classes"])
        outputs = size["classes"]
    else:
        kernel = gpflow.kernels.Convolutional(gpflow.kernels.RBF(), [28, 28], list(size["patch"]))
        inducing = gpflow.inducing_variables.InducingPatches(Z)
        likelihood = gpflow.likelihoods.Bernoulli()
        outputs = 1
    model = gpflow.models.SVGP(kernel, likelihood, inducing, num_latent_gps=outputs, whiten=True, num_data=NUM_DATA)
    batch = tf.constant(X), tf.constant(y[:, None].astype(dtype))
    optimiser = tf.keras.optimizers.Adam(1e-3)

    @tf.function
    def update() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = model.training_loss(batch)
        variables = model.trainable_variables
        optimiser.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return lambda: float(update())


def timed(step: Callable[[], float]) -> float:
    """Seconds of one step."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def main() -> None:
    """Print one line per size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    numpyro.enable_x64(arguments.dtype == "float64")
    try:
        import gpflow  # noqa: F401

        peer: Callable | None = gpflow_step
    except ImportError:
        peer = None
        print("GPflow is not installed: our times only.")
    print(f"{jax.devices()[0].device_kind}, {arguments.dtype}, medians of {arguments.repeats} steps")
    for name, size in SIZES.items():
        steps = [ours(size, arguments.dtype)] + ([peer(size, arguments.dtype)] if peer else [])
        with threadpoolctl.threadpool_limits(1, user_api="blas"):
            for step in steps:
                step(), step()
            times = [[timed(step) for step in steps] for _ in range(arguments.repeats)]
        line = f"{name}: ours {statistics.median(t[0] for t in times):.4f} s"
        if peer:
            ratio = statistics.median(t[1] / t[0] for t in times)
            line += f", GPflow {statistics.median(t[1] for t in times):.4f} s, ratio {ratio:.2f}"
        print(line)


if __name__ == "__main__":
    main()
