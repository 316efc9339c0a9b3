"""Our numbers beside the paper's: the table after a run, and the page of results made from the recorded files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpzoo.reproductions.experiment import FIELDS, SCHEMA, Experiment, ReproductionError
from gpzoo.reproductions.kept import read_json

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

LOWER_IS_BETTER = frozenset({"error", "nlpp", "rmse"})
HIGHER_IS_BETTER = frozenset({"accuracy", "test_log_likelihood", "auc", "elbo"})

#: Metrics in words.
_MEANINGS = {
    "error": "share of the test set that is misclassified; lower is better",
    "wrong_images": "number of test images that are misclassified",
    "accuracy": "share of the test set that is classified rightly; higher is better",
    "nlpp": "negative log predictive probability of the right answer, mean over the test set; lower is better",
    "test_log_likelihood": "log density given to the right answer, mean over the test set; higher is better",
    "rmse": "root mean square error on the test set, in the target's units; lower is better",
    "auc": "area under the curve of true against false positives on the test set; higher is better",
    "elbo": "evidence lower bound, on the log probability of all training targets, which training raises; "
    "higher is better",
    "bound_per_point": "the elbo divided by the number of training points; higher is better",
    "learned_angle_degrees": "rotations up to this angle were learned",
    "seconds_per_step": "time of one training step",
    "step_ratio_70": "time of a step with 70 grid points, as a multiple of the network's alone",
    "difference": "nlpp less that of a model that is trained on all of the data at once; lower is better",
    "se": "standard error of the number above it",
}

#: Fields of files that were recorded before commits were.
_OLD_FIELDS = frozenset(FIELDS) - {
    "schema", "commit", "clean", "commits", "command", "resumed_from", "stands_in", "subset", "folds", "selection",
    "curve",
}  # fmt: skip

#: Generated data; older files have no field that says so.
_GENERATED = ("rectangles",)


def number(value: float | None) -> str:
    """A number to four digits, or a dash for ``None``."""
    return "-" if value is None else f"{value:.4g}"


def shortfall(metric: str, ours: float, paper: float | None) -> float | None:
    """How far our number is behind the paper's, if it is and one direction is better; else ``None``."""
    kind = _kind(metric)
    if paper is None or kind is None:
        return None
    behind = ours - paper if kind in LOWER_IS_BETTER else paper - ours
    return behind if behind > 0 else None


def verdict(metric: str, ours: float, paper: float | None) -> str:
    """``"short by 0.003"``, ``"reached"``, or an empty string if there is no comparison."""
    behind = shortfall(metric, ours, paper)
    if behind is not None:
        return f"short by {number(behind)}"
    return "reached" if paper is not None and _kind(metric) is not None else ""


def _kind(metric: str) -> str | None:
    """The kind of a metric, if one direction is better: ``"accuracy"`` for a model's ``"dnn_accuracy"``."""
    known = LOWER_IS_BETTER | HIGHER_IS_BETTER
    return next((kind for kind in known if metric == kind or metric.endswith(f"_{kind}")), None)


def difference(ours: float, paper: float | None) -> str:
    """Our number minus the paper's, with its sign."""
    return "-" if paper is None else f"{ours - paper:+.4g}"


def table(result: Mapping[str, Any]) -> Group:
    """The table printed after a run, with explanations of its words; it fits into 60 columns.

    Every metric has our number and, if the paper has one, the paper's and a verdict.

    Args:
        result: the content of a ``result.json``.
    """
    from rich.console import Group
    from rich.text import Text

    small = " (a small run)" if result["preset"] == "quick" else ""
    title = "{paper} {experiment}, variant {variant}, preset {preset}{small}, seed {seed}".format(small=small, **result)
    compared = any(value is not None for value in result["paper_metrics"].values())
    view = _table()
    view.add_column("metric", overflow="fold", min_width=12)
    for heading in ("ours", "paper") if compared else ("this run",):
        view.add_column(heading, justify="right", no_wrap=True)
    if compared:
        view.add_column("verdict", no_wrap=True)
    for metric, ours in result["metrics"].items():
        paper = result["paper_metrics"][metric]
        style = "bold red" if shortfall(metric, ours, paper) is not None else "green"
        against = number(paper), Text(verdict(metric, ours, paper), style=style)
        view.add_row(metric, number(ours), *(against if compared else ()))
    lines = [*explained(result["metrics"]), *sizes(result), *notes(result)]
    return Group(Text(title, style="bold"), view, *map(Text, lines))


