"""Domain of data: rows that have no density under their site's distribution, for any values of latent functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from inspect import getattr_static
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer, eval_jaxpr
from jaxtyping import Bool
from numpyro.distributions import Distribution, ExpandedDistribution, Independent, MaskedDistribution, constraints
from numpyro.distributions.distribution import Unit

from gpzoo import _checks as checks
from gpzoo._numpyro import mask_of
from gpzoo.inference.programs.runs import Trace, data_of, observed, relaxed_promotion, unmasked
from gpzoo.likelihoods import Expected, Likelihood
from gpzoo.likelihoods.base import MaskedLikelihood
from gpzoo.processes.marginals import GaussianMarginals
from gpzoo.processes.process import GaussianProcess

#: All latent functions take these values, one after another. Data that have a density at none of them are refused.
SHIFTS = (0.0, 1.0, -1.0, 3.0, -3.0, 30.0, -30.0)

#: Most numbers in a check of the data; a larger check, such as a network on all images, is left to the first step.
MOST = 2**26


def impossible_rows(trace: Trace) -> dict[str, Bool[Array, "..."]]:
    """Which terms of a run's data sites have no density at these values of the latent sites, by site."""
    sites = {name: site for name, site in data_of(trace).items() if np.size(site["value"])}
    return {name: _impossible(site["fn"], site["value"]) for name, site in sites.items() if _asked(site["fn"])}


def _asked(fn: Any) -> bool:
    """Whether a distribution is NumPyro's; gpzoo's likelihoods check their data themselves."""
    law = unmasked(fn)
    return isinstance(law, Expected) or not isinstance(law, Likelihood | GaussianProcess | Unit)


def _impossible(fn: Any, value: Any) -> Bool[Array, "..."]:
    law, value = _law(fn), jnp.asarray(value)
    if isinstance(unmasked(fn), Expected):
        value, _ = _of_entries(fn).typed(_of_rows(fn, value, law))  # without missing entries
    with relaxed_promotion():
        terms, inside = law.log_prob(value), law.support(value)
        possible = jnp.isfinite(terms)
        if _moves(law):
            possible |= ~_by_term(inside, terms.shape)
        else:
            possible &= _by_term(inside, terms.shape)
        for good in _good_parameters(law):
            possible &= _by_term(good, terms.shape)
    return observed(fn, value) & ~possible


def _of_rows(fn: Any, value: Array, law: Any) -> Array:
    """Data, with a possible value in place of rows that a mask leaves out."""
    while isinstance(fn, MaskedDistribution):
        mask = mask_of(fn)
        if getattr(fn, "entries", None) is None and not isinstance(mask, bool):
            counts = jnp.broadcast_to(mask, fn.batch_shape)
            counts = counts.reshape(*counts.shape, *(1,) * (value.ndim - counts.ndim))
            value = jnp.where(counts, value, law.support.feasible_like(value).astype(value.dtype))
        fn = fn.base_dist
    return value


def _of_entries(fn: Any) -> Any:
    """The likelihood of the entries that a mask leaves in."""
    while isinstance(fn, MaskedDistribution):
        if isinstance(fn, MaskedLikelihood) and fn.entries is not None:
            return fn.of_entries()
        fn = fn.base_dist
    return fn


def _law(fn: Any) -> Any:
    """NumPyro's distribution of a data site, at the means if latent functions are marginals."""
    law = unmasked(fn)
    if not isinstance(law, Expected):
        return law
    # Parameters out of range are reported here with their rows, and not by the likelihood.
    return law.fn(law.f.loc if isinstance(law.f, GaussianMarginals) else law.f, *law.params)


def _plain(law: Any) -> Any:
    while isinstance(law, Independent | ExpandedDistribution | MaskedDistribution):
        law = law.base_dist
    return law


def _moves(law: Any) -> bool:
    """Whether a law's support depends on its parameters; training may then move it until the data are inside."""
    fixed = getattr_static(_plain(law), "support")
    known = isinstance(fixed, constraints.Constraint) and not constraints.is_dependent(fixed)
    return not known and not law.support.is_discrete


