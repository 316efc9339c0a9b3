"""Journeys of New York's yellow taxis: read into memory, or rewritten as Parquet to be streamed.

The 1.2 billion journeys of Salimbeni and Deisenroth (2017) do not fit into memory, so they are read by month.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gpzoo._extras import needs
from gpzoo.errors import DatasetError
from gpzoo.reproductions.datasets.files import find, keep, kept_with_origin, obtain, parsing, written
from gpzoo.reproductions.datasets.in_memory import Dataset
from gpzoo.reproductions.datasets.large import random_split
from gpzoo.reproductions.datasets.registry import dataset
from gpzoo.reproductions.datasets.unpacking import lines
from gpzoo.tables.files import checksum, opened, unlike

FEATURES = (
    "time_of_day",
    "day_of_week",
    "day_of_month",
    "month",
    "pickup_latitude",
    "pickup_longitude",
    "dropoff_latitude",
    "dropoff_longitude",
    "distance",
)
TARGET = "duration"
DEFAULT_MONTHS = ("2009-01",)
FIRST, LAST = "2009-01", "2016-06"
SHORTEST, LONGEST = 10.0, 5 * 3600.0
CENTRE = (40.7128, -74.0060)
SQUARED_RADIUS = 5.0
MOST_TEST = 1_000_000
#: Largest number of journeys of a month, twice the published maximum; largest sizes of its file in bytes, as Parquet
#: and as text.
MOST_JOURNEYS, MOST_PARQUET, MOST_CSV = 33_000_000, 2**30, 2**32

PARQUET_HOME = "https://d37ci6vzurychx.cloudfront.net/trip-data"
CSV_HOME = "https://s3.amazonaws.com/nyc-tlc/csv_backup"
_LAST_PARQUET_WITH_COORDINATES = "2010-12"
_OLD_COPY = (
    "Those months need a copy of the CSV file that the commission offered until May 2022; "
    f"months up to {_LAST_PARQUET_WITH_COORDINATES} do not."
)
# Truncated text still parses, while truncated Parquet does not. These are the months with known counts.
CSV_ROWS = {
    "2015-01": 12_748_986,
    "2015-02": 12_450_521,
    "2015-03": 13_351_609,
    "2015-04": 13_071_789,
    "2015-05": 13_158_262,
    "2015-06": 12_324_935,
    "2015-07": 11_562_783,
    "2015-08": 11_130_304,
    "2015-09": 11_225_063,
    "2015-10": 12_315_488,
    "2015-11": 11_312_676,
    "2015-12": 11_460_573,
    "2016-01": 10_906_858,
    "2016-02": 11_382_049,
    "2016-03": 12_210_952,
    "2016-04": 11_934_338,
    "2016-05": 11_836_853,
    "2016-06": 11_135_470,
}
_BATCH = 262_144
_LONGEST_HEADER, _LONGEST_TIME = 4096, 64
# Every text can be read in this encoding, with the right numbers and times; a byte order mark becomes letters.
_ENCODING = "latin-1"
_MARK = codecs.BOM_UTF8.decode(_ENCODING)
# The published names of each column, in lower case: 2009, 2010 to 2014, and since 2015.
_COLUMNS = {
    "pickup": ("trip_pickup_datetime", "pickup_datetime", "tpep_pickup_datetime"),
    "dropoff": ("trip_dropoff_datetime", "dropoff_datetime", "tpep_dropoff_datetime"),
    "pickup_latitude": ("start_lat", "pickup_latitude"),
    "pickup_longitude": ("start_lon", "pickup_longitude"),
    "dropoff_latitude": ("end_lat", "dropoff_latitude"),
    "dropoff_longitude": ("end_lon", "dropoff_longitude"),
    "distance": ("trip_distance",),
}
_TIMES = ("pickup", "dropoff")


def raw_files(month: str) -> tuple[str, str]:
    """The possible names of a month's file; if only one has coordinates, it is the first."""
    names = f"yellow_tripdata_{month}.parquet", f"yellow_tripdata_{month}.csv"
    return names if month <= _LAST_PARQUET_WITH_COORDINATES else (names[1], names[0])


