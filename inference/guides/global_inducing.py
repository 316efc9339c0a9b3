"""Guide with global inducing inputs: the program runs on them, so that each layer depends on the layers below.

Ober and Aitchison 2021, *Global inducing point variational posteriors for Bayesian neural networks and deep Gaussian
processes*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn, cast

import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array
from jax.scipy.linalg import solve_triangular
from jaxtyping import Float, PRNGKeyArray
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint
from numpyro.infer import init_to_median

from gpzoo import _checks as checks
from gpzoo import linalg
from gpzoo._types import ArrayLike
from gpzoo.inducing.initialisers import Initialiser
from gpzoo.inducing.variables import InducingPoints, InducingVariable
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.guides.handler import PosteriorHandler, parameter_of
from gpzoo.inference.guides.options import for_site
from gpzoo.inference.programs.runs import Runs, Trace, check_value
from gpzoo.inference.programs.sites import Sites
from gpzoo.posteriors.conditional import Projection
from gpzoo.posteriors.forms import Full
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.process import GaussianProcess, to_event_shape

#: The parameter of the inducing inputs.
INPUTS = "inducing_inputs"


class GlobalInducingGuide(InducingGuide):
    """A guide that also runs the program on inducing inputs ``Z``, and conditions each layer on the layers below.

    The guide first runs the program on ``Z`` and draws each site there. The inducing inputs of a GP site are its inputs
    in this run. Its ``q(u)`` is the posterior given pseudo-data ``v`` at these inputs, with independent normal noise:
    ``q(u) ~ p(u) N(v; u, diag(s^2))`` (Ober and Aitchison 2021). So layers depend on each other: if the draw of one
    layer changes, the layer above follows. In an :class:`~gpzoo.inference.InducingGuide`, layers are independent.

    The parameters are ``inducing_inputs`` and, for each GP site, ``<site>_mean`` and ``<site>_noise``. ``<site>_mean``
    is the pseudo-data minus the prior's mean. ``<site>_noise`` has the standard deviations of the pseudo-data's noise.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import GlobalInducingGuide
        >>> from gpzoo.models import deep_gp, linear_layers
        >>> X = np.random.default_rng(0).standard_normal((30, 3)).astype(np.float32)
        >>> guide = GlobalInducingGuide(partial(deep_gp, layers=linear_layers(X, [2])), kmeans(5))
        >>> params = guide.init_params(jax.random.key(0), X, X[:, 0])
        >>> [(name, params[name].shape) for name in params if "inducing" in name or "mean" in name]
        [('inducing_inputs', (5, 3)), ('layer_0_mean', (5, 2)), ('f_mean', (5,))]

    Args:
        model: a NumPyro program whose first argument is its inputs. It also runs with ``Z`` in place of the inputs,
            with the same keyword arguments and without the other positional arguments.
        inputs: ``Z``, ``[M, ...]`` in the format of the first argument, or an initialiser such as
            :func:`~gpzoo.kmeans`, which finds ``Z`` from the first argument.
        initial_noise: initial ``<site>_noise``, in units of the prior's standard deviations; one for all sites, or by
            site name. With ``None``, it is 0.1 for inner sites, on which other sites depend, so that inner layers start
            near their means. For all other sites, it is 1. ``<site>_mean`` starts at zero.
        hyperparameters: see :class:`~gpzoo.inference.InducingGuide`. A latent variable has the same value on ``Z`` and
            on the data.
        init_loc_fn: see :class:`~gpzoo.inference.InducingGuide`.

    Raises:
        TypeError: if ``inputs`` is neither an array nor an initialiser.
        ValueError: for inducing inputs that are not finite, or an initialiser that does not make inducing points. The
            first call also raises it if a latent variable has a value for each row, because such a variable has no
            values on ``Z``.
    """

    def __init__(
        self,
        model: Callable,
        inputs: ArrayLike | Initialiser,
        *,
        initial_noise: float | Mapping[str, float] | None = None,
        hyperparameters: str | Callable[[Callable], Callable] = "point",
        init_loc_fn: Callable = init_to_median,
    ) -> None:
        super().__init__(
            model,
            InducingPoints(np.zeros((1, 1))),
            initial_scale={} if initial_noise is None else initial_noise,
            hyperparameters=hyperparameters,
            init_loc_fn=init_loc_fn,
            coupled=False,
        )
        if isinstance(inputs, Initialiser):
            points = getattr(inputs, "variable", None) is InducingPoints
            checks.must(points, "inputs", "be inputs, or their initialiser such as kmeans(50);", type(inputs).__name__)
        else:
            inputs = checks.floating("inputs", inputs)
            checks.finite("inputs", inputs)
        self.inputs = inputs

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """See :meth:`InducingGuide.__call__`."""
        sites, other = self.sites_for(args, kwargs), self.hyperparameter_guide(args, kwargs)
        Z = numpyro.param(INPUTS, partial(self._start, args[0]))
        start = partial(self.starting_sites, args=args, kwargs=kwargs)
        below = _AtInducing(self, sites, ((Z,), kwargs), other, start)
        with handlers.block(hide_fn=lambda site: site["type"] != "param"), handlers.seed(rng_seed=numpyro.prng_key()):
            with below:
                self.model(Z, **kwargs)
        with _Given(self, sites, (args, kwargs), other, start, below=below) as handler:
            self.model(*args, **kwargs)
        return handler.values

    def _start(self, X: Array, key: PRNGKeyArray) -> Array:
        if not isinstance(self.inputs, Initialiser):
            return self.inputs.astype(X.dtype)
        checks.refuse(
            not checks.is_concrete(X), "The initialiser of inducing inputs reads them, outside jit.", TypeError
        )
        return parameter_of(self.inputs.initialise(key, np.asarray(X), cast(Any, None)))

    def sites_for(self, args: tuple, kwargs: dict[str, Any], seen: Any = None) -> Sites:
        """See :meth:`InducingGuide.sites_for`."""
        known = self.sites is not None
        sites = super().sites_for(args, kwargs, seen)
        if not known and isinstance(self.initial_scale, Mapping):
            self.initial_scale = dict.fromkeys(sites.inner, 0.1) | dict(self.initial_scale)
        return sites

    def _of_processes(self, sites: Sites) -> dict[str, Constraint | None]:
        own: dict[str, Constraint | None] = {INPUTS: None}
        for site in sites.processes:
            own |= {f"{site}_mean": None, f"{site}_noise": constraints.positive}
        return own

    def looks_at_inputs(self, given: Mapping[str, Any] | None = None) -> list[str]:
        """See :meth:`InducingGuide.looks_at_inputs`."""
        return [INPUTS] if isinstance(self.inputs, Initialiser) and INPUTS not in (given or {}) else []

    def _started_at_once(self, started: Callable[..., Runs], looked_at: list[str]) -> Trace | None:
        return None if looked_at else super()._started_at_once(started, looked_at)

    def form_at(self, site: str) -> NoReturn:
        """Refused: the parameters are pseudo-data, not a form of ``q(u)``."""
        raise ValueError(
            "GlobalInducingGuide has no q(u) among its parameters, but pseudo-data, and no inducing variables of each "
            "site: natural gradients, updates by new data, CollapsedELBO and hyperparameters() are for InducingGuide."
        )


class _AtInducing(PosteriorHandler):
    """A run on the inducing inputs: a GP site's inducing inputs are its own inputs, and its value is a draw of ``u``.

    Attributes:
        found: the posterior and the draw of ``u``, whitened, of each GP site.
    """

    def __init__(self, *options: Any) -> None:
        super().__init__(*options)
        self.found: dict[str, tuple[InducingPosterior, Array]] = {}

    def _process(self, name: str, msg: dict[str, Any]) -> Array:
        prior = self.mode.prior(name, msg["fn"])
        conditional = Projection(prior, InducingPoints(prior.X), site=name)
        shape, scale = (conditional.num_inducing, *conditional.outputs), for_site(self.options.initial_scale, name, 1.0)
        start = lambda _: scale * jnp.sqrt(to_event_shape(prior.kernel.diag(prior.X), shape))  # noqa: E731
        v = numpyro.param(f"{name}_mean", jnp.zeros(shape, conditional.dtype))
        noise = numpyro.param(f"{name}_noise", start, constraint=constraints.softplus_positive)
        for part, value in (("mean", v), ("noise", noise)):
            check_value(f"{name}_{part}", value, shape)
        posterior = InducingPosterior(conditional, *_of_pseudo_data(conditional.L, v, noise))
        draw = posterior.draw_inducing(numpyro.prng_key())
        self.found[name] = posterior, draw
        if self.mode.starts:
            return prior.mean
        return prior.mean + posterior.given(draw).inducing_moments()[0].reshape(prior.event_shape)

    def _other(self, name: str, msg: dict[str, Any]) -> Any:
        plates = [frame.name for frame in msg["cond_indep_stack"]]
        checks.refuse(
            plates,
            f"Latent site {name!r} has a value for each row (plate {', '.join(map(repr, plates))}), and nothing tells "
            "those of the inducing inputs: GlobalInducingGuide is for programs without such sites.",
        )
        return super()._other(name, msg)


class _Given(PosteriorHandler):
    """A run on the data, after one on the inducing inputs."""

    def __init__(self, *options: Any, below: _AtInducing) -> None:
        super().__init__(*options)
        self.below, self.sampled, self.taken = below, below.sampled, below.taken

    def _inducing(self, name: str, initialiser: Any, prior: GaussianProcess) -> InducingVariable:
        return self.below.found[name][0].inducing

    def _posterior(self, name: str, prior: GaussianProcess, inducing: InducingVariable) -> InducingPosterior:
        q, draw = self.below.found[name]
        factor = q.conditional.L, q.conditional.L_inverse
        conditional = Projection(self.mode.prior(name, prior), inducing, site=name, factor=factor)
        # If a layer above has seen the draw, the rest of the function must agree with it.
        return InducingPosterior(conditional, q.u_mean, q.form, drawn=draw if name in self.sites.inner else None)

    def _other(self, name: str, msg: dict[str, Any]) -> Any:
        with handlers.substitute(data={name: self.below.values[name]}):
            return super()._other(name, msg)


def _of_pseudo_data(
    L: Float[Array, "... M M"], v: Float[Array, "M *D"], noise: Float[Array, "M *D"]
) -> tuple[Float[Array, "M *D"], Full]:
    """Mean and covariance of whitened ``u``, ``u = L w``, given ``v = u + noise e``.

    ``S = (I + A A^T)^-1`` and ``m = S A v / s`` with ``A = L^T / s``.
    """
    by_output = lambda x: x.reshape(len(v), -1).T  # noqa: E731
    deviations = by_output(noise)
    A = jnp.broadcast_to(L.mT, (*deviations.shape[:1], *L.shape[-2:])) / deviations[:, None, :]
    B = jnp.eye(L.shape[-1], dtype=L.dtype) + linalg.matmul(A, A.mT)
    # ``U U^T = B`` with ``U`` upper, so that ``U^-T`` is lower.
    U = jnp.flip(jnp.linalg.cholesky(jnp.flip(B, (-2, -1)), symmetrize_input=False), (-2, -1))
    R = solve_triangular(U, jnp.broadcast_to(jnp.eye(B.shape[-1], dtype=B.dtype), B.shape), lower=False).mT
    m = linalg.matmul(R, linalg.matmul(R.mT, linalg.matmul(A, (by_output(v) / deviations)[..., None])))[..., 0]
    return (m[0], Full(R[0])) if v.ndim == 1 else (m.T, Full(R))
