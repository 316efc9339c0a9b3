"""Checkpoints of a training: written atomically, every byte under a hash, restored to the same bits.

The state after a step is one file (see :mod:`gpzoo.inference.programs.files`). Orbax is not used, because it spreads a
step over thirteen files, most of them without a hash (of 288 flipped bits, 274 were restored as numbers), and leaves a
folder behind whenever it is killed.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import random
from jax.tree_util import keystr
from jaxtyping import Float

from gpzoo.errors import CheckpointError
from gpzoo.inference.programs import files
from gpzoo.inference.training._mesh import HERE, Placement

_SUFFIX, _UNFINISHED = ".checkpoint", ".checkpoint-unfinished"

_ABSENT = "not given"

#: Largest number of differences, or of damaged arrays, that a message names.
_MOST_NAMED = 4


def kept_in_state(state: Any) -> dict[str, list[str]]:
    """Initial hyperparameters that an optimiser keeps in its state, by their paths: no program tells them.

    A training that goes on has those of its state, whatever its optimiser was made with. So they are settings.
    """
    leaves = jax.tree_util.tree_leaves_with_path(state)
    injected = ((path, x) for path, x in leaves if any(getattr(key, "name", "") == "hyperparams" for key in path))
    return {f"optimiser{keystr(path)}": [str(value) for value in np.ravel(x)] for path, x in injected}


class Restored(NamedTuple):
    """The content of a checkpoint: steps taken, their seconds, ``losses`` as given, and the state."""

    step: int
    seconds: float
    losses: Float[np.ndarray, "*K steps"]
    state: Any


class Checkpoints:
    """The two newest states of one training, in one folder, ``12.checkpoint`` after 12 steps.

    Args:
        directory: their folder; made if absent.
        settings: settings that a continued training must share, as a flat dictionary of plain values.
        placement: of the training; of several processes that share the folder the first one writes.

    Raises:
        CheckpointError: if the directory cannot be made or read, or holds checkpoints of an earlier format.
    """

    def __init__(
        self, directory: str | os.PathLike[str], settings: dict[str, Any], placement: Placement = HERE
    ) -> None:
        self.directory, self.settings, self.placement = Path(directory).absolute(), settings, placement
        self._good: list[int] = []
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            earlier = sorted(path.name for path in self.directory.iterdir() if _of_orbax(path))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"Cannot use {self.directory} for checkpoints: {error}.") from error
        if earlier:
            raise CheckpointError(
                f"{self.directory} holds checkpoints written by an earlier gpzoo, {', '.join(earlier[:_MOST_NAMED])}, "
                "which this one cannot read. Finish the training with the gpzoo that began it, or use another folder."
            )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder while the block runs, and remove files that killed writes have left in it.

        Only the process that writes does so.

        Raises:
            CheckpointError: in every process, if another training holds the folder or it cannot be used.
        """
        with ExitStack() as held:
            refused: CheckpointError | None = None
            try:
                if self.placement.first:
                    held.enter_context(files.alone_in(self.directory))
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

    def save(self, step: int, seconds: float, losses: Float[np.ndarray, "*K steps"], state: Any) -> bool:
        """Write the state after ``step`` steps; the two before it stay until this one is complete.

        Later ones are removed, since a failed training goes back to an earlier step. If the disk is full or gone, a
        warning is given and training continues.

        Returns:
            Whether the state after this step is on disk.
        """
        if self._good[-1:] == [step] or not self.placement.first:
            return True
        arrays = {"losses": losses} | _named(state)
        description = {"step": step, "seconds": seconds, "settings": self.settings}
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            files.write(self._path(step), description, arrays, _UNFINISHED)
        except OSError as error:
            warnings.warn(
                f"No checkpoint was written to {self.directory} at step {step}: {error}. Training goes on; free some "
                "space or interrupt it.",
                RuntimeWarning,
                stacklevel=2,
            )
            return False
        self._good = [*(before for before in self._good if before < step), step][-2:]
        for path in self._paths():
            if path.stem.isdecimal() and path not in map(self._path, self._good):
                with suppress(OSError):
                    path.unlink()
        return True

    def restore(self, template: Any) -> Restored | None:
        """The newest undamaged checkpoint, its state in the structure of ``template``; ``None`` without checkpoints.

        If a checkpoint is damaged, a warning names it and the one before it is used.

        Raises:
            CheckpointError: if all are damaged, with the damage; or if the newest undamaged one belongs to a training
                with other settings or shapes.
            ValueError: if it is not the same in all processes.
        """
        found, damaged = None, []
        for path in self._paths():
            try:
                found = _read(path)
                break
            except (OSError, ValueError) as error:
                damaged.append(f"{path.name}: {error}")
        if found is None and damaged:
            raise CheckpointError(
                f"No checkpoint in {self.directory} can be used: {'; '.join(damaged)}. Put back a copy, or delete the "
                "folder to start again."
            )
        if found is not None:
            self._compare(found[0], template)
        step = -1 if found is None else found[0]["step"]
        if self.placement.agreed(step, -step) != (step, -step):
            raise ValueError(
                f"Not all processes see the same checkpoints in {self.directory}, this one "
                f"{'none' if found is None else f'that of step {step}'}: use a folder that all processes share."
            )
        if found is None:
            return None
        if damaged:
            warnings.warn(
                f"Damaged in {self.directory}: {'; '.join(damaged)}. Training goes on from step {step} instead.",
                RuntimeWarning,
                stacklevel=2,
            )
        self._good, (description, arrays) = [step], found
        # Copies: steps donate their input, and the arrays that were read share the file's bytes.
        state = jax.tree_util.tree_map_with_path(
            lambda path, x: files.on_device(arrays[_name(path)], random.key_impl(x) if files.is_key(x) else None),
            template,
        )
        return Restored(step, description["seconds"], arrays["losses"], state)

    def _compare(self, description: dict[str, Any], template: Any) -> None:
        """Raise CheckpointError unless the description is of this training."""
        stored = {name: f"{dtype}{shape}" for name, dtype, shape, _ in description["arrays"] if name != "losses"}
        here = self.settings | {name: f"{x.dtype}{list(x.shape)}" for name, x in _named(template).items()}
        there = description["settings"] | stored
        # Compared as text, because NaN is not equal to itself.
        here, there = ({name: json.dumps(value) for name, value in both.items()} for both in (here, there))
        different = [
            f"{name} is {here.get(name, _ABSENT)} here and {there.get(name, _ABSENT)} there"
            for name in here | there
            if here.get(name) != there.get(name)
        ]
        if different:
            more = f"; and {len(different) - _MOST_NAMED} more" if len(different) > _MOST_NAMED else ""
            raise CheckpointError(
                f"The checkpoint in {self.directory} is of another training: {'; '.join(different[:_MOST_NAMED])}"
                f"{more}. Continue with the same settings, or use another directory."
            )

    def _path(self, step: int) -> Path:
        return self.directory / f"{step}{_SUFFIX}"

    def _paths(self) -> list[Path]:
        """Files of checkpoints, the newest first; files that are not named after a step come last."""
        of_step = {path: int(path.stem) if path.stem.isdecimal() else -1 for path in self.directory.glob(f"*{_SUFFIX}")}
        return sorted(of_step, key=of_step.__getitem__, reverse=True)


def _of_orbax(path: Path) -> bool:
    return (path / "_CHECKPOINT_METADATA").exists() or ".orbax-checkpoint-tmp" in path.name


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Description and arrays, by name, of a file.

    Raises:
        OSError: if it cannot be read.
        ValueError: naming the damaged parts, if there are any.
    """
    description, arrays = files.read(path)
    if path.name != f"{description['step']}{_SUFFIX}":
        raise ValueError(f"it is of step {description['step']}, which its name must say; rename it back")
    return description, arrays


def _named(state: Any) -> dict[str, np.ndarray]:
    """The arrays of a state by their paths, in its order."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {_name(path): files.numbers(x) for path, x in leaves}


def _name(path: tuple) -> str:
    return f"state{keystr(path)}"
