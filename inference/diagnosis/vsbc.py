"""Variational simulation-based calibration: a test of an approximation on data that the program simulates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro import handlers
from numpyro.infer import SVI
from numpyro.infer.calibration import vsbc_diagnostic

from gpzoo import _checks as checks
from gpzoo._types import Argument
from gpzoo.errors import NonFiniteError
from gpzoo.inference.diagnosis.calibration import coverage, uniformity
from gpzoo.inference.diagnosis.findings import Diagnosis, Finding, finding, table
from gpzoo.inference.diagnosis.measure import places_of_data
from gpzoo.inference.guides.global_inducing import INPUTS, GlobalInducingGuide
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.guides.handler import variable_of
from gpzoo.inference.guides.options import for_site
from gpzoo.inference.programs.arguments import arguments
from gpzoo.inference.programs.calls import entry_point
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.program import look
from gpzoo.inference.programs.runs import relaxed_promotion, values_of
from gpzoo.inference.training.protocol import of_objective

#: Probability of at least one finding, over all entries, if the approximation is right.
LEVEL = 0.01

#: Number of entries of a site to test. For a GP site these are evenly spaced rows.
_ENTRIES = 5


@entry_point
def vsbc(
    rng_key: Array,
    svi: SVI,
    num_steps: int,
    *args: Argument,
    num_simulations: int = 200,
    num_draws: int = 99,
    model_kwargs: Mapping[str, Any] | None = None,
) -> Diagnosis:
    """Simulate latent sites and data from the program, train on the data, and rank the true values among guide draws.

    The ranks are scaled to (0, 1). Two tests are made over the simulations:

    * Bias: is the distribution of the scaled ranks ``p`` symmetric around 0.5? A two-sample Kolmogorov-Smirnov test
      compares ``p`` with ``1 - p`` (Yao, Vehtari, Simpson and Gelman 2018, *Yes, but did it work?*, algorithm 2). This
      test finds a shift, but not a wrong width: a guide with half the right standard deviation passes.
    * Uniformity: do the ranks stay inside the simultaneous band of Säilynoja, Bürkner and Vehtari (2022)? This test
      finds a shift and a wrong width. Mean-field guides usually fail this test, even if they have no bias.

    :func:`numpyro.infer.calibration.vsbc_diagnostic` simulates, trains, and makes the first test.

    An :class:`~gpzoo.inference.InducingGuide` starts every training with the same inducing variables. Its initialisers
    run only once.

    Example:
        >>> import jax, numpy as np, numpyro, optax
        >>> import numpyro.distributions as dist
        >>> from numpyro.infer import SVI
        >>> from gpzoo import GaussianProcess, InducingPoints, kernels
        >>> from gpzoo.inference import GaussianProcessELBO, InducingGuide, vsbc
        >>> from gpzoo.likelihoods import Gaussian
        >>> def program(X, y=None):
        ...     noise = numpyro.sample("noise", dist.LogNormal(-1.0, 0.5))
        ...     f = numpyro.sample("f", GaussianProcess(kernels.RBF(), X))
        ...     with numpyro.plate("data", len(X)):
        ...         numpyro.sample("y", Gaussian(f, noise), obs=y)
        >>> X = np.linspace(0, 3, 10, dtype=np.float32)[:, None]
        >>> guide = InducingGuide(program, InducingPoints(X[::3]), hyperparameters="normal")
        >>> svi = SVI(program, guide, optax.adam(0.05), GaussianProcessELBO())
        >>> found = vsbc(jax.random.key(0), svi, 5, X, X[:, 0], num_simulations=3, num_draws=9)
        >>> found.arrays["noise_ranks"].shape
        (3, 1)

    Args:
        rng_key: key of simulations, trainings and draws.
        svi: NumPyro's object, with the program, the guide, the optimiser and the objective.
        num_steps: steps of each training. NumPyro trains on all rows.
        *args: the program's positional arguments, data included. Simulated data replace the arguments that are data of
            the program. If a data argument is ``None``, the program must draw the data.
        num_simulations: number of simulated data sets.
        num_draws: number of draws of each trained guide, two or more.
        model_kwargs: the program's keyword arguments, by name.

    Returns:
        A diagnosis: findings, the scaled ranks ``<site>_ranks``, ``[num_simulations, entries]``, and a table with a row
        for every entry of a latent site. If a site has more than five entries, five evenly spaced entries are used.

    Raises:
        ValueError: if no argument is data of the program; if a latent site is discrete or has no draws (an improper
            prior); or if the objective is :class:`~gpzoo.inference.CollapsedELBO`, which has no ``q(u)`` before its
            training has ended.
        NonFiniteError: if draws of a trained guide are not finite.
    """
    rng_key = checks.rng_key(rng_key)
    num_steps = checks.positive_int("num_steps", num_steps)
    num_simulations = checks.positive_int("num_simulations", num_simulations)
    num_draws = checks.whole("num_draws", num_draws, least=2)
    args, kwargs = arguments(svi.model, args, model_kwargs)
    if (objective := of_objective(svi.loss)).finisher is not None:
        raise ValueError(f"vsbc ranks draws of q(u), which {objective.name} does not train: use GaussianProcessELBO().")
    places = places_of_data(look(svi.model, args, kwargs).trace, args)
    if not places:
        raise ValueError(
            f"None of the {len(args)} arguments is data of a site: pass them, as in vsbc(key, svi, 500, X, y)."
        )

    options = {"num_simulations": num_simulations, "num_svi_steps": num_steps, "num_samples": num_draws}
    return _judge(_simulate(rng_key, svi, args, kwargs, places, options), num_draws, rng_key)


def _simulate(
    rng_key: Array, svi: SVI, args: tuple, kwargs: dict[str, Any], places: Mapping[str, int], options: Mapping[str, int]
) -> Any:
    """NumPyro's ranks and p-values; ``places`` are the positions of data among the positional arguments."""

    def with_data(data: Mapping[str, Array | None], *args: Any, **kwargs: Any) -> tuple[tuple, dict[str, Any]]:
        values = list(args)
        for name, i in places.items():
            values[i] = data[name]
        return tuple(values), kwargs

    guide, failed = _watched(_started(svi.guide, named_key(rng_key, "start"), args, kwargs))
    asked = {"observed_sites": list(places), "simulated_data_to_args": with_data, **options}
    # NumPyro's function reshapes its keys, so they must be arrays of integers.
    key = random.PRNGKey(random.bits(named_key(rng_key, "vsbc"), dtype="uint32"))
    try:
        with relaxed_promotion():
            ranks = vsbc_diagnostic(key, svi.model, guide, svi.optim, svi.loss, *args, **asked, **kwargs)
            jax.effects_barrier()
    except NotImplementedError as error:
        message = f"vsbc draws every site from the program, and one has no draws, as with an improper prior. {error}"
        raise ValueError(message.strip()) from error
    if failed:
        raise NonFiniteError(
            f"Draws of the guide are not finite in some of the {options['num_simulations']} simulations, first at site "
            f"{failed[0]!r}: lower the learning rate, or narrow the priors from which data are simulated."
        )
    return ranks


