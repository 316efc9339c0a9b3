"""Which form can the covariance ``S`` of ``q(u)`` have? Each form has its parameters, and the algebra that it allows.

Import the module, ``forms.Full``, ``forms.LowRank(rank=8)``: some matrices of :mod:`gpzoo.linalg` have the same names.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jax.scipy.linalg import solve_triangular
from jaxtyping import Float, PRNGKeyArray
from numpyro.distributions import constraints

from gpzoo import _checks as checks
from gpzoo import linalg
from gpzoo._pytree import Fields, static
from gpzoo.inducing.grid import InducingGrid
from gpzoo.inducing.variables import InducingVariable
from gpzoo.linalg.quadratic import lower_squares, lower_trace, spread, squares
from gpzoo.processes.process import rows_first

if TYPE_CHECKING:
    from gpzoo.posteriors.conditional import Conditional

__all__ = ["BlockDiagonal", "Diagonal", "Form", "Full", "Kronecker", "LowRank"]

#: Grid points along one axis beyond which the prior over them is not factorised unless asked for.
LARGE_GRID = 256


class Form(Fields):
    """A form of the covariance ``S`` of ``q(u)``, and a covariance of that form once it has values.

    A form is named by its class alone: ``InducingGuide(program, kmeans(100), covariance=MyForm())``. Its annotated
    fields are its parameters: the field ``scale`` of site ``f`` is the parameter ``f_scale``. A form
    of your own says how its parameters start and, in the simplest case, which other form has the same covariance::

        class Isotropic(Form):
            scale: Array
            constraints = {"scale": softplus_positive}

            def start(self, conditional, scale):
                return Isotropic(jnp.full(conditional.outputs, scale, conditional.dtype))

            def by_output(self, num_inducing, num_outputs):
                return forms.Diagonal(jnp.broadcast_to(self.scale, (num_inducing, num_outputs or 1)))

    Instead of :meth:`by_output` it can define :meth:`root`, and any other operation that has a shorter way. These
    operations are called on results of :meth:`by_output` only.

    Args:
        *values: values of the fields, in order; none for a form that is only a name.
    """

    #: Constraints of the parameters; those not named are real.
    constraints: ClassVar[Mapping[str, constraints.Constraint]] = {}
    #: Whether :meth:`parts` has a diagonal. On a grid of one axis such a covariance needs no factor of the prior.
    has_diagonal: ClassVar[bool] = False

    def __init__(self, *values: Any) -> None:
        if values and len(values) != len(self.data_fields):
            raise TypeError(f"{type(self).__name__} has the values {self.data_fields}, got {len(values)}.")
        for field, value in zip(self.data_fields, values or (None,) * len(self.data_fields), strict=True):
            setattr(self, field, value)

    @property
    def has_values(self) -> bool:
        """Whether this is a covariance, and not only the name of a form."""
        return all(getattr(self, field) is not None for field in self.data_fields)

    def with_values(self, **values: Any) -> Self:
        """This form with other values of its fields."""
        return self._with_fields(**values)

    # -- as parameters -----------------------------------------------------------------------------------------------

    def check(self, conditional: Conditional) -> None:
        """Refuse inducing variables that do not fit this form; by default grids of several axes.

        Args:
            conditional: the :class:`~gpzoo.posteriors.conditional.Conditional` of the site.

        Raises:
            ValueError: naming the site.
        """
        grid = conditional.inducing
        if isinstance(grid, InducingGrid) and grid.num_axes > 1:
            raise _does_not_go(self, conditional)
        if conditional.toeplitz and not self.has_diagonal:
            raise ValueError(
                f"{type(self).__name__} needs the factors of the prior over the grid of site {conditional.site!r}: "
                "Interpolation(..., toeplitz=False)."
            )

    def start(self, conditional: Conditional, scale: float | Array) -> Self:
        """Initial values.

        Args:
            conditional: the :class:`~gpzoo.posteriors.conditional.Conditional` of the site, which knows the prior of
                ``u``, its shape and precision.
            scale: factor of the standard deviations that fit the prior.
        """
        raise NotImplementedError

    def check_values(self, conditional: Conditional) -> None:
        """Refuse values of other shapes than those at the start.

        Raises:
            ValueError: naming the site and the shapes.
        """
        wanted = jax.eval_shape(lambda: self.start(conditional, 1.0))
        for field in self.data_fields:
            found, shape = getattr(self, field), _shapes(getattr(wanted, field))
            name = f"{conditional.site}_{field}"
            several = isinstance(found, tuple | list)
            if several != isinstance(shape, list):
                kind = f"{len(found)} arrays" if several else f"one array of shape {found.shape}"
                raise ValueError(
                    f"{name} is {kind}, but the guide has covariance={_label(self)}. BlockDiagonal(*blocks).dense() "
                    "(gpzoo.linalg) makes one array of blocks."
                )
            if _shapes(found) != shape:
                kind = f"blocks of shapes {_shapes(found)}" if several else f"shape {found.shape}"
                raise ValueError(
                    f"The {field} of q(u) of site {conditional.site!r} has {kind}, expected {shape} for "
                    f"{type(self).__name__}."
                )

    def by_output(self, num_inducing: int, num_outputs: int | None) -> Form:
        """This covariance with an axis for outputs, of length 1 where the site has none.

        By default it is the first axis of every value.
        """
        return self if num_outputs is not None else jax.tree.map(lambda x: x[None], self)

    # -- as parameters that natural gradients train ------------------------------------------------------------------

    def natural_step(
        self, mean: Float[Array, "M *D"], slope: Float[Array, "M *D"], slopes: Any, rate: Array, step: Array | int
    ) -> tuple[Float[Array, "M *D"], Form, Array]:
        """A step of ``q(u)`` along the natural gradient of a loss (Salimbeni, Eleftheriadis and Hensman 2018).

        With ``g`` the loss's derivatives by ``m`` and ``S``, ``S_new^-1 = S^-1 + 2 rate g_S`` and ``m_new = m - rate
        S_new g_m``. It is the same for ``u`` and whitened ``v``.

        Args:
            mean: ``m``, ``[M]`` or ``[M, D]``.
            slope: the loss's derivative by it.
            slopes: its derivatives by the values of this form.
            rate: step length, a number; 1 is exact where all but ``q(u)`` is fixed and the likelihood is Gaussian.
            step: number of the step, from 0.

        Returns:
            The new mean and form, and 1 if the step was shortened because it led to no covariance, else 0.

        Raises:
            NotImplementedError: if the form has no such step.
        """
        raise NotImplementedError

    # -- as a covariance, by output ----------------------------------------------------------------------------------

    def root(self) -> Any:
        """A matrix ``R`` with ``S = R R^T``: ``[D, M, K]``, block-diagonal or Kronecker.

        If ``R`` is square it is triangular, unless :meth:`log_det` is overridden.
        """
        raise NotImplementedError

    def parts(self) -> tuple[Float[Array, "D M R"] | None, Float[Array, "D M"]]:
        """``V``, if it has one, and variances ``d``: ``S = V V^T + diag(d)``.

        Only where :attr:`has_diagonal`.
        """
        raise NotImplementedError

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

    def draw(self, key: PRNGKeyArray) -> Float[Array, "M D"]:
        """A draw of ``u`` less its mean."""
        R = self.root()
        noise = random.normal(key, (R.shape[-1], R.shape[0]), R.dtype)
        return (R @ noise.T[:, :, None])[:, :, 0].T


class Full(Form):
    """``S = L L^T`` for any lower-triangular ``L``.

    Args:
        scale: ``L``, ``[M, M]`` or ``[D, M, M]``; what lies above the diagonal is ignored, and the diagonal's signs do
            not matter.
    """

    scale: Any

    def start(self, conditional: Conditional, scale: float | Array) -> Full:
        """The prior's factor times ``scale``."""
        root = conditional.start_root()
        return Full(_each_output(root.dense() if hasattr(root, "dense") else root, conditional, scale))

    def by_output(self, num_inducing: int, num_outputs: int | None) -> Full:
        """See :meth:`Form.by_output`."""
        return Full(jnp.tril(self.scale if num_outputs is not None else self.scale[None]))

    def root(self) -> Float[Array, "D M M"]:
        """``L``."""
        return self.scale

    def squares(self, B: Float[Array, "M N"] | Float[Array, "D M N"]) -> Float[Array, "D N"]:
        """See :meth:`Form.squares`."""
        return lower_squares(B, self.scale)

    def trace(self) -> Float[Array, ""]:
        """See :meth:`Form.trace`."""
        return lower_trace(self.scale)

    def natural_step(
        self, mean: Float[Array, "M *D"], slope: Float[Array, "M *D"], slopes: Any, rate: Array, step: Array | int
    ) -> tuple[Float[Array, "M *D"], Form, Array]:
        """See :meth:`Form.natural_step`."""
        scale, shortened = _natural_factor(self.scale, slopes.scale, rate)
        form = Full(scale)
        return _natural_mean(mean, slope, form, rate), form, shortened


