"""Conditionals, the distributions of values ``f`` given inducing variables ``u``: projection and interpolation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.scipy.linalg import solve_triangular
from jaxtyping import Float, Integer, PRNGKeyArray

from gpzoo import _devices, _platform, linalg
from gpzoo._checks import is_concrete
from gpzoo._pytree import static
from gpzoo.errors import FactorisationError
from gpzoo.inducing.grid import InducingGrid, axis_column, axis_covariances
from gpzoo.inducing.kuu_kuf import Kuf, Kuu, jitter_of
from gpzoo.inducing.variables import InducingPoints
from gpzoo.kernels.base import Kernel, has_sum
from gpzoo.linalg.factorise import times_inverse, upper_root_of_rest
from gpzoo.linalg.operators import (
    BlockDiagonalMatrix,
    KroneckerProduct,
    einsum,
    kronecker_matmul,
    lower_product,
    matmul,
)
from gpzoo.linalg.toeplitz import ToeplitzInverse, toeplitz_matmul, toeplitz_root
from gpzoo.posteriors.base import Conditional, Form, log_normal
from gpzoo.processes.process import GaussianProcess


class Projection(Conditional):
    """The conditional of ``f`` given ``u``, from their covariance ``Kuf`` (van der Wilk et al. 2017, eq. 3-4, 6-8).

    With ``L L^T = Kuu`` and ``A = L^-1 Kuf``, the moments of ``f`` are ``mean = B^T m`` and
    ``cov = Kff - A^T A + B^T S B``. The matrix ``B`` depends on ``whiten``:

    * whitened (``u = L v``, ``q(v) = N(m, S)``): ``B = A``;
    * not whitened (``q(u) = N(m, S)``): ``B = L^-T A``.

    Args:
        prior: the site's :class:`~gpzoo.GaussianProcess`.
        inducing: inducing variable whose ``Kuu`` is ``[M, M]`` (``[D, M, M]`` with one kernel per output).
        whiten: whether ``m`` and ``S`` belong to ``v = L^-1 u``.
        site: name of the site, for messages.
        factor: ``L`` and its inverse, if they are already computed.

    Raises:
        FactorisationError: outside ``jit``, if ``Kuu`` has no Cholesky factor; the message names the site.
    """

    deterministic = False

    def __init__(
        self,
        prior: GaussianProcess,
        inducing: Any,
        *,
        whiten: bool = True,
        site: str = "f",
        factor: tuple[Any, Any] | None = None,
    ) -> None:
        self.prior, self.inducing, self.whiten, self.site = prior, inducing, whiten, site
        if factor is None:
            covariance = Kuu(inducing, prior.kernel)
            factor = linalg.cholesky_and_inverse(
                covariance,
                f"Kuu of site {site!r}",
                jitter_of(prior, inducing, covariance),
                is_diagonal=inducing.independent,
                graded=has_sum(prior.kernel),
            )
        self.L, self.L_inverse = factor

    def start_root(self) -> Any:
        """See :meth:`Conditional.start_root`."""
        if not self.whiten:
            return self.L
        if isinstance(self.L, BlockDiagonalMatrix):
            return self.L.map(lambda block: jnp.eye(block.shape[-1], dtype=self.dtype))
        return jnp.eye(self.num_inducing, dtype=self.dtype)

    def start_variances(self) -> Float[Array, "*D M"]:
        """One if whitened, else the prior's variances."""
        if self.whiten:
            return jnp.ones(self.num_inducing, self.dtype)
        return linalg.diagonal(Kuu(self.inducing, self.prior.kernel))

    # -- q(f) --------------------------------------------------------------------------------------------------------

    def solved(self, columns: Float[Array, "... M N"], transpose: bool = False) -> Float[Array, "... M N"]:
        """``L^-1`` or ``L^-T`` times columns."""
        if self.inducing.independent:
            return columns / linalg.diagonal(self.L)[..., None]
        # In training, the factor's derivative computes the inverse anyway. Elsewhere, few inputs are cheaper to solve.
        if 8 * columns.shape[-1] < self.num_inducing:
            return linalg.solve_lower(self.L, columns, transpose=transpose)
        if transpose:
            return matmul(self.L_inverse.mT, columns)
        return times_inverse(self.L, self.L_inverse, columns, has_sum(self.prior.kernel))

    def of_part(self, part: int, kernel: Kernel) -> Projection:
        """See :meth:`Conditional.of_part`."""
        of = self._with_fields(prior=self.prior._replace(kernel=kernel, loc=None))
        of.part = part
        return of

    def covariances(self, X: Float[Array, "..."]) -> Float[Array, "*D M N"]:
        """``Kuf``; for a term with its own block of inducing variables, the other blocks are zero."""
        K = Kuf(self.inducing if self.part is None else self.inducing.of_part(self.part), self.prior.kernel, X)
        if self.part is None or K.shape[-2] == self.num_inducing:
            return K
        sizes = [block.shape[-1] for block in self.L.blocks]
        before = sum(sizes[: self.part])
        widths = [(0, 0)] * (K.ndim - 2) + [(before, self.num_inducing - before - K.shape[-2]), (0, 0)]
        return jnp.pad(K, widths)

    def _projections(self, X: Float[Array, "..."]) -> tuple[Float[Array, "*D M N"], Float[Array, "*D M N"]]:
        """``A`` and the outer factor ``B`` at inputs ``X``."""
        A = self.solved(self.covariances(X))
        return A, A if self.whiten else self.solved(A, transpose=True)

    def mean(self, m: Float[Array, "M D"]) -> Float[Array, "D N"]:
        """See :meth:`Conditional.mean`: ``Kfu w``; the weights ``w`` are computed once for all inputs."""

        def at(X: Float[Array, "..."], self: Projection, weights: Array) -> tuple[Array, ...]:
            return (self.weighted(self.covariances(X), weights),)

        (mean,) = self._in_chunks(at, self.weights(m))
        return mean

    def weights(self, m: Float[Array, "M D"]) -> Float[Array, "M D"]:
        """``Kuu^-1`` times the mean of ``u``."""
        columns = m if self.L.ndim == 2 else m.T[:, :, None]
        weights = self.solved(columns if self.whiten else self.solved(columns), transpose=True)
        return weights if self.L.ndim == 2 else weights[:, :, 0].T

    def weighted(self, K: Float[Array, "*D M N"], weights: Float[Array, "M D"]) -> Float[Array, "D N"]:
        """``K^T w``."""
        return mean_at(K, weights)

    def marginals(self, m: Float[Array, "M D"], form: Form) -> tuple[Float[Array, "D N"], Float[Array, "D N"]]:
        """See :meth:`Conditional.marginals` (van der Wilk et al. 2017, eq. 7 and 8)."""

        def at(X: Float[Array, "..."], self: Projection, m: Array, form: Form) -> tuple[Array, ...]:
            mean, squares, residual, floor = self._parts_at(X, m, form)
            return mean, jnp.maximum(residual + squares, floor)

        mean, variance = self._in_chunks(at, m, form)
        return mean, variance

    def marginal_parts(
        self, m: Float[Array, "M D"], form: Form
    ) -> tuple[Float[Array, "D N"], Float[Array, "D N"], Float[Array, "D N"]]:
        """See :meth:`Conditional.marginal_parts`: ``m^T B``, ``B^T S B`` and ``kff - |A|^2``."""

        def at(X: Float[Array, "..."], self: Projection, m: Array, form: Form) -> tuple[Array, ...]:
            mean, squares, residual, floor = self._parts_at(X, m, form)
            return mean, squares, jnp.broadcast_to(jnp.maximum(residual, floor), squares.shape)

        mean, squares, residual = self._in_chunks(at, m, form)
        return mean, squares, residual

    def factors(
        self, m: Float[Array, "M D"], form: Any
    ) -> tuple[Float[Array, "D N"], Float[Array, "D N"], dict[str, Float[Array, "D _ N"]]]:
        """Mean, residual variance (the variance given ``u``), and ``C^T B`` for each shared noise, by its name.

        Sites that share one ``q`` share this noise; for ``C``, see :mod:`gpzoo.posteriors.coupled`.

        Args:
            m: see :meth:`marginals`.
            form: a :class:`~gpzoo.posteriors.coupled.Coupled`.
        """

        def at(X: Float[Array, "..."], self: Projection, m: Array, form: Any) -> tuple[Array, ...]:
            A, B = self._projections(X)
            mean, left = mean_at(B, m), jnp.maximum(*self.residual(X, A))
            each = (x.reshape(-1, x.shape[-1]) for x in form.factors(B).values())
            return mean, jnp.broadcast_to(left, mean.shape), *each

        mean, left, *each = self._in_chunks(at, m, form)
        factors = [x.reshape(len(mean), -1, x.shape[-1]) for x in each]
        return mean, left, dict(zip(form.group, factors, strict=False))

    def _parts_at(
        self, X: Float[Array, "..."], m: Float[Array, "M D"], form: Form
    ) -> tuple[Float[Array, "D N"], Float[Array, "D N"], Float[Array, "... N"], Float[Array, "... N"]]:
        """Mean, the two parts of the variance, and the lower limit of a variance.

        At inputs at which the data determine ``f``, rounding can make ``kff - |A|^2`` smaller than the noise.
        """
        A, B = self._projections(X)
        return mean_at(B, m), form.squares(B), *self.residual(X, A)

    def residual(
        self, X: Float[Array, "..."], A: Float[Array, "*D M N"]
    ) -> tuple[Float[Array, "... N"], Float[Array, "... N"]]:
        """The residual variance given ``u``, ``kff - |A|^2``, and its lower limit.

        At inducing points, the residual contains the jitter of ``Kuu``. For a sum of kernels with a diffuse term (a
        term with a large variance), this jitter may be large compared with the noise. So gpzoo subtracts it for sums,
        unless the user chose the jitter.
        """
        prior = self.prior
        kff = prior.kernel.diag(X)
        left = kff - jnp.sum(A * A, axis=-2)
        if prior.jitter is None and type(self.inducing) is InducingPoints and has_sum(prior.kernel):
            left = left - prior.kernel.jitter(self.inducing.Z)[..., None]
        return left, prior.kernel.noise_diag(X) + jnp.finfo(kff.dtype).eps * kff

    def _in_chunks(self, at: Callable[..., tuple[Array, ...]], *fixed: Any) -> tuple[Float[Array, "D N"], ...]:
        """``at(X, self, *fixed)`` at all inputs, in chunks of a size that suits the platform."""
        X, N = self.prior.X, self.prior.num_inputs
        if _platform.inputs_at_a_time(N // _devices.number()) >= N // _devices.number():
            return at(X, self, *fixed)
        axis = 1 if self.prior.kernel.has_outputs(X) else 0
        elsewhere = self._with_fields(prior=self.prior._replace(X=None, loc=None))
        chunks = partial(_in_chunks, at, axis)
        return _devices.on_own_rows(chunks, X, elsewhere, *fixed, axis=axis, found=1)

    def moments(self, m: Float[Array, "M D"], form: Form) -> tuple[Float[Array, "D N"], Float[Array, "D N N"]]:
        """See :meth:`Conditional.moments`."""
        A, B = self._projections(self.prior.X)
        root = form.spread(B)
        Kff = self.prior.kernel(self.prior.X)
        return mean_at(B, m), Kff - matmul(A.mT, A) + matmul(root.mT, root)

    def draws_in_groups(
        self, m: Float[Array, "M D"], form: Form, size: int, keys: Array, *, rows: bool = True
    ) -> Float[Array, "D G {size}"]:
        """See :meth:`Conditional.draws_in_groups`: for each group, ``B^T`` times a draw from ``q``, plus a residual.

        The random residual has the covariance ``Kff - A^T A``. ``A`` and ``B`` are defined in :class:`Projection`.
        Outputs with the same kernel share this covariance and its root.
        """
        X, kernel = self.prior.X, self.prior.kernel
        own = int(kernel.has_outputs(X))
        # [*D, G, M, size]
        A, B = (jnp.moveaxis(x.reshape(*x.shape[:-1], -1, size), -2, -3) for x in self._projections(X))
        if len(keys) == 1:  # a batch of one makes loops over views slow
            Kff, jitter = kernel(X)[..., None, :, :], kernel.jitter(X)
        else:
            each = X.reshape(*X.shape[:own], -1, size, *X.shape[own + 1 :])
            Kff = jnp.moveaxis(jax.vmap(kernel, in_axes=own)(each), 0, -3)
            jitter = jax.vmap(kernel.jitter, in_axes=own)(each)
        of_u, of_rest = jnp.moveaxis(jax.vmap(random.split)(keys), 1, 0)
        u = jax.vmap(lambda key: self.draw(m, form, key))(of_u)
        noise = jax.vmap(lambda key: random.normal(key, (size, m.shape[1]), m.dtype))(of_rest)
        apart = B.ndim == 4  # a kernel or inputs for each output
        if apart:
            u, noise = (jnp.moveaxis(x, -1, 0)[..., None] for x in (u, noise))
        # For rows, the jitter of the prior: its rounding errors may exceed the whole covariance of the rest. If one
        # group had no Cholesky factor, eigenvalues would be computed for all groups.
        jitter, at = (jnp.max(jitter), f"the {size} inputs of a row") if rows else (None, f"{size} inputs")
        variances, name = linalg.diagonal(Kff), f"the joint posterior covariance of site {self.site!r} at {at}"
        rest = linalg.root(Kff - matmul(A.mT, A), name, jitter, out_of=variances, times=noise)
        draw = matmul(B.mT, u) + rest
        return draw[..., 0] if apart else jnp.moveaxis(draw, -1, 0)

    # -- q(u) --------------------------------------------------------------------------------------------------------

    def draws_of_parts(self, m: Float[Array, "M D"], parts: Sequence[Projection], key: Array) -> list[Array]:
        """A joint draw of the terms of ``f``, without the prior's mean, at all inputs; one array ``[D, N]`` per term.

        Given ``u``, a term has the covariance ``K_i - A_i^T A_i``, and two terms have the covariance ``-A_i^T A_j``.

        Args:
            m: the value of ``u``, or of ``v`` if variables are whitened.
            parts: the conditionals of the terms; see :meth:`of_part`.
            key: random key.
        """
        X, each = self.prior.X, [part._projections(self.prior.X) for part in parts]
        A = jnp.concatenate([A for A, _ in each], axis=-1)
        K = [part.prior.kernel(X) for part in parts]
        N = K[0].shape[-1]
        prior = jnp.zeros((len(K) * N, len(K) * N), K[0].dtype)
        for i, block in enumerate(K):
            widths = [(i * N, (len(K) - 1 - i) * N)] * 2
            prior = prior + jnp.pad(block, [(0, 0)] * (block.ndim - 2) + widths)
        name = f"the joint posterior covariance of the addends of site {self.site!r} at {N} inputs"
        noise = random.normal(key, (len(K) * N, m.shape[1]), m.dtype)
        left = prior - matmul(A.mT, A)
        apart = left.ndim == 3  # a kernel or inputs for each output
        rest = linalg.root(left, name, out_of=linalg.diagonal(prior), times=noise.T[..., None] if apart else noise)
        rest = rest[..., 0] if apart else rest.T
        return [mean_at(B, m) + x for (_, B), x in zip(each, jnp.split(rest, len(K), axis=-1), strict=True)]

    def inducing_moments(self, m: Float[Array, "M D"], form: Form) -> tuple[Float[Array, "D M"], Float[Array, "D M M"]]:
        """Mean and covariance of ``u``, never of ``v``."""
        root, mean = form.root(), m.T
        if self.whiten:
            root, mean = matmul(self.L, root), matmul(self.L, mean[:, :, None])[:, :, 0]
        if isinstance(root, BlockDiagonalMatrix):
            return mean, root.map(lambda block: matmul(block, block.mT)).dense()
        return mean, matmul(root, root.mT)

    def whitened(self, u: Float[Array, "D M"]) -> Float[Array, "D M"]:
        """See :meth:`Conditional.whitened`."""
        return (
            linalg.solve_lower(self.L, u.T).T if self.L.ndim == 2 else linalg.solve_lower(self.L, u[..., None])[..., 0]
        )

    def draw(self, m: Float[Array, "M D"], form: Form, key: PRNGKeyArray) -> Float[Array, "M D"]:
        """A draw of ``v`` if whitened, else of ``u``."""
        return m + form.draw(key)

    def kl(self, m: Float[Array, "M D"], form: Form) -> Float[Array, ""]:
        """``KL[q(u) || p(u)]`` summed over outputs, in nats (van der Wilk et al. 2017, eq. C.26)."""
        M, D = m.shape
        log_det_q = form.log_det()
        if self.whiten:
            return (form.trace() + jnp.sum(m * m) - M * D - log_det_q) / 2
        log_det_p = jnp.sum(jnp.log(linalg.diagonal(self.L))) * 2
        if self.L.ndim == 2:
            log_det_p = log_det_p * D
        means, S = m.T[:, :, None], form.root()
        groups = [(self.L_inverse, means, S)]
        if isinstance(S, BlockDiagonalMatrix):
            groups = list(zip(self.L_inverse.blocks, S.split(means), S.blocks, strict=True))
        squares = sum(jnp.sum(jnp.square(_whitened(R, jnp.concatenate(columns, axis=2)))) for R, *columns in groups)
        return (squares - M * D + log_det_p - log_det_q) / 2


class OnValues(Projection):
    """A projection on one value of ``u``, by triangular solves that stay accurate if the noise is small.

    ``q(u)`` has no spread. A product with the inverse would amplify rounding errors: with a noise variance of a ten
    thousandth of the prior variance, the posterior's standard deviation would be lost in float32.
    """

    def solved(self, columns: Float[Array, "... M N"], transpose: bool = False) -> Float[Array, "... M N"]:
        """See :meth:`Projection.solved`."""
        if self.inducing.independent:
            return super().solved(columns, transpose)
        return linalg.solve_lower(self.L, columns, transpose=transpose)

    def weighted(self, K: Float[Array, "*D M N"], weights: Float[Array, "M D"]) -> Float[Array, "D N"]:
        """``K^T w``, in sums of few terms, because the weights are large and differ in sign."""
        M = K.shape[-2]
        size = math.isqrt(M)
        beyond = -M % size
        K = jnp.pad(K, [(0, 0)] * (K.ndim - 2) + [(0, beyond), (0, 0)])
        parts = jnp.pad(weights, ((0, beyond), (0, 0))).reshape(-1, size, weights.shape[1])
        each = "dcmn,cmd->cdn" if K.ndim == 3 else "cmn,cmd->cdn"
        K = K.reshape(*K.shape[:-2], -1, size, K.shape[-1])
        return jnp.sum(einsum(each, K, parts), axis=0)

    def _parts_at(
        self, X: Float[Array, "..."], m: Float[Array, "M D"], form: Form
    ) -> tuple[Float[Array, "D N"], Float[Array, "D N"], Float[Array, "... N"], Float[Array, "... N"]]:
        K = self.covariances(X)
        mean = self.weighted(K, self.weights(m))
        return mean, jnp.zeros_like(mean), *self.residual(X, self.solved(K))


class Narrowed(Projection):
    """A projection of whitened variables that computes marginals by one product with a triangular matrix.

    If ``1 - S`` is positive definite, let ``1 - S = U U^T`` and ``B = U^T L^-1 Kuf``. Then ``mean = B^T U^-1 m`` and
    ``variance = kff - |B|^2``. Otherwise, gpzoo computes the marginals as in any projection.

    Args:
        known: the projection.
        form: form of ``S``, with an axis of one output.
    """

    U: Float[Array, "M M"]
    taken: Float[Array, "M M"]
    rounding: float = static()

    def __init__(self, known: Projection, form: Form) -> None:
        super().__init__(known.prior, known.inducing, site=known.site, factor=(known.L, known.L_inverse))
        self.U, self.rounding = upper_root_of_rest(form.root()[0])
        self.taken = matmul(self.U.mT, self.L_inverse)

    def marginals(self, m: Float[Array, "M D"], form: Form) -> tuple[Float[Array, "D N"], Float[Array, "D N"]]:
        """See :meth:`Projection.marginals`."""

        def narrow(X: Float[Array, "..."], self: Narrowed, mean: Array) -> tuple[Array, ...]:
            B = lower_product(self.taken, self.covariances(X))
            left, floor = self.residual(X, B)
            # The root belongs to 1 + rounding - S. This excess must not reduce variances: small ones would lose much.
            return mean_at(B, mean), jnp.maximum(left + self.rounding * self.prior.kernel.diag(X), floor)[None]

        wide = super().marginals
        mean = solve_triangular(self.U, m, lower=False)
        is_narrow = jnp.isfinite(linalg.diagonal(self.U)).all()
        return jax.lax.cond(is_narrow, lambda: self._in_chunks(narrow, mean), lambda: wide(m, form))


def _in_chunks(at: Callable[..., tuple[Array, ...]], axis: int, X: Array, *fixed: Any) -> tuple[Array, ...]:
    N = X.shape[axis]
    most = _platform.inputs_at_a_time(N)
    # A remainder would be a second program. With few inputs, this program would compute in another way.
    size = next((size for size in range(most, most // 2, -1) if N % size == 0), most)
    rest, whole = jnp.split(X, [N % size], axis=axis)
    chunks = whole.reshape(*X.shape[:axis], -1, size, *X.shape[axis + 1 :])
    each = jax.lax.map(lambda x: at(x, *fixed), jnp.moveaxis(chunks, axis, 0))
    found = tuple(jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1) for x in each)
    if N % size:
        found = tuple(jnp.concatenate(x, axis=1) for x in zip(at(rest, *fixed), found, strict=True))
    return found


def mean_at(B: Float[Array, "M N"] | Float[Array, "D M N"], m: Float[Array, "M D"]) -> Float[Array, "D N"]:
    """``B^T m``."""
    return matmul(m.T, B) if B.ndim == 2 else einsum("dmn,md->dn", B, m)


def _whitened(inverse: Any, columns: Float[Array, "D M K"]) -> Float[Array, "*_ M _"]:
    """``L^-1`` times columns; outputs that share ``L`` have their columns in one product."""
    if inverse.ndim == 2:
        columns = columns.transpose(1, 0, 2).reshape(columns.shape[1], -1)
    return matmul(inverse, columns)


class Interpolation(Conditional):
    """The conditional that interpolates ``f(x) = w(x)^T u`` from a grid ``u`` (Wilson et al. 2016, section 4).

    The moments of ``f`` are ``mean = W m`` and ``cov = W S W^T``, because ``u`` determines ``f``. The cost per input
    does not depend on the size of the grid. ``q(u)`` and its KL divergence need only factors along the axes of the grid
    (eq. 10-11 of this paper).

    Args:
        prior: the site's :class:`~gpzoo.GaussianProcess`, with inputs ``[N, G]`` (``[D, N, G]``) for ``G`` axes. White
            noise in its kernel belongs to the values at the grid points.
        inducing: the :class:`~gpzoo.InducingGrid`.
        whiten: whether ``m`` and ``S`` belong to ``v`` with ``u = (L_1 x ... x L_G) v``. With ``toeplitz=True``, the
            matrix of ``toeplitz_root`` whitens the mean and ``V`` of :meth:`~gpzoo.posteriors.Form.parts`. The
            variances in these parts are still variances of ``u``.
        site: name of the site, for messages.
        toeplitz: whether to use the prior's Toeplitz structure in place of its factor. This needs one axis, a
            stationary kernel and a form with a diagonal.

    Raises:
        FactorisationError: outside ``jit``, if the prior has no Cholesky factor; the message names the site and the
            axis.
    """

    deterministic = True

    def __init__(
        self,
        prior: GaussianProcess,
        inducing: InducingGrid,
        *,
        whiten: bool = True,
        site: str = "f",
        toeplitz: bool = False,
    ) -> None:
        self.prior, self.inducing, self.whiten, self.site = prior, inducing, whiten, site
        self.L = self.L_inverse = None
        if toeplitz:
            return
        # The prior is factorised after the inputs are known, not while a network computes the inputs. Otherwise, on a
        # CPU, the factorisation would wait for a thread of the pool and keep another thread from the network. XLA
        # orders operations only by their dependences, so a zero made from the inputs is added to the covariances.
        first = jax.lax.stop_gradient(prior.X[(0,) * prior.X.ndim])
        zero = jnp.where(jnp.isnan(first), first, jnp.zeros_like(first))
        axes, jitter = inducing.axes(prior.X.dtype), prior.jitter
        if jitter is None and len(axes) == 1:
            jitter = prior.kernel.jitter(axes[0])
        found = [
            linalg.cholesky_and_inverse(K + zero, f"Kuu of site {site!r} along axis {d} of its grid", jitter)
            for d, K in enumerate(axis_covariances(inducing, prior.kernel, prior.X.dtype))
        ]
        self.L, self.L_inverse = (KroneckerProduct(*parts) for parts in zip(*found, strict=True))

    @property
    def toeplitz(self) -> bool:
        """See :attr:`Conditional.toeplitz`."""
        return self.L is None

    @property
    def num_inducing(self) -> int:
        """``M``, the total number of grid points."""
        return self.inducing.num_inducing

    @property
    def outside(self) -> Integer[Array, "*D"]:
        """See :attr:`Conditional.outside`."""
        return self.inducing.outside(self.prior.X)

    def start_root(self) -> KroneckerProduct:
        """See :meth:`Conditional.start_root`."""
        if not self.whiten:
            return self.L
        return KroneckerProduct(*(jnp.eye(size, dtype=self.dtype) for size in self.inducing.sizes))

    def start_variances(self) -> Float[Array, "*D M"]:
        """The prior variance of each variable given all others; the best diagonal ``q(u)`` has these variances."""
        if self.toeplitz:
            column = self.prior_column()
            inverse = lambda column: ToeplitzInverse(column).diagonal()  # noqa: E731
            return 1 / (jax.vmap(inverse)(column) if column.ndim == 2 else inverse(column))
        if self.whiten:
            return jnp.ones(self.num_inducing, self.dtype)
        return 1 / jnp.sum(jnp.square(self.L_inverse.dense()), axis=-2)

    # -- q(u) --------------------------------------------------------------------------------------------------------

    def _coloured(self, columns: Float[Array, "D M K"]) -> Float[Array, "D M K"]:
        """Columns in terms of ``u``."""
        if not self.whiten:
            return columns
        if not self.toeplitz:
            return self.L @ columns
        column = self.prior_column()
        times = lambda column, B: toeplitz_matmul(toeplitz_root(column), B)  # noqa: E731
        return jax.vmap(times, in_axes=(0 if column.ndim == 2 else None, 0))(column, columns)

    def mean_of_u(self, m: Float[Array, "M D"]) -> Float[Array, "D M"]:
        """Mean of ``u``, from the mean ``m`` of whitened or unwhitened variables."""
        return self._coloured(m.T[..., None])[..., 0]

    def _roots(self, form: Form) -> tuple[tuple[Float[Array, "D M_i R_i"], ...], Float[Array, "D M"] | None]:
        """Factors ``F_d`` and variances: ``cov(u)`` is ``prod_d F_d F_d^T + diag``."""
        if form.has_diagonal and (self.toeplitz or not self.whiten):
            return self.parts_of_u(form)
        roots = _factors(form)
        if self.whiten:
            roots = tuple(matmul(L, F) for L, F in zip(self.L.factors, roots, strict=True))
        return roots, None

    def parts_of_u(self, form: Form) -> tuple[tuple[Float[Array, "D M R"], ...], Float[Array, "D M"]]:
        """Parts of ``cov(u) = V V^T + diag(d)``: the tuple ``(V,)``, which is ``()`` without a ``V``; and ``d``."""
        V, variances = form.parts()
        return (() if V is None else (self._coloured(V),)), variances

    def inducing_moments(self, m: Float[Array, "M D"], form: Form) -> tuple[Float[Array, "D M"], Any]:
        """Mean and covariance (``[D, M, M]``, or a Kronecker product for several axes) of ``u``, never of ``v``."""
        roots, variances = self._roots(form)
        covariances = tuple(matmul(F, F.mT) for F in roots)
        covariance = covariances[0] if covariances else 0
        if variances is not None:
            covariance = covariance + variances[..., None] * jnp.eye(variances.shape[-1], dtype=variances.dtype)
        return self.mean_of_u(m), KroneckerProduct(*covariances) if len(covariances) > 1 else covariance

    def draw(self, m: Float[Array, "M D"], form: Form, key: PRNGKeyArray) -> Float[Array, "M D"]:
        """A draw of ``u``, never of ``v``."""
        (roots, variances), u = self._roots(form), self.mean_of_u(m)
        key_roots, key_own = random.split(key)
        if roots:
            rank = math.prod(F.shape[-1] for F in roots)
            noise = random.normal(key_roots, (u.shape[0], rank, 1), u.dtype)
            u = u + kronecker_matmul(roots, noise)[..., 0]
        if variances is not None:
            u = u + jnp.sqrt(variances) * random.normal(key_own, u.shape, u.dtype)
        return u.T

    def whitened(self, u: Float[Array, "D M"]) -> Float[Array, "D M"]:
        """See :meth:`Conditional.whitened`."""
        return (self.L_inverse @ u[..., None])[..., 0]

    def log_prior(self, draw: Float[Array, "D M"]) -> Float[Array, ""]:
        """See :meth:`Conditional.log_prior`."""
        if not self.toeplitz:
            return super().log_prior(draw)
        column = self.prior_column()

        def of_output(column: Array, draw: Array) -> Array:
            inverse = ToeplitzInverse(column)
            return log_normal(matmul(draw, inverse.solve(draw[:, None])[:, 0]), inverse.log_det, draw.size)

        return jnp.sum(jax.vmap(of_output, in_axes=(0 if column.ndim == 2 else None, 0))(column, draw))

    def log_density(self, m: Float[Array, "M D"], form: Form, draw: Float[Array, "D M"]) -> Float[Array, ""]:
        """See :meth:`Conditional.log_density`."""
        if not self.toeplitz:
            return super().log_density(m, form, draw)
        roots, variances = self.parts_of_u(form)
        residual = draw - self.mean_of_u(m)
        white, log_det = residual / jnp.sqrt(variances), jnp.sum(jnp.log(variances))
        square = jnp.sum(jnp.square(white))
        for V in roots:
            V = V / jnp.sqrt(variances)[..., None]
            L = jnp.linalg.cholesky(jnp.eye(V.shape[-1], dtype=V.dtype) + matmul(V.mT, V))
            along = solve_triangular(L, matmul(V.mT, white[..., None]), lower=True)
            square = square - jnp.sum(jnp.square(along))
            log_det = log_det + 2 * jnp.sum(jnp.log(linalg.diagonal(L)))
        return log_normal(square, log_det, residual.size)

    def given_draw(self) -> Self:
        """See :meth:`Conditional.given_draw`: draws are not whitened."""
        given = self._with_fields()
        given.whiten = False
        return given

    # -- q(f) --------------------------------------------------------------------------------------------------------

    def _interpolate(self, u: Float[Array, "D M"]) -> Float[Array, "D N"]:
        return _interpolated(u, self.inducing.sizes, *self.inducing.weights(self.prior.X))

    def mean(self, m: Float[Array, "M D"]) -> Float[Array, "D N"]:
        """See :meth:`Conditional.mean`."""
        return self._interpolate(self.mean_of_u(m))

    def marginals(self, m: Float[Array, "M D"], form: Form) -> tuple[Float[Array, "D N"], Float[Array, "D N"]]:
        """See :meth:`Conditional.marginals`."""
        first, weights = self.inducing.weights(self.prior.X)
        roots, variances = self._roots(form)
        mean = _interpolated(self.mean_of_u(m), self.inducing.sizes, first, weights)
        parts = []
        if roots:
            pairs = zip(roots, first, weights, strict=True)
            parts.append(math.prod(_quadratic_form(F, c, w) for F, c, w in pairs))
        if variances is not None:
            squares = tuple(jnp.square(w) for w in weights)
            parts.append(_interpolated(variances, self.inducing.sizes, first, squares))
        return mean, linalg.total(parts)

    def moments(self, m: Float[Array, "M D"], form: Form) -> tuple[Float[Array, "D N"], Float[Array, "D N N"]]:
        """See :meth:`Conditional.moments`; computed by the dense weights."""
        W = self.inducing.dense_weights(self.prior.X)
        roots, variances = self._roots(form)
        covariance = jnp.zeros((), W.dtype)
        if roots:
            whole = KroneckerProduct(*(matmul(F, F.mT) for F in roots)).dense()
            covariance = matmul(matmul(W, whole), W.mT)
        if variances is not None:
            covariance = covariance + matmul(W * variances[:, None, :], W.mT)
        return self.mean(m), covariance

    # -- KL ----------------------------------------------------------------------------------------------------------

    def kl(self, m: Float[Array, "M D"], form: Form) -> Float[Array, ""]:
        """``KL[q(u) || p(u)]`` summed over outputs, in nats, axis by axis (Wilson et al. 2016, eq. 10-11)."""
        if self.toeplitz:
            return self._kl_toeplitz(m, form)
        M, D = m.shape
        m, log_det_p = m.T, 0.0
        if self.whiten:
            trace = form.trace()
        else:
            inverses = self.L_inverse.factors
            roots = (matmul(R, F) for R, F in zip(inverses, _factors(form), strict=True))
            trace = jnp.sum(math.prod(jnp.sum(jnp.square(F), axis=(-2, -1)) for F in roots))
            m = (self.L_inverse @ m[..., None])[..., 0]
            log_det_p = -2 * sum(
                M / R.shape[-1] * jnp.sum(jnp.broadcast_to(jnp.sum(jnp.log(linalg.diagonal(R)), axis=-1), D))
                for R in inverses
            )
        return (trace + jnp.sum(jnp.square(m)) - D * M + log_det_p - form.log_det()) / 2

    def _kl_toeplitz(self, m: Float[Array, "M D"], form: Form) -> Float[Array, ""]:
        mean, (roots, variances) = self.mean_of_u(m), self.parts_of_u(form)  # a form without a diagonal is refused
        D, M = mean.shape
        columns, log_det_q = jnp.concatenate([mean[..., None], *roots], axis=-1), jnp.sum(jnp.log(variances))
        for V in roots:
            scaled = V / jnp.sqrt(variances)[..., None]
            inner = jnp.eye(scaled.shape[-1], dtype=scaled.dtype) + matmul(scaled.mT, scaled)
            log_det_q = log_det_q + jnp.sum(jnp.linalg.slogdet(inner)[1])
        column = self.prior_column()

        def terms(column: Array, columns: Array, variances: Array) -> Array:
            inverse = ToeplitzInverse(column)
            trace = matmul(variances, inverse.diagonal()) + jnp.sum(columns * inverse.solve(columns))
            return trace + inverse.log_det

        by_output = jax.vmap(terms, in_axes=(0 if column.ndim == 2 else None, 0, 0))
        value = (jnp.sum(by_output(column, columns, variances)) - D * M - log_det_q) / 2
        if is_concrete(value) and not bool(jnp.isfinite(value)):
            raise FactorisationError(
                f"The prior over the grid of site {self.site!r} ({M} points, {column.dtype}) is not numerically "
                f"positive definite, its first column being {np.asarray(column).ravel()[:3].tolist()}, ...: use fewer "
                "points, GaussianProcess(jitter=...), or float64 (numpyro.enable_x64())."
            )
        return value

    def prior_column(self) -> Float[Array, "*D M"]:
        """First column of the prior covariance on a grid of one axis, jitter included."""
        column, jitter = axis_column(self.inducing, self.prior.kernel, self.dtype), self.prior.jitter
        if jitter is None:
            jitter = linalg.TOEPLITZ_JITTER[column.dtype.name] * column[..., :1]
        return column.at[..., :1].add(jitter)


def conditional_of(prior: GaussianProcess, inducing: Any, form: Form, *, whiten: bool, site: str) -> Conditional:
    """The conditional for these inducing variables: interpolation for a grid, projection for all other kinds."""
    if not inducing.num_axes:
        return Projection(prior, inducing, whiten=whiten, site=site)
    return Interpolation(
        prior, inducing, whiten=whiten, site=site, toeplitz=form.has_diagonal and inducing.num_axes == 1
    )


def _factors(form: Form) -> tuple[Float[Array, "D M_i R_i"], ...]:
    """The root's factors along the axes."""
    root = form.root()
    return root.factors if isinstance(root, KroneckerProduct) else (root,)


# -- interpolation -----------------------------------------------------------------------------------------------------


def _interpolated(
    u: Float[Array, "D M"],
    sizes: tuple[int, ...],
    first: tuple[Integer[Array, "*D N"], ...],
    weights: tuple[Float[Array, "*D N n"], ...],
) -> Float[Array, "D N"]:
    """``W u``, from the nodes and weights along each axis."""
    n = weights[0].shape[-1]
    # Along the last axis, the nodes of an input are neighbours in memory, so one row of a table contains them.
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
    total = jnp.zeros((), table.dtype)
    for start, share in zip(starts, shares, strict=True):
        own = jnp.sum(_rows(table, start) * weights[-1], axis=-1)
        total = total + (own if share is None else own * share)
    return total


def _quadratic_form(
    F: Float[Array, "D M R"], first: Integer[Array, "*D N"], weights: Float[Array, "*D N n"]
) -> Float[Array, "D N"]:
    """``w^T F F^T w`` of a factor along one axis; its cost per input does not depend on ``M``."""
    n = weights.shape[-1]
    cells = F.shape[-2] - n + 1
    # Only covariances between neighbours are needed: n bands of the covariance matrix.
    bands = [jnp.sum(F[:, : F.shape[1] - k] * F[:, k:], axis=-1) for k in range(n)]
    pairs = [(a, b) for a in range(n) for b in range(a, n)]
    table = jnp.stack([bands[b - a][:, a : a + cells] for a, b in pairs], axis=-1)
    products = [weights[..., a] * weights[..., b] * (1 if a == b else 2) for a, b in pairs]
    return jnp.sum(_rows(table, first) * jnp.stack(products, axis=-1), axis=-1)


def _rows(table: Float[Array, "_ cells K"], index: Integer[Array, "*D N"]) -> Float[Array, "_ N K"]:
    """Rows of a table ``[D, cells, K]``, for indices ``[N]`` that outputs share or indices ``[D, N]``."""
    if index.ndim == 1:
        return table[:, index]
    return jax.vmap(lambda rows, i: rows[i])(jnp.broadcast_to(table, (index.shape[0], *table.shape[1:])), index)
