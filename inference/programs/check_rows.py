"""The check that each term of a program depends on a single row of each drawn GP site, with numbers at the rows.

In training and prediction, a drawn site is independent between rows, so a term that depends on two rows sees a wrong
law. The check replaces the drawn values at some rows, and then at all other rows. A term that changes both times
depends on several rows. Rows are numbered in a random order. For each bit of these numbers, a run replaces the rows
whose bit is one. Two rows differ in at least one bit, so some run replaces one row and not the other. ``3 log2(N)``
runs of one compiled program therefore miss no pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gpzoo.inference.programs.arrays import split_arrays
from gpzoo.inference.programs.enumeration import summed_out
from gpzoo.inference.programs.rows import Layout, number_of_rows
from gpzoo.inference.programs.runs import Trace, sampled, unmasked
from gpzoo.inference.programs.sites import Sites
from gpzoo.inference.programs.standins import concrete, run_with, unit_value
from gpzoo.processes.process import GaussianProcess, to_event_shape

#: Least number of times that rows are replaced: a dependence through a branch may need several values to show.
_LEAST = 6

#: Changes below this are rounding, in units of the precision: relative to a term and to its change with its own row.
_ROUNDING = 256


class Drawn(NamedTuple):
    """A drawn GP site.

    Attributes:
        shape: shape of its value, ``[M, ...]``.
        dtype: dtype of its value.
        apart: whether its rows are drawn independently; otherwise, all rows are drawn together.
    """

    shape: tuple[int, ...]
    dtype: Any
    apart: bool


class RowDependence(NamedTuple):
    """How the terms of a program depend on the rows of its drawn GP sites.

    Attributes:
        within: which inputs of a site belong to one row of the data, by name of the site. A site is listed here if a
            term needs several inputs of one row together, and no term needs inputs of several rows.
        across: a term that depends on several rows of a site, in words, by name of the site.
    """

    within: dict[str, Layout]
    across: dict[str, str]


#: Numbers by name, each a term, as a function of the drawn values by site.
Terms = Callable[[dict[str, Any]], Mapping[str, Array]]


def dependence_on_rows(
    model: Callable,
    args: tuple,
    kwargs: Mapping[str, Any],
    found: Sites,
    joint: frozenset[str],
    values: Mapping[str, Any] | None = None,
) -> RowDependence:
    """How the program's terms at these arguments depend on the rows of the GP sites that it draws.

    Terms are log densities of data, priors of latent sites that are not GPs, and the inputs, mean and kernel of GP
    sites.

    Args:
        model: the program.
        args: its positional arguments, data included.
        kwargs: its keyword arguments.
        found: the program's sites.
        joint: names of the GP sites that are drawn jointly.
        values: given values of parameters and of latent sites that are not GPs, by name.
    """
    with jax.ensure_compile_time_eval():
        given = concrete((args, dict(kwargs), dict(values or {})))
        arrays, static = split_arrays(given[1])
    given, num_rows = (given[0], arrays, given[2]), number_of_rows(args)
    sites: dict[str, Drawn] = {}
    scored = model

    def program(given: tuple, of_process: Callable[[str, GaussianProcess], Any]) -> Trace:
        args, arrays, values = given
        return run_with(of_process, scored, args, arrays | static, values).model

    def unit(name: str, fn: GaussianProcess) -> Any:
        sites[name] = Drawn(fn.event_shape, fn.X.dtype, name not in joint)
        return unit_value(name, fn)

    def first(given: tuple) -> None:
        nonlocal scored
        latents = {name for name, site in sampled(program(given, unit)).items() if not site["is_observed"]}
        if found.enumerated and latents <= found.latents | found.enumerated:  # with data, there is something to sum
            scored = summed_out(model, found.plate_depth)

    def terms(within: Mapping[str, Layout], given: tuple, drawn: Mapping[str, Array]) -> dict[str, Array]:
        numbers: dict[str, Array] = {}

        def value(name: str, fn: GaussianProcess) -> Any:
            parts = parts_by_row(fn)
            numbers.update({f"the {part} of {name}": x for part, x in parts.items()})
            start = response(parts, fn.in_row, sites[name], within.get(name), num_rows)
            numbers[f"the prior of {name}"] = start
            return start + (drawn[name] if name in drawn else unit_value(name, fn))

        for name, site in sampled(program(given, value)).items():
            fn = unmasked(site["fn"])
            if site["is_observed"] and isinstance(fn, GaussianProcess):
                whole = Drawn(fn.event_shape, fn.X.dtype, apart=False)
                numbers[f"the log density of {name}"] = response(parts_by_row(fn), fn.in_row, whole, None, num_rows)
            elif site["is_observed"]:
                numbers[f"the log density of {name}"] = jnp.asarray(site["fn"].log_prob(site["value"]))
            elif not isinstance(fn, GaussianProcess):
                numbers[f"the prior of {name}"] = law_by_row(fn)
        return numbers

    with jax.ensure_compile_time_eval():
        jax.eval_shape(first, given)
        used = {name: site for name, site in sites.items() if name in found.drawn or name in joint}
        return row_dependence(lambda within: partial(jax.jit(partial(terms, within)), given), used, num_rows)


def row_dependence(
    terms_of: Callable[[Mapping[str, Layout]], Terms], sites: Mapping[str, Drawn], num_rows: int
) -> RowDependence:
    """Find which terms depend on several rows of a drawn site.

    Args:
        terms_of: a function from layouts by site, which say which inputs are drawn together, to a compiled function
            that computes the program's terms from drawn values.
        sites: all GP sites that the program draws, by name.
        num_rows: number of rows of the data; 0 if the program's arguments have different numbers of rows.
    """
    within: dict[str, Layout] = {}
    across: dict[str, str] = {}
    while True:
        mixed = _mixed(terms_of(within), sites, within, num_rows)
        new = {name: term for name, term in mixed.items() if name not in across}
        if not new:
            return RowDependence(within, across)
        for name, term in new.items():
            layout = None if name in within else _layout(terms_of, sites, within, name, num_rows)
            if layout is None:
                across[name] = term
            else:
                within = within | {name: layout}


def _layout(
    terms_of: Callable[[Mapping[str, Layout]], Terms],
    sites: Mapping[str, Drawn],
    within: Mapping[str, Layout],
    name: str,
    num_rows: int,
) -> Layout | None:
    """Which inputs of a site belong to a row, if no term needs the inputs of several rows."""
    size = sites[name].shape[0]
    if not num_rows or size % num_rows or size == num_rows:
        return None
    for strided in (False, True):
        tried = dict(within) | {name: Layout(size // num_rows, strided)}
        if name not in _mixed(terms_of(tried), sites, tried, num_rows):
            return tried[name]
    return None


def _mixed(terms: Terms, sites: Mapping[str, Drawn], within: Mapping[str, Layout], num_rows: int) -> dict[str, str]:
    """Terms that depend on several rows, by the site whose rows these are.

    Rows of all sites are first replaced together. If this finds a term, the rows of each site are replaced alone,
    because a term may depend on one row of each of two sites, at different places.
    """
    rows = {name: _rows(site, within.get(name), num_rows) for name, site in sites.items() if site.apart}
    if not rows or _first_mixed(terms, sites, rows) is None:
        return {}
    found = {name: _first_mixed(terms, sites, {name: own}) for name, own in rows.items()}
    return {name: term.format(repr(name)) for name, term in found.items() if term is not None}


def _rows(site: Drawn, layout: Layout | None, num_rows: int) -> np.ndarray:
    """The number of the row to which each of the ``M`` entries of a site's first axis belongs."""
    entries = np.arange(site.shape[0])
    if layout is None:
        return entries
    return entries % num_rows if layout.strided else entries // layout.count


