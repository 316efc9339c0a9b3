"""The experiments of the convolutional paper: every variant has its program, and one is run from end to end."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from gpzoo.reproductions import convolutional as paper
from gpzoo.reproductions import datasets
from gpzoo.reproductions.execute import execute
from gpzoo.reproductions.experiment import Run
from gpzoo.reproductions.training import Setting, rate_of

EXPERIMENTS = {experiment.name: experiment for experiment in paper.EXPERIMENTS}
#: Inducing points of the paper.
SIZES = {"rectangles": {1200, 16}, "mnist-0-vs-1": {50, 100}, "mnist": {750}, "cifar10": {1000}}
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
    patch_shape = None if variant == "rbf" else [3, 3] if name == "rectangles" else [5, 5]
    assert said["settings"]["patch_shape"] == patch_shape
    assert data.X_train.ndim == data.X_test.ndim == (2 if variant == "rbf" else 4)
    # Generated images are not the paper's.
    assert said.get("stands_in", False) == (name == "rectangles" and preset == "quick")
    if preset == "paper":
        assert setting.num_inducing in SIZES[name]
        start, batch_size = (
            (0.001, 200 if variant in ("rbf", "colour-patch") else 40) if name == "cifar10" else (0.01, 100)
        )
        if setting.by_adam and name != "mnist":
            assert float(setting.learning_rate.schedule(0)) == pytest.approx(start)
            assert setting.batch_size == batch_size


def test_the_schedule_of_the_authors():
    rate = rate_of({"staircase": 0.001, "every": 30_000}, 90_000)
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
