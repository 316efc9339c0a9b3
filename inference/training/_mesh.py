"""Placement of a training's arrays: on JAX's own device, or over a mesh that splits minibatches."""

from __future__ import annotations

import hashlib
import json
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Shaped

from gpzoo._devices import ROWS
from gpzoo.inference.programs import files


class Placement:
    """Puts arrays where a training wants them; without a mesh, where JAX puts any array.

    Under a mesh, XLA splits the compiled step by its rows. Every device evaluates the program on its part of the
    minibatch, and the gradients of shared parameters are summed over devices.

    Args:
        mesh: devices, on one axis of any name; ``None`` for JAX's own device.

    Attributes:
        number: number of devices.
        first: whether this process is the one that writes and prints.

    Raises:
        TypeError: if ``mesh`` is not a mesh.
        ValueError: for several axes, or only devices of other processes.
    """

    def __init__(self, mesh: Mesh | None) -> None:
        self.mesh: Any = None
        self.number, self.first, self.processes = 1, True, 1
        if mesh is None:
            return
        if not isinstance(mesh, Mesh):
            raise TypeError(
                "mesh must be a jax.sharding.Mesh of all devices that train, such as "
                f"jax.make_mesh((jax.device_count(),), ('data',)), or None; got {type(mesh).__name__}."
            )
        if len(mesh.axis_names) != 1:
            axes, one = dict(mesh.shape), f"jax.make_mesh(({mesh.size},), ('data',))"
            raise ValueError(f"mesh must have one axis, over which rows are split, as {one} has; got {axes}.")
        devices, here, everybody = mesh.devices.ravel(), jax.process_index(), jax.process_count()
        numbers = sorted({device.process_index for device in devices})
        self.mesh, self.number = Mesh(devices, (ROWS,), axis_types=(AxisType.Auto,)), mesh.size
        self.first, self.processes = here == numbers[0], len(numbers)
        if here not in numbers or self.processes not in (1, everybody):
            raise ValueError(
                f"mesh has devices of the processes {numbers} of {everybody}: all train together, with "
                "jax.make_mesh((jax.device_count(),), ('data',)), or each by itself, with a mesh of its own devices."
            )

    def tracing(self) -> AbstractContextManager[Any]:
        """The context in which the compiled steps are traced and called."""
        return nullcontext() if self.mesh is None else jax.set_mesh(self.mesh)

    def put_whole(self, tree: Any) -> Any:
        """Arrays that are the same in every process, whole on every device."""
        return tree if self.mesh is None else jax.tree.map(self._whole, tree)

    def _whole(self, x: Any) -> Array:
        x, sharding = jnp.asarray(x), NamedSharding(self.mesh, PartitionSpec())
        if self.processes == 1:
            return jax.device_put(x, sharding)
        if files.is_key(x):
            return random.wrap_key_data(self._whole(random.key_data(x)), impl=random.key_impl(x))
        each = [jax.device_put(x, device) for device in sharding.addressable_devices]
        return jax.make_array_from_single_device_arrays(x.shape, sharding, each)

    def rows(self, size: int) -> slice:
        """The rows of a minibatch of ``size`` that the devices of this process take."""
        if self.mesh is None:
            return slice(0, size)
        parts = NamedSharding(self.mesh, PartitionSpec(ROWS)).addressable_devices_indices_map((size,)).values()
        bounds = [part[0].indices(size)[:2] for part in parts if part is not None]
        return slice(min(start for start, _ in bounds), max(stop for _, stop in bounds))

    def put_rows(self, x: Shaped[np.ndarray, "chunk rows ..."], size: int) -> Shaped[Array, "chunk {size} ..."]:
        """Minibatches of ``size`` rows, split over the devices; ``x`` holds the part that :meth:`rows` names."""
        if self.mesh is None:
            return jax.device_put(x)
        x, first = x.astype(jax.dtypes.canonicalize_dtype(x.dtype), copy=False), self.rows(size).start
        sharding = NamedSharding(self.mesh, PartitionSpec(None, ROWS))

        def of_device(index: Any) -> np.ndarray:
            start, stop, _ = index[1].indices(size)
            return x[:, start - first : stop - first]

        return jax.make_array_from_callback((len(x), size, *x.shape[2:]), sharding, of_device)

    def here(self, tree: Any) -> Any:
        """Arrays that are whole on every device: their copy on the first device of this process."""
        return tree if self.mesh is None else jax.tree.map(lambda x: x.addressable_data(0), tree)

    def agreed(self, *numbers: float) -> tuple[float, ...]:
        """For each number, the largest value that a process has."""
        if self.processes == 1:
            return numbers
        from jax.experimental.multihost_utils import process_allgather

        return tuple(np.max(process_allgather(np.array(numbers, np.float32)), axis=0).tolist())

    def same(self, *said: Any) -> bool:
        """Whether every process has the same words and numbers."""
        digest = hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).digest()[:16]
        words = np.frombuffer(digest, np.uint16).tolist()
        both = *words, *(-x for x in words)
        return self.agreed(*both) == both


#: On JAX's own device.
HERE = Placement(None)
