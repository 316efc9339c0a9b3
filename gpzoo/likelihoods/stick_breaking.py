"""Several classes as a sequence of logistic decisions, each with Pólya-Gamma augmentation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, random
from jaxtyping import Float, Int32, PRNGKeyArray

from gpzoo._types import ArrayLike
from gpzoo.likelihoods.classes import TabledClasses
from gpzoo.likelihoods.polya_gamma import _bound, _checked_c
from gpzoo.likelihoods.quadrature import log_mean_of_link
from gpzoo.processes.marginals import GaussianMarginals


class StickBreaking(TabledClasses):
    """Class labels by stick breaking, ``p(y = k | f) = sigma(f_k) prod_{j < k} sigma(-f_j)`` (Linderman et al. 2015).

    ``sigma`` is the logistic function. For ``K`` classes, the label follows from up to ``K - 1`` binary decisions.
    Decision ``k`` is whether the label is class ``k``, given that it is none of the earlier classes. Each decision has
    the bound of :class:`PolyaGamma`. The last class has the remaining probability. The order of the classes is part of
    the model. Van der Wilk, Bauer, John and Hensman (2018, *Learning invariances using the marginal likelihood*,
    section 4.5) suggest this form for several classes.

    Example:
        >>> import numpy as np
        >>> from gpzoo.likelihoods import StickBreaking
        >>> StickBreaking(np.zeros((1, 2), np.float32)).probs  # two functions for three classes
        Array([[0.5 , 0.25, 0.25]], dtype=float32)

    Args:
        f: ``[N, K - 1]``, array or marginals.
        c: as for :class:`PolyaGamma`; it broadcasts to the shape of ``f``. ``None`` means the optimal ``c``.
        num_predictive_draws: number of joint draws for predictive probabilities if outputs are correlated.
        missing: ``"mask"``: entries of ``y`` that are NaN were not observed and have no term.
        validate_args: as in NumPyro.

    Raises:
        ValueError: if ``f`` is not ``[N, K - 1]``, ``c`` does not broadcast to its shape, or a count is below one.
        TypeError: for :class:`~gpzoo.EstimatedMarginals` without ``c``.
    """

    pytree_data_fields = ("c",)
    pytree_aux_fields = ("num_predictive_draws",)
    quadratic = True

    def __init__(
        self,
        f: ArrayLike | GaussianMarginals,
        c: ArrayLike | None = None,
        *,
        num_predictive_draws: int = 100,
        missing: str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.set_counts(num_predictive_draws=num_predictive_draws)
        super().__init__(f, missing=missing, validate_args=validate_args)
        self.c = _checked_c(type(self).__name__, self.f, c)

    @property
    def num_classes(self) -> int:
        """``K``."""
        return self.f.shape[1] + 1

    def marginal_expectation(self) -> str:
        """The way in which :meth:`log_prob` integrates."""
        return "closed form"

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Float[Array, "*S N"]:
        """See :meth:`Likelihood.log_prob <gpzoo.likelihoods.Likelihood.log_prob>`; for marginals, a lower bound."""
        labels, good = self.labels(value, self.num_classes)
        sticks = jnp.arange(self.num_classes - 1, dtype=jnp.int32)
        sign = jnp.where(sticks == labels[..., None], 1, -1).astype(self.f.dtype)
        terms = _bound(sign, self.f, self.c) if self.is_marginal else jax.nn.log_sigmoid(sign * self.f)
        terms = jnp.where(sticks <= labels[..., None], terms, 0)
        return self.counted(terms.sum(-1), value, good)

    def log_given(self, f: Float[Array, "*S N _"]) -> Float[Array, "*S N K"]:
        """See :meth:`TabledClasses.log_given`."""
        return _of_sticks(jax.nn.log_sigmoid(f), jax.nn.log_sigmoid(-f))

    def log_probs(self) -> Float[Array, "N K"]:
        """See :meth:`TabledClasses.log_probs`; by quadrature if the functions are independent."""
        self.refuse_estimates()
        if not self.is_marginal or not self.f.independent:
            return super().log_probs()
        return _of_sticks(*log_mean_of_link(jax.nn.log_sigmoid, self.f.mean, self.f.variance))

    def sample_given(self, key: PRNGKeyArray, f: Float[Array, "S N _"]) -> Int32[Array, "S N"]:
        """Draws of ``y`` for ``f``; see :meth:`Likelihood.sample_given`."""
        return random.categorical(key, self.log_given(f)).astype(jnp.int32)


def _of_sticks(taken: Float[Array, "*batch K"], left: Float[Array, "*batch K"]) -> Float[Array, "*batch K+1"]:
    """Log probabilities of ``K + 1`` classes, from log probabilities of yes (``taken``) and no (``left``)."""
    none = jnp.zeros_like(taken[..., :1])
    return jnp.concatenate([taken, none], axis=-1) + jnp.concatenate([none, jnp.cumsum(left, axis=-1)], axis=-1)
