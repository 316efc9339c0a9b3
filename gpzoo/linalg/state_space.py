"""State-space forms of kernels of one column, and the density of noisy data in linear time.

A kernel with such a form has ``k(x_n, x_m) = h_n^T A_n ... A_(m+1) P_m h_m`` for rows ``x_n >= x_m`` in order. The
function is ``h^T z`` of a Markov process with states ``z_n ~ N(0, P_n)`` and ``E[z_n | z_(n-1)] = A_n z_(n-1)``
(Hartikainen and Särkkä 2010; Foreman-Mackey et al. 2017). The state of a sum of kernels contains the states of all
terms. The state of a product of kernels contains the products of the factors' states.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jaxtyping import Bool, Float, PRNGKeyArray

from gpzoo.linalg.operators import LOG_2PI, einsum, matmul

#: Number of rows in one turn of the loop. The overhead of a turn is as large as the work for one row.
UNROLLED = 4


class States(NamedTuple):
    """The state-space form of a kernel at ``N`` rows in order, with ``S`` numbers in a state.

    Attributes:
        h: ``[N, S]``; the value at a row is ``h^T`` times the state of the row.
        A: ``[N, S, S]``, the transition from the state of the row before. The first matrix is not used.
        P: ``[N, S, S]``, the prior's covariance of each state.
    """

    h: Float[Array, "N S"]
    A: Float[Array, "N S S"]
    P: Float[Array, "N S S"]

    @classmethod
    def of(cls, h: Array, A: Array, P: Array, num_rows: int) -> States:
        """The form of a kernel; an array needs no axis ``N`` if it is the same for all rows."""
        S, dtype = h.shape[-1], A.dtype
        shapes = (num_rows, S), (num_rows, S, S), (num_rows, S, S)
        return cls(*(jnp.broadcast_to(x.astype(dtype), shape) for x, shape in zip((h, A, P), shapes, strict=True)))

    def __add__(self, other: States) -> States:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The form of the sum of two kernels."""
        h = jnp.concatenate([self.h, other.h], axis=-1)
        return States(h, _block_diagonal(self.A, other.A), _block_diagonal(self.P, other.P))

    def __mul__(self, other: States) -> States:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The form of the product of two kernels."""
        h = (self.h[:, :, None] * other.h[:, None, :]).reshape(len(self.h), -1)
        return States(h, _kronecker(self.A, other.A), _kronecker(self.P, other.P))

    def seen_by(self, weights: Float[Array, " N"]) -> States:
        """The form of ``w f``, with one weight ``w`` for each row."""
        return self._replace(h=self.h * weights[:, None])


def _block_diagonal(A: Float[Array, "N S S"], B: Float[Array, "N T T"]) -> Float[Array, "N _ _"]:
    S, T = A.shape[-1], B.shape[-1]
    upper, lower = jnp.pad(A, [(0, 0), (0, 0), (0, T)]), jnp.pad(B, [(0, 0), (0, 0), (S, 0)])
    return jnp.concatenate([upper, lower], axis=1)


def _kronecker(A: Float[Array, "N S S"], B: Float[Array, "N T T"]) -> Float[Array, "N _ _"]:
    size = A.shape[-1] * B.shape[-1]
    return (A[:, :, None, :, None] * B[:, None, :, None, :]).reshape(-1, size, size)


class Filtered(NamedTuple):
    """The distribution of each state, and of each row's ``y``, given all rows before.

    Attributes:
        taken: ``[N, S, S]``, the amount by which the rows before reduce the prior's covariance of a state.
        mean: ``[N, S]``, the mean of a state given the rows before.
        gain: ``[N, S]``, the covariance of a state with the ``y`` of its row given the rows before.
        variance: ``[N]``, the variance of ``y`` given the rows before.
        error: ``[N]``, ``y`` minus its mean given the rows before.
        positive: ``[N]``, whether the computed variance is positive. If not, ``variance`` is set to 1.
    """

    taken: Float[Array, "N S S"]
    mean: Float[Array, "N S"]
    gain: Float[Array, "N S"]
    variance: Float[Array, " N"]
    error: Float[Array, " N"]
    positive: Bool[Array, " N"]

    @property
    def updated(self) -> tuple[Float[Array, "N S S"], Float[Array, "N S"]]:
        """``taken`` and ``mean``, given the rows before and the row itself."""
        shares = self.gain / self.variance[:, None]
        return self.taken + self.gain[:, :, None] * shares[:, None], self.mean + shares * self.error[:, None]


def filtered(states: States, y: Float[Array, " N"], noise: Float[Array, " N"]) -> Filtered:
    """The Kalman filter; it computes the amounts by which the data reduce the prior's covariances."""

    def step(carry: tuple[Array, Array], row: tuple[Array, ...]) -> tuple[tuple[Array, Array], Filtered]:
        (taken, mean), (h, A, P, y, noise) = carry, row
        taken, mean = _product(_product(A, taken), A.T), jnp.sum(A * mean, axis=-1)
        gain = jnp.sum((P - taken) * h, axis=-1)
        variance = jnp.sum(h * gain) + noise
        positive = variance > 0
        variance = jnp.where(positive, variance, 1)
        here = Filtered(taken, mean, gain, variance, y - jnp.sum(h * mean), positive)
        shares = gain / variance
        return (taken + gain[:, None] * shares, mean + shares * here.error), here

    S = states.h.shape[-1]
    start = jnp.zeros((S, S), y.dtype), jnp.zeros(S, y.dtype)
    return lax.scan(step, start, (*states, y, noise), unroll=UNROLLED)[1]


