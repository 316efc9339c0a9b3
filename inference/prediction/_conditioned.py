"""How is a program run whose GP sites are known at other inputs, or through inducing variables?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from gpzoo._numpyro import Messenger
from gpzoo.inducing.variables import InducingVariable
from gpzoo.inference.gp_sites import Representation
from gpzoo.posteriors.conditional import Projection
from gpzoo.posteriors.forms import Diagonal
from gpzoo.posteriors.posterior import InducingPosterior

#: An inducing variable and its value ``u``, on which a site is conditioned; ``u`` is of the site's zero-mean part.
Given: TypeAlias = tuple[InducingVariable, Float[Array, "M *D"]]


def conditioned(
    model: Callable, given: Mapping[str, Given], drawn: frozenset[str], representation: Representation
) -> Callable:
    """The program with ``p(f | u)`` in place of the prior of GP sites.

    Args:
        model: the program.
        given: ``u`` of each site to be conditioned, by name.
        drawn: names of sites whose array the program takes.
        representation: gives the values of conditioned sites.
    """

    class Condition(Messenger):
        def process_message(self, msg: dict[str, Any]) -> None:
            if msg["type"] != "sample" or msg["name"] not in given:
                return
            name, (inducing, u) = msg["name"], given[msg["name"]]
            projection = Projection(msg["fn"], inducing, whiten=False, site=name)
            posterior = InducingPosterior(projection, u, Diagonal(jnp.zeros_like(u)))
            msg["fn"] = representation.posterior(posterior, drawn=name in drawn, joint=False)
            msg["value"], msg["is_observed"] = None, False

    def run(*args: Any, **kwargs: Any) -> Any:
        with Condition():
            return model(*args, **kwargs)

    return run
