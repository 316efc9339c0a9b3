"""Exports to ArviZ: draws of a posterior and of its prior, data, and log densities for checks of the draws."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

from gpzoo import _checks as checks
from gpzoo._types import Argument, ArrayLike
from gpzoo.errors import PrecisionWarning
from gpzoo.inference.bounds.marginal import refuse_marginal
from gpzoo.inference.fitted.container import Group, container, import_arviz, refuse_unwritable
from gpzoo.inference.fitted.exported_draws import Draw, Draws, Notes
from gpzoo.inference.fitted.map_batches import (
    Arrays,
    Batch,
    BatchFunction,
    BatchResult,
    BoundModel,
    map_batches,
)
from gpzoo.inference.fitted.parts import checked_parts, refuse_other_parts
from gpzoo.inference.guides.draws import DrawsGuide
from gpzoo.inference.guides.handler import parameter_of
from gpzoo.inference.guides.reparam import as_they_stand, inducing_variables
from gpzoo.inference.programs.arguments import arguments, refuse_no_tuple
from gpzoo.inference.programs.calls import entry_point
from gpzoo.inference.programs.enumeration import is_enumerated, plate_depth
from gpzoo.inference.programs.files import is_key
from gpzoo.inference.programs.finite import LOG_DENSITIES, is_finite
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.labelled import columns_of, columns_of_inputs, coordinates_of_rows
from gpzoo.inference.programs.program import Look, look
from gpzoo.inference.programs.runs import sampled

#: Arguments with more entries than this are not copied into ``constant_data``.
_SMALL = 1_000_000


#: With this many inputs, to factorise one joint covariance for each draw takes a second for all draws together.
_FEW = 300

#: Most inputs of a batch by default, and most inputs if there are more and each draw has its own covariances.
_MOST, _MOST_OF_DRAWS = 1000, 200

#: ArviZ's names for NumPyro's statistics of draws.
_BY_ARVIZ = {"num_steps": "n_steps", "accept_prob": "acceptance_rate", "adapt_state.step_size": "step_size"}

#: Groups of a draw's densities.
_DENSITIES = ("log_likelihood", "left_out", "log_prior", "log_q", "others", "masks", "notes")

#: Groups that are the same for all draws. They are kept from the first draw.
_SHARED = {"observed_data", "masks"}

#: For each group that must be finite, words for its numbers.
_WORDS = {group: f"{group} draws" for group in ("posterior", "posterior_predictive", "log_prior", "log_q")}
_WORDS |= dict.fromkeys(("log_likelihood", "left_out"), LOG_DENSITIES)


@dataclass(frozen=True)
class Exporting:
    """Options of :meth:`gpzoo.inference.Trained.to_arviz`.

    Three fields are not options. ``described`` is the training data, whose columns may have names. ``inputs`` has the
    name of the first argument and the names of its columns. ``of_rows`` has labels of the rows of the data (key
    ``"data"``) and of new rows (key ``"new"``).
    """

    new_args: tuple[Argument, ...] | None = None
    new_kwargs: Mapping[str, Any] | None = None
    batch_size: int | None = None
    coords: Mapping[str, Any] | None = None
    dims: Mapping[str, Sequence[str]] | None = None
    sample_stats: Mapping[str, ArrayLike] | None = None
    params: bool = False
    parts: Mapping[str, Sequence[str]] | None = None
    described: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[str, list[str]] = ("", [])
    of_rows: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            checks.positive_int("batch_size", self.batch_size)
        import_arviz()  # raises an error for a missing library before the draws are made
        refuse_unwritable(self.coords)

    def labelled(self, model: Callable, args: tuple, data: Mapping[str, Any]) -> Exporting:
        """The same options with names of columns and rows, from arguments of ``model`` and the training ``data``."""
        described = columns_of(model, args) | dict(data)
        new = self.new_args if isinstance(self.new_args, tuple) else ()
        of_rows = {"data": coordinates_of_rows(model, args), "new": coordinates_of_rows(model, new)}
        return replace(self, described=described, inputs=columns_of_inputs(model, described), of_rows=of_rows)


class Posterior(NamedTuple):
    """A posterior to export.

    Attributes:
        model: the program at its data.
        source: computes one draw.
        samples: values in all draws, by name, if the draws are samples of MCMC; otherwise empty.
        shape: number of chains, and number of draws of each chain.
        constants: arrays of ``constant_data``, by name.
        sample_stats: statistics of the draws, by name, ``[chains, draws, ...]``.
        points: values that are the same in all draws, by name.
        left_out: densities and draws of each row given all other rows, by data site; empty if there are none. See
            :meth:`DrawsGuide.left_out`.
    """

    model: BoundModel
    source: Draws
    samples: dict[str, Array]
    shape: tuple[int, int]
    constants: dict[str, Any]
    sample_stats: Mapping[str, ArrayLike]
    points: Mapping[str, np.ndarray] = {}
    left_out: Mapping[str, dict[str, np.ndarray]] = {}


def exported(
    models: Sequence[BoundModel],
    rng_key: Array,
    *,
    num_draws: int | None,
    losses: np.ndarray,
    options: Exporting,
) -> Any:
    """:meth:`gpzoo.inference.Trained.to_arviz` for one model, or for several trainings of a model as chains.

    The negative of ``losses``, ``[..., steps]``, is kept as ``elbo`` in ``constant_data``.
    """
    rng_key = checks.rng_key(rng_key)
    count = None if num_draws is None else checks.positive_int("num_draws", num_draws)
    each = []
    for k, model in enumerate(models):
        key = rng_key if len(models) == 1 else named_key(rng_key, f"training {k}")
        posterior = _posterior_of_guide(model, count, losses.reshape(len(models), -1)[k], options)
        each.append(_export(posterior, key, options))
    return _container(each, options)


def _posterior_of_guide(model: BoundModel, count: int | None, losses: np.ndarray, options: Exporting) -> Posterior:
    guide, params, stats = model.guide, model.params, options.sample_stats or {}
    numbers, shape = {}, (1, count or 500)
    constants = {name: x for name, x in params.items() if name not in guide.variational_parameters()}
    if isinstance(guide, DrawsGuide):
        shape, numbers = guide.by_chain(params, count)
        stats = guide.thinned(params, stats, shape[1])
        for name in constants.keys() & guide.parameters(guide.sites, None).keys():
            constants[name] = jax.tree.map(lambda x: x[0, 0], params[name])
    if losses.size:
        constants["elbo"] = -losses
    points, left_out = {}, {}
    if model.at_training:
        left_out = cast(DrawsGuide, guide).left_out(params, numbers)
    if options.params:
        for name in guide.sites.parameters.keys() & params.keys():
            points |= _leaves(name, params[name])
    parts = checked_parts(options.parts)
    if parts:
        refuse_other_parts(parts, model.look.trace, guide.sites.processes)
    source = replace(_draws_of(model, math.prod(shape)), parts=tuple(parts.items()))
    return Posterior(model, source, numbers, shape, constants, stats, points, left_out)


def chains_of(argument: str, samples: Mapping[str, Any]) -> tuple[tuple[int, int], dict[str, Array]]:
    """The number of chains, the number of draws of each chain, and the draws without the axis of chains.

    Raises:
        ValueError: for samples that are not all ``[chains, draws, ...]``.
    """
    shapes = {name: np.shape(value)[:2] for name, value in samples.items()}
    if len(set(shapes.values())) != 1 or len(shape := next(iter(shapes.values()))) != 2:
        raise ValueError(
            f"{argument} must be [chains, draws, ...], as mcmc.get_samples(group_by_chain=True) gives them; got shapes "
            f"that begin with {shapes}."
        )
    return shape, {name: jnp.reshape(value, (-1, *np.shape(value)[2:])) for name, value in samples.items()}


def drawn_alone(samples: Any, seen: Look) -> Any:
    """Samples without deterministic sites, which the program computes; one chain if samples have no axis of chains."""
    if not isinstance(samples, Mapping):
        return samples
    own = {name: x for name, x in samples.items() if seen.trace.get(name, {}).get("type") != "deterministic"}
    ungrouped = all(np.ndim(own[name]) == len(shape) + 1 for name, shape in seen.shapes.items() if name in own)
    return {name: np.asarray(x)[None] for name, x in own.items()} if ungrouped else own


def _draws_of(model: BoundModel, count: int) -> Draws:
    """``count`` draws of the guide's posterior."""
    sites = model.guide.sites
    depth = sites.plate_depth if sites.enumerated else None
    at_inducing = cast(DrawsGuide, model.guide).at_inputs(model.params) if model.at_training else frozenset()
    of = {"count": count, "plate_depth": depth, "at_inducing": at_inducing}
    return Draws(model=model.model, guide=model.guide, latents=sites.latents, **of)


