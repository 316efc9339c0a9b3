"""What is exported to ArviZ? Draws of a posterior and of its prior, data, and densities that judge the draws."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

from gpzoo import _checks as checks
from gpzoo._types import Argument, ArrayLike
from gpzoo.inference.asking.container import Group, container
from gpzoo.inference.asking.draws import Arguments, Draw, Draws, Found
from gpzoo.inference.asking.predict import followed, identity_of
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.guides.reparam import as_they_stand, inducing_variables
from gpzoo.inference.programs.arguments import arguments
from gpzoo.inference.programs.arrays import split_arrays
from gpzoo.inference.programs.batches import in_batches, over_draws
from gpzoo.inference.programs.calls import entry_point
from gpzoo.inference.programs.enumeration import is_enumerated, plate_depth
from gpzoo.inference.programs.finite import is_finite, refuse_not_finite
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.program import look
from gpzoo.inference.programs.rows import Layout, number_of_rows

#: Arguments with more entries than this are not copied into ``constant_data``.
_SMALL = 1_000_000


#: Rows whose joint covariance is factorised once per draw in a second in all.
_FEW = 300

#: Groups of a draw's densities.
_DENSITIES = ("log_likelihood", "left_out", "log_prior", "log_q", "others", "masks")


#: Arrays by name, with the names of their axes.
_Named: TypeAlias = dict[str, tuple[np.ndarray, Sequence[str | None]]]


@dataclass(frozen=True)
class Options:
    """What is asked of an export, as :meth:`gpzoo.inference.Trained.to_arviz` says."""

    new_args: tuple[Argument, ...] | None = None
    new_kwargs: Mapping[str, Any] | None = None
    batch_size: int = 1000
    coords: Mapping[str, Any] | None = None
    dims: Mapping[str, Sequence[str]] | None = None


def exported(
    compiled: dict[tuple, Any],
    rng_key: Array,
    model: Callable,
    guide: InducingGuide,
    params: Mapping[str, Any],
    args: tuple,
    model_kwargs: Mapping[str, Any] | None,
    *,
    num_draws: int,
    losses: np.ndarray | None,
    options: Options,
) -> Any:
    """:meth:`gpzoo.inference.Trained.to_arviz`; ``compiled`` keeps the compiled programs, of earlier calls too.

    Negative ``losses`` are kept as ``elbo`` in ``constant_data``.
    """
    args, kwargs = arguments(model, args, model_kwargs, new=True)
    rng_key, num_draws = checks.rng_key(rng_key), checks.positive_int("num_draws", num_draws)
    guide.sites_for(args, kwargs)
    params = guide.checked_params(params, args, kwargs)
    constants = {n: x for n, x in params.items() if n not in guide.variational_parameters()}
    depth = guide.sites.plate_depth if guide.sites.enumerated else None
    return _export(
        compiled,
        Draws(model, guide.sites.latents, guide, depth),
        rng_key,
        (random.split(named_key(rng_key, "export"), num_draws), {}),
        (1, num_draws),
        (args, kwargs),
        params,
        constants=constants | ({} if losses is None else {"elbo": -np.asarray(losses)}),
        sample_stats={},
        options=options,
    )


@dataclass(frozen=True)
class Densities:
    """Log densities of draws of a trained model, in nats and float64.

    Attributes:
        log_likelihood: ``log p(y_n | f_n)`` by data site, ``[S, ...]``; data that are masked are left out.
        log_ratio: ``log_p - log_q`` of each draw, ``[S]``; see :meth:`gpzoo.inference.Trained.to_arviz`.
    """

    log_likelihood: dict[str, np.ndarray]
    log_ratio: np.ndarray


def densities(
    rng_key: Array,
    model: Callable,
    guide: InducingGuide,
    params: dict[str, Any],
    args: tuple,
    kwargs: dict[str, Any],
    *,
    num_draws: int,
    compiled: dict[tuple, Any],
) -> Densities:
    """The densities of the draws that :meth:`gpzoo.inference.Trained.to_arviz` makes of the same key, and no more.

    Args:
        rng_key: of the export.
        model: the program.
        guide: its guide, which has seen data.
        params: checked parameters.
        args: positional arguments, checked.
        kwargs: keyword arguments, checked.
        num_draws: number of draws ``S``.
        compiled: keeps the compiled program.

    Raises:
        ValueError, FactorisationError, NonFiniteError: see :meth:`gpzoo.inference.Trained.to_arviz`.
    """
    arrays, static = split_arrays(kwargs)
    follow = followed(compiled, model, args, kwargs, None)
    depth = guide.sites.plate_depth if guide.sites.enumerated else None
    source = Draws(model, guide.sites.latents, guide, depth, layouts=follow.layouts)
    draws = random.split(named_key(rng_key, "export"), num_draws), {}

    def at_data(draw: Draw, batch: Array, args: tuple, arrays: dict, params: dict, views: Array) -> Found:
        found = replace(source, views=views).at_data(draw, batch, (args, arrays | static), params)
        return {group: found[group] for group in _DENSITIES}

    rest = (arrays, params, named_key(rng_key, "views"))
    # A loop compiles in less time than vmap, and of few rows factors cost nothing.
    alone = guide.draws_anything or follow.count <= _FEW
    key = ("densities", alone, identity_of(static), identity_of(follow.layouts))
    many = compiled[key] = compiled.get(key) or over_draws(at_data, alone)
    found = in_batches(many, draws, args, *rest, batch_size=Options.batch_size, follow=follow)
    _refuse_batches(source, found, follow.count, Options.batch_size)
    _sum_over_rows(found)

    def explain() -> None:
        at_data((draws[0][0], {}), jnp.asarray(0), args, *rest)

    _refuse_not_finite(source, found, explain)
    stats = _log_densities(found, {})
    terms = {name: x.astype(np.float64) for name, x in (found["log_likelihood"] | found["left_out"]).items()}
    for name, mask in found["masks"].items():
        if name in terms:  # a chain of discrete latent variables has no term for each datum
            terms[name] = terms[name][:, mask]
    return Densities(terms, stats["log_p"] - stats.get("log_q", 0))


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
    batch_size: int = 1000,
    coords: Mapping[str, Any] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """MCMC draws in ArviZ, with the groups that :meth:`gpzoo.inference.Trained.to_arviz` has.

    ``posterior`` holds GP sites, ``f``, whether the program was :func:`~gpzoo.inference.whitened` or not, and the white
    noise of none. Where a site is sparse, ``f`` is drawn jointly given each draw of ``f_u``, and ``log_likelihood`` is
    given that draw. ``az.from_numpyro(mcmc)`` does for sites that are not sparse, with the noise. ``sample_stats`` has
    ``log_p``, and ``log_p_f`` of a GP site, beside what is given; of an observed GP site ``log_p`` has the marginal
    likelihood.

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
        model: the program that MCMC had.
        *args: its positional arguments, data included.
        posterior_samples: ``mcmc.get_samples(group_by_chain=True)``: draws by site name, ``[chains, draws, ...]``.
        sample_stats: by ArviZ's names, such as ``mcmc.get_extra_fields(group_by_chain=True)``.
        params: values of the ``numpyro.param`` sites, if there are any.
        new_args: see :meth:`gpzoo.inference.Trained.to_arviz`, and the next four.
        new_kwargs: of new inputs.
        batch_size: rows of new inputs at a time, and most rows of the prior.
        coords: labels.
        dims: names of axes.
        model_kwargs: the program's keyword arguments, by name.

    Raises:
        ValueError: for samples that are not ``[chains, draws, ...]`` throughout, or miss a latent site.
        FactorisationError: naming the GP site whose covariance does not factorise at some draw.
        NonFiniteError: naming any other site whose draws or densities are not finite.
    """
    args, kwargs = arguments(model, args, model_kwargs)
    rng_key, params = checks.rng_key(rng_key), checks.parameters("params", {} if params is None else params)
    samples = checks.named("posterior_samples", posterior_samples)
    shapes = {name: np.shape(value)[:2] for name, value in samples.items()}
    if len(set(shapes.values())) != 1 or len(shape := next(iter(shapes.values()))) != 2:
        raise ValueError(
            "posterior_samples must be [chains, draws, ...], as mcmc.get_samples(group_by_chain=True) gives them; got "
            f"shapes that begin with {shapes}."
        )
    flat = {name: jnp.reshape(value, (-1, *np.shape(value)[2:])) for name, value in samples.items()}
    with as_they_stand():
        values = {name: value[0] for name, value in flat.items()} | params
        seen = look(model, args, kwargs, values, arrays=True).trace
        inducing = inducing_variables(seen, samples)
        unobserved = {n: s for n, s in seen.items() if s["type"] == "sample" and not s["is_observed"]}
        latents = frozenset(n for n, s in unobserved.items() if not is_enumerated(s))
        depth = plate_depth(seen) if latents < set(unobserved) else None
        if missing := sorted(latents - set(samples) - set(inducing)):
            raise ValueError(f"posterior_samples has no draws of the latent sites {missing}.")
        variables = {f"{name}_inducing": jax.tree.leaves(at) for name, at in inducing.items()}
        variables = {name: leaves[0] if len(leaves) == 1 else tuple(leaves) for name, leaves in variables.items()}
        return _export(
            {},
            Draws(model, latents, plate_depth=depth, inducing=inducing),
            rng_key,
            (random.split(named_key(rng_key, "export"), shape[0] * shape[1]), flat),
            shape,
            (args, kwargs),
            params,
            constants=params | variables,
            sample_stats={name: np.asarray(value) for name, value in (sample_stats or {}).items()},
            options=Options(new_args, new_kwargs, batch_size, coords, dims),
        )


def _export(
    compiled: dict[tuple, Any],
    source: Draws,
    rng_key: Array,
    draws: Draw,
    shape: tuple[int, int],
    arguments: Arguments,
    params: dict[str, Any],
    *,
    constants: Mapping[str, Any],
    sample_stats: dict[str, np.ndarray],
    options: Options,
) -> Any:
    """The groups of a posterior.

    Args:
        compiled: keeps the compiled programs.
        source: the posterior.
        rng_key: of the export.
        draws: ``chains * draws`` of them.
        shape: ``(chains, draws)``.
        arguments: of the program.
        params: of guide and program.
        constants: of ``constant_data``, by name.
        sample_stats: of the group of that name, beside densities.
        options: see there.
    """
    batch_size = checks.positive_int("batch_size", options.batch_size)
    new = _new_arguments(source.model, arguments[1], options)
    keys = random.split(named_key(rng_key, "prior"), shape[1])
    source, found, few = _computed(compiled, source, rng_key, draws, keys, arguments, new, params, batch_size)
    fixed = _constants(constants, source) | _arguments(source, arguments)
    axes, labels = _without_masked(found, source.axes, fixed)

    def drawn(values: Mapping[str, np.ndarray], chains: tuple[int, int] = shape, **of: Any) -> Group:
        return Group({name: x.reshape(*chains, *x.shape[1:]) for name, x in values.items()}, axes, **of)

    def constant(values: _Named, **of: Any) -> Group:
        return Group({n: x for n, (x, _) in values.items()}, {n: x for n, (_, x) in values.items()}, drawn=False, **of)

    terms, from_prior = found["log_likelihood"] | found["left_out"], _said_of_prior(source, params, arguments[0], few)
    # Tools that scale the prior (az.psense_summary) take all of log_prior, and mean that of hyperparameters.
    of_gps = {f"log_p_{n}": x for n, x in found["log_prior"].items() if n.removesuffix("_u") in source.processes}
    groups = {
        "posterior": drawn(found["posterior"], attributes={} if source.guide is None else {"approximation": "svi"}),
        "posterior_predictive": drawn(found["posterior_predictive"]),
        "predictions": replace(drawn(found["predictions"], rows="new"), dims=source.axes),  # no data, none masked
        # PSIS fits tails to differences of log densities, which float32 rounds to none.
        "log_likelihood": drawn({name: x.astype(np.float64) for name, x in terms.items()}),
        "log_prior": drawn({n: x for n, x in found["log_prior"].items() if f"log_p_{n}" not in of_gps}),
        "sample_stats": drawn(_log_densities(found, sample_stats) | of_gps),
        "prior": drawn(found["prior"], (1, -1), rows="first", attributes=from_prior),
        "prior_predictive": drawn(found["prior_predictive"], (1, -1), rows="first", attributes=from_prior),
        "observed_data": Group(_as_drawn(found), axes, drawn=False),
        "constant_data": constant(fixed),
        "predictions_constant_data": constant({} if new is None else _arguments(source, new), rows="new"),
    }
    return container(groups, source.rows, labels, options.coords, options.dims)


def _as_drawn(found: Found) -> dict[str, np.ndarray]:
    """Observed data by name; whole numbers are integers where predictions are, for ArviZ goes by the type."""
    like = found["posterior_predictive"]

    def whole(name: str, x: np.ndarray) -> bool:
        return name in like and like[name].dtype.kind in "iu" and bool(np.all(x == np.floor(x)))

    return {n: x.astype(like[n].dtype) if whole(n, x) else x for n, x in found["observed_data"].items()}


def _computed(
    compiled: dict[tuple, Any],
    source: Draws,
    rng_key: Array,
    draws: Draw,
    prior_keys: Array,
    arguments: Arguments,
    new: Arguments | None,
    params: dict[str, Any],
    batch_size: int,
) -> tuple[Draws, Found, int]:
    """All that is drawn, on the host, each kind by one compiled program; and the number of rows of the prior.

    Returns:
        The source, which has seen the program; what is drawn; and that number.

    Raises:
        ValueError, FactorisationError, NonFiniteError: see :meth:`gpzoo.inference.Trained.to_arviz`.
    """
    (args, kwargs), (new_args, new_kwargs) = arguments, new or ((), {})
    (arrays, static), (new_arrays, new_static) = split_arrays(kwargs), split_arrays(new_kwargs)
    values = params if source.guide is not None else params | {name: x[0] for name, x in draws[1].items()}
    follow = followed(compiled, source.model, args, kwargs, values)
    of_new = followed(compiled, source.model, new_args, new_kwargs, values) if new is not None else follow
    key = ("export", *map(identity_of, (static, new_static, follow.layouts, of_new.layouts)))
    if key not in compiled:
        programs = _programs(replace(source, layouts=follow.layouts), of_new.layouts, static, new_static)
        compiled[key] = programs
    source, at_data, of_prior, at_new = compiled[key]
    known, rows = (arrays, params, named_key(rng_key, "views")), follow.count

    def explain() -> None:
        one = jax.tree.map(lambda x: x[0], draws)
        replace(source, views=known[-1]).at_data(one, jnp.asarray(0), (args, kwargs), params)

    most = max(rows, 1) if source.guide is None else batch_size
    found = in_batches(at_data, draws, args, *known, batch_size=most, follow=follow)
    _refuse_batches(source, found, rows, most)
    _sum_over_rows(found)
    _refuse_not_finite(source, found, explain)
    few = min(rows, most)
    first = jax.tree.map(lambda x: x[:few], args) if few < rows else args
    prior = of_prior((prior_keys, {}), jnp.asarray(0), first, *known)
    found |= jax.tree.map(np.asarray, prior) | {"predictions": {}}
    _warn_not_finite(found)
    if new is not None:
        found |= in_batches(at_new, draws, new_args, new_arrays, args, *known, batch_size=batch_size, follow=of_new)
    for name, values in found["predictions"].items():
        refuse_not_finite(name, "predictions", values, source.processes, explain)
    return source, found, few


def _programs(
    source: Draws, of_new: Mapping[str, Layout], static: dict[str, Any], new_static: dict[str, Any]
) -> tuple[Draws, Callable, Callable, Callable]:
    """The source, which notes what it sees in a trace, and compiled functions of many draws: at data, prior, at new."""
    # Where kernels are the same for all draws, so are their factors: vmap forms those once.
    each_alone = source.guide is None or source.guide.draws_anything
    at_new_inputs = replace(source, layouts=of_new)

    def at_data(draw: Draw, batch: Array, args: tuple, arrays: dict, params: dict, views: Array) -> Found:
        return replace(source, views=views).at_data(draw, batch, (args, arrays | static), params)

    def of_prior(draw: Draw, batch: Array, args: tuple, arrays: dict, params: dict, views: Array) -> Found:
        return source.of_prior(draw[0], (args, arrays | static), params)

    def at_new(draw: Draw, batch: Array, new_args: tuple, new_arrays: dict, *known: Any) -> Found:
        args, arrays, params, views = known
        new, known = (new_args, new_arrays | new_static), (args, arrays | static)
        return replace(at_new_inputs, views=views).at_new(draw, batch, new, known, params)

    at_data, of_prior, at_new = (over_draws(of, each_alone) for of in (at_data, of_prior, at_new))
    return source, at_data, of_prior, at_new


def _sum_over_rows(found: Found) -> None:
    """Of densities that have a term for each row."""
    for group in ("log_prior", "log_q"):
        found[group] = {name: x.reshape(len(x), -1).sum(axis=1) for name, x in found[group].items()}


def _without_masked(found: Found, axes: Mapping[str, Any], constants: _Named) -> tuple[dict[str, Any], dict[str, Any]]:
    """Takes masked data out of groups, adds masks to constants, and gives the names of axes and labels then."""
    axes, labels = dict(axes), {}
    for name, mask in found["masks"].items():
        if mask.all():
            continue
        constants.pop(name, None)  # placeholders among the data
        constants[f"{name}_mask"] = mask, axes[name]
        axes[name] = [f"{name}_observed", *axes[name][mask.ndim :]]
        labels[f"{name}_observed"] = np.flatnonzero(mask)
        for group in ("posterior_predictive", "log_likelihood", "prior_predictive"):
            if name not in found[group]:
                continue  # a chain of discrete latent variables has no term for each datum
            values = found[group][name]
            found[group][name] = values[:, mask[: values.shape[1]]]  # of the prior there may be fewer rows
        found["observed_data"][name] = found["observed_data"][name][mask]
    return axes, labels


def _new_arguments(model: Callable, kwargs: dict[str, Any], options: Options) -> Arguments | None:
    """The checked arguments at new inputs, if there are any."""
    if options.new_args is None:
        return None
    if not isinstance(options.new_args, tuple):
        raise TypeError(f"new_args must be a tuple such as (X_new,), got {type(options.new_args).__name__}.")
    given = kwargs if options.new_kwargs is None else options.new_kwargs
    return arguments(model, options.new_args, given, new=True)


def _refuse_batches(source: Draws, found: Found, rows: int, batch_size: float) -> None:
    """Refuse densities of all rows together where rows came in batches.

    Raises:
        ValueError: naming the site.
    """
    if rows <= batch_size:
        return
    together = {name for name in found["others"] if name not in source.layouts}
    if source.guide is not None:
        together |= source.guide.joint
    if together:
        raise ValueError(
            f"The density of site(s) {sorted(together)} is one of all {rows} rows together, which do not come in "
            f"batches: pass batch_size={rows} or more, or fewer rows."
        )


def _log_densities(found: Found, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """``log_p`` of data and latent variables, and ``log_q`` of the latter if there is a guide, beside those given."""

    def total(*groups: str) -> np.ndarray:
        parts = [np.asarray(x, np.float64) for group in groups for x in found[group].values()]
        return np.sum([x.reshape(len(x), -1).sum(axis=1) for x in parts], axis=0)

    stats = {name: value.reshape(-1, *value.shape[2:]) for name, value in given.items()}
    stats |= {"log_p": total("log_likelihood", "log_prior", "others")}
    return stats | ({"log_q": total("log_q")} if found["log_q"] else {})


def _refuse_not_finite(source: Draws, found: Found, explain: Callable[[], None]) -> None:
    processes = source.processes
    for group in ("posterior", "posterior_predictive", "log_prior", "log_q"):
        for name, values in found.get(group, {}).items():
            of = name.removesuffix("_u") if name.removesuffix("_u") in processes else name
            refuse_not_finite(of, f"{group} draws", values, processes, explain)
    for name, values in (found["log_likelihood"] | found["left_out"]).items():
        refuse_not_finite(name, "log densities", np.where(values == -np.inf, 0, values), processes, explain)


def _warn_not_finite(found: Found) -> None:
    """Wide priors overflow, which is no fault of the posterior."""
    bad = {name for group in ("prior", "prior_predictive") for name, x in found[group].items() if not is_finite(x)}
    if bad:
        warnings.warn(
            f"Some draws from the prior are not finite: those of {sorted(bad)}. The priors of hyperparameters allow "
            "values at which the program overflows, or a covariance has no factor.",
            stacklevel=6,
        )


def _said_of_prior(source: Draws, params: Mapping[str, Any], args: tuple, few: int) -> dict[str, str]:
    fixed = sorted(params if source.guide is None else source.guide.sites.parameters)
    said = {"parameters": f"drawn at the trained values of {', '.join(fixed)}"} if fixed else {}
    rows = number_of_rows(args)
    return said | ({"rows": f"the first {few} of {rows}"} if few < rows else {})


def _constants(params: Mapping[str, Any], source: Draws) -> _Named:
    found: _Named = {}
    for name, value in params.items():
        site = name.removesuffix("_inducing")
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
                continue  # the state of a network's dropout, which is no number
            inducing = site != name and site in source.processes and not path
            own = [f"{name}_row"] if inducing else ["step"] if name == "elbo" else []
            found[name + jax.tree_util.keystr(path)] = np.asarray(leaf), own
    return found


def _arguments(source: Draws, arguments: Arguments) -> _Named:
    """Arguments that are small arrays, the positional ones with rows; four axes are those of images."""
    args, kwargs = arguments
    try:
        bound = inspect.signature(source.model).bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return {}
    rows = number_of_rows(args)
    found: _Named = {}
    plates = [axes[0] for axes in source.axes.values() if axes and axes[0] in source.rows]
    for name, value in bound.items():
        if not isinstance(value, np.ndarray | jax.Array) or value.size > _SMALL:
            continue
        axes: list[str | None] = [None] * value.ndim
        if value.ndim and any(value is x for x in args) and len(value) == rows:
            axes[0] = next(iter(plates), "row")
        if value.ndim == 4:
            axes[1:] = [f"{name}_{axis}" for axis in ("height", "width", "channel")]
        found[name] = np.asarray(value), axes
    return found
