"""Trains programs on all devices there are, for ``test_mesh``, which starts this in processes of its own.

python -m tests.inference.training.on_devices OUT --programs sparse deep --tables --precision float64
"""

import argparse
import json
import os
import runpy
import signal
import time
from functools import partial
from pathlib import Path

from gpzoo.inference import all_devices

if __name__ == "__main__":
    MESH = all_devices()

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from jax import lax, random
from numpyro.infer import SVI

from gpzoo.inducing.grid import InducingGrid
from gpzoo.inducing.initialisers import kmeans, unique_patches
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
from gpzoo.models import (
    convolutional_gp,
    deep_gp,
    deep_kernel_gp,
    gp_regression,
    inner_scales,
    invariant_convolutional_gp,
    invariant_gp,
    linear_layers,
    network_of,
    rotation,
)
from gpzoo.tables.arrays import ArrayTable
from tests.programs import relaxed

ROWS = 203


def columns(rng):
    X = rng.standard_normal((ROWS, 3))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.standard_normal(ROWS)


def images(rng):
    X = rng.uniform(size=(ROWS, 6, 6, 1))
    return X, np.argmax(X[:, :3, :3].mean((1, 3)), axis=-1)


def numbers(rng):
    X = rng.uniform(size=(ROWS, 6, 6, 1))
    return X, X[:, :3].mean((1, 2, 3)) + 0.1 * rng.standard_normal(ROWS)


def network():
    """Two convolutions and a layer: on a CPU its steps are taken from the host."""

    def init(key, shape):
        keys = random.split(key, 2)
        kernel, layer = random.normal(keys[0], (4, 1, 3, 3)) / 3, random.normal(keys[1], (4 * 36, 2)) / 12
        return (shape[0], 2), {"kernel": kernel, "layer": layer}

    def apply(params, X):
        h = lax.conv(jnp.moveaxis(X, 3, 1), params["kernel"], (1, 1), "SAME")
        return jnp.tanh(h).reshape(len(X), -1) @ params["layer"]

    return network_of((init, apply))


def deep(rng):
    X, y = columns(rng)
    layers = tuple(np.asarray(W) for W in linear_layers(X, [3, 2]))
    return partial(deep_gp, layers=layers), {"initial_scale": inner_scales(layers)}, (X, y)


#: Name -> the program, the options of its guide with the inducing variables first, and its data.
PROGRAMS = {
    "sparse": lambda rng: (gp_regression, kmeans(10), {}, columns(rng)),
    "deep": lambda rng: (lambda p, o, d: (p, kmeans(10), o, d))(*deep(rng)),
    "convolutional": lambda rng: (
        partial(convolutional_gp, patch_shape=(3, 3), num_classes=3), unique_patches(10), {}, images(rng)
    ),
    "invariant": lambda rng: (
        partial(invariant_gp, view=rotation(num_views=3, num_fixed=5)), unique_patches(10), {}, numbers(rng)
    ),
    "invariant convolutional": lambda rng: (
        partial(invariant_convolutional_gp, view=rotation(num_views=3, num_fixed=5), patch_shape=(3, 3)),
        unique_patches(10), {}, numbers(rng),
    ),
    "deep kernel": lambda rng: (
        partial(deep_kernel_gp, network=network(), num_outputs=3), InducingGrid(16), {}, images(rng)
    ),
}  # fmt: skip


def training(name, way="resident", precision="float64"):
    """The program, NumPyro's object, and the data."""
    program, inducing, guide, data = PROGRAMS[name](np.random.default_rng(0))
    data = tuple(np.asarray(x, precision if x.dtype.kind == "f" else np.int32) for x in data)
    # By Adam's own 1e-8 a gradient that is rounding and nothing else makes a whole step, of either sign. With longer
    # steps a hundred of them carry the rounding of float32 over the kinks of interpolated images and features.
    optimiser = relaxed(optax.adam(0.002, eps=0.1))
    svi = SVI(program, InducingGuide(program, inducing, **guide), optimiser, GaussianProcessELBO())
    return svi, (ArrayTable(*data, block_size=16),) if way == "table" else data


def train(name, mesh, *, way="resident", precision="float64", steps=100, batch_size=40, **options):
    """One training of a program: on minibatches of arrays or a table, or on all rows."""
    svi, data = training(name, way, precision)
    batch_size = None if way == "all" else batch_size
    with jax.numpy_dtype_promotion("standard"):
        return fit(random.key(0), svi, steps, *data, batch_size=batch_size, mesh=mesh, progress=False, **options)


def flat(trained):
    """Bound and parameters by name."""
    leaves = jax.tree_util.tree_leaves_with_path(dict(trained.params))
    return {"losses": trained.losses} | {jax.tree_util.keystr(path): np.asarray(x) for path, x in leaves}


def differences(one, two):
    """The largest difference of the bounds and that of a parameter, each relative to its largest number."""
    bound = np.max(np.abs(one["losses"] - two["losses"])) / np.max(np.abs(one["losses"]))
    params = [np.max(np.abs(one[k] - two[k])) / max(1.0, np.max(np.abs(one[k]))) for k in one if k != "losses"]
    return float(bound), float(max(params))


def exchanged(mesh):
    """What a step of sparse regression exchanges, and what it should."""
    scale = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "scale.py"))
    params, text = scale["step_of"](*training("sparse"), 40, mesh)
    return {"exchanged": scale["communication"](text), "formula": scale["formula"](params, 10)}


def main():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--programs", nargs="+", default=list(PROGRAMS))
    parser.add_argument("--ways", nargs="+", default=["resident"])
    parser.add_argument("--precision", default="float64")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--die", type=int, nargs=2, help="which process ends itself after which step")
    parser.add_argument("--how", default="killed")
    parser.add_argument("--alone", action="store_true", help="without a mesh")
    parser.add_argument("--differ", action="store_true", help="every process has data of its own")
    parser.add_argument("--bytes", action="store_true")
    given = parser.parse_args()
    if given.precision == "float64":
        numpyro.enable_x64()
    if given.differ:
        PROGRAMS["sparse"] = lambda rng: (gp_regression, kmeans(10), {}, columns(rng.spawn(2)[jax.process_index()]))

    def perhaps_die(step, seconds, params):
        if given.die and [jax.process_index(), step] == given.die:
            (given.out / "died").write_text(str(time.time()))
            if given.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("one process has had enough")

    for name in given.programs:
        for way in given.ways:
            checkpoint = given.checkpoint and given.checkpoint / f"{name} {way}"
            options = {"checkpoint": checkpoint, "checkpoint_seconds": 0.0} if checkpoint else {}
            options |= {"callback": perhaps_die, "callback_steps": 10} if given.die else {}
            mesh = None if given.alone else MESH
            found = train(name, mesh, way=way, precision=given.precision, steps=given.steps, **options)
            if jax.process_index() == 0:
                np.savez(given.out / f"{name} {way}.npz", **flat(found))
    if given.bytes:
        (given.out / "bytes.json").write_text(json.dumps(exchanged(MESH)))


if __name__ == "__main__":
    main()