def kept_file(month: str) -> str:
    """The name of a month's journeys in the cache folder."""
    return f"taxi_{month}.npy"


@dataset(
    "taxi",
    "durations of taxi journeys in New York, 14 million rows a month, 9 features, regression "
    "(options months=['2009-01', ..., '2016-06'], seed; needs pyarrow)",
    files=[(file,) for month in DEFAULT_MONTHS for file in (*raw_files(month), kept_file(month))],
)
def taxi(months: Sequence[str] = DEFAULT_MONTHS, seed: int = 0) -> Dataset:
    """Read journeys of yellow taxis: their durations, with times and places of their starts and ends.

    The files are those of the NYC Taxi and Limousine Commission, one a month: ``yellow_tripdata_2009-01.parquet`` or
    ``.csv``. They hold coordinates from 2009-01 to 2016-06, then zones. The commission's current Parquet files hold
    coordinates for 2009 and 2010 only: later months need the CSV files that it offered until 2022.

    * Features, in this order: time of day in hours, 0 to 24; day of the week, 1 for Monday; day of the month; month;
      latitude and longitude of the start, then of the end, in degrees; distance by the meter in miles. The target is
      the duration in seconds.
    * Journeys of less than 10 s or more than 5 h are dropped, and those with a missing value. So are those that start
      or end outside New York, where the squared distance from 40.7128 N, 74.0060 W in degrees is 5 or more.

    A month has about 14 million journeys: 0.6 GB in memory, the same in the cache folder, and minutes the first time.
    Reading published files needs pyarrow. For more months than fit into memory see :func:`taxi_parquet`.

    Args:
        months: such as ``"2009-01"``; all journeys of each.
        seed: seed of the split: a tenth of the journeys, but at most a million, drawn at random, is for testing.

    Returns:
        Float32: features ``[N, 9]`` and durations ``[N]``.

    Raises:
        ValueError: if a month is not one of those that have coordinates, or there is none, or one twice.
        DatasetError: if a file is damaged, lacks coordinates or cannot be downloaded.
        MissingExtraError: without pyarrow.
    """
    tables, sources, sha256 = [], [], {}
    for month in _checked(months):
        table, source, origin = _month(month)
        tables.append(table)
        sources.append(source)
        sha256 |= origin
    table = tables[0] if len(tables) == 1 else np.concatenate(tables)
    source = ", ".join(dict.fromkeys(sources))
    return random_split("taxi", table[:, :-1], table[:, -1], seed, source, sha256, MOST_TEST)


def taxi_parquet(months: Sequence[str], folder: str | Path) -> list[Path]:
    """Write the journeys that :func:`taxi` reads to Parquet files for streaming, one a month: no split, no shuffling.

    A file is written in pieces, so that memory does not grow with its size, and gets its name only when it is complete.
    Existing months are skipped, so that an interrupted call can be repeated.

    Args:
        months: such as ``"2009-01"``.
        folder: folder of ``taxi_2009-01.parquet``, ...; made if it does not exist.

    Returns:
        The files in the order of ``months``: ten float32 columns, those of ``FEATURES`` and ``"duration"``.

    Raises:
        ValueError: if a month is not one of those that have coordinates, or there is none, or one twice.
        DatasetError: if a file is damaged, lacks coordinates, cannot be downloaded or cannot be written.
        MissingExtraError: without pyarrow.
    """
    months, folder = _checked(months), Path(folder)
    pa = _pyarrow()
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.float32()) for name in (*FEATURES, TARGET)])
    paths = []
    for month in months:
        path = folder / f"taxi_{month}.parquet"
        paths.append(path)
        if path.is_file():
            continue
        raw, _ = _raw(month)
        try:
            with opened(raw, _most(raw)) as stream, written(folder, path.name) as unfinished:
                with pq.ParquetWriter(unfinished, schema) as writer:
                    for table in _joined(_journeys(raw, stream, month)):
                        writer.write_table(pa.table([pa.array(column) for column in table.T], schema=schema))
        except OSError as error:
            raise DatasetError(f"cannot write {path}: {error.strerror or error}.") from error
    return paths


