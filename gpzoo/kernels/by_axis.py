"""Kernels that are products over groups of columns, the axes of a grid."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from gpzoo.kernels.base import Kernel, Product, Scaled, Sum, same_covariance
from gpzoo.kernels.constant import Constant, White
from gpzoo.kernels.stationary import RBF, Periodic, Stationary


def separable(kernel: Kernel) -> bool:
    """Whether gpzoo can tell that a kernel is a product of kernels on one column each."""
    if isinstance(kernel, Scaled):
        return separable(kernel.kernel)
    if isinstance(kernel, Product):
        return all(separable(part) for part in kernel.parts)
    if any(same_covariance(kernel, of) for of in (Constant, White, RBF, Periodic)):
        return True
    one = isinstance(kernel, Stationary) and kernel.active_dims is not None and len(kernel.active_dims) == 1
    return one and same_covariance(kernel, Stationary, apart=["profile"])


def axes_of(kernel: Kernel, num_columns: int) -> tuple[tuple[int, ...], ...]:
    """Groups of columns such that the kernel is a product with one factor per group.

    The columns of a factor with ``active_dims`` stay in one group. Columns that no factor uses are in no group.
    """
    groups: list[set[int]] = []
    for part in _factors(kernel):
        own = _columns(part, num_columns)
        spans = separable(part) and getattr(part, "active_dims", None) is None
        for new in [{column} for column in own] if spans else [own] if own else []:
            groups = [*(g for g in groups if not g & new), set().union(new, *(g for g in groups if g & new))]
    return tuple(sorted(tuple(sorted(group)) for group in groups))


def along(
    kernel: Kernel, axes: tuple[tuple[int, ...], ...], axis: int, X: Float[Array, "N d"], Z: Float[Array, "M d"]
) -> Float[Array, "N M"]:
    """The factor of a kernel for the columns of one axis; the kernel is the product of the factors of all axes.

    Args:
        kernel: the kernel.
        axes: the columns of each axis, from :func:`axes_of`.
        axis: number of the axis.
        X: inputs with all columns.
        Z: inputs with all columns.
    """
    own = jnp.isin(jnp.arange(X.shape[1]), jnp.asarray(axes[axis]))
    K = jnp.ones((len(X), len(Z)), X.dtype)
    for part in _factors(kernel):
        seen = _columns(part, X.shape[1])
        touched = [i for i, columns in enumerate(axes) if seen & set(columns)] or [0]
        if axis not in touched:
            continue
        # With the other columns fixed at 0, the factor of every axis has the whole variance.
        one = part(jnp.where(own, X, 0), jnp.where(own, Z, 0)) if len(touched) > 1 else part(X, Z)
        K *= one if axis == touched[0] else one / part.diag(jnp.zeros_like(X[:1]))
    return K * _scale(kernel) if axis == 0 else K


def _factors(kernel: Kernel) -> list[Kernel]:
    if isinstance(kernel, Product):
        return [factor for part in kernel.parts for factor in _factors(part)]
    return _factors(kernel.kernel) if isinstance(kernel, Scaled) else [kernel]


def _scale(kernel: Kernel) -> Array | float:
    if isinstance(kernel, Product):
        return jnp.prod(jnp.stack([jnp.asarray(_scale(part)) for part in kernel.parts]))
    return kernel.scale * _scale(kernel.kernel) if isinstance(kernel, Scaled) else 1.0


def _columns(kernel: Kernel, num_columns: int) -> set[int]:
    """Columns that a kernel may see."""
    if isinstance(kernel, Product | Sum):
        return set().union(*(_columns(part, num_columns) for part in kernel.parts))
    if isinstance(kernel, Scaled):
        return _columns(kernel.kernel, num_columns)
    if isinstance(kernel, Constant):
        return set()
    active = getattr(kernel, "active_dims", None)
    return set(range(num_columns) if active is None else active)
