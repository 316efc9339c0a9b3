"""Training of a program: :func:`fit` compiles one update of NumPyro's SVI, and loops over minibatches with it.

A call has this order. :func:`fit` checks its arguments and makes a source of their rows (``sources.py``). ``start.py``
gives every replicate an initial state and traces the step (``step.py``). :func:`fit` restores the newest checkpoint
(``checkpoints.py``) and compiles the step. The loop then takes chunks of steps, keeps the finite ones
(``failures.py``), saves checkpoints and calls callbacks.

A :class:`Setup` (``setup.py``) holds everything that stays the same. A :class:`TrainState` (``state.py``) holds
everything that changes. A batch passes four places. ``source.make_feed`` says which rows the next steps take.
``Steps.take`` hands this feed to the compiled loop. In the loop, ``source.minibatch`` makes the batch of a step, and
the step of ``make_step`` updates NumPyro's state.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import Array
from jax.sharding import Mesh
from numpyro.infer import SVI

from gpzoo import _checks as checks
from gpzoo import _platform
from gpzoo._types import Argument
from gpzoo.errors import keep_in
from gpzoo.inference.fitted.trained import Trained
from gpzoo.inference.programs.arguments import refuse_absent
from gpzoo.inference.programs.calls import entry_point, others_may_run
from gpzoo.inference.programs.files import checked_path
from gpzoo.inference.programs.labelled import columns_of, unlabelled
from gpzoo.inference.training._mesh import Placement
from gpzoo.inference.training._progress import progress_bar
from gpzoo.inference.training._signals import Signals
from gpzoo.inference.training.callbacks import Callback, StopTraining, joined
from gpzoo.inference.training.checkpoints import Checkpoints
from gpzoo.inference.training.failures import keep_finite, raise_failure, refuse_coinciding, warn_if_fallen
from gpzoo.inference.training.natural import NaturalGradients, Rate, shortened
from gpzoo.inference.training.protocol import refuse_misfits
from gpzoo.inference.training.replicates import Replicates
from gpzoo.inference.training.setup import Setup
from gpzoo.inference.training.sources import Source, source_of
from gpzoo.inference.training.start import start
from gpzoo.inference.training.state import TrainState

if TYPE_CHECKING:
    from gpzoo.tables import Table

#: Intended seconds between two times at which the loop comes back from the device to Python.
_CHUNK_SECONDS = 1.0

#: Seconds after which the first checkpoint is due. It is written within 30 seconds, because the current chunk ends
#: first.
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
    callback: Callback | Sequence[Callback] | None = None,
    callback_steps: int = 1000,
    progress: bool | str = True,
) -> Trained:
    """Train with :class:`numpyro.infer.SVI`, as ``svi.run`` would, on minibatches.

    ``fit`` compiles one update and loops over it on the device. Data are arguments of the compiled program, never
    constants. (On a CPU, a program with convolutions has its loop on the host, because XLA's convolutions take many
    times as long in a compiled loop.) Every epoch visits the rows in a new random order, and leaves out the rows that
    do not fill a minibatch.

    With several keys, ``random.split(key, K)``, ``fit`` runs ``K`` trainings in one compiled program (folds, seeds,
    restarts). Each training gives the same numbers as it would alone. On an accelerator, all trainings take a step at
    the same time. On a CPU they take turns, because one step uses all cores. If one training fails, it stops and the
    others go on.

    With a :class:`~gpzoo.tables.Table` in place of arrays, there may be more rows than fit into the memory of the
    device or the host. ``fit`` reads the rows, shuffles them in windows (many rows at a time), and passes them on while
    the device computes. Before training, it finds initial values and checks the data on a sample, the rows of the first
    minibatches.

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
        rng_key: random key of initial values, minibatches and draws. The same key and data give the same result on the
            same machine with the same software. If the number of CPU cores differs, sums have a different order and are
            rounded differently. For ``K`` trainings, give keys ``[K]``.
        svi: NumPyro's object with model, guide, optimiser (any optax transformation or schedule) and objective.
        num_steps: number of all updates. A resumed training counts its earlier steps, and ``num_steps`` cannot be
            smaller than their number.
        *data: the model's positional arguments: arrays with one row for each row of the data. If several arrays have
            labels (pandas, or a DataArray), their rows are put in the order of the first of these arrays. Or give one
            ``Table``. Each group of its columns is one argument. Or give one xarray Dataset. Each argument then
            takes the variable or the coordinate of its name. If no variable has the name of the first argument, the
            coordinates of all dimensions become the columns of the first argument.
        batch_size: rows per minibatch; ``None`` for all rows in every step. The model must scale its data terms, with
            ``numpyro.plate("data", num_data, subsample_size=X.shape[0])``.
        model_kwargs: the model's keyword arguments, by name. Every step gets them whole. If there are minibatches and
            the model has an argument ``num_data`` with the default ``None``, ``fit`` passes the number of all rows. If
            you give ``num_data`` here, ``fit`` passes your number.
        in_axes: with several keys, 0 for a positional argument with a leading axis ``K``, and ``None`` for an argument
            that all trainings share. Give one value for all arguments, or one value for each argument.
        member_kwargs: with several keys, names of the ``model_kwargs`` that have a leading axis ``K``. All trainings
            share the other ``model_kwargs``. ``init_params`` always have the axis.
        mesh: a mesh of the devices that train together; ``None`` for JAX's own device. The mesh has one axis. Make it
            with :func:`~gpzoo.inference.all_devices` or ``jax.make_mesh((8,), ("data",))``. Every device computes a
            part of each minibatch, and has all parameters and arrays. The result equals the result of one device up to
            rounding. The result and the arguments of callbacks are on the first device of each process. If there are
            several processes, all of them call ``fit`` with the same arguments. The first process shows progress and
            writes checkpoints. All processes must see the folder of checkpoints.
        init_params: initial values by name. All other values come from the guide's ``init_params``: on the whole data
            if an initialiser such as k-means looks at inputs, otherwise on the first minibatch.
        natural: step length of natural gradients of ``q(u)``, or a schedule of step lengths; ``None`` for no natural
            gradients. One value is for all GP sites on which no other GP site depends. A mapping by site name is for
            the named sites. The returned ``state`` is then the state of :class:`~gpzoo.inference.NaturalGradients`. If
            a step lowers the bound, ``fit`` undoes it and shortens the next steps. If most steps were undone or
            shortened, a warning at the end says so.
        checkpoint: folder for checkpoints; the newest two are kept. If a training was stopped, the same call with the
            same arguments continues it, and the result has the same bits. (With NumPyro's objectives, the order of a
            sum over sites may differ between processes.) ``fit`` refuses to continue if the data have changed. For an
            array, it compares the sha256 of all bytes. For a table, it compares the first 128 MB and the last 128 MB of
            the rows. It also refuses to continue if keys, ``batch_size``, keyword arguments, ``init_params``, or names
            or shapes of parameters have changed. It does not compare anything else of the program, the guide, the
            objective and the optimiser. If you have changed the learning rate, for example, the training goes on with
            the new rate. ``fit`` writes a
            checkpoint within the first 30 seconds, then every ``checkpoint_seconds``, and at the end. It also writes a
            checkpoint on SIGINT and SIGTERM, and if a callback or the reading of a table fails. Only one training at a
            time can use a folder.
        checkpoint_seconds: seconds between checkpoints.
        callback: function to evaluate the parameters so far. ``fit`` calls ``callback(step, seconds, params)`` after
            every ``callback_steps`` steps and after the last step. ``seconds`` is the time in training, without the
            time in callbacks. If the callback has a parameter ``loss``, it gets the mean loss (negative bound) of the
            steps since the previous call; with several keys, an array ``[K]``. If the callback raises
            :class:`~gpzoo.inference.StopTraining`, as :class:`~gpzoo.inference.EarlyStopping` does, the training ends
            and ``fit`` returns its result. Pass several callbacks as a list. A resumed training goes on from its
            checkpoint. It reports the steps after the checkpoint again, with the same numbers.
        callback_steps: number of steps between two calls of the callback.
        progress: whether to show a progress bar with the ELBO and steps per second. A string is shown as the training's
            name.

    Returns:
        The trained model. With several keys, everything in it has a leading axis ``K``, and
        :meth:`~gpzoo.inference.Trained.member` gives one training.

    Raises:
        TypeError: for data that are not real numbers of float32, float64, integers or bool, an ``rng_key`` that is not
            a key, an objective without ``loss``, or arguments of the model outside ``model_kwargs``.
        ValueError: in these cases:

            * arguments have different numbers of rows or members, or their rows have different labels;
            * the size of a plate is not the number of rows, or an option is out of range;
            * ``init_params`` have unknown names or wrong shapes, or ``checkpoint`` cannot be the name of a folder;
            * data have infinity, class labels out of range, or NaN that no likelihood leaves out;
            * an array is masked;
            * the optimiser is :func:`~gpzoo.inference.lbfgs`, and there are minibatches (its line search needs the same
              function in every step);
            * the objective is :class:`~gpzoo.inference.PredictiveLogLikelihood`, and there is ``natural``;
            * the objective is :class:`~gpzoo.inference.CollapsedELBO`, and there are minibatches, ``natural``,
              ``mesh`` or a program that this objective cannot train;
            * a ``mesh`` has several axes, is given with several keys, or its devices do not divide ``batch_size``;
            * arguments differ between processes.
        DatasetError: if rows of a table cannot be read.
        NonFiniteError: if the ELBO, a gradient or an update is not finite. The error names the step, the site or the
            parameter, and says what to do. Its ``result`` has the last parameters at which the bound was finite, and
            the losses of the steps that led to them.
        FactorisationError: if the cause of this failure is a Cholesky factorisation. The error names the site, and
            has the same ``result``. With several keys, ``fit`` raises a NonFiniteError with this cause instead, after
            all other trainings have ended. With ``whiten=False``, ``fit`` also raises a FactorisationError before the
            first step if more than half of a site's inducing variables coincide with earlier ones up to the jitter.
            The training could stay finite and get worse. The ``result`` then has the initial parameters.
        CheckpointError: if all checkpoints in the folder are damaged, naming the damage; if the newest undamaged
            checkpoint belongs to another training; or if another training uses the folder.
        KeyboardInterrupt, SystemExit: after a signal, once the checkpoint is written.

    Every error that ends the training has the result so far as ``.result``. This also holds for errors of callbacks and
    for interruptions.
    """
    svi = _with_natural(svi, natural)
    if svi.static_kwargs:  # NumPyro's place for keyword arguments of the program
        model_kwargs = svi.static_kwargs | dict(model_kwargs or {})
        svi = SVI(svi.model, svi.guide, svi.optim, svi.loss)
    num_steps = checks.count("num_steps", num_steps)
    callback, callback_steps = joined(callback), checks.positive_int("callback_steps", callback_steps)
    batch_size = None if batch_size is None else checks.positive_int("batch_size", batch_size)
    checks.positive_number("checkpoint_seconds", checkpoint_seconds, or_zero=True)
    if checkpoint is not None:
        none, empty = ", or None for none;", "; the current one is '.'"
        checked_path("checkpoint", checkpoint, "a folder", none=none, empty=empty)
    replicates, placement = Replicates(checks.rng_key(rng_key, several=True)), Placement(mesh)
    if mesh is not None and replicates.several:
        raise ValueError(f"mesh splits the rows of one training: with {replicates.count} keys call fit for each.")
    refuse_misfits(svi, num_steps, full=batch_size is None, mesh=mesh is not None)

    absent: checks.Absent = []
    tables = any(map(checks.is_table, data))
    data, columns = unlabelled(svi.model, data), columns_of(svi.model, data)
    args, kwargs = checks.arguments(svi.model, data, model_kwargs, tables=tables, absent=absent)
    with ExitStack() as stack:
        source = stack.enter_context(closing(source_of(args, batch_size, replicates, in_axes, placement)))
        kwargs = _with_num_data(svi, source, kwargs)
        setup = Setup(svi, replicates, source, kwargs, member_kwargs)
        for k in range(replicates.count if absent else 0):
            example = source.all_rows(k), setup.kwargs_of(k)
            refuse_absent(svi.model, args, kwargs, absent, example)
        with _platform.collected_later():
            steps, state = start(setup, init_params)
        setup.refuse_other_processes(state.numpyro_state)
        checkpoints = None
        if checkpoint is not None:
            checkpoints = Checkpoints(checkpoint, setup.settings(init_params), placement)
            stack.enter_context(checkpoints.alone())
            state = _resumed(checkpoints, state, num_steps)

        pace = _Pace(source.chunk, num_steps, callback_steps if callback else None)
        started = time.perf_counter() - state.seconds
        due = time.perf_counter() + min(_FIRST_SECONDS, checkpoint_seconds)

        def report() -> None:
            nonlocal started
            if callback is None or not pace.is_reported(state.step):
                return
            paused = time.perf_counter()
            try:
                since = pace.reported_before(state.step)
                loss = state.losses[:, since:].mean(axis=1).reshape(replicates.shape)[()]
                callback(state.step, paused - started, setup.params(state.numpyro_state), loss)
            finally:
                started += time.perf_counter() - paused

        def save() -> bool:
            nonlocal state
            state = state._replace(seconds=time.perf_counter() - started)
            return checkpoints is not None and checkpoints.save(state)

        stack.enter_context(_keeping_result(setup, lambda: state, num_steps))
        if state.step == 0:
            refuse_coinciding(steps, state)
        saved = False
        bar = progress_bar(placement.first and progress, num_steps, state.step)
        with Signals(checkpoints is not None) as signals, bar as show:
            try:
                report()  # if a training was stopped in a callback, this call is still to be made
                count = pace.count(state.step)
                feed = source.make_feed(state.step, count) if count else None
                with _platform.collected_later():
                    steps.compile(state.numpyro_state, feed)
                with others_may_run():
                    while state.step < num_steps and not state.all_failed and not signals.received:
                        tick, ahead = time.perf_counter(), pace.count(state.step + count)
                        taken = steps.take(state.numpyro_state, feed, state.ends(count))
                        try:  # while the device computes
                            feed = source.make_feed(state.step + count, ahead) if ahead else None
                        finally:  # steps are kept even if the rows after them cannot be read
                            state = keep_finite(steps, state, count, taken)
                        pace.measured(count, time.perf_counter() - tick)
                        # All processes take as many steps, and stop at the same one.
                        most, signal = placement.agreed(pace.most, signals.received or 0)
                        pace.most, signals.received, count = int(most), int(signal) or None, ahead
                        show(state.step, state.losses[:, -100:], len(state.failed))
                        if checkpoints is not None and time.perf_counter() > due:
                            due = time.perf_counter() + checkpoint_seconds
                            save()
                        if not state.all_failed:
                            report()
            except StopTraining:
                pass
            finally:  # also if a callback raises an error, or rows cannot be read
                saved = save()
        signals.propagate(checkpoints.directory if checkpoints is not None and saved else None)
        if state.failed:
            raise_failure(steps, state, num_steps)
        result = setup.result(state, setup.described | columns)
        _warn(setup, result)
        return result


@contextmanager
def _keeping_result(setup: Setup, state: Callable[[], TrainState], num_steps: int) -> Iterator[None]:
    """Give any error in this context the result so far."""
    try:
        yield
    except BaseException as error:
        where = f"Training ended after step {state().step} of {num_steps}."
        keep_in(error, "result", lambda: setup.result(state()), where)
        raise


def _with_natural(svi: SVI, natural: Rate | Mapping[str, Rate] | None) -> SVI:
    """NumPyro's object, with natural gradients if they are asked for."""
    if not isinstance(svi, SVI):
        raise TypeError(f"svi must be SVI(model, guide, optimizer, GaussianProcessELBO()), got {type(svi).__name__}.")
    if natural is None:
        return svi
    return SVI(svi.model, svi.guide, NaturalGradients(svi.optim, svi.guide, natural), svi.loss, **svi.static_kwargs)


