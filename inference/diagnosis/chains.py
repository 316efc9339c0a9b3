"""R-hat and effective sample sizes of the chains of a model whose posterior is draws of MCMC."""

from __future__ import annotations

import numpy as np

from gpzoo.inference.diagnosis.findings import Diagnosis, finding, table
from gpzoo.inference.diagnosis.restarts import by_arviz
from gpzoo.inference.fitted.map_batches import BoundModel
from gpzoo.inference.guides.draws import DrawsGuide

#: R-hat above which chains have not mixed, and the smallest effective sample size per chain (Vehtari et al. 2021).
APART, FEWEST = 1.01, 100

#: With fewer draws in a chain, there is no R-hat, and each draw counts as an effective one.
_SHORT = 4


def of_draws(subject: BoundModel) -> Diagnosis:
    """R-hat and effective sample size of every hyperparameter; empty for other guides."""
    guide = subject.guide
    if not isinstance(guide, DrawsGuide):
        return Diagnosis()
    rows, (chains, count) = [], guide.shape(subject.params)
    for name in sorted(guide.sites.latents - guide.sites.processes):
        draws = np.asarray(subject.params[f"{name}_loc"], np.float64)
        rhat, effective = None, float(chains * count)
        if count >= _SHORT:
            with np.errstate(invalid="ignore"):  # for draws that never move
                rhat = float(by_arviz("rhat", draws).max()) if chains > 1 else None
                effective = float(by_arviz("ess", draws).min())
        rows.append((name, draws[0, 0].size, rhat, effective))
    # For draws that never move, R-hat and effective sample size are NaN, and NaN is not less than anything.
    bad = [row for row in rows if not ((row[2] or 0) <= APART and row[3] >= FEWEST * chains)]
    findings = ()
    if bad and chains * count > 1:  # one draw is a point
        name, _, rhat, effective = max(bad, key=lambda row: ((row[2] or 0), -row[3]))
        reason = f"R-hat is {rhat:.3f} and there are" if rhat is not None else "There are"
        findings = (finding("chains not mixed", name, reason=reason, effective=effective, chains=chains, draws=count),)
    return Diagnosis(findings, table("Chains", rows, chains=chains, draws=count))
