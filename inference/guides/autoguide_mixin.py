"""Methods of NumPyro's automatic guides: draws, medians and quantiles of latent sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, lax, random
from jax.scipy.special import ndtri
from jaxtyping import Float
from numpyro.distributions import Distribution
from numpyro.distributions.transforms import IdentityTransform, IndependentTransform, biject_to

from gpzoo import _checks as checks
from gpzoo._types import Argument
from gpzoo.inference.guides.hyperparameter_guide import HyperparameterGuide
from gpzoo.inference.guides.options import Options
from gpzoo.inference.programs.arguments import arguments
from gpzoo.inference.programs.runs import run


class AutoGuideMixin(Options):
    """The methods of NumPyro's ``AutoGuide`` for a trained posterior.

    Methods that do not take the program's arguments are about latent sites that are not GPs. A GP site has values only
    at inputs: see :meth:`gpzoo.inference.Trained.posterior` and :meth:`~gpzoo.inference.Trained.predict`.
    """

    _hyperparameter_guide: HyperparameterGuide | None = None  # until the program is first traced

    def sample_posterior(
        self,
        rng_key: Array,
        params: Mapping[str, Any],
        *args: Argument,
        sample_shape: tuple[int, ...] = (),
        **kwargs: Any,
    ) -> dict[str, Array]:
        """Draws of every latent site at the program's arguments. GP sites are drawn jointly over the inputs.

        Args:
            rng_key: key of the draws.
            params: values of parameters, such as ``svi.get_params(state)``.
            *args: the program's positional arguments.
            sample_shape: leading axes of the draws.
            **kwargs: the program's keyword arguments.

        Returns:
            Draws ``[*sample_shape, ...]`` by name.

        Raises:
            ValueError: naming parameters that are missing or of another shape.
        """
        guide: Any = self
        args, kwargs = arguments(self.model, args, kwargs)
        names, values = guide.sites_for(args, kwargs).latents, guide.checked_params(params, args, kwargs)

        def one(key: Array) -> dict[str, Array]:
            found = run(key, args, kwargs, guide=guide, values=values).guide
            return {name: jnp.asarray(found[name]["value"]) for name in names}

        key = checks.rng_key(rng_key)
        wrong = f"sample_shape must be a tuple such as (100,), got {sample_shape!r}."
        checks.refuse(not isinstance(sample_shape, tuple), wrong, TypeError)
        if sample_shape == ():
            return one(key)
        draws = lax.map(one, random.split(key, prod(sample_shape)))
        return jax.tree.map(lambda x: x.reshape(*sample_shape, *x.shape[1:]), draws)

    def get_posterior(self, params: Mapping[str, Any]) -> Any:
        """The distribution of each latent site that is not a GP, by name.

        If ``hyperparameters`` is a class or function that makes one of NumPyro's guides, the method of that guide gives
        the result.

        Raises:
            ValueError: before the guide has seen data, for a site whose support depends on other sites, and for a guide
                of another library without this method.
        """
        if callable(self.hyperparameters):
            return self._automatic("get_posterior")(params)
        return {name: self._of_other(name, params) for name in self._names}

    def median(self, params: Mapping[str, Any]) -> dict[str, Array]:
        """The median of each latent site that is not a GP, by name.

        Raises:
            ValueError: as :meth:`get_posterior`.
        """
        if callable(self.hyperparameters):
            return self._automatic("median")(params)
        return {name: x[0] for name, x in self.quantiles(params, [0.5]).items()}

    def quantiles(self, params: Mapping[str, Any], quantiles: Sequence[float]) -> dict[str, Array]:
        """Quantiles ``[Q, ...]`` of each latent site that is not a GP, by name.

        Args:
            params: values of parameters, such as ``svi.get_params(state)``.
            quantiles: probabilities between 0 and 1.

        If the entries of a site depend on each other, as in a vector of probabilities, the quantiles are of 2,000
        draws.

        Raises:
            ValueError: as :meth:`get_posterior`.
        """
        if callable(self.hyperparameters):
            return self._automatic("quantiles")(params, quantiles)
        found, quantiles = {}, probabilities(quantiles)
        for name in self._names:
            fn: Any = self._of_other(name, params)
            loc = jnp.asarray(params[f"{name}_loc"])
            if isinstance(fn, dist.Delta):
                found[name] = jnp.broadcast_to(loc, (len(quantiles), *loc.shape))
            else:
                found[name] = _quantiles(fn, loc, params[f"{name}_scale"], jnp.asarray(quantiles, loc.dtype))
        return found

    @property
    def _names(self) -> list[str]:
        unseen = "This guide has not seen data, which fix what is latent: call guide.setup(X, y) first."
        checks.refuse(self.sites is None, unseen)
        return sorted(self.sites.latents - self.sites.processes)

    def _automatic(self, method: str) -> Any:
        """A method of the guide of latent sites that are not GPs, if a class or function made it."""
        unseen = "This guide has not seen data, or the program has no latent sites that are no GPs."
        checks.refuse(self._hyperparameter_guide is None, unseen)
        made: Any = getattr(self._hyperparameter_guide, "guide", None)
        lacking = f"{type(made).__name__}, which hyperparameters=... made, has no method {method}: ask for draws."
        checks.refuse(not hasattr(made, method), lacking)
        return getattr(made, method)

    def _of_other(self, name: str, params: Mapping[str, Any]) -> Distribution:
        wanted = [f"{name}_{part}" for part in ("loc", "scale")[: 1 + (self.hyperparameters == "normal")]]
        missing = [one for one in wanted if one not in params]
        checks.refuse(missing, f"params has no values of {missing}.")
        support = self.sites.constraints.get(name)
        loc = jnp.asarray(params[f"{name}_loc"])
        if self.hyperparameters == "point":
            return dist.Delta(loc)
        if support is None:
            raise ValueError(
                f"The support of latent site {name!r} depends on other sites, so that its distribution is known in a "
                "run alone: trained.posterior(key, X)."
            )
        transform = biject_to(support)
        base = dist.Normal(loc, params[f"{name}_scale"]).to_event(transform.domain.event_dim)
        return dist.TransformedDistribution(base, transform)


def _quantiles(fn: Any, loc: Array, scale: Array, levels: Float[Array, " Q"]) -> Float[Array, "Q ..."]:
    """Quantiles of a transformed normal."""
    transform = whole = fn.transforms[0]
    while isinstance(transform, IndependentTransform):
        transform = transform.base_transform
    if transform.domain.event_dim and not isinstance(transform, IdentityTransform):
        return jnp.quantile(fn.sample(random.key(0), (2_000,)), levels, axis=0)
    below, above = (jax.vmap(lambda q: whole(loc + ndtri(q) * scale))(each) for each in (levels, 1 - levels))
    return jnp.where(whole(loc + scale) < whole(loc - scale), above, below)  # a transform may be decreasing


def probabilities(quantiles: Sequence[float]) -> list[float]:
    """``quantiles``, if they are probabilities.

    Raises:
        ValueError: if they are not a sequence of numbers between 0 and 1.
    """
    given = np.asarray(quantiles, float)
    good = given.ndim == 1 and bool(np.all((given > 0) & (given < 1)))
    checks.refuse(not good, f"quantiles must be numbers between 0 and 1, such as [0.05, 0.95]; got {quantiles!r}.")
    return given.tolist()
