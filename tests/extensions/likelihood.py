"""Likelihoods to copy: counts in closed form, positive sizes with a parameter and ranks, labels of one function."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import nn, random
from jax.scipy.special import gammaln
from numpyro.distributions import constraints

from gpzoo.likelihoods import Likelihood


class Counts(Likelihood):
    """Counts whose log rate is the function, with the expectation in closed form."""

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


class Sizes(Likelihood):
    """Positive numbers whose logarithm is the function with normal noise: everything has a closed form, ranks too."""

    support = constraints.positive
    pytree_data_fields = ("spread",)

    def __init__(self, f, spread, *, validate_args=None):
        self.spread = jnp.asarray(spread)
        super().__init__(f, ndims=(1,), validate_args=validate_args)

    def marginal_expectation(self):
        return "closed form"

    @property
    def law(self):
        """The normal distribution of the logarithm."""
        self.refuse_estimates()
        mean, variance = (self.f.mean, self.f.variance) if self.is_marginal else (self.f, 0)
        return dist.Normal(mean, jnp.sqrt(self.spread + variance))

    def log_prob(self, value, intermediates=None):
        y = jnp.log(self.checked(value))
        found = dist.Normal(self._centre(), jnp.sqrt(self.spread)).log_prob(y) - y
        return found - self.f.variance / (2 * self.spread) if self.is_marginal else found

    def predictive_log_prob(self, value):
        y = jnp.log(self.checked(value))
        return self.law.log_prob(y) - y

    def cdf(self, value):
        return self.law.cdf(jnp.log(value))

    @property
    def mean(self):
        return jnp.exp(self.law.mean + self.law.variance / 2)

    @property
    def variance(self):
        return jnp.square(self.mean) * jnp.expm1(self.law.variance)

    def sample_given(self, key, f):
        return jnp.exp(f + jnp.sqrt(self.spread) * random.normal(key, f.shape, f.dtype))


class Signs(Likelihood):
    """Labels 0, 1 and 2: the function is far below zero, close to it, or far above, by logistic cutpoints."""

    num_classes = 3

    def __init__(self, f, *, validate_args=None):
        super().__init__(f, ndims=(1,), validate_args=validate_args)

    @property
    def support(self):
        return constraints.integer_interval(0, 2)

    def marginal_expectation(self):
        return "quadrature"

    def probabilities(self, f):
        below, above = nn.sigmoid(-1 - f), nn.sigmoid(f - 1)
        return jnp.stack([below, 1 - below - above, above], axis=-1)

    def at_points(self):
        nodes, weights = np.polynomial.hermite_e.hermegauss(20)
        f = self.f.mean + jnp.sqrt(self.f.variance) * nodes[:, None] if self.is_marginal else self.f[None]
        weights = weights / np.sqrt(2 * np.pi) if self.is_marginal else np.ones(1)
        return self.probabilities(f), weights

    def of_label(self, table, value):
        return jnp.take_along_axis(table, self.checked(value)[:, None], axis=-1)[:, 0]

    def log_prob(self, value, intermediates=None):
        probabilities, weights = self.at_points()
        return self.of_label(jnp.einsum("h,hnk->nk", weights, jnp.log(probabilities)), value)

    def predictive_log_prob(self, value):
        return self.of_label(jnp.log(self.probs), value)

    @property
    def probs(self):
        self.refuse_estimates()
        probabilities, weights = self.at_points()
        return jnp.einsum("h,hnk->nk", weights, probabilities)

    def sample_given(self, key, f):
        return random.categorical(key, jnp.log(self.probabilities(f))).astype(jnp.int32)
