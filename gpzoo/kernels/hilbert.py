"""Hilbert-space Gaussian processes: stationary kernels on a box, by eigenfunctions of the Laplace operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jaxtyping import Float, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo._pytree import static
from gpzoo._types import ArrayLike
from gpzoo.kernels.base import Kernel, Wrapper
from gpzoo.linalg.operators import matmul


class Box:
    """Eigenfunctions of the Laplace operator on a box, zero at its faces (Solin and Särkkä 2020, eq. 56).

    The functions of one column are ``phi_j(x) = sin(pi j (x - lower) / width) / sqrt(width / 2)`` with
    ``width = upper - lower``. The functions of several columns are products of such functions, and the index of the
    last column runs fastest.

    Args:
        sizes: number of functions along each column; a single number if there is one column.
        bounds: ``(lower, upper)`` for all columns, or one such pair for each column.

    Raises:
        ValueError: for sizes below one, or bounds that are not finite or not in order.
    """

    def __init__(self, sizes: int | Sequence[int], bounds: Sequence[float] | Sequence[Sequence[float]]) -> None:
        each: Any = (sizes,) if np.ndim(sizes) == 0 else sizes
        self.sizes = tuple(checks.positive_int(f"sizes[{i}]", size) for i, size in enumerate(each))
        limits = np.asarray(bounds, np.float64)
        wanted = f"be (lower, upper), or one such pair for each of {len(self.sizes)} axes;"
        checks.must(limits.shape in ((2,), (len(self.sizes), 2)), "bounds", wanted, str(bounds))
        limits = np.broadcast_to(limits, (len(self.sizes), 2))
        good = np.isfinite(limits).all() and (limits[:, 0] < limits[:, 1]).all()
        checks.must(good, "bounds", "be finite, the lower below the upper;", str(bounds))
        self.bounds = tuple((float(lower), float(upper)) for lower, upper in limits)

    def frequencies(self, dtype: Any) -> Float[Array, "M d"]:
        """Square roots of the eigenvalues of each function, for each column."""
        each = [np.pi * np.arange(1, M + 1) / (b - a) for M, (a, b) in zip(self.sizes, self.bounds, strict=True)]
        return jnp.asarray(np.stack(np.meshgrid(*each, indexing="ij"), axis=-1).reshape(-1, len(each)), dtype)

    def functions(self, X: Float[Array, "N d"]) -> Float[Array, "N M"]:
        """The functions at inputs; under ``jit``, they are NaN at inputs outside the box.

        Raises:
            ValueError: if ``X`` does not have one column for each axis of the box, or an input is outside the box
                (checked only outside ``jit``).
        """
        self.check(X)
        values = jnp.ones((X.shape[0], 1), X.dtype)
        for i, (M, (a, b)) in enumerate(zip(self.sizes, self.bounds, strict=True)):
            own = jnp.sin(jnp.pi * (X[:, i, None] - a) / (b - a) * jnp.arange(1, M + 1, dtype=X.dtype))
            own = own / np.sqrt((b - a) / 2)
            values = (values[:, :, None] * own[:, None, :]).reshape(X.shape[0], values.shape[1] * M)
        return self.inside(X, values)

    def inside(self, X: Float[Array, "N d"], values: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """The values at inputs in the box, and NaN at other inputs."""
        lower, upper = (np.asarray(limits, X.dtype) for limits in zip(*self.bounds, strict=True))
        return jnp.where(jnp.any((X < lower) | (X > upper), axis=-1, keepdims=True), jnp.nan, values)

    def check(self, X: Float[Array, "N d"]) -> None:
        """Refuse inputs with a wrong number of columns and, outside ``jit``, inputs outside the box.

        Raises:
            ValueError: for these inputs; the message has the shape, or the input that is farthest outside.
        """
        d = len(self.sizes)
        checks.must(X.shape[-1] == d, "X", f"have {d} columns, those of the box;", f"shape {tuple(X.shape)}")
        if not checks.is_concrete(X) or not np.size(X):
            return
        at, limits = np.asarray(X), np.asarray(self.bounds, X.dtype).T
        beyond = np.maximum(limits[0] - at, at - limits[1])
        row, column = np.unravel_index(int(np.argmax(beyond)), at.shape)
        checks.refuse(
            beyond[row, column] > 0,
            f"Inputs are outside the box {list(self.bounds)} of its functions, the farthest {at[row, column]:.6g} "
            f"(row {row}, column {column}): give it wider bounds.",
        )

    def nodes(self, dtype: Any) -> Float[Array, "M d"]:
        """Points in the box, one per function. Sums over them keep the functions orthogonal; see :meth:`weight`."""
        each = [a + (b - a) * np.arange(1, M + 1) / (M + 1) for M, (a, b) in zip(self.sizes, self.bounds, strict=True)]
        return jnp.asarray(np.stack(np.meshgrid(*each, indexing="ij"), axis=-1).reshape(-1, len(each)), dtype)

    @property
    def weight(self) -> float:
        """Weight of each node. The weighted sum over nodes of a product of two functions is the product's integral."""
        pairs = zip(self.sizes, self.bounds, strict=True)
        return float(np.prod([(b - a) / (M + 1) for M, (a, b) in pairs]))


