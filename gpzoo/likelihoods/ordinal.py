"""Ordered labels, such as grades: a latent function, and cutpoints between neighbouring labels."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array

from gpzoo import _checks as checks
from gpzoo._types import ArrayLike
from gpzoo.likelihoods.expected import Expected
from gpzoo.processes.marginals import GaussianMarginals


class Ordinal(Expected):
    """The ordered logit likelihood, for ordered labels 0 to ``K - 1``.

    ``p(y = k | f) = s(c_k - f) - s(c_(k-1) - f)`` with the logistic function ``s`` and the cutpoints ``c_0`` to
    ``c_(K-2)``. By definition, ``c_(-1)`` is minus infinity and ``c_(K-1)`` is infinity. gpzoo computes densities in
    log space. So densities and their gradients are finite even if ``f`` is far from the cutpoints. Gauss-Hermite
    quadrature computes the expected log density; see :class:`Expected` for predictive densities.

    Example:
        >>> import numpy as np
        >>> from gpzoo.likelihoods import Ordinal
        >>> np.asarray(Ordinal(np.zeros(1, np.float32), np.array([-1.0, 1.0], np.float32)).probs).round(2)
        array([[0.27, 0.46, 0.27]], dtype=float32)

    Args:
        f: ``[N]``, array or marginals.
        cutpoints: ``c``, ``[K - 1]``, ascending, in the units of ``f``. The label is the number of cutpoints below
            ``f + e``, where ``e`` is logistic noise. The standard deviation of this noise is always 1.8.
        num_points: number of points of the Gauss-Hermite rule.
        missing: ``"mask"``: entries of ``y`` that are NaN were not observed and have no term.
        validate_args: as in NumPyro.

    Raises:
        ValueError: if the cutpoints are not a vector, or not ascending (checked only outside ``jit``).
    """

    def __init__(
        self,
        f: ArrayLike | GaussianMarginals,
        cutpoints: ArrayLike,
        *,
        num_points: int = 20,
        missing: str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        cutpoints = checks.floating("cutpoints", cutpoints)
        good = cutpoints.ndim == 1 and len(cutpoints)
        checks.must(good, "cutpoints", "be [K - 1] for K labels", f"shape {tuple(cutpoints.shape)}")
        if checks.is_concrete(cutpoints):
            found = np.asarray(cutpoints)
            checks.must((np.diff(found) > 0).all(), "cutpoints", "be ascending", str(found))
        options = {"num_points": num_points, "missing": missing, "validate_args": validate_args}
        super().__init__(_OrderedLogistic, f, cutpoints, **options)


class _OrderedLogistic(dist.OrderedLogistic):
    """NumPyro's ordered logistic distribution, with differences of probabilities computed in log space."""

    def __init__(self, predictor: Array, cutpoints: Array) -> None:
        super().__init__(predictor, cutpoints, validate_args=False)

    def log_prob(self, value: Any) -> Array:
        # s(b) - s(a) = s(b) s(-a) (1 - exp(a - b)). No factor of this product is a difference of nearly equal numbers.
        cutpoints: Any = self.cutpoints
        f, last, y = self.predictor, cutpoints.shape[-1], jnp.asarray(value)
        shape = jnp.broadcast_shapes(y.shape, f.shape)
        y = jnp.broadcast_to(y, shape)
        c = jnp.broadcast_to(cutpoints, (*shape, last))
        take = lambda i: jnp.take_along_axis(c, jnp.clip(i, 0, last - 1)[..., None], axis=-1)[..., 0]  # noqa: E731
        below, above = take(y - 1), take(y)
        first, end = y == 0, y == last
        upper = jnp.where(end, 0, jax.nn.log_sigmoid(above - f))
        lower = jnp.where(first, 0, jax.nn.log_sigmoid(f - below))
        gap = jnp.where(first | end, 1, above - below)
        between = jnp.where(first | end, 0, jnp.log(-jnp.expm1(-gap)))
        return jnp.where((y >= 0) & (y <= last), upper + lower + between, jnp.nan)
