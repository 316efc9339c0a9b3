"""Minibatches of a table in a random order, read before the device needs them."""

from __future__ import annotations

import operator
from collections import deque
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from gpzoo import _checks as checks
from gpzoo.tables.table import Table, empty


class Minibatches:
    """Minibatches of a table in a random order, which depends only on ``(table, batch_size, seed, window)``.

    A block is a group of consecutive rows that the table reads at once. Every epoch has three steps:

    1. Put the blocks into a new random order.
    2. Divide this order into windows, which are groups of whole blocks.
    3. Shuffle the rows of each window.

    Minibatches are consecutive parts of the result. Windows have at least ``window`` rows and similar sizes. If there
    are many windows, they have at most about ``window`` rows plus the rows of two blocks. If the table has too few rows
    for two windows, it is one window.

    An epoch leaves out its last ``num_rows % batch_size`` rows, so that each epoch has ``steps_per_epoch`` minibatches.
    A training can start at any step; only the windows with the rows of this step are read. One thread reads and
    shuffles windows in advance. There are ``read_ahead + 2`` windows in memory.

    Example:
        >>> import numpy as np
        >>> from gpzoo.tables import ArrayTable, Minibatches
        >>> batches = Minibatches(ArrayTable(np.arange(10.0)), batch_size=4, seed=0)
        >>> batches.steps_per_epoch, batches.take(0, 2)[0].shape
        (2, (2, 4))
        >>> batches.close()

    Args:
        table: the rows.
        batch_size: number of rows of a minibatch.
        seed: 0 to 2**64 - 1.
        window: least number of rows that are shuffled together, unless the table has fewer. For a sorted table, a
            window should span many blocks.
        read_ahead: number of windows that are prepared in advance; 0 to read on demand.
        part: the wanted rows of each minibatch, ``slice(start, stop)``; by default all. Only the wanted rows of a
            window are in memory, and only the blocks that contain them are read. If half of the rows are wanted, about
            half of the blocks are read.

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
        rows = table.num_rows
        checks.refuse(rows == 0, "The table is empty: no rows.")
        good, wanted = 1 <= operator.index(batch_size) <= rows, f"be between 1 and the number of rows, {rows};"
        checks.must(good, "batch_size", wanted, str(batch_size))
        checks.must(0 <= operator.index(seed) < 2**64, "seed", "be between 0 and 2**64 - 1", str(seed))
        good = operator.index(window) >= 1 and operator.index(read_ahead) >= 0
        wanted = "be 1 or more and read_ahead 0 or more"
        checks.must(good, "window", wanted, f"{window} and {read_ahead}")
        self.table, self.batch_size, self.seed = table, operator.index(batch_size), operator.index(seed)
        self.steps_per_epoch = table.num_rows // self.batch_size
        self._start, stop, _ = part.indices(self.batch_size)
        self._part = stop - self._start
        wanted = f"be a slice of one or more of the {batch_size} rows of a minibatch;"
        checks.must(self._part >= 1 and part.step in (None, 1), "part", wanted, str(part))
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
        """The minibatches of ``count`` steps, starting at ``step``, as new arrays ``[count, batch_size, ...]``.

        With a ``part``, the arrays have only the rows of the part.

        Raises:
            DatasetError: if a block cannot be read.
            ValueError: if ``step`` is negative or ``count`` is below 1; after :meth:`close`; if a block holds bad
                values.
        """
        step, count = operator.index(step), operator.index(count)
        checks.must(step >= 0 and count >= 1, "step", "be 0 or more and count 1 or more", f"{step} and {count}")
        checks.refuse(self._thread is None, "These minibatches are closed; make new ones.")
        out = empty(self.table.groups, count * self._part)
        done = 0
        try:
            while done < count:
                epoch, batch = divmod(step + done, self.steps_per_epoch)
                stop = min(batch + count - done, self.steps_per_epoch)
                order, before = self._order(epoch), (batch - done) * self._part
                index = int(np.searchsorted(order.ends, batch * self.batch_size, side="right"))
                while order.first(index) < stop * self.batch_size:
                    buffers, places = self._get((epoch, index))
                    of_these = slice(*np.searchsorted(places, (batch * self._part, stop * self._part)))
                    for target, source in zip(out, buffers, strict=True):
                        target[places[of_these] - before] = source[of_these]
                    index += 1
                done += stop - batch
        except BaseException:
            self.close()
            raise
        return tuple(array.reshape(count, self._part, *array.shape[1:]) for array in out)

    def close(self) -> None:
        """End the thread and free the memory. Afterwards, :meth:`take` raises ``ValueError``."""
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
            self._orders[epoch] = _Order(np.split(blocks, cuts[:-1])[:used], rows[cuts - 1][:used], self.batch_size)
        return self._orders[epoch]

    def _get(self, key: tuple[int, int]) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """The rows of window ``key = (epoch, index)``, and the place of each among the wanted rows of the epoch."""
        if self._current is None or self._current.key != key:
            if self._current is not None:
                self._free.append(self._current.buffers)
                self._current = None
            if not self._ready or self._ready[0].key != key:
                self._seek(key)
            self._ready[0].future.result()
            self._current = self._ready.popleft()
            self._refill()
        return self._current.buffers, self._current.future.result()

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
            future = self._thread.submit(self._prepare, order, epoch, index, buffers)
            self._ready.append(_Prepared((epoch, index), buffers, future))
            self._next = (epoch, index + 1) if index + 1 < len(order.windows) else (epoch + 1, 0)

    def _prepare(self, order: _Order, epoch: int, index: int, buffers: tuple[np.ndarray, ...]) -> np.ndarray:
        """Read a window and put its wanted rows into ``buffers``; return the places of these rows.

        This method runs in the thread. Only the thread uses ``_scratch``.
        """
        blocks = order.windows[index]
        ends = np.cumsum(self.table.block_rows[blocks])
        shuffled = _random(self.seed, epoch, index + 1).permutation(int(ends[-1]))
        # The last rows of an epoch do not fill a minibatch and are left out.
        shuffled = shuffled[: self.steps_per_epoch * self.batch_size - order.first(index)]
        rows, places = self._wanted(order, index, shuffled)
        some = self._part < self.batch_size
        for at in np.unique(np.searchsorted(ends, rows, side="right")) if some else range(len(blocks)):
            if self._thread is None:
                return places
            held = slice(int(ends[at] - self.table.block_rows[blocks[at]]), int(ends[at]))
            for target, array in zip(self._scratch, self.table.read(int(blocks[at])), strict=True):
                target[held] = array
        for source, target in zip(self._scratch, buffers, strict=True):
            # The indices are valid; a mode that checks them would make NumPy use a copy.
            np.take(source[: ends[-1]], rows, axis=0, out=target[: len(rows)], mode="clip")
        return places

    def _wanted(self, order: _Order, index: int, shuffled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The wanted rows of a window, and their places among all wanted rows of the epoch, in order."""
        size, part, start = self.batch_size, self._part, self._start
        head = min(-order.first(index) % size, len(shuffled))
        batch, count = order.first(index) // size, (len(shuffled) - head) // size
        parts = []

        def shared(batch: int, rows: np.ndarray) -> None:
            places = order.shares(batch)[index]
            own = (places >= start) & (places < start + part)
            parts.append((np.sort(rows)[own], batch * part + places[own] - start))

        if head:
            shared(batch, shuffled[:head])
            batch += 1
        middle = shuffled[head : head + count * size].reshape(count, size)
        parts.append((np.sort(middle)[:, start : start + part].ravel(), batch * part + np.arange(count * part)))
        if head + count * size < len(shuffled):
            shared(batch + count, shuffled[head + count * size :])
        rows, places = (np.concatenate(each) for each in zip(*parts, strict=True))
        return rows, places


