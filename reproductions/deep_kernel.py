"""Stochastic variational deep kernel learning (Wilson et al. 2016): section 5.

``gpzoo reproduce deep_kernel adult`` or ``python reproductions/deep_kernel.py digits --preset quick``. Every run trains
the paper's models: the network alone (``dnn``), a network with another hidden layer (``dnn+``, which the paper does not
have for ResNet and ImageNet), GPs on the features of ``dnn`` (``dnn+gp``), and both together (``svdkl``). For
comparison, ``dnn-long`` is the network alone, trained for as many steps as the network of ``svdkl``. The other layer
has one rectified unit per class, as the paper's seems to have: with few classes these can die, and ``dnn+`` with them.

Settings of ``paper`` are from section 5, which prints the networks' widths and the minibatches of airline (50,000) and
of images (5,000), but neither epochs nor rates. Those are the defaults here, without choices by results, and Adam
replaces SGD. Settings chosen by results are in ``cpu`` and ``tuned``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, random
from numpyro.infer import SVI, Trace_ELBO

from gpzoo.inducing.grid import InducingGrid
from gpzoo.inference import GaussianProcessELBO, InducingGuide, plots
from gpzoo.models.deep_kernel import deep_kernel_gp, network_classifier
from gpzoo.models.modules import Network
from gpzoo.models.train_deep_kernel import BOUNDS, fit_deep_kernel
from gpzoo.posteriors.forms import LARGE_GRID
from gpzoo.reproductions import datasets
from gpzoo.reproductions.claims import load
from gpzoo.reproductions.datasets import Dataset
from gpzoo.reproductions.deep_kernel_models import TEST_ROWS, Phases, of_network_alone, scored_as, train
from gpzoo.reproductions.experiment import Outcome, Run, by_hand, experiment, subset
from gpzoo.reproductions.kept import kept
from gpzoo.reproductions.training import predicted, seconds_of_a_step

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = load("deep_kernel")

#: The one variant of a data set: a run trains all models.
_ALL = ("all",)

#: Number of timed steps, after the same number of untimed ones.
_TIMED = 20


def _some(run: Run, whole: Dataset, seed: int, rule: str) -> tuple[Dataset, dict[str, Any] | None]:
    """As many random rows as the settings name, and the record of them."""
    sizes = zip(("train", "test"), (whole.y_train, whole.y_test), strict=True)
    counts = [min(run.options[part], len(y)) if part in run.options else None for part, y in sizes]
    data = whole.subset(*counts, seed=seed)
    return data, subset(whole, data, f"random, {rule}")


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
        data, part = _some(run, datasets.load(name, **{option: split}), split, "seeded by the split")
        if name == "covtype-subset":
            sizes, rows = data.sizes, PAPER.experiments["covtype"]["rows"]
            of_test = round(0.1 * rows)
            of = {"of": rows - of_test, "of_test": of_test}
            part = {"train": sizes["train"], "test": sizes["test"], "rule": "a sample", **of}
        return data.standardised(), part

    return train(run, one, PAPER.experiments[run.experiment], of=5)


airline, adult, connect4, diabetes, covtype = (
    experiment(PAPER, name, _ALL)(_table) for name in ("airline", "adult", "connect4", "diabetes", "covtype")
)


def _images(run: Run) -> Outcome:
    """Images of classes (section 5.3); photographs' pixels less their mean, digits' as they are."""
    name: str = run.options.get("data", run.experiment)
    chosen = run.options.get("selection")
    whole = datasets.load({"mnist-binary": "mnist", "cifar10-resnet20": "cifar10"}.get(name, name))
    data, part = _some(run, whole, run.seed, f"seed {run.seed}")
    if name == "mnist-binary":
        data = replace(data, name="mnist, odd or even", y_train=data.y_train % 2, y_test=data.y_test % 2)
    if whole.name not in ("mnist", "digits"):
        mean = data.X_train.mean(axis=0, keepdims=True)
        # Pixels in [0, 1] have a standard deviation of about a quarter.
        data = replace(data, X_train=4 * (data.X_train - mean), X_test=4 * (data.X_test - mean))
    outcome: dict[str, Any] = {"selection": by_hand(**chosen) if chosen else None}
    if run.experiment == "imagenet20":
        # Classes of one's own are not the paper's.
        outcome |= {"stands_in": True}
    return train(run, lambda run: (data, part), PAPER.experiments[run.experiment], **outcome)


digits, mnist_binary, mnist, cifar10, resnet20, svhn, imagenet20 = (
    experiment(PAPER, name, _ALL)(_images)
    for name in ("digits", "mnist-binary", "mnist", "cifar10", "cifar10-resnet20", "svhn", "imagenet20")
)


# -- figure 2, the cost of rows and grid points ------------------------------------------------------------------------


def figure_2(results: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Accuracy and training time against rows, and time of a step against grid points; a line per variant.

    The legend has the epochs of each: the paper's comparison gives the network fewer.
    """
    figure = plots.blank(9.8, 3.1 * len(results))
    lines = figure.subplots(len(results), 3, squeeze=False)
    for panels, (variant, result) in zip(lines, results.items(), strict=True):
        by_rows, by_grid = (result["settings"][key] for key in ("by_rows", "by_grid"))
        rows, points = [each["rows"] for each in by_rows], [each["points"] for each in by_grid]
        epochs = result["settings"]["epochs_network_features_joint"]
        of_dnn, of_svdkl = f"DNN, {epochs[0]:g} epochs", f"SV-DKL, {' + '.join(f'{each:g}' for each in epochs)} epochs"
        for model, label, style in (("dnn", of_dnn, "s--"), ("svdkl", of_svdkl, "o-")):
            panels[0].plot(rows, [each[f"{model}_accuracy"] for each in by_rows], style, label=label)
            panels[1].plot(rows, [each[f"{model}_seconds"] for each in by_rows], style, label=label)
            panels[2].plot(points, [1000 * each[f"{model}_seconds"] for each in by_grid], style, label=label)
        for axes, at, x, y in zip(
            panels,
            (rows, rows, points),
            (f"training rows of {variant}", f"training rows of {variant}", "grid points of each GP"),
            ("test accuracy", "seconds in training and compiling", "milliseconds of a step"),
            strict=True,
        ):
            axes.set(xscale="log", xlabel=x, ylabel=y)
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

    The network is that of the tables, ``d-1000-1000-500-50-c``. Metrics are those of all rows; the settings have the
    others.
    """
    options, setting = run.options, Phases.of(run.options)
    seeded = {} if run.variant == "covtype" else {"seed": run.seed}
    whole = datasets.load(options["data"], **options.get("load", {}), **seeded)
    data, part = _some(run, whole, run.seed, f"seed {run.seed}")
    data = data.standardised()
    total = len(data.y_train)
    by_rows, losses, steps = [], [], 0
    for rows in (total // each for each in options["parts"]):
        scores, losses, own = _with_rows(run, data, rows, setting)
        by_rows.append(scores)
        steps += sum(own)
    by_grid = _by_grid(run, data, setting, min(setting.batch_size, total), options["grids"])
    at_70 = next(each for each in by_grid if each["points"] == 70)
    metrics = {key: by_rows[-1][key] for key in by_rows[-1] if key.endswith(("accuracy", "nlpp"))}
    settings = {
        "batch_size": setting.batch_size,
        "epochs_network_features_joint": list(setting.epochs),
        "rates_network_gps_joint": list(setting.rates),
        "schedule": "Adam, cosine to a hundredth",
        "seconds": "of training with compilation, which is three programs for svdkl and one for dnn",
        "covariance": f"of q(u): full up to {LARGE_GRID} grid points, beyond diagonal and of rank 16",
        "by_rows": by_rows,
        "by_grid": by_grid,
    }
    return Outcome(
        metrics=metrics | {"step_ratio_70": at_70["svdkl_seconds"] / at_70["dnn_seconds"]},
        settings=settings,
        steps=steps,
        seconds_training=sum(own["svdkl_seconds"] for own in by_rows),
        data=data,
        dtype="float32",
        elbo=-np.asarray(losses),
        figures={"figure_2": partial(figure_2, {run.variant: {"settings": settings}})},
        stands_in=run.preset == "cpu" or data.name.endswith(("-generated", "-subset")),
        subset=part,
    )


def _with_rows(
    run: Run, data: Dataset, rows: int, setting: Phases
) -> tuple[dict[str, float], list[float], tuple[int, int, int]]:
    """Metrics and times of the network and the deep kernel trained on some rows; losses; steps of the phases.

    All are kept on disk, so that a resumed run trains only on the remaining numbers of rows.
    """
    # The largest set contains the others.
    part, options = data.subset(rows, seed=run.seed), setting.options(rows)

    def scored() -> dict[str, Any]:
        X, y = jnp.asarray(part.X_train), jnp.asarray(part.y_train)
        network, key = setting.network("connected", data, run.seed), random.key(run.seed)
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
        network = setting.network("connected", data, run.seed)
        alone = SVI(partial(network_classifier, network=network), lambda *a, **k: None, optax.adam(1e-3), Trace_ELBO())
        of_network = _step_seconds(alone, X, y)
        seconds = [_step_seconds(_deep_kernel(network, points), X, y) for points in grids]
        each = zip(grids, seconds, strict=True)
        return [{"points": p, "dnn_seconds": of_network, "svdkl_seconds": s} for p, s in each]

    return kept(run.output / "by_grid.json", run.made_by({"batch_size": batch, "grids": grids}, data), timed)


def _deep_kernel(network: Network, points: int) -> SVI:
    model = partial(deep_kernel_gp, network=network)
    return SVI(model, InducingGuide(model, InducingGrid(points, BOUNDS)), optax.adam(1e-3), GaussianProcessELBO())


def _step_seconds(svi: SVI, X: Array, y: Array) -> float:
    return seconds_of_a_step(random.key(0), svi, _TIMED, X, y, model_kwargs={"training": True}, progress=False)[0]


EXPERIMENTS = (
    airline, adult, connect4, diabetes, covtype,
    digits, mnist_binary, mnist, cifar10, resnet20, svhn, imagenet20, scaling,
)  # fmt: skip


if __name__ == "__main__":
    from gpzoo.reproductions.cli import script_main

    script_main(EXPERIMENTS)
