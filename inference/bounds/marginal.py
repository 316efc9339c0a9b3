"""Marginal programs: the same priors and data without GP sites, so that NUTS moves only hyperparameters."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jaxtyping import Float, PRNGKeyArray, Shaped
from numpyro import handlers
from numpyro.distributions import Distribution, constraints

from gpzoo import _checks as checks
from gpzoo._labels import index_of
from gpzoo._numpyro import given_outside
from gpzoo._types import ArrayLike
from gpzoo.errors import FactorisationError, PrecisionWarning
from gpzoo.inducing.variables import InducingPoints, InducingVariable
from gpzoo.inference.bounds.evidence import Latents, Site, Term, connected_to, log_evidence
from gpzoo.inference.bounds.grids import Grids, OnCells
from gpzoo.inference.bounds.laws import sites_given_data
from gpzoo.inference.bounds.left_out import Blocks, left_out
from gpzoo.inference.bounds.series import AsSeries
from gpzoo.inference.guides.options import Inducing
from gpzoo.inference.guides.reparam import GuardedProjection, stands_as_it_is, whitened
from gpzoo.inference.programs.arguments import arguments
from gpzoo.inference.programs.arrays import split_arrays
from gpzoo.inference.programs.rows import number_of_rows
from gpzoo.inference.programs.runs import SeenNames, check_value, refuse_mapped, sampled, shape_of, unmasked
from gpzoo.likelihoods import Likelihood
from gpzoo.processes.affine import AffineMap
from gpzoo.processes.marginals import DrawLog, GaussianMarginals
from gpzoo.processes.process import GaussianProcess

#: Rounding errors of a law without a warning; see :class:`~gpzoo.inference.bounds.laws.SitesGivenData`.
_MOST_LOST = 0.05

#: Most bytes of the laws of GP sites that data see together, for all draws. Larger laws are not kept.
MOST_KEPT = 2**30


class marginal(whitened):
    """A program whose latent GP sites are integrated out, so that only its hyperparameters are latent::

        program = marginal(regression)  # exact, O(N^3)
        program = marginal(regression, kmeans(50))  # with inducing variables, O(N M^2)
        mcmc = MCMC(NUTS(program), num_warmup=500, num_samples=500)

    The marginal program has the arguments, priors and data sites of ``fn``. A data site that depends on GP sites has
    the joint density of its data, ``p(y)``, given the data sites before it. If you pass no data for the site, the site
    draws them from this density. The marginal program works with NumPyro's MCMC, guides, SVI, ``Predictive`` and
    ``log_density``. GP sites are integrated out in these ways:

    ======================  =====================================  ====================================================
    noise                   no inducing variables                  inducing variables
    ======================  =====================================  ====================================================
    Gaussian                exactly                                Titsias's bound, or ``sparse="tight"`` or ``"fitc"``
    any other               Laplace's approximation                Laplace's approximation of the same bound
    ======================  =====================================  ====================================================

    The program may use the value of a GP site only in operations that are exact on :class:`~gpzoo.GaussianMarginals`:
    sums of sites, ``f * c``, ``f + c``, ``f @ A``, ``f[rows]``. Masks, missing entries, noise by row and several data
    sites are allowed. Outputs are computed separately if no data depend on several outputs together. Sites are computed
    separately if no data connect them.

    Laplace's approximation (Williams and Barber 1998) uses the curvature at the mode. Damped Newton steps find the
    mode, and its derivatives follow from the implicit function theorem. The steps begin near ``v = 0``, where ``v`` is
    the white noise from which ``f`` is made. If there are several modes, the steps find one of them. If a covariance
    does not factorise, or the mode is not found, the density is zero. NUTS counts this as a divergence.

    From the draws of hyperparameters, :meth:`gpzoo.inference.Trained.of_draws` makes a trained model. This model
    samples the functions given each draw of hyperparameters. It predicts and exports like any other trained model.
    Under MCMC, ``numpyro.param`` sites need priors, which ``marginal(handlers.lift(program, prior))`` gives them.

    Example:
        >>> import jax, numpy as np
        >>> from numpyro.infer.util import log_density
        >>> from gpzoo.inference import marginal
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 1, 5, dtype=np.float32)[:, None]
        >>> density, sites = log_density(marginal(gp_regression), (X, X[:, 0]), {}, {})
        >>> sites["y"]["fn"].event_shape, bool(density == sites["y"]["fn"].log_prob(X[:, 0]))
        ((5,), True)

    Args:
        fn: a NumPyro program.
        inducing: inducing variables of all GP sites, or a mapping by site name, as for
            :class:`~gpzoo.inference.WhitenReparam`. Sites that the mapping leaves out have none. An initialiser looks
            only at the inputs of the first run, so make a new marginal program for other data.
        sparse: with inducing variables, ``"vfe"`` for Titsias's bound (2009, eq. 9), ``"tight"`` for its tighter form
            (Titsias 2025, see :class:`~gpzoo.likelihoods.Gaussian`), or ``"fitc"`` for FITC (Snelson and Ghahramani
            2006), which is not a bound. ``"tight"`` and ``"fitc"`` are for Gaussian noise.
        block: with ``"tight"``, the number of consecutive rows in a block. Larger blocks make the bound tighter (Bui
            and Titsias 2025), at a cost of ``O(N block^2)``. Sort the rows so that neighbouring rows have similar
            inputs.
        state_space: whether to compute the density of a time series by state-space models, in time and memory
            ``O(N)``. The density is the same. The data need one column of times (in any order), Gaussian noise, and
            kernels with a state-space form (:meth:`gpzoo.kernels.Kernel.states`). Any sum of sites is allowed.
        kronecker: whether to compute the density of rows on a grid axis by axis. The density is the same, but has no
            second derivatives. The program has one GP site. Its kernel must be a product over groups of columns, such
            as ``RBF()`` or ``Matern52(active_dims=[0, 1]) * categories("f", X, 5)``. The groups are the axes of the
            grid. Each row needs its own cell of the grid, and most cells need a row. The noise must be Gaussian, and
            may differ along one axis. The cost is the sum of the cubes of the axes' sizes, plus the number of all cells
            times the square of the number of empty cells. Make a new marginal program for other data.
        leave_out: ``True`` to replace the log density of all data by a sum over rows. Each term is the log density of
            one row given all other data. This is the objective of leave-one-out cross-validation (Sundararajan and
            Keerthi 2001; Rasmussen and Williams 2006, eq. 5.11). To leave rows out together, give their blocks as in
            :meth:`gpzoo.inference.Trained.of_draws`. The objective is for point values of hyperparameters,
            ``SVI(marginal(program, leave_out=True), AutoDelta(...), ...)``.

    Raises:
        ValueError: for an unknown ``sparse``, for options that cannot be combined, and for the reasons of
            :class:`~gpzoo.inference.whitened`. When the program runs, also in these cases:

            * data are a minibatch;
            * a handler outside ``marginal`` gives the value of a GP site;
            * ``sparse`` is ``"tight"`` or ``"fitc"``, and noise is not Gaussian;
            * ``sparse`` is ``"fitc"``, and the program combines outputs (``f @ A``);
            * the likelihood is robust-max, and its sites have no inducing variables.
        TypeError: when the program runs, in these cases:

            * a GP site is drawn (:func:`~gpzoo.draws`, deep GPs), or a discrete latent site is summed out;
            * a kernel has sampled views (:class:`~gpzoo.SampledView`), or inducing variables are on a grid;
            * with ``state_space``, a kernel has no state-space form.
    """

    def __init__(
        self,
        fn: Callable | None = None,
        inducing: Inducing | None = None,
        *,
        sparse: str = "vfe",
        block: int = 1,
        state_space: bool = False,
        kronecker: bool = False,
        leave_out: Any = None,
    ) -> None:
        super().__init__(fn, inducing)
        self._leave_out = None if leave_out is None or leave_out is False else LeaveOut(leave_out)
        options = {"state_space": state_space, "kronecker": kronecker}
        asked = [name for name, x in options.items() if checks.instance(name, x, bool, "True or False")]
        checks.refuse(
            len(asked) > 1 or (asked and (inducing is not None or sparse != "vfe" or self._leave_out is not None)),
            f"marginal(program, {' or '.join(asked)}=True) is exact: it cannot be combined with inducing variables, "
            "sparse, leave_out, or another structure of the data.",
        )
        self._structure: Any = AsSeries() if state_space else Grids() if kronecker else None
        self._structured = asked[0] if asked else ""
        self._sparse = checks.one_of("sparse", sparse, ("vfe", "tight", "fitc"))
        self._block = checks.positive_int("block", block)
        checks.refuse(self._block > 1 and sparse != "tight", f"Blocks of rows are for sparse='tight', not {sparse!r}.")
        self._sites: list[Site] = []
        self._terms: list[Term] = []
        self._asking = False

    def __enter__(self) -> Any:
        self._sites, self._terms = [], []
        return super().__enter__()

    def process_message(self, msg: Any) -> None:
        """Integrate GP sites out: data sites get their marginal density."""
        if stands_as_it_is():
            return super().process_message(msg)
        if msg["type"] == "deterministic" and isinstance(msg["value"], GaussianMarginals):
            msg["stop"] = True  # the handlers outside record numbers, and marginals are not numbers
        if msg["type"] != "sample":
            return None
        refuse_mapped(msg)
        if isinstance(msg["fn"], GaussianProcess) and msg["value"] is None:
            return self._take_out(msg)
        likelihood: Any = unmasked(msg["fn"])
        if isinstance(likelihood, Likelihood) and likelihood.is_marginal and _maps(likelihood.f):
            self._check_data(msg, likelihood)
            sites, terms = connected_to(self._sites, self._terms, likelihood.f.sites)
            structure = None
            if self._structure is not None:
                structure = self._structure.of_data(sites, terms, Term(msg["fn"], msg["value"], msg["name"]))
            checks.refuse(
                bool(terms) and self._leave_out is not None,
                f"marginal(program, leave_out=...) takes one data site of GP sites, and {msg['name']!r} is another.",
            )
            msg["fn"] = Evidence(sites, terms, msg["fn"], self._sparse, self._block, self._leave_out, structure)
        return None

    def postprocess_message(self, msg: Any) -> None:
        """Remember data, on which the data of later sites are conditioned."""
        super().postprocess_message(msg)
        if msg["type"] != "sample" or isinstance(msg["value"], GaussianMarginals) or stands_as_it_is():
            return
        fn = unmasked(msg["fn"])  # Predictive masks all sites
        if isinstance(fn, Evidence):
            self._terms.append(Term(fn.fn, msg["value"], msg["name"]))
        elif not msg["is_observed"]:
            if msg["infer"].get("enumerate"):  # an outer handler of MCMC marks the site
                raise TypeError(f"Latent site {msg['name']!r} is discrete and summed out, {_NOT_HERE}")
            if self._asking and not msg["cond_indep_stack"]:
                check_value(msg["name"], msg["value"], shape_of(msg))

    def _take_out(self, msg: Any) -> None:
        name, prior = msg["name"], msg["fn"]
        self._seen.add(name)
        if prior.samples_views:
            raise TypeError(f"The kernel of GP site {name!r} samples views of its inputs, {_NOT_HERE}")
        if prior.in_row is not None:
            raise TypeError(f"GP site {name!r} has several inputs in a row and is drawn, {_NOT_HERE}")
        if msg["scale"] is not None:
            raise ValueError(f"GP site {name!r} stands inside handlers.scale. Take it out.")
        if not self._asking and given_outside(self, name):
            raise ValueError(
                f"GP site {name!r} has a value from a handler outside marginal(program), or from draws, where it is no "
                "site any more. Put the handler inside, marginal(handlers.condition(program, data)), or leave it out."
            )
        if self._structure is not None:
            self._structure.refuse_site(prior, name)
        reparam, conditional = self._by_name.get(name, self._default), None
        if reparam.inducing is not None:
            conditional = GuardedProjection(prior, reparam.variable(name, prior), site=name)
        site = Site.of(prior, conditional, name)
        self._sites.append(site)
        msg["value"], msg["stop"] = site.marginals(_REFUSES_DRAWS), True

    def _check_data(self, msg: Any, likelihood: Any) -> None:
        name, kind = msg["name"], type(likelihood).__name__
        if msg["scale"] not in (None, 1):
            raise ValueError(
                f"Data site {name!r} has a part of the rows of its plate, but its density is that of all data "
                "together. Run the program on all rows (no subsample_size, no handlers.scale)."
            )
        sparse = any(site.conditional is not None for site in self._sites if site.name in likelihood.f.sites)
        if not (likelihood.smooth or sparse):
            raise ValueError(
                f"Data site {name!r} has the likelihood {kind}, whose density is piecewise constant in f: its "
                "derivatives are zero, and Laplace's approximation needs them. Give its GP sites inducing variables, "
                "marginal(program, "
                "kmeans(50)), or use likelihoods.Softmax."
            )
        if self._sparse == "vfe":
            return
        asked = f"sparse={self._sparse!r} of data site {name!r}"
        if likelihood.noise is None or not likelihood.quadratic:
            raise ValueError(f"{asked} is for Gaussian noise, and this is {kind}: use sparse='vfe'.")
        if self._sparse == "fitc" and not likelihood.f.independent:
            raise ValueError(f"{asked} needs outputs that are independent, and f @ A mixes them: use sparse='vfe'.")

    def draws_of_sites(
        self,
        rng_key: Array,
        posterior_samples: Mapping[str, ArrayLike],
        args: tuple,
        num_draws: int,
        params: Mapping[str, Any] | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        leave_out: Any = None,
    ) -> dict[str, dict[str, Any]]:
        """Draws and laws of all GP sites given the data, and left-out densities, at each draw of hyperparameters.

        Args:
            rng_key: key of the draws.
            posterior_samples: draws of hyperparameters by site name, ``[S, ...]``.
            args: positional arguments of the program, data included.
            num_draws: number of draws if there are no hyperparameters to draw.
            params: values of the ``numpyro.param`` sites, if there are any.
            model_kwargs: keyword arguments of the program, by name.
            leave_out: see :meth:`gpzoo.inference.Trained.of_draws`.

        Returns:
            The fields of :class:`~gpzoo.inference.bounds.laws.SitesGivenData`, by name.

        Raises:
            FactorisationError: if the law of a site is not found at some draw.
        """

        large: dict[str, int] = {}
        if own := self._structured:
            given = f"marginal(program, {own}=True) leaves out single rows only: for blocks of rows, leave {own} out."
            checks.refuse(not (leave_out is None or leave_out is False), given)
        blocks: Blocks | None = None
        if not (leave_out is None or leave_out is False):
            blocks = Blocks.of(leave_out, number_of_rows(arguments(self, args, model_kwargs)[0]))

        def draw(sites: list[Site], latents: Latents, key: PRNGKeyArray, count: int) -> tuple[dict, Any]:
            if self._structure is not None:
                of_data = self._structure.of_data(sites, (), *latents.terms)
                found = of_data.given(sites, latents.terms, key)
            else:
                found = sites_given_data(sites, latents, key, blocks)
            laws, left_out = found.laws, found.left_out
            if (size := count * _bytes(laws)) > MOST_KEPT:
                checks.refuse(
                    self._structure is not None,
                    f"The laws of GP sites {'+'.join(latents.shapes)} given the data take {size / 2**30:.1f} GiB for "
                    f"{count} draws, more than {MOST_KEPT / 2**30:.0f}. Take fewer draws of the hyperparameters, at "
                    f"most {MOST_KEPT * count // size}.",
                )
                large["+".join(laws)], laws = size, {}
            if leave_out is False or count * _bytes(left_out) > MOST_KEPT:
                left_out = {}
            told = {"lost": {"+".join(latents.shapes): found.lost}}
            if self._structure is None:
                told["no_root"] = {"+".join(latents.shapes): ~latents.factorised}
            return {"values": found.values, "laws": laws, "left_out": left_out, **told}, found.good

        found, good = self._at_draws(rng_key, posterior_samples, args, params, model_kwargs, num_draws, draw)
        if len(bad := np.flatnonzero(~np.asarray(good))):
            raise FactorisationError(
                f"The law of GP sites given the data was not found at {len(bad)} of {len(good)} draws "
                f"({_numbers(bad)}): a covariance did not factorise, or (for non-Gaussian data) Newton's steps did not "
                f"converge. Leave these draws out, or use more jitter. {_MORE_JITTER}"
            )
        for name, missing in found.pop("no_root", {}).items():
            _warn_of_no_root(name, np.flatnonzero(missing))
        for name, lost in found.pop("lost", {}).items():
            _warn_of_rounding(name, np.asarray(lost))
        for name, size in large.items():
            warnings.warn(
                f"The laws of GP sites {name} given the data take {size / 2**30:.1f} GiB for {len(good)} draws, more "
                f"than {MOST_KEPT / 2**30:.0f}: predictions mix one draw of the functions for each draw of "
                "hyperparameters, and are noisy. Take fewer draws, such as every fourth of mcmc.get_samples().",
                stacklevel=checks.outside(),
            )
        return found

    def variables_of(self, draws: Mapping[str, Any]) -> dict[str, InducingVariable]:
        """Inducing variables of each GP site, from the result of :meth:`draws_of_sites`."""
        kinds = {}
        for name in self._seen:
            kind = self._by_name.get(name, self._default)
            if kind.inducing is None:
                kinds[name] = InducingPoints(draws[f"{name}_inducing"][0])
            else:
                kinds[name] = kind.variable(name, cast(Any, None))
        return kinds

    def log_weights(
        self,
        rng_key: Array,
        posterior_samples: Mapping[str, ArrayLike],
        args: tuple,
        num_draws: int,
        params: Mapping[str, Any] | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
    ) -> Float[Array, "S {num_draws}"]:
        """Log importance weights of draws from the law of GP sites, at each draw of hyperparameters.

        The mean of the weights is the density of the data, divided by Laplace's approximation of this density.
        ``num_draws`` is the number of draws from the law. For the other arguments, see :meth:`draws_of_sites`.
        """

        def weigh(sites: list[Site], latents: Latents, key: PRNGKeyArray, count: int) -> tuple[dict, Any]:
            return {"weights": {"+".join(latents.shapes): latents.log_weights(key, num_draws)}}, True

        found, _ = self._at_draws(rng_key, posterior_samples, args, params, model_kwargs, 1, weigh)
        if not found:
            raise ValueError("The program has no latent GP sites: nothing is integrated out.")
        return jax.tree.reduce(jnp.add, found["weights"])

    def _at_draws(
        self,
        rng_key: Array,
        posterior_samples: Mapping[str, ArrayLike],
        args: tuple,
        params: Mapping[str, Any] | None,
        model_kwargs: Mapping[str, Any] | None,
        num_draws: int,
        ask: Callable[[list[Site], Latents, PRNGKeyArray, int], tuple[dict[str, dict[str, Any]], Any]],
    ) -> tuple[dict[str, dict[str, Any]], Array]:
        """At each draw: the requested numbers of connected sites, by kind and name, and whether they were found."""
        samples = {n: jnp.asarray(x) for n, x in checks.named("posterior_samples", posterior_samples).items()}
        params = checks.parameters("params", {} if params is None else params)
        args, kwargs = arguments(self, args, model_kwargs)
        arrays, static = split_arrays(kwargs)

        counts = set(map(len, samples.values())) or {checks.positive_int("num_draws", num_draws)}
        if len(counts) > 1:
            raise ValueError(f"posterior_samples must have one number of draws, got {sorted(counts)}.")

        def one(draw: tuple[Array, dict[str, Array]], args: tuple, arrays: dict) -> tuple[dict[str, Any], Array]:
            (key, values), drawn, good = draw, {}, jnp.asarray(True)
            self._run(key, values | params, args, arrays | static)
            key, rest = random.fold_in(key, 1), {site.name for site in self._sites}
            while rest:
                sites, terms = connected_to(self._sites, self._terms, frozenset({min(rest)}))
                latents = Latents.of(sites, terms, self._sparse)
                values, known = ask(sites, latents, random.fold_in(key, len(rest)), *counts)
                drawn = {kind: drawn.get(kind, {}) | own for kind, own in values.items()}
                good, rest = good & known, rest - {site.name for site in sites}
            self._sites, self._terms = [], []
            return drawn, good

        keys = random.split(checks.rng_key(rng_key), *counts)
        first = jax.tree.map(lambda x: x[0], (keys, samples))
        self._run(first[0], first[1] | params, args, kwargs)  # initialisers look at inputs
        self._sites, self._terms = [], []
        each = lambda draws, *others: lax.map(lambda draw: one(draw, *others), draws)  # noqa: E731
        return jax.jit(each)((keys, samples), args, arrays)

    def _run(self, key: PRNGKeyArray, values: dict[str, Any], args: tuple, kwargs: dict[str, Any]) -> None:
        """Run the program with all its values, to find its GP sites and data."""
        seen, self._asking = SeenNames(), True
        try:
            with handlers.block(), handlers.trace() as trace, seen, handlers.seed(rng_seed=key):
                handlers.substitute(self, data=values)(*args, **kwargs)
        finally:
            self._asking = False
        latent = {name for name, site in sampled(trace).items() if not site["is_observed"]}
        if missing := sorted((latent | seen.loose("param", "mutable")) - values.keys()):
            raise ValueError(f"The draws (or params) have no values of {missing}; they name {sorted(values)}.")


class LeaveOut:
    """Rows that are left out together, as the user gave them, before the data are known.

    Args:
        rows: see :class:`marginal`.
    """

    def __init__(self, rows: Any) -> None:
        message = "marginal(program, leave_out=...) sees no labels of rows: pass an array, in the order of the rows."
        checks.refuse(index_of(rows) is not None, message)
        self.rows = rows

    def log_density(self, sites: Sequence[Site], term: Term, sparse: str) -> Float[Array, ""]:
        """The sum of the log densities of rows, or of blocks of rows, each given all other data, in nats."""
        blocks = None if self.rows is True else Blocks.of(self.rows, len(term.marginals))
        latents = Latents.of(sites, (term,), sparse)
        law, good = None, latents.factorised
        if not term.gaussian or latents.sparse != "exact":
            law, good = latents.law()
        densities = left_out(sites, latents, law, blocks, random.key(0))[term.name]["density"]
        total = jnp.sum(densities)  # NaN if f has no law without some rows
        return jnp.where(good & jnp.isfinite(total), total, -jnp.inf)


class Evidence(Distribution):
    """``p(y)`` of data that depend on GP sites, given earlier data of the same sites.

    Args:
        sites: GP sites on which the data depend, and GP sites that earlier data connect with them.
        before: earlier data of these sites, on which ``p(y)`` is conditioned.
        fn: the likelihood of the data, which takes marginals; masked or not.
        sparse: see :class:`marginal`.
        block: see :class:`marginal`.
        leave_out: see :class:`marginal`; ``None`` for the density of all data.
        structure: a time series or a grid, whose structure makes the density cheaper; ``None`` uses no structure.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    pytree_data_fields = ("sites", "before", "fn")
    pytree_aux_fields = ("sparse", "block", "leave_out", "structure")

    def __init__(
        self,
        sites: list[Site],
        before: list[Term],
        fn: Any,
        sparse: str,
        block: int,
        leave_out: LeaveOut | None = None,
        structure: AsSeries | OnCells | None = None,
    ) -> None:
        self.sites, self.before, self.fn, self.sparse, self.block = tuple(sites), tuple(before), fn, sparse, block
        self.leave_out, self.structure = leave_out, structure
        super().__init__(event_shape=tuple(fn.batch_shape) + tuple(fn.event_shape))

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of the data."""
        return cast(Likelihood, unmasked(self.fn))

    @property
    def support(self) -> constraints.Constraint:
        """The support of the likelihood, for all data together."""
        base = cast(Any, self.fn.support)
        more = len(self.event_shape) - base.event_dim
        return constraints.independent(base, more) if more else base

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> Float[Array, ""]:
        """``log p(y)``, in nats, given the earlier data."""
        if self.structure is not None:
            return self.structure.log_evidence(self.sites, Term(self.fn, value))
        if self.leave_out is not None:
            return self.leave_out.log_density(self.sites, Term(self.fn, value), self.sparse)
        total = log_evidence(self.sites, (*self.before, Term(self.fn, value)), self.sparse, self.block)
        if not self.before:
            return total
        return jnp.where(jnp.isfinite(total), total - log_evidence(*self._of(self.before)), -jnp.inf)

    def _of(self, terms: tuple[Term, ...]) -> tuple[list[Site], tuple[Term, ...], str, int]:
        names = frozenset().union(*(term.marginals.sites for term in terms))
        return [site for site in self.sites if site.name in names], terms, self.sparse, self.block

    def sample(self, key: PRNGKeyArray, sample_shape: tuple[int, ...] = ()) -> Shaped[Array, "..."]:
        """Draws of ``y``, given the earlier data."""
        here = Term(self.fn, None)
        latents = Latents.of(self.sites, self.before, self.sparse)
        law, _ = latents.law()
        seen = Latents.of(self.sites, (here,), self.sparse)

        def draw(key: PRNGKeyArray) -> Array:
            key_v, key_y = random.split(key)
            own = latents.split(law.draw(key_v))
            (f,) = seen.means({name: own[name] for name in seen.shapes})
            kind = "exact" if seen.sparse == "exact" else "vfe"
            return unmasked(here.given(f, kind)).sample(key_y)

        keys = random.split(key, int(np.prod(sample_shape)))
        return jax.vmap(draw)(keys).reshape(*sample_shape, *self.event_shape)

    def mask(self, mask: Any) -> Distribution:
        """Only ``True`` and ``False`` are accepted: the data have one joint density, without terms to mask.

        Raises:
            ValueError: for a mask that is not ``True`` or ``False``.
        """
        if not isinstance(mask, bool):
            raise ValueError(
                "handlers.mask around marginal(program) has nothing to mask, because the data have one joint density: "
                "put it around the data site, inside the program."
            )
        return self if mask else super().mask(cast(Any, mask))


#: What helps if a covariance has no factor.
_MORE_JITTER = (
    "To use more jitter, write GaussianProcess(..., jitter=1e-4), and pass the same draws with "
    "program=marginal(...) of the new program. float64 helps too."
)


def _numbers(draws: np.ndarray) -> str:
    """Numbers of draws for a message; draws count from 0 through all chains, one chain after the other."""
    more = f" and {len(draws) - 20} more" if len(draws) > 20 else ""
    return f"numbers {', '.join(map(str, draws[:20]))}{more}, counted from 0 through all chains"


def _warn_of_no_root(sites: str, draws: np.ndarray) -> None:
    if len(draws):
        warnings.warn(
            f"The prior's covariance of GP site(s) {sites} has no Cholesky factor at {len(draws)} draws "
            f"({_numbers(draws)}). predict does not need this factor, but functions and to_arviz do. {_MORE_JITTER}",
            PrecisionWarning,
            stacklevel=checks.outside(),
        )


def _warn_of_rounding(sites: str, lost: np.ndarray) -> None:
    if (worst := float(lost.max())) > _MOST_LOST:
        warnings.warn(
            f"The law of GP site(s) {sites} given the data is lost in the rounding errors of {lost.dtype}: the log "
            f"density of a datum given others may be off by {worst:.1g} nats, and means by more than a tenth of their "
            "standard deviations, because noise is small beside the variance. Compute in float64 "
            "(numpyro.enable_x64()), or keep the noise away from zero.",
            PrecisionWarning,
            stacklevel=checks.outside(),
        )


def _bytes(arrays: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(arrays))


def refuse_marginal(program: Any) -> None:
    """Refuse a marginal program, for code that conditions GP sites on their draws.

    Raises:
        TypeError: if the program is marginal; the message says what to do instead.
    """
    if isinstance(program, marginal):
        raise TypeError(
            "Draws of marginal(program) are of its hyperparameters alone: Trained.of_draws(key, mcmc, X, y) draws the "
            "functions too, and predicts and exports."
        )


def _maps(f: GaussianMarginals) -> bool:
    return any(isinstance(part, AffineMap) for part in f.parts)


_NOT_HERE = "which marginal(program) does not integrate out. Use whitened(program) for NUTS, or InducingGuide with fit."


class _RefusesDraws(DrawLog):
    """Refuses draws of sites that are integrated out."""

    def asked(self, sites: frozenset[str]) -> None:
        """See :meth:`DrawLog.asked`."""
        names = ", ".join(map(repr, sorted(sites)))
        raise TypeError(
            f"The program draws GP site {names}, by draws(f) or as the inputs of another GP, "
            f"{_NOT_HERE} A likelihood of f may be Expected(fn, f)."
        )


_REFUSES_DRAWS = _RefusesDraws()
