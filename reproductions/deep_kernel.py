"""Stochastic variational deep kernel learning (Wilson et al. 2016): section 5.

``gpzoo reproduce deep_kernel adult`` or ``python reproductions/deep_kernel.py digits --preset quick``. Every run trains
the models of the paper: the network alone (``dnn``), a network with another hidden layer (``dnn+``), GPs on the
features of ``dnn`` (``dnn+gp``), and both together (``svdkl``). The paper has no ``dnn+`` for ResNet and ImageNet. Two
models are for comparison. ``dnn-long`` is the network alone, trained for as many steps as the network of ``svdkl``, and
``dnn+gp-long`` has as many steps of the GPs. The other layer of ``dnn+`` has one rectified unit per class, apparently
as in the paper. With few classes, all these units can die, and then ``dnn+`` fails. ``units = "leaky"`` keeps them
alive.

Settings of ``paper`` are from section 5, which prints the widths of the networks and the minibatches of airline
(50,000) and of images (5,000), but neither epochs nor rates. Epochs and rates are the defaults here, without choices by
results, and Adam replaces SGD. Settings that were chosen by results are in ``cpu`` and ``tuned``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jax import random
from numpyro.infer import SVI, Trace_ELBO

from gpzoo._extras import needs
from gpzoo.errors import NonFiniteError
from gpzoo.inducing.grid import InducingGrid
from gpzoo.inference import GaussianProcessELBO, InducingGuide, SitePrediction, Trained, plots
from gpzoo.inference import load as load_model
from gpzoo.models.deep_kernel import deep_kernel_gp, network_classifier
from gpzoo.models.invariant import averaged
from gpzoo.models.modules import Network, network_of, shifted_and_mirrored
from gpzoo.models.train_deep_kernel import BOUNDS, DeepKernelFit, features_of, fit_deep_kernel, fit_network
from gpzoo.models.views import affine
from gpzoo.posteriors.forms import LARGE_GRID
from gpzoo.reproductions import datasets, judge, metrics, training
from gpzoo.reproductions.claims import load
from gpzoo.reproductions.datasets import Dataset
from gpzoo.reproductions.experiment import PRESETS, Figure, Outcome, ReproductionError, Results, Run, experiment, some
from gpzoo.reproductions.judge import EXCEEDED, MATCHED, Answered, Found, Judged, Value, holding, pairs, verdict
from gpzoo.reproductions.kept import kept
from gpzoo.reproductions.records import Ours, Recorded, Records, lead
from gpzoo.reproductions.training import exported, inspected, predicted

PAPER = load("deep_kernel")

#: The models of the paper, in its order. ``dnn-long`` and ``dnn+gp-long`` have as many steps as ``svdkl``.
MODELS = ("dnn", "dnn-long", "dnn+", "dnn+gp", "dnn+gp-long", "svdkl")

#: Networks, and units of the layer that ``dnn+`` adds; see :func:`module`.
NETWORKS, UNITS = ("connected", "small", "lenet", "quick-cnn", "resnet20", "alexnet"), ("rectified", "leaky", "linear")

#: Number of test rows that are predicted at a time.
TEST_ROWS = 2000

#: Candidates for weight decay. The network alone decides which one is best.
DECAYS = (0.0, 4.0)

#: Candidates for the rate of network and GPs together. SV-DKL decides which one is best.
RATES = (1e-3, 3e-4, 1e-4)

#: Schedule of all learning rates.
SCHEDULE = "Adam, cosine to a hundredth"

#: The record of the choice in a result. The run adds the candidates.
SELECTION = {
    "what": "weight decay, by the network alone, and then the rate of the last phase, by SV-DKL",
    "rule": "by code, the lowest nlpp",
    "data": "a random tenth of the training rows of each split, put aside; epochs and candidates come from trials by "
    "hand, some on a random split of connect4 and of diabetes that shares rows with the reported splits",
}


@dataclass(frozen=True)
class Phases:
    """The training of the models: the network, GPs on its features, then both together.

    Attributes:
        epochs: epochs of the network, of GPs on its features, and of both together.
        batch_size: rows per minibatch.
        splits: number of splits; results are means over them.
        rates: learning rates of the network, of the GPs, and of the network when both are trained together.
        weight_decay: weight decay of the network.
        augmented: whether images are randomly shifted and mirrored in training.
        views: numbers of affine views over which features are averaged, in training and otherwise; ``None`` for none.
        units: units of the layer that ``dnn+`` adds: ``"rectified"``, ``"leaky"`` or ``"linear"``.
        network: the name of the network, see :func:`module`.
        models: the models that are trained.
        one_draw: whether a step takes one draw of ``u`` for all rows, see :func:`gpzoo.models.fit_deep_kernel`.
        grid: number of grid points along each axis of the inputs of a GP. With one axis, every GP sees one feature.
            With several axes, it sees several features, and the covariance of its ``u`` is a Kronecker product.
    """

    epochs: Sequence[float]
    batch_size: int
    splits: int = 1
    rates: Sequence[float] = (1e-3, 1e-2, 1e-3)
    weight_decay: float = 0.0
    augmented: bool = False
    views: Sequence[int] | None = None
    units: str = "rectified"
    network: str = "connected"
    models: Sequence[str] = MODELS
    one_draw: bool = False
    grid: Sequence[int] = (64,)

    def __post_init__(self) -> None:
        choices = {"network": NETWORKS, "units": UNITS, "models": MODELS}
        for name, known in choices.items():
            given = getattr(self, name)
            for each in [given] if isinstance(given, str) else given:
                if each not in known:
                    raise ValueError(f"{name} cannot be {each!r}, choose from: {', '.join(known)}.")
        if not isinstance(self.batch_size, int):
            raise ValueError(f"batch_size is a number of rows here, not {self.batch_size!r}.")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Phases:
        """The phases from the options of a run."""
        return cls(**{each.name: options[each.name] for each in fields(cls) if each.name in options})

    def steps(self, rows: int) -> tuple[int, int, int]:
        """Number of steps of each phase."""
        of_network, of_gps, together = (max(1, round(epochs * rows / self.batch_size)) for epochs in self.epochs)
        return of_network, of_gps, together

    def made(self, data: Dataset, seed: int, *, plus: bool = False) -> Network:
        """The network for these data; with ``plus``, the network of ``dnn+``."""
        network = network_of(module(self.network, data, seed, self.units if plus else None))
        if self.views is not None:
            network = averaged(network, affine(num_views=self.views[0], num_fixed=self.views[1]))
        return shifted_and_mirrored(network) if self.augmented else network

    def options(self, rows: int, features: int) -> dict[str, Any]:
        """Arguments of ``fit_deep_kernel`` for a network with these features."""
        batch_size = None if self.batch_size >= rows else self.batch_size
        options = {"num_steps": self.steps(rows), "learning_rates": self.rates, "batch_size": batch_size}
        options |= {"weight_decay": self.weight_decay, "one_draw": self.one_draw}
        options |= {"inducing": InducingGrid(self.grid, BOUNDS)}
        subsets = [[(k + axis) % features for axis in range(len(self.grid))] for k in range(features)]
        return options | {"model_kwargs": {"subsets": subsets} if len(self.grid) > 1 else None}


#: Settings that ``--set`` may change.
SETTINGS = Phases


def module(name: str, data: Dataset, seed: int, units: str | None = None) -> Any:
    """A network of one feature per class, as a flax module.

    Args:
        name: name of the network. ``"connected"`` is ``d-1000-1000-500-50-c`` (section 5.1). ``"small"`` has two
            convolutions of 3x3 without pooling and a hidden layer. Others are ``"lenet"``, ``"quick-cnn"``,
            ``"resnet20"`` and ``"alexnet"``.
        data: the data.
        seed: seed of the initial weights.
        units: kind of the ``c`` units in one more hidden layer (``dnn+``); ``None`` for no such layer.
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
    of: int | None = None,
    **outcome: Any,
) -> Outcome:
    """Train and evaluate models on every split.

    The option ``stands_in`` says whether data stand in for the paper's data. Without it, generated data do. With
    ``choose``, decay and last rate are chosen for each split. ``notes`` are added to the settings in the result.

    Args:
        run: the run.
        load: a function that loads the data of a split, with a record of the part of the whole that they are.
        of: the number of splits in the paper.
        **outcome: further fields of the outcome.

    Raises:
        ReproductionError: if the command line changed a setting that is chosen.
    """
    setting = Phases.of(run.options)
    chosen = run.changes.keys() & {"rates", "weight_decay"}
    if run.options.get("choose") and chosen:
        raise ReproductionError(f"--set {chosen.pop()} has no effect: code chooses it, unless with --set choose=false.")
    names = ("rates_network_gps_joint", "weight_decay") if run.options.get("choose") else ()

    def several(every: Sequence[Outcome]) -> dict[str, Any]:
        """Settings from all splits: their scores, and the choices for each."""
        scores = [{**each.metrics, "seconds": each.seconds_training} for each in every]
        return {name: [each.settings[name] for each in every] for name in names} | {"by_split": scores}

    def one(run: Run) -> Outcome:
        data, part = load(run)
        return replace(_on_split(run, data, setting), subset=part)

    found = training.over_splits(run, setting.splits, one, of=of, shown=-1, settings=several)
    return found if run.finished else replace(found, **outcome)


