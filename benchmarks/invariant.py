"""Seconds and memory of a training step with sampled views, and the noise of its gradient against their number.

    python benchmarks/invariant.py [--rows 200] [--views 16] [--inducing 500] [--outputs 1 10] [--dtype float32]
    python benchmarks/invariant.py --gradients

Generated images, rotations. One output is the binary classifier (Pólya-Gamma with its network), more are the Gaussian
one. The same step without views is timed beside it, in alternation. ``--gradients`` prints, for the gradient of one
minibatch's bound with respect to the angle and the mean of q(u), the ratio of its standard deviation over views to
that with two views.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import threadpoolctl
from numpyro.infer import SVI

from gpzoo import random_subset, unique_patches
from gpzoo.inference import GaussianProcessELBO, InducingGuide
from gpzoo.models import invariant_classifier, invariant_gp, rotation


def images(rows: int, dtype: str) -> np.ndarray:
    """Smooth blobs, 28x28."""
    rng = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(np.arange(28), np.arange(28)), axis=-1)
    centres, widths = rng.uniform(6, 22, (rows, 3, 1, 1, 2)), rng.uniform(2, 5, (rows, 3, 1, 1))
    blobs = np.exp(-((grid - centres) ** 2).sum(-1) / widths**2)
    return blobs.max(axis=1)[..., None].astype(dtype)


def step_of(arguments: argparse.Namespace, outputs: int, views: int | None, inducing: int) -> tuple[Any, Any]:
    """A compiled update and its first state."""
    X = jnp.asarray(images(arguments.rows + inducing, arguments.dtype))
    view = None if views is None else rotation(45.0, num_views=views)
    if outputs == 1:
        model, y = partial(invariant_classifier, view=view, num_data=60_000), jnp.arange(len(X), dtype=jnp.int32) % 2
    else:
        model = partial(invariant_gp, view=view, num_outputs=outputs, num_data=60_000)
        y = jax.nn.one_hot(jnp.arange(len(X)) % outputs, outputs, dtype=X.dtype)
    guide = InducingGuide(model, (random_subset if view is None else unique_patches)(inducing))
    svi = SVI(model, guide, optax.adam(1e-3), GaussianProcessELBO())
    params = guide.init_params(jax.random.key(0), X, y)
    batch = X[: arguments.rows], y[: arguments.rows]
    state = svi.init(jax.random.key(1), *batch, init_params=params)
    update = jax.jit(lambda state, *batch: svi.update(state, *batch)[0], donate_argnums=0)
    return lambda state: update(state, *batch), state


def peak_megabytes() -> float:
    """The most memory that this process has held."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def time_steps(arguments: argparse.Namespace, outputs: int) -> None:
    """Time the step with views and the one without in alternation, and print both."""
    sides = [step_of(arguments, outputs, views, arguments.inducing) for views in (arguments.views, None)]
    steps, states = [list(side) for side in zip(*sides, strict=True)]
    seconds: list[list[float]] = [[], []]
    for i in range(arguments.rounds + 1):
        for side in (0, 1):
            began = time.perf_counter()
            for _ in range(3):
                states[side] = steps[side](states[side])
            jax.block_until_ready(states[side])
            if i:  # the first compiles
                seconds[side].append((time.perf_counter() - began) / 3)
    ours, without = map(statistics.median, seconds)
    print(
        f"N {arguments.rows}, S {arguments.views}, M {arguments.inducing}, {outputs} output(s), {arguments.dtype}: "
        f"{ours:.3f} s a step, {without:.3f} s without views; peak {peak_megabytes():,.0f} MB",
        flush=True,
    )


def gradient_noise(arguments: argparse.Namespace) -> None:
    """Print the standard deviation of gradients over views, relative to two views."""
    X = jnp.asarray(images(120, arguments.dtype))
    y = jnp.arange(120, dtype=jnp.int32) % 2
    loss, found = GaussianProcessELBO(), {}
    for views in (2, 4, 8, 16, 32):
        model = partial(invariant_classifier, view=rotation(45.0, num_views=views), num_data=1000, lengthscale=5.0)
        guide = InducingGuide(model, unique_patches(40))
        params = guide.init_params(jax.random.key(0), X, y)
        noise = jax.random.normal(jax.random.key(3), params["f_mean"].shape, X.dtype)
        params |= {"f_mean": noise, "f_scale": 0.5 * params["f_scale"]}

        def gradients(key: Any, moved: dict) -> dict:
            return jax.grad(lambda moved: loss.loss(key, params | moved, model, guide, X[:40], y[:40]))(moved)  # noqa: B023

        moved = {name: params[name] for name in ("angle", "f_mean")}
        keys = jax.random.split(jax.random.key(7), 200)
        draws = jax.jit(lambda keys: jax.lax.map(lambda key: gradients(key, moved), keys))(keys)  # noqa: B023
        found[views] = {name: float(np.sqrt(np.sum(np.var(draw, 0)))) for name, draw in draws.items()}
        row = ", ".join(f"{name} {value / found[2][name]:.3f}" for name, value in found[views].items())
        print(f"S {views:2}: {row}", flush=True)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--views", type=int, default=16)
    parser.add_argument("--inducing", type=int, default=500)
    parser.add_argument("--outputs", type=int, nargs="*", default=[1, 10])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--gradients", action="store_true", help="print the noise of gradients instead")
    arguments = parser.parse_args()
    numpyro.enable_x64(arguments.dtype == "float64")
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        if arguments.gradients:
            gradient_noise(arguments)
        else:
            for outputs in arguments.outputs:
                time_steps(arguments, outputs)
    print(f"jax {jax.__version__} on {jax.default_backend()}")


if __name__ == "__main__":
    main()
