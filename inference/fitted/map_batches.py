"""Functions of one draw at a batch of rows: compiled once, mapped over draws and batches, and joined on the host.

Predictions, functions of a posterior, exports and their densities are computed by :func:`map_batches`::

    def moments(key, batch):  # a draw, here its random key, and a batch of rows; compiled
        mode = Marginals(batch.site_rows, batch.views)
        found = run(key, batch.args, batch.kwargs, guide=guide, values=batch.params, mode=mode).guide
        return {"means": {name: found[name]["fn"].marginals()[0] for name in guide.sites.processes}}

    model = trained._bind((X,), model_kwargs)  # checks the arguments
    result = map_batches(BatchFunction("moments", moments), model, random.split(key, num_draws), batch_size)
    result.refuse_not_finite({"means": "means"}, guide.sites.processes)
    result.arrays["means"]["f"]  # [num_draws, N]

The function may use, from outside, anything that is the same in all calls with equal :attr:`BatchFunction.options`. It
must not use data, parameters or keys from outside: these are in the batch and in the draw.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Integer, PRNGKeyArray

from gpzoo import _platform
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.programs.arrays import split_arrays
from gpzoo.inference.programs.finite import all_finite, refuse_not_finite
from gpzoo.inference.programs.gp_sites import BatchRows
from gpzoo.inference.programs.program import Look, look
from gpzoo.inference.programs.row_order import rows_of_sites
from gpzoo.inference.programs.rows import Layout, SiteRows, number_of_rows

#: Arrays by group and site.
Arrays: TypeAlias = dict[str, Any]


@jax.tree_util.register_static
class Static:
    """A value in a pytree of arguments or results that ``jit`` treats as a constant of the compiled program.

    Two ``Static`` values are equal if their numbers, strings and containers are equal, and all other objects are the
    same objects.

    Args:
        value: a container.
    """

    def __init__(self, value: Any) -> None:
        leaves, structure = jax.tree.flatten(value)
        self.value, self._identity = value, (structure, tuple(map(_identity, leaves)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)


def _identity(leaf: Any) -> Hashable:
    if isinstance(leaf, np.ndarray):
        return "array", leaf.shape, leaf.dtype.str, leaf.tobytes()
    try:
        hash(leaf)
    except TypeError:
        return _Itself(leaf)
    return type(leaf), leaf  # 1 and True and 1.0 are equal


class _Itself:
    """An object without a hash, which is equal only to itself."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class Batch(NamedTuple):
    """The arguments of a program at a batch of rows.

    Attributes:
        args: positional arguments.
        arrays: keyword arguments that are arrays.
        static: keyword arguments that are not arrays.
        params: parameters of guide and program.
        rows: numbers of the batch's rows among all rows.
        count: number of all rows.
        layouts: for each site, which of its rows belong to which rows of the arguments; empty if no function needs it.
        untold: names of the sites whose rows do not correspond to the rows of the arguments.
        number: number of the batch.
        views: key for sampled views, the same for all draws and batches.
        of_sites: data by site at the batch's rows.
        others: further values that the function needs, such as the batch of training data for predictions.
    """

    args: tuple
    arrays: dict[str, Any]
    static: Static
    params: dict[str, Any]
    rows: Integer[Any, " N"]
    count: Any
    layouts: Static = Static({})
    untold: Static = Static(frozenset())
    number: Any = 0
    views: PRNGKeyArray | None = None
    of_sites: dict[str, Any] = {}  # noqa: RUF012 (it is never changed)
    others: Any = None

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments of the program."""
        return self.arrays | self.static.value

    @property
    def site_rows(self) -> BatchRows:
        """The rows that sites have in this batch."""
        return BatchRows(self.rows, self.count, self.layouts.value)


@dataclass(frozen=True, eq=False)
class BatchFunction:
    """A function of one draw at a batch of rows, and how it is mapped over draws.

    Attributes:
        name: a name that no other function has.
        of_draw: the function. ``of_draw(draw, batch)`` returns a dictionary of groups. A group is a dictionary of
            arrays by site, or a :class:`Static` value, which is part of the compiled program.
        options: hashable values that ``of_draw`` uses besides its arguments, if they may differ between calls. Calls
            with other options are compiled anew.
        draws_together: number of draws that are computed together; ``None`` computes all draws together, 0 means that
            there is no axis of draws.
        summary: a function that summarises the arrays of all draws, which have a leading axis of draws; ``None`` keeps
            these arrays.
        row_axis: axis of the rows, by group. If a group has no entry, it is 1, the axis after the axis of draws.
        prepare: a function in the compiled program that makes draws and batch from the given draws; ``None`` to take
            the draws as they are. Keys are split here. Outside, a split would be one more program to compile.
        once: whether the program runs only once, on few rows, so that compiling it takes most of the time.
    """

    name: str
    of_draw: Callable[[Any, Batch], Any]
    options: Hashable = ()
    draws_together: int | None = 1
    summary: Callable[[Any], Any] | None = None
    row_axis: Mapping[str, int] = field(default_factory=dict)
    prepare: Callable[[Any, Batch], tuple[Any, Batch]] | None = None
    once: bool = False


def _mapped(fn: BatchFunction, draws: Any, batch: Batch) -> Any:
    """The arrays of all draws, or a summary of them."""
    if fn.prepare is not None:
        draws, batch = fn.prepare(draws, batch)

    def of_draw(draw: Any) -> Any:
        return fn.of_draw(draw, batch)

    if fn.draws_together == 0:
        found = of_draw(draws)
    elif (count := len(jax.tree.leaves(draws)[0])) == 1:
        found = jax.tree.map(lambda x: jnp.asarray(x)[None], of_draw(_first(draws)))
    elif fn.draws_together is None:
        found = jax.vmap(of_draw)(draws)
    else:
        size = None if fn.draws_together == 1 else min(fn.draws_together, count)
        found = jax.lax.map(of_draw, draws, batch_size=size)
    return found if fn.summary is None else fn.summary(found)


def _first(draws: Any) -> Any:
    return jax.tree.map(lambda x: x[0], draws)


@dataclass(frozen=True, eq=False)
class BoundModel:
    """A program with its guide at checked arguments.

    Attributes:
        model: the program.
        guide: guide of the program, which has seen data; ``None`` if samples are given, or nothing is latent.
        params: checked values of parameters.
        args: checked positional arguments.
        kwargs: checked keyword arguments.
        compiled: compiled programs, also from earlier calls.
        values: values of the sites, if there is no guide. A run of the program with these values finds which rows of
            each site belong to which rows of the arguments.
        at_training: whether the arguments are known to be the training data.
    """

    model: Callable
    guide: InducingGuide | Any
    params: dict[str, Any]
    args: tuple
    kwargs: dict[str, Any]
    compiled: dict[Any, Any] = field(default_factory=dict)
    values: Mapping[str, Any] | None = None
    at_training: bool = False

    @cached_property
    def _split(self) -> tuple[dict[str, Any], Static]:
        arrays, static = split_arrays(self.kwargs)
        return arrays, Static(static)

    @property
    def static(self) -> dict[str, Any]:
        """Keyword arguments that are part of a compiled program."""
        return self._split[1].value

    @property
    def arrays(self) -> dict[str, Any]:
        """Keyword arguments that are arrays."""
        return self._split[0]

    @property
    def num_rows(self) -> int:
        """Number of rows of the positional arguments; 0 if they have different numbers."""
        return number_of_rows(self.args)

    @cached_property
    def shapes(self) -> Hashable:
        """The properties of the arguments on which compiled programs depend."""
        shapes = jax.tree.map(lambda x: (x.shape, str(x.dtype)), (self.args, self.arrays))
        return self._split[1], Static(shapes)

    @cached_property
    def look(self) -> Look:
        """The trace of the program at these arguments, without computing its numbers; likelihoods check their data."""
        return look(self.model, self.args, self.kwargs, self.values)

    @property
    def site_rows(self) -> SiteRows:
        """Which rows of the program's sites belong to which rows of its arguments, with all rows at once."""
        return self.site_rows_in_batches(None)

    def site_rows_in_batches(self, batch_size: int | None) -> SiteRows:
        """:attr:`site_rows` in batches of this size. Calls with arguments of the same shapes share the result."""
        key = ("rows", batch_size, self.shapes)
        if key not in self.compiled:
            values = self.params | dict(self.values or {})  # parameters may start at random
            self.compiled[key] = rows_of_sites(self.model, self.args, self.kwargs, values, batch_size)
        return self.compiled[key]

    def batch(self, **fields: Any) -> Batch:
        """All rows, with the given ``fields``."""
        arrays, static = self._split
        count = self.num_rows
        return Batch(self.args, arrays, static, self.params, np.arange(count), count)._replace(**fields)

    def compiled_for(self, fn: BatchFunction) -> Callable[[Any, Batch], Any]:
        """The compiled function of many draws at a batch. Calls with equal functions use one compiled function."""
        key = fn.name, fn.options, fn.draws_together, fn.once
        if key not in self.compiled:
            how = _platform.options_for_one_run() if fn.once else None
            self.compiled[key] = jax.jit(partial(_mapped, fn), compiler_options=how)
        return self.compiled[key]


