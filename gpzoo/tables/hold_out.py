"""Random rows of a table, held out for testing."""

from __future__ import annotations

import hashlib
import operator
from functools import cached_property
from typing import Any

import numpy as np

from gpzoo import _checks as checks
from gpzoo.tables.table import Table


def hold_out(table: Table, rows: int, seed: int = 0) -> tuple[Any, ...]:
    """Hold out random rows of a table, drawn without replacement; only blocks with held-out rows are read.

    Example:
        >>> import numpy as np
        >>> from gpzoo.tables import ArrayTable, hold_out
        >>> rest, X_test, y_test = hold_out(ArrayTable(np.zeros((100, 2)), np.zeros(100)), rows=20)
        >>> rest.num_rows, X_test.shape, y_test.shape
        (80, (20, 2), (20,))

    Args:
        table: all rows.
        rows: number of rows to hold out.
        seed: seed of the draw.

    Returns:
        A table of the remaining rows, and the held-out rows as arrays ``[rows, ...]``, one per group of columns.

    Raises:
        ValueError: if ``rows`` is below 1, or if it leaves no rows in the table.
        DatasetError: if a block cannot be read.
    """
    rows = operator.index(rows)
    wanted = f"be between 1 and {table.num_rows - 1}, so that some are left"
    checks.must(1 <= rows < table.num_rows, "rows", wanted, str(rows))
    chosen = np.sort(np.random.Generator(np.random.Philox(seed)).choice(table.num_rows, rows, False, shuffle=False))
    parts = table.in_blocks(chosen)
    return _Without(table, parts), *table.rows(parts)


class _Without(Table):
    """A table without some rows of each block."""

    def __init__(self, table: Table, parts: list[np.ndarray]) -> None:
        # Empty blocks are dropped; the others keep their numbers in the inner table.
        left = table.block_rows - np.array(list(map(len, parts)))
        self._table, self._parts, self._blocks = table, parts, np.flatnonzero(left)
        self.groups, self.block_rows = table.groups, left[self._blocks]

    def stored(self, block: int) -> tuple[np.ndarray, ...]:
        """As :meth:`Table.stored`."""
        return self._rest(block, self._table.stored(int(self._blocks[block])))

    def read(self, block: int) -> tuple[np.ndarray, ...]:
        """As :meth:`Table.read`."""
        return self._rest(block, self._table.read(int(self._blocks[block])))

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """The inner table's fingerprint, and a checksum of the held-out rows."""
        digest = hashlib.sha256(np.concatenate(self._parts).astype("<i8").tobytes())
        return self._table.fingerprint | {"rows": self.num_rows, "without": digest.hexdigest()[:16]}

    def _rest(self, block: int, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        return tuple(np.delete(array, self._parts[self._blocks[block]], axis=0) for array in arrays)
