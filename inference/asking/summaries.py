"""What does prediction report at a site? Averages over paths, one for each draw (deep GPs, eq. 18)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp, ndtr, ndtri
from jaxtyping import Float, Shaped

from gpzoo import _checks as checks

#: Bisection alone would need about 60 steps in float64; the bound only keeps NaN from running for ever.
_MAX_STEPS = 200


class SitePrediction(NamedTuple):
    """Prediction of one site at ``N`` new inputs, as NumPy arrays.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide, Trained
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 6, 50, dtype=np.float32)[:, None]
        >>> guide = InducingGuide(gp_regression, kmeans(8))
        >>> start = Trained(gp_regression, guide, guide.init_params(jax.random.key(0), X, np.sin(X[:, 0])))
        >>> found = start.predict(jax.random.key(1), X[:3], quantiles=(0.05, 0.95))
        >>> type(found["y"]).__name__, found["y"].mean.shape, found["y"].quantiles.shape, found["f"].log_density
        ('SitePrediction', (3,), (2, 3), None)

    Attributes:
        mean: predictive mean, ``[N]`` or ``[N, D]``; ``None`` for labels, which have ``probs``, and where the
            distribution of ``y`` has no finite one (a Cauchy).
        variance: predictive variance of every entry, the shape of ``mean``; of ``y`` it includes the noise. ``None``
            where ``y`` has no finite one, and with ``mean_only``.
        log_density: ``log p(y* | data)`` per datum, ``[N]``, in nats; ``None`` without test data, and for GP sites;
            of the entries of a datum that were observed, 0 where none was.
        probs: predictive class probabilities ``[N, K]``, where the likelihood has classes.
        quantiles: of every entry, ``[Q, N]`` or ``[Q, N, D]``, where asked for; ``None`` for labels.
        draws: one draw per path, ``[S, N]`` or ``[S, N, D]``, where asked for.
        cdf: predictive probability of a value of at most the test data's, the shape of ``mean``; of data sites with
            test data whose likelihood has it in closed form, as Gaussian ones do; NaN where these are.
    """

    # JAX arrays while they are computed. `Any` stands for None: type checkers then ask for no test at every use.
    mean: np.ndarray | Any
    variance: np.ndarray | Any
    log_density: np.ndarray | Any = None
    probs: np.ndarray | Any = None
    quantiles: np.ndarray | Any = None
    draws: np.ndarray | Any = None
    cdf: np.ndarray | Any = None

    def __repr__(self) -> str:
        there = ((name, x) for name, x in self._asdict().items() if x is not None)
        return f"SitePrediction({', '.join(f'{name} {list(np.shape(x))}' for name, x in there)})"


#: The axis of the inputs' rows in each field of a :class:`SitePrediction`.
ROW_AXES = dict.fromkeys(SitePrediction._fields, 0) | {"quantiles": 1, "draws": 1}


class Asked(NamedTuple):
    """Parts of a prediction besides moments and densities, as far as the caller wants them.

    Attributes:
        quantiles: probabilities, or ``None``.
        keep_draws: whether the result has draws.
        draws_per_path: one, or more where there is only one path.
        mean_only: whether the result has no variances, which the compiled program then does not compute.
    """

    quantiles: tuple[float, ...] | None
    keep_draws: bool
    draws_per_path: int
    mean_only: bool = False


class Path(NamedTuple):
    """The prediction of one path at a site.

    Attributes:
        prediction: moments, density and class probabilities.
        gaussian: mean and variance of every entry where the site is Gaussian given the path, else ``None``.
        draws: ``[draws_per_path, N, ...]``, or ``None`` where they are not needed.
    """

    prediction: SitePrediction
    gaussian: tuple[Float[Array, "N *D"], Float[Array, "N *D"]] | None = None
    draws: Shaped[Array, "S N ..."] | None = None


def without_variance(path: Path) -> Path:
    """The path's mean, or class probabilities, alone."""
    return Path(path.prediction._replace(variance=None))


