"""Convolutional Gaussian processes (van der Wilk, Rasmussen, Hensman 2017): every experiment of section 4.

``gpzoo reproduce convolutional rectangles --variant weighted`` or ``python reproductions/convolutional.py rectangles``.

Settings of ``paper`` are from the section that each experiment names, else from the authors' code
(github.com/markvdw/convgp), else the program's defaults. Numbers of steps are in neither the paper nor the code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import jax.numpy as jnp
import numpy as np
import optax

from gpzoo.inducing.initialisers import blocks, kmeans, random_subset, uniform_patches, unique_patches
from gpzoo.inducing.variables import InducingPoints
from gpzoo.inference import InducingGuide, SitePrediction, Trained, plots
from gpzoo.models import (
    colour_patch_gp,
    convolutional_gp,
    convolutional_plus_rbf_gp,
    gp_classification,
    multi_channel_gp,
)
from gpzoo.models.parameters import rbf
from gpzoo.reproductions import datasets, metrics
from gpzoo.reproductions.datasets import Dataset
from gpzoo.reproductions.experiment import Experiment, Outcome, Run, by_hand, subset
from gpzoo.reproductions.papers.convolutional import CONVOLUTIONAL
from gpzoo.reproductions.training import Rate, Setting, constant, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: How our settings were chosen.
_BY_HAND = by_hand("learning rate, its schedule, steps, where hyperparameters and inducing inputs start")

#: Variances of the parts of a sum of kernels, whose learned values section 4.3 prints.
_VARIANCES = {"convolution": "variance", "rbf": "rbf_variance"}

#: An initialiser by the number of inducing variables.
Start = Callable[[int], Any]


def _staircase(every: int) -> Rate:
    """The authors' ``0.001 10^-(i // every / 3)``."""
    rate = optax.exponential_decay(1e-3, every, 10 ** (-1 / 3), staircase=True)
    return Rate(f"Adam, 0.001 * 10^-(step // {every} / 3)", rate)


def _program(
    variant: str,
    patch_shape: tuple[int, int],
    num_classes: int,
    setting: Setting,
    X: np.ndarray,
    patches: Start = unique_patches,
    points: Start = kmeans,
) -> tuple[Callable, Any, str]:
    """The program of a variant, the initialiser of its inducing variables, and the covariance of ``q(u)``."""
    M, start = setting.inducing, setting.start
    if variant == "rbf":
        kernel = partial(rbf, ard=False, **start)
        inducing = InducingPoints(jnp.asarray(X)) if len(X) == M else points(M)
        return partial(gp_classification, kernel=kernel, num_classes=num_classes), inducing, "full"
    common = {"patch_shape": patch_shape, "num_classes": num_classes, **start}
    if variant in ("invariant", "weighted"):
        return partial(convolutional_gp, weighted=variant == "weighted", **common), patches(M), "full"
    if variant in ("weighted-rbf", "weighted-rbf-full"):
        covariance = "full" if variant == "weighted-rbf-full" else "block_diagonal"
        return partial(convolutional_plus_rbf_gp, **common), blocks(patches(M), points(M)), covariance
    if variant in ("colour-patch", "additive"):
        return partial(colour_patch_gp, additive=variant == "additive", **common), patches(M), "full"
    if variant == "multi-channel":
        return partial(multi_channel_gp, **common), blocks(patches(M)), "block_diagonal"
    raise ValueError(f"There is no program for variant {variant!r}.")


def _train(
    run: Run,
    whole: Dataset,
    setting: Setting,
    patch_shape: tuple[int, int],
    patches: Start = unique_patches,
    points: Start = kmeans,
    **outcome: Any,
) -> Outcome:
    """Train and evaluate one variant: the tasks of the paper differ in their data and settings only.

    Args:
        run: the run.
        whole: the data.
        setting: the settings of the training.
        patch_shape: patch shape of the convolutional variants.
        patches: initialiser of inducing patches.
        points: initialiser of inducing images.
        **outcome: further fields of the outcome, such as ``stands_in``.
    """
    data, convolutional = whole, run.variant != "rbf"
    if not convolutional:
        X, X_test = (images.reshape(len(images), -1) for images in (data.X_train, data.X_test))
        data = replace(data, X_train=X, X_test=X_test)
    classes = data.sizes["classes"]
    model, inducing, covariance = _program(run.variant, patch_shape, classes, setting, data.X_train, patches, points)
    guide = InducingGuide(model, inducing, covariance=covariance)
    settings = {
        "covariance": covariance,
        "batch_size": setting.batch_size,
        "patch_shape": list(patch_shape) if convolutional else None,
        "inducing": _names(inducing),
    }
    chosen = None if run.preset == "paper" else _BY_HAND
    finished = train(run, data, model, guide, setting, score=_metrics, settings=settings, selection=chosen, **outcome)
    figures = {}
    if convolutional and classes == 2:
        figures["inducing_patches"] = partial(figure_patches, finished.trained, data)
    found, params = dict(finished.outcome.metrics), finished.trained.params
    if "rbf_variance" in params:
        found |= {f"{part}_variance": float(params[name]) for part, name in _VARIANCES.items()}
    return replace(finished.outcome, metrics=found, data=whole, figures=figures)


