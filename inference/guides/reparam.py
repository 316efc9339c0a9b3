"""White noise in place of ``f`` for MCMC: GP sites are made from it, exactly or through inducing variables.

A plain GP site is *centred*: NUTS moves its value ``f``. The scales and correlations of ``f`` change with the
hyperparameters, so that NUTS needs many small steps. For a *whitened* site, NUTS moves ``v ~ N(0, I)`` instead. If the
data have little information, the hyperparameters and ``v`` are nearly independent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array, lax, random
from jaxtyping import Bool, Float, PRNGKeyArray
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.distributions.distribution import Unit
from numpyro.infer.reparam import Reparam

from gpzoo import _checks as checks
from gpzoo import linalg
from gpzoo._labels import aligned
from gpzoo._numpyro import OwnSites
from gpzoo.errors import FactorisationError
from gpzoo.inducing.initialisers import Initialiser, start
from gpzoo.inducing.kuu_kuf import Kuu, jitter_of
from gpzoo.inducing.variables import InducingVariable
from gpzoo.inference.guides.options import Inducing
from gpzoo.inference.programs.arguments import refuse_unknown
from gpzoo.inference.programs.keys import named_key
from gpzoo.linalg.operators import BlockDiagonalMatrix
from gpzoo.posteriors.conditional import Projection
from gpzoo.posteriors.forms import Diagonal
from gpzoo.posteriors.posterior import InducingPosterior
from gpzoo.processes.marginals import DrawLog, GaussianMarginals
from gpzoo.processes.process import GaussianProcess

_LOG_2PI = 1.8378770664093453


class WhitenReparam(Reparam):
    """A NumPyro reparameteriser that makes a GP site from white noise, the site ``<site>_base``.

    The exact form has no inducing variables. It is ``f = mean + L v`` with ``L L^T = K(X, X)``. ``v`` has the site's
    own shape, ``[N]`` or ``[N, D]``. ``f`` is recorded as a deterministic site. The posterior does not change.

    The sparse form has ``M`` inducing variables (Hensman, Matthews, Filippone and Ghahramani 2015). It is ``u = L v``
    with ``L L^T = Kuu``. ``v`` has the shape ``[M]`` or ``[M, D]``. ``u`` is recorded as ``<site>_u``. The program gets
    the marginals of ``f`` given ``u``, and likelihoods take the expectation ``E_p(f|u) log p(y | f)``. A likelihood
    that takes this expectation by draws uses the same noise at every step. Programs may use the site only in operations
    that are exact on :class:`~gpzoo.GaussianMarginals`.

    If the covariance does not factorise, the density is zero. NUTS counts this as a divergence.

    Example:
        >>> import jax, numpy as np
        >>> from numpyro import handlers
        >>> from gpzoo.inference import WhitenReparam
        >>> from gpzoo.models import gp_regression
        >>> program = handlers.reparam(gp_regression, {"f": WhitenReparam()})
        >>> X = np.linspace(0, 1, 5, dtype=np.float32)[:, None]
        >>> sites = handlers.trace(handlers.seed(program, 0)).get_trace(X, X[:, 0])
        >>> sites["f_base"]["value"].shape, sites["f"]["type"]
        ((5,), 'deterministic')

    Args:
        inducing: an inducing variable, or an initialiser such as :func:`~gpzoo.kmeans`; ``None`` for the exact form. An
            initialiser looks at each site's inputs once, when the program first runs.

    Raises:
        TypeError: if ``inducing`` is a grid, or neither an inducing variable nor an initialiser. When the program runs,
            also in these cases:

            * the site is not a GP, or its kernel has sampled views (:class:`~gpzoo.SampledView`);
            * ``jit`` traces the inputs that an initialiser needs;
            * the program draws a sparse site.
        ValueError: for an observed site, or values of ``<site>_base`` whose shape does not fit the inputs.
    """

    def __init__(self, inducing: Initialiser | InducingVariable | None = None) -> None:
        if getattr(inducing, "num_axes", 0):
            raise TypeError(
                "Under MCMC a site has no grid of inducing variables: take kmeans(40), InducingPoints(Z), or none."
            )
        if not isinstance(inducing, Initialiser | InducingVariable | None):
            raise TypeError(
                "inducing must be an initialiser such as kmeans(40), an inducing variable such as InducingPoints(Z), "
                f"or None; got {type(inducing).__name__}."
            )
        self.inducing = inducing
        self._made: dict[str, InducingVariable] = {}

    def __call__(self, name: str, fn: Any, obs: Any) -> tuple[Any, Any]:
        """NumPyro's protocol: the site's new distribution and value."""
        if not isinstance(fn, GaussianProcess):
            raise TypeError(f"Site {name!r} is a {type(fn).__name__}: only a GaussianProcess is whitened.")
        if obs is not None:
            raise ValueError(f"GP site {name!r} has a value, so that there is nothing to whiten: leave it out.")
        fn.refuse_mapped(name)
        if stands_as_it_is():
            if self.inducing is not None:
                numpyro.deterministic(f"{name}_inducing", self.variable(name, fn))
            return fn, None
        return self._exact(name, fn) if self.inducing is None else self._sparse(name, fn)

    def _exact(self, name: str, prior: GaussianProcess) -> tuple[None, Float[Array, "*event"]]:
        mean, covariance = prior.moments()
        jitter, of = prior.covariance_jitter, f"the covariance of GP site {name!r}"
        L, factorised = guarded_factor(lax.stop_gradient(covariance), of, lax.stop_gradient(jitter))
        v = _noise(name, prior.event_shape, mean.dtype, factorised).reshape(prior.num_inputs, -1)
        K = linalg.add_jitter(covariance, jitter)
        f = linalg.times_factor(L, K, v) if L.ndim == 2 else linalg.times_factor(L, K, v.T[..., None])[..., 0].T
        return None, mean + f.reshape(prior.event_shape)

    def _sparse(self, name: str, prior: GaussianProcess) -> tuple[Unit, GaussianMarginals]:
        if prior.in_row is not None:
            _NO_DRAWS.asked(frozenset({name}))
        conditional = GuardedProjection(prior, self.variable(name, prior), site=name)
        shape = (conditional.num_inducing, *conditional.outputs)
        v = _noise(name, shape, conditional.dtype, conditional.factorised)
        given_u = InducingPosterior(conditional, v, Diagonal(jnp.zeros_like(v)))
        numpyro.deterministic(f"{name}_u", given_u.inducing_moments()[0])
        # The covariance of f with u may hold NaN if the covariance of u does not factorise.
        mean, variance = (jnp.where(conditional.factorised, x, 1) for x in given_u.marginals())
        # The same noise at every step, or the density would not be a function of the state.
        key = named_key(random.key(0), name)
        return Unit(0.0), GaussianMarginals(mean, variance, key, sites=frozenset({name}), log=_NO_DRAWS)

    def variable(self, name: str, prior: GaussianProcess) -> InducingVariable:
        """The inducing variable of a site."""
        if not isinstance(self.inducing, Initialiser):
            return cast(InducingVariable, self.inducing)
        if name not in self._made:
            if not checks.is_concrete(prior.X):
                raise TypeError(
                    f"{type(self.inducing).__name__} cannot look at the inputs of GP site {name!r} under a "
                    "transformation such as jax.jit: run the program once outside it, or give InducingPoints(Z)."
                )
            with jax.ensure_compile_time_eval():
                key = named_key(random.key(0), name)
                self._made[name] = start(name, self.inducing, key, prior.X, prior.kernel, {})
        return self._made[name]


class whitened(handlers.reparam):
    """A program for MCMC whose latent GP sites are whitened, each by :class:`WhitenReparam`::

        mcmc = MCMC(NUTS(whitened(program)), num_warmup=500, num_samples=500)
        mcmc = MCMC(NUTS(whitened(program, kmeans(20))), num_warmup=500, num_samples=500)

    ``mcmc.get_samples()`` has draws of ``f`` in the exact form, and draws of ``f_u`` in the sparse form. Pass these
    draws and the whitened program to :func:`~gpzoo.inference.predict` or :func:`~gpzoo.inference.draws_to_arviz`.
    The program itself, without ``whitened``, is the centred form. To whiten only some sites, use NumPyro's own
    ``handlers.reparam(program, {"f": WhitenReparam()})``. ``numpyro.param`` sites need priors, as in
    ``whitened(handlers.lift(program, prior))``.

    Use the exact form for up to 200 inputs, the sparse form for a few thousand, and :func:`~gpzoo.inference.fit` for
    more. The following times are for a classifier that adds two GPs, on a CPU in float32. In the exact form, a gradient
    took 0.2 ms at 50 inputs, 0.9 ms at 100, 6 ms at 200, 24 ms at 400, and 130 ms at 800. With 40 inducing variables
    for each GP, a gradient took 0.3 ms at 50 inputs, 0.9 ms at 200, and 2 ms at 800. A draw took 15 gradients at 50
    inputs, and 31 at 200. Four chains of 500 + 500 draws took 36 s of processor time at 50 inputs, half of it for
    compilation. They took 130 s at 200 inputs with 20 inducing variables. In the centred form, a draw at 50 inputs took
    1,023 gradients, the longest possible trajectory, and the chains had not converged after 100 draws. The results of
    ``benchmarks/whitened.py`` are recorded beside it.

    NumPyro compiles one program for every chain that runs in sequence. For one program for all chains, use
    ``MCMC(..., num_chains=4, chain_method=lambda chain: partial(jax.lax.map, chain))``.

    Example:
        >>> import jax, numpy as np
        >>> from numpyro import handlers
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import whitened
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 1, 20, dtype=np.float32)[:, None]
        >>> program = handlers.seed(whitened(gp_regression, kmeans(5)), 0)
        >>> sites = handlers.trace(program).get_trace(X, X[:, 0])
        >>> sites["f_base"]["value"].shape, sites["f_u"]["value"].shape
        ((5,), (5,))

    Args:
        fn: a NumPyro program.
        inducing: see :class:`WhitenReparam`; one for all GP sites, or by site name. Sites that are not named are exact.
            A site that the program draws, by :func:`~gpzoo.draws` or as the inputs of another GP, must be exact.

    Raises:
        ValueError: when the program runs, for names of sites that it does not have; see :class:`WhitenReparam`.
        TypeError: see :class:`WhitenReparam`.
    """

    def __init__(self, fn: Callable | None = None, inducing: Inducing | None = None) -> None:
        named, default = (inducing, None) if isinstance(inducing, Mapping) else ({}, inducing)
        self._by_name, self._default = {name: WhitenReparam(of) for name, of in named.items()}, WhitenReparam(default)
        self._seen: set[str] = set()
        self._own = OwnSites()
        super().__init__(fn, config=lambda site: self._by_name.get(site["name"], self._default))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program."""
        if self.fn is not None:
            args = aligned(checks.positional(self.fn, len(args))[0], args)
            # Under jit, NumPy's arrays become JAX's, and initialisers can no longer look at their numbers.
            args, kwargs = tuple(map(_as_jax, args)), {name: _as_jax(x) for name, x in kwargs.items()}
        return super().__call__(*args, **kwargs)

    def __enter__(self) -> Any:
        self._seen = set()
        return super().__enter__()

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        super().__exit__(exc_type, exc_value, traceback)
        if exc_type is None:
            refuse_unknown("inducing", self._by_name, self._seen, "program's latent GP sites")

    def process_message(self, msg: Any) -> None:
        """Whiten latent GP sites. Only the handlers outside see the new sites, such as ``<site>_base``."""
        if self._own.restored(msg):
            return
        if msg["type"] != "sample" or not isinstance(msg["fn"], GaussianProcess) or msg["value"] is not None:
            return
        self._seen.add(msg["name"])
        with self._own:
            super().process_message(msg)
        if isinstance(msg["value"], GaussianMarginals):
            msg["stop"] = True  # the handlers outside record numbers, and marginals are not numbers

    def postprocess_message(self, msg: Any) -> None:
        """See :meth:`process_message`."""
        self._own.answered(msg)


