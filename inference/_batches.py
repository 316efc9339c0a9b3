"""How does a function of draws and rows come to the host? A batch of rows at a time, all in one compiled program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from gpzoo.inference._rows import Layout

#: Groups of arrays that are the same for all draws, of which one is kept.
SHARED = ("observed_data", "masks")


def over_draws(function: Callable[..., dict[str, Any]], each_alone: bool) -> Callable[..., dict[str, Any]]:
    """A compiled function of many draws.

    Args:
        function: of a draw, the number of a batch and its rows, and of anything else.
        each_alone: whether draws are made one after the other, not all at once.
    """

    def many(draws: Any, *rest: Any) -> dict[str, Any]:
        if each_alone:
            found = jax.lax.map(lambda draw: function(draw, *rest), draws)
        else:
            found = jax.vmap(lambda draw: function(draw, *rest))(draws)
        return found | {name: jax.tree.map(lambda x: x[0], found[name]) for name in SHARED if name in found}

    return jax.jit(many)


def number_of_rows(args: tuple) -> int:
    """What all arrays have in common as their first axis; 0 if nothing."""
    rows = {np.shape(x)[0] if np.shape(x) else 0 for x in jax.tree.leaves(args)}
    return rows.pop() if len(rows) == 1 else 0


def batches(args: Any, num_rows: int, batch_size: int) -> Iterator[tuple[np.ndarray, Any]]:
    """Numbers of rows, and the arguments at these; the last batch repeats the last row, so that all have one shape."""
    for start in range(0, num_rows, batch_size):
        rows = np.minimum(np.arange(start, start + batch_size), num_rows - 1)
        yield rows, args if batch_size == num_rows else jax.tree.map(lambda x: x[rows], args)  # noqa: B023


def joined(parts: Sequence[Any], layout: Layout | None, axis: int, num_rows: int) -> np.ndarray:
    """An array of a site's rows along ``axis`` from its parts in each of :func:`batches`, and nothing but these.

    Args:
        parts: of every batch, or of the first where the site is the same in all.
        layout: how the site follows the rows of the data; ``None`` where it is the same in all batches.
        axis: of its rows.
        num_rows: of the data.
    """
    if layout is None or len(parts) == 1:
        return np.asarray(parts[0])
    if not layout.strided:
        whole = np.concatenate(parts, axis=axis)
        return np.take(whole, range(layout.count * num_rows), axis) if whole.shape[axis] > num_rows else whole
    apart = [np.reshape(x, (*x.shape[:axis], layout.count, -1, *x.shape[axis + 1 :])) for x in parts]
    whole = np.concatenate(apart, axis=axis + 1).take(range(num_rows), axis + 1)
    return whole.reshape(*whole.shape[:axis], -1, *whole.shape[axis + 2 :])


def in_batches(
    function: Callable[..., dict[str, Any]], draws: Any, args: tuple, *rest: Any, batch_size: float
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What a function of all rows would give, on the host.

    The axis that grows with the rows is found from the shapes that two numbers of rows give. What has none is taken
    from the first batch.

    Args:
        function: as :func:`over_draws` makes it.
        draws: of the posterior.
        args: arrays with one row per datum.
        *rest: further arguments.
        batch_size: most rows at a time.

    Returns:
        The arrays, and that axis of each, -1 where there is none; or ``None`` in place of the axes if there was one
        batch.
    """
    num_rows = number_of_rows(args)
    count = -(-num_rows // int(min(batch_size, max(num_rows, 1)))) if num_rows else 1

    def batch(start: int, size: int) -> tuple:
        # The last one is filled up, so that all have one shape.
        rows = np.minimum(np.arange(start, start + size), num_rows - 1)
        return jax.tree.map(lambda x: x[rows], args)

    if count == 1:
        return jax.tree.map(np.asarray, function(draws, jnp.asarray(0), args, *rest)), None
    size = -(-num_rows // count)
    of = lambda size: jax.eval_shape(function, draws, jnp.asarray(0), batch(0, size), *rest)  # noqa: E731
    axes = jax.tree.map(_growing, of(size), of(size - 1))
    whole: Any = None
    for number in range(count):
        start = number * size
        part = jax.tree.map(np.asarray, function(draws, jnp.asarray(number), batch(start, size), *rest))
        if whole is None:
            whole = jax.tree.map(lambda x, axis: _longer(x, axis, num_rows), part, axes)
        jax.tree.map(lambda x, new, axis: _store(x, new, axis, start), whole, part, axes)  # noqa: B023
    return whole, axes


def _growing(large: Any, small: Any) -> int:
    axes = [i for i, (a, b) in enumerate(zip(large.shape, small.shape, strict=True)) if a != b]
    return axes[0] if axes else -1


def _longer(x: np.ndarray, axis: int, length: int) -> np.ndarray:
    return x if axis < 0 else np.empty((*x.shape[:axis], length, *x.shape[axis + 1 :]), x.dtype)


def _store(whole: np.ndarray, part: np.ndarray, axis: int, start: int) -> None:
    if axis >= 0:
        whole, part = np.moveaxis(whole, axis, 0), np.moveaxis(part, axis, 0)
        whole[start : start + len(part)] = part[: len(whole) - start]
