"""Updates of a trained model with new data, in one pass: the ``q(u)`` of one batch is the prior of the next batch."""

from __future__ import annotations

import time
import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jaxtyping import Bool, Float, Integer, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo.inference.bounds.online import AfterEarlier
from gpzoo.inference.fitted.map_batches import Batch, BatchFunction, BoundModel
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.guides.more_inducing import check_forms
from gpzoo.inference.programs.arguments import refuse_unknown
from gpzoo.inference.programs.finite import refuse_not_finite
from gpzoo.inference.programs.gp_sites import AtPriorMean
from gpzoo.inference.programs.program import Look
from gpzoo.inference.programs.runs import data_of, parts_of_plates, plates_of, run
from gpzoo.inference.training.sources import Resident
from gpzoo.linalg import total
from gpzoo.posteriors.earlier import Earlier
from gpzoo.posteriors.forms import Full
from gpzoo.posteriors.posterior import InducingPosterior

#: If a step raises the bound by a smaller share of the bound, it is the last step.
_ENOUGH = 1e-7

#: Smallest share of a natural-gradient step that is tried.
_SHORTEST = 2.0**-12

#: If the last step still raises the bound by this many nats per row, a warning says that the bound is not final.
_UNFINISHED = 1e-3


class _Search(NamedTuple):
    """State of a search by natural-gradient steps. The bound is the same function in all steps.

    Attributes:
        count: number of steps tried.
        own: parameters of ``q(u)``.
        loss: negative bound at ``own``.
        slope: derivatives of ``loss``.
        rate: length of the next step.
        gain: nats by which the last step raised the bound.
        done: whether the search has ended because no step gains more.
    """

    count: Integer[Array, ""]
    own: dict[str, Any]
    loss: Float[Array, ""]
    slope: dict[str, Any]
    rate: Float[Array, ""]
    gain: Float[Array, ""]
    done: Bool[Array, ""]


