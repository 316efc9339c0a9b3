"""Journeys of New York's yellow taxis: they are read into memory, or rewritten as Parquet files for streaming.

The 1.2 billion journeys of Salimbeni and Deisenroth (2017) do not fit into memory, so they are read month by month.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpzoo._extras import needs
from gpzoo.errors import DatasetError
from gpzoo.inference.programs.files import replacing
from gpzoo.reproductions.datasets.files import Files, find
from gpzoo.reproductions.datasets.in_memory import random_split
from gpzoo.reproductions.datasets.registry import FACTS, published
from gpzoo.tables.files import reason

FEATURES: tuple[str, ...] = tuple(FACTS["taxi"]["features"])
TARGET = "duration"
FIRST, LAST = "2009-01", "2016-06"
SHORTEST, LONGEST = 10.0, 5 * 3600.0
CENTRE = (40.7128, -74.0060)
SQUARED_RADIUS = 5.0
MOST_TEST = 1_000_000

_BATCH = 262_144
# Every text can be read in this encoding, with the right numbers and times. A byte order mark becomes letters.
_ENCODING = "latin-1"
_MARK = codecs.BOM_UTF8.decode(_ENCODING)
_TIMES = ("pickup", "dropoff")


def _facts(month: str) -> dict[str, Any]:
    """The facts about a month's file, which is a Parquet file or a text. Texts have coordinates in every month."""
    name, home = f"yellow_tripdata_{month}", FACTS["taxi"]
    parquet = {"path": f"{name}.parquet", "bytes": 2**30, "urls": [f"{home['parquet_home']}/{name}.parquet"]}
    text = {"path": f"{name}.csv", "bytes": 2**32, "urls": [f"{home['csv_home']}/{name}.csv"]}
    offered = month <= home["last_parquet"]
    first, second = (parquet, text) if offered else (text, parquet)
    advice = "" if offered else home["old_copy"]
    return {"files": [first], "at_hand": [second], "kept": f"taxi_{month}.npy", "advice": advice}


def _files(month: str) -> Files:
    facts = _facts(month)
    # If both files are there, the file that is offered now is read.
    return Files("taxi", facts | {"at_hand": []} if find(facts["files"][0]["path"]) else facts)


FACTS["taxi"].update(_facts(FIRST))


@published("taxi")
def taxi(files: Files, months: Sequence[str] = (FIRST,), seed: int = 0) -> dict[str, Any]:
    """Read journeys of yellow taxis: their durations, with times and places of their starts and ends.

    The files come from the NYC Taxi and Limousine Commission, one for each month:
    ``yellow_tripdata_2009-01.parquet`` or ``.csv``. They have coordinates from 2009-01 to 2016-06, then zones. The
    commission's current Parquet files have coordinates only for 2009 and 2010. Later months need the CSV files that the
    commission offered until 2022.

    * Features, in this order: time of day in hours, 0 to 24; day of the week, 1 for Monday; day of the month; month;
      latitude and longitude of the start, then of the end, in degrees; distance by the meter in miles. The target is
      the duration in seconds.
    * Journeys of less than 10 s or more than 5 h are dropped, and journeys with a missing value. Journeys that start or
      end outside New York are also dropped: there, the squared distance from 40.7128 N, 74.0060 W in degrees is 5 or
      more.

    A month has about 14 million journeys. They need 0.6 GB in memory, the same in the cache folder, and minutes the
    first time. Reading published files needs pyarrow. For more months than fit into memory, see :func:`taxi_parquet`.

    Args:
        files: files of the first month.
        months: months such as ``"2009-01"``; all journeys of each month are read.
        seed: seed of the split. A tenth of the journeys, drawn at random, but at most a million, is for testing.

    Returns:
        Float32: features ``[N, 9]`` and durations ``[N]``.

    Raises:
        ValueError: if a month has no coordinates, if there is no month, or if a month occurs twice.
        DatasetError: if a file is damaged, lacks coordinates or cannot be downloaded.
        MissingExtraError: without pyarrow.
    """
    read = [_files(month) for month in _checked(months)]
    tables = [month.table(_journeys) for month in read]
    files.source = ", ".join(dict.fromkeys(month.source for month in read))
    files.sha256 = {name: sha256 for month in read for name, sha256 in month.sha256.items()}
    table = tables[0] if len(tables) == 1 else np.concatenate(tables)
    return random_split(table[:, :-1], table[:, -1], seed, MOST_TEST)


def taxi_parquet(months: Sequence[str], folder: str | Path) -> list[Path]:
    """Write the journeys that :func:`taxi` reads to Parquet files for streaming, one for each month, without a split.

    Journeys are not shuffled. Only one month at a time is in memory. A file gets its name only when it is complete.
    Existing months are skipped, so that an interrupted call can be repeated.

    Args:
        months: months such as ``"2009-01"``.
        folder: folder of ``taxi_2009-01.parquet``, ...; made if it does not exist.

    Returns:
        The files in the order of ``months``: ten float32 columns, ``FEATURES`` and ``"duration"``.

    Raises:
        ValueError: if a month has no coordinates, if there is no month, or if a month occurs twice.
        DatasetError: if a file is damaged, lacks coordinates, cannot be downloaded or cannot be written.
        MissingExtraError: without pyarrow.
    """
    months, folder = _checked(months), Path(folder)
    with needs("parquet", "Writing taxi journeys"):
        import pyarrow as pa
        import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.float32()) for name in (*FEATURES, TARGET)])
    written = {month: folder / f"taxi_{month}.parquet" for month in months}
    for month, path in written.items():
        if path.is_file():
            continue
        with _files(month).paths() as paths:
            table = _journeys(paths)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(path) as unfinished:
                pq.write_table(pa.table(list(table.T), schema=schema), unfinished, row_group_size=_BATCH)
        except OSError as error:
            raise DatasetError(f"cannot write {path}: {reason(error)}.") from error
    return list(written.values())


