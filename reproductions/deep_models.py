"""Which models does the deep GP paper compare, and how are they started and trained?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import Array

from gpzoo.inducing.initialisers import kmeans
from gpzoo.inference import InducingGuide
from gpzoo.models import inner_scales, linear_layers
from gpzoo.models.parameters import rbf
from gpzoo.reproductions.experiment import by_hand
from gpzoo.reproductions.training import Setting, constant

#: Layers and inducing points of each model.
MODELS = {"sgp": (1, 100), "sgp-500": (1, 500), "dgp2": (2, 100), "dgp3": (3, 100), "dgp4": (4, 100), "dgp5": (5, 100)}

#: Adam 0.01, 10,000 rows per minibatch, kernels that start at 1 (``run_regression.py``).
PAPER = Setting(20_000, 10_000, rate=constant(0.01), start={"lengthscale": 1.0})

#: The paper's sizes, with a decaying rate, and lengthscales that suit standardised columns.
TUNED = Setting(20_000, 10_000)

#: How our settings were chosen.
BY_HAND = by_hand("learning rate, its schedule, steps, rows per minibatch, where lengthscales start")


def ard(name: str, h: Array, *, lengthscale: float | None = None, variance: float = 1.0, **starts: float) -> Any:
    """RBF with a lengthscale per column, initially ``starts[name]``, ``lengthscale`` or the root of their number."""
    start = float(h.shape[-1]) ** 0.5 if lengthscale is None else lengthscale
    return rbf(name, h, variance=variance, lengthscale=starts.get(name, start))


def started(setting: Setting) -> dict[str, float | str]:
    """Initial hyperparameters of kernels, in words if they depend on the inputs."""
    return {"lengthscale": "square root of the number of columns", "variance": 1.0} | dict(setting.start)


def described(setting: Setting) -> dict[str, Any]:
    """Further settings of a deep GP's training, for the result."""
    return {"draws_training": 1, "draws_prediction": 100, "start": started(setting)}


def layers_of(variant: str, X: Array) -> tuple[Array, ...]:
    """Mean maps of the inner layers, whose width is 30, or that of the inputs if smaller."""
    return linear_layers(X, [min(30, X.shape[-1])] * (MODELS[variant][0] - 1))


def guide_of(model: Callable, depth: int, num_inducing: int) -> InducingGuide:
    """Inducing points by k-means, and inner layers that start at their means."""
    return InducingGuide(model, kmeans(num_inducing), initial_scale=inner_scales(range(depth - 1)))
