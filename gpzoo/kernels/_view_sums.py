"""Sums of a base kernel over the views of inputs, as :class:`~gpzoo.kernels.DoubleSum` computes them.

The functions compute in chunks of inputs, so memory never holds the covariances between all views of a batch.
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from gpzoo import _checks as checks
from gpzoo._devices import in_chunks
from gpzoo._pytree import Fields, static
from gpzoo.kernels.base import Kernel, Product, Scaled, Sum, addends
from gpzoo.kernels.stationary import RBF
from gpzoo.linalg.operators import einsum, matmul


def cross_view(
    base: Kernel, view: Any, weights: Float[Array, " P"], X: Float[Array, "N ..."], Z: Float[Array, "M e"]
) -> Float[Array, "N M"]:
    """``sum_p w_p k(T_p x_n, z_m)``."""
    values = []
    for scale, part in _parts(base.split_noise()[0]):
        if isinstance(part, _Exponential):
            seen = _of_dims(Z, part.active_dims)
            value = part.variance * _rbf_cross_view(_seen(view, part), X, part.lengthscale, weights, seen)
        else:
            value = _any_cross_view(part, view, weights, X, Z)
        values.append(value if scale is None else scale * value)
    return sum(values[1:], values[0]) if values else jnp.zeros((X.shape[0], Z.shape[0]), X.dtype)


def diag(base: Kernel, view: Any, weights: Float[Array, " P"], X: Float[Array, "N ..."]) -> Float[Array, " N"]:
    """``sum_pq w_p w_q k(T_p x_n, T_q x_n)``; white noise in the base counts where ``p = q``."""
    function, noise = base.split_noise()
    values = []
    for scale, part in _parts(function):
        if isinstance(part, _Exponential):
            value = part.variance * _rbf_diag(_seen(view, part), X, part.lengthscale, weights)
        else:
            value = _any_diag(part, view, weights, X)
        values.append(value if scale is None else scale * value)
    if noise is not None:
        values.append(_noise(noise, view, weights, X))
    return sum(values[1:], values[0])


# -- the parts of a base kernel ----------------------------------------------------------------------------------------


class _Exponential(NamedTuple):
    """``variance * exp(-r^2 / 2)``, with one lengthscale, or one for each active column."""

    variance: Array
    lengthscale: Array
    active_dims: tuple[int, ...] | None


def _exponential(base: Kernel) -> _Exponential | None:
    """The exponential of an RBF with one lengthscale, or of a product of such RBFs on separate columns."""
    factors: list[Any] = list(base.parts) if isinstance(base, Product) else [base]
    if not all(type(factor) is RBF and jnp.ndim(factor.lengthscale) == 0 for factor in factors):
        return None
    if len(factors) == 1:
        return _Exponential(factors[0].variance, factors[0].lengthscale, factors[0].active_dims)
    dims = [dim for factor in factors for dim in factor.active_dims or ()]
    if len(set(dims)) < len(dims) or not all(factor.active_dims for factor in factors):
        return None
    lengthscales = [jnp.broadcast_to(factor.lengthscale, (len(factor.active_dims),)) for factor in factors]
    variance = reduce(operator.mul, [factor.variance for factor in factors])
    return _Exponential(variance, jnp.concatenate(lengthscales), tuple(dims))


def _parts(base: Kernel | None) -> list[tuple[Any, Any]]:
    """The terms of a base kernel with their factors; all terms without a specialised evaluation stay one sum."""
    own, others = [], []
    for factor, part in addends(base):
        if (found := _exponential(part)) is not None:
            own.append((factor, found))
        else:
            others.append(part if factor is None else Scaled(part, factor))
    return own + ([(None, Sum(*others) if len(others) > 1 else others[0])] if others else [])


def _noise(noise: Kernel, view: Any, weights: Float[Array, " P"], X: Float[Array, "N ..."]) -> Float[Array, " N"]:
    """``sum_p w_p^2 k(T_p x_n, T_p x_n)``."""
    if noise.input_ndim is None:  # the same for all views
        return jnp.broadcast_to(noise.variances(weights[:1])[0] * matmul(weights, weights), X.shape[:1])

    def one(x: Array, noise: Kernel, view: Any, weights: Array) -> Array:
        return matmul(jnp.square(weights), noise.variances(view.view(x[None])[0]))

    return in_chunks(one, weights.shape[0], X, noise, view, weights)


def _of_dims(views: Float[Array, "*batch e"], dims: tuple[int, ...] | None) -> Float[Array, "*batch _"]:
    """The columns of views that enter a base kernel."""
    if dims is None:
        return views
    size = views.shape[-1]
    checks.refuse(max(dims) >= size, f"RBF: active_dims {dims} is out of range for views of size {size}.")
    total = getattr(dims, "total", size)
    checks.refuse(total != size, f"RBF: active_dims is a mask of {total} columns, and views have size {size}.")
    start, stop = dims[0], dims[-1] + 1
    return views[..., start:stop] if dims == tuple(range(start, stop)) else views[..., jnp.asarray(dims)]


class _Seen(Fields):
    """Some columns of another view."""

    whole: Any
    dims: tuple[int, ...] = static()

    def view(self, X: Float[Array, "N ..."]) -> Float[Array, "N P _"]:
        return _of_dims(self.whole.view(X), self.dims)


def _seen(view: Any, base: _Exponential) -> Any:
    return view if base.active_dims is None else _Seen(view, base.active_dims)


# -- any base kernel: chunks of inputs, evaluated again for their gradients --------------------------------------------


def _any_cross_view(
    base: Kernel, view: Any, weights: Float[Array, " P"], X: Float[Array, "N ..."], Z: Float[Array, "M e"]
) -> Float[Array, "N M"]:
    def one(x: Array, base: Kernel, view: Any, weights: Array, Z: Array) -> Array:
        return jax.checkpoint(lambda x: matmul(weights, base.cross(view.view(x[None])[0], Z)))(x)

    return in_chunks(one, weights.shape[0] * Z.shape[0], X, base, view, weights, Z)


def _any_diag(base: Kernel, view: Any, weights: Float[Array, " P"], X: Float[Array, "N ..."]) -> Float[Array, " N"]:
    def one(x: Array, base: Kernel, view: Any, weights: Array) -> Array:
        @jax.checkpoint
        def sums(x: Array) -> Array:
            V = view.view(x[None])[0]
            # The base's Gram matrix would cost half as much again, because ``gram`` makes it exactly symmetric. But a
            # cross-covariance has no exact diagonal.
            K = base.cross(V, V)
            lost = base.variances(V) - jnp.diagonal(K)
            return matmul(weights, matmul(K, weights)) + matmul(jnp.square(weights), lost)

        return sums(x)

    return in_chunks(one, weights.shape[0] ** 2, X, base, view, weights)


# -- RBF base: derivatives formed with the values ----------------------------------------------------------------------
# A scalar lengthscale may be a literal of a traced program, which is not a JAX array.


def _factors(A: Float[Array, "M e"]) -> tuple[Float[Array, "M e+2"], Float[Array, "M e+2"]]:
    """Rows ``l(a)`` and ``r(a)`` with ``l(a) . r(b) = -|a - b|^2 / 2``, so that one product gives all exponents."""
    half = -jnp.sum(A * A, -1, keepdims=True) / 2
    return jnp.concatenate([A, half, jnp.ones_like(half)], -1), jnp.concatenate([A, jnp.ones_like(half), half], -1)


def _exp(exponent: Float[Array, "N M"]) -> Float[Array, "N M"]:
    """Exponentials of negative numbers, some of which rounding may have made positive."""
    return jnp.exp(jnp.minimum(exponent, 0))


def _view_factors(
    view: Any, x: Float[Array, "..."], centre: Float[Array, " e"], lengthscale: Array
) -> Float[Array, "P e+2"]:
    return _factors((view.view(x[None])[0] - centre) / lengthscale)[1]


@jax.custom_vjp
def _rbf_cross_view(
    view: Any,
    X: Float[Array, "N ..."],
    lengthscale: Array,
    weights: Float[Array, " P"],
    Z: Float[Array, "M e"],
) -> Float[Array, "N M"]:
    """:func:`cross_view` of an RBF base with unit variance."""
    centre = jnp.mean(Z, 0)
    left = _factors((Z - centre) / lengthscale)[0]

    def one(x: Array, view: Any, lengthscale: Array, weights: Array, left: Array, centre: Array) -> Array:
        # A sum, not a product with a vector: XLA fuses it with the exponentials.
        return jnp.sum(_exp(matmul(left, _view_factors(view, x, centre, lengthscale).T)) * weights, -1)

    return in_chunks(one, weights.shape[0] * Z.shape[0], X, view, lengthscale, weights, left, centre)


def _rbf_cross_view_forward(
    view: Any,
    X: Float[Array, "N ..."],
    lengthscale: Array,
    weights: Float[Array, " P"],
    Z: Float[Array, "M e"],
) -> tuple[Float[Array, "N M"], tuple]:
    centre, size = jnp.mean(Z, 0), Z.shape[-1]
    left = _factors((Z - centre) / lengthscale)[0]

    def one(x: Array, view: Any, lengthscale: Array, weights: Array, left: Array, centre: Array) -> tuple[Array, ...]:
        right = _view_factors(view, x, centre, lengthscale)
        # With k = exp(l . r), one product with the rows r gives the sums over views of w k, w k a and w k (l . r). The
        # first sum is the value. The others give its derivatives with respect to z and the lengthscale. The squares of
        # a give the derivatives with respect to each of several lengthscales.
        k, several = _exp(matmul(left, right.T)), jnp.ndim(lengthscale) > 0
        squares = jnp.square(right[:, :size])
        sums = matmul(k, weights[:, None] * (jnp.concatenate([right, squares], -1) if several else right))
        value, a = sums[:, size], left[:, :size]
        if several:
            square = jnp.square(a) * value[:, None] - 2 * a * sums[:, :size] + sums[:, size + 2 :]
            by_lengthscale = square / lengthscale
        else:
            by_lengthscale = -2 * jnp.sum(left * sums, -1) / lengthscale
        return value, by_lengthscale, (sums[:, :size] - a * value[:, None]) / lengthscale

    fixed = view, lengthscale, weights, left, centre
    value, by_lengthscale, by_Z = in_chunks(one, weights.shape[0] * Z.shape[0], X, *fixed)
    return value, (view, X, lengthscale, weights, Z, by_lengthscale, by_Z)


def _rbf_cross_view_backward(saved: tuple, cotangent: Float[Array, "N M"]) -> tuple:
    view, X, lengthscale, weights, Z, by_lengthscale, by_Z = saved
    centre = jnp.mean(Z, 0)
    left = _factors((Z - centre) / lengthscale)[0]

    def by_view(
        inputs: tuple[Array, Array], view: Any, lengthscale: Array, weights: Array, left: Array, centre: Array
    ) -> tuple[Array, Array]:
        x, g = inputs
        right = _view_factors(view, x, centre, lengthscale)
        weighted = _exp(matmul(right, left.T)) * g
        rows, size = jnp.sum(weighted, -1), left.shape[-1] - 2
        # The weighted sum of the differences from each view to all z.
        towards = matmul(weighted, left[:, :size]) - rows[:, None] * right[:, :size]
        return rows, weights[:, None] * towards / lengthscale

    fixed = view, lengthscale, weights, left, centre
    rows, d_views = in_chunks(by_view, weights.shape[0] * Z.shape[0], (X, cotangent), *fixed)
    d_weights, (d_view, d_X) = jnp.sum(rows, 0), _pulled(view, X, d_views)
    d_lengthscale = einsum("nm,nm...->...", cotangent, by_lengthscale)
    return d_view, d_X, d_lengthscale, d_weights, einsum("nm,nme->me", cotangent, by_Z)


_rbf_cross_view.defvjp(_rbf_cross_view_forward, _rbf_cross_view_backward)


@jax.custom_vjp
def _rbf_diag(
    view: Any, X: Float[Array, "N ..."], lengthscale: Array, weights: Float[Array, " P"]
) -> Float[Array, " N"]:
    """:func:`diag` of an RBF base with unit variance."""
    return _rbf_diag_forward(view, X, lengthscale, weights)[0]


def _rbf_diag_forward(
    view: Any, X: Float[Array, "N ..."], lengthscale: Array, weights: Float[Array, " P"]
) -> tuple[Float[Array, " N"], tuple]:
    def one(x: Array, view: Any, lengthscale: Array, weights: Array) -> tuple[Array, ...]:
        views = view.view(x[None])[0]
        left, right = _factors((views - jnp.mean(views, 0)) / lengthscale)
        exponent, a = matmul(left, right.T), left[:, :-2]
        exponent = jnp.where(jnp.eye(len(a), dtype=bool), 0, exponent)
        weighted = _exp(exponent) * weights
        rows = jnp.sum(weighted, -1)
        towards = matmul(weighted, a) - rows[:, None] * a
        if jnp.ndim(lengthscale):
            by_lengthscale = -2 * matmul(weights, a * towards) / lengthscale
        else:
            by_lengthscale = -2 * matmul(weights, jnp.sum(weighted * exponent, -1)) / lengthscale
        return matmul(weights, rows), rows, by_lengthscale, 2 * weights[:, None] * towards / lengthscale

    value, *derivatives = in_chunks(one, weights.shape[0] ** 2, X, view, lengthscale, weights)
    return value, (view, X, *derivatives)


def _rbf_diag_backward(saved: tuple, cotangent: Float[Array, " N"]) -> tuple:
    view, X, rows, by_lengthscale, by_views = saved
    d_view, d_X = _pulled(view, X, cotangent[:, None, None] * by_views)
    return d_view, d_X, einsum("n,n...->...", cotangent, by_lengthscale), 2 * matmul(cotangent, rows)


_rbf_diag.defvjp(_rbf_diag_forward, _rbf_diag_backward)


def _pulled(view: Any, X: Float[Array, "N ..."], d_views: Float[Array, "N P e"]) -> tuple:
    """Cotangents of a view object and of inputs, from the cotangents of the viewed vectors.

    Under ``jit``, the compiler drops this work if neither cotangent is used, because no other result depends on it.
    """
    return jax.vjp(lambda view, X: view.view(X), view, X)[1](d_views)
