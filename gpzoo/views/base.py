"""Base classes of views: maps from an input to vectors for a base process, and distributions over such maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jaxtyping import Float, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo._pytree import Fields, static


class View(Fields):
    """A map from an input to a fixed number of vectors, such as patches or an orbit: the ``T_p x`` of a double sum.

    A subclass has annotated fields (trained arrays and static values), up to three integer properties, and the method
    :meth:`view`, as in the example. :class:`gpzoo.kernels.DoubleSum` gives gradients with respect to the array fields
    and the inputs.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from gpzoo import View, static
        >>> from gpzoo.kernels import RBF, DoubleSum
        >>> class Windows(View):
        ...     length: int = static()
        ...     size: int = static()
        ...
        ...     @property
        ...     def num_views(self):
        ...         return self.length - self.size + 1
        ...
        ...     @property
        ...     def view_size(self):
        ...         return self.size
        ...
        ...     def view(self, X):
        ...         return jnp.stack([X[:, i : i + self.size] for i in range(self.num_views)], axis=1)
        >>> kernel = DoubleSum(RBF(), Windows(length=24, size=3))  # inducing variables: unique_patches(100)
        >>> kernel(np.zeros((2, 24), np.float32))
        Array([[484., 484.],
               [484., 484.]], dtype=float32)
    """

    @property
    def input_ndim(self) -> int:
        """Rank of one input: 1 for vectors, 3 for images ``[H, W, C]``."""
        return 1

    @property
    def num_views(self) -> int:
        """Number of views per input, ``P``."""
        checks.unwritten(self, "num_views")

    @property
    def view_size(self) -> int:
        """Length of a view."""
        checks.unwritten(self, "view_size")

    def view(self, X: Float[Array | np.ndarray, "N ..."]) -> Float[Array, "N P e"]:
        """The views of inputs: ``num_views`` views per input, each with ``view_size`` numbers.

        Raises:
            ValueError: if the view does not take inputs of this shape.
        """
        checks.unwritten(self, "view(X)")


class Composed(View):
    """Views of views: ``inner`` is applied to every view that ``outer`` makes of an input, in order.

    For example, ``Composed(Orbit.of_images((28, 28), rotations=True), Patches((28, 28), (5, 5)))`` gives the patches of
    all rotated images, for an invariant convolution. :func:`gpzoo.kernels.Invariant` makes such views.

    Args:
        outer: view of inputs; each of its views has the size of an input.
        inner: view of the views of ``outer``.
    """

    outer: View
    inner: View

    @property
    def input_ndim(self) -> int:
        """Rank of one input."""
        return self.outer.input_ndim

    @property
    def num_views(self) -> int:
        """``outer.num_views`` times ``inner.num_views``."""
        return self.outer.num_views * self.inner.num_views

    @property
    def view_size(self) -> int:
        """The length of a view of ``inner``."""
        return self.inner.view_size

    def view(self, X: Float[Array | np.ndarray, "N ..."]) -> Float[Array, "N P e"]:
        """The views of inputs: ``num_views`` views per input, each with ``view_size`` numbers.

        Raises:
            ValueError: if ``outer`` or ``inner`` does not take inputs of the shape that it gets.
        """
        views = self.outer.view(X)
        return self.inner.view(views.reshape(-1, *X.shape[1:])).reshape(X.shape[0], -1, self.view_size)


def whole_sizes(name: str, values: Sequence[int], lengths: tuple[int, ...]) -> tuple[int, ...]:
    """``values`` as a tuple of positive integers; the length of the tuple is one of ``lengths``.

    Raises:
        ValueError: if a value is not a positive integer, or for a length that is not in ``lengths``; the message has
            ``name`` and the values.
    """
    values = tuple(values)
    good = len(values) in lengths and all(int(value) == value and value >= 1 for value in values)
    checks.must(good, name, f"be {' or '.join(map(str, lengths))} positive whole numbers", str(values))
    return tuple(int(value) for value in values)


class SampledView(Fields):
    """A distribution of views of an input, such as randomly transformed images.

    A subclass defines two methods. :meth:`noise` draws random numbers for views, and uses no parameter.
    :meth:`transform` makes a view from an input and these numbers. The annotated fields of the subclass are its
    parameters. The distribution is eq. 8 of van der Wilk, Bauer, John and Hensman (2018).

    Inducing variables belong to the space of one flattened view, for images and for vectors. ``unique_patches(100)``
    starts them at views of the data, and ``InducingPatches(Z)`` at any ``Z [M, view_size]``. If views are not drawn but
    given, for example by a data file, override :meth:`sample`.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import SampledView
        >>> class Jitter(SampledView):
        ...     scale: jax.Array
        ...
        ...     def __init__(self, scale):
        ...         super().__init__((3,))
        ...         self.scale = scale
        ...
        ...     def noise(self, key, num_views):
        ...         return jax.random.normal(key, (num_views, 3))
        ...
        ...     def transform(self, x, noise):
        ...         return x + self.scale * noise
        >>> Jitter(0.1).sample(jax.random.key(0), np.zeros((5, 3), np.float32)).shape
        (5, 16, 3)

    Args:
        input_shape: shape of one input, and of one view before it is flattened.
        num_views: number of views per input and step in training, ``S``.
        num_fixed: number of views in prediction.

    Raises:
        ValueError: if there are fewer than two views in training, or fewer than one in prediction.
    """

    num_views: int = static()
    num_fixed: int = static()
    input_shape: tuple[int, ...] = static()

    def __init__(self, input_shape: Sequence[int], num_views: int = 16, num_fixed: int = 64) -> None:
        self.input_shape = tuple(input_shape)
        self.num_views = checks.positive_int("num_views", num_views)
        self.num_fixed = checks.positive_int("num_fixed", num_fixed)
        two = "num_views must be at least 2: an unbiased estimate of a square needs two views."
        checks.refuse(self.num_views < 2 <= self.orbit_size, two)

    # -- methods of a subclass ---------------------------------------------------------------------------------------

    @property
    def orbit_size(self) -> float:
        """Total number of views of an input if :meth:`noise` draws without replacement, else infinity."""
        return math.inf

    def noise(self, key: PRNGKeyArray, num_views: int) -> Any:
        """The random numbers of ``num_views`` views of one input, a pytree with a leading axis of views."""
        checks.unwritten(self, "noise(key, num_views)")

    def transform(self, x: Float[Array, "*shape"], noise: Any) -> Float[Array, "*shape"]:
        """One view of one input ``x``, with the shape of ``x``."""
        checks.unwritten(self, "transform(x, noise)")

    # -- calls -------------------------------------------------------------------------------------------------------

    @property
    def input_ndim(self) -> int:
        """Rank of one input."""
        return len(self.input_shape)

    @property
    def view_size(self) -> int:
        """Numbers per view."""
        return math.prod(self.input_shape)

    def sample(self, key: PRNGKeyArray, X: Float[Array, "N ..."]) -> Float[Array, "N S e"]:
        """``num_views`` random views of each input, drawn separately; each view has ``view_size`` numbers.

        Raises:
            ValueError: if an input does not have the input shape of the view.
        """
        self.check_inputs(X)
        noise = jax.vmap(lambda key: self.noise(key, self.num_views))(random.split(key, X.shape[0]))
        return self._views(X, noise, (0, 0))

    def fixed(self, key: PRNGKeyArray, num_views: int | None = None) -> FixedViews:
        """A view with ``num_views`` transformations that are drawn once and are the same for all inputs.

        If ``num_views`` is ``None``, there are :attr:`num_fixed` transformations.

        Raises:
            ValueError: if ``num_views`` is less than 1 or more than ``orbit_size``.
        """
        num_views = self.num_fixed if num_views is None else checks.positive_int("num_views", num_views)
        too_many = f"num_views is {num_views}, but there are {self.orbit_size} views."
        checks.refuse(num_views > self.orbit_size, too_many)
        return FixedViews(self, self.noise(key, num_views))

    def _views(self, X: Float[Array, "N ..."], noise: Any, axes: tuple) -> Float[Array, "N P e"]:
        of_input = jax.vmap(self.transform, in_axes=(None, 0))
        views = jax.vmap(of_input, in_axes=axes)(X, noise)
        wanted = f"return one view of the input's shape {self.input_shape}"
        good = views.shape[2:] == self.input_shape
        checks.must(good, f"{type(self).__name__}.transform", wanted, str(views.shape[2:]))
        return views.reshape(*views.shape[:2], self.view_size)

    def check_inputs(self, X: Array | np.ndarray) -> None:
        """Refuse inputs whose shape is not ``input_shape``.

        Raises:
            ValueError: if the shapes differ; the message has both shapes.
        """
        each = f"Sampled views take the same X for all outputs, got one per output: {jnp.shape(X)}."
        checks.refuse(jnp.ndim(X) == self.input_ndim + 2, each)
        hint = ". Images of one channel need their last axis too: X[..., None]" if self.input_ndim == 3 else ""
        check_shape(X, self.input_shape, hint)


def check_shape(X: Array | np.ndarray, input_shape: tuple[int, ...], hint: str = "") -> None:
    """Refuse inputs whose shape is not the input shape of a view.

    Raises:
        ValueError: if the shapes differ; the message has both shapes.
    """
    found = tuple(jnp.shape(X))
    checks.must(found[1:] == input_shape, "X", f"be inputs [N, ...] of shape {input_shape}", f"shape {found}", hint)


class FixedViews(View):
    """The views of a :class:`SampledView` under given transformations, which are the same for every input.

    Args:
        sampled: the sampled view.
        noise: random numbers of all transformations, with a leading axis of views; see :meth:`SampledView.noise`.
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
        """Number of transformations."""
        return jax.tree.leaves(self.noise)[0].shape[0]

    def view(self, X: Float[Array | np.ndarray, "N ..."]) -> Float[Array, "N P e"]:
        """The views of inputs: ``num_views`` views per input, each with ``view_size`` numbers.

        Raises:
            ValueError: if an input does not have the input shape of the view.
        """
        self.sampled.check_inputs(X)
        return self.sampled._views(jnp.asarray(X), self.noise, (0, None))
