"""Factorisations of covariance matrices, their default jitter, and the error for a matrix that has no factor."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Bool, Float

from gpzoo._checks import first_of, is_concrete, outside, refuse
from gpzoo.errors import FactorisationError, PrecisionWarning
from gpzoo.linalg.operators import BlockDiagonalMatrix, concatenate, diagonal, lower_congruence, lower_product, matmul

#: Jitter relative to the mean diagonal of a covariance matrix, by dtype.
RELATIVE_JITTER = {"float64": 1e-9, "float32": 1e-5, "bfloat16": 1e-2, "float16": 1e-2}

#: Rounding errors of a Cholesky factorisation, relative to the product of the machine epsilon, the largest variance and
#: the number of rows. Singular matrices of 30 to 1,600 rows factorise with 0.02 to 0.2 of this on their diagonals.
ROUNDING = 0.2

#: Jitter relative to the variance, for priors on large grids with Toeplitz structure. A smooth kernel on many points is
#: singular in float32. With less jitter, recursions over a thousand points lose all accuracy.
TOEPLITZ_JITTER = {"float64": 1e-6, "float32": 1e-2}

#: One absolute amount, one amount for each matrix, a tuple with one for each block, or ``None`` for the default.
Jitter: TypeAlias = Any

#: A triangular matrix with fewer rows is inverted by one solve.
SOLVED_WHOLE = 64

#: Number of first rows that are solved by substitution before a product with an inverse.
SUBSTITUTED = 8

#: Largest sum of negative eigenvalues that a draw ignores, relative to the variance. Rounding causes far smaller sums.
NEGLIGIBLE = 1e-3


def add_jitter(K: Float[Array, "*batch M M"], jitter: float | Array | None = None) -> Float[Array, "*batch M M"]:
    """Add jitter to the diagonal of a covariance matrix.

    Args:
        K: covariance matrices ``[..., M, M]``.
        jitter: the absolute amount, one for all matrices or one for each (it broadcasts over the leading axes).
            ``None`` means :data:`RELATIVE_JITTER` times the mean diagonal of each matrix.

    Returns:
        ``K`` with the jitter added, ``[..., M, M]``.
    """
    if jitter is None:
        jitter = relative_jitter(jnp.mean(diagonal(K), axis=-1))
    amount = jnp.broadcast_to(jnp.asarray(jitter, K.dtype), K.shape[:-2])
    return K + amount[..., None, None] * jnp.eye(K.shape[-1], dtype=K.dtype)


def relative_jitter(mean: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """The default jitter of covariance matrices, given the mean of each matrix's diagonal.

    The result can be differentiated with respect to these means. This matters if a matrix is nearly singular:
    its factor then depends on the jitter as much as on the entries of the matrix.
    """
    return RELATIVE_JITTER[mean.dtype.name] * mean


def needed_jitter(
    variances: Float[Array, "*D N"], least: Float[Array, "*D N"], noise: Float[Array, "*D N"]
) -> Float[Array, "*D"]:
    """The jitter with which a covariance matrix can be factorised, small enough not to change results.

    The jitter is the larger of two amounts, minus the noise that the matrix already has. The first amount is
    :data:`RELATIVE_JITTER` times the least variance of the kernel's terms. So a diffuse term (a term with a large
    variance) does not make the jitter too large for the other terms. The second amount covers rounding errors
    (:data:`ROUNDING`).

    Outside ``jit``, a :class:`~gpzoo.PrecisionWarning` tells users if rounding errors exceed the noise. If there is no
    noise, it tells them if rounding errors exceed a hundredth of the least variance.

    Args:
        variances: the diagonal.
        least: the least variance of the kernel's terms at each row.
        noise: the part of the diagonal that is noise.

    Returns:
        The jitter of each matrix, with derivative zero with respect to the noise. Otherwise, for small noise, the sum
        of noise and jitter would not depend on the noise.
    """
    noise = lax.stop_gradient(noise)
    rounding = ROUNDING * float(jnp.finfo(variances.dtype).eps) * variances.shape[-1] * jnp.max(variances, axis=-1)
    least, noise = jnp.mean(least, axis=-1), jnp.min(noise, axis=-1)
    told = jnp.where(noise > 0, noise, least / 100)
    if is_concrete(rounding) and bool(jnp.any(rounding > told)):
        warnings.warn(
            f"A covariance matrix of {variances.shape[-1]} rows with variances up to {float(jnp.max(variances)):.3g} "
            f"has rounding errors of {float(jnp.max(rounding)):.1g} in {variances.dtype}, in which its noise or an "
            "addend of its kernel is lost: compute in float64 (numpyro.enable_x64()), or centre inputs and data in "
            "place of a diffuse kernel.",
            PrecisionWarning,
            stacklevel=outside(),
        )
    return jnp.maximum(jnp.maximum(relative_jitter(least), rounding) - noise, 0)


def cholesky(
    K: Float[Array, "*batch M M"] | BlockDiagonalMatrix, name: str = "covariance", jitter: Jitter = None
) -> Float[Array, "*batch M M"] | BlockDiagonalMatrix:
    """Lower Cholesky factor of ``K`` plus jitter.

    Args:
        K: covariance matrices ``[..., M, M]``, or a block-diagonal matrix, which is factorised block by block.
        name: name of the matrix in the error message.
        jitter: see :func:`add_jitter`; a tuple has one amount for each block.

    Returns:
        Lower-triangular factors ``[..., M, M]``, block-diagonal if ``K`` is block-diagonal.

    Raises:
        FactorisationError: outside ``jit``, if the factor is not finite. Inside ``jit``, the factor is NaN.
            :func:`gpzoo.inference.fit` detects this and reports it through :func:`explain`.
    """
    if isinstance(K, BlockDiagonalMatrix):
        return BlockDiagonalMatrix(*_each_block(cholesky, K, name, jitter))
    L = jnp.linalg.cholesky(add_jitter(K, jitter), symmetrize_input=False)
    _refuse_failed(L, K, name, jitter)
    return L


def cholesky_and_inverse(
    K: Float[Array, "*batch M M"] | BlockDiagonalMatrix,
    name: str = "covariance",
    jitter: Jitter = None,
    *,
    is_diagonal: bool = False,
    graded: bool = False,
) -> tuple[Float[Array, "*batch M M"] | BlockDiagonalMatrix, Float[Array, "*batch M M"] | BlockDiagonalMatrix]:
    """The factor of :func:`cholesky` and its inverse ``L^-1``, for solves with many columns.

    With the usual numbers of inducing variables, a product with ``L^-1`` is several times faster than a solve with many
    columns. The derivatives are matrix products with the inverse, so they are faster too.

    Args:
        K: see :func:`cholesky`.
        name: see :func:`cholesky`.
        jitter: see :func:`cholesky`.
        is_diagonal: whether to read only the diagonal of ``K``.
        graded: whether ``K`` may have a term of low rank that is much larger than the other terms. A product with the
            inverse would amplify the rounding errors of this term. So :func:`times_inverse` computes the first rows of
            ``L^-1 B`` by substitution, and subtracts their part from ``B`` before it computes the other rows.

    Returns:
        ``L`` and ``L^-1``, each ``[..., M, M]`` and lower-triangular, and block-diagonal if ``K`` is block-diagonal.

    Raises:
        FactorisationError: see :func:`cholesky`.
    """
    if isinstance(K, BlockDiagonalMatrix):
        factors, inverses = zip(*_each_block(cholesky_and_inverse, K, name, jitter), strict=True)
        return BlockDiagonalMatrix(*factors), BlockDiagonalMatrix(*inverses)
    jittered = add_jitter(K, jitter)
    if is_diagonal:
        deviations, eye = jnp.sqrt(diagonal(jittered))[..., None], jnp.eye(K.shape[-1], dtype=K.dtype)
        L, inverse = deviations * eye, eye / deviations
    else:
        L, inverse = _cholesky_and_inverse(jittered, graded)
    _refuse_failed(L, K, name, jitter)
    return L, inverse


def by_block(K: BlockDiagonalMatrix, jitter: Jitter) -> list[tuple[Array, Jitter]]:
    """Every block with its jitter."""
    return list(zip(K.blocks, jitter if isinstance(jitter, tuple) else [jitter] * len(K.blocks), strict=True))


def _each_block(factorise: Callable, K: BlockDiagonalMatrix, name: str, jitter: Jitter) -> list[Any]:
    """``factorise`` of every block; blocks that are the same object are factorised once."""
    found: dict[int, Any] = {}
    for i, (block, own) in enumerate(by_block(K, jitter)):
        if id(block) not in found:
            found[id(block)] = factorise(block, f"block {i} of {name}", own)
    return [found[id(block)] for block in K.blocks]


def _refuse_failed(
    L: Float[Array, "*batch M M"], K: Float[Array, "*batch M M"], name: str, jitter: float | Array | None
) -> None:
    K = lax.stop_gradient(K)
    if is_concrete(L) and is_concrete(K) and not bool(jnp.all(jnp.isfinite(L))):
        raise FactorisationError(explain(np.asarray(K), name, jitter))


def cholesky_or_failed(
    K: Float[Array, "*batch M M"], name: str, jitter: float | Array | None = None
) -> tuple[Float[Array, "*batch M M"], Float[Array, "*batch"]]:
    """The factor of :func:`cholesky` if it exists, for densities that must be minus infinity without a factor.

    Args:
        K: see :func:`cholesky`.
        name: see :func:`cholesky`.
        jitter: see :func:`cholesky`.

    Returns:
        Factors ``[..., M, M]``, with the identity in place of a missing factor; and numbers ``[...]``, 1 if the factor
        exists, else 0. Derivatives are finite even for a missing factor.

    Raises:
        FactorisationError: outside ``jit``, if a factor does not exist.
    """
    L, factorised = guarded_cholesky(add_jitter(K, jitter))
    K = lax.stop_gradient(K)  # K then has known values under jax.grad outside `jit`
    if is_concrete(factorised) and is_concrete(K) and not bool(jnp.all(factorised == 1)):
        raise FactorisationError(explain(np.asarray(K), name, jitter))
    return L, factorised


@jax.custom_jvp
def guarded_cholesky(K: Float[Array, "*batch M M"]) -> tuple[Float[Array, "*batch M M"], Float[Array, "*batch"]]:
    """The factor and 1; if no factor exists, the identity and 0. See :func:`cholesky_or_failed`."""
    L = jnp.linalg.cholesky(K, symmetrize_input=False)
    factorised = jnp.isfinite(L).all(axis=(-2, -1))
    return _identity_unless(factorised, L), factorised.astype(L.dtype)


@guarded_cholesky.defjvp
def _guarded_cholesky_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple:
    L, factorised = guarded_cholesky(*primals)
    return (L, factorised), (_cholesky_tangent(L, tangents[0]), jnp.zeros_like(factorised))


def _identity_unless(keep: Bool[Array, "*batch"], L: Float[Array, "*batch M M"]) -> Float[Array, "*batch M M"]:
    return jnp.where(keep[..., None, None], L, jnp.eye(L.shape[-1], dtype=L.dtype))


@jax.custom_jvp
def times_factor(
    L: Float[Array, "*batch M M"], K: Float[Array, "*batch M M"], v: Float[Array, "*batch M S"]
) -> Float[Array, "*batch M S"]:
    """``L v``, with derivatives by ``K = L L^T`` (jitter included) and by ``v``.

    With few columns ``S``, the derivative by ``L`` has low rank. This saves a large product in the derivative by ``K``.
    """
    return matmul(L, v)


@times_factor.defjvp
def _times_factor_jvp(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    (L, _, v), (_, dK, dv) = primals, tangents
    return times_factor(*primals), matmul(L, matmul(_of_factor(L, dK), v) + dv)


def _cholesky_tangent(L: Float[Array, "*batch M M"], dK: Float[Array, "*batch M M"]) -> Float[Array, "*batch M M"]:
    return matmul(L, _of_factor(L, dK))


def _of_factor(L: Float[Array, "*batch M M"], dK: Float[Array, "*batch M M"]) -> Float[Array, "*batch M M"]:
    """``L^-1 dL``."""
    P = jnp.tril(solve_lower(L, solve_lower(L, dK).mT).mT)
    return P - jnp.eye(P.shape[-1], dtype=P.dtype) * P / 2


def root(
    K: Float[Array, "*batch N N"],
    name: str = "covariance",
    jitter: float | Array | None = None,
    *,
    out_of: Float[Array, "..."] | None = None,
    times: Float[Array, "*batch N S"] | None = None,
) -> Float[Array, "*batch N _"]:
    """A matrix ``R`` with ``R R^T = K`` plus jitter, even if ``K`` is singular or indefinite by rounding.

    Joint draws need such a root. The covariance of a function given inducing variables is a difference of nearly equal
    matrices, and usually has no Cholesky factor in float32. ``R`` is one of three roots:

    * the Cholesky factor, if it exists;
    * the root of the diagonal, if all entries of ``K`` are as small as rounding errors (``out_of`` sets their scale).
      Correlations are then only rounding errors, and no eigenvalues are computed;
    * otherwise the symmetric root, from an eigendecomposition with negative eigenvalues set to zero.

    ``R`` is finite for every finite ``K``. The derivatives belong to the chosen root. They are finite even for equal
    eigenvalues, at which the derivative of an eigendecomposition is NaN. At ``K = 0``, they are zero.

    Args:
        K: covariance matrices ``[..., N, N]``.
        name: see :func:`cholesky`.
        jitter: see :func:`add_jitter`; the default is too small to change moments noticeably.
        out_of: variances that set the scale of the rounding errors in ``K``. If ``K`` is a difference, give the
            diagonal of the first matrix. ``None`` means the diagonal of ``K``.
        times: a matrix by which ``R`` is multiplied, such as noise. If it has few columns, derivatives of the product
            are much cheaper than derivatives of ``R``.

    Returns:
        ``R``, ``[..., N, N]``, or its product with ``times``.

    Raises:
        FactorisationError: outside ``jit``, if ``K`` is not finite, or its negative eigenvalues exceed
            :data:`NEGLIGIBLE` times the variance. Rounding cannot explain such eigenvalues.
    """
    jittered = add_jitter(K, jitter)
    scale = jnp.mean(diagonal(K) if out_of is None else out_of)
    eye = jnp.broadcast_to(jnp.eye(K.shape[-1], dtype=K.dtype), K.shape)
    if not (is_concrete(jittered) and is_concrete(times)):
        return _root_times(jittered, lax.stop_gradient(scale), eye if times is None else times)
    R = _root_times(jittered, scale, eye)
    _refuse_failed(R, K, name, jitter)
    left_out = float(jnp.mean(jnp.sum(R * R, axis=-1) - diagonal(jittered)))
    variance = float(scale)
    refuse(
        left_out > NEGLIGIBLE * variance,
        f"{name[0].upper()}{name[1:]} ({K.shape[-1]} x {K.shape[-1]}, {K.dtype}) has negative eigenvalues that "
        f"rounding does not explain: {left_out:.2g} where its variance is {variance:.2g}. Check the kernel: it "
        "must be positive semi-definite.",
        FactorisationError,
    )
    return R if times is None else matmul(R, times)


@jax.custom_jvp
def _root_times(
    K: Float[Array, "*batch N N"], scale: Float[Array, ""], X: Float[Array, "*batch N S"]
) -> Float[Array, "*batch N S"]:
    L = jnp.linalg.cholesky(K, symmetrize_input=False)
    roots = [lambda: L, lambda: _diagonal_root(K), lambda: _symmetric_root(K)]
    return matmul(lax.switch(_choice(L, K, scale), roots), X)


def _choice(L: Float[Array, "*batch N N"], K: Float[Array, "*batch N N"], scale: Float[Array, ""]) -> Array:
    """The number of the chosen root: 0 for the Cholesky factor, 1 for the root of the diagonal, 2 for the symmetric."""
    rounding = 64 * jnp.finfo(K.dtype).eps * scale
    # If a factorisation fails, a pivot is not finite.
    return jnp.where(jnp.isfinite(diagonal(L)).all(), 0, jnp.where(jnp.abs(K).max() <= rounding, 1, 2))


def _diagonal_root(K: Float[Array, "*batch N N"]) -> Float[Array, "*batch N N"]:
    return jnp.sqrt(jnp.maximum(diagonal(K), 0))[..., None] * jnp.eye(K.shape[-1], dtype=K.dtype)


@_root_times.defjvp
def _root_times_jvp(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    (K, scale, X), dK, dX = primals, (tangents[0] + tangents[0].mT) / 2, tangents[2]
    L = jnp.linalg.cholesky(K, symmetrize_input=False)
    choice = _choice(L, K, scale)
    lower = choice == 0
    # Under vmap over draws, all derivatives are computed, and zero times NaN would be NaN.
    L = jnp.where(lower, L, jnp.eye(L.shape[-1], dtype=L.dtype))
    eye = jnp.broadcast_to(jnp.eye(L.shape[-1], dtype=L.dtype), L.shape)

    # R = left (r * right) and dR = left (weights * (inner dK inner^T)) right. The switch does not depend on dK, because
    # JAX 0.10 does not transpose a switch under vmap. JAX copies the results of a switch, so L and its inverse stay
    # outside.
    def of_lower() -> tuple[Array, ...]:
        return eye, jnp.ones(L.shape[:-1], L.dtype), jnp.tril(1 - eye / 2)

    def of_diagonal() -> tuple[Array, ...]:
        r = jnp.sqrt(jnp.maximum(diagonal(K), 0))
        return eye, r, jnp.where(r > 0, 1 / (2 * jnp.where(r > 0, r, 1)), 0)[..., None] * eye

    def symmetric() -> tuple[Array, ...]:
        values, vectors = _eigenvalues(K)
        # dR R + R dR = dK. The jitter is a lower bound of the eigenvalues: smaller eigenvalues are rounding errors.
        least = RELATIVE_JITTER[K.dtype.name] * jnp.mean(values, axis=-1, keepdims=True)
        scale = jnp.sqrt(jnp.maximum(values, least))
        sums = scale[..., :, None] + scale[..., None, :]
        return vectors, jnp.sqrt(values), jnp.where(sums > 0, 1 / jnp.where(sums > 0, sums, 1), 0)

    vectors, r, weights = lax.switch(choice, [of_lower, of_diagonal, symmetric])
    right, r = vectors.mT, r[..., None]
    left, inner = (jnp.where(lower, *of) for of in ((L, vectors), (inverse_of_lower(L), right)))
    between, rightX = weights * matmul(matmul(inner, dK), inner.mT), matmul(right, X)
    # Multiplied from the right, so that products have few columns if ``X`` has few.
    return matmul(left, r * rightX), matmul(left, matmul(between, rightX) + r * matmul(right, dX))


def _symmetric_root(K: Float[Array, "*batch N N"]) -> Float[Array, "*batch N N"]:
    values, vectors = _eigenvalues(K)
    return matmul(vectors * jnp.sqrt(values)[..., None, :], vectors.mT)


def _eigenvalues(K: Float[Array, "*batch N N"]) -> tuple[Float[Array, "*batch N"], Float[Array, "*batch N N"]]:
    """The eigenvalues, with zero in place of negative ones, and the eigenvectors in columns."""
    values, vectors = jnp.linalg.eigh(K)
    return jnp.maximum(values, 0), vectors


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _cholesky_and_inverse(
    K: Float[Array, "*batch M M"], graded: bool
) -> tuple[Float[Array, "*batch M M"], Float[Array, "*batch M M"]]:
    L = jnp.linalg.cholesky(K, symmetrize_input=False)
    return L, inverse_of_lower(L)


def inverse_of_lower(L: Float[Array, "*batch M M"]) -> Float[Array, "*batch M M"]:
    """``L^-1``; a large matrix is inverted by halves, because products use all cores and a solve uses one core."""
    half = L.shape[-1] // 2
    # For a single matrix, small products take longer in the loop of a training than alone.
    if half < (SOLVED_WHOLE if L.ndim > 2 else 4 * SOLVED_WHOLE) // 2:
        return solve_triangular(L, jnp.broadcast_to(jnp.eye(L.shape[-1], dtype=L.dtype), L.shape), lower=True)
    first, last = inverse_of_lower(L[..., :half, :half]), inverse_of_lower(L[..., half:, half:])
    below = -matmul(matmul(last, L[..., half:, :half]), first)
    right = jnp.zeros_like(below).mT
    return jnp.concatenate([jnp.concatenate([first, right], -1), jnp.concatenate([below, last], -1)], -2)


def upper_root_of_rest(root: Float[Array, "M M"]) -> tuple[Float[Array, "M M"], float]:
    """Upper-triangular ``U`` with ``U U^T = 1 + e - R R^T``, and the number ``e``, which covers rounding errors.

    ``R`` is the argument ``root``. ``U`` is NaN if ``1 + e - R R^T`` is not positive definite.
    """
    M = len(root)
    rounding = 4 * math.sqrt(M) * float(jnp.finfo(root.dtype).eps)
    rest = (1 + rounding) * jnp.eye(M, dtype=root.dtype) - matmul(root, root.mT)
    return jnp.linalg.cholesky(rest[::-1, ::-1], symmetrize_input=False)[::-1, ::-1], rounding


def times_inverse(
    L: Float[Array, "*#batch M M"] | BlockDiagonalMatrix,
    inverse: Float[Array, "*#batch M M"] | BlockDiagonalMatrix,
    B: Float[Array, "*#batch M K"],
    graded: bool,
) -> Float[Array, "*#batch M K"]:
    """``L^-1 B`` by a product with the inverse; for ``graded``, see :func:`cholesky_and_inverse`."""
    if not graded or isinstance(L, BlockDiagonalMatrix) or isinstance(inverse, BlockDiagonalMatrix):
        return matmul(inverse, B)
    return _substituted(L, inverse, B)


@jax.custom_jvp
def _substituted(
    L: Float[Array, "*#batch M M"], inverse: Float[Array, "*#batch M M"], B: Float[Array, "*#batch M K"]
) -> Float[Array, "*#batch M K"]:
    first = matmul(inverse[..., :SUBSTITUTED, :SUBSTITUTED], B[..., :SUBSTITUTED, :])
    rest = matmul(inverse, B - matmul(L[..., :SUBSTITUTED], first))
    return rest + jnp.zeros_like(rest).at[..., : first.shape[-2], :].set(first)


@_substituted.defjvp
def _substituted_jvp(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    # The derivative of the plain product, because a derivative does not need so many digits.
    (_, inverse, B), (_, d_inverse, dB) = primals, tangents
    return _substituted(*primals), matmul(d_inverse, B) + matmul(inverse, dB)


def transposed_square(L: Float[Array, "*batch M M"]) -> Float[Array, "*batch M M"]:
    """``L^T L`` of lower-triangular ``L``; a large matrix is split in halves to save two thirds of the products."""
    half = L.shape[-1] // 2
    if half < SOLVED_WHOLE // 2:
        return matmul(L.mT, L)
    below, last = L[..., half:, :half], L[..., half:, half:]
    first = transposed_square(L[..., :half, :half]) + matmul(below.mT, below)
    across = matmul(last.mT, below)
    last = transposed_square(last)
    return jnp.concatenate([jnp.concatenate([first, across.mT], -1), jnp.concatenate([across, last], -1)], -2)


@_cholesky_and_inverse.defjvp
def _cholesky_and_inverse_jvp(graded: bool, primals: tuple[Array], tangents: tuple[Array]) -> tuple:
    (L, inverse), (dK,) = _cholesky_and_inverse(*primals, graded), tangents
    if graded:
        P = times_inverse(L, inverse, times_inverse(L, inverse, dK, graded).mT, graded).mT
    else:
        P = lower_congruence(inverse, dK)
    P = jnp.tril(P)
    P = P - jnp.eye(P.shape[-1], dtype=P.dtype) * P / 2
    return (L, inverse), (lower_product(L, P, lower=True), -lower_product(P, inverse, lower=True))


def coinciding(K: Float[Array, "*batch M M"] | BlockDiagonalMatrix, jitter: Jitter = None) -> int:
    """The number of variables that coincide numerically with an earlier variable; call it outside ``jit``.

    Two variables coincide if half the variance of their difference, jitter included, is less than twice the default
    jitter. With the default jitter, the jitter then contributes more to their difference than the prior. A variable
    that coincides with an earlier one is dropped, and later variables are not compared with it.

    Args:
        K: covariance matrices ``[..., M, M]``, or a block-diagonal matrix.
        jitter: see :func:`add_jitter`.

    Returns:
        A number below ``M``: the largest number over several matrices, the sum over blocks.
    """
    if isinstance(K, BlockDiagonalMatrix):
        return sum(coinciding(block, own) for block, own in by_block(K, jitter))
    most, size = 0, K.shape[-1]
    for matrix in np.asarray(add_jitter(K, jitter)).reshape(-1, size, size):
        variance = np.diagonal(matrix)
        near = (variance[:, None] + variance) / 2 - matrix < 2 * RELATIVE_JITTER[matrix.dtype.name] * variance.mean()
        kept = np.ones(size, bool)
        for i in range(1, size):
            kept[i] = not near[i, :i][kept[:i]].any()
        most = max(most, size - int(kept.sum()))
    return most


def explain(K: np.ndarray, name: str, jitter: float | Array | None = None) -> str:
    """The message for a covariance matrix that has no Cholesky factor: the likely reason, and what to do instead."""
    K = np.asarray(K)
    K = K.reshape(-1, *K.shape[-2:])
    finite = np.isfinite(K).all(axis=(1, 2))
    text = f"The Cholesky factorisation of {name} failed ({K.shape[-1]} x {K.shape[-1]}, {K.dtype}"
    if not finite.all():
        at = first_of(~np.isfinite(K))
        return text + (
            f"): the matrix itself holds NaN or infinity, first {K[at]} of variables {at[1]} and {at[2]}. A "
            "hyperparameter or an inducing input has left its range, the data are too large for this precision, or a "
            "kernel of your own is not finite there."
        )
    diagonal = np.diagonal(K, axis1=-2, axis2=-1).astype(np.float64)
    relative = RELATIVE_JITTER[K.dtype.name]
    used = f"{relative:g} of the mean diagonal" if jitter is None else f"{float(np.max(np.asarray(jitter))):g}"
    distance = diagonal[:, :, None] + diagonal[:, None, :] - 2 * K.astype(np.float64)
    index = np.arange(K.shape[-1])
    distance[:, index, index] = np.inf
    nearest = float(distance.min()) if K.shape[-1] > 1 else float("nan")
    return text + (
        f", jitter {used}, diagonal from {diagonal.min():.3g} to {diagonal.max():.3g}, smallest variance of a "
        f"difference of two of its variables {nearest:.3g}). Two inputs may coincide or the lengthscale may be too "
        "long: use fewer or distinct inducing inputs, a larger jitter, or float64 (numpyro.enable_x64()). A kernel of "
        "your own may be no covariance: some of its matrices are not positive definite."
    )


def solve_lower(
    L: Float[Array, "*#batch M M"] | BlockDiagonalMatrix, B: Float[Array, "*#batch M K"], *, transpose: bool = False
) -> Float[Array, "*#batch M K"]:
    """``L^-1 B``, or ``L^-T B`` with ``transpose``, for lower-triangular ``L``.

    ``L`` is ``[..., M, M]`` and ``B`` is ``[..., M, K]``; leading axes broadcast. With a block-diagonal ``L``, there is
    one solve for each block.
    """
    if isinstance(L, BlockDiagonalMatrix):
        parts = [solve_lower(block, b, transpose=transpose) for block, b in zip(L.blocks, L.split(B), strict=True)]
        return concatenate(parts, -2)
    batch = jnp.broadcast_shapes(L.shape[:-2], B.shape[:-2])
    L = jnp.broadcast_to(L, batch + L.shape[-2:])
    B = jnp.broadcast_to(B, batch + B.shape[-2:])
    return solve_triangular(L, B, lower=True, trans=1 if transpose else 0)
