"""The bound at the best ``q(u)``, which is known in closed form where noise is Gaussian."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jaxtyping import Bool, Float, PRNGKeyArray

from gpzoo import _platform, linalg
from gpzoo._types import Argument
from gpzoo.errors import PrecisionWarning
from gpzoo.inducing.kuu_kuf import Kuf
from gpzoo.inference.bounds.elbo import GaussianProcessELBO
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.guides.same_program import refuse_other_program
from gpzoo.inference.programs.arguments import arguments
from gpzoo.inference.programs.arrays import split_arrays
from gpzoo.inference.programs.calls import traceable_entry_point
from gpzoo.inference.programs.finite import refuse_not_finite
from gpzoo.inference.programs.gp_sites import AtPriorMean, GivenMoments, in_mode
from gpzoo.inference.programs.runs import parts_of_plates, run
from gpzoo.linalg.operators import matmul
from gpzoo.posteriors.conditional import Projection
from gpzoo.posteriors.forms import Full
from gpzoo.posteriors.posterior import InducingPosterior

#: Most rows whose covariances with the inducing variables are held at once, where the backend would take more.
_MOST_ROWS = 2**17

#: Largest rounding errors of ``B``, whose eigenvalues are 1 or more, without a warning. At a tenth the
#: bound of energy, kin8nm and naval was off by up to 70 nats, at ten by thousands (M 100, float32 against float64).
_MOST_LOST = 0.1

_ELSE = "Or use GaussianProcessELBO(), which needs none of this."


class CollapsedELBO(GaussianProcessELBO):
    """Evidence lower bound at the optimal ``q(u)``, which is known in closed form: an objective for Gaussian data.

    For programs with one latent GP site ``f`` whose data are Gaussian around an affine map of it that keeps its outputs
    apart: ``f``, ``f * c + b``, ``f @ A`` with orthogonal rows of ``A`` and one noise; masked data, noise per row and
    several data sites are allowed. Their terms are then, with ``mu`` and ``v`` the means and variances of ``f`` and
    ``mu0`` the prior's mean,

    ``l(mu, v) = l0 + sum_nd [b_nd (mu_nd - mu0_nd) - beta_nd ((mu_nd - mu0_nd)^2 + v_nd) / 2]``,

    where ``b`` and ``beta`` are derivatives of the program's own terms at ``mu0``. For each output, with
    ``A = L^-1 Kuf``, ``L L^T = Kuu``, ``d = kff - diag(A^T A)`` and ``B = I + A diag(beta) A^T``, the bound is

    ``l0 + (b^T A^T B^-1 A b - log |B| - sum_n beta_n d_n) / 2``

    and ``q(v) = N(B^-1 A b, B^-1)`` its ``q``, with ``u = L v`` (Titsias 2009, eq. 9 and 10). Other latent sites are
    points, whose priors are part of the bound. What is left to train are hyperparameters and inducing variables, by
    :func:`~gpzoo.inference.lbfgs` or any optax optimiser, on all rows in every step. Rows are summed over in chunks:
    memory grows with their number like the data do. :func:`~gpzoo.inference.fit` ends with the optimal ``q(u)`` in
    ``<site>_mean`` and ``<site>_scale``; after ``svi.run`` it is :meth:`optimal` that gives it.

    The guide is an :class:`~gpzoo.inference.InducingGuide` with a full covariance, whitened or not. Whether the terms
    are quadratic is told from their numbers: where not, the bound is NaN inside ``jit``, and :func:`fit`, before its
    first step, and :meth:`optimal` raise the error that says why.

    Example:
        >>> import jax, numpy as np
        >>> from numpyro.infer import SVI
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import CollapsedELBO, InducingGuide, fit, lbfgs
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 6, 50, dtype=np.float32)[:, None]
        >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).standard_normal(50).astype(np.float32)
        >>> svi = SVI(gp_regression, InducingGuide(gp_regression, kmeans(8)), lbfgs(), CollapsedELBO())
        >>> trained = fit(jax.random.key(0), svi, 20, X, y, progress=False)
        >>> bool(trained.losses[-1] < trained.losses[0]), trained.params["f_scale"].shape
        (True, (8, 8))

    Raises:
        ValueError: naming the reason, for any other program or guide: no latent GP site or several; a site that is
            drawn, or whose kernel samples views; ``hyperparameters="normal"``; inducing variables on a grid; a
            covariance that is not full; minibatches; a GP site inside ``handlers.scale``.
    """

    needs_all_rows, takes_natural, takes_mesh = True, False, False
    #: It is one number for all sites.
    by_site: Any = None

    def __init__(self) -> None:
        super().__init__()

    def loss_with_mutable_state(
        self, rng_key: Array, param_map: dict[str, Any], model: Callable, guide: Callable, *args: Any, **kwargs: Any
    ) -> Any:
        """Negative bound, in nats, and the mutable state; see :meth:`numpyro.infer.ELBO.loss_with_mutable_state`."""
        refuse_other_program(model, guide)
        program = _Terms(rng_key, param_map, model, guide, args, kwargs)
        data = program.expansion()
        best = _best(program.posterior, data)
        loss = -jnp.where(data.quadratic & data.separate, best.bound, jnp.nan)
        return {"loss": loss, "mutable_state": data.mutable_state}

    @traceable_entry_point
    def optimal(
        self,
        params: Mapping[str, Any],
        guide: InducingGuide,
        *args: Argument,
        model_kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The parameters with the optimal ``q(u)`` in place of theirs.

        Args:
            params: values of every parameter by name, such as those that ``svi.run`` found.
            guide: the program's guide.
            *args: the program's positional arguments, data included.
            model_kwargs: its keyword arguments, by name.

        Returns:
            ``params``, of which ``<site>_mean``, ``[M]`` or ``[M, D]``, and ``<site>_scale``, ``[M, M]`` or
            ``[D, M, M]``, are new.

        Raises:
            ValueError: see the class; and for terms that are not quadratic in each value of the site by itself.
            FactorisationError: naming the site, if ``Kuu`` does not factorise.
        """
        args, kwargs = arguments(_guide(guide).model, args, model_kwargs)
        arrays, static = split_arrays(kwargs)
        return self.finisher(guide, static)(guide.checked_params(params, args, kwargs), args, arrays)

    def finisher(self, guide: Any, static: dict[str, Any]) -> Callable[[Mapping[str, Any], tuple, dict], dict]:
        """:meth:`optimal` as a function of ``(params, args, kwargs)`` that were checked, compiled by its first call.

        Args:
            guide: the program's guide.
            static: keyword arguments of the program that are no arrays.
        """

        def solution(params: dict[str, Any], args: tuple, arrays: dict) -> tuple[_Best, Array, Array]:
            program = _Terms(random.key(0), params, _guide(guide).model, guide, args, arrays | static)
            data = program.expansion()
            return _best(program.posterior, data), data.quadratic, data.separate

        compiled = jax.jit(solution)

        def solve(params: Mapping[str, Any], args: tuple, arrays: dict) -> dict[str, Any]:
            best, quadratic, separate = compiled(dict(params), args, arrays)
            (site,) = guide.sites.processes
            again = partial(solution, dict(params), args, arrays)
            numbers = np.concatenate(list(map(np.ravel, best)))
            refuse_not_finite(site, "numbers of the optimal q(u)", numbers, {site}, again)
            if not quadratic:
                reason = f"the terms of its data are not quadratic in GP site {site!r}, as those of Gaussian data are"
                raise _refusal(reason, "Use likelihoods.Gaussian.")
            if not separate:
                reason = f"the terms of its data mix outputs of GP site {site!r}, each of which must be seen by itself"
                way_out = "Under f @ A they are if the rows of A are orthogonal and the noise variance is one number."
                raise _refusal(reason, way_out)
            _warn_if_lost(site, best.lost)
            return dict(params) | {f"{site}_mean": best.mean, f"{site}_scale": best.scale}

        return solve


