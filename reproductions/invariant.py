"""Learning invariances using the marginal likelihood (van der Wilk et al. 2018): figure 2 and section 5.

``gpzoo reproduce invariant rotated-binary --variant 90-from-45`` or ``python learning_invariances.py toy``.

Section 5 prints neither rates, minibatches and steps nor numbers of inducing variables and views, and there is no code
of the authors': settings of ``paper`` are its data in full, and else ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, random
from numpyro import handlers
from numpyro.infer import SVI

from gpzoo.inducing.initialisers import random_subset, unique_patches
from gpzoo.inference import GaussianProcessELBO, InducingGuide, SitePrediction, Trained, fit
from gpzoo.models.invariant import invariant_classifier, invariant_gp
from gpzoo.models.views import affine, deformation, rotation
from gpzoo.reproductions import datasets
from gpzoo.reproductions.contract import Experiment, Outcome, Run, subset
from gpzoo.reproductions.datasets.icml2007 import rotated
from gpzoo.reproductions.figures import Curve
from gpzoo.views.orbits import Orbit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: How settings came about.
_BY_HAND = {
    "what": "learning rate, steps, rows per minibatch, views, inducing variables, where lengthscales start",
    "rule": "by hand",
    "data": "not recorded",
    "candidates": None,
}

#: Training inputs whose posterior is exported.
_EXPORTED = 50

#: The symmetry of the toy: f(x, y) = f(y, x).
SWAP = Orbit([(0, 1), (1, 0)])


@dataclass(frozen=True)
class _Setting:
    """How a variant is trained: Adam with a cosine from ``rate`` to a hundredth of it."""

    steps: int
    batch_size: int | None
    num_inducing: int
    num_views: int = 16
    num_fixed: int = 64
    rate: float = 0.005
    evaluations: int = 1

    @property
    def schedule(self) -> optax.Schedule:
        return optax.cosine_decay_schedule(self.rate, self.steps, alpha=0.01)


def _train(
    run: Run,
    data: datasets.Dataset,
    program: Callable,
    view: Callable | None,
    setting: _Setting,
    metrics_of: Callable[[Any, np.ndarray], dict[str, float]],
    subset: dict[str, Any] | None = None,
    **start: float,
) -> Outcome:
    """Train and evaluate one variant.

    Args:
        run: what to run.
        data: its targets are what the program observes.
        program: one of :mod:`gpzoo.models.invariant`, with all but the view.
        view: the variant's view, ``None`` for no invariance.
        setting: how.
        metrics_of: a prediction and the targets to metrics.
        subset: which part of the data set ``data`` are.
        **start: hyperparameters that do not start at the program's default.
    """
    X, y, N = jnp.asarray(data.X_train), jnp.asarray(data.y_train), len(data.y_train)
    model = partial(program, view=view, **start)
    M = setting.num_inducing
    guide = InducingGuide(model, random_subset(M) if view is None else unique_patches(M))
    svi = SVI(model, guide, optax.adam(setting.schedule), GaussianProcessELBO())
    begun = Trained(model, guide, {})
    train_key, test_key, export_key = random.split(random.key(run.seed), 3)

    def evaluate(params: dict[str, Any]) -> dict[str, float]:
        now = begun.with_params(params)
        test = now.predict(test_key, data.X_test, test_data={"y": data.y_test}, batch_size=500)["y"]
        angle = {"learned_angle_degrees": float(params["angle"])} if "angle" in params else {}
        return metrics_of(test, data.y_test) | angle

    whole = setting.batch_size is None or setting.batch_size >= N
    sampled = X.ndim == 4 and view is not None
    settings = {
        "num_inducing": M,
        "batch_size": N if whole else setting.batch_size,
        "views_training": setting.num_views if sampled else None,
        "views_prediction": setting.num_fixed if sampled else None,
        "learning_rate": f"Adam, cosine from {setting.rate} to a hundredth of it",
        "start": start,
    }
    curve = Curve(run.output / "curve.json", run.made_by(settings | {"steps": setting.steps}, data), evaluate)
    result = fit(
        train_key,
        svi,
        setting.steps,
        X,
        y,
        batch_size=None if whole else setting.batch_size,
        model_kwargs={"num_data": N},
        checkpoint=run.checkpoint,
        callback=curve,
        callback_steps=-(-setting.steps // setting.evaluations),
        progress=run.variant,
    )
    window = max(1, min(setting.steps // 20, 500))

    def bound(step: int) -> float:
        return float(-result.losses[max(0, step - window) : step].mean() / N)

    points = [point | {"bound_per_point": bound(int(point["step"]))} for point in curve.until(setting.steps)]
    metrics = {name: value for name, value in points[-1].items() if name not in ("step", "seconds")}
    metrics["elbo"] = N * metrics["bound_per_point"]
    few = slice(0, _EXPORTED)
    figures = {}
    if sampled:
        figures["augmentation"] = partial(_samples, view, result.params, data.X_train, test_key)
    return Outcome(
        metrics=metrics,
        settings=settings
        | {
            "learned": {
                name: np.asarray(value).tolist()
                for name, value in result.params.items()
                if name in ("angle", "affine_below", "affine_above", "amplitude", "smoothness")
            },
        },
        steps=setting.steps,
        seconds_training=result.seconds,
        data=data,
        dtype=str(X.dtype),
        elbo=-result.losses,
        curve=points if setting.evaluations > 1 else (),
        figures=figures,
        posterior=result.to_arviz(export_key, X[few], y[few], num_draws=100),
        subset=subset,
        selection=_BY_HAND,
    )


def _samples(view: Callable, params: dict[str, Any], X: np.ndarray, key: Array) -> Figure:
    """Figure 1: images (left) and what the trained distribution makes of them."""
    from matplotlib.figure import Figure

    images = jnp.asarray(X[:6])
    with handlers.block(), handlers.substitute(data=params):
        seen = view(images)
    views = np.asarray(seen.sample(key, images))[:, :8]
    figure = Figure(figsize=(0.9 * (views.shape[1] + 1), 0.9 * len(images)), layout="constrained")
    rows = figure.subplots(len(images), views.shape[1] + 1)
    for row, image, own in zip(rows, X, views, strict=False):
        for axes, shown in zip(row, (image, *own), strict=True):
            axes.imshow(np.asarray(shown).reshape(X.shape[1:3]), cmap="gray", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
        for spine in row[0].spines.values():
            spine.set(color="C1", linewidth=2)
    return figure


# -- the toy -----------------------------------------------------------------------------------------------------------


def toy_data(seed: int = 0) -> datasets.Dataset:
    """A function that is symmetric in its two inputs, at 60 places with noise, and on a grid (figure 2)."""
    rng = np.random.RandomState(seed)

    def truth(X: np.ndarray) -> np.ndarray:
        high, low = X.max(axis=1), X.min(axis=1)
        return np.sin(2 * high) * np.cos(1.5 * low) + 0.3 * high

    X = rng.uniform(-2, 2, (60, 2))
    grid = np.stack(np.meshgrid(np.linspace(-2, 2, 30), np.linspace(-2, 2, 30)), axis=-1).reshape(-1, 2)
    arrays = {"X_train": X, "y_train": truth(X) + 0.1 * rng.standard_normal(60), "X_test": grid, "y_test": truth(grid)}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    return datasets.Dataset("symmetric-toy", **arrays, source="generated", sha256={})


def _regression_metrics(test: Any, y: np.ndarray) -> dict[str, float]:
    rmse = float(np.sqrt(np.mean((test.mean - y) ** 2, dtype=np.float64)))
    return {"rmse": rmse, "test_log_likelihood": float(test.log_density.mean(dtype=np.float64))}


def toy(run: Run) -> Outcome:
    """With the symmetry in the prior, and without: the bound tells them apart, the fit does not (figure 2)."""
    data = toy_data(run.seed)
    view = (lambda X: SWAP) if run.variant == "symmetric" else None
    setting = _Setting(2000, None, 50, num_views=2, num_fixed=2, rate=0.02)
    # The training points are predicted too: that is where the model without the symmetry is as good.
    whole = replace(
        data, X_test=np.concatenate([data.X_test, data.X_train]), y_test=np.concatenate([data.y_test, data.y_train])
    )
    found: dict[str, Any] = {}

    def metrics_of(test: Any, y: np.ndarray) -> dict[str, float]:
        parts = [slice(None, len(data.y_test)), slice(len(data.y_test), None)]
        on_test, on_train = (
            _regression_metrics(SitePrediction(test.mean[part], test.variance[part], test.log_density[part]), y[part])
            for part in parts
        )
        found["mean"] = test.mean[parts[0]]
        return on_test | {"train_rmse": on_train["rmse"]}

    outcome = _train(run, whole, invariant_gp, view, setting, metrics_of, noise_variance=0.1)
    return replace(outcome, data=data, figures={"solution": partial(_solution, data, found)})


def _solution(data: datasets.Dataset, found: dict[str, Any]) -> Figure:
    """Figure 2: the symmetric function with the data, and the solution."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    panels = {"truth and data": data.y_test, "posterior mean": found["mean"]}
    limit = float(np.abs(data.y_test).max())
    for axes, (title, values) in zip(figure.subplots(1, 2, sharey=True), panels.items(), strict=True):
        image = axes.imshow(
            np.reshape(values, (30, 30)), origin="lower", extent=(-2, 2, -2, 2), cmap="RdBu_r", vmin=-limit, vmax=limit
        )
        colours = {"c": data.y_train, "cmap": "RdBu_r", "vmin": -limit, "vmax": limit}
        axes.scatter(*data.X_train.T, **colours, edgecolor="k", s=14, linewidth=0.5)
        axes.plot([-2, 2], [-2, 2], color="k", linewidth=0.6)
        axes.set_title(title, fontsize=9)
    figure.colorbar(image, ax=figure.axes, shrink=0.9)
    return figure


