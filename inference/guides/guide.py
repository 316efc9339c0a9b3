"""Guides made from a program: they run it with an inducing-variable posterior at every GP site."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Integer, PRNGKeyArray
from numpyro.distributions import Delta

from gpzoo import _checks as checks
from gpzoo import linalg
from gpzoo._types import Argument
from gpzoo.errors import plain
from gpzoo.inducing.initialisers import start
from gpzoo.inducing.kuu_kuf import Kuu, jitter_of
from gpzoo.inducing.variables import InducingVariable
from gpzoo.inference.guides.autoguide_mixin import AutoGuideMixin
from gpzoo.inference.guides.coupling import coupled_sites, outputs_together
from gpzoo.inference.guides.handler import PosteriorHandler, parameter_of
from gpzoo.inference.guides.hyperparameter_guide import HyperparameterGuide
from gpzoo.inference.guides.options import for_site
from gpzoo.inference.programs.arguments import arguments, refuse_unknown
from gpzoo.inference.programs.calls import traceable_entry_point
from gpzoo.inference.programs.check_rows import dependence_on_rows
from gpzoo.inference.programs.finite import all_finite
from gpzoo.inference.programs.gp_sites import AtPriorMean, Marginals, Pathwise
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.program import (
    Look,
    descriptions_of,
    find_sites,
    look,
    named,
    names_of,
    parameters_of,
    refuse_without_data,
)
from gpzoo.inference.programs.rows import number_of_rows
from gpzoo.inference.programs.runs import (
    Runs,
    Trace,
    compiled_once,
    of_types,
    run,
    sampled,
    shapes_of,
    translate_errors,
    values_of,
)
from gpzoo.inference.programs.sites import Sites
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.process import GaussianProcess


class InducingGuide(AutoGuideMixin):
    """A guide that runs the model with each latent GP site replaced by its inducing posterior ``q(f)``.

    The program runs with values of this posterior, so that a stack of GP sites has the layerwise posterior of Salimbeni
    and Deisenroth (2017). Latent sites that are not GPs have a point (MAP) or a normal posterior in unconstrained
    space. Observed sites are left out. Discrete latent sites have no posterior. The guide draws a discrete site with
    ``infer={"enumerate": "parallel"}`` from its prior, and :class:`~gpzoo.inference.GaussianProcessELBO` sums it out.
    Pass the data in the first call of the guide, because this call decides which sites are latent.

    The data of a sum of sites, ``trend + season``, determine the sum better than its two terms: if one term rises, the
    other can fall. These terms share one normal ``q`` over all their inducing variables (see ``coupled``). Other sites
    are independent of each other, except that the value of a layer is the input of the next layer.

    Parameters are named after the site. A GP site has ``<site>_inducing``, ``<site>_mean`` and the parameters of the
    covariance's form, usually ``<site>_scale``. If several sites share one ``q``, each site after the first also has
    ``<site>_cross``. A latent site that is not a GP has ``<site>_loc``, and with a normal posterior ``<site>_scale``.

    Under :class:`~gpzoo.inference.GaussianProcessELBO`, the value of a GP site is its marginals, a mean and a variance
    for each input. If the program draws the site anywhere, the value is one draw for each input. A program draws a site
    by :func:`~gpzoo.draws`, or by its use as the inputs or the mean of another GP. If NumPyro itself calls the guide,
    the value is a joint draw over the inputs.

    A program must keep this contract. Its positional arguments have one row for each row of the data. The program uses
    a GP site by its marginals, or by its draws row by row. Only a site that ``joint`` names may be drawn over several
    rows together. A site with several inputs for each row is ``GaussianProcess(..., per_row=True)``. In batches, row
    ``n`` of every output depends only on row ``n`` of the arguments, on keyword arguments, and on latent variables
    without rows.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import InducingGuide
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 1, 20, dtype=np.float32)[:, None]
        >>> params = InducingGuide(gp_regression, kmeans(5)).init_params(jax.random.key(0), X, np.sin(X[:, 0]))
        >>> [name for name in params if name.startswith("f_")]
        ['f_variance', 'f_lengthscale', 'f_inducing', 'f_mean', 'f_scale']

    Args:
        model: a NumPyro program.
        inducing: an initialiser of the inducing variables such as :func:`~gpzoo.kmeans`, an inducing variable, or a
            mapping from site name to one of these.
        whiten: whether ``q`` is over ``v = L^-1 u`` in place of ``u``, with ``L L^T = Kuu``; one value for all sites,
            or by site name. Without whitening, inducing variables that nearly coincide make training slow or worse.
            :func:`~gpzoo.inference.fit` refuses a site if more than half of its inducing variables coincide with
            earlier ones up to the jitter.
        covariance: covariance of ``q``; one for all sites, or by site name. It is ``"full"``, ``"diagonal"`` or, with
            :class:`~gpzoo.InducingBlocks`, ``"block_diagonal"`` (independent blocks). An :class:`~gpzoo.InducingGrid`
            of several axes takes ``"kronecker"``. A grid of one axis takes ``"full"``, ``"diagonal"`` or ``"low_rank"``
            (low rank plus a diagonal). On such a grid, ``"diagonal"`` and ``"low_rank"`` never factorise the prior's
            covariance. You can also pass an object for the form of the covariance, such as ``forms.LowRank(rank=8)`` of
            :mod:`gpzoo.posteriors`, or one of your own class. The default is ``"full"``. For a grid of several axes it
            is ``"kronecker"``, and for a grid of one axis of more than 256 points ``"low_rank"``.
        initial_scale: initial standard deviations of ``q``, as multiples of the prior's standard deviations; one
            multiple for all sites, or by site name. Inner layers of deep GPs usually start at 1e-5.
        hyperparameters: the posterior of latent sites that are not GPs: ``"point"``, ``"normal"`` (independent, in
            unconstrained space), or a class or function that makes a guide from a program of these sites alone. The
            class may be one of NumPyro's guides, such as ``AutoMultivariateNormal``, ``AutoLowRankMultivariateNormal``
            or ``AutoBNAFNormal``. Its parameters are named ``auto_...``. The function may be
            ``lambda program: my_guide``. Your own guide takes the program's arguments and samples exactly these sites.
            It may hold parameters for each row, or compute them from the data. This allows latent sites for each row in
            a subsampled plate.
        joint: names of GP sites to draw jointly over all inputs, also in training. Name a site if a term of one row
            depends on the site at several rows of the data. Several inputs of one row, such as the patches of an image
            under a second layer, are drawn together in any case. The cost grows with the square of their number.
        residual: names of GP sites whose residual variances have a trained factor. (A residual variance is the variance
            of ``f`` given ``u``.) The factor is the positive parameter ``<site>_residual``, one number for each output,
            and starts at 1. Only ``GaussianProcessELBO(tight=True)`` uses it. A Gaussian likelihood does not need it.
        coupled: which GP sites share one ``q``. With ``True``, sites that the program adds share one ``q``: ``a + b``,
            or ``a - c * b`` where ``c`` is one number, or one number for each row. These sites must have a full
            covariance and no grid, and the program must use their marginals. With ``False``, each site has its own
            ``q`` (mean field). Then the standard deviations of the addends are too small, often several times too
            small. The bound is too low, and the trained noise is too large. With names of sites, these sites
            share one ``q``. With groups of names, the sites of each group do. A shared ``q`` has one covariance
            matrix for each output, over the inducing variables of all its sites. It has only one matrix, over all
            outputs, if the program mixes or chooses outputs, ``f @ A + g`` or ``f[:, 0] + g``, or adds sites with
            different numbers of outputs. The cost of a step then grows with the square of the number of outputs. So
            ``True`` makes such a matrix only for up to ten outputs. If you name a single site, its outputs share one
            ``q``. In all cases, the prior of each site is factorised alone.
        fixed: whether inducing variables keep their initial values: ``True`` or ``False`` for all GP sites, or names of
            sites. The gradients by these variables are zero under every objective and optimiser, so only weight decay
            could change the variables.
        init_loc_fn: NumPyro initialisation strategy for latent sites that are not GPs.

    Raises:
        TypeError: if ``whiten`` is not a bool, or ``inducing`` holds neither initialisers nor inducing variables. At
            the first call, also if the program uses a GP site's marginals as an array; the error names the site.
        ValueError: if another option is out of range. At the first call, also in these cases:

            * an option has a name that is not the name of a GP site;
            * a GP site has no initialiser;
            * a discrete latent site has no ``infer={"enumerate": "parallel"}``;
            * the program or a likelihood has no data;
            * a term depends on a GP site at several rows of the data.
    """

    #: Keyword arguments and numbers of rows for which the guide is known to draw all necessary rows together.
    _known: tuple[Any, ...] = ()
    #: Keyword arguments with which the program has no other sites than the guide; none yet for sites from a file.
    _compared: tuple[dict[str, Any], ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Run the guide with the model's arguments.

        Returns:
            The value of every latent site.
        """
        sites, other = self.sites_for(args, kwargs), self.hyperparameter_guide(args, kwargs)
        start = partial(self.starting_sites, args=args, kwargs=kwargs)
        with (
            PosteriorHandler(self, sites, (args, kwargs), other, start) as handler,
            translate_errors(handler.plates, args),
        ):
            self.model(*args, **kwargs)
        return handler.values

    @traceable_entry_point
    def setup(self, *args: Argument, model_kwargs: Mapping[str, Any] | None = None) -> Sites:
        """Find the program's latent sites and how it uses them; later calls return the same sites.

        Raises:
            ValueError: in a later call, if the program with these ``model_kwargs`` has other sites, or needs several
                rows of a GP site together, which the guide draws row by row. The error names the sites.
        """
        return self.sites_for(*arguments(self.model, args, model_kwargs))

    def sites_for(self, args: tuple, kwargs: dict[str, Any], seen: Look | None = None) -> Sites:
        """:meth:`setup` for checked arguments; ``seen`` is an abstract run of the program on these or more rows."""
        if self.sites is None:
            seen = look(self.model, args, kwargs, refuse_data=True) if seen is None else seen
            sites = find_sites(seen, self.model, args, kwargs, self.joint)
            refuse_without_data(seen.trace)
            groups = coupled_sites(self, sites, seen)
            sites = replace(sites, coupled=groups, together=outputs_together(groups, seen))
            self.check_names(sites, self.hyperparameter_guide(args, kwargs, sites))
            self.sites, self._compared = sites, (_deciding(kwargs),)
            if sites.drawn - self.joint:
                self._known = ((_deciding(kwargs), _rows(args)),)
            return sites
        if (deciding := _deciding(kwargs)) not in self._compared:
            self._refuse_other_sites(args, kwargs)
            self._compared += (deciding,)
        if self.sites.drawn - self.joint:
            self._refuse_other_rows(args, kwargs)
        return self.sites

    def _refuse_other_sites(self, args: tuple, kwargs: dict[str, Any]) -> None:
        """Refuse a program with sites that the guide does not have and, for a file, without a trained parameter.

        For a file, it only warns of other kernels and likelihoods, because a user's class may have another name now. It
        also only warns of missing latent sites, because these arguments may leave them out.
        """
        found = look(self.model, args, kwargs, arrays=True).trace
        names, params = names_of(found), self.sites.names & self.sites.parameters.keys()
        new = sorted(names - self.sites.names)
        if self._compared:
            checks.refuse(
                new,
                f"With these arguments, {named(self.model)} has the site(s) {new}, of which the guide knows nothing: "
                "build a new guide for these arguments.",
            )
            return
        if new:
            raise ValueError(
                f"The file is that of another program: {named(self.model)} has the site(s) {new}, and the trained one "
                f"had {sorted(self.sites.names)}. Load it with the program that was trained."
            )
        if unused := sorted(params - names):
            raise ValueError(
                f"The file is that of another program: it has trained parameters {unused}, which {named(self.model)} "
                "does not use with these arguments. Load it with the program that was trained, and read parameters "
                "there whether data are given or not."
            )
        gone = dict.fromkeys(sorted(self.sites.latents - names), "missing")
        for name, now in (descriptions_of(found) | gone).items():
            if (before := self.sites.descriptions.get(name, now)) != now:
                warnings.warn(
                    f"The file may be that of another program: in {named(self.model)}, site {name!r} is {now}, and in "
                    f"the trained one it was {plain(before)}. If that is not the same, predictions are wrong.",
                    UserWarning,
                    stacklevel=2,
                )

    def _refuse_other_rows(self, args: tuple, kwargs: dict[str, Any]) -> None:
        """Refuse arguments with which the program needs rows together that this guide draws separately."""
        if (known := (_deciding(kwargs), _rows(args))) in self._known:
            return
        found = dependence_on_rows(self.model, args, kwargs, self.sites, self.joint)
        num_rows, drawn = number_of_rows(args), self.sites.within
        together = {name for name, own in found.within.items() if not own.is_that(drawn.get(name), num_rows)}
        if names := sorted(together | found.across.keys()):
            raise ValueError(
                f"With these arguments, unlike those with which the guide was set up, the program needs several rows "
                f"of GP site(s) {names} together, which the guide draws one by one. Build a new guide for these "
                "arguments, or name the site in InducingGuide(joint=...)."
            )
        self._known += (known,)

    def hyperparameter_guide(
        self, args: tuple, kwargs: dict[str, Any], sites: Sites | None = None
    ) -> HyperparameterGuide | None:
        """The guide of latent sites that are not GPs, if ``hyperparameters`` makes one; for checked arguments."""
        sites = self.sites_for(args, kwargs) if sites is None else sites
        names = sites.latents - sites.processes
        if not callable(self.hyperparameters) or not names:
            return None
        if self._hyperparameter_guide is None:
            made = HyperparameterGuide(self.hyperparameters, self.model, names, self.init_loc_fn, args, kwargs)
            self._hyperparameter_guide = made
        return self._hyperparameter_guide

    @traceable_entry_point
    def init_params(
        self,
        rng_key: Array,
        *args: Argument,
        given: Mapping[str, Any] | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Initial values of every parameter of the guide and the model, and of mutable state, by name.

        The program runs once, outside ``jit``, with every GP site at its prior's mean. Each site's initialiser sees
        the inputs of the site. Pass the whole data, or a sample of rows that is large enough for the initialisers.

        Args:
            rng_key: key for the initialisers; :func:`gpzoo.inference.fit` with this key begins with the same values.
            *args: the model's arguments.
            given: known values by name. They are used unchanged.
            model_kwargs: the model's keyword arguments, by name.

        Returns:
            Constrained values, to be passed as ``svi.init(..., init_params=...)``.

        Raises:
            ValueError: if ``given`` has an unknown name, or a value of another shape.
        """
        args, kwargs = arguments(self.model, args, model_kwargs)
        return values_of(self.starting_sites(checks.rng_key(rng_key), args, kwargs, given))

    def starting_sites(
        self,
        rng_key: PRNGKeyArray,
        args: tuple,
        kwargs: dict[str, Any],
        given: Mapping[str, Any] | None = None,
        name: str = "given",
    ) -> Trace:
        """The param and mutable sites of guide and program at :meth:`init_params`, with their constraints.

        Arguments are checked; ``name`` is the name of ``given`` in messages.
        """
        self.sites_for(args, kwargs)
        given = {} if given is None else self.checked_params(given, args, kwargs, name=name, whole=False)
        # The key is made in the program that needs it, because making it alone would compile one more program.
        started = lambda **how: run(  # noqa: E731
            named_key(rng_key, "initial values"), args, kwargs, guide=self, values=given, complete=False, **how
        )
        known = all(map(checks.is_concrete, jax.tree.leaves((rng_key, args, kwargs, given))))
        found = self._started_at_once(started, self.looks_at_inputs(given)) if known else None
        if found is None:
            found = _start_of(started(mode=AtPriorMean()).guide)
        refuse_unknown(name, given, found.keys() | self.sites.latents, "parameters")
        return found

    def _started_at_once(self, started: Callable[..., Runs], looked_at: list[str]) -> Trace | None:
        """The sites of a run in one compiled program, after one more program if an initialiser reads inputs.

        Returns ``None`` if more programs are needed, or if a value is not finite. A run without compilation then says
        which value it is.

        Args:
            started: runs the guide, given a mode.
            looked_at: the sites whose initialisers read inputs.
        """
        # Each initialiser that reads inputs costs one more run, and the check of drawn sites has cost one already.
        if len(looked_at) + bool(self.sites.drawn) > 1:
            return None
        mode, sites = AtPriorMean(), {}
        if looked_at:
            mode = AtPriorMean(made={looked_at[0]: self._made(looked_at[0], started)})

        def once() -> tuple[dict[str, Any], Bool[Array, ""]]:
            nonlocal sites
            trace = started(mode=mode).guide
            sites = _start_of(trace)
            return values_of(sites), _factorised(trace)

        values, finite = compiled_once(once)
        options = [site["kwargs"] for site in sites.values()]
        if not all(map(checks.is_concrete, jax.tree.leaves((values, options)))):  # inside the caller's jit
            return None
        if not (finite and all_finite(values)):
            return None
        return {name: site | {"value": values[name]} for name, site in sites.items()}

    def _made(self, site: str, started: Callable[..., Runs]) -> Any:
        """``<site>_inducing`` from the site's initialiser, whose inputs one compiled program computes."""
        mode = AtPriorMean(looks_at=site)

        def once() -> list[Array]:
            started(mode=mode)
            return [x for x in jax.tree.leaves(mode.seen) if not checks.is_concrete(x)]

        computed = iter(compiled_once(once))
        seen = jax.tree.map(lambda x: x if checks.is_concrete(x) else next(computed), mode.seen)
        return parameter_of(start(site, for_site(self.inducing, site), *seen))

    def looks_at_inputs(self, given: Mapping[str, Any] | None = None) -> list[str]:
        """The sites whose initialisers read inputs in :meth:`init_params`. Call :meth:`setup` first.

        A site needs no inputs if the guide has its inducing variable (such as a grid), or its value is in ``given``.
        """
        found = []
        for site in self.sites.processes:
            if not (f"{site}_inducing" in (given or {}) or isinstance(for_site(self.inducing, site), InducingVariable)):
                found.append(site)
        return found

    def posteriors(self, rng_key: PRNGKeyArray, params: Mapping[str, Any], args: tuple, kwargs: dict) -> dict[str, Any]:
        """:meth:`gpzoo.inference.Trained.posterior` for checked parameters and arguments."""
        # Inner sites are drawn per input, which is enough for the marginals of later sites.
        shown = Marginals(views=named_key(rng_key, "views"))
        trace = run(named_key(rng_key, "draws"), args, kwargs, guide=self, values=params, mode=shown).guide
        found = {}
        for name, site in sampled(trace).items():
            fn = site["fn"]
            if isinstance(fn, Delta) and callable(self.hyperparameters):
                continue  # a function of other sites does not have a distribution by itself
            found[name] = fn.as_joint() if isinstance(fn, InducingPosterior) else fn
        return found

    def checked_params(
        self, params: Mapping[str, Any], args: tuple, kwargs: dict, *, name: str = "params", whole: bool = True
    ) -> dict[str, Any]:
        """``params``, compared with the parameters of guide and program; values of latent sites are allowed too.

        Args:
            params: values by name.
            args: the program's positional arguments, already checked.
            kwargs: its keyword arguments.
            name: name of the argument in messages.
            whole: whether all parameters are required.

        Raises:
            TypeError: if they are not a mapping from names to numbers.
            ValueError: naming parameters that are missing, unknown, not finite, of another shape, or out of range.
        """
        params = checks.parameters(name, params)
        other = self.hyperparameter_guide(args, kwargs)
        if other is not None and all(map(checks.is_concrete, jax.tree.leaves(args))):
            other.check(*args)
        own = self.parameters(self.sites, other)
        for k in own.keys() & params.keys():
            if isinstance(params[k], int | float):
                params[k] = jnp.asarray(params[k])
        self._check_names_and_shapes(name, params, own.keys(), args, kwargs, whole)
        for k, limits in (dict(self.sites.constraints) | own).items():
            if k in params and limits is not None:
                checks.within(f"{name}[{k!r}]", params[k], limits)
        return params

    def _check_names_and_shapes(
        self, name: str, params: dict[str, Any], own: Collection[str], args: tuple, kwargs: dict, whole: bool
    ) -> None:
        """See :meth:`checked_params`; ``own`` are the names of the guide's parameters."""
        program = self.sites.parameters
        known, needed = {*own, *program, *self.sites.latents}, {*own, *_with_shapes(program)}
        if known >= params.keys() and (params.keys() >= needed or not whole) and not _misfits(params, program):
            return
        # The program's parameters may depend on its arguments, and these may differ from the arguments at set-up.
        now = parameters_of(self.model, args, kwargs)
        checks.names(name, set(params), needed={*own, *_with_shapes(now)} if whole else set(), known={*known, *now})
        program = {**program, **now}
        for k in _misfits(params, program):
            found, wanted = _listed(shapes_of(params[k])), _listed(program[k])
            raise ValueError(f"{name}[{k!r}] has shape {found}, but the program's has {wanted}.")

    @property
    def whitens_all(self) -> bool:
        """Whether ``q`` is over whitened variables at every site, after :meth:`setup`."""
        return all(for_site(self.whiten, site, True) for site in self.sites.processes)

    def coinciding(
        self, rng_key: PRNGKeyArray, params: Mapping[str, Any], args: tuple, kwargs: dict[str, Any]
    ) -> dict[str, tuple[int, int]]:
        """For each site without whitening, how many inducing variables coincide with others, and how many there are.

        See :func:`gpzoo.linalg.coinciding`. Grids are left out, because their points are distinct. The arguments must
        be checked already.
        """
        found: dict[str, tuple[int, int]] = {}

        def looked_at(posterior: InducingPosterior, key: PRNGKeyArray, rows: None) -> Float[Array, "*event"]:
            if not posterior.whiten and not posterior.conditional.deterministic:
                K = Kuu(posterior.inducing, posterior.prior.kernel)
                found[posterior.site] = (
                    linalg.coinciding(K, jitter_of(posterior.prior, posterior.inducing, K)),
                    K.shape[-1],
                )
            return posterior.prior.mean

        run(rng_key, args, kwargs, guide=self, values=params, mode=Pathwise(value=looked_at))
        return found

    def given_data(self, name: str, prior: GaussianProcess, inducing: InducingVariable) -> InducingPosterior | None:
        """A posterior of a GP site given the data that replaces ``q(u)``; this guide has none and returns ``None``."""
        return None

    def variational_parameters(self) -> frozenset[str]:
        """Names of the parameters of ``q``, without the inducing variables."""
        own = self.parameters(self.sites, self._hyperparameter_guide)
        return frozenset(own.keys() - {f"{site}_inducing" for site in self.sites.processes})

    def numbers(self, params: Mapping[str, Any], count: int | None) -> dict[str, Integer[Array, " S"]]:
        """If ``q`` consists of draws: the numbers of ``count`` draws, by site. This guide returns no numbers."""
        return {}

    @property
    def draws_anything(self) -> bool:
        """Whether some site is drawn even if GP sites are marginals: a GP site, hyperparameters or a discrete site."""
        others = self.sites.latents - self.sites.processes
        drawn = self.sites.drawn | self.sites.enumerated or self.joint
        return bool(drawn or (others and self.hyperparameters != "point"))


def _start_of(trace: Trace) -> Trace:
    return of_types(trace, "param", "mutable")


def _factorised(trace: Trace) -> Bool[Array, ""]:
    """Whether the prior's covariance of all inducing variables has a factor."""
    posteriors = [site["fn"] for site in sampled(trace).values()]
    known = [vars(fn.conditional) for fn in posteriors if isinstance(fn, InducingPosterior)]
    factors = jax.tree.leaves([(fields.get("L"), fields.get("L_inverse")) for fields in known])
    floats = [x.ravel() for x in factors if jnp.issubdtype(jnp.result_type(x), jnp.floating)]
    # All sites together, because one program compiles sooner.
    return jnp.concatenate([jnp.ones(1, bool), *map(jnp.isfinite, floats)]).all()


def _with_shapes(parameters: Mapping[str, Any]) -> list[str]:
    """Names of a program's parameters that have arrays."""
    return [name for name, shapes in parameters.items() if shapes]


def _misfits(params: Mapping[str, Any], parameters: Mapping[str, Any]) -> list[str]:
    """Names of values whose shapes differ from those of the program's parameters."""
    found = []
    for name, shapes in parameters.items():
        if shapes is not None and name in params and shapes_of(params[name]) != shapes:
            found.append(name)
    return found


def _listed(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{at}{list(shape)}" for at, shape in shapes.items())


def _rows(args: tuple) -> tuple[int, ...]:
    return tuple(np.shape(x)[0] if np.shape(x) else 0 for x in jax.tree.leaves(args))


def _deciding(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments that can change what a program does: whole numbers, names, functions, and ``None``.

    The size of a plate, ``num_data``, is not one of them.
    """
    found = {}
    for name, value in kwargs.items():
        if name != "num_data" and all(isinstance(x, int | str) or callable(x) for x in jax.tree.leaves(value)):
            found[name] = value
    return found
