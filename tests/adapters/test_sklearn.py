"""Estimators of scikit-learn: its own checks, its tools, and its Gaussian processes on its data."""

import pickle
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from sklearn import datasets
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from gpzoo import GaussianProcess, kernels
from gpzoo.adapters import sklearn as adapter
from gpzoo.adapters.sklearn import GPZooClassifier, GPZooRegressor
from gpzoo.likelihoods import Expected, Gaussian, Softmax
from gpzoo.models import gp_classification, positive, rbf

#: Few: every shape of data is compiled anew.
FEW = {"num_inducing": 5, "num_steps": 5}

#: Checks that fit little, and one pickle.
QUICK = (
    *("check_estimators_unfitted", "check_no_attributes_set_in_init", "check_set_params"),
    *("check_fit2d_1sample", "check_complex_data", "check_estimator_sparse_matrix", "check_classifiers_one_label"),
    "check_estimator_tags_renamed",
)


def name_of(check):
    return getattr(check, "func", check).__name__


CHECKS = [
    pytest.param(
        estimator,
        check,
        id=f"{type(estimator).__name__}-{name_of(check)}",
        marks=() if name_of(check) in QUICK else pytest.mark.slow,
    )
    for each in (GPZooRegressor(**FEW), GPZooClassifier(**FEW))
    for estimator, check in estimator_checks_generator(each)
]