class HilbertSpace(Wrapper):
    """A stationary kernel approximated by ``M`` basis functions on a box (Solin and Särkkä 2020).

    The kernel is ``sum_m S(w_m) phi_m(x) phi_m(x')``. ``S`` is the spectral density of the given kernel, ``phi_m`` are
    the eigenfunctions of the Laplace operator on the box, and ``w_m`` are the square roots of the eigenvalues. The cost
    is linear in the number of inputs.

    As ``M`` grows, the approximation tends to the given kernel at inputs that are some lengthscales away from the faces
    of the box. At the faces, functions are zero. So let the box extend beyond the data on each side, by 0.2 to 0.5
    times half the range of the data (Riutort-Mayol and others 2023).

    Use :class:`gpzoo.InducingBasis` of the same box as inducing variables, because they determine the function
    completely. Other inducing variables are possible too.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import RBF, HilbertSpace
        >>> kernel, X = RBF(1.0, 0.5), np.array([[0.0], [0.3]], np.float32)
        >>> near = HilbertSpace(kernel, sizes=30, bounds=(-3.0, 3.0))
        >>> bool(abs(near(X) - kernel(X)).max() < 1e-5)
        True

    Args:
        kernel: a kernel with a spectral density: RBF and Matérn kernels of all columns, and their sums and multiples.
        sizes: number of functions along each column; a single number if there is one column.
        bounds: bounds of the box, ``(lower, upper)`` for all columns or one such pair for each column, in the units of
            the inputs.

    Raises:
        TypeError: if ``kernel`` is not a kernel.
        ValueError: for sizes below one; for bounds that are not finite or not in order; for white noise in ``kernel``;
            outside ``jit``, for inputs outside the box. Under ``jit``, inputs outside the box give NaN, which ``fit``
            and predictions refuse.
    """

    kernel: Kernel
    sizes: tuple[int, ...] = static()
    bounds: tuple[tuple[float, float], ...] = static()

    def __init__(
        self, kernel: Kernel, sizes: int | Sequence[int], bounds: Sequence[float] | Sequence[Sequence[float]]
    ) -> None:
        checks.instance("kernel", kernel, Kernel, "a kernel")
        noisy = "HilbertSpace takes the kernel of a function: add White to the result, HilbertSpace(...) + White(0.1)."
        checks.refuse(kernel.split_noise()[1] is not None, noisy)
        box = Box(sizes, bounds)
        self.kernel, self.sizes, self.bounds = kernel, box.sizes, box.bounds
        if not kernel.batched:
            jax.eval_shape(lambda: self.densities(jnp.float32))  # refuses a kernel that does not go with the box

    @property
    def box(self) -> Box:
        """The box and its functions."""
        return Box(self.sizes, self.bounds)

    def densities(self, dtype: Any) -> Float[Array, " M"]:
        """Variances ``S(w_m)`` of the weights of the functions."""
        return self.kernel.density(self.box.frequencies(dtype))

    def check_inputs(self, X: ArrayLike, name: str = "X") -> Float[Array, "..."]:
        """See :meth:`Kernel.check_inputs`; also refuses inputs outside the box, except under ``jit``."""
        X = super().check_inputs(X, name)
        self.box.check(X.reshape(-1, X.shape[-1]))
        return X

    def cross(self, X: Float[Array, "N d"], Z: Float[Array, "M d"]) -> Float[Array, "N M"]:
        """The sum over functions."""
        return matmul(self.box.functions(X) * self.densities(X.dtype), self.box.functions(Z).T)

    def variances(self, X: Float[Array, "N d"]) -> Float[Array, " N"]:
        """The weighted sum of the squares of the functions."""
        return matmul(jnp.square(self.box.functions(X)), self.densities(X.dtype))

    def prior_functions(
        self, X: Float[Array, "N d"], key: PRNGKeyArray, num_functions: int, num_features: int
    ) -> Float[Array, "N {num_functions}"]:
        """Sums of the functions of the box with random weights."""
        spread = jnp.sqrt(self.densities(X.dtype))[:, None]
        return matmul(self.box.functions(X), spread * random.normal(key, (len(spread), num_functions), X.dtype))
