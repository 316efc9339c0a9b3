"""Sparse GP regression on 4,000 rows in minibatches, scored on 1,000 held-out rows.

python examples/regression.py [--steps 2000]
"""

import argparse

import jax
import numpy as np
import optax
from numpyro.infer import SVI

from gpzoo import kmeans
from gpzoo.inference import GaussianProcessELBO, InducingGuide, diagnose, fit, rmse
from gpzoo.models import gp_regression


def main(steps: int) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (5000, 2)).astype(np.float32)
    y = (np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.2 * rng.standard_normal(5000)).astype(np.float32)
    train, test = slice(0, 4000), slice(4000, 5000)

    guide = InducingGuide(gp_regression, kmeans(100))
    svi = SVI(gp_regression, guide, optax.adam(0.02), GaussianProcessELBO())
    trained = fit(jax.random.key(0), svi, steps, X[train], y[train], batch_size=250)

    found = trained.predict(jax.random.key(1), X[test], test_data={"y": y[test]}, quantiles=(0.05, 0.95))["y"]
    within = np.mean((found.quantiles[0] <= y[test]) & (y[test] <= found.quantiles[1]))
    print(f"root mean squared error {rmse(found, y[test]):.3f}, noise 0.2; {within:.0%} within nine of ten")
    print(f"mean log density {np.mean(found.log_density):.3f} nats")
    print(diagnose(jax.random.key(2), trained, X[test], y[test]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    main(parser.parse_args().steps)
