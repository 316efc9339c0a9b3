"""Training: NumPyro's SVI update, compiled once, scanned over minibatches, watched, and kept."""

from __future__ import annotations

import hashlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from numpyro.infer import SVI
from numpyro.infer.svi import SVIState

from gpzoo.inference.checkpoints import Checkpoints
from gpzoo.inference.elbo import GaussianProcessELBO
from gpzoo.inference.guides import InducingGuide, representing
from gpzoo.inference.report import FitResult, check_scales, expectations, explain_failure

#: Most steps between two visits of the host, and seconds aimed at between them.
_MAX_CHUNK, _CHUNK_SECONDS = 1000, 1.0


def fit(
    svi: SVI,
    rng_key: Array,
    num_steps: int,
    *args: Any,
    batch_size: int | None = None,
    init_params: dict[str, Any] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 180.0,
    callback: Callable[[int, float, dict[str, Any]], None] | None = None,
    callback_steps: int = 1000,
    progress: bool = True,
    **kwargs: Any,
) -> FitResult:
    """Train with :class:`numpyro.infer.SVI`, as ``svi.run`` would, on minibatches.

    One update is compiled and looped over on the device; data are arguments of the compiled program, never constants.
    Every epoch visits the rows in a new random order (rows that do not fill a minibatch wait for the next epoch).

    Args:
        svi: NumPyro's object, holding model, guide, optimiser (any optax transformation or schedule) and objective.
        rng_key: fixes initial values, minibatches and draws: the same key and data give the same result on the same
            device.
        num_steps: updates in total, those of a resumed training included.
        *args: the model's positional arguments; arrays among them have one row per datum.
        batch_size: rows per minibatch; ``None`` for all rows in every step. The model must scale its data terms, with
            ``numpyro.plate("data", num_data, subsample_size=X.shape[0])``.
        init_params: initial values by name; others come from the guide's ``init_params`` on the whole data.
        checkpoint: directory for checkpoints. A training that was stopped goes on from there when started again with
            the same arguments, and ends with the same bits. Written every ``checkpoint_seconds``, at the end, and on
            SIGINT and SIGTERM.
        checkpoint_seconds: seconds between checkpoints.
        callback: called as ``callback(step, seconds, params)`` after every ``callback_steps`` steps and the last, to
            evaluate the parameters so far; ``seconds`` is the time in training, without the time in callbacks. A
            resumed training goes on from its checkpoint: steps from there on are reported again, the same.
        callback_steps: steps between two calls.
        progress: show a progress bar with the ELBO and steps per second.
        **kwargs: the model's keyword arguments, passed whole.

    Returns:
        A :class:`FitResult`.

    Raises:
        ValueError: for rows that disagree in number, ``num_steps`` or a ``batch_size`` out of range, or bad data (NaN,
            labels).
        NonFiniteError: when the ELBO or a gradient is not finite, naming the site; nothing computed before is lost.
        FactorisationError: when that is due to a Cholesky factorisation, naming the site.
        CheckpointError: when the checkpoint is unreadable or of another training.
        KeyboardInterrupt, SystemExit: after a signal, once the checkpoint is written.
    """
    if num_steps < 0 or callback_steps < 1:
        raise ValueError(
            f"num_steps must be 0 or more and callback_steps 1 or more, got {num_steps} and {callback_steps}."
        )
    data, num_rows = _rows(args, batch_size)
    arrays, static = split_arrays(kwargs)
    guide = svi.guide
    with one_blas_thread():
        if isinstance(guide, InducingGuide):
            init_params = guide.init_params(rng_key, *data, given=init_params, **kwargs)
        order = _order_seed(rng_key)
        full = batch_size is None
        size = num_rows if full else batch_size
        first = data if full else _take(data, _indices(order, 0, 1, num_rows, size)[0])

        def init(key: Array, params: dict | None, batch: tuple, arrays: dict) -> SVIState:
            with representing("marginals") if isinstance(svi.loss, GaussianProcessELBO) else nullcontext():
                return svi.init(key, *batch, init_params=params, **arrays, **static)

        state = jax.jit(init)(rng_key, init_params, first, arrays)
        ways = expectations(svi, state, data if isinstance(guide, InducingGuide) else first, arrays, static)
        if not full:
            check_scales(svi, state, first, arrays, static, num_rows)

        run = _compile(svi, static, full)
        losses = np.zeros(num_steps)
        keeper, done, before = None, 0, 0.0
        if checkpoint is not None:
            nowhere = jnp.zeros((_MAX_CHUNK, 0 if full else size), jnp.int32)
            text = run.lower(state, data, arrays, nowhere, 0).as_text()
            program = {"program (model, guide, optimiser, versions)": hashlib.sha256(text.encode()).hexdigest()[:16]}
            keeper = Checkpoints(checkpoint, _settings(data, kwargs, size, rng_key, state) | program)
            if (
                restored := keeper.restore({"state": state, "losses": np.zeros(0), "seconds": np.zeros(())})
            ) is not None:
                done, tree = restored
                state, kept, before = tree["state"], np.asarray(tree["losses"]), float(tree["seconds"])
                losses = np.concatenate([kept, np.zeros(max(num_steps - done, 0))])
        started, saved = time.perf_counter(), time.perf_counter()

        def report() -> float:
            """Seconds in the callback; what it raises is raised once the checkpoint is written."""
            if callback is None or not done or (done % callback_steps and done < num_steps):
                return 0.0
            paused = time.perf_counter()
            # Copies: the next steps take over the state's own arrays.
            params = jax.tree.map(jnp.copy, svi.get_params(state) | (state.mutable_state or {}))
            try:
                callback(done, before + paused - started, params)
            except BaseException:
                if keeper is not None:
                    keeper.save(done, _kept(state, losses[:done], before + paused - started))
                    keeper.close()
                raise
            return time.perf_counter() - paused

        started += report()  # a training that stopped in a callback owes it still
        chunk, failed = 1, False
        with _Signals(keeper is not None) as signals, _Bar(progress, num_steps, done, ways) as bar:
            while done < num_steps and not failed and not signals.received:
                count = min(chunk, num_steps - done)
                if callback is not None:
                    count = min(count, callback_steps - done % callback_steps)
                indices = jnp.zeros((_MAX_CHUNK, 0), jnp.int32)
                if not full:
                    rows = _indices(order, done, count, num_rows, size)
                    indices = jnp.asarray(np.pad(rows, ((0, _MAX_CHUNK - count), (0, 0))))
                tick = time.perf_counter()
                start = _copy(state)
                state, values, begun = run(state, data, arrays, indices, count)
                begun = int(begun)
                losses[done : done + begun] = np.asarray(values)[:begun]
                failed = not (np.isfinite(losses[done : done + begun]).all() and _finite(state.optim_state))
                if failed:
                    again = lambda s, n: run(s, data, arrays, indices, n)  # noqa: B023, E731
                    state, begun = _last_good(again, start, begun)
                done += begun
                elapsed = time.perf_counter() - tick
                bar.update(done, losses[max(0, done - 100) : done])
                if chunk > 1:  # the first call measures compilation
                    chunk = int(np.clip(_CHUNK_SECONDS * count / max(elapsed, 1e-6), 1, _MAX_CHUNK))
                else:
                    chunk = 10
                if keeper is not None and time.perf_counter() - saved > checkpoint_seconds:
                    saved = time.perf_counter()
                    keeper.save(done, _kept(state, losses[:done], before + saved - started))
                if not failed:
                    started += report()
        seconds = before + time.perf_counter() - started
        if keeper is not None:
            keeper.save(done, _kept(state, losses[:done], seconds))
            keeper.close()
        params = svi.get_params(state) | (state.mutable_state or {})
        result = FitResult(params, losses[:done], state, seconds, ways)
        if failed:
            batch = data if full else _take(data, _indices(order, done, 1, num_rows, size)[0])
            explain_failure(svi, result, batch, arrays, static, done, float(losses[done]))
        signals.propagate()
    return result


