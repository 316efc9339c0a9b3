"""The forms of the covariance ``S`` of ``q(u)``, each with its parameters and the algebra that it allows.

Import the module: ``forms.Full``, ``forms.LowRank(rank=8)``.
"""

from __future__ import annotations

import math
import operator
from functools import reduce
from typing import Any, ClassVar, Self

import jax.numpy as jnp
from jax import Array, lax, random
from jax.scipy.linalg import solve_triangular
from jaxtyping import Float, PRNGKeyArray
from numpyro.distributions import constraints

from gpzoo import _checks as checks
from gpzoo import linalg
from gpzoo._pytree import static
from gpzoo.linalg.operators import einsum, lower_gram
from gpzoo.linalg.quadratic import lower_squares, lower_trace, spread
from gpzoo.posteriors.base import Conditional, Form
from gpzoo.processes.process import to_event_shape

__all__ = ["BlockDiagonal", "Diagonal", "Form", "Full", "Kronecker", "LowRank", "Orthogonal"]

#: With more grid points than this along one axis, the prior is factorised only if the user asks for it.
LARGE_GRID = 256


class Full(Form):
    """A full covariance, ``S = L L^T`` for any lower-triangular ``L``.

    Args:
        scale: ``L``, ``[M, M]`` or ``[D, M, M]``. Entries above the diagonal are ignored, and the signs of the diagonal
            do not matter.
    """

    scale: Any
    short_name = "full"

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

    def extended(
        self, mean: Float[Array, "M *D"], old: Conditional, new: Conditional
    ) -> tuple[Float[Array, "_ *D"], Full]:
        """See :meth:`Form.extended`: new whitened variables are independent and standard normal."""
        M, outputs = old.num_inducing, old.prior.num_outputs
        m = mean.reshape(M, -1)
        columns = jnp.concatenate([m.T[:, :, None], self.by_output(M, outputs).scale], axis=-1)  # [D, M, 1 + M]
        if not old.whiten:
            columns = linalg.solve_lower(old.L, columns)
        more = new.num_inducing - M
        columns = jnp.pad(columns, ((0, 0), (0, more), (0, more)))
        added = jnp.arange(M, new.num_inducing)
        columns = columns.at[:, added, 1 + added].set(1)
        if not old.whiten:
            columns = linalg.matmul(new.L, columns)
        m, scale = columns[..., 0], jnp.tril(columns[..., 1:])
        return (m[0], Full(scale[0])) if outputs is None else (m.T, Full(scale))

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


class _OfFactors(Form):
    """A covariance given by several lower-triangular factors."""

    scale: Any

    def by_output(self, num_inducing: int, num_outputs: int | None) -> Self:
        """See :meth:`Form.by_output`."""
        return type(self)(tuple(jnp.tril(F if num_outputs is not None else F[None]) for F in self.scale))

    def rates(self, num_inducing: int, rate: Array, step: Array | int) -> list[Array]:
        """The step length of each factor along its natural gradient."""
        return [rate] * len(self.scale)

    def natural_step(
        self, mean: Float[Array, "M *D"], slope: Float[Array, "M *D"], slopes: Any, rate: Array, step: Array | int
    ) -> tuple[Float[Array, "M *D"], Form, Array]:
        """See :meth:`Form.natural_step`; each factor takes its own step."""
        each = zip(self.scale, slopes.scale, self.rates(mean.shape[0], rate, step), strict=True)
        scales, shortened = zip(*(_natural_factor(*own) for own in each), strict=True)
        form = type(self)(scales)
        return _natural_mean(mean, slope, form, rate), form, reduce(jnp.maximum, shortened)


class BlockDiagonal(_OfFactors):
    """Independent blocks of inducing variables, each with a full covariance (van der Wilk et al. 2017, appendix C).

    Args:
        scale: a lower-triangular factor for each block, ``[M_i, M_i]`` or ``[D, M_i, M_i]``.
    """

    short_name = "block_diagonal"

    def goes_with(self, conditional: Conditional) -> bool:
        """Whether the inducing variables are not a grid; see :meth:`Form.goes_with`."""
        return conditional.inducing.num_axes == 0

    def check(self, conditional: Conditional) -> None:
        """Refuse inducing variables that are not in blocks; see :meth:`Form.check`."""
        super().check(conditional)
        checks.refuse(
            not isinstance(conditional.L, linalg.BlockDiagonalMatrix),
            f"covariance={self.said} needs blocks of inducing variables at site {conditional.site!r}, such as "
            "blocks(unique_patches(100), kmeans(100)) for a sum of two kernels: its Kuu has none.",
        )

    def start(self, conditional: Conditional, scale: float | Array) -> BlockDiagonal:
        """The factors of the prior's blocks times ``scale``."""
        return BlockDiagonal(tuple(_each_output(L, conditional, scale) for L in conditional.start_root().blocks))

    def root(self) -> linalg.BlockDiagonalMatrix:
        """A block-diagonal matrix of the factors."""
        return linalg.BlockDiagonalMatrix(*self.scale)


