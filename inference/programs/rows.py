"""Which rows of a program's sites belong to which rows of its data? Told by the program, looked at on a few rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Integer

from gpzoo.inference.programs.following import NONE, Follow, Rows, placed, together, union

#: Rows of the data at which a program is looked at.
_FEW = 3

#: The kind of the rows of the data.
_DATA = 0


class Layout(NamedTuple):
    """The rows of a site for each row of the data.

    Attributes:
        count: how many.
        strided: whether they are as far apart as there are rows of data, as after ``concatenate``; else they follow
            each other.
    """

    count: int = 1
    strided: bool = False

    def rows(self, of: Integer[Array | np.ndarray, " N"], num_rows: Any) -> Any:
        """Numbers of the site's rows, in their order, of some of ``num_rows`` rows of data."""
        each = np.arange(self.count, dtype=of.dtype)
        if self.strided:
            return (each[:, None] * num_rows + of).reshape(-1)
        return (of[:, None] * self.count + each).reshape(-1)

    def is_that(self, other: Layout | None, num_rows: int) -> bool:
        """Whether another layout of ``num_rows`` rows is the same."""
        return other is not None and other.count == self.count and (num_rows == 1 or other.strided == self.strided)

    def by_row(self, x: Array, axis: int = 0, back: bool = False) -> Array:
        """``x`` with the site's rows along ``axis``, those of one row of the data after the other; or ``back``."""
        if not self.strided:
            return x
        size = x.shape[axis]
        parts = (size // self.count, self.count) if back else (self.count, size // self.count)
        apart = x.reshape(*x.shape[:axis], *parts, *x.shape[axis + 1 :])
        return jnp.swapaxes(apart, axis, axis + 1).reshape(x.shape)


@dataclass(frozen=True)
class SiteRows:
    """How the sites of a program follow the rows of its data.

    Attributes:
        layouts: of the sites whose rows are those of the data, by name.
        untold: why the rows of a site cannot be told from those of the data, by name.
        within: names of the GP sites of which something needs several rows of one row of the data together.
        across: what needs rows of several rows of the data together, by the name of the GP site.
        sizes: lengths of the first axes of sites at all rows of the data, by name.
        count: number of rows of the data; 0 where arguments have different ones.
        by_row: names of the sites with one row for each row of the data, in its order, in batches or not.
    """

    layouts: Mapping[str, Layout] = field(default_factory=dict)
    untold: Mapping[str, str] = field(default_factory=dict)
    within: frozenset[str] = frozenset()
    across: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    count: int = 0
    by_row: frozenset[str] = frozenset()

    def refuse_untold(self, names: Iterable[str], batch_size: int) -> None:
        """Refuse batches of sites whose rows cannot be told from those of the data.

        Raises:
            ValueError: naming the first of the program.
        """
        names = frozenset(names)
        for name, reason in self.untold.items():
            if name in names:
                raise ValueError(
                    f"Site {name!r} does not come in batches of {batch_size} rows: {reason}. Pass "
                    f"batch_size={self.count} or more."
                )


class Part(NamedTuple):
    """What a program's run gives, of which rows are followed.

    Attributes:
        site: name of the site.
        what: ``"value"``; ``"inputs"``, ``"mean"`` or ``"kernel ..."`` of a latent GP site; or the name of a term.
        array: its numbers.
        by_output: whether inputs are those of each output, ``[D, M, ...]``.
        axes: how many axes of inputs count them, two where a row has several.
    """

    site: str
    what: str
    array: Any
    by_output: bool = False
    axes: int = 1


def rows_of(
    parts_of: Callable[[tuple], Iterator[Part]],
    args: tuple,
    *,
    joint: frozenset[str] = frozenset(),
    shapes: bool = True,
    at_all: Mapping[str, tuple[int, ...]] | None = None,
) -> SiteRows:
    """Look at a program on a few rows of its data, and on all of them for shapes alone.

    Args:
        parts_of: runs the program on positional arguments.
        args: with one row per datum, if they have as many rows; concrete.
        joint: names of GP sites that are drawn jointly.
        shapes: whether to ask how shapes grow with the rows; without it only what depends on rows has a layout.
        at_all: shapes of sites at all rows by name, where they are known.
    """
    count = number_of_rows(args)
    few = min(count, _FEW)
    try:
        looked = _Looked(parts_of, _taken(args, few) if count else args, few, joint)
    except Exception:
        # A program of one number of rows, such as a plate of a fixed size; what else is wrong is raised here.
        looked = _Looked(parts_of, args, few := count, joint)
    layouts: dict[str, Layout] = {}
    untold: dict[str, str] = {}
    by_row: set[str] = set()
    seen = {site: x.shape for site, x in looked.values.items()}
    grown: Mapping[str, tuple[int, ...]] = {}
    other = count if few < count else max(count - 1, 3 - count)
    if count and shapes:
        try:
            grown = _shapes(parts_of, _taken(args, other)) if at_all is None or other != count else at_all
        except Exception as error:
            words = str(error).splitlines()[0] if str(error) else type(error).__name__
            untold = dict.fromkeys(seen, f"the program does not run on {other} rows ({words:.200})")
    for site in seen if count else ():
        found = _layout(looked.rows_of_data(site), seen[site], few, grown.get(site), other)
        if isinstance(found, str):
            untold[site] = found
        elif found is not None and site not in untold:
            layouts[site] = found
        if isinstance(found, Layout) and found.count == 1:
            by_row.add(site)
    sizes = {site: shape[0] for site, shape in (seen if few == count else grown).items() if shape}
    return SiteRows(layouts, untold, *looked.uses(), sizes, count, frozenset(by_row))


def number_of_rows(args: tuple) -> int:
    """What all arrays have in common as their first axis; 0 if nothing."""
    rows = {np.shape(x)[0] if np.shape(x) else 0 for x in jax.tree.leaves(args)}
    return rows.pop() if len(rows) == 1 else 0


def _taken(args: tuple, count: int) -> tuple:
    # Of a single row, it again.
    return jax.tree.map(lambda x: x if len(x) == count else x[np.minimum(np.arange(count), len(x) - 1)], args)


def _shapes(parts_of: Callable[[tuple], Iterator[Part]], args: tuple) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}

    def once(args: tuple) -> None:
        found.update({part.site: jnp.shape(part.array) for part in parts_of(args) if part.what == "value"})

    jax.eval_shape(once, args)
    return found


