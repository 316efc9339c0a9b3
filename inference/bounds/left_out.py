"""Densities of data given all other data, with GP sites integrated out, at one value of the hyperparameters.

Let the noise be Gaussian, and ``P`` the inverse of the covariance of all data. Given all other data, a block ``b`` of
the data has the covariance ``P_bb^-1`` and the mean ``y_b - P_bb^-1 [P y]_b`` (Rasmussen and Williams 2006, eq. 5.10 to
5.12, for one row).

With inducing variables or other noise, the law of ``v`` given all data gives ``f_b`` the mean ``m`` and the covariance
``V``. To leave the block out, its terms are removed. With the slope ``g`` and the curvature ``-W`` of these terms, the
result is ``V_- = (V^-1 - W)^-1`` and ``m_- = m - V_- g``. This is exact for Gaussian noise. It is exact for the
collapsed bound too, because its best ``q(u)`` has these terms as factors. With Laplace's approximation, it is the usual
correction (Vehtari et al. 2016, *Bayesian leave-one-out cross-validation approximations for Gaussian latent variable
models*, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.scipy.special import logsumexp
from jaxtyping import Bool, Float, Integer, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo import linalg
from gpzoo.inference.bounds.evidence import Latents, Law, Site, Term, covariance_of_data, residual_of
from gpzoo.linalg.operators import LOG_2PI, einsum, matmul
from gpzoo.processes.marginals import standard_deviation

#: Draws of ``f`` at a row whose outputs depend on each other and enter one term together, as for classes.
_DRAWS = 500


class Blocks(NamedTuple):
    """Rows that are left out together.

    Attributes:
        rows: numbers of the rows of each block, padded with -1.
        num_rows: number of rows of all data.
        single: whether each block is one row.
    """

    rows: Integer[np.ndarray, "G B"]
    num_rows: int
    single: bool

    @classmethod
    def of(cls, leave_out: Any, num_rows: int) -> Blocks:
        """Blocks as a user gives them; see :meth:`gpzoo.inference.Trained.of_draws`.

        Raises:
            ValueError: for labels that do not fit the rows, and rows that do not exist.
        """
        wanted = f"leave_out must be a label for each of the {num_rows} rows, or a list of arrays of their numbers;"
        if isinstance(leave_out, list | tuple) and all(np.ndim(x) == 1 for x in leave_out):
            each = list(map(np.asarray, leave_out))
        else:
            labels = np.asarray(leave_out)
            checks.refuse(labels.shape != (num_rows,), f"{wanted} got shape {labels.shape}.")
            for row, label in enumerate(labels.tolist()):  # NaN, NaT and NA are not equal to themselves
                checks.refuse(label is None or (label == label) is not True, f"{wanted} got {label} for row {row}.")
            numbers = np.unique(labels, return_inverse=True)[1]
            each = [np.flatnonzero(numbers == i) for i in range(numbers.max() + 1)]
        for rows in each:
            known = rows.dtype.kind in "iu" and rows.size and rows.min() >= 0 and rows.max() < num_rows
            checks.refuse(not known or len(np.unique(rows)) < len(rows), f"{wanted} got the block {rows.tolist()}.")
        checks.refuse(not each, f"{wanted} got no block.")
        padded = np.full((len(each), max(map(len, each))), -1)
        for i, rows in enumerate(each):
            padded[i, : len(rows)] = rows
        return cls(padded, num_rows, False)

    @classmethod
    def each_row(cls, num_rows: int) -> Blocks:
        """Rows that are left out one by one."""
        return cls(np.arange(num_rows)[:, None], num_rows, True)

    def entries(self, columns: int, first: int = 0) -> tuple[Integer[np.ndarray, "G E"], Bool[np.ndarray, "G E"]]:
        """The numbers of each block's entries, and which of these entries exist.

        Each row has ``columns`` entries. The number of the first entry of the first row is ``first``.
        """
        numbers = self.rows[..., None] * columns + np.arange(columns) + first
        there = np.broadcast_to(self.rows[..., None] >= 0, numbers.shape)
        return np.where(there, numbers, 0).reshape(len(numbers), -1), there.reshape(len(numbers), -1)


def left_out(
    sites: Sequence[Site], latents: Latents, law: Law | None, blocks: Blocks | None, key: PRNGKeyArray
) -> dict[str, dict[str, Array]]:
    """The density of each block of rows, or of each row, given all other data, by name of the data site.

    A data site is skipped if its number of rows differs from ``blocks.num_rows``. The key ``density`` has
    ``log p(y_b | y_-b)`` of each of the ``G`` blocks ``b``, ``[G]``, in nats. For single rows, the key ``drawn`` has a
    draw of each row given all other rows. ``law``, the law of ``v``, may be ``None`` if noise is Gaussian and no site
    has inducing variables.
    """
    found, first = {}, 0
    for i, term in enumerate(latents.terms):
        rows = len(term.marginals)
        own = Blocks.each_row(rows) if blocks is None else blocks
        if rows == own.num_rows:
            each = random.fold_in(key, i)
            if latents.gaussian and all(site.conditional is None for site in sites):
                density, drawn = _by_precision(sites, latents, term, own, first, each)
            else:
                density, drawn = _by_cavity(latents, cast(Law, law), i, own, each)
            found[term.name] = {"density": density} | ({"drawn": drawn} if own.single else {})
        first += rows * (1 if latents.apart else term.columns)
    return found


# -- Gaussian noise ----------------------------------------------------------------------------------------------------


def _by_precision(
    sites: Sequence[Site], latents: Latents, term: Term, blocks: Blocks, first: int, key: PRNGKeyArray
) -> tuple[Float[Array, " G"], Array]:
    data = covariance_of_data(sites, latents.terms)
    L = jnp.linalg.cholesky(data.covariance, symmetrize_input=False)
    inverse = linalg.solve_lower(L, jnp.broadcast_to(jnp.eye(L.shape[-1], dtype=L.dtype), L.shape))
    P = jnp.broadcast_to(matmul(inverse.mT, inverse), (len(data.y), *L.shape[1:]))
    r = einsum("kij,kj->ki", P, data.y)
    numbers, there = blocks.entries(1 if latents.apart else term.columns, first)

    def of_output(of: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        P, r, y, key = of
        each = there[:, :, None] & there[:, None, :]
        block = jnp.where(each, P[numbers[:, :, None], numbers[:, None, :]], jnp.eye(numbers.shape[1], dtype=P.dtype))
        L = _factor(block)
        white = _solve(L, jnp.where(there, r[numbers], 0)[..., None])
        density = jnp.sum(jnp.log(linalg.diagonal(L)), axis=-1) - jnp.sum(jnp.square(white[..., 0]), axis=-1) / 2
        noise = random.normal(key, white.shape, white.dtype)
        return density, y[numbers] - _solve(L, white - noise, transpose=True)[..., 0]

    density, drawn = jax.vmap(of_output)((P, r, data.y, random.split(key, len(data.y))))
    drawn = _by_row(drawn).reshape(-1, term.columns) + _columns(term.marginals.loc) if blocks.single else drawn
    return jnp.sum(density, axis=0) - LOG_2PI / 2 * _counted(term, blocks), _in_shape(term, drawn)


def one_by_one(
    term: Term,
    y: Float[Array, " N"],
    weights: Float[Array, " N"],
    precisions: Float[Array, " N"],
    key: PRNGKeyArray,
) -> dict[str, dict[str, Array]]:
    """The density and a draw of each row given all other rows, under the names that :func:`left_out` gives them.

    ``P`` is the inverse of the covariance of the data.

    Args:
        term: the data, which have one column.
        y: data minus their mean.
        weights: ``P y``; 0 for rows without data.
        precisions: the diagonal of ``P``; not 0.
        key: random key.
    """
    error, variance, seen = weights / precisions, 1 / precisions, term.seen()
    density = -(jnp.log(variance) + error * error / variance + LOG_2PI) / 2
    density = density if seen is None else jnp.where(seen[:, 0], density, 0)
    drawn = y - error + jnp.sqrt(variance) * random.normal(key, error.shape, error.dtype)
    return {term.name: {"density": density, "drawn": term.marginals.loc + drawn.reshape(term.marginals.shape)}}


def _in_shape(term: Term, drawn: Float[Array, "..."]) -> Float[Array, "..."]:
    return drawn.reshape(term.marginals.shape) if drawn.size == term.marginals.size else drawn


def _counted(term: Term, blocks: Blocks) -> Any:
    """The number of observed entries of each block."""
    numbers, there = blocks.entries(1)
    seen = term.seen()
    each = term.columns if seen is None else jnp.sum(jnp.broadcast_to(seen, (len(seen), term.columns)), axis=1)
    each = jnp.broadcast_to(each, blocks.num_rows)[numbers]
    return jnp.sum(jnp.where(there, each, 0), axis=1).astype(term.marginals.dtype)


# -- inducing variables, and other noise -------------------------------------------------------------------------------


class _Cavity(NamedTuple):
    """The law of the function values that a block's likelihood sees, given all other data.

    Attributes:
        mean: ``[G, E]``.
        covariance: ``[G, E, E]``, without the residual that inducing variables leave.
    """

    mean: Float[Array, "G E"]
    covariance: Float[Array, "G E E"]


def _by_cavity(
    latents: Latents, law: Law, i: int, blocks: Blocks, key: PRNGKeyArray
) -> tuple[Float[Array, " G"], Array]:
    term, fs = latents.terms[i], latents.at(law.mean)
    slope, curvature = jax.grad(latents.log_density)(fs)[i], -latents.curvature(fs, i)
    F = linalg.solve_lower(law.L, latents.design(term))
    if latents.apart:
        each: tuple = F, fs[i].T[..., None], slope.T[..., None], curvature.T[..., None, None]
    else:
        each = F, fs[i][None], slope[None], curvature[None]
    cavity = jax.vmap(partial(_cavity, blocks=blocks))(*each)
    f = term.marginals
    left = jnp.broadcast_to(_columns(f._with_fields(parts=()).variance), fs[i].shape)
    if term.gaussian:
        by_output = (lambda x: x.T[..., None]) if latents.apart else (lambda x: x[None])
        residual, noise, seen = residual_of(term)
        y = residual + _columns(f.loc)
        seen = jnp.broadcast_to(True if seen is None else seen, y.shape)
        own: Any = jax.tree.map(by_output, (y, jnp.broadcast_to(noise, y.shape) + left, seen))
        keys = random.split(key, len(own[0]))
        density, drawn = jax.vmap(partial(_of_gaussian, blocks=blocks))(cavity, own[0], own[1], own[2], keys)
        drawn = _in_shape(term, _by_row(drawn)) if blocks.single else drawn
        return jnp.sum(density, axis=0) - LOG_2PI / 2 * _counted(term, blocks), drawn
    known = _are_covariances(cavity.covariance)
    nan = jnp.where(jnp.all(known, axis=0), 0, jnp.nan)
    cavity = cavity._replace(covariance=jnp.where(known[..., None, None], cavity.covariance, 0))
    if not blocks.single:
        return _row_by_row(term, fs[i], cavity, left, blocks) + nan, key
    mean, V = _by_row(cavity.mean), cavity.covariance
    key_f, key_y = random.split(key)
    f = _drawn(key_f, mean, V, left, 1)[0]
    return _predicted(term, mean, V, left) + nan, _likelihood(term, f.reshape(term.marginals.shape)).sample(key_y)


def _cavity(
    F: Float[Array, "R E"],
    f: Float[Array, "N K"],
    slope: Float[Array, "N K"],
    curvature: Float[Array, "N K K"],
    blocks: Blocks,
) -> _Cavity:
    numbers, there = blocks.entries(f.shape[1])
    rows, columns = np.divmod(numbers, f.shape[1])
    own = jnp.where(there[:, None], jnp.moveaxis(F[:, numbers], 0, 1), 0)
    W = curvature[rows[:, :, None], columns[:, :, None], columns[:, None, :]]
    W = jnp.where(rows[:, :, None] == rows[:, None, :], W, 0)
    V = matmul(own.mT, own)
    rest = jnp.eye(V.shape[-1], dtype=V.dtype) - matmul(V, W)
    V = V / rest if V.shape[-1] == 1 else jnp.linalg.solve(rest, V)
    return _Cavity(f.ravel()[numbers] - einsum("gef,gf->ge", V, slope.ravel()[numbers]), V)


def _are_covariances(V: Float[Array, "D G E E"]) -> Bool[Array, "D G"]:
    """Whether there is a law of ``f`` without a block.

    There is none if the noise is not log-concave, and an outlier in other rows has more curvature than the prior.
    """
    least = V[..., 0, 0] if V.shape[-1] == 1 else jnp.linalg.eigvalsh((V + V.mT) / 2)[..., 0]
    return least >= -math.sqrt(jnp.finfo(V.dtype).eps) * jnp.max(linalg.diagonal(V), axis=-1)


def _of_gaussian(
    cavity: _Cavity,
    y: Float[Array, "N K"],
    noise: Float[Array, "N K"],
    seen: Bool[Array, "N K"],
    key: PRNGKeyArray,
    blocks: Blocks,
) -> tuple[Float[Array, " G"], Float[Array, "G E"]]:
    numbers, there = blocks.entries(y.shape[1])
    there = there & seen.ravel()[numbers]
    eye = jnp.eye(numbers.shape[1], dtype=y.dtype)
    covariance = cavity.covariance + noise.ravel()[numbers][..., None] * eye
    covariance = jnp.where(there[:, :, None] & there[:, None, :], covariance, eye)
    L = _factor(covariance)
    distance = jnp.where(there, y.ravel()[numbers] - cavity.mean, 0)
    white = _solve(L, distance[..., None])[..., 0]
    drawn = cavity.mean + einsum("gef,gf->ge", L, random.normal(key, distance.shape, distance.dtype))
    return -jnp.sum(jnp.log(linalg.diagonal(L)), axis=-1) - jnp.sum(jnp.square(white), axis=-1) / 2, drawn


def _row_by_row(
    term: Term, f: Float[Array, "N K"], cavity: _Cavity, left: Float[Array, "N K"], blocks: Blocks
) -> Float[Array, " G"]:
    """The sum over a block's observed rows of their densities, each given the data outside of the block."""

    def of_block(of: tuple) -> Array:
        rows, there, mean, V = of
        rows = jnp.where(there, rows, len(f))
        outputs, size = len(mean), len(rows)
        means = jnp.moveaxis(mean.reshape(outputs, size, -1), 0, 1).reshape(size, -1)
        V = V.reshape(outputs, size, -1, size, V.shape[-1] // size)
        within = jnp.moveaxis(V[:, jnp.arange(size), :, jnp.arange(size)], 1, 0)  # [outputs, rows, K, K]
        all_V = jnp.zeros((outputs, len(f), *within.shape[2:]), f.dtype).at[:, rows].set(within, mode="drop")
        each = _predicted(term, f.at[rows].set(means, mode="drop"), all_V, left)
        return jnp.sum(jnp.where(there, each[jnp.where(there, rows, 0)], 0))

    each = (*blocks.entries(1), jnp.moveaxis(cavity.mean, 1, 0), jnp.moveaxis(cavity.covariance, 1, 0))
    return lax.map(of_block, jax.tree.map(jnp.asarray, each))


def _predicted(
    term: Term, mean: Float[Array, "N K"], V: Float[Array, "D N _ _"], left: Float[Array, "N K"]
) -> Float[Array, " N"]:
    """Predictive log densities of the rows of a term, for ``f`` with this mean and covariance.

    Rows without data have zero.
    """
    y, seen = term.value, term.seen()
    observed = jnp.ones(len(mean), bool) if seen is None else jnp.any(seen, axis=1)
    if seen is not None:  # a row that a mask leaves out may have any value
        of_values = observed.reshape(-1, *(1,) * (jnp.ndim(y) - 1))
        y = jnp.where(of_values, y, term.likelihood.support.feasible_like(y).astype(y.dtype))
    f, variance = term.marginals, jnp.moveaxis(linalg.diagonal(V), 0, 1).reshape(mean.shape) + left
    if len(V) > 1 or mean.shape[1] == 1:
        mean, variance = mean.reshape(f.shape), variance.reshape(f.shape)
        f = f._with_fields(loc=mean, source_variance=variance, parts=(), loading=None, shared=None)
        return jnp.where(observed, _likelihood(term, f).predictive_log_prob(y), 0)
    draws = _drawn(random.key(0), mean, V, left, _DRAWS)
    each = lax.map(lambda f: _likelihood(term, f).log_prob(y), draws)
    return jnp.where(observed, logsumexp(each, axis=0) - np.log(_DRAWS), 0)


def _drawn(
    key: PRNGKeyArray, mean: Float[Array, "N K"], V: Float[Array, "D N _ _"], left: Float[Array, "N K"], count: int
) -> Float[Array, "{count} N K"]:
    """Draws of ``f`` at each row; its outputs are independent or have one covariance."""
    key, other = random.split(key)
    noise, rest = (random.normal(k, (count, *mean.shape), mean.dtype) for k in (key, other))
    if len(V) > 1:
        return mean + standard_deviation(jnp.moveaxis(linalg.diagonal(V), 0, 1).reshape(mean.shape) + left) * noise
    root = linalg.root(V[0], "the covariance of a row", None)
    return mean + einsum("nkl,snl->snk", root, noise) + standard_deviation(left) * rest


def _factor(K: Float[Array, "G E E"]) -> Float[Array, "G E E"]:
    """The Cholesky factor; for single entries the square root, without a call of LAPACK."""
    return jnp.sqrt(K) if K.shape[-1] == 1 else jnp.linalg.cholesky(K, symmetrize_input=False)


def _solve(L: Float[Array, "G E E"], columns: Float[Array, "G E _"], transpose: bool = False) -> Float[Array, "G E _"]:
    return columns / L if L.shape[-1] == 1 else linalg.solve_lower(L, columns, transpose=transpose)


def _likelihood(term: Term, f: Any) -> Any:
    fn = copy(term.likelihood)
    fn.f = f
    return fn


def _by_row(x: Float[Array, "D N K"]) -> Float[Array, "N _"]:
    return jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1)


def _columns(x: Float[Array, "N *K"]) -> Float[Array, "N K"]:
    return x if x.ndim == 2 else x[:, None]
