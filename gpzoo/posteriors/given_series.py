"""The distribution of a GP site given a time series, in state-space form: from the rows before and after each time."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from gpzoo.kernels.base import states_of
from gpzoo.linalg.operators import einsum
from gpzoo.linalg.state_space import Between, log_density
from gpzoo.posteriors.row_by_row import RowByRow
from gpzoo.processes.process import GaussianProcess


class GivenSeries(RowByRow):
    """The conditional of a site, for single values, given a sum of Markov processes observed with Gaussian noise.

    Args:
        prior: prior of the site, at new times.
        inducing: :class:`~gpzoo.InducingPoints` at the times of the data.
        times: the times of the data, in order.
        between: see :class:`~gpzoo.linalg.state_space.Between`, for the site's states.
        site: name of the site.
    """

    option: ClassVar[str] = "state_space"

    times: Float[Array, " M"]
    between: Between

    def __init__(self, prior: GaussianProcess, inducing: Any, times: Array, between: Between, site: str) -> None:
        super().__init__(prior, inducing, site)
        self.times, self.between = times, between

    def at(self, m: Float[Array, "M 1"]) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """See :meth:`RowByRow.at`."""
        mean, columns = self._columns()
        return mean, jnp.sum(jnp.square(columns), axis=0)

    def log_prior(self, draw: Float[Array, "1 M"]) -> Float[Array, ""]:
        """See :meth:`RowByRow.log_prior`."""
        order = jnp.argsort(self.prior.X[:, 0])
        states, values = states_of(self.prior.kernel, self.prior.X[order]), draw[0][order]
        return log_density(states, values, jnp.full_like(values, self.prior.covariance_jitter))

    def factors(
        self, m: Float[Array, "M 1"], form: Any
    ) -> tuple[Float[Array, "1 N"], Float[Array, "1 N"], dict[str, Float[Array, "1 _ N"]]]:
        """See :meth:`gpzoo.posteriors.Projection.factors`; columns of different rows do not give their covariance."""
        mean, columns = self._columns()
        return mean[None], self.prior.kernel.diag(self.prior.X)[None], {form.group[0]: columns[None]}

    def _columns(self) -> tuple[Float[Array, " N"], Float[Array, "_ N"]]:
        """Means and columns at the prior's times; the squares of the columns are subtracted from the variances."""
        x, N = self.prior.X[:, 0], len(self.times)
        gap = jnp.searchsorted(self.times, x, side="right")
        before = jnp.where(gap > 0, self.times[jnp.maximum(gap - 1, 0)], x)
        after = jnp.where(gap < N, self.times[jnp.minimum(gap, N - 1)], x)
        h, A, P = jax.vmap(partial(states_of, self.prior.kernel))(jnp.stack([before, x, after], axis=1)[..., None])
        brought = einsum("nij,ni->nj", A[:, 1], h[:, 1])
        ahead = einsum("nij,njk,nk->ni", A[:, 2], P[:, 1], h[:, 1])
        both = jnp.stack([brought, ahead], axis=1)
        mean = einsum("nis,nis->n", both, self.between.mean[gap])
        return mean, einsum("nis,nisr->rn", both, self.between.root[gap])
