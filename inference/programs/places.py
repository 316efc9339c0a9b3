"""The check that sites go neither by the place of a row among the others nor by their number: two runs of a program.

Rows of data are followed through a program, but no row of data is in ``jnp.arange(len(X))``, ``X * len(X)`` or a draw
of the shape of ``X`` by a key of the program's own. In batches these are others than for all rows at once. So the
program runs on all rows, or on many of them, and on as many of these as a batch has in another order. The value of a GP
site is a function of its inputs and its mean there, so that it follows the rows. What differs, and not for another
random key too, goes by place. Rounding is measured: another run has the smallest change in each of its numbers, and
what differs by no more than some of that is rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro.infer import init_to_feasible

from gpzoo.inference.programs.check_rows import parts_by_row
from gpzoo.inference.programs.program import concrete, parts_of
from gpzoo.inference.programs.rows import Layout, number_of_rows
from gpzoo.inference.programs.runs import given_value, relaxed_promotion, run, unmasked
from gpzoo.likelihoods import Likelihood
from gpzoo.processes.process import GaussianProcess

#: Most numbers in the arguments of the larger run, unless a batch has more.
_MOST = 2**17

#: Changes are rounding up to so many times what the smallest change in the run's numbers makes: products over many
#: columns round each of their sums.
_ROUNDING = 16


def sites_by_place(
    model: Callable, args: tuple, kwargs: Mapping[str, Any], values: Mapping[str, Any] | None, batch_size: int
) -> dict[str, str]:
    """Sites that change with the place or the number of the rows, and those after them: why, by name.

    Args:
        model: the program.
        args: positional arguments, at all rows.
        kwargs: keyword arguments.
        values: of sites and parameters, where some are given.
        batch_size: number of rows of a batch; with that of all rows, their order alone changes.
    """
    with jax.ensure_compile_time_eval():
        return _by_place(model, *concrete((args, dict(kwargs), dict(values or {}))), batch_size)


def refuse_in_minibatches(
    model: Callable, args: tuple, kwargs: Mapping[str, Any], values: Mapping[str, Any], *, order_alone: bool
) -> None:
    """Refuse a program in which a row of a minibatch goes by its place among the others, or by their number.

    Args:
        model: the program.
        args: positional arguments, those of a minibatch.
        kwargs: keyword arguments.
        values: of parameters and mutable state.
        order_alone: whether the number of rows may matter, and what the others are, as in batch norm.

    Raises:
        ValueError: naming the site.
    """
    if (count := number_of_rows(args)) < 2:
        return
    try:
        found = sites_by_place(model, args, kwargs, values, count - (not order_alone))
    except (TypeError, ValueError):  # a program of one number of rows, such as a plate of a fixed size
        return
    for name, reason in found.items():
        raise ValueError(
            f"Site {name!r} does not come in minibatches: {reason}. Train on all rows at once (batch_size=None), or "
            "pass what goes by the place of a row as an argument with a row of its own for each datum."
        )


def _by_place(
    model: Callable, args: tuple, kwargs: dict[str, Any], given: dict[str, Any], batch_size: int
) -> dict[str, str]:
    of_each: dict[str, list[str]] = {}

    @jax.jit
    def numbers(args: tuple, given: dict[str, Any], rows: Array, key: Array) -> dict[str, list[Array]]:
        # A copy: networks write their state into the dictionary that they are handed.
        given = jax.tree.map(lambda x: x, given)
        trace = run(key, args, kwargs, model=model, values=lambda site: _value(given, rows, site), complete=False).model
        arrays = {name: list(_arrays_of(site)) for name, site in trace.items()}
        of_each.update({name: [what for what, _ in of] for name, of in arrays.items()})
        return {name: [x for _, x in of] for name, of in arrays.items()}

    count = number_of_rows(args)
    most = _MOST * count // max(sum(np.size(x) for x in jax.tree.leaves(args)), 1)
    size = count if count <= most else max(most // batch_size, 1) * batch_size
    some = np.arange(size)
    # From everywhere: what goes by place may be the same at all of the first rows, such as an array of sorted groups.
    few = np.linspace(size - 1, 0, batch_size if batch_size < size else min(size, 3)).astype(int)
    ordered = batch_size == count
    if ordered:
        few = np.random.default_rng(0).permutation(size)
    at = lambda of: jax.tree.map(lambda x: np.asarray(x)[of], args)  # noqa: E731
    # Of one type in all runs, each of which would be traced anew.
    given = jax.tree.map(lambda x: np.asarray(x) if jnp.issubdtype(jnp.result_type(x), jnp.number) else x, given)
    whole = numbers(at(some), given, some, random.key(0))
    part, again = (numbers(at(few), given, few, random.key(i)) for i in (0, 1))
    nearly = numbers(*jax.tree.map(_nearly, (at(few), given)), few, random.key(0))
    # Which axes are rows, their number tells, which in another order is the same.
    fewer = size - 1 if ordered else len(few)
    sizes = jax.eval_shape(numbers, at(some[:fewer]), given, some[:fewer], random.key(0)) if ordered else part
    reasons: dict[str, str] = {}
    for name, arrays in part.items():
        changed = []
        each = zip(of_each[name], whole[name], arrays, again[name], nearly[name], sizes[name], strict=True)
        for what, x, y, z, around, other in each:
            there = [_at_rows(x, other.shape, fewer, few, size, strided) for strided in (False, True)]
            if _same(z, y, around) and not any(_same(entries, y, around) for entries in there):
                changed.append(what)
        if changed:
            reasons[name] = (
                f"the same row at another place, or among another number of rows, gives other numbers in "
                f"{changed[0]} of {name!r}"
            )
        elif reasons:
            reasons[name] = next(iter(reasons.values()))
    return reasons


def _value(given: Mapping[str, Any], rows: Array, site: dict[str, Any]) -> Any:
    """A value that follows the rows: of a GP site a function of its inputs, of others one number for all rows.

    Given values have the ``rows`` of the run where they have all of them.
    """
    if site["type"] != "sample":
        return given_value(given, site)
    if site["value"] is not None:
        return None
    fn: Any = unmasked(site["fn"])
    if isinstance(fn, GaussianProcess):
        return jnp.broadcast_to(jnp.sin(3 * sum(parts_by_row(fn).values())), fn.event_shape)
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


def _arrays_of(site: dict[str, Any]) -> Iterator[tuple[str, Array]]:
    """The numbers that a site's law is made of, or its value, and what they are."""
    if site["type"] == "deterministic":
        found = [("the value", site["value"])]
    elif site["type"] != "sample" or site["infer"].get("is_auxiliary"):
        return
    elif isinstance(fn := unmasked(site["fn"]), GaussianProcess):
        found = [(f"the {what.rstrip(' 0123456789')}", x) for what, x in parts_of(fn).items()]
    else:
        found = [("a parameter", x) for x in jax.tree.leaves(fn)]
    if site["type"] == "sample" and site["is_observed"]:
        found.append(("the data", site["value"]))
    for what, x in found:
        if isinstance(x, Array | np.ndarray) and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            yield what, jnp.asarray(x)


