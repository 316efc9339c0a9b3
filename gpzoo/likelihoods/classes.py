"""The base class of likelihoods of class labels."""

from __future__ import annotations

import numpy as np
from jax import Array
from jaxtyping import Float
from numpyro.distributions import constraints

from gpzoo._types import ArrayLike
from gpzoo.likelihoods.base import Likelihood, check_labels, dependent_property
from gpzoo.processes.marginals import GaussianMarginals


class ClassLikelihood(Likelihood):
    """Likelihoods of one class label per datum, ``y`` in ``0..K-1``, from ``K`` latent functions.

    ``mean`` and ``variance`` raise ``NotImplementedError``, because labels are not numbers: use ``probs``.
    """

    column_axis = "class"

    def __init__(
        self, f: ArrayLike | GaussianMarginals, *, missing: str | None = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(f, ndims=(2,), missing=missing, validate_args=validate_args)
        if self.num_classes < 2:
            raise ValueError(
                f"{type(self).__name__} needs one latent function per class, at least two; f has shape "
                f"{tuple(self.f.shape)}. For two classes and one latent function use Bernoulli(f[:, 0])."
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
        """Probability of every class; predictive under marginals."""
        raise NotImplementedError(f"{type(self).__name__} does not define probs, of shape [N, K].")

    @property
    def mean(self) -> Array:
        """Not defined.

        Raises:
            NotImplementedError: always; ``probs`` is what predicts a label.
        """
        raise NotImplementedError(f"{type(self).__name__}: class labels have no mean; use probs, of shape [N, K].")

    @property
    def variance(self) -> Array:
        """Not defined.

        Raises:
            NotImplementedError: always; ``probs`` is what predicts a label.
        """
        raise NotImplementedError(f"{type(self).__name__}: class labels have no variance; use probs, of shape [N, K].")
