"""How likely is a draw of inducing variables ``u``, under the prior and under ``q``? Always as ``u``, never as ``v``.

Those of whitened variables ``v`` with ``u = L v`` are smaller by ``log |L|``, which changes with the hyperparameters.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular

from gpzoo import linalg
from gpzoo.linalg.operators import BlockDiagonal, Kronecker, kronecker_matmul
from gpzoo.linalg.toeplitz import ToeplitzInverse
from gpzoo.posteriors.conditional import Conditional, Interpolation
from gpzoo.posteriors.posterior import InducingPosterior


def prior_log_density(given: InducingPosterior) -> Array:
    """``log p(u)`` in nats, summed over outputs, of the ``u`` on which a posterior is concentrated.

    Args:
        given: as :meth:`gpzoo.InducingPosterior.given` makes it.
    """
    conditional, draw = given.conditional, _columns(given, given.u_mean)
    if conditional.toeplitz:
        assert isinstance(conditional, Interpolation)
        column = conditional.prior_column()

        def of_output(column: Array, draw: Array) -> Array:
            inverse = ToeplitzInverse(column)
            return _from_square(jnp.vdot(draw, inverse.solve(draw[:, None])[:, 0]), inverse.log_det, draw.size)

        return jnp.sum(jax.vmap(of_output, in_axes=(0 if column.ndim == 2 else None, 0))(column, draw))
    v = draw if conditional.whiten else _whitened(conditional, draw)
    return _from_square(jnp.sum(jnp.square(v)), 2 * _log_det_of_prior(conditional, len(v)), v.size)


def posterior_log_density(q: InducingPosterior, draw: Array) -> Array:
    """``log q(u)`` in nats, summed over outputs.

    Args:
        q: the posterior.
        draw: as ``q.draw_inducing`` gives it, ``[M]`` or ``[M, D]``.
    """
    conditional, mean = q.conditional, q.u_mean if q.num_outputs is not None else q.u_mean[:, None]
    form, draw = q.form.by_output(len(mean), q.num_outputs), _columns(q, draw)
    if conditional.toeplitz:
        assert isinstance(conditional, Interpolation)
        roots, variances = conditional.parts_of_u(form)
        return _diagonal_plus(draw - conditional.mean_of_u(mean), roots, variances)
    log_det = 0.0
    if conditional.whiten:
        log_det = 2 * _log_det_of_prior(conditional, len(draw))
        draw = _whitened(conditional, draw) if conditional.deterministic else draw  # on a grid it is u that is drawn
    square, own = _under(form.root(), draw - mean.T)
    return _from_square(square, own + log_det, draw.size)


def _columns(q: InducingPosterior, draw: Array) -> Array:
    """``[M]`` or ``[M, D]`` to ``[D, M]``."""
    return draw[None] if q.num_outputs is None else draw.T


def _from_square(square: Array, log_det: Any, size: int) -> Array:
    return -(square + log_det + size * math.log(2 * math.pi)) / 2


def _whitened(conditional: Conditional, u: Array) -> Array:
    """``L^-1 u``, ``[D, M]``."""
    L = conditional.L
    if isinstance(L, Kronecker):
        return kronecker_matmul(conditional.L_inverse.factors, u[..., None])[..., 0]
    return linalg.solve_lower(L, u.T).T if L.ndim == 2 else linalg.solve_lower(L, u[..., None])[..., 0]


def _log_det_of_prior(conditional: Conditional, num_outputs: int) -> Array:
    """``log |L|``, summed over outputs."""
    L = conditional.L
    if isinstance(L, Kronecker):
        pairs = zip(L.sizes, L.factors, strict=True)
        each = linalg.total(
            L.shape[-1] / size * jnp.sum(jnp.log(jnp.abs(linalg.diagonal(F))), axis=-1) for size, F in pairs
        )
    else:
        each = jnp.sum(jnp.log(jnp.abs(linalg.diagonal(L))), axis=-1)
    return jnp.sum(jnp.broadcast_to(each, num_outputs))


def _under(root: Any, residual: Array) -> tuple[Array, Array]:
    """``r^T S^-1 r`` and ``log |S|``, summed over outputs, for ``S = R R^T`` and residuals ``[D, M]``."""
    if isinstance(root, BlockDiagonal):
        parts = zip(root.blocks, root.split(residual[..., None]), strict=True)
        squares, log_dets = zip(*(_under(block, rows[..., 0]) for block, rows in parts), strict=True)
        return linalg.total(squares), linalg.total(log_dets)
    if isinstance(root, Kronecker):
        lower = [_lower_root(F) for F in root.factors]
        inverses = tuple(_solved(L, jnp.broadcast_to(jnp.eye(L.shape[-1], dtype=L.dtype), L.shape)) for L in lower)
        white = kronecker_matmul(inverses, residual[..., None])
    else:
        lower = [_lower_root(root)]
        white = _solved(lower[0], residual[..., None])
    M = residual.shape[-1]
    log_dets = (M / L.shape[-1] * jnp.sum(jnp.log(jnp.square(linalg.diagonal(L)))) for L in lower)
    return jnp.sum(jnp.square(white)), linalg.total(log_dets)


def _lower_root(root: Array) -> Array:
    """The lower-triangular matrix with the same ``R R^T``, without that product, which would lose half the digits."""
    return jnp.linalg.qr(root.mT, mode="r").mT


def _solved(L: Array, columns: Array) -> Array:
    return solve_triangular(L, columns, lower=True)


def _diagonal_plus(residual: Array, roots: tuple[Array, ...], variances: Array) -> Array:
    """The log density of residuals ``[D, M]`` under ``V V^T + diag(d)``, where there is a ``V``."""
    white, log_det = residual / jnp.sqrt(variances), jnp.sum(jnp.log(variances))
    square = jnp.sum(jnp.square(white))
    for V in roots:
        V = V / jnp.sqrt(variances)[..., None]
        L = jnp.linalg.cholesky(jnp.eye(V.shape[-1], dtype=V.dtype) + linalg.matmul(V.mT, V))
        square = square - jnp.sum(jnp.square(_solved(L, linalg.matmul(V.mT, white[..., None]))))
        log_det = log_det + 2 * jnp.sum(jnp.log(linalg.diagonal(L)))
    return _from_square(square, log_det, residual.size)
