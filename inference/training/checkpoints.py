"""Checkpoints of a training: written atomically, every byte under a hash, restored to the same bits.

A checkpoint has a description: names and shapes of its parameters, hashes of the data, and the settings of ``fit``. A
training with another description is refused. The state after a step is one file (see
:mod:`gpzoo.inference.programs.files`). gpzoo does not use Orbax for two reasons. Orbax spreads a step over thirteen
files, most of them without a hash: of 288 flipped bits, it restored 274 as numbers. It also leaves a folder behind
whenever it is killed.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import random
from jax.tree_util import keystr
from numpyro.infer.svi import SVIState

from gpzoo.errors import CheckpointError
from gpzoo.inference.programs import files
from gpzoo.inference.training._mesh import HERE, Placement
from gpzoo.inference.training.state import TrainState, restored

_SUFFIX, _UNFINISHED = ".checkpoint", ".checkpoint-unfinished"

#: Largest number of differences that a message names.
_MOST_NAMED = 4


class Checkpoints:
    """The two newest states of one training, in one folder. The state after 12 steps is the file ``12.checkpoint``.

    Args:
        directory: the folder; it is made if it does not exist.
        settings: settings that a continued training must share, as a flat dictionary of plain values.
        placement: placement of the training; if several processes share the folder, the first one writes.

    Raises:
        CheckpointError: if the directory cannot be made.
    """

    def __init__(
        self, directory: str | os.PathLike[str], settings: dict[str, Any], placement: Placement = HERE
    ) -> None:
        self.directory, self.settings, self.placement = Path(directory).absolute(), settings, placement
        self._good: list[int] = []
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"Cannot use {self.directory} for checkpoints: {error}.") from error

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder during the ``with`` block, and remove the temporary files of interrupted writes.

        Only the process that writes checkpoints does this.

        Raises:
            CheckpointError: in every process, if another training has locked the folder, or the folder cannot be used.
        """
        with ExitStack() as stack:
            refused: CheckpointError | None = None
            try:
                if self.placement.first:
                    stack.enter_context(files.alone_in(self.directory))
                    for left in self.directory.glob(f"{files.TEMPORARY}*{_UNFINISHED}"):
                        left.unlink()
            except BlockingIOError:
                refused = CheckpointError(
                    f"Another training runs with its checkpoints in {self.directory}, and each would remove those of "
                    "the other. Wait until it ends, or use another folder."
                )
            except OSError as error:
                refused = CheckpointError(f"Cannot use {self.directory} for checkpoints: {error}.")
            if any(self.placement.agreed(float(refused is not None))):
                raise refused or CheckpointError(f"The first process cannot use {self.directory}: its error says why.")
            yield

    def save(self, state: TrainState) -> bool:
        """Write a checkpoint of a training. The two earlier checkpoints stay until the new checkpoint is complete.

        After that, only the new checkpoint and the checkpoint before it stay. Checkpoints of later steps are removed
        too. They exist if the training has failed and gone back to an earlier step. If the disk is full or gone,
        ``save`` warns and the training continues.

        Returns:
            Whether the checkpoint is on disk.
        """
        if self._good[-1:] == [state.step] or not self.placement.first:
            return True
        description = {"step": state.step, "seconds": state.seconds, "settings": self.settings}
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            arrays = {"losses": state.losses} | _named(state.numpyro_state)
            files.write(self._path(state.step), description, arrays, _UNFINISHED)
        except OSError as error:
            warnings.warn(
                f"No checkpoint was written to {self.directory} at step {state.step}: {error}. Training goes on; free "
                "some space or interrupt it.",
                RuntimeWarning,
                stacklevel=2,
            )
            return False
        self._good = [*(before for before in self._good if before < state.step), state.step][-2:]
        for path in self._paths():
            if path.stem.isdecimal() and path not in map(self._path, self._good):
                with suppress(OSError):
                    path.unlink()
        return True

    def restore(self, template: SVIState) -> TrainState | None:
        """The newest undamaged checkpoint, in the structure of ``template``; ``None`` without checkpoints.

        If a checkpoint is damaged, a warning names the damaged checkpoint, and the previous one is used.

        Raises:
            CheckpointError: if all checkpoints are damaged, naming the damage. Or if the newest undamaged checkpoint
                belongs to a training with other settings or shapes.
            ValueError: if the checkpoint differs between processes.
        """
        found, damaged = self._newest()
        step = -1 if found is None else found[0]["step"]
        if self.placement.agreed(step, -step) != (step, -step):
            raise ValueError(
                f"Not all processes see the same checkpoints in {self.directory}, this one "
                f"{'none' if found is None else f'that of step {step}'}: use a folder that all processes share."
            )
        if found is None:
            return None
        description, arrays = found
        self._compare(description, template)
        if damaged:
            warnings.warn(
                f"Damaged in {self.directory}: {'; '.join(damaged)}. Training goes on from step {step} instead.",
                RuntimeWarning,
                stacklevel=2,
            )
        self._good = [step]
        # Copies, because the arrays that were read share the file's bytes.
        numpyro_state = jax.tree_util.tree_map_with_path(
            lambda path, x: files.on_device(arrays[_name(path)], random.key_impl(x) if files.is_key(x) else None),
            template,
        )
        return restored(numpyro_state, step, arrays["losses"], description["seconds"])

    def _newest(self) -> tuple[tuple[dict[str, Any], dict[str, np.ndarray]] | None, list[str]]:
        """Description and arrays of the newest undamaged file, and the damage of the newer files."""
        damaged: list[str] = []
        for path in self._paths():
            try:
                return _read(path), damaged
            except (OSError, ValueError) as error:
                damaged.append(f"{path.name}: {error}")
        if damaged:
            raise CheckpointError(
                f"No checkpoint in {self.directory} can be used: {'; '.join(damaged)}. Put back a copy, or delete the "
                "folder to start again."
            )
        return None, damaged

    def _compare(self, description: dict[str, Any], template: SVIState) -> None:
        """Raise CheckpointError unless the description belongs to this training."""
        here, there = dict(self.settings), dict(description["settings"])
        here |= {name: f"{x.dtype}{list(x.shape)}" for name, x in _named(template).items()}
        there |= {name: f"{dtype}{shape}" for name, dtype, shape, _ in description["arrays"] if name != "losses"}
        different = []
        for name in here | there:
            # Compared as text, because NaN is not equal to itself.
            own, other = (json.dumps(each[name]) if name in each else "not given" for each in (here, there))
            if own != other:
                different.append(f"{name} is {own} here and {other} there")
        if different:
            more = f"; and {len(different) - _MOST_NAMED} more" if len(different) > _MOST_NAMED else ""
            raise CheckpointError(
                f"The checkpoint in {self.directory} is of another training: {'; '.join(different[:_MOST_NAMED])}"
                f"{more}. Continue with the same settings, or use another directory."
            )

    def _path(self, step: int) -> Path:
        return self.directory / f"{step}{_SUFFIX}"

    def _paths(self) -> list[Path]:
        """Checkpoint files, the newest first; files that are not named after a step come last."""
        of_step = {path: int(path.stem) if path.stem.isdecimal() else -1 for path in self.directory.glob(f"*{_SUFFIX}")}
        return sorted(of_step, key=of_step.__getitem__, reverse=True)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Description and arrays, by name, of a file.

    Raises:
        OSError: if it cannot be read.
        ValueError: naming the damaged parts, if there are any.
    """
    description, arrays = files.read(path)
    if path.name != f"{description['step']}{_SUFFIX}":
        raise ValueError(f"the file holds step {description['step']}, but its name says another step; rename it back")
    return description, arrays


def _named(state: Any) -> dict[str, np.ndarray]:
    """The arrays of a state by their paths, in its order."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {_name(path): files.numbers(x) for path, x in leaves}


def _name(path: tuple) -> str:
    return f"state{keystr(path)}"
