"""Modes of a guide's run: the value that each GP site has in it.

=======================  ===================  =======================================  =======================
mode                     used for             value of a GP site                       sampled views
=======================  ===================  =======================================  =======================
:class:`SiteMode`        NumPyro's own calls  a draw over all inputs together          drawn once for all rows
:class:`Marginals`       prediction           marginals, or a draw per input (*)       drawn once for all rows
:class:`Bound`           training             as Marginals, or estimated moments       drawn by the estimates
:class:`GivenMoments`    the collapsed bound  marginals around the prior's mean        not drawn
:class:`AtPriorMean`     starting values (+)  the prior's mean, where ``q(u)`` starts  not drawn
:class:`JointDraw`       export               a joint draw given a recorded ``u``      drawn once for all rows
:class:`Pathwise`        functions (+)        a function of the posterior and a key    drawn once for all rows
=======================  ===================  =======================================  =======================

:func:`~gpzoo.inference.programs.runs.run` takes the mode as an argument. In training, an objective of NumPyro's kind
calls the guide, by itself or in functions and handlers of the user, so its loss sets the mode by :func:`in_mode`. The
guide's handler samples the site from ``mode.posterior(q, use)``, whose ``value(q, key)`` is the site's value. Two more
modes are defined beside their only use: ``Weighted`` (``bounds/importance.py``) and the mode of k-hat
(``diagnosis/khat.py``). A site that no guide has, such as one whose draws come from MCMC, has ``p(f | u)`` in place of
``q``: ``fitted/given.py``.

(+) Also wherever else such a value is needed, such as in ``add_inducing`` and ``OnlineELBO``.

(*) The value is a draw if the program draws the site anywhere, which the guide finds out at set-up. It is a joint draw
over all inputs if ``InducingGuide(joint=...)`` names the site. The draw is joint over the inputs of one row of the data
if the program needs several of these inputs. With importance weights, it is joint over the ``K`` inputs of a row,
:mod:`gpzoo.inference.bounds.importance`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array, random
from jax.tree_util import Partial
from jaxtyping import Float, Integer, PRNGKeyArray

from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.rows import Layout
from gpzoo.posteriors.coupled import Coupled
from gpzoo.posteriors.earlier import Earlier
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.marginals import DrawLog, EstimatedMarginals, GaussianMarginals, VarianceParts
from gpzoo.processes.process import GaussianProcess

#: A factor of the residual variances of a site, one for each output, if the guide has one.
Residual: TypeAlias = Float[Array, "*D"] | None

# -- values, each a function of the posterior and a key ----------------------------------------------------------------


def _refusing_draws(posterior: InducingPosterior, *of: Any, **more: Any) -> GaussianMarginals:
    """Marginals that refuse to be drawn, because the program did not draw them at set-up."""
    return GaussianMarginals(*of, sites=frozenset({posterior.site}), log=DrawLog(refuse=True), **more)


def marginals(
    posterior: InducingPosterior, key: PRNGKeyArray, rows: Integer[Array, " N"] | None = None
) -> GaussianMarginals:
    """The posterior's marginals at the site's inputs, which refuse to be drawn."""
    if not posterior.shares:
        return _refusing_draws(posterior, *posterior.marginals(), key, rows=rows)
    mean, residual, shared = posterior.with_shared_noise()
    return _refusing_draws(posterior, mean, residual, key, rows=rows, shared=shared)


def predicted_marginals(
    posterior: InducingPosterior, key: PRNGKeyArray, rows: Integer[Array, " N"] | None = None
) -> GaussianMarginals:
    """:func:`marginals` without derivatives by ``q(u)``."""
    return marginals(posterior.for_many_inputs(), key, rows)


def means(
    posterior: InducingPosterior, key: PRNGKeyArray, rows: Integer[Array, " N"] | None = None
) -> GaussianMarginals:
    """:func:`marginals` with separate computations of mean and variance, so that means alone need no variances."""
    if not posterior.shares:
        return _refusing_draws(posterior, posterior.mean, posterior.variance, key, rows=rows)
    return marginals(posterior, key, rows)._with_fields(loc=posterior.mean)


def marginals_in_parts(
    posterior: InducingPosterior,
    key: PRNGKeyArray,
    rows: Integer[Array, " N"] | None = None,
    residual: Residual = None,
) -> GaussianMarginals:
    """:func:`marginals` whose variance is in two parts: one from ``q(u)``, and the residual given ``u``.

    Args:
        posterior: posterior of the site.
        key: see :func:`marginals`.
        rows: see :func:`marginals`.
        residual: a factor ``v`` of the residual variances, a number or ``[D]``, for any likelihood. With ``None``, the
            likelihood chooses the factor, :attr:`gpzoo.likelihoods.Likelihood.takes_residual`.

    Let ``q(f | u)`` have the covariance ``v R`` in place of the prior's ``R``. Then the marginal variances are
    ``a^T S a + v d``. For every ``u``, ``KL[q(f | u) || p(f | u)] = N (v - 1 - log v) / 2`` (Bui, Ashman and Turner
    2025, *Tighter sparse variational Gaussian processes*, arXiv 2502.04750). At ``v = 1``, this is the bound with
    ``p(f | u)``.
    """
    mean, inducing, left = posterior.marginal_parts()
    variance = inducing + (left if residual is None else residual * left)
    columns = (lambda x: x[:, None]) if mean.ndim == 1 else (lambda x: x)
    if residual is None:
        parts = VarianceParts(columns(inducing), columns(left))
    else:
        more = jnp.atleast_1d(residual) - 1  # v - 1 - log v without cancellation around 1
        parts = VarianceParts(columns(variance), divergence=(more - jnp.log1p(more)) / 2)
    return _refusing_draws(posterior, mean, variance, key, rows=rows, parts=(parts,))


def draw_per_input(
    posterior: InducingPosterior, key: PRNGKeyArray, rows: Integer[Array, " N"] | None = None
) -> Float[Array, "*event"]:
    """A draw of the event's shape, independent over inputs. With ``rows``, a row has the same draw in any batch."""
    mean, variance = posterior.marginals()
    return GaussianMarginals(mean, variance, key, sites=frozenset({posterior.site}), rows=rows).draws(1)[0]


