"""What a view is: a map from an input to the vectors that a base process responds to, or a distribution over maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jaxtyping import Float, PRNGKeyArray

from gpzoo._checks import positive_int
from gpzoo._pytree import Fields, static


class View(Fields):
    """A map from an input to a fixed number of vectors: patches, an orbit; the ``T_p x`` of a double sum.

    A subclass has annotated fields (arrays that are trained, static ones that are not), three numbers, and
    :meth:`view`::

        class Windows(View):
            length: int = static()
            size: int = static()

            @property
            def num_views(self):
                return self.length - self.size + 1

            @property
            def view_size(self):
                return self.size

            def view(self, X):
                return jnp.stack([X[:, i : i + self.size] for i in range(self.num_views)], axis=1)

        kernel = DoubleSum(RBF(), Windows(length=24, size=3))    # inducing variables: unique_patches(100)

    Gradients reach its array fields, and the inputs, through :class:`gpzoo.kernels.DoubleSum`.
    """

    @property
    def input_ndim(self) -> int:
        """Rank of one input: 1 for vectors, 3 for images ``[H, W, C]``."""
        return 1

    @property
    def num_views(self) -> int:
        """Views per input, ``P``."""
        raise NotImplementedError(f"{type(self).__name__} does not define num_views.")

    @property
    def view_size(self) -> int:
        """Numbers per view."""
        raise NotImplementedError(f"{type(self).__name__} does not define view_size.")

    def view(self, X: Float[Array | np.ndarray, "N ..."]) -> Float[Array, "N P e"]:
        """The views of inputs, ``num_views`` of ``view_size`` numbers each.

        Raises:
            ValueError: if an input has another shape than the view takes.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define view(X).")


class Composed(View):
    """Views of views: the views that ``inner`` has of every view that ``outer`` has of an input, in that order.

    A convolution under an orbit, ``Composed(Orbit.of_images((28, 28), rotations=True), Patches((28, 28), (5, 5)))``,
    has the patches of all turned images. :func:`gpzoo.kernels.Invariant` makes these.

    Args:
        outer: view of inputs; its views have the shape of an input.
        inner: view of those.
    """

    outer: View
    inner: View

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

    def view(self, X: Float[Array | np.ndarray, "N ..."]) -> Float[Array, "N P e"]:
        """The views of inputs, ``num_views`` of ``view_size`` numbers each.

        Raises:
            ValueError: if an input has another shape than one of the views takes.
        """
        views = self.outer.view(X)
        return self.inner.view(views.reshape(-1, *X.shape[1:])).reshape(X.shape[0], -1, self.view_size)


def whole_sizes(name: str, values: Sequence[int], lengths: tuple[int, ...]) -> tuple[int, ...]:
    """``values`` as a tuple of positive whole numbers, as many as one of ``lengths``.

    Raises:
        ValueError: naming what they are of.
    """
    values = tuple(values)
    if len(values) not in lengths or any(int(value) != value or value < 1 for value in values):
        wanted = " or ".join(str(length) for length in lengths)
        raise ValueError(f"{name} must be {wanted} positive whole numbers, got {values}.")
    return tuple(int(value) for value in values)


