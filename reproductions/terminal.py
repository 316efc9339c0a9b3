"""Tables for the terminal: our numbers beside the numbers of the paper after a run, and variants side by side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpzoo.reproductions.changes import written
from gpzoo.reproductions.claims import METRICS, Printed, as_printed, beside, kind, number
from gpzoo.reproductions.experiment import Numbers, changes_of
from gpzoo.reproductions.judge import EXCEEDED, MATCHED, SHORT, error_of_paper, limit_of, verdict
from gpzoo.reproductions.records import Ours, error_of, mean_of

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

#: A sentence about a small run beside the numbers of the paper.
SMALL = "A small run checks the program: it is not meant to reach the paper's numbers."

#: Styles of verdicts.
_STYLES = {SHORT: "bold red", MATCHED: "green", EXCEEDED: "green"}


def beside_paper(result: Mapping[str, Any], printed: Numbers) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Headings, and for every metric its name, our number and, if the paper has one, its number and the verdict.

    A small run has no verdicts.

    Args:
        result: content of a ``result.json``.
        printed: numbers of the paper by metric.
    """
    limit, rows = limit_of(result), []
    for metric, ours in result["metrics"].items():
        paper, found = None if result["stands_in"] or changes_of(result) else printed.get(metric), None
        if paper is not None and result["preset"] != "quick" and kind(metric) is not None:
            own, printed_one = error_of(result, metric), as_printed(paper)
            theirs = error_of_paper(metric, own, printed_one, result)
            found = verdict(metric, own, printed_one, limit, paper_error=theirs)
        rows.append((metric, ours, paper, found))
    width = 2 + sum(any(row[place] is not None for row in rows) for place in (2, 3))
    return ("metric", "ours", "paper", "verdict")[:width], [row[:width] for row in rows]


def table(result: Mapping[str, Any], printed: Numbers) -> Group:
    """The table that is printed after a run, with explanations of its words. It fits into 60 columns.

    Args:
        result: content of a ``result.json``.
        printed: numbers of the paper by metric.
    """
    from rich.console import Group
    from rich.text import Text

    small = " (a small run)" if result["preset"] == "quick" else ""
    title = "{paper} {experiment}, variant {variant}, preset {preset}{small}, seed {seed}".format(small=small, **result)
    columns, rows = beside_paper(result, printed)
    view = _table()
    view.add_column("metric", overflow="fold", min_width=12)
    for heading in columns[1:3] if len(columns) > 2 else ("this run",):
        view.add_column(heading, justify="right", no_wrap=True)
    for heading in columns[3:]:
        view.add_column(heading)
    for metric, *numbers in rows:
        said = [Text(str(each or ""), style=_STYLES.get(each.word, "") if each else "") for each in numbers[2:]]
        view.add_row(metric, *map(number, numbers[:2]), *said)
    lines = [*explained(result["metrics"]), *sizes(result), *notes(result)]
    if len(columns) > 2 and small:
        lines.append(SMALL)
    return Group(Text(title, style="bold"), view, *map(Text, lines))


def sizes(result: Mapping[str, Any]) -> list[str]:
    """The numbers of training and test rows of a run, if it used all data."""
    data, rows = result["data"], result["data"]["sizes"]
    if result["subset"]:
        return []
    return [f"Data: {data['name']}, {rows['train']:,} rows to train on and {rows['test']:,} to test."]


def explained(metrics: Iterable[str]) -> list[str]:
    """Explanations of metrics, one line for each kind."""
    ends = tuple(f"_{metric}" for metric in metrics)
    return [f"{name}: {METRICS[name]['means']}." for name in METRICS if any(e.endswith(f"_{name}") for e in ends)]


def notes(result: Mapping[str, Any]) -> list[str]:
    """Notes about the data of a result, in sentences."""
    found = []
    if result["stands_in"]:
        found.append("The data stand in for the paper's, which are not used here; the paper's numbers are left out.")
    if changes := changes_of(result):
        own = ", ".join(f"{name} = {written(value)}" for name, value in changes.items())
        found.append(f"Settings that were changed: {own}. The paper's numbers are left out.")
    if result["subset"]:
        rows = "Trained on {train:,} of {of:,} rows, tested on {test:,} of {of_test:,} ({rule})."
        found.append(rows.format(**result["subset"]))
    return found


def comparison(results: Sequence[Mapping[str, Any]], width: int = 80) -> Group:
    """Variants side by side, one row each, with the highest bound first. Metrics that do not fit go into tables below.

    For several seeds, it shows the mean with its standard error.

    Args:
        results: contents of the ``result.json`` files of the variants, all of one experiment.
        width: number of columns of the terminal.
    """
    from rich.console import Group
    from rich.text import Text

    ranked: dict[str, list[Mapping[str, Any]]] = {}
    for result in sorted(results, key=lambda result: -result["metrics"].get("elbo", -math.inf)):
        ranked.setdefault(result["variant"], []).append(result)
    metrics = list(dict.fromkeys(metric for result in results for metric in result["metrics"]))
    seeds = sorted({result["seed"] for result in results})
    if len(seeds) > 1:
        ranked = dict(sorted(ranked.items(), key=lambda each: -_mean(each[1], "elbo", -math.inf).value))
        # Errors over seeds replace errors over test rows or splits.
        metrics = [metric for metric in metrics if metric.removesuffix("_se") not in metrics or metric[-3:] != "_se"]
    names = list(ranked)
    columns = {"seeds": [str(len(own)) for own in ranked.values()]} if len(seeds) > 1 else {}
    for metric in metrics:
        columns[metric] = [_with_error(_mean(own, metric)) for own in ranked.values()]
    columns["seconds"] = [number(statistics.fmean(r["seconds_training"] for r in own)) for own in ranked.values()]
    # Columns are three characters apart, and headings are broken at their underscores.
    wide = max(len(word) for name, values in columns.items() for word in (*name.split("_"), *values))
    fit = max(1, (width - max(map(len, ["variant", *names]))) // (wide + 3))
    tables = [_table() for _ in range(0, len(columns), fit)]
    for place, view in enumerate(tables):
        view.add_column("variant", no_wrap=True)
        group = list(columns)[place * fit : (place + 1) * fit]
        for metric in group:
            view.add_column(metric.replace("_", " "), justify="right", min_width=wide)
        for row, name in enumerate(names):
            view.add_row(name, *(columns[metric][row] for metric in group))
    title = "{paper} {experiment}, preset {preset}, ".format(**results[0])
    title += f"seed {seeds[0]}" if len(seeds) == 1 else f"means over {len(seeds)} seeds and their standard errors"
    said = dict.fromkeys(line for result in results for line in notes(result))
    return Group(Text(title, style="bold"), *tables, *map(Text, [*explained(metrics), *said]))


def _mean(results: Sequence[Mapping[str, Any]], metric: str, absent: float = math.nan) -> Ours:
    """The mean of a metric over seeds, with its standard error if there are several."""
    values = [result["metrics"][metric] for result in results if metric in result["metrics"]]
    return mean_of(values, "seeds") if values else Ours(absent)


def _with_error(ours: Ours) -> str:
    if math.isnan(ours.value):
        return number(None)
    return beside(ours.value, ours.error, Printed("0")) if ours.error else number(ours.value)


def _table() -> Table:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False)


def duration(seconds: float) -> str:
    """Seconds as ``42 s``, ``12.3 min`` or ``10.1 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
