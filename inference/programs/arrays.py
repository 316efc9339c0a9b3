"""Arguments that are arrays, which are passed to a compiled program; the other arguments are part of it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def is_arrays(value: Any) -> bool:
    """Whether an argument consists of arrays only, which are passed to the compiled program and not built into it."""
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves)


def split_arrays(arguments: dict) -> tuple[dict, dict]:
    """Arguments that are arrays, for the device, and all other arguments, which are part of the compiled program."""
    arrays = {name: jax.tree.map(jnp.asarray, value) for name, value in arguments.items() if is_arrays(value)}
    return arrays, {name: value for name, value in arguments.items() if name not in arrays}
