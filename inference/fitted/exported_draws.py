"""Draws of a posterior, or of a prior, at data: values, densities, replicated data, and names of axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, random

from gpzoo import _checks as checks
from gpzoo import linalg
from gpzoo.inducing.variables import InducingVariable
from gpzoo.inference.fitted.given import Given, GivenProgram, given_at
from gpzoo.inference.fitted.map_batches import Arrays, Batch, Static
from gpzoo.inference.guides.draws import DrawsGuide
from gpzoo.inference.programs.enumeration import summed_out
from gpzoo.inference.programs.gp_sites import JointDraw
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.runs import (
    Runs,
    Trace,
    data_of,
    entries_of,
    observed,
    run,
    sampled,
    terms_per_datum,
    unmasked,
)
from gpzoo.likelihoods import Likelihood
from gpzoo.likelihoods.answers import as_predictive
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.process import GaussianProcess, ProcessAtInputs

#: A random key, and given values of latent sites.
Draw: TypeAlias = tuple[Array, dict[str, Array]]

#: New inputs count their batches from here. Their ``f`` given ``u`` is then drawn with other keys.
_NEW = 1 << 20


class Notes(NamedTuple):
    """Facts about the sites of the program, from a draw at the data.

    Attributes:
        axes: names of the axes of every array; ``None`` for axes without a name.
        like_rows: for each site with as many entries as there are rows, whether its data or its inputs are a positional
            argument. If so, the site has one entry for each row. ``None`` for a deterministic site outside plates.
        seen: names of observed GP sites.
        processes: names of latent GP sites.
    """

    axes: dict[str, list[str | None]]
    like_rows: dict[str, bool | None]
    seen: frozenset[str]
    processes: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Draws(GivenProgram):
    """Draws of a posterior. Each draw is a run of the program, with draws of the guide or given draws.

    Attributes:
        latents: names of the latent sites, without discrete sites, which have no draws.
        plate_depth: depth of plates, if the program has discrete latent sites; ``None`` without discrete latent sites.
            Densities are summed over the values of these sites.
        count: number of draws.
        parts: the GP sites whose addends are drawn too, with the names of the addends.
        at_inducing: see :class:`~gpzoo.inference.programs.gp_sites.JointDraw`, at all rows of the data.
    """

    latents: frozenset[str]
    count: int
    parts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    plate_depth: int | None = None
    at_inducing: frozenset[str] = frozenset()

    @property
    def sites_of_parts(self) -> dict[str, str]:
        """The site of each addend, by name of the addend."""
        return {name: site for site, names in self.parts for name in names}

    def prepare(self, given: Draw, batch: Batch) -> tuple[Draw, Batch]:
        """Keys of all draws, and of sampled views, from one key."""
        key, samples = given
        batch = batch._replace(views=named_key(key, "views"))
        if batch.others is not None:
            batch = batch._replace(others=(batch.others[0]._replace(views=batch.views), batch.others[1]))
        return (random.split(named_key(key, "export"), self.count), samples), batch

    @property
    def of_mcmc(self) -> bool:
        """Whether the draws come from MCMC. Such draws have no ``log q``."""
        return self.guide is None or isinstance(self.guide, DrawsGuide)

    def at_data(self, draw: Draw, batch: Batch) -> Arrays:
        """Values, densities and replicated data at a batch of rows.

        The result is a dictionary of groups. The group ``notes`` has names of axes, see :class:`Notes`. The group
        ``others`` has the densities that are not sums over rows: those of observed GP sites and of factors.
        ``left_out`` has the density of each row of an observed GP site given all other rows.
        """
        found, mode = self._run(draw, batch, self.given_u(draw[1]), at_inducing=self.at_inducing)
        data, processes = terms_per_datum(found.model), _observed_processes(found.model)
        replicates = _replicates(data, random.fold_in(draw[0], batch.number))
        if processes:  # drawn again given their data
            again, _ = self._run(draw, batch, {name: given_at(name, site) for name, site in processes.items()})
            replicates |= {name: again.model[name]["value"] for name in processes}
        log_prior, log_q = self._densities(found, mode, len(batch.rows))
        masks, summed = {n: observed(s["fn"], s["value"]) for n, s in data.items()}, found.model
        if self.plate_depth is not None:
            program = summed_out(self.model, self.plate_depth)
            summed = self._run(draw, batch, self.given_u(draw[1]), program)[0].model
        terms = {n: s["fn"].log_prob(s["value"]) for n, s in data_of(summed).items()}
        by_datum = {n for n, x in terms.items() if n in masks and x.shape == masks[n].shape}
        posterior = {n: s["value"] for n, s in (found.guide | found.model).items() if self._is_kept(n, s)}
        return {
            "posterior": posterior | mode.addends | {f"{name}_u": u.u for name, u in self.given_u(draw[1]).items()},
            "posterior_predictive": replicates,
            "log_likelihood": {n: x for n, x in terms.items() if n in by_datum},
            "left_out": {n: _left_out(s["fn"], jnp.asarray(s["value"])) for n, s in processes.items()},
            "log_prior": log_prior,
            "log_q": log_q,
            "others": {n: x for n, x in terms.items() if n not in by_datum},
            "observed_data": {n: entries_of(s["fn"], s["value"]) for n, s in (data | processes).items()},
            "masks": masks,
            "notes": Static(self._notes(found, data, processes, batch)),
        }

    def at_new(self, draw: Draw, batch: Batch) -> Arrays:
        """GP sites and replicated data at a batch of new inputs. ``batch.others`` has all data, and :class:`Notes`.

        For counts, the result also has means. A parameter that is NaN makes the means NaN, but not draws of counts.
        """
        given = self.given_u(draw[1])
        of_data, notes = batch.others[0], batch.others[1].value
        if self.guide is None or notes.seen:
            trace = self._run(draw, of_data, given)[0].model
            known = notes.seen | (self.latents if self.guide is None else set())
            for name in sorted(known - given.keys()):
                if name in trace and isinstance(trace[name]["fn"], GaussianProcess):
                    given[name] = given_at(name, trace[name])
        batch = batch._replace(number=batch.number + _NEW)
        found, mode = self._run(draw, batch, given)
        sites = sampled(found.model | found.guide)
        processes = {n: s["value"] for n, s in sites.items() if isinstance(s["fn"], ProcessAtInputs)}
        data = {n: s for n, s in sites.items() if n in notes.axes and n not in self.latents and n not in processes}
        drawn = _replicates(data, random.fold_in(draw[0], batch.number))
        of_rows = {n: s["value"] for n, s in found.model.items() if s["type"] == "deterministic"}
        of_rows = {n: x for n, x in of_rows.items() if n in batch.layouts.value}
        means = {}
        for name, site in data.items():
            fn = as_predictive(unmasked(site["fn"]))
            if jnp.issubdtype(drawn[name].dtype, jnp.integer) and fn.num_classes is None:
                means[name] = fn.mean
        return {"predictions": processes | mode.addends | of_rows | drawn, "means": means}

    def of_prior(self, key: Array, batch: Batch) -> Arrays:
        """Values and data that the program draws."""
        trace = run(key, batch.args, batch.kwargs, model=self.model, values=batch.params).model
        drawn = {n: s["value"] for n, s in trace.items() if self._is_kept(n, s)}
        return {
            "prior": drawn,
            "prior_predictive": _replicates(terms_per_datum(trace) | _observed_processes(trace), key),
        }

    def _run(
        self,
        draw: Draw,
        batch: Batch,
        given: Mapping[str, Given],
        model: Callable | None = None,
        at_inducing: frozenset[str] = frozenset(),
    ) -> tuple[Runs, JointDraw]:
        (key, sample), of_rows = draw, frozenset(batch.layouts.value)
        own: Any = {"parts": dict(self.parts), "at_inducing": at_inducing}
        mode = JointDraw(views=batch.views, batch=batch.number, of_rows=of_rows, **own)
        if self.guide is None:  # a guide's draw is the same in all batches
            key = random.fold_in(key, batch.number)
        return self.run(key, batch, batch.params | sample, given, guide_mode=mode, model=model), mode

    def _is_kept(self, name: str, site: dict[str, Any]) -> bool:
        recorded = site["type"] == "deterministic" and not isinstance(site["value"], InducingVariable)
        return name in self.latents or recorded

    def _densities(self, found: Runs, mode: JointDraw, num_rows: int) -> tuple[dict[str, Array], dict[str, Array]]:
        """``log p`` and ``log q`` of each latent site, or of its ``u`` if it has one: ``f`` given ``u`` cancels.

        If a site has as many terms as there are rows, the terms are not summed, because each batch has its own terms.
        """

        def total(x: Array) -> Array:
            return x if jnp.shape(x)[:1] == (num_rows,) else jnp.sum(x)

        log_prior, log_q = {}, {}
        for name in sorted(self.latents):  # one order in every process, because a cache of programs on disk needs it
            prior, site = found.model[name]["fn"], found.guide.get(name)
            posterior = prior if site is None else site["fn"]
            if isinstance(posterior, InducingPosterior):
                log_prior[f"{name}_u"] = posterior.log_prior_of_inducing()
                if not self.of_mcmc:
                    log_q[f"{name}_u"] = mode.q[name].log_density_of(posterior.u_mean)
                continue
            value = found.model[name]["value"]
            log_prior[name] = total(prior.log_prob(value))
            if not self.of_mcmc:
                log_q[name] = total(posterior.log_prob(value))
        for name, site in sampled(found.guide).items():  # latent sites may be functions of auxiliary sites
            if site["infer"].get("is_auxiliary") and not self.of_mcmc:
                log_q[name] = jnp.sum(site["fn"].log_prob(site["value"]))
        return log_prior, log_q

    def _notes(self, found: Runs, data: Trace, processes: Trace, batch: Batch) -> Notes:
        """Notes with names of axes: of plates, of ``infer={"event_dims": [...]}``, outputs and inducing variables."""
        traces = found.guide | found.model
        kept = {n: s for n, s in traces.items() if self._is_kept(n, s) or n in data or n in processes}
        for name in self.latents:
            kept.pop(f"{name}_u", None)  # there may be as many inducing variables as rows
        like_rows: dict[str, bool | None] = {}
        for name, site in kept.items():
            if jnp.shape(site["value"])[:1] == batch.rows.shape:
                like_rows[name] = _is_argument(site, batch)
        latent = {n for n, s in kept.items() if isinstance(unmasked(s.get("fn")), ProcessAtInputs)} & self.latents
        row = _name_of_rows(kept | sampled(found.model), like_rows, len(batch.rows))
        axes: dict[str, list[str | None]] = {}
        for name, site in kept.items():
            fn, own = unmasked(site.get("fn")), _axes(site)
            if isinstance(fn, ProcessAtInputs):
                outputs = _outputs(name, site, data)
                own = [row if name in like_rows else f"{name}_row"]
                own = [*own, *([] if fn.in_row is None else [f"{name}_input"]), *outputs]
                axes[f"{name}_u"] = [f"{name}_inducing_row", *outputs]
            elif isinstance(fn, Likelihood) and name in data:
                of = [n for n in axes.keys() & traces.keys() if traces[n]["value"] is fn.f]
                own = (own or axes[of[0]][:1]) + axes[of[0]][1:] if of else own  # no plate names its rows
            elif not own and name in like_rows and site["type"] == "deterministic":
                own, like_rows[name] = [row], like_rows[name] or None
            events = (site.get("infer") or {}).get("event_dims", [])
            ndim = jnp.ndim(site["value"])
            axes[name] = [*own[:ndim][: ndim - len(events)], *events]
        return Notes(axes, like_rows, frozenset(processes), frozenset(latent))


def _is_argument(site: Mapping[str, Any], batch: Batch) -> bool:
    """Whether the value of a site, or its inputs, is a positional argument."""
    fn = site.get("fn")
    own = [site["value"], getattr(fn, "X", None), getattr(getattr(fn, "prior", None), "X", None)]
    return any(x is leaf for leaf in jax.tree.leaves(batch.args) for x in own)


def _name_of_rows(sites: Trace, like_rows: Mapping[str, bool | None], num_rows: int) -> str:
    """The name of the plate of the rows, from data that are an argument."""
    of_rows = [name for name, site in sites.items() if jnp.shape(site["value"])[:1] == (num_rows,)]
    for name in sorted(of_rows, key=lambda name: not like_rows.get(name)):
        axes = _axes(sites[name])
        if axes and axes[0] is not None and len(axes) == len(sites[name]["fn"].batch_shape):
            return axes[0]
    return "row"


def _outputs(name: str, site: Mapping[str, Any], data: Trace) -> list[str]:
    """The name of the axis of a GP site's outputs, which depends on the likelihood of the site."""
    if site["fn"].num_outputs is None:
        return []
    for other in data.values():
        likelihood = unmasked(other["fn"])
        if isinstance(likelihood, Likelihood) and likelihood.f is site["value"]:
            return [f"{name}_{likelihood.column_axis}"]
    return [f"{name}_output"]


