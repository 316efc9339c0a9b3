"""Every model beside every peer: ratios of seconds and of memory in one table, kept in one file.

    python benchmarks/all.py [--only convolutional deep ...] [--dtypes float32 float64] [--pairs 7]
        [--output benchmarks/results/all.json]
    python benchmarks/all.py --gpflow-python PATH --gpflux-python PATH --gpytorch-python PATH --gpjax-python PATH

``make bench`` runs it; interpreters are also taken from variables such as ``GPFLOW_PYTHON``, and a peer without one is
not run. The benchmarks named in the table say what each step is. Where a file is there already, its ratios are printed
beside the new ones, so that one sees what moved; its rows that are not run again stay. Each has its command and commit.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import convolutional
import deep
import sparse
from peer import FLAGS, PEERS, add_options, measure, pythons
from recorded import keep, made_by


class Row(NamedTuple):
    """A line of the table: the name of a case, the benchmark that has it, the case, and its peers."""

    name: str
    script: str
    case: dict[str, Any]
    peers: tuple[str, ...]


def rows(dtype: str) -> Iterator[Row]:
    """The table of one precision."""
    for size in convolutional.SIZES:
        yield Row(size, "convolutional", {"size": size, "dtype": dtype}, ("gpflow",))
    for layers in (2, 3, 5):
        size = deep.Size(layers, 1000)
        case = {"layers": layers, "batch": size.batch, "dtype": dtype}
        yield Row(f"L {layers}, B {size.batch}", "deep", case, ("gpflux", "gpytorch"))
    for columns in (8, 784) if dtype == "float32" else ():
        for part in ("whole", "gp"):
            yield Row(f"d {columns}, {part}", "deep_kernel", {"columns": columns, "part": part}, ("gpytorch",))
    for inducing in (20, 100, 500):
        for way in sparse.WAYS:
            for loop in (True, False):
                case = {"inducing": inducing, "way": way, "loop": loop, "dtype": dtype}
                name = f"M {inducing}, {way}, {'loop' if loop else 'step by step'}"
                yield Row(name, "sparse", case, tuple(sparse.peers_of(case)))


def line(row: Row, dtype: str, found: dict[str, Any], before: dict[str, Any]) -> str:
    """What is printed of one row."""
    text = [f"{row.script}, {row.name}, {dtype}: {1e3 * found['seconds']['gpzoo']:.1f} ms"]
    for library in row.peers:
        if library not in found["beside"]:
            text.append(f"{PEERS[library]} not run")
            continue
        own, old = found["beside"][library], before.get("beside", {}).get(library)
        was = f", was {old['seconds']:.2f} and {old['memory']:.2f}" if old else ""
        memory = f"memory {own['memory']:.2f} of its, compiled before {own['memory_again']:.2f}"
        text.append(
            f"{PEERS[library]} {own['seconds']:.2f} times as long (processors {own['processors']:.2f}), {memory}{was}"
        )
    return "; ".join(text)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    scripts = ["convolutional", "deep", "deep_kernel", "sparse"]
    parser.add_argument("--only", nargs="+", choices=scripts, default=scripts)
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "float64"], default=["float32", "float64"])
    parser.add_argument("--pairs", type=int, default=7, help="timings of each library")
    parser.add_argument("--flags", help="XLA_FLAGS of our process, such as --xla_cpu_use_fusion_emitters=false")
    parser.add_argument("--output", type=Path)
    add_options(parser)
    arguments = parser.parse_args()
    if arguments.flags:
        os.environ[FLAGS] = arguments.flags
    interpreters = pythons(arguments)
    cases = {}
    if arguments.output and arguments.output.exists():
        old = json.loads(arguments.output.read_text(encoding="utf-8"))
        cases = {each["name"]: each for each in old["cases"]}
    options = ["--only", *arguments.only, "--dtypes", *arguments.dtypes, "--pairs", arguments.pairs]
    options += [f"--flags={arguments.flags}"] if arguments.flags else []
    options += [x for name in interpreters if name in PEERS for x in (f"--{name}-python", "PYTHON")]
    for dtype in arguments.dtypes:
        for row in rows(dtype):
            if row.script not in arguments.only:
                continue
            sides = {name: python for name, python in interpreters.items() if name in ("gpzoo", *row.peers)}
            script = str(Path(__file__).with_name(f"{row.script}.py"))
            name = f"{row.script}, {row.name}, {dtype}"
            found = {"name": name} | made_by(__file__, options) | measure(script, row.case, sides, arguments.pairs)
            print(line(row, dtype, found, cases.get(name, {})), flush=True)
            cases[name] = found
            if arguments.output:
                keep(arguments.output, __file__, options, cases=list(cases.values()))


if __name__ == "__main__":
    main()
