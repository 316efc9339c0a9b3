"""Deep GPs as programs: likelihoods of the last layer, and NumPyro's own tools."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from helpers import KEY, adam, positive
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, SVI, Predictive
from numpyro.infer.inspect import get_model_relations

from gpzoo.inference import GaussianProcessELBO, InducingGuide, predict
from gpzoo.initialisers import kmeans
from gpzoo.kernels import RBF
from gpzoo.likelihoods import Bernoulli, Expected, Gaussian, RobustMax, Softmax
from gpzoo.models import deep_gp, inner_scales, linear_layers

RNG = np.random.default_rng(0)
X, y = jnp.asarray(RNG.standard_normal((30, 4))), jnp.asarray(RNG.standard_normal(30))
LAYERS = linear_layers(X, [3, 2])
LABELS, COUNTS = jnp.arange(30) % 3, jnp.arange(30) % 7


def poisson(f):
    return dist.Poisson(jnp.exp(f))


# name -> likelihood, num_outputs, data, parameters of the likelihood
LIKELIHOODS = {
    "bernoulli": (Bernoulli, None, LABELS // 2, set()),
    "robust max": (RobustMax, 3, LABELS, set()),
    "softmax": (Softmax, 3, LABELS, set()),
    "poisson": (partial(Expected, poisson), None, COUNTS, set()),
    "several outputs": (lambda f: Gaussian(f, positive("noise", 0.1)), 2, jnp.stack([y, -y], axis=1), {"noise"}),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_likelihoods_of_the_last_layer(name):
    likelihood, num_outputs, data, names = LIKELIHOODS[name]
    model = partial(deep_gp, layers=LAYERS[:1], likelihood=likelihood, num_outputs=num_outputs)
    guide = InducingGuide(model, kmeans(4), initial_scale=inner_scales(LAYERS[:1]))
    svi = SVI(model, guide, adam(0.01), GaussianProcessELBO())
    state = svi.init(KEY, X, data)
    start = svi.get_params(state)
    layers = {f"layer_0_{part}" for part in ("variance", "lengthscale", "noise_variance", "inducing", "mean", "scale")}
    assert set(start) == layers | names | {
        f"f_{part}" for part in ("variance", "lengthscale", "inducing", "mean", "scale")
    }
    update = jax.jit(lambda state: svi.update(state, X, data))
    for _ in range(2):
        state, loss = update(state)
        assert np.isfinite(loss)
    params = svi.get_params(state)
    for part, before in start.items():
        assert np.isfinite(params[part]).all() and not np.array_equal(params[part], before), part
    if name == "several outputs":
        arguments = {"guide": guide, "params": params, "test_data": {"y": data[:5]}, "num_draws": 3}
        found = predict(KEY, model, X[:5], **arguments)
        assert found["f"].mean.shape == found["y"].mean.shape == (5, 2)
        assert found["y"].log_density.shape == (5,) and np.isfinite(found["y"].log_density).all()


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


def test_nuts_draws_every_layer():
    with pytest.raises(ValueError, match=r"site\(s\) layer_0_noise_variance are not sampled by MCMC"):
        MCMC(NUTS(FIXED), num_warmup=1, num_samples=1, progress_bar=False).run(KEY, *FEW)
    model = handlers.lift(FIXED, prior={"layer_0_noise_variance": dist.LogNormal(-4.0, 0.1)})
    mcmc = MCMC(NUTS(model), num_warmup=20, num_samples=10, progress_bar=False)
    with jax.numpy_dtype_promotion("standard"):
        mcmc.run(KEY, *FEW)
    samples = mcmc.get_samples()
    shapes = {name: value.shape[1:] for name, value in samples.items()}
    assert shapes == {"layer_0": (6, 1), "f": (6,), "layer_0_noise_variance": ()}
    assert all(np.isfinite(value).all() and np.ptp(value, axis=0).min() > 0 for value in samples.values())
    found = predict(KEY, model, X[6:9, :1] / 3, posterior_samples=samples, train_args=FEW)["y"]
    assert np.isfinite(found.mean).all() and (found.variance > 0.1).all()


def test_predictive_draws_all_sites():
    model = partial(deep_gp, layers=LAYERS[:1])
    prior = jax.jit(lambda key: Predictive(model, num_samples=4)(key, X))(KEY)
    guide = InducingGuide(model, kmeans(4), initial_scale=inner_scales(LAYERS[:1]))
    params = guide.init_params(KEY, X, y)
    predictive = Predictive(model, guide=guide, params=params, num_samples=4, return_sites=["layer_0", "f", "y"])
    posterior = jax.jit(lambda key: predictive(key, X[:5]))(KEY)
    for found, rows in ((prior, 30), (posterior, 5)):
        assert found["layer_0"].shape == (4, rows, 3) and found["f"].shape == found["y"].shape == (4, rows)
        assert all(np.isfinite(value).all() for value in found.values())
        assert found["y"].std(0).min() > 0
