"""The deep-kernel experiments: what a run trains, records and takes up again."""

import json
from dataclasses import replace

import numpy as np
import pytest

from gpzoo.inference.plots import blank
from gpzoo.reproductions import datasets
from gpzoo.reproductions import deep_kernel as paper
from gpzoo.reproductions.deep_kernel import Phases
from gpzoo.reproductions.execute import execute
from gpzoo.reproductions.experiment import Outcome, Run
from tests.programs import nothing_exported

nnx = pytest.importorskip("flax.nnx")

EXPERIMENTS = {experiment.name: experiment for experiment in paper.EXPERIMENTS}
IMAGES = {
    "digits": (8, 8, 1),
    "mnist": (28, 28, 1),
    "cifar10": (32, 32, 3),
    "svhn": (32, 32, 3),
    "imagenet20": (64, 64, 3),
}


def run_of(name, folder, preset="quick", variant="all", **more):
    return Run("deep_kernel", name, variant, preset, 0, folder / name, **more)


@pytest.fixture
def few(monkeypatch, standard_promotion):
    """Some rows in the place of every data set, a step or two, narrow networks, and no pictures or posteriors."""

    def load(name, split=0, seed=0, rows=60):
        rng = np.random.default_rng(split + seed)
        X = rng.standard_normal((60, *IMAGES.get(name.removesuffix("-generated"), (5,)))).astype(np.float32)
        y = (np.arange(60) % 3).astype(np.int32)
        return datasets.Dataset(name, X[:40], y[:40], X[40:], y[40:], "generated", {name: "0" * 64})

    def narrow(name, data, seed, units=None):
        from gpzoo.models.networks import FullyConnected

        classes, inputs = data.sizes["classes"], int(np.prod(data.X_train.shape[1:]))
        return FullyConnected(inputs, classes, (20, *((classes,) if units else ())), rngs=nnx.Rngs(seed))

    of = Phases.of
    monkeypatch.setattr(Phases, "of", lambda options: replace(of(options), epochs=(0.5, 0.5, 0.5), batch_size=10))
    monkeypatch.setattr(datasets, "load", load)
    monkeypatch.setattr(datasets.Dataset, "subset", lambda self, *counts, seed: self)
    monkeypatch.setattr(paper, "module", narrow)
    monkeypatch.setattr(paper, "exported", nothing_exported)
    monkeypatch.setattr(paper, "figure_3", lambda fit, data: blank(1, 1))


@pytest.mark.slow
def test_all_models_are_trained_and_recorded(few, monkeypatch, tmp_path):
    trained, inner, drawn = [], paper.fit_deep_kernel, tmp_path / "digits"
    monkeypatch.setattr(paper, "fit_deep_kernel", lambda *a, **k: trained.append(inner(*a, **k)) or trained[0])
    result = execute(EXPERIMENTS["digits"], run_of("digits", tmp_path))
    assert {f"{model}_{metric}" for model in paper.MODELS for metric in ("accuracy", "nlpp")} == set(result["metrics"])
    assert result["steps"] == (2 + 2 + 2) + 2 + 4 and result["settings"]["steps_network_features_joint"] == [2, 2, 2]
    assert {"figure_3.png", "posterior.nc", "split-0.json"} <= {path.name for path in drawn.iterdir()}
    assert result["selection"]["data"].endswith("put aside")
    # Once more: nothing is evaluated again, and no network trained for it.
    monkeypatch.setattr(paper, "fit_network", None)
    assert execute(EXPERIMENTS["digits"], run_of("digits", tmp_path))["metrics"] == result["metrics"]
    # A report reads the model, and asks for no training at all.
    monkeypatch.setattr(paper, "fit_deep_kernel", None)
    found = EXPERIMENTS["digits"].run(replace(run_of("digits", tmp_path), finished=True)).inspected
    assert found.which == "svdkl, split 1 of 1"
    np.testing.assert_array_equal(found.trained.params["mixing"], trained[0].joint.params["mixing"])


@pytest.mark.slow
def test_splits_have_means_and_code_chooses_their_settings(few, monkeypatch, tmp_path):
    of = Phases.of
    monkeypatch.setattr(Phases, "of", lambda options: replace(of(options), splits=2))
    result = execute(EXPERIMENTS["diabetes"], run_of("diabetes", tmp_path, "cpu"))
    files = [json.loads((tmp_path / "diabetes" / f"split-{k}.json").read_text())["content"] for k in range(2)]
    values = [each["svdkl_nlpp"] for each in files]
    assert values[0] != values[1] and result["settings"]["by_split"] == files
    assert result["metrics"]["svdkl_nlpp"] == pytest.approx(np.mean(values))
    assert result["metrics"]["svdkl_nlpp_se"] == pytest.approx(np.std(values, ddof=1) / np.sqrt(2))
    settings, candidates = result["settings"], result["selection"]["candidates"]
    for k in range(2):
        networks = [each for each in candidates if each["split"] == k and "rate_joint" not in each]
        joint = [each for each in candidates if each["split"] == k and "rate_joint" in each]
        assert [each["weight_decay"] for each in networks] == [0.0, 4.0]
        assert [each["rate_joint"] for each in joint] == [1e-3, 3e-4, 1e-4]
        decay, rate = (min(part, key=lambda each: each["nlpp"]) for part in (networks, joint))
        assert settings["weight_decay"][k] == decay["weight_decay"] == joint[0]["weight_decay"]
        assert settings["rates_network_gps_joint"][k] == [1e-3, 1e-2, rate["rate_joint"]]
    assert "25 classes" in settings["label"] and settings["epochs"] == "of some trials by hand"
    assert result["folds"] == {"count": 2, "of": 5, "seeds": [0, 1]}