def _warn_if_lost(site: str, lost: Float[Array, ""]) -> None:
    if lost <= _MOST_LOST:
        return
    times = float(lost) / float(jnp.finfo(lost.dtype).eps)
    single = lost.dtype == jnp.float32
    warnings.warn(
        f"The bound and the optimal q(u) of site {site!r} are lost in the rounding errors of {lost.dtype}: the data "
        f"say up to {times:.2g} times as much of an inducing variable as the prior. "
        + ("Train in float64 (numpyro.enable_x64())." if single else "Keep the noise variance away from zero."),
        PrecisionWarning,
        stacklevel=3,
    )


class _Expansion(NamedTuple):
    """The terms of a program as a function of the means and variances of its GP site.

    Attributes:
        value: ``l0``, their sum at the prior's mean and no variance, with the terms that do not depend on the site.
        b: derivatives with respect to the means there, ``[N]`` or ``[N, D]``.
        beta: twice the negative derivatives with respect to the variances, ``[N]`` or ``[N, D]``.
        quadratic: whether they are quadratic in means, and linear in variances.
        separate: whether they are sums over the entries of the site; only where they are quadratic.
        mutable_state: of the program.
    """

    value: Float[Array, ""]
    b: Float[Array, "N *D"]
    beta: Float[Array, "N *D"]
    quadratic: Bool[Array, ""]
    separate: Bool[Array, ""]
    mutable_state: Any


