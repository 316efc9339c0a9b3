"""Readers of published files: tiny files give the arrays they hold, and damaged ones are refused in one line."""

import bz2
import gzip
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpzoo.errors import DatasetError
from gpzoo.reproductions import datasets
from gpzoo.reproductions.datasets import files, images, large, registry, taxi, uci
from tests.reproductions.datasets import made

HTML = b"<html><body>moved</body></html>\n"


def rows_of(data, *, ordered=False) -> np.ndarray:
    """All rows of a data set with their targets last; sorted, unless the order is of interest."""
    X = np.concatenate([data.X_train, data.X_test]).reshape(len(data.y_train) + len(data.y_test), -1)
    table = np.column_stack([X, np.concatenate([data.y_train, data.y_test])])
    return table if ordered else table[np.lexsort(table.T)]


def refused(name: str, *said: str, **options) -> None:
    with pytest.raises(DatasetError) as caught:
        datasets.load(name, **options)
    message = str(caught.value)
    assert all(part in message for part in said) and message.isprintable(), message


# -- images ------------------------------------------------------------------------------------------------------------


def test_mnist(put, folder):
    contents, (X, y, X_test, y_test) = made.mnist()
    put("mnist", contents)
    data = datasets.load("mnist")
    np.testing.assert_array_equal(np.rint(data.X_train[..., 0] * 255), X)
    np.testing.assert_array_equal(np.rint(data.X_test[..., 0] * 255), X_test)
    np.testing.assert_array_equal(data.y_train, y)
    np.testing.assert_array_equal(data.y_test, y_test)
    assert data.X_train.dtype == np.float32 and data.y_train.dtype == np.int32
    assert list(data.sha256) == list(contents) and data.source == f"file in {folder}"


@pytest.mark.parametrize("published", [False, True])
def test_cifar10_is_unpacked_once(put, cache, folder, monkeypatch, published):
    packed, tar, pixels, labels = made.cifar10()
    records = np.concatenate([labels[:, None], pixels.reshape(12, -1)], axis=1)
    put("cifar10", tar if published else packed, content=made_sha256(records))
    monkeypatch.setattr(images, "_CIFAR10_TRAIN", 8)
    first = datasets.load("cifar10")
    assert first.source == f"file in {folder}" and [path.name for path in cache.iterdir()] == ["cifar10.npy"]
    assert list(first.sha256) == list(tar if published else packed)
    for path in folder.iterdir():
        path.unlink()
    second = datasets.load("cifar10")
    assert second.source == "kept in the cache folder" and second.sha256 == {"cifar10.npy": made_sha256(records)}
    for data in (first, second):
        assert data.X_train.shape == (8, 32, 32, 3) and data.X_train.dtype == np.float32
        np.testing.assert_array_equal(np.concatenate([data.X_train, data.X_test]), pixels / np.float32(255))
        np.testing.assert_array_equal(np.concatenate([data.y_train, data.y_test]), labels)


def made_sha256(array: np.ndarray) -> str:
    import hashlib

    return hashlib.sha256(np.ascontiguousarray(array)).hexdigest()


def test_house_numbers(put):
    contents, pixels = made.svhn()
    put("svhn", contents)
    data = datasets.load("svhn")
    np.testing.assert_array_equal(data.X_train, pixels["train"] / np.float32(255))
    np.testing.assert_array_equal(data.X_test, pixels["test"] / np.float32(255))
    assert data.y_train.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]  # class 10 is the digit 0


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("rectangles-images", "rectangles_images.zip"),
        ("mnist-rot", "mnist_rotation_new.zip"),
        ("rectangles-original", "rectangles.zip"),
    ],
)
def test_images_as_text(put, folder, monkeypatch, name, file):
    contents, table, facts = made.images(file, "train", "test")
    put(name, contents, **facts)
    if name == "rectangles-original":
        refused(name, f"{file} is damaged", f"expected sha256 {registry.FACTS[name]['content']}", "Delete it")
        arrays = {
            "X_train": table[:3, :-1],
            "X_test": table[3:, :-1],
            "y_train": table[:3, -1],
            "y_test": table[3:, -1],
        }
        arrays = {key: a.reshape(-1, 28, 28, 1) if key[0] == "X" else a.astype(np.int32) for key, a in arrays.items()}
        put(name, contents, **facts, content=made.fingerprint(arrays))
    data = datasets.load(name)
    np.testing.assert_array_equal(rows_of(data, ordered=True), table)
    assert data.X_train.shape == (3, 28, 28, 1) and data.X_train.dtype == np.float32 and data.y_test.dtype == np.int32
    assert data.sha256 == {file: made_sha256(np.frombuffer(contents[file], np.uint8))}
    if name != "rectangles-original":
        (folder / file).unlink()
        again = datasets.load(name)
        np.testing.assert_array_equal(rows_of(again, ordered=True), table)
        assert again.sha256 == data.sha256 and again.source == "kept in the cache folder"