# Checks warn of what they pass on purpose, such as targets in one column.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.DataConversionWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def waves():
    """60 rows of two columns, far from zero and large or small, with noise of a tenth."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"far": rng.uniform(1e7, 2e7, 60), "near": rng.uniform(0, 1e-5, 60)})
    y = 1e4 * (np.sin(X["far"].to_numpy() / 1e6) + 0.1 * rng.standard_normal(60)) + 1e6
    return X, y


@pytest.fixture(scope="module")
def regressor(waves):
    return GPZooRegressor(random_state=0).fit(*waves)


@pytest.fixture(scope="module")
def labels(waves):
    return np.array(["down", "up"])[(waves[1] > 1e6).astype(int)]


@pytest.fixture(scope="module")
def classifier(waves, labels):
    return GPZooClassifier(num_inducing=10, random_state=0).fit(waves[0], labels)


@pytest.mark.slow
def test_predictions_are_in_the_units_of_the_data(waves, regressor):
    X, y = waves
    mean, std = regressor.predict(X, return_std=True)
    assert regressor.score(X, y) > 0.95 and mean.dtype == np.float64
    np.testing.assert_allclose(mean, regressor.predict(X))
    assert 700 < np.median(std) < 1500  # noise included
    lower, upper = regressor.predict_quantiles(X, (0.1, 0.8))  # of a Gaussian
    np.testing.assert_allclose(lower, mean - 1.2815515655446004 * std, rtol=1e-6)
    np.testing.assert_allclose(upper, mean + 0.8416212335729143 * std, rtol=1e-6)
    far, wide = regressor.predict(100 * X, return_std=True)
    np.testing.assert_allclose(far, y.mean(), rtol=1e-3)
    assert wide.min() > 3000


@pytest.mark.slow
def test_draws_are_joint_and_with_noise(waves, regressor):
    # Two rows of one input far from all others share the function, and not the noise.
    X = pd.concat([waves[0].iloc[:4], 100 * waves[0].iloc[[0, 0]]])
    mean, std = regressor.predict(X, return_std=True)
    drawn = regressor.sample_y(X, n_samples=2000, random_state=1)
    assert drawn.shape == (6, 2000)
    np.testing.assert_allclose(drawn.mean(axis=1), mean, atol=4 * std.max() / 2000**0.5)
    np.testing.assert_allclose(drawn.std(axis=1), std, rtol=0.08)
    np.testing.assert_array_equal(drawn, regressor.sample_y(X, n_samples=2000, random_state=1))
    assert np.any(drawn != regressor.sample_y(X, n_samples=2000))
    between = np.corrcoef(drawn)
    assert 0.9 < between[4, 5] < 0.999 and abs(between[0, 5]) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("name", "asked"), [("regressor", "predict"), ("classifier", "predict_proba")])
def test_pickles_predict_the_same(waves, name, asked, request):
    estimator = request.getfixturevalue(name)
    again = pickle.loads(pickle.dumps(estimator))
    again.set_params(num_inducing=7, kernel=rbf)  # which are for the next fit
    once_more = pickle.loads(pickle.dumps(again))
    np.testing.assert_array_equal(getattr(once_more, asked)(waves[0]), getattr(estimator, asked)(waves[0]))
    assert once_more.get_params() == again.get_params() and once_more.n_features_in_ == 2
    assert not hasattr(clone(estimator), "trained_")
    with pytest.raises(NotFittedError):
        pickle.loads(pickle.dumps(GPZooRegressor(num_steps=3))).predict(waves[0])


@pytest.mark.slow
def test_labels_are_strings_and_probabilities_in_their_order(waves, labels, classifier):
    assert classifier.score(waves[0], labels) > 0.9
    probs = classifier.predict_proba(waves[0])
    np.testing.assert_allclose(probs.sum(axis=1), 1)
    np.testing.assert_array_equal(classifier.classes_[probs.argmax(axis=1)], classifier.predict(waves[0]))
    assert list(classifier.classes_) == ["down", "up"]
    with pytest.raises(ValueError, match=r"at least two classes.*one class, \['up'\]"):
        GPZooClassifier().fit(waves[0], np.full(60, "up"))


@pytest.mark.slow
def test_columns_have_names_and_their_order(waves, regressor):
    assert list(regressor.feature_names_in_) == ["far", "near"]
    with pytest.raises(ValueError, match="same order"):
        regressor.predict(waves[0][["near", "far"]])


@pytest.mark.slow
def test_several_outputs_are_in_the_units_of_each(waves):
    X, y = waves
    Y, units, found = np.stack([y, X["near"] ** 2], axis=1), np.array([1e-6, 1e9]), []
    for targets in (Y, 3 + units * Y):
        estimator = GPZooRegressor(num_inducing=20, num_steps=30, random_state=0).fit(X, targets)
        found.append(estimator.predict(X, return_std=True))
    (mean, std), (mean_in_units, std_in_units) = found
    assert mean.shape == std.shape == (60, 2) and estimator.sample_y(X, 4).shape == (60, 2, 4)
    np.testing.assert_allclose(mean_in_units, 3 + units * mean, rtol=1e-6)
    np.testing.assert_allclose(std_in_units, units * std, rtol=1e-6)
    quantiles = estimator.predict_quantiles(X[:3])
    assert quantiles.shape == (2, 3, 2) and np.all(quantiles[0] < quantiles[1])
    np.testing.assert_allclose(quantiles.mean(axis=0), mean_in_units[:3], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("noises", [[0.02, 1.0], [1.0, 0.02], [0.02, 1.0, 0.3]], ids=str)
def test_each_target_has_its_noise(noises):
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (2, 150, 1))
    y = np.stack([np.sin(X[..., 0] + d) for d in range(len(noises))], axis=-1)
    y += np.sqrt(noises) * rng.standard_normal(y.shape)
    mean, std = GPZooRegressor(num_inducing=8, random_state=0).fit(X[0], y[0]).predict(X[1], return_std=True)
    held = np.mean(np.abs(y[1] - mean) < 1.645 * std, axis=0)
    assert np.all((held > 0.8) & (held < 0.98)), held


class Stop(BaseException):
    """What stops a fit wherever it is, as Ctrl-C may."""


def stopped_at(estimator, X, y, line):
    """Whether ``fit`` was stopped, at this line of those of the adapter that it runs through."""
    left, outer = iter(range(line)), sys.gettrace()

    def at_line(frame, event, _):
        if event == "line" and next(left, None) is None:
            raise Stop
        return at_line

    sys.settrace(lambda frame, *_: at_line if frame.f_code.co_filename == adapter.__file__ else None)
    try:
        estimator.fit(X, y)
    except Stop:
        return True
    finally:
        sys.settrace(outer)
    return False


@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.parametrize("kind", [GPZooRegressor, GPZooClassifier])
def test_a_fit_that_stops_anywhere_leaves_an_estimator_whole(kind, fitted, monkeypatch):
    monkeypatch.setattr(adapter, "fit", lambda *_, **__: object())
    X, y, line = pd.DataFrame({"a": [0.0, 1, 2, 3], "b": [1.0, 0, 3, 2]}), np.array([3, 4, 3, 4]), 0
    other, names = X.to_numpy()[:, [0, 1, 0]], np.array([1, 5, 1, 7])
    estimator = kind(num_inducing=2)
    if fitted:
        estimator.fit(X, y)
    before, whole = dict(vars(estimator)), vars(kind(num_inducing=2).fit(other, names))
    while stopped_at(estimator, other, names, line) and vars(estimator) == before:
        line += 1
    assert line > 30 and vars(estimator).keys() == whole.keys()
    found = whole.keys() - estimator.get_params().keys()
    assert not any(name in before and getattr(estimator, name) is before[name] for name in found - {"_softmax"})


@pytest.mark.parametrize("fails", [KeyboardInterrupt, RuntimeError, "rows", "values"])
@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.parametrize("kind", [GPZooRegressor, GPZooClassifier])
def test_a_fit_that_fails_leaves_an_estimator_whole(kind, fitted, fails, monkeypatch):
    X, y = np.arange(8.0).reshape(4, 2), np.array([1, 2, 1, 2])
    estimator = kind(num_inducing=2)
    monkeypatch.setattr(adapter, "fit", lambda *_, **__: object())
    if fitted:
        estimator.fit(X, y)
    before = dict(vars(estimator))
    if not isinstance(fails, str):

        def failing(*_, **__):
            raise fails

        monkeypatch.setattr(adapter, "fit", failing)
    X, y = X[:, :1], y + 1
    X = np.where(X > 5, np.nan, X) if fails == "values" else X
    with pytest.raises((KeyboardInterrupt, RuntimeError, ValueError)):
        estimator.fit(X, y[:3] if fails == "rows" else y)
    assert vars(estimator) == before


def misnamed(X, y=None):
    f = numpyro.sample("f", GaussianProcess(kernels.RBF(), X))
    with numpyro.plate("data", len(X)):
        numpyro.sample("targets", Gaussian(f, 0.1), obs=y)


@pytest.mark.parametrize("kind", [GPZooRegressor, GPZooClassifier])
def test_what_predictions_could_not_find_is_refused_at_the_door(kind, waves, labels):
    y = labels if kind is GPZooClassifier else waves[1]
    with pytest.raises(ValueError, match="call its data site 'y', not 'targets'"):
        kind(program=misnamed, num_inducing=4).fit(waves[0], y)
    for kernel in (kernels.RBF(), kernels.Matern32, kernels.RBF() + kernels.White(0.1), 3):
        for program in (None, robust):
            with pytest.raises(TypeError, match="kernel must be a function of a site's name and the inputs"):
                kind(kernel, program=program).fit(waves[0], y)


@pytest.mark.slow
@pytest.mark.parametrize("targets", [np.full(40, 3.0), np.linspace(0, 1, 40), np.arange(40) % 2])
def test_targets_without_noise_and_columns_without_information(targets):
    x = np.linspace(0, 1, 40)
    X = np.stack([x, np.full(40, 7.0), x], axis=1)
    mean, std = GPZooRegressor(random_state=0).fit(X, targets).predict(X, return_std=True)
    assert np.isfinite(mean).all() and np.all(std > 0) and (std.mean() < 0.1 or targets.dtype.kind == "i")


def student_t(f, scale):
    return dist.StudentT(4.0, f, scale)


def robust(X, y=None, *, num_data=None):
    """A program of one's own, which takes neither a kernel nor a number of outputs."""
    f = numpyro.sample("f", GaussianProcess(rbf("f", X), X))
    scale = positive("scale", 0.3, X)
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Expected(student_t, f, scale), obs=y)


