"""Guides whose posterior is a set of draws, such as draws from MCMC: every run takes one of the draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jaxtyping import Integer
from numpyro import handlers
from numpyro.distributions.constraints import Constraint

from gpzoo.inducing.variables import InducingVariable
from gpzoo.inference.guides.autoguide_mixin import probabilities
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.guides.hyperparameter_guide import HyperparameterGuide
from gpzoo.inference.guides.options import Inducing
from gpzoo.inference.programs.sites import Sites
from gpzoo.posteriors.given_data import given_data
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.process import GaussianProcess

#: The site whose value is the number of the draw that a run takes.
NUMBER = "_draw"

#: The parameter with the laws of GP sites given data, by groups of sites; see :func:`given_data`.
LAWS = "_laws"

#: The parameter with densities and draws of data given all others; see :mod:`~gpzoo.inference.bounds.left_out`.
LEFT_OUT = "_left_out"


class DrawsGuide(InducingGuide):
    """A guide whose posterior consists of draws of hyperparameters and inducing variables, as MCMC gives them.

    A run takes one of the draws: a random one, or the draw whose number is the value of the site :data:`NUMBER`. The
    parameters of hyperparameters are ``<site>_loc``. The parameters of GP sites are ``<site>_inducing`` and
    ``<site>_mean``, the value of ``u`` minus the prior's mean. The parameter :data:`LAWS` has the laws of GP sites
    given the data, for each draw. Predictions use these laws. All parameters have two leading axes,
    ``[chains, draws, ...]``.

    Args:
        model: a NumPyro program.
        inducing: inducing variables of each GP site, of the same kind and shape as in a draw.
    """

    def __init__(self, model: Any, inducing: Inducing) -> None:
        super().__init__(model, inducing, whiten=False, covariance="diagonal")
        self.hyperparameters = "draws"

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """See :meth:`InducingGuide.__call__`."""
        own = self.parameters(self.sites_for(args, kwargs), None)
        draws = {name: numpyro.param(name, None) for name in sorted(own)}
        chains, count = self.shape(draws)
        any_of = dist.DiscreteUniform(0, chains * count - 1).mask(False)
        number = numpyro.sample(NUMBER, any_of, infer={"is_auxiliary": True})
        one = jax.tree.map(lambda x: _in_a_row(jnp.asarray(x))[number], draws)
        one |= {f"{site}_scale": jnp.zeros_like(one[f"{site}_mean"]) for site in sorted(self.sites.processes)}
        with handlers.block(hide=list(one)), handlers.substitute(data=one):
            return super().__call__(*args, **kwargs)

    def given_data(self, name: str, prior: GaussianProcess, inducing: InducingVariable) -> InducingPosterior | None:
        """See :meth:`InducingGuide.given_data`."""
        known: Any = numpyro.param(LAWS, None) or {}
        for group, laws in known.items():
            if name in laws["sites"]:
                shared = (group,) if len(laws["sites"]) > 1 else ()
                return given_data(prior, inducing, laws["sites"][name], laws.get("factor"), shared, name)
        return None

    def parameters(
        self, sites: Sites, hyperparameter_guide: HyperparameterGuide | None
    ) -> dict[str, Constraint | None]:
        """See :meth:`Options.parameters`."""
        own: dict[str, Constraint | None] = {f"{site}_mean": None for site in sites.processes}
        own |= {f"{site}_inducing": None for site in sites.processes} | {LAWS: None, LEFT_OUT: None}
        return own | {f"{site}_loc": sites.constraints.get(site) for site in sites.latents - sites.processes}

    def posteriors(self, *args: Any) -> dict[str, Any]:
        """The posteriors at one random draw, see :meth:`InducingGuide.posteriors`."""
        return {name: fn for name, fn in super().posteriors(*args).items() if name != NUMBER}

    def quantiles(self, params: Mapping[str, Any], quantiles: Sequence[float]) -> dict[str, Array]:
        """Quantiles of the draws, see :meth:`AutoGuideMixin.quantiles`."""
        levels = jnp.asarray(probabilities(quantiles))
        return {name: jnp.quantile(jnp.concatenate(params[f"{name}_loc"]), levels, axis=0) for name in self._names}

    def get_posterior(self, params: Mapping[str, Any]) -> Any:
        """Refused: draws have no density."""
        raise ValueError("Draws of Markov chains have no density: ask for draws, quantiles or medians.")

    @property
    def draws_anything(self) -> bool:
        """See :attr:`InducingGuide.draws_anything`."""
        return True

    def shape(self, params: Mapping[str, Any]) -> tuple[int, int]:
        """The numbers of chains, and of draws of each chain."""
        first, *_ = self.sites.processes
        return np.shape(params[f"{first}_mean"])[:2]

    def at_inputs(self, params: Mapping[str, Any]) -> frozenset[str]:
        """Names of the GP sites whose inducing points are known to be their inputs at the data."""
        found = set()
        for group in params[LAWS].values():
            known = "factor" in group
            found |= {site for site, law in group["sites"].items() if known or law.keys() & {"factor", "whole", "grid"}}
        return frozenset(found)

    def left_out(self, params: Mapping[str, Any], samples: Mapping[str, Array]) -> dict[str, dict[str, np.ndarray]]:
        """Densities and draws of rows given all other data, ``[S, ...]``, by site, at the draws with these numbers."""
        return jax.tree.map(lambda x: _in_a_row(np.asarray(x))[samples[NUMBER]], params[LEFT_OUT])

    def numbers(self, params: Mapping[str, Any], count: int | None) -> dict[str, Integer[Array, " S"]]:
        """The numbers of ``count`` draws, spread over all chains, by site. No draw repeats before all have occurred."""
        total = math.prod(self.shape(params))
        count = total if count is None else count
        stride = next(k for k in range(round(0.618 * total), total + 1) if math.gcd(k, total) == 1) if total > 1 else 0
        return {NUMBER: jnp.asarray(np.arange(count) * stride % total)}

    def thinned(self, params: Mapping[str, Any], stats: Mapping[str, Any], count: int) -> dict[str, Any]:
        """Statistics of the draws that :meth:`by_chain` takes; ``stats`` are of all draws, ``[chains, draws, ...]``."""
        shape, at = self.shape(params), self._spaced(params, count)
        return {name: np.asarray(x)[:, at] if np.shape(x)[:2] == shape else x for name, x in stats.items()}

    def _spaced(self, params: Mapping[str, Any], count: int) -> Integer[np.ndarray, " S"]:
        return np.linspace(0, self.shape(params)[1] - 1, count).round().astype(int)

    def by_chain(
        self, params: Mapping[str, Any], most: int | None
    ) -> tuple[tuple[int, int], dict[str, Integer[Array, " S"]]]:
        """The shape ``(chains, draws)``, and the numbers of at most ``most`` draws, evenly spaced in each chain."""
        chains, draws = self.shape(params)
        count = draws if most is None else min(draws, max(1, most // chains))
        each = self._spaced(params, count)
        return (chains, count), {NUMBER: jnp.asarray((np.arange(chains)[:, None] * draws + each).ravel())}


def _in_a_row(x: Any) -> Any:
    """``[chains, draws, ...]`` to ``[chains * draws, ...]``, also of arrays without entries."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
