"""Choices that depend on the backend, each with the reason that measurements gave for it.

Times are those of two cores unless a line says otherwise. On a GPU nothing here was compared: the plain way is taken.
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
    """Inputs whose marginals are computed at a time.

    On CPU the projections of a thousand stay in the caches: less memory than all at once, and no slower.
    """
    return min(num_inputs, 1000) if _on_cpu() else num_inputs


def narrows(num_inputs: int, num_inducing: int) -> bool:
    """Whether marginals at known ``q(u)`` are cheaper once the root of what it takes off the prior is known."""
    return _on_cpu() and num_inducing >= 128 and num_inputs >= 10 * num_inducing


def bytes_at_a_time() -> int:
    """Bytes of covariances between views that a sum over views holds at once.

    On a CPU one large input at a time is as fast as several, and small ones go together. An accelerator needs many at
    once to be busy: 50 digits of 576 patches, which are 17 million covariances; 2**28 would hold a minibatch of 200.
    """
    return 2**18 if _on_cpu() else 2**26


def batches_products() -> bool:
    """Whether many products of the same shape are one batched product; XLA on CPU is slow at these."""
    return not _on_cpu()


def trains_members_together() -> bool:
    """Whether several trainings take a step at once; on CPU, where one step fills the cores, they take turns."""
    return not _on_cpu()


def steps_on_host(program: Any) -> bool:
    """Whether a traced loop of steps must be stepped from the host.

    In a loop XLA on CPU takes many times as long for convolutions as outside one.
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
    """Most of XLA's optimisations are left out, for programs that take longer to compile than to run.

    The report of a deep GP of three layers takes 28 s of a processor in place of 45 s, that of a deep kernel 15 in
    place of 30. Programs that are compiled here stay slower.
    """
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


#: Options of one program that takes longer to compile than to run, on a CPU. It compiles in 0.6 of the time and runs
#: up to three times as long (jaxlib 0.10).
_ONE_RUN = {"xla_cpu_use_fusion_emitters": False}


@cache
def options_for_one_run() -> dict[str, Any]:
    """Options of ``jax.jit`` as :func:`compiled_for_one_run`, for one program; none where the compiler has others."""
    if not _on_cpu():
        return {}
    try:
        jax.jit(lambda: 0, compiler_options=_ONE_RUN).lower().compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return _ONE_RUN


@contextmanager
def collected_later() -> Iterator[None]:
    """Python's garbage is collected afterwards.

    A traced program is a hundred thousand objects, of which hardly one is garbage, and each collection goes through
    all of JAX's: without any a training begins 0.1 s sooner.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def release_freed() -> None:
    """Give memory that a compiler has freed back to the system: glibc keeps it, up to 150 MB for a program."""
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
    """Refuse a call that would wait for ever: JAX's threads stay in the parent, and a fork has none.

    Args:
        name: of the function that was called.

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
    """Whether JAX is tracing a function, under ``jax.jit``: its arrays have no numbers yet."""
    return isinstance(jax.device_put(0.0), Tracer)
