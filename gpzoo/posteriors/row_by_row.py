"""The base class of distributions of a GP site given structured data; they have no joint distribution of values."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

import jax
import jax.numpy as jnp
from jax import Array, random
from jaxtyping import Float

from gpzoo import _checks as checks
from gpzoo.kernels.base import Kernel
from gpzoo.posteriors.base import Conditional
from gpzoo.processes.process import GaussianProcess


class RowByRow(Conditional):
    """The conditional of each value of a site by itself, given data with Gaussian noise.

    Values have means and variances, but no covariances.

    Args:
        prior: prior of the site, at new inputs.
        inducing: :class:`~gpzoo.InducingPoints` at the inputs of the data.
        site: name of the site.
    """

    deterministic: ClassVar[bool] = False
    row_by_row: ClassVar[bool] = True
    #: Name of the option of :class:`gpzoo.inference.marginal` that uses the structure of the data.
    option: ClassVar[str]

    def __init__(self, prior: GaussianProcess, inducing: Any, site: str) -> None:
        self.prior, self.inducing, self.site, self.whiten = prior, inducing, site, False
        self.L = self.L_inverse = None

    @property
    def num_inducing(self) -> int:
        """The number of rows of the data."""
        return len(self.inducing.Z)

    def at(self, m: Float[Array, "M 1"]) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """Means at the prior's inputs, and the amounts by which the data reduce the prior's variances."""
        checks.unwritten(self, "at(m)")

    def mean(self, m: Float[Array, "M 1"]) -> Float[Array, "1 N"]:
        """See :meth:`Conditional.mean`."""
        return self.at(m)[0][None]

    def marginals(self, m: Float[Array, "M 1"], form: Any) -> tuple[Float[Array, "1 N"], Float[Array, "1 N"]]:
        """See :meth:`Conditional.marginals`."""
        mean, taken = self.at(m)
        prior, noise = (of(self.prior.X) for of in (self.prior.kernel.diag, self.prior.kernel.noise_diag))
        floor = noise + jnp.finfo(prior.dtype).eps * prior
        return mean[None], jnp.maximum(prior - taken, floor)[None]

    # -- here ``u`` is the values at the rows of the data, in place of weights -----------------------------------------

    def draw(self, m: Float[Array, "M 1"], form: Any, key: Array) -> Float[Array, "1 M"]:
        """See :meth:`Conditional.draw`: the values ``m`` themselves, because they have no spread."""
        return m.T

    def inducing_moments(self, m: Float[Array, "M 1"], form: Any) -> tuple[Float[Array, "1 M"], None]:
        """See :meth:`Conditional.inducing_moments`; there are no covariances."""
        return m.T, None

    def log_prior(self, draw: Float[Array, "1 M"]) -> Float[Array, ""]:
        """See :meth:`Conditional.log_prior`."""
        checks.unwritten(self, "log_prior(draw)")

    def of_part(self, part: int, kernel: Kernel) -> NoReturn:
        """Refuse a single term of the kernel, because the distribution belongs to the whole kernel."""
        raise ValueError(
            f"GP site {self.site!r} has a law by marginal(program, {self.option}=True), which says nothing of its "
            f"kernel's addends: give each addend a GP site of its own, or leave {self.option} out."
        )

    def moments(self, m: Float[Array, "M 1"], form: Any) -> NoReturn:
        """Refuse joint moments; see :attr:`row_by_row`."""
        raise ValueError(
            f"Values of GP site {self.site!r} at several inputs have no joint law by marginal(program, "
            f"{self.option}=True): draw them by Trained.functions or to_arviz, or leave {self.option} out."
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
