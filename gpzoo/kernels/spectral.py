"""Kernels defined by their spectra: waves of one frequency, and mixtures of bands of frequencies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array, random
from jaxtyping import Float, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo._pytree import static
from gpzoo._types import ArrayLike
from gpzoo.kernels.base import Kernel, Scaled, Sum
from gpzoo.kernels.elementary import Elementary, columns
from gpzoo.kernels.stationary import RBF
from gpzoo.linalg.state_space import States, differences, rotation


class Cosine(Elementary):
    """The kernel of plane waves of one frequency, with any phase and amplitude.

    The kernel is ``variance * cos(2 pi sum_i frequency_i (x_i - x'_i))``.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import Cosine
        >>> Cosine(frequency=0.5)(np.zeros((1, 1), np.float32), np.array([[1.0], [2.0]], np.float32)).round(2)
        Array([[-1.,  1.]], dtype=float32)

    Args:
        variance: scalar, or ``[D]`` for one kernel per output.
        frequency: scalar or one per (active) column ``[d]``, in cycles per unit of the inputs; with a leading ``D`` for
            one kernel per output.
        active_dims: the input columns that the kernel uses, as numbers or as a bool for each column; all if ``None``.

    Raises:
        TypeError: if a hyperparameter is not numeric or ``active_dims`` is not a sequence of integers.
        ValueError: if ``variance`` is not positive (checked only outside ``jit``), or shapes do not fit each other.
    """

    variance: Float[Array, "*D"]
    frequency: Float[Array, "..."]
    active_dims: tuple[int, ...] | None = static()
    per_column: ClassVar[tuple[str, ...]] = ("frequency",)

    def __init__(
        self,
        variance: float | Array = 1.0,
        frequency: float | Array = 1.0,
        active_dims: Iterable[int] | None = None,
    ) -> None:
        self.variance, self.frequency = checks.positive("variance", variance), checks.floating("frequency", frequency)
        self.active_dims = columns(active_dims)
        self.check_fields()

    def cross(self, X: Float[Array, "N d"], Z: Float[Array, "M d"]) -> Float[Array, "N M"]:
        """The cosine of the difference of angles, for all pairs of rows."""
        return self.variance * jnp.cos(self._angles(X)[:, None] - self._angles(Z))

    def gram(self, X: Float[Array, "N d"]) -> Float[Array, "N N"]:
        """The Gram matrix, exactly symmetric, with ``variance`` on the diagonal.

        Optimisations of the compiler do not change this.
        """
        K = self.cross(X, X)
        return jnp.where(jnp.eye(len(K), dtype=bool), self.variance, (K + K.T) / 2)

    def variances(self, X: Float[Array, "N d"]) -> Float[Array, " N"]:
        """``variance``, ``[N]``."""
        self.active_columns(X)
        return jnp.broadcast_to(jnp.asarray(self.variance, X.dtype), X.shape[:1])

    def states(self, X: Float[Array, "N 1"]) -> States:
        """Two states: the coordinates of a rotating point."""
        turned = self._angles(differences(X))
        eye = jnp.eye(2, dtype=X.dtype)
        return States.of(eye[0], rotation(jnp.cos(turned), jnp.sin(turned)), self.variance * eye, len(X))

    def _angles(self, X: Float[Array, "N d"]) -> Float[Array, " N"]:
        turns = self.active_columns(X) * self.frequency
        return 2 * jnp.pi * jnp.sum(turns - jnp.round(turns), axis=-1)

    def frequencies(
        self, key: PRNGKeyArray, num: int, num_columns: int, dtype: Any
    ) -> Float[Array, "{num} {num_columns}"]:
        """The frequency, with a random sign."""
        active = range(num_columns) if self.active_dims is None else self.active_dims
        own = jnp.broadcast_to(2 * jnp.pi * jnp.asarray(self.frequency, dtype), (len(active),))
        signs = random.rademacher(key, (num, 1), dtype)
        return jnp.zeros((num, num_columns), dtype).at[:, jnp.asarray(tuple(active))].set(signs * own)


def SpectralMixture(
    weights: ArrayLike, frequencies: ArrayLike, scales: ArrayLike, active_dims: Iterable[int] | None = None
) -> Kernel:
    """The spectral mixture kernel: its spectral density is a mixture of normals around plus and minus ``frequencies``.

    The kernel is ``sum_q w_q exp(-2 pi^2 sum_i (tau_i s_qi)^2) cos(2 pi sum_i tau_i m_qi)`` with ``tau = x - x'``
    (Wilson and Adams 2013, eq. 12, with one cosine of all columns). ``w`` are the weights, ``m`` the frequencies and
    ``s`` the scales. The kernel is a sum of products of :class:`RBF` and :class:`Cosine`. The bound (ELBO) has many
    local optima, so start from frequencies that occur in the data.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import SpectralMixture
        >>> kernel = SpectralMixture([1.0, 0.5], [[0.0], [1.0]], [[0.1], [0.05]])
        >>> np.asarray(kernel(np.zeros((1, 1), np.float32), np.array([[0.0], [0.5], [1.0]], np.float32))).round(2)
        array([[1.5 , 0.46, 1.3 ]], dtype=float32)

    Args:
        weights: variances of ``Q`` bands, ``[Q]``.
        frequencies: centres of the bands, ``[Q, d]``, in turns per unit of each (active) column.
        scales: standard deviations of the bands, ``[Q, d]``, in the same units.
        active_dims: the input columns that the kernel uses, as numbers or as a bool for each column; all if ``None``.

    Raises:
        TypeError: if an argument is not numeric.
        ValueError: if shapes do not fit each other, or weights or scales are not positive (checked only outside
            ``jit``).
    """
    weights, scales = checks.positive("weights", weights), checks.positive("scales", scales)
    means, dims = checks.floating("frequencies", frequencies), columns(active_dims)
    shapes = [tuple(map(int, jnp.shape(x))) for x in (weights, means, scales)]
    good = len(shapes[1]) == 2 and shapes[1] == shapes[2] and shapes[0] == shapes[1][:1] and shapes[0] != (0,)
    checks.must(good, "weights, frequencies and scales", "be [Q], [Q, d] and [Q, d];", f"shapes {shapes}")
    bands = [
        Scaled(RBF(1.0, 1 / (2 * jnp.pi * scale), dims) * Cosine(1.0, mean, dims), weight)
        for weight, mean, scale in zip(weights, means, scales, strict=True)
    ]
    return bands[0] if len(bands) == 1 else Sum(*bands)
