"""Kernels of functions that sum one base process over views of their input: convolutions, invariances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, random
from jaxtyping import Float, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo._pytree import static
from gpzoo._types import ArrayLike
from gpzoo.kernels import _view_sums as view_sums
from gpzoo.kernels.base import Kernel, Sum, Wrapper, addends
from gpzoo.linalg.operators import matmul
from gpzoo.views.base import Composed, SampledView, View
from gpzoo.views.patches import Patches


class DoubleSum(Wrapper):
    """The prior of ``f(x) = sum_p w_p g(T_p x)``, where ``T_p x`` are the views of ``x`` and ``g`` has the base kernel.

    Views are vectors made from an input, such as the patches of an image (:class:`~gpzoo.View`). The equations of
    convolutional GPs (van der Wilk, Rasmussen and Hensman 2017) are

    * eq. 14, and eq. 18 with weights: ``k_f(x, x') = sum_pq w_p w_q k_g(T_p x, T_q x')``;
    * eq. 15 and 19: ``k_fu(x, z) = sum_p w_p k_g(T_p x, z)`` with ``u = g(z)`` (:meth:`cross_view`);
    * eq. 16: ``k_uu = k_g``.

    Appendix D of the same paper has this kernel with other views than patches.

    White noise in the base is independent noise on every response ``g(T_p x)``. It adds ``sum_p w_p^2`` times the
    variance of the noise to the diagonal. It adds nothing to covariances between different inputs.

    gpzoo computes in chunks of inputs, so memory never holds the covariances between all views of a batch.

    With the following base kernels, only reverse-mode gradients are possible, because gpzoo computes these gradients
    together with the values:

    * an :class:`~gpzoo.kernels.RBF` with a single lengthscale;
    * a product of RBFs with a single lengthscale each, on separate columns;
    * a sum that contains one of these kernels.

    For forward mode, give an RBF one lengthscale per column, ``jnp.full(view_size, lengthscale)``.

    Example:
        >>> import numpy as np
        >>> from gpzoo import Orbit
        >>> from gpzoo.kernels import RBF, DoubleSum
        >>> swapped = DoubleSum(RBF(), Orbit([(0, 1), (1, 0)]), mean=True)
        >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [3.0, 3.0]], np.float32)
        >>> np.asarray(swapped(X)).round(2)
        array([[0.68, 0.68, 0.  ],
               [0.68, 0.68, 0.  ],
               [0.  , 0.  , 1.  ]], dtype=float32)

    Args:
        base: kernel on views. Views are vectors of length ``view.view_size``.
        view: the map from inputs to their views, a :class:`~gpzoo.views.View` such as :class:`gpzoo.Patches`; or a
            :class:`~gpzoo.SampledView` for the mean over a distribution of views (:func:`Invariant`).
        weights: one for each of the ``P`` views of an input, ``[P]``, or ``[D, P]`` for one kernel per output. ``None``
            sets all weights to 1.
        mean: divide the weights by ``P``, so that ``f`` is the weighted mean of the responses, not their sum. This
            divides ``k_f`` by ``P^2`` and ``k_fu`` by ``P``.

    Raises:
        TypeError: if ``base`` is not a kernel, or ``view`` is not a view.
        ValueError: if the base does not take vectors, or the number of weights is not the number of views; if a sampled
            view is given together with weights, with ``mean=False``, or with one base kernel per output; if views have
            a continuous distribution and the base has white noise.
    """

    base: Kernel
    view: View | SampledView
    weights: Float[Array, "*D P"] | None
    mean: bool = static()

    def __init__(
        self, base: Kernel, view: View | SampledView, weights: Array | None = None, *, mean: bool = False
    ) -> None:
        checks.instance("base", base, Kernel, "a kernel")
        checks.instance("view", view, View | SampledView, "a gpzoo.views.View, such as Patches;")
        sampled = isinstance(view, SampledView)
        nested = sampled and isinstance(base, DoubleSum) and base.input_ndim == view.input_ndim
        checks.refuse(
            base.input_ndim not in (1, None) and not nested,
            f"base must be a kernel on vectors (a view is one), but {type(base).__name__} takes inputs of rank "
            f"{base.input_ndim}.",
        )
        checks.refuse(
            sampled and (weights is not None or not mean or base.batched),
            "Sampled views stand for a distribution, and f is the mean over it: DoubleSum takes them with "
            "mean=True, without weights, and with one base kernel for all outputs. Invariant(base, view) makes it.",
        )
        checks.refuse(
            sampled and math.isinf(view.orbit_size) and base.split_noise()[1] is not None,
            "White noise in the base is independent noise on every response, which vanishes in the mean over a "
            "density of views: add White to the kernel instead, Invariant(base, view) + White(variance).",
        )
        if weights is not None:
            weights = checks.floating("weights", weights)
            good = weights.ndim in (1, 2) and weights.shape[-1] == view.num_views
            one_each = f"with one weight for each of the P = {view.num_views} views"
            wanted = f"be [P] (or [D, P], one row per output) {one_each}"
            checks.must(good, "weights", wanted, f"shape {tuple(weights.shape)}")
        self.base, self.view, self.weights, self.mean = base, view, weights, bool(mean)

    @property
    def input_ndim(self) -> int:
        """Rank of a single input: the rank that the view takes."""
        return self.view.input_ndim

    @property
    def batched(self) -> bool:
        """Whether the weights or the base kernel have a leading axis of outputs."""
        return self.base.batched or (self.weights is not None and jnp.ndim(self.weights) == 2)

    def batch_axes(self) -> Kernel:
        """See :meth:`Kernel.batch_axes`."""
        base = self.base.batch_axes() if self.base.batched else jax.tree.map(lambda _: None, self.base)
        weights = 0 if self.weights is not None and jnp.ndim(self.weights) == 2 else None
        return self._with_fields(base=base, view=jax.tree.map(lambda _: None, self.view), weights=weights)

    def _way_out(self, X: Float[Array, "..."], name: str) -> str:
        rank, view = X.ndim - 1, type(self.view).__name__
        if rank <= self.input_ndim:
            return super()._way_out(X, name)
        return f" A view of such inputs has input_ndim = {rank}, and that of {view} is {self.input_ndim}."

    def check_inputs(self, X: ArrayLike, name: str = "X") -> Float[Array, "..."]:
        """See :meth:`Kernel.check_inputs`; also refuses wrong shapes of inputs or of the view's results."""
        X = super().check_inputs(X, name)
        # Views are later evaluated input by input. Here, the view's own checks can still name the user's shape.
        inputs: Any = jax.ShapeDtypeStruct(X.shape[X.ndim - self.input_ndim - 1 :], X.dtype)
        if isinstance(self.view, SampledView):
            self.view.check_inputs(inputs)
            return X
        found = jax.eval_shape(self.view.view, inputs).shape
        named = (inputs.shape[0], self.view.num_views, self.view.view_size)
        wanted = f"give [N, num_views, view_size] = {named} for inputs of shape {inputs.shape}"
        checks.must(found == named, f"{type(self.view).__name__}.view", wanted, f"shape {found}")
        return X

    def cross_view(self, X: Array, Z: Array) -> Float[Array, "*D N M"]:
        """Covariance of ``f`` at inputs with the base process ``g`` at vectors: ``sum_p w_p k_g(T_p x, z)``.

        This is eq. 15 and 19 of van der Wilk, Rasmussen and Hensman (2017). It is the transpose of ``Kuf`` for inducing
        patches.

        Args:
            X: inputs ``[N, ...]`` or ``[D, N, ...]``.
            Z: vectors in the space of the views, ``[M, view_size]`` or ``[D, M, view_size]``.

        Returns:
            ``[N, M]``, with a leading ``D`` if the kernel, ``X`` or ``Z`` has one.

        Raises:
            ValueError: if ``X`` or ``Z`` has the wrong shape.
        """
        X, Z = self.check_inputs(X), checks.floating("Z", Z)
        size = self.view.view_size
        wanted = f"be [M, {size}], one flattened view per row (or [D, M, {size}], one set per output)"
        checks.must(Z.ndim in (2, 3) and Z.shape[-1] == size, "Z", wanted, f"shape {tuple(Z.shape)}")
        several = [name for name, many in (("X", self.has_outputs(X)), ("Z", Z.ndim == 3)) if many]
        return self._vectorised(DoubleSum._cross_view, {"X": X, "Z": Z}, several)

    def _weights(self, dtype: Any) -> Float[Array, " P"]:
        checks.refuse(
            isinstance(self.view, SampledView),
            "A kernel over sampled views has no closed form: only GaussianProcessELBO can estimate its moments. "
            "Take inducing variables of the base process (unique_patches(M), InducingPatches(Z)); for anything "
            "exact (NUTS, regression without inducing variables, a Gram matrix) draw the views first: "
            "gpzoo.kernels.with_fixed_views(kernel, key).",
            TypeError,
        )
        weights = jnp.ones(self.view.num_views, dtype) if self.weights is None else self.weights
        return weights / self.view.num_views if self.mean else weights

    def _cross_view(self, X: Float[Array, "N ..."], Z: Float[Array, "M e"]) -> Float[Array, "N M"]:
        return view_sums.cross_view(self.base, self.view, self._weights(X.dtype), X, Z)

    def variances(self, X: Float[Array, "N ..."]) -> Float[Array, " N"]:
        """The double sum over the views of each input."""
        return view_sums.diag(self.base, self.view, self._weights(X.dtype), X)

    def cross(self, X: Float[Array, "N ..."], Z: Float[Array, "M ..."]) -> Float[Array, "N M"]:
        """The double sum over the views of all pairs of inputs."""
        view: Any = self.view
        weights = self._weights(X.dtype)
        views = jax.checkpoint(lambda z: matmul(self._cross_view(X, view.view(z[None])[0]), weights))
        return jax.lax.map(views, Z).T

    def gram(self, X: Float[Array, "N ..."]) -> Float[Array, "N N"]:
        """:meth:`cross`, with :meth:`variances` on the diagonal. They contain the white noise of the base."""
        index = jnp.arange(X.shape[0])
        return self.cross(X, X).at[index, index].set(self.variances(X))