class BlockDiagonal(Form):
    """Independent blocks of inducing variables, each with a full covariance (convolutional GPs, appendix C).

    Args:
        scale: a lower-triangular factor for each block, ``[M_i, M_i]`` or ``[D, M_i, M_i]``.
    """

    scale: Any

    def check(self, conditional: Conditional) -> None:
        """Refuse inducing variables that are not in blocks; see :meth:`Form.check`."""
        if isinstance(conditional.inducing, InducingGrid):
            raise _does_not_go(self, conditional)
        if not isinstance(conditional.L, linalg.BlockDiagonal):
            raise ValueError(
                f"covariance={_label(self)} needs blocks of inducing variables at site {conditional.site!r}, such as "
                "blocks(unique_patches(100), kmeans(100)) for a sum of two kernels: its Kuu has none."
            )

    def start(self, conditional: Conditional, scale: float | Array) -> BlockDiagonal:
        """The factors of the prior's blocks times ``scale``."""
        return BlockDiagonal(tuple(_each_output(L, conditional, scale) for L in conditional.start_root().blocks))

    def by_output(self, num_inducing: int, num_outputs: int | None) -> BlockDiagonal:
        """See :meth:`Form.by_output`."""
        return BlockDiagonal(_triangular(self.scale, num_outputs))

    def root(self) -> linalg.BlockDiagonal:
        """The factors on the diagonal."""
        return linalg.BlockDiagonal(*self.scale)

    def natural_step(
        self, mean: Float[Array, "M *D"], slope: Float[Array, "M *D"], slopes: Any, rate: Array, step: Array | int
    ) -> tuple[Float[Array, "M *D"], Form, Array]:
        """See :meth:`Form.natural_step`; each block takes a step of its own."""
        found = [_natural_factor(L, g, rate) for L, g in zip(self.scale, slopes.scale, strict=True)]
        scales, shortened = zip(*found, strict=True)
        form = BlockDiagonal(tuple(scales))
        return _natural_mean(mean, slope, form, rate), form, reduce(jnp.maximum, shortened)


