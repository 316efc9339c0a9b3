"""Kernels on vectors, applied to inputs of rank 2 or more."""

from __future__ import annotations

import operator

from jax import Array
from jaxtyping import Float, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo._pytree import static
from gpzoo.kernels.base import Kernel, Wrapper


class Flattened(Wrapper):
    """A kernel on vectors, applied to inputs of rank 2 or more: ``k(x, x') = k_0(vec x, vec x')``.

    With this wrapper, one sum can contain a kernel on whole images and kernels on patches (van der Wilk, Rasmussen and
    Hensman 2017, section 4.3). The inducing points of the kernel on whole images are images.

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
        name = type(kernel).__name__
        checks.refuse(not isinstance(kernel, Kernel), f"Flattened takes a kernel, got {name}.", TypeError)
        on_others = f"Flattened takes a kernel on vectors; {name} is on other inputs."
        checks.refuse(kernel.input_ndim not in (1, None), on_others)
        wanted = "be the rank of an input that is no vector, 2 or more;"
        checks.must(operator.index(input_ndim) >= 2, "input_ndim", wanted, str(input_ndim))
        self.kernel, self.rank = kernel, operator.index(input_ndim)

    @property
    def input_ndim(self) -> int:
        """Rank of a single input."""
        return self.rank

    def cross(self, X: Float[Array, "N ..."], Z: Float[Array, "M ..."]) -> Float[Array, "N M"]:
        """The kernel on the flattened inputs."""
        different = f"Flattened got inputs of different shapes: X {X.shape}, Z {Z.shape}."
        checks.refuse(X.shape[1:] != Z.shape[1:], different)
        return self.kernel.cross(self.vectors(X), self.vectors(Z))

    def gram(self, X: Float[Array, "N ..."]) -> Float[Array, "N N"]:
        """The kernel on the flattened inputs."""
        return self.kernel.gram(self.vectors(X))

    def variances(self, X: Float[Array, "N ..."]) -> Float[Array, " N"]:
        """The kernel on the flattened inputs."""
        return self.kernel.variances(self.vectors(X))

    def least_variances(self, X: Float[Array, "N ..."]) -> Float[Array, " N"]:
        """The kernel on the flattened inputs."""
        return self.kernel.least_variances(self.vectors(X))

    def prior_functions(
        self, X: Float[Array, "N ..."], key: PRNGKeyArray, num_functions: int, num_features: int
    ) -> Float[Array, "N {num_functions}"]:
        """The functions of the kernel on the flattened inputs."""
        return self.kernel.prior_functions(self.vectors(X), key, num_functions, num_features)

    def vectors(self, X: Float[Array, "N ..."]) -> Float[Array, "N d"]:
        """The inputs, flattened to one vector each."""
        return X.reshape(X.shape[0], -1)
