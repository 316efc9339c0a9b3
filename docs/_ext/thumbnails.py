"""Pictures of the gallery: one of each program, from a training of seconds.

python docs/_ext/thumbnails.py [NAME ...]
"""

import io
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from flax import nnx
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpyro.infer import SVI
from PIL import Image
from scipy.ndimage import gaussian_filter, rotate, uniform_filter, zoom

import gpzoo.inference.plots as plots
from gpzoo import InducingGrid, InducingPoints, Orbit, Patches, blocks, kmeans, models, random_subset, unique_patches
from gpzoo.inference import Amortised, GaussianProcessELBO, ImportanceWeightedELBO, InducingGuide, PerRow, Trained, fit
from gpzoo.inference.plots._axes import BLUE, DIVERGING, ENDS, GREEN, ORANGE, PURPLE, SEQUENTIAL, VERMILION
from gpzoo.kernels import RBF, Kernel
from gpzoo.likelihoods import Softmax
from gpzoo.reproductions import datasets

DOCS = Path(__file__).resolve().parents[1]
KEY = jax.random.key(0)
COLOURS = np.array([to_rgb(colour) for colour in (BLUE, VERMILION, GREEN, ORANGE, PURPLE)])
PATCH = (3, 3)


def train(program: Callable, start: Any, *data: Any, steps: int = 600, rate: float = 0.03, **options: Any) -> Trained:
    """A program trained with Adam; options are those of its guide and of ``fit``, and the bound."""
    names = {"hyperparameters", "initial_scale", "covariance"} & options.keys()
    guide = InducingGuide(program, start, **{name: options.pop(name) for name in names})
    svi = SVI(program, guide, optax.adam(rate), options.pop("bound", GaussianProcessELBO()))
    return fit(KEY, svi, steps, *data, progress=False, **options)


def single(values: Any) -> np.ndarray:
    """Numbers in single precision."""
    return np.asarray(values, np.float32)


def plane(low: Any, high: Any, counts: tuple[int, int]) -> np.ndarray:
    """Points of a grid, ``[N, 2]``, row by row from the lowest."""
    return single(np.stack(np.meshgrid(*map(np.linspace, low, high, counts)), axis=-1).reshape(-1, 2))


