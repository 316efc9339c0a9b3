"""Devices of a script: all devices of this machine, or of every process of a cluster's job."""

from __future__ import annotations

import os
import sys
import traceback
from types import TracebackType
from typing import Any

import jax
from jax.sharding import AxisType, Mesh

#: Number of this process and of all processes, ``"0/2"``, as :mod:`gpzoo.inference.launch` sets it.
PROCESS = "GPZOO_PROCESS"

#: A process ends after so many seconds without a signal from another process. At the end, processes wait so many
#: seconds for each other, because the first process may still evaluate the trained model.
_SILENCE, _WAIT = 30, 7 * 24 * 3600


def all_devices() -> Mesh:
    """A mesh of all devices for :func:`~gpzoo.inference.fit`: of one device, of several, or of a whole cluster.

    If there are several processes, the function first joins them. It finds processes that
    :mod:`gpzoo.inference.launch` has started. ``jax.distributed`` finds processes of Slurm, Open MPI or Kubernetes.
    Call the function before you use anything else of JAX, random keys included. If a joined process fails with an
    error, it ends at once, without waiting for the other processes.

    Example:
        >>> from gpzoo.inference import all_devices
        >>> all_devices().axis_names
        ('data',)

    Returns:
        The mesh, with one axis, ``"data"``, and the devices of each process side by side.

    Raises:
        RuntimeError: if there are several processes and JAX has been used before.
    """
    if not jax.distributed.is_initialized():
        _join()
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    return Mesh(devices, ("data",), axis_types=(AxisType.Auto,))


def _join() -> None:
    options: dict[str, Any] = {"heartbeat_timeout_seconds": _SILENCE, "shutdown_timeout_seconds": _WAIT}
    if named := os.environ.get(PROCESS):
        number, _, count = named.partition("/")
        options |= {"num_processes": int(count), "process_id": int(number)}
    try:
        jax.distributed.initialize(**options)
    except ValueError as error:
        if "coordinator_address" not in str(error):
            raise
        return  # no cluster
    except RuntimeError as error:
        if _is_alone():
            return
        raise RuntimeError(
            "This is one of several processes, and JAX has been used before they were joined: call all_devices() "
            "before anything else of JAX, random keys and arrays included."
        ) from error
    if jax.process_count() > 1:
        sys.excepthook = _end


def _is_alone() -> bool:
    """Whether no launcher has set an environment variable of several processes."""
    named = os.environ.get
    sizes = (named(name, "1") for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"))
    others = (PROCESS, "JAX_COORDINATOR_ADDRESS", "JOB_COMPLETION_INDEX")
    return all(size == "1" for size in sizes) and not any(named(name) for name in others)


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show an error and end: JAX would wait for other processes, and these wait for the next step of this process."""
    traceback.print_exception(kind, error, trace)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
