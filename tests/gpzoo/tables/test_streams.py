"""Tables of arrays and of Parquet files, their moments, and the minibatches drawn from them."""

import gc
import json
import os
import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpzoo.errors import DatasetError
from gpzoo.tables import table as tables
from gpzoo.tables.arrays import ArrayTable
from gpzoo.tables.hold_out import hold_out
from gpzoo.tables.minibatches import Minibatches
from gpzoo.tables.parquet import ParquetTable
from gpzoo.tables.standardise import Moments, Standardised, moments, standardised
from gpzoo.tables.table import Table

RNG = np.random.default_rng(0)
#: A column of another location and scale each, and a target.
X = (RNG.standard_normal((1003, 3)) * [1.0, 100.0, 0.01] + [0.0, -50.0, 7.0]).astype(np.float32)
Y = RNG.standard_normal(1003).astype(np.float32)


def numbered(rows: int, block_size: int) -> ArrayTable:
    """A table whose only column is the number of the row."""
    return ArrayTable(np.arange(rows), block_size=block_size)


def epoch(batches: Minibatches, number: int = 0) -> np.ndarray:
    """The minibatches of an epoch of a numbered table."""
    return batches.take(number * batches.steps_per_epoch, batches.steps_per_epoch)[0]


def mapped(path: Path, array: np.ndarray, **how) -> np.memmap:
    array.tofile(path)
    return np.memmap(path, array.dtype, how.pop("mode", "r"), shape=array.shape, **how)


def whole(table: Table) -> list[np.ndarray]:
    blocks = [table.read(block) for block in range(len(table.block_rows))]
    return [np.concatenate(group) for group in zip(*blocks, strict=True)]


def assert_all_equal(found, expected) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.fixture(autouse=True)
def no_thread_left():
    """Threads of minibatches end with what started them."""
    before = set(threading.enumerate())
    yield
    gc.collect()
    assert set(threading.enumerate()) <= before


# Tables of arrays


def test_an_array_table_gives_its_rows_in_blocks():
    table = ArrayTable(X, Y, block_size=100)
    assert table.num_rows == 1003 and table.block_rows.tolist() == [100] * 10 + [3]
    assert_all_equal(whole(table), (X, Y))
    assert_all_equal(table.head(250), (X[:250], Y[:250]))
    assert [g.shape for g in table.groups] == [(3,), ()]


def test_an_array_table_keeps_or_converts_floating_dtypes_and_keeps_classes():
    arrays = X.astype(np.float64), Y > 0, np.arange(1003, dtype=np.int64), Y.astype(">f4")
    kept = ArrayTable(*arrays).read(0)
    assert [a.dtype for a in kept] == [np.float64, np.bool_, np.int64, np.float32]
    converted = ArrayTable(*arrays, dtype=np.float32).read(0)
    assert [a.dtype for a in converted] == [np.float32, np.bool_, np.int64, np.float32]
    assert all(a.dtype.isnative for a in kept)
    np.testing.assert_array_equal(converted[0], X)


@pytest.mark.parametrize(
    "view",
    [
        lambda data: data,
        lambda data: data[:, :2],
        lambda data: data[:, 2],
        lambda data: data[17:900:3, 1:],
        lambda data: np.asarray(data)[5:],
        lambda data: data[::-1],
        lambda data: data.T,
        lambda data: data[:, ::2],
        lambda data: data.reshape(-1, 17, 3),
        lambda data: data + 1,
    ],
    ids=["whole", "columns", "column", "rows", "plain", "reversed", "transposed", "alternate", "reshaped", "computed"],
)
def test_a_mapped_array_and_its_views_equal_the_array(tmp_path, view):
    padding = np.arange(5000, dtype=np.float32)  # the array starts after the first page
    np.concatenate([padding, X.ravel()]).tofile(tmp_path / "x.bin")
    data = np.memmap(tmp_path / "x.bin", np.float32, "r", offset=20_000, shape=X.shape)
    table = ArrayTable(view(data), block_size=10)
    assert_all_equal(whole(table), (view(X),))


def test_a_fortran_ordered_file_and_private_changes_are_seen(tmp_path):
    np.save(tmp_path / "x.npy", np.asfortranarray(X))
    assert_all_equal(whole(ArrayTable(np.load(tmp_path / "x.npy", mmap_mode="r"), block_size=100)), (X,))
    private = mapped(tmp_path / "x.bin", X, mode="c")
    private[3] = 1.0
    assert ArrayTable(private).read(0)[0][3].tolist() == [1.0, 1.0, 1.0]


