"""Quantiles of draws, and of mixtures of Gaussians."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Float, Shaped

from gpzoo import _checks as checks

#: Most steps. Bisection alone would need about 60 steps in float64, so the limit only stops endless loops with NaN.
_MAX_STEPS = 200


def checked_quantiles(quantiles: Sequence[float] | None) -> tuple[float, ...] | None:
    """Probabilities as a tuple of floats.

    Raises:
        ValueError: unless they are a sequence of one or more numbers between 0 and 1.
    """
    if quantiles is None:
        return None
    try:
        values = np.asarray(quantiles, np.float64)
    except (TypeError, ValueError):
        values = np.zeros(0)
    checks.refuse(
        values.ndim != 1 or values.size == 0 or not np.all((values > 0) & (values < 1)),
        f"quantiles must be probabilities between 0 and 1 such as (0.05, 0.5, 0.95), got {quantiles!r}.",
    )
    return tuple(values.tolist())


def empirical_quantiles(draws: Shaped[Array, "S *shape"], quantiles: tuple[float, ...]) -> Shaped[Array, "Q *shape"]:
    """For each probability ``p``, the smallest draw that has at least a fraction ``p`` of all draws at or below it.

    The result consists of values that were drawn.

    Args:
        draws: the draws, ``[S, ...]``.
        quantiles: ``Q`` probabilities.

    Returns:
        Quantiles ``[Q, ...]``, with the dtype of the draws.
    """
    # The slack keeps products that round up, such as 0.07 * 100, at the right whole number.
    ranks = np.ceil(np.asarray(quantiles) * len(draws) - 1e-9).astype(int)
    return jnp.sort(draws, axis=0)[np.maximum(ranks, 1) - 1]


def mixture_quantiles(
    mean: Float[Array, "S *shape"], variance: Float[Array, "S *shape"], quantiles: tuple[float, ...]
) -> Float[Array, "Q *shape"]:
    """Quantiles of mixtures of ``S`` Gaussians with equal weights, up to rounding errors.

    Args:
        mean: means of the Gaussians, ``[S, ...]``; each entry of ``...`` has its own mixture.
        variance: variances of the Gaussians, ``[S, ...]``.
        quantiles: ``Q`` probabilities.

    Returns:
        Quantiles ``[Q, ...]``. If Gaussians are far apart, the distribution function may have a flat part at the
        requested probability. The quantile is then the upper end of this part for probabilities above 0.5, and the
        lower end for all other probabilities.
    """
    scale = jnp.sqrt(variance)
    upper = np.asarray(quantiles) > 0.5
    # Upper quantiles are computed as lower quantiles of the mirrored mixture: upper tails round to 1, but lower tails
    # do not round to 0.
    sign = jnp.asarray(np.where(upper, -1.0, 1.0), mean.dtype)
    tail = jnp.asarray(np.where(upper, 1 - np.asarray(quantiles), quantiles), mean.dtype)
    if len(mean) == 1:
        shape = (-1, *(1,) * (mean.ndim - 1))
        return mean + (sign * ndtri(tail)).reshape(shape) * scale
    return jax.lax.map(lambda of: of[0] * _lower_quantile(of[0] * mean, scale, of[1]), (sign, tail))


def _lower_quantile(
    mean: Float[Array, "S *shape"], scale: Float[Array, "S *shape"], tail: Float[Array, ""]
) -> Float[Array, "*shape"]:
    """Newton's method on the distribution function, with bisection if a step leaves the bracket or shrinks slowly."""
    eps = float(jnp.finfo(mean.dtype).eps)
    # The target is slightly lower than asked. Otherwise rounding alone would choose the place on a level stretch.
    target = tail * (1 - 8 * eps)
    ends = mean + ndtri(tail) * scale
    low, high = jnp.min(ends, axis=0), jnp.max(ends, axis=0)
    spread = jnp.sqrt(jnp.mean(jnp.square(scale), axis=0) + jnp.var(mean, axis=0))
    start = jnp.clip(jnp.mean(mean, axis=0) + ndtri(tail) * spread, low, high)
    finest = jnp.min(scale, axis=0)

    def advance(state: tuple) -> tuple:
        count, x, low, high, last, done = state
        t = (x - mean) / scale
        excess = jnp.mean(ndtr(t), axis=0) - target
        density = jnp.mean(jnp.exp(-jnp.square(t) / 2) / scale, axis=0) / np.sqrt(2 * np.pi).item()
        low, high = jnp.where(excess < 0, x, low), jnp.where(excess < 0, high, x)
        newton = x - excess / density
        good = (newton > low) & (newton < high) & (jnp.abs(newton - x) < last / 2)
        new = jnp.where(good, newton, low + (high - low) / 2)
        step = jnp.abs(new - x)
        found = jnp.abs(excess) <= 2 * eps * target
        # Finished entries do not move, so that no entry depends on the time that others take.
        new = jnp.where(done | found, x, new)
        done = done | found | (step <= eps * jnp.maximum(jnp.abs(new), finest))
        return count + 1, new, low, high, step, done

    state = (0, start, low, high, high - low, jnp.zeros(start.shape, bool))
    return jax.lax.while_loop(lambda s: (s[0] < _MAX_STEPS) & ~jnp.all(s[-1]), advance, state)[1]
