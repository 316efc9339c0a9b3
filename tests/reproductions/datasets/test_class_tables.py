"""Tables with classes: what is read from the files at hand equals what is read from the published ones."""

import hashlib
import io
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpzoo.errors import DatasetError
from gpzoo.reproductions import datasets
from gpzoo.reproductions.datasets import classes

#: md5 of the published tables.
PUBLISHED = {
    "adult.data": "5d7c39d7b8804f071cdd1f2a7c460872",
    "adult.test": "35238206dfdf7f1fe215bbb874adecdc",
    "dataset_diabetes/diabetic_data.csv": "502f0cc004e4cf71536ec2e61596e42f",
}


def at_hand(file):
    folder = os.environ.get("GPZOO_DATA")
    if not folder or not (Path(folder) / file).is_file():
        pytest.skip(f"{file} is not here")
    with np.load(Path(folder) / file) as archive:
        return {key: archive[key] for key in archive.files}


def words(arrays):
    """The cells of a table as they were published."""
    columns = []
    for name, column in zip(arrays["columns"], arrays["X"].T, strict=True):
        values = arrays.get(f"cat_{name}")
        columns.append(column.astype(str) if values is None else np.where(column < 0, "?", values[column]))
    return [list(row) for row in zip(*columns, arrays["class_names"][arrays["y"]], strict=True)]


def zipped(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def adult_zip():
    arrays = at_hand("adult.npz")
    rows = words(arrays)
    train = [", ".join(row) for row, test in zip(rows, arrays["is_test"], strict=True) if not test]
    test = [", ".join(row) + "." for row, test in zip(rows, arrays["is_test"], strict=True) if test]
    texts = {
        "adult.data": "\n".join([*train, "", ""]),
        "adult.test": "\n".join(["|1x3 Cross validator", *test, "", ""]),
    }
    return texts, zipped(**texts)


def diabetes_zip():
    arrays = at_hand("diabetes130.npz")
    header = [*arrays["columns"], "readmitted"]
    text = "".join(",".join(row) + "\r\n" for row in [header, *words(arrays)])
    texts = {"dataset_diabetes/diabetic_data.csv": text}
    return texts, zipped(**texts)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "make"), [("adult", adult_zip), ("diabetes", diabetes_zip)])
def test_the_published_files_hold_the_same(tmp_path, monkeypatch, name, make):
    texts, archive = make()
    for member, text in texts.items():
        assert hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() == PUBLISHED[member]
    ours = datasets.load(name, split=1)
    (tmp_path / classes.TABLES[name].file).write_bytes(archive)
    monkeypatch.setenv("GPZOO_DATA", str(tmp_path))
    theirs = datasets.load(name, split=1)
    for part in ("X_train", "y_train", "X_test", "y_test"):
        np.testing.assert_array_equal(getattr(ours, part), getattr(theirs, part))
    assert list(theirs.sha256) == [classes.TABLES[name].file] and theirs.source != ours.source
    damaged = archive.replace(b"Private", b"Privata") if name == "adult" else archive[:-200]
    (tmp_path / classes.TABLES[name].file).write_bytes(damaged)
    with pytest.raises(DatasetError, match="is damaged or is another version"):
        datasets.load(name)


@pytest.mark.slow
def test_connect4_from_its_text(tmp_path, monkeypatch):
    import gzip

    arrays = at_hand("connect4.npz")
    ours = datasets.load("connect4")
    header = "\t".join([*arrays["columns"], "target"])
    table = np.column_stack([arrays["X"], arrays["y"]])
    lines = [header, *("\t".join(map(str, row)) for row in table.tolist()), ""]
    (tmp_path / "connect_4.tsv.gz").write_bytes(gzip.compress("\n".join(lines).encode(), 1))
    monkeypatch.setenv("GPZOO_DATA", str(tmp_path))
    np.testing.assert_array_equal(datasets.load("connect4").X_train, ours.X_train)


def test_covtype_text():
    import gzip

    rows = np.random.RandomState(0).randint(0, 9, (5, 55))
    text = "\n".join(",".join(map(str, row)) for row in rows.tolist())
    arrays, categories = classes._read_covtype(io.BytesIO(gzip.compress(text.encode())), 5)
    np.testing.assert_array_equal(arrays["X"], rows[:, :-1])
    np.testing.assert_array_equal(arrays["y"], (rows[:, -1] - 1).astype(np.uint8))
    assert categories == set() and len(arrays["columns"]) == 54


@pytest.mark.slow_but(name=["adult", "connect4", "covtype-subset"])
@pytest.mark.parametrize(
    ("name", "rows", "columns", "num_classes"),
    [
        ("adult", 48_842, 82, 2),
        ("connect4", 67_557, 126, 3),
        ("diabetes", 101_766, 210, 3),
        ("covtype-subset", 92_962, 54, 7),
    ],
)
def test_tables(name, rows, columns, num_classes):
    at_hand(classes.TABLES[name].npz)
    data = datasets.load(name)
    assert data.sizes == {
        "train": len(data.X_train),
        "test": rows - len(data.X_train),
        "input_shape": [columns],
        "classes": num_classes,
    }
    assert abs(len(data.X_test) / rows - 0.1) < 0.005
    assert data.X_train.dtype == np.float32 and data.y_train.dtype == np.int32
    other = datasets.load(name, split=1)
    assert len(other.y_train) != len(data.y_train) or not np.array_equal(other.y_train, data.y_train)
    if name == "diabetes":
        return
    both = np.concatenate([data.X_train.sum(0) + data.X_test.sum(0)])
    np.testing.assert_allclose(both, other.X_train.sum(0) + other.X_test.sum(0), rtol=1e-3)


@pytest.mark.slow
def test_patients_are_not_on_both_sides():
    arrays = at_hand("diabetes130.npz")
    data = datasets.load("diabetes")
    order = np.random.RandomState(0).permutation
    patients = arrays["X"][:, list(arrays["columns"]).index("patient_nbr")]
    distinct, groups = np.unique(patients, return_inverse=True)
    held = np.isin(groups, order(len(distinct))[: round(0.1 * len(distinct))])
    assert held.sum() == len(data.y_test)
    np.testing.assert_array_equal(arrays["y"][held], data.y_test)
    np.testing.assert_array_equal(groups[~held], data.groups)
    few = data.standardised().subset(1000).classes(0, 1)
    assert len(few.groups) == len(few.y_train) < 1000
    with pytest.raises(ValueError, match="groups has 3 rows but y_train has"):
        replace(few, groups=np.arange(3))


def test_options_and_files_that_are_not_there(tmp_path, monkeypatch):
    at_hand("adult.npz")
    with pytest.raises(ValueError, match="split must be 0 or more"):
        datasets.load("adult", split=-1)
    monkeypatch.setenv("GPZOO_DATA", str(tmp_path))
    with pytest.raises(DatasetError, match=r"no public home: put it into the folder.*load 'covtype', the whole"):
        datasets.load("covtype-subset")
