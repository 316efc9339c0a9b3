"""How does each library take steps? The same minibatches in size, one gradient a step for all parameters, Adam.

Ours are those of ``fit``, as users call it, with its shuffling, its checks and its visits of the host. GPJax's and
TensorFlow's are those of one compiled loop that draws rows with replacement. GPyTorch is eager, as its users run it.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from peer import Timed


def by_fit(
    svi: Any,
    params: Mapping[str, Any],
    X: Any,
    y: Any,
    *,
    batch: int,
    block: int,
    draws: int = 1,
    natural: float | None = None,
    **options: Any,
) -> Timed:
    """Ours: one call of ``fit`` in a thread, whose callback after every ``block`` steps waits for the next order."""
    import jax
    import jax.numpy as jnp

    from gpzoo.inference import fit

    options |= {"num_data": len(X)}

    def loss(key: Any, params: Any, X: Any, y: Any) -> Any:
        return svi.loss.loss(key, params, svi.model, svi.guide, X, y, **options)

    value = jax.jit(loss)
    keys = jax.random.split(jax.random.key(0), draws)
    bound = -np.mean([float(value(key, params, X[:batch], y[:batch])) for key in keys])
    orders: queue.Queue[int] = queue.Queue()
    answers: queue.Queue[Any] = queue.Queue()
    left = 2  # which compile, and fill what is kept

    def callback(step: int, seconds: float, params: dict[str, Any]) -> None:
        nonlocal left
        left -= 1
        if not left:
            answers.put(float(jnp.sum(next(iter(params.values())))))
            left = orders.get()

    def train() -> None:
        settings: dict[str, Any] = {"batch_size": batch if batch < len(X) else None, "natural": natural}
        settings |= {"model_kwargs": options, "init_params": params, "progress": False, "callback": callback}
        try:
            fit(jax.random.key(0), svi, 500 * block, X, y, callback_steps=block, **settings)
        except BaseException as error:
            answers.put(error)

    threading.Thread(target=train, daemon=True).start()

    def answer() -> None:
        found = answers.get()
        if isinstance(found, BaseException):
            raise found
        if not math.isfinite(found):
            raise FloatingPointError("Parameters are not finite: what was timed is no training.")

    def seconds(count: int) -> tuple[float, float]:
        blocks = math.ceil(count / block)
        began, busy = time.perf_counter(), time.process_time()
        orders.put(blocks)
        answer()
        passed, busy = time.perf_counter() - began, time.process_time() - busy
        return passed / (blocks * block), busy / (blocks * block)

    answer()
    return Timed(seconds, versions_of("jax", "numpyro"), float(bound))


def by_jax(loss: Callable[[Any, Any, Any], Any], params: Any, X: Any, y: Any, *, batch: int, versions: str) -> Timed:
    """Of a loss of parameters and a minibatch, in one compiled loop."""
    import jax
    import jax.numpy as jnp
    import optax

    X, y, adam = jnp.asarray(X), jnp.asarray(y), optax.adam(0.01)
    bound = -float(jax.jit(loss)(params, X[:batch], y[:batch]))

    def steps(state: Any, count: int, X: Any, y: Any) -> Any:
        def step(i: Any, now: Any) -> Any:
            (params, moments, key), _ = now
            rows = jax.random.randint(jax.random.fold_in(key, i), (batch,), 0, len(X))
            value, gradients = jax.value_and_grad(loss)(params, X[rows], y[rows])
            updates, moments = adam.update(gradients, moments, params)
            return (optax.apply_updates(params, updates), moments, key), value

        return jax.lax.fori_loop(0, count, step, (state, jnp.zeros((), X.dtype)))

    return _stateful(jax.jit(steps), (params, adam.init(params), jax.random.key(1)), (X, y), versions, bound)


def values_by_jax(value: Callable[..., Any], params: Any, *data: Any, versions: str) -> Timed:
    """Values and gradients of a function of parameters, which move, so that none can be left out of the loop."""
    import jax
    import jax.numpy as jnp

    data = tuple(map(jnp.asarray, data))

    def steps(params: Any, count: int, *data: Any) -> Any:
        def step(i: Any, now: Any) -> Any:
            found, slope = jax.value_and_grad(value)(now[0], *data)
            return jax.tree.map(lambda x, g: x + 1e-9 * g, now[0], slope), found

        return jax.lax.fori_loop(0, count, step, (params, jnp.zeros((), data[0].dtype)))

    return _stateful(jax.jit(steps), params, data, versions, float(jax.jit(value)(params, *data)))


def _stateful(steps: Callable, state: Any, data: tuple, versions: str, bound: float) -> Timed:
    def run(count: int) -> float:
        nonlocal state
        state, last = steps(state, count, *data)
        return float(last)

    return Timed.loop(run, versions, bound)


def by_tensorflow(
    loss: Callable[[Any], Any],
    variables: Callable[[], Sequence[Any]],
    X: Any,
    y: Any,
    *,
    batch: int,
    versions: str,
    draws: int = 1,
    apply: Callable[[Sequence[Any], Sequence[Any]], None] | None = None,
    rate: float = 0.01,
) -> Timed:
    """Of a loss of a minibatch, in one compiled loop; ``apply`` takes gradients and variables in place of Adam."""
    import tensorflow as tf

    X, y, adam = tf.constant(X), tf.constant(y), tf.keras.optimizers.Adam(rate)
    value, first = tf.function(loss), (X[:batch], y[:batch])
    bound = -np.mean([float(value(first)) for _ in range(draws)])
    apply = apply or (lambda gradients, own: adam.apply_gradients(zip(gradients, own, strict=True)))

    @tf.function
    def steps(count: Any) -> Any:
        value = tf.zeros((), X.dtype)
        for _ in tf.range(count):
            rows = tf.random.uniform((batch,), 0, len(X), tf.int32)
            with tf.GradientTape() as tape:
                value = loss((tf.gather(X, rows), tf.gather(y, rows)))
            own = variables()
            apply(tape.gradient(value, own), own)
        return value

    return Timed.loop(lambda count: -float(steps(tf.constant(count))), versions, float(bound))


def values_by_tensorflow(value: Callable[[], Any], variables: Sequence[Any], dtype: str, versions: str) -> Timed:
    """See :func:`values_by_jax`."""
    import tensorflow as tf

    @tf.function
    def steps(count: Any) -> Any:
        found = tf.zeros((), dtype)
        for _ in tf.range(count):
            with tf.GradientTape() as tape:
                found = value()
            for variable, slope in zip(variables, tape.gradient(found, variables), strict=True):
                variable.assign_add(1e-9 * slope)
        return found

    return Timed.loop(lambda count: float(steps(tf.constant(count))), versions, float(value()))


def by_torch(
    objective: Callable[[Any, Any], Any],
    parameters: Any,
    X: Any,
    y: Any,
    *,
    batch: int,
    draws: int = 1,
    rate: float = 0.01,
) -> Timed:
    """Of an objective, which is the bound for each row of all."""
    import torch

    X, y, adam = torch.tensor(X), torch.tensor(y), torch.optim.Adam(parameters, lr=rate)
    with torch.no_grad():
        bound = len(X) * np.mean([float(objective(X[:batch], y[:batch])) for _ in range(draws)])

    def step() -> float:
        rows = torch.randint(len(X), (batch,))
        adam.zero_grad()
        loss = -objective(X[rows], y[rows])
        loss.backward()
        adam.step()
        return -len(X) * loss.item()

    return Timed.of(step, versions_of("gpytorch", "torch"), float(bound))


def values_by_torch(objective: Callable[[], Any], module: Any, rows: int) -> Timed:
    """See :func:`values_by_jax`."""
    import torch

    def step() -> float:
        module.zero_grad()
        found = rows * objective()
        found.backward()
        with torch.no_grad():
            for each in module.parameters():
                each += 1e-9 * each.grad
        return found.item()

    with torch.no_grad():
        bound = float(rows * objective())
    return Timed.of(step, versions_of("gpytorch", "torch"), bound)


def set_up_torch(dtype: str) -> None:
    """The precision of GPyTorch, of its factorisations too, which it makes in float64 otherwise."""
    import gpytorch
    import torch

    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, dtype))
    gpytorch.settings.linalg_dtypes(default=getattr(torch, dtype)).__enter__()


def set_up_tensorflow(dtype: str, jitter: float) -> None:
    """The precision and the jitter of GPflow."""
    import gpflow
    import tensorflow as tf

    gpflow.config.set_default_float(np.dtype(dtype).type)
    gpflow.config.set_default_jitter(jitter)
    tf.keras.backend.set_floatx(dtype)


def rbf_of_torch(columns: int, variance: float = 1.0, lengthscale: float = 1.0) -> Any:
    """GPyTorch's kernel with a lengthscale for each column."""
    import gpytorch

    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=columns))
    kernel.outputscale, kernel.base_kernel.lengthscale = variance, lengthscale
    return kernel


def posterior_of_gpjax(columns: int, dtype: str, noise: float) -> Any:
    """GPJax's prior with a lengthscale for each column, times its Gaussian likelihood."""
    import gpjax
    import jax
    import jax.numpy as jnp
    from data import JITTER

    jax.config.update("jax_enable_x64", dtype == "float64")
    kernel = gpjax.kernels.RBF(lengthscale=jnp.ones(columns, dtype), variance=jnp.asarray(1.0, dtype))
    prior = gpjax.gps.Prior(mean_function=gpjax.mean_functions.Zero(), kernel=kernel, jitter=JITTER[dtype])
    return prior * gpjax.likelihoods.Gaussian(obs_stddev=jnp.asarray(noise**0.5, dtype))


def versions_of(*packages: str) -> str:
    """Their versions in this environment, in words."""
    from importlib.metadata import version

    return ", ".join(f"{name} {version(name)}" for name in packages)