def test_a_mapped_file_is_read_without_its_pages_in_memory(tmp_path):
    status = Path("/proc/self/statm")
    if not status.exists():
        pytest.skip("resident memory is read from /proc")
    resident = lambda: int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")  # noqa: E731
    data = np.memmap(tmp_path / "zeros.bin", np.float32, "w+", shape=(4_000_000, 8))  # 128 MB, none of them touched
    table = ArrayTable(data[:, :7], data[:, 7])
    before = resident()
    assert moments(table).num_rows == 4_000_000
    assert resident() - before < 40e6


def test_a_block_takes_the_memory_of_a_block_however_rows_lie_in_the_file(tmp_path):
    data = np.memmap(tmp_path / "zeros.bin", np.float32, "w+", shape=(1_000_000, 8))  # 32 MB
    columns = data.reshape(8, 1_000_000).T
    for view in (data, data[:, 2:4], columns, data[::5000]):
        table = ArrayTable(view, block_size=200)
        tracemalloc.start()
        try:
            table.read(0)
            assert tracemalloc.get_traced_memory()[1] < 100_000
        finally:
            tracemalloc.stop()


def test_images_are_rows_of_higher_rank():
    images = RNG.standard_normal((30, 4, 5, 2)).astype(np.float32)
    table = standardised(ArrayTable(images, np.arange(30) % 3, block_size=7))
    np.testing.assert_allclose(table.mean[0], images.mean(0, dtype=np.float64), rtol=1e-12, atol=1e-15)
    with Minibatches(table, 10, seed=0) as batches:
        assert [a.shape for a in batches.take(0, 2)] == [(2, 10, 4, 5, 2), (2, 10)]


# Parquet


def write(path: Path, columns: dict, group: int = 100, **how) -> Path:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path, row_group_size=group, **how)
    return path


