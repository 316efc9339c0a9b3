"""The large data sets of the deep-GP papers, from their public files: year, airline, higgs, susy.

Parsing takes minutes, so the result is kept in the user's cache folder. Text is read in pieces, into float32, so that
memory holds little more than the result. Values are raw: ``Dataset.standardised`` scales them.
"""

from __future__ import annotations

import csv
import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np

from gpzoo.reproductions.datasets.files import keep, kept_with_origin, obtain, parsing
from gpzoo.reproductions.datasets.in_memory import Dataset
from gpzoo.reproductions.datasets.registry import dataset
from gpzoo.reproductions.datasets.unpacking import LINES, bunzip2, gunzip, lines, member, numbers
from gpzoo.tables.files import checksum, opened, unlike

_UCI = "https://archive.ics.uci.edu"
_PHYSICS = "https://mlphysics.ics.uci.edu/data"
_DATAVERSE = "https://dataverse.harvard.edu/api/access/datafile/:persistentId?persistentId=doi:10.7910/DVN/HG7NV7"


@dataclass(frozen=True)
class _Text:
    """A published text of numbers separated by commas, the target first; ``member`` is its name in a zip archive.

    ``most`` and ``most_text`` are the largest sizes of the file and of the unpacked text, in bytes. ``sha256`` is that
    of the published file, if it is known; ``rows`` and ``features`` are always checked.
    """

    name: str
    file: str
    urls: tuple[str, ...]
    most: int
    most_text: int
    rows: int
    features: int
    sha256: str | None = None
    member: str | None = None
    advice: str = ""

    @property
    def kept(self) -> str:
        return f"{self.name}.npy"

    @property
    def files(self) -> tuple[tuple[str, ...], ...]:
        return (self.file,), (self.kept,)


TEXTS = {
    text.name: text
    for text in (
        _Text(
            "year",
            "YearPredictionMSD.txt.zip",
            (
                f"{_UCI}/static/public/203/yearpredictionmsd.zip",
                f"{_UCI}/ml/machine-learning-databases/00203/YearPredictionMSD.txt.zip",
            ),
            2**28,
            2**29,
            515_345,
            90,
            member="YearPredictionMSD.txt",
        ),
        _Text(
            "higgs",
            "HIGGS.csv.gz",
            (f"{_UCI}/ml/machine-learning-databases/00280/HIGGS.csv.gz", f"{_PHYSICS}/higgs/HIGGS.csv.gz"),
            3 * 2**30,
            2**33,
            11_000_000,
            28,
            "ea302c18164d4e3d916a1e2e83a9a8d07069fa6ebc7771e4c0540d54e593b698",
            advice=f" It is also in {_UCI}/static/public/280/higgs.zip.",
        ),
        _Text(
            "susy",
            "SUSY.csv.gz",
            (f"{_UCI}/ml/machine-learning-databases/00279/SUSY.csv.gz", f"{_PHYSICS}/susy/SUSY.csv.gz"),
            2**30,
            2**32,
            5_000_000,
            18,
            "be56cb5598da8ece4b13912230ee713bab8b3431a7d118e0054ffdf3a2f25664",
            advice=f" It is also in {_UCI}/static/public/279/susy.zip.",
        ),
    )
}
YEAR_PUBLISHED_TRAIN = 463_715

FLIGHTS = "airline/2008.csv.bz2"
PLANES = "airline/plane-data.csv"
_MOST_FLIGHTS, _MOST_FLIGHTS_TEXT, _MOST_PLANES = 2**28, 2**30, 2**22
_LONGEST_LINE = 1024
FLIGHTS_URL = f"{_DATAVERSE}/EIR0RA"
PLANES_URL = f"{_DATAVERSE}/XXSL8A"
AIRLINE_KEPT = "airline.npy"
_AIRLINE_FILES = ((FLIGHTS, PLANES), (AIRLINE_KEPT,))
# There are two published versions: flights of January to April, and later those of the whole year.
AIRLINE_ROWS = (2_389_217, 7_009_728)
AIRLINE_TRAIN, AIRLINE_TEST = 700_000, 100_000
AIRLINE_FEATURES = (
    "month",
    "day of month",
    "day of week",
    "departure time",
    "arrival time",
    "air time",
    "distance",
    "plane age",
)
_MISSING = frozenset(("NA", ""))
_AIRLINE_COLUMNS = ("Month", "DayofMonth", "DayOfWeek", "DepTime", "ArrTime", "AirTime", "Distance")


