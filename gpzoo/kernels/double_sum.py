"""Kernels of functions that sum one base process over views of their input: convolutions, invariances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from gpzoo import checks
from gpzoo.kernels.base import Kernel, cast
from gpzoo.kernels.stationary import RBF
from gpzoo.views import Patches

#: Bytes of base-kernel values that a chunk of inputs may hold, by platform. On a CPU, one large input at a time is as
#: fast as several, and small ones go together; an accelerator needs many at once to be busy.
CHUNK_BYTES = {"cpu": 2**18}
DEFAULT_CHUNK_BYTES = 2**28


class DoubleSum(Kernel):
    """The prior of ``f(x) = sum_p w_p g(T_p x)``, where ``T_p x`` are the views of ``x`` and ``g`` has the base kernel.

    Convolutional GPs, eq. 14 and, with weights, 18: ``k_f(x, x') = sum_pq w_p w_q k_g(T_p x, T_q x')``;
    eq. 15 and 19: ``k_fu(x, z) = sum_p w_p k_g(T_p x, z)`` with ``u = g(z)`` (:meth:`cross_view`);
    eq. 16: ``k_uu = k_g``. Appendix D of the same paper is this kernel with other views.

    White noise in the base is independent noise on every response: it adds ``sum_p w_p^2`` times its variance to the
    diagonal, and nothing to covariances between different inputs.

    Neither values nor gradients ever hold the base kernel between all views of a batch: inputs are taken in chunks.
    Where the base is an :class:`~gpzoo.kernels.RBF` with a single lengthscale, gradients are formed along with the
    values; those exist in reverse mode and to first order only (the base ``1.0 * RBF(...)`` has all others).

    Args:
        base: kernel on views, vectors of length ``view.view_size``.
        view: the map from inputs to their views, such as :class:`gpzoo.views.Patches`.
        weights: ``[P]``, or ``[D, P]`` for one kernel per output; ``None`` for ones.
        mean: divide the weights by ``P``, so that ``f`` is the weighted mean of the responses, not their sum (then
            ``k_f`` is ``P^2`` times smaller, and ``k_fu`` ``P`` times).

    Raises:
        TypeError: if ``base`` is not a kernel, or ``view`` is not a view.
        ValueError: if the base does not take vectors, or the number of weights is not the number of views.
    """

    data_fields = ("base", "view", "weights")
    static_fields = ("mean",)

    def __init__(self, base: Kernel, view: Any, weights: Array | None = None, *, mean: bool = False) -> None:
        if not isinstance(base, Kernel):
            raise TypeError(f"base must be a kernel, got {type(base).__name__}.")
        if not callable(getattr(view, "view", None)):
            raise TypeError(f"view must have a method view(X), such as gpzoo.views.Patches; got {type(view).__name__}.")
        if base.input_ndim not in (1, None):
            raise ValueError(
                f"base must be a kernel on vectors (a view is one), but {type(base).__name__} takes inputs of rank "
                f"{base.input_ndim}."
            )
        if weights is not None:
            weights = checks.floating("weights", weights)
            if weights.ndim not in (1, 2) or weights.shape[-1] != view.num_views:
                raise ValueError(
                    f"weights must be [P] (or [D, P], one row per output) with one weight for each of the "
                    f"P = {view.num_views} views, got shape {tuple(weights.shape)}."
                )
        self.base, self.view, self.weights, self.mean = base, view, weights, bool(mean)

    @property
    def input_ndim(self) -> int:  # type: ignore[override]
        """Rank of a single input: that of the view."""
        return self.view.input_ndim

    @property
    def batched(self) -> bool:
        """Whether the weights or the base kernel carry a leading axis."""
        return self.base.batched or (self.weights is not None and jnp.ndim(self.weights) == 2)

    def _batch_axes(self) -> Kernel:
        base = self.base._batch_axes() if self.base.batched else jax.tree.map(lambda _: None, self.base)
        weights = 0 if self.weights is not None and jnp.ndim(self.weights) == 2 else None
        return self._unflatten((self.mean,), (base, jax.tree.map(lambda _: None, self.view), weights))

    def _check(self, X: Array, name: str = "X") -> Array:
        X = super()._check(X, name)
        # The view is evaluated input by input: its own checks should see, and name, the shape that the user gave.
        jax.eval_shape(self.view.view, jax.ShapeDtypeStruct(X.shape[X.ndim - self.input_ndim - 1 :], X.dtype))
        return X

    def cross_view(self, X: Array, Z: Array) -> Array:
        """Covariance of ``f`` at inputs with the base process ``g`` at vectors: ``sum_p w_p k_g(T_p x, z)``.

        Convolutional GPs, eq. 15 and 19; the transpose of ``Kuf`` for inducing patches.

        Args:
            X: inputs ``[N, ...]`` or ``[D, N, ...]``.
            Z: vectors in the space of the views, ``[M, view_size]`` or ``[D, M, view_size]``.

        Returns:
            ``[N, M]``, with a leading ``D`` where the kernel, ``X`` or ``Z`` carries one.

        Raises:
            ValueError: if ``X`` or ``Z`` has the wrong shape.
        """
        X, Z = self._check(X), checks.floating("Z", Z)
        if Z.ndim not in (2, 3) or Z.shape[-1] != self.view.view_size:
            size = self.view.view_size
            raise ValueError(
                f"Z must be [M, {size}], one flattened view per row (or [D, M, {size}], one set per output), "
                f"got shape {tuple(Z.shape)}."
            )
        dtype = jnp.result_type(X, Z)
        kernel = jax.tree.map(lambda leaf: cast(leaf, dtype), self)
        axes = (
            self._batch_axes() if self.batched else None,
            *(0 if many else None for many in (self._has_outputs(X), Z.ndim == 3)),
        )
        if axes == (None, None, None):
            return kernel._cross_view(X.astype(dtype), Z.astype(dtype))
        return jax.vmap(DoubleSum._cross_view, in_axes=axes)(kernel, X.astype(dtype), Z.astype(dtype))

    def _weights(self, dtype: Any) -> Array:
        weights = jnp.ones(self.view.num_views, dtype) if self.weights is None else self.weights
        return weights / self.view.num_views if self.mean else weights

    @property
    def _analytic(self) -> bool:
        return type(self.base) is RBF and jnp.ndim(self.base.lengthscale) == 0 and self.base.active_dims is None

    def _cross_view(self, X: Array, Z: Array) -> Array:
        weights = self._weights(X.dtype)
        if not self._analytic:
            return _cross_view(self.base, self.view, weights, X, Z)
        return self.base.variance * _rbf_cross_view(self.view, X, self.base.lengthscale, weights, Z)

    def _diag(self, X: Array) -> Array:
        weights = self._weights(X.dtype)
        if not self._analytic:
            return _diag(self.base, self.view, weights, X)
        return self.base.variance * _rbf_diag(self.view, X, self.base.lengthscale, weights)

    def _cross(self, X: Array, Z: Array) -> Array:
        weights = self._weights(X.dtype)
        views = jax.checkpoint(lambda z: self._cross_view(X, self.view.view(z[None])[0]) @ weights)
        return jax.lax.map(views, Z).T

    def _gram(self, X: Array) -> Array:
        # The variances come from `_diag`, which alone knows of white noise in the base.
        index = jnp.arange(X.shape[0])
        return self._cross(X, X).at[index, index].set(self._diag(X))


def Convolutional(
    base: Kernel,
    image_shape: Sequence[int],
    patch_shape: Sequence[int],
    weights: Array | None = None,
    *,
    mean: bool = False,
) -> DoubleSum:
    """The convolutional kernel: a :class:`DoubleSum` over the patches of an image (convolutional GPs, eq. 14 and 18).

    Args:
        base: kernel on flattened patches, ``[h w]``.
        image_shape: ``(H, W)`` or ``(H, W, C)``; with several channels the patches of each are separate responses.
        patch_shape: ``(h, w)``.
        weights: one per patch ``[P]`` (``[D, P]`` for one kernel per output); ``None`` for the translation-invariant
            kernel, all ones.
        mean: divide the weights by ``P``, as the authors' code does.

    Raises:
        ValueError: if the shapes do not fit each other.
    """
    return DoubleSum(base, Patches(image_shape, patch_shape), weights, mean=mean)


# -- any base kernel: chunks of inputs, evaluated again for their gradients --------------------------------------------


def _map(evaluate: Callable, inputs: Any, values_per_input: int) -> Any:
    """``evaluate`` on every input, as many at once as :data:`CHUNK_BYTES` allows."""
    N, dtype = jax.tree.leaves(inputs)[0].shape[0], jax.tree.leaves(inputs)[0].dtype
    budget = CHUNK_BYTES.get(jax.default_backend(), DEFAULT_CHUNK_BYTES)
    most = min(N, budget // (values_per_input * dtype.itemsize))
    # A chunk that divides N leaves no remainder, which would be compiled as a second loop body. A batch of one makes
    # XLA's CPU loops several times slower than no batch at all.
    size = next((size for size in range(most, most // 2, -1) if N % size == 0), most)
    return jax.lax.map(evaluate, inputs, batch_size=size if size > 1 else None)


def _cross_view(base: Kernel, view: Any, weights: Array, X: Array, Z: Array) -> Array:
    @jax.checkpoint
    def one(x: Array) -> Array:
        return weights @ base._cross(view.view(x[None])[0], Z)

    return _map(one, X, weights.shape[0] * Z.shape[0])


def _diag(base: Kernel, view: Any, weights: Array, X: Array) -> Array:
    @jax.checkpoint
    def one(x: Array) -> Array:
        V = view.view(x[None])[0]
        # A Gram matrix of the base would first be made exactly symmetric, at half the cost again. White noise is all
        # that it has beyond the covariances: what a variance has and the covariance with an equal input lacks.
        noise = base._diag(V) - jax.vmap(lambda v: base._cross(v[None], v[None])[0, 0])(V)
        return weights @ (base._cross(V, V) @ weights) + jnp.square(weights) @ noise

    return _map(one, X, weights.shape[0] ** 2)


# -- RBF base with one lengthscale: derivatives formed with the values -------------------------------------------------


def _factors(A: Array) -> tuple[Array, Array]:
    """Rows ``l(a)`` and ``r(a)`` with ``l(a) . r(b) = -|a - b|^2 / 2``, so that one product gives all exponents."""
    half = -jnp.sum(A * A, -1, keepdims=True) / 2
    return jnp.concatenate([A, half, jnp.ones_like(half)], -1), jnp.concatenate([A, jnp.ones_like(half), half], -1)


def _product(A: Array, B: Array) -> Array:
    # Accelerators otherwise round float32 products to ten bits.
    return jnp.matmul(A, B, precision=jax.lax.Precision.HIGHEST)


def _view_factors(view: Any, x: Array, centre: Array, lengthscale: Array) -> Array:
    return _factors((view.view(x[None])[0] - centre) / lengthscale)[1]


@jax.custom_vjp
def _rbf_cross_view(view: Any, X: Array, lengthscale: Array, weights: Array, Z: Array) -> Array:
    """:func:`_cross_view` of an RBF base with unit variance."""
    centre = jnp.mean(Z, 0)
    left = _factors((Z - centre) / lengthscale)[0]

    def one(x: Array) -> Array:
        # A sum, not a product with a vector: XLA fuses it with the exponentials.
        return jnp.sum(jnp.exp(_product(left, _view_factors(view, x, centre, lengthscale).T)) * weights, -1)

    return _map(one, X, weights.shape[0] * Z.shape[0])


def _rbf_cross_view_forward(view: Any, X: Array, lengthscale: Array, weights: Array, Z: Array) -> tuple[Array, tuple]:
    centre, size = jnp.mean(Z, 0), Z.shape[-1]
    left = _factors((Z - centre) / lengthscale)[0]

    def one(x: Array) -> tuple[Array, Array, Array]:
        right = _view_factors(view, x, centre, lengthscale)
        # With k = exp(l . r): the sums over views of w k, w k a and w k (l . r), which are the value and all that its
        # derivatives with respect to z and lengthscale need, are one product with the rows r.
        sums = _product(jnp.exp(_product(left, right.T)), weights[:, None] * right)
        value = sums[:, size]
        return (
            value,
            -2 * jnp.sum(left * sums, -1) / lengthscale,
            (sums - left * value[:, None])[:, :size] / lengthscale,
        )

    value, by_lengthscale, by_Z = _map(one, X, weights.shape[0] * Z.shape[0])
    return value, (view, X, lengthscale, weights, Z, by_lengthscale, by_Z)


def _rbf_cross_view_backward(saved: tuple, cotangent: Array) -> tuple:
    view, X, lengthscale, weights, Z, by_lengthscale, by_Z = saved
    centre = jnp.mean(Z, 0)
    left = _factors((Z - centre) / lengthscale)[0]

    def by_weights(inputs: tuple[Array, Array]) -> Array:
        x, g = inputs
        return jnp.sum(jnp.exp(_product(_view_factors(view, x, centre, lengthscale), left.T)) * g, -1)

    d_weights = jnp.sum(_map(by_weights, (X, cotangent), weights.shape[0] * Z.shape[0]), 0)
    d_view, d_X = _pull(lambda view, X: _cross_view(RBF(1.0, lengthscale), view, weights, X, Z), view, X, cotangent)
    return d_view, d_X, jnp.vdot(cotangent, by_lengthscale), d_weights, jnp.einsum("nm,nme->me", cotangent, by_Z)


_rbf_cross_view.defvjp(_rbf_cross_view_forward, _rbf_cross_view_backward)


@jax.custom_vjp
def _rbf_diag(view: Any, X: Array, lengthscale: Array, weights: Array) -> Array:
    """:func:`_diag` of an RBF base with unit variance."""
    return _rbf_diag_forward(view, X, lengthscale, weights)[0]


def _rbf_diag_forward(view: Any, X: Array, lengthscale: Array, weights: Array) -> tuple[Array, tuple]:
    def one(x: Array) -> tuple[Array, Array, Array]:
        views = view.view(x[None])[0]
        left, right = _factors((views - jnp.mean(views, 0)) / lengthscale)
        exponent = _product(left, right.T)
        weighted = jnp.exp(exponent) * weights
        rows = jnp.sum(weighted, -1)
        return jnp.vdot(weights, rows), rows, -2 * jnp.vdot(weights, jnp.sum(weighted * exponent, -1)) / lengthscale

    value, rows, by_lengthscale = _map(one, X, weights.shape[0] ** 2)
    return value, (view, X, lengthscale, weights, rows, by_lengthscale)


def _rbf_diag_backward(saved: tuple, cotangent: Array) -> tuple:
    view, X, lengthscale, weights, rows, by_lengthscale = saved
    d_view, d_X = _pull(lambda view, X: _diag(RBF(1.0, lengthscale), view, weights, X), view, X, cotangent)
    return d_view, d_X, jnp.vdot(cotangent, by_lengthscale), 2 * (cotangent @ rows)


_rbf_diag.defvjp(_rbf_diag_forward, _rbf_diag_backward)


def _pull(evaluate: Callable, view: Any, X: Array, cotangent: Array) -> tuple:
    """Cotangents of the view and the inputs, by differentiating another evaluation.

    No other result depends on it, so under ``jit`` it is dropped where these two are not asked for.
    """
    return jax.vjp(evaluate, view, X)[1](cotangent)