def _layout(
    rows: np.ndarray | None, shape: tuple[int, ...], few: int, after: tuple[int, ...] | None, other: int
) -> Layout | str | None:
    """How a site follows the rows of the data, or why that cannot be told; ``None`` where it does not.

    Args:
        rows: for each row of the site, the first and the last row of the data on which it depends, ``[2, M]``.
        shape: of the site at ``few`` rows of the data.
        few: see ``shape``.
        after: its shape at ``other`` rows; ``None`` if it is not known.
        other: see ``after``.
    """
    grows = [0] if after is None else [i for i, (a, b) in enumerate(zip(shape, after, strict=False)) if a != b]
    if rows is None and (after is None or (not grows and len(shape) == len(after))):
        return None
    odd = grows != [0] or not shape or shape[0] % few
    if after is not None and (odd or len(shape) != len(after) or after[0] * few != shape[0] * other):
        if shape == after:
            return f"it has shape {list(shape)} at any number of rows, and depends on them"
        return f"it has shape {list(shape)} at {few} rows of data and {list(after)} at {other}"
    if odd:
        return f"it has shape {list(shape)} at {few} rows of data"
    size, count = shape[0], shape[0] // few
    if rows is None:
        return Layout(count)
    seen = rows[0] <= rows[1]
    if (several := np.flatnonzero(seen & (rows[0] < rows[1]))).size:
        i = several[0]
        return f"its row {i} depends on the rows {rows[0, i]} to {rows[1, i]} of the data together"
    for layout in (Layout(count), Layout(count, strided=True)):
        wanted = np.arange(size) % few if layout.strided else np.arange(size) // count
        if np.array_equal(rows[0][seen], wanted[seen]):
            return layout
    return f"its rows are those of rows {rows[0].tolist()[:8]} ... of the data, in this order"


