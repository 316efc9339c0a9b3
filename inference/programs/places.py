"""Does a site change with the place of a row among the others, or with their number? Runs of the program tell.

Rows of data are followed through a program, but no row of data is in ``jnp.arange(len(X))``, ``X * len(X)`` or a draw
of the shape of ``X`` by a key of the program's own. In batches these are others than for all rows at once. So the
program runs on all rows, or on many of them, and on as many of these as a batch has in another order, where every
latent site has the same values. What differs, and not for another random key too, goes by place. Rounding is measured:
a third run has the smallest change in each of its numbers, and what differs by no more than some of that is rounding.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from numpyro.distributions import constraints

from gpzoo.inference.programs.program import concrete, parts_of, rows_of_sites
from gpzoo.inference.programs.rows import Layout, SiteRows
from gpzoo.inference.programs.runs import drawing, given_value, run, unmasked
from gpzoo.likelihoods import Likelihood
from gpzoo.processes.process import GaussianProcess

#: Most numbers in the arguments of the larger run, unless a batch has more.
_MOST = 2**17

#: Changes are rounding up to so many times what the smallest change in the run's numbers makes: products over many
#: columns round each of their sums.
_ROUNDING = 16


def sites_by_place(
    model: Callable,
    args: tuple,
    kwargs: Mapping[str, Any],
    values: Mapping[str, Any] | None,
    rows: SiteRows,
    batch_size: int,
) -> dict[str, str]:
    """Sites that change with the place or the number of the rows, and those after them: why, by name.

    Args:
        model: the program.
        args: positional arguments, at all rows.
        kwargs: keyword arguments.
        values: of sites and parameters, where some are given.
        rows: how the sites follow the rows of ``args``.
        batch_size: number of rows of a batch; with that of all rows, as of a minibatch, their order alone changes.
    """
    with jax.ensure_compile_time_eval():
        return _by_place(model, *jax.tree.map(concrete, (args, dict(kwargs), dict(values or {}))), rows, batch_size)


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
    rows = rows_of_sites(model, args, kwargs)
    if rows.count < 2:
        return
    # Which rows of the batch a site's row depends on may not be told; where they lie is.
    likely = {name: Layout(max(size // rows.count, 1)) for name, size in rows.sizes.items() if name in rows.untold}
    rows = replace(rows, layouts=likely | dict(rows.layouts), untold={})
    try:
        found = sites_by_place(model, args, kwargs, values, rows, rows.count - (not order_alone))
    except Exception:  # a program of one number of rows; what else is wrong, the training says
        return
    for name, reason in found.items():
        raise ValueError(
            f"Site {name!r} does not come in minibatches: {reason}. Train on all rows at once (batch_size=None), or "
            "pass what goes by the place of a row as an argument with a row of its own for each datum."
        )


def _by_place(
    model: Callable, args: tuple, kwargs: dict[str, Any], others: dict[str, Any], rows: SiteRows, batch_size: int
) -> dict[str, str]:
    of_each: dict[str, list[str]] = {}

    @jax.jit
    def numbers(
        args: tuple, given: dict[str, Any], others: dict[str, Any], key: Array
    ) -> tuple[dict[str, Any], dict[str, list[Array]]]:
        # A copy: networks write their state into the dictionary that they are handed.
        value = partial(_value, given, jax.tree.map(lambda x: x, others), key)
        found = run(key, args, kwargs, model=model, values=value, complete=False)
        latent = {
            name: site["value"]
            for name, site in found.model.items()
            if site["type"] == "sample" and not site["is_observed"]
        }
        arrays = {name: list(_arrays_of(site)) for name, site in found.model.items()}
        of_each.update({name: [what for what, _ in of] for name, of in arrays.items()})
        return latent, {name: [x for _, x in of] for name, of in arrays.items()}

    most = _MOST * rows.count // max(sum(np.size(x) for x in jax.tree.leaves(args)), 1)
    size = rows.count if rows.count <= most else max(most // batch_size, 1) * batch_size
    some = np.arange(size)
    # From everywhere: what goes by place may be the same at all of the first rows, such as an array of sorted groups.
    few = np.linspace(size - 1, 0, batch_size if batch_size < size else min(size, 3)).astype(int)
    ordered = batch_size == rows.count
    if ordered:
        few = np.random.default_rng(0).permutation(size)
    at = lambda of: jax.tree.map(lambda x: np.asarray(x)[of], args)  # noqa: E731
    latent, whole = jax.tree.map(np.asarray, numbers(at(some), {}, others, random.key(0)))
    layouts = rows.layouts
    taken = {
        name: x[layouts[name].rows(few, size)] if name in layouts else x
        for name, x in latent.items()
        if name not in rows.untold
    }
    (_, part), (_, again) = (numbers(at(some[few]), taken, others, random.key(i)) for i in (0, 1))
    (_, nearly) = numbers(*jax.tree.map(_nearly, (at(some[few]), taken, others)), random.key(0))
    # Which axes are rows, their number tells, which in another order is the same.
    fewer = size - 1 if ordered else len(few)
    sizes = jax.eval_shape(numbers, at(some[:fewer]), {}, others, random.key(0))[1] if ordered else part
    reasons: dict[str, str] = {}
    for name, arrays in part.items():
        strided = name in layouts and layouts[name].strided
        changed = []
        each = zip(of_each[name], whole[name], arrays, again[name], nearly[name], sizes[name], strict=True)
        for what, x, y, z, around, other in each:
            there = [_at_rows(x, other.shape, fewer, few, size, how) for how in (strided, not strided)]
            if _same(z, y, around) and not any(_same(entries, y, around) for entries in there):
                changed.append(what)
        if (what := next(iter(changed), None)) is not None:
            reasons[name] = (
                f"the same row at another place, or among another number of rows, gives other numbers in "
                f"{what} of {name!r}"
            )
        elif reasons:
            reasons[name] = next(iter(reasons.values()))
    return reasons


def _value(given: Mapping[str, Any], others: Mapping[str, Any], key: Array, site: dict[str, Any]) -> Any:
    """A given value, or numbers that differ at each entry of a GP site or of data that are any real numbers.

    ``others`` have the values of GP sites at other rows. The numbers are cosines, which compile in a fifth of the time
    of random ones.
    """
    value = given_value(given, site)
    if value is not None or site["type"] != "sample" or site["value"] is not None:
        return given_value(others, site) if value is None else value
    fn: Any = unmasked(site["fn"])
    if isinstance(fn, GaussianProcess):
        shape, dtype = fn.event_shape, fn.X.dtype
    elif isinstance(fn, Likelihood) and _is_real(fn.support):
        with drawing():
            like = jax.eval_shape(fn.sample, key)
        shape, dtype = like.shape, like.dtype
    else:
        return given_value(others, site)
    numbers = jnp.arange(math.prod(shape), dtype=dtype)
    # Others for another key and another site; multiples of the golden angle lie all over the circle.
    start = jnp.sum(random.key_data(key)).astype(dtype) + zlib.crc32(site["name"].encode()) % 1000
    return math.sqrt(2) * jnp.cos(2.39996323 * numbers + start).reshape(shape)


def _is_real(support: Any) -> bool:
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return support is constraints.real


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
    if not jnp.issubdtype(jnp.result_type(x), jnp.floating):
        return x
    signs = np.random.default_rng(0).choice([-1, 1], np.shape(x))
    return np.asarray(x) * (1 + signs * jnp.finfo(jnp.result_type(x)).eps).astype(x.dtype)


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
