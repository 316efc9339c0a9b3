"""Sampled views whose parameters are ``numpyro.param`` sites: rotations, affine maps, deformations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict, Unpack

import jax.numpy as jnp
import numpyro
from jax import Array
from numpyro.distributions import constraints

from gpzoo._types import ArrayLike
from gpzoo.models.parameters import precision
from gpzoo.views.images import Affine, Deformation, Rotation


class Counts(TypedDict, total=False):
    """How many views there are.

    Attributes:
        num_views: per input and step in training.
        num_fixed: in prediction.
    """

    num_views: int
    num_fixed: int


def rotation(
    angle: float = 45.0, *, learn: bool = True, prefix: str = "", **counts: Unpack[Counts]
) -> Callable[[Array], Affine]:
    """Rotations by up to ``angle`` degrees either way; trained as ``angle`` (section 5.1).

    Args:
        angle: where it starts, or stays.
        learn: whether it is trained.
        prefix: of the parameter's name, where a program has several views.
        **counts: ``num_views`` and ``num_fixed``, as for :class:`~gpzoo.Affine`.
    """

    def view(X: Array) -> Affine:
        start = jnp.asarray(angle, precision(X))
        largest = numpyro.param(f"{prefix}angle", start, constraint=constraints.positive) if learn else start
        return Rotation(_image_shape(X), largest, **counts)

    return view


#: Degrees, factors, shear and halves of the image by which the affine maps of :func:`affine` start to differ from the
#: identity, to either side.
AFFINE_WIDTHS = (10.0, 0.1, 0.1, 0.1, 0.05, 0.05)


def affine(
    widths: ArrayLike = AFFINE_WIDTHS, *, learn: bool = True, prefix: str = "", **counts: Unpack[Counts]
) -> Callable[[Array], Affine]:
    """All affine maps; their bounds are trained as ``affine_below`` and ``affine_above`` the identity (section 5).

    The bounds themselves are recorded as the deterministic sites ``affine_low`` and ``affine_high``.

    Args:
        widths: where both start, ``[6]``: rotation in degrees, scales, shear, shifts; see
            :class:`~gpzoo.Affine`.
        learn: whether they are trained.
        prefix: of the names, where a program has several views.
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
    """Smooth local deformations after small affine maps; trained as ``amplitude``, ``smoothness`` and the bounds.

    Args:
        amplitude: standard deviation of the displacements, in pixels.
        smoothness: of the filter that makes them smooth, in pixels.
        widths: as for :func:`affine`.
        learn: whether all these are trained.
        prefix: of the names, where a program has several views.
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
    # Positive numbers are trained on their logarithm: the steps of an optimiser suit degrees and shifts alike.
    below = numpyro.param(f"{prefix}affine_below", below, constraint=constraints.positive)
    above = numpyro.param(f"{prefix}affine_above", above, constraint=constraints.positive)
    low = numpyro.deterministic(f"{prefix}affine_low", identity - below)
    return low, numpyro.deterministic(f"{prefix}affine_high", identity + above)


def _image_shape(X: Array) -> tuple[int, ...]:
    if X.ndim != 4:
        raise ValueError(
            f"X must be images [N, H, W, C] for this view, got shape {X.shape}; flat ones are X.reshape(-1, H, W, C)."
        )
    return X.shape[1:]
