"""Convolutional Gaussian processes (van der Wilk, Rasmussen, Hensman 2017): every experiment of section 4.

``gpzoo reproduce convolutional rectangles --variant weighted`` or ``python reproductions/convolutional.py rectangles``.

Settings of ``paper`` come from the section that each experiment names. If they are not there, they come from the
authors' code (github.com/markvdw/convgp), and otherwise they are the defaults of the program. Numbers of steps are
neither in the paper nor in the code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

import gpzoo.models as models
from gpzoo.inducing.initialisers import blocks, kmeans, random_subset, uniform_patches, unique_patches
from gpzoo.inducing.variables import InducingPoints
from gpzoo.inference import InducingGuide, SitePrediction, plots
from gpzoo.models.parameters import rbf
from gpzoo.reproductions import datasets, metrics
from gpzoo.reproductions.claims import Claim, load
from gpzoo.reproductions.datasets import Dataset
from gpzoo.reproductions.experiment import Inspected, Outcome, Run, experiment, some
from gpzoo.reproductions.judge import Found, Judged, Value, holding, judged
from gpzoo.reproductions.records import Key, Ours, Records, error_of
from gpzoo.reproductions.training import Setting, train

PAPER = load("convolutional")

#: Variances of the parts of a sum of kernels. Section 4.3 prints their learned values.
_VARIANCES = {"convolution_variance": "variance", "rbf_variance": "rbf_variance"}

#: For each variant on patches: the program; whether its inducing variables are one block of patches, or blocks of
#: patches and images; and the covariance of ``q(u)``.
_PROGRAMS: dict[str, tuple[Callable, Callable, str]] = {
    "invariant": (partial(models.convolutional_gp, weighted=False), lambda patches, points: patches, "full"),
    "weighted": (partial(models.convolutional_gp, weighted=True), lambda patches, points: patches, "full"),
    "weighted-rbf": (models.convolutional_plus_rbf_gp, blocks, "block_diagonal"),
    "weighted-rbf-full": (models.convolutional_plus_rbf_gp, blocks, "full"),
    "colour-patch": (partial(models.colour_patch_gp, additive=False), lambda patches, points: patches, "full"),
    "additive": (partial(models.colour_patch_gp, additive=True), lambda patches, points: patches, "full"),
    "tick": (models.translation_insensitive_gp, lambda patches, points: patches, "full"),
    "weighted-tick": (
        partial(models.translation_insensitive_gp, weighted=True),
        lambda patches, points: patches,
        "full",
    ),
    "multi-channel": (models.multi_channel_gp, lambda patches, points: blocks(patches), "block_diagonal"),
}

#: A function that makes an initialiser from the number of inducing variables.
Start = Callable[[int], Any]


def _train(
    run: Run,
    whole: Dataset,
    setting: Setting,
    patch_shape: tuple[int, int],
    patches: Start = unique_patches,
    points: Start = kmeans,
    **outcome: Any,
) -> Outcome:
    """Train and evaluate one variant. The tasks of the paper differ only in their data and settings.

    Args:
        run: the run.
        whole: the data.
        setting: the settings of the training.
        patch_shape: patch shape of the convolutional variants.
        patches: makes the initialiser of inducing patches.
        points: makes the initialiser of inducing images.
        **outcome: further fields of the outcome, such as ``stands_in``; also ``init_params`` of the training, and the
            ``variant`` of the program if it is not the variant of the run.
    """
    data, variant, M = whole, outcome.pop("variant", run.variant), setting.num_inducing
    layers = [_layer(**options) for options in run.options.get("layers", ())]
    classes, shape = whole.sizes["classes"], list(patch_shape)
    if variant == "rbf":
        data, shape, covariance = whole.flat(), None, "full"
        kernel = partial(rbf, ard=False, **setting.start)
        model = partial(models.gp_classification, kernel=kernel, num_classes=classes)
        inducing = InducingPoints(jnp.asarray(data.X_train)) if len(data.X_train) == M else points(M)
    else:
        program, variables, covariance = _PROGRAMS[variant]
        model = partial(program, patch_shape=patch_shape, num_classes=classes, **setting.start)
        inducing = variables(patches(M), points(M))
    settings = {"covariance": covariance, "batch_size": setting.batch_size, "patch_shape": shape}
    settings["inducing"] = _names(inducing)
    if layers:
        model = partial(models.deep_convolutional_gp, layers=layers, last=model)
        inducing = {f"layer_{i}": points(M) for i in range(len(layers))} | {"f": inducing}
        settings["layers"] = run.options["layers"]
    guide = InducingGuide(model, inducing, covariance=covariance, initial_scale=models.inner_scales(layers) or 1.0)
    found = train(run, data, model, guide, setting, score=_metrics, settings=settings, **outcome)
    params = found.trained.params
    learned = {name: float(params[own]) for name, own in _VARIANCES.items() if "rbf_variance" in params}
    # Figure 1: the inducing patches, sorted by the mean of their inducing output from the smallest to the largest.
    patches_of = partial(plots.inducing_images, found.trained, data.X_train[:1], data.y_train[:1], count=64)
    figures = {"inducing_patches": patches_of} if shape and classes == 2 else {}
    return replace(found, metrics={**found.metrics, **learned}, data=whole, figures=figures)


def _layer(variance: float, lengthscale: float, **options: Any) -> Callable:
    """An inner layer whose hyperparameters start at these values."""
    kernel = partial(rbf, ard=False, variance=variance, lengthscale=lengthscale)
    return partial(models.convolutional_layer, kernel=kernel, **options)


def _metrics(test: SitePrediction, y: np.ndarray) -> dict[str, Any]:
    wrong = int(np.sum(metrics.labels(test) != y))
    # nlpp is summed in float32, as in the recorded results.
    return {**metrics.of_classes(test, y), "wrong_images": wrong, "nlpp": metrics.nlpp(test, np.float32)}


def _names(inducing: Any) -> str:
    parts = ", ".join(map(_names, inducing.parts)) if isinstance(inducing, blocks) else ""
    return type(inducing).__name__ + (f"({parts})" if parts else "")


@experiment(PAPER, "rectangles", ("rbf", "invariant", "weighted"))
def rectangles(run: Run) -> Outcome:
    """Wider or taller? Generated images under ``quick``, else the original files (section 4.1, fig. 1a).

    Section 4.1: 16 inducing patches from uniform noise, Adam at 0.01, 100 images per minibatch. The RBF has all 1,200
    images as inducing points, and BFGS; ours has L-BFGS. Authors' code: the RBF starts at lengthscale 3.
    """
    quick = run.preset == "quick"
    data = datasets.load("rectangles" if quick else "rectangles-original")
    found = _train(run, data, Setting.of(run.options), (3, 3), uniform_patches, stands_in=quick)
    if run.finished or quick:
        return found
    return replace(found, metrics={**found.metrics, **_along_edge(data, found.settings["wrong_rows"]["error"])})


def _along_edge(data: Dataset, bits: str) -> dict[str, float]:
    """Shares of all and of misclassified images with a side in the outer two rows or columns (section 4.2).

    The pixels there are in fewer patches of 3 x 3 than other pixels.
    """
    outer = np.pad(np.zeros((24, 24), bool), 2, constant_values=True)
    along = np.any(np.asarray(data.X_test)[..., 0][:, outer] > 0.5, axis=1)
    wrong = np.unpackbits(np.frombuffer(bytes.fromhex(bits), np.uint8))[: len(along)].astype(bool)
    of_wrong = {"wrong_along_edge": float(along[wrong].mean())} if wrong.any() else {}
    return {"images_along_edge": float(along.mean()), **of_wrong}


@experiment(PAPER, "mnist-0-vs-1", ("rbf", "invariant", "weighted"))
def mnist_0_vs_1(run: Run) -> Outcome:
    """Zeros against ones of MNIST (section 4.1, figure 1b).

    Section 4.1: as the rectangles, but 50 inducing patches, from training images. Authors' code: the RBF has 100 random
    images, and its lengthscale starts at 3.
    """
    data = datasets.load("mnist").classes(0, 1)
    return _train(run, data, Setting.of(run.options), (5, 5), points=_images(run))


def _images(run: Run) -> Start:
    """The initialiser of inducing images: random training images, as in the authors' code, or k-means."""
    return random_subset if run.preset == "paper" else kmeans


