"""Density of data once GP sites are integrated out: exact, collapsed, or by Laplace's approximation.

Every GP site is made from white noise ``v ~ N(0, I)``: ``f = mean + A^T v``. Here ``A^T`` is a root of the prior's
covariance. With inducing variables, ``A = L^-1 Kuf``, and a residual variance is left. Data sites see affine functions
of ``v``, so that

``log p(y) = log p(y | v) - v^T v / 2 - log |H| / 2``, ``H = I - d^2 log p(y | v) / dv^2``, at the best ``v``.

This is exact if noise is Gaussian; otherwise it is Laplace's approximation. With inducing variables, ``log p(y | v)``
is ``E_p(f|u) log p(y | f)``, so that Gaussian noise gives Titsias's bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jax.core import eval_jaxpr
from jaxtyping import Bool, Float, Integer, PRNGKeyArray
from numpyro.distributions.distribution import MaskedDistribution

from gpzoo import linalg
from gpzoo._numpyro import mask_of
from gpzoo._pytree import Fields, static
from gpzoo.inference.guides.handler import parameter_of
from gpzoo.inference.guides.reparam import guarded_factor
from gpzoo.inference.programs.keys import named_key
from gpzoo.likelihoods import Likelihood
from gpzoo.likelihoods.base import MaskedLikelihood
from gpzoo.linalg.gaussian import log_normal
from gpzoo.linalg.operators import LOG_2PI, einsum, matmul
from gpzoo.linalg.quadratic import weighted_product
from gpzoo.posteriors.forms import Diagonal
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.affine import AffineMap
from gpzoo.processes.marginals import DrawLog, GaussianMarginals, VarianceParts
from gpzoo.processes.process import GaussianProcess, to_event_shape

#: Most Newton steps in a search for the best ``v``; a longer search gives a density of zero. Most take five to ten.
MOST_STEPS = 100

_PRECISION = "the precision of GP sites given data"


class Site(Fields):
    """A GP site that is integrated out.

    Attributes:
        prior: prior of the site.
        conditional: ``f`` given its inducing variables; ``None`` without inducing variables.
        projection: ``A = L^-1 Kuf`` of the inducing variables; ``None`` without inducing variables.
        name: name of the site.
    """

    prior: Any
    conditional: Any
    projection: Float[Array, "_ M N"] | None
    name: str = static()

    @classmethod
    def of(cls, prior: GaussianProcess, conditional: Any, name: str) -> Site:
        """The site; its covariances with the inducing variables are computed only here."""
        if conditional is None:
            return cls(prior, None, None, name)
        A, _ = conditional._projections(prior.X)
        A = jnp.where(conditional.factorised, A, jnp.zeros_like(A))
        return cls(prior, conditional, A if A.ndim == 3 else A[None], name)

    @property
    def outputs(self) -> int:
        """The number of outputs of the site; 1 if the site has no axis of outputs."""
        return self.prior.num_outputs or 1

    def marginals(self, log: DrawLog) -> GaussianMarginals:
        """The value of the site in the program: the prior's mean, the variance given ``v``, and the identity map."""
        prior, shape = self.prior, self.prior.event_shape
        variance = jnp.zeros(shape, prior.X.dtype)
        if self.conditional is not None:
            variance = to_event_shape(self.residual(), shape)
        own = AffineMap.identity(self.name, shape[0], self.outputs, prior.X.dtype)
        key = named_key(random.key(0), self.name)  # the same noise at every step
        return GaussianMarginals(prior.mean, variance, key, sites=frozenset({self.name}), log=log, parts=(own,))

    def residual(self) -> Float[Array, "*D N"]:
        """``kff - diag(A^T A)``."""
        left = jnp.maximum(*self.conditional.residual(self.prior.X, self.root()[0]))
        return left[0] if len(left) == 1 and not self.prior.kernel.has_outputs(self.prior.X) else left

    def covariance(self) -> Float[Array, "_ N N"]:
        """The prior's covariance: one matrix for all outputs, or one for each output."""
        K = self.prior.moments()[1]
        return K if K.ndim == 3 else K[None]

    def root(self) -> tuple[Float[Array, "_ M N"], Bool[Array, ""]]:
        """``A`` (for all outputs, or for each output), and whether ``Kuu`` or the prior's covariance has a factor."""
        if self.projection is not None:
            return self.projection, self.conditional.factorised
        name = f"the covariance of GP site {self.name!r}"
        L, factorised = guarded_factor(self.covariance(), name, self.prior.covariance_jitter, for_draws=False)
        return L.mT, factorised

    def residual_covariances(self, rows: Integer[Array, "G B"]) -> Float[Array, "G _ B B"]:
        """The covariances ``K - A^T A`` of blocks of rows given ``v``, for all outputs together or for each output."""
        X, kernel = self.prior.X, self.prior.kernel
        own = int(kernel.has_outputs(X))
        K = jax.vmap(kernel)(jnp.moveaxis(jnp.take(X, rows, axis=own), own, 0))
        A = jnp.moveaxis(self.root()[0][..., rows], -2, 0)
        return (K if K.ndim == 4 else K[:, None]) - matmul(A.mT, A)

    def values(self, v: Float[Array, "J M"], A: Float[Array, "_ M N"]) -> dict[str, Array]:
        """The inducing variables and their values ``u`` minus the prior's mean, by name.

        If there are none, the result has the inputs of the site, and its values at these inputs.
        """
        if self.conditional is None:
            rows = einsum("jmn,jm->nj", jnp.broadcast_to(A, (len(v), *A.shape[1:])), v)
            inducing, u = self.prior.X, rows.reshape(self.prior.event_shape)
        else:
            v = v.T.reshape(-1, *self.conditional.outputs)
            posterior = InducingPosterior(self.conditional, v, Diagonal(jnp.zeros_like(v)))
            inducing, u = parameter_of(self.conditional.inducing), posterior.inducing_moments()[0]
        return {f"{self.name}_mean": u, f"{self.name}_inducing": inducing}


