"""Is an approximation right for data that its own program makes? Variational simulation-based calibration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro.infer import SVI

from gpzoo import _checks as checks
from gpzoo._platform import one_blas_thread
from gpzoo._types import Argument
from gpzoo.inference._calls import entry_point
from gpzoo.inference._keys import named_key
from gpzoo.inference._program import look
from gpzoo.inference._runs import run
from gpzoo.inference.enumeration import is_enumerated
from gpzoo.inference.inspection.calibration import coverage, uniformity
from gpzoo.inference.inspection.findings import Diagnosis, Finding, Section
from gpzoo.inference.inspection.measure import data_sites
from gpzoo.inference.training._sources import split_arrays
from gpzoo.inference.training.fit import fit

#: Probability of a finding, over all entries, where the approximation is right.
LEVEL = 0.01

#: Entries of a site that are looked at: of a GP site, rows that are evenly spaced.
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
    """Draw latent sites and data from the program, train on the data, and rank what was drawn among draws of the guide.

    Two questions are asked of the ranks, scaled to (0, 1), over simulations:

    * Bias: are they as often below a half as above? A two-sample Kolmogorov-Smirnov test of ``p`` against ``1 - p``,
      which is Yao, Vehtari, Simpson and Gelman (2018), *Yes, but did it work?*, algorithm 2, and what
      :func:`numpyro.infer.vsbc_diagnostic` does, for guides and optimisers of any kind. It sees a shift and no width: a
      guide with half the standard deviation passes.
    * Uniformity: do they stay inside the simultaneous band of Säilynoja, Bürkner and Vehtari (2022)? It sees shift and
      width. Mean-field guides fail it by their nature, where bias may be none.

    The trainings are one compiled program, see :func:`~gpzoo.inference.fit`.

    Args:
        rng_key: of simulations, trainings and draws.
        svi: NumPyro's object, holding the program, the guide, the optimiser and the objective.
        num_steps: of each training.
        *args: the program's positional arguments, data included: these say which arguments are data, which simulated
            ones replace. The program must draw its data where such an argument is ``None``.
        num_simulations: number of simulated data sets.
        num_draws: of each trained guide.
        model_kwargs: the program's keyword arguments, by name.

    Returns:
        A table with a row for every entry of a latent site (of sites with more than five, five that are evenly spaced),
        findings, and the scaled ranks, ``<site>_ranks``, ``[num_simulations, entries]``.

    Raises:
        ValueError: if no argument is data of the program, or all trainings failed.
    """
    model, guide = svi.model, svi.guide
    rng_key = checks.rng_key(rng_key)
    num_simulations = checks.positive_int("num_simulations", num_simulations)
    num_draws = checks.positive_int("num_draws", num_draws)
    args, kwargs = checks.arguments(model, args, model_kwargs)
    seen = look(model, args, kwargs).trace
    unobserved = {name: site for name, site in seen.items() if site["type"] == "sample" and not site["is_observed"]}
    latents = sorted(name for name, site in unobserved.items() if not is_enumerated(site))
    places = {name: i for name, site in data_sites(seen).items() for i, x in enumerate(args) if site["value"] is x}
    if not places:
        raise ValueError(
            f"None of the {len(args)} arguments is data of a site: pass them, as in vsbc(key, svi, 500, X, y)."
        )
    arrays, static = split_arrays(kwargs)

    def simulate(key: Array, args: tuple, arrays: dict) -> tuple[dict[str, Array], dict[str, Array]]:
        blank = tuple(None if i in places.values() else x for i, x in enumerate(args))
        found = run(key, blank, arrays | static, model=model, values={}, complete=False).model
        data = {name: jnp.asarray(found[name]["value"]) for name in places}
        return {name: jnp.asarray(found[name]["value"]) for name in latents}, data

    keys = random.split(named_key(rng_key, "simulations"), num_simulations)
    truth, data = jax.jit(lambda keys, *rest: jax.lax.map(lambda key: simulate(key, *rest), keys))(keys, args, arrays)
    many, axes = list(args), [0 if i in places.values() else None for i in range(len(args))]
    for name, i in places.items():
        many[i] = np.asarray(data[name])
    trainings = random.split(named_key(rng_key, "trainings"), num_simulations)
    trained = fit(trainings, svi, num_steps, *many, in_axes=axes, progress=False, model_kwargs=kwargs)

    def ranks(key: Array, params: dict, truth: dict, args: tuple, arrays: dict) -> dict[str, Array]:
        def one(key: Array) -> dict[str, Array]:
            found = run(key, args, arrays | static, guide=guide, values=params).guide
            return {name: _entries(jnp.asarray(found[name]["value"])) for name in latents}

        draws = jax.vmap(one)(random.split(key, num_draws))
        below = {name: jnp.sum(draws[name] < _entries(truth[name]), axis=0) for name in latents}
        return {name: jnp.where(jnp.isfinite(draws[name]).all(), x, -1) for name, x in below.items()}

    def each(keys: Array, params: dict, truth: dict, data: dict, args: tuple, arrays: dict) -> dict[str, Array]:
        def one(member: tuple) -> dict[str, Array]:
            key, params, truth, data = member
            given = list(args)
            for name, i in places.items():
                given[i] = data[name]
            return ranks(key, params, truth, tuple(given), arrays)

        return jax.lax.map(one, (keys, params, truth, data))

    keys = random.split(named_key(rng_key, "draws"), num_simulations)
    with one_blas_thread():
        counts = jax.jit(each)(keys, dict(trained.params), truth, data, args, arrays)
    ended = np.isfinite(np.asarray(trained.losses)[:, -1])
    return _judged({name: np.asarray(x) for name, x in counts.items()}, ended, num_draws, rng_key)


def _entries(value: Array) -> Array:
    """At most five entries, evenly spaced over the rows of the first output."""
    flat = jnp.reshape(value, (value.shape[0], -1))[:, 0] if value.ndim > 1 else jnp.ravel(value)
    return flat[np.unique(np.linspace(0, flat.size - 1, min(flat.size, _ENTRIES)).astype(int))]


def _judged(counts: Mapping[str, np.ndarray], ended: np.ndarray, num_draws: int, key: Array) -> Diagnosis:
    from scipy.stats import ks_2samp

    rng = np.random.default_rng(np.asarray(random.key_data(key)).ravel())
    rows, findings, arrays = [], [], {}
    entries = sum(x.shape[1] for x in counts.values())
    for name, count in counts.items():
        good = ended & (count >= 0).all(axis=1)
        if not good.any():
            raise ValueError(f"All {len(count)} trainings failed: their bounds or draws of {name!r} are not finite.")
        # Uniform over the steps of the ranks, so that right ones are uniform in (0, 1) and not only over a grid.
        scaled = (count[good] + rng.uniform(size=count[good].shape)) / (num_draws + 1)
        arrays[f"{name}_ranks"] = scaled
        for i, values in enumerate(scaled.T):
            symmetry: Any = ks_2samp(values, 1 - values, method="asymp")
            bias = float(symmetry.pvalue)
            uniform, inside = uniformity(values), float(coverage(values, (0.5,))[0])
            entry = f"{name}[{i}]" if scaled.shape[1] > 1 else name
            rows.append((entry, int(good.sum()), bias, uniform, float(values.mean()), inside))
            if (finding := _finding(entry, bias, uniform, float(values.mean()), inside, LEVEL / entries)) is not None:
                findings.append(finding)
    note = (
        "p-values: bias, of ranks against their mirror image; uniform, of ranks against the uniform distribution, by a "
        "simultaneous band. Mean: of ranks, 0.5 without bias. In 50 %: share of simulations whose value lies in the "
        f"central half of the guide's draws. Findings have a probability of {LEVEL} in all where nothing is wrong."
    )
    columns = ("latent", "simulations", "bias", "uniform", "mean", "in 50 %")
    return Diagnosis(tuple(findings), (Section("Ranks of the truth", columns, tuple(rows), note),), arrays)


def _finding(entry: str, bias: float, uniform: float, mean: float, inside: float, level: float) -> Finding | None:
    if bias < level:
        side = "above" if mean > 0.5 else "below"
        return Finding(
            "biased",
            entry,
            f"the truth lies {side} the guide's draws too often (mean rank {mean:.2f}): train longer, or take a guide "
            "that can have this posterior's shape.",
        )
    if uniform < level:
        small = inside < 0.5
        return Finding(
            "guide too narrow" if small else "guide too wide",
            entry,
            f"the central half of the guide's draws holds the truth in {inside:.0%} of simulations: "
            + (
                "the guide leaves dependence out (mean field). Use NUTS, or do not trust its standard deviations."
                if small
                else "train longer."
            ),
        )
    return None