class Kronecker(Form):
    """A product of full covariances along the axes of a grid (SV-DKL, eq. 10-11).

    Args:
        scale: a lower-triangular factor along each axis, ``[M_i, M_i]`` or ``[D, M_i, M_i]``.
    """

    scale: Any

    def check(self, conditional: Conditional) -> None:
        """Refuse all but grids of several axes; see :meth:`Form.check`."""
        grid = conditional.inducing
        if not isinstance(grid, InducingGrid) or grid.num_axes == 1:
            raise _does_not_go(self, conditional)

    def start(self, conditional: Conditional, scale: float | Array) -> Kronecker:
        """The prior's factors along each axis, the first times ``scale``."""
        first, *others = conditional.start_root().factors
        rest = (_each_output(L, conditional, 1.0) for L in others)
        return Kronecker((_each_output(first, conditional, scale), *rest))

    def by_output(self, num_inducing: int, num_outputs: int | None) -> Kronecker:
        """See :meth:`Form.by_output`."""
        return Kronecker(_triangular(self.scale, num_outputs))

    def root(self) -> linalg.Kronecker:
        """The product of the factors."""
        return linalg.Kronecker(*self.scale)

    def log_det(self) -> Float[Array, ""]:
        """See :meth:`Form.log_det`."""
        R = self.root()
        pairs = zip(R.sizes, self.scale, strict=True)
        return linalg.total(R.shape[-1] / size * jnp.sum(jnp.log(jnp.square(linalg.diagonal(F)))) for size, F in pairs)

    def trace(self) -> Float[Array, ""]:
        """See :meth:`Form.trace`."""
        return jnp.sum(math.prod(jnp.sum(jnp.square(F), axis=(-2, -1)) for F in self.scale))

    def natural_step(
        self, mean: Float[Array, "M *D"], slope: Float[Array, "M *D"], slopes: Any, rate: Array, step: Array | int
    ) -> tuple[Float[Array, "M *D"], Form, Array]:
        """See :meth:`Form.natural_step`; the factors take turns, each as if the others were fixed."""
        scales, shortened = [], jnp.zeros((), mean.dtype)
        for axis, (L, g) in enumerate(zip(self.scale, slopes.scale, strict=True)):
            # The others scale a factor's part of the metric.
            own = jnp.where(step % len(self.scale) == axis, rate * (L.shape[-1] / mean.shape[0]), 0)
            scale, over = _natural_factor(L, g, own)
            scales.append(scale)
            shortened = jnp.maximum(shortened, over)
        form = Kronecker(tuple(scales))
        return _natural_mean(mean, slope, form, rate), form, shortened


