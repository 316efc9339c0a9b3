"""What a guide must know of a program to stand in for it: its latent sites, and how their values are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro import handlers
from numpyro.distributions.constraints import Constraint

from gpzoo._checks import is_concrete
from gpzoo._numpyro import Messenger
from gpzoo.inference._runs import ParameterNames, shapes_of, unmasked
from gpzoo.likelihoods import Likelihood
from gpzoo.processes.marginals import DrawLog, EstimatedMarginals, GaussianMarginals
from gpzoo.processes.process import GaussianProcess


@dataclass(frozen=True)
class Sites:
    """The sites of a program, as its first traced call with data found them.

    Attributes:
        latents: names of the unobserved sample sites.
        processes: those of them that are GP sites.
        drawn: those GP sites whose value is used as an array somewhere.
        names: names of every sample and param site.
        parameters: the shapes of the program's own ``numpyro.param`` sites by name; ``None`` for its mutable sites, and
            for those whose values the user has substituted.
        constraints: of the program's parameters and of latent sites that are not GPs, by name, where they depend on
            nothing else.
    """

    latents: frozenset[str]
    processes: frozenset[str]
    drawn: frozenset[str]
    names: frozenset[str] = frozenset()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    constraints: Mapping[str, Constraint] = field(default_factory=dict)


def find_sites(
    model: Callable,
    args: tuple,
    kwargs: dict,
    joint: frozenset[str],
    *,
    where: str = "the guide's first call (init_params, svi.init or fit)",
) -> Sites:
    """Run a program abstractly to find its latent sites and which GP sites it takes arrays of.

    A site whose draw is used anywhere is an array everywhere. Draws are independent over inputs in training, so every
    term of the program must depend on one row of a drawn site only; this is checked, by gradients, on random draws.

    Args:
        model: the program.
        args: its positional arguments, data included.
        kwargs: its keyword arguments.
        joint: names of GP sites that are drawn jointly.
        where: the arguments were given, for messages.

    Raises:
        ValueError: see :class:`~gpzoo.inference.InducingGuide`.
    """
    log = DrawLog()
    found: dict[str, dict[str, Any]] = {}
    parameters: dict[str, Any] = {}

    def run() -> None:
        values = _Values(lambda name, fn: _unit_marginals(name, fn, log))
        trace, seen = _traced(model, values, args, kwargs)
        found.update(trace)
        parameters.update(_parameters(trace, seen))
        _terms(found)

    jax.eval_shape(run)
    if not any(site["type"] == "sample" for site in found.values()):
        raise ValueError(
            f"The program {getattr(model, '__name__', type(model).__name__)!r} has no numpyro.sample site, so that "
            "there is nothing to infer: sample its GP, numpyro.sample('f', GaussianProcess(kernel, X)), and its data, "
            "numpyro.sample('y', likelihoods.Gaussian(f, noise), obs=y)."
        )
    latents, processes = set(), set()
    for name, site in found.items():
        if site["type"] != "sample" or site["is_observed"]:
            continue
        fn = unmasked(site["fn"])
        if name.endswith("_unobserved") and f"{name.removesuffix('_unobserved')}_observed" in found:
            raise ValueError(
                f"Site {name.removesuffix('_unobserved')!r} uses obs_mask, which turns missing data into latent "
                "variables. Use `with numpyro.handlers.mask(mask=...)` around the site instead: masked data then "
                "leave the bound."
            )
        discrete = not isinstance(fn, Likelihood) and fn.support is not None and fn.support.is_discrete
        if discrete and any(site["type"] == "sample" and site["is_observed"] for site in found.values()):
            raise ValueError(
                f"Site {name!r} ({type(fn).__name__}) is a discrete latent variable, which InducingGuide does not "
                "support: a bound has no gradient for it. Sum it out in the program (a mixture distribution), or use "
                f"numpyro.infer.DiscreteHMCGibbs(NUTS(model)). If it is data, pass them in {where}."
            )
        if isinstance(fn, Likelihood) or fn.support is None or discrete:
            raise ValueError(
                f"Site {name!r} ({type(fn).__name__}) has no data and would be a latent variable, which it cannot be. "
                f"Pass the data in {where}."
            )
        latents.add(name)
        if isinstance(fn, GaussianProcess):
            processes.add(name)
    drawn = frozenset(log.sites)
    if estimated := sorted(name for name in joint & processes if unmasked(found[name]["fn"]).samples_views):
        raise ValueError(
            f"InducingGuide(joint=...) names {estimated}, whose kernel samples views of its inputs: in training there "
            "are estimated moments and no draws. Enumerate the views (an Orbit), or leave the site out of joint."
        )
    _check_rows(model, args, kwargs, drawn - joint)
    names = frozenset(name for name, site in found.items() if site["type"] in ("sample", "param"))
    limits = {name: unmasked(found[name]["fn"]).support for name in latents - processes}
    limits |= {n: s["kwargs"].get("constraint") for n, s in found.items() if s["type"] == "param"}
    limits = {name: x for name, x in limits.items() if x is not None and all(map(is_concrete, jax.tree.leaves(x)))}
    return Sites(frozenset(latents), frozenset(processes), drawn, names, parameters, limits)


def _unit_marginals(name: str, fn: GaussianProcess, log: DrawLog | None) -> GaussianMarginals:
    shape, dtype, sites = fn.event_shape, fn.X.dtype, frozenset({name})
    if fn.samples_views:
        return EstimatedMarginals(jnp.zeros(shape, dtype), jnp.ones(shape, dtype), sites=sites)
    return GaussianMarginals(jnp.zeros(shape, dtype), jnp.ones(shape, dtype), random.key(0), sites=sites, log=log)


def _terms(trace: dict[str, dict[str, Any]]) -> dict[str, Array]:
    """Everything a draw can enter: log densities of observed sites, and inputs, means and kernels of GP sites."""
    terms: dict[str, Array] = {}
    for name, site in trace.items():
        if site["type"] != "sample":
            continue
        fn = site["fn"]
        if isinstance(fn, GaussianProcess):
            parts = {"inputs": fn.X, "mean": fn.loc} | {
                f"kernel{i}": leaf for i, leaf in enumerate(jax.tree.leaves(fn.kernel))
            }
            terms |= {f"the {part.rstrip('0123456789')} of {name}": v for part, v in parts.items() if v is not None}
        if site["is_observed"]:
            _check_observed(name, fn, site["value"])
            terms[f"the log density of {name}"] = fn.log_prob(site["value"])
        elif not isinstance(fn, GaussianProcess):
            terms[f"the prior of {name}"] = fn.log_prob(site["value"])
    return {name: jnp.asarray(term) for name, term in terms.items()}


def _check_rows(model: Callable, args: tuple, kwargs: dict, sites: frozenset[str]) -> None:
    if not sites:
        return
    args, kwargs = jax.tree.map(_concrete, (args, kwargs))

    def terms_of(draws: dict[str, Array]) -> dict[str, Array]:
        def value_of(name: str, fn: GaussianProcess) -> Any:
            return draws[name] if name in draws else _unit_marginals(name, fn, None)

        return _terms(_trace(model, _Values(value_of), args, kwargs))

    with jax.ensure_compile_time_eval():
        draws: dict[str, Array] = {}

        def draw(name: str, fn: GaussianProcess) -> Any:
            if name not in sites:
                return _unit_marginals(name, fn, None)
            noise = np.random.default_rng(len(draws)).standard_normal(fn.event_shape)
            draws[name] = jnp.asarray(noise, fn.X.dtype)
            return draws[name]

        _trace(model, _Values(draw), args, kwargs)
        terms, pull_back = jax.vjp(terms_of, draws)
        for term, value in terms.items():
            if not jnp.issubdtype(value.dtype, jnp.floating):
                continue
            for position in sorted({0, value.size // 2, value.size - 1}):
                one = jnp.zeros(value.size, value.dtype).at[position].set(1).reshape(value.shape)
                cotangent = {name: one if name == term else jnp.zeros_like(v) for name, v in terms.items()}
                (gradient,) = pull_back(cotangent)
                for site, g in gradient.items():
                    rows = np.flatnonzero(np.asarray(g).reshape(g.shape[0], -1).any(axis=1))
                    if len(rows) > 1:
                        raise ValueError(
                            f"In this program {term} depends on several rows of GP site {site!r} (rows {rows[0]}, "
                            f"{rows[1]}, ... for its entry {position}), but in training a GP site is drawn per input. "
                            f"Draw it jointly: InducingGuide(..., joint={{{site!r}}})."
                        )


def _check_observed(name: str, fn: Any, value: Any) -> None:
    """Refuse data that would blow up their site's density, such as ``[N, 1]`` for a site ``[N]`` to ``[N, N]``."""
    if isinstance(unmasked(fn), Likelihood | GaussianProcess):
        return  # they say it themselves
    shape, wanted = tuple(np.shape(value)), tuple(fn.shape())
    try:
        fits = np.broadcast_shapes(shape, wanted) == wanted
    except ValueError:
        fits = False
    if not fits:
        hint = f": drop its last axis, {name}[:, 0]" if shape == (*wanted, 1) else ""
        raise ValueError(f"The data of site {name!r} have shape {shape}, but the site has shape {wanted}{hint}.")


