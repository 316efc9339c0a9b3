"""Tiny files in the published formats, with the arrays that they hold."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.io import savemat

from gpzoo.tables.files import fingerprint

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


def pixels(*shape) -> np.ndarray:
    return RNG.randint(256, size=shape).astype(np.uint8)


def mnist():
    """Four IDX files of 7 and 4 images."""
    arrays = [pixels(7, 28, 28), RNG.randint(10, size=7), pixels(4, 28, 28), RNG.randint(10, size=4)]
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

    def idx(array):
        head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
        return gzip.compress(head + array.astype(np.uint8).tobytes(), mtime=0)

    return {f"{name}.gz": idx(array) for name, array in zip(names, arrays, strict=True)}, arrays


def cifar10():
    """Twelve images: the packed files, and the published archive."""
    images, labels = pixels(12, 32, 32, 3), RNG.randint(10, size=12).astype(np.uint8)
    red, green, blue = (images[..., c].astype(np.int16) for c in range(3))
    planes = np.stack([green, red - green, blue - green])
    for axis in (2, 3):
        planes = np.diff(planes, axis=axis, prepend=0)
    packed = {
        "cifar10_images.xz": lzma.compress(planes.astype(np.uint8).tobytes()),
        "cifar10_labels.npz": npz(y_train=labels[:8], y_test=labels[8:]),
    }
    records = np.concatenate([labels[:, None], np.moveaxis(images, -1, 1).reshape(12, -1)], axis=1)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            member.size = 2 * 3073
            archive.addfile(member, io.BytesIO(records[2 * i : 2 * i + 2].tobytes()))
    return packed, {"cifar-10-binary.tar.gz": stream.getvalue()}, images, labels


def svhn():
    """Two Matlab files of 12 and 5 images; the digit 0 is class 10."""
    contents, images = {}, {}
    for part, count in (("train", 12), ("test", 5)):
        images[part], stream = pixels(count, 32, 32, 3), io.BytesIO()
        labels = 1 + np.arange(count, dtype=np.uint8)[:, None] % 10
        savemat(stream, {"X": np.moveaxis(images[part], 0, -1), "y": labels}, do_compression=True)
        contents[f"{part}_32x32.mat"] = stream.getvalue()
    return contents, images


def yacht():
    """A table of 10 rows and 3 splits, its texts by path, and the facts."""
    data, tests = RNG.standard_normal((10, 4)), [np.array([2 * k + 1, k]) for k in range(3)]
    arrays = {"X": data[:, [0, 1, 3]], "y": data[:, 2]}
    arrays |= {f"test_{k}": test.astype(np.uint16) for k, test in enumerate(tests)}
    texts = {"data": text(data, " ", "%.17g") + b"\n", "index_features": b"0\n1\n3\n", "index_target": b"2\n"}
    # Indices are written both ways in the published files.
    texts |= {f"index_test_{k}": text(test, fmt="%.18e") for k, test in enumerate(tests)}
    files = [
        {"path": f"uci_yacht/{name}.txt", "bytes": 10_000, "urls": [f"https://home/yacht/{name}.txt"]} for name in texts
    ]
    contents = {f"uci_yacht/{name}.txt": content for name, content in texts.items()}
    return arrays, contents, {"files": files, "splits": 3, "content": fingerprint(arrays)}


def amat(rows: int) -> np.ndarray:
    return np.column_stack([RNG.random_sample((rows, 784)), RNG.randint(2, size=rows)]).astype(np.float32)


def images(name: str, train: str, test: str):
    """An archive of 3 and 5 images as text, their rows, and the facts."""
    tables = amat(3), amat(5)
    members = {f"{part}.amat": text(table, "   ") for part, table in zip((train, test), tables, strict=True)}
    return {name: zipped(members)}, np.concatenate(tables), {"members": list(members), "rows": [3, 5]}


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
    return {
        "airline/2008.csv.bz2": bz2.compress("\n".join([HEADER, *flights, ""]).encode()),
        "airline/plane-data.csv": ("\r\n".join(planes) + "\r\n").encode(),
    }


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


def csv_lines(year: int) -> list[str]:
    table = journeys(year)
    blank = " " if year == 2010 else ""
    header = [",".join(blank + name for name in table)] + [""] * (year == 2010)
    return header + [",".join("" if v is None else str(v) for v in row) for row in zip(*table.values(), strict=True)]
