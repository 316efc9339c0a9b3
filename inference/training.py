"""Training: NumPyro's SVI update, compiled once, scanned over minibatches, watched, and kept."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpyro.infer import SVI
from numpyro.infer.svi import SVIState

from gpzoo.inference.checkpoints import Checkpoints
from gpzoo.inference.elbo import GaussianProcessELBO
from gpzoo.inference.guides import InducingGuide, representing
from gpzoo.inference.minibatches import (
    Resident,
    Streamed,
    axes_by_name,
    check_members,
    described,
    is_arrays,
    key_words,
    member_of,
    source_of,
    split_arrays,
    split_keys,
)
from gpzoo.inference.report import FitResult, check_scales, expectations, explain_failure
from gpzoo.inference.steps import all_finite, convolves, one_step, step_loop
from gpzoo.inference.surroundings import Bar, Signals, one_blas_thread

#: Seconds aimed at between two visits of the host.
_CHUNK_SECONDS = 1.0


def fit(
    svi: SVI,
    rng_key: Array,
    num_steps: int,
    *args: Any,
    batch_size: int | None = None,
    in_axes: int | Sequence[int | None] | None = 0,
    member_kwargs: Collection[str] = (),
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
    (On CPU a program with convolutions is stepped from the host: in a loop XLA takes many times as long for them.)
    Every epoch visits the rows in a new random order (rows that do not fill a minibatch wait for the next epoch).

    With several keys, ``random.split(key, K)``, this is ``K`` trainings in one compiled program (folds, seeds,
    restarts), each with the numbers that it would have alone: on an accelerator all take a step at once, on CPU, where
    one step fills the cores, they take turns. One that fails stops; the others go on.

    With a :class:`~gpzoo.datasets.Table` in place of arrays the rows may be more than the device or memory hold: they
    are read, shuffled in windows and handed over while the device computes. Initial values are found, and data are
    checked beforehand, on a sample: the rows of the first minibatches.

    Args:
        svi: NumPyro's object, holding model, guide, optimiser (any optax transformation or schedule) and objective.
        rng_key: fixes initial values, minibatches and draws: the same key and data give the same result on the same
            device. Keys ``[K]`` for ``K`` trainings.
        num_steps: updates in total, those of a resumed training included.
        *args: the model's positional arguments; arrays among them have one row per datum. Or one table, whose groups
            are the arguments.
        batch_size: rows per minibatch; ``None`` for all rows in every step. The model must scale its data terms, with
            ``numpyro.plate("data", num_data, subsample_size=X.shape[0])``.
        in_axes: with several keys, which positional arguments have a leading axis ``K`` (0) and which are shared by
            all (``None``): one for all, or one for each.
        member_kwargs: with several keys, names of the keyword arguments that have a leading axis ``K``; others are
            shared. ``init_params`` always have one.
        init_params: initial values by name; others come from the guide's ``init_params``, on the whole data where an
            initialiser such as k-means looks at inputs, else on the first minibatch.
        checkpoint: directory for checkpoints. A training that was stopped goes on from there when started again with
            the same arguments, and ends with the same bits. Written every ``checkpoint_seconds``, at the end, on
            SIGINT and SIGTERM, and when the callback or the reading of a table fails.
        checkpoint_seconds: seconds between checkpoints.
        callback: called as ``callback(step, seconds, params)`` after every ``callback_steps`` steps and the last, to
            evaluate the parameters so far; ``seconds`` is the time in training, without the time in callbacks. A
            resumed training goes on from its checkpoint: steps from there on are reported again, the same.
        callback_steps: steps between two calls.
        progress: show a progress bar with the ELBO and steps per second.
        **kwargs: the model's keyword arguments, passed whole.

    Returns:
        A :class:`FitResult`; with several keys everything in it has a leading axis ``K``, and
        :meth:`FitResult.member` gives one.

    Raises:
        ValueError: for rows or members that disagree in number, ``num_steps`` or a ``batch_size`` out of range, or bad
            data (NaN, labels).
        DatasetError: when rows of a table cannot be read.
        NonFiniteError: when the ELBO or a gradient is not finite, naming the site; nothing computed before is lost.
        FactorisationError: when that is due to a Cholesky factorisation, naming the site. With several keys a
            NonFiniteError says so, after the others are done.
        CheckpointError: when the checkpoint is unreadable or of another training.
        KeyboardInterrupt, SystemExit: after a signal, once the checkpoint is written.
    """
    if num_steps < 0 or callback_steps < 1:
        raise ValueError(
            f"num_steps must be 0 or more and callback_steps 1 or more, got {num_steps} and {callback_steps}."
        )
    keys, several = split_keys(rng_key)
    with one_blas_thread(), closing(source_of(args, batch_size, keys, several, in_axes)) as source:
        training = _Training(svi, keys, source, kwargs, member_kwargs, init_params)
        keeping = nullcontext()
        if checkpoint is not None:
            keeping = closing(Checkpoints(checkpoint, training.settings(kwargs)))
        with keeping as keeper:
            if keeper is not None:
                training.restore(keeper)
            return training.run(num_steps, keeper, checkpoint_seconds, callback, callback_steps, progress)


