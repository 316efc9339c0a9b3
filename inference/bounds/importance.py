"""Importance-weighted bound for latent variables of rows: several draws for a row, with weights by its density."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
from jax import Array, lax, random
from jax.scipy.special import logsumexp
from jax.tree_util import Partial
from jaxtyping import Float, PRNGKeyArray
from numpyro import handlers
from numpyro.distributions.kl import kl_divergence

from gpzoo import _checks as checks
from gpzoo.inference.bounds.elbo import GaussianProcessELBO, bare, same_scale, scale_of
from gpzoo.inference.programs.enumeration import is_enumerated
from gpzoo.inference.programs.gp_sites import Bound, Use, draws_in_groups
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.program import Look, look
from gpzoo.inference.programs.rows import Layout
from gpzoo.inference.programs.runs import Trace, data_of, sampled, unmasked
from gpzoo.likelihoods import Likelihood
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.process import GaussianProcess

#: The axis of the draws of a row that importance weights compare.
WEIGHTS = "importance weights"

_ELSE = "Or use GaussianProcessELBO(), which needs none of this."


class ImportanceWeightedELBO(GaussianProcessELBO):
    """A tighter bound for programs with a latent variable for each row, by importance weights of several draws.

    The source is Salimbeni, Dutordoir, Hensman and Deisenroth 2019, *Deep Gaussian processes with importance-weighted
    variational inference*, arXiv 1905.05435, section 3. For each row, the objective takes ``K`` draws ``w_nk`` of its
    latent variables, and draws of the functions of inner layers. The bound is

    ``sum_n E log (1/K) sum_k p(w_nk) / q(w_nk) exp(E_q(f)[log p(y_n | f(x_n, w_nk))]) - KL[q(u) || p(u)]``.

    The last layer's expectation is in closed form or by quadrature, and the divergences of GP sites are exact. With one
    draw, it is the bound of :class:`~gpzoo.inference.GaussianProcessELBO`, except that ``GaussianProcessELBO`` takes
    the divergence of ``q(w)`` in closed form. The bound grows with ``K``. With a large ``K`` it can be tight even if
    ``q(w)`` is far from the posterior, such as a normal at one of two modes. An inner layer is one function for all
    draws of a row. Its values at the ``K`` inputs of the row are drawn jointly, because independent values would not
    give a bound. A joint draw factorises one matrix ``[K, K]`` for each row. Time and memory of a step grow with ``K``.

    A latent variable of rows is a latent variable in the plate of its data. Its posterior in the guide is
    :class:`~gpzoo.inference.PerRow`, :class:`~gpzoo.inference.Amortised` or a guide of your own, with or without
    minibatches. For all other latent sites, the ``K`` draws share one draw.

    As ``K`` grows, the gradient of the parameters of ``q(w)`` vanishes faster than the noise of this gradient. The
    ratio of gradient to noise falls as ``1 / sqrt(K)`` (Rainforth et al. 2018, *Tighter variational bounds are not
    necessarily better*). Use 5 to 50 draws. The objective has the usual gradients through the draws, not the
    doubly reparameterised gradients. Doubly reparameterised gradients are right only if each weight depends on its own
    draw alone, but inner layers are drawn jointly for all draws of a row.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from gpzoo import InducingPoints
        >>> from gpzoo.inference import ImportanceWeightedELBO, InducingGuide, PerRow
        >>> from gpzoo.models import gplvm
        >>> start = np.random.default_rng(0).standard_normal((10, 2)).astype(np.float32)
        >>> program = partial(gplvm, num_outputs=3)
        >>> guide = InducingGuide(program, InducingPoints(start[:5]), hyperparameters=PerRow({"x": start}))
        >>> rows, y = np.arange(10), np.zeros((10, 3), np.float32)
        >>> params = guide.init_params(jax.random.key(0), rows, y)
        >>> bound = ImportanceWeightedELBO(num_draws=5)
        >>> bound.loss(jax.random.key(1), params, program, guide, rows, y).shape
        ()

    Args:
        num_draws: number ``K`` of draws of the latent variables of each row.
        num_particles: number of estimates of the bound, each with new draws of everything. The result is their mean.
        vectorize_particles: see :class:`numpyro.infer.ELBO`.
        sum_sites: ``False`` gives the contributions by name, in place of their sum. The contribution of the data
            includes the contributions of the latent variables of rows.

    Raises:
        ValueError: for the reasons of :class:`GaussianProcessELBO`, and in these cases:

            * the program has no latent variables of rows, or discrete sites are summed out;
            * latent variables of rows are in several plates, or have another scale than their data;
            * data in another plate depend on latent variables of rows;
            * a GP site depends on latent variables of rows, and is drawn jointly over rows;
            * the kernel of a GP site depends on latent variables of rows;
            * a likelihood computes its expectation by draws.
        TypeError: for a kernel with sampled views (:class:`~gpzoo.SampledView`).
    """

    def __init__(
        self,
        num_draws: int,
        num_particles: int = 1,
        vectorize_particles: bool = True,
        sum_sites: bool = True,
    ) -> None:
        super().__init__(checks.positive_int("num_particles", num_particles), vectorize_particles, sum_sites)
        self.num_draws = checks.positive_int("num_draws", num_draws)
        self._rows: _Rows | None = None  # set during a step

    @property
    def mode(self) -> Bound:
        """The mode of the guide's run, which decides the values of GP sites."""
        return Bound() if self._rows is None else Weighted(latents=self._rows.latents, after=self._rows.after)

    def loss_with_mutable_state(
        self, rng_key: Array, param_map: dict[str, Any], model: Callable, guide: Callable, *args: Any, **kwargs: Any
    ) -> Any:
        """Negative bound, in nats, and the mutable state; see :meth:`numpyro.infer.ELBO.loss_with_mutable_state`."""
        bound = copy(self)
        bound._rows = _rows_of(look(model, args, kwargs), guide)
        return super(ImportanceWeightedELBO, bound).loss_with_mutable_state(
            rng_key, param_map, model, guide, *args, **kwargs
        )

    def _estimate(
        self, rng_key: Array, param_map: dict[str, Any], model: Callable, guide: Callable, *args: Any, **kwargs: Any
    ) -> Any:
        def particle(key: PRNGKeyArray) -> tuple[dict[str, Array], Any]:
            return self._particle(key, param_map, model, guide, args, kwargs)

        if self.num_particles == 1:
            terms, state = particle(rng_key)
        else:
            terms, state = self.vectorize_particles_fn(particle, random.split(rng_key, self.num_particles))
            terms, state = jax.tree.map(jnp.mean, terms), {}
        loss = {name: -term for name, term in terms.items()}
        return {"loss": sum(loss.values()) if self.sum_sites else loss, "mutable_state": state or None}

    def _particle(
        self, key: PRNGKeyArray, params: dict[str, Any], model: Callable, guide: Callable, args: tuple, kwargs: dict
    ) -> tuple[dict[str, Array], Any]:
        """Terms by site, and mutable state, of one draw of everything except the latents of rows."""
        rows, (model_key, guide_key) = self._rows, random.split(key)
        assert rows is not None

        def run(_: Array) -> tuple[tuple[Array, Any], tuple[Any, ...]]:
            seeded = handlers.substitute(handlers.seed(guide, guide_key), data=params)
            guide_trace = handlers.trace(seeded).get_trace(*args, **kwargs)
            state = _mutable(guide_trace)
            replayed = handlers.replay(handlers.seed(model, model_key), guide_trace)
            model_trace = handlers.trace(handlers.substitute(replayed, data=params | state)).get_trace(*args, **kwargs)
            weights, scale = rows.log_weights(guide_trace, model_trace)
            kernels = []
            for site in sampled(model_trace).values():
                prior = unmasked(site["fn"])
                kernels += [prior.kernel] if isinstance(prior, GaussianProcess) else []
            return (weights, state | _mutable(model_trace)), (rows.shared(guide_trace, model_trace), scale, kernels)

        try:
            # All draws must share terms and kernels, or vmap refuses.
            every = jax.vmap(run, axis_name=WEIGHTS, out_axes=(0, None))
            (weights, state), (terms, scale, _) = every(jnp.arange(self.num_draws))
        except ValueError as error:
            if "out_axes" not in str(error):
                raise
            raise ValueError(
                "The kernel of a GP site, or a site outside the plate of the data, depends on latents of rows "
                f"{sorted(rows.latents)}: rows have no weights of their own then. {_ELSE}"
            ) from error
        best = logsumexp(weights, axis=0) - math.log(self.num_draws)
        return terms | {"+".join(sorted(rows.data)): scale * jnp.sum(best)}, jax.tree.map(lambda x: x[0], state)


