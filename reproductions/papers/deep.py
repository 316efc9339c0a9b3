"""Doubly stochastic deep GPs (Salimbeni and Deisenroth 2017): its own statements, and what its page shows besides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gpzoo.reproductions.claims import load
from gpzoo.reproductions.deep import figure_1
from gpzoo.reproductions.experiment import Figure
from gpzoo.reproductions.judge import MATCHED, Found, Judged, Value, holding, verdict
from gpzoo.reproductions.kept import read_json
from gpzoo.reproductions.records import Key, Ours, Records, error_of, lead, mean_of, splits_of

_SETS = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine_red")
_MODELS = ("sgp", "sgp-500", "dgp2", "dgp3", "dgp4", "dgp5")
_LL = "test_log_likelihood"

#: What a model comes to with more training: SGPR is an SGP at its optimum, and two layers take 10,000 steps.
_LONGER = {"sgp": "sgpr", "sgp-500": "sgpr", "dgp2": "dgp2"}

#: Test log likelihood of SGPR and a two-layer DGP, and standard deviations over ten splits
#: (github.com/hughsalimbeni/bayesian_benchmarks). That of kin8nm is from the paper's authors, of one split.
_PUBLISHED: Mapping[str, Sequence[tuple[float, float]]] = {
    "boston": ((-2.398, 0.064), (-2.408, 0.052)),
    "energy": ((-1.084, 0.042), (-0.721, 0.106)),
    "kin8nm": ((0.976, 0.0),),
    "naval": ((9.353, 0.015), (6.746, 0.224)),
    "power": ((-2.799, 0.036), (-2.790, 0.037)),
    "protein": ((-2.901, 0.008), (-2.846, 0.009)),
}


def _against(records: Records, name: str, model: str, longer: str, preset: str = "cpu") -> Ours | None:
    """By how much a model leads one that was trained for longer, over the splits that both have."""
    uci, own = (records.found.get(Key("deep", *run)) for run in (("uci", name, preset), ("uci-natural", name, "cpu")))
    if uci is None or own is None:
        return None
    ours, theirs = (each["settings"]["by_fold"][key][_LL] for each, key in ((uci, model), (own, longer)))
    return mean_of([a - b for a, b in zip(ours, theirs, strict=False)])


def _not_converged(found: Found, name: str, model: str) -> Value | None:
    """By how much a model is below the same one trained for longer; ``None`` if it is not, or the files do not tell."""
    short, longer = "sgp" if model == "sgp-500" else model, _LONGER.get(model)
    lead = None if longer is None else _against(found.records, name, short, longer)
    if longer is None or lead is None or holding([lead], allow="level"):
        return None
    better = f"{longer.upper()} {'at its optimum' if longer == 'sgpr' else 'after 10,000 steps'}"
    return Value(f"{short.upper()} less {better} on {name}", lead, "lead")


def converged(found: Found, models: Sequence[str], than: str, allow: str = "") -> Judged:
    """In every run each model is better than one; a difference that more training would change decides nothing."""
    leads, unsure, doubts = [], [], {}
    for name, run in found.items():
        for model in models:
            lead = run.lead(_LL, model, than)
            doubt = _not_converged(found, name, than if lead.value > 0 else model)
            (unsure if doubt else leads).append(Value(f"{model.upper()} on {name}", lead, "lead"))
            doubts |= {doubt.name: doubt} if doubt else {}
    holds = holding([each.ours for each in leads], allow=allow)
    against = [each for each in [*leads, *unsure] if holding([each.ours], allow=allow) is not True]
    shown = [*leads, *unsure] if len(leads) + len(unsure) <= 4 else against
    return Judged(None if holds and doubts else holds, [*shown, *doubts.values()], len(leads) + len(unsure))


def deepest_is_best(found: Found, least: int) -> Judged:
    """The deepest model is best on so many sets; those on which SGP had not converged are doubtful."""
    best, close, values = set(), set(), []
    for name, run in found.items():
        leads = [run.lead(_LL, "dgp5", other) for other in _MODELS[:-1]]
        values.append(Value(f"DGP5 on {name}", min(leads, key=lambda each: each.value), "lead"))
        best |= {name} if all(each.value > 0 for each in leads) else set()
        close |= {name} if all(each.value + (each.error or 0.0) >= 0 for each in leads) else set()
    doubts = [_not_converged(found, name, "sgp") for name in sorted(best)]
    holds = True if doubts.count(None) >= least else None if len(close | best) >= least else False
    return Judged(holds, [*values, *filter(None, doubts)], len(values))


# -- what the page shows besides its claims ----------------------------------------------------------------------------


def facts(records: Records) -> dict[str, Any]:
    """Numbers for ``pages/deep.md.jinja``, with their errors, ``None`` where there is none."""
    figure_1 = [_of_set(records, name) for name in _SETS if Key("deep", "uci", name, "cpu") in records.found]
    natural: list[dict[str, Any]] = [
        {"set": key.variant, "preset": key.preset, "experiment": experiment, "published": _published(key.variant)}
        | {model: _number(result, model) for model in ("sgpr", "dgp2", "dgp2-natural")}
        | {"gain": _paired(result, "dgp2-natural", "dgp2")}
        | {f"{model} less sgpr": _paired(result, model, "sgpr") for model in ("dgp2", "dgp2-natural")}
        for experiment in ("uci-natural", "uci-few-steps")
        for key, result in records.of("deep", experiment)
        if key.preset != "quick"
    ]
    beside = [
        {"set": each["set"], "model": model.upper(), "difference": lead(each[model], theirs, _LL)}
        for each in natural
        if each["preset"] == "cpu" and each["experiment"] == "uci-natural"
        for model, theirs in zip(("sgpr", "dgp2-natural"), each["published"], strict=True)
        if theirs is not None and theirs.error is not None
    ]
    return {
        "figure_1": figure_1,
        "not_converged": [each["set"] for each in figure_1 if each["sgp"] and _sign([each["sgp"]]) < 0],
        "layers": _layers(natural),
        "natural": natural,
        "beside": [each for each in beside if holding([each["difference"]], allow="equal") is False],
        "their_task": _their_task(records),
        "matches": _matches(records),
    }


def _sign(leads: Sequence[Ours]) -> int:
    """1 if all leads are positive, -1 if all are negative, 0 if that is undecided."""
    below = [each._replace(value=-each.value) for each in leads]
    return (holding(leads) is True) - (holding(below) is True)


def _layers(natural: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The sets on which two layers after 10,000 steps, by Adam and with natural steps, are above or below SGPR."""
    told: dict[str, list[str]] = {"above": [], "undecided": [], "below": []}
    for each in natural:
        leads = [each[f"{model} less sgpr"] for model in ("dgp2", "dgp2-natural")]
        if (each["preset"], each["experiment"]) == ("cpu", "uci-natural") and None not in leads:
            told[("undecided", "above", "below")[_sign(leads)]].append(each["set"])
    return told


