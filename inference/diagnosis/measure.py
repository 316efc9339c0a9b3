"""What is computed of a trained model at some rows, once and in one compiled program, for everything said about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro.distributions.kl import kl_divergence
from numpyro.distributions.util import scale_and_mask

from gpzoo.inducing.kuu_kuf import Kuu
from gpzoo.inference.asking.ask import identity_of
from gpzoo.inference.asking.trained import Trained
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.programs.arrays import split_arrays
from gpzoo.inference.programs.enumeration import scored
from gpzoo.inference.programs.gp_sites import Bound
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.runs import Runs, Trace, entries_of, observed, run, terms_per_datum, unmasked
from gpzoo.likelihoods import Likelihood
from gpzoo.likelihoods.answers import answers
from gpzoo.linalg.operators import matmul
from gpzoo.posteriors.conditional import conditional_of
from gpzoo.posteriors.posterior import InducingPosterior

#: Inducing variables beyond which the matrices of a site are not looked at whole: their eigenvalues take seconds.
_MOST_INDUCING = 1000

#: Rows at which it is asked whether a kernel knows fractions of a number.
_FEW_ROWS = 100

#: Draws over which the bound is averaged, where the program draws anything.
_PARTICLES = 10


@dataclass(frozen=True)
class Process:
    """A GP site at the rows; ``[N]`` or ``[N, D]`` throughout.

    Attributes:
        mean: of the posterior.
        prior_mean: the program's mean function.
        variance: of the posterior.
        prior_variance: of the prior.
        residual: variance that is left given ``u``; ``None`` on a grid.
        outside: number of rows outside the grid; ``None`` for inducing points.
        num_inducing: number of inducing variables ``M``.
        covariance: prior covariance of ``u``, ``[M, M]`` or ``[D, M, M]``; ``None`` on a grid, or where ``M`` is large.
        eigenvalues: of the covariance of whitened ``u``, ``[D, M]``: 1 where the data say nothing; ``None`` where they
            are not computed.
        between: number of inducing points that lie between whole numbers, of which alone the kernel knows.
    """

    mean: np.ndarray
    prior_mean: np.ndarray
    variance: np.ndarray
    prior_variance: np.ndarray
    residual: np.ndarray | None
    outside: int | None
    num_inducing: int
    covariance: np.ndarray | None
    eigenvalues: np.ndarray | None
    between: int


@dataclass(frozen=True)
class Outcomes:
    """A data site at the rows.

    Attributes:
        value: the data, ``[N, ...]``; NaN in entries of a row that are not observed.
        observed: rows of which something is observed, and not censored, ``[N]``.
        kind: ``"binary"``, ``"classes"``, ``"integers"`` (counts) or ``"numbers"``.
        likelihood: name of its distribution.
        noise: variance of Gaussian noise, averaged over rows and outputs; ``None`` for other distributions.
        ranked: whether another distribution has the probability of a smaller outcome in closed form.
    """

    value: np.ndarray
    observed: np.ndarray
    kind: str
    likelihood: str
    noise: float | None
    ranked: bool = False

    @property
    def judged_by_draws(self) -> bool:
        """Whether the probability of a smaller outcome has no closed form."""
        return self.kind in ("integers", "numbers") and self.noise is None and not self.ranked


@dataclass(frozen=True)
class Measured:
    """What is known of a trained model at the rows.

    Attributes:
        terms: contribution of every site to the bound at these rows, in nats.
        processes: latent GP sites in the program's order.
        outcomes: data sites that have a term for each datum.
        starts: what the program's own parameters are before training, by name.
    """

    terms: Mapping[str, float]
    processes: Mapping[str, Process]
    outcomes: Mapping[str, Outcomes]
    starts: Mapping[str, Any]


def measure(rng_key: Array, trained: Trained, params: Mapping[str, Any], args: tuple, kwargs: dict) -> Measured:
    """Run guide and program at the rows.

    Args:
        rng_key: of draws and sampled views.
        trained: one training.
        params: its parameters, checked.
        args: positional arguments of the program, checked.
        kwargs: keyword arguments, checked.
    """
    guide: InducingGuide = trained.guide
    arrays, static = split_arrays(kwargs)
    name = ("measure", identity_of(static))
    if name not in trained._compiled:
        trained._compiled[name] = _Program(trained.model, guide, static)
    program: Any = trained._compiled[name]
    return program(rng_key, dict(params), args, arrays)


class _Program:
    """The compiled program, and what tracing it showed of the sites."""

    def __init__(self, model: Any, guide: InducingGuide, static: dict) -> None:
        self.model, self.guide, self.static = model, guide, static
        self.kinds: dict[str, tuple[str, str, bool]] = {}
        self.order: tuple[str, ...] = ()
        self.compiled = jax.jit(self._measured)

    def __call__(self, *given: Any) -> Measured:
        """The numbers on the host."""
        found = jax.tree.map(np.asarray, self.compiled(*given))
        whole = ("outside", "num_inducing", "between")
        processes = {}
        for name in self.order:
            site = found["processes"][name]
            processes[name] = Process(**site | {key: None if site[key] is None else int(site[key]) for key in whole})
        outcomes = {}
        for name, site in found["outcomes"].items():
            noise = None if site["noise"] is None else float(site["noise"])
            kind, likelihood, ranked = self.kinds[name]
            outcomes[name] = Outcomes(site["value"], site["observed"], kind, likelihood, noise, ranked)
        terms = {name: float(term) for name, term in found["terms"].items()}
        return Measured(terms, processes, outcomes, found["starts"])

    def _measured(self, key: Array, params: dict, args: tuple, arrays: dict) -> dict[str, Any]:
        kwargs = arrays | self.static
        once = partial(self._run, params=params, args=args, kwargs=kwargs)
        keys, views = named_key(key, "bound"), named_key(key, "views")
        if self.guide.draws_anything:
            particles, posteriors, outcomes = jax.vmap(once)(random.split(keys, _PARTICLES))
            terms = jax.tree.map(jnp.mean, particles)
            # The sites are those of the first draw.
            posteriors, outcomes = jax.tree.map(lambda x: x[0], (posteriors, outcomes))
        else:
            terms, posteriors, outcomes = once(keys)
        start = run(named_key(key, "start"), args, kwargs, model=self.model, values={}, complete=False).model
        return {
            "terms": terms,
            "processes": {n: _process(_with_views(x, named_key(views, n))) for n, x in posteriors.items()},
            "outcomes": outcomes,
            "starts": {name: site["value"] for name, site in start.items() if site["type"] == "param"},
        }

    def _run(self, key: Array, params: dict, args: tuple, kwargs: dict) -> tuple[dict, dict, dict]:
        """Terms of the bound, posteriors of GP sites, and data sites, as in a step of the training."""
        of = partial(run, key, args, kwargs, guide=self.guide, values=params, representation=Bound())
        found = of(model=scored(self.model, self.guide.sites))
        fns = {name: site.get("fn") for name, site in found.guide.items()}
        posteriors = {name: fn for name, fn in fns.items() if isinstance(fn, InducingPosterior)}
        # Where discrete sites are summed out, data have no distribution of their own.
        data = terms_per_datum((of(model=self.model) if self.guide.sites.enumerated else found).model)
        self.order = tuple(posteriors)
        self.kinds = {
            name: (kind_of(site), type(unmasked(site["fn"])).__name__, _ranked(site)) for name, site in data.items()
        }
        return _terms(found), posteriors, {name: _outcomes(site) for name, site in data.items()}


def _terms(found: Runs) -> dict[str, Array]:
    """The contribution of every site to the bound, as in :class:`numpyro.infer.TraceMeanField_ELBO`."""
    terms = {}
    for name, site in found.model.items():
        if site["type"] == "sample":
            terms[name] = log_prob(site) if site["is_observed"] else _less_divergence(found.guide[name], site)
    alone = {n: site for n, site in found.guide.items() if site["type"] == "sample" and n not in found.model}
    return terms | {name: -log_prob(site) for name, site in alone.items()}


def _less_divergence(ours: dict[str, Any], theirs: dict[str, Any]) -> Array:
    try:
        divergence = kl_divergence(ours["fn"], theirs["fn"])
    except NotImplementedError:
        return log_prob(theirs) - log_prob(ours)
    return -jnp.sum(scale_and_mask(divergence, scale=ours["scale"]))


def log_prob(site: Mapping[str, Any]) -> Array:
    """The log density of a site's value, scaled as its plates say."""
    fn: Any = site["fn"]
    return jnp.sum(scale_and_mask(fn.log_prob(site["value"]), scale=site["scale"]))


