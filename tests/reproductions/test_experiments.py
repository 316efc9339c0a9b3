"""Every variant comes as far as its training, with the paper's settings, and short runs go from data to result."""

import json
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from click.testing import CliRunner
from numpyro import handlers

from gpzoo.errors import DatasetError
from gpzoo.inference import SitePrediction, diagnose
from gpzoo.models.invariant import invariant_classifier, invariant_gp
from gpzoo.reproductions import cli, datasets, invariant, latent_inputs, several_functions, streaming, training
from gpzoo.reproductions.execute import execute
from gpzoo.reproductions.experiment import Run, all_experiments
from gpzoo.reproductions.training import Setting

EXPERIMENTS = {(each.paper, each.name): each for each in all_experiments()}
CASES = [
    (paper, name, variant, preset)
    for (paper, name), each in EXPERIMENTS.items()
    if paper in ("convolutional", "invariant") and name != "toy"
    for variant in each.variants
    for preset in each.presets
]
#: Of the convolutional paper and its authors' code: inducing points, where Adam's rate starts, rows per minibatch.
AUTHORS = {
    "rectangles": ({1200, 16}, 0.01, {100}),
    "mnist-0-vs-1": ({50, 100}, 0.01, {100}),
    "mnist": ({750}, 0.001, {200}),
    "cifar10": ({1000}, 0.001, {40, 200}),
}


def run_of(paper, name, variant, folder, preset="quick"):
    return Run(paper, name, variant, preset, 0, folder)


def learned(name, variant):
    """The parameters of a variant's view."""
    view = variant.removesuffix("-sticks")
    if view in ("affine", "local"):
        return {"affine_below", "affine_above"} | ({"amplitude", "smoothness"} if view == "local" else set())
    turned = (name == "rotated-binary" and "rbf" not in variant) or view in ("rotation", "rotation-learned")
    return {"angle"} if turned else set()


@pytest.mark.parametrize("paper, name, variant, preset", CASES)
def test_every_variant_comes_as_far_as_its_training(paper, name, variant, preset, small, monkeypatch, tmp_path):
    begun = []

    def fit(key, svi, steps, X, y, **options):
        begun.append((svi.model, steps, X, y))
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "fit", fit)
    run = run_of(paper, name, variant, tmp_path, preset)
    with pytest.raises(KeyboardInterrupt):
        EXPERIMENTS[paper, name].run(run)
    ((model, steps, X, y),), setting = begun, Setting.of(run.options)
    assert steps == setting.steps
    if paper == "convolutional":
        patches = None if variant == "rbf" else (3, 3) if name == "rectangles" else (5, 5)
        own = model.keywords.get("last", model)  # of a deep program, the last layer
        assert own.keywords.get("patch_shape") == patches and X.ndim == (4 if patches else 2)
        if preset == "paper":
            sizes, start, batches = AUTHORS[name]
            assert setting.num_inducing in sizes and (setting.batch_size in batches or not setting.by_adam)
            assert float(setting.learning_rate.schedule(0)) == pytest.approx(start)
            assert name != "cifar10" or (setting.batch_size == 200) == (variant in ("rbf", "colour-patch"))
        return
    binary, view = name == "rotated-binary", model.keywords["view"]
    assert model.func is (invariant_classifier if binary or variant.endswith("sticks") else invariant_gp)
    assert (view is None) == ("rbf" in variant)
    if view is not None:
        trace = handlers.trace(view)
        jax.eval_shape(lambda X: trace(X) and None, X)
        found = {site for site, message in trace.trace.items() if message["type"] == "param"}
        assert found == learned(name, variant)
    assert y.shape == ((60,) if binary or variant.endswith("sticks") else (60, 10))
    assert not binary or set(np.unique(y)) == {0, 1}


