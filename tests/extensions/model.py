"""A trend with a kernel, inducing variables and a likelihood to be chosen."""

import numpyro

from gpzoo import GaussianProcess


def trend(X, y=None, *, kernel, likelihood, num_data=None):
    f = numpyro.sample("f", GaussianProcess(kernel(), X, jitter=1e-12))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", likelihood(f), obs=y)
