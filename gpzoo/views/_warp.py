"""Transformations of images with derivatives by their parameters: affine maps and smooth displacements."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from gpzoo import _checks as checks
from gpzoo.linalg.operators import matmul

#: Positions outside the image by at most this many pixels count as on its border, because of rounding.
_TOLERANCE = 1e-3


def bilinear(image: Array, rows: Float[Array, "*shape"], columns: Float[Array, "*shape"]) -> Float[Array, "*shape _"]:
    """Values of an image between its pixels; zero outside the pixels' centres, as in spatial transformers.

    The result equals ``scipy.ndimage.map_coordinates(order=1, mode="constant")`` in every channel, with one exception:
    positions at most a thousandth of a pixel outside count as on the border. Derivatives with respect to the image and
    the positions are the derivatives of the interpolating surface. They ignore the jump to zero at the border.

    Args:
        image: ``[H, W, C]``, at least two pixels high and wide.
        rows: positions along the height, in pixels from the centre of the first pixel.
        columns: positions along the width.

    Raises:
        ValueError: if the image has another rank or is thinner than two pixels.
    """
    good = jnp.ndim(image) == 3 and min(jnp.shape(image)[:2]) >= 2
    checks.must(good, "image", "be [H, W, C] with H, W >= 2", f"shape {tuple(jnp.shape(image))}")
    H, W, C = image.shape
    # NaN fails both comparisons, so a NaN position does not count as outside, and the result is NaN.
    beyond = [(x < -_TOLERANCE) | (x > size - 1 + _TOLERANCE) for x, size in ((rows, H), (columns, W))]
    row, column = (jnp.clip(jnp.floor(x), 0, size - 2) for x, size in ((rows, H), (columns, W)))
    down, right = (rows - row)[..., None], (columns - column)[..., None]
    flat, first = jnp.asarray(image).reshape(H * W, C), (row * W + column).astype(jnp.int32)
    upper = (1 - right) * flat[first] + right * flat[first + 1]
    lower = (1 - right) * flat[first + W] + right * flat[first + W + 1]
    return jnp.where((beyond[0] | beyond[1])[..., None], 0, (1 - down) * upper + down * lower)


def affine_matrix(parameters: Float[Array, "*batch 6"], aspect: float = 1.0) -> Float[Array, "*batch 2 3"]:
    """The matrix of :func:`affine_positions` from interpretable parameters.

    The content of the image is rotated, then sheared, then scaled, then shifted. The matrix is the inverse map, from a
    position in the output to the position in the image. It is ``[A, -A shift]`` with
    ``A = R(rotation) [[1, shear], [0, 1]] diag(scale)``, as in the authors' code.

    Args:
        parameters: rotation in degrees, counter-clockwise; scale along the width and the height (2 shows
            everything at half the size); shear; shift to the right and down, in halves of the image's width and height.
        aspect: height over width, between the centres of the outer pixels. With it, angles are angles in the image.
    """
    rotation, scale_x, scale_y, shear, right, down = jnp.moveaxis(parameters, -1, 0)
    angle = rotation * (jnp.pi / 180)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    xx, xy = cosine * scale_x, (cosine * shear - sine) * scale_y * aspect
    yx, yy = sine * scale_x / aspect, (sine * shear + cosine) * scale_y
    rows = [[xx, xy, -(xx * right + xy * down)], [yx, yy, -(yx * right + yy * down)]]
    return jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=-2)


def affine_positions(
    matrix: Float[Array, "2 3"], height: int, width: int
) -> tuple[Float[Array, "{height} {width}"], Float[Array, "{height} {width}"]]:
    """The positions in an image from which an affine transform takes its pixels (Jaderberg et al. 2015).

    Args:
        matrix: maps ``(x, y, 1)`` of the output to ``(x, y)`` of the image. ``x`` runs to the right and ``y`` down,
            from -1 to 1 between the centres of the outer pixels.
        height: height of the image, in pixels.
        width: width of the image, in pixels.

    Returns:
        Rows and columns, in pixels.
    """
    x = jnp.linspace(-1, 1, width, dtype=matrix.dtype)
    y = jnp.linspace(-1, 1, height, dtype=matrix.dtype)[:, None]
    x_from, y_from = (m[0] * x + m[1] * y + m[2] for m in matrix)
    return (y_from + 1) * ((height - 1) / 2), (x_from + 1) * ((width - 1) / 2)


def smooth_displacements(
    noise: Float[Array, "2 H W"], amplitude: Float[Array, ""], smoothness: Float[Array, ""]
) -> Float[Array, "2 H W"]:
    """Random fields of displacements, smooth over the image (elastic distortions, Simard et al. 2003).

    A Gaussian filter smooths white noise. The filter is normalised so that all pixels have the same distribution.

    Args:
        noise: standard normal numbers, for rows and columns.
        amplitude: standard deviation of a displacement along each axis, in pixels.
        smoothness: standard deviation of the filter, in pixels.

    Returns:
        Displacements in pixels.
    """
    down, across = (_smoother(size, smoothness, noise.dtype) for size in noise.shape[-2:])
    return amplitude * matmul(matmul(down, noise), across.T)


def _smoother(size: int, smoothness: Float[Array, ""], dtype: jnp.dtype) -> Float[Array, "{size} {size}"]:
    """A Gaussian filter along one axis, whose rows have unit length."""
    position = jnp.arange(size, dtype=dtype)
    weights = jnp.exp(-jnp.square((position[:, None] - position) / smoothness) / 2)
    return weights / jnp.linalg.norm(weights, axis=1, keepdims=True)
