"""Covariances of inducing variables, ``Kuu`` and ``Kuf``, by multiple dispatch."""

from __future__ import annotations

from functools import reduce
from inspect import cleandoc
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float
from multipledispatch import Dispatcher

from gpzoo import _checks as checks
from gpzoo import linalg
from gpzoo.inducing.variables import InducingBlocks, InducingPatches, InducingPoints
from gpzoo.kernels.base import Kernel, Scaled, Sum, addends
from gpzoo.kernels.constant import Constant
from gpzoo.kernels.double_sum import DoubleSum

# -- covariances -------------------------------------------------------------------------------------------------------

Kuu = Dispatcher(
    "Kuu",
    doc=cleandoc("""Prior covariance of inducing variables: ``Kuu(inducing, kernel) -> [M, M]``.

    The result has no jitter. For inducing points, patches and grids, the kernel's white noise is added to the diagonal.
    If each output has its own kernel or its own inducing inputs, the result is ``[D, M, M]``. The types of the two
    arguments determine which function computes the result. To add a function for a pair of types, use
    ``Kuu.register(InducingType, KernelType)``.

    Example:
        >>> import numpy as np
        >>> from gpzoo import InducingPoints, Kuu, kernels
        >>> u = InducingPoints(np.arange(2, dtype=np.float32)[:, None])
        >>> Kuu(u, kernels.RBF()).round(2)
        Array([[1.  , 0.61],
               [0.61, 1.  ]], dtype=float32)

    Raises:
        TypeError: if no function is registered for the two types.
    """),
)

Kuf = Dispatcher(
    "Kuf",
    doc=cleandoc("""Covariance of inducing variables and function values: ``Kuf(inducing, kernel, X) -> [M, N]``.

    The result never has white noise. If each output has its own kernel, inducing inputs or inputs ``X``, the result is
    ``[D, M, N]``. The types of the first two arguments determine which function computes the result. To add a function
    for a pair of types, use ``Kuf.register(InducingType, KernelType, object)``.

    Example:
        >>> import numpy as np
        >>> from gpzoo import InducingPoints, Kuf, kernels
        >>> u, X = InducingPoints(np.zeros((2, 1), np.float32)), np.arange(3, dtype=np.float32)[:, None]
        >>> Kuf(u, kernels.RBF() + kernels.White(), X).round(2)
        Array([[1.  , 0.61, 0.14],
               [1.  , 0.61, 0.14]], dtype=float32)

    Raises:
        TypeError: if no function is registered for the two types.
    """),
)


@Kuu.register(object, object)
def _linear_Kuu(inducing: Any, kernel: Any) -> Float[Array, "*D M M"]:
    return _over_parts(Kuu, "", inducing, kernel)


@Kuf.register(object, object, object)
def _linear_Kuf(inducing: Any, kernel: Any, X: Array) -> Float[Array, "*D M N"]:
    return _over_parts(Kuf, ", X", inducing, kernel, X)


def _over_parts(rule: Dispatcher, more: str, inducing: Any, kernel: Any, *X: Array) -> Float[Array, "*D M N"]:
    """Covariances for sums and multiples of kernels; they are the same sums, because ``u`` is linear in ``f``."""
    _refuse_unregistered(not isinstance(kernel, Sum | Scaled), rule.name, more, inducing, kernel)

    def counts(part: Kernel) -> bool:
        # Noise is not a function, so it contributes to u only if a rule is registered for it.
        found = rule.dispatch(type(inducing), type(part), *map(type, X))
        return part.split_noise()[0] is not None or found not in (_linear_Kuu, _linear_Kuf)

    each = [(factor, rule(inducing, part, *X)) for factor, part in addends(kernel) if counts(part)]
    _refuse_unregistered(not each, rule.name, more, inducing, kernel)
    return linalg.total(
        K if factor is None else jnp.asarray(factor, K.dtype)[..., None, None] * K for factor, K in each
    )


def _refuse_unregistered(unregistered: bool, name: str, more: str, inducing: Any, kernel: Any) -> None:
    pair, third = f"{type(inducing).__name__}, {type(kernel).__name__}", ", object" if more else ""
    checks.refuse(
        unregistered,
        f"{name} is not defined for the pair ({pair}). Choose inducing variables that go with this kernel "
        "(InducingPoints go with every one; in a sum of kernels on different spaces give each part its own, such as "
        "blocks(unique_patches(100), kmeans(100))), or register the pair: decorate a function of "
        f"(inducing, kernel{more}) with @gpzoo.inducing.{name}.register({pair}{third}), and one for "
        f"{'Kuu' if third else 'Kuf'} likewise.",
        TypeError,
    )


@Kuu.register(InducingPoints, Kernel)
def _points_Kuu(inducing: InducingPoints, kernel: Kernel) -> Float[Array, "*D M M"]:
    return kernel(inducing.Z)