class _Order(NamedTuple):
    """The blocks of each window of an epoch, and the cumulative numbers of rows at the ends of the windows."""

    windows: list[np.ndarray]
    ends: np.ndarray
    batch_size: int

    def first(self, index: int) -> int:
        """The number of rows before a window; for the index after the last window, the number of all rows."""
        return int(self.ends[index - 1]) if index else 0

    def shares(self, batch: int) -> dict[int, np.ndarray]:
        """The places of each window's rows in a minibatch, evenly spread, so that blocks stay in order."""
        left, chosen = np.arange(self.batch_size), {}
        index = int(np.searchsorted(self.ends, batch * self.batch_size, side="right"))
        while len(left):
            count = min(int(self.ends[index]) - max(self.first(index), batch * self.batch_size), len(left))
            at = (2 * np.arange(count) + 1) * len(left) // (2 * count)
            chosen[index], left = left[at], np.delete(left, at)
            index += 1
        return chosen


class _Prepared(NamedTuple):
    """A window that is ready, or that the thread is preparing."""

    key: tuple[int, int]
    buffers: tuple[np.ndarray, ...]
    future: Future


def _random(seed: int, epoch: int, stream: int) -> np.random.Generator:
    # The generator increments the first words of its counter, so streams with different last words never overlap.
    return np.random.Generator(np.random.Philox(key=np.array([seed, epoch], np.uint64), counter=[0, 0, 0, stream]))