def sizes(result: Mapping[str, Any]) -> list[str]:
    """The numbers of training and test rows of a run, if all of the data were used."""
    data = result["data"]
    rows = [data["sizes"].get(part) for part in ("train", "test")] if isinstance(data["sizes"], Mapping) else []
    if result.get("subset") or not all(isinstance(count, int) for count in rows) or not rows:
        return []
    return [f"Data: {data['name']}, {rows[0]:,} rows to train on and {rows[1]:,} to test."]


def explained(metrics: Iterable[str]) -> list[str]:
    """Explanations of metrics, a line for each kind."""
    ends = tuple(f"_{metric}" for metric in metrics)
    return [f"{name}: {meaning}." for name, meaning in _MEANINGS.items() if any(e.endswith(f"_{name}") for e in ends)]


def notes(result: Mapping[str, Any]) -> list[str]:
    """Notes on the data of a result, in sentences."""
    found = []
    if result.get("stands_in"):
        found.append("The data stand in for the paper's, which are not used here; the paper's numbers are left out.")
    if part := result.get("subset"):
        found.append(
            f"Trained on {part['train']:,} of {part['of']:,} rows, tested on {part['test']:,} of {part['of_test']:,} "
            f"({part['rule']})."
        )
    return found


def comparison(results: Sequence[Mapping[str, Any]], width: int = 80) -> Group:
    """Variants side by side, one row each, the highest bound first; metrics that do not fit go into tables below.

    Args:
        results: the contents of their ``result.json``, all of one experiment.
        width: number of columns of the terminal.
    """
    from rich.console import Group
    from rich.text import Text

    ranked = sorted(results, key=lambda result: -result["metrics"].get("elbo", -math.inf))
    metrics = list(dict.fromkeys(metric for result in results for metric in result["metrics"]))
    columns = {metric: [number(result["metrics"].get(metric)) for result in ranked] for metric in metrics}
    columns["seconds"] = [number(result["seconds_training"]) for result in ranked]
    names = [result["variant"] for result in ranked]
    # Columns are three characters apart; headings are broken at their underscores.
    first = max(map(len, ["variant", *names])) + 3
    groups, room = [[]], width - first
    for metric, values in columns.items():
        taken = max(map(len, [*metric.split("_"), *values])) + 3
        if groups[-1] and taken > room:
            groups.append([])
            room = width - first
        groups[-1].append(metric)
        room -= taken
    tables = []
    for group in groups:
        view = _table()
        view.add_column("variant", no_wrap=True)
        for metric in group:
            shortest = max(map(len, [*metric.split("_"), *columns[metric]]))
            view.add_column(metric.replace("_", " "), justify="right", min_width=shortest)
        for row, name in enumerate(names):
            view.add_row(name, *(columns[metric][row] for metric in group))
        tables.append(view)
    title = "{paper} {experiment}, preset {preset}, seed {seed}".format(**results[0])
    return Group(Text(title, style="bold"), *tables, *map(Text, explained(metrics)))


def _table() -> Table:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False)


def result_path(folder: Path, paper: str, experiment: str, variant: str, preset: str) -> Path:
    """The path of the result file of a printed number."""
    return folder / paper / f"{experiment}-{variant}-{preset}.json"


