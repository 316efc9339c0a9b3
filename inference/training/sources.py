"""Sources of the rows of a training: arrays on the device, for one training or many, or a streamed table.

The device takes many steps at a time. It gets a feed for these steps: row numbers of arrays that are on the device, or
the rows of a table themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jaxtyping import Integer, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo._digests import fingerprint
from gpzoo.inference.programs import files
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.training._mesh import HERE, Placement
from gpzoo.inference.training.replicates import Replicates, arguments_of

if TYPE_CHECKING:
    from gpzoo.tables import Minibatches, Table

#: Largest number of steps on the device before control returns to the host.
MAX_CHUNK = 1000

#: Largest number of values sent to the device at a time: row numbers, or the rows of a table.
_MOST_NUMBERS = 2**24

#: Number of a table's rows that initial values and the check of the data before training use.
_SAMPLE_ROWS = 100_000


def described(name: str, arrays: Any) -> dict[str, str]:
    """Type, shape and sha256 of every array, to check that a training is continued with the same numbers.

    The hash is of the bytes that the program sees, at 1 to 2 GB per second.
    """
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        where = f"{name}{jax.tree_util.keystr(path)}"
        found |= {
            where: f"{leaf.dtype}{list(leaf.shape)}",
            f"{where} sha256": fingerprint({"": files.numbers(leaf)})[:16],
        }
    return found


def described_arguments(model: Callable, args: tuple, arrays: Mapping[str, Any]) -> dict[str, str]:
    """:func:`described` for a program's positional arguments, and for keyword arguments that are arrays, by name."""
    found: dict[str, str] = {}
    for name, value in [*zip(checks.positional(model, len(args))[0], args, strict=True), *arrays.items()]:
        found |= described(f"argument {name}", jax.tree.map(jnp.asarray, value))
    return found


def described_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments that are not arrays, by name, as JSON; those without such a form are left out."""
    found = {f"argument {name}": _plain(value) for name, value in options.items()}
    return {name: value for name, value in found.items() if value != ()}


def _plain(value: Any) -> Any:
    """A value as JSON; ``()`` if it has no such form."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple | list):
        parts = [_plain(each) for each in value]
        return () if () in parts else parts
    if isinstance(value, Mapping):
        named = {str(name): _plain(each) for name, each in value.items()}
        return () if () in named.values() else named
    if isinstance(value, partial):
        return _plain([value.func, value.args, value.keywords])
    if callable(value) and hasattr(value, "__qualname__"):  # a function or a class
        return f"{value.__module__}.{value.__qualname__}"
    return ()


def order_seed(rng_key: PRNGKeyArray) -> int:
    """The seed of the random order of rows in a training with this key."""
    return int(random.bits(named_key(rng_key, "rows"), (), jnp.uint32))


def source_of(
    args: tuple,
    batch_size: int | None,
    replicates: Replicates,
    in_axes: int | Sequence[int | None] | None = None,
    placement: Placement = HERE,
) -> Source:
    """The rows of the trainings: the arrays ``args``, or a table as the only argument.

    Raises:
        ValueError: if ``in_axes`` does not match the arguments; if there is a table and another argument or several
            keys; if the devices of a mesh do not divide ``batch_size``. See also :class:`Resident` and
            :class:`Streamed`.
    """
    if batch_size is not None and batch_size % placement.number:
        raise ValueError(f"batch_size must be a multiple of {placement.number}, the devices of mesh; got {batch_size}.")
    tables = [a for a in args if checks.is_table(a)]
    ordered = batch_size is not None or bool(tables)  # a step with all rows has no order
    seeds = [order_seed(key) if ordered else 0 for key in replicates.keys]
    if tables:
        if len(args) > 1 or replicates.several:
            raise ValueError(
                "A table is the only positional argument of fit, and takes one key, random.key(0); got "
                f"{len(args)} arguments and {replicates.count} key(s)."
            )
        return Streamed(tables[0], batch_size, seeds[0], placement)
    return Resident(args, batch_size, seeds, replicates.axes_of(in_axes, len(args)), placement)


