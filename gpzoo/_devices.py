"""Rows that are split over several devices; a program finds the devices by JAX's mesh, under which ``fit`` traces it.

A device takes its own rows in chunks if all rows at once would not fit into memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from gpzoo import _platform

#: Name of the axis of a mesh over which rows are split.
ROWS = "gpzoo rows"


def number() -> int:
    """The number of devices over which the rows of the traced program are split.

    The number is 1 if rows are not split, and inside code that gets only the rows of one device.
    """
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.size if mesh.axis_names == (ROWS,) and mesh.axis_types == (AxisType.Auto,) else 1


def split(tree: Any) -> Any:
    """Arrays of the traced program, split by rows: every device has some of the rows."""
    return _constrained(tree, PartitionSpec(ROWS))


def everywhere(tree: Any) -> Any:
    """Arrays of the traced program, whole on every device."""
    return _constrained(tree, PartitionSpec())


def _constrained(tree: Any, spec: PartitionSpec) -> Any:
    return tree if number() == 1 else jax.tree.map(lambda x: lax.with_sharding_constraint(x, spec), tree)


def on_own_rows(function: Callable, rows: Any, *fixed: Any, axis: int = 0, found: int = 0) -> Any:
    """``function(rows, *fixed)``; every device calls the function with its own rows.

    XLA itself splits products over rows, but not loops over rows. In a loop, every device would run over all rows.

    Args:
        function: a function without arrays in its closure. Its result has one row for each row of ``rows``, which
            depends only on this row.
        rows: arrays ``[N, ...]``.
        *fixed: arguments that are the same for all rows.
        axis: the axis of the rows in ``rows``.
        found: the axis of the rows in the result of the function.
    """
    first = jax.tree.leaves(rows)[0]
    if number() == 1 or first.shape[axis] % number():
        return function(rows, *fixed)
    of = lambda axis: PartitionSpec(*[None] * axis, ROWS)  # noqa: E731
    specs = of(axis), *(PartitionSpec() for _ in fixed)
    # Derivatives written by hand, such as the derivatives of double sums, do not say over which devices they vary.
    return jax.shard_map(function, in_specs=specs, out_specs=of(found), check_vma=False)(rows, *fixed)


def in_chunks(function: Callable, values: int, rows: Any, *fixed: Any) -> Any:
    """``function(row, *fixed)`` for every row, on its own device, in chunks whose size suits the backend.

    Args:
        function: as for :func:`on_own_rows`, but of one row.
        values: number of values that the function has in memory at once.
        rows: arrays ``[N, ...]``.
        *fixed: arguments that are the same for all rows.
    """
    return on_own_rows(partial(_in_chunks, function, values), rows, *fixed)


def _in_chunks(function: Callable, values: int, rows: Any, *fixed: Any) -> Any:
    N, dtype = jax.tree.leaves(rows)[0].shape[0], jax.tree.leaves(rows)[0].dtype
    most = min(N, _platform.bytes_at_a_time() // (values * dtype.itemsize))
    # If the chunk size divides N, there is no remainder. A remainder would be compiled as a second loop body. A batch
    # of one makes XLA's CPU loops several times slower than no batch at all.
    size = next((size for size in range(most, most // 2, -1) if N % size == 0), most)
    return lax.map(lambda row: function(row, *fixed), rows, batch_size=size if size > 1 else None)