def _with_views(posterior: InducingPosterior, key: Array) -> InducingPosterior:
    """The posterior, whose kernel's sampled views are drawn, the same for all rows."""
    if not posterior.prior.samples_views:
        return posterior
    given: Any = posterior
    options = {"whiten": given.whiten, "site": given.site}
    prior = given.prior.with_fixed_views(key)
    return InducingPosterior(conditional_of(prior, given.inducing, given.form, **options), given.u_mean, given.form)


def _process(posterior: InducingPosterior) -> dict[str, Any]:
    conditional, prior = posterior.conditional, posterior.prior
    mean, variance = posterior.marginals()
    shape = mean.shape
    residual = None if conditional.deterministic else jnp.broadcast_to(posterior.marginal_parts()[2], shape)
    outside = None if (outside := conditional.outside) is None else jnp.sum(outside)
    small = conditional.num_inducing <= _MOST_INDUCING and not conditional.deterministic
    return {
        "mean": mean,
        "prior_mean": jnp.broadcast_to(prior.mean, shape),
        "variance": variance,
        "prior_variance": jnp.broadcast_to(prior.variance, shape),
        "residual": residual,
        "outside": outside,
        "num_inducing": jnp.asarray(conditional.num_inducing),
        "covariance": _dense(Kuu(conditional.inducing, prior.kernel)) if small else None,
        "eigenvalues": _eigenvalues(posterior) if small else None,
        "between": _between(posterior),
    }