class Diagonal(Form):
    """Independent inducing variables.

    Args:
        scale: standard deviations, ``[M]`` or ``[M, D]``.
    """

    scale: Any
    constraints: ClassVar = {"scale": constraints.softplus_positive}
    has_diagonal = True

    def start(self, conditional: Conditional, scale: float | Array) -> Diagonal:
        """Standard deviations that fit the prior, times ``scale``."""
        return Diagonal(_start_deviations(conditional, scale))

    def by_output(self, num_inducing: int, num_outputs: int | None) -> Diagonal:
        """The standard deviations of each output in a column."""
        return self if num_outputs is not None else Diagonal(self.scale[:, None])

    def root(self) -> Float[Array, "D M M"]:
        """The diagonal matrices."""
        return self.scale.T[:, :, None] * jnp.eye(self.scale.shape[0], dtype=self.scale.dtype)

    def parts(self) -> tuple[None, Float[Array, "D M"]]:
        """No columns, and the variances."""
        return None, jnp.square(self.scale.T)

    def spread(self, B: Float[Array, "M N"] | Float[Array, "D M N"]) -> Float[Array, "D K N"]:
        """See :meth:`Form.spread`."""
        return self.scale.T[:, :, None] * B

    def squares(self, B: Float[Array, "M N"] | Float[Array, "D M N"]) -> Float[Array, "D N"]:
        """See :meth:`Form.squares`."""
        return jnp.einsum("md,mn->dn" if B.ndim == 2 else "md,dmn->dn", jnp.square(self.scale), jnp.square(B))

    def log_det(self) -> Float[Array, ""]:
        """See :meth:`Form.log_det`."""
        return jnp.sum(jnp.log(jnp.square(self.scale)))

    def trace(self) -> Float[Array, ""]:
        """See :meth:`Form.trace`."""
        return jnp.sum(self.scale * self.scale)

    def draw(self, key: PRNGKeyArray) -> Float[Array, "M D"]:
        """See :meth:`Form.draw`."""
        return self.scale * random.normal(key, self.scale.shape, self.scale.dtype)

    def natural_step(
        self, mean: Float[Array, "M *D"], slope: Float[Array, "M *D"], slopes: Any, rate: Array, step: Array | int
    ) -> tuple[Float[Array, "M *D"], Form, Array]:
        """See :meth:`Form.natural_step`; each variable takes a step of its own, as in Jacobi's method."""
        B = 1 + rate * self.scale * slopes.scale
        inside = B > 4 * jnp.finfo(B.dtype).eps * jnp.maximum(jnp.abs(B), 1)
        form = Diagonal(self.scale / jnp.sqrt(jnp.where(inside, B, 1 / LARGEST_GROWTH)))
        return mean - rate * jnp.square(form.scale) * slope, form, 1 - jnp.all(inside).astype(mean.dtype)