def log_density(
    states: States, y: Float[Array, " N"], noise: Float[Array, " N"], count: Array | int | None = None
) -> Float[Array, ""]:
    """``log N(y; 0, K + diag(noise))`` in nats, in time ``O(N S^3)``; minus infinity if a variance is not positive.

    Args:
        states: the state-space form of the kernel at the rows. The rows are sorted by the input.
        y: data minus their mean.
        noise: variances of the noise.
        count: number of rows with data, if some rows have none. Rows without data have ``h = 0``, ``y = 0`` and the
            noise variance 1.
    """
    value, positive = _log_density(tuple(states), y, noise)
    return jnp.where(positive, value - (len(y) if count is None else count) * LOG_2PI / 2, -jnp.inf)


@jax.custom_jvp
def _log_density(
    states: tuple[Array, Array, Array], y: Float[Array, " N"], noise: Float[Array, " N"]
) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """The density without its constant, and whether all variances are positive."""
    return _terms(filtered(States(*states), y, noise))


def _terms(found: Filtered) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    terms = jnp.log(found.variance) + found.error * found.error / found.variance
    return -jnp.sum(terms) / 2, jnp.all(found.positive)


@_log_density.defjvp
def _slope(primals: tuple, tangents: tuple) -> tuple[tuple, tuple]:
    """The derivatives of the density, from one pass over the rows in each direction.

    With ``a = C^-1 y``, the derivative by ``C = K + diag(noise)`` is ``(a a^T - C^-1) / 2``. Each entry of ``K`` is a
    product of ``h``, ``A`` and ``P``. The two passes compute the sums over all rows before and after each row.
    """
    (h, A, P), y, noise = primals
    (of_h, of_A, of_P), of_y, of_noise = tangents
    states = States(h, A, P)
    found = filtered(states, y, noise)
    later = smoothed(states, found)
    weights, precisions = later.weights[:, None], later.precisions[:, None]
    square = jnp.square(weights) - precisions
    after = (later.slope - weights * h) * weights + later.along
    times = lambda B, v: einsum("nij,nj->ni", B, v)  # noqa: E731
    before = weights * (found.mean - times(found.taken, later.slope))
    before += times(found.taken, precisions * h - later.along)
    by_h = times(P, square * h + after) + before
    held, mean = (x[:-1] for x in found.updated)
    slope, A, by_A = later.slope[1:], A[1:], later.curvature[1:]
    by_A = matmul(matmul(by_A, A), held)
    by_A += slope[:, :, None] * (mean - times(held, einsum("nij,ni->nj", A, slope)))[:, None]
    # The derivative by P is the outer product of square * h / 2 + after with h.
    along_P = einsum("ni,nij,nj->", square * h / 2 + after, of_P, h)
    total = along_P + jnp.sum(by_h * of_h) + jnp.sum(by_A * of_A[1:])
    total += jnp.sum(square[:, 0] * of_noise) / 2 - jnp.sum(later.weights * of_y)
    value, positive = _terms(found)
    return (value, positive), (total, np.zeros((), jax.dtypes.float0))


class Smoothed(NamedTuple):
    """The information that a row and all later rows add about the state of the row, given the rows before.

    Attributes:
        slope: ``[N, S]``. Given all data, a state has the mean ``mean + (P - taken) slope``.
        curvature: ``[N, S, S]``. Given all data, a state has the covariance ``C - C curvature C`` with
            ``C = P - taken``.
        weights: ``[N]``, ``(K + diag(noise))^-1 y``.
        precisions: ``[N]``, the diagonal of ``(K + diag(noise))^-1``.
        along: ``[N, S]``, a sum over later rows. Each term is a vector times a number. The vector maps the state to the
            value of the later row. The number is minus the entry of ``(K + diag(noise))^-1`` for the pair of rows.
    """

    slope: Float[Array, "N S"]
    curvature: Float[Array, "N S S"]
    weights: Float[Array, " N"]
    precisions: Float[Array, " N"]
    along: Float[Array, "N S"]


