"""What does one path through a program predict at new inputs? A path is one value of each of its latent sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, random
from jaxtyping import Float, Integer, PRNGKeyArray, Shaped
from numpyro import handlers
from numpyro.distributions.distribution import Unit

from gpzoo._numpyro import in_chain
from gpzoo.inference.asking.ask import At
from gpzoo.inference.asking.given import Given, GivenProgram, given_at
from gpzoo.inference.asking.summaries import Asked, Path, SitePrediction, without_variance
from gpzoo.inference.programs.enumeration import DrawnByRow, scored
from gpzoo.inference.programs.gp_sites import BatchRows, Marginals, means, predicted_marginals
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.runs import relaxed_promotion, run, sampled, unmasked
from gpzoo.inference.programs.sites import Sites
from gpzoo.likelihoods.answers import as_predictive
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.marginals import GaussianMarginals
from gpzoo.processes.process import GaussianProcess

#: By name: GP sites that were observed at the training inputs, and those that a draw has values of there.
AtTraining: TypeAlias = tuple[dict[str, Given], dict[str, Given]]


@dataclass(frozen=True, kw_only=True)
class Paths(GivenProgram):
    """Predictions of draws: the guide or samples give the latent sites, training data condition GP sites.

    A draw is a random key, the samples of latent sites, and the result of :meth:`at_training` for both, or ``None``.

    Attributes:
        sites: of the program; discrete latent ones are drawn from their prior at new inputs.
        asked: of the prediction.
        train_static: keyword arguments of training that are no arrays.
    """

    sites: Sites
    asked: Asked
    train_static: Mapping[str, Any]

    def at_training(self, draw: tuple[PRNGKeyArray, dict], at: At) -> AtTraining:
        """The GP sites at the training inputs: those that were observed there, and those whose values the draw has."""
        (key, samples), (args, arrays) = draw, at.others
        at = at._replace(args=args, arrays=arrays).with_static(self.train_static)
        _, trace = self._traces(key, self._known(at.params, samples), at, self.given_u(samples), training=True)
        observed: dict[str, Given] = {}
        drawn: dict[str, Given] = {}
        for name, site in sampled(trace).items():
            if isinstance(site["fn"], GaussianProcess) and (site["is_observed"] or self.guide is None):
                (observed if site["is_observed"] else drawn)[name] = given_at(name, site)
        return observed, drawn

    def _known(self, params: dict, samples: dict) -> dict:
        return {name: x for name, x in (params | samples).items() if name not in self.sites.enumerated}

    def __call__(self, draw: tuple[PRNGKeyArray, dict, AtTraining | None], at: At) -> dict[str, dict[str, Path]]:
        """Every GP site and data site by name."""
        key, samples, training = draw
        known, given, tests = self._known(at.params, samples), self.given_u(samples), at.of_sites
        seen: set[str] = set()
        if at.others is not None:
            training = self.at_training((key, samples), at) if training is None else training
            observed, drawn_before = training
            given, seen = given | drawn_before | observed, set(observed)
        at = at.with_static(self.static)
        guide_trace, trace = self._traces(key, known, at, given)
        found = {}
        latents = {name: site["value"] for name, site in sampled(guide_trace).items()} | samples
        for name, site in (trace | guide_trace).items():
            fn = site.get("fn")
            if isinstance(fn, InducingPosterior):
                found[name] = _process(fn, site["value"], tests.get(name) if name in seen else None, self.asked)
                latents[name] = site["value"]
        data = {
            name: site["fn"]
            for name, site in sampled(trace).items()
            if name not in latents and not isinstance(site["fn"], Unit)
        }
        paths = {n: _data(fn, tests.get(n)) for n, fn in data.items() if n not in self.sites.enumerated}
        chosen = {name: trace[name]["value"] for name in data if name in self.sites.enumerated}
        paths |= {name: _latent(data[name], x, tests.get(name)) for name, x in chosen.items()}
        # NumPyro hands the whole of the data to the first step of a chain: there, densities are given the draw.
        chained = any(in_chain(trace[name]) for name in chosen)
        scores = {name: tests[name] for name in tests.keys() & data.keys() - chosen.keys()} if chosen else {}
        if scores and not chained:
            summed = scored(handlers.condition(self.model, scores), self.sites)
            _, terms = self._traces(key, known, at, given, summed)
            own = {name: terms[name]["fn"] for name in scores if name in terms}
            paths |= {
                n: _with_density(paths[n], jnp.asarray(fn.log_factor)) for n, fn in own.items() if isinstance(fn, Unit)
            }
        if wanted := {name for name, path in paths.items() if path.draws is None and _needs_draws(path, self.asked)}:
            key = named_key(key, "data")
            draws = self._draws(key, data, wanted, at.params | latents | chosen, at)
            paths |= {name: paths[name]._replace(draws=draw) for name, draw in draws.items()}
        paths = found | paths
        return {"paths": {n: without_variance(x) for n, x in paths.items()} if self.asked.mean_only else paths}

    def _draws(
        self, key: PRNGKeyArray, data: dict, wanted: set[str], values: dict, at: At
    ) -> dict[str, Shaped[Array, "S M ..."]]:
        """Draws of the wanted data sites, those of each row of the inputs by its own key, the same in any batch."""

        def draws_of(fns: dict, names: set[str], key: PRNGKeyArray) -> dict[str, Shaped[Array, "S M ..."]]:
            return {name: _draw(fns[name], named_key(key, name), self.asked.draws_per_path) for name in names}

        layouts, count = self.layouts, len(at.rows)
        by_row = wanted & layouts.keys()
        together = self.untold & values.keys() or (self.guide is not None and self.guide.joint)
        if together or not by_row:
            return draws_of(data, wanted, key)

        # Only the program knows which parameters of a distribution have an entry per row: it runs on single rows.
        def of_row(i: Integer[Array, ""]) -> dict[str, Shaped[Array, "S ..."]]:
            place = i[None]
            own = {n: x[layouts[n].rows(place, count)] if n in layouts else x for n, x in values.items()}
            data_key, model_key = random.split(random.fold_in(key, at.rows[i]))
            row = jax.tree.map(lambda x: x[place], at.args)
            trace = run(model_key, row, at.arrays, model=self.model, values=own).model
            return draws_of({name: trace[name]["fn"] for name in by_row}, by_row, data_key)

        each = jax.vmap(of_row, out_axes=1)(jnp.arange(count))  # [S, N, count, ...]
        places = {n: layouts[n].by_row(jnp.arange(x.shape[1] * x.shape[2]), back=True) for n, x in each.items()}
        found = {n: x.reshape(len(x), -1, *x.shape[3:])[:, places[n]] for n, x in each.items()}
        return found | draws_of(data, wanted - by_row, key)

    def _traces(
        self, key: PRNGKeyArray, known: dict, at: At, given: dict, model: Callable | None = None, training: bool = False
    ) -> tuple[dict, dict]:
        """The traces of guide and program, the GP sites in ``given`` conditioned on their values."""
        rows = None if training else at.rows_of(self.layouts)
        model = self._chosen(key, rows) if model is None else model
        value = means if self.asked.mean_only else predicted_marginals
        drawn_as = self.sites.drawn_as if self.guide is None else lambda _: None
        shown: dict[str, Any] = {"of_guide": Marginals(rows, at.views, value), "of_given": Marginals(rows, value=value)}
        guide_trace, trace, _ = self.run(key, at, known, given, **shown, drawn_as=drawn_as, model=model)
        drawn = set(sampled(guide_trace))
        known_now = set(known) | set(given) | self.sites.enumerated
        self._check_sites(guide_trace | trace, known_now, drawn, training)
        return guide_trace, trace

    def _chosen(self, key: PRNGKeyArray, rows: BatchRows | None) -> Callable:
        """The program, with discrete latent sites drawn by row."""
        if rows is None or not self.sites.enumerated:
            return self.model

        def run(*args: Any, **kwargs: Any) -> Any:
            with DrawnByRow(self.sites.enumerated, rows, key):
                return self.model(*args, **kwargs)

        return run

    def _check_sites(self, trace: dict, known: set[str], drawn: set[str], training: bool) -> None:
        """Refuse a site that would stay at a draw of its prior without a word."""
        for name, site in sampled(trace).items():
            if site["is_observed"] or name in known | drawn:
                continue
            if self.guide is None and training:
                raise ValueError(f"posterior_samples has no draws of the latent site {name!r}.")
            if isinstance(site["fn"], GaussianProcess):
                raise ValueError(
                    f"GP site {name!r} is observed in training: give predict its data to condition on, "
                    "train_args=(X, y)."
                )


# -- sites on one path -------------------------------------------------------------------------------------------------


def _process(posterior: InducingPosterior, value: Any, test: Shaped[Array, "N ..."] | None, asked: Asked) -> Path:
    """A GP site on one path, with the density of ``test`` where it was observed in training."""
    marginal = isinstance(value, GaussianMarginals)
    mean, variance = (value.mean, value.variance) if marginal else posterior.marginals()
    density = draws = None
    if test is not None:
        density = dist.Normal(mean, jnp.sqrt(variance)).log_prob(test)
        density = jnp.sum(density.reshape(len(density), -1), axis=1)
    if asked.keep_draws:
        draws = value.draws(asked.draws_per_path) if marginal else value[None]
    return Path(SitePrediction(mean, variance, density), (mean, variance), draws)


def _data(masked: Any, test: Shaped[Array, "N ..."] | None) -> Path:
    """A data site on one path, with the density of ``test``."""
    fn = as_predictive(unmasked(masked))
    if getattr(masked, "entries", None) is not None:  # test data have NaN where they were not observed
        fn = copy(fn)
        fn.missing = "mask"
    density = cdf = None
    if test is not None:
        density = fn.predictive_log_prob(test)
    if fn.num_classes is not None:
        return Path(SitePrediction(None, None, density, fn.probs))
    mean, variance = fn.mean, fn.variance
    if test is not None:
        cdf = fn.cdf(test)
    moments = None if fn.noise is None else (mean, variance)
    return Path(SitePrediction(mean, variance, density, cdf=cdf), moments)


def _latent(fn: Any, value: Integer[Array, " N"], test: Integer[Array, " N"] | None) -> Path:
    """A discrete latent site on one path, with the probabilities of its values, which are drawn from its prior."""
    fn = unmasked(fn)
    with relaxed_promotion():
        probs = jnp.exp(fn.log_prob(fn.enumerate_support(expand=False)))
        density = None if test is None else fn.log_prob(test)
    return Path(SitePrediction(None, None, density, jnp.moveaxis(probs, 0, -1)), draws=value[None])


def _with_density(path: Path, density: Float[Array, " N"]) -> Path:
    return path._replace(prediction=path.prediction._replace(log_density=density))


def _needs_draws(path: Path, asked: Asked) -> bool:
    no_formula = path.gaussian is None and path.prediction.mean is not None
    return asked.keep_draws or (asked.quantiles is not None and no_formula)


def _draw(fn: Any, key: PRNGKeyArray, num_draws: int) -> Shaped[Array, "{num_draws} N ..."]:
    """Draws of a data site, ``[num_draws, N, ...]``; those of a likelihood are given draws of its marginals."""
    fn = as_predictive(unmasked(fn))
    with relaxed_promotion():
        if fn.is_marginal:
            return fn.sample_given(key, fn.f.draws(num_draws))
        return fn.sample(key, (num_draws,))
