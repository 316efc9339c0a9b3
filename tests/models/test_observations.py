"""Programs of data that are not normal numbers of one size find what simulated data were made from."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.infer import SVI
from scipy.stats import norm, spearmanr

from gpzoo import InducingPoints, kmeans
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
from gpzoo.likelihoods import Expected
from gpzoo.models import heteroscedastic_gp, log_gaussian_cox, ordinal_gp, positive, rbf
from gpzoo.models.observations import _poisson
from gpzoo.processes.process import GaussianProcess
from tests.programs import KEY, adam, bound

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (150, 1))
TRUTH = np.sin(2 * X[:, 0])
SCALE = np.exp(0.8 * X[:, 0] - 1.5)
LEVELS = np.digitize(3 * TRUTH + RNG.logistic(size=150), [-2, 0, 2])
SIZES = RNG.uniform(0.5, 8, 150)


def trained(program, *args):
    svi = SVI(program, InducingGuide(program, kmeans(8)), adam(0.03), GaussianProcessELBO())
    return fit(KEY, svi, 300, *args, progress=False)


@pytest.mark.slow
def test_noise_that_changes_is_found():
    y = TRUTH + SCALE * RNG.standard_normal(150)
    found = trained(heteroscedastic_gp, X, y).predict(KEY, X, test_data={"y": y})["y"]
    scale = np.sqrt(found.variance)
    assert spearmanr(scale, SCALE).statistic > 0.95 and abs(np.log(scale / SCALE)).mean() < 0.3
    # Better than the right function with noise of one size.
    assert found.log_density.mean() > norm(TRUTH, (y - TRUTH).std()).logpdf(y).mean() + 0.1


@pytest.mark.slow
def test_ordered_labels_are_learned():
    found = trained(partial(ordinal_gp, num_classes=4), X, LEVELS)
    cuts = np.asarray(found.params["cutpoints"])
    assert (np.diff(cuts) > 0).all() and (np.diff(cuts) < 4).all()
    test = found.predict(KEY, X, test_data={"y": LEVELS})["y"]
    shares = np.bincount(LEVELS) / 150
    assert test.log_density.mean() > (shares * np.log(shares)).sum() + 0.2
    np.testing.assert_allclose(test.probs.sum(-1), 1, rtol=1e-5)


@pytest.mark.slow
def test_rates_are_found_where_exposures_differ():
    y = RNG.poisson(SIZES * 2 * np.exp(TRUTH))
    found = trained(log_gaussian_cox, X, y, SIZES).predict(KEY, X, None, np.ones(150))["y"]
    assert np.abs(np.log(found.mean / (2 * np.exp(TRUTH)))).mean() < 0.15


def test_two_labels_are_the_fewest():
    with pytest.raises(ValueError, match="num_classes - 1"):
        InducingGuide(partial(ordinal_gp, num_classes=1), kmeans(3)).setup(jnp.asarray(X), jnp.asarray(LEVELS))


def test_exposures_are_offsets_of_the_log_rate():
    def with_offset(X, y, exposure):
        f = numpyro.sample("f", GaussianProcess(rbf("f", X), X))
        level = positive("rate", 1.0, X) * jnp.ones(len(X))
        with numpyro.plate("data", len(X)):
            numpyro.sample("y", Expected(_poisson, f * 1.0 + jnp.log(exposure), level), obs=y)

    y = RNG.poisson(SIZES)
    guides = [InducingGuide(p, InducingPoints(np.linspace(-2, 2, 8)[:, None])) for p in (log_gaussian_cox, with_offset)]
    params = guides[0].init_params(KEY, X, y, SIZES)
    found = [bound(guide.model, guide, params, X, y, SIZES) for guide in guides]
    np.testing.assert_allclose(*found, rtol=1e-10)
