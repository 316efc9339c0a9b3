"""Warnings of covariance matrices whose noise, or an addend, is lost in rounding errors of a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import random

from gpzoo._checks import is_concrete
from gpzoo.inference.programs.gp_sites import AtPriorMean
from gpzoo.inference.programs.program import Look
from gpzoo.inference.programs.runs import compiled_once, run, sampled, unmasked
from gpzoo.kernels.base import has_sum
from gpzoo.linalg.factorise import needed_jitter
from gpzoo.processes.process import GaussianProcess


def warn_of_rounding(
    model: Callable, guide: Callable, args: tuple, kwargs: dict, values: Mapping[str, Any], seen: Look
) -> None:
    """Warn of rounding in float32 at the starting values of a training, because compiled steps cannot warn.

    The check looks at sums of kernels, and at exact GPs with the default jitter.

    Args:
        model: the program.
        guide: the guide of the program, which gives the values of latent sites.
        args: positional arguments of the program.
        kwargs: keyword arguments of the program.
        values: values of the parameters of program and guide, by name.
        seen: the result of :func:`~gpzoo.inference.programs.program.look` for the program.
    """
    asked = [name for name, site in sampled(seen.trace).items() if _can_be_lost(unmasked(site["fn"]), site)]
    if not asked:
        return
    of: dict[str, Any] = {"guide": guide, "model": model, "values": dict(values), "mode": AtPriorMean()}

    def once() -> dict[str, Any]:
        trace = run(random.key(0), args, kwargs, **of).model
        priors = {name: unmasked(trace[name]["fn"]) for name in asked}
        return {name: prior.kernel.variances_for_jitter(prior.X) for name, prior in priors.items()}

    for name, variances in compiled_once(once).items():
        count = len(values[f"{name}_mean"]) if f"{name}_mean" in values else None
        if all(map(is_concrete, variances)):
            needed_jitter(*(x[..., :count] for x in variances))


def _can_be_lost(fn: Any, site: Mapping[str, Any]) -> bool:
    if not isinstance(fn, GaussianProcess) or fn.X.dtype != jnp.float32 or fn.jitter is not None:
        return False
    return bool(site["is_observed"]) or has_sum(fn.kernel)
