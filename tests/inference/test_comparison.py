"""Candidates with a guide, optimiser or objective of their own are compared beside those of the default."""

import warnings
from functools import partial

import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import SVI
from numpyro.infer.autoguide import AutoNormal

from gpzoo import GaussianProcess, kmeans
from gpzoo.inference import CollapsedELBO, GaussianProcessELBO, InducingGuide, compare, lbfgs
from gpzoo.inference.training import comparison
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Gaussian
from gpzoo.models import gp_regression
from tests.programs import KEY, sine


@pytest.mark.slow
def test_candidates_may_have_objectives_of_their_own(standard_promotion):
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(0, 6, (40, 1)), axis=0)
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(40)
    guide = InducingGuide(gp_regression, kmeans(8))
    candidates = {
        "adam": (gp_regression, kmeans(8)),
        "collapsed": SVI(gp_regression, guide, lbfgs(), CollapsedELBO()),
    }
    found = compare(KEY, candidates, X, y, X, y, num_steps=20, progress=False)
    assert list(found) == ["collapsed", "adam"] and found["collapsed"].nlpp < found["adam"].nlpp - 0.2
    other = SVI(gp_regression, AutoNormal(gp_regression), optax.adam(0.01), GaussianProcessELBO())
    with pytest.raises(ValueError, match="guide of candidate 'normal' must be an InducingGuide"):
        compare(KEY, {"normal": other}, X, y, num_steps=2)


# -- by prediction -----------------------------------------------------------------------------------------------------


def of_kernel(kernel, X, y=None, *, num_data=None):
    noise = numpyro.sample("noise", dist.LogNormal(-2.0, 0.5))
    f = numpyro.sample("f", GaussianProcess(kernel, X))
    with numpyro.plate("data", num_data or len(X), subsample_size=len(X)):
        numpyro.sample("y", Gaussian(f, noise), obs=y)


@pytest.mark.slow
def test_candidates_are_compared_by_leaving_rows_out(standard_promotion):
    """By weights as ``az.compare``, by folds alike, and by folds where weights cannot be trusted."""
    X, y = sine(60)
    kernels = {"right": RBF(1.0, 0.8), "smooth": RBF(1.0, 3.0)}
    candidates = {name: (partial(of_kernel, kernel), kmeans(12)) for name, kernel in kernels.items()}
    options = {"num_steps": 800, "learning_rate": 0.05, "progress": False}
    loo = compare(KEY, candidates, X, y, elpd="loo", **options)
    folds = compare(KEY, candidates, X, y, elpd=6, **options)
    assert list(loo) == list(folds) == ["right", "smooth"]
    assert loo["right"].elpd_by.startswith("LOO") and folds["right"].elpd_by == "6 folds"
    assert "below best" in str(loo) and str(loo).splitlines()[1].startswith("right")
    below = [each["right"].elpd - each["smooth"].elpd for each in (loo, folds)]
    error = np.sqrt(60) * below[0].std()
    assert below[0].sum() > 2 * error
    assert abs(below[0].sum() - below[1].sum()) < error
    exports = {name: each.trained.to_arviz(KEY, X, y, num_draws=1000) for name, each in loo.items()}
    az = pytest.importorskip("arviz")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(shape parameter of Pareto|Pareto k|inplace keyword)")
        table = az.compare(exports)
    assert list(table.index) == ["right", "smooth"]
    assert np.abs(table["elpd_diff"].to_numpy(float)).max() == pytest.approx(below[0].sum(), abs=error / 2)


@pytest.mark.parametrize("folds", [1, 9, "waic", 2.5, 3.0, True, np.float64(2), float("nan"), [2, 3]])
def test_folds_that_cannot_be_are_refused(folds):
    X, y = sine(8)
    with pytest.raises(ValueError, match=r"elpd, where it is not 'loo', must be an integer from 2 to 8"):
        compare(KEY, {"one": (partial(of_kernel, RBF()), kmeans(3))}, X, y, elpd=folds, num_steps=1)


GOOD = partial(of_kernel, RBF()), kmeans(3)
ROWS, TARGETS = sine(12)
REFUSED = {
    "fewer targets": ({"one": GOOD}, {"X_test": ROWS, "y_test": TARGETS[:-1]}, "y_test"),
    "columns": ({"one": GOOD}, {"X_test": np.ones((3, 2)), "y_test": TARGETS[:3]}, "X_test"),
    "site": ({"one": GOOD}, {"elpd": 2, "site": "z"}, "'one' has"),
    "folders": ({"one": GOOD, "a": GOOD, "./a": GOOD}, {"checkpoint": "unused"}, "names of their own"),
    "no folder": ({"one": GOOD, "a\0": GOOD}, {"checkpoint": "unused"}, "checkpoint of candidate"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compared_is_refused_before_anything_is_trained(name, monkeypatch, tmp_path, standard_promotion):
    candidates, options, words = REFUSED[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparison, "fit", lambda *args, **kwargs: pytest.fail("it trains"))
    with pytest.raises((ValueError, TypeError), match=words):
        compare(KEY, candidates, ROWS, TARGETS, num_steps=3, progress=False, **options)
    assert not list(tmp_path.iterdir())


def test_a_score_that_fails_keeps_the_trained_candidate(standard_promotion):
    options = {"X_test": ROWS, "y_test": TARGETS, "score": lambda test, y: {}["spread"]}
    with pytest.raises(KeyError, match="spread") as caught:
        compare(KEY, {"one": GOOD}, ROWS, TARGETS, num_steps=3, progress=False, **options)
    assert caught.value.finished["one"].trained.losses.shape == (3,)