class _Looked:
    """A program's trace on some rows, followed.

    The kinds of rows are those of the data and, for each GP site, its own rows and the rows of the data that these
    depend on.

    Attributes:
        values: the value of each site.
        kinds: the number of the kind of a GP site's own rows, by name; the next kind is that of their rows of data.
    """

    def __init__(
        self, parts_of: Callable[[tuple], Iterator[Part]], args: tuple, count: int, joint: frozenset[str]
    ) -> None:
        parts: list[Part] = []

        def once(leaves: list[Array]) -> list[Array]:
            nonlocal parts
            parts = list(parts_of(jax.tree.unflatten(structure, leaves)))
            return [jnp.asarray(part.array) for part in parts]

        leaves, structure = jax.tree.flatten(args)
        trace = jax.make_jaxpr(once)(leaves)
        self.count, self.joint = count, joint
        self.values = {part.site: part.array for part in parts if part.what == "value"}
        self.by_output = {part.site: part.by_output for part in parts if part.what == "inputs"}
        self.axes = {part.site: part.axes for part in parts if part.what == "inputs"}
        self.kinds = {site: 1 + 2 * i for i, site in enumerate(self.by_output)}
        self.ends = dict(zip(((part.site, part.what) for part in parts), trace.jaxpr.outvars, strict=True))
        own = [np.full((1 + 2 * len(self.kinds), 2, *x.shape), NONE, np.int32) for x in leaves]
        for rows in own if count else ():
            rows[_DATA] = _numbered(rows.shape[2:])
        known = {self.ends[site, "value"]: partial(self._value, site) for site in self.kinds}
        self.follow = Follow(trace, own, [lambda x=x: x for x in leaves], 1 + 2 * len(self.kinds), known)

    def _by_row(self, follow: Follow, site: str) -> Rows:
        """The rows on which each entry of a GP site, ``[M]`` or ``[M, D]``, depends by its inputs and its mean."""
        shape, own, inputs = self.values[site].shape, self.by_output[site], follow(self.ends[site, "inputs"])
        axes = self.axes[site]
        rows = together(inputs, range(axes + own, inputs.ndim - 2))
        found = [rows.swapaxes(2, 3) if own else placed(rows, range(axes), len(shape))]
        if (mean := self.ends.get((site, "mean"))) is not None:
            found.append(follow(mean))
        return union(found, shape)

    def _value(self, site: str, follow: Follow) -> Rows:
        shape, kind = self.values[site].shape, self.kinds[site]
        kernel = [together(follow(x)) for (name, what), x in self.ends.items() if name == site and what[:6] == "kernel"]
        everything = union([self._by_row(follow, site), *kernel], shape)
        if site in self.joint:
            return union([together(everything)], shape)
        found = np.array(everything)
        found[kind] = _numbered(shape)
        of_data = together(everything, range(1, len(shape)))
        found[kind + 1] = np.broadcast_to(placed(of_data, [0], len(shape))[_DATA], (2, *shape))
        return found

    def rows_of_data(self, site: str) -> np.ndarray | None:
        """The first and the last row of the data on which each row of a site's value depends, ``[2, M]``."""
        rows = self.follow(self.ends[site, "value"])[_DATA]
        if (rows == NONE).all():
            return None
        rows = rows.reshape(2, rows.shape[1] if rows.ndim > 1 else 1, -1).min(axis=2)
        return np.stack([rows[0], -rows[1]])

    def uses(self) -> tuple[frozenset[str], dict[str, str]]:
        """Of which GP sites something needs several rows together: of one row of the data, or of several."""
        within: set[str] = set()
        across: dict[str, str] = {}
        # Rows of inputs are joined with those of the mean, which is therefore named first.
        for (site, what), variable in sorted(self.ends.items(), key=lambda end: end[0][1] != "mean"):
            if what == "value":
                continue
            rows = self._by_row(self.follow, site) if what == "inputs" else self.follow(variable)
            for name, kind in self.kinds.items():
                x, of = rows[kind].reshape(2, -1), rows[kind + 1].reshape(2, -1)
                several = np.flatnonzero((x[0] != NONE) & (x[0] != -x[1]))
                if not several.size:
                    continue
                bad = [i for i in several if of[0, i] == NONE or of[0, i] != -of[1, i]]
                if bad or not self.count:
                    i = (bad or several)[0]
                    part, ends = f"the {what.rstrip(' 0123456789')} of {site}", f"rows {x[0, i]} to {-x[1, i]}"
                    verb = "depend" if what == "inputs" else "depends"
                    reason = f"{part} {verb} on several rows of GP site {name!r} ({ends} for its entry {i})"
                    across.setdefault(name, reason)
                else:
                    within.add(name)
        return frozenset(within), across


def _numbered(shape: tuple[int, ...]) -> np.ndarray:
    numbers = np.arange(shape[0], dtype=np.int32).reshape(-1, *(1,) * (len(shape) - 1))
    return np.stack([np.broadcast_to(numbers, shape), np.broadcast_to(-numbers, shape)])
