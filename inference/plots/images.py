"""Pictures of a trained model of images: inducing patches, weights of patches by position, and augmentations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
from jax import Array, random

from gpzoo import _checks as checks
from gpzoo._types import Argument
from gpzoo.inducing.variables import InducingPatches
from gpzoo.inference.fitted.trained import Trained
from gpzoo.inference.plots import _axes as draw
from gpzoo.inference.plots._model import posterior_at
from gpzoo.inference.programs.calls import entry_point
from gpzoo.kernels import Kernel
from gpzoo.kernels.base import addends
from gpzoo.kernels.double_sum import DoubleSum
from gpzoo.views.base import Composed, FixedViews, View
from gpzoo.views.orbits import Orbit
from gpzoo.views.patches import Patches

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Pictures side by side, each with its caption.
_Row: TypeAlias = list[tuple[np.ndarray, str]]

#: Space between pictures, in widths of a picture. The space below a picture has its caption.
_BESIDE, _BELOW = 0.12, 0.3


@entry_point
def inducing_images(
    trained: Trained,
    *args: Argument,
    site: str | None = None,
    count: int = 25,
    model_kwargs: Mapping[str, Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Inducing patches or images, sorted by the posterior means of ``u``, which are written below the pictures.

    If there are more than ``count`` pictures, evenly spaced pictures in this order are shown, among them the first and
    the last one. If there are several outputs, the root mean square over outputs replaces the mean. If ``u`` has blocks
    of several kernels, each block starts a new row.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from gpzoo import unique_patches
        >>> from gpzoo.inference import InducingGuide, Trained, plots
        >>> from gpzoo.models import convolutional_gp
        >>> images = np.random.default_rng(0).uniform(size=(10, 6, 6, 1)).astype(np.float32)
        >>> y, program = np.zeros(10, np.float32), partial(convolutional_gp, patch_shape=(3, 3))
        >>> guide = InducingGuide(program, unique_patches(6))
        >>> start = Trained(program, guide, guide.init_params(jax.random.key(0), images, y))
        >>> len(plots.inducing_images(start, images[:1], y[:1], count=4).images)
        4

    Args:
        trained: the model.
        *args: the program's positional arguments; one row of each argument is enough.
        site: name of the GP site. ``None`` means the only GP site that is not an inner layer.
        count: the largest number of pictures, over all blocks.
        model_kwargs: the program's keyword arguments, by name.
        ax: axes to draw into; ``None`` for a new figure.

    Raises:
        ValueError: if inducing variables are not patches or images, or if the site is unknown.
    """
    count = checks.positive_int("count", count)
    posterior = posterior_at(random.key(0), trained, args, model_kwargs, site)
    mean = np.asarray(posterior.inducing_moments()[0])
    mean = mean[:, None] if mean.ndim == 1 else mean
    pairs = posterior.inducing.pairs(posterior.prior.kernel)
    rows: list[_Row] = []
    start = shown = 0
    for inducing, kernel in pairs:
        pictures = _pictures(inducing, kernel, posterior.site)
        outputs = mean[start : start + len(pictures)]
        start += len(pictures)
        values = outputs[:, 0] if mean.shape[1] == 1 else np.sqrt(np.mean(np.square(outputs), axis=1))
        kept = min(len(pictures), max(1, count // len(pairs)))
        order = np.argsort(values, kind="stable")[np.linspace(0, len(values) - 1, kept).round().astype(int)]
        rows.append([(pictures[i], f"{values[i]:.2g}") for i in order])
        shown += kept
    rows = _cut(rows, int(np.ceil(np.sqrt(shown))))
    first = rows[0][0][0]
    coloured = first.ndim == 3 and first.shape[-1] == 3
    by = "sorted by the posterior mean of u" if mean.shape[1] == 1 else "sorted by the size of u (root mean square)"
    title = f"{shown} of {start} inducing images, {by}" if shown < start else by
    scale = _limits(picture for row in rows for picture, _ in row)
    return _mosaic(ax, rows, title, bar=None if coloured else "pixel", cmap="gray", **scale)


def _cut(rows: list[_Row], columns: int) -> list[_Row]:
    """Rows of at most ``columns`` columns."""
    cut = []
    for row in rows:
        cut += [row[first : first + columns] for first in range(0, len(row), columns)]
    return cut


def _pictures(inducing: Any, kernel: Kernel, site: str) -> np.ndarray:
    """Inducing patches or images, ``[M, h, w]`` or ``[M, h, w, C]``.

    Raises:
        ValueError: if the inducing variables are neither patches nor images.
    """
    if (points := inducing.points()) is not None and points.ndim == 4:
        return np.asarray(points)
    if isinstance(inducing, InducingPatches):
        Z = np.asarray(inducing.Z).reshape(-1, inducing.Z.shape[-1])
        for node in _double_sums(kernel):
            if (shaped := _as_pictures(node.view, Z)) is not None:
                return shaped
    raise ValueError(
        f"The inducing variables of site {site!r} are {type(inducing).__name__} of vectors, not of patches or images."
    )


def _as_pictures(view: Any, vectors: np.ndarray) -> np.ndarray | None:
    """Flattened views ``[M, e]`` in the shape of pictures; ``None`` if they are views of vectors."""
    if isinstance(view, Composed):
        return _as_pictures(view.inner, vectors)
    if isinstance(view, Patches):
        vectors = vectors[:, : view.num_pixels]
        if view.channels != "joint":
            return vectors.reshape(-1, *view.patch_shape)
        # One channel after another.
        return np.moveaxis(vectors.reshape(len(vectors), -1, *view.patch_shape), 1, -1)
    shape = view.sampled.input_shape if isinstance(view, FixedViews) else getattr(view, "input_shape", ())
    return vectors.reshape(-1, *shape) if len(shape) in (2, 3) else None


def _double_sums(kernel: Kernel) -> Iterator[DoubleSum]:
    for _, part in addends(kernel):
        if isinstance(part, DoubleSum):
            yield part


# -- weights -----------------------------------------------------------------------------------------------------------


@entry_point
def patch_weights(
    trained: Trained,
    *args: Argument,
    site: str | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The weights of patches by position in the image: one map for each channel and output that has its own weights.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from gpzoo import unique_patches
        >>> from gpzoo.inference import InducingGuide, Trained, plots
        >>> from gpzoo.models import convolutional_gp
        >>> images = np.random.default_rng(0).uniform(size=(10, 6, 6, 1)).astype(np.float32)
        >>> y, program = np.zeros(10, np.float32), partial(convolutional_gp, patch_shape=(3, 3))
        >>> guide = InducingGuide(program, unique_patches(6))
        >>> start = Trained(program, guide, guide.init_params(jax.random.key(0), images, y))
        >>> plots.patch_weights(start, images[:1], y[:1]).images[0].get_array().shape
        (4, 4)

    Args:
        trained: the model.
        *args: the program's positional arguments; one row of each argument is enough.
        site: name of the GP site. ``None`` means the only GP site that is not an inner layer.
        model_kwargs: the program's keyword arguments, by name.
        ax: axes to draw into; ``None`` for a new figure.

    Raises:
        ValueError: if the kernel of the site has no weights of patches, or if the site is unknown.
    """
    posterior = posterior_at(random.key(0), trained, args, model_kwargs, site)
    maps: _Row = []
    for node in _double_sums(posterior.prior.kernel):
        maps += _maps(node)
    if not maps:
        raise ValueError(f"The kernel of site {posterior.site!r} has no weights of patches.")
    limit = max(float(np.abs(weights).max()) for weights, _ in maps) or 1.0
    scale = {"cmap": draw.DIVERGING, "vmin": -limit, "vmax": limit}
    if len(maps) == 1:
        names = "weight of the patch", "column of the patch (pixels)", "row of the patch (pixels)"
        ax = draw.matrix(ax, maps[0][0], *names, **scale)
        ax.locator_params(integer=True, nbins=6)
        return ax
    rows = _cut([maps], min(len(maps), 3 if len(maps) <= 9 else 5))
    return _mosaic(ax, rows, "places of the patch in the image", bar="weight of the patch", **scale)


def _maps(node: DoubleSum) -> _Row:
    """Weights by position, with a label for each map."""
    view, outer = node.view, 1
    if isinstance(view, Composed):
        view, outer = view.inner, view.outer.num_views
    if node.weights is None or not isinstance(view, Patches):
        return []
    C = view.image_shape[2]
    # A sum over transformed images has the same weights for each image, divided by their number.
    weights = np.asarray(node.weights).reshape(-1, outer, view.num_views).sum(axis=1)
    maps = weights.reshape(len(weights), -1, *view.positions)
    first = view.channels if isinstance(view.channels, int) else 0
    channels = C > 1 and view.channels != "joint"
    captioned = []
    for d, c in np.ndindex(maps.shape[:2]):
        words = [f"output {d}"] * (len(maps) > 1) + [f"channel {first + c}"] * channels
        captioned.append((maps[d, c], ", ".join(words)))
    return captioned


# -- augmentations -----------------------------------------------------------------------------------------------------


@entry_point
def augmentations(
    rng_key: Array,
    trained: Trained,
    *args: Argument,
    site: str | None = None,
    count: int = 8,
    model_kwargs: Mapping[str, Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Input images in frames, each followed by some of its views.

    The views are draws from the learned distribution, or transformed images from the :class:`~gpzoo.Orbit`.

    Example:
        >>> import jax, numpy as np
        >>> from functools import partial
        >>> from gpzoo import unique_patches
        >>> from gpzoo.inference import InducingGuide, Trained, plots
        >>> from gpzoo.models import invariant_gp, rotation
        >>> images = np.random.default_rng(0).uniform(size=(10, 6, 6, 1)).astype(np.float32)
        >>> y, program = np.zeros(10, np.float32), partial(invariant_gp, view=rotation(45.0))
        >>> guide = InducingGuide(program, unique_patches(5))
        >>> start = Trained(program, guide, guide.init_params(jax.random.key(0), images, y))
        >>> ax = plots.augmentations(jax.random.key(1), start, images[:2], y[:2], count=3)
        >>> len(ax.images)
        8

    Args:
        rng_key: key of the views.
        trained: the model.
        *args: the program's positional arguments; the first six rows are shown.
        site: name of the GP site. ``None`` means the only GP site that is not an inner layer.
        count: the largest number of views of an input.
        model_kwargs: the program's keyword arguments, by name.
        ax: axes to draw into; ``None`` for a new figure.

    Raises:
        ValueError: if the kernel of the site has no views of whole images, or if the site is unknown.
    """
    count = checks.positive_int("count", count)
    posterior = posterior_at(rng_key, trained, args, model_kwargs, site)
    view = None
    for node in _double_sums(posterior.prior.kernel):
        view = view or _of_images(node.view)
    images = np.asarray(posterior.prior.X)[:6]
    if view is None or images.ndim != 4:
        raise ValueError(f"The kernel of site {posterior.site!r} has no views of whole images.")
    if isinstance(view, FixedViews):
        # Prediction draws one set of views for all inputs. Here each input has its own set, as in training.
        each = int(min(view.sampled.orbit_size, count))
        drawn = list(np.asarray(_sampled(view.sampled, random.split(rng_key, len(images)), images, each)))
    else:
        drawn = [view.view(image[None])[0][:count] for image in images]
    rows = []
    for own, views in zip(images, drawn, strict=True):
        rows.append([(x, "") for x in (own, *np.asarray(views).reshape(-1, *own.shape))])
    ax = _mosaic(ax, rows, "inputs (framed) and views of them", bar=None, cmap="gray", **_limits(images))
    from matplotlib.patches import Rectangle

    height = images.shape[1] / images.shape[2]
    for i in range(len(rows)):
        corner = (0.0, i * (height + _BESIDE))
        ax.add_patch(Rectangle(corner, 1, height, fill=False, edgecolor=draw.ORANGE, linewidth=1.8, clip_on=False))
    return ax


@partial(jax.jit, static_argnums=3)
def _sampled(view: Any, keys: Array, images: Array, count: int) -> Array:
    """Views of each image, with one key for each image, ``[N, count, ...]``."""
    return jax.vmap(lambda key, image: view.fixed(key, count).view(image[None])[0])(keys, images)


def _of_images(view: Any) -> View | None:
    """The outermost view, if it is a view of whole images."""
    if isinstance(view, Composed):
        return _of_images(view.outer)
    return view if isinstance(view, FixedViews | Orbit) and view.input_ndim == 3 else None


# -- pictures side by side ---------------------------------------------------------------------------------------------


def _limits(pictures: Iterable[np.ndarray]) -> dict[str, float]:
    """The range of pixels from black to white: [0, 1], or more if pixels are outside."""
    low, high = 0.0, 1.0
    for picture in pictures:
        low, high = min(low, float(picture.min())), max(high, float(picture.max()))
    return {"vmin": low, "vmax": high}


def _mosaic(ax: Axes | None, rows: Sequence[_Row], title: str, *, bar: str | None, **scale: Any) -> Axes:
    """Pictures in rows, all one unit wide, with a caption below each picture, and a bar that names the colours."""
    captions = any(caption for row in rows for _, caption in row)
    top, below, width = 0.0, _BELOW if captions else _BESIDE, max(map(len, rows)) * (1 + _BESIDE) - _BESIDE
    each = rows[0][0][0].shape[0] / rows[0][0][0].shape[1] + below
    # Inches of a mosaic that is as wide as a column, with its title but without its colour bar.
    ax = draw.one(ax, height=0.35 + (4.6 if bar is None else 3.95) * len(rows) * each / width)
    drawn = None
    for row in rows:
        height = row[0][0].shape[0] / row[0][0].shape[1]
        for j, (picture, caption) in enumerate(row):
            left = j * (1 + _BESIDE)
            if picture.ndim == 3:
                picture = picture[..., 0] if picture.shape[-1] != 3 else _in_unit(picture, scale)
            place = {"extent": (left, left + 1, top + height, top), "interpolation": "nearest"}
            drawn = draw.image(ax, picture, caption=caption, **place, **scale)
            if caption:
                ax.text(left + 0.5, top + height + 0.03, caption, ha="center", va="top", fontsize=draw.NUMBERS)
        top += height + below
    ax.set(xlim=(-0.02, width + 0.02), ylim=(top - (0 if captions else _BESIDE), -0.02))
    ax.set_aspect("equal")
    ax.set_axis_off()
    ax.set_title(title, fontsize=draw.WORDS)
    if bar is not None:
        draw.colour_bar(ax, drawn, bar)
    return ax


def _in_unit(picture: np.ndarray, scale: Mapping[str, Any]) -> np.ndarray:
    """Colours between 0 and 1."""
    return (picture - scale["vmin"]) / (scale["vmax"] - scale["vmin"])
