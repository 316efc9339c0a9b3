"""The distribution of a GP site given a time series, by its state-space form: from the rows before and after a time."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

import jax
import jax.numpy as jnp
from jax import Array, random
from jaxtyping import Float

from gpzoo.kernels.base import Kernel
from gpzoo.linalg.state_space import Between
from gpzoo.posteriors.base import Conditional
from gpzoo.processes.process import GaussianProcess


class GivenSeries(Conditional):
    """The conditional of a site, value by value, given data with Gaussian noise that see a sum of Markov processes.

    Args:
        prior: prior of the site, at new times.
        inducing: :class:`~gpzoo.InducingPoints` at the times of the data.
        times: the times of the data, in order.
        between: what the data say about the site's states.
        site: name of the site.
    """

    deterministic: ClassVar[bool] = False
    row_by_row: ClassVar[bool] = True

    times: Float[Array, " M"]
    between: Between

    def __init__(self, prior: GaussianProcess, inducing: Any, times: Array, between: Between, site: str) -> None:
        self.prior, self.inducing, self.site, self.whiten = prior, inducing, site, False
        self.L = self.L_inverse = None
        self.times, self.between = times, between

    @property
    def num_inducing(self) -> int:
        """The number of rows of the series."""
        return len(self.times)

    def mean(self, m: Float[Array, "M 1"]) -> Float[Array, "1 N"]:
        """See :meth:`Conditional.mean`."""
        return self._at()[0]

    def marginals(self, m: Float[Array, "M 1"], form: Any) -> tuple[Float[Array, "1 N"], Float[Array, "1 N"]]:
        """See :meth:`Conditional.marginals`."""
        mean, taken = self._at()
        prior, noise = (of(self.prior.X) for of in (self.prior.kernel.diag, self.prior.kernel.noise_diag))
        floor = noise + jnp.finfo(prior.dtype).eps * prior
        return mean, jnp.maximum(prior - jnp.sum(jnp.square(taken), axis=-2), floor)

    def factors(
        self, m: Float[Array, "M 1"], form: Any
    ) -> tuple[Float[Array, "1 N"], Float[Array, "1 N"], dict[str, Float[Array, "1 _ N"]]]:
        """See :meth:`gpzoo.posteriors.Projection.factors`; the columns of different rows are not related."""
        mean, taken = self._at()
        return mean, self.prior.kernel.diag(self.prior.X)[None], {form.group[0]: taken}

    def of_part(self, part: int, kernel: Kernel) -> NoReturn:
        """Refused: the states belong to the whole kernel."""
        raise ValueError(
            f"GP site {self.site!r} has a law by its state-space form, which says nothing of its kernel's addends: "
            "give each addend a GP site of its own, or leave state_space out."
        )

    def moments(self, m: Float[Array, "M 1"], form: Any) -> NoReturn:
        """Refused: see :attr:`row_by_row`."""
        raise ValueError(
            f"Values of GP site {self.site!r} at several times have no joint law by its state-space form: draw them by "
            "Trained.functions or to_arviz, or leave state_space out."
        )

    def draws_in_groups(
        self, m: Float[Array, "M 1"], form: Any, size: int, keys: Array, *, rows: bool = True
    ) -> Float[Array, "1 G {size}"]:
        """Draws of single values; see :meth:`Conditional.draws_in_groups`."""
        if size > 1:
            self.moments(m, form)
        mean, variance = self.marginals(m, form)
        noise = jax.vmap(lambda key: random.normal(key, (), mean.dtype))(keys)
        return (mean + jnp.sqrt(variance) * noise)[..., None]

    def _at(self) -> tuple[Float[Array, "1 N"], Float[Array, "1 _ N"]]:
        """Means, and columns whose squares the data subtract from the variances, at the prior's times."""
        x, N = self.prior.X[:, 0], len(self.times)
        gap = jnp.searchsorted(self.times, x, side="right")
        before = jnp.where(gap > 0, self.times[jnp.maximum(gap - 1, 0)], x)
        after = jnp.where(gap < N, self.times[jnp.minimum(gap, N - 1)], x)
        h, A, P = jax.vmap(self.prior.kernel.states)(jnp.stack([before, x, after], axis=1)[..., None])
        brought = jnp.einsum("nij,ni->nj", A[:, 1], h[:, 1])
        ahead = jnp.einsum("nij,njk,nk->ni", A[:, 2], P[:, 1], h[:, 1])
        both = jnp.stack([brought, ahead], axis=1)
        mean = jnp.einsum("nis,nis->n", both, self.between.mean[gap])
        return mean[None], jnp.einsum("nis,nisr->rn", both, self.between.root[gap])[None]