class LowRank(Form):
    """``S = V V^T + diag(d^2)``, for grids of one axis: with it the prior over them is never factorised.

    Args:
        scale: the standard deviations ``d``, ``[M]`` or ``[M, D]``.
        factor: ``V``, ``[M, R]`` or ``[D, M, R]``.
        rank: ``R``, where no values are given.
    """

    scale: Array | Any
    factor: Array | Any
    rank: int = static(default=16)
    constraints: ClassVar = {"scale": constraints.softplus_positive}
    has_diagonal = True

    def __init__(self, scale: Array | None = None, factor: Array | None = None, *, rank: int = 16) -> None:
        super().__init__(scale, factor)
        self.rank = checks.positive_int("rank", rank if factor is None else factor.shape[-1])

    def check(self, conditional: Conditional) -> None:
        """Refuse all but grids of one axis whose prior has no factor; see :meth:`Form.check`."""
        if not conditional.toeplitz:
            raise _does_not_go(self, conditional)

    def start(self, conditional: Conditional, scale: float | Array) -> LowRank:
        """The deviations of :class:`Diagonal` and the principal components of a smooth prior, all times ``scale``."""
        M, dtype = conditional.num_inducing, conditional.dtype
        position = (jnp.arange(M, dtype=dtype) + 0.5) / M
        # Smooth stationary priors consist of such waves, with less variance at higher frequencies.
        waves = jnp.cos(jnp.pi * position[:, None] * jnp.arange(min(self.rank, M), dtype=dtype)) * jnp.sqrt(2 / M)
        waves = waves.at[:, 0].divide(jnp.sqrt(2.0).astype(dtype))
        return LowRank(_start_deviations(conditional, scale), _each_output(waves, conditional, scale))

    def by_output(self, num_inducing: int, num_outputs: int | None) -> LowRank:
        """The deviations of each output in a column, and the factors of each output."""
        return self if num_outputs is not None else LowRank(self.scale[:, None], self.factor[None])

    def parts(self) -> tuple[Float[Array, "D M R"], Float[Array, "D M"]]:
        """``V`` and the variances ``d^2``."""
        return self.factor, jnp.square(self.scale.T)


# -- natural gradients -------------------------------------------------------------------------------------------------

#: A variance that a step would make infinite or negative grows to four times what it was.
LARGEST_GROWTH = 4.0


def _natural_factor(
    L: Float[Array, "*D M M"], slope: Float[Array, "*D M M"], rate: Array
) -> tuple[Float[Array, "*D M M"], Float[Array, ""]]:
    """The lower factor of ``S_new`` from that of ``S`` and a loss's derivative by it, and whether it backed off.

    ``S_new = L B^-1 L^T`` with ``B = I + 2 rate L^T g_S L``, which follows from the derivative by ``L``. Nothing is
    divided by ``S``, which can be nearly singular.
    """
    L, M = jnp.tril(L), L.shape[-1]
    half = jnp.tril(linalg.matmul(L.mT, jnp.tril(slope)))
    B = jnp.eye(M, dtype=L.dtype) + rate * (half + jnp.tril(half, -1).mT)

    def upper(B: Array) -> Array:
        """``U`` with ``U U^T = B``, so that ``L U^-T`` is lower."""
        return jnp.flip(jnp.linalg.cholesky(jnp.flip(B, (-2, -1)), symmetrize_input=False), (-2, -1))

    def backed_off() -> Array:
        values, vectors = jnp.linalg.eigh(B)
        values = jnp.maximum(values, 1 / LARGEST_GROWTH)
        held = upper(linalg.matmul(vectors * values[..., None, :], vectors.mT))
        return jnp.where(inside[..., None, None], U, held)

    U = upper(B)
    # Rounding alone can leave pivots below this.
    least = 4 * M * jnp.finfo(B.dtype).eps * jnp.max(jnp.abs(B), axis=(-2, -1))
    inside = jnp.all(jnp.square(linalg.diagonal(U)) > least[..., None], axis=-1)
    every = jnp.all(inside)
    U = lax.cond(every, lambda: U, backed_off)
    return jnp.tril(solve_triangular(U, L.mT, lower=False).mT), 1 - every.astype(L.dtype)


