"""Containers of ArviZ from named arrays: groups of labelled arrays, in ArviZ 0.x or 1.x."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import jax
import numpy as np
import numpyro

import gpzoo
from gpzoo._extras import needs

#: Groups that have one number for a site, whatever its shape.
_SUMS = ("log_prior", "sample_stats")

#: The axes of draws.
SAMPLES = ("chain", "draw")


@dataclass
class Group:
    """A group of arrays.

    Attributes:
        values: the arrays, by name.
        dims: names of the axes of each array, by name of the array; ``None`` for an axis without a name. The axes of
            draws are not listed.
        drawn: whether the arrays begin with the axes of draws.
        rows: the rows of the group. ``"data"``: the rows of the data. ``"first"``: only the first rows of the data.
            ``"new"``: new rows, which do not have the coordinates of the data.
        attributes: attributes of the group, by name.
    """

    values: Mapping[str, Any]
    dims: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    drawn: bool = True
    rows: Literal["data", "first", "new"] = "data"
    attributes: Mapping[str, str] = field(default_factory=dict)


def container(
    groups: Mapping[str, Group],
    rows: Mapping[str, np.ndarray | None],
    known: Mapping[str, Any],
    coords: Mapping[str, Any] | None,
    dims: Mapping[str, Sequence[str]] | None,
    of_rows: Mapping[str, Mapping[str, np.ndarray]] | None = None,
) -> Any:
    """``arviz.InferenceData`` (ArviZ 0.x) or ``xarray.DataTree`` (1.x) of the groups that are not empty.

    Args:
        groups: groups by name.
        rows: for each axis of data rows, the indices of its rows in the data; ``None`` if the axis has all rows.
        known: coordinates of axes, by name of the axis.
        coords: the user's coordinates, which replace ``known``.
        dims: the user's names of axes, by name of the array.
        of_rows: further coordinates ``[N]`` of the rows of the data (key ``"data"``) and of new rows (key ``"new"``),
            by name.

    Raises:
        TypeError: for ``coords`` or ``dims`` that are not mappings.
        ValueError: if ``dims`` names an array that does not exist, or gives an array a wrong number of axes. Also if
            ``coords`` names an axis that does not exist, or has a wrong number of entries.
    """
    arviz = import_arviz()
    import xarray

    coords, dims = _named("coords", coords), _named("dims", dims)
    unknown_arrays, unknown_axes = set(dims), set(coords)
    sets = {}
    for group_name, group in groups.items():
        if not group.values:
            continue
        variables, lengths = {}, {}
        for name, value in group.values.items():
            value, name = np.asarray(value), name.replace("/", ".")  # netCDF keeps slashes for groups
            shape, given = value.shape[2 * group.drawn :], dims.get(name)
            if group_name in _SUMS and not shape:
                given = None
            if group_name == "log_likelihood" and given is not None and not isinstance(given, str):
                given = given[: max(len(shape), 1)]  # an entry that is a vector has one number
            axes = _axes(name, shape, group.dims.get(name), given)
            unknown_arrays.discard(name)
            axes = (*SAMPLES, *axes) if group.drawn else axes
            variables[name] = (axes, value)
            for axis, length in zip(axes, value.shape, strict=True):
                if lengths.setdefault(axis, length) != length:
                    raise ValueError(
                        f"Axis {axis!r} of group {group_name!r} has length {lengths[axis]}, and of {name!r} {length}: "
                        f"name it otherwise, dims={{{name!r}: [...]}}."
                    )
        labels = {}
        for axis, length in lengths.items():
            given = coords.get(axis, known.get(axis))
            unknown_axes.discard(axis)
            if group.rows == "new" and axis in rows:
                given = None
            elif group.rows == "first" and axis in {*rows, *known} and given is not None:
                given = given[:length]
            if group.rows != "new" or axis not in {*rows} & {*coords}:  # numbers beside user's labels would mislead
                labels[axis] = np.arange(length) if given is None else _label(axis, given, length, group_name)
            if axis in rows:
                own, at = (of_rows or {}).get("new" if group.rows == "new" else "data", {}), rows[axis]
                # If some rows are left out, the user's labels are still labels of all rows.
                all_rows = () if at is None or group.rows == "new" else {n for n, x in rows.items() if x is None}
                named = {n: np.ravel(coords[n]) for n in all_rows if n in coords and n not in lengths}
                at = np.arange(length) if at is None else at[:length]
                others = {*variables, *coords, *labels} - ({axis} - set(coords)) - set(named)
                own = {n: x for n, x in {**own, **named}.items() if n not in others and len(x) > max(at, default=0)}
                labels |= {name: (axis, x[at]) for name, x in own.items()}
        sets[group_name] = xarray.Dataset(variables, labels, _attributes() | dict(group.attributes))
    for argument, unknown in (("dims", unknown_arrays), ("coords", unknown_axes)):
        if unknown:
            there = {n for found in sets.values() for n in (found.data_vars if argument == "dims" else found.sizes)}
            raise ValueError(f"{argument} names {sorted(unknown)}, but there are {sorted(map(str, there))}.")
    if "InferenceData" in vars(arviz):  # hasattr would make ArviZ 1.x warn
        return arviz.InferenceData(**sets)
    return xarray.DataTree.from_dict(sets)


def _named(argument: str, given: Any) -> dict[str, Any]:
    if given is not None and not (isinstance(given, Mapping) and all(isinstance(name, str) for name in given)):
        raise TypeError(f"{argument} must map names to sequences, got {type(given).__name__}.")
    return dict(given or {})


def refuse_unwritable(coords: Mapping[str, Any] | None) -> None:
    """Refuse labels that are objects, because netCDF and Zarr cannot hold them.

    Raises:
        TypeError: naming the axis and the first label that is an object.
    """
    for axis, given in _named("coords", coords).items():
        labels = np.asarray(given)
        for label in labels.ravel() if labels.dtype == object else ():
            naive = isinstance(label, datetime) and label.tzinfo is None
            if not (naive or isinstance(label, str | None)):
                raise TypeError(
                    f"coords[{axis!r}] holds {label!r:.60} ({type(label).__name__}), which no file can hold: pass "
                    "numbers, texts, or dates without a time zone, numpy.array(dates, 'datetime64[ns]')."
                )


def _axes(
    name: str, shape: tuple[int, ...], found: Sequence[str | None] | None, given: Sequence[str] | None
) -> tuple[str, ...]:
    """The names of an array's axes: given names, else found names, else ArviZ's: the array's name and a number."""
    if given is not None:
        if isinstance(given, str) or len(given) != len(shape) or not all(isinstance(axis, str) for axis in given):
            raise ValueError(f"dims[{name!r}] must be {len(shape)} names, for the axes {list(shape)}; got {given!r}.")
        return tuple(given)
    names = list(found or ())[: len(shape)]
    names += [None] * (len(shape) - len(names))
    return tuple(f"{name}_dim_{i}" if axis is None else axis.replace("/", ".") for i, axis in enumerate(names))


def _label(axis: str, given: Any, length: int, group: str) -> np.ndarray:
    labels = np.asarray(given)
    if labels.shape != (length,):
        hint = " Labels of new rows come with them: give frames." if group.startswith("predictions") else ""
        raise ValueError(
            f"coords[{axis!r}] must have one entry for each of {length} (group {group!r}), got shape {labels.shape}."
            f"{hint}"
        )
    return labels


def _attributes() -> dict[str, str]:
    return {
        "created_at": datetime.now(UTC).isoformat(),
        "creation_library": "gpzoo",
        "inference_library": "numpyro",
        "inference_library_version": numpyro.__version__,
        "gpzoo_version": gpzoo.__version__,
        "jax_version": jax.__version__,
    }


def import_arviz() -> Any:
    """ArviZ, without the message about version 1 that it prints daily.

    Raises:
        MissingExtraError: without ArviZ, or without xarray, a dependency of ArviZ.
    """
    with needs(None, "An export, k-hat, R-hat or leave-one-out density"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing a major refactor", category=FutureWarning)
        import arviz
    return arviz