# -- digits ------------------------------------------------------------------------------------------------------------


def rotated_binary(run: Run) -> Outcome:
    """Odd or even? Digits of MNIST, each rotated by up to 90 or 180 degrees (section 5.1, figure 3)."""
    truth, _, variant = run.variant.partition("-")
    data = datasets.load("mnist")
    sizes = {"quick": (2000, 1000), "cpu": (5000, 5000), "paper": (None, None)}[run.preset]
    whole, data = data, _rotated_by(data.subset(*sizes, seed=run.seed), float(truth), run.seed)
    part = _part(run, whole, data)
    data = replace(data, y_train=data.y_train % 2, y_test=data.y_test % 2)
    setting = {
        "quick": _Setting(600, 100, 100, num_views=8, rate=0.02),
        "cpu": _Setting(6000, 200, 300, num_views=8, evaluations=8),
        "paper": _Setting(60_000, 200, 750, num_views=16, evaluations=20),
    }[run.preset]
    views = {"num_views": setting.num_views, "num_fixed": setting.num_fixed}
    start = {"from-5": 5.0, "from-45": 45.0}.get(variant)
    view = None if start is None else rotation(start, **views)
    return _train(run, data, invariant_classifier, view, setting, _binary_metrics, part, lengthscale=5.0)


def _part(run: Run, whole: datasets.Dataset, data: datasets.Dataset) -> dict[str, Any] | None:
    return subset(whole, data, f"random, seed {run.seed}")


