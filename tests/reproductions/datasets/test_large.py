"""The large data sets, from tiny files in their published formats, and their generated twins; all without network."""

import bz2
import gzip
import hashlib
import io
import json
import sys
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pooch
import pytest
import requests
import threadpoolctl

from gpzoo.errors import DatasetError
from gpzoo.reproductions import datasets
from gpzoo.reproductions.datasets import files, icml2007, in_memory, large, taxi, unpacking

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

TWINS = ("rectangles-images", "year", "airline", "airline-delayed", "taxi", "higgs", "susy")
HTML = b"<html><body>moved</body></html>\n"


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path, cache, monkeypatch):
    """An empty data folder and an empty cache folder, and a network that is down."""

    def down(self, url, output_file, pooch_, check_only=False):
        raise requests.ConnectionError(f"no route to {url}")

    path = tmp_path / "data"
    path.mkdir()
    monkeypatch.setenv("GPZOO_DATA", str(path))
    monkeypatch.setattr(pooch, "os_cache", lambda project: cache)
    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", down)
    return path


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def rows_of(data, *, ordered=False) -> np.ndarray:
    """All rows of a data set with their targets last; sorted, unless the order is of interest."""
    X = np.concatenate([data.X_train, data.X_test]).reshape(len(data.y_train) + len(data.y_test), -1)
    table = np.column_stack([X, np.concatenate([data.y_train, data.y_test])])
    return table if ordered else table[np.lexsort(table.T)]


# year, higgs and susy: numbers separated by commas


def text_of(table: np.ndarray) -> bytes:
    stream = io.StringIO()
    np.savetxt(stream, table, fmt="%.9g", delimiter=",")
    return stream.getvalue().encode()


def packed(name: str, text: bytes) -> bytes:
    if name != "year":
        return gzip.compress(text)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("YearPredictionMSD.txt", text)
    return stream.getvalue()


def numbers(name: str, rows: int = 55) -> np.ndarray:
    rng = np.random.RandomState(0)
    table = rng.standard_normal((rows, 1 + large.TEXTS[name].features)).astype(np.float32)
    table[:, 0] = rng.randint(1922, 2012, rows) if name == "year" else rng.randint(2, size=rows)
    return table


@pytest.fixture
def published(folder, monkeypatch):
    """``published(name, content)``: such a file in the data folder, of which the loader expects 55 rows."""
    monkeypatch.setattr(unpacking, "LINES", 20)
    monkeypatch.setattr(large, "YEAR_PUBLISHED_TRAIN", 40)

    def put(name: str, content: bytes, known: bool = True) -> Path:
        digest = sha256(content) if known and name != "year" else large.TEXTS[name].sha256
        monkeypatch.setitem(large.TEXTS, name, replace(large.TEXTS[name], rows=55, sha256=digest))
        path = folder / large.TEXTS[name].file
        path.write_bytes(content)
        return path

    return put


@pytest.mark.parametrize("name", ["year", "higgs", "susy"])
def test_text_is_read_split_and_kept(published, folder, cache, name):
    table = numbers(name)
    content = packed(name, text_of(table))
    path = published(name, content)
    data = datasets.load(name)
    expected = np.roll(table, -1, axis=1)
    np.testing.assert_array_equal(rows_of(data), expected[np.lexsort(expected.T)])
    assert data.sizes["train"] == 49 and data.sizes["test"] == 6
    assert data.X_train.dtype == np.float32 and data.X_train.shape[1] == large.TEXTS[name].features
    assert data.y_train.dtype == (np.float32 if name == "year" else np.int32)
    assert data.is_classification == (name != "year")
    assert data.sha256 == {path.name: sha256(content)} and data.source == f"file in {folder}" and data.name == name
    order = [np.flatnonzero((table[:, 1:] == x).all(axis=1)).item() for x in data.X_train]
    assert order == sorted(order)

    path.unlink()
    again = datasets.load(name)
    np.testing.assert_array_equal(rows_of(again, ordered=True), rows_of(data, ordered=True))
    assert again.source == "kept in the cache folder" and again.sha256 == data.sha256
    other = datasets.load(name, seed=1)
    assert np.any(other.X_test != data.X_test)
    np.testing.assert_array_equal(rows_of(other), rows_of(data))
    assert name in {entry.name for entry in datasets.available() if entry.present}


def test_real_sizes_split_as_in_the_paper():
    assert large.TEXTS["year"].rows * 9 // 10 == 463_810
    assert large.TEXTS["higgs"].rows * 9 // 10 == 9_900_000


def test_years_have_a_published_split(published):
    table = numbers("year")
    published("year", packed("year", text_of(table)))
    data = datasets.load("year", split="published")
    np.testing.assert_array_equal(rows_of(data, ordered=True), np.roll(table, -1, axis=1))
    assert data.sizes["train"] == 40
    with pytest.raises(ValueError, match="split must be 'random' or 'published', got 'first'"):
        datasets.load("year", split="first")


