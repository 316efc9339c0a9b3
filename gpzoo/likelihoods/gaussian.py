"""Data with Gaussian noise, for which every expectation has a closed form."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array, random
from jax.scipy.linalg import solve_triangular
from jaxtyping import Bool, Float, PRNGKeyArray
from numpyro.distributions import constraints

from gpzoo import _checks as checks
from gpzoo._types import ArrayLike
from gpzoo.likelihoods.base import Likelihood, dependent_property
from gpzoo.likelihoods.quadrature import normal_log_density
from gpzoo.linalg.operators import LOG_2PI, matmul
from gpzoo.processes.marginals import GaussianMarginals


class Gaussian(Likelihood):
    """The Gaussian likelihood, ``y = f + noise``; the expectation of its log density has a closed form.

    ``E_q[log p(y | f)] = log N(y | E[f], s) - Var[f] / (2 s)``, summed over outputs (Titsias 2009).

    ``GaussianProcessELBO(tight=True)`` uses a tighter form of this expectation. Let the outputs be weighted sums of
    independent functions, the sources: output ``k`` is ``sum_j loading_jk g_j``. Without a loading, the outputs
    themselves are the sources. The residual variance ``d_nj`` is the variance of source ``j`` at row ``n`` given the
    inducing variables ``u``. With ``beta_nj = sum_k loading_jk^2 / s_nk``, the residual variance enters as
    ``-log(1 + beta_nj d_nj) / 2`` in place of ``-beta_nj d_nj / 2``. Titsias (2025, *New bounds for sparse variational
    Gaussian processes*, arXiv 2502.08730) treats the case of one source and one ``s``.

    The derivation is as follows. Given ``u``, a source has the prior covariance ``R``, with ``d`` on its diagonal. In
    ``q``, replace ``R`` by a new covariance ``C``, and keep all sources independent. Compare the new bound with the
    bound for sources at their means. The log density is quadratic, so the new bound is lower by ``KL[N(0, C) || N(0,
    R)] + sum_n beta_n C_nn / 2``. Let ``B = diag(beta)`` and ``T = B^1/2 R B^1/2``, and set ``C = B^-1/2 T^1/2 V T^1/2
    B^-1/2`` for a diagonal ``V`` with the entries ``v_n``. The KL divergence is then ``sum_n (v_n - 1 - log v_n) / 2``,
    and ``sum_n beta_n C_nn = tr(V T) = sum_n v_n beta_n d_n``. The total ``sum_n (v_n beta_n d_n + v_n - 1 - log v_n) /
    2`` is least at ``v_n = 1 / (1 + beta_n d_n)``.

    Example:
        >>> import numpy as np
        >>> from gpzoo.likelihoods import Gaussian
        >>> Gaussian(np.zeros(2, np.float32), 1.0).log_prob(np.array([0.0, 1.0], np.float32)).round(3)
        Array([-0.919, -1.419], dtype=float32)

    Args:
        f: ``[N]`` or ``[N, D]``, array or marginals.
        noise_variance: noise variance ``s``, in squared units of ``y``: a number, ``[D]`` for one per output, or any
            shape that broadcasts to the shape of ``f``. If ``f`` is ``[N]``, an array ``[N]`` has one noise variance
            for each row.
        missing: ``"mask"``: entries of ``y`` that are NaN were not observed and have no term.
        validate_args: as in NumPyro.

    Raises:
        ValueError: if ``noise_variance`` does not broadcast to the shape of ``f``, or is not positive and finite
            (checked only outside ``jit``).
    """

    arg_constraints: ClassVar[dict[str, Any]] = {"f": constraints.dependent, "noise_variance": constraints.positive}

    quadratic = True
    takes_residual = True
    by_entry = own_columns = True

    def __init__(
        self,
        f: Array | GaussianMarginals,
        noise_variance: Array | float,
        *,
        missing: str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        f = self._latent(f)
        shape = tuple(f.shape)
        noise = checks.positive("noise_variance", noise_variance)
        hint = ": give one number, or one per output (one per value of a discrete site: dist.Normal(draws(f), ...))"
        checks.broadcasts("noise_variance", noise, shape, "the shape of f,", hint)
        self.noise_variance = noise.astype(f.dtype)
        super().__init__(f, shape[1:], missing=missing, validate_args=validate_args)

    @dependent_property(is_discrete=False)
    def support(self) -> constraints.Constraint:
        """All real ``y``."""
        return constraints.independent(constraints.real, self.event_dim)

    def marginal_expectation(self) -> str:
        """The way in which :meth:`log_prob` integrates."""
        return "closed form"

    @property
    def noise(self) -> Float[Array, "..."]:
        """The noise variance."""
        return self.noise_variance

    def _residual(self, value: ArrayLike) -> Float[Array, "..."]:
        return self.checked(value).astype(self.f.dtype) - self._centre()

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Float[Array, "*S N"]:
        """See :meth:`Likelihood.log_prob <gpzoo.likelihoods.Likelihood.log_prob>`."""
        square = jnp.square(self._residual(value))
        if self.is_marginal and not self.f.parts:
            square = square + self.f.variance
        terms = normal_log_density(square, self.noise_variance)
        spread = self._spread(self.seen(value)) if self.is_marginal and self.f.parts else 0
        return self.counted(terms, value) - spread

    def _spread(self, seen: Bool[Array, "..."] | None) -> Float[Array, "*S N"]:
        """The amount by which the variances of the sources lower the bound; each residual has its best factor."""
        precision = jnp.broadcast_to(1 / self.noise_variance, self.f.shape)
        precision = precision if seen is None else jnp.where(seen, precision, 0)
        precision = precision if self.event_dim else precision[..., None]
        total = jnp.zeros(precision.shape[:-1], self.f.dtype)
        for part in self.f.parts:
            beta = precision if part.loading is None else matmul(precision, jnp.square(part.loading).T)
            terms = beta * part.inducing
            if part.residual is not None:
                terms = terms + jnp.log1p(beta * part.residual)
            total = total + terms.sum(-1) / 2
        return total

    def predictive_log_prob(self, value: ArrayLike) -> Float[Array, "*S N"]:
        """See :meth:`Likelihood.predictive_log_prob <gpzoo.likelihoods.Likelihood.predictive_log_prob>`.

        Correlated outputs have one joint density per row: ``N(y_n | E[f_n], Cov[f_n] + s I)``.
        """
        self.refuse_estimates()
        residual = self._residual(value)
        if not self.is_marginal or self.f.independent:
            return self.counted(normal_log_density(jnp.square(residual), self.variance), value)
        noise, eye = jnp.broadcast_to(self.noise_variance, self.f.shape), jnp.eye(self.f.shape[1], dtype=self.f.dtype)
        covariance = self.f.covariance + noise[..., None] * eye
        seen = self.seen(value)
        if seen is not None:  # an output that was not observed becomes independent, with the residual 0
            covariance = jnp.where(seen[..., None] & seen[..., None, :], covariance, eye)
            residual = jnp.where(seen, residual, 0)
        L = jnp.linalg.cholesky(covariance)
        L = jnp.broadcast_to(L, residual.shape[:-1] + L.shape[-2:])
        scaled = solve_triangular(L, residual[..., None], lower=True)[..., 0]
        log_diagonal = jnp.log(jnp.diagonal(L, axis1=-2, axis2=-1))
        return self.counted(-0.5 * (jnp.square(scaled) + LOG_2PI) - log_diagonal, value)

    @property
    def mean(self) -> Float[Array, "N *D"]:
        """``E[y]``."""
        return self._centre()

    @property
    def variance(self) -> Float[Array, "N *D"]:
        """``Var[y]`` of every output: the noise variance, plus ``Var[f]`` if ``f`` is marginals."""
        self.refuse_estimates()
        noise = jnp.broadcast_to(self.noise_variance, self.f.shape)
        return noise + self.f.variance if self.is_marginal else noise

    def sample_given(self, key: PRNGKeyArray, f: Float[Array, "S N *D"]) -> Float[Array, "S N *D"]:
        """Draws of ``y`` for ``f``; see :meth:`Likelihood.sample_given`."""
        return f + jnp.sqrt(self.noise_variance) * random.normal(key, f.shape, f.dtype)