class BatchResult(NamedTuple):
    """The arrays of all rows, on the host.

    Attributes:
        arrays: arrays by group and site.
        fn: the function of one draw.
        given: the draws that :func:`map_batches` got.
        batch: the first batch with numbers that are not finite, or the last batch if all are finite.
    """

    arrays: Arrays
    fn: BatchFunction
    given: Any
    batch: Batch

    def refuse_not_finite(
        self, words: Mapping[str, str], processes: Collection[str], site_of: Callable[[str], str] = str
    ) -> None:
        """Refuse numbers that are not finite.

        To find the cause, the function of the first draw runs again outside ``jit``, where it may raise its own error.

        Args:
            words: words for the numbers of each group, such as ``"draws"``; a group without words is not checked.
            processes: names of the GP sites.
            site_of: a function from the name of a group's array to the name of its site.

        Raises:
            FactorisationError, NonFiniteError: naming the site, see :func:`refuse_not_finite`.
        """
        for group, said in words.items():
            for name, values in self.arrays.get(group, {}).items():
                refuse_not_finite(site_of(name), said, values, processes, self._explain)

    def _explain(self) -> None:
        draws, batch = self.given, self.batch
        if self.fn.prepare is not None:
            draws, batch = self.fn.prepare(draws, batch)
        self.fn.of_draw(_first(draws), batch)


