"""Predictions along one path through a program: at one value of each of its latent sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, random
from jaxtyping import Integer, PRNGKeyArray, Shaped
from numpyro import handlers
from numpyro.distributions.distribution import Unit

from gpzoo._numpyro import in_chain
from gpzoo.inference.fitted.given import Given, GivenProgram, given_at
from gpzoo.inference.fitted.map_batches import Batch
from gpzoo.inference.fitted.summaries import Asked, Path, SitePrediction, by_field, of_paths
from gpzoo.inference.programs.enumeration import DrawnByRow, scored
from gpzoo.inference.programs.gp_sites import BatchRows, Marginals, means, predicted_marginals
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.runs import Trace, relaxed_promotion, run, sampled, unmasked
from gpzoo.inference.programs.sites import Sites
from gpzoo.likelihoods import Likelihood
from gpzoo.likelihoods.answers import as_predictive
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.marginals import GaussianMarginals
from gpzoo.processes.process import GaussianProcess

#: By name: GP sites that are observed at the training inputs, and GP sites whose values there come with a draw.
AtTraining: TypeAlias = tuple[dict[str, Given], dict[str, Given]]

#: A random key, the samples of latent sites, and the GP sites at the training inputs if they are known.
PathDraw: TypeAlias = tuple[PRNGKeyArray, dict[str, Any], AtTraining | None]


@dataclass(frozen=True, kw_only=True)
class Paths(GivenProgram):
    """Predictions made with draws. A guide or samples give the latent sites.

    GP sites are conditioned on the training data.

    Attributes:
        sites: sites of the program; discrete latent sites are drawn from their prior at new inputs.
        asked: parts of the prediction that the caller wants.
        num_draws: number of draws.
    """

    sites: Sites
    asked: Asked
    num_draws: int

    def prepare(self, given: PathDraw, batch: Batch) -> tuple[tuple[Array, dict[str, Any], AtTraining | None], Batch]:
        """Keys of all draws, and of sampled views, from one key."""
        key, samples, known_at_training = given
        views = named_key(key, "views")
        if batch.others is not None:
            batch = batch._replace(others=batch.others._replace(views=views))
        keys = random.split(named_key(key, "draws"), self.num_draws)
        return (keys, samples, known_at_training), batch._replace(views=views)

    def at_training(self, draw: PathDraw, batch: Batch) -> AtTraining:
        """The GP sites at the training inputs: observed sites, and sites whose values come with the draw."""
        key, samples, _ = draw
        _, trace = self._traces(key, self._known(batch, samples), batch, self.given_u(samples), None)
        observed: dict[str, Given] = {}
        drawn: dict[str, Given] = {}
        for name, site in sampled(trace).items():
            if isinstance(site["fn"], GaussianProcess) and site["is_observed"]:
                observed[name] = given_at(name, site)
            elif isinstance(site["fn"], GaussianProcess) and self.guide is None:
                drawn[name] = given_at(name, site)
        return observed, drawn

    def _known(self, batch: Batch, samples: dict) -> dict:
        """Values of parameters and latent sites, without discrete sites, because these differ between rows."""
        return {name: x for name, x in (batch.params | samples).items() if name not in self.sites.enumerated}

    def __call__(self, draw: PathDraw, batch: Batch) -> dict[str, dict[str, Path]]:
        """Every GP site and data site by name. ``batch.others`` has the arguments of training, or is ``None``."""
        key, samples, known_at_training = draw
        known, given, tests = self._known(batch, samples), self.given_u(samples), batch.of_sites
        observed: dict[str, Given] = {}
        if batch.others is not None:
            observed, drawn = known_at_training or self.at_training((key, samples, None), batch.others)
            given = given | drawn | observed
        guide_trace, trace = self._traces(key, known, batch, given, batch.site_rows)
        found: dict[str, Path] = {}
        latents = {name: site["value"] for name, site in sampled(guide_trace).items()} | samples
        for name, site in (trace | guide_trace).items():
            if isinstance(site.get("fn"), InducingPosterior):
                latents[name] = site["value"]
                found[name] = self._process(name, site, tests.get(name) if name in observed else None, batch)
        for name, names in self.asked.parts:
            found |= _parts((trace | guide_trace)[name]["fn"], names)
        data = {name: site for name, site in sampled(trace).items() if name not in latents}
        data = {name: site for name, site in data.items() if not isinstance(site["fn"], Unit)}
        for name, site in data.items():
            refuse_other_rows(name, tests.get(name), site["fn"].shape(), len(batch.rows))
            if not isinstance(unmasked(site["fn"]), Likelihood):  # gpzoo's own refuse them
                _refuse_other_shape(name, tests.get(name), site["fn"].shape())
            predicted = _latent if name in self.sites.enumerated else _data
            found[name] = predicted(site["fn"], site["value"], tests.get(name))
        chosen = {name: site for name, site in data.items() if name in self.sites.enumerated}
        # NumPyro gives all data to the first step of a chain, so densities of a chain are densities given the draw.
        if chosen and not any(map(in_chain, chosen.values())):
            scores = {name: tests[name] for name in tests.keys() & data.keys() - chosen.keys()}
            self._score(found, key, known, batch, given, scores)
        if wanted := {name for name in data if found[name].draws is None and self._needs_draws(found[name])}:
            values = batch.params | latents | {name: site["value"] for name, site in chosen.items()}
            draws = self._draws(named_key(key, "data"), data, wanted, values, batch)
            found |= {name: found[name]._replace(draws=draw) for name, draw in draws.items()}
        if self.asked.mean_only:
            found = {name: Path(path.prediction._replace(variance=None)) for name, path in found.items()}
        return {"paths": found}

    def summary(self, found: dict[str, dict[str, Path]]) -> dict[str, dict[str, Any]]:
        """Predictions, by field and site, from the paths of all draws."""
        return by_field({name: of_paths(path, self.asked) for name, path in found["paths"].items()})

    def _process(self, name: str, site: Mapping[str, Any], test: Shaped[Array, "N ..."] | None, batch: Batch) -> Path:
        """A GP site on one path, with the density of ``test`` if it was observed in training."""
        refuse_other_rows(name, test, site["fn"].shape(), len(batch.rows))
        posterior, value = site["fn"], site["value"]
        _refuse_other_shape(name, test, posterior.shape())
        marginal = isinstance(value, GaussianMarginals)
        mean, variance = (value.mean, value.variance) if marginal else posterior.marginals()
        density = draws = None
        if test is not None:
            density = dist.Normal(mean, jnp.sqrt(variance)).log_prob(test)
            density = jnp.sum(density.reshape(len(density), -1), axis=1)
        if self.asked.keep_draws:
            draws = value.draws(self.asked.draws_per_path) if marginal else value[None]
        return Path(SitePrediction(mean, variance, density), (mean, variance), draws)

    def _score(
        self, found: dict[str, Path], key: PRNGKeyArray, known: dict, batch: Batch, given: dict, tests: dict
    ) -> None:
        """Replace densities of test data given a draw of discrete sites by densities summed over these sites."""
        if not tests:
            return
        summed = scored(handlers.condition(self.model, tests), self.sites)
        _, terms = self._traces(key, known, batch, given, batch.site_rows, summed)
        for name in tests.keys() & terms.keys():
            if isinstance(fn := terms[name]["fn"], Unit):
                prediction = found[name].prediction._replace(log_density=jnp.asarray(fn.log_factor))
                found[name] = found[name]._replace(prediction=prediction)

    def _needs_draws(self, path: Path) -> bool:
        no_formula = path.gaussian is None and path.prediction.mean is not None
        return self.asked.keep_draws or (self.asked.quantiles is not None and no_formula)

    def _draws(
        self, key: PRNGKeyArray, data: Trace, wanted: set[str], values: dict, batch: Batch
    ) -> dict[str, Shaped[Array, "S M ..."]]:
        """Draws of the wanted data sites. Each input row has its own key, so its draws are the same in any batch."""

        def draws_of(trace: Trace, names: set[str], key: PRNGKeyArray) -> dict[str, Shaped[Array, "S M ..."]]:
            return {name: _draw(trace[name]["fn"], named_key(key, name), self.asked.draws_per_path) for name in names}

        layouts, count = batch.layouts.value, len(batch.rows)
        with_rows = wanted & layouts.keys()
        together = batch.untold.value & (values.keys() | with_rows) or (self.guide is not None and self.guide.joint)
        if together or not with_rows:
            return draws_of(data, wanted, key)

        # Only the program knows which parameters of a distribution have an entry per row, so it runs on single rows.
        def of_row(i: Integer[Array, ""]) -> dict[str, Shaped[Array, "S ..."]]:
            place = i[None]
            own = {n: x[layouts[n].rows(place, count)] if n in layouts else x for n, x in values.items()}
            data_key, model_key = random.split(random.fold_in(key, batch.rows[i]))
            row = jax.tree.map(lambda x: x[place], batch.args)
            trace = run(model_key, row, batch.kwargs, model=self.model, values=own).model
            return draws_of(trace, with_rows, data_key)

        each = jax.vmap(of_row, out_axes=1)(jnp.arange(count))  # [S, N, count, ...]
        found = draws_of(data, wanted - with_rows, key)
        for name, x in each.items():
            place = layouts[name].by_row(jnp.arange(x.shape[1] * x.shape[2]), back=True)
            found[name] = x.reshape(len(x), -1, *x.shape[3:])[:, place]
        return found

    def _traces(
        self,
        key: PRNGKeyArray,
        known: dict,
        batch: Batch,
        given: dict,
        rows: BatchRows | None,
        model: Callable | None = None,
    ) -> tuple[Trace, Trace]:
        """The traces of guide and program, with the GP sites in ``given`` conditioned. In training, no ``rows``."""
        value = means if self.asked.mean_only else predicted_marginals
        guide_trace, trace, _ = self.run(
            key,
            batch,
            known,
            given,
            guide_mode=Marginals(rows, batch.views, value, given_data=True),
            given_mode=Marginals(rows, value=value),
            drawn_as=self.sites.drawn_as if self.guide is None else lambda _: None,
            model=self._chosen(key, rows) if model is None else model,
        )
        self._check_sites(guide_trace | trace, {*known, *given, *self.sites.enumerated, *guide_trace}, rows is None)
        return guide_trace, trace

    def _chosen(self, key: PRNGKeyArray, rows: BatchRows | None) -> Callable:
        """The program, with discrete latent sites drawn by row."""
        if rows is None or not self.sites.enumerated:
            return self.model

        def drawing(*args: Any, **kwargs: Any) -> Any:
            with DrawnByRow(self.sites.enumerated, rows, key):
                return self.model(*args, **kwargs)

        return drawing

    def _check_sites(self, trace: Trace, known: set[str], is_training_run: bool) -> None:
        """Refuse a site that would silently stay at a draw of its prior."""
        for name, site in sampled(trace).items():
            if site["is_observed"] or name in known:
                continue
            if self.guide is None and is_training_run:
                raise ValueError(f"posterior_samples has no draws of the latent site {name!r}.")
            if isinstance(site["fn"], GaussianProcess):
                raise ValueError(
                    f"GP site {name!r} is observed in training: give predict its data to condition on, "
                    "train_args=(X, y)."
                )


# -- sites on one path -------------------------------------------------------------------------------------------------


def refuse_other_rows(name: str, test: Any, shape: tuple[int, ...], num_inputs: int) -> None:
    """Refuse test data if their number of rows differs from the number of rows of their site.

    Args:
        name: name of the site.
        test: test data of the site; ``None`` if there are none.
        shape: shape of the site; ``()`` if it has no rows.
        num_inputs: number of rows of the new inputs.

    Raises:
        ValueError: naming the site and the numbers of rows.
    """
    if test is not None and shape and len(test) != shape[0]:
        raise ValueError(
            f"test_data[{name!r}] has {len(test)} rows, but site {name!r} has {shape[0]} at these {num_inputs} "
            "inputs: pass the same number of rows."
        )


def _refuse_other_shape(name: str, test: Any, shape: tuple[int, ...]) -> None:
    """Refuse test data that would broadcast against the values of their site."""
    if test is not None and shape and jnp.shape(test) != shape:
        raise ValueError(f"test_data[{name!r}] has shape {list(jnp.shape(test))}, but site {name!r} has {list(shape)}.")


def _parts(posterior: InducingPosterior, names: tuple[str, ...]) -> dict[str, Path]:
    """The addends of a GP site on one path, by name."""
    found = {}
    for name, part in zip(names, posterior.parts(), strict=True):
        mean, variance = part.marginals()
        found[name] = Path(SitePrediction(mean, variance), (mean, variance))
    return found


def _data(masked: Any, value: Any, test: Shaped[Array, "N ..."] | None) -> Path:
    """A data site on one path, with the density of ``test``."""
    fn = as_predictive(unmasked(masked))
    if getattr(masked, "entries", None) is not None:  # test data have NaN where they were not observed
        fn = copy(fn)
        fn.missing = "mask"
    density = cdf = None
    if test is not None:
        density = fn.predictive_log_prob(test)
        density = density.reshape(len(density), -1).sum(axis=1) if jnp.ndim(density) > 1 else density
    if fn.num_classes is not None:
        return Path(SitePrediction(None, None, density, fn.probs))
    mean, variance = fn.mean, fn.variance
    if test is not None:
        cdf = fn.cdf(test)
    moments = None if fn.noise is None else (mean, variance)
    return Path(SitePrediction(mean, variance, density, cdf=cdf), moments)


def _latent(fn: Any, value: Integer[Array, " N"], test: Integer[Array, " N"] | None) -> Path:
    """A discrete latent site on one path, drawn from its prior, with the probabilities of its values."""
    fn = unmasked(fn)
    with relaxed_promotion():
        probs = jnp.exp(fn.log_prob(fn.enumerate_support(expand=False)))
        density = None if test is None else fn.log_prob(test)
    return Path(SitePrediction(None, None, density, jnp.moveaxis(probs, 0, -1)), draws=value[None])


def _draw(fn: Any, key: PRNGKeyArray, num_draws: int) -> Shaped[Array, "{num_draws} N ..."]:
    """Draws of a data site, ``[num_draws, N, ...]``. A likelihood is drawn given draws of its marginals."""
    fn = as_predictive(unmasked(fn))
    with relaxed_promotion():
        if fn.is_marginal:
            return fn.sample_given(key, fn.f.draws(num_draws))
        return fn.sample(key, (num_draws,))
