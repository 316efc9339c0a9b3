"""Readers of published files: tiny files give the arrays they hold, and damaged ones are refused in one line."""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpzoo.errors import DatasetError
from gpzoo.reproductions import datasets
from gpzoo.reproductions.datasets import files, large, registry, taxi
from tests.reproductions.datasets import made
from tests.reproductions.datasets.made import HTML, refused


def rows_of(data, *, ordered=False) -> np.ndarray:
    """All rows of a data set with their targets last; sorted, unless the order is of interest."""
    X = np.concatenate([data.X_train, data.X_test]).reshape(len(data.y_train) + len(data.y_test), -1)
    table = np.column_stack([X, np.concatenate([data.y_train, data.y_test])])
    return table if ordered else table[np.lexsort(table.T)]


@pytest.fixture(autouse=True)
def few_flights(monkeypatch):
    monkeypatch.setattr(large, "AIRLINE_TRAIN", 6)
    monkeypatch.setattr(large, "AIRLINE_TEST", 2)


@pytest.mark.parametrize("case", made.READERS)
def test_files_give_the_arrays_that_they_hold(put, folder, case):
    name = case.split()[0]
    contents, *_ = files_of = made.READERS[case]()
    rows, data = put(name, *files_of), datasets.load(name)
    np.testing.assert_array_equal(rows_of(data), rows[np.lexsort(rows.T)])
    kind = np.float64 if name.startswith("uci") else np.float32
    assert data.X_train.dtype == kind and data.y_train.dtype in (kind, np.int32)
    assert data.source.startswith(f"file in {folder}") and list(data.sha256) == list(contents)
    if "kept" in registry.FACTS[name]:
        for path in contents:
            (folder / path).unlink()
        again = datasets.load(name)
        np.testing.assert_array_equal(rows_of(again, ordered=True), rows_of(data, ordered=True))
        # The published hash of the arrays stands for either set of files.
        assert again.source == "kept in the cache folder" and (name == "cifar10" or again.sha256 == data.sha256)


def test_splits_are_those_that_are_asked_for(put, monkeypatch):
    rows = put("uci/yacht", *made.yacht(True))
    for split in (0, 2):
        data, test = datasets.load("uci/yacht", split=split), [2 * split + 1, split]
        np.testing.assert_array_equal(data.X_test, rows[test, :-1])
        np.testing.assert_array_equal(data.y_train, np.delete(rows[:, -1], test))
    rows = put("year", *made.READERS["year"]())
    one, other = (datasets.load("year", seed=seed) for seed in (0, 1))
    assert one.sizes["train"] == 49 and one.sizes["test"] == 6 and np.any(one.X_test != other.X_test)
    monkeypatch.setattr(large, "YEAR_PUBLISHED_TRAIN", 40)
    published = datasets.load("year", split="published")
    np.testing.assert_array_equal(rows_of(published, ordered=True), rows)
    assert published.sizes["train"] == 40
    put("airline", *made.airline())
    np.testing.assert_array_equal(rows_of(datasets.load("airline"), ordered=True), made.COMPLETE)
    assert np.any(rows_of(datasets.load("airline", seed=0), ordered=True) != made.COMPLETE)


def test_digits_are_rotated_where_the_original_is_absent(put, monkeypatch):
    put("mnist", *made.mnist())
    monkeypatch.setitem(registry.FACTS["mnist-rot"], "rows", [3, 5])
    one, same, other = (datasets.load("mnist-rot-generated", seed=seed) for seed in (0, 0, 1))
    assert one.sizes["train"] == 3 and one.sizes["test"] == 5 and one.X_train.max() <= 1
    assert one.source.startswith("rotated MNIST, file in")
    assert one.sha256 == same.sha256 != other.sha256


