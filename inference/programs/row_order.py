"""Order of rows in batches: layouts by shapes, and the check that no row depends on its place or on their number.

These names are about rows. A :class:`Layout` (``rows.py``) says how one site follows the rows of the data.
:class:`SiteRows`, the result of :func:`rows_of_sites`, says it for all sites. ``BatchRows`` (``gp_sites.py``) are the
rows of the data that one run has. ``Look`` (``program.py``) is one abstract run, and ``Sites`` (``sites.py``) describes
the program's sites in this run. ``Look`` and ``Sites`` do not depend on batches.

Shapes at two numbers of rows tell which sites have rows. They do not show ``X - X.mean(0)``, ``jnp.arange(len(X))``, a
sorted column, or a draw of the shape of ``X`` by a key of the program's own. In batches, such values differ from the
values for all rows at once. So the program runs twice: on all rows (or many of them), and on a batch of these rows in
another order. In these runs, the value of a GP site is a function of its inputs and its mean, so that it follows the
rows. A number that differs between the two runs depends on the place of its row, unless another random key changes it
too. A third run measures rounding: it changes each number by the smallest amount. A difference of no more than a few
times the effect of this change counts as rounding.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro.infer import init_to_feasible

from gpzoo.inference.programs.check_rows import parts_by_row
from gpzoo.inference.programs.rows import Layout, SiteRows, number_of_rows, rows_by_shape
from gpzoo.inference.programs.runs import given_value, relaxed_promotion, run, unmasked
from gpzoo.inference.programs.standins import arrays_of, concrete, parts_of
from gpzoo.likelihoods import Likelihood
from gpzoo.processes.process import GaussianProcess

#: Most numbers in the arguments of the larger run, unless a batch has more.
_MOST = 2**17

#: Changes count as rounding up to this many times the effect of the smallest change in the run's numbers, because
#: products over many columns round each of their sums.
_ROUNDING = 16


def rows_of_sites(
    model: Callable,
    args: tuple,
    kwargs: Mapping[str, Any],
    values: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
) -> SiteRows:
    """Which rows of the program's sites belong to which rows of its positional arguments.

    Args:
        model: the program.
        args: positional arguments at all rows; if their numbers of rows are equal, these are the rows of the data.
        kwargs: keyword arguments.
        values: values of sites and parameters, if some are given.
        batch_size: number of rows of a batch. With ``None``, a batch has all rows, in another order.
    """
    with jax.ensure_compile_time_eval():
        given = concrete((args, dict(kwargs), dict(values or {})))
        count = number_of_rows(args)
        if count:
            return _compared(model, given[0], given[1], given[2], min(batch_size or count, count)).rows()
        found = _shapes(partial(_numbers, model, given[1]), given[0], given[2], np.arange(0)).values
        return SiteRows(sizes={site: len(x) for site, x in found.items() if x.ndim})


def refuse_in_minibatches(
    model: Callable, args: tuple, kwargs: Mapping[str, Any], values: Mapping[str, Any], *, order_alone: bool
) -> None:
    """Refuse a program in which a row of a minibatch depends on its place, or on the number of rows.

    Args:
        model: the program.
        args: positional arguments of a minibatch.
        kwargs: keyword arguments.
        values: values of parameters and mutable state.
        order_alone: whether a row may depend on the number of rows and on the other rows, as in batch norm.

    Raises:
        ValueError: naming the site.
    """
    if (count := number_of_rows(args)) < 2:
        return
    try:
        with jax.ensure_compile_time_eval():
            given = concrete((args, dict(kwargs), dict(values)))
            reasons = _compared(model, given[0], given[1], given[2], count - (not order_alone)).reasons()
    except (TypeError, ValueError):  # a program for one number of rows, such as a plate of a fixed size
        return
    for name, reason in reasons.items():
        raise ValueError(
            f"Site {name!r} does not come in minibatches: {reason}. Train on all rows at once (batch_size=None). Or "
            "compute what depends on the place or the number of rows (jnp.arange(len(X)), X - X.mean(0)) before, and "
            "pass it as an argument with one row for each datum."
        )


class _Numbers(NamedTuple):
    """The numbers of a run.

    Attributes:
        laws: numbers that make up the law of a site, or its value, by name of the site and of the number.
        values: values of sites, by name.
    """

    laws: dict[str, dict[str, Array]]
    values: dict[str, Array]


@dataclass(frozen=True)
class _Compared:
    """Runs on rows of the data, and on some of these rows in another order.

    Attributes:
        whole: numbers of the first run.
        part: numbers of the second run.
        again: numbers of the second run with other random keys.
        nearly: numbers of the second run with the smallest change in everything that it is given.
        size: the number of rows of the first run.
        few: for each row of the second run, its place in the first run.
        count: number of all rows.
        at_other: shapes at another number of rows.
        other: that number; 0 if the program runs on no other number.
        why: the reason if it does not.
    """

    whole: _Numbers
    part: _Numbers
    again: _Numbers
    nearly: _Numbers
    size: int
    few: np.ndarray
    count: int
    at_other: _Numbers
    other: int
    why: str

    def reasons(self) -> dict[str, str]:
        """Why sites change with the place or the number of the rows, and the sites after them, by name."""
        found: dict[str, str] = {}
        for site, laws in self.part.laws.items():
            for what in laws:
                if site not in found and self._stays(site, what) and not self._follows(site, what):
                    found[site] = (
                        f"the same row at another place, or in a batch of another size, gives other numbers in "
                        f"{what.rstrip(' 0123456789')} of {site!r}"
                    )
            if found and site not in found:
                found[site] = next(iter(found.values()))
        return found

    def rows(self) -> SiteRows:
        """How the sites follow the rows."""
        at_all, at_other = (
            {site: x.shape for site, x in numbers.values.items()} for numbers in (self.whole, self.at_other)
        )
        found = rows_by_shape(at_all, self.size, at_other, self.other)
        layouts = {}
        for site, layout in found.layouts.items():
            apart = any(not self._follows(site, what, (False,)) for what in self.part.laws.get(site, ()))
            layouts[site] = layout._replace(strided=layout.count > 1 and apart)
        sizes = dict(found.sizes) | {site: layout.count * self.count for site, layout in layouts.items()}
        untold = self.reasons() | dict(found.untold)
        one_per_row = frozenset(site for site, layout in layouts.items() if layout.count == 1 and site not in untold)
        if self.why:
            untold = dict.fromkeys(at_all, f"the program does not run on other numbers of rows ({self.why:.200})")
        return SiteRows(layouts, untold, sizes, self.count, one_per_row)

    def _stays(self, site: str, what: str) -> bool:
        """Whether numbers stay the same with another random key."""
        part, again, nearly = (x.laws[site][what] for x in (self.part, self.again, self.nearly))
        return _same(again, part, nearly)

    def _follows(self, site: str, what: str, ways: tuple[bool, ...] = (False, True)) -> bool:
        """Whether numbers follow the rows: next to each other (``False``), or as far apart as there are rows."""
        whole, part, nearly, other = (x.laws[site][what] for x in (self.whole, self.part, self.nearly, self.at_other))
        taken = (_at_rows(whole, other.shape, self.other, self.few, self.size, way) for way in ways)
        return any(_same(x, part, nearly) for x in taken)


def _compared(
    model: Callable, args: tuple, kwargs: dict[str, Any], given: dict[str, Any], batch_size: int
) -> _Compared:
    count = number_of_rows(args)
    if batch_size < count:
        try:
            return _compare(model, args, kwargs, given, batch_size)
        except Exception as error:  # a program for one number of rows, such as a plate of a fixed size
            if (in_order := _compare(model, args, kwargs, given, count)).why:
                return in_order
            raise error
    return _compare(model, args, kwargs, given, count)


def _compare(model: Callable, args: tuple, kwargs: dict[str, Any], given: dict[str, Any], batch_size: int) -> _Compared:
    numbers = jax.jit(partial(_numbers, model, kwargs))
    count = number_of_rows(args)
    ordered = batch_size == count
    most = _MOST * count // max(sum(np.size(x) for x in jax.tree.leaves(args)), 1)
    step = 1 if ordered else batch_size
    size = min(count, max(most // step, 1) * step)
    some = np.arange(size)
    # Rows from everywhere, because numbers that depend on the place may agree at all first rows, as in sorted groups.
    few = np.linspace(size - 1, 0, batch_size if batch_size < size else min(size, 3)).astype(int)
    if ordered:
        few = np.random.default_rng(0).permutation(size)
    at = lambda of: jax.tree.map(lambda x: np.asarray(x)[of], args)  # noqa: E731
    # One type in all runs, because each would otherwise be traced anew.
    given = jax.tree.map(lambda x: np.asarray(x) if jnp.issubdtype(jnp.result_type(x), jnp.number) else x, given)
    whole = numbers(at(some), given, some, random.key(0))
    part = numbers(at(few), given, few, random.key(0))
    again = numbers(at(few), jax.tree.map(_another_key, given), few, random.key(1))
    nearly = numbers(*jax.tree.map(_nearly, (at(few), given)), few, random.key(0))
    at_other, other, why = part, len(few), ""
    if ordered:  # another number of rows tells which axes are rows
        other = size - 1 or 2
        try:
            at_other = _shapes(numbers, at(np.arange(other) % size), given, np.arange(other))
        except Exception as error:
            other, why = 0, (str(error).splitlines() or [type(error).__name__])[0]
            at_other = jax.tree.map(partial(_without, size), whole)
    return _Compared(whole, part, again, nearly, size, few, count, at_other, other, why)


def _numbers(
    model: Callable, kwargs: dict[str, Any], args: tuple, given: dict[str, Any], rows: Array, key: Array
) -> _Numbers:
    # A copy, because networks write their state into the dictionary that they get.
    given = jax.tree.map(lambda x: x, given)
    trace = run(key, args, kwargs, model=model, values=lambda site: _value(given, rows, site), complete=False).model
    # Ordered, because JAX would sort the names of a dict.
    laws = OrderedDict((name, OrderedDict(_laws_of(site))) for name, site in trace.items())
    return _Numbers(cast(Any, laws), cast(Any, arrays_of(trace)))


def _without(size: int, x: Array) -> jax.ShapeDtypeStruct:
    """The shape of an array whose axes of this size have no entry."""
    return jax.ShapeDtypeStruct(tuple(0 if n == size else n for n in x.shape), x.dtype)


def _shapes(numbers: Callable, args: tuple, given: dict[str, Any], rows: np.ndarray) -> _Numbers:
    return jax.eval_shape(numbers, args, given, rows, random.key(0))


def _value(given: Mapping[str, Any], rows: Array, site: dict[str, Any]) -> Any:
    """A value that follows the rows: for a GP site, a function of its inputs; for others, one number for all rows.

    Given values with all rows are cut to the ``rows`` of the run.
    """
    if site["type"] != "sample":
        return given_value(given, site)
    if site["value"] is not None:
        return None
    fn: Any = unmasked(site["fn"])
    if isinstance(fn, GaussianProcess):
        return jnp.broadcast_to(jnp.sin(sum(parts_by_row(fn).values())), fn.event_shape)
    shape, value = tuple(site["fn"].shape()), given.get(site["name"])
    if value is not None and np.ndim(value) and len(value) > shape[0] == len(rows):
        value = value[rows]
    if value is not None:
        return given_value({site["name"]: value}, site)
    if isinstance(fn, Likelihood) or (fn.support.is_discrete and not fn.has_enumerate_support):
        with relaxed_promotion():
            like = jax.eval_shape(fn.sample, site["kwargs"]["rng_key"])
        return jnp.ones(like.shape if isinstance(fn, Likelihood) else shape, like.dtype)
    if fn.support.is_discrete:
        return jnp.broadcast_to(jnp.asarray(fn.enumerate_support(expand=False)).ravel()[0], shape)
    return init_to_feasible(site)


def _laws_of(site: dict[str, Any]) -> Iterator[tuple[str, Array]]:
    """The numbers that make up a site's law, or its value, each with a numbered name."""
    if site["type"] == "deterministic":
        found = [("the value", site["value"])]
    elif site["type"] != "sample" or site["infer"].get("is_auxiliary"):
        return
    elif isinstance(fn := unmasked(site["fn"]), GaussianProcess):
        found = [(f"the {what}", x) for what, x in parts_of(fn).items()]
    else:
        found = [(f"a parameter {i}", x) for i, x in enumerate(jax.tree.leaves(fn))]
    if site["type"] == "sample" and site["is_observed"]:
        found.append(("the data", site["value"]))
    for what, x in found:
        if isinstance(x, Array | np.ndarray) and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            yield what, jnp.asarray(x)