class _Training:
    """The state of one call of :func:`fit`: everything on the device, losses ``[K, steps]``, and where it stands."""

    def __init__(
        self,
        svi: SVI,
        keys: list[Array],
        source: Resident | Streamed,
        kwargs: dict[str, Any],
        member_kwargs: Collection[str],
        init_params: dict[str, Any] | None,
    ) -> None:
        self.svi, self.keys, self.source = svi, keys, source
        self.arrays, self.static = split_arrays(kwargs)
        self.several = source.axes is not None
        self.K, self.members = len(keys), (len(keys),) if self.several else ()
        self.array_axes = axes_by_name(self.arrays, member_kwargs, self.K) if self.several else None
        if member_kwargs and not self.several:
            raise ValueError(
                f"member_kwargs is for several keys, random.split(key, K); got one key and {member_kwargs}."
            )
        if self.several and init_params is not None:
            check_members("init_params", init_params, self.K)
        self.losses = np.zeros((self.K, 0))
        self.done, self.before = 0, 0.0
        #: Of each member that stopped early: the number of its steps.
        self.failed: dict[int, int] = {}
        self.ways: dict[str, str] = {}
        init, states = jax.jit(self._init), []
        for k, key in enumerate(keys):
            try:
                states.append(self._start(k, key, init_params, init))
            except Exception as error:
                if self.several:
                    error.add_note(f"This is member {k} of {self.K} trainings.")
                raise
        self.state = jax.tree.map(lambda *x: jnp.stack(x), *states) if self.several else states[0]
        step = one_step(svi, self.static, source)
        self.one = step_loop(step, source.chunk)
        self.all = jax.jit(self._all_members if self.several else self.one, donate_argnums=0)
        self.step = jax.jit(step, donate_argnums=0)
        self.stepwise = jax.default_backend() == "cpu" and convolves(self.all.trace(*self._inputs()).jaxpr)

    def _init(self, key: Array, params: dict | None, batch: tuple, arrays: dict) -> SVIState:
        with representing("bound") if isinstance(self.svi.loss, GaussianProcessELBO) else nullcontext():
            return self.svi.init(key, *batch, init_params=params, **arrays, **self.static)

    def _start(self, k: int, key: Array, given: dict[str, Any] | None, init: Callable) -> SVIState:
        """The initial state of a member, after what there is to check beforehand."""
        svi, source, arrays = self.svi, self.source, member_of(self.arrays, self.array_axes, k)
        if given is not None and self.several:
            given = jax.tree.map(lambda x: x[k], given)
        first = whole = source.batch(k, 0)
        if isinstance(svi.guide, InducingGuide):
            whole = source.all_rows(k)
            # The program on all rows at once may be more than fits, such as a network on images; that a term of it
            # depends on several rows shows on two.
            svi.guide.setup(*(first if source.size > 1 else whole), **arrays, **self.static)
            seen = whole if svi.guide.looks_at_inputs(given) else first
            given = svi.guide.init_params(key, *seen, given=given, **arrays, **self.static)
        state = init(key, given, first, arrays)
        # What all members share is looked at once.
        if k == 0 or any(source.axes) or any(self.array_axes.values()):
            self.ways = expectations(svi, state, whole, arrays, self.static)
        if k == 0 and not source.full:
            check_scales(svi, state, first, arrays, self.static, source.num_rows)
        return state

    def _all_members(self, states: SVIState, data: tuple, arrays: dict, feed: Any, counts: Array) -> tuple:
        if jax.default_backend() != "cpu":
            axes = jax.tree.map(lambda own: 0 if own else None, (self.source.axes, self.array_axes))
            return jax.vmap(self.one, in_axes=(0, *axes, 0, 0))(states, data, arrays, feed, counts)

        def member(own: tuple) -> tuple:
            k, state, feed, count = own
            rest = member_of(data, self.source.axes, k), member_of(arrays, self.array_axes, k)
            return self.one(state, *rest, feed, count)

        return lax.map(member, (jnp.arange(self.K), states, feed, counts))

    def _inputs(self) -> tuple:
        """Arguments of the compiled loop."""
        return self.state, self.source.data, self.arrays, self.source.feed(0, 1), np.zeros(self.members, np.int32)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def settings(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """What must be the same for this training to be continued."""
        text = self.all.lower(*self._inputs()).as_text()
        settings = {"program (model, guide, optimiser, versions)": hashlib.sha256(text.encode()).hexdigest()[:16]}
        plain = {k: v for k, v in kwargs.items() if v is None or isinstance(v, bool | int | float | str)}
        settings |= {f"argument {name}": value for name, value in plain.items()}
        for name, value in kwargs.items():
            if is_arrays(value):
                settings |= described(f"argument {name}", value)
        # Restoring would cut or fill arrays of another shape without a word.
        settings["state"] = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(self.state))
        words = [word for key in self.keys for word in key_words(key)]
        return settings | self.source.settings() | {"rng_key": words}

    def restore(self, keeper: Checkpoints) -> None:
        """Go on from the newest checkpoint, if there is one."""
        restored = keeper.restore({"state": self.state, "losses": np.zeros(0), "seconds": np.zeros(())})
        if restored is None:
            return
        self.done, tree = restored
        self.state, self.before = tree["state"], float(tree["seconds"])
        self.losses = np.asarray(tree["losses"]).reshape(self.K, self.done)
        taken = np.isfinite(self.losses).sum(axis=1)
        self.failed = {k: int(taken[k]) for k in np.flatnonzero(taken < self.done).tolist()}

    def save(self, keeper: Checkpoints, seconds: float) -> None:
        """Keep the state; it is written when complete."""
        losses = self.losses[:, : self.done].ravel()
        keeper.save(self.done, {"state": self.state, "losses": losses, "seconds": np.float64(seconds)})

    # -- the loop ----------------------------------------------------------------------------------------------------

    def run(
        self,
        num_steps: int,
        keeper: Checkpoints | None,
        checkpoint_seconds: float,
        callback: Callable | None,
        callback_steps: int,
        progress: bool,
    ) -> FitResult:
        """Train up to ``num_steps`` in all, chunk by chunk."""
        missing = max(num_steps - self.done, 0)
        self.losses = np.concatenate([self.losses, np.full((self.K, missing), np.nan)], axis=1)
        started = saved = time.perf_counter()

        def seconds() -> float:
            return self.before + time.perf_counter() - started

        def report() -> None:
            nonlocal started
            if callback is None or not self.done or (self.done % callback_steps and self.done < num_steps):
                return
            paused = time.perf_counter()
            try:
                # Copies: the next steps take over the state's own arrays.
                callback(self.done, self.before + paused - started, jax.tree.map(jnp.copy, self.params))
            finally:
                started += time.perf_counter() - paused

        def size(start: int) -> int:
            """Steps of the chunk that begins at ``start``."""
            count = min(chunk, self.source.chunk, num_steps - start)
            return min(count, callback_steps - start % callback_steps) if callback is not None else count

        chunk, feed, count, compiled = 1, None, 0, False
        with Signals(keeper is not None) as signals, Bar(progress, num_steps, self.done, self.ways) as bar:
            try:
                report()  # a training that stopped in a callback owes it still
                while self.done < num_steps and len(self.failed) < self.K and not signals.received:
                    tick = time.perf_counter()
                    if feed is None:
                        count = size(self.done)
                        feed = self.source.feed(self.done, count)
                    ahead = size(self.done + count)
                    feed = self._advance(feed, count, ahead)
                    if compiled:
                        elapsed = max(time.perf_counter() - tick, 1e-6)
                        chunk = int(np.clip(_CHUNK_SECONDS * count / elapsed, 1, self.source.chunk))
                    count, compiled = ahead, True
                    bar.update(self.done, self.losses[:, max(0, self.done - 100) : self.done], len(self.failed))
                    if keeper is not None and time.perf_counter() - saved > checkpoint_seconds:
                        saved = time.perf_counter()
                        self.save(keeper, seconds())
                    if len(self.failed) < self.K:
                        report()
            finally:
                # Also where a callback raises, or rows that cannot be read.
                took = seconds()
                if keeper is not None:
                    self.save(keeper, took)
        losses = self.losses[:, : self.done].reshape(*self.members, self.done)
        result = FitResult(self.params, losses, self.state, took, self.ways)
        signals.propagate()
        if self.failed:
            self._explain(result, num_steps)
        return result

    @property
    def params(self) -> dict[str, Any]:
        """Constrained values of every parameter, and mutable state."""

        def of_one(state: SVIState) -> dict[str, Any]:
            return self.svi.get_params(state) | (state.mutable_state or {})

        return jax.vmap(of_one)(self.state) if self.several else of_one(self.state)

    def _steps(self, state: SVIState, feed: Any, counts: np.ndarray) -> tuple[SVIState, Array, Array]:
        """Let each member take its number of steps, from a state that is given up."""
        if self.stepwise:
            return self._stepwise(state, feed, counts)
        counts = counts.astype(np.int32).reshape(self.members)
        return self.all(state, self.source.data, self.arrays, feed, counts)

    def _stepwise(self, states: SVIState, feed: Any, counts: np.ndarray) -> tuple[SVIState, np.ndarray, np.ndarray]:
        """The same, step by step from here: in a loop on CPU, XLA's convolutions take many times as long."""
        values, begun, ends = np.zeros((self.K, self.source.chunk)), np.zeros((self.K, 1), int), []
        for k in range(self.K):
            member = (lambda x, k=k: x[k]) if self.several else (lambda x: x)
            state, own_feed = jax.tree.map(member, (states, feed))
            rest = member_of(self.source.data, self.source.axes, k), member_of(self.arrays, self.array_axes, k)
            for i in range(int(counts[k])):
                state, loss = self.step(state, *rest, own_feed, i)
                values[k, i], begun[k] = loss, i + 1
                if not np.isfinite(values[k, i]):
                    break
            ends.append(state)
        return (jax.tree.map(lambda *x: jnp.stack(x), *ends) if self.several else ends[0]), values, begun

    def _advance(self, feed: Any, count: int, ahead: int) -> Any:
        """Take ``count`` steps; returns the feed of the ``ahead`` after, which is made while the device computes."""
        start = jax.tree.map(jnp.copy, self.state)
        counts = np.array([0 if k in self.failed else count for k in range(self.K)])
        self.state, values, begun = self._steps(self.state, feed, counts)
        try:
            return self.source.feed(self.done + count, ahead) if ahead > 0 else None
        finally:
            # Steps are kept also where the rows after them cannot be read.
            values, begun = (np.asarray(x).reshape(self.K, -1) for x in (values, begun))
            taken = (np.isfinite(values) & (np.arange(values.shape[1]) < begun)).sum(axis=1)
            bad = (taken < begun[:, 0]) | ~self._finite(self.state)
            if bad.any():
                taken = np.where(bad, self._back(start, feed, begun[:, 0], bad), taken)
                self.failed |= {k: self.done + int(taken[k]) for k in np.flatnonzero(bad).tolist()}
            for k in range(self.K):
                self.losses[k, self.done : self.done + taken[k]] = values[k, : taken[k]]
            self.done += int(taken.max())

    def _back(self, start: SVIState, feed: Any, begun: np.ndarray, bad: np.ndarray) -> np.ndarray:
        """Put members that failed back to their last finite state; returns how many steps of the chunk they have.

        Nothing is selected or copied step by step for this: the chunk is run again, which gives the same numbers.
        """
        low, high, width = np.where(bad, 0, begun), begun, 1
        self._put(bad, start)
        while (open_ := bad & (high - low > 1)).any():
            # As a rule only the last step or two are bad.
            middle = np.maximum(high - width, (low + high) // 2)
            state, _, _ = self._steps(jax.tree.map(jnp.copy, start), feed, np.where(open_, middle, 0))
            good = open_ & self._finite(state)
            self._put(good, state)
            low, high = np.where(good, middle, low), np.where(open_ & ~good, middle, high)
            width *= 2
        return low

    def _put(self, which: np.ndarray, state: SVIState) -> None:
        """Give these members the state that they have in ``state``."""

        def put(new: Array, old: Array) -> Array:
            return jnp.where(which.reshape(self.members + (1,) * (new.ndim - len(self.members))), new, old)

        self.state = jax.tree.map(put, state, self.state)

    def _finite(self, state: SVIState) -> np.ndarray:
        return np.asarray(all_finite(state.optim_state, len(self.members))).reshape(self.K)

    def _explain(self, result: FitResult, num_steps: int) -> None:
        """Raise what stopped the first member that failed."""
        k = min(self.failed)
        step = self.failed[k]
        feed, only = self.source.feed(step, 1), np.arange(self.K) == k
        values = self._steps(jax.tree.map(jnp.copy, self.state), feed, only)[1]
        loss = float(np.asarray(values).reshape(self.K, -1)[k, 0])
        own, where = result, "Training"
        if self.several:
            own = result.member(k)
            failed = ", ".join(f"{k} at step {step + 1}" for k, step in sorted(self.failed.items()))
            rest = f"; the others are at step {self.done} of {num_steps}" if len(self.failed) < self.K else ""
            where = f"{len(self.failed)} of {self.K} trainings failed, {failed}{rest}. Member {k}"
        arrays = member_of(self.arrays, self.array_axes, k)
        where = f"{where} stopped at step {step + 1}"
        explain_failure(self.svi, result, own, self.source.batch(k, step), arrays, self.static, where, loss)
