"""Numbers with Gaussian noise; some of them are known only by limits, above, below or on both sides."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Shaped
from numpyro.distributions import constraints

from gpzoo import _checks as checks
from gpzoo._types import ArrayLike
from gpzoo.likelihoods.base import dependent_property
from gpzoo.likelihoods.gaussian import Gaussian
from gpzoo.likelihoods.quadrature import log_normal_cdf, normal_points, weighted_sum
from gpzoo.linalg.operators import LOG_2PI
from gpzoo.processes.marginals import GaussianMarginals

#: Intervals narrower than this (in standard deviations) have their own formula: a difference of cdfs would lose digits.
_NARROW = 0.1


class Censored(Gaussian):
    """Censored data with Gaussian noise: ``y`` is the value of ``f + noise``, or a limit of this value (Tobin 1958).

    ``s`` is the standard deviation of the noise, and ``Phi`` the standard normal cdf. The density of a censored row is
    a probability: ``Phi((f - y) / s)`` if the value is above ``y``, and ``Phi((y - f) / s)`` if it is below ``y``. If
    the value is between ``y`` and ``upper``, the density is the probability of this interval. gpzoo computes all
    densities in log space. Gauss-Hermite quadrature computes expectations. Predictive densities have the same formulas,
    with the variance of ``f`` added to the noise variance. ``mean``, ``variance`` and draws describe the value itself,
    not its limits.

    Example:
        >>> import numpy as np
        >>> from gpzoo.likelihoods import Censored
        >>> f = np.zeros(3, np.float32)
        >>> limits = Censored(f, 1.0, censored=np.array([0, 1, -1]))  # y itself, above y, below y
        >>> np.exp(limits.log_prob(np.zeros(3, np.float32))).round(2)
        array([0.4, 0.5, 0.5], dtype=float32)

    Args:
        f: ``[N]``, array or marginals.
        noise_variance: one number, or ``[N]``, in squared units of ``y``.
        censored: the kind of each row, ``[N]`` whole numbers: 0 if the value is ``y``, 1 if it is above ``y``, -1 if it
            is below ``y``, 2 if it lies between ``y`` and ``upper``. ``None`` means 0 in every row.
        upper: upper ends of intervals, ``[N]``. Entries of rows without an interval are not used.
        num_points: number of quadrature points.
        missing: ``"mask"``: entries of ``y`` that are NaN were not observed and have no term.
        validate_args: as in NumPyro.

    Raises:
        ValueError: if shapes disagree; for a noise variance as in :class:`Gaussian`; outside ``jit``, if ``censored``
            has a number other than 0, 1, -1 and 2, an interval has no ``upper`` end, or ``upper`` is not above ``y``.
    """

    pytree_data_fields = ("censored", "upper")
    pytree_aux_fields = ("num_points",)
    quadratic = False
    takes_residual = False

    def __init__(
        self,
        f: ArrayLike | GaussianMarginals,
        noise_variance: Array | float,
        censored: ArrayLike | None = None,
        upper: ArrayLike | None = None,
        *,
        num_points: int = 20,
        missing: str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        f = self._latent(f, (1,))
        self.set_counts(num_points=num_points)
        for name, x in (("censored", censored), ("upper", upper)):
            shape = tuple(f.shape) if x is None else np.shape(x)
            wanted = f"have one entry per datum, {tuple(f.shape)};"
            checks.must(shape == tuple(f.shape), name, wanted, f"shape {shape}")
        self.censored = None if censored is None else jnp.asarray(censored)
        self.upper = None if upper is None else checks.floating("upper", upper).astype(f.dtype)
        if censored is not None and checks.is_concrete(censored):
            kinds = np.asarray(censored)
            bad = kinds[~np.isin(kinds, (-1, 0, 1, 2))].tolist()
            wanted = "hold 0 (y is the value), 1 (it is above y), -1 (below y) or 2 (between y and upper)"
            checks.must(not bad, "censored", wanted, repr(bad[0]) if bad else "")
            no_ends = "censored holds 2, values between y and upper: give upper, the ends of the intervals."
            checks.refuse(upper is None and (kinds == 2).any(), no_ends)
        super().__init__(f, noise_variance, missing=missing, validate_args=validate_args)

    def marginal_expectation(self) -> str:
        """The way in which :meth:`log_prob` integrates."""
        return "closed form" if self.censored is None else "quadrature"

    @property
    def exact(self) -> Bool[Array, " N"]:
        """A mask of the rows in which ``y`` is the value itself and not a limit."""
        return jnp.ones(self.batch_shape, bool) if self.censored is None else self.censored == 0

    def cdf(self, value: ArrayLike) -> None:
        """``None``, because ``y`` may be a limit and not a value."""

    def checked(self, y: Any) -> Shaped[Array, "..."]:
        """See :meth:`Likelihood.checked <gpzoo.likelihoods.Likelihood.checked>`; an interval must not be empty."""
        if all(x is not None and checks.is_concrete(x) for x in (y, self.censored, self.upper)):
            with np.errstate(invalid="ignore"):
                empty = (np.asarray(self.censored) == 2) & (np.asarray(self.upper) <= np.asarray(y))
            if empty.any():
                where = checks.first_of(empty)
                raise ValueError(
                    f"Censored: the interval at index {where} from y to upper is empty: upper is "
                    f"{np.broadcast_to(np.asarray(self.upper), empty.shape)[where]}, y {np.asarray(y)[where]}."
                )
        return super().checked(y)

    def _log_density(
        self, y: Float[Array, "*#shape"], f: Float[Array, "*#shape"], variance: Float[Array, "*#shape"]
    ) -> Float[Array, "*shape"]:
        scale = jnp.sqrt(variance)
        z = (y - f) / scale
        found = -0.5 * (LOG_2PI + jnp.log(variance) + jnp.square(z))
        if self.censored is None:
            return found
        found = jnp.where(self.censored == 1, log_normal_cdf(-z), found)
        found = jnp.where(self.censored == -1, log_normal_cdf(z), found)
        between = self.censored == 2
        if self.upper is None:
            return jnp.where(between, jnp.nan, found)
        # Rows without an interval get one at which derivatives are finite, whatever stands in ``upper``.
        known = between & ~jnp.isnan(self.upper)
        upper = jnp.where(known, self.upper, y + scale)
        found = jnp.where(known, _log_between(z, (upper - f) / scale), found)
        return jnp.where(between & ~known, jnp.nan, found)

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Float[Array, "*S N"]:
        """See :meth:`Likelihood.log_prob <gpzoo.likelihoods.Likelihood.log_prob>`."""
        if self.censored is None:
            return super().log_prob(value)
        y = self.checked(value).astype(self.f.dtype)
        if not self.is_marginal:
            return self.counted(self._log_density(y, self.f, self.noise_variance), value)
        moments = (jnp.broadcast_to(x, y.shape) for x in (self.f.mean, self.f.variance))
        points, weights = normal_points(self.num_points, *moments)
        return self.counted(weighted_sum(weights, self._log_density(y, points, self.noise_variance)), value)

    def predictive_log_prob(self, value: ArrayLike) -> Float[Array, "*S N"]:
        """See :meth:`Likelihood.predictive_log_prob <gpzoo.likelihoods.Likelihood.predictive_log_prob>`."""
        y = self.checked(value).astype(self.f.dtype)
        return self.counted(self._log_density(y, self.mean, self.variance), value)

    @dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        """All numbers; in a row that is left out, one that is below the end of its interval."""
        upper = 0 if self.upper is None else jnp.nan_to_num(self.upper)
        return constraints.real if self.upper is None else _Below(upper - 1 - jnp.abs(upper))


class _Below(constraints.Constraint):
    """Real numbers, of which some are given, one for each row."""

    is_discrete, event_dim = False, 0

    def __init__(self, feasible: Array) -> None:
        self.feasible = feasible

    def __call__(self, x: Any) -> Any:
        return constraints.real(x)

    def feasible_like(self, prototype: Any) -> Array:
        return jnp.broadcast_to(self.feasible.astype(jnp.result_type(prototype)), jnp.shape(prototype))


def _log_between(a: Float[Array, "*#shape"], b: Float[Array, "*#shape"]) -> Float[Array, "*shape"]:
    """``log(Phi(b) - Phi(a))`` for ``a < b``, accurate in both tails and for narrow intervals; NaN for ``a >= b``."""
    narrow = b - a < _NARROW
    # By symmetry, this computes in the lower tail, where both cdfs are small and not close to 1.
    flip = a + b > 0
    low, high = jnp.where(flip, -b, a), jnp.where(flip, -a, b)
    low = jnp.where(narrow, high - 1, low)
    log_high = log_normal_cdf(high)
    wide = log_high + jnp.log(-jnp.expm1(log_normal_cdf(low) - log_high))
    # Let m be the middle, h half the width, and x = m h. The result is phi(m) exp(-m t - t^2 / 2), integrated over t
    # from -h to h. Without t^2 / 2, it is phi(m) 2 h sinh(x) / x, and t has E[t^2] = h^2 (1 - 2 (coth(x) - 1 / x) / x).
    m, h = (a + b) / 2, jnp.where(narrow, (b - a) / 2, _NARROW / 2)
    x = jnp.abs(m * h)
    small = x < 0.1
    safe = jnp.where(small, 1, x)
    log_sinhc = jnp.where(
        small,
        jnp.square(x) / 6 * (1 - jnp.square(x) / 30),
        safe + jnp.log(-jnp.expm1(-2 * safe)) - jnp.log(2 * safe),
    )
    langevin = jnp.where(small, 1 / 3 - jnp.square(x) / 45, (1 / jnp.tanh(safe) - 1 / safe) / safe)
    thin = -0.5 * (LOG_2PI + jnp.square(m)) + jnp.log(2 * h) + log_sinhc - jnp.square(h) * (1 - 2 * langevin) / 2
    return jnp.where(narrow, thin, wide)
