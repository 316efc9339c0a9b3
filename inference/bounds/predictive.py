"""Predictive densities of data as an objective, in place of the bound's expected log densities."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from jax import Array
from jaxtyping import Float
from numpyro.distributions import Distribution, MaskedDistribution
from numpyro.distributions.constraints import Constraint

from gpzoo import _checks as checks
from gpzoo._numpyro import Messenger, mask_of
from gpzoo.inference.bounds.elbo import GaussianProcessELBO
from gpzoo.inference.programs.runs import Trace
from gpzoo.likelihoods import Likelihood
from gpzoo.likelihoods.base import MaskedLikelihood
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.process import GaussianProcess


class PredictiveLogLikelihood(GaussianProcessELBO):
    """``sum_n log p(y_n | x_n) - w KL[q(u) || p(u)]``: an objective for the predictive density of rows, not a bound.

    ``p(y_n | x_n)`` is the integral of ``p(y_n | f) q(f_n)`` over ``f``. The evidence lower bound has the expectation
    of ``log p(y_n | f)`` instead. The objective is parametric predictive GP regression (Jankowiak, Pleiss and Gardner
    2020), here for any likelihood. It fits the predictive variances to the residuals; the bound would explain these
    residuals by noise. Use the objective for prediction intervals, if the noise differs between inputs or the model is
    wrong. The objective is not a bound of the evidence. Its ``q(u)`` is not a posterior, and its noise and lengthscales
    are not estimates. If the program draws a function, such as an inner layer of a deep GP, the objective takes the
    density of the data given this draw, as the bound does.

    Example:
        >>> import jax, numpy as np, optax
        >>> from numpyro.infer import SVI
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide, PredictiveLogLikelihood, fit
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 6, 50, dtype=np.float32)[:, None]
        >>> guide = InducingGuide(gp_regression, kmeans(8))
        >>> svi = SVI(gp_regression, guide, optax.adam(0.05), PredictiveLogLikelihood())
        >>> trained = fit(jax.random.key(0), svi, 20, X, np.sin(X[:, 0]), progress=False)
        >>> bool(trained.losses[-1] < trained.losses[0])
        True

    Args:
        num_particles: see :class:`GaussianProcessELBO`.
        vectorize_particles: see :class:`GaussianProcessELBO`.
        sum_sites: see :class:`GaussianProcessELBO`.
        kl_weight: weight ``w`` of the divergences of GP sites. The paper tries 1 and smaller weights.

    Raises:
        ValueError: for a weight that is not a positive number; see :class:`GaussianProcessELBO`.
    """

    trains_posterior = False  # its q(u) is for predictions
    takes_natural = False  # its slope in q(u) is not the slope of an expected log density

    def __init__(
        self,
        num_particles: int = 1,
        vectorize_particles: bool = True,
        sum_sites: bool = True,
        *,
        kl_weight: float = 1.0,
    ) -> None:
        super().__init__(num_particles, vectorize_particles, sum_sites)
        self.kl_weight = checks.positive_number("kl_weight", kl_weight)

    def data_site(self, name: str, fn: Any, record: Trace) -> Any:
        """See :meth:`GaussianProcessELBO.data_site`."""
        return _predictive(fn)

    def _estimate(self, key: Array, params: Any, model: Callable, guide: Callable, *args: Any, **kwargs: Any) -> Any:
        sides = (_Weighted(side, self.kl_weight) for side in (model, guide))
        return super()._estimate(key, params, *sides, *args, **kwargs)


class _Weighted(Messenger):
    """A program in which the divergences of GP sites have a weight."""

    def __init__(self, fn: Callable, weight: float) -> None:
        super().__init__(fn)
        self.weight = weight

    def process_message(self, msg: dict[str, Any]) -> None:
        latent = msg["type"] == "sample" and not msg["is_observed"]
        if latent and isinstance(msg["fn"], GaussianProcess | InducingPosterior):
            msg["scale"] = self.weight * (1.0 if msg["scale"] is None else msg["scale"])


class _Predictive(Distribution):
    """A likelihood whose log density is the predictive one."""

    def __init__(self, likelihood: Likelihood) -> None:
        self.likelihood = likelihood
        super().__init__(likelihood.batch_shape, likelihood.event_shape)

    @property
    def support(self) -> Constraint:
        return self.likelihood.support

    def log_prob(self, value: Any, intermediates: Any = None) -> Float[Array, "*S N"]:
        return self.likelihood.predictive_log_prob(value)


def _predictive(fn: Any) -> Any:
    if isinstance(fn, MaskedLikelihood):
        return _Predictive(fn.of_entries()) if fn.entries is not None else _predictive(fn.base_dist).mask(mask_of(fn))
    if isinstance(fn, MaskedDistribution):
        fn = copy(fn)
        fn.base_dist = _predictive(fn.base_dist)
        return fn
    return _Predictive(fn) if isinstance(fn, Likelihood) and fn.is_marginal else fn