class Term(Fields):
    """The data of one data site.

    Attributes:
        fn: the likelihood of the data, masked or not. Its marginals have a map from the GP sites.
        value: the data.
        name: name of the site.
    """

    fn: Any
    value: Any
    name: str = static(default="")

    @property
    def columns(self) -> int:
        """The number of columns of the likelihood's marginals."""
        return 1 if self.marginals.ndim == 1 else self.marginals.shape[1]

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood without masks of rows; it keeps masks of single entries."""
        fn: Any = self.fn
        while isinstance(fn, MaskedDistribution):
            fn = fn.of_entries() if isinstance(fn, MaskedLikelihood) and fn.entries is not None else fn.base_dist
        return fn

    @property
    def marginals(self) -> GaussianMarginals:
        """The marginals that the likelihood takes."""
        return self.likelihood.f

    @property
    def gaussian(self) -> bool:
        """Whether noise is Gaussian, so that the terms are quadratic in ``f``."""
        return self.likelihood.noise is not None and self.likelihood.quadratic

    @property
    def apart(self) -> bool:
        """Whether each output of ``f`` has its own term, and comes from one output of one site."""
        f, own = self.marginals, self.likelihood.own_columns
        return (f.ndim == 1 or f.shape[1] == 1 or own) and all(part.apart for part in f.parts)

    def seen(self) -> Bool[Array, "_ _"] | None:
        """Which entries were observed, ``[N, K]`` or ``[N, 1]``; ``None`` if all entries were observed."""
        seen, fn = self.likelihood.seen(self.value), self.fn
        seen = seen if seen is None or seen.ndim == 2 else seen[:, None]
        while isinstance(fn, MaskedDistribution):
            mask = jnp.broadcast_to(mask_of(fn), fn.batch_shape)[:, None]
            seen, fn = mask if seen is None else seen & mask, fn.base_dist
        return seen

    def given(self, f: Float[Array, "N K"], sparse: str) -> Any:
        """The likelihood with ``f`` as the mean of the marginals, or as an array if no variance of ``f`` is left."""
        m = self.marginals
        f = jnp.reshape(f, m.shape)

        def change(fn: Any) -> Any:
            fn = copy(fn)
            if isinstance(fn, MaskedDistribution):
                fn.base_dist = change(fn.base_dist)
                return fn
            if sparse == "exact":
                fn.f = f
            elif sparse == "fitc":
                fn.f, fn.noise_variance = f, fn.noise_variance + m._with_fields(parts=()).variance
            else:
                parts = self._residual_parts() if sparse == "tight" else ()
                fn.f = m._with_fields(loc=f, parts=parts)
            return fn

        return change(self.fn)

    def _residual_parts(self) -> tuple[VarianceParts, ...]:
        m = self.marginals
        left = m.source_variance if m.source_variance.ndim == 2 else m.source_variance[:, None]
        return (VarianceParts(jnp.zeros_like(left), left, loading=m.loading),)


class Law(NamedTuple):
    """The law of ``v`` given data: a normal distribution ``N(mean, (L L^T)^-1)`` for each of ``B`` independent groups.

    The ``R`` entries of a group depend on each other. :class:`Latents` says which entries of ``v`` are one group.

    Attributes:
        mean: means of the groups, ``[B, R]``.
        L: Cholesky factors of the precisions of the groups, ``[B, R, R]``.
    """

    mean: Float[Array, "B R"]
    L: Float[Array, "B R R"]

    def draw(self, key: PRNGKeyArray) -> Float[Array, "B R"]:
        """A draw of ``v``."""
        noise = random.normal(key, self.mean.shape, self.mean.dtype)
        return self.mean + linalg.solve_lower(self.L, noise[..., None], transpose=True)[..., 0]


class Latents(Fields):
    """The white noise ``v`` of sites that depend on common data, and these data as a function of ``v``.

    ``v`` is ``[B, R]``: ``B`` independent groups of ``R`` entries. If there is one site, and no entry of the data
    depends on several of its outputs, each output is a group, ``[D, M]``. Otherwise, all entries are one group,
    ``[1, R]``.

    Attributes:
        roots: ``A`` of each site by name, see :meth:`Site.root`.
        terms: data that depend on the sites.
        factorised: whether all roots were found.
        outputs: number of outputs of each site.
        sparse: ``"vfe"``, ``"tight"`` or ``"fitc"``; ``"exact"`` if no site has inducing variables.
        apart: see :func:`are_apart`.
        spread: the amount by which residual covariances lower the bound; 0 if ``log_density`` includes it.
    """

    roots: Mapping[str, Float[Array, "_ M N"]]
    terms: tuple[Term, ...]
    factorised: Bool[Array, ""]
    spread: Float[Array, ""]
    outputs: tuple[int, ...] = static()
    sparse: str = static()
    apart: bool = static()

    @classmethod
    def of(cls, sites: Sequence[Site], terms: Sequence[Term], sparse: str, block: int = 1) -> Latents:
        """The latents of sites, with the data that depend on these sites."""
        sites = sorted(sites, key=lambda site: site.name)  # the order of the keys of a pytree
        sparse = sparse if any(site.conditional is not None for site in sites) else "exact"
        spread = jnp.zeros((), sites[0].prior.X.dtype)
        if sparse != "exact" and block > 1:
            sparse, spread = "exact", linalg.total(_spread(sites, term, block) for term in terms)
        roots, factorised = zip(*(site.root() for site in sites), strict=True)
        named = {site.name: A for site, A in zip(sites, roots, strict=True)}
        outputs = tuple(site.outputs for site in sites)
        good = jnp.all(jnp.stack(factorised))
        return cls(named, tuple(terms), good, spread, outputs, sparse, are_apart(sites, terms))

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """For each site, the number of outputs ``J``, and the number ``M`` of entries of ``v`` for each output."""
        return {name: (J, A.shape[1]) for J, (name, A) in zip(self.outputs, self.roots.items(), strict=True)}

    @property
    def gaussian(self) -> bool:
        """Whether noise is Gaussian."""
        return all(term.gaussian for term in self.terms)

    @property
    def zero(self) -> Float[Array, "B R"]:
        """The start of the search for the best ``v``."""
        shapes, dtype = list(self.shapes.values()), next(iter(self.roots.values())).dtype
        return jnp.zeros(shapes[0] if self.apart else (1, sum(J * M for J, M in shapes)), dtype)

    def split(self, v: Float[Array, "B R"]) -> dict[str, Float[Array, "J M"]]:
        """``v`` of each site."""
        if self.apart:
            return {next(iter(self.roots)): v}
        by_site, first = {}, 0
        for name, (J, M) in self.shapes.items():
            by_site[name], first = v[0, first : first + J * M].reshape(J, M), first + J * M
        return by_site

    def at(self, v: Float[Array, "B R"]) -> list[Float[Array, "N K"]]:
        """The means of the marginals of each term."""
        return self.means(self.split(v))

    def means(self, own: Mapping[str, Float[Array, "J M"]]) -> list[Float[Array, "N K"]]:
        """The means of the marginals of each term, from the ``v`` of each site."""
        outputs, means = {}, []
        for name, v in own.items():
            A = self.roots[name]
            outputs[name] = matmul(v, A[0]) if len(A) == 1 else einsum("jmn,jm->jn", A, v)
        for term in self.terms:
            f = term.marginals
            means.append(_as_columns(f.loc) + sum(part(outputs[part.site]) for part in f.parts))
        return means

    def log_density(self, fs: list[Float[Array, "_ _"]]) -> Float[Array, ""]:
        """``log p(y | v)``, from the means of the marginals."""
        total = jnp.zeros((), self.zero.dtype)
        for term, f in zip(self.terms, fs, strict=True):
            total += jnp.sum(term.given(f, self.sparse).log_prob(term.value))
        return total

    def objective(self, v: Float[Array, "B R"]) -> Float[Array, ""]:
        """``-log p(y, v)``, without the constant of the normal density."""
        return jnp.sum(v * v) / 2 - self.log_density(self.at(v))

    def slope(self, v: Float[Array, "B R"]) -> Float[Array, "B R"]:
        """The gradient of :meth:`objective`."""
        return jax.grad(self.objective)(v)

    def hessian(self, v: Float[Array, "B R"]) -> Float[Array, "B R R"]:
        """The Hessian of :meth:`objective`."""
        fs, eye = self.at(v), jnp.eye(self.zero.shape[1], dtype=v.dtype)
        H = jnp.broadcast_to(eye, (*self.zero.shape, self.zero.shape[1]))
        for i, term in enumerate(self.terms):
            H = H - (self._apart if self.apart else self._together)(term, self.curvature(fs, i))
        return H

    def curvature(self, fs: list[Float[Array, "_ _"]], i: int) -> Float[Array, "N K *L"]:
        """The second derivatives of a term by its means: for each row, or for each row and output if :attr:`apart`."""
        slope = jax.grad(self.log_density)
        own = lambda f: slope([*fs[:i], f, *fs[i + 1 :]])[i]  # noqa: E731
        if self.apart:
            return jax.jvp(own, (fs[i],), (jnp.ones_like(fs[i]),))[1]
        along = lambda e: jax.jvp(own, (fs[i],), (jnp.broadcast_to(e, fs[i].shape),))[1]  # noqa: E731
        return jax.vmap(along, out_axes=2)(jnp.eye(fs[i].shape[1], dtype=fs[i].dtype))

    def design(self, term: Term) -> Float[Array, "B R E"]:
        """The derivatives of a term's means by ``v``. ``E`` counts rows if :attr:`apart`, otherwise all entries."""
        if self.apart:
            (part,) = term.marginals.parts
            A = part.taken(self.roots[part.site])
            return jnp.broadcast_to(A * part.weights.T[:, None], (len(self.zero), *A.shape[1:]))
        parts, columns = {part.site: part for part in term.marginals.parts}, []
        for name, (J, M) in self.shapes.items():
            if name in parts:
                A = parts[name].taken(self.roots[name])
                each = jnp.broadcast_to(A, (J, *A.shape[1:]))
                weights = jnp.broadcast_to(parts[name].dense(), (A.shape[-1], term.columns, J))
                columns.append(einsum("jmn,nkj->jmnk", each, weights).reshape(J * M, -1))
            else:
                columns.append(jnp.zeros((J * M, len(term.marginals) * term.columns), self.zero.dtype))
        return jnp.concatenate(columns)[None]

    def _apart(self, term: Term, curvature: Float[Array, "N D"]) -> Float[Array, "D M M"]:
        (part,) = term.marginals.parts
        A, weights = part.taken(self.roots[part.site]), (jnp.square(part.weights) * curvature).T
        A = A if len(A) > 1 else A[0]
        return weighted_product(A, weights, A)

    def _together(self, term: Term, curvature: Float[Array, "N K K"]) -> Float[Array, "1 R R"]:
        parts, blocks = {part.site: part for part in term.marginals.parts}, []
        for a in self.shapes:
            blocks.append([self._block(parts.get(a), parts.get(b), a, b, curvature) for b in self.shapes])
        return jnp.block(blocks)[None]

    def _block(
        self, a: AffineMap | None, b: AffineMap | None, of_a: str, of_b: str, curvature: Float[Array, "N K K"]
    ) -> Float[Array, "R S"]:
        (J, M), (K, L) = self.shapes[of_a], self.shapes[of_b]
        if a is None or b is None:
            return jnp.zeros((J * M, K * L), curvature.dtype)
        between = einsum("nkj,nkl,nli->jin", a.dense(), curvature, b.dense())
        A, B = a.taken(self.roots[of_a]), b.taken(self.roots[of_b])

        def row(of_output: tuple[Array, Array]) -> Array:
            return weighted_product(*of_output, B if len(B) > 1 else B[0])  # [K, M, L]

        each = jnp.broadcast_to(A, (J, *A.shape[1:])), between
        rows = row((each[0][0], between[0]))[None] if J == 1 else lax.map(row, each)
        return rows.transpose(0, 2, 1, 3).reshape(J * M, K * L)

    # -- the best v --------------------------------------------------------------------------------------------------

    def law(self) -> tuple[Law, Bool[Array, ""]]:
        """The law of ``v`` given data, exact or approximate, and whether it was found."""
        if self.gaussian:
            v, solved = self.zero, jnp.asarray(True)
        else:
            v, good = best(self)
            solved = good == 1
        L, factorised = guarded_factor(self.hessian(v), _PRECISION, 0.0, for_draws=False)
        if self.gaussian:  # one step is enough, because the objective is quadratic
            v = -_solve(L, self.slope(v))
        return Law(v, L), solved & factorised & self.factorised

    def log_evidence(self) -> Float[Array, ""]:
        """``log p(y)``; minus infinity if the law was not found."""
        law, solved = self.law()
        log_det = jnp.sum(jnp.log(linalg.diagonal(law.L)))
        return jnp.where(solved, -self.objective(law.mean) - log_det - self.spread, -jnp.inf)

    def log_weights(self, key: PRNGKeyArray, num_draws: int) -> Float[Array, " {num_draws}"]:
        """Log importance weights of draws from the law; the mean weight is ``p(y)`` divided by its approximation."""
        law, solved = self.law()
        noise = random.normal(key, (num_draws, *law.mean.shape), law.mean.dtype)

        def one(noise: Array) -> Array:
            v = law.mean + linalg.solve_lower(law.L, noise[..., None], transpose=True)[..., 0]
            return self.objective(law.mean) - self.objective(v) + jnp.sum(noise * noise) / 2

        return jnp.where(solved, lax.map(one, noise), jnp.nan)


