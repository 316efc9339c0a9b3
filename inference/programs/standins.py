"""Runs of a program with stand-ins: marginals or numbers for its GP sites, numbers for traced arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.core import Tracer
from jaxtyping import PRNGKeyArray

from gpzoo.inference.programs.runs import Runs, Trace, given_value, run
from gpzoo.processes.marginals import DrawLog, EstimatedMarginals, GaussianMarginals
from gpzoo.processes.process import GaussianProcess


def unit_value(
    name: str,
    fn: GaussianProcess,
    log: DrawLog | None = None,
    *,
    estimated: bool = True,
    mean: Array | float = 0.0,
) -> Any:
    """Marginals of variance one, or numbers if the site is always drawn.

    Args:
        name: name of the GP site.
        fn: its prior.
        log: records the sites that are drawn.
        estimated: whether moments are estimated if the kernel has sampled views.
        mean: mean at all rows.
    """
    means = jnp.full(fn.event_shape, mean, fn.X.dtype)
    ones, sites = jnp.ones_like(means), frozenset({name})
    if fn.in_row is not None:
        if log is not None:
            log.asked(sites)
        return means
    if fn.samples_views and estimated:
        return EstimatedMarginals(means, ones, sites=sites)
    return GaussianMarginals(means, ones, random.key(0), sites=sites, log=log)


def run_with(
    of_process: Callable[[str, GaussianProcess], Any],
    model: Callable,
    args: tuple,
    kwargs: dict[str, Any],
    values: Mapping[str, Any] | None = None,
    key: PRNGKeyArray | None = None,
) -> Runs:
    """A run with given values, and the value ``of_process(name, fn)`` for each latent GP site."""

    def value_of(site: dict[str, Any]) -> Any:
        if site["type"] == "sample" and site["value"] is None and isinstance(site["fn"], GaussianProcess):
            return of_process(site["name"], site["fn"])
        return given_value(values or {}, site)

    return run(random.key(0) if key is None else key, args, kwargs, model=model, values=value_of, complete=False)


def run_of_marginals(model: Callable, args: tuple, kwargs: Mapping[str, Any]) -> Trace:
    """The sites of a program with unit marginals at latent GP sites, and parameters at their start."""
    return run_with(unit_value, model, args, dict(kwargs)).model


def arrays_of(trace: Trace) -> dict[str, Array | np.ndarray]:
    """The arrays that are values of sites, by name; for marginals, their means."""
    found = {}
    for name, site in trace.items():
        value = site["value"].loc if isinstance(site["value"], GaussianMarginals) else site["value"]
        if site["type"] in ("sample", "deterministic") and isinstance(value, Array | np.ndarray):
            found[name] = value
    return found


def parts_of(fn: GaussianProcess) -> dict[str, Any]:
    """The arrays that make up a GP site's prior, by name."""
    parts = {"inputs": fn.rows_of_inputs, "mean": fn.loc}
    parts |= {f"kernel {i}": leaf for i, leaf in enumerate(jax.tree.leaves(fn.kernel))}
    return {part: value for part, value in parts.items() if value is not None}


def concrete(arguments: Any) -> Any:
    """Arguments with numbers in place of tracers: no two arrays are alike, and masks leave nothing out."""
    rng = np.random.default_rng(0)

    def known(x: Any) -> Any:
        if not isinstance(x, Tracer):
            return x
        if x.dtype == bool:
            return np.ones(x.shape, bool)
        if jnp.issubdtype(x.dtype, jnp.floating):
            return jnp.asarray(rng.uniform(size=x.shape), x.dtype)
        # Integers are labels or places in tables, and there are at least two labels or places.
        return rng.integers(0, 2, x.shape).astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.integer) else x

    return jax.tree.map(known, arguments)
