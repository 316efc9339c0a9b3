"""Posteriors of hyperparameters by NUTS, with the function integrated out, and their summary in ArviZ.

python examples/hyperparameters.py [--draws 500]
"""

import argparse

import arviz as az
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

from gpzoo import GaussianProcess, kernels
from gpzoo.inference import Trained, marginal, nuts
from gpzoo.likelihoods import Gaussian


def regression(X, y=None):
    variance = numpyro.sample("variance", dist.LogNormal(0.0, 1.0))
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
    noise = numpyro.sample("noise", dist.LogNormal(-2.0, 1.0))
    f = numpyro.sample("f", GaussianProcess(kernels.RBF(variance, lengthscale), X))
    numpyro.sample("y", Gaussian(f, noise), obs=y)


def main(draws: int) -> None:
    rng = np.random.default_rng(3)
    X = np.sort(rng.uniform(0, 6, (40, 1)), axis=0).astype(np.float32)
    y = (np.sin(2 * X[:, 0]) + 0.4 * rng.standard_normal(40)).astype(np.float32)

    mcmc = nuts(jax.random.key(0), marginal(regression), X, y, num_warmup=draws, num_samples=draws)
    posterior = Trained.of_draws(jax.random.key(1), mcmc, X, y)
    export = posterior.to_arviz(jax.random.key(2), X, y)
    print(az.summary(export, var_names=["variance", "lengthscale", "noise"]))
    print(az.loo(export))

    ahead = posterior.predict(jax.random.key(3), np.array([[6.5], [9.0]], np.float32))["f"]
    print("beyond the data, at 6.5 and 9:", ahead.mean.round(2), "+-", np.sqrt(ahead.variance).round(2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=500)
    main(parser.parse_args().draws)
