"""Overlapping mixtures of GPs: every row of the data belongs to one of several functions, but to an unknown one."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array
from numpyro.distributions import constraints

from gpzoo.kernels import Kernel
from gpzoo.models.parameters import positive, precision, rbf
from gpzoo.processes.marginals import draws
from gpzoo.processes.process import GaussianProcess


def mixture_of_gps(
    X: Array,
    y: Array | None = None,
    *,
    num_components: int = 2,
    kernel: Callable[[str, Array], Kernel] = rbf,
    noise_variance: float = 0.1,
    jitter: float | None = None,
    num_data: int | None = None,
) -> None:
    """An overlapping mixture of GPs, for data whose assignment to functions is unknown.

    ``f_k ~ GP(0, k)``, ``z_n ~ Categorical(weights)``, ``y_n ~ N(f_{z_n}(x_n), noise_variance)``. This is the data
    association problem of M. Lázaro-Gredilla, S. Van Vaerenbergh and N. D. Lawrence, *Overlapping Mixtures of Gaussian
    Processes for the data association problem*, Pattern Recognition 45(4), 2012. Here ``z`` is summed out, and there is
    no factor ``q(z)``. If the functions have similar starts, training often moves one to the upper and one to the lower
    envelope of the data. Train several times from random starts, ``fit(..., init_params={"f_mean": normal [M, K]})``,
    and keep the result with the highest bound.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide
        >>> from gpzoo.models import mixture_of_gps
        >>> X = np.linspace(0, 1, 20, dtype=np.float32)[:, None]
        >>> params = InducingGuide(mixture_of_gps, kmeans(5)).init_params(jax.random.key(0), X, X[:, 0])
        >>> params["f_mean"].shape, params["weights"]
        ((5, 2), Array([0.5, 0.5], dtype=float32))

    Args:
        X: inputs ``[N, d]``, best standardised.
        y: targets ``[N]``.
        num_components: number of functions ``K``, at least two.
        kernel: a function that makes the kernel of all functions from a site name and the inputs.
        noise_variance: initial noise variance, in squared units of ``y``.
        jitter: absolute jitter on covariance diagonals; ``None`` for the relative default.
        num_data: number of rows of the whole data, if ``X`` is a minibatch.
    """
    f = numpyro.sample("f", GaussianProcess(kernel("f", X), X, num_outputs=num_components, jitter=jitter))
    start = jnp.full(num_components, 1 / num_components, precision(X))
    weights = numpyro.param("weights", start, constraint=constraints.simplex)
    noise = positive("noise_variance", noise_variance, X)
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        z = numpyro.sample("z", dist.CategoricalProbs(weights), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(draws(f)[jnp.arange(len(X)), z], jnp.sqrt(noise)), obs=y)
