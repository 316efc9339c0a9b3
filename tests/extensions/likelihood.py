"""Counts whose log rate is the function, with the expectation in closed form."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import random
from jax.scipy.special import gammaln
from numpyro.distributions import constraints

from gpzoo.likelihoods import Likelihood


class Counts(Likelihood):
    support = constraints.nonnegative_integer

    def __init__(self, f, *, validate_args=None):
        super().__init__(f, ndims=(1,), validate_args=validate_args)

    def marginal_expectation(self):
        return "closed form"

    def check_values(self, values):
        if (values < 0).any():
            raise ValueError(f"Counts: y holds {values.min()}, but counts are not negative.")

    def log_prob(self, value, intermediates=None):
        y = self.checked(value).astype(self.f.dtype)
        f, rate = (self.f.mean, self.mean) if self.is_marginal else (self.f, jnp.exp(self.f))
        return y * f - rate - gammaln(y + 1.0)

    def predictive_log_prob(self, value):
        self.refuse_estimates()
        y = self.checked(value)
        if not self.is_marginal:
            return self.log_prob(y)
        nodes, weights = np.polynomial.hermite_e.hermegauss(40)
        f = self.f.mean + jnp.sqrt(self.f.variance) * nodes[:, None]
        densities = jnp.exp(dist.Poisson(jnp.exp(f)).log_prob(y))
        return jnp.log(weights @ densities / np.sqrt(2 * np.pi))

    @property
    def mean(self):
        if not self.is_marginal:
            return jnp.exp(self.f)
        return jnp.exp(self.f.mean + self.f.variance / 2)

    @property
    def variance(self):
        self.refuse_estimates()
        spread = jnp.expm1(self.f.variance) if self.is_marginal else 0.0
        return self.mean + jnp.square(self.mean) * spread

    def sample_given(self, key, f):
        return random.poisson(key, jnp.exp(f))
