"""How is a program run whose GP sites are known at other inputs, or through inducing variables?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from gpzoo._numpyro import Handler
from gpzoo.inducing.variables import InducingPoints, InducingVariable
from gpzoo.inference.programs.gp_sites import Representation, Use
from gpzoo.inference.programs.rows import Layout
from gpzoo.posteriors.conditional import Projection
from gpzoo.posteriors.forms import Diagonal
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.process import GaussianProcess


class Given(NamedTuple):
    """What a site is conditioned on.

    Attributes:
        inducing: an inducing variable.
        u: its value, of the site's zero-mean part.
        factor: the factor of its prior covariance and the inverse of that, if they are known.
    """

    inducing: InducingVariable
    u: Float[Array, "M *D"]
    factor: tuple[Any, Any] | None = None


def given_at(prior: GaussianProcess, value: Float[Array, "N *D"], site: str) -> Given:
    """Values of a site's zero-mean part at the inputs of its prior."""
    projection = Projection(prior, InducingPoints(prior.X), whiten=False, site=site)
    return Given(projection.inducing, value, (projection.L, projection.L_inverse))


def conditioned(
    model: Callable,
    given: Mapping[str, Given],
    drawn_as: Callable[[str], Layout | None],
    representation: Representation,
) -> Callable:
    """The program with ``p(f | u)`` in place of the prior of GP sites.

    Args:
        model: the program.
        given: ``u`` of each site to be conditioned, by name.
        drawn_as: of a site whose array the program takes, which inputs are drawn together; ``None`` for others.
        representation: gives the values of conditioned sites.
    """

    class Condition(Handler):
        def process_message(self, msg: dict[str, Any]) -> None:
            if msg["type"] != "sample" or msg["name"] not in given:
                return
            name, (inducing, u, factor) = msg["name"], given[msg["name"]]
            projection = Projection(msg["fn"], inducing, whiten=False, site=name, factor=factor)
            posterior = InducingPosterior(projection, u, Diagonal(jnp.zeros_like(u)))
            msg["fn"] = representation.posterior(posterior, Use(drawn_as(name)))
            msg["value"], msg["is_observed"] = None, False

    def run(*args: Any, **kwargs: Any) -> Any:
        with Condition():
            return model(*args, **kwargs)

    return run
