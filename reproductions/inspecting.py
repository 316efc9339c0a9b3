"""Reports on one run, on several runs side by side, and on the file of a trained model."""

from __future__ import annotations

import inspect
import math
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jax import random

from gpzoo.errors import CheckpointError
from gpzoo.inference import load, plots
from gpzoo.inference.diagnosis.findings import Section
from gpzoo.inference.reports.document import Code, Part, Picture, page
from gpzoo.inference.reports.drawn import address, picture
from gpzoo.inference.reports.pictures import BOUND
from gpzoo.inference.reports.program import values
from gpzoo.inference.reports.report import data_of_training, environment, parts, report, subtitle
from gpzoo.reproductions import terminal as results
from gpzoo.reproductions.experiment import REQUIRED, Experiment, ReproductionError, Run, identity_of
from gpzoo.reproductions.figures import has_curves, test_curves, test_rows_of
from gpzoo.reproductions.kept import read_json, write_text

# -- a run -------------------------------------------------------------------------------------------------------------


def report_of_run(folder: Path, find: Callable[[str, str], Experiment], path: Path) -> None:
    """Write the report of a run: its numbers beside the numbers of the paper, and its trained model.

    Args:
        folder: folder of the run, with ``result.json``.
        find: a function that finds the experiment of a paper by its name.
        path: path of the report.

    Raises:
        ReproductionError: if the folder has no result, or if the result is damaged.
        OSError: if the report cannot be written.
    """
    result = _result(folder)
    run = Run(**identity_of(result), output=folder)
    experiment = find(run.paper, run.experiment)
    of_model, looked_at, reason = _of_model(run, result, experiment)
    title = f"Report: {run.paper} {run.experiment}, variant {run.variant}"
    ended = str(result["finished"]).replace("T", " ").replace("+00:00", " UTC")
    said = f"Preset {run.preset}, seed {run.seed}, finished {ended}. {looked_at}"
    numbers = _metrics(result, experiment.variants.get(run.variant, {}))
    first = Part("Result", [numbers, *results.sizes(result), *results.notes(result), *([reason] if reason else [])])
    # Curves of the training are drawn again for the report.
    others = ("test_curves", "learning_curve") if of_model else ("test_curves",)
    figures = Part("Figures of the experiment", [*_figures(folder, result, numbers, others)])
    run_of = Part("The run", [_settings([result]), _run(result)])
    last = () if of_model else (Part("How to make it again", [Code(result["command"])]),)
    write_text(path, page(title, said, [first, *of_model[:-2], figures, run_of, *of_model[-2:], *last]))


def _result(folder: Path) -> dict[str, Any]:
    path = folder / "result.json"
    if not path.is_file():
        raise ReproductionError(f"{folder} has no result.json: name a folder that gpzoo reproduce wrote.")
    result = read_json(path)
    if not isinstance(result, dict) or set(REQUIRED) - result.keys():
        raise ReproductionError(f"{path} is damaged: it is no result of gpzoo reproduce.")
    return result


def _of_model(run: Run, result: Mapping[str, Any], experiment: Experiment) -> tuple[tuple[Part, ...], str, str]:
    """The parts about the trained model, a description of the rows, and a reason if there are no parts."""
    if not run.model.is_file():
        gone = f"There is no {run.model.name} in the folder, so that nothing more can be said of a model. If the "
        return (), "", gone + "experiment keeps one, the command below makes it again."
    try:
        found = experiment.run(replace(run, finished=True)).inspected
    except CheckpointError as error:
        return (), "", f"Its model cannot be had: {error}"
    if found is None:
        return (), "", "This experiment keeps no model to look at."
    key = random.key(run.seed)
    made = parts(key, found.trained, found.args, found.keywords, again=result["command"])
    which = f"Of the models of this run, it shows {found.which}. " if found.which else ""
    return made, " ".join([which + subtitle(found.args), *filter(None, [found.differs])]), ""


