"""Class labels through a softmax of the latent functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, random
from jaxtyping import Float, Int32, PRNGKeyArray

from gpzoo._types import ArrayLike
from gpzoo.likelihoods.classes import TabledClasses
from gpzoo.processes.marginals import GaussianMarginals


class Softmax(TabledClasses):
    """The softmax likelihood of class labels, ``p(y = k | f) = exp(f_k) / sum_j exp(f_j)``.

    The expectation of the log density has no closed form, so draws estimate it. The draws of the ``K`` latent values of
    a row are reparameterised, and joint if these values are correlated (after ``f @ A``). The estimate and its gradient
    are unbiased.

    Example:
        >>> import numpy as np
        >>> from gpzoo.likelihoods import Softmax
        >>> Softmax(np.array([[0.0, 0.0, np.log(2)]], np.float32)).probs.round(2)
        Array([[0.25, 0.25, 0.5 ]], dtype=float32)

    Args:
        f: ``[N, K]``, array or marginals (with a random key).
        num_draws: draws per row, in ``log_prob``.
        num_predictive_draws: draws per row, in ``probs`` and ``predictive_log_prob``.
        missing: ``"mask"``: entries of ``y`` that are NaN were not observed and have no term.
        validate_args: as in NumPyro.

    Raises:
        ValueError: if ``f`` is not ``[N, K]`` with at least two classes, or a count is below one.
    """

    pytree_aux_fields = ("num_draws", "num_predictive_draws")

    def __init__(
        self,
        f: ArrayLike | GaussianMarginals,
        *,
        num_draws: int = 10,
        num_predictive_draws: int = 100,
        missing: str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.set_counts(num_draws=num_draws, num_predictive_draws=num_predictive_draws)
        super().__init__(f, missing=missing, validate_args=validate_args)

    def marginal_expectation(self) -> str:
        """The way in which :meth:`log_prob` integrates."""
        return "draw"

    def log_given(self, f: Float[Array, "*S N K"]) -> Float[Array, "*S N K"]:
        """See :meth:`TabledClasses.log_given`."""
        return jax.nn.log_softmax(f)

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Float[Array, "*S N"]:
        """See :meth:`Likelihood.log_prob <gpzoo.likelihoods.Likelihood.log_prob>`."""
        table = self.log_given(self.f.draws(self.num_draws)).mean(0) if self.is_marginal else self.log_given(self.f)
        return self.of_label(table, value)

    def sample_given(self, key: PRNGKeyArray, f: Float[Array, "S N K"]) -> Int32[Array, "S N"]:
        """Draws of ``y`` for ``f``; see :meth:`Likelihood.sample_given`."""
        return random.categorical(key, f).astype(jnp.int32)
