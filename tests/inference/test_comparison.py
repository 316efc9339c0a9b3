"""Candidates with a guide, optimiser or objective of their own are compared beside those of the default."""

import numpy as np
import optax
import pytest
from numpyro.infer import SVI
from numpyro.infer.autoguide import AutoNormal

from gpzoo import kmeans
from gpzoo.inference import CollapsedELBO, GaussianProcessELBO, InducingGuide, compare, lbfgs
from gpzoo.models import gp_regression
from tests.programs import KEY

pytestmark = pytest.mark.slow


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