def results_page(folder: Path, experiments: Sequence[Experiment], links: str = "reproductions/results") -> str:
    """The text of ``RESULTS.md``: every number in it comes from a file in ``folder``.

    Args:
        folder: holds ``PAPER/EXPERIMENT-VARIANT-PRESET.json``.
        experiments: all experiments; a variant without a file for its paper preset is listed as not run.
        links: ``folder`` as seen from the page, for its figures.

    Raises:
        ReproductionError: if a file is damaged, describes another run than its name says, or belongs to no experiment.
    """
    results = {}
    for experiment in experiments:
        for variant in experiment.variants:
            for preset in experiment.presets:
                path = result_path(folder, experiment.paper, experiment.name, variant, preset)
                if path.is_file():
                    results[path] = _read(path, experiment.paper, experiment.name, variant, preset)
    stray = sorted(str(path) for path in folder.rglob("*.json") if path not in results)
    if stray:
        raise ReproductionError(f"No experiment, variant and preset matches {', '.join(stray)}.")

    lines = [
        "# Results",
        "",
        "Written by `gpzoo results` from the files in `reproductions/results/`: do not edit. `quick` runs are small",
        "and not meant to reach the paper's numbers, `cpu` runs take up to an hour on two CPU cores, `tuned` runs have",
        "the paper's sizes and settings of ours, `paper` runs the paper's sizes, and its settings as far as they are",
        "published. Differences are ours minus the paper's. A commit with a `+` had changes that were not committed;",
        "where it is *not kept*, the file was recorded before commits were kept, and its `paper` had settings of ours.",
    ]
    for paper in dict.fromkeys(experiment.paper for experiment in experiments):
        lines += ["", f"## {paper}"]
        for experiment in experiments:
            if experiment.paper == paper:
                lines += _section(folder, experiment, results, links)
    return "\n".join(lines) + "\n"


def figure_path(folder: Path, experiment: Experiment, preset: str) -> Path:
    """The path of the figure of all variants of an experiment."""
    return folder / experiment.paper / f"{experiment.name}-{preset}.png"


def draw_figures(folder: Path, experiments: Sequence[Experiment]) -> list[Path]:
    """Draw all recorded variants of an experiment and preset in one figure.

    It is the experiment's own figure, else test error and nlpp against time if the results have curves.

    Args:
        folder: folder of the result files and the figures.
        experiments: all experiments.

    Returns:
        The figures written.
    """
    from gpzoo.reproductions.figures import test_curves

    written = []
    for experiment in experiments:
        for preset in experiment.presets:
            if shown := _shown(folder, experiment, preset):
                if experiment.figure is None:
                    figure = test_curves({variant: result["curve"] for variant, result in shown.items()})
                else:
                    figure = experiment.figure(shown)
                path = figure_path(folder, experiment, preset)
                figure.savefig(path, format="png", dpi=130, metadata={"Software": None})
                written.append(path)
    return written


def _shown(folder: Path, experiment: Experiment, preset: str) -> dict[str, dict[str, Any]]:
    """The recorded results in the figure of an experiment, by variant."""
    found = {}
    for variant in experiment.variants:
        path = result_path(folder, experiment.paper, experiment.name, variant, preset)
        if path.is_file():
            result = _read(path, experiment.paper, experiment.name, variant, preset)
            if experiment.figure is not None or result.get("curve"):
                found[variant] = result
    return found


def _section(folder: Path, experiment: Experiment, results: Mapping[Path, Mapping[str, Any]], links: str) -> list[str]:
    numbers, runs = [], []
    for variant, paper_metrics in experiment.variants.items():
        for preset in experiment.presets:
            result = results.get(result_path(folder, experiment.paper, experiment.name, variant, preset))
            if result is not None:
                for metric, ours in result["metrics"].items():
                    paper = None if result.get("stands_in") else paper_metrics.get(metric)
                    compared = difference(ours, paper), verdict(metric, ours, paper)
                    numbers.append((variant, _label(result), metric, number(ours), number(paper), *compared))
                runs.append(_run_row(variant, result))
            elif preset == "paper":
                for metric, paper in paper_metrics.items() or [("-", None)]:
                    numbers.append((variant, preset, metric, "not run", number(paper), "-", ""))
    headings = ("variant", "preset", "metric", "ours", "paper", "difference", "verdict")
    lines = ["", f"### {experiment.name}", "", experiment.description, "", *_markdown(headings, numbers)]
    for preset in experiment.presets:
        if _shown(folder, experiment, preset):
            path = figure_path(Path(links), experiment, preset).as_posix()
            what = "Test error and nlpp against time in training" if experiment.figure is None else "All variants"
            lines += ["", f"![{what}, {experiment.name}, {preset}]({path})"]
    if runs:
        headings = (
            "variant",
            "preset",
            "seed",
            "data",
            "steps",
            "time",
            "per step",
            "peak memory",
            "device",
            "dtype",
            "versions",
            "commit",
        )
        lines += ["", *_markdown(headings, runs)]
    return lines


