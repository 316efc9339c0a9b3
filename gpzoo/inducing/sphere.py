"""Inducing variables on the unit sphere: integrals of a function with spherical harmonics."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from gpzoo import _checks as checks
from gpzoo._pytree import static
from gpzoo.inducing.basis import at_inputs, of_each
from gpzoo.inducing.kuu_kuf import Kuf, Kuu
from gpzoo.inducing.variables import InducingVariable
from gpzoo.kernels.base import same_covariance
from gpzoo.kernels.stationary import RBF, Matern, RationalQuadratic, Stationary
from gpzoo.linalg.operators import matmul

#: Largest deviation of the squared length of an input from one.
_ROUNDING = 1e-3


class InducingHarmonics(InducingVariable):
    """Integrals of a function with spherical harmonics on the unit sphere (Dutordoir et al. 2020).

    ``u_lm`` is the integral of ``f Y_lm`` over the unit sphere in three dimensions. ``Y_lm`` are the real spherical
    harmonics of degrees ``l`` from 0 to ``L``. On the sphere, a kernel of the distance between inputs depends only on
    their angle, so the ``u_lm`` are independent. ``Kuu`` is the diagonal matrix of the kernel's eigenvalues ``s_l``,
    each repeated ``2 l + 1`` times, and ``Kuf`` is ``s_l Y_lm(x)``. The prior of ``f`` keeps the exact kernel. These
    inducing variables have no trained parameters.

    Example:
        >>> import numpy as np
        >>> from gpzoo import InducingHarmonics, Kuf, Kuu
        >>> from gpzoo.kernels import RBF
        >>> harmonics, north = InducingHarmonics(8), np.array([[0.0, 0.0, 1.0]], np.float32)
        >>> A = Kuf(harmonics, RBF(), north)
        >>> A.shape, float((A.T @ np.linalg.solve(Kuu(harmonics, RBF()), A))[0, 0].round(4))
        ((81, 1), 1.0)

    Args:
        degree: ``L``; there are ``(L + 1)^2`` variables.

    Raises:
        TypeError: for a kernel that is not a function of the distance.
        ValueError: for a degree below one, for a kernel of some columns or with several lengthscales, or for inputs
            that are not on the sphere (checked only outside ``jit``). Under ``jit``, inputs off the sphere give NaN,
            which ``fit`` and predictions refuse.
    """

    degree: int = static()
    independent = True

    def __init__(self, degree: int) -> None:
        self.degree = checks.positive_int("degree", degree)

    def functions(self, X: Float[Array, "N d"]) -> Float[Array, "N M"]:
        """The harmonics at inputs, by degree; within a degree, the cosines come first and then the sines.

        Raises:
            ValueError: if ``X`` does not have three columns, or an input is not on the sphere (checked only outside
                ``jit``).
        """
        self._check(X)
        x, y, z = X.T
        # Powers of x + iy, and associated Legendre functions without their powers of sin. All of these are polynomials.
        real, imaginary = [jnp.ones_like(x)], [jnp.zeros_like(x)]
        for _ in range(self.degree):
            a, b = real[-1], imaginary[-1]
            real, imaginary = [*real, x * a - y * b], [*imaginary, x * b + y * a]
        both = jnp.stack(real), jnp.stack(imaginary)
        before, now = jnp.zeros((1, len(x)), X.dtype), jnp.full((1, len(x)), np.sqrt(1 / (4 * np.pi)), X.dtype)
        found = [now]
        for degree in range(1, self.degree + 1):
            m = np.arange(degree)
            rise = np.sqrt((4 * degree**2 - 1) / (degree**2 - m**2))[:, None].astype(X.dtype)
            fall = np.sqrt(((degree - 1) ** 2 - m**2) / abs(4 * (degree - 1) ** 2 - 1))[:, None].astype(X.dtype)
            own = rise * (z * now - fall * before)
            last = np.sqrt((2 * degree + 1) / (2 * degree)).astype(X.dtype) * now[-1:]
            before, now = jnp.concatenate([now, jnp.zeros_like(last)]), jnp.concatenate([own, last])
            waves = [np.sqrt(2).astype(X.dtype) * now[1:] * each[1 : degree + 1] for each in both]
            found += [now[:1], *waves]
        on_sphere = jnp.abs(jnp.sum(X * X, axis=1) - 1) <= _ROUNDING
        return jnp.where(on_sphere[:, None], jnp.concatenate(found).T, jnp.nan)

    def eigenvalues(self, kernel: Stationary) -> Float[Array, " M"]:
        """The eigenvalues ``s_l`` of the kernel on the sphere, by the formula of Funk and Hecke.

        An eigenvalue is ``2 pi`` times an integral over the cosine of the angle. The integrand is the kernel times a
        Legendre polynomial.
        """
        known, active = same_covariance(kernel, Stationary, apart=["profile"]), kernel.active_dims
        own = f"InducingHarmonics takes functions of the distance, and {type(kernel).__name__} has another covariance."
        checks.refuse(not known, own, TypeError)
        checks.must(active in (None, (0, 1, 2)), "active_dims", "be all three columns, on a sphere;", str(active))
        shape = jnp.shape(kernel.lengthscale)
        checks.must(shape in ((), (1,)), "lengthscale", "be one for all directions, on a sphere;", f"shape {shape}")
        nodes, weights = np.polynomial.legendre.leggauss(100 + 4 * self.degree)
        angles = np.pi * (nodes + 1) / 2
        points = np.stack([np.sin(angles), np.zeros_like(angles), np.cos(angles)], axis=1)
        polynomials = np.polynomial.legendre.legvander(points[:, 2], self.degree)
        weights = np.pi**2 * (weights * points[:, 0])[:, None] * polynomials
        dtype = jnp.result_type(kernel.variance, kernel.lengthscale)
        values = kernel(jnp.asarray([[0.0, 0.0, 1.0]], dtype), jnp.asarray(points, dtype))
        each = jnp.maximum(matmul(values, jnp.asarray(weights, dtype))[0], 0)
        return each[np.repeat(np.arange(self.degree + 1), 2 * np.arange(self.degree + 1) + 1)]

    def of(self, f: Callable[[Array], Array]) -> Float[Array, "M D"]:
        """Integrals of ``f`` with the harmonics; they are exact for polynomials of degree not much above ``degree``."""
        count = 2 * self.degree + 32
        z, weights = np.polynomial.legendre.leggauss(count)
        turns = np.arange(2 * count) * np.pi / count
        across = np.sqrt(1 - z * z)[:, None]
        parts = across * np.cos(turns), across * np.sin(turns), np.broadcast_to(z[:, None], (count, len(turns)))
        points = jnp.asarray(np.stack(parts, axis=-1).reshape(-1, 3), jnp.result_type(float))
        values = f(points)
        weights = jnp.asarray(np.repeat(weights * np.pi / count, len(turns)), values.dtype)
        return matmul((weights[:, None] * self.functions(points.astype(values.dtype))).T, values)

    def _check(self, X: Float[Array, "N d"]) -> None:
        checks.must(X.shape[-1] == 3, "X", "have 3 columns, of points on the unit sphere;", f"shape {tuple(X.shape)}")
        if not checks.is_concrete(X) or not np.size(X):
            return
        square = np.sum(np.square(np.asarray(X)), axis=1)
        row = int(np.argmax(np.abs(square - 1)))
        checks.refuse(
            abs(square[row] - 1) > _ROUNDING,
            f"Inputs of InducingHarmonics lie on the unit sphere, and that of row {row} has length "
            f"{np.sqrt(square[row]):.6g}: divide each by its length.",
        )


@Kuu.register(InducingHarmonics, (RBF, Matern, RationalQuadratic))
def _harmonics_Kuu(inducing: InducingHarmonics, kernel: Stationary) -> Float[Array, "*D M M"]:
    return of_each(kernel, lambda own: jnp.diag(inducing.eigenvalues(own)))


@Kuf.register(InducingHarmonics, (RBF, Matern, RationalQuadratic), object)
def _harmonics_Kuf(inducing: InducingHarmonics, kernel: Stationary, X: Array) -> Float[Array, "*D M N"]:
    return of_each(kernel, inducing.eigenvalues)[..., None] * at_inputs(inducing.functions, kernel, X)
