"""The experiments of the convolutional paper: every variant has its program, and one is run from end to end."""

import itertools
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from gpzoo.inference import InducingGuide
from gpzoo.reproductions import convolutional as paper
from gpzoo.reproductions import datasets
from gpzoo.reproductions.execute import execute
from gpzoo.reproductions.experiment import Run
from gpzoo.reproductions.training import Setting, staircase

KEY = random.key(0)
EXPERIMENTS = {experiment.name: experiment for experiment in paper.EXPERIMENTS}
CASES = [
    (name, variant, preset)
    for name, experiment in EXPERIMENTS.items()
    for variant, preset in itertools.product(experiment.variants, experiment.presets)
]


def small(name, **options):
    """A data set of the real one's form."""
    shape, classes = {"cifar10": ((12, 12, 3), 10), "mnist": ((12, 12, 1), 10)}.get(name, ((12, 12, 1), 2))
    rng = np.random.default_rng(0)
    X, y = rng.uniform(size=(60, *shape)).astype(np.float32), np.arange(60, dtype=np.int32) % classes
    return datasets.Dataset(name, X[:40], y[:40], X[40:], y[40:], "generated", {name: "0" * 64})


@pytest.mark.parametrize("name, variant, preset", CASES)
def test_every_variant_and_preset_comes_as_far_as_its_training(name, variant, preset, monkeypatch, tmp_path):
    seen = []

    def train(run, data, model, guide, setting, **said):
        seen.append((data, setting, said))
        raise KeyboardInterrupt

    monkeypatch.setattr(datasets, "load", small)
    monkeypatch.setattr(datasets.Dataset, "subset", lambda self, **counts: self)
    monkeypatch.setattr(paper, "train", train)
    with pytest.raises(KeyboardInterrupt):
        EXPERIMENTS[name].run(Run("convolutional", name, variant, preset, 0, tmp_path))
    data, setting, said = seen[0]
    assert name != "mnist-study" or setting.num_inducing in (20, 750)
    patch_shape = None if variant == "rbf" else [3, 3] if name == "rectangles" else [5, 5]
    assert said["settings"]["patch_shape"] == patch_shape
    assert data.X_train.ndim == data.X_test.ndim == (2 if variant == "rbf" else 4)
    assert data.name.startswith(name.split("-")[0]) and setting.steps >= (200 if name != "mnist-study" else 20)
    if preset == "paper":
        sizes = {"rectangles": {1200, 16}, "mnist-0-vs-1": {50, 100}, "mnist": {750}, "cifar10": {1000}}
        assert setting.num_inducing in sizes[name]
    # Generated images are not the paper's.
    assert said.get("stands_in", False) == (name == "rectangles" and preset == "quick")


def test_the_preset_paper_has_the_settings_of_the_paper(monkeypatch, tmp_path):
    seen = {}
    monkeypatch.setattr(datasets, "load", small)
    monkeypatch.setattr(paper, "_train", lambda run, data, setting, *others, **outcome: seen.update({run: setting}))
    for name, variant in (("rectangles", "invariant"), ("rectangles", "weighted"), ("mnist-0-vs-1", "invariant")):
        run = Run("convolutional", name, variant, "paper", 0, tmp_path)
        EXPERIMENTS[name].run(run)
        rate = seen[run].learning_rate
        assert float(rate.schedule(9999)) == pytest.approx(0.01) and rate.name == "Adam, 0.01"
        assert seen[run].batch_size == 100 and not seen[run].start
        ours = replace(run, preset="tuned")
        EXPERIMENTS[name].run(ours)
        assert seen[ours].rate in (0.02, 0.03) and seen[ours].num_inducing == seen[run].num_inducing
    run = Run("convolutional", "rectangles", "rbf", "paper", 0, tmp_path)
    EXPERIMENTS["rectangles"].run(run)
    assert not seen[run].by_adam and seen[run].num_inducing == 1200 and seen[run].start == {"lengthscale": 3.0}
    for variant, batch_size in (("multi-channel", 40), ("rbf", 200)):
        run = Run("convolutional", "cifar10", variant, "paper", 0, tmp_path)
        EXPERIMENTS["cifar10"].run(run)
        assert seen[run].learning_rate.name == "Adam, 0.001" and seen[run].batch_size == batch_size