class Densities(NamedTuple):
    """Log densities of a trained model's draws, in nats and float64.

    Attributes:
        log_likelihood: ``log p(y_n | f_n)`` by data site, ``[S, ...]``, without masked data.
        log_ratio: ``log_p - log_q`` of each draw, ``[S]``; see :meth:`gpzoo.inference.Trained.to_arviz`.
    """

    log_likelihood: dict[str, np.ndarray]
    log_ratio: np.ndarray


def densities(model: BoundModel, rng_key: Array, *, num_draws: int) -> Densities:
    """Only the densities of the draws that :meth:`gpzoo.inference.Trained.to_arviz` makes with the same key.

    Args:
        model: the model at its data.
        rng_key: key of the export.
        num_draws: number of draws ``S``.

    Raises:
        ValueError, FactorisationError, NonFiniteError: see :meth:`gpzoo.inference.Trained.to_arviz`.
    """
    source, guide = _draws_of(model, num_draws), model.guide

    def of_draw(draw: Draw, batch: Batch) -> Arrays:
        found = source.at_data(draw, batch)
        return {group: found[group] for group in _DENSITIES}

    draws, most = (rng_key, guide.numbers(model.params, num_draws)), _MOST // _inputs_of_a_row(model, _MOST) or 1
    fn = BatchFunction(
        "densities", of_draw, (num_draws, source.at_inducing), _draws_together(model), prepare=source.prepare
    )
    found = _at_data(fn, model, draws, most).arrays
    stats = _log_densities(found, {})
    terms = {name: x.astype(np.float64) for name, x in (found["log_likelihood"] | found["left_out"]).items()}
    if model.at_training:
        for name, x in cast(DrawsGuide, guide).left_out(model.params, draws[1]).items():
            if x["density"].shape == terms[name].shape and not np.isnan(x["density"]).any():
                terms[name] = x["density"].astype(np.float64)
    for name, mask in found["masks"].items():
        if name in terms:  # a chain of discrete latent variables does not have a term for each row of the data
            terms[name] = terms[name][:, mask]
    return Densities(terms, stats["log_p"] - stats["log_q"] if "log_q" in stats else np.zeros(num_draws))