class _Terms:
    """The terms of a program at its parameters and arguments.

    Raises:
        ValueError: see :class:`CollapsedELBO`.
    """

    def __init__(
        self,
        key: PRNGKeyArray,
        params: Mapping[str, Any],
        model: Callable,
        guide: Any,
        args: tuple,
        kwargs: dict[str, Any],
    ) -> None:
        self.key, self.params, self.model, self.guide, self.args, self.kwargs = key, params, model, guide, args, kwargs
        self.site = _site_of(_guide(guide), args, kwargs)
        trace = run(key, args, kwargs, guide=guide, values=params, mode=AtPriorMean()).guide
        self.posterior: InducingPosterior = trace[self.site]["fn"]
        _check_posterior(self.posterior)
        if trace[self.site]["scale"] is not None:
            reason = f"GP site {self.site!r} stands inside handlers.scale, so that its KL is weighted"
            raise _refusal(reason, "Take it out.")
        for name, (size, taken) in parts_of_plates(trace).items():
            reason = f"plate {name!r} has {taken} of {size} rows, and an optimal q(u) is that of all"
            raise _refusal(reason, "Train without minibatches (no batch_size).")

    def _values(self) -> dict[str, Any]:
        # New containers: networks write into the mutable state that they are handed.
        return jax.tree.map(lambda x: x, dict(self.params))

    def expansion(self) -> _Expansion:
        """The terms of all sites but the GP site's."""

        @jax.jit  # the program runs once for both evaluations
        def total(shift: Float[Array, "N *D"], variance: Float[Array, "N *D"]) -> tuple[Float[Array, ""], Any]:
            def around(*args: Any, **kwargs: Any) -> Any:
                with in_mode(GivenMoments(shift=shift, variance=variance)):
                    return self.guide(*args, **kwargs)

            by_site = _BY_SITE.loss_with_mutable_state
            bound = by_site(self.key, self._values(), self.model, around, *self.args, **self.kwargs)
            losses = dict(bound["loss"])
            losses.pop(self.site)
            return -sum(losses.values(), jnp.zeros((), shift.dtype)), bound["mutable_state"]

        both = jax.value_and_grad(total, (0, 1), has_aux=True)
        zero = jnp.zeros(self.posterior.event_shape, self.posterior.prior.X.dtype)
        (value, mutable_state), (b, slope) = both(zero, zero)
        # The same at other means and variances: its value and slopes at the prior's mean tell a quadratic function.
        # Sines of whole numbers have no relation to data, and random numbers take a second to compile.
        shift = jnp.sin(1 + jnp.arange(zero.size, dtype=zero.dtype)).reshape(zero.shape)
        variance = jnp.square(shift)
        (other, _), (b_there, slope_there) = both(shift, variance)
        linear, curved = jnp.sum((b + b_there) * shift) / 2, jnp.sum(slope * variance)
        return _Expansion(
            value,
            b,
            beta=-2 * slope,
            quadratic=_agree(slope_there, slope) & _agree(other, value, linear, curved),
            separate=_agree(b_there, b, 2 * slope * shift),
            mutable_state=mutable_state,
        )


