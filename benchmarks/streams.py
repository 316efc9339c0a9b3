"""Rows per second and memory of tables larger than memory: written, standardised in one pass, drawn in minibatches.

    python benchmarks/streams.py [--rows 100_000_000] [--format memmap] [--folder FOLDER] [--steps 500]
    python benchmarks/streams.py --train 2     # and a deep GP of two layers trained on it, beside rows on the device

A table of eight inputs and a target in float32 is written to ``--folder`` (kept there, and used again) or to a
temporary folder (removed). The pages of files that the system keeps in memory are not the process's: where a table fits
in them, the rates are those of memory, not of the disk. Peak memory is that of the whole process, Python and libraries
included, from its start to the end of a stage.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gpzoo.tables.arrays import ArrayTable
from gpzoo.tables.minibatches import Minibatches
from gpzoo.tables.parquet import ParquetTable
from gpzoo.tables.standardise import standardised
from gpzoo.tables.table import Table

NAMES = [f"x{i}" for i in range(8)] + ["y"]
PIECE = 1_000_000


def pieces(rows: int) -> Iterator[np.ndarray]:
    """The table in pieces ``[n, 9]``: inputs of different locations and scales, and a target they explain in part."""
    for i, start in enumerate(range(0, rows, PIECE)):
        rng = np.random.Generator(np.random.Philox(key=[0, i]))
        z = rng.standard_normal((min(PIECE, rows - start), 9), dtype=np.float32)
        z[:, 8] += np.sin(z[:, 0])
        yield z * np.logspace(-2, 2, 9, dtype=np.float32) + np.arange(9, dtype=np.float32)


def memmap_table(folder: Path, rows: int) -> Table:
    """The table in one file of bytes, written if it is not there."""
    path = folder / f"{rows}.bin"
    if not path.exists():
        with path.open("wb") as out:
            for piece in pieces(rows):
                piece.tofile(out)
    data = np.memmap(path, np.float32, "r", shape=(rows, 9))
    return ArrayTable(data[:, :8], data[:, 8])


def parquet_table(folder: Path, rows: int) -> Table:
    """The table in one Parquet file with row groups of a million rows, written if it is not there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / f"{rows}.parquet"
    if not path.exists():
        schema = pa.schema([(name, pa.float32()) for name in NAMES])
        with pq.ParquetWriter(path, schema, use_dictionary=False) as out:
            for piece in pieces(rows):
                out.write_table(pa.table(list(piece.T.copy()), schema=schema), row_group_size=PIECE)
    return ParquetTable(path, columns=NAMES[:8], target="y")


TABLES = {"memmap": memmap_table, "parquet": parquet_table}


def peak() -> float:
    """Most memory the process has had resident, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


@contextmanager
def stage(name: str, rows: int) -> Iterator[None]:
    """Print the rate of a stage over ``rows`` rows, and the memory it ends with."""
    started = time.perf_counter()
    yield
    seconds = time.perf_counter() - started
    print(f"{name:12s} {rows:>13,d} rows {seconds:8.1f} s {rows / seconds / 1e6:8.2f} M rows/s   peak {peak():6.0f} MB")


def draw(batches: Minibatches, steps: int, chunk: int, work: Callable[[tuple[np.ndarray, ...]], None]) -> None:
    """Give the minibatches of some steps to ``work``, ``chunk`` steps at a time, as a training would take them."""
    for step in range(0, steps, chunk):
        work(batches.take(step, min(chunk, steps - step)))


def check(minibatches: tuple[np.ndarray, ...]) -> None:
    """Refuse minibatches that cannot be of a standardised table."""
    for array in minibatches:
        error = abs(float(array.mean(dtype=np.float64)))
        if error > 10 / np.sqrt(array.size / np.prod(array.shape[2:], initial=1)):
            raise AssertionError(f"The mean of standardised rows is {error}.")


def train(table: Table, layers: int, batch: int, steps: int) -> None:
    """Print seconds per step of a deep GP on the table, and on rows of it that are on the device already."""
    import jax
    import optax
    from numpyro.infer import SVI

    from gpzoo import kmeans
    from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
    from gpzoo.models import deep_gp, inner_scales, linear_layers

    rows = table.head(10 * batch)
    maps = linear_layers(rows[0], [rows[0].shape[1]] * (layers - 1))
    medians = []
    for name, data, num_data in (("streamed", (table,), table.num_rows), ("resident", rows, len(rows[0]))):
        marks: list[float] = []
        guide = InducingGuide(deep_gp, kmeans(100), initial_scale=inner_scales(maps))
        svi = SVI(deep_gp, guide, optax.adam(0.01), GaussianProcessELBO())
        fit(
            jax.random.key(0),
            svi,
            steps,
            *data,
            batch_size=batch,
            callback=lambda step, seconds, params: marks.append(seconds),  # noqa: B023
            callback_steps=10,
            progress=False,
            model_kwargs={"layers": maps, "num_data": num_data},
        )
        medians.append(float(np.median(np.diff(marks[1:]))) / 10)
        print(f"{name:12s} {layers} layers, minibatch {batch:,d}: {medians[-1]:.4f} s a step   peak {peak():6.0f} MB")
    print(f"a step on the table takes {medians[0] / medians[1]:.2f} times one on the device's rows")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--format", choices=list(TABLES), default="memmap")
    parser.add_argument("--folder", type=Path, help="where the table is kept; a temporary folder if not given")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--chunk", type=int, default=20, help="steps taken at once")
    parser.add_argument("--window", type=int, default=1_000_000)
    parser.add_argument("--train", type=int, metavar="LAYERS", help="also train a deep GP of so many layers")
    parser.add_argument("--train-steps", type=int, default=200)
    arguments = parser.parse_args()
    print(f"{'imports':12s} {'':60s} peak {peak():6.0f} MB")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with stage("written", arguments.rows):
            table = TABLES[arguments.format](folder, arguments.rows)
        with stage("standardised", arguments.rows):
            table = standardised(table)
        with Minibatches(table, arguments.batch, seed=0, window=arguments.window) as batches:
            with stage("first step", arguments.batch):
                draw(batches, 1, 1, check)
            with stage("drawn", arguments.steps * arguments.batch):
                draw(batches, arguments.steps, arguments.chunk, check)
        if arguments.train:
            train(table, arguments.train, arguments.batch, arguments.train_steps)


if __name__ == "__main__":
    main()