def _metrics(result: Mapping[str, Any], printed: Mapping[str, float | None]) -> Section:
    note = " ".join(results.explained(result["metrics"]))
    columns, rows = results.beside_paper(result, printed)
    if len(columns) == 2:
        return Section("This run", ("metric", "value"), tuple(rows), note)
    note += f" {results.SMALL}" if len(columns) == 3 else ""
    said = tuple((*row[:3], *(each and str(each) for each in row[3:])) for row in rows)
    return Section("This run beside the paper", ("metric", "this run", *columns[2:]), said, note)


def _run(result: Mapping[str, Any]) -> Section:
    rows = [
        ("steps", f"{result['steps']:,}"),
        ("time in training", results.duration(result["seconds_training"])),
        ("device", result["device"]),
        ("precision", result["dtype"]),
        ("commit", result["commit"]),
        *result["versions"].items(),
        *((f"data: {name}", str(value)) for name, value in result["data"].items()),
    ]
    return Section("Where the model was trained", ("what", "value"), tuple(rows))


def _settings(found: Sequence[Mapping[str, Any]]) -> Section:
    """The settings of a run; for several runs, the settings that differ."""
    flat = [dict(_flat("", result["settings"])) for result in found]
    names = list(dict.fromkeys(name for each in flat for name in each))
    if len(found) == 1:
        rows = tuple((name, flat[0][name]) for name in names)
        return Section("Settings", ("setting", "value"), rows)
    rows = tuple((name, *values) for name in names if len(set(values := [each.get(name, "-") for each in flat])) > 1)
    return Section("Settings that differ", ("setting", *(result["variant"] for result in found)), rows)