def _checked(months: Sequence[str]) -> list[str]:
    listed = [] if isinstance(months, str) else list(months)
    known = (re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", str(month)) and FIRST <= month <= LAST for month in listed)
    if not listed or not all(known) or len(set(listed)) < len(listed):
        raise ValueError(
            f"months must be a sequence of one or more from '{FIRST}' to '{LAST}', which were published with "
            f"coordinates, each given once, such as ['{FIRST}']; got {months!r}."
        )
    return listed


def _journeys(paths: list[Path]) -> np.ndarray:
    """The journeys of a published file that pass the filters, in the order of the file: float32 ``[n, 10]``.

    Raises:
        ValueError: if the file has other columns or another number of journeys than published, or if none passes.
    """
    with needs("parquet", "Reading taxi journeys"):
        import pyarrow  # noqa: F401

    (path,), pieces, read = paths, [], 0
    for batch in _text_batches(path) if path.suffix == ".csv" else _parquet_batches(path):
        read += batch.num_rows
        pieces.append(_filtered(batch))
    known = FACTS["taxi"]["rows"].get(path.stem.rpartition("_")[2]) if path.suffix == ".csv" else None
    left = sum(map(len, pieces))
    if read != (known or read) or not left:
        raise ValueError(
            f"it has {read:,} journeys, {left:,} of which pass the filters; {known or 'more'} are expected"
        )
    return np.concatenate(pieces)


def _parquet_batches(path: Path) -> Iterator[Any]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, pre_buffer=False) as file:
        names = _names(path, file.schema_arrow.names)
        for batch in file.iter_batches(_BATCH, columns=list(names.values())):
            yield batch.select(list(names.values())).rename_columns(list(names))


def _text_batches(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import csv

    with path.open(encoding=_ENCODING) as stream:
        names = _names(path, stream.readline().rstrip("\n").split(","))
    types = {name: pa.timestamp("us") if key in _TIMES else pa.float64() for key, name in names.items()}
    options = csv.ConvertOptions(include_columns=list(names.values()), column_types=types)
    # Some published rows have too many fields and are dropped. A row with too few fields means a truncated file.
    parse = csv.ParseOptions(
        invalid_row_handler=lambda row: "skip" if row.actual_columns > row.expected_columns else "error"
    )
    # At most 32 blocks are read ahead.
    with csv.open_csv(path, csv.ReadOptions(block_size=2**22, encoding=_ENCODING), parse, options) as reader:
        for batch in reader:
            yield batch.rename_columns(list(names))


def _names(path: Path, header: Sequence[str]) -> dict[str, str]:
    """The name of each column in this file. Some published names have blanks around them."""
    plain = {name.removeprefix(_MARK).strip().lower(): name for name in header}
    columns = FACTS["taxi"]["columns"]
    names = {key: plain[known] for key, candidates in columns.items() for known in candidates if known in plain}
    missing = [key for key in columns if key not in names]
    if missing:
        zones = f": Parquet files of months after {FACTS['taxi']['last_parquet']} hold zones instead of coordinates"
        raise ValueError(f"it has no columns for {', '.join(missing)}{zones if path.suffix == '.parquet' else ''}")
    return names


def _filtered(batch: Any) -> np.ndarray:
    """The journeys of a batch that pass the filters: float32 ``[n, 10]``, ``FEATURES`` and the target."""
    import pyarrow as pa

    pickup, dropoff = (
        batch.column(name).cast(pa.timestamp("us"), safe=False).to_numpy(zero_copy_only=False).astype("datetime64[us]")
        for name in _TIMES
    )
    values = {name: batch.column(name).cast(pa.float64()).to_numpy(zero_copy_only=False) for name in FEATURES[4:]}
    # Nulls are NaT and NaN here. They fail every comparison.
    duration = (dropoff - pickup) / np.timedelta64(1, "s")
    inside = (duration >= SHORTEST) & (duration <= LONGEST) & np.isfinite(values["distance"])
    for end in _TIMES:
        squared = (values[f"{end}_latitude"] - CENTRE[0]) ** 2 + (values[f"{end}_longitude"] - CENTRE[1]) ** 2
        inside &= squared < SQUARED_RADIUS
    columns = [*calendar(pickup[inside]), *(value[inside] for value in values.values()), duration[inside]]
    return np.stack(columns, axis=1).astype(np.float32)


def calendar(times: np.ndarray) -> tuple[np.ndarray, ...]:
    """Hours since midnight, day of the week (1 for Monday), day of the month, and month of ``datetime64`` values."""
    days, months = times.astype("datetime64[D]"), times.astype("datetime64[M]")
    # Day 0 of NumPy's calendar, 1 January 1970, was a Thursday.
    return (
        (times - days) / np.timedelta64(1, "h"),
        (days.astype(np.int64) + 3) % 7 + 1,
        (days - months.astype("datetime64[D]")).astype(np.int64) + 1,
        months.astype(np.int64) % 12 + 1,
    )
