"""Our numbers beside the paper's in the terminal: the table after a run, and variants side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpzoo.reproductions.claims import METRICS, kind, number
from gpzoo.reproductions.experiment import Numbers
from gpzoo.reproductions.judge import EXCEEDED, MATCHED, SHORT, limit_of, verdict
from gpzoo.reproductions.records import error_of

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

#: What is said of a small run beside the paper's numbers.
SMALL = "A small run checks the program: it is not meant to reach the paper's numbers."

#: How a verdict is shown.
_STYLES = {SHORT: "bold red", MATCHED: "green", EXCEEDED: "green"}


def beside_paper(result: Mapping[str, Any], printed: Numbers) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Of every metric its name, our number, the paper's if it has any, and the verdict if there are any; and headings.

    A small run has no verdicts.

    Args:
        result: the content of a ``result.json``.
        printed: the paper's numbers by metric.
    """
    limit, rows = limit_of(result), []
    for metric, ours in result["metrics"].items():
        paper, found = None if result["stands_in"] else printed.get(metric), None
        if paper is not None and result["preset"] != "quick" and kind(metric) is not None:
            found = verdict(metric, error_of(result, metric), paper, limit)
        rows.append((metric, ours, paper, found))
    width = 2 + sum(any(row[place] is not None for row in rows) for place in (2, 3))
    return ("metric", "ours", "paper", "verdict")[:width], [row[:width] for row in rows]


def table(result: Mapping[str, Any], printed: Numbers) -> Group:
    """The table printed after a run, with explanations of its words; it fits into 60 columns.

    Args:
        result: the content of a ``result.json``.
        printed: the paper's numbers by metric.
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
    """The numbers of training and test rows of a run, if all of the data were used."""
    data, rows = result["data"], result["data"]["sizes"]
    if result["subset"]:
        return []
    return [f"Data: {data['name']}, {rows['train']:,} rows to train on and {rows['test']:,} to test."]


def explained(metrics: Iterable[str]) -> list[str]:
    """Explanations of metrics, a line for each kind."""
    ends = tuple(f"_{metric}" for metric in metrics)
    return [f"{name}: {METRICS[name]['means']}." for name in METRICS if any(e.endswith(f"_{name}") for e in ends)]


def notes(result: Mapping[str, Any]) -> list[str]:
    """Notes on the data of a result, in sentences."""
    found = []
    if result["stands_in"]:
        found.append("The data stand in for the paper's, which are not used here; the paper's numbers are left out.")
    if result["subset"]:
        rows = "Trained on {train:,} of {of:,} rows, tested on {test:,} of {of_test:,} ({rule})."
        found.append(rows.format(**result["subset"]))
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
    names = [result["variant"] for result in ranked]
    columns = {metric: [number(result["metrics"].get(metric)) for result in ranked] for metric in metrics}
    columns["seconds"] = [number(result["seconds_training"]) for result in ranked]
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
    title = "{paper} {experiment}, preset {preset}, seed {seed}".format(**results[0])
    return Group(Text(title, style="bold"), *tables, *map(Text, explained(metrics)))


def _table() -> Table:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False)


def duration(seconds: float) -> str:
    """Seconds as ``42 s``, ``12.3 min`` or ``10.1 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