def Invariant(base: Kernel, view: View | SampledView) -> DoubleSum:
    """The kernel of functions that change little or not at all if their input is transformed.

    ``f(x)`` is the mean of a base process ``g`` over the views of ``x``: a :class:`DoubleSum` with ``mean=True``. With
    an :class:`~gpzoo.Orbit`, the mean is over the whole orbit, and ``f`` is invariant. With a
    :class:`~gpzoo.SampledView`, the mean is over the distribution ``p(x_a | x)`` of the views ``x_a`` of ``x``, and
    samples estimate this mean. See eq. 7 and 8 of van der Wilk, Bauer, John and Hensman (2018, *Learning invariances
    using the marginal likelihood*).

    Example:
        >>> import numpy as np
        >>> from gpzoo import Orbit
        >>> from gpzoo.kernels import RBF, Invariant
        >>> kernel = Invariant(RBF(), Orbit.of_images((2, 2), rotations=True))
        >>> images = np.zeros((2, 2, 2, 1), np.float32)
        >>> images[0, 0, 0] = images[1, 1, 1] = 1.0  # the second is the first, turned by 180 degrees
        >>> np.asarray(kernel(images)).round(2)
        array([[0.53, 0.53],
               [0.53, 0.53]], dtype=float32)

    Args:
        base: kernel on flattened views; or a :class:`DoubleSum` on inputs, such as :func:`Convolutional`. In the second
            case, ``f`` is an invariant convolution: a sum over the patches of all views.
        view: an orbit or a sampled view.

    Raises:
        TypeError: if ``base`` is not a kernel, or ``view`` is not a view.
        ValueError: if ``base`` and ``view`` do not fit each other.
    """
    checks.refuse(
        not isinstance(base, DoubleSum) and any(isinstance(part, DoubleSum) for _, part in addends(base)),
        "The base of Invariant is one DoubleSum, or a kernel on vectors: scale and add outside, "
        "2.0 * Invariant(Convolutional(...), view) + White(variance).",
    )
    if not isinstance(base, DoubleSum) or isinstance(view, SampledView):
        return DoubleSum(base, view, mean=True)
    inside = "Sampled views must be outermost; the base of Invariant(base, view) has sampled views."
    checks.refuse(isinstance(base.view, SampledView), inside)
    # One sum over all views of views. If there are weights, the mean over the outer views becomes a part of them.
    if base.mean and base.weights is None:
        return DoubleSum(base.base, Composed(view, base.view), mean=True)
    weights = jnp.ones(base.view.num_views) if base.weights is None else base.weights
    weights = jnp.tile(weights, view.num_views) / (1 if base.mean else view.num_views)
    return DoubleSum(base.base, Composed(view, base.view), weights, mean=base.mean)