@dataset(
    "year",
    "the year of a song from its timbre, 515,345 rows, 90 features, regression "
    "(options split='random' or 'published', seed)",
    files=TEXTS["year"].files,
)
def year(split: str = "random", seed: int = 0) -> Dataset:
    """Read YearPredictionMSD: the year of a song from the 12 means and 78 covariances of its timbre.

    Args:
        split: ``"random"``, nine tenths of the rows for training as in Salimbeni and Deisenroth (2017), or
            ``"published"``, the first 463,715 rows for training, which keeps the songs of an artist together.
        seed: seed of the random split.

    Returns:
        515,345 rows, float32: features ``[N, 90]`` and years ``[N]``. Random: 463,810 / 51,535.

    Raises:
        ValueError: if there is no such split.
        DatasetError: if the file is damaged or cannot be downloaded.
    """
    if split not in ("random", "published"):
        raise ValueError(f"split must be 'random' or 'published', got {split!r}.")
    table, source, sha256 = _table(TEXTS["year"])
    X, y = table[:, 1:], table[:, 0]
    if split == "random":
        return random_split("year", X, y, seed, source, sha256)
    train, test = slice(None, YEAR_PUBLISHED_TRAIN), slice(YEAR_PUBLISHED_TRAIN, None)
    parts = [np.ascontiguousarray(part) for part in (X[train], y[train], X[test], y[test])]
    return Dataset("year", parts[0], parts[1], parts[2], parts[3], source, sha256)


@dataset(
    "higgs",
    "collisions with and without a Higgs boson, 11,000,000 rows, 28 features, 2 classes (option seed)",
    files=TEXTS["higgs"].files,
)
def higgs(seed: int = 0) -> Dataset:
    """Read HIGGS: collisions that produce a Higgs boson (1) or not (0), simulated by Baldi et al. (2014).

    Args:
        seed: seed of the split: a tenth of the rows, drawn at random, is for testing.

    Returns:
        9,900,000 / 1,100,000 rows, float32 ``[N, 28]`` (21 measured, 7 derived from them); int32 labels ``[N]``.

    Raises:
        DatasetError: if the file is damaged or cannot be downloaded.
    """
    return _collisions("higgs", seed)


@dataset(
    "susy",
    "collisions with and without supersymmetric particles, 5,000,000 rows, 18 features, 2 classes (option seed)",
    files=TEXTS["susy"].files,
)
def susy(seed: int = 0) -> Dataset:
    """Read SUSY: collisions that produce supersymmetric particles (1) or not (0), simulated by Baldi et al. (2014).

    Args:
        seed: seed of the split: a tenth of the rows, drawn at random, is for testing.

    Returns:
        4,500,000 / 500,000 rows, float32 ``[N, 18]`` (8 measured, 10 derived from them); int32 labels ``[N]``.

    Raises:
        DatasetError: if the file is damaged or cannot be downloaded.
    """
    return _collisions("susy", seed)


def _collisions(name: str, seed: int) -> Dataset:
    table, source, sha256 = _table(TEXTS[name])
    return random_split(name, table[:, 1:], table[:, 0].astype(np.int32), seed, source, sha256)


def random_split(
    name: str,
    X: np.ndarray,
    y: np.ndarray,
    seed: int,
    source: str,
    sha256: dict[str, str],
    most_test: int | None = None,
) -> Dataset:
    """Draw a tenth of the rows, rounded up, for testing, or ``most_test`` if that is fewer; parts keep their order."""
    test = len(y) - len(y) * 9 // 10
    test = test if most_test is None else min(test, most_test)
    # RandomState, because its streams are the same in all NumPy versions; those of default_rng are not.
    drawn = np.zeros(len(y), bool)
    drawn[np.random.RandomState(operator.index(seed)).permutation(len(y))[:test]] = True
    return Dataset(name, X[~drawn], y[~drawn], X[drawn], y[drawn], source, sha256)


