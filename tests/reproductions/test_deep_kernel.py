"""The deep-kernel experiments: what a run trains, records and takes up again."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from gpzoo.errors import NonFiniteError
from gpzoo.inference.plots import blank
from gpzoo.reproductions import datasets
from gpzoo.reproductions import deep_kernel as paper
from gpzoo.reproductions import deep_kernel_choice as choice
from gpzoo.reproductions import deep_kernel_models as models
from gpzoo.reproductions import deep_kernel_scaling as figures
from gpzoo.reproductions.execute import execute
from gpzoo.reproductions.experiment import Outcome, ReproductionError, Run
from tests.programs import nothing_exported

nnx = pytest.importorskip("flax.nnx")

EXPERIMENTS = {experiment.name: experiment for experiment in paper.EXPERIMENTS}
IMAGES = {"digits": (8, 8, 1), "mnist": (28, 28, 1), "cifar10": (32, 32, 3)}
IMAGES |= {f"svhn{kind}": (32, 32, 3) for kind in ("", "-generated")}
IMAGES |= {f"imagenet20{kind}": (64, 64, 3) for kind in ("", "-generated")}


def run_of(name, folder, preset="quick"):
    return Run("deep_kernel", name, "all", preset, 0, folder / name)


@pytest.fixture
def few(monkeypatch, standard_promotion):
    """Some rows in the place of every data set, and a step or two."""
    asked = []

    def load(name, split=0, seed=0, rows=60):
        asked.append((name, split + seed))
        rng = np.random.default_rng(split + seed)
        X = rng.standard_normal((60, *IMAGES.get(name, (5,)))).astype(np.float32)
        y = (np.arange(60) % 3).astype(np.int32)
        return datasets.Dataset(name, X[:40], y[:40], X[40:], y[40:], "generated", {name: "0" * 64})

    real = paper.Phases

    def tiny(epochs=None, batch_size=None, **options):
        return real((0.5, 0.5, 0.5), 10, **options)

    monkeypatch.setattr(datasets, "load", load)
    monkeypatch.setattr(datasets.Dataset, "subset", lambda self, *counts, seed: self)
    monkeypatch.setattr(paper, "Phases", tiny)
    monkeypatch.setattr(paper, "_as_printed", lambda setting: setting)
    monkeypatch.setattr(paper, "_SHORT", tiny())
    monkeypatch.setattr(
        paper, "_ON_CPU", {k: replace(v, epochs=(0.5, 0.5, 0.5), batch_size=10) for k, v in paper._ON_CPU.items()}
    )
    # Narrow networks: those of the paper are made where it is asked what would be trained.
    monkeypatch.setattr(figures, "connected", narrow)
    return asked


def narrow(extra, data, seed):
    from gpzoo.models.networks import FullyConnected

    classes, inputs = data.sizes["classes"], int(np.prod(data.X_train.shape[1:]))
    return FullyConnected(inputs, classes, (20, *((classes,) if extra else ())), rngs=nnx.Rngs(seed))


@pytest.fixture
def not_drawn(monkeypatch):
    """No posterior is exported, no kernel drawn: these are the same calls in every run, and seen in that of digits."""
    monkeypatch.setattr(models, "exported", nothing_exported)
    monkeypatch.setattr(models, "figure_3", lambda fit, data: blank(1, 1))


@pytest.mark.slow
def test_all_models_are_trained_and_recorded(few, request, monkeypatch, tmp_path):
    name = "digits"
    trained = []
    inner = models.fit_deep_kernel
    monkeypatch.setattr(models, "fit_deep_kernel", lambda *a, **k: trained.append(inner(*a, **k)) or trained[0])
    result = execute(EXPERIMENTS[name], run_of(name, tmp_path))
    assert {f"{model}_{metric}" for model in paper.MODELS for metric in ("accuracy", "nlpp")} <= set(result["metrics"])
    assert result["steps"] == (2 + 2 + 2) + 2 + 4 and result["settings"]["steps_network_features_joint"] == [2, 2, 2]
    files = {path.name for path in (tmp_path / name).iterdir()}
    assert {"figure_3.png", "learning_curve.png", "posterior.nc", "split-0.json"} <= files
    # Once more: nothing is evaluated again, and no network trained for it.
    request.getfixturevalue("not_drawn")
    monkeypatch.setattr(models, "fit_deep_kernel", lambda *given, **options: trained[0])
    monkeypatch.setattr(models, "fit_network", None)
    again = execute(EXPERIMENTS[name], run_of(name, tmp_path))
    assert again["metrics"] == result["metrics"]
    # A report reads the model, and asks for no training at all.
    monkeypatch.setattr(models, "fit_deep_kernel", None)
    found = EXPERIMENTS[name].run(replace(run_of(name, tmp_path), finished=True)).inspected
    assert found.which == "svdkl, split 1 of 1"
    np.testing.assert_array_equal(found.trained.params["mixing"], trained[0].joint.params["mixing"])


@pytest.mark.slow
def test_what_the_paper_does_not_have_is_not_trained(few, not_drawn, monkeypatch, tmp_path):
    monkeypatch.setattr(paper, "_resnet", narrow)
    monkeypatch.setitem(IMAGES, "cifar10", IMAGES["digits"])
    result = execute(EXPERIMENTS["cifar10-resnet20"], run_of("cifar10-resnet20", tmp_path))
    assert set(result["metrics"]) == set(result["paper_metrics"])
    assert "dnn+_nlpp" not in result["metrics"] and result["paper_metrics"]["svdkl_accuracy"] == 0.910
    assert result["steps"] == (2 + 2 + 2) + 4


@pytest.mark.slow
def test_splits_have_means_and_code_chooses_their_settings(few, not_drawn, monkeypatch, tmp_path):
    seen = []
    for name in ("fit_network", "fit_deep_kernel"):
        inner = getattr(models, name)
        spy = lambda *a, inner=inner, **k: seen.append((k["weight_decay"], k["batch_size"])) or inner(*a, **k)  # noqa: E731
        monkeypatch.setattr(models, name, spy)
    monkeypatch.setattr(paper, "connected", narrow)
    monkeypatch.setitem(paper._ON_CPU, "diabetes", replace(paper._ON_CPU["diabetes"], splits=2))
    result = execute(EXPERIMENTS["diabetes"], run_of("diabetes", tmp_path, "cpu"))
    assert [split for _, split in few] == [0, 1]
    values = [
        json.loads((tmp_path / "diabetes" / f"split-{k}.json").read_text())["content"]["svdkl_nlpp"] for k in range(2)
    ]
    assert values[0] != values[1]
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
        assert seen[3 * k : 3 * k + 3] == 3 * [(decay["weight_decay"], 10)]
    assert "three" not in settings["label"] and "25 classes" in settings["label"] and "patient" in settings["split"]
    assert result["selection"]["rule"].startswith("by code") and settings["epochs"] == "of some trials by hand"
    assert not result["paper_metrics"]["svdkl_accuracy"]
    assert result["folds"] == {"count": 2, "of": 5, "seeds": [0, 1]}


@pytest.mark.slow
def test_settings_are_chosen_without_a_look_at_test_rows(few, monkeypatch, tmp_path):
    data = datasets.load("adult")
    data = replace(data, X_test=np.full_like(data.X_test, np.nan), y_test=-1 + 0 * data.y_test)
    seen, judged = [], []
    for name, found, at in (
        ("fit_network", seen, 1),
        ("fit_deep_kernel", seen, 1),
        ("of_network_alone", judged, 2),
        ("predicted", judged, 2),
    ):
        inner = getattr(choice, name)
        spy = lambda *a, inner=inner, found=found, at=at, **k: found.append(a[at]) or inner(*a, **k)  # noqa: E731
        monkeypatch.setattr(choice, name, spy)
    setting, run = paper.Phases(batch_size=10), run_of("adult", tmp_path)
    run.output.mkdir()
    found, candidates = choice.choose(run, 0, data, narrow, setting)
    assert {len(X) for X in seen} == {36} and len(seen) == len(candidates) == 5
    rows = {row.tobytes() for row in data.X_train}
    for used, held in zip(seen, judged, strict=True):
        assert {row.tobytes() for row in used} | {row.tobytes() for row in held} == rows
        assert len(used) + len(held) == len(rows)
    # Another start reads the choice and does not make it again.
    monkeypatch.setattr(choice, "fit_network", None)
    assert choice.choose(run, 0, data, narrow, setting) == (found, candidates)


@pytest.mark.slow
def test_rows_that_belong_together_stay_together(few, monkeypatch, tmp_path):
    """The rows of a patient judge or train; else the choice would lean towards overfitting."""
    monkeypatch.setattr(choice, "DECAYS", (0.0,))
    monkeypatch.setattr(choice, "RATES", (1e-3,))
    data = replace(datasets.load("adult"), groups=np.arange(40) // 4)
    judged, run = [], run_of("adult", tmp_path)
    run.output.mkdir()
    inner = choice.of_network_alone
    monkeypatch.setattr(choice, "of_network_alone", lambda *a: judged.append(a[2]) or inner(*a))
    choice.choose(run, 0, data, narrow, paper.Phases(batch_size=10))
    rows = [int(np.flatnonzero((data.X_train == row).all(1))[0]) for row in judged[0]]
    assert len(rows) == 4 and len({row // 4 for row in rows}) == 1


@pytest.mark.slow
def test_a_candidate_that_fails_is_not_chosen(few, monkeypatch, tmp_path):
    run, inner = run_of("adult", tmp_path), choice.fit_network
    run.output.mkdir()
    monkeypatch.setattr(choice, "RATES", (1e-3,))

    def failing(*args, weight_decay, **options):
        if weight_decay == 0.0:
            raise NonFiniteError("not finite")
        return inner(*args, weight_decay=weight_decay, **options)

    monkeypatch.setattr(choice, "fit_network", failing)
    found, candidates = choice.choose(run, 0, datasets.load("adult"), narrow, paper.Phases(batch_size=10))
    assert found.weight_decay == 4.0 and candidates[0] == {"split": 0, "weight_decay": 0.0, "nlpp": None}
    monkeypatch.setattr(choice, "DECAYS", (0.0,))
    with pytest.raises(ReproductionError, match=r"all candidates \(0.0\) ended in numbers that are not finite"):
        choice.choose(run, 1, datasets.load("adult"), narrow, paper.Phases(batch_size=10))


def test_splits_of_a_table_and_the_papers_numbers():
    assert paper._ON_CPU["connect4"].splits == 5
    numbers = EXPERIMENTS["connect4"].variants["all"]
    assert numbers["svdkl_accuracy"] == 0.841 and numbers.get("dnn+_nlpp") is None


def test_covtype_is_its_subset_where_only_that_is_at_hand(few, monkeypatch, tmp_path):
    entry = datasets.Entry("covtype-subset", "", True, "here")
    monkeypatch.setattr(datasets, "available", lambda: [entry])
    trained = []
    some = Outcome({}, {}, 0, 0.0, None, "float32", np.zeros(1))
    monkeypatch.setattr(paper, "train", lambda run, load, *others, **said: trained.append(load(0)) or some)
    assert paper.table(run_of("covtype", tmp_path)).subset["of"] + 58_101 == 581_012
    monkeypatch.setattr(datasets, "available", list)
    assert paper.table(run_of("covtype", tmp_path)).subset is None
    assert [data.name for data in trained] == ["covtype-subset", "covtype"]


@pytest.fixture
def asked_for(monkeypatch, few):
    """What an experiment would train: its data, the shapes of its networks, its setting."""
    found = []

    def train(run, load, make, setting, notes=None, models=paper.MODELS, stands_in=False, selection=None, **said):
        data = load(0)
        extras = (False, True) if "dnn+" in models else (False,)
        networks = [nnx.eval_shape(partial(make, extra, data, 0)) for extra in extras]
        found.append((data, networks, setting, notes, stands_in, selection))
        return Outcome({}, {}, 0, 0.0, data, "float32", np.zeros(1))

    monkeypatch.setattr(paper, "train", train)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "cifar10-resnet20", "svhn", "imagenet20"])
def test_colours_are_centred_and_networks_have_a_feature_per_class(name, asked_for, tmp_path):
    paper.photographs(run_of(name, tmp_path))
    data, networks, setting, notes, stands_in, _ = asked_for[0]
    np.testing.assert_allclose(data.X_train.mean(0), 0, atol=1e-5)
    for network in networks:
        assert nnx.eval_shape(lambda network: network(data.X_train[:2]), network).shape == (2, 3)
    if name in ("cifar10", "svhn"):
        assert len(networks[1].top.layers) == len(networks[0].top.layers) + 1
    else:
        assert len(networks) == 1
    assert setting.augmented == (name == "cifar10-resnet20")
    # Classes of one's own are not the paper's.
    assert stands_in == (name == "imagenet20") == bool(notes)
    paper.photographs(run_of(name, tmp_path, "paper"))
    data, _, setting, *_ = asked_for[1]
    # Images are moved where the network is of those that are trained so; that of cifar10 was not.
    assert data.name == name.removesuffix("-resnet20") and setting.augmented == (
        name in ("cifar10-resnet20", "imagenet20")
    )


def test_cifar10_on_two_cores_says_what_was_chosen(asked_for, tmp_path):
    paper.photographs(run_of("cifar10", tmp_path, "cpu"))
    _, _, setting, _, _, selection = asked_for[0]
    assert setting.augmented and setting.rates[0] == 2e-3 and "put aside" in selection["data"]


def test_what_was_chosen_by_results_is_in_other_presets_than_the_papers():
    tuned = models.Phases((6, 1, 3), 500, 5, rates=(1e-3, 1e-2, 3e-4), weight_decay=4.0, augmented=True)
    plain = paper._as_printed(tuned)
    assert plain.steps(50_000) == tuned.steps(50_000) and (plain.batch_size, plain.splits) == (5000, 5)
    assert plain.rates == models.Phases.rates and plain.weight_decay == 0 and plain.augmented


def test_delayed_flights_are_generated_where_little_is_asked_for(asked_for, tmp_path):
    for preset, name in (("quick", "airline-delayed-generated"), ("paper", "airline-delayed")):
        paper.table(run_of("airline", tmp_path, preset))
        data, _, _, notes, *_ = asked_for[-1]
        assert data.name == name and "more than 0 minutes" in notes["label"]


def test_binary_digits_are_odd_or_even(asked_for, tmp_path):
    paper.mnist(run_of("mnist-binary", tmp_path))
    data = asked_for[0][0]
    assert data.name == "mnist, odd or even"
    np.testing.assert_array_equal(data.y_train, np.arange(40) % 3 % 2)


@pytest.mark.slow
def test_scaling_trains_more_rows_and_times_grids(few, monkeypatch, tmp_path):
    taken = []
    monkeypatch.setattr(datasets.Dataset, "subset", lambda self, *rows, seed: taken.append(rows[0]) or self)
    monkeypatch.setattr(figures, "Phases", lambda *a, **k: paper.Phases())
    monkeypatch.setattr(figures, "_TIMED", 1)
    monkeypatch.setitem(figures._PARTS, "quick", (3, 1))
    monkeypatch.setitem(figures._GRIDS, "quick", (16, 70))
    run = Run("deep_kernel", "scaling", "airline", "quick", 0, tmp_path / "scaling")
    result = execute(EXPERIMENTS["scaling"], run)
    assert [each["rows"] for each in result["settings"]["by_rows"]] == taken[1:] == [13, 40]
    assert [each["points"] for each in result["settings"]["by_grid"]] == [16, 70]
    assert result["stands_in"] and result["metrics"]["step_ratio_70"] > 0
    assert (tmp_path / "scaling" / "figure_2.png").is_file()
    # Once more: everything is taken up.
    monkeypatch.setattr(figures, "fit_deep_kernel", None)
    assert execute(EXPERIMENTS["scaling"], run)["settings"] == result["settings"]
    drawn = EXPERIMENTS["scaling"].figure({"airline": result, "covtype": result}).axes
    assert len(drawn) == 6 and drawn[3].get_xlabel() == "training rows of covtype"
    np.testing.assert_array_equal(drawn[0].lines[1].get_xdata(), [13, 40])