def _at_rows(
    x: Array, other: tuple[int, ...], fewer: int, few: np.ndarray, size: int, strided: bool
) -> np.ndarray | None:
    """The rows ``few`` of ``size`` along every axis that differs from ``other``; ``None`` if there are no such rows.

    Args:
        x: array at all rows.
        other: its shape at ``fewer`` rows.
        fewer: see ``other``.
        few: numbers of rows.
        size: number of all rows.
        strided: see :class:`Layout`.
    """
    found = np.asarray(x)
    if found.ndim != len(other):
        return None
    for axis, (whole, part) in enumerate(zip(found.shape, other, strict=True)):
        if whole != part:
            each = whole // size
            if whole != each * size or part != each * fewer:
                return None
            found = found.take(Layout(each, strided).rows(few, size), axis)
    return found


def _another_key(x: Any) -> Any:
    """Other random keys, such as a network's key for dropout; anything else as it is."""
    if not jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key):
        return x
    return jax.vmap(lambda key: random.fold_in(key, 1))(x.reshape(-1)).reshape(x.shape)


def _nearly(x: Any) -> Any:
    """Numbers changed by a few times their precision, up and down, because less may round away."""
    if not isinstance(x, np.ndarray) or not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    signs = np.random.default_rng(0).choice([-1, 1], np.shape(x))
    return x * (1 + 4 * signs * jnp.finfo(x.dtype).eps).astype(x.dtype)


def _same(x: Any, y: Any, nearly: Any) -> bool:
    """Whether two arrays are equal up to rounding, which changes ``y`` to ``nearly``."""
    if x is None or np.shape(x) != np.shape(y):
        return False
    x, y, nearly = map(np.asarray, (x, y, nearly))
    if not np.issubdtype(x.dtype, np.floating):
        return np.array_equal(x, y)
    finite = np.isfinite(y) & np.isfinite(nearly)
    rounding = np.where(finite, np.abs(nearly - y) + np.finfo(x.dtype).eps * np.abs(y), 0)
    # A large column must not hide numbers of a small column that depend on the place.
    column = rounding.max(axis=tuple(range(max(x.ndim - 1, 1)))[: x.ndim], initial=0)
    return np.allclose(x, y, rtol=0, atol=_ROUNDING * column, equal_nan=True)
