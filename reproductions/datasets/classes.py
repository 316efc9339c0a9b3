"""Tables with classes from the UCI collection: adult, connect4, diabetes, covtype."""

from __future__ import annotations

import csv
import hashlib
import io
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import BinaryIO

import numpy as np

from gpzoo.errors import DatasetError
from gpzoo.reproductions.datasets.files import VARIABLE, find, obtain, parsing, read
from gpzoo.reproductions.datasets.in_memory import Dataset
from gpzoo.reproductions.datasets.registry import dataset
from gpzoo.reproductions.datasets.unpacking import gunzip, lines, member, npz, numbers
from gpzoo.tables.files import damaged, fingerprint

_UCI = "https://archive.ics.uci.edu/static/public"


@dataclass(frozen=True)
class ClassTable:
    """A published table whose rows each have a class.

    Attributes:
        description: one line.
        npz: file of its numbers and codes.
        npz_bytes: size of that file.
        npz_sha256: sha256 of that file.
        rows: number of rows of the table.
        file: name of the published file; empty if there is none.
        most: largest size of the published file in bytes, whether its members are deflated or not.
        url: address of the published file.
        content: hash of the numbers, codes and classes, from either file; ``None`` if only ``sha256`` is known.
        sha256: sha256 of the published file, if it is known.
        dropped: columns that are not features.
        codes: integer columns that are codes of categories.
        by: column whose values are kept together when rows are held out.
        rare: categories of a column with fewer rows than this are merged.
    """

    description: str
    npz: str
    npz_bytes: int
    npz_sha256: str | None
    rows: int
    file: str
    most: int
    url: str
    content: str | None
    sha256: str | None = None
    dropped: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    by: str | None = None
    rare: int = 0


TABLES = {
    "adult": ClassTable(
        "whether an income exceeds 50,000 dollars, 48,842 rows, 82 features, 2 classes",
        "adult.npz",
        552_826,
        "3c1e347c51c166101336b80aeb2a0d4c597954e272009f3c4167d129bdf41cd5",
        48_842,
        "adult.zip",
        2**23,
        f"{_UCI}/2/adult.zip",
        "57a3bfc1d44bb5644998ec079a1443356079fdc8f3cd46d0229e856ccb37774f",
        rare=100,
    ),
    "connect4": ClassTable(
        "who wins at Connect-4 from a position after 8 moves, 67,557 rows, 126 features, 3 classes",
        "connect4.npz",
        227_893,
        "72fdf0058974131964180bc6c68d256616236b33c9522107952f4fb1f6d37bca",
        67_557,
        "connect_4.tsv.gz",
        2**23,
        "https://github.com/EpistasisLab/pmlb/raw/master/datasets/connect_4/connect_4.tsv.gz",
        "0939b3119de983d0ca73717399786017ccbdd516d0f3659bd0b4e5c3eabce93d",
    ),
    "diabetes": ClassTable(
        "readmission to a hospital, 101,766 rows, 210 features, 3 classes",
        "diabetes130.npz",
        3_281_125,
        "35123050efb4fa747c7e713c14fc7ab8e4161c1f646c8a751df69ffe0905148a",
        101_766,
        "diabetes130.zip",
        2**25,
        f"{_UCI}/296/diabetes+130-us+hospitals+for+years+1999-2008.zip",
        "34a26d5274cf81febb96ad5b54e3c97719f70ee89317867026169d76521301af",
        dropped=("encounter_id", "patient_nbr"),
        codes=("admission_type_id", "discharge_disposition_id", "admission_source_id"),
        by="patient_nbr",
        rare=1000,
    ),
    "covtype": ClassTable(
        "kinds of forest, 581,012 rows, 54 features, 7 classes",
        "covtype.npz",
        0,
        None,
        581_012,
        "covtype.data.gz",
        2**24,
        "https://ndownloader.figshare.com/files/5976039",
        None,
        "614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",
    ),
    "covtype-subset": ClassTable(
        "a sample of covtype, 92,962 rows, 54 features, 7 classes",
        "covtype_subset.npz",
        1_423_290,
        "f363f72622fd283b3022b9e8de4f0192fd8d2f19f365d521b43e587af5b3f76c",
        92_962,
        "",
        0,
        "",
        None,
    ),
}

