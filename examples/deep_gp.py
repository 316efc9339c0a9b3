"""A deep GP and a GP with one layer, both fitted to a step function.

python examples/deep_gp.py [--steps 1500]
"""

import argparse
from functools import partial

import jax
import numpy as np
import optax
from numpyro.infer import SVI

from gpzoo import kmeans
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
from gpzoo.models import deep_gp, inner_scales, linear_layers


def main(steps: int) -> None:
    rng = np.random.default_rng(0)
    X = np.linspace(-2, 2, 100, dtype=np.float32)[:, None]
    y = (np.sign(X[:, 0]) + 0.05 * rng.standard_normal(100)).astype(np.float32)
    new = np.array([[-0.5], [-0.1], [0.1], [0.5]], np.float32)

    for widths in ([], [1, 1]):
        layers = linear_layers(X, widths)
        program = partial(deep_gp, layers=layers)
        guide = InducingGuide(program, kmeans(20), initial_scale=inner_scales(layers))
        trained = fit(jax.random.key(0), SVI(program, guide, optax.adam(0.02), GaussianProcessELBO()), steps, X, y)
        found = trained.predict(jax.random.key(1), new)["y"]
        print(f"{len(widths) + 1} layers: bound {-trained.losses[-100:].mean():.1f} nats")
        for x, mean, sd in zip(new[:, 0], found.mean, np.sqrt(found.variance), strict=True):
            print(f"  at {x:4.1f}: {mean:5.2f} +- {sd:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1500)
    main(parser.parse_args().steps)