# -- prediction --------------------------------------------------------------------------------------------------------

_AS_THEY_STAND: ContextVar[bool] = ContextVar("as they stand", default=False)


def stands_as_it_is() -> bool:
    """Whether no site is whitened now; see :func:`as_they_stand`."""
    return _AS_THEY_STAND.get()


@contextmanager
def as_they_stand() -> Iterator[None]:
    """A context in which no site is whitened: for code that conditions GP sites on draws itself.

    The inducing variable of a sparse site is recorded as the deterministic site ``<site>_inducing``.
    """
    token = _AS_THEY_STAND.set(True)
    try:
        yield
    finally:
        _AS_THEY_STAND.reset(token)


def inducing_variables(trace: Mapping[str, Any], samples: Mapping[str, Any]) -> dict[str, InducingVariable]:
    """The inducing variables of a program's sparse sites, by name.

    Args:
        trace: trace of a run in the context :func:`as_they_stand`.
        samples: draws by name, with the draws of ``<site>_u``.

    Raises:
        ValueError: if ``<site>_u`` is missing.
    """
    recorded = {name: site["value"] for name, site in trace.items() if site["type"] == "deterministic"}
    found = {name.removesuffix("_inducing"): x for name, x in recorded.items() if isinstance(x, InducingVariable)}
    if missing := [f"{name}_u" for name in found if f"{name}_u" not in samples]:
        raise ValueError(f"posterior_samples has no draws of {missing}, which MCMC of this whitened program records.")
    return found


