"""Are draws of ``q`` close enough to the posterior's to leave data out by weights?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jax import Array

from gpzoo.errors import GPZooError
from gpzoo.inference.asking.ask import Subject
from gpzoo.inference.asking.export import densities
from gpzoo.inference.asking.trained import Trained
from gpzoo.inference.diagnosis.findings import Diagnosis, Section
from gpzoo.inference.diagnosis.psis import largest_k, leave_one_out, pareto
from gpzoo.inference.guides.guide import InducingGuide

#: Draws, as many as an export has.
_DRAWS = 500

#: Rows beyond which draws of functions, joint over a thousand rows each, take minutes.
_MOST_ROWS = 2000

_TITLE = "Leave-one-out"


def of_draws(
    rng_key: Array,
    trained: Trained,
    params: dict[str, Any],
    args: tuple,
    kwargs: dict[str, Any],
    held_out: Mapping[str, np.ndarray],
) -> Diagnosis:
    """k-hat of draws of all inducing variables and hyperparameters together, and what may be said of left-out data.

    ``log w = log p(y | f) + log p(u) + log p(theta) - log q(u) - log q(theta)``; ``f`` given ``u`` has cancelled.

    Args:
        rng_key: the key with which :meth:`gpzoo.inference.Trained.to_arviz` makes the same draws.
        trained: one training.
        params: its parameters, checked.
        args: the data of training, checked.
        kwargs: the program's keyword arguments, checked.
        held_out: log densities of other data by site, ``[N]``; none where there are no others.
    """
    guide: InducingGuide = trained.guide
    of_u = sum(int(np.size(params[f"{site}_mean"])) for site in guide.sites.processes)
    others = sorted(guide.sites.latents - guide.sites.processes) if guide.hyperparameters != "point" else []
    made = guide.others_for(args, kwargs)
    sizes = {site: np.size(params[f"{site}_loc"]) for site in others} if made is None else made.sizes
    entries = of_u + sum(int(sizes[site]) for site in others)
    if not entries:
        return unavailable("the guide draws nothing")
    rows = max(map(len, args), default=0)
    if rows > _MOST_ROWS:
        return unavailable(f"{rows} rows are more than {_MOST_ROWS}; trained.to_arviz(key, X, y) takes them in batches")
    try:
        subject = Subject(trained.model, guide, params, args, kwargs, trained._compiled)
        found = densities(subject, rng_key, num_draws=_DRAWS)
    except (GPZooError, TypeError, ValueError) as error:
        return unavailable(str(error).rstrip("."))
    k, bound = pareto(found.log_ratio)[1], largest_k(_DRAWS)
    table = []
    for site, terms in found.log_likelihood.items():
        left = leave_one_out(terms.reshape(_DRAWS, -1), found.log_ratio)
        by, density = "LOO", left.elpd
        if k > bound:
            by, density = ("held-out rows", held_out[site]) if site in held_out else ("not reliable", np.zeros(0))
        nlpd = error = None
        if len(density):
            nlpd, error = -float(density.mean()), float(density.std() / np.sqrt(len(density)))
        table.append((site, entries, k, by, nlpd, error, f"{left.above} ({'warns' if left.warns else 'silent'})"))
    what = f"u ({of_u} entries)" + (f" and other latents ({entries - of_u})" if others else "")
    note = (
        f"k-hat: of log_p - log_q of {_DRAWS} draws of {what}, those of trained.to_arviz(key, ...); f given u cancels. "
        + (
            f"It is above {bound:.2f}: LOO is not reliable, whatever az.loo says, which takes these draws for the "
            "posterior's. Held-out rows say more."
            if k > bound
            else f"Up to {bound:.2f} their weights make them draws of the posterior."
        )
        + f" NLPD: nats per datum, and its standard error. az.loo: data whose own k-hat there is above {bound:.2f}, "
        "for which it warns."
    )
    columns = ("site", "entries", "k-hat", "by", "NLPD", "error", "az.loo")
    return Diagnosis(sections=(Section(_TITLE, columns, tuple(table), note),))


def unavailable(reason: str) -> Diagnosis:
    """The table that says why there is none."""
    return Diagnosis(sections=(Section(_TITLE, ("k-hat",), (("not available",),), f"Not available: {reason}."),))
