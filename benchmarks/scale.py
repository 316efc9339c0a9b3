"""Seconds, memory and communication of a step against rows, inducing inputs and devices.

    python benchmarks/scale.py [--rows 100000000 1000000 1000] [--inducing 100 500] [--devices 8 4 2 1]
        [--batch 8192 1024] [--output benchmarks/results/scale.json]

One of the four is varied at a time, the others are the first of their numbers.

Sparse regression with eight inputs on a table whose rows are generated while they are read, in float32. Every case has
a process of its own, with so many devices of the CPU (of an accelerator, the first so many): on a CPU they share its
cores, so that what grows with them is what devices cost, and no speed is gained. Bytes that devices exchange in a step
are counted in the compiled program. The projection to accelerators is arithmetic, from the assumptions printed with it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS = 8

#: Instructions of a compiled program by which devices exchange numbers, its loops, and the bits of its arrays.
_EXCHANGE = re.compile(
    r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast)(?:-start)?\("
)
_HEADING = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_LOOP = re.compile(r" (?:while\(.*body|call\(.*to_apply)=%?([\w.\-]+)")
_TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_ARRAY = re.compile(r"\b[a-z]+(\d+)\w*\[([\d,]*)\]")


def communication(text: str) -> dict[str, dict[str, int]]:
    """How often devices exchange numbers in a compiled program, and how many bytes, by kind.

    Args:
        text: of the compiled program, ``as_text()``. A loop that takes a number of turns that the compiler does not
            know, such as that of a training's steps, counts as one turn.
    """
    bodies: dict[str, list[str]] = {}
    name = entry = ""
    for line in text.splitlines():
        if heading := _HEADING.match(line):
            name = heading[2]
            bodies[name], entry = [], name if heading[1] else entry
        elif name:
            bodies[name].append(line)
    found: dict[str, dict[str, int]] = {}

    def count(lines: list[str], turns: int) -> None:
        for line in lines:
            if exchange := _EXCHANGE.search(line):
                shapes, kind = exchange.groups()
                arrays = _ARRAY.findall(re.sub(r"\{[^}]*\}|/\*.*?\*/", "", shapes))
                sizes = [int(bits) // 8 * math.prod(int(n) for n in shape.split(",") if n) for bits, shape in arrays]
                own = found.setdefault(kind, {"times": 0, "bytes": 0})
                own["times"] += turns
                own["bytes"] += turns * sum(sizes)
            elif loop := _LOOP.search(line):
                known = _TURNS.search(line)
                count(bodies[loop[1]], turns * (int(known[1]) if known else 1))

    count(bodies[entry], 1)
    return found


def formula(params: dict[str, Any], inducing: int, in_chunks: bool = False) -> int:
    """Bytes that a step of ``gp_regression`` sums over devices.

    The gradient of every parameter; that of the inverse of the factor of ``Kuu``, ``M x M``; the bound; and, unless a
    device takes its rows in chunks, the variance a second time, for ``diag(Kff)``, and ``M`` sums over the rows of
    ``Kuf``, of which the gradient of the inducing inputs is made afterwards.
    """
    numbers = sum(np.size(x) for x in params.values()) + inducing**2 + 1 + (0 if in_chunks else inducing + 1)
    return numbers * next(iter(params.values())).dtype.itemsize


#: What a projection assumes: products in float32 a second that an accelerator reaches, rows of a minibatch that each
#: takes, and of the links between eight in one machine, and between hosts, bytes a second and seconds of a message.
FLOPS, ROWS = 1e13, 8192
NEAR, FAR = (2e11, 1e-5), (1.25e10, 3e-5)


def projection(inducing: int, outputs: int, devices: int, bandwidth: float, latency: float) -> dict[str, Any]:
    """Seconds of a step on devices that each take as many rows, and the part of them in which they compute.

    A row costs six products with ``M x M`` numbers, and six more for each output: value, two derivatives. Summing goes
    twice round a ring, and takes twice ``log2(devices)`` messages.
    """
    computing = 12 * (1 + outputs) * inducing**2 * ROWS / FLOPS
    exchanged = 4 * (outputs * (inducing**2 + inducing) + inducing * (COLUMNS + 1) + COLUMNS + inducing**2 + 4)
    summing = 2 * exchanged * (devices - 1) / devices / bandwidth + 2 * math.log2(devices) * latency
    found = {"inducing": inducing, "outputs": outputs, "devices": devices, "bytes": exchanged}
    return found | {"seconds": computing + summing, "computing": computing / (computing + summing)}


def step_of(svi: Any, data: tuple, batch_size: int, mesh: Any) -> tuple[dict[str, Any], str]:
    """The first parameters of a training, and the text of its compiled steps."""
    import jax

    from gpzoo.inference.training._mesh import Placement
    from gpzoo.inference.training.replicates import Replicates
    from gpzoo.inference.training.setup import Setup
    from gpzoo.inference.training.sources import source_of
    from gpzoo.inference.training.start import start

    one = Replicates(jax.random.key(0))
    source = source_of(data, batch_size, one, placement=Placement(mesh))
    setup = Setup(svi, one, source, {"num_data": source.num_rows})
    steps, state = start(setup, None)
    with setup.placement.tracing():
        text = steps.loop_of_all.lower(*steps.example(state.numpyro_state)).compile().as_text()
    source.close()
    return dict(setup.params(state.numpyro_state)), text


def generated(rows: int) -> Any:
    """A table of so many rows, which are made when they are read."""
    from gpzoo.tables.table import ColumnGroup, Table

    class Generated(Table):
        groups = ColumnGroup((COLUMNS,), np.dtype(np.float32)), ColumnGroup((), np.dtype(np.float32))
        block_rows = np.full(-(-rows // 65_536), 65_536)
        block_rows[-1] = rows - 65_536 * (len(block_rows) - 1)

        def stored(self, block: int) -> tuple[np.ndarray, ...]:
            rng = np.random.Generator(np.random.Philox(key=[0, block]))
            z = rng.standard_normal((int(self.block_rows[block]), COLUMNS + 1), dtype=np.float32)
            return z[:, :COLUMNS], np.sin(z[:, 0]) + z[:, 1] * z[:, 2] + z[:, COLUMNS] / 10

    return Generated()


def case(rows: int, inducing: int, devices: int, batch: int, steps: int) -> dict[str, Any]:
    """The numbers of one training."""
    import jax
    import optax
    from numpyro.infer import SVI

    from gpzoo import _platform, random_subset
    from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
    from gpzoo.models import gp_regression

    mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
    batch = min(batch, rows // devices * devices)
    found = {"rows": rows, "inducing": inducing, "devices": devices, "batch": batch}
    svi = SVI(
        gp_regression, InducingGuide(gp_regression, random_subset(inducing)), optax.adam(0.01), GaussianProcessELBO()
    )
    table, marks, began = generated(rows), [], time.perf_counter()

    def mark(step: int, seconds: float, params: Any) -> None:
        marks.append(time.perf_counter())

    fit(
        jax.random.key(0),
        svi,
        steps,
        table,
        batch_size=batch,
        mesh=mesh,
        callback=mark,
        callback_steps=10,
        progress=False,
    )
    each = np.diff(marks[1:]) / 10
    found |= {"seconds_to_first_10": marks[0] - began, "seconds_per_step": float(np.median(each))}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    found |= {"rows_per_second": batch / found["seconds_per_step"], "peak_memory_bytes": peak}
    params, text = step_of(svi, (table,), batch, mesh)
    reduced = communication(text)
    own = batch // devices
    expected = formula(params, inducing, _platform.inputs_at_a_time(own) < own) if devices > 1 else 0
    return found | {"communication_per_step": reduced, "formula_bytes": expected}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10**8, 10**6, 10**4, 10**3])
    parser.add_argument("--inducing", type=int, nargs="+", default=[100, 500])
    parser.add_argument("--devices", type=int, nargs="+", default=[8, 4, 2, 1])
    parser.add_argument("--batch", type=int, nargs="+", default=[8192, 1024])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(case(**json.loads(given.case))))
        return
    varied = ("rows", "inducing", "devices", "batch")
    first = {name: getattr(given, name)[0] for name in varied} | {"steps": given.steps}
    found = []
    for each in [first] + [first | {name: value} for name in varied for value in getattr(given, name)[1:]]:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={each['devices']}"
        command = [sys.executable, __file__, "--case", json.dumps(each)]
        environment = os.environ | {"XLA_FLAGS": flags.strip()}
        ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        found.append(json.loads(ended.stdout.splitlines()[-1]))
        print(json.dumps(found[-1]), flush=True)
    projected = [projection(M, D, n, *link) for M, D in ((500, 1), (500, 10)) for n, link in ((8, NEAR), (64, FAR))]
    print(*map(json.dumps, projected), sep="\n")
    if given.output:
        from recorded import keep

        options = [x for name in varied for x in (f"--{name}", *getattr(given, name))]
        assumed = {"flops": FLOPS, "rows_per_device": ROWS, "near": NEAR, "far": FAR}
        numbers = {"cases": found, "assumed": assumed, "projected": projected}
        keep(given.output, __file__, [*options, "--steps", given.steps], **numbers)


if __name__ == "__main__":
    main()
