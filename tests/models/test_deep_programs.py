"""Deep GPs among NumPyro's own tools: relations, MCMC, Predictive."""

from functools import partial

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, Predictive
from numpyro.infer.inspect import get_model_relations

from gpzoo.inducing.variables import InducingPoints
from gpzoo.inference import InducingGuide, predict
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Gaussian
from gpzoo.models import deep_gp, inner_scales, linear_layers
from tests.programs import KEY

RNG = np.random.default_rng(0)
X, y = RNG.standard_normal((30, 4)), RNG.standard_normal(30)
LAYERS = [np.asarray(W) for W in linear_layers(X, [3, 2])]


def test_its_relations():
    with jax.numpy_dtype_promotion("standard"):
        relations = get_model_relations(partial(deep_gp, layers=LAYERS), (X, y))
    assert set(relations["sample_sample"]) == {"layer_0", "layer_1", "f", "y"}
    for below, name in (("layer_0", "layer_1"), ("layer_1", "f"), ("f", "y")):
        assert below in relations["sample_sample"][name]
    assert relations["observed"] == ["y"] and relations["plate_sample"] == {"data": ["y"]}
    own = {f"layer_0_{part}" for part in ("variance", "lengthscale", "noise_variance")}
    assert set(relations["sample_param"]["layer_0"]) == own


FIXED = partial(
    deep_gp, layers=[1], kernel=lambda name, h: RBF(1.0, 1.0), layer_noise=1e-2, likelihood=lambda f: Gaussian(f, 0.1)
)
FEW = X[:6, :1] / 3, y[:6]


@pytest.mark.slow
def test_nuts_draws_every_layer():
    model = handlers.lift(FIXED, prior={"layer_0_noise_variance": dist.LogNormal(-4.0, 0.1)})

    @jax.jit
    def drawn(key):
        mcmc = MCMC(NUTS(model, max_tree_depth=4), num_warmup=20, num_samples=10, progress_bar=False)
        mcmc.run(key, *FEW)
        return mcmc.get_samples()

    with jax.numpy_dtype_promotion("standard"):
        samples = drawn(KEY)
    shapes = {name: value.shape[1:] for name, value in samples.items()}
    assert shapes == {"layer_0": (6, 1), "f": (6,), "layer_0_noise_variance": ()}
    assert all(np.isfinite(value).all() and np.ptp(value, axis=0).min() > 0 for value in samples.values())
    found = predict(KEY, model, X[6:9, :1] / 3, posterior_samples=samples, train_args=FEW)["y"]
    assert np.isfinite(found.mean).all() and (found.variance > 0.1).all()


@pytest.mark.slow
def test_predictive_draws_all_sites():
    model = partial(deep_gp, layers=LAYERS[:1])
    inducing = {"layer_0": InducingPoints(X[:4]), "f": InducingPoints(X[:4] @ LAYERS[0])}
    guide = InducingGuide(model, inducing, initial_scale=inner_scales(LAYERS[:1]))

    @jax.jit
    def drawn(key):
        options = {"params": guide.init_params(key, X, y), "num_samples": 4, "return_sites": ["layer_0", "f", "y"]}
        return Predictive(model, num_samples=4)(key, X), Predictive(model, guide=guide, **options)(key, X[:5])

    prior, posterior = jax.tree.map(np.asarray, drawn(KEY))
    for found, rows in ((prior, 30), (posterior, 5)):
        assert found["layer_0"].shape == (4, rows, 3) and found["f"].shape == found["y"].shape == (4, rows)
        assert all(np.isfinite(value).all() for value in found.values())
        assert found["y"].std(0).min() > 0