@pytest.mark.slow
def test_settings_are_chosen_on_whole_groups_of_training_rows(few, monkeypatch, tmp_path):
    """Test rows are not looked at; the rows of a patient judge or train, else the choice would lean to overfitting."""
    data = datasets.load("adult")
    data = replace(data, X_test=np.full_like(data.X_test, np.nan), groups=np.arange(40) // 4)
    judged, run, setting = [], run_of("adult", tmp_path), Phases((0.5, 0.5, 0.5), 10)
    run.output.mkdir()
    predicted = paper.of_network_alone
    monkeypatch.setattr(paper, "of_network_alone", lambda *a: judged.append(a[2]) or predicted(*a))
    found = paper.choose(run, data, setting)
    rows = [int(np.flatnonzero((data.X_train == row).all(1))[0]) for row in judged[0]]
    assert len(rows) == 4 and len({row // 4 for row in rows}) == 1 and len(found[1]) == 5


@pytest.fixture
def loaded(monkeypatch, few):
    """The data that an experiment would train on."""
    found = []

    def train(run, load, of=None, **outcome):
        found.append(load(replace(run, split=0)))
        return Outcome({}, {}, 0, 0.0, found[-1][0], "float32", np.zeros(1), **outcome)

    monkeypatch.setattr(paper, "train", train)
    return found


def test_data_are_those_at_hand_and_scaled(loaded, monkeypatch, tmp_path):
    entry = datasets.Entry("covtype-subset", "", True, "here")
    for entries, name in (([entry], "covtype-subset"), ([], "covtype")):
        monkeypatch.setattr(datasets, "available", lambda entries=entries: entries)
        EXPERIMENTS["covtype"].run(run_of("covtype", tmp_path))
        data, part = loaded[-1]
        assert data.name == name and (part is None or part["of"] + 58_101 == 581_012)
    for preset, name in (("quick", "airline-delayed-generated"), ("paper", "airline-delayed")):
        EXPERIMENTS["airline"].run(run_of("airline", tmp_path, preset))
        assert loaded[-1][0].name == name
    EXPERIMENTS["mnist-binary"].run(run_of("mnist-binary", tmp_path))
    assert loaded[-1][0].name == "mnist, odd or even"
    np.testing.assert_array_equal(loaded[-1][0].y_train, np.arange(40) % 3 % 2)
    # Classes of one's own are not the paper's.
    assert EXPERIMENTS["imagenet20"].run(run_of("imagenet20", tmp_path)).stands_in
    np.testing.assert_allclose(loaded[-1][0].X_train.mean(0), 0, atol=1e-5)


def test_what_was_chosen_by_results_is_in_other_presets_than_the_papers(tmp_path):
    for name, experiment in EXPERIMENTS.items():
        if name in ("scaling", "digits", "airline"):
            continue
        settings = {preset: Phases.of(run_of(name, tmp_path, preset).options) for preset in ("tuned", "paper")}
        plain, tuned = settings["paper"], settings["tuned"]
        assert plain.steps(50_000) == tuned.steps(50_000) and plain.batch_size == 5000, experiment.name
        assert plain.rates == Phases.rates and plain.weight_decay == 0 and plain.splits == tuned.splits


@pytest.mark.parametrize("name", ["connected", "small", "lenet", "quick-cnn", "resnet20", "alexnet"])
def test_networks_have_a_feature_per_class(name, standard_promotion):
    shape = {"lenet": (28, 28, 1), "small": (8, 8, 1), "connected": (5,)}.get(name, (32, 32, 3))
    X, y = np.zeros((3, *shape), np.float32), np.arange(3)
    data = datasets.Dataset(name, X, y, X, y, "generated", {})
    for units in (None, "rectified", "leaky", "linear"):
        network = nnx.eval_shape(lambda units=units: paper.module(name, data, 0, units))
        assert nnx.eval_shape(lambda network: network(X), network).shape == (3, 3)


@pytest.mark.slow
def test_scaling_trains_more_rows_and_times_grids(few, monkeypatch, tmp_path):
    options = Run.options.fget
    own = {"parts": [3, 1], "grids": [16, 70]}
    monkeypatch.setattr(Run, "options", property(lambda run: {**options(run), **own}))
    monkeypatch.setattr(paper, "_TIMED", 1)
    run = run_of("scaling", tmp_path, variant="airline")
    result = execute(EXPERIMENTS["scaling"], run)
    assert [each["rows"] for each in result["settings"]["by_rows"]] == [13, 40]
    assert [each["points"] for each in result["settings"]["by_grid"]] == [16, 70]
    assert result["stands_in"] and result["metrics"]["step_ratio_70"] > 0
    # Once more: everything is taken up.
    monkeypatch.setattr(paper, "fit_deep_kernel", None)
    assert execute(EXPERIMENTS["scaling"], run)["settings"] == result["settings"]
    drawn = EXPERIMENTS["scaling"].figure({"airline": result, "covtype": result}).axes
    assert len(drawn) == 6 and drawn[3].get_xlabel() == "training rows of covtype"