def _on_split(run: Run, data: Dataset, setting: Phases) -> Outcome:
    """The deep kernel trained on a split, and the metrics of all models on the test part of the split."""
    split, by_code = run.split or 0, run.options.get("choose", False)
    if run.finished:
        model = partial(deep_kernel_gp, network=setting.made(data, run.seed))
        return training.left(run, data, inspected(load_model(run.model, model), data, which="svdkl"))
    own, candidates = choose(run, data, setting) if by_code else (setting, [])
    options, seed = own.options(len(data.y_train), data.sizes["classes"]), 1000 * run.seed + split
    settings: dict[str, Any] = {"splits": setting.splits, "batch_size": setting.batch_size, "schedule": SCHEDULE}
    settings |= {"steps_network_features_joint": options["num_steps"], "rates_network_gps_joint": list(own.rates)}
    settings |= {"weight_decay": own.weight_decay, "grid": own.grid[0] if len(own.grid) == 1 else list(own.grid)}
    settings |= {"dnn-long": "the network alone, as many steps as network and joint together"}
    if "dnn+gp-long" in own.models:
        settings |= {"dnn+gp-long": "GPs on the network alone, as many steps of theirs as in svdkl"}
    settings |= {"draws": "one of u a step, for all rows"} if setting.one_draw else {}
    settings |= {"images": "moved and mirrored in training"} if setting.augmented else {}
    settings |= {"views_in_training_and_else": setting.views} if setting.views else {}
    settings |= {"dnn+": f"{setting.units} units"} if setting.units != "rectified" else {}
    settings |= run.options.get("notes", {}) | ({"epochs": "of some trials by hand"} if by_code else {})
    # The posterior of the last split is exported, so every start trains the deep kernel or restores its checkpoints.
    plain, rows = own.made(data, seed), (jnp.asarray(data.X_train), jnp.asarray(data.y_train))
    fit = fit_deep_kernel(random.key(seed), *rows, network=plain, checkpoint=run.checkpoint / "plain", **options)
    made_by = run.made_by(settings | {"split": split, "models": list(setting.models)}, data)
    scored = partial(_scores, run, data, own, fit, plain, seed)
    scores = dict(kept(run.output / f"split-{split}.json", made_by, scored))
    # After the settings, which name everything that is kept.
    wrong = {name.replace("wrong_rows", "accuracy"): scores.pop(name) for name in [*scores] if "wrong_rows" in name}
    settings |= {"wrong_rows": wrong} if wrong else {}
    settings |= {"mixing": np.asarray(fit.joint.params["mixing"]).round(4).tolist()}
    of_network, of_gps, together = options["num_steps"]
    # The phases of svdkl, the network with another layer, and the long trainings.
    steps = of_network * (3 if "dnn+" in setting.models else 2) + of_gps + 2 * together
    steps += of_gps + together if "dnn+gp-long" in setting.models else 0
    seconds = scores.pop("seconds")
    common = {"data": data, "dtype": "float32", "elbo": -fit.joint.losses}
    common |= {"stands_in": run.options.get("stands_in", data.name.endswith("-generated"))}
    common |= {"inspected": inspected(fit.joint, data, which="svdkl")}
    common |= {"posterior": partial(exported, random.key(run.seed), fit.joint, *rows, num_draws=100)}
    common |= {"figures": {"figure_3": partial(figure_3, fit, data)}}
    common |= {"selection": {**SELECTION, "candidates": candidates} if by_code else None}
    return Outcome(scores, settings, steps, seconds, **common)


