"""What a Gaussian process is given inducing variables: a distribution, and its divergence from the prior."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array, random
from numpyro.distributions.kl import kl_divergence

from gpzoo import _platform, linalg
from gpzoo.inducing.covariances import Kuf, Kuu
from gpzoo.linalg.operators import BlockDiagonal
from gpzoo.linalg.quadratic import spread, spread_squared
from gpzoo.posteriors.sampled_views import PairWeights, sampled_part, view_columns, view_variances
from gpzoo.processes.marginals import DrawLog, EstimatedMarginals, GaussianMarginals
from gpzoo.processes.process import GaussianProcess, ProcessAtInputs


class InducingPosterior(ProcessAtInputs):
    """``q(f)``: a GP site given inducing variables ``u ~ q(u)`` (convolutional GPs, eq. 3-4 and 6-8).

    ``q(f) = int p(f | u) q(u) du`` has the moments, with ``A = L^-1 Kuf`` and ``L L^T = Kuu``,

    * whitened (``u = L v``, ``q(v) = N(m, S)``): ``mean = A^T m``, ``cov = Kff - A^T A + A^T S A``;
    * not whitened (``q(u) = N(m, S)``): the same with ``L^-T A`` in place of the outer ``A``,

    plus the prior's mean. ``KL[q(f) || p(f)] = KL[q(u) || p(u)]`` (Matthews et al. 2016) is registered with
    :func:`numpyro.distributions.kl.kl_divergence`.

    Args:
        prior: the site's :class:`GaussianProcess`.
        inducing: inducing variable whose ``Kuu`` is ``[M, M]`` (``[D, M, M]`` with one kernel per output).
        u_mean: ``m``, ``[M]`` for a site ``[N]``, ``[M, D]`` for a site ``[N, D]``.
        u_scale: ``S`` as its lower Cholesky factor ``[M, M]`` or ``[D, M, M]`` (what lies above the diagonal is
            ignored, the diagonal's signs do not matter), as a :class:`~gpzoo.linalg.BlockDiagonal` of such factors
            (with blocks of inducing variables: appendix C), or as standard deviations of the shape of ``u_mean``.
        whiten: whether ``m`` and ``S`` are those of ``v = L^-1 u``.
        value_as: ``"joint"``: a draw is joint over all inputs; ``"draw"``: independent over inputs; ``"marginals"``:
            the value is a :class:`~gpzoo.GaussianMarginals`; ``"estimates"``: for a kernel with sampled
            views, an :class:`~gpzoo.EstimatedMarginals`. In all but the first ``log_prob`` raises.
        site: name of the site, for messages.
        log: the marginals' :class:`~gpzoo.processes.marginals.DrawLog`.
        rows: ``[N]`` integers that identify the rows, so that a row's draw does not depend on the batch it is in.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    pytree_data_fields = ("prior", "inducing", "u_mean", "u_scale", "L", "L_inverse", "rows")
    pytree_aux_fields = ("num_outputs", "whiten", "value_as", "site", "log")

    def __init__(
        self,
        prior: GaussianProcess,
        inducing: Any,
        u_mean: Array,
        u_scale: Array,
        *,
        whiten: bool = True,
        value_as: str = "joint",
        site: str = "f",
        log: DrawLog | None = None,
        rows: Array | None = None,
    ) -> None:
        if isinstance(u_scale, tuple | list):
            raise TypeError(
                f"u_scale of site {site!r} must be an array, or BlockDiagonal(*factors) of gpzoo.linalg; got a "
                f"{type(u_scale).__name__} of {len(u_scale)}: pass BlockDiagonal(*u_scale)."
            )
        self.prior, self.inducing = prior, inducing
        self.u_mean, self.u_scale, self.rows = u_mean, u_scale, rows
        self.whiten, self.value_as, self.site, self.log = whiten, value_as, site, log
        self._init_events(prior.event_shape[0], prior.num_outputs)
        self.L, self.L_inverse = self._factors()

    def _factors(self) -> tuple[Any, Any]:
        """``L`` and its inverse; what ``q`` is given as is checked against them."""
        covariance = Kuu(self.inducing, self.prior.kernel)
        L, inverse = linalg.cholesky_and_inverse(covariance, f"Kuu of site {self.site!r}", self.prior.jitter)
        _check_q(self.site, self.u_mean, self.u_scale, L, self.prior.num_outputs)
        return L, inverse

    @property
    def jitter(self) -> Any:
        """The prior's jitter."""
        return self.prior.jitter

    def _prior_variance(self) -> Array:
        return self.prior.kernel.diag(self.prior.X)

    @property
    def _joint_jitter(self) -> None:
        """The prior's jitter is meant for ``Kuu``: on a posterior covariance it could outweigh the posterior itself."""
        return None

    @property
    def diagonal(self) -> bool:
        """Whether ``u_scale`` holds standard deviations rather than a Cholesky factor."""
        return self.u_scale.ndim == self.u_mean.ndim and self.u_scale.shape == self.u_mean.shape

    def _covariance_name(self) -> str:
        return f"the joint posterior covariance of site {self.site!r} at {self.event_shape[0]} inputs"

    def _projections(self, X: Array) -> tuple[Array, Array]:
        """``A`` and the outer factor ``B``, ``[M, N]`` or ``[D, M, N]``, at inputs ``X``."""
        A = self._solved(Kuf(self.inducing, self.prior.kernel, X))
        return A, A if self.whiten else self._solved(A, transpose=True)

    def _solved(self, columns: Array, transpose: bool = False) -> Array:
        # In training the factor's derivative has the inverse anyway; elsewhere few inputs do not repay forming it.
        if 8 * columns.shape[-1] < self.L.shape[-1]:
            return linalg.solve_lower(self.L, columns, transpose=transpose)
        return linalg.matmul(self.L_inverse.mT if transpose else self.L_inverse, columns)

    def _q(self) -> tuple[Array, Any]:
        """``m`` as ``[M, D]`` and ``S`` as ``[M, D]`` or with ``D`` first, ``D = 1`` for a site ``[N]``."""
        m, S = self.u_mean, self.u_scale
        if self.num_outputs is None:
            m, S = m[:, None], S[:, None] if self.diagonal else jax.tree.map(lambda s: s[None], S)
        return m, S if self.diagonal else jax.tree.map(jnp.tril, S)

    def marginals(self) -> tuple[Array, Array]:
        """Mean and variance at every input, both of the event's shape (eq. 7 and 8)."""
        X, N = self.prior.X, self.event_shape[0]
        axis = 1 if self.prior.kernel._has_outputs(X) else 0
        m, S = self._q()
        size = _platform.inputs_at_a_time(N)
        if size == N:
            mean, variance = self._marginals_at(X, m, S)
        else:
            rest, whole = jnp.split(X, [N % size], axis=axis)
            chunks = whole.reshape(*X.shape[:axis], -1, size, *X.shape[axis + 1 :])
            each = jax.lax.map(lambda x: self._marginals_at(x, m, S), jnp.moveaxis(chunks, axis, 0))
            parts = [jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1) for x in each]
            if N % size:
                first = self._marginals_at(rest, m, S)
                parts = [jnp.concatenate(pair, axis=1) for pair in zip(first, parts, strict=True)]
            mean, variance = parts
        return self._with_loc(mean), self._in_shape(variance)

    def _marginals_at(self, X: Array, m: Array, S: Any) -> tuple[Array, Array]:
        """Mean of the zero-mean part and variance, ``[D, N]`` each, at inputs ``X``."""
        A, B = self._projections(X)
        kff = self.prior.kernel.diag(X)
        variance = kff - jnp.sum(A * A, axis=-2) + spread_squared(B, S, self.diagonal)
        # Rounding can take kff - |A|^2 below zero where the data determine f.
        variance = jnp.maximum(variance, jnp.finfo(variance.dtype).eps * kff)
        return self._mean_at(B, m), variance

    def estimates(self, key: Array) -> tuple[Array, Array]:
        """Unbiased estimates under sampled views, of the event's shape (learning invariances, eq. 16-21).

        All come from the same ``S`` views of every input.

        Args:
            key: of the views.

        Returns:
            Estimates of the mean ``mu`` and of ``mu ** 2 + sigma ** 2``, the latter less the square of the former.

        Raises:
            TypeError: for inducing variables that are not those of the base process.
            ValueError: if the kernel has several sampled views.
        """
        X, kernel = self.prior.X, self.prior.kernel
        view = sampled_part(kernel).view
        pairs, views = PairWeights.of(view), view.sample(key, X)
        columns = view_columns(self.inducing, kernel, X, views)
        M, N, S = columns.shape
        m, scale = self._q()
        A = self._solved(columns.reshape(M, N * S))
        B = A if self.whiten else self._solved(A, transpose=True)

        def squares(A: Array, B: Array) -> Array:
            """What a view adds to ``mu ** 2 + sigma ** 2 - kff``, for ``S`` views of one input or their sum."""
            return jnp.square(self._mean_at(B, m)) + spread_squared(B, scale, self.diagonal) - jnp.sum(A * A, axis=-2)

        of_each = squares(A, B).reshape(-1, N, S).sum(axis=-1)
        sum_A, sum_B = (x.reshape(M, N, S).sum(axis=-1) for x in (A, B))
        second = view_variances(kernel, X, views, pairs) + pairs.square(squares(sum_A, sum_B), of_each)
        mean = self._mean_at(sum_B, m) / S
        return self._with_loc(mean), self._in_shape(second - jnp.square(mean))

    def _mean_at(self, B: Array, m: Array) -> Array:
        return linalg.matmul(m.T, B) if B.ndim == 2 else jnp.einsum("dmn,md->dn", B, m)

    def _with_loc(self, per_output: Array) -> Array:
        """The same for means, plus the prior's."""
        mean = self._in_shape(per_output)
        return mean if self.prior.loc is None else mean + self.prior.loc

    def _in_shape(self, per_output: Array) -> Array:
        """``[D, N]`` to the event's shape."""
        return per_output[0] if self.num_outputs is None else per_output.T

    def moments(self) -> tuple[Array, Array]:
        """Mean ``[N]`` or ``[N, D]`` and joint covariance ``[N, N]`` or ``[D, N, N]`` over the inputs."""
        (A, B), (m, S) = self._projections(self.prior.X), self._q()
        root = spread(B, S, self.diagonal)
        Kff = self.prior.kernel(self.prior.X)
        covariance = Kff - linalg.matmul(A.mT, A) + linalg.matmul(root.mT, root)
        return self._with_loc(self._mean_at(B, m)), covariance[0] if self.num_outputs is None else covariance

    @property
    def mean(self) -> Array:
        """Posterior mean, of the event's shape."""
        _, B = self._projections(self.prior.X)
        return self._with_loc(self._mean_at(B, self._q()[0]))

    @property
    def variance(self) -> Array:
        """Posterior variance at every input, of the event's shape."""
        return self.marginals()[1]

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array | GaussianMarginals:
        """A value of the site; what it is depends on ``value_as``.

        Raises:
            ValueError: for a ``sample_shape`` where draws are not joint.
        """
        if self.value_as == "joint":
            return super().sample(key, sample_shape)
        if sample_shape != ():
            raise ValueError(f"Site {self.site!r} gives one value at a time as {self.value_as!r}: vmap over keys.")
        if self.value_as == "estimates":
            return EstimatedMarginals(*self.estimates(key), sites=frozenset({self.site}))
        mean, variance = self.marginals()
        f = GaussianMarginals(mean, variance, key, sites=frozenset({self.site}), log=self.log, rows=self.rows)
        return f if self.value_as == "marginals" else f.draws(1)[0]

    def log_prob(self, value: Array, intermediates: Any = None) -> Array:
        """Joint log density of ``value`` under ``q(f)``.

        Raises:
            TypeError: in modes where the value is not a joint draw.
        """
        if self.value_as != "joint":
            raise TypeError(
                f"GP site {self.site!r} is represented by its marginals under GaussianProcessELBO and has no joint "
                "log_prob there: its KL is analytic. Use GaussianProcessELBO() as the only objective in this call."
            )
        return super().log_prob(value)

    def inducing_moments(self) -> tuple[Array, Array]:
        """Mean ``[M]`` or ``[M, D]`` and covariance ``[M, M]`` or ``[D, M, M]`` of ``u``, whitened or not."""
        m, S = self._q()
        factor = S.T[:, :, None] * jnp.eye(S.shape[0], dtype=S.dtype) if self.diagonal else S
        if self.whiten:
            factor = self.L @ factor
            m = (self.L @ m.T[:, :, None])[:, :, 0].T
        if isinstance(factor, BlockDiagonal):
            covariance = factor.map(lambda block: block @ jnp.swapaxes(block, -1, -2)).dense()
        else:
            covariance = factor @ jnp.swapaxes(factor, -1, -2)
        return (m[:, 0], covariance[0]) if self.num_outputs is None else (m, covariance)

    def draw_inducing(self, key: Array) -> Array:
        """A draw from ``q``, of the shape of ``u_mean``: of ``v`` where whitened, of ``u`` where not."""
        noise = random.normal(key, self.u_mean.shape, self.u_mean.dtype)
        if self.diagonal:
            return self.u_mean + self.u_scale * noise
        m, S = self._q()
        return (m + (S @ noise.reshape(m.shape).T[:, :, None])[:, :, 0].T).reshape(self.u_mean.shape)

    def given(self, u: Array) -> InducingPosterior:
        """``p(f | u)``: this posterior with ``q`` concentrated on ``u`` (``v`` where whitened)."""
        return self._replace(u_mean=u, u_scale=jnp.zeros_like(u))

    def as_joint(self) -> InducingPosterior:
        """This posterior with values that are draws over all inputs together."""
        return self._replace(value_as="joint", log=None, rows=None)


