"""How are the models of deep kernel learning trained on a split, scored and shown?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import random

from gpzoo._extras import needs
from gpzoo.inference import SitePrediction, plots
from gpzoo.inference import load as load_model
from gpzoo.models.deep_kernel import deep_kernel_gp
from gpzoo.models.modules import Network, network_of, shifted_and_mirrored
from gpzoo.models.train_deep_kernel import DeepKernelFit, features_of, fit_deep_kernel, fit_network
from gpzoo.reproductions import datasets, metrics
from gpzoo.reproductions.experiment import Outcome, Run
from gpzoo.reproductions.kept import kept
from gpzoo.reproductions.sweep import means
from gpzoo.reproductions.training import exported, inspected, left, predicted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The paper's models, in its order, and the network alone, trained for as many steps as in ``svdkl``.
MODELS = ("dnn", "dnn-long", "dnn+", "dnn+gp", "svdkl")

#: Number of test rows predicted at a time.
TEST_ROWS = 2000


@dataclass(frozen=True)
class Phases:
    """How the models are trained: the network, GPs on its features, then both together.

    Attributes:
        epochs: epochs of the network, of GPs on its features, of both together.
        batch_size: rows per minibatch.
        splits: number of splits; results are means over them.
        rates: learning rates of the network, of the GPs, of the network when both are trained together.
        weight_decay: weight decay of the network.
        augmented: whether images are randomly shifted and mirrored in training.
    """

    epochs: tuple[float, float, float]
    batch_size: int
    splits: int = 1
    rates: tuple[float, float, float] = (1e-3, 1e-2, 1e-3)
    weight_decay: float = 0.0
    augmented: bool = False

    def steps(self, rows: int) -> tuple[int, int, int]:
        """Number of steps of each phase."""
        of_network, of_gps, together = (max(1, round(epochs * rows / self.batch_size)) for epochs in self.epochs)
        return of_network, of_gps, together

    def network(self, module: Any) -> Network:
        """The network of a module."""
        return shifted_and_mirrored(network_of(module)) if self.augmented else network_of(module)

    def options(self, rows: int) -> dict[str, Any]:
        """Arguments of ``fit_deep_kernel``."""
        batch_size = None if self.batch_size >= rows else self.batch_size
        options = {"num_steps": self.steps(rows), "learning_rates": self.rates, "batch_size": batch_size}
        return options | {"weight_decay": self.weight_decay}


#: Makes a network; arguments are whether it has the extra hidden layer, the data, and a seed.
Maker = Callable[[bool, datasets.Dataset, int], Any]

#: Settings for a split, and the candidates they were chosen from; arguments are the run, the number of the split, its
#: data, what makes a network, and settings.
Choice = Callable[[Run, int, datasets.Dataset, Maker, Phases], tuple[Phases, list[dict[str, Any]]]]


def train(
    run: Run,
    load: Callable[[int], datasets.Dataset],
    make: Maker,
    setting: Phases,
    notes: Mapping[str, str] | None = None,
    *,
    models: Sequence[str] = MODELS,
    stands_in: bool = False,
    choose: Choice | None = None,
    selection: Mapping[str, Any] | None = None,
    **outcome: Any,
) -> Outcome:
    """Train and evaluate models on every split; ``notes`` are added to the result's settings.

    Generated data always count as stand-ins for the paper's. ``choose`` finds settings for each split,
    whose candidates are added to ``selection``. Further arguments are fields of the outcome.
    """
    with needs("flax", "The networks of deep kernels"):
        import flax  # noqa: F401
    fit: Any = None
    data: Any = None
    which = f"svdkl, split {setting.splits} of {setting.splits}"
    if run.finished:
        data = load(setting.splits - 1)
        model = partial(deep_kernel_gp, network=setting.network(make(False, data, run.seed)))
        return left(run, data, inspected(load_model(run.model, model), data, which=which))
    scores, settings, used, candidates = [], {}, [], []
    for split in range(setting.splits):
        data = load(split)
        own, tried = choose(run, split, data, make, setting) if choose is not None else (setting, [])
        used.append(own)
        candidates += tried
        settings = {
            "splits": setting.splits,
            "batch_size": setting.batch_size,
            "steps_network_features_joint": list(setting.steps(len(data.y_train))),
            "rates_network_gps_joint": list(own.rates),
            "schedule": "Adam, cosine to a hundredth",
            "weight_decay": own.weight_decay,
            "dnn-long": "the network alone, as many steps as network and joint together",
            "grid": 64,
            **({"images": "moved and mirrored in training"} if setting.augmented else {}),
            **(notes or {}),
        }
        made_by = run.made_by(settings | {"split": split, "models": list(models)}, data)
        fit, found = _on_split(run, split, data, make, own, models, made_by)
        scores.append(found)
    if choose is not None:
        settings["rates_network_gps_joint"] = [list(own.rates) for own in used]
        settings["weight_decay"] = [own.weight_decay for own in used]
        selection = {**(selection or {}), "candidates": candidates}
    names = [f"{model}_{metric}" for model in models for metric in ("accuracy", "nlpp")]
    steps, joint = setting.steps(len(data.y_train)), fit.joint
    return Outcome(
        metrics=means({name: [found[name] for found in scores] for name in names}),
        settings=settings | {"by_split": scores},
        # The sum of svdkl's phases, of the network with another layer, and of the long training.
        steps=(sum(steps) + ("dnn+" in models) * steps[0] + steps[0] + steps[2]) * setting.splits,
        seconds_training=sum(found["seconds"] for found in scores),
        data=data,
        dtype="float32",
        elbo=-joint.losses,
        figures={"figure_3": partial(figure_3, fit, data)},
        posterior=partial(exported, random.key(run.seed), joint, data.X_train, data.y_train, num_draws=100),
        inspected=inspected(joint, data, which=which),
        stands_in=stands_in or data.name.endswith("-generated"),
        selection=selection,
        **outcome,
    )


def _on_split(
    run: Run,
    split: int,
    data: datasets.Dataset,
    make: Maker,
    setting: Phases,
    models: Sequence[str],
    made_by: Mapping[str, Any],
) -> tuple[DeepKernelFit, dict[str, float]]:
    """The deep kernel trained on a split, and the models' metrics on its test part."""
    X, y = jnp.asarray(data.X_train), jnp.asarray(data.y_train)
    seed = 1000 * run.seed + split
    plain = setting.network(make(False, data, seed))
    options, folder, key = setting.options(len(y)), run.checkpoint / str(split), random.key(seed)
    # The last split's posterior is exported, so that every start trains the deep kernel or restores its checkpoints.
    fit = fit_deep_kernel(key, X, y, network=plain, checkpoint=folder / "plain", **options)

    def scores_of_all() -> dict[str, float]:
        alone: dict[str, Any] = {name: options[name] for name in ("batch_size", "weight_decay")}
        alone |= {"learning_rate": setting.rates[0]}
        of_network, _, together = options["num_steps"]
        length = of_network + together
        networks = {"dnn": (plain, fit.network)}
        if "dnn+" in models:
            plus = setting.network(make(True, data, seed))
            wide = fit_network(
                key, X, y, network=plus, num_steps=of_network, checkpoint=folder / "plus", progress="dnn+", **alone
            )
            networks["dnn+"] = plus, wide
        longer = fit_network(
            key, X, y, network=plain, num_steps=length, checkpoint=folder / "long", progress="dnn-long", **alone
        )
        networks["dnn-long"] = plain, longer
        scores = {}
        for model, (network, result) in networks.items():
            scores |= scored_as(model, of_network_alone(network, result.params, data.X_test, data.y_test), data.y_test)
        for model, result in (("dnn+gp", fit.features), ("svdkl", fit.joint)):
            one = fit.joint.with_params(result.params)
            found = predicted(random.key(seed), one, data.X_test, data.y_test, TEST_ROWS)
            scores |= scored_as(model, found, data.y_test)
        trained = [fit.features, fit.joint, *(result for _, result in networks.values())]
        return scores | {"seconds": float(sum(result.seconds for result in trained))}

    return fit, kept(run.output / f"split-{split}.json", made_by, scores_of_all)


