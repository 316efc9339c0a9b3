"""Stochastic variational deep kernel learning (Wilson et al. 2016): its own statements, and what its page shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

from gpzoo.inference import plots
from gpzoo.reproductions.answers import Answered
from gpzoo.reproductions.experiment import PRESETS, Figure
from gpzoo.reproductions.judge import EXCEEDED, MATCHED, Found, Judged, Value, holding, pairs, verdict
from gpzoo.reproductions.records import Ours, Recorded, Records, lead

_SETS = ("adult", "connect4", "diabetes", "covtype", "mnist-binary", "mnist", "cifar10", "cifar10-resnet20")


def not_always(found: Found, **arguments: Any) -> Judged:
    """Pairs of models in which the one is not better everywhere."""
    judged = pairs(found, **arguments)
    return judged._replace(holds=None if judged.holds is None else not judged.holds)


def grows(found: Found) -> Judged:
    """SV-DKL is better than the network at every number of rows, and both improve with rows."""
    (_, run), *_ = found.items()
    by_rows, tests = run.result["settings"]["by_rows"], run.result["data"]["sizes"]["test"]

    def number(value: float) -> Ours:
        return Ours(value, (value * (1 - value) / tests) ** 0.5, "binomial")

    ours = {model: [number(each[f"{model}_accuracy"]) for each in by_rows] for model in ("dnn", "svdkl")}
    steps = [*zip(ours["svdkl"], ours["dnn"], strict=True), *((b, a) for of in ours.values() for a, b in pairwise(of))]
    leads = [lead(a, b, "accuracy") for a, b in steps]
    at = [f"{model}, {each['rows']:,} rows" for model in ours for each in by_rows]
    values = [Value(name, each, "accuracy") for name, each in zip(at, [*ours["dnn"], *ours["svdkl"]], strict=True)]
    return Judged(holding(leads), values)


def flat(found: Found, points: int, most: float) -> Judged:
    """A step with up to so many grid points costs at most a multiple of that with the fewest."""
    (_, run), *_ = found.items()
    grid = [each for each in run.result["settings"]["by_grid"] if each["points"] <= points]
    ratio = grid[-1]["svdkl_seconds"] / grid[0]["svdkl_seconds"]
    said = f"{grid[-1]['points']} points as a multiple of {grid[0]['points']}"
    return Judged(ratio <= most, [Value(said, Ours(ratio))])


def with_few_rows(found: Found, share: float, accuracy: float) -> Judged:
    """With a share of the rows SV-DKL has an accuracy."""
    (_, run), *_ = found.items()
    by_rows = run.result["settings"]["by_rows"]
    few = [each for each in by_rows if each["rows"] <= share * by_rows[-1]["rows"] * (1 + 1e-6)]
    values = [Value(f"{each['rows']:,} rows", Ours(each["svdkl_accuracy"]), "accuracy") for each in few]
    return Judged(few[-1]["svdkl_accuracy"] >= accuracy if few else None, values)


# -- what the page shows besides its claims ----------------------------------------------------------------------------


def _first(records: Records) -> dict[str, Recorded]:
    """The run of every set that is compared with the paper's."""
    found = {name: next(records.compared("deep_kernel", name, "all", PRESETS), None) for name in _SETS}
    return {name: run for name, run in found.items() if run is not None}


def facts(records: Records) -> dict[str, Any]:
    """Numbers for ``pages/deep_kernel.md.jinja``.

    ``gain`` has by how much SV-DKL is better than the network, as the paper compares them and after as many steps; the
    lists of sets are by nlpp after as many steps; ``lengths`` has the epochs of each phase.
    """
    gain, lengths = [], []
    told: dict[str, list[Any]] = {
        name: [] for name in ("better", "worse", "level", "close", "ahead", "behind", "accurate")
    }
    for name, run in _first(records).items():
        each = {
            f"{other} {metric}": run.lead(metric, "svdkl", other)
            for other in ("dnn", "dnn-long")
            for metric in ("accuracy", "nlpp")
        }
        nlpp, accuracy = each["dnn-long nlpp"], each["dnn-long accuracy"]
        one = ("ahead" if nlpp.value > 0 else "behind") if nlpp.error is None else ""
        word = one or {True: "better", False: "worse", None: "level"}[holding([nlpp])]
        if word == "level" and nlpp.error and abs(nlpp.value) > 2 * nlpp.error:
            told["close"].append(_close(name, run, nlpp, accuracy))
        else:
            told[word].append(name)
        if nlpp.error is not None and holding([accuracy]):
            told["accurate"].append(name)
        gain.append({"set": name, "dead": _dead(run.result["metrics"]), **each})
        settings, train = run.result["settings"], run.result["data"]["sizes"]["train"]
        epochs = [steps * settings["batch_size"] / train for steps in settings["steps_network_features_joint"]]
        lengths.append({"set": name, "epochs": epochs, "longer": run.lead("accuracy", "dnn-long", "dnn")})
    return {"gain": gain, "lengths": lengths, **told}


