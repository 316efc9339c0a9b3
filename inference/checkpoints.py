"""Checkpoints of a training: written atomically, restored to the same bits."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import random

from gpzoo.errors import GPZooError

_ABSENT = "not given"


class CheckpointError(GPZooError, RuntimeError):
    """A checkpoint that cannot be read, or that belongs to another training."""


class Checkpoints:
    """The newest state of one training, in one directory.

    Args:
        directory: where to keep it; made if absent.
        settings: what must be the same for a training to be continued, as a flat dictionary of plain values.

    Raises:
        CheckpointError: if the directory cannot be made.
    """

    def __init__(self, directory: str | Path, settings: dict[str, Any]) -> None:
        import orbax.checkpoint as ocp

        logging.getLogger("absl").setLevel(logging.ERROR)
        self.directory, self.settings, self.ocp = Path(directory).absolute(), settings, ocp
        options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=False)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.manager = ocp.CheckpointManager(self.directory, options=options)
        except OSError as error:
            raise CheckpointError(f"Cannot use {self.directory} for checkpoints: {error}.") from error

    def save(self, step: int, tree: Any) -> None:
        """Write ``tree`` as the state after ``step`` steps; the previous one stays until this one is complete.

        A disk that is full or gone gives a warning, and training goes on.
        """
        if self.manager.latest_step() == step:
            return
        leaves = {str(i): np.asarray(_plain(leaf)) for i, leaf in enumerate(jax.tree.leaves(tree))}
        args = self.ocp.args
        try:
            self.manager.save(
                step, args=args.Composite(leaves=args.StandardSave(leaves), settings=args.JsonSave(self.settings))
            )
            self.manager.wait_until_finished()
        except (OSError, ValueError, RuntimeError) as error:
            warnings.warn(
                f"No checkpoint was written to {self.directory} at step {step}: {error}. Training goes on; free some "
                "space or interrupt it.",
                RuntimeWarning,
                stacklevel=2,
            )

    def restore(self, template: Any) -> tuple[int, Any] | None:
        """The newest step and state, in the structure of ``template``; ``None`` if there is no checkpoint.

        Raises:
            CheckpointError: if the files cannot be read, or belong to a training with other settings or shapes.
        """
        step = self.manager.latest_step()
        if step is None:
            return None
        leaves, structure = jax.tree.flatten(template)
        args = self.ocp.args
        try:
            settings = self.manager.restore(step, args=args.Composite(settings=args.JsonRestore())).settings
            names = self.settings | settings
            different = [k for k in names if self.settings.get(k, _ABSENT) != settings.get(k, _ABSENT)]
            if different:
                text = "; ".join(
                    f"{k} is {self.settings.get(k, _ABSENT)!r} here and {settings.get(k, _ABSENT)!r} there"
                    for k in different
                )
                raise CheckpointError(
                    f"The checkpoint in {self.directory} is of another training: {text}. Continue with the same "
                    "settings, or use another directory."
                )
            wanted = {str(i): np.asarray(_plain(leaf)) for i, leaf in enumerate(leaves)}
            stored = self.manager.restore(
                step, args=args.Composite(leaves=args.StandardRestore(jax.tree.map(_shape, wanted)))
            ).leaves
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"The checkpoint of step {step} in {self.directory} cannot be read: {error}. Delete the directory to "
                "start again."
            ) from error
        restored = [_like(leaf, np.asarray(stored[str(i)])) for i, leaf in enumerate(leaves)]
        return step, jax.tree.unflatten(structure, restored)

    def close(self) -> None:
        """Release the directory."""
        self.manager.close()


def _is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def _plain(x: Any) -> Any:
    return random.key_data(x) if _is_key(x) else x


def _shape(x: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _like(template: Any, value: np.ndarray) -> jax.Array:
    if _is_key(template):
        return random.wrap_key_data(value, impl=random.key_impl(template))
    return jax.numpy.asarray(value)