class SampledView(Fields):
    """A distribution of views of an input (learning invariances, eq. 8).

    A subclass says what the randomness of one view is, free of parameters, and what it does to an input:
    :meth:`noise` and :meth:`transform`. Its annotated fields are its parameters::

        class Jitter(SampledView):
            scale: Array

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

    num_views: int = static()
    num_fixed: int = static()
    input_shape: tuple[int, ...] = static()

    def __init__(self, input_shape: Sequence[int], num_views: int = 16, num_fixed: int = 64) -> None:
        self.input_shape = tuple(input_shape)
        self.num_views = positive_int("num_views", num_views)
        self.num_fixed = positive_int("num_fixed", num_fixed)
        if self.num_views < 2 <= self.orbit_size:
            raise ValueError("num_views must be at least 2: an unbiased estimate of a square needs two views.")

    # -- what a subclass writes --------------------------------------------------------------------------------------

    @property
    def orbit_size(self) -> float:
        """How many views an input has in all, if :meth:`noise` draws them without replacement; else infinite."""
        return math.inf

    def noise(self, key: PRNGKeyArray, num_views: int) -> Any:
        """The randomness of ``num_views`` views of one input, a pytree with a leading axis of views."""
        raise NotImplementedError(f"{type(self).__name__} does not define noise(key, num_views).")

    def transform(self, x: Float[Array, "*shape"], noise: Any) -> Float[Array, "*shape"]:
        """One view of one input ``x``, whose shape it has."""
        raise NotImplementedError(f"{type(self).__name__} does not define transform(x, noise).")

    # -- what everyone calls -----------------------------------------------------------------------------------------

    @property
    def input_ndim(self) -> int:
        """Rank of one input."""
        return len(self.input_shape)

    @property
    def view_size(self) -> int:
        """Numbers per view."""
        return math.prod(self.input_shape)

    def sample(self, key: PRNGKeyArray, X: Float[Array, "N ..."]) -> Float[Array, "N S e"]:
        """Views of inputs, each input's own: ``num_views`` of ``view_size`` numbers.

        Raises:
            ValueError: if an input has another shape.
        """
        self.check_inputs(X)
        noise = jax.vmap(lambda key: self.noise(key, self.num_views))(random.split(key, X.shape[0]))
        return self._views(X, noise, (0, 0))

    def fixed(self, key: PRNGKeyArray, num_views: int | None = None) -> FixedViews:
        """A view with ``num_views`` (or ``num_fixed``) transformations drawn now, the same for every input.

        Raises:
            ValueError: for no views, or more than there are.
        """
        num_views = self.num_fixed if num_views is None else positive_int("num_views", num_views)
        if num_views > self.orbit_size:
            raise ValueError(f"num_views is {num_views}, but there are {self.orbit_size} views.")
        return FixedViews(self, self.noise(key, num_views))

    def _views(self, X: Float[Array, "N ..."], noise: Any, axes: tuple) -> Float[Array, "N P e"]:
        of_input = jax.vmap(self.transform, in_axes=(None, 0))
        views = jax.vmap(of_input, in_axes=axes)(X, noise)
        if views.shape[2:] != self.input_shape:
            raise ValueError(
                f"{type(self).__name__}.transform must return one view of the input's shape {self.input_shape}, got "
                f"{views.shape[2:]}."
            )
        return views.reshape(*views.shape[:2], self.view_size)

    def check_inputs(self, X: Array | np.ndarray) -> None:
        """Refuse inputs of another shape than ``input_shape``.

        Raises:
            ValueError: naming both.
        """
        if jnp.ndim(X) == self.input_ndim + 2:
            raise ValueError(f"Sampled views take the same X for all outputs, got one per output: {jnp.shape(X)}.")
        if tuple(jnp.shape(X)[1:]) != self.input_shape:
            hint = " Images of one channel need their last axis too: X[..., None]." if self.input_ndim == 3 else ""
            raise ValueError(
                f"X must be inputs [N, ...] of shape {self.input_shape}, got shape {tuple(jnp.shape(X))}.{hint}"
            )


class FixedViews(View):
    """The views of a :class:`SampledView` under given transformations, which every input shares.

    Args:
        sampled: the view.
        noise: of each transformation, with a leading axis of views; see :meth:`SampledView.noise`.
    """

    sampled: SampledView
    noise: Any

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

    def view(self, X: Float[Array | np.ndarray, "N ..."]) -> Float[Array, "N P e"]:
        """The views of inputs, ``num_views`` of ``view_size`` numbers each.

        Raises:
            ValueError: if an input has another shape.
        """
        self.sampled.check_inputs(X)
        return self.sampled._views(jnp.asarray(X), self.noise, (0, None))