def _axes(site: Mapping[str, Any]) -> list[str | None]:
    """The plates around a site, in the order of its axes."""
    frames = {frame.dim: frame.name for frame in site.get("cond_indep_stack") or ()}
    return [frames.get(dim) for dim in range(min(frames, default=0), 0)]


def _left_out(prior: GaussianProcess, y: Array) -> Array:
    """``log p(y_n | y_-n)``, summed over outputs, for leave-one-out checks (Sundararajan and Keerthi 2001, eq. 5)."""
    mean, K = prior.moments()
    inverse: Any = linalg.cholesky_and_inverse(K, "the covariance of observed data", prior.covariance_jitter)[1]
    precision = linalg.matmul(inverse.mT, inverse)
    residual = (y - mean).reshape(len(y), -1).T[..., None]
    variance = 1 / linalg.diagonal(precision)
    square = jnp.square(linalg.matmul(precision, residual)[..., 0]) * variance
    return -jnp.sum(square + jnp.log(2 * jnp.pi * variance), axis=0) / 2


def _replicates(data: Trace, key: Array) -> dict[str, Array]:
    """Data drawn anew."""
    key = named_key(key, "data")
    return {name: unmasked(site["fn"]).sample(named_key(key, name)) for name, site in data.items()}


def _observed_processes(trace: Trace) -> Trace:
    found = {name: site for name, site in data_of(trace).items() if isinstance(site["fn"], GaussianProcess)}
    several = [name for name, site in found.items() if site["fn"].in_row is not None]
    checks.refuse(several, f"Observed GP site(s) {several} with several inputs in a row are not exported.")
    return found
