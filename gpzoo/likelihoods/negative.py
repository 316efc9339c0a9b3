"""Checks that parameters of distributions are not negative; NumPyro makes such checks only outside ``jit``."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import Distribution, TransformedDistribution, constraints

from gpzoo import _checks as checks

Fn = TypeVar("Fn", bound=Distribution)


def refuse_negative(fn: Fn) -> Fn:
    """The distribution, after a check that none of its positive parameters is negative.

    Under ``jit``, gpzoo cannot raise an error for traced parameters. If a parameter is negative at an index, all
    parameters become NaN there. Moments and draws at this index are then NaN too.

    Args:
        fn: a distribution of NumPyro, or a likelihood, which may contain other distributions.

    Raises:
        OutOfRange: if a value is negative (checked only outside ``jit``); the message names the parameter and the
            value.
    """
    given = getattr(fn, "given_centre", None)
    if given is not None and all(map(checks.is_concrete, jax.tree.leaves(fn))):
        given()
    changed: dict[str, Any] = {}
    for name, part in vars(fn).items():
        if isinstance(part, Distribution) and (found := refuse_negative(part)) is not part:
            changed[name] = found
    limits = _limits(fn)
    own = {name: vars(fn)[name] for name in limits if vars(fn).get(name) is not None}
    negative = []
    for name, value in own.items():
        if not _is_positive(limits[name]):
            continue
        if not checks.is_concrete(value):
            negative.append(value < 0)
            continue
        if (bad := np.asarray(value) < 0).any():
            where = checks.first_of(bad)
            raise checks.OutOfRange(
                f"{name} of {type(fn).__name__} must not be negative, got {np.asarray(value)[where]} at index {where}."
            )
    for bad in negative:
        for name, value in own.items():
            if jnp.issubdtype(jnp.result_type(value), jnp.floating):
                changed[name] = jnp.where(bad, jnp.nan, changed.get(name, value))
        if isinstance(fn, TransformedDistribution):  # draws go through its transforms, which have the parameters
            changed["base_dist"] = _no_numbers(changed.get("base_dist", fn.base_dist), bad)
    if not changed:
        return fn
    found = copy(fn)
    vars(found).update(changed)
    return found


def _no_numbers(fn: Distribution, bad: Array) -> Distribution:
    """A distribution with NaN where ``bad`` is true, in all parameters that have the shape of ``bad``."""

    def of(x: Any) -> Any:
        whole = jnp.shape(x) == bad.shape and jnp.issubdtype(jnp.result_type(x), jnp.floating)
        return jnp.where(bad, jnp.nan, x) if whole else x

    return jax.tree.map(of, fn)


def _limits(fn: Distribution) -> dict[str, Any]:
    """The constraints of a distribution's parameters, with the constraints that its base classes declare."""
    found: dict[str, Any] = {}
    of_bases = [vars(kind).get("arg_constraints") for kind in type(fn).__mro__[1:]]
    for constraints_of in (fn.arg_constraints, *of_bases):
        if isinstance(constraints_of, Mapping):  # a property has a value only on an instance
            found = dict(constraints_of) | found
    return {name: limits for name, limits in found.items() if _is_of_numbers(limits)}


def _is_of_numbers(limits: Any) -> bool:
    if constraints.is_dependent(limits) or limits.event_dim:
        return False
    return all(map(checks.is_concrete, jax.tree.leaves(limits)))


def _is_positive(limits: Any) -> bool:
    """Whether these limits refuse negative numbers but allow large ones.

    Limits of probabilities do not count, because rounding may make probabilities negative.
    """
    with jax.ensure_compile_time_eval():
        return not np.any(limits(np.float32(-1))) and bool(np.all(limits(np.float32(2))))
