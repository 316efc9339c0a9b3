"""How does a trained model get more inducing variables? With the prior's law given those that it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo import linalg
from gpzoo.inducing.initialisers import Initialiser, start
from gpzoo.inducing.variables import InducingPatches, InducingPoints, InducingVariable
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.guides.options import Inducing, for_site
from gpzoo.inference.programs.gp_sites import Functions
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.runs import Trace, run
from gpzoo.linalg.operators import matmul
from gpzoo.posteriors.conditional import Projection
from gpzoo.posteriors.forms import Full
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
    checks.names("inducing", chosen, needed=set(), known=set(processes))
    check_forms(guide, chosen)
    found = guide.checked_params(params, args, kwargs)
    trace = _at_means(rng_key, guide, found, args, kwargs)
    for site in sorted(chosen):
        posterior: InducingPosterior = trace[site]["fn"]
        added = _added(named_key(rng_key, site), posterior, for_site(inducing, site))
        axis = rows_axis(posterior)
        old: Any = posterior.inducing
        Z = jnp.concatenate([old.Z, added.Z.astype(old.Z.dtype)], axis=axis)
        mean, scale = _padded(posterior, type(old)(Z))
        found |= {f"{site}_inducing": Z, f"{site}_mean": mean, f"{site}_scale": scale}
    _at_means(rng_key, guide, found, args, kwargs)  # raises here if a Kuu does not factorise
    return found


def _at_means(
    rng_key: PRNGKeyArray, guide: InducingGuide, params: Mapping[str, Any], args: tuple, kwargs: dict
) -> Trace:
    values = jax.tree.map(lambda x: x, dict(params))  # networks write into the state that they are handed
    at_mean = Functions(lambda posterior, key, rows: posterior.mean)
    return run(rng_key, args, kwargs, guide=guide, values=values, representation=at_mean).guide


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
    old: Any = posterior.inducing
    rows_axis(posterior)
    if type(inducing) is not kind:
        raise TypeError(f"Site {site!r} has {kind.__name__}, to which no {type(inducing).__name__} can be added.")
    new: Any = inducing
    axis = rows_axis(posterior)
    shapes = [(*x.shape[:axis], *x.shape[axis + 1 :]) for x in (old.Z, new.Z)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"Site {site!r} has inducing inputs {list(old.Z.shape)}, to which {list(new.Z.shape)} cannot be added: "
            "only their number may differ."
        )
    return new


def _padded(
    posterior: InducingPosterior, inducing: InducingVariable
) -> tuple[Float[Array, "M *D"], Float[Array, "*D M M"]]:
    """Mean and factor of ``q(u) p(u_new | u)``: of whitened variables the new ones are independent and standard."""
    conditional, (m, form) = posterior.conditional, posterior._q()
    columns = jnp.concatenate([m.T[:, :, None], form.root()], axis=-1)  # [D, M, 1 + M]
    if not posterior.whiten:
        columns = linalg.solve_lower(conditional.L, columns)
    whole = Projection(posterior.prior, inducing, whiten=posterior.whiten, site=posterior.site)
    more = whole.num_inducing - conditional.num_inducing
    columns = jnp.pad(columns, ((0, 0), (0, more), (0, more)))
    new = jnp.arange(conditional.num_inducing, whole.num_inducing)
    columns = columns.at[:, new, 1 + new].set(1)
    if not posterior.whiten:
        columns = matmul(whole.L, columns)
    mean, scale = columns[..., 0], jnp.tril(columns[..., 1:])
    return (mean[0], scale[0]) if posterior.num_outputs is None else (mean.T, scale)


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
    inducing: Any = posterior.inducing
    if isinstance(inducing, InducingPoints):
        return int(posterior.prior.kernel.has_outputs(inducing.Z))
    if isinstance(inducing, InducingPatches):
        return inducing.Z.ndim - 2
    raise ValueError(
        f"Site {posterior.site!r} has {type(inducing).__name__}, to which none can be added: only InducingPoints and "
        "InducingPatches have one row for each variable."
    )
