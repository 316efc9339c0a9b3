"""Additional inducing variables of a trained model, which follow the prior given the present inducing variables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo.inducing.initialisers import Initialiser, start
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.guides.handler import parameter_of
from gpzoo.inference.guides.options import Inducing, check_inducing, for_site
from gpzoo.inference.programs.arguments import refuse_unknown
from gpzoo.inference.programs.gp_sites import Pathwise
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.runs import run
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
    checks.refuse(not processes, "The program has no latent GP site, which could have inducing variables.")
    chosen = set(inducing) if isinstance(inducing, Mapping) else set(processes)
    refuse_unknown("inducing", chosen, processes, "GP sites")
    for site in sorted(chosen):
        if type(guide.form_at(site)).extended is Form.extended:
            check_forms(guide, {site})
    found = guide.checked_params(params, args, kwargs)
    at_means = partial(run, rng_key, args, kwargs, guide=guide, mode=Pathwise(value=lambda q, key, rows: q.mean))
    trace = at_means(values=found).guide
    for site in sorted(chosen):
        posterior: InducingPosterior = trace[site]["fn"]
        whole = _with_more(named_key(rng_key, site), posterior, for_site(inducing, site))
        new = Projection(posterior.prior, whole, whiten=posterior.whiten, site=site)
        mean, form = posterior.form.extended(posterior.u_mean, posterior.conditional, new)
        values = {field: getattr(form, field) for field in form.data_fields}
        found |= {f"{site}_{name}": x for name, x in ({"inducing": parameter_of(whole), "mean": mean} | values).items()}
    at_means(values=found)  # raises here if a Kuu does not factorise
    return found


def _with_more(key: PRNGKeyArray, posterior: InducingPosterior, inducing: Any) -> Any:
    """The inducing variables of a site, followed by new ones of the same kind and columns."""
    site, kind = posterior.site, type(posterior.inducing)
    if isinstance(inducing, Initialiser):
        inducing = start(site, inducing, key, posterior.prior.X, posterior.prior.kernel, {})
    check_inducing(inducing, made=True)
    axis, other = rows_axis(posterior), type(inducing).__name__
    message = f"Site {site!r} has {kind.__name__}, to which no {other} can be added."
    checks.refuse(type(inducing) is not kind, message, TypeError)

    def beside(old: Array, new: Array) -> Array:
        columns = [(*x.shape[:axis], *x.shape[axis + 1 :]) for x in (old, new)]
        checks.refuse(
            columns[0] != columns[1],
            f"Site {site!r} has inducing inputs {list(old.shape)}, to which {list(new.shape)} cannot be added: "
            "only their number may differ.",
        )
        return jnp.concatenate([old, new.astype(old.dtype)], axis=axis)

    return jax.tree.map(beside, posterior.inducing, inducing)


def check_forms(guide: InducingGuide, sites: Any) -> None:
    """Refuse a ``q(u)`` whose covariance is not full.

    Raises:
        ValueError: naming the site and its form.
    """
    for site in sorted(sites):
        form = guide.form_at(site)
        checks.refuse(
            not isinstance(form, Full),
            f"Site {site!r} has covariance {form.said}, and only a full one of its own takes in new data or inducing "
            "variables exactly: train with InducingGuide(..., covariance='full', coupled=False).",
        )


def rows_axis(posterior: InducingPosterior) -> int:
    """The axis of the inducing variables in the one array that defines them.

    Raises:
        ValueError: naming the site, if its inducing variables are neither points nor patches.
    """
    axis = posterior.inducing.rows_axis(posterior.prior.kernel)
    if axis is None:
        raise ValueError(
            f"Site {posterior.site!r} has {type(posterior.inducing).__name__}, to which none can be added: only "
            "InducingPoints and InducingPatches have one row for each variable."
        )
    return axis
