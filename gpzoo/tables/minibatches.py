"""Minibatches of a table, in a random order, read ahead of the device."""

from __future__ import annotations

import operator
from collections import deque
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from gpzoo.tables.table import Table, empty


class Minibatches:
    """Minibatches of a table in a random order that is a function of ``(table, batch_size, seed, window)`` alone.

    Every epoch visits the blocks in a new random order, cuts that order into windows and shuffles the rows of each
    window; minibatches are cut from the result. Windows have at least ``window`` rows and are as even as the blocks
    allow: they grow to ``window`` rows and two blocks, and a table that does not fill two windows is one window. The
    ``num_rows % batch_size`` rows at the end of an epoch are left out of it, so that each epoch has ``steps_per_epoch``
    steps. To start at any step, only the windows of its rows are read.

    One thread reads and shuffles windows ahead. ``read_ahead + 2`` of them are held in memory.

    Args:
        table: the rows.
        batch_size: number of rows of a minibatch.
        seed: 0 to 2**64 - 1.
        window: least number of rows that are shuffled together, unless the table has fewer. For a sorted table it
            should span many blocks.
        read_ahead: number of windows prepared ahead; 0 to read on demand.
        part: the rows of each minibatch that are wanted, ``slice(start, stop)``, if not all: of every window only these
            are held. The blocks of a window hold rows of all parts, so that each part reads all blocks.

    Attributes:
        steps_per_epoch: number of steps that visit the table once, ``num_rows // batch_size``.

    Raises:
        ValueError: if the table is empty or a number is out of range.
    """

    def __init__(
        self,
        table: Table,
        batch_size: int,
        seed: int,
        window: int = 1_000_000,
        read_ahead: int = 2,
        part: slice = slice(None),
    ) -> None:
        if table.num_rows == 0:
            raise ValueError("The table is empty: no rows.")
        if not 1 <= operator.index(batch_size) <= table.num_rows:
            raise ValueError(
                f"batch_size must be between 1 and the number of rows, {table.num_rows}; got {batch_size}."
            )
        if not 0 <= operator.index(seed) < 2**64:
            raise ValueError(f"seed must be between 0 and 2**64 - 1, got {seed}.")
        if operator.index(window) < 1 or operator.index(read_ahead) < 0:
            raise ValueError(f"window must be 1 or more and read_ahead 0 or more, got {window} and {read_ahead}.")
        self.table, self.batch_size, self.seed = table, operator.index(batch_size), operator.index(seed)
        self.steps_per_epoch = table.num_rows // self.batch_size
        self._start, stop, _ = part.indices(self.batch_size)
        self._part = stop - self._start
        if self._part < 1 or part.step not in (None, 1):
            raise ValueError(
                f"part must be a slice of one or more of the {batch_size} rows of a minibatch; got {part}."
            )
        self._window, self._orders = window, {}
        most = int(table.block_rows.max())
        self._windows = max(1, table.num_rows // (window + most))
        room = min(table.num_rows, -(-table.num_rows // self._windows) + most)
        most = (room // self.batch_size + 2) * self._part
        self._free = [empty(table.groups, min(room, most)) for _ in range(read_ahead + 1)]
        self._scratch = empty(table.groups, room)
        self._ready: deque[_Prepared] = deque()
        self._current: _Prepared | None = None
        self._next = (0, 0)
        self._thread: ThreadPoolExecutor | None = ThreadPoolExecutor(1, "gpzoo-minibatches")

    def take(self, step: int, count: int) -> tuple[np.ndarray, ...]:
        """Minibatches of ``count`` steps, the first of them ``step``: new arrays ``[count, batch_size, ...]``.

        With a ``part``, only its rows of each.

        Raises:
            DatasetError: if a block cannot be read.
            ValueError: if ``step`` is negative or ``count`` below 1; after :meth:`close`; if a block holds bad values.
        """
        step, count = operator.index(step), operator.index(count)
        if step < 0 or count < 1:
            raise ValueError(f"step must be 0 or more and count 1 or more, got {step} and {count}.")
        if self._thread is None:
            raise ValueError("These minibatches are closed; make new ones.")
        rows, visited = count * self.batch_size, self.steps_per_epoch * self.batch_size
        out = empty(self.table.groups, count * self._part)
        done = filled = 0
        try:
            while done < rows:
                epoch, row = divmod(step * self.batch_size + done, visited)
                ends = self._order(epoch).ends
                index = int(np.searchsorted(ends, row, side="right"))
                stop = min(int(ends[index]), visited, row + rows - done)
                first = int(ends[index - 1]) if index else 0
                before, after = self._own(row) - self._own(first), self._own(stop) - self._own(first)
                for target, source in zip(out, self._get((epoch, index)), strict=True):
                    target[filled : filled + after - before] = source[before:after]
                done, filled = done + stop - row, filled + after - before
        except BaseException:
            self.close()
            raise
        return tuple(array.reshape(count, self._part, *array.shape[1:]) for array in out)

    def _own(self, row: int) -> int:
        """How many of the first rows of an epoch are of the part."""
        batch, place = divmod(row, self.batch_size)
        return batch * self._part + min(max(place - self._start, 0), self._part)

    def close(self) -> None:
        """End the thread and free the memory; :meth:`take` then raises."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=True, cancel_futures=True)
        self._current, self._scratch = None, ()
        self._free.clear()
        self._ready.clear()

    def __enter__(self) -> Minibatches:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def _order(self, epoch: int) -> _Order:
        if epoch not in self._orders:
            if len(self._orders) > 3:
                self._orders.clear()
            blocks = _random(self.seed, epoch, 0).permutation(len(self.table.block_rows))
            rows = np.cumsum(self.table.block_rows[blocks])
            goals = np.arange(1, self._windows + 1) * self.table.num_rows // self._windows
            cuts = np.searchsorted(rows, goals) + 1
            # Windows beyond the last step of the epoch are not read.
            used = int(np.searchsorted(rows[cuts - 1], self.steps_per_epoch * self.batch_size)) + 1
            self._orders[epoch] = _Order(np.split(blocks, cuts[:-1])[:used], rows[cuts - 1][:used])
        return self._orders[epoch]

    def _get(self, key: tuple[int, int]) -> tuple[np.ndarray, ...]:
        """The shuffled rows of window ``key = (epoch, index)``."""
        if self._current is None or self._current.key != key:
            if self._current is not None:
                self._free.append(self._current.buffers)
                self._current = None
            if not self._ready or self._ready[0].key != key:
                self._seek(key)
            self._ready[0].future.result()
            self._current = self._ready.popleft()
            self._refill()
        return self._current.buffers

    def _seek(self, key: tuple[int, int]) -> None:
        for prepared in self._ready:
            prepared.future.cancel()
        for prepared in self._ready:
            with suppress(CancelledError):
                prepared.future.exception()
            self._free.append(prepared.buffers)
        self._ready.clear()
        self._next = key
        self._refill()

    def _refill(self) -> None:
        while self._free and self._thread is not None:
            epoch, index = self._next
            order = self._order(epoch)
            buffers = self._free.pop()
            first = int(order.ends[index - 1]) if index else 0
            future = self._thread.submit(self._prepare, order.windows[index], epoch, index, first, buffers)
            self._ready.append(_Prepared((epoch, index), buffers, future))
            self._next = (epoch, index + 1) if index + 1 < len(order.windows) else (epoch + 1, 0)

    def _prepare(self, blocks: np.ndarray, epoch: int, index: int, first: int, buffers: tuple[np.ndarray, ...]) -> None:
        """Read a window, which begins with row ``first`` of the epoch, and shuffle it into ``buffers``.

        Runs in the thread, to which ``_scratch`` belongs.
        """
        filled = 0
        for block in blocks:
            if self._thread is None:
                return
            rows = int(self.table.block_rows[block])
            for target, array in zip(self._scratch, self.table.read(int(block)), strict=True):
                target[filled : filled + rows] = array
            filled += rows
        order = _random(self.seed, epoch, index + 1).permutation(filled)
        if self._part < self.batch_size:
            place = (first + np.arange(filled)) % self.batch_size - self._start
            order = order[(place >= 0) & (place < self._part)]
        for source, target in zip(self._scratch, buffers, strict=True):
            # The indices are valid; a mode that checks them would make NumPy use a copy.
            np.take(source[:filled], order, axis=0, out=target[: len(order)], mode="clip")


class _Order(NamedTuple):
    """The blocks of each window of an epoch, and the cumulative numbers of rows at the ends of the windows."""

    windows: list[np.ndarray]
    ends: np.ndarray


class _Prepared(NamedTuple):
    """A window that is prepared, or in preparation."""

    key: tuple[int, int]
    buffers: tuple[np.ndarray, ...]
    future: Future


def _random(seed: int, epoch: int, stream: int) -> np.random.Generator:
    # The generator counts in the first words of its counter, so that streams with different last words never overlap.
    return np.random.Generator(np.random.Philox(key=np.array([seed, epoch], np.uint64), counter=[0, 0, 0, stream]))
