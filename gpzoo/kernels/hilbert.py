"""Hilbert-space Gaussian processes: a stationary kernel on a box by eigenfunctions of the Laplace operator there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from gpzoo import _checks as checks
from gpzoo._pytree import static
from gpzoo._types import ArrayLike
from gpzoo.kernels.base import Kernel, Wrapper


class Box:
    """Eigenfunctions of the Laplace operator on a box, zero at its faces (Solin and Särkkä 2020, eq. 56).

    Of one column ``phi_j(x) = sin(pi j (x - lower) / width) / sqrt(width / 2)``; of several their products, the last
    column's number running fastest.

    Args:
        sizes: how many functions along each column, one number for a single column.
        bounds: ``(lower, upper)`` of every column, or one such pair for each.

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
        """Square roots of the eigenvalues of each function, by column."""
        each = [np.pi * np.arange(1, M + 1) / (b - a) for M, (a, b) in zip(self.sizes, self.bounds, strict=True)]
        return jnp.asarray(np.stack(np.meshgrid(*each, indexing="ij"), axis=-1).reshape(-1, len(each)), dtype)

    def functions(self, X: Float[Array, "N d"]) -> Float[Array, "N M"]:
        """The functions at inputs; NaN outside the box, where the inputs are not known.

        Raises:
            ValueError: for another number of columns, and known inputs outside the box.
        """
        self.check(X)
        values = jnp.ones((X.shape[0], 1), X.dtype)
        for i, (M, (a, b)) in enumerate(zip(self.sizes, self.bounds, strict=True)):
            own = jnp.sin(jnp.pi * (X[:, i, None] - a) / (b - a) * jnp.arange(1, M + 1, dtype=X.dtype))
            own = own / np.sqrt((b - a) / 2)
            values = (values[:, :, None] * own[:, None, :]).reshape(X.shape[0], -1)
        return self.inside(X, values)

    def inside(self, X: Float[Array, "N d"], values: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """Values at inputs in the box, NaN at others."""
        lower, upper = (np.asarray(limits, X.dtype) for limits in zip(*self.bounds, strict=True))
        return jnp.where(jnp.any((X < lower) | (X > upper), axis=-1, keepdims=True), jnp.nan, values)

    def check(self, X: Float[Array, "N d"]) -> None:
        """Refuse inputs of other columns, and known ones outside the box.

        Raises:
            ValueError: with the shape, or naming the farthest.
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
        """As many points inside as there are functions, on which these are orthogonal; see :meth:`weight`."""
        each = [a + (b - a) * np.arange(1, M + 1) / (M + 1) for M, (a, b) in zip(self.sizes, self.bounds, strict=True)]
        return jnp.asarray(np.stack(np.meshgrid(*each, indexing="ij"), axis=-1).reshape(-1, len(each)), dtype)

    @property
    def weight(self) -> float:
        """Of every node, so that sums over nodes are integrals of products of two of the functions."""
        pairs = zip(self.sizes, self.bounds, strict=True)
        return float(np.prod([(b - a) / (M + 1) for M, (a, b) in pairs]))


class HilbertSpace(Wrapper):
    """``sum_m S(w_m) phi_m(x) phi_m(x')``: a stationary kernel by ``M`` functions on a box (Solin and Särkkä 2020).

    ``S`` is the spectral density of the kernel, ``phi_m`` and ``w_m`` the eigenfunctions of the Laplace operator on the
    box and the square roots of its eigenvalues. The cost is linear in the number of inputs. As ``M`` grows it becomes
    the kernel itself, inside and some lengthscales away from the faces, where functions are zero: let the box reach a
    fifth to a half beyond the data (Riutort-Mayol and others 2023). Inducing variables are :class:`gpzoo.InducingBasis`
    of the same box, given which nothing of the function is left; any others go too.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import RBF, HilbertSpace
        >>> kernel, X = RBF(1.0, 0.5), np.array([[0.0], [0.3]], np.float32)
        >>> near = HilbertSpace(kernel, sizes=30, bounds=(-3.0, 3.0))
        >>> bool(abs(near(X) - kernel(X)).max() < 1e-5)
        True

    Args:
        kernel: with a spectral density: an RBF or Matérn kernel of all columns, sums and multiples of such.
        sizes: how many functions along each column, one number for a single column.
        bounds: of the box, ``(lower, upper)`` for all columns or one such pair for each, in the units of the inputs.

    Raises:
        TypeError: if ``kernel`` is no kernel.
        ValueError: for sizes below one; bounds that are not finite or not in order; white noise in ``kernel``; outside
            ``jit``, for inputs outside the box. Under ``jit`` these give NaN, which ``fit`` and predictions refuse.
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
        """Variances of the weights of the functions, ``S(w_m)``."""
        return self.kernel.density(self.box.frequencies(dtype))

    def check_inputs(self, X: ArrayLike, name: str = "X") -> Float[Array, "..."]:
        """See :meth:`Kernel.check_inputs`; outside ``jit`` inputs outside the box are refused."""
        X = super().check_inputs(X, name)
        self.box.check(X.reshape(-1, X.shape[-1]))
        return X

    def cross(self, X: Float[Array, "N d"], Z: Float[Array, "M d"]) -> Float[Array, "N M"]:
        """The sum over functions."""
        return (self.box.functions(X) * self.densities(X.dtype)) @ self.box.functions(Z).T

    def variances(self, X: Float[Array, "N d"]) -> Float[Array, " N"]:
        """The sum over functions of their squares."""
        return jnp.square(self.box.functions(X)) @ self.densities(X.dtype)
