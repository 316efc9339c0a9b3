"""Networks in NumPyro programs: modules of flax and equinox, pairs of functions, and image augmentation in training."""

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

#: A network of these programs: a function from inputs and a flag for training mode to features ``[N, q]``.
Network = Callable[[Array, bool], Array]


def network_of(module: Any, name: str = "network") -> Network:
    """A network for these programs from a module of a library. Its weights become a ``numpyro.param`` site.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from numpyro import handlers
        >>> from gpzoo.models import network_of
        >>> def init(key, shape):
        ...     return None, jnp.ones((4, 2))
        >>> def apply(params, x, **kwargs):
        ...     return x @ params
        >>> network = network_of((init, apply))
        >>> with handlers.seed(rng_seed=0), handlers.trace() as sites:
        ...     features = network(np.ones((5, 4), np.float32), False)
        >>> features.shape, list(sites)
        ((5, 2), ['network$params'])

    Args:
        module: a flax ``nnx`` module, a flax ``linen`` module, an equinox module, or a pair ``(init, apply)`` as in
            ``jax.example_libraries.stax``. An ``nnx`` module is in ``train()`` mode in training, otherwise in
            ``eval()`` mode. A ``linen`` module is called with ``training`` or ``train`` if it has such an argument, and
            its dropout uses the program's keys. An equinox module is mapped over the rows. Flax state, such as running
            statistics of batch normalisation, is stored, and changes only in training.
        name: prefix of the parameter ``<name>$params`` and the state ``<name>$state``.

    Raises:
        TypeError: for any other object.
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
    from flax.errors import InvalidRngError

    arguments = inspect.signature(type(module).__call__).parameters
    flag = next((argument for argument in ("training", "train") if argument in arguments), None)

    def network(X: Array, training: bool) -> Array:
        mode = {} if flag is None else {flag: training}
        shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), jnp.zeros(X.shape, X.dtype), **mode))
        state = sorted(set(shapes) - {"params"}) or None
        try:
            jax.eval_shape(lambda variables: module.apply(variables, X, mutable=state or False, **mode), shapes)
        except InvalidRngError:  # the module has dropout in this mode
            called = libraries.flax_module(name, module, X, apply_rng=["dropout"], mutable=state, **mode)
            return called(X, rngs={"dropout": numpyro.prng_key()}, **mode)
        return libraries.flax_module(name, module, X, mutable=state, **mode)(X, **mode)

    return network


def shifted_and_mirrored(network: Network, pixels: int = 4) -> Network:
    """A network that gets randomly shifted and mirrored images in training, and unchanged images otherwise.

    Residual networks are trained in this way on CIFAR-10 (He et al. 2016). Pixels from outside the image are zero. The
    random numbers come from the program, and are new for every image and step.

    Example:
        >>> import numpy as np
        >>> from numpyro import handlers
        >>> from gpzoo.models import shifted_and_mirrored
        >>> def network(images, training):
        ...     return images[:, :, 0, 0]  # the first column
        >>> moved = handlers.seed(shifted_and_mirrored(network, pixels=1), 0)
        >>> images = np.tile(np.arange(4, dtype=np.float32)[None, None, :, None], (3, 4, 1, 1))
        >>> np.array_equal(moved(images, False), images[:, :, 0, 0]), moved(images, True).shape
        (True, (3, 4))

    Args:
        network: network of images ``[N, H, W, C]``.
        pixels: the largest shift, in pixels up, down and sideways.

    Raises:
        ValueError: if ``pixels`` is not positive, or inputs are not images ``[N, H, W, C]``.
    """
    pixels = checks.positive_int("pixels", pixels)

    def augmented(X: Array, training: bool) -> Array:
        checks.must(X.ndim == 4, "Images that are moved", "be [N, H, W, C]", f"shape {X.shape}", ": reshape them")
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
