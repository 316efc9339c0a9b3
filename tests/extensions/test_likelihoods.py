"""Likelihoods from outside the package: predicted with, diagnosed, exported and drawn in pictures."""

from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pytest
import scipy.stats
from numpyro.infer import SVI

from gpzoo import InducingPoints
from gpzoo.inference import GaussianProcessELBO, InducingGuide, check, diagnose, fit, plots
from gpzoo.kernels import RBF
from tests.extensions.likelihood import Signs, Sizes
from tests.extensions.model import trend
from tests.programs import KEY, adam

X = np.linspace(-3, 3, 40)[:, None]
RNG = np.random.default_rng(0)
SIZES = np.exp(np.sin(X[:, 0]) + 0.3 * RNG.standard_normal(40))
LABELS = (np.sin(X[:, 0]) > -0.5).astype(int) + (np.sin(X[:, 0]) > 0.5)


def trained(likelihood, y):
    model = partial(trend, kernel=lambda: RBF(1.0, 1.0), likelihood=likelihood)
    svi = SVI(model, InducingGuide(model, InducingPoints(X[::5])), adam(0.05), GaussianProcessELBO())
    return fit(KEY, svi, 300, X, y, progress=False)


@pytest.fixture(scope="module")
def sizes():
    return trained(partial(Sizes, spread=0.09), SIZES)


@pytest.fixture(scope="module")
def labels():
    return trained(Signs, LABELS)


@pytest.mark.slow
def test_ranks_in_closed_form_are_predicted_and_judged(sizes):
    found = sizes.predict(KEY, X, test_data={"y": SIZES}, quantiles=(0.5,), num_draws=1)
    f, y = found["f"], found["y"]
    spread = np.sqrt(f.variance + 0.09)
    np.testing.assert_allclose(y.cdf, scipy.stats.norm.cdf(np.log(SIZES), f.mean, spread), rtol=1e-6)
    assert y.quantiles.shape == (1, 40) and y.draws is None
    said = diagnose(KEY, sizes, X, SIZES)
    assert {row[0] for section in said.sections for row in section.rows if row} >= {"y"}
    assert not said.findings
    assert sizes.expectations == {"y": "closed form"}


@pytest.mark.slow
def test_labels_are_predicted_and_judged_as_such(labels):
    y = labels.predict(KEY, X, test_data={"y": LABELS}, num_draws=1)["y"]
    assert y.mean is None and y.cdf is None and y.probs.shape == (40, 3)
    np.testing.assert_allclose(y.log_density, np.log(y.probs[np.arange(40), LABELS]), rtol=1e-9)
    assert np.mean(y.probs.argmax(axis=1) == LABELS) > 0.7
    said = diagnose(KEY, labels, X, LABELS)
    assert said.arrays["y_probs"].shape == (40, 3)
    assert "no better than a constant" not in [finding.name for finding in said.findings]


def test_data_are_checked_for_what_the_likelihood_says_of_them():
    model = partial(trend, kernel=lambda: RBF(1.0, 1.0))
    far = np.where(np.arange(40) == 3, 100.0, SIZES)
    # A likelihood without light tails is not led astray by an outlier, and labels have no spread.
    assert "outliers" not in [f.name for f in check(partial(model, likelihood=partial(Sizes, spread=0.09)), X, far)]
    assert check(partial(model, likelihood=Signs), X, LABELS) == ()


@pytest.mark.slow
@pytest.mark.parametrize("which, y", [("sizes", SIZES), ("labels", LABELS)])
def test_export_and_pictures(which, y, request):
    result = request.getfixturevalue(which)
    exported = result.to_arviz(KEY, X, y, num_draws=3)
    assert exported["posterior_predictive"]["y"].shape == (1, 3, 40)
    assert exported["log_likelihood"]["y"].shape == (1, 3, 40)
    ax = plots.fit_1d(KEY, result, X, y)
    assert ax.has_data()
    plt.close("all")