def _ten_classes(run: Run) -> Outcome:
    """Ten digits, or ten kinds of photographs in colour (sections 4.1 to 4.4, table 1, figures 2 and 3).

    Table 1 and section 4.4: 750 and 1,000 inducing variables, and minibatches of 40 for three variants of CIFAR-10.
    Authors' code: 200 images per minibatch, the staircase of learning rates, and initial hyperparameters of sums.

    ``...-places`` have patches that know their places (Dutordoir et al. 2020). ``...-deep`` have two layers: GPs on
    patches, whose draws are maps of an image, and a convolution of these maps. Blomqvist, Kaski and Heinonen 2018 have
    weighted patches of all maps in the last layer; their logs have 98.09 % on MNIST with 128 inducing patches in each
    layer. In Dutordoir et al., the patches of that layer know their places.
    """
    data, part = some(run, datasets.load(run.experiment.partition("-")[0]), 0)
    return _train(run, data, Setting.of(run.options), (5, 5), points=_images(run), subset=part)


mnist, mnist_places, mnist_deep, cifar10, cifar10_deep = (
    experiment(PAPER, name, variants)(_ten_classes)
    for name, variants in {
        "mnist": ("rbf", "invariant", "weighted", "weighted-rbf", "weighted-rbf-full"),
        "mnist-places": ("tick", "weighted-tick"),
        "mnist-deep": ("tick", "colour-patch"),
        "cifar10": ("rbf", "weighted", "colour-patch", "additive", "multi-channel"),
        "cifar10-deep": ("tick", "colour-patch"),
    }.items()
)


