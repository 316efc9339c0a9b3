"""Any NumPyro distribution as a likelihood."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jaxtyping import Float, PRNGKeyArray, Shaped
from numpyro.distributions import CategoricalLogits, CategoricalProbs, Distribution, Independent, constraints

from gpzoo import _checks as checks
from gpzoo._types import ArrayLike
from gpzoo.likelihoods.base import Likelihood, check_labels
from gpzoo.likelihoods.negative import refuse_negative
from gpzoo.likelihoods.quadrature import even_points, log_expectation, log_mean_exp, normal_points, weighted_sum
from gpzoo.processes.marginals import GaussianMarginals, standard_deviation


class Expected(Likelihood):
    """The likelihood ``fn(f, *params)``, where ``fn`` returns any NumPyro distribution of batch shape ``[N]``.

    ``f`` can be marginals with one number per row, ``[N]`` or ``[N, 1]``. Then Gauss-Hermite quadrature computes
    expectations, and a rule whose nodes follow the likelihood computes predictive densities. If ``f`` has several
    numbers per row, ``[N, K]``, reparameterised draws estimate both. ``fn`` must then consume the last axis, for
    example with ``to_event(1)``::

        Expected(lambda f: dist.Poisson(jnp.exp(f)), f)
        Expected(lambda f, df, scale: dist.StudentT(df, f, scale), f, 4.0, noise_scale)
        Expected(lambda f: dist.Normal(f[:, 0], jax.nn.softplus(f[:, 1])), f)          # f [N, 2]

    ``fn`` always gets an ``f`` of the shape given here, for any number of points or draws. So params may have one entry
    per row. Predictive draws of ``y`` are draws from the distribution that ``fn`` returns.

    Example:
        >>> import jax.numpy as jnp, numpy as np, numpyro.distributions as dist
        >>> from gpzoo.likelihoods import Expected
        >>> counts = Expected(lambda f: dist.Poisson(jnp.exp(f)), np.zeros(2, np.float32))
        >>> counts.log_prob(np.array([0.0, 1.0], np.float32)).round(2)
        Array([-1., -1.], dtype=float32)

    Args:
        f: ``[N]`` or ``[N, K]``, array or marginals. Marginals with ``K > 1`` need a random key.
        fn: ``fn(f, *params) -> Distribution``. JAX compares it by identity. Define it once, at module level, so that
            ``jit`` does not compile again for every instance.
        params: the parameters of ``fn``, pytrees of numbers and arrays. Arrays in a closure of ``fn`` would be
            invisible to ``jit``, ``vmap`` and ``grad`` of the likelihood. Floating numbers get the precision of ``f``.
        num_points: number of points of the Gauss-Hermite rule.
        num_draws: draws per row, in ``log_prob`` if ``K > 1``.
        num_predictive_draws: draws per row, in ``mean``, ``variance``, ``probs`` and ``predictive_log_prob`` if
            ``K > 1``.
        missing: ``"mask"``: entries of ``y`` that are NaN were not observed and have no term. If ``y`` has several
            outputs, ``fn`` must then return a distribution with independent outputs, by ``to_event(1)``.
        validate_args: as in NumPyro.

    Raises:
        TypeError: if ``fn`` does not return a NumPyro distribution.
        ValueError: if the batch shape of this distribution is not ``[N]``, or a count is below one.
    """

    pytree_data_fields = ("params",)
    pytree_aux_fields = ("fn", "num_points", "num_draws", "num_predictive_draws", "by_entry", "law")

    #: Name of the class of ``fn(f, *params)``.
    law: str

    def __init__(
        self,
        fn: Callable[..., Distribution],
        f: ArrayLike | GaussianMarginals,
        *params: Any,
        num_points: int = 20,
        num_draws: int = 10,
        num_predictive_draws: int = 100,
        missing: str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        f = self._latent(f)
        self.fn = fn
        self.params = jax.tree.map(lambda leaf: _as_param(leaf, f.dtype), params)
        self.set_counts(num_points=num_points, num_draws=num_draws, num_predictive_draws=num_predictive_draws)
        centre = f.loc if isinstance(f, GaussianMarginals) else f
        likelihood = jax.eval_shape(lambda f, params: fn(f, *params), centre, self.params)
        name = type(likelihood).__name__
        no_law = f"fn must return a NumPyro distribution, got {name}."
        checks.refuse(not isinstance(likelihood, Distribution), no_law, TypeError)
        checks.refuse(
            likelihood.batch_shape != centre.shape[:1],
            f"fn returns a {name} of batch shape {likelihood.batch_shape} for f of shape {tuple(centre.shape)}, but it "
            f"must be {tuple(centre.shape[:1])}, one entry per datum: consume the last axis of f (.to_event(1) if each "
            "output has its own), and give params one entry per datum.",
        )
        self.law = type(likelihood.base_dist if isinstance(likelihood, Independent) else likelihood).__name__
        self.by_entry = isinstance(likelihood, Independent) and not likelihood.base_dist.event_dim
        super().__init__(f, likelihood.event_shape, missing=missing, validate_args=validate_args)

    def _given(self, f: Array) -> Any:
        return refuse_negative(self.fn(f, *self.params))

    def given_centre(self) -> Any:
        """``fn(f, *params)``, with the mean in place of ``f`` if ``f`` is marginals."""
        return self._given(self._centre())

    def of_shapes(self) -> Any:
        """``fn(f, *params)`` with the shapes of arrays in place of arrays.

        The result has no values. This also works if the values of ``f`` or ``params`` come from a JAX trace that has
        ended.
        """
        return jax.eval_shape(lambda f, params: self.fn(f, *params), self._centre(), self.params)

    def _known_support(self) -> constraints.Constraint:
        return self.of_shapes().support

    @property
    def support(self) -> constraints.Constraint:
        """The support of ``fn(f, *params)``, with the mean in place of ``f`` if ``f`` is marginals."""
        return self.given_centre().support

    @property
    def single(self) -> bool:
        """Whether ``f`` has one number per row."""
        return self.f.ndim == 1 or self.f.shape[1] == 1

    def marginal_expectation(self) -> str:
        """The way in which :meth:`log_prob` integrates."""
        return "quadrature" if self.single else "draw"

    def check_values(self, values: np.ndarray) -> None:
        """Refuse values outside the support."""
        if self.is_categorical:
            return check_labels(self, values, cast(int, self.num_classes))
        likelihood = self.of_shapes()
        support = inspect.getattr_static(likelihood, "support")
        # Only a support that the class fixes. Other supports depend on f or params, which may be traced.
        if isinstance(support, constraints.Constraint) and not constraints.is_dependent(support):
            good = np.asarray(support(values))
            if good.shape == values.shape:
                self.refuse_values(values, ~good, f"the support of {type(likelihood).__name__} is {support}")

    def typed(self, value: ArrayLike) -> tuple[Shaped[Array, "..."], Any]:
        """``y`` as integers or floats, as its support requires, and a mask of the labels in range."""
        if not self.is_categorical:
            y = self.checked(value)
            return y.astype(self.f.dtype) if jnp.issubdtype(y.dtype, jnp.floating) else y, None
        labels, good = self.labels(value, cast(int, self.num_classes))
        return labels, good if self.by_entry else good.all(tuple(range(-self.event_dim, 0)))

    @property
    def is_categorical(self) -> bool:
        """Whether ``fn`` returns a distribution of class labels, with ``probs`` in place of moments."""
        return isinstance(_innermost(self.of_shapes()), CategoricalLogits | CategoricalProbs)

    @property
    def num_classes(self) -> int | None:
        """Number of classes, if ``fn`` is categorical."""
        if not self.is_categorical:
            return None
        probs = jax.eval_shape(lambda f, params: _innermost(self.fn(f, *params)).probs, self._centre(), self.params)
        return probs.shape[-1]

    def _log_density(self, f: Float[Array, "N *K"], value: ArrayLike) -> Float[Array, "*S N"]:
        given, (y, good) = self._given(f), self.typed(value)
        terms = given.base_dist.log_prob(y) if self.by_entry else given.log_prob(y)
        # Some distributions compute in the default precision, not in the precision of their parameters.
        return self.counted(terms.astype(f.dtype), value, good)

    def _moments(self, f: Float[Array, "N *K"]) -> tuple[Float[Array, "N *E"], Float[Array, "N *E"]]:
        likelihood = self._given(f)
        return likelihood.mean.astype(f.dtype), likelihood.variance.astype(f.dtype)

    def _points(self, num_draws: int) -> tuple[Float[Array, "S N *K"], Float[Array, " S"]]:
        """Values of ``f`` and their weights."""
        if not self.single:
            return self.f.draws(num_draws), jnp.full((num_draws,), 1 / num_draws, self.f.dtype)
        return normal_points(self.num_points, self.f.mean, self.f.variance)

    def _predictive_points(self) -> tuple[Float[Array, "S N *K"], Float[Array, " S"]]:
        if self.single:
            return even_points(self.f.mean, self.f.variance)
        return self._points(self.num_predictive_draws)

    def _averaged(self, of: Callable[[Array], Array]) -> Float[Array, "N *_"]:
        """A function of ``f``, averaged over marginals."""
        if not self.is_marginal:
            return of(self.f)
        points, weights = self._predictive_points()
        return weighted_sum(weights, jax.vmap(of)(points))

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Float[Array, "*S N"]:
        """See :meth:`Likelihood.log_prob <gpzoo.likelihoods.Likelihood.log_prob>`."""
        self.refuse_mapped()
        if not self.is_marginal:
            return self._log_density(self.f, value)
        _, weights, values = self._densities_at_points(value, self.num_draws)
        return weighted_sum(weights, values)

    def _densities_at_points(self, value: ArrayLike, num_draws: int) -> tuple[Array, Array, Array]:
        """Values of ``f``, their weights, and ``log p(y | f)`` there."""
        points, weights = self._points(num_draws)
        return points, weights, jax.vmap(lambda f: self._log_density(f, value))(points)

    def predictive_log_prob(self, value: ArrayLike) -> Float[Array, "*S N"]:
        """See :meth:`Likelihood.predictive_log_prob <gpzoo.likelihoods.Likelihood.predictive_log_prob>`."""
        if not self.is_marginal:
            return self._log_density(self.f, value)
        if not self.single:
            found = log_mean_exp(self._densities_at_points(value, self.num_predictive_draws)[2])
        elif (y := self.checked(value)).ndim > len(self.batch_shape + self.event_shape):
            return jax.vmap(self.predictive_log_prob)(y)
        else:
            found = self._log_mean(value)
        seen = self.seen_rows(value)
        return found if seen is None else jnp.where(seen, found, 0)  # the logarithm of a sum of weights rounds

    def _log_mean(self, value: ArrayLike) -> Float[Array, " N"]:
        """``log E[p(y | f)]`` over marginals with one number for each row."""
        mean, scale = self.f.mean, standard_deviation(self.f.variance)
        at = lambda z: self._log_density(mean + scale * z.reshape(mean.shape), value)  # noqa: E731
        return log_expectation(at, mean.shape[:1], mean.dtype)

    @property
    def probs(self) -> Float[Array, "N K"]:
        """Probability of every class, if ``fn`` is categorical; the predictive probability if ``f`` is marginals."""
        if not self.is_categorical:
            raise NotImplementedError(f"{self.given_centre()} has no classes: use mean and variance.")
        if self.is_marginal and self.single and not self.event_shape:
            labels = jnp.broadcast_to(jnp.arange(self.num_classes)[:, None], (cast(int, self.num_classes), len(self.f)))
            return jnp.exp(lax.map(self._log_mean, labels)).T
        return self._averaged(lambda f: self._given(f).probs)

    @property
    def mean(self) -> Float[Array, "N *E"]:
        """``E[y]``. If ``f`` is marginals, it is the predictive mean."""
        return self._averaged(lambda f: self._given(f).mean.astype(f.dtype))

    @property
    def variance(self) -> Float[Array, "N *E"]:
        """``Var[y]``. If ``f`` is marginals, it is ``E[Var[y | f]] + Var[E[y | f]]``."""
        if not self.is_marginal:
            return self._moments(self.f)[1]
        points, weights = self._predictive_points()
        means, variances = jax.vmap(self._moments)(points)
        spread_of_means = jnp.square(means - weighted_sum(weights, means))
        return weighted_sum(weights, variances + spread_of_means)

    def sample_given(self, key: PRNGKeyArray, f: Float[Array, "S N ..."]) -> Shaped[Array, "S N ..."]:
        """Draws of ``y`` for ``f``; see :meth:`Likelihood.sample_given`."""
        keys = random.split(key, f.shape[0])
        return jax.vmap(lambda f, key: self._given(f).sample(key))(f, keys)


def _innermost(fn: Any) -> Any:
    return _innermost(fn.base_dist) if hasattr(fn, "base_dist") else fn


def _as_param(leaf: Any, dtype: Any) -> Shaped[Array, "..."]:
    array = jnp.asarray(leaf)
    return array.astype(dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array