@Kuf.register(InducingPoints, Kernel, object)
def _points_Kuf(inducing: InducingPoints, kernel: Kernel, X: Array) -> Float[Array, "*D M N"]:
    checks.refuse(
        kernel.input_ndim == 1 and jnp.shape(inducing.Z)[-1] != jnp.shape(X)[-1],
        f"A GP site is given inputs of shape {tuple(jnp.shape(X))}, and what it is conditioned on, its inducing points "
        f"or the inputs of its data, has the shape {tuple(jnp.shape(inducing.Z))}: both need the same columns.",
    )
    return kernel(inducing.Z, X)


@Kuu.register(InducingPatches, DoubleSum)
def _patches_Kuu(inducing: InducingPatches, kernel: DoubleSum) -> Float[Array, "*D M M"]:
    return Kuu(inducing, kernel.base) if isinstance(kernel.base, DoubleSum) else kernel.base(inducing.Z)


@Kuf.register(InducingPatches, DoubleSum, object)
def _patches_Kuf(inducing: InducingPatches, kernel: DoubleSum, X: Array) -> Float[Array, "*D M N"]:
    return jnp.swapaxes(kernel.cross_view(X, inducing.Z), -1, -2)


@Kuu.register(InducingPatches, Constant)
def _patches_Kuu_of_index(inducing: InducingPatches, kernel: Kernel) -> Float[Array, "*D M M"]:
    return kernel(_rows(inducing.Z, 1))


@Kuf.register(InducingPatches, Constant, object)
def _patches_Kuf_of_index(inducing: InducingPatches, kernel: Kernel, X: Array) -> Float[Array, "*D M N"]:
    return kernel(_rows(inducing.Z, 1), _rows(X, 3))


@Kuu.register(InducingBlocks, Kernel)
def _blocks_Kuu(inducing: InducingBlocks, kernel: Kernel) -> linalg.BlockDiagonalMatrix:
    found: list[tuple[list, Array]] = []
    blocks = []
    for u, part in inducing.pairs(kernel):
        # Parts that share inducing inputs and base kernel share one block, so that it is factorised only once.
        prior = part.base if isinstance(part, DoubleSum) and isinstance(u, InducingPatches) else part
        leaves, structure = jax.tree.flatten((u, prior))
        key = [structure, *map(id, leaves)]
        known = [block for other, block in found if other == key]
        blocks.append(known[0] if known else Kuu(u, part))
        found.append((key, blocks[-1]))
    if len({block.ndim for block in blocks}) == 1:
        return linalg.BlockDiagonalMatrix(*blocks)
    batch = jnp.broadcast_shapes(*(block.shape[:-2] for block in blocks))
    return linalg.BlockDiagonalMatrix(*(jnp.broadcast_to(block, batch + block.shape[-2:]) for block in blocks))


@Kuf.register(InducingBlocks, Kernel, object)
def _blocks_Kuf(inducing: InducingBlocks, kernel: Kernel, X: Array) -> Float[Array, "*D M N"]:
    return linalg.concatenate([Kuf(u, part, X) for u, part in inducing.pairs(kernel)], -2)


def jitter_of(prior: Any, inducing: Any, covariance: Any) -> linalg.Jitter:
    """The jitter of ``Kuu``: the jitter of the prior if the user gave one, else the amount that ``Kuu`` needs.

    If ``Kuu`` is block-diagonal, each block needs its own amount.

    Args:
        prior: the :class:`~gpzoo.GaussianProcess` of the site.
        inducing: the site's inducing variable.
        covariance: ``Kuu``.
    """
    return _lacking(inducing, prior.kernel, covariance) if prior.jitter is None else prior.jitter


def _lacking(inducing: Any, kernel: Kernel, K: Any) -> linalg.Jitter:
    if isinstance(K, linalg.BlockDiagonalMatrix):
        pairs = inducing.pairs(kernel)
        return tuple(_lacking(u, part, block) for (u, part), block in zip(pairs, K.blocks, strict=True))
    if type(inducing) is InducingPoints:
        return kernel.jitter(inducing.Z)
    if isinstance(inducing, InducingPatches) and isinstance(kernel, DoubleSum):
        base = kernel.base
        return _lacking(inducing, base, K) if isinstance(base, DoubleSum) else base.jitter(inducing.Z)
    variances = linalg.diagonal(K)
    if inducing.independent:
        # A diagonal matrix has no rounding errors; only a variance that underflows to zero needs jitter.
        return jnp.finfo(variances.dtype).eps * jnp.max(variances, axis=-1)
    parts = [part if factor is None else Scaled(part, factor) for factor, part in addends(kernel.split_noise()[0])]
    each = [linalg.diagonal(Kuu(inducing, part)) for part in parts] if len(parts) > 1 else [variances]
    return linalg.needed_jitter(variances, reduce(jnp.minimum, each), jnp.zeros_like(variances))


def _rows(X: Array, ndim: int) -> Array:
    # A kernel that depends only on the number of inputs needs one set of inputs, not one set per output.
    return X[0] if jnp.ndim(X) == ndim + 2 else X
