"""Kernels of your own from a function of two points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from gpzoo import _checks as checks
from gpzoo._pytree import static
from gpzoo.kernels.base import Kernel
from gpzoo.kernels.elementary import columns, select_columns


class Pointwise(Kernel):
    """The kernel given by a function of two points and its hyperparameters.

    ::

        def cosine(x, z, variance, period):
            return variance * jnp.cos(2 * jnp.pi * jnp.sum(x - z) / period)

        kernel = Pointwise(cosine, variance=1.0, period=jnp.asarray([1.0, 2.0])) + White(0.1)

    Pass hyperparameters by keyword, never in a closure. They are the leaves of the kernel, and gpzoo casts them to the
    precision of the inputs. Each hyperparameter may have a leading axis, for one kernel per output. The function is
    static, and JAX compares it by identity. Define it once, at the top of a module, because JAX compiles again for
    every new ``lambda``.

    For speed, or to draw functions by random features, write a class instead (:class:`~gpzoo.kernels.Kernel`).

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from gpzoo.kernels import Pointwise
        >>> cosine = Pointwise(lambda x, z, period: jnp.cos(2 * jnp.pi * (x[0] - z[0]) / period), period=2.0)
        >>> cosine(np.array([[0.0], [1.0]], np.float32)).round(2)
        Array([[ 1., -1.],
               [-1.,  1.]], dtype=float32)

    Args:
        function: ``function(x, z, **hyperparameters)``, which returns the covariance of two inputs ``[d]`` (the active
            columns), a scalar. It must be symmetric and positive definite; gpzoo does not check this.
        active_dims: the input columns that the function gets, as numbers or as a bool for each column; all if ``None``.
        axes: number of axes of each hyperparameter that is not a scalar, for a single kernel. For example,
            ``{"lengthscale": 1}`` means one lengthscale per column. A further axis in front is the axis of outputs.
        input_ndim: rank of one input, 3 for images ``[H, W, C]``.
        **hyperparameters: numbers or arrays.

    Raises:
        TypeError: if ``function`` cannot be called, a hyperparameter is not numeric, or ``active_dims`` are not
            integers.
        ValueError: if a hyperparameter has too many axes, ``axes`` names an unknown hyperparameter, or ``active_dims``
            are negative, repeated, or given for inputs that are not vectors; on evaluation, if ``active_dims`` do not
            fit the columns of the inputs, or the function does not return one number.
    """

    hyperparameters: dict[str, Array]
    function: Callable[..., Array] = static()
    active_dims: tuple[int, ...] | None = static()
    axes: tuple[tuple[str, int], ...] = static()
    rank: int = static()

    def __init__(
        self,
        function: Callable[..., Array],
        /,
        *,
        active_dims: Iterable[int] | None = None,
        axes: Mapping[str, int] | None = None,
        input_ndim: int = 1,
        **hyperparameters: float | Array,
    ) -> None:
        got = f"Pointwise takes a function of two points, got {type(function).__name__}."
        checks.refuse(not callable(function), got, TypeError)
        axes = dict(axes or {})
        unknown = sorted(set(axes) - set(hyperparameters))
        checks.refuse(unknown, f"axes names {unknown}, but the hyperparameters are {sorted(hyperparameters)}.")
        self.hyperparameters = {name: checks.floating(name, value) for name, value in hyperparameters.items()}
        self.function, self.active_dims, self.rank = function, columns(active_dims), input_ndim
        self.axes = tuple(sorted(axes.items()))
        no_vectors = f"active_dims are columns of vectors, but inputs have rank {input_ndim}."
        checks.refuse(self.active_dims is not None and input_ndim != 1, no_vectors)
        self.check_fields()

    @property
    def input_ndim(self) -> int:
        """Rank of a single input."""
        return self.rank

    def _output_axes(self) -> dict[str, int | None]:
        own = dict(self.axes)
        return {f: 0 if jnp.ndim(x) > own.get(f, 0) else None for f, x in self.hyperparameters.items()}

    @property
    def batched(self) -> bool:
        """Whether a hyperparameter has a leading axis, with one kernel per output."""
        return any(axis is not None for axis in self._output_axes().values())

    def batch_axes(self) -> Kernel:
        """See :meth:`Kernel.batch_axes`."""
        return self._with_fields(hyperparameters=self._output_axes())

    def check_fields(self) -> None:
        """Refuse hyperparameters with too many axes: more than the number in ``axes`` and one axis of outputs."""
        own = dict(self.axes)
        for name, value in self.hyperparameters.items():
            wanted = "a scalar or one per output [D]" if name not in own else f"of {own[name]} axes, or one more"
            hint = f"; name axes that are not those of outputs, axes={{{name!r}: {jnp.ndim(value)}}}"
            good = jnp.ndim(value) <= own.get(name, 0) + 1
            checks.must(good, f"Pointwise: {name}", f"be {wanted}", f"shape {jnp.shape(value)}", hint)

    def evaluate(self, x: Float[Array, "..."], z: Float[Array, "..."]) -> Array:
        """The function at two points."""
        return self.function(x, z, **self.hyperparameters)

    def active_columns(self, X: Float[Array, "N ..."]) -> Float[Array, "N ..."]:
        """The columns ``active_dims`` of the inputs, or the inputs."""
        return X if self.active_dims is None else select_columns(type(self).__name__, X, self.active_dims)

    @property
    def _said(self) -> str:
        return f"The function {getattr(self.function, '__name__', self.function)} of Pointwise"

    def __repr__(self) -> str:
        values = "".join(f", {name}={value!r}" for name, value in self.hyperparameters.items())
        return f"Pointwise({getattr(self.function, '__name__', self.function)}{values})"