def best(latents: Latents) -> tuple[Float[Array, "B R"], Float[Array, ""]]:
    """The ``v`` with the least objective, and 1 if it was found. Derivatives use the implicit function theorem."""
    objective, constants = _hoisted(latents.objective, latents.zero)
    hessian, more = _hoisted(latents.hessian, latents.zero)

    @jax.custom_jvp
    def solve(constants: tuple, more: tuple) -> tuple[Array, Array]:
        # A fixed start without any symmetry: at v = 0, a product of two outputs has no slope.
        start = jnp.sin(1 + jnp.arange(latents.zero.size, dtype=latents.zero.dtype)).reshape(latents.zero.shape) / 100
        return _newton(lambda v: objective(v, constants), lambda v: hessian(v, more), start)

    @solve.defjvp
    def implicit(primals: tuple, tangents: tuple) -> tuple[tuple, tuple]:
        v, good = solve(*primals)
        _, change = jax.jvp(lambda constants: jax.grad(objective)(v, constants), primals[:1], tangents[:1])
        L, _ = guarded_factor(hessian(v, primals[1]), _PRECISION, 0.0, for_draws=False)
        return (v, good), (-_solve(L, change), jnp.zeros_like(good))

    return solve(constants, more)


def _hoisted(function: Callable[[Array], Array], x: Array) -> tuple[Callable[[Array, tuple], Array], tuple]:
    """A function of ``x`` and of all arrays that it used, which are then not in a closure; and these arrays."""
    traced: Any = jax.make_jaxpr(function)(x)
    return lambda x, constants: eval_jaxpr(traced.jaxpr, constants, x)[0], tuple(map(jnp.asarray, traced.consts))