def _check_q(site: str, mean: Array, scale: Any, L: Any, num_outputs: int | None) -> None:
    M, outputs = L.shape[-1], () if num_outputs is None else (num_outputs,)
    if mean.shape != (M, *outputs):
        raise ValueError(
            f"The mean of q(u) of site {site!r} has shape {mean.shape}, expected {(M, *outputs)} "
            f"for {M} inducing variables."
        )
    if isinstance(scale, BlockDiagonal):
        if not isinstance(L, BlockDiagonal):
            raise ValueError(
                f"The scale of q(u) of site {site!r} has blocks, but Kuu has none: use Blocks of inducing variables."
            )
        shapes, wanted = [block.shape for block in scale.blocks], [(*outputs, size, size) for size in L.sizes]
        if shapes != wanted:
            raise ValueError(f"The scale of q(u) of site {site!r} has blocks of shapes {shapes}, expected {wanted}.")
    elif scale.shape not in ((M, *outputs), (*outputs, M, M)):
        raise ValueError(
            f"The scale of q(u) of site {site!r} has shape {scale.shape}, expected {(*outputs, M, M)} (a Cholesky "
            f"factor) or {(M, *outputs)} (standard deviations)."
        )


@kl_divergence.register(InducingPosterior, GaussianProcess)
def _kl_inducing(q: InducingPosterior, p: GaussianProcess) -> Array:
    """``KL[q(u) || p(u)]`` summed over outputs, in nats; ``p(u)`` is that of ``q``'s own prior (eq. C.26)."""
    if q.event_shape != p.event_shape:
        raise ValueError(f"Site {q.site!r} has shape {q.event_shape} in the guide and {p.event_shape} in the model.")
    m, S = q._q()
    M, D = m.shape
    scales = S if q.diagonal else linalg.diagonal(S)
    log_det_q = jnp.sum(jnp.log(jnp.square(scales)))
    if q.whiten:
        squares = sum(jnp.sum(s * s) for s in jax.tree.leaves(S))
        return (squares + jnp.sum(m * m) - M * D - log_det_q) / 2
    log_det_p = jnp.sum(jnp.log(linalg.diagonal(q.L))) * 2
    if q.L.ndim == 2:
        log_det_p = log_det_p * D
    if q.diagonal:
        S = S.T[:, :, None] * jnp.eye(M, dtype=S.dtype)
    means = m.T[:, :, None]
    groups = [(q.L_inverse, means, S)]
    if isinstance(S, BlockDiagonal):
        groups = list(zip(q.L_inverse.blocks, S.split(means), S.blocks, strict=True))
    squares = sum(jnp.sum(jnp.square(_whitened(R, jnp.concatenate(columns, axis=2)))) for R, *columns in groups)
    return (squares - M * D + log_det_p - log_det_q) / 2


def _whitened(inverse: Any, columns: Array) -> Array:
    """``L^-1`` times ``[D, M, K]``, the columns of all outputs in one product where they share ``L``."""
    if inverse.ndim == 2:
        columns = columns.transpose(1, 0, 2).reshape(columns.shape[1], -1)
    return linalg.matmul(inverse, columns)
