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

    def by_rows(self, x: Any) -> Any:
        """A DataArray with these dimensions by row, ``[N, ...]``, by its labels; others as they are."""
        if not set(self.dims) <= set(map(str, getattr(x, "dims", ()))):
            return x
        x = x.sel({dim: self.coords[dim] for dim in self.dims if dim in x.coords and dim in self.coords})
        x = x.transpose(*self.dims, ...).values
        return x.reshape(-1, *x.shape[len(self.dims) :])


def labels_of(program: Callable, args: tuple) -> Labels | None:
    """The labels of arguments that are one Dataset, or one DataArray of data; ``None`` for any others."""
    if (data := _dataset(program, args)) is None:
        return None
    import xarray

    names = _coordinates(data, _dimension_of_columns(data, _names(program)))
    every = xarray.broadcast(*(data[name] for name in names))
    columns = {str(name): x.values.ravel() for name, x in zip(names, every, strict=True)}
    dims = {str(name): size for name, size in every[0].sizes.items()}
    coords = {str(name): x for name, x in data.coords.items() if set(map(str, x.dims)) <= set(dims)}
    return Labels(dims, coords, columns)


def coordinates_of_rows(program: Callable, args: tuple) -> dict[str, np.ndarray]:
    """What names every row, ``[N]``: the coordinates of a Dataset, or the index of a frame that has one of its own."""
    if (labels := labels_of(program, args)) is not None:
        return dict(labels.columns)
    found: dict[str, np.ndarray] = {}
    rows = len(args[0]) if args and hasattr(args[0], "__len__") else 0
    for index in (x.index for x in args if hasattr(x, "index") and hasattr(x.index, "get_level_values")):
        if type(index).__name__ == "RangeIndex" or len(index) != rows:  # rows were not named
            continue
        for level, name in enumerate(index.names):
            values = np.asarray(index.get_level_values(level))
            found[str(name or "index")] = values.astype(str) if values.dtype == object else values
    return found


def unlabelled(program: Callable, args: tuple, described: Mapping[str, Any] | None = None) -> tuple:
    """Arrays by row in place of one Dataset or DataArray; other arguments as they are.

    An argument of the program takes the variable of its name. The first argument, where there is none, takes the
    coordinates of all dimensions, ``[N, d]`` in the order of these; else arguments may take coordinates too. Rows are
    those of all dimensions of the variables that are taken, in C order as the one with most has them, but for a second
    dimension of the first argument that no other variable has: that of its columns, where there are others or its
    labels are words. A DataArray is meant so if its name is that of a later argument: else it is an array like any
    other.

    Args:
        program: for the names of its arguments.
        args: positional arguments.
        described: the data of a training, whose columns of inputs must be there in that order.

    Raises:
        ValueError: for a dimension without a coordinate, coordinates that are no numbers, data that lack a dimension,
            other arguments beside a Dataset, and columns that are not those of the training.
    """
    name, order = read_columns(described or {}) or ("", [])
    if (labels := labels_of(program, args)) is None:
        return tuple(_in_order(x, order) if at == name else x for at, x in _named(program, args))
    import xarray

    data, (first, *others) = _dataset(program, args), _names(program)
    like = xarray.DataArray(np.zeros(tuple(labels.dims.values())), dims=tuple(labels.dims))
    stacked, found = first not in data.variables, {}
    taken = [at for at in (first, *others) if at in (data.data_vars if stacked else data.variables)]
    own = _dimension_of_columns(data, _names(program))
    for at in taken:
        if own and at == first:
            table = data[at].transpose(*labels.dims, own)
            by_name = dict(zip(_labels_of_columns(data, own), table.values.T, strict=False))
            found[at] = table.values if not by_name else np.stack(list(_in_order(by_name, order).values()), axis=1)
            continue
        lacking = [dim for dim in labels.dims if dim not in data[at].dims]
        checks.refuse(
            lacking and at == taken[-1] and at in data.data_vars,
            f"Variable {at!r} has no dimension {lacking}, which others have: its values would count several times.",
        )
        found[at] = data[at].broadcast_like(like).transpose(*labels.dims).values.ravel()
    if stacked:
        columns = _in_order(labels.columns, order) if name == first else labels.columns
        odd = {at: str(x.dtype) for at, x in columns.items() if x.dtype.kind not in "fiub"}
        checks.refuse(odd, f"Coordinates must be numbers, such as the days since the first date; got {odd}.")
        found[first] = np.stack(list(columns.values()), axis=1)
    last = max(i for i, at in enumerate((first, *others)) if at in found)
    return tuple(found.get(at) for at in (first, *others)[: last + 1])


