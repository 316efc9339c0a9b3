"""Are draws of ``q`` close enough to the posterior's to leave data out by weights?"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from jax import Array

from gpzoo.errors import GPZooError
from gpzoo.inference.asking.export import densities
from gpzoo.inference.asking.map_batches import BoundModel
from gpzoo.inference.asking.psis import largest_k, leave_one_out, pareto
from gpzoo.inference.diagnosis.findings import Diagnosis, table, unavailable
from gpzoo.inference.guides.draws import DrawsGuide

#: Draws, as many as an export has.
_DRAWS = 500

#: Fewest draws of chains to which weights are fitted.
_FEWEST = 20

#: Rows beyond which draws of functions, joint over a thousand rows each, take minutes.
_MOST_ROWS = 2000

TITLE = "Leave-one-out"


def of_draws(rng_key: Array, subject: BoundModel, held_out: Mapping[str, np.ndarray]) -> Diagnosis:
    """k-hat of draws of all inducing variables and hyperparameters together, and what may be said of left-out data.

    ``log w = log p(y | f) + log p(u) + log p(theta) - log q(u) - log q(theta)``; ``f`` given ``u`` has cancelled.

    Args:
        rng_key: the key with which :meth:`gpzoo.inference.Trained.to_arviz` makes the same draws.
        subject: one training at its data.
        held_out: log densities of other data by site, ``[N]``; none where there are no others.
    """
    guide, params, count = subject.guide, subject.params, _DRAWS
    chains = isinstance(guide, DrawsGuide)
    if chains:
        if (count := min(count, prod(guide.shape(params)))) < _FEWEST:
            return unavailable(TITLE, f"{count} draws of chains are fewer than {_FEWEST}")
        params = {name: np.asarray(params[name])[0, 0] for name in guide.variational_parameters()}  # the first draw
    of_u = sum(int(np.size(params[f"{site}_mean"])) for site in guide.sites.processes)
    others = sorted(guide.sites.latents - guide.sites.processes) if guide.hyperparameters != "point" else []
    made = guide.others_for(subject.args, subject.kwargs)
    sizes = {site: np.size(params[f"{site}_loc"]) for site in others} if made is None else made.sizes
    entries = of_u + sum(int(sizes[site]) for site in others)
    if not entries:
        return unavailable(TITLE, "the guide draws nothing")
    if (rows := max(map(len, subject.args), default=0)) > _MOST_ROWS:
        reason = f"{rows} rows are more than {_MOST_ROWS}; trained.to_arviz(key, X, y) takes them in batches"
        return unavailable(TITLE, reason)
    try:
        found = densities(subject, rng_key, num_draws=count)
    except (GPZooError, TypeError, ValueError) as error:
        return unavailable(TITLE, str(error).rstrip("."))
    k, bound = None if chains else pareto(found.log_ratio)[1], largest_k(count)
    shown = []
    for site, terms in found.log_likelihood.items():
        left = leave_one_out(terms.reshape(count, -1), found.log_ratio)
        by, density = "LOO", left.elpd
        if (k or 0) > bound:
            by, density = ("held-out rows", held_out[site]) if site in held_out else ("not reliable", np.zeros(0))
        nlpd = error = None
        if len(density):
            nlpd, error = -float(density.mean()), float(density.std() / np.sqrt(len(density)))
        shown.append((site, entries, k, by, nlpd, error, f"{left.above} ({'warns' if left.warns else 'silent'})"))
    what = f"u ({of_u} entries)" + (f" and other latents ({entries - of_u})" if others else "")
    which = "chains" if k is None else "reliable" if k <= bound else "unreliable"
    return Diagnosis(sections=table(TITLE, shown, which, draws=count, what=what, bound=bound))