ADULT = {
    "adult.data": b"39, Private, 1" + b", 2" * 11 + b", >50K\n\n",
    "adult.test": b"|1x3\n40, ?, 1" + b", 2" * 11 + b", <=50K.\n",
}
PATIENTS = "patient_nbr,b,readmitted\n" + "".join(f"{k},x,NO\n{k},?,>30\n{k},y,<30\n" for k in range(20))
DIABETES = {"diabetes130.zip": made.zipped({"d/diabetic_data.csv": PATIENTS.encode()})}
CONNECT4 = b"a\t" * 42 + b"target\n" + (b"1\t" * 42 + b"2\n") * 3
#: Of tables with classes: rows, files, the number of features, and labels.
CLASSES = {
    "adult": (2, {"adult.zip": made.zipped(ADULT)}, 14, [0, 1]),
    "diabetes": (60, DIABETES, 1, [0] * 20 + [1] * 20 + [2] * 20),
    "connect4": (3, made.packed("connect_4.tsv.gz", CONNECT4), 42, [2] * 3),
    "covtype": (4, made.packed("covtype.data.gz", (b"3," * 54 + b"5\n") * 4), 54, [4] * 4),
}


@pytest.mark.parametrize("name", CLASSES)
def test_tables_with_classes_from_their_published_files(put, monkeypatch, name):
    rows, contents, width, labels = CLASSES[name]
    put(name, contents, {"rows": rows})
    if "content" in registry.FACTS[name]:
        refused(name, "is damaged or is another version", registry.FACTS[name]["content"], "Delete it")
    monkeypatch.setattr(files.Files, "check", lambda self, sha256: None)
    data = datasets.load(name)
    assert sorted([*data.y_train, *data.y_test]) == labels and data.y_train.dtype == np.int32
    # Constant columns of codes are ones, a missing value is a category, and rare categories are one.
    assert data.X_train.shape[1] == width and data.X_train.dtype == np.float32 and list(data.sha256) == list(contents)
    if name == "diabetes":
        # The rows of a patient are on one side, and know each other.
        assert len(data.y_test) == 6 and set(np.bincount(data.groups)) == {0, 3}
        assert len(data.subset(10).groups) == 10


# -- files that are refused --------------------------------------------------------------------------------------------

YEAR, FLIGHTS, PLANES = "YearPredictionMSD.txt.zip", "airline/2008.csv.bz2", "airline/plane-data.csv"
LINES = made.text(np.arange(55 * 91).reshape(55, 91) + 0.5).splitlines(keepends=True)
TEXTS = [
    (b"".join(LINES[:-1]), "it has 54 rows of 91 numbers, not 55 of 91"),
    (b"".join([*LINES, LINES[0]]), "it has 56 or more rows"),
    (b"".join(LINES)[:-20], "cannot be read"),
    (b"nan" + b"".join(LINES)[3:], "a number is not finite"),
    (bytes(60_000), "unpacks to 60,000 bytes"),
]
ZONES = {key: values for key, values in made.journeys(2015).items() if not key.endswith("itude")}
SHORT = {key: values[4:] for key, values in made.journeys(2009).items()}
#: The files of a data set that are whole, and its facts.
WHOLE = {"year": ({}, {"rows": 55}), "uci/yacht": made.yacht(True), "airline": made.airline(), "taxi": ({}, {})}
DAMAGED = [
    *(("year", YEAR, made.packed(YEAR, content)[YEAR], said) for content, said in TEXTS),
    ("year", YEAR, made.packed(YEAR, b"".join(LINES))[YEAR][:2000], "File is not a zip file"),
    ("year", YEAR, made.zipped({"../../readme": b""}), "it has no YearPredictionMSD.txt"),
    ("uci/yacht", "uci_yacht/data.txt", b"1 2 3\n4 5\n", "cannot be read"),
    ("uci/yacht", "uci_yacht/data.txt", b"1 2 3 4\n" * 10, "of the arrays"),
    ("airline", FLIGHTS, HTML, "cannot be read"),
    ("airline", FLIGHTS, made.airline(made.FLIGHTS[1:-1])[0][FLIGHTS], "has 17 flights"),
    ("airline", FLIGHTS, made.airline(made.FLIGHTS[1:7] * 3)[0][FLIGHTS], "18 flights, 6 of them"),
    ("airline", PLANES, HTML, "has no plane whose year is known"),
    ("taxi", "yellow_tripdata_2009-01.parquet", made.parquet()[:900], "cannot be read"),
    ("taxi", "yellow_tripdata_2009-01.parquet", made.parquet(table=SHORT), "0 of which pass"),
    ("taxi", "yellow_tripdata_2015-01.parquet", made.parquet(table=ZONES), "hold zones instead"),
    ("taxi", "yellow_tripdata_2014-01.csv", HTML, "no columns for pickup"),
    ("taxi", "yellow_tripdata_2014-01.csv", made.csv(2010)[:-30], "cannot be read"),
    ("taxi", "yellow_tripdata_2015-01.csv", made.csv(2015), "12 journeys, 4 of which pass the filters; 12748986"),
]