def _matches(records: Records) -> dict[str, Any]:
    """The printed accuracies on MNIST that those of two layers would match, and two of their standard errors."""
    key = Key("deep", "mnist", "dgp2", "cpu")
    if key not in records.found:
        return {}
    ours, models = error_of(records.found[key], "accuracy"), ("sgp", "sgp-500", "dgp2", "dgp3")
    printed = {model: each["accuracy"] for model, each in load("deep").numbers("mnist", models).items()}
    like = [model for model, each in printed.items() if each and verdict("accuracy", ours, each).word == MATCHED]
    return {"wide": ours.wide(), "like": [model.upper().replace("-", " ") for model in like if model != "dgp2"]}


def pictures(records: Records) -> dict[str, Callable[[], Figure]]:
    """Figure 1 with our own SGPR over the same splits, on the sets that have one."""
    found = {}
    for name in _SETS:
        uci, longer = (records.found.get(Key("deep", each, name, "cpu")) for each in ("uci", "uci-natural"))
        if uci is not None:
            each = longer["settings"]["by_fold"]["sgpr"][_LL][: splits_of(uci)] if longer is not None else []
            sgpr = mean_of(each) if each else None
            of = {f"sgpr_{_LL}": sgpr.value, f"sgpr_{_LL}_se": sgpr.error} if sgpr is not None else {}
            found[name] = {**uci, "metrics": of | uci["metrics"]}
    return {"figure-1": partial(figure_1, found)} if found else {}


def _of_set(records: Records, name: str) -> dict[str, Any]:
    """A set of figure 1: every model, and SGP and the best deep GP less our own SGPR over the same splits."""
    result = records.found[Key("deep", "uci", name, "cpu")]
    best = max(_MODELS[2:], key=lambda model: result["metrics"][f"{model}_{_LL}"])
    less = {model: _against(records, name, model, "sgpr") for model in ("sgp", best)}
    models = {model: _number(result, model) for model in _MODELS}
    return {"set": name, "best": best, "models": models, "sgp": less["sgp"], "deep": less[best]}


def _number(result: Mapping[str, Any], model: str) -> Ours | None:
    each = result["settings"]["by_fold"].get(model)
    return mean_of(each[_LL]) if each else None


def _paired(result: Mapping[str, Any], model: str, other: str) -> Ours | None:
    by = result["settings"]["by_fold"]
    if not by.keys() >= {model, other}:
        return None
    return mean_of([a - b for a, b in zip(by[model][_LL], by[other][_LL], strict=True)])


def _published(name: str) -> list[Ours | None]:
    """SGPR and two layers as others publish them; a standard deviation over ten splits gives the standard error."""
    each = _PUBLISHED.get(name, ())
    found = [Ours(mean, spread / 10**0.5 if spread else None, "10 splits", 9) for mean, spread in each]
    return [*found, None, None][:2]


def _their_task(records: Records) -> list[dict[str, Any]]:
    """SGPR and two layers in the regression task of bayesian_benchmarks, by the file of our benchmark."""
    path = records.folder.parent.parent / "benchmarks" / "results" / "regression_tasks.json"
    scores = read_json(path)["scores"] if path.is_file() else {}
    return [
        {"set": name, "published": _published(name)}
        | {model: mean_of([each[_LL] for each in of[name]]) for model, of in scores.items() if name in of}
        for name in sorted({name for of in scores.values() for name in of})
    ]
