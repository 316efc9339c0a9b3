"""R-hat and effective sample sizes of the chains of a model whose posterior is draws of MCMC."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpzoo.inference.diagnosis.findings import Diagnosis, finding, table
from gpzoo.inference.diagnosis.restarts import by_arviz
from gpzoo.inference.fitted.map_batches import BoundModel
from gpzoo.inference.guides.draws import DrawsGuide

#: R-hat above which chains have not mixed, and the smallest effective sample size per chain (Vehtari et al. 2021).
APART, FEWEST = 1.01, 100

#: R-hat up to which more draws may be all that is missing, if there are enough effective draws.
_NEARLY = 1.05

#: With fewer draws in a chain, there is no R-hat, and each draw counts as an effective one.
_SHORT = 4


def of_draws(subject: BoundModel) -> Diagnosis:
    """R-hat and effective sample size of every hyperparameter; empty for other guides."""
    guide = subject.guide
    if not isinstance(guide, DrawsGuide):
        return Diagnosis()
    rows, (chains, count) = [], guide.shape(subject.params)
    for name in sorted(guide.sites.latents - guide.sites.processes):
        draws = _moving(np.asarray(subject.params[f"{name}_loc"], np.float64))
        rhat, effective = None, float(chains * count)
        if count >= _SHORT:
            with np.errstate(invalid="ignore"):  # for draws that never move
                # Limits are for the three decimals that are shown.
                rhat = round(float(by_arviz("rhat", draws).max()), 3) if chains > 1 else None
                effective = float(by_arviz("ess", draws).min())
        rows.append((name, draws[0, 0].size, rhat, effective))
    apart = _beyond(_NEARLY, rows, chains)
    bad = apart or _beyond(APART, rows, chains)
    findings = ()
    if bad and chains * count > 1:  # one draw is a point
        name, _, rhat, effective = max(bad, key=lambda row: ((row[2] or 0), -row[3]))
        reason = f"R-hat is {rhat:.3f} and there are" if rhat is not None else "There are"
        numbers = {"effective": effective, "chains": chains, "draws": count, "limit": APART}
        findings = (finding("chains not mixed", name, "apart" if apart else "nearly", reason=reason, **numbers),)
    return Diagnosis(findings, table("Chains", rows, chains=chains, draws=count))


def _moving(draws: np.ndarray) -> np.ndarray:
    """The entries that are not the same in all draws, such as the zeros of a Cholesky factor; all if none moves."""
    entries = draws.reshape(*draws.shape[:2], -1)
    moving = np.any(entries != entries[:1, :1], axis=(0, 1))
    return entries[..., moving] if moving.any() else draws


def _beyond(limit: float, rows: list[tuple[Any, ...]], chains: int) -> list[tuple[Any, ...]]:
    """The rows of the table with an R-hat above a limit, or with too few effective draws."""
    # For draws that never move, R-hat and effective sample size are NaN, and NaN is not less than anything.
    return [row for row in rows if not ((row[2] or 0) <= limit and row[3] >= FEWEST * chains)]