def digits(*classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images of some digits with labels from 0, for training and for testing."""
    data = datasets.load("digits")
    few, new = (np.isin(y, classes) for y in (data.y_train, data.y_test))
    y, y_test = np.searchsorted(classes, data.y_train[few]), np.searchsorted(classes, data.y_test[new])
    return data.X_train[few], y, data.X_test[new], y_test


def pick(y: np.ndarray, *pairs: tuple[int, int]) -> list[int]:
    """Rows, of which each is named by its class and its number within it."""
    return [int(np.flatnonzero(y == k)[i]) for k, i in pairs]


def mean_at(trained: Trained, data: tuple, kernel: Kernel, inputs: Any) -> np.ndarray:
    """Posterior means at inputs ``[..., d]`` of the functions of ``f``, or of its blocks, ``[..., D]``."""
    Z, u = jax.tree.leaves(trained.params["f_inducing"])[0], inducing_means(trained, data)
    K, u = np.asarray(kernel(Z), np.float64), u.reshape(-1, len(Z)).T if u.ndim == 1 else u
    weights = np.linalg.solve(K + 1e-4 * K.max() * np.eye(len(Z)), u)
    flat = np.reshape(inputs, (-1, np.shape(inputs)[-1]))
    return (np.asarray(kernel(flat, Z)) @ weights).reshape(*np.shape(inputs)[:-1], -1)


def inducing_means(trained: Trained, data: tuple) -> np.ndarray:
    """Posterior means of the inducing variables of ``f``, ``[M]`` or ``[M, D]``."""
    return np.asarray(trained.posterior(KEY, *(x[:1] for x in data))["f"].inducing_moments()[0])


def votes(trained: Trained, data: tuple, shown: np.ndarray) -> np.ndarray:
    """What the patches of images say, by their places: the response to each times its weight."""
    p, view = trained.params, Patches(shown.shape[1:], PATCH)
    responses = mean_at(trained, data, RBF(p["variance"], p["lengthscale"]), view.view(shown))[..., 0]
    return (p["weights"] * responses).reshape(-1, *view.positions)


def one(figure: Figure) -> Axes:
    """Axes without ticks."""
    ax = figure.subplots()
    ax.set(xticks=[], yticks=[])
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def bare(ax: Axes) -> None:
    """Axes of a picture of the package, less its words, its scale and its inducing points."""
    for part in (ax.get_legend(), *ax.child_axes, *(line for line in ax.lines if line.get_marker() == "+")):
        if part is not None:
            part.remove()
    ax.set(xlabel="", ylabel="", title="", xticks=[], yticks=[])


def field(figure: Figure, trained: Trained, X: np.ndarray, y: np.ndarray) -> None:
    """The likeliest class everywhere, and data."""
    bare(plots.field_2d(KEY, trained, X, y, ax=one(figure)))
    for line in figure.axes[0].lines:
        line.set_markersize(5)


def band(ax: Axes, x: np.ndarray, found: Any, colour: Any = BLUE, strength: float = 0.3, up: float = 0) -> None:
    """A mean, and the central 90 per cent around it."""
    ax.fill_between(x, *(found.quantiles + up), color=colour, alpha=strength, linewidth=0)
    ax.plot(x, found.mean + up, color=colour, linewidth=3)


def along(trained: Trained, X: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    """Inputs from the least to the greatest of the data, and predictions there."""
    x = np.linspace(X.min(), X.max(), 200, dtype=np.float32)
    return x, trained.predict(KEY, x[:, None], quantiles=ENDS, num_draws=4000)


def dots(ax: Axes, X: np.ndarray, y: np.ndarray, colour: Any = "k", size: float = 3) -> None:
    """Data as dots."""
    ax.plot(X, y, "o", color=colour, markersize=size, markeredgewidth=0)


def area(ax: Axes, values: np.ndarray, extent: Any, **style: Any) -> None:
    """Colours over the plane."""
    ax.imshow(values, origin="lower", aspect="auto", extent=extent, **({"interpolation": "bilinear"} | style))


def show(axes: Any, images: Any, classes: Any = None, width: float = 1.5, **style: Any) -> None:
    """Images in frames, which have the colours of classes if these are given."""
    for n, (ax, image) in enumerate(zip(np.ravel(axes), images, strict=True)):
        ax.imshow(image, **({"cmap": "gray_r"} | style))
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set(color="0.7" if classes is None else COLOURS[int(classes[n])], linewidth=width)


def diverging(values: np.ndarray) -> dict[str, Any]:
    """A scale from blue to red whose middle is 0."""
    limit = np.quantile(np.abs(values), 0.995)
    return {"cmap": DIVERGING, "vmin": -limit, "vmax": limit}


def gp_regression(figure: Figure) -> None:
    """A curve through data, with a band that is wide where there are none."""
    rng, ax = np.random.default_rng(1), one(figure)
    X = single(np.concatenate([rng.uniform(-3, -0.4, 45), rng.uniform(1.2, 3, 30)]))[:, None]
    y = single(np.sin(2 * X[:, 0]) + 0.3 * X[:, 0] + 0.2 * rng.standard_normal(75))
    x, found = along(train(models.gp_regression, kmeans(20), X, y), X)
    band(ax, x, found["y"], strength=0.15)
    band(ax, x, found["f"])
    dots(ax, X, y, size=4)


def gp_classification(figure: Figure) -> None:
    """Three arms of points over the plane, and the likeliest class everywhere."""
    rng = np.random.default_rng(0)
    y, far = np.arange(180) % 3, rng.uniform(0.3, 2, 180)
    turn = 2 * np.pi * y / 3 + 0.9 * far + 0.2 * rng.standard_normal(180)
    X = single(np.stack([1.4 * far * np.cos(turn), far * np.sin(turn)], axis=1))
    field(figure, train(partial(models.gp_classification, num_classes=3), kmeans(40), X, y), X, y)


def heteroscedastic_gp(figure: Figure) -> None:
    """A wave with noise that grows from left to right, and its band."""
    rng, ax = np.random.default_rng(0), one(figure)
    X = single(rng.uniform(-2, 2, (250, 1)))
    y = single(np.sin(2.5 * X[:, 0]) + np.exp(0.9 * X[:, 0] - 1.6) * rng.standard_normal(250))
    x, found = along(train(models.heteroscedastic_gp, kmeans(25), X, y), X)
    band(ax, x, found["y"], VERMILION)
    dots(ax, X, y)


def ordinal_gp(figure: Figure) -> None:
    """Five grades, one above the other, with their data, and the probability of each along the input."""
    rng, ax = np.random.default_rng(0), one(figure)
    X = single(rng.uniform(-3, 3, (220, 1)))
    y = np.digitize(3 * np.sin(1.3 * X[:, 0]) + 0.8 * X[:, 0] + 0.7 * rng.logistic(size=220), (-3, -1, 1, 3))
    x, found = along(train(partial(models.ordinal_gp, num_classes=5), kmeans(25), X, y), X)
    area(ax, found["y"].probs.T, (x[0], x[-1], -0.5, 4.5), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    dots(ax, X, y + rng.uniform(-0.25, 0.25, 220), VERMILION)
    ax.hlines(np.arange(4) + 0.5, x[0], x[-1], color="w", linewidth=3)


def log_gaussian_cox(figure: Figure) -> None:
    """Events on a map, and their rate."""
    rng, ax = np.random.default_rng(0), one(figure)
    cells = plane((1 / 12, 1 / 12), (35 / 12, 23 / 12), (18, 12))
    hill = np.exp(-((cells[:, 0] - 0.8) ** 2 + (cells[:, 1] - 1.3) ** 2) / 0.12)
    ridge = np.exp(-((cells[:, 1] - 0.2 - 0.25 * cells[:, 0] ** 2) ** 2) / 0.05) * (cells[:, 0] > 1.2)
    counts = rng.poisson(4 * hill + 2 * ridge + 0.1)
    program = partial(models.log_gaussian_cox, kernel=partial(models.rbf, lengthscale=0.5))
    found = train(program, kmeans(80), cells, single(counts)).predict(KEY, plane((0, 0), (3, 2), (90, 60)))
    area(ax, found["y"].mean.reshape(60, 90), (0, 3, 0, 2), cmap=SEQUENTIAL)
    events = np.repeat(cells, counts, axis=0)
    dots(ax, *(events + rng.uniform(-1 / 12, 1 / 12, events.shape)).T, "w", 3.5)


def mixture_of_gps(figure: Figure) -> None:
    """Two curves that cross, and data in the colour of the curve to which they belong."""
    rng, ax = np.random.default_rng(0), one(figure)
    X, which = single(rng.uniform(-2, 2, (260, 1))), rng.choice(2, 260, p=(0.6, 0.4))
    y = np.where(which, 1 - X[:, 0], np.sin(2 * X[:, 0])) + 0.15 * single(rng.standard_normal(260))
    start = {"f_mean": jax.random.normal(jax.random.key(1), (20, 2))}
    trained = train(models.mixture_of_gps, kmeans(20), X, y, init_params=start)
    x = np.linspace(-2, 2, 200, dtype=np.float32)
    nearest = np.abs(y[:, None] - trained.posterior(KEY, X)["f"].mean).argmin(1)
    f = trained.posterior(KEY, x[:, None])["f"]
    for k, colour in enumerate(COLOURS[:2]):
        dots(ax, X[nearest == k], y[nearest == k], colour, 3.5)
        ax.plot(x, f.mean[:, k], color=colour, linewidth=3)


def coregionalised_gp(figure: Figure) -> None:
    """Three curves that move together, each with a gap in its data that the others fill."""
    rng, ax, x = np.random.default_rng(0), one(figure), np.linspace(0, 12, 120, dtype=np.float32)
    truth = np.stack([np.sin(x), 0.8 * np.sin(x) + 0.3 * np.cos(2 * x), -np.sin(x)], axis=1)
    y = single(truth + 0.12 * rng.standard_normal(truth.shape))
    seen = np.stack([(x < 2) | (x > 5), (x < 5) | (x > 8), x < 9], axis=1)
    at, output = np.nonzero(seen)
    rows = single(np.stack([x[at], output], axis=1))
    program = partial(models.coregionalised_gp, num_outputs=3, rank=2)
    trained = train(program, random_subset(70), rows, y[at, output], steps=1000)
    for k, colour in enumerate(COLOURS[:3]):
        found = trained.predict(KEY, np.stack([x, np.full_like(x, k)], axis=1), quantiles=ENDS)
        band(ax, x, found["y"], colour, up=-2.8 * k)
        dots(ax, x[seen[:, k]], y[seen[:, k], k] - 2.8 * k)


def gplvm(figure: Figure) -> None:
    """Digits drawn from all over a map of two latent inputs, in the colour of the nearest digit of the data."""
    X, labels, *_ = digits(0, 1, 2, 3, 4)
    rows, pixels = np.arange(500), X[:500].reshape(500, -1)
    mean, scale = pixels.mean(0), pixels.std()
    y, latents = single((pixels - mean) / scale), PerRow({"x": models.principal_components(pixels, 2)})
    program = partial(models.gplvm, num_outputs=64, num_latents=2)
    trained = train(program, kmeans(40), rows, y, steps=2000, hyperparameters=latents, batch_size=250)
    p, places = trained.params, np.asarray(trained.params["x_loc"])
    at = plane(*np.quantile(places, (0.02, 0.98), axis=0), (7, 5))
    drawn = mean_at(trained, (rows, y), RBF(p["f_variance"], p["f_lengthscale"]), at)
    ink = np.clip(1.3 * (drawn * scale + mean), 0, 1).reshape(-1, 8, 8, 1)
    nearest = labels[np.square(places - at[:, None]).sum(2).argmin(1)]
    show(figure.subplots(5, 7), 1 - ink * (1 - COLOURS[nearest][:, None, None]), width=0, interpolation="bilinear")


def latent_variable_deep_gp(figure: Figure) -> None:
    """Data around either of two curves, and the density that the model predicts, which has two branches."""
    rng, ax = np.random.default_rng(0), one(figure)
    X, side = single(rng.uniform(-2, 2, (300, 1))), rng.choice([-1, 1], 300)
    y = single(side * (0.3 + np.abs(np.sin(2 * X[:, 0]))) + 0.1 * rng.standard_normal(300))
    first, last = single(0.7 * rng.standard_normal((2, 40))), single(0.1 * rng.standard_normal((40, 2)))

    def encoder(X: jax.Array, y: jax.Array | None = None, **program: Any) -> jax.Array | None:
        if y is not None:
            y = jnp.tanh(jnp.stack([X[:, 0], y], axis=1) @ numpyro.param("first", first)) @ numpyro.param("last", last)
        return y

    program = partial(models.latent_variable_deep_gp, layers=(np.eye(2, dtype=np.float32),))
    options = {"bound": ImportanceWeightedELBO(10), "hyperparameters": Amortised("w", encoder)}
    scales = models.inner_scales([2])
    trained = train(program, kmeans(25), X, y, steps=1500, rate=0.01, initial_scale=scales, **options)
    x = np.linspace(-2, 2, 120, dtype=np.float32)[:, None]
    draws = trained.predict(KEY, x, keep_draws=True, num_draws=1000)["y"].draws
    density = np.stack([np.histogram(each, 80, (-2, 2), density=True)[0] for each in draws.T], axis=1)
    area(ax, gaussian_filter(density, 1), (-2, 2, -2, 2), cmap="Blues")
    dots(ax, X, y, VERMILION)


def deep_gp(figure: Figure) -> None:
    """A step by three layers, which are flat on both sides of it, and by one layer in grey, which rings."""
    rng, ax, X = np.random.default_rng(0), one(figure), np.linspace(-2, 2, 50, dtype=np.float32)[:, None]
    y = single(np.sign(X[:, 0]) + 0.05 * rng.standard_normal(50))
    for widths, colour in (([], "0.55"), ([1, 1], BLUE)):
        program, scales = partial(models.deep_gp, layers=models.linear_layers(X, widths)), models.inner_scales(widths)
        x, found = along(train(program, kmeans(20), X, y, steps=1500, initial_scale=scales), X)
        band(ax, x, found["y"], colour)
    dots(ax, X, y, size=4)


def deep_kernel_gp(figure: Figure) -> None:
    """Two spirals, and the likelier of the two everywhere."""
    rng, rngs = np.random.default_rng(0), nnx.Rngs(0)
    turn, y = np.pi * np.repeat(rng.uniform(0.5, 3, 150), 2), np.tile([0, 1], 150)
    X = np.stack([turn * np.cos(turn + np.pi * y), turn * np.sin(turn + np.pi * y)], axis=1) / 10
    X = single(X + 0.02 * rng.standard_normal(X.shape))
    first, second, last = (nnx.Linear(*sizes, rngs=rngs) for sizes in ((2, 50), (50, 50), (50, 2)))
    network = models.network_of(nnx.Sequential(first, nnx.tanh, second, nnx.tanh, last))
    program = partial(models.deep_kernel_gp, network=network)
    field(figure, train(program, InducingGrid(64), X, y, steps=1500, rate=0.005, batch_size=100), X, y)


def convolutional_gp(figure: Figure) -> None:
    """Rectangles in frames of their class, and below each how its patches vote: red for tall, blue for wide."""
    data = datasets.load("rectangles")
    X, y = data.X_train[:300], single(data.y_train[:300])
    program = partial(models.convolutional_gp, patch_shape=PATCH, variance=10.0)
    trained = train(program, unique_patches(16), X, y, steps=400, batch_size=50)
    shown = data.X_test[pick(data.y_test, (1, 0), (0, 3), (1, 2))]
    (above, below), found = figure.subplots(2, 3), votes(trained, (X, y), shown)
    show(above, shown, trained.predict(KEY, shown)["y"].mean > 0.5, 4)
    show(below, found, **diverging(found))


def convolutional_plus_rbf_gp(figure: Figure) -> None:
    """Images of bars on two grounds, and above how their bars (green) and grounds (orange) pull them to a class."""
    rng = np.random.default_rng(0)
    bars, levels = rng.integers(-2, 3, 506), rng.choice([0.0, 0.5], (506, 2))
    bars[500:], levels[500:] = (2, 1, -1, 1, -1, -2), [[0.5, 0.5]] * 3 + [[0, 0.5]] * 3
    X = np.repeat(levels, 5, axis=1)[:, None, :] + np.zeros((10, 1))
    for image, count in zip(X, bars, strict=True):
        for i, j in rng.integers(0, (8, 10), (abs(count), 2)):
            (image if count > 0 else image.T)[i : i + 3, j] = 1
    X, y = single(X[..., None]), single(bars + np.where(levels[:, 0] == levels[:, 1], 1.5, -1.5) > 0)
    program = partial(models.convolutional_plus_rbf_gp, patch_shape=PATCH, rbf_variance=10.0, rbf_lengthscale=4.0)
    trained = train(program, blocks(unique_patches(20), kmeans(40)), X[:500], y[:500], batch_size=100)
    found = trained.predict(KEY, X[500:], parts={"f": ("patches", "image")})
    above, below = figure.subplots(2, 6, sharey="row", height_ratios=(3, 1))
    for ax, pulls in zip(above, zip(found["patches"].mean, found["image"].mean, strict=True), strict=True):
        ax.bar((0, 1), pulls, 1.0, color=(GREEN, ORANGE))
        ax.axhline(0, color="k")
        ax.set_axis_off()
    show(below, X[500:], found["y"].mean > 0.5, 4, vmin=0, vmax=1)


def translation_insensitive_gp(figure: Figure) -> None:
    """Crosses near the middle or far from it, in frames of their class, and the class of a cross at every place."""
    rng = np.random.default_rng(0)
    at, X = np.concatenate([rng.integers(0, 12, (300, 2)), np.argwhere(np.ones((12, 12)))]), np.zeros((444, 14, 14, 1))
    X[:300] = 0.15 * rng.uniform(size=(300, 14, 14, 1))
    for image, (i, j) in zip(X, at, strict=True):
        image[i + 1, j : j + 3] = image[i : i + 3, j + 1] = 1
    X, y = single(X), single(np.hypot(*(at - 5.5).T) < 4)
    program = partial(models.translation_insensitive_gp, patch_shape=PATCH, variance=100.0)
    trained = train(program, unique_patches(60), X[:300], y[:300], batch_size=100)
    left, right = figure.subfigures(1, 2, width_ratios=(2, 3))
    rows, found = pick(y[:300], (0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)), trained.predict(KEY, X)["y"].mean
    show(left.subplots(3, 2), X[rows], found[rows] > 0.5, 4)
    show(right.subplots(), [found[300:].reshape(12, 12)], cmap=DIVERGING, vmin=0, vmax=1, interpolation="bilinear")


def deep_convolutional_gp(figure: Figure) -> None:
    """Digits, the two images of edges that the lower layer makes of each, and the probabilities of the ten classes."""
    X, y, X_test, y_test = digits(*range(10))
    edges, classes = np.outer([1, 2, 1], [1, 0, -1]) / 4, (2, 4, 7)
    mean = np.stack([edges, edges.T], axis=-1).reshape(9, 2)
    layers = [partial(models.convolutional_layer, patch_shape=PATCH, maps=2, mean=mean)]
    last = partial(models.colour_patch_gp, patch_shape=PATCH, num_classes=10, variance=10.0)
    program = partial(models.deep_convolutional_gp, layers=layers, last=last)
    start = {"layer_0": kmeans(24), "f": unique_patches(40)}
    trained = train(program, start, X[:500], y[:500], steps=400, batch_size=50, initial_scale={"layer_0": 0.1})
    shown, axes = X_test[pick(y_test, *((k, 0) for k in classes))], figure.subplots(3, 4)
    found = trained.predict(KEY, shown)
    maps = np.moveaxis(found["layer_0"].mean.reshape(3, 6, 6, 2), -1, 1)
    show(axes[:, 0], shown)
    show(axes[:, 1:3], maps.reshape(6, 6, 6), **diverging(maps))
    for ax, k, probs in zip(axes[:, 3], classes, found["y"].probs, strict=True):
        ax.bar(np.arange(10), probs, color=np.where(np.arange(10) == k, VERMILION, "0.6"))
        ax.set(xticks=[], yticks=[], ylim=(0, 1))
        ax.spines[["top", "right", "left"]].set_visible(False)


def colour_patch_gp(figure: Figure) -> None:
    """Images with squares of two pairs of colours, in frames of their class, and patches that speak for either."""
    rng = np.random.default_rng(0)
    y, X = rng.integers(0, 2, 300), np.full((300, 10, 10, 3), 0.92, np.float32)
    pairs = 0.85 * np.array([[[1, 0, 1], [0, 1, 0]], [[1, 0, 0], [0, 1, 1]]])
    for n, half in np.ndindex(300, 2):
        i, j = rng.integers(0, 8), 5 * half + rng.integers(0, 3)
        X[n, i : i + 3, j : j + 3] = pairs[y[n], half]
    program = partial(models.colour_patch_gp, patch_shape=PATCH, variance=10.0)
    trained = train(program, unique_patches(24), X, single(y), batch_size=100)
    u, Z = inducing_means(trained, (X, single(y))), np.asarray(trained.params["f_inducing"])
    patches, order = np.moveaxis(Z.reshape(-1, 3, 3, 3), 1, -1).clip(0, 1), np.argsort(u)[[0, -1, 1, -2, 2, -3]]
    left, right = figure.subfigures(1, 2, width_ratios=(3, 2))
    rows = pick(y, (0, 0), (1, 0), (0, 1), (1, 1))
    show(left.subplots(2, 2), X[rows], y[rows], 4)
    show(right.subplots(3, 2), patches[order], u[order] > 0, 4)


def multi_channel_gp(figure: Figure) -> None:
    """An image of coloured bars, its three channels, and what each says: only the red bar's direction matters."""
    rng = np.random.default_rng(0)
    tall, X = rng.uniform(size=(300, 3)) < 0.5, np.zeros((300, 12, 12, 3), np.float32)
    for n, c in np.ndindex(300, 3):
        i, j = rng.integers(0, 7), rng.integers(0, 12)
        (X[n, ..., c] if tall[n, c] else X[n, ..., c].T)[i : i + 6, j] = 1
    y, program = single(tall[:, 0]), partial(models.multi_channel_gp, patch_shape=PATCH, white=0.01)
    trained = train(program, blocks(unique_patches(16)), X, y, batch_size=100, covariance="block_diagonal")
    p, n = trained.params, int(np.flatnonzero(tall[:, 0] & ~tall[:, 1] & tall[:, 2])[0])
    patches = Patches((12, 12, 3), PATCH).view(X[n : n + 1]).reshape(3, 100, 9)
    responses = mean_at(trained, (X, y), RBF(p["variance"], p["lengthscale"]), patches)[range(3), :, range(3)]
    found, grid = (p["weights"].reshape(3, 100) * responses).reshape(3, 10, 10), figure.add_gridspec(3, 4)
    show(figure.add_subplot(grid[:, :2]), X[n : n + 1])
    show([figure.add_subplot(grid[c, 2]) for c in range(3)], X[n] * np.eye(3)[:, None, None])
    show([figure.add_subplot(grid[c, 3]) for c in range(3)], found, **diverging(found))


def invariant_gp(figure: Figure) -> None:
    """A surface that is the same on both sides of the diagonal, while all data lie on one side."""
    rng, ax = np.random.default_rng(0), one(figure)
    X = single(np.sort(rng.uniform(-2, 2, (60, 2)), axis=1)[:, ::-1])
    y = single(np.sin(2 * X[:, 0]) * np.cos(1.5 * X[:, 1]) + 0.3 * X[:, 0] + 0.05 * rng.standard_normal(60))
    trained = train(partial(models.invariant_gp, view=Orbit([(0, 1), (1, 0)])), unique_patches(40), X, y)
    surface = trained.predict(KEY, plane((-2, -2), (2, 2), (60, 60)))["f"].mean.reshape(60, 60)
    bare(plots.surface(surface, (-2, 2, -2, 2), "f", X, y, ax=ax))
    ax.plot([-2, 2], [-2, 2], "k--", linewidth=2.5)


def invariant_classifier(figure: Figure) -> None:
    """Digits, framed, and copies of each, turned by as much as the model has learned."""
    (X, y, X_test, y_test), rng = digits(3, 8), np.random.default_rng(0)
    X, X_test = (zoom(images, (1, 2, 2, 1), order=1) for images in (X[:80], X_test))
    X = single([rotate(image, rng.uniform(-60, 60), order=1, reshape=False) for image in X])
    view, y = models.rotation(10.0, num_views=6), single(y[:80])
    program = partial(models.invariant_classifier, view=view, variance=10.0, lengthscale=4.0)
    trained = train(program, unique_patches(40), X, y, steps=800, rate=0.02)
    shown = X_test[pick(y_test, (1, 1), (0, 0), (1, 2))]
    bare(plots.augmentations(jax.random.key(2), trained, shown, y[:3], count=3, ax=one(figure)))


def invariant_convolutional_gp(figure: Figure) -> None:
    """Images of corners, turned in any way, and of crosses: red is what the model counts, blue what it does not."""
    rng = np.random.default_rng(1)
    X, counted = np.zeros((306, 12, 12, 1), np.float32), rng.uniform(size=(306, 5)) < 0.5
    counted[300:] = np.arange(5) < 3
    cross, corner = np.array([[[0, 1, 0], [1, 1, 1], [0, 1, 0]], [[1, 0, 0], [1, 0, 0], [1, 1, 1]]])
    for n in range(306):
        for k, (i, j) in enumerate(4 * np.transpose(np.divmod(rng.permutation(9)[:5], 3))):
            turned = np.rot90(corner, rng.integers(4) if n >= 300 else 0)
            X[n, i : i + 3, j : j + 3, 0] = turned if counted[n, k] else cross
    y, view = single(counted.sum(1) - 2.5), Orbit.of_images((12, 12), rotations=True)
    program = partial(models.invariant_convolutional_gp, view=view, patch_shape=PATCH, variance=100.0)
    trained = train(program, unique_patches(20), X[:300], y[:300], batch_size=50)
    found = sum(np.rot90(votes(trained, (X, y), np.rot90(X[300:], k, (1, 2))), -k, (1, 2)) for k in range(4))
    found = uniform_filter(np.pad(found, [(0, 0), (1, 1), (1, 1)]), (0, 3, 3))
    shades = np.where(X[300:, ..., 0] > 0, np.tanh(found / found.std()), np.nan)
    show(figure.subplots(2, 3), shades, cmap=DIVERGING, vmin=-1, vmax=1)


def invariant_deep_gp(figure: Figure) -> None:
    """Digits, each turned by right angles, on the plane of two features that do not see the turns."""
    (X, y, X_test, y_test), ax = digits(0, 1, 4), one(figure)
    program = partial(models.invariant_deep_gp, view=Orbit.of_images((8, 8), rotations=True), width=2)
    program = partial(program, likelihood=Softmax, num_outputs=3, variance=4.0, lengthscale=2.0)
    start = {"features": unique_patches(40), "f": InducingPoints(plane((-2, -2), (2, 2), (5, 5)))}
    trained = train(program, start, X[:200], y[:200], steps=400, initial_scale={"features": 0.3})
    places, p = trained.predict(KEY, X_test)["features"].mean, trained.params
    low, high = places.min(0) - 0.3, places.max(0) + 0.3
    f = mean_at(trained, (X, y), RBF(p["f_variance"], p["f_lengthscale"]), plane(low, high, (100, 100)))
    colours = 0.4 + 0.6 * jax.nn.softmax(f) @ COLOURS[:3]
    area(ax, colours.reshape(100, 100, 3), (low[0], high[0], low[1], high[1]))
    dots(ax, *places.T, "w", 5)
    size = (high - low) * (0.11, 0.16)
    for k, (turns, corner) in [(k, c) for k in range(3) for c in enumerate(((-1, 0), (0, 0), (0, -1), (-1, -1)))]:
        ink = np.rot90(X_test[y_test == k][0], -turns)[::-1, :, 0]
        at = np.median(places[y_test == k], axis=0) + size * corner
        place = (at[0], at[0] + size[0], at[1], at[1] + size[1])
        area(ax, 0 * ink, place, cmap="gray", alpha=ink, interpolation="nearest", zorder=3)
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))


def save(name: str) -> Path:
    """The file of a picture, drawn now, with as many colours as 60 KB hold."""
    figure, held, path = plots.blank(4, 2.75), io.BytesIO(), DOCS / "_static" / "gallery" / f"{name}.png"
    figure.get_layout_engine().set(w_pad=0.04, h_pad=0.04, wspace=0.03, hspace=0.03)
    globals()[name](figure)
    figure.savefig(held, dpi=160)
    path.parent.mkdir(parents=True, exist_ok=True)
    for colours in (256, 64, 32):
        Image.open(held).convert("RGB").quantize(colours, dither=Image.Dither.NONE).save(path, optimize=True)
        if path.stat().st_size < 60_000:
            break
    return path


if __name__ == "__main__":
    gallery = (DOCS / "gallery.md").read_text(encoding="utf-8")
    for name in sys.argv[1:] or re.findall(r"^```\{zoo-program\} gpzoo\.models\.(\w+)$", gallery, re.MULTILINE):
        start = time.perf_counter()
        path = save(name)
        print(f"{name}: {time.perf_counter() - start:.0f} s, {path.stat().st_size / 1024:.0f} KB", flush=True)
