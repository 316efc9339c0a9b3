"""How is a program trained? NumPyro's SVI update is compiled once, looped over minibatches, watched, and kept.

In order: the call and its arguments are checked (``entry_point``, :func:`fit`, ``protocol.py``, ``_sources.py``); every
member gets a guide that knows the program, and an initial state (``state.py``, ``start.py``); one step is traced and
looked at (``_steps.py``, ``seen_step.py``); the newest checkpoint is restored (``checkpoints.py``); the loop takes
chunks of steps, keeps finite losses, steps failed members back, saves and calls back (:func:`fit` and below); a failed
member's step is explained (``explain.py``, ``failures.py``); the objective's ``finish`` ends with a
:class:`~gpzoo.inference.Trained`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from numpyro.infer import SVI

from gpzoo import _checks as checks
from gpzoo import _platform
from gpzoo._types import Argument
from gpzoo.errors import keep_in
from gpzoo.inference.asking.trained import Trained
from gpzoo.inference.programs.arguments import refuse_absent
from gpzoo.inference.programs.calls import entry_point, others_may_run
from gpzoo.inference.programs.files import checked_path
from gpzoo.inference.programs.labelled import columns_of, unlabelled
from gpzoo.inference.training._mesh import Placement
from gpzoo.inference.training._progress import progress_bar
from gpzoo.inference.training._signals import Signals
from gpzoo.inference.training._sources import source_of
from gpzoo.inference.training.checkpoints import Checkpoints
from gpzoo.inference.training.failures import Chunk, raise_failure, refuse_coinciding, step_back, warn_if_fallen
from gpzoo.inference.training.members import Members
from gpzoo.inference.training.natural import NaturalGradients, Rate, shortened
from gpzoo.inference.training.protocol import refuse_misfits
from gpzoo.inference.training.state import Training

if TYPE_CHECKING:
    from gpzoo.tables import Table

#: Intended seconds between two visits of the host.
_CHUNK_SECONDS = 1.0

#: Seconds after which the first checkpoint is due. It is written within 30: the chunk at that moment ends first.
_FIRST_SECONDS = 20.0


@entry_point
def fit(
    rng_key: Array,
    svi: SVI,
    num_steps: int,
    *data: Argument | Table,
    batch_size: int | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    in_axes: int | Sequence[int | None] | None = 0,
    member_kwargs: Collection[str] = (),
    mesh: Mesh | None = None,
    init_params: Mapping[str, Any] | None = None,
    natural: Rate | Mapping[str, Rate] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 180.0,
    callback: Callable[[int, float, dict[str, Any]], None] | None = None,
    callback_steps: int = 1000,
    progress: bool | str = True,
) -> Trained:
    """Train with :class:`numpyro.infer.SVI`, as ``svi.run`` would, on minibatches.

    One update is compiled and looped over on the device; data are arguments of the compiled program, never constants.
    (On CPU a program with convolutions is stepped from the host: in a loop XLA takes many times as long for them.)
    Every epoch visits the rows in a new random order (rows that do not fill a minibatch wait for the next epoch).

    With several keys, ``random.split(key, K)``, this is ``K`` trainings in one compiled program (folds, seeds,
    restarts), each with the numbers that it would have alone: on an accelerator all take a step at once, on CPU, where
    one step fills the cores, they take turns. One that fails stops; the others go on.

    With a :class:`~gpzoo.tables.Table` in place of arrays the rows may be more than the device or memory hold: they
    are read, shuffled in windows and handed over while the device computes. Initial values are found, and data are
    checked beforehand, on a sample: the rows of the first minibatches.

    Example:
        >>> import jax, numpy as np, optax
        >>> from numpyro.infer import SVI
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 6, 50, dtype=np.float32)[:, None]
        >>> svi = SVI(gp_regression, InducingGuide(gp_regression, kmeans(8)), optax.adam(0.05), GaussianProcessELBO())
        >>> trained = fit(jax.random.key(0), svi, 200, X, np.sin(X[:, 0]), progress=False)
        >>> prediction = trained.predict(jax.random.key(1), np.array([[1.5]], np.float32))["y"]
        >>> float(prediction.mean[0].round(1)), trained.losses.shape
        (1.0, (200,))

    Args:
        rng_key: fixes initial values, minibatches and draws: the same key and data give the same result on the same
            machine with the same software; another number of CPU cores sums in another order, and rounding differs.
            Keys ``[K]`` for ``K`` trainings.
        svi: NumPyro's object, holding model, guide, optimiser (any optax transformation or schedule) and objective.
        num_steps: updates in total, those of a resumed training included, and no fewer than it has.
        *data: the model's positional arguments; arrays among them have one row per datum, and those with labels (of
            pandas, or a DataArray) are put in the order of the first that has any. Or one table, whose groups are the
            arguments; or one xarray Dataset, whose variables and coordinates are, by name (the first argument, if it
            has no such name, is the coordinates of all dimensions).
        batch_size: rows per minibatch; ``None`` for all rows in every step. The model must scale its data terms, with
            ``numpyro.plate("data", num_data, subsample_size=X.shape[0])``.
        model_kwargs: the model's keyword arguments, by name, passed whole. Where the model has an argument
            ``num_data`` that is ``None`` by default, and there are minibatches, it is the number of all rows unless
            given here.
        in_axes: with several keys, which positional arguments have a leading axis ``K`` (0) and which are shared by
            all (``None``): one for all, or one for each.
        member_kwargs: with several keys, names of the ``model_kwargs`` that have a leading axis ``K``; others are
            shared. ``init_params`` always have one.
        mesh: devices that train together, on one axis, :func:`~gpzoo.inference.all_devices` or
            ``jax.make_mesh((8,), ("data",))``; ``None`` for JAX's own device. Every device takes its part of each
            minibatch; parameters and arrays are whole on every device. The numbers are those of one device up to
            rounding. What is returned, and what a callback gets, lies on the first device of each process. With
            several processes, all call ``fit`` with the same arguments; the first one writes checkpoints, in a folder
            that all see, and shows progress.
        init_params: initial values by name; others come from the guide's ``init_params``, on the whole data where an
            initialiser such as k-means looks at inputs, else on the first minibatch.
        natural: step length, or a schedule, of natural gradients of ``q(u)``, for the GP sites on which no other
            depends; or by site name. ``None`` for none. The returned ``state`` is then that of
            :class:`~gpzoo.inference.NaturalGradients`. Steps that would lower the bound are shortened, and a
            warning at the end says so if most were.
        checkpoint: folder for checkpoints, of which the newest two are kept. A training that was stopped goes on from
            there when started again with the same arguments, and ends with the same bits. It is refused with other
            data, told by the sha256 of each array's bytes (of a table only the first and last rows are looked at, 128
            MB of each), and with other settings, such as a learning rate, also one that the optimiser keeps in its
            state (``optax.inject_hyperparams``). ``init_params`` and what the guide's initialisers give are not
            compared: a training that goes on has no use for them. Written within the first 30 seconds, then every
            ``checkpoint_seconds``, at the end, on SIGINT and SIGTERM, and when the callback or the reading of a table
            fails. A folder has one training at a time.
        checkpoint_seconds: seconds between checkpoints.
        callback: called as ``callback(step, seconds, params)`` after every ``callback_steps`` steps and the last, to
            evaluate the parameters so far; ``seconds`` is the time in training, without the time in callbacks. A
            resumed training goes on from its checkpoint: steps from there on are reported again, the same.
        callback_steps: steps between two calls.
        progress: show a progress bar with the ELBO and steps per second; a string is shown as the training's name.

    Returns:
        The trained model; with several keys everything in it has a leading axis ``K``, and
        :meth:`~gpzoo.inference.Trained.member` gives one.

    Raises:
        TypeError: for data that are no real numbers of float32, float64, integers or bool, an ``rng_key`` that is no
            key, an objective without ``loss``, or arguments of the model outside ``model_kwargs``.
        ValueError: for rows or members that disagree in number, rows whose labels differ, a plate of another size than
            there are rows, options out of range, bad data (NaN that no likelihood leaves out, infinity, masked arrays,
            labels), ``init_params`` of unknown names or other shapes, a ``checkpoint`` that is no folder's name, or a
            program that the objective cannot train
            (:class:`~gpzoo.inference.CollapsedELBO`); for ``natural`` with that objective, whose ``q(u)`` is optimal;
            for minibatches with that objective, or with :func:`~gpzoo.inference.lbfgs`, whose line search follows one
            function; for a ``mesh`` of several axes, with several keys or with that objective, one whose devices do not
            divide ``batch_size``, and arguments that differ between its processes.
        DatasetError: when rows of a table cannot be read.
        NonFiniteError: when the ELBO or a gradient is not finite, naming the site, the rows and what to try. Its
            ``result`` has the last parameters at which the bound was finite, and the losses before.
        FactorisationError: when that is due to a Cholesky factorisation, naming the site, with the same ``result``.
            With several keys a NonFiniteError says so, after the others are done. Also before the first step, with the
            initial parameters as ``result``, when more than half of a site's inducing variables coincide with earlier
            ones up to the jitter and ``whiten=False``: such a training could stay finite and get worse.
        CheckpointError: when no checkpoint in the folder is whole, naming what is damaged, or the newest that is
            belongs to another training; or when another training holds the folder.
        KeyboardInterrupt, SystemExit: after a signal, once the checkpoint is written.

    Every error that ends the training has the result so far as ``.result``, also one of a callback or an interruption.
    """
    if not isinstance(svi, SVI):
        raise TypeError(f"svi must be SVI(model, guide, optimizer, GaussianProcessELBO()), got {type(svi).__name__}.")
    if natural is not None:
        optimizer = NaturalGradients(svi.optim, svi.guide, natural)
        svi = SVI(svi.model, svi.guide, optimizer, svi.loss, **svi.static_kwargs)
    num_steps = checks.count("num_steps", num_steps)
    callback_steps = checks.positive_int("callback_steps", callback_steps)
    batch_size = None if batch_size is None else checks.positive_int("batch_size", batch_size)
    checks.positive_number("checkpoint_seconds", checkpoint_seconds, or_zero=True)
    if checkpoint is not None:
        none, empty = ", or None for none;", "; the current one is '.'"
        checked_path("checkpoint", checkpoint, "a folder", none=none, empty=empty)
    members, placement = Members(checks.rng_key(rng_key, several=True)), Placement(mesh)
    if mesh is not None and members.several:
        raise ValueError(f"mesh splits the rows of one training: with {members.count} keys call fit for each.")
    refuse_misfits(svi, num_steps, full=batch_size is None, mesh=mesh is not None)
    absent: checks.Absent = []
    tables = any(map(checks.is_table, data))
    data, columns = unlabelled(svi.model, data), columns_of(svi.model, data)
    args, kwargs = checks.arguments(svi.model, data, model_kwargs, tables=tables, absent=absent)
    with ExitStack() as held:
        source = held.enter_context(closing(source_of(args, batch_size, members, in_axes, placement)))
        for k in range(members.count if absent else 0):
            own = {name: members.of(k, x) if name in member_kwargs else x for name, x in kwargs.items()}
            refuse_absent(partial(svi.model, **svi.static_kwargs), args, kwargs, absent, (source.all_rows(k), own))
        if not source.full and kwargs.get("num_data") is None and checks.is_open(svi.model, "num_data"):
            kwargs["num_data"] = source.num_rows
        if (size := kwargs.get("num_data")) is not None and np.ndim(size) == 0 and size < source.num_rows:
            raise ValueError(
                f"num_data is {size}, but there are {source.num_rows} rows: pass num_data={source.num_rows}."
            )
        with _platform.collected_later():
            training = Training(svi, members, source, kwargs, member_kwargs, init_params)
        training.refuse_other_arguments()
        keeper = None
        if checkpoint is not None:
            keeper = Checkpoints(checkpoint, training.settings(kwargs), placement)
            held.enter_context(keeper.alone())
            if (found := keeper.restore(training.state)) is not None:
                if found.step > num_steps:
                    raise ValueError(
                        f"num_steps is {num_steps}, but the checkpoint in {keeper.directory} is already at step "
                        f"{found.step}. Ask for {found.step} or more, or use another folder."
                    )
                training.restore(found)
        try:
            if training.done == 0:
                refuse_coinciding(training)
            _loop(training, num_steps, keeper, checkpoint_seconds, callback, callback_steps, progress)
            if training.failed:
                raise_failure(training, num_steps)
            training.describe()
            training.data |= columns
            result = training.result
            if training.finish is not None:
                warn_if_fallen(result.losses, training.source.num_rows)
            # Once if most natural steps were shorter than asked for, of the member with the most.
            counts = result.backed_off.items()
            if said := [text for site, n in counts if (text := shortened(site, int(np.max(n)), training.done))]:
                warnings.warn(" ".join(said), UserWarning, stacklevel=3)
        except BaseException as error:
            where = f"Training ended after step {training.done} of {num_steps}."
            keep_in(error, "result", lambda: training.result, where)
            raise
        return result


class _Clock:
    """Seconds in training, without those in callbacks."""

    def __init__(self, before: float) -> None:
        self.started = time.perf_counter() - before

    @contextmanager
    def paused(self) -> Iterator[float]:
        """Stand still; gives the seconds so far."""
        paused = time.perf_counter()
        try:
            yield paused - self.started
        finally:
            self.started += time.perf_counter() - paused

    @property
    def seconds(self) -> float:
        """So far."""
        return time.perf_counter() - self.started


def _loop(
    training: Training,
    num_steps: int,
    keeper: Checkpoints | None,
    checkpoint_seconds: float,
    callback: Callable | None,
    callback_steps: int,
    progress: bool | str,
) -> None:
    """Take the steps that are missing, chunk by chunk, or those until it fails."""
    source, placement, everybody = training.source, training.placement, training.members.count
    missing = np.full((everybody, num_steps - training.done), np.nan)
    training.losses = np.concatenate([training.losses, missing], axis=1)
    clock, due = _Clock(training.seconds), time.perf_counter() + min(_FIRST_SECONDS, checkpoint_seconds)
    most, compiled, kept = 1, False, False

    def report() -> None:
        done = training.done
        if callback is not None and done and (done % callback_steps == 0 or done >= num_steps):
            with clock.paused() as seconds:
                # Copies: the next steps take over the state's own arrays.
                callback(done, seconds, jax.tree.map(jnp.copy, training.params))

    def steps_from(start: int) -> int:
        """Steps of the chunk that begins at ``start``."""
        count = min(most, source.chunk, num_steps - start)
        return min(count, callback_steps - start % callback_steps) if callback is not None else count

    bar = progress_bar(placement.first and progress, num_steps, training.done)
    with Signals(keeper is not None) as signals, bar as show, ExitStack() as after:
        try:
            report()  # a training that stopped in a callback owes it still
            count = steps_from(training.done)
            feed = _feed(training, training.done, count)
            while training.done < num_steps and len(training.failed) < everybody and not signals.received:
                tick, ahead = time.perf_counter(), steps_from(training.done + count)
                with nullcontext() if compiled else _platform.collected_later():
                    feed = _advance(training, feed, count, ahead)
                if compiled:
                    elapsed = max(time.perf_counter() - tick, 1e-6)
                    most = int(np.clip(_CHUNK_SECONDS * count / elapsed, 1, source.chunk))
                else:
                    after.enter_context(others_may_run())
                # All processes take as many steps, and stop at the same one.
                said = placement.agreed(most, signals.received or 0)
                most, signals.received = int(said[0]), int(said[1]) or None
                count, compiled = ahead, True
                recent = training.losses[:, max(0, training.done - 100) : training.done]
                show(training.done, recent, len(training.failed))
                if keeper is not None and time.perf_counter() > due:
                    due, training.seconds = time.perf_counter() + checkpoint_seconds, clock.seconds
                    training.save(keeper)
                if len(training.failed) < everybody:
                    report()
        finally:
            # Also where a callback raises, or rows that cannot be read.
            training.seconds = clock.seconds
            kept = training.save(keeper)
    signals.propagate(kept)


def _feed(training: Training, start: int, count: int) -> Any:
    return training.source.feed(start, count) if count > 0 else None


def _advance(training: Training, feed: Any, count: int, ahead: int) -> Any:
    """Take ``count`` steps; returns the feed of the next ``ahead``, which is made while the device computes."""
    start, done, failed = training.steps.copy(training.state), training.done, dict(training.failed)
    counts = np.array([0 if k in failed else count for k in range(training.members.count)])
    try:
        training.state, *taken = training.steps.take(training.state, feed, counts)
        try:
            return _feed(training, done + count, ahead)
        finally:
            # Steps are kept also where the rows after them cannot be read.
            values, begun = (np.asarray(x).reshape(len(counts), -1) for x in taken)
            _keep(training, Chunk(start, feed, counts, values, begun[:, 0]))
    except BaseException:
        if training.done == done:  # no step was kept, and the state that was given up may be gone
            training.state, training.failed = start, failed
        raise
    finally:
        training.earlier = start, done


def _keep(training: Training, chunk: Chunk) -> None:
    """Keep the losses of a chunk up to where a member fails, and the state there."""
    done, counts, values, begun = training.done, chunk.counts, chunk.values, chunk.begun
    before = np.arange(values.shape[1]) < begun[:, None]
    taken = (np.isfinite(values) & before).sum(axis=1)
    bad = (taken < begun) | ~training.steps.finite(training.state)
    if bad.any():
        taken = np.where(bad, step_back(training, chunk, bad), taken)
        training.failed |= {k: done + int(taken[k]) for k in np.flatnonzero(bad).tolist()}
    for k in range(len(counts)):
        kept = max(taken[k], 0)
        training.losses[k, done : done + kept] = values[k, :kept]
        training.losses[k, done + taken[k] : done + max(counts)] = np.nan
    training.done += int(taken[counts > 0].max())
