"""Laws of GP sites given data at one value of their hyperparameters, and draws of these sites.

With Gaussian noise and without inducing variables, the data have one covariance. Its factor gives the laws of all sites
that the data see together. Otherwise, the law of ``v`` gives them (:mod:`gpzoo.inference.bounds.evidence`). A law is
kept only if the sites' outputs are independent given data, because marginals then describe them completely. Otherwise,
there are only draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, random
from jaxtyping import Bool, Float, PRNGKeyArray

from gpzoo import linalg
from gpzoo.inference.bounds.evidence import DataCovariance, Latents, Site, Term, are_apart, covariance_of_data
from gpzoo.inference.bounds.left_out import Blocks, left_out
from gpzoo.linalg.operators import einsum
from gpzoo.processes.affine import AffineMap


class SitesGivenData(NamedTuple):
    """GP sites that depend on the same data, given these data.

    Attributes:
        values: a draw, see :meth:`Site.values`.
        laws: laws of the sites, in the format of :func:`gpzoo.posteriors.given_data.given_data`. The key is the names
            of the sites, joined by ``+``. Empty if outputs of a site are not independent given the data.
        good: whether the laws were found.
        left_out: densities of rows or blocks given all other data, see
            :func:`~gpzoo.inference.bounds.left_out.left_out`.
        lost: approximate rounding error of the log density of one row. A posterior mean has a rounding error of up to
            ``3 * lost`` posterior standard deviations.
    """

    values: dict[str, Array]
    laws: dict[str, dict[str, Any]]
    good: Bool[Array, ""]
    left_out: dict[str, dict[str, Array]]
    lost: Float[Array, ""]


def sites_given_data(
    sites: Sequence[Site], latents: Latents, key: PRNGKeyArray, blocks: Blocks | None
) -> SitesGivenData:
    """A draw and the laws of sites given data, and the density of each row (or block) given all other data."""
    eps = float(jnp.finfo(latents.zero.dtype).eps)
    if is_one_covariance(sites, latents.terms):
        data = covariance_of_data(sites, latents.terms)
        left = left_out(sites, latents, None, blocks, random.fold_in(key, 1))
        return SitesGivenData(*_by_covariance(sites, latents, data, key), left, eps * _sharpest(data))
    law, good = latents.law()
    left = left_out(sites, latents, law, blocks, random.fold_in(key, 1))
    # The precision of `v` has eigenvalues of 1 or more: the precision given data in units of the prior's precision.
    # Rounding errors grow by this factor.
    lost = eps * jnp.max(jnp.square(linalg.diagonal(law.L)))
    means, draws, values, laws = latents.split(law.mean), latents.split(law.draw(key)), {}, {}
    for site in sites:
        values |= site.values(draws[site.name], latents.roots[site.name])
    if are_independent(sites, latents.terms):
        eye = jnp.eye(law.L.shape[-1], dtype=law.L.dtype)
        root = linalg.solve_lower(law.L, jnp.broadcast_to(eye, law.L.shape), transpose=True)
        rows = dict.fromkeys(latents.shapes, root) if latents.apart else _rows_of_sites(latents, root)
        laws = {"+".join(rows): {"sites": {s.name: _of_site(s, means[s.name], rows[s.name], latents) for s in sites}}}
    return SitesGivenData(values, laws, good, left, lost)


def is_one_covariance(sites: Sequence[Site], terms: Sequence[Term]) -> bool:
    """Whether the data have one covariance matrix: one data site, Gaussian noise, and no inducing variables.

    The data must also depend on every row of each GP site, and have one column, or independent outputs of one GP site.
    """
    if len(terms) != 1 or not terms[0].gaussian or any(site.conditional is not None for site in sites):
        return False
    f, one_column = terms[0].marginals, all(site.outputs == 1 for site in sites)
    whole = all(part.all_rows for part in f.parts)
    return whole and (are_apart(sites, terms) or (one_column and f.shape[1:] in ((), (1,))))


def are_independent(sites: Sequence[Site], terms: Sequence[Term]) -> bool:
    """Whether the outputs of each site are independent given data; each of several sites must have one output."""
    if len(sites) == 1:
        return sites[0].outputs == 1 or are_apart(sites, terms)
    return all(site.outputs == 1 for site in sites) and all(part.apart for t in terms for part in t.marginals.parts)


def _rows_of_sites(latents: Latents, root: Float[Array, "1 R R"]) -> dict[str, Float[Array, "1 M R"]]:
    rows, first = {}, 0
    for name, (J, M) in latents.shapes.items():
        rows[name], first = root[:, first : first + J * M], first + J * M
    return rows


def _of_site(site: Site, v: Float[Array, "J M"], root: Float[Array, "J M R"], latents: Latents) -> dict[str, Array]:
    law, several = (
        {"scale": root if site.prior.num_outputs is not None else root[0]},
        site.prior.num_outputs is not None,
    )
    if site.conditional is None:
        L = latents.roots[site.name].mT
        law["factor"] = L if len(L) > 1 else L[0]
        v = linalg.solve_lower(L, v[..., None], transpose=True)[..., 0]
    return law | {"mean": v.T if several else v[0]}


def _sharpest(data: DataCovariance) -> Float[Array, ""]:
    """Approximately the largest eigenvalue of the covariance in units of the noise, as in the precision of ``v``.

    It is the largest Rayleigh quotient of a root's columns, ``|C e|^2 / e^T C e``.
    """
    C = data.covariance / jnp.sqrt(data.noise[..., None] * data.noise[..., None, :])
    return jnp.max(jnp.sum(jnp.square(C), axis=-1) / linalg.diagonal(C))


def _by_covariance(
    sites: Sequence[Site], latents: Latents, data: DataCovariance, key: PRNGKeyArray
) -> tuple[dict, dict, Bool[Array, ""]]:
    """Values, laws and whether they were found, for data that have one covariance.

    Draws are by Matheron's rule (Wilson et al. 2020, eq. 13).
    """
    (term,) = latents.terms
    L = jnp.linalg.cholesky(data.covariance, symmetrize_input=False)
    key_noise, *keys = random.split(key, len(sites) + 1)
    noise = jnp.sqrt(data.noise) * random.normal(key_noise, data.y.shape, data.y.dtype)
    drawn, seen = data.y - noise, {}
    prior = {}
    for site, site_key in zip(sites, keys, strict=True):
        K = site.covariance()
        v = random.normal(site_key, (site.outputs, K.shape[-1]), K.dtype)
        prior[site.name] = _prior_draw(site, K, v)
        part = next(part for part in term.marginals.parts if part.site == site.name)
        seen[site.name] = _weights(term, part)
        drawn = drawn - seen[site.name] * prior[site.name]
    moved, a = _solved(L, drawn), _solved(L, data.y)
    values, of_sites = {}, {}
    for site in sites:
        several, w = site.prior.num_outputs is not None, seen[site.name]
        K = site.covariance()
        moved_by = w * moved
        f = prior[site.name] + einsum("jmn,jn->jm", jnp.broadcast_to(K, (len(moved_by), *K.shape[1:])), moved_by)
        values[f"{site.name}_mean"] = f.T.reshape(site.prior.event_shape)
        values[f"{site.name}_inducing"] = site.prior.X
        of_sites[site.name] = {"mean": a.T if several else a[0], "seen": w if len(w) > 1 else w[0]}
    law: dict[str, Any] = {"factor": L if len(L) > 1 else L[0], "sites": of_sites}
    return values, {"+".join(of_sites): law}, jnp.all(jnp.isfinite(L))


def _prior_draw(site: Site, K: Float[Array, "_ N N"], v: Float[Array, "J N"]) -> Float[Array, "J N"]:
    """A draw of the prior without its mean. The data's covariance may have a factor where the prior's has none."""
    name, times = f"the covariance of GP site {site.name!r}", v.T[None] if len(K) == 1 else v[..., None]
    drawn = linalg.root(K, name, site.prior.covariance_jitter, times=times)
    return drawn[0].T if len(K) == 1 else drawn[..., 0]


def _weights(term: Term, part: AffineMap) -> Float[Array, "_ N"]:
    """Weights by which data see the rows of a site; 0 if not observed."""
    weights, seen = part.weights if part.weights.ndim == 2 else part.weights[..., 0], term.seen()
    weights = jnp.broadcast_to(weights, (len(term.marginals), weights.shape[1]))
    return (weights if seen is None else jnp.where(seen, weights, 0)).T


def _solved(L: Float[Array, "_ N N"], columns: Float[Array, "D N"]) -> Float[Array, "D N"]:
    """``(L L^T)^-1`` times the rows of ``columns``, each by its own factor if there are several."""
    if len(L) == 1:
        return _both(L[0], columns.T).T
    return _both(L, columns[..., None])[..., 0]


def _both(L: Float[Array, "... N N"], columns: Float[Array, "... N K"]) -> Float[Array, "... N K"]:
    return linalg.solve_lower(L, linalg.solve_lower(L, columns), transpose=True)