def columns_of(program: Callable, args: tuple) -> dict[str, str]:
    """Names of the columns of a program's inputs, its first argument, as a trained model describes its data."""
    if (labels := labels_of(program, args)) is not None:
        data, (first, *_) = _dataset(program, args), _names(program)
        own = _dimension_of_columns(data, _names(program))
        names = list(labels.columns) if first not in data.variables else _labels_of_columns(data, own)
        found = {first: names} if names else {}
    else:
        found = {name: list(map(str, x.columns)) for name, x in _named(program, args)[:1] if _is_frame(x)}
    return {f"argument {name} columns": json.dumps(columns) for name, columns in found.items()}


def read_columns(described: Mapping[str, Any]) -> tuple[str, list[str]] | None:
    """The argument whose columns have names, and these; of :func:`columns_of`."""
    found = ((name, x) for name, x in described.items() if name.startswith("argument ") and name.endswith(" columns"))
    return next(((name[9:-8], json.loads(x)) for name, x in found), None)


def _named(program: Callable, args: tuple) -> list[tuple[str, Any]]:
    return list(zip(checks.positional(program, len(args))[0], args, strict=True))


def _is_frame(x: Any) -> bool:
    return hasattr(x, "columns") and hasattr(x, "dtypes")


def _in_order(x: Any, order: list[str]) -> Any:
    """A frame, or columns by name, in the order of the training's; anything else as it is."""
    if not order or not (_is_frame(x) or isinstance(x, Mapping)):
        return x
    labels = list(x if isinstance(x, Mapping) else x.columns)
    if (own := list(map(str, labels))) == order:
        return x
    checks.refuse(sorted(own) != sorted(order), f"The inputs have the columns {own}, and those of training {order}.")
    if isinstance(x, Mapping):
        return {name: x[name] for name in order}
    return x[[labels[own.index(name)] for name in order]]


def _names(program: Callable) -> list[str]:
    """The names of a program's positional arguments."""
    return [name for name in checks.positional(program, 100)[0] if not name.startswith("args[")]


def _dataset(program: Callable, args: tuple) -> Any:
    """A Dataset of the only argument, where it is meant as one, without variables that the program does not take."""
    of_xarray = [x for x in args if type(x).__module__.partition(".")[0] == "xarray"]
    several = any(hasattr(x, "data_vars") for x in of_xarray) and len(args) > 1
    message = "A Dataset stands for all positional arguments of the program: pass it alone, or data.to_dataframe()."
    checks.refuse(several, message)
    if not of_xarray or len(args) != 1:
        return None
    (x,), names = args, _names(program)
    if not hasattr(x, "data_vars"):
        return x.to_dataset() if x.name in names[1:] else None
    # The variable with all dimensions first, whose order of them is that of the rows.
    used = sorted((name for name in names if name in x.data_vars), key=lambda name: -x[name].ndim)
    return x[used] if used else x


def _dimension_of_columns(data: Any, names: list[str]) -> Any:
    """That of the columns of the first argument, ``[row, column]``; ``None`` where rows are of all dimensions."""
    if names[0] not in data.data_vars or len(data.sizes) != 2 or len(dims := data[names[0]].dims) != 2:
        return None
    others = [data[at].dims for at in data.data_vars if at != names[0]]
    words = dims[1] in data.indexes and data.indexes[dims[1]].dtype.kind not in "fiubM"
    return dims[1] if (words or others) and all(dims[1] not in of for of in others) else None


def _labels_of_columns(data: Any, dim: Any) -> list[str]:
    found = list(map(str, data.indexes[dim])) if dim is not None and dim in data.indexes else []
    checks.refuse(len(set(found)) < len(found), f"Columns of the Dataset have the same label: {dim!r} is {found}.")
    return found


def _coordinates(data: Any, columns: Any) -> list[Any]:
    """The names of the coordinates of all dimensions of rows: of the levels where several share one."""
    checks.refuse(not data.sizes, "The Dataset has no dimensions, so that there are no rows.")
    found: list[Any] = []
    for dim in data.sizes:
        if dim == columns:
            continue
        checks.refuse(
            dim not in data.indexes, f"Dimension {dim!r} of the Dataset has no coordinate: give it one, assign_coords."
        )
        found += list(data.indexes[dim].names) if len(data.indexes[dim].names) > 1 else [dim]
    return found
