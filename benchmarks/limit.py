"""What is the least that a training step can take on this machine? Its arithmetic at the rates measured here.

Counted is what no way of computing can leave out, value and gradient: products of triangular or symmetric matrices by
half, every exponential once, and one pass of Adam over memory. For ``M`` inducing variables, ``B`` rows of ``P``
patches with ``E`` columns and ``K`` outputs with a full root each, in floating-point operations (a product of ``m x
k`` by ``k x n`` is ``2 m k n``):

* covariances ``Kuu`` and ``Kuf``: ``M^2 E + 2 B P M E``, and twice that again for inducing inputs and, where inputs are
  draws of a layer below, for these; with ``pairs`` of patches ``B P^2 E`` more;
* the root of ``Kuu``, its inverse, and their derivative: ``M^3``;
* ``A = L^-1 Kuf`` and its derivatives by both: ``3 M^2 B``;
* variances, for each output, by the root of ``S``: ``3 M^2 B``, or by ``S``: ``M^3 + 4 M^2 B``, whichever is less;
* means and their derivatives: ``6 M B K``.

Each kind of product has the rate of its shape, the better one of NumPy's and JAX's; the root has that of LAPACK or a
third of the best product, the better one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np


def layer(
    inducing: int, rows: int, columns: int, outputs: int = 1, patches: int = 1, drawn: bool = False, pairs: bool = False
) -> dict[str, Any]:
    """A GP layer of a case: see above; ``drawn`` inputs are those of a layer below."""
    return {"M": inducing, "B": rows, "E": columns, "K": outputs, "P": patches, "drawn": drawn, "pairs": pairs}


def least(layers: Sequence[Mapping[str, Any]], dtype: str) -> dict[str, float]:
    """Seconds of a step, and billions of operations and millions of exponentials in it."""
    seconds = operations = exponentials = 0.0
    for of in layers:
        M, B, E, K, P = (of[name] for name in "MBEKP")
        covariances = (
            3 * M * M * E + 2 * B * P * M * E * (3 if of["drawn"] else 2) + (B * P * P * E if of["pairs"] else 0)
        )
        variances = min(3 * M * M * B * K, (M**3 + 4 * M * M * B) * K)
        others = 3 * M * M * B + variances + 6 * M * B * K
        entries = M * M / 2 + B * P * M + (B * P * P / 2 if of["pairs"] else 0)
        best = max(product(1024, 1024, 1024, dtype), product(B, M, M * K, dtype))
        seconds += covariances / max(product(B * P, E, M, dtype), product(M, E, B * P, dtype)) + others / best
        seconds += M**3 / max(root(M, dtype), product(1024, 1024, 1024, dtype) / 3)
        seconds += entries / exponential(dtype) + 7 * K * M * M / 2 / numbers(dtype)
        operations, exponentials = operations + covariances + others + M**3, exponentials + entries
    return {"seconds": seconds, "gflop": operations / 1e9, "million_exponentials": exponentials / 1e6}


def _seconds(function: Callable[..., Any], *given: Any) -> float:
    import jax

    jax.block_until_ready(function(*given))
    times = []
    for _ in range(10):
        began = time.perf_counter()
        jax.block_until_ready(function(*given))
        times.append(time.perf_counter() - began)
    return min(times)


@cache
def product(m: int, k: int, n: int, dtype: str) -> float:
    """Operations a second of a product of ``m x k`` by ``k x n``."""
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    A, B = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n)))
    out = np.empty((m, n), dtype)
    with jax.enable_x64(dtype == "float64"):
        own = _seconds(jax.jit(jnp.matmul), jnp.asarray(A), jnp.asarray(B))
    return 2 * m * k * n / min(own, _seconds(lambda: np.matmul(A, B, out=out)))


@cache
def root(size: int, dtype: str) -> float:
    """Operations a second of a Cholesky factorisation."""
    import jax
    import jax.numpy as jnp

    with jax.enable_x64(dtype == "float64"):
        K = jnp.eye(size, dtype=dtype) + 0.5
        return size**3 / 3 / _seconds(jax.jit(jnp.linalg.cholesky), K)


@cache
def exponential(dtype: str) -> float:
    """Exponentials a second."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def sums(v: Any) -> Any:
        # As large an array as a cache holds, as often as memory would be read: nobody has to write exponentials there.
        return lax.fori_loop(0, 32, lambda i, total: total + jnp.exp(v - i / jnp.asarray(64, v.dtype)).sum(), v[0])

    with jax.enable_x64(dtype == "float64"):
        v = jnp.linspace(-3, 0, 2**16, dtype=dtype)
        return 32 * v.size / _seconds(jax.jit(sums), v)


@cache
def numbers(dtype: str) -> float:
    """Numbers read or written a second, of arrays that no cache holds."""
    import jax
    import jax.numpy as jnp

    with jax.enable_x64(dtype == "float64"):
        v = jnp.zeros(2**25, dtype)
        return 2 * v.size / _seconds(jax.jit(lambda v: v + 1), v)
