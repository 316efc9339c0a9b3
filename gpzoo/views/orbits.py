"""Orbits as views: finite sets of inputs with rearranged entries, whole or sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jaxtyping import Float, Integer, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo._pytree import static
from gpzoo.views.base import SampledView, View, check_shape, whole_sizes


class Orbit(View):
    """The orbit of an input under transformations that move its entries: rotations, flips, shifts, permutations.

    A kernel that is invariant to a finite group has orbits as its views (van der Wilk, Rasmussen and Hensman 2017,
    appendix D.2, eq. D.29). If the transformations include every element of the group, ``DoubleSum(base, Orbit(...))``
    is the prior of functions that do not change under the transformations. A view here is one transformed input,
    flattened.

    For example, ``Orbit.of_images((28, 28), rotations=True, shifts=1)`` is for images, and ``Orbit([(0, 1), (1, 0)])``
    is for functions with ``f(x, y) = f(y, x)``.

    Example:
        >>> import numpy as np
        >>> from gpzoo import Orbit
        >>> Orbit.of_images((8, 8), rotations=True, flips=True).num_views
        8

    Args:
        table: ``[P, size]`` integers. Entry ``i`` of view ``p`` is entry ``table[p, i]`` of the flattened input, or
            zero if ``table[p, i]`` is -1. Equal rows count once.
        input_shape: shape of one input; a vector if ``None``.

    Raises:
        ValueError: if the table does not have two axes, or an entry is out of range or repeated within a row.
    """

    table: Integer[np.ndarray, "P e"] = static()
    input_shape: tuple[int, ...] = static()

    def __init__(self, table: Any, input_shape: Sequence[int] | None = None) -> None:
        table = np.asarray(table)
        good = table.ndim == 2 and table.size and np.issubdtype(table.dtype, np.integer)
        checks.must(good, "table", "be integers [views, size]", f"{table.dtype} of shape {table.shape}")
        shape = (table.shape[1],) if input_shape is None else whole_sizes("input_shape", input_shape, (1, 2, 3))
        size = int(np.prod(shape))
        checks.must(
            table.shape[1] == size and table.min() >= -1 and table.max() < size,
            "table",
            f"have {size} columns for inputs of shape {shape}, with entries from -1 to {size - 1};",
            f"shape {table.shape}, entries from {table.min()} to {table.max()}",
        )
        ordered = np.sort(table, axis=1)
        twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)
        row = int(np.argmax(twice))
        checks.refuse(
            twice.any(),
            f"Every row of table moves the entries of an input, each to one place, but row {row}, "
            f"{np.array2string(table[row], threshold=8)}, has an entry twice: no group of transformations has it. "
            "Give permutations, with -1 for zero.",
        )
        first = np.sort(np.unique(table, axis=0, return_index=True)[1])
        self.table, self.input_shape = table[first].astype(np.int32), shape

    @classmethod
    def of_images(
        cls, image_shape: Sequence[int], *, rotations: bool = False, flips: bool = False, shifts: int = 0
    ) -> Orbit:
        """The orbit of images ``[H, W, C]`` under all compositions of the chosen transformations, the identity first.

        Args:
            image_shape: ``(H, W)`` for one channel, or ``(H, W, C)``.
            rotations: whether to rotate by multiples of 90 degrees; images must be square.
            flips: whether to flip left to right, and top to bottom.
            shifts: largest shift along both axes, in pixels. Pixels from outside the image are zero. So a kernel is
                invariant to shifts except for the pixels that leave the image.

        Raises:
            ValueError: if images to be rotated are not square, or a shift is as long as the image.
        """
        shape = whole_sizes("image_shape", image_shape, (2, 3))
        shape = shape if len(shape) == 3 else (*shape, 1)
        H, W, _ = shape
        not_square = f"Rotations by 90 degrees need square images, got image_shape {shape}."
        checks.refuse(rotations and H != W, not_square)
        good = shifts == int(shifts) and 0 <= shifts < min(H, W)
        checks.must(good, "shifts", f"be between 0 and {min(H, W) - 1} pixels", str(shifts))
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
        """Size of an input."""
        return self.table.shape[1]

    def view(self, X: Float[Array | np.ndarray, "N ..."]) -> Float[Array, "N P e"]:
        """The orbits of inputs.

        Raises:
            ValueError: if an input does not have the input shape of the view.
        """
        check_shape(X, self.input_shape)
        return rearranged(X.reshape(X.shape[0], -1), self.table)


def rearranged(rows: Float[Array | np.ndarray, "N e"], table: Any) -> Float[Array, "N P e"]:
    """For each row of ``rows``, the entries with the numbers in ``table [P, e]``; zero where the table has -1."""
    # In jnp.take, -1 would count from the end. The number after the last index gives the fill value.
    inside = jnp.where(jnp.asarray(table) < 0, rows.shape[1], table)
    return jnp.take(rows, inside, axis=1, mode="fill", fill_value=0)


# -- any inputs --------------------------------------------------------------------------------------------------------


class Subsampled(SampledView):
    """Some views of a finite orbit, drawn without replacement (van der Wilk et al. 2018, section 4.4 and appendix B).

    These views estimate the kernel of the whole orbit. The estimates are exact if ``num_views`` is the orbit's size.

    Example:
        >>> from gpzoo import Orbit, Subsampled
        >>> some = Subsampled(Orbit.of_images((8, 8), rotations=True, flips=True), num_views=3)
        >>> some.num_views, some.orbit_size
        (3, 8)

    Args:
        orbit: the whole orbit.
        num_views: number of views per input and step in training.
        num_fixed: number of views in prediction; ``None`` means all views.

    Raises:
        TypeError: if ``orbit`` is not an :class:`~gpzoo.Orbit`.
        ValueError: if ``num_views`` is less than two, or a number of views exceeds the size of the orbit.
    """

    orbit: Orbit = static()

    def __init__(self, orbit: Orbit, num_views: int, *, num_fixed: int | None = None) -> None:
        self.orbit = checks.instance("orbit", orbit, Orbit, "a gpzoo.views.Orbit")
        super().__init__(orbit.input_shape, num_views, orbit.num_views if num_fixed is None else num_fixed)
        few = f"num_views is {self.num_views} and num_fixed {self.num_fixed}, but the orbit has {orbit.num_views}."
        checks.refuse(max(self.num_views, self.num_fixed) > orbit.num_views, few)

    @property
    def orbit_size(self) -> float:
        """Size of the orbit."""
        return self.orbit.num_views

    def noise(self, key: PRNGKeyArray, num_views: int) -> Integer[Array, "{num_views} e"]:
        """Distinct rows of the orbit's table."""
        return jnp.asarray(self.orbit.table)[random.permutation(key, self.orbit.num_views)[:num_views]]

    def transform(self, x: Float[Array, "*shape"], noise: Integer[Array, " e"]) -> Float[Array, "*shape"]:
        """One of the views."""
        return rearranged(x.reshape(1, -1), noise[None])[0, 0].reshape(x.shape)