def map_batches(
    fn: BatchFunction,
    model: BoundModel,
    given: Any,
    batch_size: int,
    *,
    of_sites: Mapping[str, np.ndarray] | None = None,
    whole: SiteRows | None = None,
    addends: Mapping[str, str] | None = None,
    **shared: Any,
) -> BatchResult:
    """Compute a function of all draws at all rows, one batch of rows at a time.

    Arrays of batches are joined by the layout of the site of the same name. An array with another name must be the same
    in all batches, and is taken from the first batch.

    Args:
        fn: the function.
        model: the model at all rows.
        given: draws, a pytree with a leading axis of draws, or the input from which :attr:`BatchFunction.prepare` makes
            draws.
        batch_size: largest number of rows in a batch.
        of_sites: data of all rows by site; each batch gets its own rows.
        addends: for each array that has the rows of a site but another name, the name of this site.
        whole: the layouts of all sites, for a function that needs :attr:`Batch.layouts` even if all rows are one
            batch. If there are several batches, ``map_batches`` finds the layouts.

    Raises:
        ValueError: in several batches, naming a site whose rows do not correspond to the rows of the arguments.
    """
    num_rows = max(model.num_rows, 1)
    size = min(batch_size, num_rows)
    several = size < num_rows
    site_rows = model.site_rows_in_batches(size) if several else whole or SiteRows()
    layouts = dict(site_rows.layouts)
    shared |= {"layouts": Static(layouts), "untold": Static(frozenset(site_rows.untold))}
    compiled = model.compiled_for(fn)
    parts: list[Arrays] = []
    not_finite: Batch | None = None
    for number, start in enumerate(range(0, num_rows, size)):
        batch = model.batch(of_sites=dict(of_sites or {}), number=number, **shared)
        if several:
            # The last batch repeats the last row, so that all batches have one shape.
            batch = _at_rows(batch, np.minimum(np.arange(start, start + size), num_rows - 1))
        found = compiled(given, batch)
        if several and not number:
            site_rows.refuse_untold(_names(found), size)
        parts.append(jax.tree.map(np.asarray, found))
        if not_finite is None and not all_finite(parts[-1]):
            not_finite = batch
    layouts |= {name: layouts[site] for name, site in (addends or {}).items() if site in layouts}
    arrays = _joined(parts, layouts, fn.row_axis, num_rows) if several else parts[0]
    return BatchResult(arrays, fn, given, not_finite or batch)


