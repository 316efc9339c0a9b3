"""What does one draw of a posterior, or of a prior, give at data? Values, densities, replicated data, names of axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax import Array, random

from gpzoo import _checks as checks
from gpzoo import linalg
from gpzoo.inducing.variables import InducingVariable
from gpzoo.inference.asking.ask import At, Found
from gpzoo.inference.asking.given import Given, GivenProgram, given_at
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

#: Batches of new inputs are counted from here, so that the rest of ``f`` given ``u`` is drawn anew.
_NEW = 1 << 20


@dataclass(frozen=True)
class Notes:
    """Names of axes and of sites, read from the trace of a draw at the data.

    Attributes:
        axes: names of the axes of every array, ``None`` for those without one.
        rows: which of these names count rows of the data.
        seen: names of observed GP sites.
        processes: names of latent GP sites.
    """

    axes: dict[str, list[str | None]] = field(default_factory=dict)
    rows: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    processes: set[str] = field(default_factory=set)


@dataclass(frozen=True, kw_only=True)
class Draws(GivenProgram):
    """Draws of a posterior: each is a run of the program, of the guide's draws or of given ones.

    Attributes:
        latents: names of the latent sites, without discrete ones, which have no draws.
        plate_depth: of a program with discrete latent sites, whose values its densities are summed over; else ``None``.
        notes: filled by the first draw at the data.
    """

    latents: frozenset[str]
    plate_depth: int | None = None
    notes: Notes = field(default_factory=Notes)

    @property
    def of_mcmc(self) -> bool:
        """Whether draws are those of MCMC, whose ``log q`` is not known."""
        return self.guide is None or isinstance(self.guide, DrawsGuide)

    def at_data(self, draw: Draw, at: At) -> Found:
        """Values, densities and replicated data at a batch of rows.

        ``others`` are the densities of observed sites that have no terms per datum, observed GP sites and factors;
        ``left_out`` those of each datum of an observed GP site given all the others.
        """
        found, shown = self._run(draw, at, self.given_u(draw[1]))
        data, processes = terms_per_datum(found.model), _observed_processes(found.model)
        self._note(found, data, processes)
        replicates = _replicates(data, random.fold_in(draw[0], at.number))
        if processes:  # drawn again given their data
            again, _ = self._run(draw, at, {name: given_at(name, site) for name, site in processes.items()})
            replicates |= {name: again.model[name]["value"] for name in processes}
        log_prior, log_q = self._densities(found, shown)
        masks, summed = {n: observed(s["fn"], s["value"]) for n, s in data.items()}, found.model
        if self.plate_depth is not None:
            program = summed_out(self.model, self.plate_depth)
            summed = self._run(draw, at, self.given_u(draw[1]), program)[0].model
        terms = {n: s["fn"].log_prob(s["value"]) for n, s in data_of(summed).items()}
        by_datum = {n for n, x in terms.items() if n in masks and x.shape == masks[n].shape}
        posterior = {n: s["value"] for n, s in (found.guide | found.model).items() if self._is_kept(n, s)}
        return {
            "posterior": posterior | {f"{name}_u": given.u for name, given in self.given_u(draw[1]).items()},
            "posterior_predictive": replicates,
            "log_likelihood": {n: x for n, x in terms.items() if n in by_datum},
            "left_out": {n: _left_out(s["fn"], jnp.asarray(s["value"])) for n, s in processes.items()},
            "log_prior": log_prior,
            "log_q": log_q,
            "others": {n: x for n, x in terms.items() if n not in by_datum},
            "observed_data": {n: entries_of(s["fn"], s["value"]) for n, s in (data | processes).items()},
            "masks": masks,
        }

    def at_new(self, of_data: Draws, draw: Draw, at: At) -> Found:
        """GP sites and replicated data at a batch of new inputs; ``at.others`` are the arguments of ``of_data``.

        With the means of counts, whose draws cannot be NaN where a parameter is.
        """
        given, notes = self.given_u(draw[1]), self.notes
        if self.guide is None or notes.seen:
            args, arrays = at.others
            trace = of_data._run(draw, at._replace(args=args, arrays=arrays, number=0), given)[0].model
            known = notes.seen | (self.latents if self.guide is None else set())
            known = {n: s for n, s in trace.items() if n in known - given.keys()}
            given |= {n: given_at(n, s) for n, s in known.items() if isinstance(s["fn"], GaussianProcess)}
        at = at._replace(number=at.number + _NEW)
        found, _ = self._run(draw, at, given)
        sites = sampled(found.model | found.guide)
        processes = {n: s["value"] for n, s in sites.items() if isinstance(s["fn"], ProcessAtInputs)}
        data = {n: s for n, s in sites.items() if n in notes.axes and n not in self.latents and n not in processes}
        of_rows = {n: s["value"] for n, s in found.model.items() if s["type"] == "deterministic" and n in self.layouts}
        drawn = _replicates(data, random.fold_in(draw[0], at.number))
        said = {
            n: as_predictive(unmasked(s["fn"])) for n, s in data.items() if jnp.issubdtype(drawn[n].dtype, jnp.integer)
        }
        means = {n: fn.mean for n, fn in said.items() if fn.num_classes is None}
        return {"predictions": processes | of_rows | drawn, "means": means}

    def of_prior(self, key: Array, at: At) -> Found:
        """Values and data that the program draws."""
        trace = run(key, at.args, at.arrays | dict(self.static), model=self.model, values=at.params).model
        drawn = {n: s["value"] for n, s in trace.items() if self._is_kept(n, s)}
        return {
            "prior": drawn,
            "prior_predictive": _replicates(terms_per_datum(trace) | _observed_processes(trace), key),
        }

    def _run(
        self, draw: Draw, at: At, given: Mapping[str, Given], model: Callable | None = None
    ) -> tuple[Runs, JointDraw]:
        key, sample = draw
        shown = JointDraw(views=at.views, batch=at.number, of_rows=frozenset(self.layouts))
        if self.guide is None:  # a guide's draw is the same in all batches
            key = random.fold_in(key, at.number)
        values = at.params | sample
        return self.run(key, at.with_static(self.static), values, given, of_guide=shown, model=model), shown

    def _is_kept(self, name: str, site: dict[str, Any]) -> bool:
        recorded = site["type"] == "deterministic" and not isinstance(site["value"], InducingVariable)
        return name in self.latents or recorded

    def _densities(self, found: Runs, shown: JointDraw) -> tuple[dict[str, Array], dict[str, Array]]:
        """``log p`` and ``log q`` of each latent site; of ``u`` where there is one, since ``f`` given ``u`` cancels.

        Those of latents of rows have a term for each row.
        """
        log_prior, log_q = {}, {}
        total = lambda name, x: jnp.asarray(x) if name in self.layouts else jnp.sum(x)  # noqa: E731
        for name in self.latents:
            prior, site = found.model[name]["fn"], found.guide.get(name)
            posterior = prior if site is None else site["fn"]
            if isinstance(posterior, InducingPosterior):
                log_prior[f"{name}_u"] = posterior.log_prior_of_inducing()
                if not self.of_mcmc:
                    log_q[f"{name}_u"] = shown.q[name].log_density_of(posterior.u_mean)
                continue
            value = found.model[name]["value"]
            log_prior[name] = total(name, prior.log_prob(value))
            if not self.of_mcmc:
                log_q[name] = total(name, posterior.log_prob(value))
        for name, site in sampled(found.guide).items():  # latent sites may be functions of auxiliary ones
            if site["infer"].get("is_auxiliary") and not self.of_mcmc:
                log_q[name] = jnp.sum(site["fn"].log_prob(site["value"]))
        return log_prior, log_q

    def _note(self, found: Runs, data: Trace, processes: Trace) -> None:
        """Names of axes: of plates, of ``infer={"event_dims": [...]}``, and of outputs and inducing variables."""
        notes = self.notes
        plates = {name: _axes(site) for name, site in data.items()}
        by_row = [s for n, s in sampled(found.model).items() if n in self.by_row]
        of_rows = [axes[0] for s in by_row if (axes := _axes(s)) and len(axes) == len(s["fn"].batch_shape)]
        row = next(iter(of_rows), "row")
        notes.seen.update(processes)
        notes.rows.update(of_rows, {"row"})
        for name, site in (found.guide | found.model).items():
            if not self._is_kept(name, site) and name not in data | processes:
                continue
            fn, value = site.get("fn"), site["value"]
            axes = plates.get(name) or _axes(site)
            if site["type"] == "deterministic" and not axes and name in self.by_row:
                axes = [row]
            if isinstance(fn, ProcessAtInputs):
                notes.processes.update({name} & self.latents)
                outputs = [] if fn.num_outputs is None else [f"{name}_output"]
                for other in data.values():
                    likelihood = unmasked(other["fn"])
                    if isinstance(likelihood, Likelihood) and likelihood.f is value:
                        outputs = [f"{name}_{likelihood.column_axis}"] if outputs else []
                own = row if name in self.by_row else f"{name}_row"
                axes = [own, *([] if fn.in_row is None else [f"{name}_input"]), *outputs]
                notes.axes[f"{name}_u"] = [f"{name}_inducing_row", *outputs]
            if isinstance(likelihood := unmasked(fn), Likelihood) and name in data:
                of = [n for n, s in (found.guide | found.model).items() if s["value"] is likelihood.f]
                axes = axes + notes.axes.get(of[0] if of else "", [])[1:]
            axes = axes[: jnp.ndim(value)]
            events = (site.get("infer") or {}).get("event_dims", [])
            notes.axes[name] = [*axes[: jnp.ndim(value) - len(events)], *events]


def _axes(site: dict[str, Any]) -> list[str | None]:
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