def _checked(months: Sequence[str]) -> list[str]:
    if isinstance(months, str):
        raise ValueError(f"months must be a sequence, such as [{months!r}], got the text {months!r}.")
    months = list(months)
    for month in months:
        if not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", str(month)) or not FIRST <= month <= LAST:
            raise ValueError(
                f"months must be from '{FIRST}' to '{LAST}', which were published with coordinates, got {month!r}."
            )
    if not months or len(set(months)) < len(months):
        raise ValueError(f"months must be at least one, and each given once, got {months}.")
    return months


def _pyarrow() -> Any:
    with needs("parquet", "Reading taxi journeys"):
        import pyarrow
    return pyarrow


def _raw(month: str) -> tuple[Path, str]:
    first, second = raw_files(month)
    if find(first) is None and find(second) is not None:
        return obtain(second, [], _most(second))
    if first.endswith(".parquet"):
        return obtain(first, [f"{PARQUET_HOME}/{first}"], MOST_PARQUET)
    return obtain(first, [f"{CSV_HOME}/{first}"], MOST_CSV, advice=f" {_OLD_COPY}")


def _most(file: str | Path) -> int:
    return MOST_CSV if str(file).endswith(".csv") else MOST_PARQUET


def _month(month: str) -> tuple[np.ndarray, str, dict[str, str]]:
    """Float32 ``[N, 10]``, its source, and the sha256 of the published file."""
    found = kept_with_origin(kept_file(month), 40 * MOST_JOURNEYS)
    if found is not None:
        return found[0], "kept in the cache folder", found[1]
    _pyarrow()
    path, source = _raw(month)
    with opened(path, _most(path)) as stream:
        origin = {path.name: checksum(path, stream)}
        table = np.concatenate(list(_journeys(path, stream, month)))
    keep(kept_file(month), table, origin)
    return table, source, origin


def _journeys(path: Path, stream: BinaryIO, month: str) -> Iterator[np.ndarray]:
    """Float32 ``[n, 10]``: the journeys of a published file that pass the filters, in pieces and in its order.

    Raises:
        DatasetError: if the file cannot be read, or has other columns or another number of journeys than published.
    """
    expected, read, left = "journeys with coordinates", 0, 0
    batches = _csv_batches(path, stream) if path.suffix == ".csv" else _parquet_batches(path, stream)
    while True:
        with parsing(path, expected):
            batch = next(batches, None)
            if batch is None:
                break
            read += batch.num_rows
            if read > MOST_JOURNEYS:
                raise ValueError(f"there are more than {MOST_JOURNEYS:,} journeys")
            table = _filtered(batch)
        left += len(table)
        yield table
    published = CSV_ROWS.get(month, read) if path.suffix == ".csv" else read
    if read != published:
        raise unlike(path, f"{published:,} {expected}", f"{read:,}")
    if not left:
        raise unlike(path, expected, f"{read:,} journeys, none of which passes the filters")