def of_paths(each: Path, asked: Asked) -> SitePrediction:
    """The equal mixture over the leading axis: moments by the law of total variance, densities averaged (eq. 18)."""
    path, variance, density, quantiles = each.prediction, None, None, None
    mean, probs, cdf = (None if x is None else jnp.mean(x, axis=0) for x in (path.mean, path.probs, path.cdf))
    if mean is not None and path.variance is not None:
        variance = jnp.mean(path.variance, axis=0) + jnp.var(path.mean, axis=0)
    if path.log_density is not None:
        density = logsumexp(path.log_density, axis=0) - jnp.log(len(path.log_density))
    draws: Any = None if each.draws is None else each.draws.reshape(-1, *each.draws.shape[2:])
    if asked.quantiles is not None and mean is not None:
        if each.gaussian is None:
            quantiles = empirical_quantiles(draws, asked.quantiles)
        else:
            quantiles = mixture_quantiles(*each.gaussian, asked.quantiles)
    return SitePrediction(mean, variance, density, probs, quantiles, draws if asked.keep_draws else None, cdf)


def by_field(predictions: Mapping[str, SitePrediction]) -> dict[str, dict[str, Any]]:
    """The arrays of predictions by field and site."""
    return {
        field: {name: x for name, site in predictions.items() if (x := getattr(site, field)) is not None}
        for field in SitePrediction._fields
    }


# -- quantiles ---------------------------------------------------------------------------------------------------------


def checked_quantiles(quantiles: Sequence[float] | None) -> tuple[float, ...] | None:
    """Probabilities as a tuple of floats.

    Raises:
        ValueError: unless they are a sequence of numbers between 0 and 1, at least one.
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
    """The smallest draw with at least the given share of the draws at or below it: always a value that was drawn.

    Args:
        draws: ``[S, ...]``.
        quantiles: ``Q`` probabilities.

    Returns:
        ``[Q, ...]``, of the type of the draws.
    """
    # The slack keeps products that round up, such as 0.07 * 100, at their integer.
    ranks = np.ceil(np.asarray(quantiles) * len(draws) - 1e-9).astype(int)
    return jnp.sort(draws, axis=0)[np.maximum(ranks, 1) - 1]


def mixture_quantiles(
    mean: Float[Array, "S *shape"], variance: Float[Array, "S *shape"], quantiles: tuple[float, ...]
) -> Float[Array, "Q *shape"]:
    """Quantiles of equal mixtures of ``S`` Gaussians, to the precision of the means.

    Args:
        mean: ``[S, ...]``, one mixture for every entry of ``...``.
        variance: ``[S, ...]``.
        quantiles: ``Q`` probabilities.

    Returns:
        ``[Q, ...]``. Where the distribution function is level at a probability (components far apart), the end of that
        stretch that is farther from the median, or, for the median, its lower end.
    """
    scale = jnp.sqrt(variance)
    upper = np.asarray(quantiles) > 0.5
    # Upper quantiles are lower ones of the mirrored mixture: tails of the distribution function round to 1, not to 0.
    sign = jnp.asarray(np.where(upper, -1.0, 1.0), mean.dtype)
    tail = jnp.asarray(np.where(upper, 1 - np.asarray(quantiles), quantiles), mean.dtype)
    if len(mean) == 1:
        shape = (-1, *(1,) * (mean.ndim - 1))
        return mean + (sign * ndtri(tail)).reshape(shape) * scale
    return jax.lax.map(lambda of: of[0] * _lower_quantile(of[0] * mean, scale, of[1]), (sign, tail))


def _lower_quantile(
    mean: Float[Array, "S *shape"], scale: Float[Array, "S *shape"], tail: Float[Array, ""]
) -> Float[Array, "*shape"]:
    """Newton's method on the distribution function, by bisection where a step leaves the bracket or shrinks slowly."""
    eps = float(jnp.finfo(mean.dtype).eps)
    # A little lower than asked: on a level stretch, rounding alone would choose the place.
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
        # Entries that are done stay where they are, so that none depends on how long the others take.
        new = jnp.where(done | found, x, new)
        done = done | found | (step <= eps * jnp.maximum(jnp.abs(new), finest))
        return count + 1, new, low, high, step, done

    state = (0, start, low, high, high - low, jnp.zeros(start.shape, bool))
    return jax.lax.while_loop(lambda s: (s[0] < _MAX_STEPS) & ~jnp.all(s[-1]), advance, state)[1]
