"""The experiments of learning invariances: the toy says what the paper says, the others run and say what they ran."""

import itertools
import json

import jax
import numpy as np
import pytest
from click.testing import CliRunner
from numpyro import handlers

from gpzoo.errors import DatasetError
from gpzoo.inference import SitePrediction
from gpzoo.reproductions import cli, datasets
from gpzoo.reproductions import invariant as paper
from gpzoo.reproductions.execute import execute
from gpzoo.reproductions.experiment import Run

EXPERIMENTS = {experiment.name: experiment for experiment in paper.EXPERIMENTS}


def run_of(name, variant, folder, preset="quick"):
    return Run("invariant", name, variant, preset, 0, folder / f"{name}-{variant}")


@pytest.fixture
def digits(monkeypatch):
    """A few images in the place of every data set; what was asked for."""
    loaded = []

    def load(name):
        loaded.append(name)
        if name == "mnist-rot":
            raise DatasetError("it is absent")
        rng = np.random.default_rng(0)
        X, y = rng.uniform(size=(40, 6, 6, 1)).astype(np.float32), (np.arange(40) % 10).astype(np.int32)
        return datasets.Dataset(name, X[:30], y[:30], X[30:], y[30:], "generated", {name: "0" * 64})

    monkeypatch.setattr(datasets, "load", load)
    monkeypatch.setattr(datasets, "available", list)
    monkeypatch.setattr(datasets.Dataset, "subset", lambda self, *counts, seed: self)
    return loaded


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A folder with the toy's runs, and the command that compared them in it."""
    folder = tmp_path_factory.mktemp("compared")
    with jax.numpy_dtype_promotion("standard"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        return folder, CliRunner().invoke(cli.main, ["compare", "invariant", "toy", "--output", str(folder)])


@pytest.mark.slow
def test_the_bound_finds_the_symmetry_and_the_fit_does_not(compared):
    runs = {name: compared[0] / f"invariant-toy-{name}-quick-seed0" for name in ("symmetric", "plain")}
    found = {name: json.loads((run / "result.json").read_text()) for name, run in runs.items()}
    symmetric, plain = (found[name]["metrics"] for name in ("symmetric", "plain"))
    assert symmetric["elbo"] > plain["elbo"] + 5
    assert symmetric["rmse"] < 0.9 * plain["rmse"]
    assert symmetric["test_log_likelihood"] > plain["test_log_likelihood"]
    assert plain["train_rmse"] <= symmetric["train_rmse"]
    named = [axes.get_title().split(":")[0] for axes in paper.figure_2(found).axes if axes.get_title()]
    assert named == ["truth", "symmetric", "plain"] and (runs["symmetric"] / "solution.png").is_file()
    assert compared[1].exit_code == 0, compared[1].output
    rows = [line.split() for line in compared[1].output.splitlines() if "symmetric" in line or "plain" in line]
    assert "symmetric" in rows[-2] and "plain" in rows[-1]


@pytest.mark.parametrize("wrong, said", [(("--variants", "round"), "variant"), (("--preset", "paper"), "preset")])
def test_what_cannot_be_compared_is_refused(wrong, said):
    refused = CliRunner().invoke(cli.main, ["compare", "invariant", "toy", *wrong])
    assert refused.exit_code == 2 and f"unknown {said}" in refused.output


#: What each view learns.
LEARNED = {"affine": {"affine_below", "affine_above"}}
LEARNED["local"] = LEARNED["affine"] | {"amplitude", "smoothness"}


def learned(name, variant):
    learns_an_angle = (name == "rotated-binary" and "rbf" not in variant) or variant in ("rotation", "rotation-learned")
    return LEARNED.get(
        variant.removesuffix("-sticks").removesuffix("-natural"), {"angle"} if learns_an_angle else set()
    )


#: Every data set, likelihood and number of learned parameters once: a variant is a view, which has its own test below.
CASES = [("rotated-binary", "90-from-45"), ("mnist", "affine-sticks"), ("mnist-rot", "rbf")]


@pytest.mark.slow
@pytest.mark.parametrize("name, variant", CASES)
def test_a_run_says_what_it_ran(name, variant, shortened, digits, tmp_path):
    shortened(steps=3, batch_size=10, num_inducing=5, num_views=3, num_fixed=4)
    result = execute(EXPERIMENTS[name], run_of(name, variant, tmp_path))
    metrics, settings = result["metrics"], result["settings"]
    assert {"error", "nlpp", "elbo", "bound_per_point"} <= set(metrics)
    assert metrics["elbo"] == pytest.approx(30 * metrics["bound_per_point"])
    assert result["curve"] == [] and result["steps"] == 3
    assert ("learned_angle_degrees" in metrics) == ("angle" in learned(name, variant))
    assert set(settings["learned"]) == learned(name, variant)
    files = {path.name for path in (tmp_path / f"{name}-{variant}").iterdir()}
    assert {"learning_curve.png", "posterior.nc"} <= files
    assert ("augmentation.png" in files) == ("rbf" not in variant)
    if name == "mnist-rot":
        assert digits == ["mnist-rot", "mnist-rot-generated"]
        assert result["data"]["name"] == "mnist-rot-generated" and result["stands_in"]


@pytest.mark.parametrize(
    "name, variant, preset",
    [(n, v, p) for n, e in EXPERIMENTS.items() for v, p in itertools.product(e.variants, e.presets) if n != "toy"],
)
def test_every_variant_and_preset_has_settings(name, variant, preset, digits, monkeypatch, tmp_path):
    trained = []

    def train(run, data, program, view, setting, score=None, subset=None):
        trained.append((data, program, view, setting))
        return paper.Outcome({}, {}, 0, 0.0, data, "float32", np.zeros(1))

    monkeypatch.setattr(paper, "_train", train)
    EXPERIMENTS[name].run(run_of(name, variant, tmp_path, preset))
    data, program, view, setting = trained[0]
    assert (view is None) == ("rbf" in variant)
    classifies = name == "rotated-binary" or variant.endswith("sticks")
    assert getattr(program, "func", program) is (paper.invariant_classifier if classifies else paper.invariant_gp)
    if view is not None:
        trace = handlers.trace(view)
        jax.eval_shape(lambda X: trace(X) and None, data.X_train)
        params = {site for site, message in trace.trace.items() if message["type"] == "param"}
        assert params == learned(name, variant)
    # The paper's number, or ours.
    most = {"paper": 750, "tuned": 300 if name == "rotated-binary" else 500}.get(preset, 300)
    assert setting.num_inducing == most if preset in ("tuned", "paper") else setting.num_inducing <= most
    if name == "rotated-binary":
        assert set(np.unique(data.y_train)) == {0, 1} and variant[:2] in data.name
    else:
        assert data.y_train.shape == ((30,) if variant.endswith("sticks") else (30, 10))


def test_a_damaged_file_is_not_replaced_by_a_stand_in(digits, monkeypatch, tmp_path):
    monkeypatch.setattr(datasets, "available", lambda: [datasets.Entry("mnist-rot", "", True, "file")])
    with pytest.raises(DatasetError, match="absent"):
        EXPERIMENTS["mnist-rot"].run(run_of("mnist-rot", "rbf", tmp_path))
    assert digits == ["mnist-rot"]


def test_class_probabilities_are_those_of_the_densities_of_one_hot_labels():
    rng = np.random.default_rng(0)
    mean, variance, labels = rng.normal(size=(7, 10)), rng.gamma(1.0, size=(7, 10)), rng.integers(0, 10, 7)
    eye = np.eye(10)
    log_density = -0.5 * ((eye[None] - mean[:, None]) ** 2 / variance[:, None] + np.log(variance[:, None])).sum(-1)
    probs = np.exp(log_density) / np.exp(log_density).sum(1, keepdims=True)
    metrics = paper._score_of_one_hot(SitePrediction(mean, variance, np.zeros(7)), eye[labels])
    assert metrics["nlpp"] == pytest.approx(-np.log(probs[np.arange(7), labels]).mean())
    assert metrics["error"] == pytest.approx(np.mean(probs.argmax(1) != labels))
