"""Arguments with labels: a Dataset becomes the arguments of a program, and results get its coordinates back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpzoo import _checks as checks
from gpzoo._labels import SAME, aligned, columns_in, columns_in_order, first_index, places


@dataclass(frozen=True)
class Labels:
    """The dimensions and coordinates of a Dataset. Its cells, in C order, are the rows of arguments.

    Attributes:
        dims: names and lengths of the dimensions.
        coords: coordinates by name, as xarray takes them.
        columns: coordinates of every row, by name, ``[N]``.
    """

    dims: Mapping[str, int]
    coords: Mapping[str, Any]
    columns: Mapping[str, np.ndarray]

    def labelled(self, x: Any, before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> Any:
        """An array of all rows, ``[*before, N, *after]``, as ``xarray.DataArray`` with the dimensions in place of rows.

        ``None`` stays as it is.
        """
        import xarray

        if x is None:
            return x
        at, shape = len(before), np.shape(x)
        more = tuple(f"axis_{i}" for i in range(np.ndim(x) - at - 1 - len(after)))
        values = np.reshape(x, (*shape[:at], *self.dims.values(), *shape[at + 1 :]))
        return xarray.DataArray(values, self.coords, (*before, *self.dims, *more, *after))

    def by_rows(self, name: str, x: Any) -> Any:
        """The values of a DataArray or Series with these dimensions, in the order of the rows, ``[N, ...]``.

        A value without these dimensions stays as it is.

        Raises:
            ValueError: for labels that differ from the labels of the rows, naming the argument.
        """
        if hasattr(x, "iloc") and set(x.index.names) == set(self.dims):
            x = x.to_xarray()
        if not set(self.dims) <= set(map(str, getattr(x, "dims", ()))):
            return x
        for dim in self.dims:
            if dim in x.indexes and dim in self.coords:
                own, wanted = x.indexes[dim].tolist(), self.coords[dim].to_index().tolist()
                x = x.isel({dim: places(own, wanted, name, "the Dataset", f"labels of {dim!r}", SAME)})
        x = x.transpose(*self.dims, ...).values
        return x.reshape(-1, *x.shape[len(self.dims) :])


def labels_of(program: Callable, args: tuple) -> Labels | None:
    """The labels of arguments that are one Dataset, or one DataArray of data; ``None`` for other arguments."""
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
    """Labels of the rows, ``[N]``, by name: the coordinates of a Dataset, or the levels of an index.

    The index is the index of the first argument that has one. If it only counts the rows from 0, there are no labels.
    """
    if (labels := labels_of(program, args)) is not None:
        return dict(labels.columns)
    index = first_index(args)
    if index is None or (type(index).__name__ == "RangeIndex" and index.equals(type(index)(len(index)))):
        return {}
    found: dict[str, np.ndarray] = {}
    for level, name in enumerate(index.names):
        values = np.asarray(index.get_level_values(level))
        found[str(name or "index")] = values.astype(str) if values.dtype == object else values
    return found


def rows_of_test_data(program: Callable, new: tuple, values: Any, described: Mapping[str, Any]) -> Any:
    """Test data by site, with rows in the order of the new arguments, and columns in the order of the training.

    Raises:
        ValueError: if the test data have other row labels than the new arguments, or other columns than the training.
    """
    if not isinstance(values, Mapping):
        return values
    orders, of = _orders(described), {}
    for site, x in values.items():
        name = f"test_data[{site!r}]"
        of[name] = columns_in_order(x, orders.get(site, []), name)
    return dict(zip(values, in_order_of_rows(program, new, of), strict=True))


def in_order_of_rows(program: Callable, args: tuple, values: Mapping[str, Any]) -> list[Any]:
    """Values beside the arguments, by name, with their rows in the order of the arguments' rows.

    Raises:
        ValueError: for labels that differ from the labels of the arguments' rows, naming the value.
    """
    if (labels := labels_of(program, args)) is not None:
        return [labels.by_rows(name, x) for name, x in values.items()]
    names = [*checks.positional(program, len(args))[0], *values]
    return list(aligned(names, (*args, *values.values()))[len(args) :])


def unlabelled(program: Callable, args: tuple, described: Mapping[str, Any] | None = None) -> tuple:
    """Arrays by row in place of one Dataset or DataArray; all other arguments stay as they are.

    An argument of the program gets the variable of its name. If no variable or coordinate has the name of the first
    argument, the first argument gets the coordinates of all dimensions, ``[N, d]``, in the order of the dimensions.
    Otherwise, an argument may also get the coordinate of its name.

    Each cell of the dimensions of these variables is a row. The variable with the most dimensions gives the order of
    the dimensions, and the rows are in C order. A second dimension of the first argument may be for columns, not for
    rows. For this, no other variable may have this dimension. There must also be other variables, or the labels of the
    dimension must be words. A DataArray with the name of a later argument is treated as a Dataset. Any other DataArray
    is an ordinary array.

    Args:
        program: the program, whose parameters give the names of the arguments.
        args: positional arguments.
        described: description of the training data; columns get the order that they had in training.

    Raises:
        ValueError: for a dimension without a coordinate, coordinates that are not numbers, data that lack a dimension,
            other arguments beside a Dataset, and columns with other names than in the training.
    """
    orders = _orders(described or {})
    if (labels := labels_of(program, args)) is None:
        return tuple(columns_in_order(x, orders.get(name, []), name) for name, x in _named(program, args))
    import xarray

    data, (first, *others) = _dataset(program, args), _names(program)
    order = orders.get(first, [])
    like = xarray.DataArray(np.zeros(tuple(labels.dims.values())), dims=tuple(labels.dims))
    stacked, found = first not in data.variables, {}
    taken = [at for at in (first, *others) if at in (data.data_vars if stacked else data.variables)]
    own = _dimension_of_columns(data, _names(program))
    for at in taken:
        if own and at == first:
            table = data[at].transpose(*labels.dims, own)
            found[at] = columns_in_order(table, order if _labels_of_columns(data, own) else [], first).values
            continue
        lacking = [dim for dim in labels.dims if dim not in data[at].dims]
        checks.refuse(
            lacking and at == taken[-1] and at in data.data_vars,
            f"Variable {at!r} has no dimension {lacking}, which others have: its values would count several times.",
        )
        found[at] = data[at].broadcast_like(like).transpose(*labels.dims).values.ravel()
    if stacked:
        names = list(labels.columns)
        in_order = places(names, order, first, "the training", "columns", SAME) if order else range(len(names))
        columns = {names[i]: labels.columns[names[i]] for i in in_order}
        odd = {at: str(x.dtype) for at, x in columns.items() if x.dtype.kind not in "fiub"}
        checks.refuse(odd, f"Coordinates must be numbers, such as the days since the first date; got {odd}.")
        found[first] = np.stack(list(columns.values()), axis=1)
    last = max(i for i, at in enumerate((first, *others)) if at in found)
    return tuple(found.get(at) for at in (first, *others)[: last + 1])


def columns_of(program: Callable, args: tuple) -> dict[str, str]:
    """Names of the columns of a program's arguments, if they have any, as a trained model describes its data."""
    if (labels := labels_of(program, args)) is not None:
        data, (first, *_) = _dataset(program, args), _names(program)
        own = _dimension_of_columns(data, _names(program))
        found = {first: list(labels.columns) if first not in data.variables else _labels_of_columns(data, own)}
    else:
        found = {name: list(map(str, columns_in(x))) for name, x in _named(program, args)}
        if len(args) == 1 and checks.is_table(args[0]):
            groups = args[0].groups
            named = zip(checks.positional(program, len(groups))[0], groups, strict=True)
            found = {name: list(group.names) for name, group in named if group.shape}
    return {f"argument {name} columns": json.dumps(columns) for name, columns in found.items() if columns}


