"""What do pages of results have in common? Pictures, tables of numbers, and the table of all runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from gpzoo.reproductions.answers import rows_of, settings_of
from gpzoo.reproductions.claims import Paper
from gpzoo.reproductions.experiment import NOT_RECORDED, Experiment
from gpzoo.reproductions.figures import figure_name
from gpzoo.reproductions.markdown import markdown
from gpzoo.reproductions.printed import Printed, beside, number
from gpzoo.reproductions.records import Key, Ours, Records, splits_of
from gpzoo.reproductions.terminal import duration
from gpzoo.reproductions.verdicts import kind


def telling_of(paper: Paper, figures: Collection[str]) -> str:
    """The name of a paper's most telling figure; empty if there is none."""
    return next((name for name in (f"{paper.key}/{each}" for each in paper.telling[0]) if name in figures), "")


def picture(name: str, words: str, figures: Collection[str], up: str = "../../") -> list[str]:
    """A figure with its words below it, if it is drawn."""
    return [f"![{words}]({up}reproductions/results/{name}.png)", "", f"*{words}*", ""] if name in figures else []


def small_presets(experiment: Experiment) -> tuple[str, ...]:
    """The presets whose runs only check the program: the quick one, unless there is no other."""
    return tuple(preset for preset in experiment.presets if preset == "quick" and set(experiment.presets) != {"quick"})


def large_presets(experiment: Experiment) -> tuple[str, ...]:
    """The other presets."""
    return tuple(preset for preset in experiment.presets if preset not in small_presets(experiment))


def pictures_of(experiment: Experiment, figures: Collection[str], presets: Collection[str]) -> Iterator[str]:
    """The figures of an experiment's runs of these presets, with their words."""
    drawn = [preset for preset in presets if figure_name(experiment, preset) in figures]
    for preset in drawn:
        curves = " Test metrics against time in training." if experiment.figure is None else ""
        words = (experiment.caption or experiment.description + curves) + f" Preset `{preset}`." * (len(drawn) > 1)
        yield from picture(figure_name(experiment, preset), words, figures)


def pictures_of_runs(records: Records, experiment: Experiment, paper: Paper) -> Iterator[str]:
    """Pictures that runs drew of their trained models, which lie beside their files: ``STEM_NAME.png``."""
    for key, _ in records.of(experiment.paper, experiment.name):
        path = records.paths[key]
        for found in sorted(path.parent.glob(f"{path.stem}_*.png")):
            words = paper.drawn_by_runs.get(found.stem.removeprefix(f"{path.stem}_"), "A trained model")
            words += f": {experiment.name}, variant {key.variant}, preset {key.preset}."
            yield from picture(f"{experiment.paper}/{found.stem}", words, (f"{experiment.paper}/{found.stem}",))


def numbers_of(records: Records, experiment: Experiment, presets: Collection[str]) -> list[str]:
    """Tables of an experiment's numbers by runs of these presets, variants by metrics; seeds are taken together."""
    lines: list[str] = []
    for preset in presets:
        seeds: dict[str, list[Key]] = {}
        for key, _ in records.of(experiment.paper, experiment.name):
            if key.preset == preset:
                seeds.setdefault(key.variant, []).append(key)
        if not seeds:
            continue
        found = {variant: records.found[runs[0]] for variant, runs in seeds.items()}
        every = dict.fromkeys(name for result in found.values() for name in result["metrics"])
        metrics = [name for name in every if name.removesuffix("_se") == name or name.removesuffix("_se") not in every]
        cells = {name: [_number(records.ours(tuple(runs), name), name) for runs in seeds.values()] for name in metrics}
        names = [_worded(name) for name in metrics]
        if len(metrics) > 8:
            rows, headings = [(name, *row) for name, row in zip(names, cells.values(), strict=True)], ("metric", *found)
        else:
            rows = list(zip(found, *cells.values(), strict=True))
            headings = ("variant", *names)
            if len({settings_of(result) for result in found.values()}) > 1:
                rows = [(*row, settings_of(result)) for row, result in zip(rows, found.values(), strict=True)]
                headings = (*headings, "settings")
        lines += ["", f"**{experiment.name}, {preset}.** {experiment.description}", "", *markdown(headings, rows)]
        lines += _worse_than_guessing(found)
    return lines


