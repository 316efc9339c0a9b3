"""Networks in NumPyro programs: modules of flax and equinox, pairs of functions, and images that vary in training."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jax import Array, random

from gpzoo import _checks as checks

#: What a network is in these programs: inputs, and whether it is in training, to features ``[N, q]``.
Network = Callable[[Array, bool], Array]


def network_of(module: Any, name: str = "network") -> Network:
    """A network for these programs from a module of a library, whose weights become a ``numpyro.param`` site.

    Args:
        module: a flax ``nnx`` module (in training it is in its ``train()`` mode, else in ``eval()``), a flax ``linen``
            module (called with ``training`` or ``train`` where it has such an argument), an equinox module, which is
            mapped over the rows, or a pair ``(init, apply)`` as in ``jax.example_libraries.stax``. State such as the
            running statistics of batch normalisation is kept for flax, and used frozen outside training.
        name: the parameter is ``<name>$params``, the state ``<name>$state``.

    Raises:
        TypeError: for anything else.
    """
    from numpyro.contrib import module as libraries

    if _is_pair(module):
        return lambda X, training: numpyro.module(name, module, input_shape=X.shape)(X)
    origins = [base.__module__ for base in type(module).__mro__ if base.__name__ == "Module"]
    origin = origins[0] if origins else ""
    if origin.startswith("flax.nnx"):
        modes = {training: copy.deepcopy(module) for training in (True, False)}
        modes[True].train()
        modes[False].eval()
        return lambda X, training: libraries.nnx_module(name, modes[training])(X)
    if origin.startswith("flax.linen"):
        return _linen(libraries, module, name)
    if origin.startswith("equinox"):
        return lambda X, training: jax.vmap(libraries.eqx_module(name, module))(X)
    raise TypeError(
        f"network_of takes a flax or equinox module or a pair (init, apply), got {type(module).__name__}. "
        "Any function of (X, training) that declares its own parameters is a network too."
    )


def _is_pair(module: Any) -> bool:
    return isinstance(module, tuple) and len(module) == 2 and all(map(callable, module))


def _linen(libraries: Any, module: Any, name: str) -> Network:
    arguments = inspect.signature(type(module).__call__).parameters
    flag = next((argument for argument in ("training", "train") if argument in arguments), None)

    def network(X: Array, training: bool) -> Array:
        mode = {} if flag is None else {flag: training}
        shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), jnp.zeros(X.shape, X.dtype), **mode))
        state = sorted(set(shapes) - {"params"})
        return libraries.flax_module(name, module, X, mutable=state or None, **mode)(X, **mode)

    return network


def shifted_and_mirrored(network: Network, pixels: int = 4) -> Network:
    """A network that sees every image moved and perhaps mirrored at random in training, and as it is otherwise.

    As residual networks are trained on CIFAR-10 (He et al. 2016). Pixels moved in are zero; the draws come from the
    program's own random numbers, anew for every image and step.

    Args:
        network: of images ``[N, H, W, C]``.
        pixels: the farthest that an image moves, up, down and sideways.

    Raises:
        ValueError: if ``pixels`` is not positive, or inputs are not images ``[N, H, W, C]``.
    """
    pixels = checks.positive_int("pixels", pixels)

    def augmented(X: Array, training: bool) -> Array:
        if X.ndim != 4:
            raise ValueError(f"Images that are moved must be [N, H, W, C], got shape {X.shape}: reshape them.")
        if not training:
            return network(X, training)
        shift_key, mirror_key = random.split(numpyro.prng_key())
        shifts = random.randint(shift_key, (len(X), 2), 0, 2 * pixels + 1)
        mirrored = random.bernoulli(mirror_key, shape=(len(X), 1, 1, 1))
        X = jnp.where(mirrored, X[:, :, ::-1], X)
        padded = jnp.pad(X, [(0, 0), (pixels, pixels), (pixels, pixels), (0, 0)])
        moved = jax.vmap(lambda x, shift: jax.lax.dynamic_slice(x, (*shift, 0), X.shape[1:]))(padded, shifts)
        return network(moved, training)

    return augmented
