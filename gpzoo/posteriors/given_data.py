"""The distribution of a GP site given data, in place of ``q(u)``; the data's covariance is already factorised.

Data with Gaussian noise are sums of sites, ``y = sum_j w_j f_j + e`` with ``cov(y) = L L^T``. Given them, a site has

``mean = K_j(x, X) w_j a``, ``a = cov(y)^-1 y``, and ``cov(f_i, f_j) = delta_ij K_j(x, x') - B_i^T B_j``,
``B_j = L^-1 w_j K_j(X, x)`` (Rasmussen and Williams 2006, eq. 2.23 and 2.24).

Given other data, the site has a distribution of whitened variables, ``v ~ N(m, R R^T)``.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from gpzoo.linalg.quadratic import squares
from gpzoo.linalg.state_space import Between
from gpzoo.posteriors.base import Conditional, Form
from gpzoo.posteriors.conditional import OnValues, Projection
from gpzoo.posteriors.coupled import Coupled
from gpzoo.posteriors.given_grid import GivenGrid
from gpzoo.posteriors.given_series import GivenSeries
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.process import GaussianProcess


class Root(Coupled):
    """A covariance ``R R^T`` of whitened variables.

    If ``R`` is ``None``, the covariance of ``f`` is the prior's covariance minus ``B^T B``; see the module.

    Args:
        scale: ``R``, ``[M, K]`` or ``[D, M, K]``. ``K`` is the number of whitened variables of all sites that enter the
            same data. ``None`` if ``B`` follows from the data's covariance.
        group: ``(name,)`` with the name of the standard normal noise that all these sites share. ``()`` if only this
            site enters the data.
    """

    @property
    def taken(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See :attr:`Coupled.taken`."""
        return self.scale is None

    @property
    def has_values(self) -> bool:
        """See :attr:`Form.has_values`."""
        return True

    def check_values(self, conditional: Conditional) -> None:
        """Check nothing, because no user gives these values."""

    def by_output(self, num_inducing: int, num_outputs: int | None) -> Root:
        """See :meth:`Form.by_output`."""
        return self if self.scale is None or num_outputs is not None else self.with_values(scale=self.scale[None])

    def factors(self, B: Float[Array, "M N"] | Float[Array, "D M N"]) -> dict[str, Float[Array, "D _ N"]]:
        """See :meth:`Coupled.factors`."""
        return {self.group[0]: B if B.ndim == 3 else B[None]} if self.taken else super().factors(B)

    def squares(self, B: Float[Array, "M N"] | Float[Array, "D M N"]) -> Float[Array, "D N"]:
        """See :meth:`Form.squares`."""
        return (
            jnp.zeros(((len(B) if B.ndim == 3 else 1), B.shape[-1]), B.dtype) if self.taken else squares(B, self.scale)
        )


class GivenData(OnValues):
    """The conditional of a site given noisy data, or given values of its function at the inputs of the data.

    The lower factor of the covariance of these data or values is an argument, so it is not computed again.

    Args:
        prior: prior of the site.
        inducing: :class:`~gpzoo.InducingPoints` at the inputs of the data.
        factor: lower factor ``L`` of the covariance of the data, or of the values.
        seen: weights ``w`` of the site in the data, ``[M]`` or ``[D, M]``; ``None`` if values are given and not data.
        site: name of the site.
    """

    seen: Any = None

    def __init__(self, prior: GaussianProcess, inducing: Any, factor: Array, seen: Array | None, site: str) -> None:
        super().__init__(prior, inducing, site=site, factor=(factor, factor))
        self.seen = seen

    def covariances(self, X: Float[Array, "..."]) -> Float[Array, "*D M N"]:
        """``w Kuf``."""
        K = super().covariances(X)
        if self.L.ndim == 3 and K.ndim == 2:
            K = jnp.broadcast_to(K, (len(self.L), *K.shape))
        return K if self.seen is None else K * self.seen[..., None]

    def solved(self, columns: Float[Array, "... M N"], transpose: bool = False) -> Float[Array, "... M N"]:
        """See :meth:`Projection.solved`; outputs with separate data may share one factor."""
        if self.L.ndim == 2 and columns.ndim == 3:
            each = [super(GivenData, self).solved(x, transpose) for x in columns]
            return jnp.stack(each)
        return super().solved(columns, transpose)

    def weights(self, m: Float[Array, "M D"]) -> Float[Array, "M D"]:
        """``a = cov(y)^-1 y``; here, the argument ``m`` is already ``a`` and not a mean."""
        return m

    def residual(
        self, X: Float[Array, "..."], A: Float[Array, "*D M N"]
    ) -> tuple[Float[Array, "... N"], Float[Array, "... N"]]:
        """See :meth:`Projection.residual`; the covariance of data has no jitter."""
        left, floor = super().residual(X, A)
        return (left if self.seen is None else self.prior.kernel.diag(X) - jnp.sum(A * A, axis=-2)), floor

    def _parts_at(
        self, X: Float[Array, "..."], m: Float[Array, "M D"], form: Form
    ) -> tuple[Float[Array, "D N"], Float[Array, "D N"], Float[Array, "... N"], Float[Array, "... N"]]:
        K = self.covariances(X)
        A, mean = self.solved(K), self.weighted(K, m)
        return mean, jnp.broadcast_to(form.squares(A), mean.shape), *self.residual(X, A)

    def factors(
        self, m: Float[Array, "M D"], form: Root
    ) -> tuple[Float[Array, "D N"], Float[Array, "D N"], dict[str, Float[Array, "D _ N"]]]:
        """See :meth:`Projection.factors`."""
        X = self.prior.X
        K = self.covariances(X)
        A, mean = self.solved(K), self.weighted(K, m)
        left = self.prior.kernel.diag(X) if form.taken else jnp.maximum(*self.residual(X, A))
        return mean, jnp.broadcast_to(left, mean.shape), form.factors(A)


def given_data(
    prior: GaussianProcess,
    inducing: Any,
    law: dict[str, Any],
    factor: Array | None,
    group: tuple[str, ...],
    site: str,
) -> InducingPosterior:
    """The posterior of a site from the distribution that :mod:`gpzoo.inference.bounds.laws` has computed.

    Args:
        prior: prior of the site.
        inducing: inducing variables of the site.
        law: arrays of the distribution, by name. Data with Gaussian noise have ``mean`` and ``seen``. Other data have
            ``mean``, ``scale`` and, without inducing variables, ``factor``. A time series has ``mean``, ``times``,
            ``between`` and ``root``. Data on a grid have ``mean`` and ``grid``.
        factor: factor of the data's covariance, used if ``law`` has no ``factor``.
        group: see :class:`Root`.
        site: name of the site.
    """
    if "times" in law:
        conditional: Any = GivenSeries(prior, inducing, law["times"], Between(law["between"], law["root"]), site)
        return InducingPosterior(conditional, law["mean"], Root(None, group=group))
    if "grid" in law:
        return InducingPosterior(GivenGrid.of(prior, inducing, law["grid"], site), law["mean"], Root(None, group=group))
    own = law.get("factor", factor)
    if own is None:
        conditional = Projection(prior, inducing, site=site)
    else:
        conditional = GivenData(prior, inducing, own, law.get("seen"), site)
    return InducingPosterior(conditional, law["mean"], Root(law.get("scale"), group=group))
