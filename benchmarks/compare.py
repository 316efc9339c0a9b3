"""What slipped between two tables of ``all.py``, and which rows a table lacks.

    python benchmarks/compare.py benchmarks/results/all-0.3.0.json benchmarks/results/all.json [--most 0.05]
    python benchmarks/compare.py benchmarks/results/all.json

A row is compared by its ratios to the peers that both tables have, because the machine is not the same twice. One that
has no peer is compared by its seconds, and marked: a slower machine slips too. The process fails
if a row slipped by more than ``--most``, if one of the old rows is gone, or if the newer table lacks a row of
``all.py``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
from all import SCRIPTS
from peer import NAMES

Table = Mapping[str, Mapping[str, Any]]


class Change(NamedTuple):
    """What a row gained or lost.

    Attributes:
        row: its name, and the peer.
        old: the ratio of seconds in the old table, or our seconds.
        new: in the new one.
        gain: what became faster, relative; negative where it slipped.
    """

    row: str
    old: float
    new: float
    gain: float


def table(path: Path) -> Table:
    """The rows of a file by name."""
    return {row["name"]: row for row in json.loads(path.read_text(encoding="utf-8"))["cases"]}


def missing(found: Table, wanted: Mapping[str, Any]) -> list[str]:
    """Rows that are wanted, and comparisons with peers that they name, which a table lacks."""
    lacking = []
    for name, case in wanted.items():
        if name not in found:
            lacking.append(name)
            continue
        peers = [peer for peer in case.get("peers", ()) if peer not in found[name]["beside"]]
        lacking += [f"{name}, beside {NAMES[peer]}" for peer in peers]
    return lacking


def changes(old: Table, new: Table) -> list[Change]:
    """Every comparison that both tables have, what slipped most first."""
    found = []
    for name in old.keys() & new.keys():
        before, now = old[name], new[name]
        for peer in before["beside"].keys() & now["beside"].keys():
            a, b = (row["beside"][peer]["seconds"] for row in (before, now))
            found.append(Change(f"{name}, {NAMES[peer]}", a, b, b / a - 1))
        if not before["beside"] and not now["beside"]:
            a, b = (row["seconds"]["gpzoo"] for row in (before, now))
            found.append(Change(f"{name}, seconds alone", a, b, a / b - 1))
    return sorted(found, key=lambda change: change.gain)


def rows_of_all() -> dict[str, Any]:
    """The rows that ``all.py`` makes, by name."""
    wanted = {}
    for script in SCRIPTS:
        wanted |= {f"{script}, {name}": case for name, case in import_module(script).CASES.items()}
    return wanted


def main() -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path, nargs="+", help="an old table and a new one, or one alone")
    parser.add_argument("--most", type=float, default=0.05, help="the most that a row may slip, relative")
    arguments = parser.parse_args()
    if len(arguments.tables) > 2:
        parser.error("compare one table, or two.")
    old, new = table(arguments.tables[0]), table(arguments.tables[-1])
    gone, lacking = sorted(old.keys() - new.keys()), missing(new, rows_of_all())
    slipped = [change for change in changes(old, new) if change.gain < -arguments.most]
    for change in changes(old, new) if len(arguments.tables) == 2 else ():
        mark = "slipped" if change in slipped else ""
        print(f"{change.old:10.3f} {change.new:10.3f} {change.gain:+7.1%} {mark:8} {change.row}")
    for name in gone:
        print(f"gone: {name}")
    for name in lacking:
        print(f"not run: {name}")
    sys.exit(bool(slipped or gone or lacking))


if __name__ == "__main__":
    main()
