"""Inducing variables on regular grids, with local interpolation between them (KISS-GP, Wilson and Nickisch 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Integer

from gpzoo import _checks as checks
from gpzoo._pytree import static
from gpzoo.inducing.kuu_kuf import Kuf, Kuu
from gpzoo.inducing.variables import InducingVariable
from gpzoo.kernels.base import Kernel, Product, Scaled, Sum, same_covariance
from gpzoo.kernels.by_axis import separable
from gpzoo.kernels.constant import Constant, White
from gpzoo.kernels.hilbert import Box
from gpzoo.kernels.stationary import Periodic, Stationary
from gpzoo.linalg.operators import KroneckerProduct

#: Number of neighbouring grid points in the interpolation along each axis, by method.
_NODES = {"cubic": 4, "linear": 2}


class InducingGrid(InducingVariable):
    """Inducing points on a regular grid; ``f`` is interpolated, ``f(x) = w(x)^T u`` (Wilson et al. 2016, section 3).

    The inducing variables are ``u = f(z)`` at the grid points ``z``. ``f`` is a deterministic function of ``u``.
    ``w(x)`` has four nonzero entries along each axis (two for linear interpolation), so the cost per input does not
    depend on the size of the grid. The grid points are not trained. With linear interpolation, the grid ends at the
    bounds. With cubic interpolation, each axis has one grid point below the lower bound and one above the upper bound.

    Inputs outside the bounds are moved to the nearest point inside, so ``f`` is constant outside the bounds.
    :meth:`outside` counts these inputs. A program should squash its features into fixed bounds. If it scales features
    by the values in a batch instead, predictions depend on the batch.

    With more than one axis, the kernel must be a product over the axes. gpzoo computes all results from the factors of
    this product.

    Example:
        >>> import numpy as np
        >>> from gpzoo import InducingGrid
        >>> grid = InducingGrid(5, bounds=(0.0, 1.0), interpolation="linear")
        >>> grid.num_inducing, grid.points("float32").ravel()
        (5, Array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32))
        >>> np.asarray(grid.dense_weights(np.array([[0.25], [0.375]], np.float32))).round(2)
        array([[0. , 1. , 0. , 0. , 0. ],
               [0. , 0.5, 0.5, 0. , 0. ]], dtype=float32)

    Args:
        sizes: number of grid points along each axis; a single number if there is one axis.
        bounds: range of the inputs, ``(lower, upper)`` for all axes or one pair for each axis.
        interpolation: ``"cubic"`` for cubic convolution (Keys 1981), which is exact for quadratic functions; or
            ``"linear"``.

    Raises:
        ValueError: if sizes are not integers or too small for the interpolation, if bounds are not finite or not in
            order, or if ``interpolation`` is neither ``"cubic"`` nor ``"linear"``.
    """

    sizes: tuple[int, ...] = static()
    bounds: tuple[tuple[float, float], ...] = static()
    interpolation: str = static()

    def __init__(
        self,
        sizes: int | Sequence[int],
        bounds: Sequence[float] | Sequence[Sequence[float]] = (-1.0, 1.0),
        *,
        interpolation: str = "cubic",
    ) -> None:
        known = interpolation in _NODES
        checks.must(known, "interpolation", "be 'cubic' or 'linear'", repr(interpolation))
        box = Box(sizes, bounds)
        self.sizes, self.bounds = box.sizes, box.bounds
        checks.refuse(
            not self.sizes or min(self.sizes) < _NODES[interpolation],
            f"An axis of the grid needs at least {_NODES[interpolation]} points for {interpolation} "
            f"interpolation, got sizes {self.sizes}.",
        )
        self.interpolation = interpolation

    # -- the grid ----------------------------------------------------------------------------------------------------

    @property
    def num_axes(self) -> int:
        """Number of columns of an input."""
        return len(self.sizes)

    @property
    def num_nodes(self) -> int:
        """Number of grid points along each axis that enter the interpolation at one input."""
        return _NODES[self.interpolation]

    @property
    def num_inducing(self) -> int:
        """Total number of grid points, ``M``."""
        return int(np.prod(self.sizes))

    @property
    def spacings(self) -> tuple[float, ...]:
        """Distance between neighbouring points along each axis."""
        beyond = self.num_nodes // 2 - 1
        pairs = zip(self.bounds, self.sizes, strict=True)
        return tuple((upper - lower) / (size - 1 - 2 * beyond) for (lower, upper), size in pairs)

    def axes(self, dtype: Any = None) -> tuple[Float[Array, "M_i 1"], ...]:
        """The points of each axis. The grid has all their combinations, and the last axis runs fastest."""
        beyond = self.num_nodes // 2 - 1
        points = (
            lower + step * (np.arange(size) - beyond)
            for (lower, _), step, size in zip(self.bounds, self.spacings, self.sizes, strict=True)
        )
        return tuple(jnp.asarray(x[:, None], dtype) for x in points)

    def points(self, dtype: Any = None) -> Float[Array, "M G"]:
        """All grid points."""
        columns = jnp.meshgrid(*(axis[:, 0] for axis in self.axes(dtype)), indexing="ij")
        return jnp.stack([column.reshape(-1) for column in columns], axis=-1)

    def outside(self, X: Array) -> Integer[Array, "*D"]:
        """Number of inputs outside the bounds, rounding errors aside; ``[...]`` for inputs ``[..., N, num_axes]``."""
        X = self._check(X)
        lower, upper = (jnp.asarray(limits, X.dtype) for limits in zip(*self.bounds, strict=True))
        slack = 10 * float(jnp.finfo(X.dtype).eps) * (upper - lower)
        return jnp.sum(jnp.any((X < lower - slack) | (X > upper + slack), axis=-1), axis=-1)

    # -- interpolation -----------------------------------------------------------------------------------------------

    def weights(
        self, X: Array
    ) -> tuple[tuple[Integer[Array, "*D N"], ...], tuple[Float[Array, "*D N {self.num_nodes}"], ...]]:
        """The sparse interpolation matrix, axis by axis.

        Args:
            X: ``[..., N, num_axes]``.

        Returns:
            For each axis, two arrays. The first has the number of the first grid point that enters the interpolation
            at each input. The second has the weights of this grid point and the next ones, which sum to one.

        Raises:
            ValueError: if ``X`` does not have one column for each axis.
        """
        X = self._check(X)
        first, weights = [], []
        for d, ((lower, upper), step) in enumerate(zip(self.bounds, self.spacings, strict=True)):
            cells = self.sizes[d] - self.num_nodes + 1
            position = (jnp.clip(X[..., d], lower, upper) - lower) / step
            # The upper bound belongs to the last cell.
            cell = jnp.clip(jnp.floor(position), 0, cells - 1)
            first.append(cell.astype(jnp.int32))
            weights.append(_weights(position - cell, self.interpolation))
        return tuple(first), tuple(weights)

    def dense_weights(self, X: Array) -> Float[Array, "*D N M"]:
        """The dense interpolation matrix, for inspection."""
        rows: Any = None
        for size, first, weights in zip(self.sizes, *self.weights(X), strict=True):
            nodes = first[..., None] + jnp.arange(self.num_nodes, dtype=first.dtype)
            here = nodes[..., None] == jnp.arange(size, dtype=nodes.dtype)
            own = jnp.sum(jnp.where(here, weights[..., None], 0), axis=-2)
            rows = own if rows is None else (rows[..., :, None] * own[..., None, :]).reshape(*own.shape[:-1], -1)
        return rows

    def _check(self, X: Array) -> Float[Array, "*D N {self.num_axes}"]:
        X = checks.floating("X", X)
        checks.refuse(
            X.ndim < 2 or X.shape[-1] != self.num_axes,
            f"A grid with {self.num_axes} axes takes inputs [N, {self.num_axes}] (or [D, N, {self.num_axes}], one "
            f"set per output), got shape {tuple(X.shape)}.",
        )
        return X


def _weights(s: Float[Array, "*shape"], interpolation: str) -> Float[Array, "*shape _"]:
    """Weights at distance ``s`` in [0, 1] from the second node (the first node for linear interpolation)."""
    if interpolation == "linear":
        return jnp.stack([1 - s, s], axis=-1)
    # Keys's cubic convolution with a = -1/2, the only third-order choice.
    outer = -s * jnp.square(1 - s) / 2, -(1 - s) * jnp.square(s) / 2
    inner = 1 + jnp.square(s) * (1.5 * s - 2.5), 1 + jnp.square(1 - s) * (1.5 * (1 - s) - 2.5)
    return jnp.stack([outer[0], inner[0], inner[1], outer[1]], axis=-1)


# -- covariances -------------------------------------------------------------------------------------------------------


def axis_covariances(inducing: InducingGrid, kernel: Kernel, dtype: Any) -> tuple[Float[Array, "*D M_i M_i"], ...]:
    """Covariances along each axis; their Kronecker product is ``Kuu``.

    Raises:
        ValueError: if the grid has several axes and the kernel is not a product of stationary kernels on one column
            each.
    """
    axes = inducing.axes(dtype)
    if len(axes) == 1:
        return (kernel(axes[0]),)
    checks.refuse(
        not separable(kernel),
        f"A grid with {len(axes)} axes needs a kernel that is a product of stationary kernels on one column each, "
        f"but {type(kernel).__name__} is not known to be one. RBF and Periodic are; Matern52(active_dims=[0]) * "
        "Matern52(active_dims=[1]) is. A sum of kernels is one GaussianProcess site for each.",
    )
    # A factor is the kernel evaluated with the other columns fixed. Every factor then has the whole variance.
    factors = []
    for d, z in enumerate(axes):
        line = jnp.concatenate([z if i == d else jnp.zeros_like(z) for i in range(len(axes))], axis=1)
        K = kernel(line)
        factors.append(K if d == 0 else K / kernel.diag(line[:1])[..., None])
    return tuple(factors)


def axis_column(inducing: InducingGrid, kernel: Kernel, dtype: Any) -> Float[Array, "*D M"]:
    """First column of the covariance along the only axis.

    The kernel is stationary, so this column determines all other columns.

    Raises:
        ValueError: if the grid has several axes, or the kernel is not stationary.
    """
    checks.refuse(
        inducing.num_axes != 1 or not stationary(kernel),
        f"Toeplitz structure needs one axis and a stationary kernel, not {inducing.num_axes} and "
        f"{type(kernel).__name__}: a guide with covariance='full' takes others.",
    )
    (z,) = inducing.axes(dtype)
    row = kernel(z[:1], z)[..., 0, :]
    noise = kernel.diag(z[:1]) - row[..., :1]
    return row.at[..., :1].add(noise)


def stationary(kernel: Kernel) -> bool:
    """Whether gpzoo can tell that a kernel depends only on differences of inputs."""
    if isinstance(kernel, Sum | Product):
        return all(stationary(part) for part in kernel.parts)
    if isinstance(kernel, Scaled):
        return stationary(kernel.kernel)
    alike = any(same_covariance(kernel, of) for of in (White, Constant, Periodic))
    return alike or same_covariance(kernel, Stationary, apart=["profile"])


def _dtype(kernel: Kernel) -> Any:
    leaves = (x for x in jax.tree.leaves(kernel) if jnp.issubdtype(jnp.result_type(x), jnp.floating))
    return jnp.result_type(float, *leaves)


@Kuu.register(InducingGrid, Kernel)
def _grid_Kuu(inducing: InducingGrid, kernel: Kernel) -> Float[Array, "*D M M"] | KroneckerProduct:
    factors = axis_covariances(inducing, kernel, _dtype(kernel))
    return factors[0] if len(factors) == 1 else KroneckerProduct(*factors)


@Kuf.register(InducingGrid, Kernel, object)
def _grid_Kuf(inducing: InducingGrid, kernel: Kernel, X: Array) -> Float[Array, "*D M N"]:
    # These are not the kernel's own values: f is interpolated, so its covariances are interpolated too.
    covariances = axis_covariances(inducing, kernel, X.dtype)
    return KroneckerProduct(*covariances) @ jnp.swapaxes(inducing.dense_weights(X), -1, -2)