class Orthogonal(_OfFactors):
    """Two independent sets of inducing variables: one for a projection of the function, one for the rest (SOLVE-GP).

    Pass it to a guide as ``covariance=forms.Orthogonal(first=100)``. In SOLVE-GP (Shi, Titsias and Mnih 2020, *Sparse
    orthogonal variational inference for Gaussian processes*), ``f`` is the sum of two independent parts: its projection
    onto the first set of inducing variables, and the rest. The second set are inducing variables of the rest, with
    their own ``q``. Because ``L`` in ``u = L v`` is lower-triangular, the second part of ``v`` belongs to the rest. So
    SOLVE-GP is ``q(v) = N(m_1, S_1) N(m_2, S_2)``.

    The bound lies between the bound of the first set alone and the bound of a full covariance of all variables. If the
    two sets have the same size, a full covariance needs twice as many parameters and matrix products for each output.

    Args:
        scale: a lower-triangular factor for each set, ``[M_i, M_i]`` or ``[D, M_i, M_i]``.
        first: size of the first set, if no values are given.
    """

    scale: Any
    first: int = static()

    def __init__(self, scale: Any = None, *, first: int = 1) -> None:
        super().__init__(*(() if scale is None else (scale,)))
        self.first = checks.positive_int("first", first if scale is None else scale[0].shape[-1])

    def check(self, conditional: Conditional) -> None:
        """Refuse variables without a second set, on a grid, or not whitened; see :meth:`Form.check`."""
        super().check(conditional)
        checks.refuse(
            not conditional.whiten or conditional.num_inducing <= self.first or conditional.inducing.num_axes,
            f"covariance=Orthogonal(first={self.first}) needs more than {self.first} inducing variables at site "
            f"{conditional.site!r}, which has {conditional.num_inducing}, no grid of them, and whiten=True.",
        )

    def start(self, conditional: Conditional, scale: float | Array) -> Orthogonal:
        """Identity matrices, the factors of the whitened prior, times ``scale``."""
        sizes = self.first, conditional.num_inducing - self.first
        return Orthogonal(tuple(_each_output(jnp.eye(M, dtype=conditional.dtype), conditional, scale) for M in sizes))

    def root(self) -> Float[Array, "D M M"]:
        """A dense matrix with the factors as blocks on its diagonal."""
        return linalg.BlockDiagonalMatrix(*self.scale).dense()

    def spread(self, B: Float[Array, "M N"] | Float[Array, "D M N"]) -> Float[Array, "D K N"]:
        """See :meth:`Form.spread`."""
        return spread(B, linalg.BlockDiagonalMatrix(*self.scale))

    def squares(self, B: Float[Array, "M N"] | Float[Array, "D M N"]) -> Float[Array, "D N"]:
        """See :meth:`Form.squares`."""
        parts = linalg.BlockDiagonalMatrix(*self.scale).split(B)
        return linalg.total(lower_squares(part, own) for part, own in zip(parts, self.scale, strict=True))


class Kronecker(_OfFactors):
    """A product of full covariances along the axes of a grid (Wilson et al. 2016, eq. 10-11).

    Args:
        scale: a lower-triangular factor along each axis, ``[M_i, M_i]`` or ``[D, M_i, M_i]``.
    """

    short_name = "kronecker"

    def goes_with(self, conditional: Conditional) -> bool:
        """Whether the inducing variables are a grid of several axes; see :meth:`Form.goes_with`."""
        return conditional.inducing.num_axes > 1

    def start(self, conditional: Conditional, scale: float | Array) -> Kronecker:
        """The prior's factors along each axis; ``scale`` multiplies the first of them."""
        first, *others = conditional.start_root().factors
        rest = (_each_output(L, conditional, 1.0) for L in others)
        return Kronecker((_each_output(first, conditional, scale), *rest))

    def root(self) -> linalg.KroneckerProduct:
        """The product of the factors."""
        return linalg.KroneckerProduct(*self.scale)

    def log_det(self) -> Float[Array, ""]:
        """See :meth:`Form.log_det`."""
        R = self.root()
        pairs = zip(R.sizes, self.scale, strict=True)
        return linalg.total(R.shape[-1] / size * jnp.sum(jnp.log(jnp.square(linalg.diagonal(F)))) for size, F in pairs)

    def trace(self) -> Float[Array, ""]:
        """See :meth:`Form.trace`."""
        return jnp.sum(math.prod(jnp.sum(jnp.square(F), axis=(-2, -1)) for F in self.scale))

    def rates(self, num_inducing: int, rate: Array, step: Array | int) -> list[Array]:
        """The step length of each factor. The factors take turns: in each step, one changes and the others are fixed.

        Let ``M`` be the number of all grid points, and ``M_i`` the number along axis ``i``. The metric of the natural
        gradient of factor ``i`` is proportional to ``M / M_i``. So its step length is ``rate M_i / M``.
        """
        own = [rate * (L.shape[-1] / num_inducing) for L in self.scale]
        return [jnp.where(step % len(own) == axis, each, 0) for axis, each in enumerate(own)]