def updated(
    model: BoundModel,
    rng_key: PRNGKeyArray,
    *,
    batch_size: int | None,
    num_steps: int,
    num_draws: int,
    sites: Collection[str] | None,
) -> dict[str, Any]:
    """Fields of the model that :meth:`gpzoo.inference.Trained.condition` returns. ``model`` is at the new data."""
    started = time.perf_counter()
    guide, args = model.guide, model.args
    checks.positive_int("num_steps", num_steps)
    checks.positive_int("num_draws", num_draws)
    source = Resident(args, None, [0], None)
    num_rows = source.num_rows
    size = num_rows if batch_size is None else min(checks.positive_int("batch_size", batch_size), num_rows)
    cuts = np.linspace(0, num_rows, -(-num_rows // size) + 1).astype(int).tolist()
    pieces = [_at_rows(model, num_rows, start, end) for start, end in pairwise(cuts)]
    whole = _at_rows(model, num_rows, 0, num_rows)
    _check_data(whole.look if len(pieces) == 1 else pieces[0].look)
    if len(pieces) > 1:
        _refuse_counted_often(whole)
    if not (processes := guide.sites.processes):
        raise ValueError("The program has no latent GP site, whose q(u) could take in new data.")
    chosen = _chosen(sites, guide)
    check_forms(guide, processes)
    for posterior in posteriors_at(rng_key, guide, model.params, args, model.kwargs).values():
        check_columns(posterior)
    update = _Update(guide, chosen, _counted(guide, whole.look), num_steps, num_draws)
    fn = BatchFunction("condition", update.search, options=update[1:], draws_together=0)
    params, losses = model.params, []
    for k, piece in enumerate(pieces):
        key, batch = random.fold_in(rng_key, k), piece.batch(params=params)
        found: _Search = model.compiled_for(fn)(key, batch)
        # The bound before any step, outside jit, so that a failure raises its own error.
        before = partial(update.bound, key, batch, 1, {})
        refuse_not_finite(min(chosen), "numbers of q(u)", _numbers(found), processes, before)
        if not found.done and found.gain > _UNFINISHED * (cuts[k + 1] - cuts[k]):
            warnings.warn(
                f"Step {num_steps} on rows {cuts[k]} to {cuts[k + 1] - 1} still raised the bound by "
                f"{float(found.gain):.2g} nats: q(u) is not yet the best one there. Take more steps, num_steps=..., "
                "or fewer rows at a time, batch_size=....",
                UserWarning,
                stacklevel=4,
            )
        params = params | found.own
        losses.append(float(found.loss))
    data = source.settings(checks.positional(guide.model, len(args))[0])
    return {"params": params, "losses": np.cumsum(losses), "seconds": time.perf_counter() - started, "data": data}


def _at_rows(model: BoundModel, num_rows: int, start: int, end: int) -> BoundModel:
    """The model at some of its rows, each of which counts once.

    Raises:
        ValueError: if ``num_data`` is not the number of all rows.
    """
    kwargs = model.kwargs
    if kwargs.get("num_data") not in (None, num_rows):
        raise ValueError(
            f"num_data is {kwargs['num_data']}, but new data count once, and there are {num_rows} rows of them: leave "
            "num_data out."
        )
    if checks.is_open(model.guide.model, "num_data") or "num_data" in kwargs:
        kwargs = kwargs | {"num_data": end - start}
    return replace(model, args=jax.tree.map(lambda x: x[start:end], model.args), kwargs=kwargs)


def _counted(guide: InducingGuide, seen: Look) -> frozenset[str]:
    """Names of the sites whose terms make up the bound.

    All latent variables except those of rows are held fixed: their divergences say nothing about the new data.
    """
    plates = set().union(*map(plates_of, data_of(seen.trace).values()))
    others = guide.sites.latents - guide.sites.processes
    return frozenset(name for name in seen.trace if name not in others or plates_of(seen.trace[name]) & plates)


def posteriors_at(
    rng_key: PRNGKeyArray, guide: InducingGuide, params: Mapping[str, Any], args: tuple, kwargs: dict[str, Any]
) -> dict[str, InducingPosterior]:
    """The posterior of each GP site, with earlier sites at the mean of their prior, outside ``jit``.

    Raises:
        FactorisationError: naming the site, if a ``Kuu`` does not factorise.
    """
    trace = run(rng_key, args, kwargs, guide=guide, values=params, mode=AtPriorMean()).guide
    return {name: site["fn"] for name, site in trace.items() if isinstance(site.get("fn"), InducingPosterior)}


def check_columns(posterior: InducingPosterior) -> None:
    """Refuse inputs of another shape than a site's inducing inputs.

    Raises:
        ValueError: naming the site.
    """
    inducing, X = posterior.inducing, posterior.prior.X
    if inducing.num_axes or (Z := inducing.points()) is None:
        return
    each = [x.shape[1 + posterior.prior.kernel.has_outputs(x) :] for x in (X, Z)]
    if each[0] != each[1]:
        raise ValueError(
            f"The inputs of site {posterior.site!r} have shape {list(X.shape)}, rows of {list(each[0])}, but its "
            f"inducing inputs are {list(Z.shape)}, rows of {list(each[1])}: pass the columns of the training."
        )


def _chosen(sites: Collection[str] | None, guide: InducingGuide) -> frozenset[str]:
    """The GP sites whose ``q(u)`` is to change."""
    if sites is None:
        return guide.sites.processes - guide.sites.inner
    given = [sites] if isinstance(sites, str) else sites
    if not isinstance(given, Collection) or not given or not all(isinstance(name, str) for name in given):
        raise TypeError(f"sites must be names of GP sites, {{'f'}}, or None for the last ones; got {sites!r:.80}.")
    refuse_unknown("sites", given, guide.sites.processes, "GP sites")
    return frozenset(given)


def _check_data(seen: Look) -> None:
    """Refuse a program without data, and plates with more rows than the data."""
    if not data_of(seen.trace):
        raise ValueError("Nothing is observed in this call of the program: pass the new data, targets included.")
    for name, (size, taken) in parts_of_plates(seen.trace).items():
        raise ValueError(
            f"Plate {name!r} has {taken} of {size} rows, but new data count once: the program's plate must have "
            "their number, numpyro.plate('data', num_data, subsample_size=len(X)) with an argument num_data."
        )


def _refuse_counted_often(model: BoundModel) -> None:
    """Refuse batches of rows if some data are the same in all batches.

    Raises:
        ValueError: naming the site of these data.
    """
    for name in data_of(model.look.trace):
        if name not in model.site_rows.layouts:
            raise ValueError(
                f"The data of site {name!r} are the same in every batch of rows, and would count in each. "
                "Pass all rows at once, without batch_size, or leave these data out."
            )


class _Update(NamedTuple):
    """Change of ``q(u)`` on some rows, with the ``q(u)`` before them as the prior.

    Attributes:
        guide: guide of the program.
        chosen: names of the GP sites that change.
        counted: names of the sites whose terms make up the bound.
        num_steps: most natural-gradient steps.
        num_draws: draws of the sites that must be drawn; the same in all steps.
    """

    guide: InducingGuide
    chosen: frozenset[str]
    counted: frozenset[str]
    num_steps: int
    num_draws: int

    def search(self, key: PRNGKeyArray, batch: Batch) -> _Search:
        """Search step by step. A step that does not raise the bound is tried again with half the length."""
        names = {f"{site}_{part}" for site in self.chosen for part in ("mean", "scale")}
        own = {name: jnp.asarray(value) for name, value in batch.params.items() if name in names}
        mutable = any(shapes is None for shapes in self.guide.sites.parameters.values())  # NumPyro then allows one draw
        draws = self.num_draws if self.guide.draws_anything and not mutable else 1
        both = jax.value_and_grad(partial(self.bound, key, batch, draws))
        loss, slope = both(own)
        dtype = loss.dtype
        least = max(_ENOUGH, 8 * float(jnp.finfo(dtype).eps))

        def step(last: _Search) -> _Search:
            new = dict(last.own)
            for site in sorted(self.chosen):
                mean, scale = f"{site}_mean", f"{site}_scale"
                slopes = last.slope[mean], Full(last.slope[scale])
                after: Any
                new[mean], after, _ = Full(last.own[scale]).natural_step(last.own[mean], *slopes, last.rate, last.count)
                new[scale] = after.scale
            loss, slope = both(new)
            gain = last.loss - loss
            better = gain >= 0  # false for NaN
            done = (jnp.abs(gain) <= least * (1 + jnp.abs(last.loss))) | (last.rate < _SHORTEST)
            taken = _Search(last.count, new, loss, slope, jnp.minimum(2 * last.rate, 1), gain, done)
            kept = last._replace(rate=last.rate / 2, done=done)
            found = jax.tree.map(partial(jnp.where, better), taken, kept)
            return found._replace(count=last.count + 1)

        rate, gain = jnp.ones((), dtype), jnp.array(jnp.inf, dtype)
        start = _Search(jnp.array(0), own, loss, slope, rate, gain, jnp.array(False))
        return lax.while_loop(lambda last: ~last.done & (last.count < self.num_steps), step, start)

    def bound(self, key: PRNGKeyArray, batch: Batch, num_draws: int, own: dict[str, Any]) -> Float[Array, ""]:
        """Negative bound at parameters ``own`` of ``q(u)``; ``batch.params`` are the parameters before the update."""
        sites = sorted(self.guide.sites.processes)
        earlier = {
            site: Earlier(batch.params[f"{site}_mean"], Full(batch.params[f"{site}_scale"]), None) for site in sites
        }
        guide, objective = self.guide, AfterEarlier(earlier, num_draws, True, False)
        values = jax.tree.map(lambda x: x, batch.params) | own
        found = objective.loss_with_mutable_state(key, values, guide.model, guide, *batch.args, **batch.kwargs)
        return total(x for name, x in found["loss"].items() if name in self.counted)


def _numbers(found: _Search) -> Float[np.ndarray, " _"]:
    return np.concatenate([np.ravel(x) for x in (found.loss, *jax.tree.leaves(found.own))])
