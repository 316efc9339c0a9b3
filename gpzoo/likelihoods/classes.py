"""The base class of likelihoods of class labels."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float
from numpyro.distributions import constraints

from gpzoo import _checks as checks
from gpzoo._types import ArrayLike
from gpzoo.likelihoods.base import Likelihood, check_labels, dependent_property
from gpzoo.likelihoods.quadrature import log_mean_exp
from gpzoo.processes.marginals import GaussianMarginals


class ClassLikelihood(Likelihood):
    """The base class of likelihoods of one class label per row, ``y`` in ``0..K-1``, from ``K`` latent functions.

    ``mean`` and ``variance`` raise ``NotImplementedError``, because labels are not numbers: use ``probs``.
    """

    column_axis = "class"

    def __init__(
        self, f: ArrayLike | GaussianMarginals, *, missing: str | None = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(f, ndims=(2,), missing=missing, validate_args=validate_args)
        checks.refuse(
            self.num_classes < 2,
            f"{type(self).__name__} needs one latent function per class, at least two; f has shape "
            f"{tuple(self.f.shape)}. For two classes and one latent function use Bernoulli(f[:, 0]).",
        )

    @property
    def num_classes(self) -> int:
        """``K``."""
        return self.f.shape[1]

    @dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> constraints.Constraint:
        """Labels ``0..K-1``."""
        return constraints.integer_interval(0, self.num_classes - 1)

    def check_values(self, values: np.ndarray) -> None:
        """Refuse values outside the support."""
        check_labels(self, values, self.num_classes)

    @property
    def probs(self) -> Float[Array, "N K"]:
        """Probability of every class. If ``f`` is marginals, it is the predictive probability."""
        checks.unwritten(self, "probs, of shape [N, K]")

    @property
    def mean(self) -> Array:
        """Not defined.

        Raises:
            NotImplementedError: always; ``probs`` predicts a label.
        """
        checks.unwritten(self, "mean: class labels have none; use probs, of shape [N, K]")

    @property
    def variance(self) -> Array:
        """Not defined.

        Raises:
            NotImplementedError: always; ``probs`` predicts a label.
        """
        checks.unwritten(self, "variance: class labels have none; use probs, of shape [N, K]")


class TabledClasses(ClassLikelihood):
    """A likelihood of labels that gives the log probabilities of all classes at once."""

    def log_given(self, f: Float[Array, "*S N _"]) -> Float[Array, "*S N K"]:
        """Log probabilities of the classes given ``f``."""
        checks.unwritten(self, "log_given(f)")

    def log_probs(self) -> Float[Array, "N K"]:
        """Log probabilities of the classes. If ``f`` is marginals, they are predictive, and draws estimate them."""
        if not self.is_marginal:
            return self.log_given(self.f)
        return log_mean_exp(self.log_given(self.f.draws(self.num_predictive_draws)))

    def of_label(self, table: Float[Array, "N K"], value: ArrayLike) -> Float[Array, "*S N"]:
        """The log probability of each label, from the log probabilities of all classes (``table``)."""
        labels, good = self.labels(value, self.num_classes)
        table = jnp.broadcast_to(table, labels.shape + table.shape[-1:])
        return self.counted(jnp.take_along_axis(table, labels[..., None], axis=-1)[..., 0], value, good)

    def predictive_log_prob(self, value: ArrayLike) -> Float[Array, "*S N"]:
        """See :meth:`Likelihood.predictive_log_prob <gpzoo.likelihoods.Likelihood.predictive_log_prob>`."""
        return self.of_label(self.log_probs(), value)

    @property
    def probs(self) -> Float[Array, "N K"]:
        """Probability of every class. If ``f`` is marginals, it is the predictive probability."""
        return jnp.exp(self.log_probs())