def _scores(run: Run, data: Dataset, own: Phases, fit: DeepKernelFit, plain: Network, seed: int) -> dict[str, Any]:
    """Metrics of all models on a split, and seconds. Baselines of the network are trained in addition to ``fit``.

    If there is only one split, the wrong rows of each model are there too: a difference then has no error over splits.
    """
    key, test = random.key(seed), (data.X_test, data.y_test)
    options = own.options(len(data.y_train), data.sizes["classes"])
    alone = {"batch_size": options["batch_size"], "weight_decay": own.weight_decay, "learning_rate": own.rates[0]}

    def trained(model: str, network: Network, folder: str, steps: int) -> tuple[Network, Trained]:
        said = {"num_steps": steps, "checkpoint": run.checkpoint / folder, "progress": model}
        X, y = jnp.asarray(data.X_train), jnp.asarray(data.y_train)
        return network, fit_network(key, X, y, network=network, **said, **alone)

    of_network, of_gps, together = options["num_steps"]
    networks = {"dnn": (plain, fit.network)}
    if "dnn+" in own.models:
        networks["dnn+"] = trained("dnn+", own.made(data, seed, plus=True), "plus", of_network)
    networks["dnn-long"] = trained("dnn-long", plain, "long", of_network + together)
    tests: dict[str, SitePrediction] = {}
    for model, (network, result) in networks.items():
        tests[model] = of_network_alone(network, result.params, *test)
    gps = {"dnn+gp": fit.features, "svdkl": fit.joint}
    if "dnn+gp-long" in own.models:
        said = options | {"num_steps": (of_network, of_gps + together, 0), "network": plain}
        said |= {"pretrained": fit.network.params, "checkpoint": run.checkpoint / "gp-long", "progress": "dnn+gp-long"}
        X, y = jnp.asarray(data.X_train), jnp.asarray(data.y_train)
        gps["dnn+gp-long"] = fit_deep_kernel(key, X, y, **said).features
    for model, result in gps.items():
        tests[model] = predicted(key, fit.joint.with_params(result.params), *test, TEST_ROWS)
    scores: dict[str, Any] = {}
    for model, found in tests.items():
        scores |= scored_as(model, found, data.y_test)
        scores |= {f"{model}_wrong_rows": metrics.wrong_rows(found, data.y_test)} if own.splits == 1 else {}
    every = [*gps.values(), *(result for _, result in networks.values())]
    return scores | {"seconds": float(sum(result.seconds for result in every))}