def _between(posterior: InducingPosterior) -> Array:
    """See :attr:`Process.between`: the kernel is the same at the point and where its numbers are rounded."""
    X, inducing, kernel = posterior.prior.X, posterior.inducing, posterior.prior.kernel
    Z = None if posterior.conditional.deterministic else inducing.points()
    if Z is None or X.ndim != 2 or Z.ndim != 2:
        return jnp.zeros((), int)
    whole = jnp.all(X == jnp.round(X), axis=0)
    moved = jnp.where(whole, jnp.round(Z), Z)
    same = jnp.allclose(kernel(Z, X[:_FEW_ROWS]), kernel(moved, X[:_FEW_ROWS]), rtol=1e-6)
    return jnp.where(same, jnp.sum(jnp.any(moved != Z, axis=1)), 0)


def _eigenvalues(posterior: InducingPosterior) -> Array:
    """Of the covariance of whitened ``u``, ``[D, M]`` and ascending."""
    _, form = posterior._q()
    root = _dense(form.root())
    if not posterior.whiten:
        root = matmul(_dense(posterior.conditional.L_inverse), root)
    return jnp.linalg.eigvalsh(matmul(root, root.mT))


def _dense(matrix: Any) -> Array:
    return matrix.dense() if hasattr(matrix, "dense") else matrix


def without_data(trace: Trace) -> list[str]:
    """Names of likelihoods that have no data."""
    sites = {name: site for name, site in trace.items() if site["type"] == "sample" and not site["is_observed"]}
    return [name for name, site in sites.items() if isinstance(unmasked(site["fn"]), Likelihood)]


def places_of_data(trace: Trace, args: tuple) -> dict[str, int]:
    """Which positional argument is the data of each data site; sites with other data are left out."""
    return {name: i for name, site in terms_per_datum(trace).items() for i, x in enumerate(args) if site["value"] is x}


def _outcomes(site: dict[str, Any]) -> dict[str, Any]:
    fn: Any = site["fn"]
    value = jnp.asarray(site["value"])
    rows = jnp.all(observed(fn, value).reshape(len(value), -1), axis=1)
    value, fn = entries_of(fn, value), answers(unmasked(fn))
    rows = rows if fn.exact is None else rows & fn.exact
    noise = None if fn.noise is None else jnp.mean(jnp.broadcast_to(fn.noise, value.shape))
    return {"value": value, "observed": rows, "noise": noise}


def _ranked(site: dict[str, Any]) -> bool:
    fn = answers(unmasked(site["fn"]))
    return fn.noise is None and fn.cdf(site["value"]) is not None


def kind_of(site: dict[str, Any]) -> str:
    """See :attr:`Outcomes.kind`."""
    return answers(unmasked(site["fn"])).kind