def test_digits_are_rotated_where_the_original_is_absent(put, monkeypatch):
    contents, _ = made.mnist()
    put("mnist", contents)
    monkeypatch.setitem(registry.FACTS["mnist-rot"], "rows", [3, 5])
    data = datasets.load("mnist-rot-generated")
    assert data.name == "mnist-rot-generated" and data.sizes["train"] == 3 and data.sizes["test"] == 5
    assert data.source.startswith("rotated MNIST, file in") and data.X_train.max() <= 1
    np.testing.assert_array_equal(data.X_train, datasets.load("mnist-rot-generated").X_train)
    assert not np.array_equal(data.X_train, datasets.load("mnist-rot-generated", seed=1).X_train)


# -- tables of the UCI collection --------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [0, 2])
@pytest.mark.parametrize("packed", [False, True])
def test_regression_tables_have_fixed_splits(put, split, packed):
    arrays, texts, facts = made.yacht()
    put("uci/yacht", {"uci_yacht.npz": made.npz(**arrays)} if packed else texts, **facts)
    data = datasets.load("uci/yacht", split=split)
    test = arrays[f"test_{split}"]
    train = [i for i in range(10) if i not in test]
    np.testing.assert_array_equal(data.X_train, arrays["X"][train])
    np.testing.assert_array_equal(data.y_train, arrays["y"][train])
    np.testing.assert_array_equal(data.X_test, arrays["X"][test])
    np.testing.assert_array_equal(data.y_test, arrays["y"][test])
    assert data.X_train.dtype == data.y_train.dtype == np.float64
    assert list(data.sha256) == (["uci_yacht.npz"] if packed else list(texts))


@pytest.mark.parametrize("content", [b"1 2 3\n4 5\n", b"<html>moved</html>", b"1 2 3 4\n" * 10])
def test_other_text_than_the_published_is_refused(put, content):
    _, texts, facts = made.yacht()
    put("uci/yacht", texts | {"uci_yacht/data.txt": content}, **facts)
    refused("uci/yacht", "uci_yacht is damaged", "Delete it")


CLASSES = {
    "adult": (
        {
            "adult.zip": made.zipped(
                {
                    "adult.data": b"\n".join([b"39, Private, 1" + b", 2" * 11 + b", >50K"] * 3 + [b""]),
                    "adult.test": b"|1x3\n" + b"\n".join([b"40, ?, 1" + b", 2" * 11 + b", <=50K."] * 2),
                }
            )
        },
        [1, 1, 1, 0, 0],
    ),
    "diabetes": (
        {
            "diabetes130.zip": made.zipped(
                {"d/diabetic_data.csv": b"patient_nbr,b,readmitted\n1,x,NO\n2,?,>30\n3,y,<30\n"}
            )
        },
        [0, 2, 1],
    ),
    "connect4": (
        {"connect_4.tsv.gz": gzip.compress(b"a\t" * 42 + b"target\n" + (b"1\t" * 42 + b"2\n") * 3)},
        [2, 2, 2],
    ),
    "covtype": (
        {"covtype.data.gz": gzip.compress((b"3," * 54 + b"5\n") * 4)},
        [4, 4, 4, 4],
    ),
}


