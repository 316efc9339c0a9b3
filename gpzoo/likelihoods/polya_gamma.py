"""Logistic labels by Pólya-Gamma augmentation: a bound that is quadratic in ``f``, for two classes and for more."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, random

from gpzoo import _checks as checks
from gpzoo._checks import positive_int
from gpzoo.likelihoods.base import as_labels
from gpzoo.likelihoods.bernoulli import Bernoulli
from gpzoo.likelihoods.quadrature import gauss_hermite, log_mean_exp, log_weighted_mean, spread
from gpzoo.likelihoods.softmax import ClassLikelihood
from gpzoo.marginals import EstimatedMarginals, GaussianMarginals

_LOG_2 = 0.6931471805599453


class PolyaGamma(Bernoulli):
    """``p(y = 1 | f) = 1 / (1 + exp(-f))``, labels 0 and 1, by the Pólya-Gamma bound (learning invariances, eq. 22-23).

    With marginals ``log_prob`` is the bound on the expected log density, where ``s`` is 1 or -1 for ``y`` 1 or 0 and
    ``q(omega) = PG(1, c)``,

    ``-log 2 + s E[f] / 2 - E[omega] E[f^2] / 2 - KL[PG(1, c) || PG(1, 0)]``, ``E[omega] = tanh(c / 2) / (2 c)``,

    which is quadratic in ``f`` and so takes estimated moments too. The best ``c``, ``c^2 = E[f^2]``, makes it the bound
    of Jaakkola and Jordan. Everything else is the logistic likelihood itself: an array ``f`` has its exact log density,
    and predictions integrate it by quadrature.

    Args:
        f: ``[N]``, or ``[N, D]`` for ``D`` labels per datum; array or marginals.
        c: of ``q(omega)``, any real numbers that broadcast to the shape of ``f``, such as a recognition network's of
            ``(x, y)``; ``None`` for the best ones. Only the bound needs it.
        num_points: of the quadrature.
        num_predictive_draws: joint draws for ``predictive_log_prob`` of ``D`` correlated labels (nothing else draws).
        validate_args: as in NumPyro.

    Raises:
        ValueError: if ``c`` does not broadcast to the shape of ``f``, or a count is below one.
        TypeError: for estimated moments without ``c``: the best one is not linear in them, and would give no bound.
    """

    pytree_data_fields = ("c",)
    quadratic = True

    def __init__(
        self,
        f: Array | GaussianMarginals,
        c: Array | None = None,
        *,
        num_points: int = 20,
        num_predictive_draws: int = 100,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(
            f,
            "logit",
            num_points=num_points,
            num_predictive_draws=num_predictive_draws,
            validate_args=validate_args,
        )
        self.c = _checked_c(type(self).__name__, self.f, c)

    def _expectation(self) -> str:
        return "closed form"

    def log_prob(self, value: Array, intermediates: Any = None) -> Array:
        """See :meth:`Likelihood.log_prob <gpzoo.likelihoods.Likelihood.log_prob>`; for marginals a bound of it."""
        if not self.is_marginal:
            return super().log_prob(value)
        sign, good = self._signed(value)
        return self._finish(_bound(sign, self.f, self.c), good)


class StickBreaking(ClassLikelihood):
    """Classes by stick breaking, ``p(y = k | f) = sigma(f_k) prod_{j < k} sigma(-f_j)`` (Linderman et al. 2015).

    The multi-class form that learning invariances, section 4.5, conjectures: ``K - 1`` binary decisions, "is it class
    ``k``, given that it is none before", each with the bound of :class:`PolyaGamma`. The last class is what is left.
    The order of the classes is part of the model.

    Args:
        f: ``[N, K - 1]``, array or marginals.
        c: as for :class:`PolyaGamma`, broadcasting to the shape of ``f``; ``None`` for the best ones.
        num_points: of the quadrature of predictive probabilities.
        num_predictive_draws: joint draws for those where the outputs are correlated.
        validate_args: as in NumPyro.

    Raises:
        ValueError: if ``f`` is not ``[N, K - 1]``, ``c`` does not broadcast to its shape, or a count is below one.
        TypeError: for estimated moments without ``c``.
    """

    pytree_data_fields = ("c",)
    pytree_aux_fields = ("num_points", "num_predictive_draws")
    quadratic = True

    def __init__(
        self,
        f: Array | GaussianMarginals,
        c: Array | None = None,
        *,
        num_points: int = 20,
        num_predictive_draws: int = 100,
        validate_args: bool | None = None,
    ) -> None:
        self.num_points = positive_int("num_points", num_points)
        self.num_predictive_draws = positive_int("num_predictive_draws", num_predictive_draws)
        super().__init__(f, validate_args=validate_args)
        self.c = _checked_c(type(self).__name__, self.f, c)

    @property
    def num_classes(self) -> int:
        """``K``."""
        return self.f.shape[1] + 1

    def _expectation(self) -> str:
        return "closed form"

    def log_prob(self, value: Array, intermediates: Any = None) -> Array:
        """See :meth:`Likelihood.log_prob <gpzoo.likelihoods.Likelihood.log_prob>`; for marginals a bound of it."""
        labels, good = as_labels(self._checked(value), self.num_classes)
        sticks = jnp.arange(self.num_classes - 1, dtype=jnp.int32)
        sign = jnp.where(sticks == labels[..., None], 1, -1).astype(self.f.dtype)
        terms = _bound(sign, self.f, self.c) if self.is_marginal else jax.nn.log_sigmoid(sign * self.f)
        terms = jnp.where(sticks <= labels[..., None], terms, 0)
        return jnp.where(good, terms.sum(-1), jnp.nan)

    def _log_probs(self) -> Array:
        """Log probabilities of the classes, ``[N, K]``; predictive under marginals."""
        self._predictable()
        if not self.is_marginal:
            return _of_sticks(jax.nn.log_sigmoid(self.f), jax.nn.log_sigmoid(-self.f))
        if not self.f.independent:
            f = self.f.draws(self.num_predictive_draws)
            return log_mean_exp(_of_sticks(jax.nn.log_sigmoid(f), jax.nn.log_sigmoid(-f)))
        nodes, weights = gauss_hermite(self.num_points, self.f.dtype)
        at_nodes = spread(nodes, self.f.mean, self.f.variance)
        taken, left = (log_weighted_mean(weights, jax.nn.log_sigmoid(s * at_nodes)) for s in (1, -1))
        return _of_sticks(taken, left)

    def predictive_log_prob(self, value: Array) -> Array:
        """See :meth:`Likelihood.predictive_log_prob <gpzoo.likelihoods.Likelihood.predictive_log_prob>`."""
        labels, good = as_labels(self._checked(value), self.num_classes)
        table = self._log_probs()
        table = jnp.broadcast_to(table, labels.shape + table.shape[-1:])
        return jnp.where(good, jnp.take_along_axis(table, labels[..., None], axis=-1)[..., 0], jnp.nan)

    @property
    def probs(self) -> Array:
        """Probability of every class, ``[N, K]``; predictive under marginals."""
        return jnp.exp(self._log_probs())

    def _sample_given(self, key: Array, f: Array) -> Array:
        logits = _of_sticks(jax.nn.log_sigmoid(f), jax.nn.log_sigmoid(-f))
        return random.categorical(key, logits).astype(jnp.int32)


def _checked_c(name: str, f: Array | GaussianMarginals, c: Array | None) -> Array | None:
    if c is None:
        if isinstance(f, EstimatedMarginals):
            raise TypeError(
                f"{name} needs c where moments are estimates (site(s) {', '.join(sorted(f.sites))} sample views of "
                "their inputs): the best c is not linear in them, so that there would be no bound. Take it from a "
                "recognition network of (x, y), such as gpzoo.models.recognition."
            )
        return None
    c = checks.floating("c", c)
    try:
        fits = jnp.broadcast_shapes(c.shape, f.shape) == tuple(f.shape)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"c has shape {c.shape}, which does not broadcast to the shape {tuple(f.shape)} of f.")
    return c.astype(f.dtype)


def _bound(sign: Array, f: GaussianMarginals, c: Array | None) -> Array:
    """The bound on ``E[log sigma(sign f)]``, the shape of ``sign``."""
    square = jnp.square(f.mean) + f.variance
    if c is None:
        # At the optimum the bound does not change with c.
        c = jax.lax.stop_gradient(jnp.sqrt(jnp.maximum(square, 0)))
    half = jnp.abs(c) / 2
    ratio = _tanh_ratio(half)
    log_cosh = half + jnp.log1p(jnp.exp(-2 * half)) - _LOG_2
    divergence = log_cosh - jnp.square(half) * ratio / 2
    return sign * f.mean / 2 - ratio * square / 8 - _LOG_2 - divergence


def _tanh_ratio(x: Array) -> Array:
    """``tanh(x) / x``, which is 1 at 0, with the derivatives of that."""
    small = jnp.abs(x) < 0.05
    safe = jnp.where(small, 1, x)
    square = jnp.square(x)
    series = 1 + square * (-1 / 3 + square * (2 / 15 - square * (17 / 315 - square * (62 / 2835))))
    return jnp.where(small, series, jnp.tanh(safe) / safe)


def _of_sticks(taken: Array, left: Array) -> Array:
    """Log probabilities of ``K`` classes from those that ``K - 1`` pieces are taken, and left, ``[..., N, K - 1]``."""
    none = jnp.zeros_like(taken[..., :1])
    return jnp.concatenate([taken, none], axis=-1) + jnp.concatenate([none, jnp.cumsum(left, axis=-1)], axis=-1)
