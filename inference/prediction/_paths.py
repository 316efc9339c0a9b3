"""What does one path through a program predict at new inputs? A path is one value of each of its latent sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, random
from jax.scipy.special import ndtr
from jaxtyping import Float, Integer, PRNGKeyArray, Shaped
from numpyro.distributions.distribution import Unit

from gpzoo.inducing.variables import InducingPoints, InducingVariable
from gpzoo.inference._keys import named_key
from gpzoo.inference._runs import drawing, run, unmasked
from gpzoo.inference.gp_sites import Marginals
from gpzoo.inference.guide import InducingGuide
from gpzoo.inference.prediction._conditioned import Given, conditioned
from gpzoo.inference.prediction.summaries import Asked, Path, SitePrediction
from gpzoo.likelihoods import Expected, Gaussian, Likelihood
from gpzoo.likelihoods.classes import ClassLikelihood
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.marginals import GaussianMarginals
from gpzoo.processes.process import GaussianProcess


class Runner:
    """One draw at one batch: the guide or the samples give the latent sites, training data condition GP sites.

    ``inducing`` are the inducing variables of sites whose samples are of ``u``, named ``<site>_u``.
    """

    def __init__(
        self,
        model: Callable,
        guide: InducingGuide | None,
        drawn: frozenset[str],
        static: dict,
        train_static: dict,
        asked: Asked,
        inducing: Mapping[str, InducingVariable],
    ) -> None:
        self.model, self.guide, self.drawn, self.inducing = model, guide, drawn, inducing
        self.static, self.train_static, self.asked = static, train_static, asked

    def __call__(
        self,
        key: PRNGKeyArray,
        samples: dict,
        rows: Integer[Array, " N"],
        batch: tuple,
        tests: dict,
        arrays: dict,
        params: dict,
        train: tuple | None,
        views: PRNGKeyArray,
    ) -> dict[str, Path]:
        """Every GP site and data site by name.

        ``rows`` are the numbers of the batch's rows in the whole input, and sampled views are drawn by ``views``.
        """
        known = params | samples
        given: dict[str, Given] = {name: (at, samples[f"{name}_u"]) for name, at in self.inducing.items()}
        seen: set[str] = set()
        if train is not None:
            args, train_arrays = train
            _, trace = self._traces(key, known, None, args, train_arrays | self.train_static, given, views)
            for name, site in trace.items():
                if site["type"] != "sample" or not isinstance(site["fn"], GaussianProcess):
                    continue
                if site["is_observed"] or self.guide is None:
                    prior: GaussianProcess = site["fn"]
                    given[name] = InducingPoints(prior.X), jnp.asarray(site["value"]) - prior.mean
                if site["is_observed"]:
                    seen.add(name)
        others = {name: value for name, value in known.items() if name not in given}
        guide_trace, trace = self._traces(key, others, rows, batch, arrays | self.static, given, views)
        found = {}
        latents = {n: site["value"] for n, site in guide_trace.items() if site["type"] == "sample"} | samples
        for name, site in (trace | guide_trace).items():
            fn = site.get("fn")
            if isinstance(fn, InducingPosterior):
                found[name] = _process(fn, site["value"], tests.get(name) if name in seen else None, self.asked)
                latents[name] = site["value"]
        data = {
            name: site["fn"]
            for name, site in trace.items()
            if site["type"] == "sample" and name not in latents and not isinstance(site["fn"], Unit)
        }
        paths = {name: _data(fn, tests.get(name)) for name, fn in data.items()}
        if wanted := {name for name, path in paths.items() if _needs_draws(path, self.asked)}:
            key = named_key(key, "data")
            draws = self._draws(key, data, wanted, set(found), params | latents, rows, batch, arrays)
            paths |= {name: paths[name]._replace(draws=draw) for name, draw in draws.items()}
        return found | paths

    def _draws(
        self,
        key: PRNGKeyArray,
        data: dict,
        wanted: set[str],
        processes: set[str],
        values: dict,
        rows: Integer[Array, " N"],
        batch: tuple,
        arrays: dict,
    ) -> dict[str, Shaped[Array, "S N ..."]]:
        """Draws of the wanted data sites, each row's by its own key, so that they do not depend on the batch."""

        def draws_of(fns: dict, key: PRNGKeyArray) -> dict[str, Shaped[Array, "S N ..."]]:
            return {name: _draw(fns[name], named_key(key, name), self.asked.draws_per_path) for name in wanted}

        if self.guide is not None and self.guide.joint:
            return draws_of(data, key)

        # Only the program knows which parameters of a distribution have an entry per row: it runs on single rows.
        def of_row(i: Integer[Array, ""]) -> dict[str, Shaped[Array, "S ..."]]:
            own = {name: value[i[None]] if name in processes else value for name, value in values.items()}
            data_key, model_key = random.split(random.fold_in(key, rows[i]))
            row = jax.tree.map(lambda x: x[i[None]], batch)
            trace = run(model_key, row, arrays | self.static, model=self.model, values=own).model
            draws = draws_of({name: trace[name]["fn"] for name in wanted}, data_key)
            return {name: draw[:, 0] for name, draw in draws.items()}

        return jax.vmap(of_row, out_axes=1)(jnp.arange(len(rows)))

    def _traces(
        self,
        key: PRNGKeyArray,
        known: dict,
        rows: Integer[Array, " N"] | None,
        args: tuple,
        kwargs: dict,
        given: dict,
        views: PRNGKeyArray,
    ) -> tuple[dict, dict]:
        guide_trace, trace, _ = run(
            key,
            args,
            kwargs,
            guide=self.guide,
            model=conditioned(self.model, given, self.drawn, Marginals(rows)),
            values=known,
            representation=Marginals(rows, views),
        )
        drawn = {name for name, site in guide_trace.items() if site["type"] == "sample"}
        self._check_sites(guide_trace | trace, set(known) | set(given), drawn, training=rows is None)
        return guide_trace, trace

    def _check_sites(self, trace: dict, known: set[str], drawn: set[str], training: bool) -> None:
        """Refuse a site that would stay at a draw of its prior without a word."""
        for name, site in trace.items():
            if site["type"] != "sample" or site["is_observed"] or name in known | drawn:
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
        density = density if density.ndim == 1 else jnp.sum(density, axis=-1)
    if asked.keep_draws:
        draws = value.draws(asked.draws_per_path) if marginal else value[None]
    return Path(SitePrediction(mean, variance, density), (mean, variance), draws)


