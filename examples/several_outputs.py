"""Three sensors with gaps: the data of each sensor help to fill the gaps of the others.

python examples/several_outputs.py [--steps 1200]
"""

import argparse
from functools import partial

import jax
import numpy as np
import optax
from numpyro.infer import SVI

from gpzoo import random_subset
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
from gpzoo.models import coregionalised_gp


def main(steps: int) -> None:
    rng = np.random.default_rng(0)
    x = np.linspace(0, 12, 150, dtype=np.float32)
    truth = np.stack([np.sin(x), 0.8 * np.sin(x) + 0.3 * np.cos(2 * x), -np.sin(x)], axis=1)
    y = (truth + 0.1 * rng.standard_normal(truth.shape)).astype(np.float32)
    missing = np.stack([(x > 3) & (x < 6), (x > 5) & (x < 8), x > 9], axis=1)

    # One row for each observed number. The second column is the index of the sensor.
    at, sensor = np.nonzero(~missing)
    rows = np.stack([x[at], sensor], axis=1).astype(np.float32)
    program = partial(coregionalised_gp, num_outputs=3, rank=2)
    svi = SVI(program, InducingGuide(program, random_subset(80)), optax.adam(0.02), GaussianProcessELBO())
    trained = fit(jax.random.key(0), svi, steps, rows, y[at, sensor])

    at, sensor = np.nonzero(missing)
    gaps = np.stack([x[at], sensor], axis=1).astype(np.float32)
    mean = trained.predict(jax.random.key(1), gaps)["f"].mean
    for each in range(3):
        error = np.sqrt(np.mean((mean - truth[at, sensor])[sensor == each] ** 2))
        print(f"sensor {each}: error {error:.2f} where it failed, {truth[:, each].std():.2f} by its mean")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1200)
    main(parser.parse_args().steps)
