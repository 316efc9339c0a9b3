"""The weights of basis functions as inducing variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from gpzoo import _checks as checks
from gpzoo._pytree import static
from gpzoo.inducing.kuu_kuf import Kuf, Kuu
from gpzoo.inducing.variables import InducingVariable
from gpzoo.kernels.hilbert import Box, HilbertSpace
from gpzoo.linalg.operators import matmul


class InducingBasis(InducingVariable):
    """The weights of the functions of a :class:`~gpzoo.kernels.HilbertSpace` kernel, which are independent.

    ``Kuu`` is the diagonal matrix of spectral densities. There is nothing to train in them.

    Example:
        >>> import numpy as np
        >>> from gpzoo import InducingBasis, Kuf, Kuu
        >>> from gpzoo.kernels import RBF, HilbertSpace
        >>> box = {"sizes": 20, "bounds": (-3.0, 3.0)}
        >>> kernel, basis = HilbertSpace(RBF(), **box), InducingBasis(**box)
        >>> Kuu(basis, kernel).shape, Kuf(basis, kernel, np.zeros((5, 1), np.float32)).shape
        ((20, 20), (20, 5))

    Args:
        sizes: those of the kernel.
        bounds: those of the kernel.

    Raises:
        ValueError: for sizes below one, or bounds that are not finite or not in order.
    """

    sizes: tuple[int, ...] = static()
    bounds: tuple[tuple[float, float], ...] = static()

    def __init__(self, sizes: int | Sequence[int], bounds: Sequence[float] | Sequence[Sequence[float]]) -> None:
        box = Box(sizes, bounds)
        self.sizes, self.bounds = box.sizes, box.bounds

    @property
    def box(self) -> Box:
        """The box and its functions."""
        return Box(self.sizes, self.bounds)

    def of(self, f: Callable[[Array], Array]) -> Float[Array, "M D"]:
        """The weights of functions, exact for those of the box."""
        nodes = self.box.nodes(jnp.result_type(float))
        values = f(nodes)
        return self.box.weight * matmul(self.box.functions(nodes.astype(values.dtype)).T, values)


@Kuu.register(InducingBasis, HilbertSpace)
def _basis_Kuu(inducing: InducingBasis, kernel: HilbertSpace) -> Float[Array, "*D M M"]:
    _refuse_other_box(inducing, kernel)
    dtype = jnp.result_type(*jax.tree.leaves(kernel))
    return _of_each(kernel, lambda own: jnp.diag(own.densities(dtype)))


@Kuf.register(InducingBasis, HilbertSpace, object)
def _basis_Kuf(inducing: InducingBasis, kernel: HilbertSpace, X: Array) -> Float[Array, "*D M N"]:
    _refuse_other_box(inducing, kernel)
    X = kernel.check_inputs(X)
    if kernel.has_outputs(X):
        functions = jax.vmap(kernel.box.functions)(X).mT
    else:
        functions = kernel.box.functions(X).T
    return _of_each(kernel, lambda own: own.densities(X.dtype))[..., None] * functions


def _of_each(kernel: HilbertSpace, of: Callable[[HilbertSpace], Array]) -> Array:
    """Of the kernel of each output, ``[D, ...]``, where there are several."""
    return jax.vmap(of, in_axes=(kernel.batch_axes(),))(kernel) if kernel.batched else of(kernel)


def _refuse_other_box(inducing: InducingBasis, kernel: HilbertSpace) -> None:
    own, other = ((each.sizes, each.bounds) for each in (inducing, kernel))
    checks.refuse(own != other, f"The basis is of the box {own}, and the HilbertSpace kernel's is {other}.")
