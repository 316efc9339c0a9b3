"""Comparison of several trainings of one program on the same data: whether they find the same functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
from jax import Array, random

from gpzoo.inference.diagnosis.findings import Diagnosis, finding, table
from gpzoo.inference.fitted.container import import_arviz
from gpzoo.inference.fitted.summaries import SitePrediction
from gpzoo.inference.fitted.trained import Trained

#: R-hat above which the trainings differ at a row: their means are then half a standard deviation apart.
APART = 1.1

#: Share of rows with a larger R-hat above which there is a finding.
MOST_APART = 0.1

#: Number of draws of the functions of each training.
_DRAWS = 100


def best(trained: Trained) -> tuple[Trained, np.ndarray]:
    """The training with the highest bound, and the bound of each training: its mean over the last tenth of the steps.

    Raises:
        ValueError: if all trainings failed.
    """
    losses = np.asarray(trained.losses)
    if losses.ndim < 2:
        return trained, np.zeros(0)
    bounds = -losses[:, -max(1, losses.shape[1] // 10) :].mean(axis=1)
    if not np.isfinite(bounds).any():
        raise ValueError(f"All {len(bounds)} trainings failed: their bounds are not finite.")
    return trained.member(int(np.nanargmax(bounds))), bounds


def compare(
    rng_key: Array,
    trained: Trained,
    bounds: np.ndarray,
    predicted: Callable[[Trained], Mapping[str, SitePrediction]],
    sites: Collection[str],
) -> Diagnosis:
    """The bounds of several trainings, and R-hat between their functions at the rows.

    ArviZ computes R-hat (Vehtari, Gelman, Simpson, Carpenter and Bürkner 2021, *Rank-normalization, folding, and
    localization*). Each training counts as a chain: independent normal draws with the mean and the variance of the
    functions of this training. R-hat here does not measure convergence. It tells whether all trainings found the same
    optimum.

    Args:
        rng_key: key of the draws.
        trained: several trainings, on the same data.
        bounds: see :func:`best`.
        predicted: a function that returns the predictions of one training at the rows.
        sites: names of the GP sites on which data sites depend.
    """
    if not len(bounds):
        return Diagnosis()
    members = np.argsort(-bounds)[: np.isfinite(bounds).sum()].tolist()
    rows = tuple((k, float(bounds[k]), float(bounds[k] - bounds[members[0]])) for k in members)
    if len(members) < 2:
        return Diagnosis(sections=table("Restarts", rows, rhat=""))
    draws: dict[str, list[np.ndarray]] = {site: [] for site in sites}
    rng = np.random.default_rng(np.asarray(random.key_data(rng_key)).ravel())
    for k in members:
        predictions = predicted(trained.member(k))
        for site in sites:
            mean, spread = predictions[site].mean, np.sqrt(predictions[site].variance)
            draws[site].append(mean + spread * rng.standard_normal((_DRAWS, *mean.shape)))
    words, findings, arrays = [], [], {}
    for site, each in draws.items():
        rhat = arrays[f"{site}_rhat"] = by_arviz("rhat", np.stack(each))
        share = np.mean(rhat > APART)
        words.append(f"{np.median(rhat):.3f} ({site}, {share:.0%} above {APART})")
        if share > MOST_APART:
            findings.append(finding("several optima", site, trainings=len(members), apart=APART, share=share))
    note = f" Median R-hat of functions over rows, a test of several optima, not of convergence: {', '.join(words)}."
    return Diagnosis(tuple(findings), table("Restarts", rows, rhat=note), arrays)


def by_arviz(statistic: str, draws: np.ndarray) -> np.ndarray:
    """``"rhat"`` or ``"ess"`` of every entry of ``draws``, ``[K, S, ...]``."""
    arviz = import_arviz()
    import xarray

    dims = ["chain", "draw", *(f"axis_{i}" for i in range(draws.ndim - 2))]
    data = xarray.Dataset({"f": (dims, np.asarray(draws, np.float64))})
    return np.asarray(getattr(arviz, statistic)(data)["f"])
