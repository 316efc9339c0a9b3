"""The step of a training, a pure function, and the compiled loop that takes many of them on the device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Integer
from numpyro.infer import SVI
from numpyro.infer.svi import SVIState
from numpyro.infer.util import transform_fn

from gpzoo import _devices, _platform
from gpzoo.inference.training.replicates import arguments_of
from gpzoo.inference.training.setup import Setup
from gpzoo.inference.training.sources import Source
from gpzoo.inference.training.step_trace import StepTrace

#: Size of an array up to which it is joined with others.
_COPIED = 10_000


def make_step(svi: SVI, static: dict[str, Any]) -> Callable:
    """Make ``step(state, batch, arrays)``: the state after one update by a minibatch, and the loss before it.

    Args:
        svi: NumPyro's object.
        static: keyword arguments of the program that are not arrays.
    """

    def step(state: SVIState, batch: tuple, arrays: dict[str, Any]) -> tuple[SVIState, Float[Array, ""]]:
        # Under a mesh, rows are split over devices, and the state is whole on each. Without one, both stay unchanged.
        state, loss = svi.update(state, *_devices.split(batch), **arrays, **static)
        return _devices.everywhere(state), loss

    return step


def make_step_from_feed(step: Callable, source: Source) -> Callable:
    """Make ``step(state, data, arrays, feed, i)``: the step with minibatch ``i`` of ``source.make_feed``."""

    def step_from_feed(state: SVIState, data: tuple, arrays: dict, feed: Any, i: int) -> tuple[SVIState, Array]:
        batch = source.minibatch(data, jax.tree.map(lambda x: x[i], feed))
        return step(state, batch, arrays)

    return step_from_feed


def make_loop(step: Callable, chunk: int) -> Callable:
    """Make ``loop(state, data, arrays, feed, first, end)``: steps of a feed, up to the first loss that is not finite.

    It returns the state, the losses ``[chunk]``, and the end of the started steps.
    """

    def loop(
        state: SVIState, data: tuple, arrays: dict, feed: Any, first: int, end: int
    ) -> tuple[SVIState, Float[Array, " chunk"], Integer[Array, ""]]:
        def body(carry: tuple) -> tuple:
            i, state, losses, _ = carry
            state, loss = step(state, data, arrays, feed, i)
            return i + 1, state, losses.at[i].set(loss.astype(losses.dtype)), jnp.isfinite(loss)

        carry = (jnp.int32(first), state, jnp.zeros(chunk), jnp.bool_(True))
        i, state, losses, _ = lax.while_loop(lambda c: (c[0] < end) & c[3], body, carry)
        return state, losses, i

    return loop


class Steps:
    """The compiled steps of all replicates at once, each with its own minibatches.

    If :func:`gpzoo._platform.steps_on_host` says so, the loop of a program with convolutions is on the host.

    Args:
        setup: set-up of the training.
        state: an example of NumPyro's state of all replicates.

    Attributes:
        step: one step of one replicate, which is called if steps are taken from the host.
        loop: the steps of one replicate, in Python.
        loop_of_all: the steps of all replicates, compiled.
        steps_from_host: whether steps are taken one by one from the host.
        trace: the sites of a step.
    """

    def __init__(self, setup: Setup, state: SVIState) -> None:
        self.setup, self.replicates, self.source = setup, setup.replicates, setup.source
        self.inputs = self.source.on_devices, setup.arrays
        self.axes = (self.source.axes, setup.array_axes) if self.replicates.several else None
        # Traced once, and written out at every use: in the loop, or step by step from the host.
        step = jax.jit(make_step_from_feed(make_step(setup.svi, setup.static), self.source), inline=True)
        self.loop = make_loop(step, self.source.chunk)
        self.loop_of_all = jax.jit(self._loop_of_all if self.replicates.several else self.loop)
        self.step = jax.jit(lambda *inputs: step(*inputs))
        self.in_range = jax.jit(self._in_range)
        with StepTrace() as self.trace, self.source.placement.tracing():
            self.steps_from_host = _platform.steps_on_host(self.loop_of_all.trace(*self.example(state)).jaxpr)

    def example(self, state: SVIState) -> tuple:
        """Arguments of the compiled loop."""
        none = np.zeros(self.replicates.shape, np.int32)
        return state, *self.inputs, self.source.make_feed(0, 1), none, none

    def compile(self, state: SVIState, feed: Any) -> None:
        """Compile the loop without taking a step.

        If steps are taken from the host, this compiles nothing; the first step does.
        """
        if feed is not None:
            jax.block_until_ready(self.take(state, feed, np.zeros(self.replicates.count, int))[0])

    def take(
        self, state: SVIState, feed: Any, ends: Integer[np.ndarray, " K"], first: int = 0
    ) -> tuple[SVIState, Float[Array | np.ndarray, "*K chunk"], Integer[Array | np.ndarray, "*K"]]:
        """Let each replicate take its steps of a feed, while the host goes on.

        Args:
            state: NumPyro's state.
            feed: row numbers or rows of the minibatches of these steps, made by ``Source.make_feed``.
            ends: the number of the step of the feed at which each replicate ends.
            first: the number of the step at which all replicates begin.

        Returns:
            Three values: the state after the steps; the losses, by number of the step; and for each replicate, the
            number that follows the number of its last step. A replicate takes no step after a loss that is not finite.
        """
        with self.source.placement.tracing():
            if self.steps_from_host:
                return self._from_host(state, feed, ends, first)
            ends = ends.astype(np.int32).reshape(self.replicates.shape)
            return self.loop_of_all(state, *self.inputs, feed, np.full_like(ends, first), ends)

    def _from_host(
        self, states: SVIState, feed: Any, ends: Integer[np.ndarray, " K"], first: int
    ) -> tuple[SVIState, Float[np.ndarray, "K chunk"], Integer[np.ndarray, " K"]]:
        """:meth:`take`, one by one from the host: in a loop on CPU, XLA's convolutions take many times as long."""
        losses, begun = np.zeros((self.replicates.count, self.source.chunk)), np.zeros(self.replicates.count, int)
        after = []
        for k in range(self.replicates.count):
            state, own_feed = self.replicates.of(k, (states, feed))
            inputs = arguments_of(self.inputs, self.axes, k)
            for i in range(first, int(ends[k])):
                state, loss = self.step(state, *inputs, own_feed, np.int32(i))
                losses[k, i], begun[k] = loss, i + 1
                if not np.isfinite(losses[k, i]):
                    break
            after.append(state)
        return self.replicates.stacked(after), losses, begun

    def _loop_of_all(
        self, states: SVIState, data: tuple, arrays: dict, feed: Any, first: Any, ends: Integer[Array, " K"]
    ) -> tuple[SVIState, Float[Array, "K chunk"], Integer[Array, " K"]]:
        if _platform.trains_members_together():
            axes = jax.tree.map(lambda own: 0 if own else None, self.axes)
            return jax.vmap(self.loop, in_axes=(0, *axes, 0, 0, 0))(states, data, arrays, feed, first, ends)

        def one(own: tuple) -> tuple:
            k, state, *rest = own
            return self.loop(state, *arguments_of((data, arrays), self.axes, k), *rest)

        return lax.map(one, (jnp.arange(self.replicates.count), states, feed, first, ends))

    def finite(self, state: SVIState) -> Bool[np.ndarray, " K"]:
        """Whether each replicate's state is finite, and no positive parameter has been rounded to 0 or infinity."""
        return np.asarray(self.in_range(state)).reshape(-1)

    def _in_range(self, state: SVIState) -> Bool[Array, "*K"]:
        # A positive number can be infinite or 0 while the optimiser's own number, and even the bound, are finite. There
        # is no way back from it.
        def back(state: SVIState) -> dict[str, Any]:
            # Without the barrier, XLA would simplify log(exp(x)) to x.
            params = lax.optimization_barrier(self.setup.svi.get_params(state))
            transforms = cast(Any, self.setup.svi.constrain_fn).args[0]
            return transform_fn(transforms, params, invert=True)

        params = self.replicates.each(back)(state)
        return finite_numbers((state.optim_state, state.mutable_state, params), len(self.replicates.shape))


@partial(jax.jit, static_argnums=1)
def finite_numbers(tree: Any, leading: int) -> Bool[Array, "*K"]:
    """Whether all floating numbers are finite, over all axes but the ``leading`` ones."""
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    # Small arrays are joined, because a sum over each takes longer to compile than all of them to run. Large arrays are
    # not joined, which would copy them. Zero times a number that is not finite is NaN, and no sum of zeros overflows.
    parts: list[Array] = []
    alike: dict[Any, list[Array]] = {}
    for x in floats:
        flat = x.reshape(*x.shape[:leading], -1)
        (parts if x.size > _COPIED else alike.setdefault(x.dtype, [])).append(flat)
    parts += [jnp.concatenate(small, -1) for small in alike.values()]
    return jnp.stack([jnp.isfinite(jnp.sum(0 * x, axis=-1)) for x in parts]).all(0)
