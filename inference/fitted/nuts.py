"""NUTS for hyperparameters, started at their mode with the curvature there, and for programs that draw functions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.flatten_util import ravel_pytree
from jaxtyping import Float
from numpyro.infer import MCMC, NUTS, init_to_median
from numpyro.infer.util import initialize_model
from scipy.optimize import minimize

from gpzoo import _checks as checks
from gpzoo._types import Argument
from gpzoo.errors import NonFiniteError
from gpzoo.inference.bounds.marginal import marginal
from gpzoo.inference.fitted._nuts_progress import WatchedNUTS, wanted
from gpzoo.inference.programs.arguments import arguments
from gpzoo.inference.programs.calls import entry_point
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.program import look, refuse_enumerated_priors
from gpzoo.inference.programs.runs import data_of, sampled

#: Most steps of the search for the mode, and the relative change of the density at which the search ends.
_STEPS, _ENOUGH = 200, 1e-6

_NO_START = (
    "No start with a finite density and a finite gradient was found: check the priors and the data, or take float64 "
    "(numpyro.enable_x64()). A kernel or likelihood of your own needs a gradient where inputs coincide (no sqrt at 0)."
)

_NO_DATA = (
    "The program has no data: give a site obs=y in the program, and give nuts all arguments, nuts(key, program, X, y)."
)

#: A potential, with its gradient.
_Both: TypeAlias = Callable[[Any], tuple[Array, Array]]

#: Smallest and largest standard deviation that the starting mass matrix may have, in the unconstrained space.
_LEAST, _MOST = 1e-3, 3.0


@entry_point
def nuts(
    rng_key: Array,
    program: Callable,
    *args: Argument,
    num_warmup: int = 500,
    num_samples: int = 500,
    num_chains: int = 4,
    target_accept_prob: float = 0.8,
    progress: bool | None = None,
    extra_fields: Sequence[str] = ("energy", "num_steps", "accept_prob"),
    model_kwargs: Mapping[str, Any] | None = None,
) -> MCMC:
    """Run NumPyro's MCMC with NUTS, from the mode of the hyperparameters of a :class:`marginal` program.

    L-BFGS finds the mode in the unconstrained space. Warmup begins with a dense mass matrix: the inverse of the Hessian
    at the mode, from differences of gradients. Chains start at draws of a normal distribution around the mode, with
    twice the standard deviations that this matrix gives. All chains are one compiled program.

    Other programs, such as :func:`whitened` ones, start at NumPyro's ``init_to_median``, with NumPyro's diagonal mass
    matrix. The reason: most of the posterior mass of functions and hyperparameters is far from their joint mode.

    Example:
        >>> import jax, numpy as np, numpyro, numpyro.distributions as dist
        >>> from gpzoo import GaussianProcess, kernels, likelihoods
        >>> from gpzoo.inference import marginal, nuts
        >>> def regression(X, y=None):
        ...     lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
        ...     f = numpyro.sample("f", GaussianProcess(kernels.RBF(1.0, lengthscale), X))
        ...     numpyro.sample("y", likelihoods.Gaussian(f, 0.1), obs=y)
        >>> X = np.linspace(0, 6, 20, dtype=np.float32)[:, None]
        >>> options = {"num_warmup": 50, "num_samples": 50, "num_chains": 2, "progress": False}
        >>> mcmc = nuts(jax.random.key(0), marginal(regression), X, np.sin(X[:, 0]), **options)
        >>> mcmc.get_samples()["lengthscale"].shape
        (100,)

    Args:
        rng_key: key of the draws.
        program: a NumPyro program, such as ``marginal(program)``.
        *args: the program's positional arguments, data included.
        num_warmup: steps in which NUTS adapts its step size and mass matrix.
        num_samples: draws of each chain.
        num_chains: number of chains.
        target_accept_prob: see :class:`numpyro.infer.NUTS`.
        progress: whether to report progress on stderr. The report begins with an estimate of the time. A bar then
            shows the time left, divergences and step size. The last line shows divergences, the largest R-hat and the
            smallest effective sample size. ``None`` reports in terminals and notebooks.
        extra_fields: fields of ``mcmc.get_extra_fields()`` beside ``diverging``, such as for ``az.plot_energy``.
        model_kwargs: the program's keyword arguments, by name.

    Returns:
        The MCMC after its run, for ``mcmc.get_samples(group_by_chain=True)`` and ``mcmc.print_summary()``. Its program
        is ``mcmc.sampler.model``.

    Raises:
        ValueError: for counts below one, a program without latent sites, data without a density at any value of the
            latent functions, or a GP site whose prior depends on a discrete site.
        NonFiniteError: if no start with a finite density is found.
    """
    key = checks.rng_key(rng_key)
    given_counts = {"num_warmup": num_warmup, "num_samples": num_samples, "num_chains": num_chains}
    counts: dict[str, Any] = {name: checks.positive_int(name, count) for name, count in given_counts.items()}
    given, kwargs = arguments(program, args, model_kwargs)
    with jax.numpy_dtype_promotion("standard"):  # NumPyro's and optax's steps mix dtypes
        integrated, chains, own = _integrates(program), counts["num_chains"], named_key(key, "start")
        # Like `fit`, this refuses bad data. It looks at the program with its GP sites, which may be inside handlers.
        inner: Any = program.fn if isinstance(program, marginal) else program
        if inner is not program or not integrated:
            seen = look(inner, given, kwargs, arrays=not integrated, refuse_data=True)
            checks.refuse(not data_of(seen.trace), _NO_DATA)
        try:
            start = initialize_model(
                own if integrated or chains == 1 else random.split(own, chains),
                program,
                model_args=given,
                model_kwargs=kwargs,
                init_strategy=init_to_median(num_samples=15),
            )
        except RuntimeError as error:
            checks.refuse("valid initial parameters" in str(error), _NO_START, NonFiniteError)
            raise
        checks.refuse(not data_of(start.model_trace), _NO_DATA)
        first = start.param_info.z
        checks.refuse(not first, "The program has no latent sites for NUTS to move: give it priors.")
        kind = jnp.result_type(*jax.tree.leaves(first))  # all sites share one step size, of one type
        first = jax.tree.map(lambda x: x.astype(kind), first)
        unobserved = sampled(start.model_trace).keys() - data_of(start.model_trace).keys()
        discrete = [name for name in unobserved if start.model_trace[name]["fn"].has_enumerate_support]
        if discrete:  # NumPyro sums them out
            refuse_enumerated_priors(look(program, given, kwargs, arrays=True), discrete)
        flat, unravel = ravel_pytree(first if integrated or chains == 1 else jax.tree.map(lambda x: x[0], first))
        # One compiled program for the search, the Hessian and the estimate of the time.
        both = jax.jit(jax.value_and_grad(lambda x: start.potential_fn(unravel(x))))
        one_by_one = jax.default_backend() == "cpu"
        options: dict[str, Any] = {"target_accept_prob": target_accept_prob}
        if integrated:
            noise = random.normal(named_key(key, "chains"), (chains, len(flat)), flat.dtype)
            points, spread = _around(both, _mode(both, flat), np.asarray(noise))
            checks.refuse(not np.isfinite(points).all(), _NO_START, NonFiniteError)
            options |= {"dense_mass": True, "inverse_mass_matrix": spread @ spread.T}
            first = jax.vmap(unravel)(jnp.asarray(points)) if chains > 1 else unravel(jnp.asarray(points[0]))
        watched = WatchedNUTS(program, in_turn=one_by_one, **options) if wanted(progress) else None
        together: Any = _one_by_one if one_by_one and watched is None else "vectorized"
        kernel = NUTS(program, **options) if watched is None else watched
        mcmc = MCMC(kernel, **counts, chain_method=together, progress_bar=watched is not None, progress_rate=1)
        with nullcontext() if watched is None else watched.spoken(mcmc, _seconds(both, flat)):
            mcmc.run(named_key(key, "nuts"), *given, init_params=first, extra_fields=extra_fields, **kwargs)
            jax.block_until_ready(mcmc.get_samples())
    return mcmc


def _integrates(program: Any) -> bool:
    """Whether a program integrates functions out. It may be inside handlers and partial functions."""
    while program is not None and not isinstance(program, marginal):
        program = getattr(program, "fn", getattr(program, "func", None))
    return program is not None


def _seconds(both: _Both, at: Array) -> float:
    """Seconds that a gradient takes."""
    jax.block_until_ready(both(at))  # compiles
    began = time.perf_counter()
    jax.block_until_ready(both(at))
    return time.perf_counter() - began


def _one_by_one(chain: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Chains that run one after another in one program. Side by side, all would wait for the longest trajectory."""
    return partial(lax.map, chain)


