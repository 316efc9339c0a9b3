"""How does a trained model get more inducing variables? With the prior's law given those that it has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PRNGKeyArray

from gpzoo.inducing.initialisers import Initialiser, start
from gpzoo.inducing.variables import InducingVariable
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.guides.handler import parameter_of
from gpzoo.inference.guides.options import Inducing, for_site
from gpzoo.inference.programs.arguments import refuse_unknown
from gpzoo.inference.programs.gp_sites import Functions
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.runs import Trace, run
from gpzoo.posteriors.conditional import Projection
from gpzoo.posteriors.forms import Form, Full
from gpzoo.posteriors.posterior import InducingPosterior


def extended(
    rng_key: PRNGKeyArray,
    guide: InducingGuide,
    params: Mapping[str, Any],
    inducing: Inducing,
    args: tuple,
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """The parameters with more inducing variables: :meth:`gpzoo.inference.Trained.add_inducing`."""
    processes = guide.sites_for(args, kwargs).processes
    if not processes:
        raise ValueError("The program has no latent GP site, which could have inducing variables.")
    chosen = set(inducing) if isinstance(inducing, Mapping) else set(processes)
    refuse_unknown("inducing", chosen, processes, "GP sites")
    for site in sorted(chosen):
        if type(guide.form_at(site)).extended is Form.extended:
            check_forms(guide, {site})
    found = guide.checked_params(params, args, kwargs)
    trace = _at_means(rng_key, guide, found, args, kwargs)
    for site in sorted(chosen):
        posterior: InducingPosterior = trace[site]["fn"]
        added = _added(named_key(rng_key, site), posterior, for_site(inducing, site))
        beside = partial(_beside, rows_axis(posterior))
        whole = jax.tree.map(beside, posterior.inducing, added)
        new = Projection(posterior.prior, whole, whiten=posterior.whiten, site=site)
        mean, form = posterior.form.extended(posterior.u_mean, posterior.conditional, new)
        values = {field: getattr(form, field) for field in form.data_fields}
        found |= {f"{site}_{name}": x for name, x in ({"inducing": parameter_of(whole), "mean": mean} | values).items()}
    _at_means(rng_key, guide, found, args, kwargs)  # raises here if a Kuu does not factorise
    return found


def _at_means(
    rng_key: PRNGKeyArray, guide: InducingGuide, params: Mapping[str, Any], args: tuple, kwargs: dict
) -> Trace:
    at_mean = Functions(lambda posterior, key, rows: posterior.mean)
    return run(rng_key, args, kwargs, guide=guide, values=params, representation=at_mean).guide


def _added(key: PRNGKeyArray, posterior: InducingPosterior, inducing: Any) -> Any:
    """The new inducing variables of a site, which have the kind and the columns of the old ones."""
    site, kind = posterior.site, type(posterior.inducing)
    if isinstance(inducing, Initialiser):
        inducing = start(site, inducing, key, posterior.prior.X, posterior.prior.kernel, {})
    if not isinstance(inducing, InducingVariable):
        raise TypeError(
            f"inducing must be an initialiser such as kmeans(100), an inducing variable such as InducingPoints(Z), or "
            f"a mapping from site name to these; got {type(inducing).__name__}."
        )
    old, axis = posterior.inducing, rows_axis(posterior)
    if type(inducing) is not kind:
        raise TypeError(f"Site {site!r} has {kind.__name__}, to which no {type(inducing).__name__} can be added.")
    for x, more in zip(jax.tree.leaves(old), jax.tree.leaves(inducing), strict=True):
        if (*x.shape[:axis], *x.shape[axis + 1 :]) != (*more.shape[:axis], *more.shape[axis + 1 :]):
            raise ValueError(
                f"Site {site!r} has inducing inputs {list(x.shape)}, to which {list(more.shape)} cannot be added: "
                "only their number may differ."
            )
    return inducing


def _beside(axis: int, x: Array, new: Array) -> Array:
    return jnp.concatenate([x, new.astype(x.dtype)], axis=axis)


def check_forms(guide: InducingGuide, sites: Any) -> None:
    """Refuse a ``q(u)`` whose covariance is not full.

    Raises:
        ValueError: naming the site and its form.
    """
    for site in sorted(sites):
        form = guide.form_at(site)
        if not isinstance(form, Full):
            raise ValueError(
                f"Site {site!r} has covariance {type(form).__name__}, and only a full one takes in new data or "
                "inducing variables exactly: train with InducingGuide(..., covariance='full')."
            )


def rows_axis(posterior: InducingPosterior) -> int:
    """The axis of the inducing variables in the one array that defines them.

    Raises:
        ValueError: naming the site, if they are neither points nor patches.
    """
    axis = posterior.inducing.rows_axis(posterior.prior.kernel)
    if axis is None:
        raise ValueError(
            f"Site {posterior.site!r} has {type(posterior.inducing).__name__}, to which none can be added: only "
            "InducingPoints and InducingPatches have one row for each variable."
        )
    return axis
