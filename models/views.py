"""Sampled views whose parameters are ``numpyro.param`` sites: rotations, affine maps, deformations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict, Unpack

import jax.numpy as jnp
import numpyro
from jax import Array
from numpyro.distributions import constraints

from gpzoo import _checks as checks
from gpzoo._types import ArrayLike
from gpzoo.models.parameters import precision
from gpzoo.views.images import Affine, Deformation, Rotation


class Counts(TypedDict, total=False):
    """Numbers of views.

    Attributes:
        num_views: number of views per input and step in training.
        num_fixed: number of views in prediction.
    """

    num_views: int
    num_fixed: int


def rotation(
    angle: float = 45.0, *, learn: bool = True, prefix: str = "", **counts: Unpack[Counts]
) -> Callable[[Array], Affine]:
    """Rotations by up to ``angle`` degrees in both directions. The angle is trained.

    See van der Wilk, Bauer, John and Hensman 2018, section 5.1. Pass the result as ``view`` to a program such as
    :func:`invariant_gp`.

    Example:
        >>> import numpy as np
        >>> from numpyro import handlers
        >>> from gpzoo.models import rotation
        >>> with handlers.trace() as sites:
        ...     view = rotation(30.0, num_views=8)(np.zeros((2, 8, 8, 1), np.float32))
        >>> view.num_views, list(sites)
        (8, ['angle'])

    Args:
        angle: initial value of the angle.
        learn: whether the angle is trained; otherwise, it stays at its initial value.
        prefix: prefix of the parameter's name, for programs with several views.
        **counts: ``num_views`` and ``num_fixed``, as for :class:`~gpzoo.Affine`.
    """

    def view(X: Array) -> Affine:
        start = jnp.asarray(angle, precision(X))
        largest = numpyro.param(f"{prefix}angle", start, constraint=constraints.positive) if learn else start
        return Rotation(_image_shape(X), largest, **counts)

    return view


#: Initial distances of the two bounds of :func:`affine` from the identity: degrees, factors, shear, and halves of the
#: image.
AFFINE_WIDTHS = (10.0, 0.1, 0.1, 0.1, 0.05, 0.05)


def affine(
    widths: ArrayLike = AFFINE_WIDTHS, *, learn: bool = True, prefix: str = "", **counts: Unpack[Counts]
) -> Callable[[Array], Affine]:
    """Random affine maps. Each of their six numbers is uniform between a lower and an upper bound, which are trained.

    See van der Wilk, Bauer, John and Hensman 2018, section 5. The trained parameters ``affine_below`` and
    ``affine_above`` are the distances of the lower and the upper bounds from the identity map. The bounds themselves
    are recorded as the deterministic sites ``affine_low`` and ``affine_high``. Pass the result as ``view`` to a program
    such as :func:`invariant_gp`.

    Example:
        >>> import numpy as np
        >>> from numpyro import handlers
        >>> from gpzoo.models import affine
        >>> images = np.zeros((2, 8, 8, 1), np.float32)
        >>> sites = handlers.trace(lambda: affine()(images)).get_trace()
        >>> list(sites)
        ['affine_below', 'affine_above', 'affine_low', 'affine_high']

    Args:
        widths: initial distances of the lower and of the upper bounds, ``[6]``: rotation in degrees, scales, shear,
            shifts; see :class:`~gpzoo.Affine`.
        learn: whether the distances are trained.
        prefix: prefix of the names, for programs with several views.
        **counts: ``num_views`` and ``num_fixed``.
    """

    def view(X: Array) -> Affine:
        return Affine(_image_shape(X), *_affine_bounds(X, widths, learn, prefix), **counts)

    return view


def deformation(
    amplitude: float = 1.0,
    smoothness: float = 4.0,
    widths: ArrayLike = AFFINE_WIDTHS,
    *,
    learn: bool = True,
    prefix: str = "",
    **counts: Unpack[Counts],
) -> Callable[[Array], Deformation]:
    """Smooth local deformations of images, after small affine maps.

    With ``learn``, training changes the amplitude and the smoothness of the deformations, and the bounds of the affine
    maps. See :class:`~gpzoo.Deformation`. Pass the result as ``view`` to a program such as :func:`invariant_gp`.

    Example:
        >>> import numpy as np
        >>> from numpyro import handlers
        >>> from gpzoo.models import deformation
        >>> images = np.zeros((2, 8, 8, 1), np.float32)
        >>> view = handlers.seed(deformation(amplitude=0.5), 0)(images)
        >>> type(view).__name__, float(view.amplitude)
        ('Deformation', 0.5)

    Args:
        amplitude: standard deviation of the displacements, in pixels.
        smoothness: width of the filter that smooths the displacements, in pixels.
        widths: see :func:`affine`.
        learn: whether the amplitude, the smoothness and the bounds are trained.
        prefix: prefix of the names, for programs with several views.
        **counts: ``num_views`` and ``num_fixed``.
    """

    def view(X: Array) -> Deformation:
        size, width = (jnp.asarray(start, precision(X)) for start in (amplitude, smoothness))
        if learn:
            size = numpyro.param(f"{prefix}amplitude", size, constraint=constraints.positive)
            width = numpyro.param(f"{prefix}smoothness", width, constraint=constraints.positive)
        return Deformation(_image_shape(X), size, width, *_affine_bounds(X, widths, learn, prefix), **counts)

    return view


def _affine_bounds(X: Array, widths: ArrayLike, learn: bool, prefix: str) -> tuple[Array, Array]:
    identity = jnp.asarray([0, 1, 1, 0, 0, 0], precision(X))
    below = above = jnp.asarray(widths, precision(X))
    if not learn:
        return identity - below, identity + above
    # Positive parameters are trained on the log scale, where one step size suits degrees and shifts.
    below = numpyro.param(f"{prefix}affine_below", below, constraint=constraints.positive)
    above = numpyro.param(f"{prefix}affine_above", above, constraint=constraints.positive)
    low = numpyro.deterministic(f"{prefix}affine_low", identity - below)
    return low, numpyro.deterministic(f"{prefix}affine_high", identity + above)


def _image_shape(X: Array) -> tuple[int, ...]:
    hint = "; flat ones are X.reshape(-1, H, W, C)"
    checks.must(X.ndim == 4, "X", "be images [N, H, W, C] for this view", f"shape {X.shape}", hint)
    return X.shape[1:]