def _good_parameters(law: Any) -> Iterable[Bool[Array, "..."]]:
    """Which parameters are within their constraints; at zero, the limit of positive numbers, the density decides."""
    plain = _plain(law)
    for name, constraint in plain.arg_constraints.items():
        value = vars(plain).get(name)
        if value is None or isinstance(value, Distribution) or constraints.is_dependent(constraint):
            continue
        good = jnp.asarray(constraint(value))
        yield good if constraint.event_dim else good | (jnp.asarray(value) == 0)


def _by_term(good: Array, shape: tuple[int, ...]) -> Array:
    """Whether all entries of each term are good."""
    if good.shape[: len(shape)] == shape:
        return good.reshape(*shape, -1).all(-1)
    return jnp.broadcast_to(good, shape) if checks.fits_into(good.shape, shape) else jnp.asarray(True)


def refuse_impossible(
    traced: Any, names: list[str], trace: Trace, named_args: Mapping[str, Any], laws: Mapping[str, str]
) -> None:
    """Refuse data that have no density at any of :data:`SHIFTS`; checked only outside ``jit``.

    Args:
        traced: the program of :func:`impossible_rows`, traced with the shift of the latent functions as its argument.
        names: names of the data sites, one for each result of ``traced``.
        trace: the sites by name.
        named_args: the program's arguments by name.
        laws: the names of the data sites' distributions.

    Raises:
        ValueError: naming the site, its distribution, and the arguments of the first such row.
    """
    program = needed_part(traced.jaxpr)
    known = all(map(_is_known, traced.consts)) and not program.effects
    sizes = sum(x.aval.size for equation in program.eqns for x in equation.outvars)
    if not names or not known or sizes > MOST:
        return

    @jax.jit
    def bad_everywhere(consts: list[Any]) -> list[Array]:
        at_all = lax.map(partial(eval_jaxpr, program, consts), jnp.asarray(SHIFTS))
        return [bad.all(0) for bad in at_all]

    with jax.ensure_compile_time_eval():
        found = [np.asarray(bad) for bad in bad_everywhere(traced.consts)]
    for name, bad in zip(names, found, strict=True):
        if bad.any():
            raise _refusal(name, bad, trace[name], named_args, laws[name])


def needed_part(program: Any) -> Any:
    """A traced program without the operations that its results do not need."""
    needed, kept = {x for x in program.outvars if not hasattr(x, "val")}, []
    for equation in reversed(program.eqns):
        if needed.intersection(equation.outvars):
            needed |= {x for x in equation.invars if not hasattr(x, "val")}
            kept.append(equation)
    return program.replace(eqns=kept[::-1], effects=frozenset().union(*(each.effects for each in kept)))


def _is_known(x: Any) -> bool:
    return not isinstance(x, Tracer) and getattr(x, "is_fully_addressable", True)


def _refusal(name: str, bad: np.ndarray, site: dict[str, Any], named_args: Mapping[str, Any], law: str) -> ValueError:
    at = checks.first_of(bad)
    said = [] if isinstance(site["value"], Tracer) else [f"{name} = {np.asarray(site['value'])[at]}"]
    for argument, x in named_args.items():
        if at and np.shape(x) == bad.shape[:1] and x is not site["value"]:
            said.append(f"{argument} = {np.asarray(x)[at[0]]}")
    fn = unmasked(site["fn"])
    support = getattr_static(_plain(fn.of_shapes() if isinstance(fn, Expected) else fn), "support")
    within = f", {support}" if isinstance(support, constraints.Constraint) else ""
    where = ", ".join([str(at[0] if at else 0), *said])
    return ValueError(
        f"Site {name!r}: under {law} the data of {bad.sum()} of {bad.size} rows have no density, whatever the latent "
        f"functions are. The first is row {where}. Leave these rows out or correct "
        f"them: data must lie in the support{within}, and inside of it where the density at its ends is 0 or infinite "
        "(of shares that are 0 or 1 take (y (N - 1) + 0.5) / N); counts above 0 need an exposure above 0."
    )
