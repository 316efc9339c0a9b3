"""The large data sets of the deep-GP papers, from their public files: year, airline, higgs, susy.

Parsing takes minutes, so the result is kept in the user's cache folder. Values are not scaled:
``Dataset.standardised`` scales them.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import operator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpzoo._extras import needs
from gpzoo.reproductions.datasets.files import Files, member, numbers
from gpzoo.reproductions.datasets.in_memory import first_rows, random_split
from gpzoo.reproductions.datasets.registry import published

YEAR_PUBLISHED_TRAIN = 463_715
AIRLINE_TRAIN, AIRLINE_TEST = 700_000, 100_000
_AIRLINE_COLUMNS = ("Month", "DayofMonth", "DayOfWeek", "DepTime", "ArrTime", "AirTime", "Distance", "ArrDelay")


@published("year")
def year(files: Files, split: str = "random", seed: int = 0) -> dict[str, Any]:
    """Read YearPredictionMSD: the year of a song from the 12 means and 78 covariances of its timbre.

    Args:
        files: files of the data set.
        split: ``"random"``, nine tenths of the rows for training as in Salimbeni and Deisenroth (2017), or
            ``"published"``, the first 463,715 rows for training. The published split keeps the songs of an artist
            together.
        seed: seed of the random split.

    Returns:
        515,345 rows, float32: features ``[N, 90]`` and years ``[N]``. The random split has 463,810 / 51,535 rows.

    Raises:
        ValueError: if there is no such split.
        DatasetError: if the file is damaged or cannot be downloaded.
    """
    if split not in ("random", "published"):
        raise ValueError(f"split must be 'random' or 'published', got {split!r}.")
    table = files.table(partial(_numbers, files.facts))
    if split == "random":
        return random_split(table[:, 1:], table[:, 0], seed)
    return first_rows(np.ascontiguousarray(table[:, 1:]), np.ascontiguousarray(table[:, 0]), YEAR_PUBLISHED_TRAIN)


@published("higgs", "susy")
def collisions(files: Files, seed: int = 0) -> dict[str, Any]:
    """Read collisions that produce a Higgs boson or supersymmetric particles (1) or not (0): Baldi et al. (2014).

    Args:
        files: files of the data set.
        seed: seed of the split: a tenth of the rows, drawn at random, is for testing.

    Returns:
        float32 features, int32 labels ``[N]``. HIGGS has 9,900,000 / 1,100,000 rows ``[N, 28]`` with 21 measured
        features and 7 that are derived from these. SUSY has 4,500,000 / 500,000 rows ``[N, 18]`` with 8 measured and 10
        derived features.

    Raises:
        DatasetError: if the file is damaged or cannot be downloaded.
    """
    table = files.table(partial(_numbers, files.facts))
    return random_split(table[:, 1:], table[:, 0].astype(np.int32), seed)


def _numbers(facts: dict[str, Any], paths: list[Path]) -> np.ndarray:
    """Float32 ``[rows, columns]``, with the target first, from text in a zip archive or in a gzip file."""
    with member(paths[0], facts["member"]) if "member" in facts else gzip.open(paths[0]) as text:
        return numbers(text, facts["rows"], facts["columns"])


@published("airline")
def airline(files: Files, seed: int | None = None) -> dict[str, Any]:
    """Read the delays of US flights of 2008, with the eight features of Hensman et al. (2013).

    The files are ``2008.csv.bz2`` and ``plane-data.csv`` of the ASA Data Expo 2009 on Harvard Dataverse, in the folder
    ``airline`` of the data folder. The first file has two published versions, and both can be read. One has 2,389,217
    flights of January to April (the version of Hensman et al., and on Dataverse). The other has 7,009,728 flights of
    the whole year.

    * Features, in this order: month; day of the month; day of the week, 1 for Monday; departure and arrival time, in
      minutes since local midnight, 0 to 1440; air time in minutes; distance in miles; age of the plane in years, 2008
      minus its year of manufacture. The target is the delay at arrival in minutes, negative if early.
    * Flights with a missing value are dropped, such as cancelled or diverted flights. A flight is also dropped if its
      plane is not in the list of planes, or has a year of manufacture that is missing, 0, or later than 2008.

    Args:
        files: files of the data set.
        seed: ``None`` takes the rows in the order of the file: the first 700,000 for training and the next 100,000 for
            testing, as Salimbeni and Deisenroth (2017) write. The file is sorted by month, then by airline, so these
            rows are from its first months. A number draws 800,000 of all rows, as in Hensman et al. (2013).

    Returns:
        700,000 / 100,000 rows, float32: features ``[N, 8]`` and delays ``[N]``.

    Raises:
        DatasetError: if a file is damaged or cannot be downloaded.
    """
    table, count = files.table(partial(_flights, files.facts)), AIRLINE_TRAIN + AIRLINE_TEST
    order = np.arange(count) if seed is None else np.random.RandomState(operator.index(seed)).permutation(len(table))
    rows = table[order[:count]]
    return first_rows(np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, -1]), AIRLINE_TRAIN)


@published("airline-delayed")
def airline_delayed(files: Files, seed: int = 0) -> dict[str, Any]:
    """Read whether US flights of 2008 arrived late, from the files and with the features of :func:`airline`.

    Hensman et al. (2015) and Wilson et al. (2016) have 5.9 million flights, and do not say which delay counts as late.
    Here, a flight is late if it is delayed at arrival by more than 0 minutes.

    Args:
        files: files of the data set.
        seed: seed of the split: a tenth of the rows, drawn at random, is for testing.

    Returns:
        Every complete flight of the file, float32 ``[N, 8]``; int32 labels ``[N]``, 1 if delayed.

    Raises:
        DatasetError: if a file is damaged or cannot be downloaded.
    """
    table = files.table(partial(_flights, files.facts))
    return random_split(table[:, :-1], (table[:, -1] > 0).astype(np.int32), seed)


def _flights(facts: dict[str, Any], paths: list[Path]) -> np.ndarray:
    """The complete flights of planes with known age: float32 ``[flights, 9]``, with the delay last."""
    with needs("parquet", "Reading flights"):
        import pyarrow as pa
        from pyarrow import csv as text

    flights, planes = paths
    ages = _ages(planes)
    types = dict.fromkeys(_AIRLINE_COLUMNS, pa.float64()) | {"TailNum": pa.string()}
    options = text.ConvertOptions(
        include_columns=list(types), column_types=types, null_values=["NA", ""], strings_can_be_null=True
    )
    pieces, count = [], 0
    with (
        bz2.open(flights) as packed,
        text.open_csv(packed, text.ReadOptions(encoding="latin-1"), None, options) as reader,
    ):
        for batch in reader:
            *columns, delay = (batch[name].to_numpy(zero_copy_only=False) for name in _AIRLINE_COLUMNS)
            age = [ages.get(tail, np.nan) for tail in batch["TailNum"].to_pylist()]
            rows = np.column_stack([*columns, age, delay]).astype(np.float32)
            pieces.append(rows[np.isfinite(rows).all(axis=1)])
            count += len(rows)
    table = np.concatenate(pieces)
    if count not in facts["rows"] or len(table) < AIRLINE_TRAIN + AIRLINE_TEST:
        raise ValueError(f"{flights.name} has {count:,} flights, {len(table):,} of them complete and of known planes")
    table[:, 3:5] = 60 * (table[:, 3:5] // 100) + table[:, 3:5] % 100
    return table


def _ages(planes: Path) -> dict[str, int]:
    """The age in 2008 of each plane with a known year of manufacture, by tail number."""
    with planes.open(encoding="utf-8-sig", newline="") as stream:
        # If only the tail number of a plane is known, its line has only one field.
        made = {row["tailnum"]: row["year"] or "" for row in csv.DictReader(stream)}
    ages = {tail: 2008 - int(year) for tail, year in made.items() if year.isdecimal() and 0 < int(year) <= 2008}
    if not ages:
        raise ValueError(f"{planes.name} has no plane whose year is known")
    return ages