def _started(guide: Any, key: Array, args: tuple, kwargs: dict[str, Any]) -> Any:
    """An :class:`InducingGuide` with found inducing variables, because initialisers do not run inside ``jit``."""
    if not isinstance(guide, InducingGuide):
        return guide
    start = values_of(guide.starting_sites(key, args, kwargs))
    fixed: Any = copy(guide)
    if isinstance(guide, GlobalInducingGuide):
        fixed.inputs = start[INPUTS]
        return fixed
    fixed.inducing = {}
    for site in guide.sites.processes:
        # A grid has no parameter.
        fixed.inducing[site] = variable_of(for_site(guide.inducing, site), start.get(f"{site}_inducing", ()))
    return fixed


def _watched(guide: Callable) -> tuple[Callable, list[str]]:
    """The guide, and a list to which the guide adds the names of sites whose values are not finite."""
    failed: list[str] = []

    def watched(*args: Any, **kwargs: Any) -> Any:
        with handlers.trace() as trace:
            result = guide(*args, **kwargs)
        for name, site in trace.items():
            value = site["value"]
            if site["type"] == "sample" and isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.floating):
                note = partial(jax.debug.callback, partial(failed.append, name))
                jax.lax.cond(jnp.isfinite(value).all(), lambda: None, note)
        return result

    return watched, failed


def _entries(value: np.ndarray) -> np.ndarray:
    """At most five entries, evenly spaced over the rows of the first output, from ``[S, ...]`` to ``[S, entries]``."""
    flat = value.reshape(*value.shape[:2], -1)[:, :, 0] if value.ndim > 2 else value.reshape(len(value), -1)
    size = flat.shape[1]
    return flat[:, np.unique(np.linspace(0, size - 1, min(size, _ENTRIES)).astype(int))]


def _judge(ranks: Any, num_draws: int, key: Array) -> Diagnosis:
    rng = np.random.default_rng(np.asarray(random.key_data(key)).ravel())
    rows, findings, arrays = [], [], {}
    counts = {name: _entries(np.asarray(ranks.ranks[name])) for name in sorted(ranks.param_names)}
    entries = sum(x.shape[1] for x in counts.values())
    for name, count in counts.items():
        # Uniform numbers between the steps of the ranks, so that right ranks are uniform in (0, 1), not only on a grid.
        scaled = (count + rng.uniform(size=count.shape)) / (num_draws + 1)
        arrays[f"{name}_ranks"] = scaled
        pvalues = _entries(np.asarray(ranks.ks_pvalues[name])[None])[0]
        for i, values in enumerate(scaled.T):
            bias, uniform, inside = float(pvalues[i]), uniformity(values), float(coverage(values, (0.5,))[0])
            entry = f"{name}[{i}]" if scaled.shape[1] > 1 else name
            rows.append((entry, len(values), bias, uniform, float(values.mean()), inside))
            findings += _finding(entry, bias, uniform, rows[-1][4], inside, LEVEL / entries)
    return Diagnosis(tuple(findings), table("Ranks of the truth", rows, level=LEVEL), arrays)


def _finding(entry: str, bias: float, uniform: float, mean: float, inside: float, level: float) -> list[Finding]:
    if bias < level:
        return [finding("biased", entry, side="above" if mean > 0.5 else "below", mean=mean)]
    if uniform < level:
        return [finding("guide too narrow" if inside < 0.5 else "guide too wide", entry, inside=inside)]
    return []
