"""Binary labels through a probit or logit link."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.scipy.special import ndtr
from jaxtyping import Bool, Float, Int32, PRNGKeyArray
from numpyro.distributions import constraints

from gpzoo import _checks as checks
from gpzoo._types import ArrayLike
from gpzoo.likelihoods.base import Likelihood, check_labels, dependent_property
from gpzoo.likelihoods.quadrature import (
    log_mean_exp,
    log_mean_of_link,
    log_normal_cdf,
    log_weighted_mean,
    normal_points,
    weighted_sum,
)
from gpzoo.processes.marginals import GaussianMarginals

#: Variance beyond which 20 Gauss-Hermite nodes are too far apart for the logit link. Below, errors are under 3e-4.
_STEEP = 9.0

_LINKS = {"probit": (ndtr, log_normal_cdf), "logit": (jax.nn.sigmoid, jax.nn.log_sigmoid)}


class Bernoulli(Likelihood):
    """The Bernoulli likelihood of labels 0 and 1: ``p(y = 1 | f) = squash + (1 - 2 squash) link(f)``.

    Gauss-Hermite quadrature computes expectations of the log density. The predictive probability has a closed form for
    the probit link, ``Phi(E[f] / sqrt(1 + Var[f]))`` (Rasmussen and Williams 2006, eq. 3.82). For the logit link,
    quadrature computes it: by the same rule or, if ``Var[f] > 9``, by one whose nodes follow the link.

    Example:
        >>> import numpy as np
        >>> from gpzoo.likelihoods import Bernoulli
        >>> Bernoulli(np.array([-1.0, 0.0, 1.0], np.float32)).probs.round(2)
        Array([0.16, 0.5 , 0.84], dtype=float32)

    Args:
        f: ``[N]``, or ``[N, D]`` for ``D`` labels per row; array or marginals.
        link: ``"probit"`` or ``"logit"``.
        squash: keeps probabilities in ``[squash, 1 - squash]``. A wrongly predicted label then lowers the bound by at
            most ``-log(squash)``. GPflow's probit link uses 1e-3.
        num_points: number of points of the Gauss-Hermite rule.
        num_predictive_draws: joint draws for ``predictive_log_prob`` if the ``D`` labels of a row are correlated;
            independent labels need no draws.
        missing: ``"mask"``: entries of ``y`` that are NaN were not observed and have no term.
        validate_args: as in NumPyro.

    Raises:
        ValueError: for an unknown link, a squash outside ``[0, 0.5)``, or a count below one.
    """

    by_entry = own_columns = True
    pytree_aux_fields = ("link", "squash", "num_points", "num_predictive_draws")

    def __init__(
        self,
        f: ArrayLike | GaussianMarginals,
        link: str = "probit",
        squash: float = 0.0,
        *,
        num_points: int = 20,
        num_predictive_draws: int = 100,
        missing: str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        f = self._latent(f)
        self.link, self.squash = checks.one_of("link", link, _LINKS), checks.fraction("squash", squash)
        self.set_counts(num_points=num_points, num_predictive_draws=num_predictive_draws)
        super().__init__(f, tuple(f.shape)[1:], missing=missing, validate_args=validate_args)

    @dependent_property(is_discrete=True)
    def support(self) -> constraints.Constraint:
        """Labels 0 and 1."""
        return constraints.independent(constraints.boolean, self.event_dim)

    def marginal_expectation(self) -> str:
        """The way in which :meth:`log_prob` integrates."""
        return "quadrature"

    def check_values(self, values: np.ndarray) -> None:
        """Refuse values outside the support."""
        hint = "; for labels -1 and 1 pass (y + 1) / 2" if (values == -1).any() else ""
        check_labels(self, values, 2, hint)

    def _probability(self, f: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """``p(y = 1 | f)``."""
        return self.squash + (1 - 2 * self.squash) * _LINKS[self.link][0](f)

    def _log_link(self, signed: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """``log p(y | f)`` from ``f`` times the sign of ``y``. Both links, probit and logit, are symmetric."""
        return jnp.log(self._probability(signed)) if self.squash else _LINKS[self.link][1](signed)

    def _signed(self, value: ArrayLike) -> tuple[Float[Array, "*shape"], Bool[Array, "*shape"]]:
        """The sign of every label, 1 or -1, and a mask of the labels that are 0 or 1."""
        labels, good = self.labels(value, 2)
        return (2 * labels - 1).astype(self.f.dtype), good

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Float[Array, "*S N"]:
        """See :meth:`Likelihood.log_prob <gpzoo.likelihoods.Likelihood.log_prob>`."""
        sign, good = self._signed(value)
        if not self.is_marginal:
            return self.counted(self._log_link(sign * self.f), value, good)
        points, weights = normal_points(self.num_points, sign * self.f.mean, self.f.variance)
        return self.counted(weighted_sum(weights, self._log_link(points)), value, good)

    def predictive_log_prob(self, value: ArrayLike) -> Float[Array, "*S N"]:
        """See :meth:`Likelihood.predictive_log_prob <gpzoo.likelihoods.Likelihood.predictive_log_prob>`.

        For correlated labels of one row, draws estimate the joint density.
        """
        sign, good = self._signed(value)
        if not self.is_marginal:
            return self.counted(self._log_link(sign * self.f), value, good)
        if not self.f.independent:
            f = self.f.draws(self.num_predictive_draws)
            f = jnp.reshape(f, f.shape[:1] + (1,) * (sign.ndim - 2) + f.shape[1:])
            return log_mean_exp(self.counted(self._log_link(sign * f), value, good))
        return self.counted(jnp.where(sign > 0, *self._predictive()), value, good)

    def _predictive(self) -> tuple[Float[Array, "N *D"], Float[Array, "N *D"]]:
        """Log predictive probabilities of the labels 1 and 0."""
        self.refuse_estimates()
        mean, variance = jnp.broadcast_arrays(self.f.mean, self.f.variance)
        if self.link == "probit":
            scaled = mean / jnp.sqrt(1 + variance)
            return self._log_link(scaled), self._log_link(-scaled)
        points, weights = normal_points(self.num_points, mean, variance)
        steep = log_mean_of_link(self._log_link, mean, variance)
        each = (log_weighted_mean(weights, self._log_link(s * points)) for s in (1, -1))
        yes, no = (jnp.where(variance > _STEEP, new, old) for new, old in zip(steep, each, strict=True))
        return yes, no

    @property
    def mean(self) -> Float[Array, "N *D"]:
        """Probability of label 1, with the shape of ``f``. If ``f`` is marginals, it is the predictive probability."""
        return jnp.exp(self._predictive()[0]) if self.is_marginal else self._probability(self.f)

    @property
    def variance(self) -> Float[Array, "N *D"]:
        """``p (1 - p)``, where ``p`` is the ``mean``."""
        p = self.mean
        return p * (1 - p)

    @property
    def probs(self) -> Float[Array, "N *D"]:
        """The ``mean``, under the name that NumPyro uses."""
        return self.mean

    def sample_given(self, key: PRNGKeyArray, f: Float[Array, "S N *D"]) -> Int32[Array, "S N *D"]:
        """Draws of ``y`` for ``f``; see :meth:`Likelihood.sample_given`."""
        return random.bernoulli(key, self._probability(f)).astype(jnp.int32)