def _concrete(x: Any) -> Any:
    """Stand-in numbers for a tracer: which rows a term depends on does not depend on their values."""
    if not isinstance(x, jax.core.Tracer):
        return x
    rng = np.random.default_rng(0)
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.asarray(rng.uniform(size=x.shape), x.dtype)
    return np.zeros(x.shape, x.dtype)


def parameters_of(model: Callable, args: tuple, kwargs: dict) -> dict[str, Any]:
    """The program's own parameters with these arguments; see :class:`Sites`."""
    found: dict[str, Any] = {}

    def run() -> None:
        found.update(
            _parameters(*_traced(model, _Values(lambda name, fn: _unit_marginals(name, fn, None)), args, kwargs))
        )

    jax.eval_shape(run)
    return found


def _parameters(trace: dict[str, dict[str, Any]], seen: ParameterNames) -> dict[str, Any]:
    own, loose = (n for n, site in trace.items() if site["type"] in ("param", "mutable")), seen.loose("param")
    return {name: shapes_of(trace[name]["value"]) if name in loose else None for name in own}


class _Values(Messenger):
    """Gives each latent GP site a value, by ``value_of(name, fn)``."""

    def __init__(self, value_of: Callable[[str, GaussianProcess], Any]) -> None:
        super().__init__(None)
        self.value_of = value_of

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["value"] is None and isinstance(msg["fn"], GaussianProcess):
            msg["value"] = self.value_of(msg["name"], msg["fn"])


def _trace(model: Callable, values: Messenger, args: tuple, kwargs: dict) -> dict[str, dict[str, Any]]:
    return _traced(model, values, args, kwargs)[0]


def _traced(model: Callable, values: Messenger, args: tuple, kwargs: dict) -> tuple[dict, ParameterNames]:
    with handlers.block(), ParameterNames() as seen, handlers.trace() as trace, handlers.seed(rng_seed=0), values:
        model(*args, **kwargs)
    return trace, seen
