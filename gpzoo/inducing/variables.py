"""The kinds of inducing variables: values of a process at points, values of a base process at patches, and blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from jax import Array
from jaxtyping import Float

from gpzoo import _checks as checks
from gpzoo._pytree import Fields
from gpzoo._types import ArrayLike
from gpzoo.kernels.base import Kernel, Scaled, addends


class InducingVariable(Fields):
    """The base class of inducing variables ``u``; a pytree whose leaves are trained.

    A posterior needs only that ``u`` and ``f`` are jointly Gaussian. An inducing variable of your own is therefore a
    class with annotated fields, and two functions :data:`Kuu` and :data:`Kuf` that you register for this class and a
    kernel type. In the example, ``u`` are derivatives of ``f`` along the only column of the inputs. Pass an instance to
    a guide like inducing points: ``InducingGuide(model, Slopes(jnp.linspace(-1, 1, 20)[:, None]))``.

    gpzoo also uses the two functions for sums and multiples of kernels of this type, because ``u`` is linear in ``f``.
    White noise in a sum does not enter ``u``. The two functions are enough for predictions, densities and joint draws.
    To draw functions at any number of inputs, define :meth:`of` too. For a :class:`~gpzoo.kernels.DoubleSum`, ``u`` may
    belong to the base process. Then the functions that you register for ``DoubleSum`` also work if its views are a
    :class:`~gpzoo.SampledView`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from gpzoo import InducingVariable, Kuf, Kuu
        >>> from gpzoo.kernels import RBF
        >>> class Slopes(InducingVariable):
        ...     where: jax.Array  # [M, 1]
        ...
        ...     def of(self, f):
        ...         return jax.jvp(f, (self.where,), (jnp.ones_like(self.where),))[1]
        >>> def covariance(kernel):
        ...     return lambda x, z: kernel(x[None, None], z[None, None])[0, 0]
        >>> def of_pairs(function, a, b):
        ...     return jax.vmap(lambda s: jax.vmap(lambda t: function(s, t))(b[:, 0]))(a[:, 0])
        >>> @Kuu.register(Slopes, RBF)
        ... def _(inducing, kernel):  # [M, M]
        ...     return of_pairs(jax.grad(jax.grad(covariance(kernel)), 1), inducing.where, inducing.where)
        >>> @Kuf.register(Slopes, RBF, object)
        ... def _(inducing, kernel, X):  # [M, N]
        ...     return of_pairs(jax.grad(covariance(kernel)), inducing.where, X)
        >>> slopes = Slopes(jnp.array([[0.0], [1.0]]))
        >>> Kuu(slopes, RBF()).round(2), Kuf(slopes, RBF(), jnp.ones((3, 1))).shape
        (Array([[1., 0.],
               [0., 1.]], dtype=float32), (2, 3))
    """

    #: Number of axes of a grid from which ``f`` is interpolated; 0 if ``f`` follows from its covariances with ``u``.
    num_axes: ClassVar[Any] = 0
    #: Whether the variables are independent under the prior. Then ``Kuu`` is diagonal and needs no factorisation.
    independent: ClassVar[bool] = False

    def points(self, dtype: Any = None) -> Float[Array, "..."] | None:
        """Inducing inputs ``[M, ...]`` in the space of the inputs; ``None`` if ``u`` are not values of ``f``."""
        return None

    def rows_axis(self, kernel: Kernel) -> int | None:
        """The axis of the variables in each array; ``None`` if no variables can be added."""
        return None

    def pairs(self, kernel: Kernel) -> list[tuple[InducingVariable, Kernel]]:
        """Each block of inducing variables with its term of the kernel; without blocks, one pair of both."""
        return [(self, kernel)]

    def of_part(self, part: int) -> InducingVariable:
        """The inducing variables of one term of the kernel: its block, or all variables if there are no blocks."""
        return self

    def of(self, f: Callable[[Array], Array]) -> Float[Array, "M D"]:
        """``u`` for given functions.

        Args:
            f: one callable for ``D`` functions, from inputs ``[N, ...]`` to values ``[N, D]``. JAX can differentiate
                it.

        Raises:
            TypeError: if the class does not define this method.
        """
        raise TypeError(
            f"Draws of functions need the values of {type(self).__name__} for functions of the prior, which its class "
            "does not define: give it a method of(f) with f from inputs [N, ...] to [N, D] and the result [M, D]; or "
            "draw jointly with numpyro.infer.Predictive(guide, ...) at fewer inputs (a few thousand)."
        )


class InducingPoints(InducingVariable):
    """Inducing points: ``u_m = f(z_m)`` at inducing inputs ``Z`` in the space of the inputs.

    Example:
        >>> import numpy as np
        >>> from gpzoo import InducingPoints, Kuf, Kuu, kernels
        >>> points = InducingPoints(np.zeros((2, 3), np.float32))
        >>> Kuu(points, kernels.RBF()).shape, Kuf(points, kernels.RBF(), np.ones((5, 3), np.float32)).shape
        ((2, 2), (2, 5))

    Args:
        Z: ``[M, ...]``, with rows of the same shape as the rows of ``X``; ``[D, M, ...]`` for one set per output.

    Raises:
        ValueError: if ``Z`` is empty, holds NaN or infinity, or has fewer than two axes.
    """

    Z: Float[Array, "..."]

    def __init__(self, Z: ArrayLike) -> None:
        self.Z = _inducing_inputs(Z, "[M, ...], one inducing input per row")

    def points(self, dtype: Any = None) -> Float[Array, "..."]:
        """``Z``."""
        return self.Z

    def rows_axis(self, kernel: Kernel) -> int:
        """The axis of inducing inputs."""
        return int(kernel.has_outputs(self.Z))

    def of(self, f: Callable[[Array], Array]) -> Float[Array, "M D"]:
        """The values at ``Z``."""
        return f(self.Z)


class InducingPatches(InducingVariable):
    """Inducing patches: the base process ``g`` of a :class:`~gpzoo.kernels.DoubleSum` at patches, ``u_m = g(z_m)``.

    See van der Wilk, Rasmussen and Hensman (2017, section 4.1). In place of patches, ``Z`` can hold other views
    (:class:`~gpzoo.View`), the input vectors of the base process. For example, the views of an :class:`~gpzoo.Orbit`
    are transformed inputs. Sampled views (:class:`~gpzoo.SampledView`) need inducing patches instead of inducing
    points, because the kernel of ``f`` then has no closed form.

    In a sum of kernels, ``u`` is the sum of the parts' inducing variables at the same ``Z``. A white or constant part
    adds its own covariance.

    Example:
        >>> import numpy as np
        >>> from gpzoo import InducingPatches, Kuf, Kuu, kernels
        >>> u, images = InducingPatches(np.zeros((3, 4), np.float32)), np.ones((2, 5, 5, 1), np.float32)
        >>> kernel = kernels.Convolutional(kernels.RBF(), (5, 5, 1), (2, 2))
        >>> Kuu(u, kernel).shape, Kuf(u, kernel, images).shape
        ((3, 3), (3, 2))

    Args:
        Z: ``[M, h w]``, flattened patches or other views; ``[D, M, h w]`` for one set per output.

    Raises:
        ValueError: if ``Z`` is empty, holds NaN or infinity, or has a rank other than 2 or 3.
    """

    Z: Float[Array, "*D M e"]

    def __init__(self, Z: ArrayLike) -> None:
        self.Z = _inducing_inputs(Z, "[M, h * w] or [D, M, h * w], one flattened patch per row", max_ndim=3)

    def rows_axis(self, kernel: Kernel) -> int:
        """The axis of patches."""
        return self.Z.ndim - 2


class InducingBlocks(InducingVariable):
    """Separate inducing variables for each part of a sum of kernels: ``u = (u_1, ..., u_C)``.

    They are for ``f = f_1 + ... + f_C`` with independent parts. Each part has inducing variables in its own space.
    Two examples are in van der Wilk, Rasmussen and Hensman (2017): a weighted convolution plus an RBF (eq. 20-21), and
    one patch response per channel (eq. 22-23 and C.21). ``Kuu`` is block-diagonal, so gpzoo factorises each block
    separately (appendix C of this paper). The covariance of ``q(u)`` may have any form. White noise in the sum has no
    inducing variables and does not count as a part.

    Example:
        >>> import numpy as np
        >>> from gpzoo import InducingBlocks, InducingPoints, Kuu, kernels
        >>> few, many = np.linspace(0, 1, 2, dtype=np.float32)[:, None], np.linspace(0, 1, 5, dtype=np.float32)[:, None]
        >>> u = InducingBlocks(InducingPoints(few), InducingPoints(many))
        >>> Kuu(u, kernels.RBF(1.0, 2.0) + kernels.RBF(1.0, 0.1)).shape
        (7, 7)

    Args:
        *parts: one inducing variable per part of the kernel, in order. If you give a single one, all parts use its
            inducing inputs, but each part has its own values ``u_c``.

    Raises:
        TypeError: if a part is not an inducing variable.
    """

    parts: tuple[InducingVariable, ...]

    def __init__(self, *parts: InducingVariable) -> None:
        good = bool(parts) and all(isinstance(part, InducingVariable) for part in parts)
        got = [type(part).__name__ for part in parts]
        one_each = f"InducingBlocks takes inducing variables, one per part of the kernel, got {got}."
        checks.refuse(not good, one_each, TypeError)
        self.parts = tuple(parts)

    def pairs(self, kernel: Kernel) -> list[tuple[InducingVariable, Kernel]]:
        """See :func:`block_pairs`."""
        return block_pairs(self, kernel)

    def of_part(self, part: int) -> InducingVariable:
        """The block of one term of the sum."""
        return self.parts[part if len(self.parts) > 1 else 0]


def block_pairs(inducing: Any, kernel: Kernel) -> list[tuple[Any, Kernel]]:
    """Each block of ``inducing`` (or each of its initialisers) with its part of the kernel.

    Raises:
        ValueError: if there are several blocks, but not one for each part, or the kernel is only noise.
    """
    found = [(factor, part) for factor, part in addends(kernel) if part.split_noise()[0] is not None]
    parts = [part if factor is None else Scaled(part, factor) for factor, part in found]
    blocks = inducing.parts if len(inducing.parts) > 1 else inducing.parts * len(parts)
    checks.refuse(
        len(blocks) != len(parts) or not parts,
        f"{type(inducing).__name__} has {len(inducing.parts)} parts, but the kernel is a sum of {len(parts)} "
        f"besides white noise ({', '.join(type(part).__name__ for part in parts)}). Give one each, or one that all "
        "share.",
    )
    return list(zip(blocks, parts, strict=True))


def _inducing_inputs(Z: ArrayLike, wanted: str, max_ndim: int | None = None) -> Float[Array, "M ..."]:
    Z = checks.floating("Z", checks.data("Z", Z))
    good = Z.ndim >= 2 and (max_ndim is None or Z.ndim <= max_ndim)
    checks.must(good, "Z", f"be {wanted};", f"shape {tuple(Z.shape)}")
    return Z