def _flat(at: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _flat(f"{at}.{name}" if at else name, each)
    else:
        text = "-" if value is None else str(value)
        yield at, text if len(text) <= 200 else text[:197] + "..."


def _figures(folder: Path, result: Mapping[str, Any], numbers: Section, others: Sequence[str]) -> Iterator[Picture]:
    """Most of the experiment's figures, with the numbers of the run, and test metrics during the training."""
    for path in sorted(path for path in folder.glob("*.png") if path.stem not in others):
        name = path.stem.replace("_", " ")
        words = "A figure of the experiment, as the run drew it."
        title = name[:1].upper() + name[1:]
        alt = f"{title}, a figure of {result['paper']} {result['experiment']}. The metrics of the run are in the table "
        alt += "below."
        yield Picture(title, words, address(path.read_bytes(), "image/png"), alt, (numbers,))
    yield from _test_curves([result])


def _test_curves(found: Sequence[Mapping[str, Any]]) -> Iterator[Picture]:
    drawable = {result["variant"]: result for result in found if has_curves(result["curve"])}
    if drawable:
        curves = {variant: result["curve"] for variant, result in drawable.items()}
        drawn = test_curves(curves, test_rows=test_rows_of(drawable)).axes
        yield picture("Test metrics during training", "Metrics of the test set against the time in training.", drawn)


# -- several runs ------------------------------------------------------------------------------------------------------


def report_of_runs(folders: Sequence[Path], path: Path) -> None:
    """Write the report of several variants of one experiment side by side, with the highest bound first.

    Args:
        folders: folders of the runs.
        path: path of the report.

    Raises:
        ReproductionError: if a folder has no result, or if a result is damaged.
        OSError: if the report cannot be written.
    """
    found = [(_result(folder), folder) for folder in folders]
    found.sort(key=lambda pair: -pair[0]["metrics"].get("elbo", -math.inf))
    ranked = [result for result, _ in found]
    metrics = list(dict.fromkeys(name for result in ranked for name in result["metrics"]))
    columns = ("variant", *(name.replace("_", " ") for name in metrics), "time in training")
    rows = []
    for result in ranked:
        own = (result["metrics"].get(name) for name in metrics)
        rows.append((result["variant"], *own, results.duration(result["seconds_training"])))
        if any(value is not None for value in result["paper_metrics"].values()):
            paper = (result["paper_metrics"].get(name) for name in metrics)
            rows.append((f"{result['variant']}, in the paper", *paper, None))
    table = Section("Variants, the highest bound first", columns, tuple(rows), " ".join(results.explained(metrics)))
    said = dict.fromkeys(line for result in ranked for line in (*results.sizes(result), *results.notes(result)))
    pictures = [*_test_curves(ranked)]
    for result, folder in found:
        pictures += _bound(folder / "model.gpzoo", f"Bound of {result['variant']}")
    first, again = ranked[0], "The report of a variant alone, with its model:"
    commands = "\n".join(f"{result['command']} --output {folder}" for result, folder in found)
    of_one = "\n".join(f"gpzoo inspect {folder}" for _, folder in found)
    made = [
        Part("Side by side", [table, *said]),
        Part("Pictures", pictures),
        Part("Settings", [_settings(ranked)] if len(ranked) > 1 else []),
        Part("How to make it again", [Code(commands), again, Code(of_one)]),
    ]
    under = f"{len(ranked)} variants, preset {first['preset']}, seed {first['seed']}."
    write_text(path, page(f"Comparison: {first['paper']} {first['experiment']}", under, made))


# -- the file of a model -----------------------------------------------------------------------------------------------


def report_of_model(model: Path, program: str | None, data: Path | None, path: Path) -> None:
    """Write the report of a saved model. The file does not have its program; without it, the report shows the file.

    Args:
        model: the file that ``Trained.save`` wrote.
        program: ``"module:name"`` of the program. It is imported as by Python, or from the current folder.
        data: an ``.npz`` file with an array for each argument of the program, by the name of the argument.
        path: path of the report.

    Raises:
        CheckpointError: if the file cannot be loaded.
        ReproductionError: if there is no such program or file of data, or if only one of them is given.
        OSError: if the report cannot be written.
    """
    if (program is None) != (data is None):
        raise ReproductionError("Name both the program, --program MODULE:NAME, and its data, --data FILE.npz.")
    if program is not None and data is not None:
        found = _imported(program)
        trained = load(model, found)
        args, keywords = _arguments(found, data)
        report(random.key(0), trained, *args, path=path, model_kwargs=keywords)
        return
    trained = load(model, _absent)
    missing = "The file holds neither the program nor data. With both this report has findings, sites with their "
    missing += "priors, and pictures:"
    command = f"gpzoo inspect {model} --program MODULE:NAME --data FILE.npz"
    made = [
        Part("What to know", [missing, Code(command)]),
        Part("Parameters", [values(trained)]),
        Part("The bound", _bound(model, "Bound")),
        Part("Environment", [environment(trained), *data_of_training(trained)]),
    ]
    write_text(path, page(f"Report: {model.name}", "A trained model, as its file has it.", made))


def _absent(*args: Any, **kwargs: Any) -> None:
    """A stand-in for a program that is not known."""


_absent.__name__ = ""  # it stands for any program


def _bound(model: Path, title: str) -> list[Picture]:
    """The bound during the training of a saved model, if the file has one."""
    trained = load(model, _absent) if model.is_file() else None
    return [picture(title, BOUND, plots.elbo(trained))] if trained is not None and trained.losses.size else []


def _imported(program: str) -> Callable:
    sys.path.append(os.getcwd())
    try:
        found = pkgutil.resolve_name(program)
    except (ImportError, AttributeError, ValueError) as error:
        raise ReproductionError(f"There is no program {program!r}: {error}.") from error
    if not callable(found):
        raise ReproductionError(f"{program!r} is no program: it cannot be called.")
    return found


def _arguments(program: Callable, data: Path) -> tuple[tuple, dict[str, Any]]:
    """Positional and keyword arguments of a program, from arrays with the names of the arguments."""
    try:
        with np.load(data, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, AttributeError) as error:
        raise ReproductionError(f"{data} is no .npz file of arrays: {error}.") from error
    signature = inspect.signature(program)
    known = signature.parameters
    if unknown := sorted(set(arrays) - set(known)):
        raise ReproductionError(f"{data} has arrays {unknown}, but the program's arguments are {list(known)}.")
    needed = [name for name, p in known.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if missing := [name for name in needed if name not in arrays]:
        raise ReproductionError(f"{data} has no arrays {missing}, which the program needs.")
    bound = signature.bind(**{name: x.item() if x.ndim == 0 else x for name, x in arrays.items()})
    return bound.args, bound.kwargs
