"""The patches of an image as views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from gpzoo import _checks as checks
from gpzoo._pytree import static
from gpzoo.views.base import View, whole_sizes


class Patches(View):
    """All patches inside an image, at a stride (van der Wilk et al. 2017, sections 3 and 4.4).

    Images are ``H x W`` with ``C`` channels, and patches are ``h x w``. The positions of patches run row by row, and
    each patch is flattened row by row. There are ``A = (H - h) // stride + 1`` positions downwards and
    ``B = (W - w) // stride + 1`` across. There are three treatments of colour:

    * ``"separate"``: the patches of every channel are separate views. There are ``P = C A B`` views of size ``h w``.
      View ``c * (P / C) + position`` is the patch of channel ``c`` at this position;
    * ``"joint"``: a view is a patch of all channels together. Its pixels are in the order of the channels: the columns
      ``c h w`` to ``(c + 1) h w`` are channel ``c``. There are ``P = A B`` views of size ``C h w``;
    * a number: the views are the patches of this channel alone.

    Example:
        >>> import numpy as np
        >>> from gpzoo import Patches
        >>> patches = Patches((28, 28, 1), (5, 5))
        >>> patches.num_views, patches.view(np.zeros((2, 28, 28, 1), np.float32)).shape
        (576, (2, 576, 25))

    Args:
        image_shape: ``(H, W)`` for one channel, or ``(H, W, C)``.
        patch_shape: ``(h, w)``.
        channels: ``"separate"``, ``"joint"``, or the number of a channel, counted from 0.
        places: whether each view has two more columns, for the position of the patch. The first of them is 0 at the top
            and 1 at the bottom. The second is 0 at the left and 1 at the right.
        stride: pixels from one patch to the next, in both directions.

    Raises:
        ValueError: if a size is not a positive integer, a patch is larger than the image, or there is no such channel.
    """

    image_shape: tuple[int, int, int] = static()
    patch_shape: tuple[int, int] = static()
    channels: str | int = static()
    places: bool = static()
    stride: int = static()

    def __init__(
        self,
        image_shape: Sequence[int],
        patch_shape: Sequence[int],
        *,
        channels: str | int = "separate",
        places: bool = False,
        stride: int = 1,
    ) -> None:
        image: Any
        patch: Any
        image, patch = whole_sizes("image_shape", image_shape, (2, 3)), whole_sizes("patch_shape", patch_shape, (2,))
        checks.refuse(
            patch[0] > image[0] or patch[1] > image[1],
            f"patch_shape {patch} does not fit into image_shape {image}: patches are at most as large as the image.",
        )
        image = image if len(image) == 3 else (*image, 1)
        if isinstance(channels, int | np.integer) and not isinstance(channels, bool):
            channels, known = int(channels), 0 <= channels < image[2]
        else:
            known = isinstance(channels, str) and channels in ("separate", "joint")
        wanted = f"be 'separate', 'joint' or the number of one of the {image[2]} channels, counted from 0;"
        checks.must(known, "channels", wanted, repr(channels))
        self.image_shape, self.patch_shape, self.channels = image, patch, channels
        self.places = checks.instance("places", places, bool, "True or False")
        self.stride = checks.positive_int("stride", stride)

    @property
    def input_ndim(self) -> int:
        """Rank of one input: images ``[H, W, C]``."""
        return 3

    @property
    def positions(self) -> tuple[int, int]:
        """Numbers of patches downwards and across, ``A`` and ``B``."""
        (H, W, _), (h, w) = self.image_shape, self.patch_shape
        return (H - h) // self.stride + 1, (W - w) // self.stride + 1

    @property
    def num_views(self) -> int:
        """Number of patches per image, ``P``; with separate channels, the number for all channels together."""
        A, B = self.positions
        return (self.image_shape[2] if self.channels == "separate" else 1) * A * B

    @property
    def view_size(self) -> int:
        """Size of a view: ``h w``, or ``C h w`` with joint channels; plus two columns with ``places``."""
        return self.num_pixels + 2 * self.places

    @property
    def num_pixels(self) -> int:
        """The number of pixels in a view; their columns are the first columns of the view."""
        return (self.image_shape[2] if self.channels == "joint" else 1) * self.patch_shape[0] * self.patch_shape[1]

    def view(self, X: Float[Array | np.ndarray, "N ..."]) -> Float[Array, "N P e"]:
        """The patches of images ``[N, H, W, C]``.

        Raises:
            ValueError: if ``X`` is not ``[N, H, W, C]`` with the image shape of this view.
        """
        wanted = f"be images [N, H, W, C] with (H, W, C) = {self.image_shape};"
        hint = ". Images of one channel need their last axis too: X[..., None]"
        checks.must(tuple(jnp.shape(X)[1:]) == self.image_shape, "X", wanted, f"shape {tuple(jnp.shape(X))}", hint)
        (h, w), (A, B), step = self.patch_shape, self.positions, self.stride
        # Slices, not a gather, because the gradient of slices is a sum of padded blocks and not a scatter.
        X = X if isinstance(self.channels, str) else X[..., self.channels, None]
        every = lambda first, count: slice(first, first + (count - 1) * step + 1, step)  # noqa: E731
        pixels = [X[:, every(i, A), every(j, B), :] for i in range(h) for j in range(w)]
        patches = jnp.stack(pixels, axis=-1)
        patches = patches if self.channels == "joint" else jnp.moveaxis(patches, 3, 1)
        patches = patches.reshape(X.shape[0], self.num_views, self.num_pixels)
        if not self.places:
            return patches
        along = (np.linspace(0, 1, size) if size > 1 else np.zeros(1) for size in (A, B))
        at = np.stack(np.meshgrid(*along, indexing="ij"), axis=-1).reshape(-1, 2)
        at = np.tile(at, (self.num_views // len(at), 1)).astype(patches.dtype)
        return jnp.concatenate([patches, jnp.broadcast_to(at, (*patches.shape[:2], 2))], axis=-1)