def _kept(state: SVIState, losses: np.ndarray, seconds: float) -> dict[str, Any]:
    return {"state": state, "losses": losses, "seconds": np.float64(seconds)}


# -- data ------------------------------------------------------------------------------------------------------------


def is_arrays(value: Any) -> bool:
    """Whether an argument is arrays through and through, to be passed to a compiled program rather than built in."""
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves)


def split_arrays(arguments: dict) -> tuple[dict, dict]:
    """Arguments that are arrays, for the device, and the others, which are part of the program."""
    arrays = {name: jax.tree.map(jnp.asarray, value) for name, value in arguments.items() if is_arrays(value)}
    return arrays, {name: value for name, value in arguments.items() if name not in arrays}


def _rows(args: tuple, batch_size: int | None) -> tuple[tuple, int]:
    arrays = [np.shape(leaf) for leaf in jax.tree.leaves(args)]
    if not arrays or any(len(shape) == 0 for shape in arrays):
        raise ValueError(
            "fit takes the data as positional arguments, arrays with one row per datum; others by keyword."
        )
    counts = {shape[0] for shape in arrays}
    if len(counts) > 1:
        raise ValueError(
            f"The positional arguments have different numbers of rows, {sorted(counts)}: each is cut into minibatches. "
            "Pass arrays that are not per datum by keyword."
        )
    num_rows = counts.pop()
    if num_rows == 0:
        raise ValueError("The data are empty: no rows.")
    if batch_size is not None and not 1 <= batch_size <= num_rows:
        raise ValueError(f"batch_size must be between 1 and the number of rows, {num_rows}; got {batch_size}.")
    return jax.tree.map(jnp.asarray, args), num_rows


