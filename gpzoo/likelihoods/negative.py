"""Parameters of distributions that must not be negative: NumPyro looks at them outside ``jit`` alone."""

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
    """A distribution whose parameters are not negative where they must not be.

    Under a transformation its parameters become NaN there, so that no moment or draw of it passes for a number.

    Args:
        fn: a distribution of NumPyro, or a likelihood, with other distributions in it or not.

    Raises:
        OutOfRange: naming the parameter and the value, where it is known.
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
        if isinstance(fn, TransformedDistribution):  # its transforms have the parameters, which draws go through
            changed["base_dist"] = _no_numbers(changed.get("base_dist", fn.base_dist), bad)
    if not changed:
        return fn
    found = copy(fn)
    vars(found).update(changed)
    return found


def _no_numbers(fn: Distribution, bad: Array) -> Distribution:
    """A distribution whose parameters of the shape of ``bad`` are NaN there."""

    def of(x: Any) -> Any:
        whole = jnp.shape(x) == bad.shape and jnp.issubdtype(jnp.result_type(x), jnp.floating)
        return jnp.where(bad, jnp.nan, x) if whole else x

    return jax.tree.map(of, fn)


def _limits(fn: Distribution) -> dict[str, Any]:
    """The constraints of a distribution's parameters, those under which its class hands them to its bases too."""
    found: dict[str, Any] = {}
    of_bases = [vars(kind).get("arg_constraints") for kind in type(fn).__mro__[1:]]
    for constraints_of in (fn.arg_constraints, *of_bases):
        if isinstance(constraints_of, Mapping):  # and no property, whose value only an instance has
            found = dict(constraints_of) | found
    return {name: limits for name, limits in found.items() if _is_of_numbers(limits)}


def _is_of_numbers(limits: Any) -> bool:
    if constraints.is_dependent(limits) or limits.event_dim:
        return False
    return all(map(checks.is_concrete, jax.tree.leaves(limits)))


def _is_positive(limits: Any) -> bool:
    """Whether numbers within these limits are zero or more: probabilities are left, which rounding may take below."""
    with jax.ensure_compile_time_eval():
        return not np.any(limits(np.float32(-1))) and bool(np.all(limits(np.float32(2))))