class Source(Protocol):
    """The rows of the trainings of one call.

    Attributes:
        num_rows: number of all rows.
        num_arguments: number of the program's positional arguments.
        size: rows per minibatch.
        full: whether every minibatch is all rows, in their order.
        chunk: largest number of steps of a feed.
        axes: for each argument, whether it has an axis of replicates; ``None`` for one training.
        placement: placement of the arrays.
        on_devices: the data as arrays for the compiled steps; ``()`` if the rows themselves are in the feed.
        on_one_device: the same arrays on one device, for programs that run outside the compiled steps.
    """

    num_rows: int
    num_arguments: int
    size: int
    full: bool
    chunk: int
    axes: tuple[bool, ...] | None
    placement: Placement
    on_devices: tuple
    on_one_device: tuple

    def make_feed(self, start: int, count: int) -> Any:
        """The input of the device for ``count`` steps from ``start`` on; it depends only on these numbers and the seed.

        Every array is ``[chunk, ...]``, or ``[K, chunk, ...]`` for ``K`` replicates. If ``count`` is below ``chunk``,
        the arrays are padded.
        """
        ...

    def minibatch(self, data: tuple, feed: Any) -> tuple:
        """The minibatch of a step, from the data of a replicate and the step's part of the feed, in compiled code."""
        ...

    def batch(self, k: int, step: int) -> tuple:
        """The minibatch of a replicate at a step, for programs that run outside the compiled steps."""
        ...

    def all_rows(self, k: int) -> tuple:
        """All rows of a replicate, or a sample of them, for finding initial values and checking data."""
        ...

    def settings(self, names: Sequence[str]) -> dict[str, Any]:
        """The settings that a continued training must share, and everything else that changes the order of rows.

        Args:
            names: names of the program's positional arguments.
        """
        ...

    def close(self) -> None:
        """Stop reading; the source is not used afterwards."""
        ...


