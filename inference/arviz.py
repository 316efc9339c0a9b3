"""Posteriors in ArviZ, variational ones as a chain of independent draws, with what diagnostics of draws need."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array, random
from numpyro.distributions import MaskedDistribution

import gpzoo
from gpzoo import _checks as checks
from gpzoo._platform import one_blas_thread
from gpzoo._types import Argument, ArrayLike
from gpzoo.inducing.variables import InducingVariable
from gpzoo.inference._calls import entry_point
from gpzoo.inference._finite import refuse_not_finite
from gpzoo.inference._keys import named_key
from gpzoo.inference._program import look
from gpzoo.inference._runs import Runs, run, unmasked
from gpzoo.inference.gp_sites import Recorded, Representation
from gpzoo.inference.guide import InducingGuide
from gpzoo.inference.prediction._conditioned import conditioned
from gpzoo.inference.reparam import as_they_stand, inducing_variables
from gpzoo.inference.training._sources import split_arrays
from gpzoo.processes.process import GaussianProcess

#: Arguments with more entries than this are not copied into ``constant_data``.
_SMALL = 1_000_000


def exported(
    rng_key: Array,
    model: Callable,
    guide: InducingGuide,
    params: Mapping[str, Any],
    args: tuple,
    model_kwargs: Mapping[str, Any] | None,
    *,
    num_draws: int,
    losses: np.ndarray | None,
) -> Any:
    """:meth:`gpzoo.inference.Trained.to_arviz`; negative ``losses`` are kept as ``elbo`` in ``constant_data``."""
    args, kwargs = checks.arguments(model, args, model_kwargs, new=True)
    rng_key, num_draws = checks.rng_key(rng_key), checks.positive_int("num_draws", num_draws)
    guide.sites_for(args, kwargs)
    params = guide.checked_params(params, args, kwargs)
    shown = Recorded(views=named_key(rng_key, "views"))

    def runs(draw: _Draw, args: tuple, kwargs: dict, params: dict) -> Runs:
        return run(draw[0], args, kwargs, guide=guide, model=model, values=params, representation=shown)

    variational = guide.variational_parameters()
    constants = _constants(model, {n: x for n, x in params.items() if n not in variational}, args, kwargs)
    constants |= {} if losses is None else {"elbo": -np.asarray(losses)}
    return _export(
        runs,
        (random.split(named_key(rng_key, "export"), num_draws), {}),
        (1, num_draws),
        args,
        kwargs,
        params,
        latents=guide.sites.latents,
        processes=guide.sites.processes,
        # Where kernels are the same for all draws, so are their factors: vmap forms those once.
        each_alone=guide.draws_anything,
        constants=constants,
        attributes={"approximation": "svi"},
    )


@entry_point
def draws_to_arviz(
    rng_key: Array,
    model: Callable,
    *args: Argument,
    posterior_samples: Mapping[str, ArrayLike],
    sample_stats: Mapping[str, ArrayLike] | None = None,
    params: Mapping[str, Any] | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """MCMC draws in ArviZ, with the groups that :meth:`gpzoo.inference.Trained.to_arviz` has.

    ``posterior`` holds GP sites, ``f``, whether the program was :func:`~gpzoo.inference.whitened` or not, and the white
    noise of none. Where a site is sparse, ``f`` is drawn jointly given each draw of ``f_u``, and ``log_likelihood`` is
    given that draw. ``az.from_numpyro(mcmc)`` does for sites that are not sparse, with the noise.

    Args:
        rng_key: key of the draws of data, and of ``f`` given ``f_u``.
        model: the program that MCMC had.
        *args: its positional arguments, data included.
        posterior_samples: ``mcmc.get_samples(group_by_chain=True)``: draws by site name, ``[chains, draws, ...]``.
        sample_stats: by ArviZ's names, such as ``mcmc.get_extra_fields(group_by_chain=True)``.
        params: values of the ``numpyro.param`` sites, if there are any.
        model_kwargs: the program's keyword arguments, by name.

    Raises:
        ValueError: for samples that are not ``[chains, draws, ...]`` throughout, or miss a latent site.
        FactorisationError: naming the GP site whose covariance does not factorise at some draw.
        NonFiniteError: naming any other site whose draws or densities are not finite.
    """
    args, kwargs = checks.arguments(model, args, model_kwargs)
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
        seen = look(model, args, kwargs, {name: value[0] for name, value in flat.items()} | params).trace
        inducing = inducing_variables(seen, samples)
        latents = frozenset(n for n, s in seen.items() if s["type"] == "sample" and not s["is_observed"])
        if missing := sorted(latents - set(samples) - set(inducing)):
            raise ValueError(f"posterior_samples has no draws of the latent sites {missing}.")

        def runs(draw: _Draw, args: tuple, kwargs: dict, params: dict) -> Runs:
            key, sample = draw
            given = {name: (at, sample[f"{name}_u"]) for name, at in inducing.items()}
            joint = conditioned(model, given, frozenset(), Representation())
            found = run(key, args, kwargs, model=joint, values=params | sample)
            # Kept beside the program's own deterministic sites.
            record = {f"{name}_u": {"type": "deterministic", "value": u} for name, (_, u) in given.items()}
            return found._replace(guide=record)

        variables = {f"{name}_inducing": jax.tree.leaves(at) for name, at in inducing.items()}
        variables = {name: leaves[0] if len(leaves) == 1 else tuple(leaves) for name, leaves in variables.items()}
        return _export(
            runs,
            (random.split(named_key(rng_key, "export"), shape[0] * shape[1]), flat),
            shape,
            args,
            kwargs,
            params,
            latents=latents,
            processes=frozenset(n for n in latents if isinstance(unmasked(seen[n]["fn"]), GaussianProcess)),
            each_alone=True,
            constants=_constants(model, params | variables, args, kwargs),
            attributes={},
            sample_stats={name: np.asarray(value) for name, value in (sample_stats or {}).items()},
        )


#: A random key, and values of latent sites.
_Draw: TypeAlias = tuple[Array, dict[str, Array]]


def _export(
    runs: Callable[[_Draw, tuple, dict, dict], Runs],
    draws: _Draw,
    shape: tuple[int, int],
    args: tuple,
    kwargs: dict,
    params: dict[str, Any],
    *,
    latents: Collection[str],
    processes: Collection[str],
    each_alone: bool,
    constants: dict[str, np.ndarray],
    attributes: dict[str, str],
    sample_stats: dict[str, np.ndarray] | None = None,
) -> Any:
    """The groups of a posterior.

    Args:
        runs: the guide's and the program's traces for a draw, with arguments and parameters.
        draws: ``chains * draws`` of them.
        shape: ``(chains, draws)``.
        args: positional arguments of the program.
        kwargs: its keyword arguments.
        params: of guide and program.
        latents: names of sites of the posterior.
        processes: those that are GPs.
        each_alone: whether draws are made one after the other, not all at once.
        constants: of ``constant_data``.
        attributes: of the posterior.
        sample_stats: of the group of that name.
    """
    positions = [f"argument {i}" for i in range(len(args))]
    arrays, static = split_arrays(dict(zip(positions, args, strict=True)) | kwargs)

    def traces(draw: _Draw, arrays: dict, params: dict) -> Runs:
        given = arrays | static
        args = tuple(given.pop(position) for position in positions)
        return runs(draw, args, given, params)

    def one(draw: _Draw, arrays: dict, params: dict) -> dict[str, dict[str, Array]]:
        guide_trace, trace, _ = traces(draw, arrays, params)
        both = guide_trace | trace
        posterior = {n: s["value"] for n, s in both.items() if n in latents or _is_recorded(s)}
        data = _data_sites(trace)
        data_key = named_key(draw[0], "data")
        return {
            "posterior": posterior,
            "posterior_predictive": {n: unmasked(s["fn"]).sample(named_key(data_key, n)) for n, s in data.items()},
            "log_likelihood": {n: s["fn"].log_prob(s["value"]) for n, s in data.items()},
        }

    names: dict[str, list[str]] = {}

    def observed(draw: _Draw, arrays: dict, params: dict) -> dict[str, tuple[Array, Array]]:
        sites = _data_sites(traces(draw, arrays, params).model)
        names.update(
            {
                name: [f.name for f in sorted(site["cond_indep_stack"], key=lambda f: f.dim)]
                for name, site in sites.items()
            }
        )
        return {name: (site["value"], _mask(site)) for name, site in sites.items()}

    first = jax.tree.map(lambda x: x[0], draws)
    with one_blas_thread():
        if each_alone:
            many = jax.jit(lambda draws, *rest: jax.lax.map(lambda draw: one(draw, *rest), draws))
        else:
            many = jax.jit(jax.vmap(one, in_axes=(0, None, None)))
        found = many(draws, arrays, params)
        groups = jax.tree.map(lambda x: np.asarray(x).reshape(*shape, *x.shape[1:]), found)
        data = jax.tree.map(np.asarray, jax.jit(observed)(first, arrays, params))

    def explain() -> None:
        with one_blas_thread():
            one(first, arrays, params)

    for group in ("posterior", "posterior_predictive"):
        for name, values in groups[group].items():
            of = name.removesuffix("_u") if name.removesuffix("_u") in processes else name
            refuse_not_finite(of, f"{group} draws", values, processes, explain)
    for name, values in groups["log_likelihood"].items():
        refuse_not_finite(name, "log densities", np.where(values == -np.inf, 0, values), processes, explain)
    groups["observed_data"] = {name: value for name, (value, _) in data.items()}
    groups["constant_data"] = constants
    groups["sample_stats"] = sample_stats or {}
    # PSIS fits tails to differences of log densities, which float32 rounds to none.
    groups["log_likelihood"] = {name: x.astype(np.float64) for name, x in groups["log_likelihood"].items()}
    dims, coords = {name: axes for name, axes in names.items() if axes}, {}
    for name, (value, mask) in data.items():
        # Dimensions go by name: an argument that is named like its site must not have others.
        if not mask.all() or np.shape(groups["constant_data"].get(name)) != value.shape:
            groups["constant_data"].pop(name, None)
        if mask.all():
            continue
        groups["constant_data"][f"{name}_mask"] = mask
        dims |= {name: [f"{name}_observed"], f"{name}_mask": names[name]}
        coords[f"{name}_observed"] = np.flatnonzero(mask)
        for group in ("posterior_predictive", "log_likelihood"):
            groups[group][name] = groups[group][name][:, :, mask]
        groups["observed_data"][name] = groups["observed_data"][name][mask]
    attributes = {
        "inference_library": "numpyro",
        "inference_library_version": numpyro.__version__,
        **attributes,
        "gpzoo_version": gpzoo.__version__,
        "jax_version": jax.__version__,
    }
    return _container({k: v for k, v in groups.items() if v}, dims, coords, attributes)


def _is_recorded(site: dict[str, Any]) -> bool:
    """Whether the program records numbers here."""
    return site["type"] == "deterministic" and not isinstance(site["value"], InducingVariable)


def _mask(site: dict[str, Any]) -> Array:
    """Which terms of a data site count, of the shape of its log density."""
    fn, masks = site["fn"], []
    shape = jax.eval_shape(fn.log_prob, site["value"]).shape
    while isinstance(fn, MaskedDistribution):
        masks.append(jnp.broadcast_to(fn._mask, shape))
        fn = fn.base_dist
    return jnp.all(jnp.stack([jnp.ones(shape, bool), *masks]), axis=0)


def _data_sites(trace: dict[str, Any]) -> dict[str, Any]:
    """Sites with data of their own; a factor or an observed GP has no terms per datum."""
    return {
        name: site
        for name, site in trace.items()
        if site["type"] == "sample"
        and site["is_observed"]
        and not site["infer"].get("is_auxiliary")
        and not isinstance(site["fn"], GaussianProcess)
    }


def _constants(model: Callable, params: Mapping[str, Any], args: tuple, kwargs: dict) -> dict[str, np.ndarray]:
    constants = {}
    for name, value in params.items():
        leaves = jax.tree_util.tree_flatten_with_path(value)[0]
        for path, leaf in leaves:
            constants[name + jax.tree_util.keystr(path)] = np.asarray(leaf)
    try:
        bound = inspect.signature(model).bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = {}
    for name, value in bound.items():
        if isinstance(value, np.ndarray | jax.Array) and value.size <= _SMALL and name not in constants:
            constants[name] = np.asarray(value)
    return constants


def _import_arviz() -> Any:
    """ArviZ, without its daily announcement of version 1."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing a major refactor", category=FutureWarning)
        import arviz
    return arviz


def _container(
    groups: dict[str, dict[str, np.ndarray]],
    dims: dict[str, list[str]],
    coords: dict[str, np.ndarray],
    attributes: dict[str, str],
) -> Any:
    arviz = _import_arviz()
    # netCDF keeps slashes, of scopes and of networks' parameters, for groups.
    dotted = lambda of: {name.replace("/", "."): value for name, value in of.items()}  # noqa: E731
    groups = {group: dotted(values) for group, values in groups.items()}
    dims = {name: [axis.replace("/", ".") for axis in axes] for name, axes in dotted(dims).items()}
    coords = dotted(coords)
    if "InferenceData" in vars(arviz):  # hasattr would make ArviZ 1.x warn
        attrs = {f"{group}_attrs": attributes for group in ("posterior",)}
        return arviz.from_dict(**groups, dims=dims, coords=coords, **attrs)
    return arviz.from_dict(groups, dims=dims, coords=coords, attrs={"posterior": attributes})
