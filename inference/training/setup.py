"""The set-up of a training: everything that stays the same while it runs. It turns a state into a result."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax import Array
from numpyro.infer import SVI
from numpyro.infer.svi import SVIState

from gpzoo import _checks as checks
from gpzoo.inference.fitted.trained import Trained
from gpzoo.inference.programs import files
from gpzoo.inference.programs.arrays import split_arrays
from gpzoo.inference.programs.calls import RUNNING
from gpzoo.inference.training.protocol import of_objective, of_optimizer
from gpzoo.inference.training.replicates import Replicates, arguments_of
from gpzoo.inference.training.sources import Source, described, described_options
from gpzoo.inference.training.state import TrainState


class Setup:
    """Everything that stays the same during a training.

    Args:
        svi: NumPyro's object.
        replicates: the trainings.
        source: source of the rows of the trainings.
        kwargs: the program's keyword arguments.
        member_kwargs: names of the keyword arguments with an axis of replicates.

    Attributes:
        arrays: keyword arguments that are arrays, placed for the training.
        array_axes: for each of these arrays, whether it has an axis of replicates; ``None`` for one training.
        static: keyword arguments that are not arrays.
        expectations: how each data site's expectation is computed, by name.
    """

    def __init__(
        self,
        svi: SVI,
        replicates: Replicates,
        source: Source,
        kwargs: dict[str, Any],
        member_kwargs: Collection[str] = (),
    ) -> None:
        self.svi, self.replicates, self.source, self.placement = svi, replicates, source, source.placement
        arrays, self.static = split_arrays(kwargs)
        self.array_axes = replicates.axes_by_name(arrays, member_kwargs)
        self.arrays = self.placement.put_whole(arrays)
        self.expectations: dict[str, str] = {}
        finisher = of_objective(svi.loss).finisher
        self.finish = None if finisher is None else finisher(svi.guide, self.static)
        self._params = jax.jit(replicates.each(self._params_of))

    def arrays_of(self, k: int) -> dict[str, Any]:
        """Keyword arguments of a replicate that are arrays, for programs that run outside the compiled steps."""
        return arguments_of(self.placement.here(self.arrays), self.array_axes, k)

    def kwargs_of(self, k: int) -> dict[str, Any]:
        """All keyword arguments of a replicate."""
        return self.arrays_of(k) | self.static

    def _params_of(self, state: SVIState) -> dict[str, Any]:
        return self.svi.get_params(state) | (state.mutable_state or {})

    def finished(self, k: int, params: dict[str, Any]) -> dict[str, Any]:
        """A replicate's parameters, with the parameters that the objective finds by itself."""
        if self.finish is None:
            return params
        with RUNNING:
            return self.finish(params, self.source.batch(k, 0), self.arrays_of(k))

    def params(self, state: SVIState) -> dict[str, Any]:
        """Constrained values of all parameters, with those that the objective finds by itself, and mutable state."""
        params = self._params(self.placement.here(state))
        if self.finish is None:
            return params
        each = [self.finished(k, self.replicates.of(k, params)) for k in range(self.replicates.count)]
        return self.replicates.stacked(each)

    def result(self, state: TrainState, data: Mapping[str, Any] | None = None) -> Trained:
        """The trained model so far, with a description of its training data."""
        numpyro_state = self.placement.here(state.numpyro_state)
        backed_off = of_optimizer(self.svi.optim).backed_off
        return Trained(
            self.svi.model,
            self.svi.guide,
            self.params(state.numpyro_state),
            state.losses.reshape(*self.replicates.shape, state.step),
            numpyro_state,
            state.seconds,
            self.expectations,
            data or {},
            {} if backed_off is None else backed_off(numpyro_state.optim_state),
        )

    @cached_property
    def described(self) -> dict[str, Any]:
        """Type, shape and hash of all data, by name, and the number of rows of a step."""
        found = self.source.settings(checks.positional(self.svi.model, self.source.num_arguments)[0])
        for name, value in self.placement.here(self.arrays).items():
            found |= described(f"argument {name}", value)
        return found

    def settings(self, init_params: Mapping[str, Any] | None) -> dict[str, Any]:
        """The settings that a continued training must share; the most informative ones come first."""
        given: dict[str, str] = {}
        for path, x in jax.tree_util.tree_leaves_with_path(dict(init_params or {})):
            if isinstance(x, int | float | np.ndarray | np.generic | Array):
                number = x if hasattr(x, "dtype") else np.asarray(x)
                given |= described(f"init_params{jax.tree_util.keystr(path)}", number)
        return self.described | described_options(self.static) | given | {"rng_key": self._key_words()}

    def _key_words(self) -> list[int]:
        return [word for key in self.replicates.keys for word in files.numbers(key).ravel().tolist()]

    def refuse_other_processes(self, state: SVIState) -> None:
        """Refuse data, keys, or initial values that are not the same in every process.

        Raises:
            ValueError: in every process.
        """
        if self.placement.processes == 1:
            return
        initial = described("initial", self.placement.here(state))
        if not self.placement.same(self.described, self._key_words(), initial):
            raise ValueError("The processes have different data, keys or initial values: give all the same arguments.")
