"""What inducing variables are: values of a process at points, of its base at patches, or blocks of these."""

from __future__ import annotations

from typing import ClassVar

from jax import Array

from gpzoo import _checks as checks
from gpzoo._pytree import Fields


class InducingVariable(Fields):
    """What ``u`` is; a pytree whose leaves are trained. Subclasses list their array fields in ``data_fields``.

    ``u`` and ``f`` are jointly Gaussian, and that is all a posterior needs to know: a new (inter-domain) inducing
    variable is a subclass and two functions, :data:`Kuu` and :data:`Kuf`, registered for it and a kernel type::

        @Kuu.register(MyVariable, RBF)
        def _(inducing, kernel): ...             # [M, M]

        @Kuf.register(MyVariable, RBF, object)
        def _(inducing, kernel, X): ...          # [M, N]
    """

    data_fields: ClassVar[tuple[str, ...]] = ("Z",)


class InducingPoints(InducingVariable):
    """``u_m = f(z_m)`` at inducing inputs ``Z`` in the space of the inputs.

    Args:
        Z: ``[M, ...]``, rows like those of ``X``; ``[D, M, ...]`` for one set per output.

    Raises:
        ValueError: if ``Z`` is empty, holds NaN or infinity, or has fewer than two axes.
    """

    def __init__(self, Z: Array) -> None:
        self.Z = _inducing_inputs(Z, "[M, ...], one inducing input per row")


class InducingPatches(InducingVariable):
    """``u_m = g(z_m)``: the base process of a :class:`~gpzoo.kernels.DoubleSum` at patches (convolutional GPs, 4.1).

    In a sum of kernels ``u`` is the sum of the parts' inducing variables at the same ``Z``, a part of white or constant
    covariance contributing itself.

    Args:
        Z: ``[M, h w]``, flattened patches (any views); ``[D, M, h w]`` for one set per output.

    Raises:
        ValueError: if ``Z`` is empty, holds NaN or infinity, or has another rank.
    """

    def __init__(self, Z: Array) -> None:
        self.Z = _inducing_inputs(Z, "[M, h * w] or [D, M, h * w], one flattened patch per row", max_ndim=3)


class Blocks(InducingVariable):
    """``u = (u_1, ..., u_C)``: separate inducing variables for each part of a sum of kernels.

    For ``f = f_1 + ... + f_C`` with independent parts, each represented in its own space: weighted convolution plus RBF
    (convolutional GPs, eq. 20-21), one patch response per channel (eq. 22-23, C.21). ``Kuu`` is block-diagonal, and
    nothing larger than a block is ever factorised, whatever the covariance of ``q(u)`` (appendix C). White noise in the
    sum has no inducing variables of its own and is not counted as a part.

    Args:
        *parts: one inducing variable per part of the kernel, in order; a single one is shared by all parts (the same
            inducing inputs, separate outputs).

    Raises:
        TypeError: if a part is no inducing variable.
    """

    data_fields = ("parts",)

    def __init__(self, *parts: InducingVariable) -> None:
        if not parts or not all(isinstance(part, InducingVariable) for part in parts):
            raise TypeError(
                f"Blocks takes inducing variables, one per part of the kernel, got {[type(p).__name__ for p in parts]}."
            )
        self.parts = tuple(parts)


def _inducing_inputs(Z: Array, wanted: str, max_ndim: int | None = None) -> Array:
    Z = checks.floating("Z", Z)
    if Z.ndim < 2 or (max_ndim is not None and Z.ndim > max_ndim):
        raise ValueError(f"Z must be {wanted}; got shape {tuple(Z.shape)}.")
    checks.not_empty("Z", Z)
    checks.finite("Z", Z)
    return Z