def _joined(pieces: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """The same rows in pieces of at least ``_BATCH``, except the last: each becomes a row group, read at once."""
    gathered, rows = [], 0
    for piece in pieces:
        gathered.append(piece)
        rows += len(piece)
        if rows >= _BATCH:
            yield np.concatenate(gathered)
            gathered, rows = [], 0
    if rows:
        yield np.concatenate(gathered)


def _parquet_batches(path: Path, stream: BinaryIO) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(stream)
    schema = metadata.schema.to_arrow_schema()
    if metadata.num_rows > MOST_JOURNEYS:
        raise ValueError(f"there are more than {MOST_JOURNEYS:,} journeys")
    names = _names(path, schema.names)
    texts = [names[key] for key in _TIMES if pa.types.is_string(schema.field(names[key]).type)]
    for key, name in names.items():
        kind = schema.field(name).type
        if not (name in texts or (pa.types.is_timestamp if key in _TIMES else pa.types.is_floating)(kind)):
            raise ValueError(f"column {name!r} is of type {kind}")
    # A file of kilobytes can repeat a long text until it fills memory, so each text is unpacked once and checked.
    with pq.ParquetFile(stream, metadata=metadata, read_dictionary=texts, pre_buffer=False) as file:
        for batch in file.iter_batches(_BATCH, columns=list(names.values())):
            batch = batch.select(list(names.values())).rename_columns(list(names))
            columns = [_short(column) if pa.types.is_dictionary(column.type) else column for column in batch.columns]
            yield pa.RecordBatch.from_arrays(columns, list(names))


def _short(column: Any) -> Any:
    """A column of texts, decoded; a text that is too long for a time is an error."""
    import pyarrow.compute

    pc: Any = pyarrow.compute  # its functions are made when it is imported

    if (pc.max(pc.binary_length(column.dictionary)).as_py() or 0) > _LONGEST_TIME:
        raise ValueError(f"a time has more than {_LONGEST_TIME} letters")
    return column.dictionary_decode()


def _csv_batches(path: Path, stream: BinaryIO) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import csv

    header = next(lines(stream, _LONGEST_HEADER), b"").decode(_ENCODING).rstrip("\r\n").split(",")
    stream.seek(0)
    names = _names(path, header)
    types = {name: pa.timestamp("us") if key in _TIMES else pa.float64() for key, name in names.items()}
    options = csv.ConvertOptions(include_columns=list(names.values()), column_types=types)
    # Some published rows have too many fields and are dropped. A row with too few fields means a truncated file.
    parse = csv.ParseOptions(
        invalid_row_handler=lambda row: "skip" if row.actual_columns > row.expected_columns else "error"
    )
    # Up to 32 blocks are read ahead.
    with csv.open_csv(stream, csv.ReadOptions(block_size=2**22, encoding=_ENCODING), parse, options) as reader:
        for batch in reader:
            yield batch.rename_columns(list(names))


def _names(path: Path, header: Sequence[str]) -> dict[str, str]:
    """This file's name of each column; some published names have blanks around them."""
    plain = {name.removeprefix(_MARK).strip().lower(): name for name in header}
    names = {
        key: next((plain[known] for known in candidates if known in plain), None)
        for key, candidates in _COLUMNS.items()
    }
    missing = [key for key, name in names.items() if name is None]
    if missing and all(key.endswith("itude") for key in missing):
        raise DatasetError(
            f"{path} has no columns for {', '.join(missing)}: Parquet files of months after "
            f"{_LAST_PARQUET_WITH_COORDINATES} hold zones instead. {_OLD_COPY}"
        )
    if missing:
        raise unlike(path, f"columns for {', '.join(_COLUMNS)}", f"none for {', '.join(missing)}")
    return {key: name for key, name in names.items() if name is not None}


def _filtered(batch: Any) -> np.ndarray:
    """The journeys of a batch that pass the filters: float32 ``[n, 10]``, ``FEATURES`` and the target."""
    import pyarrow as pa

    pickup, dropoff = (
        batch.column(name).cast(pa.timestamp("us"), safe=False).to_numpy(zero_copy_only=False).astype("datetime64[us]")
        for name in _TIMES
    )
    values = {name: batch.column(name).cast(pa.float64()).to_numpy(zero_copy_only=False) for name in FEATURES[4:]}
    # Nulls are NaT and NaN here, which fail every comparison.
    duration = (dropoff - pickup) / np.timedelta64(1, "s")
    inside = (duration >= SHORTEST) & (duration <= LONGEST) & np.isfinite(values["distance"])
    for end in _TIMES:
        squared = (values[f"{end}_latitude"] - CENTRE[0]) ** 2 + (values[f"{end}_longitude"] - CENTRE[1]) ** 2
        inside &= squared < SQUARED_RADIUS
    columns = [*calendar(pickup[inside]), *(value[inside] for value in values.values()), duration[inside]]
    return np.stack(columns, axis=1).astype(np.float32)


def calendar(times: np.ndarray) -> tuple[np.ndarray, ...]:
    """Hours since midnight, day of the week from Monday as 1, day of the month, and month of ``datetime64`` values."""
    days, months = times.astype("datetime64[D]"), times.astype("datetime64[M]")
    # Day 0 of NumPy's calendar, 1 January 1970, was a Thursday.
    return (
        (times - days) / np.timedelta64(1, "h"),
        (days.astype(np.int64) + 3) % 7 + 1,
        (days - months.astype("datetime64[D]")).astype(np.int64) + 1,
        months.astype(np.int64) % 12 + 1,
    )
