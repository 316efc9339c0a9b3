"""Tables with classes from the UCI collection: adult, connect4, diabetes, covtype."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import operator
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpzoo.datasets.dataset import Dataset
from gpzoo.datasets.files import VARIABLE, DatasetError, damaged, find, fingerprint, obtain, read, unlike

_UCI = "https://archive.ics.uci.edu/static/public"


@dataclass(frozen=True)
class ClassTable:
    """A published table of rows with a class each.

    Attributes:
        npz: file that holds its numbers and codes.
        npz_sha256: of that file.
        file: as published; empty where there is no such file.
        url: where that is published.
        content: what the numbers, codes and classes hash to, from either file; ``None`` where only the published file
            is known, by ``sha256``.
        sha256: of the published file, where it is known.
        dropped: columns that are no features.
        codes: columns of integers that are codes of categories.
        by: the column whose values are kept together when rows are held out.
        rare: rows below which the categories of a column are taken together.
    """

    npz: str
    npz_sha256: str | None
    file: str
    url: str
    content: str | None
    sha256: str | None = None
    dropped: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    by: str | None = None
    rare: int = 0


TABLES = {
    "adult": ClassTable(
        "adult.npz",
        "3c1e347c51c166101336b80aeb2a0d4c597954e272009f3c4167d129bdf41cd5",
        "adult.zip",
        f"{_UCI}/2/adult.zip",
        "619b23c5dc93a528514fe62f3d26fc976747b0ea56e8ef01cb94bfdef8ee4a3e",
        rare=100,
    ),
    "connect4": ClassTable(
        "connect4.npz",
        "72fdf0058974131964180bc6c68d256616236b33c9522107952f4fb1f6d37bca",
        "connect_4.tsv.gz",
        "https://github.com/EpistasisLab/pmlb/raw/master/datasets/connect_4/connect_4.tsv.gz",
        "95fa8f984512f01a2d34912dede821467e80c0df0ff86d3612a65902db2edf38",
    ),
    "diabetes": ClassTable(
        "diabetes130.npz",
        "35123050efb4fa747c7e713c14fc7ab8e4161c1f646c8a751df69ffe0905148a",
        "diabetes130.zip",
        f"{_UCI}/296/diabetes+130-us+hospitals+for+years+1999-2008.zip",
        "9307c04104812eebb45f046812e7295e67f8d450d53db53928922be36bd2a5d3",
        dropped=("encounter_id", "patient_nbr"),
        codes=("admission_type_id", "discharge_disposition_id", "admission_source_id"),
        by="patient_nbr",
        rare=1000,
    ),
    "covtype": ClassTable(
        "covtype.npz",
        None,
        "covtype.data.gz",
        "https://ndownloader.figshare.com/files/5976039",
        None,
        "614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",
    ),
    "covtype-subset": ClassTable(
        "covtype_subset.npz",
        "f363f72622fd283b3022b9e8de4f0192fd8d2f19f365d521b43e587af5b3f76c",
        "",
        "",
        None,
    ),
}

#: Values that say that a value is missing.
_MISSING = "?"


def table(name: str, split: int = 0) -> Dataset:
    """Read a table with classes: categories are columns of zeros and ones, a missing one being a category too.

    Args:
        name: ``"adult"``, ``"connect4"``, ``"diabetes"``, ``"covtype"`` or ``"covtype-subset"``, 16 % of its rows.
        split: seed of the draw of the 10 % of rows for testing.

    Returns:
        float32 ``[N, D]``, best standardised, and int32 labels.

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
    return Dataset(name, X[~test], y[~test], X[test], y[test], source, sha256)


