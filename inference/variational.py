"""The parameters of ``q(u)``: which forms its covariance can have, and where they start."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jax import Array
from numpyro.distributions import constraints

from gpzoo.inducing.covariances import Kuu
from gpzoo.inducing.grid import InducingGrid, axis_covariances
from gpzoo.inducing.variables import InducingVariable
from gpzoo.linalg.factorise import cholesky
from gpzoo.linalg.operators import BlockDiagonal, Kronecker, diagonal
from gpzoo.linalg.toeplitz import ToeplitzInverse
from gpzoo.posteriors.grid import GridPosterior, LowRank, prior_column
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.process import GaussianProcess, rows_first

#: What ``covariance`` of a guide can be.
FORMS = ("full", "block_diagonal", "kronecker", "low_rank", "diagonal")

#: Grid points along one axis beyond which the prior over them is not factorised unless asked for.
LARGE_GRID = 256


def usual_form(inducing: InducingVariable) -> str:
    """The form of the covariance where a guide is not told."""
    if not isinstance(inducing, InducingGrid):
        return "full"
    if inducing.num_axes > 1:
        return "kronecker"
    return "full" if inducing.num_inducing <= LARGE_GRID else "low_rank"


def posterior_at(
    name: str,
    prior: GaussianProcess,
    inducing: InducingVariable,
    *,
    whiten: bool,
    covariance: str | None,
    initial_scale: float,
    rank: int,
    **options: Any,
) -> InducingPosterior:
    """The inducing posterior of a site, its mean and covariance being ``numpyro.param`` sites named after it.

    Args:
        name: of the site; the parameters are ``<name>_mean``, ``<name>_scale`` and, of a low-rank covariance,
            ``<name>_factor``.
        prior: the site's prior.
        inducing: its inducing variables.
        whiten: whether ``q`` is over whitened variables.
        covariance: one of :data:`FORMS`; ``None`` for the usual.
        initial_scale: factor of the initial standard deviations.
        rank: of a low-rank covariance.
        **options: of :class:`~gpzoo.InducingPosterior`.

    Raises:
        ValueError: for a form that does not go with the inducing variables, or a stored parameter of another form.
    """
    covariance = usual_form(inducing) if covariance is None else covariance
    start = _Start(name, prior, inducing, whiten, initial_scale)
    shape = start.prior_shape(covariance)
    M = shape.shape[-1]
    mean = numpyro.param(f"{name}_mean", jnp.zeros((M, *start.outputs), prior.X.dtype))
    positive = covariance in ("diagonal", "low_rank")
    scale = numpyro.param(
        f"{name}_scale",
        lambda _: getattr(start, covariance)(shape),
        constraint=constraints.softplus_positive if positive else constraints.real,
    )
    blocks = covariance in ("block_diagonal", "kronecker")
    if isinstance(scale, tuple | list) != blocks:
        found = f"{len(scale)} arrays" if isinstance(scale, tuple | list) else f"one array of shape {scale.shape}"
        raise ValueError(
            f"{name}_scale is {found}, but the guide has covariance={covariance!r}. BlockDiagonal(*blocks).dense() "
            "(gpzoo.linalg) makes one array of blocks."
        )
    if blocks:
        scale = (BlockDiagonal if covariance == "block_diagonal" else Kronecker)(*scale)
    elif covariance == "low_rank":
        scale = LowRank(scale, numpyro.param(f"{name}_factor", lambda _: start.principal(rank)))
    kind = GridPosterior if isinstance(inducing, InducingGrid) else InducingPosterior
    return kind(prior, inducing, mean, scale, whiten=whiten, site=name, **options)


class _Start:
    """Initial standard deviations or factors, those of the prior times a factor."""

    def __init__(
        self, name: str, prior: GaussianProcess, inducing: InducingVariable, whiten: bool, factor: float
    ) -> None:
        self.name, self.prior, self.inducing, self.whiten = name, prior, inducing, whiten
        self.dtype = prior.X.dtype
        self.factor = jnp.asarray(factor, self.dtype)
        self.outputs = () if prior.num_outputs is None else (prior.num_outputs,)
        self.grid = isinstance(inducing, InducingGrid)

    def prior_shape(self, covariance: str) -> Any:
        """The shape of Kuu, which is an array or has structure."""
        if self.grid:
            several = self.inducing.num_axes > 1
            if covariance == "block_diagonal" or several != (covariance == "kronecker"):
                self._refuse(covariance, f"a grid of {self.inducing.num_axes} axes")
            return jax.ShapeDtypeStruct((self.inducing.num_inducing,) * 2, self.dtype)
        shape = jax.eval_shape(lambda u, k: Kuu(u, k), self.inducing, self.prior.kernel)
        if covariance == "block_diagonal" and not isinstance(shape, BlockDiagonal):
            raise ValueError(
                f"InducingGuide(covariance='block_diagonal') needs blocks of inducing variables at site {self.name!r}, "
                "such as blocks(unique_patches(100), kmeans(100)) for a sum of two kernels."
            )
        if covariance in ("kronecker", "low_rank"):
            self._refuse(covariance, type(self.inducing).__name__)
        return shape

    def _refuse(self, covariance: str, what: str) -> None:
        raise ValueError(
            f"InducingGuide(covariance={covariance!r}) does not go with {what} (site {self.name!r}). A grid of one "
            "axis has 'full', 'low_rank' or 'diagonal', of several 'kronecker'; other "
            "inducing variables have 'full', 'diagonal' or, in blocks, 'block_diagonal'."
        )

    def _with_outputs(self, root: Array) -> Array:
        return self.factor * jnp.broadcast_to(root, (*self.outputs, *root.shape[-2:]))

    def full(self, shape: Any) -> Array:
        """A Cholesky factor ``[M, M]`` or ``[D, M, M]``."""
        if self.whiten:
            return self._with_outputs(jnp.eye(shape.shape[-1], dtype=self.dtype))
        if self.grid:
            root = cholesky(self._along()[0], f"Kuu of site {self.name!r}", self.prior.jitter)
        else:
            root = cholesky(Kuu(self.inducing, self.prior.kernel), f"Kuu of site {self.name!r}", self.prior.jitter)
        return self._with_outputs(root.dense() if isinstance(root, BlockDiagonal) else root)

    def block_diagonal(self, shape: Any) -> tuple[Array, ...]:
        """A Cholesky factor for each block."""
        if self.whiten:
            roots = shape.map(lambda block: jnp.eye(block.shape[-1], dtype=self.dtype))
        else:
            roots = cholesky(Kuu(self.inducing, self.prior.kernel), f"Kuu of site {self.name!r}", self.prior.jitter)
        return tuple(self._with_outputs(root) for root in roots.blocks)

    def kronecker(self, shape: Any) -> tuple[Array, ...]:
        """A Cholesky factor along each axis."""
        if self.whiten:
            roots = [jnp.eye(size, dtype=self.dtype) for size in self.inducing.sizes]
        else:
            roots = [cholesky(K, f"Kuu of site {self.name!r}", self.prior.jitter) for K in self._along()]
        first, *others = roots
        return (self._with_outputs(first), *(self._with_outputs(root) / self.factor for root in others))

    def diagonal(self, shape: Any) -> Array:
        """Standard deviations, ``[M]`` or ``[M, D]``."""
        M = shape.shape[-1]
        if self.grid:
            # The best independent variables for a given prior have its conditional variances.
            variance = 1 / self._precisions()
        elif self.whiten:
            variance = jnp.ones(M, self.dtype)
        else:
            variance = diagonal(Kuu(self.inducing, self.prior.kernel))
        return self.factor * jnp.sqrt(rows_first(variance, (M, *self.outputs)))

    low_rank = diagonal

    def _precisions(self) -> Array:
        column = prior_column(self.prior, self.inducing)
        inverse = lambda column: ToeplitzInverse(column).diagonal()  # noqa: E731
        return jax.vmap(inverse)(column) if column.ndim == 2 else inverse(column)

    def principal(self, rank: int) -> Array:
        """The principal components of the prior, ``[M, R]`` or ``[D, M, R]``; whitened, of a smooth one."""
        M = self.inducing.num_inducing
        position = (jnp.arange(M, dtype=self.dtype) + 0.5) / M
        # Waves of growing frequency are what smooth stationary priors are made of.
        waves = jnp.cos(jnp.pi * position[:, None] * jnp.arange(min(rank, M), dtype=self.dtype)) * jnp.sqrt(2 / M)
        waves = waves.at[:, 0].divide(jnp.sqrt(2.0).astype(self.dtype))
        return self._with_outputs(waves)

    def _along(self) -> tuple[Array, ...]:
        return axis_covariances(self.inducing, self.prior.kernel, self.dtype)