def scored_as(model: str, test: SitePrediction, y: np.ndarray) -> dict[str, float]:
    """Accuracy and nlpp of a prediction, as metrics of a model, and the standard error of nlpp."""
    found = {"accuracy": metrics.accuracy(test, y), "nlpp": metrics.nlpp(test), "nlpp_se": metrics.standard_error(test)}
    return {f"{model}_{name}": value for name, value in found.items()}


def of_network_alone(network: Network, params: Mapping[str, Any], X: np.ndarray, y: np.ndarray) -> SitePrediction:
    """The prediction of a network alone: the softmax of its features."""
    return metrics.softmax(features_of(network, params, X), y)


# -- the choice of settings on held-out rows ---------------------------------------------------------------------------


def choose(run: Run, data: Dataset, setting: Phases) -> tuple[Phases, list[dict[str, Any]]]:
    """Settings with the weight decay and the last rate that are best for a split, and the candidates.

    Candidates are trained on nine tenths of the training rows. The other tenth, drawn at random, decides which one
    is best. Rows of a group stay together. Test rows are not used. Steps and seconds of a run do not include these
    trainings.

    Args:
        run: the run. It keeps the candidates in a file for later starts.
        data: data of the split.
        setting: the settings in which decay and last rate are replaced.

    Returns:
        The settings, and for every candidate its decay or rate and its ``nlpp``, in nats per row; ``None`` if its
        training failed.

    Raises:
        ReproductionError: if all trainings of decays, or all trainings of rates, ended in numbers that are not finite.
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
        found, networks, network, key = [], {}, setting.made(data, seed), random.key(seed)
        options = setting.options(len(y), data.sizes["classes"])
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
            rated = replace(setting, rates=(*setting.rates[:2], rate), weight_decay=best)
            own = rated.options(len(y), data.sizes["classes"])
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
    """Figure 3: kernels of four features on test points sorted by class, and the mixing matrix.

    The matrix is also drawn without its diagonal, because other weights can be too small to see beside the diagonal.
    """
    A = np.asarray(fit.joint.params["mixing"])
    shown = np.sort(np.random.RandomState(0).permutation(len(A))[:4])
    # As wide as a journal column: letters stay readable if the figure is shown 400 pixels wide.
    figure = plots.blank(4.8, 3.1 + 2.1 * -(-len(shown) // 2))
    rows = [[f"{k}" for k in shown[i : i + 2]] for i in range(0, len(shown), 2)]
    layout: Any = [*(row * (2 // len(row)) for row in rows), ["mixing", "rest"]]
    panels: Any = figure.subplot_mosaic(layout)
    kernels = [panels[f"{k}"] for k in shown]
    for k, axes in zip(shown, kernels, strict=True):
        plots.kernel_by_class(fit.joint, data.X_test, labels=data.y_test, output=int(k), count=500, ax=axes)
        axes.set_title(f"kernel of feature {k}", fontsize=9)
    _one_scale(figure, kernels, "prior covariance")
    rest = A - np.diag(np.diag(A))
    for name, title, weights in (("mixing", "mixing matrix", A), ("rest", "off the diagonal", rest)):
        axes, limit = panels[name], np.abs(weights).max() or 1.0
        axes.imshow(weights.T, cmap="RdBu_r", vmin=-limit, vmax=limit)
        axes.locator_params(integer=True, nbins=10)
        axes.tick_params(labelsize=8)
        axes.set_xlabel("feature", fontsize=9)
        axes.set_ylabel("class", fontsize=9)
        axes.set_title(title, fontsize=9)
        _one_scale(figure, [axes], "weight", location="bottom")
    return figure


def _one_scale(figure: Any, panels: Sequence[Any], name: str, **bar: Any) -> None:
    """One colour scale for the pictures in these panels, in place of their own scales."""
    images = [axes.images[0] for axes in panels]
    lows, highs = zip(*(image.get_clim() for image in images), strict=True)
    for image in images:
        image.set_clim(min(lows), max(highs))
        if image.colorbar is not None:
            image.colorbar.remove()
    scale = figure.colorbar(images[0], ax=panels, **bar)
    scale.set_label(name, fontsize=9)
    scale.ax.tick_params(labelsize=8)


# -- data sets ---------------------------------------------------------------------------------------------------------

#: The only variant of a data set: a run trains all models.
_ALL = ("all",)

#: Number of timed steps, after the same number of untimed ones.
_TIMED = 20


def _table(run: Run) -> Outcome:
    """A table with classes (sections 5.1 and 5.2): random splits, columns standardised on the training rows."""
    name: str = run.options.get("data", run.experiment)
    option = "split"
    if name == "covtype":
        found = {entry.name for entry in datasets.available() if entry.present}
        name = "covtype-subset" if "covtype" not in found and "covtype-subset" in found else "covtype"
    if run.experiment == "airline":
        name, option = str(run.options.get("data", "airline-delayed")), "seed"

    def one(run: Run) -> tuple[Dataset, dict[str, Any] | None]:
        split = run.split or 0
        data, part = some(run, datasets.load(name, **{option: split}), split, "seeded by the split")
        if name == "covtype-subset":
            sizes, rows = data.sizes, run.options["rows"]
            of_test = round(0.1 * rows)
            of = {"of": rows - of_test, "of_test": of_test}
            part = {"train": sizes["train"], "test": sizes["test"], "rule": "a sample", **of}
        return data.standardised(), part

    return train(run, one, of=5)


#: Variants of tables: the paper's own draws of ``u``, and GPs of two features on a grid of two axes.
_OF_TABLES = {name: (*_ALL, "one-draw", "kronecker") for name in ("adult", "connect4", "diabetes")}
_TABLES = [
    experiment(PAPER, name, _OF_TABLES.get(name, _ALL))(_table)
    for name in ("airline", "adult", "connect4", "diabetes", "covtype")
]


def _images(run: Run) -> Outcome:
    """Images of classes (section 5.3); photographs' pixels minus their mean, digits' pixels as they are."""
    name: str = run.options.get("data", run.experiment)
    whole = datasets.load({"mnist-binary": "mnist", "cifar10-resnet20": "cifar10"}.get(name, name))
    data, part = some(run, whole, run.seed)
    if name == "mnist-binary":
        data = replace(data, name="mnist, odd or even", y_train=data.y_train % 2, y_test=data.y_test % 2)
    if whole.name not in ("mnist", "digits"):
        mean = data.X_train.mean(axis=0, keepdims=True)
        # Pixels in [0, 1] have a standard deviation of about 0.25.
        data = replace(data, X_train=4 * (data.X_train - mean), X_test=4 * (data.X_test - mean))
    return train(run, lambda run: (data, part), selection=run.selection)


@experiment(PAPER, "mnist-views", tuple(f"{count}{views}" for count in (312, 1250, 5000) for views in ("", "-views")))
def mnist_views(run: Run) -> Outcome:
    """Few digits by the models of MNIST, and with features that are means over learned affine views.

    Each split has other training images.
    """
    whole = datasets.load("mnist")
    return train(run, lambda run: some(run, whole, run.split or 0, "seeded by the split"), selection=run.selection)


_OF_IMAGES = ("digits", "mnist-binary", "mnist", "cifar10", "cifar10-resnet20", "svhn", "imagenet20")
_PICTURES = [experiment(PAPER, name, _ALL)(_images) for name in _OF_IMAGES]


# -- figure 2, the cost of rows and grid points ------------------------------------------------------------------------


def figure_2(results: Results) -> Figure:
    """Accuracy and training time against rows, and time of a step against grid points; one line per variant.

    The legend has the epochs of each line, because in the paper's comparison the network has fewer epochs. Bars are
    binomial standard errors; times are from one run.
    """
    figure = plots.blank(9.8, 3.1 * len(results))
    lines = figure.subplots(len(results), 3, squeeze=False)
    for panels, (variant, result) in zip(lines, results.items(), strict=True):
        by_rows, by_grid = (result["settings"][key] for key in ("by_rows", "by_grid"))
        rows, points = [each["rows"] for each in by_rows], [each["points"] for each in by_grid]
        epochs = result["settings"]["epochs_network_features_joint"]
        of_dnn, of_svdkl = f"DNN, {epochs[0]:g} epochs", f"SV-DKL, {' + '.join(f'{each:g}' for each in epochs)} epochs"
        for model, label, style in (("dnn", of_dnn, "s--"), ("svdkl", of_svdkl, "o-")):
            share = np.asarray([each[f"{model}_accuracy"] for each in by_rows])
            error = np.sqrt(share * (1 - share) / result["data"]["sizes"]["test"])
            panels[0].errorbar(rows, share, yerr=error, fmt=style, capsize=3, label=label)
            panels[1].plot(rows, [each[f"{model}_seconds"] for each in by_rows], style, label=label)
            panels[2].plot(points, [1000 * each[f"{model}_seconds"] for each in by_grid], style, label=label)
        x = [f"training rows of {variant}"] * 2 + ["grid points of each GP"]
        y = ("test accuracy", "seconds in training and compiling", "milliseconds of a step")
        for axes, at, *labels in zip(panels, (rows, rows, points), x, y, strict=True):
            axes.set(xscale="log", xlabel=labels[0], ylabel=labels[1])
            axes.set_xticks(at, [f"{value:,}" for value in at], fontsize=8)
            axes.tick_params(axis="y", labelsize=8)
            axes.minorticks_off()
        panels[2].set_ylim(bottom=0)
        if points[-1] > LARGE_GRID:
            panels[2].axvline(LARGE_GRID, color="0.7", linewidth=0.8)
            panels[2].text(LARGE_GRID, 0, " low rank", color="0.4", fontsize=8, va="bottom")
        panels[0].legend(fontsize=7)
    return figure


@experiment(PAPER, "scaling", ("covtype", "airline"), figure=figure_2)
def scaling(run: Run) -> Outcome:
    """Accuracy and training time against rows, and seconds per step against grid points.

    The network is that of the tables, ``d-1000-1000-500-50-c``. Metrics are those of all rows; the settings hold the
    other numbers.
    """
    options, setting = run.options, Phases.of(run.options)
    seeded = {} if run.variant == "covtype" else {"seed": run.seed}
    whole = datasets.load(options["data"], **options.get("load", {}), **seeded)
    data, part = some(run, whole, run.seed)
    data = data.standardised()
    total = len(data.y_train)
    by_rows, losses, steps = [], [], 0
    for rows in (total // each for each in options["parts"]):
        scores, losses, own = _with_rows(run, data, rows, setting)
        by_rows.append(scores)
        steps += sum(own)
    by_grid = _by_grid(run, data, setting, min(setting.batch_size, total), options["grids"])
    at_70 = next(each for each in by_grid if each["points"] == 70)
    found = {key: by_rows[-1][key] for key in by_rows[-1] if key.endswith(("accuracy", "nlpp"))}
    settings = {"batch_size": setting.batch_size, "schedule": SCHEDULE, "by_rows": by_rows, "by_grid": by_grid}
    settings |= {"epochs_network_features_joint": setting.epochs, "rates_network_gps_joint": setting.rates}
    settings |= {"seconds": "of training with compilation, which is three programs for svdkl and one for dnn"}
    settings |= {"covariance": f"of q(u): full up to {LARGE_GRID} grid points, beyond diagonal and of rank 16"}
    found |= {"step_ratio_70": at_70["svdkl_seconds"] / at_70["dnn_seconds"]}
    seconds = sum(own["svdkl_seconds"] for own in by_rows)
    common = {"data": data, "dtype": "float32", "elbo": -np.asarray(losses), "subset": part}
    # The figure in the paper has only airline.
    common |= {"stands_in": data.name.endswith(("-generated", "-subset"))}
    common |= {"drawn": {"figure_2": figure_2}}
    return Outcome(found, settings, steps, seconds, **common)


def _with_rows(
    run: Run, data: Dataset, rows: int, setting: Phases
) -> tuple[dict[str, float], list[float], tuple[int, int, int]]:
    """Metrics and times of the network and the deep kernel trained on some rows; losses; steps of the phases.

    All of these are kept on disk, so that a resumed run trains only on the remaining numbers of rows.
    """
    # The largest set contains the others.
    part, options = data.subset(rows, seed=run.seed), setting.options(rows, data.sizes["classes"])

    def scored() -> dict[str, Any]:
        X, y = jnp.asarray(part.X_train), jnp.asarray(part.y_train)
        network, key = setting.made(data, run.seed), random.key(run.seed)
        found = fit_deep_kernel(key, X, y, network=network, checkpoint=run.checkpoint / f"rows-{rows}", **options)
        test = data.X_test, data.y_test
        scores = {"rows": rows} | scored_as("dnn", of_network_alone(network, found.network.params, *test), test[1])
        scores |= scored_as("svdkl", predicted(key, found.joint, *test, TEST_ROWS), test[1])
        scores["dnn_seconds"] = found.network.seconds
        scores["svdkl_seconds"] = sum(phase.seconds for phase in (found.network, found.features, found.joint))
        return {"scores": scores, "losses": found.joint.losses}

    described = {"batch_size": setting.batch_size, "rates": setting.rates, "steps": options["num_steps"], "rows": rows}
    found = kept(run.output / f"rows-{rows}.json", run.made_by(described, data), scored)
    return found["scores"], found["losses"], options["num_steps"]


def _by_grid(run: Run, data: Dataset, setting: Phases, batch: int, grids: Sequence[int]) -> list[dict[str, float]]:
    """Seconds of a step for every number of grid points, and of the network alone."""

    def timed() -> list[dict[str, float]]:
        X, y = jnp.asarray(data.X_train[:batch]), jnp.asarray(data.y_train[:batch])
        network = setting.made(data, run.seed)
        alone = SVI(partial(network_classifier, network=network), lambda *a, **k: None, optax.adam(1e-3), Trace_ELBO())
        model, bound = partial(deep_kernel_gp, network=network), GaussianProcessELBO()
        guides = [InducingGuide(model, InducingGrid(points, BOUNDS)) for points in grids]
        deep = [SVI(model, guide, optax.adam(1e-3), bound) for guide in guides]
        said = {"model_kwargs": {"training": True}, "progress": False}
        of_network, *seconds = (
            training.seconds_of_a_step(random.key(0), svi, _TIMED, X, y, **said)[0] for svi in (alone, *deep)
        )
        each = zip(grids, seconds, strict=True)
        return [{"points": p, "dnn_seconds": of_network, "svdkl_seconds": s} for p, s in each]

    return kept(run.output / "by_grid.json", run.made_by({"batch_size": batch, "grids": grids}, data), timed)


_SETS = ("adult", "connect4", "diabetes", "covtype", "mnist-binary", "mnist", "cifar10", "cifar10-resnet20")


def not_always(found: Found, **arguments: Any) -> Judged:
    """The opposite of :func:`pairs`: there is a pair of models in which the first one is not better."""
    judged = pairs(found, **arguments)
    return judged._replace(holds=None if judged.holds is None else not judged.holds)


def grows(found: Found) -> Judged:
    """SV-DKL is better than the network at every number of rows, and both improve with the number of rows."""
    (_, run), *_ = found.items()
    by_rows, tests = run.result["settings"]["by_rows"], run.result["data"]["sizes"]["test"]

    def number(value: float) -> Ours:
        return Ours(value, (value * (1 - value) / tests) ** 0.5, "binomial")

    ours = {model: [number(each[f"{model}_accuracy"]) for each in by_rows] for model in ("dnn", "svdkl")}
    steps = [*zip(ours["svdkl"], ours["dnn"], strict=True), *((b, a) for of in ours.values() for a, b in pairwise(of))]
    leads = [lead(a, b, "accuracy") for a, b in steps]
    at = [f"{model}, {each['rows']:,} rows" for model in ours for each in by_rows]
    values = [Value(name, each, "accuracy") for name, each in zip(at, [*ours["dnn"], *ours["svdkl"]], strict=True)]
    return Judged(holding(leads), values)


def mixes(found: Found, label: int, others: Sequence[int], least: float) -> Judged:
    """The weights of a class on features of other classes are at least a share of the weight on its own feature."""
    (_, run), *_ = found.items()
    if "mixing" not in run.result["settings"]:
        return Judged(None)
    of_class = np.abs(np.asarray(run.result["settings"]["mixing"]))[:, label]
    ratios = {other: round(float(of_class[other] / of_class[label]), 4) for other in others}
    shares = [Value(f"weights {other} / {label}, by size:", Ours(ratio)) for other, ratio in ratios.items()]
    return Judged(all(each.ours.value >= least for each in shares), shares)


def with_few_rows(found: Found, share: float, accuracy: float) -> Judged:
    """SV-DKL reaches this accuracy with this share of the rows."""
    (_, run), *_ = found.items()
    by_rows = run.result["settings"]["by_rows"]
    few = [each for each in by_rows if each["rows"] <= share * by_rows[-1]["rows"] * (1 + 1e-6)]
    values = [Value(f"{each['rows']:,} rows", Ours(each["svdkl_accuracy"]), "accuracy") for each in few]
    return Judged(few[-1]["svdkl_accuracy"] >= accuracy if few else None, values)


# -- numbers on the page besides its claims ----------------------------------------------------------------------------


def _first(records: Records) -> dict[str, Recorded]:
    """For every set, the run that is compared with the paper."""
    found = {name: next(records.compared("deep_kernel", name, "all", PRESETS), None) for name in _SETS}
    return {name: run for name, run in found.items() if run is not None}


def _gains(run: Recorded) -> dict[str, Ours]:
    """The leads of SV-DKL over the network, and over the network after as many steps."""
    each = [(other, metric) for other in ("dnn", "dnn-long") for metric in ("accuracy", "nlpp")]
    return {f"{other} {metric}": run.lead(metric, "svdkl", other) for other, metric in each}


def facts(records: Records) -> dict[str, Any]:
    """Numbers for ``pages/deep_kernel.md.jinja``.

    ``gain`` has the lead of SV-DKL over the network, as the paper compares them, and over the network after as many
    steps, and ``own_draws`` has the same for the paper's own draws of ``u``; on ``own_level`` sets, none of these is
    clear. ``told`` has the sets on which each lead is clearly positive, clearly negative, and neither. ``lengths`` has
    the epochs of each phase. ``edge`` counts splits whose last rate was chosen, and those of them with the largest
    candidate. On ``gps_alone`` sets, the nlpp of DNN+GP is clearly worse than the nlpp of DNN.
    """
    gain, lengths, chosen, gps_alone = [], [], [], []
    told: dict[str, dict[str, list[str]]] = {}
    first = _first(records)
    for name, run in first.items():
        each = _gains(run)
        for what, ours in each.items():
            sets = told.setdefault(what, {"better": [], "worse": [], "level": []})
            sets[{True: "better", False: "worse", None: "level"}[holding([ours])]].append(name)
        metrics = run.result["metrics"]
        settings, train = run.result["settings"], run.result["data"]["sizes"]["train"]
        chosen += [rates[-1] for rates in settings["rates_network_gps_joint"] if isinstance(rates, list)]
        gps_alone += [name] if holding([run.lead("nlpp", "dnn", "dnn+gp")]) else []
        leaky = settings.get("dnn+") == "leaky units"
        # DNN+ lost what the network had learned, as if its units are zero on many rows.
        dead = not leaky and metrics.get("dnn+_nlpp", 0.0) > metrics["dnn_nlpp"] + DEAD
        gain.append({"set": name, "dead": dead, "plus": run.lead("accuracy", "dnn+", "dnn") if leaky else None, **each})
        epochs = [steps * settings["batch_size"] / train for steps in settings["steps_network_features_joint"]]
        lengths.append({"set": name, "epochs": epochs, "longer": run.lead("accuracy", "dnn-long", "dnn")})
    own = ((name, next(records.compared("deep_kernel", name, "one-draw", PRESETS), None)) for name in first)
    own_draws = [{"set": name, **_gains(run)} for name, run in own if run is not None]
    own_level = [each["set"] for each in own_draws if not any(holding([each[what]]) is not None for what in told)]
    edge = chosen.count(max(RATES)), len(chosen)
    found = {"gain": gain, "own_draws": own_draws, "lengths": lengths, "edge": edge, "gps_alone": gps_alone}
    return found | {"dead": DEAD, "told": told, "own_level": own_level}


#: How many nats the nlpp of DNN+ is above the nlpp of DNN if its units are suspected to be dead.
DEAD = 0.1

#: The networks alone, in words.
_ALONE = {"dnn": "DNN", "dnn-long": "longer DNN"}


def as_well(records: Records, each: Answered) -> list[Value]:
    """The networks alone that are as good as our SV-DKL, compared with the number that the paper has for SV-DKL."""
    claim = each.claim
    metric = claim.answer.metric if claim.answer else claim.arguments.get("metric", "")
    model, _, of = metric.partition("_")
    if model != "svdkl" or not each.runs or each.verdict.word not in (MATCHED, EXCEEDED):
        return []
    if claim.judge == "above":
        runs = {key.experiment: Recorded((key,), (records.found[key],)) for key in each.runs}
        for network, name in _ALONE.items():
            judged = judge.above(Found(runs, records), f"{network}_{of}", claim.arguments["numbers"])
            if judged.holds:
                return [value._replace(name=f"{name} on {value.name}") for value in judged.values]
    if claim.printed is None:
        return []
    run = Recorded(tuple(each.runs), tuple(records.found[key] for key in each.runs))
    words, found = (EXCEEDED,) if each.verdict.word == EXCEEDED else (MATCHED, EXCEEDED), []
    for network, name in _ALONE.items():
        if (ours := run.ours(f"{network}_{of}")) is not None:
            error = judge.error_of_paper(f"{network}_{of}", ours, claim.printed, run.result)
            said = verdict(of, ours, claim.printed, paper_error=error)
            found += [Value(name, ours, of)] if said.word in words else []
    return found


def remarks(records: Records, each: Answered) -> list[str]:
    """The GP steps of DNN+GP and of SV-DKL on each set, and our number of DNN+GP with the GP steps of SV-DKL."""
    claim, shared = each.claim, "dnn+gp"
    of_number = claim.answer is not None and claim.answer.metric.startswith(f"{shared}_")
    if not (of_number or shared in (claim.arguments.get("than"), *claim.arguments.get("models", ()))):
        return []
    sets: dict[str, list[str]] = {}
    for name, key in {key.experiment: key for key in each.runs}.items():
        _, of_gps, together = records.found[key]["settings"]["steps_network_features_joint"]
        sets.setdefault(f"DNN+GP {of_gps:,}, SV-DKL {of_gps + together:,}", []).append(name)
    counts = "; on ".join(f"{' and '.join(names)}: {steps}" for steps, names in sets.items())
    said = [f"GP steps on {counts}"] if counts else []
    if said and claim.answer is not None and claim.printed is not None:
        run = Recorded(tuple(each.runs), tuple(records.found[key] for key in each.runs))
        if (longer := run.ours(claim.answer.metric.replace(shared, f"{shared}-long"))) is not None:
            said.append(f"DNN+GP with the GP steps of SV-DKL: {longer.value:.{claim.printed.decimals}f}")
    return said


def pictures(records: Records) -> dict[str, Callable[[], Figure]]:
    """The gain in nlpp of SV-DKL over the network at its start, and over the network after as many steps."""
    first, others = _first(records), ("dnn", "dnn-long")
    found = {name: [run.lead("nlpp", "svdkl", other) for other in others] for name, run in first.items()}
    return {"gain": partial(_gain, found)} if found else {}


def _gain(found: Mapping[str, list[Ours]]) -> Figure:
    figure = plots.blank(7.2, 1.4 + 0.42 * len(found))
    axes = figure.subplots()
    labels = ("over the network it began with, as in the paper", "over the network after as many steps")
    for i, (label, colour) in enumerate(zip(labels, ("0.6", "C0"), strict=True)):
        rows = [-row + 0.12 - 0.24 * i for row in range(len(found))]
        each = [of[i] for of in found.values()]
        bars = {"xerr": [one.wide() or 0.0 for one in each], "fmt": "o", "markersize": 5, "capsize": 2}
        axes.errorbar([one.value for one in each], rows, color=colour, label=label, **bars)
    axes.axvline(0, color="0.4", linewidth=0.8)
    axes.set_yticks([-row for row in range(len(found))], list(found))
    axes.set_xlabel("gain in nlpp of SV-DKL (nats); right of the line it is better")
    axes.legend(fontsize=9, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    return figure


EXPERIMENTS = (*_TABLES, *_PICTURES, mnist_views, scaling)


if __name__ == "__main__":
    from gpzoo.reproductions.cli import script_main

    script_main(EXPERIMENTS)
