"""Evidence lower bound of programs with GP sites: NumPyro's mean-field ELBO, with marginals and analytic KL."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from jaxtyping import Float
from numpyro import handlers
from numpyro.distributions import MaskedDistribution, Unit
from numpyro.infer import TraceMeanField_ELBO

from gpzoo import _checks as checks
from gpzoo._numpyro import Handler, Messenger
from gpzoo.inference.guides.same_program import refuse_other_program
from gpzoo.inference.programs.enumeration import is_enumerated, scored
from gpzoo.inference.programs.gp_sites import Bound, in_mode
from gpzoo.inference.programs.runs import SeenNames, Trace, observed, unmasked
from gpzoo.inference.programs.sites import Sites
from gpzoo.likelihoods import Likelihood
from gpzoo.linalg import total
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.marginals import GaussianMarginals
from gpzoo.processes.process import GaussianProcess


class GaussianProcessELBO(TraceMeanField_ELBO):
    """Evidence lower bound of a program with GP sites.

    For one site, see van der Wilk et al. 2017, eq. 5. For layers, see Salimbeni and Deisenroth 2017, eq. 17.

    It is :class:`numpyro.infer.TraceMeanField_ELBO` with three additions. First, the value of a GP site is its
    marginals, if the program allows it. gpzoo's likelihoods then integrate over the marginals. Second, the KL
    divergence of a GP site is analytic. If this is impossible, the objective raises an error. Third, mutable state
    (batch normalisation) changes only in the guide's run, not in the model's run.

    By default, the bound has ``q(f | u) = p(f | u)``. The noise variance that maximises the bound then contains the
    residual variances (the variances of ``f`` given ``u``). With ``tight=True``, a better ``q(f | u)`` makes the bound
    tighter, and this noise variance is smaller. A :class:`~gpzoo.likelihoods.Gaussian` likelihood finds the better
    ``q(f | u)`` in closed form (Titsias 2025, arXiv 2502.08730). This costs one logarithm for each row and output,
    which is too little to measure. For any likelihood, the guide can learn a factor of the residual variances for each
    site and output, by ``InducingGuide(..., residual={"f"})`` (Bui, Ashman and Turner 2025, arXiv 2502.04750). Each
    data site subtracts the divergence of ``q(f | u)`` from its own terms, and plates scale the divergence with these
    terms. Sites that are drawn, such as the inner layers of a deep GP, keep ``p(f | u)``. All predictions use
    ``p(f | u)``.

    The bound sums out discrete latent sites with ``infer={"enumerate": "parallel"}``, and the discrete latent sites of
    a program under NumPyro's ``config_enumerate``. The data that depend on such a site ``z`` have the term
    ``log sum_z p(z) p(y | z, f)``, averaged over draws of ``f``. In the program, write ``draws(f)[rows, z]`` for the
    output of ``f`` that ``z`` chooses. Chains of discrete sites have three requirements:

    * NumPyro's ``scan`` in the program;
    * joint draws of the GP sites, by ``InducingGuide(joint={"f"})``;
    * training without minibatches.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import GaussianProcessELBO, InducingGuide
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 6, 50, dtype=np.float32)[:, None]
        >>> y, guide = np.sin(X[:, 0]), InducingGuide(gp_regression, kmeans(8))
        >>> params = guide.init_params(jax.random.key(0), X, y)
        >>> terms = GaussianProcessELBO(sum_sites=False).loss(jax.random.key(1), params, gp_regression, guide, X, y)
        >>> sorted(terms), abs(float(terms["f"])) < 1e-3  # the divergence of q(u) from the prior starts at 0
        (['f', 'y'], True)

    Args:
        num_particles: number of draws of the sites that are drawn.
        vectorize_particles: see :class:`numpyro.infer.ELBO`.
        sum_sites: ``False`` gives the contribution of every site, by name, in place of their sum.
        tight: whether to use the tighter bound.

    Raises:
        ValueError: in these cases:

            * a GP site of the model has no posterior from an :class:`~gpzoo.inference.InducingGuide`, or its scale
              differs between guide and model;
            * a parameter has no value, or a value has an unknown name;
            * the guide has a discrete site, or the program has one and the guide is not an ``InducingGuide``;
            * ``num_particles`` is not a positive whole number;
            * with ``tight``: a site is on a grid, sites share one ``q``, or a likelihood gets a draw of a site;
            * with ``tight``: a likelihood is not Gaussian, and the guide has no factor of the residual variances.
        TypeError: with ``tight``, for a kernel with sampled views (:class:`~gpzoo.SampledView`).
    """

    def __init__(
        self,
        num_particles: int = 1,
        vectorize_particles: bool = True,
        sum_sites: bool = True,
        *,
        tight: bool = False,
    ) -> None:
        super().__init__(checks.positive_int("num_particles", num_particles), vectorize_particles, sum_sites)
        if not isinstance(tight, bool):
            raise TypeError(f"tight must be True or False, got {tight!r}.")
        self.tight = tight

    #: Enumerated sites are summed out; without this flag, NumPyro warns of any discrete site.
    can_infer_discrete = True

    @property
    def mode(self) -> Bound:
        """How the guide runs: whether GP sites give marginals or draws."""
        return Bound(tight=self.tight)

    def by_site(self) -> GaussianProcessELBO:
        """The same bound, whose ``loss`` is the contribution of every site, by name."""
        bound = copy(self)
        bound.sum_sites = False
        return bound

    def loss_with_mutable_state(
        self, rng_key: Array, param_map: dict[str, Any], model: Callable, guide: Callable, *args: Any, **kwargs: Any
    ) -> Any:
        """Negative ELBO, in nats, and the mutable state; see :meth:`numpyro.infer.ELBO.loss_with_mutable_state`."""
        refuse_other_program(model, guide)
        record: dict[str, dict[str, Any]] = {}  # trace of the guide's run, which comes before the model's

        def marginal_guide(*args: Any, **kwargs: Any) -> Any:
            nonlocal record
            with in_mode(self.mode), handlers.trace() as record:
                return guide(*args, **kwargs)

        def checked_model(*args: Any, **kwargs: Any) -> Any:
            with _ModelSide(record, self.data_site, _sites_of(guide)):
                return model(*args, **kwargs)

        # Outside the checks, because it runs the checked program and sums over the values of discrete sites.
        def scored_model(*args: Any, **kwargs: Any) -> Any:
            return scored(checked_model, _sites_of(guide))(*args, **kwargs)

        with SeenNames() as seen:
            estimate = self._estimate(rng_key, param_map, scored_model, marginal_guide, *args, **kwargs)
        # NumPyro's evaluate leaves out mutable state.
        checks.names("The objective's params", set(param_map), needed=seen.loose("param"), known=seen.names)
        return estimate

    def data_site(self, name: str, fn: Any, record: Trace) -> Any:
        """The distribution whose log density the objective takes at a data site; subclasses override this.

        Args:
            name: name of the site.
            fn: its distribution in the program, at the values that the guide has given.
            record: trace of the guide's run.
        """
        return _tightened(name, fn, record) if self.tight else fn

    def _estimate(self, *args: Any, **kwargs: Any) -> Any:
        """The loss and the mutable state, as NumPyro's objectives give them; subclasses override this.

        ``model`` is checked, and its discrete sites are summed out; ``guide`` runs in :attr:`mode`.
        """
        return super().loss_with_mutable_state(*args, **kwargs)


class _ModelSide(Handler):
    """The handler of the model's run: it compares each GP site with the guide's site, and keeps mutable state fixed.

    It also gives data sites the distribution whose log density the objective takes.
    """

    def __init__(self, record: Trace, data_site: Callable[[str, Any, Trace], Any], sites: Sites | None) -> None:
        super().__init__()
        self.record, self.data_site, self.sites = record, data_site, sites

    def process_message(self, msg: dict[str, Any]) -> None:
        name = msg.get("name")
        if msg["type"] == "mutable" and name in self.record:
            # A copy, because networks write their new state into the dictionary that they get.
            msg["value"] = jax.tree.map(lambda x: x, self.record[name]["value"])
            msg["stop"] = True
        elif msg["type"] == "sample" and msg["is_observed"]:
            msg["fn"] = self.data_site(cast(str, name), msg["fn"], self.record)

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "sample" or msg["is_observed"]:
            return
        name, fn = msg["name"], msg["fn"]
        if is_enumerated(msg) and self.sites is None:
            raise ValueError(
                f"Discrete site {name!r} is summed out only beside an InducingGuide, which knows the program's plates. "
                "Use InducingGuide(model, ...) as the guide, or NumPyro's TraceEnum_ELBO."
            )
        guide_site = self.record.get(name)
        guide_fn = None if guide_site is None else guide_site["fn"]
        support = getattr(unmasked(guide_fn), "support", None)
        if support is not None and support.is_discrete:
            raise ValueError(
                f"The guide has the discrete site {name!r}, for which the bound has no gradient: leave it out of the "
                "guide, and have the program sum it out, infer={'enumerate': 'parallel'}."
            )
        if not isinstance(fn, GaussianProcess) and not isinstance(guide_fn, InducingPosterior):
            return
        if not (isinstance(fn, GaussianProcess) and isinstance(guide_fn, InducingPosterior)):
            raise ValueError(
                f"GP site {name!r} would lose its analytic KL: the model has {type(fn).__name__}, the guide "
                f"{'nothing' if guide_fn is None else type(guide_fn).__name__}. Use InducingGuide(model, ...) of this "
                "very model as the guide."
            )
        ours, theirs = scale_of(guide_site), scale_of(msg)
        if not same_scale(ours, theirs):
            raise ValueError(
                f"GP site {name!r} has scale {ours} in the guide and {theirs} in the model, so its KL would be "
                "weighted wrongly. Apply handlers.scale to both, or to neither."
            )


def _tightened(name: str, fn: Any, record: Trace) -> Any:
    """The distribution of a data site, minus the divergence of ``q(f | u)`` from the prior given ``u``."""
    likelihood = unmasked(fn)
    if not (isinstance(likelihood, Likelihood) and likelihood.is_marginal):
        drawn = [n for n, s in record.items() if isinstance(s["fn"], InducingPosterior) and _is_array(s)]
        if drawn and not isinstance(likelihood, GaussianProcess | Unit):
            raise ValueError(
                f"GaussianProcessELBO(tight=True): data site {name!r} is given an array, and the program draws "
                f"{drawn}. A draw of f contains its residual variance already, so the bound would not be tighter. "
                "Give the marginals of a "
                "GP site to a likelihood of gpzoo.likelihoods, or leave tight=True out."
            )
        return fn
    parts = likelihood.f.parts
    if any(part.residual is not None for part in parts) and not likelihood.takes_residual:
        sites = sorted(likelihood.f.sites)
        raise ValueError(
            f"GaussianProcessELBO(tight=True): {type(likelihood).__name__} at data site {name!r} has no best "
            f"residual variance in closed form for GP site(s) {sites}. Learn a factor of each: "
            f"InducingGuide(..., residual={sites})."
        )
    divergences = [jnp.sum(part.divergence) for part in parts if part.divergence is not None]
    return _LessDivergence(fn, total(divergences)) if divergences else fn


class _LessDivergence(MaskedDistribution):
    """A likelihood's terms, minus a divergence for every observed row.

    Args:
        base: the likelihood, masked or not.
        divergence: in nats, per row.
    """

    def __init__(self, base: Any, divergence: Float[Array, ""]) -> None:
        super().__init__(base, True)
        self.divergence = divergence

    def log_prob(self, value: Any, intermediates: Any = None) -> Float[Array, "*S N"]:
        divergence = jnp.where(observed(self.base_dist, value), self.divergence, 0)
        return jnp.asarray(self.base_dist.log_prob(value)) - divergence


def _sites_of(guide: Any) -> Sites | None:
    """The program's sites as its guide knows them after its run, also inside handlers such as ``scope``."""
    sites = getattr(bare(guide), "sites", None)
    return sites if isinstance(sites, Sites) else None


def bare(guide: Any) -> Any:
    """A guide without the handlers around it."""
    while isinstance(guide, Messenger):
        guide = guide.fn
    return guide


def _is_array(site: dict[str, Any]) -> bool:
    return not isinstance(site["value"], GaussianMarginals)


def scale_of(site: dict[str, Any] | None) -> Any:
    """The factor by which a site's terms are scaled."""
    return 1.0 if site is None or site["scale"] is None else site["scale"]


def same_scale(a: Any, b: Any) -> bool:
    """Whether two scales are equal; checked only outside ``jit``, and a scale that ``jit`` traces counts as equal."""
    return a is b or isinstance(a, Tracer) or isinstance(b, Tracer) or bool(a == b)
