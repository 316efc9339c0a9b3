"""The properties that predictions, diagnoses and exports read from a data site, each with its usual value.

A likelihood overrides a property if its value differs. :class:`OfNumPyro` has the properties of a distribution of
NumPyro.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import ndtr
from jaxtyping import Bool, Float, Shaped
from numpyro.distributions import constraints

from gpzoo._types import ArrayLike


class Answers:
    """The properties of a data site and their usual values; see :class:`~gpzoo.likelihoods.Likelihood`."""

    #: Whether ``log_prob`` of marginals is quadratic in ``f``. It is then unbiased even if the moments are estimates.
    quadratic: ClassVar[bool] = False

    #: Whether each entry of ``y`` depends only on its own column of ``f``.
    own_columns: ClassVar[bool] = False

    #: Whether ``log p(y | f)`` has derivatives that an optimiser can follow.
    smooth: ClassVar[bool] = True

    #: Name of the axis of ``f``'s columns in exports: ``"class"`` if each column belongs to a class.
    column_axis: ClassVar[str] = "output"

    #: ``"mask"`` if NaN in ``y`` marks entries that were not observed.
    missing: str | None = None

    mean: Any
    variance: Any
    support: Any

    @property
    def is_marginal(self) -> bool:
        """Whether ``f`` is marginals, so that ``log_prob`` is an expectation."""
        return False

    @property
    def expectation(self) -> str:
        """How ``log_prob`` treats ``f``: ``"closed form"``, ``"quadrature"`` or ``"draw"``."""
        return "draw"

    @property
    def noise(self) -> Float[Array, "..."] | None:
        """The variance of ``y`` given ``f`` if ``y`` is normal around ``f``; otherwise ``None``.

        The noise variance broadcasts to ``y``. With a noise variance, the predictive distribution is normal with
        ``mean`` and ``variance``.
        """
        return None

    @property
    def light_tails(self) -> bool:
        """Whether ``y`` has light tails, as a normal distribution has; outliers of ``y`` then move ``f`` a lot."""
        return self.noise is not None

    @property
    def num_classes(self) -> int | None:
        """The number of classes if ``y`` is a label, with ``probs`` in place of moments; otherwise ``None``."""
        return None

    @property
    def exact(self) -> Bool[Array, " N"] | None:
        """A mask of the rows that are not censored; ``None`` if no row can be censored."""
        return None

    @property
    def kind(self) -> str:
        """The kind of ``y``: ``"binary"``, ``"classes"``, ``"integers"`` (counts) or ``"numbers"``."""
        support = self._known_support()
        while hasattr(support, "base_constraint"):
            support = support.base_constraint
        if support is constraints.boolean:
            return "binary"
        if self.num_classes is not None:
            return "classes"
        return "integers" if support.is_discrete else "numbers"

    def _known_support(self) -> Any:
        """The support, without values from a JAX trace that has ended."""
        return self.support

    def cdf(self, value: ArrayLike) -> Any:
        """The predictive distribution function at ``value``; ``None`` if it has no closed form.

        Args:
            value: ``y``, real numbers, not counts or labels.
        """
        if self.noise is None:
            return None
        mean = self.mean
        return ndtr((jnp.asarray(value).astype(mean.dtype) - mean) / jnp.sqrt(self.variance))

    def seen_rows(self, y: Any) -> Bool[Array, "*S N"] | None:
        """A mask of the rows with at least one observed entry; ``None`` if all entries were observed."""
        return None


class OfNumPyro(Answers):
    """The properties of :class:`Answers` for a distribution of NumPyro. Its ``f`` is always an array."""

    def __init__(self, fn: Any) -> None:
        self.fn: Any = fn
        self._base: Any = fn
        while isinstance(self._base, dist.Independent | dist.ExpandedDistribution):
            self._base = self._base.base_dist

    @property
    def mean(self) -> Array:
        """``E[y]``."""
        return self.fn.mean

    @property
    def variance(self) -> Array:
        """``Var[y]``."""
        return self.fn.variance

    @property
    def support(self) -> Any:
        """The values that ``y`` can have."""
        return self.fn.support

    @property
    def noise(self) -> Float[Array, "..."] | None:
        """See :attr:`Answers.noise`."""
        return jnp.square(jnp.asarray(self._base.scale)) if isinstance(self._base, dist.Normal) else None

    @property
    def light_tails(self) -> bool:
        """See :attr:`Answers.light_tails`."""
        return isinstance(self.fn, dist.Normal | dist.MultivariateNormal)

    @property
    def num_classes(self) -> int | None:
        """See :attr:`Answers.num_classes`."""
        if isinstance(self.fn, dist.CategoricalLogits):
            return jnp.shape(self.fn.logits)[-1]
        return jnp.shape(self.fn.probs)[-1] if isinstance(self.fn, dist.CategoricalProbs) else None

    @property
    def probs(self) -> Float[Array, "N K"]:
        """Probability of every class."""
        return self.fn.probs

    def predictive_log_prob(self, value: ArrayLike) -> Float[Array, "..."]:
        """The log density. It is also the predictive log density, because ``f`` is an array."""
        return self.fn.log_prob(value)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Shaped[Array, "..."]:
        """Draws of ``y``."""
        return self.fn.sample(key, sample_shape)


def as_predictive(fn: Any) -> Any:
    """The :class:`Answers` for a data site's unmasked distribution: the distribution itself if it is a likelihood."""
    return fn if isinstance(fn, Answers) else OfNumPyro(fn)