def has_sampled_views(kernel: Any) -> bool:
    """Whether a kernel contains a :class:`~gpzoo.SampledView`, and therefore has no closed form."""
    return any(_over_sampled(node) for node in jax.tree.leaves(kernel, is_leaf=_over_sampled))


def with_fixed_views(kernel: Kernel, key: PRNGKeyArray, num_views: int | None = None) -> Kernel:
    """The kernel with views that are drawn once and are the same for every input; it has a closed form.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import Rotation
        >>> from gpzoo.kernels import RBF, Invariant, with_fixed_views
        >>> kernel = Invariant(RBF(1.0, 3.0), Rotation((6, 6), 45.0))
        >>> fixed = with_fixed_views(kernel, jax.random.key(0), num_views=8)
        >>> fixed(np.zeros((2, 6, 6, 1), np.float32))
        Array([[1., 1.],
               [1., 1.]], dtype=float32)

    Args:
        kernel: a kernel with sampled views (:class:`~gpzoo.SampledView`).
        key: random key of the draw.
        num_views: number of views; ``None`` means the ``num_fixed`` of each sampled view.
    """
    nodes, structure = jax.tree.flatten(kernel, is_leaf=_over_sampled)
    keys = random.split(key, len(nodes))
    fixed = [
        Invariant(node.base, node.view.fixed(k, num_views)) if _over_sampled(node) else node
        for k, node in zip(keys, nodes, strict=True)
    ]
    return jax.tree.unflatten(structure, fixed)