def _newton(
    objective: Callable[[Array], Array], hessian: Callable[[Array], Array], start: Float[Array, "B R"]
) -> tuple[Float[Array, "B R"], Float[Array, ""]]:
    """Newton's steps with a damping that grows if they fail (Levenberg and Marquardt), and 1 if they converged.

    A step is good if it lowers the objective. If terms are large, rounding hides the change of the objective near the
    end. A short step is then good if the next step would be shorter.
    """
    rounding = float(jnp.finfo(start.dtype).eps)
    enough = rounding**0.6  # for the squared length of a step; the next step would have about its square
    eye, both = jnp.eye(start.shape[1], dtype=start.dtype), jax.value_and_grad(objective)

    def going(state: tuple) -> Array:
        *_, left, count = state
        return (left > enough) & (count < MOST_STEPS)

    def step(state: tuple) -> tuple:
        v, value, slope, damping, _, count = state
        L = jnp.linalg.cholesky(hessian(v) + damping * eye, symmetrize_input=False)
        move = -_solve(L, slope)
        left = -jnp.sum(move * slope)
        there, next_slope = both(v + move)
        lower = there <= value + 10 * rounding * (1 + jnp.abs(value))
        next_left = jnp.sum(next_slope * _solve(L, next_slope))
        short = (left <= enough) | ((left < 1e-4 * (1 + jnp.abs(value))) & (next_left <= left))
        good = jnp.isfinite(there) & jnp.all(jnp.isfinite(next_slope)) & (lower | short)
        taken, before = (v + move, there, next_slope), (v, value, slope)
        v, value, slope = jax.tree.map(lambda x, y: jnp.where(good, x, y), taken, before)
        ended = good & (damping <= 1)
        less = jnp.where(damping > 1e-2, damping / 10, 0)
        damping = jnp.where(good, less, jnp.maximum(10 * damping, 1))
        return v, value, slope, damping, jnp.where(ended, left, jnp.inf), count + 1

    zero = jnp.zeros((), start.dtype)
    v, *_, left, _ = lax.while_loop(going, step, (start, *both(start), zero, zero + jnp.inf, 0))
    return v, (left <= enough).astype(start.dtype)