# -- values of GP sites -----------------------------------------------------------------------------------------------


def draw_together(layout: Layout, posterior: InducingPosterior, key: PRNGKeyArray) -> Float[Array, "N *D"]:
    """A draw at every input, jointly at the ``K`` inputs of one row, and independently for different rows.

    Call it inside a ``vmap`` with the axis name :data:`WEIGHTS` and ``K`` runs. Each run has one input for each row.
    """
    if posterior.conditional.deterministic:  # a function of ``u`` alone, the same draw in all runs
        return posterior.as_joint().sample(key)
    X, own = posterior.prior.X, int(posterior.prior.kernel.has_outputs(posterior.prior.X))
    X = lax.all_gather(layout.by_row(X, own), WEIGHTS, axis=own + 1)  # [*D, N, K, ...], the same in all runs
    N, K = X.shape[own : own + 2]
    together = K * (posterior.in_row or layout.count)
    draws = draws_in_groups(posterior, key, X.reshape(*X.shape[:own], N * K, *X.shape[own + 2 :]), together)
    draws = layout.by_row(draws.reshape(len(draws), N, K), 1, back=True)
    return posterior._with_loc(lax.dynamic_index_in_dim(draws, lax.axis_index(WEIGHTS), 2, keepdims=False))


@dataclass(eq=False)
class Weighted(Bound):
    """:class:`Bound` inside a ``vmap`` with the axis name :data:`WEIGHTS`, for importance weights.

    Each run has its own draw of the latent sites of rows. All runs share one draw of the other latent sites.

    Attributes:
        latents: names of the latent sites of rows.
        after: names of the GP sites that depend on latent sites of rows.

    Raises:
        TypeError: for a kernel with sampled views (:class:`~gpzoo.SampledView`).
        ValueError: for a GP site that depends on latent sites of rows and is drawn jointly over rows.
    """

    latents: frozenset[str] = field(kw_only=True)
    after: frozenset[str] = field(kw_only=True)

    def keys_of_rows(self, names: frozenset[str]) -> dict[str, PRNGKeyArray]:
        """See :meth:`SiteMode.keys_of_rows`. Each run of the ``vmap`` has its own keys."""
        key = random.fold_in(numpyro.prng_key(), lax.axis_index(WEIGHTS))
        return {name: named_key(key, name) for name in names & self.latents}

    def posterior(self, posterior: InducingPosterior, use: Use) -> InducingPosterior:
        """See :meth:`SiteMode.posterior`."""
        site = posterior.site
        if posterior.prior.samples_views:
            raise TypeError(
                f"The kernel of site {site!r} samples views of its inputs: its moments are estimates, and importance "
                "weights are not linear in them. Enumerate the views (an Orbit), or use GaussianProcessELBO()."
            )
        if use.joint and site in self.after:
            raise ValueError(
                f"GP site {site!r} depends on latents of rows and is drawn jointly over rows, InducingGuide(joint=...):"
                " a row has no importance weights of its own then. Use GaussianProcessELBO()."
            )
        if use.drawn and site in self.after:
            return posterior.valued(Partial(partial(draw_together, use.drawn)))
        return super().posterior(posterior, use)


