"""Rows that are split over several devices, which a program finds by JAX's mesh, while :func:`fit` traces it under one.

A device takes its own rows in chunks, where all at once would not fit.
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
    """Devices over which the rows of the program that is being traced are split; 1 where one device's own are seen."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.size if mesh.axis_names == (ROWS,) and mesh.axis_types == (AxisType.Auto,) else 1


def split(tree: Any) -> Any:
    """Arrays of the program that is traced, with one row per datum: every device has its part of the rows."""
    return _constrained(tree, PartitionSpec(ROWS))


def everywhere(tree: Any) -> Any:
    """Arrays of the program that is traced, whole on every device."""
    return _constrained(tree, PartitionSpec())


def _constrained(tree: Any, spec: PartitionSpec) -> Any:
    return tree if number() == 1 else jax.tree.map(lambda x: lax.with_sharding_constraint(x, spec), tree)


def on_own_rows(function: Callable, rows: Any, *fixed: Any, axis: int = 0, found: int = 0) -> Any:
    """``function(rows, *fixed)``, where every device calls it with its own rows.

    XLA splits products over rows by itself, but no loop over rows: every device would take all of its turns.

    Args:
        function: closes over no array; its result has one row per datum too, each a function of its own row.
        rows: arrays ``[N, ...]``.
        *fixed: arguments that are the same for all rows.
        axis: the axis of the rows, where it is not the first.
        found: the same in the result of the function.
    """
    first = jax.tree.leaves(rows)[0]
    if number() == 1 or first.shape[axis] % number():
        return function(rows, *fixed)
    of = lambda axis: PartitionSpec(*[None] * axis, ROWS)  # noqa: E731
    specs = of(axis), *(PartitionSpec() for _ in fixed)
    # Derivatives that are written by hand, such as those of double sums, do not say over which devices they vary.
    return jax.shard_map(function, in_specs=specs, out_specs=of(found), check_vma=False)(rows, *fixed)


def in_chunks(function: Callable, values: int, rows: Any, *fixed: Any) -> Any:
    """``function(row, *fixed)`` for every row, on its own device, in chunks of the size at which the backend is fast.

    Args:
        function: as of :func:`on_own_rows`, but of one row.
        values: numbers that it holds at once.
        rows: arrays ``[N, ...]``.
        *fixed: arguments that are the same for all rows.
    """
    return on_own_rows(partial(_in_chunks, function, values), rows, *fixed)


def _in_chunks(function: Callable, values: int, rows: Any, *fixed: Any) -> Any:
    N, dtype = jax.tree.leaves(rows)[0].shape[0], jax.tree.leaves(rows)[0].dtype
    most = min(N, _platform.bytes_at_a_time() // (values * dtype.itemsize))
    # A chunk that divides N leaves no remainder, which would be compiled as a second loop body. A batch of one makes
    # XLA's CPU loops several times slower than no batch at all.
    size = next((size for size in range(most, most // 2, -1) if N % size == 0), most)
    return lax.map(lambda row: function(row, *fixed), rows, batch_size=size if size > 1 else None)