def smoothed(states: States, found: Filtered) -> Smoothed:
    """The smoother's backward pass (Bryson and Frazier 1963); it never divides by a covariance of states."""

    def step(carry: tuple[Array, Array], row: tuple[Array, ...]) -> tuple[tuple[Array, Array], Smoothed]:
        (slope, curvature), (h, A, gain, variance, error) = carry, row
        shares = gain / variance
        weight = error / variance - jnp.sum(shares * slope)
        along = jnp.sum(curvature * shares, axis=-1)
        precision = 1 / variance + jnp.sum(shares * along)
        curvature = curvature - h[:, None] * along - along[:, None] * h + precision * h[:, None] * h
        slope = slope + weight * h
        along_A = _product(curvature, A)
        carry = jnp.sum(A * slope[:, None], axis=0), jnp.sum(A[:, :, None] * along_A[:, None], axis=0)
        return carry, Smoothed(slope, curvature, weight, precision, along)

    S = states.h.shape[-1]
    start = jnp.zeros((S, S), states.h.dtype)
    rows = states.h, states.A, found.gain, found.variance, found.error
    return lax.scan(step, (start[0], start), rows, reverse=True, unroll=UNROLLED)[1]


def means_of_states(states: States, found: Filtered, later: Smoothed) -> Float[Array, "N S"]:
    """The mean of each state given all data."""
    return found.mean + einsum("nij,nj->ni", states.P - found.taken, later.slope)


class Between(NamedTuple):
    """The information of the data about states between rows, for ``N + 1`` gaps: before the first row, after each row.

    Let ``a`` be the vector that maps the state of the row before to a value at a new time, and ``b`` the covariance of
    this value with the state of the row after. Then the value has the mean ``(a, b)^T mean``, and the data reduce its
    variance by ``|root^T (a, b)|^2``. The data reduce the covariance of two values at one time by the product of their
    columns ``root^T (a, b)``.

    Attributes:
        mean: ``[N + 1, 2, S]``.
        root: ``[N + 1, 2, S, R]``.
    """

    mean: Float[Array, "_ 2 S"]
    root: Float[Array, "_ 2 S R"]

    @classmethod
    def of(cls, states: States, found: Filtered, later: Smoothed) -> Between:
        """The gaps of a series."""
        taken, mean = found.updated
        none = jnp.zeros_like(taken[:1])
        taken, mean = jnp.concatenate([none, taken]), jnp.concatenate([none[:, 0], mean])
        slope = jnp.concatenate([later.slope, none[:, 0]])
        A, curvature = (jnp.concatenate([x, none]) for x in (states.A, later.curvature))
        held, ahead = _root(taken), _root(curvature)
        through = einsum("nij,nkj->nik", taken, A)
        mean = mean - einsum("nij,nj->ni", through, slope)
        before = jnp.concatenate([held, -einsum("nij,njr->nir", through, ahead)], axis=-1)
        after = jnp.concatenate([jnp.zeros_like(held), ahead], axis=-1)
        return cls(jnp.stack([mean, slope], axis=1), jnp.stack([before, after], axis=1))

    def of_states(self, first: int, count: int) -> Between:
        """The part for some of the states, such as the states of one GP site."""
        own = slice(first, first + count)
        return Between(self.mean[:, :, own], self.root[:, :, own])


def _root(K: Float[Array, "N S S"]) -> Float[Array, "N S S"]:
    """Roots of matrices that rounding errors may have made indefinite."""
    values, vectors = jnp.linalg.eigh((K + K.mT) / 2)
    return vectors * jnp.sqrt(jnp.maximum(values, 0))[:, None]


def draw(states: States, key: PRNGKeyArray) -> Float[Array, "N S"]:
    """A draw of the states from the prior."""
    before = jnp.concatenate([jnp.zeros_like(states.P[:1]), states.P[:-1]])
    new = _root(states.P - einsum("nij,njk,nlk->nil", states.A, before, states.A))
    noise = einsum("nij,nj->ni", new, random.normal(key, states.h.shape, states.h.dtype))

    def step(z: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        A, noise = row
        z = jnp.sum(A * z, axis=-1) + noise
        return z, z

    return lax.scan(step, jnp.zeros_like(noise[0]), (states.A, noise), unroll=UNROLLED)[1]


def _product(A: Float[Array, "S S"], B: Float[Array, "S S"]) -> Float[Array, "S S"]:
    # A sum becomes part of the loop's body. A matrix product would be a call, whose overhead is larger than its work.
    return jnp.sum(A[:, :, None] * B, axis=1)


def differences(X: Float[Array, "N *d"]) -> Float[Array, "N *d"]:
    """Differences from the row before; the first difference is 0."""
    return jnp.diff(X, axis=0, prepend=X[:1])


def rotation(cosine: Array, sine: Array) -> Array:
    """Matrices ``[[c, s], [-s, c]]``."""
    return jnp.stack([jnp.stack([cosine, sine], -1), jnp.stack([-sine, cosine], -1)], -2)
