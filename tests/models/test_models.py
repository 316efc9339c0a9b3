"""The zoo's programs: drawn from, inspected, trained, predicted with, and good enough on two real data sets."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import SVI
from numpyro.infer.inspect import get_model_relations

from gpzoo.inducing.initialisers import blocks, kmeans, unique_patches
from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit, load
from gpzoo.models import (
    colour_patch_gp,
    convolutional_gp,
    convolutional_plus_rbf_gp,
    deep_gp,
    gaussian,
    gp_classification,
    gp_regression,
    invariant_gp,
    multi_channel_gp,
    rbf,
    translation_insensitive_gp,
)
from gpzoo.reproductions import datasets
from gpzoo.reproductions.datasets.files import find
from tests.programs import adam

KEY = random.key(0)
RNG = np.random.default_rng(0)
INPUTS = RNG.standard_normal((9, 2))
COLOUR = RNG.uniform(size=(9, 5, 5, 3))
IMAGES = RNG.uniform(size=(9, 5, 5, 1))
NUMBERS = RNG.standard_normal(9)
conv = partial(convolutional_gp, patch_shape=(3, 3))

# name -> program, inputs, data, classes, the guide's initialiser, parameters of the model
PROGRAMS = {
    "regression": (gp_regression, INPUTS, NUMBERS, None, kmeans(4), {"f_variance", "f_lengthscale", "noise_variance"}),
    "two outputs": (
        partial(gp_regression, num_outputs=2),
        INPUTS,
        np.stack([NUMBERS, -NUMBERS], axis=1),
        None,
        kmeans(4),
        {"f_variance", "f_lengthscale", "noise_variance"},
    ),
    "two classes": (gp_classification, INPUTS, np.arange(9) % 2, 2, kmeans(4), {"f_variance", "f_lengthscale"}),
    "three classes": (
        partial(gp_classification, num_classes=3),
        INPUTS,
        np.arange(9) % 3,
        3,
        kmeans(4),
        {"f_variance", "f_lengthscale"},
    ),
    "weighted convolution": (
        conv,
        IMAGES,
        np.arange(9) % 2,
        2,
        unique_patches(3),
        {"variance", "lengthscale", "weights"},
    ),
    "convolution plus rbf": (
        partial(convolutional_plus_rbf_gp, patch_shape=(3, 3)),
        IMAGES,
        np.arange(9) % 2,
        2,
        blocks(unique_patches(4), kmeans(4)),
        {"variance", "lengthscale", "weights", "rbf_variance", "rbf_lengthscale"},
    ),
    "colour patches": (
        partial(colour_patch_gp, patch_shape=(3, 3), num_classes=10),
        COLOUR,
        np.arange(9),
        10,
        unique_patches(4),
        {"variance", "lengthscale", "weights"},
    ),
    "additive colour patches": (
        partial(colour_patch_gp, patch_shape=(3, 3), additive=True),
        COLOUR,
        np.arange(9) % 2,
        2,
        unique_patches(4),
        {"variance", "lengthscale", "weights"},
    ),
    "patches and places": (
        partial(translation_insensitive_gp, patch_shape=(3, 3)),
        COLOUR,
        np.arange(9) % 2,
        2,
        unique_patches(4),
        {"variance", "lengthscale", "place_lengthscale"},
    ),
    "channels": (
        partial(multi_channel_gp, patch_shape=(3, 3), num_classes=3),
        COLOUR,
        np.arange(9) % 3,
        3,
        blocks(unique_patches(4)),
        {"variance", "lengthscale", "weights"},
    ),
    "invariant convolution": (
        partial(conv, weighted=False, num_classes=10),
        IMAGES,
        np.arange(9),
        10,
        unique_patches(4),
        {"variance", "lengthscale"},
    ),
}


@pytest.mark.slow_but(name=["weighted convolution"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_drawn_from_and_inspected(name):
    program, X, y, classes, _, params = PROGRAMS[name]
    trace = {}

    @jax.jit
    def draw(key):
        trace.update(handlers.trace(handlers.seed(program, key)).get_trace(X))
        return trace["f"]["value"], trace["y"]["value"]

    f, drawn = draw(KEY)
    assert drawn.shape == y.shape and np.isfinite(f).all()
    assert f.shape == (y.shape if classes in (None, 2) else (9, classes))
    if classes:
        assert set(np.unique(drawn)) <= set(range(classes))
    assert {site for site, message in trace.items() if message["type"] == "param"} == params
    with jax.numpy_dtype_promotion("standard"):
        relations = get_model_relations(program, (X, y))
    assert "f" in relations["sample_sample"]["y"]
    assert relations["observed"] == ["y"] and relations["plate_sample"] == {"data": ["y"]}


#: Programs that others are trained like, but for their kernel.
ALIKE = {"colour patches", "invariant convolution"}


@pytest.mark.slow_but(name=["three classes"])
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ALIKE])
def test_a_program_is_trained_and_predicted_with(name):
    program, X, y, classes, inducing, params = PROGRAMS[name]
    guide = InducingGuide(program, inducing)
    svi = SVI(program, guide, adam(0.01), GaussianProcessELBO())
    result = fit(KEY, svi, 3, X, y, batch_size=5, progress=False, model_kwargs={"num_data": 9})
    assert set(result.params) == params | {"f_inducing", "f_mean", "f_scale"}
    assert np.isfinite(result.losses).all()
    assert result.expectations == {"y": "quadrature" if classes else "closed form"}
    found = result.predict(KEY, X[:4], test_data={"y": y[:4]})
    assert found["y"].log_density.shape == (4,) and np.isfinite(found["y"].log_density).all()
    if classes and classes > 2:
        assert found["y"].probs.shape == (4, classes)
        np.testing.assert_allclose(found["y"].probs.sum(1), 1.0, atol=1e-3)
    else:
        assert found["y"].mean.shape == y[:4].shape and (found["y"].variance > 0).all()


def test_a_prior_of_one_number_for_several_is_refused():
    """It would leave one lengthscale to all columns, without a word."""
    lifted = handlers.lift(gp_regression, prior={"f_lengthscale": dist.InverseGamma(5.0, 5.0)})
    with pytest.raises(ValueError, match=r"'f_lengthscale' is \[3\] in the program, and has shape \[\] here.*expand"):
        handlers.seed(lifted, 0)(np.zeros((4, 3)), np.zeros(4))
    with handlers.substitute(data={"f_lengthscale": 0.5}):
        assert rbf("f", np.zeros((4, 1))).lengthscale.shape == (1,)


@pytest.mark.slow
def test_convolutions_tell_handwritten_zeros_from_ones():
    data = datasets.load("digits").classes(0, 1)
    X, X_test = (jnp.asarray(part, jnp.float32) for part in (data.X_train, data.X_test))
    y, y_test = jnp.asarray(data.y_train), np.asarray(data.y_test)
    guide = InducingGuide(conv, unique_patches(16))
    svi = SVI(conv, guide, adam(0.03), GaussianProcessELBO())
    result = fit(
        KEY, svi, 150, X, y, batch_size=50, progress=False, model_kwargs={"num_data": len(X), "variance": 10.0}
    )
    found = result.predict(KEY, X_test)["y"]
    assert np.mean((found.mean > 0.5) != y_test) < 0.05


@pytest.mark.slow
def test_regression_explains_the_boston_house_prices():
    if find("uci_boston.npz") is None:
        pytest.skip("the boston data are not in the data folder")
    data = datasets.load("uci/boston").standardised()
    X, X_test = (jnp.asarray(part, jnp.float32) for part in (data.X_train, data.X_test))
    y = jnp.asarray(data.y_train, jnp.float32)
    guide = InducingGuide(gp_regression, kmeans(30))
    svi = SVI(gp_regression, guide, adam(0.03), GaussianProcessELBO())
    result = fit(KEY, svi, 400, X, y, batch_size=100, progress=False, model_kwargs={"num_data": len(X)})
    found = result.predict(KEY, X_test)["y"]
    rmse = np.sqrt(np.mean((found.mean - data.y_test) ** 2))
    assert rmse < 0.5 * np.sqrt(np.mean((data.y_test - data.y_train.mean()) ** 2))


def noisy(noises, n=150):
    """Waves with noises of these variances, and as many rows to test."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (2, n, 1))
    waves = np.stack([np.sin(X[..., 0] + d) for d in range(len(noises))], axis=-1)
    return X, waves + np.sqrt(noises) * rng.standard_normal(waves.shape)


