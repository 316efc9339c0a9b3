"""Labels of rows and columns of pandas and xarray, which put arguments in one order or make gpzoo refuse them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

#: Advice for labels that differ from those that are known.
SAME = "Pass the same ones."

#: Largest number of labels that a message names.
_NAMED = 5


def index_of(x: Any) -> Any:
    """The row labels of a frame, a Series or a DataArray, as an index of pandas; ``None`` if there are no labels."""
    if hasattr(x, "iloc"):
        return x.index
    return x.indexes.get(x.dims[0]) if hasattr(x, "isel") and getattr(x, "ndim", 0) else None


def columns_in(x: Any) -> list[Any]:
    """The labels of the columns of a frame, or of the second dimension of a DataArray."""
    if hasattr(x, "columns") and hasattr(x, "dtypes"):
        return list(x.columns)
    return list(x.indexes.get(x.dims[1], ())) if hasattr(x, "isel") and getattr(x, "ndim", 0) == 2 else []


def columns_in_order(x: Any, order: Sequence[str], name: str, whose: str = "the training") -> Any:
    """An array with labels of columns, in an order of these labels; anything else as it is.

    Raises:
        ValueError: as for :func:`places`.
    """
    labels = columns_in(x)
    own = list(map(str, labels))
    if not order or not labels or own == list(order):
        return x
    at = places(own, order, name, whose, "columns", SAME)
    return x.isel({x.dims[1]: at}) if hasattr(x, "isel") else x[[labels[i] for i in at]]


def first_index(args: tuple) -> Any:
    """The row labels of the first argument that has labels; ``None`` if no argument has labels."""
    indexes = (index_of(x) for x in jax.tree.leaves(args, is_leaf=_is_iterator))
    return next((index for index in indexes if index is not None), None)


def aligned(names: Sequence[str], args: tuple) -> tuple:
    """The arguments of one call, with their rows in the order of the first argument that has labels.

    Arguments without labels keep their order.

    Raises:
        ValueError: as for :func:`places`.
    """
    index, whose = first_index(args), ""
    if index is None:
        return args

    def leaf(path: Any, x: Any) -> Any:
        nonlocal whose
        position: int = path[0].idx
        name, own = names[position] + jax.tree_util.keystr(path[1:]), index_of(x)
        whose = whose or (name if own is index else "")
        if own is None or own is index or own.equals(index):
            return x
        way_out = f"Rows go by their labels; to take them by position, pass {name}.to_numpy()."
        at = places(own.tolist(), index.tolist(), name, whose, "rows", way_out)
        return x.iloc[at] if hasattr(x, "iloc") else x.isel({x.dims[0]: at})

    return jax.tree_util.tree_map_with_path(leaf, args, is_leaf=_is_iterator)


def refuse_other_order(args: tuple, kwargs: Mapping[str, Any]) -> None:
    """Refuse a keyword argument that has the row labels in another order, because it may or may not have rows.

    Raises:
        ValueError: if there is one; the message names it.
    """
    index = first_index(args)
    for path, x in jax.tree_util.tree_leaves_with_path(dict(kwargs), is_leaf=_is_iterator):
        if in_another_order(index_of(x), index):
            raise ValueError(
                f"model_kwargs{jax.tree_util.keystr(path)} has the labels of the rows in another order. If it has a "
                "value for each row, make it a positional argument of the program or reindex it; if it has not, pass "
                "its to_numpy()."
            )


def in_another_order(own: Any, index: Any) -> bool:
    """Whether two indexes have the same labels in different orders."""
    return own is not None and index is not None and not own.equals(index) and set(own) == set(index)


def places(own: Sequence[Any], wanted: Sequence[Any], name: str, whose: str, what: str, way_out: str) -> list[int]:
    """The positions of the wanted labels among the labels of an argument.

    Args:
        own: labels of the argument.
        wanted: labels in the wanted order, from another argument.
        name: name of the argument.
        whose: name of the other argument.
        what: ``"rows"`` or ``"columns"``.
        way_out: the advice at the end of the message.

    Raises:
        ValueError: for a label that only one argument has, and for labels in another order that are not unique.
    """
    at, others = {label: i for i, label in enumerate(own)}, set(wanted)
    more = [label for label in at if label not in others]
    lacking = [label for label in dict.fromkeys(wanted) if label not in at]
    if more or lacking:
        sides = [f"{of} alone has {_some(labels)}" for of, labels in ((name, more), (whose, lacking)) if labels]
        raise ValueError(f"The {what} of {name} are not those of {whose}: {', and '.join(sides)}. {way_out}")
    if len(at) < len(own) or len(at) < len(wanted):
        raise ValueError(
            f"The {what} of {name} and of {whose} have labels that are not unique, in different orders, so that nobody "
            f"can tell which is which. {way_out}"
        )
    return [at[label] for label in wanted]


def _is_iterator(x: Any) -> bool:
    """Whether a leaf is an iterator. JAX would warn of it, but :mod:`gpzoo._checks` refuses it by name."""
    return isinstance(x, Iterator)


def _some(labels: list[Any]) -> str:
    named = ", ".join(str(label) for label in labels[:_NAMED])
    return named + (f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else "")