def _take(data: tuple, rows: Any) -> tuple:
    return jax.tree.map(lambda x: jnp.take(x, jnp.asarray(rows), axis=0), data)


def _order_seed(rng_key: Array) -> int:
    return int(random.bits(random.fold_in(rng_key, 0x0BDE), (), jnp.uint32))


def _indices(seed: int, start: int, count: int, num_rows: int, size: int) -> np.ndarray:
    """Rows of the minibatches of steps ``start`` to ``start + count``, ``[count, size]``, a function of these alone."""
    per_epoch = num_rows // size
    out = np.empty((count, size), np.int32)
    epoch, order = -1, np.zeros(0, np.int64)
    for i in range(count):
        now, position = divmod(start + i, per_epoch)
        if now != epoch:
            epoch, order = now, np.random.Generator(np.random.Philox(key=[seed, now])).permutation(num_rows)
        out[i] = order[position * size : (position + 1) * size]
    return out


def _settings(data: tuple, kwargs: dict[str, Any], size: int, rng_key: Array, state: SVIState) -> dict[str, Any]:
    key = random.key_data(rng_key) if jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key) else rng_key
    plain = {k: v for k, v in kwargs.items() if v is None or isinstance(v, bool | int | float | str)}
    settings = _described("data", data) | {f"argument {name}": value for name, value in plain.items()}
    for name, value in kwargs.items():
        if is_arrays(value):
            settings |= _described(f"argument {name}", value)
    # Restoring would cut or fill arrays of another shape without a word.
    shapes = {"state": ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(state))}
    return settings | shapes | {"batch_size": size, "rng_key": [int(word) for word in np.asarray(key).ravel()]}


def _described(name: str, arrays: Any) -> dict[str, Any]:
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(arrays)]
    return {
        name: ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves),
        f"{name} sums": [float(np.float64(jnp.sum(leaf.astype(jnp.float32)))) for leaf in leaves],
    }


# -- the compiled loop -----------------------------------------------------------------------------------------------