def _rotated_by(data: datasets.Dataset, angle: float, seed: int) -> datasets.Dataset:
    rng = np.random.RandomState(seed)
    parts = {
        name: rotated(X, rng.uniform(-angle, angle, len(X)))
        for name, X in (("X_train", data.X_train), ("X_test", data.X_test))
    }
    return replace(data, name=f"{data.name}, rotated by up to {angle:.0f} degrees", **parts)


def _binary_metrics(test: Any, y: np.ndarray) -> dict[str, float]:
    return {"error": float(((test.mean > 0.5) != y).mean()), "nlpp": float(-test.log_density.mean(dtype=np.float64))}


def _class_metrics(test: Any, one_hot: np.ndarray) -> dict[str, float]:
    """Of Gaussian outputs for one-hot labels: ``p(k)`` is the density of the one-hot vector of ``k``, normalised."""
    y = one_hot.argmax(axis=1)
    mean, variance = (np.asarray(x, np.float64) for x in (test.mean, test.variance))
    # The densities differ from that of all zeros in one output.
    log_odds = (mean - 0.5) / variance
    log_probs = log_odds - np.logaddexp.reduce(log_odds, axis=1, keepdims=True)
    nlpp = -np.take_along_axis(log_probs, y[:, None], axis=1).mean()
    return {"error": float((log_odds.argmax(axis=1) != y).mean()), "nlpp": float(nlpp)}


def _label_metrics(test: Any, y: np.ndarray) -> dict[str, float]:
    nlpp = float(-test.log_density.mean(dtype=np.float64))
    return {"error": float((test.probs.argmax(axis=-1) != y).mean()), "nlpp": nlpp}


def _one_hot(data: datasets.Dataset) -> datasets.Dataset:
    eye = np.eye(10, dtype=np.float32)
    return replace(data, y_train=eye[data.y_train], y_test=eye[data.y_test])


