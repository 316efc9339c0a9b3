"""NUTS from the mode of a program's latent sites, with the curvature there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax, random
from jax.flatten_util import ravel_pytree
from jaxtyping import Float
from numpyro.infer import MCMC, NUTS, init_to_median
from numpyro.infer.util import initialize_model

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

#: Steps of the search for the mode, and the relative change of the density at which it ends.
_STEPS, _ENOUGH = 200, 1e-6

#: Standard deviations that the starting mass matrix may have, in the unconstrained space.
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
    """NumPyro's MCMC by NUTS, run from the mode of the latent sites: for few of them, as in :class:`marginal`.

    L-BFGS finds the mode in the unconstrained space. The inverse of the Hessian there, by differences of gradients, is
    the dense mass matrix with which warmup begins; chains start at draws of a normal distribution of twice its
    spread around the mode. All chains are one compiled program.

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
        *args: its positional arguments, data included.
        num_warmup: steps in which NUTS adapts its step size and mass matrix.
        num_samples: draws of each chain.
        num_chains: number of chains.
        target_accept_prob: see :class:`numpyro.infer.NUTS`.
        progress: whether to say how long it may take, show a bar with time left, divergences and step size, and end
            with divergences, the largest R-hat and the smallest effective sample size, all on the standard error.
            ``None`` does so in terminals and notebooks.
        extra_fields: what ``mcmc.get_extra_fields()`` is to have beside ``diverging``, such as for ``az.plot_energy``.
        model_kwargs: the program's keyword arguments, by name.

    Returns:
        The MCMC, which has run: ``mcmc.get_samples(group_by_chain=True)``, ``mcmc.print_summary()``. Its program is
        ``mcmc.sampler.model``.

    Raises:
        ValueError: for counts below one, a program without latent sites, data without a density at any value of the
            latent functions, or a GP site whose prior depends on a discrete site.
        NonFiniteError: if no start with a finite density is found.
    """
    key = checks.rng_key(rng_key)
    given_counts = {"num_warmup": num_warmup, "num_samples": num_samples, "num_chains": num_chains}
    counts: dict[str, Any] = {name: checks.positive_int(name, count) for name, count in given_counts.items()}
    given, kwargs = arguments(program, args, model_kwargs)
    with jax.numpy_dtype_promotion("standard"):  # NumPyro's and optax's own steps mix dtypes
        # Data are refused as `fit` refuses them, of the program with GP sites in it.
        inner: Any = program.fn if isinstance(program, marginal) else program
        look(inner, given, kwargs, arrays=inner is program, refuse_data=True)
        start = initialize_model(
            named_key(key, "start"),
            program,
            model_args=given,
            model_kwargs=kwargs,
            init_strategy=init_to_median(num_samples=15),
        )
        checks.refuse(not start.param_info.z, "The program has no latent sites for NUTS to move: give it priors.")
        unobserved = sampled(start.model_trace).keys() - data_of(start.model_trace).keys()
        discrete = [name for name in unobserved if start.model_trace[name]["fn"].has_enumerate_support]
        if discrete:  # NumPyro sums them out
            refuse_enumerated_priors(look(program, given, kwargs, arrays=True), discrete)
        flat, unravel = ravel_pytree(start.param_info.z)
        potential = lambda x: start.potential_fn(unravel(x))  # noqa: E731
        noise = random.normal(named_key(key, "chains"), (counts["num_chains"], len(flat)), flat.dtype)
        mode = jax.jit(partial(_mode, potential))(flat)
        around = jax.jit(partial(_around, potential)).lower(mode, noise).compile()
        jax.block_until_ready(around(mode, noise))  # the first run is slower
        began = time.perf_counter()
        points, spread = jax.block_until_ready(around(mode, noise))
        gradient = (time.perf_counter() - began) / (2 * len(flat) + len(noise) / 2)
        checks.refuse(
            not np.all(np.isfinite(np.asarray(points))),
            "No start with a finite density was found: check the priors and the data, or take float64 "
            "(numpyro.enable_x64()).",
            NonFiniteError,
        )
        one_by_one = jax.default_backend() == "cpu"
        options: dict[str, Any] = {
            "dense_mass": True,
            "inverse_mass_matrix": np.asarray(spread @ spread.T),
            "target_accept_prob": target_accept_prob,
        }
        watched = WatchedNUTS(program, in_turn=one_by_one, **options) if wanted(progress) else None
        together: Any = _one_by_one if one_by_one and watched is None else "vectorized"
        kernel = NUTS(program, **options) if watched is None else watched
        mcmc = MCMC(kernel, **counts, chain_method=together, progress_bar=watched is not None, progress_rate=1)
        first = jax.vmap(unravel)(points) if len(points) > 1 else unravel(points[0])
        with nullcontext() if watched is None else watched.spoken(mcmc, gradient):
            mcmc.run(named_key(key, "nuts"), *given, init_params=first, extra_fields=extra_fields, **kwargs)
            jax.block_until_ready(mcmc.get_samples())
    return mcmc


def _one_by_one(chain: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Chains after each other in one program: side by side they wait for the one with the longest trajectory."""
    return partial(lax.map, chain)


def _mode(potential: Callable[[Array], Array], start: Float[Array, " D"]) -> Float[Array, " D"]:
    """The mode of a density, by L-BFGS."""
    optimizer = optax.lbfgs()
    both = optax.value_and_grad_from_state(potential)

    def step(state: tuple) -> tuple:
        x, value, inner, _, count = state
        _, slope = both(x, state=inner)
        updates, inner = optimizer.update(slope, inner, x, value=value, grad=slope, value_fn=potential)
        there: Any = optax.apply_updates(x, updates)
        new = potential(there)
        return there, new, inner, value - new, count + 1

    def going(state: tuple) -> Array:
        _, value, _, change, count = state
        return (count < _STEPS) & (change > _ENOUGH * (1 + jnp.abs(value)))

    state = (start, potential(start), optimizer.init(start), jnp.asarray(jnp.inf, start.dtype), 0)
    return lax.while_loop(going, step, state)[0]


def _around(
    potential: Callable[[Array], Array], mode: Float[Array, " D"], noise: Float[Array, "C D"]
) -> tuple[Float[Array, "C D"], Float[Array, "D D"]]:
    """Where chains start around the mode of a density, and a root of the inverse Hessian there.

    It takes ``2 D`` gradients and ``C`` densities.
    """
    size = jnp.finfo(mode.dtype).eps ** (1 / 3)
    moves = size * jnp.eye(len(mode), dtype=mode.dtype)
    slopes = lambda sign: lax.map(jax.grad(potential), mode + sign * moves)  # noqa: E731
    H = (slopes(1) - slopes(-1)) / (2 * size)
    H = jnp.where(jnp.isfinite(H), (H + H.T) / 2, jnp.eye(len(mode), dtype=mode.dtype))
    values, vectors = jnp.linalg.eigh(H)
    spread = vectors / jnp.sqrt(jnp.clip(values, 1 / _MOST**2, 1 / _LEAST**2))
    points = mode + 2 * noise @ spread.T
    finite = jnp.isfinite(lax.map(potential, points))
    return jnp.where(finite[:, None], points, mode), spread
