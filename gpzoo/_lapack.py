"""LAPACK under JAX on a CPU: BLAS uses one thread, and no call waits for XLA's threads.

JAX borrows SciPy's LAPACK. The two settings hold for the whole process, so they also apply to NumPyro's MCMC,
``svi.run`` and ``Predictive``. They do not change any result.
"""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import scipy
import scipy.linalg.cython_blas  # JAX borrows it. It must be loaded before its threads can be limited.
from jax import Array, lax
from jax.interpreters import mlir

#: Versions of jaxlib that split a batch of matrices over XLA's threads: the first of them, and the first after them.
SPLITTING = (0, 10), (0, 12)

#: Number of floating-point operations from which they split a batch. Below it, the calling thread does all the work.
SPLIT_FROM = 200_000

#: Largest number of calls beside each other in a program, on which XLA's threads work at the same time; and number of
#: calls in one turn of a loop, if there are more. The compiler takes a tenth of a second for each call.
SIDE_BY_SIDE, IN_A_TURN = 16, 4


def prepare() -> None:
    """Give SciPy's BLAS one thread, unless the user has set a number, and keep calls of LAPACK from waiting."""
    if "OPENBLAS_NUM_THREADS" not in os.environ:
        _one_thread()
    if SPLITTING[0] <= jaxlib.version.__version_info__[:2] < SPLITTING[1]:
        _never_wait()


def _one_thread() -> None:
    """Give SciPy's BLAS one thread, because its threads compete with XLA's threads.

    For 50 rows, a value and its gradient take 30 ms with several threads, and 0.3 ms with one. NumPy's wheels contain
    another BLAS, which keeps its threads. If NumPy and SciPy share one BLAS, as in conda, that BLAS gets one thread.
    """
    from threadpoolctl import ThreadpoolController

    found = ThreadpoolController().select(user_api="blas").lib_controllers
    home = Path(scipy.__file__).parent
    folders = home, home.with_name("scipy.libs")  # wheels for Linux and Windows have the second folder
    own = [library for library in found if any(folder in Path(library.filepath).parents for folder in folders)]
    for library in own or found:
        library.set_num_threads(1)


def _never_wait() -> None:
    """Lower every batch of matrices on a CPU to calls that the kernels of jaxlib do not split.

    A kernel that splits its batch runs on one of XLA's threads, gives the parts to XLA's threads, and waits for them.
    If there are as many such kernels as threads, they wait for ever, and two cores have only two threads. Programs for
    other devices do not change.
    """
    for primitive, entry in list(mlir._platform_specific_lowerings["cpu"].items()):
        if getattr(entry.rule, "func", entry.rule).__module__ == "jax._src.lax.linalg":
            rule = partial(_lower, primitive, entry.rule)
            mlir.register_lowering(primitive, rule, platform="cpu", inline=entry.inline)


def _lower(primitive: Any, rule: Any, ctx: Any, *operands: Any, **params: Any) -> Any:
    shapes = [aval.shape for aval in ctx.avals_in]
    axes = max(map(len, shapes)) - 2
    batch = shapes[0][:axes]
    size = math.prod(batch) if all(isinstance(n, int) for n in batch) else 1  # with an unknown size, one call
    at_once = max(1, (SPLIT_FROM - 1) // max(_operations(primitive, shapes), 1))
    if size <= at_once:
        return rule(ctx, *operands, **params)
    call = partial(primitive.bind, **params)

    def in_parts(*xs: Array) -> Any:
        flat = [x.reshape(size, *x.shape[axes:]) for x in xs]
        if size <= SIDE_BY_SIDE * at_once:
            parts = [call(*(x[i : i + at_once] for x in flat)) for i in range(0, size, at_once)]
            found = jax.tree.map(lambda *part: jnp.concatenate(part), *parts)
        else:
            found = lax.map(lambda x: call(*x), tuple(flat), batch_size=max(at_once, IN_A_TURN))
        return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), found)

    return mlir.lower_fun(in_parts, multiple_results=primitive.multiple_results)(ctx, *operands)


def _operations(primitive: Any, shapes: list[tuple[int, ...]]) -> int:
    """A number of operations for one matrix, at least the number that jaxlib counts."""
    rows = max(side for shape in shapes for side in shape[-2:])
    if primitive is lax.linalg.cholesky_p:
        return rows**3
    if primitive is lax.linalg.triangular_solve_p:
        return 3 * shapes[0][-1] * math.prod(shapes[1][-2:])
    return 15 * rows**3