@pytest.mark.parametrize("name", CLASSES)
def test_tables_with_classes_from_their_published_files(put, monkeypatch, name):
    contents, labels = CLASSES[name]
    put(name, contents, rows=len(labels))
    if "content" in registry.FACTS[name]:
        refused(name, "is damaged or is another version", registry.FACTS[name]["content"], "Delete it")
    seen = []
    monkeypatch.setattr(uci.Files, "check", lambda self, sha256: seen.append(sha256))
    data = datasets.load(name)
    assert len(data.y_train) + len(data.y_test) == len(labels)
    assert sorted([*data.y_train, *data.y_test]) == sorted(labels) and data.y_train.dtype == np.int32
    assert data.X_train.dtype == np.float32 and list(data.sha256) == list(contents)
    # Constant columns of codes are ones; a missing value is a category of its own.
    width = {"adult": 14, "diabetes": 1, "connect4": 42, "covtype": 54}[name]
    assert data.X_train.shape[1] == width and len(seen) == ("content" in registry.FACTS[name])


def test_codes_of_categories():
    rows = [["5", "b", "?", "no"], ["7", "a", "x", "yes"], ["5", "b", "y", "no"]]
    arrays, categories = uci._coded(rows, ["n", "c", "m"], ("no", "yes").index)
    np.testing.assert_array_equal(arrays["X"], [[5, 1, -1], [7, 0, 0], [5, 1, 1]])
    assert categories == {"c", "m"} and arrays["y"].tolist() == [0, 1, 0]


def test_options_and_files_that_are_not_there(folder):
    with pytest.raises(ValueError, match="split must be 0 or more"):
        datasets.load("adult", split=-1)
    refused("covtype-subset", "no public home: put it into the folder", "or load 'covtype', the whole")


# -- large tables ------------------------------------------------------------------------------------------------------


def numbers(name: str) -> np.ndarray:
    table = np.random.RandomState(0).standard_normal((55, registry.FACTS[name]["columns"])).astype(np.float32)
    table[:, 0] = np.arange(55) + 1922 if name == "year" else np.arange(55) % 2
    return table


def packed(name: str, text: bytes) -> dict[str, bytes]:
    content = made.zipped({"YearPredictionMSD.txt": text}) if name == "year" else gzip.compress(text, mtime=0)
    return {registry.FACTS[name]["files"][0]["path"]: content}


@pytest.mark.parametrize("name", ["year", "higgs", "susy"])
def test_text_is_read_split_and_kept(put, folder, cache, monkeypatch, name):
    table = numbers(name)
    contents = packed(name, made.text(table))
    put(name, contents, rows=55)
    data = datasets.load(name)
    expected = np.roll(table, -1, axis=1)
    np.testing.assert_array_equal(rows_of(data), expected[np.lexsort(expected.T)])
    assert data.sizes["train"] == 49 and data.sizes["test"] == 6 and data.X_train.dtype == np.float32
    assert data.y_train.dtype == (np.float32 if name == "year" else np.int32)
    order = [np.flatnonzero((table[:, 1:] == x).all(axis=1)).item() for x in data.X_train]
    assert order == sorted(order)
    for path in folder.iterdir():
        path.unlink()
    again = datasets.load(name)
    np.testing.assert_array_equal(rows_of(again, ordered=True), rows_of(data, ordered=True))
    assert again.source == "kept in the cache folder" and again.sha256 == data.sha256
    assert np.any(datasets.load(name, seed=1).X_test != data.X_test)
    if name == "year":
        monkeypatch.setattr(large, "YEAR_PUBLISHED_TRAIN", 40)
        published = datasets.load("year", split="published")
        np.testing.assert_array_equal(rows_of(published, ordered=True), expected)
        assert published.sizes["train"] == 40
        with pytest.raises(ValueError, match="split must be 'random' or 'published', got 'first'"):
            datasets.load("year", split="first")


def test_real_sizes_split_as_in_the_paper():
    assert registry.FACTS["year"]["rows"] * 9 // 10 == 463_810
    assert registry.FACTS["higgs"]["rows"] * 9 // 10 == 9_900_000


def damaged_texts():
    lines = made.text(numbers("year")).splitlines(keepends=True)
    short = [line.rsplit(b",", 1)[0] + b"\n" for line in lines]
    return {
        "a row less": (b"".join(lines[:-1]), "it has 54 rows of 91 numbers, not 55 of 91"),
        "a row more": (b"".join([*lines, lines[0]]), "it has 56 or more rows"),
        "cut off": (b"".join(lines)[:-200], "cannot be read"),
        "nan": (b"nan" + b"".join(lines)[4:], "a number is not finite"),
        "fewer columns": (b"".join(short), "55 rows of 90 numbers"),
        "no numbers": (HTML, "could not convert"),
        "empty": (b"", "cannot be read"),
    }