def _data(masked: Any, test: Shaped[Array, "N ..."] | None) -> Path:
    """A data site on one path, with the density of ``test``."""
    fn: Any = unmasked(masked)
    density = None if test is None else _log_density(fn, test)
    if has_classes(fn):
        return Path(SitePrediction(None, None, density, fn.probs))
    mean, variance = fn.mean, fn.variance
    base = fn
    while isinstance(base, dist.Independent | dist.ExpandedDistribution):
        base = base.base_dist
    if not isinstance(base, Gaussian | dist.Normal):
        return Path(SitePrediction(mean, variance, density))
    cdf = None if test is None else ndtr((test.astype(mean.dtype) - mean) / jnp.sqrt(variance))
    return Path(SitePrediction(mean, variance, density, cdf=cdf), (mean, variance))


def _needs_draws(path: Path, asked: Asked) -> bool:
    no_formula = path.gaussian is None and path.prediction.mean is not None
    return asked.keep_draws or (asked.quantiles is not None and no_formula)


def _draw(fn: Any, key: PRNGKeyArray, num_draws: int) -> Shaped[Array, "{num_draws} N ..."]:
    """Draws of a data site, ``[num_draws, N, ...]``; those of a likelihood are given draws of its marginals."""
    fn = unmasked(fn)
    with drawing():
        if isinstance(fn, Likelihood) and fn.is_marginal:
            return fn.sample_given(key, fn.f.draws(num_draws))
        return fn.sample(key, (num_draws,))


def has_classes(fn: Any) -> bool:
    """Whether a data site's predictions are probabilities of classes."""
    classes = isinstance(fn, ClassLikelihood | dist.CategoricalProbs | dist.CategoricalLogits)
    return classes or (isinstance(fn, Expected) and fn.is_categorical)


def _log_density(fn: Any, value: Shaped[Array, "N ..."]) -> Float[Array, "N ..."]:
    return fn.predictive_log_prob(value) if isinstance(fn, Likelihood) else fn.log_prob(value)