def damaged_texts(name):
    text = text_of(numbers(name))
    lines = text.splitlines(keepends=True)
    cut = [*lines[:-1], lines[-1][: len(lines[-1]) // 2]]
    archive = packed(name, text)
    return {
        "54 rows": packed(name, b"".join(lines[:-1])),
        "there are more rows": packed(name, text + lines[0]),
        "cannot be read": packed(name, b"".join(cut)),
        "lines 1 to 20 hold something else": packed(name, b"nan" + text[text.index(b",") :]),
        "lines 41 to 55 hold something else": packed(
            name, b"".join(lines[:40]) + b"".join(line.rsplit(b",", 1)[0] + b"\n" for line in lines[40:])
        ),
        "a file that cannot be read (": archive[: len(archive) // 2],
        "cannot be read (": HTML,
        "could not convert": packed(name, HTML),
        "file that cannot": b"",
    }


@pytest.mark.parametrize("name", ["year", "higgs"])
@pytest.mark.parametrize("said", list(damaged_texts("year")))
def test_damaged_text_is_refused_and_not_kept(published, cache, name, said):
    path = published(name, damaged_texts(name)[said])
    if name == "higgs" and said == "file that cannot":
        said = "0 rows"
    with pytest.raises(DatasetError, match="Delete it") as caught:
        datasets.load(name)
    message = str(caught.value)
    assert all(part in message for part in (str(path), said, "expected 55 rows of")) and "\n" not in message
    assert not cache.exists()


def test_a_text_with_another_known_sum_is_refused_before_it_is_parsed(published, monkeypatch):
    path = published("higgs", packed("higgs", text_of(numbers("higgs"))), known=False)
    monkeypatch.setattr(np, "loadtxt", None)
    with pytest.raises(DatasetError, match=f"{path.name} is damaged.*expected sha256 {large.TEXTS['higgs'].sha256}"):
        datasets.load("higgs")


@pytest.mark.parametrize(
    "damage",
    [
        lambda array, note: array.write_bytes(array.read_bytes()[:-1] + b"!"),
        lambda array, note: array.write_bytes(array.read_bytes()[:200]),
        lambda array, note: note.write_text("{"),
        lambda array, note: note.write_text("[]"),
        lambda array, note: note.unlink(),
    ],
)
def test_a_damaged_cache_is_made_again(published, folder, cache, damage):
    published("susy", packed("susy", text_of(numbers("susy"))))
    data = datasets.load("susy")
    array, note = cache / "susy.npy", cache / "susy.npy.json"
    assert sorted(cache.iterdir()) == [array, note]
    good = array.read_bytes()
    damage(array, note)
    again = datasets.load("susy")
    np.testing.assert_array_equal(rows_of(again), rows_of(data))
    assert again.source == f"file in {folder}" and array.read_bytes() == good
    assert json.loads(note.read_text())["origin"] == data.sha256


@pytest.mark.parametrize(
    "name, places, urls",
    [
        ("year", ["YearPredictionMSD.txt.zip"], large.TEXTS["year"].urls),
        ("higgs", ["HIGGS.csv.gz"], large.TEXTS["higgs"].urls),
        ("susy", ["SUSY.csv.gz"], large.TEXTS["susy"].urls),
        ("airline", ["airline/plane-data.csv"], [large.PLANES_URL]),
        ("rectangles-images", ["rectangles_images.zip"], [icml2007.ARCHIVES["rectangles-images"].url]),
        ("mnist-rot", ["mnist_rotation_new.zip"], [icml2007.ARCHIVES["mnist-rot"].url]),
        ("taxi", ["yellow_tripdata_2009-01.parquet"], [f"{taxi.PARQUET_HOME}/yellow_tripdata_2009-01.parquet"]),
    ],
)
def test_without_network_the_message_says_what_was_tried_and_what_to_put_where(folder, cache, name, places, urls):
    with pytest.raises(DatasetError, match="ConnectionError") as caught:
        datasets.load(name)
    message = str(caught.value)
    assert all(part in message for part in (*urls, "GPZOO_DATA", *(str(folder / place) for place in places)))
    assert "\n" not in message and not cache.exists() and not any(path.is_file() for path in folder.rglob("*"))
    assert name not in {entry.name for entry in datasets.available() if entry.present}


# airline

PLANE_HEADER = "tailnum,type,manufacturer,issue_date,model,status,aircraft_type,engine_type,year"
PLANES = {"N1": "1998", "N2": "2008", "N3": "None", "N4": "0000", "N5": "2009", "N6": ""}
FLIGHT_HEADER = (
    "Year,Month,DayofMonth,DayOfWeek,DepTime,CRSDepTime,ArrTime,CRSArrTime,UniqueCarrier,FlightNum,TailNum,"
    "ActualElapsedTime,CRSElapsedTime,AirTime,ArrDelay,DepDelay,Origin,Dest,Distance,TaxiIn,TaxiOut,Cancelled,"
    "CancellationCode,Diverted,CarrierDelay,WeatherDelay,NASDelay,SecurityDelay,LateAircraftDelay"
)


def flight(day=3, departs="2003", arrives="2211", tail="N1", air="116", delay="-14"):
    return (
        f"2008,1,{day},4,{departs},1955,{arrives},2225,WN,335,{tail},128,150,{air},{delay},8,IAD,TPA,810,4,8,0,,0,"
        "NA,NA,NA,NA,NA"
    )


FLIGHTS = [
    flight(),
    flight(delay="NA", arrives="NA", air="NA"),
    flight(4, "2400", "5", "N2", "60", "300"),
    flight(departs="NA"),
    flight(air=""),
    *(flight(tail=tail) for tail in ("N3", "N4", "N5", "N6", "N7", "N99", "")),
    *(flight(day, "628", "804", "N1", "76", str(day)) for day in range(5, 11)),
]
COMPLETE = [[1, 3, 4, 1203, 1331, 116, 810, 10, -14], [1, 4, 4, 1440, 5, 60, 810, 0, 300]] + [
    [1, day, 4, 388, 484, 76, 810, 10, day] for day in range(5, 11)
]


@pytest.fixture
def flights(folder, monkeypatch):
    """The two files in the data folder, of which the loader expects 5 training and 2 test rows."""
    for name, value in {"AIRLINE_ROWS": (len(FLIGHTS), 99), "AIRLINE_TRAIN": 5, "AIRLINE_TEST": 2, "LINES": 4}.items():
        monkeypatch.setattr(large, name, value)
    planes = [PLANE_HEADER, *(f"{tail},,,,,,,,{made}" for tail, made in PLANES.items()), "N7"]
    (folder / "airline").mkdir()
    (folder / large.PLANES).write_text("\r\n".join(planes) + "\r\n")
    (folder / large.FLIGHTS).write_bytes(bz2.compress("\n".join([FLIGHT_HEADER, *FLIGHTS, ""]).encode()))
    return folder


def test_flights_are_late_from_the_first_minute_on(flights, cache):
    late = datasets.load("airline-delayed")
    assert late.sizes == {"train": 7, "test": 1, "input_shape": [8], "classes": 2} and late.y_train.dtype == np.int32
    known = {tuple(row[:8]): row[8] > 0 for row in COMPLETE}
    assert {tuple(row[:8]): bool(row[8]) for row in rows_of(late)} == known
    assert len({datasets.load("airline-delayed", seed=seed).y_test.tobytes() for seed in range(8)}) == 2


def test_flights_with_missing_values_or_of_unknown_planes_are_dropped(flights, cache):
    data = datasets.load("airline")
    np.testing.assert_array_equal(rows_of(data, ordered=True), COMPLETE[:7])
    assert data.sizes == {"train": 5, "test": 2, "input_shape": [8]} and len(large.AIRLINE_FEATURES) == 8
    assert data.X_train.dtype == data.y_train.dtype == np.float32 and data.X_train.flags.c_contiguous
    assert data.sha256 == {file: sha256((flights / file).read_bytes()) for file in (large.FLIGHTS, large.PLANES)}
    (flights / large.FLIGHTS).unlink()
    drawn = datasets.load("airline", seed=0)
    assert drawn.source == "kept in the cache folder" and drawn.sha256 == data.sha256
    assert {tuple(row) for row in rows_of(drawn)} <= {tuple(row) for row in COMPLETE}
    assert len({tuple(row) for row in rows_of(drawn)}) == 7
    assert np.any(rows_of(drawn, ordered=True) != rows_of(data, ordered=True))


@pytest.mark.parametrize(
    "file, content, said",
    [
        (large.FLIGHTS, bz2.compress(HTML), "'Month' is not in list"),
        (large.FLIGHTS, HTML, "cannot be read"),
        (large.FLIGHTS, bz2.compress("\n".join([FLIGHT_HEADER, *FLIGHTS] * 9).encode())[:-40], "cannot be read"),
        (large.FLIGHTS, bz2.compress("\n".join([FLIGHT_HEADER, *FLIGHTS[:-1]]).encode()), "found 17"),
        (large.FLIGHTS, bz2.compress("\n".join([FLIGHT_HEADER, *FLIGHTS[:-1], "2008,1,3"]).encode()), "cannot be"),
        (large.FLIGHTS, bz2.compress("\n".join([FLIGHT_HEADER, *FLIGHTS[:6] * 3]).encode()), "7 complete.* found 6"),
        (large.PLANES, HTML, "'tailnum' is not in list"),
        (large.PLANES, PLANE_HEADER.encode(), "no plane whose year is known"),
        (large.PLANES, b"\xff\xfe\xff", "cannot be read"),
    ],
)
def test_damaged_flights_and_planes_are_refused(flights, cache, file, content, said):
    (flights / file).write_bytes(content)
    with pytest.raises(DatasetError, match=rf"{file} is damaged.*{said}.*Delete it"):
        datasets.load("airline")
    assert not cache.exists()


# rectangles-images


IMAGES = icml2007.ARCHIVES["rectangles-images"]


def images_zip(train: np.ndarray, test: np.ndarray, member="rectangles_im_{}.amat", parts=("train", "test")) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for part, table in zip(parts, (train, test), strict=True):
            text = io.StringIO()
            np.savetxt(text, table, fmt="%.7e", delimiter="   ")
            archive.writestr(member.format(part), text.getvalue())
    return stream.getvalue()


@pytest.fixture
def put_images(folder, monkeypatch):
    """``put_images(content)``: that file in the data folder, of which the loader expects 3 and 5 images."""

    def put(content: bytes) -> None:
        (folder / IMAGES.file).write_bytes(content)
        small = replace(IMAGES, digest=hashlib.sha1(content).hexdigest(), rows={"train": 3, "test": 5})
        monkeypatch.setitem(icml2007.ARCHIVES, "rectangles-images", small)

    return put


def image_table(rows: int) -> np.ndarray:
    rng = np.random.RandomState(rows)
    return np.column_stack([rng.random_sample((rows, 784)), rng.randint(2, size=rows)]).astype(np.float32)


def test_rectangles_filled_with_images_are_read_and_kept(put_images, folder):
    content = images_zip(image_table(3), image_table(5))
    put_images(content)
    data = datasets.load("rectangles-images")
    table = np.concatenate([image_table(3), image_table(5)])
    np.testing.assert_allclose(rows_of(data, ordered=True), table, rtol=1e-6)
    assert data.X_train.shape == (3, 28, 28, 1) and data.X_test.shape == (5, 28, 28, 1)
    assert data.X_train.dtype == np.float32 and data.y_test.dtype == np.int32
    (folder / IMAGES.file).unlink()
    again = datasets.load("rectangles-images")
    np.testing.assert_array_equal(rows_of(again, ordered=True), rows_of(data, ordered=True))
    assert again.sha256 == data.sha256 == {IMAGES.file: sha256(content)}


@pytest.mark.parametrize(
    "content, said",
    [
        (HTML, "cannot be read"),
        (images_zip(image_table(3), image_table(5))[:-30], "cannot be read"),
        (images_zip(image_table(3), image_table(4)), "5 rows of 785 .*there are 4 rows"),
        (images_zip(image_table(3)[:, 1:], image_table(5)), "3 rows of 785 .*lines 1 to 3 hold something else"),
    ],
)
def test_damaged_images_are_refused(put_images, cache, content, said):
    put_images(content)
    with pytest.raises(DatasetError, match=rf"rectangles_images\.zip is damaged.*{said}.*Delete it"):
        datasets.load("rectangles-images")
    assert not cache.exists()


def test_an_archive_of_other_images_is_refused(folder):
    (folder / IMAGES.file).write_bytes(images_zip(image_table(3), image_table(5)))
    with pytest.raises(DatasetError, match=f"rectangles_images.zip is damaged.*expected sha1 {IMAGES.digest}"):
        datasets.load("rectangles-images")


def test_rotated_digits_are_read(folder, monkeypatch):
    table = image_table(8)
    content = images_zip(table[:3], table[3:], "mnist_all_rotation_normalized_float_{}.amat", ("train_valid", "test"))
    rotated = icml2007.ARCHIVES["mnist-rot"]
    small = replace(rotated, digest=hashlib.md5(content).hexdigest(), rows={"train": 3, "test": 5})
    monkeypatch.setitem(icml2007.ARCHIVES, "mnist-rot", small)
    (folder / rotated.file).write_bytes(content)
    data = datasets.load("mnist-rot")
    assert data.X_train.shape == (3, 28, 28, 1) and data.X_test.shape == (5, 28, 28, 1)
    np.testing.assert_allclose(data.X_train[0, 0, :, 0], table[0, :28], rtol=1e-6)
    np.testing.assert_array_equal(data.y_test, table[3:, -1])


def test_digits_are_rotated_where_the_original_is_absent(monkeypatch):
    rng = np.random.default_rng(0)
    digits = np.zeros((80, 28, 28, 1), np.float32)
    digits[:, 8:20, 12:16] = rng.uniform(0.5, 1, (80, 12, 4, 1))  # ones, nearly
    labels = np.ones(80, np.int32)
    few = datasets.Dataset(
        "mnist", digits[:60], labels[:60], digits[60:], labels[60:], "generated", {"mnist": "0" * 64}
    )
    monkeypatch.setattr(icml2007, "mnist", lambda: few)
    monkeypatch.setattr(icml2007, "ROTATED_ROWS", (30, 50))
    data = datasets.load("mnist-rot-generated")
    assert data.name == "mnist-rot-generated" and data.sizes["train"] == 30 and data.sizes["test"] == 50
    np.testing.assert_array_equal(data.X_train, datasets.load("mnist-rot-generated").X_train)
    assert not np.array_equal(data.X_train, datasets.load("mnist-rot-generated", seed=1).X_train)
    # Turning keeps the ink, but for what leaves the image.
    everything = np.concatenate([few.X_train, few.X_test])
    ink = everything.sum() * 30 / 80
    assert 0.8 * ink < data.X_train.sum() < 1.2 * ink and data.X_train.max() <= 1


# taxi

HOME = (40.75, -73.98)
# Pick-up, drop-off, where from, where to, miles, and what is left of it: hour, day of the week, seconds.
JOURNEYS = [
    ("2009-01-04 02:52:00", "2009-01-04 03:02:00", HOME, (40.69, -73.92), 2.63, (2 + 52 / 60, 7, 600)),
    ("2009-01-31 23:59:59", "2009-02-01 00:00:09", HOME, HOME, 0.0, (23 + 3599 / 3600, 6, 10)),
    ("2009-01-05 00:00:00", "2009-01-05 05:00:00", HOME, HOME, 60.5, (0, 1, 18000)),
    ("2009-01-05 12:00:00", "2009-01-05 12:05:00", (40.7128, -71.78), HOME, 9.0, (12, 1, 300)),
    ("2009-01-05 12:00:00", "2009-01-05 12:00:09", HOME, HOME, 1.0, None),
    ("2009-01-05 12:00:00", "2009-01-05 17:00:01", HOME, HOME, 1.0, None),
    ("2009-01-05 12:00:00", "2009-01-05 11:00:00", HOME, HOME, 1.0, None),
    ("2009-01-05 12:00:00", "2009-01-05 12:10:00", (0.0, 0.0), HOME, 1.0, None),
    ("2009-01-05 12:00:00", "2009-01-05 12:10:00", HOME, (40.7128, -71.76), 1.0, None),
    ("2009-01-05 12:00:00", "2009-01-05 12:10:00", HOME, HOME, None, None),
    ("2009-01-05 12:00:00", "2009-01-05 12:10:00", (None, None), HOME, 1.0, None),
    ("2009-01-05 12:00:00", None, HOME, HOME, 1.0, None),
]
LEFT = np.array(
    [
        [hour, weekday, int(start[8:10]), int(start[5:7]), *origin, *end, miles, seconds]
        for start, _, origin, end, miles, left in JOURNEYS
        if left is not None
        for hour, weekday, seconds in [left]
    ],
    np.float32,
)
NAMES = {
    2009: "Trip_Pickup_DateTime Trip_Dropoff_DateTime Start_Lat Start_Lon End_Lat End_Lon Trip_Distance",
    2010: "pickup_datetime dropoff_datetime pickup_latitude pickup_longitude dropoff_latitude dropoff_longitude "
    "trip_distance",
    2015: "tpep_pickup_datetime tpep_dropoff_datetime pickup_latitude pickup_longitude dropoff_latitude "
    "dropoff_longitude trip_distance",
}


def columns(year: int) -> dict:
    values = zip(*((start, end, *a, *b, miles) for start, end, a, b, miles, _ in JOURNEYS), strict=True)
    return {"vendor": ["VTS"] * len(JOURNEYS)} | dict(zip(NAMES[year].split(), map(list, values), strict=True))


def parquet(path: Path, year: int = 2009, times: str = "text", repeat: int = 1, **drop) -> Path:
    table = pa.concat_tables([pa.table(columns(year))] * repeat)
    if times != "text":
        for index, name in enumerate(NAMES[year].split()[:2]):
            table = table.set_column(1 + index, name, table[name].cast(pa.timestamp(times)))
    pq.write_table(table, path)
    return path


def csv_lines(year: int) -> list[str]:
    table = columns(year)
    blank = " " if year == 2010 else ""
    header = [",".join(blank + name for name in table)] + [""] * (year == 2010)
    return header + [",".join("" if v is None else str(v) for v in row) for row in zip(*table.values(), strict=True)]


@pytest.mark.parametrize("year, times", [(2009, "text"), (2010, "text"), (2015, "us"), (2015, "ns")])
def test_journeys_are_filtered_from_parquet(folder, year, times):
    path = parquet(folder / "yellow_tripdata_2009-01.parquet", year, times)
    data = datasets.load("taxi")
    np.testing.assert_array_equal(rows_of(data), LEFT[np.lexsort(LEFT.T)])
    assert data.X_train.dtype == data.y_train.dtype == np.float32
    assert data.sizes == {"train": 3, "test": 1, "input_shape": [9]} and len(taxi.FEATURES) == 9
    assert data.source == f"file in {folder}" and data.sha256 == {path.name: sha256(path.read_bytes())}


@pytest.mark.parametrize("year", [2009, 2010, 2015])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_journeys_are_filtered_from_text(folder, year, end):
    lines = csv_lines(year)
    extra = lines[-1] + ",too,many"
    path = folder / "yellow_tripdata_2014-03.csv"
    path.write_bytes(end.join([*lines[:5], extra, *lines[5:], ""]).encode())
    # The mark that some editors put in front, and letters that are no UTF-8, change nothing.
    narrow = end.join([line.partition(",")[2] for line in [*lines[:5], extra, *lines[5:]]] + [""])
    first = b"\xef\xbb\xbf" + narrow.encode()
    (folder / "yellow_tripdata_2009-02.csv").write_bytes(first + b"1,\x80" * 9 + end.encode())
    for month in ("2014-03", "2009-02"):
        data = datasets.load("taxi", months=[month])
        np.testing.assert_array_equal(rows_of(data), LEFT[np.lexsort(LEFT.T)])


def test_months_are_joined_kept_and_split(folder, monkeypatch):
    monkeypatch.setattr(taxi, "MOST_TEST", 2)
    first = parquet(folder / "yellow_tripdata_2009-01.parquet", repeat=10)
    second = parquet(folder / "yellow_tripdata_2010-12.parquet", 2010, repeat=5)
    months = ["2010-12", "2009-01"]
    data = datasets.load("taxi", months=months)
    assert data.sizes["test"] == 2 and data.sizes["train"] == 15 * len(LEFT) - 2
    assert data.sha256 == {path.name: sha256(path.read_bytes()) for path in (first, second)}
    first.unlink()
    second.unlink()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    again = datasets.load("taxi", months=months)
    np.testing.assert_array_equal(rows_of(again, ordered=True), rows_of(data, ordered=True))
    assert again.sha256 == data.sha256 and again.source == "kept in the cache folder"
    assert np.any(datasets.load("taxi", months=months, seed=5).X_test != data.X_test)


@pytest.mark.parametrize(
    "months, said",
    [
        (["2016-07"], "from '2009-01' to '2016-06'.*got '2016-07'"),
        (["2008-12"], "got '2008-12'"),
        (["2010-13"], "got '2010-13'"),
        ([201001], "got 201001"),
        ("2010-01", r"such as \['2010-01'\], got the text"),
        ([], "at least one"),
        (["2010-01", "2010-01"], "each given once"),
    ],
)
def test_months_that_make_no_sense_are_refused(folder, months, said):
    for call in (lambda: datasets.load("taxi", months=months), lambda: taxi.taxi_parquet(months, folder)):
        with pytest.raises(ValueError, match=said):
            call()


def cut_parquet(path):
    content = parquet(path).read_bytes()
    path.write_bytes(content[: len(content) // 2])


def zones(path):
    kept = {name: values for name, values in columns(2015).items() if not name.endswith("itude")}
    pq.write_table(pa.table({**kept, "PULocationID": [1] * len(JOURNEYS)}), path)


def none_left(path):
    pq.write_table(pa.table(columns(2009)).slice(4), path)


@pytest.mark.parametrize(
    "file, write, said",
    [
        ("2009-01.parquet", cut_parquet, "is damaged.*cannot be read"),
        ("2009-01.parquet", lambda path: path.write_bytes(HTML), "is damaged.*cannot be read"),
        ("2009-01.parquet", none_left, "is damaged.*8 journeys, none of which passes"),
        ("2009-01.parquet", lambda path: pq.write_table(pa.table({"a": [1]}), path), "is damaged.*none for pickup"),
        ("2015-01.parquet", zones, "has no columns for .*zones instead.*CSV"),
        ("2014-01.csv", lambda path: path.write_bytes(HTML), "is damaged.*none for pickup"),
        ("2014-01.csv", lambda path: path.write_text("\n".join(csv_lines(2010))[:-30]), "is damaged.*cannot be read"),
        ("2014-01.csv", lambda path: path.write_text(csv_lines(2010)[0]), "is damaged.*cannot be read|none of which"),
        ("2015-01.csv", lambda path: path.write_text("\n".join(csv_lines(2015))), "expected 12,748,986 .*found 12"),
    ],
)
def test_damaged_journeys_are_refused_and_nothing_is_left_behind(folder, cache, tmp_path, file, write, said):
    write(folder / f"yellow_tripdata_{file}")
    out = tmp_path / "out"
    for call in (lambda: datasets.load("taxi", months=[file[:7]]), lambda: taxi.taxi_parquet([file[:7]], out)):
        with pytest.raises(DatasetError, match=f"yellow_tripdata_{file} {said}|{said}") as caught:
            call()
        assert f"yellow_tripdata_{file}" in str(caught.value) and "\n" not in str(caught.value)
    assert not cache.exists() and not list(out.iterdir())


def test_months_that_are_not_offered_any_more_are_explained(folder):
    with pytest.raises(DatasetError, match="offered until May 2022; months up to 2010-12 do not") as caught:
        datasets.load("taxi", months=["2012-05"])
    assert str(folder / "yellow_tripdata_2012-05.csv") in str(caught.value)


def test_a_missing_pyarrow_is_named_with_the_way_out(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for call in (lambda: datasets.load("taxi"), lambda: taxi.taxi_parquet(["2009-01"], folder)):
        with pytest.raises(ImportError, match=r"pip install 'gpzoo\[parquet\]'"):
            call()


def test_journeys_are_rewritten_as_parquet_in_pieces_and_not_twice(folder, tmp_path, monkeypatch):
    parquet(folder / "yellow_tripdata_2009-01.parquet", repeat=50)
    (folder / "yellow_tripdata_2014-03.csv").write_text("\n".join(csv_lines(2010)))
    monkeypatch.setattr(taxi, "_BATCH", 100)
    seen, filtered = [], taxi._filtered
    monkeypatch.setattr(taxi, "_filtered", lambda batch: seen.append(batch.num_rows) or filtered(batch))
    out = tmp_path / "new" / "folder"
    paths = taxi.taxi_parquet(["2009-01", "2014-03"], str(out))
    assert paths == [out / "taxi_2009-01.parquet", out / "taxi_2014-03.parquet"] == sorted(out.iterdir())
    assert max(seen) == 100 and sum(seen) == 51 * len(JOURNEYS)
    for path, repeat in zip(paths, (50, 1), strict=True):
        table = pq.read_table(path)
        assert table.column_names == [*taxi.FEATURES, taxi.TARGET] and set(table.schema.types) == {pa.float32()}
        rows = np.column_stack([table[name].to_numpy() for name in table.column_names])
        np.testing.assert_array_equal(rows, np.tile(LEFT, (repeat, 1)))
    groups = pq.ParquetFile(paths[0]).metadata
    assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [100, 100]
    seen.clear()
    paths[1].unlink()
    assert taxi.taxi_parquet(["2009-01", "2014-03"], out) == paths
    assert seen == [len(JOURNEYS)]


def test_a_folder_that_cannot_be_written_is_named(folder, tmp_path):
    parquet(folder / "yellow_tripdata_2009-01.parquet")
    (tmp_path / "file").touch()
    with pytest.raises(DatasetError, match=r"cannot write .*file/out/taxi_2009-01.parquet: Not a directory"):
        taxi.taxi_parquet(["2009-01"], tmp_path / "file" / "out")


# Twins


@pytest.fixture
def tiny(published, flights, put_images, folder):
    """Every large data set as a tiny file of its published format."""
    for name in ("year", "higgs", "susy"):
        published(name, packed(name, text_of(numbers(name))))
    put_images(images_zip(image_table(3), image_table(5)))
    parquet(folder / "yellow_tripdata_2009-01.parquet")


@pytest.mark.parametrize("name", TWINS)
def test_twins_have_the_schema_of_what_they_stand_in_for(tiny, name):
    real, twin = datasets.load(name), datasets.load(f"{name}-generated", rows=40)
    assert twin.X_train.shape[1:] == real.X_train.shape[1:]
    assert (twin.X_train.dtype, twin.y_train.dtype) == (real.X_train.dtype, real.y_train.dtype)
    assert twin.is_classification == real.is_classification
    assert twin.name == f"{name}-generated" and twin.source == "generated" and list(twin.sha256) == [twin.name]
    assert twin.sizes["train"] == 36 and twin.sizes["test"] == 4


@pytest.mark.parametrize("name", TWINS)
def test_twins_follow_their_seed(folder, name):
    one, same, other = (datasets.load(f"{name}-generated", rows=50, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(rows_of(one, ordered=True), rows_of(same, ordered=True))
    assert one.sha256 == same.sha256 != other.sha256
    with pytest.raises(ValueError, match=r"rows must be at least 20.*got 19"):
        datasets.load(f"{name}-generated", rows=19)


def relative_rmse(data) -> tuple[float, float]:
    """Of a linear model and of boosted trees; that of the mean is 1."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import LinearRegression

    data = data.standardised()
    models = LinearRegression(), HistGradientBoostingRegressor(max_iter=50, random_state=0)
    with threadpoolctl.threadpool_limits(1):  # threads that wait for a core would take longer than the trees
        errors = [model.fit(data.X_train, data.y_train).predict(data.X_test) - data.y_test for model in models]
    return tuple(np.sqrt(np.mean(error**2) / np.mean(data.y_test**2)) for error in errors)


@pytest.mark.slow_but(name=["airline", "taxi"])
@pytest.mark.parametrize("name, linear, nonlinear", [("year", 0.92, 0.82), ("airline", 0.9, 0.75), ("taxi", 0.6, 0.4)])
def test_targets_of_twins_can_be_learnt(name, linear, nonlinear):
    data = datasets.load(f"{name}-generated")
    found = relative_rmse(data)
    assert found[0] < linear and found[1] < nonlinear and min(found) > 0.1
    assert np.all(data.y_train == np.rint(data.y_train)) and len(np.unique(data.y_train)) > 30


@pytest.mark.slow_but(name=["higgs", "susy", "airline-delayed"])
@pytest.mark.parametrize(
    "name, accuracy", [("higgs", 0.65), ("susy", 0.6), ("rectangles-images", 0.7), ("airline-delayed", 0.7)]
)
def test_classes_of_twins_can_be_learnt(name, accuracy):
    from sklearn.svm import SVC

    data = datasets.load(f"{name}-generated", rows=2500).standardised()
    X, X_test = (part.reshape(len(part), -1) for part in (data.X_train, data.X_test))
    assert accuracy < SVC().fit(X, data.y_train).score(X_test, data.y_test) < 0.98
    assert 0.4 < data.y_train.mean() < 0.7


def test_twins_are_in_plausible_ranges():
    X = datasets.load("airline-generated").X_train
    low, high = [1, 1, 1, 0, 0, 15, 60, 0], [12, 31, 7, 1440, 1440, 700, 4900, 50]
    assert np.all(X.min(axis=0) >= low) and np.all(X.max(axis=0) <= high)
    y = datasets.load("year-generated").y_train
    assert y.min() >= 1922 and y.max() == 2011
    journeys = datasets.load("taxi-generated")
    X, y = journeys.X_train, journeys.y_train
    assert np.all(X[:, :4].min(axis=0) == [X[:, 0].min(), 1, 1, 1]) and np.all(X[:, 1:4].max(axis=0) == [7, 31, 12])
    assert X[:, 0].min() >= 0 and X[:, 0].max() < 24 and y.min() >= taxi.SHORTEST and y.max() <= taxi.LONGEST
    for place in (X[:, 4:6], X[:, 6:8]):
        assert np.all(((place - taxi.CENTRE) ** 2).sum(axis=1) < taxi.SQUARED_RADIUS)
    images = datasets.load("rectangles-images-generated", rows=200).X_train
    assert images.min() >= 0 and images.max() <= 1 and 0.2 < images.mean() < 0.8


# What large data sets need of the rest


def test_standardising_in_blocks_changes_nothing_but_rounding(monkeypatch):
    data = datasets.load("airline-generated", rows=200)
    whole = data.standardised()
    monkeypatch.setattr(in_memory, "_BLOCK", 7)
    blocks = data.standardised()
    for name in ("X_train", "y_train", "X_test", "y_test"):
        np.testing.assert_allclose(getattr(blocks, name), getattr(whole, name), rtol=1e-5, atol=1e-6)
        assert getattr(blocks, name).dtype == np.float32


def test_standardising_makes_no_float64_copy_of_everything():
    X = np.random.RandomState(0).standard_normal((500_000, 10)).astype(np.float32)
    data = datasets.Dataset("toy", X, np.zeros(len(X), np.int32), X[:10], np.zeros(10, np.int32), "generated", {})
    tracemalloc.start()
    try:
        data.standardised()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * X.nbytes


def test_what_is_kept_without_origin_has_no_note(folder, cache):
    files.keep("a.npy", np.arange(3))
    assert [path.name for path in cache.iterdir()] == ["a.npy"] and files.kept_with_origin("a.npy", 24) is None
    files.keep("b.npy", np.arange(12).reshape(3, 4)[:, ::2], {"raw": "0"})
    array, origin = files.kept_with_origin("b.npy", 48)
    np.testing.assert_array_equal(array, [[0, 2], [4, 6], [8, 10]])
    assert origin == {"raw": "0"} and not list(cache.glob("*.part"))