# -- terms ------------------------------------------------------------------------------------------------------------


class _Rows(NamedTuple):
    """The sites that have a weight for each row.

    Attributes:
        latents: names of the latent sites of rows.
        data: names of the data sites that depend on them.
        after: names of the GP sites that depend on them.
    """

    latents: frozenset[str]
    data: frozenset[str]
    after: frozenset[str]

    def log_weights(self, guide_trace: Trace, model_trace: Trace) -> tuple[Float[Array, " N"], Float[Array, ""]]:
        """Log weights of one draw of every row, and the factor by which the rows are scaled."""
        terms, scales = [], []
        for name in sorted(self.latents | self.data):
            if name in self.data:
                _refuse_draws(name, model_trace[name]["fn"])
            sites = [model_trace[name], *([guide_trace[name]] if name in self.latents else [])]
            for sign, site in zip((1, -1), sites, strict=False):
                terms.append(sign * jnp.asarray(site["fn"].log_prob(site["value"])))
                scales.append(scale_of(site))
        shapes = set(map(jnp.shape, terms))
        those = f"Latents of rows {sorted(self.latents)} and the data {sorted(self.data)}"
        if len(shapes) > 1:
            raise ValueError(
                f"{those} must have one density for each row, in guide and program; theirs have shapes "
                f"{sorted(shapes)}."
            )
        if not all(same_scale(scale, scales[0]) for scale in scales):
            raise ValueError(
                f"{those} have different scales: an importance weight needs both terms with the same scale. Apply "
                "handlers.scale to "
                "all of these sites, or to none."
            )
        return sum(terms[1:], terms[0]), jnp.asarray(scales[0], terms[0].dtype)

    def shared(self, guide_trace: Trace, model_trace: Trace) -> dict[str, Array]:
        """Terms of all other sites, by name."""
        terms = {}
        for name, site in sampled(model_trace).items():
            if name in self.latents | self.data:
                continue
            if site["is_observed"]:
                terms[name] = _log_prob(site)
            else:
                terms[name] = -_divergence(guide_trace[name], site)
        for name, site in sampled(guide_trace).items():
            if name not in model_trace:
                terms[name] = -_log_prob(site)
        return terms