class DrawnWithin(NamedTuple):
    """A draw of the event's shape, joint over the inputs of each row of the data, and independent between rows.

    Its cost grows with the square of the number of inputs of a row.

    Attributes:
        layout: which inputs belong to a row.
    """

    layout: Layout

    def __call__(
        self, posterior: InducingPosterior, key: PRNGKeyArray, rows: Integer[Array, " N"] | None = None
    ) -> Float[Array, "*event"]:
        """The draw; see :func:`draw_per_input`."""
        size, count = posterior.in_row or self.layout.count, posterior.num_inputs
        if size == 1 and posterior.in_row is None:
            return draw_per_input(posterior, key, rows)
        if posterior.conditional.deterministic:  # a function of ``u`` alone
            return posterior.as_joint().sample(key)
        if count % size:
            raise ValueError(
                f"GP site {posterior.site!r} has {count} inputs, which are not {size} for each row of the data as when "
                "its guide was set up: build a new guide for this call, or name the site in InducingGuide(joint=...)."
            )
        X, by_row = posterior.prior.X, self.layout.by_row
        X = by_row(X, int(posterior.prior.kernel.has_outputs(X)))
        if rows is not None and posterior.in_row is None:
            rows = by_row(rows)[::size]
        draw = draws_in_groups(posterior, key, X, size, rows)
        return posterior._with_loc(by_row(draw.reshape(len(draw), count), 1, back=True))


def draws_in_groups(
    posterior: InducingPosterior,
    key: PRNGKeyArray,
    X: Float[Array, "..."],
    size: int,
    rows: Integer[Array, " G"] | None = None,
) -> Float[Array, "D G {size}"]:
    """A draw of the zero-mean part of ``f``, joint within each group of ``size`` consecutive inputs.

    Args:
        posterior: posterior of the site.
        key: key of the draw.
        X: inputs of ``G`` groups, ``[G size, ...]``, or ``[D, G size, ...]``.
        size: number of inputs in a group.
        rows: numbers of the groups. A group with the same number has the same draw, wherever it stands in ``X``.
    """
    prior, m, form = posterior.prior, *posterior._q()
    everywhere = GaussianProcess(prior.kernel, X, num_outputs=posterior.num_outputs, jitter=prior.jitter)
    groups = everywhere.num_inputs // size
    keys = random.split(key, groups) if rows is None else jax.vmap(lambda row: random.fold_in(key, row))(rows)
    return posterior.conditional._with_fields(prior=everywhere).draws_in_groups(m, form, size, keys)