def scored_as(model: str, test: SitePrediction, y: np.ndarray) -> dict[str, float]:
    """Accuracy and nlpp of a prediction, as metrics of a model."""
    return {f"{model}_accuracy": metrics.accuracy(test, y), f"{model}_nlpp": metrics.nlpp(test)}


def of_network_alone(network: Network, params: Mapping[str, Any], X: np.ndarray, y: np.ndarray) -> SitePrediction:
    """The prediction of a softmax of a network's features."""
    return metrics.softmax(features_of(network, params, X), y)


def figure_3(fit: DeepKernelFit, data: datasets.Dataset) -> Figure:
    """Figure 3: kernels of four features on test points sorted by class, and the mixing matrix."""
    A = np.asarray(fit.joint.params["mixing"])
    shown = np.sort(np.random.RandomState(0).permutation(len(A))[:4])
    # As wide as the column of a journal: letters keep their size where it is shown 400 pixels wide.
    figure = plots.blank(4.8, 2.5 + 2.1 * -(-len(shown) // 2))
    rows = [[f"{k}" for k in shown[i : i + 2]] for i in range(0, len(shown), 2)]
    layout: Any = [*(row * (2 // len(row)) for row in rows), ["mixing"] * 2]
    panels: Any = figure.subplot_mosaic(layout)
    kernels = [panels[f"{k}"] for k in shown]
    for k, axes in zip(shown, kernels, strict=True):
        plots.kernel_by_class(fit.joint, data.X_test, labels=data.y_test, output=int(k), count=500, ax=axes)
        axes.set_title(f"kernel of feature {k}", fontsize=9)
    _one_scale(figure, kernels, "prior covariance")
    mixing, limit = panels["mixing"], np.abs(A).max()
    mixing.imshow(A.T, cmap="RdBu_r", vmin=-limit, vmax=limit)
    mixing.locator_params(integer=True, nbins=10)
    mixing.tick_params(labelsize=8)
    mixing.set_xlabel("feature", fontsize=9)
    mixing.set_ylabel("class", fontsize=9)
    mixing.set_title("mixing matrix", fontsize=9)
    _one_scale(figure, [mixing], "weight")
    return figure


def _one_scale(figure: Any, panels: Sequence[Any], name: str) -> None:
    """One scale of colours for the pictures in these panels, in place of their own."""
    images = [axes.images[0] for axes in panels]
    lows, highs = zip(*(image.get_clim() for image in images), strict=True)
    for image in images:
        image.set_clim(min(lows), max(highs))
        if image.colorbar is not None:
            image.colorbar.remove()
    bar = figure.colorbar(images[0], ax=panels)
    bar.set_label(name, fontsize=9)
    bar.ax.tick_params(labelsize=8)


def connected(extra: bool, data: datasets.Dataset, seed: int) -> Any:
    """``d-1000-1000-500-50-c``, optionally with one more hidden layer of ``c`` units (section 5.1)."""
    from flax import nnx

    from gpzoo.models.networks import FullyConnected

    classes = data.sizes["classes"]
    widths = (1000, 1000, 500, 50, *((classes,) if extra else ()))
    return FullyConnected(data.X_train.shape[1], classes, widths, rngs=nnx.Rngs(seed))
