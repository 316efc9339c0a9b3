"""Likelihoods of the last layer of a deep GP: two steps of training with each, and prediction."""

from functools import partial

import jax
import numpy as np
import pytest
from numpyro.infer import SVI

from gpzoo.inducing.variables import InducingPoints
from gpzoo.inference import GaussianProcessELBO, InducingGuide, Trained
from gpzoo.likelihoods import Bernoulli, Expected, Gaussian, RobustMax, Softmax
from gpzoo.models import deep_gp, inner_scales, linear_layers
from tests.programs import KEY, adam, poisson, positive

RNG = np.random.default_rng(0)
X, y = RNG.standard_normal((30, 4)), RNG.standard_normal(30)
LAYERS = [np.asarray(W) for W in linear_layers(X, [3])]
INDUCING = {"layer_0": InducingPoints(X[:4]), "f": InducingPoints(X[:4] @ LAYERS[0])}
LABELS, COUNTS = np.arange(30) % 3, np.arange(30) % 7


# name -> likelihood, num_outputs, data, parameters of the likelihood
LIKELIHOODS = {
    "bernoulli": (Bernoulli, None, LABELS // 2, set()),
    "robust max": (RobustMax, 3, LABELS, set()),
    "softmax": (Softmax, 3, LABELS, set()),
    "poisson": (partial(Expected, poisson), None, COUNTS, set()),
    "several outputs": (lambda f: Gaussian(f, positive("noise", 0.1)), 2, np.stack([y, -y], axis=1), {"noise"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_likelihoods_of_the_last_layer(name):
    likelihood, num_outputs, data, names = LIKELIHOODS[name]
    model = partial(deep_gp, layers=LAYERS, likelihood=likelihood, num_outputs=num_outputs)
    guide = InducingGuide(model, INDUCING, initial_scale=inner_scales(LAYERS))
    svi = SVI(model, guide, adam(0.01), GaussianProcessELBO())

    @jax.jit
    def two_steps():
        start = svi.init(KEY, X, data)
        state, losses = jax.lax.scan(lambda state, _: svi.update(state, X, data), start, length=2)
        return svi.get_params(start), svi.get_params(state), losses

    start, params, losses = jax.tree.map(np.asarray, two_steps())
    layers = {f"layer_0_{part}" for part in ("variance", "lengthscale", "noise_variance", "inducing", "mean", "scale")}
    assert set(start) == layers | names | {
        f"f_{part}" for part in ("variance", "lengthscale", "inducing", "mean", "scale")
    }
    assert np.isfinite(losses).all()
    for part, before in start.items():
        assert np.isfinite(params[part]).all() and not np.array_equal(params[part], before), part
    if name == "several outputs":
        found = Trained(model, guide, params).predict(KEY, X[:5], test_data={"y": data[:5]}, num_draws=3)
        assert found["f"].mean.shape == found["y"].mean.shape == (5, 2)
        assert found["y"].log_density.shape == (5,) and np.isfinite(found["y"].log_density).all()