def _close(name: str, run: Recorded, nlpp: Ours, accuracy: Ours) -> dict[str, Any]:
    """A gain in nlpp of more than two standard errors that Student's t of so few splits does not tell from none."""
    by = run.result["settings"]["by_split"]
    always = all((each["dnn-long_nlpp"] - each["svdkl_nlpp"]) * nlpp.value > 0 for each in by)
    errors = abs(nlpp.value) / (nlpp.error or 1.0)
    return {"set": name, "nlpp": nlpp, "accuracy": accuracy, "splits": len(by), "always": always, "errors": errors}


def as_well(records: Records, each: Answered) -> list[Value]:
    """The networks alone whose numbers do as well as ours of SV-DKL by the number that the paper has for SV-DKL."""
    claim = each.claim
    if claim.answer is None or claim.printed is None or not each.runs or each.verdict.word not in (MATCHED, EXCEEDED):
        return []
    model, _, metric = claim.answer.metric.partition("_")
    run = Recorded(tuple(each.runs), tuple(records.found[key] for key in each.runs))
    names = {"dnn": "alone", "dnn-long": "after as many steps"} if model == "svdkl" else {}
    found = [Value(name, ours, metric) for other, name in names.items() if (ours := run.ours(f"{other}_{metric}"))]
    words = (EXCEEDED,) if each.verdict.word == EXCEEDED else (MATCHED, EXCEEDED)
    return [value for value in found if verdict(metric, value.ours, claim.printed).word in words]


def _dead(metrics: Mapping[str, float]) -> bool:
    """Whether DNN+ lost what the network had, as with units that are zero on all rows."""
    return metrics.get("dnn+_accuracy", 1.0) < metrics["dnn_accuracy"] - 0.02


def pictures(records: Records) -> dict[str, Callable[[], Figure]]:
    """The gain in nlpp of SV-DKL over the network before, and over the network after as many steps."""
    first, others = _first(records), ("dnn", "dnn-long")
    found = {name: [run.lead("nlpp", "svdkl", other) for other in others] for name, run in first.items()}
    return {"gain": partial(_gain, found)} if found else {}


def _gain(found: Mapping[str, list[Ours]]) -> Figure:
    figure = plots.blank(7.2, 1.4 + 0.42 * len(found))
    axes = figure.subplots()
    labels = ("over the network it began with (the paper's comparison)", "over the network after as many steps")
    for i, (label, colour) in enumerate(zip(labels, ("0.6", "C0"), strict=True)):
        rows = [-row + 0.12 - 0.24 * i for row in range(len(found))]
        each = [of[i] for of in found.values()]
        bars = {"xerr": [one.error or 0.0 for one in each], "fmt": "o", "markersize": 5, "capsize": 2}
        axes.errorbar([one.value for one in each], rows, color=colour, label=label, **bars)
        alone = [(one.value, row) for one, row in zip(each, rows, strict=True) if one.error is None]
        open_ = {"color": colour, "markerfacecolor": "white", "markersize": 5, "linestyle": "none", "zorder": 3}
        if alone:
            axes.plot(*zip(*alone, strict=True), marker="o", **open_)
    axes.axvline(0, color="0.4", linewidth=0.8)
    axes.set_yticks([-row for row in range(len(found))], list(found))
    axes.set_xlabel("gain in nlpp of SV-DKL (nats); right of the line it is better")
    axes.legend(fontsize=9, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    return figure
