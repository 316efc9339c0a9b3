"""Seconds and memory of one training step of a deep convolutional GP, ours beside TensorFlow code on GPflow.

    python benchmarks/deep_convolutional.py [--inducing 128 ...] [--dtypes float32 float64] [--pairs 15]
    python benchmarks/deep_convolutional.py --gpflow-python PATH   # GPflow in an environment of its own

MNIST's sizes: a layer of ten GPs on 5 x 5 patches at stride 2, whose draws are images of 12 x 12, below a weighted
convolution of 5 x 5 patches of all maps (Blomqvist, Kaski and Heinonen 2018). Both have full whitened posteriors, one
draw, the robust-max likelihood and Adam, in a compiled loop of steps. Ours draws the pixels of a map together, as the
posterior has them. Theirs does so in one case, by GPflow's joint conditional; in the other it draws them apart, as the
authors' code does, which is less work and no bound.

The bounds at the start are compared, which shows that the models are the same: the inner layer starts with so little
variance that draws hardly move it.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from peer import Timed, add_options, looped, measure, pythons, table, work
from recorded import keep

NUM_DATA, BATCH, MAPS, PATCH, SIDE = 60_000, 64, 10, 5, 12
#: The inner kernel's variance, and the scale of its ``q(u)``.
INNER_VARIANCE, INNER_SCALE, LENGTHSCALE = 1e-6, 1e-5, 2.0
JITTER = {"float32": 1e-5, "float64": 1e-6}


def data(inducing: int, dtype: str) -> dict[str, np.ndarray]:
    """Images, labels, inducing patches of both layers, and a mean of the last layer's ``q(u)``."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(BATCH, 28, 28)) * (rng.uniform(size=(BATCH, 28, 28)) < 0.3)
    q_mu = 0.5 * np.sin(0.37 * np.arange(inducing)[:, None] + 1.3 * np.arange(10))
    found = {"X": X, "below": rng.uniform(size=(inducing, PATCH**2)), "q_mu": q_mu}
    found["above"] = np.repeat(rng.uniform(size=(inducing, PATCH**2)), MAPS, axis=1)
    return {name: x.astype(dtype) for name, x in found.items()} | {"y": rng.integers(10, size=BATCH)}