class Resident:
    """Arrays on the device. The row numbers of a minibatch depend only on the seed and the step.

    Args:
        args: the model's positional arguments.
        batch_size: rows per minibatch, ``None`` for all.
        seeds: one seed for each replicate.
        axes: for each argument, whether it has an axis of replicates; ``None`` for one training.
        placement: placement of the arrays. They are whole on every device, so that the choice of a minibatch moves no
            rows between devices.

    Raises:
        ValueError: if the numbers of rows or replicates differ, there are no rows, or ``batch_size`` is out of range.
    """

    def __init__(
        self,
        args: tuple,
        batch_size: int | None,
        seeds: Sequence[int],
        axes: tuple[bool, ...] | None,
        placement: Placement = HERE,
    ) -> None:
        self.axes, self.placement = axes, placement
        self.num_rows = checked_number_of_rows(args, axes, len(seeds))
        if batch_size is not None and not 1 <= batch_size <= self.num_rows:
            raise ValueError(f"batch_size must be between 1 and the number of rows, {self.num_rows}; got {batch_size}.")
        self.full, self.seeds, self.num_arguments = batch_size is None, seeds, len(args)
        self.size: int = self.num_rows if batch_size is None else batch_size
        self.on_devices = placement.put_whole(jax.device_put(args))
        self.on_one_device = placement.here(self.on_devices)
        self.chunk = MAX_CHUNK if self.full else int(np.clip(_MOST_NUMBERS // (self.size * len(seeds)), 1, MAX_CHUNK))

    def minibatch(self, data: tuple, feed: Integer[Array, " size"]) -> tuple:
        """See :class:`Source`."""
        return data if self.full else _rows_at(data, feed)

    def make_feed(self, start: int, count: int) -> Integer[Array, "*K chunk size"]:
        """The numbers of the rows; see :class:`Source`."""
        size = 0 if self.full else self.size
        rows = np.zeros((len(self.seeds), self.chunk, size), np.int32)
        for k, seed in enumerate(() if self.full else self.seeds):
            rows[k, :count] = indices(seed, start, count, self.num_rows, size)
        if self.axes is not None:
            return jnp.asarray(rows)
        return self.placement.put_rows(rows[0][:, self.placement.rows(size)], size)

    def all_rows(self, k: int) -> tuple:
        """See :class:`Source`."""
        return arguments_of(self.on_one_device, self.axes, k)

    def batch(self, k: int, step: int) -> tuple:
        """See :class:`Source`."""
        if self.full:
            return self.all_rows(k)
        return _rows_at(self.all_rows(k), indices(self.seeds[k], step, 1, self.num_rows, self.size)[0])

    def settings(self, names: Sequence[str]) -> dict[str, Any]:
        """The data by the names of the program's arguments; see :class:`Source`."""
        found: dict[str, Any] = {}
        for name, value in zip(names, self.on_one_device, strict=True):
            found |= described(f"argument {name}", value)
        return found | {"batch_size": self.size}

    def close(self) -> None:
        """Nothing to close."""


def checked_number_of_rows(args: tuple, axes: tuple[bool, ...] | None = None, keys: int = 1) -> int:
    """The number of rows of all arguments, after the axis of replicates if there is one.

    Raises:
        ValueError: if the numbers of rows differ, or there are no rows.
    """
    counts = set()
    for argument, own in zip(args, axes or [False] * len(args), strict=True):
        for leaf in jax.tree.leaves(argument):
            shape = np.shape(leaf)
            if own and (len(shape) < 2 or shape[0] != keys):
                raise ValueError(
                    f"With {keys} keys the positional arguments must be [{keys}, rows, ...], got shape {shape}. For "
                    "data that all keys share pass in_axes=None, or None in its place, as in in_axes=(None, 0)."
                )
            counts.add(shape[own] if shape else None)
    if not counts or None in counts:
        raise ValueError(
            "fit takes the data as positional arguments, arrays with one row per datum; others are model_kwargs."
        )
    if len(counts) > 1:
        raise ValueError(
            f"The positional arguments have different numbers of rows, {sorted(counts)}: pass arrays that have no row "
            "for each datum in model_kwargs."
        )
    if counts == {0}:
        raise ValueError("The data are empty: no rows.")
    return counts.pop()


class Streamed:
    """Minibatches of a table on the host. Many rows at a time are read and shuffled while the device computes.

    Args:
        table: the rows.
        batch_size: rows per minibatch.
        seed: seed of the order of the rows.
        placement: placement of the minibatches; this process keeps the rows of its own devices.

    Raises:
        ValueError: if ``batch_size`` is missing or out of range.
    """

    axes: tuple[bool, ...] | None = None
    full: bool = False
    on_devices: tuple = ()
    on_one_device: tuple = ()

    def __init__(self, table: Table, batch_size: int | None, seed: int, placement: Placement) -> None:
        if batch_size is None:
            raise ValueError("A table needs minibatches: give fit a batch_size.")
        self.table, self.num_rows, self.size, self.num_arguments = table, table.num_rows, batch_size, 1
        self.seed, self.placement, own = seed, placement, placement.rows(batch_size)
        self.minibatches = self._minibatches(part=own)
        self.is_whole = own == slice(0, batch_size)
        row = sum(int(np.prod(group.shape)) for group in table.groups)
        self.chunk = int(np.clip(_MOST_NUMBERS // (batch_size * row), 1, MAX_CHUNK))

    def minibatch(self, data: tuple, feed: tuple) -> tuple:
        """The feed itself; see :class:`Source`."""
        return feed

    def make_feed(self, start: int, count: int) -> tuple:
        """The minibatches, ``[chunk, size, ...]`` each; see :class:`Source`."""
        drawn = _fitting(self.minibatches.take(start, count))
        if count < self.chunk:
            drawn = tuple(np.concatenate([x, np.zeros((self.chunk - count, *x.shape[1:]), x.dtype)]) for x in drawn)
        return tuple(self.placement.put_rows(x, self.size) for x in drawn)

    def all_rows(self, k: int) -> tuple:
        """The rows of the first steps, a sample; see :class:`Source`."""
        steps = -(-min(_SAMPLE_ROWS, self.num_rows) // self.size)
        drawn = self._whole(0, min(steps, self.minibatches.steps_per_epoch))
        return jax.tree.map(lambda x: jnp.asarray(x.reshape(-1, *x.shape[2:])), drawn)

    def batch(self, k: int, step: int) -> tuple:
        """See :class:`Source`."""
        return jax.tree.map(lambda x: jnp.asarray(x[0]), self._whole(step, 1))

    def _whole(self, start: int, count: int) -> tuple[np.ndarray, ...]:
        """Minibatches with all of their rows."""
        if self.is_whole:
            return _fitting(self.minibatches.take(start, count))
        with self._minibatches(read_ahead=0) as minibatches:
            return _fitting(minibatches.take(start, count))

    def _minibatches(self, **options: Any) -> Minibatches:
        from gpzoo.tables.minibatches import Minibatches  # a training on arrays does not need them

        return Minibatches(self.table, self.size, self.seed, **options)

    def settings(self, names: Sequence[str]) -> dict[str, Any]:
        """The fingerprint of the table; see :class:`Source`."""
        found = dict(self.table.fingerprint)
        found[f"checksum ({found.pop('seen')})"] = found.pop("checksum")
        return {f"table {key}": value for key, value in found.items()} | {"batch_size": self.size}

    def close(self) -> None:
        """Stop reading."""
        self.minibatches.close()


def _fitting(drawn: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    for position, array in enumerate(drawn):
        checks.fits(f"Array {position} of the table", array)
    return drawn


def _rows_at(data: tuple, rows: Any) -> tuple:
    return jax.tree.map(lambda x: jnp.take(x, jnp.asarray(rows), axis=0), data)


def indices(seed: int, start: int, count: int, num_rows: int, size: int) -> Integer[np.ndarray, "{count} {size}"]:
    """Row numbers of ``count`` minibatches from step ``start`` on, ``[count, size]``, shuffled anew in every epoch.

    The numbers depend only on the arguments, because some steps are taken again: by a resumed training, and by
    ``failures.py``, which looks for the last good state.
    """
    per_epoch = num_rows // size
    out = np.empty((count, size), np.int32)
    epoch, order = -1, np.zeros(0, np.int64)
    for i in range(count):
        now, position = divmod(start + i, per_epoch)
        if now != epoch:
            epoch, order = now, np.random.Generator(np.random.Philox(key=[seed, now])).permutation(num_rows)
        out[i] = order[position * size : (position + 1) * size]
    return out
