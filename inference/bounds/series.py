"""Densities of time series, and laws of functions given a series, in a time that is linear in the number of rows."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jaxtyping import Bool, Float, Integer, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo._checks import is_concrete
from gpzoo.inference.bounds.evidence import Site, Term, residual_of
from gpzoo.inference.bounds.laws import SitesGivenData
from gpzoo.inference.bounds.left_out import one_by_one
from gpzoo.kernels.base import states_of
from gpzoo.linalg.operators import einsum
from gpzoo.linalg.state_space import (
    Between,
    States,
    draw,
    filtered,
    log_density,
    means_of_states,
    smoothed,
)
from gpzoo.processes.process import GaussianProcess

_ASKED = "marginal(program, state_space=True)"


class AsSeries(NamedTuple):
    """The structure of data that are one time series of Markov processes."""

    def refuse_site(self, prior: GaussianProcess, name: str) -> None:
        """Refuse a GP site that is not a Markov process of one column.

        Raises:
            TypeError: naming the site, if its kernel has no state-space form.
            ValueError: naming the site, for several columns or outputs.
        """
        kernel, shape = prior.kernel, jnp.shape(prior.X)
        checks.refuse(
            len(shape) != 2 or shape[1] != 1 or prior.num_outputs is not None,
            f"{_ASKED} takes GP sites of one output on one column of times, and site {name!r} has inputs {shape} and "
            f"outputs {prior.num_outputs}: leave state_space out.",
        )
        try:
            states_of(kernel, jnp.zeros_like(prior.X[:1]))
        except TypeError as error:
            raise TypeError(f"{_ASKED}, GP site {name!r}: {error}") from None

    def of_data(self, sites: Sequence[Site], earlier: Sequence[Term], term: Term) -> AsSeries:
        """Return this structure, or refuse data that are not one series with Gaussian noise.

        Args:
            sites: sites of the program.
            earlier: data sites before this one.
            term: the data.

        Raises:
            ValueError: naming the data site.
        """
        f, name, instead = term.marginals, term.name, "leave state_space out."
        kind = f"{_ASKED} is for Gaussian noise, and data site {name!r} is {type(term.likelihood).__name__}: {instead}"
        checks.refuse(not term.gaussian, kind)
        checks.refuse(bool(earlier), f"{_ASKED} takes one data site, and {name!r} is the second: {instead}")
        checks.refuse(
            f.ndim != 1 and f.shape[1] != 1,
            f"{_ASKED} takes data of one column, and those of {name!r} are {f.shape}: {instead}",
        )
        own = [site for site in sites if site.name in f.sites]
        for site in own:
            rows = next(part for part in f.parts if part.site == site.name)
            once = rows.all_rows or (is_concrete(rows.numbers) and np.unique(rows.numbers).size == len(rows.numbers))
            noisy = site.prior.kernel.split_noise()[1] is not None
            checks.refuse(
                noisy and not once,
                f"{_ASKED} cannot give white noise in the kernel of site {site.name!r} to several rows of data site "
                f"{name!r} at once: leave this noise to the likelihood, or {instead}",
            )
        first = own[0].prior.X
        for site in own[1:]:
            X = site.prior.X
            known = is_concrete(first) and is_concrete(X)
            checks.refuse(
                X.shape != first.shape or (known and not np.array_equal(X, first)),
                f"{_ASKED} takes sites with the same times, and {own[0].name!r} and {site.name!r} of data site "
                f"{name!r} have others: {instead}",
            )
        return self

    def log_evidence(self, sites: Sequence[Site], term: Term) -> Float[Array, ""]:
        """``log p(y)`` of data that depend on a weighted sum of Markov processes, exact and in ``O(N)``.

        It is NaN if sites have times in different orders; :meth:`of_data` refuses this only outside ``jit``.
        """
        series = Series.of(sites, term)
        value = log_density(series.states, series.y, series.noise, series.count)
        return jnp.where(series.in_order, value, jnp.nan)

    def given(self, sites: Sequence[Site], terms: Sequence[Term], key: PRNGKeyArray) -> SitesGivenData:
        """Draws of sites given a series, the sites' laws at any time, and the density of each row given all other rows.

        Draws are by Matheron's rule, as for other data with Gaussian noise.
        """
        (term,) = terms
        series, (key_noise, key_left, *keys) = Series.of(sites, term), random.split(key, len(sites) + 2)
        found = filtered(series.states, series.y, series.noise)
        later = smoothed(series.states, found)
        between, back = Between.of(series.states, found, later), jnp.argsort(series.order)
        prior, paths = {}, dict(zip(series.own, keys, strict=False))
        for name, own in series.own.items():
            prior[name] = jnp.sum(own.h * draw(own, paths[name]), axis=-1)
        noise = jnp.sqrt(series.noise) * random.normal(key_noise, series.y.shape, series.y.dtype)
        drawn = filtered(
            series.states, series.y - noise - sum(series.weights[n] * f for n, f in prior.items()), series.noise
        )
        moved = means_of_states(series.states, drawn, smoothed(series.states, drawn))
        values, of_sites, first = {}, {}, 0
        for name, own in series.own.items():
            count, times = own.h.shape[1], series.times[name]
            f = prior[name] + jnp.sum(own.h * moved[:, first : first + count], axis=-1)
            part = between.of_states(first, count)
            values |= {f"{name}_mean": f[back], f"{name}_inducing": times[back]}
            law = {"mean": later.weights * series.weights[name], "times": times[:, 0]}
            of_sites[name] = law | {"between": part.mean, "root": part.root}
            if all(part.all_rows for part in term.marginals.parts):
                of_sites[name]["whole"] = jnp.zeros((), values[f"{name}_mean"].dtype)
            first += count
        left = one_by_one(term, series.y[back], later.weights[back], later.precisions[back], key_left)
        # A variance given other rows is a difference from the prior's variance, and has the prior's rounding errors.
        variances = einsum("ni,nij,nj->n", series.states.h, series.states.P, series.states.h)
        lost = jnp.finfo(series.y.dtype).eps * jnp.max(variances / series.noise)
        good = series.in_order & jnp.all(found.positive)
        return SitesGivenData(values, {"+".join(of_sites): {"sites": of_sites}}, good, left, lost)


class Series(NamedTuple):
    """Data that depend on a weighted sum of Markov processes, in the order of their times.

    Attributes:
        states: states of all sites, one below the other, with the weights.
        own: states of each site by name, without weights.
        weights: weights of each site in the sum, by name.
        y: data minus their mean; 0 if not observed.
        noise: variances of the noise; 1 if not observed.
        order: the number that each row of the series has in the program.
        count: number of observed data.
        times: times of each site by name.
        in_order: whether the times of every site rise in this order.
    """

    states: States
    own: dict[str, States]
    weights: dict[str, Float[Array, " N"]]
    y: Float[Array, " N"]
    noise: Float[Array, " N"]
    order: Integer[Array, " N"]
    count: Any
    times: dict[str, Float[Array, "N 1"]]
    in_order: Bool[Array, ""]

    @classmethod
    def of(cls, sites: Sequence[Site], term: Term) -> Series:
        """The series of a data site."""
        residual, noise, seen = residual_of(term)
        priors, parts = {site.name: site.prior for site in sites}, term.marginals.parts
        order = jnp.argsort(priors[parts[0].site].X[parts[0].numbers, 0])
        own, weights, times, in_order = {}, {}, {}, jnp.asarray(True)
        for part in parts:
            prior = priors[part.site]
            times[part.site] = prior.X[part.numbers][order]
            in_order &= jnp.all(jnp.diff(times[part.site], axis=0) >= 0)
            own[part.site] = states_of(prior.kernel, times[part.site])
            w = jnp.broadcast_to(part.weights.reshape(len(part.weights), -1)[:, 0], len(order))
            weights[part.site] = (w if seen is None else jnp.where(seen[:, 0], w, 0))[order]
        states = reduce(operator.add, (own[name].seen_by(weights[name]) for name in own))
        count = len(order) if seen is None else jnp.sum(seen, dtype=noise.dtype)
        return cls(states, own, weights, residual[order, 0], noise[order, 0], order, count, times, in_order)