def _at_rows(
    x: Array, other: tuple[int, ...], fewer: int, few: np.ndarray, size: int, strided: bool
) -> np.ndarray | None:
    """The rows ``few`` of ``size`` along every axis that differs from ``other``; ``None`` if none are there.

    Args:
        x: at all rows.
        other: its shape at ``fewer`` rows.
        fewer: see ``other``.
        few: numbers of rows.
        size: of all rows.
        strided: see :class:`Layout`.
    """
    found = np.asarray(x)
    if found.ndim != len(other):
        return None
    for axis, (whole, part) in enumerate(zip(found.shape, other, strict=True)):
        if whole != part:
            if part % fewer or whole * fewer != part * size:
                return None
            found = found.take(Layout(part // fewer, strided).rows(few, size), axis)
    return found


def _nearly(x: Any) -> Any:
    """Numbers changed by their precision, up and down."""
    if not isinstance(x, np.ndarray) or not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    signs = np.random.default_rng(0).choice([-1, 1], np.shape(x))
    return x * (1 + signs * jnp.finfo(x.dtype).eps).astype(x.dtype)


def _same(x: Any, y: Any, nearly: Any) -> bool:
    """Whether two arrays are equal up to rounding, which changes ``y`` to ``nearly``."""
    if x is None or np.shape(x) != np.shape(y):
        return False
    x, y, nearly = map(np.asarray, (x, y, nearly))
    if not np.issubdtype(x.dtype, np.floating):
        return np.array_equal(x, y)
    finite = np.isfinite(y) & np.isfinite(nearly)
    rounding = np.where(finite, np.abs(nearly - y) + np.finfo(x.dtype).eps * np.abs(y), 0)
    # A large column does not hide what goes by place in a small one.
    column = rounding.max(axis=tuple(range(max(x.ndim - 1, 1)))[: x.ndim], initial=0)
    return np.allclose(x, y, rtol=0, atol=_ROUNDING * column, equal_nan=True)