@pytest.mark.slow
def test_programs_and_kernels_of_ones_own(waves):
    X, y = waves
    found = GPZooRegressor(program=robust, batch_size=30, num_steps=200, random_state=0).fit(X, y)
    again = pickle.loads(pickle.dumps(found))
    assert found.score(X, y) > 0.9 and again.score(X, y) == found.score(X, y)
    assert found.trained_.expectations == {"y": "quadrature"}
    for kernel in (None, partial(rbf, ard=False)):
        softmax = partial(gp_classification, likelihood=Softmax)
        found = GPZooClassifier(kernel, program=softmax, num_inducing=10, num_steps=100, random_state=0)
        thirds = np.digitize(X["far"], [1.3e7, 1.7e7]) - 1
        assert found.fit(X, thirds).score(X, thirds) > 0.8 and list(found.classes_) == [-1, 0, 1]
        probs = found.predict_proba(X)
        found.set_params(program=None)  # which is for the next fit
        np.testing.assert_array_equal(found.predict_proba(X), probs)
        assert found.trained_.params["f_lengthscale"].shape == ((2,) if kernel is None else ())


@pytest.mark.slow
def test_a_classifier_refuses_a_program_of_numbers(waves, labels):
    found = GPZooClassifier(program=robust, num_inducing=10, num_steps=20, random_state=0).fit(waves[0], labels)
    with pytest.raises(ValueError, match="is no label"):
        found.predict_proba(waves[0])


@pytest.mark.slow
def test_a_step_that_is_not_finite_leaves_the_parameters_before_it(waves):
    def wild(X, y=None, *, num_data=None):
        """Is NaN once the first steps have moved the noise."""
        noise = positive("noise", 0.1, X)
        f = numpyro.sample("f", GaussianProcess(rbf("f", X), X))
        with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
            numpyro.sample("y", Gaussian(f, jnp.where(abs(noise - 0.1) < 0.02, noise, jnp.nan)), obs=y)

    with pytest.warns(ConvergenceWarning, match="after step"):
        found = GPZooRegressor(program=wild, num_steps=200, num_inducing=10, random_state=0).fit(*waves)
    assert np.isfinite(found.predict(waves[0])).all()


