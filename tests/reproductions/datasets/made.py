"""Tiny files in the published formats, with the arrays that they hold."""

import bz2
import gzip
import hashlib
import io
import tarfile
import zipfile
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.io import savemat

from gpzoo.errors import DatasetError
from gpzoo.reproductions import datasets
from gpzoo.tables.files import fingerprint

HTML = b"<html><body>moved</body></html>\n"
RNG = np.random.RandomState(0)


def text(array, delimiter=",", fmt="%.9g") -> bytes:
    stream = io.StringIO()
    np.savetxt(stream, array, fmt=fmt, delimiter=delimiter)
    return stream.getvalue().encode()


def npz(**arrays) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def refused(name: str, *said: str, **options) -> None:
    """A data set is refused in one line that says this."""
    with pytest.raises(DatasetError) as caught:
        datasets.load(name, **options)
    message = str(caught.value)
    assert all(part in message for part in said) and message.isprintable(), message


# Of each data set: its files by path, the facts that differ, and its rows with their targets last.


def pixels(count: int, *shape: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, labels, and the rows that they are in a data set."""
    X, y = RNG.randint(256, size=(count, *shape)).astype(np.uint8), RNG.randint(10, size=count).astype(np.uint8)
    return X, y, np.column_stack([X.reshape(count, -1) / np.float32(255), y])


def mnist():
    """Four IDX files of 7 and 4 images."""
    X, y, rows = pixels(11, 28, 28)
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

    def idx(array):
        head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
        return gzip.compress(head + array.tobytes(), mtime=0)

    arrays = (X[:7], y[:7], X[7:], y[7:])
    return {f"{name}.gz": idx(array) for name, array in zip(names, arrays, strict=True)}, {}, rows


def cifar10():
    """The published archive, of twelve images; the packed files are read where they are at hand."""
    X, y, rows = pixels(12, 32, 32, 3)
    content = hashlib.sha256(np.concatenate([y[:, None], X.reshape(12, -1)], axis=1).tobytes()).hexdigest()
    records = np.concatenate([y[:, None], np.moveaxis(X, -1, 1).reshape(12, -1)], axis=1)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            member.size = 2 * 3073
            archive.addfile(member, io.BytesIO(records[2 * i : 2 * i + 2].tobytes()))
    return {"cifar-10-binary.tar.gz": stream.getvalue()}, {"content": content}, rows


def svhn():
    """Two Matlab files of 12 and 5 images; the digit 0 is class 10."""
    X, y, rows = pixels(17, 32, 32, 3)
    contents = {}
    for part, chosen in (("train", slice(12)), ("test", slice(12, None))):
        stream, labels = io.BytesIO(), np.where(y == 0, 10, y)[chosen, None]
        savemat(stream, {"X": np.moveaxis(X[chosen], 0, -1), "y": labels}, do_compression=True)
        contents[f"{part}_32x32.mat"] = stream.getvalue()
    return contents, {}, rows


def images(file: str):
    """An archive of 3 and 5 images as text."""
    rows = np.column_stack([RNG.random_sample((8, 784)), RNG.randint(2, size=8)]).astype(np.float32)
    X, y = rows[:, :-1].reshape(-1, 28, 28, 1), rows[:, -1].astype(np.int32)
    parts = {"X_train": X[:3], "X_test": X[3:], "y_train": y[:3], "y_test": y[3:]}
    contents = {file: zipped({"a.amat": text(rows[:3], "   "), "b.amat": text(rows[3:], "   ")})}
    content = {"content": fingerprint(parts)} if file == "rectangles.zip" else {}
    return contents, {"members": ["a.amat", "b.amat"], "rows": [3, 5], **content}, rows


def numbers(file: str, columns: int):
    """A packed text of 55 rows, each with its target first."""
    table = RNG.standard_normal((55, columns)).astype(np.float32)
    table[:, 0] = np.arange(55) % 2
    return packed(file, text(table)), {"rows": 55}, np.roll(table, -1, axis=1)


def packed(file: str, content: bytes) -> dict[str, bytes]:
    in_zip = file.endswith(".zip")
    return {file: zipped({file[:-4]: content}) if in_zip else gzip.compress(content, mtime=0)}


def yacht(as_text: bool):
    """A table of 10 rows and 3 splits: its texts, or its arrays."""
    data, tests = RNG.standard_normal((10, 4)), [np.array([2 * k + 1, k]) for k in range(3)]
    arrays = {"X": data[:, [0, 1, 3]], "y": data[:, 2]}
    arrays |= {f"test_{k}": test.astype(np.uint16) for k, test in enumerate(tests)}
    texts = {"data": text(data, " ", "%.17g") + b"\n", "index_features": b"0\n1\n3\n", "index_target": b"2\n"}
    # Indices are written both ways in the published files.
    texts |= {f"index_test_{k}": text(test, fmt="%.18e") for k, test in enumerate(tests)}
    contents = {f"uci_yacht/{name}.txt": content for name, content in texts.items()}
    files = [{"path": path, "bytes": 10_000} for path in contents]
    facts = {"files": files, "splits": 3, "content": fingerprint(arrays)}
    return contents if as_text else {"uci_yacht.npz": npz(**arrays)}, facts, data[:, [0, 1, 3, 2]]


PLANES = {"N1": "1998", "N2": "2008", "N3": "None", "N4": "0000", "N5": "2009", "N6": ""}
HEADER = "Year,Month,DayofMonth,DayOfWeek,DepTime,ArrTime,TailNum,AirTime,ArrDelay,Distance,Cancelled"


def flight(day=3, departs="2003", arrives="2211", tail="N1", air="116", delay="-14"):
    return f"2008,1,{day},4,{departs},{arrives},{tail},{air},{delay},810,0"


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


def airline(flights=FLIGHTS):
    planes = ["tailnum,type,year", *(f"{tail},,{made}" for tail, made in PLANES.items()), "N7"]
    contents = {
        "airline/2008.csv.bz2": bz2.compress("\n".join([HEADER, *flights, ""]).encode()),
        "airline/plane-data.csv": ("\r\n".join(planes) + "\r\n").encode(),
    }
    return contents, {"rows": [len(FLIGHTS), 99]}, np.array(COMPLETE, np.float32)


def airline_delayed():
    contents, facts, rows = airline()
    return contents, facts, np.column_stack([rows[:, :-1], rows[:, -1] > 0])


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
        [left[0], left[1], int(start[8:10]), int(start[5:7]), *origin, *end, miles, left[2]]
        for start, _, origin, end, miles, left in JOURNEYS
        if left is not None
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


def journeys(year: int) -> dict[str, list]:
    values = zip(*((start, end, *a, *b, miles) for start, end, a, b, miles, _ in JOURNEYS), strict=True)
    return {"vendor": ["VTS"] * len(JOURNEYS)} | dict(zip(NAMES[year].split(), map(list, values), strict=True))


def parquet(year: int = 2009, times: str = "text", repeat: int = 1, table: dict | None = None) -> bytes:
    made = pa.concat_tables([pa.table(journeys(year) if table is None else table)] * repeat)
    if times != "text":
        for index, name in enumerate(NAMES[year].split()[:2]):
            made = made.set_column(1 + index, name, made[name].cast(pa.timestamp(times)))
    stream = io.BytesIO()
    pq.write_table(made, stream)
    return stream.getvalue()


def csv(year: int, end: str = "\n", mark: bytes = b"") -> bytes:
    """Journeys as text, one of them on a line with too many fields, in the manner of a year."""
    table = journeys(year)
    blank = " " if year == 2010 else ""
    header = [",".join(blank + name for name in table)] + [""] * (year == 2010)
    rows = [",".join("" if v is None else str(v) for v in row) for row in zip(*table.values(), strict=True)]
    lines = [*header, *rows[:3], rows[-1] + ",too,many", *rows[3:], ""]
    # Letters that are no UTF-8, and the mark that some editors put in front, change nothing.
    return mark + end.join(lines).encode().replace(b"VTS", b"\x80" if mark else b"VTS")


def taxi(kind: str, content: bytes):
    return {f"yellow_tripdata_2009-01.{kind}": content}, {}, LEFT


READERS = {
    "mnist": mnist,
    "cifar10": cifar10,
    "svhn": svhn,
    "rectangles-images": partial(images, "rectangles_images.zip"),
    "rectangles-original": partial(images, "rectangles.zip"),
    "uci/yacht": partial(yacht, False),
    "uci/yacht published": partial(yacht, True),
    "year": partial(numbers, "YearPredictionMSD.txt.zip", 91),
    "higgs": partial(numbers, "HIGGS.csv.gz", 29),
    "airline": airline,
    "airline-delayed": airline_delayed,
    "taxi in text of 2009": partial(taxi, "parquet", parquet(2009)),
    "taxi in microseconds": partial(taxi, "parquet", parquet(2015, "us")),
    "taxi in nanoseconds": partial(taxi, "parquet", parquet(2015, "ns")),
    "taxi csv of 2009": partial(taxi, "csv", csv(2009)),
    "taxi csv of 2010": partial(taxi, "csv", csv(2010, "\r\n")),
    "taxi csv of 2015": partial(taxi, "csv", csv(2015, mark=b"\xef\xbb\xbf")),
}