#: Gives the terms of each site by itself.
_BY_SITE = GaussianProcessELBO(sum_sites=False)


def _refusal(reason: str, way_out: str) -> ValueError:
    return ValueError(f"CollapsedELBO has no optimal q(u) for this program: {reason}. {way_out} {_ELSE}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)))


def _agree(x: Float[Array, "*shape"], *parts: Float[Array, "*shape"]) -> Bool[Array, ""]:
    """Whether an array is the sum of others, up to rounding errors of each."""
    tolerance = float(jnp.finfo(x.dtype).eps) ** (1 / 3)
    return _size(x - sum(parts)) <= tolerance * sum(map(_size, (x, *parts)))


def _size(x: Float[Array, "..."]) -> Float[Array, ""]:
    return jnp.max(jnp.abs(x), initial=0.0)


def _guide(guide: Any) -> InducingGuide:
    if not isinstance(guide, InducingGuide):
        raise ValueError(
            f"CollapsedELBO is for a guide that is an InducingGuide, whose q(u) it finds; got {type(guide).__name__}."
        )
    return guide


def _site_of(guide: InducingGuide, args: tuple, kwargs: dict[str, Any]) -> str:
    """The one GP site of a program, if it is one that can be collapsed."""
    sites = guide.sites_for(args, kwargs)
    if len(sites.processes) != 1:
        count = f"{len(sites.processes)} ({_listed(sites.processes) or 'none'})"
        raise _refusal(f"it must have one latent GP site and has {count}", "Make it one.")
    (site,) = sites.processes
    guide.form_at(site)  # a guide without a q(u) of its own refuses
    if site in sites.drawn | guide.joint:
        why = "InducingGuide(joint=...) draws it" if site in guide.joint else "the program draws it"
        exact = "f * c, f + c, f @ A, f[rows], f[:, k]"
        way_out = f"Keep to likelihoods.Gaussian and to what is exact on marginals: {exact}."
        raise _refusal(f"GP site {site!r} is drawn, as {why}", way_out)
    if sites.enumerated:
        reason = f"site(s) {_listed(sites.enumerated)} are discrete latent variables"
        raise _refusal(reason, "Once these are summed out, noise is not Gaussian.")
    others = sites.latents - sites.processes
    if others and guide.hyperparameters != "point":
        raise _refusal(f"latent site(s) {_listed(others)} are drawn", "Use hyperparameters='point'.")
    return site


def _check_posterior(posterior: InducingPosterior) -> None:
    site, form = f"GP site {posterior.site!r}", type(posterior.form).__name__
    if posterior.prior.samples_views:
        raise _refusal(f"the kernel of {site} samples views of its inputs", "Enumerate the views (an Orbit).")
    if posterior.conditional.deterministic:
        raise _refusal(f"{site} is interpolated from a grid", "Use inducing points, such as those of kmeans(100).")
    if not isinstance(posterior.form, Full):
        raise _refusal(f"the covariance of {site} is {form}, and the optimal one is full", "Use covariance='full'.")


class _Best(NamedTuple):
    """The optimal ``q(u)`` and its bound.

    Attributes:
        bound: in nats.
        mean: ``[M]`` or ``[M, D]``.
        scale: lower-triangular factor of the covariance, ``[M, M]`` or ``[D, M, M]``.
        lost: the largest rounding errors of ``B``, whose eigenvalues are 1 or more.
    """

    bound: Float[Array, ""]
    mean: Float[Array, "M *D"]
    scale: Float[Array, "*D M M"]
    lost: Float[Array, ""]


def _best(posterior: InducingPosterior, data: _Expansion) -> _Best:
    """See :class:`CollapsedELBO`."""
    conditional: Any = posterior.conditional
    by_output = (lambda x: x[None]) if posterior.num_outputs is None else (lambda x: x.T)
    precision, linear, residual = _sums(conditional, by_output(data.b), by_output(data.beta))
    # B = U U^T with an upper U: B^-1 then has the lower root U^-T. It is the Cholesky factor of B in reverse order.
    B = jnp.flip(precision + jnp.eye(precision.shape[-1], dtype=precision.dtype), (-2, -1))
    factors: Any = linalg.cholesky_and_inverse(B, f"the precision of q(u) of site {posterior.site!r}", 0.0)
    L, L_inverse = factors
    solved = matmul(L_inverse, jnp.flip(linear, -1)[..., None])
    bound = data.value + (jnp.sum(jnp.square(solved)) - residual) / 2 - jnp.sum(jnp.log(linalg.diagonal(L)))
    mean, scale = (jnp.flip(matmul(L_inverse.mT, solved), -2), jnp.flip(L_inverse.mT, (-2, -1)))
    if not posterior.whiten:
        mean, scale = matmul(conditional.L, mean), matmul(conditional.L, scale)
    mean = mean[..., 0].T
    lost = float(jnp.finfo(B.dtype).eps) * jnp.max(linalg.diagonal(B))
    if posterior.num_outputs is None:
        mean, scale = mean[:, 0], scale[0]
    return _Best(bound, mean, scale, lost)


def _sums(
    conditional: Projection, b: Float[Array, "D N"], beta: Float[Array, "D N"]
) -> tuple[Float[Array, "D M M"], Float[Array, "D M"], Float[Array, ""]]:
    """``A diag(beta) A^T`` ``[D, M, M]``, ``A b`` ``[D, M]`` and ``sum beta d``, a chunk of rows at a time.

    Args:
        conditional: of the site.
        b: ``[D, N]``.
        beta: ``[D, N]``.
    """
    kernel, X = conditional.prior.kernel, conditional.prior.X
    D, N = b.shape
    axis = 1 if kernel.has_outputs(X) else 0

    def of_rows(
        X: Array, b: Float[Array, "D N"], beta: Float[Array, "D N"]
    ) -> tuple[Float[Array, "D M M"], Float[Array, "D M"], Float[Array, ""]]:
        A = conditional.solved(Kuf(conditional.inducing, kernel, X))
        # Rounded to less than zero, with inducing points at all rows, they would lift the bound above the evidence.
        residual = jnp.sum(beta * jnp.maximum(conditional.residual(X, A)[0], 0.0))
        weighted = A * beta[:, None, :]
        if A.ndim == 3:
            return matmul(weighted, A.mT), matmul(A, b[..., None])[..., 0], residual
        # One product over all outputs: XLA is slow at many small ones.
        M = len(A)
        return matmul(weighted.reshape(D * M, -1), A.T).reshape(D, M, M), matmul(b, A.T), residual

    count = -(-N // min(_platform.inputs_at_a_time(N), _MOST_ROWS))
    if count == 1:
        return of_rows(X, b, beta)
    # Rows that fill the last chunk are copies of the last one, of no weight.
    rows = _chunks(X, count, axis, "edge"), _chunks(b, count, 1, "constant"), _chunks(beta, count, 1, "constant")
    shapes = jax.eval_shape(of_rows, *jax.tree.map(lambda x: x[0], rows))
    start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    # Covariances of a chunk are computed again for the derivative: kept, they would be those of all rows.
    again = jax.checkpoint(of_rows)
    return lax.scan(lambda total, chunk: (jax.tree.map(jnp.add, total, again(*chunk)), None), start, rows)[0]


def _chunks(x: Array, count: int, axis: int, mode: str) -> Array:
    """An array in chunks of rows along a new first axis, padded to chunks of one size."""
    size = -(-x.shape[axis] // count)
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, size * count - x.shape[axis])
    cut = jnp.pad(x, widths, mode).reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :])
    return jnp.moveaxis(cut, axis, 0)
