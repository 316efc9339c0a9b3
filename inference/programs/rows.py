"""The rows of a program's sites: which of them belong to which rows of its data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Integer


class Layout(NamedTuple):
    """The rows of a site for each row of the data.

    Attributes:
        count: how many rows of the site belong to one row of the data.
        strided: with ``N`` rows of data, whether these rows of the site are ``n``, ``n + N``, ``n + 2 N``, as after
            ``concatenate``. Otherwise, they follow each other.
    """

    count: int = 1
    strided: bool = False

    def rows(self, of: Integer[Array | np.ndarray, " N"], num_rows: Any) -> Any:
        """Numbers of the site's rows that belong to the rows ``of``, out of ``num_rows`` rows of the data."""
        each = np.arange(self.count, dtype=of.dtype)
        if self.strided:
            return (each[:, None] * num_rows + of).reshape(-1)
        return (of[:, None] * self.count + each).reshape(-1)

    def is_that(self, other: Layout | None, num_rows: int) -> bool:
        """Whether another layout of ``num_rows`` rows is the same."""
        return other is not None and other.count == self.count and (num_rows == 1 or other.strided == self.strided)

    def by_row(self, x: Array, axis: int = 0, back: bool = False) -> Array:
        """``x`` with the site's rows along ``axis`` ordered by row of the data; the inverse with ``back``."""
        if not self.strided:
            return x
        size = x.shape[axis]
        parts = (size // self.count, self.count) if back else (self.count, size // self.count)
        apart = x.reshape(*x.shape[:axis], *parts, *x.shape[axis + 1 :])
        return jnp.swapaxes(apart, axis, axis + 1).reshape(x.shape)


@dataclass(frozen=True)
class SiteRows:
    """Which rows of a program's sites belong to which rows of the data.

    Attributes:
        layouts: layouts of the sites whose rows belong to rows of the data, by name.
        untold: why the rows of a site cannot be found from the rows of the data, by name.
        sizes: lengths of the first axes of sites at all rows of the data, by name.
        count: number of rows of the data; 0 if arguments have different numbers of rows.
        one_per_row: names of the sites with one row for each row of the data, in the same order, also in batches.
    """

    layouts: Mapping[str, Layout] = field(default_factory=dict)
    untold: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    count: int = 0
    one_per_row: frozenset[str] = frozenset()

    def refuse_untold(self, names: Iterable[str], batch_size: int) -> None:
        """Refuse batches of sites whose rows cannot be found from the rows of the data.

        Raises:
            ValueError: naming the first such site of the program.
        """
        names = frozenset(names)
        for name, reason in self.untold.items():
            if name in names:
                raise ValueError(
                    f"Site {name!r} does not come in batches of {batch_size} rows: {reason}. Pass "
                    f"batch_size={self.count} or more."
                )


Shapes = Mapping[str, tuple[int, ...]]


def rows_by_shape(at_all: Shapes, count: int, at_other: Shapes, other: int) -> SiteRows:
    """The layouts of sites, from the shapes of their values at two numbers of rows.

    Args:
        at_all: shapes by site, at ``count`` rows.
        count: number of all rows.
        at_other: shapes at ``other`` rows.
        other: a number of rows that is not ``count``.
    """
    layouts: dict[str, Layout] = {}
    untold: dict[str, str] = {}
    for site, shape in at_all.items():
        after = at_other.get(site)
        if shape == after:
            continue
        if after is None:
            untold[site] = f"at {other} rows the program does not have it"
        elif shape[1:] != after[1:] or not shape or shape[0] % count or shape[0] * other != after[0] * count:
            untold[site] = f"it has shape {list(shape)} at {count} rows of data and {list(after)} at {other}"
        else:
            layouts[site] = Layout(shape[0] // count)
    sizes = {site: shape[0] for site, shape in at_all.items() if shape}
    return SiteRows(layouts, untold, sizes, count)


def number_of_rows(args: tuple) -> int:
    """The length of the first axis of all arrays; 0 if this length differs between arrays."""
    rows = {np.shape(x)[0] if np.shape(x) else 0 for x in jax.tree.leaves(args)}
    return rows.pop() if len(rows) == 1 else 0