def _spread(sites: Sequence[Site], term: Term, block: int) -> Float[Array, ""]:
    """``sum_b log |I + beta_b^1/2 R_b beta_b^1/2| / 2`` over blocks and sources, with residual covariances ``R``.

    :class:`~gpzoo.likelihoods.Gaussian` has the derivation for a diagonal ``V``. With blocks of rows, the blocks of the
    best ``V`` are ``(I + T_b)^-1`` (Bui and Titsias 2025, *Sparse Gaussian processes: structured approximations and
    power-EP revisited*, arXiv 2507.02377). The sources are the columns of the value; if the value mixes outputs of
    sites, they are these outputs.
    """
    m, seen = term.marginals, term.seen()
    N, columns = len(m), 1 if m.ndim == 1 else m.shape[1]
    noise = jnp.asarray(term.likelihood.noise, m.dtype)
    precision = jnp.broadcast_to(1 / (noise[:, None] if m.ndim == noise.ndim == 1 else noise), (N, columns))
    precision = precision if seen is None else jnp.where(seen, precision, 0)
    rows = jnp.arange(-(-N // block) * block).reshape(-1, block)
    inside, rows = rows < N, jnp.minimum(rows, N - 1)
    beta, total, spread = jnp.where(inside[..., None], precision[rows], 0), None, jnp.zeros((), m.dtype)
    sparse = {site.name: site for site in sites if site.conditional is not None}
    for part in m.parts:
        if part.site not in sparse:
            continue
        R = sparse[part.site].residual_covariances(part.numbers[rows])
        w = jnp.broadcast_to(part.dense(), (N, columns, part.outputs))[rows]
        if m.loading is None:
            R = jnp.broadcast_to(R, (len(R), part.outputs, *R.shape[2:]))
            own = einsum("gbkj,gckj,gjbc->gkbc", w, w, R)
            total = own if total is None else total + own
        else:
            spread += _log_det(einsum("gbkj,gbk->gbj", jnp.square(w), beta), R)
    if total is not None:
        spread += _log_det(beta, total)
    return spread / 2


def _log_det(beta: Float[Array, "G B J"], R: Float[Array, "G _ B B"]) -> Float[Array, ""]:
    scale = jnp.sqrt(jnp.moveaxis(beta, -1, 1))
    T = scale[..., :, None] * R * scale[..., None, :]
    L = jnp.linalg.cholesky(T + jnp.eye(T.shape[-1], dtype=T.dtype), symmetrize_input=False)
    return 2 * jnp.sum(jnp.log(linalg.diagonal(L)))


def log_evidence(sites: Sequence[Site], terms: Sequence[Term], sparse: str, block: int = 1) -> Float[Array, ""]:
    """``log p(y)`` of data that depend on the sites."""
    if all(term.gaussian for term in terms) and all(site.conditional is None for site in sites):
        return _gaussian(sites, terms)
    return Latents.of(sites, terms, sparse, block).log_evidence()


def connected_to(sites: Sequence[Site], terms: Sequence[Term], names: frozenset[str]) -> tuple[list[Site], list[Term]]:
    """The sites that share data with the sites ``names``, directly or through other sites, and these data."""
    while True:
        own = [term for term in terms if term.marginals.sites & names]
        more = names.union(*(term.marginals.sites for term in own))
        if more == names:
            return [site for site in sites if site.name in names], own
        names = more


def are_apart(sites: Sequence[Site], terms: Sequence[Term]) -> bool:
    """Whether there is only one site, and each output of the data depends on one output of this site."""
    return len(sites) == 1 and all(term.apart for term in terms)


class DataCovariance(NamedTuple):
    """Data with Gaussian noise, and the covariance of these data.

    If the outputs are independent (:func:`are_apart`), ``y`` has one row with ``E`` entries for each of ``K`` outputs.
    Otherwise, ``y`` has one row with all ``E`` entries of the data.

    Attributes:
        y: data minus their mean, ``[K, E]``; 0 if not observed.
        noise: variances of the noise; 1 if not observed.
        covariance: covariance of the data, with the noise: one matrix for all rows of ``y``, or one for each row.
        count: number of observed entries.
    """

    y: Float[Array, "K E"]
    noise: Float[Array, "_ E"]
    covariance: Float[Array, "_ E E"]
    count: Float[Array, ""] | float


def covariance_of_data(sites: Sequence[Site], terms: Sequence[Term]) -> DataCovariance:
    """The covariance of data with Gaussian noise, for sites without inducing variables."""
    residuals, noises, seens, count = [], [], [], 0.0
    for term in terms:
        residual, noise, seen = residual_of(term)
        count += residual.size if seen is None else jnp.sum(jnp.broadcast_to(seen, residual.shape), dtype=noise.dtype)
        residuals.append(residual)
        noises.append(noise)
        seens.append(seen)
    if are_apart(sites, terms):
        covariance = _apart(sites[0], terms, seens)
        y, s = _joined(residuals), _joined(noises)
    else:
        covariance = _together(sites, terms, seens)
        noises = list(map(jnp.broadcast_to, noises, map(jnp.shape, residuals)))
        y, s = (jnp.concatenate(list(map(jnp.ravel, x)))[None] for x in (residuals, noises))
    return DataCovariance(y, s, covariance + s[..., None] * jnp.eye(s.shape[-1], dtype=s.dtype), count)


def _gaussian(sites: Sequence[Site], terms: Sequence[Term]) -> Float[Array, ""]:
    """The density of data with Gaussian noise."""
    data = covariance_of_data(sites, terms)
    y = data.y.T[None] if len(data.covariance) == 1 else data.y[..., None]
    return jnp.sum(log_normal(y, data.covariance)) - LOG_2PI / 2 * data.count


def residual_of(term: Term) -> tuple[Float[Array, "N K"], Float[Array, "N _"], Bool[Array, "_ _"] | None]:
    """Data minus their mean, noise variances, and which entries were observed.

    An entry that was not observed has the value 0 and the noise variance 1.
    """
    likelihood, mean = term.likelihood, _as_columns(term.marginals.loc)
    y, seen = term.value, term.seen()
    if seen is not None:  # the entries that a mask leaves out may be NaN
        y = jnp.where(seen if jnp.ndim(y) == 2 else seen[:, 0], y, jnp.zeros_like(y))
    residual = _as_columns(likelihood.checked(y)).astype(mean.dtype) - mean
    noise = jnp.asarray(likelihood.noise, mean.dtype)
    noise = noise[:, None] if term.marginals.ndim == 1 and noise.ndim == 1 else noise
    noise = jnp.broadcast_to(noise, (len(mean), noise.shape[-1] if noise.ndim else 1))
    if seen is not None:
        residual, noise = jnp.where(seen, residual, 0), jnp.where(seen, noise, 1)
    return residual, noise, seen


def _apart(site: Site, terms: Sequence[Term], seens: Sequence[Array | None]) -> Float[Array, "_ E E"]:
    """The covariance of one output of a site at all rows of all data, for each output that differs from others."""
    K, weights, numbers = site.covariance(), [], []
    for term, seen in zip(terms, seens, strict=True):
        (part,) = term.marginals.parts
        w = jnp.broadcast_to(part.weights, (len(term.marginals), part.weights.shape[1]))
        weights.append(w if seen is None else jnp.where(seen, w, 0))
        numbers.append(part.numbers)
    if not (len(terms) == 1 and terms[0].marginals.parts[0].all_rows):
        rows = jnp.concatenate(numbers)
        K = K[:, rows[:, None], rows]
    w = _joined(weights)
    return w[:, :, None] * w[:, None, :] * K


def _together(sites: Sequence[Site], terms: Sequence[Term], seens: Sequence[Array | None]) -> Float[Array, "1 E E"]:
    """The covariance of all entries of all data."""
    total: Any = 0
    for site in sites:
        weights, numbers = [], []
        for term, seen in zip(terms, seens, strict=True):
            m = term.marginals
            columns = 1 if m.ndim == 1 else m.shape[1]
            part = next((part for part in m.parts if part.site == site.name), None)
            w = jnp.zeros((1, columns, site.outputs), m.dtype) if part is None else part.dense()
            w = jnp.broadcast_to(w, (len(m), columns, site.outputs))
            w = w if seen is None else jnp.where(seen[..., None], w, 0)
            rows = jnp.zeros(len(m), int) if part is None else part.numbers
            weights.append(w.reshape(-1, site.outputs))
            numbers.append(jnp.repeat(rows, columns))
        w, rows, at = jnp.concatenate(weights), jnp.concatenate(numbers), site.covariance()
        if not (len(terms) == 1 and columns == 1 and part is not None and part.all_rows):
            at = at[:, rows[:, None], rows]
        total = total + (matmul(w, w.T) * at[0] if len(at) == 1 else einsum("ej,fj,jef->ef", w, w, at))
    return total[None]


def _as_columns(x: Float[Array, "N *K"]) -> Float[Array, "N K"]:
    return x if x.ndim == 2 else x[:, None]


def _joined(xs: Sequence[Float[Array, "_ _"]]) -> Float[Array, "K _"]:
    """Arrays one below the other, broadcast to the columns of the widest array, and transposed."""
    columns = max(x.shape[1] for x in xs)
    return jnp.concatenate([jnp.broadcast_to(x, (len(x), columns)) for x in xs]).T


def _solve(L: Float[Array, "B R R"], b: Float[Array, "B R"]) -> Float[Array, "B R"]:
    """``(L L^T)^-1 b``."""
    return linalg.solve_lower(L, linalg.solve_lower(L, b[..., None]), transpose=True)[..., 0]
