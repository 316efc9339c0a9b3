"""A deep kernel that classifies the points of two spirals: a GP on the features of a flax network.

python examples/deep_kernel.py [--steps 2000]
"""

import argparse
from functools import partial

import jax
import numpy as np
import optax
from flax import nnx
from numpyro.infer import SVI

from gpzoo import InducingGrid
from gpzoo.inference import GaussianProcessELBO, InducingGuide, error_rate, fit
from gpzoo.models import deep_kernel_gp, network_of


def spirals(rng, each):
    turn, y = np.pi * np.repeat(rng.uniform(0.5, 3, each), 2), np.tile([0, 1], each)
    X = np.stack([turn * np.cos(turn + np.pi * y), turn * np.sin(turn + np.pi * y)], axis=1) / 10
    return (X + 0.02 * rng.standard_normal(X.shape)).astype(np.float32), y


def main(steps: int) -> None:
    rng, rngs = np.random.default_rng(0), nnx.Rngs(0)
    (X, y), (X_test, y_test) = spirals(rng, 150), spirals(rng, 500)
    first, second, last = (nnx.Linear(*sizes, rngs=rngs) for sizes in ((2, 50), (50, 50), (50, 2)))
    network = network_of(nnx.Sequential(first, nnx.tanh, second, nnx.tanh, last))
    program = partial(deep_kernel_gp, network=network)

    guide = InducingGuide(program, InducingGrid(64))
    svi = SVI(program, guide, optax.adam(0.02), GaussianProcessELBO())
    trained = fit(jax.random.key(0), svi, steps, X, y, batch_size=100)

    found = trained.predict(jax.random.key(1), X_test)["y"]
    print(f"test error {error_rate(found, y_test):.1%}, of chance 50 %")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    main(parser.parse_args().steps)
