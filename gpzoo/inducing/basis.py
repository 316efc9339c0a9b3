"""Inducing variables of basis functions in place of points: waves on a box and on an interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from gpzoo import _checks as checks
from gpzoo._pytree import static
from gpzoo.inducing.kuu_kuf import Kuf, Kuu
from gpzoo.inducing.variables import InducingVariable
from gpzoo.kernels.base import Kernel, Sum, addends
from gpzoo.kernels.hilbert import Box, HilbertSpace
from gpzoo.kernels.stationary import Matern
from gpzoo.linalg.operators import matmul

K = TypeVar("K", bound=Kernel)


class InducingBasis(InducingVariable):
    """The independent weights of the basis functions of a :class:`~gpzoo.kernels.HilbertSpace` kernel.

    ``Kuu`` is the diagonal matrix of spectral densities. These inducing variables have no trained parameters.

    Example:
        >>> import numpy as np
        >>> from gpzoo import InducingBasis, Kuf, Kuu
        >>> from gpzoo.kernels import RBF, HilbertSpace
        >>> box = {"sizes": 20, "bounds": (-3.0, 3.0)}
        >>> kernel, basis = HilbertSpace(RBF(), **box), InducingBasis(**box)
        >>> Kuu(basis, kernel).shape, Kuf(basis, kernel, np.zeros((5, 1), np.float32)).shape
        ((20, 20), (20, 5))

    Args:
        sizes: the ``sizes`` of the kernel.
        bounds: the ``bounds`` of the kernel.

    Raises:
        ValueError: for sizes below one, or bounds that are not finite or not in order.
    """

    sizes: tuple[int, ...] = static()
    bounds: tuple[tuple[float, float], ...] = static()
    independent = True

    def __init__(self, sizes: int | Sequence[int], bounds: Sequence[float] | Sequence[Sequence[float]]) -> None:
        box = Box(sizes, bounds)
        self.sizes, self.bounds = box.sizes, box.bounds

    @property
    def box(self) -> Box:
        """The box and its functions."""
        return Box(self.sizes, self.bounds)

    def of(self, f: Callable[[Array], Array]) -> Float[Array, "M D"]:
        """The weights of given functions; they are exact if these functions are sums of the basis functions."""
        nodes = self.box.nodes(jnp.result_type(float))
        values = f(nodes)
        return self.box.weight * matmul(self.box.functions(nodes.astype(values.dtype)).T, values)


class InducingFourier(InducingVariable):
    """The projections of a Matérn process of one column on waves of an interval (Hensman, Durrande and Solin 2018).

    Each inducing variable is the inner product of ``f`` and one wave, in the function space (RKHS) of the kernel. The
    waves are a constant, ``F`` cosines and ``F`` sines. Their periods are ``width / k`` with the frequencies ``k`` from
    1 to ``F``, where ``width = upper - lower`` is the width of the interval. ``Kuf`` are these waves. ``Kuu`` is a
    diagonal matrix plus a matrix of rank 1 to 3 (sections 3.2 and 3.3 of this paper). gpzoo divides each wave by the
    square root of its diagonal entry, so that the diagonal matrix becomes the identity. The prior of ``f`` keeps the
    exact kernel, while :class:`~gpzoo.kernels.HilbertSpace` approximates it. These inducing variables have no trained
    parameters.

    In a sum of kernels, each term needs its own inducing variables:
    ``blocks(InducingFourier(...), InducingFourier(...))``. ``trained.functions`` refuses these inducing variables,
    because they do not define :meth:`InducingVariable.of <gpzoo.InducingVariable.of>`.

    Example:
        >>> import numpy as np
        >>> from gpzoo import InducingFourier, Kuf, Kuu
        >>> from gpzoo.kernels import Matern32
        >>> waves, kernel = InducingFourier(10, (-1.0, 2.0)), Matern32(lengthscale=0.5)
        >>> Kuu(waves, kernel).shape, Kuf(waves, kernel, np.zeros((5, 1), np.float32)).shape
        ((21, 21), (21, 5))

    Args:
        num_frequencies: ``F``; there are ``2 F + 1`` variables.
        bounds: bounds of the interval, ``(lower, upper)``. The interval must extend beyond all inputs, because waves
            are periodic.

    Raises:
        ValueError: for a number below one, for bounds that are not finite or not in order, or for inputs outside the
            interval (checked only outside ``jit``). Under ``jit``, inputs outside the interval give NaN, which ``fit``
            and predictions refuse.
    """

    num_frequencies: int = static()
    bounds: tuple[float, float] = static()

    def __init__(self, num_frequencies: int, bounds: Sequence[float]) -> None:
        self.num_frequencies = checks.positive_int("num_frequencies", num_frequencies)
        (self.bounds,) = Box(self.num_frequencies, bounds).bounds

    def waves(self, X: Float[Array, "N 1"]) -> Float[Array, "N M"]:
        """The constant, the cosines and the sines at inputs."""
        box, (a, b) = Box(self.num_frequencies, self.bounds), self.bounds
        box.check(X)
        angles = 2 * jnp.pi * (X - a) / (b - a) * jnp.arange(self.num_frequencies + 1, dtype=X.dtype)
        return box.inside(X, jnp.concatenate([jnp.cos(angles), jnp.sin(angles[:, 1:])], axis=1))

    def scales(self, kernel: Matern) -> Float[Array, " M"]:
        """Factors of the waves: ``sqrt(2 s(w) / width)``, and ``sqrt(s(0) / width)`` for the constant.

        ``s`` is the spectral density of the kernel, ``w`` the frequency of the wave in radians per unit of the inputs,
        and ``width`` the width of the interval.
        """
        (a, b), omega = self.bounds, self._frequencies(kernel)
        scales = jnp.sqrt(2 * kernel.density(omega[:, None]) / (b - a)).at[0].divide(np.sqrt(2))
        return jnp.concatenate([scales, scales[1:]])

    def at_the_end(self, kernel: Matern) -> Float[Array, "R M"]:
        """Combinations of each wave's value and derivatives at an end of the interval.

        For a function from the prior, these combinations are independent and have variance 1.
        """
        shape = jnp.shape(kernel.lengthscale)
        checks.must(shape in ((), (1,)), "lengthscale", "be that of one column, which InducingFourier has;", str(shape))
        rate = np.sqrt(kernel.degrees) / jnp.reshape(kernel.lengthscale, ())
        omega = self._frequencies(kernel) / rate
        one, none = jnp.ones_like(omega), jnp.zeros_like(omega)
        of_cosines = [one] if kernel.degrees < 5 else [one, (1 - 3 * jnp.square(omega)) / np.sqrt(8)]
        of_sines = {1: [], 3: [omega], 5: [np.sqrt(3) * omega]}[kernel.degrees]
        rows = [jnp.concatenate([row, none[1:]]) for row in of_cosines]
        rows += [jnp.concatenate([none, row[1:]]) for row in of_sines]
        return jnp.stack(rows) / jnp.sqrt(kernel.variance)

    def _frequencies(self, kernel: Matern) -> Float[Array, " F"]:
        a, b = self.bounds
        dtype = jnp.result_type(*jax.tree.leaves(kernel))
        return jnp.asarray(2 * np.pi * np.arange(self.num_frequencies + 1) / (b - a), dtype)


@Kuu.register(InducingFourier, Matern)
def _fourier_Kuu(inducing: InducingFourier, kernel: Matern) -> Float[Array, "*D M M"]:
    def of_one(kernel: Matern) -> Array:
        rows = inducing.at_the_end(kernel) * inducing.scales(kernel)
        return jnp.eye(rows.shape[1], dtype=rows.dtype) + matmul(rows.T, rows)

    return of_each(kernel, of_one)


@Kuf.register(InducingFourier, Matern, object)
def _fourier_Kuf(inducing: InducingFourier, kernel: Matern, X: Array) -> Float[Array, "*D M N"]:
    return of_each(kernel, inducing.scales)[..., None] * at_inputs(inducing.waves, kernel, X)


@Kuu.register(InducingFourier, Sum)
@Kuf.register(InducingFourier, Sum, object)
def _fourier_of_sum(inducing: InducingFourier, kernel: Sum, *X: Array) -> Float[Array, "*D M _"]:
    # The terms have different inner products. The sum of these says little about the sum of the functions.
    function, _ = kernel.split_noise()
    checks.refuse(
        len(addends(function)) != 1,
        "InducingFourier belongs to one Matérn kernel, and this is a sum of several: give each part its own, "
        "blocks(InducingFourier(20, bounds), InducingFourier(20, bounds)).",
        TypeError,
    )
    return (Kuf if X else Kuu)(inducing, function, *X)


@Kuu.register(InducingBasis, HilbertSpace)
def _basis_Kuu(inducing: InducingBasis, kernel: HilbertSpace) -> Float[Array, "*D M M"]:
    _refuse_other_box(inducing, kernel)
    dtype = jnp.result_type(*jax.tree.leaves(kernel))
    return of_each(kernel, lambda own: jnp.diag(own.densities(dtype)))


@Kuf.register(InducingBasis, HilbertSpace, object)
def _basis_Kuf(inducing: InducingBasis, kernel: HilbertSpace, X: Array) -> Float[Array, "*D M N"]:
    _refuse_other_box(inducing, kernel)
    return of_each(kernel, lambda own: own.densities(X.dtype))[..., None] * at_inputs(kernel.box.functions, kernel, X)


def at_inputs(functions: Callable[[Array], Array], kernel: Kernel, X: Array) -> Float[Array, "*D M N"]:
    """Values of functions at ``X``, which is one set of inputs, or one set for each output."""
    X = kernel.check_inputs(X)
    return (jax.vmap(functions) if kernel.has_outputs(X) else functions)(X).mT


def of_each(kernel: K, of: Callable[[K], Array]) -> Array:
    """``of(kernel)``; if there is one kernel per output, one result per output, ``[D, ...]``."""
    return jax.vmap(of, in_axes=(kernel.batch_axes(),))(kernel) if kernel.batched else of(kernel)


def _refuse_other_box(inducing: InducingBasis, kernel: HilbertSpace) -> None:
    own, other = ((each.sizes, each.bounds) for each in (inducing, kernel))
    checks.refuse(own != other, f"The basis is of the box {own}, and the HilbertSpace kernel's is {other}.")
