"""Unbiased estimates of covariances from sampled views (van der Wilk et al. 2018, section 4.4 and appendix B).

The square of a mean over the ``P`` views of an input is ``I = sum_pq r(x_p, x_q) / P^2`` with a term ``r`` for each
pair of views. From ``S`` sampled views of this input, the estimate is
``off * sum_{s != t} r(x_s, x_t) + on * sum_s r(x_s, x_s)``. If views have a continuous distribution, only pairs of
different views count (eq. 21 of this paper): ``off = 1 / (S (S - 1))``, ``on = 0``. Views may also be drawn without
replacement from ``P`` views. Then the share of pairs of different views is ``(P - 1) / P``, and the rest is pairs of a
view with itself: ``off = (1 - 1 / P) / (S (S - 1))`` and ``on = 1 / (P S)``. For ``S = P``, the estimate is the sum
itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo import linalg
from gpzoo._devices import in_chunks
from gpzoo.inducing.kuu_kuf import Kuf
from gpzoo.inducing.variables import InducingPatches
from gpzoo.kernels.base import Kernel, Scaled, Sum
from gpzoo.kernels.double_sum import DoubleSum, has_sampled_views
from gpzoo.posteriors.base import Form
from gpzoo.posteriors.conditional import Projection, mean_at
from gpzoo.views.base import SampledView
from gpzoo.views.orbits import Orbit


class PairWeights(NamedTuple):
    """Weights of pairs of different views, and of a view with itself, in the estimate of a square."""

    off: float
    on: float

    @classmethod
    def of(cls, view: SampledView) -> PairWeights:
        """The weights for ``view.num_views`` sampled views of an input.

        Raises:
            ValueError: for one sample if there are several views.
        """
        S, P = view.num_views, view.orbit_size
        one = f"{type(view).__name__} has num_views {S}: an unbiased estimate of a square needs two."
        checks.refuse(S < 2 <= P, one)
        return cls(0.0 if S == 1 else (1 - 1 / P) / (S * (S - 1)), 1 / (P * S))

    def square(self, of_sum: Float[Array, "*shape"], of_each: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The estimate from ``r(sum_s x_s, sum_s x_s)`` and ``sum_s r(x_s, x_s)``."""
        return self.off * (of_sum - of_each) + self.on * of_each


def estimates(
    conditional: Projection, m: Float[Array, "M D"], form: Form, key: PRNGKeyArray
) -> tuple[Float[Array, "D N"], Float[Array, "D N"]]:
    """Unbiased estimates of two moments of ``f`` without the prior's mean (van der Wilk et al. 2018, eq. 16-21).

    All estimates use the same ``S`` views of every input.

    Args:
        conditional: conditional of a site whose kernel has sampled views.
        m: mean of ``q(u)``.
        form: covariance of ``q(u)``, with an axis of outputs.
        key: random key of the views.

    Returns:
        Estimates of the mean ``mu`` and of ``mu ** 2 + sigma ** 2``.

    Raises:
        TypeError: for inducing variables that do not belong to the base process.
        ValueError: if the kernel has several sampled views.
    """
    X, kernel = conditional.prior.X, conditional.prior.kernel
    view: Any = sampled_part(kernel).view
    pairs, views = PairWeights.of(view), view.sample(key, X)
    columns = view_columns(conditional.inducing, kernel, X, views)
    M, N, S = columns.shape
    A = conditional.solved(columns.reshape(M, N * S))
    B = A if conditional.whiten else conditional.solved(A, transpose=True)

    def squares(A: Array, B: Array) -> Array:
        """Contributions to ``mu ** 2 + sigma ** 2 - kff``, of each view of one input or of the sum of its views."""
        return jnp.square(mean_at(B, m)) + form.squares(B) - jnp.sum(A * A, axis=-2)

    of_each = squares(A, B).reshape(-1, N, S).sum(axis=-1)
    sum_A, sum_B = (x.reshape(M, N, S).sum(axis=-1) for x in (A, B))
    second = view_variances(kernel, X, views, pairs) + pairs.square(squares(sum_A, sum_B), of_each)
    return mean_at(sum_B, m) / S, second