@pytest.mark.parametrize("name, file, content, said", DAMAGED)
def test_damaged_files_are_refused_and_nothing_is_left_behind(put, folder, monkeypatch, name, file, content, said):
    monkeypatch.setattr(files, "_MOST_TEXT", 50_000)
    whole, *facts = WHOLE[name]
    put(name, whole | {file: content}, *facts)
    before, options = sorted(folder.parent.rglob("*")), {"months": [file[16:23]]} if name == "taxi" else {}
    refused(name, f"{file.split('/')[0]} is damaged", said, "Delete it", **options)
    if name == "taxi":
        with pytest.raises(DatasetError, match=f"{file} is damaged.*{said}"):
            taxi.taxi_parquet(options["months"], folder.parent / "out")
    assert sorted(folder.parent.rglob("*")) == before


def test_a_part_without_a_home_names_the_whole(folder):
    refused("covtype-subset", "no public home: put it into the folder", "or load 'covtype', the whole")


# -- journeys of several months ----------------------------------------------------------------------------------------


def test_months_are_joined_kept_split_and_rewritten(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(taxi, "MOST_TEST", 2)
    monkeypatch.setattr(taxi, "_BATCH", 100)
    (folder / "yellow_tripdata_2009-01.parquet").write_bytes(made.parquet(repeat=50))
    (folder / "yellow_tripdata_2014-03.csv").write_bytes(made.csv(2010))
    months, out = ["2014-03", "2009-01"], tmp_path / "new" / "folder"
    data = datasets.load("taxi", months=months)
    assert data.sizes["test"] == 2 and data.sizes["train"] == 51 * len(made.LEFT) - 2 and len(data.sha256) == 2
    paths = taxi.taxi_parquet(months, str(out))
    assert paths == [out / "taxi_2014-03.parquet", out / "taxi_2009-01.parquet"] and len(list(out.iterdir())) == 2
    for path, repeat in zip(paths, (1, 50), strict=True):
        table = pq.read_table(path)
        assert table.column_names == [*taxi.FEATURES, taxi.TARGET] and set(table.schema.types) == {pa.float32()}
        np.testing.assert_array_equal(np.column_stack(table.columns), np.tile(made.LEFT, (repeat, 1)))
    assert pq.ParquetFile(paths[1]).metadata.num_row_groups == 2
    for path in folder.iterdir():
        path.unlink()
    assert taxi.taxi_parquet(months, out) == paths
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    again = datasets.load("taxi", months=months)
    np.testing.assert_array_equal(rows_of(again, ordered=True), rows_of(data, ordered=True))
    assert again.sha256 == data.sha256 and again.source == "kept in the cache folder"


CALLS = (lambda months, to: datasets.load("taxi", months=months), taxi.taxi_parquet)


@pytest.mark.parametrize("months", [["2016-07"], ["2010-13"], [201001], "2010-01", [], ["2010-01", "2010-01"]])
@pytest.mark.parametrize("call", CALLS)
def test_months_that_make_no_sense_are_refused(folder, call, months):
    with pytest.raises(ValueError, match=r"from '2009-01' to '2016-06'.*each given once.*got"):
        call(months, folder)


def test_a_missing_pyarrow_and_a_missing_month_are_explained(folder, tmp_path, monkeypatch):
    refused("taxi", "offered until May 2022; months up to 2010-12 do not", str(folder), months=["2012-05"])
    (folder / "yellow_tripdata_2009-01.parquet").write_bytes(made.parquet())
    (tmp_path / "file").touch()
    with pytest.raises(DatasetError, match=r"cannot write .*file/out/taxi_2009-01.parquet: Not a directory"):
        taxi.taxi_parquet(["2009-01"], tmp_path / "file" / "out")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for call in CALLS:
        with pytest.raises(ImportError, match=r"pip install 'gpzoo\[parquet\]'"):
            call(["2009-01"], folder)