def test_the_schedule_of_the_authors():
    rate = Setting.of({"steps": 90_000, "batch_size": 200, "rate": {"staircase": 0.001, "every": 30_000}}).learning_rate
    for step in (0, 29_999, 30_000, 89_999, 90_000):
        np.testing.assert_allclose(float(rate.schedule(step)), 0.001 * 10 ** -(step // 30_000 / 3), rtol=1e-5)
    assert "30000" in rate.name


def test_a_damaged_file_is_not_replaced_by_a_stand_in(small, monkeypatch, tmp_path):
    monkeypatch.setattr(datasets, "available", lambda: [datasets.Entry("mnist-rot", "", True, "file")])
    with pytest.raises(DatasetError, match="absent"):
        EXPERIMENTS["invariant", "mnist-rot"].run(run_of("invariant", "mnist-rot", "rbf", tmp_path))
    assert small == ["mnist-rot"]


#: Of the invariant paper every data set, likelihood and number of learned parameters once: a variant is a view.
RUNS = [
    ("latent_inputs", "digits", "gplvm", "embedding.png"),
    ("latent_inputs", "digits", "gplvm-amortised", "embedding.png"),
    ("latent_inputs", "two-branches", "latent-variable-weighted", "predictions.png"),
    ("observations", "wine-red", "linear", "model.gpzoo"),
    ("observations", "noisy-sine", "changing", "test_curves.png"),
    ("observations", "bursts", "gp", "rates.png"),
    ("several_functions", "two-functions", "mixture", "functions.png"),
    ("several_functions", "two-functions", "single", "functions.png"),
    ("several_functions", "three-outputs", "together", "outputs.png"),
    ("several_functions", "three-outputs", "apart", "outputs.png"),
    ("streaming", "halves", "adult", "model.gpzoo"),
    ("inducing", "chirp", "orthogonal", "model.gpzoo"),
    ("inducing", "chirp", "box", "model.gpzoo"),
    ("convolutional", "rectangles", "weighted", "inducing_patches.png"),
    ("convolutional", "mnist", "weighted-rbf", "test_curves.png"),
    ("invariant", "rotated-binary", "90-from-45", "augmentation.png"),
    ("invariant", "mnist", "affine-sticks", "augmentation.png"),
    ("invariant", "mnist-rot", "rbf", "model.gpzoo"),
    ("deep", "year", "dgp2", "model.gpzoo"),
    ("deep", "higgs", "dgp2", "model.gpzoo"),
]


@pytest.mark.slow
@pytest.mark.parametrize("paper, name, variant, file", RUNS)
def test_short_runs_go_from_data_to_result(paper, name, variant, file, small, shortened, monkeypatch, tmp_path):
    monkeypatch.setattr(latent_inputs, "infer_rows", partial(latent_inputs.infer_rows, num_steps=3))
    sizes = {"steps": 8, "num_inducing": 10} if name == "halves" else {"steps": 4, "num_inducing": 6}
    shortened(**sizes, splits=2, batch_size=20, num_views=3, num_fixed=4)
    run = run_of(paper, name, variant, tmp_path)
    result = execute(EXPERIMENTS[paper, name], run)
    metrics, settings = result["metrics"], result["settings"]
    assert np.isfinite(list(metrics.values())).all()
    # The wrong rows are those that an error counts.
    assert paper not in ("convolutional", "invariant") or "error" in settings["wrong_rows"]
    for own, bits in settings.get("wrong_rows", {}).items():
        share = metrics[own] if own == "error" else 1 - metrics[own]
        assert int(bits, 16).bit_count() == round(share * result["data"]["sizes"]["test"])
    assert {file, "learning_curve.png", "posterior.nc"} <= {path.name for path in tmp_path.iterdir()}
    # A run that is finished is read from its files.
    monkeypatch.setattr(training, "fit", None)
    again = EXPERIMENTS[paper, name].run(replace(run, finished=True))
    assert again.metrics == pytest.approx(metrics) and again.trained.params
    # Generated data are not the paper's, nor are its numbers then theirs.
    assert result["stands_in"] == (name in ("rectangles", "mnist-rot", "year", "higgs"))
    assert not result["stands_in"] or set(result["paper_metrics"].values()) == {None}
    assert ("function_distance" in metrics) == (variant == "mixture")
    if paper == "invariant":
        assert {"error", "nlpp"} <= set(metrics) and metrics["elbo"] == pytest.approx(60 * metrics["bound_per_point"])
        assert result["curve"] == [] and set(settings["learned"]) == learned(name, variant)
        assert ("learned_angle_degrees" in metrics) == ("angle" in settings["learned"])
    match name:
        case "digits":
            # Four steps from the principal components cannot beat them.
            assert metrics["held_out_bound"] < metrics["best_ppca_log_likelihood"]
            assert metrics["ppca_log_likelihood"] < metrics["best_ppca_log_likelihood"]
        case "wine-red":
            # Labels start at 0, and no label is the best guess of all: four of them, nearly at random after four steps.
            assert 1.2 < metrics["nlpp"] < 2.5
        case "bursts":
            assert metrics["true_nlpp"] < metrics["constant_nlpp"]
        case "halves":
            by_fold = [settings[f"{kind}_by_fold"] for kind in ("nlpp", "all_nlpp")]
            np.testing.assert_allclose(metrics["difference"], np.subtract(*by_fold).mean())
            assert len(streaming.figure_of_halves({"adult": result}).axes[0].lines) == 6
        case "mnist" if paper == "convolutional":
            said = {"inducing": "blocks(unique_patches, kmeans)", "covariance": "block_diagonal"}
            assert said.items() <= settings.items() and metrics["wrong_images"] == 20 * metrics["error"]
        case "rotated-binary":
            assert result["data"]["name"] == "mnist, rotated by up to 90 degrees"
        case "mnist-rot":
            assert result["data"]["name"] == "mnist-rot-generated"
        case "year":
            spread = datasets.load(name).y_test.std()
            assert 0.2 * spread < metrics["rmse"] < 3 * spread
            # A density of y: near that of a normal with the spread of the data, not of standardised ones.
            assert -10 < metrics["test_log_likelihood"] < -np.log(spread) + 1
        case "higgs":
            assert 0 <= metrics["auc"] <= 1 and metrics["test_log_likelihood"] < 0


def test_entries_are_missing_in_another_place_of_each_output():
    data = several_functions.three_outputs()
    assert len(data.y_test) == 120 and len(data.y_train) == 180
    seen = [set(data.X_test[data.X_test[:, 1] == k, 0]) for k in range(3)]
    assert all(seen[a] != seen[b] for a, b in ((0, 1), (1, 2), (0, 2)))


@pytest.mark.slow
def test_the_bound_finds_the_symmetry_and_the_fit_does_not(standard_promotion, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(cli.main, ["compare", "invariant", "toy", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    runs = {name: tmp_path / f"invariant-toy-{name}-quick-seed0" for name in ("symmetric", "plain")}
    found = {name: json.loads((run / "result.json").read_text()) for name, run in runs.items()}
    symmetric, plain = (found[name]["metrics"] for name in ("symmetric", "plain"))
    assert symmetric["elbo"] > plain["elbo"] + 5
    assert symmetric["rmse"] < 0.9 * plain["rmse"]
    assert symmetric["test_log_likelihood"] > plain["test_log_likelihood"]
    assert plain["train_rmse"] <= symmetric["train_rmse"]
    named = [axes.get_title().split(":")[0] for axes in invariant.figure_2(found).axes if axes.get_title()]
    assert named == ["truth", "symmetric", "plain"] and (runs["symmetric"] / "solution.png").is_file()
    # A report judges test rows alone, as data with noise.
    for name, output in runs.items():
        looked_at = invariant.toy.run(Run("invariant", "toy", name, "quick", 0, output, finished=True)).inspected
        data, (X, y) = invariant.toy_data(0), looked_at.args
        np.testing.assert_array_equal(X, data.X_test)
        assert np.std(y - data.y_test) == pytest.approx(0.1, rel=0.1)
        said = [each.name for each in diagnose(jax.random.key(0), looked_at.trained, X, y).findings]
        assert "intervals too wide" not in said
    # The highest bound comes first.
    rows = [line.split() for line in done.output.splitlines() if "symmetric" in line or "plain" in line]
    assert "symmetric" in rows[-2] and "plain" in rows[-1]


def test_class_probabilities_are_those_of_the_densities_of_one_hot_labels():
    rng, eye = np.random.default_rng(0), np.eye(10)
    mean, variance, labels = rng.normal(size=(7, 10)), rng.gamma(1.0, size=(7, 10)), rng.integers(0, 10, 7)
    log_density = -0.5 * ((eye[None] - mean[:, None]) ** 2 / variance[:, None] + np.log(variance[:, None])).sum(-1)
    probs = np.exp(log_density) / np.exp(log_density).sum(1, keepdims=True)
    metrics = invariant._score_of_one_hot(SitePrediction(mean, variance, np.zeros(7)), eye[labels])
    assert metrics["nlpp"] == pytest.approx(-np.log(probs[np.arange(7), labels]).mean())
    assert metrics["error"] == pytest.approx(np.mean(probs.argmax(1) != labels))
