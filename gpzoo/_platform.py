"""Choices that depend on the backend, each with its reason from measurements.

Times are for two cores unless a line says otherwise. Nothing was compared on a GPU; gpzoo takes the plain way there.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import jax
from jax import lax
from jax._src import xla_bridge
from jax.core import Tracer


def _on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def inputs_at_a_time(num_inputs: int) -> int:
    """Number of inputs whose marginals are computed at the same time.

    On a CPU, the projections of a thousand inputs fit into the caches. A thousand inputs at a time need less memory
    than all inputs at once, and are not slower.
    """
    return min(num_inputs, 1000) if _on_cpu() else num_inputs


def narrows(num_inputs: int, num_inducing: int) -> bool:
    """Whether marginals are cheaper with a root of the difference between the prior's covariance and ``S``.

    This is for a fixed ``q(u)`` with the covariance ``S``.
    """
    return _on_cpu() and num_inducing >= 128 and num_inputs >= 10 * num_inducing


def bytes_at_a_time() -> int:
    """Bytes of covariances between views that a sum over views has in memory at once.

    On a CPU, one large input at a time is as fast as several, and small inputs go together. An accelerator is busy only
    with many inputs at once, such as 50 digits of 576 patches each. These are 17 million covariances. With 2**28 bytes,
    a minibatch of 200 digits would fit.
    """
    return 2**18 if _on_cpu() else 2**26


def batches_products() -> bool:
    """Whether to compute many products of the same shape as one batched product, which is slow on a CPU."""
    return not _on_cpu()


def trains_members_together() -> bool:
    """Whether to run steps of several trainings at the same time. On a CPU, one step already uses all cores."""
    return not _on_cpu()


def steps_on_host(program: Any) -> bool:
    """Whether the host must run the steps of a traced loop one by one.

    On a CPU, XLA's convolutions are many times slower inside a loop than outside.
    """
    return _on_cpu() and _convolves(program)


def _convolves(program: Any) -> bool:
    holds = lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")  # noqa: E731
    for equation in getattr(program, "jaxpr", program).eqns:
        if equation.primitive is lax.conv_general_dilated_p:
            return True
        inner = [x for x in jax.tree.leaves(equation.params, is_leaf=holds) if holds(x)]
        if any(map(_convolves, inner)):
            return True
    return False


@contextmanager
def compiled_for_one_run() -> Iterator[None]:
    """A context without most of XLA's optimisations, for programs that take longer to compile than to run.

    The report of a deep GP of three layers then takes 28 s of processor time instead of 45 s. The report of a deep
    kernel takes 15 s instead of 30 s. Programs that are compiled in this context stay slower.
    """
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


#: Options for one program that takes longer to compile than to run, on a CPU. With them, it compiles in 0.6 of the time
#: and runs up to three times as long (jaxlib 0.10).
_ONE_RUN = {"xla_cpu_use_fusion_emitters": False}


@cache
def options_for_one_run() -> dict[str, Any]:
    """Options of ``jax.jit`` for one program, with the purpose of :func:`compiled_for_one_run`.

    The options are empty if the compiler does not have them.
    """
    if not _on_cpu():
        return {}
    try:
        jax.jit(lambda: 0, compiler_options=_ONE_RUN).lower().compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return _ONE_RUN


@contextmanager
def collected_later() -> Iterator[None]:
    """A context in which Python collects no garbage; the collection follows afterwards.

    A traced program is a hundred thousand objects, and almost none of them is garbage. But each collection visits all
    objects of JAX. Without collections, a training begins 0.1 s sooner.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def release_freed() -> None:
    """Return memory that the compiler has freed to the system; otherwise, glibc keeps up to 150 MB per program."""
    with suppress(OSError, AttributeError, TypeError):  # Windows, and other C libraries
        ctypes.CDLL(None).malloc_trim(0)


#: Whether JAX ran before the last fork of this process, and whether this process is such a fork.
_ran_before_fork = forked_from_jax = False


def _before_fork() -> None:
    global _ran_before_fork
    _ran_before_fork = xla_bridge.backends_are_initialized()


def _in_fork() -> None:
    global forked_from_jax
    forked_from_jax = forked_from_jax or _ran_before_fork


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before_fork, after_in_child=_in_fork)


def refuse_fork(name: str) -> None:
    """Refuse a call in a forked process. The call would wait for ever, because a fork does not have JAX's threads.

    Args:
        name: name of the called function.

    Raises:
        RuntimeError: in a process that was forked after JAX had run.
    """
    if forked_from_jax:
        raise RuntimeError(
            f"{name} was called in a process that was forked after JAX had run: JAX's threads are lost in a fork, so "
            "that the call would never end. Start processes by multiprocessing.get_context('spawn') or 'forkserver' "
            "and load the saved model in each, or fork before anything runs on JAX."
        )


def is_traced() -> bool:
    """Whether JAX is tracing a function, as under ``jax.jit``. Arrays then have no numbers yet."""
    return isinstance(jax.device_put(0.0), Tracer)