def _at_rows(batch: Batch, rows: np.ndarray) -> Batch:
    of_sites = dict(batch.of_sites)
    for name in of_sites.keys() & batch.layouts.value.keys():
        of_sites[name] = of_sites[name][batch.layouts.value[name].rows(rows, batch.count)]
    return batch._replace(args=jax.tree.map(lambda x: x[rows], batch.args), rows=rows, of_sites=of_sites)


def _names(arrays: Arrays) -> set[str]:
    return set().union(*(sites for sites in arrays.values() if not isinstance(sites, Static)))


def _joined(
    parts: Sequence[Arrays], layouts: Mapping[str, Layout], row_axis: Mapping[str, int], num_rows: int
) -> Arrays:
    found = dict(parts[0])
    for group, sites in found.items():
        if not isinstance(sites, Static):
            own = {name: [part[group][name] for part in parts] for name in sites.keys() & layouts.keys()}
            axis = row_axis.get(group, 1)
            found[group] = sites | {name: _whole(x, layouts[name], axis, num_rows) for name, x in own.items()}
    return found


def _whole(parts: Sequence[np.ndarray], layout: Layout, axis: int, num_rows: int) -> np.ndarray:
    """An array of all rows of a site along ``axis``, from the arrays of the batches."""
    if not layout.strided:
        whole = np.concatenate(parts, axis=axis)
        return np.take(whole, range(layout.count * num_rows), axis) if whole.shape[axis] > num_rows else whole
    apart = [np.reshape(x, (*x.shape[:axis], layout.count, -1, *x.shape[axis + 1 :])) for x in parts]
    whole = np.concatenate(apart, axis=axis + 1).take(range(num_rows), axis + 1)
    return whole.reshape(*whole.shape[:axis], -1, *whole.shape[axis + 2 :])


def refuse_batches(model: BoundModel, batch_size: int) -> None:
    """Refuse new inputs with different numbers of rows, and batches of sites that the guide draws jointly.

    Raises:
        ValueError: if numbers of rows differ, or if there are several batches and the guide draws sites jointly.
    """
    if not model.num_rows:
        raise ValueError(
            "The new inputs must be arrays with the same, positive number of rows; got shapes "
            f"{[np.shape(leaf) for leaf in jax.tree.leaves(model.args)]}. Pass inputs that have rows of their own in "
            "model_kwargs."
        )
    if model.guide is not None and model.guide.joint and batch_size < model.num_rows:
        raise ValueError(
            f"The guide draws {sorted(model.guide.joint)} jointly over the inputs, so that a prediction depends on "
            f"its batch: pass batch_size={model.num_rows} or more."
        )
