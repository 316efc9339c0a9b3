"""What is a training at any moment? Its members' states and losses, its steps, and the trained model that they make."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np
from numpyro.infer import SVI
from numpyro.infer.svi import SVIState

from gpzoo import _checks as checks
from gpzoo.inference.asking.trained import Trained
from gpzoo.inference.programs.arrays import split_arrays
from gpzoo.inference.programs.calls import RUNNING
from gpzoo.inference.training._sources import Resident, Streamed, described
from gpzoo.inference.training._steps import Steps
from gpzoo.inference.training.checkpoints import Checkpoints, Restored, kept_in_state
from gpzoo.inference.training.lbfgs import refuse_line_search
from gpzoo.inference.training.members import Members, member_of
from gpzoo.inference.training.protocol import of_objective, of_optimizer, refuse_no_parameters
from gpzoo.inference.training.seen_step import check_scales, expectations
from gpzoo.inference.training.start import InitialStates


class Training:
    """One call of :func:`~gpzoo.inference.fit`: everything on the device, losses ``[K, steps]``, and its steps.

    Making one is the first half of a training, before anything is trained: data and program of each member are checked
    and its initial state is found (:class:`InitialStates`), one step is traced (:class:`Steps`), and plates of a
    wrong size are refused.

    Args:
        svi: NumPyro's object.
        members: the trainings.
        source: of their rows.
        kwargs: the program's keyword arguments.
        member_kwargs: names of those with an axis of members.
        init_params: see :func:`~gpzoo.inference.fit`.

    Attributes:
        state: NumPyro's, of all members.
        done: number of steps taken.
        seconds: time that they took.
        failed: of each member that failed, the number of its steps that are kept.
        earlier: the state one visit of the host before the last, and its step.
        data: a description that tells these data from others, once it has been made.
    """

    def __init__(
        self,
        svi: SVI,
        members: Members,
        source: Resident | Streamed,
        kwargs: dict[str, Any],
        member_kwargs: Collection[str] = (),
        init_params: Mapping[str, Any] | None = None,
    ) -> None:
        self.svi, self.members, self.source, self.placement = svi, members, source, source.placement
        arrays, self.static = split_arrays(kwargs)
        self.array_axes = members.axes_by_name(arrays, member_kwargs)
        self.arrays = self.placement.everywhere(arrays)
        if init_params is not None:
            members.check("init_params", init_params)
        finisher = of_objective(svi.loss).finisher
        self.finish = None if finisher is None else finisher(svi.guide, self.static | svi.static_kwargs)
        self.losses, self.done, self.seconds = np.zeros((members.count, 0)), 0, 0.0
        self.failed: dict[int, int] = {}
        self.earlier: tuple[SVIState, int] | None = None
        self.data: dict[str, Any] = {}
        start, states = InitialStates(svi, source, self.static), []
        alike = not any(jax.tree.leaves((source.axes, self.array_axes)))
        for k, key in enumerate(members.keys):
            try:
                given = members.of(k, init_params)
                states.append(start.of(k, key, self.arrays_of(k), given, known=k > 0 and alike))
                if self.finish is not None:  # raises here if the objective does not fit the program
                    self._finished(k, self._params_of(states[k]))
            except Exception as error:
                if members.several:
                    error.add_note(f"This is member {k} of {members.count} trainings.")
                raise
        refuse_line_search(svi.optim, states[0].optim_state)
        self.state = self.placement.everywhere(members.stacked(states))
        self._params = jax.jit(members.each(self._params_of))
        self.steps = Steps(svi, members, source, self.arrays, self.array_axes, self.static, self.state)
        check_scales(self.steps.seen, source.size, source.num_rows)
        refuse_no_parameters(svi.optim.get_params(states[0].optim_state))
        self.expectations = expectations(self.steps.seen, start.needs)

    def arrays_of(self, k: int) -> dict[str, Any]:
        """Keyword arguments of a member that are arrays, for programs that the host calls."""
        return member_of(self.placement.here(self.arrays), self.array_axes, k)

    def _params_of(self, state: SVIState) -> dict[str, Any]:
        return self.svi.get_params(state) | (state.mutable_state or {})

    def _finished(self, k: int, params: dict[str, Any]) -> dict[str, Any]:
        """A member's parameters with those that the objective finds by itself."""
        if self.finish is None:
            return params
        with RUNNING:
            return self.finish(params, self.source.batch(k, 0), self.arrays_of(k))

    @property
    def params(self) -> dict[str, Any]:
        """Constrained values of every parameter, those that the objective finds among them, and mutable state."""
        params = self._params(self.placement.here(self.state))
        if self.finish is None:
            return params
        return self.members.stacked([self._finished(k, self.members.of(k, params)) for k in range(self.members.count)])

    @property
    def result(self) -> Trained:
        """The trained model so far."""
        losses = self.losses[:, : self.done].reshape(*self.members.shape, self.done)
        svi, state = self.svi, self.placement.here(self.state)
        report = of_optimizer(svi.optim).backed_off
        backed_off = {} if report is None else report(state.optim_state)
        return Trained(
            svi.model, svi.guide, self.params, losses, state, self.seconds, self.expectations, self.data, backed_off
        )

    def describe(self) -> None:
        """Describe the data, which are hashed."""
        if not self.data:
            self.data |= self.source.settings(checks.positional(self.svi.model, self.source.num_arguments)[0])
            for name, value in self.placement.here(self.arrays).items():
                self.data |= described(f"argument {name}", value)

    def settings(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Settings that a continued training must share; those that tell its user most come first."""
        self.describe()
        plain = {k: v for k, v in kwargs.items() if v is None or isinstance(v, bool | int | float | str)}
        program = self.steps.lowered(self.state).as_text()
        return (
            self.data
            | {f"argument {name}": value for name, value in plain.items()}
            | kept_in_state(self.state.optim_state)
            | {"rng_key": self.members.key_words()}
            | {"program (model, guide, optimiser, versions)": hashlib.sha256(program.encode()).hexdigest()[:16]}
        )

    def refuse_other_arguments(self) -> None:
        """Refuse data, keys, or initial values that are not the same in every process.

        Raises:
            ValueError: in every process.
        """
        if self.placement.processes == 1:
            return
        self.describe()
        initial = described("initial", self.placement.here(self.state))
        if not self.placement.same(self.data, self.members.key_words(), initial):
            raise ValueError(
                "The processes have different data, keys or initial values: each calls fit with the same arguments, of "
                "which every device takes its own rows."
            )

    def save(self, keeper: Checkpoints | None) -> bool:
        """Write a checkpoint where these are kept; returns whether the state is on disk."""
        return keeper is not None and keeper.save(self.done, self.seconds, self.losses[:, : self.done], self.state)

    def restore(self, found: Restored) -> None:
        """Go on from a checkpoint."""
        self.done, self.seconds, self.losses, state = found
        self.state = self.placement.everywhere(state)
        taken = np.isfinite(self.losses).sum(axis=1)
        self.failed = {k: int(taken[k]) for k in np.flatnonzero(taken < self.done).tolist()}
