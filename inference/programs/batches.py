"""How does a function of draws and rows come to the host? A batch of rows at a time, all in one compiled program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpzoo.inference.programs.rows import Layout, SiteRows

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
    function: Callable[..., dict[str, Any]], draws: Any, args: tuple, *rest: Any, batch_size: float, follow: SiteRows
) -> dict[str, Any]:
    """What a function of all rows would give, on the host: arrays by site in groups.

    What is the same in all batches is taken from the first.

    Args:
        function: as :func:`over_draws` makes it, also of the number of a batch.
        draws: of the posterior.
        args: arrays with one row per datum.
        *rest: further arguments.
        batch_size: most rows at a time.
        follow: how sites follow the rows.

    Raises:
        ValueError: in several batches, naming a site whose rows cannot be told from those of the data.
    """
    num_rows = max(follow.count, 1)
    size = -(-num_rows // -(-num_rows // int(min(batch_size, num_rows))))
    each: list[dict[str, Any]] = []
    for number, (_, batch) in enumerate(batches(args, num_rows, size)):
        each.append(jax.tree.map(np.asarray, function(draws, jnp.asarray(number), batch, *rest)))
        if size < num_rows and not number:
            follow.refuse_untold({name for group in each[0].values() for name in group}, size)

    def whole(group: str, name: str) -> np.ndarray:
        parts = [found[group][name] for found in each]
        return joined(parts, follow.layouts.get(name), 0 if group in SHARED else 1, num_rows)

    return {group: {name: whole(group, name) for name in found} for group, found in each[0].items()}