def _metrics(test: SitePrediction, y: np.ndarray) -> dict[str, float]:
    wrong = int(np.sum(metrics.labels(test) != y))
    # nlpp is summed in float32, as in the recorded results.
    return {"error": metrics.error(test, y), "wrong_images": wrong, "nlpp": metrics.nlpp(test, np.float32)}


def _names(inducing: Any) -> str:
    parts = ", ".join(map(_names, inducing.parts)) if isinstance(inducing, blocks) else ""
    return type(inducing).__name__ + (f"({parts})" if parts else "")


def figure_patches(trained: Trained, data: Dataset) -> Figure:
    """Figure 1: the trained inducing patches, sorted by the mean of their inducing output, the least first."""
    axes = plots.inducing_images(trained, data.X_train[:1], data.y_train[:1], count=64)
    return cast("Figure", axes.figure)


def rectangles(run: Run) -> Outcome:
    """Wider or taller? Generated images under ``quick``, else the original files (section 4.1, fig. 1a).

    Section 4.1: 16 inducing patches from uniform noise, Adam at 0.01, 100 images per minibatch. The RBF has all 1,200
    images as inducing points, and BFGS; ours is L-BFGS. Authors' code: the RBF starts at lengthscale 3.
    """
    quick = run.preset == "quick"
    data = datasets.load("rectangles" if quick else "rectangles-original")
    settings = {
        ("rbf", "quick"): Setting(200, None, 300, 0.05, {"lengthscale": 5.0}),
        ("rbf", "tuned"): Setting(400, None, 1200, start={"variance": 15.0, "lengthscale": 7.0}, line_search=True),
        ("rbf", "paper"): Setting(400, None, 1200, start={"lengthscale": 3.0}, line_search=True),
        ("invariant", "quick"): Setting(1000, 100, 16, 0.05),
        ("invariant", "tuned"): Setting(16_000, 100, 16, 0.03, {"variance": 30.0}),
        ("invariant", "paper"): Setting(16_000, 100, 16, constant(0.01)),
        ("weighted", "quick"): Setting(1600, 100, 16, 0.05, {"variance": 10.0}),
        ("weighted", "tuned"): Setting(16_000, 100, 16, 0.03, {"variance": 30.0}),
        ("weighted", "paper"): Setting(16_000, 100, 16, constant(0.01)),
    }
    return _train(run, data, settings[run.variant, run.preset], (3, 3), uniform_patches, stands_in=quick)


def mnist_0_vs_1(run: Run) -> Outcome:
    """Zeros against ones of MNIST (section 4.1, figure 1b).

    Section 4.1: as the rectangles, but 50 inducing patches, from training images. Authors' code: the RBF has 100 random
    images, and its lengthscale starts at 3.
    """
    data = datasets.load("mnist").classes(0, 1)
    if run.preset == "paper":
        convolutional = Setting(4000, 100, 50, constant(0.01))
        rbf = Setting(4000, 100, 100, constant(0.01), {"lengthscale": 3.0})
    else:
        quick = run.preset == "quick"
        convolutional = Setting(600 if quick else 4000, 100, 50, 0.02)
        rbf = Setting(300 if quick else 2000, 200, 50, 0.02, {"lengthscale": 5.0})
    setting = rbf if run.variant == "rbf" else convolutional
    return _train(run, data, setting, (5, 5), points=_images(run))


def _images(run: Run) -> Start:
    """The initialiser of inducing images: random training images, as in the authors' code, or k-means."""
    return random_subset if run.preset == "paper" else kmeans


