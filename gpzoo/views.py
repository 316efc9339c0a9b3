"""Views: maps from an input to the set of vectors that a base process responds to (patches, orbits, augmentations).

A view is any pytree with

* ``view(X)``: inputs ``[N, ...]`` to views ``[N, num_views, view_size]``,
* ``num_views``, ``view_size``: the two integers, and
* ``input_ndim``: the rank of one input.

Distributions of views, :class:`gpzoo.augmentations.SampledView`, have ``sample(key, X)`` in the place of ``view(X)``.

A view without parameters is a pytree without leaves, as :class:`Patches` is; the arrays of one that has parameters are
its leaves, and gradients reach them through :class:`gpzoo.kernels.DoubleSum`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


@jax.tree_util.register_static
@dataclass(frozen=True, init=False)
class Patches:
    """All patches of an image at stride 1 that lie inside it (convolutional GPs, sections 3 and 4.4).

    Positions run row by row, and each patch is flattened row by row. What becomes of colour:

    * ``"separate"``: the patches of every channel are separate views. View ``c * (P / C) + position`` is the patch of
      channel ``c``, so ``P = C (H - h + 1) (W - w + 1)``, views of size ``h w``;
    * ``"joint"``: a view is a patch of all channels together, its pixels one channel after the other: the columns
      ``c h w`` to ``(c + 1) h w`` are channel ``c``. ``P = (H - h + 1) (W - w + 1)``, views of size ``C h w``;
    * a number: the patches of that channel alone.

    Args:
        image_shape: ``(H, W)`` for one channel, or ``(H, W, C)``.
        patch_shape: ``(h, w)``.
        channels: ``"separate"``, ``"joint"``, or the number of a channel, counted from 0.

    Raises:
        ValueError: if a size is not a positive whole number, a patch is larger than the image, or there is no such
            channel.
    """

    image_shape: tuple[int, int, int]
    patch_shape: tuple[int, int]
    channels: str | int

    #: Rank of one input: images ``[H, W, C]``.
    input_ndim: ClassVar[int] = 3

    def __init__(
        self, image_shape: Sequence[int], patch_shape: Sequence[int], *, channels: str | int = "separate"
    ) -> None:
        image, patch = _sizes("image_shape", image_shape, (2, 3)), _sizes("patch_shape", patch_shape, (2,))
        if patch[0] > image[0] or patch[1] > image[1]:
            raise ValueError(
                f"patch_shape {patch} does not fit into image_shape {image}: patches are at most as large as the image."
            )
        image = image if len(image) == 3 else (*image, 1)
        if isinstance(channels, int | np.integer) and not isinstance(channels, bool):
            channels, known = int(channels), 0 <= channels < image[2]
        else:
            known = isinstance(channels, str) and channels in ("separate", "joint")
        if not known:
            raise ValueError(
                f"channels must be 'separate', 'joint' or the number of one of the {image[2]} channels, counted from "
                f"0; got {channels!r}."
            )
        object.__setattr__(self, "image_shape", image)
        object.__setattr__(self, "patch_shape", patch)
        object.__setattr__(self, "channels", channels)

    @property
    def num_views(self) -> int:
        """Patches per image, ``P``, those of separate channels together."""
        (H, W, C), (h, w) = self.image_shape, self.patch_shape
        return (C if self.channels == "separate" else 1) * (H - h + 1) * (W - w + 1)

    @property
    def view_size(self) -> int:
        """Numbers per patch: ``h w``, or ``C h w`` where channels are joint."""
        return (self.image_shape[2] if self.channels == "joint" else 1) * self.patch_shape[0] * self.patch_shape[1]

    def view(self, X: Array) -> Array:
        """The patches of images ``[N, H, W, C]``: ``[N, P, view_size]``.

        Raises:
            ValueError: if ``X`` has another rank or another image shape.
        """
        if jnp.ndim(X) != 4 or tuple(jnp.shape(X)[1:]) != self.image_shape:
            raise ValueError(
                f"X must be images [N, H, W, C] with (H, W, C) = {self.image_shape}; got shape {tuple(jnp.shape(X))}. "
                "Images of one channel need their last axis too: X[..., None]."
            )
        (H, W, _), (h, w) = self.image_shape, self.patch_shape
        # Slices rather than a gather: their gradient is a sum of padded blocks, not a scatter.
        X = X if isinstance(self.channels, str) else X[..., self.channels, None]
        pixels = [X[:, i : i + H - h + 1, j : j + W - w + 1, :] for i in range(h) for j in range(w)]
        patches = jnp.stack(pixels, axis=-1)
        patches = patches if self.channels == "joint" else jnp.moveaxis(patches, 3, 1)
        return patches.reshape(X.shape[0], self.num_views, self.view_size)


@jax.tree_util.register_static
@dataclass(frozen=True, init=False, eq=False)
class Orbit:
    """The orbit of an input under transformations that move its entries: rotations, flips, shifts, permutations.

    The views of a kernel that is invariant to a finite group (convolutional GPs, appendix D.2, eq. D.29): with every
    element of the group among the transformations, ``DoubleSum(base, Orbit(...))`` is the prior of functions that do
    not change when their input is transformed. Views are flattened inputs.

    ``Orbit.of_images((28, 28), rotations=True, shifts=1)``; ``Orbit([(0, 1), (1, 0)])`` for ``f(x, y) = f(y, x)``.

    Args:
        table: ``[P, size]`` integers: entry ``table[p, i]`` of the flattened input becomes entry ``i`` of view ``p``,
            and -1 stands for zero. Equal rows count once.
        input_shape: shape of one input; a vector if ``None``.

    Raises:
        ValueError: if the table does not have two axes, or an entry is out of range or twice in a row.
    """

    table: np.ndarray
    input_shape: tuple[int, ...]

    def __init__(self, table: Any, input_shape: Sequence[int] | None = None) -> None:
        table = np.asarray(table)
        if table.ndim != 2 or table.size == 0 or not np.issubdtype(table.dtype, np.integer):
            raise ValueError(f"table must be integers [views, size], got {table.dtype} of shape {table.shape}.")
        shape = (table.shape[1],) if input_shape is None else _sizes("input_shape", input_shape, (1, 2, 3))
        size = int(np.prod(shape))
        if table.shape[1] != size or table.min() < -1 or table.max() >= size:
            raise ValueError(
                f"table must have {size} columns for inputs of shape {shape}, with entries from -1 to {size - 1}; got "
                f"shape {table.shape}, entries from {table.min()} to {table.max()}."
            )
        ordered = np.sort(table, axis=1)
        if (twice := ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)).any():
            row = int(np.argmax(twice))
            raise ValueError(
                f"Every row of table moves the entries of an input, each to one place, but row {row}, "
                f"{np.array2string(table[row], threshold=8)}, has an entry twice: no group of transformations has it. "
                "Give permutations, with -1 for zero."
            )
        first = np.sort(np.unique(table, axis=0, return_index=True)[1])
        object.__setattr__(self, "table", table[first].astype(np.int32))
        object.__setattr__(self, "input_shape", shape)

    @classmethod
    def of_images(
        cls, image_shape: Sequence[int], *, rotations: bool = False, flips: bool = False, shifts: int = 0
    ) -> Orbit:
        """The orbit of images ``[H, W, C]`` under all compositions of the transformations asked for, itself first.

        Args:
            image_shape: ``(H, W)`` for one channel, or ``(H, W, C)``.
            rotations: by multiples of 90 degrees; images must be square.
            flips: left to right, and top to bottom.
            shifts: by up to so many pixels along both axes; what comes in from outside is zero (a finite set of
                translations, invariant up to what leaves the image).

        Raises:
            ValueError: for rotations of images that are not square, or shifts as long as the image.
        """
        shape = _sizes("image_shape", image_shape, (2, 3))
        shape = shape if len(shape) == 3 else (*shape, 1)
        H, W, _ = shape
        if rotations and H != W:
            raise ValueError(f"Rotations by 90 degrees need square images, got image_shape {shape}.")
        if shifts != int(shifts) or not 0 <= shifts < min(H, W):
            raise ValueError(f"shifts must be between 0 and {min(H, W) - 1} pixels, got {shifts}.")
        shifts = int(shifts)
        turned = [np.arange(np.prod(shape)).reshape(shape)]
        if flips:
            turned = [view for image in turned for view in (image, image[:, ::-1], image[::-1], image[::-1, ::-1])]
        if rotations:
            turned = [np.rot90(image, turns) for image in turned for turns in range(4)]
        views = []
        steps = sorted(range(-shifts, shifts + 1), key=abs)
        for image in turned:
            padded = np.pad(image, ((shifts, shifts), (shifts, shifts), (0, 0)), constant_values=-1)
            views += [padded[shifts + i :, shifts + j :][:H, :W] for i in steps for j in steps]
        return cls(np.stack([view.ravel() for view in views]), shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Orbit) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple:
        return self.input_shape, self.table.shape, self.table.tobytes()

    @property
    def input_ndim(self) -> int:
        """Rank of one input."""
        return len(self.input_shape)

    @property
    def num_views(self) -> int:
        """Size of the orbit, ``P``."""
        return self.table.shape[0]

    @property
    def view_size(self) -> int:
        """Numbers per input."""
        return self.table.shape[1]

    def view(self, X: Array) -> Array:
        """The orbits of inputs ``[N, ...]``: ``[N, P, size]``.

        Raises:
            ValueError: if an input has another shape.
        """
        if tuple(jnp.shape(X)[1:]) != self.input_shape:
            raise ValueError(f"X must be inputs [N, ...] of shape {self.input_shape}, got shape {tuple(jnp.shape(X))}.")
        return rearranged(X.reshape(X.shape[0], -1), self.table)


def rearranged(rows: Array, table: Any) -> Array:
    """Entries ``table [P, size]`` of ``rows [N, size]``, zero where the table has -1: ``[N, P, size]``."""
    # Out of range in jnp.take, -1 would count from the end.
    inside = jnp.where(jnp.asarray(table) < 0, rows.shape[1], table)
    return jnp.take(rows, inside, axis=1, mode="fill", fill_value=0)


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
