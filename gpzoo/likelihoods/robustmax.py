"""Class labels that name the largest latent function, except for mislabelled rows."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.scipy.special import ndtr
from jaxtyping import Bool, Float, Int32, Integer, PRNGKeyArray
from numpyro.distributions import constraints

from gpzoo import _checks as checks
from gpzoo._types import ArrayLike
from gpzoo.likelihoods.classes import ClassLikelihood
from gpzoo.likelihoods.quadrature import normal_points, weighted_sum
from gpzoo.processes.marginals import GaussianMarginals, standard_deviation, through

# A standard normal is outside these bounds with probability 4e-33. This is negligible compared with the probabilities
# that are added here, but large enough for a finite logarithm and gradient in float32.
_BOUND = 12.0


class RobustMax(ClassLikelihood):
    """The robust-max likelihood of class labels: the label names the largest latent function, except for mislabelling.

    ``p(y | f) = 1 - epsilon`` if ``f_y`` is the largest of the ``K`` latent functions, else ``epsilon / (K - 1)``. All
    expectations follow from ``p_y``, the probability that ``f_y`` is the largest (Hernández-Lobato et al. 2011). The
    probability is ``p_y = E_{f_y}[prod_{k != y} Phi((f_y - E[f_k]) / sd[f_k])]``, which Gauss-Hermite quadrature
    computes. Then ``E_q[log p(y | f)] = p_y log(1 - epsilon) + (1 - p_y) log(epsilon / (K - 1))``.

    If the latent functions are correlated, for example after ``f @ A``, this formula for ``p_y`` does not hold. gpzoo
    then estimates ``p_y`` by draws. For each row and label, gpzoo chooses the direction of the random numbers along
    which ``f_y`` rises most above the mean of the latent functions. Along this direction, ``f_y`` is the largest on an
    interval. So gpzoo integrates over this direction exactly, and draws random numbers only for the other directions.
    The estimate and its gradient are unbiased. (A plain count of draws would have a zero gradient, which is biased.)

    With an array ``f``, the density is piecewise constant, so its gradient with respect to ``f`` is zero.

    Example:
        >>> import numpy as np
        >>> from gpzoo.likelihoods import RobustMax
        >>> RobustMax(np.array([[3.0, 0.0, -1.0]], np.float32), epsilon=0.1).probs.round(2)
        Array([[0.9 , 0.05, 0.05]], dtype=float32)

    Args:
        f: ``[N, K]``, array or marginals. If outputs are correlated, the marginals need a random key.
        epsilon: probability that a label does not name the largest latent function, in (0, 1).
        squash: replaces each ``Phi`` by ``squash + (1 - 2 squash) Phi``, for independent outputs only. gpzoo does not
            need ``squash``. The code of van der Wilk et al. (2017) uses 1e-4, and GPflow 2 uses 1e-6.
        num_points: number of points of the Gauss-Hermite rule. With 20 points, ``p_y`` may be off by 0.05 if
            ``sd[f_y]`` is 5 times the other standard deviations, and by 0.1 if it is 30 times these. With 200 points,
            these errors are 0.001 and 0.03.
        num_draws: draws per row, in ``log_prob`` with correlated outputs.
        num_predictive_draws: draws per row, in ``probs`` and ``predictive_log_prob`` with correlated outputs.
        missing: ``"mask"``: entries of ``y`` that are NaN were not observed and have no term.
        validate_args: as in NumPyro.

    Raises:
        ValueError: if ``f`` is not ``[N, K]`` with at least two classes, or an argument is out of range.
    """

    smooth = False
    arg_constraints: ClassVar[dict[str, Any]] = {"f": constraints.dependent, "epsilon": constraints.unit_interval}
    pytree_aux_fields = ("squash", "num_points", "num_draws", "num_predictive_draws")

    def __init__(
        self,
        f: ArrayLike | GaussianMarginals,
        epsilon: Array | float = 1e-3,
        *,
        squash: float = 0.0,
        num_points: int = 20,
        num_draws: int = 10,
        num_predictive_draws: int = 100,
        missing: str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.squash = checks.fraction("squash", squash)
        self.set_counts(num_points=num_points, num_draws=num_draws, num_predictive_draws=num_predictive_draws)
        epsilon = checks.floating("epsilon", epsilon)
        checks.must(not epsilon.ndim, "epsilon", "be one number", f"shape {epsilon.shape}")
        if checks.is_concrete(epsilon):
            number = float(np.asarray(epsilon))
            checks.must(0 < number < 1, "epsilon", "be between 0 and 1", str(number))
        f = self._latent(f, (2,))
        self.epsilon = epsilon.astype(f.dtype)
        super().__init__(f, missing=missing, validate_args=validate_args)

    def marginal_expectation(self) -> str:
        """The way in which :meth:`log_prob` integrates."""
        return "quadrature" if self.f.independent else "draw"

    # -- the probability that the label's latent is the largest ------------------------------------------------------

    def _largest(self, labels: Integer[Array, "*S N"], num_draws: int) -> Float[Array, "*S N"]:
        """``p_y`` of labels."""
        if not self.is_marginal:
            return (jnp.argmax(self.f, axis=-1).astype(labels.dtype) == labels).astype(self.f.dtype)
        if self.f.independent:
            return self._largest_by_quadrature(labels)
        return self._largest_by_draws(labels, num_draws)

    def _largest_by_quadrature(self, labels: Integer[Array, "*S N"]) -> Float[Array, "*S N"]:
        own = _one_hot(labels, self.num_classes)
        mean, variance = jnp.broadcast_arrays(self.f.mean, self.f.variance)
        mean, variance = (jnp.broadcast_to(m, own.shape) for m in (mean, variance))
        f_y, weights = normal_points(self.num_points, _pick(mean, labels), _pick(variance, labels))
        z = jnp.clip((f_y[..., None] - mean) / standard_deviation(variance), -_BOUND, _BOUND)
        log_cdf = jnp.log(self.squash + (1 - 2 * self.squash) * ndtr(z))
        return weighted_sum(weights, jnp.exp(jnp.where(own, 0.0, log_cdf).sum(-1)))

    def _largest_by_draws(self, labels: Integer[Array, "*S N"], num_draws: int) -> Float[Array, "*S N"]:
        f, K = self.f, self.num_classes
        own = _one_hot(labels, K)
        variance, loading = f.sources()
        scale = standard_deviation(variance)
        noise = jnp.reshape(f.noise(num_draws), (num_draws,) + (1,) * (labels.ndim - 1) + scale.shape)
        # The direction is not differentiated, because the estimate is unbiased for every direction.
        direction = scale * (through(loading.mT, own.astype(f.dtype)) - loading.mean(-1))
        norm = jnp.linalg.norm(direction, axis=-1, keepdims=True)
        direction = lax.stop_gradient(direction / jnp.where(norm > 0, norm, 1.0))
        along = (noise * direction).sum(-1, keepdims=True)
        rest = f.mean + through(loading, scale * (noise - along * direction))
        slope = through(loading, scale * direction)
        # f_y - f_k = gap + step * t with t ~ N(0, 1): positive above (step > 0) or below (step < 0) -gap / step.
        gap = _pick(rest, jnp.broadcast_to(labels, rest.shape[:-1]))[..., None] - rest
        step = _pick(slope, labels)[..., None] - slope
        rising, smallest = step >= 0, jnp.finfo(f.dtype).eps ** 2
        step = jnp.where(rising, jnp.maximum(step, smallest), jnp.minimum(step, -smallest))
        root = jnp.clip(-gap / step, -_BOUND, _BOUND)
        lower = jnp.where(rising & ~own, root, -_BOUND).max(-1)
        upper = jnp.where(rising | own, _BOUND, root).min(-1)
        return jnp.maximum(ndtr(upper) - ndtr(lower), 0).mean(0)

    # -- densities, probabilities and draws --------------------------------------------------------------------------

    def _log_probabilities(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """``log p(y | f)`` if ``f_y`` is the largest, and ``log p(y | f)`` if it is not."""
        return jnp.log1p(-self.epsilon), jnp.log(self.epsilon / (self.num_classes - 1))

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Float[Array, "*S N"]:
        """See :meth:`Likelihood.log_prob <gpzoo.likelihoods.Likelihood.log_prob>`."""
        labels, good = self.labels(value, self.num_classes)
        p = self._largest(labels, self.num_draws)
        right, wrong = self._log_probabilities()
        return self.counted(p * right + (1 - p) * wrong, value, good)

    def predictive_log_prob(self, value: ArrayLike) -> Float[Array, "*S N"]:
        """See :meth:`Likelihood.predictive_log_prob <gpzoo.likelihoods.Likelihood.predictive_log_prob>`."""
        labels, good = self.labels(value, self.num_classes)
        p = self._largest(labels, self.num_predictive_draws)
        return self.counted(jnp.log(self._mislabelled(p)), value, good)

    def _mislabelled(self, p: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return p * (1 - self.epsilon) + (1 - p) * self.epsilon / (self.num_classes - 1)

    @property
    def probs(self) -> Float[Array, "N K"]:
        """Probability of every class. If ``f`` is marginals, it is the predictive probability.

        Each class has its own quadrature or estimate, so the probabilities of a row sum to one only approximately.
        """

        def one(k: Array) -> Array:
            return self._largest(jnp.full(self.batch_shape, k), self.num_predictive_draws)

        # One class at a time, because all classes together would need an array [points, N, K, K].
        p = lax.map(one, jnp.arange(self.num_classes, dtype=jnp.int32))
        return self._mislabelled(p.T)

    def sample_given(self, key: PRNGKeyArray, f: Float[Array, "S N K"]) -> Int32[Array, "S N"]:
        """Draws of ``y`` for ``f``; see :meth:`Likelihood.sample_given`."""
        key_wrong, key_other = random.split(key)
        best = jnp.argmax(f, axis=-1).astype(jnp.int32)
        wrong = random.bernoulli(key_wrong, self.epsilon, best.shape)
        other = (best + random.randint(key_other, best.shape, 1, self.num_classes, jnp.int32)) % self.num_classes
        return jnp.where(wrong, other, best)


def _one_hot(labels: Integer[Array, "*shape"], num_classes: int) -> Bool[Array, "*shape {num_classes}"]:
    return labels[..., None] == jnp.arange(num_classes, dtype=labels.dtype)


def _pick(values: Float[Array, "*#shape K"], labels: Integer[Array, "*#shape"]) -> Float[Array, "*shape"]:
    """``values[..., labels]`` over the last axis."""
    return jnp.take_along_axis(values, labels[..., None], axis=-1)[..., 0]
