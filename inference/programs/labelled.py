"""How does an xarray Dataset become the arguments of a program, and how do results get its coordinates back?"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpzoo import _checks as checks


@dataclass(frozen=True)
class Labels:
    """Where the rows of arguments come from: the dimensions of a Dataset, in C order.

    Attributes:
        dims: their names and lengths.
        coords: coordinates by name, as xarray takes them.
        columns: coordinates of every row, by name, ``[N]``.
    """

    dims: Mapping[str, int]
    coords: Mapping[str, Any]
    columns: Mapping[str, np.ndarray]

    def labelled(self, x: Any, before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> Any:
        """An array of all rows, ``[*before, N, *after]``, as ``xarray.DataArray`` with the dimensions in place of rows.

        Sites with other rows stay as they are, and so does ``None``.
        """
        import xarray

        at = len(before)
        if x is None or np.ndim(x) <= at or np.shape(x)[at] != math.prod(self.dims.values()):
            return x
        shape = np.shape(x)
        more = tuple(f"axis_{i}" for i in range(np.ndim(x) - at - 1 - len(after)))
        values = np.reshape(x, (*shape[:at], *self.dims.values(), *shape[at + 1 :]))
        return xarray.DataArray(values, self.coords, (*before, *self.dims, *more, *after))


def labels_of(program: Callable, args: tuple) -> Labels | None:
    """The labels of arguments that are one Dataset, or one DataArray of data; ``None`` for any others."""
    if (data := _dataset(program, args)) is None:
        return None
    import xarray

    names = _coordinates(data)
    every = xarray.broadcast(*(data[name] for name in names))
    columns = {str(name): x.values.ravel() for name, x in zip(names, every, strict=True)}
    coords = {str(name): x for name, x in data.coords.items()}
    return Labels({str(name): size for name, size in every[0].sizes.items()}, coords, columns)


def unlabelled(program: Callable, args: tuple) -> tuple:
    """Arrays by row in place of one Dataset or DataArray; other arguments as they are.

    Rows are those of all dimensions, in C order. An argument of the program takes the variable or coordinate of its
    name. The first argument, where there is none, takes the coordinates of all dimensions, ``[N, d]`` in the order of
    these. A DataArray is meant so if its name is that of a later argument: else it is an array like any other.

    Raises:
        ValueError: for a dimension without a coordinate.
    """
    if (labels := labels_of(program, args)) is None:
        return args
    import xarray

    data = _dataset(program, args)
    like = xarray.DataArray(np.zeros(tuple(labels.dims.values())), dims=tuple(labels.dims))
    names, found = _names(program), {}
    for name in names:
        if name in data.variables:
            rows = data[name].broadcast_like(like).transpose(*labels.dims)
            found[name] = rows.values.ravel()
    if names[0] not in found:
        found[names[0]] = np.stack(list(labels.columns.values()), axis=1)
    last = max(i for i, name in enumerate(names) if name in found)
    return tuple(found.get(name) for name in names[: last + 1])


def columns_of(program: Callable, args: tuple) -> dict[str, str]:
    """Names of the columns of a program's arguments, as a trained model describes its data."""
    if (labels := labels_of(program, args)) is not None:
        first = _names(program)[0]
        found = {} if first in _dataset(program, args).variables else {first: list(labels.columns)}
    else:
        named = zip(checks.positional(program, len(args))[0], args, strict=True)
        found = {name: list(map(str, x.columns)) for name, x in named if hasattr(x, "columns") and hasattr(x, "dtypes")}
    return {f"argument {name} columns": json.dumps(columns) for name, columns in found.items()}


def read_columns(described: Mapping[str, Any]) -> tuple[str, list[str]] | None:
    """The first argument whose columns have names, and these; of :func:`columns_of`."""
    found = ((name, x) for name, x in described.items() if name.startswith("argument ") and name.endswith(" columns"))
    return next(((name[9:-8], json.loads(x)) for name, x in found), None)


def _names(program: Callable) -> list[str]:
    """The names of a program's positional arguments."""
    return [name for name in checks.positional(program, 100)[0] if not name.startswith("args[")]


def _dataset(program: Callable, args: tuple) -> Any:
    """A Dataset of the only argument, where it is meant as one; no module is imported for any other."""
    if len(args) != 1 or type(args[0]).__module__.partition(".")[0] != "xarray":
        return None
    x = args[0]
    if hasattr(x, "data_vars"):
        return x
    return x.to_dataset() if x.name in _names(program)[1:] else None


def _coordinates(data: Any) -> list[Any]:
    """The names of the coordinates of all dimensions: of the levels where several share one."""
    found: list[Any] = []
    for dim in data.sizes:
        checks.refuse(
            dim not in data.indexes, f"Dimension {dim!r} of the Dataset has no coordinate: give it one, assign_coords."
        )
        found += list(data.indexes[dim].names) if len(data.indexes[dim].names) > 1 else [dim]
    return found
