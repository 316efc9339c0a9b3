"""What a Gaussian process is given inducing variables on a grid: local interpolation of ``q(u)``."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro.distributions.kl import kl_divergence

from gpzoo import linalg
from gpzoo._checks import is_concrete
from gpzoo._pytree import Fields
from gpzoo.errors import FactorisationError
from gpzoo.inducing.grid import InducingGrid, axis_column, axis_covariances
from gpzoo.linalg.operators import Kronecker, kronecker_matmul, matmul
from gpzoo.linalg.toeplitz import ToeplitzInverse, toeplitz_matmul, toeplitz_root
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.process import GaussianProcess

#: Jitter of the prior over large grids relative to its variance, where its Toeplitz structure is used. A smooth kernel
#: on many points is singular in float32: with less, recursions over a thousand points lose their last digits.
TOEPLITZ_JITTER = {"float64": 1e-6, "float32": 1e-2}


class LowRank(Fields):
    """A covariance ``diag(deviation^2) + V V^T``.

    Args:
        deviation: ``[M]``, or ``[M, D]`` for one per output.
        V: ``[M, R]`` or ``[D, M, R]``.
    """

    data_fields = ("deviation", "V")

    def __init__(self, deviation: Array, V: Array) -> None:
        self.deviation, self.V = deviation, V


class GridPosterior(InducingPosterior):
    """``q(f)`` where ``f(x) = w(x)^T u`` is interpolated from ``u ~ q(u)`` on a grid (SV-DKL, section 4).

    ``mean = W m`` and ``cov = W S W^T``: there is nothing left of ``f`` given ``u``. The cost per input does not
    depend on the grid, that of ``q(u)`` and of ``KL[q(u) || p(u)]`` is that of factors along its axes (eq. 10-11).

    Args:
        prior: the site's :class:`GaussianProcess`, with inputs ``[N, G]`` (``[D, N, G]``) for ``G`` axes. White noise
            in its kernel is on the grid points.
        inducing: the grid.
        u_mean: ``m``, ``[M]`` or ``[M, D]``.
        u_scale: ``S``: a lower Cholesky factor ``[M, M]`` or ``[D, M, M]`` (one axis); a
            :class:`~gpzoo.linalg.Kronecker` product of such factors along each axis; standard deviations of the
            shape of ``u_mean``; or a :class:`LowRank` covariance (one axis). Where ``S`` is one of the last two, on one
            axis, the prior is only used through its Toeplitz structure.
        whiten: whether ``m`` and ``S`` are those of ``v`` with ``u = (L_1 x ... x L_G) v``. With Toeplitz structure the
            mean and ``V`` are, with the matrix of ``toeplitz_root``, and deviations are of ``u``.
        value_as: see :class:`InducingPosterior`.
        site: see :class:`InducingPosterior`.
        log: see :class:`InducingPosterior`.
        rows: see :class:`InducingPosterior`.

    Raises:
        ValueError: for shapes that do not fit each other, or forms of ``S`` that the grid does not allow.
    """

    def _factors(self) -> tuple[Kronecker | None, Kronecker | None]:
        site, prior = self.site, self.prior
        _check_q(site, self.inducing, self.u_mean, self.u_scale, prior.num_outputs)
        if self.toeplitz:
            return None, None
        # Factorised when the inputs are there, and not while a network that makes them is evaluated: on a CPU the
        # factorisation would wait for a thread of its pool and keep another from the network. XLA orders by what
        # depends on what alone, so the covariances take a zero from the inputs.
        first = jax.lax.stop_gradient(prior.X[(0,) * prior.X.ndim])
        zero = jnp.where(jnp.isnan(first), first, jnp.zeros_like(first))
        found = [
            linalg.cholesky_and_inverse(K + zero, f"Kuu of site {site!r} along axis {d} of its grid", prior.jitter)
            for d, K in enumerate(axis_covariances(self.inducing, prior.kernel, prior.X.dtype))
        ]
        L, inverse = (Kronecker(*parts) for parts in zip(*found, strict=True))
        return L, inverse

    @property
    def toeplitz(self) -> bool:
        """Whether the prior over ``u`` is never factorised, only its Toeplitz structure used."""
        return (isinstance(self.u_scale, LowRank) or self.diagonal) and self.inducing.num_axes == 1

    @property
    def diagonal(self) -> bool:
        """Whether ``u_scale`` holds standard deviations."""
        return not isinstance(self.u_scale, Kronecker | LowRank) and self.u_scale.shape == self.u_mean.shape

    @property
    def outside(self) -> Array:
        """How many inputs lie outside the grid's bounds (of each output's, with one set of inputs per output)."""
        return self.inducing.outside(self.prior.X)

    # -- q(u), one leading axis of outputs ---------------------------------------------------------------------------

    def _mean_of_u(self) -> Array:
        """Mean of ``u``, ``[D, M]``."""
        m = self.u_mean.T if self.num_outputs is not None else self.u_mean[None]
        return self._coloured(m[..., None])[..., 0]

    def _coloured(self, columns: Array) -> Array:
        """Columns ``[D, M, K]`` in terms of ``u``."""
        if not self.whiten:
            return columns
        if not self.toeplitz:
            return self.L @ columns
        column = prior_column(self.prior, self.inducing)
        times = lambda column, B: toeplitz_matmul(toeplitz_root(column), B)  # noqa: E731
        return jax.vmap(times, in_axes=(0 if column.ndim == 2 else None, 0))(column, columns)

    def _roots(self) -> tuple[tuple[Array, ...], Array | None]:
        """Factors ``F_d`` ``[D, M_d, .]`` and variances ``[D, M]``: ``cov(u)`` is ``prod_d F_d F_d^T + diag``."""
        S, single = self.u_scale, self.num_outputs is None
        if self.diagonal:
            return (), jnp.square(S[None] if single else S.T)
        if isinstance(S, LowRank):
            deviation, V = (S.deviation[None], S.V[None]) if single else (S.deviation.T, S.V)
            return (self._coloured(V),), jnp.square(deviation)
        factors = S.factors if isinstance(S, Kronecker) else (S,)
        roots = tuple(jnp.tril(F[None] if single else F) for F in factors)
        if self.whiten:
            roots = tuple(matmul(L, F) for L, F in zip(self.L.factors, roots, strict=True))
        return roots, None

    # -- q(f) --------------------------------------------------------------------------------------------------------

    def marginals(self) -> tuple[Array, Array]:
        """Mean and variance at every input, both of the event's shape."""
        first, weights = self.inducing.weights(self.prior.X)
        roots, variances = self._roots()
        mean = _interpolated(self._mean_of_u(), self.inducing.sizes, first, weights)
        parts = []
        if roots:
            pairs = zip(roots, first, weights, strict=True)
            parts.append(math.prod(_quadratic_form(F, c, w) for F, c, w in pairs))
        if variances is not None:
            squares = tuple(jnp.square(w) for w in weights)
            parts.append(_interpolated(variances, self.inducing.sizes, first, squares))
        return self._with_loc(mean), self._in_shape(sum(parts))

    def moments(self) -> tuple[Array, Array]:
        """Mean ``[N]`` or ``[N, D]`` and joint covariance ``[N, N]`` or ``[D, N, N]``, through the dense weights."""
        W = self.inducing.dense_weights(self.prior.X)
        roots, variances = self._roots()
        covariance = 0
        if roots:
            whole = Kronecker(*(matmul(F, F.mT) for F in roots)).dense()
            covariance = matmul(matmul(W, whole), W.mT)
        if variances is not None:
            covariance = covariance + matmul(W * variances[:, None, :], W.mT)
        mean = self._with_loc(self._interpolate(self._mean_of_u()))
        return mean, covariance[0] if self.num_outputs is None else covariance

    @property
    def mean(self) -> Array:
        """Posterior mean, of the event's shape."""
        return self._with_loc(self._interpolate(self._mean_of_u()))

    def _interpolate(self, u: Array) -> Array:
        return _interpolated(u, self.inducing.sizes, *self.inducing.weights(self.prior.X))

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Any:
        """A value of the site; joint draws interpolate a draw of ``u`` (eq. 8), whatever the number of inputs."""
        if self.value_as != "joint":
            return super().sample(key, sample_shape)
        if sample_shape == ():
            return self._with_loc(self._interpolate(self._draw(key)))
        keys = random.split(key, sample_shape)
        return jnp.vectorize(self.sample, signature="()->" + ("(n)" if self.num_outputs is None else "(n,d)"))(keys)

    def log_prob(self, value: Array, intermediates: Any = None) -> Array:
        """Refused: values interpolated from fewer inducing variables than inputs have no joint density.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"GP site {self.site!r} is interpolated from a grid: its values have no joint density. Use "
            "GaussianProcessELBO() as the objective, whose KL is that of the grid's variables."
        )

    # -- the inducing variables --------------------------------------------------------------------------------------

    def inducing_moments(self) -> tuple[Array, Any]:
        """Mean ``[M]`` or ``[M, D]`` of ``u``, whitened or not, and its covariance.

        The covariance is ``[M, M]`` or ``[D, M, M]``; on several axes the :class:`~gpzoo.linalg.Kronecker` product
        of its factors.
        """
        mean = self._in_shape(self._mean_of_u())
        roots, variances = self._roots()
        covariances = tuple(matmul(F, F.mT) for F in roots)
        covariance = covariances[0] if covariances else 0
        if variances is not None:
            covariance = covariance + variances[..., None] * jnp.eye(variances.shape[-1], dtype=variances.dtype)
        if len(covariances) > 1:
            one = tuple(K[0] for K in covariances) if self.num_outputs is None else covariances
            return mean, Kronecker(*one)
        return mean, covariance[0] if self.num_outputs is None else covariance

    def _draw(self, key: Array) -> Array:
        """A draw of ``u``, ``[D, M]``."""
        roots, variances = self._roots()
        mean = self._mean_of_u()
        key_roots, key_own = random.split(key)
        if roots:
            rank = math.prod(F.shape[-1] for F in roots)
            noise = random.normal(key_roots, (mean.shape[0], rank, 1), mean.dtype)
            mean = mean + kronecker_matmul(roots, noise)[..., 0]
        if variances is not None:
            mean = mean + jnp.sqrt(variances) * random.normal(key_own, mean.shape, mean.dtype)
        return mean

    def draw_inducing(self, key: Array) -> Array:
        """A draw of ``u``, of the shape of ``u_mean``."""
        return self._in_shape(self._draw(key))

    def given(self, u: Array) -> GridPosterior:
        """``p(f | u)``: ``q`` concentrated on ``u`` itself, whitened or not."""
        return self._replace(u_mean=u, u_scale=jnp.zeros_like(u), whiten=False)


# -- interpolation -----------------------------------------------------------------------------------------------------


def _interpolated(u: Array, sizes: tuple[int, ...], first: tuple[Array, ...], weights: tuple[Array, ...]) -> Array:
    """``W u``, ``[D, N]``, for ``u`` ``[D, M]`` and the nodes and weights along each axis."""
    n = weights[0].shape[-1]
    # Along the last axis the nodes of an input are neighbours in memory: one row of a table holds them.
    cells = sizes[-1] - n + 1
    table = u.reshape(u.shape[0], -1, sizes[-1])
    table = jnp.stack([table[..., a : a + cells] for a in range(n)], axis=-1).reshape(u.shape[0], -1, n)
    starts, shares = [first[-1]], [None]
    stride = cells
    for d in range(len(sizes) - 2, -1, -1):
        moved = [(start + stride * (first[d] + a), a) for start in starts for a in range(n)]
        shares = [
            weights[d][..., a] if share is None else share * weights[d][..., a] for share in shares for a in range(n)
        ]
        starts, stride = [start for start, _ in moved], stride * sizes[d]
    total = 0
    for start, share in zip(starts, shares, strict=True):
        own = jnp.sum(_rows(table, start) * weights[-1], axis=-1)
        total = total + (own if share is None else own * share)
    return total


def _quadratic_form(F: Array, first: Array, weights: Array) -> Array:
    """``w^T F F^T w``, ``[D, N]``, of a factor ``[D, M, R]`` along one axis; what it costs per input knows no ``M``."""
    n = weights.shape[-1]
    cells = F.shape[-2] - n + 1
    # The covariance is needed between neighbours only: n bands of it.
    bands = [jnp.sum(F[:, : F.shape[1] - k] * F[:, k:], axis=-1) for k in range(n)]
    pairs = [(a, b) for a in range(n) for b in range(a, n)]
    table = jnp.stack([bands[b - a][:, a : a + cells] for a, b in pairs], axis=-1)
    products = [weights[..., a] * weights[..., b] * (1 if a == b else 2) for a, b in pairs]
    return jnp.sum(_rows(table, first) * jnp.stack(products, axis=-1), axis=-1)


def _rows(table: Array, index: Array) -> Array:
    """Rows of ``[D, cells, K]``: ``[D, N, K]``, for indices ``[N]`` that outputs share or ``[D, N]``."""
    if index.ndim == 1:
        return table[:, index]
    return jax.vmap(lambda rows, i: rows[i])(jnp.broadcast_to(table, (index.shape[0], *table.shape[1:])), index)


# -- KL ----------------------------------------------------------------------------------------------------------------


@kl_divergence.register(GridPosterior, GaussianProcess)
def _kl_grid(q: GridPosterior, p: GaussianProcess) -> Array:
    """``KL[q(u) || p(u)]`` summed over outputs, in nats, from factors along the axes (eq. 10-11)."""
    if q.event_shape != p.event_shape:
        raise ValueError(f"Site {q.site!r} has shape {q.event_shape} in the guide and {p.event_shape} in the model.")
    if q.toeplitz:
        return _kl_toeplitz(q)
    m = q.u_mean[None] if q.num_outputs is None else q.u_mean.T
    D, M = m.shape
    S = q.u_scale.factors if isinstance(q.u_scale, Kronecker) else (q.u_scale,)
    S = tuple(jnp.tril(F[None] if q.num_outputs is None else F) for F in S)
    shares = [M / size for size in q.inducing.sizes]
    log_det_q = sum(
        2 * share * jnp.sum(jnp.log(jnp.abs(linalg.diagonal(F)))) for share, F in zip(shares, S, strict=True)
    )
    log_det_p = jnp.zeros((), m.dtype)
    if not q.whiten:
        inverses = q.L_inverse.factors
        S = tuple(matmul(R, F) for R, F in zip(inverses, S, strict=True))
        m = (q.L_inverse @ m[..., None])[..., 0]
        log_det_p = -2 * sum(
            share * jnp.sum(jnp.broadcast_to(jnp.sum(jnp.log(linalg.diagonal(R)), axis=-1), D))
            for share, R in zip(shares, inverses, strict=True)
        )
    trace = jnp.sum(math.prod(jnp.sum(jnp.square(F), axis=(-2, -1)) for F in S))
    return (trace + jnp.sum(jnp.square(m)) - D * M + log_det_p - log_det_q) / 2


def prior_column(prior: GaussianProcess, grid: InducingGrid) -> Array:
    """First column of the prior covariance on a grid of one axis, ``[M]`` or ``[D, M]``, jitter included."""
    column, jitter = axis_column(grid, prior.kernel, prior.X.dtype), prior.jitter
    if jitter is None:
        jitter = TOEPLITZ_JITTER[column.dtype.name] * jax.lax.stop_gradient(column[..., :1])
    return column.at[..., :1].add(jitter)


def _kl_toeplitz(q: GridPosterior) -> Array:
    m, (roots, variances) = q._mean_of_u(), q._roots()
    D, M = m.shape
    columns, log_det_q = m[..., None], jnp.sum(jnp.log(variances))
    if roots:
        columns = jnp.concatenate([columns, roots[0]], axis=-1)
        scaled = roots[0] / jnp.sqrt(variances)[..., None]
        inner = jnp.eye(scaled.shape[-1], dtype=scaled.dtype) + matmul(scaled.mT, scaled)
        log_det_q = log_det_q + jnp.sum(jnp.linalg.slogdet(inner)[1])
    column = prior_column(q.prior, q.inducing)

    def terms(column: Array, columns: Array, variances: Array) -> Array:
        inverse = ToeplitzInverse(column)
        trace = jnp.vdot(variances, inverse.diagonal()) + jnp.sum(columns * inverse.solve(columns))
        return trace + inverse.log_det

    by_output = jax.vmap(terms, in_axes=(0 if column.ndim == 2 else None, 0, 0))
    value = (jnp.sum(by_output(column, columns, variances)) - D * M - log_det_q) / 2
    if is_concrete(value) and not bool(jnp.isfinite(value)):
        raise FactorisationError(
            f"The prior over the grid of site {q.site!r} ({M} points, {column.dtype}) is not numerically positive "
            f"definite, its first column being {np.asarray(column).ravel()[:3].tolist()}, ...: use fewer points, "
            "GaussianProcess(jitter=...), or float64 (numpyro.enable_x64())."
        )
    return value


def _check_q(site: str, grid: InducingGrid, mean: Array, scale: Any, num_outputs: int | None) -> None:
    M, outputs = grid.num_inducing, () if num_outputs is None else (num_outputs,)
    if mean.shape != (M, *outputs):
        raise ValueError(
            f"The mean of q(u) of site {site!r} has shape {mean.shape}, expected {(M, *outputs)} for the "
            f"{M} points of its grid."
        )
    one = grid.num_axes == 1
    if isinstance(scale, Kronecker):
        found, wanted = [F.shape for F in scale.factors], [(*outputs, size, size) for size in grid.sizes]
    elif isinstance(scale, LowRank) and one:
        found, wanted = [scale.deviation.shape, scale.V.shape], [(M, *outputs), (*outputs, M, scale.V.shape[-1])]
    elif not isinstance(scale, LowRank) and one:
        found = [scale.shape]
        wanted = found if scale.shape == (M, *outputs) else [(*outputs, M, M)]
    else:
        raise ValueError(f"The scale of q(u) of site {site!r} must be Kronecker on a grid of {grid.num_axes} axes.")
    if found != wanted:
        raise ValueError(f"The scale of q(u) of site {site!r} has shapes {found}, expected {wanted}.")