def _over_sampled(node: Any) -> bool:
    return isinstance(node, DoubleSum) and isinstance(node.view, SampledView)


def Convolutional(
    base: Kernel,
    image_shape: Sequence[int],
    patch_shape: Sequence[int],
    weights: Array | None = None,
    *,
    mean: bool = False,
    channels: str | int = "separate",
    places: bool = False,
    stride: int = 1,
) -> DoubleSum:
    """The convolutional kernel: a :class:`DoubleSum` over the patches of an image.

    See eq. 14 and 18 of van der Wilk, Rasmussen and Hensman (2017).

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import RBF, Convolutional
        >>> Convolutional(RBF(), (8, 8), (3, 3))(np.zeros((2, 8, 8, 1), np.float32))
        Array([[1296., 1296.],
               [1296., 1296.]], dtype=float32)

    Args:
        base: kernel on flattened patches, ``[h w]``.
        image_shape: ``(H, W)`` or ``(H, W, C)``.
        patch_shape: ``(h, w)``.
        weights: one for each of the ``P`` patches, ``[P]`` (``[D, P]`` for one kernel per output). ``None`` sets all
            weights to 1, which makes the kernel invariant to translations.
        mean: divide the weights by ``P``, as the authors' code does.
        channels: treatment of colour (section 4.4 of this paper), see :class:`~gpzoo.Patches`. With ``"separate"``, a
            patch has one channel. With ``"joint"``, a patch has all channels (the colour-patch kernel). If the base is
            then a sum over the channels' columns, the kernel is additive (eq. 25 of this paper).
        places: whether the last two columns of a patch are its position (see :class:`~gpzoo.Patches`). With a base
            ``k_patch * k_place``, this is the translation-insensitive convolutional kernel, TICK (Dutordoir, van der
            Wilk, Artemev and Hensman 2020).
        stride: pixels from one patch to the next.

    Raises:
        TypeError: if ``base`` is not a kernel.
        ValueError: if the shapes do not fit each other.
    """
    view = Patches(image_shape, patch_shape, channels=channels, places=places, stride=stride)
    return DoubleSum(base, view, weights, mean=mean)


def MultiChannel(
    base: Kernel | Sequence[Kernel],
    image_shape: Sequence[int],
    patch_shape: Sequence[int],
    weights: Array | None = None,
    *,
    mean: bool = False,
) -> Sum:
    """The multi-channel convolutional kernel, with one patch response per channel (van der Wilk et al. 2017, eq. 22).

    It is the kernel of ``f(x) = sum_c sum_p w_pc g_c(x[pc])``, where ``x[pc]`` is patch ``p`` of channel ``c``. It is a
    sum of one :class:`DoubleSum` per channel. The inducing variables are blocks with the same patches for every channel
    (eq. 23 of this paper): ``blocks(unique_patches(1000))``.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import RBF, MultiChannel
        >>> kernel = MultiChannel(RBF(), (8, 8, 3), (3, 3))
        >>> len(kernel.parts), kernel(np.zeros((2, 8, 8, 3), np.float32)).shape
        (3, (2, 2))

    Args:
        base: one kernel on flattened patches ``[h w]`` for all ``g_c``, or one kernel per channel. With one kernel for
            all, ``Kuu`` is factorised once (eq. C.21 of this paper).
        image_shape: ``(H, W, C)``.
        patch_shape: ``(h, w)``.
        weights: one per channel and patch position, ``[C, (H - h + 1) (W - w + 1)]``, the same for all outputs;
            ``None`` sets all weights to 1.
        mean: divide the weights by the number of patches of all channels.

    Raises:
        TypeError: if ``base`` is not a kernel.
        ValueError: if the shapes do not fit each other.
    """
    checks.must(len(image_shape) == 3, "image_shape", "be (H, W, C)", str(tuple(image_shape)))
    C = int(image_shape[2])
    bases = [base] * C if isinstance(base, Kernel) else list(base) if isinstance(base, Sequence) else [base]
    views = [Patches(image_shape, patch_shape, channels=c) for c in range(C)]
    checks.must(len(bases) == C, "base", f"be one kernel or one for each of {C} channels", str(len(bases)))
    weights = jnp.ones((C, views[0].num_views)) if weights is None else checks.floating("weights", weights)
    wanted, found = (C, views[0].num_views), jnp.shape(weights)
    checks.must(found == wanted, "weights", f"be [C, P] = {wanted}", f"shape {found}")
    scaled = weights / C if mean else weights
    return Sum(*(DoubleSum(*part, mean=mean) for part in zip(bases, views, scaled, strict=True)))
