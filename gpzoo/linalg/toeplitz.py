"""Symmetric Toeplitz matrices: products, roots and inverses from the first column, without the matrix itself."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from gpzoo._pytree import Fields

# -- symmetric Toeplitz matrices, given by their first column ----------------------------------------------------------


def toeplitz_matmul(column: Float[Array, " M"], B: Float[Array, "M K"]) -> Float[Array, "M K"]:
    """``T B`` by Fourier transforms, where ``T`` is the symmetric Toeplitz matrix with first column ``column``."""
    M = column.shape[0]
    around = jnp.concatenate([column, jnp.zeros(1, column.dtype), column[:0:-1]])
    spectrum = jnp.fft.rfft(around)[:, None] * jnp.fft.rfft(B, n=2 * M, axis=0)
    return jnp.fft.irfft(spectrum, n=2 * M, axis=0)[:M].astype(B.dtype)


def toeplitz_root(column: Float[Array, " M"]) -> Float[Array, " M"]:
    """First column of a symmetric Toeplitz matrix ``R`` with ``R R`` close to ``T``.

    ``T`` is the symmetric Toeplitz matrix with first column ``column``. The function extends ``T`` to a circulant
    matrix, so ``R R`` differs from ``T`` mainly near the first and last rows. Let ``u = R v`` be a smooth process with
    covariance ``T``. Then the entries of ``v`` have about unit variance. No factorisation is needed.
    """
    M = column.shape[0]
    spectrum = jnp.fft.rfft(jnp.concatenate([column, column[-1:], column[:0:-1]])).real
    # A circulant spectrum may be zero or negative. The following bound keeps the root invertible.
    floor = 1e-3 * jnp.mean(spectrum)
    return jnp.fft.irfft(jnp.sqrt(jnp.maximum(spectrum, floor)), n=2 * M)[:M].astype(column.dtype)


class ToeplitzInverse(Fields):
    """The inverse of a symmetric positive-definite Toeplitz matrix, and its log determinant, without a dense matrix.

    The recursion of Levinson and Durbin gives the first column ``x`` of the inverse and the determinant, in ``O(M^2)``
    time and ``O(M)`` memory. By the formula of Gohberg and Semencul, the inverse is a difference of products of
    triangular Toeplitz matrices with entries from ``x``. So Fourier transforms compute solves and derivatives.

    Args:
        column: first column of the matrix, with two rows or more. A matrix that is not positive definite gives NaN.
    """

    x: Float[Array, " M"]
    log_det: Float[Array, ""]

    def __init__(self, column: Float[Array, " M"]) -> None:
        self.x, self.log_det = _durbin(column)

    def solve(self, B: Float[Array, "M K"]) -> Float[Array, "M K"]:
        """``T^-1 B``."""
        return _solve(self.x, B)

    def diagonal(self) -> Float[Array, " M"]:
        """The diagonal of ``T^-1``."""
        x = self.x
        reflected = jnp.concatenate([jnp.zeros(1, x.dtype), x[:0:-1]])
        return jnp.cumsum(jnp.square(x) - jnp.square(reflected)) / x[0]


def _solve(x: Float[Array, " M"], B: Float[Array, "M K"]) -> Float[Array, "M K"]:
    M = x.shape[0]
    reflected = jnp.concatenate([jnp.zeros(1, x.dtype), x[:0:-1]])
    forward, backward = (jnp.fft.rfft(v, n=2 * M)[:, None] for v in (x, reflected))

    def causal(spectrum: Array, B: Array) -> Array:
        product = jnp.fft.irfft(spectrum * jnp.fft.rfft(B, n=2 * M, axis=0), n=2 * M, axis=0)
        return product[:M]

    # In the Fourier domain an upper triangular Toeplitz matrix is the conjugate of the lower one.
    first = causal(forward, causal(jnp.conj(forward), B))
    second = causal(backward, causal(jnp.conj(backward), B))
    return ((first - second) / x[0]).astype(B.dtype)


@jax.custom_vjp
def _durbin(column: Float[Array, " M"]) -> tuple[Float[Array, " M"], Float[Array, ""]]:
    """First column of the inverse, and log determinant."""
    M = column.shape[0]
    ratio = column[1:] / column[0]

    def step(carry: tuple[Array, Array], k: Array) -> tuple[tuple[Array, Array], Array]:
        # y solves the Yule-Walker equations of order k. error is the relative variance of the prediction error.
        y, error = carry
        index = jnp.arange(M - 1)
        inside = index < k
        ordered = jnp.where(inside, jnp.roll(jnp.flip(ratio), k - (M - 1)), 0)  # ratio[k-1], ..., ratio[0]
        reflection = -(ratio[k] + jnp.sum(ordered * y)) / error
        backwards = jnp.where(inside, jnp.roll(jnp.flip(y), k - (M - 1)), 0)
        y = jnp.where(index == k, reflection, y + reflection * backwards)
        error = error * (1 - jnp.square(reflection))
        # If the error is not positive, the matrix is not positive definite, and the logarithm is NaN.
        return (y, error), jnp.log(error)

    start = jnp.zeros(M - 1, column.dtype), jnp.ones((), column.dtype)
    (y, error), logs = jax.lax.scan(step, start, jnp.arange(M - 1))
    x = jnp.concatenate([jnp.ones(1, column.dtype), y]) / (column[0] * error)
    return x, M * jnp.log(column[0]) + jnp.sum(logs)


def _durbin_forward(
    column: Float[Array, " M"],
) -> tuple[tuple[Float[Array, " M"], Float[Array, ""]], Float[Array, " M"]]:
    x, log_det = _durbin(column)
    return (x, log_det), x


def _durbin_backward(
    x: Float[Array, " M"], cotangents: tuple[Float[Array, " M"], Float[Array, ""]]
) -> tuple[Float[Array, " M"]]:
    d_x, d_log_det = cotangents
    M = x.shape[0]
    correlate = partial(_diagonal_sums, M=M)
    # d log|T| is the trace of T^-1 dT, a sum along the diagonals of the inverse. These also follow from x.
    weight = jnp.arange(M, dtype=x.dtype)
    traces = ((M - weight) * correlate(x, x) - 2 * correlate(weight * x, x)) / x[0]
    # dx = -T^-1 dT x.
    by_x = -(correlate(s := _solve(x, d_x[:, None])[:, 0], x) + correlate(x, s))
    both = d_log_det * 2 * traces + by_x
    # The main diagonal was counted twice.
    return (both.at[0].multiply(0.5),)


_durbin.defvjp(_durbin_forward, _durbin_backward)


def _diagonal_sums(a: Float[Array, " M"], b: Float[Array, " M"], M: int) -> Float[Array, " M"]:
    """``sum_i a_i b_(i+k)`` for ``k`` from 0: sums along the diagonals of ``a b^T``."""
    spectrum = jnp.conj(jnp.fft.rfft(a, n=2 * M)) * jnp.fft.rfft(b, n=2 * M)
    return jnp.fft.irfft(spectrum, n=2 * M)[:M].astype(a.dtype)