@pytest.mark.slow
@pytest.mark.parametrize("program", [gp_regression, deep_gp])
@pytest.mark.parametrize("noises", [[0.02, 1.0], [1.0, 0.02], [0.02, 0.02, 1.0], [0.02, 1.0, 0.3]], ids=str)
def test_each_of_several_outputs_has_its_noise(program, noises):
    (X, new), (y, test) = noisy(noises)
    program = partial(program, num_outputs=len(noises))
    trained = fit(KEY, SVI(program, InducingGuide(program, kmeans(8)), adam(0.05), GaussianProcessELBO()), 400, X, y)
    found = trained.predict(KEY, new)["y"]
    held = np.mean(np.abs(test - found.mean) < 1.645 * np.sqrt(found.variance), axis=0)
    assert np.all((held > 0.8) & (held < 0.98)), held


@pytest.mark.slow_but(program=[gp_regression])
@pytest.mark.parametrize("program", [gp_regression, deep_gp, partial(invariant_gp, view=None)])
def test_a_file_of_one_noise_is_loaded_and_predicts(program, tmp_path):
    X, y = INPUTS, np.stack([NUMBERS, -NUMBERS, NUMBERS], axis=1)
    program = partial(program, num_outputs=3)
    option = {"likelihood": partial(gaussian, shared_noise=True)} if program.func is deep_gp else {"shared_noise": True}
    one = partial(program, **option)
    trained = fit(KEY, SVI(one, InducingGuide(one, kmeans(4)), adam(0.05), GaussianProcessELBO()), 3, X, y)
    assert trained.params["noise_variance"].shape == ()
    trained.save(tmp_path / "model")
    for each in (one, program):
        found = load(tmp_path / "model", each).predict(KEY, X[:5])["y"]
        np.testing.assert_array_equal(found.variance, trained.predict(KEY, X[:5])["y"].variance)


def test_a_prior_of_one_noise_has_it_shared_and_none_of_another_number_passes():
    for shape, wanted in (((), ()), ((3,), (3,)), ((2,), None)):
        prior = dist.LogNormal(0.0, 1.0).expand(shape).to_event(len(shape))
        lifted = handlers.seed(handlers.lift(gaussian, prior={"noise_variance": prior}), 0)
        if wanted is None:
            with pytest.raises(ValueError, match=r"'noise_variance' is \[3\]"):
                lifted(np.zeros((2, 3)))
        else:
            assert lifted(np.zeros((2, 3))).noise_variance.shape == wanted