def estimates(posterior: InducingPosterior, key: PRNGKeyArray) -> EstimatedMarginals:
    """Moments estimated from views that are drawn by ``key`` (van der Wilk et al. 2018, eq. 16-21)."""
    return EstimatedMarginals(*posterior.estimates(key), sites=frozenset({posterior.site}))


def marginals_around(
    posterior: InducingPosterior, key: PRNGKeyArray, shift: Float[Array, "N *D"], variance: Float[Array, "N *D"]
) -> GaussianMarginals:
    """Marginals that refuse to be drawn, with means ``shift`` away from the prior's means."""
    return _refusing_draws(posterior, posterior.prior.mean + shift, variance, key)


def prior_mean(posterior: InducingPosterior, key: PRNGKeyArray) -> Float[Array, "*event"]:
    """The prior's mean."""
    return posterior.prior.mean


# -- modes: which site has which value --------------------------------------------------------------------------------


class BatchRows(NamedTuple):
    """The rows of the data in one run.

    Attributes:
        numbers: numbers of these rows of the data.
        count: number of all rows.
        layouts: layouts of the sites that have only these rows, by name. All other sites have all their rows.
    """

    numbers: Integer[Array | np.ndarray, " N"]
    count: Integer[Array, ""] | int
    layouts: Mapping[str, Layout]

    def of(self, site: str, size: int) -> Integer[Array, " M"]:
        """Numbers of the ``size`` rows that a site has in this run."""
        layout = self.layouts.get(site)
        return jnp.arange(size) if layout is None else layout.rows(self.numbers, self.count)


class Use(NamedTuple):
    """How a program and its guide use a GP site.

    Attributes:
        drawn: which inputs are drawn together, if the program draws the site anywhere; otherwise ``None``.
        joint: whether ``InducingGuide(joint=...)`` names the site.
        residual: the guide's factor of residual variances, see :func:`marginals_in_parts`.
    """

    drawn: Layout | None = None
    joint: bool = False
    residual: Residual = None


@dataclass(eq=False)
class SiteMode:
    """The values of GP sites in a run: here draws over all inputs together. Subclasses give other values.

    Attributes:
        rows: the rows of the data in the run. Their numbers make draws the same in any batch.
        views: the key by which sampled views are drawn, once for all inputs; the run's own key if ``None``.
    """

    rows: BatchRows | None = None
    views: PRNGKeyArray | None = None
    #: Whether parameters without a value start in this run, so that initialisers see inputs.
    starts: ClassVar[bool] = False
    #: Whether sampled views are drawn before anything else, once for all inputs.
    fixes_views: ClassVar[bool] = True
    #: Whether values follow from draws of ``u``, which sites that share one ``q`` draw together.
    draws: ClassVar[bool] = True
    #: See :class:`Marginals` and :class:`JointDraw`.
    given_data = False
    at_inducing: frozenset[str] = field(default=frozenset(), init=False)

    def rows_of(self, posterior: InducingPosterior) -> Integer[Array, " N"] | None:
        """Numbers of the rows of a site, see :class:`~gpzoo.GaussianMarginals`."""
        return None if self.rows is None else self.rows.of(posterior.site, posterior.event_shape[0])

    def prior(self, site: str, prior: GaussianProcess) -> GaussianProcess:
        """The site's prior, with its sampled views drawn."""
        if not (self.fixes_views and prior.samples_views):
            return prior
        return prior.with_fixed_views(numpyro.prng_key() if self.views is None else named_key(self.views, site))

    def keys_of_rows(self, names: frozenset[str]) -> dict[str, PRNGKeyArray]:
        """Keys of the latent sites of rows, which differ between batches; empty if :attr:`rows` is ``None``."""
        if self.rows is None:
            return {}
        key = random.fold_in(numpyro.prng_key(), self.rows.numbers[0])
        return {name: named_key(key, name) for name in names}

    def posterior(self, posterior: InducingPosterior, use: Use) -> InducingPosterior:
        """The distribution from which the site is sampled.

        Args:
            posterior: posterior of the site, with joint draws.
            use: how the program and the guide use the site.
        """
        return posterior