@entry_point
def draws_to_arviz(
    rng_key: Array,
    model: Callable,
    *args: Argument,
    posterior_samples: Mapping[str, ArrayLike],
    sample_stats: Mapping[str, ArrayLike] | None = None,
    params: Mapping[str, Any] | None = None,
    new_args: tuple[Argument, ...] | None = None,
    new_kwargs: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    coords: Mapping[str, Any] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """MCMC draws in ArviZ, with the groups of :meth:`gpzoo.inference.Trained.to_arviz`.

    ``posterior`` has the values ``f`` of GP sites without their white noise, for a :func:`~gpzoo.inference.whitened`
    program too. If a site is sparse, each draw of ``f_u`` gives one joint draw of ``f``, and ``log_likelihood`` is the
    density of the data given ``f``. For sites that are not sparse, ``az.from_numpyro(mcmc)`` works too, with the noise.
    ``sample_stats`` has the given statistics and the log density ``log_p`` of data and latent sites. ``log_p_f`` is the
    part of ``log_p`` that belongs to a GP site ``f`` (``log_p_f_u`` if the site is sparse). For an observed GP site,
    ``log_p`` includes the marginal likelihood.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo.inference import draws_to_arviz
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 1, 5, dtype=np.float32)[:, None]
        >>> params = {"f_variance": 1.0, "f_lengthscale": 0.5, "noise_variance": 0.1}
        >>> draws = {"f": np.random.default_rng(0).standard_normal((2, 10, 5)).astype(np.float32)}  # 2 chains of 10
        >>> found = draws_to_arviz(jax.random.key(0), gp_regression, X, X[:, 0], posterior_samples=draws, params=params)
        >>> found["posterior"]["f"].shape, found["log_likelihood"]["y"].shape
        ((2, 10, 5), (2, 10, 5))

    Args:
        rng_key: key of the draws of data, and of ``f`` given ``f_u``.
        model: the program that MCMC ran.
        *args: the program's positional arguments, data included.
        posterior_samples: ``mcmc.get_samples(group_by_chain=True)``: draws by site name, ``[chains, draws, ...]``.
        sample_stats: statistics by ArviZ's names, such as ``mcmc.get_extra_fields(group_by_chain=True)``.
        params: values of the ``numpyro.param`` sites, if there are any.
        new_args: see :meth:`gpzoo.inference.Trained.to_arviz`, also for the next four arguments.
        new_kwargs: keyword arguments at new inputs.
        batch_size: rows of new inputs at a time, 1,000 if ``None``.
        coords: labels of the entries of axes.
        dims: names of axes.
        model_kwargs: the program's keyword arguments, by name.

    Raises:
        TypeError: for a :class:`~gpzoo.inference.marginal` program, or an ``rng_key`` that is not a key.
        ValueError: for samples that are not all ``[chains, draws, ...]``, or if a latent site has no samples.
        FactorisationError: naming the GP site whose covariance does not factorise at some draw.
        NonFiniteError: naming a site whose draws or densities are not finite for another reason.
    """
    options = Exporting(new_args, new_kwargs, batch_size, coords, dims, sample_stats).labelled(model, args, {})
    args, kwargs = arguments(model, args, model_kwargs)
    rng_key, params = checks.rng_key(rng_key), checks.parameters("params", {} if params is None else params)
    samples = checks.named("posterior_samples", posterior_samples)
    refuse_marginal(model)
    shape, flat = chains_of("posterior_samples", samples)
    with as_they_stand():
        values = {name: value[0] for name, value in flat.items()} | params
        seen = look(model, args, kwargs, values, arrays=True).trace
        inducing = inducing_variables(seen, samples)
        unobserved = {name: site for name, site in sampled(seen).items() if not site["is_observed"]}
        latents = frozenset(n for n, s in unobserved.items() if not is_enumerated(s))
        depth = plate_depth(seen) if latents < set(unobserved) else None
        if missing := sorted(latents - set(samples) - set(inducing)):
            raise ValueError(f"posterior_samples has no draws of the latent sites {missing}.")
        constants = params | {f"{name}_inducing": parameter_of(at) for name, at in inducing.items()}
        bound = BoundModel(model, None, params, args, kwargs, values=values)
        of = {"count": math.prod(shape), "plate_depth": depth, "inducing": inducing}
        source = Draws(model=model, latents=latents, **of)
        posterior = Posterior(bound, source, flat, shape, constants, sample_stats or {})
        return _container([_export(posterior, rng_key, options)], options)


class Exported(NamedTuple):
    """The groups of one posterior, and the names and labels of their axes."""

    groups: dict[str, Group]
    rows: dict[str, np.ndarray | None]
    labels: dict[str, Any]


def _container(each: Sequence[Exported], options: Exporting) -> Any:
    """ArviZ's container of one posterior, or of several as chains; constants that differ get an axis of chains."""
    groups, (_, rows, labels) = dict(each[0].groups), each[0]
    if len(each) > 1:
        groups = {name: _joint([one.groups[name] for one in each]) for name in groups}
    name, columns = options.inputs
    if columns:
        labels = {**labels, f"{name}_column": columns}
        groups = {n: _with_columns(group, name, columns) for n, group in groups.items()}
    return container(groups, rows, labels, options.coords, options.dims, options.of_rows)


def _with_columns(group: Group, inputs: str, columns: list[str]) -> Group:
    """The group with names of the columns of an input, on this input and on lengthscales with one entry per column."""
    dims = dict(group.dims)
    for name, x in group.values.items():
        before = np.ndim(x) - 2 * group.drawn - 1
        if (name == inputs or "lengthscale" in name) and before >= 0 and np.shape(x)[-1] == len(columns):
            own = list(dims.get(name, []))[:before]
            dims[name] = [*own, *[None] * (before - len(own)), f"{inputs}_column"]
    return replace(group, dims=dims)


def _joint(groups: Sequence[Group]) -> Group:
    first, values, dims = groups[0], {}, dict(groups[0].dims)
    for name in first.values:
        arrays = [np.asarray(group.values[name]) for group in groups]
        if first.drawn:
            values[name] = np.concatenate(arrays)
        elif all(np.array_equal(arrays[0], x) for x in arrays):
            values[name] = arrays[0]
        else:
            values[name], dims[name] = np.stack(arrays), ["training", *first.dims.get(name, [])]
    said = {"chains": _TRAININGS} if first.drawn else {}
    return replace(first, values=values, dims=dims, attributes=dict(first.attributes) | said)


_TRAININGS = (
    "each is a training of its own, whose draws are independent: R-hat says whether trainings found one optimum, and "
    "nothing of the convergence of any"
)


def _export(posterior: Posterior, rng_key: Array, options: Exporting) -> Exported:
    """The groups of a posterior."""
    model, source, shape = posterior.model, posterior.source, posterior.shape
    stats = posterior.sample_stats
    other = {n: np.shape(x) for n, x in stats.items() if np.shape(x)[:2] != shape}
    checks.refuse(other, f"sample_stats must be of the exported draws, {list(shape)} of each; got shapes {other}.")
    new = _at_new_inputs(model, options)
    found, few = _computed(posterior, new, rng_key, options.batch_size)
    notes = found["notes"].value
    axes, one_per_row = _axes_of_rows(model, notes, source.parts)
    rows = {"row", *(axes[name][0] for name in one_per_row if axes[name])} - {None}
    of_sites, unmasked = dict(axes), dict(axes)
    constants = _constants(posterior.constants, notes.processes, unmasked) | _arguments(model, unmasked, rows)
    of_new = {} if new is None else _arguments(new, unmasked, rows)
    labels = _without_masked(found, axes, constants)

    def drawn(values: Mapping[str, np.ndarray], chains: tuple[int, int] = shape, **of: Any) -> Group:
        return Group({name: x.reshape(*chains, *x.shape[1:]) for name, x in values.items()}, axes, **of)

    # Tools that scale the prior (az.psense_summary) take all of log_prior, but mean only the prior of hyperparameters.
    of_gps = {f"log_p_{n}": x for n, x in found["log_prior"].items() if n.removesuffix("_u") in notes.processes}
    said = {} if source.of_mcmc else {"approximation": "svi"}
    if posterior.points:
        names = ", ".join(sorted(posterior.points))
        said["points"] = f"{names} are trained values, the same in all draws of a chain"
        for name, x in posterior.points.items():
            found["posterior"][name] = np.broadcast_to(x, (shape[0] * shape[1], *x.shape))
    # PSIS fits tails to differences of log densities. In float32, these differences would round to zero.
    terms, said_of_terms, of_blocks = _terms(found, posterior.left_out, axes)
    from_prior: dict[str, Any] = {"rows": "first", "attributes": _said_of_prior(model, few)}
    groups = {
        "posterior": drawn(found["posterior"], attributes=said),
        "posterior_predictive": drawn(found["posterior_predictive"]),
        "predictions": replace(drawn(found["predictions"], rows="new"), dims=of_sites),
        "log_likelihood": replace(drawn(terms, attributes=said_of_terms), dims=axes | of_blocks),
        "log_prior": drawn({n: x for n, x in found["log_prior"].items() if f"log_p_{n}" not in of_gps}),
        "sample_stats": drawn(_log_densities(found, stats) | of_gps),
        "prior": drawn(found["prior"], (1, -1), **from_prior),
        "prior_predictive": drawn(found["prior_predictive"], (1, -1), **from_prior),
        "observed_data": Group(_as_drawn(found), axes, drawn=False),
        "constant_data": Group(constants, axes | unmasked, drawn=False),
        "predictions_constant_data": Group(of_new, unmasked, drawn=False, rows="new"),
    }
    counting: dict[str, np.ndarray | None] = dict.fromkeys(rows)
    for name, mask in found["masks"].items():
        if mask.ndim == 1 and name in one_per_row:
            counting[f"{name}_observed"] = np.flatnonzero(mask)
    return Exported(groups, counting, labels)


def _terms(
    found: Arrays, left_out: Mapping[str, dict[str, np.ndarray]], axes: dict[str, list[str | None]]
) -> tuple[dict[str, np.ndarray], dict[str, str], dict[str, list[str]]]:
    """Terms of the log likelihood by data site: each row given all other rows, if these terms are known.

    Also returns a description of the terms, and the axes of blocks. Draws given all other data go into
    ``posterior_predictive``.
    """
    terms, of_blocks = found["log_likelihood"] | found["left_out"], {}
    said = dict.fromkeys(terms, _GIVEN_F) | dict.fromkeys(found["left_out"], _GIVEN_OTHERS)
    for name, of_site in left_out.items():
        x, mask, drawn = of_site["density"], found["masks"].get(name), of_site.get("drawn")
        single = drawn is not None  # blocks have no draws, even if there is one for each row
        x = x[:, mask] if single else x
        if np.isnan(x).any():
            warnings.warn(
                f"Site {name!r}: some log densities given all other data are lost in rounding, or noise that is not "
                "log-concave has no Laplace approximation without these data. log_likelihood has the densities given "
                "draws of f in their place. Try float64 (numpyro.enable_x64()).",
                PrecisionWarning,
                stacklevel=checks.outside(),
            )
            continue
        terms, said[name] = terms | {name: x}, _GIVEN_OTHERS
        if not single:
            of_blocks[name] = [f"{name}_block"]
        if drawn is not None:
            found["posterior_predictive"][f"{name}_left_out"], axes[f"{name}_left_out"] = drawn[:, mask], axes[name]
    return {name: x.astype(np.float64) for name, x in terms.items()}, said, of_blocks


_GIVEN_F = "log p(y_n | f_n), given a draw of f"
_GIVEN_OTHERS = "log p(y_n | y_-n), each datum or block given all other data, with GP sites integrated out"


def _axes_of_rows(
    model: BoundModel, notes: Notes, parts: Sequence[tuple[str, tuple[str, ...]]]
) -> tuple[dict[str, list[str | None]], set[str]]:
    """Names of axes, and the names of the sites with an entry for each row.

    If a site has as many entries as there are rows, and is not an argument, only the program can tell.
    """
    axes, one_per_row = dict(notes.axes), {name for name, sure in notes.like_rows.items() if sure}
    for name in notes.like_rows.keys() - one_per_row:
        if name in model.site_rows.one_per_row:
            one_per_row.add(name)
        elif name in notes.processes | notes.seen:
            axes[name] = [f"{name}_row", *axes[name][1:]]
        elif notes.like_rows[name] is None:
            axes[name] = [None, *axes[name][1:]]
    for site, names in parts:
        axes |= dict.fromkeys(names, axes[site])
        one_per_row |= set(names) if site in one_per_row else set()
    return axes, one_per_row


def _as_drawn(found: Arrays) -> dict[str, np.ndarray]:
    """Observed data by name. Whole numbers become integers if predictions are integers, because ArviZ uses types."""
    like = found["posterior_predictive"]

    def whole(name: str, x: np.ndarray) -> bool:
        return name in like and like[name].dtype.kind in "iu" and bool(np.all(x == np.floor(x)))

    return {n: x.astype(like[n].dtype) if whole(n, x) else x for n, x in found["observed_data"].items()}


def _computed(
    posterior: Posterior, new: BoundModel | None, rng_key: Array, batch_size: int | None
) -> tuple[Arrays, int]:
    """Posterior, prior and predictions on the host, each from one compiled program, and the rows of the prior.

    Raises:
        ValueError, FactorisationError, NonFiniteError: see :meth:`gpzoo.inference.Trained.to_arviz`.
    """
    model, source, draws = posterior.model, posterior.source, (rng_key, posterior.samples)
    if batch_size is None:
        largest = max(model.num_rows, 0 if new is None else new.num_rows)
        # Addends are drawn together.
        inputs = _inputs_of_a_row(model, _MOST) * max((len(names) for _, names in source.parts), default=1)
        each = source.guide is None or source.guide.draws_anything
        batch_size = (_MOST_OF_DRAWS if each and largest * inputs > _MOST else _MOST) // inputs or 1
    most = of_prior = max(model.num_rows, 1) if source.guide is None else batch_size
    if source.at_inducing and source.at_inducing >= model.guide.sites.processes:
        most = max(model.num_rows, 1)  # the functions are known at all rows, so nothing is drawn there
    draws_together = _draws_together(model)
    options: Any = source.count, source.at_inducing, source.parts
    fn = BatchFunction("export", source.at_data, options, draws_together, prepare=source.prepare)
    found = _at_data(fn, model, draws, most, source.sites_of_parts).arrays
    few = min(model.num_rows, of_prior)
    first = jax.tree.map(lambda x: x[:few], model.args) if few < model.num_rows else model.args
    prior = model.compiled_for(_of_prior(source, posterior.shape[1], draws_together))
    try:
        found |= jax.tree.map(np.asarray, prior(rng_key, model.batch(args=first)))
    except NotImplementedError as error:
        found |= {"prior": {}, "prior_predictive": {}}
        warnings.warn(f"The export has no draws from the prior. {error}", stacklevel=checks.outside())
    _warn_not_finite(found)
    found["predictions"] = {}
    if new is not None:
        options = source.count, source.parts
        fn = BatchFunction("predictions", source.at_new, options, draws_together, prepare=source.prepare)
        size, others = _even(new.num_rows, batch_size), (model.batch(), found["notes"])
        result = map_batches(fn, new, draws, size, whole=new.site_rows, others=others, addends=source.sites_of_parts)
        result.refuse_not_finite(dict.fromkeys(("predictions", "means"), "predictions"), others[1].value.processes)
        found["predictions"] = result.arrays["predictions"]
    return found, few


def _of_prior(source: Draws, count: int, draws_together: int | None) -> BatchFunction:
    """A function that makes ``count`` draws from the prior."""

    def prepare(key: Array, batch: Batch) -> tuple[Array, Batch]:
        return random.split(named_key(key, "prior"), count), batch

    return BatchFunction("prior", source.of_prior, count, draws_together, prepare=prepare)


def _at_data(
    fn: BatchFunction, model: BoundModel, draws: Draw, most: int, addends: Mapping[str, str] | None = None
) -> BatchResult:
    """A function of draws at the data, in even batches. Values that all draws share come from the first draw.

    ``addends`` maps the names of parts to their sites.

    Raises:
        ValueError, FactorisationError, NonFiniteError: see :meth:`gpzoo.inference.Trained.to_arviz`.
    """

    def summary(found: Arrays) -> Arrays:
        for group in _SHARED & found.keys():
            found[group] = {n: x[0] for n, x in found[group].items()}
        return found

    fn = replace(fn, summary=summary, row_axis=dict.fromkeys(_SHARED, 0))
    result = map_batches(fn, model, draws, _even(model.num_rows, most), addends=addends)
    found, processes = result.arrays, result.arrays["notes"].value.processes
    _refuse_batches(model, found, most)
    for group in ("log_prior", "log_q"):  # latent variables of rows have a term for each row
        found[group] = {name: x.reshape(len(x), -1).sum(axis=1) for name, x in found[group].items()}

    def site_of(name: str) -> str:
        return name.removesuffix("_u") if name.removesuffix("_u") in processes else name

    result.refuse_not_finite(_WORDS, processes, site_of)
    return result


def _draws_together(model: BoundModel) -> int | None:
    """How many draws to make at once: all if they share kernels, because ``vmap`` then computes the factors once.

    Otherwise one: a loop compiles in less time, and with few rows the factors take almost no time.
    """
    guide, rows = model.guide, model.num_rows
    if guide is None or guide.draws_anything:
        return 1
    return 1 if rows <= _FEW and rows * _inputs_of_a_row(model, _FEW) <= _FEW else None


def _inputs_of_a_row(model: BoundModel, few: int) -> int:
    """The largest number of inputs of a GP site for each row of the data. Draws are joint over all inputs of a batch.

    The program is not run for this if no argument has more than ``few`` numbers.
    """
    guide = model.guide
    largest = max(map(np.size, jax.tree.leaves(model.args)), default=0)
    if guide is None or guide.joint or largest <= few:
        return 1
    layouts = model.site_rows.layouts
    return max((layouts[site].count for site in guide.sites.processes & layouts.keys()), default=1)


def _even(rows: int, most: int) -> int:
    """The number of rows in each batch, for as few batches as possible, all of one length."""
    rows = max(rows, 1)
    return -(-rows // -(-rows // min(most, rows)))


def _without_masked(found: Arrays, axes: dict[str, Any], constants: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Take masked data out of groups, rename their axes, add masks to constants, and return labels of axes."""
    labels: dict[str, np.ndarray] = {}
    for name, mask in found["masks"].items():
        if mask.all():
            continue
        constants.pop(name, None)  # it has placeholders among the data
        constants[f"{name}_mask"], axes[f"{name}_mask"] = mask, axes[name]
        axes[name] = [f"{name}_observed", *axes[name][mask.ndim :]]
        labels[f"{name}_observed"] = np.flatnonzero(mask)
        for group in ("posterior_predictive", "log_likelihood", "prior_predictive"):
            # A chain of discrete latent variables does not have a term for each row; the prior may have fewer rows.
            if (values := found[group].get(name)) is not None:
                found[group][name] = values[:, mask[: values.shape[1]]]
        found["observed_data"][name] = found["observed_data"][name][mask]
    return labels


def _at_new_inputs(model: BoundModel, options: Exporting) -> BoundModel | None:
    """The program at new inputs, if there are any."""
    if options.new_args is None:
        return None
    refuse_no_tuple("new_args", "(X_new,)", options.new_args)
    kwargs = model.kwargs if options.new_kwargs is None else options.new_kwargs
    args, kwargs = arguments(model.model, options.new_args, kwargs, new=True, described=options.described)
    return replace(model, args=args, kwargs=kwargs)


def _refuse_batches(model: BoundModel, found: Arrays, most: int) -> None:
    """Refuse densities that depend on all rows together if rows came in batches of ``most``.

    Raises:
        ValueError: naming the site.
    """
    rows = model.num_rows
    if rows <= most:
        return
    together = {name for name in found["others"] if name not in model.site_rows.layouts}
    if model.guide is not None:
        together |= model.guide.joint
    if together:
        raise ValueError(
            f"The density of site(s) {sorted(together)} is one joint density of all {rows} rows together, which do "
            "not come in "
            f"batches: pass batch_size={rows} or more, or fewer rows."
        )


def _log_densities(found: Arrays, given: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    """The given statistics, ``log_p`` of data and latent variables and, with a guide, ``log_q`` of latent variables."""

    def total(*groups: str) -> np.ndarray:
        parts = [np.asarray(x, np.float64) for group in groups for x in found[group].values()]
        return np.sum([x.reshape(len(x), -1).sum(axis=1) for x in parts], axis=0)

    stats = {name: np.reshape(value, (-1, *np.shape(value)[2:])) for name, value in given.items()}
    stats = {_BY_ARVIZ.get(name, name): x for name, x in stats.items()}
    stats |= {"log_p": total("log_likelihood", "log_prior", "others")}
    return stats | ({"log_q": total("log_q")} if found["log_q"] else {})


def _warn_not_finite(found: Arrays) -> None:
    """Warn of draws that are not finite: wide priors overflow, but the posterior may still be right."""
    bad = {name for group in ("prior", "prior_predictive") for name, x in found[group].items() if not is_finite(x)}
    if bad:
        warnings.warn(
            f"Some draws from the prior are not finite: those of {sorted(bad)}. The priors of hyperparameters allow "
            "values at which the program overflows, or a covariance has no factor.",
            stacklevel=checks.outside(),
        )


def _said_of_prior(model: BoundModel, few: int) -> dict[str, str]:
    fixed = sorted(model.params if model.guide is None else model.guide.sites.parameters)
    said = {"parameters": f"drawn at the trained values of {', '.join(fixed)}"} if fixed else {}
    rows = model.num_rows
    return said | ({"rows": f"the first {few} of {rows}"} if few < rows else {})


def _constants(
    params: Mapping[str, Any], processes: frozenset[str], axes: dict[str, list[str | None]]
) -> dict[str, np.ndarray]:
    """Arrays of parameters by name. The names of their axes are added to ``axes``."""
    found: dict[str, np.ndarray] = {}
    for name, value in params.items():
        found |= _leaves(name, value)
        if name.removesuffix("_inducing") in processes:
            axes[name] = [f"{name}_row"]
    axes["elbo"] = ["step"]
    return found


def _leaves(name: str, value: Any) -> dict[str, np.ndarray]:
    """The arrays of a parameter by name, without the keys of a network's dropout, which are not numbers."""
    leaves = jax.tree_util.tree_flatten_with_path(value)[0]
    return {name + jax.tree_util.keystr(path): np.asarray(x) for path, x in leaves if not is_key(x)}


def _arguments(model: BoundModel, axes: dict[str, list[str | None]], rows: set[str]) -> dict[str, np.ndarray]:
    """Arguments that are small arrays. The names of their axes (rows, and axes of images) are added to ``axes``."""
    try:
        bound = inspect.signature(model.model).bind_partial(*model.args, **model.kwargs).arguments
    except (TypeError, ValueError):
        return {}
    found: dict[str, np.ndarray] = {}
    counting = next((names[0] for names in axes.values() if names and names[0] in rows), "row")
    for name, value in bound.items():
        if not isinstance(value, np.ndarray | jax.Array) or value.size > _SMALL:
            continue
        # A variable with the name of an axis would be its coordinate.
        own = f"{name}_given" if name in rows else name
        found[own] = np.asarray(value)
        axes[own] = list(axes.get(name, []))
        if len(axes[own]) != value.ndim:
            has_rows = value.ndim and any(value is x for x in model.args) and len(value) == model.num_rows
            axes[own] = [counting if has_rows else None, *[None] * value.ndim][: value.ndim]
        if value.ndim == 4:
            axes[own][1:] = [f"{name}_{axis}" for axis in ("height", "width", "channel")]
    return found
