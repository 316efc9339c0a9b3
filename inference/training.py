"""Training: NumPyro's SVI update, compiled once, scanned over minibatches, watched, and kept."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from numpyro.infer import SVI
from numpyro.infer.svi import SVIState

from gpzoo.datasets import Table
from gpzoo.inference.checkpoints import Checkpoints
from gpzoo.inference.elbo import GaussianProcessELBO
from gpzoo.inference.guides import InducingGuide, representing
from gpzoo.inference.minibatches import Resident, Streamed, described, is_arrays, member_of, order_seed, split_arrays
from gpzoo.inference.report import FitResult, NonFiniteError, check_scales, expectations, explain_failure
from gpzoo.inference.surroundings import Bar, Signals, one_blas_thread
from gpzoo.linalg import FactorisationError

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
    Every epoch visits the rows in a new random order (rows that do not fill a minibatch wait for the next epoch).

    With several keys, ``random.split(key, K)``, this is ``K`` trainings in one compiled program (folds, seeds,
    restarts), each with the numbers that it would have alone: on an accelerator all take a step at once, on CPU, where
    one step fills the cores, they take turns. One that fails stops; the others go on.

    With a :class:`~gpzoo.datasets.Table` in place of arrays the rows may be more than the device or memory hold: they
    are read, shuffled in windows and handed over while the device computes. Initial values are found on a sample.

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
        A :class:`FitResult`; with several keys everything in it has a leading axis ``K``, and
        :meth:`FitResult.member` gives one.

    Raises:
        ValueError: for rows or members that disagree in number, ``num_steps`` or a ``batch_size`` out of range, or bad
            data (NaN, labels).
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
    several = rng_key.ndim > (0 if jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key) else 1)
    keys = list(rng_key) if several else [rng_key]
    with one_blas_thread(), closing(_source(args, batch_size, keys, in_axes if several else None)) as source:
        training = _Training(svi, keys, source, kwargs, member_kwargs, init_params)
        keeper = None
        if checkpoint is not None:
            keeper = Checkpoints(checkpoint, training.settings(kwargs))
            training.restore(keeper)
        training.run(num_steps, keeper, checkpoint_seconds, callback, callback_steps, progress)
    return training.result


def _source(
    args: tuple, batch_size: int | None, keys: list[Array], in_axes: int | None | Sequence[int | None] | None
) -> Resident | Streamed:
    seeds = [order_seed(key) for key in keys]
    if not any(isinstance(a, Table) for a in args):
        axes = None
        if len(keys) > 1 or in_axes is not None:
            given = tuple(in_axes) if isinstance(in_axes, list | tuple) else (in_axes,) * len(args)
            if len(given) != len(args) or any(axis not in (0, None) for axis in given):
                raise ValueError(f"in_axes is 0 or None for each of the {len(args)} positional arguments, got {given}.")
            axes = tuple(axis == 0 for axis in given)
        return Resident(args, batch_size, seeds, axes)
    if len(args) > 1 or len(keys) > 1:
        raise ValueError(
            f"A table is the only positional argument of fit and is trained on with one key; got {len(args)} "
            f"arguments and {len(keys)} keys."
        )
    return Streamed(args[0], batch_size, seeds[0])


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
        self.array_axes = {name: name in member_kwargs for name in self.arrays} if self.several else None
        if unknown := sorted(set(member_kwargs) - set(self.arrays if self.several else ())):
            raise ValueError(f"member_kwargs names {unknown}, which are not arrays given by keyword to several keys.")
        lengths = {n: {len(x) for x in jax.tree.leaves(self.arrays[n])} for n in member_kwargs}
        if wrong := {name: length for name, length in lengths.items() if length != {len(keys)}}:
            raise ValueError(f"member_kwargs have leading axes {wrong}, but there are {len(keys)} keys.")
        self.losses = np.zeros((len(keys), 0))
        self.done, self.before = 0, 0.0
        #: Of each member that stopped early: the number of its steps, and the loss of the one it did not take.
        self.failed: dict[int, tuple[int, float]] = {}
        states = [self._start(k, init_params) for k in range(len(keys))]
        self.state = jax.tree.map(lambda *x: jnp.stack(x), *states) if self.several else states[0]
        self.one = _step_loop(svi, self.static, source)
        self.all = jax.jit(self._all_members() if self.several else self.one, donate_argnums=0)

    def _member(self, k: int) -> dict:
        return member_of(self.arrays, self.array_axes, k)

    def _start(self, k: int, given: dict[str, Any] | None) -> SVIState:
        """The initial state of a member, and what there is to say of its data beforehand."""
        svi, arrays, static = self.svi, self._member(k), self.static
        if given is not None and self.several:
            given = jax.tree.map(lambda x: x[k], given)
        sample, first = self.source.all_rows(k), self.source.batch(k, 0)
        if isinstance(svi.guide, InducingGuide):
            given = svi.guide.init_params(self.keys[k], *sample, given=given, **arrays, **static)

        def init(key: Array, params: dict | None, batch: tuple, arrays: dict) -> SVIState:
            with representing("marginals") if isinstance(svi.loss, GaussianProcessELBO) else nullcontext():
                return svi.init(key, *batch, init_params=params, **arrays, **static)

        if k == 0:
            self.init = jax.jit(init)
        state = self.init(self.keys[k], given, first, arrays)
        whole = sample if isinstance(svi.guide, InducingGuide) else first
        self.ways = expectations(svi, state, whole, arrays, static)
        if k == 0 and not self.source.full:
            check_scales(svi, state, first, arrays, static, self.source.num_rows)
        return state

    def _all_members(self) -> Callable:
        source, K = self.source, len(self.keys)

        def all_members(states: SVIState, data: tuple, arrays: dict, feed: Any, counts: Array) -> tuple:
            if jax.default_backend() != "cpu":
                axes = jax.tree.map(lambda own: 0 if own else None, (source.axes, self.array_axes))
                return jax.vmap(self.one, in_axes=(0, *axes, 0, 0))(states, data, arrays, feed, counts)

            def member(k: Array) -> tuple:
                own = jax.tree.map(lambda x: x[k], (states, feed, counts))
                rest = member_of(data, source.axes, k), member_of(arrays, self.array_axes, k)
                return self.one(own[0], *rest, *own[1:])

            return lax.map(member, jnp.arange(K))

        return all_members

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def settings(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """What must be the same for this training to be continued."""
        feed = jax.eval_shape(lambda: self._feed(0, 1)) if isinstance(self.source, Resident) else self._feed(0, 1)
        text = self.all.lower(self.state, self.source.data, self.arrays, feed, self._counts(1)).as_text()
        settings = {"program (model, guide, optimiser, versions)": hashlib.sha256(text.encode()).hexdigest()[:16]}
        plain = {k: v for k, v in kwargs.items() if v is None or isinstance(v, bool | int | float | str)}
        settings |= {f"argument {name}": value for name, value in plain.items()}
        for name, value in kwargs.items():
            if is_arrays(value):
                settings |= described(f"argument {name}", value)
        # Restoring would cut or fill arrays of another shape without a word.
        settings["state"] = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(self.state))
        typed = [jnp.issubdtype(key.dtype, jax.dtypes.prng_key) for key in self.keys]
        words = [np.asarray(random.key_data(k) if t else k).ravel() for k, t in zip(self.keys, typed, strict=True)]
        return settings | self.source.settings() | {"rng_key": [int(word) for word in np.concatenate(words)]}

    def restore(self, keeper: Checkpoints) -> None:
        """Go on from the newest checkpoint, if there is one."""
        restored = keeper.restore({"state": self.state, "losses": np.zeros(0), "seconds": np.zeros(())})
        if restored is None:
            return
        self.done, tree = restored
        self.state, self.before = tree["state"], float(tree["seconds"])
        self.losses = np.asarray(tree["losses"]).reshape(len(self.keys), self.done)
        for k, losses in enumerate(self.losses):
            if self.done and np.isnan(losses[-1]):
                taken = int(np.flatnonzero(np.isnan(losses))[0])
                self.failed[k] = taken, np.nan

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
    ) -> None:
        """Train up to ``num_steps`` in all, chunk by chunk; the result is in :attr:`result`."""
        missing = max(num_steps - self.losses.shape[1], 0)
        self.losses = np.concatenate([self.losses, np.full((len(self.keys), missing), np.nan)], axis=1)
        started = saved = time.perf_counter()

        def report() -> float:
            """Seconds in the callback; what it raises is raised once the checkpoint is written."""
            if callback is None or not self.done or (self.done % callback_steps and self.done < num_steps):
                return 0.0
            paused = time.perf_counter()
            # Copies: the next steps take over the state's own arrays.
            try:
                callback(self.done, self.before + paused - started, jax.tree.map(jnp.copy, self.params))
            except BaseException:
                if keeper is not None:
                    self.save(keeper, self.before + paused - started)
                    keeper.close()
                raise
            return time.perf_counter() - paused

        def size(start: int) -> int:
            """Steps of the chunk that begins at ``start``."""
            count = min(chunk, self.source.chunk, num_steps - start)
            return min(count, callback_steps - start % callback_steps) if callback is not None else count

        started += report()  # a training that stopped in a callback owes it still
        chunk, feed, count = 1, None, 0
        with Signals(keeper is not None) as signals, Bar(progress, num_steps, self.done, self.ways) as bar:
            while self.done < num_steps and len(self.failed) < len(self.keys) and not signals.received:
                tick = time.perf_counter()
                if feed is None:
                    count = size(self.done)
                    feed = self._feed(self.done, count)
                next_count = size(self.done + count)
                feed = self._advance(feed, count, next_count)
                elapsed = time.perf_counter() - tick
                bar.update(self.done, self.losses[:, max(0, self.done - 100) : self.done])
                first, count = chunk == 1, next_count
                # The first call measures compilation.
                chunk = 10 if first else int(np.clip(_CHUNK_SECONDS * count / max(elapsed, 1e-6), 1, self.source.chunk))
                if keeper is not None and time.perf_counter() - saved > checkpoint_seconds:
                    saved = time.perf_counter()
                    self.save(keeper, self.before + saved - started)
                if len(self.failed) < len(self.keys):
                    started += report()
        seconds = self.before + time.perf_counter() - started
        if keeper is not None:
            self.save(keeper, seconds)
            keeper.close()
        losses = self.losses[:, : self.done]
        self.result = FitResult(self.params, losses if self.several else losses[0], self.state, seconds, self.ways)
        if self.failed:
            self._explain(num_steps)
        signals.propagate()

    @property
    def params(self) -> dict[str, Any]:
        """Constrained values of every parameter, and mutable state."""
        get = lambda state: self.svi.get_params(state) | (state.mutable_state or {})  # noqa: E731
        return jax.vmap(get)(self.state) if self.several else get(self.state)

    def _feed(self, start: int, count: int) -> Any:
        return self.source.feed(start, count)

    def _counts(self, count: int) -> Any:
        return np.array([0 if k in self.failed else count for k in range(len(self.keys))]) if self.several else count

    def _advance(self, feed: Any, count: int, next_count: int) -> Any:
        """Take ``count`` steps; returns the feed of the chunk after, which is made while the device computes."""
        start = jax.tree.map(jnp.copy, self.state)
        counts = self._counts(count)
        self.state, values, begun = self.all(self.state, self.source.data, self.arrays, feed, counts)
        ahead = self._feed(self.done + count, next_count) if next_count > 0 else None
        values, begun = (np.asarray(x).reshape(len(self.keys), -1) for x in (values, begun))
        finite = np.atleast_1d(_finite(self.state.optim_state, self.several))
        most = 0
        for k in range(len(self.keys)):
            if k in self.failed:
                continue
            taken = int(begun[k, 0])
            new = values[k, :taken]
            self.losses[k, self.done : self.done + taken] = new
            if not (np.isfinite(new).all() and finite[k]):
                taken = self._back(k, start, feed, taken)
                self.failed[k] = self.done + taken, float(self.losses[k, self.done + taken])
                self.losses[k, self.done + taken :] = np.nan
            most = max(most, taken)
        self.done += most
        return ahead

    def _back(self, k: int, start: SVIState, feed: Any, begun: int) -> int:
        """Put member ``k`` back to its last state with finite parameters; returns how many steps of the chunk it has.

        Nothing is selected or copied step by step for this: the chunk is run again, which gives the same numbers.
        """
        of_k = (lambda tree: jax.tree.map(lambda x: x[k], tree)) if self.several else (lambda tree: tree)
        data = member_of(self.source.data, self.source.axes, k)
        again = jax.jit(self.one)
        good, taken = of_k(start), 0
        for count in (begun - 1, begun - 2):
            if count <= 0:
                break
            state, _, _ = again(of_k(start), data, self._member(k), of_k(feed), count)
            if bool(_finite(state.optim_state, False)):
                good, taken = state, count
                break
        self.state = jax.tree.map(lambda x, y: x.at[k].set(y), self.state, good) if self.several else good
        return taken

    def _explain(self, num_steps: int) -> None:
        """Raise what stopped the first member that failed."""
        k = min(self.failed)
        step, loss = self.failed[k]
        own = self.result.member(k) if self.several else self.result
        own = own._replace(losses=own.losses[:step])
        batch = self.source.batch(k, step)
        if not self.several:
            explain_failure(self.svi, own, batch, self._member(k), self.static, step, loss)
        try:
            explain_failure(self.svi, own, batch, self._member(k), self.static, step, loss)
        except (FactorisationError, NonFiniteError) as error:
            members = ", ".join(map(str, sorted(self.failed)))
            raise NonFiniteError(
                f"Of {len(self.keys)} trainings these failed: {members}; the others are at step {self.done} of "
                f"{num_steps}. All are in this error's .result, those at their last good step. Member {k}: {error}",
                self.result,
            ) from error


# -- the compiled loop -----------------------------------------------------------------------------------------------


def _step_loop(svi: SVI, static: dict[str, Any], source: Resident | Streamed) -> Callable:
    """``run(state, data, arrays, feed, count)``: up to ``count`` updates, fewer if a loss is not finite.

    Returns the state, the losses, and the number of steps begun.
    """

    def run(state: SVIState, data: tuple, arrays: dict, feed: Any, count: int) -> tuple[SVIState, Array, Array]:
        def update(i: Array, state: SVIState) -> tuple[SVIState, Array]:
            batch = source.of_step(data, jax.tree.map(lambda x: x[i], feed))
            return svi.update(state, *batch, **arrays, **static)

        def body(carry: tuple) -> tuple:
            i, state, values, _ = carry
            state, loss = update(i, state)
            return i + 1, state, values.at[i].set(loss), jnp.isfinite(loss)

        loss_type = jax.eval_shape(lambda s: update(jnp.int32(0), s)[1], state).dtype
        carry = (jnp.int32(0), state, jnp.zeros(source.chunk, loss_type), jnp.bool_(True))
        i, state, values, _ = lax.while_loop(lambda c: (c[0] < count) & c[3], body, carry)
        return state, values, i

    return run


@partial(jax.jit, static_argnums=1)
def _finite(tree: Any, members: bool) -> Array:
    """Whether all floating numbers are finite; with ``members``, for each along the leading axis."""
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    each = [jnp.isfinite(x).reshape(x.shape[0] if members else 1, -1).all(axis=1) for x in floats]
    return jnp.all(jnp.stack(each), axis=0)