#: The text of a missing value.
_MISSING = "?"


def table(name: str, split: int = 0) -> Dataset:
    """Read a table with classes: categories become columns of zeros and ones; a missing value is a category too.

    Args:
        name: ``"adult"``, ``"connect4"``, ``"diabetes"``, ``"covtype"`` or ``"covtype-subset"`` (16 % of its rows).
        split: seed of the draw of the 10 % of rows for testing.

    Returns:
        float32 features ``[N, D]``, which should be standardised, and int32 labels.

    Raises:
        ValueError: if ``split`` is negative.
        DatasetError: if a file is damaged or cannot be downloaded.
    """
    split = operator.index(split)
    if split < 0:
        raise ValueError(f"split must be 0 or more, it seeds the draw of the test rows; got {split}.")
    known = TABLES[name]
    arrays, categories, source, sha256 = _numbers(name, known)
    columns = [str(column) for column in arrays["columns"]]
    X = _features(arrays["X"], columns, known, categories)
    y = arrays["y"].astype(np.int32)
    order = np.random.RandomState(split).permutation
    if known.by is None:
        groups = np.arange(len(y))
    else:
        groups = np.unique(arrays["X"][:, columns.index(known.by)], return_inverse=True)[1]
    number = groups.max() + 1
    held = np.zeros(number, bool)
    held[order(number)[: round(0.1 * number)]] = True
    test = held[groups]
    together = None if known.by is None else groups[~test]
    return Dataset(name, X[~test], y[~test], X[test], y[test], source, sha256, groups=together)


def _numbers(name: str, known: ClassTable) -> tuple[dict[str, np.ndarray], set[str], str, dict[str, str]]:
    """``X`` of numbers and codes, ``y``, column names; the names of columns of categories; source; sha256 of files."""
    path = find(known.npz) if known.npz_sha256 else None
    if path is not None and known.npz_sha256 is not None:
        arrays = npz(path, known.npz_bytes, known.npz_sha256)
        categories = {key.removeprefix("cat_") for key in arrays if key.startswith("cat_")}
        return arrays, categories, f"file in {path.parent}", {path.name: known.npz_sha256}
    if not known.file:
        raise DatasetError(
            f"{name} is read from {known.npz}, which has no public home: put it into the folder that {VARIABLE} names, "
            f"or load {name.removesuffix('-subset')!r}, the whole table."
        )
    path, source = obtain(known.file, [known.url], known.most, known.sha256)
    content = read(path, known.most, known.sha256)
    with parsing(path, "the published table"):
        arrays, categories = _READERS[name](io.BytesIO(content), known.rows)
    if known.content is not None and (found := content_of(arrays, categories)) != known.content:
        raise damaged(path, f"{known.content} of the table", found)
    return arrays, categories, source, {path.name: hashlib.sha256(content).hexdigest()}


def content_of(arrays: Mapping[str, np.ndarray], categories: Collection[str]) -> str:
    """The hash of a table's values, column names and columns of categories, the same for either file."""
    names = [f"{column}{' (category)' if column in categories else ''}\n" for column in arrays["columns"]]
    columns = np.frombuffer("".join(names).encode(), np.uint8)
    return fingerprint({"X": arrays["X"].astype(np.int32), "y": arrays["y"].astype(np.uint8), "columns": columns})


def _features(X: np.ndarray, columns: Sequence[str], known: ClassTable, categories: set[str]) -> np.ndarray:
    if known is TABLES["connect4"]:
        categories = set(columns)
    parts = []
    for column, values in zip(columns, X.T, strict=True):
        if column in known.dropped:
            continue
        if column not in categories and column not in known.codes:
            parts.append(values[:, None].astype(np.float32))
            continue
        _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
        common = counts >= known.rare
        # The last column stands for all rare categories.
        place = np.where(common, np.cumsum(common) - 1, common.sum())[place]
        width = int(common.sum()) + (not common.all())
        parts.append((place[:, None] == np.arange(width)).astype(np.float32))
    return np.concatenate(parts, axis=1)


# -- the published files -----------------------------------------------------------------------------------------------


#: Largest size of the text of a table, in bytes.
_MOST_TEXT = 2**27
#: Largest size of a line in bytes, and largest number of letters of a category's name.
_LONGEST_LINE, _LONGEST_WORD = 4096, 64