def split(folder: Path, cut: int = 400, **changes) -> Path:
    """The data in two files of a folder."""
    folder.mkdir(exist_ok=True)
    columns = {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": Y} | changes
    write(folder / "part-0.parquet", {name: column[:cut] for name, column in columns.items()})
    write(folder / "part-1.parquet", {name: column[cut:] for name, column in columns.items()})
    return folder


def test_parquet_files_equal_arrays(tmp_path):
    folder = split(tmp_path / "data")
    table = ParquetTable(folder, columns=["a", "b", "c"], target="y")
    assert table.block_rows.tolist() == [100] * 10 + [3]
    assert_all_equal(whole(table), (X, Y))
    assert_all_equal(table.head(450), (X[:450], Y[:450]))
    reordered = ParquetTable([folder / "part-1.parquet", folder / "part-0.parquet"], columns=["c", "a"])
    assert_all_equal(whole(reordered), (np.concatenate([X[400:], X[:400]])[:, [2, 0]],))


def test_parquet_minibatches_equal_those_of_arrays_in_the_same_blocks(tmp_path):
    table = ParquetTable(split(tmp_path / "data"), columns=["a", "b", "c"], target="y")
    with Minibatches(standardised(table), 32, seed=5, window=250) as found:
        with Minibatches(standardised(ArrayTable(X, Y, block_size=100)), 32, seed=5, window=250) as expected:
            assert_all_equal(found.take(20, 50), expected.take(20, 50))


def test_parquet_keeps_the_precision_of_the_file_until_it_is_standardised(tmp_path):
    days = 1e8 + RNG.standard_normal(1003)
    seconds = 1_700_000_000 + np.arange(1003)
    path = write(tmp_path / "t.parquet", {"days": days, "seconds": seconds, "flag": Y > 0, "y": np.arange(1003) % 3})
    table = ParquetTable(path, columns=["days", "seconds", "flag"], target="y", classes=True)
    assert [a.dtype for a in table.read(0)] == [np.float32, np.int32]
    inputs, classes = whole(standardised(table))
    assert inputs.dtype == np.float32 and classes.dtype == np.int32
    expected = np.stack([days, seconds, Y > 0], axis=1)
    np.testing.assert_allclose(inputs, (expected - expected.mean(0)) / expected.std(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(classes, np.arange(1003) % 3)


def test_parquet_refuses_bad_values_naming_file_row_group_and_column(tmp_path):
    b = [None if i == 555 else 1.0 for i in range(1003)]
    y = Y.copy()
    y[730] = np.nan
    table = ParquetTable(split(tmp_path / "data", b=b, y=y), columns=["a", "b"])
    assert table.read(4)[0].shape == (100, 2)
    with pytest.raises(ValueError, match=r"Column 'b' has 1 null values in row group 1 of .*part-1.parquet"):
        table.read(5)
    table = ParquetTable(tmp_path / "data", columns=["a"], target="y")
    with pytest.raises(ValueError, match=r"Column 'y' .* not finite, in row 30 of row group 3 of .*part-1.parquet"):
        moments(table)


@pytest.mark.parametrize("label", [2**32 + 1, -(2**31) - 1])
def test_integers_that_the_dtype_cannot_hold_are_refused(label, tmp_path):
    path = write(tmp_path / "t.parquet", {"x": Y, "y": np.where(np.arange(len(Y)) == 7, label, 1)})
    with pytest.raises(ValueError, match="which int32 cannot hold, in row 7"):
        ParquetTable(path, columns=["x"], target="y", classes=True).read(0)


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'gpzoo\[parquet\]'"):
        ParquetTable(tmp_path, columns=["a"])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused_where_they_are_read(tmp_path, bad):
    inputs = X.copy()
    inputs[712, 2] = bad
    table = ArrayTable(mapped(tmp_path / "x.bin", inputs), Y, block_size=100)
    assert table.read(6)[0].shape == (100, 3)
    message = r"Array 0, column 2, has a value which is not finite, in row 12 of block 7 \(rows 700 to 800 of .*x.bin\)"
    scaled = Standardised(table, [np.zeros(3), 0.0], [np.ones(3), 1.0])
    for read in (table.read, table.stored, scaled.read, scaled.stored):
        with pytest.raises(ValueError, match=message):
            read(7)
    with Minibatches(table, 100, seed=0) as batches, pytest.raises(ValueError, match=message):
        batches.take(0, 1)


# Fingerprints


def test_a_fingerprint_is_plain_and_tells_tables_apart(tmp_path):
    path = split(tmp_path / "data")
    changed = X.copy()
    changed[0, 0] += 1
    array, parquet = ArrayTable(X, Y, block_size=100), ParquetTable(path, columns=["a", "b", "c"], target="y")
    tables = [
        array,
        parquet,
        ArrayTable(X, Y, block_size=99),
        ArrayTable(X, block_size=100),
        ArrayTable(changed, Y, block_size=100),
        ArrayTable(X[:-1], Y[:-1], block_size=100),
        ArrayTable(X, Y.astype(np.float64), block_size=100),
        ParquetTable(path, columns=["a", "c", "b"], target="y"),
        standardised(array),
        Standardised(array, [np.zeros(3), 0.0], [np.ones(3), 2.0]),
        Standardised(array, [None, 0.0], [None, 2.0]),
    ]
    texts = {json.dumps(table.fingerprint, sort_keys=True) for table in tables}
    assert len(texts) == len(tables)
    assert all(json.loads(json.dumps(table.fingerprint)) == table.fingerprint for table in tables)
    same = ArrayTable(mapped(tmp_path / "x.bin", X), Y.copy(), block_size=100)
    assert same.fingerprint == array.fingerprint
    assert ParquetTable(path, columns=["a", "b", "c"], target="y").fingerprint == parquet.fingerprint


def test_a_parquet_file_rewritten_between_the_blocks_that_are_read_has_another_fingerprint(tmp_path):
    values = np.arange(1000) % 7
    before = ParquetTable(write(tmp_path / "a.parquet", {"a": values}), columns=["a"]).fingerprint
    values[200:300] = np.arange(100)
    after = ParquetTable(write(tmp_path / "a.parquet", {"a": values}), columns=["a"]).fingerprint
    assert before != after


def test_a_fingerprint_says_which_rows_it_looks_at(monkeypatch):
    values = np.arange(100.0)
    of = lambda x: ArrayTable(x, block_size=10).fingerprint  # noqa: E731
    assert of(values)["seen"] == "all rows"
    for row in (0, 45, 99):
        assert of(np.where(values == row, -1, values))["checksum"] != of(values)["checksum"]
    # Whole blocks of 80 bytes from either end, as many as hold so many bytes.
    for seen, first, last in [(1, 10, 10), (80, 10, 10), (81, 20, 20), (399, 50, 50), (800, 100, 100)]:
        monkeypatch.setattr(tables, "_SEEN_BYTES", seen)
        found = of(values)
        text = f"first {first} and last {last} rows; those between are not looked at"
        assert found["seen"] == ("all rows" if first + last >= 100 else text)
        for row in (first - 1, min(first, 99), max(0, 99 - last), 100 - last):
            inside = row < first or row >= 100 - last
            assert (of(np.where(values == row, -1, values))["checksum"] != found["checksum"]) == inside, (seen, row)


# Moments


def test_moments_equal_numpys_in_float64():
    rng = np.random.default_rng(1)
    columns = [1e8 + rng.standard_normal(200_001), 1e-9 * rng.standard_normal(200_001), rng.exponential(1e4, 200_001)]
    columns.append(np.sort(columns[0]))  # every block has another mean
    inputs, y = np.stack(columns, axis=1), np.arange(200_001)
    found = moments(ArrayTable(inputs, y, block_size=3001))
    assert isinstance(found, Moments) and found.num_rows == 200_001
    np.testing.assert_allclose(found.mean[0], inputs.mean(0), rtol=1e-13, atol=1e-22)
    # NumPy's own two passes, on shifted values that lose nothing.
    np.testing.assert_allclose(found.std[0], (inputs - inputs[0]).std(0), rtol=1e-11)
    assert (found.mean[1], found.std[1]) == pytest.approx((100_000.0, y.std()), rel=1e-13)
    assert isinstance(found.mean[1], float) and isinstance(found.std[1], float)


@given(
    rows=st.integers(1, 60),
    block=st.integers(1, 20),
    location=st.sampled_from([0.0, 1e3, -1e8]),
    scale=st.sampled_from([1e-3, 1.0, 1e5]),
)
def test_moments_do_not_depend_on_the_blocks(rows, block, location, scale):
    values = location + scale * np.random.default_rng(rows).standard_normal((rows, 2))
    found = moments(ArrayTable(values, block_size=block))
    np.testing.assert_allclose(found.mean[0], values.mean(0), rtol=1e-12, atol=1e-12 * scale)
    np.testing.assert_allclose(found.std[0], (values - values[0]).std(0), rtol=1e-8, atol=0)


def test_moments_of_some_groups():
    found = moments(ArrayTable(X, Y, Y), groups=[1])
    assert found.mean[0] is found.std[0] is found.mean[2] is None and found.mean[1] == pytest.approx(
        Y.mean(dtype=float)
    )


def test_standardised_is_that_of_numpy():
    inputs = X.astype(np.float64)
    inputs[:, 1] = 0.1  # constant, and its mean over the rows is not exactly it
    table = standardised(ArrayTable(inputs, Y.astype(np.float64), block_size=100))
    found, mean, std = whole(table), Y.mean(dtype=np.float64), Y.std(dtype=np.float64)
    expected = (inputs - inputs.mean(axis=0)) / np.where(np.arange(inputs.shape[1]) == 1, np.inf, inputs.std(axis=0))
    np.testing.assert_allclose(found[0], expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found[1], (Y - mean) / std, rtol=1e-6, atol=1e-7)
    assert not found[0][:, 1].any() and (table.mean[1], table.std[1]) == pytest.approx((mean, std), rel=1e-12)
    # A column that is constant in training is zero everywhere.
    inputs[:10, 1] = 7.0
    np.testing.assert_allclose(table.apply(inputs[:10])[0], expected[:10], rtol=1e-12, atol=1e-12)


LAYOUTS = {
    "fortran": np.asfortranarray,
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "every second": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "reversed": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "frame": lambda x: pd.DataFrame({str(i): column for i, column in enumerate(x.reshape(len(x), -1).T)}),
    "images": lambda x: np.asfortranarray(x.reshape(len(x), 1, -1)),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_in_memory_changes_nothing(layout, dtype):
    rows = (100 * X[:300] + 7).astype(dtype)
    of = {name: how(rows) for name, how in {"C": np.ascontiguousarray, layout: LAYOUTS[layout]}.items()}
    wanted, found = (standardised(ArrayTable(x, block_size=70)) for x in of.values())
    for block in range(5):
        for each, other in zip((wanted.read, wanted.stored), (found.read, found.stored), strict=True):
            np.testing.assert_array_equal(other(block)[0].reshape(-1, X.shape[1]), each(block)[0])
    np.testing.assert_array_equal(found.apply(of[layout])[0].reshape(rows.shape), wanted.apply(rows)[0])
    assert abs(wanted.apply(rows)[0].mean()) < 1e-4


def test_rows_to_standardise_go_by_their_labels():
    frame, y = pd.DataFrame(X[:20], columns=list("abc")), pd.Series(Y[:20])
    table = standardised(ArrayTable(frame, y))
    other, order = frame[["c", "a", "b"]], np.random.default_rng(0).permutation(20)
    wanted = table.apply(X[:20], Y[:20])
    assert_all_equal(table.apply(other, y.iloc[order]), wanted)
    for wrong in (frame.rename(columns={"a": "d"}), frame[["a", "b"]]):
        with pytest.raises(ValueError, match="columns of Array 0 are not those of the table"):
            table.apply(wrong)
    with pytest.raises(ValueError, match="rows of Array 1 are not those of Array 0"):
        table.apply(frame, y.iloc[1:])


def test_constant_targets_are_shifted_and_classes_left():
    constant = standardised(ArrayTable(X, np.full(1003, 5.0)))
    assert constant.mean[1] == 5.0 and constant.std[1] == 1.0 and not constant.read(0)[1].any()
    outputs = standardised(ArrayTable(X, np.stack([np.full(1003, 5.0), Y], axis=1)))
    assert outputs.std[1][0] == 1.0 and outputs.std[1][1] == pytest.approx(Y.std(dtype=float))
    classes = np.arange(1003) % 4
    table = standardised(ArrayTable(X, classes))
    assert table.mean[1] is table.std[1] is None
    assert_all_equal(table.read(0)[1:], (classes,))
    pixels = standardised(ArrayTable(np.arange(200, dtype=np.uint8)[:, None]))
    assert pixels.read(0)[0].dtype == np.float32 and abs(pixels.read(0)[0].mean()) < 1e-6


def test_columns_that_are_kept_are_the_same_bits():
    codes = (np.arange(1003) % 3).astype(np.float32)
    inputs = np.column_stack([X[:, 0], codes, X[:, 1]])
    table = standardised(ArrayTable(inputs, Y, block_size=100), keep=[1])
    found, expected = whole(table)[0], whole(standardised(ArrayTable(inputs, Y, block_size=100)))[0]
    assert_all_equal((found[:, 1], found[:, [0, 2]]), (codes, expected[:, [0, 2]]))
    assert_all_equal(table.apply(inputs[:5]), (found[:5],))
    assert table.mean[0][1] == 0.0 and table.std[0][1] == 1.0


def test_another_table_takes_the_moments_of_the_first():
    first = standardised(ArrayTable(X, Y))
    second = Standardised(ArrayTable(X[:50], Y[:50]), first.mean, first.std)
    assert_all_equal(second.head(50), first.head(50))
    again = moments(first)
    np.testing.assert_allclose(again.mean[0], 0.0, atol=1e-12)
    np.testing.assert_allclose(again.std[0], 1.0, rtol=1e-12)


# Minibatches

sizes = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 200),
        "block": st.integers(1, 40),
        "window": st.integers(1, 100),
        "share": st.floats(0.0, 1.0),
        "seed": st.integers(0, 2**64 - 1),
        "read_ahead": st.integers(0, 3),
    }
)


def drawn(s: dict) -> Minibatches:
    batch = max(1, round(s["share"] * s["rows"]))
    table = numbered(s["rows"], s["block"])
    return Minibatches(table, batch, s["seed"], window=s["window"], read_ahead=s["read_ahead"])


@given(sizes)
def test_an_epoch_visits_every_row_once_but_those_that_do_not_fill_a_minibatch(s):
    with drawn(s) as batches:
        for number in range(3):
            rows = epoch(batches, number)
            assert rows.shape == (s["rows"] // batches.batch_size, batches.batch_size)
            assert len(np.unique(rows)) == rows.size > s["rows"] - batches.batch_size
            assert set(rows.ravel().tolist()) <= set(range(s["rows"]))


@given(sizes, st.lists(st.integers(1, 30), min_size=1, max_size=4))
def test_pieces_equal_one_big_take_and_are_the_same_every_time(s, counts):
    with drawn(s) as batches:
        step, parts = 0, []
        for count in counts:
            parts += batches.take(step, count)
            step += count
    with drawn(s) as again:
        np.testing.assert_array_equal(np.concatenate(parts), again.take(0, step)[0])


@given(sizes, st.lists(st.integers(0, 300), min_size=1, max_size=5))
def test_seeking_equals_going_there(s, steps):
    with drawn(s) as batches:
        (everything,) = batches.take(0, max(steps) + 1)
    with drawn(s) as batches:
        for step in steps:
            np.testing.assert_array_equal(batches.take(step, 1)[0][0], everything[step])


def test_arrays_stay_together_and_match_a_table_in_a_file(tmp_path):
    table = ArrayTable(mapped(tmp_path / "x.bin", X), mapped(tmp_path / "y.bin", Y), block_size=100)
    with Minibatches(table, 64, seed=3, window=300) as batches:
        inputs, y = batches.take(3, 40)
    assert inputs.shape == (40, 64, 3) and y.shape == (40, 64) and inputs.dtype == y.dtype == np.float32
    position = {value: i for i, value in enumerate(Y.tolist())}
    rows = np.array([position[value] for value in y.ravel().tolist()])
    np.testing.assert_array_equal(inputs.reshape(-1, 3), X[rows])
    with Minibatches(ArrayTable(X, Y, block_size=100), 64, seed=3, window=300) as batches:
        assert_all_equal(batches.take(3, 40), (inputs, y))


def test_what_was_taken_is_not_overwritten():
    with Minibatches(numbered(1000, 50), 10, seed=0, window=100) as batches:
        (first,) = batches.take(0, 5)
        copy = first.copy()
        batches.take(5, 500)
        np.testing.assert_array_equal(first, copy)


def test_seeds_and_epochs_differ():
    with Minibatches(numbered(500, 20), 10, seed=0) as a, Minibatches(numbered(500, 20), 10, seed=1) as b:
        assert (epoch(a) != epoch(b)).mean() > 0.9
        assert (epoch(a) != epoch(a, 1)).mean() > 0.9


def test_windows_mix_blocks_and_blocks_come_in_random_order():
    with Minibatches(numbered(10_000, 100), 100, seed=0, window=2000) as batches:
        blocks = epoch(batches) // 100  # of every row
    # A window holds 20 to 30 of the 100 blocks, and each of its minibatches of 100 rows nearly all of them.
    assert min(len(np.unique(batch)) for batch in blocks) > 14
    windows = [set(np.unique(blocks[i : i + 15]).tolist()) for i in (0, 80)]
    assert not windows[0] & windows[1]
    assert max(windows[0]) - min(windows[0]) > 60  # not neighbours in the table


def test_the_order_of_rows_is_uniform():
    """Three windows of two blocks: over many epochs, every row lands as often at every position of the epoch."""
    counts = np.zeros((12, 12))
    with Minibatches(numbered(12, 2), 1, seed=0, window=2) as batches:
        for number in range(2000):
            counts[np.arange(12), epoch(batches, number).ravel()] += 1
    assert abs(counts - 2000 / 12).max() < 5 * np.sqrt(2000 / 12)


class Watched(ArrayTable):
    """Notes which blocks are read, by which threads; ``failing`` cannot be read."""

    def __init__(self, *arrays, failing=None, **options):
        super().__init__(*arrays, **options)
        self.blocks, self.threads, self.read_enough, self.failing = [], set(), threading.Event(), failing
        self.enough = lambda blocks: False

    def read(self, block):
        if block == self.failing:
            raise DatasetError(f"cannot read block {block} of somewhere.bin")
        self.blocks.append(block)
        self.threads.add(threading.current_thread())
        if self.enough(self.blocks):
            self.read_enough.set()
        return super().read(block)


def test_seeking_reads_only_the_windows_of_the_step():
    table = Watched(np.arange(10_000), block_size=100)
    with Minibatches(table, 10, seed=0, window=500, read_ahead=0) as batches:
        batches.take(123_456, 1)
        assert 5 <= len(table.blocks) <= 14  # a window, or two if the step lies on their border


def test_windows_are_read_ahead_in_one_thread_and_no_further():
    table = Watched(np.arange(10_000), block_size=100)
    with Minibatches(table, 10, seed=0, window=500, read_ahead=2) as batches:
        table.enough = lambda blocks: len(blocks) >= 15  # those of three windows
        batches.take(0, 1)
        assert table.read_enough.wait(30)
        assert threading.current_thread() not in table.threads and len(table.threads) == 1
    assert len(table.blocks) <= 21
    assert len(set(table.blocks)) == len(table.blocks)


def test_windows_are_still_read_ahead_after_seeking():
    alone = Watched(np.arange(10_000), block_size=100)
    with Minibatches(alone, 10, seed=0, window=500, read_ahead=0) as batches:
        for step in (7005, 7100, 7150):  # in the first three windows of an epoch
            batches.take(step, 1)
    table = Watched(np.arange(10_000), block_size=100)
    table.enough = lambda blocks: blocks[-len(alone.blocks) :] == alone.blocks
    with Minibatches(table, 10, seed=0, window=500, read_ahead=2) as batches:
        for step in (900, 100, 500, 50, 7005):
            batches.take(step, 1)
        assert table.read_enough.wait(30)


def test_a_read_that_fails_raises_when_its_window_is_needed_and_ends_the_thread():
    table = Watched(np.arange(10_000), block_size=100, failing=42)
    threads = threading.active_count()
    batches = Minibatches(table, 10, seed=0, window=500)
    with pytest.raises(DatasetError, match=r"block 42 of somewhere.bin"):
        for step in range(batches.steps_per_epoch):
            batches.take(step, 1)
    assert 0 < step < batches.steps_per_epoch - 1
    assert threading.active_count() == threads
    with pytest.raises(ValueError, match="closed"):
        batches.take(0, 1)


@pytest.mark.parametrize("damage", [os.remove, lambda path: os.truncate(path, 4000)], ids=["removed", "truncated"])
def test_a_file_that_is_lost_is_named(tmp_path, damage):
    tables = [ArrayTable(mapped(tmp_path / "x.bin", X), block_size=100)]
    tables.append(ParquetTable(write(tmp_path / "x.parquet", {"a": Y}), columns=["a"]))
    for table, name in zip(tables, ("x.bin", "x.parquet"), strict=True):
        damage(tmp_path / name)
        with Minibatches(table, 10, seed=0) as batches, pytest.raises(DatasetError, match=f"cannot read .*{name}"):
            batches.take(0, 1)


def test_close_ends_the_thread_and_can_be_repeated():
    threads = set(threading.enumerate())
    batches = Minibatches(numbered(1000, 10), 10, seed=0, window=100)
    batches.take(0, 1)
    assert len(set(threading.enumerate()) - threads) == 1
    batches.close()
    batches.close()
    assert set(threading.enumerate()) == threads
    with pytest.raises(RuntimeError, match="stop"), Minibatches(numbered(1000, 10), 10, seed=0, window=100) as batches:
        batches.take(0, 1)
        raise RuntimeError("stop")
    assert set(threading.enumerate()) == threads


def test_minibatches_that_are_forgotten_end_their_thread():
    threads = set(threading.enumerate())
    batches = Minibatches(numbered(1000, 10), 10, seed=0, window=100)
    batches.take(0, 1)
    (thread,) = set(threading.enumerate()) - threads
    del batches
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


def test_steps_beyond_32_bits_are_taken():
    with Minibatches(ArrayTable(X, Y), 10, seed=0) as batches:
        assert batches.take(np.int32(2**31 - 1), np.int32(1))[1].shape == (1, 10)


@pytest.mark.slow
def test_memory_is_a_few_windows_whatever_the_table(tmp_path):
    """Of a table of 32 MB in a file: windows of 1.6 MB, four of them, and blocks."""
    data = np.memmap(tmp_path / "zeros.bin", np.float32, "w+", shape=(1_000_000, 8))
    table = ArrayTable(data[:, :7], data[:, 7], block_size=10_000)
    tracemalloc.start()
    try:
        with Minibatches(standardised(table), 1000, seed=0, window=50_000) as batches:
            for step in range(0, 1000, 10):
                batches.take(step, 10)
        assert tracemalloc.get_traced_memory()[1] < 16e6
    finally:
        tracemalloc.stop()


# Refusals


def of_file(*, columns=("a",), name="t", **options):
    """A table of a file of ``folder``: one of data, one without rows, one that is no table, none, or a folder."""

    def read(folder):
        write(folder / "t.parquet", {"a": Y, "b": Y, "text": ["x"] * len(Y)})
        write(folder / "zero.parquet", {"a": Y[:0]})
        (folder / "text.parquet").write_text("not a table")
        (folder / "empty").mkdir()
        paths = [] if name is None else folder / (name if name == "empty" else f"{name}.parquet")
        return ParquetTable(paths, columns=columns, **options)

    return read


def of_arrays(*arrays, **options):
    return lambda _: ArrayTable(*arrays, **options)


def of_table(call):
    return lambda _: call(ArrayTable(X, Y))


def batches(**options):
    return of_table(lambda table: Minibatches(table, **(dict(batch_size=10, seed=0) | options)))


def taken(*steps):
    def take(_):
        with Minibatches(ArrayTable(X, Y), 10, seed=0) as batches:
            batches.take(*steps)

    return take


def scaled(mean, std):
    return of_table(lambda table: Standardised(table, mean, std))


#: A call, the error that it raises, and what this names.
REFUSED = [
    (of_file(columns=["a", "z"]), ValueError, "'z'"),
    (of_file(target="z"), ValueError, "'z'"),
    (of_file(columns=["a", "text"]), TypeError, "'text'"),
    (of_file(target="b", classes=True), TypeError, "'b'.*integer"),
    (of_file(target="a"), ValueError, "columns and target"),
    (of_file(columns=[]), ValueError, "columns"),
    (of_file(dtype=np.int32), TypeError, "dtype"),
    (of_file(name="nowhere"), DatasetError, "nowhere"),
    (of_file(name="empty"), DatasetError, "empty"),
    (of_file(name="text"), DatasetError, "text.parquet"),
    (of_file(name="zero"), ValueError, "zero"),
    (of_file(name=None), ValueError, "paths"),
    (of_arrays(X, Y[:-1]), ValueError, r"\(1002,\)"),
    (of_arrays(X[:0], Y[:0]), ValueError, "empty"),
    (of_arrays(X[:, :0]), ValueError, "empty"),
    (of_arrays(), ValueError, "arrays"),
    (of_arrays(X, np.float32(1.0)), ValueError, "one row per datum"),
    (of_arrays(X, np.array(["a"] * 1003)), TypeError, "Array 1"),
    (of_arrays(X * 1j), TypeError, "Array 0.*complex"),
    (of_arrays(np.ma.masked_array(X)), ValueError, "Array 0.*mask"),
    (of_arrays(X, block_size=0), ValueError, "block_size"),
    (of_arrays(X, dtype=int), TypeError, "dtype"),
    (lambda _: ArrayTable(np.array([1.0, 1e200]), dtype=np.float32).read(0), ValueError, "float32.*row 1 of block 0"),
    *((of_table(lambda table, rows=rows: table.head(rows)), ValueError, "rows") for rows in (0, -1, 1004)),
    *((of_table(lambda table, g=g: moments(table, groups=[g])), ValueError, "groups") for g in (2, -1)),
    *((of_table(lambda table, k=k: standardised(table, keep=[k])), ValueError, "keep") for k in (3, -1)),
    (lambda _: standardised(ArrayTable(np.zeros((5, 2, 2))), keep=[0]), ValueError, "keep"),
    (scaled([np.zeros(3)], [np.ones(3)]), ValueError, "mean and std"),
    (scaled([np.zeros(2), 0.0], [np.ones(2), 1.0]), ValueError, "mean and std"),
    (scaled([np.zeros(3), 0.0], [-np.ones(3), 1.0]), ValueError, "mean and std"),
    (scaled([np.full(3, np.nan), 0.0], [np.ones(3), 1.0]), ValueError, "mean and std"),
    (scaled([np.zeros(3), None], [np.ones(3), 1.0]), ValueError, "mean and std"),
    (of_table(lambda table: standardised(table).apply(X[:, :2])), ValueError, r"array 0.*\(3,\)"),
    (of_table(lambda table: standardised(table).apply(X, Y, Y)), ValueError, "2 groups"),
    (batches(batch_size=0), ValueError, "batch_size"),
    (batches(batch_size=1004), ValueError, "batch_size"),
    (batches(seed=-1), ValueError, "seed"),
    (batches(seed=2**64), ValueError, "seed"),
    (batches(window=0), ValueError, "window"),
    (batches(read_ahead=-1), ValueError, "read_ahead"),
    (taken(-1, 1), ValueError, "step"),
    (taken(0, 0), ValueError, "count"),
    *((of_table(lambda table, rows=rows: hold_out(table, rows)), ValueError, "rows") for rows in (0, 1003, -1)),
]


@pytest.mark.parametrize("call, kind, named", REFUSED)
def test_what_is_no_table_is_refused(call, kind, named, tmp_path):
    with pytest.raises(kind, match=named):
        call(tmp_path)