def _table(text: _Text) -> tuple[np.ndarray, str, dict[str, str]]:
    """Float32 ``[rows, 1 + features]``, its source, and the sha256 of the published file."""
    found = kept_with_origin(text.kept, 4 * text.rows * (1 + text.features))
    if found is not None:
        return found[0], "kept in the cache folder", found[1]
    path, source = obtain(text.file, text.urls, text.most, text.sha256, advice=text.advice)
    with opened(path, text.most, text.sha256) as stream:
        origin = {text.file: text.sha256 or checksum(path, stream)}
        table = _parse(path, stream, text)
    keep(text.kept, table, origin)
    return table, source, origin


def _parse(path: Path, stream: BinaryIO, text: _Text) -> np.ndarray:
    with parsing(path, f"{text.rows:,} rows of {1 + text.features} numbers"):
        if text.member is None:
            unpacked = nullcontext(gunzip(stream, text.most_text))
        else:
            unpacked = member(stream, text.member, text.most_text)
        with unpacked as content:
            table = numbers(content, text.rows, 1 + text.features)
        if len(table) != text.rows:
            raise ValueError(f"there are {len(table):,} rows")
    return table


@dataset(
    "airline",
    "delays of US flights of 2008, 700,000 / 100,000, 8 features, regression (option seed)",
    files=_AIRLINE_FILES,
)
def airline(seed: int | None = None) -> Dataset:
    """Read the delays of US flights of 2008, with the eight features of Hensman et al. (2013).

    The files are those of the ASA Data Expo 2009 on Harvard Dataverse, ``2008.csv.bz2`` and ``plane-data.csv``, in the
    folder ``airline`` of the data folder. The former has two published versions, and both can be read: 2,389,217
    flights of January to April (that of Hensman et al., and on Dataverse), and 7,009,728 of the whole year.

    * Features, in this order: month; day of the month; day of the week, 1 for Monday; departure and arrival time, in
      minutes since local midnight, 0 to 1440; air time in minutes; distance in miles; age of the plane in years, 2008
      minus its year of manufacture. The target is the delay at arrival in minutes, negative if early.
    * Flights with a missing value are dropped, such as cancelled or diverted ones. So are flights whose plane is not in
      the list of planes, or has a year of manufacture that is missing, 0, or later than 2008.

    Args:
        seed: ``None`` takes the rows in the order of the file, the first 700,000 for training and the next 100,000
            for testing, as Salimbeni and Deisenroth (2017) write. The file is sorted by month, then by airline, so
            that these are from its first months. A number draws 800,000 of all rows, as in Hensman et al. (2013).

    Returns:
        700,000 / 100,000 rows, float32: features ``[N, 8]`` and delays ``[N]``.

    Raises:
        DatasetError: if a file is damaged or cannot be downloaded.
    """
    table, source, sha256 = _flights()
    count = AIRLINE_TRAIN + AIRLINE_TEST
    if seed is None:
        rows = table[:count]
    else:
        rows = table[np.random.RandomState(operator.index(seed)).permutation(len(table))[:count]]
    X, y = np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, -1])
    return Dataset(
        "airline", X[:AIRLINE_TRAIN], y[:AIRLINE_TRAIN], X[AIRLINE_TRAIN:], y[AIRLINE_TRAIN:], source, sha256
    )


@dataset(
    "airline-delayed",
    "whether a US flight of 2008 was delayed, all flights, 8 features, 2 classes (option seed)",
    files=_AIRLINE_FILES,
)
def airline_delayed(seed: int = 0) -> Dataset:
    """Read whether US flights of 2008 arrived late, from the files and with the features of :func:`airline`.

    Hensman et al. (2015) and Wilson et al. (2016) have 5.9 million flights, and do not say which delay counts as late;
    here it is any delay at arrival of more than 0 minutes.

    Args:
        seed: seed of the split: a tenth of the rows, drawn at random, is for testing.

    Returns:
        Every complete flight of the file, float32 ``[N, 8]``; int32 labels ``[N]``, 1 if delayed.

    Raises:
        DatasetError: if a file is damaged or cannot be downloaded.
    """
    table, source, sha256 = _flights()
    return random_split("airline-delayed", table[:, :-1], (table[:, -1] > 0).astype(np.int32), seed, source, sha256)