def _rows_of(seen: Look, guide: Any) -> _Rows:
    """The latents of rows of a program: the latents in the plate of all data that depend on them."""
    sites, data = sampled(seen.trace), data_of(seen.trace)
    latents, plates = set(), set()
    for name, site in sites.items():
        own = _plates(site)
        after = [other for other in data if name in seen.needs.get(other, ())]
        if own and after and not site["is_observed"] and {_plates(sites[other]) for other in after} == {own}:
            latents.add(name)
            plates.add(own)
    _check_latents(sites, latents, plates, guide)
    dependent = {name for name in sites if latents & seen.needs.get(name, frozenset())}
    processes = {name for name, site in sites.items() if isinstance(unmasked(site["fn"]), GaussianProcess)}
    if observed := sorted(dependent & processes & data.keys()):
        raise ValueError(f"Data site(s) {observed} are GPs, whose rows have no densities of their own. {_ELSE}")
    return _Rows(frozenset(latents), frozenset(dependent & data.keys()), frozenset(processes & dependent))


def _check_latents(sites: Trace, latents: set[str], plates: set[tuple], guide: Any) -> None:
    if summed := sorted(name for name, site in sites.items() if is_enumerated(site)):
        raise ValueError(f"ImportanceWeightedELBO does not sum out discrete sites, and there are {summed}. {_ELSE}")
    if not latents:
        raise ValueError(
            "ImportanceWeightedELBO is for latent variables of rows, and this program has none in the plate of the "
            "data that depend on them: put them there, with numpyro.plate('data', ...). Or use GaussianProcessELBO()."
        )
    if len(plates) > 1 or any(len(around) > 1 for around in plates):
        raise ValueError(
            f"Latents of rows {sorted(latents)} are in several plates: one plate of the data has weights for each row. "
            f"{_ELSE}"
        )
    if not callable(getattr(bare(guide), "hyperparameters", None)):
        raise ValueError(
            f"ImportanceWeightedELBO needs a guide that holds the latents of rows {sorted(latents)}: InducingGuide("
            "..., hyperparameters=PerRow(...)), Amortised(...) or a guide of yours."
        )


def _plates(site: dict[str, Any]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((frame.name, frame.dim) for frame in site["cond_indep_stack"]))


def _refuse_draws(name: str, fn: Any) -> None:
    """Refuse expectations by draws: their noise would count as weights."""
    fn = unmasked(fn)
    if isinstance(fn, Likelihood) and fn.is_marginal and fn.expectation == "draw":
        raise ValueError(
            f"{type(fn).__name__} at data site {name!r} takes its expectation by draws, which would make importance "
            "weights too large. Give it a draw, which all weights of a row share: jnp.asarray(f) in place of f."
        )


def _divergence(guide_trace: dict[str, Any], model_trace: dict[str, Any]) -> Array:
    try:
        return _scaled(guide_trace, kl_divergence(guide_trace["fn"], model_trace["fn"]))
    except NotImplementedError:
        return _log_prob(guide_trace) - _log_prob(model_trace)


def _log_prob(site: dict[str, Any]) -> Array:
    return _scaled(site, site["fn"].log_prob(site["value"]))


def _scaled(site: dict[str, Any], terms: Any) -> Array:
    return jnp.sum(terms) * scale_of(site)


def _mutable(trace: Trace) -> dict[str, Any]:
    return {name: site["value"] for name, site in trace.items() if site["type"] == "mutable"}