def mnist(run: Run) -> Outcome:
    """All ten digits (sections 4.1 to 4.3, table 1, figure 2).

    Table 1: 750 inducing variables. Authors' code: 200 images per minibatch, the staircase of learning rates, and
    initial hyperparameters of the sum with an RBF.
    """
    data = datasets.load("mnist")
    start = {"lengthscale": 5.0} if run.variant == "rbf" else {"variance": 10.0}
    if run.preset == "quick":
        setting = Setting(800, 100, 100, 0.02, start, evaluations=4)
    elif run.preset == "cpu":
        setting = Setting(22_000, 100, 250, 0.01, start, evaluations=11)
    elif run.preset == "tuned":
        setting = Setting(40_000, 100, 750, 0.01, start, evaluations=16)
    else:
        every = {"rbf": 60_000, "weighted-rbf": 20_000, "weighted-rbf-full": 20_000}.get(run.variant, 30_000)
        summed = {"rbf_variance": 1.1, "rbf_lengthscale": 1.0, "white": 1e-2}
        start = summed if run.variant.startswith("weighted-rbf") else {}
        setting = Setting(3 * every, 200, 750, _staircase(every), start, evaluations=15)
    return _train(run, data, setting, (5, 5), points=_images(run))


def cifar10(run: Run) -> Outcome:
    """Colour photographs (section 4.4, figure 3).

    Section 4.4: 1,000 inducing variables, Adam, minibatches of 40 for three variants, otherwise as for MNIST. Authors'
    code: a rate of 0.001, and additive lengthscales that start at 0.5.
    """
    whole = data = datasets.load("cifar10")
    start = {"lengthscale": 10.0} if run.variant == "rbf" else {"variance": 10.0}
    if run.preset == "quick":
        data = whole.subset(num_test=1000)
        setting = Setting(300, 40, 100, 0.02, start, evaluations=3)
    elif run.preset == "tuned":
        setting = Setting(90_000, 40, 1000, _staircase(30_000), start, evaluations=15)
    else:
        start = {"lengthscale": 0.5} if run.variant == "additive" else {}
        batch_size = 40 if run.variant in ("weighted", "additive", "multi-channel") else 200
        setting = Setting(90_000, batch_size, 1000, constant(1e-3), start, evaluations=15)
    return _train(run, data, setting, (5, 5), points=_images(run), subset=subset(whole, data, "random, seed 0"))


#: Table 1, which does not say whether ``q(u)`` of the sum with an RBF is full or block-diagonal.
_MNIST = CONVOLUTIONAL.numbers("mnist", ("rbf", "invariant", "weighted", "weighted-rbf"))

EXPERIMENTS = (
    Experiment(
        paper="convolutional",
        name="rectangles",
        description="Outlines of rectangles, wider or taller; 1,200 training images, 50,000 test images (section 4.1).",
        variants=CONVOLUTIONAL.numbers("rectangles", ("rbf", "invariant", "weighted")),
        run=rectangles,
        default_variant="weighted",
        data=("rectangles", "rectangles-original"),
        presets=("quick", "tuned", "paper"),
    ),
    Experiment(
        paper="convolutional",
        name="mnist-0-vs-1",
        description="Zeros against ones of MNIST, 5x5 patches (section 4.1).",
        variants=CONVOLUTIONAL.numbers("mnist-0-vs-1", ("rbf", "invariant", "weighted")),
        run=mnist_0_vs_1,
        default_variant="invariant",
        data=("mnist",),
        presets=("quick", "tuned", "paper"),
    ),
    Experiment(
        paper="convolutional",
        name="mnist",
        description="MNIST, ten classes, 5x5 patches (table 1, figure 2).",
        variants=_MNIST | {"weighted-rbf-full": _MNIST["weighted-rbf"]},
        run=mnist,
        default_variant="weighted",
        data=("mnist",),
        presets=("quick", "cpu", "tuned", "paper"),
    ),
    Experiment(
        paper="convolutional",
        name="cifar10",
        description="CIFAR-10, ten classes, 5x5 patches in colour (section 4.4, figure 3).",
        variants=CONVOLUTIONAL.numbers("cifar10", ("rbf", "weighted", "colour-patch", "additive", "multi-channel")),
        run=cifar10,
        default_variant="multi-channel",
        data=("cifar10",),
        presets=("quick", "tuned", "paper"),
    ),
)


if __name__ == "__main__":
    from gpzoo.reproductions.cli import script_main

    script_main(EXPERIMENTS)
