"""How does a trained model take in new data in one pass? Its ``q(u)`` is the prior of the next, batch by batch."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jaxtyping import Bool, Float, Integer, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo.inference.asking.predict import followed, identity_of
from gpzoo.inference.bounds.online import AfterEarlier
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.guides.more_inducing import check_forms
from gpzoo.inference.programs.finite import refuse_not_finite
from gpzoo.inference.programs.gp_sites import Start
from gpzoo.inference.programs.program import Look, look
from gpzoo.inference.programs.rows import SiteRows
from gpzoo.inference.programs.runs import Trace, run
from gpzoo.inference.training._sources import Resident, split_arrays
from gpzoo.linalg import total
from gpzoo.posteriors.earlier import Earlier
from gpzoo.posteriors.forms import Full
from gpzoo.posteriors.posterior import InducingPosterior

#: A step that raises the bound by less than this share of it is the last one.
_ENOUGH = 1e-7

#: The share of a natural-gradient step below which none is tried.
_SHORTEST = 2.0**-12

#: Nats per row by which the last step of all still raises a bound that is said to be unfinished.
_UNFINISHED = 1e-3


class _Search(NamedTuple):
    """Natural-gradient steps on a bound that is the same in all of them.

    Attributes:
        count: number of steps tried.
        own: parameters of ``q(u)``.
        loss: negative bound there.
        slope: its derivatives.
        rate: length of the next step.
        gain: nats by which the last step raised the bound.
        done: whether nothing more is to be gained.
    """

    count: Integer[Array, ""]
    own: dict[str, Any]
    loss: Float[Array, ""]
    slope: dict[str, Any]
    rate: Float[Array, ""]
    gain: Float[Array, ""]
    done: Bool[Array, ""]


class Conditioned(NamedTuple):
    """What :func:`conditioned` finds.

    Attributes:
        params: parameters, those of ``q(u)`` after the new data.
        losses: negative bound on the log evidence of the rows so far given the earlier data, after every batch.
        seconds: wall time.
        data: description of the new data.
    """

    params: dict[str, Any]
    losses: Float[np.ndarray, " K"]
    seconds: float
    data: dict[str, Any]


def conditioned(
    compiled: dict[tuple, Callable],
    rng_key: PRNGKeyArray,
    guide: InducingGuide,
    params: Mapping[str, Any],
    args: tuple,
    kwargs: dict[str, Any],
    *,
    batch_size: int | None,
    num_steps: int,
    num_draws: int,
    sites: Collection[str] | None,
) -> Conditioned:
    """:meth:`gpzoo.inference.Trained.condition` for checked arguments; ``compiled`` keeps compiled programs."""
    started = time.perf_counter()
    source = Resident(args, None, [0], None)
    num_rows = source.num_rows
    counts = checks.is_open(guide.model, "num_data") or "num_data" in kwargs
    if kwargs.get("num_data") not in (None, num_rows):
        raise ValueError(
            f"num_data is {kwargs['num_data']}, but new data count once, and there are {num_rows} rows of them: leave "
            "num_data out."
        )
    of_rows = lambda count: kwargs | ({"num_data": count} if counts else {})  # noqa: E731
    cuts = np.linspace(0, num_rows, -(-num_rows // min(batch_size or num_rows, num_rows)) + 1).astype(int).tolist()
    seen = look(guide.model, args, of_rows(num_rows))
    _check_data(seen if len(cuts) == 2 else look(guide.model, _cut(args, 0, cuts[1]), of_rows(cuts[1])))
    if len(cuts) > 2:
        _refuse_counted_often(seen, followed(compiled, guide.model, args, of_rows(num_rows), None))
    processes = guide.sites_for(args, kwargs, seen).processes
    if not processes:
        raise ValueError("The program has no latent GP site, whose q(u) could take in new data.")
    chosen = _chosen(sites, guide)
    check_forms(guide, processes)
    params = guide.checked_params(params, args, kwargs)
    for posterior in posteriors_at(rng_key, guide, params, args, kwargs).values():
        check_columns(posterior)
    # All but latents of the rows are held: their divergences say nothing about the new data.
    frames = {name: {frame.name for frame in site.get("cond_indep_stack") or ()} for name, site in seen.trace.items()}
    of_data = set().union(*(frames[name] for name, site in seen.trace.items() if site.get("is_observed")))
    held = {name for name in guide.sites.latents - processes if not frames[name] & of_data}
    counted = frozenset(seen.trace.keys() - held)
    losses: list[float] = []
    for k, (start, end) in enumerate(pairwise(cuts)):
        rows = _cut(args, start, end)
        arrays, static = split_arrays(of_rows(end - start))
        made = ("condition", identity_of(static), chosen, num_steps, num_draws)
        if made not in compiled:
            update = partial(_after_batch, guide, static, chosen, counted, num_steps, num_draws)
            compiled[made] = jax.jit(update)
        inputs = random.fold_in(rng_key, k), params, rows, arrays
        found: _Search = compiled[made](*inputs)
        site = min(chosen)
        refuse_not_finite(
            site,
            "numbers of q(u)",
            _numbers(found),
            processes,
            partial(_evaluated, guide, counted, *inputs, static),
        )
        if not found.done and found.gain > _UNFINISHED * (end - start):
            warnings.warn(
                f"Step {num_steps} on rows {start} to {end - 1} still raised the bound by {float(found.gain):.2g} "
                "nats: q(u) is not yet the best one there. Take more steps, num_steps=..., or fewer rows at a "
                "time, batch_size=....",
                UserWarning,
                stacklevel=4,
            )
        params = params | found.own
        losses.append(float(found.loss))
    names = checks.positional(guide.model, len(args))[0]
    return Conditioned(params, np.cumsum(losses), time.perf_counter() - started, source.settings(names))


def posteriors_at(
    rng_key: PRNGKeyArray, guide: InducingGuide, params: Mapping[str, Any], args: tuple, kwargs: dict[str, Any]
) -> dict[str, InducingPosterior]:
    """The posterior of each GP site, whose inputs are at the prior's mean of the sites before; outside ``jit``.

    Raises:
        FactorisationError: naming the site, if a ``Kuu`` does not factorise.
    """
    values = jax.tree.map(lambda x: x, dict(params))
    trace: Trace = run(rng_key, args, kwargs, guide=guide, values=values, representation=Start()).guide
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
    checks.names("sites", set(given), needed=set(), known=set(guide.sites.processes))
    return frozenset(given)


def _cut(args: tuple, start: int, end: int) -> tuple:
    return jax.tree.map(lambda x: x[start:end], args)


def _check_data(seen: Look) -> None:
    """Refuse a run without data, and plates of more rows than these."""
    sites = seen.trace.items()
    if not any(site["type"] == "sample" and site["is_observed"] for _, site in sites):
        raise ValueError("Nothing is observed in this call of the program: pass the new data, targets included.")
    for name, site in sites:
        size, taken = site["args"] if site["type"] == "plate" else (None, None)
        if taken not in (None, size):
            raise ValueError(
                f"Plate {name!r} has {taken} of {size} rows, but new data count once: the program's plate must have "
                "their number, numpyro.plate('data', num_data, subsample_size=len(X)) with an argument num_data."
            )


def _refuse_counted_often(seen: Look, follow: SiteRows) -> None:
    """Refuse batches of rows where data are the same in all of them.

    Raises:
        ValueError: naming their site.
    """
    for name, site in seen.trace.items():
        if site["type"] == "sample" and site["is_observed"] and name not in follow.layouts:
            raise ValueError(
                f"The data of site {name!r} are the same in every batch of rows, in each of which they would count. "
                "Pass all rows at once, without batch_size, or leave these data out."
            )


def _after_batch(
    guide: InducingGuide,
    static: dict[str, Any],
    chosen: frozenset[str],
    counted: frozenset[str],
    num_steps: int,
    num_draws: int,
    key: PRNGKeyArray,
    params: dict[str, Any],
    rows: tuple,
    arrays: dict[str, Any],
) -> _Search:
    """Natural-gradient steps on the bound of some rows, ``q(u)`` before them being the prior.

    The draws are the same in all steps. So each step raises the bound, or it is tried again with half the length.
    """
    names = {f"{site}_{part}" for site in chosen for part in ("mean", "scale")}
    own = {name: jnp.asarray(value) for name, value in params.items() if name in names}
    mutable = any(shapes is None for shapes in guide.sites.parameters.values())  # NumPyro's has one draw
    draws = num_draws if guide.draws_anything and not mutable else 1
    bound = partial(_bound, guide, params, counted, key, rows, arrays | static, draws)
    both = jax.value_and_grad(bound)
    loss, slope = both(own)
    dtype = loss.dtype
    least = max(_ENOUGH, 8 * float(jnp.finfo(dtype).eps))

    def step(at: _Search) -> _Search:
        new = dict(at.own)
        for site in sorted(chosen):
            mean, scale = f"{site}_mean", f"{site}_scale"
            slopes = at.slope[mean], Full(at.slope[scale])
            after: Any
            new[mean], after, _ = Full(at.own[scale]).natural_step(at.own[mean], *slopes, at.rate, at.count)
            new[scale] = after.scale
        loss, slope = both(new)
        gain = at.loss - loss
        better = gain >= 0  # false of NaN
        done = (jnp.abs(gain) <= least * (1 + jnp.abs(at.loss))) | (at.rate < _SHORTEST)
        taken = _Search(at.count, new, loss, slope, jnp.minimum(2 * at.rate, 1), gain, done)
        kept = at._replace(rate=at.rate / 2, done=done)
        found = jax.tree.map(partial(jnp.where, better), taken, kept)
        return found._replace(count=at.count + 1)

    start = _Search(jnp.array(0), own, loss, slope, jnp.ones((), dtype), jnp.array(jnp.inf, dtype), jnp.array(False))
    return lax.while_loop(lambda at: ~at.done & (at.count < num_steps), step, start)


def _bound(
    guide: InducingGuide,
    params: Mapping[str, Any],
    counted: frozenset[str],
    key: PRNGKeyArray,
    rows: tuple,
    kwargs: dict[str, Any],
    num_draws: int,
    own: dict[str, Any],
) -> Float[Array, ""]:
    """Negative bound of some rows at parameters ``own`` of ``q(u)``; ``params`` are those before."""
    sites = sorted(guide.sites.processes)
    earlier = {site: Earlier(params[f"{site}_mean"], Full(params[f"{site}_scale"]), None) for site in sites}
    objective = AfterEarlier(earlier, num_draws, True, False)
    values = jax.tree.map(lambda x: x, dict(params)) | own
    terms = objective.loss_with_mutable_state(key, values, guide.model, guide, *rows, **kwargs)["loss"]
    return total(x for name, x in terms.items() if name in counted)


def _evaluated(
    guide: InducingGuide,
    counted: frozenset[str],
    key: PRNGKeyArray,
    params: Mapping[str, Any],
    rows: tuple,
    arrays: dict[str, Any],
    static: dict[str, Any],
) -> Any:
    """The bound before any step, outside ``jit``, where what fails raises its own error."""
    return _bound(guide, params, counted, key, rows, arrays | static, 1, {})


def _numbers(found: _Search) -> Float[np.ndarray, " _"]:
    return np.concatenate([np.ravel(x) for x in (found.loss, *jax.tree.leaves(found.own))])
