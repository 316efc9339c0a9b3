"""Kernels made of kernels: sums, products, multiples, and kernels on vectors for inputs of another rank."""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

import jax.numpy as jnp
from jax import Array, random
from jaxtyping import Float, PRNGKeyArray

from gpzoo._pytree import static
from gpzoo.kernels.base import Kernel, positive
from gpzoo.linalg.operators import total


class _Combination(Kernel):
    """Kernels combined elementwise."""

    parts: tuple[Kernel, ...]

    def __init__(self, *parts: Kernel) -> None:
        if not parts or not all(isinstance(part, Kernel) for part in parts):
            raise TypeError(f"{type(self).__name__} takes kernels, got {[type(part).__name__ for part in parts]}.")
        ranks = {part.input_ndim for part in parts} - {None}
        if len(ranks) > 1:
            raise ValueError(
                f"{type(self).__name__} got kernels on inputs of different rank "
                f"({', '.join(f'{type(part).__name__}: {part.input_ndim}' for part in parts)}). "
                "Put those on vectors into Flattened(...), or sample one GaussianProcess site for each and add them."
            )
        self.parts = tuple(parts)

    @property
    def input_ndim(self) -> int | None:
        return next((part.input_ndim for part in self.parts if part.input_ndim is not None), None)

    @property
    def batched(self) -> bool:
        return any(part.batched for part in self.parts)

    def batch_axes(self) -> Kernel:
        return self._with_fields(parts=tuple(part.batch_axes() for part in self.parts))

    def check_fields(self) -> None:
        for part in self.parts:
            part.check_fields()


class Sum(_Combination):
    """``k(x, x') = sum_i k_i(x, x')``: the prior of a sum of independent processes.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import RBF, Linear, Sum
        >>> kernel = RBF() + Linear()
        >>> isinstance(kernel, Sum), kernel(np.array([[1.0], [2.0]], np.float32)).round(2)
        (True, Array([[2.  , 2.61],
               [2.61, 5.  ]], dtype=float32))
    """

    def __init__(self, *parts: Kernel) -> None:
        flat = (p for part in parts for p in (part.parts if isinstance(part, Sum) else (part,)))
        super().__init__(*flat)

    def cross(self, X: Float[Array, "N ..."], Z: Float[Array, "M ..."]) -> Float[Array, "N M"]:
        """The sum of the parts' covariances."""
        return total(part.cross(X, Z) for part in self.parts)

    def gram(self, X: Float[Array, "N ..."]) -> Float[Array, "N N"]:
        """The sum of the parts' matrices."""
        return total(part.gram(X) for part in self.parts)

    def variances(self, X: Float[Array, "N ..."]) -> Float[Array, " N"]:
        """The sum of the parts' variances."""
        return total(part.variances(X) for part in self.parts)

    def split_noise(self) -> tuple[Kernel | None, Kernel | None]:
        """The sum of the functions, and of the noise, of its parts."""
        functions, noise = zip(*(part.split_noise() for part in self.parts), strict=True)
        return _sum(functions), _sum(noise)


class Product(_Combination):
    """``k(x, x') = prod_i k_i(x, x')``.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import RBF, Periodic, Product
        >>> kernel = RBF(lengthscale=3.0) * Periodic(period=1.0)  # a season that changes
        >>> isinstance(kernel, Product)
        True
        >>> kernel(np.zeros((1, 1), np.float32), np.array([[1.0], [4.0]], np.float32)).round(2)
        Array([[0.95, 0.41]], dtype=float32)
    """

    def __init__(self, *parts: Kernel) -> None:
        flat = (p for part in parts for p in (part.parts if isinstance(part, Product) else (part,)))
        super().__init__(*flat)

    def cross(self, X: Float[Array, "N ..."], Z: Float[Array, "M ..."]) -> Float[Array, "N M"]:
        """The product of the parts' covariances."""
        return reduce(operator.mul, (part.cross(X, Z) for part in self.parts))

    def gram(self, X: Float[Array, "N ..."]) -> Float[Array, "N N"]:
        """The product of the parts' matrices."""
        return reduce(operator.mul, (part.gram(X) for part in self.parts))

    def variances(self, X: Float[Array, "N ..."]) -> Float[Array, " N"]:
        """The product of the parts' variances."""
        return reduce(operator.mul, (part.variances(X) for part in self.parts))

    def split_noise(self) -> tuple[Kernel | None, Kernel | None]:
        """The product multiplied out: a product with a noise factor is noise."""
        pairs = [part.split_noise() for part in self.parts]
        if all(noise is None for _, noise in pairs):
            return self, None
        return reduce(_product, pairs)

    def frequencies(
        self, key: PRNGKeyArray, num: int, num_columns: int, dtype: Any
    ) -> Float[Array, "{num} {num_columns}"]:
        """Sums of its parts' frequencies: the density of a product is the convolution of its factors' densities."""
        keys = random.split(key, len(self.parts))
        return total(part.frequencies(k, num, num_columns, dtype) for part, k in zip(self.parts, keys, strict=True))