def _text(stream: BinaryIO) -> Iterable[str]:
    return (line.decode("ascii") for line in lines(stream, _LONGEST_LINE))


def _rows(text: Iterable[list[str]], columns: int, most: int) -> list[list[str]]:
    """The rows of a table; a missing word or one that is too long is an error."""
    rows = list(islice(text, most + 1))
    if len(rows) > most:
        raise ValueError(f"there are more than {most:,} rows")
    for number, row in enumerate(rows, 1):
        if len(row) != columns or max(map(len, row)) > _LONGEST_WORD:
            raise ValueError(f"row {number:,} does not have {columns} words of up to {_LONGEST_WORD} letters")
    return rows


def _coded(rows: list[list[str]], columns: Sequence[str]) -> tuple[np.ndarray, set[str]]:
    """Integer columns unchanged; others as indices into their sorted values, -1 for a missing value."""
    X, categories = np.empty((len(rows), len(columns)), np.int32), set()
    for i, column in enumerate(columns):
        values = np.array([row[i] for row in rows])
        try:
            X[:, i] = values.astype(np.int64)
        except ValueError:
            categories.add(column)
            kinds, place = np.unique(values, return_inverse=True)
            present = kinds != _MISSING
            X[:, i] = np.where(present, np.cumsum(present) - 1, -1)[place]
    return X, categories


_ADULT = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex capital-gain "
    "capital-loss hours-per-week native-country"
).split()


_CONNECT4 = [f"{column}{row}" for column in "abcdefg" for row in range(1, 7)]


def _read_adult(stream: BinaryIO, most: int) -> tuple[dict[str, np.ndarray], set[str]]:
    rows = []
    for name in ("adult.data", "adult.test"):
        with member(stream, name, _MOST_TEXT) as content:
            # A few lines are not rows of the table: the first one of the second text, and empty ones.
            text = ([value.strip() for value in line.split(",")] for line in islice(_text(content), most + 8))
            rows += _rows((row for row in text if len(row) == len(_ADULT) + 1), len(_ADULT) + 1, most - len(rows))
    X, categories = _coded(rows, _ADULT)
    y = np.array([row[-1].rstrip(".") == ">50K" for row in rows], np.uint8)
    return {"X": X, "y": y, "columns": np.array(_ADULT)}, categories


def _read_connect4(stream: BinaryIO, most: int) -> tuple[dict[str, np.ndarray], set[str]]:
    text = gunzip(stream, _MOST_TEXT)
    target = next(iter(_text(text)), "").strip().split("\t").index("target")
    values = numbers(text, most, len(_CONNECT4) + 1, "\t").astype(np.int32)
    X, y = np.delete(values, target, axis=1), values[:, target].astype(np.uint8)
    return {"X": X, "y": y, "columns": np.array(_CONNECT4)}, set()


def _read_diabetes(stream: BinaryIO, most: int) -> tuple[dict[str, np.ndarray], set[str]]:
    with member(stream, "diabetic_data.csv", _MOST_TEXT) as content:
        text = csv.reader(_text(content))
        header = next(text, [])
        rows = _rows(text, len(header), most)
    X, categories = _coded(rows, header[:-1])
    y = np.array([("NO", "<30", ">30").index(row[-1]) for row in rows], np.uint8)
    return {"X": X, "y": y, "columns": np.array(header[:-1])}, categories


def _read_covtype(stream: BinaryIO, most: int) -> tuple[dict[str, np.ndarray], set[str]]:
    values = numbers(gunzip(stream, _MOST_TEXT), most, 55).astype(np.int32)
    columns = np.array([f"column {i}" for i in range(values.shape[1] - 1)])
    return {"X": values[:, :-1], "y": (values[:, -1] - 1).astype(np.uint8), "columns": columns}, set()


_READERS: dict[str, Callable[[BinaryIO, int], tuple[dict[str, np.ndarray], set[str]]]] = {
    "adult": _read_adult,
    "connect4": _read_connect4,
    "diabetes": _read_diabetes,
    "covtype": _read_covtype,
}

for _name, _known in TABLES.items():
    dataset(
        _name,
        f"{_known.description} (option split, a seed)",
        files=[(file,) for file in (_known.npz, _known.file) if file],
    )(partial(table, _name))
