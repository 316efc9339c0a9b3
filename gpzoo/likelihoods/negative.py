"""Parameters of distributions that must not be negative: NumPyro looks at them outside ``jit`` alone."""

from __future__ import annotations

from copy import copy
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution, constraints

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
    if not changed:
        return fn
    found = copy(fn)
    vars(found).update(changed)
    return found


def _limits(fn: Distribution) -> dict[str, Any]:
    """The constraints of a distribution's parameters, those under which its class hands them to its bases too."""
    found: dict[str, Any] = {}
    for kind in type(fn).__mro__:
        for name, limits in vars(kind).get("arg_constraints", {}).items():
            if name not in found and _is_of_numbers(limits):
                found[name] = limits
    return found


def _is_of_numbers(limits: Any) -> bool:
    if constraints.is_dependent(limits) or limits.event_dim:
        return False
    return all(map(checks.is_concrete, jax.tree.leaves(limits)))


def _is_positive(limits: Any) -> bool:
    """Whether numbers within these limits are zero or more: probabilities are left, which rounding may take below."""
    with jax.ensure_compile_time_eval():
        return not np.any(limits(np.float32(-1))) and bool(np.all(limits(np.float32(2))))
