"""The deep-kernel experiments: what a run trains, records and takes up again."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from gpzoo.reproductions import datasets
from gpzoo.reproductions import deep_kernel as models
from gpzoo.reproductions import deep_kernel as paper
from gpzoo.reproductions.deep_kernel import Phases
from gpzoo.reproductions.execute import execute
from gpzoo.reproductions.experiment import Run

nnx = pytest.importorskip("flax.nnx")
networks = pytest.importorskip("gpzoo.models.networks")

EXPERIMENTS = {experiment.name: experiment for experiment in paper.EXPERIMENTS}


def run_of(name, folder, preset="quick", variant="all", **more):
    return Run("deep_kernel", name, variant, preset, 0, folder / name, **more)


@pytest.fixture
def short(small, shortened, monkeypatch):
    """``short(...)``: three steps a phase, narrow networks, and these settings."""
    wide = networks.FullyConnected
    monkeypatch.setattr(networks, "FullyConnected", lambda X, y, *hidden, rngs: wide(X, y, (20,), rngs=rngs))

    def make(**changes):
        shortened(epochs=[0.5, 0.5, 0.5], batch_size=10, **changes)

    make()
    return make


@pytest.mark.slow
def test_all_models_are_trained_and_recorded(short, monkeypatch, tmp_path):
    trained, inner, run = [], models.fit_deep_kernel, run_of("digits", tmp_path)
    monkeypatch.setattr(models, "fit_deep_kernel", lambda *a, **k: trained.append(inner(*a, **k)) or trained[0])
    result = execute(EXPERIMENTS["digits"], run)
    kinds = "accuracy", "nlpp", "nlpp_se"
    assert {f"{model}_{metric}" for model in models.MODELS for metric in kinds} == set(result["metrics"])
    assert result["steps"] == (3 + 3 + 3) + 3 + 6 + 6
    assert result["settings"]["steps_network_features_joint"] == [3, 3, 3]
    assert {"figure_3.png", "posterior.nc", "split-0.json"} <= {path.name for path in run.output.iterdir()}
    assert result["selection"]["data"].endswith("put aside")
    # Once more: nothing is evaluated again, and no network trained for it.
    monkeypatch.setattr(models, "fit_network", None)
    assert execute(EXPERIMENTS["digits"], run)["metrics"] == result["metrics"]
    # A report reads the model, and asks for no training at all.
    monkeypatch.setattr(models, "fit_deep_kernel", None)
    found = EXPERIMENTS["digits"].run(replace(run, finished=True)).inspected
    assert found.which == "svdkl, split 1 of 1"
    np.testing.assert_array_equal(found.trained.params["mixing"], trained[0].joint.params["mixing"])


@pytest.mark.slow
def test_splits_have_means_and_code_chooses_their_settings(short, tmp_path):
    short(splits=2)
    run = run_of("diabetes", tmp_path, "cpu")
    result = execute(EXPERIMENTS["diabetes"], run)
    files = [json.loads((run.output / f"split-{k}.json").read_text())["content"] for k in range(2)]
    values, settings = [each["svdkl_nlpp"] for each in files], result["settings"]
    assert values[0] != values[1] and settings["by_split"] == files
    assert result["metrics"]["svdkl_nlpp"] == pytest.approx(np.mean(values))
    assert result["metrics"]["svdkl_nlpp_se"] == pytest.approx(np.std(values, ddof=1) / np.sqrt(2))
    for k in range(2):
        own = [each for each in result["selection"]["candidates"] if each["split"] == k]
        networks, joint = own[:2], own[2:]
        assert [each["weight_decay"] for each in networks] == [0.0, 4.0]
        assert [each["rate_joint"] for each in joint] == [1e-3, 3e-4, 1e-4]
        decay, rate = (min(part, key=lambda each: each["nlpp"]) for part in (networks, joint))
        assert settings["weight_decay"][k] == decay["weight_decay"] == joint[0]["weight_decay"]
        assert settings["rates_network_gps_joint"][k] == [1e-3, 1e-2, rate["rate_joint"]]
    # With other classes than the paper's they are no data to compare with its numbers.
    assert result["stands_in"] and set(result["paper_metrics"].values()) == {None}
    assert "25 classes" in settings["label"] and settings["epochs"] == "of some trials by hand"
    assert result["folds"] == {"count": 2, "of": 5, "seeds": [0, 1]} and result["steps"] == 2 * 24
    assert sorted(path.name for path in run.checkpoint.iterdir() if path.is_dir()) == ["0", "1"]
    assert EXPERIMENTS["diabetes"].run(replace(run, finished=True)).inspected.which == "svdkl, split 2 of 2"


@pytest.mark.slow
def test_settings_are_chosen_on_whole_groups_of_training_rows(short, monkeypatch, tmp_path):
    """Test rows are not looked at; the rows of a patient judge or train, else the choice would lean to overfitting."""
    data = datasets.load("adult")
    data = replace(data, X_test=np.full_like(data.X_test, np.nan), groups=np.arange(60) // 4)
    judged, run = [], run_of("adult", tmp_path)
    run.output.mkdir()
    predicted = models.of_network_alone
    monkeypatch.setattr(models, "of_network_alone", lambda *a: judged.append(a[2]) or predicted(*a))
    found = models.choose(run, data, Phases.of(run.options))
    rows = [int(np.flatnonzero((data.X_train == row).all(1))[0]) for row in judged[0]]
    assert len(rows) == 4 and len({row // 4 for row in rows}) == 1 and len(found[1]) == 5


def test_data_are_those_at_hand_and_scaled(small, monkeypatch, tmp_path):
    def train(run, load, *facts, **outcome):
        data, part = load(replace(run, split=0))
        return SimpleNamespace(data=data, part=part, **outcome)

    def loaded(name, preset="quick"):
        return EXPERIMENTS[name].run(run_of(name, tmp_path, preset))

    monkeypatch.setattr(paper, "train", train)
    assert loaded("covtype").data.name == "covtype"
    monkeypatch.setattr(datasets, "available", lambda: [datasets.Entry("covtype-subset", "", True, "here")])
    found = loaded("covtype")
    assert found.data.name == "covtype-subset" and found.part["of"] + 58_101 == 581_012
    assert loaded("airline").data.name == "airline-delayed-generated"
    assert loaded("airline", "paper").data.name == "airline-delayed"
    data = loaded("mnist-binary").data
    assert data.name == "mnist, odd or even" and np.array_equal(data.y_train, np.arange(60) % 2)
    assert np.abs(loaded("imagenet20").data.X_train.mean(0)).max() < 1e-5


def test_what_was_chosen_by_results_is_in_other_presets_than_the_papers(tmp_path):
    for name in EXPERIMENTS.keys() - {"scaling", "digits", "airline", "mnist-views"}:
        tuned, plain = (Phases.of(run_of(name, tmp_path, preset).options) for preset in ("tuned", "paper"))
        assert plain.steps(50_000) == tuned.steps(50_000) and plain.batch_size == 5000, name
        assert plain.rates == Phases.rates and plain.weight_decay == 0 and plain.splits == tuned.splits


@pytest.mark.slow_but(name=["connected", "small", "lenet"])
@pytest.mark.parametrize("name", ["connected", "small", "lenet", "quick-cnn", "resnet20", "alexnet"])
def test_networks_have_a_feature_per_class(name, standard_promotion):
    shape = {"lenet": (28, 28, 1), "small": (8, 8, 1), "connected": (5,)}.get(name, (32, 32, 3))
    X, y = np.zeros((3, *shape), np.float32), np.arange(3)
    data = datasets.Dataset(name, X, y, X, y, "generated", {})
    for units in (None, "rectified", "leaky", "linear"):
        network = nnx.eval_shape(lambda units=units: models.module(name, data, 0, units))
        assert nnx.eval_shape(lambda network: network(X), network).shape == (3, 3)


@pytest.mark.slow
def test_scaling_trains_more_rows_and_times_grids(short, monkeypatch, tmp_path):
    short(parts=[3, 1], grids=[16, 70])
    monkeypatch.setattr(paper, "_TIMED", 1)
    run = run_of("scaling", tmp_path, variant="airline")
    result = execute(EXPERIMENTS["scaling"], run)
    assert [each["rows"] for each in result["settings"]["by_rows"]] == [20, 60]
    assert [each["points"] for each in result["settings"]["by_grid"]] == [16, 70]
    assert result["stands_in"] and result["metrics"]["step_ratio_70"] > 0
    # Once more: everything is taken up.
    monkeypatch.setattr(paper, "fit_deep_kernel", None)
    assert execute(EXPERIMENTS["scaling"], run)["settings"] == result["settings"]
    drawn = EXPERIMENTS["scaling"].figure({"airline": result, "covtype": result}).axes
    assert len(drawn) == 6 and drawn[3].get_xlabel() == "training rows of covtype"