class Scaled(Kernel):
    """``k(x, x') = scale k_0(x, x')``; ``scale`` is positive, a scalar or one per output ``[D]``.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import RBF, Scaled
        >>> kernel = 4.0 * RBF()
        >>> isinstance(kernel, Scaled), kernel.diag(np.zeros((2, 1), np.float32))
        (True, Array([4., 4.], dtype=float32))

    Raises:
        TypeError: if ``kernel`` is not a kernel or ``scale`` is not numeric.
        ValueError: if ``scale`` is known and not positive, or has more than one axis.
    """

    kernel: Kernel
    scale: Float[Array, "*D"]

    def __init__(self, kernel: Kernel, scale: float | Array) -> None:
        if not isinstance(kernel, Kernel):
            raise TypeError(f"Scaled takes a kernel and a scale, got {type(kernel).__name__} for the kernel.")
        self.kernel = kernel
        self.scale = positive("scale", scale)
        self.check_fields()

    @property
    def input_ndim(self) -> int | None:
        """Rank of a single input: that of the scaled kernel."""
        return self.kernel.input_ndim

    @property
    def batched(self) -> bool:
        """Whether the scale or the scaled kernel carry a leading axis."""
        return self.kernel.batched or jnp.ndim(self.scale) == 1

    def batch_axes(self) -> Kernel:
        """See :meth:`Kernel.batch_axes`."""
        return self._with_fields(kernel=self.kernel.batch_axes(), scale=0 if jnp.ndim(self.scale) else None)

    def check_fields(self) -> None:
        """Refuse a scale of more than one axis, and what the kernel refuses."""
        if jnp.ndim(self.scale) > 1:
            raise ValueError(f"scale must be a scalar or one per output [D], got shape {jnp.shape(self.scale)}.")
        self.kernel.check_fields()

    def cross(self, X: Float[Array, "N ..."], Z: Float[Array, "M ..."]) -> Float[Array, "N M"]:
        """``scale`` times the kernel's result."""
        return self.scale * self.kernel.cross(X, Z)

    def gram(self, X: Float[Array, "N ..."]) -> Float[Array, "N N"]:
        """``scale`` times the kernel's result."""
        return self.scale * self.kernel.gram(X)

    def variances(self, X: Float[Array, "N ..."]) -> Float[Array, " N"]:
        """``scale`` times the kernel's result."""
        return self.scale * self.kernel.variances(X)

    def split_noise(self) -> tuple[Kernel | None, Kernel | None]:
        """The kernel's function and noise, each times ``scale``."""
        function, noise = self.kernel.split_noise()
        if noise is None:
            return self, None
        return None if function is None else Scaled(function, self.scale), Scaled(noise, self.scale)

    def frequencies(
        self, key: PRNGKeyArray, num: int, num_columns: int, dtype: Any
    ) -> Float[Array, "{num} {num_columns}"]:
        """The frequencies of the scaled kernel."""
        return self.kernel.frequencies(key, num, num_columns, dtype)