@experiment(PAPER, "mnist-study", ("usual", "late", "authors", "patches", "float64", "longer", "batch", "inducing"))
def mnist_study(run: Run) -> Outcome:
    """All ten digits by the weighted model: as in ``mnist``, with one changed setting or a second training after it."""
    data, setting = datasets.load("mnist"), Setting.of(run.options)
    own = partial(_train, patch_shape=(5, 5), variant="weighted")
    if "then" not in run.options:
        return own(run, data, setting)
    options = {**run.options, "evaluations": 1, **run.options["then"]}
    last, precise = Setting.of(options), options.get("float64", False)
    if run.finished:
        return own(run, data, last)
    first = own(replace(run, output=run.checkpoint / "first"), data, setting)  # its steps are steps of this run
    dtype = np.float64 if precise else np.float32
    data = replace(data, X_train=data.X_train.astype(dtype), X_test=data.X_test.astype(dtype))
    with jax.enable_x64(precise):
        start = {name: np.asarray(x, dtype) for name, x in first.trained.params.items()}
        then = own(run, data, last, init_params=start)
    # The model that is kept is in float32, like every other model.
    kept = {name: np.asarray(x, np.float32) for name, x in then.trained.params.items()}
    steps, seconds = first.steps, first.seconds_training
    later = [{**each, "step": each["step"] + steps, "seconds": each["seconds"] + seconds} for each in then.curve]
    return replace(
        then,
        settings={**then.settings, "before": first.settings},
        steps=steps + then.steps,
        seconds_training=seconds + then.seconds_training,
        elbo=np.concatenate([np.asarray(first.elbo), np.asarray(then.elbo)]),
        curve=[*first.curve, *later],
        posterior=None,
        figures={},
        inspected=cast(Inspected, first.inspected)._replace(trained=then.trained.with_params(kept)),
    )


def along_edge(found: Found, name: str) -> Judged:
    """Misclassified images have rectangles along the edge more often than all images (section 4.2)."""
    known = [each["metrics"] for each in found[name].results if "wrong_along_edge" in each["metrics"]]
    if not known:
        return Judged(None, found.all("wrong_images", [name]))
    wrong = sum(each["wrong_images"] for each in known)
    share = sum(each["wrong_along_edge"] * each["wrong_images"] for each in known) / wrong
    among = known[0]["images_along_edge"]
    shares = [Value("of wrong images", Ours(share)), Value("of all", Ours(among))]
    return Judged(holding([Ours(share - among, math.sqrt(among * (1 - among) / wrong))]), shares)


def rank(found: Found, images: int, most: int | None = None, corner: bool = False) -> Judged:
    """The rank of the kernel matrix of 7 x 7 images, from patches of 3 x 3 (appendix B).

    Args:
        found: not used.
        images: number of images.
        most: the claim is a rank of at most this number; ``None`` for a claim of full rank.
        corner: whether images are zero but for a random patch in one corner; otherwise each has one bright pixel.
    """
    import jax
    import jax.numpy as jnp

    from gpzoo.kernels import RBF, Convolutional

    rng = np.random.RandomState(0)
    X = np.eye(49)[rng.permutation(49)[:images]].reshape(-1, 7, 7, 1)
    if corner:
        X = np.pad(rng.standard_normal((images, 3, 3, 1)), ((0, 0), (0, 4), (0, 4), (0, 0)))
    with jax.enable_x64(True):
        kernel = Convolutional(RBF(1.0, 1.0), (7, 7, 1), (3, 3), jnp.asarray(rng.standard_normal(25)))
        number = int(np.linalg.matrix_rank(np.asarray(kernel.gram(jnp.asarray(X))), hermitian=True))
    holds = number == images if most is None else number <= most
    return Judged(holds, [Value("rank", Ours(number)), Value("images", Ours(images))])


def facts(records: Records) -> dict[str, Any]:
    """For ``pages/convolutional.md.jinja``: the sets on which one kernel is clearly better than another.

    ``tuned`` has metrics of the weighted kernel on MNIST with the preset ``tuned``.
    """
    sets = ("rectangles", "mnist-0-vs-1", "mnist", "cifar10")
    presets = {name: PAPER.experiments[name]["presets"] for name in sets}

    def better(metric: str, *variants: str) -> list[str]:
        found = []
        for name in sets:
            arguments, needs = {"metric": metric, "variants": variants}, {"experiment": name, "variants": variants}
            claim = Claim("", "", judge="order", arguments=arguments, needs=needs)
            answer = judged(claim, PAPER, records, presets)
            found += [name] if answer is not None and answer.holds else []
        return found

    below = {f"below_{other}": better("error", "weighted", other) for other in ("invariant", "rbf")}
    tuned = records.found.get(Key("convolutional", "mnist", "weighted", "tuned"))
    of_tuned = {metric: error_of(tuned, metric) for metric in ("error", "nlpp")} if tuned is not None else {}
    return below | {"nlpp_above_rbf": better("nlpp", "rbf", "weighted"), "tuned": of_tuned}


EXPERIMENTS = (rectangles, mnist_0_vs_1, mnist, mnist_places, mnist_deep, mnist_study, cifar10, cifar10_deep)


if __name__ == "__main__":
    from gpzoo.reproductions.cli import script_main

    script_main(EXPERIMENTS)