def _worded(metric: str) -> str:
    """A metric's name in words, after that of its model if a run has several; errors are in per cent."""
    known = kind(metric) or metric
    model = metric.removesuffix(known).removesuffix("_")
    return f"{model}: ".replace("_", " ") * bool(model) + known.replace("_", " ") + " (%)" * (metric == "error")


def _number(ours: Ours | None, metric: str) -> str:
    """A metric's value, with its standard error if that is known; errors are in per cent, as the papers print them."""
    if ours is None:
        return number(None)
    scale = 100 if metric == "error" else 1
    if not ours.error:
        return number(scale * ours.value)
    return beside(scale * ours.value, scale * ours.error, Printed("0"))


def _worse_than_guessing(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Says which variants' probabilities are worse than those of a guess that gives every class the same."""
    sizes = (result["data"]["sizes"] for result in found.values())
    counts = {each.get("classes", 0) for each in sizes if isinstance(each, Mapping)}
    if len(counts) != 1 or not (classes := counts.pop()):
        return []
    worse = [name for name, result in found.items() if result["metrics"].get("nlpp", 0.0) > math.log(classes)]
    if not worse:
        return []
    guess = f"ln {classes} = {math.log(classes):.2f}, that of giving all classes the same probability"
    return ["", f"The nlpp of {', '.join(worse)} is worse than {guess}: these runs are sure, and often wrong."]


def provenance_of(records: Records, paper: str) -> list[str]:
    """The table of all runs of a paper: data, cost, machine, versions and commit."""
    rows, versions = [], {}
    for key, result in records.of(paper):
        label = versions.setdefault(tuple(result["versions"].items()), f"v{len(versions) + 1}")
        per_step = result["seconds_per_step"]
        rows.append(
            (
                f"`{records.paths[key].relative_to(records.folder).as_posix()}`",
                str(key.seed),
                f"{result['data']['name']}, {rows_of(result)}" + (", stands in" if result.get("stands_in") else ""),
                _steps(result),
                duration(result["seconds_training"]),
                "–" if per_step is None else f"{1000 * per_step:.3g} ms",
                f"{result['peak_memory_bytes'] / 2**30:.1f} GiB",
                f"{result['device']}, {result['dtype']}",
                settings_of(result) + _chosen(result),
                label,
                _commit(result),
            )
        )
    if not rows:
        return ["Nothing is recorded."]
    headings = (
        "file",
        "seed",
        "data",
        "steps",
        "time",
        "per step",
        "memory",
        "device",
        "settings",
        "versions",
        "commit",
    )
    of = [f"{label}: {', '.join(f'{name} {value}' for name, value in found)}." for found, label in versions.items()]
    return [
        "A file is `EXPERIMENT-VARIANT-PRESET.json`, and its command "
        f"`gpzoo reproduce {paper} EXPERIMENT --variant VARIANT --preset PRESET`.",
        "",
        *markdown(headings, rows),
        "",
        " ".join(of)
        + " The time per step is that of the training, compiling and all, over its steps. The preset `paper` has "
        "the paper's sizes; where its row says settings of ours, the file is old and has those alone. A commit "
        "with a `+` had changes that were not committed; *not kept*: recorded before commits were. *By hand*: "
        "someone tried settings and kept those whose results were best; where the row does not say on which data, "
        "that was not noted, and it may have been the test set.",
    ]


def _steps(result: Mapping[str, Any]) -> str:
    """The steps of a run, and over what they are summed."""
    settings, splits = result.get("settings") or {}, splits_of(result)
    models = settings.get("models") or ()
    parts = [f"{len(models)} models"] * bool(models) + [f"{splits} splits"] * (splits > 1)
    return f"{result['steps']:,}" + (f" in all ({', '.join(parts)})" if parts else "")


def _chosen(result: Mapping[str, Any]) -> str:
    """How settings were chosen by results."""
    selection = result.get("selection")
    if not selection:
        return ""
    data = "" if selection["data"] == NOT_RECORDED else f", on {selection['data']}"
    return f", chosen {selection['rule']}{data}"


def _commit(result: Mapping[str, Any]) -> str:
    """The commits of a run's starts, in order of time."""
    if "schema" not in result:
        return "not kept"
    mark = "" if result["clean"] else "+"
    return ", ".join("unknown" if commit is None else f"{commit[:7]}{mark}" for commit in result["commits"])
