"""How is a program trained? NumPyro's SVI update is compiled once, looped over minibatches, watched, and kept."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Integer, PRNGKeyArray, Shaped
from numpyro.infer import SVI
from numpyro.infer.svi import SVIState
from numpyro.infer.util import transform_fn

from gpzoo import _checks as checks
from gpzoo import _platform
from gpzoo._types import Argument
from gpzoo.errors import CheckpointError, FactorisationError, keep_in
from gpzoo.inference.asking.trained import Trained
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.guides.same_program import refuse_other_program
from gpzoo.inference.programs.arguments import refuse_absent
from gpzoo.inference.programs.calls import RUNNING, entry_point, others_may_run
from gpzoo.inference.programs.gp_sites import representing
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.program import Look, look
from gpzoo.inference.training._diagnose import Watch, check_scales, expectations, explain_failure, extreme_data
from gpzoo.inference.training._mesh import Placement
from gpzoo.inference.training._progress import Bar
from gpzoo.inference.training._signals import Signals
from gpzoo.inference.training._sources import (
    Resident,
    Streamed,
    axes_by_name,
    check_members,
    described,
    key_words,
    member_of,
    source_of,
    split_arrays,
    split_keys,
)
from gpzoo.inference.training._steps import all_finite, initial, one_step, step_loop
from gpzoo.inference.training.checkpoints import Checkpoints, check_folder, kept_in_state
from gpzoo.inference.training.natural import NaturalGradients, Rate, shortened
from gpzoo.inference.training.protocol import of_objective, of_optimizer, refuse_misfits
from gpzoo.tables.table import Table

#: Intended seconds between two visits of the host.
_CHUNK_SECONDS = 1.0

#: Seconds after which the first checkpoint is due: within 30, of which the chunk at that moment takes some.
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
        *data: the model's positional arguments; arrays among them have one row per datum. Or one table, whose groups
            are the arguments.
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
            key, or arguments of the model outside ``model_kwargs``.
        ValueError: for rows or members that disagree in number, a plate of another size than there are rows, options
            out of range, bad data (NaN that no likelihood leaves out, infinity, masked arrays, labels), ``init_params``
            of unknown names or other shapes, a ``checkpoint`` that is no folder's name, or a program that the objective
            cannot train
            (:class:`~gpzoo.inference.CollapsedELBO`); for ``natural`` with that objective, whose ``q(u)`` is optimal;
            for minibatches with :func:`~gpzoo.inference.lbfgs`, whose line search follows one function;
            for a ``mesh`` of several axes, with several keys or with that objective, one whose devices do not divide
            ``batch_size``, and arguments that differ between its processes.
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
        check_folder(checkpoint)
    keys, several = split_keys(checks.rng_key(rng_key, several=True))
    placement = Placement(mesh)
    if mesh is not None and several:
        raise ValueError(
            f"mesh splits the rows of one training's minibatches: with {len(keys)} keys call fit for each."
        )
    tables = any(isinstance(x, Table) for x in data)
    refuse_misfits(svi, full=batch_size is None, mesh=mesh is not None)
    absent: checks.Absent = []
    args, kwargs = checks.arguments(svi.model, data, model_kwargs, tables=tables, absent=absent)
    with ExitStack() as held:
        source = held.enter_context(closing(source_of(args, batch_size, keys, several, in_axes, placement)))
        if absent:
            own = {name: _first(x) if several and name in member_kwargs else x for name, x in kwargs.items()}
            refuse_absent(partial(svi.model, **svi.static_kwargs), args, kwargs, absent, (source.all_rows(0), own))
        if not source.full and kwargs.get("num_data") is None and checks.is_open(svi.model, "num_data"):
            kwargs["num_data"] = source.num_rows
        if (size := kwargs.get("num_data")) is not None and np.ndim(size) == 0 and size < source.num_rows:
            raise ValueError(
                f"num_data is {size}, but there are {source.num_rows} rows: pass num_data={source.num_rows}."
            )
        training = _Training(svi, keys, source, kwargs, member_kwargs, init_params)
        training.refuse_other_arguments()
        keeper = None
        if checkpoint is not None:
            keeper = Checkpoints(checkpoint, training.settings(kwargs), writes=placement.first)
            training.claim(keeper, held)
            training.restore(keeper, num_steps)
        return training.run(num_steps, keeper, checkpoint_seconds, callback, callback_steps, progress)


def _first(value: Any) -> Any:
    return jax.tree.map(lambda x: x[0], value)


class _Training:
    """The state of one call of :func:`fit`: everything on the device, losses ``[K, steps]``, and its step."""

    def __init__(
        self,
        svi: SVI,
        keys: list[PRNGKeyArray],
        source: Resident | Streamed,
        kwargs: dict[str, Any],
        member_kwargs: Collection[str],
        init_params: Mapping[str, Any] | None,
    ) -> None:
        self.svi, self.keys, self.source, self.placement = svi, keys, source, source.placement
        arrays, self.static = split_arrays(kwargs)
        #: For the compiled steps; and for programs that the host calls.
        self.placed = self.placement.everywhere(arrays)
        self.arrays = self.placement.here(self.placed)
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
        self.done, self.before, self.seconds = 0, 0.0, 0.0
        #: The state at the last visit but one of the host, and its step.
        self.earlier: tuple[SVIState, int] | None = None
        #: For each member that failed, the number of its steps that are kept.
        self.failed: dict[int, int] = {}
        #: A description that tells these data from others, once it has been made.
        self.data: dict[str, Any] = {}
        self.init: Callable | None = None
        self.objective, self.driver = of_objective(svi.loss), of_optimizer(svi.optim)
        #: Puts what the objective finds by itself into parameters.
        self.finish: Callable | None = None
        if self.objective.finisher is not None:
            self.finish = self.objective.finisher(svi.guide, self.static | svi.static_kwargs)
        states = []
        for k, key in enumerate(keys):
            try:
                states.append(self._start(k, key, init_params))
                self._finished(k, self._params_of(states[k]))  # raises here if the objective does not fit the program
            except Exception as error:
                if self.several:
                    error.add_note(f"This is member {k} of {self.K} trainings.")
                raise
        self.state = jax.tree.map(lambda *x: jnp.stack(x), *states) if self.several else states[0]
        self.state = self.placement.everywhere(self.state)
        # Traced once, and written out wherever it is used: in the loop, or step by step from the host.
        step = jax.jit(one_step(svi, self.static, source), inline=True)
        self.one = step_loop(step, source.chunk)
        self.all = jax.jit(self._all_members if self.several else self.one, donate_argnums=0)
        self.step = jax.jit(lambda *inputs: step(*inputs), donate_argnums=0)
        self.in_range = jax.jit(self._in_range)
        self.copy = jax.jit(lambda state: jax.tree.map(jnp.copy, state))
        with Watch() as seen, self.placement.tracing():
            self.stepwise = _platform.steps_on_host(self.all.trace(*self._inputs()).jaxpr)
        check_scales(seen, source.size, source.num_rows)
        lines = svi.guide.sites.lines if isinstance(svi.guide, InducingGuide) else {}
        self.ways = expectations(seen, self.needs, lines)

    def _start(self, k: int, key: PRNGKeyArray, given: Mapping[str, Any] | None) -> SVIState:
        """The initial state of a member, once its data and its program are checked."""
        svi, source, arrays = self.svi, self.source, member_of(self.arrays, self.array_axes, k)
        if given is not None and self.several:
            given = jax.tree.map(lambda x: x[k], given)
        first, whole = source.batch(k, 0), source.all_rows(k)
        kwargs, training = arrays | self.static, named_key(key, "training")
        if not isinstance(svi.guide, InducingGuide):
            # A guide of another kind may set parameters that the program has no start for.
            self.init = self.init or jax.jit(self._init)
            state = self.init(training, given, first, arrays)
            self._look(k, svi.model, whole, kwargs, svi.get_params(state), arrays=True)
            return state
        looked = self._look(k, svi.guide.model, whole, kwargs)
        # On all rows at once the program may not fit in memory, such as a network on images. Two rows are enough to
        # find a term that depends on several.
        svi.guide.sites_for(first if source.size > 1 else whole, kwargs, looked)
        refuse_other_program(svi.model, svi.guide, first, kwargs | svi.static_kwargs)
        seen = whole if svi.guide.looks_at_inputs(given) else first
        try:
            sites = svi.guide.starting_sites(named_key(key, "initial values"), seen, kwargs, given, "init_params")
        except FactorisationError as error:
            cause = extreme_data(svi.model, seen, arrays) or "Look at initial and fixed hyperparameters."
            raise FactorisationError(f"Training cannot begin: {error} {cause}") from error
        self.init = self.init or initial(svi, sites)
        values = {name: site["value"] for name, site in sites.items()}
        return self.init(training, values)

    def _look(
        self,
        k: int,
        program: Callable,
        args: tuple,
        kwargs: dict[str, Any],
        values: dict[str, Any] | None = None,
        *,
        arrays: bool = False,
    ) -> Look | None:
        """A look at the program on the data of a member; ``None`` where they are those of the one before."""
        if k > 0 and not any(self.source.axes or ()) and not any((self.array_axes or {}).values()):
            return None
        # The data are constants here, so that likelihoods check their numbers.
        looked = look(program, args, kwargs | self.svi.static_kwargs, values, arrays=arrays)
        # Nothing else is kept, because it holds the data, which are many rows of a table.
        self.needs = looked.needs
        return looked

    def _init(self, key: PRNGKeyArray, params: dict | None, batch: tuple, arrays: dict) -> SVIState:
        shown = self.objective.representation
        with nullcontext() if shown is None else representing(shown):
            return self.svi.init(key, *batch, init_params=params, **arrays, **self.static)

    def _all_members(
        self, states: SVIState, data: tuple, arrays: dict, feed: Any, counts: Integer[Array, " K"]
    ) -> tuple[SVIState, Float[Array, "K chunk"], Integer[Array, " K"]]:
        if _platform.trains_members_together():
            axes = jax.tree.map(lambda own: 0 if own else None, (self.source.axes, self.array_axes))
            return jax.vmap(self.one, in_axes=(0, *axes, 0, 0))(states, data, arrays, feed, counts)

        def member(own: tuple) -> tuple:
            k, state, feed, count = own
            rest = member_of(data, self.source.axes, k), member_of(arrays, self.array_axes, k)
            return self.one(state, *rest, feed, count)

        return lax.map(member, (jnp.arange(self.K), states, feed, counts))

    def _inputs(self) -> tuple:
        """Arguments of the compiled loop."""
        return self.state, self.source.placed, self.placed, self.source.feed(0, 1), np.zeros(self.members, np.int32)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def settings(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Settings that a continued training must share; those that tell its user most come first."""
        self._describe()
        settings = dict(self.data)
        plain = {k: v for k, v in kwargs.items() if v is None or isinstance(v, bool | int | float | str)}
        settings |= {f"argument {name}": value for name, value in plain.items()}
        settings |= kept_in_state(self.state.optim_state)
        settings["rng_key"] = [word for key in self.keys for word in key_words(key)]
        # Without their devices, since a training may go on on others.
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), self._inputs())
        program = self.all.lower(*shapes).as_text()
        settings["program (model, guide, optimiser, versions)"] = hashlib.sha256(program.encode()).hexdigest()[:16]
        return settings

    def _describe(self) -> None:
        if not self.data:
            self.data |= self.source.settings(checks.positional(self.svi.model, self.source.num_arguments)[0])
            for name, value in self.arrays.items():
                self.data |= described(f"argument {name}", value)

    def claim(self, keeper: Checkpoints, held: ExitStack) -> None:
        """Hold the folder of checkpoints until ``held`` is closed.

        Raises:
            CheckpointError: in every process, if the one that writes cannot have it.
        """
        error = None
        try:
            held.enter_context(keeper.alone())
        except CheckpointError as refused:
            error = refused
        (refusals,) = self.placement.agreed(float(error is not None))
        if refusals:
            raise error or CheckpointError(f"The first process cannot use {keeper.directory}: its error says why.")

    def restore(self, keeper: Checkpoints, num_steps: int) -> None:
        """Go on from the newest checkpoint, if there is one.

        Raises:
            ValueError: if it is of more steps than are wanted.
        """
        restored = keeper.restore(self.state)
        step = -1 if restored is None else restored.step
        if self.placement.agreed(step, -step) != (step, -step):
            raise ValueError(
                f"Not all processes see the same checkpoints in {keeper.directory}, this one "
                f"{'none' if restored is None else f'that of step {step}'}: use a folder that all processes share."
            )
        if restored is None:
            return
        if restored.step > num_steps:
            raise ValueError(
                f"num_steps is {num_steps}, but the checkpoint in {keeper.directory} is already at step "
                f"{restored.step}. Ask for {restored.step} or more, or use another folder."
            )
        self.done, self.before, self.losses, state = restored
        self.state = self.placement.everywhere(state)
        taken = np.isfinite(self.losses).sum(axis=1)
        self.failed = {k: int(taken[k]) for k in np.flatnonzero(taken < self.done).tolist()}

    def refuse_other_arguments(self) -> None:
        """Refuse data, keys, or initial values that are not the same in every process.

        Raises:
            ValueError: in every process.
        """
        if self.placement.processes == 1:
            return
        self._describe()
        words = [key_words(key) for key in self.keys], described("initial", self.placement.here(self.state))
        said = json.dumps([self.data, *words], sort_keys=True, default=str)
        digest = np.frombuffer(hashlib.sha256(said.encode()).digest()[:16], np.uint16).tolist()
        if self.placement.agreed(*digest, *(-x for x in digest)) != (*digest, *(-x for x in digest)):
            raise ValueError(
                "The processes have different data, keys or initial values: each calls fit with the same arguments, of "
                "which every device takes its own rows."
            )

    def save(self, keeper: Checkpoints, seconds: float) -> bool:
        """Keep the state; returns whether it is kept."""
        return keeper.save(self.done, seconds, self.losses[:, : self.done], self.state)

    # -- the loop ----------------------------------------------------------------------------------------------------

    def run(self, num_steps: int, *options: Any) -> Trained:
        """Train up to ``num_steps`` in all; every error that ends it has the result so far."""
        try:
            if self.done == 0 < num_steps:
                self._refuse_coinciding()
            self._loop(num_steps, *options)
            if self.failed:
                self._explain(num_steps)
            self._describe()
            self._warn_of_shortened()
        except BaseException as error:
            keep_in(error, "result", lambda: self.result, f"Training ended after step {self.done} of {num_steps}.")
            raise
        return self.result

    def _warn_of_shortened(self) -> None:
        """Warn once if most natural steps were shorter than asked for, of the member with the most."""
        counts = self.result.backed_off
        said = [shortened(site, int(np.max(count)), self.done) for site, count in counts.items()]
        if any(said):
            warnings.warn(" ".join(filter(None, said)), UserWarning, stacklevel=5)

    def _refuse_coinciding(self) -> None:
        """Refuse sites that are not whitened and have more inducing variables that coincide than others.

        Raises:
            FactorisationError: naming the first, with the initial parameters.
        """
        guide = self.svi.guide
        if not isinstance(guide, InducingGuide) or guide.whitens_all:
            return
        for k in range(self.K):
            # New containers: networks write into the state that they are handed.
            params = jax.tree.map(lambda x: x[k] if self.several else x, self.params)  # noqa: B023
            batch, arrays = self.source.batch(k, 0), member_of(self.arrays, self.array_axes, k)
            for site, (count, size) in guide.coinciding(self.keys[k], params, batch, arrays | self.static).items():
                # A few do little harm: of 300 in 4 dimensions, when 100 coincide, 150 steps take the loss from 4263 to
                # 1320 (distinct ones to 355), when 297 do, to 4963 by way of 3e6.
                if 2 * count > size:
                    raise FactorisationError(
                        f"Training{f' {k} of {self.K}' if self.several else ''} cannot begin: {count} of the {size} "
                        f"inducing variables of site {site!r} coincide with an earlier one up to the jitter, so that "
                        "Kuu is singular but for it, and with whiten=False small steps along their differences cost "
                        "the bound much. Use whiten=True, fewer or distinct inducing inputs, a shorter initial "
                        "lengthscale, or a larger GaussianProcess(jitter=...). The initial parameters are in this "
                        f"error's .result{', of all members' if self.several else ''}.",
                        self.result,
                    )

    def _loop(
        self,
        num_steps: int,
        keeper: Checkpoints | None,
        checkpoint_seconds: float,
        callback: Callable | None,
        callback_steps: int,
        progress: bool | str,
    ) -> None:
        """Take the steps that are missing, chunk by chunk, or those until it fails."""
        self.losses = np.concatenate([self.losses, np.full((self.K, num_steps - self.done), np.nan)], axis=1)
        started = time.perf_counter()
        due, kept = started + min(_FIRST_SECONDS, checkpoint_seconds), False

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
        shown = self.placement.first and progress
        with Signals(keeper is not None) as signals, Bar(shown, num_steps, self.done) as bar, ExitStack() as after:
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
                    else:
                        after.enter_context(others_may_run())
                    # All processes take as many steps, and stop at the same one.
                    said = self.placement.agreed(chunk, signals.received or 0)
                    chunk, signals.received = int(said[0]), int(said[1]) or None
                    count, compiled = ahead, True
                    bar.update(self.done, self.losses[:, max(0, self.done - 100) : self.done], len(self.failed))
                    if keeper is not None and time.perf_counter() > due:
                        due = time.perf_counter() + checkpoint_seconds
                        self.save(keeper, seconds())
                    if len(self.failed) < self.K:
                        report()
            finally:
                # Also where a callback raises, or rows that cannot be read.
                self.seconds = seconds()
                if keeper is not None:
                    kept = self.save(keeper, self.seconds)
        signals.propagate(kept)

    @property
    def result(self) -> Trained:
        """What has been computed so far."""
        losses = self.losses[:, : self.done].reshape(*self.members, self.done)
        svi, state = self.svi, self.placement.here(self.state)
        backed_off = {} if self.driver.backed_off is None else self.driver.backed_off(state.optim_state)
        return Trained(svi.model, svi.guide, self.params, losses, state, self.seconds, self.ways, self.data, backed_off)

    @property
    def params(self) -> dict[str, Any]:
        """Constrained values of every parameter, those that the objective finds among them, and mutable state."""

        state = self.placement.here(self.state)
        if not self.several:
            return self._finished(0, self._params_of(state))
        params = jax.vmap(self._params_of)(state)
        if self.finish is None:
            return params
        each = [self._finished(k, jax.tree.map(lambda x, k=k: x[k], params)) for k in range(self.K)]
        return jax.tree.map(lambda *x: jnp.stack(x), *each)

    def _params_of(self, state: SVIState) -> dict[str, Any]:
        return self.svi.get_params(state) | (state.mutable_state or {})

    def _finished(self, k: int, params: dict[str, Any]) -> dict[str, Any]:
        """A member's parameters with those that the objective finds by itself."""
        if self.finish is None:
            return params
        with RUNNING:
            return self.finish(params, self.source.batch(k, 0), member_of(self.arrays, self.array_axes, k))

    def _steps(
        self, state: SVIState, feed: Any, counts: Integer[np.ndarray, " K"]
    ) -> tuple[SVIState, Float[Array | np.ndarray, "*K chunk"], Integer[Array | np.ndarray, "..."]]:
        """Let each member take its number of steps, from a state that is given up."""
        with self.placement.tracing():
            if self.stepwise:
                return self._stepwise(state, feed, counts)
            counts = counts.astype(np.int32).reshape(self.members)
            return self.all(state, self.source.placed, self.placed, feed, counts)

    def _stepwise(
        self, states: SVIState, feed: Any, counts: Integer[np.ndarray, " K"]
    ) -> tuple[SVIState, Float[np.ndarray, "K chunk"], Integer[np.ndarray, "K 1"]]:
        """:meth:`_steps`, one by one from the host: in a loop on CPU, XLA's convolutions take many times as long."""
        values, begun, ends = np.zeros((self.K, self.source.chunk)), np.zeros((self.K, 1), int), []
        for k in range(self.K):
            member = (lambda x, k=k: x[k]) if self.several else (lambda x: x)
            state, own_feed = jax.tree.map(member, (states, feed))
            rest = member_of(self.source.placed, self.source.axes, k), member_of(self.placed, self.array_axes, k)
            for i in range(int(counts[k])):
                state, loss = self.step(state, *rest, own_feed, np.int32(i))
                values[k, i], begun[k] = loss, i + 1
                if not np.isfinite(values[k, i]):
                    break
            ends.append(state)
        return (jax.tree.map(lambda *x: jnp.stack(x), *ends) if self.several else ends[0]), values, begun

    def _advance(self, feed: Any, count: int, ahead: int) -> Any:
        """Take ``count`` steps; returns the feed of the next ``ahead``, which is made while the device computes."""
        start, done, failed = self.copy(self.state), self.done, dict(self.failed)
        try:
            return self._take(start, feed, count, ahead)
        except BaseException:
            if self.done == done:  # no step was kept, and the state that was given up may be gone
                self.state, self.failed = start, failed
            raise
        finally:
            self.earlier = start, done

    def _take(self, start: SVIState, feed: Any, count: int, ahead: int) -> Any:
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
                taken = np.where(bad, self._back(start, feed, begun[:, 0], bad, values), taken)
                self.failed |= {k: self.done + int(taken[k]) for k in np.flatnonzero(bad).tolist()}
            for k in range(self.K):
                kept = max(taken[k], 0)
                self.losses[k, self.done : self.done + kept] = values[k, :kept]
                self.losses[k, self.done + taken[k] : self.done + count] = np.nan
            self.done += int(taken[counts > 0].max())

    def _back(
        self,
        start: SVIState,
        feed: Any,
        begun: Integer[np.ndarray, " K"],
        bad: Bool[np.ndarray, " K"],
        values: Float[np.ndarray, "K chunk"],
    ) -> Integer[np.ndarray, " K"]:
        """Put members that failed back to their last good state; returns how many steps of the chunk they keep.

        A state is good if it is finite, and the bound there is. So the update before a bound that is not finite is
        taken back too; at the beginning of a chunk that is the last one of the chunk before, -1. No step is selected or
        copied for this: chunks that run again give the same numbers.
        """
        low, high, width = np.where(bad, 0, begun), begun, 1
        self._put(bad, start)
        while (open_ := bad & (high - low > 1)).any():
            # As a rule only the last step or two are bad.
            middle = np.maximum(high - width, (low + high) // 2)
            state, _, _ = self._steps(self.copy(start), feed, np.where(open_, middle, 0))
            good = open_ & self._finite(state)
            self._put(good, state)
            low, high = np.where(good, middle, low), np.where(open_ & ~good, middle, high)
            width *= 2
        worse = bad & ~np.isfinite(values[np.arange(self.K), np.minimum(low, values.shape[1] - 1)])
        if (again := worse & (low > 0)).any():
            self._put(again, self._steps(self.copy(start), feed, np.where(again, low - 1, 0))[0])
        if (before := worse & (low == 0)).any() and self.earlier is not None:
            state, step = self.earlier
            count = self.done - step
            feed = self.source.feed(step, count)
            self._put(before, self._steps(self.copy(state), feed, np.where(before, count - 1, 0))[0])
            again |= before
        return low - again

    def _put(self, which: Bool[np.ndarray, " K"], state: SVIState) -> None:
        """Give these members the state that they have in ``state``."""

        def put(new: Shaped[Array, "*shape"], old: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
            return jnp.where(which.reshape(self.members + (1,) * (new.ndim - len(self.members))), new, old)

        self.state = jax.tree.map(put, state, self.state)

    def _finite(self, state: SVIState) -> Bool[np.ndarray, " K"]:
        return np.asarray(self.in_range(state)).reshape(self.K)

    def _in_range(self, state: SVIState) -> Bool[Array, "*K"]:
        # A positive number can be infinite or 0 where the optimiser's own number, and even the bound, are finite: there
        # is no way back from it.
        def back(state: SVIState) -> dict[str, Any]:
            # XLA would take log(exp(x)) for x.
            params = lax.optimization_barrier(self.svi.get_params(state))
            transforms = cast(Any, self.svi.constrain_fn).args[0]
            return transform_fn(transforms, params, invert=True)

        params = jax.vmap(back)(state) if self.several else back(state)
        return all_finite((state.optim_state, state.mutable_state, params), len(self.members))

    def _failing(self, k: int) -> tuple[int, SVIState, SVIState, float]:
        """Of a member that failed: the step that is not finite, the states before and after it, and its loss."""
        state, only = self.state, (np.arange(self.K) == k).astype(int)
        for step in (self.failed[k], self.failed[k] + 1):
            before = state
            state, values, _ = self._steps(self.copy(before), self.source.feed(step, 1), only)
            loss = float(np.asarray(values).reshape(self.K, -1)[k, 0])
            if not np.isfinite(loss) or not self._finite(state)[k]:
                break
        return step, before, state, loss

    def _explain(self, num_steps: int) -> None:
        """Raise what stopped the first member that failed."""
        found = {k: self._failing(k) for k in sorted(self.failed)}
        k = min(found)
        step, state, after, loss = found[k]
        where, kept = "Training", self.failed[k]
        which = "The initial parameters" if kept == 0 else f"The last good parameters, after step {kept},"
        if kept > 0 and step == kept and not np.isfinite(loss):
            which = f"The parameters after step {kept}, from which this training was resumed,"
        state, after = self.placement.here((state, after))
        if self.several:
            state, after = jax.tree.map(lambda x: x[k], (state, after))
            failed = ", ".join(f"{member} at step {at + 1}" for member, (at, *_) in found.items())
            rest = f"; the others are at step {self.done} of {num_steps}" if len(found) < self.K else ""
            where = f"{len(found)} of {self.K} trainings failed, {failed}{rest}. Member {k}"
        explain_failure(
            self.svi,
            self.result,
            state,
            self.source.batch(k, step),
            member_of(self.arrays, self.array_axes, k),
            self.static,
            loss,
            after=after,
            where=f"{where} stopped at step {step + 1}",
            kept=f"{which} are in this error's .result{', of all members' if self.several else ''}.",
            initial=step == 0,
        )
