"""Convolutional Gaussian processes (van der Wilk, Rasmussen, Hensman 2017): every experiment of section 4.

``gpzoo reproduce convolutional rectangles --variant weighted`` or ``python convolutional_gp.py rectangles``.

Settings of ``paper`` are from the section that each experiment names; what is not printed there is from the authors'
code (github.com/markvdw/convgp), or the program's default. Neither says for how many steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, random
from numpyro.infer import SVI

from gpzoo.inducing.initialisers import blocks, kmeans, random_subset, uniform_patches, unique_patches
from gpzoo.inducing.variables import InducingPoints
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained, fit
from gpzoo.models import (
    colour_patch_gp,
    convolutional_gp,
    convolutional_plus_rbf_gp,
    gp_classification,
    multi_channel_gp,
)
from gpzoo.models.parameters import rbf
from gpzoo.reproductions import datasets
from gpzoo.reproductions.contract import Experiment, Outcome, Run, subset
from gpzoo.reproductions.figures import Curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: How settings of ours came about.
_BY_HAND = {
    "what": "learning rate, its schedule, steps, where hyperparameters and inducing inputs start",
    "rule": "by hand",
    "data": "not recorded",
    "candidates": None,
}

#: Training images whose posterior is exported: the joint covariance of images costs P^2 kernel evaluations a pair.
_EXPORTED = 50


@dataclass(frozen=True)
class _Schedule:
    """A learning rate for Adam, and what it is called in the settings of a result."""

    name: str
    rate: optax.Schedule


def _cosine(rate: float, steps: int) -> _Schedule:
    return _Schedule(
        f"Adam, cosine from {rate} to a hundredth of it", optax.cosine_decay_schedule(rate, steps, alpha=0.01)
    )


def _constant(rate: float) -> _Schedule:
    return _Schedule(f"Adam, {rate}", optax.constant_schedule(rate))


def _staircase(every: int) -> _Schedule:
    """The authors' ``0.001 10^-(i // every / 3)``."""
    rate = optax.exponential_decay(1e-3, every, 10 ** (-1 / 3), staircase=True)
    return _Schedule(f"Adam, 0.001 * 10^-(step // {every} / 3)", rate)


@dataclass(frozen=True)
class _Setting:
    """How one variant of an experiment is trained under one preset.

    Attributes:
        steps: optimisation steps.
        schedule: learning rates; a number for a cosine that starts there.
        batch_size: images per minibatch, ``None`` for all.
        num_inducing: inducing variables, of each block where there are several.
        start: hyperparameters that do not start at the program's default.
        patches: initialiser of inducing patches.
        points: initialiser of inducing images.
        evaluations: how often the test set is looked at in the course of training.
    """

    steps: int
    schedule: float | _Schedule
    batch_size: int | None
    num_inducing: int
    start: dict[str, float] = field(default_factory=dict)
    patches: Callable[[int], Any] = unique_patches
    points: Callable[[int], Any] = kmeans
    evaluations: int = 1


def _program(
    variant: str, patch_shape: tuple[int, int], num_classes: int, setting: _Setting, X: Array
) -> tuple[Callable, Any, str]:
    """The program of a variant, what its inducing variables start from, and the covariance of ``q(u)``."""
    M, patches = setting.num_inducing, setting.patches(setting.num_inducing)
    if variant == "rbf":
        kernel = partial(rbf, ard=False, **setting.start)
        points = InducingPoints(X) if len(X) == M else setting.points(M)
        return partial(gp_classification, kernel=kernel, num_classes=num_classes), points, "full"
    common = {"patch_shape": patch_shape, "num_classes": num_classes, **setting.start}
    if variant in ("invariant", "weighted"):
        return partial(convolutional_gp, weighted=variant == "weighted", **common), patches, "full"
    if variant in ("weighted-rbf", "weighted-rbf-full"):
        covariance = "full" if variant == "weighted-rbf-full" else "block_diagonal"
        return partial(convolutional_plus_rbf_gp, **common), blocks(patches, setting.points(M)), covariance
    if variant in ("colour-patch", "additive"):
        return partial(colour_patch_gp, additive=variant == "additive", **common), patches, "full"
    if variant == "multi-channel":
        return partial(multi_channel_gp, **common), blocks(patches), "block_diagonal"
    raise ValueError(f"There is no program for variant {variant!r}.")


