"""Leave-one-out densities, and the k-hat of all draws: whether weights can leave rows of the data out."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import jax
import numpy as np
from jax import Array

from gpzoo.errors import GPZooError
from gpzoo.inference.diagnosis.findings import Diagnosis, table, unavailable
from gpzoo.inference.fitted.export import densities
from gpzoo.inference.fitted.map_batches import BoundModel
from gpzoo.inference.fitted.psis import largest_k, leave_one_out, pareto
from gpzoo.inference.guides.draws import DrawsGuide

#: Number of draws, the same as in an export.
_DRAWS = 500

#: For fewer draws of chains, no weights are fitted.
_FEWEST = 20

#: For more rows, draws of functions take minutes, because they are joint over a thousand rows each.
_MOST_ROWS = 2000

TITLE = "Leave-one-out"


def of_draws(rng_key: Array, subject: BoundModel, held_out: Mapping[str, np.ndarray]) -> Diagnosis:
    """k-hat of joint draws of all inducing variables and hyperparameters, and densities of left-out rows.

    The weights are ``log w = log p(y | f) + log p(u) + log p(theta) - log q(u) - log q(theta)``. The density of ``f``
    given ``u`` cancels.

    Args:
        rng_key: key of the draws; :meth:`gpzoo.inference.Trained.to_arviz` makes the same draws from the same key.
        subject: one training at its data.
        held_out: log densities of data that were not in the training, by site, ``[N]``; empty if there are none.
    """
    guide, count = subject.guide, _DRAWS
    chains = isinstance(guide, DrawsGuide)
    if chains and (count := min(count, prod(guide.shape(subject.params)))) < _FEWEST:
        return unavailable(TITLE, f"{count} draws of chains are fewer than {_FEWEST}")
    of_u, of_others = _sizes(subject)
    if not of_u + of_others:
        return unavailable(TITLE, "the guide draws nothing")
    if (rows := max((len(x) for x in jax.tree.leaves(subject.args) if np.ndim(x)), default=0)) > _MOST_ROWS:
        reason = f"{rows} rows are more than {_MOST_ROWS}; trained.to_arviz(key, X, y) takes them in batches"
        return unavailable(TITLE, reason)
    try:
        drawn = densities(subject, rng_key, num_draws=count)
    except (GPZooError, TypeError, ValueError) as error:
        return unavailable(TITLE, str(error).rstrip("."))
    k, bound, rows = None if chains else pareto(drawn.log_ratio)[1], largest_k(count), []
    for site, terms in drawn.log_likelihood.items():
        left = leave_one_out(terms.reshape(count, -1), drawn.log_ratio)
        by, density = "LOO", left.elpd
        if (k or 0) > bound:
            by, density = ("held-out rows", held_out[site]) if site in held_out else ("not reliable", np.zeros(0))
        nlpd = error = None
        if len(density):
            nlpd, error = -float(density.mean()), float(density.std() / np.sqrt(len(density)))
        above = f"{left.above} ({'warns' if left.warns else 'silent'})"
        rows.append((site, of_u + of_others, k, by, nlpd, error, above))
    what = f"u ({of_u} entries)" + (f" and other latents ({of_others})" if of_others else "")
    which = "chains" if k is None else "reliable" if k <= bound else "unreliable"
    return Diagnosis(sections=table(TITLE, rows, which, draws=count, what=what, bound=bound))


def _sizes(subject: BoundModel) -> tuple[int, int]:
    """The number of entries in a draw: of inducing variables, and of other latent sites."""
    guide, params, of_u, of_others = subject.guide, subject.params, 0, 0
    axes = 2 if isinstance(guide, DrawsGuide) else 0  # axes of chains and draws
    for site in guide.sites.processes:
        of_u += prod(np.shape(params[f"{site}_mean"])[axes:])
    if guide.hyperparameters == "point":
        return of_u, of_others
    own = guide.hyperparameter_guide(subject.args, subject.kwargs)
    for site in guide.sites.latents - guide.sites.processes:
        of_others += prod(np.shape(params[f"{site}_loc"])[axes:]) if own is None else int(own.sizes[site])
    return of_u, of_others