def _flights() -> tuple[np.ndarray, str, dict[str, str]]:
    """Float32 ``[flights, 9]`` with the delay last, its source, and the sha256 of the published files."""
    found = kept_with_origin(AIRLINE_KEPT, 4 * 9 * max(AIRLINE_ROWS))
    if found is not None:
        return found[0], "kept in the cache folder", found[1]
    planes, _ = obtain(PLANES, [PLANES_URL], _MOST_PLANES)
    with opened(planes, _MOST_PLANES) as stream:
        sha256 = {PLANES: checksum(planes, stream)}
        ages = _parse_planes(planes, stream)
    flights, source = obtain(FLIGHTS, [FLIGHTS_URL], _MOST_FLIGHTS, advice=f" {PLANES} is needed beside it.")
    with opened(flights, _MOST_FLIGHTS) as stream:
        sha256 = {FLIGHTS: checksum(flights, stream)} | sha256
        table = _parse_flights(flights, stream, ages)
    keep(AIRLINE_KEPT, table, sha256)
    return table, source, sha256


def _parse_planes(path: Path, stream: BinaryIO) -> dict[str, int]:
    """The age in 2008 of each plane with a known year of manufacture, by tail number."""
    expected = "a list of planes with the columns tailnum and year"
    ages = {}
    with parsing(path, expected):
        rows = _rows(stream, "utf-8-sig")
        pick = _columns(next(rows, []), ("tailnum", "year"))
        for row in rows:
            # If only the tail number of a plane is known, its line has one field.
            tail, made = pick(row) if len(row) > 1 else ("", "")
            if made.isdecimal() and 0 < int(made) <= 2008:
                ages[tail] = 2008 - int(made)
    if not ages:
        raise unlike(path, expected, "no plane whose year is known")
    return ages


def _parse_flights(path: Path, stream: BinaryIO, ages: dict[str, int]) -> np.ndarray:
    expected = f"{' or '.join(f'{rows:,}' for rows in AIRLINE_ROWS)} flights"
    pieces, count = [], 0
    with parsing(path, expected):
        rows = filter(None, _rows(bunzip2(stream, _MOST_FLIGHTS_TEXT), "latin-1"))
        pick = _columns(next(rows, []), (*_AIRLINE_COLUMNS, "TailNum", "ArrDelay"))
        while piece := list(islice(rows, LINES)):
            count += len(piece)
            if count > max(AIRLINE_ROWS):
                raise ValueError("there are more flights")
            pieces.append(np.array(list(_complete(map(pick, piece), ages)), np.float32).reshape(-1, 9))
    if count not in AIRLINE_ROWS:
        raise unlike(path, expected, f"{count:,}")
    table = np.concatenate(pieces)
    if len(table) < AIRLINE_TRAIN + AIRLINE_TEST:
        raise unlike(path, f"{AIRLINE_TRAIN + AIRLINE_TEST:,} complete flights of known planes", f"{len(table):,}")
    table[:, 3:5] = 60 * (table[:, 3:5] // 100) + table[:, 3:5] % 100
    return table


def _rows(stream: BinaryIO, encoding: str) -> Iterator[list[str]]:
    return csv.reader(line.decode(encoding) for line in lines(stream, _LONGEST_LINE))


def _columns(header: list[str], names: Iterable[str]) -> Callable[[list[str]], tuple[str, ...]]:
    return operator.itemgetter(*(header.index(name) for name in names))


def _complete(rows: Iterable[tuple[str, ...]], ages: dict[str, int]) -> Iterator[list[float]]:
    for *features, tail, delay in rows:
        age = ages.get(tail)
        if age is not None and _MISSING.isdisjoint((*features, delay)):
            yield [*map(float, features), age, float(delay)]