COVARIANCES = {
    "rbf": (4, "full"),
    "invariant": (4, "full"),
    "weighted": (4, "full"),
    "weighted-rbf": (8, "block_diagonal"),
    "weighted-rbf-full": (8, "full"),
    "colour-patch": (4, "full"),
    "additive": (4, "full"),
    "multi-channel": (12, "block_diagonal"),
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", COVARIANCES)
def test_every_variant_has_a_program_and_a_guide(variant):
    data = small("cifar10" if variant in ("colour-patch", "additive", "multi-channel") else "mnist")
    X = data.X_train.reshape(40, -1) if variant == "rbf" else data.X_train
    X, y = jnp.asarray(X[:8]), jnp.asarray(data.y_train[:8])
    setting = Setting(1, None, 4, 0.1, {"variance": 3.0})
    model, inducing, covariance = paper._program(variant, (5, 5), 10, setting, X)
    params = InducingGuide(model, inducing, covariance=covariance).init_params(KEY, X, y)
    num_inducing, wanted = COVARIANCES[variant]
    assert covariance == wanted and params["f_mean"].shape == (num_inducing, 10)
    variance = params["f_variance" if variant == "rbf" else "variance"]
    np.testing.assert_allclose(variance, np.full((3,) if variant == "additive" else (), 3.0))
    assert ("weights" in params) == (variant not in ("rbf", "invariant"))
    with pytest.raises(ValueError, match="no program for variant 'other'"):
        paper._program("other", (5, 5), 10, setting, X)


def test_the_schedule_of_the_authors():
    rate = staircase(0.001, 30_000)
    for step in (0, 29_999, 30_000, 89_999, 90_000):
        np.testing.assert_allclose(float(rate.schedule(step)), 0.001 * 10 ** -(step // 30_000 / 3), rtol=1e-5)
    assert "30000" in rate.name


@pytest.mark.slow
def test_a_run_from_end_to_end(standard_promotion, tmp_path, capsys):
    digits = datasets.load("digits").subset(300, 100)
    setting = Setting(60, 50, 12, 0.05, {"variance": 10.0}, evaluations=3)
    train = lambda run: paper._train(run, digits, setting, (3, 3))  # noqa: E731
    experiment = replace(EXPERIMENTS["mnist"], run=train)
    run = Run("convolutional", "mnist", "weighted-rbf", "quick", 0, tmp_path)
    result = execute(experiment, run)
    assert [point["step"] for point in result["curve"]] == [20, 40, 60]
    errors = [point["error"] for point in result["curve"]]
    assert errors[-1] == result["metrics"]["error"] < 0.5 and result["metrics"]["wrong_images"] == 100 * errors[-1]
    assert result["settings"]["inducing"] == "blocks(unique_patches, kmeans)"
    assert result["settings"]["covariance"] == "block_diagonal"
    written = {path.name for path in tmp_path.iterdir()}
    assert {"result.json", "curve.json", "test_curves.png", "learning_curve.png", "posterior.nc"} <= written
    assert result["selection"]["rule"] == "by hand" and not result["stands_in"]
    assert "Training 'weighted-rbf' on the CPU; its evidence lower bound (ELBO) should rise." in capsys.readouterr().out
    # Started again, there is nothing left to train.
    again = execute(experiment, run)
    said = "Training 'weighted-rbf' is already finished at step 60; nothing to train."
    assert " ".join(capsys.readouterr().out.split()) == said
    assert again["metrics"] == result["metrics"] and again["curve"][:2] == result["curve"][:2]
    assert again["resumed_from"] == [60] and again["commit"] == result["commit"]