@dataclass(eq=False)
class Pathwise(SiteMode):
    """Each GP site has the value that a function computes: ``value(posterior, key, rows=rows)``.

    Attributes:
        value: gives an array of the event's shape.
    """

    value: Callable[..., Any] = field(kw_only=True)

    def posterior(self, posterior: InducingPosterior, use: Use) -> InducingPosterior:
        """See :meth:`SiteMode.posterior`."""
        return posterior.valued(Partial(self.value, rows=self.rows_of(posterior)))


@dataclass(eq=False)
class Marginals(SiteMode):
    """Marginals if the program allows them; otherwise a draw per input, or a joint draw over the inputs of a data row.

    This is enough for the moments at each input, and for each row of the data.

    Attributes:
        value: makes the marginals of a site; :func:`means` if a run asks only for means.
        given_data: whether sites use their law given the data, at a draw of hyperparameters, in place of a draw of
            ``u``. Only models from :meth:`gpzoo.inference.Trained.of_draws` have such laws.
    """

    value: Callable[..., GaussianMarginals] = predicted_marginals
    given_data: bool = False
    draws = False

    def posterior(self, posterior: InducingPosterior, use: Use) -> InducingPosterior:
        """See :meth:`SiteMode.posterior`."""
        if use.joint:
            return posterior
        value = DrawnWithin(use.drawn) if use.drawn else self.value
        return posterior.valued(Partial(value, rows=self.rows_of(posterior)))


@dataclass(eq=False)
class Bound(Marginals):
    """:class:`Marginals` for training, or unbiased estimates of the moments if a kernel has sampled views.

    Attributes:
        tight: whether variances are split into parts, for the tighter bounds. Draws have their full variance.
        earlier: for each site, the factor that replaces the data of an earlier training. The divergence of the site
            includes this factor.

    Raises:
        TypeError: if ``tight``, for a kernel with sampled views, because its moments are estimates.
        ValueError: if ``tight``, for a site on a grid, which has no residual, and for sites that share one ``q``.
    """

    value: Callable[..., GaussianMarginals] = marginals
    tight: bool = field(default=False, kw_only=True)
    earlier: Mapping[str, Earlier] = field(default_factory=dict, kw_only=True)
    fixes_views = False  # the estimates draw them

    def posterior(self, posterior: InducingPosterior, use: Use) -> InducingPosterior:
        """See :meth:`SiteMode.posterior`."""
        if posterior.site in self.earlier:
            posterior = posterior.after(self.earlier[posterior.site])
        if posterior.prior.samples_views:
            self._refuse_tight(posterior.site)
            return posterior.valued(Partial(estimates))
        if self.tight and not (use.drawn or use.joint):
            if isinstance(posterior.form, Coupled):
                raise ValueError(
                    f"GaussianProcessELBO(tight=True): GP sites {', '.join(map(repr, posterior.form.group))} share "
                    "one q, and the tighter bound needs a q for each site: use InducingGuide(coupled=False)."
                )
            rows = self.rows_of(posterior)
            return posterior.valued(Partial(marginals_in_parts, rows=rows, residual=use.residual))
        return super().posterior(posterior, use)

    def _refuse_tight(self, site: str) -> None:
        if self.tight:
            raise TypeError(
                f"The kernel of site {site!r} samples views of its inputs: its residual variance is an estimate, and "
                "the tighter bound is not linear in it. Leave GaussianProcessELBO(tight=True) out, or enumerate the "
                "views (an Orbit)."
            )


@dataclass(eq=False)
class GivenMoments(SiteMode):
    """Given marginals in place of the marginals of ``q``. The terms of a program become functions of these moments.

    Attributes:
        shift: the mean minus the prior's mean, ``[N]`` or ``[N, D]``, by site.
        variance: variance of every entry, of the same shape, by site.
    """

    shift: Mapping[str, Float[Array, "N *D"]] = field(kw_only=True)
    variance: Mapping[str, Float[Array, "N *D"]] = field(kw_only=True)
    fixes_views = False  # nothing of the kernel is needed
    draws = False

    def posterior(self, posterior: InducingPosterior, use: Use) -> InducingPosterior:
        """See :meth:`SiteMode.posterior`."""
        shift, variance = self.shift[posterior.site], self.variance[posterior.site]
        return posterior.valued(Partial(marginals_around, shift=shift, variance=variance))


