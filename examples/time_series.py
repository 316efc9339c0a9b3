"""A trend and a season as two functions that are trained together, with a prediction of each function.

python examples/time_series.py [--steps 60]
"""

import argparse

import jax
import numpy as np
import numpyro
from numpyro.infer import SVI

from gpzoo import GaussianProcess, kmeans
from gpzoo.inference import CollapsedELBO, InducingGuide, fit, lbfgs
from gpzoo.kernels import RBF, Linear, Periodic
from gpzoo.likelihoods import Gaussian
from gpzoo.models import positive


def sales(years, y=None):
    slope, smooth = positive("slope", 0.1, years) * Linear(), RBF(positive("smooth", 0.1, years), 3.0)
    shape = Periodic(positive("height", 0.5, years), positive("shape", 1.0, years), period=1.0)
    trend = numpyro.sample("trend", GaussianProcess(slope + smooth, years))
    season = numpyro.sample("season", GaussianProcess(shape * RBF(1.0, 10.0), years))
    with numpyro.plate("month", len(years)):
        numpyro.sample("y", Gaussian(trend + season, positive("noise", 0.1, years)), obs=y)


def main(steps: int) -> None:
    rng = np.random.default_rng(0)
    years = (np.arange(168) / 12 - 7)[:, None].astype(np.float32)
    y = 0.3 * years[:, 0] + np.sin(2 * np.pi * years[:, 0]) + 0.3 * rng.standard_normal(168)
    y = ((y - y[:132].mean()) / y[:132].std()).astype(np.float32)

    svi = SVI(sales, InducingGuide(sales, kmeans(60)), lbfgs(), CollapsedELBO())
    trained = fit(jax.random.key(0), svi, steps, years[:132], y[:132])

    found = trained.predict(jax.random.key(1), years[132:], quantiles=(0.05, 0.95))
    low, high = found["y"].quantiles
    print(f"three years ahead: {np.mean((low <= y[132:]) & (y[132:] <= high)):.0%} within nine of ten")
    for name in ("trend", "season"):
        print(f"{name:7} next month: {found[name].mean[0]:5.2f} +- {np.sqrt(found[name].variance[0]):.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    main(parser.parse_args().steps)
