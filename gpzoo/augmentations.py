"""Views that are sampled: distributions ``p(x_a | x)`` of transformed inputs, differentiable in their parameters.

A sampled view is a pytree with the arrays that parameterise the distribution as leaves. A kernel over one,
``Invariant(base, Rotation((28, 28), angle))``, has no closed form. In training its moments are estimated from
``num_views`` samples per input and step; everywhere else, in prediction above all, :meth:`SampledView.fixed` stands in:
``num_fixed`` transformations drawn once and the same for all inputs, which is a kernel like any other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

from gpzoo import _checks as checks
from gpzoo._checks import positive_int
from gpzoo.fields import Fields
from gpzoo.images import affine_matrix, affine_positions, bilinear, smooth_displacements
from gpzoo.views import Orbit, _sizes, rearranged


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


# -- images ------------------------------------------------------------------------------------------------------------


class Affine(SampledView):
    """Images under affine maps with uniform parameters, ``phi ~ Unif(low, high)`` (learning invariances, section 5).

    Bilinear interpolation; what comes in from outside is zero. Derivatives reach both bounds.

    Args:
        image_shape: ``(H, W)`` for one channel, or ``(H, W, C)``.
        low: ``[6]``: rotation (degrees, counter-clockwise), scale along the width and the height (2 shows everything at
            half the size), shear, shift right and down (halves of the width and height). With ``raw=True`` the matrix
            itself, row by row: it takes ``(x, y, 1)`` of the output, from -1 to 1, to where it comes from.
        high: ``[6]``, the other bounds; equal to ``low`` where a parameter is fixed.
        raw: what the bounds are of.
        num_views: views per input and step in training.
        num_fixed: views in prediction.

    Raises:
        ValueError: for sizes that are no positive whole numbers, images thinner than two pixels, bounds that are not
            finite numbers ``[6]``, or fewer than two views in training.
    """

    data_fields = ("low", "high")
    static_fields = (*SampledView.static_fields, "raw")

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
        shape = _sizes("image_shape", image_shape, (2, 3))
        if min(shape[:2]) < 2:
            raise ValueError(f"Images must be at least two pixels high and wide, got image_shape {shape}.")
        super().__init__(shape if len(shape) == 3 else (*shape, 1), num_views, num_fixed)
        self.low, self.high = _parameters("low", low, (6,)), _parameters("high", high, (6,))
        self.raw = bool(raw)

    def noise(self, key: Array, num_views: int) -> Array:
        """Uniform numbers ``[num_views, 6]``."""
        return random.uniform(key, (num_views, 6), jnp.result_type(self.low))

    def _matrix(self, uniform: Array) -> Array:
        phi = self.low + (self.high - self.low) * uniform
        height, width = (size - 1 for size in self.input_shape[:2])
        return phi.reshape(2, 3) if self.raw else affine_matrix(phi, height / width)

    def transform(self, x: Array, noise: Array) -> Array:
        """One transformed image."""
        return bilinear(x, *affine_positions(self._matrix(noise).astype(x.dtype), *x.shape[:2]))


def Rotation(image_shape: Sequence[int], angle: Array | float, *, num_views: int = 16, num_fixed: int = 64) -> Affine:
    """Images rotated by angles uniform in ``[-angle, angle]`` degrees (learning invariances, section 5.1).

    Args:
        image_shape: ``(H, W)`` for one channel, or ``(H, W, C)``.
        angle: the largest angle; derivatives reach it.
        num_views: views per input and step in training.
        num_fixed: views in prediction.

    Raises:
        ValueError: as :class:`Affine`.
    """
    angle = _parameters("angle", angle, ())
    at_rest = jnp.asarray([0, 1, 1, 0, 0, 0], angle.dtype)
    return Affine(
        image_shape, at_rest.at[0].set(-angle), at_rest.at[0].set(angle), num_views=num_views, num_fixed=num_fixed
    )


class Deformation(Affine):
    """Images under smooth local displacements, after a small affine map (infiniteMNIST, Loosli et al. 2007; section 5).

    Args:
        image_shape: ``(H, W)`` for one channel, or ``(H, W, C)``.
        amplitude: standard deviation of a pixel's displacement along each axis, in pixels.
        smoothness: standard deviation of the Gaussian filter that makes the displacements smooth, in pixels.
        low: lower bounds of the affine map, as for :class:`Affine`; ``None`` for the identity.
        high: upper bounds.
        num_views: views per input and step in training.
        num_fixed: views in prediction.

    Raises:
        ValueError: as :class:`Affine`, and for an amplitude or smoothness that is not one number, or one of the bounds
            without the other.
    """

    data_fields = (*Affine.data_fields, "amplitude", "smoothness")

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
        if checks.is_concrete(self.smoothness) and not np.asarray(self.smoothness) > 0:
            raise ValueError(f"smoothness must be positive, got {float(self.smoothness)}.")
        if (low is None) != (high is None):
            raise ValueError("Give both bounds of the affine map, low and high, or neither.")
        at_rest = jnp.asarray([0, 1, 1, 0, 0, 0], self.amplitude.dtype)
        low, high = (at_rest if bound is None else bound for bound in (low, high))
        super().__init__(image_shape, low, high, num_views=num_views, num_fixed=num_fixed)

    def noise(self, key: Array, num_views: int) -> tuple[Array, Array]:
        """Uniform numbers ``[num_views, 6]`` and standard normal ones ``[num_views, 2, H, W]``."""
        key_affine, key_field = random.split(key)
        field = random.normal(key_field, (num_views, 2, *self.input_shape[:2]), self.amplitude.dtype)
        return super().noise(key_affine, num_views), field

    def transform(self, x: Array, noise: tuple[Array, Array]) -> Array:
        """One deformed image."""
        uniform, field = noise
        rows, columns = affine_positions(self._matrix(uniform).astype(x.dtype), *x.shape[:2])
        down, right = smooth_displacements(field, self.amplitude, self.smoothness).astype(x.dtype)
        return bilinear(x, rows + down, columns + right)


# -- any inputs --------------------------------------------------------------------------------------------------------


class Subsampled(SampledView):
    """Some views of a finite orbit, drawn without replacement (learning invariances, section 4.4 and appendix B).

    Estimates are those of the whole orbit's kernel, and equal it where ``num_views`` is the size of the orbit.

    Args:
        orbit: all views.
        num_views: views per input and step in training.
        num_fixed: views in prediction; ``None`` for all.

    Raises:
        TypeError: if ``orbit`` is not an :class:`~gpzoo.views.Orbit`.
        ValueError: for more views than there are, or fewer than two.
    """

    static_fields = (*SampledView.static_fields, "orbit")

    def __init__(self, orbit: Orbit, num_views: int, *, num_fixed: int | None = None) -> None:
        if not isinstance(orbit, Orbit):
            raise TypeError(f"orbit must be a gpzoo.views.Orbit, got {type(orbit).__name__}.")
        self.orbit = orbit
        super().__init__(orbit.input_shape, num_views, orbit.num_views if num_fixed is None else num_fixed)
        if max(self.num_views, self.num_fixed) > orbit.num_views:
            raise ValueError(
                f"num_views is {self.num_views} and num_fixed {self.num_fixed}, but the orbit has {orbit.num_views}."
            )

    @property
    def orbit_size(self) -> float:  # type: ignore[override]
        """How many views there are."""
        return self.orbit.num_views

    def noise(self, key: Array, num_views: int) -> Array:
        """Rows of the orbit's table, all different: ``[num_views, view_size]``."""
        return jnp.asarray(self.orbit.table)[random.permutation(key, self.orbit.num_views)[:num_views]]

    def transform(self, x: Array, noise: Array) -> Array:
        """One of the views."""
        return rearranged(x.reshape(1, -1), noise[None])[0, 0].reshape(x.shape)


def _parameters(name: str, value: Any, shape: tuple[int, ...]) -> Array:
    value = checks.floating(name, value)
    if value.shape != shape:
        wanted = "one number" if shape == () else "the six parameters of an affine map"
        raise ValueError(f"{name} must be {wanted}, got shape {value.shape}.")
    if checks.is_concrete(value) and not np.isfinite(np.asarray(value)).all():
        raise ValueError(f"{name} must be finite, got {np.asarray(value).tolist()}.")
    return value
