"""Views: maps from an input to the set of vectors that a base process responds to (patches, orbits, augmentations).

A view is any pytree with

* ``view(X)``: inputs ``[N, ...]`` to views ``[N, num_views, view_size]``,
* ``num_views``, ``view_size``: the two integers, and
* ``input_ndim``: the rank of one input.

A view without parameters is a pytree without leaves, as :class:`Patches` is; the arrays of one that has parameters are
its leaves, and gradients reach them through :class:`gpzoo.kernels.DoubleSum`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array


@jax.tree_util.register_static
@dataclass(frozen=True, init=False)
class Patches:
    """All patches of an image at stride 1 that lie inside it (convolutional GPs, section 3).

    Positions run row by row, and each patch is flattened row by row. The patches of every channel are separate views:
    view ``c * (P / C) + position`` is the patch of channel ``c``, so ``P = C (H - h + 1) (W - w + 1)``.

    Args:
        image_shape: ``(H, W)`` for one channel, or ``(H, W, C)``.
        patch_shape: ``(h, w)``.

    Raises:
        ValueError: if a size is not a positive whole number, or a patch is larger than the image.
    """

    image_shape: tuple[int, int, int]
    patch_shape: tuple[int, int]

    #: Rank of one input: images ``[H, W, C]``.
    input_ndim: ClassVar[int] = 3

    def __init__(self, image_shape: Sequence[int], patch_shape: Sequence[int]) -> None:
        image, patch = _sizes("image_shape", image_shape, (2, 3)), _sizes("patch_shape", patch_shape, (2,))
        if patch[0] > image[0] or patch[1] > image[1]:
            raise ValueError(
                f"patch_shape {patch} does not fit into image_shape {image}: patches are at most as large as the image."
            )
        object.__setattr__(self, "image_shape", image if len(image) == 3 else (*image, 1))
        object.__setattr__(self, "patch_shape", patch)

    @property
    def num_views(self) -> int:
        """Patches per image, ``P``, those of all channels together."""
        (H, W, C), (h, w) = self.image_shape, self.patch_shape
        return C * (H - h + 1) * (W - w + 1)

    @property
    def view_size(self) -> int:
        """Pixels per patch, ``h w``."""
        return self.patch_shape[0] * self.patch_shape[1]

    def view(self, X: Array) -> Array:
        """The patches of images ``[N, H, W, C]``: ``[N, P, h w]``.

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
        pixels = [X[:, i : i + H - h + 1, j : j + W - w + 1, :] for i in range(h) for j in range(w)]
        return jnp.moveaxis(jnp.stack(pixels, axis=-1), 3, 1).reshape(X.shape[0], self.num_views, self.view_size)


def _sizes(name: str, sizes: Sequence[int], lengths: tuple[int, ...]) -> tuple[int, ...]:
    sizes = tuple(sizes)
    if len(sizes) not in lengths or any(int(size) != size or size < 1 for size in sizes):
        wanted = " or ".join(str(length) for length in lengths)
        raise ValueError(f"{name} must be {wanted} positive whole numbers, got {sizes}.")
    return tuple(int(size) for size in sizes)
