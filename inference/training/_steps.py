"""The compiled step of a training, and the loop of steps on the device.

If :func:`gpzoo._platform.steps_on_host` says so, the loop of a program with convolutions is on the host instead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jax import Array, lax
from jaxtyping import Bool, Float, Integer, PRNGKeyArray
from numpyro.infer import SVI
from numpyro.infer.svi import SVIState
from numpyro.primitives import mutable

from gpzoo import _devices
from gpzoo.inference.programs.runs import Trace
from gpzoo.inference.training._sources import Resident, Streamed


def initial(svi: SVI, sites: Trace) -> Callable:
    """``init(key, values)``: the state of ``svi.init``, without running guide and program, whose sites are known.

    Args:
        svi: NumPyro's object, which is given the sites' constraints.
        sites: sites of parameters and mutable state, by name.
    """

    # Values are left out, because the training would keep them alive.
    known_sites = {name: (site["type"], site["kwargs"]) for name, site in sites.items()}

    def init(key: PRNGKeyArray, values: dict[str, Any]) -> SVIState:
        def declare() -> None:
            for name, value in values.items():
                kind, options = known_sites[name]
                if kind == "mutable":
                    mutable(name, value)
                else:
                    # A lambda, because an equinox module is callable: it would be called for its initial value.
                    numpyro.param(name, lambda key, value=value: value, **options)

        known = SVI(lambda: None, declare, svi.optim, svi.loss)
        state = known.init(key)
        svi.constrain_fn = known.constrain_fn
        return state

    return jax.jit(init)


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


@partial(jax.jit, static_argnums=1)
def all_finite(tree: Any, leading: int) -> Bool[Array, "*K"]:
    """Whether all floating numbers are finite, over all axes but the ``leading`` ones."""
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    each = [jnp.isfinite(x).all(axis=tuple(range(leading, x.ndim))) for x in floats]
    return jnp.stack(each).all(axis=0)