def sampled_part(kernel: Kernel) -> DoubleSum:
    """The only double sum over sampled views in a kernel.

    Raises:
        ValueError: unless there is exactly one, alone or inside sums and multiples of kernels.
    """
    parts = _reachable(kernel)
    checks.refuse(
        len(parts) != 1,
        f"A kernel has one double sum over sampled views, alone, scaled or in a sum; this one has {len(parts)} "
        f"({type(kernel).__name__}). Sample one GaussianProcess site for each and add their values.",
    )
    return parts[0]


def _reachable(kernel: Kernel) -> list[DoubleSum]:
    if isinstance(kernel, Sum):
        return [found for part in kernel.parts for found in _reachable(part)]
    if isinstance(kernel, Scaled):
        return _reachable(kernel.kernel)
    return [kernel] if isinstance(kernel, DoubleSum) and isinstance(kernel.view, SampledView) else []


def view_columns(
    inducing: Any, kernel: Kernel, X: Float[Array, "N ..."], views: Float[Array, "N S e"]
) -> Float[Array, "M N _"]:
    """Covariance of inducing variables with each view's contribution to ``f`` (van der Wilk et al. 2018, eq. 17).

    Args:
        inducing: inducing variable of the kernel.
        kernel: kernel with sampled views.
        X: inputs.
        views: the views of every input.

    Returns:
        ``[M, N, S]``; its mean over ``S`` estimates ``Kuf``. For a term of the kernel that has no sampled views, the
        last axis has length 1, and the result is ``Kuf`` itself.

    Raises:
        TypeError: for inducing variables that do not belong to the base process.
        ValueError: if each output has its own inducing variables.
    """
    if not has_sampled_views(kernel):
        return Kuf(inducing, kernel, X)[..., None]
    pairs = inducing.pairs(kernel)
    if pairs[0][0] is not inducing:
        parts = [view_columns(u, part, X, views) for u, part in pairs]
        whole = [jnp.broadcast_to(part, (*part.shape[:-1], views.shape[1])) for part in parts]
        return jnp.concatenate(whole)
    if isinstance(kernel, Scaled):
        return jnp.asarray(kernel.scale, X.dtype) * view_columns(inducing, kernel.kernel, X, views)
    if isinstance(kernel, Sum):
        return linalg.total(view_columns(inducing, part, X, views) for part in kernel.parts)
    checks.refuse(
        inducing.points() is not None,
        "Sampled views, of vectors too, take inducing variables of the base process, in the space of one view, and "
        f"not {type(inducing).__name__}: unique_patches(M) starts them at views of the data, InducingPatches(Z) at "
        f"Z [M, {views.shape[2]}].",
        TypeError,
    )
    if isinstance(inducing, InducingPatches):
        shared = f"With sampled views all outputs share Z, [M, size]; got Z of shape {inducing.Z.shape}."
        checks.refuse(inducing.Z.ndim != 2, shared)
    N, S, _ = views.shape
    base = sampled_part(kernel).base
    if isinstance(base, DoubleSum):
        columns = Kuf(inducing, base, views.reshape(N * S, *X.shape[1:]))
    elif isinstance(inducing, InducingPatches):
        columns = base(inducing.Z, views.reshape(N * S, -1))
    else:
        # A double sum whose only view is the input itself is the base process at this input.
        size = views.shape[2]
        columns = Kuf(inducing, DoubleSum(base, Orbit(np.arange(size)[None])), views.reshape(N * S, size))
    return columns.reshape(-1, N, S)


def view_variances(
    kernel: Kernel, X: Float[Array, "N ..."], views: Float[Array, "N S e"], pairs: PairWeights
) -> Float[Array, " N"]:
    """Estimates of ``k_f(x_n, x_n)`` (van der Wilk et al. 2018, eq. 20-21)."""
    if not has_sampled_views(kernel):
        return kernel.diag(X)
    if isinstance(kernel, Scaled):
        return jnp.asarray(kernel.scale, X.dtype) * view_variances(kernel.kernel, X, views, pairs)
    if isinstance(kernel, Sum):
        return linalg.total(view_variances(part, X, views, pairs) for part in kernel.parts)
    base, S = sampled_part(kernel).base, views.shape[1]
    if isinstance(base, DoubleSum):
        shape, values = X.shape[1:], S * base.view.num_views**2
    else:
        shape, values = views.shape[2:], S**2

    def one(own: Array, base: Kernel) -> Array:
        gram = base(own.reshape(-1, *shape))
        return pairs.square(jnp.sum(gram), jnp.trace(gram))

    return in_chunks(one, values, views, base)
