"""Which weight decay and rate of the last phase suit a split? Code chooses, on training rows that it puts aside."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from jax import random

from gpzoo.errors import NonFiniteError
from gpzoo.models.train_deep_kernel import fit_deep_kernel, fit_network
from gpzoo.reproductions import datasets, metrics
from gpzoo.reproductions.deep_kernel_models import TEST_ROWS, Maker, Phases, of_network_alone
from gpzoo.reproductions.experiment import ReproductionError, Run
from gpzoo.reproductions.kept import kept
from gpzoo.reproductions.training import predicted

#: Weight decays, of which the network alone is given the best.
DECAYS = (0.0, 4.0)

#: Rates of network and GPs together, of which SV-DKL is given the best.
RATES = (1e-3, 3e-4, 1e-4)

#: How the record of a run tells of it; candidates are added by the run.
SELECTION = {
    "what": "weight decay, by the network alone, and then the rate of the last phase, by SV-DKL",
    "rule": "by code, the lowest nlpp",
    "data": "a random tenth of the training rows of each split, put aside; epochs and candidates are of trials by "
    "hand, some on a random split of connect4 and of diabetes that shares rows with those reported",
}


def choose(
    run: Run, split: int, data: datasets.Dataset, make: Maker, setting: Phases
) -> tuple[Phases, list[dict[str, Any]]]:
    """Settings with the decay and the rate that are best for a split, and the candidates.

    A random tenth of the training rows judges trainings on the other rows; rows of a group stay together. Test rows are
    not looked at. Steps and seconds of a run leave these trainings out.

    Args:
        run: the run, which keeps the candidates in a file for a later start.
        split: the split's number.
        data: its data.
        make: makes the network.
        setting: the settings, of which decay and last rate are replaced.

    Returns:
        The settings, and of every candidate its decay or rate and its ``nlpp``, in nats a row, ``None`` where its
        training failed.

    Raises:
        ReproductionError: if the trainings of all decays, or of all rates, ended in numbers that are not finite.
    """
    seed = 1000 * run.seed + split
    groups = np.arange(len(data.y_train)) if data.groups is None else np.unique(data.groups, return_inverse=True)[1]
    number = groups.max() + 1
    place = np.argsort(np.random.RandomState(seed).permutation(number))[groups]
    rows, kept_aside = np.argsort(place, kind="stable"), place < max(1, number // 10)
    aside, used = np.split(rows, [kept_aside.sum()])
    X, y = data.X_train[used], data.y_train[used]
    held, answers = data.X_train[aside], data.y_train[aside]

    def make_candidates() -> list[dict[str, Any]]:
        found, networks = [], {}
        network = setting.network(make(False, data, seed))
        of_network, _, _ = setting.steps(len(y))
        for decay in DECAYS:
            with suppress(NonFiniteError):
                networks[decay] = fit_network(
                    random.key(seed),
                    X,
                    y,
                    network=network,
                    num_steps=of_network,
                    learning_rate=setting.rates[0],
                    weight_decay=decay,
                    batch_size=setting.batch_size,
                    progress=f"choice of split {split}: weight decay {decay}",
                ).params
            nlpp = None
            if decay in networks:
                nlpp = metrics.nlpp(of_network_alone(network, networks[decay], held, answers))
            found.append({"split": split, "weight_decay": decay, "nlpp": nlpp})
        best = _best(found)["weight_decay"]
        for rate in RATES:
            own = replace(setting, rates=(*setting.rates[:2], rate), weight_decay=best)
            nlpp = None
            with suppress(NonFiniteError):
                fit = fit_deep_kernel(
                    random.key(seed),
                    X,
                    y,
                    network=network,
                    pretrained=networks[best],
                    progress=f"choice of split {split}: rate {rate}",
                    **own.options(len(y)),
                )
                nlpp = metrics.nlpp(predicted(random.key(seed), fit.joint, held, answers, TEST_ROWS))
            found.append({"split": split, "weight_decay": best, "rate_joint": rate, "nlpp": nlpp})
        return found

    described = {"split": split, "decays": list(DECAYS), "rates": list(RATES), "batch_size": setting.batch_size}
    described |= {"steps": list(setting.steps(len(y))), "rates_network_gps": list(setting.rates[:2])}
    candidates = kept(run.output / f"choice-{split}.json", run.made_by(described, data), make_candidates)
    best = _best([each for each in candidates if "rate_joint" in each])
    rates = (*setting.rates[:2], best["rate_joint"])
    return replace(setting, rates=rates, weight_decay=best["weight_decay"]), candidates


def _best(candidates: Sequence[dict[str, Any]]) -> dict[str, Any]:
    finite = [each for each in candidates if each["nlpp"] is not None]
    if not finite:
        tried = ", ".join(str(each.get("rate_joint", each["weight_decay"])) for each in candidates)
        raise ReproductionError(f"The trainings of all candidates ({tried}) ended in numbers that are not finite.")
    return min(finite, key=lambda each: each["nlpp"])
