"""The parts of a posterior: a form of ``q(u)``, and a conditional, the distribution of ``f`` given ``u``.

All their computations have an axis of outputs ``D``, of length 1 if the site has no such axis. Means ``m`` of ``q(u)``
are ``[M, D]``, forms are results of :meth:`Form.by_output`, and results have ``D`` as their first axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax import Array, random
from jaxtyping import Float, Integer, PRNGKeyArray
from numpyro.distributions import constraints

from gpzoo import _checks as checks
from gpzoo import linalg
from gpzoo._pytree import Fields, static
from gpzoo.kernels.base import Kernel
from gpzoo.linalg.operators import LOG_2PI, log_det, matmul
from gpzoo.linalg.quadratic import distance, spread, squares
from gpzoo.processes.process import GaussianProcess


class Form(Fields):
    """A form of the covariance ``S`` of ``q(u)``; with values in its fields, it is a covariance of this form.

    Without values, an instance only names the form: ``InducingGuide(program, kmeans(100), covariance=MyForm())``. The
    annotated fields are its parameters: the field ``scale`` of site ``f`` is the parameter ``f_scale``. To write a form
    of your own, define the initial values of its parameters (:meth:`start`). In the simplest case, also define
    :meth:`by_output`, which returns a form of gpzoo that has the same covariance::

        class Isotropic(Form):
            scale: Array
            constraints = {"scale": softplus_positive}

            def start(self, conditional, scale):
                return Isotropic(jnp.full(conditional.outputs, scale, conditional.dtype))

            def by_output(self, num_inducing, num_outputs):
                return forms.Diagonal(jnp.broadcast_to(self.scale, (num_inducing, num_outputs or 1)))

    Instead of :meth:`by_output`, a form can define :meth:`root`, and any other operation that it can compute faster.
    gpzoo calls these operations on the result of the default :meth:`by_output`. There, the first axis of every value is
    the axis of outputs.

    Args:
        *values: values of the fields, in order. Give none for a form that is only a name.
    """

    #: Constraints of the parameters; parameters without an entry are real.
    constraints: ClassVar[Mapping[str, constraints.Constraint]] = {}
    #: The text that names this form in ``InducingGuide(covariance=...)``, if there is one.
    short_name: ClassVar[str | None] = None
    #: Whether :meth:`parts` has a diagonal. On a grid of one axis, such a covariance does not need the prior's factor.
    has_diagonal: ClassVar[bool] = False

    def __init__(self, *values: Any) -> None:
        wrong = f"{type(self).__name__} has the values {self.data_fields}, got {len(values)}."
        checks.refuse(values and len(values) != len(self.data_fields), wrong, TypeError)
        for field, value in zip(self.data_fields, values or (None,) * len(self.data_fields), strict=True):
            setattr(self, field, value)

    @property
    def has_values(self) -> bool:
        """Whether this is a covariance, and not only the name of a form."""
        return all(getattr(self, field) is not None for field in self.data_fields)

    def with_values(self, **values: Any) -> Self:
        """This form with these values of its fields."""
        return self._with_fields(**values)

    @property
    def said(self) -> str:
        """The name of this form for users."""
        return repr(self.short_name) if "short_name" in vars(type(self)) else type(self).__name__

    # -- as parameters -----------------------------------------------------------------------------------------------

    def goes_with(self, conditional: Conditional) -> bool:
        """Whether this form fits the inducing variables of a site: by default, any except grids of several axes."""
        return conditional.inducing.num_axes <= 1

    def check(self, conditional: Conditional) -> None:
        """Refuse inducing variables that do not fit this form.

        Args:
            conditional: the :class:`~gpzoo.posteriors.Conditional` of the site.

        Raises:
            ValueError: if they do not fit; the message names the site.
        """
        axes = conditional.inducing.num_axes
        with_what = f"a grid of {axes} axes" if axes else type(conditional.inducing).__name__
        checks.refuse(
            not self.goes_with(conditional),
            f"InducingGuide(covariance={self.said}) does not go with {with_what} (site {conditional.site!r}). A grid "
            "of one axis has 'full', 'low_rank' or 'diagonal', of several 'kronecker'; other inducing variables have "
            "'full', 'diagonal' or, in blocks, 'block_diagonal'.",
        )
        checks.refuse(
            conditional.toeplitz and not self.has_diagonal,
            f"{type(self).__name__} needs the factors of the prior over the grid of site {conditional.site!r}: "
            "Interpolation(..., toeplitz=False).",
        )

    def start(self, conditional: Conditional, scale: float | Array) -> Self:
        """This form with its initial values.

        Args:
            conditional: the :class:`~gpzoo.posteriors.Conditional` of the site. It has the prior, the shape and the
                precision of ``u``.
            scale: factor by which the prior's standard deviations are multiplied.
        """
        checks.unwritten(self, "start(conditional, scale)")

    def check_values(self, conditional: Conditional) -> None:
        """Refuse values whose shapes differ from the shapes of the initial values.

        Raises:
            ValueError: if shapes differ; the message names the site and the shapes.
        """
        wanted = jax.eval_shape(lambda: self.start(conditional, 1.0))
        for field in self.data_fields:
            found, shape = getattr(self, field), _shapes(getattr(wanted, field))
            name = f"{conditional.site}_{field}"
            several = isinstance(found, tuple | list)
            kind = f"{len(found)} arrays" if several else f"one array of shape {found.shape}"
            checks.refuse(
                several != isinstance(shape, list),
                f"{name} is {kind}, but the guide has covariance={self.said}. BlockDiagonalMatrix(*blocks).dense() "
                "(gpzoo.linalg) makes one array of blocks.",
            )
            kind = f"blocks of shapes {_shapes(found)}" if several else f"shape {found.shape}"
            expected = f"expected {shape} for {type(self).__name__}."
            wrong = f"The {field} of q(u) of site {conditional.site!r} has {kind}, {expected}"
            checks.refuse(_shapes(found) != shape, wrong)

    def by_output(self, num_inducing: int, num_outputs: int | None) -> Form:
        """This covariance with an axis of outputs, of length 1 if the site has no such axis (``num_outputs=None``).

        By default, the axis of outputs is the first axis of every value.
        """
        return self if num_outputs is not None else jax.tree.map(lambda x: x[None], self)

    def extended(
        self, mean: Float[Array, "M *D"], old: Conditional, new: Conditional
    ) -> tuple[Float[Array, "_ *D"], Form]:
        """``q(u)`` with more inducing variables; given the old variables, the new variables follow the prior.

        Args:
            mean: ``m``, ``[M]`` or ``[M, D]``.
            old: the conditional of the old inducing variables.
            new: the conditional of all inducing variables; the old ones come first.

        Returns:
            The mean and the covariance of all variables; the covariance has this form.

        Raises:
            NotImplementedError: if this form cannot represent the covariance of all variables.
        """
        checks.unwritten(self, "extended(mean, old, new)")

    # -- as parameters that natural gradients train ------------------------------------------------------------------

    def natural_step(
        self, mean: Float[Array, "M *D"], slope: Float[Array, "M *D"], slopes: Any, rate: Array, step: Array | int
    ) -> tuple[Float[Array, "M *D"], Form, Array]:
        """A step of ``q(u)`` along the natural gradient of a loss (Salimbeni, Eleftheriadis and Hensman 2018).

        Let ``g_m`` and ``g_S`` be the derivatives of the loss by ``m`` and ``S``. Then
        ``S_new^-1 = S^-1 + 2 rate g_S`` and ``m_new = m - rate S_new g_m``. The step is the same for ``u`` and for
        whitened ``v``.

        Args:
            mean: ``m``, ``[M]`` or ``[M, D]``.
            slope: the loss's derivative by ``mean``.
            slopes: the loss's derivatives by the values of this form.
            rate: step length, a number. A step of length 1 is exact if only ``q(u)`` is trained and the likelihood is
                Gaussian.
            step: number of the step, from 0.

        Returns:
            The new mean, the new form, and a number. This number is 1 if the step was shortened because the full step
            did not give a covariance, else 0.

        Raises:
            NotImplementedError: if the form has no such step.
        """
        checks.unwritten(self, "natural_step(mean, slope, slopes, rate, step)")

    # -- as a covariance, by output ----------------------------------------------------------------------------------

    def root(self) -> Any:
        """A matrix ``R`` with ``S = R R^T``: ``[D, M, K]``, block-diagonal or Kronecker.

        A square ``R`` is triangular, unless :meth:`log_det` is overridden.
        """
        checks.unwritten(self, "root()")

    def parts(self) -> tuple[Float[Array, "D M R"] | None, Float[Array, "D M"]]:
        """``V`` (or ``None``) and variances ``d`` with ``S = V V^T + diag(d)``.

        Only forms with :attr:`has_diagonal` define this method.
        """
        checks.unwritten(self, "parts()")

    def spread(self, B: Float[Array, "M N"] | Float[Array, "D M N"]) -> Float[Array, "D K N"]:
        """``R^T B``."""
        return spread(B, self.root())

    def squares(self, B: Float[Array, "M N"] | Float[Array, "D M N"]) -> Float[Array, "D N"]:
        """``diag(B^T S B)``."""
        return squares(B, self.root())

    def log_det(self) -> Float[Array, ""]:
        """``log |S|``, summed over outputs."""
        return jnp.sum(jnp.log(jnp.square(linalg.diagonal(self.root()))))

    def trace(self) -> Float[Array, ""]:
        """The trace of ``S``, summed over outputs."""
        return linalg.total(jnp.sum(s * s) for s in jax.tree.leaves(self.root()))

    def distance(self, residual: Float[Array, "D M"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """``r^T S^-1 r`` and ``log |S|``, summed over outputs: the two parts of a log density."""
        return distance(self.root(), residual)

    def draw(self, key: PRNGKeyArray) -> Float[Array, "M D"]:
        """A draw of ``u`` minus its mean."""
        R = self.root()
        noise = random.normal(key, (R.shape[-1], R.shape[0]), R.dtype)
        return matmul(R, noise.T[:, :, None])[:, :, 0].T


class Conditional(Fields):
    """The distribution of ``f`` given ``u``, and the prior ``p(u)``.

    The methods take ``q(u)`` as a mean and a :class:`~gpzoo.posteriors.Form`.

    Attributes:
        prior: the site's :class:`~gpzoo.GaussianProcess`.
        inducing: the inducing variable.
        L: lower factor of the prior covariance of ``u``, or ``None`` if this covariance is not factorised.
        L_inverse: the inverse of ``L``.
        whiten: whether mean and form belong to ``v`` with ``u = L v``.
        site: name of the site, for messages.
    """

    #: Whether ``f`` is a function of ``u`` alone. Then the values of ``f`` have no joint density.
    deterministic: ClassVar[bool]
    #: Whether this class has only single values, without a joint distribution at different inputs.
    row_by_row: ClassVar[bool] = False

    prior: GaussianProcess
    inducing: Any
    L: Any
    L_inverse: Any
    whiten: bool = static()
    site: str = static()
    #: Number of the term of the kernel that these values belong to; ``None`` if they belong to the whole kernel.
    part: int | None = static(default=None)

    @property
    def toeplitz(self) -> bool:
        """Whether gpzoo uses the Toeplitz structure of the prior of ``u``, and does not factorise the prior."""
        return False

    @property
    def outside(self) -> Integer[Array, "*D"] | None:
        """Number of inputs outside a grid's bounds, for each set of inputs; ``None`` if there are no bounds."""
        return None

    @property
    def num_inducing(self) -> int:
        """``M``."""
        return self.L.shape[-1]

    @property
    def outputs(self) -> tuple[int, ...]:
        """``(D,)``, or ``()`` if the site has no axis of outputs."""
        return () if self.prior.num_outputs is None else (self.prior.num_outputs,)

    @property
    def dtype(self) -> Any:
        """Precision of the inputs."""
        return self.prior.X.dtype

    def of_part(self, part: int, kernel: Kernel) -> Self:
        """The distribution of one term of ``f`` given ``u``.

        Args:
            part: number of the term.
            kernel: kernel of the term.

        Raises:
            ValueError: if ``f`` is interpolated. Then ``u`` has no information about the terms of ``f``.
        """
        raise ValueError(
            f"GP site {self.site!r} is interpolated from a grid, whose variables say nothing of the kernel's addends: "
            "use inducing points."
        )

    def start_root(self) -> Any:
        """A root of the initial covariance of ``q(u)``, ``[M, M]``, ``[D, M, M]`` or structured.

        The root is the identity if variables are whitened, else the prior's factor.
        """
        checks.unwritten(self, "start_root()")

    def start_variances(self) -> Float[Array, "*D M"]:
        """Initial variances of a ``q(u)`` with independent variables."""
        checks.unwritten(self, "start_variances()")

    def mean(self, m: Float[Array, "M D"]) -> Float[Array, "D N"]:
        """Mean of ``f`` without the prior's mean."""
        checks.unwritten(self, "mean(m)")

    def marginals(self, m: Float[Array, "M D"], form: Form) -> tuple[Float[Array, "D N"], Float[Array, "D N"]]:
        """Mean of ``f`` without the prior's mean, and variance of ``f``, at every input."""
        checks.unwritten(self, "marginals(m, form)")

    def marginal_parts(
        self, m: Float[Array, "M D"], form: Form
    ) -> tuple[Float[Array, "D N"], Float[Array, "D N"], Float[Array, "D N"]]:
        """Mean of ``f`` without the prior's mean, variance due to ``q(u)``, and residual variance given ``u``."""
        checks.unwritten(self, "marginal_parts(m, form)")

    def moments(self, m: Float[Array, "M D"], form: Form) -> tuple[Float[Array, "D N"], Float[Array, "D N N"]]:
        """Mean of ``f`` without the prior's mean, and joint covariance of ``f``."""
        checks.unwritten(self, "moments(m, form)")

    def draws_in_groups(
        self, m: Float[Array, "M D"], form: Form, size: int, keys: Array, *, rows: bool = True
    ) -> Float[Array, "D G {size}"]:
        """Draws of ``f`` without the prior's mean, joint within groups of ``size`` consecutive inputs.

        Args:
            m: mean of ``q(u)``.
            form: covariance of ``q(u)``.
            size: number of inputs in a group.
            keys: random keys, one for each group. Groups are independent of each other.
            rows: whether each group has the inputs of one row of the data. There are then many small groups.
        """
        checks.unwritten(self, "draws_in_groups(m, form, size, keys)")

    def inducing_moments(self, m: Float[Array, "M D"], form: Form) -> tuple[Float[Array, "D M"], Any]:
        """Mean and covariance (``[D, M, M]`` or Kronecker) of ``u``, never of ``v``."""
        checks.unwritten(self, "inducing_moments(m, form)")

    def draw(self, m: Float[Array, "M D"], form: Form, key: PRNGKeyArray) -> Float[Array, "M D"]:
        """A draw of ``u`` or ``v``."""
        checks.unwritten(self, "draw(m, form, key)")

    def given_draw(self) -> Self:
        """This conditional, for a value drawn by :meth:`draw`."""
        return self

    def kl(self, m: Float[Array, "M D"], form: Form) -> Float[Array, ""]:
        """``KL[q(u) || p(u)]`` summed over outputs, in nats."""
        checks.unwritten(self, "kl(m, form)")

    # -- densities of u, never of v: with u = L v, they differ by log |L|, which depends on hyperparameters ------------

    def log_prior(self, draw: Float[Array, "D M"]) -> Float[Array, ""]:
        """``log p(u)`` of a result of :meth:`draw`, summed over outputs; call it on :meth:`given_draw`."""
        v = draw if self.whiten else self.whitened(draw)
        return log_normal(jnp.sum(jnp.square(v)), 2 * self._log_det_of_prior(len(v)), v.size)

    def log_density(self, m: Float[Array, "M D"], form: Form, draw: Float[Array, "D M"]) -> Float[Array, ""]:
        """``log q(u)`` of a result of :meth:`draw`, summed over outputs, in nats."""
        log_det = 0.0
        if self.whiten:
            log_det = 2 * self._log_det_of_prior(len(draw))
            draw = self.whitened(draw) if self.deterministic else draw  # on a grid, draw() returns u
        square, own = form.distance(draw - m.T)
        return log_normal(square, own + log_det, draw.size)

    def whitened(self, u: Float[Array, "D M"]) -> Float[Array, "D M"]:
        """``L^-1 u``."""
        checks.unwritten(self, "whitened(u)")

    def _log_det_of_prior(self, num_outputs: int) -> Float[Array, ""]:
        """``log |L|``, summed over outputs."""
        return jnp.sum(jnp.broadcast_to(log_det(self.L), num_outputs))


def log_normal(square: Array, log_det: Any, size: int) -> Float[Array, ""]:
    """The log density of ``size`` normal numbers, from the squared distance and the log determinant."""
    return -(square + log_det + size * LOG_2PI) / 2


def _shapes(value: Any) -> Any:
    return [x.shape for x in value] if isinstance(value, tuple | list) else value.shape
