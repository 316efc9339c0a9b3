"""Views: maps from an input to the set of vectors that a base process responds to (patches, orbits, augmentations).

A view is any pytree with

* ``view(X)``: inputs ``[N, ...]`` to views ``[N, num_views, view_size]``,
* ``num_views``, ``view_size``: the two integers, and
* ``input_ndim``: the rank of one input.

Distributions of views, :class:`gpzoo.SampledView`, have ``sample(key, X)`` in the place of ``view(X)``.

A view without parameters is a pytree without leaves, as :class:`Patches` is; the arrays of one that has parameters are
its leaves, and gradients reach them through :class:`gpzoo.kernels.DoubleSum`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array, random

from gpzoo._checks import positive_int
from gpzoo._pytree import Fields


@partial(jax.tree_util.register_dataclass, data_fields=("outer", "inner"), meta_fields=())
@dataclass(frozen=True)
class Composed:
    """Views of views: the views that ``inner`` has of every view that ``outer`` has of an input, in that order.

    A convolution under an orbit, ``Composed(Orbit.of_images((28, 28), rotations=True), Patches((28, 28), (5, 5)))``,
    has the patches of all turned images. :func:`gpzoo.kernels.Invariant` makes these.

    Args:
        outer: view of inputs; its views have the shape of an input.
        inner: view of those.
    """

    outer: Any
    inner: Any

    @property
    def input_ndim(self) -> int:
        """Rank of one input."""
        return self.outer.input_ndim

    @property
    def num_views(self) -> int:
        """The product of both."""
        return self.outer.num_views * self.inner.num_views

    @property
    def view_size(self) -> int:
        """That of ``inner``."""
        return self.inner.view_size

    def view(self, X: Array) -> Array:
        """The views of inputs ``[N, ...]``: ``[N, num_views, view_size]``.

        Raises:
            ValueError: if an input has another shape than one of the views takes.
        """
        views = self.outer.view(X)
        return self.inner.view(views.reshape(-1, *X.shape[1:])).reshape(X.shape[0], -1, self.view_size)


def _sizes(name: str, sizes: Sequence[int], lengths: tuple[int, ...]) -> tuple[int, ...]:
    sizes = tuple(sizes)
    if len(sizes) not in lengths or any(int(size) != size or size < 1 for size in sizes):
        wanted = " or ".join(str(length) for length in lengths)
        raise ValueError(f"{name} must be {wanted} positive whole numbers, got {sizes}.")
    return tuple(int(size) for size in sizes)


class SampledView(Fields):
    """A distribution of views of an input (learning invariances, eq. 8).

    A subclass says what the randomness of one view is, free of parameters, and what it does to an input:
    :meth:`noise` and :meth:`transform`. It lists its arrays in ``data_fields``, and in ``static_fields`` what it has
    besides ``SampledView.static_fields``::

        class Jitter(SampledView):
            data_fields = ("scale",)

            def __init__(self, scale):
                super().__init__((3,))
                self.scale = scale

            def noise(self, key, num_views):
                return random.normal(key, (num_views, 3))

            def transform(self, x, noise):
                return x + self.scale * noise

    Inducing variables live in the space of one view, flattened, whether inputs are images or vectors:
    ``unique_patches(100)`` starts them at views of the data, ``InducingPatches(Z)`` with ``Z [M, view_size]`` where one
    likes. Views that are given rather than drawn, such as those of a data file, come from a subclass that overrides
    :meth:`sample` and returns them.

    Args:
        input_shape: shape of one input, and of one view before it is flattened.
        num_views: views per input and step in training, ``S``.
        num_fixed: views in prediction.

    Raises:
        ValueError: for counts below one, or fewer than two views in training.
    """

    static_fields: ClassVar[tuple[str, ...]] = ("num_views", "num_fixed", "input_shape")

    #: How many views an input has in all, if :meth:`noise` draws them without replacement; else infinite.
    orbit_size: float = math.inf

    def __init__(self, input_shape: Sequence[int], num_views: int = 16, num_fixed: int = 64) -> None:
        self.input_shape = tuple(input_shape)
        self.num_views = positive_int("num_views", num_views)
        self.num_fixed = positive_int("num_fixed", num_fixed)
        if self.num_views < 2 <= self.orbit_size:
            raise ValueError("num_views must be at least 2: an unbiased estimate of a square needs two views.")

    # -- what a subclass writes --------------------------------------------------------------------------------------

    def noise(self, key: Array, num_views: int) -> Any:
        """The randomness of ``num_views`` views of one input, a pytree with a leading axis of views."""
        raise NotImplementedError

    def transform(self, x: Array, noise: Any) -> Array:
        """One view of one input ``x``, whose shape it has."""
        raise NotImplementedError

    # -- what everyone calls -----------------------------------------------------------------------------------------

    @property
    def input_ndim(self) -> int:
        """Rank of one input."""
        return len(self.input_shape)

    @property
    def view_size(self) -> int:
        """Numbers per view."""
        return math.prod(self.input_shape)

    def sample(self, key: Array, X: Array) -> Array:
        """Views of inputs ``[N, ...]``, each input's own: ``[N, num_views, view_size]``.

        Raises:
            ValueError: if an input has another shape.
        """
        self._check(X)
        noise = jax.vmap(lambda key: self.noise(key, self.num_views))(random.split(key, X.shape[0]))
        return self._views(X, noise, (0, 0))

    def fixed(self, key: Array, num_views: int | None = None) -> FixedViews:
        """A view with ``num_views`` (or ``num_fixed``) transformations drawn now, the same for every input.

        Raises:
            ValueError: for no views, or more than there are.
        """
        num_views = self.num_fixed if num_views is None else positive_int("num_views", num_views)
        if num_views > self.orbit_size:
            raise ValueError(f"num_views is {num_views}, but there are {self.orbit_size} views.")
        return FixedViews(self, self.noise(key, num_views))

    def _views(self, X: Array, noise: Any, axes: tuple) -> Array:
        of_input = jax.vmap(self.transform, in_axes=(None, 0))
        views = jax.vmap(of_input, in_axes=axes)(X, noise)
        if views.shape[2:] != self.input_shape:
            raise ValueError(
                f"{type(self).__name__}.transform must return one view of the input's shape {self.input_shape}, got "
                f"{views.shape[2:]}."
            )
        return views.reshape(*views.shape[:2], self.view_size)

    def _check(self, X: Array) -> None:
        if jnp.ndim(X) == self.input_ndim + 2:
            raise ValueError(f"Sampled views take the same X for all outputs, got one per output: {jnp.shape(X)}.")
        if tuple(jnp.shape(X)[1:]) != self.input_shape:
            hint = " Images of one channel need their last axis too: X[..., None]." if self.input_ndim == 3 else ""
            raise ValueError(
                f"X must be inputs [N, ...] of shape {self.input_shape}, got shape {tuple(jnp.shape(X))}.{hint}"
            )


class FixedViews(Fields):
    """The views of a :class:`SampledView` under given transformations, which every input shares."""

    data_fields = ("sampled", "noise")

    def __init__(self, sampled: SampledView, noise: Any) -> None:
        self.sampled, self.noise = sampled, noise

    @property
    def input_ndim(self) -> int:
        """Rank of one input."""
        return self.sampled.input_ndim

    @property
    def view_size(self) -> int:
        """Numbers per view."""
        return self.sampled.view_size

    @property
    def num_views(self) -> int:
        """How many transformations there are."""
        return jax.tree.leaves(self.noise)[0].shape[0]

    def view(self, X: Array) -> Array:
        """The views of inputs ``[N, ...]``: ``[N, num_views, view_size]``.

        Raises:
            ValueError: if an input has another shape.
        """
        self.sampled._check(X)
        return self.sampled._views(X, self.noise, (0, None))