def _compile(svi: SVI, static: dict[str, Any], full: bool) -> Callable:
    """``run(state, data, arrays, indices, count)``: up to ``count`` updates, fewer if a loss is not finite.

    Returns the state, the losses, and the number of steps begun.
    """

    def run(state: SVIState, data: tuple, arrays: dict, indices: Array, count: int) -> tuple[SVIState, Array, Array]:
        def update(i: Array, state: SVIState) -> tuple[SVIState, Array]:
            batch = data if full else _take(data, indices[i])
            return svi.update(state, *batch, **arrays, **static)

        def body(carry: tuple) -> tuple:
            i, state, values, _ = carry
            state, loss = update(i, state)
            return i + 1, state, values.at[i].set(loss), jnp.isfinite(loss)

        loss_type = jax.eval_shape(lambda s: update(jnp.int32(0), s)[1], state).dtype
        carry = (jnp.int32(0), state, jnp.zeros(_MAX_CHUNK, loss_type), jnp.bool_(True))
        i, state, values, _ = lax.while_loop(lambda c: (c[0] < count) & c[3], body, carry)
        return state, values, i

    return jax.jit(run, donate_argnums=0)


def _copy(state: SVIState) -> SVIState:
    return jax.tree.map(jnp.copy, state)


@jax.jit
def _finite(tree: Any) -> Array:
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in floats]))


def _last_good(run: Callable, start: SVIState, begun: int) -> tuple[SVIState, int]:
    """The last state with finite parameters of a chunk that failed in its step ``begun``, and its number of steps.

    Nothing is selected or copied step by step for this: the chunk is run again, which gives the same numbers.
    """
    for count in (begun - 1, begun - 2):
        if count <= 0:
            break
        state, _, _ = run(_copy(start), count)
        if bool(_finite(state.optim_state)):
            return state, count
    return start, 0


# -- what is shown ----------------------------------------------------------------------------------------------------


class _Bar:
    """A progress bar with the ELBO (mean of the last steps) and steps per second; silent if not wanted."""

    def __init__(self, wanted: bool, total: int, done: int, expectations: dict[str, str]) -> None:
        self.bar = None
        if wanted:
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.completed}/{task.total}"),
                BarColumn(),
                TextColumn("ELBO {task.fields[elbo]}"),
                TextColumn("{task.fields[rate]} steps/s"),
                TimeRemainingColumn(),
            )
            self.bar = Progress(*columns)
            device = jax.devices()[0]
            ways = "; ".join(f"{name}: {how}" for name, how in expectations.items())
            self.bar.console.print(f"Training on {device.platform} ({device.device_kind}). Expectations: {ways}.")
            self.task = self.bar.add_task("", total=total, completed=done, elbo="", rate="")
        self.started, self.first = time.perf_counter(), done

    def __enter__(self) -> _Bar:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self.bar is not None:
            self.bar.stop()

    def update(self, done: int, recent: np.ndarray) -> None:
        if self.bar is not None and len(recent):
            rate = (done - self.first) / (time.perf_counter() - self.started)
            self.bar.update(self.task, completed=done, elbo=f"{-recent.mean():,.1f}", rate=f"{rate:.1f}")


# -- the surroundings ------------------------------------------------------------------------------------------------


class _Signals:
    """Turns SIGINT and SIGTERM into a request to stop after the current chunk."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted and threading.current_thread() is threading.main_thread()
        self.received: int | None = None

    def __enter__(self) -> _Signals:
        if self.wanted:
            self.previous = {s: signal.signal(s, self._note) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exception: Any) -> None:
        if self.wanted:
            for number, handler in self.previous.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: Any) -> None:
        self.received = number

    def propagate(self) -> None:
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt("Training was interrupted; its checkpoint is written.")
        if self.received == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """On CPU, LAPACK's own threads fight XLA's: with them small factorisations take 50 times as long."""
    if jax.default_backend() != "cpu":
        yield
        return
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        yield