def settings_of(search):
    return search.best_params_["gpzooregressor__num_inducing"], round(search.best_score_, 6)


@pytest.mark.slow
def test_tools_of_scikit_learn(waves, labels):
    X, y = waves
    pipeline = make_pipeline(
        StandardScaler().set_output(transform="pandas"), GPZooRegressor(num_steps=20, random_state=0)
    )
    scores = cross_val_score(pipeline, X, y, cv=KFold(3, shuffle=True, random_state=0))
    assert scores.min() > 0.5
    grid = {"gpzooregressor__num_inducing": [2, 20]}
    alone, beside = (GridSearchCV(pipeline, grid, cv=2, n_jobs=jobs).fit(X, y) for jobs in (None, 2))
    assert settings_of(alone) == settings_of(beside) and settings_of(alone)[0] == 20
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda k: clone(pipeline).fit(X[:30], y[:30]).predict(X[k : k + 2]), range(0, 8, 2))
    np.testing.assert_allclose(np.concatenate(list(found)), clone(pipeline).fit(X[:30], y[:30]).predict(X[:8]))
    calibrated = CalibratedClassifierCV(GPZooClassifier(num_inducing=10, num_steps=20, random_state=0), cv=2)
    assert calibrated.fit(X, labels).score(X, labels) > 0.8


def nll(y, mean, std):
    return np.mean(0.5 * np.log(2 * np.pi * std**2) + 0.5 * ((y - mean) / std) ** 2)


@pytest.mark.slow
def test_regression_is_no_worse_than_scikit_learns():
    X, y = datasets.load_diabetes(return_X_y=True)
    X, errors, densities = StandardScaler().fit_transform(X), [], []
    kernel = 1.0 * RBF(np.full(10, 10**0.5), (1e-2, 1e4)) + WhiteKernel(0.1)
    for train, test in KFold(3, shuffle=True, random_state=0).split(X):
        theirs = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # of lengthscales at their limits
            theirs.fit(X[train], y[train])
        ours = GPZooRegressor(random_state=0).fit(X[train], y[train])
        found = [each.predict(X[test], return_std=True) for each in (ours, theirs)]
        errors.append([np.sqrt(np.mean((mean - y[test]) ** 2)) for mean, _ in found])
        densities.append([nll(y[test], *each) for each in found])
    for each, spread in ((errors, np.std(errors)), (densities, np.std(densities))):
        ours, theirs = np.mean(each, axis=0)
        assert ours < theirs + spread, each


@pytest.mark.slow
@pytest.mark.parametrize("load", [datasets.load_breast_cancer, datasets.load_iris])
def test_classification_is_no_worse_than_scikit_learns(load):
    X, y = load(return_X_y=True)
    X, losses = StandardScaler().fit_transform(X), []
    for train, test in StratifiedKFold(3, shuffle=True, random_state=0).split(X, y):
        theirs = GaussianProcessClassifier(1.0 * RBF(X.shape[1] ** 0.5), random_state=0).fit(X[train], y[train])
        ours = GPZooClassifier(random_state=0).fit(X[train], y[train])
        losses.append([log_loss(y[test], each.predict_proba(X[test])) for each in (ours, theirs)])
    ours, theirs = np.mean(losses, axis=0)
    assert ours < theirs + np.std(losses), losses


@pytest.mark.slow
@pytest.mark.parametrize("kind", [GPZooRegressor, GPZooClassifier])
@pytest.mark.parametrize("seed", [1, 2])
def test_targets_with_the_labels_of_rows_in_another_order_are_refused(kind, seed):
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame({"a": np.linspace(0, 1, 8)}, index=[f"row {i}" for i in range(8)])
    y = (X["a"] > 0.4).astype(int)
    mixed = y.sample(frac=1, random_state=seed)
    with pytest.raises(ValueError, match="labels of the rows of X in another order"):
        kind(num_steps=1).fit(X, mixed)
    for other in (y, mixed.to_numpy(), y.set_axis(range(8))):
        kind(num_steps=1, num_inducing=2).fit(X, other)


@pytest.mark.parametrize("kind", [GPZooRegressor, GPZooClassifier])
@pytest.mark.parametrize("name", ["num_steps", "batch_size"])
@pytest.mark.parametrize("value", ["many", 0, 2.5])
def test_numbers_of_steps_and_rows_that_are_none_are_refused(kind, name, value):
    with pytest.raises((ValueError, TypeError), match=name):
        kind(**{name: value}).fit(np.linspace(0, 1, 8)[:, None], np.arange(8) % 2)