def _train(
    run: Run, data: datasets.Dataset, setting: _Setting, patch_shape: tuple[int, int], **outcome: Any
) -> Outcome:
    """Train and evaluate one variant: the tasks of the paper differ in their data and settings only.

    Further arguments say what is particular about the outcome, such as ``stands_in``.
    """
    X, X_test = data.X_train, data.X_test
    if run.variant == "rbf":
        X, X_test = X.reshape(len(X), -1), X_test.reshape(len(X_test), -1)
    X, y = jnp.asarray(X), jnp.asarray(data.y_train)
    num_classes = data.sizes["classes"]
    model, inducing, covariance = _program(run.variant, patch_shape, num_classes, setting, X)
    guide = InducingGuide(model, inducing, covariance=covariance)
    schedule = setting.schedule
    schedule = schedule if isinstance(schedule, _Schedule) else _cosine(schedule, setting.steps)
    svi = SVI(model, guide, optax.adam(schedule.rate), GaussianProcessELBO())
    train_key, test_key, export_key = random.split(random.key(run.seed), 3)

    settings = {
        "num_inducing": setting.num_inducing,
        "covariance": covariance,
        "batch_size": setting.batch_size,
        "learning_rate": schedule.name,
        "patch_shape": None if run.variant == "rbf" else list(patch_shape),
        "start": setting.start,
        "inducing": _names(inducing),
    }
    begun = Trained(model, guide, {})

    def evaluate(params: dict[str, Any]) -> dict[str, float]:
        test = begun.with_params(params).predict(test_key, X_test, test_data={"y": data.y_test})["y"]
        labels = test.mean > 0.5 if test.probs is None else test.probs.argmax(axis=-1)
        wrong = labels != data.y_test
        nlpp = float(-test.log_density.mean())
        return {"error": float(wrong.mean()), "wrong_images": int(wrong.sum()), "nlpp": nlpp}

    curve = Curve(run.output / "curve.json", run.made_by(settings | {"steps": setting.steps}, data), evaluate)
    result = fit(
        train_key,
        svi,
        setting.steps,
        X,
        y,
        batch_size=setting.batch_size,
        model_kwargs={"num_data": len(X)},
        checkpoint=run.checkpoint,
        callback=curve,
        callback_steps=-(-setting.steps // setting.evaluations),
        progress=run.variant,
    )
    metrics = {name: curve.points[setting.steps][name] for name in ("error", "wrong_images", "nlpp")}
    metrics["elbo"] = float(-result.losses[-max(1, len(X) // (setting.batch_size or len(X))) :].mean())
    figures = {}
    if run.variant != "rbf" and num_classes == 2:
        figures["inducing_patches"] = partial(_patches, result, X, y, patch_shape, export_key)
    few = slice(0, _EXPORTED)
    posterior = result.to_arviz(export_key, X[few], y[few], num_draws=200)
    return Outcome(
        metrics=metrics,
        settings=settings,
        steps=setting.steps,
        seconds_training=result.seconds,
        data=data,
        dtype=str(X.dtype),
        elbo=-result.losses,
        curve=curve.until(setting.steps) if setting.evaluations > 1 else (),
        figures=figures,
        posterior=posterior,
        selection=None if run.preset == "paper" else _BY_HAND,
        **outcome,
    )


def _names(inducing: Any) -> str:
    parts = ", ".join(map(_names, inducing.parts)) if isinstance(inducing, blocks) else ""
    return type(inducing).__name__ + (f"({parts})" if parts else "")


def _patches(trained: Trained, X: Array, y: Array, patch_shape: tuple[int, int], key: Array) -> Figure:
    """Figure 1: the trained inducing patches, sorted by the mean of their inducing output, least first."""
    import matplotlib.pyplot as plt

    posterior = trained.posterior(key, X[:1], y[:1])["f"]
    outputs = np.asarray(posterior.inducing_moments()[0])
    order = np.argsort(outputs)
    patches = np.asarray(trained.params["f_inducing"])[order].reshape(-1, *patch_shape)
    columns = int(np.ceil(np.sqrt(len(patches))))
    rows = int(np.ceil(len(patches) / columns))
    figure, axes = plt.subplots(rows, columns, figsize=(1.1 * columns, 1.25 * rows), squeeze=False)
    low, high = min(0.0, float(patches.min())), max(1.0, float(patches.max()))
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, patch, output in zip(axes.flat, patches, outputs[order], strict=False):
        axis.imshow(patch, cmap="gray", vmin=low, vmax=high)
        axis.set_title(f"{output:.2g}", fontsize=8)
    figure.suptitle("Inducing patches by inducing output", fontsize=10)
    figure.tight_layout()
    return figure


def rectangles(run: Run) -> Outcome:
    """Wider or taller? Generated images under ``quick``, else the original files (section 4.1, fig. 1a).

    Section 4.1: 16 inducing patches from uniform noise, Adam at 0.01, 100 images per minibatch; the RBF has all 1,200
    images for inducing points, and BFGS, in whose place ``paper`` has Adam. Authors' code: the RBF starts at
    lengthscale 3.
    """
    quick = run.preset == "quick"
    data = datasets.load("rectangles" if quick else "rectangles-original")
    noise = partial(_Setting, batch_size=100, num_inducing=16, patches=uniform_patches)
    whole = partial(_Setting, batch_size=None)
    settings = {
        ("rbf", "quick"): whole(200, 0.05, num_inducing=300, start={"lengthscale": 5.0}),
        ("rbf", "tuned"): whole(1200, 0.05, num_inducing=1200, start={"variance": 15.0, "lengthscale": 7.0}),
        ("rbf", "paper"): whole(1200, 0.05, num_inducing=1200, start={"lengthscale": 3.0}),
        ("invariant", "quick"): noise(1000, 0.05),
        ("invariant", "tuned"): noise(16_000, 0.03, start={"variance": 30.0}),
        ("invariant", "paper"): noise(16_000, _constant(0.01)),
        ("weighted", "quick"): noise(1600, 0.05, start={"variance": 10.0}),
        ("weighted", "tuned"): noise(16_000, 0.03, start={"variance": 30.0}),
        ("weighted", "paper"): noise(16_000, _constant(0.01)),
    }
    return _train(run, data, settings[run.variant, run.preset], (3, 3), stands_in=quick)


def mnist_0_vs_1(run: Run) -> Outcome:
    """Zeros against ones of MNIST (section 4.1, figure 1b).

    Section 4.1: as the rectangles, but 50 inducing patches, from training images. The authors' code has 100 random
    images for the RBF, whose lengthscale starts at 3.
    """
    data = datasets.load("mnist").classes(0, 1)
    if run.preset == "paper":
        convolutional = _Setting(4000, _constant(0.01), 100, 50)
        rbf = _Setting(4000, _constant(0.01), 100, 100, {"lengthscale": 3.0}, points=random_subset)
    else:
        quick = run.preset == "quick"
        convolutional = _Setting(600 if quick else 4000, 0.02, 100, 50)
        rbf = _Setting(300 if quick else 2000, 0.02, 200, 50, {"lengthscale": 5.0})
    return _train(run, data, rbf if run.variant == "rbf" else convolutional, (5, 5))


def mnist(run: Run) -> Outcome:
    """All ten digits (sections 4.1 to 4.3, table 1, figure 2).

    Table 1: 750 inducing variables. Authors' code: 200 images per minibatch, the staircase of learning rates, and
    where the sum with an RBF starts.
    """
    data = datasets.load("mnist")
    start = {"lengthscale": 5.0} if run.variant == "rbf" else {"variance": 10.0}
    if run.preset == "quick":
        setting = _Setting(800, 0.02, 100, 100, start, evaluations=4)
    elif run.preset == "cpu":
        setting = _Setting(22_000, 0.01, 100, 250, start, evaluations=11)
    elif run.preset == "tuned":
        setting = _Setting(40_000, 0.01, 100, 750, start, evaluations=16)
    else:
        every = {"rbf": 60_000, "weighted-rbf": 20_000, "weighted-rbf-full": 20_000}.get(run.variant, 30_000)
        summed = {"rbf_variance": 1.1, "rbf_lengthscale": 1.0, "white": 1e-2}
        start = summed if run.variant.startswith("weighted-rbf") else {}
        setting = _Setting(3 * every, _staircase(every), 200, 750, start, points=random_subset, evaluations=15)
    return _train(run, data, setting, (5, 5))


def cifar10(run: Run) -> Outcome:
    """Colour photographs (section 4.4, figure 3).

    Section 4.4: 1,000 inducing variables, Adam, minibatches of 40 for three variants, and else as for MNIST. Authors'
    code: a rate of 0.001, and additive lengthscales that start at 0.5.
    """
    whole = data = datasets.load("cifar10")
    start = {"lengthscale": 10.0} if run.variant == "rbf" else {"variance": 10.0}
    if run.preset == "quick":
        data = whole.subset(num_test=1000)
        setting = _Setting(300, 0.02, 40, 100, start, evaluations=3)
    elif run.preset == "tuned":
        setting = _Setting(90_000, _staircase(30_000), 40, 1000, start, evaluations=15)
    else:
        start = {"lengthscale": 0.5} if run.variant == "additive" else {}
        batch_size = 40 if run.variant in ("weighted", "additive", "multi-channel") else 200
        setting = _Setting(90_000, _constant(1e-3), batch_size, 1000, start, points=random_subset, evaluations=15)
    return _train(run, data, setting, (5, 5), subset=subset(whole, data, "random, seed 0"))


EXPERIMENTS = (
    Experiment(
        paper="convolutional",
        name="rectangles",
        description="Outlines of rectangles, wider or taller; 1,200 training images, 50,000 test images (section 4.1).",
        variants={
            "rbf": {"error": 0.05, "nlpp": 0.258},
            "invariant": {"error": 0.014, "nlpp": 0.055},
            "weighted": {"error": 0.0, "nlpp": 0.005},
        },
        run=rectangles,
        default_variant="weighted",
        data=("rectangles", "rectangles-original"),
        presets=("quick", "tuned", "paper"),
    ),
    Experiment(
        paper="convolutional",
        name="mnist-0-vs-1",
        description="Zeros against ones of MNIST, 5x5 patches (section 4.1).",
        variants={"rbf": {}, "invariant": {"error": 0.003}, "weighted": {}},
        run=mnist_0_vs_1,
        default_variant="invariant",
        data=("mnist",),
        presets=("quick", "tuned", "paper"),
    ),
    Experiment(
        paper="convolutional",
        name="mnist",
        description="MNIST, ten classes, 5x5 patches (table 1, figure 2).",
        variants={
            "rbf": {"error": 0.019, "nlpp": 0.068},
            "invariant": {"error": 0.0208, "nlpp": 0.077},
            "weighted": {"error": 0.0122, "nlpp": 0.048},
            "weighted-rbf": {"error": 0.0117, "nlpp": 0.039},
            "weighted-rbf-full": {"error": 0.0117, "nlpp": 0.039},
        },
        run=mnist,
        default_variant="weighted",
        data=("mnist",),
        presets=("quick", "cpu", "tuned", "paper"),
    ),
    Experiment(
        paper="convolutional",
        name="cifar10",
        description="CIFAR-10, ten classes, 5x5 patches in colour (section 4.4, figure 3).",
        variants={
            "rbf": {"error": 0.486},
            "weighted": {},
            "colour-patch": {},
            "additive": {},
            "multi-channel": {"error": 0.354},
        },
        run=cifar10,
        default_variant="multi-channel",
        data=("cifar10",),
        presets=("quick", "tuned", "paper"),
    ),
)


if __name__ == "__main__":
    from gpzoo.reproductions.cli import script_main

    script_main(EXPERIMENTS)
