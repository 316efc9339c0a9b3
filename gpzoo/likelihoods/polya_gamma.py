"""Logistic labels by Pólya-Gamma augmentation: a bound that is quadratic in ``f``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from gpzoo import _checks as checks
from gpzoo._types import ArrayLike
from gpzoo.likelihoods.bernoulli import Bernoulli
from gpzoo.processes.marginals import EstimatedMarginals, GaussianMarginals

_LOG_2 = 0.6931471805599453


class PolyaGamma(Bernoulli):
    """The logistic likelihood of labels 0 and 1, by the Pólya-Gamma bound (van der Wilk et al. 2018, eq. 22-23).

    The likelihood is ``p(y = 1 | f) = 1 / (1 + exp(-f))``. With marginals, ``log_prob`` is a lower bound on the
    expected log density. Let ``s = 1`` for ``y = 1`` and ``s = -1`` for ``y = 0``, and let ``q(omega) = PG(1, c)`` be a
    Pólya-Gamma distribution. The bound is

    ``-log 2 + s E[f] / 2 - E[omega] E[f^2] / 2 - KL[PG(1, c) || PG(1, 0)]``, ``E[omega] = tanh(c / 2) / (2 c)``.

    The bound is quadratic in ``f``, so ``f`` may also be :class:`~gpzoo.EstimatedMarginals`. The optimal ``c`` has
    ``c^2 = E[f^2]`` and gives the bound of Jaakkola and Jordan. Apart from this bound, gpzoo uses the exact logistic
    likelihood: the log density of an array ``f`` is exact, and quadrature computes predictive probabilities.

    Example:
        >>> import numpy as np
        >>> from gpzoo import GaussianMarginals
        >>> from gpzoo.likelihoods import Bernoulli, PolyaGamma
        >>> f, y = GaussianMarginals(np.ones(1, np.float32), np.ones(1, np.float32)), np.ones(1, np.float32)
        >>> PolyaGamma(f).log_prob(y).round(3), Bernoulli(f, "logit").log_prob(y).round(3)  # the bound is below
        (Array([-0.425], dtype=float32), Array([-0.407], dtype=float32))

    Args:
        f: ``[N]``, or ``[N, D]`` for ``D`` labels per row; array or marginals.
        c: parameters of ``q(omega)``, any real numbers that broadcast to the shape of ``f``, such as the output of a
            recognition network (a network of the inputs and the labels). ``None`` means the optimal ``c``. Only the
            bound uses ``c``.
        num_points: number of quadrature points.
        num_predictive_draws: joint draws for ``predictive_log_prob`` if the ``D`` labels of a row are correlated;
            independent labels need no draws.
        missing: ``"mask"``: entries of ``y`` that are NaN were not observed and have no term.
        validate_args: as in NumPyro.

    Raises:
        ValueError: if ``c`` does not broadcast to the shape of ``f``, or a count is below one.
        TypeError: for :class:`~gpzoo.EstimatedMarginals` without ``c``. The optimal ``c`` is not linear in their
            moments, so the result would not be a bound.
    """

    pytree_data_fields = ("c",)
    quadratic = True

    def __init__(
        self,
        f: ArrayLike | GaussianMarginals,
        c: ArrayLike | None = None,
        *,
        num_points: int = 20,
        num_predictive_draws: int = 100,
        missing: str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(
            f,
            "logit",
            num_points=num_points,
            num_predictive_draws=num_predictive_draws,
            missing=missing,
            validate_args=validate_args,
        )
        self.c = _checked_c(type(self).__name__, self.f, c)

    def marginal_expectation(self) -> str:
        """The way in which :meth:`log_prob` integrates."""
        return "closed form"

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Float[Array, "*S N"]:
        """See :meth:`Likelihood.log_prob <gpzoo.likelihoods.Likelihood.log_prob>`; for marginals, a lower bound."""
        if not self.is_marginal:
            return super().log_prob(value)
        sign, good = self._signed(value)
        return self.counted(_bound(sign, self.f, self.c), value, good)


def _checked_c(name: str, f: Array | GaussianMarginals, c: ArrayLike | None) -> Float[Array, "..."] | None:
    if c is None:
        checks.refuse(
            isinstance(f, EstimatedMarginals),
            f"{name} needs c where moments are estimates (site(s) {', '.join(sorted(getattr(f, 'sites', ())))} sample "
            "views of their inputs): the best c is not linear in them, so that there would be no bound. Take it from a "
            "recognition network of (x, y), such as gpzoo.models.recognition.",
            TypeError,
        )
        return None
    c = checks.floating("c", c)
    checks.broadcasts("c", c, tuple(f.shape), "the shape of f,")
    return c.astype(f.dtype)


def _bound(sign: Float[Array, "*shape"], f: GaussianMarginals, c: Float[Array, "..."] | None) -> Float[Array, "*shape"]:
    """The bound on ``E[log sigma(sign f)]``."""
    square = jnp.square(f.mean) + f.variance
    if c is None:  # At the optimum, c^2 is the mean square of f. A fixed c would have other second derivatives.
        return sign * f.mean / 2 - _LOG_2 - _log_cosh_of_root(square / 4)
    half = jnp.abs(c) / 2
    ratio = _tanh_ratio(half)
    divergence = _log_cosh(half) - jnp.square(half) * ratio / 2
    return sign * f.mean / 2 - ratio * square / 8 - _LOG_2 - divergence


def _log_cosh(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``log(cosh(x))`` of positive numbers."""
    return x + jnp.log1p(jnp.exp(-2 * x)) - _LOG_2


def _log_cosh_of_root(square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``log(cosh(sqrt(square)))``, with correct derivatives at 0; of 0 in place of negative numbers."""
    small = square < 0.0025
    near = jnp.where(small & (square >= 0), square, 0)
    series = near * (1 / 2 + near * (-1 / 12 + near * (1 / 45 - near * (17 / 2520))))
    return jnp.where(small, series, _log_cosh(jnp.sqrt(jnp.where(small, 1, square))))


def _tanh_ratio(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``tanh(x) / x``, which is 1 at 0, with correct derivatives there."""
    small = jnp.abs(x) < 0.05
    safe = jnp.where(small, 1, x)
    square = jnp.square(x)
    series = 1 + square * (-1 / 3 + square * (2 / 15 - square * (17 / 315 - square * (62 / 2835))))
    return jnp.where(small, series, jnp.tanh(safe) / safe)