def described_columns(described: Mapping[str, Any]) -> dict[str, str]:
    """The part of a description of data that comes from :func:`columns_of`."""
    return {name: x for name, x in described.items() if name.startswith("argument ") and name.endswith(" columns")}


def columns_of_inputs(program: Callable, described: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The name of a program's first argument, and the names of its columns, if they have any."""
    name = next(iter(_names(program)), "")
    return name, _orders(described).get(name, [])


def _orders(described: Mapping[str, Any]) -> dict[str, list[str]]:
    """Names of columns by argument."""
    return {name[9:-8]: json.loads(x) for name, x in described_columns(described).items()}


def _named(program: Callable, args: tuple) -> list[tuple[str, Any]]:
    return list(zip(checks.positional(program, len(args))[0], args, strict=True))


def _names(program: Callable) -> list[str]:
    """The names of a program's positional arguments."""
    return [name for name in checks.positional(program, 100)[0] if not name.startswith("args[")]


def _dataset(program: Callable, args: tuple) -> Any:
    """A Dataset from the only argument, if it is meant as one, without variables that the program does not take."""
    of_xarray = [x for x in args if type(x).__module__.partition(".")[0] == "xarray"]
    several = any(hasattr(x, "data_vars") for x in of_xarray) and len(args) > 1
    message = "A Dataset stands for all positional arguments of the program: pass it alone, or data.to_dataframe()."
    checks.refuse(several, message)
    if not of_xarray or len(args) != 1:
        return None
    (x,), names = args, _names(program)
    if not hasattr(x, "data_vars"):
        return x.to_dataset() if x.name in names[1:] else None
    # The variable with the most dimensions first, because the order of its dimensions gives the order of the rows.
    used = sorted((name for name in names if name in x.data_vars), key=lambda name: -x[name].ndim)
    return x[used] if used else x


def _dimension_of_columns(data: Any, names: list[str]) -> Any:
    """The dimension of the first argument's columns, ``[row, column]``; ``None`` if all dimensions are of rows."""
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
    """The names of the coordinates of all dimensions of rows; of the levels, if several share one dimension."""
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