def _with_num_data(svi: SVI, source: Source, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments, with the number of all rows if the program scales minibatches to it.

    Raises:
        ValueError: if a smaller number was given.
    """
    size = kwargs.get("num_data")
    if size is None and not source.full and checks.is_open(svi.model, "num_data"):
        return kwargs | {"num_data": source.num_rows}
    if size is not None and np.ndim(size) == 0 and size < source.num_rows:
        raise ValueError(f"num_data is {size}, but there are {source.num_rows} rows: pass num_data={source.num_rows}.")
    return kwargs


def _resumed(checkpoints: Checkpoints, state: TrainState, num_steps: int) -> TrainState:
    """The state of the newest checkpoint, or the initial one.

    Raises:
        ValueError: if the checkpoint has more steps than ``num_steps``.
    """
    found = checkpoints.restore(state.numpyro_state)
    if found is None:
        return state
    if found.step > num_steps:
        raise ValueError(
            f"num_steps is {num_steps}, but the checkpoint in {checkpoints.directory} is already at step {found.step}. "
            f"Ask for {found.step} or more, or use another folder."
        )
    return found._replace(numpyro_state=checkpoints.placement.put_whole(found.numpyro_state))


def _warn(setup: Setup, result: Trained) -> None:
    """Warn of a collapsed bound that fell, and of natural gradients if most of their steps were shortened."""
    if setup.finish is not None:
        warn_if_fallen(result.losses, setup.source.num_rows)
    said = []
    for site, counts in result.backed_off.items():
        most = int(np.max(counts))  # of the replicate with the most
        if text := shortened(site, most, result.losses.shape[-1]):
            said.append(text)
    if said:
        warnings.warn(" ".join(said), UserWarning, stacklevel=4)


class _Pace:
    """Numbers of steps between two visits of the host, chosen so that visits are about a second apart.

    Args:
        chunk: the largest number.
        num_steps: the step at which the training ends.
        callback_steps: a callback needs the host at multiples of this number; ``None`` without a callback.
    """

    def __init__(self, chunk: int, num_steps: int, callback_steps: int | None) -> None:
        self.chunk, self.num_steps, self.callback_steps, self.most = chunk, num_steps, callback_steps, 1

    def count(self, step: int) -> int:
        """Number of steps to take at once from a step on."""
        count = min(self.most, self.chunk, self.num_steps - step)
        if self.callback_steps is not None:
            count = min(count, self.callback_steps - step % self.callback_steps)
        return max(count, 0)

    def is_reported(self, step: int) -> bool:
        """Whether a callback is due at a step."""
        at_end = step >= self.num_steps
        return step > 0 and self.callback_steps is not None and (at_end or step % self.callback_steps == 0)

    def reported_before(self, step: int) -> int:
        """The step of the last report before the report at ``step``."""
        every = self.callback_steps or 1
        return (step - 1) // every * every

    def measured(self, count: int, seconds: float) -> None:
        """Learn from the time that steps took."""
        self.most = int(np.clip(_CHUNK_SECONDS * count / max(seconds, 1e-6), 1, self.chunk))
