"""Which ``numpyro.param`` sites make up ``q(u)``?"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax.numpy as jnp
import numpyro
from numpyro.distributions import constraints

from gpzoo.inducing.variables import InducingVariable
from gpzoo.posteriors.conditional import conditional_of
from gpzoo.posteriors.forms import Form
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.process import GaussianProcess


def posterior_at(
    name: str,
    prior: GaussianProcess,
    inducing: InducingVariable,
    form: Form,
    *,
    whiten: bool,
    initial_scale: float,
    **options: Any,
) -> InducingPosterior:
    """The inducing posterior of a site, its mean and covariance being ``numpyro.param`` sites named after it.

    Args:
        name: of the site; the parameters are ``<name>_mean`` and ``<name>_<field>`` for every field of the form.
        prior: the site's prior.
        inducing: its inducing variables.
        form: of the covariance.
        whiten: whether ``q`` is over whitened variables.
        initial_scale: factor of the initial standard deviations.
        **options: of :class:`~gpzoo.InducingPosterior`.

    Raises:
        ValueError: for a form that does not go with the inducing variables, or a stored parameter of another form.
    """
    conditional = conditional_of(prior, inducing, form, whiten=whiten, site=name)
    form.check(conditional)
    dtype = conditional.dtype
    mean = numpyro.param(f"{name}_mean", jnp.zeros((conditional.num_inducing, *conditional.outputs), dtype))
    start = cache(lambda: form.start(conditional, jnp.asarray(initial_scale, dtype)))
    values = {}
    for field in form.data_fields:
        limits = form.constraints.get(field, constraints.real)
        value = numpyro.param(f"{name}_{field}", lambda _, field=field: getattr(start(), field), constraint=limits)
        values[field] = tuple(value) if isinstance(value, list) else value
    return InducingPosterior(conditional, mean, form.with_values(**values), **options)