@pytest.mark.parametrize("kind", list(damaged_texts()))
def test_damaged_text_is_refused_and_not_kept(put, cache, kind):
    text, said = damaged_texts()[kind]
    put("year", packed("year", text), rows=55)
    refused("year", "YearPredictionMSD.txt.zip is damaged", said, "Delete it")
    assert not cache.exists()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda content: content[: len(content) // 2], "File is not a zip file"),
        (lambda content: HTML, "File is not a zip file"),
        (lambda content: made.zipped({"../../readme": b""}), "it has no YearPredictionMSD.txt"),
        (lambda content: content.replace((55_000).to_bytes(4, "little"), bytes(4)), "unpacks to"),
    ],
)
def test_archives_that_are_no_archives_or_too_large_are_refused(put, folder, monkeypatch, damage, said):
    monkeypatch.setattr(files, "_MOST_TEXT", 1000)
    contents = {file: damage(content) for file, content in packed("year", made.text(numbers("year"))).items()}
    put("year", contents, rows=55)
    refused("year", "is damaged or is another version", said)
    assert [path.name for path in folder.parent.iterdir()] == ["my data"] and len(list(folder.iterdir())) == 1


@pytest.fixture
def few_flights(monkeypatch):
    monkeypatch.setattr(large, "AIRLINE_TRAIN", 5)
    monkeypatch.setattr(large, "AIRLINE_TEST", 2)


def test_flights_with_missing_values_or_of_unknown_planes_are_dropped(put, folder, few_flights):
    contents = made.airline()
    put("airline", contents, rows=[len(made.FLIGHTS), 99])
    data = datasets.load("airline")
    np.testing.assert_array_equal(rows_of(data, ordered=True), made.COMPLETE[:7])
    assert data.sizes == {"train": 5, "test": 2, "input_shape": [8]} and list(data.sha256) == list(contents)
    assert data.X_train.dtype == data.y_train.dtype == np.float32 and data.X_train.flags.c_contiguous
    (folder / "airline/2008.csv.bz2").unlink()
    drawn = datasets.load("airline", seed=0)
    assert drawn.source == "kept in the cache folder" and drawn.sha256 == data.sha256
    assert {tuple(row) for row in rows_of(drawn)} <= {tuple(row) for row in made.COMPLETE}
    late = datasets.load("airline-delayed")
    assert late.sizes == {"train": 7, "test": 1, "input_shape": [8], "classes": 2} and late.y_train.dtype == np.int32
    known = {tuple(row[:8]): row[8] > 0 for row in made.COMPLETE}
    assert {tuple(row[:8]): bool(row[8]) for row in rows_of(late)} == known


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("2008.csv.bz2", bz2.compress(HTML), "cannot be read"),
        ("2008.csv.bz2", HTML, "cannot be read"),
        ("2008.csv.bz2", made.airline(made.FLIGHTS[:-1])["airline/2008.csv.bz2"], "has 17 flights"),
        ("2008.csv.bz2", made.airline([*made.FLIGHTS[:-1], "2008,1,3"])["airline/2008.csv.bz2"], "cannot be read"),
        ("2008.csv.bz2", made.airline(made.FLIGHTS[:6] * 3)["airline/2008.csv.bz2"], "18 flights, 6 of them complete"),
        ("2008.csv.bz2", bz2.compress(b"1," * 2_000_000), "cannot be read"),
        ("plane-data.csv", HTML, "has no plane whose year is known"),
        ("plane-data.csv", b"tailnum,year\n", "has no plane whose year is known"),
        ("plane-data.csv", b"\xff\xfe\xff", "cannot be read"),
    ],
)
def test_damaged_flights_and_planes_are_refused(put, cache, few_flights, file, content, said):
    put("airline", made.airline() | {f"airline/{file}": content}, rows=[len(made.FLIGHTS)])
    refused("airline", "airline is damaged", said, "Delete it")
    assert not cache.exists()


