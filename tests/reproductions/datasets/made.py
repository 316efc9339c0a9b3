"""Tiny files in the published formats, with the arrays that they hold."""

import bz2
import gzip
import hashlib
import io
import tarfile
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.io import savemat

from gpzoo._digests import fingerprint
from gpzoo.errors import DatasetError
from gpzoo.reproductions import datasets

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


def sample(name: str) -> list[str]:
    """The lines of a file beside this one."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()


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
    contents = {}
    for part, chosen in (("train", slice(7)), ("t10k", slice(7, None))):
        for array, kind in ((X[chosen], "images-idx3"), (y[chosen], "labels-idx1")):
            head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
            contents[f"{part}-{kind}-ubyte.gz"] = gzip.compress(head + array.tobytes(), mtime=0)
    return contents, {}, rows


def cifar10():
    """The published archive, of twelve images; the packed files are read where they are at hand."""
    X, y, rows = pixels(12, 32, 32, 3)
    content, records = (np.column_stack([y, Z.reshape(12, -1)]) for Z in (X, np.moveaxis(X, -1, 1)))
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            member.size = 2 * 3073
            archive.addfile(member, io.BytesIO(records[2 * i : 2 * i + 2].tobytes()))
    return {"cifar-10-binary.tar.gz": stream.getvalue()}, {"content": hashlib.sha256(content).hexdigest()}, rows


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


#: Flights, and planes: some with values that are missing or make no sense; and what is complete.
FLIGHTS, PLANES = sample("flights.csv"), sample("planes.csv")
DAYS = [[1, day, 4, 388, 484, 76, 810, 10, day] for day in range(5, 11)]
COMPLETE = np.float32([[1, 3, 4, 1203, 1331, 116, 810, 10, -14], [1, 4, 4, 1440, 5, 60, 810, 0, 300], *DAYS])


def airline(flights=FLIGHTS[1:]):
    contents = {
        "airline/2008.csv.bz2": bz2.compress("\n".join([FLIGHTS[0], *flights, ""]).encode()),
        "airline/plane-data.csv": "\r\n".join([*PLANES, ""]).encode(),
    }
    return contents, {"rows": [len(FLIGHTS) - 1, 99]}, COMPLETE


def airline_delayed():
    contents, facts, rows = airline()
    return contents, facts, np.column_stack([rows[:, :-1], rows[:, -1] > 0])


#: Journeys without a header, the last eight of which the filters drop; and what is left.
JOURNEYS = sample("journeys.csv")
LEFT = np.float32(
    [
        [2 + 52 / 60, 7, 4, 1, 40.75, -73.98, 40.69, -73.92, 2.63, 600],
        [23 + 3599 / 3600, 6, 31, 1, 40.75, -73.98, 40.75, -73.98, 0, 10],
        [0, 1, 5, 1, 40.75, -73.98, 40.75, -73.98, 60.5, 18000],
        [12, 1, 5, 1, 40.7128, -71.78, 40.75, -73.98, 9, 300],
    ]
)
PLACES = "pickup_latitude pickup_longitude dropoff_latitude dropoff_longitude trip_distance"
NAMES = {
    2009: "Trip_Pickup_DateTime Trip_Dropoff_DateTime Start_Lat Start_Lon End_Lat End_Lon Trip_Distance",
    2010: f"pickup_datetime dropoff_datetime {PLACES}",
    2015: f"tpep_pickup_datetime tpep_dropoff_datetime {PLACES}",
}


def journeys(year: int) -> dict[str, list]:
    """Their columns in a year: times as text, then numbers."""
    columns = zip(*(line.split(",") for line in JOURNEYS), strict=True)
    kinds = dict(zip(["vendor", *NAMES[year].split()], [str] * 3 + [float] * 5, strict=True))
    return {
        name: [kind(v) if v else None for v in column]
        for (name, kind), column in zip(kinds.items(), columns, strict=True)
    }


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
    blank = " " if year == 2010 else ""
    header = [",".join(blank + name for name in journeys(year)), *([""] if blank else [])]
    lines = [*header, *JOURNEYS[:3], JOURNEYS[-1] + ",too,many", *JOURNEYS[3:], ""]
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
    "taxi in text of 2009": lambda: taxi("parquet", parquet(2009)),
    "taxi in microseconds": lambda: taxi("parquet", parquet(2015, "us")),
    "taxi in nanoseconds": lambda: taxi("parquet", parquet(2015, "ns")),
    "taxi csv of 2009": lambda: taxi("csv", csv(2009)),
    "taxi csv of 2010": lambda: taxi("csv", csv(2010, "\r\n")),
    "taxi csv of 2015": lambda: taxi("csv", csv(2015, mark=b"\xef\xbb\xbf")),
}
