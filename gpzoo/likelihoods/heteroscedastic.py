"""Gaussian noise whose variance depends on the input: a second latent function is the logarithm of this variance."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, random
from jaxtyping import Float, PRNGKeyArray
from numpyro.distributions import constraints

from gpzoo import _checks as checks
from gpzoo._types import ArrayLike
from gpzoo.likelihoods.base import Likelihood, dependent_property
from gpzoo.likelihoods.quadrature import log_expectation, normal_log_density
from gpzoo.linalg.operators import LOG_2PI
from gpzoo.processes.marginals import GaussianMarginals, standard_deviation


class HeteroscedasticGaussian(Likelihood):
    """The Gaussian likelihood whose noise variance depends on the input: ``p(y | f, g) = N(y | f, exp(g))``.

    The argument has two columns. The first is the function ``f``, and the second is ``g``, the logarithm of the noise
    variance. The expectation has a closed form, with ``E[exp(-g)] = exp(-E[g] + Var[g] / 2)`` (Lázaro-Gredilla and
    Titsias 2011, *Variational heteroscedastic Gaussian process regression*, eq. 8). Quadrature over ``g`` computes
    predictive densities.

    Example:
        >>> import numpy as np
        >>> from gpzoo.likelihoods import HeteroscedasticGaussian
        >>> y = HeteroscedasticGaussian(np.array([[1.0, 0.0], [1.0, 2.0]], np.float32))
        >>> y.mean, y.variance.round(2)
        (Array([1., 1.], dtype=float32), Array([1.  , 7.39], dtype=float32))

    Args:
        f: ``[N, 2]``, the function and the logarithm of the noise variance; array or marginals.
        missing: ``"mask"``: entries of ``y`` that are NaN were not observed and have no term.
        validate_args: as in NumPyro.

    Raises:
        ValueError: if ``f`` does not have two columns, or if the columns of marginals are correlated.
    """

    @property
    def light_tails(self) -> bool:
        """See :attr:`~gpzoo.likelihoods.answers.Answers.light_tails`."""
        return True

    def __init__(
        self,
        f: ArrayLike | GaussianMarginals,
        *,
        missing: str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        f = self._latent(f, (2,))
        checks.refuse(
            f.shape[1] != 2,
            f"HeteroscedasticGaussian takes f of shape [N, 2], the function and the logarithm of the noise "
            f"variance; got {tuple(f.shape)}: sample both at one site, GaussianProcess(..., num_outputs=2).",
        )
        checks.refuse(
            isinstance(f, GaussianMarginals) and not f.independent,
            "HeteroscedasticGaussian takes a function and a noise that are independent; these columns are mixtures "
            "of the same sources, or outputs with one q, which InducingGuide(coupled=False) leaves apart.",
        )
        super().__init__(f, missing=missing, validate_args=validate_args)

    @dependent_property(is_discrete=False)
    def support(self) -> constraints.Constraint:
        """All real ``y``."""
        return constraints.real

    def marginal_expectation(self) -> str:
        """The way in which :meth:`log_prob` integrates."""
        return "closed form"

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Float[Array, "*S N"]:
        """See :meth:`Likelihood.log_prob <gpzoo.likelihoods.Likelihood.log_prob>`."""
        centre = self._centre()
        square, log_precision = jnp.square(self._cast(value) - centre[:, 0]), -centre[:, 1]
        if self.is_marginal:
            square, log_precision = square + self.f.variance[:, 0], log_precision + self.f.variance[:, 1] / 2
        return self.counted(-0.5 * (LOG_2PI + centre[:, 1] + square * jnp.exp(log_precision)), value)

    def predictive_log_prob(self, value: ArrayLike) -> Float[Array, "*S N"]:
        """See :meth:`Likelihood.predictive_log_prob <gpzoo.likelihoods.Likelihood.predictive_log_prob>`."""
        if not self.is_marginal:
            return self.log_prob(value)
        self.refuse_estimates()
        mean, variance = self.f.mean, self.f.variance
        square, scale = jnp.square(self._cast(value) - mean[:, 0]), standard_deviation(variance[:, 1])

        def log_density(z: Float[Array, "*S N"]) -> Float[Array, "*S N"]:
            return normal_log_density(square, variance[:, 0] + jnp.exp(mean[:, 1] + scale * z))

        return self.counted(log_expectation(log_density, square.shape, mean.dtype), value)

    def _cast(self, value: ArrayLike) -> Float[Array, "..."]:
        return self.checked(value).astype(self.f.dtype)

    @property
    def mean(self) -> Float[Array, " N"]:
        """``E[y]``."""
        return self._centre()[:, 0]

    @property
    def variance(self) -> Float[Array, " N"]:
        """``Var[y]``: the mean of the noise variance, plus ``Var[f]`` if ``f`` is marginals."""
        self.refuse_estimates()
        log_noise = self._centre()[:, 1]
        if not self.is_marginal:
            return jnp.exp(log_noise)
        return self.f.variance[:, 0] + jnp.exp(log_noise + self.f.variance[:, 1] / 2)

    def sample_given(self, key: PRNGKeyArray, f: Float[Array, "S N 2"]) -> Float[Array, "S N"]:
        """Draws of ``y`` for ``f``; see :meth:`Likelihood.sample_given`."""
        return f[..., 0] + jnp.exp(f[..., 1] / 2) * random.normal(key, f.shape[:-1], f.dtype)