# -- taxi --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("year, times", [(2009, "text"), (2010, "text"), (2015, "us"), (2015, "ns")])
def test_journeys_are_filtered_from_parquet(folder, year, times):
    (folder / "yellow_tripdata_2009-01.parquet").write_bytes(made.parquet(year, times))
    data = datasets.load("taxi")
    np.testing.assert_array_equal(rows_of(data), made.LEFT[np.lexsort(made.LEFT.T)])
    assert data.sizes == {"train": 3, "test": 1, "input_shape": [9]} and data.X_train.dtype == np.float32
    assert data.source == f"file in {folder}" and list(data.sha256) == ["yellow_tripdata_2009-01.parquet"]


@pytest.mark.parametrize("year", [2009, 2010, 2015])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_journeys_are_filtered_from_text(folder, year, end):
    lines = made.csv_lines(year)
    content = end.join([*lines[:5], lines[-1] + ",too,many", *lines[5:], ""]).encode()
    (folder / "yellow_tripdata_2014-03.csv").write_bytes(content)
    # The mark that some editors put in front, and letters that are no UTF-8, change nothing.
    (folder / "yellow_tripdata_2009-02.csv").write_bytes(b"\xef\xbb\xbf" + content.replace(b"VTS", b"\x80"))
    for month in ("2014-03", "2009-02"):
        data = datasets.load("taxi", months=[month])
        np.testing.assert_array_equal(rows_of(data), made.LEFT[np.lexsort(made.LEFT.T)])


def test_months_are_joined_kept_split_and_rewritten(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(taxi, "MOST_TEST", 2)
    monkeypatch.setattr(taxi, "_BATCH", 100)
    (folder / "yellow_tripdata_2009-01.parquet").write_bytes(made.parquet(repeat=50))
    (folder / "yellow_tripdata_2014-03.csv").write_text("\n".join(made.csv_lines(2010)))
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


@pytest.mark.parametrize(
    "months", [["2016-07"], ["2008-12"], ["2010-13"], [201001], "2010-01", [], ["2010-01", "2010-01"]]
)
def test_months_that_make_no_sense_are_refused(folder, months):
    for call in (lambda: datasets.load("taxi", months=months), lambda: taxi.taxi_parquet(months, folder)):
        with pytest.raises(ValueError, match=r"from '2009-01' to '2016-06'.*each given once.*got"):
            call()


ZONES = {key: values for key, values in made.journeys(2015).items() if not key.endswith("itude")}


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("2009-01.parquet", made.parquet()[:900], "cannot be read"),
        ("2009-01.parquet", HTML, "cannot be read"),
        ("2009-01.parquet", made.parquet(table={k: v[4:] for k, v in made.journeys(2009).items()}), "0 of which pass"),
        ("2009-01.parquet", made.parquet(table={"a": [1]}), "no columns for pickup"),
        ("2015-01.parquet", made.parquet(table=ZONES), "hold zones instead"),
        ("2014-01.csv", HTML, "no columns for pickup"),
        ("2014-01.csv", "\n".join(made.csv_lines(2010))[:-30].encode(), "cannot be read"),
        ("2015-01.csv", "\n".join(made.csv_lines(2015)).encode(), "12 journeys, 4 of which pass the filters; 12748986"),
    ],
)
def test_damaged_journeys_are_refused_and_nothing_is_left_behind(folder, cache, tmp_path, file, content, said):
    (folder / f"yellow_tripdata_{file}").write_bytes(content)
    for call in (lambda months: datasets.load("taxi", months=months), lambda m: taxi.taxi_parquet(m, tmp_path / "out")):
        with pytest.raises(DatasetError, match=rf"yellow_tripdata_{file} is damaged.*{said}"):
            call([file[:7]])
    assert not cache.exists() and not (tmp_path / "out").exists()


def test_a_missing_pyarrow_and_a_missing_month_are_explained(folder, tmp_path, monkeypatch):
    refused("taxi", "offered until May 2022; months up to 2010-12 do not", str(folder), months=["2012-05"])
    (folder / "yellow_tripdata_2009-01.parquet").write_bytes(made.parquet())
    (tmp_path / "file").touch()
    with pytest.raises(DatasetError, match=r"cannot write .*file/out/taxi_2009-01.parquet: Not a directory"):
        taxi.taxi_parquet(["2009-01"], tmp_path / "file" / "out")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for call in (lambda: datasets.load("taxi"), lambda: taxi.taxi_parquet(["2009-01"], folder)):
        with pytest.raises(ImportError, match=r"pip install 'gpzoo\[parquet\]'"):
            call()
