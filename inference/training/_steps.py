"""The compiled steps of a training: a loop on the device, of one training or of several, and what is asked of states.

If :func:`gpzoo._platform.steps_on_host` says so, the loop of a program with convolutions is on the host instead.
"""

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
from gpzoo.inference.training._sources import Resident, Streamed
from gpzoo.inference.training.members import Members, member_of
from gpzoo.inference.training.seen_step import Watch


def one_step(svi: SVI, static: dict[str, Any], source: Resident | Streamed) -> Callable:
    """``step(state, data, arrays, feed, i)``: the update with the ``i``-th minibatch of the feed, and its loss."""

    def step(state: SVIState, data: tuple, arrays: dict, feed: Any, i: int) -> tuple[SVIState, Float[Array, ""]]:
        batch = source.of_step(data, jax.tree.map(lambda x: x[i], feed))
        # Under a mesh; else both are what they were.
        state, loss = svi.update(state, *_devices.split(batch), **arrays, **static)
        return _devices.everywhere(state), loss

    return step


def step_loop(step: Callable, chunk: int) -> Callable:
    """``run(state, data, arrays, feed, count)``: up to ``count`` steps, fewer if a loss is not finite.

    Returns the state, the losses, and the number of steps begun.
    """

    def run(
        state: SVIState, data: tuple, arrays: dict, feed: Any, count: int
    ) -> tuple[SVIState, Float[Array, " chunk"], Integer[Array, ""]]:
        def body(carry: tuple) -> tuple:
            i, state, values, _ = carry
            state, loss = step(state, data, arrays, feed, i)
            return i + 1, state, values.at[i].set(loss.astype(values.dtype)), jnp.isfinite(loss)

        carry = (jnp.int32(0), state, jnp.zeros(chunk), jnp.bool_(True))
        i, state, values, _ = lax.while_loop(lambda c: (c[0] < count) & c[3], body, carry)
        return state, values, i

    return run


class Steps:
    """Steps of all members at once, each with its own minibatches.

    Args:
        svi: NumPyro's object.
        members: the trainings.
        source: of their rows.
        arrays: keyword arguments of the program that are arrays, as their placement has them.
        array_axes: which of these each member has of its own.
        static: the other keyword arguments.
        state: of all members, an example.

    Attributes:
        seen: the sites of a step.
    """

    def __init__(
        self,
        svi: SVI,
        members: Members,
        source: Resident | Streamed,
        arrays: dict[str, Any],
        array_axes: dict[str, bool] | None,
        static: dict[str, Any],
        state: SVIState,
    ) -> None:
        self.svi, self.members, self.source = svi, members, source
        self.inputs, self.axes = (source.placed, arrays), (source.axes, array_axes) if members.several else None
        # Traced once, and written out wherever it is used: in the loop, or step by step from the host.
        step = jax.jit(one_step(svi, static, source), inline=True)
        self.one = step_loop(step, source.chunk)
        self.all = jax.jit(self._all_members if members.several else self.one, donate_argnums=0)
        self.step = jax.jit(lambda *inputs: step(*inputs), donate_argnums=0)
        self.in_range = jax.jit(self._in_range)
        self.copy = jax.jit(lambda state: jax.tree.map(jnp.copy, state))
        with Watch() as self.seen, source.placement.tracing():
            self.on_host = _platform.steps_on_host(self.all.trace(*self.example(state)).jaxpr)

    def example(self, state: SVIState) -> tuple:
        """Arguments of the compiled loop."""
        return state, *self.inputs, self.source.feed(0, 1), np.zeros(self.members.shape, np.int32)

    def lowered(self, state: SVIState) -> Any:
        """The compiled loop before it is compiled, without its devices, since a training may go on on others."""
        return self.all.lower(*jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), self.example(state)))

    def take(
        self, state: SVIState, feed: Any, counts: Integer[np.ndarray, " K"]
    ) -> tuple[SVIState, Float[Array | np.ndarray, "*K chunk"], Integer[Array | np.ndarray, "*K"]]:
        """Let each member take its number of steps, from a state that is given up; the device still computes them.

        Returns:
            The state, the losses, and how many steps each member has begun: one whose loss is not finite is its last.
        """
        with self.source.placement.tracing():
            if self.on_host:
                return self._from_host(state, feed, counts)
            return self.all(state, *self.inputs, feed, counts.astype(np.int32).reshape(self.members.shape))

    def _from_host(
        self, states: SVIState, feed: Any, counts: Integer[np.ndarray, " K"]
    ) -> tuple[SVIState, Float[np.ndarray, "K chunk"], Integer[np.ndarray, " K"]]:
        """:meth:`take`, one by one from the host: in a loop on CPU, XLA's convolutions take many times as long."""
        values, begun, ends = np.zeros((self.members.count, self.source.chunk)), np.zeros(self.members.count, int), []
        for k in range(self.members.count):
            state, own_feed = self.members.of(k, (states, feed))
            own = member_of(self.inputs, self.axes, k)
            for i in range(int(counts[k])):
                state, loss = self.step(state, *own, own_feed, np.int32(i))
                values[k, i], begun[k] = loss, i + 1
                if not np.isfinite(values[k, i]):
                    break
            ends.append(state)
        return self.members.stacked(ends), values, begun

    def _all_members(
        self, states: SVIState, data: tuple, arrays: dict, feed: Any, counts: Integer[Array, " K"]
    ) -> tuple[SVIState, Float[Array, "K chunk"], Integer[Array, " K"]]:
        if _platform.trains_members_together():
            axes = jax.tree.map(lambda own: 0 if own else None, self.axes)
            return jax.vmap(self.one, in_axes=(0, *axes, 0, 0))(states, data, arrays, feed, counts)

        def member(own: tuple) -> tuple:
            k, state, feed, count = own
            return self.one(state, *member_of((data, arrays), self.axes, k), feed, count)

        return lax.map(member, (jnp.arange(self.members.count), states, feed, counts))

    def finite(self, state: SVIState) -> Bool[np.ndarray, " K"]:
        """Whether each member's state is finite, and its parameters inside the range of their numbers."""
        return np.asarray(self.in_range(state)).reshape(-1)

    def _in_range(self, state: SVIState) -> Bool[Array, "*K"]:
        # A positive number can be infinite or 0 where the optimiser's own number, and even the bound, are finite: there
        # is no way back from it.
        def back(state: SVIState) -> dict[str, Any]:
            # XLA would take log(exp(x)) for x.
            params = lax.optimization_barrier(self.svi.get_params(state))
            transforms = cast(Any, self.svi.constrain_fn).args[0]
            return transform_fn(transforms, params, invert=True)

        params = self.members.each(back)(state)
        return all_finite((state.optim_state, state.mutable_state, params), len(self.members.shape))


@partial(jax.jit, static_argnums=1)
def all_finite(tree: Any, leading: int) -> Bool[Array, "*K"]:
    """Whether all floating numbers are finite, over all axes but the ``leading`` ones."""
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    # Together, because a sum over each array takes longer to compile than all of them to run.
    alike: dict[Any, list[Array]] = {}
    for x in floats:
        alike.setdefault(x.dtype, []).append(x.reshape(*x.shape[:leading], -1))
    return jnp.stack([jnp.isfinite(jnp.concatenate(xs, -1)).all(-1) for xs in alike.values()]).all(0)
