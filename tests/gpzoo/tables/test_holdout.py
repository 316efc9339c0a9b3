"""Rows put aside from a table: every row is on one side, once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpzoo.tables.arrays import ArrayTable
from gpzoo.tables.hold_out import hold_out
from gpzoo.tables.standardise import standardised


@given(st.integers(2, 60), st.integers(1, 20), st.data())
def test_every_row_is_on_one_side(rows, block_size, data):
    aside = data.draw(st.integers(1, rows - 1))
    table = ArrayTable(np.arange(2.0 * rows).reshape(rows, 2), np.arange(rows), block_size=block_size)
    rest, X, y = hold_out(table, aside, seed=3)
    left = [rest.read(block) for block in range(len(rest.block_rows))]
    assert rest.num_rows == rows - aside == sum(len(part[1]) for part in left)
    assert all(len(part[1]) == size > 0 for part, size in zip(left, rest.block_rows, strict=True))
    everything = np.concatenate([y, *(part[1] for part in left)])
    np.testing.assert_array_equal(np.sort(everything), np.arange(rows))
    for X_part, y_part in [(X, y), *left]:
        np.testing.assert_array_equal(X_part, np.stack([2.0 * y_part, 2.0 * y_part + 1], axis=1))


def test_the_draw_is_fixed_by_the_seed_and_in_the_fingerprint():
    table = ArrayTable(np.arange(100.0)[:, None], np.arange(100), block_size=30)
    first, again, other = (hold_out(table, 20, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first[2], again[2])
    assert not np.array_equal(first[2], other[2])
    assert first[0].fingerprint == again[0].fingerprint != other[0].fingerprint
    assert len(np.unique(np.diff(first[2]))) > 3  # spread over the table, not a stretch of it


def test_what_is_left_is_a_table_like_others():
    rest, X, y = hold_out(ArrayTable(np.arange(50.0)[:, None], np.arange(50.0) * 3, block_size=7), 10)
    table = standardised(rest)
    values = table.head(40)[0]
    np.testing.assert_allclose([values.mean(), values.std()], [0, 1], atol=1e-12)
    assert table.apply(X, y)[0].shape == (10, 1)
