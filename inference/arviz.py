"""Variational posteriors in ArviZ: one chain of independent draws, with what diagnostics of such draws need."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import numpyro
from jax import Array, random
from numpyro import handlers

import gpzoo
from gpzoo.distributions import GaussianProcess
from gpzoo.inference.guides import InducingGuide, representing
from gpzoo.inference.minibatches import split_arrays
from gpzoo.inference.setup import unmasked
from gpzoo.inference.surroundings import one_blas_thread

#: Arguments with more entries than this are not copied into ``constant_data``.
_SMALL = 1_000_000


def to_arviz(
    rng_key: Array,
    model: Callable,
    guide: InducingGuide,
    params: Mapping[str, Any],
    *args: Any,
    num_draws: int = 500,
    losses: np.ndarray | None = None,
    **kwargs: Any,
) -> Any:
    """Draws from a trained guide as ArviZ's container, for ``az.summary``, ``az.loo``, plots and netCDF.

    The draws are independent, so diagnostics of Markov chains (r_hat, effective sample size, trace plots) mean nothing
    for them: use ``az.summary(..., kind="stats")``. Each draw takes ``u ~ q(u)`` and the other latent sites, then ``f``
    jointly over the inputs given ``u``; the joint covariance is formed, so pass a subset of large data.

    Args:
        rng_key: key of the draws; sampled views are drawn once, by this key, for all of them.
        model: the program.
        guide: the trained guide.
        params: trained parameters, of the model and of the guide.
        *args: the model's positional arguments, data included, at the rows to export.
        num_draws: number of draws ``S``.
        losses: the training's losses; their negatives are kept as ``elbo`` in ``constant_data``.
        **kwargs: the model's keyword arguments.

    Returns:
        ``arviz.InferenceData`` (ArviZ 0.x) or ``xarray.DataTree`` (ArviZ 1.x) with groups ``posterior`` (``<site>`` and
        ``<site>_u``, not whitened, of GP sites; other latent sites; the program's deterministic sites),
        ``posterior_predictive``, ``log_likelihood`` (per datum, ``log p(y_n | f_n)``), ``observed_data`` and
        ``constant_data`` (parameters that have no posterior, small arguments). The chain axis has length 1.
    """
    guide.setup(*args, **kwargs)
    params = dict(params)
    latents = guide.sites.latents

    positions = [f"argument {i}" for i in range(len(args))]
    arrays, static = split_arrays(dict(zip(positions, args, strict=True)) | kwargs)

    def one(key: Array, arrays: dict, params: dict) -> dict[str, dict[str, Array]]:
        given = arrays | static
        args = [given.pop(position) for position in positions]
        guide_key, model_key, predictive_key = random.split(key, 3)
        with handlers.block():
            with representing("conditional", views=rng_key):
                run = handlers.substitute(handlers.seed(guide, guide_key), data=params)
                guide_trace = handlers.trace(run).get_trace(*args, **given)
            run = handlers.substitute(handlers.replay(handlers.seed(model, model_key), guide_trace), data=params)
            trace = handlers.trace(run).get_trace(*args, **given)
        posterior = {n: s["value"] for n, s in guide_trace.items() if s["type"] == "deterministic" or n in latents}
        posterior |= {n: s["value"] for n, s in trace.items() if s["type"] == "deterministic"}
        data = _data_sites(trace)
        keys = dict(zip(data, random.split(predictive_key, max(len(data), 1)), strict=False))
        return {
            "posterior": posterior,
            "posterior_predictive": {n: unmasked(s["fn"]).sample(keys[n]) for n, s in data.items()},
            "log_likelihood": {n: s["fn"].log_prob(s["value"]) for n, s in data.items()},
        }

    keys = random.split(rng_key, num_draws)
    with one_blas_thread():
        # Where kernels are the same for all draws, so are their factors: vmap forms those once.
        if guide.draws_anything:
            many = jax.jit(lambda keys, *rest: jax.lax.map(lambda key: one(key, *rest), keys))
        else:
            many = jax.jit(jax.vmap(one, in_axes=(0, None, None)))
        groups = jax.tree.map(lambda x: np.asarray(x)[None], many(keys, arrays, params))
    trace: dict[str, Any] = {}

    def look() -> None:
        with handlers.block():
            seeded = handlers.substitute(handlers.seed(model, rng_key), data=params)
            trace.update(handlers.trace(seeded).get_trace(*args, **kwargs))

    jax.eval_shape(look)  # the data are the caller's own arrays: nothing needs to be computed to find them
    sites = _data_sites(trace)
    groups["observed_data"] = {name: np.asarray(site["value"]) for name, site in sites.items()}
    groups["constant_data"] = _constants(model, latents, params, args, kwargs)
    if losses is not None:
        groups["constant_data"]["elbo"] = -np.asarray(losses)
    dims = {name: [f.name for f in site["cond_indep_stack"]] for name, site in sites.items()}
    dims = {name: axes for name, axes in dims.items() if axes}
    attributes = {
        "inference_library": "numpyro",
        "inference_library_version": numpyro.__version__,
        "approximation": "svi",
        "gpzoo_version": gpzoo.__version__,
        "jax_version": jax.__version__,
    }
    return _container({k: v for k, v in groups.items() if v}, dims, attributes)


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
    model: Callable, latents: frozenset[str], params: dict[str, Any], args: tuple, kwargs: dict
) -> dict[str, np.ndarray]:
    variational = {f"{site}_{part}" for site in latents for part in ("mean", "scale", "loc")}
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


def _container(groups: dict[str, dict[str, np.ndarray]], dims: dict[str, list[str]], attributes: dict[str, str]) -> Any:
    import arviz

    if "InferenceData" in vars(arviz):  # hasattr would make ArviZ 1.x warn
        attrs = {f"{group}_attrs": attributes for group in ("posterior",)}
        return arviz.from_dict(**groups, dims=dims, **attrs)
    return arviz.from_dict(groups, dims=dims, attrs={"posterior": attributes})
