"""A form of ``q(u)`` to copy: one standard deviation, as a special case of a form of the package."""

import jax.numpy as jnp
from jax import Array
from numpyro.distributions import constraints

from gpzoo.posteriors import Form, forms


class Isotropic(Form):
    """One standard deviation for all inducing variables, or for those of an output."""

    deviation: Array
    constraints = {"deviation": constraints.softplus_positive}  # noqa: RUF012

    def start(self, conditional, scale):
        variances = conditional.start_variances()
        mean = jnp.sqrt(jnp.mean(variances, axis=-1))
        return Isotropic(scale * jnp.broadcast_to(mean, conditional.outputs))

    def by_output(self, num_inducing, num_outputs):
        return forms.Diagonal(jnp.broadcast_to(self.deviation, (num_inducing, num_outputs or 1)))
