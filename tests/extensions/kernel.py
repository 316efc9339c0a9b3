"""A kernel to copy: the squared exponential, as a function of two points and as a class."""

import jax.numpy as jnp
from jax import Array, random

from gpzoo.kernels import Elementary


def squared_exponential(x, z, variance, lengthscale):
    return variance * jnp.exp(-jnp.sum(((x - z) / lengthscale) ** 2) / 2)


class SquaredExponential(Elementary):
    variance: Array
    lengthscale: Array

    def evaluate(self, x, z):
        return squared_exponential(x, z, self.variance, self.lengthscale)

    def frequencies(self, key, num, num_columns, dtype):
        return random.normal(key, (num, num_columns), dtype) / self.lengthscale