def _natural_mean(
    mean: Float[Array, "M *D"], slope: Float[Array, "M *D"], form: Form, rate: Array
) -> Float[Array, "M *D"]:
    """``m - rate S g`` for each output."""
    R = form.by_output(mean.shape[0], None if mean.ndim == 1 else mean.shape[1]).root()
    times: Any = linalg.matmul if isinstance(R, Array) else operator.matmul
    change = times(R, times(R.mT, slope.reshape(mean.shape[0], -1).T[..., None]))
    return mean - rate * change[..., 0].T.reshape(mean.shape)


#: Short names of forms.
NAMES: dict[str, type[Form]] = {
    "full": Full,
    "block_diagonal": BlockDiagonal,
    "kronecker": Kronecker,
    "low_rank": LowRank,
    "diagonal": Diagonal,
}


def form_of(covariance: str | Form | type[Form] | None, inducing: Any) -> Form:
    """The form that ``covariance`` of a guide means.

    Args:
        covariance: one of :data:`NAMES`, a form, or its class; ``None`` for the usual one of these inducing variables.
        inducing: inducing variable, or its initialiser.

    Raises:
        ValueError: for anything else.
    """
    if covariance is None:
        return _usual(inducing)
    if isinstance(covariance, Form):
        return covariance
    if isinstance(covariance, type) and issubclass(covariance, Form):
        return covariance()
    if not isinstance(covariance, str) or covariance not in NAMES:
        names = ", ".join(map(repr, NAMES))
        raise ValueError(f"covariance must be one of {names}, None, or a form of gpzoo.posteriors; got {covariance!r}.")
    return NAMES[covariance]()


def _usual(inducing: InducingVariable | Any) -> Form:
    if not isinstance(inducing, InducingGrid):
        return Full()
    if inducing.num_axes > 1:
        return Kronecker()
    return Full() if inducing.num_inducing <= LARGE_GRID else LowRank()


def _label(form: Form) -> str:
    """The name by which a user calls a form."""
    return next((repr(name) for name, kind in NAMES.items() if kind is type(form)), type(form).__name__)


def _does_not_go(form: Form, conditional: Conditional) -> ValueError:
    inducing = conditional.inducing
    grid = isinstance(inducing, InducingGrid)
    what = f"a grid of {inducing.num_axes} axes" if grid else type(inducing).__name__
    return ValueError(
        f"InducingGuide(covariance={_label(form)}) does not go with {what} (site {conditional.site!r}). A grid of one "
        "axis has 'full', 'low_rank' or 'diagonal', of several 'kronecker'; other inducing variables have 'full', "
        "'diagonal' or, in blocks, 'block_diagonal'."
    )


def _shapes(value: Any) -> Any:
    return [x.shape for x in value] if isinstance(value, tuple | list) else value.shape


def _triangular(
    factors: tuple[Float[Array, "*D _ _"], ...], num_outputs: int | None
) -> tuple[Float[Array, "D M_i M_i"], ...]:
    return tuple(jnp.tril(F if num_outputs is not None else F[None]) for F in factors)


def _each_output(
    root: Float[Array, "... M K"], conditional: Conditional, scale: float | Array
) -> Float[Array, "*D M K"]:
    return scale * jnp.broadcast_to(root, (*conditional.outputs, *root.shape[-2:]))


def _start_deviations(conditional: Conditional, scale: float | Array) -> Float[Array, "M *D"]:
    shape = (conditional.num_inducing, *conditional.outputs)
    return scale * jnp.sqrt(rows_first(conditional.start_variances(), shape))