class Flattened(Kernel):
    """A kernel on vectors, for inputs of another rank: ``k(x, x') = k_0(vec x, vec x')``.

    With it, a sum can hold a kernel on whole images beside kernels on patches (convolutional GPs, section 4.3). The
    inducing points of the former are images.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import RBF, Convolutional, Flattened
        >>> images = np.ones((2, 8, 8, 1), np.float32)
        >>> (Flattened(RBF()) + Convolutional(RBF(), (8, 8), (3, 3)))(images)
        Array([[1297., 1297.],
               [1297., 1297.]], dtype=float32)

    Args:
        kernel: kernel on vectors.
        input_ndim: rank of a single input, 3 for images ``[H, W, C]``.

    Raises:
        TypeError: if ``kernel`` is not a kernel.
        ValueError: if ``kernel`` does not take vectors, or the rank is not 2 or more.
    """

    kernel: Kernel
    rank: int = static()

    def __init__(self, kernel: Kernel, input_ndim: int = 3) -> None:
        if not isinstance(kernel, Kernel):
            raise TypeError(f"Flattened takes a kernel, got {type(kernel).__name__}.")
        if kernel.input_ndim not in (1, None):
            raise ValueError(f"Flattened takes a kernel on vectors; {type(kernel).__name__} is on other inputs.")
        if operator.index(input_ndim) < 2:
            raise ValueError(f"input_ndim must be the rank of an input that is no vector, 2 or more; got {input_ndim}.")
        self.kernel, self.rank = kernel, operator.index(input_ndim)

    @property
    def input_ndim(self) -> int:
        """Rank of a single input."""
        return self.rank

    @property
    def batched(self) -> bool:
        """Whether the kernel carries a leading axis, one per output."""
        return self.kernel.batched

    def batch_axes(self) -> Kernel:
        """See :meth:`Kernel.batch_axes`."""
        return self._with_fields(kernel=self.kernel.batch_axes())

    def check_fields(self) -> None:
        """Refuse what the kernel refuses."""
        self.kernel.check_fields()

    def cross(self, X: Float[Array, "N ..."], Z: Float[Array, "M ..."]) -> Float[Array, "N M"]:
        """The kernel on the flattened inputs."""
        if X.shape[1:] != Z.shape[1:]:
            raise ValueError(f"Flattened got inputs of different shapes: X {X.shape}, Z {Z.shape}.")
        return self.kernel.cross(self.vectors(X), self.vectors(Z))

    def gram(self, X: Float[Array, "N ..."]) -> Float[Array, "N N"]:
        """The kernel on the flattened inputs."""
        return self.kernel.gram(self.vectors(X))

    def variances(self, X: Float[Array, "N ..."]) -> Float[Array, " N"]:
        """The kernel on the flattened inputs."""
        return self.kernel.variances(self.vectors(X))

    def split_noise(self) -> tuple[Kernel | None, Kernel | None]:
        """The kernel's function and noise, each flattened."""
        function, noise = self.kernel.split_noise()
        if noise is None:
            return self, None
        return None if function is None else Flattened(function, self.rank), Flattened(noise, self.rank)

    def vectors(self, X: Float[Array, "N ..."]) -> Float[Array, "N d"]:
        """The inputs, flattened to one vector each."""
        return X.reshape(X.shape[0], -1)


def addends(kernel: Kernel | None) -> list[tuple[Any, Kernel]]:
    """A kernel as a sum: its addends, each with the product of the factors before it (``None`` without factors).

    For ``None``, a missing function or noise, the list is empty.
    """
    if kernel is None:
        return []
    if isinstance(kernel, Sum):
        return [addend for part in kernel.parts for addend in addends(part)]
    if isinstance(kernel, Scaled):
        inner = addends(kernel.kernel)
        return [(kernel.scale if factor is None else kernel.scale * factor, part) for factor, part in inner]
    return [(None, kernel)]


def _sum(parts: tuple[Kernel | None, ...]) -> Kernel | None:
    found = [part for part in parts if part is not None]
    return Sum(*found) if len(found) > 1 else next(iter(found), None)


def _product(
    a: tuple[Kernel | None, Kernel | None], b: tuple[Kernel | None, Kernel | None]
) -> tuple[Kernel | None, Kernel | None]:
    """The function and the noise of ``(f + n) (g + m)``: ``f g``, and ``f m + n g + n m``."""

    def times(one: Kernel | None, other: Kernel | None) -> Kernel | None:
        return None if one is None or other is None else Product(one, other)

    (f, n), (g, m) = a, b
    return times(f, g), _sum((times(f, m), times(n, g), times(n, m)))