# -- parts -------------------------------------------------------------------------------------------------------------


def _as_jax(x: Any) -> Any:
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "fiub":
        return x
    with jax.ensure_compile_time_eval():
        return jnp.asarray(x)


class _WhiteNoise(dist.Distribution):
    """``N(0, I)`` from which ``f`` or ``u`` is made; its density is zero if their covariance has no factor."""

    arg_constraints: ClassVar[dict[str, Any]] = {}
    pytree_data_fields = ("factorised",)
    pytree_aux_fields = ("dtype",)

    def __init__(self, shape: tuple[int, ...], dtype: Any, factorised: Bool[Array, ""]) -> None:
        self.factorised, self.dtype = factorised, dtype
        super().__init__(event_shape=shape)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.independent(constraints.real, len(self.event_shape))

    def sample(self, key: PRNGKeyArray, sample_shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
        return random.normal(key, sample_shape + self.event_shape, self.dtype)

    def log_prob(self, value: Float[Array, "..."], intermediates: Any = None) -> Float[Array, "*S"]:
        axes = tuple(range(-len(self.event_shape), 0))
        density = -jnp.sum(jnp.square(value) + _LOG_2PI, axis=axes) / 2
        return jnp.where(self.factorised, density, -jnp.inf)


def _noise(name: str, shape: tuple[int, ...], dtype: Any, factorised: Bool[Array, ""]) -> Float[Array, "_ *D"]:
    v = numpyro.sample(f"{name}_base", _WhiteNoise(shape, dtype, factorised))
    if jnp.shape(v) != shape:
        raise ValueError(
            f"The value given for {name}_base has shape {jnp.shape(v)}, but the site has shape {shape} here: draws "
            "belong to the inputs that they were found for. At new inputs call gpzoo.inference.predict(key, program, "
            "new, posterior_samples=samples, train_args=(X, y))."
        )
    return v


def guarded_factor(
    K: Float[Array, "*D N N"], name: str, jitter: Any, *, for_draws: bool = True
) -> tuple[Float[Array, "*D N N"], Bool[Array, ""]]:
    """The Cholesky factor of ``K`` plus jitter, and whether it exists. If it does not exist, the identity replaces it.

    With ``for_draws`` and outside ``jit``, a root of ``K`` replaces the missing factor instead, so that draws have the
    prior's covariance. NumPyro runs the program outside ``jit`` when it looks for initial values.
    """
    try:
        L, factorised = linalg.cholesky_or_failed(K, name, jitter)
    except FactorisationError:
        none = linalg.root(K, name, jitter) if for_draws else _identity_like(K)
        return none, jnp.asarray(False)
    return L, jnp.all(factorised == 1)


def _identity_like(K: Float[Array, "*D N N"]) -> Float[Array, "*D N N"]:
    return jnp.broadcast_to(jnp.eye(K.shape[-1], dtype=K.dtype), K.shape)


class GuardedProjection(Projection):
    """A projection that stays finite even if ``Kuu`` does not factorise; ``factorised`` says whether it does."""

    factorised: Bool[Array, ""]

    def __init__(self, prior: GaussianProcess, inducing: InducingVariable, *, site: str) -> None:
        self.prior, self.inducing, self.whiten, self.site = prior, inducing, True, site
        K = Kuu(inducing, prior.kernel)
        jitter = jitter_of(prior, inducing, K)
        pairs = linalg.by_block(K, jitter) if isinstance(K, BlockDiagonalMatrix) else [(K, jitter)]
        found = {}
        for block, own in pairs:
            if id(block) not in found:  # parts of a kernel that share a block share its factor
                found[id(block)] = guarded_factor(block, f"Kuu of site {site!r}", own)
        factors = [found[id(block)][0] for block, _ in pairs]
        inverses = [linalg.solve_lower(L, _identity_like(L)) for L in factors]
        blockwise = isinstance(K, BlockDiagonalMatrix)
        self.L = BlockDiagonalMatrix(*factors) if blockwise else factors[0]
        self.L_inverse = BlockDiagonalMatrix(*inverses) if blockwise else inverses[0]
        self.factorised = jnp.all(jnp.stack([factorised for _, factorised in found.values()]))


class _NoDraws(DrawLog):
    """Refuses draws of sparse sites: draws of ``f`` given ``u`` would be new noise at every step."""

    def asked(self, sites: frozenset[str]) -> None:
        """See :meth:`DrawLog.asked`."""
        names = ", ".join(map(repr, sorted(sites)))
        raise TypeError(
            f"The program draws GP site {names}, by draws(f) or as the inputs of another GP, but "
            "under MCMC a site with inducing variables is marginals: give inducing variables to other sites only, "
            "whitened(program, {site: ...}), or take the likelihood Expected(fn, f)."
        )


_NO_DRAWS = _NoDraws()