class Diagonal(Form):
    """Independent inducing variables.

    Args:
        scale: standard deviations, ``[M]`` or ``[M, D]``.
    """

    scale: Any
    short_name = "diagonal"
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
        """``None`` in place of ``V``, and the variances."""
        return None, jnp.square(self.scale.T)

    def spread(self, B: Float[Array, "M N"] | Float[Array, "D M N"]) -> Float[Array, "D K N"]:
        """See :meth:`Form.spread`."""
        return self.scale.T[:, :, None] * B

    def squares(self, B: Float[Array, "M N"] | Float[Array, "D M N"]) -> Float[Array, "D N"]:
        """See :meth:`Form.squares`."""
        return einsum("md,mn->dn" if B.ndim == 2 else "md,dmn->dn", jnp.square(self.scale), jnp.square(B))

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
        """See :meth:`Form.natural_step`; each variable takes its own step, as in Jacobi's method."""
        B = 1 + rate * self.scale * slopes.scale
        inside = B > 4 * jnp.finfo(B.dtype).eps * jnp.maximum(jnp.abs(B), 1)
        form = Diagonal(self.scale / jnp.sqrt(jnp.where(inside, B, 1 / LARGEST_GROWTH)))
        return mean - rate * jnp.square(form.scale) * slope, form, 1 - jnp.all(inside).astype(mean.dtype)


class LowRank(Form):
    """A low-rank covariance, ``S = V V^T + diag(d^2)``, for grids of one axis; it needs no factor of the prior.

    Args:
        scale: the standard deviations ``d``, ``[M]`` or ``[M, D]``.
        factor: ``V``, ``[M, R]`` or ``[D, M, R]``.
        rank: ``R``, if no values are given.
    """

    scale: Array | Any
    factor: Array | Any
    rank: int = static(default=16)
    short_name = "low_rank"
    constraints: ClassVar = {"scale": constraints.softplus_positive}
    has_diagonal = True

    def __init__(self, scale: Array | None = None, factor: Array | None = None, *, rank: int = 16) -> None:
        super().__init__(scale, factor)
        self.rank = checks.positive_int("rank", rank if factor is None else factor.shape[-1])

    def goes_with(self, conditional: Conditional) -> bool:
        """Whether the inducing variables are a grid of one axis without a factor; see :meth:`Form.goes_with`."""
        return conditional.toeplitz

    def start(self, conditional: Conditional, scale: float | Array) -> LowRank:
        """Deviations as in :class:`Diagonal`, and principal components of a smooth prior, all times ``scale``."""
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

#: Factor by which a variance grows if a step would make it infinite or negative.
LARGEST_GROWTH = 4.0


def _natural_factor(
    L: Float[Array, "*D M M"], slope: Float[Array, "*D M M"], rate: Array
) -> tuple[Float[Array, "*D M M"], Float[Array, ""]]:
    """The lower factor of ``S_new`` from the lower factor ``L`` of ``S`` and a loss's derivative by ``L``.

    ``S_new = L B^-1 L^T`` with ``B = I + 2 rate L^T g_S L``. ``B`` follows from the derivative by ``L``. The function
    never divides by ``S``, because ``S`` can be nearly singular. The second result is 1 if the step was shortened, else
    0.
    """
    L, M = jnp.tril(L), L.shape[-1]
    half = lower_gram(L, jnp.tril(slope))
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
    # Below this limit, a pivot can be due to rounding alone.
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


#: Forms by their short names.
NAMES: dict[str, type[Form]] = {
    str(kind.short_name): kind for kind in (Full, BlockDiagonal, Kronecker, LowRank, Diagonal)
}


def form_of(covariance: str | Form | type[Form] | None, inducing: Any) -> Form:
    """The form for the argument ``covariance`` of a guide.

    Args:
        covariance: one of :data:`NAMES`, a form, or its class; ``None`` means the usual form of these inducing
            variables.
        inducing: inducing variable, or its initialiser.

    Raises:
        ValueError: if ``covariance`` is none of these.
    """
    if covariance is None:
        return _usual(inducing)
    if isinstance(covariance, Form):
        return covariance
    if isinstance(covariance, type) and issubclass(covariance, Form):
        return covariance()
    known = isinstance(covariance, str) and covariance in NAMES
    wanted = f"be one of {', '.join(map(repr, NAMES))}, None, or a form of gpzoo.posteriors;"
    checks.must(known, "covariance", wanted, repr(covariance))
    return NAMES[covariance]()


def _usual(inducing: Any) -> Form:
    axes = getattr(inducing, "num_axes", 0)
    if axes > 1:
        return Kronecker()
    return LowRank() if axes == 1 and inducing.num_inducing > LARGE_GRID else Full()


def _each_output(
    root: Float[Array, "... M K"], conditional: Conditional, scale: float | Array
) -> Float[Array, "*D M K"]:
    return scale * jnp.broadcast_to(root, (*conditional.outputs, *root.shape[-2:]))


def _start_deviations(conditional: Conditional, scale: float | Array) -> Float[Array, "M *D"]:
    shape = (conditional.num_inducing, *conditional.outputs)
    return scale * jnp.sqrt(to_event_shape(conditional.start_variances(), shape))
