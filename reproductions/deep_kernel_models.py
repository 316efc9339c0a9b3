"""How are the models of deep kernel learning made, trained on a split, scored and shown?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import random

from gpzoo._extras import needs
from gpzoo.errors import NonFiniteError
from gpzoo.inference import SitePrediction, plots
from gpzoo.inference import load as load_model
from gpzoo.models.deep_kernel import deep_kernel_gp
from gpzoo.models.modules import Network, network_of, shifted_and_mirrored
from gpzoo.models.train_deep_kernel import DeepKernelFit, features_of, fit_deep_kernel, fit_network
from gpzoo.reproductions import metrics
from gpzoo.reproductions.datasets import Dataset
from gpzoo.reproductions.experiment import Outcome, ReproductionError, Run
from gpzoo.reproductions.kept import kept
from gpzoo.reproductions.training import exported, inspected, left, over_splits, predicted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The paper's models, in its order, and the network alone, trained for as many steps as in ``svdkl``.
MODELS = ("dnn", "dnn-long", "dnn+", "dnn+gp", "svdkl")

#: Number of test rows predicted at a time.
TEST_ROWS = 2000

#: Weight decays, of which the network alone is given the best.
DECAYS = (0.0, 4.0)

#: Rates of network and GPs together, of which SV-DKL is given the best.
RATES = (1e-3, 3e-4, 1e-4)

#: How the record of a run tells of it; candidates are added by the run.
SELECTION = {
    "what": "weight decay, by the network alone, and then the rate of the last phase, by SV-DKL",
    "rule": "by code, the lowest nlpp",
    "data": "a random tenth of the training rows of each split, put aside; epochs and candidates are of trials by "
    "hand, some on a random split of connect4 and of diabetes that shares rows with those reported",
}


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
        units: those of the layer that ``dnn+`` adds: ``"rectified"``, ``"leaky"`` or ``"linear"``.
    """

    epochs: Sequence[float]
    batch_size: int
    splits: int = 1
    rates: Sequence[float] = (1e-3, 1e-2, 1e-3)
    weight_decay: float = 0.0
    augmented: bool = False
    units: str = "rectified"

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Phases:
        """The settings among a run's options."""
        return cls(**{each.name: options[each.name] for each in fields(cls) if each.name in options})

    def steps(self, rows: int) -> tuple[int, int, int]:
        """Number of steps of each phase."""
        of_network, of_gps, together = (max(1, round(epochs * rows / self.batch_size)) for epochs in self.epochs)
        return of_network, of_gps, together

    def network(self, name: str, data: Dataset, seed: int, *, plus: bool = False) -> Network:
        """A network for data; with ``plus`` that of ``dnn+``."""
        network = network_of(module(name, data, seed, self.units if plus else None))
        return shifted_and_mirrored(network) if self.augmented else network

    def options(self, rows: int) -> dict[str, Any]:
        """Arguments of ``fit_deep_kernel``."""
        batch_size = None if self.batch_size >= rows else self.batch_size
        options = {"num_steps": self.steps(rows), "learning_rates": self.rates, "batch_size": batch_size}
        return options | {"weight_decay": self.weight_decay}


