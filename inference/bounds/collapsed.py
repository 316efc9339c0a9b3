"""Bound at the best ``q(u)``, which is known in closed form if the noise is Gaussian."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, cast

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
from gpzoo.linalg.operators import einsum, matmul
from gpzoo.linalg.quadratic import weighted_product
from gpzoo.posteriors.coupled import Coupled, rows_of_root
from gpzoo.posteriors.forms import Full
from gpzoo.posteriors.posterior import InducingPosterior

#: Most rows whose covariances with the inducing variables are held at once, if the backend would take more.
_MOST_ROWS = 2**17

#: Larger rounding errors of ``B``, whose eigenvalues are 1 or more, give a warning. With an error of 0.1, the bound of
#: the data sets energy, kin8nm and naval was off by up to 70 nats; with 10, by thousands of nats (M 100, float32
#: against float64).
_MOST_LOST = 0.1

_ELSE = "Or use GaussianProcessELBO(), which needs none of this."

#: Means or variances of every entry of each GP site, by name.
Moments: TypeAlias = Mapping[str, Float[Array, "N *D"]]


class Between(NamedTuple):
    """Lower and upper bound of the log evidence, in nats: ``least`` and ``most``."""

    least: Float[Array, ""]
    most: Float[Array, ""]


class CollapsedELBO(GaussianProcessELBO):
    """Evidence lower bound at the optimal ``q(u)``, which is known in closed form: an objective for Gaussian data.

    It is for programs with a latent GP site ``f`` and data with Gaussian noise. The mean of the data is an affine map
    of ``f`` that keeps the outputs of ``f`` apart: ``f``, ``f * c + b``, or ``f @ A`` if the rows of ``A`` are
    orthogonal and all columns have one noise variance. Masked data, noise per row and several data sites are allowed.
    Let ``mu`` and ``v`` be the means and variances of ``f``, and ``mu0`` the prior's mean. The terms of the data are

    ``l(mu, v) = l0 + sum_nd [b_nd (mu_nd - mu0_nd) - beta_nd ((mu_nd - mu0_nd)^2 + v_nd) / 2]``,

    where ``b`` and ``beta`` are derivatives of the program's own terms at ``mu0``. Let ``L L^T = Kuu``,
    ``A = L^-1 Kuf``, ``d = kff - diag(A^T A)`` and ``B = I + A diag(beta) A^T``. For each output, the bound is

    ``l0 + (b^T A^T B^-1 A b - log |B| - sum_n beta_n d_n) / 2``

    and its ``q`` is ``q(v) = N(B^-1 A b, B^-1)``, with ``u = L v`` (Titsias 2009, eq. 9 and 10). If the program adds
    several sites, ``a + c * b``, the matrices ``c_i A_i`` of the sites are stacked into one matrix, for which the same
    formulas hold. If the program combines outputs of the sites, ``f @ A + g``, this matrix has the rows of all outputs.
    Latent sites that are not GPs have point values, and their priors are part of the bound.

    Training then changes only hyperparameters and inducing variables. Use :func:`~gpzoo.inference.lbfgs` or any optax
    optimiser, on all rows in every step. The objective sums over rows in chunks, so additional rows need memory only
    for their data. At the end of a training, :func:`~gpzoo.inference.fit` puts the optimal ``q(u)`` into
    ``<site>_mean`` and ``<site>_scale`` (and ``<site>_cross``). After ``svi.run``, call :meth:`optimal` to get it.

    The guide is an :class:`~gpzoo.inference.InducingGuide` with a full covariance, whitened or not. The objective
    checks numerically that the terms of the data are quadratic. If they are not, the bound is NaN inside ``jit``.
    :func:`fit` (before its first step) and :meth:`optimal` then raise an error with the reason.

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
        ValueError: for a program or a guide that does not fit, with the reason. The main reasons are:

            * the program has no latent GP site, or several sites that do not share one ``q``
              (``InducingGuide(coupled=...)``) or have different numbers of rows;
            * a GP site is drawn, or is inside ``handlers.scale``;
            * a GP site has a kernel with sampled views, inducing variables on a grid, or a ``q`` without a full
              covariance;
            * there are latent sites that are not GPs, and the guide has ``hyperparameters`` other than ``"point"``;
            * the rows are a minibatch.
    """

    needs_all_rows, takes_natural, takes_mesh = True, False, False
    #: The bound is one number for all sites.
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
        best = _best(program.posteriors, data, _sums_of(program.posteriors, data))
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
        """The parameters with the optimal ``q(u)`` in place of their ``q(u)``.

        Args:
            params: values of every parameter by name, such as the parameters that ``svi.run`` found.
            guide: the program's guide.
            *args: the program's positional arguments, data included.
            model_kwargs: the program's keyword arguments, by name.

        Returns:
            ``params`` with new values of ``<site>_mean`` (``[M]`` or ``[M, D]``) and ``<site>_scale`` (``[M, M]`` or
            ``[D, M, M]``). If several sites share one ``q``, ``<site>_cross`` is new too.

        Raises:
            ValueError: see the class; also if the terms of the data are not quadratic in the site, or if a term depends
                on several rows of the site, or on several outputs that do not share one ``q``.
            FactorisationError: naming the site, if ``Kuu`` does not factorise.
        """
        args, kwargs = arguments(_guide(guide).model, args, model_kwargs)
        arrays, static = split_arrays(kwargs)
        return self.finisher(guide, static)(guide.checked_params(params, args, kwargs), args, arrays)

    @traceable_entry_point
    def evidence(
        self,
        params: Mapping[str, Any],
        guide: InducingGuide,
        *args: Argument,
        model_kwargs: Mapping[str, Any] | None = None,
    ) -> Between:
        """Lower and upper bound of the log evidence, in nats, at these hyperparameters and inducing variables.

        The difference between the bounds is the most that more inducing variables could add. ``least`` is the bound
        that this class computes. With the symbols of the class, the number ``t = sum beta d`` measures the part of the
        function that the inducing variables do not explain, in units of the noise. The upper bound ``most`` is

        ``l0 + (t |b / sqrt(beta)|^2 + b^T A^T (A diag(beta) A^T + (1 + t) I)^-1 A b) / (2 (1 + t)) - log |B| / 2``

        (Titsias 2014, *Variational inference for Gaussian and determinantal point processes*). If ``t`` is 0, both
        bounds are ``log p(y)``. If ``t`` is large, ``most`` is too large to be useful. For several sites, ``beta`` of
        a row is a matrix. Log priors of latent sites that are not GPs are added to both bounds.

        Args:
            params: see :meth:`optimal`; the values of ``q(u)`` do not matter.
            guide: the program's guide.
            *args: the program's positional arguments, data included.
            model_kwargs: the program's keyword arguments, by name.

        Raises:
            ValueError: see :meth:`optimal`; also for a program that combines outputs of its sites, ``f @ A + g``.
            FactorisationError: naming the site, if ``Kuu`` does not factorise.
        """
        args, kwargs = arguments(_guide(guide).model, args, model_kwargs)
        arrays, static = split_arrays(kwargs)
        params = guide.checked_params(params, args, kwargs)

        def bounds(params: dict[str, Any], args: tuple, arrays: dict) -> tuple[Between, _Best, Array, Array]:
            program = _Terms(random.key(0), params, guide.model, guide, args, arrays | static)
            if program.together and any(q.num_outputs not in (None, 1) for q in program.posteriors.values()):
                raise _refusal("it mixes outputs of its GP sites", "Give each a site of its own.")
            data = program.expansion()
            sums = _sums_of(program.posteriors, data)
            best = _best(program.posteriors, data, sums)
            return Between(best.bound, _most(data, sums)), best, data.quadratic, data.separate

        found, best, *known = jax.jit(bounds)(params, args, arrays)
        again = partial(bounds, params, args, arrays)
        _refuse_unknown_terms(best, "bounds of the evidence", np.asarray(found), known, again)
        return found

    def finisher(self, guide: Any, static: dict[str, Any]) -> Callable[[Mapping[str, Any], tuple, dict], dict]:
        """:meth:`optimal` as a function of checked ``(params, args, kwargs)``, compiled by its first call.

        Args:
            guide: the program's guide.
            static: keyword arguments of the program that are not arrays.
        """

        def solution(params: dict[str, Any], args: tuple, arrays: dict) -> tuple[_Best, Array, Array]:
            program = _Terms(random.key(0), params, _guide(guide).model, guide, args, arrays | static)
            data = program.expansion()
            best = _best(program.posteriors, data, _sums_of(program.posteriors, data))
            return best, data.quadratic, data.separate

        compiled = jax.jit(solution)

        def solve(params: Mapping[str, Any], args: tuple, arrays: dict) -> dict[str, Any]:
            best, *known = compiled(dict(params), args, arrays)
            again = partial(solution, dict(params), args, arrays)
            numbers = np.concatenate(list(map(np.ravel, jax.tree.leaves(best))))
            _refuse_unknown_terms(best, "numbers of the optimal q(u)", numbers, known, again)
            found = dict(params)
            for site, form in best.forms.items():
                found |= {f"{site}_{field}": getattr(form, field) for field in form.data_fields}
            return found | {f"{site}_mean": mean for site, mean in best.mean.items()}

        return solve


def _refuse_unknown_terms(
    best: _Best, said: str, numbers: np.ndarray, known: Sequence[Array], again: Callable[[], Any]
) -> None:
    """Refuse numbers that are not finite, and terms that are not quadratic or not apart; warn of rounding errors.

    Raises:
        ValueError, FactorisationError: see :meth:`CollapsedELBO.optimal`.
    """
    names, (quadratic, separate) = " + ".join(best.mean), known
    refuse_not_finite(names, said, numbers, set(best.mean), again)
    if not quadratic:
        reason = f"the terms of its data are not quadratic in GP site {names!r}, as those of Gaussian data are"
        raise _refusal(reason, "Use likelihoods.Gaussian.")
    if not separate:
        reason = f"the terms of its data mix outputs of GP site {names!r}, each of which must be seen by itself"
        way_out = "Under f @ A they are if the rows of A are orthogonal and the noise variance is one number."
        raise _refusal(reason, way_out)
    _warn_if_lost(names, best.lost)


def _warn_if_lost(site: str, lost: Float[Array, ""]) -> None:
    if lost <= _MOST_LOST:
        return
    times = float(lost) / float(jnp.finfo(lost.dtype).eps)
    single = lost.dtype == jnp.float32
    warnings.warn(
        f"The bound and the optimal q(u) of site {site!r} are lost in the rounding errors of {lost.dtype}: the data "
        f"raise the precision of an inducing variable up to {times:.2g} times above the prior's. "
        + ("Train in float64 (numpyro.enable_x64())." if single else "Keep the noise variance away from zero."),
        PrecisionWarning,
        stacklevel=3,
    )


class _Source(NamedTuple):
    """The outputs of a site, each with its own ``q``, or one output of a site whose outputs share one ``q``.

    Attributes:
        site: its name.
        column: number of the output; ``None`` for all.
    """

    site: str
    column: int | None

    def of(self, x: Float[Array, "N *D"]) -> Float[Array, "_ N"]:
        """The entries of means or variances of this source."""
        return x[None] if x.ndim == 1 else x.T if self.column is None else x[:, self.column][None]

    def by_output(self, x: Float[Array, "..."], ndim: int) -> Float[Array, "..."]:
        """The entries of this source in an array with an axis of outputs, or with only ``ndim`` other axes."""
        return x if x.ndim == ndim or self.column is None else x[self.column]

    def ones(self, like: Float[Array, "N *D"]) -> Float[Array, "N *D"]:
        """Means that are one at this source, and zero elsewhere."""
        return jnp.ones_like(like) if like.ndim == 1 or self.column is None else like.at[:, self.column].set(1)


class _Expansion(NamedTuple):
    """The terms of a program as a function of the means and variances of its GP sites.

    Attributes:
        value: ``l0``, the sum of the terms at the prior's means and no variance, with the terms that do not depend on
            the sites.
        b: derivatives with respect to the means there, ``[D, N]`` or ``[1, N]``, by source.
        beta: negative second derivatives with respect to the means of each two sources in the same row, with the same
            shapes.
        quadratic: whether the terms are quadratic in means, and linear in variances.
        separate: whether the terms are sums over the rows and outputs of the sources; valid only if ``quadratic``.
        mutable_state: mutable state of the program.
    """

    value: Float[Array, ""]
    b: dict[_Source, Float[Array, "_ N"]]
    beta: dict[tuple[_Source, _Source], Float[Array, "_ N"]]
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
        sites = _sites_of(_guide(guide), args, kwargs)
        trace = run(key, args, kwargs, guide=guide, values=params, mode=AtPriorMean()).guide
        self.posteriors: dict[str, InducingPosterior] = {site: trace[site]["fn"] for site in sites}
        for site, posterior in self.posteriors.items():
            _check_posterior(posterior)
            if trace[site]["scale"] is not None:
                reason = f"GP site {site!r} stands inside handlers.scale, so that its KL is weighted"
                raise _refusal(reason, "Take it out.")
        self.together = bool(guide.sites.together.intersection(sites))
        shapes = {q.event_shape[:1] if self.together else q.event_shape for q in self.posteriors.values()}
        if len(shapes) > 1:
            raise _refusal(f"its GP sites have shapes {sorted(shapes)}", "Give all of them the same rows.")
        for name, (size, taken) in parts_of_plates(trace).items():
            reason = f"plate {name!r} has {taken} of {size} rows, and the optimal q(u) needs all rows"
            raise _refusal(reason, "Train without minibatches (no batch_size).")

    def _values(self) -> dict[str, Any]:
        # New containers, because networks write into the mutable state that they get.
        return jax.tree.map(lambda x: x, dict(self.params))

    def expansion(self) -> _Expansion:
        """The terms of all sites except the GP sites."""

        @jax.jit  # the program runs once for all evaluations
        def total(shift: Moments, variance: Moments) -> tuple[Float[Array, ""], Any]:
            def around(*args: Any, **kwargs: Any) -> Any:
                with in_mode(GivenMoments(shift=shift, variance=variance)):
                    return self.guide(*args, **kwargs)

            by_site = _BY_SITE.loss_with_mutable_state
            bound = by_site(self.key, self._values(), self.model, around, *self.args, **self.kwargs)
            losses = [loss for name, loss in bound["loss"].items() if name not in self.posteriors]
            return -sum(losses, jnp.zeros((), dtype)), bound["mutable_state"]

        both = jax.value_and_grad(total, (0, 1), has_aux=True)
        sources, dtype = self._sources(), next(iter(self.posteriors.values())).prior.X.dtype
        zeros, shift, first = {}, {}, 1
        for name, posterior in self.posteriors.items():
            zeros[name] = jnp.zeros(posterior.event_shape, dtype)
            # Sines of whole numbers have no relation to the data. Random numbers would take a second to compile.
            numbers = jnp.arange(first, first + zeros[name].size, dtype=dtype)
            shift[name], first = jnp.sin(numbers).reshape(zeros[name].shape), first + zeros[name].size
        (value, mutable_state), (b, slope) = both(zeros, zeros)
        # The same at other means and variances: the value and slopes at the prior's mean identify a quadratic function.
        variance = jax.tree.map(jnp.square, shift)
        (other, _), (b_there, slope_there) = both(shift, variance)
        beta = {(source, source): -2 * source.of(slope[source.site]) for source in sources}
        for i, source in enumerate(sources[1:], 1):
            moved = both(zeros | {source.site: source.ones(zeros[source.site])}, zeros)[1][0]
            for before in sources[:i]:
                beta[source, before] = before.of(b[before.site] - moved[before.site])
        parts = [value]
        for name in zeros:
            parts += [jnp.sum((b[name] + b_there[name]) * shift[name]) / 2, jnp.sum(slope[name] * variance[name])]
        quadratic, separate = [_agree(other, *parts)], []
        # Slopes do not depend on the data, so rows can be compared one by one: precise data would hide all others.
        quadratic += [jnp.all(jax.vmap(_agree)(slope_there[name], slope[name])) for name in zeros]
        for source in sources:
            of_others = [-_of_pair(beta, source, of) * of.of(shift[of.site]) for of in sources]
            separate.append(_agree(source.of(b_there[source.site]), source.of(b[source.site]), *of_others))
        known = jnp.all(jnp.stack(quadratic)), jnp.all(jnp.stack(separate))
        by_source = {source: source.of(b[source.site]) for source in sources}
        return _Expansion(value, by_source, beta, *known, mutable_state=mutable_state)

    def _sources(self) -> list[_Source]:
        found = []
        for name, posterior in self.posteriors.items():
            columns = range(posterior.num_outputs or 1) if self.together else [None]
            found += [_Source(name, column) for column in columns]
        return found


def _of_pair(beta: Mapping[tuple[_Source, _Source], Array], a: _Source, b: _Source) -> Array:
    return beta[a, b] if (a, b) in beta else beta[b, a]


#: Gives the terms of each site by itself.
_BY_SITE = GaussianProcessELBO(sum_sites=False)


class NoOptimumError(ValueError):
    """Raised if a program has no optimal ``q(u)`` in closed form."""


def _refusal(reason: str, way_out: str) -> NoOptimumError:
    return NoOptimumError(f"CollapsedELBO has no optimal q(u) for this program: {reason}. {way_out} {_ELSE}")


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


def _sites_of(guide: InducingGuide, args: tuple, kwargs: dict[str, Any]) -> tuple[str, ...]:
    """The GP sites of a program, one site or those that share one ``q``, if they can be collapsed."""
    sites = guide.sites_for(args, kwargs)
    found = tuple(sites.processes) if len(sites.processes) == 1 else (*sites.coupled, ())[0]
    if not found or sites.processes.difference(found):
        count = f"{len(sites.processes)} ({_listed(sites.processes) or 'none'})"
        way_out = f"Name them, InducingGuide(..., coupled={sorted(sites.processes)}), or make it one."
        raise _refusal(
            f"it must have one latent GP site, or several with one q(u) whose sum its data see, and has {count}",
            way_out if len(sites.processes) > 1 else "Make it one.",
        )
    guide.form_at(found[0])  # refuses a guide without a q(u) of its own
    for site in sorted(sites.processes & (sites.drawn | guide.joint)):
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
    return found


def _check_posterior(posterior: InducingPosterior) -> None:
    site, form = f"GP site {posterior.site!r}", type(posterior.form).__name__
    if posterior.prior.samples_views:
        raise _refusal(f"the kernel of {site} samples views of its inputs", "Enumerate the views (an Orbit).")
    if posterior.conditional.deterministic:
        raise _refusal(f"{site} is interpolated from a grid", "Use inducing points, such as those of kmeans(100).")
    if not isinstance(posterior.form, Full | Coupled):
        raise _refusal(f"the covariance of {site} is {form}, and the optimal one is full", "Use covariance='full'.")


class _Best(NamedTuple):
    """The optimal ``q(u)`` and its bound.

    Attributes:
        bound: in nats.
        mean: ``[M]`` or ``[M, D]``, by site.
        forms: the covariance, by site.
        lost: the largest rounding errors of ``B``, whose eigenvalues are 1 or more.
    """

    bound: Float[Array, ""]
    mean: dict[str, Float[Array, "M *D"]]
    forms: dict[str, Any]
    lost: Float[Array, ""]


#: ``A diag(beta) A^T``, ``A b`` and ``sum beta d``; see :func:`_sums`.
Sums: TypeAlias = tuple[Float[Array, "D T T"], Float[Array, "D T"], Float[Array, ""]]


def _sums_of(posteriors: Mapping[str, InducingPosterior], data: _Expansion) -> Sums:
    return _sums({name: q.conditional for name, q in posteriors.items()}, data.b, data.beta)


def _best(posteriors: Mapping[str, InducingPosterior], data: _Expansion, sums: Sums) -> _Best:
    """See :class:`CollapsedELBO`."""
    precision, linear, residual = sums
    # B = U U^T with an upper U, so that B^-1 has the lower root U^-T: the Cholesky factor of B in reverse order.
    B = jnp.flip(precision + jnp.eye(precision.shape[-1], dtype=precision.dtype), (-2, -1))
    named = f"the precision of q(u) of site {' + '.join(posteriors)!r}"
    L, L_inverse = cast(Any, linalg.cholesky_and_inverse(B, named, 0.0))
    solved = matmul(L_inverse, jnp.flip(linear, -1)[..., None])
    bound = data.value + (jnp.sum(jnp.square(solved)) - residual) / 2 - jnp.sum(jnp.log(linalg.diagonal(L)))
    columns = jnp.concatenate([jnp.flip(matmul(L_inverse.mT, solved), -2), jnp.flip(L_inverse.mT, (-2, -1))], axis=-1)
    means, roots, first = {}, [], 0
    forms: list[Any] = [q.form for q in posteriors.values()]
    for (name, q), form in zip(posteriors.items(), forms, strict=True):
        wide = columns.shape[-1]
        end = first + q.conditional.num_inducing * sum(source.site == name for source in data.b)
        own = columns[..., first:end, :].reshape(q.num_outputs or 1, -1, wide)
        own, first = own if q.whiten else matmul(q.conditional.L, own), end
        means[name] = own[..., 0].T.reshape(q.u_mean.shape)
        roots.append(own[..., 1:].reshape(*form.scale.shape[:-1], wide - 1))
    root = jnp.concatenate(roots, axis=-2)
    after = rows_of_root(root, forms) if isinstance(forms[0], Coupled) else [Full(root)]
    lost = float(jnp.finfo(B.dtype).eps) * jnp.max(linalg.diagonal(B))
    return _Best(bound, means, dict(zip(posteriors, after, strict=True)), lost)


def _most(data: _Expansion, sums: Sums) -> Float[Array, ""]:
    """See :meth:`CollapsedELBO.evidence`."""
    precision, linear, left = sums
    eye, whole = jnp.eye(precision.shape[-1], dtype=precision.dtype), 1 + left
    b = jnp.stack(list(data.b.values()), axis=-1)
    beta = jnp.stack([jnp.stack([_of_pair(data.beta, s, of) for of in data.b], axis=-1) for s in data.b], axis=-1)
    # The square of the data in units of their noise. A row of one data site has a matrix of rank one; data that no site
    # sees have no square.
    square = jnp.sum(b * einsum("dnst,dnt->dns", jnp.linalg.pinv(beta, hermitian=True), b))
    L = jnp.linalg.cholesky(precision + eye, symmetrize_input=False)
    wide = jnp.linalg.cholesky(precision + whole * eye, symmetrize_input=False)
    seen = jnp.sum(jnp.square(linalg.solve_lower(wide, linear[..., None])))
    return data.value + (left * square + seen) / (2 * whole) - jnp.sum(jnp.log(linalg.diagonal(L)))


def _sums(
    conditionals: Mapping[str, Any],
    b: dict[_Source, Float[Array, "D N"]],
    beta: dict[tuple[_Source, _Source], Float[Array, "D N"]],
) -> Sums:
    """``A diag(beta) A^T`` ``[D, T, T]``, ``A b`` ``[D, T]`` and ``sum beta d``, a chunk of rows at a time.

    Args:
        conditionals: conditional of each site; ``A`` are the matrices of sources below each other.
        b: ``[D, N]``, for each source.
        beta: ``[D, N]``, for each two sources.
    """
    N, sources = next(iter(b.values())).shape[1], list(b)
    inputs = {name: conditional.prior.X for name, conditional in conditionals.items()}
    axes = {name: 1 if q.prior.kernel.has_outputs(q.prior.X) else 0 for name, q in conditionals.items()}

    def of_rows(inputs: dict, b: dict, beta: dict) -> tuple[Array, Array, Array]:
        solved, left = {}, {}
        for name, conditional in conditionals.items():
            A = conditional.solved(Kuf(conditional.inducing, conditional.prior.kernel, inputs[name]))
            # With inducing points at all rows, rounding can make a residual negative. The bound would then be above the
            # evidence.
            solved[name], left[name] = A, jnp.maximum(conditional.residual(inputs[name], A)[0], 0.0)
        projections, residuals, linear = {}, [], []
        for source in sources:
            A = projections[source] = source.by_output(solved[source.site], 2)
            residuals.append(jnp.sum(beta[source, source] * source.by_output(left[source.site], 1)))
            linear.append(matmul(b[source], A.T) if A.ndim == 2 else matmul(A, b[source][..., None])[..., 0])
        rows = []
        for i, source in enumerate(sources):
            row = [weighted_product(projections[source], beta[source, of], projections[of]) for of in sources[: i + 1]]
            width = sum(projections[of].shape[-2] for of in sources[i + 1 :])
            rows.append(jnp.pad(jnp.concatenate(row, axis=-1), [(0, 0), (0, 0), (0, width)]))
        lower = jnp.concatenate(rows, axis=-2)
        if len(sources) > 1:  # the blocks above the diagonal are the transposed blocks below it
            lower = jnp.tril(lower) + jnp.tril(lower, -1).mT
        return lower, jnp.concatenate(linear, axis=-1), linalg.total(residuals)

    count = -(-N // min(_platform.inputs_at_a_time(N), _MOST_ROWS))
    if count == 1:
        return of_rows(inputs, b, beta)
    # Rows that fill the last chunk are copies of the last row, with zero weight.
    rows = (
        {name: _chunks(x, count, axes[name], "edge") for name, x in inputs.items()},
        *jax.tree.map(lambda x: _chunks(x, count, 1, "constant"), (b, beta)),
    )
    shapes = jax.eval_shape(of_rows, *jax.tree.map(lambda x: x[0], rows))
    start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    # The derivative computes the covariances of a chunk again. To keep them would take memory for all rows at once.
    again = jax.checkpoint(of_rows)
    return lax.scan(lambda total, chunk: (jax.tree.map(jnp.add, total, again(*chunk)), None), start, rows)[0]


def _chunks(x: Array, count: int, axis: int, mode: str) -> Array:
    """An array in chunks of rows along a new first axis, padded to chunks of one size."""
    size = -(-x.shape[axis] // count)
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, size * count - x.shape[axis])
    cut = jnp.pad(x, widths, mode).reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :])
    return jnp.moveaxis(cut, axis, 0)