def gpzoo_steps(inducing: int, dtype: str) -> Timed:
    """Training steps of gpzoo."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import optax
    from numpyro.infer import SVI

    from gpzoo import InducingPatches, InducingPoints
    from gpzoo.inference import GaussianProcessELBO, InducingGuide
    from gpzoo.inference.programs.gp_sites import Bound, representing
    from gpzoo.models import colour_patch_gp, convolutional_layer, deep_convolutional_gp, inner_scales, rbf

    numpyro.enable_x64(dtype == "float64")
    given = {name: jnp.asarray(x) for name, x in data(inducing, dtype).items()}
    X, y = given["X"][..., None], given["y"]
    kernel = partial(rbf, ard=False, variance=INNER_VARIANCE, lengthscale=LENGTHSCALE)
    layers = [partial(convolutional_layer, patch_shape=(PATCH, PATCH), maps=MAPS, stride=2, kernel=kernel)]
    last = partial(
        colour_patch_gp, patch_shape=(PATCH, PATCH), num_classes=10, lengthscale=LENGTHSCALE * MAPS**0.5, white=0.0
    )
    model = partial(deep_convolutional_gp, layers=layers, last=last, num_data=NUM_DATA)
    # Patches of all maps have one map after the other here, and one pixel after the other there.
    above = given["above"].reshape(inducing, PATCH**2, MAPS).swapaxes(1, 2).reshape(inducing, -1)
    start = {"layer_0": InducingPoints(given["below"]), "f": InducingPatches(above)}
    guide = InducingGuide(model, start, initial_scale=inner_scales(layers, INNER_SCALE) | {"f": 0.5})
    svi = SVI(model, guide, optax.adam(1e-3), GaussianProcessELBO())
    params = guide.init_params(jax.random.key(0), X, y) | {"f_mean": given["q_mu"]}

    @jax.jit
    def init(params: dict, X: jax.Array, y: jax.Array) -> Any:
        with representing(Bound()):
            return svi.init(jax.random.key(0), X, y, init_params=params)

    state = init(params, X, y)
    del params
    steps = looped(lambda state: svi.update(state, X, y), state)
    return Timed.loop(steps, f"jax {jax.__version__} on {jax.devices()[0].device_kind}")


def gpflow_steps(inducing: int, dtype: str, joint: bool) -> Timed:
    """The same steps in TensorFlow, by GPflow's conditionals."""
    import gpflow
    import tensorflow as tf

    gpflow.config.set_default_float(np.dtype(dtype).type)
    gpflow.config.set_default_jitter(JITTER[dtype])
    given = data(inducing, dtype)
    X, y = tf.constant(given["X"][..., None]), tf.constant(given["y"][:, None])
    size = [1, PATCH, PATCH, 1]

    class OfAllMaps(gpflow.kernels.Convolutional):
        def get_patches(self, X: Any) -> Any:
            images = tf.reshape(X, [-1, SIDE, SIDE, MAPS])
            patches = tf.image.extract_patches(images, size, [1] * 4, [1] * 4, "VALID")
            return tf.reshape(patches, [tf.shape(X)[0], self.num_patches, PATCH**2 * MAPS])

        @property
        def num_patches(self) -> int:
            return (SIDE - PATCH + 1) ** 2

    squared = gpflow.kernels.SquaredExponential
    below = squared(INNER_VARIANCE, LENGTHSCALE), gpflow.inducing_variables.InducingPoints(given["below"])
    kernel = OfAllMaps(squared(1.0, LENGTHSCALE * MAPS**0.5), [SIDE, SIDE], [PATCH, PATCH])
    above = kernel, gpflow.inducing_variables.InducingPatches(given["above"])
    scales = (np.tile(scale * np.eye(inducing, dtype=dtype), (10, 1, 1)) for scale in (INNER_SCALE, 0.5))
    roots = [gpflow.Parameter(scale, transform=gpflow.utilities.triangular()) for scale in scales]
    means = [gpflow.Parameter(np.zeros((inducing, MAPS), dtype)), gpflow.Parameter(given["q_mu"])]
    likelihood = gpflow.likelihoods.MultiClass(10)
    module = gpflow.base.Module()
    module.parts = [*below, *above, *roots, *means]
    optimiser = tf.keras.optimizers.Adam(1e-3)

    def at(X: Any, layer: tuple, mean: Any, root: Any, **options: Any) -> Any:
        return gpflow.conditionals.conditional(X, layer[1], layer[0], mean, q_sqrt=root, white=True, **options)

    def drawn(patches: Any) -> Any:
        if not joint:
            mean, variance = at(tf.reshape(patches, [-1, PATCH**2]), below, means[0], roots[0])
            return mean + tf.sqrt(variance) * tf.random.normal(tf.shape(mean), dtype=dtype)
        mean, covariance = at(patches, below, means[0], roots[0], full_cov=True)  # [B, P, D] and [B, D, P, P]
        root = tf.linalg.cholesky(covariance + JITTER[dtype] * INNER_VARIANCE * tf.eye(SIDE**2, dtype=dtype))
        noise = tf.random.normal([BATCH, MAPS, SIDE**2, 1], dtype=dtype)
        return mean + tf.linalg.matrix_transpose((root @ noise)[..., 0])

    def loss() -> Any:
        patches = tf.image.extract_patches(X, size, [1, 2, 2, 1], [1] * 4, "VALID")
        patches = tf.reshape(patches, [BATCH, SIDE**2, PATCH**2])
        h = tf.reshape(drawn(patches), [BATCH, SIDE**2, MAPS]) + patches[..., PATCH**2 // 2, None]
        f = at(tf.reshape(h, [BATCH, -1]), above, means[1], roots[1])
        expected = tf.reduce_sum(likelihood.variational_expectations(tf.zeros([BATCH, 1], dtype), *f, y))
        divergences = [gpflow.kullback_leiblers.gauss_kl(m, S) for m, S in zip(means, roots, strict=True)]
        return sum(divergences) - NUM_DATA / BATCH * expected

    @tf.function
    def updates(count: Any) -> Any:
        value = tf.zeros((), dtype)
        for _ in tf.range(count):
            with tf.GradientTape() as tape:
                value = loss()
            variables = module.trainable_variables
            optimiser.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
        return value

    versions = f"gpflow {gpflow.__version__}, tensorflow {tf.__version__}"
    return Timed.loop(lambda count: -float(updates(tf.constant(count))), versions)


STEPS = {
    "gpzoo": lambda case: gpzoo_steps(case["inducing"], case["dtype"]),
    "gpflow": lambda case: gpflow_steps(case["inducing"], case["dtype"], case["joint"]),
}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inducing", nargs="+", type=int, default=[128])
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "float64"], default=["float32"])
    parser.add_argument("--pairs", type=int, default=15, help="timings of each library")
    parser.add_argument("--output", type=Path)
    add_options(parser, ["gpflow"])
    arguments = parser.parse_args()
    interpreters, cases = pythons(arguments, ["gpflow"]), {}
    for dtype in arguments.dtypes:
        for inducing in arguments.inducing:
            for joint, drawn in ((True, "together"), (False, "apart")):
                name = f"M {inducing}, {dtype}, theirs draws pixels {drawn}"
                case = {"inducing": inducing, "dtype": dtype, "joint": joint}
                cases[name] = measure(__file__, case, interpreters, arguments.pairs)
                print(table(name, cases[name]), flush=True)
    if arguments.output:
        options = ["--inducing", *arguments.inducing, "--dtypes", *arguments.dtypes, "--pairs", arguments.pairs]
        keep(arguments.output, __file__, options, cases=cases)


if __name__ == "__main__":
    work(STEPS) or main()
