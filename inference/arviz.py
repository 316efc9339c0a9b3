"""Variational posteriors in ArviZ: one chain of independent draws, with what diagnostics of such draws need."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array, random
from numpyro.distributions import MaskedDistribution

import gpzoo
from gpzoo import _checks as checks
from gpzoo._platform import one_blas_thread
from gpzoo.inference._finite import refuse_not_finite
from gpzoo.inference._keys import named_key
from gpzoo.inference._runs import Runs, run, unmasked
from gpzoo.inference.gp_sites import Recorded
from gpzoo.inference.guide import InducingGuide
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
    latents = guide.sites.latents

    positions = [f"argument {i}" for i in range(len(args))]
    arrays, static = split_arrays(dict(zip(positions, args, strict=True)) | kwargs)

    def traces(key: Array, arrays: dict, params: dict) -> Runs:
        given = arrays | static
        args = tuple(given.pop(position) for position in positions)
        shown = Recorded(views=named_key(rng_key, "views"))
        return run(key, args, given, guide=guide, model=model, values=params, representation=shown)

    def one(key: Array, arrays: dict, params: dict) -> dict[str, dict[str, Array]]:
        guide_trace, trace, _ = traces(key, arrays, params)
        posterior = {n: s["value"] for n, s in guide_trace.items() if s["type"] == "deterministic" or n in latents}
        posterior |= {n: s["value"] for n, s in trace.items() if s["type"] == "deterministic"}
        data = _data_sites(trace)
        data_key = named_key(key, "data")
        return {
            "posterior": posterior,
            "posterior_predictive": {n: unmasked(s["fn"]).sample(named_key(data_key, n)) for n, s in data.items()},
            "log_likelihood": {n: s["fn"].log_prob(s["value"]) for n, s in data.items()},
        }

    names: dict[str, list[str]] = {}

    def observed(key: Array, arrays: dict, params: dict) -> dict[str, tuple[Array, Array]]:
        sites = _data_sites(traces(key, arrays, params).model)
        names.update(
            {
                name: [f.name for f in sorted(site["cond_indep_stack"], key=lambda f: f.dim)]
                for name, site in sites.items()
            }
        )
        return {name: (site["value"], _mask(site)) for name, site in sites.items()}

    keys = random.split(named_key(rng_key, "export"), num_draws)
    with one_blas_thread():
        # Where kernels are the same for all draws, so are their factors: vmap forms those once.
        if guide.draws_anything:
            many = jax.jit(lambda keys, *rest: jax.lax.map(lambda key: one(key, *rest), keys))
        else:
            many = jax.jit(jax.vmap(one, in_axes=(0, None, None)))
        groups = jax.tree.map(lambda x: np.asarray(x)[None], many(keys, arrays, params))
        data = jax.tree.map(np.asarray, jax.jit(observed)(keys[0], arrays, params))

    def explain() -> None:
        with one_blas_thread():
            one(keys[0], arrays, params)

    for group in ("posterior", "posterior_predictive"):
        for name, values in groups[group].items():
            of = name.removesuffix("_u") if name.removesuffix("_u") in guide.sites.processes else name
            refuse_not_finite(of, f"{group} draws", values, guide.sites.processes, explain)
    for name, values in groups["log_likelihood"].items():
        refuse_not_finite(name, "log densities", np.where(values == -np.inf, 0, values), guide.sites.processes, explain)
    groups["observed_data"] = {name: value for name, (value, _) in data.items()}
    groups["constant_data"] = _constants(model, guide.variational_parameters(), params, args, kwargs)
    if losses is not None:
        groups["constant_data"]["elbo"] = -np.asarray(losses)
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
        "approximation": "svi",
        "gpzoo_version": gpzoo.__version__,
        "jax_version": jax.__version__,
    }
    return _container({k: v for k, v in groups.items() if v}, dims, coords, attributes)


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


def _constants(
    model: Callable, variational: frozenset[str], params: dict[str, Any], args: tuple, kwargs: dict
) -> dict[str, np.ndarray]:
    constants = {}
    for name, value in params.items():
        if name in variational:
            continue
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