def _view(variant: str, setting: _Setting) -> Callable | None:
    views = {"num_views": setting.num_views, "num_fixed": setting.num_fixed}
    makers = {
        "rbf": lambda: None,
        "rotation": lambda: rotation(15.0, **views),
        "rotation-learned": lambda: rotation(90.0, **views),
        "rotation-fixed": lambda: rotation(180.0, learn=False, **views),
        "affine": lambda: affine(**views),
        "local": lambda: deformation(**views),
    }
    return makers[variant]()


def mnist(run: Run) -> Outcome:
    """All ten digits, Gaussian likelihood (section 5.2, figure 4); ``...-sticks`` have logistic ones instead."""
    data = datasets.load("mnist")
    sizes = {"quick": (2000, 1000), "cpu": (10_000, 10_000), "paper": (None, None)}[run.preset]
    return _ten_classes(run, data, data.subset(*sizes, seed=run.seed))


def mnist_rot(run: Run) -> Outcome:
    """Ten digits rotated by any angle, Gaussian likelihood (section 5.3, figure 5)."""
    try:
        data = datasets.load("mnist-rot")
    except datasets.DatasetError:
        if any(entry.name == "mnist-rot" and entry.present for entry in datasets.available()):
            raise  # it is damaged
        data = datasets.load("mnist-rot-generated")
    sizes = {"quick": (2000, 1000), "cpu": (12_000, 10_000), "paper": (None, None)}[run.preset]
    outcome = _ten_classes(run, data, data.subset(*sizes, seed=run.seed))
    return replace(outcome, stands_in=data.name.endswith("-generated"))


def _ten_classes(run: Run, whole: datasets.Dataset, data: datasets.Dataset) -> Outcome:
    setting = {
        "quick": _Setting(300, 100, 100, num_views=8, rate=0.02),
        "cpu": _Setting(4000, 100, 250, num_views=8, evaluations=8, rate=0.01),
        "paper": _Setting(60_000, 200, 750, num_views=16, evaluations=20),
    }[run.preset]
    view = _view(run.variant.removesuffix("-sticks"), setting)
    if run.variant.endswith("-sticks"):
        program = partial(invariant_classifier, num_classes=10)
        # Log odds are large numbers, and take longer to learn than labels.
        setting = replace(setting, steps=2 * setting.steps)
        part = _part(run, whole, data)
        return _train(run, data, program, view, setting, _label_metrics, part, lengthscale=5.0, variance=10.0)
    program = partial(invariant_gp, num_outputs=10)
    start = {"lengthscale": 5.0, "noise_variance": 0.05}
    return _train(run, _one_hot(data), program, view, setting, _class_metrics, _part(run, whole, data), **start)


_PRESETS = ("quick", "cpu", "paper")

EXPERIMENTS = (
    Experiment(
        paper="invariant",
        name="toy",
        description="A symmetric function of two inputs, with and without the symmetry in the prior (figure 2).",
        variants={"symmetric": {}, "plain": {}},
        run=toy,
        default_variant="symmetric",
        presets=("quick",),
    ),
    Experiment(
        paper="invariant",
        name="rotated-binary",
        description="Odd or even digits, rotated by up to 90 or 180 degrees; the angle is learned (figure 3).",
        variants={f"{truth}-{name}": {} for truth in (90, 180) for name in ("rbf", "from-5", "from-45")},
        run=rotated_binary,
        default_variant="90-from-45",
        data=("mnist",),
        presets=_PRESETS,
    ),
    Experiment(
        paper="invariant",
        name="mnist",
        description="MNIST, ten classes, Gaussian likelihood, learned invariances (figure 4).",
        variants={
            "rbf": {"error": 0.02},
            "rotation": {},
            "affine": {"error": 0.01},
            "local": {"error": 0.01},
            "rbf-sticks": {},
            "affine-sticks": {},
        },
        run=mnist,
        default_variant="affine",
        data=("mnist",),
        presets=_PRESETS,
    ),
    Experiment(
        paper="invariant",
        name="mnist-rot",
        description="Digits rotated by any angle, 12,000 for training; learned and fixed invariances (figure 5).",
        variants={"rbf": {}, "affine": {}, "rotation-learned": {}, "rotation-fixed": {}},
        run=mnist_rot,
        default_variant="rotation-fixed",
        data=("mnist-rot", "mnist"),
        presets=_PRESETS,
    ),
)


if __name__ == "__main__":
    from gpzoo.reproductions.cli import script_main

    script_main(EXPERIMENTS)