def _numbers(name: str, known: ClassTable) -> tuple[dict[str, np.ndarray], set[str], str, dict[str, str]]:
    """``X`` of numbers and codes, ``y`` and the names of the columns; which of them are categories."""
    path = find(known.npz) if known.npz_sha256 else None
    if path is not None:
        with np.load(io.BytesIO(read(path, known.npz_sha256))) as archive:
            arrays = {key: archive[key] for key in ("X", "y", "columns")}
            categories = {key.removeprefix("cat_") for key in archive.files if key.startswith("cat_")}
        return arrays, categories, f"file in {path.parent}", {path.name: known.npz_sha256}
    if not known.file:
        raise DatasetError(
            f"{name} is read from {known.npz}, which has no public home: put it into the folder that {VARIABLE} names, "
            f"or load {name.removesuffix('-subset')!r}, the whole table."
        )
    path, source = obtain(known.file, [known.url], known.sha256)
    content = read(path, known.sha256)
    try:
        arrays, categories = _READERS[name](content)
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error, UnicodeDecodeError) as error:
        raise unlike(path, "the published table", f"a file that cannot be read ({error})") from error
    if known.content is not None and (found := content_of(arrays)) != known.content:
        raise damaged(path, f"{known.content} of the table", found)
    return arrays, categories, source, {path.name: hashlib.sha256(content).hexdigest()}


def content_of(arrays: Mapping[str, np.ndarray]) -> str:
    """What a table hashes to, whichever file it was read from."""
    return fingerprint({"X": arrays["X"].astype(np.int32), "y": arrays["y"].astype(np.uint8)})


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
        # The rare ones, together, are the last column.
        place = np.where(common, np.cumsum(common) - 1, common.sum())[place]
        width = int(common.sum()) + (not common.all())
        parts.append((place[:, None] == np.arange(width)).astype(np.float32))
    return np.concatenate(parts, axis=1)


# -- the published files -----------------------------------------------------------------------------------------------


def _coded(rows: list[list[str]], columns: list[str]) -> tuple[np.ndarray, set[str]]:
    """Integer columns as they are; others as numbers of their sorted values, -1 where one is missing."""
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


def _read_adult(content: bytes) -> tuple[dict[str, np.ndarray], set[str]]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        texts = [archive.read(name).decode("ascii") for name in ("adult.data", "adult.test")]
    lines = [line for text in texts for line in text.splitlines() if line.count(",") == len(_ADULT)]
    rows = [[value.strip() for value in line.split(",")] for line in lines]
    X, categories = _coded(rows, _ADULT)
    y = np.array([row[-1].rstrip(".") == ">50K" for row in rows], np.uint8)
    return {"X": X, "y": y, "columns": np.array(_ADULT)}, categories


def _read_connect4(content: bytes) -> tuple[dict[str, np.ndarray], set[str]]:
    header, *rows = csv.reader(io.StringIO(gzip.decompress(content).decode("ascii")), delimiter="\t")
    numbers = np.array(rows, np.int32)
    target = header.index("target")
    return {
        "X": np.delete(numbers, target, axis=1),
        "y": numbers[:, target].astype(np.uint8),
        "columns": np.array([name for name in header if name != "target"]),
    }, set()


def _read_diabetes(content: bytes) -> tuple[dict[str, np.ndarray], set[str]]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        member = next(name for name in archive.namelist() if name.endswith("diabetic_data.csv"))
        header, *rows = csv.reader(io.StringIO(archive.read(member).decode("ascii")))
    X, categories = _coded(rows, header[:-1])
    y = np.array([("NO", "<30", ">30").index(row[-1]) for row in rows], np.uint8)
    return {"X": X, "y": y, "columns": np.array(header[:-1])}, categories


def _read_covtype(content: bytes) -> tuple[dict[str, np.ndarray], set[str]]:
    numbers = np.loadtxt(io.BytesIO(gzip.decompress(content)), np.int32, delimiter=",", ndmin=2)
    columns = np.array([f"column {i}" for i in range(numbers.shape[1] - 1)])
    return {"X": numbers[:, :-1], "y": (numbers[:, -1] - 1).astype(np.uint8), "columns": columns}, set()


_READERS = {
    "adult": _read_adult,
    "connect4": _read_connect4,
    "diabetes": _read_diabetes,
    "covtype": _read_covtype,
}