def _label(result: Mapping[str, Any]) -> str:
    """A result's preset; in files without a schema, ``paper`` means only the paper's sizes."""
    old = "schema" not in result and result["preset"] == "paper"
    return "paper (sizes; settings of ours)" if old else result["preset"]


def _run_row(variant: str, result: Mapping[str, Any]) -> tuple[str, ...]:
    per_step = result["seconds_per_step"]
    return (
        variant,
        _label(result),
        str(result["seed"]),
        _data_cell(result),
        f"{result['steps']:,}",
        duration(result["seconds_training"]),
        "-" if per_step is None else f"{1000 * per_step:.3g} ms",
        f"{result['peak_memory_bytes'] / 2**30:.1f} GiB",
        result["device"],
        result["dtype"],
        ", ".join(f"{name} {value}" for name, value in result["versions"].items()),
        _commit_cell(result),
    )


def _data_cell(result: Mapping[str, Any]) -> str:
    """The name of the data, its used and available rows, and whether it is a stand-in for the paper's."""
    part, sizes = result.get("subset") or {}, result["data"]["sizes"]
    train, test = f"{sizes['train']:,}", f"{sizes['test']:,}"
    if part:
        train, test = f"{train} of {part['of']:,}", f"{test} of {part['of_test']:,}"
    text = f"{result['data']['name']}: {train} + {test} rows"
    if folds := result.get("folds"):
        text += f", {folds['count']} of {folds['of']} splits"
    return text + (", stands in" if result.get("stands_in") else "")


def _commit_cell(result: Mapping[str, Any]) -> str:
    """The commits of a run's starts, in order of time."""
    if "schema" not in result:
        return "not kept"
    mark = "" if result["clean"] else "+"
    return ", ".join("unknown" if commit is None else f"{commit[:7]}{mark}" for commit in result["commits"])


def duration(seconds: float) -> str:
    """Seconds as ``42 s``, ``12.3 min`` or ``10.1 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _markdown(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    headings = tuple(headings)
    return [
        f"| {' | '.join(headings)} |",
        "|" + "---|" * len(headings),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _read(path: Path, paper: str, experiment: str, variant: str, preset: str) -> dict[str, Any]:
    """The content of a result file, after a check of its schema.

    Raises:
        ReproductionError: if it is damaged, lacks a field, has another schema, or belongs to another run.
    """
    result = read_json(path)
    if not isinstance(result, dict):
        raise ReproductionError(f"{path} is not a result file: it holds no fields.")
    absent = sorted((frozenset(FIELDS) if "schema" in result else _OLD_FIELDS) - result.keys())
    if absent:
        raise ReproductionError(f"{path} is not a result file: it lacks {', '.join(absent)}.")
    if (schema := result.get("schema", SCHEMA)) != SCHEMA:
        raise ReproductionError(f"{path} has schema {schema!r}, and this version of gpzoo reads {SCHEMA}.")
    named = tuple(result[key] for key in ("paper", "experiment", "variant", "preset"))
    if named != (paper, experiment, variant, preset):
        raise ReproductionError(f"{path} holds the result of {' '.join(map(str, named))}: move it to that name.")
    data, metrics = result["data"], result["metrics"]
    if not (isinstance(data, dict) and {"name", "sizes"} <= data.keys()) or not isinstance(metrics, dict):
        raise ReproductionError(f"{path} is not a result file: data and metrics must have names.")
    if "stands_in" not in result:
        result["stands_in"] = result["data"]["name"] in _GENERATED
    return result
