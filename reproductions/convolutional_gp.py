"""Convolutional Gaussian processes (van der Wilk, Rasmussen, Hensman 2017): the toy tasks of sections 4.1 and 4.2.

``gpzoo reproduce convolutional rectangles --variant weighted`` or ``python convolutional_gp.py rectangles``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, random
from numpyro.infer import SVI

from gpzoo import datasets
from gpzoo.inducing import InducingPoints
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit, predict, to_arviz
from gpzoo.initialisers import kmeans, uniform_patches, unique_patches
from gpzoo.models import convolutional_gp, gp_classification
from gpzoo.models.hyperparameters import rbf
from gpzoo.reproductions.contract import Experiment, Outcome, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Training images whose posterior is exported: the joint covariance of images costs P^2 kernel evaluations a pair.
_EXPORTED = 50


@dataclass(frozen=True)
class _Setting:
    """How one variant of an experiment is trained under one preset."""

    steps: int
    learning_rate: float
    batch_size: int | None
    num_inducing: int
    inducing: Callable[[int], Any] | None = None
    lengthscale: float = 1.0
    variance: float = 1.0


def _train(run: Run, data: datasets.Dataset, setting: _Setting, patch_shape: tuple[int, int]) -> Outcome:
    """Train and evaluate one variant: the binary tasks of the paper differ in their data and settings only."""
    X, y = jnp.asarray(data.X_train), jnp.asarray(data.y_train)
    X_test, y_test = jnp.asarray(data.X_test), jnp.asarray(data.y_test)
    model: Callable
    if run.variant == "rbf":
        X, X_test = X.reshape(len(X), -1), X_test.reshape(len(X_test), -1)
        start = partial(rbf, ard=False, lengthscale=setting.lengthscale, variance=setting.variance)
        model = partial(gp_classification, kernel=start)
        inducing = InducingPoints(X) if setting.num_inducing == len(X) else kmeans(setting.num_inducing)
    else:
        model = partial(
            convolutional_gp,
            patch_shape=patch_shape,
            weighted=run.variant == "weighted",
            lengthscale=setting.lengthscale,
            variance=setting.variance,
        )
        inducing = setting.inducing(setting.num_inducing)
    guide = InducingGuide(model, inducing)
    schedule = optax.cosine_decay_schedule(setting.learning_rate, setting.steps, alpha=0.01)
    svi = SVI(model, guide, optax.adam(schedule), GaussianProcessELBO())
    train_key, test_key, export_key = random.split(random.key(run.seed), 3)
    result = fit(
        svi,
        train_key,
        setting.steps,
        X,
        y,
        batch_size=setting.batch_size,
        num_data=len(X),
        checkpoint=run.checkpoint,
    )
    test = predict(test_key, model, X_test, guide=guide, params=result.params, test_data={"y": y_test})["y"]
    wrong = (test.mean > 0.5) != (np.asarray(y_test) == 1)
    metrics = {
        "error": float(wrong.mean()),
        "wrong_images": int(wrong.sum()),
        "nlpp": float(-test.log_density.mean()),
        "elbo": float(-result.losses[-max(1, len(X) // (setting.batch_size or len(X))) :].mean()),
    }
    figures = {}
    if run.variant != "rbf":
        figures["inducing_patches"] = partial(_patches, guide, result.params, X, y, patch_shape, export_key)
    few = slice(0, _EXPORTED)
    posterior = to_arviz(export_key, model, guide, result.params, X[few], y[few], num_draws=200, losses=result.losses)
    return Outcome(
        metrics=metrics,
        settings={
            "num_inducing": setting.num_inducing,
            "batch_size": setting.batch_size,
            "learning_rate": f"Adam, cosine from {setting.learning_rate} to a hundredth of it",
            "patch_shape": None if run.variant == "rbf" else list(patch_shape),
            "start": {"lengthscale": setting.lengthscale, "variance": setting.variance},
            "inducing": type(inducing).__name__,
        },
        steps=setting.steps,
        seconds_training=result.seconds,
        data=data,
        dtype=str(X.dtype),
        elbo=-result.losses,
        figures=figures,
        posterior=posterior,
    )


def _patches(
    guide: InducingGuide, params: dict[str, Any], X: Array, y: Array, patch_shape: tuple[int, int], key: Array
) -> Figure:
    """Figure 1: the trained inducing patches, sorted by the mean of their inducing output, least first."""
    import matplotlib.pyplot as plt

    posterior = guide.posterior(params, X[:1], y[:1], rng_key=key)["f"]
    outputs = np.asarray(posterior.inducing_moments()[0])
    order = np.argsort(outputs)
    patches = np.asarray(params["f_inducing"])[order].reshape(-1, *patch_shape)
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
    """Wider or taller? Generated images under ``quick``, the original files under ``paper`` (section 4.1, fig. 1a)."""
    data = datasets.load("rectangles-original" if run.preset == "paper" else "rectangles")
    settings = {
        ("rbf", "quick"): _Setting(200, 0.05, None, 300, lengthscale=5.0),
        ("rbf", "paper"): _Setting(1200, 0.05, None, 1200, lengthscale=5.0),
        ("invariant", "quick"): _Setting(1000, 0.05, 100, 16, uniform_patches),
        ("invariant", "paper"): _Setting(16_000, 0.03, 100, 16, uniform_patches, variance=30.0),
        ("weighted", "quick"): _Setting(1600, 0.05, 100, 16, uniform_patches, variance=10.0),
        ("weighted", "paper"): _Setting(16_000, 0.03, 100, 16, uniform_patches, variance=30.0),
    }
    return _train(run, data, settings[run.variant, run.preset], (3, 3))


def mnist_0_vs_1(run: Run) -> Outcome:
    """Zeros against ones of MNIST (section 4.1, figure 1b)."""
    data = datasets.load("mnist").classes(0, 1)
    quick = run.preset == "quick"
    settings = {
        "rbf": _Setting(300 if quick else 2000, 0.02, 200, 50, lengthscale=5.0),
        "invariant": _Setting(600 if quick else 4000, 0.02, 100, 50, unique_patches),
        "weighted": _Setting(600 if quick else 4000, 0.02, 100, 50, unique_patches),
    }
    return _train(run, data, settings[run.variant], (5, 5))


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
    ),
    Experiment(
        paper="convolutional",
        name="mnist-0-vs-1",
        description="Zeros against ones of MNIST, 5x5 patches (section 4.1).",
        variants={"rbf": {}, "invariant": {"error": 0.003}, "weighted": {}},
        run=mnist_0_vs_1,
        default_variant="invariant",
        data=("mnist",),
    ),
)


if __name__ == "__main__":
    from gpzoo.reproductions.cli import script_main

    script_main(EXPERIMENTS)
