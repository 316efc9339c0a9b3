"""Transformations of images as sampled views, with learnable parameters: affine maps, rotations and deformations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jaxtyping import Float, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo._pytree import static
from gpzoo.views._warp import affine_matrix, affine_positions, bilinear, smooth_displacements
from gpzoo.views.base import SampledView, whole_sizes

# -- images ------------------------------------------------------------------------------------------------------------


class Affine(SampledView):
    """Images under affine maps with parameters ``phi ~ Unif(low, high)`` (van der Wilk et al. 2018, section 5).

    Interpolation is bilinear, with zeros outside the image. Results can be differentiated with respect to ``low`` and
    ``high``.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np
        >>> from gpzoo import Affine
        >>> half_turn = jnp.float32([180, 1, 1, 0, 0, 0])
        >>> view = Affine((2, 2), half_turn, half_turn)
        >>> noise = view.noise(jax.random.key(0), 1)
        >>> image = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)[:, :, None]
        >>> abs(np.asarray(view.transform(image, noise[0]))[:, :, 0]).round(3)
        array([[4., 3.],
               [2., 1.]], dtype=float32)

    Args:
        image_shape: ``(H, W)`` for one channel, or ``(H, W, C)``.
        low: ``[6]``, the lower bounds of rotation, scale along the width, scale along the height, shear, shift to the
            right, and shift down. Rotation is in degrees, counter-clockwise. A scale of 2 shows everything at half the
            size. Shifts are in halves of the width and height. With ``raw=True``, the six bounds are for the matrix
            entries, row by row. The matrix maps a position ``(x, y, 1)`` of the output to a position in the image.
            ``x`` and ``y`` run from -1 to 1.
        high: ``[6]``, the upper bounds. A parameter is fixed if its lower and upper bounds are equal.
        raw: whether the bounds are for the matrix entries, not for the parameters.
        num_views: number of views per input and step in training.
        num_fixed: number of views in prediction.

    Raises:
        ValueError: if sizes are not positive integers, images are thinner than two pixels, bounds are not finite
            numbers ``[6]``, or there are fewer than two views in training.
    """

    low: Float[Array, "6"]
    high: Float[Array, "6"]
    raw: bool = static()

    def __init__(
        self,
        image_shape: Sequence[int],
        low: Array,
        high: Array,
        *,
        raw: bool = False,
        num_views: int = 16,
        num_fixed: int = 64,
    ) -> None:
        shape = whole_sizes("image_shape", image_shape, (2, 3))
        good = min(shape[:2]) >= 2
        checks.must(good, "Images", "be at least two pixels high and wide", f"image_shape {shape}")
        super().__init__(shape if len(shape) == 3 else (*shape, 1), num_views, num_fixed)
        self.low, self.high = _parameters("low", low, (6,)), _parameters("high", high, (6,))
        self.raw = bool(raw)

    def noise(self, key: PRNGKeyArray, num_views: int) -> Float[Array, "{num_views} 6"]:
        """Uniform numbers in [0, 1)."""
        return random.uniform(key, (num_views, 6), jnp.result_type(self.low))

    def _matrix(self, uniform: Float[Array, "6"]) -> Float[Array, "2 3"]:
        phi = self.low + (self.high - self.low) * uniform
        height, width = (size - 1 for size in self.input_shape[:2])
        return phi.reshape(2, 3) if self.raw else affine_matrix(phi, height / width)

    def transform(self, x: Float[Array, "H W C"], noise: Float[Array, "6"]) -> Float[Array, "H W C"]:
        """One transformed image."""
        return bilinear(x, *affine_positions(self._matrix(noise).astype(x.dtype), *x.shape[:2]))


def Rotation(image_shape: Sequence[int], angle: Array | float, *, num_views: int = 16, num_fixed: int = 64) -> Affine:
    """Images rotated by angles uniform in ``[-angle, angle]`` degrees (van der Wilk et al. 2018, section 5.1).

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import Rotation
        >>> view = Rotation((8, 8), 30.0, num_views=4)
        >>> view.sample(jax.random.key(0), np.ones((2, 8, 8, 1), np.float32)).shape
        (2, 4, 64)

    Args:
        image_shape: ``(H, W)`` for one channel, or ``(H, W, C)``.
        angle: the largest angle; results can be differentiated with respect to it.
        num_views: number of views per input and step in training.
        num_fixed: number of views in prediction.

    Raises:
        ValueError: as for :class:`Affine`.
    """
    angle = _parameters("angle", angle, ())
    at_rest = jnp.asarray([0, 1, 1, 0, 0, 0], angle.dtype)
    return Affine(
        image_shape, at_rest.at[0].set(-angle), at_rest.at[0].set(angle), num_views=num_views, num_fixed=num_fixed
    )


class Deformation(Affine):
    """Images under smooth local displacements, after a small affine map (van der Wilk et al. 2018, section 5).

    Here, a smooth random field moves the pixels. The paper uses the displacements of infiniteMNIST (Loosli et al. 2007)
    instead. In infiniteMNIST, multiples of an image's tangent vectors are added, and one of these changes the thickness
    of lines.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import Deformation
        >>> view = Deformation((8, 8), amplitude=1.0, smoothness=2.0)
        >>> noise = view.noise(jax.random.key(0), 5)
        >>> jax.vmap(lambda each: view.transform(np.eye(8, dtype=np.float32)[:, :, None], each))(noise).shape
        (5, 8, 8, 1)

    Args:
        image_shape: ``(H, W)`` for one channel, or ``(H, W, C)``.
        amplitude: standard deviation of a pixel's displacement along each axis, in pixels.
        smoothness: standard deviation of the Gaussian filter that smooths the displacements, in pixels.
        low: lower bounds of the affine map, as for :class:`Affine`; without bounds, the map is the identity.
        high: upper bounds of the affine map.
        num_views: number of views per input and step in training.
        num_fixed: number of views in prediction.

    Raises:
        ValueError: as for :class:`Affine`; also if ``amplitude`` or ``smoothness`` is not one number, or only one of
            ``low`` and ``high`` is given.
    """

    amplitude: Float[Array, ""]
    smoothness: Float[Array, ""]

    def __init__(
        self,
        image_shape: Sequence[int],
        amplitude: Array | float,
        smoothness: Array | float,
        low: Array | None = None,
        high: Array | None = None,
        *,
        num_views: int = 16,
        num_fixed: int = 64,
    ) -> None:
        self.amplitude = _parameters("amplitude", amplitude, ())
        self.smoothness = _parameters("smoothness", smoothness, ())
        if checks.is_concrete(self.smoothness):
            found = float(np.asarray(self.smoothness))
            checks.must(found > 0, "smoothness", "be positive", str(found))
        one = "Give both bounds of the affine map, low and high, or neither."
        checks.refuse((low is None) != (high is None), one)
        at_rest = jnp.asarray([0, 1, 1, 0, 0, 0], self.amplitude.dtype)
        low, high = (at_rest if bound is None else bound for bound in (low, high))
        super().__init__(image_shape, low, high, num_views=num_views, num_fixed=num_fixed)

    def noise(
        self, key: PRNGKeyArray, num_views: int
    ) -> tuple[Float[Array, "{num_views} 6"], Float[Array, "{num_views} 2 H W"]]:
        """Uniform numbers for the affine map, and standard normal numbers for the displacements."""
        key_affine, key_field = random.split(key)
        field = random.normal(key_field, (num_views, 2, *self.input_shape[:2]), self.amplitude.dtype)
        return super().noise(key_affine, num_views), field

    def transform(
        self, x: Float[Array, "H W C"], noise: tuple[Float[Array, "6"], Float[Array, "2 H W"]]
    ) -> Float[Array, "H W C"]:
        """One deformed image."""
        uniform, field = noise
        rows, columns = affine_positions(self._matrix(uniform).astype(x.dtype), *x.shape[:2])
        down, right = smooth_displacements(field, self.amplitude, self.smoothness).astype(x.dtype)
        return bilinear(x, rows + down, columns + right)


def _parameters(name: str, value: Any, shape: tuple[int, ...]) -> Float[Array, "..."]:
    value = checks.floating(name, value)
    wanted = "one number" if shape == () else "the six parameters of an affine map"
    checks.must(value.shape == shape, name, f"be {wanted}", f"shape {value.shape}")
    if checks.is_concrete(value):
        found = np.asarray(value)
        checks.must(np.isfinite(found).all(), name, "be finite", str(found.tolist()))
    return value