def _mode(both: _Both, start: Float[Array, " D"]) -> Float[np.ndarray, " D"]:
    """The mode of a density, by L-BFGS."""
    best = (np.inf, np.zeros(start.shape), np.asarray(start, float))

    def finite(x: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best
        value, slope = (np.asarray(each, float) for each in both(x.astype(start.dtype)))
        if not (np.isfinite(value) and np.isfinite(slope).all()):
            # Reflect the slope of the best point: the search then turns back by a part of its step, at any scale.
            lowest, slope, at = best
            return float(lowest + np.abs(slope @ (x - at))), -slope
        if value < best[0]:
            best = (float(value), slope, x.copy())
        return float(value), slope

    options = {"maxiter": _STEPS, "ftol": _ENOUGH, "gtol": 0}
    minimize(finite, best[2], jac=True, method="L-BFGS-B", options=options)
    return best[2].astype(start.dtype)


def _around(
    both: _Both, mode: Float[np.ndarray, " D"], noise: Float[np.ndarray, "C D"]
) -> tuple[Float[np.ndarray, "C D"], Float[np.ndarray, "D D"]]:
    """Starts of chains around the mode of a density, and a square root of the inverse Hessian at the mode.

    This takes ``2 D`` gradients and ``C`` densities.
    """
    size = np.finfo(mode.dtype).eps ** (1 / 3)
    moves = (size * np.eye(len(mode))).astype(mode.dtype)
    up, down = (np.stack(jax.device_get([both(mode + sign * move)[1] for move in moves])) for sign in (1, -1))
    H = (up - down) / (2 * size)
    H = np.where(np.isfinite(H), (H + H.T) / 2, np.eye(len(mode)))
    values, vectors = np.linalg.eigh(H)
    spread = (vectors / np.sqrt(np.clip(values, 1 / _MOST**2, 1 / _LEAST**2))).astype(mode.dtype)
    points = mode + 2 * noise @ spread.T
    finite = np.array([np.isfinite(both(point)[0]) for point in points])
    return np.where(finite[:, None], points, mode), spread
