"""Checks of what users pass in: each refusal names the argument, what was wrong with it, and the way out."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro import handlers
from numpyro.infer.util import _unconstrain_params
from numpyro.primitives import _PYRO_STACK


def is_concrete(x: Any) -> bool:
    """Whether ``x`` holds numbers that can be looked at (not a tracer of a transformed function)."""
    return not isinstance(x, jax.core.Tracer)


def floating(name: str, x: Any) -> Array:
    """``x`` as a floating array of its own precision.

    Raises:
        TypeError: if ``x`` is not numeric (strings, objects, complex numbers).
    """
    if x is None or isinstance(x, str):
        raise TypeError(f"{name} must be a numeric array, got {type(x).__name__}.")
    try:
        x = jnp.asarray(x)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a numeric array, got {type(x).__name__}: {error}") from None
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"{name} must be real, got dtype {x.dtype}.")
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))


def finite(name: str, x: Any) -> None:
    """Refuse NaN and infinity in a concrete array; under a transformation nothing can be checked.

    Raises:
        ValueError: naming the first bad entry.
    """
    if not is_concrete(x):
        return
    with jax.ensure_compile_time_eval():
        good = np.asarray(jnp.isfinite(x))
    if not good.all():
        first = tuple(int(i) for i in np.argwhere(~good)[0])
        count = int((~good).sum())
        raise ValueError(
            f"{name} has {count} entries that are not finite, the first at index {first}. "
            "Remove or impute those rows before they reach the model."
        )


def not_empty(name: str, x: Array) -> None:
    """Refuse an array without rows.

    Raises:
        ValueError: if the leading axis has length 0.
    """
    if x.ndim == 0 or x.shape[0] == 0:
        raise ValueError(f"{name} is empty: its shape is {tuple(x.shape)}, at least one row is needed.")


def positive_int(name: str, value: int) -> int:
    """``value``, if it is a count of at least one.

    Raises:
        ValueError: if it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")
    return int(value)


def fraction(name: str, value: float) -> float:
    """``value``, if it is a squashing constant in ``[0, 0.5)``.

    Raises:
        ValueError: if it is not.
    """
    if not 0.0 <= value < 0.5:
        raise ValueError(f"{name} must be in [0, 0.5), got {value!r}.")
    return float(value)


def refuse_params_under_mcmc() -> None:
    """Refuse a program whose ``numpyro.param`` sites MCMC would leave at their starting values without a word.

    Raises:
        ValueError: naming the sites, when called by a program that MCMC runs.
    """
    depth = next((i for i, handler in enumerate(_PYRO_STACK) if isinstance(handler, _unconstrain_params)), None)
    if depth is None:
        return
    outer, inner = _PYRO_STACK[:depth], _PYRO_STACK[depth + 1 :]
    if not all(isinstance(h, handlers.trace | handlers.substitute) for h in outer):
        return  # an automatic guide at its set-up: SVI will train the params
    recorded = next((h.trace for h in outer if isinstance(h, handlers.trace)), {})
    # The outermost substitution inside MCMC's is NumPyro's and repeats the starting values; others are the user's.
    substitutions = [h.data or {} for h in inner if isinstance(h, handlers.substitute)]
    given = {name for data in substitutions[1:] for name in data}
    loose = [name for name, site in recorded.items() if site["type"] == "param" and name not in given]
    if loose:
        raise ValueError(
            f"The numpyro.param site(s) {', '.join(loose)} are not sampled by MCMC and would stay at their starting "
            "values. Give them priors with numpyro.handlers.lift(model, prior={...}), or fix them on purpose with "
            "numpyro.handlers.substitute(model, data={...})."
        )
