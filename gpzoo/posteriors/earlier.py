"""An earlier ``q(u)`` divided by its prior; it replaces earlier data that are no longer available."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from gpzoo import linalg
from gpzoo._pytree import Fields
from gpzoo.linalg.operators import matmul
from gpzoo.posteriors.base import Conditional
from gpzoo.posteriors.forms import Full


class Earlier(Fields):
    """The ``q_old(a)`` of earlier data. ``a`` are the old inducing variables, the first entries of the present ``u``.

    In a bound, the term ``E_q[log q_old(a) - log p_old(a)]`` replaces ``E_q[log p(y_old | f)]`` (Bui, Nguyen and Turner
    2017, *Streaming sparse Gaussian process approximations*, eq. 6). If the kernel, the prior's mean and the inducing
    variables have not changed, then ``KL[q(u) || p(u)]`` minus the term is ``KL[q(u) || q_old(u)]``.

    Args:
        mean: mean of ``q_old``, ``[M]`` or ``[M, D]``. If ``q`` is whitened, it is the mean of whitened variables.
        form: covariance of ``q_old``, :class:`~gpzoo.posteriors.forms.Full`.
        L: the lower factor of the covariance of ``p_old(a)``; ``None`` if the kernel has not changed since then.
    """

    mean: Float[Array, "M *D"]
    form: Full
    L: Any

    def expected(self, conditional: Conditional, m: Float[Array, "M D"], form: Any) -> Float[Array, ""]:
        """``E_q[log q_old(a) - log p_old(a)]`` summed over outputs, in nats.

        Args:
            conditional: the conditional of the present inducing variables.
            m: mean of the present ``q``.
            form: covariance of the present ``q``, with an axis of outputs.
        """
        outputs = conditional.prior.num_outputs
        before = self.mean.reshape(self.mean.shape[0], -1)
        count = before.shape[0]
        first = (..., slice(count), slice(count))
        # The factors are lower triangular, so the first variables do not depend on other columns.
        now, past = (
            _beside(m[:count], form.root()[first]),
            _beside(before, self.form.by_output(count, outputs).root()),
        )
        if self.L is not None or not conditional.whiten:
            L = _dense(conditional.L)[first]
            old = L if self.L is None else _dense(self.L)
            now = linalg.solve_lower(old, matmul(L, now) if conditional.whiten else now)
            past = past if conditional.whiten else linalg.solve_lower(old, past)
        S = past[..., 1:]
        away = linalg.solve_lower(S, jnp.concatenate([now[..., :1] - past[..., :1], now[..., 1:]], axis=-1))
        log_det = jnp.sum(jnp.log(jnp.square(linalg.diagonal(S))))
        return (jnp.sum(jnp.square(now)) - jnp.sum(jnp.square(away)) - log_det) / 2


def _beside(mean: Float[Array, "M D"], root: Float[Array, "D M M"]) -> Float[Array, "D M K"]:
    """The mean beside the columns of a root of the covariance."""
    return jnp.concatenate([mean.T[:, :, None], root], axis=-1)


def _dense(L: Any) -> Float[Array, "*D M M"]:
    return L.dense() if hasattr(L, "dense") else L
