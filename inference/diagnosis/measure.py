"""Numbers of a trained model at some rows, for all parts of a diagnosis, computed once in one compiled program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro import handlers

from gpzoo.inducing.kuu_kuf import Kuu
from gpzoo.inference.bounds.elbo import GaussianProcessELBO
from gpzoo.inference.fitted.map_batches import Batch, BatchFunction, BoundModel, Static
from gpzoo.inference.programs.gp_sites import Bound
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.runs import Trace, entries_of, observed, run, terms_per_datum, unmasked
from gpzoo.likelihoods import Likelihood
from gpzoo.likelihoods.answers import as_predictive
from gpzoo.linalg.operators import matmul
from gpzoo.posteriors.conditional import conditional_of
from gpzoo.posteriors.posterior import InducingPosterior

#: With more inducing variables, the whole matrices of a site are not used: their eigenvalues take seconds.
_MOST_INDUCING = 1000

#: Number of rows up to which compiling takes longer than computing.
_FEW_TO_COMPILE = 1000

#: Number of inducing points at which to check whether a kernel rounds a column.
_FEW_POINTS = 100

#: Share of a kernel's largest value by which categories differ, at least. A column that changes less has no effect.
_NO_EFFECT = 1e-3

#: Draws over which the bound is averaged, if the program draws anything.
_PARTICLES = 10


@dataclass(frozen=True)
class Process:
    """A GP site at the rows. Arrays are ``[N]`` or ``[N, D]`` unless another shape is given.

    Attributes:
        mean: mean of the posterior.
        prior_mean: the program's mean function.
        variance: variance of the posterior.
        prior_variance: variance of the prior.
        residual: variance of the prior given ``u``; ``None`` on a grid.
        outside: number of rows outside the grid, a mean over outputs with inputs of their own; ``None`` for points.
        num_inducing: number of inducing variables ``M``.
        covariance: prior covariance of ``u``, ``[M, M]`` or ``[D, M, M]``; ``None`` on a grid, or if ``M`` is large.
        eigenvalues: eigenvalues of the covariance of whitened ``u``, ``[D, M]``. An eigenvalue is 1 in a direction
            about which the data have no information. ``None`` if they are not computed.
        between: number of inducing points between whole numbers, in columns of which the kernel only distinguishes
            whole numbers.
    """

    mean: np.ndarray
    prior_mean: np.ndarray
    variance: np.ndarray
    prior_variance: np.ndarray
    residual: np.ndarray | None
    outside: float | None
    num_inducing: int
    covariance: np.ndarray | None
    eigenvalues: np.ndarray | None
    between: int


@dataclass(frozen=True)
class Outcomes:
    """A data site at the rows.

    Attributes:
        value: the data, ``[N, ...]``; NaN where an entry of a row is not observed.
        observed: rows with an entry that is observed and not censored, ``[N]``.
        kind: ``"binary"``, ``"classes"``, ``"integers"`` (counts) or ``"numbers"``.
        likelihood: name of the distribution of the data.
        noise: variance of Gaussian noise, averaged over rows and outputs; ``None`` for other distributions.
        ranked: whether the probability of a smaller outcome has a closed form, for distributions that are not Gaussian.
    """

    value: np.ndarray
    observed: np.ndarray
    kind: str
    likelihood: str
    noise: float | None
    ranked: bool = False

    @property
    def filled(self) -> np.ndarray:
        """``value`` in which an observed row replaces each row with NaN that a mask leaves out."""
        gone = ~self.observed & np.isnan(self.value.reshape(len(self.value), -1)).any(axis=1)
        return np.where(gone.reshape(-1, *[1] * (self.value.ndim - 1)), self.value[self.observed.argmax()], self.value)

    @property
    def judged_by_draws(self) -> bool:
        """Whether the probability of a smaller outcome has no closed form."""
        return self.kind in ("integers", "numbers") and self.noise is None and not self.ranked


@dataclass(frozen=True)
class Measured:
    """All numbers of a trained model at the rows.

    Attributes:
        terms: contribution of every site to the bound at these rows, in nats.
        processes: latent GP sites in the order of the program.
        outcomes: data sites that have a term for each row of the data.
        starts: values of the program's own parameters before training, by name, if their start is not random.
    """

    terms: Mapping[str, float]
    processes: Mapping[str, Process]
    outcomes: Mapping[str, Outcomes]
    starts: Mapping[str, Any]


class _TracedELBO(GaussianProcessELBO):
    """The bound by site, which keeps the sites of the guide's run and of the program's run."""

    runs: tuple[Any, Any]

    def _estimate(self, rng_key: Array, params: Any, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Any:
        self.runs = handlers.trace(guide), handlers.trace(model)
        return super()._estimate(rng_key, params, self.runs[1], self.runs[0], *args, **kwargs)


def measure(rng_key: Array, subject: BoundModel) -> Measured:
    """Run the guide and the program at the rows, and collect their numbers.

    Args:
        rng_key: key of draws and sampled views.
        subject: one training at the rows.
    """
    of_draw = partial(_of_draw, subject.model, subject.guide)
    at, key = subject.batch(views=named_key(rng_key, "views")), named_key(rng_key, "bound")
    few = at.count <= _FEW_TO_COMPILE
    program = subject.compiled_for(BatchFunction("measure", of_draw, draws_together=None, summary=_summary, once=few))
    computed = program(random.split(key, _PARTICLES) if subject.guide.draws_anything else key[None], at)
    numbers = jax.tree.map(lambda x: np.asarray(x) if x.ndim else x.item(), computed)
    (names, kinds), processes, outcomes = numbers["notes"].value, {}, {}
    for name in names:
        processes[name] = Process(**numbers["processes"][name])
    for name, kind in kinds.items():
        outcomes[name] = Outcomes(**numbers["outcomes"][name], **kind)
    return Measured(numbers["terms"], processes, outcomes, numbers["starts"])


def _of_draw(model: Any, guide: Any, key: Array, at: Batch) -> dict[str, Any]:
    """Terms of the bound, posteriors of GP sites, and data sites, computed as in a training step.

    ``notes`` has the names of the sites in the order of the program, and the fields of each site that are not arrays.
    """
    kwargs, bound = at.kwargs, _TracedELBO(sum_sites=False)
    # A copy, because networks write their state into this dictionary.
    losses: Any = bound.loss(key, jax.tree.map(lambda x: x, at.params), model, guide, *at.args, **kwargs)
    guide_trace, model_trace = (each.trace for each in bound.runs)
    if guide.sites.enumerated:  # if discrete sites are summed out, data have no distribution of their own
        options = {"guide": guide, "model": model, "values": at.params, "mode": Bound()}
        model_trace = run(key, at.args, kwargs, **options).model
    posteriors, outcomes, kinds = {}, {}, {}
    for name, site in guide_trace.items():
        if isinstance(site.get("fn"), InducingPosterior):
            posteriors[name] = site["fn"]
    for name, site in terms_per_datum(model_trace).items():
        if jnp.ndim(site["value"]):  # a site of one number has no rows
            outcomes[name], kinds[name] = _outcomes(site)
    terms, notes = jax.tree.map(jnp.negative, losses), Static((tuple(posteriors), kinds))
    sites = {"posteriors": posteriors, "outcomes": outcomes, "starts": _starts(model_trace)}
    return sites | {"terms": terms, "views": at.views, "notes": notes}


def _summary(numbers: dict[str, Any]) -> dict[str, Any]:
    """The mean of the bound over draws, and the sites of the first draw."""
    first: dict[str, Any] = jax.tree.map(lambda x: x[0], numbers)
    views, processes = first.pop("views"), {}
    for name, posterior in first.pop("posteriors").items():
        processes[name] = _process(_with_views(posterior, named_key(views, name)))
    return first | {"terms": jax.tree.map(jnp.mean, numbers["terms"]), "processes": processes}


def _starts(trace: Trace) -> dict[str, Any]:
    """Values of parameters before training, if the program gives them. The parameters of networks start at random."""
    starts = {}
    for name, site in trace.items():
        if site["type"] == "param" and site["args"] and site["args"][0] is not None and not callable(site["args"][0]):
            starts[name] = site["args"][0]
    return starts


def _with_views(posterior: InducingPosterior, key: Array) -> InducingPosterior:
    """The posterior with one draw of the sampled views of its kernel, the same for all rows."""
    if not posterior.prior.samples_views:
        return posterior
    own: Any = posterior
    options = {"whiten": own.whiten, "site": own.site}
    prior = own.prior.with_fixed_views(key)
    return InducingPosterior(conditional_of(prior, own.inducing, own.form, **options), own.u_mean, own.form)


def _process(posterior: InducingPosterior) -> dict[str, Any]:
    conditional, prior = posterior.conditional, posterior.prior
    mean, variance = posterior.marginals()
    shape = mean.shape
    residual = None if conditional.deterministic else jnp.broadcast_to(posterior.marginal_parts()[2], shape)
    outside = None if (outside := conditional.outside) is None else jnp.mean(outside)
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
    """See :attr:`Process.between`."""
    X, inducing, kernel = posterior.prior.X, posterior.inducing, posterior.prior.kernel
    Z = None if posterior.conditional.deterministic else inducing.points()
    if Z is None or X.ndim != 2 or Z.ndim != 2:
        return jnp.zeros((), int)
    whole = jnp.all(X == jnp.round(X), axis=0)
    moved = jnp.where(whole, jnp.round(Z), Z)
    fractions = moved != Z
    few = moved[:_FEW_POINTS]

    def is_rounded(j: Array) -> Array:
        """Whether the kernel changes with the whole number in column ``j``, and not with a fraction of it."""
        number = few[:, j]
        near, other = few.at[:, j].set(number - 0.25), few.at[:, j].set(jnp.roll(number, 1))
        # A loop computes all three by the same instructions, so equal inputs give equal bits.
        here, near_here, elsewhere = jax.lax.map(lambda points: kernel(points, few), jnp.stack([few, near, other]))
        changes = jnp.any(jnp.abs(elsewhere - here) > _NO_EFFECT * jnp.max(jnp.abs(here)))
        return changes & jnp.all(near_here == here) & jnp.all(near != few, axis=0)[j]

    def is_category(j: Array) -> Array:
        return jax.lax.cond(jnp.any(fractions[:, j]), is_rounded, lambda j: jnp.zeros((), bool), j)

    categories = jax.lax.map(is_category, jnp.arange(Z.shape[1]))
    return jnp.sum(jnp.any(fractions & categories, axis=1))


def _eigenvalues(posterior: InducingPosterior) -> Array:
    """Eigenvalues of the covariance of whitened ``u``, ``[D, M]`` and ascending."""
    _, form = posterior._q()
    root = _dense(form.root())
    if not posterior.whiten:
        root = matmul(_dense(posterior.conditional.L_inverse), root)
    return jnp.linalg.eigvalsh(matmul(root, root.mT))


def _dense(matrix: Any) -> Array:
    return matrix.dense() if hasattr(matrix, "dense") else matrix


def without_data(trace: Trace) -> list[str]:
    """Names of likelihoods that have no data."""
    names = []
    for name, site in trace.items():
        if site["type"] == "sample" and not site["is_observed"] and isinstance(unmasked(site["fn"]), Likelihood):
            names.append(name)
    return names


def places_of_data(trace: Trace, args: tuple) -> dict[str, int]:
    """The position of the argument that is the data of each data site. Sites with other data are left out."""
    places = {}
    for name, site in terms_per_datum(trace).items():
        for i, argument in enumerate(args):
            if site["value"] is argument:
                places[name] = i
    return places


def _outcomes(site: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of :class:`Outcomes`: the arrays, and the other fields."""
    fn, value = unmasked(site["fn"]), jnp.asarray(site["value"])
    rows = jnp.all(observed(site["fn"], value).reshape(len(value), -1), axis=1)
    answer = as_predictive(fn)
    ranked = answer.noise is None and answer.cdf(site["value"]) is not None
    kind = {"kind": answer.kind, "likelihood": type(fn).__name__, "ranked": ranked}
    value = entries_of(site["fn"], value)
    rows = rows if answer.exact is None else rows & answer.exact
    noise = None if answer.noise is None else jnp.mean(jnp.broadcast_to(answer.noise, value.shape))
    return {"value": value, "observed": rows, "noise": noise}, kind