def _first_mixed(terms: Terms, sites: Mapping[str, Drawn], rows: Mapping[str, np.ndarray]) -> str | None:
    """The first term that changes with some of the rows and with the others too, in words that leave out the site."""
    rng = np.random.default_rng(0)
    counts = {name: int(of.max()) + 1 for name, of in rows.items()}
    bits = max((count - 1).bit_length() for count in counts.values())
    if not bits:
        return None
    for turn in range(-(-_LEAST // bits) * bits):
        # Sites with the same number of rows are replaced at the same rows.
        places = {count: np.random.default_rng(turn // bits).permutation(count) for count in set(counts.values())}
        replaced = {name: places[counts[name]][of] >> turn % bits & 1 == 1 for name, of in rows.items()}
        base, other = ({name: _values(site, turn, rng) for name, site in sites.items()} for _ in range(2))
        before = terms(base)
        changes = []
        for side in (True, False):
            moved = dict(base)
            for name, of in replaced.items():
                axes = (1,) * (base[name].ndim - 1)
                moved[name] = np.where((of == side).reshape(-1, *axes), other[name], base[name])
            after = terms(moved)
            changes.append({name: _change(np.asarray(x), np.asarray(after[name])) for name, x in before.items()})
        # Terms that the user wrote are named before terms that follow from them.
        for name in sorted(before, key=lambda name: name.startswith(("the log", "the prior"))):
            x = np.asarray(before[name])
            less, more = np.sort([change[name] for change in changes], axis=0)
            scale = np.where(np.isfinite(x), np.abs(x), 0) + np.where(np.isfinite(more), more, 0)
            mixed = less > _ROUNDING * jnp.finfo(x.dtype).eps * scale
            if mixed.any():
                entry = np.unravel_index(np.argmax(mixed), mixed.shape)
                where = f" (for its entry {', '.join(map(str, entry))})" if entry else ""
                verb = "depend" if name.startswith("the inputs") else "depends"
                return f"{name} {verb} on several rows of GP site {{}}{where}"
    return None


def _values(site: Drawn, turn: int, rng: np.random.Generator) -> np.ndarray:
    """Values of several sizes, every other time positive ones."""
    x = (1.0, 1.0, 0.1, 3.0)[turn % 4] * rng.standard_normal(site.shape)
    return np.asarray(np.abs(x) if turn % 2 else x, site.dtype)


def _change(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The size of a change; infinite if one of the two is not finite."""
    with np.errstate(invalid="ignore"):
        return np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.nan_to_num(np.abs(x - y), nan=np.inf))


def parts_by_row(prior: GaussianProcess) -> dict[str, Array]:
    """Numbers that change if a part of a site's prior changes: its inputs or mean (row by row), or its kernel."""
    dtype, own = prior.X.dtype, int(prior.kernel.has_outputs(prior.X))
    flat = (prior.num_inputs,) if prior.num_outputs is None else (prior.num_inputs, prior.num_outputs)
    parts = {"inputs": to_event_shape(_number(prior.X, 1 + own, dtype), flat).reshape(prior.event_shape)}
    if prior.loc is not None:
        parts["mean"] = jnp.broadcast_to(jnp.asarray(prior.loc, dtype), prior.event_shape)
    leaves = [_number(leaf, 0, dtype) for leaf in jax.tree.leaves(prior.kernel)]
    if leaves:
        parts["kernel"] = _number(jnp.stack(leaves), 0, dtype)
    return parts


def law_by_row(fn: Any) -> Array:
    """Numbers that change with the parameters of a distribution, in the distribution's batch shape."""
    shape = tuple(fn.batch_shape)
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(fn)]
    by_row = [_number(x, len(shape) if x.shape[: len(shape)] == shape else 0, float) for x in leaves if _is_real(x)]
    return jnp.broadcast_to(sum(by_row, jnp.zeros(())), shape)


def response(
    parts: Mapping[str, Array], in_row: int | None, drawn: Drawn, layout: Layout | None, num_rows: int
) -> Array:
    """Numbers of a site's shape that change with everything on which its draw depends.

    A value with these numbers passes the effect of an earlier site on to later sites.

    Args:
        parts: parts from :func:`parts_by_row`.
        in_row: how many inputs a row of the site has, if these have their own axis.
        drawn: how the site is drawn.
        layout: which inputs of the site are drawn together; ``None`` if each input is drawn alone.
        num_rows: number of rows of the data.
    """
    shape, dtype = drawn.shape, drawn.dtype
    value = jnp.broadcast_to(sum(parts.values()), shape)
    if not drawn.apart:
        value = jnp.broadcast_to(_number(value, 0, dtype) * value.size, shape)
    elif in_row is not None or layout is not None:
        together = _number(value, 1, dtype) * (value.size // len(value))
        if layout is not None:
            rows = jnp.asarray(_rows(drawn, layout, num_rows))
            together = jax.ops.segment_sum(together, rows, num_rows)[rows]
        value = jnp.broadcast_to(together.reshape(-1, *(1,) * (len(shape) - 1)), shape)
    # Small in comparison with draws of about one, because far from zero a function may be flat, such as a clipped one.
    return jnp.sin(value) / 2


def _number(x: Any, axes: int, dtype: Any) -> Array:
    """One number for the entries of an array after its first ``axes``, which changes with each entry."""
    x = jnp.asarray(x)
    if not _is_real(x):
        return jnp.zeros(x.shape[:axes], dtype)
    flat = x.reshape(*x.shape[:axes], -1).astype(dtype)
    # A mean, because rounding of a sum of many entries in float32 would be as large as the change by one row.
    return jnp.sin(flat) @ (jnp.linspace(1.0, 2.0, flat.shape[-1], dtype=dtype) / max(flat.shape[-1], 1))


def _is_real(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)
