"""Forecasts of Poisson counts by a GP with a trend, a season and priors on its hyperparameters.

python examples/counts.py [--steps 1500]
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import SVI

from gpzoo import GaussianProcess, kernels, kmeans
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
from gpzoo.likelihoods import Expected


def poisson(f):
    return dist.Poisson(jnp.exp(f))


def count_gp(years, counts=None, *, num_data=None):
    memory = numpyro.sample("memory", dist.LogNormal(1.0, 0.5))  # years over which the trend changes
    season = numpyro.sample("season", dist.HalfNormal(1.0))  # variance of the seasonal part
    kernel = kernels.Matern32(1.0, memory) + season * kernels.Periodic(1.0, 1.0, period=1.0)
    f = numpyro.sample("f", GaussianProcess(kernel, years))
    with numpyro.plate("data", num_data or len(years), subsample_size=len(years)):
        numpyro.sample("counts", Expected(poisson, f), obs=counts)


def main(steps: int) -> None:
    years = np.linspace(0, 10, 600, dtype=np.float32)[:, None]
    rate = np.exp(1.5 + 0.1 * years[:, 0] + np.sin(2 * np.pi * years[:, 0]))
    counts = np.random.default_rng(0).poisson(rate).astype(np.float32)

    svi = SVI(count_gp, InducingGuide(count_gp, kmeans(40)), optax.adam(0.02), GaussianProcessELBO())
    trained = fit(jax.random.key(0), svi, steps, years, counts, batch_size=200)

    new = np.linspace(10, 10.5, 6, dtype=np.float32)[:, None]
    forecast = trained.predict(jax.random.key(1), new, quantiles=(0.05, 0.95))["counts"]
    for year, mean, low, high in zip(new[:, 0], forecast.mean, *forecast.quantiles, strict=True):
        print(f"year {year:.1f}: {mean:5.1f} expected, {low:.0f} to {high:.0f} in nine of ten")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1500)
    main(parser.parse_args().steps)