def module(name: str, data: Dataset, seed: int, units: str | None = None) -> Any:
    """A network of one feature per class, as a flax module.

    Args:
        name: of the network: ``"connected"``, ``d-1000-1000-500-50-c`` (section 5.1), ``"small"``, two convolutions of
            3x3 without pooling and a hidden layer, ``"lenet"``, ``"quick-cnn"``, ``"resnet20"`` or ``"alexnet"``.
        data: the data.
        seed: of the initial weights.
        units: those of one more hidden layer of ``c`` units (``dnn+``), ``None`` for none.
    """
    with needs("flax", "The networks of deep kernels"):
        from flax import nnx
    from gpzoo.models import networks

    shape, c, rngs = data.X_train.shape[1:], data.sizes["classes"], nnx.Rngs(seed)

    def small() -> Any:
        H, W, C = shape
        first = nnx.Conv(C, 16, (3, 3), rngs=rngs)
        second = nnx.Conv(16, 32, (3, 3), strides=(2, 2), rngs=rngs)
        top = networks.FullyConnected(-(-H // 2) * -(-W // 2) * 32, c, (64,), rngs=rngs)
        return nnx.Sequential(first, nnx.relu, second, nnx.relu, top)

    made = {
        "connected": lambda: networks.FullyConnected(shape[0], c, rngs=rngs),
        "small": small,
        "lenet": lambda: networks.LeNet(c, rngs=rngs),
        "quick-cnn": lambda: networks.QuickCNN(c, shape, rngs=rngs),
        "resnet20": lambda: networks.ResNet20(c, shape[-1], rngs=rngs),
        "alexnet": lambda: networks.AlexNet(c, shape, rngs=rngs),
    }[name]()
    if units is None:
        return made
    between = {"rectified": (nnx.relu,), "leaky": (nnx.leaky_relu,), "linear": ()}[units]
    return nnx.Sequential(made, *between, nnx.Linear(c, c, kernel_init=nnx.initializers.he_normal(), rngs=rngs))


# -- one split after the other -----------------------------------------------------------------------------------------


def train(
    run: Run,
    load: Callable[[Run], tuple[Dataset, Mapping[str, Any] | None]],
    facts: Mapping[str, Any],
    of: int | None = None,
    **outcome: Any,
) -> Outcome:
    """Train and evaluate models on every split.

    Generated data always count as stand-ins for the paper's. With the option ``choose`` decay and last rate are chosen
    for each split.

    Args:
        run: the run.
        load: the data of a split, and the part of the whole that they are.
        facts: the experiment's: ``network``, ``notes`` for the result's settings, and ``models`` if they are not all.
        of: the paper's number of splits.
        **outcome: further fields of the outcome.
    """
    setting, by_code = Phases.of(run.options), run.options.get("choose", False)

    def several(every: Sequence[Outcome]) -> dict[str, Any]:
        """Settings from all splits: their scores, and what was chosen for each."""
        scores = [{**each.metrics, "seconds": each.seconds_training} for each in every]
        names = ("rates_network_gps_joint", "weight_decay") if by_code else ()
        return {name: [each.settings[name] for each in every] for name in names} | {"by_split": scores}

    def one(run: Run) -> Outcome:
        data, part = load(run)
        return replace(_on_split(run, data, setting, facts), subset=part)

    found = over_splits(run, setting.splits, one, of=of, shown=-1, settings=several)
    return found if run.finished else replace(found, **outcome)


def _on_split(run: Run, data: Dataset, setting: Phases, facts: Mapping[str, Any]) -> Outcome:
    """The deep kernel trained on a split, and the models' metrics on its test part."""
    split, name, models = run.split or 0, facts["network"], facts.get("models", MODELS)
    if run.finished:
        model = partial(deep_kernel_gp, network=setting.network(name, data, run.seed))
        return left(run, data, inspected(load_model(run.model, model), data, which="svdkl"))
    by_code = run.options.get("choose", False)
    own, candidates = choose(run, data, setting, name) if by_code else (setting, [])
    X, y = jnp.asarray(data.X_train), jnp.asarray(data.y_train)
    seed, options = 1000 * run.seed + split, own.options(len(y))
    settings = {
        "splits": setting.splits,
        "batch_size": setting.batch_size,
        "steps_network_features_joint": list(options["num_steps"]),
        "rates_network_gps_joint": list(own.rates),
        "schedule": "Adam, cosine to a hundredth",
        "weight_decay": own.weight_decay,
        "dnn-long": "the network alone, as many steps as network and joint together",
        "grid": 64,
        **({"images": "moved and mirrored in training"} if setting.augmented else {}),
        **({"dnn+": f"{setting.units} units"} if setting.units != "rectified" else {}),
        **facts.get("notes", {}),
        **({"epochs": "of some trials by hand"} if by_code else {}),
    }
    plain, key = own.network(name, data, seed), random.key(seed)
    # The last split's posterior is exported, so that every start trains the deep kernel or restores its checkpoints.
    fit = fit_deep_kernel(key, X, y, network=plain, checkpoint=run.checkpoint / "plain", **options)
    made_by = run.made_by(settings | {"split": split, "models": list(models)}, data)
    scores = dict(kept(run.output / f"split-{split}.json", made_by, partial(_scores, run, data, own, facts, fit)))
    of_network, of_gps, together = options["num_steps"]
    return Outcome(
        # svdkl's phases, the network with another layer, and the long training.
        steps=of_network * (3 if "dnn+" in models else 2) + of_gps + 2 * together,
        seconds_training=scores.pop("seconds"),
        metrics=scores,
        settings=settings,
        data=data,
        dtype="float32",
        elbo=-fit.joint.losses,
        figures={"figure_3": partial(figure_3, fit, data)},
        posterior=partial(
            exported,
            random.key(run.seed),
            fit.joint,
            jnp.asarray(data.X_train),
            jnp.asarray(data.y_train),
            num_draws=100,
        ),
        inspected=inspected(fit.joint, data, which="svdkl"),
        stands_in=data.name.endswith("-generated"),
        selection={**SELECTION, "candidates": candidates} if by_code else None,
    )


def _scores(run: Run, data: Dataset, own: Phases, facts: Mapping[str, Any], fit: DeepKernelFit) -> dict[str, float]:
    """Metrics of all models on a split, and seconds: the network's baselines are trained beside the deep kernel."""
    X, y = jnp.asarray(data.X_train), jnp.asarray(data.y_train)
    seed, options, name = 1000 * run.seed + (run.split or 0), own.options(len(y)), facts["network"]
    plain, key = own.network(name, data, seed), random.key(seed)
    alone: dict[str, Any] = {each: options[each] for each in ("batch_size", "weight_decay")}
    alone |= {"learning_rate": own.rates[0]}
    of_network, _, together = options["num_steps"]
    networks = {"dnn": (plain, fit.network)}
    if "dnn+" in facts.get("models", MODELS):
        plus = own.network(name, data, seed, plus=True)
        said = {"num_steps": of_network, "checkpoint": run.checkpoint / "plus", "progress": "dnn+"}
        networks["dnn+"] = plus, fit_network(key, X, y, network=plus, **said, **alone)
    said = {"num_steps": of_network + together, "checkpoint": run.checkpoint / "long", "progress": "dnn-long"}
    networks["dnn-long"] = plain, fit_network(key, X, y, network=plain, **said, **alone)
    scores = {}
    for model, (network, result) in networks.items():
        scores |= scored_as(model, of_network_alone(network, result.params, data.X_test, data.y_test), data.y_test)
    for model, result in (("dnn+gp", fit.features), ("svdkl", fit.joint)):
        one = fit.joint.with_params(result.params)
        found = predicted(key, one, data.X_test, data.y_test, TEST_ROWS)
        scores |= scored_as(model, found, data.y_test)
    trained = [fit.features, fit.joint, *(result for _, result in networks.values())]
    return scores | {"seconds": float(sum(result.seconds for result in trained))}


def scored_as(model: str, test: SitePrediction, y: np.ndarray) -> dict[str, float]:
    """Accuracy and nlpp of a prediction, as metrics of a model."""
    return {f"{model}_accuracy": metrics.accuracy(test, y), f"{model}_nlpp": metrics.nlpp(test)}


def of_network_alone(network: Network, params: Mapping[str, Any], X: np.ndarray, y: np.ndarray) -> SitePrediction:
    """The prediction of a softmax of a network's features."""
    return metrics.softmax(features_of(network, params, X), y)


# -- the choice of settings on held-out rows ---------------------------------------------------------------------------


def choose(run: Run, data: Dataset, setting: Phases, name: str) -> tuple[Phases, list[dict[str, Any]]]:
    """Settings with the weight decay and the last rate that are best for a split, and the candidates.

    A random tenth of the training rows judges trainings on the other rows; rows of a group stay together. Test rows are
    not looked at. Steps and seconds of a run leave these trainings out.

    Args:
        run: the run, which keeps the candidates in a file for a later start.
        data: the split's data.
        setting: the settings, of which decay and last rate are replaced.
        name: of the network.

    Returns:
        The settings, and of every candidate its decay or rate and its ``nlpp``, in nats a row, ``None`` where its
        training failed.

    Raises:
        ReproductionError: if the trainings of all decays, or of all rates, ended in numbers that are not finite.
    """
    split = run.split or 0
    seed = 1000 * run.seed + split
    groups = np.arange(len(data.y_train)) if data.groups is None else np.unique(data.groups, return_inverse=True)[1]
    number = groups.max() + 1
    place = np.argsort(np.random.RandomState(seed).permutation(number))[groups]
    rows, kept_aside = np.argsort(place, kind="stable"), place < max(1, number // 10)
    aside, used = np.split(rows, [kept_aside.sum()])
    X, y, held = data.X_train[used], data.y_train[used], (data.X_train[aside], data.y_train[aside])

    def make_candidates() -> list[dict[str, Any]]:
        found, networks, network, key = [], {}, setting.network(name, data, seed), random.key(seed)
        options = setting.options(len(y))
        alone = {"num_steps": options["num_steps"][0], "learning_rate": setting.rates[0]}
        alone |= {"network": network, "batch_size": setting.batch_size}
        for decay in DECAYS:
            nlpp, title = None, f"choice of split {split}: weight decay {decay}"
            with suppress(NonFiniteError):
                networks[decay] = fit_network(key, X, y, weight_decay=decay, progress=title, **alone).params
                nlpp = metrics.nlpp(of_network_alone(network, networks[decay], *held))
            found.append({"split": split, "weight_decay": decay, "nlpp": nlpp})
        best = _best(found)["weight_decay"]
        for rate in RATES:
            own = replace(setting, rates=(*setting.rates[:2], rate), weight_decay=best).options(len(y))
            nlpp, title = None, f"choice of split {split}: rate {rate}"
            with suppress(NonFiniteError):
                given = {"network": network, "pretrained": networks[best], "progress": title}
                fit = fit_deep_kernel(key, X, y, **given, **own)
                nlpp = metrics.nlpp(predicted(key, fit.joint, *held, TEST_ROWS))
            found.append({"split": split, "weight_decay": best, "rate_joint": rate, "nlpp": nlpp})
        return found

    said = {"split": split, "decays": list(DECAYS), "rates": list(RATES), "batch_size": setting.batch_size}
    said |= {"steps": list(setting.steps(len(y))), "rates_network_gps": list(setting.rates[:2])}
    candidates = kept(run.output / f"choice-{split}.json", run.made_by(said, data), make_candidates)
    best = _best([each for each in candidates if "rate_joint" in each])
    rates = (*setting.rates[:2], best["rate_joint"])
    return replace(setting, rates=rates, weight_decay=best["weight_decay"]), candidates


def _best(candidates: Sequence[dict[str, Any]]) -> dict[str, Any]:
    finite = [each for each in candidates if each["nlpp"] is not None]
    if not finite:
        tried = ", ".join(str(each.get("rate_joint", each["weight_decay"])) for each in candidates)
        raise ReproductionError(f"The trainings of all candidates ({tried}) ended in numbers that are not finite.")
    return min(finite, key=lambda each: each["nlpp"])


# -- figures -----------------------------------------------------------------------------------------------------------


def figure_3(fit: DeepKernelFit, data: Dataset) -> Figure:
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