@dataclass(eq=False)
class AtPriorMean(SiteMode):
    """For starting values: each GP site has its prior's mean, at which ``q(u)`` starts.

    Attributes:
        made: values of ``<site>_inducing``, by site, from initialisers that ran before. The initialisers of all other
            sites run during this run.
        looks_at: name of a site without a posterior in this run. The run only records the inputs of its initialiser.
        seen: after the run: a random key, the inputs and the kernel of the site ``looks_at``, and the values of the
            sites before it.
    """

    made: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    looks_at: str | None = field(default=None, kw_only=True)
    seen: tuple[Any, ...] = ()
    starts = True
    fixes_views = False  # a mean needs no views
    draws = False

    def posterior(self, posterior: InducingPosterior, use: Use) -> InducingPosterior:
        """See :meth:`SiteMode.posterior`."""
        return posterior.valued(Partial(prior_mean))


@dataclass(eq=False)
class JointDraw(SiteMode):
    """For exports: a draw of ``u``, recorded as ``<site>_u`` and never whitened, and a joint draw of ``f`` given ``u``.

    Attributes:
        batch: number of the batch of rows. The draw of ``f`` given ``u`` depends on it; the draw of ``u`` does not.
        of_rows: names of the sites that have only the rows of the batch. All other sites are the same in all batches.
        parts: the GP sites whose addends are drawn too, with the names of the addends.
        q: the posteriors of the sites that were drawn, by name.
        addends: the draws of addends, by name.
        at_inducing: names of the sites whose inputs here are their inducing points, so that ``f`` is ``u``.
    """

    batch: Array | int = field(default=0, kw_only=True)
    of_rows: frozenset[str] = field(default=frozenset(), kw_only=True)
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict, kw_only=True)
    q: dict[str, InducingPosterior] = field(default_factory=dict, kw_only=True)
    addends: dict[str, Array] = field(default_factory=dict, kw_only=True)
    at_inducing: frozenset[str] = field(default=frozenset(), kw_only=True)

    def posterior(self, posterior: InducingPosterior, use: Use) -> InducingPosterior:
        """See :meth:`SiteMode.posterior`."""
        self.q[posterior.site] = posterior
        posterior = posterior.given(posterior.draw_inducing(numpyro.prng_key()))
        numpyro.deterministic(f"{posterior.site}_u", posterior.inducing_moments()[0])
        if posterior.site in self.parts:
            value = self._with_parts
        elif posterior.site in self.at_inducing and posterior.num_inputs == len(posterior.u_mean):  # all of them
            return posterior.valued(Partial(_at_inducing))
        else:
            value = _joint_in_batch
        return posterior.valued(Partial(value, batch=self.batch if posterior.site in self.of_rows else 0))

    def _with_parts(self, posterior: InducingPosterior, key: Array, batch: Array | int) -> Array:
        value, addends = posterior.draws_of_parts(random.fold_in(key, batch))
        self.addends.update(zip(self.parts[posterior.site], addends, strict=True))
        return value


def _at_inducing(posterior: InducingPosterior, key: Array) -> Array:
    return posterior.prior.mean + posterior.u_mean.reshape(posterior.event_shape)


def _joint_in_batch(posterior: InducingPosterior, key: Array, batch: Array | int) -> Array:
    return posterior.as_joint().sample(random.fold_in(key, batch))


_CURRENT: ContextVar[SiteMode] = ContextVar("site mode", default=SiteMode())  # noqa: B039 (it is never changed)


def current() -> SiteMode:
    """The mode of the current run; joint draws unless :func:`in_mode` says otherwise."""
    return _CURRENT.get()


@contextmanager
def in_mode(mode: SiteMode) -> Iterator[None]:
    """Run guides in a mode in this context."""
    token = _CURRENT.set(mode)
    try:
        yield
    finally:
        _CURRENT.reset(token)
