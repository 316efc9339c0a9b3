"""How are the rows of a program's inputs cut into batches?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np


def number_of_rows(args: tuple) -> int:
    """What all arrays have in common as their first axis; 0 if nothing."""
    rows = {np.shape(x)[0] if np.shape(x) else 0 for x in jax.tree.leaves(args)}
    return rows.pop() if len(rows) == 1 else 0


def batches(args: Any, num_rows: int, batch_size: int) -> Iterator[tuple[np.ndarray, Any]]:
    """Numbers of rows, and the arguments at these; the last batch repeats the last row, so that all have one shape."""
    for start in range(0, num_rows, batch_size):
        rows = np.minimum(np.arange(start, start + batch_size), num_rows - 1)
        yield rows, args if batch_size == num_rows else jax.tree.map(lambda x: x[rows], args)  # noqa: B023
